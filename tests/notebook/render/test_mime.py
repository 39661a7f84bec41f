"""Which representation of a bundle is chosen, and what is refused, rebuilt or bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aisotools.notebook.render.mime import (
    MAX_HTML_CHARS,
    MAX_LATEX_CHARS,
    bounded_json,
    checked_latex,
    fit_html,
    make_safe,
)
from tests.notebook.hostile import PNG


def test_the_richest_type_that_is_valid_wins() -> None:
    both = make_safe({"text/plain": "t", "image/png": PNG})
    assert both.native.keys() == {"image/png"}
    assert both.plain == "t"
    broken = make_safe({"text/plain": "t", "image/png": "no image"})
    assert broken.native == {}
    assert broken.plain == "t"
    assert any(note.startswith("image/png is not shown:") for note in broken.notes)


@pytest.mark.parametrize(
    ("mime", "note"),
    [
        ("application/vnd.jupyter.widget-view+json", "widgets stay in the sandbox"),
        ("application/vnd.plotly.v1+json", "can do more than show"),
        ("application/pdf", "can do more than show"),
        ("application/x-evil", "can do more than show"),
    ],
)
def test_types_that_can_act_are_refused(mime: str, note: str) -> None:
    output = make_safe({mime: "<script>"})
    assert (output.html, output.plain, output.native) == ("", "", {})
    assert note in output.notes[0]


def test_unknown_text_is_shown_as_its_source() -> None:
    output = make_safe({"application/javascript": "alert(1)<b>"})
    assert "alert(1)&lt;b&gt;" in output.html
    assert output.native == {}
    assert output.notes == ("application/javascript is shown as its source.",)


def test_many_refusals_are_counted() -> None:
    output = make_safe({f"application/vnd.x{n}": "x" for n in range(9)})
    assert len(output.notes) == 6
    assert output.notes[-1] == "4 more types are not shown."


def test_json_is_text_and_native_json() -> None:
    output = make_safe({"application/json": {"<a>": [1, None, "\u202e"]}})
    assert output.native == {"application/json": {"<a>": [1, None, "\u202e"]}}
    assert "&lt;a&gt;" in output.html
    assert "\u202e" not in output.html + output.plain
    assert "<details" not in output.html


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x" * (MAX_HTML_CHARS + 1)])
def test_json_that_a_browser_cannot_take_is_text_only(value: Any) -> None:
    assert make_safe({"application/json": [value]}).native == {}


def test_bounded_json_holds_json_only() -> None:
    assert bounded_json({1: (True, b"x", "\ud800")}) == {"1": [True, "<bytes>", "?"]}
    deep: Any = []
    for _ in range(50):
        deep = [deep]
    with pytest.raises(ValueError, match="nested deeper"):
        bounded_json(deep)
    json.dumps(bounded_json({"a": object()}))


@pytest.mark.parametrize(("formula", "body"), [("$$x^2$$", "x^2"), (r"\(a<b\)", r"a\lt b"), ("$x$", "x")])
def test_formulas_lose_their_delimiters(formula: str, body: str) -> None:
    assert checked_latex(formula) == body


@pytest.mark.parametrize(
    ("formula", "problem"),
    [
        (r"\href{javascript:x}{y}", "href"),
        (r"\begin{evil}x\end{evil}", "environment"),
        (r"\begin", "without a name"),
        ("a}b{", "braces"),
        ("a$b", "character"),
        ("a%b", "character"),
        ("x\u202e", "character"),
        ("x" * (MAX_LATEX_CHARS + 1), "characters are more"),
    ],
)
def test_latex_that_is_more_than_a_formula_is_refused(formula: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked_latex(formula)


@pytest.mark.parametrize("room", [10, 100, 1_000])
def test_text_is_cut_to_the_room_that_it_takes_as_html(room: int) -> None:
    cut = fit_html("<" * 5_000, room)
    assert len(cut) < 5_000
    assert len(cut) <= room or room == 10
