"""What travels, what cannot, and what hostile parcels come to."""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import ToolError
from aisotools.sandbox.data import Payload, pack, unpack

np = pytest.importorskip("numpy")

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(plain.filter(lambda value: "\\ud" not in ascii(value)) | st.binary())
def test_plain_values_come_back_the_same(value: Any) -> None:
    back = unpack("x", pack("x", value))
    assert back == value
    assert type(back) is type(value)


def test_odd_numbers() -> None:
    assert math.isnan(unpack("x", pack("x", [float("nan")]))[0])
    assert unpack("x", pack("x", float("-inf"))) == float("-inf")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12).reshape(3, 4),
        np.zeros((0, 5)),
        np.array(3.5),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["a", "bcd"]),
        np.array(["2026-01-01"], dtype="datetime64[s]"),
        np.array([True, False]),
        np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
        np.array([1 + 2j]),
    ],
    ids=lambda array: str(array.dtype),
)
def test_arrays(array: Any) -> None:
    back = unpack("x", pack("x", array))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert (back == array).all()


def test_a_scalar_of_numpy() -> None:
    back = unpack("x", pack("x", np.float32(1.5)))
    assert (type(back), back) == (np.float32, 1.5)


@pytest.mark.parametrize(
    "value",
    [
        *(
            object(),
            lambda: 1,
            {1: 2},
            (1, 2),
            {1},
            [object()],
            {"a": (1,)},
            Exception,
            1j,
            "\ud800",
            ["\ud800"],
        ),
        np.array([object()]),
        np.random,
    ],
    ids=lambda value: type(value).__name__,
)
def test_value_that_cannot_be_sent_is_reported(value: Any) -> None:
    with pytest.raises(ToolError, match="'x'"):
        pack("x", value)


def test_depth_and_size_are_bounded() -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    for value, message in ((deep, "nested more than"), (b"x" * (45 << 20), "travel at once")):
        with pytest.raises(ToolError, match=message):
            pack("x", value)


def frames() -> list[Any]:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    return [
        pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [1.5, float("nan")]}),
        pd.DataFrame({"t": pd.to_datetime(["2026-01-01", None], utc=True)}),
        pd.DataFrame({"k": pd.Categorical(["u", "v", "u"], ordered=True)}),
        pd.DataFrame({"n": pd.array([1, None], dtype="Int64"), "s": pd.array(["a", None], dtype="string")}),
        pd.DataFrame({"a": [1, 2]}, index=pd.Index(["p", "q"], name="key")),
        pd.DataFrame(),
        pd.Series([1.0, 2.0], name="s"),
        pd.Series(["a", "b"]),
    ]


@pytest.mark.parametrize("number", range(8))
def test_frames(number: int) -> None:
    frame = frames()[number]
    back = unpack("x", pack("x", frame))
    assert type(back) is type(frame)
    assert back.equals(frame)
    if hasattr(frame, "dtypes") and hasattr(frame, "columns"):
        assert list(back.dtypes) == list(frame.dtypes)
        assert list(back.columns) == list(frame.columns)
    else:
        assert back.name == frame.name


def test_frame_with_a_column_of_objects_is_refused_with_advice() -> None:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    with pytest.raises(ToolError, match="Give every column one type"):
        pack("x", pd.DataFrame({"a": [object(), 1]}))


# ---- what comes out of a sandbox


class Evil:
    def __reduce__(self) -> Any:
        return print, ("owned",)


def npy(value: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, value, allow_pickle=True)
    return file.getvalue()


def header(text: str) -> bytes:
    raw = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw


HOSTILE = [
    Payload(kind="pickle", data=pickle.dumps(Evil())),
    Payload(kind="npy", data=pickle.dumps(Evil())),
    Payload(kind="npy", data=npy(np.array([Evil()]))),
    Payload(kind="npy", data=b""),
    Payload(kind="npy", data=header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}")),
    Payload(
        kind="npy", data=header("{'descr': '|V0', 'fortran_order': False, 'shape': (4611686018427387904,)}")
    ),
    Payload(kind="npy", data=header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}")),
    Payload(kind="npy", data=header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"x" * 8),
    Payload(kind="npy", data=header("__import__('os').system('echo owned')")),
    Payload(kind="text", data=b"\xff"),
    Payload(kind="json", data=b"[" * 10_000),
    Payload(kind="json", data=b"{" * 100),
    Payload(kind="json", data=b"[" + b"[]," * 2_000_000 + b"[]]"),
    Payload(kind="arrow", data=b""),
    Payload(kind="arrow", data=b"\xff" * 100),
    Payload(kind="arrow", data=pickle.dumps(Evil())),
]


