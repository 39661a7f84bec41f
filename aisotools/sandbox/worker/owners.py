"""Objects that wait for threads or child processes which a fork does not have, found and made to fail.

Threat: a future's callback, or a property of a subclass of `Popen`, writes a file while an undo puts files
back, or waits for ever for a thread that is not there.
Mechanism: they are found while the fork still waits, and nothing of theirs is called for that: attributes are
read from where the interpreter keeps them, and names are compared with plain texts alone. They are made to
fail, which runs user code, when user code runs again. All have failed before the first callback is called,
since it may wait for another one.
Race: none; a fork that waits has one thread.
Failure: one that raises is reported, and the others are made to fail all the same. A future that no pool
runs, and a pool of a library that is not listed here, wait for a missing thread until they are interrupted.
"""

# ruff: noqa: SLF001 - what Python keeps for itself about threads, pools and children is what has to be mended
from __future__ import annotations

import subprocess
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.thread import BrokenThreadPool, _WorkItem
from dataclasses import dataclass, field
from gc import freeze, get_freeze_count, get_objects, unfreeze
from subprocess import Popen
from typing import Any, NoReturn, cast

from aisotools.sandbox.worker.user_hooks import report_exception

_Lost = Iterator[tuple[Any, Exception]]
"""Futures that nobody will end, each with its error."""
_Look = Callable[["Owners", Any, Mapping[str, Any]], None]
"""Notes an object, by its attributes, if it waits for what is not there."""

_LOST = "lost: it belonged to a state of the worker that was left by undo or recovery"
_POOL_LOST = f"The threads or processes of this pool are {_LOST}. Make a new pool."

# Modules with pools of one kind. Those of `joblib` and `dill` are made like those of the standard library.
_PROCESS_POOLS = (
    "concurrent.futures.process",
    "loky.process_executor",
    "joblib.externals.loky.process_executor",
)
_OTHER_POOLS = "multiprocessing.pool", "multiprocess.pool", "billiard.pool"
_QUEUES = "multiprocessing.queues", "multiprocess.queues", "billiard.queues"

# The one that imports fill: user code may put another mapping in its place.
_loaded = sys.modules


@dataclass(slots=True)
class Owners:
    """What waits for threads and child processes that are not there.

    Attributes:
        processes: Child processes that had not ended.
        pools: Pools of threads or processes that have started some, each with what makes it fail.
        open_pools: How many of them take work.
        futures: Futures that were running or waited for their turn, each with its error.
        queues: Queues of `multiprocessing` from which a thread of theirs sends.
        named_queues: How many of them are not a pool's own.
        callbacks: What is to be called with futures that have failed.
    """

    processes: list[Any] = field(default_factory=list)
    pools: list[tuple[Any, Callable[[Any], _Lost]]] = field(default_factory=list)
    open_pools: int = 0
    futures: deque[tuple[Any, Exception]] = field(default_factory=deque)
    queues: list[Any] = field(default_factory=list)
    named_queues: int = 0
    callbacks: deque[tuple[Callable[[Any], object], Any]] = field(default_factory=deque)

    @property
    def are_left(self) -> bool:
        """True if there are any that do not fail yet."""
        return bool(self.processes or self.pools or self.futures or self.queues or self.callbacks)

    def describe(self) -> list[str]:
        """Return what is lost, for people; nothing about futures, whose pools are named."""
        lost = []
        if processes := len(self.processes):
            lost.append(f"{processes} child process{'es' if processes > 1 else ''}")
        if self.open_pools:
            lost.append(f"{self.open_pools} pool{'s' if self.open_pools > 1 else ''} of threads or processes")
        if self.named_queues:
            lost.append(f"{self.named_queues} queue{'s' if self.named_queues > 1 else ''} between processes")
        return lost

    def break_all(self) -> None:
        """Make all of them fail at once instead of waiting for ever. Runs user code.

        What raises here is reported as Python does. After an interrupt the next time goes on behind it.
        """
        while self.processes:
            _try(_break_process, self.processes.pop())
        while self.queues:
            _try(_break_queue, self.queues.pop())
        while self.pools:
            pool, lose_work = self.pools.pop()
            _try(lambda pool: self.futures.extend(lose_work(pool)), pool)  # noqa: B023 - called at once
        while self.futures:
            _try(lambda lost: self.callbacks.extend(_end_future(*lost)), self.futures.popleft())
        while self.callbacks:
            callback, future = self.callbacks.popleft()
            _try(callback, future)


