"""What is told of an undo, before and after, in words for people and models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from aisotools.checkpoint_chain import Moved, Step
from aisotools.checkpoint_seen import Snapshot
from aisotools.events import Json, ToolResult
from aisotools.paths import printable
from aisotools.ticket import Ticket
from aisotools.variable_contracts import VariablePoint

_SHOWN = 20


def outcome(moved: Moved, variables: str) -> ToolResult:
    """What came of an undo or redo."""
    missing = tuple(f"{path or 'the workspace'} ({why})" for path, why in moved.missing)
    beyond = tuple(step.beyond for step in moved.steps if step.beyond)
    calls = [f"{step.name} ({step.call_id})" for step in moved.steps]
    verb = "Undid" if moved.way == "undo" else "Redid"
    lines = [f"{verb} {len(calls)} call{'s' * (len(calls) != 1)}: {some(calls)}."]
    lines += [f"Brought back: {some(moved.restored)}."] if moved.restored else []
    lines += [f"Removed: {some(moved.removed)}."] if moved.removed else []
    lines += ["No file had to be changed."] if not (moved.restored or moved.removed or missing) else []
    lines += [f"Not brought back: {some(missing)}."] if missing else []
    lines += [f"Variables: {variables}"] if variables else []
    lines += [f"Stays done: {one}" for one in beyond]
    value: dict[str, Json] = {
        "calls": [{"id": step.call_id, "name": step.name} for step in moved.steps],
        "restored": list(moved.restored),
        "removed": list(moved.removed),
        "missing": list(missing),
        "variables": variables,
        "stays_done": list(beyond),
        "conflicts": [{"path": path, "why": why} for path, why in moved.conflicts],
    }
    return ToolResult.json(value, "\n".join(lines)).with_metadata(tool=moved.way)


def beyond_words(ticket: Ticket, *, covered: bool) -> str:
    """What a call does that no undo takes back."""
    facts = ticket.facts
    if facts.hosts:
        return f"{ticket.made.name} talked to {some(facts.hosts)}."
    if facts.runs_in == "host" and not covered:
        return f"{ticket.made.name} ran on the host; what it did outside the workspace is not undone."
    return ""


def uncovered_words(snapshot: Snapshot) -> tuple[str, ...]:
    """What a checkpoint does not cover, each with its reason."""
    told = [f"{printable('/'.join(path)) or 'the workspace'} ({why})" for path, why in snapshot.uncovered]
    more = snapshot.uncovered_count - len(told)
    return (*told, f"{more:,} more") if more > 0 else tuple(told)


def some(names: Sequence[str]) -> str:
    """Names in a line, not too many."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def lost_words(point: VariablePoint) -> str:
    """What of the variables is lost."""
    return f", but for: {some(point.lost)}." if point.lost else "."


def known_ids(steps: Sequence[Step]) -> str:
    """The calls that can be named."""
    ids = [step.call_id for step in steps][-_SHOWN:]
    return f"Known: {', '.join(ids)}." if ids else "There was none so far."


def refused(told: str) -> ToolResult:
    """Nothing was done, and why."""
    return ToolResult.error(told, error_kind="invalid")


def conflict(moved: Moved) -> ToolResult:
    """Nothing was done, since somebody else changed the same files."""
    listed = [f"{path}: {why}" for path, why in moved.conflicts]
    told = f"Nothing was changed, since this {moved.way} would overwrite what somebody else did:"
    shown = "\n".join(f"- {one}" for one in listed[:_SHOWN])
    more = f"\n- and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    advice = f"Keep it by leaving it as it is, or {moved.way} with force=True."
    result = ToolResult.error(f"{told}\n{shown}{more}\n{advice}", error_kind="failed")
    conflicts = [{"path": path, "why": why} for path, why in moved.conflicts]
    return dataclasses.replace(result, value={"conflicts": conflicts})


def variables_stay(*, can_be_kept: bool) -> str:
    """Why the variables were not brought back."""
    if can_be_kept:
        return "They were not brought back: no earlier state of them is kept."
    return (
        "They were not brought back: this sandbox cannot keep earlier states of them, because its worker "
        "cannot be forked. Run the cells again that made them."
    )
