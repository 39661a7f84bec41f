from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import UsageError, WorkspaceRefused
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.session import options
from aisotools.session.options import (
    check_retained_bytes,
    existing_paths,
    open_workspace,
    parse_workspace,
    refuse_auto_without_sandbox,
    require_approver,
    require_type,
)
from aisotools.session.session import Session
from aisotools.workspace import lock


def hold(folder: Path | None, environ: Mapping[str, str], level: str = "confined") -> str:
    claim = open_workspace(folder, level, environ)
    claim.release()
    return str(claim.path)


@pytest.mark.parametrize("level", LEVELS)
def test_a_folder_that_modules_are_imported_from_is_refused_at_every_level(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    place, entry = tmp_path / "around" / "place", tmp_path / "entry"
    for folder in (place, entry):
        folder.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path, str(entry)])
    for folder, reason in (
        (place, "it is the current folder"),
        (place.parent, "it contains the current folder"),
        (entry, "an entry of sys.path"),
    ):
        with pytest.raises(WorkspaceRefused, match=reason):
            hold(folder, environ, level)
    control = place / "workspace" / "mine"
    assert hold(control, environ, level) == str(control)


@pytest.mark.parametrize("name", ["plain", "with space", "quo'te\"s", "ünïcödé ✓", "-dash", "$HOME", "a\nb"])
def test_a_folder_is_made_and_claimed_whatever_its_name(
    tmp_path: Path, environ: Mapping[str, str], name: str
) -> None:
    folder = tmp_path / name
    for _ in range(2):
        assert hold(folder, environ) == str(folder.resolve())
        assert folder.is_dir()


def test_missing_parent_folders_are_made(tmp_path: Path, environ: Mapping[str, str]) -> None:
    assert hold(tmp_path / "a" / "b", environ) == str(tmp_path / "a" / "b")


