"""Operations relative to an open directory: bounds, swapped files, and what is put back."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.dirfd import (
    APPEND_FLAGS,
    CREATE_FLAGS,
    DIRECTORY_FLAGS,
    LOCK_FLAGS,
    MOST_NAME_BYTES,
    READ_FLAGS,
    WALK_FLAGS,
    Entry,
    FileSnapshot,
    Folder,
    extend_name,
    flush_file_system,
    has_writer,
    holds,
    kind_of,
    list_folder,
    open_directory,
    open_regular,
    probe_maps,
    read_to_end,
    replace_file,
    require_regular,
    sync_file,
    sync_file_system,
    sync_folder,
    take_snapshot,
    trusted_device,
    walk_below,
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    file = os.open(tmp_path, os.O_RDONLY)
    yield file
    os.close(file)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        folder = os.open(path.parent, os.O_RDONLY)
        one.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


@pytest.mark.parametrize(
    "flags", [READ_FLAGS, DIRECTORY_FLAGS, WALK_FLAGS, CREATE_FLAGS, APPEND_FLAGS, LOCK_FLAGS]
)
def test_no_flags_follow_links_or_leak_into_children(flags: int) -> None:
    assert flags & os.O_NOFOLLOW
    assert flags & os.O_CLOEXEC


def test_kinds(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    make_socket(tmp_path / "socket")
    for path, kind in [
        (tmp_path / "file", "file"),
        (tmp_path, "directory"),
        (tmp_path / "link", "symlink"),
        (tmp_path / "fifo", "fifo"),
        (tmp_path / "socket", "socket"),
        (Path("/dev/null"), "device"),
    ]:
        assert kind_of(path.lstat()) == kind


def test_entry_describes_its_stat(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "file").chmod(0o4640)
    entry = Entry("a/file", (tmp_path / "file").lstat())
    assert (entry.name, entry.kind, entry.size, entry.mode) == ("file", "file", 3, 0o4640)


# ---- folders


def test_listing_is_sorted_and_bounded(tmp_path: Path, directory: int) -> None:
    for number in range(2_500):
        (tmp_path / f"{number:04}").touch()
    folder = list_folder(".", directory, max_entries=10)
    assert [entry.name for entry in folder.entries] == [f"{number:04}" for number in range(10)]
    assert folder.left_out == 2_490
    everything = list_folder(".", directory)
    assert (len(everything.entries), everything.left_out) == (2_500, 0)
    odd = list_folder(".", directory, lambda name: name.endswith("1"), max_entries=3)
    assert [entry.name for entry in odd.entries] == ["0001", "0011", "0021"]
    assert odd.left_out == 247


def test_paths_of_entries_are_relative_to_the_workspace(tmp_path: Path, directory: int) -> None:
    (tmp_path / "a").touch()
    assert Folder(".", directory, ()).stat("a").path == "a"
    assert Folder("b/c", directory, ()).stat("a").path == "b/c/a"
    with pytest.raises(FileNotFoundError):
        Folder(".", directory, ()).stat("gone")


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3 << 20])
def test_entry_is_read_up_to_a_limit(tmp_path: Path, directory: int, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    folder = list_folder(".", directory)
    for max_bytes in (0, 1, size, size + 1, 4 << 20):
        assert folder.read(folder.entries[0], max_bytes=max_bytes) == data[:max_bytes]


def test_only_regular_entries_are_read(tmp_path: Path, directory: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "sub").mkdir()
    fifo, link, sub = list_folder("d", directory).entries
    folder = Folder("d", directory, ())
    with pytest.raises(WorkspaceError, match=r"'d/fifo' is a FIFO, not a file\. It is left alone"):
        folder.read(fifo, max_bytes=10)
    with pytest.raises(WorkspaceError, match="'d/link' became a link while it was used"):
        folder.read(link, max_bytes=10)
    with pytest.raises(IsADirectoryError):
        folder.read(sub, max_bytes=10)


def test_entry_that_is_swapped_after_the_listing_is_not_followed(tmp_path: Path, directory: int) -> None:
    for name in ("fifo", "link"):
        (tmp_path / name).write_text("x")
    folder = list_folder(".", directory)
    for name in ("fifo", "link"):
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(WorkspaceError, match="is a FIFO"):
        folder.read(folder.entries[0], max_bytes=10)
    with pytest.raises(OSError, match="Too many levels") as error:
        folder.read(folder.entries[1], max_bytes=10)
    assert error.value.errno == errno.ELOOP


def test_open_directory_takes_folders_only(tmp_path: Path, directory: int) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "link").symlink_to("sub")
    (tmp_path / "file").touch()
    inner = open_directory(directory, "sub")
    assert os.fstat(inner).st_ino == (tmp_path / "sub").stat().st_ino
    os.close(inner)
    for name in ("link", "file", "gone"):
        with pytest.raises(OSError, match=r"Not a directory|Too many levels|No such file"):
            open_directory(directory, name)


# ---- files


def test_regular_files_are_distinguished_from_others(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12")
    assert require_regular((tmp_path / "file").lstat(), "file") == 2
    with pytest.raises(WorkspaceError, match="'/dev/null' is a device"):
        require_regular(Path("/dev/null").lstat(), "/dev/null")
    make_socket(tmp_path / "s")
    with pytest.raises(WorkspaceError, match=r"'b\\\\xff' is a socket"):
        require_regular((tmp_path / "s").lstat(), os.fsdecode(b"b\xff"))


@pytest.mark.parametrize("size", [0, 5, 6, 7, 3 << 20])
@pytest.mark.parametrize("max_bytes", [0, 6, 7, 4 << 20])
def test_file_is_read_to_its_end_whatever_its_size_was(tmp_path: Path, size: int, max_bytes: int) -> None:
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    file = os.open(tmp_path / "a", os.O_RDONLY)
    assert read_to_end(file, 5, max_bytes) == data[:max_bytes]
    os.close(file)


def test_whole_file_or_nothing_is_read(tmp_path: Path, directory: int) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert take_snapshot(directory, "a", 5, racy_ns=0, trusted=False).data == b"12345"
    assert take_snapshot(directory, "a", 4, racy_ns=0, trusted=False).data is None
    (tmp_path / "large").write_bytes(bytes(3 << 20))
    assert take_snapshot(directory, "large", 3 << 20, racy_ns=0, trusted=False).data == bytes(3 << 20)
    os.mkfifo(tmp_path / "fifo")
    assert take_snapshot(directory, "fifo", 5, racy_ns=0, trusted=False).data is None
    (tmp_path / "link").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels"):
        take_snapshot(directory, "link", 5, racy_ns=0, trusted=False)


def test_snapshot_matches_until_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    snapshot = FileSnapshot(file.lstat(), b"1", clean=True)
    assert snapshot.matches(file.lstat())

    def create_again() -> None:
        file.rename(tmp_path / "old")
        file.write_text("22")

    changes: list[Callable[[], object]] = [
        lambda: file.chmod(0o600),
        lambda: file.write_text("22"),
        create_again,
    ]
    for change in changes:
        before = FileSnapshot(file.lstat(), b"", clean=True)
        change()
        assert not before.matches(file.lstat())


def test_file_is_replaced_with_mode_and_times_under_a_new_inode(tmp_path: Path, directory: int) -> None:
    file = tmp_path / "a"
    file.write_text("good")
    file.chmod(0o2750)
    os.utime(file, ns=(1_000, 2_000))
    before = file.lstat()
    snapshot = FileSnapshot(before, b"good", clean=True)
    with file.open("r+") as writer:
        file.write_text("evil")
        restored = replace_file(directory, "a", snapshot)
        writer.write("late")
    status = file.lstat()
    assert file.read_text() == "good"
    assert (status.st_mode, status.st_mtime_ns) == (before.st_mode, 2_000)
    assert status.st_ino != before.st_ino
    assert restored.matches(status)
    assert not restored.clean
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_link_is_replaced_as_a_link(tmp_path: Path, directory: int) -> None:
    (tmp_path / "a").symlink_to("target")
    snapshot = FileSnapshot((tmp_path / "a").lstat(), b"target", clean=True)
    (tmp_path / "a").unlink()
    (tmp_path / "a").write_text("evil")
    replace_file(directory, "a", snapshot)
    assert (tmp_path / "a").is_symlink()
    assert os.readlink(tmp_path / "a") == "target"  # noqa: PTH115 - the text itself


def test_folder_in_the_way_is_moved_aside(tmp_path: Path, directory: int) -> None:
    (tmp_path / "a").write_text("good")
    snapshot = FileSnapshot((tmp_path / "a").lstat(), b"good", clean=True)
    (tmp_path / "a").unlink()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine").touch()
    replace_file(directory, "a", snapshot)
    assert (tmp_path / "a").read_text() == "good"
    (aside,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert aside.name.startswith("a.")
    assert (aside / "mine").exists()


def test_failed_replacement_leaves_no_temporary_file(tmp_path: Path, directory: int) -> None:
    (tmp_path / "a").write_text("good")
    snapshot = FileSnapshot((tmp_path / "a").lstat(), b"good", clean=True)
    with pytest.raises(FileNotFoundError):
        replace_file(directory, "gone/a", snapshot)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert stat.S_ISREG((tmp_path / "a").lstat().st_mode)


def test_sync_ignores_only_what_has_no_pages(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    sync_file(writing)  # EINVAL
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_file(writing)
    folder = os.open(tmp_path, os.O_RDONLY)
    assert sync_file_system(folder)
    os.close(folder)
    assert not sync_file_system(-1)


def test_folders_and_whole_file_systems_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))  # noqa: PTH115 - the text itself
    sync_folder(tmp_path)
    assert synced == [str(tmp_path)]
    folder = os.open(tmp_path, os.O_RDONLY)
    flush_file_system(folder)
    os.close(folder)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        flush_file_system(folder)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "gone")


def test_a_writer_of_a_file_is_found_by_its_descriptor_or_its_map(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"text")
    file = os.open(place, READ_FLAGS)
    assert not has_writer(file)
    with place.open("r+b") as opened:
        assert has_writer(file)
        pages = mmap.mmap(opened.fileno(), 0)
    assert has_writer(file)  # the map alone
    pages.close()
    with mmap.mmap(file, 0, prot=mmap.PROT_READ):
        assert not has_writer(file)
    assert fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_UNLCK
    os.close(file)
    assert has_writer(os.open(tmp_path, WALK_FLAGS))  # nobody can tell


def test_a_look_for_writers_asks_for_no_signal_that_ends_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(fcntl, "fcntl", lambda _, command, argument: asked.append((command, argument)))
    (tmp_path / "file").touch()
    with (tmp_path / "file").open("rb") as opened:
        assert not has_writer(opened.fileno())
    assert asked == [
        (fcntl.F_SETSIG, signal.SIGURG),
        (fcntl.F_SETLEASE, fcntl.F_RDLCK),
        (fcntl.F_SETLEASE, fcntl.F_UNLCK),
    ]


def test_a_snapshot_says_what_an_unchanged_time_proves(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"text")
    folder = os.open(tmp_path, DIRECTORY_FLAGS)
    later_ns = place.stat().st_ctime_ns + 1

    def is_clean(racy_ns: int = later_ns, *, trusted: bool = True) -> bool:
        return take_snapshot(folder, "file", 100, racy_ns=racy_ns, trusted=trusted).clean

    assert is_clean()
    assert not is_clean(later_ns - 1)
    assert not is_clean(trusted=False)
    with place.open("r+b"):
        assert not is_clean()
    assert take_snapshot(folder, "file", 4, racy_ns=0, trusted=True).data == b"text"
    assert take_snapshot(folder, "file", 3, racy_ns=0, trusted=True).data is None
    os.mkfifo("fifo", dir_fd=folder)
    assert take_snapshot(folder, "fifo", 100, racy_ns=0, trusted=True).data is None
    os.close(folder)


def test_a_file_is_compared_by_stamp_and_content(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_bytes(b"text")
    status = place.stat()
    stamp = status.st_ino, status.st_dev, status.st_ctime_ns
    assert holds(str(place), stamp, b"text")
    for data in (b"tex", b"texts", b"TEXT"):
        assert not holds(str(place), stamp, data)
    assert not holds(str(place), (*stamp[:2], stamp[2] + 1), b"text")
    with pytest.raises(FileNotFoundError):
        holds(str(tmp_path / "gone"), stamp, b"text")


def test_a_file_system_says_what_its_times_prove(tmp_path: Path) -> None:
    facts = probe_maps(tmp_path)
    assert facts is not None
    assert trusted_device(tmp_path) in {None, tmp_path.stat().st_dev}
    assert (trusted_device(tmp_path) is None) == (not (facts.stamped and facts.leased))
    assert [*tmp_path.iterdir()] == []
    assert probe_maps(tmp_path / "gone") is None
    assert probe_maps(Path("/proc")) is None
    assert trusted_device(Path("/proc")) is None


def nest(folder: Path, levels: int) -> None:
    opened = os.open(folder, DIRECTORY_FLAGS)
    for _ in range(levels):
        os.mkdir("d", dir_fd=opened)
        opened, outer = os.open("d", DIRECTORY_FLAGS, dir_fd=opened), opened
        os.close(outer)
    os.close(opened)


def remove(folder: Path) -> None:
    """Remove what a folder holds, which is deeper than `shutil` goes."""
    subprocess.run(["rm", "-rf", *folder.iterdir()], check=True)


def count_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def subfolders(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def test_deep_folders_are_walked_with_few_descriptors(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        nest(tmp_path / name, 2_500)
    (tmp_path / "link").symlink_to(".")
    root = os.open(tmp_path, DIRECTORY_FLAGS)
    before, most, visited = count_open_files(), 0, 0

    def visit(folder: int) -> list[str]:
        nonlocal most, visited
        visited += 1
        if visited % 100 == 0:
            most = max(most, count_open_files())
        return subfolders(folder)

    assert walk_below(root, visit)
    assert visited == 1 + 2 * 2_501
    assert most < before + 70
    assert count_open_files() == before
    with pytest.raises(ZeroDivisionError):
        walk_below(root, lambda folder: [*subfolders(folder), str(1 // (count_open_files() < before + 50))])
    assert count_open_files() == before
    os.close(root)
    remove(tmp_path)


def test_a_walk_says_that_it_has_left_something_out(tmp_path: Path) -> None:
    for name in ("a/inner", "b/inner"):
        (tmp_path / name).mkdir(parents=True)
    root = os.open(tmp_path, DIRECTORY_FLAGS)
    seen: list[str] = []

    def visit(folder: int) -> list[str]:
        seen.append(os.readlink(f"/proc/self/fd/{folder}").removeprefix(str(tmp_path)))  # noqa: PTH115 - a descriptor
        return [*subfolders(folder), "gone"]

    assert not walk_below(root, visit)
    assert seen == ["", "/a", "/a/inner", "/b", "/b/inner"]
    os.close(root)


def test_a_walk_does_not_go_back_into_another_folder(tmp_path: Path) -> None:
    """Race: a folder is moved while the walk is far below it; then `..` leads out of what is walked."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
    nest(inside, 100)
    (inside / "late").mkdir()
    root = os.open(inside, DIRECTORY_FLAGS)
    visited = 0

    def visit(folder: int) -> list[str]:
        nonlocal visited
        visited += 1
        if visited == 101:
            (inside / "d/d").rename(outside / "d")
        assert os.readlink(f"/proc/self/fd/{folder}") != str(outside)  # noqa: PTH115 - a descriptor
        return subfolders(folder)

    before = count_open_files()
    assert not walk_below(root, visit)
    assert visited == 101
    assert count_open_files() == before
    os.close(root)


