"""The claims of other processes: which lock files of workspaces they have locked, in whatever state folder.

Threat: a second process uses another state folder, whose lock files the first one does not lock.
Mechanism: the names of lock files are digests of paths, and the kernel says which process has locked which
file. So who has taken its own locks looks at those of the other processes of the user.
Race: two processes claim at the same time. Each takes its locks before it looks, so at least one of them sees
the other.
When it fails: processes that this one may not look at, of another user or in another container, are not seen.
A process that may gain no privileges and whose system calls are filtered, unlike this one, is in a sandbox.
What that has locked counts for nothing: else it could have any folder refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FEW_FILES = 1_000
"""Open files of all processes up to which each is looked at: that takes 2 ms."""
_LOOKS = 8
"""How often a name and a lock that disagree are read. Some file systems number their files in two ways."""

_CLAIM_NAME = re.compile(r".*/claims/([0-9a-f]{32})\.lock")
_find_flocks = re.compile(rb"^\d+: FLOCK +ADVISORY +(?:READ|WRITE) +(\d+) ", re.MULTILINE).findall
_find_lock = re.compile(
    rb"^lock:\t\d+: FLOCK +ADVISORY +(READ|WRITE) +\d+ [0-9a-f]+:[0-9a-f]+:(\d+) ", re.MULTILINE
).search
_find_confined = re.compile(rb"^(?:NoNewPrivs:\t1|Seccomp:\t2)", re.MULTILINE).findall


def is_same_for(pid: int, folder: str) -> bool:
    """Return whether a path leads another process, which may be in a container, to the same folder as us."""
    try:
        ours, theirs = Path(folder).stat(), Path(f"/proc/{pid}/root{folder}").stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it may not be looked at: nothing says that it is another one
    return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)


def list_claims(*, few_files: int = FEW_FILES) -> Iterator[tuple[int, str, bool]]:
    """Yield each lock file that another process has locked: process, digest, and whether for itself alone.

    Args:
        few_files: Open files of all processes up to which each is looked at; with more, the kernel is asked
            which processes have locked anything.
    """
    try:
        pids = _find_processes(few_files)
        if pids is None:
            pids = _find_lock_holders()
        is_confined = _is_confined(os.getpid())
    except OSError:
        return  # this system has no such list
    for pid in pids - {0, os.getpid()}:
        for name, is_alone in _claims_of(pid, is_confined=is_confined):
            yield pid, name, is_alone


def _claims_of(pid: int, *, is_confined: bool) -> Iterator[tuple[str, bool]]:
    # Another user's process, or one that ends meanwhile, which unlocks what it has locked.
    with suppress(OSError):
        folder = f"/proc/{pid}/fd"
        for name in os.listdir(folder):  # noqa: PTH208 - of hundreds of files, paths take three times as long
            with suppress(FileNotFoundError):  # it is closed meanwhile
                link = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - as above
                if not link.endswith(".lock"):
                    continue
                if not _CLAIM_NAME.fullmatch(link) or _is_confined(pid) > is_confined:
                    continue
                claim = _read_claim(pid, name)
                if claim is not None:
                    yield claim


def _find_lock_holders() -> set[int]:
    """Return the processes that have locked a file. The kernel takes 6 ms for it, in which it waits.

    Raises:
        OSError: It has no list of them.
    """
    return {int(pid) for pid in _find_flocks(Path("/proc/locks").read_bytes())}


def _find_processes(few_files: int) -> set[int] | None:
    """Return the processes of this user, or of all for root; None where looking at each would take longer.

    Race: one that begins meanwhile, or opens a file, has not taken its locks yet, and will see ours.

    Raises:
        OSError: The system does not list processes.
    """
    if not Path("/proc/self/fd").stat().st_size:
        return None  # before Linux 6.2 nothing says how many files a process has open
    user, files = os.geteuid(), 0
    found: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - hundreds of paths take 1 ms to make
        if name.isdigit():
            with suppress(OSError):  # it has ended
                status = os.stat(f"/proc/{name}/fd")  # noqa: PTH116 - as above
                if status.st_size and user in {0, status.st_uid}:
                    found.add(int(name))
                    files += status.st_size
                    if files > few_files:
                        return None
    return found


def _read_claim(pid: int, descriptor: str) -> tuple[str, bool] | None:
    """Return the digest in the name of a lock file, and whether it is locked for one process alone.

    None without a lock.

    Race: the other process closes the file, and its next one, which it locks in another way, gets the same
    number. The kernel tells name and lock one after the other, so they may be of two files. The lock's inode
    says which one it is of.

    Raises:
        FileNotFoundError: It is closed.
    """
    link, info = Path(f"/proc/{pid}/fd/{descriptor}"), Path(f"/proc/{pid}/fdinfo/{descriptor}")
    claim = None
    names: dict[int, str] = {}  # by inode, of all looks: a process that goes to and fro has few of them
    for _ in range(_LOOKS):
        path = str(link.readlink())
        lock = _find_lock(info.read_bytes())
        found = _CLAIM_NAME.fullmatch(path)
        if found is None or lock is None:
            return None
        is_alone, inode = lock[1] == b"WRITE", int(lock[2])
        with suppress(OSError):  # it may not be looked at, or is removed
            names[Path(f"/proc/{pid}/root{path}").stat().st_ino] = found[1]
        if inode in names:
            return names[inode], is_alone
        claim = found[1], is_alone
    return claim


def _is_confined(pid: int) -> bool:
    """Return whether a process has given up for good what every process in a sandbox of ours has to."""
    return len(_find_confined(Path(f"/proc/{pid}/status").read_bytes())) > 1
