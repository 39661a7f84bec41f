"""A result on its way out of a worker: written there, and read by a host that believes nothing of it.

On the channel a result is four pieces of JSON, so that each has a cap of its own: the head (what the model
reads, and how it ended), the value, the MIME data and the metadata. A value that is plain text goes as it is.
What is over its cap is left out, and that is said: first where it is written, and again where it is read.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import ChannelError
from aisotools.core.protocols import OutputCaps
from aisotools.core.types import ErrorKind, MimeBundle, ToolResult, Truncation
from aisotools.sandbox.frames import LIMITS
from aisotools.sandbox.worker.output import json_bundle, sendable
from aisotools.tools.results import gc_paused

VALUE_DROPPED = "value_dropped"
"""Key in a result's metadata: why its value is missing, in words."""

STREAMS_TAKEN = "streams_taken"
"""Key in the metadata of a tool's own result: it already tells what the call printed."""

_IS_TEXT = "value_is_text"
_TOLD_BY = "told_by"
_KINDS = {"text", "json", "binary", "error"}
_ERROR_KINDS: Mapping[str, ErrorKind] = {
    "invalid": "invalid",
    "failed": "failed",
    "denied": "denied",
    "environment": "environment",
}
_PIECES = 4
_NOTE_CHARS = 400
_METADATA_SLACK_BYTES = 1 << 20
_SMALL_BYTES = 1 << 18
_MOST_CONTAINERS, _MOST_ITEMS = 1 << 20, 1 << 22

Pieces = tuple[bytes, bytes, bytes, bytes]
"""Head, value, data and metadata; empty for nothing."""


# ---- in the worker


def encode_result(result: ToolResult, caps: OutputCaps) -> Pieces:
    """The four pieces of a result, each within its cap and together within what the channel carries."""
    notes: dict[str, Any] = {}
    told_by = _told_by(result) if len(result.content) > caps.content_chars else None
    content, truncation = "", None
    if told_by is None:
        content, truncation = cut(sendable(result.content), caps.kept_chars)
    head = {
        "content": content,
        "is_error": result.is_error,
        "recoverable": result.recoverable,
        "error_kind": result.error_kind,
        "kind": result.kind,
        "truncation": truncation,
        STREAMS_TAKEN: bool(result.metadata.get(STREAMS_TAKEN)),
        _IS_TEXT: isinstance(result.value, str),
        _TOLD_BY: told_by,
    }
    pieces = [to_json(head)]
    room = LIMITS.body_bytes - len(pieces[0]) - _METADATA_SLACK_BYTES
    value = _value(result.value)
    if len(value) > min(caps.value_bytes, room):
        notes[VALUE_DROPPED] = _too_large("value", len(value), caps.value_bytes)
        value = b""
    room -= len(value)
    shown, left_out = _fitting(json_bundle(result.data), min(caps.data_bytes, room))
    if left_out:
        notes["data_dropped"] = left_out
    room -= len(shown)
    metadata = {k: v for k, v in result.metadata.items() if k != STREAMS_TAKEN}
    more = _json({**metadata, **notes}) if metadata or notes else b""
    if len(more) > min(_metadata_bytes(caps), room):
        more = to_json({**notes, "metadata_dropped": len(more)})
    return pieces[0], value, shown, more


def _told_by(result: ToolResult) -> str | None:
    """Where in the value the content stands, so that it travels once: a key, or "" for all of it."""
    value = result.value
    if value is result.content:
        return ""
    parts = value.items() if isinstance(value, dict) else ()
    return next((key for key, part in parts if part is result.content and isinstance(key, str)), None)


