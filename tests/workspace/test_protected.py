"""Protected files: what counts as one, what is put back, and what hostile folders can do about it."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.workspace.candidates import MAX_PATH_BYTES, CandidateFile, CandidateScan, Steps
from aisotools.workspace.protected import ProtectedFiles
from aisotools.workspace.protected_names import AllowedNames, is_candidate, zone_of
from aisotools.workspace.quarantine import MAX_QUARANTINE_FILES
from tests.waiting import file_times_advance, wait_until


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "conftest.py").write_text("safe = True\n")
    (folder / ".git" / "hooks").mkdir(parents=True)
    (folder / ".git" / "hooks" / "pre-commit").write_text("#!/bin/sh\n")
    (folder / ".git" / "hooks" / "pre-commit").chmod(0o755)
    (folder / ".aisotools.toml").write_text('mode = "safe"\n')
    (folder / "mine.ipynb").write_text("{}")
    (folder / "data.txt").write_text("data")
    return folder


@pytest.fixture
def files(ws: Path, tmp_path: Path) -> ProtectedFiles:
    return ProtectedFiles(ws, tmp_path / "quarantine")


def test_files_that_count_as_protected() -> None:
    for path in (
        "conftest.py",
        "a/b/CONFTEST.py",
        "x.pth",
        "lib/sitecustomize.py",
        ".git/hooks/pre-push",
        "sub/.git/hooks/deep/x",
        ".vscode/tasks.json",
        ".aisotools.toml",
        "n.ipynb",
        ".git/config",
        ".git/modules/x/config",
    ):
        assert is_candidate(path), path
    for path in ("main.py", "hooks/pre-push", "git/config", "conftest.py/x", "a.pth.txt", ".gitignore"):
        assert not is_candidate(path), path


def test_nothing_changed(files: ProtectedFiles, ws: Path) -> None:
    (ws / "data.txt").write_text("other")
    (ws / "new.py").write_text("")
    assert not files.differs()
    assert files.restore() == ()


def test_a_change_is_put_back_with_mode_and_time_and_what_was_found_is_kept(
    files: ProtectedFiles, ws: Path
) -> None:
    hook = ws / ".git/hooks/pre-commit"
    before = hook.stat()
    hook.write_text("#!/bin/sh\ncurl evil\n")
    assert files.differs()
    (change,) = files.restore()
    assert (change.path, change.kind, change.restored) == (".git/hooks/pre-commit", "changed", True)
    assert hook.read_text() == "#!/bin/sh\n"
    assert (hook.stat().st_mode, hook.stat().st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert Path(change.saved_as).read_text() == "#!/bin/sh\ncurl evil\n"
    assert not files.differs()


def test_a_removed_file_comes_back_with_its_folder(files: ProtectedFiles, ws: Path) -> None:
    (ws / "tests" / "conftest.py").unlink()
    (ws / "tests").rmdir()
    (change,) = files.restore()
    assert (change.path, change.kind, change.restored) == ("tests/conftest.py", "removed", True)
    assert (ws / "tests/conftest.py").read_text() == "safe = True\n"


@pytest.mark.parametrize(
    "path",
    ["conftest.py", "deep/er/evil.pth", "sitecustomize.py", ".git/hooks/post-checkout", ".vscode/tasks.json"],
)
def test_a_planted_file_is_taken_away(files: ProtectedFiles, ws: Path, path: str) -> None:
    (ws / path).parent.mkdir(parents=True, exist_ok=True)
    (ws / path).write_text("evil")
    (change,) = files.restore()
    assert (change.path, change.kind, change.restored) == (path, "new", True)
    assert not (ws / path).exists()
    assert Path(change.saved_as).read_text() == "evil"


def test_a_folder_that_is_moved_in_whole_is_seen(files: ProtectedFiles, ws: Path, tmp_path: Path) -> None:
    """It brings its own, older change times, and folders below it that were seen under another path."""
    inner = ws / "plain" / "hooks"
    inner.mkdir(parents=True)
    (inner / "post-merge").write_text("evil")
    file_times_advance()
    assert files.restore() == ()
    (ws / ".git").rename(ws / "old")
    (ws / "plain").rename(ws / ".git")
    assert {(change.path, change.kind) for change in files.restore()} == {
        (".git/hooks/post-merge", "new"),
        (".git/hooks/pre-commit", "removed"),
    }
    assert (ws / ".git/hooks/pre-commit").read_text() == "#!/bin/sh\n"


def test_links_are_neither_followed_nor_left(files: ProtectedFiles, ws: Path, tmp_path: Path) -> None:
    """A folder swapped for a link must not make the host act on files elsewhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "conftest.py").write_text("the user's own")
    (ws / "tests" / "conftest.py").unlink()
    (ws / "tests").rmdir()
    (ws / "tests").symlink_to(outside)
    (ws / "usercustomize.py").symlink_to(outside / "conftest.py")
    changes = files.restore()
    assert {(change.path, change.kind) for change in changes} == {
        ("tests/conftest.py", "removed"),
        ("usercustomize.py", "new"),
    }
    assert all(change.restored for change in changes)
    assert (outside / "conftest.py").read_text() == "the user's own"
    assert not (ws / "tests").is_symlink()
    assert (ws / "tests/conftest.py").read_text() == "safe = True\n"
    assert not os.path.lexists(ws / "usercustomize.py")


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "file above"])
def test_a_file_is_restored_over_anything_in_its_place(files: ProtectedFiles, ws: Path, kind: str) -> None:
    place = ws / "tests" / "conftest.py"
    place.unlink()
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        (place / "inner").mkdir(parents=True)
    elif kind == "link":
        outside = ws.parent / "outside"
        outside.write_text("the user's own")
        place.symlink_to(outside)
    else:
        (ws / "tests").rmdir()
        (ws / "tests").write_text("no folder")
    (change,) = files.restore()
    assert change.restored
    assert place.read_text() == "safe = True\n"
    assert not place.is_symlink()
    assert kind != "link" or (ws.parent / "outside").read_text() == "the user's own"


