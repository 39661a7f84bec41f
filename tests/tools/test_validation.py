from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, strategies as st
from pydantic_core import to_json

from aisotools.core.exceptions import ArgumentError, ToolError
from aisotools.core.types import ToolCall
from aisotools.tools.validation import (
    MAX_ARGUMENT_BYTES,
    MAX_LABEL_CHARS,
    EncodedArguments,
    bounded_call,
    check_deadline,
    check_size,
    describe_problem,
    encode_arguments,
    fresh_arguments,
    make_call,
    schema_error,
    short_repr,
    signature_hint,
    validate_against,
)
from tests.ids import stable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "width": {"type": "number", "minimum": 0},
        "unit": {"enum": ["m", "cm"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "inner": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
    "required": ["width"],
    "additionalProperties": False,
}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr today")


@given(arguments=st.dictionaries(st.text(max_size=8) | st.sampled_from(["width", "unit", "tags"]), JSON))
def test_any_input_is_accepted_or_an_argument_error(arguments: dict[str, Any]) -> None:
    fits = jsonschema.Draft202012Validator(dict(SCHEMA)).is_valid(arguments)
    if not fits:
        with pytest.raises(ArgumentError, match=r"\AThe arguments of area"):
            validate_against(SCHEMA, arguments, "area")
        return
    valid = validate_against(SCHEMA, arguments, "area")
    assert valid == arguments
    assert valid is not arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "width is missing. Expected: width (number, required), unit (one of 'm', 'cm'), "),
        ({"width": 1, "colour": "m"}, "colour is not an argument. Expected"),
        ({"width": 1, "unti": "m"}, "unti is not an argument (did you mean unit?)"),
        ({"width": "1"}, "width: does not fit type 'number', got '1'"),
        ({"width": -1}, "width: does not fit minimum 0, got -1"),
        ({"width": 1, "unit": "km"}, "unit: does not fit enum ['m', 'cm'], got 'km'"),
        ({"width": 1, "tags": ["a", 2]}, "tags.1: does not fit type 'string', got 2"),
        ({"width": 1, "inner": {}}, "inner.a is missing"),
        ({"width": None, "unit": 3}, "unit: does not fit enum ['m', 'cm'], got 3; width: does not fit"),
        (["width", 1], "must be an object with named values, not list ['width', 1]"),
        ("width=1", "must be an object with named values, not str 'width=1'"),
        (None, "must be an object with named values, not NoneType None"),
        ({"width": [endless()]}, "not JSON: ValueError: Circular reference"),
        ({"width": {1, 2}}, "width: does not fit type 'number', got [1, 2]"),
        ({"width": object()}, "not JSON: Unable to serialize unknown type"),
        ({"width": "\ud800"}, "not JSON"),
    ],
    ids=stable,
)
def test_problems_are_named_with_what_would_fit(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        validate_against(SCHEMA, arguments, "area")
    assert message in str(raised.value)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("value", [nested(3000), 10**5000], ids=["deep", "long"])
def test_value_that_json_cannot_represent_is_reported(value: object) -> None:
    with pytest.raises(ArgumentError, match="are not JSON"):
        validate_against(SCHEMA, {"width": value}, "area")


def test_many_problems_are_summarized() -> None:
    with pytest.raises(ArgumentError) as raised:
        validate_against(SCHEMA, {"width": 1, "tags": list(range(10_000))}, "area")
    assert len(str(raised.value)) < 1000
    with pytest.raises(ArgumentError, match="and 92 more"):
        validate_against(SCHEMA, {"width": 1} | {f"x{n}": n for n in range(100)}, "area")


# ---- schemas of strangers


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (None, "must be a JSON Schema of type 'object', not None"),
        ([], "of type 'object', not []"),
        ({}, "of type 'object', not {}"),
        ({"type": "string"}, "of type 'object', not {'type': 'string'}"),
        ({"type": "object", "properties": []}, "broken at properties"),
        ({"type": "object", "properties": {"a": {"type": "no such type"}}}, "broken at properties.a.type"),
        ({"type": "object", "required": "a"}, "broken at required"),
    ],
)
def test_broken_schema_is_reported(schema: object, message: str) -> None:
    assert message in schema_error(schema)


@pytest.mark.parametrize(
    "schema", [SCHEMA, {"type": "object"}, {"type": "object", "properties": {"a": True}}]
)
def test_a_sound_schema_has_no_flaw(schema: object) -> None:
    assert schema_error(schema) == ""


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"x": {"pattern": "("}}},
        {"type": "object", "properties": {"x": {"type": "no such type"}}},
    ],
)
def test_a_schema_that_breaks_later_is_the_providers_fault(schema: Mapping[str, Any]) -> None:
    with pytest.raises(ToolError, match="schema of its arguments is broken") as raised:
        validate_against(schema, {"x": "1"}, "theirs")
    assert not raised.value.recoverable


