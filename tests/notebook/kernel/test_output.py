"""What a front passes on of what a worker shows: nothing that could act on the page."""

from __future__ import annotations

from typing import Any

import pytest

from aisotools.notebook.kernel.output import MAX_DISPLAY_IDS, DisplayFilter, JupyterMessage
from aisotools.notebook.render.text import coloured
from aisotools.sandbox.host.displays import DisplayMessage
from tests.notebook.hostile import HOSTILE, PNG, WIDGET
from tests.notebook.inert import assert_inert

PASSED = {"text/plain", "text/html", "text/latex", "image/png", "image/jpeg", "application/json"}


def display(bundle: dict[str, Any], what: str = "display", **how: Any) -> JupyterMessage:
    message = DisplayFilter().display(DisplayMessage(kind=what, bundle=bundle, details=how))
    assert message is not None
    return message


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_bundles(kind: str) -> None:
    shown = DisplayMessage(kind="display", bundle=HOSTILE[kind])
    for message in (DisplayFilter().display(shown), DisplayFilter().result(shown, 1)):
        assert message is not None
        data = message.content["data"]
        assert set(data) <= PASSED
        assert_inert(data.get("text/html", ""))


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        ("\x1b[31mred\x1b[0m \x1b[1;38;5;208mbold\x1b[m", "\x1b[31mred\x1b[0m \x1b[1;38;5;208mbold\x1b[m"),
        ("50%\r100%\n", "50%\r100%\n"),
        ("\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07", "click"),
        ("\x1b]0;title\x07\x1b[2J\x1b[10;10Hhi", "hi"),
        ("\x1b[", ""),
        ("\x1b", "\\u001b"),
        ("a\x00b\u202ec", "a\\u0000b\\u202ec"),
        ("\x9b31mx", "\\u009b31mx"),
    ],
)
def test_text_keeps_its_colours_and_nothing_else(text: str, passed: str) -> None:
    assert coloured(text) == passed
    assert DisplayFilter().stream("stdout", text).content["text"] == passed
    assert DisplayFilter(trusted=True).stream("stdout", text).content["text"] == text


def test_text_in_pieces_hides_nothing() -> None:
    passed = "".join(
        coloured(piece) for piece in ("\x1b", "]8;;javascript:alert(1)", "\x07click", "\x1b[3", "1m")
    )
    assert "\x1b" not in passed
    assert "\x07" not in passed


def test_errors() -> None:
    reply = {
        "ename": "<b>\x1b]0;x\x07",
        "evalue": "\x1b[2Jx",
        "traceback": "\x1b[31ma\x1b[0m\n\x1b]8;;x\x07b",
    }
    content = DisplayFilter().error(reply).content
    assert content["traceback"] == ["\x1b[31ma\x1b[0m", "b"]
    assert content["evalue"] == "x"
    assert "\x1b" not in content["ename"]
    assert DisplayFilter().error({"ename": 3, "evalue": None}).content["ename"] == "Error"


def test_an_update_reaches_only_our_own_display() -> None:
    ours, others = DisplayFilter(), DisplayFilter()
    name = "the card of an approval"
    assert (
        ours.display(DisplayMessage(kind="update", bundle={"text/plain": "x"}, details={"display_id": name}))
        is None
    )
    first = ours.display(
        DisplayMessage(kind="display", bundle={"text/plain": "x"}, details={"display_id": name})
    )
    second = others.display(
        DisplayMessage(kind="display", bundle={"text/plain": "x"}, details={"display_id": name})
    )
    assert first is not None
    assert second is not None
    ids = {message.content["transient"]["display_id"] for message in (first, second)}
    assert len(ids) == 2
    assert name not in ids


def test_names_of_displays_are_forgotten_in_the_end() -> None:
    passing = DisplayFilter()
    for number in range(MAX_DISPLAY_IDS + 1):
        passing.display(
            DisplayMessage(kind="display", bundle={"text/plain": ""}, details={"display_id": str(number)})
        )
    assert passing.display(DisplayMessage(kind="update", bundle={}, details={"display_id": "0"})) is None
    assert passing.display(DisplayMessage(kind="update", bundle={}, details={"display_id": "5"})) is not None


@pytest.mark.parametrize("how", [{"display_id": 3}, {"display_id": ["x"]}, {"metadata": 3}, {}])
def test_odd_displays(how: dict[str, Any]) -> None:
    assert display({"text/plain": "x"}, **how).content["transient"] == {}


def test_pictures_keep_their_size_and_nothing_else() -> None:
    metadata = {"image/png": {"width": 20, "height": 10, "x": "<script>"}, "isolated": True, "text/plain": {}}
    assert display({"image/png": PNG}, metadata=metadata).content["metadata"] == {
        "image/png": {"width": 20, "height": 10},
    }
    wild = {"image/png": {"width": "100%", "height": 1e9}}
    assert display({"image/png": PNG}, metadata=wild).content["metadata"] == {}


def test_a_widget_is_its_text() -> None:
    message = display({WIDGET: {"model_id": "1"}, "text/plain": "IntSlider(value=7)"})
    assert message.content["data"] == {"text/plain": "IntSlider(value=7)"}


def test_messages_of_widgets_and_new_cells_are_not_passed_on() -> None:
    comm = DisplayMessage(kind="comm", bundle={"comm_id": "x", "data": {}}, details={"kind": "comm_msg"})
    assert DisplayFilter().comm(comm) is None
    text = DisplayMessage(kind="next_input", bundle={"text/plain": "rm -rf"}, details={"replace": True})
    assert DisplayFilter().payload(text) is None


def test_a_page_is_text() -> None:
    page = DisplayMessage(
        kind="page", bundle={"text/plain": "\x1b[31mDoc\x1b]8;;x\x07", "text/html": "<script>"}
    )
    assert DisplayFilter().payload(page) == {
        "source": "page",
        "data": {"text/plain": "\x1b[31mDoc"},
        "start": 0,
    }


def test_a_person_may_trust_it() -> None:
    passing = DisplayFilter(trusted=True)
    bundle = {WIDGET: {"model_id": "1"}, "text/html": "<script>1</script>"}
    message = passing.display(
        DisplayMessage(kind="display", bundle=bundle, details={"metadata": {"isolated": True}})
    )
    assert message is not None
    assert message.content["data"] == bundle
    assert message.content["metadata"] == {"isolated": True}
    comm = passing.comm(
        DisplayMessage(kind="comm", bundle={"comm_id": "x"}, details={"kind": "comm_msg"}, buffers=(b"b",))
    )
    assert comm is not None
    assert (comm.type, comm.buffers) == ("comm_msg", (b"b",))
    assert passing.comm(DisplayMessage(kind="comm", details={"kind": "shutdown_request"})) is None
    text = DisplayMessage(kind="next_input", bundle={"text/plain": "x = 1"})
    assert passing.payload(text) == {"source": "set_next_input", "text": "x = 1", "replace": False}
