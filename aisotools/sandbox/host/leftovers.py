"""What calls have left running: which call a process comes from, and what such a process changes meanwhile.

Threat
    A call leaves processes or threads behind. They use up the limit on processes, so that later calls fail
    without any fault of theirs; and they keep their rights while a call runs that only reads, so that files
    change during a call that has changed none.
Mechanism
    The host notes when each call began and ended, and the kernel says when each process and thread was
    started, so the two are compared where no process can be made. A process counts for the call in whose time
    its oldest ancestor that still runs was started. Around a call that is held to reading the host looks
    whether anything else runs in the sandbox; if so, it looks after the call for what has changed since. The
    kernel sets the change time of a file, and code in the sandbox cannot choose it.
Race window
    The clock of the kernel's start times ticks a hundred times a second: what was started in the tick in
    which one call ended and the next began counts for either. A daemon whose ancestors have all ended counts
    for the call in whose time it was started itself. A page that is mapped and was written before the call
    may be written again without a new change time. Files that are changed and removed within the call show
    only in the change time of their folder. While a command is held to reading, the worker waits for it, and
    what a timer in the worker's first thread does then is not looked for.
When it fails
    What cannot be read has ended, or counts for nobody: then the error names no call, and the way out is the
    same. A folder that cannot be entered, or too many files, is said where changes are listed. No call is
    allowed or refused for any of this: it only adds to what results say.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

from aisotools.core.threads import in_thread
from aisotools.core.truncation import summarize_names
from aisotools.core.types import ToolResult
from aisotools.sandbox.confinement import syscalls
from aisotools.sandbox.host.activity import maps_files
from aisotools.sandbox.host.failures import add_note
from aisotools.sandbox.host.monitor import count_switches
from aisotools.sandbox.process import tree
from aisotools.workspace.dirfd import file_time
from aisotools.workspace.paths import printable

_REMEMBERED_CALLS = 512
_MOST_NAMED = 3
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MOST_ENTRIES = 100_000
_MOST_LEVELS = 100
_MOST_COMPARED = 64  # threads, of which each takes some tens of microseconds
_MOST_ENDED = 8  # processes, each with a descriptor of ours
_LIST_BYTES = 1 << 12
_LINKS_OF_NO_THREAD = 2  # of the folder /proc/<pid>/task, which has one more for each thread
_MOST_LISTED = 8
# What these write on their command line: the workers and the trackers of joblib's loky, and of Python's own.
_find_helper = re.compile(
    rb"joblib\.externals\.loky\.backend\.|\0loky\.backend\.|from loky\.backend\.|"
    rb"\0from (multiprocessing)\.(?:resource_tracker|spawn|forkserver) import "
).search
_find_flags = re.compile(rb"^flags:\s*([0-7]+)", re.MULTILINE).search
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


# ---- which call a process comes from


@dataclass(slots=True)
class _Span:
    """When a call ran, in clock ticks since the machine was started; it has no end while it runs."""

    call_id: str
    tool: str
    began: int
    ended: int | None = None

    def __enter__(self) -> None:
        """Do nothing: the call has begun when this was made."""

    def __exit__(self, *_: object) -> None:
        self.ended = _now()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What a call that is over has left running.

    Attributes:
        call_id: The call.
        tool: Its tool.
        count: How many processes and threads.
    """

    call_id: str
    tool: str
    count: int

    def __str__(self) -> str:
        return f"{self.count:,} of {self.tool} (call {self.call_id})"


