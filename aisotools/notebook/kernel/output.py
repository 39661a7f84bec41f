"""The page of a front: what cells show goes to the request that ran them, and they may ask for a line.

What a front passes on to Jupyter, made safe: pure, from what a worker showed to messages.

Jupyter trusts what a running cell puts out, and this comes out of a sandbox. Text keeps its colours and
nothing else; of a MIME bundle what `notebook.render` makes of it is passed on; messages of widgets and text
for new cells are not. An update reaches only displays of this front, because it gives them names of its own.
A person may lift all of this, for a notebook that they trust.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aisotools.notebook.kernel.session import CellResult
from aisotools.notebook.render.results import sanitize_bundle
from aisotools.notebook.render.text import coloured, one_line
from aisotools.sandbox.host.calls import DisplayMessage

MOST_NAMES = 10_000
"""How many displays with a name of their own are remembered."""

COMMS_DROPPED = "[widgets stay in the sandbox: their messages to the page are dropped]\n"
"""The one line that stands for the messages of widgets."""

NEXT_INPUT_DROPPED = "[text for a new cell is dropped: a sandbox does not write into the notebook]\n"
"""The one line that stands for text which a cell wanted to put into another."""

SHOWS_DROPPED = "[more was shown at once than can be passed on: some of it is left out]\n"
"""The one line that stands for a flood."""

_WIDGET = "application/vnd.jupyter.widget-view+json"
_ERROR_CHARS = 10_000
_SIZES = ("width", "height")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message for the page.

    Attributes:
        type: Its type, such as `display_data`.
        content: What it says.
        metadata: Of the message itself.
        buffers: Binary parts.
    """

    type: str
    content: Mapping[str, Any]
    metadata: Mapping[str, Any] | None = None
    buffers: tuple[bytes, ...] = ()


class DisplayFilter:
    """Turns what workers show into messages; one per front."""

    def __init__(self, *, trusted: bool = False) -> None:
        """Pass on what is safe, or, if a person said so, everything."""
        self.trusted = trusted
        self._names: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Printed text."""
        return text if self.trusted else coloured(text)

    def bundle(self, bundle: Mapping[str, Any]) -> dict[str, Any]:
        """A MIME bundle."""
        if self.trusted:
            return dict(bundle)
        return sanitize_bundle({mime: data for mime, data in bundle.items() if mime != _WIDGET})

    def stream(self, name: str, text: str) -> Message:
        """Printed text as a message."""
        return Message(type="stream", content={"name": name, "text": self.text(text)})

    def error(self, told: Mapping[str, Any]) -> Message:
        """What was raised: its name, its message, and where."""
        name, message, trace = (self._word(told, key) for key in ("ename", "evalue", "traceback"))
        content = {
            "ename": one_line(name, 200) or "Error",
            "evalue": self.text(message[:_ERROR_CHARS]),
            "traceback": self.text(trace).split("\n") if trace else [],
        }
        return Message(type="error", content=content)

    def display(self, shown: DisplayMessage) -> Message | None:
        """Something displayed, updated, or removed; None if it has no place on the page."""
        if shown.kind == "clear":
            return Message(type="clear_output", content={"wait": shown.details.get("wait") is True})
        name = shown.details.get("display_id")
        name = name if isinstance(name, str) else ""
        if shown.kind == "update" and name not in self._names:
            return None
        data = self.bundle(shown.bundle)
        content = {
            "data": data,
            "metadata": self._metadata(shown.details.get("metadata"), data),
            "transient": {"display_id": self._own_name(name)} if name else {},
        }
        return Message(
            type="update_display_data" if shown.kind == "update" else "display_data", content=content
        )

    def result(self, shown: DisplayMessage, count: int) -> Message:
        """The value of a cell."""
        data = self.bundle(shown.bundle)
        metadata = self._metadata(shown.details.get("metadata"), data)
        content = {"execution_count": count, "data": data, "metadata": metadata}
        return Message(type="execute_result", content=content)

    def comm(self, shown: DisplayMessage) -> Message | None:
        """A widget's message to its page; None unless a person trusts it."""
        kind = shown.details.get("kind")
        if not self.trusted or kind not in {"comm_open", "comm_msg", "comm_close"}:
            return None
        metadata = shown.details.get("metadata")
        return Message(
            type=str(kind),
            content=shown.bundle,
            metadata=metadata if isinstance(metadata, Mapping) else {},
            buffers=shown.buffers,
        )

    def payload(self, shown: DisplayMessage) -> dict[str, Any] | None:
        """What a reply carries besides: a page to read; and text for a new cell if a person trusts it."""
        if shown.kind == "page":
            data = {"text/plain": self._word(shown.bundle, "text/plain")}
            page = dict(shown.bundle) if self.trusted else {"text/plain": coloured(data["text/plain"])}
            return {"source": "page", "data": page, "start": 0}
        if not self.trusted:
            return None
        replace = shown.details.get("replace") is True
        text = self._word(shown.bundle, "text/plain")
        return {"source": "set_next_input", "text": text, "replace": replace}

    def _own_name(self, name: str) -> str:
        if name not in self._names:
            if len(self._names) >= MOST_NAMES:
                del self._names[next(iter(self._names))]
            self._names[name] = uuid.uuid4().hex
        return self._names[name]

    def _metadata(self, told: object, data: Mapping[str, Any]) -> dict[str, Any]:
        """How large pictures are shown; anything else only if a person trusts it."""
        if not isinstance(told, Mapping):
            return {}
        if self.trusted:
            return dict(told)
        sizes = {}
        for mime in data:
            meant = told.get(mime)
            if mime.startswith("image/") and isinstance(meant, Mapping):
                sizes[mime] = {
                    side: length
                    for side in _SIZES
                    if type(length := meant.get(side)) is int and 0 < length <= 10_000
                }
        return {mime: size for mime, size in sizes.items() if size}

    @staticmethod
    def _word(told: Mapping[str, Any], key: str) -> str:
        text = told.get(key)
        return text if isinstance(text, str) else ""


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
class _RunningCell:
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


class JupyterOutput:
    """Implements `aisotools.notebook.kernel.session.Page` with Jupyter messages."""

    def __init__(
        self,
        passing: DisplayFilter,
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
        self._running: dict[str, _RunningCell] = {}
        self._latest = ""

    def begin(self, call_id: str, request: Request, count: int) -> None:
        """Cell `count` is about to run as this call."""
        self._running[call_id] = _RunningCell(request=request, count=count)
        self._latest = call_id
        if len(self._running) > _REMEMBERED:
            del self._running[next(iter(self._running))]

    def end(self, call_id: str, outcome: CellResult) -> tuple[list[dict[str, Any]], Mapping[str, Any] | None]:
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

    def show(self, call_id: str, shown: DisplayMessage) -> None:
        """A call showed something."""
        running = self._running.get(call_id)
        message = None if running is None else self._message(call_id, running, shown)
        if running is not None and message is not None:
            self._publish(message, running.request)

    def _message(self, call_id: str, running: _RunningCell, shown: DisplayMessage) -> Message | None:
        if shown.kind == "result":
            return self._passing.result(shown, running.count)
        if shown.kind == "error":
            message = self._passing.error(shown.bundle)
            running.error = message.content
            return message
        if shown.kind == "comm":
            return self._passing.comm(shown)
        if shown.kind == "comm_dropped":
            self.say(call_id, COMMS_DROPPED, once=True)
            return None
        if shown.kind in {"page", "next_input"}:
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