@pytest.mark.parametrize("parcel", HOSTILE, ids=lambda parcel: f"{parcel.kind}-{parcel.data[:12]!r}")
def test_hostile_parcels_are_refused(parcel: Payload, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(ToolError, match="malformed"):
        unpack("x", parcel)
    assert "owned" not in capsys.readouterr().out


# Made when they are tested: together they would fill the memory of all tests beside.
TOO_MANY: dict[str, Callable[[], Any]] = {
    "4,194,304 items": lambda: [0] * ((1 << 22) + 2),
    "262,144 lists and dicts": lambda: [[]] * ((1 << 18) + 1),
    "32,768 lists and dicts that hold others": lambda: [[[]]] * ((1 << 15) + 1),
    "690,000 keys": lambda: {str(n): 0 for n in range(690_001)},
    "67,108,864 bytes of memory": lambda: ["x" * (20 << 20) + "\U0001f600"],
}


@pytest.mark.parametrize(("what", "make"), TOO_MANY.items(), ids=TOO_MANY)
def test_a_value_that_would_hold_up_its_reader_is_refused_at_both_ends(
    what: str, make: Callable[[], Any]
) -> None:
    """The event loop would stand still while it is parsed, or whenever garbage is collected."""
    value = make()
    with pytest.raises(ToolError, match=f"'x' .* cannot travel as it is .*more than {what}.*a file in the"):
        pack("x", value)
    forged = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    with pytest.raises(ToolError, match=r"malformed: (it has too many parts|an? .* has|a text takes)"):
        unpack("x", Payload(kind="json", data=forged))


@pytest.mark.parametrize(
    "make",
    [
        lambda: [[n, str(n), n / 7] for n in range(100_000)],
        lambda: [{"n": n, "s": str(n)} for n in range(100_000)],
        lambda: [{"n": n, "tags": [str(n)]} for n in range(30_000)],
        lambda: {str(n): n for n in range(500_000)},
        lambda: [n / 7 for n in range(1_000_000)],
    ],
    ids=["rows", "records", "records with lists", "keys", "numbers"],
)
def test_large_tables_travel(make: Callable[[], Any]) -> None:
    value = make()
    assert unpack("x", pack("x", value)) == value


def test_a_text_that_takes_too_much_memory_is_refused_at_both_ends() -> None:
    text = "x" * (20 << 20) + "\U0001f600"
    with pytest.raises(ToolError, match=r"'x' takes .* Send x.encode\(\) instead"):
        pack("x", text)
    with pytest.raises(ToolError, match="malformed: a text takes more than"):
        unpack("x", Payload(kind="text", data=text.encode()))
    assert unpack("x", pack("x", text.encode())) == text.encode()


def test_a_parcel_that_is_too_large_is_refused() -> None:
    with pytest.raises(ToolError, match="at most"):
        unpack("x", Payload(kind="bytes", data=b"x" * (45 << 20)))


def test_arrow_bombs_are_refused() -> None:
    pa = pytest.importorskip("pyarrow")
    zeros = pa.table({"a": pa.array(np.zeros(5_000_000))})
    for table, compression in (
        (zeros, "zstd"),
        (zeros, "lz4"),
        (pa.table({"a": pa.nulls(100_000_000)}), None),
        (pa.table({"a": pa.array([[1]])}), None),
        (pa.table({"a": pa.array([{"b": 1}])}), None),
        (
            pa.table(
                {"a": pa.RunEndEncodedArray.from_arrays(pa.array([2**31 - 1], pa.int32()), pa.array([1]))}
            ),
            None,
        ),
        (pa.table({"a": pa.array(["x"] * 100_000).dictionary_encode()}), "zstd"),
    ):
        sink = io.BytesIO()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        with pytest.raises(ToolError, match="malformed"):
            unpack("x", Payload(kind="arrow", data=sink.getvalue(), form="frame"))


@pytest.mark.parametrize("order", ["<", ">"])
def test_text_of_an_array_holds_characters_alone(order: str) -> None:
    good = np.array([["a", "\U0010ffff", ""], ["\ud800", "bcd", "e"]], dtype=f"{order}U3")
    scalar = good[0, 0:1].reshape(())
    for array in (good, good.T, np.asfortranarray(good), scalar, good[:0], good[good == ""]):
        again = unpack("x", pack("x", array))
        assert np.asarray(again).tolist() == array.tolist()
    bad = np.array([65, 0x110000, 66], dtype=f"{order}u4").view(f"{order}U1")
    with pytest.raises(SystemError):
        bad.tolist()  # the control
    fields = np.zeros(2, dtype=[("n", "i4"), ("inner", [("t", f"{order}U2", (2,))])])
    assert unpack("x", pack("x", fields)).tobytes() == fields.tobytes()
    raw = fields.tobytes()[:-4] + bad[1:2].tobytes()
    broken = np.frombuffer(raw, dtype=fields.dtype)
    for array in (bad, bad.reshape(3, 1), bad[1:2].reshape(()), np.repeat(bad, 9)[::3], broken):
        file = io.BytesIO()
        np.save(file, array)
        with pytest.raises(ToolError, match="malformed: its text holds what is not a character"):
            unpack("x", Payload(kind="npy", data=file.getvalue(), form="array"))


@given(st.data())
def test_damaged_arrow_never_does_anything_but_fail(data: st.DataObject) -> None:
    pytest.importorskip("pyarrow")
    whole = bytearray(pack("x", frames()[0]).data)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpack("x", Payload(kind="arrow", data=bytes(whole), form="frame"))
    except ToolError as error:
        assert "malformed" in str(error)  # noqa: PT017 - it may also be read
