"""The guard of the host's files, tried on decoys: it names the guilty test, and leaves the innocent alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aisotools.workspace.lock import state_place
from tests import host_guard
from tests.host_guard import State, Watch, Watched, difference, state_of, tracked, usual
from tests.waiting import HANG_S
from tests.work import lines_run

ROOT = Path(__file__).resolve().parent.parent
CONFTEST = """
from pathlib import Path
from tests import host_guard

def pytest_configure(config):
    here = Path(__file__).parent
    host_guard.install(config, host_guard.Watched(
        files=(here / "decoy",), folders=(here / "keys",), checkout=here / "checkout"
    ))
"""
AT_THE_END = """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish():
    (Path(__file__).parent / "decoy").write_text("evil")
    return (yield)
"""
INNOCENT = "def test_innocent(tmp_path):\n    (tmp_path / 'mine').write_text('x')\n"
OVERWRITES = "decoy.write_text('root::0:0')"
ACTS = {
    "test_overwrites": (OVERWRITES, "decoy: its content changed"),
    "test_appends": ("decoy.open('a').write('evil')", "decoy: its content changed"),
    "test_writes_back": (
        "decoy.write_bytes(decoy.read_bytes())",
        "decoy: its content is the same, but it was",
    ),
    "test_opens": ("decoy.chmod(0o666)", "decoy: its mode changed"),
    "test_removes": ("decoy.unlink()", "decoy: it is gone"),
    "test_links": ("decoy.symlink_to(here / 'else')", "decoy: it is new"),
    "test_adds_a_key": ("(here / 'keys' / 'more').write_text('ssh-rsa')", "keys/more: it is new"),
    "test_changes_a_key": ("(here / 'keys' / 'id').write_text('SECRET')", "keys/id: its content changed"),
}


def suite(folder: Path, **modules: str) -> Path:
    """A tiny suite below `folder`, with a decoy of each kind of thing that is watched."""
    for name in ("keys", "checkout"):
        (folder / name).mkdir(parents=True)
    (folder / "decoy").write_text("root:x:0:0")
    (folder / "keys" / "id").write_text("secret")
    (folder / "checkout" / "tracked.py").write_text("x = 1")
    (folder / "checkout" / "other.py").write_text("y = 1")
    for command in (["init", "-q"], ["add", "tracked.py"]):
        subprocess.run(["git", *command], cwd=folder / "checkout", check=True)
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def guilty(act: str, name: str = "test_guilty") -> str:
    start = "from pathlib import Path\nhere = Path(__file__).parent\ndecoy = here / 'decoy'\n"
    return f"{start}def {name}():\n    {act}\n"


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """How a run of the suite ended, and what it said."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "--rootdir", str(folder), *arguments],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_test_that_changes_something_is_named(tmp_path: Path) -> None:
    acts = "".join(guilty(act, name) for name, (act, _) in ACTS.items())
    folder = suite(tmp_path / "suite", test_a=INNOCENT + acts, test_b=INNOCENT)
    status, output = run(folder)
    assert status == 1, output
    assert f"{len(ACTS) + 2} passed, {len(ACTS)} errors" in output
    assert "no test is to blame: run this one again" in output
    for name, (_, change) in ACTS.items():
        assert f"ERROR test_a.py::{name}" in output
        assert f"Changed while test_a.py::{name} ran: {folder}/{change}" in output


def test_one_change_fails_a_run_in_which_every_test_passes(tmp_path: Path) -> None:
    status, output = run(suite(tmp_path / "suite", test_a=guilty(OVERWRITES) + INNOCENT))
    assert status == 1, output
    assert "2 passed, 1 error" in output
    assert "ERROR test_a.py::test_guilty" in output
    assert "test_innocent ran" not in output


def test_a_run_that_changes_nothing_passes(tmp_path: Path) -> None:
    modules = {"test_a": INNOCENT, "test_b": guilty("decoy.read_text()", "test_reads")}
    for more in ((), ("-n", "2")):
        status, output = run(suite(tmp_path / f"suite{len(more)}", **modules), *more)
        assert status == 0, output
        assert "2 passed" in output
        assert "hanged" not in output


def test_a_test_that_changes_something_is_named_by_any_process(tmp_path: Path) -> None:
    folder = suite(tmp_path / "suite", test_a=INNOCENT, test_b=guilty(OVERWRITES), test_c=INNOCENT)
    status, output = run(folder, "-n", "2")
    assert status == 1, output
    assert "ERROR test_b.py::test_guilty" in output
    assert f"{folder}/decoy: its content changed" in output


