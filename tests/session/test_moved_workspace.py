"""A workspace that is moved while it is open: nothing is done to what is in its place, and that is said."""

from __future__ import annotations

import asyncio
import importlib.machinery
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.builtin import builtin_tools
from aisotools.core.exceptions import WorkspaceError
from aisotools.core.types import Effect, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement import landlock
from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.session.session import Session
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry
from tests.conftest import OpenSession
from tests.session.test_path_rules import needs
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(300)


def read(root: Path) -> dict[str, tuple[object, ...]]:
    """Return what is in a folder, with all that a change of it leaves behind."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        content = path.read_text() if path.is_file() else ""
        found[str(path.relative_to(root))] = (content, status.st_mode, status.st_ino, status.st_mtime_ns)
    return found


def list_names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("workspace*")}


def nothing(place: Path) -> None:
    """Leave the place empty."""


def another(place: Path) -> None:
    place.mkdir()
    (place / "f").write_text("other")


def link_to_another(place: Path) -> None:
    another(place.with_name("elsewhere"))
    place.symlink_to(place.with_name("elsewhere"))


def link_to_itself_moved(place: Path) -> None:
    place.symlink_to(place.with_name("moved"))


def file(place: Path) -> None:
    place.write_text("other")


@tool(effect=Effect.LOCAL_MUTATION)
def host_write(path: str) -> str:
    """Write a file by its path."""
    Path(path).write_text("by a host tool")
    return "written"


async def call(session: Session, what: str, place: Path) -> ToolResult:
    name, arguments = {
        "python": ("python", {"code": "open('f', 'w').write('by code')"}),
        "python that reads": ("python", {"code": "print(open('f').read())"}),
        "command": ("sandbox_bash", {"command": "echo by a command > f"}),
        "command that reads": ("sandbox_bash", {"command": "cat f"}),
        "write": ("sandbox_write", {"path": "f", "content": "by a tool"}),
        "read": ("sandbox_read", {"path": "f"}),
        "host": ("host_write", {"path": str(place / "f")}),
    }[what]
    return await session.call(name, arguments)


CALLS = ("python", "python that reads", "command", "command that reads", "write", "read", "host")


@pytest.mark.parametrize("replace", [nothing, another, link_to_another, link_to_itself_moved, file])
async def test_calls_and_moves_are_refused_until_the_workspace_is_back(
    real_session: OpenSession, tmp_path: Path, replace: Callable[[Path], None]
) -> None:
    place, moved = tmp_path / "workspace", tmp_path / "moved"
    place.mkdir()
    # It is put back where a call removes it, and nowhere else.
    (place / "conftest.py").write_text("x = 1\n")
    session = real_session(approver=AllowAll(), registry=ToolRegistry([*builtin_tools(), host_write]))
    async with session:
        assert not (await session.call("sandbox_bash", {"command": "echo 1 > f"})).is_error
        place.rename(moved)
        replace(place)
        there = [path for path in (place, moved, tmp_path / "elsewhere") if path.exists()]
        before = [read(path) for path in there]
        for what in CALLS:
            result = await call(session, what, place)
            assert result.is_error, what
            assert result.error_kind == "environment", (what, result.content)
            assert str(place) in result.content, what
            assert "Move it back" in result.content, (what, result.content)
        undone = await session.undo()
        assert undone.is_error
        assert "Move it back" in undone.content
        for look in (session.changes, session.branch):
            with pytest.raises(WorkspaceError, match="Move it back"):
                await look()
        assert [read(path) for path in there] == before
        assert list_names(tmp_path) <= {"workspace"}, "no branch was made"

        if place.is_symlink() or place.is_file():
            place.unlink()
        elif place.is_dir():
            place.rename(tmp_path / "aside")
        moved.rename(place)
        assert not (await session.call("sandbox_bash", {"command": "echo 2 > f"})).is_error
        assert not (await session.undo()).is_error
        assert (place / "f").read_text() == "1\n"


BELOW_A_MOUNT = """
import asyncio, os, subprocess, sys
from aisotools import AllowAll, Session
top = sys.argv[1]
place, other = top + "/workspace", top + "/other"
os.mkdir(place), os.mkdir(other)
open(other + "/f", "w").write("other")
async def main():
    environ = {"XDG_STATE_HOME": top + "/state", "HOME": top}
    async with Session(place, approver=AllowAll(), environ=environ) as session:
        assert not (await session.call("sandbox_bash", {"command": "echo 1 > f"})).is_error
        subprocess.run(["mount", "--bind", other, place], check=True)
        for result in (await session.call("sandbox_bash", {"command": "echo 2 > f"}), await session.undo()):
            assert result.is_error and "Move it back" in result.content, result.content
        assert open(other + "/f").read() == "other"
        subprocess.run(["umount", place], check=True)
        assert not (await session.undo()).is_error
        assert os.listdir(place) == [], os.listdir(place)
        print("as it should be")
