"""One kernel at a gateway and the connection to it: cells go there, what they show comes back.

The other end is hostile. A message is parsed only if it is small enough, and belongs to a cell of ours or is
counted as waste; too much of that ends the connection. Nothing in a message decides what it is for but the id
of the request, which the kernel cannot know of a cell before it gets it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from aisotools.core.exceptions import WorkerDied
from aisotools.integrations.jupyter_gateway.http import Gateway, GatewayError, promptly
from aisotools.sandbox.worker.output import TokenBucket

_log = logging.getLogger(__name__)

_WASTE_AT_ONCE, _WASTE_PER_S = 20_000, 200.0
_BYTES_PER_CELL = 1 << 30
_SMALL_BYTES, _MOST_CONTAINERS = 1 << 18, 1 << 20
_AFTER_REPLY_S = 1.0
_LEAVE_S = 0.5
_GONE = frozenset({"restarting", "autorestarting", "dead"})

Hear = Callable[[str, Mapping[str, Any]], None]
"""Takes what a cell shows: the kind of message and its content."""


@dataclass(slots=True, kw_only=True)
class Running:
    """One cell under way.

    Attributes:
        hear: Takes what it shows.
        reply: Gets the reply's content, or the reason why there is none.
        idle: Set when everything that it showed has come.
        left_bytes: What may still come.
    """

    hear: Hear
    reply: asyncio.Future[Mapping[str, Any]]
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    left_bytes: int = _BYTES_PER_CELL


class RemoteLink:
    """A kernel that was made for us, and is ended by us.

    Attributes:
        kernel: Its id.
        shipped: Keys of the tools that it has.
        lost: Gets the reason when the kernel is of no use any more.
        info: What our module in it tells.
        own_kind: Whether it says that it is a sandbox of this package.
        banner: What it says about itself, such as its level: a claim.
    """

    def __init__(self, gateway: Gateway, kernel: str) -> None:
        """Be ready to connect to `kernel`."""
        self._gateway = gateway
        self.kernel = kernel
        self.shipped: set[str] = set()
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.info: Mapping[str, Any] = {}
        self.own_kind = False
        self.banner = ""
        self._client = uuid.uuid4().hex
        self._closing = False
        self._socket: Any = None
        self._reading: asyncio.Task[None] | None = None
        self._running: dict[str, Running] = {}
        self._waste = TokenBucket(_WASTE_AT_ONCE, _WASTE_PER_S)

    def __repr__(self) -> str:
        return f"<RemoteLink to kernel {self.kernel!r} at {self._gateway!r}>"

    @property
    def connected(self) -> bool:
        """Whether messages can be exchanged."""
        return self._socket is not None and not self.lost.done()

    async def connect(self, timeout_s: float) -> None:
        """Have a connection over which the kernel answers; a new one if the last one broke.

        Raises:
            GatewayError: If the gateway cannot be reached.
            WorkerDied: If the kernel does not answer.
        """
        self._socket = await self._gateway.open_socket(self.kernel, self._client, timeout_s)
        self._waste = TokenBucket(_WASTE_AT_ONCE, _WASTE_PER_S)
        self._reading = asyncio.get_running_loop().create_task(self._read(self._socket))
        await self.introduce(timeout_s)

    async def introduce(self, timeout_s: float) -> None:
        """Have the kernel say what it is.

        Raises:
            WorkerDied: If it does not answer.
        """
        try:
            async with asyncio.timeout(timeout_s):
                told = await self._asked("kernel_info_request", {}, lambda _kind, _content: None)
        except TimeoutError:
            raise WorkerDied(f"the remote kernel does not answer within {timeout_s:g} s") from None
        self.own_kind = told.get("implementation") == "aisotools"
        banner = told.get("banner")
        self.banner = "".join(c for c in banner[:500] if c.isprintable()) if isinstance(banner, str) else ""

    # ---- asking

    async def _asked(self, kind: str, content: Mapping[str, Any], hear: Hear) -> Mapping[str, Any]:
        name, running = await self._send(kind, content, hear)
        try:
            return await running.reply
        finally:
            self._running.pop(name, None)

    async def begin(self, code: str, hear: Hear, **how: Any) -> tuple[str, Running]:
        """Send a cell; `end` is to be called with its id when nobody waits for it any more.

        Raises:
            WorkerDied: If there is no connection.
        """
        content = {
            "code": code,
            "silent": False,
            "store_history": False,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        return await self._send("execute_request", content | how, hear)

    def end(self, name: str) -> None:
        """Nobody waits for that cell any more."""
        self._running.pop(name, None)

    async def outcome(self, running: Running) -> Mapping[str, Any]:
        """The reply to a cell, once everything that it showed has come.

        Raises:
            WorkerDied: If the kernel or the connection was lost.
        """
        reply = await asyncio.shield(running.reply)
        with contextlib.suppress(TimeoutError):  # the reply counts all the same
            await asyncio.wait_for(running.idle.wait(), _AFTER_REPLY_S)
        return reply

    async def ask(self, expression: str, timeout_s: float, before: str = "") -> Mapping[str, Any]:
        """What an expression gives that gives an answer of ours, after the cell `before`.

        Raises:
            WorkerDied: If it does not.
        """
        found: dict[str, Any] = {}

        def hear(kind: str, content: Mapping[str, Any]) -> None:
            if kind == "execute_result" and self.own_kind:
                found.update(spoken_answer(content))

        try:
            async with asyncio.timeout(timeout_s):
                name, running = await self._send_for_answer(expression, before, hear)
                try:
                    reply = await self.outcome(running)
                finally:
                    self.end(name)
        except TimeoutError:
            raise WorkerDied(f"the remote kernel does not answer within {timeout_s:g} s") from None
        if reply.get("status") != "ok":
            told = f"{reply.get('ename')}: {reply.get('evalue')}"[:300]
            raise WorkerDied(f"the remote kernel cannot be set up: {told}")
        return found or told_answer(reply)

    async def _send_for_answer(self, expression: str, before: str, hear: Hear) -> tuple[str, Running]:
        if self.own_kind:
            return await self.begin(f"{before}\n{expression}", hear)
        return await self.begin(before, hear, silent=True, user_expressions={"answer": expression})

    async def _send(self, kind: str, content: Mapping[str, Any], hear: Hear) -> tuple[str, Running]:
        socket = self._socket
        if socket is None or self.lost.done():
            raise WorkerDied(self.lost.result() if self.lost.done() else "there is no connection to it")
        name = uuid.uuid4().hex
        message = {
            "channel": "shell",
            "header": {
                "msg_id": name,
                "msg_type": kind,
                "session": self._client,
                "username": "aisotools",
                "date": "2000-01-01T00:00:00Z",
                "version": "5.3",
            },
            "parent_header": {},
            "metadata": {},
            "content": content,
        }
        reply: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        running = self._running[name] = Running(hear=hear, reply=reply)
        try:
            await socket.write_message(json.dumps(message))
        except Exception as error:
            self.end(name)
            raise WorkerDied(f"the connection to the gateway broke: {type(error).__name__}") from None
        return name, running

    async def interrupt(self, timeout_s: float = 5.0) -> None:
        """Have the kernel stop what it runs.

        Raises:
            GatewayError: If the gateway cannot be asked.
        """
        await self._gateway.interrupt_kernel(self.kernel, timeout_s)
        if self.connected:
            # A kernel that awaits something notices the signal only when its loop wakes.
            with contextlib.suppress(WorkerDied):
                name, running = await self._send("kernel_info_request", {}, lambda _kind, _content: None)
                running.reply.add_done_callback(lambda _: self.end(name))

    # ---- what comes

    async def _read(self, socket: Any) -> None:
        why = "the connection to the gateway broke"
        try:
            while (raw := await socket.read_message()) is not None:
                promptly(socket)
                self._take(raw)
        except _Flooded as error:
            why = str(error)
            self.lose(why)
        except Exception as error:
            why = f"{why}: {type(error).__name__}"
            _log.warning("Reading from %r failed", self, exc_info=True)
        if socket is self._socket:
            self._socket = None
        await _shut(socket)
        self._fail(why)

    def _take(self, raw: str | bytes) -> None:
        if not isinstance(raw, str) or (
            len(raw) > _SMALL_BYTES and raw.count("[") + raw.count("{") > _MOST_CONTAINERS
        ):
            return self._count_waste()
        try:
            message = from_json(raw, allow_inf_nan=True)
            kind, content = message["header"]["msg_type"], message["content"]
            parent = (message.get("parent_header") or {}).get("msg_id")
        except (ValueError, TypeError, KeyError, AttributeError):
            return self._count_waste()
        if not isinstance(kind, str) or not isinstance(content, dict):
            return self._count_waste()
        if kind == "status" and str(content.get("execution_state")) in _GONE:
            return self.lose("the remote kernel ended, or was restarted by its server")
        running = self._running.get(parent) if isinstance(parent, str) else None
        if running is None:
            return self._count_waste()
        running.left_bytes -= len(raw)
        if running.left_bytes < 0:
            raise _Flooded("it sends more than any call may")
        self._deliver(running, kind, content, message.get("channel"))
        return None

    def _deliver(self, running: Running, kind: str, content: dict[str, Any], channel: object) -> None:
        if kind == "status":
            if content.get("execution_state") == "idle" and channel == "iopub":
                running.idle.set()
        elif kind in {"execute_reply", "kernel_info_reply"} and channel == "shell":
            if running.reply.done():
                self._count_waste()
            else:
                running.reply.set_result(content)
        elif channel == "iopub":
            running.hear(kind, content)
        else:
            self._count_waste()

    def _count_waste(self) -> None:
        if not self._waste.take():
            raise _Flooded("it floods the connection with messages that are of no use")

    # ---- ends

    def lose(self, reason: str) -> None:
        """The kernel is of no use any more: cells under way fail, and nothing more is sent."""
        if not self.lost.done():
            self.lost.set_result(reason)
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        for running in self._running.values():
            running.idle.set()
            if not running.reply.done():
                running.reply.set_exception(WorkerDied(reason))
                running.reply.exception()  # whoever waits sees it; nobody may be waiting any more

    async def disconnect(self) -> None:
        """Close the connection; the kernel stays."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await _shut(socket)
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_LEAVE_S)
            self._reading.cancel()

    async def close(self, reason: str) -> None:
        """End the kernel, as far as the gateway can be asked; once."""
        if self._closing:
            return
        self._closing = True
        self.lose(reason)
        await self.disconnect()
        try:
            await self._gateway.end_kernel(self.kernel, 5.0)
        except GatewayError as error:
            _log.warning("The kernel %s may go on running: %s", self.kernel, error)


