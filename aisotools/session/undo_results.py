"""What undo and redo answer: what was moved and what was not, or why nothing was changed or is covered."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from aisotools.core.events import CallDecided, CallFinished, CallStarted, SessionEvent
from aisotools.core.sandboxes import VariablePoint
from aisotools.core.truncation import summarize_names
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.sandbox.host.failures import VARIABLES_KEPT
from aisotools.sandbox.host.fork_observation import DetachedFiles
from aisotools.sandbox.process.tree import is_stopped
from aisotools.session.undo_history import Record
from aisotools.session.undo_steps import UndoPlan, UndoStep, refusal
from aisotools.workspace.checkpoints.authorship import Author
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.plan import NOT_COMPARED, RAN_BESIDE, Reasons
from aisotools.workspace.checkpoints.scan import Snapshot
from aisotools.workspace.checkpoints.steps import Checkpoint, Direction
from aisotools.workspace.paths import printable
from aisotools.workspace.root_mode import RootMode

_MOST_EVENTS = 2_000
_STILL_OPEN = "Still open in the sandbox: "
_UNRECORDED = "This undo is not in the ledger"
_MATTERS = (
    *("Left as it is: ", "Not brought back: ", "Variables: ", "Stays done: "),
    *(f"[{_STILL_OPEN}", f"[{_UNRECORDED}"),
)
"""Beginnings of the lines of an undo that also matter where it took a call back that timed out."""

VARIABLES_LEFT = "They were left as they are."
"""Sentence of an undo that took back files alone."""

NO_CHANGES: Mapping[Author, Sequence[str]] = {"call": (), "others": (), "unclear": ()}
"""Changes by author where there are none, or too many to be told apart."""

_OVERWRITE = "overwrite what somebody else did"

_MAX_LISTED = 20
"""Conflicts in one message; the rest is counted."""


def add_notes(result: ToolResult, mode: RootMode) -> ToolResult:
    """Return a result that says what became of the mode of the workspace's folder."""
    notes, mode.notes = mode.notes, []
    content = "\n".join([result.content, *(f"[{note}]" for note in notes)]).lstrip("\n")
    return dataclasses.replace(result, content=content).with_metadata(workspace_mode=notes)


def was_cut_short(result: ToolResult) -> bool:
    """Return whether a call was stopped or timed out, and may have changed a part of what it should."""
    return True in (result.metadata.get("timed_out"), result.metadata.get("stopped"))


def explain_kept(
    result: ToolResult,
    paths: Sequence[str] | None,
    changes: Mapping[Author, Sequence[str]] = NO_CHANGES,
    beside: Sequence[str] = (),
) -> ToolResult:
    """Add to the result of a call that was cut short what it had changed until then, and that this stays.

    Args:
        result: The result.
        paths: All that has changed during the call; None if that is not known.
        changes: The same by author; nothing if there are too many.
        beside: Other calls that may have changed something at the same time.
    """
    if paths is None:
        return _add_line(result, "What it had changed by then stays changed; which files is not known.")
    others = frozenset(changes["others"])
    own = [path for path in paths if path not in others]
    if not own:
        return _add_line(result, "It had changed no file.").with_metadata(changed_files=[])
    what = "had changed" if beside else "it had changed"
    if beside:
        remark = (
            f" {summarize_names(beside)} ran at the same time, and what each has changed cannot always be "
            "told apart: an undo of one of them alone may be refused, and names the others."
        )
    elif result.metadata.get("still_running"):
        remark = " Once it has ended, an undo takes that back, if nobody else has changed any of it since."
    elif result.metadata.get("threads_left"):
        # What a thread writes after its call cannot be told from what a person does.
        remark = " Undo takes it back with force=True, and ends its threads."
    elif changes["unclear"]:
        remark = " An undo takes it back with force=True alone."
    elif "not_restorable" in result.metadata:
        remark = " Undo takes it back, but for what it will not restore."
    elif not any(changes.values()):
        remark = " Undo takes it back, unless somebody else has changed some of it as well."
    else:
        remark = " Undo takes it back."
    line = f"What {what} by then stays changed: {summarize_names(own)}.{remark}"
    return _add_line(result, line).with_metadata(changed_files=own[:_MAX_LISTED])


