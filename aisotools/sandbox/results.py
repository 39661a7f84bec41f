"""Results of calls on the channel: encoded in the worker, decoded by the host, which trusts nothing in them.

On the channel a result is four pieces, each with a cap of its own: the head (what the model reads, and how
the call ended), the value, the MIME data and the metadata. All are JSON, except a value that is plain text.
What exceeds its cap is left out and noted: first where it is encoded, and again where it is decoded.

Threat: a result that swells when it is decoded, that is not JSON, whose metadata claims what only the host
may say, or whose types act on a page.
Mechanism: each piece is bounded by its size before it is looked at, and by depth, keys and containers while
it is parsed, in steps (`aisotools.sandbox.parsing`). Keys of the host are taken out of what a worker sends.
Race: none; the pieces are whole and belong to the host before they are read.
Failure: a piece too large is left out, and the result names it. One of another form ends the worker, as does
any frame that breaks the protocol, and the call fails.
"""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic_core import from_json, to_json

from aisotools.core.concurrency import at_once
from aisotools.core.exceptions import ChannelError, as_clause
from aisotools.core.protocols import OutputCaps
from aisotools.core.types import ErrorKind, MimeBundle, ToolResult, Truncation
from aisotools.sandbox.frames import LIMITS
from aisotools.sandbox.parsing import MAX_NESTED, STEP_BYTES, decode_steps, has_more_parts, parse_steps
from aisotools.sandbox.worker.output import escape_surrogates, json_bundle

IN_READER = "in_reader"
"""Key in a result's metadata: true if the call ran without write rights. Only the host sets it."""

RAN_READ_ONLY = "ran_read_only"
"""The same for the result of a trial: nobody was asked, and nothing was changed. Only the host sets it."""

VALUE_DROPPED = "value_dropped"
"""Key in a result's metadata: the reason why its value is missing."""

STREAMS_TAKEN = "streams_taken"
"""Key in the metadata of a tool's own result: it includes what the call printed."""

# Keys in the head: whether the value is plain text, and where in the value the content stands.
_IS_TEXT = "value_is_text"
_CONTENT_KEY = "content_key"

_RESULT_KINDS = {"text", "json", "binary", "error"}
_ERROR_KINDS: Mapping[str, ErrorKind] = {
    "invalid": "invalid",
    "failed": "failed",
    "denied": "denied",
    "environment": "environment",
}
_PIECE_COUNT = 4
# Room for notes in a content that is truncated.
_NOTE_CHARS = 400
# Room for the metadata that the worker and the host add.
_METADATA_SLACK_BYTES = 1 << 20
# Room in the head for all but the content.
_HEAD_SLACK_BYTES = 4096
# Above this size, containers and items are counted before the JSON is parsed.
_UNCOUNTED_BYTES = 1 << 18
# Each collection of garbage looks at every container: so many that hold plain values take 25 ms.
_MAX_CONTAINERS = 1 << 18
_MAX_ITEMS = 1 << 22

MAX_MIME_TYPES = 100
"""Types in the data of one result. Whoever shows or records a result looks at each."""

# Names of types that are listed as left out.
_MAX_LISTED_TYPES = 20

ResultPieces = tuple[bytes, bytes, bytes, bytes]
"""Head, value, data and metadata; a piece that is missing is empty."""


# ---- in the worker


def encode_result(result: ToolResult, caps: OutputCaps) -> ResultPieces:
    """Return the four pieces of a result, each within its cap, all together within the channel's limits."""
    notes: dict[str, Any] = {}
    content_key = _content_key(result) if len(result.content) > caps.content_chars else None
    content, truncation = "", None
    if content_key is None:
        content, truncation = cut(escape_surrogates(result.content), caps.kept_chars)
    head = {
        "content": content,
        "is_error": result.is_error,
        "recoverable": result.recoverable,
        "error_kind": result.error_kind,
        "kind": result.kind,
        "truncation": truncation,
        STREAMS_TAKEN: bool(result.metadata.get(STREAMS_TAKEN)),
        _IS_TEXT: isinstance(result.value, str),
        _CONTENT_KEY: content_key,
    }
    pieces = [to_json(head)]
    room = LIMITS.body_bytes - len(pieces[0]) - _METADATA_SLACK_BYTES
    value = _encode_value(result.value)
    if len(value) > min(caps.value_bytes, room):
        notes[VALUE_DROPPED] = _too_large_note("value", len(value), caps.value_bytes)
        value = b""
    room -= len(value)
    data, dropped = _encode_data(json_bundle(result.data), min(caps.data_bytes, room))
    if dropped:
        more = len(dropped) - _MAX_LISTED_TYPES
        listed = [mime[:_NOTE_CHARS] for mime in dropped[:_MAX_LISTED_TYPES]]
        notes["data_dropped"] = [*listed, f"{more:,} more"] if more > 0 else listed
    room -= len(data)
    metadata = {k: v for k, v in result.metadata.items() if k != STREAMS_TAKEN}
    metadata_piece = _to_json({**metadata, **notes}) if metadata or notes else b""
    if len(metadata_piece) > min(piece_limits(caps)[3], room):
        metadata_piece = to_json({**notes, "metadata_dropped": len(metadata_piece)})
    return pieces[0], value, data, metadata_piece


