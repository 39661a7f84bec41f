from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aisotools.cli import main


class Terminal:
    """What was printed, and a way to run the command in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.host = main.Host(echo=self.lines.append)

    def script(self, *turns: Any) -> str:
        path = self.folder / "script.json"
        path.write_text(json.dumps(turns))
        return f"scripted:{path}"

    def run(self, model: str, task: str, *more: str) -> int:
        place = ("-w", str(self.folder / "workspace"))
        return main.main(["run", "-m", model, *place, *more, task], self.host)

    @property
    def said(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return Terminal(tmp_path)


WRITE = ["file", {"operation": "write", "path": "a.txt", "content": "hello"}]


def test_three_steps(terminal: Terminal) -> None:
    list_files, read = (
        ["file", {"operation": "list", "path": "."}],
        ["file", {"operation": "read", "path": "a.txt"}],
    )
    model = terminal.script(["First a file.", WRITE], list_files, read, "It says hello.")
    assert terminal.run(model, "Write, list, read.", "--approve", "auto") == 0
    assert terminal.lines[-1] == "It says hello."
    assert "First a file." in terminal.said
    assert terminal.said.count("\n> file") == 3
    assert "< hello" in terminal.said or "hello" in terminal.said


def test_nobody_at_the_terminal_denies(terminal: Terminal) -> None:
    assert terminal.run(terminal.script(WRITE, "Could not."), "Write.", "--quiet") == 0
    assert terminal.lines == ["Could not."]
    assert not (terminal.folder / "workspace" / "a.txt").exists()


def test_deny(terminal: Terminal) -> None:
    terminal.run(terminal.script(WRITE, "Could not."), "Write.", "--approve", "deny")
    assert "--approve deny" in terminal.said


def test_a_run_that_does_not_end_well(terminal: Terminal) -> None:
    model = terminal.script(["file", {"operation": "list", "path": "."}], "never")
    assert terminal.run(model, "Go.", "--max-steps", "1") == 1
    assert "budget of 1 steps" in terminal.said


def test_only_some_tools(terminal: Terminal) -> None:
    assert terminal.run(terminal.script(WRITE, "Could not."), "Go.", "-t", "python") == 0
    assert "file was not run" not in terminal.said  # it never reached the gate
    assert not (terminal.folder / "workspace" / "a.txt").exists()


def test_output_cannot_move_the_cursor(terminal: Terminal) -> None:
    (terminal.folder / "workspace").mkdir()
    (terminal.folder / "workspace" / "a.txt").write_text("\x1b[2J evil")
    model = terminal.script(["file", {"operation": "read", "path": "a.txt"}], "ok")
    terminal.run(model, "Go.")
    assert "\x1b" not in terminal.said
    assert "evil" in terminal.said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-m", "nobody:x", "Go."], "nobody:x"),
        (["-m", "scripted:/nowhere.json", "Go."], "/nowhere.json"),
        (["-m", "scripted:/nowhere.json", " "], "no task"),
        (["-m", "scripted:x", "--max-steps", "0", "Go."], "--max-steps 0"),
        (["-m", "replay:/nowhere.ipynb", "Go."], "/nowhere.ipynb"),
    ],
)
def test_mistakes_are_told(
    terminal: Terminal, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert main.main(["run", *arguments], terminal.host) == 1
    assert told in capsys.readouterr().err + terminal.said


def test_an_unknown_tool(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run(terminal.script("x"), "Go.", "-t", "fil") == 1
    assert "file" in capsys.readouterr().err


def test_ctrl_c(terminal: Terminal) -> None:
    """In a process of its own, while a tool runs: it ends at once, with the usual status."""
    model = terminal.script(["sandbox_bash", {"command": "sleep 30"}], "never")
    arguments = ["run", "-m", model, "-w", str(terminal.folder / "workspace"), "--approve", "auto", "Sleep."]
    # Whoever started these tests in the background has them ignore it, and what they start as well.
    listening = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listening}; import sys; from aisotools.cli.main import main; sys.exit(main({arguments!r}))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ.copy()
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "sandbox_bash" in line:
                break
        time.sleep(0.3)
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert time.monotonic() - began_s < 10
