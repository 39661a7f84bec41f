"""Transports of the Model Context Protocol: bounded connections to programs, and a local HTTP server.

The library's own stdio client reads lines of any length, passes on more of the environment than a server
needs, and wants a standard error with a file descriptor, which a notebook does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import io
import ipaddress
import os
import secrets
import shlex
import signal
import socket
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage

from aisotools.core.exceptions import UsageError
from aisotools.core.truncation import HeadTailBuffer
from aisotools.integrations.addresses import is_loopback
from aisotools.integrations.mcp.http_client import http_transport
from aisotools.integrations.mcp.messages import MAX_MESSAGE_BYTES, Inbox, Streams
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
_READ_BYTES = 1 << 16
_BLANK_LINE_BYTES = 64
_BLANK_LINES_AT_ONCE = 100
_EXIT_GRACE_S = 1.0
"""Wait before each stronger way to end a server's process."""
_MAX_REQUESTS = 256
_SHUTDOWN_GRACE_S = 1

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
            return http_transport(self.url, token=self.token, inbox=inbox, on_end=on_end)
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
            lambda: _Pipes(limit=_READ_BYTES, loop=loop),
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


class _Pipes(SubprocessStreamProtocol):
    """The pipes of a process, of which the input may break: `_receive` reports the end of the process."""

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Note that a pipe is closed. Nobody waits for that of the input, and an error would be logged."""
        super().pipe_connection_lost(fd, exc if fd else None)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream, put together as they come: `readline` copies each several times, at once.

    Raises:
        ValueError: If one is longer than `MAX_MESSAGE_BYTES`.
    """
    pending = io.BytesIO()  # its value is not a copy
    while data := await stream.read(_READ_BYTES):
        start = 0
        while end := data.find(b"\n", start) + 1:
            pending.write(data[start:end])
            line = pending.getvalue()
            pending = io.BytesIO()
            yield line
            del line
            start = end
        if pending.write(data[start:]) and pending.tell() > MAX_MESSAGE_BYTES:
            raise ValueError("the line is too long")
    if pending.tell():
        yield pending.getvalue()


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
            message = await inbox.read(line)
            del line  # it may be megabytes, and the next one may be long in coming
            await incoming.send(message)
            del message
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
