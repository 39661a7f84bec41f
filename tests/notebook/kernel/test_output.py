"""What a front passes on of what a worker shows: nothing that could act on the page."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from jupyter_client.session import Session

from aisotools.notebook.kernel.output import (
    MAX_DISPLAY_IDS,
    CellOrigin,
    DisplayFilter,
    JupyterMessage,
    JupyterOutput,
)
from aisotools.notebook.kernel.session import CellResult
from aisotools.notebook.render.text import coloured
from aisotools.policy.prompts import visible
from aisotools.sandbox.frames import encode
from aisotools.sandbox.host.displays import DisplayMessage, DisplayRouter, show_in_steps
from aisotools.sandbox.worker.output import ExecuteOptions
from tests.notebook.hostile import HOSTILE, PNG, WIDGET
from tests.notebook.inert import assert_inert
from tests.sandbox.host.test_connection import Peer
from tests.sandbox.host.test_displays import MAX_STALL_S, longest_stall_s
from tests.sandbox.hostile_displays import SHAPES, bundle, image
from tests.stalls import stall_limit_s

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


# ---- large displays


class Page:
    """What reaches the clients of a kernel: the JSON of each message, large ones signed in a thread."""

    def __init__(self, *, trusted: bool) -> None:
        self.signer = Session(key=b"x" * 32)
        self.contents: list[bytes] = []
        self.output = JupyterOutput(
            DisplayFilter(trusted=trusted), self._publish, lambda *_: None, lambda: None
        )
        self.output.begin("c", CellOrigin(ident=b"", parent={}), 7)

    def _publish(self, message: JupyterMessage, _request: CellOrigin) -> Awaitable[None] | None:
        made = self.signer.msg(message.type, message.packed or dict(message.content))  # type: ignore[arg-type]  # bytes are sent as they are
        if message.is_large:
            return self._sign_in_thread(made)
        self.contents.append(self.signer.serialize(made)[-1])
        return None

    async def _sign_in_thread(self, made: dict[str, Any]) -> None:
        self.contents.append((await asyncio.to_thread(self.signer.serialize, made))[-1])

    async def show(self, body: bytes, what: str = "display", **details: Any) -> None:
        """Show a large display as a kernel does."""

        def show(bundle: dict[str, Any]) -> Awaitable[None] | None:
            shown = DisplayMessage(kind=what, bundle=bundle, details=details, json=body)
            return self.output.show("c", shown)

        await show_in_steps(body, show)


@pytest.mark.sample(4)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
def test_no_display_holds_up_the_loop_of_a_kernel(shape: str, trusted: bool) -> None:
    body = SHAPES[shape]()

    async def show() -> None:
        page = Page(trusted=trusted)
        await page.show(body)
        assert len(page.contents) == 1

    assert longest_stall_s(show) <= stall_limit_s()


@pytest.mark.parametrize(
    ("kind", "trusted"),
    [
        ("error", False),
        ("page", True),
        ("next_input", False),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in (("error", True), ("page", False))),
        pytest.param("next_input", True, marks=pytest.mark.slow),
    ],
)
def test_no_error_and_no_page_holds_it_up(kind: str, trusted: bool) -> None:
    key = "traceback" if kind == "error" else "text/plain"
    body = bundle(key, "\\u001b[31mx\\n")

    async def show() -> None:
        page = Page(trusted=trusted)
        await page.show(body, kind)
        payload, error = page.output.end("c", CellResult(error={"ename": "E", "evalue": "", "traceback": ""}))
        texts = [json.dumps(part) for part in (payload, error)]
        assert all(len(text) < 2_000_000 for text in texts)
        assert "characters left out" in "".join(texts) or (kind == "next_input" and not trusted)

    assert longest_stall_s(show) <= stall_limit_s()


def test_the_control_a_large_display_that_is_packed_and_signed_at_once_does() -> None:
    content = {"data": {"x/y": [1.25e-3] * 2_600_000}}  # as many as above

    async def sign() -> None:
        signer = Session(key=b"x" * 32)
        signer.serialize(signer.msg("display_data", content))

    assert longest_stall_s(sign) > MAX_STALL_S


def _figure() -> bytes:
    points = [number / 7 for number in range(500_000)]
    return json.dumps({"application/vnd.plotly.v1+json": {"data": [{"y": points}]}}).encode()


def _chart() -> bytes:
    rows = [{"a": n, "b": n / 7, "c": f"k{n}"} for n in range(50_000)]
    return json.dumps({"application/vnd.vegalite.v5+json": {"data": {"values": rows}}}).encode()


HONEST: dict[str, Callable[[], bytes]] = {
    "a figure of 500,000 numbers": _figure,
    "a chart of 50,000 rows": _chart,
    "a picture of 10 MB": lambda: image(10_000_000),
}


@pytest.mark.parametrize("what", HONEST)
def test_honest_displays_are_shown_unchanged_to_people_who_trust_them(what: str) -> None:
    body = HONEST[what]()
    page = Page(trusted=True)

    async def show() -> None:
        await page.show(body, metadata={"x": 1}, display_id="d")

    assert longest_stall_s(show) <= stall_limit_s()
    content = json.loads(page.contents[-1])
    assert content["data"] == json.loads(body)
    assert content["metadata"] == {"x": 1}
    assert len(content["transient"]["display_id"]) == 32


@pytest.mark.parametrize("kind", ["display", "result", "update", "comm"])
@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
async def test_a_large_message_says_what_a_small_one_does(kind: str, trusted: bool) -> None:
    content = {"text/plain": "a\x1b[31mb" * 3_000, "image/png": PNG, "x/y": [1, {"a": None}]}
    details = {"display_id": "d", "metadata": {"image/png": {"width": 3}}, "kind": "comm_msg"}
    small, large = Page(trusted=trusted), Page(trusted=trusted)
    shown = DisplayMessage(kind=kind, bundle=content, details=details)
    for page in (small, large):
        first = DisplayMessage(kind="display", bundle={}, details={"display_id": "d"})
        assert page.output.show("c", first) is None
    assert small.output.show("c", shown) is None
    await large.show(json.dumps(content).encode(), kind, **details)
    found = [[json.loads(part) for part in page.contents] for page in (small, large)]
    for contents in found:
        for part in contents:
            if part.get("transient"):
                assert part["transient"].pop("display_id")
    assert found[0] == found[1]
    assert len(found[0]) == (1 if kind == "comm" and not trusted else 2)
    if not trusted:
        assert small.contents[1:] == large.contents[1:] or kind != "result", "byte for byte"


async def test_a_large_update_of_what_is_not_there_is_dropped() -> None:
    page = Page(trusted=True)
    await page.show(bundle("text/plain", "x", 100_000), "update", display_id="never")
    assert page.contents == []


def test_thousands_of_displays_in_a_row_do_not_hold_up_the_loop() -> None:
    frames = [
        encode("show", {"id": 1, "what": "display"}, (b'{"text/plain":"\\u001b[31m%d"}' % number,))
        for number in range(2_000)
    ]

    async def show() -> None:
        router, page = DisplayRouter(), Page(trusted=False)
        router.watch("c", page.output, ExecuteOptions())
        peer = Peer(displays=router)
        await peer.start()
        call = peer.call()
        sending = asyncio.get_running_loop().sock_sendall
        await sending(peer.channel, b"".join([*frames, encode("done", {"id": 1}, (b"",) * 4)]))
        await call.future
        peer.close()
        texts = [json.loads(content)["data"]["text/plain"] for content in page.contents]
        assert texts == [f"{number}" for number in range(2_000)]

    assert longest_stall_s(show) <= stall_limit_s()


COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")
ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[PX^_][^\x1b\n]*\x1b\\|[ -/]*[0-~])"
)


@given(st.text(alphabet=st.sampled_from("\x1b[]31m;\x07\\P\nx \r\u202e(A?"), max_size=30))
def test_colours_are_found_in_one_pass_as_they_are_one_by_one(text: str) -> None:
    parts = COLOUR.split(text)
    parts[::2] = [visible(ESCAPE.sub("", part), "\n\t\xa0\u202f\u3000\ufe0f\r\b") for part in parts[::2]]
    assert coloured(text) == "".join(parts)
