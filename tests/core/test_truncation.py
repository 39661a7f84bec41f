"""Truncated texts: head, tail, and exact counts of what lies between."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import example, given, strategies as st

from aisotools.core.truncation import (
    HeadTailBuffer,
    looks_binary,
    strip_controls,
    summarize_names,
    truncate_text,
)

NOTE = re.compile(
    r"\[(\d+) of (\d+) characters left out here: (?:of one line|lines (\d+) to (\d+) of (\d+))\]\n"
)
texts = st.text(alphabet="ab\n", max_size=400) | st.text(max_size=200)


@given(texts, st.integers(-5, 420), st.none() | st.integers(1, 30))
@example("\n\n\naa", 57, 3)
def test_counts_are_exact_and_nothing_is_lost_without_a_mark(
    text: str, most_chars: int, most_lines: int | None
) -> None:
    part = truncate_text(text, most_chars, most_lines)
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
    shown = part.shown_chars
    assert left_out + shown == len(text) == int(found[2])
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) in {shown, shown + 1}
    if found[3]:
        gap = text[shown - len(tail) : len(text) - len(tail)]
        first = text[: shown - len(tail)].count("\n") + 1
        assert int(found[3]) == first
        assert int(found[5]) == lines
        assert int(found[4]) == first + gap.removesuffix("\n").count("\n") or len(gap) == 0
    if most_lines is not None:
        assert len(head.split("\n")) + len(tail.split("\n")) <= most_lines + 3


def test_true_tail_is_kept_and_the_gap_is_noted() -> None:
    text = "".join(f"line {n}\n" for n in range(1, 1001))
    part = truncate_text(text, 10_000, 30, "; more")
    assert part is not None
    shown = part.text.split("\n")
    assert shown[:20] == [f"line {n}" for n in range(1, 21)]
    assert shown[20].endswith(" characters left out here: lines 21 to 990 of 1000; more]")
    assert shown[21:] == [*(f"line {n}" for n in range(991, 1001)), ""]


def test_one_endless_line() -> None:
    part = truncate_text("x" * 10_000_000 + "end", 1000)
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
    assert strip_controls(text) == shown


@given(st.text())
def test_nothing_that_drives_a_terminal_is_left(text: str) -> None:
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", strip_controls(text))
    assert strip_controls(strip_controls(text)) == strip_controls(text)


def test_binary_is_distinguished_from_text() -> None:
    assert looks_binary(bytes(range(256)).decode("utf-8", "replace"))
    assert looks_binary("\0" * 50)
    assert not looks_binary("")
    assert not looks_binary("text with one \0 in it, as `tr` may print")
    assert not looks_binary("\x1b[31mcolour\x1b[0m\r\n" * 20)


# ---- buffers


def test_buffer_keeps_both_ends_and_counts_exactly() -> None:
    buffer = HeadTailBuffer.halves(100)
    for number in range(1000):
        buffer.append(b"%04d\n" % number, "stdout" if number % 2 else "stderr")
    assert (buffer.total_bytes, buffer.total_lines, buffer.dropped_bytes) == (5000, 1000, 4900)
    assert buffer.tail() == b"".join(b"%04d\n" % number for number in range(990, 1000))
    assert buffer.tail_start == 4950
    text = buffer.text("stdout")
    assert text.startswith("0001\n0003\n")
    assert text.endswith("0997\n0999\n")
    assert "[2,450 bytes of output left out here]" in text
    assert (buffer.dropped("stdout"), buffer.dropped("stderr"), buffer.dropped("other")) == (2450, 2450, 0)


def test_buffer_does_not_cut_characters() -> None:
    buffer = HeadTailBuffer.halves(11)
    buffer.append("\N{SNOWMAN}".encode() * 100)
    # 6 bytes of head are two characters, 5 bytes of tail are one and a piece of another.
    assert buffer.text() == "\N{SNOWMAN}\N{SNOWMAN}\n[291 bytes of output left out here]\n\N{SNOWMAN}"
    assert buffer.tail_text() == "\N{SNOWMAN}"
    assert buffer.dropped("stdout") == 291
    assert buffer.dropped_bytes == 289


def test_buffer_without_a_gap_joins_a_character_that_lies_in_both_halves() -> None:
    buffer = HeadTailBuffer(1, 2)
    assert buffer.append("\N{SNOWMAN}".encode()) == b"\xe2"
    assert buffer.text() == "\N{SNOWMAN}"
    assert buffer.dropped("stdout") == 0


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=20)), max_size=30),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_buffer_holds_the_true_head_and_tail(pieces: list[tuple[str, bytes]], head: int, tail: int) -> None:
    buffer = HeadTailBuffer(head, tail)
    first = b"".join(buffer.append(data, stream) for stream, data in pieces)
    whole = b"".join(data for _, data in pieces)
    assert first == whole[:head]
    assert buffer.total_bytes == len(whole)
    assert buffer.total_lines == whole.count(b"\n")
    assert buffer.dropped_bytes == max(0, len(whole) - head - tail)
    assert buffer.tail() == whole[head:][max(0, len(whole[head:]) - tail) :]
    assert buffer.tail_start == len(whole) - len(buffer.tail())


@given(st.lists(st.text(max_size=8), max_size=30), st.integers(0, 40), st.integers(0, 40))
@example(["\x80\n"], 2, 0)
def test_buffer_text_and_dropped_bytes_add_up(texts: list[str], head: int, tail: int) -> None:
    buffer = HeadTailBuffer(head, tail)
    for text in texts:
        buffer.append(text.encode("utf-8", "replace"))
    whole = "".join(texts).encode("utf-8", "replace").decode()
    dropped, shown = buffer.dropped("stdout"), buffer.text()
    if not dropped:
        assert shown == whole
        return
    note = f"[{dropped:,} bytes of output left out here]\n"
    start, found, end = shown.partition(note)
    assert found
    assert whole.endswith(end)
    # The line feed before the note is ours, unless the head ended with one.
    assert any(
        whole.startswith(first) and len(first.encode()) + dropped + len(end.encode()) == len(whole.encode())
        for first in (start, start.removesuffix("\n"))
    ), (start, dropped, end)


def test_buffer_of_a_tail_only_follows_text_that_the_caller_holds() -> None:
    buffer = HeadTailBuffer(0, 4)
    assert buffer.append(b"abcdef") == b""
    assert buffer.text(before="head") == "head\n[2 bytes of output left out here]\ncdef"
    assert buffer.text(before="head\n") == "head\n[2 bytes of output left out here]\ncdef"
    assert buffer.text() == "[2 bytes of output left out here]\ncdef"
    buffer.clear()
    assert (buffer.total_bytes, buffer.total_lines, buffer.dropped_bytes, buffer.tail()) == (0, 0, 0, b"")
    buffer.append(b"\xff\n")
    assert buffer.text(before="head") == "head\N{REPLACEMENT CHARACTER}\n"


def test_buffer_that_is_cleared_has_its_head_back() -> None:
    buffer = HeadTailBuffer(2, 0)
    buffer.append(b"abc")
    buffer.clear()
    assert buffer.append(b"xyz") == b"xy"


def test_buffer_keeps_no_more_than_twice_its_tail_in_memory() -> None:
    buffer = HeadTailBuffer(0, 1000)
    for size in (1_000_000, 1, 999, 1_000_000, 3):
        buffer.append(os.urandom(size))
        assert sum(len(piece) for _, piece in buffer._tail) < 2000


# ---- names


def test_names_in_a_line_are_bounded_and_the_others_counted() -> None:
    assert summarize_names([]) == ""
    assert summarize_names(["a", "b"]) == "a, b"
    assert summarize_names(["a", "b", "c"], 2) == "a, b and 1 more"
    many = [f"n{number}" for number in range(5_020)]
    assert summarize_names(many[:20]).endswith("n18, n19")
    assert summarize_names(many).endswith("n18, n19 and 5,000 more")
