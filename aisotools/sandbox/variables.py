"""The history of a worker's variables: going back, forth, and aside.

Implements `aisotools.contracts.VariableHistory` over parked forks. All states belong to one tree of
processes; when that is lost, so are they. The worker that is left by going back waits, frozen with all its
threads and children, until a call makes `redo` impossible.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from aisotools.contracts import SandboxCall, Shipment
from aisotools.events import ToolCall, ToolResult
from aisotools.exceptions import SandboxError
from aisotools.sandbox import processes
from aisotools.sandbox.fates import Recovery
from aisotools.sandbox.generation import Generation
from aisotools.sandbox.keeping import Budget
from aisotools.sandbox.link import Link
from aisotools.sandbox.parking import Ear, ParkedFork
from aisotools.sandbox.shelf import Shelf
from aisotools.sandbox.turns import Turns
from aisotools.variable_contracts import VariableCopy, VariablePoint

_WAKE_S, _COPY_S, _TIDY_S, _STUCK_S = 1.0, 30.0, 1.0, 0.05
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LOAD = Shipment(key="load", import_path="aisotools.sandbox.carry:load", concurrency="exclusive")


class Run(Protocol):
    """Runs a call; whoever asks holds the turn."""

    async def __call__(self, link: Link, request: SandboxCall, attached: Sequence[int] = ()) -> ToolResult:
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


class Variables:
    """The history of one kernel's variables.

    Attributes:
        hope: What a recovery under way is about to bring back, as far as is known.
    """

    def __init__(
        self,
        turns: Turns,
        *,
        ensure: Callable[[], Awaitable[Link]],
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
        self._shelf = Shelf(slow_s=slow_s, budget=budget or Budget.of_this_machine())
        self._link: Link | None = None
        self._moving = asyncio.Lock()
        self._frozen: Generation | None = None
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

    def before(self, link: Link, call_id: str) -> None:
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

    async def _find(self, call_id: str) -> ParkedFork:
        fork = next((fork for fork in self._shelf.forks if fork.point.call_id == call_id), None)
        if fork is not None:
            await asyncio.shield(fork.settled)
        if fork is None or not fork.alive:
            reason = fork.refused if fork is not None and fork.refused else self._shelf.why_not(call_id)
            raise SandboxError(f"The variables from before the call {call_id!r} cannot be had: {reason}.")
        return fork

    async def _go_back(self, link: Link, fork: ParkedFork, *, source: ParkedFork) -> tuple[str, ...]:
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

    async def _woken(self, link: Link, fork: ParkedFork) -> tuple[Ear, tuple[str, ...]]:
        try:
            return await fork.wake(lambda: link.supervisor, within_s=_WAKE_S)
        except SandboxError as error:
            told = f"The variables from before the call {fork.point.call_id!r} cannot be had: {error}."
            raise SandboxError(told) from None

    async def _clear_away(self, link: Link, op: str, woken: Ear | None = None) -> None:
        """Have the present worker and all around it frozen or ended, but for what was woken."""
        link.leave()
        if not await self._tidy(link, op, woken.pid if woken is not None else 0):
            link.stay()
            if woken is not None:
                woken.close(kill=True)
            raise SandboxError("The present worker could not be stopped in time; nothing was changed.")

    async def _tidy(self, link: Link, op: str, woken: int = 0) -> bool:
        self._waking = woken
        try:
            return await link.ask(op, within_s=_TIDY_S)
        finally:
            self._waking = 0

    def _swap(
        self, link: Link, ear: Ear, fork: ParkedFork, reason: str, *, lossy: bool = False
    ) -> Generation:
        end, pid, pidfd = ear.hand_over()
        former = link.swap(link.generation(end, pid=pid, pidfd=pidfd, shipped=set(fork.shipped)))
        self._renewed(reason, lossy)
        return former

    async def _rescue(self, link: Link, fork: ParkedFork) -> VariablePoint:
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

    async def _redo_from(self, link: Link, source: ParkedFork) -> None:
        ear, _ = await self._woken(link, source)
        await self._clear_away(link, "end", ear)
        self._swap(link, ear, source, "an undone call was done again").close()

    async def _redo_frozen(self, link: Link) -> None:
        if self._frozen is None:
            raise SandboxError("The state that was undone is gone.")
        await self._clear_away(link, "end")
        frozen, self._frozen = self._frozen, None
        former = link.swap(frozen)
        former.close()
        await self._tidy(link, "thaw")
        self._renewed("what was undone was done again", False)

    # ---- after a crash

    def can_recover(self, link: Link) -> bool:
        """Whether there is a state to go back to."""
        return link is self._link and bool(self._shelf.forks or self._shelf.present)

    async def recover(self, link: Link, reason: str, running: frozenset[str]) -> Recovery:
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
                stuck = processes.parent_of(link.pid)
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

    def _hopes(self, running: frozenset[str]) -> list[tuple[ParkedFork, Recovery]]:
        """The states that recovery may wake, the best first, each with what would be told of it."""
        present = self._shelf.present
        found = []
        for fork in ([] if present is None else [present]) + self._shelf.forks[::-1]:
            if fork.alive and fork.point.label != "data only":
                whole = fork is present or fork.point.call_id in running
                found.append((fork, Recovery(point=fork.point, whole=whole)))
        return found

    async def _recover_from(self, link: Link, fork: ParkedFork, reason: str, *, whole: bool) -> Recovery:
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

    async def _copied(self, link: Link, fork: ParkedFork) -> CopiedVariables:
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

    async def _take_over(self, link: Link, copy: CopiedVariables) -> None:
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
