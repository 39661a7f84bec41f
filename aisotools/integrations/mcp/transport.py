"""Transports of the Model Context Protocol: bounded connections to servers, and a local HTTP server.

The library's own stdio client reads lines of any length, passes on more of the environment than a server
needs, and wants a standard error with a file descriptor, which a notebook does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import shlex
import signal
import socket
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import uvicorn
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage

from aisotools.core.exceptions import UsageError
from aisotools.core.threads import in_thread
from aisotools.core.truncation import HeadTailBuffer
from aisotools.integrations.addresses import is_loopback
from aisotools.integrations.mcp.messages import MAX_MESSAGE_BYTES, MESSAGE_EVENTS, Inbox, kept_field
from aisotools.policy.prompts import visible
from aisotools.sandbox.process.tree import signal_group
from aisotools.tools.validation import MAX_ARGUMENT_BYTES, short_repr

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "TEMP"),
)
"""Environment variables that a server's process inherits."""

STDERR_TAIL_BYTES = 2_000
"""How much of the end of a server's standard error appears in error messages."""

PATH = "/mcp"
MIN_TOKEN_CHARS = 32

_MAX_ERROR_CHARS = 2_000
_LINE_END = re.compile(rb"\r\n|\n|\r")
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_MAX_EVENT_LINES = 1_000
_MAX_HEADER_CHARS = 2_000
_READ_BYTES = 1 << 16
_BLANK_LINE_BYTES = 64
_BLANK_LINES_AT_ONCE = 100
_MAX_LINE_END = 3  # bytes of the end of an event that may have come already
_DATA_LINE = re.compile(rb"data(?::|$)")
_EXIT_GRACE_S = 1.0
"""Wait before each stronger way to end a server's process."""
_HTTP_TIMEOUT = httpx2.Timeout(30.0, read=3_600.0)
"""The read timeout is long: a call has a deadline of its own."""
_DELETE_TIMEOUT_S = 3.0
"""How long it may take to tell the server that its session ends."""
_NOTICE_TIMEOUT_S = 30.0
"""How long a server may take to accept what has no result. What is sent after it waits."""
_MAX_NOTICE_BYTES = 1 << 16
_MAX_FOLLOWED = 3
_METHODS_WITH_BODY = frozenset({"GET", "POST"})
_REDIRECTS = range(300, 400)
_MAX_REQUESTS = 256
_SHUTDOWN_GRACE_S = 1

Streams = tuple[Any, Any]
"""The memory streams that the library reads messages from and writes them to."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


# ---- connecting to servers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEndpoint:
    """How to reach a server: exactly one of `command` and `url` is set.

    Attributes:
        command: Program to start, with arguments.
        env: The program's whole environment.
        cwd: The program's working directory; None for the current one.
        url: Address of a running server.
        token: Bearer token for `url`.
    """

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | os.PathLike[str] | None = None
    url: str = ""
    token: str | None = field(default=None, repr=False)

    @property
    def description(self) -> str:
        """The command or address, for messages."""
        return visible(self.url or shlex.join(self.command), "")[:200]

    @property
    def host(self) -> str:
        """Host name of the server; empty for a program on this machine."""
        return urlsplit(self.url).hostname or ""

    def open(
        self, stderr: HeadTailBuffer, on_end: Callable[[str], object], inbox: Inbox
    ) -> AbstractAsyncContextManager[Streams]:
        """Return a context manager that connects; see `stdio_transport`."""
        if self.url:
            return http_transport(self.url, token=self.token, inbox=inbox)
        return stdio_transport(
            self.command, env=self.env, cwd=self.cwd, stderr=stderr, on_end=on_end, inbox=inbox
        )


def describe_error(error: BaseException) -> str:
    """Return type and message of an error, without the exception groups that libraries wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    # Cut first: it may quote a stranger's megabytes.
    return f"{type(error).__name__}: {visible(str(error)[:_MAX_ERROR_CHARS])[:_MAX_ERROR_CHARS].rstrip('.')}"


