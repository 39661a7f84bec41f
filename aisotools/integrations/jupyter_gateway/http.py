"""The way to a Jupyter Server or an Enterprise Gateway: its address, its REST calls, and its WebSocket.

The door to tornado's clients, which every installation has, because ipykernel needs tornado. Everything that
comes from there is hostile: bounded in size and time, redirects are not followed, so that the token goes to
the named host and to no other, and certificates are verified. The token stands in a header, never in a URL,
and in no message of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import socket as sockets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from pydantic_core import from_json

from aisotools.core.exceptions import SandboxError

_log = logging.getLogger(__name__)

MESSAGE_BYTES = 96 << 20
"""The largest message that is taken from a kernel; a result's parts have caps of their own."""

_ANSWER_BYTES = 1 << 20
_HEADER_BYTES = 1 << 16
_PING_S = 20.0
_TOLD_CHARS = 200


class GatewayError(SandboxError):
    """A gateway that could not be asked, or that refused.

    Attributes:
        status: The HTTP status; 0 when there was no answer.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        """Say what went wrong, and what to do about it."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a gateway is, and what it knows us by.

    Attributes:
        url: Scheme, host, port and path, without a slash at the end; harmless to show.
        token: What it knows us by; empty for none. Never shown.
    """

    url: str
    token: str = field(default="", repr=False)

    @property
    def websocket_url(self) -> str:
        """The same for WebSockets."""
        return "ws" + self.url.removeprefix("http")

    @property
    def headers(self) -> dict[str, str]:
        """What every request says."""
        return {"Authorization": f"token {self.token}"} if self.token else {}


def read_address(url: object, token: object = None) -> Address:
    """A gateway as a person names it; the token may stand in the URL, as Jupyter prints it.

    Raises:
        TypeError: If one of them is no text.
        ValueError: If the URL is none, or the token cannot be sent. The token is not told.
    """
    if not isinstance(url, str):
        raise TypeError(f"gateway={type(url).__name__}: give a URL, such as 'http://127.0.0.1:8888'.")
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token={type(token).__name__}: give the server's token as text.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("gateway: this is no URL. Give one such as 'http://127.0.0.1:8888'.") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("gateway: leave user name and password out of the URL; give token=...")
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(c <= " " for c in url):
        shown = url.partition("?")[0][:_TOLD_CHARS]
        raise ValueError(f"gateway={shown!r}: give a URL such as 'http://127.0.0.1:8888'.")
    told = token or next(iter(parse_qs(parts.query).get("token", ())), "")
    if not told.isascii() or not all(c.isprintable() and c != " " for c in told):
        raise ValueError("token: it holds characters that cannot be sent. Copy it again from the server.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/")
    for page in ("/lab", "/tree"):  # what a person copies from the browser's line
        path = path.removesuffix(page)
    if told and parts.scheme == "http" and not _stays_here(parts.hostname):
        _log.warning("The token for %s travels unencrypted. Use https, or a tunnel.", place)
    return Address(url=f"{parts.scheme}://{place}{path}", token=told)


def _stays_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


class Gateway:
    """Makes, asks and ends kernels at one address; for one event loop."""

    def __init__(self, address: Address, *, ca_certs: str | None = None) -> None:
        """Use `address`; `ca_certs` is a file of further certificates to trust."""
        self.address = address
        self._ca_certs = ca_certs

    def __repr__(self) -> str:
        return f"<Gateway {self.address.url}>"

    @cached_property
    def _client(self) -> Any:
        from tornado.simple_httpclient import SimpleAsyncHTTPClient

        return SimpleAsyncHTTPClient(
            force_instance=True,
            max_body_size=_ANSWER_BYTES,
            max_buffer_size=2 * _ANSWER_BYTES,
            max_header_size=_HEADER_BYTES,
        )

    def close(self) -> None:
        """Ask nothing any more."""
        if "_client" in self.__dict__:
            self._client.close()
            del self.__dict__["_client"]

    # ---- kernels

    async def make_kernel(self, name: str, timeout_s: float) -> str:
        """Start a kernel and return its id.

        Raises:
            GatewayError: If there is none; the message says why.
        """
        wanted = {"name": name} if name else {}
        made = await self._ask("POST", "/api/kernels", timeout_s, json.dumps(wanted))
        kernel = made.get("id") if isinstance(made, dict) else None
        if not isinstance(kernel, str) or not 0 < len(kernel) <= _TOLD_CHARS or not kernel.isprintable():
            raise GatewayError(f"{self.address.url} does not answer as a Jupyter Server does. Check the URL.")
        return kernel

    async def has_kernel(self, kernel: str, timeout_s: float = 10.0) -> bool:
        """Whether that kernel is still there.

        Raises:
            GatewayError: If the gateway cannot be asked.
        """
        try:
            await self._ask("GET", _path(kernel), timeout_s)
        except GatewayError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def interrupt_kernel(self, kernel: str, timeout_s: float = 10.0) -> None:
        """Stop what it runs.

        Raises:
            GatewayError: If the gateway cannot be asked, or refuses.
        """
        await self._ask("POST", f"{_path(kernel)}/interrupt", timeout_s, "")

    async def end_kernel(self, kernel: str, timeout_s: float = 10.0) -> None:
        """End it; one that is gone already is fine.

        Raises:
            GatewayError: If the gateway cannot be asked, or refuses.
        """
        try:
            await self._ask("DELETE", _path(kernel), timeout_s)
        except GatewayError as error:
            if error.status != 404:
                raise

    async def _ask(self, method: str, path: str, timeout_s: float, body: str | None = None) -> Any:
        from tornado.httpclient import HTTPRequest

        request = HTTPRequest(
            self.address.url + path,
            method,
            headers=self.address.headers | {"Content-Type": "application/json"},
            body=body,
            follow_redirects=False,
            connect_timeout=min(timeout_s, 10.0),
            request_timeout=timeout_s,
            decompress_response=False,
            ca_certs=self._ca_certs,
        )
        try:
            answer = await self._client.fetch(request, raise_error=False)
        except Exception as error:
            raise self.unreachable(error) from None
        if answer.code == 599:
            raise self.unreachable(answer.error) from None
        if not 200 <= answer.code < 300:
            raise self._refusal(answer.code, answer.headers)
        return _json(answer.body or b"")

    async def open_socket(self, kernel: str, client: str, timeout_s: float) -> Any:
        """A WebSocket to a kernel's channels.

        Raises:
            GatewayError: If there is none.
        """
        from tornado.httpclient import HTTPClientError, HTTPRequest
        from tornado.websocket import websocket_connect

        request = HTTPRequest(
            f"{self.address.websocket_url}{_path(kernel)}/channels?session_id={quote(client)}",
            headers=self.address.headers,
            follow_redirects=False,
            connect_timeout=min(timeout_s, 10.0),
            request_timeout=timeout_s,
            ca_certs=self._ca_certs,
        )
        try:
            socket = await websocket_connect(
                request, ping_interval=_PING_S, ping_timeout=_PING_S, max_message_size=MESSAGE_BYTES
            )
        except HTTPClientError as error:
            if error.code == 599:
                raise self.unreachable(error) from None
            headers = error.response.headers if error.response is not None else {}
            raise self._refusal(error.code, headers) from None
        except Exception as error:
            raise self.unreachable(error) from None
        promptly(socket)
        return socket

    # ---- what went wrong

    def unreachable(self, error: BaseException | None) -> GatewayError:
        """An error that says that the gateway cannot be asked, and why."""
        if isinstance(error, ssl.SSLError):
            why, then = "its certificate could not be verified", "Mend that on the server"
        elif isinstance(error, asyncio.TimeoutError | TimeoutError) or "imeout" in type(error).__name__:
            why, then = "it did not answer in time", "Check that it runs"
        elif isinstance(error, ConnectionRefusedError):
            why, then = "nothing listens there", "Start it, or check the port"
        else:
            why = f"{type(error).__name__}: {self._shown(str(error))}" if error is not None else "no answer"
            then = "Check the address, and that it runs"
        return GatewayError(f"The gateway {self.address.url} cannot be reached: {why}. {then}.")

    def _refusal(self, status: int, headers: Mapping[str, str]) -> GatewayError:
        where = f"The gateway {self.address.url}"
        if status in {401, 403}:
            told = "does not accept the token, or not its user. Give the current one as token=..."
        elif 300 <= status < 400:
            to = self._shown(headers.get("Location", "elsewhere").partition("?")[0])
            told = f"redirects to {to}, which is not followed. Give the address itself, if you trust it."
        elif status == 404:
            told = "has no such kernel, or is no Jupyter Server. Check the URL."
        else:
            told = f"failed with HTTP status {status}. Its own log tells why."
        return GatewayError(f"{where} {told}", status)

    def _shown(self, text: str) -> str:
        """Text of a stranger's, as it may stand in a message; they know the token, and may tell it."""
        token = self.address.token
        told = text.replace(token, "[token]") if token else text
        return "".join(c if c.isprintable() else "?" for c in told[:_TOLD_CHARS])


def promptly(socket: Any) -> None:
    """Send and acknowledge at once: to be said again after every message that came.

    A server that writes its messages singly waits for the acknowledgement of each, which else takes 40 ms.
    """
    if socket.protocol is None:
        return
    options = (sockets.TCP_NODELAY, getattr(sockets, "TCP_QUICKACK", None))
    with contextlib.suppress(OSError, AttributeError):  # it was closed just now
        for option in filter(None, options):
            socket.protocol.stream.socket.setsockopt(sockets.IPPROTO_TCP, option, 1)


def _path(kernel: str) -> str:
    return f"/api/kernels/{quote(kernel, safe='')}"


def _json(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False) if body else None
    except ValueError:
        return None
