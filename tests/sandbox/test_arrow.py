"""Frames as Arrow streams: large ones come back the same, and what would hold up its reader is refused."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
from typing import Any

import pytest

from aisotools.core.exceptions import ToolError
from aisotools.sandbox import arrow
from aisotools.sandbox.arrow import check_messages, decode_frame, encode_frame

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")

ROWS = 2 * arrow._SLICE_ROWS + 7


def stream(table: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_a_frame_of_several_slices_comes_back_the_same() -> None:
    """Its columns of objects are converted a slice at a time, there and back."""
    day, price = dt.date(2026, 1, 31), decimal.Decimal("1.25")
    frame = pd.DataFrame(
        {
            "n": np.arange(ROWS),
            "day": [day, None, *[day] * (ROWS - 2)],
            "price": [*[price] * (ROWS - 1), None],
            "raw": [b"%d" % n for n in range(ROWS)],
            "flag": pd.Series([True, None, *[False] * (ROWS - 2)], dtype=object),
            "late": pd.Series([*[None] * (ROWS - 1), b"x"], dtype=object),
            "nothing": pd.Series([None] * ROWS, dtype=object),
            "text": pd.Series([f"t{n}" for n in range(ROWS)], dtype=object),
            "time": [dt.time(1, 2)] * ROWS,
            "kind": pd.Categorical(["u", "v"] * (ROWS // 2) + ["u"]),
        },
        index=pd.Index(np.arange(ROWS) * 3, name="key"),
    )
    form, data = encode_frame("x", frame)
    back = decode_frame("x", data, form)
    whole = pa.Table.from_pandas(frame).to_pandas()
    pd.testing.assert_frame_equal(back, whole)
    assert list(map(type, back.iloc[-1])) == list(map(type, whole.iloc[-1]))


@pytest.mark.parametrize("rows", [3, ROWS])
def test_columns_of_one_name_keep_their_places(rows: int) -> None:
    """In what comes out of a sandbox; pandas itself writes no such frame."""
    days = pa.array([dt.date(2026, 1, 1)] * rows)
    table = pa.Table.from_arrays([days, pa.array(range(rows)), days], ["a", "a", "a"])
    back = decode_frame("x", stream(table), "frame")
    assert [type(value) for value in back.iloc[-1]] == [dt.date, np.int64, dt.date]


@pytest.mark.parametrize("rows", [3, ROWS])
def test_a_series_of_objects_comes_back(rows: int) -> None:
    series = pd.Series([decimal.Decimal("0.5")] * rows)
    back = decode_frame("x", encode_frame("x", series)[1], "series unnamed")
    assert back.equals(series)
    assert back.name is None


def numbers(rows: int) -> Any:
    return pd.DataFrame({"a": np.zeros(rows, dtype=np.int8)})


TOO_MUCH = {
    "columns, more than 16,384": lambda: pd.DataFrame(np.zeros((1, arrow._MAX_COLUMNS + 1))).rename(
        columns=str
    ),
    "is longer than": lambda: pd.DataFrame({"a" * 4_097: [1]}),
    "categories, more than 65,536": lambda: pd.DataFrame(
        {"k": pd.Categorical([f"k{n}" for n in range(arrow._MAX_CATEGORIES + 1)])}
    ),
    "more than 2,097,152 cells of a column are objects": lambda: pd.DataFrame(
        {"d": np.full(arrow._MAX_OBJECTS_OF_COLUMN + 1, b"", dtype=object)}
    ),
    "more than 16,777,216 of its cells are objects": lambda: pd.DataFrame(
        {str(n): np.full((arrow._MAX_OBJECTS >> 9) + 1, b"", dtype=object) for n in range(512)}
    ),
    "several levels and more than 262,144 rows": lambda: numbers(513 * 513).set_index(
        pd.MultiIndex.from_product([range(513)] * 2)
    ),
    "its index holds more than 65,536 objects": lambda: numbers(65_537).set_index(
        pd.Index([dt.date(2026, 1, 1)] * 65_537)
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("what", TOO_MUCH)
def test_frames_that_would_hold_up_their_reader_are_refused_at_both_ends(what: str) -> None:
    frame = TOO_MUCH[what]()
    with pytest.raises(ToolError, match=rf"'x' cannot travel: .*({what}).*a file in the workspace"):
        encode_frame("x", frame)
    with pytest.raises(ValueError, match=what):
        decode_frame("x", stream(pa.Table.from_pandas(frame)), "frame")


@pytest.mark.parametrize("columns", [arrow._MAX_COLUMNS, arrow._MAX_COLUMNS_OF_TABLE + 1])
def test_a_table_may_have_more_columns_and_not_any_number(columns: int) -> None:
    table = pa.table({f"c{n}": [n] for n in range(columns)})
    if columns > arrow._MAX_COLUMNS_OF_TABLE:
        with pytest.raises(ToolError, match=r"columns, more than 65,536\. .* a file in the workspace"):
            encode_frame("x", table)
        with pytest.raises(ValueError, match="columns, more than 65,536"):
            decode_frame("x", stream(table), "table")
    else:
        form, data = encode_frame("x", table)
        assert decode_frame("x", data, form).equals(table)


def test_a_table_is_not_converted_so_it_may_have_more() -> None:
    table = pa.table({"a": pa.array([dt.date(2026, 1, 1)] * (arrow._MAX_OBJECTS_OF_COLUMN + 1))})
    form, data = encode_frame("x", table)
    assert decode_frame("x", data, form).equals(table)


def test_a_column_whose_numbers_become_fractions_further_down_travels() -> None:
    """Its first slices alone look like whole numbers."""
    values = [*range(50_000), 0.5]
    frame = pd.DataFrame({"a": pd.Series(values, dtype=object)})
    form, data = encode_frame("x", frame)
    assert [*decode_frame("x", data, form)["a"]] == values


def described(rows: int, kind: str) -> Any:
    column = {"name": "s", "field_name": "s", "pandas_type": "x", "numpy_type": kind, "metadata": None}
    description = {"index_columns": [], "column_indexes": [], "columns": [column]}
    table = pa.table({"s": ["1"] * rows})
    return table.replace_schema_metadata({b"pandas": json.dumps(description).encode()})


@pytest.mark.parametrize("kind", ["string[python]", "datetime64[ns, UTC]", "period[D]", "Sparse[float]"])
def test_a_type_that_has_every_cell_converted_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="is of the type"):
        decode_frame("x", stream(described(ROWS, kind)), "frame")
    assert decode_frame("x", stream(described(ROWS, "str")), "frame").shape == (ROWS, 1)


@pytest.mark.parametrize(
    "description", [b'{"a":[' + b"0," * 400_000 + b"0]}", b'{"a":[' + b"[]," * 80_000 + b"0]}"]
)
def test_a_description_of_many_parts_is_refused(description: bytes) -> None:
    table = pa.table({"a": [1]}).replace_schema_metadata({b"pandas": description})
    with pytest.raises(ValueError, match="what pandas says"):
        decode_frame("x", stream(table), "frame")


def test_many_batches_and_long_heads_are_refused() -> None:
    batch = pa.record_batch({"a": [1]})
    check_messages(pa, stream(pa.Table.from_batches([batch] * 4_000)))
    with pytest.raises(ValueError, match="more than 4,096 batches"):
        check_messages(pa, stream(pa.Table.from_batches([batch] * 4_097)))
    with pytest.raises(ValueError, match="too many bytes"):
        check_messages(pa, stream(pa.table({"a" * (9 << 20): [1]})))


def test_a_table_of_many_pieces_is_joined_before_it_travels() -> None:
    table = pa.Table.from_batches([pa.record_batch({"a": [n]}) for n in range(5_000)])
    assert decode_frame("x", encode_frame("x", table)[1], "table").equals(table)