def _try(act: Callable[[Any], object], owner: Any) -> None:
    try:
        act(owner)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a subclass may do anything
        report_exception()


# ---- finding them: no user code runs


def find_owners() -> Owners:
    """Return what waits for threads and processes other than the present ones. Runs no user code."""
    found = Owners()
    kinds = _kinds_of_owners()
    # By its number: a class of user code may say itself what it is equal to.
    known: dict[int, tuple[type[Any], _Look] | None] = {}
    if is_frozen := get_freeze_count() > 0:
        unfreeze()  # or what is frozen would not be among the objects
    objects = get_objects()
    if is_frozen:
        freeze()
    for obj in objects:
        kind = type(obj)  # not isinstance: a proxy of user code would run user code
        if id(kind) not in known:
            known[id(kind)] = next((one for one in kinds if issubclass(kind, one[0])), None)
        if (way := known[id(kind)]) is not None:
            base, look = way
            look(found, obj, _attributes(obj, base))
    return found


def _kinds_of_owners() -> list[tuple[type[Any], _Look]]:
    """Return the classes of what may wait, each with what looks at one of its objects."""
    kinds: list[tuple[type[Any], _Look]] = [
        (Popen, _look_at_process),
        (ThreadPoolExecutor, _look_at_thread_pool),
        (_WorkItem, _look_at_work),
    ]
    modules = _with_plain_names(_loaded)
    for names, name, look in (
        (_PROCESS_POOLS, "ProcessPoolExecutor", _look_at_process_pool),
        (_OTHER_POOLS, "Pool", _look_at_other_pool),
        (_QUEUES, "Queue", _look_at_queue),
    ):
        for module in map(modules.get, names):
            # Something else may be there in their places.
            kind = _with_plain_names(vars(module)).get(name) if type(module) is types.ModuleType else None
            if type(kind) is type:
                kinds.append((kind, look))
    return kinds


def _attributes(obj: object, base: type[Any]) -> dict[str, Any]:
    """Return what an object has for itself, by the class of a library that gave it the place for that."""
    # Not `vars`, nor the attribute itself: a class of user code may have properties of those names.
    own = next((one for one in base.__mro__ if "__dict__" in vars(one)), None)
    return {} if own is None else _with_plain_names(vars(own)["__dict__"].__get__(obj))


def _with_plain_names(names: object) -> dict[str, Any]:
    """Return what a dictionary has by plain texts: comparing with any other key may run user code."""
    if not issubclass(type(names), dict):
        return {}
    items = dict.items(cast("dict[Any, Any]", names))
    return {name: value for name, value in items if type(name) is str}


def _look_at_process(found: Owners, process: Any, attributes: Mapping[str, Any]) -> None:
    if attributes.get("returncode") is None and attributes.get("pid") is not None:
        found.processes.append(process)


def _look_at_thread_pool(found: Owners, pool: Any, attributes: Mapping[str, Any]) -> None:
    threads = attributes.get("_threads")
    if type(threads) is set and threads:
        found.pools.append((pool, _break_thread_pool))
        found.open_pools += attributes.get("_shutdown") is not True


def _look_at_work(found: Owners, _work: Any, attributes: Mapping[str, Any]) -> None:
    """Note the future of what a missing thread of a pool was running. No pool refers to it."""
    future = attributes.get("future")
    if issubclass(type(future), Future):
        state = _attributes(future, Future).get("_state")
        if type(state) is str and state == "RUNNING":
            found.futures.append((future, BrokenThreadPool(_LOST)))


def _look_at_process_pool(found: Owners, pool: Any, attributes: Mapping[str, Any]) -> None:
    if attributes.get("_executor_manager_thread") is not None:
        found.pools.append((pool, _break_process_pool))
        found.open_pools += attributes.get("_shutdown_thread") is not True


