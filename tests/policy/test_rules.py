from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, strategies as st

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Decision, Effect, Facts, Origin, ToolCall
from aisotools.policy.rules import (
    Condition,
    Evaluation,
    Mode,
    Policy,
    Rule,
    assumed_effect,
    is_unguarded,
    normalize_path,
    parse_example,
    protected_writes,
)

ALLOW, ASK, DENY = Decision.ALLOW, Decision.ASK, Decision.DENY
EFFECTS = list(Effect)
LEVELS = ["limited", "guarded", "confined", "isolated"]


def call(name: str = "file", origin: Origin = "program", **arguments: Any) -> ToolCall:
    return ToolCall("c1", name, arguments, origin=origin)


CALLS = st.builds(call, st.sampled_from(["file", "python", "x"]), st.sampled_from(get_args(Origin)))
FACTS = st.builds(
    Facts,
    effect=st.sampled_from(EFFECTS),
    writes=st.lists(st.sampled_from(["a.txt", ".git/hooks/x", "d/conftest.py"]), max_size=2).map(tuple),
    outside=st.booleans(),
    hosts=st.lists(st.just("example.org"), max_size=1).map(tuple),
    certain=st.booleans(),
    runs_in=st.sampled_from(["sandbox", "host"]),
    level=st.sampled_from(LEVELS),
    undoable=st.booleans(),
    path_guarded=st.booleans(),
)
RULES = st.lists(
    st.builds(
        Rule,
        tool=st.sampled_from(["*", "file", "p*", "[a-f]ile"]),
        when=st.sampled_from([None, lambda call, facts: facts.outside, lambda call, facts: 1 / 0]),
        decision=st.sampled_from(Decision),
        reason=st.sampled_from(["", "because"]),
    ),
    max_size=3,
)
MODES = st.sampled_from(get_args(Mode))
POLICIES = st.builds(Policy, mode=MODES, rules=RULES)


# ---- the table of modes


@pytest.mark.parametrize(
    ("mode", "origin", "decisions"),
    # for READ_ONLY, REMOTE_ACTION, LOCAL_MUTATION, DESTRUCTIVE
    [
        ("plan", "person", [ALLOW, DENY, DENY, DENY]),
        ("plan", "program", [ALLOW, DENY, DENY, DENY]),
        ("plan", "model", [ALLOW, DENY, DENY, DENY]),
        ("safe", "person", [ALLOW, ALLOW, ALLOW, ASK]),
        ("safe", "program", [ALLOW, ASK, ASK, ASK]),
        ("safe", "model", [ALLOW, ASK, ASK, ASK]),
        ("auto", "person", [ALLOW, ALLOW, ALLOW, ASK]),
        ("auto", "program", [ALLOW, ASK, ALLOW, ASK]),
        ("auto", "model", [ALLOW, ASK, ALLOW, ASK]),
    ],
)
def test_modes(mode: Mode, origin: Origin, decisions: list[Decision]) -> None:
    policy = Policy(mode=mode)
    evaluations = [policy.check(call(origin=origin), Facts(effect=effect)) for effect in EFFECTS]
    assert [e.decision for e in evaluations] == decisions
    assert all(e.reasons for e in evaluations)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (Facts(hosts=("example.org",)), "it talks to example.org"),
        (Facts(outside=True), "it writes outside the workspace"),
        (Facts(certain=False), "not everything it does could be determined beforehand"),
        (Facts(effect=Effect.DESTRUCTIVE), "it is destructive"),
        (Facts(effect=Effect.REMOTE_ACTION), "it acts on something remote that it does not name"),
    ],
)
def test_mode_auto_asks_about_the_risky(facts: Facts, reason: str) -> None:
    evaluation = Policy(mode="auto").check(call(), facts)
    assert evaluation == Evaluation(ASK, reasons=(reason,))


@pytest.mark.parametrize("mode", get_args(Mode))
def test_an_uncertain_call_is_never_read_only(mode: Mode) -> None:
    facts = Facts(effect=Effect.READ_ONLY, certain=False)
    expected = {"plan": DENY, "safe": ASK, "auto": ASK}
    assert Policy(mode=mode).check(call(), facts).decision is expected[mode]
    assert assumed_effect(facts) is Effect.LOCAL_MUTATION


def test_typing_is_consent_to_the_sandbox_and_not_to_the_host() -> None:
    typed = call(origin="person")
    assert Policy().check(typed, Facts()).decision is ALLOW
    assert Policy().check(typed, Facts(runs_in="host")).decision is ASK
    assert Policy().check(typed, Facts(effect=Effect.READ_ONLY, runs_in="host")).decision is ALLOW
    destructive = Facts(effect=Effect.DESTRUCTIVE)
    assert Policy().check(typed, destructive).reasons == ("it destroys something that undo cannot restore",)
    assert Policy().check(typed, Facts(effect=Effect.DESTRUCTIVE, undoable=True)).decision is ALLOW


# ---- rules


def test_the_strictest_matching_rule_decides() -> None:
    rules = [
        Rule(tool="f*", decision=ALLOW, reason="files are fine"),
        Rule(tool="file", decision=ASK, reason="but ask"),
        Rule(tool="python", decision=DENY, reason="no code"),
    ]
    assert Policy(rules=rules).check(call(), Facts()).reasons == ("but ask",)
    assert Policy(rules=rules).check(call("python"), Facts()) == Evaluation(
        DENY, reasons=("no code",), matched=(rules[2],)
    )
    assert Policy(rules=rules).check(call("find"), Facts()).decision is ALLOW


def test_a_rule_without_a_reason_names_itself() -> None:
    policy = Policy(rules=[Rule(tool="f*", decision=DENY)])
    assert policy.check(call(), Facts()).reasons == ("rule for 'f*'",)


