"""An MCP server over HTTP, for programs of this machine that know its token.

Any web page a person visits can send requests to a port of their machine, by its address or by a name that
comes to mean 127.0.0.1 while the page is open (DNS rebinding). So a request must name this server as its
host, may come from no other origin, and must bear the token.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings

from aisotools.arguments import MAX_ARGUMENT_BYTES, brief
from aisotools.exceptions import UsageError

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
        raise UsageError(f"host={brief(host)}: give 127.0.0.1 or ::1.") from None
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
