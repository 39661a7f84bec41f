"""Values that JSON cannot hold, on their way into a ledger and back."""

from __future__ import annotations

import json
import math
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pydantic_core import from_json

from aisotools.session.ledger import open_ledger, read, verify
from aisotools.session.ledger_values import ESCAPED, encoded, escaped, unescaped


class Stubborn:
    """An object that fights back."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class HostileMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ("a\udc80b", r"a\udc80b"),
        ("a\0b", "a\0b"),
        (2**64, 2**64),
        (10**5_000, {ESCAPED: "int", "text": hex(10**5_000)}),
        (math.nan, {ESCAPED: "float", "text": "nan"}),
        (-math.inf, {ESCAPED: "float", "text": "-inf"}),
        (b"a\xff", {ESCAPED: "bytes", "text": r"a\xff"}),
        ({1}, {ESCAPED: "set", "items": [1]}),
        ({1: "a", "1": "b"}, {ESCAPED: "object", "items": [[1, "a"], ["1", "b"]]}),
        ({ESCAPED: "int"}, {ESCAPED: "object", "items": [[ESCAPED, "int"]]}),
        (Path("a"), "a"),
        (Stubborn(), {ESCAPED: "Stubborn", "text": "it cannot be shown"}),
        (HostileMapping(a=1), {ESCAPED: "HostileMapping", "text": '{"a":1}'}),
    ],
    ids=lambda value: type(value).__name__,  # a number of 5,001 digits is not a name
)
def test_forms(value: object, form: object) -> None:
    assert escaped(value) == form


@pytest.mark.parametrize(
    "value",
    [2**64, 10**5_000, -(10**5_000), {1: 2}, {ESCAPED: "int", "text": "0x1"}, [1.5]],
    ids=["large", "huge", "negative", "keys", "escaped", "float"],
)
def test_numbers_and_objects_come_back_equal(value: object) -> None:
    assert unescaped(escaped(value)) == value


def test_a_value_that_only_looks_escaped_is_left_alone() -> None:
    for value in ({ESCAPED: "int", "text": "x"}, {ESCAPED: "object", "items": [1]}, {ESCAPED: "Path"}):
        assert unescaped(value) == value


@pytest.mark.parametrize(
    "value",
    [nest(90), nest(190), nest(900), LOOP, [LOOP] * 3, 1 << 3_000_000],
    ids=["90", "190", "900", "loop", "loops", "bits"],
)
def test_deep_and_large_values_are_bounded(value: object) -> None:
    assert len(encoded({"value": escaped(value)})) < 2_000_000


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(4_000, 20_000).map(lambda digits: 10**digits)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(st.characters(), max_size=20)
    | st.text(st.characters(categories=["Cs"]), max_size=3)
    | st.binary(max_size=8)
    | st.builds(Stubborn)
    | st.builds(HostileMapping, a=st.just(1))
    | st.builds(nest, st.sampled_from([150, 400]))
    | st.sampled_from([LOOP, {1, "a"}, Path("x"), object()])
)
keys = st.text(max_size=8) | st.integers() | st.sampled_from([ESCAPED, "\ud800", "password", b"\xff", None])
values = st.recursive(
    leaves, lambda s: st.lists(s, max_size=4) | st.dictionaries(keys, s, max_size=4), max_leaves=12
)


@settings(
    max_examples=3 * settings().max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(body=st.dictionaries(st.text(max_size=8), values, max_size=4))
def test_a_record_of_any_values_is_written_and_the_ledger_is_sound(tmp_path: Path, body: Any) -> None:
    with open_ledger(tmp_path, "log") as ledger:
        before = ledger.records
        ledger.append("step", body)
        ledger.append("step", escaped(body))
    assert verify(ledger.path).ok
    *_, raw, whole = read(ledger.path)
    assert raw["n"] == before + 1
    assert escaped(unescaped(whole["body"])) == escaped(escaped(body)) or whole["body"] == escaped(body)
    ledger.path.unlink()
    ledger.path.with_suffix(".head").unlink()
    (tmp_path / "index").unlink()


UNSEEN = [
    char for char in map(chr, range(0x7F, 0x110000)) if unicodedata.category(char) in {"Cc", "Cf", "Zl", "Zp"}
]


def test_characters_that_nobody_sees_are_escapes_in_a_line_and_come_back() -> None:
    assert len(UNSEEN) > 150
    record = {"text": "".join(UNSEEN), "".join(UNSEEN[:9]): "é 日本 😀"}
    line = encoded(record)
    assert not set(UNSEEN) & set(line.decode())
    assert "é 日本 😀" in line.decode()
    assert from_json(line) == json.loads(line) == record


def test_ledger_with_such_characters_is_sound(tmp_path: Path) -> None:
    with open_ledger(tmp_path, "a") as ledger:
        ledger.append("x", {"text": "a\u202eb\u2028c"})
    path = tmp_path / "a.jsonl"
    assert b"a\\u202eb\\u2028c" in path.read_bytes()
    assert not verify(path).problems
    assert [record["body"] for record in read(path)] == [{"text": "a\u202eb\u2028c"}]
