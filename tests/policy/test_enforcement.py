"""Which rules about paths a sandbox is to enforce."""

from __future__ import annotations

from typing import Any

import pytest

from aisotools.core.types import Decision, Effect, Facts, ToolCall
from aisotools.policy.enforcement import denied_paths, plan_enforcement
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
    assert (
        denied_paths(policy) == denied_paths(Policy(bounds=(policy,))) == [*plan.unreadable, *plan.unwritable]
    )
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
        (deny(paths="/etc/*"), "a path outside the workspace"),
        (deny(paths="~/x"), "a path outside the workspace"),
        (deny(paths="."), "the workspace itself"),
        (deny(paths="a", origin="model"), "further conditions"),
        (Rule(tool="file", when={"paths": "a"}, decision=Decision.DENY), "further conditions"),
    ],
)
def test_other_rules_are_named(rule: Rule, reason: str) -> None:
    plan = plan_enforcement([Policy(rules=[rule])], "isolated", lambda _path: True)
    assert (plan.unreadable, plan.unwritable, plan.globs) == ((), (), frozenset())
    assert denied_paths(Policy(rules=[rule])) == []
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


def test_a_name_with_characters_of_patterns_can_be_written_in_brackets() -> None:
    policy = Policy(rules=[deny(paths=["a[[]1]", "b[*]c/*", "d[ab]"])])
    assert plan_enforcement([policy], "isolated", lambda _path: True).unreadable == ("a[1]", "b*c")


def test_a_link_is_enforced_where_it_leads_and_a_gap_where_that_is_outside() -> None:
    ends = {"in": "secrets", "out": None}
    policy = Policy(rules=[deny(paths=["in/*", "out/*"])])
    plan = plan_enforcement([policy], "isolated", lambda _path: True, leads_to=ends.__getitem__)
    assert plan.unreadable == ("secrets", "in"), "the link as well: it may lead elsewhere later"
    assert plan.globs == {("paths", "in/*")}
    assert "leads out of the workspace" in plan.not_enforced[0]


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


@pytest.mark.parametrize("level", ["confined", "guarded"])
def test_other_levels_hold_commands_that_only_read_and_put_back_what_is_written(level: str) -> None:
    policy = Policy(rules=[deny(paths="a/*"), deny(reads="b"), deny(writes="c")])
    plan = plan_enforcement([policy], level, lambda _path: True)
    assert plan.globs == frozenset()
    assert plan.reading_globs == {("paths", "a/*"), ("reads", "b"), ("writes", "c")}
    assert (plan.unreadable, plan.put_back) == (("a", "b"), ("a", "c"))
    first, second, third = plan.not_enforced
    assert (
        "commands that only read and file tools are kept from it, and what a call writes there is put back"
        in first
    )
    assert "put back" not in second
    assert "only read" not in third
    assert "put back" in third


def test_paths_that_are_missing_are_put_back_and_not_promised_for_reading() -> None:
    for level in ("isolated", "confined"):
        plan = plan_enforcement([Policy(rules=[deny(paths="a")])], level, lambda _path: False)
        assert (plan.put_back, plan.reading_globs) == (("a",), frozenset())
        assert "nothing of that name yet" in plan.not_enforced[0]
        assert "put back" in plan.not_enforced[0]


def test_too_much_to_be_copied_is_said() -> None:
    rule = deny(writes="a/*")
    plan = plan_enforcement(
        [Policy(rules=[rule])], "confined", lambda _path: True, can_copy=lambda _path: False
    )
    assert plan.put_back == ()
    assert "too much of it to put back" in plan.not_enforced[0]


def test_a_call_is_told_what_it_could_pass_by() -> None:
    plan = plan_enforcement([Policy(rules=[deny(reads="a/*")])], "confined", lambda _path: True)
    (sentence,) = plan.not_enforced
    assert plan.gaps_of(Facts()) == (sentence,)
    assert plan.gaps_of(Facts(path_guarded=True)) == plan.gaps_of(Facts(runs_in="host")) == ()
    assert plan.gaps_of(Facts(commands=("cat a",), enforced=plan.reading_globs)) == ()
    git = Facts(commands=("git show",), recorded=(".",), enforced=plan.reading_globs)
    assert plan.gaps_of(git) == plan.repository_gaps != ()
    assert plan.gaps_of(Facts(), has_repository=True) == (sentence, *plan.repository_gaps)


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


@pytest.mark.parametrize(
    ("writes", "folders", "decision"),
    [
        (("secrets", "moved"), ("secrets",), Decision.ASK),
        (("secrets/key", "key"), (), Decision.ASK),
        ((".",), (".",), Decision.ASK),
        (("other", "moved"), ("other",), Decision.ALLOW),
        (("out",), (), Decision.ALLOW),
    ],
)
def test_moving_what_must_not_be_read_is_asked_about(
    writes: tuple[str, ...], folders: tuple[str, ...], decision: Decision
) -> None:
    policy = Policy(mode="auto", rules=[deny(reads="secrets/*")])
    change: dict[str, Any] = {"effect": Effect.LOCAL_MUTATION, "writes": writes, "folders": folders}
    assert decide(policy, **change) is decision
    enforced = frozenset({("reads", "secrets/*")})
    assert decide(policy, **change, enforced=enforced) is Decision.ALLOW, "it is hidden under any name"


def test_a_person_who_types_a_call_is_asked_about_no_doubt() -> None:
    call = ToolCall("1", "sandbox_bash", {}, origin="person")
    facts = Facts(effect=Effect.READ_ONLY, unresolved=("$x",))
    assert SECRETS.check(call, facts).decision is Decision.ALLOW


@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        ({"recorded": ("secrets/key",)}, Decision.DENY),
        ({"recorded": ("notes",)}, Decision.ALLOW),
        ({"recorded": (".",)}, Decision.ASK),
        ({"recorded": ("secrets",)}, Decision.ASK),
        ({"reads": (".git",), "folders": (".git",)}, Decision.ASK),
        ({"reads": ("sub/.git/objects/ab/cd",)}, Decision.ASK),
        ({"reads": ("bare.git/objects/pack/x.pack",)}, Decision.ASK),
        ({"reads": (".git/HEAD",)}, Decision.ALLOW),
    ],
)
def test_objects_of_a_repository_hold_copies_that_nothing_hides(
    facts: dict[str, Any], decision: Decision
) -> None:
    assert decide(SECRETS, **facts) is decision
    assert decide(SECRETS, **facts, enforced=frozenset({("paths", "secrets/*")})) is decision
    writing = Policy(mode="auto", rules=[deny(writes="secrets/*")])
    assert decide(writing, **facts) is Decision.ALLOW