def test_an_allowing_rule_never_lifts_what_plan_forbids() -> None:
    policy = Policy(mode="plan", rules=[Rule(decision=ALLOW)])
    assert policy.check(call(), Facts()).decision is DENY
    assert policy.check(call(origin="person"), Facts()).decision is DENY


def test_a_person_is_not_asked_because_of_a_rule_but_denied_by_one() -> None:
    typed = call(origin="person")
    assert Policy(rules=[Rule(decision=ASK)]).check(typed, Facts()).decision is ALLOW
    assert Policy(rules=[Rule(decision=DENY)]).check(typed, Facts()).decision is DENY


def test_a_person_is_never_asked_more_than_a_program() -> None:
    # An allowing rule for a host tool counts for whoever types it too.
    policy, facts = Policy(rules=[Rule(tool="file", decision=ALLOW)]), Facts(runs_in="host")
    assert policy.check(call(), facts).decision is ALLOW
    assert policy.check(call(origin="person"), facts).decision is ALLOW


@pytest.mark.parametrize("decision", list(Decision))
def test_a_rule_that_fails_denies_and_is_named(decision: Decision) -> None:
    rule = Rule(tool="fi*", when=lambda call, facts: bool(call.arguments["no such"]), decision=decision)
    evaluation = Policy(mode="auto", rules=[rule]).check(call(), Facts(effect=Effect.READ_ONLY))
    assert evaluation.decision is DENY
    assert evaluation.reasons == ("the rule for 'fi*' failed (KeyError: 'no such'); fix or remove it",)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Rule(decision="alow"), ValueError, "'alow' is not one of allow, ask, deny"),  # type: ignore[arg-type]  # the point
        (lambda: Rule(when="always"), TypeError, "when='always'"),  # type: ignore[arg-type]  # the point
        (lambda: Policy(mode="yolo"), ValueError, "'yolo' is not one of plan, safe, auto"),  # type: ignore[arg-type]  # the point
        (lambda: Policy(rules=["file"]), TypeError, "'file' is not a Rule"),  # type: ignore[list-item]  # the point
    ],
)
def test_bad_policies_fail_where_they_are_written(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_rule_asks_about_every_tool_unless_it_says_otherwise() -> None:
    rule = Rule()
    assert (rule.tool, rule.when, rule.decision, rule.reason) == ("*", None, ASK, "")
    assert Policy(mode="auto", rules=[rule]).check(call(), Facts()).decision is ASK


def test_a_decision_may_be_given_by_its_word() -> None:
    assert Rule(decision="deny").decision is DENY  # type: ignore[arg-type]  # as configuration files do


# ---- without a sandbox


def test_at_limited_only_guarded_paths_are_read_unasked() -> None:
    def at_limited(**facts: Any) -> Facts:
        return Facts(level="limited", **facts)

    reading, guarded = at_limited(effect=Effect.READ_ONLY), {"path_guarded": True}
    for mode in ("safe", "auto"):
        policy = Policy(mode=mode)
        assert policy.check(call(), reading).decision is ASK
        assert policy.check(call(), at_limited(effect=Effect.READ_ONLY, **guarded)).decision is ALLOW
        assert policy.check(call(), at_limited()).decision is ASK
        assert policy.check(call(origin="person"), at_limited()).decision is ALLOW
    assert Policy(mode="plan").check(call(), reading).decision is DENY
    assert "there is no sandbox at this level" in Policy(mode="auto").check(call(), at_limited()).reasons


@pytest.mark.parametrize("origin", ["program", "model"])
def test_at_limited_no_rule_lets_a_program_or_a_model_act_unasked(origin: Origin) -> None:
    policy = Policy(rules=[Rule(tool="python", decision=ALLOW)])
    assert policy.check(call("python", origin), Facts(level="limited")).decision is ASK
    assert policy.check(call("python", origin), Facts(level="guarded")).decision is ALLOW


# ---- properties


@given(mode=MODES, rules=RULES, made=CALLS, facts=FACTS)
def test_there_is_always_an_answer_with_a_reason(
    mode: Mode, rules: list[Rule], made: ToolCall, facts: Facts
) -> None:
    evaluation = Policy(mode=mode, rules=rules).check(made, facts)
    assert isinstance(evaluation.decision, Decision)
    assert evaluation.reasons
    assert all(evaluation.reasons)


@given(mode=MODES, rules=RULES, made=CALLS, facts=FACTS)
def test_one_more_denial_never_loosens(mode: Mode, rules: list[Rule], made: ToolCall, facts: Facts) -> None:
    before = Policy(mode=mode, rules=rules).check(made, facts).decision
    for tool in ("*", made.name, "other"):
        after = Policy(mode=mode, rules=[*rules, Rule(tool=tool, decision=DENY)]).check(made, facts).decision
        assert after >= before


@given(rules=RULES, made=CALLS, facts=FACTS)
def test_plan_allows_only_reading(rules: list[Rule], made: ToolCall, facts: Facts) -> None:
    decision = Policy(mode="plan", rules=rules).check(made, facts).decision
    if assumed_effect(facts) is not Effect.READ_ONLY:
        assert decision is DENY


@given(mode=MODES, rules=RULES, made=CALLS, facts=FACTS)
def test_the_order_of_rules_does_not_matter(
    mode: Mode, rules: list[Rule], made: ToolCall, facts: Facts
) -> None:
    forwards = Policy(mode=mode, rules=rules).check(made, facts).decision
    assert Policy(mode=mode, rules=rules[::-1]).check(made, facts).decision is forwards


@given(made=CALLS, facts=FACTS, rules=RULES)
def test_modes_are_ordered(made: ToolCall, facts: Facts, rules: list[Rule]) -> None:
    plan, safe, auto = (
        Policy(mode=mode, rules=rules).check(made, facts).decision for mode in ("plan", "safe", "auto")
    )
    assert plan >= safe >= auto


@given(mode=MODES, rules=RULES, made=CALLS, facts=FACTS)
def test_without_a_sandbox_nothing_unguarded_runs_unasked(
    mode: Mode, rules: list[Rule], made: ToolCall, facts: Facts
) -> None:
    if is_unguarded(facts) and made.origin != "person":
        assert Policy(mode=mode, rules=rules).check(made, facts).decision is not ALLOW


@given(mode=MODES, rules=RULES, made=CALLS, facts=FACTS)
def test_asking_twice_gives_the_same(mode: Mode, rules: list[Rule], made: ToolCall, facts: Facts) -> None:
    policy = Policy(mode=mode, rules=rules)
    assert policy.check(made, facts) == policy.check(made, facts)


# ---- conditions

CONDITION_CALL = ToolCall("1", "file", {"path": "docs/a.md", "count": 3}, origin="model")
CONDITION_FACTS = Facts(
    effect=Effect.LOCAL_MUTATION,
    reads=("in/a.csv",),
    writes=("out/b.csv", "out/c.csv"),
    hosts=("API.example.org",),
    commands=("git push origin", "ls"),
)


@pytest.mark.parametrize(
    ("expected", "any_of", "every_one"),
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
    expected: dict[str, Any], any_of: bool, every_one: bool
) -> None:
    condition = Condition(expected)
    assert condition.holds(CONDITION_CALL, CONDITION_FACTS, every=False) is any_of
    assert condition.holds(CONDITION_CALL, CONDITION_FACTS, every=True) is every_one


def test_another_spelling_of_a_command_is_denied_and_never_allowed() -> None:
    facts = Facts(commands=("rm --force --recursive build",))
    condition = Condition({"commands": "rm -rf*"})
    assert condition.holds(CONDITION_CALL, facts, every=False)
    assert not condition.holds(CONDITION_CALL, facts, every=True)
    assert not condition.holds(CONDITION_CALL, Facts(commands=("rm build", "ls -rf")), every=False)


@pytest.mark.parametrize(
    ("key", "unresolved", "holds"),
    [
        ("writes", ("out/$f",), False),
        ("writes", ("in/$g",), True),  # what is read is of no concern to a rule about what is written
        ("reads", ("in/$g",), False),
        ("reads", ("out/$f",), False),
        ("paths", ("in/$g",), False),
    ],
)
def test_a_rule_does_not_allow_paths_that_are_not_resolved(
    key: str, unresolved: tuple[str, ...], holds: bool
) -> None:
    facts = Facts(reads=("in/$g",), writes=("out/$f",), unresolved=unresolved)
    assert Condition({key: "*"}).holds(CONDITION_CALL, facts, every=True) is holds


@pytest.mark.parametrize("key", ["paths", "reads", "writes", "hosts", "commands"])
def test_a_missing_argument_never_matches(key: str) -> None:
    for every in (False, True):
        assert not Condition({key: "*"}).holds(CONDITION_CALL, Facts(), every=every)


def test_an_uncertain_call_is_never_allowed_by_a_pattern() -> None:
    facts = Facts(writes=("out/b.csv",), certain=False)
    assert Condition({"writes": "out/*"}).holds(CONDITION_CALL, facts, every=False)
    assert not Condition({"writes": "out/*"}).holds(CONDITION_CALL, facts, every=True)
    assert Condition({"writes": "out/*", "certain": False}).holds(CONDITION_CALL, facts, every=True)


@pytest.mark.parametrize("path", ["out/../in/x", "./in/x", "in//x", "in/./x"])
def test_a_spelling_cannot_dodge_a_pattern(path: str) -> None:
    assert normalize_path(path) == "in/x"
    assert Condition({"writes": "in/*"}).holds(CONDITION_CALL, Facts(writes=(path,)), every=True)
    assert not Condition({"writes": "out/*"}).holds(CONDITION_CALL, Facts(writes=(path,)), every=True)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"pats": "x"}, "has unknown keys: pats. Known: arguments"),
        ({"arguments": "x"}, "table of argument names"),
        ({"effect": "harmless"}, "harmless"),
        ({"outside": "yes"}, "must be true or false, not 'yes'"),
    ],
)
def test_a_mistake_is_named_when_the_condition_is_made(expected: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Condition(expected)


def test_an_example_tells_call_and_facts() -> None:
    call, facts = parse_example(
        {"writes": ["a"], "effect": "destructive", "arguments": {"path": "a"}}, "file"
    )
    assert (call.name, call.arguments, call.origin) == ("file", {"path": "a"}, "model")
    assert (facts.writes, facts.effect) == (("a",), Effect.DESTRUCTIVE)
    assert facts.effect is Effect.DESTRUCTIVE  # not its word
    with pytest.raises(ValueError, match="has unknown keys: colour"):
        parse_example({"colour": "red"}, "file")


NAMES = st.sampled_from(["a", "b/c", "../x", "*", "x.csv"])
GLOBS = st.sampled_from(["a", "b/c", "/x", "*", "x.csv"])
ANY_FACTS = st.builds(
    Facts,
    effect=st.sampled_from(Effect),
    reads=st.lists(NAMES).map(tuple),
    writes=st.lists(NAMES).map(tuple),
    hosts=st.lists(NAMES).map(tuple),
    commands=st.lists(NAMES).map(tuple),
    outside=st.booleans(),
    certain=st.booleans(),
)
EXPECTED = st.fixed_dictionaries(
    {},
    optional={
        "writes": st.lists(GLOBS, min_size=1),
        "reads": GLOBS,
        "hosts": NAMES,
        "commands": st.lists(NAMES, min_size=1),
        "outside": st.booleans(),
    },
)


@given(EXPECTED, ANY_FACTS)
def test_a_condition_on_all_paths_holds_for_one(expected: dict[str, Any], facts: Facts) -> None:
    condition = Condition(expected)
    if condition.holds(CONDITION_CALL, facts, every=True):
        assert condition.holds(CONDITION_CALL, facts, every=False)


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        ({"effect": ["read_only"]}, False),
        ({"effect": ["destructive", "local_mutation"]}, True),
        ({"certain": False}, False),
        ({"hosts": "API.example.org"}, False),  # hosts are compared in lower case
        ({"hosts": "api.example.org"}, True),
        ({"commands": "LS"}, False),
        ({"arguments": {"count": 3, "path": "*.md"}}, True),
        ({"arguments": {"count": 3, "path": "*.txt"}}, False),
        ({"arguments": {"path": "*.md", "count": 4}}, False),
        ({"arguments": {"path": 3}}, False),
        ({"arguments": {"count": "3"}}, False),
        ({"arguments": {}}, True),
    ],
)
def test_each_kind_of_key(expected: dict[str, Any], holds: bool) -> None:
    assert Condition(expected).holds(CONDITION_CALL, CONDITION_FACTS, every=False) is holds
    assert Condition(expected).holds(CONDITION_CALL, CONDITION_FACTS, every=True) is holds