class CallTimes:
    """When the latest calls of a sandbox ran."""

    def __init__(self) -> None:
        """Start with none."""
        self._spans: deque[_Span] = deque(maxlen=_REMEMBERED_CALLS)

    def running(self, call_id: str, tool: str) -> AbstractContextManager[None]:
        """Note that a call runs from now on, to the end of a `with` block."""
        span = _Span(call_id, tool, _now())
        self._spans.append(span)
        return span

    async def explain(
        self, result: ToolResult, supervisor: int, worker: int, own: Collection[int]
    ) -> ToolResult:
        """Add to the result of a call that lacked a process which calls have left so many.

        Args:
            result: The result.
            supervisor: The process above everything that runs in the sandbox.
            worker: The worker.
            own: Further processes that are no call's.
        """
        ours = frozenset((supervisor, *_find_init(supervisor), worker, *own))
        return add_note(result, describe_leftovers(await in_thread(self.find_leftovers, supervisor, ours)))

    def find_leftovers(self, supervisor: int, own: Collection[int]) -> list[Leftovers]:
        """Return what calls that are over have left running below a process, the most first.

        Blocks: each process is looked at.

        Args:
            supervisor: The process above everything that runs in the sandbox.
            own: Processes that are no call's, such as the worker. Their threads may be.
        """
        spans = [*self._spans]
        running = tree.descendants(supervisor)
        processes = tree.table(running)
        counts: Counter[int] = Counter()
        for pid in running:
            ancestor = _oldest_ancestor(pid, processes, own)
            for started in _thread_starts(pid, but_first=not ancestor):
                found = _find(spans, processes[ancestor].start_ticks if ancestor else started)
                if found is not None:
                    counts[found] += 1
        return [
            Leftovers(call_id=spans[index].call_id, tool=spans[index].tool, count=count)
            for index, count in counts.most_common()
            if spans[index].ended is not None
        ]


def _now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // _NS_PER_TICK


def _oldest_ancestor(pid: int, processes: tree.Table, own: Collection[int]) -> int:
    """Return the process, or the topmost above it, that is no one's of `own`; 0 if it is one itself."""
    found = 0
    # The table is not a snapshot, so a ring is possible; it is no longer than the table.
    for _ in range(len(processes)):
        if pid in own or pid not in processes:
            break
        found, pid = pid, processes[pid].parent
    return found


