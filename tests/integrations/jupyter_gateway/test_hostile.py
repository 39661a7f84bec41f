"""Servers that lie, flood, stall and point elsewhere: sessions survive, the token goes to nobody else."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_core import to_json
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketHandler

from aisotools.core.exceptions import SandboxError
from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolCall, ToolResult
from aisotools.integrations.jupyter_gateway import http as remote_http
from aisotools.integrations.jupyter_gateway.http import parse_address
from aisotools.integrations.jupyter_gateway.payload import EMIT_MIME, RESULT_MIME
from aisotools.integrations.jupyter_gateway.sandbox import GatewaySandbox, RemoteSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.testing.contracts import RecordingListener
from aisotools.tools.function import FunctionTool, tool
from tests.waiting import loop_turns

TOKEN = "open-sesame-4711"

SAYS = {"python": list(sys.version_info[:2]), "aisotools": "", "pydantic": True}

Play = Callable[["Villain", dict[str, Any], dict[str, Any]], None]
"""Answers one execute request: the villain, the request, and its content."""


class Villain(WebSocketHandler):
    """The channels of a kernel that does what a test has in mind."""

    play: Play

    def initialize(self, play: Play) -> None:
        self.play = play

    def on_message(self, message: str | bytes) -> None:
        request = json.loads(message)
        content = request["content"]
        if request["header"]["msg_type"] == "kernel_info_request":
            self.say("shell", "kernel_info_reply", request, {"implementation": "ipython"})
        elif ".hello(" in str(content):
            self.answer(request, self.application.settings["says"])
        elif "aisotools_remote" in content["code"] and ".run_call(" not in content["code"]:
            self.answer(request, {})
        else:
            self.play(self, request, content)

    def answer(self, request: Mapping[str, Any], result: Any) -> None:
        answer = {"data": {RESULT_MIME: result}}
        self.reply(request, user_expressions={"answer": answer})

    def reply(self, request: Mapping[str, Any], **content: Any) -> None:
        self.say("shell", "execute_reply", request, {"status": "ok", **content})
        self.say("iopub", "status", request, {"execution_state": "idle"})

    def say(self, channel: str, kind: str, request: Any, content: Any) -> None:
        parent = request["header"] if isinstance(request, dict) and "header" in request else request
        message = {
            "channel": channel,
            "header": {"msg_type": kind, "msg_id": "x"},
            "parent_header": parent,
            "content": content,
        }
        self.write_message(json.dumps(message))


@dataclass
class Den:
    """Where villains live: what they were asked, and with which authorization."""

    url: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    deleted: int = 0


@asynccontextmanager
async def den(
    play: Play, *, says: Mapping[str, Any] | None = None, **rest: type[RequestHandler]
) -> AsyncIterator[Den]:
    here = Den()

    class Kernels(RequestHandler):
        def prepare(self) -> None:
            here.asked.append((self.request.method or "", self.request.headers.get("Authorization", "")))

        def post(self, *_: str) -> None:
            self.set_status(201)
            self.write({"id": "k-1"})

        def get(self, *_: str) -> None:
            self.write({"id": "k-1"})

        def delete(self, *_: str) -> None:
            here.deleted += 1
            self.set_status(204)

    rows: list[Any] = [
        (r"/api/kernels/k-1/channels", rest.get("channels", Villain)),
        (r"/api/kernels.*", rest.get("kernels", Kernels)),
    ]
    if "channels" not in rest:
        rows[0] = (*rows[0], {"play": play})
    sockets = bind_sockets(0, "127.0.0.1")
    http = HTTPServer(Application(rows, websocket_max_message_size=1 << 30, says=says or SAYS))
    http.add_sockets(sockets)
    here.url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    try:
        yield here
    finally:
        http.stop()
        await http.close_all_connections()


@pytest.fixture
def listener() -> RecordingListener:
    return RecordingListener()


def kernel(url: str, listener: RecordingListener, **options: Any) -> RemoteSandbox:
    options.setdefault("start_timeout_s", 5.0)
    wanted = WorkerSpec(level="limited", workspace="/nowhere", limits=Limits())
    return GatewaySandbox(url, TOKEN, **options)(wanted, listener)


@tool
def _seven() -> int:
    """Seven."""
    return 7


def request(one: FunctionTool[..., Any] = _seven, timeout_s: float = 3.0) -> SandboxCall:
    shipment = one.shipment()
    assert shipment is not None
    return SandboxCall(call=ToolCall("c-1", one.name, {}), shipment=shipment, timeout_s=timeout_s)


async def given(play: Play, listener: RecordingListener, **options: Any) -> ToolResult:
    async with den(play) as here:
        sandbox = kernel(here.url, listener)
        try:
            return await sandbox.call(request(**options))
        finally:
            await sandbox.close()


def pieces(head: Any, *more: Any) -> list[str]:
    parts = [to_json(head), *(m if isinstance(m, bytes) else to_json(m) for m in more)]
    return [base64.b64encode(part).decode() for part in (*parts, b"", b"", b"")[:4]]


def nonce_of(content: Mapping[str, Any]) -> str:
    nonce: str = content["user_expressions"]["answer"].split("'")[1]
    return nonce


HEAD = {"content": "7", "kind": "json"}


async def test_an_honest_answer_is_taken(listener: RecordingListener) -> None:
    def play(villain: Villain, asked: dict[str, Any], content: dict[str, Any]) -> None:
        villain.answer(asked, {"nonce": nonce_of(content), "pieces": pieces(HEAD, 7)})

    result = await given(play, listener)
    assert (result.is_error, result.value) == (False, 7)


FORGERIES: Mapping[str, Callable[[str], Any]] = {
    "no object": lambda nonce: [nonce],
    "another call's": lambda nonce: {"nonce": nonce[::-1] + "x", "pieces": pieces(HEAD, 8)},
    "no pieces": lambda nonce: {"nonce": nonce, "pieces": {}},
    "too many": lambda nonce: {"nonce": nonce, "pieces": ["e30="] * 1000},
    "numbers": lambda nonce: {"nonce": nonce, "pieces": [1, 2, 3, 4]},
    "no base64": lambda nonce: {"nonce": nonce, "pieces": ["?"] * 4},
    "no JSON": lambda nonce: {"nonce": nonce, "pieces": [base64.b64encode(b"{").decode()] * 4},
    "unknown kind": lambda nonce: {"nonce": nonce, "pieces": pieces({"content": "", "kind": "code"})},
    "no text": lambda nonce: {"nonce": nonce, "pieces": pieces({"content": 5, "kind": "text"})},
    "deep": lambda nonce: {"nonce": nonce, "pieces": [base64.b64encode(b"[" * 5000).decode()] * 4},
}


@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES)
async def test_forged_results_are_refused(forged: Callable[[str], Any], listener: RecordingListener) -> None:
    def play(villain: Villain, asked: dict[str, Any], content: dict[str, Any]) -> None:
        villain.answer(asked, forged(nonce_of(content)))

    result = await given(play, listener)
    assert result.is_error
    assert result.error_kind == "environment"
    assert "malformed" in result.content


async def test_answers_to_other_requests_are_dropped(listener: RecordingListener) -> None:
    def play(villain: Villain, asked: dict[str, Any], content: dict[str, Any]) -> None:
        for parent in ({"msg_id": "another"}, {}, None, {"msg_id": ["x"]}, "text"):
            villain.say("shell", "execute_reply", parent, {"status": "ok"})
            villain.say("iopub", "status", parent, {"execution_state": ["dead"]})
        for odd in ("null", "[]", "{", '{"header": 1}', '"x"', '{"header": {"msg_type": 1}, "content": {}}'):
            villain.write_message(odd)
        villain.write_message(b"\0" * 100, binary=True)
        villain.say("iopub", "execute_reply", asked, {"status": "error"})
        villain.answer(asked, {"nonce": nonce_of(content), "pieces": pieces(HEAD, 7)})
        villain.answer(asked, {"nonce": nonce_of(content), "pieces": pieces(HEAD, 666)})

    assert (await given(play, listener)).value == 7


async def test_displays_are_bounded_and_checked(listener: RecordingListener) -> None:
    def play(villain: Villain, asked: dict[str, Any], content: dict[str, Any]) -> None:
        nonce = nonce_of(content)
        for odd in ({}, {"name": "stdin", "text": "x"}, {"name": "stdout", "text": 5}, {"name": ["stdout"]}):
            villain.say("iopub", "stream", asked, odd)
        for _ in range(3):
            villain.say("iopub", "stream", asked, {"name": "stdout", "text": "é" * (1 << 20)})
        for emitted in (
            {"nonce": "forged", "name": "step", "payload": {}},
            {"nonce": nonce, "name": 5, "payload": {}},
            {"nonce": nonce, "name": "step", "payload": []},
            {"nonce": nonce, "name": "step", "payload": {"x": "y" * (1 << 17)}},
            {"nonce": nonce, "name": "n" * 1000, "payload": {"x": 1}},
        ):
            villain.say("iopub", "display_data", asked, {"data": {EMIT_MIME: emitted}})
        villain.say("iopub", "display_data", asked, {"data": ["x"]})
        villain.say("iopub", "display_data", asked, {"data": {"text/html": "<b>"}, "transient": 5})
        villain.say("iopub", "error", asked, {"ename": 5, "traceback": [1, "x" * 1_000_000]})
        villain.answer(asked, {"nonce": nonce, "pieces": pieces(HEAD, 7)})

    result = await given(play, listener)
    assert result.value == 7
    printed = "".join(str(event[3]) for event in listener.events if event[0] == "output")
    assert len(printed.encode()) <= 1 << 20
    assert result.metadata["dropped_bytes"] >= 5 << 20
    assert [event[2] for event in listener.events if event[0] == "emitted"] == ["n" * 200]


async def test_an_endless_stream_ends_with_the_call(listener: RecordingListener) -> None:
    async def flood(villain: Villain, asked: dict[str, Any]) -> None:
        while villain.ws_connection is not None:
            villain.say("iopub", "stream", asked, {"name": "stdout", "text": "x" * 10_000})
            await asyncio.sleep(0)

    floods = []

    def play(villain: Villain, asked: dict[str, Any], content: dict[str, Any]) -> None:
        floods.append(asyncio.ensure_future(flood(villain, asked)))

    result = await given(play, listener, timeout_s=0.5)
    assert result.metadata["timed_out"] is True
    for task in floods:
        task.cancel()
        await asyncio.wait([task])


async def test_useless_messages_end_the_connection(listener: RecordingListener) -> None:
    def play(villain: Villain, asked: dict[str, Any], content: dict[str, Any]) -> None:
        for _ in range(25_000):
            villain.write_message('{"no": "use"}')

    result = await given(play, listener, timeout_s=1000)
    assert result.metadata["worker_died"] is True
    assert "flooded" in result.content


async def test_a_giant_message_ends_the_connection(
    listener: RecordingListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_http, "MESSAGE_BYTES", 1 << 20)

    def play(villain: Villain, asked: dict[str, Any], content: dict[str, Any]) -> None:
        villain.say("iopub", "stream", asked, {"name": "stdout", "text": "x" * (2 << 20)})

    result = await given(play, listener)
    assert result.is_error
    assert "The connection broke during the call" in result.content
    assert not listener.kinds().count("output")


@pytest.mark.parametrize(
    ("says", "message"),
    [
        ({**SAYS, "python": [3, 99]}, "same version of Python"),
        ({**SAYS, "pydantic": False}, "needs the library pydantic"),
        ({**SAYS, "pydantic": "yes"}, "needs the library pydantic"),
    ],
)
async def test_kernel_that_cannot_run_tools_is_reported(
    says: Mapping[str, Any], message: str, listener: RecordingListener
) -> None:
    async with den(lambda *_: None, says=says) as here:
        sandbox = kernel(here.url, listener)
        result = await sandbox.call(request())
        assert result.error_kind == "environment"
        assert message in result.content
        await sandbox.close()
        assert here.deleted == 1


@pytest.mark.parametrize("python", [[3, 9], "3.11", [3], None, ["3", "11"]])
async def test_kernels_of_no_use_are_ended(python: Any, listener: RecordingListener) -> None:
    async with den(lambda *_: None, says={**SAYS, "python": python}) as here:
        sandbox = kernel(here.url, listener)
        with pytest.raises(SandboxError, match="cannot be used"):
            await sandbox.start()
        await sandbox.close()
        assert here.deleted == 1


async def test_a_kernel_that_comes_too_late_is_ended(listener: RecordingListener) -> None:
    asked, release, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(RequestHandler):
        async def post(self, *_: str) -> None:
            asked.set()
            await release.wait()
            self.write({"id": "k-1"})

        def delete(self, *_: str) -> None:
            ended.set()
            self.set_status(204)

    async with den(lambda *_: None, kernels=Slow) as here:
        sandbox = kernel(here.url, listener)
        starting = asyncio.ensure_future(sandbox.start())
        await asked.wait()
        starting.cancel()
        await loop_turns()
        release.set()
        await sandbox.close()
        assert ended.is_set()
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.start()


async def test_redirects_are_not_followed_and_the_token_stays(listener: RecordingListener) -> None:
    async with den(lambda *_: None) as other:

        class Redirect(RequestHandler):
            def post(self, *_: str) -> None:
                self.redirect(f"{other.url}/api/kernels?token={TOKEN}", status=307)

        class Kernels(RequestHandler):
            def post(self, *_: str) -> None:
                self.write({"id": "k-1"})

            def delete(self, *_: str) -> None:
                self.set_status(204)

        class Channels(RequestHandler):
            def get(self, *_: str) -> None:
                self.redirect(f"{other.url}/api/kernels/k-1/channels?leak={TOKEN}")

        for rest in ({"kernels": Redirect}, {"kernels": Kernels, "channels": Channels}):
            async with den(lambda *_: None, **rest) as here:
                sandbox = kernel(here.url, listener)
                with pytest.raises(SandboxError, match="not followed") as raised:
                    await sandbox.start()
                assert TOKEN not in str(raised.value)
                await sandbox.close()
        assert other.asked == []


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"id": 5}', b'{"id": ""}', b'{"id": "' + b"x" * 9000 + b'"}']
)
async def test_server_that_is_no_jupyter_server_is_reported(body: bytes, listener: RecordingListener) -> None:
    class Odd(RequestHandler):
        def post(self, *_: str) -> None:
            self.write(body)

    async with den(lambda *_: None, kernels=Odd) as here:
        with pytest.raises(SandboxError, match="Check the URL"):
            await kernel(here.url, listener).start()


async def test_an_id_stays_a_part_of_the_path(listener: RecordingListener) -> None:
    asked: list[str] = []

    class Odd(RequestHandler):
        def prepare(self) -> None:
            asked.append(self.request.uri or "")

        def post(self, *_: str) -> None:
            self.write({"id": "../../api/shutdown?x=#"})

        def delete(self, *_: str) -> None:
            self.set_status(204)

    async with den(lambda *_: None, kernels=Odd) as here:
        with pytest.raises(SandboxError):
            await kernel(here.url, listener).start()
    assert all(uri.startswith("/api/kernels") and "shutdown?" not in uri for uri in asked), asked


async def test_a_server_that_drips_is_not_waited_for(listener: RecordingListener) -> None:
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for char in b"HTTP/1.1 201 Created\r\nX-Slow: " + b"a" * 100_000:
                writer.write(bytes([char]))
                await asyncio.sleep(0.05)
        except ConnectionError:
            return
        finally:
            writer.close()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(SandboxError, match="did not respond in time"):
        await kernel(f"http://127.0.0.1:{port}", listener, start_timeout_s=0.5).start()
    server.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "give a URL"),
        ("127.0.0.1:8888", "give a URL"),
        ("ftp://host", "give a URL"),
        ("http://", "give a URL"),
        ("http://host\n.evil", "give a URL"),
        ("http://host:notaport", "not a URL"),
        ("http://me:hunter2@host", "leave user name and password out"),
    ],
)
def test_bad_addresses_are_named(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        parse_address(url, "secret")
    assert "secret" not in str(error.value)
    assert "hunter2" not in str(error.value)


def test_addresses_are_taken_as_people_copy_them() -> None:
    address = parse_address(f"http://127.0.0.1:8888/user/ada/lab?token={TOKEN}")
    assert (address.url, address.token) == ("http://127.0.0.1:8888/user/ada", TOKEN)
    assert TOKEN not in repr(address)
    assert TOKEN not in repr(GatewaySandbox(f"http://127.0.0.1:8888/?token={TOKEN}"))
    assert parse_address("https://[::1]:8888/", "t").websocket_url == "wss://[::1]:8888"
    with pytest.raises(ValueError, match="cannot be sent") as error:
        parse_address("http://127.0.0.1", "se cret\r\nX-Evil: 1")
    assert "Evil" not in str(error.value)
    with pytest.raises(TypeError, match="give the server's token"):
        parse_address("http://127.0.0.1", 5)


def test_a_token_in_the_clear_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    parse_address("http://hub.example.org", TOKEN)
    assert "unencrypted" in caplog.text
    assert TOKEN not in caplog.text
