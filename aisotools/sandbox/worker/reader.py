"""A reader: a fork of the worker without any right to change something, for tools that say they only read.

Threat
    A tool that is declared or classified read only writes. Nobody was asked, and no checkpoint exists.
Mechanism
    Its code is loaded and run in a fork of the worker, never in the worker. First the fork gives up, for
    good: files (a Landlock layer without writable folders, scratch included, but for the folder that a trial
    is given for itself), signals to what it has not
    started and /proc of others (the same layer), sockets, and mode, owner, times, attributes and flags of
    files, which Landlock does not govern (a system call filter). What it has inherited is taken away before,
    as neither looks at that: files are opened anew for reading, other descriptors (pipes, sockets, terminals,
    event counters) go dead, shared memory becomes a private copy. The host lists them. Before it sends
    a call, the host asks the kernel whether the reader has one thread, and one filter more than its snapshot.
Race window
    None for the tool: the fork has one thread, was listed while it waited for the host, and runs no code of
    the tool before `give_up_rights` returns. Not covered is what a call that may change things left in the
    worker (threads, programs, replaced functions): that has its rights, and a reader cannot reach it. Reading
    has effects of its own, too: it takes time and locks, and what a named pipe holds.
Not proven
    All this runs in the worker's own Python, which an earlier call may have changed. That the rights are
    given up is certain against the tool, and found out if a function here was replaced or left out. It is not
    certain against an earlier call that was allowed to change things and prepares for it: code of its own may
    load a filter that refuses nothing. From outside a filter can be counted but not read, a layer of Landlock
    cannot even be seen, and an attempt that must fail proves nothing where the one who makes it is not
    believed. Such a call can as well leave a thread in the worker that writes later: what it may change, it
    may change at any time until the worker is replaced.
When it fails
    The fork ends, and the call is an error; it never runs in the worker instead. Below level `confined`, and
    before version 6 of Landlock, there are no readers: there such a call counts as a local change.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement import landlock, seccomp, syscalls
from aisotools.sandbox.confinement.denied_reads import restrict_reads

MAX_COPIED_BYTES = 256 << 20
"""Shared memory that is copied for a reader. A worker that shares more gets no reader."""

_DEVICES = {os.makedev(1, minor) for minor in (3, 5, 7, 8, 9)}  # null, zero, full, random, urandom
_O_PATH = 0o10000000  # `os.O_PATH`, which other systems lack: there this module is imported all the same
_MREMAP_MAYMOVE_FIXED = 3
_FAILED = ctypes.c_void_p(-1).value


def give_up_rights(
    listing: Mapping[str, Any],
    *,
    own: Collection[int],
    former: Collection[int] = (),
    writable: Iterable[str],
    reads: Mapping[str, Sequence[str]] | None = None,
    scratch: str = "",
) -> list[str]:
    """Make this process a reader, for good. It must have one thread, and be neither host nor worker.

    Args:
        listing: What the host has found in this process: `open`, the numbers of its descriptors, and
            `shared`, its shared mappings as start, end and rights (such as `rw-`).
        own: Descriptors that stay as they are; 0, 1 and 2 always do.
        former: Descriptors that the worker itself used, which nobody misses.
        writable: Folders that the worker can change; that nothing can be created there is tested.
        reads: Absolute paths that stay `readable`, but for those that rules of the policy have `denied`. None
            leaves reading as it is.
        scratch: A folder that may be changed all the same, below one of these; empty for none.

    Returns:
        What the reader lacks, in words.

    Raises:
        OSError: A step failed. The process must end.
        SandboxError: Likewise.
    """
    # The order matters. Descriptors and mappings keep the rights with which they were made, whatever is
    # forbidden later, so they go first; replacing them opens files, which Landlock would refuse after it.
    # The filter comes last, since it refuses the system calls that set up the others. What is still
    # possible is tried at the end, and anything found ends the process.
    lost = replace_descriptors(listing["open"], {0, 1, 2, *own}, former)
    unshare_memory([(start, end, rights) for start, end, rights in listing["shared"]])
    landlock.restrict_reader((scratch,) if scratch else ())
    if reads is not None:
        restrict_reads(reads["readable"], reads["denied"])
    arch = syscalls.architecture()
    if arch is not None:
        # Last: this filter would refuse the system calls of the layers before it.
        seccomp.load_filter(seccomp.build_filter(arch, seccomp.READER, landlock.abi()))
    if failures := list_remaining_rights(writable):
        raise SandboxError("; ".join(failures))
    return lost


# ---- descriptors


def replace_descriptors(
    numbers: Iterable[int], keep: Collection[int], former: Collection[int] = ()
) -> list[str]:
    """Take away what could be written through a descriptor. Return what is lost, in words.

    Args:
        numbers: Every descriptor of this process.
        keep: Those to leave alone.
        former: Those that are no loss.
    """
    dead = 0
    # Every operation on such a descriptor fails with EBADF. The number itself stays taken: its owner will
    # close it, which must not hit a descriptor that got the number meanwhile.
    nothing = os.open(os.devnull, _O_PATH | os.O_CLOEXEC)
    try:
        for number in numbers:
            if number in keep:
                continue
            try:
                status = os.fstat(number)
                flags = fcntl.fcntl(number, fcntl.F_GETFL)
            except OSError:
                continue  # closed since the host has listed it: it was the fork's own way to the host
            has_place = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            if _is_harmless(status, flags) or (has_place and _reopen(number)):
                continue
            os.dup2(nothing, number, inheritable=False)
            dead += number not in former
    finally:
        os.close(nothing)
    return [f"{dead} pipes, sockets or the like"] if dead else []


def _is_harmless(status: os.stat_result, flags: int) -> bool:
    if flags & _O_PATH:
        return True  # nothing can be written through it; what is opened by it is decided by the layers
    return stat.S_ISCHR(status.st_mode) and status.st_rdev in _DEVICES


def _reopen(number: int) -> bool:
    """Open a file or folder anew for reading, where it was read. Return whether that was possible."""
    # Also if it was open for reading only: the worker would notice that its place in there has moved.
    try:
        place = os.lseek(number, 0, os.SEEK_CUR)
        inheritable = os.get_inheritable(number)
        own = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.lseek(own, place, os.SEEK_SET)
        # At once under the old number: a thread of user code never finds it closed, or taken by another
        # file.
        os.dup2(own, number, inheritable=inheritable)
    finally:
        os.close(own)
    return True


# ---- shared memory


class _Memory:
    """The calls of the C library that Python has no names for."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        library.mmap.restype = library.mremap.restype = pointer
        library.mmap.argtypes = (pointer, size, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
        library.mremap.argtypes = (pointer, size, size, ctypes.c_int, pointer)
        library.mprotect.argtypes = (pointer, size, ctypes.c_int)
        self._library = library

    def protect(self, start: int, size: int, rights: int) -> int:
        """Return 0, or the error number."""
        return ctypes.get_errno() if self._library.mprotect(start, size, rights) else 0

    def replace_by_copy(self, start: int, size: int) -> None:
        """Put a private copy in the place of a mapping that can be read.

        Raises:
            OSError: There is no memory for it.
        """
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        copy = self._library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if copy == _FAILED:
            raise OSError(ctypes.get_errno(), "no memory for a copy of shared memory")
        ctypes.memmove(copy, start, size)
        if self._library.mremap(copy, size, size, _MREMAP_MAYMOVE_FIXED, start) == _FAILED:
            raise OSError(ctypes.get_errno(), "shared memory could not be replaced")


def unshare_memory(mappings: Iterable[tuple[int, int, str]]) -> None:
    """Put private copies in the place of shared mappings, but for those that can never be written.

    Args:
        mappings: Start, end and rights of each.

    Raises:
        OSError: A mapping could not be replaced.
        SandboxError: Together they are too large.
    """
    memory, bytes_left = _Memory(), MAX_COPIED_BYTES
    for start, end, rights in mappings:
        size = end - start
        was = sum(
            bit
            for letter, bit in (("r", mmap.PROT_READ), ("w", mmap.PROT_WRITE), ("x", mmap.PROT_EXEC))
            if letter in rights
        )
        # The kernel knows whether the file was opened for writing: then it lets the mapping be made writable,
        # which any code could do later.
        refusal = memory.protect(start, size, mmap.PROT_READ | mmap.PROT_WRITE)
        if refusal == errno.EACCES and "w" not in rights:
            continue
        if refusal:
            raise OSError(refusal, "shared memory could not be examined")
        bytes_left -= size
        if bytes_left < 0:
            raise SandboxError(
                f"the worker shares more than {MAX_COPIED_BYTES >> 20} MiB of memory that can be written "
                "(mmap, numpy.memmap, shared_memory); close it, or open it for reading only"
            )
        memory.replace_by_copy(start, size)
        if refused := memory.protect(start, size, was):
            raise OSError(refused, "shared memory could not be replaced")


# ---- checking


def list_remaining_rights(writable: Iterable[str]) -> list[str]:
    """Return what this process can still do although a reader must not, in words."""
    failures = [f"files can still be made in {folder!r}" for folder in writable if _can_create(folder)]
    # Signal 0 is sent to nobody. EPERM: refused, as it must be. ESRCH: the parent has ended meanwhile.
    try:
        os.kill(os.getppid(), 0)
    except (PermissionError, ProcessLookupError):
        pass
    else:
        failures.append("other processes can still be signalled")
    if syscalls.architecture() is not None and not _refuses_sockets():
        failures.append("sockets can still be made")
    if syscalls.architecture() is not None and not _refuses_modes():
        failures.append("modes of files can still be changed")
    if sys.platform != "linux":
        failures.append("this system is not known")
    return failures


def _can_create(folder: str) -> bool:
    try:
        # A nameless file: nothing is left behind where this is still possible.
        os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        # Where the file system has no nameless files, Landlock refuses before that is found out.
        return error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT}
    return True


def _refuses_modes() -> bool:
    # No file has a number below 0: where the call is still made, it fails for another reason.
    try:
        syscalls.call("fchmod", -1, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return False


def _refuses_sockets() -> bool:
    try:
        os.close(syscalls.call("socket", 2, 1, 0))
    except OSError as error:
        return error.errno in {errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT}
    return False
