"""What the kernel shows of a fork that waits: what it shares with the worker, and what it lacks of it.

The process is hostile and decides what is read here: how many descriptors and mappings there are, and the
names of files, threads and programs. So what is read is bounded; names may hold any character but the line
break, which the kernel writes in another way; and a text that is cut off or not understood counts as not
complete, which makes the label of the snapshot worse, and refuses a reader. Nothing is raised for it. Reading
takes time in proportion: what an ordinary worker has is read at once, and more only in a thread.

Threat: a fork hides what it shares, so that a snapshot is called complete that is not, or a reader is
believed to have no rights that it has; or it makes the look itself expensive.
Mechanism: only /proc is read, in bounded amounts, and the kernel is compared with the kernel.
Race: a fork that is looked at waits for the host and has one thread; a process that shares memory with it may
still change that. What changed between two looks is seen by the next.
Failure: what is cut off, odd or unreadable makes the label worse or the reader refused, and never better.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aisotools.core.exceptions import SandboxError
from aisotools.core.sandboxes import VariableLabel
from aisotools.core.truncation import summarize_names
from aisotools.workspace.paths import printable
from aisotools.workspace.workspace import TEMPORARY

# Libraries whose threads a fork can do without: they start new ones, or work in the calling thread.
_FORK_SAFE_LIBRARIES = (
    "libscipy_openblas",
    "libopenblas",
    "libarrow",
    "_duckdb",
    "duckdb.",
    "numexpr",
    "libgomp",
)
# Libraries that wait for ever in a fork once their threads have been started.
_FORK_UNSAFE_LIBRARIES = {
    "_polars_runtime": "polars",
    "polars.abi3": "polars",
    "libtorch_cuda": "torch with CUDA",
}
# Bounds on what is read from /proc of a hostile process.
_MAX_MAPS_BYTES = 4 << 20
_MAX_DESCRIPTORS = 4096
_FDINFO_BYTES = 1 << 12
_MAX_LINE_BYTES = 1 << 15
_MAX_THREADS = 1024
# What an ordinary worker has stays below these. That is read in less time than a thread takes to start.
_QUICK_MAPS_BYTES = 1 << 17
_QUICK_DESCRIPTORS = 64
# Names in a label, and their length.
_MAX_NAMES = 8
# Children of a worker whose names are read: some of them turn out to be snapshots, which are not shown.
_MAX_NAMED = 32
_MAX_NAME_CHARS = 40
_MAX_SHARED = 256
_MAX_LIBRARIES = 4096
# How much of a memory map is read and looked through at once. Other threads wait for the interpreter's lock
# meanwhile, the event loop's among them.
_STEP_BYTES = 1 << 15
# Lines of /proc/<pid>/maps for memory that is shared with others, and the name of the file in any line. The
# kernel writes a line break in a name as digits, and every other character as it is. Neither goes back over
# what it has read, so that no name makes it slow.
_SHARED = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-])s \S+ \S+ \d+ *(.*)$", re.MULTILINE)
_DELETED_MAPPING = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ ([r-][w-][x-][ps]) \S+ \S+ \d+ *(/.*) \(deleted\)$", re.MULTILINE
)
_FILE_NAME = re.compile(rb"/([^/\n]++)$", re.MULTILINE)
_DELETED = " (deleted)"
_NAMELESS = "a temporary file"
_REPLACED = "a file that an undo or redo has replaced"
_NUMBERED = re.compile(r":\[\d+\]$")

# What a fork may say that the fork before took. It decides whether the next calls go without a snapshot.
_MAX_FORK_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessCounts:
    """Threads and children of the worker before a fork, which has none of them.

    Attributes:
        threads: Number of threads besides the first.
        children: Names of the child processes, by process id; of many children only the first are named.
    """

    threads: int = 0
    children: Mapping[int, str] = field(default_factory=dict)

    def without(self, pids: Collection[int]) -> ProcessCounts:
        """Return a copy without these children."""
        children = {pid: name for pid, name in self.children.items() if pid not in pids}
        return ProcessCounts(threads=self.threads, children=children)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessObservation:
    """What can be observed of a snapshot.

    Attributes:
        counts: Threads and children of the worker at the time of the fork.
        thread_names: Names of Python's own threads.
        descriptors: Number of descriptors that are shared with the live worker, by kind.
        written_files: Files that are open for writing.
        shared_mappings: Files that are mapped shared and writable.
        libraries: Names of the mapped libraries.
        is_complete: Whether everything could be read.
    """

    counts: ProcessCounts = ProcessCounts()
    thread_names: tuple[str, ...] = ()
    descriptors: Mapping[str, int]
    written_files: tuple[str, ...] = ()
    shared_mappings: tuple[str, ...] = ()
    libraries: frozenset[str] = frozenset()
    is_complete: bool = True


def label_snapshot(observation: ProcessObservation) -> tuple[VariableLabel, tuple[str, ...]]:
    """Return how much of a snapshot can be restored, and what cannot."""
    lost: list[str] = []
    threads = observation.counts.threads
    libraries = observation.libraries
    if observation.thread_names:
        lost.append(f"threads: {', '.join(observation.thread_names)}")
    unsafe = {
        name for part, name in _FORK_UNSAFE_LIBRARIES.items() if any(part in library for library in libraries)
    }
    # A library without threads has no lock that a missing thread could hold: the fork can use it.
    is_stuck = bool(threads and unsafe)
    foreign_threads = threads - len(observation.thread_names)
    if is_stuck:
        lost.append(f"the threads of {', '.join(sorted(unsafe))}, which cannot be started again")
    elif foreign_threads > 0 and not _has_fork_safe(libraries):
        lost.append(f"{foreign_threads} threads of a library")
    if observation.counts.children:
        lost.append(f"child processes: {_summarize(observation.counts.children.values())}")
    lost += [f"{count} {kind}" for kind, count in sorted(observation.descriptors.items())]
    if observation.written_files:
        lost.append(f"what was written to open files: {_summarize_files(observation.written_files)}")
    if observation.shared_mappings:
        lost.append(f"what was written to shared memory: {_summarize_files(observation.shared_mappings)}")
    if not observation.is_complete:
        lost.append("anything that could not be inspected")
    if is_stuck:
        return "data only", tuple(lost)
    return "partial" if lost else "exact", tuple(lost)


def _summarize(names: Iterable[str]) -> str:
    return summarize_names([*names], _MAX_NAMES)


def _summarize_files(names: Iterable[str]) -> str:
    """Summarize names of files, of which a process may have one open or mapped several times."""
    return _summarize(dict.fromkeys(names))


def _file_name(path: str) -> str:
    """Return the name of a file for a person, by its path as the kernel shows it."""
    name = path.rpartition("/")[2]
    if name.endswith(_DELETED):
        if name.startswith("#"):
            return _NAMELESS  # one without a name is listed by its number, which says nothing to anybody
        if os.path.basename(os.path.dirname(path)).startswith(TEMPORARY):
            return _REPLACED  # its name is that which an undo or redo has given it to take it away
    return name


def _has_fork_safe(libraries: frozenset[str]) -> bool:
    return any(part in library for library in libraries for part in _FORK_SAFE_LIBRARIES)


# ---- reading /proc


def count_processes(pid: int, snapshot_pids: Collection[int]) -> ProcessCounts:
    """Count threads and children of a worker right now; `snapshot_pids` are children that need no names."""
    children: set[int] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return ProcessCounts()
    for thread in threads[:_MAX_THREADS]:
        # A thread may end between the listing and this.
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
            children.update(map(int, file.read().split()))
    names = dict.fromkeys(sorted(children), "")
    # A worker may have any number of children, and the loop waits: a label shows few of the names.
    for child in [child for child in names if child not in snapshot_pids][:_MAX_NAMED]:
        names[child] = _process_name(child)
    return ProcessCounts(threads=len(threads) - 1, children=names)


def _process_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "one that ended"


class TooMuchToRead(Exception):
    """Raised instead of reading more than the event loop can wait for."""


def observe(
    pid: int, counts: ProcessCounts, header: Mapping[str, Any], *, is_quick: bool = False
) -> ProcessObservation:
    """Observe a fork while it waits.

    Args:
        pid: The fork.
        counts: What was counted before it was made.
        header: What it says of itself: the names of its `threads` and the descriptors that are `ours`. What
            is malformed in it counts as not said, which makes the label worse and nothing else.
        is_quick: Whether the event loop waits.

    Raises:
        TooMuchToRead: If the event loop waits, and this would take long.
    """
    own = {number for number in _list_in(header, "ours") if type(number) is int}
    threads = [name for name in _list_in(header, "threads")[:_MAX_NAMES] if isinstance(name, str)]
    names = tuple(name[:_MAX_NAME_CHARS] for name in threads)
    # The kernel counted: a worker with one thread has no others to name, whatever it says.
    thread_names = names if counts.threads else ()
    kinds: dict[str, int] = {}
    written: list[str] = []
    is_complete = True
    try:
        for number, target in _descriptors(pid, is_quick=is_quick):
            if number in own:
                continue
            if target.startswith("/"):
                if not target.startswith(("/dev/", "/memfd:")) and _is_writable(pid, number):
                    written.append(_file_name(target))
            elif kind := _descriptor_kind(target):
                kinds[kind] = kinds.get(kind, 0) + 1
    except (OSError, ValueError):
        is_complete = False
    mappings = _read_mappings(pid, is_quick=is_quick)
    return ProcessObservation(
        counts=counts,
        thread_names=thread_names,
        descriptors=kinds,
        written_files=tuple(written),
        shared_mappings=tuple(name for _, _, rights, name in mappings.shared if "w" in rights),
        libraries=mappings.libraries,
        is_complete=is_complete and mappings.is_complete,
    )


@dataclass(frozen=True, slots=True)
class DetachedFiles:
    """Files that a process has open or mapped, and that stand at their paths no longer.

    Attributes:
        written: Those that it may write to.
        read: Those that it may only read.
    """

    written: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    def __or__(self, other: DetachedFiles) -> DetachedFiles:
        """Return those of two processes together."""
        written = self.written | other.written
        return DetachedFiles(written, (self.read | other.read) - written)


def find_detached_files(pid: int, names: Mapping[str, str]) -> DetachedFiles:
    """Return which files a process has open or mapped that stand at their paths no longer.

    Args:
        pid: The process. One that has ended has none.
        names: What to return for a file, by its path as text that can be printed.
    """
    written: set[str] = set()
    read: set[str] = set()
    # Hostile code may close and open files meanwhile: what is returned are names of the caller alone.
    with contextlib.suppress(OSError, ValueError):
        for number, target in _descriptors(pid, is_quick=False):
            path, deleted, end = target.rpartition(_DELETED)
            name = names.get(printable(path)) if deleted and not end else None
            if name is not None:
                (written if _is_writable(pid, number) else read).add(name)
    with contextlib.suppress(OSError):
        for target, is_writable in _mapped_and_deleted(pid):
            name = names.get(printable(target))
            if name is not None:
                (written if is_writable else read).add(name)
    return DetachedFiles(frozenset(written), frozenset(read - written))


def _mapped_and_deleted(pid: int) -> Iterator[tuple[str, bool]]:
    """Yield the former path of each mapped file that was deleted, and whether writing changes the file.

    Raises:
        OSError: The process may not be looked at.
    """
    rest, bytes_left = b"", _MAX_MAPS_BYTES
    with open(f"/proc/{pid}/maps", "rb") as file:
        while part := file.read(_STEP_BYTES):
            bytes_left -= len(part)
            if bytes_left < 0 or len(rest) > _MAX_LINE_BYTES:
                return
            lines, _, rest = (rest + part).rpartition(b"\n")
            if _DELETED.encode() not in lines:
                continue  # as mostly: the pattern takes twenty times as long as this look
            for rights, path in _DELETED_MAPPING.findall(lines):
                yield path.decode("utf-8", "replace"), rights[1:2] == b"w" and rights[3:] == b"s"


def _list_in(header: Mapping[str, Any], name: str) -> list[Any]:
    value = header.get(name)
    return value if isinstance(value, list) else []


def duration_in(header: Mapping[str, Any], name: str) -> float:
    """Return a number of seconds; 0 for what is none, also for integers that no float can hold."""
    value = header.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MAX_FORK_S:
        return 0.0
    return float(value)


def _descriptors(pid: int, *, is_quick: bool) -> Iterator[tuple[int, str]]:
    """Yield the number of each descriptor, and what it leads to.

    Raises:
        OSError: They cannot be read, or are too many to be read completely.
        TooMuchToRead: The event loop waits, and they are many.
    """
    folder = f"/proc/{pid}/fd"
    names = os.listdir(folder)
    if is_quick and len(names) > _QUICK_DESCRIPTORS:
        raise TooMuchToRead
    for name in names[:_MAX_DESCRIPTORS]:
        number = int(name)
        if number > 2:
            try:
                # As bytes: a name need not be text, and goes into results.
                yield number, os.readlink(os.fsencode(f"{folder}/{name}")).decode("utf-8", "replace")
            except FileNotFoundError:
                continue
    if len(names) > _MAX_DESCRIPTORS:
        raise OSError(errno.EMFILE, "too many descriptors to look at")


def _descriptor_kind(target: str) -> str:
    kind = _NUMBERED.sub("", target).removeprefix("anon_inode:").strip("[]")
    return {"socket": "sockets", "pipe": "pipes", "eventpoll": "event loops", "pidfd": ""}.get(kind, kind)


def _is_writable(pid: int, number: int) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}", "rb") as file:
        # Among the first lines, before those that depend on the kind of file.
        found = re.search(rb"^flags:\s*([0-7]+)$", file.read(_FDINFO_BYTES), re.MULTILINE)
    return found is None or int(found[1], 8) & os.O_ACCMODE != os.O_RDONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMap:
    """What is known of the mappings of a process.

    Attributes:
        libraries: Names of mapped libraries.
        shared: Mappings that are shared with others: start, end, rights (such as `rw-`) and name of the file.
        is_complete: Whether all was read and understood.
    """

    libraries: frozenset[str] = frozenset()
    shared: tuple[tuple[int, int, str, str], ...] = ()
    is_complete: bool = False


def parse_memory_map(parts: Iterable[bytes], max_bytes: int = _MAX_MAPS_BYTES) -> MemoryMap:
    """Return what a text such as /proc/<pid>/maps says, however it is divided into parts.

    It is read part by part, and no further than `max_bytes`; a line that is not complete is left out.
    """
    libraries: set[bytes] = set()
    shared: list[tuple[int, int, str, str]] = []
    rest = b""
    bytes_left = max_bytes
    is_cut = False
    for part in parts:
        bytes_left -= len(part)
        if bytes_left < 0 or len(rest) > _MAX_LINE_BYTES:
            is_cut = True
            break
        lines, newline, rest = (rest + part).rpartition(b"\n")
        libraries.update(name for name in {*_FILE_NAME.findall(lines)} if b".so" in name)
        for start, end, rights, path in _SHARED.findall(lines) if newline else ():
            name = _file_name(path.decode("utf-8", "replace")) or "no file"
            shared.append((int(start, 16), int(end, 16), rights.decode("ascii"), name))
        if len(libraries) > _MAX_LIBRARIES or len(shared) > _MAX_SHARED:
            is_cut = True
            break
    return MemoryMap(
        libraries=frozenset(name.decode("utf-8", "replace") for name in libraries),
        shared=tuple(shared[:_MAX_SHARED]),
        # The kernel ends every line. Of a process that is ending it shows nothing.
        is_complete=not is_cut and not rest and bytes_left < max_bytes,
    )


def _read_mappings(pid: int, *, is_quick: bool) -> MemoryMap:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            if not is_quick:
                return parse_memory_map(iter(lambda: file.read(_STEP_BYTES), b""))
            text = file.read(_QUICK_MAPS_BYTES + 1)
    except OSError:
        return MemoryMap()
    found = _parse_again(text)
    if not found.is_complete:
        raise TooMuchToRead
    return found


@functools.lru_cache(maxsize=8)
def _parse_again(text: bytes) -> MemoryMap:
    """Parse a short memory map. From one call to the next, that of a worker is often the same."""
    return parse_memory_map((text,), _QUICK_MAPS_BYTES)


def list_inherited(pid: int, *, is_quick: bool = False) -> dict[str, Any]:
    """List what a reader must lose before it may run anything; see `sandbox.worker.reader.give_up_rights`.

    Args:
        pid: A snapshot, which waits and does nothing: what its fork inherits is what is found here.
        is_quick: Whether the event loop waits.

    Raises:
        TooMuchToRead: If the event loop waits, and this would take long.
        SandboxError: If it cannot be read, or is too much to be read completely.
    """
    try:
        descriptors = [int(name) for name in os.listdir(f"/proc/{pid}/fd")]
    except OSError as error:
        raise SandboxError(f"the snapshot's open files cannot be listed ({error.strerror})") from None
    mappings = _read_mappings(pid, is_quick=is_quick)
    if len(descriptors) > _MAX_DESCRIPTORS or not mappings.is_complete:
        raise SandboxError("the worker has too many files or mappings open to list them all")
    shared = [(start, end, rights) for start, end, rights, _ in mappings.shared]
    return {"open": descriptors, "shared": shared}


def why_unrestricted(pid: int, origin: int) -> str:
    """Return why a process has not given up its rights, by what the kernel shows; empty if nothing says so.

    The kernel shows how many system call filters a process has, and that it can get no privileges. It shows
    neither what a filter answers nor any layer of Landlock: see `aisotools.sandbox.worker.reader`.

    Args:
        pid: The process, which should be a reader.
        origin: The process that it was forked from, which has all filters but the reader's own.
    """
    try:
        facts, before = _facts(pid), _facts(origin)
    except (OSError, ValueError):
        return "the kernel does not show whether it has given up its rights"
    if facts["Threads"] != 1:
        return "it has several threads"
    if facts["NoNewPrivs"] != 1 or facts["Seccomp_filters"] != before["Seccomp_filters"] + 1:
        return (
            "it has not given up its rights: an earlier call must have replaced functions of the worker; "
            "%sandbox restart gets a new one"
        )
    return ""


_SHOWN = ("Threads", "NoNewPrivs", "Seccomp_filters")


def _facts(pid: int) -> dict[str, int]:
    """Return numbers that the kernel shows of a process.

    Raises:
        OSError: It is gone, or may not be looked at.
        ValueError: The kernel does not show one of them.
    """
    with open(f"/proc/{pid}/status", "rb") as file:
        # At line breaks alone: the name of a process, which it chooses, may hold what others end a line at.
        lines = (line.partition(b":\t") for line in file.read().split(b"\n"))
    values = {name.decode("ascii", "replace"): value for name, _, value in lines}
    if missing := [name for name in _SHOWN if name not in values]:
        raise ValueError(f"no {missing[0]} in the status of a process")
    return {name: int(values[name]) for name in _SHOWN}


def private_bytes(pid: int) -> int:
    """Return the memory that a process shares with no other: what ending it would free. 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Private_"))
