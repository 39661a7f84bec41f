"""Rewriting one JSON Schema: every decision, and what the log says about it."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

from aisotools.core.types import ToolDefinition
from aisotools.tools.export import PROVIDERS, Provider, export_tools
from aisotools.tools.json_schema import (
    ChangeLog,
    GeminiConverter,
    append_description,
    as_schema,
    describe_keyword,
    flatten_root,
    inline_references,
    merge_all_of,
    move_to_description,
    resolve_reference,
    split_null,
    strict_violation,
    subschemas,
    to_strict,
)

TEXT = {"type": "string"}
NUMBER = {"type": "number"}


def strict_object(**properties: Any) -> dict[str, Any]:
    """An object that fits strict mode if its properties do."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def actions(log: ChangeLog) -> list[tuple[str, str]]:
    return [(change.path, change.action) for change in log.changes]


def gemini(schema: dict[str, Any], *spot: str) -> tuple[dict[str, Any], ChangeLog, GeminiConverter]:
    log = ChangeLog()
    converter = GeminiConverter(log)
    return converter.convert(schema, "parameters", spot), log, converter


# -- the parts


def test_a_change_is_logged_once_and_reads_as_a_sentence() -> None:
    log = ChangeLog()
    log.add("parameters.n", "weakened", "minimum: moved", "a rule")
    log.add("parameters.n", "weakened", "minimum: moved", "a rule")
    assert [str(change) for change in log.changes] == ["parameters.n: minimum: moved (weakened: a rule)"]
    assert repr(log) == "<ChangeLog of 1 changes>"


def test_as_schema_copies_and_reads_booleans() -> None:
    original = {"items": {"type": "string"}}
    copy = as_schema(original)
    copy["items"]["type"] = "number"
    assert original == {"items": {"type": "string"}}
    assert (as_schema(True), as_schema(False), as_schema("x")) == ({}, {"not": {}}, {})


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("#/$defs/a", TEXT),
        ("#/$defs/with~1slash", NUMBER),
        ("#/$defs/with~0tilde", NUMBER),
        ("#/$defs/missing", None),
        ("#/$defs/a/type", None),
        ("other.json#/$defs/a", None),
        (5, None),
    ],
)
def test_references_resolve_inside_the_schema_only(reference: object, target: object) -> None:
    root = {"$defs": {"a": TEXT, "with/slash": NUMBER, "with~tilde": NUMBER}}
    assert resolve_reference(root, reference) == target


def test_the_reference_to_the_root_is_the_root() -> None:
    root = {"type": "object"}
    assert resolve_reference(root, "#") is root


def test_references_are_replaced_by_their_targets_and_definitions_removed() -> None:
    log = ChangeLog()
    root = {
        "$defs": {"a": {**TEXT, "title": "A"}},
        "definitions": {},
        "properties": {"one": {"$ref": "#/$defs/a", "description": "One."}},
        "default": {"$ref": "#/$defs/a"},
    }
    assert inline_references(root, log, "a rule") == {
        "properties": {"one": {**TEXT, "title": "A", "description": "One."}},
        "default": {"$ref": "#/$defs/a"},  # a value, not a schema
    }
    assert log.changes == []


def test_a_dangling_reference_is_dropped_with_a_note() -> None:
    log = ChangeLog()
    assert inline_references({"properties": {"a": {"$ref": "#/no", "title": "A"}}}, log, "a rule") == {
        "properties": {"a": {"title": "A"}}
    }
    assert actions(log) == [("parameters.a", "dropped")]
    assert 'the reference to "#/no"' in log.changes[0].what


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_recursive_schema_is_repeated_as_often_as_asked(rounds: int) -> None:
    log = ChangeLog()
    tree = {"type": "object", "description": "A tree.", "properties": {"child": {"$ref": "#/$defs/tree"}}}
    schema: Any = inline_references(
        {"$defs": {"tree": tree}, "$ref": "#/$defs/tree"}, log, "a rule", rounds=rounds
    )
    depth = 0
    while "properties" in schema:
        schema = schema["properties"]["child"]
        depth += 1
    assert depth == rounds + 1
    assert schema == {"type": "object", "description": "A tree. Nested as above."}
    assert {change.action for change in log.changes} == {"weakened"}


