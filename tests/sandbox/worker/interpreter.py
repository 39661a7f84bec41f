"""Code in an interpreter of its own, for what would change this one: forks, event loops, IPython's shell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.waiting import HANG_S


def run_alone(code: str, folder: Path) -> Any:
    """Run `code` in a fresh interpreter, in `folder`. Return the JSON that it prints."""
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        timeout=HANG_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)
