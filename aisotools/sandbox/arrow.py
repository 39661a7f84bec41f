"""Data frames and tables as Arrow streams, out of a sandbox too.

Threat
    A worker sends an Arrow stream in place of a frame. A few bytes of it may stand for gigabytes (compressed
    or nested data, columns of nothing). What pandas makes of it may hold the interpreter's lock for seconds:
    a column of which every cell becomes an object of Python, categories that are compared as texts, a type in
    the description of pandas that has every text parsed, the description itself.
Mechanism
    Compressed, nested and extended types are refused, and so are more cells, batches, columns or longer names
    and descriptions than a frame has. Columns whose cells become objects of Python are converted a slice at a
    time, between which the event loop goes on. What pandas converts in one go only is bounded: the categories
    of a column, the rows of an index of objects and of several levels. A type that the description asks for
    must be that of the data.
Race window
    None: the bytes are complete, and nobody else has them.
When it fails
    `ValueError`, as Arrow itself raises, or whatever a parser raises on odd bytes; nothing is kept.

Whatever is refused here is refused by `encode_frame` as well, where the message says what to do instead.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

from aisotools.core.concurrency import at_once
from aisotools.core.exceptions import ToolError
from aisotools.sandbox.parsing import has_more_parts

# Cells of a data frame: columns without data take memory as well.
_MAX_CELLS = 1 << 26
# pyarrow and pandas go through columns with the interpreter's lock held: 30 ms for so many, some of text.
_MAX_COLUMNS = 1 << 14
_MAX_COLUMNS_OF_TABLE = 1 << 16
_MAX_BATCHES = 1 << 12
_MAX_NAME_CHARS = 4_096
# Of the head of a message: names, types and what pandas says about them.
_MAX_HEAD_BYTES = 8 << 20
# Of what pandas says about a frame, which is JSON: 200 bytes for each column.
_MAX_DESCRIPTION_BYTES = 8 << 20
_MAX_DESCRIPTION_OBJECTS = 2 * _MAX_COLUMNS
_MAX_DESCRIPTION_ITEMS = 8 * _MAX_COLUMNS
# Cells that become objects of Python at once: in 6 ms, if they are decimal numbers, which take longest.
_SLICE_ROWS = 1 << 14
# What is converted, copied or compared in one go: 30 ms.
_MAX_OBJECTS_OF_COLUMN = 1 << 21
_MAX_OBJECTS = 1 << 24
_MAX_CATEGORIES = 1 << 16
_MAX_OBJECTS_OF_INDEX = 1 << 16
_MAX_ROWS_OF_LEVELS = 1 << 18
_PLAIN_TYPES = frozenset({"object", "bool", "boolean", "string", "str", "category"})


# ---- packing


def encode_frame(name: str, value: Any) -> tuple[str, bytes]:
    """Return the form (`frame`, `series`, `series unnamed` or `table`) and the Arrow stream of a value.

    Args:
        name: What messages call it.
        value: A frame or series of pandas, or a table or batch of pyarrow.

    Raises:
        ToolError: If it cannot travel, with what to do instead.
    """
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
            table = _to_table(pa, frame)
            form = "series unnamed" if form == "series" and value.name is None else form
        if max((column.num_chunks for column in table.columns), default=0) > 1:
            table = table.combine_chunks()
        _check_schema(pa, table.schema, form)
        _check_table(pa, table, form)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ToolError(
            f"{name!r} cannot travel: {reason}. Give every column one type, as with df.astype(str), or "
            "write it to a file in the workspace."
        ) from None
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write_table(table)
    return form, sink.getvalue()


def _to_table(pa: Any, frame: Any) -> Any:
    """Convert a frame, its columns of objects in slices."""
    objects = [number for number, kind in enumerate(frame.dtypes) if str(kind) == "object"]
    rows = len(frame)
    if rows <= _SLICE_ROWS or not objects:
        return pa.Table.from_pandas(frame)
    light = frame.copy(deep=False)
    for number in objects:
        light.isetitem(number, False)
    table = pa.Table.from_pandas(light)
    # The types of the first rows, of which pandas makes its description.
    described = pa.Table.from_pandas(frame.iloc[:_SLICE_ROWS]).schema.pandas_metadata
    description = table.schema.pandas_metadata
    for number in objects:
        values = frame.iloc[:, number].to_numpy()
        slices = [
            pa.array(values[start : start + _SLICE_ROWS], from_pandas=True)
            for start in range(0, rows, _SLICE_ROWS)
        ]
        kinds = {piece.type for piece in slices} - {pa.null()}
        if len(kinds) > 1:  # such as whole numbers, and fractions further down: all together have one type
            column = pa.chunked_array([pa.array(values, from_pandas=True)])
        else:
            kind = kinds.pop() if kinds else pa.null()
            column = pa.chunked_array([piece.cast(kind) for piece in slices], kind)
        table = table.set_column(number, table.field(number).name, column)
        description["columns"][number] = described["columns"][number]
    metadata = {**(table.schema.metadata or {}), b"pandas": _to_json(description)}
    return table.replace_schema_metadata(metadata)


def _to_json(value: Any) -> bytes:
    from pydantic_core import to_json

    return to_json(value)


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


# ---- unpacking: the data is hostile


def decode_frame(name: str, data: bytes, form: str) -> Any:
    """Return the frame, series or table of an Arrow stream, which may be hostile.

    Raises:
        ToolError: If pyarrow is not installed.
        ValueError: If it is malformed, or larger than what travels; a parser may raise others, too.
    """
    pa = _pyarrow(name)
    check_messages(pa, data)
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        schema = reader.schema
        _check_schema(pa, schema, form)
        batches, rows = [], 0
        for batch in reader:
            rows += batch.num_rows
            _check_cells(rows, len(schema))
            batch.validate(full=True)
            batches.append(batch)
    table = pa.Table.from_batches(batches, schema)
    if form == "table":
        return table
    _check_table(pa, table, form)
    frame = _to_frame(pa, table)
    if not form.startswith("series"):
        return frame
    series = frame.iloc[:, 0]
    return series.rename(None) if form == "series unnamed" else series


def _check_cells(rows: int, columns: int) -> None:
    if rows * max(columns, 1) > _MAX_CELLS:
        raise ValueError(f"it has too many cells, more than {_MAX_CELLS:,}")


def _check_schema(pa: Any, schema: Any, form: str) -> None:
    most = _MAX_COLUMNS_OF_TABLE if form == "table" else _MAX_COLUMNS
    if len(schema) > most:
        raise ValueError(f"it has {len(schema):,} columns, more than {most:,}")
    for field in schema:
        if len(field.name) > _MAX_NAME_CHARS:
            raise ValueError(f"the name of the column {field.name[:40]!r} is longer than {_MAX_NAME_CHARS:,}")
        if not _is_flat(pa, field.type):
            raise ValueError(f"the column {field.name[:40]!r} is of the type {str(field.type)[:60]}")
    if form == "table":
        return  # pyarrow does not read it
    description = (schema.metadata or {}).get(b"pandas", b"")
    if len(description) > _MAX_DESCRIPTION_BYTES or at_once(
        has_more_parts(description, _MAX_DESCRIPTION_OBJECTS, _MAX_DESCRIPTION_ITEMS)
    ):
        raise ValueError("what pandas says about its columns is too long")


def _check_table(pa: Any, table: Any, form: str) -> None:
    """Refuse what pandas would convert in one go, and too much of it."""
    _check_cells(table.num_rows, table.num_columns)
    if form == "table":
        return
    for field, column in zip(table.schema, table.columns, strict=True):
        if pa.types.is_dictionary(field.type) and not _is_number(pa, field.type.value_type):
            categories = sum(len(chunk.dictionary) for chunk in column.chunks)
            if categories > _MAX_CATEGORIES:
                raise ValueError(
                    f"the column {field.name[:40]!r} has {categories:,} categories, more than "
                    f"{_MAX_CATEGORIES:,}; convert it with astype(str)"
                )
    description = table.schema.pandas_metadata or {}
    index = [item for item in description.get("index_columns", []) if isinstance(item, str)]
    if len(index) > 1 and table.num_rows > _MAX_ROWS_OF_LEVELS:
        raise ValueError(
            f"its index has several levels and more than {_MAX_ROWS_OF_LEVELS:,} rows; use reset_index()"
        )
    columns = sum(_makes_objects(pa, column) for column in table.columns)
    for count, most, what in (
        (table.num_rows if columns else 0, _MAX_OBJECTS_OF_COLUMN, "cells of a column"),
        (table.num_rows * columns, _MAX_OBJECTS, "of its cells"),
    ):
        if count > most:
            raise ValueError(
                f"more than {most:,} {what} are objects of Python, such as dates, decimal numbers and bytes; "
                "send a table of pyarrow (pyarrow.Table.from_pandas) or numbers"
            )
    becomes_objects = {field.name for field in table.schema if _becomes_objects(pa, field.type)}
    if table.num_rows > _MAX_OBJECTS_OF_INDEX and not becomes_objects.isdisjoint(index):
        raise ValueError(
            f"its index holds more than {_MAX_OBJECTS_OF_INDEX:,} objects of Python; use reset_index()"
        )
    if table.num_rows > _SLICE_ROWS:
        for column in description.get("columns", []):
            _check_wanted_type(pa, table, column)


def _check_wanted_type(pa: Any, table: Any, column: dict[str, Any]) -> None:
    """Refuse a type for which pandas would convert the cells one by one."""
    wanted = str(column["numpy_type"])
    is_number = wanted.lower().rstrip("0123456789") in {"int", "uint", "float"}
    if wanted in _PLAIN_TYPES or is_number or wanted.endswith("[pyarrow]"):
        return
    kind = next((field.type for field in table.schema if field.name == column.get("field_name")), None)
    if wanted.startswith(("datetime64[", "timedelta64[")) and (
        kind is None or pa.types.is_timestamp(kind) or pa.types.is_duration(kind)
    ):
        return
    raise ValueError(f"the column {str(column.get('name'))[:40]!r} is of the type {wanted[:60]}")


def _to_frame(pa: Any, table: Any) -> Any:
    """Convert a table, columns of objects in slices."""
    index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    heavy = [
        number
        for number, field in enumerate(table.schema)
        if _makes_objects(pa, table.column(number)) and field.name not in index
    ]
    if table.num_rows <= _SLICE_ROWS:
        heavy.clear()  # one slice
    if not heavy:
        return table.to_pandas()
    light = table
    for number in heavy:
        stand_in = pa.repeat(pa.scalar(0, pa.int8()), table.num_rows)
        light = light.set_column(number, light.field(number).with_type(pa.int8()), stand_in)
    frame = light.to_pandas()
    places = [number for number, field in enumerate(table.schema) if field.name not in index]
    if len(places) != frame.shape[1]:
        raise ValueError("its index is not what it says")
    for number in heavy:
        first = table.column(number).slice(0, 1).to_pandas()
        cells = first.to_numpy(dtype=object).repeat(table.num_rows)
        for start, piece in _slices(table.column(number)):
            cells[start : start + len(piece)] = piece.to_pandas().to_numpy(dtype=object)
        frame.isetitem(places.index(number), type(first)(cells, index=frame.index, dtype=object))
    return frame


def _slices(column: Any) -> Iterator[tuple[int, Any]]:
    for start in range(0, len(column), _SLICE_ROWS):
        yield start, column.slice(start, _SLICE_ROWS)


def _makes_objects(pa: Any, column: Any) -> bool:
    return _becomes_objects(pa, column.type) or (pa.types.is_boolean(column.type) and column.null_count > 0)


def _becomes_objects(pa: Any, kind: Any) -> bool:
    """Return whether pandas makes an object of Python of every value of this Arrow type."""
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return str(pa.array([], kind).to_pandas().dtype) == "object"  # before pandas 3
    checks = (types.is_date, types.is_time, types.is_decimal, types.is_binary, types.is_large_binary)
    return types.is_null(kind) or any(check(kind) for check in checks)


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_flat(pa: Any, kind: Any) -> bool:
    """Return whether values of this Arrow type take the memory that they take on the wire."""
    types = pa.types
    if types.is_dictionary(kind):
        return _is_flat(pa, kind.value_type) and not types.is_dictionary(kind.value_type)
    checks = (
        *(types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string),
        *(types.is_binary, types.is_large_binary, types.is_temporal, types.is_decimal, types.is_null),
    )
    return any(check(kind) for check in checks)


def check_messages(pa: Any, data: bytes) -> None:
    """Refuse a stream with a compressed batch, a few bytes of which could fill the memory, or many batches.

    Raises:
        ValueError: If it has one, or the stream cannot be read.
    """
    source = pa.BufferReader(data)
    for _ in range(_MAX_BATCHES):
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            return
        if message is None:
            return
        if len(message.metadata) > _MAX_HEAD_BYTES:
            raise ValueError("its names and types take too many bytes")
        metadata = message.metadata.to_pybytes()
        root = struct.unpack_from("<I", metadata)[0]
        header = _table(metadata, root, 2)
        kind = _byte(metadata, root, 1)
        # A message of kind 2 is a dictionary, whose values are a record batch; one of kind 3 is a record
        # batch.
        if kind == 2 and header is not None:
            header = _table(metadata, header, 1)
        if kind in {2, 3} and header is not None and _field(metadata, header, 3):
            raise ValueError("it is compressed")
    raise ValueError(f"it has more than {_MAX_BATCHES:,} batches")


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a FlatBuffers table; 0 when it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    offset = int(struct.unpack_from("<H", data, vtable + entry)[0])
    return table + offset if offset else 0


def _table(data: bytes, table: int, number: int) -> int | None:
    position = _field(data, table, number)
    return position + int(struct.unpack_from("<I", data, position)[0]) if position else None


def _byte(data: bytes, table: int, number: int) -> int:
    position = _field(data, table, number)
    return data[position] if position else 0
