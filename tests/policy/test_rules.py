from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisotools.core.types import Decision, Effect, Facts, Origin, ToolCall
from aisotools.policy.rules import Evaluation, Mode, Policy, Rule, assumed_effect, is_unguarded

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
def test_what_is_uncertain_is_never_read_only(mode: Mode) -> None:
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
    ("make", "error", "told"),
    [
        (lambda: Rule(decision="alow"), ValueError, "'alow' is not one of allow, ask, deny"),  # type: ignore[arg-type]  # the point
        (lambda: Rule(when="always"), TypeError, "when='always'"),  # type: ignore[arg-type]  # the point
        (lambda: Policy(mode="yolo"), ValueError, "'yolo' is not one of plan, safe, auto"),  # type: ignore[arg-type]  # the point
        (lambda: Policy(rules=["file"]), TypeError, "'file' is not a Rule"),  # type: ignore[list-item]  # the point
    ],
)
def test_bad_policies_fail_where_they_are_written(make: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        make()


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
