"""Arguments of calls, copied from requests."""

from __future__ import annotations

import pytest

from aisotools.agent.models.filling import Filler, content_in, glob_in, lines_in, number_in_words, pattern_in
from aisotools.agent.models.spans import Intent, Slot, SlotKind, spans_of
from aisotools.core.types import Json, ToolDefinition

TOOL = ToolDefinition("thing", "Do a thing.", {"type": "object"})


def intent(*slots: Slot, needs_any: bool = False) -> Intent:
    return Intent(tool=TOOL, label="thing", fixed={"operation": "x"}, slots=slots, needs_any=needs_any)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("lines 2 to 5", (2, 5)),
        ("the first three lines", (None, 3)),
        ("the first few lines", None),
        ("the first line", (None, 1)),
        ("from line 4", (4, None)),
        ("up to line 4", (None, 4)),
        ("line 7", (7, 7)),
        ("all of it", None),
    ],
)
def test_lines(text: str, lines: tuple[int | None, int | None] | None) -> None:
    assert lines_in(text) == lines


@pytest.mark.parametrize(
    ("text", "glob"),
    [("CSV files", "*.csv"), ("python scripts", "*.py"), ("names ending in .log", "*.log"), ("files", None)],
)
def test_glob(text: str, glob: str | None) -> None:
    assert glob_in(text) == glob


def test_number_in_words() -> None:
    assert number_in_words("Roll two dice") == 2
    assert number_in_words("Roll dice") is None


def test_quoted_text_is_content_and_pattern_unless_it_is_a_file() -> None:
    text = 'Put "a.txt" and "hello"'
    assert content_in(text, spans_of(text), ["a.txt"]) == "hello"
    assert pattern_in(text, spans_of(text), ["a.txt"]) == "hello"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("url", "Open https://a.example/x", "https://a.example/x"),
        ("path", "Read a.txt", "a.txt"),
        ("number", "Roll 3", 3),
        ("date", "Since 2024-05-01", "2024-05-01"),
    ],
)
def test_argument_takes_what_looks_like_it(kind: SlotKind, text: str, value: Json) -> None:
    filled = Filler(intent(Slot(name="x", kind=kind, required=True)), text).fill()
    assert (filled.arguments, filled.missing, filled.unused) == ({"operation": "x", "x": value}, (), ())


def test_required_arguments_that_are_not_found_are_missing() -> None:
    required = Slot(name="x", kind="url", required=True)
    optional = Slot(name="y", kind="url", required=False)
    assert Filler(intent(required, optional), "Open it").fill().missing == ("x",)
    assert Filler(intent(optional), "Open it").fill().complete
    assert not Filler(intent(optional, needs_any=True), "Open it").fill().complete
