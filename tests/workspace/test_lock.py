"""Which folders may be a workspace, and which process holds one."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import aisotools
from aisotools.core.exceptions import WorkspaceError, WorkspaceRefused
from aisotools.workspace.checkouts import SCAN_DEPTH, SCAN_ENTRIES
from aisotools.workspace.lock import (
    WorkspaceLease,
    _ProcessLocks,
    checkpoint_folder,
    claim_default_workspace,
    claim_workspace,
    default_workspace,
    real_workspace,
    refuse_workspace,
    state_folder,
)
from tests.sandbox.inside import user_of


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def state(home: Path) -> Path:
    return state_folder({"HOME": str(home)})


# ---- the state folder


def test_state_folder(home: Path, tmp_path: Path) -> None:
    usual = home / ".local/state/aisotools"
    for environ in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}):
        assert state_folder({"HOME": str(home), **environ}) == usual
    assert stat.S_IMODE(usual.stat().st_mode) == 0o700
    usual.chmod(0o755)
    assert state_folder({"HOME": str(home)}) == usual
    assert stat.S_IMODE(usual.stat().st_mode) == 0o700
    assert state_folder({"XDG_STATE_HOME": str(tmp_path / "s")}) == tmp_path / "s" / "aisotools"


def test_state_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WorkspaceError, match="Set XDG_STATE_HOME"):
        state_folder({"XDG_STATE_HOME": str(tmp_path / "file")})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_state_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "aisotools").mkdir()
    os.chown(tmp_path / "aisotools", 2001, 2001)
    with pytest.raises(WorkspaceError, match="belongs to another user"):
        state_folder({"XDG_STATE_HOME": str(tmp_path)})


# ---- refused


def refused(path: Path, state: Path, home: Path, level: str = "confined", **environ: str) -> str:
    """Why; empty when it is not refused."""
    try:
        refuse_workspace(path, state_folder=state, level=level, environ={"HOME": str(home), **environ})
    except WorkspaceRefused as error:
        return str(error)
    return ""


def test_plain_folder_is_fine(tmp_path: Path, state: Path, home: Path) -> None:
    for name in ("ws", 'with "quotes" & späces', os.fsdecode(b"caf\xe9")):
        (tmp_path / name).mkdir()
        assert not refused(tmp_path / name, state, home)
    (home / "notebooks").mkdir()
    assert not refused(home / "notebooks", state, home)


def test_no_folder(tmp_path: Path, state: Path, home: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert "not a folder" in refused(tmp_path / "file", state, home)
    assert "does not exist. Create it" in refused(tmp_path / "nope", state, home)
    (tmp_path / "loop").symlink_to("loop")
    assert "Too many levels" in refused(tmp_path / "loop", state, home)
    assert "null byte" in refused(tmp_path / "a\0b", state, home)


def test_folders_that_matter(tmp_path: Path, state: Path, home: Path) -> None:
    reasons = {
        Path("/"): "is the root of the file system",
        home: "is your home folder",
        tmp_path: "contains your home folder",
        state: "is the state folder",
        state.parent: "contains the state folder",
        Path(sys.prefix): "Python installation",
        Path(sys.prefix, "lib"): "lies in the Python installation",
        Path(sys.base_prefix): "Python installation",
        Path(aisotools.__file__).parent: "is the package aisotools",
        Path(aisotools.__file__).parent / "builtin": "lies in the package aisotools",
    }
    for path, reason in reasons.items():
        for level in ("limited", "confined", "isolated"):
            assert reason in refused(path, state, home, level), path
            assert "./workspace/" in refused(path, state, home, level)


def test_jupyter_folders(tmp_path: Path, state: Path, home: Path) -> None:
    inside = home / ".jupyter" / "lab"
    inside.mkdir(parents=True)
    assert "lies in Jupyter's own folder" in refused(inside, state, home)
    moved = tmp_path / "elsewhere" / "config"
    moved.mkdir(parents=True)
    assert "contains Jupyter" in refused(moved.parent, state, home, JUPYTER_CONFIG_DIR=str(moved))
    for variable in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH", "JUPYTER_RUNTIME_DIR"):
        places = {variable: f"/nowhere:{moved}"}
        assert f"contains a folder of {variable}" in refused(moved.parent, state, home, **places)
    assert not refused(moved.parent, state, home)


def test_names_that_will_matter_once_they_exist(state: Path, home: Path) -> None:
    """Otherwise a workspace made before the first run of Jupyter would hold its configuration."""
    (home / ".local" / "share").mkdir(parents=True)
    assert "contains Jupyter" in refused(home / ".local" / "share", state, home)


def test_spelling_and_links_do_not_help(tmp_path: Path, state: Path, home: Path) -> None:
    (tmp_path / "link").symlink_to(home)
    (home / "below").mkdir()
    assert "is your home folder" in refused(tmp_path / "link", state, home)
    assert "is your home folder" in refused(home / "below" / "..", state, home)


@pytest.mark.parametrize(
    ("mark", "what"),
    [(".git", "a git checkout"), ("pyvenv.cfg", "a virtual environment"), ("conda-meta", "a conda environ")],
)
def test_checkouts_and_environments(tmp_path: Path, state: Path, home: Path, mark: str, what: str) -> None:
    project = tmp_path / "outer" / "project"
    (project / "workspace").mkdir(parents=True)
    (project / mark).mkdir()
    assert f"is {what}" in refused(project, state, home)
    assert f"contains {what}" in refused(project.parent, state, home)
    assert str(project) in refused(project.parent, state, home)
    assert not refused(project / "workspace", state, home)
    for path in (project, project.parent):
        assert not refused(path, state, home, "isolated")


def test_checkout_that_a_session_has_made_is_no_reason_to_refuse_the_next_one(
    tmp_path: Path, state: Path, home: Path
) -> None:
    folder = tmp_path / "ws"
    notes = checkpoint_folder(folder, state)
    notes.mkdir(parents=True)
    for place in (folder / ".git", folder / "below" / ".git"):
        place.mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    lease = claim_workspace(folder, state)
    lease.release()
    assert "a git checkout" in refused(folder, state, home)  # a claim alone notes nothing
    replace(claim_workspace(folder, state), notes=notes).release()
    assert not refused(folder, state, home)

    other = folder / "new" / ".git"
    other.mkdir(parents=True)
    assert str(other.parent) in refused(folder, state, home)  # made when no session was open
    other.rmdir()
    (folder / ".git").rename(folder / "old")
    (folder / ".git").mkdir()
    assert "is a git checkout" in refused(folder, state, home)  # another one in its place
    (folder / ".git").rmdir()
    (folder / "old").rename(folder / ".git")
    assert not refused(folder, state, home)
    for damaged in ("", "{", "7", "[7]", '{"a": 1}'):
        (notes / "made").write_text(damaged, "utf-8")
        assert "checkout" in refused(folder, state, home)


def test_a_worktree_has_a_file(tmp_path: Path, state: Path, home: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / ".git").write_text("gitdir: /elsewhere", "utf-8")
    assert "a git checkout" in refused(tmp_path / "ws", state, home)


def test_bounds_of_the_scan(tmp_path: Path, state: Path, home: Path) -> None:
    deep = tmp_path / "ws"
    for _ in range(SCAN_DEPTH):
        deep /= "d"
    (deep / ".git").mkdir(parents=True)
    assert "contains a git checkout" in refused(tmp_path / "ws", state, home)
    (deep / ".git").rename(deep / "git")
    (deep / "d" / ".git").mkdir(parents=True)
    assert not refused(tmp_path / "ws", state, home)

    many = tmp_path / "many"
    (many / "below" / ".git").mkdir(parents=True)
    for number in range(SCAN_ENTRIES):
        (many / f"{number}").symlink_to("nowhere")  # the cheapest entry there is
    assert not refused(many, state, home)
    (many / ".git").mkdir()
    assert "is a git checkout" in refused(many, state, home)


def test_links_are_not_scanned(tmp_path: Path, state: Path, home: Path) -> None:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "link").symlink_to(tmp_path / "project")
    assert not refused(tmp_path / "ws", state, home)


@pytest.mark.skipif(os.geteuid() != 0, reason="starts a process of another user")
def test_unreadable(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from aisotools.workspace.lock import refuse_workspace
from aisotools.core.exceptions import WorkspaceRefused
try:
    home = {"HOME": "/nope"}
    refuse_workspace(Path(sys.argv[1]), state_folder=Path("/nope/state"), level="confined", environ=home)
except WorkspaceRefused as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, "/var"],
        capture_output=True,
        text=True,
        check=True,
        user=user_of("plain"),
    )
    assert "'/var' cannot be the workspace: this process may not read and write it." in done.stdout


# ---- the default workspace


def test_default_workspace(tmp_path: Path) -> None:
    made = default_workspace(tmp_path, "my notes")
    assert made == tmp_path / "workspace" / "my notes"
    assert made.is_dir()
    (made / "kept").touch()
    assert default_workspace(tmp_path, "my notes") == made
    assert (made / "kept").exists()
    assert default_workspace(tmp_path, "my notes", number=3) == tmp_path / "workspace" / "my notes-3"


@pytest.mark.parametrize("stem", ["", "..", ".", "a/b", "../x", "/etc", "a\0b", "ünï 'q' \"r\"", " "])
def test_default_workspace_stays_where_it_belongs(tmp_path: Path, stem: str) -> None:
    made = default_workspace(tmp_path, stem)
    assert made.parent == tmp_path / "workspace"
    assert made.is_dir()


def test_default_workspace_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "workspace").write_bytes(b"in the way")
    with pytest.raises(WorkspaceRefused, match="cannot be made"):
        default_workspace(tmp_path, "x")
    with pytest.raises(WorkspaceRefused, match="too long"):
        default_workspace(tmp_path / "other", "x" * 300)


# ---- claims


@contextmanager
def another_process(path: Path, state: Path) -> Iterator[int]:
    """Somebody who holds the claim; its pid."""
    script = f"""
