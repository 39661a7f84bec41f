"""Regular expressions of models: which are searched for, and how much of a text at once."""

from __future__ import annotations

import bisect
import math
import random
import time
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, strategies as st

from aisotools.tools.patterns import (
    MAX_COMPILE_WORK,
    MAX_PATTERN_CHARS,
    MAX_STATES,
    WORK_AT_ONCE,
    count_compile_work,
    count_states,
    matcher,
    searchable_chars,
)


def test_patterns_are_searched_for() -> None:
    matches = matcher("b+$")
    assert matches is not None
    assert matches("aabb")
    assert not matches("bba")
    assert matcher("(?=a)") is None
    assert matcher("(") is None


@pytest.mark.parametrize(
    ("pattern", "states"),
    [
        ("", 1),
        ("error", 5),
        ("[a-z]+ *", 4),
        (r"\[x\]", 3),
        ("[]a]b", 4),
        (r"[[:alpha:]\]]", 3),
        ("a{30}", 30),
        ("a{0,30000}b", 30_001),
        ("a{30000,}", 30_000),
        ("a{ 2, 30000 }", 30_000),
        ("(?:a{0,300}){0,20}b", 6_001),
        ("((ab){10}c){10}d", 211),
        ("(?:a|b){5}", 15),
        (r"\x{1F600}\p{Greek}a", 5),
        ("(?i)a(?P<name>b)(?x-u:c)", 3),
        ("(a{5}){3}{2}", 30),
        ("a{0}", 1),
        ("{5}", 1),
        (")a", 2),
    ],
)
def test_states_of_a_pattern_grow_with_its_repetitions(pattern: str, states: int) -> None:
    counted = count_states(pattern)
    assert states <= counted <= states + 4
    assert searchable_chars(pattern) == WORK_AT_ONCE // counted


@pytest.mark.parametrize(
    "pattern",
    ["a{0,30000}b", "(?:a{0,30000}){0,2}b", "a{2,30000}", "(a{60}){60}", "a{99999999}", "(?x)a{ 0, 9000 }"],
)
def test_pattern_with_too_many_states_is_refused(pattern: str) -> None:
    assert count_states(pattern) > MAX_STATES
    assert matcher(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:a{900}[](]){900}",
        "(?:a{900}[^](]){900}",
        "(?:a{900}[[:alpha:](]){900}",
        "(?<a[>(?:a{900}){900})]",
        r"(?:a{900}[\]()]){900}",
        "[a[b]]{900}{900}",
        "[[a]b&&[^c]]{900}{900}",
        "(?:a{900}[!-[]){900}b]",
        "a{00000000000900}{000000000000000900}",
        "a{0,9999999999}",
        "(?x)a{900} {900}",
        "(?x)#[\n(?:a{900}){900}#]",
        "a#(?i)(?sx)#[\n(?:a{900}){900}#]",
        "(?x)(?:a{900}[a\\ \n(]){900}",
        "a" * (MAX_PATTERN_CHARS + 1),
        "(?i)" * 300,
    ],
)
def test_states_are_counted_where_the_engine_sees_parts(pattern: str) -> None:
    """What looks like a class or a comment to a reader with other rules hides no repetitions."""
    assert count_states(pattern) > MAX_STATES
    assert matcher(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "states"), [(r"\pL{900}", 2_700), ("[a[b]]{900}", 2_700), ("[]a]{900}", 2_700)]
)
def test_states_of_a_class_are_repeated_as_a_whole(pattern: str, states: int) -> None:
    assert states <= count_states(pattern) <= states + 4


# ---- compiling

_ORDINARY = [
    "(?i)error|warn",
    r"\bTODO\b",
    r"(?i)[a-z_][a-z0-9_]*\s*=",
    r"^\s*def \w+\(",
    r"\p{Lu}\p{Ll}+",
    r"(?i)user(name)?\s*[:=]\s*\S+",
    r"(?i)[\w.+-]+@[\w-]+(\.[\w-]+)+",
    r"\w{1,64}",
    r"^[\w-]{1,100}$",
    "^[a-zA-Z0-9_-]{1,255}$",
    r"(?i)\b(?:error|fail(?:ed|ure)?|exception)\b.*\d{4}-\d\d-\d\dT\d\d:\d\d",
    r"[\p{L}\p{N}_]{1,50}",
    r"(?i)[\p{L}\d' -]+",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"[^\"\\]*(?:\\.[^\"\\]*)*",
    ".{0,900}",
    r"^\S{1,500}$",
    "[\x20-\x7e]{0,900}",
    r"(?i)^[^<>:/\\|?*]{1,255}$",
    "(?i)[a-z&&[^aeiou]]+",
    r"(?i)[^\x00-\x7f]+",
    "[\u4e00-\u9fff]{2,200}",
    r"(?x-i)\d+",
]


@pytest.mark.parametrize("pattern", _ORDINARY)
def test_ordinary_pattern_is_searched_for(pattern: str) -> None:
    assert matcher(pattern) is not None


