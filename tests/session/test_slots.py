"""Slots: granted in the order of the requests, freed by eviction of the least recently used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import SandboxError
from aisotools.session.slots import SlotPool
from tests.waiting import HANG_S, eventually


class Guest:
    """Notes when it is live, and that it is never asked to leave while it is used."""

    def __init__(self, name: int, log: list[str], slots: SlotPool) -> None:
        self.name, self.log, self.slots = name, log, slots
        self.used = 0

    async def vacate(self, reason: str) -> None:
        assert not self.used
        await asyncio.sleep(0)
        assert not self.used
        self.log.append(f"{self.name} left: {reason}")

    @asynccontextmanager
    async def using(self) -> AsyncIterator[None]:
        async with self.slots.use(self):
            self.used += 1
            assert self.slots.holds(self)
            assert self.slots.live <= self.slots.max_live
            try:
                yield
            finally:
                self.used -= 1


def rig(
    count: int, *, max_live: int, idle_s: float = 60, wait_s: float = HANG_S
) -> tuple[SlotPool, list[str], list[Guest]]:
    slots = SlotPool(max_live=max_live, idle_s=idle_s, wait_s=wait_s)
    log: list[str] = []
    return slots, log, [Guest(number, log, slots) for number in range(count)]


async def test_the_one_unused_for_longest_makes_room() -> None:
    slots, log, (a, b, c) = rig(3, max_live=2)
    for guest in (a, b, a, c):
        async with guest.using():
            pass
    assert log == ["1 left: another conversation needed its place"]
    assert slots.holds(a)
    await slots.close()


async def test_used_slot_is_never_freed_and_waiting_ends_with_an_error() -> None:
    slots, log, (a, b) = rig(2, max_live=1, wait_s=0.05)
    async with a.using():
        with pytest.raises(SandboxError, match=r"All 1 sandboxes of the pool were busy for 0\.05 s"):
            async with b.using():
                raise AssertionError("there was no place")
    assert log == []
    async with b.using():
        assert log == ["0 left: another conversation needed its place"]
    await slots.close()


async def test_slot_is_taken_at_once_by_who_has_one_or_where_one_is_free() -> None:
    slots, log, (a, b, c) = rig(3, max_live=2)
    ends = [slots.take_at_once(guest) for guest in (a, b, c)]
    assert [end is None for end in ends] == [False, False, True]
    again = slots.take_at_once(a)
    assert again is not None
    for end in (ends[0], again, ends[1]):
        assert end is not None
        end()
    assert slots.take_at_once(c) is None, "somebody would be evicted for it"
    evicting = asyncio.ensure_future(slots.evict(a, "test"))
    await asyncio.sleep(0)
    assert [slots.take_at_once(guest) for guest in (a, c)] == [None, None]
    await evicting
    end = slots.take_at_once(c)
    assert end is not None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), slots.use(a):  # b is evicted for it
            await asyncio.Event().wait()
    end()
    assert log == ["0 left: test", "1 left: another conversation needed its place"]
    await slots.close()
    assert slots.take_at_once(a) is None


async def test_waiting_is_first_come_first_served_and_a_cancelled_turn_is_passed_on() -> None:
    slots, _, guests = rig(5, max_live=1)
    order: list[int] = []
    release = asyncio.Event()

    async def turn(guest: Guest) -> None:
        async with guest.using():
            order.append(guest.name)
            await release.wait()

    tasks = [asyncio.ensure_future(turn(guest)) for guest in guests]
    await eventually(lambda: slots.waiting == 4)
    tasks[2].cancel()
    release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [0, 1, 3, 4]
    await slots.close()
    assert slots.live == 0


async def test_unused_places_are_given_up_after_a_while() -> None:
    slots, log, (a, b) = rig(2, max_live=2, idle_s=0.02)
    async with a.using():
        async with b.using():
            pass
        await eventually(lambda: log)  # the time after which the used one would have gone as well
        assert log == ["1 left: it was not used for 0.02 s"]
        assert slots.holds(a)
    await eventually(lambda: len(log) == 2)
    assert log[1] == "0 left: it was not used for 0.02 s"
    await eventually(lambda: slots.live == 0)
    await slots.close()


async def test_a_tenant_called_up_while_it_still_leaves_comes_back_after_that() -> None:
    slots, _, (a, b) = rig(2, max_live=1)

    async def turn(guest: Guest) -> None:
        async with guest.using():
            await asyncio.sleep(0)

    for _ in range(20):
        await asyncio.gather(turn(a), turn(b), turn(a), turn(b), turn(a))
    await slots.close()
    assert slots.live == 0


async def test_a_turn_that_comes_to_somebody_just_cancelled_is_not_lost() -> None:
    slots, _, (a, b, c) = rig(3, max_live=1)
    holding = a.using()
    await holding.__aenter__()
    waiting = asyncio.ensure_future(b.using().__aenter__())
    await asyncio.sleep(0)
    waiting.cancel()  # it has not come round to leave the queue when the place becomes free
    await holding.__aexit__(None, None, None)
    async with c.using():
        assert slots.holds(c)
    assert waiting.cancelled()
    await slots.close()


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.booleans()), max_size=40), st.integers(1, 3)
)
def test_slots_are_never_exceeded_and_nobody_is_forgotten(
    steps: list[tuple[int, int, bool]], max_live: int
) -> None:
    async def run() -> None:
        slots, _, guests = rig(7, max_live=max_live, idle_s=0.001, wait_s=HANG_S)
        served = 0

        async def use(guest: Guest, turns: int) -> None:
            nonlocal served
            async with guest.using():
                for _ in range(turns):
                    await asyncio.sleep(0)
            served += 1

        tasks, cancelled = [], 0
        for number, turns, cancels in steps:
            tasks.append(asyncio.ensure_future(use(guests[number], turns)))
            await asyncio.sleep(0)
            if cancels and not tasks[-1].done():
                tasks[-1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        cancelled = sum(isinstance(one, asyncio.CancelledError) for one in results)
        assert served + cancelled == len(steps)
        assert slots.waiting == 0
        async with AsyncExitStack() as taken:
            for guest in guests[:max_live]:  # no place was lost on the way
                await taken.enter_async_context(slots.use(guest))
        await slots.close()
        assert slots.live == 0
        with pytest.raises(SandboxError, match="is closed"):
            await slots.use(guests[0]).__aenter__()

    asyncio.run(run())


async def test_waiting_for_a_slot_ends_when_the_pool_is_closed() -> None:
    slots, _, (a, b) = rig(2, max_live=1)
    async with a.using():
        waiting = asyncio.ensure_future(b.using().__aenter__())
        await eventually(lambda: slots.waiting == 1)
        await slots.close()
        with pytest.raises(SandboxError, match="was closed meanwhile"):
            await waiting
    assert (slots.live, slots.waiting) == (0, 0)
