"""Which snapshots of variables are retained, and which must go for memory."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.core.sandboxes import VariablePoint
from aisotools.sandbox.host import fork_observation, snapshot_store
from aisotools.sandbox.host.fork_observation import ProcessCounts
from aisotools.sandbox.host.snapshot_store import MemoryBudget, SnapshotStore, select_retained
from tests.waiting import LoopClock, eventually, loop_turns


def test_older_snapshots_are_retained_by_powers_of_two() -> None:
    numbers = list(range(1, 401))
    retained = numbers[:1]
    for number in numbers[1:]:
        retained = sorted(select_retained([*retained, number]))
        assert number in retained
        assert retained[0] == 1
        assert set(range(max(1, number - 7), number + 1)) <= set(retained)
        assert len(retained) <= 21
    gaps = [b - a for a, b in itertools.pairwise(retained[1:])]
    assert all(gap & (gap - 1) == 0 for gap in gaps), "by powers of two"


def test_the_largest_goes_first_and_the_newest_never() -> None:
    budget = MemoryBudget(max_bytes=100)
    assert budget.excess({1: 10, 2: 60, 3: 50, 4: 70}) == [2, 3]
    assert budget.excess({1: 10, 2: 200}) == [1]
    assert budget.excess({1: 50, 2: 50}) == []


# ---- the store, with snapshots that hold no process


class FakeSocket:
    """Has no process until its snapshot has settled."""

    def __init__(self, supervisor: object, requested: int, killed: object) -> None:
        self.pid = 0
        self.peer = self
        self.closed = False

    def close(self, *, kill: bool = False) -> None:
        self.closed = True


class FakeSnapshot:
    """Settles when the test says so."""

    def __init__(self, number: int, call_id: str, socket: FakeSocket, **options: Any) -> None:
        self.number = number
        self.point = VariablePoint(call_id=call_id)
        self.socket = socket
        self.counts: ProcessCounts = options["counts"]
        self.unsettled = options["unsettled"]
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.drop_reason = ""
        self.last_fork_s = 0.0
        self.memory_bytes = 0

    def settle(self, *, last_fork_s: float = 0.0, drop_reason: str = "") -> None:
        self.socket.pid = 1000 + self.number
        self.last_fork_s = last_fork_s
        self.drop_reason = drop_reason
        self.settled.set_result(None)

    def drop(self, reason: str) -> None:
        self.drop_reason = self.drop_reason or reason

    def measure_memory(self) -> int:
        return self.memory_bytes


@dataclass
class FakeConnection:
    """A worker that takes requests for forks, unless it is deaf."""

    is_deaf: bool = False
    supervisor: int = 1
    pid: int = 2
    known_tools: set[str] = field(default_factory=set)

    def request_fork(self, peer: object) -> bool:
        return not self.is_deaf


class StoreBench:
    """A store with a worker whose forks are fakes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.connection: Any = FakeConnection()
        self.children: dict[int, str] = {}
        monkeypatch.setattr(snapshot_store, "ForkSocket", FakeSocket)
        monkeypatch.setattr(snapshot_store, "ForkSnapshot", FakeSnapshot)
        monkeypatch.setattr(fork_observation, "count_processes", self._count)
        self.store = SnapshotStore(slow_s=1.0, budget=MemoryBudget(max_bytes=100), **options)

    def _count(self, pid: int, snapshot_pids: object) -> ProcessCounts:
        return ProcessCounts(children=dict(self.children))

    async def add(self, call_id: str, *, is_present: bool = False, **settling: Any) -> Any:
        """Have a snapshot taken that settles, and return it."""
        self.store.add(self.connection, call_id, is_present=is_present)
        snapshot: Any = self.store.snapshots[-1]
        snapshot.settle(**settling)
        await loop_turns()
        return snapshot

    def calls(self) -> list[str]:
        return [snapshot.point.call_id for snapshot in self.store.snapshots]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> StoreBench:
    return StoreBench(monkeypatch)


async def test_snapshots_are_found_by_their_call(bench: StoreBench) -> None:
    store = bench.store
    assert (store.all(), store.current, store.find("a"), store.pids()) == ([], None, None, [])
    first, second = await bench.add("a"), await bench.add("b")
    assert [store.find(name) for name in "ab"] == [first, second]
    assert store.pids() == [1001, 1002]
    assert store.eviction_reason("c") == "no snapshot was taken for this call"
    assert repr(store) == "<SnapshotStore of 2 snapshots, 0 undone>"
    first.drop("it ended")
    assert store.pids() == [1002]
    store.add(bench.connection, "c")
    assert store.pids() == [1002], "its process is not known yet"