@pytest.mark.parametrize("key", ["paths", "reads", "writes", "hosts", "commands"])
def test_a_glob_must_be_text(key: str) -> None:
    with pytest.raises(ValueError, match="text or a list of texts, not 3"):
        Condition({key: 3}).holds(CONDITION_CALL, CONDITION_FACTS, every=False)
    with pytest.raises(ValueError, match="text or a list of texts, not 3"):
        Condition({"effect": 3})


@pytest.mark.parametrize("key", ["outside", "certain"])
def test_a_flag_must_be_a_flag(key: str) -> None:
    assert Condition({key: True}) != Condition({key: False})
    for value in (1, 0, None, "true"):
        with pytest.raises(ValueError, match=f"`when.{key}` must be true or false"):
            Condition({key: value})


def test_an_empty_path_is_no_folder() -> None:
    assert normalize_path("") == ""
    assert normalize_path(".") == "."


def test_an_example_may_be_a_shell_command() -> None:
    made, facts = parse_example({"command": "touch a", "origin": "person"}, "file")
    assert (made.name, made.arguments, made.origin) == ("sandbox_bash", {"command": "touch a"}, "person")
    assert (facts.effect, facts.writes, facts.commands) == (Effect.LOCAL_MUTATION, ("a",), ("touch a",))
    assert facts.certain
    made, facts = parse_example({"command": "cat < a; curl x.example", "certain": False, "tool": "t"}, "file")
    assert (made.name, facts.certain) == ("t", False)
    assert (facts.reads, facts.hosts) == (("a",), ("x.example",))


