"""The mode of the workspace's own folder, which code in the sandbox may change at level isolated."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.sandbox.process import spawn
from aisotools.session.session import Session
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.lock import checkpoint_folder, state_folder
from tests.conftest import OpenSession
from tests.sandbox import inside
from tests.sandbox.conftest import Places, place
from tests.sandbox.inside import Who
from tests.session.mode_attacks import ATTACKS, BELOW, MODE
from tests.waiting import HANG_S

__all__ = ["place"]

pytestmark = pytest.mark.timeout(300)


def play(who: Who, level: str, folder: Path, *names: str) -> Any:
    uid = inside.user_of(who)
    command, user = inside.command_of(
        [sys.executable, "-m", "tests.session.mode_attacks", level, str(folder), *names], uid
    )
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=280,
        check=False,
        **user,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.sample(1)
@pytest.mark.parametrize("who", ["root", "plain"])
@pytest.mark.parametrize("level", ["isolated", "confined"])
def test_no_change_of_the_mode_makes_a_workspace_unusable(who: Who, level: str, place: Places) -> None:
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"this machine cannot hold the level {level}")
    for name, found in play(who, level, place(who)).items():
        assert found["mode"] == found["closed"] == MODE, (name, found)
        for step in ("read", "write", "bash", "python", "undo", "again", "reopened"):
            assert not found[step]["failed"], (name, step, found)
        assert found["undo"]["content"].startswith("Undid 2 calls"), (name, found)
        assert {"after", "before"} <= {*found["files"]}, (name, found)
        assert not {"third", "fourth"} & {*found["files"]}, (name, found)
        assert found["protected"] == "safe = True\n", (name, found)
        if level == "isolated":
            assert "It was put back to 755" in found["attack"]["content"], (name, found)
        # What it did is undone and said, which is no reason to deny it.
        assert found["attack"]["kind"] != "denied", (name, found)


@pytest.mark.parametrize("who", ["root", "plain"])
def test_undo_brings_folders_back_that_nobody_may_open(who: Who, place: Places) -> None:
    if not any(probe.name == "isolated" and probe.ok for probe in spawn.detection().probes):
        pytest.skip("this machine cannot hold the level isolated")
    for name, found in play(who, "isolated", place(who), *BELOW).items():
        assert "Not brought back" not in found["undo"]["content"], (name, found)
        assert found["undo"]["content"].startswith("Undid 1 call"), (name, found)
        assert found["after"] == found["before"], (name, found)


def test_changes_of_the_mode_work_without_a_sandbox(place: Places) -> None:
    found = play("root" if os.getuid() == 0 else "plain", "outside", place("plain"))
    assert found.keys() == ATTACKS.keys()
    assert all(outcome["mode"] != MODE for outcome in found.values()), found


@pytest.fixture
async def session(real_session: OpenSession, tmp_path: Path) -> Session:
    if not any(probe.name == "isolated" and probe.ok for probe in spawn.detection().probes):
        pytest.skip("this machine cannot hold the level isolated")
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace").chmod(MODE)
    return real_session(policy=Policy(mode="auto"), level="isolated", approver=AllowAll())


async def test_a_task_that_goes_on_changing_the_mode_can_be_stopped(session: Session, tmp_path: Path) -> None:
    command = "while :; do chmod 0 .; done"
    started = await session.call("sandbox_bash", {"command": command, "background": True}, timeout_s=HANG_S)
    assert not started.is_error, started.content
    # Whether this call can write depends on the moment. It is made, and what it says is true.
    written = await session.call("sandbox_write", {"path": "a", "content": "1"}, timeout_s=HANG_S)
    assert written.error_kind != "denied"
    stopped = await session.call("task_stop", {"task": started.value["task"]}, timeout_s=HANG_S)
    assert not stopped.is_error, stopped.content
    again = await session.call("sandbox_write", {"path": "b", "content": "1"}, timeout_s=HANG_S)
    assert not again.is_error, again.content
    assert stat.S_IMODE((tmp_path / "workspace").stat().st_mode) == MODE


async def test_the_note_comes_once_and_programs_can_read_it(session: Session) -> None:
    result = await session.call("python", {"code": "import os; os.chmod('.', 0o70); 6 * 7"}, timeout_s=HANG_S)
    note = "The mode of the workspace's folder had become 070. It was put back to 755."
    assert (result.is_error, result.content) == (False, f"42\n[{note}]")
    assert result.metadata["workspace_mode"] == [note]
    assert (await session.call("python", {"code": "1"}, timeout_s=HANG_S)).content == "1"


async def test_undo_says_that_it_put_the_mode_back(session: Session, tmp_path: Path) -> None:
    await session.call("sandbox_write", {"path": "a", "content": "1"}, timeout_s=HANG_S)
    (tmp_path / "workspace").chmod(0)
    undone = await session.undo()
    assert "Removed: a." in undone.content
    assert "had become 000. It was put back to 755.]" in undone.content
    assert stat.S_IMODE((tmp_path / "workspace").stat().st_mode) == MODE


@pytest.mark.parametrize("mode", [0o700, 0o775, 0o2755])
async def test_a_person_may_change_the_mode_between_calls(
    session: Session, tmp_path: Path, mode: int
) -> None:
    workspace = tmp_path / "workspace"
    await session.start()
    workspace.chmod(mode)
    result = await session.call("sandbox_write", {"path": "a", "content": "1"}, timeout_s=HANG_S)
    assert result.content == "Created a (1 bytes)."
    assert stat.S_IMODE(workspace.stat().st_mode) == mode
    # And it is the mode that is put back from now on, also when the session is closed.
    await session.call("python", {"code": "import os; os.chmod('.', 0)"}, timeout_s=HANG_S)
    assert stat.S_IMODE(workspace.stat().st_mode) == mode
    await session.close()
    assert stat.S_IMODE(workspace.stat().st_mode) == mode


async def test_a_session_after_one_that_was_killed_puts_the_mode_back(
    open_session: OpenSession, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir(mode=0o750)
    folder = checkpoint_folder(workspace, state_folder(environ))
    killed = Checkpoints(workspace, folder)
    workspace.chmod(0)
    session = open_session(policy=Policy(mode="auto"))
    await session.start()
    assert stat.S_IMODE(workspace.stat().st_mode) == 0o750
    await session.close()
    assert not (folder / "mode").exists()
    # The next one takes the mode as it is, since this one was closed.
    workspace.chmod(0o701)
    await open_session(policy=Policy(mode="auto")).start()
    assert stat.S_IMODE(workspace.stat().st_mode) == 0o701
    killed.close()
