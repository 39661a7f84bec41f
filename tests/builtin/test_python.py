"""The python tool in a real worker."""

from __future__ import annotations

import asyncio
import base64
import types
from typing import Any

import pytest

from aisotools.builtin.python import cell_result, describe_variable, python, variables
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.worker.output import CallRecord
from aisotools.session.session import Session
from tests.conftest import OpenSession


@pytest.fixture
def session(real_session: OpenSession) -> Session:
    return real_session(approver=AllowAll())


async def run(session: Session, code: str, **options: Any) -> ToolResult:
    return await session.call("python", {"code": code, **options})


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    ("code", "result", "stdout", "stderr"),
    [
        ("1 + 1", "2", "", ""),
        ("1\n2", "2", "", ""),
        ("x = 3", None, "", ""),
        ("x = 3; x;", None, "", ""),
        ("None", None, "", ""),
        ("'\u00fc' * 2", "'\u00fc\u00fc'", "", ""),
        ("print('a'); print('b', end=''); 5", "5", "a\nb", ""),
        ("import sys; print('a', file=sys.stderr)", None, "", "a\n"),
        ("", None, "", ""),
        ("# nothing", None, "", ""),
        ("import subprocess; subprocess.run(['echo', 'raw']).returncode", "0", "raw\n", ""),
        ("!echo one; echo two", None, "one\ntwo\n", ""),
        ("lines = !echo one\nlines", "['one']", "", ""),
        ("%%bash\necho inner", None, "inner\n", ""),
        (
            "import threading; t = threading.Thread(target=print, args=('t',)); t.start(); t.join()",
            None,
            "t\n",
            "",
        ),
        ("import asyncio\nawait asyncio.sleep(0.001)\n'slept'", "'slept'", "", ""),
    ],
)
async def test_the_result_of_a_cell(
    session: Session, code: str, result: str | None, stdout: str, stderr: str
) -> None:
    given = await run(session, code)
    assert not given.is_error, given.content
    assert given.value == {"result": result, "stdout": stdout, "stderr": stderr, "error": None}
    expected = [part for part in (stdout.rstrip("\n"), stderr.rstrip("\n"), result) if part]
    assert given.content == "\n".join(expected)


async def test_names_persist_from_call_to_call(session: Session) -> None:
    await run(session, "import math\nx = 4\ndef double(n): return n * 2\nclass A: y = 5")
    assert (await run(session, "double(x) + A.y + math.floor(1.5)")).value["result"] == "14"
    assert (await run(session, "_ + 1")).value["result"] == "15"
    assert (await session.run_cell("x")).value["result"] == "4"


