"""The HTTP client for MCP servers: bounded responses, deadlines, and nothing that it keeps of a response.

A server is asked over and over, and what a client keeps of each response grows. So there is no jar for
cookies: the protocol names a session in a header. Redirects are followed by the protocol library, a few times
and within the origin of the server; there is no authentication beyond the token; and idle connections are
closed beyond a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http.cookiejar import CookieJar
from typing import Any

import httpx2
from mcp.client.streamable_http import streamable_http_client

from aisotools.core.threads import in_thread
from aisotools.integrations.mcp.bodies import BoundedBody, NoBody, ReadableBody, ReadableEvents
from aisotools.integrations.mcp.heads import BoundedNetwork
from aisotools.integrations.mcp.messages import MAX_MESSAGE_BYTES, Inbox, Streams

_MAX_HEADER_CHARS = 2_000
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
_LIMITS = httpx2.Limits(max_connections=100, max_keepalive_connections=4, keepalive_expiry=5.0)


class NoCookies(CookieJar):
    """A jar that takes no cookies, does not look at those of a response, and sends none."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        """Take nothing."""

    def add_cookie_header(self, request: Any) -> None:
        """Send nothing."""


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

    def bound_heads(self, on_end: Callable[[str], object]) -> None:
        """Bound the heads of all responses, also by way of proxies; see `BoundedNetwork`."""
        for transport in (self._transport, *self._mounts.values()):
            if transport is None:
                continue  # the address is reached without this proxy
            # The library takes no network for its transports, which read the proxies from the environment.
            # Without one there would be no bound: so this fails when the library changes.
            if not isinstance(transport, httpx2.AsyncHTTPTransport):
                raise TypeError(f"The heads of {transport!r} cannot be bounded.")
            pool = transport._pool  # noqa: SLF001 - see above
            network = BoundedNetwork(pool._network_backend, on_end)  # noqa: SLF001 - see above
            pool._network_backend = network  # noqa: SLF001 - see above


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


async def bound_response(response: httpx2.Response, inbox: Inbox) -> None:
    """Bound what is read of a response, and have `inbox` read its messages. The body is not read yet.

    Raises:
        httpx2.DecodingError: If it is compressed: it could grow beyond any bound.
        httpx2.RemoteProtocolError: If a header is too long that the library logs, or sends again.
    """
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
        response.stream = NoBody(response.stream)
        return
    kind = response.headers.get("content-type", "").lower()
    is_stream = kind.startswith("text/event-stream")
    # The response to a GET is an endless stream of events, each of which is bounded.
    max_bytes = None if is_stream and method == "GET" else MAX_MESSAGE_BYTES
    response.stream = BoundedBody(response.stream, max_bytes)
    if is_stream:
        # A charset would make others of its characters.
        response.headers["content-type"] = "text/event-stream"
        response.stream = ReadableEvents(response.stream, inbox, skip=method == "GET")
    elif kind.startswith("application/json"):
        response.stream = ReadableBody(response.stream, inbox)


@asynccontextmanager
async def http_transport(
    url: str, *, token: str | None, inbox: Inbox, on_end: Callable[[str], object] = lambda _: None
) -> AsyncIterator[Streams]:
    """Connect to a server over HTTP.

    Args:
        url: Its address.
        token: Bearer token, or None.
        inbox: Reads the messages.
        on_end: Called with the reason when the connection is given up because of what the server sent.
    """
    headers = {"Accept-Encoding": "identity"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    # In a thread: to read the certificates of this machine takes 35 ms.
    tls = await in_thread(httpx2.create_ssl_context)
    async with _HttpClient(
        headers=headers,
        cookies=NoCookies(),
        verify=tls,
        timeout=_HTTP_TIMEOUT,
        limits=_LIMITS,
        follow_redirects=False,
        max_redirects=_MAX_FOLLOWED,
        event_hooks={"response": [partial(bound_response, inbox=inbox)]},
    ) as client:
        client.bound_heads(on_end)
        async with streamable_http_client(
            url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams:
            yield streams