def test_an_example_may_name_another_tool() -> None:
    made, facts = parse_example({"tool": "other"}, "file")
    assert (made.name, facts) == ("other", Facts())


# ---- rules and their conditions


def test_a_rule_concerns_only_its_tools() -> None:
    rule = Rule(tool="f*", decision=DENY)
    assert rule.matches(call("file"), Facts())
    assert not rule.matches(call("python"), Facts())
    assert not rule.matches(call("FILE"), Facts())


def test_a_rule_that_allows_needs_every_path_and_one_that_denies_any() -> None:
    facts = Facts(writes=("data/a", "b"))
    when = {"writes": "data/*"}
    assert not Rule(when=when, decision=ALLOW).matches(call(), facts)
    assert Rule(when=when, decision=ASK).matches(call(), facts)
    assert Rule(when=when, decision=DENY).matches(call(), facts)
    assert Rule(when=when, decision=ALLOW).matches(call(), Facts(writes=("data/a",)))


def test_a_rule_that_allows_never_allows_what_is_uncertain() -> None:
    policy = Policy(rules=[Rule(when={"writes": "*"}, decision=ALLOW)])
    assert policy.check(call(), Facts(writes=("a",))).decision is ALLOW
    assert policy.check(call(), Facts(writes=("a",), certain=False)).decision is ASK


def test_a_condition_may_be_a_function_or_made_already() -> None:
    condition = Condition({"outside": True})
    for when in (condition, {"outside": True}, lambda call, facts: facts.outside):
        rule = Rule(when=when, decision=DENY)
        assert rule.matches(call(), Facts(outside=True))
        assert not rule.matches(call(), Facts())
    assert Rule(when={"outside": True}).when == condition
    assert Rule(when=lambda call, facts: 0).matches(call(), Facts()) is False  # type: ignore[arg-type,return-value]  # any value counts


def test_examples_are_checked_when_the_rule_is_made() -> None:
    Rule(when={"writes": "a"}, match=[{"writes": ["a"]}], not_match=[{"writes": ["b"]}])
    with pytest.raises(ValueError, match="does not match its example"):
        Rule(when={"writes": "a"}, match=[{"writes": ["a"]}, {"writes": ["b"]}])
    with pytest.raises(ValueError, match="`not_match` excludes"):
        Rule(when={"writes": "a"}, not_match=[{"writes": ["b"]}, {"writes": ["a"]}])


def test_all_matching_rules_are_named_and_the_reasons_of_the_strictest() -> None:
    rules = [
        Rule(decision=ASK, reason="one"),
        Rule(decision=ALLOW, reason="two"),
        Rule(tool="file", decision=ASK, reason="three"),
        Rule(tool="other", decision=DENY),
    ]
    evaluation = Policy(rules=rules).check(call(), Facts(effect=Effect.READ_ONLY))
    assert evaluation == Evaluation(ASK, reasons=("one", "three"), matched=tuple(rules[:3]))


def test_an_asking_rule_leaves_a_person_to_the_mode() -> None:
    policy = Policy(rules=[Rule(decision=ASK, reason="rule")])
    assert policy.check(call(origin="person"), Facts()).reasons == ("you typed it",)
    destructive = policy.check(call(origin="person"), Facts(effect=Effect.DESTRUCTIVE))
    assert (destructive.decision, destructive.reasons) == (ASK, ("rule",))