def explain_taken_back(
    result: ToolResult,
    paths: Sequence[str],
    undone: ToolResult,
    changes: Mapping[Author, Sequence[str]] = NO_CHANGES,
) -> ToolResult:
    """Add to the result of a call that timed out what became of taking its changes back.

    Args:
        result: The result.
        paths: All that has changed during the call.
        undone: The result of the undo.
        changes: The same as `paths` by author; nothing if there are too many.
    """
    others = frozenset(changes["others"])
    own = [path for path in paths if path not in others]
    metadata = {"changed_files": own[:_MAX_LISTED], "taken_back": not undone.is_error}
    if undone.is_error:
        stays = summarize_names(own) or "perhaps variables"
        problem = f"What had changed by then could not be taken back, and stays changed: {stays}."
        line = f"{problem} {undone.content}"
        return _add_line(result, line).with_metadata(**metadata)
    # What the sandbox has said of the variables was true before the undo.
    first, *rest = result.content.split("\n", 1)
    if undone.value["variables"] and first.endswith(f" {VARIABLES_KEPT}"):
        first = first.removesuffix(f" {VARIABLES_KEPT}")
        result = dataclasses.replace(result, content="\n".join([first, *rest]))
    taken = [*undone.value["restored"], *undone.value["removed"]]
    result = _add_line(result, f"What it had changed was taken back: {summarize_names(taken) or 'no file'}.")
    for line in undone.content.splitlines():
        # Where another worker has taken the place of a stubborn one, the variables were back before the undo.
        if line.startswith(_MATTERS) and line != f"Variables: {VARIABLES_LEFT}":
            result = _add_line(result, line.removeprefix("[").removesuffix("]"))
    if result.metadata.get("threads_left") and undone.value["variables"] != VARIABLES_LEFT:
        result = _add_line(result, "Its threads were stopped with that. After a redo they go on.")
    return result.with_metadata(**metadata)


def explain_left_running(
    result: ToolResult, helpers: Mapping[int, str], host_work: Sequence[str]
) -> ToolResult:
    """Add to the result of an undo or redo what of earlier calls was ended for it, and what still runs.

    Args:
        result: The result.
        helpers: Idle helpers that were ended: process id to library.
        host_work: The calls of which something runs on the host, where nobody but their tools can end it.
    """
    if helpers:
        names = summarize_names([f"{library} ({pid})" for pid, library in sorted(helpers.items())])
        line = (
            f"Ended, since they only waited for work and had no file open for writing: processes of {names}."
        )
        result = _add_line(result, line).with_metadata(ended_helpers=sorted(helpers))
    if host_work and not result.is_error:
        line = f"Still running on the host: {summarize_names(host_work)}. What it changes from now on stays."
        result = _add_line(result, line).with_metadata(host_work=list(host_work))
    return result


def explain_detached(result: ToolResult, files: DetachedFiles) -> ToolResult:
    """Add to the result of an undo or redo which files variables hold open that it has replaced."""
    written, read = sorted(files.written), sorted(files.read)
    if written:
        line = (
            f"{_STILL_OPEN}{summarize_names(written)}. What a variable writes to it from now on does not "
            "reach the workspace, since another file or none stands there: open it again."
        )
        result = _add_line(result, line)
    if read:
        line = (
            f"{_STILL_OPEN}{summarize_names(read)}. What a variable reads from it may differ from what is in "
            "the workspace, since another file or none stands there: open it again."
        )
        result = _add_line(result, line)
    return result.with_metadata(detached_files=[*written, *read][:_MAX_LISTED]) if written or read else result


