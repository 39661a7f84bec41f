"""Random histories of variables against a model: cells, undos, redos, copies and kills."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aisotools.core.exceptions import SandboxError
from tests.sandbox.rig import Rig

NAMES = st.sampled_from("abc")
SMALL = st.integers(0, 99)


class Histories(RuleBasedStateMachine):
    """A kernel, and what its namespace must be.

    Attributes:
        now: The variables.
        kept: Each call of the way to the present, with the variables before it.
        undone: Undos that can be taken back, the latest last: the variables and the way as they were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="aisotools-test-"))
        self.now: dict[str, list[int]] = {}
        self.path: list[tuple[str, dict[str, list[int]]]] = []
        self.undone: list[tuple[dict[str, list[int]], list[tuple[str, dict[str, list[int]]]]]] = []
        self.calls = self.made = 0
        self.numbers: dict[str, int] = {}
        self.rigs: list[Rig] = []

    def run(self, awaited: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(awaited, 30))

    def rig(self) -> Rig:
        folder = self.folder / str(len(self.rigs))
        folder.mkdir()
        made = Rig(folder)
        self.rigs.append(made)
        return made

    @initialize()
    def begin(self) -> None:
        self.r = self.rig()

    def keep(self) -> None:
        self.calls += 1
        self.made += 1
        self.numbers[f"c{self.calls}"] = self.made
        self.path.append((f"c{self.calls}", self.copied()))
        self.undone.clear()

    def call(self, code: str, **more: Any) -> Any:
        self.keep()
        return self.run(self.r.python(code, call_id=f"c{self.calls}", **more))

    def copied(self) -> dict[str, list[int]]:
        return {name: [*value] for name, value in self.now.items()}

    def check(self, r: Rig, expected: dict[str, list[int]]) -> None:
        seen = self.run(r.value("{n: v for n, v in globals().items() if n in ('a', 'b', 'c')}", call_id=None))
        assert seen == expected

    @rule(name=NAMES, value=SMALL)
    def assign(self, name: str, value: int) -> None:
        assert not self.call(f"{name} = [{value}]").is_error
        self.now[name] = [value]

    @rule(name=NAMES, value=SMALL)
    def change(self, name: str, value: int) -> None:
        assert self.call(f"{name}.append({value})").is_error == (name not in self.now)
        if name in self.now:
            self.now[name] = [*self.now[name], value]

    @rule()
    def touch_files(self) -> None:
        """A call that changes no variable has a snapshot of its own only if the newest is not up to date."""
        self.calls += 1
        call_id = f"c{self.calls}"
        self.run(self.r.python("pass", call_id=call_id, changes_variables=False))
        self.undone.clear()
        if call_id in {point.call_id for point in self.r.kernel.variables.points()}:
            self.made += 1
            self.numbers[call_id] = self.made
            self.path.append((call_id, self.copied()))
        else:
            assert self.path[-1][1] == self.now, "the snapshot that it shares equals the variables"

    @rule(name=NAMES)
    def fail(self, name: str) -> None:
        assert self.call(f"{name} = [0]\nraise ValueError").is_error
        self.now[name] = [0]

    @rule(name=NAMES)
    def crash(self, name: str) -> None:
        result = self.call(f"{name} = ['lost']\nimport os\nos.abort()")
        assert result.metadata["state_kept"] is True, result.content

    @rule(name=NAMES)
    def hang(self, name: str) -> None:
        result = self.call(f"{name} = ['lost']\nsum(range(10**11))", timeout_s=0.1)
        assert result.metadata["state_kept"] is True, result.content

    @precondition(lambda self: self.path)
    @rule(back=st.integers(1, 8))
    def undo(self, back: int) -> None:
        back = min(back, len(self.path))
        call_id, state = self.path[-back]
        if call_id not in {point.call_id for point in self.r.kernel.variables.points()}:
            # of the older ones only some are kept, and older means by how many were ever made after it
            assert self.made - self.numbers[call_id] >= 8
            with pytest.raises(SandboxError, match="only some of the older"):
                self.run(self.r.kernel.variables.restore(call_id))
            return
        self.undone.append((self.copied(), self.path))
        self.path = self.path[:-back]
        point = self.run(self.r.kernel.variables.restore(call_id))
        assert (point.call_id, point.label) == (call_id, "exact"), point
        self.now = {name: [*value] for name, value in state.items()}

    @rule()
    def redo(self) -> None:
        point = self.run(self.r.kernel.variables.redo())
        assert (point is not None) == bool(self.undone)
        if self.undone:
            self.now, self.path = self.undone[0]
            self.undone.clear()

    @precondition(lambda self: self.undone)
    @rule(draw=st.randoms(use_true_random=False))
    def redo_in_part(self, draw: Random) -> None:
        """Stop before a call that was undone; the way that the first undo has left knows the state there."""
        latest, path = self.undone[0]
        position = draw.randrange(len(self.path), len(path))
        call_id, state = path[position]
        if self.r.kernel.variables.why_not_kept(call_id):
            assert self.made - self.numbers[call_id] >= 8
            return
        point = self.run(self.r.kernel.variables.redo(call_id))
        assert (point.call_id, point.label) == (call_id, "exact"), point
        self.now = {name: [*value] for name, value in state.items()}
        self.path = path[:position]
        self.undone = [(latest, path)]

    @precondition(lambda self: len(self.rigs) < 3)
    @rule()
    def branch(self) -> None:
        copy = self.run(self.r.kernel.variables.branch())
        self.made += 1  # it is a state as well, for a moment
        other = self.rig()
        self.run(other.kernel.variables.load(copy))
        copy.close()
        self.check(other, self.now)

    @rule()
    def look(self) -> None:
        self.keep()
        code = "{n: v for n, v in globals().items() if n in ('a', 'b', 'c')}"
        assert self.run(self.r.value(code, call_id=f"c{self.calls}")) == self.now

    def teardown(self) -> None:
        for made in self.rigs:
            self.run(made.kernel.close())
        self.loop.close()
        shutil.rmtree(self.folder)


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=4, stateful_step_count=12, deadline=None, suppress_health_check=SLOW
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_histories() -> None:
    long = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=SLOW)
    run_state_machine_as_test(Histories, settings=long)
