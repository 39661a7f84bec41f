"""What undo and redo answer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aisotools.core.sandboxes import VariablePoint
from aisotools.core.types import ToolResult
from aisotools.sandbox.host.failures import VARIABLES_KEPT
from aisotools.session.undo_results import (
    VARIABLES_LEFT,
    conflict_result,
    describe_elsewhere,
    describe_restored,
    describe_running,
    describe_unsupported,
    explain_kept,
    explain_taken_back,
    explain_unrecorded,
    explain_unredone,
    failed_result,
    move_result,
    refuse_for_host_work,
    refuse_for_processes,
    reverted_result,
)
from aisotools.session.undo_steps import STAY, Restore, UndoPlan, group_steps
from aisotools.workspace.checkpoints.authorship import Author
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.steps import Checkpoint


def checkpoint(call_id: str, after: str = "b", inside: str = "", beyond: str = "") -> Checkpoint:
    return Checkpoint(
        call_id=call_id,
        name="tool",
        session="s",
        time_s=1.0,
        before={"": "a"},
        after={"": after},
        beyond=beyond,
        inside=inside,
    )


def plan_of(*calls: Checkpoint) -> UndoPlan:
    return UndoPlan(direction="undo", steps=tuple(group_steps(calls)[::-1]), variables=STAY)


def test_state_that_could_not_be_recorded_is_the_first_line() -> None:
    result = ToolResult(content="done", metadata={"timed_out": True})
    for is_kept, is_recorded, begin in (
        (False, True, "[This call cannot be undone: the files as they are after it are not kept. Full. With"),
        (True, False, "[The record of this call could not be written through to the disk. Full. Until it"),
        (True, True, "[What this call has changed is recorded for undo, but could not be looked at. Full."),
    ):
        answer = explain_unrecorded(result, "Full.", is_kept=is_kept, is_recorded=is_recorded)
        first, last = answer.content.splitlines()
        assert first.startswith(begin)
        assert first.endswith(" What it had changed when it timed out stays changed.]")
        assert (last, answer.metadata["undo"]) == ("done", first[1:-1])
    answer = explain_unrecorded(ToolResult(content=""), "Full.", is_kept=False)
    assert answer.content.endswith("cannot be redone.]")


def test_steps_are_counted_and_those_that_changed_nothing_are_named() -> None:
    calls = [
        checkpoint("c1", "a"),
        checkpoint("c2", "a", beyond="It sent mail."),
        checkpoint("c3/1", inside="c3"),
        checkpoint("c3"),
    ]
    plan = plan_of(*calls)
    moved = UndoResult(
        direction="undo", steps=tuple(plan.checkpoints), restored=("x",), missing=(("", "why"),)
    )
    result = move_result(plan, moved, "They stay.")
    assert result.content.splitlines() == [
        (
            "Undid 3 calls: tool (c3, with 1 call inside it), tool (c2, changed no file), "
            "tool (c1, changed nothing)."
        ),
        "Brought back: x.",
        "Not brought back: the workspace (why).",
        "Variables: They stay.",
        "Stays done: It sent mail.",
    ]
    assert [call["id"] for call in result.value["calls"]] == ["c3", "c3/1", "c2", "c1"]
    assert result.value["changed_nothing"] == ["c2", "c1"]
    alone = plan_of(calls[0])
    unchanged = move_result(alone, UndoResult(direction="redo", steps=tuple(alone.checkpoints)), "")
    assert unchanged.content == "Redid 1 call: tool (c1, changed nothing).\nNo file had to be changed."


def test_refusal_for_what_still_runs_says_whether_that_is_one_or_several() -> None:
    me = os.getpid()
    assert describe_running({me: "python"}).startswith(f"python ({me}) still runs in the background and may")
    assert describe_running({me: "python", 0: "sleep"}).startswith(f"python ({me}), sleep still run in the")
    assert "End them first; with force=True the undo ends them, too." in (
        refuse_for_processes("undo", {me: "python", 0: "sleep"}).content
    )
    assert refuse_for_host_work("undo", ["a (1)", "b (2)"]).content.startswith(
        "a (1), b (2) still run on the"
    )


def test_a_move_that_was_taken_back_names_what_it_failed_at_and_what_is_left() -> None:
    moved = UndoResult(direction="redo", missing=(("x", "No space left on device"),), done=False)
    whole = failed_result(moved)
    assert whole.content.splitlines() == [
        "Nothing was changed: all is as it was before.",
        "This redo failed at: x (No space left on device).",
        "Repair that, and redo again; with force=True it changes what can be changed.",
    ]
    stuck = (("y", "it is gone"), ("", "it is as after the redo"))
    part = failed_result(replace(moved, stuck=stuck, is_unfinished=True))
    assert part.content.splitlines() == [
        "This redo failed at: x (No space left on device).",
        (
            "It could not be taken back at: y (it is gone), the workspace (it is as after the redo). All "
            "else is as it was before it."
        ),
        (
            "No call may change files until that is mended: repair it, and redo again; with force=True the "
            "redo is made all the same, and what cannot be changed stays."
        ),
    ]
    over = failed_result(replace(moved, stuck=stuck))
    assert over.content.splitlines()[:2] == part.content.splitlines()[:2]
    assert over.content.splitlines()[2] == (
        "Nothing more is done about that: mend it, or redo again; with force=True the redo is made all the "
        "same, and what cannot be changed stays."
    )
    assert (part.is_error, part.error_kind) == (True, "failed")
    assert part.value["stuck"] == ["y (it is gone)", "the workspace (it is as after the redo)"]


def test_variables_are_described() -> None:
    plan = replace(plan_of(checkpoint("c1")), variables=Restore(state=0, before="c1"))
    point = VariablePoint(call_id="other", lost=("2 threads",))
    assert describe_restored(plan, point) == "They are as before c1, but for: 2 threads."
    redo = replace(plan, direction="redo", variables=Restore(state=0))
    assert describe_restored(redo, VariablePoint(call_id="c1")) == "They are as they were before the undo."
    assert "tool (c1): an earlier process or another session" in describe_elsewhere(plan.steps)
    assert "cannot be forked" in describe_unsupported()


def test_conflicts_are_listed_up_to_a_bound() -> None:
    conflicts = tuple((f"f{number}", "it was changed") for number in range(22))
    result = conflict_result(UndoResult(direction="undo", conflicts=conflicts, done=False))
    assert result.content.splitlines()[-2:] == [
        "- and 2 more",
        "Keep it by leaving it as it is, or undo with force=True.",
    ]
    assert len(result.value["conflicts"]) == 22


def test_forced_move_names_what_it_has_replaced_and_nothing_that_stays() -> None:
    conflicts = (("a", "it was changed"), ("b", "it was changed"), ("c", "it was changed"))
    plan = plan_of(checkpoint("c1"))
    moved = UndoResult(
        direction="undo", steps=tuple(plan.checkpoints), restored=("a",), removed=("c",), conflicts=conflicts
    )
    assert "\nReplaced, although it had changed since: a, c.\n" in f"{move_result(plan, moved, '').content}\n"
    stays = replace(moved, restored=("x",), removed=())
    assert "Replaced" not in move_result(plan, stays, "").content


def test_conflict_says_that_somebody_else_may_be_what_a_call_has_left() -> None:
    moved = UndoResult(direction="undo", conflicts=(("f", "it was changed"),), done=False)
    last = conflict_result(moved, may_be_left=True).content.splitlines()[-1]
    assert last == (
        "Somebody else may be a thread or a task that a call has left in the sandbox, if there is one: "
        "a restart of the sandbox ends it, and so does force=True where variables are brought back."
    )
    assert "thread" not in conflict_result(moved).content


def test_a_move_that_was_taken_back_says_what_is_where() -> None:
    moved = UndoResult(direction="undo", steps=(checkpoint("c1"),), restored=("x",), removed=("y",))
    back = UndoResult(direction="redo", steps=moved.steps, restored=("x", "y"))
    whole = reverted_result(moved, "The snapshot does not answer.", back)
    assert whole.is_error
    assert whole.content == (
        "Nothing was changed: the variables could not be restored, so the files are back as they were before "
        'this undo. The snapshot does not answer. Try again, or take the files alone: undo(variables="keep").'
    )
    part = reverted_result(moved, "Why.", replace(back, missing=(("y", "Is a directory"),)))
    assert part.content.splitlines() == [
        "This undo failed half way: the variables could not be restored. Why.",
        "The files were moved back, but for: y (Is a directory).",
    ]
    assert part.value == {"missing": ["y (Is a directory)"], "files_moved": False}
    stuck = reverted_result(moved, "Why.", "No space left on device.")
    assert stuck.content.splitlines()[1:] == [
        "The files could not be moved back: No space left on device. Moved are: x, y.",
        'When that is repaired, redo(variables="keep") of the same calls moves them back.',
    ]
    assert stuck.value == {"missing": [], "files_moved": True}


def test_timeout_names_what_stays_changed() -> None:
    late = ToolResult.error("late")
    own: Mapping[Author, Sequence[str]] = {"call": ["a", "b"], "others": [], "unclear": []}
    result = explain_kept(late, ["a", "b"], own)
    assert result.content == "late\n[What it had changed by then stays changed: a, b. Undo takes it back.]"
    many = explain_kept(late, ["a", "b"]).content
    assert many.endswith("a, b. Undo takes it back, unless somebody else has changed some of it as well.]")
    unknown = explain_kept(late, None).content
    assert unknown == "late\n[What it had changed by then stays changed; which files is not known.]"
    assert result.metadata["changed_files"] == ["a", "b"]
    assert explain_kept(late, []).content == "late\n[It had changed no file.]"
    everybody: Mapping[Author, Sequence[str]] = {"call": ["a"], "others": ["b"], "unclear": []}
    result = explain_kept(late, ["a", "b"], everybody)
    assert result.content == "late\n[What it had changed by then stays changed: a. Undo takes it back.]"
    assert result.metadata["changed_files"] == ["a"]
    assert explain_kept(late, ["b"], everybody).content == "late\n[It had changed no file.]"
    unclear = explain_kept(late, ["a", "b"], {**everybody, "unclear": ["a"]})
    assert unclear.content.endswith("stays changed: a. An undo takes it back with force=True alone.]")
    left = explain_kept(late.with_metadata(threads_left=True), ["a"], everybody)
    assert left.content.endswith("a. Undo takes it back with force=True, and ends its threads.]")
    beside = explain_kept(late, ["a", "b"], own, ["file (f)"]).content
    assert beside.startswith("late\n[What had changed by then stays changed: a, b. file (f) ran at the same")
    assert "Undo takes it back" not in beside
    partly = explain_kept(late.with_metadata(not_restorable=["a"]), ["a"], everybody)
    assert partly.content.endswith("a. Undo takes it back, but for what it will not restore.]")


def test_timeout_names_what_was_taken_back_or_why_not() -> None:
    late = ToolResult.error("late")
    value = {"restored": ["a"], "removed": [], "variables": ""}
    result = explain_taken_back(late, ["a"], ToolResult(content="Undid 1 call.", value=value))
    assert result.content == "late\n[What it had changed was taken back: a.]"
    assert result.metadata["taken_back"] is True
    unrecorded = "[This undo is not in the ledger yet, which cannot be written now.]"
    undone = ToolResult(content=f"Undid 1 call.\n{unrecorded}", value=value)
    assert explain_taken_back(late, ["a"], undone).content == f"{result.content}\n{unrecorded}"
    refused = explain_taken_back(late, ["a"], ToolResult.error("Disk full."))
    assert refused.content == (
        "late\n[What had changed by then could not be taken back, and stays changed: a. Disk full.]"
    )
    assert refused.metadata["taken_back"] is False


def test_timeout_that_was_taken_back_says_nothing_that_was_true_before() -> None:
    late = ToolResult.error(f"python timed out after 1 s. {VARIABLES_KEPT}\nIts output: {VARIABLES_KEPT}")
    lines = [
        "Undid 1 call: python (c).",
        "Removed: a.",
        "Left as it is: b (it is mine).",
        "Not brought back: c (it is a socket).",
        "Variables: They are as before c.",
        "Stays done: It sent mail.",
    ]
    value = {"restored": [], "removed": ["a"], "variables": "They are as before c."}
    changes: Mapping[Author, Sequence[str]] = {"call": ["a", "c"], "others": ["b"], "unclear": []}
    undone = ToolResult(content="\n".join(lines), value=value)
    result = explain_taken_back(late, ["a", "b", "c"], undone, changes)
    assert result.content.splitlines() == [
        "python timed out after 1 s.",
        f"Its output: {VARIABLES_KEPT}",
        "[What it had changed was taken back: a.]",
        *(f"[{line}]" for line in lines[2:]),
    ]
    assert result.metadata["changed_files"] == ["a", "c"]
    files = ToolResult(content=f"Variables: {VARIABLES_LEFT}", value={**value, "variables": VARIABLES_LEFT})
    assert VARIABLES_LEFT not in explain_taken_back(late, ["a"], files, changes).content


def test_conflict_with_what_cannot_be_compared_blames_nobody() -> None:
    unknown = ("d", "what is there cannot be compared: it cannot be read: Permission denied")
    moved = UndoResult(direction="undo", conflicts=(unknown,), done=False)
    assert conflict_result(moved, may_be_left=True).content == (
        "Nothing was changed, since nobody can tell whether this undo would overwrite what somebody else "
        "did:\n"
        "- d: what is there cannot be compared: it cannot be read: Permission denied\n"
        "Make it readable and undo again, or undo with force=True."
    )
    both = UndoResult(direction="undo", conflicts=(unknown, ("a", "it was changed since")), done=False)
    assert "since this undo would overwrite what somebody else did" in conflict_result(both).content


def test_redo_of_what_is_not_kept_advises_to_make_the_call_again() -> None:
    missing = (("d", "it was not kept: it cannot be read: Permission denied"),)
    refused = failed_result(UndoResult(direction="redo", missing=missing, is_unkept=True, done=False))
    assert refused.content == (
        "Nothing was changed: all is as it was before.\n"
        "This redo failed at: d (it was not kept: it cannot be read: Permission denied).\n"
        "Make the call again; with force=True it changes what can be changed."
    )
    explained = explain_unredone(ToolResult(content="1"), ["d (it cannot be read: Permission denied)"])
    assert explained.content == (
        "1\n[Redo will not bring back, once this is undone: d (it cannot be read: Permission denied). It is "
        "refused, but for one with force=True.]"
    )
    assert explained.metadata["not_redoable"] == ["d (it cannot be read: Permission denied)"]


def test_conflict_with_a_call_that_ran_at_the_same_time_says_how_many_to_take() -> None:
    conflicts = (("b", "it may also have been changed by python (c2), which ran at the same time"),)
    moved = UndoResult(direction="undo", conflicts=conflicts, done=False)
    result = conflict_result(moved, 2)
    assert result.content == (
        "Nothing was changed, since this undo would take only some of the calls that changed the same "
        "files:\n"
        "- b: it may also have been changed by python (c2), which ran at the same time\n"
        "Take them together: undo(2), or undo with force=True."
    )
    both = UndoResult(direction="undo", conflicts=(*conflicts, ("a", "it was changed since")), done=False)
    assert "overwrite what somebody else did" in conflict_result(both, 2).content