def describe_running(running: Mapping[int, str]) -> str:
    """Return the sentences that name what calls have left in the background, process id to name."""
    names: dict[bool, list[str]] = {False: [], True: []}
    for pid, name in running.items():
        names[is_stopped(pid)].append(f"{printable(name)} ({pid})" if pid else printable(name))
    sentences = []
    if running_names := names[False]:
        still = f"{summarize_names(running_names)} still {_runs(running_names)} in the background"
        sentences.append(f"{still} and may go on changing files.")
    if stopped_names := names[True]:
        was, it = ("was", "it") if len(stopped_names) == 1 else ("were", "them")
        sentences.append(
            f"{summarize_names(stopped_names)} {was} left stopped in the background and may go on changing "
            f"files once something continues {it}."
        )
    return " ".join(sentences)


def _runs(names: Sequence[str]) -> str:
    return "runs" if len(names) == 1 else "run"


def refuse_for_processes(direction: Direction, running: Mapping[int, str]) -> ToolResult:
    """Return the refusal of an undo or redo while calls have left processes, process id to name."""
    it = "it" if len(running) == 1 else "them"
    return refusal(
        f"{describe_running(running)} End {it} first; with force=True the {direction} ends {it}, too."
    )


def refuse_for_host_work(direction: str, work: Sequence[str]) -> ToolResult:
    """Return the refusal of an undo or redo while calls have left something running on the host."""
    return refusal(
        f"{summarize_names(work)} still {_runs(work)} on the host and may go on changing files. Only the "
        f"tool itself can end that: wait for it; with force=True the {direction} does not wait, and what it "
        "changes afterwards stays."
    )


def explain_host_work(result: ToolResult, work: Sequence[str]) -> ToolResult:
    """Add to the result of a call what earlier calls had left running on the host meanwhile."""
    line = (
        f"Still running on the host meanwhile: {summarize_names(work)}. What it has changed during this call "
        "may count as a change of this call."
    )
    return _add_line(result, line).with_metadata(host_work=list(work))


def find_passed_over(events: Sequence[SessionEvent], plan: UndoPlan, undone: Collection[str]) -> list[str]:
    """Return the calls of a session that an undo passes over, since they only read, in their order.

    Args:
        events: The session's events. Only the latest are looked at.
        plan: The undo. Its steps may be calls of another session, after which nothing is known here.
        undone: Ids of the calls that were undone before. What was read before them was named then.
    """
    own = [step.call_id for step in plan.checkpoints]
    finished: dict[str, str] = {}
    started: dict[str, str] = {}
    effects: dict[str, Effect] = {}
    is_after = True  # the event comes after the earliest call that is undone
    for number in range(len(events) - 1, max(len(events) - _MOST_EVENTS, 0) - 1, -1):
        event = events[number]
        if isinstance(event, CallDecided) and event.call_id in started:
            effects.setdefault(event.call_id, event.effect)
        if not is_after and started.keys() == effects.keys():
            break
        if event.call_id in undone and is_after:
            for calls in (finished, started, effects):
                calls.clear()
        elif event.call_id == own[-1] and isinstance(event, CallStarted):
            is_after = False
        elif isinstance(event, CallFinished) and event.call_id not in own and is_after:
            finished[event.call_id] = event.name
        elif isinstance(event, CallStarted) and event.call_id in finished:
            started[event.call_id] = finished.pop(event.call_id)
    if is_after:
        return []
    # Calls that were undone earlier, or could not be recorded, lie between the steps as well.
    readers = [call_id for call_id in started if effects.get(call_id) is Effect.READ_ONLY]
    return [f"{started[call_id]} ({call_id})" for call_id in reversed(readers)]


def explain_record(result: ToolResult, direction: Direction, record: Record | None) -> ToolResult:
    """Add to the result of an undo or redo that it is not recorded, if that is so."""
    if record is None:
        return result
    if problem := record.find_problem():
        line = f"{_UNRECORDED.replace('undo', direction)}. {problem}"
    elif record.is_waiting:
        line = f"{_UNRECORDED.replace('undo', direction)} yet, which cannot be written now."
    else:
        return result
    return _add_line(result, line).with_metadata(is_recorded=False)


