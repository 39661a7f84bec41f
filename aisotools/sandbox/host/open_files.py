"""Open files of a sandbox's processes: how many there are, and what the kernel keeps behind them.

- Threat: a file is more than a number. An epoll keys its watches by file and number, so that `dup2`,
  `register` and `close` leave watches behind: a process with two hundred files can make two million, and a
  user has `fs.epoll.max_user_watches` in all, without which no program of that user has an event loop. A pipe
  takes 16 pages of the user's `fs.pipe-user-pages-soft`; beyond them new pipes are so small that programs
  hang. Queues of sockets, pipes and rule sets hold memory of no process, and so do mappings.
- Mechanism: watches are counted in /proc/PID/fdinfo, and those beyond one for each open file count as open
  files. A pipe or FIFO counts for its pages once there are more than a few, and for more on a machine that
  gives a user fewer pages. So the default of `open_files_total` is about a quarter of the usual 16,384 pages.
- What has no descriptor in any process (it is on its way through a socket), or one in a process that may not
  be looked at, is only counted. The caller ends a sandbox in which it stays so.
- Race: between two samples some hundred thousand watches can be made per second and processor; the kernel
  has no limit per process that would stop it, and a filter of system calls sees no state. The kernel writes
  all of an epoll's watches to answer a read of any of them, about 80 bytes each: for a moment it needs that
  memory, and about a microsecond for each. It gives everything back when the processes end.
- A failure: what cannot be read counts at its most, what has ended for nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.descriptors import is_fed_by_host

SOCKET_BYTES = 512 << 10
"""What the kernel may keep for one socket, the data of both directions together."""

_PIPE_BYTES = 64 << 10
# What it keeps for one rule set of Landlock, and for one watch of an epoll.
_RULESET_BYTES = 16 << 20
_WATCH_BYTES = 200
# With fewer open files than this, what the kernel keeps for them is not worth a look at each.
_FEW_FILES = 256
# An empty epoll counts for so many files. It is as many watches as one may have without a second look.
_FILES_PER_EPOLL = 4
# Pages of a new pipe, which no program in a sandbox can change, and how many a user usually has in all.
_PAGES_PER_PIPE = 16
_USUAL_PIPE_PAGES = 16_384
# So many pipes count like other files: a few programs in a pipeline are no attack.
_FREE_PIPES = 64
_READ_BYTES = 1 << 16
_EPOLL = "anon_inode:[eventpoll]"
_RULESET = "anon_inode:[landlock-ruleset]"
_find_in_flight = re.compile(rb"^scm_fds:\s*(\d+)", re.MULTILINE).search


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """What processes have open.

    Attributes:
        total: Open files as they count towards `Limits.open_files_total`.
        kernel_bytes: Memory that the kernel may keep for them.
        unseen: Descriptors that may hide anything: those that wait in sockets, and all that a process may
            have that may not be looked at.
    """

    total: int = 0
    kernel_bytes: int = 0
    unseen: int = 0


def pipe_pages() -> int:
    """Return how many pages a user may have in pipes before new ones become small; 0 for no limit."""
    try:
        with open("/proc/sys/fs/pipe-user-pages-soft", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _USUAL_PIPE_PAGES


def count_files_of_pipes(pipes: int, pages: int) -> int:
    """Return for how many open files `pipes` count, beside their descriptors, where a user has `pages`."""
    scarcity = max(1, -(-_USUAL_PIPE_PAGES // pages)) if pages else 1
    return max(0, pipes - _FREE_PIPES // scarcity) * _PAGES_PER_PIPE * scarcity


def count_watches(path: str, most: int) -> int:
    """Return how many watches an epoll holds, by its file in fdinfo: about `most` where there are more.

    One that cannot be read counts for `most`, one that is gone for nothing.
    """
    count, rest = 0, b""
    try:
        with open(path, "rb", buffering=0) as file:
            while count < most and (part := file.read(_READ_BYTES)):
                count += (rest + part).count(b"tfd:")
                rest = part[-3:]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except OSError:
        return most
    return count


def _count_in_flight(path: str) -> int:
    """Return how many descriptors wait in a socket, by its file in fdinfo."""
    try:
        with open(path, "rb", buffering=0) as file:
            found = _find_in_flight(file.read(_READ_BYTES))
    except OSError:
        return 0  # it is gone, or so is its process; one that may not be looked at is found out before
    return int(found[1]) if found else 0


def _has_ended(folder: str) -> bool:
    try:
        with open(f"{folder}/statm", "rb") as file:
            return file.read().startswith(b"0 ")
    except OSError:
        return True


def _identify(path: str, target: str) -> str:
    """Return what two descriptors of the same pipe have in common, and otherwise `target`."""
    if target.startswith("/"):
        status = os.stat(path)
        if stat.S_ISFIFO(status.st_mode):
            return f"pipe:{status.st_dev}:{status.st_ino}"
    return target


def _count_files(folder: str, unreadable: int) -> int:
    try:
        # Linux 6.2 and newer give the number as the size.
        return os.stat(folder).st_size or len(os.listdir(folder))
    except PermissionError:
        return unreadable
    except OSError:
        return 0  # it ended meanwhile


def measure_files(folders: Iterable[str], limits: Limits, pages: int | None = None) -> OpenFiles:
    """Return what processes have open.

    Args:
        folders: Their folders in /proc. One that has ended and not been reaped must not be among them.
        limits: What is allowed; no more than that is counted exactly.
        pages: What `pipe_pages` returned, where that is known.
    """
    pages = pipe_pages() if pages is None else pages
    counts = {folder: _count_files(f"{folder}/fd", limits.open_files) for folder in folders}
    total = sum(counts.values())
    few = min(_FEW_FILES, pages // (4 * _PAGES_PER_PIPE)) if pages else _FEW_FILES
    is_many = total > few
    objects: set[str] = set()
    unseen = in_flight = watches_total = rulesets = 0
    for folder, count in counts.items():
        try:
            names = os.listdir(f"{folder}/fd")
        except PermissionError:
            # Race: a plain user may not look at a process that has just ended either.
            if not _has_ended(folder):
                unseen += count
                objects.update(f"socket:{folder}-{number}" for number in range(count))
            continue
        except OSError:
            continue
        epolls = watches = 0
        for name in names:
            path = f"{folder}/fd/{name}"
            with suppress(OSError):
                target = os.readlink(path)
                if target == _EPOLL:
                    epolls += 1
                    # By how much a limit is exceeded does not matter: a look at each would take long.
                    most = max(0, limits.open_files_total - total) + len(names) + 1 - watches
                    watches += count_watches(f"{folder}/fdinfo/{name}", most) if most > 0 else 0
                elif target.startswith("socket:") and target not in objects:
                    # A busy worker may leave what the host sends it waiting for long; that hides nothing.
                    if not is_fed_by_host(int(target[8:-1])):
                        in_flight += _count_in_flight(f"{folder}/fdinfo/{name}")
                elif is_many:
                    target = _identify(path, target)
                    rulesets += target == _RULESET
                objects.add(target)
        # A watch for each open file is what programs have; more come of numbers that are used again.
        total += (_FILES_PER_EPOLL - 1) * epolls * is_many + max(0, watches - len(names))
        watches_total += watches
    kernel = watches_total * _WATCH_BYTES + in_flight * SOCKET_BYTES
    if is_many:
        pipes = sum(target.startswith("pipe:") for target in objects)
        sockets = sum(target.startswith("socket:") for target in objects)
        kernel += sockets * SOCKET_BYTES + pipes * _PIPE_BYTES + rulesets * _RULESET_BYTES
        total += count_files_of_pipes(pipes, pages)
    return OpenFiles(total + in_flight, kernel, unseen + in_flight)