async def test_an_error_has_a_clean_traceback(session: Session) -> None:
    result = await run(session, "print('before')\ndef f():\n    return 1 / 0\nf()")
    assert (result.is_error, result.recoverable, result.error_kind) == (True, True, "failed")
    error = result.value["error"]
    assert (error["ename"], error["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert result.content.startswith("before\n")
    assert result.content.endswith("ZeroDivisionError: division by zero")
    assert "----> 4 f()" in error["traceback"]
    for noise in ("\x1b[", "aisotools", "IPython", "site-packages"):
        assert noise not in result.content
    assert result.value["stdout"] == "before\n"


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = (", "SyntaxError: incomplete input"),
        ("raise KeyError('k')", "KeyError: 'k'"),
        ("raise SystemExit(2)", "SystemExit: 2"),
        ("class Odd:\n    def __repr__(self): raise ValueError('no repr')\nOdd()", "ValueError: no repr"),
        ("%no_such_magic", "UsageError: Line magic function `%no_such_magic` not found."),
        ("%%no_such_magic\n1", "UsageError: Cell magic `%%no_such_magic` not found."),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("await no_such_name", "NameError: name 'no_such_name' is not defined"),
    ],
)
async def test_a_failing_cell_is_an_error_and_the_next_call_works(
    session: Session, code: str, message: str
) -> None:
    result = await run(session, code)
    assert result.is_error
    assert result.error_kind == "failed"
    assert message in result.content
    assert (await run(session, "1")).value["result"] == "1"


@pytest.mark.parametrize("code", ["input('name? ')", "import getpass; getpass.getpass()"])
async def test_nobody_can_be_asked_from_inside(session: Session, code: str) -> None:
    result = await run(session, code)
    assert result.is_error
    assert "cannot ask anybody from inside the sandbox. Pass the value in as an argument" in result.content


async def test_a_figure_is_shown(session: Session) -> None:
    result = await run(session, "import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert not result.is_error, result.content
    assert base64.b64decode(result.data["image/png"]).startswith(b"\x89PNG")
    assert result.content == "[image/png: <Figure size 640x480 with 1 Axes>]"


async def test_a_table_is_shown(session: Session) -> None:
    result = await run(session, "import pandas as pd\npd.DataFrame({'a': [1, 2]})")
    assert "<table" in result.data["text/html"]
    assert result.content == result.value["result"] == "   a\n0  1\n1  2"


async def test_displays_come_in_order_and_can_be_changed(session: Session) -> None:
    code = """
from IPython.display import display, update_display, HTML
display("one", display_id="d")
display(HTML("<b>two</b>"))
update_display("three", display_id="d")
"last"
"""
    result = await run(session, code)
    shown = [bundle["text/plain"] for bundle in result.metadata["displays"]]
    assert shown == ["'three'", "<IPython.core.display.HTML object>", "'last'"]
    assert result.metadata["displays"][1]["text/html"] == "<b>two</b>"
    assert result.data["text/plain"] == "'last'"


async def test_cleared_output_is_gone(session: Session) -> None:
    await run(session, "from IPython.display import clear_output, display")
    result = await run(session, "print('gone'); display(1); clear_output(); print('kept')")
    assert result.content == "kept"
    assert result.value["stdout"] == "kept\n"


async def test_background_tasks_go_on_between_calls(session: Session) -> None:
    code = """
import asyncio
async def later():
    await asyncio.sleep(0.02)
    print("from the background")
    return "done"
task = asyncio.create_task(later())
"""
    started = await run(session, code)
    assert started.content == ""
    assert (await run(session, "await task")).value["result"] == "'done'"


async def test_flood_of_output_is_capped_with_a_note(session: Session) -> None:
    result = await run(session, "print('x' * 3_000_000, 'the end')")
    stdout = result.value["stdout"]
    assert stdout.startswith("x" * session.limits.stream_bytes)
    assert stdout.endswith("x the end\n")
    assert len(result.content) <= 30_000
    assert "x the end" in result.content
    note = stdout[stdout.index("\n") : stdout.index("]\n") + 2]
    dropped = 3_000_009 - (len(stdout) - len(note))
    assert note == f"\n[{dropped:,} bytes of output left out here]\n"
    assert result.content.endswith(f"[{dropped} more bytes of printed output were dropped.]")


@pytest.mark.parametrize(
    "code", ["while True: pass", "import time; time.sleep(30)", "import asyncio; await asyncio.sleep(30)"]
)
async def test_the_timeout_stops_it_and_keeps_the_variables(session: Session, code: str) -> None:
    await run(session, "x = 5")
    result = await run(session, f"print('begun', flush=True)\n{code}", timeout=200)
    assert result.is_error
    assert result.metadata["timed_out"] is True
    assert result.content.startswith(
        "python timed out after 0.2 s. Variables are kept, including changes made before the timeout.\n"
    )
    assert (await run(session, "x")).value["result"] == "5"


async def test_end_of_the_worker_is_reported_and_its_state_restored(session: Session) -> None:
    await run(session, "x = 5")
    result = await run(session, "import os; os.write(2, b'last words'); os._exit(3)")
    assert (result.is_error, result.error_kind) == (True, "environment")
    assert "exited with status 3" in result.content
    assert "last words" in result.content
    assert "The variables were restored to what they were before this call." in result.content
    assert (await run(session, "x")).value["result"] == "5"


async def test_cells_run_one_after_the_other(session: Session) -> None:
    await run(session, "import asyncio; order = []")
    cells = [f"order.append({n}); await asyncio.sleep(0.01); order.append({n})" for n in range(4)]
    await asyncio.gather(*(run(session, cell) for cell in cells))
    assert (await run(session, "order")).value["result"] == "[0, 0, 1, 1, 2, 2, 3, 3]"


async def test_code_starts_in_the_workspace(session: Session) -> None:
    result = await run(session, "open('a.txt', 'w').write('text'); import os; print(os.getcwd())")
    assert session.workspace is not None
    assert result.value["stdout"] == f"{session.workspace}\n"
    assert (session.workspace / "a.txt").read_text() == "text"


async def test_output_is_reported_while_the_call_runs(session: Session) -> None:
    outputs: asyncio.Queue[str] = asyncio.Queue()
    session.subscribe(lambda event: outputs.put_nowait(getattr(event, "text", "")))
    running = asyncio.ensure_future(run(session, "print('first', flush=True)\nimport time; time.sleep(1000)"))
    while "first" not in await outputs.get():
        assert not running.done()
    await session.interrupt()
    assert (await running).metadata["stopped"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "code is missing"),
        ({"code": "1", "timeout": 0}, "timeout: input should be greater than or equal to 1, got 0"),
        ({"code": "1", "timeout": 10**9}, "timeout: input should be less than or equal to 3600000"),
        ({"code": ["1"]}, "code: input should be a valid string"),
        ({"code": "1", "context": {}}, "context is not an argument"),
        ({"code": "'\ud800'"}, "are not JSON"),
    ],
)
async def test_wrong_arguments_are_reported(
    session: Session, arguments: dict[str, Any], message: str
) -> None:
    result = await session.call("python", arguments)
    assert message in result.content
    assert result.error_kind == "invalid"