def test_change_of_a_tracked_file_is_reported_with_the_test_module(tmp_path: Path) -> None:
    act = "(here / 'checkout' / 'other.py').write_text('x = 2'); (here / 'checkout' / 'tracked.py').unlink()"
    status, output = run(suite(tmp_path / "suite", test_a=guilty(act) + INNOCENT, test_b=INNOCENT))
    assert status == 1, output
    assert "Changed while the tests of test_a.py ran, before test_a.py::test_innocent ended: " in output
    assert "tracked.py: it is gone" in output
    assert "other.py" not in output, "git does not track it"


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["here", "elsewhere"])
def test_a_new_file_in_a_package_of_the_checkout_is_reported(tmp_path: Path, more: tuple[str, ...]) -> None:
    act = "(here / 'checkout' / 'tests').mkdir(); (here / 'checkout' / 'tests' / 'new.py').write_text('evil')"
    folder = suite(tmp_path / "suite", test_a=guilty(act) + INNOCENT)
    status, output = run(folder, *more)
    assert status == 1, output
    assert f"{folder}/checkout/tests/new.py: it is new" in output


def test_a_checkout_of_another_user_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = suite(tmp_path / "suite") / "checkout"
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    refused = subprocess.run(["git", "ls-files"], cwd=checkout, capture_output=True, text=True, check=False)
    assert "dubious ownership" in refused.stderr
    assert tracked(checkout) == (f"{checkout}/tracked.py",)


def test_files_with_fixed_stamps_report_a_replacement_by_their_like(tmp_path: Path) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    for each in (path, other):
        each.write_text("same")
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    watch = Watch(Watched(files=(path,)).few, untouched=[str(path)])
    assert watch.changes() == []
    other.replace(path)
    (change,) = watch.changes()
    assert "its content is the same" in change
    assert f"inode {status.st_ino} -> {path.stat().st_ino}" in change
    assert watch.changes() == []


@pytest.mark.parametrize("more", [(), ("-n", "2")], ids=["here", "elsewhere"])
def test_a_change_outside_any_test_fails_the_run(tmp_path: Path, more: tuple[str, ...]) -> None:
    """At the end of the run, and while tests are collected."""
    at_the_end = suite(tmp_path / "end", test_a=INNOCENT)
    with (at_the_end / "conftest.py").open("a") as file:
        file.write(AT_THE_END)
    collected = suite(tmp_path / "import", test_a=guilty("pass") + "decoy.write_text('evil')\n")
    for folder, when in ((at_the_end, "in "), (collected, "")):
        status, output = run(folder, *more)
        assert status == 1, output
        assert "1 passed" in output
        assert f"Changed {when}" in output
        assert f"{folder}/decoy: its content changed" in output


# ---- the parts


def test_the_folders_watched_here() -> None:
    watched = usual({})
    names = {str(path) for path in watched.files}
    assert names >= {"/etc/passwd", "/etc/group", "/etc/hosts", str(Path.home() / ".bashrc")}
    assert watched.folders == (Path.home() / ".ssh",)
    state = Path.home() / ".local/state/aisotools"
    assert state not in watched.files, "a person may use the package while the tests run"
    assert {state, state / "ledger"} <= set(usual({"CI": "true"}).files)


def test_state_of_sessions_without_settings_of_their_own_is_kept_elsewhere() -> None:
    assert not state_place(os.environ).is_relative_to(Path.home())


def test_this_run_is_watched(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin("host_guard")


def test_without_a_checkout_nothing_is_tracked_and_without_git_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert tracked(tmp_path) == ()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tracked(tmp_path) == ()
    (tmp_path / ".git").mkdir()
    with pytest.raises(pytest.UsageError, match="git lists no file"):
        tracked(tmp_path)


def test_change_is_reported_once_and_a_new_time_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    watch = Watch(Watched(files=(path,)).few)
    path.touch()
    assert watch.changes() == []
    path.write_text("two")
    assert watch.changes() == [f"{path}: its content changed"]
    assert watch.changes() == []
    path.unlink()
    os.mkfifo(path)
    assert watch.changes() == [f"{path}: its kind, its content changed"]


def test_a_change_with_an_old_stamp_is_seen_when_all_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    monkeypatch.setattr("tests.host_guard.glance", lambda path: None)
    watch = Watch(Watched(files=(path,)).few)
    path.write_text("two")
    assert watch.changes() == []
    assert watch.changes(thorough=True) == [f"{path}: its content changed"]


def test_a_link_is_watched_with_what_it_leads_to(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("one")
    link.symlink_to(target)
    watch = Watch(Watched(files=(link,)).few)
    target.write_text("two")
    assert watch.changes() == [f"{link}: its content changed"]
    link.unlink()
    link.symlink_to("nowhere")
    assert watch.changes() == [f"{link}: where it leads, its content changed"]


def test_differences() -> None:
    assert difference(State(), State()) == ""
    assert difference(State(), State(0o100644)) == "it is new"
    assert difference(State(0o100644), State(0o100600, owner=(1, 0))) == "its mode, its owner changed"
    assert state_of("/no/such/file") == State()


def test_a_look_after_each_test_takes_little_work() -> None:
    watch = Watch(usual({}).few)
    work = lines_run(watch.changes, below=host_guard.__file__)
    assert 0 < work < 500