def test_without_a_sandbox_a_person_may_still_be_allowed_by_a_rule() -> None:
    facts = Facts(level="limited", runs_in="sandbox", effect=Effect.DESTRUCTIVE)
    policy = Policy(rules=[Rule(decision=ALLOW)])
    assert policy.check(call(origin="person"), facts).decision is ALLOW
    assert policy.check(call(origin="model"), facts).decision is ASK


def test_plan_mode_obeys_rules_about_reading() -> None:
    policy = Policy(mode="plan", rules=[Rule(decision=ASK, reason="even reading")])
    evaluation = policy.check(call(), Facts(effect=Effect.READ_ONLY))
    assert (evaluation.decision, evaluation.reasons) == (ASK, ("even reading",))
    assert policy.check(call(), Facts()).reasons == (
        "mode plan allows only reading, and this is a local change",
    )


def test_the_mode_names_the_effect() -> None:
    reasons = {effect: Policy().check(call(), Facts(effect=effect)).reasons for effect in EFFECTS}
    assert reasons == {
        Effect.READ_ONLY: ("it only reads",),
        Effect.REMOTE_ACTION: ("it is a remote action",),
        Effect.LOCAL_MUTATION: ("it is a local change",),
        Effect.DESTRUCTIVE: ("it is destructive",),
    }


def test_mode_auto_names_every_risk() -> None:
    facts = Facts(
        effect=Effect.DESTRUCTIVE,
        hosts=("a", "b"),
        outside=True,
        certain=False,
        level="limited",
        runs_in="sandbox",
    )
    assert Policy(mode="auto").check(call(), facts) == Evaluation(
        ASK,
        reasons=(
            "it is destructive",
            "it talks to a, b",
            "it writes outside the workspace",
            "not everything it does could be determined beforehand",
            "there is no sandbox at this level",
        ),
    )
    assert Policy(mode="auto").check(call(), Facts()).reasons == (
        "mode auto allows what stays in the workspace",
    )


def test_a_list_of_rules_can_be_changed_without_changing_the_policy_made_of_it() -> None:
    rules = [Rule(tool="file", decision=DENY)]
    policy = Policy(mode="auto", rules=rules)
    rules.clear()
    assert policy.check(call(), Facts(effect=Effect.READ_ONLY)).decision is DENY


# ---- bounds


def test_a_bound_denies_and_asks_and_never_allows() -> None:
    allowing = Policy(mode="auto")
    assert allowing.check(call(), Facts()).decision is ALLOW
    asking = allowing.narrowed(Policy())
    assert asking.check(call(), Facts()) == Policy().check(call(), Facts())
    denying = allowing.narrowed(Policy(mode="auto", rules=[Rule(decision=DENY, reason="no")]))
    assert denying.check(call(), Facts()).reasons == ("no",)
    assert Policy().narrowed(allowing).check(call(), Facts()).decision is ASK


def test_bounds_add_up_and_the_first_of_the_strictest_speaks() -> None:
    policy = (
        Policy(mode="auto")
        .narrowed(Policy(mode="auto", rules=[Rule(decision=ASK, reason="first")]))
        .narrowed(Policy(mode="auto", rules=[Rule(decision=ASK, reason="second")]))
        .narrowed(Policy(mode="auto"))
    )
    assert len(policy.bounds) == 3
    assert policy.check(call(), Facts()).reasons == ("first",)
    assert policy.narrowed(Policy(mode="plan")).check(call(), Facts()).decision is DENY


@given(policy=POLICIES, bound=POLICIES, made=CALLS, facts=FACTS)
def test_narrowing_gives_the_strictest_of_both(
    policy: Policy, bound: Policy, made: ToolCall, facts: Facts
) -> None:
    decisions = [policy.check(made, facts).decision, bound.check(made, facts).decision]
    assert policy.narrowed(bound).check(made, facts).decision is max(decisions)


# ---- protected files


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "a/b/conftest.py",
        "x.pth",
        ".git/hooks/pre-commit",
        "sub/.git/hooks/x",
        "./a/../conftest.py",
        "a/../.git/hooks/x",
        "CONFTEST.py",
        ".GIT/hooks/x",
        "sitecustomize.py",
        ".vscode/tasks.json",
    ],
)
def test_no_policy_lets_a_protected_file_be_written(path: str) -> None:
    for mode, origin in itertools.product(get_args(Mode), get_args(Origin)):
        policy = Policy(mode=mode, rules=[Rule(decision=ALLOW)])
        evaluation = policy.check(call(origin=origin), Facts(writes=("fine.txt", path)))
        assert evaluation == Evaluation(
            DENY, reasons=(f"{path} is protected: something outside the sandbox may run it",)
        ), (mode, origin)
    assert protected_writes(Facts(writes=("fine.txt", path))) == (path,)


@pytest.mark.parametrize(
    "path",
    ["a.py", "tests/test_conftest.py", "my.pth.txt", ".github/x", "hooks/pre-commit", "a.git/hooks/x", ""],
)
def test_other_files_are_not_protected(path: str) -> None:
    assert protected_writes(Facts(writes=(path,))) == ()
    assert protected_writes(Facts(reads=("conftest.py",))) == ()


# ---- assumptions


@pytest.mark.parametrize(
    ("facts", "unguarded"),
    [
        (Facts(level="limited", runs_in="sandbox"), True),
        (Facts(level="limited", runs_in="sandbox", path_guarded=True), False),
        (Facts(level="limited", runs_in="host"), False),
        (Facts(level="guarded", runs_in="sandbox"), False),
    ],
)
def test_only_limited_without_a_path_guard_is_unguarded(facts: Facts, unguarded: bool) -> None:
    assert is_unguarded(facts) is unguarded


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("certain", [True, False])
@pytest.mark.parametrize("level", ["limited", "confined"])
def test_the_assumed_effect_is_never_milder(effect: Effect, certain: bool, level: str) -> None:
    assumed = assumed_effect(Facts(effect=effect, certain=certain, level=level, runs_in="sandbox"))
    believed = certain and level == "confined"
    assert assumed is (effect if believed or effect is not Effect.READ_ONLY else Effect.LOCAL_MUTATION)


