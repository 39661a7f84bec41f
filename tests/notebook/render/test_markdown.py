from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, strategies as st

from aisotools.notebook.render.markdown import (
    MAX_MARKDOWN_CHARS,
    MAX_SHOWN_CHARS,
    answer_bundle,
    markdown_html,
)
from tests.notebook.hostile import HOSTILE
from tests.notebook.inert import assert_inert

BUTTON = '<button type="button" class="aiso-copy" style="display:none">Copy</button>'


HOSTILE_TEXTS = [
    text
    for bundle in HOSTILE.values()
    for mime, text in bundle.items()
    if mime in {"text/html", "text/markdown", "text/plain"} and isinstance(text, str) and len(text) < 5_000
]


def bare(markup: str) -> str:
    """The answer without what this package adds for copying it, which is not what a model writes."""
    assert markup.count("<button") == markup.count(BUTTON)
    markup = markup.replace(BUTTON, "")
    return re.sub(r' class="aiso-(?:source|answer mathjax_ignore)"', "", markup)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("*a* **b** `c` ~~d~~", "<p><em>a</em> <strong>b</strong> <code>c</code> <s>d</s></p>"),
        ("- a\n  - b", "<ul>\n<li>a\n<ul>\n<li>b</li>\n</ul>\n</li>\n</ul>"),
        ("| a | b |\n|---|--:|\n| 1 | 2 |", '<td style="text-align:right">2</td>'),
        ("one\ntwo", "one<br />\ntwo"),
        ("> a", "<blockquote>\n<p>a</p>\n</blockquote>"),
        ("## A *b*", "<strong>A <em>b</em></strong></p>"),
        ("```python\n1 < 2\n```", "<code>1 &lt; 2\n</code></pre>"),
        ("[a](https://x.y)", "<u>a</u> (<code>https://x.y</code>)"),
        ("<https://x.y>", "<p><u>https://x.y</u></p>"),
        ("![a](https://x.y/p.png)", "[picture: a <code>https://x.y/p.png</code>]"),
        ("[a][1]\n\n[1]: https://x.y", "<u>a</u> (<code>https://x.y</code>)"),
        ("<b>a</b>", "&lt;b&gt;a&lt;/b&gt;"),
    ],
)
def test_markdown_is_rendered(source: str, expected: str) -> None:
    assert expected in markdown_html(source)


AROUND = ["{}", "- {}", "> {}", "`{}`", "[{}](x)", "[x]({})", "![{}]({})", "|{}|\n|-|"]


@pytest.mark.parametrize("source", HOSTILE_TEXTS)
@pytest.mark.parametrize("around", AROUND)
def test_hostile_markup_is_text(source: str, around: str) -> None:
    assert_inert(bare(answer_bundle(around.replace("{}", source))["text/html"]))


@given(st.text(st.sampled_from("<>[]()!`*_~#|-\\n :&;\\\"'=ahx1/.@$"), max_size=200))
def test_any_text_is_inert(source: str) -> None:
    assert_inert(bare(answer_bundle(source)["text/html"]))


@pytest.mark.parametrize("source", ["a\u202eb", "a&#x202e;b", "a&rlm;b", "[x](\u202e)", "`\u200b`"])
def test_characters_that_hide_are_written_out(source: str) -> None:
    for text in answer_bundle(source)["text/html"], answer_bundle(source)["text/plain"]:
        assert not {"\u202e", "\u200f", "\u200b"} & set(text)


def test_bundle_has_the_source_to_copy_and_the_plain_text() -> None:
    bundle = answer_bundle("**a** <b>")
    assert bundle["text/plain"] == "**a** <b>"
    assert "**a** &lt;b&gt;</pre>" in bundle["text/html"]
    assert BUTTON in bundle["text/html"]


def test_bundle_says_how_a_run_without_an_answer_ended() -> None:
    bundle = answer_bundle("so far", "The run ended as budget: 3 <steps>")
    assert "so far" in bundle["text/html"]
    assert "3 &lt;steps&gt;" in bundle["text/html"]
    assert bundle["text/plain"] == "so far\nThe run ended as budget: 3 <steps>"
    assert "budget" in answer_bundle("", "The run ended as budget")["text/html"]
    assert answer_bundle(" \n")["text/plain"] == "No answer."


HOSTILE_SHAPES = {
    "open brackets": "[",
    "pictures": "![",
    "links": "[a](",
    "stars": "*a",
    "both": "*_",
    "strong brackets": "**[",
    "quotes": "> ",
    "lists": "- ",
    "cells": "|a",
    "addresses": "<http://a",
    "back slashes": "\\",
    "fences": "```\n",
    "entities": "&amp;",
}


@pytest.mark.parametrize("piece", HOSTILE_SHAPES.values(), ids=HOSTILE_SHAPES)
def test_hostile_shapes_take_bounded_time(piece: str) -> None:
    """Of processor time, which other programs do not add to. One that is quadratic would take minutes."""
    markdown_html("a")
    began_s = time.thread_time()
    markdown_html(piece * (MAX_MARKDOWN_CHARS // len(piece)))
    assert time.thread_time() - began_s < 5


def test_long_answers_are_plain_and_bounded() -> None:
    long = "**a** " * MAX_MARKDOWN_CHARS
    bundle = answer_bundle(long)
    assert "<strong>" not in bundle["text/html"]
    assert len(bundle["text/html"]) < 3 * MAX_SHOWN_CHARS
    assert len(bundle["text/plain"]) < 1.1 * MAX_SHOWN_CHARS
    wide = "|" * 300 + "\n" + "|-" * 299 + "|\n" + "x\n" * 15_000
    assert len(markdown_html(wide)) < MAX_SHOWN_CHARS