async def test_older_snapshots_are_evicted_with_the_reason(bench: StoreBench) -> None:
    taken = [await bench.add(str(number)) for number in range(1, 41)]
    retained = select_retained([snapshot.number for snapshot in taken])
    assert len(bench.calls()) <= 21
    for snapshot in taken[-8:]:
        assert snapshot in bench.store.snapshots
        assert snapshot.number in retained
    gone = [snapshot for snapshot in taken if snapshot not in bench.store.snapshots]
    assert gone
    for snapshot in gone:
        assert "only some of the older" in snapshot.drop_reason
        assert bench.store.eviction_reason(snapshot.point.call_id) == snapshot.drop_reason


async def test_only_calls_that_change_no_variable_share_the_newest(bench: StoreBench) -> None:
    store = bench.store
    assert not store.share_newest("none is there")
    await bench.add("a")
    assert not store.share_newest("the call changed variables")
    newest = await bench.add("b", is_present=True)
    assert store.share_newest("c")
    assert [store.find("c"), store.current] == [newest, newest]
    store.evict(newest, "for a test")
    assert store.eviction_reason("c") == store.eviction_reason("b") == "for a test"
    assert store.find("c") is None
    assert not store.share_newest("d"), "the one before it does not equal the variables"


async def test_shared_calls_and_reasons_are_remembered_up_to_a_bound(
    bench: StoreBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "_REMEMBERED_REASONS", 2)
    await bench.add("a", is_present=True)
    for name in "bcd":
        assert bench.store.share_newest(name)
    assert bench.store.find("b") is None
    assert bench.store.find("c") is bench.store.find("d") is not None
    bench.connection.is_deaf = True
    for name in "xyz":
        bench.store.add(bench.connection, name)
    assert bench.store.eviction_reason("x") == "no snapshot was taken for this call"
    assert "had not read its earlier messages" in bench.store.eviction_reason("z")
    with pytest.raises(SandboxError, match="had not read"):
        bench.store.fork(bench.connection, "w")


async def test_calls_after_a_slow_fork_go_without(bench: StoreBench) -> None:
    await bench.add("slow", last_fork_s=2.0)
    for number in range(7):
        bench.store.add(bench.connection, str(number))
    assert bench.calls() == ["slow"]
    assert "the last fork took so long" in bench.store.eviction_reason("6")
    await bench.add("next")
    assert bench.calls() == ["slow", "next"]


async def test_a_fork_that_failed_is_evicted_with_its_reason(bench: StoreBench) -> None:
    await bench.add("a", drop_reason="the snapshot was not taken")
    assert bench.store.snapshots == []
    assert bench.store.eviction_reason("a") == "the snapshot was not taken"


async def test_forks_do_not_count_as_children_of_user_code(bench: StoreBench) -> None:
    await bench.add("a")
    bench.children = {1001: "python", 7: "sleep"}
    second = await bench.add("b")
    assert second.counts.children == {7: "sleep"}
    bench.store.add(bench.connection, "c")
    third: Any = bench.store.fork(bench.connection, "d")
    assert third.unsettled == (bench.store.snapshots[-1],)
    assert third not in bench.store.all(), "a fork that is only asked for is not added"


async def test_undone_snapshots_come_back_or_are_dropped(bench: StoreBench) -> None:
    store = bench.store
    first, second, third = [await bench.add(name) for name in "abc"]
    store.undo_from(second)
    assert (store.snapshots, store.undone, store.all()) == (
        [first],
        [[second, third]],
        [first, second, third],
    )
    assert store.current is second
    assert store.share_newest("file")
    assert [store.find(name) for name in ("b", "file")] == [second, second], "also when it is undone"
    assert store.undone[0][0] is second
    store.redo_to(None)
    assert (bench.calls(), store.undone, store.current) == (["a", "b", "c"], [], None)
    store.undo_from(second)
    store.drop_undone()
    reason = "the call was undone, and another call has run since"
    assert store.undone == []
    assert (first.drop_reason, second.drop_reason, third.drop_reason) == ("", reason, reason)
    assert {store.eviction_reason(name) for name in ("b", "c", "file")} == {reason}


async def test_the_first_of_an_undone_way_holds_its_place(bench: StoreBench) -> None:
    store = bench.store
    _, second, third = [await bench.add(name) for name in "abc"]
    store.undo_from(second)
    store.evict(third, "for a test")
    store.evict(second, "for a test")
    assert store.undone == [[second]]
    assert second.drop_reason == "for a test"
    assert not store.share_newest("d")
    store.redo_to(None)
    assert bench.calls() == ["a"], "what has held its place is not among those to restore"


