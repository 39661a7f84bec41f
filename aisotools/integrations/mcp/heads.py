"""Heads of responses, bounded before the HTTP library parses them.

Threat
    A server chooses how many lines a head has, how many interim responses come before the one that counts,
    and what follows a body that comes in chunks. The library parses on the event loop, in one go, all that
    one read brings, and reads on for as long as interim responses come.
Mechanism
    `BoundedNetwork` makes the library's connections. Each hands on what came in pieces of a few kilobytes,
    with a turn of the loop between two, and follows the form of responses just as far as to know which lines
    belong to a head or a trailer. Their lines and bytes, and the interim responses, are counted before the
    piece is handed on.
Race window
    None: nobody else reads from a connection. What came after the end of a response, before the next request
    was sent, is in the library already; it is less than one piece.
When it fails
    Whoever holds the connection to the server is given the limit as the reason for its end, and the request
    ends with a `RemoteProtocolError`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from typing import Any, Literal

import httpcore2

MAX_HEAD_BYTES = 1 << 16
"""The longest head of a response, with the interim responses before it; and the longest trailer."""

MAX_HEAD_LINES = 500
"""How many lines a head may have, with the interim responses before it; and a trailer."""

MAX_INTERIM_RESPONSES = 20
"""How many interim responses (1xx) may come before a response."""

_PIECE_BYTES = 1 << 13
_BLANK_LINES = frozenset({b"\n", b"\r\n"})
_CHUNKED = b"transfer-encoding:"
_CHUNK_END_BYTES = 2
_is_interim = re.compile(rb"HTTP/[0-9]\.[0-9] 1(?!01)").match
_match_chunk_size = re.compile(rb"[0-9a-fA-F]{1,20}").match

_ResponsePart = Literal["head", "body", "chunk size", "chunk", "trailer"]


class ResponseForm:
    """Follows one response after the other, and counts what is in their heads and trailers.

    It takes no less for a head than the parser does: where the two would differ, the parser refuses the
    response.
    """

    def __init__(self) -> None:
        """Expect a head."""
        self.start()

    def start(self) -> None:
        """Expect the head of a response: a request was sent."""
        self._part: _ResponsePart = "head"
        self._line = bytearray()
        self._bytes = self._lines = self._interim = self._chunk_left = 0
        self._is_first_line = True
        self._is_interim = self._is_chunked = False

    def check(self, data: bytes) -> None:
        """Take the next bytes of a response.

        Raises:
            httpcore2.RemoteProtocolError: If its head, or its trailer, is beyond the limits.
        """
        at = 0
        while at < len(data) and self._part != "body":
            if self._part == "chunk":
                taken = min(self._chunk_left, len(data) - at)
                at += taken
                self._chunk_left -= taken
                if not self._chunk_left:
                    self._begin("chunk size")
                continue
            end = data.find(b"\n", at) + 1
            part = data[at : end or len(data)]
            at += len(part)
            self._line += part
            self._count(len(part), bool(end))
            # A size ends with both characters, as the parser has it.
            if end and (self._part != "chunk size" or self._line.endswith(b"\r\n")):
                line = bytes(self._line)
                self._line.clear()
                self._take_line(line)

    def _begin(self, part: _ResponsePart) -> None:
        self._part = part
        self._bytes = self._lines = 0

    def _count(self, size: int, is_line: bool) -> None:
        self._bytes += size
        self._lines += is_line
        if self._bytes > MAX_HEAD_BYTES or self._lines > MAX_HEAD_LINES:
            raise httpcore2.RemoteProtocolError(
                f"it sent a {self._part} of more than {MAX_HEAD_BYTES >> 10} KiB or {MAX_HEAD_LINES} lines"
            )

    def _take_line(self, line: bytes) -> None:
        if self._part == "chunk size":
            found = _match_chunk_size(line)
            self._chunk_left = int(found[0], 16) if found else 0
            # What is not a size is refused by the parser.
            self._begin("body" if not found else "chunk" if self._chunk_left else "trailer")
            self._chunk_left += _CHUNK_END_BYTES
        elif line in _BLANK_LINES:
            self._end_head()
        elif self._part == "head":
            if self._is_first_line:
                self._is_interim = _is_interim(line) is not None
                self._is_first_line = False
            self._is_chunked |= line[: len(_CHUNKED)].lower() == _CHUNKED

    def _end_head(self) -> None:
        if self._part == "head" and self._is_interim:
            self._interim += 1
            if self._interim > MAX_INTERIM_RESPONSES:
                raise httpcore2.RemoteProtocolError(
                    f"it sent more than {MAX_INTERIM_RESPONSES} interim responses to one request"
                )
            self._is_first_line, self._is_chunked = True, False
            return
        self._begin("chunk size" if self._part == "head" and self._is_chunked else "body")


class BoundedNetwork(httpcore2.AsyncNetworkBackend):
    """Connections like those of another network, with bounded heads."""

    def __init__(self, network: httpcore2.AsyncNetworkBackend, on_end: Callable[[str], object]) -> None:
        """Connect by `network`. `on_end` is called with the reason why a connection was given up."""
        self._network = network
        self._on_end = on_end

    async def connect_tcp(
        self, host: str, port: int, *arguments: Any, **options: Any
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a host."""
        stream = await self._network.connect_tcp(host, port, *arguments, **options)
        return BoundedConnection(stream, self._on_end)

    async def connect_unix_socket(
        self, path: str, *arguments: Any, **options: Any
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to a socket of this machine."""
        stream = await self._network.connect_unix_socket(path, *arguments, **options)
        return BoundedConnection(stream, self._on_end)

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds, as the other network does."""
        await self._network.sleep(seconds)


class BoundedConnection(httpcore2.AsyncNetworkStream):
    """A connection whose responses are looked at and handed on in small pieces."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, on_end: Callable[[str], object]) -> None:
        """Read from `stream`, which is closed with this; `on_end` is called with the reason to give it up."""
        self._stream = stream
        self._on_end = on_end
        self._form = ResponseForm()
        self._read = b""
        self._at = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - the library's
        """Return what comes next, at most a few kilobytes of it.

        Raises:
            httpcore2.RemoteProtocolError: If a head, or a trailer, is beyond the limits.
        """
        if self._at < len(self._read):
            await asyncio.sleep(0)
        else:
            self._read, self._at = await self._stream.read(max_bytes, timeout), 0
        piece = self._read[self._at : self._at + min(max_bytes, _PIECE_BYTES)]
        try:
            self._form.check(piece)
        except httpcore2.RemoteProtocolError as error:
            self._on_end(str(error))
            raise
        self._at += len(piece)
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the library's
        """Send a request, or a part of one."""
        self._form.start()
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        self._read, self._at = b"", 0
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, *arguments: Any, **options: Any
    ) -> httpcore2.AsyncNetworkStream:
        """Go on encrypted; return the connection on which to do so."""
        stream = await self._stream.start_tls(ssl_context, *arguments, **options)
        return BoundedConnection(stream, self._on_end)

    def get_extra_info(self, info: str) -> Any:
        """Return what is known of the connection by that name."""
        if info == "is_readable" and self._at < len(self._read):
            return True  # something came after the last response: it cannot be used for another
        return self._stream.get_extra_info(info)
