"""Every schema that `@tool` makes fits every provider, and whatever is lost on the way is said."""

from __future__ import annotations

import datetime as dt
import enum
import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional

import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, SecretStr
from typing_extensions import TypedDict

from aisotools.core.types import Effect, Json, ToolDefinition
from aisotools.tools.export import PROVIDERS, Export, Exports, Provider, export_tools, exported_name
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry
from tests.tools.provider_rules import RULES


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 5


class Point(BaseModel):
    x: float
    y: float = 0.0


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(default=9, ge=1, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Options(TypedDict):
    deep: bool
    depth: NotRequired[int]


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@tool(effect=Effect.READ_ONLY)
def plain(width: float, height: float) -> float:
    """Area of a rectangle."""
    return width * height


@tool
def nothing() -> None:
    """Do nothing."""


@tool
def defaults(a: int, b: int = 5, c: str | None = None, d: Optional[int] = 3) -> None:  # noqa: UP045 - as people write it
    """Defaults."""


@tool
def bounds(
    n: Annotated[int, Field(ge=1, lt=10)],
    x: Annotated[float, Field(gt=0, multiple_of=0.5)],
    s: Annotated[str, Field(min_length=1, max_length=9, pattern="^a")],
    many: Annotated[list[int], Field(min_length=1, max_length=3)],
) -> None:
    """Bounds."""


@tool
def formats(  # noqa: PLR0917 - as people write them
    day: dt.date, at: dt.datetime, who: uuid.UUID, raw: bytes, where: Path, much: Decimal
) -> None:
    """Formats."""


@tool
def enums(
    colour: Colour, size: Size, mode: Literal["r", "w"], level: Literal[1, 2], one: Literal["x"]
) -> None:
    """Enums."""


@tool
def nested(point: Point, points: list[Point], by_name: dict[str, Point], maybe: Point | None) -> None:
    """Nested."""


@tool
def recursive(tree: Tree) -> None:
    """Recursive."""


@tool
def unions(pet: Pet, either: int | str, parts: list[int | None], opts: Options) -> None:
    """Unions."""


@tool
def containers(
    pair: tuple[int, str],
    any_number: tuple[int, ...],
    unique: set[str],
    table: dict[str, int],
    free: dict[str, Any],
) -> None:
    """Containers."""


@tool
def anything(value: Any, key: SecretStr, odd: dict[str, list[dict[str, int | None]]] | None = None) -> None:
    """Anything."""


@tool(name="files.read")
def dotted(path: str) -> None:
    """Dotted."""


@tool
def unicode(größe: float, 名前: str = "x") -> None:  # noqa: N803, PLC2401 - the point of it
    """Other alphabets."""


TOOLS = (
    *(plain, nothing, defaults, bounds, formats, enums, nested, recursive, unions, containers, anything),
    *(dotted, unicode),
)


def complaints(provider: str, export: Mapping[str, Any]) -> list[str]:
    return list(RULES[provider](export))


@pytest.mark.parametrize("strict", [None, True, False])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_schemas_of_functions_fit_every_provider(provider: Provider, strict: bool | None) -> None:
    exports = {one.name: ToolRegistry([one]).exports(provider, strict=strict) for one in TOOLS}
    for name, (export,) in exports.items():
        json.dumps(export)
        assert export.tool_name == name
    found = {name: complaints(provider, export) for name, (export,) in exports.items()}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_rules_can_fail() -> None:
    free = {"type": "object", "properties": {"x": {"type": "object"}}}
    assert complaints("gemini", {"name": "f", "description": "", "parameters": free})
    assert complaints("gemini", {"name": "9", "description": ""})
    function = {"name": "f.g", "description": "", "parameters": free, "strict": True}
    assert len(complaints("openai", {"type": "function", "function": function})) >= 3
    assert complaints("anthropic", {"name": "f", "description": "", "input_schema": {"anyOf": []}})
    assert complaints("mcp", {"name": "ü", "inputSchema": {"type": "x"}, "annotations": {"a": 1}})


def test_a_schema_that_fits_as_it_is_stays_so_and_is_strict() -> None:
    (export,) = ToolRegistry([plain]).exports("openai")
    assert export["function"]["strict"] is True
    assert export["function"]["parameters"] == plain.parameters_schema()
    assert export.changes == ()
    (flat,) = ToolRegistry([plain]).definitions("openai-responses")
    assert (flat["type"], flat["name"], flat["strict"]) == ("function", "plain", True)


def test_a_schema_outside_strict_mode_drops_strict_for_that_tool_and_says_so() -> None:
    exports = ToolRegistry([plain, containers]).exports("openai")
    assert "strict" not in exports[1]["function"]
    assert exports[1]["function"]["parameters"] == containers.parameters_schema()
    assert list(exports.changes) == ["containers"]
    assert "strict mode is off" in str(exports.changes["containers"][0])


def test_asked_for_strict_mode_what_may_be_left_out_may_be_null_and_comes_back_left_out() -> None:
    registry = ToolRegistry([defaults])
    assert "strict" not in registry.definitions("openai")[0]["function"]
    exports = registry.exports("openai", strict=True)
    parameters = exports[0]["function"]["parameters"]
    assert exports[0]["function"]["strict"] is True
    assert parameters["required"] == ["a", "b", "c", "d"]
    assert {"type": "null"} in parameters["properties"]["b"]["anyOf"]
    name, arguments = exports.back("defaults", {"a": 1, "b": None, "c": None, "d": None})
    # c and d take null themselves, so there null says null.
    assert (name, arguments) == ("defaults", {"a": 1, "c": None, "d": None})
    assert defaults.validate_arguments(arguments)


def test_gemini_gets_references_spelled_out_recursion_cut_and_dicts_as_text() -> None:
    exports = ToolRegistry([nested, recursive]).exports("gemini")
    assert "$ref" not in json.dumps(exports)
    point = {"x": 1.0, "y": 2.0}
    arguments: dict[str, Json] = {"point": point, "points": [], "by_name": '{"a": {"x": 1}}', "maybe": None}
    assert exports.back("nested", arguments)[1]["by_name"] == {"a": {"x": 1}}
    assert nested.validate_arguments(exports.back("nested", arguments)[1])
    changes = " ".join(map(str, exports.changes["nested"]))
    assert "JSON text" in changes
    assert any("a recursive schema" in change.what for change in exports.changes["recursive"])


def test_text_that_is_no_json_object_stays_text_for_the_tool_to_refuse() -> None:
    (export,) = ToolRegistry([containers]).exports("gemini")
    for text in ("no json", "[1]", "", "{"):
        assert export.restore({"table": text}) == {"table": text}


def test_gemini_keeps_bounds_and_tells_the_rest_in_words() -> None:
    (export,) = ToolRegistry([bounds]).exports("gemini")
    properties = export["parameters"]["properties"]
    assert (properties["n"]["minimum"], properties["n"]["maximum"]) == (1, 9)
    assert "More than 0" in properties["x"]["description"]
    assert "multiple of 0.5" in properties["x"]["description"]
    (export,) = ToolRegistry([enums]).exports("gemini")
    assert export["parameters"]["properties"]["colour"]["enum"] == ["red", "blue"]
    assert "One of 1, 5." in export["parameters"]["properties"]["size"]["description"]
    assert ToolRegistry([nothing]).definitions("gemini") == [
        {"name": "nothing", "description": "Do nothing."}
    ]


def test_anthropic_gets_legal_argument_names_that_map_back() -> None:
    (export,) = ToolRegistry([unicode]).exports("anthropic")
    names = list(export["input_schema"]["properties"])
    assert export["input_schema"]["required"] == [names[0]]
    assert export.restore(dict(zip(names, [1.5, "n"], strict=True))) == {"größe": 1.5, "名前": "n"}
    assert "größe" in export["input_schema"]["properties"][names[0]]["description"]


def test_mcp_gets_the_schema_itself_and_hints_from_effects() -> None:
    for one in TOOLS:
        (export,) = ToolRegistry([one]).exports("mcp")
        assert export["inputSchema"] == one.parameters_schema()
    (export,) = ToolRegistry([plain]).exports("mcp")
    assert export["annotations"] == {
        "readOnlyHint": True,
        "destructiveHint": False,
        "openWorldHint": False,
    }
    (export,) = ToolRegistry([nested]).exports("mcp")  # declares no effect: nothing milder is claimed
    assert export["annotations"] == {"readOnlyHint": False}


def test_a_name_that_a_provider_rejects_gets_an_alias_that_nobody_has_and_maps_back() -> None:
    @tool(name="files_read")
    def other(path: str) -> None:
        """Other."""

    @tool(name="9lives")
    def nine(path: str) -> None:
        """Nine."""

    for provider in PROVIDERS:
        exports = ToolRegistry([dotted, other, nine]).exports(provider)
        names = [exported_name(export) for export in exports]
        assert len(set(names)) == 3
        for export, name in zip(exports, names, strict=True):
            assert exports.back(name, {"path": "a"}) == (export.tool_name, {"path": "a"})
    exports = ToolRegistry([dotted, other]).exports("anthropic")
    assert exported_name(exports[0]) != "files_read"
    assert any(change.path == "name" for change in exports.changes["files.read"])


def test_unknown_name_is_returned_unchanged() -> None:
    exports = ToolRegistry([plain]).exports("openai")
    assert exports.back("nosuch", {"a": None}) == ("nosuch", {"a": None})


def test_there_is_no_other_dialect() -> None:
    with pytest.raises(ValueError, match="Unknown provider 'klingon'"):
        ToolRegistry([plain]).exports("klingon")  # type: ignore[arg-type]  # what a person might write


def test_exports_are_new_each_time() -> None:
    registry = ToolRegistry([nested])
    for provider in PROVIDERS:
        before = json.dumps(registry.definitions(provider))
        for definition in registry.definitions(provider):
            definition.clear()
        registry.exports(provider)[0].clear()
        assert json.dumps(registry.definitions(provider)) == before


# ---- schemas of strangers

STRANGE: Mapping[str, Json] = {
    "top_any": {"anyOf": [{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}]},
    "top_all": {
        "allOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "integer"}}}]
    },
    "top_one": {
        "type": "object",
        "properties": {"k": {"type": "string"}},
        "oneOf": [{"required": ["k"]}, {"properties": {"z": {}}}],
    },
    "boolean": {"type": "object", "properties": {"a": True, "b": False}},
    "dangling": {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/none"}, "b": {"$ref": "http://x/y"}},
    },
    "itself": {"type": "object", "properties": {"a": {"$ref": "#"}}},
    "definitions": {
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/A", "description": "mine"}},
        "definitions": {"A": {"type": ["string", "null"], "minLength": 2}},
    },
    "types": {"type": "object", "properties": {"a": {"type": ["string", "integer", "null"]}}},
    "tuple": {"type": "object", "properties": {"a": {"prefixItems": [{"type": "string"}], "items": False}}},
    "pattern": {"type": "object", "patternProperties": {"^x": {"type": "string"}}},
    "not": {"type": "object", "properties": {"a": {"not": {"type": "string"}}}},
    "if": {"type": "object", "properties": {"a": {"type": "string"}}, "if": {"required": ["a"]}},
    "untyped": {"properties": {"a": {"properties": {"b": {"const": 4}}}, "c": {"enum": [1, "x", None]}}},
    "bare": {},
    "required": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "gone"]},
}


