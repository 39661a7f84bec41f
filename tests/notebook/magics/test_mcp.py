from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("mcp")

from IPython.core.error import UsageError

from aisotools.notebook.magics.mcp import McpServerLine, parse_server_line
from tests.notebook.client import Notebook
from tests.notebook.conftest import usage_error

STRANGER = f"{sys.executable} -S {Path(__file__).parents[2] / 'integrations' / 'stranger.py'}"

SETUP = """
from aisotools import AllowAll, Session
from aisotools.notebook.current import use_session
s = use_session(Session(approver=AllowAll()))
"""


@pytest.fixture(scope="module")
def notebook(loaded: Notebook) -> Notebook:
    assert not loaded.run(SETUP).error
    return loaded


def test_a_server_is_added_called_listed_and_removed(notebook: Notebook) -> None:
    added = notebook.run(f"%mcp add st --read-only act -- {STRANGER} plain")
    assert not added.error
    assert "tools: st_act" in added.text
    assert "connected, protocol 2025-11-25" in added.text
    assert notebook.run("r = %call st_act x=1\nprint(r.value)").text == "call 1\n"
    assert "st: " in notebook.run("%mcp list").text
    assert "is an MCP server 'st' already" in usage_error(notebook.run(f"%mcp add st -- {STRANGER}"))
    assert notebook.run("%mcp remove st").text == "st was removed, and its tools with it.\n"
    assert notebook.run("print('st_act' in s.registry)").text == "False\n"
    assert "no MCP servers yet" in notebook.run("%mcp").text


def test_the_server_ends_with_the_session(notebook: Notebook) -> None:
    assert not notebook.run(f"t = use_session(Session())\n%mcp add st -- {STRANGER} plain").error
    code = """
import asyncio, os, subprocess
await t.close()
def stranger():
    ps = ['ps', '-o', 'args', '--ppid', str(os.getpid())]
    return 'stranger' in subprocess.run(ps, capture_output=True, text=True).stdout
for _ in range(600):
    if not stranger(): break
    await asyncio.sleep(0.1)
print(stranger())
use_session(s)"""
    output = notebook.run(code)
    assert output.text.startswith("False")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%mcp add", "%mcp add NAME"),
        ("%mcp add x", "%mcp add NAME"),
        ("%mcp add x -- /no/such/program", "cannot be started"),
        ("%mcp add x http://a.example --token-env NO_SUCH_ONE", "NO_SUCH_ONE is not set"),
        ("%mcp remove x", "no MCP server 'x'"),
        ("%mcp dance", "%mcp list"),
        ("%mcp add 'x", "No closing quotation"),
    ],
)
def test_typo_is_reported_in_one_line(notebook: Notebook, line: str, message: str) -> None:
    assert message in usage_error(notebook.run(line))


def test_inside_a_function_it_says_what_to_write(notebook: Notebook) -> None:
    assert "add_mcp_server" in usage_error(notebook.run("def f():\n    %mcp list\nf()"))


def test_typed_commands_are_parsed() -> None:
    typed = ["fs", "--env", "A", "--env=B", "--read-only", "a,b", "--", "npx", "-y", "server", "--flag"]
    assert parse_server_line(typed) == McpServerLine(
        name="fs", command=("npx", "-y", "server", "--flag"), env=("A", "B"), read_only=("a", "b")
    )
    typed = ["far", "https://a.example/mcp", "--token-env", "T"]
    assert parse_server_line(typed) == McpServerLine(name="far", url="https://a.example/mcp", token_env="T")


@pytest.mark.parametrize(
    "typed",
    [
        "far https://a.example --env A",
        "fs --token-env T -- npx",
        "fs --frob -- npx",
        "fs url more",
        "fs --env",
        "fs --",
    ],
)
def test_invalid_commands_are_refused(typed: str) -> None:
    with pytest.raises(UsageError):
        parse_server_line(typed.split())