def explain_passed_over(result: ToolResult, passed_over: Sequence[str]) -> ToolResult:
    """Add to the result of an undo which calls it has passed over."""
    if result.is_error or not passed_over:
        return result
    noun = "call" if len(passed_over) == 1 else "calls"
    listed = summarize_names(passed_over)
    return _add_line(result, f"Passed over {len(passed_over)} {noun} that only read: {listed}.")


def explain_others(
    result: ToolResult, changes: Mapping[Author, Sequence[str]], *, names_all: bool
) -> ToolResult:
    """Add to the result of a call what has also changed in the workspace while it ran.

    Args:
        result: The result.
        changes: Paths that have changed, by author.
        names_all: Whether to name what counts as the call's as well, since nobody can tell whether it is.
    """
    others, unclear = changes["others"], changes["unclear"]
    rest = changes["call"] if names_all else ()
    lines = []
    if others:
        lines.append(
            f"Also changed during the call: {summarize_names(others)}. Somebody else did that: an undo "
            "leaves it as it is."
        )
    if unclear:
        lines.append(
            f"Also changed during the call: {summarize_names(unclear)}. Somebody else did that, or something "
            "else in the sandbox: an undo is refused, but for one with force=True, which takes it back too."
        )
    if rest:
        lines.append(
            f"Also changed during the call: {summarize_names(rest)}. The call did that, or somebody else, "
            "which cannot be told apart: an undo takes it back."
        )
    if not lines:
        return result
    for line in lines:
        result = _add_line(result, line)
    also = {"others": others[:_MAX_LISTED], "unclear": unclear[:_MAX_LISTED], "unknown": rest[:_MAX_LISTED]}
    return result.with_metadata(also_changed={kind: list(paths) for kind, paths in also.items() if paths})


def is_limited(snapshot: Snapshot) -> bool:
    """Return whether something in a snapshot is not, or not wholly, covered by undo."""
    return bool(snapshot.partial_count or snapshot.uncovered_count)


def list_uncovered(snapshot: Snapshot) -> tuple[str, ...]:
    """Return what a checkpoint does not cover, each with its reason."""
    if not snapshot.uncovered_count:
        return ()
    paths = [
        f"{printable('/'.join(path)) or 'the workspace'} ({reason})" for path, reason in snapshot.uncovered
    ]
    more = snapshot.uncovered_count - len(paths)
    if more > 0:
        paths.append(f"{more:,} more")
    return tuple(paths)


def list_partly_covered(snapshot: Snapshot) -> tuple[str, ...]:
    """Return of what a checkpoint does not cover all attributes, each with those that undo cannot set."""
    paths = [f"{printable('/'.join(path))} ({what})" for path, what in snapshot.partial]
    more = snapshot.partial_count - len(paths)
    return (*paths, f"{more:,} more") if more > 0 else tuple(paths)


def describe_coverage(snapshot: Snapshot, facts: Facts, declared: str | None, *, is_covered: bool) -> str:
    """Return what undo will bring back after a call, and what it will not, in sentences for its card.

    Args:
        snapshot: The workspace before the call.
        facts: Those of the call.
        declared: The path that a tool on the host says it changes, if it says so.
        is_covered: Whether undo brings that back.
    """
    uncovered = list_uncovered(snapshot)
    but = f", but not {summarize_names(uncovered)}" if uncovered else ""
    sentences = [f"Undo brings back the files of the workspace{but}."]
    if snapshot.partial_count:
        sentences.append(f"It will not restore: {summarize_names(list_partly_covered(snapshot))}.")
    if facts.runs_in == "host":
        if declared is not None:
            verb = "also brings back" if is_covered else "does not cover"
            sentences.append(f"It {verb} {printable(declared)}.")
        sentences.append("Whatever else it does outside the workspace stays done.")
    elif facts.level == "limited":
        sentences.append("At level limited it may change files elsewhere, which stay changed.")
    return " ".join(sentences)


