"""Untrusted text: escape sequences, invisible characters, colours, bounds, and what a terminal would show."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from aisotools.notebook.render.text import (
    HEAD_LINES,
    TAIL_LINES,
    Bar,
    TerminalScreen,
    bar_in,
    coloured,
    coloured_html,
    one_line,
    readable,
    seconds,
    shorten,
    text_of,
)


def test_text_of_a_bundle_is_a_string_or_lines() -> None:
    assert text_of("a") == "a"
    assert text_of(["a\n", "b"]) == "a\nb"
    for wrong in (None, 3, ["a", 3], b"a", {"a": "b"}):
        with pytest.raises(ValueError, match="not text"):
            text_of(wrong)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]8;;https://evil\x07link\x1b]8;;\x07", "link"),
        ("a\u202eb\x00", "a\\u202eb\\u0000"),
        ("1%\r2%\r3%", "3%  [2 overwritten]"),
        ("a\r\nb", "a\nb"),
        ("unfinished \x1b]8;;text stays", "unfinished 8;;text stays"),
    ],
)
def test_readable(text: str, shown: str) -> None:
    assert readable(text) == shown


def test_coloured_keeps_colours_and_returns_only() -> None:
    text = coloured("\x1b[1;31mred\x1b[0m\r\x1b[2Jx\x1b]0;title\x07\u202e")
    assert text == "\x1b[1;31mred\x1b[0m\rx\\u202e"


def test_labels_and_excerpts_are_bounded() -> None:
    assert one_line("a\nb" + "x" * 100, 10) == "a\\u000abx…"
    text = shorten("a" * 50 + "b" * 50, 30)
    assert text.startswith("a" * 20 + "\n[... 70 characters left out ...]\n")
    assert text.endswith("b" * 10)
    assert shorten("short", 5) == "short"


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("plain", None),
        ("\x1b[0mplain", None),
        ("\x1b[31m<b>", '<span style="color:#e5484d">&lt;b&gt;</span>'),
        ("\x1b[1;4mx\x1b[22my\x1b[24mz", None),
        ("\x1b[38;5;1mx", '<span style="color:#e5484d">x</span>'),
        ("\x1b[38;2;1;2;3mx", None),
        ("\x1b[32m1\r\x1b[32m2", '<span style="color:#2f9e44">2</span>'),
    ],
)
def test_colours_as_html(text: str, markup: str | None) -> None:
    shown = coloured_html(text, 1_000)
    if "\x1b[1;4m" in text:
        assert shown is not None
        assert "font-weight:600;text-decoration:underline" in shown
        assert shown.endswith("z")
    else:
        assert shown == markup


def test_colours_are_left_out_where_they_do_not_fit() -> None:
    assert coloured_html("\x1b[31mred", 20) is None


# ---- what a terminal would show


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        (["a\nb"], ["a", "b"]),
        (["a\r\nb\r\n"], ["a", "b"]),
        (["a\r", "\nb"], ["a", "b"]),
        (["abc\rx"], ["x"]),
        (["abc\r", "x"], ["x"]),
        (["\ra", "\rb", "\rc\n"], ["c"]),
        (["\x1b[31mred\x1b[0m\n"], ["red"]),
        (["\x1b[3", "1mred\x1b", "[0m\n"], ["red"]),
        (["10%\r", "20%\r", "\n", "done\n"], ["20%", "done"]),
        (["\n\n"], ["", ""]),
        (["a\u202eb\n"], ["a\\u202eb"]),
    ],
)
def test_a_screen(chunks: list[str], lines: list[str]) -> None:
    screen = TerminalScreen()
    for chunk in chunks:
        screen.feed(chunk)
    assert screen.lines() == lines


def test_long_output_keeps_both_ends_and_counts() -> None:
    screen = TerminalScreen()
    screen.feed("".join(f"{n}\n" for n in range(1000)))
    lines = screen.lines()
    assert lines[0] == "0"
    assert lines[-1] == "999"
    assert lines[HEAD_LINES] == f"[... {1000 - HEAD_LINES - TAIL_LINES} lines left out ...]"
    screen.feed("x" * 1_000_000)
    assert len(screen.current) <= 2000


@given(st.lists(st.text(alphabet="ab\r\n\x1b[]m;\x07 %|1", max_size=30), max_size=8))
def test_chunks_of_output_make_no_difference(chunks: list[str]) -> None:
    whole, parts = TerminalScreen(), TerminalScreen()
    whole.feed("".join(chunks))
    for chunk in chunks:
        parts.feed(chunk)
    if "\x1b" not in "".join(chunks):
        assert parts.lines() == whole.lines()
    assert "\x1b" not in "".join(parts.lines())


def test_lines_that_are_no_progress_bar() -> None:
    for line in ("", "100% of them", "a|b", "150%|##|", "|" * 5000 + "%", "%|" * 3000):
        assert bar_in(line) is None
    assert bar_in("  5%|▌ | 1/20") == Bar(5, "", "1/20")


def test_durations() -> None:
    assert list(map(seconds, (0.0123, 2.5, 130))) == ["12 ms", "2.5 s", "2 min 10 s"]
    assert seconds(-1.0) == "0 ms"
