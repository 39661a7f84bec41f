from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.models.provider import MODEL_PROVIDERS
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.cli import main, run
from aisotools.core.events import (
    CallDecided,
    CallFinished,
    CallRequested,
    ContextTrimmed,
    ModelRetried,
    SessionEnded,
    SessionEvent,
)
from aisotools.core.exceptions import UsageError
from aisotools.core.types import Decision, Effect, ToolCall, ToolResult
from tests.waiting import HANG_S


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
    def output(self) -> str:
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
    assert "First a file." in terminal.output
    assert terminal.output.count("\n> file") == 3
    assert "< hello" in terminal.output or "hello" in terminal.output


def test_nobody_at_the_terminal_denies(terminal: Terminal) -> None:
    assert terminal.run(terminal.script(WRITE, "Could not."), "Write.", "--quiet") == 0
    assert terminal.lines == ["Could not."]
    assert not (terminal.folder / "workspace" / "a.txt").exists()


def test_deny(terminal: Terminal) -> None:
    terminal.run(terminal.script(WRITE, "Could not."), "Write.", "--approve", "deny")
    assert "--approve deny" in terminal.output


def test_a_run_that_does_not_end_well(terminal: Terminal) -> None:
    model = terminal.script(["file", {"operation": "list", "path": "."}], "never")
    assert terminal.run(model, "Go.", "--max-steps", "1") == 1
    assert "budget of 1 steps" in terminal.output


def test_only_some_tools(terminal: Terminal) -> None:
    assert terminal.run(terminal.script(WRITE, "Could not."), "Go.", "-t", "python") == 0
    assert "file was not run" not in terminal.output  # it never reached the gate
    assert not (terminal.folder / "workspace" / "a.txt").exists()


def test_output_cannot_move_the_cursor(terminal: Terminal) -> None:
    (terminal.folder / "workspace").mkdir()
    (terminal.folder / "workspace" / "a.txt").write_text("\x1b[2J evil")
    model = terminal.script(["file", {"operation": "read", "path": "a.txt"}], "ok")
    terminal.run(model, "Go.")
    assert "\x1b" not in terminal.output
    assert "evil" in terminal.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "nobody:x", "Go."], "nobody:x"),
        (["-m", "scripted:/nowhere.json", "Go."], "/nowhere.json"),
        (["-m", "scripted:/nowhere.json", " "], "task is empty"),
        (["-m", "scripted:x", "--max-steps", "0", "Go."], "--max-steps 0"),
        (["-m", "replay:/nowhere.ipynb", "Go."], "/nowhere.ipynb"),
    ],
)
def test_mistakes_are_reported(
    terminal: Terminal, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main.main(["run", *arguments], terminal.host) == 1
    assert message in capsys.readouterr().err + terminal.output


def test_an_unknown_tool(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal.run(terminal.script("x"), "Go.", "-t", "fil") == 1
    assert "file" in capsys.readouterr().err


def test_ctrl_c(terminal: Terminal) -> None:
    """In a process of its own, while a tool runs: it ends at once, with the usual status."""
    model = terminal.script(["sandbox_bash", {"command": "sleep 1000"}], "never")
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
        # The wait is over before the command only if the signal ended it.
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=HANG_S) == 130


# -- the parts


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_parser(parser.add_subparsers())
    return parser.parse_args(["run", *words])


def test_a_dash_reads_the_task_from_standard_input() -> None:
    with pytest.raises(UsageError, match="The task is empty"):
        run.run(options("-m", "scripted:x", "-"), print, read=lambda: " \n")


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.json"
    path.write_text(text)
    return f"scripted:{path}"


def test_turns_of_a_script_become_calls_texts_and_lists_of_both(tmp_path: Path) -> None:
    call = ["look", {"n": 1}]
    assert run._turn(call) == ("look", {"n": 1})
    assert run._turn("text") == "text"
    assert run._turn(["text", call]) == ["text", ("look", {"n": 1})]
    assert run._turn(["one", "two"]) == ["one", "two"]
    assert isinstance(run.resolve_model(script(tmp_path, json.dumps([call, "Done."]))), ScriptedModel)


@pytest.mark.parametrize("name", ["foo", "foo:bar", "openai", "openai:", ""])
def test_an_unknown_model_lists_the_forms_that_work(name: str) -> None:
    with pytest.raises(UsageError, match="There is no model") as error:
        run.resolve_model(name)
    listed = str(error.value).partition("Give one of ")[2].removesuffix(".")
    forms = {form.partition(":")[0] for form in re.split(r", | or ", listed)}
    assert forms == {"openai", "anthropic", "google", "ollama", "local", "scripted", "replay"}
    assert forms - {"local", "scripted", "replay"} <= {*MODEL_PROVIDERS}


@pytest.mark.parametrize(
    ("text", "message"), [("[", "cannot be read"), ("{}", "must be a list of turns, not dict")]
)
def test_a_broken_script_is_explained(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        run.resolve_model(script(tmp_path, text))


@pytest.mark.parametrize(("outcome", "status"), [("answered", 0), ("cancelled", 130), ("stopped", 130)])
def test_the_exit_status_of_each_outcome(outcome: str, status: int) -> None:
    assert run.STATUS[outcome] == status
    assert "budget" not in run.STATUS


WHEN: dict[str, Any] = {"time_s": 0.0}
CALL = ToolCall("c", "file", {"path": "a\x1b[2J"})


def decided() -> CallDecided:
    return CallDecided(
        **WHEN,
        decision=Decision.ALLOW,
        decided_by="policy",
        effect=Effect.READ_ONLY,
        reasons=(),
        arguments={},
        digest="",
    )


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (ModelRetried(**WHEN, agent_id="a", reason="busy", wait_s=2.0), ["  ! busy; trying again in 2 s"]),
        (
            ContextTrimmed(**WHEN, agent_id="a", call_ids=("a", "b"), chars=900),
            ["  ! 2 old results were removed from the context (900 characters)"],
        ),
        (
            decided(),
            ["  allow by policy"],
        ),
        (
            CallFinished(**WHEN, name="file", result=ToolResult.text("one\ntwo"), duration_s=0.25),
            ["  < one", "  < two", "  0.25 s"],
        ),
        (
            CallFinished(**WHEN, name="file", result=ToolResult.error("no"), duration_s=0.25),
            ["  x no", "  0.25 s"],
        ),
        (SessionEnded(**WHEN), []),
    ],
    ids=lambda part: type(part).__name__,
)
def test_events_become_lines(event: SessionEvent, expected: list[str]) -> None:
    lines: list[str] = []
    run.TracePrinter(lines.append).print_event(event)
    assert lines == expected


def test_a_long_result_is_cut_to_six_lines_of_160_characters() -> None:
    lines: list[str] = []
    result = ToolResult.text("\n".join(["x" * 500] * 9))
    run.TracePrinter(lines.append).print_event(
        CallFinished(**WHEN, name="file", result=result, duration_s=1.0)
    )
    assert lines[:-1] == ["  < " + "x" * 160] * 6
    assert lines[-1] == "  1.00 s, 3 more lines"


def test_a_call_is_printed_without_control_characters() -> None:
    lines: list[str] = []
    run.TracePrinter(lines.append).print_event(CallRequested(**WHEN, call=CALL))
    assert lines[0].startswith("\n> file ")
    assert "\x1b" not in lines[0]
