from __future__ import annotations

# ruff: noqa: SIM905 - a table of snippets reads better as words
import json
import time
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given, strategies as st

from aisotools.core.types import ToolResult, Truncation
from aisotools.notebook.render.results import render_result, sanitize_bundle
from tests.notebook.hostile import HOSTILE, JPEG, PNG, WIDGET
from tests.notebook.inert import assert_inert


@pytest.mark.parametrize("bundle", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bundles_are_inert(bundle: dict[str, Any]) -> None:
    for shown in (sanitize_bundle(bundle), render_result(ToolResult(content="x", data=bundle), "t")):
        assert shown.keys() <= {
            "text/plain",
            "text/html",
            "text/latex",
            "image/png",
            "image/jpeg",
            "application/json",
        }
        assert isinstance(shown["text/plain"], str)
        assert_inert(shown.get("text/html", ""))
        json.dumps(shown, ensure_ascii=False).encode()
        assert len(shown["text/plain"]) < 3000


# What carries HTML that does nothing as it is, until something makes a frame of it.
SOUND = {"wrong sorts", "frame escape"}


@pytest.mark.parametrize("name", [n for n in HOSTILE if "text/html" in HOSTILE[n] and n not in SOUND])
def test_the_check_itself_sees_harm(name: str) -> None:
    with pytest.raises(AssertionError):
        assert_inert("".join(HOSTILE[name]["text/html"]))


@pytest.mark.parametrize(
    "name", [n for n in HOSTILE if n.startswith(("latex", "fake", "png", "jpeg", "svg bomb"))]
)
def test_data_of_another_type_than_declared_is_not_passed_on(name: str) -> None:
    shown = sanitize_bundle(HOSTILE[name])
    assert shown.keys() == {"text/plain"}
    assert "not shown" in shown["text/plain"]


@pytest.mark.parametrize("name", ["widget", "vega", "plotly", "pdf"])
def test_refused_parts_are_noted(name: str) -> None:
    (refused, *_) = HOSTILE[name]
    for shown in (
        sanitize_bundle(HOSTILE[name]),
        render_result(ToolResult(content="", data=HOSTILE[name]), "t"),
    ):
        assert f"{refused} is not shown" in shown["text/plain"]


SNIPPETS = [str(value) for bundle in HOSTILE.values() for value in bundle.values()]
SNIPPETS += "<table> </table> <td> <pre> </pre> <!-- --> <![CDATA[ ]]> <svg> <math> <style> </style>".split()
SNIPPETS += "<title> <textarea> <iframe/srcdoc=' \" ' ` > = <p/style=' &lt; &#x3c; <details/open> $x$".split()
SNIPPETS += [
    "\x00",
    "\x1b[31m",
    "\u202e",
    "javascript:",
    "onload=alert(1)/",
    f"<img src='data:image/png;base64,{PNG}'>",
]
pieces = st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=12), max_size=12).map("".join)
values = st.recursive(
    pieces | st.none() | st.integers() | st.floats() | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TYPES = "text/html text/plain text/markdown text/latex image/svg+xml image/png application/json TEXT/HTML"
types = st.sampled_from([*TYPES.split(), "application/javascript", "application/pdf", WIDGET])
bundles = st.dictionaries(types | pieces, pieces | values, max_size=4)


@given(bundles, st.lists(bundles, max_size=2), pieces, st.booleans())
@example({"text/html": "<style>p{color:red}</style><p style='position:fixed'>x"}, [], "<b>", False)
def test_no_input_produces_active_content(
    data: dict[str, Any], displays: list[Any], text: str, is_error: bool
) -> None:
    result = ToolResult(
        content=text, is_error=is_error, data=data, value={"stdout": text}, metadata={"displays": displays}
    )
    shown = render_result(result, text)
    assert_inert(shown["text/html"])
    json.dumps(shown, ensure_ascii=False).encode()
    assert "\x1b" not in shown["text/html"] + shown["text/plain"]
    assert "\u202e" not in shown["text/html"] + shown["text/plain"]
    for bundle in (data, *displays):
        clean = sanitize_bundle(bundle)
        assert_inert(clean.get("text/html", ""))
        assert "\u202e" not in clean["text/plain"]


# --- what should be seen is seen


def test_text() -> None:
    shown = render_result(ToolResult.text("total 4\n-rw-r--r-- a.txt"), "sandbox_bash")
    assert shown["text/plain"] == "output of sandbox_bash\n| total 4\n| -rw-r--r-- a.txt"
    assert ">total 4\n-rw-r--r-- a.txt</pre>" in shown["text/html"]
    assert "output of <code>sandbox_bash</code>" in shown["text/html"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("invalid", "not run: the call was wrong"),
        ("failed", "failed"),
        ("denied", "not run: it was not allowed"),
        ("environment", "failed: not the tool but what runs it"),
    ],
)
def test_errors_say_whose_fault(kind: Any, words: str) -> None:
    shown = render_result(ToolResult.error("no such file", error_kind=kind), "file")
    assert shown["text/plain"] == f"output of file - {words}\n| no such file"
    assert f"<strong>{words}</strong>" in shown["text/html"]
    assert "--jp-error-color1" in shown["text/html"]


