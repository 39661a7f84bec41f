"""Connections to MCP servers that hold whatever a server sends within bounds.

The library's own read a line of any length into memory, pass on more of the environment than a server needs,
and want a standard error that is a file, which a notebook's is not.

An MCP server over HTTP, for programs of this machine that know its token.

Any web page a person visits can send requests to a port of their machine, by its address or by a name that
comes to mean 127.0.0.1 while the page is open (DNS rebinding). So a request must name this server as its
host, may come from no other origin, and must bear the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import os
import secrets
import shlex
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import uvicorn
from mcp import types
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage

from aisotools.core.exceptions import UsageError
from aisotools.core.truncation import HeadTailBuffer
from aisotools.policy.prompts import visible
from aisotools.tools.validation import MAX_ARGUMENT_BYTES, short_repr

_MESSAGE_CHARS = 2_000
MOST_BYTES = 32 << 20
"""How long one message of a server may be."""

INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA", "TEMP"),
)
"""What a server's process gets of the environment, besides what a person names."""

STDERR_TAIL_BYTES = 2_000
"""How much of the end of a server's standard error appears in error messages."""

_STEP_S = 1.0
_TIMEOUT = httpx2.Timeout(30.0, read=3_600.0)  # a call may take long; its own deadline ends it

Streams = tuple[Any, Any]
"""What the library reads from, and what it writes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEndpoint:
    """How a server is reached: exactly one of a command and an address.

    Attributes:
        command: A program that is started, and its arguments.
        env: The program's whole environment.
        cwd: The program's folder; the current one without it.
        url: The address of a server that runs already.
        token: What that server wants to see.
    """

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | os.PathLike[str] | None = None
    url: str = ""
    token: str | None = field(default=None, repr=False)

    @property
    def told(self) -> str:
        """The command or address, for people."""
        return visible(self.url or shlex.join(self.command), "")[:200]

    @property
    def host(self) -> str:
        """The machine that is reached; empty for a program on this one."""
        return urlsplit(self.url).hostname or ""

    def open(
        self, tail: HeadTailBuffer, ended: Callable[[str], object]
    ) -> AbstractAsyncContextManager[Streams]:
        """A connection to the server, for as long as the context is held; see `stdio_transport`."""
        if self.url:
            return http_transport(self.url, token=self.token)
        return stdio_transport(self.command, env=self.env, cwd=self.cwd, tail=tail, ended=ended)


def words(error: BaseException) -> str:
    """What went wrong, without the groups that libraries wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {visible(str(error))[:_MESSAGE_CHARS].rstrip('.')}"


