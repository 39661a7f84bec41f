"""Values on their way into and out of a sandbox, in formats that carry data and no code. No pickles.

    text   str               bytes  bytes, bytearray, memoryview
    json   what JSON holds   npy    arrays of numpy, without objects
    arrow  data frames and series of pandas, tables of pyarrow: an Arrow stream, which needs pyarrow

What comes out of a sandbox is hostile: its size is bounded before it is parsed, and compressed and nested
Arrow data is refused, because a few bytes of it could fill the memory of the host. Text and JSON are read in
steps (`aisotools.sandbox.parsing`): even in a thread a parser would keep the event loop from going on.

Threat: a value from a sandbox runs code when it is read, swells, or holds the event loop up.
Mechanism: formats without code, bounded before they are parsed, and read in steps.
Race: none; the bytes belong to the host before they are read.
Failure: a value of another form, or too large, is a `ToolError` with the reason and the way to get a part.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from aisotools.core.concurrency import at_once
from aisotools.core.exceptions import ToolError
from aisotools.core.retention import size_of
from aisotools.sandbox.arrow import decode_frame, encode_frame
from aisotools.sandbox.parsing import MAX_NESTED, MAX_TEXT_BYTES, decode_steps, has_more_parts, parse_steps

MAX_BYTES = 44 << 20
"""Size of the largest payload; larger values go by a file in the workspace."""

_MAX_DEPTH = 100
# Of JSON, counted before it is parsed: so much the collector of garbage looks at in 30 ms.
_MAX_JSON_CONTAINERS = 1 << 18
_MAX_JSON_ITEMS = 1 << 22
# To make room for the next key, with twice as many, takes 30 ms.
_MAX_JSON_KEYS = 690_000
# What is written as JSON at once: it takes some milliseconds.
_PIECE_CHARS = 1 << 20
_PIECE_ITEMS = 1 << 12
_PIECE_BYTES = 4 << 20
# Dimensions that numpy supports.
_MAX_DIMENSIONS = 32
PAYLOAD_KINDS = ("text", "bytes", "json", "npy", "arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One packed value.

    Attributes:
        kind: Its format, one of `PAYLOAD_KINDS`.
        data: The bytes.
        form: For Arrow: `frame`, `series` or `table`; for npy: `array` or `scalar`.
    """

    kind: str
    data: bytes
    form: str = ""


def pack(name: str, value: Any) -> Payload:
    """Return a value as a payload.

    Raises:
        ToolError: If it cannot travel, with what to do instead.
    """
    payload = _pack(name, value)
    if len(payload.data) > MAX_BYTES:
        raise ToolError(
            f"{name!r} has {len(payload.data):,} bytes when packed; at most {MAX_BYTES:,} travel at once. "
            "Write it to a file in the workspace instead."
        )
    return payload


def _pack(name: str, value: Any) -> Payload:
    if type(value) is str:
        return Payload(kind="text", data=_utf8(name, value))
    if isinstance(value, bytes | bytearray | memoryview):
        return Payload(kind="bytes", data=bytes(value))
    library = type(value).__module__.partition(".")[0]
    if library == "numpy":
        return _pack_array(name, value)
    if library == "polars" and hasattr(value, "to_arrow"):
        library, value = "pyarrow", value.to_arrow()
    if library in {"pandas", "pyarrow"}:
        form, data = encode_frame(name, value)
        return Payload(kind="arrow", data=data, form=form)
    return _pack_json(name, value)


def _utf8(name: str, text: str) -> bytes:
    if sys.getsizeof(text) > MAX_TEXT_BYTES:
        raise ToolError(
            f"{name!r} takes {sys.getsizeof(text):,} bytes of memory; a text of at most {MAX_TEXT_BYTES:,} "
            f"travels. Send {name}.encode() instead, or write it to a file in the workspace."
        )
    try:
        # In pieces: the interpreter's lock is held for each.
        starts = range(0, len(text), _PIECE_CHARS)
        return b"".join(text[start : start + _PIECE_CHARS].encode() for start in starts)
    except UnicodeEncodeError as error:
        position = text.find(error.object[error.start])
        raise ToolError(f"{name!r} cannot travel: half a surrogate pair at character {position}.") from None