def test_an_open_file_and_a_mapping_write_into_nothing(files: ProtectedFiles, ws: Path) -> None:
    """Who has touched the file may hold pages of it that change without a sign: it gets a new inode."""
    place = ws / ".aisotools.toml"
    with place.open("r+b") as held:
        held.write(place.read_bytes())  # the same content again
        held.flush()
        assert files.restore() == ()
        held.seek(0)
        held.write(b"MODE")
    assert place.read_text() == 'mode = "safe"\n'


@pytest.fixture(params=["disk", "memory"])
def mapped(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a workspace on the disk and one in memory, where stores through a map give a file no time."""
    folder = tmp_path / "mapped"
    folder.mkdir()
    is_mounted = request.param == "memory"
    if is_mounted:
        mount = subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=False, capture_output=True)
        if mount.returncode:
            pytest.skip("a file system can be mounted by root alone")
    (folder / ".git").mkdir()
    (folder / "conftest.py").write_text("safe = True" + " " * 5_000)
    yield folder
    if is_mounted:
        subprocess.run(["umount", "-l", folder], check=True)


PLAIN = "[core]\n\tbare = false\n" + "# plain words\n" * 20
PROGRAM = b"[core]\n\tfsmonitor = evil\n#"


@pytest.mark.parametrize("way", ["new", "known", "harmless change", "denied"])
def test_a_store_into_a_page_that_is_dirty_already_is_seen(mapped: Path, tmp_path: Path, way: str) -> None:
    """Such a store gives the file no new time, so an unchanged time proves nothing while it is mapped."""
    name = "data.txt" if way == "denied" else ".git/config"
    place = mapped / name
    if way != "new":
        place.write_text(PLAIN)
    files = ProtectedFiles(mapped, tmp_path / "quarantine", denied=["data.txt"] if way == "denied" else [])
    if way == "new":
        place.write_text(PLAIN)
    if way == "harmless change":
        place.write_text(PLAIN.replace("false", "true"))
    with place.open("r+b") as opened:
        pages = mmap.mmap(opened.fileno(), 0)
    pages[0:1] = pages[0:1]
    dirty_ns = time.time_ns()
    wait_until(lambda: time.time_ns() > dirty_ns + 30_000_000)
    for _ in range(2):
        assert files.restore() == ()
    pages[0 : len(PROGRAM)] = PROGRAM
    # What existed before was touched with its old content, and has been written under a new inode by now.
    assert len(files.restore()) == (way in {"new", "harmless change"} or mapped.is_mount())
    assert not place.exists() or PROGRAM not in place.read_bytes()
    pages[0 : len(PROGRAM)] = PROGRAM  # once more: what was put back is another file
    files.restore()
    assert not place.exists() or PROGRAM not in place.read_bytes()
    pages.close()


def test_a_map_that_comes_and_goes_between_two_looks_is_seen(mapped: Path, tmp_path: Path) -> None:
    place = mapped / "conftest.py"
    files = ProtectedFiles(mapped, tmp_path / "quarantine")
    made_ns = time.time_ns()
    wait_until(lambda: time.time_ns() > made_ns + 30_000_000)
    for _ in range(2):
        assert files.restore() == ()
    with place.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as pages:
        assert pages[0:4] == b"safe"  # read first: then memory takes the store without a word
        pages[0:4] = b"evil"
    assert files.differs()
    (change,) = files.restore()
    assert (change.path, change.kind, change.restored) == ("conftest.py", "changed", True)
    assert place.read_text().startswith("safe = True")
    assert not files.differs()


def test_a_file_that_is_exchanged_while_it_is_judged_counts_as_the_one_that_was_read(
    ws: Path, tmp_path: Path
) -> None:
    """Race: the file that is judged was moved there for that moment, and the other one comes back."""
    files = ProtectedFiles(ws, tmp_path / "quarantine")
    good, bad = ws / ".git/config", ws / "elsewhere"
    good.write_text(PLAIN)
    bad.write_bytes(PROGRAM)
    file_times_advance()
    found = os.lstat(bad)
    scan = CandidateScan(files={".git/config": CandidateFile(found, zone_of(".git/config"))})
    judged = files._judge(".git/config", scan.files[".git/config"], scan, Steps())
    assert judged is not None
    assert not judged.matches(found)
    assert judged.matches(good.lstat())
    assert scan.files[".git/config"].status.st_ino == good.stat().st_ino


def test_a_change_within_one_tick_of_the_clock_is_seen(ws: Path, tmp_path: Path) -> None:
    for number in range(50):
        place = ws / ".aisotools.toml"
        place.write_text(f"{number:04}")
        made = ProtectedFiles(ws, tmp_path / "quarantine")
        with place.open("r+") as file:  # same inode, same size, likely the same change time
            file.write("evil")
        assert [change.kind for change in made.restore()] == ["changed"]
        (ws / "late").mkdir()
        made.restore()
        (ws / "late" / "conftest.py").write_text("")
        assert [change.path for change in made.restore()] == ["late/conftest.py"]
        (ws / "late").rmdir()


def test_notebooks(files: ProtectedFiles, ws: Path, tmp_path: Path) -> None:
    (ws / "report.ipynb").write_text("made by a tool")
    assert files.restore() == ()
    (ws / "report.ipynb").write_text("made again")
    assert files.restore() == ()
    (ws / "mine.ipynb").write_text("evil")
    assert [change.path for change in files.restore()] == ["mine.ipynb"]
    assert (ws / "mine.ipynb").read_text() == "{}"
    (ws / "mine.ipynb").write_text("declared")
    assert files.restore(frozenset({"mine.ipynb"})) == ()
    assert not files.differs()


def test_a_notebook_that_jupyter_has_open_is_nobody_elses_to_write(files: ProtectedFiles, ws: Path) -> None:
    (ws / "report.ipynb").write_text("opened")
    (ws / ".ipynb_checkpoints").mkdir()
    (ws / ".ipynb_checkpoints" / "report-checkpoint.ipynb").write_text("opened")
    files.accept()
    (ws / "report.ipynb").write_text("evil")
    assert [change.path for change in files.restore(frozenset({"report.ipynb"}))] == ["report.ipynb"]
    assert (ws / "report.ipynb").read_text() == "opened"


def test_the_notebook_of_the_session(ws: Path, tmp_path: Path) -> None:
    files = ProtectedFiles(ws, tmp_path / "quarantine", notebook=str(ws / "later.ipynb"))
    (ws / "later.ipynb").write_text("first save")
    files.accept()
    (ws / "later.ipynb").unlink()
    assert [change.kind for change in files.restore()] == ["removed"]


@pytest.mark.parametrize(
    ("config", "harmless"),
    [
        ("[core]\n\tbare = false\n[user]\n\tname = me\n", True),
        ('[remote "origin"]\n\turl = https://example.org/x.git\n', True),
        ("[core]\n\tfsmonitor = evil\n", False),
        ("[core]\n\tHooksPath=/tmp/x\n", False),
        ("[alias]\n\tst = !evil\n", False),
        ("[include]\n\tpath = /tmp/evil\n", False),
        ('[filter "x"]\n\tclean = evil\n', False),
    ],
)
def test_a_new_checkout_is_fine_until_git_would_run_something(
    tmp_path: Path, config: str, *, harmless: bool
) -> None:
    (tmp_path / "ws").mkdir()
    files = ProtectedFiles(tmp_path / "ws", tmp_path / "quarantine")
    (tmp_path / "ws" / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / "ws" / ".git" / "hooks" / "pre-commit.sample").write_text("sample")
    (tmp_path / "ws" / ".git" / "config").write_text(config)
    assert (files.restore() == ()) is harmless


def test_file_that_is_too_large_is_reported_and_cannot_be_restored(ws: Path, tmp_path: Path) -> None:
    files = ProtectedFiles(ws, tmp_path / "quarantine", file_bytes=10)
    (ws / "tests/conftest.py").write_text("evil")
    (change,) = files.restore()
    assert not change.restored
    assert "could NOT be put back" in str(change)
    assert files.restore() == ()


def test_too_many_folders_are_reported(ws: Path, tmp_path: Path) -> None:
    files = ProtectedFiles(ws, tmp_path / "quarantine", most_folders=10)
    assert files.complete
    for number in range(11):
        (ws / f"{number}").mkdir()
    files.restore()
    assert not files.complete


def nested(folder: Path, name: str, levels: int) -> None:
    """Make folders in each other, which may lie further down than any path can lead."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_deep_folders_are_watched(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    files = ProtectedFiles(tmp_path / "ws", tmp_path / "quarantine")
    nested(tmp_path / "ws", "d", 300)
    deep = "/".join("d" * 300)
    (tmp_path / "ws" / deep / "conftest.py").write_text("evil")
    assert [change.path for change in files.restore()] == [f"{deep}/conftest.py"]
    assert files.complete
    assert not (tmp_path / "ws" / deep / "conftest.py").exists()
    (tmp_path / "ws" / deep / "conftest.py").write_text("evil again")
    assert [change.path for change in files.restore()] == [f"{deep}/conftest.py"]


def test_folders_that_no_path_leads_to_are_reported(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "conftest.py").write_text("mine")
    files = ProtectedFiles(tmp_path / "ws", tmp_path / "quarantine")
    nested(tmp_path / "ws", "d" * 100, MAX_PATH_BYTES // 100 + 1)
    (tmp_path / "ws" / "conftest.py").write_text("evil")
    assert [change.path for change in files.restore()] == ["conftest.py"], "what is known is compared"
    assert not files.complete
    assert "4096 bytes" in files.unwatched
    shutil.rmtree(tmp_path / "ws" / ("d" * 100))
    assert files.restore() == ()
    assert files.complete


def test_quarantine_is_limited(files: ProtectedFiles, ws: Path, tmp_path: Path) -> None:
    for number in range(130):
        (ws / f"{number}.pth").write_text("evil")
    assert len(files.restore()) == 130
    assert len(list((tmp_path / "quarantine").iterdir())) == 100
    assert not list(ws.glob("*.pth"))


def test_a_workspace_that_is_gone(files: ProtectedFiles, ws: Path) -> None:
    ws.rename(ws.with_name("moved"))
    assert all(not change.restored for change in files.restore())


@pytest.mark.slow
def test_a_hundred_thousand_files_cost_milliseconds(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    for folder in range(1000):
        (ws / f"{folder % 50}" / f"{folder}").mkdir(parents=True)
        for number in range(100):
            (ws / f"{folder % 50}" / f"{folder}" / f"{number}.txt").symlink_to("nowhere")
    began_s = time.thread_time()
    files = ProtectedFiles(ws, tmp_path / "quarantine")
    first_s = time.thread_time() - began_s
    file_times_advance()
    files.restore()
    began_s = time.thread_time()
    files.restore()
    again_s = time.thread_time() - began_s
    print(
        f"\n100,000 files in 1,050 folders: {first_s * 1000:.1f} ms at first, {again_s * 1000:.1f} ms again"
    )
    assert again_s < 0.1


def test_paths_that_rules_deny_are_put_back_whatever_their_names(ws: Path, tmp_path: Path) -> None:
    (ws / "secrets" / "deep").mkdir(parents=True)
    (ws / "secrets" / "deep" / "note.ipynb").write_text("{}")
    (ws / "secrets" / "x.sample").write_text("one")
    (ws / "sub").mkdir()
    (ws / "sub" / "key").write_text("one")
    allowed = AllowedNames(("conftest.py",))
    denied = ("secrets", "sub/key", "later")
    files = ProtectedFiles(ws, tmp_path / "quarantine", allowed=allowed, denied=denied)
    assert files.restore() == ()
    (ws / "secrets" / "deep" / "note.ipynb").write_text("changed")
    (ws / "secrets" / "x.sample").unlink()
    (ws / "secrets" / "conftest.py").write_text("new")
    (ws / "sub" / "key").write_text("two")
    (ws / "later").write_text("new")
    (ws / "Secrets").mkdir()
    for plain in ("Secrets/x", "secrets.txt", "sub/other", "key"):
        (ws / plain).write_text("plain")
    changes = files.restore(frozenset({"secrets/deep/note.ipynb"}))
    assert {(change.path, change.kind) for change in changes} == {
        ("secrets/deep/note.ipynb", "changed"),
        ("secrets/x.sample", "removed"),
        ("secrets/conftest.py", "new"),
        ("sub/key", "changed"),
        ("later", "new"),
    }
    assert all(change.denied and change.restored for change in changes)
    assert "(changed, which a rule denies; put back" in str(changes[-1])
    assert (ws / "sub" / "key").read_text() == (ws / "secrets" / "x.sample").read_text() == "one"
    assert all(
        (ws / plain).read_text() == "plain" for plain in ("Secrets/x", "secrets.txt", "sub/other", "key")
    )
    assert files.restore() == ()


def test_a_folder_of_a_denied_file_that_moves_takes_no_protection_along(ws: Path, tmp_path: Path) -> None:
    (ws / "sub").mkdir()
    (ws / "sub" / "key").write_text("one")
    files = ProtectedFiles(ws, tmp_path / "quarantine", denied=("sub/key",))
    file_times_advance()
    assert files.restore() == ()
    (ws / "sub").rename(ws / "moved")
    assert [(change.path, change.kind) for change in files.restore()] == [("sub/key", "removed")]
    assert (ws / "sub" / "key").read_text() == (ws / "moved" / "key").read_text() == "one"


def test_a_link_in_place_of_a_denied_folder_is_removed(ws: Path, tmp_path: Path) -> None:
    (ws / "secrets").mkdir()
    (ws / "secrets" / "key").write_text("one")
    files = ProtectedFiles(ws, tmp_path / "quarantine", denied=("secrets",))
    (ws / "secrets").rename(ws / "moved")
    (ws / "moved" / "key").write_text("two")
    (ws / "secrets").symlink_to("moved")
    assert all(change.restored for change in files.restore())
    assert not (ws / "secrets").is_symlink()
    assert (ws / "secrets" / "key").read_text() == "one"


# ---- names as long as names can be

ENDING = b".code-workspace"
LETTERS = {
    "ASCII": b"p",
    "2 bytes": "é".encode(),
    "3 bytes": "字".encode(),
    "4 bytes": "😀".encode(),
    "raw": b"\xff",
}


def _long_names() -> list[str]:
    names = []
    for one in LETTERS.values():
        for size in range(240, 256):
            free = size - len(ENDING)
            names.append(os.fsdecode(b"-" * (free % len(one)) + one * (free // len(one)) + ENDING))
    return list(dict.fromkeys(names))


def _take_its_place(place: Path, how: str) -> None:
    place.unlink()
    if how in {"folder", "full folder"}:
        place.mkdir()
    if how == "full folder":
        (place / "inner").mkdir()
    if how == "link":
        place.symlink_to("/etc")
    if how == "replaced":
        place.write_bytes(b"evil")
    if how == "FIFO":
        os.mkfifo(place)


@pytest.mark.parametrize("how", ["folder", "full folder", "link", "removed", "replaced", "FIFO"])
def test_a_protected_file_with_a_long_name_is_put_back_whatever_takes_its_place(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "ws").mkdir()
    places = [tmp_path / "ws" / name for name in _long_names()]
    for place in places:
        place.write_bytes(b"a person's")
    files = ProtectedFiles(tmp_path / "ws", tmp_path / "kept")
    for place in places:
        _take_its_place(place, how)
    changes = files.restore()
    assert len(changes) == len(places)
    assert [change for change in changes if not change.restored or change.lost] == []
    assert all(place.read_bytes() == b"a person's" for place in places)
    assert not files.differs()
    assert files.restore() == ()


@pytest.mark.parametrize("letter", LETTERS)
def test_planted_content_with_a_long_name_is_kept_or_set_aside(tmp_path: Path, letter: str) -> None:
    """Beyond the room for copies it gets another name in the workspace, which also has to be allowed."""
    ws = tmp_path / "ws"
    ws.mkdir()
    files = ProtectedFiles(ws, tmp_path / "kept")
    one = LETTERS[letter]
    for number in range(MAX_QUARANTINE_FILES + 5):
        free = 255 - len(ENDING) - 3
        name = b"%03d" % number + b"-" * (free % len(one)) + one * (free // len(one)) + ENDING
        (ws / os.fsdecode(name)).write_bytes(b"planted")
    changes = files.restore()
    assert len(changes) == MAX_QUARANTINE_FILES + 5
    assert [change for change in changes if not change.restored or change.lost] == []
    assert all(Path(change.saved_as).read_bytes() == b"planted" for change in changes)


def test_a_file_that_could_not_be_put_back_is_tried_again_and_never_lost(tmp_path: Path) -> None:
    """Whatever brings the file back meanwhile, such as undo, is not taken for somebody who plants it."""
    ws = tmp_path / "ws"
    ws.mkdir()
    place = ws / "conftest.py"
    place.write_text("a person's")
    files = ProtectedFiles(ws, tmp_path / "kept")
    place.unlink()
    place.mkdir()
    with _without_writes():
        for _ in range(2):  # said after each call, as long as it is so
            (change,) = files.restore()
            assert "could NOT be put back" in str(change)
    place.rmdir()
    place.write_text("a person's")  # undo
    assert files.restore() == ()
    assert place.read_text() == "a person's"
    place.unlink()
    place.symlink_to("evil")
    with _without_writes():
        assert "could NOT be put back" in str(files.restore()[0])
    (change,) = files.restore()
    assert change.restored
    assert place.read_text() == "a person's"


@contextlib.contextmanager
def _without_writes() -> Iterator[None]:
    """Let every write of this process fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
