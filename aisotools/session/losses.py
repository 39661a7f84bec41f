"""Losses of variables that the result of a call says and nobody reads, kept for the next result."""

from __future__ import annotations

from aisotools.core.sandboxes import CallDispatch
from aisotools.core.types import ToolResult


class UnseenLosses:
    """What sandboxes have said of lost variables in results that nobody reads.

    Such are those of `Session.get` and `Session.put`, and of trials that came to nothing.

    Attributes:
        lines: What is still to be said, one loss to a line.
    """

    def __init__(self) -> None:
        """Start with none."""
        self.lines = ""

    def __repr__(self) -> str:
        return f"<UnseenLosses {self.lines!r}>"

    def note(self, dispatch: CallDispatch) -> None:
        """Keep what the result of a call says."""
        self.lines = "\n".join(filter(None, (self.lines, dispatch.loss)))

    def report(self, result: ToolResult) -> ToolResult:
        """Return a result that begins with what is still to be said."""
        lines, self.lines = self.lines, ""
        return result.with_first_line(lines) if lines else result