def test_table_of_pandas() -> None:
    frame = pd.DataFrame({"n": [1, 2], "word": ["<b>", "ü"]})
    bundle = {"text/html": frame.to_html(), "text/plain": str(frame)}
    for html in (frame.to_html(), frame._repr_html_()):  # type: ignore[operator]  # taken for a column
        shown = sanitize_bundle(bundle | {"text/html": html})
        assert "<th>word</th>" in shown["text/html"]
        assert "<td>&lt;b&gt;</td>" in shown["text/html"]
        assert "iframe" not in shown["text/html"]
        assert shown["text/plain"] == str(frame)


def test_html_with_looks_goes_into_a_frame_beside_its_plain_form() -> None:
    shown = sanitize_bundle({"text/html": "<table><tr><td style='background:yellow'>1</td></tr></table>"})
    assert '<iframe sandbox="" srcdoc="' in shown["text/html"]
    assert "background:yellow" in shown["text/html"]
    assert "the same without its style</summary><table>" in shown["text/html"]


def test_left_out_parts_are_noted() -> None:
    shown = render_result(ToolResult(content="", data=HOSTILE["remote others"]), "t")
    assert "Left out: link, video, object, iframe, embed, base, meta." in shown["text/plain"]


def test_images() -> None:
    bundle = {"image/png": PNG[:20] + "\n" + PNG[20:], "text/plain": "<Figure size 3x2>"}
    assert sanitize_bundle(bundle) == {"image/png": PNG, "text/plain": "<Figure size 3x2>"}
    assert sanitize_bundle({"image/jpeg": JPEG})["image/jpeg"] == JPEG
    shown = render_result(ToolResult(content="[figure]", data=bundle), "python")
    assert shown["image/png"] == PNG
    assert f'<img src="data:image/png;base64,{PNG}"' in shown["text/html"]
    assert shown["text/plain"] == "output of python\n| <Figure size 3x2>"


def test_images_inside_html_are_checked_too() -> None:
    good, bad = f"data:image/png;base64,{PNG}", "data:image/png;base64,AAAA"
    html = f"<p><img src='{good}' width=20 alt=a><img src='{bad}'>hi</p>"
    shown = sanitize_bundle({"text/html": html})["text/html"]
    assert f'<img src="data:image/png;base64,{PNG}" width="20" alt="a"><img>hi' in shown


def test_svg_is_an_image() -> None:
    shown = sanitize_bundle(HOSTILE["svg"])["text/html"]
    assert shown.startswith('<img src="data:image/svg+xml;base64,')


@pytest.mark.parametrize(
    ("formula", "made"),
    [
        (r"$\displaystyle \int_{0}^{1} x\, dx$", r"$$ \displaystyle \int_{0}^{1} x\, dx $$"),
        (r"\[ a < b \]", r"$$ a \lt  b $$"),
        (
            "$$\\begin{bmatrix}1 & 2\\\\3 & 4\\end{bmatrix}$$",
            "$$ \\begin{bmatrix}1 & 2\\\\3 & 4\\end{bmatrix} $$",
        ),
    ],
)
def test_latex_is_made_anew(formula: str, made: str) -> None:
    assert sanitize_bundle({"text/latex": formula}) == {"text/latex": made, "text/plain": made}