asyncio.run(main())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="it takes root to mount one folder on another",
)
def test_folder_that_is_mounted_on_a_workspace_is_not_it(tmp_path: Path) -> None:
    command = ["unshare", "-m", sys.executable, "-c", BELOW_A_MOUNT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "as it should be" in done.stdout, done.stderr


async def test_restart_and_close_leave_what_is_in_the_place_of_a_workspace(
    real_session: OpenSession, tmp_path: Path
) -> None:
    place, moved = tmp_path / "workspace", tmp_path / "moved"
    place.mkdir()
    (place / "conftest.py").write_text("x = 1\n")
    session = real_session(approver=AllowAll())
    async with session:
        assert not (await session.call("sandbox_bash", {"command": "echo 1 > f"})).is_error
        place.rename(moved)
        another(place)
        place.chmod(0o750)
        before = [read(path) for path in (place, moved)]
        with pytest.raises(WorkspaceError, match="Move it back"):
            await session.restart()
        result = await session.call("sandbox_bash", {"command": "cat f"})
        assert result.is_error
        assert "Move it back" in result.content
    assert [read(path) for path in (place, moved)] == before


async def test_restart_where_a_link_is_above_the_workspace_loses_nothing(
    real_session: OpenSession, tmp_path: Path
) -> None:
    place = tmp_path / "above" / "w"
    place.mkdir(parents=True)
    session = real_session(workspace=place, approver=AllowAll())
    async with session:
        await session.run_cell("x = 6", origin="person")
        place.parent.rename(tmp_path / "moved")
        place.parent.symlink_to(tmp_path / "moved")
        with pytest.raises(WorkspaceError, match=r"a link is in its place: the workspace is .*moved/w"):
            await session.restart()
        place.parent.unlink()
        (tmp_path / "moved").rename(place.parent)
        assert (await session.run_cell("x * 7", origin="person")).content == "42"
        await session.restart()


async def test_call_during_which_the_workspace_is_moved_says_that_it_cannot_be_undone(
    real_session: OpenSession, tmp_path: Path
) -> None:
    place, moved = tmp_path / "workspace", tmp_path / "moved"
    place.mkdir()
    code = (
        "import os, time\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        "open('f', 'w').write('by the call')"
    )
    async with real_session(approver=AllowAll()) as session:
        calling = asyncio.ensure_future(session.call("python", {"code": code}))
        await eventually((place / "begun").exists)
        place.rename(moved)
        another(place)
        before = read(place)
        (moved / "go").touch()
        result = await calling
        assert "This call cannot be undone" in result.content
        assert "something else is in its place now" in result.content
        assert (await session.undo()).is_error
        assert read(place) == before
        place.rename(tmp_path / "aside")
        moved.rename(place)
        undone = await session.undo()
        assert undone.is_error
        assert "With force=True" in undone.content
        assert not (await session.undo(force=True)).is_error
        assert read(place).keys() == {"."}


# ---- what is moved out of it

WRITES_ON = """
mkdir results && cd results && echo 0 > held && exec 3>> held && touch $WORKSPACE/ready
while :; do
    if (echo x > new.py) 2> /dev/null; then answer=yes; else answer=no; fi
    echo held >&3
    echo $answer > $WORKSPACE/answer.part && mv $WORKSPACE/answer.part $WORKSPACE/answer
    sleep 0.02
done
"""


async def start_writing(session: Session) -> Path:
    """Start something that has `results` in the workspace open. Return the workspace."""
    started = await session.call("sandbox_bash", {"command": WRITES_ON, "background": True})
    assert not started.is_error, started.content
    assert session.workspace is not None
    await eventually((session.workspace / "ready").exists)
    return session.workspace


async def next_answer(workspace: Path) -> str:
    """Return whether a file can be written, tried from now on."""
    answer = workspace / "answer"
    for _ in range(2):  # the first may be of a try before
        answer.unlink(missing_ok=True)
        await eventually(answer.exists)
    return answer.read_text().strip()


@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
async def test_folder_that_is_moved_out_while_something_runs_in_it_stays_in_reach_at_isolated_alone(
    real_session: OpenSession, tmp_path: Path, level: str
) -> None:
    needs(level)
    if level == "isolated" and 3 not in landlock.errata():
        pytest.skip("an older kernel refuses it, or not, by where the folder has come from")
    async with real_session(level=level, policy=Policy(mode="auto"), approver=AllowAll()) as session:
        workspace = await start_writing(session)
        assert await next_answer(workspace) == "yes"
        (workspace / "results").rename(tmp_path / "results")
        (tmp_path / "results" / "new.py").unlink()
        assert await next_answer(workspace) == ("yes" if level == "isolated" else "no")
        found = importlib.machinery.PathFinder.find_spec("new", [str(tmp_path / "results")])
        assert (found is not None) is (level == "isolated"), "what your program would import"


@pytest.mark.parametrize("level", LEVELS)
async def test_file_that_is_moved_out_while_something_has_it_open_is_written_on(
    real_session: OpenSession, tmp_path: Path, level: str
) -> None:
    needs(level)
    async with real_session(level=level, policy=Policy(mode="safe"), approver=AllowAll()) as session:
        workspace = await start_writing(session)
        (workspace / "results" / "held").rename(tmp_path / "held")
        size = (tmp_path / "held").stat().st_size
        await eventually(lambda: (tmp_path / "held").stat().st_size > size)
