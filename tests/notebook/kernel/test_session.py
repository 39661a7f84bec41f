"""The folder in which a kernel's session works, and the outcomes of its cells."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.types import ToolResult
from aisotools.notebook.kernel.session import CellRequest, CellResult, open_local, parse_cell_result
from aisotools.sandbox.host.displays import DisplayMessage
from aisotools.sandbox.worker.output import ExecuteOptions
from aisotools.workspace.lock import SERVER_ROOT, claim_workspace, state_folder


class Page:
    """A page that keeps what is shown."""

    def __init__(self) -> None:
        self.shown: list[DisplayMessage] = []
        self.text = ""

    def show(self, call_id: str, shown: DisplayMessage) -> None:
        del call_id
        self.shown.append(shown)

    def printed(self, call_id: str, stream: str, text: str) -> None:
        del call_id, stream
        self.text += text

    def dropped(self, call_id: str) -> None: ...

    def lost(self, reason: str) -> None: ...

    async def ask(self, call_id: str, prompt: str, *, password: bool) -> str | None:
        return f"{call_id}{prompt}{password}"


async def opened_in(folder: Path, environ: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """Where cells run that are typed in `folder`, and what a person is told about it."""
    before = Path.cwd()
    os.chdir(folder)
    page = Page()
    try:
        opened = await open_local(page, environ=environ)
        try:
            cell = CellRequest(call_id="one", code="import os; print(os.getcwd())", options=ExecuteOptions())
            assert await opened.backend.execute(cell) == CellResult()
            return page.text.strip(), opened.notices
        finally:
            await opened.close()
    finally:
        os.chdir(before)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home"), "XDG_STATE_HOME": str(tmp_path / "state")}


async def test_the_notebook_s_own_folder(tmp_path: Path, home: dict[str, str]) -> None:
    (tmp_path / "course").mkdir()
    assert await opened_in(tmp_path / "course", home) == (str(tmp_path / "course"), ())


@pytest.mark.parametrize("what", ["home", "root", "checkout"])
async def test_folders_that_are_not_taken(tmp_path: Path, home: dict[str, str], what: str) -> None:
    folder = tmp_path / what
    folder.mkdir(exist_ok=True)
    if what == "checkout":
        (folder / ".git").mkdir()
    environ = {**home, SERVER_ROOT: str(tmp_path / "root"), "JPY_SESSION_NAME": str(folder / "lesson.ipynb")}
    where, notices = await opened_in(folder, environ)
    assert where == str(folder / "workspace" / "lesson")
    (notice,) = notices
    assert where in notice


async def test_two_kernels_in_one_folder(tmp_path: Path, home: dict[str, str]) -> None:
    (tmp_path / "course").mkdir()
    claims = state_folder(home) / "claims"
    claims.mkdir()
    name = hashlib.sha256(os.fsencode(tmp_path / "course")).hexdigest()[:32]
    other = os.open(claims / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(other, fcntl.LOCK_EX)
    try:
        assert not claim_workspace(tmp_path / "course", state_folder(home)).ours
        where, notices = await opened_in(tmp_path / "course", home)
    finally:
        os.close(other)
    # Beside the folder, not in it: undo of the other kernel would remove what this one writes.
    assert where == str(tmp_path / "workspace" / "default")
    assert "in use" in notices[0]


# ---- what a result says


@pytest.mark.parametrize(
    ("metadata", "kind", "name"),
    [
        ({"worker_died": True}, "environment", "WorkerDied"),
        ({"stopped": True}, "failed", "KeyboardInterrupt"),
        ({"timed_out": True}, "failed", "TimeoutError"),
        ({}, "denied", "Denied"),
        ({}, "environment", "SandboxError"),
    ],
)
def test_names_of_errors(metadata: dict[str, Any], kind: Any, name: str) -> None:
    error = parse_cell_result(ToolResult.error("why", error_kind=kind).with_metadata(**metadata)).error
    assert error is not None
    assert (error["ename"], error["evalue"]) == (name, "why")