@pytest.mark.parametrize(
    ("policy", "offered"),
    [
        (Policy(mode="safe"), True),
        (Policy(mode="auto", rules=[Rule(decision=ALLOW)]), True),
        (Policy(mode="plan"), False),
        (Policy(rules=[Rule(decision=DENY)]), False),
        (Policy().narrowed(Policy(mode="plan")), False),
    ],
)
def test_protected_paths_are_named_if_nothing_else_stands_against_the_call(
    policy: Policy, offered: bool
) -> None:
    facts = Facts(writes=("a.txt", "conftest.py"))
    evaluation = policy.check(call(), facts)
    assert evaluation.decision is DENY
    assert evaluation.protected == (("conftest.py",) if offered else ())
    assert policy.check(call(), Facts(writes=("a.txt",))).protected == ()


def test_an_allowed_name_is_decided_like_any_other_file() -> None:
    facts = Facts(writes=("conftest.py",))
    policy = Policy(mode="auto", allow_protected=("conftest.py",))
    assert policy.check(call(), facts).decision is ALLOW
    assert policy.check(call(), Facts(writes=("setup.py",))).protected == ("setup.py",)
    bound = Policy(mode="auto").narrowed(policy)
    assert bound.check(call(), facts).decision is DENY, "a bound allows nothing"
    narrowed = policy.narrowed(Policy(mode="safe"))
    assert narrowed.check(call(), facts).decision is ASK


# ---- rules about paths, and what is not known of a call


def path_rule(key: str, glob: str, decision: Decision = DENY) -> Rule:
    return Rule(when={key: glob}, decision=decision)


def decide(rule: Rule, *, origin: Origin = "model", **facts: Any) -> Decision:
    known = {"effect": Effect.LOCAL_MUTATION, "undoable": True, "level": "isolated", **facts}
    return Policy(mode="auto", rules=(rule,)).check(call(origin=origin), Facts(**known)).decision


@pytest.mark.parametrize(
    ("key", "facts", "decision"),
    [
        ("reads", {"reads": ("a",)}, DENY),
        ("reads", {"writes": ("b",)}, ALLOW),
        ("writes", {"writes": ("a",)}, DENY),
        ("writes", {"reads": ("a",)}, ALLOW),
        ("paths", {"reads": ("a",)}, DENY),
        ("paths", {"writes": ("a",)}, DENY),
        # What arguments mention may be read or written, and only be read by a call that changes nothing.
        ("reads", {"mentions": ("a",)}, DENY),
        ("writes", {"mentions": ("a",)}, DENY),
        ("writes", {"mentions": ("a",), "effect": Effect.READ_ONLY}, ALLOW),
        ("reads", {"mentions": ("a",), "effect": Effect.READ_ONLY}, DENY),
        # What commands name counts for reading and for any path.
        ("reads", {"named": ("a",)}, DENY),
        ("paths", {"named": ("a",)}, DENY),
        ("writes", {"named": ("a",)}, ALLOW),
        # What a repository has recorded of it is read.
        ("reads", {"recorded": ("a",)}, DENY),
        ("writes", {"recorded": ("a",)}, ALLOW),
    ],
)
def test_keys_of_paths(key: str, facts: dict[str, Any], decision: Decision) -> None:
    assert decide(path_rule(key, "a"), **facts) is decision


@pytest.mark.parametrize(
    ("glob", "facts", "decision"),
    [
        # A file that is moved away, or a folder around it, may be read under its new name.
        ("secrets/key", {"writes": ("secrets/key",)}, ASK),
        ("secrets/key", {"writes": ("secrets",), "folders": ("secrets",)}, ASK),
        ("secrets/key", {"writes": (".",), "folders": (".",)}, ASK),
        ("secrets/key", {"writes": ("secrets",)}, ALLOW),
        ("secrets/key", {"writes": ("other",), "folders": ("other",)}, ALLOW),
        ("secrets/key", {"writes": ("sec",), "folders": ("sec",)}, ALLOW),
        (
            "secrets/key",
            {"writes": ("secrets/key",), "enforced": frozenset({("reads", "secrets/key")})},
            ALLOW,
        ),
        # A folder that is read may hold it.
        ("secrets/*", {"reads": (".",), "folders": (".",)}, ASK),
        ("secrets/*", {"reads": ("secrets",), "folders": ("secrets",)}, ASK),
        ("secrets/*", {"reads": ("secrets/deep",), "folders": ("secrets/deep",)}, DENY),
        # Who sends or copies it takes all that is in it.
        ("secrets/*", {"reads": ("secrets",), "folders": ("secrets",), "hosts": ("h",)}, DENY),
        ("secrets/**", {"reads": ("secrets",), "folders": ("secrets",), "hosts": ("h",)}, DENY),
        ("secrets/*", {"reads": ("secrets",), "folders": ("secrets",), "writes": ("x",)}, DENY),
        (
            "secrets/*",
            {
                "reads": ("secrets",),
                "folders": ("secrets",),
                "writes": ("x",),
                "enforced": frozenset({("reads", "secrets/*")}),
            },
            ALLOW,
        ),
        (
            "secrets/*",
            {
                "reads": ("secrets",),
                "folders": ("secrets",),
                "hosts": ("h",),
                "enforced": frozenset({("reads", "secrets/*")}),
            },
            DENY,
        ),
        ("secrets/*.key", {"reads": ("secrets",), "folders": ("secrets",), "hosts": ("h",)}, ASK),
        ("secrets/*", {"reads": (".",), "folders": (".",), "writes": ("x",)}, ASK),
        ("secrets/*.key", {"reads": ("secrets/deep",), "folders": ("secrets/deep",)}, ASK),
        ("secrets/*", {"reads": ("other",), "folders": ("other",)}, ALLOW),
        ("secrets/*", {"reads": ("secretsX",), "folders": ("secretsX",)}, ALLOW),
        ("*.pem", {"reads": ("other",), "folders": ("other",)}, ASK),
        ("secrets/*", {"unresolved": ("$f",)}, ASK),
        ("secrets/*", {"unresolved": ("$f",), "enforced": frozenset({("reads", "secrets/*")})}, ALLOW),
        # What git stores may hold any version of it, which no hidden file keeps from being read.
        ("secrets/*", {"reads": (".git/objects/ab/cdef",)}, ASK),
        ("secrets/*", {"reads": ("module/.git/objects",)}, ASK),
        (
            "secrets/*",
            {"reads": (".git/objects",), "enforced": frozenset({("reads", "secrets/*")})},
            ASK,
        ),
        ("secrets/*", {"reads": (".git/HEAD",)}, ALLOW),
        ("secrets/*", {"writes": (".git/objects/ab/cdef",)}, ALLOW),
    ],
)
def test_reading_that_a_rule_may_concern(glob: str, facts: dict[str, Any], decision: Decision) -> None:
    assert decide(path_rule("reads", glob), **facts) is decision


