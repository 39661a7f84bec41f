"""The budget of a session, and sizes compared with what a process really grows by."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from aisotools.core.retention import RetentionBudget, size_of
from aisotools.core.types import Decision, ToolCall
from tests.waiting import HANG_S

# How much a process grows by a value, over what is charged for it.
GROWTH = """
import gc, os, sys
from pydantic_core import from_json
from aisotools.core.retention import size_of
def resident():
    gc.collect()
    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
text = eval(sys.argv[1])
from_json(b'[' + b'0,' * 9 + b'0]', cache_strings='keys')
before = resident()
value = from_json(text, cache_strings='keys')
after = resident()
print((after - before) / size_of(value))
"""
VALUES = {
    "empty lists": "b'[' + b'[],' * 300_000 + b'[]]'",
    "small objects": "b'[' + b'{\"a\":1.5,\"b\":\"xyz\"},' * 100_000 + b'{}]'",
    "large integers": "b'[' + b'1234567,' * 600_000 + b'0]'",
    "floats": "b'[' + b'1.5,' * 600_000 + b'0]'",
    "small integers": "b'[' + b'1,' * 2_000_000 + b'0]'",
    "nothing": "b'[' + b'null,' * 2_000_000 + b'null]'",
    "short texts": "b'[' + b'\"xyz\",' * 400_000 + b'\"\"]'",
    "long text": "b'\"' + b'x' * 20_000_000 + b'\"'",
    "wide text": "b'\"' + ('\\U0001f600' * 4_000_000).encode() + b'\"'",
    "keys that differ": "('{' + ','.join('\"key %d\":1' % n for n in range(200_000)) + '}').encode()",
    "long keys": "b'[' + (b'{\"' + b'k' * 100 + b'\":1},') * 50_000 + b'0]'",
    "nested": "b'[' + (b'[' * 50 + b'0' + b']' * 50 + b',') * 8_000 + b'0]'",
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("text", VALUES.values(), ids=VALUES)
def test_a_size_is_within_a_factor_of_two_of_the_growth_of_a_process(text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, text], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    ratio = float(done.stdout)
    print(f"\ngrown / charged: {ratio:.2f}")
    assert 0.5 <= ratio <= 2


def test_shared_values_count_once() -> None:
    text = "x" * 1000
    once = size_of([text])
    assert size_of([text, text]) - once == 8, "a pointer more"
    seen: set[int] = set()
    assert size_of([text], seen=seen) == once
    assert size_of([text], seen=seen) < 100
    looped: list[object] = []
    looped.append(looped)
    assert 0 < size_of(looped) < 200


def test_keys_count() -> None:
    empty = size_of({})
    assert size_of({"a": 1}) - empty < 300
    assert size_of({"k" * 5000: 1}) > 5000
    key = "k" * 5000
    assert size_of([{key: 1}, {key: 1}]) < 6000
    assert size_of({f"{n:05}": None for n in range(1000)}) > size_of(dict.fromkeys(range(1000))) > 30_000
    assert 0 < size_of({1: None, (2, 3): None}) - empty < 500


def test_long_lists_of_texts_count_at_once_and_shared_texts_once() -> None:
    texts = [f"text {n}" for n in range(1000)]
    assert 60_000 < size_of(texts) < 80_000
    assert size_of([*texts, "x" * 10_000]) > 70_000
    assert size_of(["x" * 10_000] * 1000) < 20_000


def test_objects_that_exist_anyway_do_not_count() -> None:
    assert size_of((Decision.ALLOW, int)) == size_of(()) + 16


def test_values_of_dataclasses_count() -> None:
    assert size_of(ToolCall("id", "name", {"code": "x" * 5000})) > 5000


def test_the_walk_stops_above_its_limits() -> None:
    values: list[object] = [[n] for n in range(1000)]
    assert size_of(values) > 60_000
    assert 1000 < size_of(values, 1000) < 20_000
    assert size_of(values, 1 << 30, max_steps=3_000) == (1 << 30) + 1
    assert size_of(values, 1 << 30, max_steps=40_000) < 1 << 30


@pytest.mark.parametrize(
    "value",
    [
        ["x"] * 300_000,
        [1] * 300_000,
        [None] * 300_000,
        [[], *[1] * 150_000],
        dict.fromkeys(map(str, range(50_000))),
        [["x"] * 30] * 2 + [["x"] * 30 for _ in range(3_000)],
        [{"a": 1} for _ in range(6_000)],
    ],
    ids=["texts", "numbers", "nothing", "mixed", "keys", "lists", "objects"],
)
def test_the_walk_stops_before_it_takes_long(value: object) -> None:
    """Values that take little memory each can be so many that looking at them takes a tenth of a second."""
    assert size_of(value) < 30 << 20
    assert size_of(value, 30 << 20, max_steps=200_000) == (30 << 20) + 1


def test_beyond_the_limit_holders_are_asked_in_turn_until_it_is_enough() -> None:
    budget = RetentionBudget(1600)
    asked: list[tuple[str, int]] = []

    def holder(name: str, held: int) -> None:
        def reclaim(excess: int) -> None:
            asked.append((name, excess))
            budget.release(held)

        budget.on_excess(reclaim)

    holder("first", 50)
    holder("second", 400)
    holder("third", 400)
    budget.charge(1600)
    assert asked == []
    budget.charge(1)
    assert asked == [("first", 101), ("second", 51)]
    assert budget.used_bytes == 1151
    assert repr(budget) == "<RetentionBudget 1,151 of 1,600 bytes>"
    assert RetentionBudget(64 << 20).reason == "over the session's budget of 64 MiB"


def test_a_holder_may_charge_while_it_frees() -> None:
    budget = RetentionBudget(100)

    def reclaim(excess: int) -> None:
        budget.charge(1)  # what stands in the place of what goes
        budget.release(excess + 1)

    budget.on_excess(reclaim)
    budget.charge(101)
    assert budget.used_bytes <= 100


def test_memory_that_is_freed_goes_back_to_the_system_in_steps() -> None:
    returned: list[int] = []
    budget = RetentionBudget(64 << 20, lambda: returned.append(budget.used_bytes))
    budget.charge(20 << 20)
    budget.release(7 << 20)
    budget.charge(1)
    assert returned == [], "too little"
    budget.release(1 << 20)
    assert returned == [], "who frees it may hold it for a moment more"
    budget.charge(1)
    budget.charge(1)
    assert returned == [(12 << 20) + 1]


HOLES = """
from aisotools.core.retention import return_free_memory
def resident():
    return int(open('/proc/self/statm').read().split()[1]) * 4096
texts = ['x' * 100_000 for n in range(400)]
full = resident()
del texts[:-1]
kept = resident()
return_free_memory()
print((full - kept) >> 20, (kept - resident()) >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have no such function")
def test_free_memory_below_what_is_in_use_goes_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOLES], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    without, with_it = map(int, done.stdout.split())
    assert without < 10
    assert with_it > 30


def test_long_texts_of_one_container_are_measured_together_and_shared_ones_once() -> None:
    """As the paths of an undo are; one by one they took a tenth of a second."""
    texts = tuple(f"{n:06}" + "x" * 300 for n in range(1000))
    size = size_of(texts)
    assert abs(size - sum(size_of(text) for text in texts)) < 0.1 * size
    assert size_of((texts, texts)) - size < 200
    assert size_of((texts, [*texts])) - size < 9_000, "pointers"
    assert size_of((texts, [*texts, "y" * 5_000])) - size > 5_000
    assert size_of([None, 1.5, "x" * 5_000]) > 5_000