class _Flooded(Exception):
    """The other end sends too much."""


async def _shut(socket: Any) -> None:
    """Close a WebSocket, whether the other end agrees or not."""
    protocol = socket.protocol
    if protocol is None:
        return
    stream = protocol.stream
    socket.close()
    with contextlib.suppress(TimeoutError):  # then it is closed without their leave
        async with asyncio.timeout(_LEAVE_S):
            while not stream.closed():  # noqa: ASYNC110 - tornado tells nobody
                await asyncio.sleep(0.01)
    stream.close()


def told_answer(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our answer in a reply; empty if there is none."""
    from aisotools.integrations.jupyter_gateway.payload import RESULT_MIME

    told: Any = reply
    for step in ("user_expressions", "answer", "data", RESULT_MIME):
        told = told.get(step) if isinstance(told, dict) else None
    return told if isinstance(told, dict) else {}


def spoken_answer(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Our answer in the value of a cell, as text; empty if there is none."""
    data = content.get("data")
    text = data.get("text/plain") if isinstance(data, dict) else None
    try:
        # our own kernel tells below it that it left out the other form
        told = from_json(text.partition("\n")[0], allow_inf_nan=False) if isinstance(text, str) else None
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def pieces_of(answer: Mapping[str, Any], nonce: str) -> list[bytes]:
    """The pieces of a result in an answer; none if it is out of form."""
    pieces = answer.get("pieces")
    if answer.get("nonce") != nonce or not isinstance(pieces, list):
        return []
    try:
        return [base64.b64decode(piece, validate=True) for piece in pieces[:8]]
    except (TypeError, ValueError):
        return []
