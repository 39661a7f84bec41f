"""The parts of an open session, for files on this machine and for files elsewhere."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.core.exceptions import UsageError, WorkspaceRefused
from aisotools.core.sandboxes import Sandbox, SandboxListener
from aisotools.core.types import Effect, Facts
from aisotools.policy.config import WORKSPACE_FILE_NAME
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement.detect import Detection
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.event_log import EventLog
from aisotools.session.guards import ReadGuard
from aisotools.session.history import WorkspaceHistory
from aisotools.session.options import claim
from aisotools.session.protection import RestGuard
from aisotools.session.setup import (
    PreparedSandbox,
    SandboxFactory,
    SessionParts,
    build_environment,
    check_factory,
    claim_beside,
    detect_levels,
    prepare_sandbox,
)
from aisotools.session.undo_history import NoUndoHistory
from aisotools.testing.fakes import FakeSandbox
from aisotools.workspace import lock
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.lock import checkpoint_folder, state_folder
from tests.waiting import HANG_S

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
    spec = WorkerSpec(level="confined", workspace=str(tmp_path / "workspace"), limits=Limits())
    prepared = await prepare_sandbox(spec, make_sandbox, EventLog(), environ, Policy())
    return await build_environment(prepared, EventLog(), "k", environ, protect_notebooks=True)


def test_folders_of_this_machine_cannot_be_read_elsewhere() -> None:
    check_factory(RemoteFactory(), ())
    check_factory(FakeSandbox, ("/data",))
    with pytest.raises(UsageError, match=r"^read_only: calls run in a kernel far away, where folders"):
        check_factory(RemoteFactory(), ("/data",))


def test_a_factory_says_which_levels_it_holds() -> None:
    assert detect_levels(RemoteFactory()).level == "limited"
    assert detect_levels(FakeSandbox).level == "confined"


@pytest.mark.parametrize("umask", [0o777, 0o277])
def test_a_umask_that_takes_rights_from_its_user_is_refused_by_its_name(umask: int) -> None:
    before = os.umask(umask)
    try:
        with pytest.raises(UsageError, match=rf"^The umask of this process is {umask:#o}.*os\.umask\(0o77\)"):
            detect_levels(FakeSandbox)
        os.umask(0o077)
        assert detect_levels(FakeSandbox).level == "confined"
    finally:
        os.umask(before)


def test_a_limit_of_open_files_with_which_no_worker_starts_is_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        with pytest.raises(UsageError, match=r"64 files \(RLIMIT_NOFILE\).*At least 68 .*`ulimit -n 1024`"):
            detect_levels(FakeSandbox)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


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


class Noting(FakeSandbox):
    """A sandbox that starts its worker early, and notes what is asked of it."""

    def __init__(self, spec: WorkerSpec, listener: SandboxListener) -> None:
        super().__init__(spec, listener)
        self.asked: list[str] = []

    def prepare(self) -> None:
        self.asked.append("prepare")

    def discard_prepared(self) -> None:
        self.asked.append("discard")

    async def close(self) -> None:
        self.asked.append("close")
        await super().close()


async def prepare_noting(path: Path, environ: Mapping[str, str]) -> PreparedSandbox:
    spec = WorkerSpec(level="confined", workspace=str(path), limits=Limits())
    return await prepare_sandbox(spec, Noting, EventLog(), environ, Policy(), start_early=True)


class Elsewhere:
    """Stands in for the look at other processes: it takes as long as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, holder: int | None = None) -> None:
        self.began, self.may_end, self._holder = threading.Event(), threading.Event(), holder
        monkeypatch.setattr(lock, "_find_holder_elsewhere", self)

    def __call__(self, *_: object) -> int | None:
        self.began.set()
        assert self.may_end.wait(HANG_S)
        return self._holder


async def test_a_sandbox_is_prepared_while_other_processes_are_looked_at(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look, paths = Elsewhere(monkeypatch), list[Path]()

    async def prepare(path: Path) -> PreparedSandbox:
        assert look.began.is_set() or not look.may_end.is_set()
        paths.append(path)
        try:
            return await prepare_noting(path, environ)
        finally:
            look.may_end.set()

    (tmp_path / "link").symlink_to("w")
    lease, prepared = await claim_beside(tmp_path / "link", "confined", environ, prepare)
    assert (lease.ours, lease.path, paths) == (True, tmp_path / "w", [tmp_path / "w"])
    assert isinstance(prepared.sandbox, Noting)
    assert prepared.sandbox.asked == ["prepare"]
    lease.release()


async def test_a_sandbox_is_closed_if_another_process_has_the_workspace(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look, made = Elsewhere(monkeypatch, holder=1), list[PreparedSandbox]()

    async def prepare(path: Path) -> PreparedSandbox:
        made.append(await prepare_noting(path, environ))
        look.may_end.set()
        return made[0]

    with pytest.raises(WorkspaceRefused, match="in use by process 1"):
        await claim_beside(tmp_path / "w", "confined", environ, prepare)
    assert isinstance(made[0].sandbox, Noting)
    assert made[0].sandbox.asked == ["prepare", "close"]
    assert not (tmp_path / "w").exists(), "it was made for this"


@pytest.mark.parametrize("fails", ["cancelled", "prepare"])
async def test_a_claim_is_given_back_if_its_session_does_not_open(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    look, prepares = Elsewhere(monkeypatch), asyncio.Event()

    async def prepare(path: Path) -> PreparedSandbox:
        prepares.set()
        if fails == "prepare":
            look.may_end.set()
            raise UsageError("the workspace's own policy is not valid")
        return await prepare_noting(path, environ)

    claiming = asyncio.ensure_future(claim_beside(tmp_path / "w", "confined", environ, prepare))
    await prepares.wait()
    if fails == "cancelled":
        claiming.cancel()
        look.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await claiming
    else:
        with pytest.raises(UsageError, match="not valid"):
            await claiming
    monkeypatch.undo()
    lease = await claim(tmp_path / "w", "confined", environ)
    assert lease.ours
    assert not lock._LOCKS._claims[lease.path].count > 1, "the first claim was given back"
    lease.release()


async def test_the_notebook_s_own_workspace_is_claimed_first(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths: list[Path] = []

    async def prepare(path: Path) -> PreparedSandbox:
        paths.append(path)
        return await prepare_noting(path, environ)

    lease, _ = await claim_beside(None, "confined", environ, prepare)
    assert paths == [lease.path]
    lease.release()


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_worker_that_started_before_a_recovery_is_not_used(
    tmp_path: Path, environ: Mapping[str, str], is_cut: bool
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    earlier = Checkpoints(workspace, checkpoint_folder(workspace.resolve(), state_folder(environ)))
    earlier.begin("c", "tool", "s")
    (workspace / "f").write_text("of a call")
    if not is_cut:
        earlier.end("c")
    earlier.close()  # else its process ended before the call did
    prepared = await prepare_noting(workspace, environ)
    parts = await build_environment(prepared, EventLog(), "k", environ, protect_notebooks=True)
    parts.history.close()
    assert isinstance(prepared.sandbox, Noting)
    assert prepared.sandbox.asked == ["prepare", *["discard"] * is_cut]


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
