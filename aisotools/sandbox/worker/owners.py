"""Objects that wait for threads or child processes which a fork does not have, found and made to fail.

Threat: a future's callback, or a property of a subclass of `Popen`, writes a file while an undo puts files
back, or waits for ever for a thread that is not there.
Mechanism: they are found while the fork still waits, and nothing of theirs is called for that: attributes are
read from where the interpreter keeps them. They are made to fail, which runs user code, when user code runs
again: in the next call.
Race: none; a fork that waits has one thread.
Failure: one that raises is reported, and the others are made to fail all the same.
"""

# ruff: noqa: SLF001 - what Python keeps for itself about threads, pools and children is what has to be mended
from __future__ import annotations

import functools
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.thread import BrokenThreadPool
from dataclasses import dataclass, field
from gc import freeze, get_freeze_count, get_objects, unfreeze
from subprocess import Popen
from typing import Any, NoReturn

from aisotools.sandbox.worker.user_hooks import report_exception

_LOST = "lost: it belonged to a state of the worker that was left by undo or recovery"


@dataclass(slots=True)
class Owners:
    """What waits for threads and child processes that are not there.

    Attributes:
        processes: Child processes that had not ended.
        pools: Pools of threads or processes that have started some, each with what makes it fail.
        futures: Futures whose functions were running.
        queues: Queues of `multiprocessing` that a thread of theirs had to send on.
    """

    processes: list[Any] = field(default_factory=list)
    pools: list[tuple[Any, Callable[[Any], None]]] = field(default_factory=list)
    futures: list[Any] = field(default_factory=list)
    queues: list[Any] = field(default_factory=list)

    @property
    def are_left(self) -> bool:
        """True if there are any that do not fail yet."""
        return bool(self.processes or self.pools or self.futures or self.queues)

    def describe(self) -> list[str]:
        """Return what is lost, for people; nothing about futures, whose pools are named."""
        lost = []
        if processes := len(self.processes):
            lost.append(f"{processes} child process{'es' if processes > 1 else ''}")
        if pools := len(self.pools):
            lost.append(f"{pools} pool{'s' if pools > 1 else ''} of threads or processes")
        return lost

    def break_all(self) -> None:
        """Make all of them fail at once instead of waiting for ever. Runs user code.

        What raises here is reported as Python does. After an interrupt the next time goes on behind it.
        """
        while self.processes:
            _try(_break_process, self.processes.pop())
        while self.pools:
            pool, make_fail = self.pools.pop()
            _try(make_fail, pool)
        while self.queues:
            _try(_mend_queue, self.queues.pop())
        while self.futures:  # last: those of a pool have failed with it
            _try(_break_future, self.futures.pop())


def _try(act: Callable[[Any], None], owner: Any) -> None:
    try:
        act(owner)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a subclass may do anything
        report_exception()


def find_owners() -> Owners:
    """Return what waits for threads and processes other than the present ones. Runs no user code."""
    found = Owners()
    process_pool = _class_of("concurrent.futures.process", "ProcessPoolExecutor")
    other_pool = _class_of("multiprocessing.pool", "Pool")
    queue = _class_of("multiprocessing.queues", "Queue")
    if is_frozen := get_freeze_count() > 0:
        unfreeze()  # or what is frozen would not be among the objects
    objects = get_objects()
    if is_frozen:
        freeze()
    for obj in objects:
        kind = type(obj)  # not isinstance: a proxy of user code would run user code
        if issubclass(kind, Popen):
            attributes = _attributes(obj, Popen)
            if attributes.get("returncode") is None and attributes.get("pid") is not None:
                found.processes.append(obj)
        elif issubclass(kind, ThreadPoolExecutor):
            threads = _attributes(obj, Executor).get("_threads")
            if type(threads) is set and threads:
                found.pools.append((obj, _break_thread_pool))
        elif issubclass(kind, Future):
            state = _attributes(obj, Future).get("_state")
            if type(state) is str and state == "RUNNING":
                found.futures.append(obj)
        elif process_pool is not None and issubclass(kind, process_pool):
            if _attributes(obj, Executor).get("_executor_manager_thread") is not None:
                found.pools.append((obj, _break_process_pool))
        elif other_pool is not None and issubclass(kind, other_pool):
            found.pools.append((obj, _break_other_pool))
        elif (
            queue is not None
            and issubclass(kind, queue)
            and _attributes(obj, queue).get("_thread") is not None
        ):
            found.queues.append(obj)
    return found


def _attributes(obj: object, kind: type[Any]) -> Mapping[str, Any]:
    """Return what an object has for itself, by the class that gave it the place for that."""
    # Not `vars`, nor the attribute itself: a class of user code may have properties of those names.
    own = next((base for base in kind.__mro__ if "__dict__" in vars(base)), None)
    return {} if own is None else vars(own)["__dict__"].__get__(obj)


def _class_of(module_name: str, name: str) -> type[Any] | None:
    """Return a class of a module that is loaded; None if it is not, or something else is there."""
    module = sys.modules.get(module_name)
    kind = vars(module).get(name) if isinstance(module, types.ModuleType) else None
    return kind if type(kind) is type else None


def _break_process(process: Any) -> None:
    # The child belongs to the other worker. waitpid() fails here, for which subprocess assumes exit status 0:
    # a lie.
    def fail(*_: object, **__: object) -> NoReturn:
        raise ChildProcessError(f"The process {process.args!r} (pid {process.pid}) is {_LOST}.")

    process._child_created = False  # its finaliser must not try to reap it
    process._internal_poll = process._wait = fail


def _break_process_pool(pool: Any) -> None:
    process = sys.modules["concurrent.futures.process"]
    pool._broken = f"The processes of this pool are {_LOST}. Make a new pool."
    pool._shutdown_lock = threading.Lock()  # as for a pool of threads
    pool._processes = {}
    pending, pool._pending_work_items = pool._pending_work_items, {}
    for item in pending.values():
        error = process.BrokenProcessPool(pool._broken)
        # Those that were about to be sent to a process count as running already.
        act = _break_future if item.future.running() else _fail
        _try(functools.partial(act, error=error), item.future)


def _break_other_pool(pool: Any) -> None:
    pool._state = "TERMINATE"
    pool._pool = []  # its processes are children of the other worker: nobody can wait for them here
    results, pool._cache = pool._cache, {}
    error = BrokenThreadPool(f"The threads or processes of this pool are {_LOST}. Make a new pool.")
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


def _mend_queue(queue: Any) -> None:
    # As `multiprocessing` does in a process that it forks itself: the next object starts another thread.
    queue._after_fork()


def _break_future(future: Any, *, error: Exception | None = None) -> None:
    if not future.done():  # a callback of another one may have ended it
        future.set_exception(error or BrokenThreadPool(_LOST))


def _break_thread_pool(pool: Any) -> None:
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
            error = BrokenThreadPool(pool._broken)
            _try(functools.partial(_fail, error=error), item.future)


def _fail(future: Any, *, error: Exception) -> None:
    # As an executor does: one that was cancelled meanwhile has its waiters told.
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