def explain_unrestored(result: ToolResult, entries: Sequence[str]) -> ToolResult:
    """Add to the result of a call what of its changes no undo will bring back."""
    line = f"Undo will not restore: {summarize_names(entries)}."
    return _add_line(result, line).with_metadata(not_restorable=list(entries[:_MAX_LISTED]))


def explain_unredone(result: ToolResult, entries: Sequence[str]) -> ToolResult:
    """Add to the result of a call what of its changes no redo will bring back, once they are undone."""
    line = (
        f"Redo will not bring back, once this is undone: {summarize_names(entries)}. It is refused, but for "
        "one with force=True."
    )
    return _add_line(result, line).with_metadata(not_redoable=list(entries[:_MAX_LISTED]))


def explain_unrecorded(
    result: ToolResult, why: str, *, is_kept: bool, is_recorded: bool = True
) -> ToolResult:
    """Put before the result of a call that the state after it, or its record, could not be written.

    Args:
        result: The result.
        why: The error, in sentences.
        is_kept: Whether the state of the files after the call is stored.
        is_recorded: Whether it is on the disk, together with its record.
    """
    if not is_kept:
        line = (
            f"This call cannot be undone: the files as they are after it are not kept. {why} "
            "With force=True an undo brings all files back to before the call, whoever has changed them, and "
            "that cannot be redone."
        )
    elif not is_recorded:
        line = (
            f"The record of this call could not be written through to the disk. {why} Until it can be, no "
            "call that may change something is run, and nothing can be undone."
        )
    else:
        line = f"What this call has changed is recorded for undo, but could not be looked at. {why}"
    if result.metadata.get("timed_out") is True:
        line += " What it had changed when it timed out stays changed."
    content = "\n".join(filter(None, [f"[{line}]", result.content]))
    return dataclasses.replace(result, content=content).with_metadata(undo=line)


def _add_line(result: ToolResult, line: str) -> ToolResult:
    return dataclasses.replace(result, content="\n".join(filter(None, [result.content, f"[{line}]"])))


def describe_beginning(oldest: Sequence[Checkpoint]) -> str:
    """Return from when changes are listed if the state before the first call is gone: since `oldest`."""
    since = f"before {oldest[0].name} ({oldest[0].call_id})" if oldest else "just now"
    return (
        f"These are the changes since {since}: what was there before earlier calls is not kept, because the "
        "contents of files took more room than checkpoints may use."
    )


def describe_unsupported() -> str:
    """Return why the variables were not restored by a sandbox that keeps none."""
    return (
        "They were not brought back: this sandbox cannot keep earlier states of them, because its worker "
        "cannot be forked. Run the cells again that made them."
    )


def describe_elsewhere(steps: Sequence[UndoStep]) -> str:
    """Return why the variables stay as they are for steps of other sessions."""
    names = summarize_names([str(step) for step in steps])
    return (
        f"They stay as they are for {names}: an earlier process or another session made these calls, and its "
        "variables are not here."
    )


def describe_restored(plan: UndoPlan, point: VariablePoint) -> str:
    """Return which state of the variables is back, and what of it is not."""
    loss = f", but for: {summarize_names(point.lost)}." if point.lost else "."
    if not plan.variables.before:
        return f"They are as they were before the undo{loss}"
    return f"They are as before {plan.variables.before}{loss}"


