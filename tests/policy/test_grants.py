from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisotools.core.types import Effect, Facts, Remember, ToolCall
from aisotools.policy.grants import Grants, remember_scopes, shape_of
from aisotools.policy.prepared import PreparedCall, prepare_call
from aisotools.policy.rules import Policy
from aisotools.testing.fakes import MockTool


def ticket(facts: Facts, name: str = "mock", **arguments: object) -> PreparedCall:
    tool = MockTool(name, facts=facts)
    return prepare_call(tool, ToolCall("1", name, arguments, origin="model"), Policy(), "confined")


WRITES = Facts(effect=Effect.LOCAL_MUTATION, writes=("out/a.txt",), commands=("git commit -m x",))


def test_this_call_covers_only_this_call() -> None:
    grants = Grants()
    grants.add("call", ticket(WRITES, x=1))
    assert grants.find(ticket(WRITES, x=1)) is not None
    assert grants.find(ticket(WRITES, x=2)) is None
    assert grants.find(ticket(WRITES, "other", x=1)) is None


@pytest.mark.parametrize(
    ("facts", "covered"),
    [
        (Facts(writes=("out/b.txt",), commands=("git commit --amend",)), True),
        (Facts(writes=("out/b.txt",)), True),
        (Facts(writes=("out/sub/b.txt",)), False),
        (Facts(writes=("b.txt",)), False),
        (Facts(writes=("out/../b.txt",)), False),
        (Facts(writes=("out/b.txt",), commands=("git push",)), False),
        (Facts(writes=("out/b.txt",), commands=("git -C x commit",)), False),
        (Facts(writes=("out/b.txt",), commands=("git",)), False),
        (Facts(writes=("out/b.txt",), commands=("git commit", "rm x")), False),
        (Facts(writes=("out/b.txt",), hosts=("example.org",)), False),
        (Facts(writes=("out/b.txt",), effect=Effect.DESTRUCTIVE), False),
        (Facts(writes=("out/b.txt",), certain=False), False),
        (Facts(writes=("out/b.txt",), outside=True), False),
        (Facts(), False),
    ],
)
def test_a_shape_covers_nothing_that_was_not_shown(facts: Facts, covered: bool) -> None:
    grants = Grants()
    grants.add("shape", ticket(WRITES))
    assert (grants.find(ticket(facts)) is not None) is covered


@pytest.mark.parametrize(
    ("facts", "covered"),
    [
        (Facts(writes=("anywhere/b.txt",)), True),
        (Facts(), True),
        (Facts(effect=Effect.DESTRUCTIVE), False),
        (Facts(effect=Effect.REMOTE_ACTION), False),
        (Facts(hosts=("example.org",)), False),
        (Facts(outside=True), False),
        (Facts(certain=False), False),
    ],
)
def test_a_tool_is_covered_up_to_the_effect_that_was_shown(facts: Facts, covered: bool) -> None:
    grants = Grants()
    grants.add("tool", ticket(WRITES))
    assert (grants.find(ticket(facts)) is not None) is covered


def test_the_words_say_exactly_what_would_be_allowed() -> None:
    assert remember_scopes(ticket(WRITES, x=1)) == {
        "call": "mock with exactly these arguments",
        "shape": "mock running only git commit, writing only to out, up to local change",
        "tool": "mock with any arguments, up to local change, in the workspace",
    }
    assert list(remember_scopes(ticket(Facts(certain=False)))) == ["call"]
    assert list(remember_scopes(ticket(Facts(effect=Effect.DESTRUCTIVE, writes=("a",))))) == ["call", "shape"]
    assert "talking only to example.org" in remember_scopes(ticket(Facts(hosts=("Example.org",))))["shape"]


def test_what_was_not_offered_is_not_remembered() -> None:
    grants = Grants()
    assert grants.add("tool", ticket(Facts(certain=False))) is None
    assert grants.add("shape", ticket(Facts())) is None
    assert len(grants) == 0


def test_grants_are_listed_and_taken_back() -> None:
    grants = Grants()
    one, two = grants.add("call", ticket(WRITES, x=1)), grants.add("tool", ticket(WRITES))
    assert one is not None
    assert two is not None
    assert [grant.id for grant in grants.list()] == [one.id, two.id]
    assert grants.revoke(two.id) == two
    assert grants.revoke(two.id) is None
    assert grants.find(ticket(WRITES, x=2)) is None
    grants.clear()
    assert grants.find(ticket(WRITES, x=1)) is None


FACTS = st.builds(
    Facts,
    effect=st.sampled_from(Effect),
    writes=st.lists(st.sampled_from(["a/x", "a/y", "b/x", "c"]), max_size=2).map(tuple),
    commands=st.lists(st.sampled_from(["git add", "git push", "ls"]), max_size=2).map(tuple),
    hosts=st.lists(st.sampled_from(["one", "two"]), max_size=1).map(tuple),
    certain=st.booleans(),
    outside=st.booleans(),
)


@given(FACTS, FACTS, st.sampled_from(["call", "shape", "tool"]))
def test_no_grant_is_wider_than_what_was_shown(shown: Facts, other: Facts, scope: Remember) -> None:
    grants = Grants()
    grants.add(scope, ticket(shown))
    if grants.find(ticket(other, y=1)) is not None:
        assert scope != "call"
        assert ticket(other).effect <= ticket(shown).effect
        assert other.certain
        assert not other.outside
        assert set(other.hosts) <= set(shown.hosts)
        if scope == "shape":
            told, asked = shape_of(shown), shape_of(other)
            assert told is not None
            assert asked is not None
            assert asked.commands <= told.commands
            assert asked.folders <= told.folders
