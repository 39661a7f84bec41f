"""Folders that are too deep or too many: the session says so and goes on, and a person can get out of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.core.types import Effect, ToolCall, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.policy.prepared import prepare_call
from aisotools.policy.rules import Policy
from aisotools.sandbox.process import spawn
from aisotools.session.protection import Protection
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from aisotools.workspace.protected import ProtectedFileChange, ProtectedFiles
from tests.conftest import OpenSession

NESTED = """
import os
here = os.open('.', os.O_RDONLY)
for _ in range({levels}):
    os.mkdir('{name}', dir_fd=here)
    below = os.open('{name}', os.O_RDONLY, dir_fd=here)
    os.close(here)
    here = below
os.close(os.open('conf' + 'test.py', os.O_CREAT | os.O_WRONLY, dir_fd=here))
os.close(here)
"""


async def python(session: Session, code: str) -> ToolResult:
    return await session.call("python", {"code": code}, origin="person", timeout_s=30)


@pytest.fixture(params=["isolated", "confined"])
def session(real_session: OpenSession, request: pytest.FixtureRequest) -> Session:
    if not any(probe.name == request.param and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"this machine cannot hold the level {request.param}")
    return real_session(policy=Policy(mode="auto"), approver=AllowAll(), level=request.param)


async def test_230_nested_folders_are_watched_and_can_be_removed(session: Session) -> None:
    planted = await python(session, NESTED.format(levels=230, name="d"))
    assert planted.error_kind == "denied"
    assert "conftest.py' (new; taken away" in planted.content
    assert not (await python(session, "1")).is_error
    removed = await session.call("sandbox_bash", {"command": "rm -rf d"}, origin="person")
    assert not removed.is_error, removed.content
    assert session.workspace is not None
    assert not list(session.workspace.iterdir())


@pytest.mark.parametrize("levels", [300, 2_500])
async def test_undo_removes_folders_of_any_depth(session: Session, levels: int) -> None:
    """Also those that no path reaches."""
    await python(session, NESTED.format(levels=levels, name="d"))
    undone = await session.undo()
    assert not undone.is_error
    assert "left in place" not in undone.content
    assert session.workspace is not None
    assert not list(session.workspace.iterdir())
    assert not (await python(session, "1")).is_error


def test_a_walk_by_paths_does_not_see_what_lies_so_deep(tmp_path: Path) -> None:
    """The control: by its path the file is not found."""
    name, levels = "d" * 100, 50
    code = NESTED.format(levels=levels, name=name)
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert not [found for _, _, files in os.walk(tmp_path) for found in files]
    with pytest.raises(OSError, match="File name too long"):
        tmp_path.joinpath(*[name] * levels, "conftest.py").stat()
    subprocess.run(["rm", "-r", "-f", name], cwd=tmp_path, check=True)


async def test_folders_beyond_every_path_are_named_once_and_calls_go_on(session: Session) -> None:
    name = "d" * 100
    made = await python(session, NESTED.format(levels=50, name=name))
    assert not made.is_error, made.content
    assert "[Not covered: the workspace has a folder whose path has more than 4096 bytes" in made.content
    again = await session.call("sandbox_write", {"path": "a.txt", "content": "x"}, origin="person")
    assert not again.is_error, again.content
    assert "Not covered" not in again.content
    planted = await python(session, "open('conf' + 'test.py', 'w').write('evil')")
    assert planted.error_kind == "denied"
    assert "'conftest.py' (new; taken away" in planted.content, "the rest is as usual"
    beside = await python(session, "import os; os.mkdir('z'); open('z/conf' + 'test.py', 'w').write('evil')")
    assert "'z/conftest.py' (new; taken away" in beside.content, "the walk goes on behind it"
    await session.restart()
    assert not (await python(session, "1")).is_error
    arguments = {"operation": "delete", "path": name, "recursive": True}
    removed = await session.call("file", arguments, origin="person")
    assert not removed.is_error, removed.content
    assert session.workspace is not None
    assert not (session.workspace / name).exists()


async def test_protected_files_that_move_up_from_there_are_found(session: Session) -> None:
    name = "d" * 100
    await python(session, NESTED.format(levels=50, name=name))
    deep = f"import os\nfor n in range(30): os.chdir('{name}')\n"
    up = f"os.rename('{name}', os.environ['WORKSPACE'] + '/up')"
    moved = await python(session, deep + up)
    assert moved.error_kind == "denied", moved.content
    assert "conftest.py' (new; taken away" in moved.content


async def test_undo_removes_them_too(session: Session) -> None:
    name = "d" * 100
    assert not (await python(session, NESTED.format(levels=50, name=name))).is_error
    undone = await session.undo()
    assert session.workspace is not None
    assert name in undone.content
    assert not (session.workspace / name).exists()
    assert not (await python(session, "1")).is_error


class Recorded(ProtectedFiles):
    """Notes where it works without a limit."""

    def __init__(self, folder: Path, **options: int) -> None:
        self.unlimited: list[bool] = []
        super().__init__(folder / "workspace", folder / "quarantine", **options)  # type: ignore[arg-type]  # of numbers

    def restore(
        self, spared: frozenset[str] = frozenset(), *, most_steps: float = float("inf")
    ) -> tuple[ProtectedFileChange, ...]:
        if most_steps == float("inf"):
            self.unlimited.append(threading.current_thread() is threading.main_thread())
        return super().restore(spared, most_steps=most_steps)


def many_files(folder: Path) -> None:
    for number in range(8_000):
        (folder / f"{number}.txt").touch()


def many_folders(folder: Path) -> None:
    for number in range(2_000):
        (folder / f"{number}").mkdir()


def many_settings(folder: Path) -> None:
    for number in range(5):
        (folder / f"{number}" / ".git").mkdir(parents=True)
        (folder / f"{number}" / ".git" / "config").write_text("[a]\n" * 1_000)


def one_large_file(folder: Path) -> None:
    with (folder / "conftest.py").open("wb") as file:
        file.truncate(1 << 30)


def one_small_file(folder: Path) -> None:
    (folder / "conftest.py").write_text("evil")


@pytest.mark.parametrize(
    "plant",
    [many_files, many_folders, many_settings, one_large_file, one_small_file],
    ids=lambda f: f.__name__,
)
async def test_the_event_loop_only_looks_and_only_a_little(tmp_path: Path, plant: object) -> None:
    """Whatever a call leaves: work without a limit is done in a thread."""
    (tmp_path / "workspace").mkdir()
    files = Recorded(tmp_path)
    protection = Protection(files, dict[tuple[int, int], int])
    tool = MockTool("m", effect=Effect.LOCAL_MUTATION)
    prepared = prepare_call(tool, ToolCall("1", "m", {}), Policy(), "confined")
    await protection.before(prepared)
    plant(tmp_path / "workspace")  # type: ignore[operator]  # a function of the folder
    await protection.after(prepared, ToolResult.text("done"))
    assert files.unlimited == [False]


async def test_more_folders_than_are_watched_fail_the_call_and_no_more(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    (tmp_path / "workspace").mkdir()
    files = Recorded(tmp_path, most_folders=10)
    protection = Protection(files, dict[tuple[int, int], int])
    tool = MockTool("m", effect=Effect.LOCAL_MUTATION)
    prepared = prepare_call(tool, ToolCall("1", "m", {}), Policy(), "confined")
    for number in range(11):
        (tmp_path / "workspace" / f"{number}").mkdir()
    for _ in range(2):
        await protection.before(prepared)  # refuses nothing
        result = await protection.after(prepared, ToolResult.text("done"))
        assert result is not None
        assert "more than 10 folders" in result.content
        assert result.error_kind == "environment", "the call ran, so it was not denied"
    for number in range(11):
        await asyncio.to_thread(os.rmdir, tmp_path / "workspace" / f"{number}")
    await protection.before(prepared)
    assert await protection.after(prepared, ToolResult.text("done")) == ToolResult.text("done")
