from __future__ import annotations

import asyncio
import enum
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import jsonschema
import pytest
from hypothesis import given, strategies as st
from pydantic import AfterValidator, BaseModel, Field, SecretStr

from aisotools.core.exceptions import ArgumentError, SignatureError, ToolError
from aisotools.core.protocols import ToolContext
from aisotools.tools.schema import FunctionSchema, check_name, function_schema


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    """A point."""

    x: float
    y: float = 0.0
    colour: Colour = Colour.RED


class Line(BaseModel):
    points: list[Point]
    name: str | None = None
    extra: dict[str, int] = Field(default_factory=dict)


@dataclass
class Size:
    width: int
    height: int = 1


def schema_of(function: Callable[..., Any]) -> FunctionSchema:
    return function_schema(function)


def everything(
    *,
    text: str,
    count: int,
    ratio: float,
    flag: bool,
    colour: Colour,
    unit: Literal["m", "cm"],
    line: Line,
    size: Size,
    names: list[str],
    table: dict[str, int],
    day: date | None = None,
    limit: Annotated[int, Field(ge=0, le=10, description="How many.")] = 3,
    context: ToolContext | None = None,
) -> str:
    """Take one of everything.

    It does nothing with it.

    Args:
        text: Some text.
        count: How often,
            told in two lines.
        limit: Not this.

    Returns:
        A text.
    """
    return f"{text}{count}{ratio}{flag}{colour}{unit}{line}{size}{names}{table}{day}{limit}{context}"


# ---- what a model is told


def test_every_kind_of_parameter_has_a_schema() -> None:
    schema = schema_of(everything)
    jsonschema.Draft202012Validator.check_schema(dict(schema.parameters))
    properties = schema.parameters["properties"]
    assert schema.parameters["type"] == "object"
    assert schema.parameters["additionalProperties"] is False
    assert "context" not in properties
    assert schema.context_parameter == "context"
    assert properties["text"] == {"type": "string", "description": "Some text."}
    assert properties["count"] == {"type": "integer", "description": "How often, told in two lines."}
    assert properties["limit"]["description"] == "How many."
    assert (properties["limit"]["minimum"], properties["limit"]["maximum"]) == (0, 10)
    assert properties["unit"] == {"enum": ["m", "cm"], "type": "string"}
    assert properties["names"] == {"type": "array", "items": {"type": "string"}}
    assert schema.parameters["required"] == list(properties)[:10]
    assert set(schema.parameters["$defs"]) == {"Colour", "Point", "Line", "Size"}
    assert schema.parameters["$defs"]["Colour"]["enum"] == ["red", "blue"]


def test_no_made_up_titles_but_ones_own_names() -> None:
    def odd(title: str, properties: int, const: Literal["title"] = "title") -> None: ...

    schema = schema_of(odd)
    assert list(schema.parameters["properties"]) == ["title", "properties", "const"]
    assert schema.parameters["properties"]["title"] == {"type": "string"}
    assert schema.parameters["properties"]["const"]["default"] == "title"


@pytest.mark.parametrize("name", ["self_", "model_config", "schema", "json", "copy", "_x", "validate", "cls"])
def test_a_parameter_may_have_any_name(name: str) -> None:
    def function(**values: Any) -> None: ...

    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=int)
    function.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]  # a function has one
    schema = function_schema(function)
    assert schema.bind({name: "5"}) == {name: 5}


@pytest.mark.parametrize(
    ("docstring", "description"),
    [
        ("One line.", "One line."),
        ("First.\n\nSecond: with a colon\n    and more.", "First.\n\nSecond: with a colon\n    and more."),
        ("Do.\n\nNote:\n    Mind the gap.\n\nArgs:\n    x: it.\n", "Do.\n\nNote:\n    Mind the gap."),
        ("Do.\n\nReturns:\n    It.\n\nRaises:\n    ValueError: no.\n\nAfterwards.", "Do.\n\nAfterwards."),
        ("Do.\n\nArgs: none to speak of", "Do.\n\nArgs: none to speak of"),
        ("", ""),
    ],
)
def test_the_description_is_the_docstring_without_sections_for_programmers(
    docstring: str, description: str
) -> None:
    def function(x: int) -> None: ...

    function.__doc__ = docstring
    assert schema_of(function).description == description