def test_all_of_is_merged_and_says_whether_anything_was_lost() -> None:
    log = ChangeLog()
    merged = merge_all_of(
        {
            "allOf": [
                {"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
                {"properties": {"b": NUMBER}, "required": ["a", "b"]},
            ]
        },
        "parameters",
        log,
        "a rule",
    )
    assert merged["properties"] == {"a": TEXT, "b": NUMBER}
    assert merged["required"] == ["a", "b"]
    assert actions(log) == [("parameters", "changed")]


def test_all_of_whose_parts_disagree_is_weakened_and_the_outer_keyword_counts() -> None:
    log = ChangeLog()
    merged = merge_all_of(
        {"minimum": 5, "allOf": [{"minimum": 1}, {"maximum": 9}]}, "parameters.n", log, "a rule"
    )
    assert merged == {"minimum": 5, "maximum": 9}
    assert actions(log) == [("parameters.n", "weakened")]


def test_the_keywords_beside_a_single_part_replace_its_own() -> None:
    # pydantic writes `allOf: [{"$ref": ...}]` with keywords beside it that are meant to win.
    log = ChangeLog()
    schema = {"default": 5, "allOf": [{"type": "integer", "default": 1}]}
    assert merge_all_of(schema, "parameters.n", log, "a rule") == {"type": "integer", "default": 5}
    assert actions(log) == [("parameters.n", "changed")]


def test_without_all_of_nothing_is_logged() -> None:
    log = ChangeLog()
    assert merge_all_of({**TEXT, "allOf": "broken"}, "parameters", log, "a rule") == TEXT
    assert log.changes == []


def test_alternatives_at_the_root_become_one_object() -> None:
    log = ChangeLog()
    schema = flatten_root(
        {
            "anyOf": [
                {"properties": {"a": TEXT, "same": TEXT}, "required": ["a", "same"]},
                {"properties": {"a": NUMBER, "same": TEXT, "b": TEXT}, "required": ["a", "b"]},
            ],
            "not": {},
        },
        log,
        "a rule",
    )
    assert schema == {
        "type": "object",
        "properties": {"a": {"anyOf": [TEXT, NUMBER]}, "same": TEXT, "b": TEXT},
        "required": ["a"],
    }
    assert actions(log) == [("parameters", "weakened"), ("parameters", "dropped")]


def test_a_root_without_alternatives_is_an_object() -> None:
    log = ChangeLog()
    assert flatten_root({}, log, "a rule") == {"type": "object", "properties": {}}
    assert log.changes == []


@pytest.mark.parametrize(
    ("schema", "rest", "found"),
    [
        (TEXT, TEXT, False),
        ({"type": ["string", "null"]}, TEXT, True),
        ({"type": ["string", "number", "null"]}, {"type": ["string", "number"]}, True),
        ({"anyOf": [TEXT, {"type": "null"}], "title": "A"}, {**TEXT, "title": "A"}, True),
        ({"oneOf": [TEXT, NUMBER, {"type": "null"}]}, {"oneOf": [TEXT, NUMBER]}, True),
        ({"anyOf": [TEXT, NUMBER]}, {"anyOf": [TEXT, NUMBER]}, False),
        ({"anyOf": [{"type": "null"}]}, {}, True),
    ],
)
def test_null_is_split_off(schema: dict[str, Any], rest: dict[str, Any], found: bool) -> None:
    assert split_null(schema) == (rest, found)


@pytest.mark.parametrize(
    ("description", "expected"),
    [(None, "More."), ("A width", "A width. More."), ("Why?", "Why? More."), ("Done.", "Done. More.")],
)
def test_sentences_are_appended_to_a_description(description: str | None, expected: str) -> None:
    assert append_description({"description": description}, "More.")["description"] == expected


@pytest.mark.parametrize(
    ("keyword", "value", "sentence"),
    [
        ("minimum", 3, "At least 3."),
        ("pattern", "^a$", "Matches the regular expression ^a$."),
        ("default", "x", 'Default: "x".'),
        ("enum", [1, "a"], 'One of 1, "a".'),
        ("uniqueItems", True, "No item twice."),
        ("uniqueItems", False, ""),
        ("title", "A", ""),
    ],
)
def test_a_keyword_becomes_a_sentence(keyword: str, value: Any, sentence: str) -> None:
    assert describe_keyword(keyword, value) == sentence


def test_long_values_are_cut() -> None:
    assert describe_keyword("default", "x" * 1000) == 'Default: "' + "x" * 299 + "…."


def test_keywords_move_to_the_description_or_are_dropped() -> None:
    log = ChangeLog()
    schema = {"type": "integer", "minimum": 3, "title": "N", "multipleOf": 2}
    rest = move_to_description(schema, {"minimum", "title", "multipleOf"}, "parameters.n", log, "a rule")
    assert rest == {"type": "integer", "description": "At least 3. A multiple of 2."}
    assert [(change.what, change.action) for change in log.changes] == [
        ("minimum: moved to the description", "weakened"),
        ("title: left out", "dropped"),
        ("multipleOf: moved to the description", "weakened"),
    ]


def test_subschemas_are_those_directly_inside() -> None:
    inner = {"properties": {"deep": TEXT}}
    schema = {
        "properties": {"a": inner},
        "$defs": {"b": TEXT},
        "items": NUMBER,
        "anyOf": [TEXT],
        "enum": [inner],
    }
    assert list(subschemas(schema)) == [inner, TEXT, NUMBER, TEXT]


# -- OpenAI's strict mode


def test_a_schema_that_fits_has_no_violation() -> None:
    assert strict_violation(strict_object(a=TEXT, b={"type": ["number", "null"]}, c={"enum": [1]})) == ""


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"anyOf": [TEXT]}, "there are alternatives at the top"),
        (strict_object(a=True), "parameters.a allows anything"),
        (strict_object(a={}), "parameters.a allows anything"),
        (strict_object(a={**TEXT, "minLength": 1}), "parameters.a uses minLength"),
        (
            strict_object(a={"$ref": "#/$defs/x", "title": "A"}),
            "parameters.a has keywords beside a reference",
        ),
        (strict_object(a={"type": "file"}), "parameters.a has the type 'file'"),
        (strict_object(a={**TEXT, "format": "uri"}), "parameters.a uses the format 'uri'"),
        (strict_object(a={"type": "array"}), "parameters.a is a list of anything"),
        (strict_object(a={"type": "array", "items": {}}), "parameters.a allows anything"),
        ({"type": "object", "properties": {}}, "parameters is an object of any names"),
        ({**strict_object(a=TEXT), "required": []}, "parameters.a is optional"),
        ({**strict_object(a=TEXT), "$defs": {"x": {}}}, "parameters.x allows anything"),
    ],
)
def test_keywords_outside_strict_mode_are_named(schema: dict[str, Any], reason: str) -> None:
    assert strict_violation(schema) == reason