@pytest.mark.parametrize("provider", ["openai", "openai-responses", "anthropic", "gemini"])
def test_strange_schemas_are_made_to_fit_too(provider: Provider) -> None:
    found = {}
    for name, schema in STRANGE.items():
        definition = ToolDefinition("f", "Strange.", schema)
        for strict in (None, True):
            (export,) = export_tools([(definition, None)], provider, strict=strict)
            found[name, strict] = complaints(provider, export)
    assert {key: texts for key, texts in found.items() if texts} == {}


def _types() -> st.SearchStrategy[Any]:
    leaves = st.sampled_from([int, str, float, bool, Colour, Size, Point, Tree, Any, Pet, Options, bytes])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            inner.map(lambda t: list[t]),  # type: ignore[valid-type]  # made at run time on purpose
            inner.map(lambda t: dict[str, t]),  # type: ignore[valid-type]  # likewise
            inner.map(lambda t: Optional[t]),  # noqa: UP045 - it may be a string
            st.tuples(inner, inner).map(lambda ts: tuple[ts]),  # type: ignore[valid-type]  # likewise
        ),
        max_leaves=4,
    )


@settings(max_examples=25)
@given(st.lists(_types(), min_size=1, max_size=4), st.booleans())
def test_every_type_fits_everywhere(kinds: list[Any], optional: bool) -> None:
    def function(**_: object) -> None:
        """A function."""

    import inspect

    default = None if optional else inspect.Parameter.empty
    parameters = [
        inspect.Parameter(
            f"p{number}",
            inspect.Parameter.KEYWORD_ONLY,
            annotation=kind | None if optional else kind,
            default=default,
        )
        for number, kind in enumerate(kinds)
    ]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # as functools does
    made = tool(function)
    for provider in PROVIDERS:
        for strict in (None, True):
            (export,) = ToolRegistry([made]).exports(provider, strict=strict)
            assert complaints(provider, export) == []


