"""The history of a worker's variables: going back, forth, and aside.

Implements `aisotools.core.protocols.VariableHistory` over parked forks. All states belong to one tree of
processes; when that is lost, so are they. The worker that is left by going back waits, frozen with all its
threads and children, until a call makes `redo` impossible.

Which kept states stay: the last ones, fewer of the older ones, and no more than memory allows. Pure.

The kept states of a worker: which there are, what they weigh, and why others are not there.

What is told of calls whose worker had to be ended, or ended by itself: what is kept, and what is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aisotools.core.exceptions import SandboxError, WorkerDied
from aisotools.core.protocols import SandboxCall, ToolPayload, VariableCopy, VariablePoint
from aisotools.core.types import ToolCall, ToolResult
from aisotools.sandbox.host import fork_handle
from aisotools.sandbox.host.connection import WorkerConnection, WorkerProcess
from aisotools.sandbox.host.fork_handle import ForkSnapshot, ForkSocket
from aisotools.sandbox.host.scheduler import CallScheduler
from aisotools.sandbox.process import tree

_LAST = 8
_MOST = 20
_MOST_BYTES = 1 << 30
_SHARE = 4
_CGROUP = "/sys/fs/cgroup/memory.max"


def thinned(numbers: Sequence[int]) -> set[int]:
    """Which of these states stay: the last eight, then one in two, one in four, and so on; and the first.

    Args:
        numbers: The states, numbered in time, in order.
    """
    if not numbers:
        return set()
    newest = numbers[-1]
    kept = [n for n in numbers if n % (1 << max(0, ((newest - n) // _LAST).bit_length())) == 0]
    recent = [n for n in numbers if newest - n < _LAST]
    return {numbers[0], *sorted({*kept, *recent})[-_MOST:]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much memory kept states may take.

    Attributes:
        most_bytes: All of them together, beside what they share with others.
    """

    most_bytes: int

    @classmethod
    def of_this_machine(cls) -> Budget:
        """A quarter of the memory there is, and at most a gigabyte."""
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with contextlib.suppress(OSError, ValueError), open(_CGROUP, encoding="ascii") as file:
            there = min(there, int(file.read()))  # "max" is no number, and no limit
        return cls(most_bytes=min(there // _SHARE, _MOST_BYTES))

    def over(self, sizes: Mapping[int, int]) -> list[int]:
        """Which states must go: the largest first, and never the newest.

        Args:
            sizes: Memory that each state keeps for itself, by its number.
        """
        left, gone = sum(sizes.values()), []
        for number in sorted(sizes, key=lambda n: sizes[n], reverse=True):
            if left <= self.most_bytes:
                break
            if number != max(sizes):
                gone.append(number)
                left -= sizes[number]
        return gone


_SKIPPED = 8
_WEIGH_S = 0.2
_REMEMBERED = 1024


class SnapshotStore:
    """Parked forks of one tree of processes, in time.

    Attributes:
        forks: Those on the way to the present, the oldest first.
        undone: Those that were left by going back, the latest way last: each way begins with the state that
            was gone back to.
    """

    def __init__(self, *, slow_s: float, budget: Budget) -> None:
        """Start empty; after a fork that took longer than `slow_s`, some calls go without."""
        self.forks: list[ForkSnapshot] = []
        self.undone: list[list[ForkSnapshot]] = []
        self._slow_s, self._budget = slow_s, budget
        self._numbers = 0
        self._settling: set[ForkSnapshot] = set()
        self._pids: set[int] = set()  # of all forks, until they are buried
        self._skip = 0
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._weighing: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Shelf of {len(self.forks)} states, {sum(map(len, self.undone))} undone>"

    def all(self) -> list[ForkSnapshot]:
        """Every state, undone ones too."""
        return [*self.forks, *(fork for way in self.undone for fork in way)]

    @property
    def present(self) -> ForkSnapshot | None:
        """The state in which the worker is, if it went back and has not gone on yet."""
        return self.undone[-1][0] if self.undone and self.undone[-1] else None

    def pids(self) -> list[int]:
        """The processes that hold states."""
        return [fork.pid for fork in self.all() if fork.pid and not fork.refused]

    def why_not(self, call_id: str) -> str:
        """Why there is no state from before this call."""
        return self._gone.get(call_id, "none was kept for this call")

    def keep(self, link: WorkerConnection, call_id: str) -> None:
        """Have the worker fork before the call that is about to be sent; nobody waits for it."""
        if self._skip:
            self._skip -= 1
            self._note(call_id, "the last fork took so long that some calls went without")
            return
        try:
            fork = self.park(link, call_id)
        except SandboxError as error:
            self._note(call_id, str(error))
            return
        self.forks.append(fork)
        fork.settled.add_done_callback(lambda _: self._settled(fork))
        kept = thinned([f.number for f in self.forks])
        for old in [f for f in self.forks if f.number not in kept]:
            self.evict(old, "only some of the older states are kept")
        self._weigh_soon()

    def park(self, link: WorkerConnection, call_id: str) -> ForkSnapshot:
        """A fork of the present state, which is not on the shelf.

        Raises:
            SandboxError: If it cannot even be asked for.
        """
        ear = ForkSocket(lambda: link.supervisor)
        seen = fork_handle.glance(link.pid, self._pids)
        if not link.park(ear.theirs):
            ear.close(kill=False)
            raise SandboxError("the worker was busy with earlier messages")
        ear.theirs.close()
        self._numbers += 1
        self._pids &= {*seen.children, *self.pids()}
        fork = ForkSnapshot(
            self._numbers,
            call_id,
            ear,
            seen=seen.without(self._pids),
            shipped=set(link.shipped),
            siblings=tuple(self._settling),
        )
        self._settling.add(fork)
        fork.settled.add_done_callback(lambda _: self._known(fork))
        return fork

    def _known(self, fork: ForkSnapshot) -> None:
        self._settling.discard(fork)
        self._pids.add(fork.pid)

    def _settled(self, fork: ForkSnapshot) -> None:
        if fork.refused:
            self.evict(fork, fork.refused)
        elif fork.last_fork_s > self._slow_s:
            self._skip = _SKIPPED - 1

    def _weigh_soon(self) -> None:
        if self._weighing is None:
            self._weighing = asyncio.get_running_loop().call_later(_WEIGH_S, self._weigh)

    def _weigh(self) -> None:
        """Look how much memory the states take, in a thread, and end the largest if it is too much."""
        self._weighing = None
        forks = [fork for fork in self.all() if fork.settled.done()]
        weighing = asyncio.get_running_loop().run_in_executor(None, _weighed, forks)
        weighing.add_done_callback(lambda done: None if done.cancelled() else self._shed(done.result()))

    def _shed(self, sizes: dict[int, int]) -> None:
        over = set(self._budget.over(sizes))
        gone = [fork for fork in self.all() if fork.number in over]
        for fork in gone:
            self.evict(fork, "the states together took too much memory")
        if gone:
            self._weigh_soon()  # what those shared with others weighs on the others alone now

    def shed_all_but_last(self) -> bool:
        """Memory is short: give back what can be given; whether there was anything."""
        old = self.all()[:-1]
        for fork in old:
            self.evict(fork, "memory was short")
        return bool(old)

    def evict(self, fork: ForkSnapshot, reason: str) -> None:
        """Let one go."""
        self._note(fork.point.call_id, reason)
        for forks in (self.forks, *self.undone):
            if fork in forks and (forks is self.forks or forks[0] is not fork):
                forks.remove(fork)
        fork.drop(reason)

    def forget_undone(self) -> None:
        """The worker goes another way: what was undone cannot be done again."""
        ways, self.undone = self.undone, []
        for fork in (fork for way in ways for fork in way):
            self._note(fork.point.call_id, "it was undone, and another way was taken")
            fork.drop("it was undone")

    def clear(self, reason: str) -> None:
        """Let all go."""
        if self._weighing is not None:
            self._weighing.cancel()
            self._weighing = None
        for fork in self.all():
            self._note(fork.point.call_id, reason)
            fork.drop(reason)
        self.forks, self.undone = [], []
        self._skip = 0

    def _note(self, call_id: str, reason: str) -> None:
        self._gone[call_id] = reason
        if len(self._gone) > _REMEMBERED:
            self._gone.popitem(last=False)


def _weighed(forks: list[ForkSnapshot]) -> dict[int, int]:
    return {fork.number: fork.weigh() for fork in forks}


_LAST_WORDS_CHARS = 4000
_TAIL_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """A worker was woken in the place of one that ended.

    Attributes:
        point: The state in which it is.
        whole: Whether nothing is lost but what the calls under way had done.
    """

    point: VariablePoint
    whole: bool


def sentence(recovery: Recovery | None) -> str:
    """What became of the variables."""
    if recovery is None:
        return "Its variables are lost; the next call gets a fresh worker."
    point = recovery.point
    if recovery.whole:
        told = "The state is kept: the variables are as they were before this call."
    else:
        told = f"The variables are as they were before the call {point.call_id}; later changes are lost."
    return told + (f" Lost: {'; '.join(point.lost)}." if point.lost else "")


def metadata(recovery: Recovery | None) -> dict[str, Any]:
    """The same for programs."""
    if recovery is None:
        return {"state_kept": False}
    point = recovery.point
    told = {"state_kept": recovery.whole, "state_label": point.label, "state_before": point.call_id}
    return {**told, "state_lost": list(point.lost)} if point.lost else told


def died(error: WorkerDied, recovery: Recovery | None) -> ToolResult:
    """The result of a call during which the worker ended."""
    told = f"The sandbox's worker ended during the call: {error}. {sentence(recovery)}"
    if error.last_words:
        told += f"\nIts last words:\n{error.last_words[-_LAST_WORDS_CHARS:]}"
    result = ToolResult.error(told, error_kind="environment")
    return result.with_metadata(worker_died=True, **metadata(recovery))


def overdue(
    name: str, ran: str, printed: Mapping[str, str], *, gave: str | None, recovery: Recovery | None
) -> ToolResult:
    """The result of a call that was stopped at its deadline.

    Args:
        name: The tool.
        ran: How long it ran, in words.
        printed: What it had printed, by stream.
        gave: What it gave when it was interrupted; None if its worker had to be ended.
        recovery: What was had back then.
    """
    if gave is not None:
        told = [f"{name} was stopped: {ran}. The sandbox's variables are kept.", gave]
        kept: dict[str, Any] = {"state_kept": True}
    else:
        told = [f"{name} was stopped: {ran}. It could not be interrupted. {sentence(recovery)}"]
        told += [text[-_TAIL_CHARS:] for text in printed.values()]
        kept = metadata(recovery)
    result = ToolResult.error("\n".join(told), error_kind="failed")
    return result.with_metadata(timed_out=True, **kept, **printed)


_WAKE_S, _COPY_S, _TIDY_S, _STUCK_S = 1.0, 30.0, 1.0, 0.05
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LOAD = ToolPayload(key="load", import_path="aisotools.sandbox.worker.fork:load", concurrency="exclusive")


class Run(Protocol):
    """Runs a call; whoever asks holds the turn."""

    async def __call__(
        self, link: WorkerConnection, request: SandboxCall, attached: Sequence[int] = ()
    ) -> ToolResult:
        """Run it, with descriptors that go along."""


class CopiedVariables:
    """Variables in a file that has no name and cannot be changed any more."""

    def __init__(self, point: VariablePoint, file: int) -> None:
        """Hold `file`, a descriptor."""
        self._point, self.file = point, file

    @property
    def point(self) -> VariablePoint:
        """The state that was copied, and what could not be copied of it."""
        return self._point

    def close(self) -> None:
        """Let go of it."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class SnapshotHistory:
    """The history of one kernel's variables.

    Attributes:
        hope: What a recovery under way is about to bring back, as far as is known.
    """

    def __init__(
        self,
        turns: CallScheduler,
        *,
        ensure: Callable[[], Awaitable[WorkerConnection]],
        run: Run,
        renewed: Callable[[str, bool], None],
        slow_s: float,
        budget: Budget | None = None,
    ) -> None:
        """Keep states of the workers of one kernel.

        Args:
            turns: Who may use the worker when.
            ensure: Gives the worker's tree, started if there is none.
            run: Runs a call.
            renewed: Hears why another worker has taken the place of the one before, and whether anything is
                lost that nobody asked to undo.
            slow_s: After a fork that took longer, some calls go without.
            budget: How much memory the states may take; a share of the machine's without it.
        """
        self._turns, self._ensure, self._run, self._renewed = turns, ensure, run, renewed
        self._shelf = SnapshotStore(slow_s=slow_s, budget=budget or Budget.of_this_machine())
        self._link: WorkerConnection | None = None
        self._moving = asyncio.Lock()
        self._frozen: WorkerProcess | None = None
        self._waking = 0
        self.hope: Recovery | None = None

    def __repr__(self) -> str:
        return f"<Variables on {self._shelf!r}>"

    def points(self) -> Sequence[VariablePoint]:
        """The states that can be had back, the oldest first."""
        return [fork.point for fork in self._shelf.forks if not fork.settled.done() or fork.alive]

    def pids(self) -> list[int]:
        """Processes that belong to no call."""
        return [*self._shelf.pids(), self._waking] if self._waking else self._shelf.pids()

    async def settled(self) -> None:
        """Wait until every state that is being kept is known, so that `pids` has them all; not for long."""
        if settling := self._settling():
            await asyncio.wait(settling, timeout=_WAKE_S)

    def _settling(self) -> list[asyncio.Task[None]]:
        return [fork.settled for fork in self._shelf.all() if not fork.settled.done()]

    def before(self, link: WorkerConnection, call_id: str) -> None:
        """Before a call that may change the variables is sent: keep the state, without waiting for it."""
        if link is not self._link:
            self.clear("the worker of that time is gone")
            self._link = link
        if self._shelf.undone:
            self._forget_undone()
        self._shelf.keep(link, call_id)

    def clear(self, reason: str) -> None:
        """Every state is gone."""
        self._shelf.clear(reason)
        self._drop_frozen()
        self._link = None

    def shed(self) -> bool:
        """Memory is short: give up what is kept, but for the latest state; whether there was anything."""
        return self._shelf.shed_all_but_last()

    async def forget(self) -> None:
        """Drop every kept state; what was in them, secrets included, is gone for good."""
        async with self._turns.turn("exclusive"):
            self._shelf.clear("it was forgotten")
            self._drop_frozen()

    def _forget_undone(self) -> None:
        self._shelf.forget_undone()
        self._drop_frozen()

    def _drop_frozen(self) -> None:
        if self._frozen is not None:
            if self._link is not None:
                self._link.order("drop")
            self._frozen.close()
            self._frozen = None

    # ---- back

    async def restore(self, call_id: str) -> VariablePoint:
        """Have the state from before this call; see `VariableHistory.restore`."""
        async with self._turns.turn("exclusive"):
            link = await self._ensure()
            fork = await self._find(call_id)
            if fork.point.label == "data only":
                return await self._rescue(link, fork)
            async with self._moving:
                lost = await self._go_back(link, fork, source=fork)
            return _with_lost(fork.point, lost)

    async def _find(self, call_id: str) -> ForkSnapshot:
        fork = next((fork for fork in self._shelf.forks if fork.point.call_id == call_id), None)
        if fork is not None:
            await asyncio.shield(fork.settled)
        if fork is None or not fork.alive:
            reason = fork.refused if fork is not None and fork.refused else self._shelf.why_not(call_id)
            raise SandboxError(f"The variables from before the call {call_id!r} cannot be had: {reason}.")
        return fork

    async def _go_back(
        self, link: WorkerConnection, fork: ForkSnapshot, *, source: ForkSnapshot
    ) -> tuple[str, ...]:
        """Have a worker woken from `source` in the place of the present one, and `fork` and later undone."""
        ear, lost = await self._woken(link, source)
        first = not self._shelf.undone
        await self._clear_away(link, "freeze" if first else "end", ear)
        place = self._shelf.forks.index(fork)
        self._shelf.undone.append(self._shelf.forks[place:])
        del self._shelf.forks[place:]
        former = self._swap(
            link, ear, source, f"the call {fork.point.call_id} and what came after were undone"
        )
        if first:
            self._frozen = former
        else:
            former.close()
        return lost

    async def _woken(self, link: WorkerConnection, fork: ForkSnapshot) -> tuple[ForkSocket, tuple[str, ...]]:
        try:
            return await fork.wake(lambda: link.supervisor, within_s=_WAKE_S)
        except SandboxError as error:
            told = f"The variables from before the call {fork.point.call_id!r} cannot be had: {error}."
            raise SandboxError(told) from None

    async def _clear_away(self, link: WorkerConnection, op: str, woken: ForkSocket | None = None) -> None:
        """Have the present worker and all around it frozen or ended, but for what was woken."""
        link.leave()
        if not await self._tidy(link, op, woken.pid if woken is not None else 0):
            link.stay()
            if woken is not None:
                woken.close(kill=True)
            raise SandboxError("The present worker could not be stopped in time; nothing was changed.")

    async def _tidy(self, link: WorkerConnection, op: str, woken: int = 0) -> bool:
        self._waking = woken
        try:
            return await link.ask(op, within_s=_TIDY_S)
        finally:
            self._waking = 0

    def _swap(
        self, link: WorkerConnection, ear: ForkSocket, fork: ForkSnapshot, reason: str, *, lossy: bool = False
    ) -> WorkerProcess:
        end, pid, pidfd = ear.hand_over()
        former = link.swap(link.generation(end, pid=pid, pidfd=pidfd, shipped=set(fork.shipped)))
        self._renewed(reason, lossy)
        return former

    async def _rescue(self, link: WorkerConnection, fork: ForkSnapshot) -> VariablePoint:
        """Take the values into an earlier state, in which no library waits for threads that are gone."""
        copied = await self._copied(link, fork)
        try:
            for source in self._shelf.all():
                await asyncio.shield(source.settled)
                if source.alive and source.point.label == "exact":
                    break
            else:
                raise SandboxError("There is no earlier state into which the values could be taken.")
            async with self._moving:
                await self._go_back(link, fork, source=source)
            await self._take_over(link, copied)
        finally:
            copied.close()
        lost = (*fork.point.lost, *copied.point.lost)
        return VariablePoint(call_id=fork.point.call_id, label="data only", lost=lost)

    # ---- forth

    async def redo(self) -> VariablePoint | None:
        """Take the last `restore` back; see `VariableHistory.redo`."""
        async with self._turns.turn("exclusive"):
            link = await self._ensure()
            if not self._shelf.undone or link is not self._link:
                return None
            async with self._moving:
                way = self._shelf.undone[-1]
                if len(self._shelf.undone) > 1:
                    await self._redo_from(link, self._shelf.undone[-2][0])
                else:
                    await self._redo_frozen(link)
                self._shelf.undone.pop()
                self._shelf.forks += way
                return way[0].point

    async def _redo_from(self, link: WorkerConnection, source: ForkSnapshot) -> None:
        ear, _ = await self._woken(link, source)
        await self._clear_away(link, "end", ear)
        self._swap(link, ear, source, "an undone call was done again").close()

    async def _redo_frozen(self, link: WorkerConnection) -> None:
        if self._frozen is None:
            raise SandboxError("The state that was undone is gone.")
        await self._clear_away(link, "end")
        frozen, self._frozen = self._frozen, None
        former = link.swap(frozen)
        former.close()
        await self._tidy(link, "thaw")
        self._renewed("what was undone was done again", False)

    # ---- after a crash

    def can_recover(self, link: WorkerConnection) -> bool:
        """Whether there is a state to go back to."""
        return link is self._link and bool(self._shelf.forks or self._shelf.present)

    async def recover(self, link: WorkerConnection, reason: str, running: frozenset[str]) -> Recovery:
        """The worker is gone: have the latest state that can be had.

        Args:
            link: The tree.
            reason: Why the worker is gone.
            running: The calls that it took along.

        Raises:
            SandboxError: If there is none.
        """
        async with self._moving:
            if settling := self._settling():  # a worker that lives and does not listen will not fork any more
                stuck = tree.parent_of(link.pid)
                await asyncio.wait(settling, timeout=_STUCK_S if stuck else _WAKE_S)
            hopes = self._hopes(running)
            self.hope = hopes[0][1] if hopes else None
            try:
                if not await self._tidy(link, "end"):
                    raise SandboxError("what it had started could not be ended in time")
                for fork, self.hope in hopes:
                    try:
                        return await self._recover_from(link, fork, reason, whole=self.hope.whole)
                    except SandboxError as error:
                        self._shelf.evict(fork, str(error))
                raise SandboxError("no kept state could be woken")
            finally:
                self.hope = None

    def _hopes(self, running: frozenset[str]) -> list[tuple[ForkSnapshot, Recovery]]:
        """The states that recovery may wake, the best first, each with what would be told of it."""
        present = self._shelf.present
        found = []
        for fork in ([] if present is None else [present]) + self._shelf.forks[::-1]:
            if fork.alive and fork.point.label != "data only":
                whole = fork is present or fork.point.call_id in running
                found.append((fork, Recovery(point=fork.point, whole=whole)))
        return found

    async def _recover_from(
        self, link: WorkerConnection, fork: ForkSnapshot, reason: str, *, whole: bool
    ) -> Recovery:
        ear, lost = await self._woken(link, fork)
        told = f"{reason}; the variables are as they were before the call {fork.point.call_id}"
        self._swap(link, ear, fork, told, lossy=not whole).close()
        return Recovery(point=_with_lost(fork.point, lost), whole=whole)

    # ---- aside

    async def branch(self, call_id: str | None = None) -> VariableCopy:
        """A copy of a state, for another sandbox; see `VariableHistory.branch`."""
        async with self._turns.turn("exclusive"):
            link = await self._ensure()
            if call_id is not None:
                return await self._copied(link, await self._find(call_id))
            if link is not self._link:
                self.clear("the worker of that time is gone")
                self._link = link
            fork = self._shelf.park(link, "")
            try:
                return await self._copied(link, fork)
            finally:
                fork.drop("it was copied")

    async def _copied(self, link: WorkerConnection, fork: ForkSnapshot) -> CopiedVariables:
        file = os.memfd_create("variables", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            lost = await fork.copy(lambda: link.supervisor, file, within_s=_COPY_S)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)  # whoever wrote it may hold it still
        except (SandboxError, OSError) as error:
            os.close(file)
            raise SandboxError(f"The variables could not be copied: {error}.") from None
        told = VariablePoint(call_id=fork.point.call_id, label="data only", lost=lost)
        return CopiedVariables(told, file)

    async def load(self, copy: VariableCopy) -> VariablePoint:
        """Add the variables of a copy to those of this sandbox."""
        if not isinstance(copy, CopiedVariables) or copy.file < 0:
            raise SandboxError("This copy of variables is closed, or was made by another kind of sandbox.")
        async with self._turns.turn("exclusive"):
            await self._take_over(await self._ensure(), copy)
        return copy.point

    async def _take_over(self, link: WorkerConnection, copy: CopiedVariables) -> None:
        call = ToolCall(uuid.uuid4().hex, "load_variables", {})
        request = SandboxCall(call=call, shipment=_LOAD, timeout_s=_COPY_S)
        result = await self._run(link, request, [copy.file])
        if result.is_error:
            raise SandboxError(f"The variables could not be taken over: {result.content}")


def _with_lost(point: VariablePoint, lost: Sequence[str]) -> VariablePoint:
    """The point, with what was found to be lost when it was woken."""
    if not lost:
        return point
    return VariablePoint(
        call_id=point.call_id,
        label="partial" if point.label == "exact" else point.label,
        lost=(*point.lost, *(told for told in lost if told not in point.lost)),
        memory_bytes=point.memory_bytes,
    )
