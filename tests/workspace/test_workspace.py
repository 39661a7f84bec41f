"""File operations in a workspace, and attacks on them while they run."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace import paths
from aisotools.workspace.workspace import TEMPORARY, Workspace, _create
from tests.sandbox.inside import user_of
from tests.waiting import process_state, wait_until

CANARY = b"canary: nobody may read or change this"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root)


def test_a_file_that_a_rule_denies_is_read_by_no_name(root: Path, tmp_path: Path) -> None:
    for name in ("secrets/in", "deep", "pub"):
        (root / name).mkdir(parents=True)
    for name in ("secrets/key", "secrets/in/a", "deep/key", "pub/p", "secrets-of-nobody"):
        (root / name).write_bytes(b"content")
    (root / "link").symlink_to("deep/key")
    (root / "way").symlink_to("secrets")
    denied = [f"{root.resolve()}/{name}" for name in ("secrets", "deep/key", "none")]
    limited = Workspace(root, [*denied, str(tmp_path), "/etc"])
    for name in ("secrets/key", "secrets/in/a", "deep/key", "link", "way/in/a", "pub/../way/key"):
        assert read(Workspace(root), name) == b"content"
        with pytest.raises(WorkspaceError, match="is not read: a rule of the policy denies it"):
            read(limited, name)
    for name in ("pub/p", "secrets-of-nobody"):
        assert read(limited, name) == b"content"
    assert [limited.is_denied(name) for name in ("secrets", "secrets/in/a", "deep", ".")] == [
        True,
        True,
        False,
        False,
    ]
    found = {
        name: limited.find_denied(name) for name in (".", "deep", "deep/key", "secrets/in", "pub", "none")
    }
    assert found == {
        ".": "deep/key",
        "deep": "deep/key",
        "deep/key": "deep/key",
        "secrets/in": "secrets/in",
        "pub": "",
        "none": "none",
    }
    assert Workspace(root).find_denied(".") == ""


def read(workspace: Workspace, path: str) -> bytes:
    return workspace.read_bytes(path, max_bytes=1 << 20)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


# ---- reading


def test_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "nope"):
        with pytest.raises(WorkspaceError, match="not a folder"):
            Workspace(path)


def test_read_and_its_bound(workspace: Workspace, root: Path) -> None:
    (root / "file").write_bytes(b"0123456789")
    assert workspace.read_bytes("file", max_bytes=10) == b"0123456789"
    with pytest.raises(WorkspaceError, match=r"'file' has 10 bytes; at most 9 are read"):
        workspace.read_bytes("file", max_bytes=9)


def test_read_what_claims_to_be_empty() -> None:
    """Files of /proc have a size of 0 and content nevertheless."""
    process = Workspace("/proc/self")
    assert process.read_bytes("stat", max_bytes=10_000).startswith(f"{os.getpid()} ".encode())
    with pytest.raises(WorkspaceError, match="at most 5"):
        process.read_bytes("stat", max_bytes=5)


def test_folder_in_place_of_a_file(workspace: Workspace, root: Path) -> None:
    (root / "d").mkdir()
    for path in ("d", "d/", "."):
        with pytest.raises(IsADirectoryError):
            read(workspace, path)
        with pytest.raises(IsADirectoryError):
            workspace.write_bytes(path, b"x")


def test_special_files_are_left_alone(workspace: Workspace, root: Path) -> None:
    os.mkfifo(root / "fifo")
    (root / "link").symlink_to("fifo")
    for path in ("fifo", "link"):
        for operation in (lambda p=path: read(workspace, p), lambda p=path: workspace.write_bytes(p, b"x")):
            with pytest.raises(WorkspaceError, match="is a FIFO, not a file"):
                operation()
    assert workspace.stat("fifo").kind == "fifo"
    assert names_in(root) == ["fifo", "link"]


def test_waiting_writer_is_not_woken(workspace: Workspace, root: Path) -> None:
    """Opening a FIFO would already let somebody else go on."""
    os.mkfifo(root / "fifo")
    script = f"print('here', flush=True); open({str(root / 'fifo')!r}, 'wb')\nwhile True: pass"
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"here\n"
        wait_until(lambda: process_state(writer.pid) == "S")  # in the system, for a reader
        with pytest.raises(WorkspaceError):
            read(workspace, "fifo")
        assert process_state(writer.pid) == "S"
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()


def test_devices(tmp_path: Path) -> None:
    devices = Workspace("/dev")
    with pytest.raises(WorkspaceError, match="is a device"):
        devices.read_bytes("zero", max_bytes=10)


def test_stat(workspace: Workspace, root: Path) -> None:
    (root / "d").mkdir()
    (root / "d" / "f").write_bytes(b"four")
    (root / "d" / "f").chmod(0o4750)
    entry = workspace.stat("d/../d/f")
    assert (entry.path, entry.name, entry.kind, entry.size, entry.mode) == ("d/f", "f", "file", 4, 0o4750)
    assert workspace.stat(".").path == "."
    assert workspace.stat("d").kind == "directory"


def test_folder_and_walk(workspace: Workspace, root: Path) -> None:
    for path in ("b/c/z", "b/y", "a", "b/x"):
        workspace.write_bytes(path, path.encode())
    (root / "b" / "up").symlink_to("..")
    os.mkfifo(root / "b" / "fifo")
    with workspace.folder("b") as folder:
        assert [entry.name for entry in folder.entries] == ["c", "fifo", "up", "x", "y"]
        assert folder.stat("up").kind == "symlink"
        by_name = {entry.name: entry for entry in folder.entries}
        assert folder.read(by_name["x"], max_bytes=10) == b"b/x"
        assert folder.read(by_name["x"], max_bytes=2) == b"b/"
        for name in ("c", "fifo", "up"):
            with pytest.raises((WorkspaceError, OSError)):
                folder.read(by_name[name], max_bytes=10)
    met = [(folder.path, [entry.name for entry in folder.entries]) for folder in workspace.walk()]
    assert met == [(".", ["a", "b"]), ("b", ["c", "fifo", "up", "x", "y"]), ("b/c", ["z"])]
    assert [folder.path for folder in workspace.walk("b/c")] == ["b/c"]
    with pytest.raises(NotADirectoryError):
        list(workspace.walk("a"))


def test_walk_tells_what_lies_too_deep(workspace: Workspace, root: Path) -> None:
    deep = root
    for _ in range(paths.MAX_DEPTH + 20):
        deep /= "x"
    deep.mkdir(parents=True)
    folders = list(workspace.walk())
    assert len(folders) == paths.MAX_DEPTH + 1
    assert folders[-1].error is not None
    assert folders[-1].entries == ()


# ---- writing


def test_write_makes_folders_and_files(workspace: Workspace, root: Path) -> None:
    with umask(0o027):
        written = workspace.write_bytes("new/deep/file", b"data")
    assert (written.path, written.size, written.created) == ("new/deep/file", 4, True)
    assert (root / "new/deep/file").read_bytes() == b"data"
    assert mode_of(root / "new/deep/file") == 0o640
    assert mode_of(root / "new/deep") == 0o750
    assert not workspace.write_bytes("new/deep/file", b"more").created
    assert (root / "new/deep/file").read_bytes() == b"more"


@pytest.mark.parametrize("path", ["new/../f", "new/", "new/.", "new/x/..", "../new/f", "new/../../f", "f/x"])
def test_failed_writes_leave_nothing(workspace: Workspace, root: Path, path: str) -> None:
    (root / "f").write_bytes(b"kept")
    with pytest.raises((OSError, WorkspaceError)):
        workspace.write_bytes(path, b"x")
    assert names_in(root) == ["f"]
    assert (root / "f").read_bytes() == b"kept"


def test_a_write_that_runs_out_of_room_leaves_nothing(root: Path) -> None:
    script = f"""
