"""Names of test cases that are the same in every process, as running in parallel demands."""

from __future__ import annotations

import re


def stable(value: object) -> str:
    """How a value is written, without the address that it happens to have."""
    text = value if isinstance(value, str) else repr(value)
    return re.sub(r" at 0x[0-9a-f]+", "", text)[:60]