def move_result(plan: UndoPlan, moved: UndoResult, variables: str) -> ToolResult:
    """Build the result of an undo or redo that was carried out."""
    calls, names, stays_done, unchanged = [], [], [], []
    for step in plan.steps:
        inner = len(step.calls) - 1
        remarks = [step.call_id]
        if inner:
            remarks.append(f"with {inner} call{'' if inner == 1 else 's'} inside it")
        if not step.has_changed:
            # What a tool on the host or in the network did elsewhere is not known.
            remarks.append(
                "changed no file" if any(call.beyond for call in step.calls) else "changed nothing"
            )
            unchanged.append(step.call_id)
        names.append(f"{step.calls[-1].name} ({', '.join(remarks)})")
    for call in moved.steps:
        calls.append({"id": call.call_id, "name": call.name})
        if call.beyond:
            stays_done.append(call.beyond)
    missing = []
    for path, reason in moved.missing:
        missing.append(f"{path or 'the workspace'} ({reason})")
    verb = "Undid" if moved.direction == "undo" else "Redid"
    noun = "call" if len(names) == 1 else "calls"
    lines = [f"{verb} {len(names)} {noun}: {summarize_names(names)}."]
    if moved.restored:
        lines.append(f"Brought back: {summarize_names(moved.restored)}.")
    if moved.removed:
        lines.append(f"Removed: {summarize_names(moved.removed)}.")
    if not (moved.restored or moved.removed or missing):
        lines.append("No file had to be changed.")
    touched = {*moved.restored, *moved.removed} if moved.conflicts else ()
    if changed := [path for path, _ in moved.conflicts if path in touched]:
        replaced = summarize_names(changed)
        remark = " An undo does not bring that change back." if moved.direction == "redo" else ""
        lines.append(f"Replaced, although it had changed since: {replaced}.{remark}")
    if moved.others:
        descriptions = [f"{path} ({reason})" for path, reason in moved.others]
        lines.append(f"Left as it is: {summarize_names(descriptions)}.")
    if missing:
        lines.append(f"Not brought back: {summarize_names(missing)}.")
    if variables:
        lines.append(f"Variables: {variables}")
    if stays_done:
        lines.extend(f"Stays done: {sentence}" for sentence in stays_done)
    value: dict[str, Json] = {
        "calls": calls,
        "changed_nothing": unchanged,
        "restored": list(moved.restored),
        "removed": list(moved.removed),
        "missing": missing,
        "variables": variables,
        "stays_done": stays_done,
        "conflicts": _list_conflicts(moved.conflicts),
        "others": _list_conflicts(moved.others),
    }
    # Not `ToolResult.json`, which encodes the value to see whether it is JSON: with a hundred thousand paths
    # that holds up the event loop.
    content, metadata = "\n".join(lines), {"tool": moved.direction}
    return ToolResult(content=content, kind="json", value=value, metadata=metadata)


def conflict_result(moved: UndoResult, together: int = 0, *, may_be_left: bool = False) -> ToolResult:
    """Build the result of an undo or redo that was refused, since something else changed the same files.

    Args:
        moved: The move.
        together: How many calls have to be taken for none to be left that ran at the same time; 0 if not
            known.
        may_be_left: Whether calls have run code in the sandbox, which may have left something that goes on.
    """
    is_partial = all(reason.endswith(RAN_BESIDE) for _, reason in moved.conflicts)
    why = "take only some of the calls that changed the same files" if is_partial else ""
    is_unknown = all(reason.startswith(NOT_COMPARED) for _, reason in moved.conflicts)
    since = "nobody can tell whether this" if is_unknown else "this"
    lines = [f"Nothing was changed, since {since} {moved.direction} would {why or _OVERWRITE}:"]
    lines += [f"- {path}: {reason}" for path, reason in moved.conflicts[:_MAX_LISTED]]
    if len(moved.conflicts) > _MAX_LISTED:
        lines.append(f"- and {len(moved.conflicts) - _MAX_LISTED} more")
    if is_partial and together:
        lines.append(
            f"Take them together: {moved.direction}({together}), or {moved.direction} with force=True."
        )
    elif is_unknown:
        lines.append(f"Make it readable and {moved.direction} again, or {moved.direction} with force=True.")
    else:
        lost = ", after which no undo brings that change back" if moved.direction == "redo" else ""
        lines.append(f"Keep it by leaving it as it is, or {moved.direction} with force=True{lost}.")
    if may_be_left and not (is_partial or is_unknown):
        lines.append(
            "Somebody else may be a thread or a task that a call has left in the sandbox, if there is one: "
            "a restart of the sandbox ends it, and so does force=True where variables are brought back."
        )
    result = ToolResult.error("\n".join(lines), error_kind="failed")
    return dataclasses.replace(result, value={"conflicts": _list_conflicts(moved.conflicts)})


