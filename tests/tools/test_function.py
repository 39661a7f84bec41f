from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from pydantic import BaseModel

from aisotools.core.exceptions import ArgumentError, SignatureError, ToolError
from aisotools.core.protocols import Tool, ToolContext
from aisotools.core.types import Effect, Facts, ToolResult
from aisotools.tools.adapter import definition_of
from aisotools.tools.function import READ_ONLY_NOTE, FunctionTool, tool


@tool
def area(width: float, height: float = 1.0) -> float:
    """Area of a rectangle.

    Args:
        width: In metres.
    """
    return width * height


class Point(BaseModel):
    x: int


# ---- decorating


def test_a_decorated_function_is_a_tool_and_still_a_function() -> None:
    assert isinstance(area, Tool)
    assert area(2, 3) == 6
    assert (area.name, area.description) == ("area", "Area of a rectangle.")
    assert area.parameters_schema()["properties"]["width"]["description"] == "In metres."
    assert area.__name__ == "area"
    assert area.__doc__ is not None
    assert area.__wrapped__(2.0, 3.0) == 6
    assert repr(area).startswith("<tool area (sandbox) from ")
    assert __file__ in repr(area)


def test_options_count_in_both_forms() -> None:
    def plain(x: int) -> int:
        return x

    for made in (
        tool(name="other", effect=Effect.READ_ONLY, runs_in="host", timeout_s=5)(plain),
        tool(plain, name="other", effect=Effect.READ_ONLY, runs_in="host", timeout_s=5),  # type: ignore[call-overload]  # works all the same
    ):
        assert (made.name, made.classify({}), made.runs_in, made.timeout_s) == (
            "other",
            Effect.READ_ONLY,
            "host",
            5.0,
        )


def test_defaults_of_undeclared_hints_are_cautious() -> None:
    assert area.classify({}) is Effect.LOCAL_MUTATION
    assert area.extract_undo_path({}) is None
    assert area.gather_facts({}) == Facts(effect=Effect.LOCAL_MUTATION)
    assert area.timeout_s is None


def test_declared_hints_count() -> None:
    made = tool(
        classify=lambda arguments: Effect.READ_ONLY if arguments.get("x") == 1 else Effect.DESTRUCTIVE,
        extract_undo_path=lambda arguments: Path("a"),
        timeout_s=lambda arguments: 3.0,
        examples=[({"x": "1"}, "one, please")],
    )(lambda_named("made"))
    assert made.classify({"x": 1}) is Effect.READ_ONLY
    assert made.gather_facts({"x": 2}).effect is Effect.DESTRUCTIVE
    assert made.extract_undo_path({}) == Path("a")
    assert callable(made.timeout_s)
    assert made.examples == (({"x": 1}, "one, please"),)


def lambda_named(name: str) -> Callable[..., Any]:
    def function(x: int) -> int:
        return x

    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effect": "readonly"}, r"effect='readonly' is not an effect. Use one of READ_ONLY, REMOTE_ACTION"),
        ({"runs_in": "kernel"}, r"runs_in='kernel'; use 'sandbox' or 'host'"),
        ({"timeout_s": 0}, r"timeout_s=0; use a number of seconds above 0"),
        ({"timeout_s": "5"}, r"timeout_s='5'; use a number"),
        ({"timeout_s": True}, r"timeout_s=True; use a number"),
        ({"timeout_s": float("nan")}, r"timeout_s=nan; use a number"),
        ({"examples": [{"x": 1}]}, r"example \{'x': 1\} does not fit: .* An example is a pair"),
        ({"examples": [({"y": 1}, "y")]}, r"example .* does not fit: .* y is not an argument"),
        ({"name": "two words"}, r"'two words' cannot be the name of a tool"),
    ],
)
def test_bad_options_are_refused_at_decoration(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SignatureError, match=message):
        tool(**options)(lambda_named("f"))


def test_forgotten_keyword_is_reported() -> None:
    with pytest.raises(SignatureError, match=r"'area' is not a function. Name a tool with @tool\(name="):
        tool("area")  # type: ignore[call-overload]  # the point


# ---- where it comes from


def cell(source: str, number: int, cell_id: str | None) -> FunctionTool[..., Any]:
    """A tool as a notebook cell defines it."""

    class Shell:
        def get_parent(self) -> dict[str, Any]:
            return {"metadata": {"cellId": cell_id}} if cell_id is not None else {}

    names: dict[str, Any] = {"In": [""] * number + [source], "get_ipython": Shell, "tool": tool}
    exec(compile(source, f"<ipython-input-{number}>", "exec"), names)
    made: FunctionTool[..., Any] = names["made"]
    return made


def test_a_tool_knows_its_cell() -> None:
    source = "@tool\ndef made(x: int) -> int:\n    return x\n"
    one = cell(source, 3, "abc")
    assert (one.source, one.cell) == ("cell [3]", "abc")
    assert cell(source, 4, None).cell == ""
    assert area.cell is None
    assert area.source.endswith(":19") or ":" in area.source


