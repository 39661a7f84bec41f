"""Bodies of responses, bounded, and rewritten into what the protocol library reads in a few milliseconds.

A body is a stream of events, each of which holds a message, or it is one message. What is long is never
looked at as a whole here: it is put together once, from the pieces in which it comes.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator

import httpx2

from aisotools.integrations.mcp.messages import MAX_MESSAGE_BYTES, MESSAGE_EVENTS, Inbox, kept_field

MAX_EVENT_LINES = 1_000
"""How many lines an event may have."""

_LINE_END = re.compile(rb"\r\n|\n|\r")
_find_line_end = re.compile(rb"[\r\n]").search
_EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_MAX_LINE_END = 3  # bytes of the end of an event that may have come already
_MAX_SHORT_EVENT_BYTES = 1 << 16
_DATA_LINE = re.compile(rb"data(?::|$)")
_DATA = b"data: "
_MAX_FIELD_BYTES = 1_001  # of longer fields nothing is needed but that they are longer


class _OtherBody(httpx2.AsyncByteStream):
    """What is made of a body, and closes that with it."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()


class BoundedBody(_OtherBody):
    """A response body that fails beyond `max_bytes`, if that is given, and lets the loop go on."""

    def __init__(self, body: httpx2.AsyncByteStream, max_bytes: int | None) -> None:
        """Pass on `body`."""
        super().__init__(body)
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._body:
            size += len(chunk)
            if self._max_bytes is not None and size > self._max_bytes:
                raise httpx2.ReadError(
                    f"The server sent more than {self._max_bytes >> 20} MiB in one response."
                )
            yield chunk
            # The server chooses how long the pieces are. Thousands of single bytes may come at once.
            await asyncio.sleep(0)