def test_a_refused_folder_is_not_left_behind(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packages" / "aisotools"
    package.mkdir(parents=True)
    monkeypatch.setattr(lock, "__file__", str(package / "claims.py"))
    inside = package / "made-by-a-test"
    with pytest.raises(WorkspaceRefused, match="the package aisotools"):
        hold(inside / "and" / "below", environ)
    assert not list(package.iterdir())


def test_a_folder_that_was_there_stays(tmp_path: Path, environ: Mapping[str, str]) -> None:
    folder = tmp_path / "checkout"
    (folder / ".git").mkdir(parents=True)
    with pytest.raises(WorkspaceRefused, match="a git checkout"):
        hold(folder, environ)
    assert folder.is_dir()


@pytest.mark.parametrize("bad", ["a\0b", "x" * 300])
def test_impossible_folder_name_is_reported(tmp_path: Path, environ: Mapping[str, str], bad: str) -> None:
    with pytest.raises(WorkspaceRefused, match="cannot be the workspace: it cannot be created"):
        hold(tmp_path / bad, environ)


def test_a_file_is_no_workspace(tmp_path: Path, environ: Mapping[str, str]) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(WorkspaceRefused, match="it is not a folder"):
        hold(file, environ)


def test_a_link_is_judged_by_where_it_leads(tmp_path: Path, environ: Mapping[str, str]) -> None:
    target = tmp_path / "checkout"
    (target / ".git").mkdir(parents=True)
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(WorkspaceRefused, match="a git checkout"):
        hold(tmp_path / "link", environ)


def test_another_process_holds_it(tmp_path: Path, environ: Mapping[str, str]) -> None:
    folder = tmp_path / "workspace"
    script = textwrap.dedent("""
import sys
from pathlib import Path
from aisotools.session.options import open_workspace
environ = {"HOME": sys.argv[2], "XDG_STATE_HOME": sys.argv[3]}
claim = open_workspace(Path(sys.argv[1]), "confined", environ)
print("held", flush=True)
sys.stdin.read()
""")
    command = [sys.executable, "-c", script, str(folder), environ["HOME"], environ["XDG_STATE_HOME"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(WorkspaceRefused, match=f"is in use by process {other.pid}. Close that session"):
            hold(folder, environ)
        assert folder.is_dir(), "a folder in use is not removed"
        other.communicate()
    assert hold(folder, environ) == str(folder)


def test_the_notebook_has_a_workspace_of_its_own(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hold(None, environ) == str(tmp_path / "workspace" / "default")
    named = {**environ, "JPY_SESSION_NAME": "notebooks/My analysis.ipynb"}
    assert hold(None, named) == str(tmp_path / "workspace" / "My analysis")


# ---- what a session is given


class FormerApprover(AllowAll):
    """Answers questions by a method with its former name."""

    async def inquire(self, inquiry: object) -> str | None:
        """Answer."""
        return str(inquiry)


class BothApprover(FormerApprover):
    """Has the method under both names, to serve two versions."""

    async def ask_user(self, question: object) -> str | None:
        """Answer."""
        return str(question)


@pytest.mark.parametrize(
    ("approver", "message"),
    [
        (AllowAll, r"approver=AllowAll: give an approver, such as AllowAll\(\)"),
        ("yes", "approver='yes': give an object with `async def ask"),
        (object(), "give an object with `async def ask"),
    ],
)
def test_object_that_is_no_approver_is_refused(approver: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        require_approver(approver)
    require_approver(AllowAll())
    require_approver(BothApprover())
    require_approver(None)


def test_an_approver_with_a_former_name_is_accepted_with_a_warning(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    with pytest.warns(DeprecationWarning, match=r"FormerApprover: rename its method `inquire") as made:
        session = Session(tmp_path, approver=FormerApprover(), environ=environ)
    assert isinstance(session.approver, FormerApprover)
    with pytest.warns(DeprecationWarning, match=r"to `ask_user\(question\)`\.$") as assigned:
        session.approver = FormerApprover()
    assert {Path(one.filename) for one in (*made, *assigned)} == {Path(__file__)}


def test_wrong_type_is_reported_with_what_to_give() -> None:
    with pytest.raises(TypeError, match=r"policy='auto': give a Policy, such as Policy\(mode='auto'\)"):
        require_type("auto", Policy, "policy", "Policy(mode='auto')")
    with pytest.raises(TypeError, match="policy=None"):
        require_type(None, Policy, "policy", "Policy()", optional=False)
    require_type(None, Policy, "policy", "Policy()")


def test_an_empty_path_is_not_the_current_folder() -> None:
    with pytest.raises(ValueError, match="workspace='': give the path of a folder"):
        parse_workspace("")
    assert parse_workspace("~/x") == Path.home() / "x"


@pytest.mark.parametrize("given", ["data", Path("data")])
def test_one_path_is_no_list_of_paths(given: Any) -> None:
    with pytest.raises(TypeError, match=r"read_only='data': give a list of paths, such as \['data'\]"):
        existing_paths(given, {})


def test_read_only_paths_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"does not exist\. Create it first, or leave it out"):
        existing_paths([tmp_path / "no"], {})
    (tmp_path / "link").symlink_to(tmp_path)
    assert existing_paths([tmp_path / "link"], {"XDG_STATE_HOME": str(tmp_path)}) == (
        os.path.realpath(tmp_path),
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("/", r"read_only: '/' is the whole file system, .* Name the folders that tools need"),
        ("//..", r"read_only: '//\.\.' is the whole file system"),
        ("root", r"read_only: '.*/root' is the whole file system"),
        ("/proc", r"read_only: '/proc' shows your other programs, .* Leave it out"),
        ("/proc/self/fd", r"read_only: '/proc/self/fd' shows your other programs"),
    ],
)
async def test_folders_that_would_leave_nothing_protected_are_not_made_readable(
    tmp_path: Path, environ: Mapping[str, str], given: str, reason: str
) -> None:
    (tmp_path / "root").symlink_to("/")
    given = str(tmp_path / given) if given == "root" else given
    with pytest.raises(UsageError, match=reason):
        await Session(tmp_path / "w", read_only=[given], approver=AllowAll(), environ=environ).start()
    assert not (tmp_path / "w").exists()


def test_mode_auto_needs_a_sandbox() -> None:
    with pytest.raises(UsageError, match="Mode auto is refused at level limited"):
        refuse_auto_without_sandbox(Policy(mode="auto"), "limited")
    refuse_auto_without_sandbox(Policy(mode="auto"), "guarded")
    refuse_auto_without_sandbox(Policy(), "limited")


def test_the_budget_of_what_is_retained_is_checked() -> None:
    assert check_retained_bytes(1 << 20) == 1 << 20
    with pytest.raises(ValueError, match=r"retained_bytes=5: give at least 1048576 bytes \(1 MiB\)\."):
        check_retained_bytes(5)
    for value in ("64 MiB", True, 1.5, None):
        with pytest.raises(TypeError, match="give a number of bytes, such as 64 << 20"):
            check_retained_bytes(value)


# ---- what an earlier or another session decides


@pytest.mark.parametrize("way", ["demo", "demo/new"])
async def test_a_link_that_a_session_left_is_not_followed(
    tmp_path: Path, environ: Mapping[str, str], way: str
) -> None:
    (tmp_path / "private").mkdir()
    workspace = tmp_path / "workspace"
    plant = f"import os; os.symlink({str(tmp_path / 'private')!r}, 'demo')"
    async with Session(workspace, approver=AllowAll(), environ=environ) as session:
        assert not (await session.call("python", {"code": plant}, origin="person")).is_error
    for given in (
        {"workspace": workspace / way},
        {"workspace": tmp_path / "w", "read_only": [workspace / "demo"]},
    ):
        with pytest.raises(WorkspaceRefused, match="symbolic link") as refusal:
            await Session(**given, approver=AllowAll(), environ=environ).start()
        assert str(tmp_path / "private") in str(refusal.value)
    assert not list((tmp_path / "private").iterdir())


@pytest.mark.parametrize("outer_first", [True, False])
async def test_no_session_opens_in_or_around_the_workspace_of_another(
    tmp_path: Path, environ: Mapping[str, str], outer_first: bool
) -> None:
    paths = [tmp_path / "outer", tmp_path / "outer" / "inner"]
    first, second = paths if outer_first else reversed(paths)
    async with Session(first, approver=AllowAll(), environ=environ) as session:
        with pytest.raises(WorkspaceRefused, match="the workspace of an open session") as refusal:
            await Session(second, approver=AllowAll(), environ=environ).start()
        assert repr(str(first)) in str(refusal.value)
        with pytest.raises(WorkspaceRefused, match="the workspace of an open session"):
            await session.branch(workspace=first / "copy")
        async with Session(first, approver=AllowAll(), environ=environ):  # the same folder may be shared
            pass
    async with Session(second, approver=AllowAll(), environ=environ):
        pass


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("first", "level"),
    [
        *((level, level) for level in LEVELS),
        *(
            ("confined", "isolated"),
            ("confined", "guarded"),
            ("guarded", "confined"),
            ("isolated", "confined"),
        ),
    ],
)
async def test_repository_that_a_session_has_made_lets_the_next_one_open(
    tmp_path: Path, environ: Mapping[str, str], first: str, level: str
) -> None:
    """But for one that hides no such files, after one that does: that opens on any, and notes none."""
    workspace = tmp_path / "workspace"
    make = "mkdir -p deep/own && git init -q . && git init -q deep/own"
    for command, at in ((make, first), ("git status", level), ("git -C deep/own status", level)):
        if (first, at) == ("isolated", "confined"):
            with pytest.raises(WorkspaceRefused, match="it is a git checkout"):
                await Session(workspace, level=at, approver=AllowAll(), environ=environ).start()
            return
        async with Session(workspace, level=at, approver=AllowAll(), environ=environ) as session:
            result = await session.call("sandbox_bash", {"command": command})
            assert not result.is_error, result.content
    (workspace / "mine" / ".git").mkdir(parents=True)
    session = Session(workspace, level=level, approver=AllowAll(), environ=environ)
    if level == "isolated":
        await session.start()
    else:
        with pytest.raises(WorkspaceRefused, match=r"contains a git checkout \(.*/mine\)"):
            await session.start()
    await session.close()


@pytest.mark.parametrize("then", ["filled", "moved", "removed", "a link", "a file"])
def test_a_folder_that_others_take_before_it_is_refused_hides_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str], then: str
) -> None:
    new = tmp_path / "home" / "a" / "new"

    def take(*_: object, **__: object) -> None:
        if then == "filled":
            (new / "x").touch()
        else:
            new.rename(tmp_path / "moved")
        if then == "a link":
            new.symlink_to(tmp_path / "moved")
        elif then == "a file":
            new.touch()
        raise WorkspaceRefused("it lies in another one")

    monkeypatch.setattr(options, "refuse_workspace", take)
    with pytest.raises(WorkspaceRefused, match=r"^it lies in another one$"):
        open_workspace(new, "confined", environ)