@pytest.mark.parametrize(
    "pattern",
    [
        "(?i)" + "[\0-\U0010ffff]" * 199,
        "(?i)" + r"[\x{0}-\x{10FFFF}]" * 50,
        "(?i)" + r"[\U00000000-\U0010FFFF]" * 40,
        "(?i:" + "[!-\u2fff]" * 190 + ")",
        "(?si)" + "|".join(["[s-\U00025859]"] * 90),
        "(?i)" + r"[\w\S]" * 150,
        "(?i)" + r"[\P{Greek}a]" * 75,
        "(?i)" + r"\p{Any}" * 100,
        "(?i)" + r"\p{ any }" * 100,
        "(?i)" + "[[^a]b]" * 120,
        "(?i)" + r"[^\w" * 200 + "]" * 200,
        r"(?i)[\w" + r"&&\S" * 200 + "]",
        "(?i)[a-z" + "--[^a]" * 150 + "]",
        "(?i)" + "[[:^alpha:]b]" * 70,
        r"\w{300}",
        r"(\w{20}){20}",
        r"(?:\W?){300}",
        r"(?:[^\d]|\pL){240}",
        r"[\w&&\pL]{200}",
        r"\p{Alphabetic}{120}",
        r"\P{Lu}{120}",
        "(?:" + "[" + "".join(map(chr, range(0x100, 0x2FF, 2))) + "]" + "){200}",
    ],
)
def test_pattern_with_too_much_to_compile_is_refused(pattern: str) -> None:
    assert count_compile_work(pattern) > MAX_COMPILE_WORK
    assert matcher(pattern) is None


_UNITS = (
    *(
        "a",
        "\u04b2",
        "[0-9]",
        "[k\u017f]",
        ".",
        r"\w",
        r"\D",
        r"\S",
        r"[^\s\d]",
        r"\pL",
        r"\P{Age=16.0}",
        r"\p{Any}",
    ),
    *("[\0-\U0010ffff]", "[s-\U00025859]", "[\u2000-\uffff]", r"[\x{100}-\x{10FFFF}--\p{Any}]", "[^\u04b2]"),
    *(
        r"[\w&&\pL]",
        r"[[^a]\S]",
        r"[a[\W~~[b-\x{5000}]]]",
        "(?:ab|cd)?",
        "()",
        r"\b",
        "[a-cx-\u04e0\u1e9e-\u1fff]",
    ),
)
_SHAPES: Mapping[str, Callable[[str, int], str]] = {
    "written out": lambda unit, times: unit * times,
    "alternatives": lambda unit, times: "|".join([unit] * times),
    "counted": lambda unit, times: f"(?:{unit}){{{times}}}",
    "optional": lambda unit, times: f"(?:(?:{unit})?x){{0,{times}}}",
    "nested": lambda unit, times: f"(?:({unit}){{{math.isqrt(times) or 1}}}b){{{math.isqrt(times) or 1}}}",
    "nested brackets": lambda unit, times: "[a" * min(times, 240) + unit + "]" * min(times, 240),
}


@pytest.mark.sample(72)
@pytest.mark.parametrize("flags", ["", "(?i)"])
@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("unit", _UNITS)
def test_compiling_the_most_that_is_accepted_takes_a_bounded_time(unit: str, shape: str, flags: str) -> None:
    """As often repeated as a pattern may be. CPU time of this thread: 23 ms at most on a quiet machine."""

    def is_accepted(times: int) -> bool:
        pattern = flags + _SHAPES[shape](unit, times)
        return count_compile_work(pattern) <= MAX_COMPILE_WORK and count_states(pattern) <= MAX_STATES

    most = bisect.bisect_left(range(1, MAX_STATES + 1), True, key=lambda times: not is_accepted(times))
    assert most >= 1
    taken_s = []
    for number in range(3):  # another pattern each time: compiled ones are kept
        began_s = time.thread_time()
        matcher(f"{flags}{_SHAPES[shape](unit, most)}|{number}")
        taken_s.append(time.thread_time() - began_s)
    assert min(taken_s) < 0.1


# ---- searching


@pytest.mark.parametrize(
    "pattern",
    [
        "[ab]*a[ab]{900}!",
        "(?:[ab]*a[ab]{20}){40}!",
        ".*a.{900}!",
        "(?:[^ab].|..)*a(?:[^ab].|..){190}!",
        r"[^\d]*a[^\d]{400}!",
        "(?:a?){900}a{900}",
        "[ab]*a" + "[ab]" * 200 + "!",
    ],
)
def test_searching_at_once_takes_a_bounded_time(pattern: str) -> None:
    """Nothing else runs in the process meanwhile, so the work itself is what is bounded."""
    matches = matcher(pattern)
    assert matches is not None
    text = "".join(random.Random(1).choices("ab", k=searchable_chars(pattern)))
    taken_s = []
    for _ in range(3):
        began_s = time.thread_time()
        matches(text)
        taken_s.append(time.thread_time() - began_s)
    assert min(taken_s) < 0.05


@given(st.text(alphabet="ab(){}[]\\*+?|,0123 ^:.x", max_size=40))
def test_states_are_counted_for_any_text(pattern: str) -> None:
    assert count_states(pattern) >= 1
    assert count_states(f"(?:{pattern}){{3}}") >= count_states("aaa")
