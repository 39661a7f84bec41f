"""Turn the output of a sandbox into Jupyter messages.

Jupyter trusts the output of a running cell, and this output comes from a sandbox. Text keeps its colours and
nothing else; MIME bundles are sanitized by `notebook.render`; widget messages and text for new cells are
dropped. Updates reach displays of this kernel only, because it gives them ids of its own. A person may lift
all of this for a notebook that they trust.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import to_json

from aisotools.core.concurrency import in_steps
from aisotools.notebook.kernel.session import CellResult
from aisotools.notebook.render.results import sanitize_bundle, sanitize_steps
from aisotools.notebook.render.text import coloured, one_line, shorten
from aisotools.sandbox.host.displays import DisplayMessage

MAX_DISPLAY_IDS = 10_000
"""Displays whose ids are remembered; updates of older ones are dropped."""

COMMS_DROPPED = "[widgets stay in the sandbox: their messages to the page are dropped]\n"
"""Shown once per cell in place of widget messages."""

NEXT_INPUT_DROPPED = "[text for a new cell is dropped: a sandbox does not write into the notebook]\n"
"""Shown once per cell in place of text for a new cell."""

DISPLAYS_DROPPED = "[more was shown at once than can be passed on: some of it is left out]\n"
"""Shown once per cell that displays faster than can be passed on."""

_WIDGET = "application/vnd.jupyter.widget-view+json"
_ERROR_CHARS = 10_000
# Of a traceback, and of a page of the pager: longer ones would take long, and the reply of a cell has both.
_MAX_TEXT_CHARS = 1 << 18
_SIZES = ("width", "height")


@dataclass(frozen=True, slots=True, kw_only=True)
class JupyterMessage:
    """A Jupyter message on the iopub channel.

    Attributes:
        type: Its type, such as `display_data`.
        content: Its content.
        metadata: Metadata of the message itself.
        buffers: Binary parts.
        packed: Its content as JSON, if it came as such; `content` is empty then.
        is_large: Whether to pack and sign it takes long, so that a thread should.
    """

    type: str
    content: Mapping[str, Any]
    metadata: Mapping[str, Any] | None = None
    buffers: tuple[bytes, ...] = ()
    packed: bytes = b""
    is_large: bool = False


class DisplayFilter:
    """Turns displays of workers into safe messages; one per kernel."""

    def __init__(self, *, trusted: bool = False) -> None:
        """Filter, unless a person trusts all output."""
        self.trusted = trusted
        self._display_ids: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return printed text, filtered."""
        return text if self.trusted else coloured(text)

    def bundle(self, bundle: Mapping[str, Any]) -> dict[str, Any]:
        """Return a MIME bundle, filtered."""
        if self.trusted:
            return dict(bundle)
        return sanitize_bundle({mime: data for mime, data in bundle.items() if mime != _WIDGET})

    def stream(self, name: str, text: str) -> JupyterMessage:
        """Return the message for printed text."""
        return JupyterMessage(type="stream", content={"name": name, "text": self.text(text)})

    def error(self, payload: Mapping[str, Any]) -> JupyterMessage:
        """Return the message for an error with `ename`, `evalue` and `traceback`."""
        name, message, trace = (self._text_entry(payload, key) for key in ("ename", "evalue", "traceback"))
        trace = shorten(trace, _MAX_TEXT_CHARS)
        content = {
            "ename": one_line(name, 200) or "Error",
            "evalue": self.text(message[:_ERROR_CHARS]),
            "traceback": self.text(trace).split("\n") if trace else [],
        }
        return JupyterMessage(type="error", content=content)

    def display(self, shown: DisplayMessage) -> JupyterMessage | None:
        """Return the message for a display, an update or a removal; None for an unknown display id."""
        if shown.kind == "clear":
            return JupyterMessage(type="clear_output", content={"wait": shown.details.get("wait") is True})
        if not self._is_known(shown):
            return None
        return self._with_data(shown, self.bundle(shown.bundle), 0)

    def result(self, shown: DisplayMessage, count: int) -> JupyterMessage:
        """Return the message for the value of a cell."""
        return self._with_data(shown, self.bundle(shown.bundle), count)

    async def large(self, shown: DisplayMessage, count: int) -> JupyterMessage | None:
        """Return the message for a large display, update, or value of cell `count`, made in steps."""
        if not self._is_known(shown):
            return None
        if not self.trusted:
            chosen = {mime: data for mime, data in shown.bundle.items() if mime != _WIDGET}
            return replace(
                self._with_data(shown, await in_steps(sanitize_steps(chosen)), count), is_large=True
            )
        # As the worker sent it: it has been parsed, so it is JSON, and to write it again takes as long.
        message = self._with_data(shown, {}, count)
        rest = to_json({name: part for name, part in message.content.items() if name != "data"})
        packed = b'{"data":%s,%s' % (shown.json, rest[1:])
        return replace(message, content={}, packed=packed, is_large=True)

    def _is_known(self, shown: DisplayMessage) -> bool:
        """Return whether this is not an update of what is not there."""
        return shown.kind != "update" or _display_name(shown) in self._display_ids

    def _with_data(self, shown: DisplayMessage, data: dict[str, Any], count: int) -> JupyterMessage:
        metadata = self._metadata(shown.details.get("metadata"), data)
        content: dict[str, Any] = {"data": data, "metadata": metadata}
        if shown.kind == "result":
            content = {"execution_count": count, **content}
        else:
            name = _display_name(shown)
            content["transient"] = {"display_id": self._own_display_id(name)} if name else {}
        return JupyterMessage(type=_MESSAGE_TYPES[shown.kind], content=content)

    def comm(self, shown: DisplayMessage) -> JupyterMessage | None:
        """Return the message of a widget to its page; None unless output is trusted."""
        kind = shown.details.get("kind")
        if not self.trusted or kind not in {"comm_open", "comm_msg", "comm_close"}:
            return None
        metadata = shown.details.get("metadata")
        return JupyterMessage(
            type=str(kind),
            content={} if shown.json else shown.bundle,
            packed=shown.json,
            is_large=bool(shown.json),
            metadata=metadata if isinstance(metadata, Mapping) else {},
            buffers=shown.buffers,
        )

    def payload(self, shown: DisplayMessage) -> dict[str, Any] | None:
        """Return the payload of a reply: a pager page, or, if output is trusted, text for a new cell."""
        if shown.kind == "page":
            text = shorten(self._text_entry(shown.bundle, "text/plain"), _MAX_TEXT_CHARS)
            page: dict[str, Any] = {"text/plain": self.text(text)}
            if self.trusted and not shown.json:
                page = dict(shown.bundle)
            return {"source": "page", "data": page, "start": 0}
        if not self.trusted:
            return None
        text = shorten(self._text_entry(shown.bundle, "text/plain"), _MAX_TEXT_CHARS)
        return {"source": "set_next_input", "text": text, "replace": shown.details.get("replace") is True}

    def _own_display_id(self, name: str) -> str:
        if name not in self._display_ids:
            if len(self._display_ids) >= MAX_DISPLAY_IDS:
                del self._display_ids[next(iter(self._display_ids))]
            self._display_ids[name] = uuid.uuid4().hex
        return self._display_ids[name]

    def _metadata(self, metadata: object, data: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes of images; everything else only if output is trusted."""
        if not isinstance(metadata, Mapping):
            return {}
        if self.trusted:
            return dict(metadata)
        sizes = {}
        for mime in data:
            requested = metadata.get(mime)
            if mime.startswith("image/") and isinstance(requested, Mapping):
                sizes[mime] = {
                    side: length
                    for side in _SIZES
                    if type(length := requested.get(side)) is int and 0 < length <= 10_000
                }
        return {mime: size for mime, size in sizes.items() if size}

    @staticmethod
    def _text_entry(mapping: Mapping[str, Any], key: str) -> str:
        text = mapping.get(key)
        return text if isinstance(text, str) else ""


_MESSAGE_TYPES = {
    "display": "display_data",
    "update": "update_display_data",
    "result": "execute_result",
}


def _display_name(shown: DisplayMessage) -> str:
    display_id = shown.details.get("display_id")
    return display_id if isinstance(display_id, str) else ""


# Cells whose late output still finds its place: background threads print after their cell has ended.
_MAX_CELLS = 256
_MAX_PAYLOADS = 10
_POLL_S = 0.02
# Jupyter clients send this for Ctrl-D.
_END_OF_INPUT = "\x04"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellOrigin:
    """A request of a client.

    Attributes:
        ident: ZeroMQ identity of the client.
        parent: The request message; output refers to it.
    """

    ident: Any
    parent: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class _RunningCell:
    """A cell that runs, or ended recently.

    Attributes:
        request: The request that runs it.
        count: Its number.
        payload: The payload of its reply.
        error: The content of the error message it has sent.
        remarks: Lines of this package that were shown with it.
        ended: Whether its reply was sent.
    """

    request: CellOrigin
    count: int
    payload: list[dict[str, Any]] = field(default_factory=list)
    error: Mapping[str, Any] | None = None
    remarks: set[str] = field(default_factory=set)
    ended: bool = False


class JupyterOutput:
    """An `OutputSink` that sends Jupyter messages to the request that ran the cell."""

    def __init__(
        self,
        display_filter: DisplayFilter,
        publish: Callable[[JupyterMessage, CellOrigin], Awaitable[None] | None],
        request_input: Callable[[dict[str, Any], CellOrigin], None],
        poll_input: Callable[[], Mapping[str, Any] | None],
    ) -> None:
        """Start without cells.

        Args:
            display_filter: Turns displays into messages.
            publish: Sends a message to every client. Returns None, or what is to be awaited if it is large.
            request_input: Asks one client for a line.
            poll_input: Returns the next reply of a client, or None if there is none yet; does not wait.
        """
        self._filter = display_filter
        self._publish = publish
        self._request_input = request_input
        self._poll_input = poll_input
        self._running: dict[str, _RunningCell] = {}
        self._latest = ""

    def begin(self, call_id: str, request: CellOrigin, count: int) -> None:
        """Register cell `count`, which is about to run as this call."""
        self._running[call_id] = _RunningCell(request=request, count=count)
        self._latest = call_id
        if len(self._running) > _MAX_CELLS:
            del self._running[next(iter(self._running))]

    def end(self, call_id: str, outcome: CellResult) -> tuple[list[dict[str, Any]], Mapping[str, Any] | None]:
        """End a cell. Return the payload of its reply and the content of its error, if any."""
        running = self._running[call_id]
        running.ended = True
        for note in outcome.notes:
            self.say(call_id, f"[{note}]\n")
        if outcome.error is None:
            return running.payload, None
        if running.error is not None:
            return running.payload, running.error
        error = dict(self._filter.error(outcome.error).content)
        if not outcome.printed:
            error["traceback"] = error["traceback"] or [f"{error['ename']}: {error['evalue']}"]
            self._publish(JupyterMessage(type="error", content=error), running.request)
        return running.payload, error

    def say(self, call_id: str, text: str, *, once: bool = False) -> None:
        """Print a line of this package below a cell."""
        running = self._running.get(call_id)
        if running is not None and not (once and text in running.remarks):
            running.remarks.add(text)
            self._publish(self._filter.stream("stderr", text), running.request)

    # ---- OutputSink

    def printed(self, call_id: str, stream: str, text: str) -> None:
        """Publish printed text; text that belongs to no call goes to the latest cell."""
        running = self._running.get(call_id or self._latest)
        if running is not None:
            self._publish(self._filter.stream(stream, text), running.request)

    def show(self, call_id: str, shown: DisplayMessage) -> Awaitable[None] | None:
        """Publish a display; a large one in steps, which are to be awaited."""
        running = self._running.get(call_id)
        if running is not None and shown.json and shown.kind in _MESSAGE_TYPES:
            return self._show_in_steps(running, shown)
        message = None if running is None else self._message(call_id, running, shown)
        if running is None or message is None:
            return None
        return self._publish(message, running.request)

    async def _show_in_steps(self, running: _RunningCell, shown: DisplayMessage) -> None:
        message = await self._filter.large(shown, running.count)
        if message is not None and (rest := self._publish(message, running.request)) is not None:
            await rest

    def _message(self, call_id: str, running: _RunningCell, shown: DisplayMessage) -> JupyterMessage | None:
        if shown.kind == "result":
            return self._filter.result(shown, running.count)
        if shown.kind == "error":
            message = self._filter.error(shown.bundle)
            running.error = message.content
            return message
        if shown.kind == "comm":
            return self._filter.comm(shown)
        if shown.kind == "comm_dropped":
            self.say(call_id, COMMS_DROPPED, once=True)
            return None
        if shown.kind in {"page", "next_input"}:
            payload = self._filter.payload(shown)
            if payload is None:
                self.say(call_id, NEXT_INPUT_DROPPED, once=True)
            elif len(running.payload) < _MAX_PAYLOADS:
                running.payload.append(payload)
            return None
        return self._filter.display(shown)

    def dropped(self, call_id: str) -> None:
        """Say once that displays of a call were dropped."""
        self.say(call_id, DISPLAYS_DROPPED, once=True)

    def lost(self, reason: str) -> None:
        """Say below an ended cell that the worker is gone; a running cell reports it with its own error."""
        if self._latest in self._running and self._running[self._latest].ended:
            self.say(self._latest, f"[the sandbox is gone, and its variables with it: {reason}]\n")

    async def ask(self, call_id: str, prompt: str, *, password: bool) -> str | None:
        """Ask the client that runs the cell for a line. Return None at the end of input."""
        running = self._running.get(call_id)
        if running is None:
            return None
        # Discard stale replies: a line typed for an interrupted cell must not answer this request.
        while self._poll_input() is not None:
            pass
        content = {"prompt": self._filter.text(prompt), "password": password}
        self._request_input(content, running.request)
        while True:
            reply = self._poll_input()
            value = reply["content"].get("value") if reply is not None else None
            if isinstance(value, str):
                return None if value == _END_OF_INPUT else value
            await asyncio.sleep(_POLL_S)
