"""Built-in tools, functions, mocks and a stranger's class pass the same suite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pytest

from aisotools.builtin import builtin_tools
from aisotools.contracts import Tool, ToolContext
from aisotools.events import Effect, Json, ToolResult
from aisotools.function_tool import tool
from aisotools.testing import MockTool, ToolContract

BUILTINS = {one.name: one for one in builtin_tools()}


class TestBuiltins(ToolContract):
    @pytest.fixture(autouse=True, params=list(BUILTINS))
    def _tool(self, request: pytest.FixtureRequest) -> None:
        self.name: str = request.param

    def make(self) -> Tool:
        return BUILTINS[self.name]

    def test_tells_a_model_about_every_argument(self) -> None:
        described = {
            name: bool(told.get("description"))
            for name, told in self.make().parameters_schema()["properties"].items()
        }
        assert all(described.values()), described

    def test_has_an_example(self) -> None:
        assert self.fitting(self.make())


@tool(effect=Effect.READ_ONLY, examples=[({"width": 2.0, "unit": "m"}, "an area, please")])
def area(width: float, unit: Literal["m", "cm"] = "m", context: ToolContext | None = None) -> float:
    """Area of a square."""
    return width * width


class TestFunction(ToolContract):
    def make(self) -> Tool:
        return area


class TestMockOfTheHost(ToolContract):
    arguments = ({"x": [1, {"a": None}]}, {})

    def make(self) -> Tool:
        return MockTool()


class TestMockOfTheSandbox(ToolContract):
    def make(self) -> Tool:
        return MockTool(runs_in="sandbox", effect=Effect.READ_ONLY, examples=[({}, "go")])


class Stranger:
    """The four required members, written by somebody who has read no more than that."""

    name = "stranger"
    description = "Does something."

    def parameters_schema(self) -> Mapping[str, Json]:
        return {
            "type": "object",
            "properties": {"path": {"type": "string"}, "count": {"type": "integer", "minimum": 0}},
            "required": ["path"],
        }

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        return ToolResult.text(str(arguments))


class TestStranger(ToolContract):
    arguments = ({"path": "a", "count": 1},)

    def make(self) -> Tool:
        return Stranger()


# ---- the suite itself can fail


class Nameless(Stranger):
    name = "no name at all"


class Meddling(Stranger):
    def classify(self, arguments: Mapping[str, Json]) -> Effect:
        return Effect(arguments["effect"])


class Changing(Stranger):
    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        return {"path": str(arguments.get("path")) + "!"}


@pytest.mark.parametrize(
    ("make", "test"),
    [
        (Nameless, "test_is_a_tool"),
        (Nameless, "test_can_be_registered"),
        (Meddling, "test_classifies"),
        (Changing, "test_takes_what_fits"),
        (object, "test_is_a_tool"),
    ],
)
def test_the_suite_finds_what_is_wrong(make: Any, test: str) -> None:
    class Suite(TestStranger):
        def make(self) -> Any:
            return make()

    with pytest.raises((AssertionError, Exception)):
        getattr(Suite(), test)()