def environment(environ: Mapping[str, str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a server's process: an allow-list, and what a person gives it."""
    kept = {name: environ[name] for name in INHERITED if name in environ}
    return {**kept, **(given or {})}


@asynccontextmanager
async def stdio_transport(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None,
    tail: HeadTailBuffer,
    ended: Callable[[str], object],
) -> AsyncIterator[Streams]:
    """Start a server and speak with it by its standard input and output; it ends with the context.

    Args:
        command: The program and its arguments.
        env: Its whole environment.
        cwd: Its folder; the current one without it.
        tail: Takes what it writes to standard error.
        ended: Told why, when it ends or breaks the rules.

    Raises:
        UsageError: If it cannot be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            limit=MOST_BYTES,
        )
    except (OSError, ValueError) as error:
        raise UsageError(f"{command[0]!r} cannot be started: {error}. Check the command.") from None
    incoming, reading = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    writing, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.ensure_future(work)
        for work in (_read(process, incoming, ended), _write(process, outgoing), _hear(process, tail))
    ]
    try:
        yield reading, writing
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for stream in (incoming, reading, writing, outgoing):
                stream.close()


async def _read(process: Process, incoming: Any, ended: Callable[[str], object]) -> None:
    """Pass on what the server says, message by message."""
    assert process.stdout is not None
    why = "it ended"
    try:
        while line := await process.stdout.readline():
            try:
                message: Any = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                said: SessionMessage | Exception = SessionMessage(message)
            except ValueError as error:
                said = error
            await incoming.send(said)
    except ValueError:
        why = f"it sent a message of more than {MOST_BYTES >> 20} MiB"
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError) as error:
        why = f"the connection broke ({type(error).__name__})"
    finally:
        ended(why)
        incoming.close()


async def _write(process: Process, outgoing: Any) -> None:
    assert process.stdin is not None
    async for message in outgoing:
        line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        try:
            process.stdin.write(line)
            await process.stdin.drain()
        except OSError:
            return  # its end is told by who reads


async def _hear(process: Process, tail: HeadTailBuffer) -> None:
    assert process.stderr is not None
    while more := await process.stderr.read(1 << 16):
        tail.append(more)


async def _end(process: Process) -> None:
    """End a server and everything it started: politely, firmly, at last by force."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            await asyncio.wait_for(process.wait(), _STEP_S)
            break
        except TimeoutError:
            _signal(process, number)
    _signal(process, signal.SIGKILL)  # what it left in its group
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _STEP_S)


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


# ---- HTTP


def checked_url(url: str, *, secret: bool) -> str:
    """The address, if it may be used.

    Args:
        url: Where a server is.
        secret: Whether a token goes there.

    Raises:
        UsageError: If it is none, holds a password, or would show the token to everybody on the way.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"{url[:200]!r} is no address of an MCP server; it starts with https:// or http://.")
    if parts.username is not None or parts.password is not None:
        raise UsageError("Leave name and password out of the address, and name a variable with the token.")
    if secret and parts.scheme == "http" and not _is_here(parts.hostname):
        raise UsageError(f"The token would go to {parts.hostname} for everybody to read; use https.")
    return url


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, as far as one may be long."""

    def __init__(self, body: httpx2.AsyncByteStream, most: int) -> None:
        self._body, self._left = body, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            self._left -= len(chunk)
            if self._left < 0:
                raise httpx2.ReadError(f"The server sent more than {MOST_BYTES >> 20} MiB in one answer.")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bound(response: httpx2.Response) -> None:
    """Hold an answer within bounds, before anything of it is read."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.DecodingError("The server sent a compressed answer, which was not asked for.")
    if response.request.method == "POST" and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(response.stream, MOST_BYTES)


@asynccontextmanager
async def http_transport(url: str, *, token: str | None) -> AsyncIterator[Streams]:
    """Speak with a server over HTTP."""
    headers = {"Accept-Encoding": "identity"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    async with (
        httpx2.AsyncClient(
            headers=headers, timeout=_TIMEOUT, follow_redirects=False, event_hooks={"response": [_bound]}
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MOST_BYTES) as streams,
    ):
        yield streams


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATH = "/mcp"
SHORTEST_TOKEN = 32

_MOST_REQUESTS = 256
_GRACE_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpServer:
    """A server that answers.

    Attributes:
        url: Where.
        token: What a client must send as `Authorization: Bearer TOKEN`.
    """

    url: str
    token: str

    def __repr__(self) -> str:
        return f"<HttpServer {self.url}>"  # a token is not for logs


class _Uvicorn(uvicorn.Server):
    """Leaves the signals of this process alone: they are the notebook's, or the program's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def guarded(app: App, *, port: int, token: str) -> App:
    """`app`, for those who name this machine as the host, come from no other origin, and bear the token."""
    hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}
    origins = {b"http://" + host for host in hosts}
    wanted = f"Bearer {token}".encode()

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise UsageError(f"This server speaks HTTP only, not {scope['type']}.")
        flaw = _flaw(scope["headers"])
        if flaw is None:
            await app(scope, receive, send)
        else:
            await _refuse(send, *flaw)

    def _flaw(headers: list[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        given: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            given.setdefault(name.lower(), []).append(value)
        host = given.get(b"host", [])
        if len(host) != 1 or host[0].lower() not in hosts:
            return 421, "This server answers only to its own address on this machine."
        if any(origin not in origins for origin in given.get(b"origin", ())):
            return 403, "Requests of other origins are refused."
        bearer = given.get(b"authorization", [])
        if len(bearer) != 1 or not hmac.compare_digest(bearer[0], wanted):
            return 401, "Send the token of this server: Authorization: Bearer TOKEN."
        return None

    return guard


async def _refuse(send: Send, status: int, told: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": told.encode()})


def checked_token(token: str | None) -> str:
    """The token, or a fresh random one.

    Raises:
        UsageError: If it is short enough to be guessed, or cannot stand in a header.
    """
    if token is None:
        return secrets.token_urlsafe(32)
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"The token must have at least {SHORTEST_TOKEN} visible ASCII characters, such as "
            "secrets.token_urlsafe(32); leave it out to have one made."
        )
    return token


def _listening(host: str, port: int) -> socket.socket:
    """A socket that only this machine reaches.

    Raises:
        UsageError: If the address is another, or the port is taken.
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
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((str(address), port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(f"Port {port} cannot be used: {error}. Give another, or 0 for a free one.") from None
    return listening


@asynccontextmanager
async def serving(
    server: Server[Any], *, host: str, port: int, token: str | None
) -> AsyncIterator[HttpServer]:
    """Answer clients over HTTP as long as the context is held.

    Raises:
        UsageError: If the address, the port or the token will not do.
    """
    token = checked_token(token)
    listening = _listening(host, port)
    name, port = listening.getsockname()[:2]
    address = f"{f'[{name}]' if ':' in name else name}:{port}"
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=MAX_ARGUMENT_BYTES + (1 << 20),
        max_sessions=_MOST_REQUESTS,
        transport_security=TransportSecuritySettings(
            allowed_hosts=[address, f"localhost:{port}"],
            allowed_origins=[f"http://{address}", f"http://localhost:{port}"],
        ),
    )
    config = uvicorn.Config(
        guarded(app, port=port, token=token),
        log_config=None,
        access_log=False,
        http="h11",
        ws="none",
        proxy_headers=False,
        server_header=False,
        lifespan="on",
        limit_concurrency=_MOST_REQUESTS,
        timeout_graceful_shutdown=_GRACE_S,
    )
    running = _Uvicorn(config)
    task = asyncio.get_running_loop().create_task(running.serve(sockets=[listening]))
    try:
        ready = asyncio.ensure_future(running.ready.wait())
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if task.done():
            task.result()
            raise UsageError(f"The server could not be started on {address}; the log says why.")
        yield HttpServer(url=f"http://{address}{PATH}", token=token)
    finally:
        running.should_exit = True
        await asyncio.wait([task])
        listening.close()