@pytest.fixture
def visits() -> Iterator[tuple[str, list[str]]]:
    """The address of a server of our own, and what was asked of it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "string"}')

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/schema.json", asked
        server.shutdown()
        thread.join()


def test_a_reference_fetches_nothing(visits: tuple[str, list[str]], tmp_path: Path) -> None:
    address, asked = visits
    secret = tmp_path / "secret.json"
    secret.write_text('{"const": "the secret"}', "utf-8")
    for reference in (address, secret.as_uri()):
        schema = {"type": "object", "properties": {"x": {"$ref": reference}}}
        with pytest.raises(ToolError, match="outside itself, which is not fetched") as raised:
            validate_against(schema, {"x": "1"}, "theirs")
        assert "the secret" not in str(raised.value)
    assert asked == []


# ---- freezing and showing


@given(arguments=st.dictionaries(st.text(max_size=8), JSON))
def test_freezing_keeps_json_as_it_is(arguments: dict[str, Any]) -> None:
    from pydantic_core import from_json

    assert from_json(encode_arguments("t", arguments)) == arguments


@pytest.mark.parametrize("size", [0, 100_000])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"a": 1}, {"a": [1, {"b": ["x", None, 1.5, True]}], "c": {"d": {}}}, {"\u00fc": ["\U0001f600"]}],
)
def test_arguments_that_were_parsed_once_can_be_read_again(arguments: dict[str, Any], size: int) -> None:
    arguments = {**arguments, "text": "x" * size}
    encoded = encode_arguments("t", arguments)
    first = fresh_arguments(encoded)
    assert first == arguments == fresh_arguments(bytes(encoded))

    def spoil(value: Any) -> None:
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, dict | list):
                spoil(item)
        value.clear()

    spoil(first)
    assert fresh_arguments(encoded) == arguments, "what one reader does to them is not what the next one gets"
    assert isinstance(encoded, EncodedArguments) is (size > 0)
    assert encoded == to_json(arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({f"a{n}": n for n in range(1_001)}, "have 1,001 names; a call takes at most 1,000. Write"),
        ({"a": {f"a{n}": n for n in range(20_001)}}, "have more than 20,000 values; a call takes at most"),
        (
            {"a": [0] * 20_001},
            "have more than 20,000 values; a call takes at most 20,000. Write the data to a",
        ),
        ({"a": [[]] * 2_001}, "have more than 2,000 lists and objects; a call takes at most 2,000. Write"),
        ({"a": endless()}, "have more than 2,000 lists and objects; a call"),
        (
            {"a": "x" * ((4 << 20) + 1)},
            "have more than 4,194,304 characters; a call takes at most 4,194,304 bytes",
        ),
        ({"x" * (4 << 20): "a"}, "have more than 4,194,304 characters; a call takes at most 4,194,304 bytes"),
    ],
)
def test_size_of_arguments_is_bounded_before_anything_reads_them(arguments: object, problem: str) -> None:
    with pytest.raises(ArgumentError, match=f"^The arguments of t {problem}") as raised:
        check_size("t", arguments)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    "arguments",
    [
        {f"a{n}": n for n in range(1_000)},
        {"a": [0] * 19_999},
        {"a": [[]] * 1_998},
        {"a": "x" * ((4 << 20) - 1)},
        "no object",
        None,
        {"a": object(), 1: {2, 3}},
    ],
)
def test_size_within_the_bounds_is_not_refused(arguments: object) -> None:
    check_size("t", arguments)


@pytest.mark.parametrize(
    "integers", [1 << 100_001, [1 << 1_000] * 101, -(1 << 3_000_000)], ids=["one", "several", "negative"]
)
def test_large_integers_are_refused_before_they_are_written(integers: object) -> None:
    with pytest.raises(ArgumentError, match="large integers of more than 100,000 bits in all"):
        check_size("t", {"a": integers})
    check_size("t", {"a": [1 << 63] * 10_000, "b": 10**5_000, "c": True})


def test_many_unknown_names_are_counted_and_not_listed() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    with pytest.raises(ArgumentError) as raised:
        validate_against(schema, dict.fromkeys(map(str, range(1_000))), "t")
    assert str(raised.value).endswith("7 is not an argument; and 992 more. Expected: a (any).")
    assert len(str(raised.value)) < 400


def test_too_long_arguments_are_refused_with_a_way_out() -> None:
    with pytest.raises(ArgumentError, match=r"file in parts") as raised:
        encode_arguments("t", {"content": "x" * MAX_ARGUMENT_BYTES})
    assert f"{MAX_ARGUMENT_BYTES:,}" in str(raised.value)


@pytest.mark.parametrize(
    "value",
    [nested(50_000), endless(), 10**5000, Unshowable(), "x" * 10**6],
    ids=["deep", "endless", "long number", "no repr", "long text"],
)
def test_any_value_can_be_shown_briefly(value: object) -> None:
    assert 0 < len(short_repr(value)) < 200


def test_a_path_to_a_problem_stays_short() -> None:
    assert len(describe_problem(["x" * 10_000, 1], "missing", "", None, {})) < 200


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object", "properties": {}, "additionalProperties": False}, "It takes no arguments."),
        ({"type": "object"}, ""),
        ({"type": "object", "properties": {"a": True}}, "Expected: a (any)."),
        (
            {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
            "Expected: a (string or null).",
        ),
        (
            {
                "type": "object",
                "properties": {"c": {"$ref": "#/$defs/C"}, "p": {"$ref": "#/$defs/P"}, "k": {"const": 1}},
                "required": ["c"],
                "$defs": {"C": {"enum": ["a", "b"]}, "P": {"type": "object"}},
            },
            "Expected: c (one of 'a', 'b', required), p (P), k (1).",
        ),
        (
            {"type": "object", "properties": {"a": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}},
            "Expected: a (integer or null).",
        ),
        (
            {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}},
            "Expected: a (array of integer).",
        ),
    ],
)
def test_the_hint_reads_like_a_signature(schema: Mapping[str, Any], expected: str) -> None:
    assert signature_hint(schema) == expected


# ---- ids and names of calls


def test_ids_and_names_of_calls_are_bounded_and_can_be_recorded() -> None:
    plain = ToolCall("id", "name", {}, agent_id="a", turn_id="t")
    assert bounded_call(plain) is plain
    spelled = ToolCall("é", "näme", {"x": 1}, origin="model")
    assert bounded_call(spelled) == spelled
    long, other = (ToolCall(f"{'i' * 5_000_000}{n}", "n" * 1_001, {}, agent_id="a" * 1_000) for n in (1, 2))
    bounded = bounded_call(long)
    assert bounded.id.startswith("i" * 100 + "... (5,000,001 characters, ")
    assert max(len(bounded.id), len(bounded.name)) < 200
    assert bounded.agent_id == long.agent_id
    assert bounded_call(other).id != bounded.id, "another call"
    assert bounded_call(long) == bounded
    half = bounded_call(ToolCall("a\ud800", "b\udfff", {}, agent_id="\ud800", turn_id="\ud800" * 400))
    assert (half.id, half.name, half.agent_id) == ("a\\ud800", "b\\udfff", "\\ud800")
    for label in (half.id, half.name, half.agent_id, half.turn_id):
        label.encode()
        assert len(label) <= MAX_LABEL_CHARS


# ---- a call as a program makes it


def test_a_call_gets_an_id_and_no_arguments_unless_they_are_given() -> None:
    one, two = make_call("read", origin="program"), make_call("read", origin="program")
    assert (one.name, one.arguments, one.origin) == ("read", {}, "program")
    assert one.id
    assert one.id != two.id
    given = make_call("read", {"x": 1}, origin="person", call_id="mine")
    assert (given.id, given.arguments, given.origin) == ("mine", {"x": 1}, "person")
    odd: Any = make_call("read", ["no", "object"], origin="model").arguments
    assert odd == ["no", "object"], "what a model could get wrong is the gate's to refuse"


def test_mistakes_of_the_program_in_a_call_are_raised() -> None:
    with pytest.raises(TypeError, match="name of a tool is text, not int"):
        make_call(7, origin="program")
    with pytest.raises(ValueError, match="origin='nobody': use one of"):
        make_call("read", origin="nobody")
    with pytest.raises(TypeError, match="id is text, not int"):
        make_call("read", origin="program", call_id=7)


@pytest.mark.parametrize("timeout_s", [0, -1, True, "5", float("nan"), float("inf")])
def test_deadline_that_is_none_is_refused(timeout_s: object) -> None:
    if timeout_s == float("inf"):
        check_deadline(timeout_s)
        return
    with pytest.raises(ValueError, match=r"timeout_s=.*: use a number of seconds above 0"):
        check_deadline(timeout_s)