async def test_nul_in_the_code_is_reported(session: Session) -> None:
    result = await run(session, "1\0")
    assert result.is_error
    assert "null bytes" in result.content or "NUL" in result.content


# ---- without a worker


async def test_python_tools_run_in_a_worker_only() -> None:
    for tool, arguments in ((python, {"code": "1"}), (variables, {})):
        with pytest.raises(ToolError, match="sandbox worker; there is none here") as caught:
            await tool.execute(arguments, ToolContext())
        assert not caught.value.recoverable


def test_the_timeout_argument_is_the_deadline() -> None:
    deadline = python.timeout_s
    assert callable(deadline)
    assert deadline({"code": "1", "timeout": 2500}) == 2.5
    assert deadline({"code": "1"}) is None
    assert deadline({"code": "1", "timeout": "soon"}) is None


def record() -> CallRecord:
    return CallRecord(call_id="c", stream_left=1000, data_left=1000)


def test_a_cell_result_has_output_displays_and_value_in_order() -> None:
    cell = record()
    cell.take("stdout", "out\n")
    cell.take("stderr", "err\n")
    cell.display({"image/png": "AA==", "text/plain": "<Figure>"})
    cell.display({"application/x": "?"})
    cell.show_result({"text/plain": "42", "text/html": "<b>42</b>"})
    result = cell_result(cell, failed=False)
    assert result.content == "out\nerr\n[image/png: <Figure>]\n[application/x]\n42"
    assert result.value == {"result": "42", "stdout": "out\n", "stderr": "err\n", "error": None}
    assert result.data["text/plain"] == "42"
    assert result.data["image/png"] == "AA=="
    assert (result.is_error, result.kind, len(result.metadata["displays"])) == (False, "text", 3)


def test_a_failed_cell_ends_with_its_traceback() -> None:
    cell = record()
    cell.take("stdout", "before\n")
    cell.error = {"ename": "E", "evalue": "v", "traceback": "Traceback\nE: v\n"}
    result = cell_result(cell, failed=True)
    assert result.content == "before\nTraceback\nE: v"
    assert (result.is_error, result.recoverable, result.error_kind) == (True, True, "failed")
    assert result.value["error"]["ename"] == "E"


class Array:
    """Looks like numpy's."""

    shape = (2, 3)
    nbytes = 48
    dtype = "float64"


class Frame:
    """Looks like pandas'."""

    shape = (2, 2)
    columns = ("p", "q")

    def memory_usage(self, deep: bool) -> int:
        assert deep is False
        return 32


class Broken:
    """Raises wherever it is touched."""

    @property
    def shape(self) -> object:
        raise ZeroDivisionError

    @property
    def memory_usage(self) -> object:
        raise SystemError

    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "shape", "size", "text"),
    [
        (Array(), [2, 3], 48, "dtype float64"),
        (Frame(), [2, 2], 32, "columns ['p', 'q']"),
        (Broken(), None, None, "(ZeroDivisionError from its repr)"),
        ([1, 2], [2], None, "[1, 2]"),
        ({"a": 1}, [1], None, "{'a': 1}"),
        (7, None, None, "7"),
        ("x\ny", [3], None, "'x\\ny'"),
    ],
)
def test_a_variable_is_described_whatever_it_is(
    value: object, shape: object, size: int | None, text: str
) -> None:
    row = describe_variable("v", value)
    assert (row["name"], row["shape"], row["repr"]) == ("v", shape, text)
    assert size is None or row["size"] == size


def test_modules_and_functions_have_no_repr_and_long_ones_are_cut() -> None:
    for value in (types, len, test_modules_and_functions_have_no_repr_and_long_ones_are_cut, Array):
        assert "repr" not in describe_variable("v", value)
    assert len(describe_variable("v", list(range(10_000)))["repr"]) <= 120
    assert describe_variable("v", Array())["type"].endswith("test_python.Array")


@pytest.mark.parametrize(
    "code", ["print('[' * 600_000)", r"print('\x1b[0m' * 300_000)", "print('é[,' * 300_000)"]
)
async def test_brackets_by_the_hundred_thousand_are_printed_like_any_text(
    session: Session, code: str
) -> None:
    await run(session, "x = 1")
    result = await run(session, code)
    assert not result.is_error, result.content[:300]
    assert "worker_died" not in result.metadata
