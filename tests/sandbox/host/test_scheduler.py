from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aisotools.core.protocols import Concurrency
from aisotools.sandbox.host.scheduler import CallScheduler

KINDS: tuple[Concurrency, ...] = ("exclusive", "main", "overlap")


@dataclass
class Hall:
    """Runs callers through `CallScheduler` and watches that the rules hold at every moment."""

    turns: CallScheduler = field(default_factory=CallScheduler)
    inside: list[tuple[int, Concurrency]] = field(default_factory=list)
    entered: list[int] = field(default_factory=list)
    doors: dict[int, asyncio.Event] = field(default_factory=dict)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    kinds: dict[int, Concurrency] = field(default_factory=dict)

    def come(self, kind: Concurrency) -> int:
        number = len(self.tasks)
        self.doors[number] = asyncio.Event()
        self.kinds[number] = kind
        self.tasks[number] = asyncio.get_running_loop().create_task(self._stay(number, kind))
        return number

    async def _stay(self, number: int, kind: Concurrency) -> None:
        async with self.turns.turn(kind):
            self.inside.append((number, kind))
            self.entered.append(number)
            self.check()
            try:
                await self.doors[number].wait()
            finally:
                self.inside.remove((number, kind))

    def check(self) -> None:
        kinds = [kind for _, kind in self.inside]
        assert "exclusive" not in kinds or len(kinds) == 1
        assert kinds.count("main") <= 1

    async def settle(self) -> None:
        for _ in range(6):
            await asyncio.sleep(0)

    async def empty(self) -> None:
        for door in self.doors.values():
            door.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)


steps = st.lists(
    st.tuples(st.sampled_from(["come", "leave", "cancel", "settle"]), st.integers(0, 100)), max_size=60
)


@settings(max_examples=200)
@given(steps)
def test_rules_hold_whatever_comes(plan: list[tuple[str, int]]) -> None:
    async def play() -> None:
        hall, cancelled = Hall(), set()
        for what, number in plan:
            if what == "come":
                hall.come(KINDS[number % 3])
            elif what == "settle":
                await hall.settle()
            elif hall.tasks:
                chosen = number % len(hall.tasks)
                if what == "leave":
                    hall.doors[chosen].set()
                else:
                    cancelled.add(chosen)
                    hall.tasks[chosen].cancel()
            hall.check()
        await asyncio.wait_for(hall.empty(), 5)
        assert not hall.inside
        assert set(hall.tasks) - cancelled <= set(hall.entered)
        for place, later in enumerate(hall.entered):  # nobody overtakes whom it would keep waiting
            for earlier in hall.entered[place + 1 :]:
                assert earlier > later or {hall.kinds[earlier], hall.kinds[later]} <= {"main", "overlap"}
        for kind in KINDS:  # and nothing is held for ever
            async with asyncio.timeout(1), hall.turns.turn(kind):
                pass

    asyncio.run(play())


async def test_overlapping_calls_run_beside_a_main_one() -> None:
    hall = Hall()
    for kind in ("main", "overlap", "overlap"):
        hall.come(kind)
    await hall.settle()
    assert hall.entered == [0, 1, 2]
    hall.come("main")
    await hall.settle()
    assert hall.entered == [0, 1, 2]
    await hall.empty()


async def test_an_exclusive_call_is_not_starved() -> None:
    hall = Hall()
    hall.come("overlap")
    await hall.settle()
    exclusive, late = hall.come("exclusive"), hall.come("overlap")
    await hall.settle()
    assert hall.entered == [0]
    hall.doors[0].set()
    await hall.settle()
    assert hall.entered == [0, exclusive]
    hall.doors[exclusive].set()
    await hall.settle()
    assert hall.entered == [0, exclusive, late]
    await hall.empty()


@pytest.mark.parametrize("admitted", [True, False])
async def test_giving_up_while_waiting(admitted: bool) -> None:
    hall = Hall()
    hall.come("exclusive")
    await hall.settle()
    waiting = hall.come("exclusive")
    last = hall.come("overlap")
    await hall.settle()
    hall.doors[0].set()
    if admitted:  # cancelled in the very round in which it is admitted
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    hall.tasks[waiting].cancel()
    await hall.settle()
    assert last in hall.entered
    await hall.empty()


async def test_says_who_is_there() -> None:
    turns = CallScheduler()
    assert repr(turns) == "<Turns: nobody running, 0 waiting>"
    async with turns.turn("main"), turns.turn("overlap"):
        assert repr(turns) == "<Turns: 1 main, 1 overlap running, 0 waiting>"