def environment(environ: Mapping[str, str], extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a server's process: the allowed part of `environ`, and `extra`."""
    inherited = {name: environ[name] for name in INHERITED if name in environ}
    return {**inherited, **(extra or {})}


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    stderr: HeadTailBuffer,
    on_end: Callable[[str], object],
    inbox: Inbox,
) -> AsyncIterator[Streams]:
    """Start a server and connect to its standard input and output. It is stopped at the end of the context.

    Args:
        command: Program and arguments.
        env: Its whole environment.
        cwd: Its working directory; None for the current one.
        stderr: Receives its standard error.
        on_end: Called with the reason when the connection ends, or a message is too long.
        inbox: Reads the messages.

    Raises:
        UsageError: If it cannot be started.
    """
    loop = asyncio.get_running_loop()
    try:
        # As `create_subprocess_exec` does, which keeps the transport to itself.
        pipes, protocol = await loop.subprocess_exec(
            lambda: SubprocessStreamProtocol(limit=_READ_BYTES, loop=loop),
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"{command[0]!r} cannot be started: {error}. Check the command.") from None
    process = Process(pipes, protocol, loop)
    incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.ensure_future(work)
        for work in (
            _receive(process, incoming, on_end, inbox),
            _send(process, outgoing),
            _drain(process, stderr),
        )
    ]
    try:
        yield reading, writing
    finally:
        # Shielded: a cancelled caller must not leave the process behind.
        with anyio.CancelScope(shield=True):
            try:
                await _stop(process)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                # What it has left in another process group may hold the other ends of its pipes.
                pipes.close()
                for stream in (incoming, reading, writing, outgoing):
                    stream.close()


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. Each is copied once: `readline` copies several times, without a break.

    Raises:
        ValueError: If one is longer than `MAX_MESSAGE_BYTES`.
    """
    pieces: list[bytes] = []
    size = 0
    while data := await stream.read(_READ_BYTES):
        start = 0
        while end := data.find(b"\n", start) + 1:
            pieces.append(data[start:end])
            line = b"".join(pieces)
            pieces.clear()
            yield line
            del line
            start, size = end, 0
        if start < len(data):
            pieces.append(data[start:])
            size += len(pieces[-1])
            if size > MAX_MESSAGE_BYTES:
                raise ValueError("the line is too long")
    if pieces:
        yield b"".join(pieces)


async def _receive(process: Process, incoming: Any, on_end: Callable[[str], object], inbox: Inbox) -> None:
    assert process.stdout is not None
    reason = "it ended"
    blank_lines = 0
    try:
        async for line in _lines(process.stdout):
            if len(line) <= _BLANK_LINE_BYTES and line.isspace():
                # What has come already is read without waiting, and there may be millions.
                blank_lines += 1
                if blank_lines % _BLANK_LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                continue
            await incoming.send(await inbox.read(line))
    except ValueError:
        # From `_lines`.
        reason = f"it sent a message of more than {MAX_MESSAGE_BYTES >> 20} MiB"
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError) as error:
        reason = f"the connection broke ({type(error).__name__})"
    finally:
        on_end(reason)
        incoming.close()
    # After an error: a pipe with unread data is paused, never sees its end, and would stay open.
    while await process.stdout.read(1 << 16):
        pass


async def _send(process: Process, outgoing: Any) -> None:
    assert process.stdin is not None
    async for message in outgoing:
        line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        try:
            process.stdin.write(line)
            await process.stdin.drain()
        except OSError:
            return  # the process ended; `_receive` reports it


async def _drain(process: Process, stderr: HeadTailBuffer) -> None:
    assert process.stderr is not None
    while data := await process.stderr.read(1 << 16):
        stderr.append(data)


async def _stop(process: Process) -> None:
    # As the protocol asks: close its input, then SIGTERM, then SIGKILL, each after a grace period.
    assert process.stdin is not None
    process.stdin.close()
    cancelled: asyncio.CancelledError | None = None
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            await asyncio.wait_for(process.wait(), _EXIT_GRACE_S)
            break
        except TimeoutError:
            signal_group(process.pid, number)
        except asyncio.CancelledError as error:
            # Case: the loop is about to end, and cancels what is left. Who is not waited for until then stays
            # a zombie, and its transport complains of the closed loop.
            cancelled = error
            break
    # Whatever it started in its process group ends with it.
    signal_group(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _EXIT_GRACE_S)
    if cancelled is not None:
        raise cancelled


def checked_url(url: str, *, secret: bool) -> str:
    """Return the address of a server unchanged, if it may be used.

    Args:
        url: The address.
        secret: True if a token is sent there.

    Raises:
        UsageError: If it is malformed, contains a password, or would send the token unencrypted.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(
            f"{url[:200]!r} is not the address of an MCP server. Give one that starts with https:// or http://."
        )
    if parts.username is not None or parts.password is not None:
        raise UsageError("Leave name and password out of the address, and name a variable with the token.")
    if secret and parts.scheme == "http" and not is_loopback(parts.hostname):
        raise UsageError(f"The token would be sent to {parts.hostname} unencrypted. Use https.")
    return url


