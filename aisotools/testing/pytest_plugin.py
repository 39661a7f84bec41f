"""Pytest fixtures for programs that use aisotools. Pytest loads this plugin once aisotools is installed.

    async def test_my_tool(aiso_session):
        aiso_session.registry.register(my_tool)
        result = await aiso_session.call("my_tool", {"n": 1})
        assert result.value == 2

The session starts at its first call, in the sandbox of this machine and in a folder of the test's own, and
approves everything. Override the fixtures `aiso_approver` or `aiso_sandbox` to change that, or set
`aiso_sandbox = fake` in pytest's configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from aisotools.core.protocols import Approver
    from aisotools.session.session import Session


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of pytest's configuration file."""
    parser.addini("aiso_sandbox", "sandbox of the fixture aiso_session: real or fake", default="real")


@pytest.fixture
def aiso_workspace(tmp_path: Path) -> Path:
    """Return an empty folder for the workspace of `aiso_session`."""
    folder = tmp_path / "workspace"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def aiso_approver() -> Approver:
    """Return the approver of `aiso_session`: `AllowAll`, unless overridden."""
    from aisotools.policy.approvers import AllowAll

    return AllowAll()


@pytest.fixture
def aiso_sandbox(request: pytest.FixtureRequest) -> Any:
    """Return the sandbox class of `aiso_session`: `LocalSandbox`, or `FakeSandbox` if configured."""
    from aisotools.sandbox.host.sandbox import LocalSandbox
    from aisotools.testing.fakes import FakeSandbox

    name = str(request.config.getini("aiso_sandbox"))
    sandboxes = {"real": LocalSandbox, "fake": FakeSandbox}
    if name not in sandboxes:
        raise pytest.UsageError(f"aiso_sandbox = {name}: use one of {', '.join(sandboxes)}.")
    return sandboxes[name]


def open_test_session(workspace: Path, approver: Approver, sandbox: Any) -> Session:
    """Create a session that keeps its state beside `workspace` instead of in the user's home."""
    from aisotools.session.session import Session

    home = workspace.parent / "home"
    home.mkdir(exist_ok=True)
    environ = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
    return Session(workspace, approver=approver, sandbox=sandbox, environ=environ)


if find_spec("pytest_asyncio") is not None:
    import pytest_asyncio

    @pytest_asyncio.fixture
    async def aiso_session(
        aiso_workspace: Path, aiso_approver: Approver, aiso_sandbox: Any
    ) -> AsyncIterator[Session]:
        """Return a session with the built-in tools; it is closed after the test."""
        session = open_test_session(aiso_workspace, aiso_approver, aiso_sandbox)
        try:
            yield session
        finally:
            await session.close()

else:

    @pytest.fixture
    def aiso_session(aiso_workspace: Path, aiso_approver: Approver, aiso_sandbox: Any) -> Iterator[Session]:
        """Return a session with the built-in tools; it is closed after the test."""
        session = open_test_session(aiso_workspace, aiso_approver, aiso_sandbox)
        try:
            yield session
        finally:
            asyncio.run(session.close())
