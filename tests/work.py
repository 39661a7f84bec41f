"""Counts of work, for tests of what something costs: they are the same on a busy machine and on a quiet one.

Only lines of Python are counted. What a search or a match does in C shows otherwise: on an input so large
that it would never end if its time grew with the square.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(function: Callable[[], object], *, below: str) -> int:
    """Run `function`. Return how many lines of the files whose paths begin with `below` it has run."""
    count = 0

    def trace_lines(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace_lines

    def trace_calls(frame: FrameType, _event: str, _argument: Any) -> Any:
        return trace_lines if frame.f_code.co_filename.startswith(below) else None

    former = sys.gettrace()
    sys.settrace(trace_calls)
    try:
        function()
    finally:
        sys.settrace(former)
    return count