@pytest.mark.parametrize(
    ("glob", "facts", "decision"),
    [
        ("data/raw/*", {"writes": ("data",), "folders": ("data",)}, DENY),
        ("data/raw/*", {"writes": ("data/raw",), "folders": ("data/raw",)}, DENY),
        ("data/raw/*", {"writes": ("other",), "folders": ("other",)}, ALLOW),
        ("data/raw/*", {"writes": ("data",)}, ALLOW),
        ("*.csv", {"writes": ("data",), "folders": ("data",)}, ASK),
        ("data/raw/*", {"unresolved": ("$f",)}, ALLOW),
    ],
)
def test_a_change_of_a_folder_concerns_what_is_in_it(
    glob: str, facts: dict[str, Any], decision: Decision
) -> None:
    assert decide(path_rule("writes", glob), **facts) is decision


@pytest.mark.parametrize("glob", ["secrets", "./secrets", "secret?", "*/secrets", "secrets/sub"])
@pytest.mark.parametrize("key", ["paths", "reads", "writes"])
def test_a_rule_about_a_folder_concerns_what_lies_in_it(key: str, glob: str) -> None:
    folder = {"*/secrets": "a/secrets", "secrets/sub": "secrets/sub"}.get(glob, "secrets")
    rule = path_rule(key, normalize_path(glob))
    used = "writes" if key == "writes" else "reads"
    inside: list[dict[str, Any]] = [{used: (f"{folder}/key",)}, {used: (f"{folder}/a/b",)}]
    beside: dict[str, Any] = {used: (f"{folder}ly/key",)}
    assert [decide(rule, **facts) for facts in inside] == [DENY, DENY]
    assert decide(rule, **beside) is ALLOW
    allows = path_rule(key, normalize_path(glob), ALLOW)
    mode = Policy(mode="safe", rules=(allows,))
    touched = Facts(reads=(f"{folder}/key",), writes=(f"{folder}/key",), effect=Effect.LOCAL_MUTATION)
    assert (
        mode.check(call(origin="model"), touched).decision is ASK
    )  # what is allowed is not more than it says


def test_a_rule_that_allows_is_never_one_that_may_concern_a_call() -> None:
    unknown: dict[str, Any] = {"unresolved": ("$f",), "reads": (".",), "folders": (".",)}
    assert decide(path_rule("reads", "secrets/*", ALLOW), **unknown) is ALLOW
    rule = path_rule("reads", "secrets/*", ALLOW)
    assert not rule.may_hold(call(), Facts(**unknown))
    assert path_rule("reads", "secrets/*").may_hold(call(), Facts(**unknown))


@pytest.mark.parametrize("origin", get_args(Origin))
def test_a_person_who_types_a_call_is_not_asked_about_what_a_rule_may_concern(origin: Origin) -> None:
    facts: dict[str, Any] = {"unresolved": ("$f",), "effect": Effect.READ_ONLY}
    expected = ALLOW if origin == "person" else ASK
    assert decide(path_rule("reads", "secrets/*"), origin=origin, **facts) is expected
    # What is denied by the mode stays denied, and what is asked about stays so with its own reason.
    policy = Policy(mode="safe", rules=(path_rule("reads", "secrets/*"),))
    asked = policy.check(call(origin="model"), Facts(unresolved=("$f",), effect=Effect.LOCAL_MUTATION))
    assert asked.decision is ASK
    assert not any("may concern" in reason for reason in asked.reasons)


def test_a_call_is_restricted_by_rules_that_ask_or_deny_and_concern_it() -> None:
    def restricted(rule: Rule, name: str = "file", **facts: Any) -> bool:
        policy = Policy(mode="auto", rules=(rule,))
        bounded = Policy(mode="auto", bounds=(policy,))
        assert bounded.is_restricted(call(name), Facts(**facts)) is policy.is_restricted(
            call(name), Facts(**facts)
        )
        return policy.is_restricted(call(name), Facts(**facts))

    for decision in (ASK, DENY):
        assert restricted(path_rule("reads", "a", decision), reads=("a",))
        assert restricted(path_rule("reads", "a/*", decision), reads=(".",), folders=(".",))
        assert restricted(path_rule("reads", "a", decision), reads=("b", "a")), "one of several suffices"
        assert not restricted(path_rule("reads", "a", decision), reads=("b",))
        assert restricted(Rule(when=lambda call, facts: False, decision=decision))
        assert not restricted(Rule(tool="other", when=lambda call, facts: False, decision=decision))
        assert restricted(Rule(when={"effect": "local_mutation"}, decision=decision))
    assert not restricted(path_rule("reads", "a", ALLOW), reads=("a",))
    assert not restricted(Rule(when=lambda call, facts: True, decision=ALLOW))


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_call_on_the_host_of_which_nothing_is_known(mode: Mode) -> None:
    facts = Facts(runs_in="host", basis="nothing", hosts=("example.org",), certain=False)
    evaluation = Policy(mode=mode).check(call(origin="person"), facts)
    assert evaluation.decision is (DENY if mode == "plan" else ASK)
    assert ("it talks to example.org" in evaluation.reasons) == (mode != "plan")
    assert not Policy(mode=mode).check(call(), Facts(runs_in="host", basis="nothing")).reasons[1:]


