"""The loop as a pure function: whatever models, tools and people do, its two rules hold in every state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aisotools.agent import loop as core
from aisotools.agent.budgets import Budgets
from aisotools.agent.loop import Ask, Choose, End, MakeCalls, Rules, State, Transition, size_of
from aisotools.core.messages import (
    AssistantMessage,
    CallPart,
    FinishReason,
    Message,
    ModelResponse,
    TextPart,
    ToolMessage,
    Usage,
    UserMessage,
)
from tests.agent.rules import assert_whole

NAMES = st.sampled_from(["look", "write", "nothing"])
CALLS = st.builds(
    CallPart,
    st.sampled_from(["", "same", "a-1"]),
    NAMES,
    st.fixed_dictionaries({"n": st.integers(0, 2)}),
    flaw=st.sampled_from(["", "", "", "no JSON"]),
)
PARTS = st.lists(st.one_of(st.builds(TextPart, st.text(max_size=5)), CALLS), max_size=5).map(tuple)
REASONS: st.SearchStrategy[FinishReason] = st.sampled_from(
    ["stop", "calls", "length", "filtered", "undecided", "unknown"]
)
ANSWERS = st.builds(
    ModelResponse,
    message=st.builds(AssistantMessage, PARTS, reason=REASONS),
    usage=st.builds(Usage, input_tokens=st.integers(0, 50), cost=st.none() | st.floats(0, 1)),
    options=st.lists(CALLS, max_size=2).map(tuple),
)
RULES = st.builds(
    Rules,
    agent_id=st.just("me"),
    budgets=st.builds(
        Budgets,
        steps=st.integers(1, 6),
        calls=st.none() | st.integers(0, 4),
        tokens=st.none() | st.integers(1, 200),
        cost=st.none() | st.floats(0.1, 2),
        same_failures=st.integers(1, 3),
    ),
    window_tokens=st.none() | st.integers(50, 2_000),
    offered=st.none() | st.just(frozenset({"look", "write"})),
)


def result(call: CallPart, data: st.DataObject) -> ToolMessage:
    content = data.draw(st.sampled_from(["ok", "x" * 600]))
    return ToolMessage(call.id, call.name, content, is_error=data.draw(st.booleans()))


def carried_out(turn: Transition, rules: Rules, data: st.DataObject) -> Transition:
    """Whatever may come of an action."""
    state, action = turn.state, turn.action
    if data.draw(st.integers(0, 9)) == 0:
        done = {}
        if isinstance(action, MakeCalls):
            done = {c.id: result(c, data) for c in action.calls if data.draw(st.booleans())}
        return core.broken_off(state, "cancelled", "it was cancelled", done)
    match action:
        case Ask():
            return core.answered(state, rules, data.draw(ANSWERS))
        case MakeCalls(calls):
            if data.draw(st.booleans()):
                state = core.with_arguments(state, calls[0].id, {"n": "edited"})
            made = [result(call, data) for call in calls]
            return core.called(state, rules, data.draw(st.permutations(made)))
        case Choose(options):
            picks = st.sampled_from([None, "neither", *options])
            return core.chosen(state, rules, data.draw(picks))
        case End():
            raise AssertionError("unreachable")


@given(rules=RULES, data=st.data())
def test_every_run_keeps_the_rules(rules: Rules, data: st.DataObject) -> None:
    state = State()
    ids: set[str] = set()
    for _ in range(3):
        before = len(state.messages)
        turn = core.begin(state, rules, UserMessage("go"))
        made = 0
        for _ in range(50):
            if isinstance(turn.action, End):
                break
            if isinstance(turn.action, MakeCalls):
                new = [call.id for call in turn.action.calls]
                made += len(new)
                assert not ids & set(new), "an id was given twice"
                ids.update(new)
                assert all(not call.flaw for call in turn.action.calls)
                assert rules.offered is None or all(c.name in rules.offered for c in turn.action.calls)
            if isinstance(turn.action, Ask):
                assert_whole(turn.action.messages)
            turn = carried_out(turn, rules, data)
        state = turn.state
        assert isinstance(turn.action, End), "the budgets end every run"
        assert_whole(state.messages)
        assert state.steps <= (rules.budgets.steps or 99)
        assert rules.budgets.calls is None or made <= rules.budgets.calls
        assert made == state.calls
        assert state.messages[before] == UserMessage("go")
        assert list(state.marks) == sorted(state.marks)
        assert state.waiting == ()
        assert state.chars == sum(map(size_of, state.messages))
    for step in range(state.step, 0, -1):
        state = core.rewound(state, step)
        assert_whole(state.messages)
        assert state.step == step - 1


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(UserMessage, st.just("u")),
    st.builds(AssistantMessage, PARTS),
    st.builds(ToolMessage, st.sampled_from(["", "same", "a-1"]), NAMES, st.just("r")),
)


@given(st.lists(MESSAGES, max_size=8))
def test_whatever_is_edited_in_is_made_whole(messages: list[Message]) -> None:
    state = core.edited(
        State(), [m for m in messages if len({c.id for c in calls_of(m)}) == len(calls_of(m))]
    )
    answered = [m.call_id for m in state.messages if isinstance(m, ToolMessage)]
    asked = [call.id for m in state.messages for call in calls_of(m)]
    assert sorted(answered) == sorted(asked)


def calls_of(message: Message) -> tuple[CallPart, ...]:
    return message.calls if isinstance(message, AssistantMessage) else ()


@pytest.mark.parametrize("count", [65, 200])
def test_too_many_calls_at_once(count: int) -> None:
    rules = Rules(agent_id="me")
    turn = core.begin(State(), rules, UserMessage("go"))
    calls = tuple(CallPart("", "look", {"n": n}) for n in range(count))
    turn = core.answered(turn.state, rules, ModelResponse(message=AssistantMessage(calls), usage=Usage()))
    assert isinstance(turn.action, MakeCalls)
    assert len(turn.action.calls) == core.MOST_CALLS
    turn = core.called(turn.state, rules, [ToolMessage(c.id, c.name, "ok") for c in turn.action.calls])
    assert_whole(turn.state.messages)
    assert "at most 64" in getattr(turn.state.messages[-1], "content", "")


def test_the_providers_counts_correct_ours() -> None:
    rules = Rules(agent_id="me", window_tokens=10_000)
    turn = core.begin(State(), rules, UserMessage("x" * 10_000))
    said = AssistantMessage((CallPart("", "look", {}),))
    turn = core.answered(turn.state, rules, ModelResponse(message=said, usage=Usage(input_tokens=8_000)))
    assert turn.state.tokens_per_char == pytest.approx(0.8)
