"""What a kept state will bring back, seen from outside: the host looks at the process, and then decides.

Nobody asks the worker whether it has threads, sockets or child processes; the kernel tells. Only the names of
Python's threads, and which sockets are its own, come from the worker: a lie there spoils nobody's labels but
its own.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aisotools.sandbox import processes
from aisotools.variable_contracts import VariableLabel

# Threads that these keep are no obstacle: they do without, or start new ones.
_HARMLESS = ("libscipy_openblas", "libopenblas", "libarrow", "_duckdb", "duckdb.", "numexpr", "libgomp")
# These wait for ever in a fork once their threads have been started.
_STUCK = {"_polars_runtime": "polars", "polars.abi3": "polars", "libtorch_cuda": "torch with CUDA"}
_MAPS_BYTES = 4 << 20
_MOST_DESCRIPTORS = 4096
_MOST_THREADS = 1024
_MOST_TOLD = 8
_MOST_STEPS = 64
_WAYS = 8
_NUMBERED = re.compile(r":\[\d+\]$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """What has to be seen before a fork is made, because a fork has none of it.

    Attributes:
        threads: How many threads the worker has besides its first.
        children: Names of its child processes, by id.
    """

    threads: int = 0
    children: Mapping[int, str] = field(default_factory=dict)

    def without(self, ours: Collection[int]) -> Glance:
        """The same without children of ours."""
        left = {pid: name for pid, name in self.children.items() if pid not in ours}
        return Glance(threads=self.threads, children=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What can be seen of a state.

    Attributes:
        glance: Threads and children.
        named: Names of Python's own threads.
        descriptors: Kinds of descriptors that are shared with the live worker, each with how many there are.
        writing: Files that are open for writing.
        shared: Files that are mapped for writing, and shared.
        libraries: Names of the mapped libraries.
        whole: Whether everything could be looked at.
    """

    glance: Glance = Glance()
    named: tuple[str, ...] = ()
    descriptors: Mapping[str, int]
    writing: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    libraries: frozenset[str] = frozenset()
    whole: bool = True


def judge(sight: Sight) -> tuple[VariableLabel, tuple[str, ...]]:
    """How much of the state would come back, and what would not."""
    lost = []
    if sight.named:
        lost.append(f"threads: {', '.join(sight.named)}")
    threads = sight.glance.threads
    stuck = {name for part, name in _STUCK.items() if any(part in library for library in sight.libraries)}
    if threads and stuck:
        lost.append(f"the threads of {', '.join(sorted(stuck))}, which cannot be started again")
    elif threads > len(sight.named) and not _explained(sight.libraries):
        lost.append(f"{threads - len(sight.named)} threads of a library")
    if sight.glance.children:
        lost.append(f"child processes: {_some(tuple(sight.glance.children.values()))}")
    lost += [f"{count} {kind}" for kind, count in sorted(sight.descriptors.items())]
    if sight.writing:
        lost.append(f"what is written to open files: {_some(sight.writing)}")
    if sight.shared:
        lost.append(f"what is written to shared memory: {_some(sight.shared)}")
    if not sight.whole:
        lost.append("what could not be looked at")
    if threads and stuck:
        return "data only", tuple(lost)
    return "partial" if lost else "exact", tuple(lost)


def _explained(libraries: frozenset[str]) -> bool:
    return any(part in library for library in libraries for part in _HARMLESS)


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_TOLD
    return ", ".join(names[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")


# ---- looking


def glance(pid: int, ours: Collection[int]) -> Glance:
    """Threads and children of a worker, right now; `ours` are children that need no names."""
    children: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return Glance()
    for thread in threads[:_MOST_THREADS]:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            children.update(map(int, file.read().split()))
    named = {child: "" if child in ours else _name(child) for child in sorted(children)}
    return Glance(threads=len(threads) - 1, children=named)


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "one that ended"


def look(pid: int, seen: Glance, told: Mapping[str, Any]) -> Sight:
    """Look at a parked fork, which holds still.

    Args:
        pid: The fork.
        seen: What was seen before it was made.
        told: What it says of itself: its `threads` and the descriptors that are `ours`.
    """
    ours = {number for number in told.get("ours", ()) if isinstance(number, int)}
    named = tuple(str(name)[:40] for name in told.get("threads", ()))[:_MOST_TOLD] if seen.threads else ()
    kinds: dict[str, int] = {}
    writing: list[str] = []
    try:
        for number, target in _descriptors(pid):
            if number in ours:
                continue
            if target.startswith("/"):
                if not target.startswith(("/dev/", "/memfd:")) and _writes(pid, number):
                    writing.append(os.path.basename(target))
            else:
                kind = _kind(target)
                if kind:
                    kinds[kind] = kinds.get(kind, 0) + 1
        libraries, shared = _mapped(pid)
    except OSError:
        return Sight(glance=seen, named=named, descriptors=kinds, whole=False)
    return Sight(
        glance=seen,
        named=named,
        descriptors=kinds,
        writing=tuple(writing),
        shared=tuple(shared),
        libraries=libraries,
    )


def _descriptors(pid: int) -> Iterator[tuple[int, str]]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder)[:_MOST_DESCRIPTORS]:
        number = int(name)
        if number > 2:
            try:
                yield number, os.readlink(f"{folder}/{name}")
            except FileNotFoundError:
                continue


def _kind(target: str) -> str:
    kind = _NUMBERED.sub("", target).removeprefix("anon_inode:").strip("[]")
    return {"socket": "sockets", "pipe": "pipes", "eventpoll": "event loops", "pidfd": ""}.get(kind, kind)


def _writes(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as file:
        flags = next((int(line.split()[1], 8) for line in file if line.startswith("flags:")), 0)
    return flags & os.O_ACCMODE != os.O_RDONLY


def _mapped(pid: int) -> tuple[frozenset[str], list[str]]:
    """Names of mapped libraries, and of what is mapped shared and may be written."""
    with open(f"/proc/{pid}/maps", "rb") as file:
        text = file.read(_MAPS_BYTES).decode("utf-8", "replace")
    libraries, shared = set(), []
    for line in text.splitlines():
        fields = line.split(None, 5)
        rights, path = fields[1], fields[5] if len(fields) > 5 else ""
        if ".so" in path:
            libraries.add(os.path.basename(path))
        elif rights[1] == "w" and rights[3] == "s":
            shared.append(os.path.basename(path) or "no file")
    return frozenset(libraries), shared


def private_bytes(pid: int) -> int:
    """Memory that a process shares with nobody, and that would be free without it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Private_"))


def is_below(pid: int, root: int, parent_of: Callable[[int], int] = processes.parent_of) -> bool:
    """Whether a process is somewhere below `root`, by what the kernel says.

    One between the two may end while we look, and its children then get another parent: where the way breaks
    off, it is looked for again from its beginning.
    """
    for _ in range(_WAYS):
        at = pid
        for _ in range(_MOST_STEPS):
            if at == root:
                return True
            if (parent := parent_of(at)) <= 1:
                break
            at = parent
        else:
            return False
        if parent == 1 or at == pid:
            return False  # it is the system's, or itself gone
    return False