def _thread_starts(pid: int, *, but_first: bool) -> Iterator[int]:
    """Yield when each thread of a process was started, in clock ticks; without the first one if so."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return  # it has ended meanwhile
    for thread in threads:
        if but_first and thread == str(pid):
            continue
        with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
            yield int(file.read().rpartition(b")")[2].split()[19])


def _find(spans: Sequence[_Span], started: int) -> int | None:
    """Return the index of the call in whose time something was started; None if there is none.

    What was started between two calls counts for the one before: something of it went on.
    """
    # In the tick in which a call begins, the call before may still have run: that one counts then.
    for index in range(len(spans) - 1, -1, -1):
        span = spans[index]
        if span.began < started or (span.began == started and not _runs_at(spans[:index], started)):
            return index
    return None


def _runs_at(spans: Iterable[_Span], tick: int) -> bool:
    return any(span.began <= tick and (span.ended is None or tick <= span.ended) for span in spans)


def describe_leftovers(leftovers: Sequence[Leftovers]) -> str:
    """Return whose processes and threads still run, and how they are ended; empty if there are none."""
    if not leftovers:
        return ""
    named = ", ".join(map(str, leftovers[:_MOST_NAMED]))
    more = sum(one.count for one in leftovers[_MOST_NAMED:])
    return (
        f"[Processes and threads that earlier calls have left running: {named}"
        f"{f', and {more:,} of others' if more else ''}. A restart of the sandbox ends them, and loses its "
        "variables: `%sandbox restart`, `await session.restart()`.]"
    )


# ---- helpers of libraries, which wait for work


def find_idle_helpers(pids: Iterable[int], worker: int) -> dict[int, str]:
    """Return which processes only wait for work from a library in the worker, each with that library.

    Such a helper is a child of the worker, did not run while it was looked at, and has no file open for
    writing: to end it loses no change of a file. It says in its command line whose it is; or it is a fork of
    the worker with a single thread, which waits for a pipe or a lock, as those of a pool do. A process can
    pretend to be one, and is ended for it; what has a file open, runs, or cannot be looked at is none.

    Args:
        pids: The processes to look at.
        worker: The worker.
    """
    found: dict[int, str] = {}
    before = count_switches(pids := [*pids])
    for pid in pids:
        library = _library_of(pid, worker)
        if library and tree.parent_of(pid) == worker and not _may_write(pid):
            found[pid] = library
    # What runs at the moment of both looks has counts that are never equal.
    now = count_switches(found)
    active_pids = {key[0] for key in before.keys() | now.keys() if before.get(key) != now.get(key)}
    return {pid: library for pid, library in found.items() if pid not in active_pids}


def _library_of(pid: int, worker: int) -> str:
    line = _command_line(pid)
    found = _find_helper(line)
    if found is not None:
        return "multiprocessing" if found[1] else "joblib"
    is_fork = bool(line) and line == _command_line(worker)
    return "multiprocessing" if is_fork and _waits_for_others(pid) else ""


def _command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(_LIST_BYTES)
    except OSError:
        return b""


def _waits_for_others(pid: int) -> bool:
    """Return whether the only thread of a process waits to read something, or for a lock, with no end set."""
    try:
        if os.listdir(f"/proc/{pid}/task") != [str(pid)]:
            return False
        with open(f"/proc/{pid}/syscall", "rb") as file:
            number, *arguments = file.read(_LIST_BYTES).split()
    except (OSError, ValueError):
        return False  # it may not be looked at, or has ended
    numbers = syscalls.NUMBERS.get(syscalls.architecture() or "")
    if numbers is None or not number.isdigit():
        return False  # its system calls have numbers that nobody here knows; or it runs
    # The fourth argument of futex is how long it waits: a lock that is waited for so long is a sleep.
    waits_for_lock = int(number) == numbers["futex"] and arguments[3] == b"0x0"
    return int(number) == numbers["read"] or waits_for_lock


def _may_write(pid: int) -> bool:
    """Return whether a process has a file open for writing, or mapped so that it can be written."""
    folder = f"/proc/{pid}"
    try:
        for name in os.listdir(f"{folder}/fd"):
            status = os.stat(f"{folder}/fd/{name}")
            if not stat.S_ISREG(status.st_mode):
                continue  # a pipe, a terminal, or a folder, which cannot be open for writing
            with open(f"{folder}/fdinfo/{name}", "rb") as file:
                flags = _find_flags(file.read(_LIST_BYTES))
            if flags is None or int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                return True
    except OSError:
        return True  # it may not be looked at; or it has just ended, and the next look does not find it
    return maps_files(pid)


# ---- what changes meanwhile


def _find_init(supervisor: int) -> list[int]:
    """Return the process that adopts orphans below a supervisor, if it has a process namespace for them."""
    children = tree.children_by_parent(tree.table(tree.descendants(supervisor))).get(supervisor, ())
    return [pid for pid in children if tree.number_inside(pid) == 1]


class EndedProcesses:
    """Processes that have ended, and whose parent has not asked yet how: they are listed, and none runs.

    A fork that the worker has made for a reader is one for as long as the worker has nothing to do.
    """

    def __init__(self) -> None:
        """Know none yet."""
        self._pidfds: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<EndedProcesses {sorted(self._pidfds)}>"

    def include_all(self, pids: Collection[int]) -> bool:
        """Return whether all of these have ended; False for more than a few."""
        return len(pids) <= _MOST_ENDED and all(map(self._has, pids))

    def _has(self, pid: int) -> bool:
        pidfd = self._pidfds.get(pid)
        if pidfd is None:
            return self._note(pid)
        if _is_listed(pidfd):
            return True
        # Race: its parent has asked meanwhile, and the number may be that of another process, which runs.
        os.close(self._pidfds.pop(pid))
        return False

    def _note(self, pid: int) -> bool:
        for known in [known for known, pidfd in self._pidfds.items() if not _is_listed(pidfd)]:
            os.close(self._pidfds.pop(known))
        if len(self._pidfds) >= _MOST_ENDED:
            return False
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return False  # race: it is not there any more
        # Race: another process may get the number before we look at it. While the one behind the descriptor
        # is listed, which is asked last, its number is no other's.
        if not tree.parent_of(pid) and _is_listed(pidfd):
            self._pidfds[pid] = pidfd
            return True
        os.close(pidfd)
        return False

    def close(self) -> None:
        """Close what is open; closing twice is fine."""
        while self._pidfds:
            os.close(self._pidfds.popitem()[1])


def _is_listed(pidfd: int) -> bool:
    """Return whether a process has its number still: it runs, or has ended and nobody has asked how."""
    # Race: it may end, and be asked after, at any time. A pidfd never means another process, and signal 0 is
    # sent to nobody.
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except PermissionError:
        return True  # another user's
    except OSError:
        return False
    return True


class OtherProcesses:
    """What runs in a sandbox beside a call: processes, and threads of the worker, that are no part of it.

    A look takes some microseconds as long as there are none, since what it reads stays open.
    """

    def __init__(self, supervisor: int, worker: int) -> None:
        """Look below `supervisor`, where calls run in `worker`."""
        self.worker = worker
        self._supervisor = supervisor
        self._above = [supervisor, *_find_init(supervisor)]
        self._lists: list[int] = []
        self._threads = self._schedule = -1
        self._ended = EndedProcesses()
        # A kernel without such lists, or a worker that has just ended: then the whole tree is looked at.
        with suppress(OSError):
            self._schedule = os.open(f"/proc/{worker}/task/{worker}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self._threads = os.open(f"/proc/{worker}/task", os.O_RDONLY | os.O_CLOEXEC)
            for pid in (worker, *self._above):
                self._lists.append(os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC))

    def __repr__(self) -> str:
        return f"<OtherProcesses below {self._supervisor}>"

    def close(self) -> None:
        """Close what is open; closing twice is fine."""
        self._ended.close()
        while self._lists:
            os.close(self._lists.pop())
        for descriptor in {self._threads, self._schedule} - {-1}:
            os.close(descriptor)
        self._threads = self._schedule = -1

    def count_runs(self, own: Collection[int]) -> dict[tuple[int, int], int] | None:
        """Return how often each thread of the others has run; None if they are too many to be compared.

        Args:
            own: Processes that run no code of a call now: snapshots, and readers with their keepers.
        """
        if self._has_none(own):
            return {}
        try:
            found = tree.descendants(self._supervisor, own, worker=self.worker, max_threads=_MOST_COMPARED)
        except tree.TooManyProcesses:
            return None
        counts = count_switches(found.difference(own, self._above))
        counts.pop((self.worker, self.worker), None)
        return counts

    def have_run(self, before: dict[tuple[int, int], int] | None) -> bool:
        """Return whether any of the others has run since the look that returned `before`."""
        if before is None:
            return True
        now = count_switches({pid for pid, _ in before})
        return any(now.get(thread) != count for thread, count in before.items())

    def turns_of_worker(self) -> bytes:
        """Return how often the worker's first thread has run, as the kernel writes it; or nothing."""
        try:
            return os.pread(self._schedule, _LIST_BYTES, 0)
        except OSError:
            return b""  # it has ended, or the kernel does not count that

    def _has_none(self, own: Collection[int]) -> bool:
        if len(self._lists) != 1 + len(self._above):
            return False
        known = {self.worker, *self._above, *own}
        try:
            if os.fstat(self._threads).st_nlink != _LINKS_OF_NO_THREAD + 1:
                return False
            listed = [os.pread(descriptor, _LIST_BYTES, 0) for descriptor in self._lists]
        except OSError:
            return False
        if any(len(text) >= _LIST_BYTES for text in listed):
            return False
        unknown = {pid for text in listed for pid in map(int, text.split())} - known
        return not unknown or self._ended.include_all(unknown)