import resource, signal
from aisotools.workspace.workspace import Workspace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
workspace = Workspace({str(root)!r})
workspace.write_bytes("old", b"old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for path in ("old", "new/file"):
    try:
        workspace.write_bytes(path, b"x" * 5000)
    except OSError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.count("File too large") == 2
    assert names_in(root) == ["old"]
    assert (root / "old").read_bytes() == b"old"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666, 0o755, 0o777, 0o640])
def test_mode_is_kept(workspace: Workspace, root: Path, mode: int) -> None:
    (root / "file").write_bytes(b"old")
    (root / "file").chmod(mode)
    with umask(0o077):
        workspace.write_bytes("file", b"new")
        assert os.umask(0o077) == 0o077
    assert mode_of(root / "file") == mode
    assert names_in(root) == ["file"]


def test_mode_is_kept_where_chmod_does_nothing(root: Path) -> None:
    """As in the sandbox, where changing a mode succeeds without an effect."""
    directory = os.open(root, os.O_RDONLY)
    try:
        with umask(0o077):
            os.close(_create(directory, "file", 0o766, change_mode=lambda file, mode: None))
            assert os.umask(0o077) == 0o077
    finally:
        os.close(directory)
    assert mode_of(root / "file") == 0o766


@pytest.mark.parametrize("bits", [stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX])
def test_setuid_and_its_kin_are_lost(workspace: Workspace, root: Path, bits: int) -> None:
    (root / "file").write_bytes(b"old")
    (root / "file").chmod(0o755 | bits)
    workspace.write_bytes("file", b"new")
    assert mode_of(root / "file") == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_owner_is_kept(workspace: Workspace, root: Path) -> None:
    (root / "file").write_bytes(b"old")
    os.chown(root / "file", 2001, 2002)
    workspace.write_bytes("file", b"new")
    status = (root / "file").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (2001, 2002, 0o644)


