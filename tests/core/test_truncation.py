"""What is left of a text that is too long: head, tail, and exact counts of what lies between."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisotools.core.truncation import clean, excerpt, looks_binary

NOTE = re.compile(
    r"\[(\d+) of (\d+) characters left out here: (?:of one line|lines (\d+) to (\d+) of (\d+))\]\n"
)
texts = st.text(alphabet="ab\n", max_size=400) | st.text(max_size=200)


@given(texts, st.integers(-5, 420), st.none() | st.integers(1, 30))
def test_counts_are_exact_and_nothing_is_lost_without_a_mark(
    text: str, most_chars: int, most_lines: int | None
) -> None:
    part = excerpt(text, most_chars, most_lines)
    lines = len(text.split("\n")) - (text.endswith("\n") or not text)
    if part is None:
        assert len(text) <= max(most_chars, 0)
        assert most_lines is None or lines <= most_lines
        return
    assert len(part.text) <= max(most_chars, 0)
    assert part.total_chars == len(text)
    if not part.note:
        assert part.text == text[: max(most_chars, 0)]
        return
    found = NOTE.search(part.text)
    assert found is not None
    head, tail = part.text[: found.start()], part.text[found.end() :]
    if not text.startswith(head):  # the line feed before the note is ours
        head = head[:-1]
    left_out = int(found[1])
    kept = part.shown_chars
    assert left_out + kept == len(text) == int(found[2])
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) in {kept, kept + 1}
    if found[3]:
        gap = text[kept - len(tail) : len(text) - len(tail)]
        first = text[: kept - len(tail)].count("\n") + 1
        assert int(found[3]) == first
        assert int(found[5]) == lines
        assert int(found[4]) == first + gap.removesuffix("\n").count("\n") or len(gap) == 0
    if most_lines is not None:
        assert len(head.split("\n")) + len(tail.split("\n")) <= most_lines + 3


def test_the_true_tail_is_kept_and_the_gap_is_told() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 1001))
    part = excerpt(text, 10_000, 30, "; more")
    assert part is not None
    shown = part.text.split("\n")
    assert shown[:20] == [f"line {n}" for n in range(1, 21)]
    assert shown[20].endswith(" characters left out here: lines 21 to 990 of 1000; more]")
    assert shown[21:] == [*(f"line {n}" for n in range(991, 1001)), ""]


def test_one_endless_line() -> None:
    part = excerpt("x" * 10_000_000 + "end", 1000)
    assert part is not None
    assert part.text.endswith("end")
    assert "of one line]" in part.note
    assert len(part.text) <= 1000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07ok \x1b]8;;http://x\x1b\\link", "ok link"),
        ("50%\r100%\r\ndone", "50%\n100%\ndone"),
        ("a\0b\x07c\x7fd\x9be", "abcde"),
        ("\x1b(Bx\x1b7y\x1b", "xy"),
        ("\x1bP1$tq\x1b\\z", "z"),
    ],
)
def test_terminal_escapes_and_controls_are_stripped(text: str, shown: str) -> None:
    assert clean(text) == shown


@given(st.text())
def test_nothing_that_drives_a_terminal_is_left(text: str) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", clean(text))
    assert clean(clean(text)) == clean(text)


def test_binary_is_told_from_text() -> None:
    assert looks_binary(bytes(range(256)).decode("utf-8", "replace"))
    assert looks_binary("\0" * 50)
    assert not looks_binary("")
    assert not looks_binary("text with one \0 in it, as `tr` may print")
    assert not looks_binary("\x1b[31mcolour\x1b[0m\r\n" * 20)