class ReadWatch:
    """Says in the results of calls that are held to reading what something else has changed meanwhile."""

    def __init__(
        self, workspace: str, own: Callable[[], Collection[int]], settled: Callable[[], Awaitable[None]]
    ) -> None:
        """Watch a folder.

        Args:
            workspace: The folder.
            own: Returns processes that run no code of a call now, as for `OtherProcesses.count_runs`.
            settled: Returns when `own` knows all of them.
        """
        self._workspace = workspace
        self._own = own
        self._settled = settled
        self._others: OtherProcesses | None = None

    async def run(
        self,
        supervisor: int,
        worker: int,
        call: Callable[[Callable[[], None]], Awaitable[ToolResult]],
        *,
        is_in_worker: bool,
    ) -> ToolResult:
        """Run a call, and return its result.

        Args:
            supervisor: The process above everything that runs in the sandbox.
            worker: The worker.
            call: Runs the call. What it is given is to be called when another process runs that.
            is_in_worker: Whether the worker has a part in it.
        """
        if self._others is None or self._others.worker != worker:
            self.close()
            self._others = OtherProcesses(supervisor, worker)
        others, since_ns = self._others, file_time()
        before = others.count_runs(self._own())
        if before != {}:
            # Race: a fork of the worker that keeps variables is only known once it has answered.
            await self._settled()
            since_ns = file_time()
            before = others.count_runs(self._own())
        is_in_reader, turns = False, others.turns_of_worker()

        def note_reader() -> None:
            nonlocal is_in_reader
            is_in_reader = True

        result = await call(note_reader)
        # The worker itself has nothing to do while a reader runs, unless an earlier call has set a timer.
        # Before, it may have made the reader: by its own Python, which an earlier call may have changed.
        is_awake = not is_in_worker and (not is_in_reader or turns != others.turns_of_worker())
        if not is_awake and (before == {} or not others.have_run(before)):
            return result
        changed = await in_thread(find_changed, self._workspace, since_ns)
        return add_note(result, describe_changed(changed))

    def close(self) -> None:
        """Close what is open."""
        if self._others is not None:
            self._others.close()
            self._others = None