class NoBody(_OtherBody):
    """An empty body in the place of one that nobody needs."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        """Read nothing of `body`."""
        super().__init__(body)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        nothing: tuple[bytes, ...] = ()
        for piece in nothing:
            yield piece


class ReadableBody(_OtherBody):
    """The body of a response that is one message, in a form that the library can parse if there is one."""

    def __init__(self, body: httpx2.AsyncByteStream, inbox: Inbox) -> None:
        """Have `inbox` read the message in `body`."""
        super().__init__(body)
        self._inbox = inbox

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = io.BytesIO()  # a list of pieces could take a hundred times as much; its value is not a copy
        async for chunk in self._body:
            body.write(chunk)
        yield await self._inbox.rewrite(body.getvalue())


class ReadableEvents(_OtherBody):
    """A stream of events, each with its message in a form that the library can parse if there is one.

    With `skip`, what is not a message is left out: nothing was asked for that would end with it.
    """

    def __init__(self, body: httpx2.AsyncByteStream, inbox: Inbox, *, skip: bool = False) -> None:
        """Have `inbox` read the messages in `body`."""
        super().__init__(body)
        self._inbox = inbox
        self._skip = skip

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pending = bytearray()
        searched = 0
        long: _LongEvent | None = None
        async for chunk in self._body:
            pending += chunk
            while True:
                if long is not None:
                    del pending[: long.take(pending)]
                    if not long.is_complete:
                        break
                    yield await self._converted(long.text(), long.others, has_data=long.has_data)
                    long = None
                else:
                    found = _EVENT_END.search(pending, searched)
                    end = found.end() if found else len(pending)
                    if end > _MAX_SHORT_EVENT_BYTES:
                        long = _LongEvent()
                        continue
                    if found is None:
                        searched = max(end - _MAX_LINE_END, 0)
                        break
                    event = bytes(pending[:end])
                    del pending[:end]
                    yield await self._readable(event)
                searched = 0
                # There may be thousands in what came at once.
                await asyncio.sleep(0)
        if long is not None:
            yield await self._converted(long.text(), long.others, has_data=long.has_data)
        elif pending:
            yield await self._readable(bytes(pending))

    async def _readable(self, event: bytes) -> bytes:
        """Return a short event; if its message has to be changed for it, with that on one line."""
        if event.count(b"\n") + event.count(b"\r") > 2 * MAX_EVENT_LINES:
            raise _too_many_lines()
        lines = list(filter(None, _LINE_END.split(event)))
        data = [line[5:].removeprefix(b" ") for line in lines if _DATA_LINE.match(line)]
        others = [line for line in lines if not _DATA_LINE.match(line)]
        return await self._converted(b"\n".join(data), others, has_data=bool(data), event=event)

    async def _converted(
        self, text: bytes, others: list[bytes], *, has_data: bool, event: bytes | None = None
    ) -> bytes:
        """Return an event with the message `text`, if there is one, and what is needed of its other lines.

        It is returned as it came, as `event`, if nothing has to be changed.
        """
        fields = list(filter(None, map(kept_field, others)))
        names = [line for line in fields if line.startswith(b"event")]
        if is_foreign := not MESSAGE_EVENTS.issuperset(names):
            # No message of the protocol. The library would log its name.
            fields, text, has_data = [line for line in fields if line not in names], b"", False
        changed = await self._inbox.rewrite(text, skip=self._skip) if text else text
        if event is not None and changed == text and fields == others and not is_foreign:
            return event
        if not changed:
            return b"\n".join([*fields, *([b"data:"] if has_data else []), b"", b""]) if fields else b""
        # A text that is not a message may have line ends of its own.
        changed = b"\ndata: ".join(_LINE_END.split(changed))
        return b"\n".join([*fields, _DATA + changed, b"", b""])


class _LongEvent:
    """An event that is taken apart while it comes: its data, and the beginnings of its other lines.

    Attributes:
        others: The lines that are no data, as far as is needed to tell what they are.
        has_data: Whether there was a line of data.
        is_complete: Whether the event has ended.
    """

    def __init__(self) -> None:
        self.others: list[bytes] = []
        self.has_data = False
        self.is_complete = False
        self._data = io.BytesIO()  # its value is not a copy
        self._line = bytearray()  # the beginning of a line that is no data, or not known to be
        self._is_data_line = False
        self._lines = 0

    def take(self, came: bytearray) -> int:
        """Take what came, up to the end of the event. Return how many bytes that is.

        Raises:
            httpx2.ReadError: If the event is too long, or has too many lines.
        """
        at = 0
        while at < len(came) and not self.is_complete:
            found = _find_line_end(came, at)
            end = found.start() if found else len(came)
            self._append(came[at:end])
            at = end
            if found is None or came[end : end + 2] == b"\r":
                break  # the other half of this line end may follow
            at += 2 if came[end : end + 2] == b"\r\n" else 1
            self._end_line()
        return at

    def text(self) -> bytes:
        """Return the data, and let go of it."""
        data, self._data = self._data, io.BytesIO()
        return data.getvalue()

    def _append(self, piece: bytearray) -> None:
        if not self._is_data_line and len(self._line) < len(_DATA):
            taken = piece[: len(_DATA) - len(self._line)]
            self._line += taken
            piece = piece[len(taken) :]
            if len(self._line) == len(_DATA) and _DATA_LINE.match(self._line):
                self._begin_data()
        if not self._is_data_line:
            self._line += piece[: _MAX_FIELD_BYTES - len(self._line)]
            return
        self._data.write(piece)
        if self._data.tell() > MAX_MESSAGE_BYTES:
            raise httpx2.ReadError(f"The server sent more than {MAX_MESSAGE_BYTES >> 20} MiB in one event.")

    def _begin_data(self) -> None:
        if self.has_data:
            self._data.write(b"\n")
        self._data.write(self._line[5:].removeprefix(b" "))
        self._line.clear()
        self.has_data = self._is_data_line = True

    def _end_line(self) -> None:
        if not self._is_data_line:
            if not self._line:
                self.is_complete = True
                return
            if _DATA_LINE.match(self._line):
                self._begin_data()
            else:
                self.others.append(bytes(self._line))
                self._line.clear()
        self._is_data_line = False
        self._lines += 1
        if self._lines > MAX_EVENT_LINES:
            raise _too_many_lines()


def _too_many_lines() -> httpx2.ReadError:
    return httpx2.ReadError(f"The server sent an event of more than {MAX_EVENT_LINES:,} lines.")