def test_hard_link_is_broken(workspace: Workspace, root: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(CANARY)
    os.link(tmp_path / "victim", root / "file")
    workspace.write_bytes("file", b"new")
    assert (tmp_path / "victim").read_bytes() == CANARY
    assert (root / "file").read_bytes() == b"new"


def test_write_through_an_inner_link(workspace: Workspace, root: Path) -> None:
    workspace.write_bytes("d/target", b"old")
    (root / "link").symlink_to("d/target")
    (root / "dangling").symlink_to("d/new")
    assert workspace.write_bytes("link", b"new").path == "d/target"
    assert workspace.write_bytes("dangling", b"made").path == "d/new"
    assert (root / "link").is_symlink()
    assert (root / "d" / "target").read_bytes() == b"new"
    assert (root / "d" / "new").read_bytes() == b"made"


def test_readers_see_old_or_new(workspace: Workspace) -> None:
    old, new = b"o" * 200_000, b"n" * 100_000
    workspace.write_bytes("file", old)
    with workspace.open("file") as file:
        workspace.write_bytes("file", new)
        assert os.read(file, 300_000) == old
    assert read(workspace, "file") == new


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_permissions(tmp_path: Path) -> None:
    """What this user may not read or write stays that way, though the folder would let it be replaced."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o777)
        for name, mode in (("protected", 0o444), ("secret", 0o000), ("fine", 0o666)):
            (root / name).write_bytes(b"old")
            (root / name).chmod(mode)
        (root / "closed").mkdir(mode=0o755)
        (root / "dark").mkdir(mode=0o700)
        script = f"""
from aisotools.workspace.workspace import Workspace
workspace = Workspace({folder!r})
for path in ("protected", "secret", "closed/new", "dark/new", "fine"):
    try:
        workspace.write_bytes(path, b"new")
        print(path, "written")
    except PermissionError as error:
        print(path, error.strerror)
for path in ("secret", "dark/x"):
    try:
        workspace.read_bytes(path, max_bytes=100)
    except PermissionError as error:
        print(path, error.strerror)
print([folder.path for folder in workspace.walk() if folder.error])
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            user=user_of("plain"),
            group=2001,
        )
        assert done.stdout.splitlines() == [
            "protected Permission denied",
            "secret Permission denied",
            "closed/new Permission denied",
            "dark/new Permission denied",
            "fine written",
            "secret Permission denied",
            "dark/x Permission denied",
            "['dark']",
        ]
        assert (root / "protected").read_bytes() == b"old"


