"""The page of a front: what cells show goes to the request that ran them, and they may ask for a line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aisotools.sandbox.desk import Outcome
from aisotools.sandbox.passing import (
    COMMS_DROPPED,
    NEXT_INPUT_DROPPED,
    SHOWS_DROPPED,
    Filter,
    Message,
)
from aisotools.sandbox.screens import Shown

_REMEMBERED = 256
_PAYLOADS = 10
_POLL_S = 0.02
_END_OF_INPUT = "\x04"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of a client.

    Attributes:
        ident: Whose it is.
        parent: The message; what comes of it is an answer to that.
    """

    ident: Any
    parent: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class _Running:
    """A cell, while it runs and as long as something of it may still show.

    Attributes:
        request: What is answered.
        count: Its number.
        payload: What its reply carries besides.
        error: The error it has shown, as it was passed on.
        told: Lines of ours that it has had already.
        ended: Whether its reply was made.
    """

    request: Request
    count: int
    payload: list[dict[str, Any]] = field(default_factory=list)
    error: Mapping[str, Any] | None = None
    told: set[str] = field(default_factory=set)
    ended: bool = False


class NotebookPage:
    """Implements `aisotools.sandbox.desk.Page` with Jupyter messages."""

    def __init__(
        self,
        passing: Filter,
        publish: Callable[[Message, Request], None],
        question: Callable[[dict[str, Any], Request], None],
        answer: Callable[[], Mapping[str, Any] | None],
    ) -> None:
        """Be empty.

        Args:
            passing: Makes messages of what is shown.
            publish: Sends a message to every client.
            question: Sends one client a request for a line.
            answer: What a client has answered, or None if there is nothing yet; does not wait.
        """
        self._passing, self._publish, self._question, self._answer = passing, publish, question, answer
        self._running: dict[str, _Running] = {}
        self._latest = ""

    def begin(self, call_id: str, request: Request, count: int) -> None:
        """Cell `count` is about to run as this call."""
        self._running[call_id] = _Running(request=request, count=count)
        self._latest = call_id
        if len(self._running) > _REMEMBERED:
            del self._running[next(iter(self._running))]

    def end(self, call_id: str, outcome: Outcome) -> tuple[list[dict[str, Any]], Mapping[str, Any] | None]:
        """The cell has ended; what its reply carries, and the error it ended with."""
        running = self._running[call_id]
        running.ended = True
        for note in outcome.notes:
            self.say(call_id, f"[{note}]\n")
        if outcome.error is None:
            return running.payload, None
        if running.error is not None:
            return running.payload, running.error
        error = dict(self._passing.error(outcome.error).content)
        if not outcome.printed:
            error["traceback"] = error["traceback"] or [f"{error['ename']}: {error['evalue']}"]
            self._publish(Message(type="error", content=error), running.request)
        return running.payload, error

    def say(self, call_id: str, text: str, *, once: bool = False) -> None:
        """A line of ours below a cell."""
        running = self._running.get(call_id)
        if running is not None and not (once and text in running.told):
            running.told.add(text)
            self._publish(self._passing.stream("stderr", text), running.request)

    # ---- what a desk tells

    def printed(self, call_id: str, stream: str, text: str) -> None:
        """A call printed something; what is nobody's is shown with the latest cell."""
        running = self._running.get(call_id or self._latest)
        if running is not None:
            self._publish(self._passing.stream(stream, text), running.request)

    def show(self, call_id: str, shown: Shown) -> None:
        """A call showed something."""
        running = self._running.get(call_id)
        message = None if running is None else self._message(call_id, running, shown)
        if running is not None and message is not None:
            self._publish(message, running.request)

    def _message(self, call_id: str, running: _Running, shown: Shown) -> Message | None:
        if shown.what == "result":
            return self._passing.result(shown, running.count)
        if shown.what == "error":
            message = self._passing.error(shown.bundle)
            running.error = message.content
            return message
        if shown.what == "comm":
            return self._passing.comm(shown)
        if shown.what == "comm_dropped":
            self.say(call_id, COMMS_DROPPED, once=True)
            return None
        if shown.what in {"page", "next_input"}:
            payload = self._passing.payload(shown)
            if payload is None:
                self.say(call_id, NEXT_INPUT_DROPPED, once=True)
            elif len(running.payload) < _PAYLOADS:
                running.payload.append(payload)
            return None
        return self._passing.display(shown)

    def dropped(self, call_id: str) -> None:
        """A call showed too much at once."""
        self.say(call_id, SHOWS_DROPPED, once=True)

    def lost(self, reason: str) -> None:
        """A worker ended, and its variables with it; a cell that it was running will say so itself."""
        if self._latest in self._running and self._running[self._latest].ended:
            self.say(self._latest, f"[the sandbox is gone, and its variables with it: {reason}]\n")

    async def ask(self, call_id: str, prompt: str, *, password: bool) -> str | None:
        """Ask the client that runs the cell for a line."""
        running = self._running.get(call_id)
        if running is None:
            return None
        while self._answer() is not None:
            pass  # what came before the question is no answer to it
        content = {"prompt": self._passing.text(prompt), "password": password}
        self._question(content, running.request)
        while True:
            reply = self._answer()
            value = reply["content"].get("value") if reply is not None else None
            if isinstance(value, str):
                return None if value == _END_OF_INPUT else value
            await asyncio.sleep(_POLL_S)
