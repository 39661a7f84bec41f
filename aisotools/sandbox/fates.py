"""What is told of calls whose worker had to be ended, or ended by itself: what is kept, and what is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aisotools.events import ToolResult
from aisotools.exceptions import WorkerDied
from aisotools.variable_contracts import VariablePoint

_LAST_WORDS_CHARS = 4000
_TAIL_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A worker was woken in the place of one that ended.

    Attributes:
        point: The state in which it is.
        whole: Whether nothing is lost but what the calls under way had done.
    """

    point: VariablePoint
    whole: bool


def sentence(recovery: Recovery | None) -> str:
    """What became of the variables."""
    if recovery is None:
        return "Its variables are lost; the next call gets a fresh worker."
    point = recovery.point
    if recovery.whole:
        told = "The state is kept: the variables are as they were before this call."
    else:
        told = f"The variables are as they were before the call {point.call_id}; later changes are lost."
    return told + (f" Lost: {'; '.join(point.lost)}." if point.lost else "")


def metadata(recovery: Recovery | None) -> dict[str, Any]:
    """The same for programs."""
    if recovery is None:
        return {"state_kept": False}
    point = recovery.point
    told = {"state_kept": recovery.whole, "state_label": point.label, "state_before": point.call_id}
    return {**told, "state_lost": list(point.lost)} if point.lost else told


def died(error: WorkerDied, recovery: Recovery | None) -> ToolResult:
    """The result of a call during which the worker ended."""
    told = f"The sandbox's worker ended during the call: {error}. {sentence(recovery)}"
    if error.last_words:
        told += f"\nIts last words:\n{error.last_words[-_LAST_WORDS_CHARS:]}"
    result = ToolResult.error(told, error_kind="environment")
    return result.with_metadata(worker_died=True, **metadata(recovery))


def overdue(
    name: str, ran: str, printed: Mapping[str, str], *, gave: str | None, recovery: Recovery | None
) -> ToolResult:
    """The result of a call that was stopped at its deadline.

    Args:
        name: The tool.
        ran: How long it ran, in words.
        printed: What it had printed, by stream.
        gave: What it gave when it was interrupted; None if its worker had to be ended.
        recovery: What was had back then.
    """
    if gave is not None:
        told = [f"{name} was stopped: {ran}. The sandbox's variables are kept.", gave]
        kept: dict[str, Any] = {"state_kept": True}
    else:
        told = [f"{name} was stopped: {ran}. It could not be interrupted. {sentence(recovery)}"]
        told += [text[-_TAIL_CHARS:] for text in printed.values()]
        kept = metadata(recovery)
    result = ToolResult.error("\n".join(told), error_kind="failed")
    return result.with_metadata(timed_out=True, **kept, **printed)