def test_json() -> None:
    value = {"a": [1, 2.5, None, True], "b": "\u202e"}
    shown = render_result(ToolResult.json(value), "t")
    assert "application/json" not in shown, "JupyterLab would show it outside of the box"
    assert '  "b": "\\u202e"' in shown["text/plain"].replace("| ", "")
    assert sanitize_bundle({"application/json": value})["application/json"] == value


def test_json_that_is_too_deep_falls_back_to_its_text() -> None:
    deep: Any = []
    for _ in range(2000):
        deep = [deep]
    shown = sanitize_bundle({"application/json": deep, "text/plain": "deep"})
    assert shown["text/plain"].startswith("deep\napplication/json is not shown: it is nested deeper")


def test_displays_come_in_order_after_what_was_printed() -> None:
    result = ToolResult(
        content="a lot of words",
        value={"stdout": "printed\n", "stderr": "warned\n", "result": "3", "error": None},
        data={"text/plain": "3"},
        metadata={"displays": [{"image/png": PNG, "text/plain": "a figure"}, {"text/plain": "3"}]},
    )
    lines = render_result(result, "python")["text/plain"].split("\n| ")
    assert [line for line in lines if line] == [
        "output of python",
        "printed",
        "stderr",
        "warned",
        "a figure",
        "3",
    ]


def test_an_error_after_displays_shows_both() -> None:
    result = ToolResult(
        content="3\nTraceback: ZeroDivisionError",
        is_error=True,
        error_kind="failed",
        kind="error",
        value={"stdout": "", "error": {"traceback": "Traceback: ZeroDivisionError"}},
        metadata={"displays": [{"text/plain": "3"}]},
    )
    assert render_result(result, "python")["text/plain"] == (
        "output of python - failed\n| 3\n| Traceback: ZeroDivisionError"
    )


def test_printed_output_comes_before_the_value() -> None:
    result = ToolResult.text("7").with_metadata(stdout="thinking\n")
    assert render_result(result, "f")["text/plain"] == "output of f\n| thinking\n| \n| 7"


def test_empty_result_is_noted() -> None:
    assert "No output." in render_result(ToolResult.success(), "f")["text/html"]


def test_terminal_text() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07\r\n10%\r20%\r100%\nbell\x07 \x1b]8;;unfinished"
    assert sanitize_bundle({"text/plain": text})["text/plain"] == (
        "red \n100%  [2 overwritten]\nbell\\u0007 8;;unfinished"
    )


# --- bounds


def test_long_text_is_cut_in_the_middle() -> None:
    shown = render_result(ToolResult.text("<" * 3_000_000 + "end"), "t")
    assert len(shown["text/html"]) < 70_000
    assert len(shown["text/plain"]) < 70_000
    assert "characters left out" in shown["text/plain"]
    assert "end" in shown["text/plain"]


def test_long_tables_are_cut_and_say_so() -> None:
    frame = pd.DataFrame({"n": range(20_000)})
    shown = render_result(ToolResult(content="", data={"text/html": frame.to_html()}), "t")
    assert len(shown["text/html"]) < 70_000
    assert "[... cut after" in shown["text/html"]
    assert_inert(shown["text/html"])


def test_many_displays_are_cut_and_say_so() -> None:
    displays = [{"text/plain": "x" * 3000}] * 100
    shown = render_result(ToolResult(content="", metadata={"displays": displays}), "t")
    assert len(shown["text/html"]) < 70_000
    assert "Only the first 21 outputs are shown; there is more" in shown["text/plain"]
    many = [{"image/png": PNG}] * 100
    assert (
        render_result(ToolResult(content="", metadata={"displays": many}), "t")["text/html"].count("<img")
        == 40
    )


def test_loss_within_the_result_is_noted() -> None:
    result = ToolResult(
        content="x",
        truncation=Truncation(total_chars=90_000, shown_chars=30_000),
        metadata={"dropped_bytes": 5000, "dropped_displays": 2},
    )
    text = render_result(result, "t")["text/plain"]
    for words in ("30,000 of 90,000 characters", "5,000 more bytes", "2 more displays"):
        assert words in text


