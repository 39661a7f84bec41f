"""Values on their way into and out of a sandbox, in forms that carry data and nothing else. No pickles.

    text   str               bytes  bytes, bytearray, memoryview
    json   what JSON holds   npy    arrays of numpy, without objects
    arrow  data frames and series of pandas, tables of pyarrow: an Arrow stream, which needs pyarrow

What comes out of a sandbox is hostile: its size is bounded before it is read, compressed and nested Arrow
data is refused, and nothing in it can name code to run.
"""

from __future__ import annotations

import io
import math
import struct
import sys
from dataclasses import dataclass
from typing import Any

from aisotools.core.exceptions import ToolError

MAX_BYTES = 44 << 20
"""The largest parcel; what is larger goes by a file in the workspace."""

_MAX_CELLS = 1 << 26
_DEPTH = 100
KINDS = ("text", "bytes", "json", "npy", "arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """One packed value.

    Attributes:
        kind: How it is packed.
        data: The bytes.
        form: For Arrow: `frame`, `series` or `table`; for npy: `array` or `scalar`.
    """

    kind: str
    data: bytes
    form: str = ""


def pack(name: str, value: Any) -> Payload:
    """A value as a parcel.

    Raises:
        ToolError: If it cannot travel, with what to do instead.
    """
    parcel = _packed(name, value)
    if len(parcel.data) > MAX_BYTES:
        raise ToolError(
            f"{name!r} has {len(parcel.data):,} bytes when packed; at most {MAX_BYTES:,} travel at "
            "once. Write it "
            "to a file in the workspace instead."
        )
    return parcel


def _packed(name: str, value: Any) -> Payload:
    if type(value) is str:
        return Payload(kind="text", data=_utf8(name, value))
    if isinstance(value, bytes | bytearray | memoryview):
        return Payload(kind="bytes", data=bytes(value))
    library = type(value).__module__.partition(".")[0]
    if library == "numpy":
        return _pack_array(name, value)
    if library in {"pandas", "pyarrow"}:
        return _pack_frame(name, value)
    if library == "polars" and hasattr(value, "to_arrow"):
        return _pack_frame(name, value.to_arrow())
    return _pack_json(name, value)


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError(
            f"{name!r} cannot travel: half a surrogate pair at character {error.start}."
        ) from None


def _pack_json(name: str, value: Any) -> Payload:
    from pydantic_core import PydanticSerializationError, to_json

    try:
        _demand_json(value)
        data = to_json(value, inf_nan_mode="constants")
    except (TypeError, ValueError, RecursionError, PydanticSerializationError) as error:
        raise ToolError(
            f"{name!r} is {type(value).__name__}, which cannot travel as it is ({error}). Text, "
            "bytes, numbers, "
            "lists and dicts of them, numpy arrays and data frames can; so can a file in the workspace."
        ) from None
    return Payload(kind="json", data=data)


def _demand_json(value: Any, depth: int = 0) -> None:
    """Only what comes back the same: no tuples that become lists, no keys that become text."""
    if depth > _DEPTH:
        raise ValueError(f"it is nested more than {_DEPTH} deep")
    if value is None or type(value) in {bool, int, float, str}:
        return
    if type(value) is list:
        for one in value:
            _demand_json(one, depth + 1)
    elif type(value) is dict:
        for key, one in value.items():
            if type(key) is not str:
                raise TypeError(f"a key is {type(key).__name__}, and JSON has text for keys")
            _demand_json(one, depth + 1)
    else:
        raise TypeError(f"it holds {type(value).__name__}")


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


def _pack_frame(name: str, value: Any) -> Payload:
    pa = _pyarrow(name)
    form = "table"
    try:
        if isinstance(value, pa.Table | pa.RecordBatch):
            table = pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else value
        else:
            form = "series" if type(value).__name__ == "Series" else "frame"
            if type(value).__name__ not in {"Series", "DataFrame"}:
                raise TypeError(f"{type(value).__name__} is no data frame")
            frame = (
                value.to_frame("value" if value.name is None else value.name) if form == "series" else value
            )
            table = pa.Table.from_pandas(frame)
            form = "series unnamed" if form == "series" and value.name is None else form
    except (pa.ArrowException, TypeError, ValueError) as error:
        told = " ".join(str(error).split())[:300]
        raise ToolError(
            f"{name!r} cannot travel: {told}. Give every column one type, as with df.astype(str), or "
            "write it to a "
            "file in the workspace."
        ) from None
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write_table(table)
    return Payload(kind="arrow", data=sink.getvalue(), form=form)


def _pyarrow(name: str) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc
    except ImportError:
        raise ToolError(
            f"{name!r} is a data frame, and those travel with pyarrow, which is not installed. Install it "
            "(%pip install pyarrow), or send its columns as arrays or lists."
        ) from None
    return pa


# ---- unpacking; nothing here believes the data


def unpack(name: str, parcel: Payload) -> Any:
    """The value in a parcel, which may come from anybody.

    Raises:
        ToolError: If it is out of form.
    """
    if len(parcel.data) > MAX_BYTES:
        raise ToolError(
            f"{name!r} has {len(parcel.data):,} bytes; at most {MAX_BYTES:,} are taken.", recoverable=False
        )
    readers = {
        "text": _read_text,
        "bytes": _read_bytes,
        "json": _read_json,
        "npy": _read_npy,
        "arrow": _read_arrow,
    }
    read = readers.get(parcel.kind)
    try:
        if read is None:
            raise ValueError(f"there is no form {parcel.kind[:40]!r}")
        return read(name, parcel)
    except ToolError:
        raise
    except Exception as error:  # whatever a library makes of hostile bytes
        told = " ".join(str(error).split())[:200]
        raise ToolError(f"{name!r} came out of the sandbox malformed: {told}.", recoverable=False) from None


def _read_text(name: str, parcel: Payload) -> str:  # noqa: ARG001 - one of several readers
    return parcel.data.decode()


def _read_bytes(name: str, parcel: Payload) -> bytes:  # noqa: ARG001 - one of several readers
    return parcel.data


def _read_json(name: str, parcel: Payload) -> Any:  # noqa: ARG001 - one of several readers
    from pydantic_core import from_json

    if parcel.data.count(b"[") + parcel.data.count(b"{") > 1 << 20 or parcel.data.count(b",") > 1 << 23:
        raise ValueError("it has too many parts")
    return from_json(parcel.data, allow_inf_nan=True)


def _read_npy(name: str, parcel: Payload) -> Any:
    try:
        import numpy as np
        from numpy.lib import format as npy
    except ImportError:
        raise ToolError(
            f"{name!r} is an array, and numpy is not installed here.", recoverable=False
        ) from None
    file = io.BytesIO(parcel.data)
    version = npy.read_magic(file)
    if version not in {(1, 0), (2, 0)}:
        raise ValueError(f"npy version {version}")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read_header(file, max_header_size=10_000)
    if dtype.hasobject or not dtype.itemsize:
        raise ValueError("it holds objects, or nothing at all")
    # Sizes of nothing can be multiplied into anything.
    if len(shape) > 32 or math.prod(shape) * dtype.itemsize != len(parcel.data) - file.tell():
        raise ValueError("its shape does not fit its data")
    if math.prod(max(one, 1) for one in shape) > sys.maxsize // max(dtype.itemsize, 1):
        raise ValueError("its shape is too large")
    file.seek(0)
    array = np.load(file, allow_pickle=False)
    return array[()] if parcel.form == "scalar" and array.ndim == 0 else array


def _read_arrow(name: str, parcel: Payload) -> Any:
    pa = _pyarrow(name)
    refuse_compression(pa, parcel.data)
    with pa.ipc.open_stream(pa.BufferReader(parcel.data)) as reader:
        schema = reader.schema
        for field in schema:
            if not _is_plain(pa, field.type):
                raise ValueError(f"the column {str(field.name)[:40]!r} is of the type {str(field.type)[:60]}")
        batches, rows = [], 0
        for batch in reader:
            rows += batch.num_rows
            if rows * max(len(schema), 1) > _MAX_CELLS:
                raise ValueError("it has too many cells")
            batch.validate(full=True)
            batches.append(batch)
    table = pa.Table.from_batches(batches, schema)
    if parcel.form == "table":
        return table
    frame = table.to_pandas()
    if not parcel.form.startswith("series"):
        return frame
    series = frame.iloc[:, 0]
    return series.rename(None) if parcel.form == "series unnamed" else series


def _is_plain(pa: Any, kind: Any) -> bool:
    """Types whose values take up the room that they come in."""
    types = pa.types
    if types.is_dictionary(kind):
        return _is_plain(pa, kind.value_type) and not types.is_dictionary(kind.value_type)
    checks = (
        *(types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string),
        *(types.is_binary, types.is_large_binary, types.is_temporal, types.is_decimal, types.is_null),
    )
    return any(check(kind) for check in checks)


def refuse_compression(pa: Any, data: bytes) -> None:
    """Raise if a record batch in the stream is compressed: a few bytes could swell to all of memory.

    Raises:
        ValueError: If one is, or the stream cannot be read.
    """
    source = pa.BufferReader(data)
    while True:
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            return
        if message is None:
            return
        metadata = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", metadata)[0]
        header = _table(metadata, root, 2)
        kind = _byte(metadata, root, 1)
        if kind == 2 and header is not None:  # a dictionary, whose values are a record batch
            header = _table(metadata, header, 1)
        if kind in {2, 3} and header is not None and _field(metadata, header, 3):
            raise ValueError("it is compressed")


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a FlatBuffers table lies; 0 when it is left out."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    place = 4 + 2 * number
    if place + 2 > size:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + place)[0])
    return table + offset if offset else 0


def _table(data: bytes, table: int, number: int) -> int | None:
    place = _field(data, table, number)
    return place + int(struct.unpack_from("<I", data, place)[0]) if place else None


def _byte(data: bytes, table: int, number: int) -> int:
    place = _field(data, table, number)
    return data[place] if place else 0
