"""HTTP client of a Jupyter Server or an Enterprise Gateway: address, REST calls and WebSocket.

It uses tornado, which ipykernel needs anyway. The server is untrusted: responses are bounded in size and
time, and redirects are not followed, so the token goes to the named host only. The token is sent in a header,
never in a URL, and appears in no message.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from aisotools.core.threads import in_thread
from aisotools.integrations.addresses import is_loopback
from aisotools.integrations.jupyter_gateway.guardian import KernelGuardian

_log = logging.getLogger(__name__)

MESSAGE_BYTES = 96 << 20
"""The largest message accepted from a kernel; the parts of a result have limits of their own."""

_MAX_RESPONSE_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 16
_CONNECT_TIMEOUT_S = 10.0
_PING_INTERVAL_S = 20.0
_MAX_TEXT_CHARS = 200
_NO_RESPONSE = 599
"""The status with which tornado reports that there was no response."""


class GatewayError(SandboxError):
    """A request that failed.

    Attributes:
        status: HTTP status, or 0 if there was no response.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        """Create an error; `message` says what to do about it."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Address of a gateway.

    Attributes:
        url: Scheme, host, port and path, without a trailing slash. Contains no secret.
        token: Authentication token, or empty. Never shown.
    """

    url: str
    token: str = field(default="", repr=False)

    @property
    def websocket_url(self) -> str:
        """`url` with the scheme of WebSockets."""
        return "ws" + self.url.removeprefix("http")

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {"Authorization": f"token {self.token}"} if self.token else {}