def test_the_reason_of_a_question_says_what_is_not_known() -> None:
    facts = Facts(certain=False, doubts=("what frobnicate does is unknown", "$x may be an option"))
    why = (
        "not everything it does could be determined beforehand: "
        "what frobnicate does is unknown; $x may be an option"
    )
    assert Policy(mode="auto").check(call(), facts).reasons == (why,)
    assert Policy(mode="safe").check(call(), facts).reasons == (f"it counts as a local change, since {why}",)
    assert Policy(mode="safe").check(call(), Facts()).reasons == ("it is a local change",)


def test_the_reason_of_a_rule_names_its_paths() -> None:
    rule = Rule(when={"reads": ["a/*", "b"], "writes": "c", "paths": "d"}, decision=DENY)
    (reason,) = Policy(rules=(rule,)).check(call(), Facts(reads=("b",), writes=("c", "d"))).reasons or ("",)
    assert reason == "rule for '*' about reads 'a/*', reads 'b', writes 'c'"


@pytest.mark.parametrize("key", ["reads", "writes", "paths"])
def test_policy_concerns_paths_if_one_of_its_rules_or_bounds_does(key: str) -> None:
    """Who prepares a call resolves its paths only then, so a bound that was missed would never match."""
    about_paths = Policy(rules=(path_rule(key, "secrets/*"),))
    about_others = Policy(rules=(Rule(tool="web_*", decision=DENY),))
    assert about_paths.concerns_paths
    assert not about_others.concerns_paths
    assert not about_others.narrowed(Policy()).concerns_paths
    assert about_paths.narrowed(about_others).concerns_paths
    assert about_others.narrowed(about_paths).concerns_paths
    assert Policy().narrowed(about_others).narrowed(about_paths).narrowed(Policy()).concerns_paths
    assert Policy().narrowed(about_others.narrowed(about_paths)).concerns_paths, "a bound of a bound"


def test_whether_a_policy_concerns_paths_is_found_and_not_given() -> None:
    with pytest.raises(TypeError, match="concerns_paths"):
        Policy(concerns_paths=False)  # type: ignore[call-arg]  # the point
    assert "concerns_paths" not in repr(Policy())


@pytest.mark.parametrize("name", ["main.py", "a/b.txt", ".aisotools.toml"])
def test_a_policy_allows_no_name_that_cannot_be_allowed(name: str) -> None:
    with pytest.raises(UsageError, match=re.escape(name)):
        Policy(allow_protected=("conftest.py", name))


def test_a_change_on_the_host_is_asked_about_if_its_author_does_not_name_the_files() -> None:
    policy = Policy(mode="auto")
    declared = policy.check(call(), Facts(runs_in="host", writes=("a.txt",)))
    assert (declared.decision, declared.reasons) == (
        ALLOW,
        ("mode auto allows what stays in the workspace, as its author declares of this",),
    )
    undeclared = policy.check(call(), Facts(runs_in="host"))
    assert undeclared.decision is ASK
    assert "does not declare which files" in undeclared.reasons[0]
    vague = policy.check(call(), Facts(runs_in="host", writes=("a.txt",), unresolved=("$x",)))
    assert vague.decision is ASK
    # What only reads on the host has no files to name.
    assert policy.check(call(), Facts(runs_in="host", effect=Effect.READ_ONLY)).decision is ALLOW


def test_a_rule_is_about_the_same_tools_however_many_were_asked_about() -> None:
    """Which rules are about a tool is found once for each of the first tools, and found again after them."""
    policy = Policy(
        mode="auto", rules=[Rule(tool="*7", decision=DENY), Rule(tool="file*", decision=Decision.ASK)]
    )
    for _ in range(2):
        for number in range(600):
            decision = policy.check(ToolCall("1", f"tool{number}", {}, origin="model"), Facts()).decision
            assert (decision is DENY) == (number % 10 == 7)


def test_a_rule_about_no_tool_is_refused_when_it_is_made() -> None:
    with pytest.raises(TypeError, match="Rule tool=5: use a glob"):
        Rule(tool=5)  # type: ignore[arg-type]  # as a file of settings may have it


@pytest.mark.parametrize(
    "make",
    [
        lambda glob: Rule(tool=glob),
        lambda glob: Rule(when={"paths": [glob]}),
        lambda glob: Rule(when={"commands": glob}),
        lambda glob: Rule(when={"arguments": {"command": ["x", glob]}}),
    ],
)
def test_glob_that_takes_long_to_translate_is_refused(make: Callable[[str], Rule]) -> None:
    make("[a" * 500)
    with pytest.raises(ValueError, match="has 1,002 characters, '\\[a"):
        make("[a" * 501)


@pytest.mark.parametrize("path", ["/data/x", "//data/x", "///data/x", "//data//./y/../x", "/../data/x"])
def test_a_path_has_one_form_however_it_is_spelled(path: str) -> None:
    assert normalize_path(path) == "/data/x"
    rule = Rule(when={"paths": "/data/*"}, decision=Decision.DENY)
    call, facts = parse_example({"command": f"cat {path}"}, "sandbox_bash")
    assert Policy(mode="auto", rules=[rule]).check(call, facts).decision is Decision.DENY
