"""The plugin in a test project of its own."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from aisotools.policy.approvers import AllowAll
from aisotools.testing import pytest_plugin
from aisotools.testing.fakes import FakeSandbox

TESTS = """
import pytest
from aisotools import DenyAll, MockTool, tool
from aisotools.testing import FakeSandbox, ScriptedModel
from aisotools import Agent

@tool(effect="read_only")
def double(n: int) -> int:
    "Double a number."
    return 2 * n

async def test_own_tool(aiso_session):
    aiso_session.registry.register(double)
    result = await aiso_session.call("double", {"n": 21})
    assert result.value == 42

async def test_built_in(aiso_session, aiso_workspace):
    written = await aiso_session.call("file", {"operation": "write", "path": "a.txt", "content": "hi"})
    assert not written.is_error, written.content
    assert (aiso_workspace / "a.txt").read_text() == "hi"

async def test_agent(aiso_session):
    aiso_session.registry.register(MockTool("look"))
    result = await Agent(ScriptedModel([("look", {}), "done"]), aiso_session).run("go")
    assert result.text == "done"

def test_unused(aiso_session):
    pass

def test_workspace(aiso_workspace):
    assert aiso_workspace.is_dir() and not any(aiso_workspace.iterdir())

class TestDenying:
    @pytest.fixture
    def aiso_approver(self):
        return DenyAll("never")

    async def test_denied(self, aiso_session):
        aiso_session.registry.register(MockTool("write"))
        result = await aiso_session.call("write", {})
        assert "never" in result.content
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_own.py").write_text(TESTS)
    plugin = ("-p", "no:aisotools", "-p", "aisotools.testing.pytest_plugin")  # installed or not, once
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *arguments]
    ini = ("asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function", "filterwarnings=error")
    options = ["--rootdir", str(folder), *(part for one in ini for part in ("-o", one))]
    return subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.parametrize("sandbox", ["real", pytest.param("fake", marks=pytest.mark.slow)])
def test_fixtures(tmp_path: Path, sandbox: str) -> None:
    outcome = run(tmp_path, "-o", f"aiso_sandbox={sandbox}")
    assert "6 passed" in outcome.stdout, outcome.stdout + outcome.stderr


def test_without_pytest_asyncio_the_fixtures_have_the_same_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> set[str]:
        return {name for name in vars(importlib.reload(pytest_plugin)) if name.startswith("aiso")}

    with_asyncio = names()
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda _: None)
        without = names()
    importlib.reload(pytest_plugin)
    assert "aiso_session" in with_asyncio
    assert without == with_asyncio


@pytest.mark.slow
def test_an_unknown_sandbox_is_refused(tmp_path: Path) -> None:
    outcome = run(tmp_path, "-o", "aiso_sandbox=none", "-k", "unused")
    assert "aiso_sandbox = none: use one of real, fake" in outcome.stdout + outcome.stderr


def test_pytest_finds_it() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"aisotools": "aisotools.testing.pytest_plugin"}


async def test_a_session_keeps_its_state_beside_the_workspace(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    session = pytest_plugin.open_test_session(workspace, AllowAll(), FakeSandbox)
    try:
        assert not (await session.call("file", {"operation": "list", "path": "."})).is_error
        assert session.log_path is not None
        assert session.log_path.is_relative_to(tmp_path / "home" / "state")
    finally:
        await session.close()


def test_the_options_are_declared_with_the_real_sandbox_as_default() -> None:
    class Parser:
        def __init__(self) -> None:
            self.options: list[tuple[str, object]] = []

        def addini(self, name: str, help: str, default: object) -> None:  # noqa: A002 - pytest's own name
            self.options.append((name, default))

    parser = Parser()
    pytest_plugin.pytest_addoption(parser)  # type: ignore[arg-type]  # the one method that it uses
    assert parser.options == [("aiso_sandbox", "real")]
