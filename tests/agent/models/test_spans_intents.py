"""Intents of tools, and the kinds of their arguments."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from aisotools.agent.models.spans import Slot, intents_of
from aisotools.core.types import Json, ToolDefinition


def definition(
    properties: Mapping[str, Json],
    *examples: tuple[Mapping[str, Json], str],
    required: tuple[str, ...] = (),
    defs: Mapping[str, Json] | None = None,
) -> ToolDefinition:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "$defs": defs or {},
    }
    return ToolDefinition("do_thing", "Do a thing. Then stop.", parameters, examples=examples)


def slot_of(name: str, schema: Json, *examples: Json, defs: Mapping[str, Json] | None = None) -> Slot:
    tool = definition({name: schema}, *(({name: value}, "An example") for value in examples), defs=defs)
    return intents_of([tool])[0].slots[0]


OPERATIONS = {"operation": {"enum": ["read", "write", "list"]}, "path": {}, "content": {}, "unused": {}}


def test_tool_of_several_operations_has_an_intent_for_each() -> None:
    tool = definition(
        OPERATIONS,
        ({"operation": "read", "path": "a.txt"}, "Read a.txt"),
        ({"operation": "write", "path": "a.txt", "content": "x"}, "Write x to a.txt"),
        ({"operation": "read", "path": "b.txt"}, "Show b.txt"),
        required=("operation",),
    )
    read, write = intents_of([tool])
    assert (read.label, read.name, dict(read.fixed)) == ("read", "do_thing read", {"operation": "read"})
    assert read.phrases == ["Read a.txt", "Show b.txt"]
    assert [(slot.name, slot.required) for slot in read.slots] == [("path", True)]
    assert [(slot.name, slot.required) for slot in write.slots] == [("path", True), ("content", True)]


@pytest.mark.parametrize(
    ("values", "examples"),
    [
        (["read", "write"], [{"operation": "read"}, {"operation": "write", "path": "a"}]),
        (["read", "write", "list"], [{"operation": "read"}, {"operation": "write"}]),
        (["read", "write", "list"], [{"operation": "read"}, {"path": "a"}]),
    ],
    ids=["too few operations", "same arguments for all", "an example without operation"],
)
def test_tool_without_operations_is_one_intent(values: list[str], examples: list[dict[str, Json]]) -> None:
    tool = definition(
        {"operation": {"enum": values}, "path": {}}, *((arguments, "Do it") for arguments in examples)
    )
    (intent,) = intents_of([tool])
    assert (intent.label, dict(intent.fixed), intent.needs_any) == ("thing", {}, False)


def test_operation_without_a_common_argument_needs_any() -> None:
    tool = definition(
        OPERATIONS,
        ({"operation": "list", "path": "a"}, "List a"),
        ({"operation": "list", "content": "b"}, "List b"),
        ({"operation": "read", "path": "a"}, "Read a"),
    )
    listing, reading = intents_of([tool])
    assert listing.needs_any
    assert not reading.needs_any


def test_intent_without_examples_is_phrased_by_its_description() -> None:
    assert intents_of([definition({})])[0].phrases == ["Do a thing"]


@pytest.mark.parametrize(
    ("name", "schema", "values", "kind"),
    [
        ("x", {"enum": ["a", "b"]}, [], "choice"),
        ("x", {"type": "boolean"}, [], "flag"),
        ("x", {"type": "number"}, [], "number"),
        ("x", {"type": "array"}, [], "json"),
        ("shell_command", {"type": "string"}, [], "code"),
        ("glob", {}, [], "glob"),
        ("link", {}, [], "url"),
        ("x", {"format": "uri"}, [], "url"),
        ("x", {}, ["https://a.example"], "url"),
        ("x", {}, ["2024-01-01"], "date"),
        ("x", {"description": "A day as YYYY-MM-DD"}, [], "date"),
        ("x", {}, ["a.txt"], "path"),
        ("folder", {}, [], "path"),
        ("content", {}, [], "text"),
        ("city", {}, ["Paris"], "phrase"),
    ],
)
def test_kind_of_a_slot(name: str, schema: Json, values: list[Json], kind: str) -> None:
    assert slot_of(name, schema, *values).kind == kind


def test_constant_is_the_only_choice() -> None:
    assert slot_of("x", {"const": 3}).choices == (3,)


def test_slot_knows_whole_numbers_words_and_examples() -> None:
    slot = slot_of("count", {"type": "integer", "description": "How many dice. At most ten."}, 3)
    assert (slot.integer, slot.in_examples, slot.words) == (True, True, ("count", "how", "many", "dice"))
    assert not slot_of("count", {"type": "number"}).in_examples


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"$ref": "#/$defs/Size"}, "number"),
        ({"$ref": "#/$defs/Unknown"}, "phrase"),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, "flag"),
        ({"anyOf": [{"type": "array"}, {"type": "number"}]}, "number"),
        ({"anyOf": [{"type": "array"}, {"type": "boolean"}]}, "json"),
        ({"type": ["null", "integer"]}, "number"),
        (True, "phrase"),
    ],
)
def test_references_and_alternatives_of_schemas(schema: Json, kind: str) -> None:
    assert slot_of("x", schema, defs={"Size": {"type": "integer"}}).kind == kind
