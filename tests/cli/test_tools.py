from __future__ import annotations

import json
from pathlib import Path

import pytest

from aisotools.cli.main import Host, main


def run(*arguments: str) -> tuple[int, str]:
    lines: list[str] = []
    status = main(arguments, Host(echo=lines.append))
    return status, "\n".join(lines)


def test_tools_as_a_table_and_one_in_full() -> None:
    status, told = run("tools")
    assert status == 0
    assert "sandbox_bash" in told
    assert "tokens" in told.splitlines()[0]
    status, told = run("tools", "sandbox_bash")
    assert "command" in told
    assert json.loads(run("tools", "file", "--format", "anthropic")[1])[0]["input_schema"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("tools", "sandbox_bsh"), "sandbox_bash"),
        (("tools", "--format", "xml"), "--format takes"),
        (("call", "sandbox_bsh"), "sandbox_bash"),
        (("call", "file", "operation"), "no key=value"),
        (("call", "file", "--json", "["), "--json wants an object"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments)[0] == 1
    assert told in capsys.readouterr().err


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
    status, told = run("call", "sandbox_bash", "command=exit 3", "--result", *place)
    assert status == 1
    assert json.loads(told)["value"]["exitCode"] == 3
    assert run("call", "file", "operation=fly", *place)[0] == 2
    assert run("call", "sandbox_write", "path=b.txt", "content=x", "--ask", *place)[0] == 3
    assert not (workspace / "b.txt").exists()
