"""The parts of an open session, for files on this machine and for files elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.core.exceptions import UsageError
from aisotools.core.sandboxes import Sandbox, SandboxListener
from aisotools.core.types import Effect, Facts
from aisotools.policy.config import WORKSPACE_FILE_NAME
from aisotools.sandbox.confinement.detect import Detection
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.event_log import EventLog
from aisotools.session.guards import ReadGuard
from aisotools.session.history import WorkspaceHistory
from aisotools.session.protection import RestGuard
from aisotools.session.setup import (
    SandboxFactory,
    SessionParts,
    build_environment,
    check_factory,
    detect_levels,
)
from aisotools.session.undo_history import NoUndoHistory
from aisotools.testing.fakes import FakeSandbox

CHANGE = Facts(effect=Effect.LOCAL_MUTATION, level="confined", path_guarded=True)


class RemoteFactory:
    """Makes sandboxes on another machine, by its own account."""

    elsewhere = "a kernel far away"
    least = "limited"

    def __call__(self, spec: WorkerSpec, listener: SandboxListener, /) -> Sandbox:
        return FakeSandbox(spec, listener)

    def detect(self) -> Detection:
        return Detection("limited", ())


async def build(make_sandbox: SandboxFactory, tmp_path: Path, environ: Mapping[str, str]) -> SessionParts:
    (tmp_path / "workspace").mkdir(exist_ok=True)
    return await build_environment(
        WorkerSpec(level="confined", workspace=str(tmp_path / "workspace"), limits=Limits()),
        make_sandbox,
        event_log=EventLog(),
        session_key="k",
        environ=environ,
        protect_notebooks=True,
    )


def test_folders_of_this_machine_cannot_be_read_elsewhere() -> None:
    check_factory(RemoteFactory(), ())
    check_factory(FakeSandbox, ("/data",))
    with pytest.raises(UsageError, match=r"^read_only: calls run in a kernel far away, where folders"):
        check_factory(RemoteFactory(), ("/data",))


def test_a_factory_says_which_levels_it_holds() -> None:
    assert detect_levels(RemoteFactory()).level == "limited"
    assert detect_levels(FakeSandbox).level == "confined"


async def test_on_this_machine_every_change_is_guarded_and_can_be_undone(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / WORKSPACE_FILE_NAME).write_text('mode = "plan"\n')
    parts = await build(FakeSandbox, tmp_path, environ)
    try:
        assert isinstance(parts.history, WorkspaceHistory)
        rest, reading, history, protection = parts.env.guards
        assert isinstance(rest, RestGuard)
        assert isinstance(reading, ReadGuard)
        assert (history, protection) == (parts.history, parts.protection)
        assert parts.env.on_read is not None
        assert parts.env.workspace_policy is not None
        assert parts.env.workspace_policy.mode == "plan"
        assert parts.env.can_undo is not None
        assert parts.env.can_undo(CHANGE)
        assert (parts.env.level, parts.env.workspace) == ("confined", tmp_path / "workspace")
    finally:
        parts.history.close()


async def test_files_elsewhere_are_neither_guarded_nor_kept(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    parts = await build(RemoteFactory(), tmp_path, environ)
    assert isinstance(parts.history, NoUndoHistory)
    assert (parts.env.guards, parts.env.on_read) == ((), None)
    assert parts.env.can_undo is not None
    assert not parts.env.can_undo(CHANGE)
    assert parts.env.describe_undo == parts.history.describe


async def test_only_the_begin_and_the_end_of_calls_reach_the_protection(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    parts = await build(FakeSandbox, tmp_path, environ)
    parts.history.close()
    assert repr(parts.protection).endswith("0 calls run>")
