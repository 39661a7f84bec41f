"""Libraries that the fork server imports once, so that no worker has to: named by `AISOTOOLS_PRELOAD`.

They are imported before any thread exists, and shared with every worker by copy-on-write. Each is tried first
in a process of its own: one that leaves threads running cannot be forked safely, and one that fails or hangs
must not take the fork server along. Workers import what was left out themselves, as always.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from aisotools.core.exceptions import SandboxError

PRELOAD_VARIABLE = "AISOTOOLS_PRELOAD"
"""Environment variable that names modules, separated by commas or blanks."""

_TRIAL_TIMEOUT_S = 8.0  # for all trials together: well within what a start may take
_THREADS_END_S = 0.3  # a thread that was asked to end at a fork needs a moment
_REASON_BYTES = 300
_TASKS = "/proc/self/task"

# Threads that survive a fork by themselves: pyarrow's allocator starts this one again in the child.
_FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})


def requested_modules(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules that `environ` asks to preload, each once.

    Raises:
        SandboxError: An entry is not the name of a module.
    """
    names = re.split(r"[,\s]+", environ.get(PRELOAD_VARIABLE, "").strip())
    modules = tuple(dict.fromkeys(filter(None, names)))
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            raise SandboxError(
                f"{PRELOAD_VARIABLE} names {name!r}, which is not a module. Write it like `numpy,pandas`."
            )
    return modules


def preload_modules(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Import the modules that can be shared with forks.

    Args:
        names: The modules.
        environ: Environment variables for the time of the imports, as a worker would have them.

    Returns:
        For each name why it was left out; empty if it was imported.

    Raises:
        SandboxError: Threads are left in this process although no trial left any. It must not be forked.
    """
    before = dict(os.environ)
    folder = tempfile.mkdtemp()
    deadline_s = time.monotonic() + _TRIAL_TIMEOUT_S
    reasons = dict.fromkeys(names, "")
    # Libraries read and write settings in the home folder while they are imported: not in the user's.
    os.environ.update({**environ, "HOME": folder, "MPLCONFIGDIR": folder, "IPYTHONDIR": folder})
    try:
        # The usual case costs one trial. Only after a failure is each tried alone, to find the culprit.
        all_fit = not _try_in_fork(names, deadline_s)
        for name in names:
            if not all_fit:
                reasons[name] = _missing_reason(name) or _try_in_fork([name], deadline_s)
            if not reasons[name]:
                importlib.import_module(name)
    finally:
        os.environ.clear()
        os.environ.update(before)
        # Race: a process that an import left running may still write there. What stays does no harm.
        shutil.rmtree(folder, ignore_errors=True)
    if threads := _remaining_threads():
        raise SandboxError(f"After importing {', '.join(names)} {threads} threads were left.")
    return reasons


def reset_inherited_state() -> None:
    """Replace what preloaded libraries inherited from the fork server. Call it once the environment is set.

    Every fork of one server has the same state of random numbers, and a cache of the server's folders.
    """
    if (random_module := sys.modules.get("numpy.random")) is not None:
        random_module.seed()
    if (matplotlib := sys.modules.get("matplotlib")) is not None:
        # Both cache the folder they found at import, which was removed right after it.
        matplotlib.get_configdir = matplotlib.get_cachedir = _matplotlib_folder  # type: ignore[attr-defined]  # its own


def _matplotlib_folder() -> str:
    folder = os.environ["MPLCONFIGDIR"]
    os.makedirs(folder, exist_ok=True)
    return folder


def _missing_reason(name: str) -> str:
    found = importlib.util.find_spec(name.partition(".")[0])
    return "" if found is not None else "it is not installed"


def _try_in_fork(names: Sequence[str], deadline_s: float) -> str:
    """Import in a fork. Return why these modules must not be imported here, or an empty text."""
    # The import may crash, exit, hang or leave threads running, and it cannot be taken back.
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _report_trial(names, writing)
    # Race: parent and child run in any order, so both make the group, as shells do. The parent must not find
    # none to kill while the child, which is about to make it, imports what never ends.
    with contextlib.suppress(ProcessLookupError):
        os.setpgid(pid, pid)
    os.close(writing)
    try:
        if not select.select([reading], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            return f"its import took longer than {_TRIAL_TIMEOUT_S:g} s"
        answer = os.read(reading, _REASON_BYTES).decode("utf-8", "replace")
    finally:
        os.close(reading)
        # The whole group: the import may have started programs, which outlive it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    # End of file without an answer: the import called exit or crashed.
    return answer.removeprefix("ok") if answer else "its import ended the process"


def _report_trial(names: Sequence[str], writing: int) -> NoReturn:
    # A group of its own, so that programs which the import starts are killed with it; see `_try_in_fork`.
    os.setpgid(0, 0)
    try:
        for name in names:
            importlib.import_module(name)
        threads = _remaining_threads()
        answer = f"it leaves threads running ({threads}), which a fork would lose" if threads else "ok"
    except BaseException as error:
        # SystemExit and KeyboardInterrupt as well: a module may do anything at import, and this fork must
        # report that and end, not unwind into the server whose copy it is.
        answer = f"its import failed with {type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        os.write(writing, answer.encode("utf-8", "replace")[:_REASON_BYTES])
    os._exit(0)


def _remaining_threads() -> int:
    """Return how many threads beside this one a fork would lose."""
    # Libraries such as OpenBLAS end their threads in a fork handler, and start them again when they are
    # needed. So fork once before counting.
    # The child ends without running anything: only the handlers of the fork are wanted.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline_s = time.monotonic() + _THREADS_END_S
    while (threads := _count_threads()) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    return threads


def _count_threads() -> int:
    me = os.getpid()
    count = 0
    for task in os.listdir(_TASKS):
        with contextlib.suppress(OSError), open(f"{_TASKS}/{task}/comm", encoding="utf-8") as file:
            if int(task) != me and file.read().strip() not in _FORK_SAFE_THREADS:
                count += 1
    return count