def _pack_json(name: str, value: Any) -> Payload:
    from pydantic_core import PydanticSerializationError

    try:
        _JsonCheck().check(value, 0)
        data = b"".join(_json_pieces(value))
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
        raise ToolError(
            f"{name!r} is {type(value).__name__}, which cannot travel as it is ({error}). Text, bytes, "
            "numbers, lists and dicts of them, numpy arrays and data frames can; so can a file in the "
            "workspace."
        ) from None
    return Payload(kind="json", data=data)


def _json_pieces(value: Any) -> Iterator[bytes]:
    """Yield the JSON of a value that `_JsonCheck` accepts, in pieces that take a few milliseconds each."""
    from pydantic_core import to_json

    write = partial(to_json, inf_nan_mode="constants")
    if type(value) is str:
        yield b'"'
        for start in range(0, len(value), _PIECE_CHARS):
            yield write(value[start : start + _PIECE_CHARS])[1:-1]
        yield b'"'
        return
    if not isinstance(value, list | dict) or _is_small(value):
        yield write(value)
        return
    is_dict = isinstance(value, dict)
    opening, closing = (b"{", b"}") if is_dict else (b"[", b"]")
    comma = b""
    items: Iterator[Any] = iter(value.items() if isinstance(value, dict) else value)
    yield opening
    while part := list(islice(items, _PIECE_ITEMS)):
        group = dict(part) if is_dict else part
        if _is_small(group):
            yield comma + write(group)[1:-1]
            comma = b","
            continue
        for item in part:
            if is_dict:
                yield comma
                yield from _json_pieces(item[0])
                yield b":"
                yield from _json_pieces(item[1])
            else:
                yield comma
                yield from _json_pieces(item)
            comma = b","
    yield closing


def _is_small(value: list[Any] | dict[str, Any]) -> bool:
    return size_of(value, _PIECE_BYTES) <= _PIECE_BYTES


