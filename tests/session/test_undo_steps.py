"""Which steps an undo takes, and which state of the variables it leads to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from aisotools.core.exceptions import UsageError
from aisotools.core.types import ToolResult
from aisotools.session.undo_steps import (
    STAY,
    Restore,
    UndoChoice,
    UndoPlan,
    VariableStates,
    group_steps,
    known_ids,
    refusal,
)
from aisotools.workspace.checkpoints.steps import Checkpoint, Direction


def checkpoint(
    call_id: str,
    *,
    name: str = "python",
    changed: bool = False,
    changes_variables: bool = True,
    inside: str = "",
    began: int = 0,
) -> Checkpoint:
    return Checkpoint(
        call_id=call_id,
        name=name,
        session="s",
        time_s=1.0,
        before={"": "a"},
        after={"": "b" if changed else "a"},
        changes_variables=changes_variables,
        inside=inside,
        began=began,
    )


def file(call_id: str, *, inside: str = "") -> Checkpoint:
    return checkpoint(call_id, name="sandbox_write", changed=True, changes_variables=False, inside=inside)


class Bench:
    """Calls as a session makes them, and what is kept of the variables.

    Attributes:
        calls: The calls that can be undone.
        undone: Those that can be redone, the next one last.
        states: The states of the variables.
        reasons: Why the state from before a call is not kept; of any other call it is.
    """

    def __init__(self) -> None:
        self.calls: list[Checkpoint] = []
        self.undone: list[Checkpoint] = []
        self.states = VariableStates()
        self.reasons: dict[str | None, str] = {None: "no variables were undone"}

    def call(self, *calls: Checkpoint, own: bool = True) -> None:
        for call in calls:
            if own:
                self.states.begin(call.call_id, may_change=call.changes_variables)
                if call.changes_variables:
                    self.states.note_changed()
            self.calls.append(call)

    def undo(self, count: int) -> None:
        self.states.latest = self.states.left = self.states.now
        del self.reasons[None]
        for _ in range(count):
            self.undone.append(self.calls.pop())
        self.states.now = self.states.found_by(self.undone[-1].call_id)

    def why_not_kept(self, call_id: str | None) -> str:
        return self.reasons.get(call_id, "")

    def choice(
        self,
        direction: Direction = "undo",
        *,
        dropped: int = 0,
        superseded_by: str = "",
        can_keep: bool = True,
    ) -> UndoChoice:
        why: Callable[[str | None], str] | None = self.why_not_kept if can_keep else None
        source = self.calls if direction == "undo" else self.undone
        return UndoChoice(direction, source, self.states, why, dropped=dropped, superseded_by=superseded_by)

    def plan(self, count: int, direction: Direction = "undo", **options: str | bool) -> UndoPlan:
        plan = self.choice(direction).plan(count, **options)  # type: ignore[arg-type]  # by name
        assert isinstance(plan, UndoPlan), plan
        return plan


def ids(steps: Sequence[Checkpoint]) -> list[str]:
    return [step.call_id for step in steps]


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ---- steps


def test_call_that_did_not_run_leaves_the_state_as_it_was() -> None:
    states = VariableStates()
    first = states.now
    states.begin("one", may_change=True)
    states.withdraw("one")
    assert (states.now, "one" in states) == (first, False)
    states.begin("two", may_change=True)
    states.begin("three", may_change=True)
    now = states.now
    states.withdraw("two")  # the other one runs
    assert states.now == now
    assert states.found_by("three") != first


def test_call_that_a_worker_is_started_for_finds_what_that_has() -> None:
    states = VariableStates()
    states.begin("first", may_change=False)
    states.note_started()
    assert states.found_by("first") == states.now
    states.begin("changing", may_change=True)
    states.note_lost()
    assert states.now not in {states.found_by("first"), states.found_by("changing")}
    states.begin("next", may_change=False)
    states.note_started()
    assert states.found_by("next") == states.now


def test_worker_that_takes_the_place_of_another_has_other_variables() -> None:
    states = VariableStates()
    states.note_started()
    states.begin("running", may_change=False)
    states.note_started()  # as when one is restored
    assert states.found_by("running") != states.now
    states.begin("running", may_change=False)
    states.note_lost()
    states.note_started()
    assert states.found_by("running") != states.now
    states.note_lost()
    states.begin("changing", may_change=True)
    changed = states.now
    states.note_started()
    assert states.now != changed


def test_calls_inside_a_call_are_one_step_with_it() -> None:
    calls = [file("a"), file("b/1", inside="b"), file("b/2", inside="b"), checkpoint("b"), file("c")]
    steps = group_steps(calls)
    assert [step.call_id for step in steps] == ["a", "b", "c"]
    assert ids(steps[1].calls) == ["b/1", "b/2", "b"]
    assert [step.changes_variables for step in steps] == [False, True, False]
    assert str(steps[1]) == "python (b)"
    after_a_crash = group_steps([checkpoint("b"), file("b/1", inside="b")])
    assert [ids(step.calls) for step in after_a_crash] == [["b/1", "b"]]


def test_calls_of_a_step_belong_together_though_another_has_ended_between_them() -> None:
    steps = group_steps([file("a/1", inside="a"), file("b"), file("a/2", inside="a"), file("a"), file("c")])
    assert [ids(step.calls) for step in steps] == [["b"], ["a/1", "a/2", "a"], ["c"]]


def test_state_before_a_call_within_another_one_is_no_state_to_go_to(bench: Bench) -> None:
    """Calls that overlap: the first one has ended last."""
    states = bench.states
    states.begin("outer", may_change=True)
    states.begin("inner", may_change=False)
    states.note_changed()
    bench.calls += [
        checkpoint("inner", changes_variables=False, began=2),
        checkpoint("outer", began=1),
        checkpoint("next", began=5),
    ]
    states.begin("next", may_change=True)
    choice = bench.choice()
    assert [choice.count_to(name) for name in ("next", "outer")] == [1, 2]
    with pytest.raises(UsageError, match=r"\(outer\) was running when python \(inner\) began.*'outer'"):
        choice.count_to("inner")
    restore = bench.plan(3).variables
    assert (restore.before, restore.state) == ("outer", states.found_by("outer")), "the first that began"


def test_a_step_has_changed_something_unless_the_opposite_is_certain() -> None:
    nothing, still = (checkpoint(name, changes_variables=False) for name in ("n", "m"))
    steps = group_steps([nothing, checkpoint("v"), file("f"), file("o/1", inside="o"), still])
    assert [step.has_changed for step in steps] == [False, True, True, True, False]


def test_calls_are_taken_from_the_outermost_and_redone_in_order(bench: Bench) -> None:
    bench.call(file("a"), file("b/1", inside="b"), file("b/2", inside="b"), file("b"))
    assert ids(bench.plan(2).checkpoints) == ["b", "b/2", "b/1", "a"]
    bench.undo(4)
    assert ids(bench.plan(2, "redo").checkpoints) == ["a", "b/1", "b/2", "b"]
    assert ids(bench.plan(1, "redo").checkpoints) == ["a"]


def test_more_steps_than_there_are_is_an_error_that_says_how_many(bench: Bench) -> None:
    assert bench.choice().plan(1) == refusal("There is nothing to undo.")
    assert bench.choice("redo", dropped=3).plan(1) == refusal("There is nothing to redo.")
    assert bench.choice(dropped=1).plan(1) == refusal("There is nothing to undo. 1 older call was dropped.")
    superseded = bench.choice("redo", superseded_by="python (b)")
    message = (
        "There is nothing to redo. What was undone cannot be redone after python (b), which may have changed "
        "something."
    )
    assert superseded.plan(1) == refusal(message)
    assert superseded.describe() == message
    assert bench.choice(superseded_by="python (b)").plan(1) == refusal("There is nothing to undo.")
    bench.call(file("a"))
    refused = bench.choice().plan(2)
    assert isinstance(refused, ToolResult)
    assert (refused.is_error, refused.error_kind) == (True, "invalid")
    assert refused.content == (
        "Nothing was changed: there is only 1 call to undo. The oldest is sandbox_write (a). "
        "Use a smaller number, at most 1."
    )
    bench.call(file("b"))
    refused = bench.choice(dropped=1_200).plan(3)
    assert isinstance(refused, ToolResult)
    assert "there are only 2 calls to undo. The oldest is sandbox_write (a)." in refused.content
    assert "1,200 older calls were dropped." in refused.content
    bench.undo(1)
    refused = bench.choice("redo", dropped=5).plan(2)
    assert isinstance(refused, ToolResult)
    assert "only 1 call to redo. The last is sandbox_write (b)." in refused.content
    assert "dropped" not in refused.content


def test_the_number_of_steps_to_a_call_is_counted(bench: Bench) -> None:
    bench.call(file("a"), file("b/1", inside="b"), file("b"), file("c"))
    choice = bench.choice(dropped=2)
    assert [choice.count_to(call_id) for call_id in "cba"] == [1, 2, 3]
    with pytest.raises(UsageError, match=r"was made by sandbox_write \(b\).*Use undo\(to='b'\)"):
        choice.count_to("b/1")
    with pytest.raises(UsageError, match=r"no call 'x' to undo. Known: a, b, c. 2 older calls were dropped."):
        choice.count_to("x")
    assert known_ids([]) == "There was none so far."


# ---- states of the variables


def test_states_change_with_calls_that_may_change_them(bench: Bench) -> None:
    states = bench.states
    first = states.now
    bench.call(file("f"))
    assert states.now == first
    bench.call(checkpoint("v"), file("g"), file("h"))
    assert [states.found_by(name) == first for name in ("f", "v", "g", "h")] == [True, True, False, False]
    assert list(states.calls_that_found(states.found_by("h"))) == ["g", "h"]
    assert ("f" in states, "x" in states) == (True, False)
    states.retain({"g"})
    assert ("g" in states, "f" in states, list(states.calls_that_found(first))) == (True, False, [])


def test_a_call_inside_another_has_found_a_state_that_is_over_by_now() -> None:
    states = VariableStates()
    states.begin("outer", may_change=True)
    states.begin("outer/1", may_change=False)
    inner = states.found_by("outer/1")
    states.note_changed()  # the outer call has ended
    assert inner not in {states.now, states.found_by("outer")}


def test_variables_stay_where_no_call_has_changed_them(bench: Bench) -> None:
    bench.call(checkpoint("v"), file("f"), file("g"))
    assert bench.plan(2).variables == STAY
    assert bench.plan(3).variables == Restore(state=0, call_id="v", before="v")
    assert bench.plan(3, files_only=True).variables == STAY
    assert bench.choice(can_keep=False).find_restore(3) == STAY


def test_any_call_that_found_the_same_state_will_do(bench: Bench) -> None:
    bench.call(checkpoint("u"), file("f"), checkpoint("v"))
    bench.reasons["v"] = "only some of the older snapshots are retained"
    restore = bench.plan(1).variables
    assert (restore.call_id, restore.problem) == ("f", "")
    bench.reasons["f"] = "the same"
    assert bench.choice().find_restore(1).problem == "the same"


def test_redo_leads_to_before_the_next_call_or_to_the_state_that_was_left(bench: Bench) -> None:
    bench.call(checkpoint("u"), checkpoint("v"), checkpoint("w"))
    bench.undo(3)
    part, whole = bench.plan(2, "redo"), bench.plan(3, "redo")
    assert (part.variables.call_id, part.variables.before) == ("w", "w")
    assert (whole.variables.call_id, whole.variables.before) == (None, "")
    assert whole.variables.state == bench.states.latest
    bench.reasons[None] = "the worker has ended"
    refused = bench.choice("redo").plan(3)
    assert isinstance(refused, ToolResult)
    assert refused.content.splitlines() == [
        "Nothing was changed: the variables from after python (w) are not kept: the worker has ended.",
        '- Files alone: redo(3, variables="keep"), or %redo 3 --files.',
        "- The nearest states that are kept: redo(2), to after python (v).",
    ]
    assert refused.value["nearest"] == [{"steps": 2, "to": ""}]


def test_present_of_another_undo_is_no_way_to_a_state(bench: Bench) -> None:
    bench.call(checkpoint("u"))
    bench.undo(1)
    bench.states.left = -1  # such as that of another undo, before
    problem = bench.choice("redo").find_restore(1).problem
    assert problem == "nothing is known of it"


def test_calls_of_others_have_no_variables_here(bench: Bench) -> None:
    bench.call(checkpoint("other"), own=False)
    assert bench.plan(1).variables == STAY
    bench.call(checkpoint("mine"))
    bench.call(checkpoint("later"), own=False)
    plan = bench.plan(3)
    assert (plan.variables.call_id, plan.variables.before) == ("mine", "mine")


# ---- refusals and reach


def test_a_refusal_offers_files_alone_and_the_nearest_states(bench: Bench) -> None:
    bench.call(*map(checkpoint, "abcdef"))
    for call_id in "bcd":
        bench.reasons[call_id] = "only some of the older snapshots are retained"
    refused = bench.choice().plan(4)
    assert isinstance(refused, ToolResult)
    assert (refused.is_error, refused.error_kind) == (True, "invalid")
    assert refused.content.splitlines() == [
        (
            "Nothing was changed: the variables from before python (c) are not kept: only some of the older "
            "snapshots are retained."
        ),
        '- Files alone: undo(4, variables="keep"), or %undo 4 --files.',
        (
            "- The nearest states that are kept: undo(2) or undo(to='e'), to before python (e), or undo(6) "
            "or undo(to='a'), to before python (a)."
        ),
    ]
    assert refused.value == {
        "reason": "only some of the older snapshots are retained",
        "nearest": [{"steps": 2, "to": "e"}, {"steps": 6, "to": "a"}],
    }
    refused = bench.choice().plan(4, to="c")
    assert isinstance(refused, ToolResult)
    assert "undo(to='c', variables=\"keep\"), or %undo --to c --files." in refused.content
    for call_id in "aef":
        bench.reasons[call_id] = "the snapshots were forgotten on request"
    refused = bench.choice().plan(1)
    assert isinstance(refused, ToolResult)
    assert refused.content.endswith("- No other state of the variables is kept.")
    assert refused.value["nearest"] == []


def test_reach_is_said_for_files_and_for_variables(bench: Bench) -> None:
    assert bench.choice(dropped=2).describe() == "There is nothing to undo. 2 older calls were dropped."
    bench.call(file("a"), *map(checkpoint, "bcd"))
    assert bench.choice().describe() == (
        "Undo reaches back 4 calls, to before sandbox_write (a), for files; for variables 4 calls, to before "
        "sandbox_write (a)."
    )
    bench.reasons |= {"a": "thinned", "b": "thinned", "c": "thinned"}
    assert bench.choice(dropped=1).describe() == (
        "Undo reaches back 4 calls, to before sandbox_write (a), for files; for variables 1 call, to before "
        "python (d). 1 older call was dropped."
    )
    for call_id in "abc":
        del bench.reasons[call_id]
    bench.reasons["d"] = "thinned"
    assert "sandbox_write (a) (1 of the states between are not kept)." in bench.choice().describe()
    bench.reasons |= {"a": "thinned", "b": "thinned", "c": "thinned"}
    assert bench.choice().describe().endswith("for files; no earlier state of the variables is kept.")
    assert bench.choice(can_keep=False).describe().endswith("variables are not kept by this sandbox.")


def test_undo_reaches_no_further_than_to_a_state_that_is_not_kept(bench: Bench) -> None:
    bench.call(file("a"), replace(file("b"), unkept="the disk is full"), checkpoint("c"))
    assert bench.choice().describe() == (
        "Undo reaches back 1 call, to before python (c), for files; for variables 1 call, to before "
        "python (c). sandbox_write (b) cannot be undone, since the files as they were after it are not kept, "
        "and nobody can tell what was changed since: the disk is full. With force=True all files are brought "
        "back to before it, whoever has changed them, and that cannot be redone."
    )
    bench.plan(1)
    for count in (2, 3):
        refused = bench.choice().plan(count)
        assert isinstance(refused, ToolResult)
        assert refused.is_error
        assert refused.content.endswith("undo(1) or undo(to='c') is possible.")
        assert refused.value == {"reason": "the disk is full", "possible": 1}
        assert len(bench.plan(count, force=True).steps) == count
    bench.undo(3)
    for force in (False, True):
        refused = bench.choice("redo").plan(2, force=force)
        assert isinstance(refused, ToolResult)
        assert refused.content == (
            "Nothing was changed: sandbox_write (b) cannot be redone, since the files as they were after it "
            "are not kept: the disk is full. Make the call again. redo(1) is possible."
        )
    bench.plan(1, "redo")


def test_reach_for_variables_ends_with_the_calls_of_this_session(bench: Bench) -> None:
    bench.call(*map(checkpoint, "ab"), own=False)
    assert bench.choice().describe().endswith("(a), for files; no earlier state of the variables is kept.")
    bench.call(*map(checkpoint, "cd"))
    assert bench.choice().describe() == (
        "Undo reaches back 4 calls, to before python (a), for files; for variables 2 calls, to before "
        "python (c)."
    )


def test_steps_are_counted_that_take_all_of_some_calls() -> None:
    calls = [file("a"), file("b"), file("b/1", inside="b"), file("c")]
    undo = UndoChoice("undo", calls, VariableStates(), None)
    assert [undo.count_with(ids) for ids in ([], ["c"], ["b/1"], ["c", "a"], ["unknown"])] == [0, 1, 2, 3, 0]
    redo = UndoChoice("redo", calls[::-1], VariableStates(), None)
    assert redo.count_with(["b"]) == 2
