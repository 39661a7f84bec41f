"""Libraries that the fork server imports, so that no worker has to: named by `AISOTOOLS_PRELOAD`.

They are imported before any thread exists and shared with every worker. Each is tried first in a process of
its own: one that leaves threads behind cannot be forked safely, one that fails or hangs must not take the
fork server along. What was tried and left out is told, and workers import it themselves as always.

The list belongs to the process, as its one fork server does: `AISOTOOLS_PRELOAD="numpy pandas"`.
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

from aisotools.exceptions import SandboxError

ENVIRONMENT_NAME = "AISOTOOLS_PRELOAD"
"""Names modules, separated by commas or blanks."""

_TRIALS_S = 8.0  # all of them: well within what a start may take
_ENDING_S = 0.3
_REASON_BYTES = 300
_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})  # pyarrow's allocator starts it again in a fork
_TASKS = "/proc/self/task"


def wanted(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The modules that `environ` asks for, each once.

    Raises:
        SandboxError: If one is no name of a module.
    """
    names = tuple(dict.fromkeys(re.split(r"[,\s]+", environ.get(ENVIRONMENT_NAME, "").strip())))
    for name in filter(None, names):
        if not all(part.isidentifier() for part in name.split(".")):
            told = f"{ENVIRONMENT_NAME} names {name!r}, which is no module. Write it like `numpy,pandas`."
            raise SandboxError(told)
    return tuple(filter(None, names))


def preload(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Import what can be; why not, for each name, or an empty text.

    Args:
        names: The modules.
        environ: What they find in the environment meanwhile, as they would in a worker.
    """
    before, folder = dict(os.environ), tempfile.mkdtemp()
    deadline_s = time.monotonic() + _TRIALS_S
    told = dict.fromkeys(names, "")
    os.environ.update({**environ, "HOME": folder, "MPLCONFIGDIR": folder, "IPYTHONDIR": folder})
    try:
        together = not _trial(names, deadline_s)
        for name in names:
            told[name] = "" if together else _missing(name) or _trial([name], deadline_s)
            if not told[name]:
                importlib.import_module(name)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(folder, ignore_errors=True)
    if threads := _threads_left():
        raise SandboxError(f"After importing {', '.join(names)} {threads} threads were left.")
    return told


def renew() -> None:
    """In a worker whose environment is set: mend what preloaded libraries took from the fork server."""
    if (numbers := sys.modules.get("numpy.random")) is not None:
        numbers.seed()
    if (plots := sys.modules.get("matplotlib")) is not None:
        plots.get_configdir = plots.get_cachedir = _matplotlib_folder  # type: ignore[attr-defined]  # its own


def _matplotlib_folder() -> str:
    folder = os.environ["MPLCONFIGDIR"]
    os.makedirs(folder, exist_ok=True)
    return folder


def _missing(name: str) -> str:
    found = importlib.util.find_spec(name.partition(".")[0])
    return "" if found is not None else "it is not installed"


def _trial(names: Sequence[str], deadline_s: float) -> str:
    """Import in a process of its own; why that must not be done here, or an empty text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _try(names, writing)
    os.close(writing)
    try:
        if not select.select([reading], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            return f"its import took longer than {_TRIALS_S:g} s"
        said = os.read(reading, _REASON_BYTES).decode("utf-8", "replace")
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # with whatever it started
        os.waitpid(pid, 0)
    return said.removeprefix("ok") if said else "its import ended the process"


def _try(names: Sequence[str], writing: int) -> NoReturn:
    os.setpgid(0, 0)
    try:
        for name in names:
            importlib.import_module(name)
        threads = _threads_left()
        said = f"it leaves threads running ({threads}), which a fork would lose" if threads else "ok"
    except BaseException as error:  # whatever it raises is why it is left out
        said = f"its import failed with {type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        os.write(writing, said.encode("utf-8", "replace")[:_REASON_BYTES])
    os._exit(0)


def _threads_left() -> int:
    """Threads beside this one, once libraries that end theirs at a fork, as OpenBLAS does, have done so."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    until_s = time.monotonic() + _ENDING_S
    while (threads := _busy_threads()) and time.monotonic() < until_s:
        time.sleep(0.005)  # one that was told to end may take a moment
    return threads


def _busy_threads() -> int:
    me, found = os.getpid(), 0
    for task in os.listdir(_TASKS):
        with contextlib.suppress(OSError), open(f"{_TASKS}/{task}/comm", encoding="utf-8") as file:
            found += int(task) != me and file.read().strip() not in _SAFE_THREADS
    return found