def _look_at_other_pool(found: Owners, pool: Any, attributes: Mapping[str, Any]) -> None:
    found.pools.append((pool, _break_other_pool))
    state = attributes.get("_state")
    found.open_pools += type(state) is str and state == "RUN"


def _look_at_queue(found: Owners, queue: Any, attributes: Mapping[str, Any]) -> None:
    if attributes.get("_thread") is not None:
        found.queues.append(queue)
        found.named_queues += "pending_work_items" not in attributes


# ---- making them fail: user code may run


def _break_process(process: Any) -> None:
    # The child belongs to the other worker. waitpid() fails here, for which subprocess assumes exit status 0:
    # a lie.
    def fail(*_: object, **__: object) -> NoReturn:
        raise ChildProcessError(f"The process {process.args!r} (pid {process.pid}) is {_LOST}.")

    process._child_created = False  # its finaliser must not try to reap it
    # Nor may the start of any other program: that asks for the end of each which was dropped while it ran.
    active = vars(subprocess)["_active"]
    active[:] = [one for one in active if one is not process]
    process._internal_poll = process._wait = fail


def _break_queue(queue: Any) -> None:
    # Its pipe is shared with the other worker: what that has sent may come here, and half of an object too.
    def fail(*_: object, **__: object) -> NoReturn:
        raise ValueError(f"This queue is {_LOST}. Make a new queue.")

    queue._after_fork()  # as in a process that `multiprocessing` forks: a missing thread may hold its lock
    queue._closed = True
    queue.put = queue.get = queue.qsize = queue.empty = queue.full = fail


def _break_process_pool(pool: Any) -> _Lost:
    error = _loaded["concurrent.futures.process"].BrokenProcessPool(_POOL_LOST)
    pool._shutdown_lock = threading.Lock()  # as for a pool of threads
    if flags := vars(pool).get("_flags"):  # of `loky`
        flags.shutdown_lock, flags.shutdown, flags.broken = pool._shutdown_lock, True, error
    else:
        pool._broken = _POOL_LOST
    pool._processes = {}
    pool._executor_manager_thread = None
    pending, pool._pending_work_items = pool._pending_work_items, {}
    for item in pending.values():
        yield item.future, error


def _break_other_pool(pool: Any) -> _Lost:
    pool._state = "TERMINATE"
    pool._pool = []  # its processes are children of the other worker: nobody can wait for them here
    results, pool._cache = pool._cache, {}
    error = BrokenThreadPool(_POOL_LOST)
    for result in results.values():
        # A missing thread may have held the lock of any of these: they get new ones.
        if "_items" in vars(result):  # of `imap`
            result._cond = threading.Condition(threading.Lock())
            result._items = deque([*result._items, (False, error)])
            result._length = result._index
        else:
            result._success, result._value = False, error
            result._event = threading.Event()
            result._event.set()
    yield from ()  # they have no futures


def _break_thread_pool(pool: Any) -> _Lost:
    pool._threads.clear()
    # A thread that is missing here may have held the lock at the fork: nobody would ever release it.
    pool._shutdown_lock = threading.Lock()
    pool._broken = f"The threads of this pool are {_LOST}. Make a new pool."
    while True:
        try:
            item = pool._work_queue.get_nowait()
        except Exception:  # empty; after any other error nothing more can be taken either
            return
        if item is not None:
            yield item.future, BrokenThreadPool(pool._broken)


def _end_future(future: Any, error: Exception) -> list[tuple[Callable[[Any], object], Any]]:
    """Make a future fail. Return what is to be called for that, with the future."""
    # A missing thread may have held its lock, and nobody waits for it: there are no other threads.
    future._condition = threading.Condition()
    if future._state == "CANCELLED":
        # As an executor does: those that wait for several futures are told of it.
        Future.set_running_or_notify_cancel(future)
    if Future.done(future):
        return []
    callbacks, future._done_callbacks = future._done_callbacks, []
    Future.set_exception(future, error)
    return [(callback, future) for callback in callbacks]