@pytest.mark.parametrize("claim", [True, False, "true", 1, None])
def test_call_without_write_rights_is_noted(claim: object) -> None:
    text = render_result(ToolResult(content="x", metadata={"in_reader": claim}), "t")["text/plain"]
    assert ("without write rights" in text) is (claim is True)
    assert ("variables did not reach the worker" in text) is (claim is True)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "markup",
    [
        "<div>" * 200_000,
        "<div><!--</div>-->" * 100_000,
        "&" * 2_000_000,
        "<p style='" + " " * 1_000_000 + "'>x",
        "<style scoped>" + " .dataframe a{" * 100_000,
        "<b></p>" * 190 + "x</p>" * 100_000,
        "data:image/png;base64," * 100_000,
        "\x1b]" * 500_000 + "\x1b[" * 500_000,
    ],
    ids=lambda markup: repr(markup[:12]),
)
def test_nothing_takes_long(markup: str) -> None:
    began_s = time.thread_time()
    shown = sanitize_bundle({"text/html": markup, "text/plain": markup})
    # Processor time of this thread, less than 2 s: anything worse than nearly linear takes minutes.
    assert time.thread_time() - began_s < 10
    assert_inert(shown.get("text/html", ""))


# --- colours, JSON, commands


def test_colours_of_a_terminal() -> None:
    text = "\x1b[1;31mFAILED\x1b[0m \x1b[32mok\x1b[39m <b> "
    text += "\x1b[38;5;196mx\x1b[38;2;1;2;3my\x1b[0m\x1b]8;;javascript:1\x07z"
    shown = render_result(ToolResult.text(text), "t")
    assert '<span style="color:#e5484d;font-weight:600">FAILED</span>' in shown["text/html"]
    assert '<span style="color:#2f9e44">ok</span> &lt;b&gt;' in shown["text/html"]
    assert "\x1b" not in shown["text/html"]
    assert_inert(shown["text/html"])
    assert shown["text/plain"] == "output of t\n| FAILED ok <b> xyz"


def test_too_many_colours_are_left_out() -> None:
    shown = render_result(ToolResult.text("\x1b[31mx\x1b[0m" * 30_000), "t")
    assert len(shown["text/html"]) < 70_000
    assert "<span" not in shown["text/html"]


def test_json_is_inert_text_in_the_box_and_json_elsewhere() -> None:
    rows = [{"path": "<a>", "line": 1}, {"path": "b\u202e", "line": None}]
    shown = render_result(ToolResult.json({"matches": rows, "deep": {"x": [1, {"y": 2}]}}), "t")
    assert shown.keys() == {"text/html", "text/plain"}, "JupyterLab would show JSON outside of the box"
    assert_inert(shown["text/html"])
    assert "&lt;a&gt;" in shown["text/html"]
    assert "\u202e" not in shown["text/html"]
    assert sanitize_bundle({"application/json": {"matches": rows}})["application/json"] == {"matches": rows}
    huge = render_result(ToolResult.json({"a": [[n] for n in range(100_000)]}), "t")
    assert len(huge["text/html"]) < 70_000
    assert "<details open" not in huge["text/html"]


def test_a_command_tells_its_exit_code_and_how_long_it_took() -> None:
    value = {"stdout": "\x1b[32mbuilt\x1b[0m\n", "stderr": "careful\n", "exitCode": 2, "executionTime": 1234}
    result = ToolResult(
        content="built\ncareful\n[exit code 2]", value=value, is_error=True, error_kind="failed", kind="error"
    )
    shown = render_result(result, "sandbox_bash")
    assert shown["text/plain"].split("\n| ")[0] == "output of sandbox_bash - failed · exit code 2 · 1.2 s"
    assert '<span style="color:#2f9e44">built</span>' in shown["text/html"]
    assert "careful" in shown["text/html"]
    for odd in (True, 10**30, "2", None):
        render_result(ToolResult.json({**value, "exitCode": odd, "executionTime": odd}), "t")


def test_long_text_unfolds() -> None:
    text = "".join(f"line {n}\n" for n in range(3000))
    shown = render_result(ToolResult.text(text), "t")
    assert f"show all, {len(text):,} characters" in shown["text/html"]
    assert "line 1500\n" in shown["text/html"]
    assert "characters left out" in shown["text/html"]
    cut = ToolResult(
        content="head\n[...]\ntail", truncation=Truncation(total_chars=99, shown_chars=9, ref="r1")
    )
    assert "line 1500\n" in render_result(cut, "t", whole=text)["text/html"]