def cut(text: str, most_chars: int) -> tuple[str, Truncation | None]:
    """`text`; or, of one longer than `most_chars`, its head and its tail with a note between."""
    if len(text) <= most_chars:
        return text, None
    # Notes take room: this one, and what the host may have to add.
    room = max(most_chars - _NOTE_CHARS, most_chars // 2)
    note = f"[{len(text) - room} of {len(text)} characters left out here]"
    head, tail = text[: room - room // 3], text[len(text) - room // 3 :]
    told = Truncation(total_chars=len(text), shown_chars=room, note=note)
    return f"{head}\n{note}\n{tail}", told


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    return b"" if value is None else _json(value)


def _json(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="strings", serialize_unknown=True)
    except ValueError:  # text that UTF-8 cannot hold: names of files, most often
        return to_json(_plain(value), inf_nan_mode="strings", serialize_unknown=True)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return sendable(value)
    if isinstance(value, Mapping):
        return {sendable(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value


def _fitting(bundle: MimeBundle, most_bytes: int) -> tuple[bytes, list[str]]:
    """As much of a bundle as fits, the small before the large; and the types left out."""
    if not bundle:
        return b"", []
    kept: dict[str, Any] = {}
    sizes = {mime: len(_json(value)) + len(mime) + 8 for mime, value in bundle.items()}
    room = most_bytes - 2
    for mime in sorted(sizes, key=sizes.__getitem__):
        if sizes[mime] <= room:
            kept[mime] = bundle[mime]
            room -= sizes[mime]
    return _json(kept) if kept else b"", [mime for mime in bundle if mime not in kept]


def _metadata_bytes(caps: OutputCaps) -> int:
    return caps.data_bytes + 2 * caps.stream_bytes + _METADATA_SLACK_BYTES


def _too_large(what: str, size: int, cap: int) -> str:
    return (
        f"The {what} has {size} bytes as JSON; {cap} are passed on. "
        "Write large results to a file in the workspace and return its path."
    )


# ---- in the host


class Printed:
    """What the host heard a call print, in the order in which it came.

    Attributes:
        dropped_bytes: What came beyond the caps.
        raw: Whether any of it came from a descriptor, past the worker's own streams.
    """

    def __init__(self, most_bytes: int) -> None:
        """Keep `most_bytes` of the worker's own streams, and as much of what programs write past them."""
        self.dropped_bytes = 0
        self.raw = False
        self._text_left = self._raw_left = most_bytes
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def take(self, stream: str, text: str) -> str:
        """Keep what the cap allows of `text` and return it."""
        kept, size = self._within(self._text_left, text)
        self._text_left -= size
        return self._keep(stream, kept)

    def take_raw(self, stream: str, data: bytes) -> str:
        """The same for bytes that a program wrote; a character may come in two pieces."""
        self.raw = True
        if not self._raw_left:
            self.dropped_bytes += len(data)
            return ""
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        kept, size = self._within(self._raw_left, decoder.decode(data))
        self._raw_left -= size
        return self._keep(stream, kept)

    def rest(self) -> Printed:
        """For what the call still prints after its end: what is left of its caps, and nothing else."""
        rest = Printed(0)
        rest._text_left, rest._raw_left = self._text_left, self._raw_left
        return rest

    def _within(self, left_bytes: int, text: str) -> tuple[str, int]:
        size = len(text) if text.isascii() else len(text.encode())
        if size <= left_bytes:
            return text, size
        self.dropped_bytes += size - left_bytes
        return text.encode()[:left_bytes].decode("utf-8", "ignore"), left_bytes

    def _keep(self, stream: str, text: str) -> str:
        if text:
            self._texts[stream].append(text)
        return text

    def told(self) -> dict[str, str]:
        """What was printed, by stream; only what there is."""
        return {stream: "".join(texts) for stream, texts in self._texts.items() if texts}


def result_from_worker(pieces: Sequence[bytes], caps: OutputCaps, printed: Printed) -> ToolResult:
    """A result in our own form.

    Args:
        pieces: What a worker sent.
        caps: What it may hold.
        printed: What the host heard the call print.

    Raises:
        ChannelError: If it is out of form. A single piece that is too large or cannot be read is left out.
    """
    if len(pieces) != _PIECES:
        raise ChannelError(f"a result has {len(pieces)} pieces instead of {_PIECES}")
    head = _read_head(pieces[0], caps)
    notes: dict[str, Any] = {}
    value, problem = _read(pieces[1], "value", caps.value_bytes, is_text=head.get(_IS_TEXT) is True)
    if problem:
        notes[VALUE_DROPPED] = problem
    data, problem = _read(pieces[2], "data", caps.data_bytes)
    if problem or not isinstance(data, dict | None):
        data, notes["data_dropped"] = None, problem or "The data is no object."
    metadata, problem = _read(pieces[3], "metadata", _metadata_bytes(caps))
    if problem or not isinstance(metadata, dict | None):
        metadata, notes["metadata_dropped"] = None, problem or "The metadata is no object."
    is_error = head.get("is_error") is True
    result = ToolResult(
        content=_content(head, value, caps),
        is_error=is_error,
        recoverable=is_error and head.get("recoverable") is True,
        error_kind=_ERROR_KINDS.get(str(head.get("error_kind")), "failed") if is_error else None,
        kind=head["kind"],
        value=value,
        data=data or {},
        metadata={**(metadata or {}), **notes},
        truncation=_truncation(head),
    )
    return _with_printed(result, printed, taken=head.get(STREAMS_TAKEN) is True)


def _content(head: Mapping[str, Any], value: Any, caps: OutputCaps) -> str:
    """What the model is to read; it may stand in the value."""
    key = head.get(_TOLD_BY)
    told = (
        value if key == "" else value.get(key) if isinstance(key, str) and isinstance(value, dict) else None
    )
    if isinstance(told, str):
        return told
    content: str = head["content"]
    return cut(content, caps.kept_chars)[0]


def _read_head(data: bytes, caps: OutputCaps) -> dict[str, Any]:
    if len(data) > 8 * max(caps.kept_chars, caps.content_chars) + 4096:
        raise ChannelError(f"a result's head has {len(data)} bytes")
    try:
        head = from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise ChannelError(f"a result is not JSON: {str(error)[:200]}") from None
    if not isinstance(head, dict):
        raise ChannelError("a result is no object")
    kind = head.setdefault("kind", "text")
    if not isinstance(head.get("content"), str) or not isinstance(kind, str) or kind not in _KINDS:
        raise ChannelError("a result has no text, or is of an unknown kind")
    return head


def _read(data: bytes, what: str, most_bytes: int, *, is_text: bool = False) -> tuple[Any, str]:
    """The value of one piece, and why there is none."""
    if len(data) > most_bytes:
        return None, _too_large(what, len(data), most_bytes)
    if is_text:
        return data.decode("utf-8", "replace"), ""
    if not data:
        return None, ""
    # A list takes 3 bytes to write and 64 to keep: counted first, it cannot swell the host.
    if len(data) > _SMALL_BYTES and (
        data.count(b"[") + data.count(b"{") > _MOST_CONTAINERS or data.count(b",") > _MOST_ITEMS
    ):
        return None, f"The {what} has too many parts. Write it to a file in the workspace instead."
    try:
        with gc_paused() if len(data) > _SMALL_BYTES else contextlib.nullcontext():
            return from_json(data, allow_inf_nan=False, cache_strings="keys"), ""
    except ValueError as error:
        return None, f"The {what} cannot be read: {str(error)[:200]}."


def _truncation(head: Mapping[str, Any]) -> Truncation | None:
    told = head.get("truncation")
    if not isinstance(told, dict):
        return None
    total, shown = told.get("total_chars"), told.get("shown_chars")
    if type(total) is not int or type(shown) is not int or not 0 <= shown <= total < 1 << 53:
        return None
    note = f"[{total - shown} of {total} characters left out here]"
    return Truncation(total_chars=total, shown_chars=shown, note=note)


def _with_printed(result: ToolResult, printed: Printed, *, taken: bool) -> ToolResult:
    """Add what was printed: to the metadata, or to a result that told it but could not know all of it."""
    texts = printed.told()
    metadata = dict(result.metadata)
    if printed.dropped_bytes:
        told = metadata.get("dropped_bytes")
        metadata["dropped_bytes"] = printed.dropped_bytes + (told if type(told) is int else 0)
    if not taken:
        metadata.update(texts)
    elif printed.raw:
        result = _with_raw(result, texts)
    notes = [str(metadata[VALUE_DROPPED])] if VALUE_DROPPED in metadata else []
    if taken and "dropped_bytes" in metadata:
        notes.append(f"{metadata['dropped_bytes']} more bytes of printed output were dropped.")
    if not notes and metadata == result.metadata:
        return result
    content = "\n".join([result.content, *(f"[{note[: _NOTE_CHARS // 2]}]" for note in notes)])
    return dataclasses.replace(result, content=content, metadata=metadata)


def _with_raw(result: ToolResult, texts: Mapping[str, str]) -> ToolResult:
    """Programs wrote straight to the worker's descriptors, which only the host hears."""
    value, content = result.value, result.content
    if not isinstance(value, dict):
        return dataclasses.replace(result, content="\n".join(filter(None, [content, *texts.values()])))
    known = [text for stream in texts if isinstance(text := value.get(stream), str)]
    before = "\n".join(text.rstrip("\n") for text in known if text)
    rest = content.removeprefix(before).removeprefix("\n")
    told = [text.rstrip("\n") for text in texts.values()]
    return dataclasses.replace(
        result, content="\n".join(filter(None, [*told, rest])), value={**value, **texts}
    )