def test_regular_file_is_opened_wherever_a_path_leads(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_regular(str(tmp_path / name)) as file:
            assert os.read(file, 9) == b"text"
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)


@pytest.mark.parametrize("name", ["", "fifo", "missing", "circle", "a\0b"])
def test_fifo_folder_and_nothing_are_not_opened_as_a_file(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "circle").symlink_to("circle")
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(OSError, match=r"Invalid|No such|Too many"), open_regular(f"{tmp_path}/{name}"):
        pass
    assert len([*Path("/proc/self/fd").iterdir()]) == before


# ---- long names

CHARACTERS = {
    "ASCII": b"p",
    "2 bytes": "é".encode(),
    "3 bytes": "字".encode(),
    "4 bytes": "😀".encode(),
    "raw": b"\xff",
}


@pytest.mark.parametrize("kind", CHARACTERS)
@pytest.mark.parametrize("size", range(240, MOST_NAME_BYTES + 1))
def test_a_longer_name_is_cut_between_characters(tmp_path: Path, kind: str, size: int) -> None:
    """The longest names have no room for an ending; what is made of them can be made all the same."""
    one = CHARACTERS[kind]
    raw = one * (size // len(one)) + b"." * (size % len(one))
    for beginning, ending in (("", ".0123456789abcdef"), ("001-", ".kept"), ("", "")):
        made = extend_name(os.fsdecode(raw), ending, beginning)
        assert len(os.fsencode(made)) <= MOST_NAME_BYTES
        assert made.startswith(beginning)
        assert made.endswith(ending)
        middle = os.fsencode(made)[len(beginning) : len(os.fsencode(made)) - len(ending)]
        assert raw.startswith(middle)
        assert len(middle) > min(len(raw), MOST_NAME_BYTES - len(beginning) - len(ending)) - 4
        if kind != "raw":
            middle.decode()
        (tmp_path / made).touch()


@pytest.mark.parametrize("size", [1, 240, 246, 247, 254, 255])
def test_a_folder_in_the_place_of_a_file_gets_a_free_name_however_long_it_is(
    directory: int, tmp_path: Path, size: int
) -> None:
    name = "p" * size
    (tmp_path / name).write_text("mine")
    snapshot = take_snapshot(directory, name, 100, racy_ns=0, trusted=False)
    (tmp_path / name).unlink()
    (tmp_path / name / "inner").mkdir(parents=True)
    replace_file(directory, name, snapshot)
    assert (tmp_path / name).read_text() == "mine"
    (other,) = (one for one in tmp_path.iterdir() if one.name != name)
    assert (other / "inner").is_dir()