def test_a_callable_without_code_has_a_source_too() -> None:
    class Callable:
        __name__ = "thing"

        def __call__(self, x: int) -> int:
            return x

    assert tool(Callable()).source == __name__


# ---- its version


@pytest.mark.parametrize(
    ("options", "is_noted"),
    [
        ({"effect": Effect.READ_ONLY}, True),
        ({"effect": Effect.READ_ONLY, "name": "other"}, True),
        ({"effect": Effect.READ_ONLY, "runs_in": "host"}, False),
        ({"effect": Effect.LOCAL_MUTATION}, False),
        ({}, False),
        ({"effect": Effect.READ_ONLY, "import_path": "aisotools.builtin.python:variables"}, False),
    ],
)
def test_description_says_that_changes_of_variables_are_lost(options: dict[str, Any], is_noted: bool) -> None:
    def look() -> int:
        """Look at it."""
        return 1

    def undocumented() -> int:
        return 1

    made = tool(**options)(look)
    assert made.description.startswith("Look at it.")
    assert made.description.endswith(READ_ONLY_NOTE) is is_noted
    assert ("without write rights" in definition_of(made).description) is is_noted
    assert ("does not reach the worker" in definition_of(made).description) is is_noted
    bare = tool(**options)(undocumented).description
    assert bare == (READ_ONLY_NOTE if is_noted else "")


def test_version_changes_with_the_code_and_the_description() -> None:
    def make(source: str) -> str:
        names: dict[str, Any] = {}
        exec(f"def f(x: int = 1) -> int:\n    '''Doc.'''\n    {source}", names)
        return tool(names["f"]).version

    base = make("return x + 1")
    assert make("return x + 1") == base
    assert make("return x + 2") != base
    assert make("return (lambda y: y + 1)(x)") == make("return (lambda y: y + 1)(x)")
    assert make("return (lambda y: y + 1)(x)") != make("return (lambda y: y + 2)(x)")
    assert make("return abs(x)") != make("return int(x)")


def test_the_version_follows_the_options() -> None:
    versions = {
        tool(**options)(lambda_named("f")).version
        for options in ({}, {"name": "g"}, {"effect": Effect.READ_ONLY}, {"runs_in": "host"})
    }
    assert len(versions) == 4


# ---- running


async def run(made: FunctionTool[..., Any], **arguments: Any) -> ToolResult:
    return await made.execute(arguments, ToolContext(call_id="c1"))


async def test_arguments_arrive_coerced() -> None:
    @tool
    def f(point: Point, n: int) -> str:
        return f"{type(point).__name__} {point.x} {n!r}"

    assert (await run(f, point={"x": "1"}, n="2")).content == "Point 1 2"
    with pytest.raises(ArgumentError):
        await run(f, point={}, n=1)


@pytest.mark.parametrize("annotation", [ToolContext, ToolContext | None], ids=["plain", "optional"])
async def test_the_context_is_injected(annotation: Any) -> None:
    def f(x: int, ctx: Any = None) -> str:
        return f"{x} {ctx.call_id}"

    f.__annotations__["ctx"] = annotation
    assert (await run(tool(f), x=1)).content == "1 c1"


async def test_async_functions_are_awaited() -> None:
    @tool
    async def f(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    assert (await run(f, x=1)).value == 2


async def test_on_the_host_sync_functions_leave_the_loop_free() -> None:
    @tool(runs_in="host")
    def f() -> bool:
        return threading.current_thread() is threading.main_thread()

    assert (await run(f)).value is False


@pytest.mark.parametrize("runs_in", ["host", "sandbox"])
async def test_a_function_that_returns_an_awaitable_is_awaited(runs_in: Any) -> None:
    async def later() -> int:
        return 5

    @tool(runs_in=runs_in)
    def f() -> Any:
        return later()

    assert (await run(f)).value == 5


async def test_return_values_are_checked_against_the_type() -> None:
    @tool
    def f() -> int:
        return "five"  # type: ignore[return-value]  # the point

    with pytest.raises(ToolError, match="f returned 'five', which does not fit its declared return type int"):
        await run(f)
    with pytest.raises(ToolError, match="f returned 'five'"):
        f.validate_value("five")
    f.validate_value(5)


# ---- travelling


def test_shipments() -> None:
    shipped = area.shipment()
    assert shipped is not None
    assert (shipped.import_path, shipped.concurrency) == ("", "main")
    assert shipped == area.shipment()

    imported = tool(name="area", import_path="mine:area", concurrency="exclusive")(
        lambda_named("f")
    ).shipment()
    assert imported is not None
    assert (imported.key, imported.import_path, imported.payload) == ("mine:area", "mine:area", b"")
    assert imported.concurrency == "exclusive"

    assert tool(runs_in="host")(lambda_named("f")).shipment() is None


def test_async_functions_overlap() -> None:
    @tool
    async def f() -> None: ...

    shipped = f.shipment()
    assert shipped is not None
    assert shipped.concurrency == "overlap"


def test_a_pickled_tool_is_a_tool() -> None:
    again = pickle.loads(cloudpickle.dumps(area))
    assert isinstance(again, FunctionTool)
    assert again.name == "area"
    assert again(2, 3) == 6
