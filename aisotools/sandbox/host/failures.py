"""Results of calls that their worker did not finish: it died, or was killed at the deadline.

Each result says what happened to the variables, in words for a model and as metadata for programs.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aisotools.core.exceptions import CLOSE_FILES, TOO_MANY_FILES, WorkerDied, as_clause
from aisotools.core.sandboxes import CallDispatch, SandboxCall, VariablePoint
from aisotools.core.types import ToolResult
from aisotools.sandbox.frames import BROKEN_STATUS
from aisotools.sandbox.limits import LEFTOVERS_REMEDY, LIMIT

_LAST_WORDS_CHARS = 4000
_TAIL_CHARS = 2000
_REASON_CHARS = 500
_NO_PROCESS = os.strerror(errno.EAGAIN)  # what a fork says that was refused
_RESTART = "restart the sandbox (`%sandbox restart`, `await session.restart()`), which loses its variables"
# Begin the import paths and the names of tools of our own, which nobody else can declare.
_OWN_MODULES = "aisotools."
_OWN_NAMES = "session."

VARIABLES_KEPT = "Variables are kept, including changes made before the timeout."
"""Sentence of a result about the variables after a timeout, as long as nobody takes the call back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A snapshot that took the place of a worker that ended.

    Attributes:
        point: The snapshot.
        is_complete: Whether nothing is lost but what the calls in progress had done.
        is_pending: Whether the new worker was not ready yet; it may still fail to start.
    """

    point: VariablePoint
    is_complete: bool
    is_pending: bool = False


def describe_recovery(recovery: Recovery | None) -> str:
    """Return a sentence on what happened to the variables; None is that there was no snapshot."""
    if recovery is None:
        return "Its variables are lost; the next call gets a fresh worker."
    point = recovery.point
    lost = f" Lost: {'; '.join(point.lost)}." if point.lost else ""
    moment = "this call" if recovery.is_complete else f"the call {point.call_id}"
    if recovery.is_pending:
        return (
            f"A snapshot of the variables from before {moment} exists and is being restored; that had not "
            f"finished when this was reported. Check a variable before relying on it.{lost}"
        )
    if recovery.is_complete:
        return f"The variables were restored to what they were before {moment}.{lost}"
    return f"The variables were restored to what they were before {moment}; later changes are lost.{lost}"


def recovery_metadata(recovery: Recovery | None) -> dict[str, Any]:
    """Return the same as metadata of a result. Only a state that was restored counts as kept."""
    if recovery is None:
        return {"state_kept": False}
    point = recovery.point
    metadata: dict[str, Any] = {
        "state_kept": recovery.is_complete and not recovery.is_pending,
        "state_label": point.label,
        "state_before": point.call_id,
    }
    if recovery.is_pending:
        metadata["state_pending"] = True
    if point.lost:
        metadata["state_lost"] = list(point.lost)
    return metadata


def worker_died_result(error: WorkerDied, recovery: Recovery | None) -> ToolResult:
    """Build the result of a call during which the worker ended; `recovery` is what was restored."""
    content = f"The sandbox's worker ended during the call: {as_clause(error)}. {describe_recovery(recovery)}"
    last_words = error.last_words
    if error.is_broken:
        last_words, _, reason = last_words.rstrip("\n").rpartition("\n")
        content = (
            "The sandbox's worker ended during the call, because what this or an earlier call has left in it "
            f"keeps calls from running: {as_clause(reason[:_REASON_CHARS]) or 'no reason was given'}. "
            f"{describe_recovery(recovery)} Make the call again, and leave the modules and objects that run "
            "cells as they are."
        )
    if last_words:
        content += f"\nIts last output:\n{last_words[-_LAST_WORDS_CHARS:]}"
    result = ToolResult.error(content, error_kind="environment")
    if error.is_broken:
        result = result.with_metadata(worker_broken=True)
    return result.with_metadata(worker_died=True, **recovery_metadata(recovery))


def timeout_result(
    tool: str,
    timeout_s: float,
    output: Mapping[str, str],
    *,
    partial: str | None,
    recovery: Recovery | None,
    has_threads: bool = False,
) -> ToolResult:
    """Build the result of a call that exceeded its deadline.

    Args:
        tool: The name of the tool.
        timeout_s: Its deadline in seconds.
        output: What it had printed, by stream.
        partial: What the call returned after being interrupted, or None if its worker had to be killed.
        recovery: The snapshot restored after the kill, if any.
        has_threads: Whether threads of it go on, as its worker says.
    """
    reason = f"{tool} timed out after {timeout_s:g} s."
    if partial is not None:
        lines = [f"{reason} {VARIABLES_KEPT}", partial]
        metadata: dict[str, Any] = {"state_kept": True}
        if has_threads:
            metadata["threads_left"] = True
    else:
        tails = [text[-_TAIL_CHARS:] for text in output.values()]
        lines = [f"{reason} It could not be interrupted. {describe_recovery(recovery)}", *tails]
        metadata = recovery_metadata(recovery)
    result = ToolResult.error("\n".join(lines), error_kind="failed")
    return result.with_metadata(timed_out=True, **metadata, **output)


def explain_replaced(result: ToolResult, reason: str, dispatch: CallDispatch) -> ToolResult:
    """Begin a call's result with why its worker is not that of the call before: `reason`."""
    dispatch.loss = f"[Before this call the sandbox's worker ended: {as_clause(reason)}.]"
    return result.with_first_line(dispatch.loss)


