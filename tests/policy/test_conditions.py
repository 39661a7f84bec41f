from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisotools.core.types import Effect, Facts, ToolCall
from aisotools.policy.rules import Condition, normalize_path, parse_example

CALL = ToolCall("1", "file", {"path": "docs/a.md", "count": 3}, origin="model")
FACTS = Facts(
    effect=Effect.LOCAL_MUTATION,
    reads=("in/a.csv",),
    writes=("out/b.csv", "out/c.csv"),
    hosts=("API.example.org",),
    commands=("git push origin", "ls"),
)


@pytest.mark.parametrize(
    ("wanted", "any_of", "every_one"),
    [
        ({}, True, True),
        ({"writes": "out/*"}, True, True),
        ({"writes": ["out/b*"]}, True, False),
        ({"writes": ["nowhere/*"]}, False, False),
        ({"reads": ["in/*"]}, True, True),
        ({"paths": ["in/*"]}, True, False),
        ({"paths": ["in/*", "out/*"]}, True, True),
        ({"hosts": ["*.example.org"]}, True, True),
        ({"commands": ["git push*"]}, True, False),
        ({"commands": ["git*", "ls"]}, True, True),
        ({"effect": "local_mutation"}, True, True),
        ({"effect": ["read_only", "destructive"]}, False, False),
        ({"origin": ["model", "program"]}, True, True),
        ({"origin": "person"}, False, False),
        ({"outside": False}, True, True),
        ({"outside": True}, False, False),
        ({"certain": True}, True, True),
        ({"arguments": {"path": "*.md"}}, True, True),
        ({"arguments": {"path": ["*.txt", "docs/*"]}}, True, True),
        ({"arguments": {"count": 3}}, True, True),
        ({"arguments": {"count": 4}}, False, False),
        ({"arguments": {"missing": "*"}}, False, False),
        ({"writes": "out/*", "hosts": "elsewhere"}, False, False),
    ],
)
def test_all_keys_must_hold_and_any_glob_of_a_list(
    wanted: dict[str, Any], any_of: bool, every_one: bool
) -> None:
    condition = Condition(wanted)
    assert condition.holds(CALL, FACTS, every=False) is any_of
    assert condition.holds(CALL, FACTS, every=True) is every_one


@pytest.mark.parametrize("key", ["paths", "reads", "writes", "hosts", "commands"])
def test_what_is_missing_never_matches(key: str) -> None:
    for every in (False, True):
        assert not Condition({key: "*"}).holds(CALL, Facts(), every=every)


def test_what_is_uncertain_is_never_allowed_by_a_pattern() -> None:
    facts = Facts(writes=("out/b.csv",), certain=False)
    assert Condition({"writes": "out/*"}).holds(CALL, facts, every=False)
    assert not Condition({"writes": "out/*"}).holds(CALL, facts, every=True)
    assert Condition({"writes": "out/*", "certain": False}).holds(CALL, facts, every=True)


@pytest.mark.parametrize("path", ["out/../in/x", "./in/x", "in//x", "in/./x"])
def test_a_spelling_cannot_dodge_a_pattern(path: str) -> None:
    assert normalize_path(path) == "in/x"
    assert Condition({"writes": "in/*"}).holds(CALL, Facts(writes=(path,)), every=True)
    assert not Condition({"writes": "out/*"}).holds(CALL, Facts(writes=(path,)), every=True)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"pats": "x"}, "has unknown keys: pats. Known: arguments"),
        ({"arguments": "x"}, "table of argument names"),
        ({"effect": "harmless"}, "harmless"),
        ({"outside": "yes"}, "must be true or false, not 'yes'"),
    ],
)
def test_a_mistake_is_named_when_the_condition_is_made(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Condition(wanted)


def test_an_example_tells_call_and_facts() -> None:
    call, facts = parse_example(
        {"writes": ["a"], "effect": "destructive", "arguments": {"path": "a"}}, "file"
    )
    assert (call.name, call.arguments, call.origin) == ("file", {"path": "a"}, "model")
    assert (facts.writes, facts.effect) == (("a",), Effect.DESTRUCTIVE)
    with pytest.raises(ValueError, match="has unknown keys: colour"):
        parse_example({"colour": "red"}, "file")


NAMES = st.sampled_from(["a", "b/c", "../x", "*", "x.csv"])
FACTS_OF = st.builds(
    Facts,
    effect=st.sampled_from(Effect),
    reads=st.lists(NAMES).map(tuple),
    writes=st.lists(NAMES).map(tuple),
    hosts=st.lists(NAMES).map(tuple),
    commands=st.lists(NAMES).map(tuple),
    outside=st.booleans(),
    certain=st.booleans(),
)
WANTED = st.fixed_dictionaries(
    {},
    optional={
        "writes": st.lists(NAMES, min_size=1),
        "reads": NAMES,
        "hosts": NAMES,
        "commands": st.lists(NAMES, min_size=1),
        "outside": st.booleans(),
    },
)


@given(WANTED, FACTS_OF)
def test_what_holds_for_every_one_holds_for_one(wanted: dict[str, Any], facts: Facts) -> None:
    condition = Condition(wanted)
    if condition.holds(CALL, facts, every=True):
        assert condition.holds(CALL, facts, every=False)
