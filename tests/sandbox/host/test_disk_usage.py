"""Disk space that a sandbox has taken, however it hides it; and honest work, which is not an alarm."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisotools.sandbox.host import disk_usage
from aisotools.sandbox.host.disk_usage import DiskUsage, free_bytes
from aisotools.sandbox.limits import Limits
from tests.waiting import file_times_advance

MIB = 1 << 20
LIMITS = Limits(disk_bytes=4 * MIB)


class Free:
    """The free space of a file system that nobody else uses."""

    def __init__(self) -> None:
        self.bytes = 1 << 40

    def __call__(self, folder: str) -> int:
        return self.bytes


def watch(folder: Path, free: Free | None = None) -> DiskUsage:
    for _ in range(2):  # a time that somebody has asked for may be ahead of the next one
        file_times_advance()
    disk = DiskUsage([str(folder)], LIMITS, free or Free())
    file_times_advance()
    return disk


def dig(folder: Path, levels: int) -> int:
    """Make folders in one another. Return a descriptor of the lowest."""
    place = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=place)
        below = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    return place


def write(name: str, size: int, place: int) -> None:
    file = os.open(name, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=place)
    os.posix_fallocate(file, 0, size)
    os.close(file)


@contextmanager
def running(code: str, folder: Path) -> Iterator[None]:
    """A child of this process that has done something, and waits."""
    script = f"{code}\nprint('done', flush=True)\ninput()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], cwd=folder, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        try:
            yield
        finally:
            process.kill()


# ---- what counts


def test_disk_counts_what_was_written_since(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"x" * MIB)
    disk = watch(tmp_path)
    assert disk.used_bytes(0) == 0
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "new").write_bytes(b"x" * MIB)
    (tmp_path / "again").hardlink_to(tmp_path / "deep" / "er" / "new")
    (tmp_path / "out").symlink_to("/")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert MIB <= disk.used_bytes(0) < 1.1 * MIB


@pytest.mark.parametrize("levels", [99, 101, 205, 450])
def test_depth_hides_nothing(tmp_path: Path, levels: int) -> None:
    disk = watch(tmp_path)
    place = dig(tmp_path, levels)
    write("file", 5 * MIB, place)
    os.close(place)
    used = disk.used_bytes(0)
    shutil.rmtree(tmp_path / "d")
    assert 5 * MIB <= used < 5 * MIB + (levels + 1) * 8192


def test_files_that_the_walk_does_not_reach_count_as_what_the_disk_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_usage, "_MAX_ENTRIES", 20)
    for number in range(30):
        (tmp_path / f"old {number}").touch()
    free = Free()
    disk = watch(tmp_path, free)
    assert disk.used_bytes(0) == 0  # a large workspace alone is not an alarm
    free.bytes -= 5 * MIB
    assert disk.is_due()
    assert disk.used_bytes(0) == 5 * MIB
    assert disk.used_bytes(0) == 5 * MIB  # not only what was lost since the last look


@pytest.mark.parametrize("bound", ["_MAX_WAITING", "_MAX_LINKED"])
def test_other_bounds_count_as_what_the_disk_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(disk_usage, bound, 2)
    free = Free()
    disk = watch(tmp_path, free)
    if bound == "_MAX_WAITING":
        place = dig(tmp_path, 100)
        for name in "abc":
            os.mkdir(name, dir_fd=place)
        os.close(place)
    else:
        for name in "abc":
            (tmp_path / name).touch()
            (tmp_path / f"{name}2").hardlink_to(tmp_path / name)
    free.bytes -= 50 * MIB
    assert disk.used_bytes(0) == 50 * MIB


def test_many_names_do_not_make_a_file_smaller(tmp_path: Path) -> None:
    disk = watch(tmp_path)
    (tmp_path / "outside").mkdir()
    walked = DiskUsage([str(tmp_path / "walked")], LIMITS, Free())
    (tmp_path / "walked").mkdir()
    (tmp_path / "walked" / "file").write_bytes(bytes(5 * MIB))
    for number in range(20):
        (tmp_path / "outside" / str(number)).hardlink_to(tmp_path / "walked" / "file")
    assert 5 * MIB <= walked.used_bytes(0) < 5.1 * MIB
    assert 5 * MIB <= disk.used_bytes(0) < 5.2 * MIB


def test_folders_take_space(tmp_path: Path) -> None:
    disk = watch(tmp_path)
    for number in range(500):
        (tmp_path / str(number)).mkdir()
    expected = sum((tmp_path / str(number)).stat().st_blocks * 512 for number in range(500))
    used = disk.used_bytes(0)
    assert expected <= used < expected + 64 * 1024


@pytest.mark.parametrize("closed_now", [False, True])
def test_a_folder_that_nobody_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_now: bool
) -> None:
    """It hides files if its mode is new, and nothing if it was so before."""
    open_any = os.open  # root may enter any folder, so do as if not

    def open_some(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "closed":
            raise PermissionError
        return open_any(path, flags, mode, dir_fd=dir_fd)

    (tmp_path / "closed").mkdir()
    free = Free()
    disk = watch(tmp_path, free)
    if closed_now:
        (tmp_path / "closed").chmod(0)
    free.bytes -= 50 * MIB
    monkeypatch.setattr(os, "open", open_some)
    assert (disk.used_bytes(0) == 50 * MIB) is closed_now
    monkeypatch.undo()
    (tmp_path / "closed").chmod(0o700)


# ---- files without names

OPEN = """
import os
file = os.open('gone', os.O_RDWR | os.O_CREAT)
os.posix_fallocate(file, 0, 5 << 20)
os.unlink('gone')
"""
OPEN_IN_TWO = f"""{OPEN}
if not os.fork():
    os._exit(len(os.read(0, 1)))