class _BoundedStream(httpx2.AsyncByteStream):
    """A response body that fails beyond `max_bytes`, if that is given, and lets the loop go on."""

    def __init__(self, body: httpx2.AsyncByteStream, max_bytes: int | None) -> None:
        self._body = body
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._body:
            size += len(chunk)
            if self._max_bytes is not None and size > self._max_bytes:
                raise httpx2.ReadError(
                    f"The server sent more than {MAX_MESSAGE_BYTES >> 20} MiB in one response."
                )
            yield chunk
            # The server chooses how long the pieces are. Thousands of single bytes may come at once.
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        await self._body.aclose()


class _NoBody(httpx2.AsyncByteStream):
    """An empty body in the place of one that nobody needs."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        nothing: tuple[bytes, ...] = ()
        for piece in nothing:
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


class _ReadableBody(httpx2.AsyncByteStream):
    """The body of a response that is one message, in a form that the library can parse if there is one."""

    def __init__(self, body: httpx2.AsyncByteStream, inbox: Inbox) -> None:
        self._body = body
        self._inbox = inbox

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()  # a list of pieces could take a hundred times as much
        async for chunk in self._body:
            body += chunk
        yield await self._inbox.rewrite(bytes(body))

    async def aclose(self) -> None:
        await self._body.aclose()


class _ReadableEvents(httpx2.AsyncByteStream):
    """A stream of events, each with its message in a form that the library can parse if there is one.

    With `skip`, what is no message is left out: nothing was asked for that would end with it.
    """

    def __init__(self, body: httpx2.AsyncByteStream, inbox: Inbox, *, skip: bool = False) -> None:
        self._body = body
        self._inbox = inbox
        self._skip = skip

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pending = bytearray()
        async for chunk in self._body:
            searched = max(len(pending) - _MAX_LINE_END, 0)
            pending += chunk
            while found := _EVENT_END.search(pending, searched):
                with memoryview(pending) as view:
                    event = bytes(view[: found.end()])
                del pending[: found.end()]
                searched = 0
                if len(event) > _READ_BYTES:
                    await asyncio.sleep(0)  # to copy and to split what is long takes a while each
                yield await self._readable(event)
                # There may be thousands in what came at once.
                await asyncio.sleep(0)
            if len(pending) > MAX_MESSAGE_BYTES:
                raise httpx2.ReadError(
                    f"The server sent more than {MAX_MESSAGE_BYTES >> 20} MiB in one event."
                )
        if pending:
            yield await self._readable(bytes(pending))

    async def _readable(self, event: bytes) -> bytes:
        """Return an event; if its message has to be changed for it, with that on one line."""
        if event.count(b"\n") + event.count(b"\r") > 2 * _MAX_EVENT_LINES:
            raise httpx2.ReadError(f"The server sent an event of more than {_MAX_EVENT_LINES:,} lines.")
        plain = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in event else event
        ends = [found.start() for found in re.finditer(b"\n", plain)]
        spans = list(zip([0, *(end + 1 for end in ends)], [*ends, len(plain)], strict=True))
        data = [
            plain[start + (6 if plain.startswith(b"data: ", start) else 5) : end]
            for start, end in spans
            if _DATA_LINE.match(plain, start, end)
        ]
        others = [plain[start:end] for start, end in spans if not _DATA_LINE.match(plain, start, end)]
        fields = list(filter(None, map(kept_field, filter(None, others))))
        names = [line for line in fields if line.startswith(b"event")]
        if is_foreign := not MESSAGE_EVENTS.issuperset(names):
            # No message of the protocol. The library would log its name.
            fields, data = [line for line in fields if line not in names], []
        text = data[0] if len(data) == 1 else b"\n".join(data)
        if len(event) > _READ_BYTES:
            await asyncio.sleep(0)
        changed = await self._inbox.rewrite(text, skip=self._skip) if text else text
        if changed == text and fields == list(filter(None, others)) and not is_foreign:
            return event
        if not changed:
            return b"\n".join([*fields, *([b"data:"] if data else []), b"", b""]) if fields else b""
        # A text that is no message may have line ends of its own.
        changed = b"\ndata: ".join(_LINE_END.split(changed))
        return b"\n".join([*fields, b"data: " + changed, b"", b""])

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bound_response(response: httpx2.Response, inbox: Inbox) -> None:
    # Called before the body is read. A compressed body could grow beyond any bound.
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("The server sent a compressed response, which was not requested.")
    for name in ("content-type", "location", "mcp-session-id"):
        # The library logs them, and sends the last one with each request.
        if len(response.headers.get(name, "")) > _MAX_HEADER_CHARS:
            raise httpx2.RemoteProtocolError(
                f"The server sent a header {name!r} of more than {_MAX_HEADER_CHARS:,} characters."
            )
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        return
    method = response.request.method
    if method == "DELETE":
        response.headers.pop("location", None)  # each step of a redirection would have a deadline of its own
    if method not in _METHODS_WITH_BODY or response.status_code in _REDIRECTS:
        # The library reads the whole of it, and uses nothing of it.
        response.stream = _NoBody(response.stream)
        return
    kind = response.headers.get("content-type", "").lower()
    is_stream = kind.startswith("text/event-stream")
    # The response to a GET is an endless stream of events, each of which is bounded.
    max_bytes = None if is_stream and method == "GET" else MAX_MESSAGE_BYTES
    response.stream = _BoundedStream(response.stream, max_bytes)
    if is_stream:
        response.headers["content-type"] = (
            "text/event-stream"  # a charset would make others of its characters
        )
        response.stream = _ReadableEvents(response.stream, inbox, skip=method == "GET")
    elif kind.startswith("application/json"):
        response.stream = _ReadableBody(response.stream, inbox)


class _HttpClient(httpx2.AsyncClient):
    """A client whose requests that are no calls have a deadline. A call has one of its own."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        deadline_s = _deadline_s(request)
        try:
            async with asyncio.timeout(deadline_s):
                return await super().send(request, **options)
        except TimeoutError:
            text = f"The server gave no answer to {request.method} within {deadline_s:g} s."
            raise httpx2.ReadTimeout(text, request=request) from None


