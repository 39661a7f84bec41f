"""Frames between a session and the front that is attached to it: two processes of ours, over a socket pair.

Questions are numbered and answered; everything else goes one way. What runs in neither process is user code,
but much of what is said here came out of a sandbox, and is filtered by the front as ever.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic_core import from_json, to_json

from aisotools.exceptions import ChannelError
from aisotools.sandbox.channel import Frame, FrameReader, encode

_READ_BYTES = 1 << 18
_BACKLOG_BYTES = 256 << 20


class Wire:
    """One end of the socket pair."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use `open`."""
        self._reader, self._writer = reader, writer
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0

    @classmethod
    async def open(cls, end: socket.socket) -> Self:
        """Take over a connected socket."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    async def run(self, take: Callable[[Frame], None]) -> None:
        """Have `take` take every frame that is no answer, until the other end is gone."""
        frames = FrameReader()
        try:
            while data := await self._reader.read(_READ_BYTES):
                for frame in frames.feed(data):
                    if frame.op == "answer":
                        self._answered(frame)
                    else:
                        take(frame)
        except (OSError, ChannelError):
            return
        finally:
            self.close()

    def send(self, op: str, told: Any = None, parts: tuple[bytes, ...] = (), **header: Any) -> None:
        """Say something; `told` is any JSON."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        if transport.get_write_buffer_size() > _BACKLOG_BYTES:
            self.close()  # it has stopped reading
            return
        body = to_json(told, inf_nan_mode="strings", serialize_unknown=True)
        self._writer.write(encode(op, header, (body, *parts)))

    async def ask(self, op: str, told: Any = None) -> Any:
        """Ask something, and wait for the answer.

        Raises:
            ChannelError: If the other end is gone.
        """
        self._asked += 1
        seq = self._asked
        answer = self._answers[seq] = asyncio.get_running_loop().create_future()
        self.send(op, told, seq=seq)
        if self._writer.transport.is_closing():
            self.close()
        try:
            return await answer
        finally:
            self._answers.pop(seq, None)

    def answer(self, frame: Frame, told: Any) -> None:
        """Answer a question."""
        self.send("answer", told, seq=frame.header["seq"])

    def close(self) -> None:
        """Let go; whoever waits for an answer hears that there is none."""
        self._writer.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ChannelError("The session is gone."))

    def _answered(self, frame: Frame) -> None:
        answer = self._answers.get(frame.header["seq"])
        if answer is not None and not answer.done():
            answer.set_result(told(frame))


def told(frame: Frame) -> Any:
    """The JSON that a frame says."""
    return from_json(frame.parts[0])


def mapping(frame: Frame) -> Mapping[str, Any]:
    """The JSON object that a frame says.

    Raises:
        ChannelError: If it says something else.
    """
    value = told(frame)
    if not isinstance(value, dict):
        raise ChannelError(f"The frame {frame.op!r} says no object.")
    return value
