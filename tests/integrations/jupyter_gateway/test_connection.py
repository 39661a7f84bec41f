"""The connection to a remote kernel: which messages count, and what ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from aisotools.core.exceptions import WorkerDied
from aisotools.integrations.jupyter_gateway.connection import (
    RemoteLink,
    answer_from_output,
    answer_from_reply,
    result_pieces,
)
from aisotools.integrations.jupyter_gateway.http import GatewayError
from aisotools.integrations.jupyter_gateway.payload import RESULT_MIME


class Socket:
    """A WebSocket whose messages the test sends and receives."""

    protocol = None

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.incoming: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self.written = asyncio.Event()

    async def write_message(self, text: str) -> None:
        self.sent.append(json.loads(text))
        self.written.set()

    async def read_message(self) -> str | bytes | None:
        return await self.incoming.get()

    def push(self, kind: str, content: Mapping[str, Any], channel: str, parent: str) -> None:
        message = {
            "header": {"msg_type": kind},
            "parent_header": {"msg_id": parent},
            "content": content,
            "channel": channel,
        }
        self.incoming.put_nowait(json.dumps(message))


class FakeGateway:
    """Answers every request; records those that end or interrupt kernels."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket
        self.requests: list[str] = []
        self.error: GatewayError | None = None

    async def open_socket(self, kernel: str, client: str, timeout_s: float) -> Socket:
        return self.socket

    async def interrupt_kernel(self, kernel: str, timeout_s: float) -> None:
        self.requests.append("interrupt")

    async def end_kernel(self, kernel: str, timeout_s: float) -> None:
        self.requests.append("end")
        if self.error is not None:
            raise self.error


async def connected(info: Mapping[str, Any] | None = None) -> tuple[RemoteLink, Socket, FakeGateway]:
    socket = Socket()
    gateway = FakeGateway(socket)
    link = RemoteLink(gateway, "k")  # type: ignore[arg-type]  # what the link uses of a gateway
    connecting = asyncio.ensure_future(link.connect(30))
    await socket.written.wait()
    socket.push("kernel_info_reply", info or {}, "shell", socket.sent[0]["header"]["msg_id"])
    await connecting
    return link, socket, gateway


async def test_the_kernel_introduces_itself() -> None:
    link, _, _ = await connected({"implementation": "aisotools", "banner": "level\x1b confined"})
    assert (link.own_kind, link.banner, link.connected) == (True, "level confined", True)
    await link.close("done")
    assert not link.connected


async def test_a_cell_gets_its_output_and_reply_and_no_other() -> None:
    link, socket, _ = await connected()
    outputs: list[str] = []
    request_id, pending = await link.execute("1", lambda kind, _content: outputs.append(kind))
    assert socket.sent[-1]["content"]["code"] == "1"
    socket.push("stream", {}, "iopub", "another")
    socket.push("stream", {}, "iopub", request_id)
    socket.push("stream", {}, "shell", request_id)
    socket.push("execute_reply", {"status": "error"}, "iopub", request_id)
    socket.push("execute_reply", {"status": "ok"}, "shell", request_id)
    socket.push("execute_reply", {"status": "late"}, "shell", request_id)
    socket.push("status", {"execution_state": "idle"}, "iopub", request_id)
    assert await link.wait_reply(pending) == {"status": "ok"}
    assert outputs == ["stream", "execute_reply"]
    link.forget(request_id)
    await link.close("done")


@pytest.mark.parametrize(
    "raw", ["not json", "[]", "{}", b"bytes", '{"header": {"msg_type": 1}, "content": {}}']
)
async def test_malformed_messages_are_dropped(raw: str | bytes) -> None:
    link, socket, _ = await connected()
    request_id, pending = await link.execute("1", lambda _kind, _content: None)
    socket.incoming.put_nowait(raw)
    socket.push("status", {"execution_state": "idle"}, "iopub", request_id)
    socket.push("execute_reply", {"status": "ok"}, "shell", request_id)
    assert (await link.wait_reply(pending))["status"] == "ok"
    await link.close("done")


async def test_too_much_output_ends_the_connection() -> None:
    link, socket, _ = await connected()
    request_id, pending = await link.execute("1", lambda _kind, _content: None)
    pending.left_bytes = 10
    socket.push("stream", {"text": "x" * 100}, "iopub", request_id)
    with pytest.raises(WorkerDied, match="more than a call may"):
        await link.wait_reply(pending)
    assert link.lost.result() == "it sent more than a call may"
    with pytest.raises(WorkerDied, match="more than a call may"):
        await link.execute("2", lambda _kind, _content: None)
    await link.close("done")


async def test_a_restarted_kernel_is_lost() -> None:
    link, socket, _ = await connected()
    _, pending = await link.execute("1", lambda _kind, _content: None)
    socket.push("status", {"execution_state": "restarting"}, "iopub", "")
    with pytest.raises(WorkerDied, match="was restarted by its server"):
        await link.wait_reply(pending)
    await link.close("done")


async def test_a_broken_connection_fails_the_request_and_keeps_the_kernel() -> None:
    link, socket, _ = await connected()
    _, pending = await link.execute("1", lambda _kind, _content: None)
    socket.incoming.put_nowait(None)
    with pytest.raises(WorkerDied, match="connection to the gateway broke"):
        await link.wait_reply(pending)
    assert not link.connected
    assert not link.lost.done()
    await link.close("done")


async def test_an_interrupt_wakes_the_loop_of_the_kernel() -> None:
    link, socket, gateway = await connected()
    await link.interrupt()
    assert gateway.requests == ["interrupt"]
    assert socket.sent[-1]["header"]["msg_type"] == "kernel_info_request"
    await link.close("done")


async def test_closing_ends_the_kernel_once_even_if_the_gateway_refuses() -> None:
    link, _, gateway = await connected()
    gateway.error = GatewayError("gone")
    await link.close("the session was closed")
    await link.close("again")
    assert gateway.requests == ["end"]
    assert link.lost.result() == "the session was closed"


# ---- answers


@pytest.mark.parametrize(
    "reply", [{}, {"user_expressions": 5}, {"user_expressions": {"answer": {"data": []}}}]
)
def test_replies_without_an_answer(reply: dict[str, Any]) -> None:
    assert answer_from_reply(reply) == {}


def test_an_answer_in_a_reply() -> None:
    data = {RESULT_MIME: {"python": [3, 11]}}
    assert answer_from_reply({"user_expressions": {"answer": {"data": data}}}) == {"python": [3, 11]}


@pytest.mark.parametrize("text", [None, 5, "", "not json", "[1]", "NaN"])
def test_outputs_without_an_answer(text: object) -> None:
    assert answer_from_output({"data": {"text/plain": text}}) == {}
    assert answer_from_output({"data": text}) == {}


def test_an_answer_in_an_output_is_its_first_line() -> None:
    assert answer_from_output({"data": {"text/plain": '{"a": 1}\n[left out]'}}) == {"a": 1}


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"nonce": "other", "pieces": ["AA=="]},
        {"nonce": "n", "pieces": "AA=="},
        {"nonce": "n", "pieces": ["*"]},
    ],
)
def test_malformed_pieces(answer: dict[str, Any]) -> None:
    assert result_pieces(answer, "n") == []


def test_pieces_are_decoded_and_bounded_in_number() -> None:
    assert result_pieces({"nonce": "n", "pieces": ["AA=="] * 20}, "n") == [b"\0"] * 8