def nested(levels: int) -> dict[str, Any]:
    schema = strict_object(leaf=TEXT)
    for _ in range(levels - 1):
        schema = strict_object(inner=schema)
    return schema


@pytest.mark.parametrize(
    ("fits", "exceeds", "reason"),
    [
        (nested(10), nested(11), "objects nested deeper than 10"),
        (
            strict_object(a={"enum": list(range(1000))}),
            strict_object(a={"enum": list(range(1001))}),
            "more than 1,000 listed values",
        ),
        (
            strict_object(**{f"p{n}": TEXT for n in range(5000)}),
            strict_object(**{f"p{n}": TEXT for n in range(5001)}),
            "more than 5,000 properties",
        ),
        (
            strict_object(a={"const": "x" * 119_999}),
            strict_object(a={"const": "x" * 120_000}),
            "more than 120,000 characters of names and values",
        ),
        (
            strict_object(a={"enum": ["x" * 60] * 250}),
            strict_object(a={"enum": ["x" * 60] * 251}),
            "a list of over 250 values has more than 15,000 characters",
        ),
    ],
    ids=["levels", "values", "properties", "characters", "long enum"],
)
def test_the_published_limits_hold_exactly(
    fits: dict[str, Any], exceeds: dict[str, Any], reason: str
) -> None:
    assert strict_violation(fits) == ""
    assert strict_violation(exceeds) == reason