@given(st.data())
def test_arguments_of_the_strict_form_fit_the_tool_once_restored(data: st.DataObject) -> None:
    (export,) = ToolRegistry([defaults]).exports("openai", strict=True)
    value = st.one_of(st.none(), st.integers(-5, 5), st.sampled_from(["a", "b"]))
    arguments = data.draw(st.fixed_dictionaries(dict.fromkeys("abcd", value)))
    if Draft202012Validator(export["function"]["parameters"]).is_valid(arguments):
        defaults.validate_arguments(export.restore(arguments))


# ---- the clients' own types


def test_openai_and_anthropic_clients_take_them() -> None:
    openai = pytest.importorskip("openai.types.chat")
    anthropic = pytest.importorskip("anthropic.types")
    from pydantic import TypeAdapter

    registry = ToolRegistry(TOOLS)
    chat = TypeAdapter(openai.ChatCompletionFunctionToolParam)
    for form in registry.definitions("openai"):
        chat.validate_python(form)
    message = TypeAdapter(anthropic.ToolParam)
    for form in registry.definitions("anthropic"):
        message.validate_python(form)


def test_the_gemini_client_takes_them() -> None:
    types = pytest.importorskip("google.genai.types")
    for form in ToolRegistry(TOOLS).definitions("gemini"):
        declaration = types.FunctionDeclaration.model_validate(form)
        assert declaration.name


def test_the_mcp_library_takes_them() -> None:
    types = pytest.importorskip("mcp_types")
    for form in ToolRegistry(TOOLS).definitions("mcp"):
        assert types.Tool.model_validate(form).name


# ---- registries of the same tools


def test_filtered_prefixed_and_renamed_keep_effects_and_context(tmp_path: Path) -> None:
    registry = ToolRegistry([plain, nested])
    assert [one.name for one in registry.filtered(["plain"])] == ["plain"]
    assert [one.name for one in registry.filtered(lambda one: one.name.startswith("n"))] == ["nested"]
    prefixed = registry.prefixed("geo.")
    assert [one.name for one in prefixed] == ["geo.plain", "geo.nested"]
    same: Any = prefixed["geo.plain"]
    assert same.classify({}) is Effect.READ_ONLY
    assert same.shipment() is not None
    assert same.version != plain.version
    renamed = prefixed.renamed({"geo.plain": "area"})
    assert "area" in renamed
    assert renamed["area"].parameters_schema() == plain.parameters_schema()
    assert isinstance(renamed.exports("mcp"), Exports)
    assert isinstance(renamed.exports("mcp")[0], Export)
    assert renamed.exports("mcp")[0]["annotations"]["readOnlyHint"] is True
