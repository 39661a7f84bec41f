from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import RegistryError, SignatureError, ToolClash, UnknownTool
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Json, ToolResult
from aisotools.testing.fakes import MockTool
from aisotools.tools.export import Provider
from aisotools.tools.function import FunctionTool, tool
from aisotools.tools.registry import ToolRegistry
from tests.ids import stable


def cell(name: str, cell_id: str | None, body: str = "return 1", number: int = 1) -> FunctionTool[..., Any]:
    """A tool as a notebook cell defines it."""

    class Shell:
        def get_parent(self) -> dict[str, Any]:
            return {"metadata": {"cellId": cell_id}} if cell_id else {}

    names: dict[str, Any] = {"In": [""] * (number + 1), "get_ipython": Shell}
    exec(f"def {name}() -> int:\n    {body}", names)
    return tool(names[name])


# ---- finding


def test_tools_come_in_the_order_they_were_registered() -> None:
    registry = ToolRegistry([MockTool("b"), MockTool("a")])
    registry.register(MockTool("c"))
    assert [one.name for one in registry] == [one.name for one in registry.list()] == ["b", "a", "c"]
    assert len(registry) == 3
    assert "a" in registry
    assert "x" not in registry
    assert None not in registry
    assert repr(registry) == "<ToolRegistry of 3: b, a, c>"


def test_get_gives_none_and_brackets_raise() -> None:
    registry = ToolRegistry([MockTool("file"), MockTool("python")])
    assert registry.get("file") is registry["file"]
    assert registry.get("fiel") is None
    with pytest.raises(UnknownTool, match=r"There is no tool named 'fiel'\. Did you mean 'file'\?"):
        registry["fiel"]
    with pytest.raises(UnknownTool, match="Registered tools: file, python"):
        registry["zzz"]
    with pytest.raises(UnknownTool, match=r"named 'fi(le){99}\.\.\.'. Registered tools: file, python"):
        registry["fi" + "le" * 10_000_000]
    with pytest.raises(UnknownTool, match="No tools are registered"):
        ToolRegistry()["file"]


def test_unregister_gives_the_tool_back() -> None:
    mock = MockTool("file")
    registry = ToolRegistry([mock])
    assert registry.unregister("file") is mock
    assert len(registry) == 0
    with pytest.raises(UnknownTool, match="'file'"):
        registry.unregister("file")


# ---- registering


def test_register_works_as_a_decorator() -> None:
    registry = ToolRegistry()

    @registry.register
    @tool
    def area(width: float) -> float:
        return width

    assert registry["area"] is area
    assert area(2.0) == 2.0


class Half:
    name = "half"


class Whole:
    name = "whole"
    description = "Whole."

    def parameters_schema(self) -> Mapping[str, Json]:
        return {"type": "object"}

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        return ToolResult.text("")


def whole(**members: Any) -> Whole:
    made = Whole()
    made.__dict__.update(members)
    return made


def plain() -> None: ...


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (plain, "is not a tool: it has no name, description, parameters_schema, execute. Put @tool above"),
        (Half(), "is not a tool: it has no description, parameters_schema, execute."),
        (None, "None is not a tool"),
        (Whole, r"Whole is a class. Register one of its instances: Whole\(...\)"),
        (whole(description=None), "Tool whole: description must be text, not None."),
        (whole(parameters_schema=list), "Tool whole: the schema of its arguments must be a JSON Schema"),
        (whole(parameters_schema=lambda: {"type": "object", "required": 1}), "is broken at required"),
    ],
    ids=stable,
)
def test_an_object_that_is_no_tool_is_refused_at_once(thing: Any, message: str) -> None:
    registry = ToolRegistry()
    with pytest.raises(RegistryError, match=message):
        registry.register(thing)
    assert len(registry) == 0


def test_a_name_no_provider_takes_is_refused() -> None:
    with pytest.raises(SignatureError, match="'two words' cannot be the name of a tool"):
        ToolRegistry([MockTool("two words")])


