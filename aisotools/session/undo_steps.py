"""The steps that an undo or redo takes, and the states of the variables between them.

A step is a call that took a checkpoint, together with the calls that were made inside it. The states of the
variables have numbers: two that are the same, because nothing that ran between them may have changed a
variable, have the same number. So a state can be restored by what was kept before any call that found it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from aisotools.core.exceptions import UsageError, explain_system_error
from aisotools.core.types import ToolResult
from aisotools.workspace.checkpoints.moves import describe_unkept
from aisotools.workspace.checkpoints.steps import Checkpoint, Direction

_MAX_LISTED = 20
"""Calls that one message names."""


@dataclass(frozen=True, slots=True)
class UndoStep:
    """One step.

    Attributes:
        calls: Its calls in the order in which they ended. The one that made the others is the last.
    """

    calls: tuple[Checkpoint, ...]

    def __str__(self) -> str:
        return f"{self.calls[-1].name} ({self.call_id})"

    @property
    def call_id(self) -> str:
        """The call that made the others."""
        return self.calls[-1].call_id

    @property
    def changes_variables(self) -> bool:
        """True if any of its calls may have changed variables."""
        return any(call.changes_variables for call in self.calls)

    @property
    def has_changed(self) -> bool:
        """False if it is certain that it changed neither files nor variables."""
        return self.changes_variables or any(call.changed for call in self.calls)

    @property
    def unkept(self) -> str:
        """Return why the state of the files after it is not kept, in a clause; empty if it is."""
        return self.calls[-1].unkept


def group_steps(checkpoints: Sequence[Checkpoint]) -> list[UndoStep]:
    """Return the steps of checkpoints that are in the order in which they ended, in that order."""
    groups: dict[str, list[Checkpoint]] = {}
    for call in checkpoints:
        outermost = call.inside or call.call_id
        # Overlap: another call has ended between those of this step, whose place is that of its last one.
        groups[outermost] = [*groups.pop(outermost, ()), call]
    # After a crash the calls of a step end in the order in which they began.
    return [UndoStep(tuple(sorted(calls, key=lambda call: not call.inside))) for calls in groups.values()]


class VariableStates:
    """Numbers of the states of one sandbox's variables, as the calls of one session found them.

    Attributes:
        now: The present state.
        latest: The one that the first of the undos has left that can be redone.
        left: The one that the sandbox goes to when it redoes all that it has undone.
    """

    def __init__(self) -> None:
        """Begin with a state that no call has found yet."""
        self._numbers = itertools.count()
        self.now = self.latest = self.left = next(self._numbers)
        self._found: dict[str, int] = {}
        self._begun: tuple[str, int] = "", self.now
        self._without_worker: int | None = self.now

    def __repr__(self) -> str:
        return f"<VariableStates: {len(self._found)} calls, now {self.now}>"

    def __contains__(self, call_id: object) -> bool:
        return call_id in self._found

    def begin(self, call_id: str, *, may_change: bool) -> None:
        """Note that a call begins, and whether it may change variables."""
        self._found[call_id] = self.now
        if may_change:
            self.note_changed()
        self._begun = call_id, self.now

    def withdraw(self, call_id: str) -> None:
        """Forget a call that has begun and did not run after all."""
        found = self._found.pop(call_id)
        if self._begun == (call_id, self.now):  # nothing else has begun or ended since
            self.now = found

    def note_lost(self) -> None:
        """Note that the worker has ended, and its variables with it."""
        self.note_changed()
        self._without_worker = self.now

    def note_started(self) -> None:
        """Note that another worker has come.

        A call that begins while there is none finds what the one that comes for it has: no variables, or
        those that were rescued. For any other call they are not those that it has found.
        """
        if self.now != self._without_worker:
            self.note_changed()
        self._without_worker = None

    def note_changed(self) -> None:
        """Note that the variables may have changed, as when a call has ended.

        A call that was made inside the one that has ended has found a state that is over by now.
        """
        self.now = next(self._numbers)

    def found_by(self, call_id: str) -> int:
        """Return the state from before a call, which is one of those that began here."""
        return self._found[call_id]

    def calls_that_found(self, state: int) -> Iterator[str]:
        """Yield the calls before which the variables were in this state."""
        return (call_id for call_id, found in self._found.items() if found == state)

    def retain(self, call_ids: Collection[str]) -> None:
        """Forget all calls but these."""
        self._found = {call_id: state for call_id, state in self._found.items() if call_id in call_ids}


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """How a state of the variables can be restored.

    Attributes:
        state: The state; None if the variables stay as they are.
        call_id: Before which call it was kept; None if it is what the sandbox goes to when it redoes all.
        before: The call before which the variables will be as they are restored, which need not be the one
            that they were kept for; empty for the state that the first of the undos has left.
        problem: Why it cannot be restored, in a clause; empty if it can.
    """

    state: int | None = None
    call_id: str | None = None
    before: str = ""
    problem: str = ""


STAY = Restore()
"""Leaves the variables as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """An undo or redo that is possible, before anything is touched.

    Attributes:
        direction: Which of the two.
        steps: The steps, in the order in which they are taken.
        variables: What happens to the variables.
    """

    direction: Direction
    steps: tuple[UndoStep, ...]
    variables: Restore

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The calls, in the order in which they are taken."""
        order = -1 if self.direction == "undo" else 1
        return [call for step in self.steps for call in step.calls[::order]]


class UndoChoice:
    """The steps of one direction, and what is kept of the states between them. Touches nothing."""

    def __init__(
        self,
        direction: Direction,
        source: Sequence[Checkpoint],
        states: VariableStates,
        why_not_kept: Callable[[str | None], str] | None,
        *,
        dropped: int = 0,
        superseded_by: str = "",
        undone: Sequence[Checkpoint] = (),
    ) -> None:
        """Look at what can be undone or redone.

        Args:
            direction: Which of the two.
            source: The calls that can be, the next one last.
            states: The states of the variables.
            why_not_kept: See `VariableHistory.why_not_kept`; None if the sandbox keeps no variables.
            dropped: How many older calls there were.
            superseded_by: The call after which what was undone could not be redone any more.
            undone: The calls that are undone.
        """
        self._direction = direction
        self._undone = {call.call_id for call in undone}
        if direction == "undo":
            self.steps = group_steps(source)[::-1]
        else:
            self.steps = group_steps(source[::-1])
        self._states = states
        self._why_not_kept = why_not_kept
        self._dropped, self._superseded_by = dropped, superseded_by

    def count_to(self, call_id: str) -> int:
        """Return how many steps lead to the state before a call.

        Raises:
            UsageError: If there is no such step.
        """
        for number, step in enumerate(self.steps, start=1):
            if step.call_id == call_id:
                self._check_is_first(number)
                return number
            if any(call.call_id == call_id for call in step.calls):
                raise UsageError(
                    f"The call {call_id!r} was made by {step}, and can only be undone with it. "
                    f"Use undo(to={step.call_id!r})."
                )
        if call_id in self._undone:
            raise UsageError(f"The call {call_id!r} is undone already. A redo makes it again.")
        known = known_ids(self.steps[::-1])
        if self._undone and not self.steps:
            known = "All calls are undone already."
        raise UsageError(f"There is no call {call_id!r} to undo. {known}{self._describe_dropped()}")

    def count_with(self, call_ids: Collection[str]) -> int:
        """Return how many steps have to be taken to take all of these calls; 0 for none."""
        numbers = (
            number
            for number, step in enumerate(self.steps, start=1)
            if any(call.call_id in call_ids for call in step.calls)
        )
        return max(numbers, default=0)

    def _check_is_first(self, count: int) -> None:
        """Refuse to go to before a call if another one of those to be taken had begun before it."""
        step, earlier = self.steps[count - 1], _first_begun(self.steps[:count])
        if earlier.calls[-1].began < step.calls[-1].began:
            raise UsageError(
                f"{earlier} was running when {step} began, and ended later: the state from before {step} has "
                f"a part of what it did. Use undo(to={earlier.call_id!r}), or a number of calls."
            )

    def plan(
        self, count: int, *, to: str | None = None, files_only: bool = False, force: bool = False
    ) -> UndoPlan | ToolResult:
        """Return what to do for so many steps, or a refusal.

        Args:
            count: The number of steps.
            to: The call whose state before it was asked for, for what a refusal offers.
            files_only: Leave the variables as they are.
            force: Undo also what ended in a state of the files that is not kept.
        """
        if count > len(self.steps):
            return self._refuse_count()
        barrier = self._find_barrier()
        if barrier < count and (self._direction == "redo" or not force):
            return self._refuse_unkept(barrier)
        steps = tuple(self.steps[:count])
        restore = STAY if files_only else self.find_restore(count)
        if restore.problem:
            return self._refuse_variables(count, to, restore.problem)
        return UndoPlan(direction=self._direction, steps=steps, variables=restore)

    def find_restore(self, count: int) -> Restore:
        """Return how the variables get to the state that so many steps lead to."""
        found = self._find_state(count)
        if found is None or self._why_not_kept is None:
            return STAY
        before, state = found
        if state == self._states.now:
            return STAY
        problem = ""
        for call_id in self._states.calls_that_found(state):
            why = self._why_not_kept(call_id)
            if not why:
                return Restore(state=state, call_id=call_id, before=before)
            problem = problem or why
        if state == self._states.left:
            why = self._why_not_kept(None)
            if not why:
                return Restore(state=state, before=before)
            problem = problem or why
        return Restore(state=state, problem=problem or "nothing is known of it")

    def _find_state(self, count: int) -> tuple[str, int] | None:
        """Return the call before which the variables are as so many steps leave them, and that state.

        The call is empty for the state that the first undo has left. None of them is known here: None.
        """
        taken = [step for step in self.steps[:count] if step.call_id in self._states]
        if not taken:
            return None
        if self._direction == "undo":
            first = _first_begun(taken).call_id
            return first, self._states.found_by(first)
        for step in self.steps[count:]:
            if step.call_id in self._states:
                return step.call_id, self._states.found_by(step.call_id)
        return "", self._states.latest

    # ---- in words

    def describe(self, *, damaged: int = 0) -> str:
        """Return how far the steps reach, for files and for variables, in a sentence.

        Args:
            damaged: How many stored contents are known to be damaged.
        """
        if not self.steps:
            return self._describe_nothing()
        dropped = self._describe_dropped()
        length = self._find_barrier()
        beyond = ""
        if length < len(self.steps):
            step = self.steps[length]
            beyond = f" {describe_unkept(self._direction, str(step), step.unkept)}"
        if damaged:
            beyond += (
                f" Contents that are stored for undo were found damaged ({damaged:,}): an undo that needs "
                "them is refused, and with force=True leaves those files as they are."
            )
        if not length:
            return f"Undo reaches back no call.{beyond}{dropped}"
        files = f"{_count(length)}, to before {self.steps[length - 1]}"
        if self._why_not_kept is None:
            variables = "variables are not kept by this sandbox"
        else:
            # Steps of an earlier session are undone in the files alone: it ended, and its variables with it.
            reached = self.steps[:length]
            own = max((n for n, step in enumerate(reached, 1) if step.call_id in self._states), default=0)
            numbers = [number for number in range(1, own + 1) if not self.find_restore(number).problem]
            if numbers:
                variables = f"for variables {_count(numbers[-1])}, to before {self.steps[numbers[-1] - 1]}"
                gaps = numbers[-1] - len(numbers)
                variables += f" ({gaps} of the states between are not kept)" if gaps else ""
            else:
                variables = "no earlier state of the variables is kept"
        return f"Undo reaches back {files}, for files; {variables}.{beyond}{dropped}"

    def _describe_nothing(self) -> str:
        why = ""
        if self._superseded_by and self._direction == "redo":
            why = (
                f" What was undone cannot be redone after {self._superseded_by}, which may have changed "
                "something."
            )
        return f"There is nothing to {self._direction}.{why}{self._describe_dropped()}"

    def _describe_dropped(self) -> str:
        if not self._dropped or self._direction == "redo":
            return ""
        return f" {self._dropped:,} older {'call was' if self._dropped == 1 else 'calls were'} dropped."

    def _find_barrier(self) -> int:
        """Return how many steps come before the first that ended in a state of the files that is not kept."""
        return next((n for n, step in enumerate(self.steps) if step.unkept), len(self.steps))

    def _refuse_unkept(self, barrier: int) -> ToolResult:
        step = self.steps[barrier]
        message = f"Nothing was changed: {describe_unkept(self._direction, str(step), step.unkept)}"
        if barrier:
            message += f" {self._call(barrier)} is possible."
        return dataclasses.replace(refusal(message), value={"reason": step.unkept, "possible": barrier})

    def _refuse_count(self) -> ToolResult:
        length = len(self.steps)
        if not length:
            return refusal(self._describe_nothing())
        last = "oldest" if self._direction == "undo" else "last"
        there = "is only" if length == 1 else "are only"
        return refusal(
            f"Nothing was changed: there {there} {_count(length)} to {self._direction}. The {last} is "
            f"{self.steps[-1]}.{self._describe_dropped()} Use a smaller number, at most {length}."
        )

    def _refuse_variables(self, count: int, to: str | None, problem: str) -> ToolResult:
        verb = self._direction
        wanted = str(count) if to is None else f"to={to!r}"
        option = f"{count} --files" if to is None else f"--to {to} --files"
        lines = [
            f"Nothing was changed: the variables from {self._describe_state(count)} are not kept: {problem}.",
            f'- Files alone: {verb}({wanted}, variables="keep"), or %{verb} {option}.',
        ]
        closer, farther = range(count - 1, 0, -1), range(count + 1, len(self.steps) + 1)
        nearest = []
        for numbers in (closer, farther):
            nearest += [number for number in numbers if not self.find_restore(number).problem][:1]
        if nearest:
            offers = ", or ".join(
                f"{self._call(number)}, to {self._describe_state(number)}" for number in nearest
            )
            lines.append(f"- The nearest states that are kept: {offers}.")
        else:
            lines.append("- No other state of the variables is kept.")
        result = refusal("\n".join(lines))
        offered = [
            {"steps": number, "to": self.steps[number - 1].call_id if verb == "undo" else ""}
            for number in nearest
        ]
        return dataclasses.replace(result, value={"reason": problem, "nearest": offered})

    def _call(self, count: int) -> str:
        if self._direction == "redo":
            return f"redo({count})"
        return f"undo({count}) or undo(to={self.steps[count - 1].call_id!r})"

    def _describe_state(self, count: int) -> str:
        if self._direction == "undo":
            return f"before {self.steps[count - 1]}"
        return f"after {self.steps[count - 1]}"


def _first_begun(steps: Sequence[UndoStep]) -> UndoStep:
    """Return the step that began first, of several in the order in which undo takes them."""
    # Without numbers, as in records of earlier versions, it is the last that is taken.
    return min(reversed(steps), key=lambda step: step.calls[-1].began)


def check_options(count: object, to: str | None = None, *, force: object, variables: object) -> None:
    """Check what a caller has given to an undo or redo, but for whether there is the call `to`.

    Raises:
        ValueError: If one of it is none of its values.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"steps={count!r}: use a whole number from 1.")
    if to is not None and count != 1:
        raise ValueError(
            f"steps={count!r}, to={to!r}: use one of them, since either says how far to go back."
        )
    if force is not True and force is not False:
        raise ValueError(f"force={force!r}: use True or False.")
    if variables not in ("restore", "keep"):
        raise ValueError(f"variables={variables!r}: use 'restore' or 'keep'.")


def refuse_for_system(direction: Direction, error: OSError) -> ToolResult:
    """Return the refusal of an undo or redo for which the system has refused something beforehand."""
    return refusal(f"Nothing was changed: the {direction} was not begun. {explain_system_error(error)}")


def refusal(message: str) -> ToolResult:
    """Return the result of an undo or redo that was refused before anything was touched."""
    return ToolResult.error(message, error_kind="invalid")


def known_ids(steps: Sequence[UndoStep | Checkpoint]) -> str:
    """Return a sentence that names the last of these calls."""
    call_ids = [step.call_id for step in steps[-_MAX_LISTED:]]
    return f"Known: {', '.join(call_ids)}." if call_ids else "There was none so far."


def _count(number: int) -> str:
    return f"{number:,} call{'' if number == 1 else 's'}"
