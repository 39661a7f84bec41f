"""`python -m aisotools`: the command, for where its script is not on the path, such as in a notebook."""

from __future__ import annotations

import sys

from aisotools.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