def test_a_clash_names_both_origins() -> None:
    registry = ToolRegistry([cell("f", "one", number=1)])
    with pytest.raises(ToolClash, match=r"'f': one from cell \[1\], one from cell \[7\].*unregister\('f'\)"):
        registry.register(cell("f", "two", number=7))
    with pytest.raises(ToolClash, match=r"one from aisotools\.testing\.fakes\.MockTool"):
        registry.register(MockTool("f"))


@pytest.mark.parametrize(("old", "new"), [("one", "one"), (None, "one"), ("one", None), (None, None)])
def test_the_same_cell_replaces(old: str | None, new: str | None) -> None:
    registry = ToolRegistry([cell("f", old)])
    again = registry.register(cell("f", new, "return 2"))
    assert registry["f"] is again
    assert len(registry) == 1


def test_the_same_object_may_come_again() -> None:
    mock = MockTool("f")
    assert ToolRegistry([mock, mock]).list() == [mock]


def test_a_class_that_a_notebook_defines_again_replaces() -> None:
    registry = ToolRegistry()
    for number in (1, 2):
        again: Any = type("Mine", (Whole,), {"__module__": "__main__", "description": f"number {number}"})()
        registry.register(again)
        assert registry["whole"].description == f"number {number}"


# ---- exporting


def test_definitions() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    registry = ToolRegistry([MockTool("f", description="Does f.", parameters=schema)])
    expected = {"name": "f", "description": "Does f.", "parameters": schema}
    assert registry.definitions() == [expected]
    assert registry.definitions("openai") == [{"type": "function", "function": expected}]
    assert [d.name for d in registry.to_llm_definitions()] == ["f"]


def test_unknown_dialect_is_reported() -> None:
    with pytest.raises(ValueError, match=r"Unknown provider 'klingon'. Use one of None, 'openai'"):
        ToolRegistry().definitions("klingon")  # type: ignore[arg-type]  # what a person might write


@pytest.mark.parametrize("provider", [None, "openai"])
def test_exported_schemas_are_copies(provider: Provider | None) -> None:
    registry = ToolRegistry(
        [cell("f", "one"), MockTool("g", parameters={"type": "object", "properties": {}})]
    )
    before = copy.deepcopy(registry.definitions(provider))
    for definition in registry.definitions(provider):
        function = definition if provider is None else definition["function"]
        function["parameters"]["properties"]["x"] = 1
        function.clear()
    assert registry.definitions(provider) == before


# ---- properties


@given(names=st.lists(st.from_regex(r"\A[A-Za-z0-9_.-]{1,64}\Z"), unique=True, max_size=8), data=st.data())
def test_a_registry_is_a_mapping_in_order(names: list[str], data: st.DataObject) -> None:
    registry = ToolRegistry(MockTool(name) for name in names)
    gone = set(data.draw(st.lists(st.sampled_from(names), unique=True))) if names else set()
    for name in gone:
        registry.unregister(name)
    assert [one.name for one in registry] == [name for name in names if name not in gone]
    assert [d["name"] for d in registry.definitions()] == [one.name for one in registry]


def test_many_threads_may_use_it_at_once() -> None:
    registry = ToolRegistry()
    errors: list[BaseException] = []
    per_thread = 40

    def work(thread: int) -> None:
        try:
            for number in range(per_thread):
                registry.register(MockTool(f"t{thread}-{number}"))
                registry.register(MockTool(f"t{thread}-gone-{number}"))
                assert registry.unregister(f"t{thread}-gone-{number}").name.endswith(str(number))
                assert len(registry.definitions()) <= len(registry.list()) + 8
                with pytest.raises(UnknownTool):
                    registry["t"]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(registry) == 8 * per_thread


def test_of_many_threads_that_want_a_name_one_gets_it() -> None:
    registry = ToolRegistry()
    outcomes: list[str] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        try:
            registry.register(MockTool("f"))
            outcomes.append("registered")
        except ToolClash:
            outcomes.append("clash")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["clash"] * 7 + ["registered"]