def test_a_description_at_the_parameter_beats_the_docstring() -> None:
    def function(
        bare: Annotated[str, "a bare text"],
        field: Annotated[str, Field(description="a field")],
        default: str = Field("x", description="a default"),
        documented: Annotated[int, Field(ge=0)] = 1,
    ) -> None:
        """Do.

        Args:
            bare: documented
            field: documented
            default: documented
            documented: documented
        """

    properties = schema_of(function).parameters["properties"]
    assert {name: one["description"] for name, one in properties.items()} == {
        "bare": "a bare text",
        "field": "a field",
        "default": "a default",
        "documented": "documented",
    }


@pytest.mark.parametrize(
    "annotation",
    [ToolContext, ToolContext | None, Optional[ToolContext], Annotated[ToolContext, "schema"], "ToolContext"],  # noqa: UP045 - both spellings
    ids=str,
)
def test_the_context_is_hidden(annotation: Any) -> None:
    def function(x: int, context: Any) -> None: ...

    function.__annotations__["context"] = annotation
    schema = schema_of(function)
    assert list(schema.parameters["properties"]) == ["x"]
    assert schema.context_parameter == "context"


# ---- what is refused, with the fix


def refused() -> list[tuple[Callable[..., Any], str]]:
    def star(*names: str) -> None: ...
    def stars(**named: str) -> None: ...
    def positional(x: int, /) -> None: ...
    def untyped(x) -> None: ...  # type: ignore[no-untyped-def]  # the point
    def method(self, x: int) -> None: ...  # type: ignore[no-untyped-def]  # the point
    def wrong_default(x: int = "five") -> None: ...  # type: ignore[assignment]  # the point
    def lax_default(x: int = "5") -> None: ...  # type: ignore[assignment]  # the point
    def none_default(x: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - the point
    def field_default(x: int = Field("five")) -> None: ...  # type: ignore[assignment]  # the point
    def out_of_range(x: Annotated[int, Field(ge=1)] = 0) -> None: ...
    def socket(x: asyncio.Lock) -> None: ...
    def function(x: Callable[[], int]) -> None: ...
    def two(a: ToolContext, b: ToolContext) -> None: ...
    def star_context(*contexts: ToolContext) -> None: ...
    def positional_context(context: ToolContext, /) -> None: ...
    def unknown(x: NoSuchThing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the point
    def attribute(x: asyncio.NoSuchThing) -> None: ...  # type: ignore[name-defined]  # the point
    def syntax(x: int) -> None: ...

    syntax.__annotations__["x"] = "int int"
    return [
        (star, "'names': *args cannot be described to a model. Use a list parameter such as `names: list["),
        (stars, "'named': **kwargs cannot be described to a model. Use a dict parameter such as `named:"),
        (positional, "'x' is positional-only, so a model cannot name it. Remove the `/`."),
        (untyped, "'x' has no type. Annotate it, for example `x: str`."),
        (method, "'self': a method cannot be a tool by itself. Make a tool of the bound one, `tool(thing."),
        (wrong_default, "'x': the default 'five' does not fit its type int. Use a default of type int."),
        (lax_default, "'x': the default '5' does not fit its type int."),
        (none_default, "'x': the default None does not fit its type int. Use `x: int | None = None`."),
        (field_default, "'x': the default 'five' does not fit its type int."),
        (out_of_range, "'x': the default 0 does not fit"),
        (socket, "parameter 'x' has type asyncio.locks.Lock, which has no JSON form. Take plain values"),
        (
            function,
            "parameter 'x' has type collections.abc.Callable[[], int], which JSON Schema cannot express",
        ),
        (two, "'a' and 'b' both take the ToolContext. Keep one."),
        (star_context, "'contexts': *args cannot be described"),
        (positional_context, "'context' is positional-only"),
        (unknown, "an annotation cannot be resolved (name 'NoSuchThing' is not defined). Import or define"),
        (attribute, "an annotation cannot be resolved (module 'asyncio' has no attribute 'NoSuchThing')"),
        (syntax, "an annotation cannot be resolved (invalid syntax"),
    ]


class Login(BaseModel):
    user: str
    key: SecretStr


def test_secrets_reach_the_function_whole() -> None:
    def enter(pin: SecretStr, logins: list[Login], spare: SecretStr | None = None) -> None: ...

    schema = schema_of(enter)
    given = {"pin": "1234", "logins": [{"user": "me", "key": "k1"}, {"user": "you", "key": "k2"}]}
    assert schema.validate(given) == given
    bound = schema.bind(given)
    assert bound["pin"].get_secret_value() == "1234"
    assert [login.key.get_secret_value() for login in bound["logins"]] == ["k1", "k2"]


@pytest.mark.parametrize(("function", "message"), refused(), ids=lambda part: getattr(part, "__name__", ""))
def test_a_bad_signature_is_refused_with_the_fix(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(SignatureError) as raised:
        schema_of(function)
    assert str(raised.value).startswith(f"Tool {function.__name__}")
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["a", "a-b.c_D9", "x" * 64])
def test_names_that_a_tool_may_bear(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", "a b", "ä", "a\n", "x" * 65, "a/b", None, 3, "<lambda>"])
def test_other_names_are_refused(name: object) -> None:
    with pytest.raises(SignatureError, match="cannot be the name of a tool"):
        check_name(name)


def test_object_that_is_no_function_is_refused() -> None:
    with pytest.raises(SignatureError, match=r"'area' is not a function. Name a tool with @tool\(name="):
        function_schema("area")  # type: ignore[arg-type]  # the point
    with pytest.raises(SignatureError, match="A lambda has no name"):
        schema_of(lambda: 1)
    assert function_schema(lambda: 1, "one").name == "one"


# ---- what arguments become


GOOD: Mapping[str, Any] = {
    "text": "t",
    "count": "5",
    "ratio": "0.5",
    "flag": "true",
    "colour": "blue",
    "unit": "cm",
    "line": {"points": [{"x": "1", "colour": "red"}]},
    "size": {"width": 2},
    "names": ["a"],
    "table": {"a": "1"},
    "day": "2024-02-29",
}


def test_arguments_are_coerced_as_models_send_them() -> None:
    valid = schema_of(everything).validate(GOOD)
    assert valid == {
        "text": "t",
        "count": 5,
        "ratio": 0.5,
        "flag": True,
        "colour": "blue",
        "unit": "cm",
        "line": {"points": [{"x": 1.0, "colour": "red"}]},
        "size": {"width": 2, "height": 1},
        "names": ["a"],
        "table": {"a": 1},
        "day": "2024-02-29",
    }


def test_the_function_gets_python_values_and_defaults() -> None:
    bound = schema_of(everything).bind(GOOD)
    assert bound["colour"] is Colour.BLUE
    assert bound["line"] == Line(points=[Point(x=1)])
    assert bound["size"] == Size(2)
    assert bound["day"] == date(2024, 2, 29)
    assert bound["limit"] == 3


@pytest.mark.parametrize(
    "function",
    [
        lambda x=Field(5, ge=1): x,  # noqa: B008 - how pydantic's users write it
        lambda x=Field(default_factory=lambda: 5): x,  # noqa: B008 - likewise
        lambda x=5: x,
    ],
)
def test_every_way_to_give_a_default_reaches_the_function(function: Callable[..., Any]) -> None:
    function.__annotations__["x"] = int
    schema = function_schema(function, "f")
    assert schema.parameters.get("required", []) == []
    assert schema.validate({}) == {}
    assert schema.bind({}) == {"x": 5}


def test_a_default_inside_the_annotation_counts() -> None:
    def function(x: Annotated[int, Field(default=5)]) -> None: ...

    assert schema_of(function).bind({}) == {"x": 5}


def test_mutable_defaults_are_not_shared() -> None:
    def function(x: list[int] = [1]) -> None: ...  # noqa: B006 - the point

    schema = schema_of(function)
    schema.bind({})["x"].append(2)
    assert schema.bind({})["x"] == [1]


def test_an_alias_of_the_users_own_gives_way_to_the_parameters_name() -> None:
    def function(x: Annotated[int, Field(alias="y", validation_alias="z")]) -> None: ...

    schema = schema_of(function)
    assert list(schema.parameters["properties"]) == ["x"]
    assert schema.bind(schema.validate({"x": 1})) == {"x": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": "five"}, "count: input should be a valid integer, unable to parse string as an integer, "),
        ({"colour": "green"}, "colour: input should be 'red' or 'blue', got 'green'"),
        ({"limit": 11}, "limit: input should be less than or equal to 10, got 11"),
        ({"line": {"points": [{"x": 1}, {}]}}, "line.points.1.x is missing"),
        ({"colr": "red"}, "colr is not an argument (did you mean colour?)"),
        ({"context": {}}, "context is not an argument"),
        ({"argument_0": "t"}, "argument_0 is not an argument"),
        ({"text": 5}, "text: input should be a valid string, got 5"),
        ({"unit": None}, "unit: input should be 'm' or 'cm', got None"),
    ],
)
def test_arguments_that_do_not_fit_are_named(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        schema_of(everything).validate({**GOOD, **change})
    assert str(raised.value).startswith("The arguments of everything do not fit: ")
    assert message in str(raised.value)
    assert "colour (one of 'red', 'blue', required)" in str(raised.value)


@pytest.mark.parametrize("arguments", [None, [], "text=t", 5, [("text", "t")]])
def test_arguments_that_are_no_object(arguments: Any) -> None:
    with pytest.raises(ArgumentError, match="must be an object with named values"):
        schema_of(everything).validate(arguments)


def test_values_outside_json_are_an_argument_error() -> None:
    def function(x: Any = None, data: bytes = b"") -> None: ...

    endless: list[Any] = []
    endless.append(endless)
    for wrong in ({"x": object()}, {"x": endless}, {"data": b"\xff"}):
        with pytest.raises(ArgumentError, match="The arguments of function are not JSON"):
            schema_of(function).validate(wrong)


def test_validator_that_changes_its_own_output_is_reported() -> None:
    # What a person is shown would not be what runs: the arguments are validated here and in the worker.
    def function(x: Annotated[int, AfterValidator(lambda x: x * 2)]) -> None: ...

    with pytest.raises(ToolError, match=r"twice gives \{'x': 6\}, then \{'x': 12\}") as raised:
        schema_of(function).validate({"x": 3})
    assert not raised.value.recoverable


def test_sets_and_not_a_number_are_no_changes() -> None:
    def function(x: set[str], y: float, z: Decimal, p: Path) -> None: ...

    valid = schema_of(function).validate(
        {"x": ["b", "a", "c"], "y": float("nan"), "z": "1.50", "p": "a/b"},
    )
    assert sorted(valid["x"]) == ["a", "b", "c"]
    assert (valid["z"], valid["p"]) == ("1.50", "a/b")


# ---- properties


KINDS: dict[str, tuple[Any, Any]] = {
    "int": (int, 1),
    "float": (float, 0.5),
    "str": (str, "a"),
    "bool": (bool, True),
    "ints": (list[int], [1]),
    "table": (dict[str, float], {"a": 1.0}),
    "maybe": (int | None, None),
    "either": (int | str, "a"),
    "literal": (Literal["a", 1], "a"),
    "enum": (Colour, Colour.RED),
    "model": (Point, Point(x=1)),
    "deep": (list[dict[str, Point | None]], []),
    "pair": (tuple[int, str], (1, "a")),
    "bounded": (Annotated[int, Field(ge=-5, le=5)], 0),
    "any": (Any, None),
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["a", "red", "1", "true"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def signatures(draw: st.DrawFn) -> inspect.Signature:
    parameters = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(list(KINDS)), max_size=4))):
        annotation, default = KINDS[kind]
        optional = draw(st.booleans())
        parameters.append(
            inspect.Parameter(
                f"p{number}",
                inspect.Parameter.KEYWORD_ONLY,
                annotation=annotation,
                default=default if optional else inspect.Parameter.empty,
            ),
        )
    return inspect.Signature(parameters)


def schema_from(signature: inspect.Signature) -> FunctionSchema:
    def function(**values: Any) -> None: ...

    function.__signature__ = signature  # type: ignore[attr-defined]  # a function has one
    return function_schema(function)


@given(signature=signatures())
def test_any_signature_gives_valid_json_schema(signature: inspect.Signature) -> None:
    schema = schema_from(signature).parameters
    jsonschema.Draft202012Validator.check_schema(dict(schema))
    assert schema["type"] == "object"
    assert set(schema["properties"]) == set(signature.parameters)


@given(
    signature=signatures(),
    arguments=st.dictionaries(st.sampled_from(["p0", "p1", "p2", "p3", "x"]), JSON, max_size=5),
)
def test_any_arguments_fit_or_are_argument_errors(
    signature: inspect.Signature, arguments: dict[str, Any]
) -> None:
    schema = schema_from(signature)
    try:
        valid = schema.validate(arguments)
    except ArgumentError:
        accepted = jsonschema.Draft202012Validator(dict(schema.parameters)).is_valid(arguments)
        assert not accepted, "the schema promises what validation refuses"
        return
    assert schema.validate(valid) == valid, "what is shown would not be what runs"
    assert schema.bind(valid) == schema.bind(arguments)
    assert jsonschema.Draft202012Validator(dict(schema.parameters)).is_valid(valid)
