"""Spans of requests: quoted text, files, numbers and others, names and folders."""

from __future__ import annotations

import pytest

from aisotools.agent.models.spans import MAX_REQUEST_CHARS, folders_in, names_in, spans_of


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
    assert spans_of(" " * MAX_REQUEST_CHARS + "a.txt") == ()


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