def _content_key(result: ToolResult) -> str | None:
    """Return where in the value the content stands, so that it travels once: a key, or "" for all of it."""
    value = result.value
    if value is result.content:
        return ""
    items = value.items() if isinstance(value, dict) else ()
    return next((key for key, item in items if item is result.content and isinstance(key, str)), None)


def cut(text: str, max_chars: int) -> tuple[str, Truncation | None]:
    """Return `text`, or, if it is longer than `max_chars`, its head and its tail with a note in between."""
    if len(text) <= max_chars:
        return text, None
    # Notes take room: this one, and what the host may have to add.
    room = max(max_chars - _NOTE_CHARS, max_chars // 2)
    note = f"[{len(text) - room} of {len(text)} characters left out here]"
    head, tail = text[: room - room // 3], text[len(text) - room // 3 :]
    truncation = Truncation(total_chars=len(text), shown_chars=room, note=note)
    return f"{head}\n{note}\n{tail}", truncation


def _encode_value(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace")
    return b"" if value is None else _to_json(value)


def _to_json(value: Any) -> bytes:
    try:
        return to_json(value, inf_nan_mode="strings", serialize_unknown=True)
    except ValueError:
        # Text that UTF-8 cannot hold: lone surrogates, most often from names of files.
        return to_json(_plain(value), inf_nan_mode="strings", serialize_unknown=True)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return escape_surrogates(value)
    if isinstance(value, Mapping):
        return {escape_surrogates(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value


def _encode_data(bundle: MimeBundle, max_bytes: int) -> tuple[bytes, list[str]]:
    """Encode as much of a bundle as fits, the small before the large. Return the types left out, too."""
    if not bundle:
        return b"", []
    selected: dict[str, Any] = {}
    sizes = {mime: len(_to_json(value)) + len(mime) + 8 for mime, value in bundle.items()}
    room = max_bytes - 2
    for mime in sorted(sizes, key=sizes.__getitem__):
        if sizes[mime] <= room and len(selected) < MAX_MIME_TYPES:
            selected[mime] = bundle[mime]
            room -= sizes[mime]
    data = _to_json(selected) if selected else b""
    return data, [mime for mime in bundle if mime not in selected]


def _too_large_note(piece: str, size: int, cap: int) -> str:
    return (
        f"The {piece} has {size} bytes as JSON; {cap} are passed on. "
        "Write large results to a file in the workspace and return its path."
    )


# ---- in the host


class PrintedOutput:
    """What a call printed, as the host received it, in order and capped.

    Attributes:
        dropped_bytes: Bytes beyond the caps.
        has_raw: Whether any of it came from a descriptor, past the worker's own streams.
    """

    def __init__(self, max_bytes: int, max_raw_bytes: int | None = None) -> None:
        """Accept no output yet.

        Args:
            max_bytes: How much of the worker's own streams will be accepted.
            max_raw_bytes: How much of what programs write past them; None for `max_bytes`.
        """
        self.dropped_bytes = 0
        self.has_raw = False
        self._text_left = max_bytes
        self._raw_left = max_bytes if max_raw_bytes is None else max_raw_bytes
        self._texts: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}

    def add(self, stream: str, text: str) -> str:
        """Add what the cap allows of `text`, and return that."""
        accepted, size = self._limit(self._text_left, text)
        self._text_left -= size
        return self._append(stream, accepted)

    def add_raw(self, stream: str, data: bytes) -> str:
        """Add what the cap allows of bytes that a program wrote, and return that as text.

        A character may be cut in two between reads; its first bytes wait for the rest.
        """
        self.has_raw = True
        if not self._raw_left:
            self.dropped_bytes += len(data)
            return ""
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        accepted, size = self._limit(self._raw_left, decoder.decode(data))
        self._raw_left -= size
        return self._append(stream, accepted)

    def remainder(self) -> PrintedOutput:
        """Return an empty output with what is left of the caps, for what the call prints after its end."""
        return PrintedOutput(self._text_left, self._raw_left)

    def _limit(self, left_bytes: int, text: str) -> tuple[str, int]:
        size = len(text) if text.isascii() else len(text.encode())
        if size <= left_bytes:
            return text, size
        self.dropped_bytes += size - left_bytes
        return text.encode()[:left_bytes].decode("utf-8", "ignore"), left_bytes

    def _append(self, stream: str, text: str) -> str:
        if text:
            self._texts[stream].append(text)
        return text

    def texts(self) -> dict[str, str]:
        """Return the text of each stream that has any."""
        joined = {}
        for stream, texts in self._texts.items():
            if texts:
                joined[stream] = "".join(texts)
        return joined


def result_from_worker(pieces: Sequence[bytes], caps: OutputCaps, output: PrintedOutput) -> ToolResult:
    """Decode a worker's result at once; see `result_steps`."""
    return at_once(result_steps(pieces, caps, output))


def piece_limits(caps: OutputCaps) -> tuple[int, ...]:
    """Return how many bytes each of the four pieces may have; a larger one is of no use to `result_steps`."""
    head = 8 * max(caps.kept_chars, caps.content_chars) + _HEAD_SLACK_BYTES
    metadata = caps.data_bytes + 2 * caps.stream_bytes + _METADATA_SLACK_BYTES
    return head, caps.value_bytes, caps.data_bytes, metadata


def result_steps(
    pieces: Sequence[bytes],
    caps: OutputCaps,
    output: PrintedOutput,
    dropped: Mapping[int, int] = MappingProxyType({}),
) -> Generator[None, None, ToolResult]:
    """Decode a worker's result in steps. A single piece that is too large or malformed is left out and noted.

    Args:
        pieces: What the worker sent.
        caps: What the result may hold.
        output: What the host received of the call's printed output.
        dropped: Sizes of the pieces that were too large to be kept, by position.

    Raises:
        ChannelError: If the result as a whole, or its head, is malformed.
    """
    if len(pieces) != _PIECE_COUNT:
        raise ChannelError(f"a result has {len(pieces)} pieces instead of {_PIECE_COUNT}")
    limits = piece_limits(caps)
    sizes = [*map(len, pieces)]
    for number, size in dropped.items():
        sizes[number] = size
    head = yield from _decode_head(pieces[0], sizes[0], limits[0])
    notes: dict[str, Any] = {}
    is_text = head.get(_IS_TEXT) is True
    value, problem = yield from _decode(pieces[1], "value", sizes[1], limits[1], is_text=is_text)
    if problem:
        notes[VALUE_DROPPED] = problem
    data, problem = yield from _decode(pieces[2], "data", sizes[2], limits[2])
    if problem or not isinstance(data, dict | None):
        data = None
        notes["data_dropped"] = problem or "The data is not an object."
    elif data and len(data) > MAX_MIME_TYPES:
        notes["data_dropped"] = (
            f"The data has {len(data):,} MIME types; {MAX_MIME_TYPES} are passed on. "
            "Write large results to a file in the workspace and return its path."
        )
        data = None
    metadata, problem = None, ""
    if sizes[3]:
        metadata, problem = yield from _decode(pieces[3], "metadata", sizes[3], limits[3])
    if problem or not isinstance(metadata, dict | None):
        metadata = None
        notes["metadata_dropped"] = problem or "The metadata is not an object."
    if metadata is not None:
        for claim in (IN_READER, RAN_READ_ONLY):
            metadata.pop(claim, None)
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
        truncation=None if head.get("truncation") is None else _truncation(head),
    )
    return _add_output(result, output, is_included=head.get(STREAMS_TAKEN) is True)


def _content(head: Mapping[str, Any], value: Any, caps: OutputCaps) -> str:
    """Return what the model reads: a part of the value, or what stands in the head."""
    key = head.get(_CONTENT_KEY)
    part: object = None
    if key == "":
        part = value
    elif isinstance(key, str) and isinstance(value, dict):
        part = value.get(key)
    if isinstance(part, str):
        return part
    content: str = head["content"]
    return content if len(content) <= caps.kept_chars else cut(content, caps.kept_chars)[0]


def _decode_head(data: bytes, size: int, max_bytes: int) -> Generator[None, None, dict[str, Any]]:
    head, problem = yield from _decode(data, "head", size, max_bytes)
    if problem:
        # What to do about a value or data that is too large is of no use here: no tool makes heads.
        raise ChannelError(f"the head of a result was refused: {as_clause(problem.partition('. ')[0][:200])}")
    if not isinstance(head, dict):
        raise ChannelError("the head of a result is not an object")
    kind = head.setdefault("kind", "text")
    if not isinstance(head.get("content"), str) or not isinstance(kind, str) or kind not in _RESULT_KINDS:
        raise ChannelError("a result has no text, or is of an unknown kind")
    return head


def _decode(
    data: bytes, piece: str, size: int, max_bytes: int, *, is_text: bool = False
) -> Generator[None, None, tuple[Any, str]]:
    """Return the value of one piece, and an empty note; or None, and why. `size` counts what was dropped."""
    if size > max_bytes or size > len(data):
        return None, _too_large_note(piece, size, max_bytes)
    if not data:
        return ("" if is_text else None), ""
    if (
        not is_text
        and len(data) > _UNCOUNTED_BYTES
        and (yield from has_more_parts(data, _MAX_CONTAINERS, _MAX_ITEMS, MAX_NESTED))
    ):
        return None, f"The {piece} has too many parts. Write it to a file in the workspace instead."
    try:
        if is_text:
            return (yield from decode_steps(data, "replace")), ""
        if len(data) <= STEP_BYTES:
            return from_json(data, allow_inf_nan=False, cache_strings="keys"), ""
        return (yield from parse_steps(data)), ""
    except ValueError as error:
        return None, f"The {piece} cannot be read: {as_clause(str(error)[:200])}."


def _truncation(head: Mapping[str, Any]) -> Truncation | None:
    fields = head.get("truncation")
    if not isinstance(fields, dict):
        return None
    total, shown = fields.get("total_chars"), fields.get("shown_chars")
    if type(total) is not int or type(shown) is not int or not 0 <= shown <= total < 1 << 53:
        return None
    note = f"[{total - shown} of {total} characters left out here]"
    return Truncation(total_chars=total, shown_chars=shown, note=note)


def _add_output(result: ToolResult, output: PrintedOutput, *, is_included: bool) -> ToolResult:
    """Add what was printed: to the metadata, or to a result that includes it but could not know all of it."""
    texts = output.texts()
    metadata = dict(result.metadata)
    if output.dropped_bytes:
        dropped_in_worker = metadata.get("dropped_bytes")
        if type(dropped_in_worker) is not int:
            dropped_in_worker = 0
        metadata["dropped_bytes"] = output.dropped_bytes + dropped_in_worker
    if not is_included:
        metadata.update(texts)
    elif output.has_raw:
        result = _add_raw_output(result, texts)
    notes = []
    if VALUE_DROPPED in metadata:
        notes.append(str(metadata[VALUE_DROPPED]))
    if is_included and "dropped_bytes" in metadata:
        notes.append(f"{metadata['dropped_bytes']} more bytes of printed output were dropped.")
    if not notes and metadata == result.metadata:
        return result
    content = "\n".join([result.content, *(f"[{note[: _NOTE_CHARS // 2]}]" for note in notes)])
    return dataclasses.replace(result, content=content, metadata=metadata)


def _add_raw_output(result: ToolResult, texts: Mapping[str, str]) -> ToolResult:
    """Add what programs wrote straight to the worker's descriptors, which only the host reads."""
    value, content = result.value, result.content
    if not isinstance(value, dict):
        return dataclasses.replace(result, content="\n".join(filter(None, [content, *texts.values()])))
    known = [text for stream in texts if isinstance(text := value.get(stream), str)]
    before = "\n".join(text.rstrip("\n") for text in known if text)
    rest = content.removeprefix(before).removeprefix("\n")
    printed = [text.rstrip("\n") for text in texts.values()]
    return dataclasses.replace(
        result, content="\n".join(filter(None, [*printed, rest])), value={**value, **texts}
    )
