"""The worker's shell, built in a process of its own: it replaces the streams and `input`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.sandbox.worker import ipython
from tests.sandbox.worker.interpreter import run_alone

HEAD = """
import asyncio, json, os, sys
from types import SimpleNamespace
from aisotools.sandbox.worker import ipython
from aisotools.sandbox.worker.output import CallRecord, ExecuteOptions, Recorder

recorder = Recorder(lambda call_id, stream, text: None)
shell = ipython.build(recorder)

class Listener:
    def __init__(self, **options):
        self.options, self.shown, self.asked = ExecuteOptions(**options), [], []
    def show(self, kind, bundle=None, /, **details):
        self.shown.append([kind, bundle, {k: v for k, v in details.items() if k in ('replace', 'wait')}])
    def ask(self, prompt, *, password):
        self.asked.append([prompt, password])
        return 'answer'
    def message(self, kind, content, metadata, buffers):
        self.shown.append([kind, content['data'], {}])

def cell(code, listener=None):
    record = CallRecord(call_id='1')
    record.listener = listener
    async def main():
        recorder.enter(record)
        await ipython.run_cell(shell, code)
    asyncio.run(main())
    return record

def summary(record):
    return {
        'out': record.text('stdout'), 'err': record.text('stderr'), 'error': record.error,
        'result': record.result and record.result['text/plain'],
        'displays': [bundle for _, bundle in record.displays],
    }

def report(value):
    os.write(1, json.dumps(value).encode())
"""


def run(code: str, folder: Path) -> Any:
    return run_alone(HEAD + code, folder)


def test_cells(tmp_path: Path) -> None:
    code = """
codes = ['print(1); 6 * 7', 'display(3)', '1/0', 'def f(:', '%tb', 'exit', 'x = !echo hi', 'x']
report([summary(cell(code)) for code in codes])
"""
    value, display, error, syntax, shown, left, assigned, x = run(code, tmp_path)
    assert (value["out"], value["result"], value["error"]) == ("1\n", "42", None)
    assert display["displays"] == [{"text/plain": "3"}]
    assert (error["error"]["ename"], error["error"]["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert "aisotools" not in error["error"]["traceback"]
    assert "\x1b" not in error["error"]["traceback"]
    assert syntax["error"]["ename"] == "SyntaxError"
    assert shown["error"] is None, "a traceback that is only shown is output"
    assert "SyntaxError" in shown["err"]
    assert left["error"]["ename"] == "SystemExit"
    assert assigned["error"] is None
    assert x["result"] == "['hi']"


def test_an_interrupt_is_shown_briefly(tmp_path: Path) -> None:
    code = """
record = cell('def deep(n):\\n    if n: deep(n - 1)\\n    raise KeyboardInterrupt\\ndeep(100)')
report(record.error)
"""
    error = run(code, tmp_path)
    lines = error["traceback"].splitlines()
    assert error["ename"] == "KeyboardInterrupt"
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "KeyboardInterrupt"
    assert len(lines) == 22
    assert "raise KeyboardInterrupt" in lines[-2]


def test_an_exception_whose_text_fails(tmp_path: Path) -> None:
    code = """
record = cell('class E(Exception):\\n    def __str__(self): raise ValueError\\nraise E')
report(record.error)
"""
    assert run(code, tmp_path)["evalue"] == "(its message cannot be shown: ValueError)"


def test_a_value_that_cannot_be_displayed_fails_the_cell(tmp_path: Path) -> None:
    code = """
record = cell('class R:\\n    def __repr__(self): raise ValueError("bad")\\nR()')
report(record.error)
"""
    assert run(code, tmp_path)["ename"] == "ValueError"


def test_a_listener_gets_everything_at_once(tmp_path: Path) -> None:
    code = """
listener = Listener(stdin=True, comms=True, count=17)
cell('print("x"); display(1); clear_output = get_ipython(); input("name? ")', listener)
cell('import getpass; getpass.getpass("key? ")', listener)
cell('1/0', listener)
cell('len?', listener)
get = cell('get_ipython().set_next_input("y = 1", replace=True)', listener)
cell('import comm; comm.create_comm(target_name="t", data={"a": 1})', listener)
report([listener.shown, listener.asked, shell.execution_count])
"""
    shown, asked, count = run(code, tmp_path)
    kinds = [kind for kind, _, _ in shown]
    assert kinds[:2] == ["display", "result"]
    assert asked == [["name? ", False], ["key? ", True]]
    assert "error" in kinds
    assert "page" in kinds
    assert ["next_input", {"text/plain": "y = 1"}, {"replace": True}] in shown
    assert ["comm_open", {"a": 1}, {}] in shown
    assert count == 18, "the listener's number, and one more after the cell"


def test_nobody_can_be_asked_without_a_listener(tmp_path: Path) -> None:
    code = "report([cell(code).error for code in ('input(\"name? \")', 'import getpass; getpass.getpass()')])"
    for error in run(code, tmp_path):
        assert error["ename"] == "RuntimeError"
        assert "cannot ask anybody from inside the sandbox" in error["evalue"]


def test_scripts_and_commands(tmp_path: Path) -> None:
    code = """
report([summary(cell(code)) for code in ('%%bash\\nexit 3', '!echo out; echo err >&2; exit 4', '_exit_code')])
"""
    script, command, status = run(code, tmp_path)
    assert script["error"]["ename"] == "CalledProcessError"
    assert command["out"] == "out\nerr\n"
    assert status["result"] == "4"


def test_questions_about_variables(tmp_path: Path) -> None:
    code = """
cell('value = [1]; class_name = 2')
context = SimpleNamespace(metadata_get=lambda key: shell)
def ask(tool, **arguments):
    return asyncio.run(tool.execute(arguments, context)).value
report([
    ask(ipython.complete, code='val', cursor=3),
    ask(ipython.complete, code='no_such_name_', cursor=13),
    ask(ipython.inspect, code='value', cursor=2, detail=0),
    ask(ipython.inspect, code='no_such_name_', cursor=3, detail=0),
    ask(ipython.is_complete, code='for x in y:'),
    ask(ipython.is_complete, code='1'),
])
"""
    completion, nothing, inspected, unknown, incomplete, complete = run(code, tmp_path)
    assert (completion["start"], completion["end"]) == (0, 3)
    assert "value" in [match["text"] for match in completion["matches"]]
    assert nothing == {"start": 13, "end": 13, "matches": []}
    assert "list" in inspected["text/plain"]
    assert unknown is None
    assert incomplete == {"status": "incomplete", "indent": 4}
    assert complete == {"status": "complete", "indent": 0}


def test_warming_leaves_nothing(tmp_path: Path) -> None:
    code = """
ipython.warm(shell)
report([shell.execution_count, 'x' in shell.user_ns, recorder.main is None])
"""
    assert run(code, tmp_path) == [1, False, True]


async def test_questions_outside_a_worker_are_refused() -> None:
    context = ToolContext(agent_id="a", metadata={})
    with pytest.raises(ToolError, match="complete runs only in a sandbox worker; this process is not one"):
        await ipython.complete.execute({}, context)


def test_own_frames_are_stripped_from_the_end_only() -> None:
    assert ipython.strip_own_frames(None) is None
    try:
        ipython.complete.answer(None, {})  # type: ignore[arg-type]  # fails in our own frame
    except AttributeError as error:
        trace = ipython.strip_own_frames(error.__traceback__)
        assert trace is not None
        assert trace.tb_frame.f_code.co_filename == __file__
        assert trace.tb_next is None
