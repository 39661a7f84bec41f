"""Which rules about paths a sandbox is to enforce."""

from __future__ import annotations

from typing import Any

import pytest

from aisotools.core.types import Decision, Effect, Facts, ToolCall
from aisotools.policy.enforcement import plan_enforcement
from aisotools.policy.rules import Policy, Rule


def deny(**when: Any) -> Rule:
    return Rule(when=when, decision=Decision.DENY)


def test_paths_and_whole_folders_are_enforced() -> None:
    policy = Policy(
        rules=[deny(paths=["secrets/*", "key.pem"]), deny(reads="logs/**"), deny(writes=["./data/*", "a/b"])]
    )
    plan = plan_enforcement([policy], "isolated", lambda _path: True)
    assert plan.unreadable == ("secrets", "key.pem", "logs")
    assert plan.unwritable == ("data", "a/b")
    assert plan.globs == {
        ("paths", "secrets/*"),
        ("paths", "key.pem"),
        ("reads", "logs/**"),
        ("writes", "./data/*"),
        ("writes", "a/b"),
    }
    assert plan.not_enforced == ()


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (deny(paths="*.pem"), "neither a path nor a folder"),
        (deny(paths="*"), "neither a path nor a folder"),
        (deny(paths="a/*/b"), "neither a path nor a folder"),
        (deny(paths="/etc/*"), "neither a path nor a folder"),
        (deny(paths="../x"), "neither a path nor a folder"),
        (deny(paths="."), "neither a path nor a folder"),
        (deny(paths="a", origin="model"), "further conditions"),
        (Rule(tool="file", when={"paths": "a"}, decision=Decision.DENY), "further conditions"),
    ],
)
def test_other_rules_are_named(rule: Rule, reason: str) -> None:
    plan = plan_enforcement([Policy(rules=[rule])], "isolated", lambda _path: True)
    assert (plan.unreadable, plan.unwritable, plan.globs) == ((), (), frozenset())
    (sentence,) = plan.not_enforced
    assert reason in sentence


def test_rules_that_ask_or_allow_and_functions_are_no_matter_of_the_sandbox() -> None:
    rules = [
        Rule(when={"paths": "a"}, decision=Decision.ASK),
        Rule(when={"paths": "a"}, decision=Decision.ALLOW),
        Rule(when=lambda _call, _facts: True, decision=Decision.DENY),
        deny(commands="git push*"),
    ]
    plan = plan_enforcement([Policy(rules=rules)], "isolated", lambda _path: True)
    assert (plan.unreadable, plan.not_enforced) == ((), ())


def test_bounds_count_as_well() -> None:
    policy = Policy().narrowed(Policy(rules=[deny(paths="a")]))
    assert plan_enforcement([policy], "isolated", lambda _path: True).unreadable == ("a",)


def test_a_path_that_is_missing_is_hidden_once_it_is_there_but_not_promised() -> None:
    plan = plan_enforcement([Policy(rules=[deny(paths="a")])], "isolated", lambda _path: False)
    assert (plan.unreadable, plan.globs) == (("a",), frozenset())
    assert "nothing of that name yet" in plan.not_enforced[0]


def test_levels_without_a_root_of_their_own_enforce_nothing() -> None:
    plan = plan_enforcement([Policy(rules=[deny(paths="a")])], "confined", lambda _path: True)
    assert plan.globs == frozenset()
    assert "level confined cannot hide a path" in plan.not_enforced[0]


# ---- rules that may concern a call


CALL = ToolCall("1", "sandbox_bash", {}, origin="model")
SECRETS = Policy(mode="auto", rules=[deny(paths="secrets/*")])


def decide(policy: Policy, **facts: Any) -> Decision:
    return policy.check(CALL, Facts(**{"effect": Effect.READ_ONLY, **facts})).decision


@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        ({"reads": ("secrets/key",)}, Decision.DENY),
        ({"reads": ("notes",)}, Decision.ALLOW),
        ({"reads": (".",), "folders": (".",)}, Decision.ASK),
        ({"reads": ("secrets",), "folders": ("secrets",)}, Decision.ASK),
        ({"reads": ("other",), "folders": ("other",)}, Decision.ALLOW),
        ({"unresolved": ("$x",)}, Decision.ASK),
        ({"mentions": ("secrets/key",)}, Decision.DENY),
        ({"writes": ("secrets",), "folders": ("secrets",), "effect": Effect.LOCAL_MUTATION}, Decision.DENY),
        ({"writes": (".",), "folders": (".",), "effect": Effect.LOCAL_MUTATION}, Decision.DENY),
        ({"writes": ("other",), "folders": ("other",), "effect": Effect.LOCAL_MUTATION}, Decision.ALLOW),
    ],
)
def test_a_rule_about_a_folder(facts: dict[str, Any], decision: Decision) -> None:
    assert decide(SECRETS, **facts) is decision


def test_nothing_is_asked_that_the_sandbox_enforces() -> None:
    enforced = frozenset({("paths", "secrets/*")})
    assert decide(SECRETS, reads=(".",), folders=(".",), enforced=enforced) is Decision.ALLOW
    assert decide(SECRETS, unresolved=("$x",), enforced=enforced) is Decision.ALLOW
    assert decide(SECRETS, reads=("secrets/key",), enforced=enforced) is Decision.DENY
    two = Policy(mode="auto", rules=[deny(paths=["secrets/*", "*.pem"])])
    assert decide(two, unresolved=("$x",), enforced=enforced) is Decision.ASK


def test_a_rule_about_writing_does_not_ask_about_reading() -> None:
    policy = Policy(mode="auto", rules=[deny(writes="data/*")])
    assert decide(policy, reads=(".",), folders=(".",), unresolved=("$x",)) is Decision.ALLOW
    allow = Policy(rules=[Rule(when={"writes": "out/*"}, decision=Decision.ALLOW)])
    change = {"effect": Effect.LOCAL_MUTATION, "writes": ("out/a",)}
    assert decide(allow, **change) is Decision.ALLOW
    assert decide(allow, **change, unresolved=("$x",)) is Decision.ALLOW
    by_path = Policy(rules=[Rule(when={"paths": "out/*"}, decision=Decision.ALLOW)])
    assert decide(by_path, **change, unresolved=("$x",)) is Decision.ASK


def test_a_person_who_types_a_call_is_asked_about_no_doubt() -> None:
    call = ToolCall("1", "sandbox_bash", {}, origin="person")
    facts = Facts(effect=Effect.READ_ONLY, unresolved=("$x",))
    assert SECRETS.check(call, facts).decision is Decision.ALLOW
