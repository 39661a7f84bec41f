"""A kernel at a gateway, and the connection over which it runs cells.

The kernel is untrusted. Messages that are too complex, malformed or belong to no request are dropped and
counted; too many end the connection. A message belongs to the request whose random id it names.
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
from aisotools.integrations.jupyter_gateway.http import Gateway, GatewayError, disable_delays
from aisotools.sandbox.worker.output import TokenBucket

_log = logging.getLogger(__name__)

_DROPPED_BURST = 20_000
_DROPPED_PER_S = 200.0
"""Dropped messages that are tolerated: so many at once, and so many per second."""
_MAX_BYTES_PER_REQUEST = 1 << 30
_SMALL_CHARS = 1 << 18
"""Shorter messages are parsed without counting containers."""
_MAX_CONTAINERS = 1 << 20
"""JSON arrays and objects in one message; each takes far more memory than text."""
_IDLE_WAIT_S = 1.0
"""Wait for the output of a cell after its reply; the channels are not ordered with each other."""
_CLOSE_TIMEOUT_S = 0.5
_END_KERNEL_TIMEOUT_S = 5.0
_DEAD_STATES = frozenset({"restarting", "autorestarting", "dead"})

OnOutput = Callable[[str, Mapping[str, Any]], None]
"""Called with the type and content of each IOPub message of a request."""


@dataclass(slots=True, kw_only=True)
class PendingRequest:
    """A request that was sent.

    Attributes:
        on_output: Receives its output.
        reply: Content of the reply, or the error because of which there is none.
        idle: Set when all of its output has arrived.
        left_bytes: Bytes that may still arrive.
    """

    on_output: OnOutput
    reply: asyncio.Future[Mapping[str, Any]]
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    left_bytes: int = _MAX_BYTES_PER_REQUEST

    def ignore_output(self) -> None:
        """Drop the output that arrives from now on; the reply is still awaited."""
        self.on_output = lambda _kind, _content: None


class RemoteLink:
    """A kernel that was started for one sandbox, and is ended with it.

    Attributes:
        kernel: Id of the kernel.
        shipped: Keys of the tools that were sent to it.
        lost: Done with the reason once the kernel is unusable.
        info: What `payload.hello` answered, untrusted; empty before the kernel is prepared.
        own_kind: True if it claims to be a kernel of this package.
        banner: Its description of itself; untrusted.
    """

    def __init__(self, gateway: Gateway, kernel: str) -> None:
        """Prepare a connection to `kernel`; `connect` opens it."""
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
        self._pending: dict[str, PendingRequest] = {}
        self._dropped = TokenBucket(_DROPPED_BURST, _DROPPED_PER_S)

    def __repr__(self) -> str:
        return f"<RemoteLink to kernel {self.kernel!r} at {self._gateway!r}>"

    @property
    def connected(self) -> bool:
        """True if messages can be exchanged."""
        return self._socket is not None and not self.lost.done()

    def set_prepared(self, info: Mapping[str, Any]) -> None:
        """Note that the kernel is prepared for calls, and what `payload.hello` answered."""
        self.info = info

    async def connect(self, timeout_s: float) -> None:
        """Connect, or connect again after the connection broke.

        Raises:
            GatewayError: If the gateway cannot be reached.
            WorkerDied: If the kernel does not respond.
        """
        self._socket = await self._gateway.open_socket(self.kernel, self._client, timeout_s)
        self._dropped = TokenBucket(_DROPPED_BURST, _DROPPED_PER_S)
        self._reading = asyncio.get_running_loop().create_task(self._read(self._socket))
        await self.request_info(timeout_s)

    async def request_info(self, timeout_s: float) -> None:
        """Ask the kernel for its implementation and banner.

        Raises:
            WorkerDied: If it does not respond.
        """
        try:
            async with asyncio.timeout(timeout_s):
                info = await self._request("kernel_info_request", {}, lambda _kind, _content: None)
        except TimeoutError:
            raise WorkerDied(f"the remote kernel does not respond within {timeout_s:g} s") from None
        self.own_kind = info.get("implementation") == "aisotools"
        banner = info.get("banner")
        self.banner = "".join(c for c in banner[:500] if c.isprintable()) if isinstance(banner, str) else ""

    # -- requests

    async def _request(self, kind: str, content: Mapping[str, Any], on_output: OnOutput) -> Mapping[str, Any]:
        request_id, pending = await self._send(kind, content, on_output)
        try:
            return await pending.reply
        finally:
            self._pending.pop(request_id, None)

    async def execute(self, code: str, on_output: OnOutput, **options: Any) -> tuple[str, PendingRequest]:
        """Send a cell. Call `forget` with the returned id when nobody waits for it any more.

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
        return await self._send("execute_request", content | options, on_output)

    def forget(self, request_id: str) -> None:
        """Drop further messages of a request."""
        self._pending.pop(request_id, None)

    async def wait_reply(self, pending: PendingRequest) -> Mapping[str, Any]:
        """Return the reply to a cell, once all of its output has arrived.

        Raises:
            WorkerDied: If the kernel or the connection was lost.
        """
        # The reply outlives a waiter that is cancelled: the kernel sends it all the same, and whoever
        # interrupts the cell waits for it again.
        reply = await asyncio.shield(pending.reply)
        # A kernel that never reports idle has answered all the same.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(pending.idle.wait(), _IDLE_WAIT_S)
        return reply

    async def ask(self, expression: str, timeout_s: float, before: str = "") -> Mapping[str, Any]:
        """Run the cell `before`, then evaluate `expression`, a `payload.MimeValue`; return its value.

        Raises:
            WorkerDied: If the kernel fails to, or does not respond.
        """
        answer: dict[str, Any] = {}

        def on_output(kind: str, content: Mapping[str, Any]) -> None:
            if kind == "execute_result" and self.own_kind:
                answer.update(answer_from_output(content))

        try:
            async with asyncio.timeout(timeout_s):
                request_id, pending = await self._send_question(expression, before, on_output)
                try:
                    reply = await self.wait_reply(pending)
                finally:
                    self.forget(request_id)
        except TimeoutError:
            raise WorkerDied(f"the remote kernel does not respond within {timeout_s:g} s") from None
        if reply.get("status") != "ok":
            error = f"{reply.get('ename')}: {reply.get('evalue')}"[:300]
            raise WorkerDied(f"the remote kernel cannot be set up: {error}")
        return answer or answer_from_reply(reply)

    async def _send_question(
        self, expression: str, before: str, on_output: OnOutput
    ) -> tuple[str, PendingRequest]:
        if self.own_kind:
            return await self.execute(f"{before}\n{expression}", on_output)
        return await self.execute(before, on_output, silent=True, user_expressions={"answer": expression})

    async def _send(
        self, kind: str, content: Mapping[str, Any], on_output: OnOutput
    ) -> tuple[str, PendingRequest]:
        socket = self._socket
        if socket is None or self.lost.done():
            raise WorkerDied(self.lost.result() if self.lost.done() else "there is no connection to it")
        request_id = uuid.uuid4().hex
        message = {
            "channel": "shell",
            "header": {
                "msg_id": request_id,
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
        pending = self._pending[request_id] = PendingRequest(on_output=on_output, reply=reply)
        try:
            await socket.write_message(json.dumps(message))
        except Exception as error:
            self.forget(request_id)
            raise WorkerDied(f"the connection to the gateway broke: {type(error).__name__}") from None
        return request_id, pending

    async def interrupt(self, timeout_s: float = 5.0) -> None:
        """Interrupt the kernel.

        Raises:
            GatewayError: If the request fails.
        """
        await self._gateway.interrupt_kernel(self.kernel, timeout_s)
        if self.connected:
            # A kernel that awaits something notices the signal only when its loop wakes: send a message.
            with contextlib.suppress(WorkerDied):
                request_id, pending = await self._send(
                    "kernel_info_request", {}, lambda _kind, _content: None
                )
                pending.reply.add_done_callback(lambda _: self.forget(request_id))

    # -- messages

    async def _read(self, socket: Any) -> None:
        reason = "the connection to the gateway broke"
        try:
            while (raw := await socket.read_message()) is not None:
                disable_delays(socket)
                self._dispatch(raw)
        except _Flooded as error:
            reason = str(error)
            self.lose(reason)
        except Exception as error:
            reason = f"{reason}: {type(error).__name__}"
            _log.warning("Reading from %r failed", self, exc_info=True)
        # Race: `connect` may have opened another one in the meantime.
        if socket is self._socket:
            self._socket = None
        await _close_socket(socket)
        self._fail(reason)

    def _dispatch(self, raw: str | bytes) -> None:
        if not isinstance(raw, str) or (
            len(raw) > _SMALL_CHARS and raw.count("[") + raw.count("{") > _MAX_CONTAINERS
        ):
            return self._count_dropped()
        try:
            message = from_json(raw, allow_inf_nan=True)
            kind, content = message["header"]["msg_type"], message["content"]
            parent = (message.get("parent_header") or {}).get("msg_id")
        except (ValueError, TypeError, KeyError, AttributeError):
            return self._count_dropped()
        if not isinstance(kind, str) or not isinstance(content, dict):
            return self._count_dropped()
        if kind == "status" and str(content.get("execution_state")) in _DEAD_STATES:
            return self.lose("the remote kernel ended, or was restarted by its server")
        pending = self._pending.get(parent) if isinstance(parent, str) else None
        if pending is None:
            return self._count_dropped()
        pending.left_bytes -= len(raw)
        if pending.left_bytes < 0:
            raise _Flooded("it sent more than a call may")
        self._deliver(pending, kind, content, message.get("channel"))
        return None

    def _deliver(self, pending: PendingRequest, kind: str, content: dict[str, Any], channel: object) -> None:
        if kind == "status":
            if content.get("execution_state") == "idle" and channel == "iopub":
                pending.idle.set()
        elif kind in {"execute_reply", "kernel_info_reply"} and channel == "shell":
            if pending.reply.done():
                self._count_dropped()
            else:
                pending.reply.set_result(content)
        elif channel == "iopub":
            pending.on_output(kind, content)
        else:
            self._count_dropped()

    def _count_dropped(self) -> None:
        if not self._dropped.take():
            raise _Flooded("it flooded the connection with messages that belong to no request")

    # -- closing

    def lose(self, reason: str) -> None:
        """Mark the kernel as unusable: pending requests fail, and nothing more is sent."""
        if not self.lost.done():
            self.lost.set_result(reason)
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        for pending in self._pending.values():
            pending.idle.set()
            if not pending.reply.done():
                pending.reply.set_exception(WorkerDied(reason))
                pending.reply.exception()  # mark it as retrieved: nobody may be waiting any more

    async def disconnect(self) -> None:
        """Close the connection; the kernel stays."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await _close_socket(socket)
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_CLOSE_TIMEOUT_S)
            self._reading.cancel()

    async def close(self, reason: str) -> None:
        """Disconnect and end the kernel; later calls do nothing."""
        if self._closing:
            return
        self._closing = True
        self.lose(reason)
        await self.disconnect()
        try:
            await self._gateway.end_kernel(self.kernel, _END_KERNEL_TIMEOUT_S)
        except GatewayError as error:
            _log.warning("The kernel %s may go on running: %s", self.kernel, error)


class _Flooded(Exception):
    """The kernel sends too much."""


async def _close_socket(socket: Any) -> None:
    """Close a WebSocket; after `_CLOSE_TIMEOUT_S` without the server's consent."""
    protocol = socket.protocol
    if protocol is None:
        return
    stream = protocol.stream
    socket.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            while not stream.closed():  # noqa: ASYNC110 - tornado has no event for it
                await asyncio.sleep(0.01)
    stream.close()


def answer_from_reply(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `payload.MimeValue` in the user expressions of a reply, or an empty mapping."""
    from aisotools.integrations.jupyter_gateway.payload import RESULT_MIME

    node: Any = reply
    for key in ("user_expressions", "answer", "data", RESULT_MIME):
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def answer_from_output(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `payload.MimeValue` in the plain text of a cell's value, or an empty mapping.

    Kernels of this package remove unknown media types from outputs, so the answer comes as JSON text.
    """
    data = content.get("data")
    text = data.get("text/plain") if isinstance(data, dict) else None
    try:
        # The first line only: such a kernel adds a note about the removed form below it.
        answer = from_json(text.partition("\n")[0], allow_inf_nan=False) if isinstance(text, str) else None
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def result_pieces(answer: Mapping[str, Any], nonce: str) -> list[bytes]:
    """Return the encoded pieces of a result in an answer, or an empty list if it is malformed."""
    pieces = answer.get("pieces")
    if answer.get("nonce") != nonce or not isinstance(pieces, list):
        return []
    try:
        return [base64.b64decode(piece, validate=True) for piece in pieces[:8]]
    except (TypeError, ValueError):
        return []