@pytest.mark.parametrize(
    ("target", "present", "undone"),
    [
        ("b", "a", ["bcde"]),
        ("c", "ab", ["cde"]),
        ("d", "abc", ["de"]),
        ("e", "abcd", ["e"]),
        (None, "abcde", []),
    ],
)
async def test_redo_goes_over_ways_and_stops_within_one(
    bench: StoreBench, target: str | None, present: str, undone: list[str]
) -> None:
    store = bench.store
    taken = {name: await bench.add(name) for name in "abcde"}
    for name in "db":
        store.undo_from(taken[name])
    assert [len(way) for way in store.undone] == [2, 2]
    store.redo_to(taken[target] if target is not None else None)
    assert bench.calls() == list(present)
    future = [one.point.call_id for way in reversed(store.undone) for one in way]
    assert future == list("".join(undone))
    assert store.current is (taken[target] if target is not None else None)
    store.redo_to(None)
    assert (bench.calls(), store.undone) == (list("abcde"), [])


async def test_calls_without_a_snapshot_are_reported_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[tuple[list[str], str]] = []
    bench = StoreBench(monkeypatch, on_dropped=lambda call_ids, why: dropped.append(([*call_ids], why)))
    first = await bench.add("a", is_present=True)
    assert bench.store.share_newest("b")
    bench.store.evict(first, "for a test")
    bench.connection.is_deaf = True
    bench.store.add(bench.connection, "c")
    bench.connection.is_deaf = False
    slow = await bench.add("d", last_fork_s=2.0)
    bench.store.add(bench.connection, "e")
    bench.store.undo_from(slow)
    bench.store.drop_undone()
    bench.store.clear("it was restarted")
    assert [call_ids for call_ids, _ in dropped] == [["a", "b"], ["c"], ["e"]], "no undone one, no restart"
    assert [
        next(part for part in ("for a test", "had not read", "took so long") if part in why)
        for _, why in dropped
    ] == ["for a test", "had not read", "took so long"]


async def test_a_full_sandbox_retains_the_newest_only(bench: StoreBench) -> None:
    assert not bench.store.drop_all_but_newest()
    for name in "abc":
        await bench.add(name)
    assert bench.store.drop_all_but_newest()
    assert bench.calls() == ["c"]
    assert "exceeded its memory limit" in bench.store.eviction_reason("a")
    assert not bench.store.drop_all_but_newest()


async def test_snapshots_over_the_budget_are_evicted_after_a_while(bench: StoreBench) -> None:
    clock = LoopClock()
    for name, size in (("a", 10), ("b", 80), ("c", 70)):
        (await bench.add(name)).memory_bytes = size
    bench.store.add(bench.connection, "has not settled")
    assert len(bench.calls()) == 4
    await clock.advance(snapshot_store._MEASURE_DELAY_S)
    await eventually(lambda: len(bench.calls()) == 3)
    assert bench.calls() == ["a", "c", "has not settled"]
    assert "too much memory" in bench.store.eviction_reason("b")
    bench.store.clear("for a test")


async def test_snapshots_that_take_long_to_measure_are_measured_less_often(bench: StoreBench) -> None:
    clock = LoopClock()
    for name, size in (("a", 10), ("b", 80), ("c", 70)):
        (await bench.add(name)).memory_bytes = size
    bench.store.clear("for a test")
    bench.store._enforce_budget({}, 10 * snapshot_store._MEASURE_DELAY_S)
    for name, size in (("a", 10), ("b", 80), ("c", 70)):
        (await bench.add(name)).memory_bytes = size
    await clock.advance(snapshot_store._MAX_DELAY_S - 0.01)
    assert bench.store._measurement is not None
    assert bench.calls() == ["a", "b", "c"]
    await clock.advance(0.02)
    await eventually(lambda: len(bench.calls()) == 2)
    bench.store.clear("for a test")


async def test_a_cleared_store_is_empty_and_knows_why(bench: StoreBench) -> None:
    first, second = await bench.add("a"), await bench.add("b", last_fork_s=2.0)
    bench.store.undo_from(second)
    bench.store.clear("it was restarted")
    assert bench.store.all() == []
    assert bench.store._measurement is None
    assert first.drop_reason == second.drop_reason == "it was restarted"
    assert bench.store.eviction_reason("b") == "it was restarted"
    await bench.add("c")
    assert bench.calls() == ["c"], "no call goes without any more"
