"""JSON in steps: the same value as at once, or an error where there is none, and no step is long."""

from __future__ import annotations

import gc
import json
import random
import sys
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import settings
from pydantic_core import from_json

from aisotools.core.concurrency import at_once
from aisotools.sandbox.parsing import (
    MAX_KEYS,
    MAX_NESTED,
    MAX_TEXT_BYTES,
    STEP_BYTES,
    TooManyKeys,
    decode_steps,
    has_more_parts,
    parse_steps,
    release_steps,
)
from tests.stalls import heap_left_out, stall_limit_s


def parsed(data: bytes) -> tuple[Any, int]:
    """Return the value and the number of steps."""
    steps = parse_steps(data)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value, count
        count += 1


def encoded(value: object, **options: Any) -> bytes:
    return json.dumps(value, **options).encode()


# Each is made when it is tested: together they would fill the memory of all tests beside.


def records(count: int = 9_000) -> list[Any]:
    return [
        {"id": n, "name": f"na}},{{me {n}", "of": [n, [n, "],["], {"k": None}], "is": True}
        for n in range(count)
    ]


VALUES: dict[str, Callable[[], Any]] = {
    "numbers": lambda: list(range(100_000)),
    "floats": lambda: [n / 7 for n in range(50_000)],
    "texts": lambda: [f'a "text", [{n}]' for n in range(50_000)],
    "records": records,
    "records in an object": lambda: {"rows": records(), "count": 5, "more": {"rows": records()}, "end": []},
    "object": lambda: {f"key {n}": n for n in range(50_000)},
    "object of lists": lambda: {f"key {n}": [n, {}] for n in range(50_000)},
    "lists": lambda: [[[], []], []] * 50_000,
    "nested": lambda: [[[[records()], 1], records()], 2, {"a": {"b": {"c": records()}}}],
    "long text": lambda: "x" * 1_000_000,
    "escaped text": lambda: '\n"\\/\t' * 100_000,
    "wide text": lambda: "\u20ac\U0001f600a" * 100_000,
    "long texts": lambda: ["\u20ac" * 300_000, {"key" * 100_000: "\\" * 300_000}, "end"],
    "mixed": lambda: [1, "a", None, True, [2], {"b": 3}] * 20_000,
    "large items": lambda: ["x" * 40_000, ["y" * 40_000], {"z": "z" * 40_000}] * 10,
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("options", [{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}])
@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_value_is_the_same_as_at_once(make: Callable[[], Any], options: dict[str, Any]) -> None:
    value = make()
    data = encoded(value, **options)
    found, steps = parsed(data)
    assert found == value
    assert steps >= len(data) >> 17, "it was parsed in steps"


def test_small_values_are_parsed_at_once() -> None:
    assert parsed(b' {"a": [1, 2.5]} ') == ({"a": [1, 2.5]}, 0)


MALFORMED = {
    "trailing comma in a list": b"[%s,]",
    "trailing comma in an object": b'{"a":[%s],}',
    "two commas": b"[%s,,1]",
    "leading comma": b"[,%s]",
    "no comma": b'[[%s]"a"]',
    "no end": b"[%s",
    "no end of a text": b'[%s,"abc',
    "no end of a long text": b'[%s,"' + b"a" * 200_000,
    "an escape at the end": b'[%s,"' + b"\\" * 199_999,
    "another bracket": b"[%s}",
    "another bracket inside": b'[%s,{"a":1]]',
    "more after the end": b"[%s]1",
    "two values": b"[%s][]",
    "no value": b'{"a":[%s],"b":}',
    "no colon": b'{"a":[%s],"b"[%s]}',
    "no key": b"{[%s]:1}",
    "a number as a key": b'{"a":[%s],1:2}',
    "not a number": b"[%s,NaN]",
    "infinite": b"[%s,Infinity]",
    "a word": b"[%s,word]",
    "a long word": b"[%s," + b"word" * 50_000 + b"]",
    "a long number": b"[%s," + b"1" * 200_000 + b"]",
    "an unknown escape": b'[%s,"' + b"\\x" * 100_000 + b'"]',
    "half a character": b'[%s,"' + b"\xe2\x82" * 100_000 + b'"]',
    "half a pair": b'[%s,"' + b"\\ud83d" * 30_000 + b'"]',
    "a line end in a text": b'[%s,"' + b"\n" * 100_000 + b'"]',
    "too deep": b"[%s," + b"[" * 1000 + b"]" * 1000 + b"]",
    "much too deep": b"[%s," + b"[" * 300_000 + b"]" * 300_000 + b"]",
    "deep and wide": b"[%s," + (b"[" * 250 + b"1," * 40_000 + b"1" + b"]" * 250) + b"]",
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("template", MALFORMED.values(), ids=MALFORMED)
def test_malformed_text_is_refused(template: bytes) -> None:
    data = template.replace(b"%s", b",".join([b"1"] * 60_000))
    with pytest.raises(ValueError):
        from_json(data, allow_inf_nan=False)
    with pytest.raises(ValueError):
        parsed(data)


def test_damaged_text_is_refused_or_parsed_alike() -> None:
    """Any byte that is removed, doubled or replaced has the same effect as on the parser at once."""
    chance = random.Random(7)
    data = encoded({"a": records(1500), "b": ['x\\"y' * 100] * 200, "c": 1.5}, separators=(",", ":"))
    assert len(data) > 2 * STEP_BYTES
    for _ in range(settings().max_examples):
        at = chance.randrange(len(data))
        new = chance.choice((b"", data[at : at + 1] * 2, b",", b'"', b"]", b"{", b"\\", b"0", b" "))
        damaged = data[:at] + new + data[at + 1 :]
        try:
            expected = from_json(damaged, allow_inf_nan=False)
        except ValueError:
            with pytest.raises(ValueError):
                parsed(damaged)
        else:
            assert parsed(damaged)[0] == expected


def test_looking_for_a_place_to_cut_is_bounded() -> None:
    deep: Any = ["x" * (STEP_BYTES // 2)] * 3
    for _ in range(150):
        deep = [deep]
    data = encoded([deep] * 20)
    assert from_json(data) is not None
    with pytest.raises(ValueError, match="too deeply nested"):
        parsed(data)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b"[" + b"[]," * 200_000 + b"0]",
    "open lists": lambda: b"[" * 400_000,
    "numbers": lambda: b"[" + b"1.5," * 400_000 + b"0]",
    "keys": lambda: b"{" + b",".join(b'"k%d":1' % n for n in range(150_000)) + b"}",
    "escapes": lambda: b'"' + b"\\n" * 1_000_000 + b'"',
    "quotes": lambda: b"[" + b'"",' * 400_000 + b"0]",
    "spaces": lambda: b"[" + b" " * 2_000_000 + b"0]",
}


def calmest_s(begin: Callable[[], Generator[None, None, Any]]) -> float:
    """The longest step of the calmest of a few tries: what else the machine does makes memory slow."""
    longest_s = float("inf")
    for _ in range(5):
        longest_s = min(longest_s, longest_step_s(begin()))
        if longest_s < stall_limit_s():
            break
    return longest_s


def longest_step_s(steps: Generator[None, None, Any]) -> float:
    """In processor time of this thread, which a busy machine does not change; without garbage collection."""
    longest_s, is_done = 0.0, False
    gc.disable()
    try:
        while not is_done:
            began_s = time.thread_time()
            try:
                next(steps)
            except (StopIteration, ValueError):
                is_done = True
            longest_s = max(longest_s, time.thread_time() - began_s)
    finally:
        gc.enable()
    return longest_s


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_no_step_takes_long(make: Callable[[], bytes]) -> None:
    data = make()
    assert calmest_s(lambda: parse_steps(data)) < stall_limit_s()


LONG_TEXTS: dict[str, Callable[[], bytes]] = {
    "plain": lambda: b"x" * (44 << 20),
    "wide": lambda: "\U0001f600".encode() * (10 << 20),
    "wide at its end": lambda: b"x" * (15 << 20) + "\U0001f600".encode(),
    "of all widths": lambda: (
        b"x" * (5 << 20) + "\u00fc".encode() * 1000 + "\u20ac\U0001f600".encode() * (3 << 20)
    ),
}


@pytest.mark.parametrize("make", LONG_TEXTS.values(), ids=LONG_TEXTS)
def test_no_step_of_decoding_a_long_text_takes_long(make: Callable[[], bytes]) -> None:
    data = make()
    quoted = b'"%s"' % data
    assert calmest_s(lambda: decode_steps(data)) < stall_limit_s()
    assert calmest_s(lambda: parse_steps(quoted)) < stall_limit_s()
    assert calmest_s(lambda: has_more_parts(data, 0, 0, 0)) < stall_limit_s()
    assert at_once(decode_steps(data)) == at_once(parse_steps(b'"%s"' % data)) == data.decode()


@pytest.mark.parametrize(("size", "widest"), [(20 << 20, "\U0001f600"), (40 << 20, "\u20ac")])
def test_a_text_that_a_wide_character_makes_too_large_is_refused(size: int, widest: str) -> None:
    """With the widest character all of it takes four times as much memory, in one step of 80 ms."""
    data = b"x" * size + widest.encode()
    assert sys.getsizeof(data.decode()) > MAX_TEXT_BYTES
    for steps in (decode_steps(data), parse_steps(b'"%s"' % data), parse_steps(b'["%s"]' % data)):
        with pytest.raises(ValueError, match="more than 67,108,864 bytes of memory; write it to a file"):
            at_once(steps)


def test_bytes_that_are_no_text_are_refused_or_replaced() -> None:
    data = b"x" * (1 << 20) + b"\xff" + b"y" * 5 + b"\xe2\x82"
    with pytest.raises(ValueError, match="decode"):
        at_once(decode_steps(data))
    assert at_once(decode_steps(data, "replace")) == data.decode("utf-8", "replace")


def test_numbers_that_are_none_are_read_where_that_is_asked_for() -> None:
    data = b"[NaN, -Infinity, " + b"1.5, " * 100_000 + b"Infinity]"
    found = at_once(parse_steps(data, allow_inf_nan=True))
    assert (repr(found[0]), found[1], found[2], found[-1]) == ("nan", -float("inf"), 1.5, float("inf"))
    with pytest.raises(ValueError):
        at_once(parse_steps(data))


def binary(depth: int) -> bytes:
    text = b"[]"
    for _ in range(depth):
        text = b"[%s,%s]" % (text, text)
    return text


def collection_s(data: bytes) -> float:
    """Return how long the collector takes to look at the value, and at nothing else."""
    times_s = []
    with heap_left_out():
        value = at_once(parse_steps(data))
        for _ in range(5):
            began_s = time.thread_time()
            gc.collect()
            times_s.append(time.thread_time() - began_s)
    assert value
    return min(times_s)


NESTED: dict[str, Callable[[], bytes]] = {
    "binary tree": lambda: binary(15),
    "chains": lambda: b"[" + b",".join([b"[" * 190 + b"]" * 190] * 170) + b"]",
    "chains of objects": lambda: b"[" + b",".join([b'{"a":' * 190 + b"1" + b"}" * 190] * 170) + b"]",
    "records": lambda: b"[" + b",".join(b'{"id":%d,"of":["a%d"]}' % (n, n) for n in range(32_000)) + b"]",
}


@pytest.mark.parametrize("make", NESTED.values(), ids=NESTED)
def test_the_collector_is_quick_with_the_most_nested_values_that_are_taken(
    make: Callable[[], bytes],
) -> None:
    data = make()
    assert not at_once(has_more_parts(data, 1 << 18, 1 << 22, MAX_NESTED))
    assert collection_s(data) < stall_limit_s()


def test_the_collector_takes_long_with_values_that_are_nested_more() -> None:
    """The control: fewer lists than may stand side by side, and as many more of them as 131,000 are."""
    data = b"[" + b",".join([b"[" * 190 + b"]" * 190] * 1_300) + b"]"
    assert not at_once(has_more_parts(data, 1 << 18, 1 << 22))
    assert at_once(has_more_parts(data, 1 << 18, 1 << 22, MAX_NESTED))
    assert collection_s(data) > 3 * collection_s(NESTED["chains"]())


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_lists_that_hold_others_are_counted_across_steps(shift: int) -> None:
    data = b" " * shift + b"[" + b",".join([b'[ ["]["] , {} ]'] * 30_000) + b"]"
    nested = 30_001
    assert not at_once(has_more_parts(data, 1 << 18, 1 << 22, nested))
    assert at_once(has_more_parts(data, 1 << 18, 1 << 22, nested - 1))


def test_an_object_may_have_many_keys_and_no_more() -> None:
    items = [b'"%x":0' % number for number in range(MAX_KEYS + 1)]
    assert len(at_once(parse_steps(b"{" + b",".join(items[1:]) + b"}"))) == MAX_KEYS
    with pytest.raises(ValueError, match="more than 250,000 keys; write it to a file"):
        at_once(parse_steps(b"{" + b",".join(items) + b"}"))


def parts_of(value: Any) -> tuple[int, int]:
    """Return how many containers, and commas between items, the JSON of a value has."""
    if isinstance(value, dict | list):
        below = [parts_of(item) for item in (value.values() if isinstance(value, dict) else value)]
        return 1 + sum(one for one, _ in below), max(len(value) - 1, 0) + sum(one for _, one in below)
    return 0, 0


@pytest.mark.sample(10)
@pytest.mark.parametrize("options", [{}, {"ensure_ascii": False}])
@pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)
def test_parts_in_texts_do_not_count(make: Callable[[], Any], options: dict[str, Any]) -> None:
    value = make()
    data, (containers, commas) = encoded(value, **options), parts_of(value)
    assert not at_once(has_more_parts(data, containers, commas))
    assert not containers or at_once(has_more_parts(data, containers - 1, commas))
    assert not commas or at_once(has_more_parts(data, containers, commas - 1))


@pytest.mark.parametrize("shift", range(6))
def test_parts_are_counted_whatever_is_at_the_end_of_a_step(shift: int) -> None:
    """Escapes, quotes and brackets fall on the borders between two steps."""
    text = (r'["\\\"[,{' * STEP_BYTES)[: 3 * STEP_BYTES]
    value = ["x" * shift, text, [text], {"k": text}]
    assert not at_once(has_more_parts(encoded(value), 3, 3))
    assert at_once(has_more_parts(encoded(value), 2, 3))
    assert at_once(has_more_parts(encoded(value), 3, 2))


@pytest.mark.parametrize("unit", ["[", "\\", '"', '\\"', "\\[", "[,", '",'])
def test_counting_parts_of_anything_ends_and_takes_short_steps(unit: str) -> None:
    data = unit.encode() * (4 * STEP_BYTES)
    steps = sum(1 for _ in has_more_parts(data, 10, 10))
    assert steps <= 3 + len(data) // STEP_BYTES + 1


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [[]] * 3,
        {"a": [{"b": [1, {}]}], "c": {"d": "e"}},
        [[1] * 5_000, {str(n): [n] for n in range(5_000)}],
    ],
    ids=lambda value: f"{value}"[:20],
)
def test_values_are_taken_apart_to_the_last_one(value: Any) -> None:
    inner = value[0] if isinstance(value, list) and value else value.get("a", []) if value else value
    values = [value]
    steps = sum(1 for _ in release_steps(values))
    assert values == []
    assert not value
    assert not inner
    assert steps <= 10_100


def test_a_value_is_known_as_soon_as_it_is_begun() -> None:
    built: list[Any] = []
    work = parse_steps(b"[" + b"1," * 100_000 + b"x]", built)
    next(work)
    assert built
    assert built[0][:3] == [1, 1, 1]
    with pytest.raises(ValueError, match="expected"):
        at_once(work)
    assert len(built) == 1


def test_a_small_value_is_known_as_well() -> None:
    built: list[Any] = []
    assert at_once(parse_steps(b'{"a":1}', built)) == {"a": 1}
    assert built == [{"a": 1}]


def test_too_many_keys_have_an_error_of_their_own() -> None:
    keys = ",".join(f'"{number}":0' for number in range(MAX_KEYS + 1))
    with pytest.raises(TooManyKeys, match="more than 250,000 keys"):
        at_once(parse_steps(f"{{{keys}}}".encode()))
