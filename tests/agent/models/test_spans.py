"""Pieces of requests, words and their ranking, and the intents of tools."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from aisotools.agent.models.spans import (
    MOST_CHARS,
    Bm25,
    Slot,
    folders_in,
    intents_of,
    names_in,
    spans_of,
    stem,
    terms,
    words,
)
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


def test_words_come_apart_at_underscores_and_capitals() -> None:
    assert words("read_file readFile it's 3") == ["read", "file", "read", "file", "it's", "3"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [("files", "fil"), ("copies", "copy"), ("adding", "add"), ("red", "red"), ("is", "is")],
)
def test_stem(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_terms_leave_out_stop_words_and_join_synonyms() -> None:
    assert terms("please erase the folder") == terms("delete a directory")
    assert terms("the of and") == []
    assert terms("how much") == terms("compute")


def test_bm25_scores_only_what_matches_and_rare_terms_higher() -> None:
    ranking = Bm25([["file", "read"], ["file", "write"], ["dice"]])
    assert ranking.scores(["nothing"]) == [0.0, 0.0, 0.0]
    read, write, dice = ranking.scores(["file", "read"])
    assert read > write > dice == 0.0
    assert ranking.scores(["dice"])[2] > ranking.scores(["file"])[0]


def test_bm25_counts_a_repeated_term_of_the_request_once() -> None:
    ranking = Bm25([["file"], ["dice"]])
    assert ranking.scores(["file", "file"]) == ranking.scores(["file"])


def test_bm25_of_no_documents_has_no_scores() -> None:
    assert Bm25([]).scores(["file"]) == []


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("Open https://example.org/a?b=1.", [("url", "https://example.org/a?b=1")]),
        ("Since 2024-05-01", [("date", "2024-05-01")]),
        ("List src/*.py", [("glob", "src/*.py")]),
        ("Read data/a.csv and notes.txt.", [("file", "data/a.csv"), ("file", "notes.txt")]),
        ("Roll 3 dice of -2.5", [("number", "3"), ("number", "-2.5")]),
        ("What is (2 + 3) * 4?", [("expression", "(2 + 3) * 4")]),
        ("Say nothing", []),
    ],
)
def test_spans(request_text: str, expected: list[tuple[str, str]]) -> None:
    assert [(span.kind, span.text) for span in spans_of(request_text)] == expected


@pytest.mark.parametrize("quoted", ['"a.txt"', "`a.txt`", "'a.txt'", "\u201ca.txt\u201d"])
def test_quoted_span_tells_its_look_and_place(quoted: str) -> None:
    (span,) = spans_of(f"Read {quoted} now")
    assert (span.kind, span.text, span.within) == ("quoted", "a.txt", "file")
    assert (span.start, span.end) == (5, 5 + len(quoted))


def test_nothing_is_found_inside_quotes_or_behind_the_limit() -> None:
    assert [span.kind for span in spans_of('Write "7 and b.txt"')] == ["quoted"]
    assert spans_of(" " * MOST_CHARS + "a.txt") == ()


def test_apostrophe_begins_no_quotation() -> None:
    assert spans_of("What's in Tom's bag?") == ()


def test_names_have_a_capital_that_begins_no_sentence() -> None:
    assert names_in("Where does Ada Lovelace live? Ask Bob. I am") == ["Ada Lovelace", "Bob"]
    assert names_in("Show France") == ["France"]


def test_folders_are_named_by_where_they_stand() -> None:
    assert folders_in("List the data folder") == ["data"]
    assert folders_in("Make a directory called out/new.") == ["out/new"]
    assert folders_in("What is in src?") == ["src"]


def test_stop_words_numbers_and_quoted_words_are_no_folders() -> None:
    assert folders_in("Search in the workspace") == []
    assert folders_in("It was in 2024") == []
    assert folders_in('Write "hello in data"') == []


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
    assert (slot.whole, slot.shown, slot.about) == (True, True, ("count", "how", "many", "dice"))
    assert not slot_of("count", {"type": "number"}).shown


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