@settings(deadline=None, max_examples=50)
@given(data=st.binary(max_size=5000), name=st.text(min_size=1, max_size=60))
def test_round_trip(data: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(folder)
        try:
            workspace.write_bytes(f"d/{name}", data)
        except (OSError, WorkspaceError):
            assert "\0" in name or "/" in name or len(name.encode()) > 255 or name in {".", ".."}
        else:
            assert read(workspace, f"d/{name}") == data


def test_names_that_are_not_utf8(workspace: Workspace, root: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xff")
    assert workspace.write_bytes(name, b"x").path == name
    assert read(workspace, name) == b"x"
    with pytest.raises(FileNotFoundError, match=r"\\xe9"):
        read(workspace, os.fsdecode(b"\xe9"))


# ---- attacks while it runs

ATTEMPTS = 4000


def while_flipping(flip: Callable[[], None], attempt: Callable[[], object]) -> int:
    """Run `attempt` over and over while another thread runs `flip`; how often it got through."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def attack() -> None:
        try:
            while not stop.is_set():
                flip()
        except BaseException as error:
            failures.append(error)
            raise

    thread = threading.Thread(target=attack)
    thread.start()
    through = 0
    try:
        attempts = 0
        while attempts < ATTEMPTS or not through:  # pytest's timeout ends a test that fails
            attempts += 1
            try:
                attempt()
                through += 1
            except (OSError, WorkspaceError):
                continue
    finally:
        stop.set()
        thread.join()
    assert not failures
    return through


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "file").write_bytes(CANARY)
    status = (folder / "file").stat()
    yield folder
    assert names_in(folder) == ["file"]
    assert (folder / "file").read_bytes() == CANARY
    assert (folder / "file").stat().st_mtime_ns == status.st_mtime_ns


def test_folder_swapped_for_a_link(workspace: Workspace, root: Path, victim: Path) -> None:
    (root / "real").mkdir()
    (root / "real" / "file").write_bytes(b"fine")
    (root / "trap").symlink_to(victim)

    def flip() -> None:
        for name in ("real", "trap"):
            try:
                (root / name).rename(root / "d")
                (root / "d").rename(root / name)
            except OSError:  # a write has made a folder of that name in the meantime
                shutil.rmtree(root / "d", ignore_errors=True)

    def attempt() -> None:
        assert read(workspace, "d/file") in {b"fine", b"new"}
        workspace.write_bytes("d/file", b"new")
        for folder in workspace.walk("d"):
            for entry in folder.entries:
                assert folder.read(entry, max_bytes=100) in {b"fine", b"new"}

    assert while_flipping(flip, attempt)


def test_file_swapped_for_a_link(workspace: Workspace, root: Path, victim: Path) -> None:
    (root / "real").write_bytes(b"fine")
    (root / "trap").symlink_to(victim / "file")

    def flip() -> None:
        for name in ("real", "trap"):
            (root / name).rename(root / "f")
            (root / "f").rename(root / name)

    def attempt() -> None:
        assert read(workspace, "f") != CANARY
        with workspace.folder() as folder:
            for entry in folder.entries:
                if entry.name == "f" and entry.is_file(follow_symlinks=False):
                    assert folder.read(entry, max_bytes=100) != CANARY

    assert while_flipping(flip, attempt)


def test_write_to_a_file_swapped_for_a_link(workspace: Workspace, root: Path, victim: Path) -> None:
    (root / "trap").symlink_to(victim / "file")
    (root / "plain").write_bytes(b"fine")

    def flip() -> None:
        os.link(root / "trap", root / "copy", follow_symlinks=False)
        (root / "copy").replace(root / "f")
        os.link(root / "plain", root / "copy")
        (root / "copy").replace(root / "f")

    assert while_flipping(flip, lambda: workspace.write_bytes("f", b"new"))
    assert (root / "plain").read_bytes() == b"fine"


def test_file_swapped_for_a_fifo(workspace: Workspace, root: Path) -> None:
    (root / "real").write_bytes(b"fine")
    os.mkfifo(root / "trap")

    def flip() -> None:
        for name in ("real", "trap"):
            (root / name).rename(root / "f")
            (root / "f").rename(root / name)

    def attempt() -> None:
        assert read(workspace, "f") == b"fine"

    assert while_flipping(flip, attempt)


def test_folder_moved_up_while_walked(workspace: Workspace, root: Path, victim: Path) -> None:
    """A walk that went down and comes back by `..` must not end above what it came through."""
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "file").write_bytes(b"fine")

    def flip() -> None:
        (root / "a" / "b").rename(root / "b")
        (root / "b").rename(root / "a" / "b")

    def attempt() -> None:
        assert read(workspace, "a/b/../../file") == b"fine"

    assert while_flipping(flip, attempt)


def test_writes_beside_each_other(workspace: Workspace, root: Path) -> None:
    def write(letter: str) -> None:
        for _ in range(40):
            workspace.write_bytes("d/e/file", letter.encode() * 50_000)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(read(workspace, "d/e/file"))) == 1
    assert not [name for name in names_in(root / "d/e") if name.startswith(TEMPORARY)]


def test_of_a_large_folder_the_first_names_are_held_and_the_rest_is_counted(tmp_path: Path) -> None:
    for number in range(2_500):
        (tmp_path / f"f{number:04}").touch()
    with Workspace(tmp_path).folder(most=3) as folder:
        assert [entry.name for entry in folder.entries] == ["f0000", "f0001", "f0002"]
        assert folder.left_out == 2_497
    with Workspace(tmp_path).folder(most=3, wanted=lambda name: name.endswith("7")) as folder:
        assert [entry.name for entry in folder.entries] == ["f0007", "f0017", "f0027"]
        assert folder.left_out == 247
