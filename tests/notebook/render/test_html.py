"""Boxes around escaped text, and what is left of untrusted markup and images."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from aisotools.notebook.render import html
from tests.notebook.hostile import PNG
from tests.notebook.inert import assert_inert

EVIL = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    "make",
    [
        html.block,
        html.paragraph,
        html.note,
        html.small_print,
        html.code,
        html.escape,
        lambda text: html.diff([f"+{text}", f"-{text}", ""]),
        lambda text: html.progress_bar(40, text),
        lambda text: html.details(text, ""),
    ],
)
def test_plain_text_is_escaped(make: Callable[[str], str]) -> None:
    markup = make(EVIL)
    assert "&lt;img" in markup
    assert_inert(markup)


def test_code_keeps_the_order_of_its_letters() -> None:
    assert "bidi-override" in html.block("x", exact=True)
    assert "bidi-override" not in html.block("x")
    assert html.block("x", markup="<b>x</b>").endswith("<b>x</b></pre>")


def test_a_box_contains_what_is_painted_in_it() -> None:
    markup = html.box("title", "body", "red")
    assert "contain:content" in markup
    assert "overflow:hidden" in markup
    assert "mathjax_ignore" in markup


def test_markup_keeps_structure_and_loses_what_acts() -> None:
    markup = html.clean_markup(
        "<h1>T</h1><p onclick=x style='color:red' id=a>b<script>alert(1)</script><a href='//evil'>c</a>",
        10_000,
    )
    assert "<p><strong>T</strong></p>" in markup.html
    assert "script" in markup.left_out
    for word in ("onclick", "alert", "evil"):
        assert word not in markup.html
    assert_inert(markup.html)


def test_styles_survive_only_in_a_sandboxed_frame() -> None:
    markup = html.clean_markup("<p style='position:fixed'>x</p>", 10_000).html
    assert '<iframe sandbox=""' in markup
    assert "default-src &#x27;none&#x27;" in markup
    assert "iframe" not in html.clean_markup("<td style='text-align:right'>1</td>x", 10_000).html


@pytest.mark.parametrize(
    ("source", "problem"),
    [("<div>" * 500 + "x", "nested deeper"), ("<script>alert(1)</script>", "nothing in it can be shown")],
)
def test_markup_that_cannot_be_shown(source: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        html.clean_markup(source, 10_000)


def test_long_markup_is_cut_and_says_so() -> None:
    markup = html.clean_markup("<p>x</p>" * 5_000, 1_000).html
    assert html.weight(markup) < 2_000
    assert "[... cut after" in markup


def test_images_are_decoded_and_measured() -> None:
    assert html.checked_image("image/png", PNG) == PNG.strip()
    assert html.checked_image("image/png", base64.b64decode(PNG)) == PNG.strip()
    huge = base64.b64decode(PNG)
    huge = huge[:16] + (1 << 30).to_bytes(4) + (1 << 30).to_bytes(4) + huge[24:]
    for data, problem in (
        (huge, "pixels"),
        (b"\x00" * (html.MAX_IMAGE_BYTES + 1), "bytes are more"),
        ("???", "not base64"),
        (b"GIF89a", "not a PNG"),
    ):
        with pytest.raises(ValueError, match=problem):
            html.checked_image("image/png", data)
    with pytest.raises(ValueError, match="not a JPEG"):
        html.checked_image("image/jpeg", PNG)


def test_only_data_uris_of_images_are_passed_on() -> None:
    uri = f"data:image/png;base64,{PNG}"
    assert html.checked_data_uri(uri).startswith("data:image/png;base64,")
    for wrong in ("https://evil/x.png", "data:text/html;base64,PGI+", "javascript:1"):
        with pytest.raises(ValueError, match="not a data: URI"):
            html.checked_data_uri(wrong)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("<p>", "not plain SVG"),
        ("<!entity a 'b'><svg/>", "not plain SVG"),
        ("<svg>" + "x" * html.MAX_SVG_CHARS, "characters are more"),
    ],
)
def test_svg_that_cannot_be_an_image(source: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        html.svg_data_uri(source)
    assert html.svg_data_uri("<svg/>").startswith("data:image/svg+xml;base64,")


def test_images_weigh_nothing() -> None:
    assert html.weight(f"ab<img src='data:image/png;base64,{PNG}'>") == len("ab<img src=''>")