import sys
from pathlib import Path
from aisotools.workspace.lock import claim_workspace
assert claim_workspace(Path({str(path)!r}), Path({str(state)!r})).ours
print("claimed", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"claimed\n"
        try:
            yield process.pid
        finally:
            process.kill()


def test_sessions_of_one_process_share(tmp_path: Path, state: Path) -> None:
    first = claim_workspace(tmp_path, state)
    second = claim_workspace(tmp_path / "home" / "..", state)
    assert first == second == WorkspaceLease(tmp_path)
    assert first.ours
    first.release()
    assert held_elsewhere(tmp_path, state) == os.getpid()
    second.release()
    assert held_elsewhere(tmp_path, state) is None
    second.release()  # once too often changes nothing


def held_elsewhere(path: Path, state: Path) -> int | None:
    """Who holds it, as another process sees it."""
    script = f"""
from pathlib import Path
from aisotools.workspace.lock import claim_workspace
print(claim_workspace(Path({str(path)!r}), Path({str(state)!r})).holder)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return None if done.stdout == "None\n" else int(done.stdout)


def test_another_process_is_named(tmp_path: Path, state: Path) -> None:
    with another_process(tmp_path, state) as pid:
        claim = claim_workspace(tmp_path, state)
        assert not claim.ours
        assert claim.holder == pid
        claim.release()
    after = claim_workspace(tmp_path, state)
    assert after.ours
    after.release()


def test_default_workspaces_are_numbered(tmp_path: Path, state: Path) -> None:
    first = default_workspace(tmp_path, "nb")
    with another_process(first, state), another_process(tmp_path / "workspace" / "nb-2", state):
        claim = claim_default_workspace(tmp_path, "nb", state)
        assert claim.path.name == "nb-3"
        claim.release()
    claim = claim_default_workspace(tmp_path, "nb", state)
    assert claim.path == first
    claim.release()


def test_a_forked_child_does_not_hold_it(tmp_path: Path, state: Path) -> None:
    claim = claim_workspace(tmp_path, state)
    seen = claim_in_child(tmp_path, state)
    assert seen == str(os.getpid())
    assert claim_workspace(tmp_path, state).ours
    claim.release()
    claim.release()
    assert claim_in_child(tmp_path, state) == "None"


def claim_in_child(path: Path, state: Path) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(claim_workspace(path, state).holder).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    try:
        return os.read(read, 100).decode()
    finally:
        os.close(read)


def test_threads(tmp_path: Path, state: Path) -> None:
    claims: list[WorkspaceLease] = []
    threads = [
        threading.Thread(target=lambda: claims.append(claim_workspace(tmp_path, state))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [claim.ours for claim in claims] == [True] * 20
    for claim in claims[1:]:
        claim.release()
    assert held_elsewhere(tmp_path, state) == os.getpid()
    claims[0].release()
    assert held_elsewhere(tmp_path, state) is None


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user id")
def test_a_user_without_an_account_needs_a_home() -> None:
    code = """
import os
from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.lock import state_folder
os.setuid(2_000_111)
try:
    state_folder({})
except WorkspaceError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = "HOME is not set, and the user 2000111 has no account. Set HOME to a folder of your own.\n"
    assert done.stdout == expected


# ---- links that sessions have made


@pytest.fixture
def planted(tmp_path: Path, state: Path) -> Path:
    """A former workspace with a link `demo` to a private folder, as code in it may leave one."""
    workspace = tmp_path / "project" / "workspace"
    workspace.mkdir(parents=True)
    (tmp_path / "private").mkdir()
    claim_workspace(workspace, state).release()
    (workspace / "demo").symlink_to(tmp_path / "private")
    return workspace


@pytest.mark.parametrize("way", ["demo", "demo/new", "sub/../demo", "there", "inner/deep", "demo/../private"])
def test_a_link_in_a_former_workspace_is_not_followed(planted: Path, state: Path, way: str) -> None:
    (planted / "sub").mkdir()
    (planted / "inner").symlink_to("sub")
    (planted.parent / "there").symlink_to("workspace/demo")
    path = planted / way if way != "there" else planted.parent / way
    with pytest.raises(WorkspaceRefused, match="symbolic link") as refusal:
        real_workspace(path, state)
    assert str(planted) in str(refusal.value)
    assert str(path.resolve()) in str(refusal.value)


def test_former_workspace_is_known_by_its_path_and_from_its_state_folder(planted: Path, state: Path) -> None:
    """What README leaves open."""
    with pytest.raises(WorkspaceRefused, match="symbolic link"):
        real_workspace(planted / "demo", state)
    private = planted.parents[1] / "private"
    assert real_workspace(planted / "demo", state.parent / "another") == private
    assert real_workspace(planted.rename(planted.parent / "moved") / "demo", state) == private


def test_links_of_a_person_are_followed(tmp_path: Path, planted: Path, state: Path) -> None:
    (tmp_path / "linked home").symlink_to("project")
    assert real_workspace(tmp_path / "linked home" / "workspace", state) == planted
    (planted / "plain").mkdir()
    assert real_workspace(tmp_path / "linked home" / "workspace" / "plain", state) == planted / "plain"
    (tmp_path / "data").mkdir()
    (tmp_path / "mine").symlink_to("data")
    assert real_workspace(tmp_path / "mine" / "new", state) == tmp_path / "data" / "new"
    with pytest.raises(WorkspaceRefused, match="symbolic link"):
        real_workspace(tmp_path / "mine", state, below=tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(WorkspaceRefused, match="Too many levels"):
        real_workspace(tmp_path / "circle", state)


def test_a_former_workspace_of_an_earlier_version_counts(tmp_path: Path, state: Path) -> None:
    """It has left checkpoints, or the number of its process alone."""
    for name, left in (("a", checkpoint_folder(tmp_path / "a", state)), ("b", None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "link").symlink_to(tmp_path)
        assert real_workspace(tmp_path / name / "link", state) == tmp_path
        if left is not None:
            left.mkdir(parents=True)
        else:
            digest = checkpoint_folder(tmp_path / name, state).name
            (state / "claims").mkdir(exist_ok=True)
            (state / "claims" / f"{digest}.lock").write_bytes(b"123")
        with pytest.raises(WorkspaceRefused, match="symbolic link"):
            real_workspace(tmp_path / name / "link", state)


@pytest.mark.parametrize("target", ["private", "missing"])
def test_a_default_workspace_is_no_link(tmp_path: Path, state: Path, target: str) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "workspace").symlink_to("elsewhere")  # a person's
    (tmp_path / "elsewhere" / "nb").symlink_to(tmp_path / target)
    for claim in (
        lambda: default_workspace(tmp_path, "nb"),
        lambda: claim_default_workspace(tmp_path, "nb", state),
    ):
        with pytest.raises(WorkspaceRefused, match="symbolic link") as refusal:
            claim()
        assert str(tmp_path / target) in str(refusal.value)
    assert not (tmp_path / "missing").exists()
    assert default_workspace(tmp_path, "other") == tmp_path / "elsewhere" / "other"


def test_a_default_workspace_below_a_planted_link(planted: Path, state: Path) -> None:
    with pytest.raises(WorkspaceRefused, match="symbolic link"):
        claim_default_workspace(planted / "demo", "nb", state)
    assert not list((planted / "demo").iterdir())


# ---- workspaces in one another


def refusal_elsewhere(path: Path, state: Path) -> str:
    """Why another process may not claim it; empty if it may."""
    script = f"""
from pathlib import Path
from aisotools.core.exceptions import WorkspaceRefused
from aisotools.workspace.lock import claim_workspace
try:
    claim_workspace(Path({str(path)!r}), Path({str(state)!r}))
except WorkspaceRefused as error:
    print(error)
"""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout


def refusal_here(path: Path, state: Path) -> str:
    try:
        claim_workspace(path, state).release()
    except WorkspaceRefused as error:
        return str(error)
    return ""


@pytest.mark.parametrize("refusal", [refusal_here, refusal_elsewhere])
@pytest.mark.parametrize("relation", ["lies in", "contains"])
def test_no_workspace_lies_in_an_open_one(
    tmp_path: Path, state: Path, relation: str, refusal: Callable[[Path, Path], str]
) -> None:
    first, second = ("a", "a/b/c") if relation == "lies in" else ("a/b/c", "a")
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "link").symlink_to(second)
    claim = claim_workspace(tmp_path / first, state)
    beside = claim_workspace(tmp_path / "home", state)
    for path in (tmp_path / second, tmp_path / "link"):
        why = refusal(path, state)
        assert f"it {relation} {str(tmp_path / first)!r}" in why
        assert f"process {os.getpid()}" in why
        assert "Close that session, or use a folder beside it." in why
    claim.release()
    assert not refusal(tmp_path / second, state)
    beside.release()


def test_other_processes_and_their_end(tmp_path: Path, state: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with another_process(tmp_path / "a" / "b", state) as pid:
        for path, relation in ((tmp_path / "a", "contains"), (tmp_path / "a" / "b" / "c", "lies in")):
            assert f"{relation} {str(tmp_path / 'a' / 'b')!r}" in refusal_here(path, state)
            assert f"process {pid}" in refusal_here(path, state)
        with another_process(tmp_path / "home", state):  # side by side
            assert claim_workspace(tmp_path / "a" / "b", state).holder == pid
    # It was killed: nothing stale is in the way.
    assert not refusal_here(tmp_path / "a", state)
    assert not refusal_here(tmp_path / "a" / "b" / "c", state)


def test_another_state_folder_does_not_help_within_a_process(tmp_path: Path, state: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    other = state_folder({"XDG_STATE_HOME": str(tmp_path / "other")})
    claim = claim_workspace(tmp_path / "a", state)
    assert "lies in" in refusal_here(tmp_path / "a" / "b", other)
    claim.release()


def test_another_state_folder_does_not_help_another_process(tmp_path: Path, state: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    workspace = tmp_path / "a" / "b"
    other = state_folder({"XDG_STATE_HOME": str(tmp_path / "other")})
    with another_process(workspace, other) as pid:
        claim = claim_workspace(workspace, state)
        assert (claim.ours, claim.holder) == (False, pid)
        why = refusal_here(tmp_path / "a", state)
        assert f"it contains the workspace of an open session in process {pid}" in why
        why = refusal_here(workspace / "c", state)
        assert f"it lies in {str(workspace)!r}, the workspace of an open session in process {pid}" in why
        assert not refusal_here(tmp_path / "home", state)  # beside it
        # Nothing of a refused claim is left.
        assert not refusal_elsewhere(tmp_path / "home", state)
    for path in (workspace, tmp_path / "a", workspace / "c"):
        assert not refusal_here(path, state)


def test_same_path_in_a_container_is_another_folder(tmp_path: Path, state: Path) -> None:
    workspace, other = tmp_path / "a", tmp_path / "other"
    workspace.mkdir()
    (other / "state").mkdir(parents=True)
    code = f"""
import ctypes, os, sys
from pathlib import Path
from aisotools.workspace.lock import claim_workspace
libc = ctypes.CDLL(None, use_errno=True)
# A mount namespace in a user namespace of its own, in which another folder is at this path.
paths = [os.fsencode(path) for path in ({str(other)!r}, {str(workspace)!r})]
if libc.unshare(0x10000000 | 0x20000) or libc.mount(*paths, None, 4096, None):
    print("cannot", flush=True)
    sys.exit()
assert claim_workspace(Path({str(workspace)!r}), Path({str(other / "state")!r})).ours
print("claimed", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        answer = process.stdout.readline()
        if answer == b"cannot\n":
            pytest.skip("no user namespaces here")
        assert answer == b"claimed\n"
        claim = claim_workspace(workspace, state)
        assert claim.ours
        claim.release()
        process.communicate()


def test_locks_of_a_sandbox_are_no_claims(tmp_path: Path, state: Path) -> None:
    # The attack: code in a sandbox makes a lock file of that name, to have a folder refused.
    file = tmp_path / "claims" / f"{hashlib.sha256(os.fsencode(tmp_path / 'home')).hexdigest()[:32]}.lock"
    file.parent.mkdir()
    code = f"""
import ctypes, fcntl, struct, sys
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]

if {{restricted}}:  # as every process in a sandbox of ours: no new privileges, and a filter, here of nothing
    allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    prctl = ctypes.CDLL(None).prctl
    assert prctl(38, 1, 0, 0, 0) == 0
    assert prctl(22, 2, ctypes.byref(Filter(1, ctypes.addressof(allow))), 0, 0) == 0
file = open({str(file)!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    for restricted in (True, False):
        program = code.format(restricted=restricted)
        with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            claim = claim_workspace(tmp_path / "home", state)
            assert claim.holder == (None if restricted else process.pid)
            claim.release()
            process.communicate()


def test_a_default_workspace_goes_beside_an_open_workspace(tmp_path: Path, state: Path) -> None:
    course = tmp_path / "courses" / "one"
    course.mkdir(parents=True)
    with another_process(course, state):
        claim = claim_default_workspace(course, "nb", state)
        assert claim.path == tmp_path / "courses" / "workspace" / "nb"
        claim.release()
        assert not list(course.iterdir())
    claim = claim_workspace(default_workspace(tmp_path, "x").parent, state)
    with pytest.raises(WorkspaceRefused, match="lies in"):
        claim_default_workspace(tmp_path, "nb", state)
    claim.release()


def test_a_folder_that_becomes_a_link_is_not_claimed(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "a").mkdir()
    take = _ProcessLocks.take

    def take_late(
        locks: _ProcessLocks, workspace: Path, folder: Path, on_own_locks: Callable[[], None]
    ) -> int | None:
        (tmp_path / "a").rmdir()
        (tmp_path / "a").symlink_to("private")
        return take(locks, workspace, folder, on_own_locks)

    locked: list[Path] = []
    monkeypatch.setattr(_ProcessLocks, "take", take_late)
    with pytest.raises(WorkspaceRefused, match="replaced"):
        claim_workspace(tmp_path / "a", state, locked.append)
    assert locked == [], "nothing is begun in the folder that the link leads to"
    monkeypatch.undo()
    assert held_elsewhere(tmp_path / "a", state) is None


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("/etc", "it is the folder of the system's settings"),
        ("/etc/ssl", "it lies in the folder of the system's settings"),
        ("/sys", "it is a file system of the kernel"),
        ("/sys/kernel", "it lies in a file system of the kernel"),
        ("/proc", "it is a file system of the kernel"),
        ("/dev", "it is the folder of devices"),
        ("/dev/shm", "it is the folder of shared memory"),
    ],
)
def test_folders_of_the_system_are_no_workspaces(
    tmp_path: Path, state: Path, folder: str, message: str
) -> None:
    if not Path(folder).is_dir():
        pytest.skip(f"no {folder} here")
    with pytest.raises(WorkspaceRefused, match=message):
        refuse_workspace(Path(folder), state_folder=state, level="isolated", environ={"HOME": str(tmp_path)})
