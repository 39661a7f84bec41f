"""The kept states of a worker: which there are, what they weigh, and why others are not there."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from aisotools.exceptions import SandboxError
from aisotools.sandbox import labels
from aisotools.sandbox.keeping import Budget, thinned
from aisotools.sandbox.link import Link
from aisotools.sandbox.parking import Ear, ParkedFork

_SKIPPED = 8
_WEIGH_S = 0.2
_REMEMBERED = 1024


class Shelf:
    """Parked forks of one tree of processes, in time.

    Attributes:
        forks: Those on the way to the present, the oldest first.
        undone: Those that were left by going back, the latest way last: each way begins with the state that
            was gone back to.
    """

    def __init__(self, *, slow_s: float, budget: Budget) -> None:
        """Start empty; after a fork that took longer than `slow_s`, some calls go without."""
        self.forks: list[ParkedFork] = []
        self.undone: list[list[ParkedFork]] = []
        self._slow_s, self._budget = slow_s, budget
        self._numbers = 0
        self._settling: set[ParkedFork] = set()
        self._pids: set[int] = set()  # of all forks, until they are buried
        self._skip = 0
        self._gone: OrderedDict[str, str] = OrderedDict()
        self._weighing: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Shelf of {len(self.forks)} states, {sum(map(len, self.undone))} undone>"

    def all(self) -> list[ParkedFork]:
        """Every state, undone ones too."""
        return [*self.forks, *(fork for way in self.undone for fork in way)]

    @property
    def present(self) -> ParkedFork | None:
        """The state in which the worker is, if it went back and has not gone on yet."""
        return self.undone[-1][0] if self.undone and self.undone[-1] else None

    def pids(self) -> list[int]:
        """The processes that hold states."""
        return [fork.pid for fork in self.all() if fork.pid and not fork.refused]

    def why_not(self, call_id: str) -> str:
        """Why there is no state from before this call."""
        return self._gone.get(call_id, "none was kept for this call")

    def keep(self, link: Link, call_id: str) -> None:
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

    def park(self, link: Link, call_id: str) -> ParkedFork:
        """A fork of the present state, which is not on the shelf.

        Raises:
            SandboxError: If it cannot even be asked for.
        """
        ear = Ear(lambda: link.supervisor)
        seen = labels.glance(link.pid, self._pids)
        if not link.park(ear.theirs):
            ear.close(kill=False)
            raise SandboxError("the worker was busy with earlier messages")
        ear.theirs.close()
        self._numbers += 1
        self._pids &= {*seen.children, *self.pids()}
        fork = ParkedFork(
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

    def _known(self, fork: ParkedFork) -> None:
        self._settling.discard(fork)
        self._pids.add(fork.pid)

    def _settled(self, fork: ParkedFork) -> None:
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

    def evict(self, fork: ParkedFork, reason: str) -> None:
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


def _weighed(forks: list[ParkedFork]) -> dict[int, int]:
    return {fork.number: fork.weigh() for fork in forks}
