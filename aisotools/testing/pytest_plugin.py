"""Fixtures for tests of programs that use aisotools; pytest finds them by itself once aisotools is installed.

    async def test_my_tool(aiso_session):
        aiso_session.registry.register(my_tool)
        result = await aiso_session.call("my_tool", {"n": 1})
        assert result.value == 2

A session opens itself at its first call, in the sandbox of this machine and in a folder of the test's own,
and approves everything. For something else override the fixture `aiso_approver` or `aiso_sandbox`, or say
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
    """Say what may stand in pytest's configuration."""
    parser.addini("aiso_sandbox", "sandbox of the fixture aiso_session: real or fake", default="real")


@pytest.fixture
def aiso_workspace(tmp_path: Path) -> Path:
    """An empty folder that a session may change."""
    folder = tmp_path / "workspace"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def aiso_approver() -> Approver:
    """Who is asked by `aiso_session`; approves everything unless it is overridden."""
    from aisotools.policy.approvers import AllowAll

    return AllowAll()


@pytest.fixture
def aiso_sandbox(request: pytest.FixtureRequest) -> Any:
    """What makes the sandbox of `aiso_session`: confined processes, or `FakeSandbox`."""
    from aisotools.sandbox.host.sandbox import LocalSandbox
    from aisotools.testing.fakes import FakeSandbox

    wanted = str(request.config.getini("aiso_sandbox"))
    known = {"real": LocalSandbox, "fake": FakeSandbox}
    if wanted not in known:
        raise pytest.UsageError(f"aiso_sandbox = {wanted}: give one of {', '.join(known)}.")
    return known[wanted]


def _session(workspace: Path, approver: Approver, sandbox: Any) -> Session:
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
        """A session with the built-in tools; closed after the test."""
        session = _session(aiso_workspace, aiso_approver, aiso_sandbox)
        try:
            yield session
        finally:
            await session.close()

else:

    @pytest.fixture
    def aiso_session(aiso_workspace: Path, aiso_approver: Approver, aiso_sandbox: Any) -> Iterator[Session]:
        """A session with the built-in tools; closed after the test."""
        session = _session(aiso_workspace, aiso_approver, aiso_sandbox)
        try:
            yield session
        finally:
            asyncio.run(session.close())
