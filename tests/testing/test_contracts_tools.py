"""Built-in tools, functions, mocks and a stranger's class pass the same suite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import pytest
from jsonschema import Draft202012Validator

from aisotools.builtin import builtin_tools
from aisotools.core.protocols import Tool, ToolContext
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.testing.contracts import ToolContract
from aisotools.testing.fakes import MockTool
from aisotools.tools.adapter import classify
from aisotools.tools.function import tool

BUILTINS = {one.name: one for one in builtin_tools()}


UNBOUNDED = {"content", "command", "code"}
"""As long as what is written or run; the channel bounds them."""


def _undescribed(schema: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """The properties, nested ones too, that have no description."""
    for name, parameter in schema.get("properties", {}).items():
        if not parameter.get("description"):
            yield f"{where}{name}"
    for name, inner in schema.get("$defs", {}).items():
        yield from _undescribed(inner, f"{name}.")


class TestBuiltins(ToolContract):
    @pytest.fixture(autouse=True, params=list(BUILTINS))
    def _tool(self, request: pytest.FixtureRequest) -> None:
        self.name: str = request.param

    def make(self) -> Tool:
        return BUILTINS[self.name]

    def test_tells_a_model_about_every_argument(self) -> None:
        assert not list(_undescribed(self.make().parameters_schema()))

    def test_its_schema_is_one_of_json_schema_2020_12(self) -> None:
        schema = dict(self.make().parameters_schema())
        Draft202012Validator.check_schema(schema)
        assert schema["additionalProperties"] is False

    def test_its_numbers_and_texts_have_bounds(self) -> None:
        for name, parameter in self.make().parameters_schema()["properties"].items():
            if name in UNBOUNDED:
                continue
            for option in parameter.get("anyOf", [parameter]):
                if option.get("type") == "integer":
                    assert "minimum" in option, name
                elif option.get("type") == "string":
                    assert "maxLength" in option or "enum" in option or "pattern" in option, name

    def test_says_what_a_call_does(self) -> None:
        tool = self.make()
        assert 60 < len(tool.description) < 1_200
        assert classify(tool, {}) is not None
        assert all(len(sentence) > 5 for _, sentence in getattr(tool, "examples", ()))

    def test_has_an_example(self) -> None:
        assert self.valid_arguments(self.make())


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
