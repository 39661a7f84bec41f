"""Regular expressions of models: which are searched for, and how much of a text at once."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, strategies as st

from aisotools.tools.patterns import MAX_STATES, WORK_AT_ONCE, count_states, matcher, searchable_chars


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
        "[ab]*a[ab]{900}!",
        "(?:[ab]*a[ab]{20}){40}!",
        ".*a.{900}!",
        "(?:[^ab].|..)*a(?:[^ab].|..){190}!",
        r"[^\d]*a[^\d]{600}!",
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
