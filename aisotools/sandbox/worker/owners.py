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

import concurrent.futures
import gc
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Mapping
from concurrent.futures.thread import BrokenThreadPool
from dataclasses import dataclass, field
from typing import Any, NoReturn

_LOST = "lost: it belonged to a state of the worker that was left by undo or recovery"


@dataclass(slots=True)
class Owners:
    """What waits for threads and child processes that are not there.

    Attributes:
        processes: Child processes that had not ended.
        pools: Pools of threads of `concurrent.futures` that have started some.
        futures: Futures whose functions were running.
        others: Pools of `multiprocessing`.
    """

    processes: list[Any] = field(default_factory=list)
    pools: list[Any] = field(default_factory=list)
    futures: list[Any] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)

    @property
    def are_left(self) -> bool:
        """True if there are any that do not fail yet."""
        return bool(self.processes or self.pools or self.futures or self.others)

    def describe(self) -> list[str]:
        """Return what is lost, for people; nothing about futures, whose pools are named."""
        lost = []
        if processes := len(self.processes):
            lost.append(f"{processes} child process{'es' if processes > 1 else ''}")
        if pools := len(self.pools) + len(self.others):
            lost.append(f"{pools} pool{'s' if pools > 1 else ''} of threads or processes")
        return lost

    def break_all(self) -> None:
        """Make all of them fail at once instead of waiting for ever. Runs user code.

        What raises here is reported as Python does. After an interrupt the next time goes on behind it.
        """
        for waiting, make_fail in (
            (self.processes, _break_process),
            (self.pools, _break_thread_pool),
            (self.others, _break_other_pool),
            (self.futures, _break_future),
        ):
            while waiting:
                owner = waiting.pop()
                try:
                    make_fail(owner)
                except KeyboardInterrupt:
                    raise
                except BaseException:  # a subclass may do anything
                    traceback.print_exc()


def find_owners() -> Owners:
    """Return what waits for threads and processes other than the present ones. Runs no user code."""
    found = Owners()
    other_pool = _multiprocessing_pool()
    for obj in gc.get_objects():
        kind = type(obj)  # not isinstance: a proxy of user code would run user code
        if issubclass(kind, subprocess.Popen):
            attributes = _attributes(obj, subprocess.Popen)
            if attributes.get("returncode") is None and attributes.get("pid") is not None:
                found.processes.append(obj)
        elif issubclass(kind, concurrent.futures.ThreadPoolExecutor):
            threads = _attributes(obj, concurrent.futures.Executor).get("_threads")
            if type(threads) is set and threads:
                found.pools.append(obj)
        elif issubclass(kind, concurrent.futures.Future):
            state = _attributes(obj, concurrent.futures.Future).get("_state")
            if type(state) is str and state == "RUNNING":
                found.futures.append(obj)
        elif other_pool is not None and issubclass(kind, other_pool):
            found.others.append(obj)
    return found


def _attributes(obj: object, kind: type[Any]) -> Mapping[str, Any]:
    """Return what an object has for itself, by the class that gave it the place for that."""
    # Not `vars`, nor the attribute itself: a class of user code may have properties of those names.
    found: Mapping[str, Any] = vars(kind)["__dict__"].__get__(obj)
    return found


def _multiprocessing_pool() -> type[Any] | None:
    module = sys.modules.get("multiprocessing.pool")
    kind = vars(module).get("Pool") if isinstance(module, types.ModuleType) else None
    return kind if type(kind) is type else None


def _break_process(process: Any) -> None:
    # The child belongs to the other worker. waitpid() fails here, for which subprocess assumes exit status 0:
    # a lie.
    def fail(*_: object, **__: object) -> NoReturn:
        raise ChildProcessError(f"The process {process.args!r} (pid {process.pid}) is {_LOST}.")

    process._child_created = False  # its finaliser must not try to reap it
    process._internal_poll = process._wait = fail


def _break_other_pool(pool: Any) -> None:
    pool._state = "TERMINATE"


def _break_future(future: Any) -> None:
    if not future.done():  # a callback of another one may have ended it
        future.set_exception(BrokenThreadPool(_LOST))


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
            item.future.set_exception(BrokenThreadPool(pool._broken))