def failed_result(moved: UndoResult) -> ToolResult:
    """Build the result of an undo or redo that was taken back, since the system refused to change a path."""
    missing, stuck = (
        [f"{path or 'the workspace'} ({reason})" for path, reason in reasons]
        for reasons in (moved.missing, moved.stuck)
    )
    verb = moved.direction
    lines = [f"This {verb} failed at: {summarize_names(missing)}."]
    if stuck:
        lines.append(f"It could not be taken back at: {', '.join(stuck)}. All else is as it was before it.")
        forced = f"with force=True the {verb} is made all the same, and what cannot be changed stays."
        again = f"{verb} again; {forced}"
        if moved.is_unfinished:
            lines.append(f"No call may change files until that is mended: repair it, and {again}")
        else:
            lines.append(f"Nothing more is done about that: mend it, or {again}")
    else:
        lines.insert(0, "Nothing was changed: all is as it was before.")
        remedy = "Make the call again" if moved.is_unkept else f"Repair that, and {verb} again"
        lines.append(f"{remedy}; with force=True it changes what can be changed.")
    result = ToolResult.error("\n".join(lines), error_kind="failed")
    value: dict[str, Json] = {"missing": list(missing), "stuck": list(stuck)}
    return dataclasses.replace(result, value=value)


def _list_conflicts(conflicts: Reasons) -> list[Json]:
    return [{"path": path, "why": reason} for path, reason in conflicts]


def reverted_result(moved: UndoResult, problem: str, back: UndoResult | str) -> ToolResult:
    """Build the result of a move whose variables could not be restored, so that its files were moved back.

    Args:
        moved: The move of the files.
        problem: Why the variables could not be restored.
        back: How the files were moved back, or why they could not be.
    """
    if isinstance(back, UndoResult) and not back.missing:
        return ToolResult.error(
            f"Nothing was changed: the variables could not be restored, so the files are back as they were "
            f"before this {moved.direction}. {problem} Try again, or take the files alone: "
            f'{moved.direction}(variables="keep").'
        )
    lines = [f"This {moved.direction} failed half way: the variables could not be restored. {problem}"]
    unmoved: list[str] = []
    if isinstance(back, str):
        other = "redo" if moved.direction == "undo" else "undo"
        paths = summarize_names([*moved.restored, *moved.removed]) or "none"
        lines.append(f"The files could not be moved back: {back} Moved are: {paths}.")
        lines.append(f'When that is repaired, {other}(variables="keep") of the same calls moves them back.')
    else:
        unmoved = [f"{path or 'the workspace'} ({reason})" for path, reason in back.missing]
        lines.append(f"The files were moved back, but for: {summarize_names(unmoved)}.")
    result = ToolResult.error("\n".join(lines))
    return dataclasses.replace(result, value={"missing": list(unmoved), "files_moved": isinstance(back, str)})


# ---- what undo does not cover


def describe_irreversible(prepared: PreparedCall, *, covered: bool) -> str:
    """Return what a call does that no undo reverts, or nothing."""
    facts = prepared.facts
    if facts.hosts:
        return f"{prepared.original.name} talked to {summarize_names(facts.hosts)}."
    if facts.runs_in == "host" and not covered:
        return f"{prepared.original.name} ran on the host; what it did outside the workspace is not undone."
    return ""