def test_optional_becomes_nullable_and_its_path_is_returned() -> None:
    log = ChangeLog()
    item = {"type": "object", "properties": {"b": TEXT}}
    schema = {"type": "object", "properties": {"a": TEXT, "list": {"type": "array", "items": item}}}
    converted = to_strict(schema, log)
    assert not isinstance(converted, str)
    strict, optional = converted
    assert strict["required"] == ["a", "list"]
    assert strict["additionalProperties"] is False
    assert strict["properties"]["a"] == {"anyOf": [TEXT, {"type": "null"}]}
    assert sorted(optional) == [("a",), ("list",), ("list", "*", "b")]
    assert ("parameters.a", "changed") in actions(log)


def test_a_nullable_property_is_not_made_optional_by_null() -> None:
    schema = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}}
    converted = to_strict(schema, ChangeLog())
    assert not isinstance(converted, str)
    assert converted[1] == ()


def test_unsupported_keywords_move_and_one_of_becomes_any_of() -> None:
    log = ChangeLog()
    value = {"oneOf": [{**TEXT, "minLength": 2}, NUMBER], "discriminator": {"propertyName": "x"}}
    converted = to_strict(strict_object(a=value), log)
    assert not isinstance(converted, str)
    assert converted[0]["properties"]["a"] == {
        "anyOf": [{**TEXT, "description": "At least 2 characters."}, NUMBER]
    }
    assert ("parameters.a", "weakened") in actions(log)


def test_a_reference_with_keywords_beside_it_becomes_a_copy() -> None:
    schema = {
        **strict_object(a={"$ref": "#/$defs/x", "description": "An x."}),
        "$defs": {"x": {**TEXT, "description": "Any x."}},
    }
    converted = to_strict(schema, ChangeLog())
    assert not isinstance(converted, str)
    assert converted[0]["properties"]["a"] == {**TEXT, "description": "An x."}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT},
        strict_object(a={"type": "array", "prefixItems": [TEXT]}),
        # Optional inside a definition: the place in the arguments is unknown.
        {
            **strict_object(a={"$ref": "#/$defs/x"}),
            "$defs": {"x": {"type": "object", "properties": {"y": TEXT}}},
        },
        # Optional inside one of several alternatives.
        strict_object(a={"anyOf": [{"type": "object", "properties": {"y": TEXT}}, TEXT]}),
    ],
    ids=["any names", "tuple", "in a definition", "in an alternative"],
)
def test_a_schema_that_cannot_become_strict_is_a_reason_and_logs_nothing(schema: dict[str, Any]) -> None:
    log = ChangeLog()
    assert isinstance(to_strict(schema, log), str)
    assert log.changes == []