def parse_address(url: object, token: object = None) -> Address:
    """Parse a gateway's URL, which may contain the token, as Jupyter prints it.

    Raises:
        TypeError: If one of them is not a string.
        ValueError: If the URL is malformed, or the token cannot be sent. The token is not in the message.
    """
    if not isinstance(url, str):
        raise TypeError(f"gateway={type(url).__name__}: give a URL, such as 'http://127.0.0.1:8888'.")
    if token is not None and not isinstance(token, str):
        raise TypeError(f"token={type(token).__name__}: give the server's token as text.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("gateway: this is not a URL. Give one such as 'http://127.0.0.1:8888'.") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("gateway: leave user name and password out of the URL; give token=...")
    if parts.scheme not in {"http", "https"} or not parts.hostname or any(c <= " " for c in url):
        without_query = url.partition("?")[0][:_MAX_TEXT_CHARS]
        raise ValueError(f"gateway={without_query!r}: give a URL such as 'http://127.0.0.1:8888'.")
    secret = token or next(iter(parse_qs(parts.query).get("token", ())), "")
    if not secret.isascii() or not all(c.isprintable() and c != " " for c in secret):
        raise ValueError("token: it holds characters that cannot be sent. Copy it again from the server.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    authority = host if port is None else f"{host}:{port}"
    path = parts.path.rstrip("/")
    for page in ("/lab", "/tree"):  # a URL copied from the browser's address bar
        path = path.removesuffix(page)
    if secret and parts.scheme == "http" and not is_loopback(parts.hostname):
        _log.warning("The token for %s is sent unencrypted. Use https, or a tunnel.", authority)
    return Address(url=f"{parts.scheme}://{authority}{path}", token=secret)


class Gateway:
    """Starts, interrupts and ends kernels at one address. For one event loop."""

    def __init__(
        self, address: Address, *, ca_certs: str | None = None, guardian: KernelGuardian | None = None
    ) -> None:
        """Create a client.

        Args:
            address: The gateway.
            ca_certs: File of additional certificates to trust.
            guardian: Ends the kernels that were started here when this process dies; nobody without it.
        """
        self.address = address
        self._ca_certs = ca_certs
        self._guardian = guardian

    def __repr__(self) -> str:
        return f"<Gateway {self.address.url}>"

    @cached_property
    def _client(self) -> Any:
        from tornado.simple_httpclient import SimpleAsyncHTTPClient

        return SimpleAsyncHTTPClient(
            force_instance=True,
            max_body_size=_MAX_RESPONSE_BYTES,
            max_buffer_size=2 * _MAX_RESPONSE_BYTES,
            max_header_size=_MAX_HEADER_BYTES,
        )

    def close(self) -> None:
        """Close the HTTP client."""
        if "_client" in self.__dict__:
            self._client.close()
            del self.__dict__["_client"]

    # -- kernels

    async def start_kernel(self, name: str, timeout_s: float) -> str:
        """Start a kernel of the kernelspec `name`, or the server's default for '', and return its id.

        Raises:
            GatewayError: If it does not start.
        """
        body = {"name": name} if name else {}
        model = await self._request("POST", "/api/kernels", timeout_s, json.dumps(body))
        kernel = model.get("id") if isinstance(model, dict) else None
        if not isinstance(kernel, str) or not 0 < len(kernel) <= _MAX_TEXT_CHARS or not kernel.isprintable():
            raise GatewayError(f"{self.address.url} does not respond like a Jupyter Server. Check the URL.")
        if self._guardian is not None:
            try:
                # In a thread: a process is started.
                await in_thread(
                    self._guardian.watch,
                    self.address.url + _path(kernel),
                    self.address.headers,
                    self._ca_certs,
                )
            except OSError as error:
                _log.warning("If this process is killed, the kernel %s goes on: %s", kernel, error)
        return kernel

    async def has_kernel(self, kernel: str, timeout_s: float = 10.0) -> bool:
        """Return whether a kernel exists.

        Raises:
            GatewayError: If the request fails.
        """
        try:
            await self._request("GET", _path(kernel), timeout_s)
        except GatewayError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def interrupt_kernel(self, kernel: str, timeout_s: float = 10.0) -> None:
        """Interrupt a kernel.

        Raises:
            GatewayError: If the request fails.
        """
        await self._request("POST", f"{_path(kernel)}/interrupt", timeout_s, "")

    async def end_kernel(self, kernel: str, timeout_s: float = 10.0) -> None:
        """End a kernel, if it exists.

        Raises:
            GatewayError: If the request fails.
        """
        try:
            await self._request("DELETE", _path(kernel), timeout_s)
        except GatewayError as error:
            if error.status != 404:
                raise
        if self._guardian is not None:
            with contextlib.suppress(OSError):  # it has ended before, and with it what it was to do
                await in_thread(self._guardian.release, self.address.url + _path(kernel))

    async def _request(self, method: str, path: str, timeout_s: float, body: str | None = None) -> Any:
        from tornado.httpclient import HTTPRequest

        request = HTTPRequest(
            self.address.url + path,
            method,
            headers=self.address.headers | {"Content-Type": "application/json"},
            body=body,
            follow_redirects=False,
            connect_timeout=min(timeout_s, _CONNECT_TIMEOUT_S),
            request_timeout=timeout_s,
            decompress_response=False,
            ca_certs=self._ca_certs,
        )
        try:
            response = await self._client.fetch(request, raise_error=False)
        except Exception as error:
            raise self.unreachable(error) from None
        if response.code == _NO_RESPONSE:
            raise self.unreachable(response.error) from None
        if not 200 <= response.code < 300:
            raise self._refusal(response.code, response.headers)
        return _parse_json(response.body or b"")

    async def open_socket(self, kernel: str, client: str, timeout_s: float) -> Any:
        """Open a WebSocket to a kernel's channels.

        Raises:
            GatewayError: If it cannot be opened.
        """
        from tornado.httpclient import HTTPClientError, HTTPRequest
        from tornado.websocket import websocket_connect

        request = HTTPRequest(
            f"{self.address.websocket_url}{_path(kernel)}/channels?session_id={quote(client)}",
            headers=self.address.headers,
            follow_redirects=False,
            connect_timeout=min(timeout_s, _CONNECT_TIMEOUT_S),
            request_timeout=timeout_s,
            ca_certs=self._ca_certs,
        )
        try:
            socket = await websocket_connect(
                request,
                ping_interval=_PING_INTERVAL_S,
                ping_timeout=_PING_INTERVAL_S,
                max_message_size=MESSAGE_BYTES,
            )
        except HTTPClientError as error:
            if error.code == _NO_RESPONSE:
                raise self.unreachable(error) from None
            headers = error.response.headers if error.response is not None else {}
            raise self._refusal(error.code, headers) from None
        except Exception as error:
            raise self.unreachable(error) from None
        disable_delays(socket)
        return socket

    # -- errors

    def unreachable(self, error: BaseException | None) -> GatewayError:
        """Return the error for a request without a response."""
        if isinstance(error, ssl.SSLError):
            reason = "its certificate could not be verified"
            advice = "Fix it on the server, or give ca_certs"
        elif isinstance(error, asyncio.TimeoutError | TimeoutError) or "imeout" in type(error).__name__:
            reason = "it did not respond in time"
            advice = "Check that it runs"
        elif isinstance(error, ConnectionRefusedError):
            reason = "nothing listens there"
            advice = "Start it, or check the port"
        else:
            reason = (
                f"{type(error).__name__}: {self._redact(str(error))}" if error is not None else "no response"
            )
            advice = "Check the address, and that it runs"
        return GatewayError(f"The gateway {self.address.url} cannot be reached: {reason}. {advice}.")

    def _refusal(self, status: int, headers: Mapping[str, str]) -> GatewayError:
        if status in {401, 403}:
            reason = "does not accept the token, or not its user. Give the current one as token=..."
        elif 300 <= status < 400:
            location = self._redact(headers.get("Location", "elsewhere").partition("?")[0])
            reason = f"redirects to {location}, which is not followed. Give that address, if you trust it."
        elif status == 404:
            reason = "has no such kernel, or is not a Jupyter Server. Check the URL."
        else:
            reason = f"failed with HTTP status {status}. Read its log."
        return GatewayError(f"The gateway {self.address.url} {reason}", status)

    def _redact(self, text: str) -> str:
        """Return a text of the server's for a message: without the token, which it knows, and printable."""
        token = self.address.token
        redacted = text.replace(token, "[token]") if token else text
        return "".join(c if c.isprintable() else "?" for c in redacted[:_MAX_TEXT_CHARS])


def disable_delays(socket: Any) -> None:
    """Switch off Nagle's algorithm and delayed acknowledgements. Call it again after every message.

    A server that writes small messages one by one waits for the acknowledgement of each, which is delayed by
    up to 40 ms. Linux switches delayed acknowledgements on again by itself.
    """
    if socket.protocol is None:
        return
    options = (sockets.TCP_NODELAY, getattr(sockets, "TCP_QUICKACK", None))  # the second only on Linux
    with contextlib.suppress(OSError, AttributeError):  # Race: the other end closed it.
        for option in filter(None, options):
            socket.protocol.stream.socket.setsockopt(sockets.IPPROTO_TCP, option, 1)


def _path(kernel: str) -> str:
    return f"/api/kernels/{quote(kernel, safe='')}"


def _parse_json(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False) if body else None
    except ValueError:
        return None