@dataclass(slots=True)
class ChangedFiles:
    """What has changed in a folder since some time.

    Attributes:
        paths: Some of the paths, relative to the folder; those of folders end with a slash.
        count: How many there are.
        saw_all: Whether everything could be looked at.
    """

    paths: list[str] = field(default_factory=list)
    count: int = 0
    saw_all: bool = True

    def add(self, path: str) -> None:
        """Count a path, and keep it if it is one of the first."""
        self.count += 1
        if len(self.paths) < _MOST_LISTED:
            self.paths.append(path)


class _ChangeWalk:
    """One look at a folder."""

    def __init__(self, since_ns: int, most_entries: int) -> None:
        self.changed = ChangedFiles()
        self._since_ns = since_ns
        self._left = most_entries

    def enter(self, parent: int | None, name: str, path: str, level: int) -> None:
        try:
            directory = os.open(name, _OPEN_FOLDER, dir_fd=parent)
        except (FileNotFoundError, NotADirectoryError):
            return  # something else has taken its place; a link is not followed either
        except OSError:
            self.changed.saw_all = False
            return
        try:
            if parent is None and os.fstat(directory).st_ctime_ns >= self._since_ns:
                self.changed.add("./")
            self._visit(directory, path, level)
        except OSError:
            self.changed.saw_all = False
        finally:
            os.close(directory)

    def _visit(self, directory: int, path: str, level: int) -> None:
        if level > _MOST_LEVELS:
            self.changed.saw_all = False
            return
        with os.scandir(directory) as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    self.changed.saw_all = False
                    return
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    status = entry.stat(follow_symlinks=False)
                    is_folder = stat.S_ISDIR(status.st_mode)
                    name = f"{path}{entry.name}{'/' if is_folder else ''}"
                    if status.st_ctime_ns >= self._since_ns:
                        self.changed.add(name)
                    if is_folder:
                        self.enter(directory, entry.name, name, level + 1)


def find_changed(folder: str, since_ns: int, *, most_entries: int = _MOST_ENTRIES) -> ChangedFiles:
    """Return what has changed in a folder since a `file_time`. No link is followed. Blocks."""
    walk = _ChangeWalk(since_ns, most_entries)
    walk.enter(None, folder, "", 0)
    return walk.changed


def describe_changed(changed: ChangedFiles) -> str:
    """Return what has changed during a call that could only read; empty if nothing was seen to."""
    blind = "" if changed.saw_all else " Not everything could be looked at."
    if not changed.count:
        return f"[While this call ran, something else in the sandbox did too.{blind}]" if blind else ""
    names = summarize_names(
        [*map(printable, changed.paths), *[""] * (changed.count - len(changed.paths))], _MOST_LISTED
    )
    return (
        f"[Changed in the workspace while this call ran, which could only read: {names}. Something else "
        "did that: what an earlier call has left running, another call, or a program outside the sandbox."
        f"{blind}]"
    )