class _JsonCheck:
    """Accepts only what comes back the same: no tuples that become lists, no keys that become text.

    And no more than is taken at the other end, so that whoever has the value learns what to do about it.
    """

    def __init__(self) -> None:
        self._containers = self._nested = self._items = 0

    def check(self, value: Any, depth: int) -> None:
        """Raise an exception that says what cannot travel."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is float:
            return
        if kind is str:
            if sys.getsizeof(value) > MAX_TEXT_BYTES:
                raise ValueError(f"it holds a text of more than {MAX_TEXT_BYTES:,} bytes of memory")
            return
        if kind is not list and kind is not dict:
            raise TypeError(f"it holds {kind.__name__}")
        holds_more = False
        for item in value if kind is list else value.values():
            holds_more = holds_more or type(item) is list or type(item) is dict
            self.check(item, depth + 1)
        if kind is dict:
            for key in value:
                if type(key) is not str:
                    raise TypeError(f"a key is {type(key).__name__}, and JSON has text for keys")
        self._count(value, holds_more=holds_more)

    def _count(self, value: list[Any] | dict[str, Any], *, holds_more: bool) -> None:
        self._containers += 1
        self._nested += holds_more
        self._items += max(len(value) - 1, 0)
        if type(value) is dict and len(value) > _MAX_JSON_KEYS:
            raise ValueError(f"one dict has more than {_MAX_JSON_KEYS:,} keys")
        if self._containers > _MAX_JSON_CONTAINERS:
            raise ValueError(f"it has more than {_MAX_JSON_CONTAINERS:,} lists and dicts")
        if self._nested > MAX_NESTED:
            raise ValueError(f"it has more than {MAX_NESTED:,} lists and dicts that hold others")
        if self._items > _MAX_JSON_ITEMS:
            raise ValueError(f"it has more than {_MAX_JSON_ITEMS:,} items")


def _pack_array(name: str, value: Any) -> Payload:
    import numpy as np

    if not isinstance(value, np.ndarray | np.generic):
        raise ToolError(
            f"{name!r} is {type(value).__name__}, which cannot travel. Send arrays or plain values."
        )
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise ToolError(
            f"{name!r} is an array of Python objects, which cannot travel. Give it a type, as with "
            "array.astype(float) or array.astype(str), or send a list."
        )
    if array.nbytes > MAX_BYTES:
        raise ToolError(
            f"{name!r} has {array.nbytes:,} bytes; at most {MAX_BYTES:,} travel. Save it to a file."
        )
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return Payload(
        kind="npy", data=file.getvalue(), form="scalar" if isinstance(value, np.generic) else "array"
    )


# ---- unpacking: the data is hostile


def unpack(name: str, payload: Payload) -> Any:
    """Return the value of a payload, which may be hostile.

    Raises:
        ToolError: If it is malformed.
    """
    return at_once(unpack_steps(name, payload))


def unpack_steps(name: str, payload: Payload) -> Generator[None, None, Any]:
    """Return the value of a payload, which may be hostile, in steps.

    Raises:
        ToolError: If it is malformed.
    """
    if len(payload.data) > MAX_BYTES:
        raise ToolError(
            f"{name!r} has {len(payload.data):,} bytes; at most {MAX_BYTES:,} are taken.", recoverable=False
        )
    try:
        if payload.kind == "text":
            return (yield from decode_steps(payload.data))
        if payload.kind == "json":
            return (yield from _json_steps(payload.data))
        if payload.kind == "bytes":
            return payload.data
        if payload.kind == "npy":
            return _read_npy(name, payload)
        if payload.kind == "arrow":
            return decode_frame(name, payload.data, payload.form)
        raise ValueError(f"there is no format {payload.kind[:40]!r}")
    except ToolError:
        raise
    except Exception as error:  # a parser may raise anything on hostile bytes
        reason = " ".join(str(error).split())[:200]
        raise ToolError(f"{name!r} came out of the sandbox malformed: {reason}.", recoverable=False) from None


def _json_steps(data: bytes) -> Generator[None, None, Any]:
    if (yield from has_more_parts(data, _MAX_JSON_CONTAINERS, _MAX_JSON_ITEMS, MAX_NESTED)):
        raise ValueError("it has too many parts")
    return (yield from parse_steps(data, allow_inf_nan=True, max_keys=_MAX_JSON_KEYS))


def _read_npy(name: str, payload: Payload) -> Any:
    try:
        import numpy as np
        from numpy.lib import format as npy
    except ImportError:
        raise ToolError(
            f"{name!r} is an array, and numpy is not installed here. Install numpy beside aisotools, or "
            f"make it a list in the sandbox first: {name} = {name}.tolist()",
            recoverable=False,
        ) from None
    file = io.BytesIO(payload.data)
    version = npy.read_magic(file)
    if version not in {(1, 0), (2, 0)}:
        raise ValueError(f"its npy format is {version[0]}.{version[1]}, and only 1.0 and 2.0 can be read")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(file, max_header_size=10_000)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("its elements are Python objects, or have no size")
    # A dimension of 0 makes any product 0: both products are checked, so that no shape claims more than the
    # data.
    if len(shape) > _MAX_DIMENSIONS or math.prod(shape) * dtype.itemsize != len(payload.data) - file.tell():
        raise ValueError("its shape does not fit its data")
    if math.prod(max(size, 1) for size in shape) > sys.maxsize // max(dtype.itemsize, 1):
        raise ValueError("its shape is too large")
    file.seek(0)
    array = np.load(file, allow_pickle=False)
    if not all(map(_has_characters, _text_parts(array))):
        raise ValueError("its text holds what is not a character")
    return array[()] if payload.form == "scalar" and array.ndim == 0 else array


def _text_parts(array: Any) -> Iterator[Any]:
    """Yield the arrays of text in an array: itself, or those of its fields."""
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        yield array
    for name in array.dtype.names or ():
        yield from _text_parts(array[name])


def _has_characters(texts: Any) -> bool:
    """Return whether an array of text holds characters alone: numpy fails at the use of any other number."""
    numbers = texts.ravel().view(f"{texts.dtype.byteorder}u4")
    return int(numbers.max()) <= sys.maxunicode