def add_note(result: ToolResult, note: str) -> ToolResult:
    """Return a result with a line behind its content; as it is if there is nothing to say."""
    if not note:
        return result
    return dataclasses.replace(result, content=f"{result.content}\n{note}" if result.content else note)


# ---- calls in a reader, which has nothing to lose


HOST_SHORTAGE = "this program has too many files open (EMFILE)"
"""Reason why there is no process for a call that only reads."""


def unreadable_result(request: SandboxCall, reason: str, *, shortage: str = "") -> ToolResult:
    """Build the result of a call that only reads, and that no process could be made for.

    Args:
        request: The call.
        reason: Why.
        shortage: What is known of the worker and explains it, as a clause.
    """
    tool = request.call.name
    remedy = f"Try again. If that fails as well, {_RESTART}"
    if not (request.shipment.import_path.startswith(_OWN_MODULES) or tool.startswith(_OWN_NAMES)):
        remedy += ", or declare the tool with effect='local_mutation'"
    remedy += "."
    has_no_process = _NO_PROCESS in reason
    if has_no_process:
        remedy = f"For another process there is no room: {LEFTOVERS_REMEDY}then call it again."
    elif shortage:
        reason, remedy = shortage, f"Close them there, or {_RESTART}."
    elif reason == HOST_SHORTAGE or any(os.strerror(number) in reason for number in TOO_MANY_FILES):
        remedy = CLOSE_FILES
    content = (
        f"{tool} was not run: it only reads, and no process without the right to write could be made for it: "
        f"{as_clause(reason)}. {remedy}"
    )
    result = ToolResult.error(content, error_kind="environment")
    return result.with_metadata(**{LIMIT: "processes"}) if has_no_process else result


def reader_died_result(error: WorkerDied) -> ToolResult:
    """Build the result of a call that only reads, whose process ended during the call."""
    reason = as_clause(error)
    content = f"The process that the call ran in ended: {reason}. It could only read: nothing was changed."
    if error.last_words:
        content += f"\nIts last output:\n{error.last_words[-_LAST_WORDS_CHARS:]}"
    result = ToolResult.error(content, error_kind="environment")
    return result.with_metadata(reader_died=True, state_kept=True)


def reader_timeout_result(
    tool: str, timeout_s: float, output: Mapping[str, str], *, partial: str | None, lost: tuple[str, ...]
) -> ToolResult:
    """Build the result of a call that only reads and exceeded its deadline.

    Args:
        tool: The name of the tool.
        timeout_s: Its deadline in seconds.
        output: What it had printed, by stream.
        partial: What the call returned after being interrupted, or None if its process had to be killed.
        lost: What its process lacked of the worker: it may have waited for that.
    """
    lines = [f"{tool} timed out after {timeout_s:g} s. It could only read: nothing was changed."]
    if lost:
        lines.append(f"It ran in a copy of the worker, without {'; '.join(lost)}.")
    lines += [text[-_TAIL_CHARS:] for text in output.values()] if partial is None else [partial]
    result = ToolResult.error("\n".join(filter(None, lines)), error_kind="failed")
    return result.with_metadata(timed_out=True, state_kept=True, **output)


_SIGNAL_HINTS = {
    # Anybody may send it, and the kernel does when memory runs out: which of them is not reported.
    signal.SIGKILL: ", whose sender is not known; if the call takes much memory, try it with less data",
    signal.SIGXCPU: ", which the kernel sends when processor time is used up",
}


def describe_exit(exit_status: int, signal_number: int) -> str:
    """Return how a process ended, as a clause in which `it` is the process.

    Args:
        exit_status: The status that it exited with; negative if it was ended by a signal, or is not known.
        signal_number: The signal that ended it, or 0.
    """
    if exit_status < 0 and not signal_number:
        return "its exit status is not known"
    if not signal_number and exit_status == BROKEN_STATUS:
        return f"calls could not run in it any more, so it exited with status {exit_status}"
    if not signal_number:
        return f"it exited with status {exit_status}"
    try:
        name = signal.Signals(signal_number)
    except ValueError:
        return f"it was ended by signal {signal_number}"
    return f"it was ended by {name.name}{_SIGNAL_HINTS.get(name, '')}"
