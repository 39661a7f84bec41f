"""What a model gets of an exception on the host: type and message, and no line, path or value of the tool."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import ToolError
from aisotools.core.types import ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.tools.adapter import broken_tool_result, exception_result, host_exception_result
from aisotools.tools.function import tool
from aisotools.tools.results import TRACEBACK, format_whole, host_failure
from tests.conftest import OpenSession

SECRET = "hunter2-and-more"


def caught(work: Callable[[], Any]) -> BaseException:
    try:
        work()
    except BaseException as error:
        return error
    raise AssertionError


def divide() -> float:
    password, zero = SECRET, 0
    return len(password) / zero  # the line of the source


def chained() -> None:
    try:
        divide()
    except ZeroDivisionError as error:
        raise RuntimeError("the outer one") from error


def quoting() -> None:
    try:
        divide()
    except ZeroDivisionError:
        raise RuntimeError(f"it failed:\n{traceback.format_exc()}") from None


def noted() -> None:
    error = ValueError("plain")
    error.add_note(f"the password is {SECRET}")
    raise error


FAILURES: Mapping[str, Callable[[], Any]] = {
    "plain": divide,
    "chained": chained,
    "quoting": quoting,
    "notes": noted,
    "syntax": lambda: compile(f"x = {SECRET!r} +", "/home/someone/private/x.py", "exec"),
    "json": lambda: json.loads("{"),
    "file": lambda: Path(f"/nonexistent/{SECRET}/x").read_text("utf-8"),
    "two files": lambda: Path(f"/nonexistent/{SECRET}").rename(f"/tmp/{SECRET}/y"),
    "path in the message": lambda: int(f"/home/someone/{SECRET}/file"),
    "quoted path": lambda: (_ for _ in ()).throw(ValueError(f"cannot read '/home/someone/my {SECRET}/a b'")),
    "address of a file": lambda: (_ for _ in ()).throw(ValueError(f"see file:///home/someone/{SECRET}")),
    "home": lambda: (_ for _ in ()).throw(ValueError(f"no ~/{SECRET}/config")),
    "group": lambda: (_ for _ in ()).throw(ExceptionGroup("several", [ValueError(SECRET)])),
    "assertion": lambda: (_ for _ in ()).throw(AssertionError()),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_model_gets_no_line_path_or_value(name: str) -> None:
    error = caught(FAILURES[name])
    result = host_exception_result(error, {"unrelated": "value"})
    assert result.content.startswith(type(error).__name__)
    for hidden in (
        SECRET,
        __file__,
        "/home/someone",
        "/nonexistent",
        "the line of the source",
        "File ",
        "Traceback (",
    ):
        assert hidden not in result.content
    # The person has all of it.
    assert result.metadata[TRACEBACK] == format_whole(error)
    assert __file__ in result.metadata[TRACEBACK]
    assert (result.is_error, result.error_kind, result.metadata["exception"]) == (
        True,
        "failed",
        type(error).__name__,
    )


def test_the_control_what_a_sandbox_reports_has_the_line() -> None:
    assert "the line of the source" in exception_result(caught(divide)).content


def share(total: float, people: int) -> float:
    return total / people


@pytest.mark.parametrize(
    ("work", "arguments", "names"),
    [
        (lambda: share(1, 0), {"total": 1, "people": 0, "other": 2}, "arguments total, people"),
        (lambda: int("twelve"), {"count": "twelve", "unit": "kg"}, "argument count"),
        (lambda: dict[str, int]()["missing"], {"key": "missing", "x": 1}, "argument key"),
        (lambda: Path("no-such-file").read_text("utf-8"), {"path": "no-such-file", "x": 1}, "argument path"),
        (lambda: (_ for _ in ()).throw(ValueError("'unit' is odd")), {"unit": 5, "x": 1}, "argument unit"),
        (lambda: int("inner"), {"deep": {"a": ["inner"]}, "x": 1}, "argument deep"),
        (lambda: share(1, 0), {"x": 1}, ""),
        (lambda: share(1, 0), None, ""),
        (lambda: share(1, 0), ["people"], ""),
    ],
)
def test_the_arguments_that_it_was_about_are_named(work: Any, arguments: Any, names: str) -> None:
    result = host_failure(caught(work), arguments)
    assert result.content.endswith(f"It was about the {names}." if names else "division by zero")


def test_a_path_of_the_models_own_is_not_hidden() -> None:
    path = "/nonexistent/data/x.csv"
    for work in (lambda: Path(path).read_text("utf-8"), lambda: int(path)):
        result = host_failure(caught(work), {"path": path})
        assert path in result.content
        assert "It was about the argument path." in result.content


@pytest.mark.parametrize(
    "message",
    [
        "see https://docs.example/a/b/c",
        "5/3 of it on 2024/02/29",
        "use text/html/x",
        "a / b is odd",
        "and/or /x",
    ],
)
def test_words_that_are_no_path_stay(message: str) -> None:
    assert host_failure(ValueError(message)).content == f"ValueError: {message}"


def test_odd_exceptions_are_reported_anyway() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert host_failure(Odd()).content == "Odd: (its message cannot be shown)"
    assert host_failure(KeyError()).content == "KeyError"
    long = host_failure(ValueError("/a/b " * 1_000_000))
    assert len(long.content) < 1_100
    assert len(long.metadata[TRACEBACK]) < 21_000
    code = host_exception_result(SystemExit(SECRET))
    assert code.content == "The tool tried to exit. Only the call was ended."


def test_a_tool_error_says_what_it_wants_to_say() -> None:
    result = host_exception_result(ToolError("Read /home/someone/x first."), {})
    assert (result.content, result.error_kind, result.metadata) == (
        "Read /home/someone/x first.",
        "invalid",
        {},
    )


def test_a_check_of_a_tool_that_fails_keeps_its_traceback_too() -> None:
    result = broken_tool_result("theirs", caught(divide))  # type: ignore[arg-type]  # it is an Exception
    assert result.content.endswith("ZeroDivisionError: division by zero")
    assert "the line of the source" in result.metadata[TRACEBACK]


@tool(runs_in="host")
def spend(amount: int) -> str:
    """Spend money."""
    password = SECRET
    return f"{password} {1 / amount}"  # the line of the source


async def test_through_the_gate_and_to_the_person(open_session: OpenSession) -> None:
    from aisotools.notebook.render.results import render_result

    session = open_session(spend, approver=AllowAll())
    result = await session.call("spend", {"amount": 0})
    assert result.content == "ZeroDivisionError: division by zero\nIt was about the argument amount."
    assert "the line of the source" in result.metadata[TRACEBACK]
    shown = render_result(result, "spend")
    for text in shown.values():
        assert "the line of the source" in text
        assert "which the model does not get" in text


async def test_no_key_of_the_metadata_reaches_a_model() -> None:
    pytest.importorskip("mcp")
    from aisotools.integrations.mcp.tools import to_mcp_result

    result: ToolResult = host_failure(caught(divide), {})
    assert "the line of the source" not in to_mcp_result(result).model_dump_json()


def test_this_needs_no_source() -> None:
    # Functions that were made by `exec` have none.
    program = "def f(x):\n    return 1 / x\n"
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    assert host_failure(caught(lambda: namespace["f"](0)), {"y": 0}).content.startswith("ZeroDivisionError")
