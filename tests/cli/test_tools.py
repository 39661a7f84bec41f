from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from aisotools.cli import tools
from aisotools.cli.main import Host, main
from aisotools.core.exceptions import UsageError
from aisotools.core.types import ToolResult
from aisotools.testing.fakes import MockTool
from aisotools.tools.registry import ToolRegistry


def run(*arguments: str) -> tuple[int, str]:
    lines: list[str] = []
    status = main(arguments, Host(echo=lines.append))
    return status, "\n".join(lines)


def test_tools_as_a_table_and_one_in_full() -> None:
    status, output = run("tools")
    assert status == 0
    assert "sandbox_bash" in output
    assert "tokens" in output.splitlines()[0]
    status, output = run("tools", "sandbox_bash")
    assert "command" in output
    assert json.loads(run("tools", "file", "--format", "anthropic")[1])[0]["input_schema"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tools", "sandbox_bsh"), "sandbox_bash"),
        (("tools", "--format", "xml"), "--format takes"),
        (("call", "sandbox_bsh"), "sandbox_bash"),
        (("call", "file", "operation"), "is not key=value. Usage: aisotools call NAME"),
        (("call", "file", "--json", "["), "--json takes an object"),
    ],
)
def test_mistakes_are_reported(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments)[0] == 1
    assert message in capsys.readouterr().err


def test_the_help_of_each_subcommand_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("doctor", "log", "kernelspec", "mcp", "replay", "run", "tools", "call", "lab"):
        with pytest.raises(SystemExit) as ended:
            main([name, "--help"])
        assert ended.value.code == 0
        description = capsys.readouterr().out.partition("\n\n")[2].partition("\n\n")[0]
        assert description[0].isupper(), name
        assert description.endswith("."), name
        assert "%" not in description, "of a magic, or a format that was not filled in"


def test_a_subcommand_has_its_summary_in_the_list_and_as_its_description() -> None:
    parser = argparse.ArgumentParser("p")
    commands = parser.add_subparsers()
    added = tools.add_subcommand(commands, "go", "go somewhere", more="It is far.", epilog="The end.")
    assert "go somewhere" in parser.format_help()
    assert (added.description, added.epilog) == ("Go somewhere. It is far.", "The end.")
    assert tools.add_subcommand(commands, "stay", "stay here").description == "Stay here."


def test_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in (("HOME", "home"), ("XDG_STATE_HOME", "state")):
        (tmp_path / folder).mkdir()
        monkeypatch.setenv(name, str(tmp_path / folder))
    workspace = tmp_path / "work"
    place = ("--workspace", str(workspace))
    assert run("call", "sandbox_write", "path=a.txt", "content=hi there", *place)[0] == 0
    assert (workspace / "a.txt").read_text() == "hi there"
    assert run("call", "sandbox_bash", "command=cat a.txt; printf '\\033]0;x\\007'", *place) == (
        0,
        "hi there",
    )
    status, output = run("call", "sandbox_bash", "command=exit 3", "--result", *place)
    assert status == 1
    assert json.loads(output)["value"]["exitCode"] == 3
    assert run("call", "file", "operation=fly", *place)[0] == 2
    assert run("call", "sandbox_write", "path=b.txt", "content=x", "--ask", *place)[0] == 3
    assert not (workspace / "b.txt").exists()
    assert run("call", "sandbox_write", "path=conftest.py", "content=x", *place)[0] == 3, "it is protected"
    assert not (workspace / "conftest.py").exists()


REGISTRY = ToolRegistry([MockTool("from_registry")])
LIST = [MockTool("from_list")]


@pytest.mark.parametrize(("name", "expected"), [("REGISTRY", "from_registry"), ("LIST", "from_list")])
def test_tools_are_imported_from_a_registry_or_a_list(name: str, expected: str) -> None:
    assert [tool.name for tool in tools.import_tools(f"{__name__}:{name}")] == [expected]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("my_tools", "--tools 'my_tools': write MODULE:NAME, such as my_tools:registry."),
        ("no_such_module_here:x", "cannot be imported: No module named 'no_such_module_here'"),
        (f"{__name__}:missing", "cannot be imported: .*has no attribute 'missing'"),
    ],
)
def test_a_reference_that_cannot_be_imported_is_explained(reference: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tools.import_tools(reference)


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (ToolResult.text("fine"), 0),
        (ToolResult.error("no", error_kind="denied"), 3),
        (ToolResult.error("no", error_kind="invalid"), 2),
        (ToolResult.error("no", error_kind="failed"), 1),
        (ToolResult.error("no", error_kind="environment"), 1),
    ],
)
def test_the_exit_status_follows_the_kind_of_error(result: ToolResult, status: int) -> None:
    assert tools.exit_code(result) == status


def test_the_json_format_is_the_plain_definition() -> None:
    (definition,) = json.loads(run("tools", "file", "--format", "json")[1])
    assert set(definition) == {"name", "description", "parameters"}