"""
MAP = f"""{OPEN}
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.mmap(None, 4096, 1, 1, file, 0)  # Python's own mmap keeps a descriptor
os.close(file)
"""
SEND = f"""{OPEN}
import socket
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b'x'], [file])
os.close(file)
"""


@pytest.mark.parametrize(
    "code",
    [OPEN, OPEN_IN_TWO, MAP],
    ids=["open", "open in two", "mapped"],
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into the mapped files of a process")
def test_a_file_without_a_name_counts_once(tmp_path: Path, code: str) -> None:
    disk = watch(tmp_path)
    with running(code, tmp_path):
        assert 5 * MIB <= disk.used_bytes(os.getpid()) < 5.1 * MIB
    assert disk.used_bytes(os.getpid()) < MIB


def test_a_file_that_is_on_its_way_counts_as_what_the_disk_has_lost(tmp_path: Path) -> None:
    free = Free()
    disk = watch(tmp_path, free)
    free.bytes -= 5 * MIB
    assert disk.used_bytes(os.getpid()) < MIB
    with running(SEND, tmp_path):
        assert disk.used_bytes(os.getpid()) == 5 * MIB


def test_a_mapped_file_whose_size_nobody_tells_counts_as_what_the_disk_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, devices: frozenset[int]) -> None:
        if "map_files" in path:
            raise PermissionError

    free = Free()
    disk = watch(tmp_path, free)
    free.bytes -= 5 * MIB
    monkeypatch.setattr(disk_usage._DiskWalk, "_count_deleted", lambda self, *given: refuse(*given))
    with running(MAP, tmp_path):
        assert disk.used_bytes(os.getpid()) == 5 * MIB
    with running("import mmap; shared = mmap.mmap(-1, 1 << 20)", tmp_path):
        assert disk.used_bytes(os.getpid()) < MIB


@pytest.mark.parametrize("kind", ["files", "links", "sockets"])
def test_files_without_content_take_space(tmp_path: Path, kind: str) -> None:
    """Of them a file system has only so many, for all programs."""
    disk = watch(tmp_path)
    for number in range(500):
        name = tmp_path / str(number)
        if kind == "links":
            name.symlink_to("x")
        else:
            os.mknod(name, stat.S_IFREG if kind == "files" else stat.S_IFSOCK)
    assert sum(file.lstat().st_blocks for file in tmp_path.iterdir()) == 0, "their size tells nothing"
    assert disk.used_bytes(0) == 500 * 4096


def test_free_files_are_part_of_what_a_disk_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = os.statvfs(tmp_path)
    values = [*status]
    values[2:6] = [1 << 20, 100_000, 100_000, 50_000]  # blocks, and free ones; files
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([4096, 4096, *values[2:]]))
    full = free_bytes(str(tmp_path))
    values[6] = values[6] + 1000
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([4096, 4096, *values[2:]]))
    assert free_bytes(str(tmp_path)) - full == 1000 * 4096


# ---- honest work


def test_a_repository_and_its_local_clone_count_at_their_size(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    disk = watch(tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "data").write_bytes(os.urandom(MIB))
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["clone", "-q", ".", "../two"]):
        subprocess.run([*git, *command], cwd=tmp_path / "one", check=True, capture_output=True)
    du = subprocess.run(["du", "-s", "-B1", tmp_path], capture_output=True, text=True, check=True).stdout
    used = disk.used_bytes(0)
    assert 3 * MIB <= used <= int(du.split()[0])  # two trees and one set of objects
    assert used < 4 * MIB


def test_packages_that_are_linked_from_a_cache_count_once(tmp_path: Path) -> None:
    """As conda and pnpm do it: in an environment each file is a further name of one in the cache."""
    disk = watch(tmp_path)
    (tmp_path / "pkgs").mkdir()
    for number in range(100):
        (tmp_path / "pkgs" / str(number)).write_bytes(bytes(20_000))
    expected = sum(file.stat().st_blocks * 512 for file in (tmp_path / "pkgs").iterdir())
    for env in ("a", "b", "c"):
        (tmp_path / env / "lib").mkdir(parents=True)
        for file in (tmp_path / "pkgs").iterdir():
            (tmp_path / env / "lib" / file.name).hardlink_to(file)
    assert expected <= disk.used_bytes(0) < expected + 256 * 1024


def test_many_small_folders_as_of_node_modules_are_no_alarm(tmp_path: Path) -> None:
    free = Free()
    disk = watch(tmp_path, free)
    place = dig(tmp_path, 30)
    os.close(place)
    for number in range(200):
        (tmp_path / "node_modules" / str(number) / "lib").mkdir(parents=True)
        (tmp_path / "node_modules" / str(number) / "lib" / "index.js").write_text("x")
    free.bytes -= 1 << 35  # others have written much
    assert disk.used_bytes(os.getpid()) < 4 * MIB