# -- Gemini


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (TEXT, TEXT),
        ({"type": ["string", "null"]}, {**TEXT, "nullable": True}),
        ({"type": ["string", "number"]}, {"anyOf": [TEXT, NUMBER]}),
        ({"oneOf": [TEXT, NUMBER]}, {"anyOf": [TEXT, NUMBER]}),
        ({"const": "a"}, {**TEXT, "enum": ["a"]}),
        ({"enum": [3, 1]}, {"type": "integer", "minimum": 1, "maximum": 3, "description": "One of 3, 1."}),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "exclusiveMaximum": 9}, {"type": "integer", "maximum": 8}),
        ({"type": "number", "exclusiveMinimum": 0}, {**NUMBER, "description": "More than 0."}),
        ({**TEXT, "format": "date-time"}, {**TEXT, "format": "date-time"}),
        ({**TEXT, "format": "uri"}, {**TEXT, "description": "In the format uri."}),
        ({**TEXT, "default": "x"}, {**TEXT, "description": 'Default: "x".'}),
        ({"items": TEXT}, {"type": "array", "items": TEXT}),
        ({"properties": {"a": TEXT}}, {"type": "object", "properties": {"a": TEXT}}),
        (
            {"type": "array", "prefixItems": [TEXT, NUMBER, TEXT]},
            {"type": "array", "items": {"anyOf": [TEXT, NUMBER]}, "minItems": 3, "maxItems": 3},
        ),
        (
            {"type": "array", "prefixItems": [TEXT], "items": TEXT},
            {"type": "array", "items": TEXT, "minItems": 1},
        ),
        (
            {
                "type": "object",
                "properties": {"a": TEXT},
                "required": ["b"],
                "additionalProperties": False,
            },
            {"type": "object", "properties": {"a": TEXT}},
        ),
    ],
)
def test_gemini_gets_what_it_supports(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    assert gemini(schema, "a")[0] == expected


def test_any_value_becomes_three_types_and_says_so() -> None:
    converted, log, _ = gemini({})
    assert converted == {"anyOf": [TEXT, NUMBER, {"type": "boolean"}]}
    assert actions(log) == [("parameters", "weakened")]


def test_an_object_of_any_names_becomes_text_that_is_parsed_back() -> None:
    schema = {"type": "object", "additionalProperties": NUMBER, "minProperties": 1}
    converted, log, converter = gemini(schema, "a")
    assert converted["type"] == "string"
    assert converted["description"] == "At least 1 entries. A JSON object, written as text."
    assert converter.as_text == [("a",)]
    assert ("parameters", "changed") in actions(log)


def test_beside_a_text_an_object_of_any_names_stays_text() -> None:
    _, log, converter = gemini({"anyOf": [{"type": "object"}, TEXT]}, "a")
    assert converter.as_text == []
    assert ("parameters", "weakened") in actions(log)


def test_beside_other_types_an_object_of_any_names_is_parsed_back() -> None:
    _, _, converter = gemini({"anyOf": [{"type": "object"}, NUMBER]}, "a")
    assert converter.as_text == [("a",)]


def test_the_root_object_stays_an_object() -> None:
    converted, _, converter = gemini({"type": "object", "properties": {}})
    assert converted == {"type": "object", "properties": {}}
    assert converter.as_text == []


def test_the_paths_of_objects_inside_lists_have_a_star() -> None:
    _, _, converter = gemini(
        {"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object"}}}}
    )
    assert converter.as_text == [("list", "*")]


def test_additional_properties_beside_named_ones_are_dropped_with_a_note() -> None:
    _, log, _ = gemini({"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT})
    assert actions(log) == [("parameters", "dropped")]


# ---- hostile schemas


def fan(keyword: str) -> dict[str, Any]:
    """Each definition names the next one twice: spelled out, that is 2 ** 40."""

    def next_two(number: int) -> dict[str, Any]:
        one = {"$ref": f"#/$defs/d{number}"}
        return {"properties": {"a": one, "b": one}} if keyword == "properties" else {keyword: [one, one]}

    defs = {f"d{number}": next_two(number + 1) for number in range(40)} | {"d40": {"type": "string"}}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs}


@pytest.mark.parametrize("keyword", ["properties", "allOf", "anyOf", "oneOf", "prefixItems"])
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("at_root", [False, True])
def test_a_fan_of_references_is_exported_in_bounded_time(
    keyword: str, provider: Provider, at_root: bool
) -> None:
    schema = fan(keyword)
    if at_root:
        schema["$ref"] = "#/$defs/d0"
    started_s = time.process_time()
    (export,) = export_tools([(ToolDefinition("t", "d", schema), None)], provider, strict=True)
    assert time.process_time() - started_s < 10
    assert len(str(export)) < 4_000_000


def test_a_wide_schema_is_exported_in_bounded_time() -> None:
    wide: dict[str, Any] = {"type": "object"}
    for _ in range(30):
        wide = {"type": "object", "properties": {"n": wide, **{f"p{n}": {"default": n} for n in range(200)}}}
    started_s = time.process_time()
    for provider in PROVIDERS:
        export_tools([(ToolDefinition("t", "d", wide), None)], provider, strict=True)
    assert time.process_time() - started_s < 20  # with a copy at each level: minutes


def test_a_given_schema_is_not_changed() -> None:
    schema = fan("anyOf") | {"definitions": {"old": {"properties": {"x": {"const": 1}}}}}
    before = copy.deepcopy(schema)
    for provider in PROVIDERS:
        for strict in (None, True, False):
            export_tools([(ToolDefinition("t", "d", schema), None)], provider, strict=strict)
    assert schema == before