def _deadline_s(request: httpx2.Request) -> float | None:
    """Return for how long a server may keep a request waiting for the head of its response."""
    if request.method == "DELETE":
        return _DELETE_TIMEOUT_S
    # A stream of events may begin when there is one. What is long is a call: nothing else of ours is.
    if request.method != "POST" or len(request.content) > _MAX_NOTICE_BYTES:
        return None
    with contextlib.suppress(ValueError):
        message = json.loads(request.content)
        if isinstance(message, dict) and not {"id", "method"} <= message.keys():
            return _NOTICE_TIMEOUT_S
    return None


@asynccontextmanager
async def http_transport(url: str, *, token: str | None, inbox: Inbox) -> AsyncIterator[Streams]:
    """Connect to a server over HTTP. What it sends is read by `inbox`."""
    headers = {"Accept-Encoding": "identity"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    # In a thread: to read the certificates of this machine takes 35 ms.
    tls = await in_thread(httpx2.create_ssl_context)
    async with (
        _HttpClient(
            headers=headers,
            verify=tls,
            timeout=_HTTP_TIMEOUT,
            follow_redirects=False,
            max_redirects=_MAX_FOLLOWED,
            event_hooks={"response": [partial(_bound_response, inbox=inbox)]},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


# ---- serving over HTTP


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer:
    """A running server.

    Attributes:
        url: Its address.
        token: Clients must send it as `Authorization: Bearer TOKEN`.
    """

    url: str
    token: str

    def __repr__(self) -> str:
        return f"<HttpServer {self.url}>"  # a token is not for logs


class _Uvicorn(uvicorn.Server):
    """A server without signal handlers: those of this process belong to the notebook, or to the program."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def require_token(app: App, token: str) -> App:
    """Wrap an ASGI app so that HTTP requests without the token are answered with status 401.

    The protocol library checks `Host` and `Origin` behind it; see `serving`.
    """
    expected = f"Bearer {token}".encode()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise UsageError(f"This server speaks HTTP only, not {scope['type']}.")
        credentials = [value for name, value in scope["headers"] if name.lower() == b"authorization"]
        # compare_digest: the time taken must not show how much of a guessed token is right.
        if len(credentials) == 1 and hmac.compare_digest(credentials[0], expected):
            await app(scope, receive, send)
        else:
            await _send_unauthorized(send)

    return guard


async def _send_unauthorized(send: Send) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    body = b"Send the token of this server: Authorization: Bearer TOKEN."
    await send({"type": "http.response.body", "body": body})


def checked_token(token: str | None) -> str:
    """Return `token`, or a random one for None.

    Raises:
        UsageError: If it is too short, or cannot stand in a header.
    """
    if token is None:
        return secrets.token_urlsafe(32)
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"The token must have at least {MIN_TOKEN_CHARS} visible ASCII characters, such as "
            "secrets.token_urlsafe(32); leave it out to get a random one."
        )
    return token


def _bind_loopback(host: str, port: int) -> socket.socket:
    """Return a bound socket that only this machine reaches.

    Raises:
        UsageError: If `host` is not a loopback address, or the port is taken.
    """
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise UsageError(f"host={short_repr(host)}: give 127.0.0.1 or ::1.") from None
    if not address.is_loopback:
        raise UsageError(
            f"host={host!r} is reachable from other machines, and this server is for programs of this one. "
            "Use 127.0.0.1; for others, put a proxy with TLS and its own users before it."
        )
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((str(address), port))
    except (OSError, OverflowError) as error:
        sock.close()
        raise UsageError(f"Port {port} cannot be used: {error}. Give another, or 0 for a free one.") from None
    return sock


@asynccontextmanager
async def serving(
    server: Server[Any], *, host: str, port: int, token: str | None
) -> AsyncIterator[HttpServer]:
    """Serve MCP over HTTP for the duration of the context.

    Any web page that a person visits can send requests to a port of their machine, also by a name that comes
    to mean 127.0.0.1 while the page is open (DNS rebinding). So requests must carry the token, name this
    server as their `Host`, and have no foreign `Origin`.

    Raises:
        UsageError: If the address is not a loopback one, the port is taken, or the token is too short.
    """
    token = checked_token(token)
    sock = _bind_loopback(host, port)
    name, port = sock.getsockname()[:2]
    address = f"{f'[{name}]' if ':' in name else name}:{port}"
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MAX_ARGUMENT_BYTES + (1 << 20),
        max_sessions=_MAX_REQUESTS,
        transport_security=TransportSecuritySettings(
            allowed_hosts=[address, f"localhost:{port}"],
            allowed_origins=[f"http://{address}", f"http://localhost:{port}"],
        ),
    )
    config = uvicorn.Config(
        require_token(app, token),
        log_config=None,
        access_log=False,
        http="h11",
        ws="none",
        proxy_headers=False,
        server_header=False,
        lifespan="on",
        limit_concurrency=_MAX_REQUESTS,
        timeout_graceful_shutdown=_SHUTDOWN_GRACE_S,
    )
    uvicorn_server = _Uvicorn(config)
    task = asyncio.get_running_loop().create_task(uvicorn_server.serve(sockets=[sock]))
    try:
        # Whichever comes first: a failed startup ends the task and never sets `ready`.
        ready = asyncio.ensure_future(uvicorn_server.ready.wait())
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if task.done():
            task.result()
            raise UsageError(f"The server could not be started on {address}. Read the log.")
        yield HttpServer(url=f"http://{address}{PATH}", token=token)
    finally:
        uvicorn_server.should_exit = True
        await asyncio.wait([task])
        sock.close()
