"""What a front passes on to Jupyter, made safe: pure, from what a worker showed to messages.

Jupyter trusts what a running cell puts out, and this comes out of a sandbox. Text keeps its colours and
nothing else; of a MIME bundle what `notebook.render` makes of it is passed on; messages of widgets and text
for new cells are not. An update reaches only displays of this front, because it gives them names of its own.
A person may lift all of this, for a notebook that they trust.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aisotools.notebook.render import sanitize_bundle
from aisotools.notebook.text import coloured, one_line
from aisotools.sandbox.screens import Shown

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


class Filter:
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

    def display(self, shown: Shown) -> Message | None:
        """Something displayed, updated, or removed; None if it has no place on the page."""
        if shown.what == "clear":
            return Message(type="clear_output", content={"wait": shown.how.get("wait") is True})
        name = shown.how.get("display_id")
        name = name if isinstance(name, str) else ""
        if shown.what == "update" and name not in self._names:
            return None
        data = self.bundle(shown.bundle)
        content = {
            "data": data,
            "metadata": self._metadata(shown.how.get("metadata"), data),
            "transient": {"display_id": self._own_name(name)} if name else {},
        }
        return Message(
            type="update_display_data" if shown.what == "update" else "display_data", content=content
        )

    def result(self, shown: Shown, count: int) -> Message:
        """The value of a cell."""
        data = self.bundle(shown.bundle)
        metadata = self._metadata(shown.how.get("metadata"), data)
        content = {"execution_count": count, "data": data, "metadata": metadata}
        return Message(type="execute_result", content=content)

    def comm(self, shown: Shown) -> Message | None:
        """A widget's message to its page; None unless a person trusts it."""
        kind = shown.how.get("kind")
        if not self.trusted or kind not in {"comm_open", "comm_msg", "comm_close"}:
            return None
        metadata = shown.how.get("metadata")
        return Message(
            type=str(kind),
            content=shown.bundle,
            metadata=metadata if isinstance(metadata, Mapping) else {},
            buffers=shown.buffers,
        )

    def payload(self, shown: Shown) -> dict[str, Any] | None:
        """What a reply carries besides: a page to read; and text for a new cell if a person trusts it."""
        if shown.what == "page":
            data = {"text/plain": self._word(shown.bundle, "text/plain")}
            page = dict(shown.bundle) if self.trusted else {"text/plain": coloured(data["text/plain"])}
            return {"source": "page", "data": page, "start": 0}
        if not self.trusted:
            return None
        replace = shown.how.get("replace") is True
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
