"""The loop as a pure function: whatever models, tools and people do, its two rules hold in every state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.agent import loop
from aisotools.agent.budgets import Budgets
from aisotools.agent.loop import (
    AskModel,
    Choose,
    ConversationState,
    End,
    MakeCalls,
    RunSettings,
    Transition,
    message_chars,
)
from aisotools.core.messages import (
    AnswerPart,
    AssistantMessage,
    CallPart,
    FinishReason,
    ImagePart,
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
    RunSettings,
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


def carried_out(turn: Transition, settings: RunSettings, data: st.DataObject) -> Transition:
    """Whatever may come of an action."""
    state, action = turn.state, turn.action
    if data.draw(st.integers(0, 9)) == 0:
        done = {}
        if isinstance(action, MakeCalls):
            done = {c.id: result(c, data) for c in action.calls if data.draw(st.booleans())}
        return loop.abort(state, "cancelled", "it was cancelled", done)
    match action:
        case AskModel():
            return loop.receive_answer(state, settings, data.draw(ANSWERS))
        case MakeCalls(calls):
            if data.draw(st.booleans()):
                state = loop.replace_arguments(state, calls[0].id, {"n": "edited"})
            made = [result(call, data) for call in calls]
            return loop.receive_results(state, settings, data.draw(st.permutations(made)))
        case Choose(options):
            picks = st.sampled_from([None, "neither", *options])
            return loop.receive_choice(state, settings, data.draw(picks))
        case End():
            raise AssertionError("unreachable")


@given(settings=RULES, data=st.data())
def test_every_run_keeps_the_rules(settings: RunSettings, data: st.DataObject) -> None:
    state = ConversationState()
    ids: set[str] = set()
    for _ in range(3):
        before = len(state.messages)
        turn = loop.begin(state, settings, UserMessage("go"))
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
                assert settings.offered is None or all(c.name in settings.offered for c in turn.action.calls)
            if isinstance(turn.action, AskModel):
                assert_whole(turn.action.messages)
            turn = carried_out(turn, settings, data)
        state = turn.state
        assert isinstance(turn.action, End), "the budgets end every run"
        assert_whole(state.messages)
        assert state.steps <= (settings.budgets.steps or 99)
        assert settings.budgets.calls is None or made <= settings.budgets.calls
        assert made == state.calls
        assert state.messages[before] == UserMessage("go")
        assert list(state.marks) == sorted(state.marks)
        assert state.pending == ()
        assert state.chars == sum(map(message_chars, state.messages))
    for step in range(state.step, 0, -1):
        state = loop.rewind(state, step)
        assert_whole(state.messages)
        assert state.step == step - 1


MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(UserMessage, st.just("u")),
    st.builds(AssistantMessage, PARTS),
    st.builds(ToolMessage, st.sampled_from(["", "same", "a-1"]), NAMES, st.just("r")),
)


@given(st.lists(MESSAGES, max_size=8))
def test_edited_messages_get_a_result_for_every_call(messages: list[Message]) -> None:
    state = loop.replace_messages(
        ConversationState(), [m for m in messages if len({c.id for c in calls_of(m)}) == len(calls_of(m))]
    )
    answered = [m.call_id for m in state.messages if isinstance(m, ToolMessage)]
    asked = [call.id for m in state.messages for call in calls_of(m)]
    assert sorted(answered) == sorted(asked)


def calls_of(message: Message) -> tuple[CallPart, ...]:
    return message.calls if isinstance(message, AssistantMessage) else ()


@pytest.mark.parametrize("count", [65, 200])
def test_too_many_calls_at_once(count: int) -> None:
    settings = RunSettings(agent_id="me")
    turn = loop.begin(ConversationState(), settings, UserMessage("go"))
    calls = tuple(CallPart("", "look", {"n": n}) for n in range(count))
    turn = loop.receive_answer(
        turn.state, settings, ModelResponse(message=AssistantMessage(calls), usage=Usage())
    )
    assert isinstance(turn.action, MakeCalls)
    assert len(turn.action.calls) == loop.MAX_CALLS_PER_ANSWER
    turn = loop.receive_results(
        turn.state, settings, [ToolMessage(c.id, c.name, "ok") for c in turn.action.calls]
    )
    assert_whole(turn.state.messages)
    assert "at most 64" in getattr(turn.state.messages[-1], "content", "")


def test_the_providers_counts_correct_ours() -> None:
    settings = RunSettings(agent_id="me", window_tokens=10_000)
    turn = loop.begin(ConversationState(), settings, UserMessage("x" * 10_000))
    message = AssistantMessage((CallPart("", "look", {}),))
    turn = loop.receive_answer(
        turn.state, settings, ModelResponse(message=message, usage=Usage(input_tokens=8_000))
    )
    assert turn.state.tokens_per_char == pytest.approx(0.8)


# ---- each decision by itself

RULES_OF_ONE = RunSettings(agent_id="me")


def call(number: int = 0, name: str = "look", **fields: Any) -> CallPart:
    return CallPart(f"model-{number}", name, {"n": number}, **fields)


def model_answer(*parts: AnswerPart, reason: FinishReason = "stop", **fields: Any) -> ModelResponse:
    fields.setdefault("usage", Usage())
    return ModelResponse(message=AssistantMessage(tuple(parts), reason=reason), **fields)


def ok(part: CallPart, content: str = "ok", **fields: Any) -> ToolMessage:
    return ToolMessage(part.id, part.name, content, **fields)


def begun(settings: RunSettings = RULES_OF_ONE, prompt: str = "go") -> ConversationState:
    return loop.begin(ConversationState(), settings, UserMessage(prompt)).state


def ending(transition: Transition) -> tuple[str, str]:
    assert isinstance(transition.action, End)
    return transition.action.outcome, transition.action.reason


def calls_made(transition: Transition) -> tuple[CallPart, ...]:
    assert isinstance(transition.action, MakeCalls)
    return transition.action.calls


def test_a_new_conversation_is_empty_and_nothing_is_used_up() -> None:
    state = ConversationState()
    assert (state.messages, state.chars, state.marks, state.step) == ((), 0, (), 0)
    assert (state.call_count, state.steps, state.calls, state.usage) == (0, 0, 0, Usage(requests=0))
    assert (state.failures, state.pending, state.results) == ({}, (), {})


def test_a_run_begins_with_a_request_and_forgets_what_the_last_run_used() -> None:
    old = ConversationState(
        messages=(UserMessage("a"), AssistantMessage((TextPart("b"),))),
        chars=2,
        marks=(1,),
        call_count=7,
        steps=5,
        calls=4,
        usage=Usage(input_tokens=9),
        failures={"x": 2},
        pending=(call(),),
        results={"x": ok(call())},
    )
    transition = loop.begin(old, RULES_OF_ONE, UserMessage("go"))
    assert transition.action == AskModel(messages=(*old.messages, UserMessage("go")))
    state = transition.state
    assert (state.steps, state.calls, state.failures, state.pending, state.results) == (1, 0, {}, (), {})
    assert (state.usage, state.call_count, state.marks, state.step) == (Usage(requests=0), 7, (1, 3), 2)
    assert state.chars == 4


@pytest.mark.parametrize("messages", [(), (UserMessage("a"), AssistantMessage((TextPart("b"),)))])
def test_without_a_prompt_there_must_be_something_to_answer(messages: tuple[Message, ...]) -> None:
    transition = loop.begin(ConversationState(messages=messages), RULES_OF_ONE, None)
    assert ending(transition) == ("failed", "there is nothing to answer; give a prompt")
    assert isinstance(
        loop.begin(ConversationState(messages=(UserMessage("a"),)), RULES_OF_ONE, None).action, AskModel
    )


@pytest.mark.parametrize(
    ("reason", "detail", "outcome", "why"),
    [
        ("stop", "", "answered", ""),
        ("length", "", "length", "the answer was cut at its greatest length"),
        ("undecided", "", "undecided", "the model could not choose, and proposed nothing"),
        ("filtered", "", "filtered", "the provider withheld the answer (no reason given)"),
        ("filtered", "unsafe", "filtered", "the provider withheld the answer (unsafe)"),
        ("unknown", "", "failed", "the model ended its answer for an unknown reason (none given)"),
        ("unknown", "503", "failed", "the model ended its answer for an unknown reason (503)"),
    ],
)
def test_an_answer_without_calls_ends_the_run(
    reason: FinishReason, detail: str, outcome: str, why: str
) -> None:
    answer = model_answer(TextPart("hi"), reason=reason, detail=detail)
    transition = loop.receive_answer(begun(), RULES_OF_ONE, answer)
    assert ending(transition) == (outcome, why)
    assert transition.state.messages[-1] == answer.message


@pytest.mark.parametrize("reason", ["filtered", "unknown"])
def test_calls_of_an_answer_that_cannot_be_trusted_are_answered_and_not_made(reason: FinishReason) -> None:
    transition = loop.receive_answer(begun(), RULES_OF_ONE, model_answer(call(), reason=reason))
    assert ending(transition)[0] == {"filtered": "filtered", "unknown": "failed"}[reason]
    last = transition.state.messages[-1]
    assert isinstance(last, ToolMessage)
    assert last.is_error
    assert "look gave no result: the" in last.content
    assert transition.state.calls == 0


def test_calls_get_ids_of_the_session_and_usage_adds_up() -> None:
    state = begun()
    answer = model_answer(call(1), TextPart("and"), call(1), usage=Usage(input_tokens=3, cost=0.5))
    transition = loop.receive_answer(state, RULES_OF_ONE, answer)
    assert [made.id for made in calls_made(transition)] == ["me-1", "me-2"]
    assert transition.state.call_count == 2
    assert transition.state.calls == 2
    assert transition.state.pending == calls_made(transition)
    message = transition.state.messages[-1]
    assert isinstance(message, AssistantMessage)
    assert message.parts == (calls_made(transition)[0], TextPart("and"), calls_made(transition)[1])
    assert transition.state.usage == Usage(requests=0) + Usage(input_tokens=3, cost=0.5)
    results = [ok(made) for made in calls_made(transition)]
    following = loop.receive_results(transition.state, RULES_OF_ONE, results[::-1])
    assert isinstance(following.action, AskModel)
    assert following.state.messages[-2:] == tuple(results)
    assert (following.state.pending, following.state.results) == ((), {})
    again = loop.receive_answer(following.state, RULES_OF_ONE, model_answer(call()))
    assert [made.id for made in calls_made(again)] == ["me-3"]


def test_flawed_and_unknown_calls_are_refused_with_the_reason() -> None:
    settings = RunSettings(agent_id="me", offered=frozenset({"look", "write"}))
    answer = model_answer(call(1, flaw="No JSON."), call(2, name="rm"), call(3))
    transition = loop.receive_answer(begun(settings), settings, answer)
    assert [made.arguments for made in calls_made(transition)] == [{"n": 3}]
    assert transition.state.calls == 1
    state = loop.receive_results(transition.state, settings, [ok(calls_made(transition)[0])]).state
    contents = [message.content for message in state.messages if isinstance(message, ToolMessage)]
    assert contents == [
        "look was not run: No JSON. Send the call again with valid arguments.",
        "rm was not run: it is not one of your tools. They are: look, write.",
        "ok",
    ]
    assert [m.is_error for m in state.messages if isinstance(m, ToolMessage)] == [True, True, False]


def test_no_offered_tools_is_reported() -> None:
    settings = RunSettings(agent_id="me", offered=frozenset())
    transition = loop.receive_answer(begun(settings), settings, model_answer(call()))
    assert isinstance(transition.action, AskModel), "a refused call is a result that the model reads"
    last = transition.state.messages[-1]
    assert isinstance(last, ToolMessage)
    assert last.content.endswith("They are: none.")


def test_the_budget_of_calls() -> None:
    settings = RunSettings(agent_id="me", budgets=Budgets(calls=3))
    transition = loop.receive_answer(begun(settings), settings, model_answer(call(1), call(2)))
    assert len(calls_made(transition)) == 2
    state = loop.receive_results(transition.state, settings, [ok(c) for c in calls_made(transition)]).state
    transition = loop.receive_answer(state, settings, model_answer(call(1), call(2)))
    assert len(calls_made(transition)) == 1
    refused = transition.state.results["me-4"]
    assert refused.is_error
    assert refused.content == "look was not run: the budget of 3 calls is used up."
    state = loop.receive_results(transition.state, settings, [ok(calls_made(transition)[0])]).state
    assert state.calls == 3
    transition = loop.receive_answer(state, settings, model_answer(call(1)))
    assert ending(transition) == ("budget", "the budget of 3 calls is used up")
    assert_whole(transition.state.messages)


def test_refusals_alone_do_not_end_a_run_that_has_budget_left() -> None:
    settings = RunSettings(agent_id="me", budgets=Budgets(calls=1), offered=frozenset())
    assert isinstance(loop.receive_answer(begun(settings), settings, model_answer(call())).action, AskModel)


def test_the_budget_of_steps() -> None:
    settings = RunSettings(agent_id="me", budgets=Budgets(steps=1))
    transition = loop.receive_answer(begun(settings), settings, model_answer(call()))
    transition = loop.receive_results(transition.state, settings, [ok(calls_made(transition)[0])])
    assert ending(transition) == ("budget", "the budget of 1 steps is used up")
    assert transition.state.step == 1


def test_repeated_failure_is_reported_and_ends_the_run_at_the_limit() -> None:
    settings = RunSettings(agent_id="me", budgets=Budgets(same_failures=3))
    state = begun(settings)
    contents = []
    transition = Transition(state, AskModel(messages=()))
    for _ in range(3):
        transition = loop.receive_answer(transition.state, settings, model_answer(call(1)))
        made = calls_made(transition)[0]
        transition = loop.receive_results(transition.state, settings, [ok(made, "no", is_error=True)])
        last = transition.state.messages[-1]
        assert isinstance(last, ToolMessage)
        contents.append(last.content)
    note = "[This very call has now failed 2 times. Do something else.]"
    assert contents == ["no", f"no\n{note}", "no"]
    assert ending(transition) == ("loop", "the same call of look failed 3 times in a row")


@pytest.mark.parametrize("between", ["success", "other arguments", "other name"])
def test_events_that_reset_the_count_of_failures(between: str) -> None:
    settings = RunSettings(agent_id="me", budgets=Budgets(same_failures=2))
    other = {"success": call(1), "other arguments": call(2), "other name": call(1, name="write")}[between]
    state = begun(settings)
    for part, failed in ((call(1), True), (other, between != "success"), (call(1), True)):
        transition = loop.receive_answer(state, settings, model_answer(part))
        made = calls_made(transition)[0]
        transition = loop.receive_results(transition.state, settings, [ok(made, "no", is_error=failed)])
        state = transition.state
    assert isinstance(transition.action, AskModel) is (between == "success")


def test_a_person_chooses_when_the_model_cannot() -> None:
    options = (call(1), call(2))
    transition = loop.receive_answer(begun(), RULES_OF_ONE, model_answer(TextPart("?"), options=options))
    assert transition.action == Choose(options, "?")
    unasked = loop.receive_answer(begun(), RULES_OF_ONE, model_answer(options=options))
    assert unasked.action == Choose(options, "Which of these calls is meant?")
    state = transition.state

    picked = loop.receive_choice(state, RULES_OF_ONE, call(2))
    assert [made.id for made in calls_made(picked)] == ["me-1"]
    last = picked.state.messages[-1]
    assert isinstance(last, AssistantMessage)
    assert (last.parts[0], last.reason) == (TextPart("?"), "calls")
    assert picked.state.call_count == 1
    assert len(picked.state.messages) == len(state.messages)
    assert picked.state.chars == sum(map(message_chars, picked.state.messages))

    instead = loop.receive_choice(state, RULES_OF_ONE, "neither")
    assert isinstance(instead.action, AskModel)
    assert instead.state.messages[-1] == UserMessage("neither")
    nobody = loop.receive_choice(state, RULES_OF_ONE, None)
    assert ending(nobody) == ("undecided", "the model could not choose, and nobody chose for it")


def test_options_beside_calls_are_not_asked_about() -> None:
    transition = loop.receive_answer(begun(), RULES_OF_ONE, model_answer(call(1), options=(call(2),)))
    assert [made.arguments for made in calls_made(transition)] == [{"n": 1}]


def test_an_aborted_run_keeps_the_results_there_are() -> None:
    transition = loop.receive_answer(begun(), RULES_OF_ONE, model_answer(call(1), call(2)))
    first, second = calls_made(transition)
    aborted = loop.abort(transition.state, "cancelled", "it was cancelled", {first.id: ok(first)})
    assert ending(aborted) == ("cancelled", "it was cancelled")
    assert aborted.state.messages[-2:] == (
        ok(first),
        ToolMessage(second.id, "look", "look gave no result: it was cancelled.", is_error=True),
    )
    assert (aborted.state.pending, aborted.state.results) == ((), {})
    assert aborted.state.chars == sum(map(message_chars, aborted.state.messages))


def test_arguments_are_edited_in_the_answer_and_in_the_pending_call() -> None:
    transition = loop.receive_answer(begun(), RULES_OF_ONE, model_answer(TextPart("x"), call(1), call(2)))
    state = loop.replace_arguments(transition.state, "me-2", {"n": "edited, and longer"})
    assert [c.arguments for c in state.pending] == [{"n": 1}, {"n": "edited, and longer"}]
    last = state.messages[-1]
    assert isinstance(last, AssistantMessage)
    assert [c.arguments for c in last.calls] == [{"n": 1}, {"n": "edited, and longer"}]
    assert state.chars == sum(map(message_chars, state.messages)) > transition.state.chars


def test_edited_arguments_leave_the_messages_around_the_answer_alone() -> None:
    before, after = (UserMessage("a"), UserMessage("b")), (ok(call(2)), UserMessage("c"))
    answer = AssistantMessage((call(1), call(2)))
    state = ConversationState(messages=(*before, answer, *after), pending=(call(1),))
    edited = loop.replace_arguments(state, "model-1", {"n": "edited"})
    assert (edited.messages[:2], edited.messages[3:]) == (before, after)
    assert calls_of(edited.messages[2]) == (CallPart("model-1", "look", {"n": "edited"}), call(2))


def test_arguments_that_are_no_json_are_counted_and_their_failures_too() -> None:
    """A person can edit anything in; the loop must not fail at it."""
    settings = RunSettings(agent_id="me", budgets=Budgets(same_failures=2))
    transition = Transition(begun(settings), AskModel(messages=()))
    odd = object()
    for _ in range(2):
        transition = loop.receive_answer(transition.state, settings, model_answer(call(1)))
        state = loop.replace_arguments(transition.state, calls_made(transition)[0].id, {"n": odd})
        assert state.chars == sum(map(message_chars, state.messages))
        failed = ok(calls_made(transition)[0], "no", is_error=True)
        transition = loop.receive_results(state, settings, [failed])
    assert ending(transition) == ("loop", "the same call of look failed 2 times in a row")


def test_edited_messages_move_the_marks_of_requests() -> None:
    state = ConversationState(
        messages=(UserMessage("a"), UserMessage("b"), UserMessage("c")), marks=(1, 2, 3)
    )
    shorter = loop.replace_messages(state, (UserMessage("a"), UserMessage("bb")))
    assert (shorter.marks, shorter.chars) == ((1, 2, 2), 3)
    longer = [UserMessage("x")] * 5
    assert loop.replace_messages(state, longer).marks == (1, 2, 3)
    assert loop.replace_messages(state, longer, asking=True).marks == (1, 2, 5)


def test_edited_messages_pair_calls_and_results() -> None:
    first, second = call(1), call(2)
    state = loop.replace_messages(
        ConversationState(),
        [
            ok(first),
            AssistantMessage((first, second)),
            ok(second),
            ok(second, "twice"),
            UserMessage("next"),
            ok(first, "late"),
            AssistantMessage((call(3),)),
        ],
    )
    assert state.messages == (
        AssistantMessage((first, second)),
        ok(second),
        ok(first, "look gave no result.", is_error=True),
        UserMessage("next"),
        AssistantMessage((call(3),)),
        ok(call(3), "look gave no result.", is_error=True),
    )


def test_rewinding_to_a_request() -> None:
    state = ConversationState(
        messages=(UserMessage("a"), UserMessage("bb"), UserMessage("ccc")),
        chars=6,
        marks=(1, 2, 3),
        pending=(call(),),
        results={"x": ok(call())},
    )
    earlier = loop.rewind(state, 2)
    assert (earlier.messages, earlier.chars, earlier.marks) == (state.messages[:2], 3, (1,))
    assert (earlier.pending, earlier.results, earlier.step) == ((), {}, 1)


# ---- the model's window


def test_sizes_count_text_arguments_and_pictures() -> None:
    picture = ImagePart("image/png", "abc")
    assert message_chars(UserMessage("four", images=(picture,))) == 4 + 4_500
    assert message_chars(ToolMessage("i", "look", "four", images=(picture, picture))) == 4 + 9_000
    parts = (TextPart("four"), CallPart("", "look", {"n": 1}))
    assert message_chars(AssistantMessage(parts)) == 4 + len("look") + len('{"n":1}')


def conversation(*contents: str, **fields: Any) -> list[Message]:
    messages: list[Message] = [UserMessage("go")]
    for number, content in enumerate(contents):
        part = call(number)
        messages += [AssistantMessage((part,)), ok(part, content, **fields)]
    return messages


def test_trimming_takes_the_oldest_results_and_no_more_than_needed() -> None:
    messages = [*conversation("a" * 1_000, "b" * 1_000, "c" * 399), AssistantMessage((TextPart("so"),))]
    size = sum(map(message_chars, messages))
    assert loop.trim(messages, size) == loop.TrimResult(messages=tuple(messages))
    one = loop.trim(messages, size - 1)
    assert one.call_ids == ("model-0",)
    excerpt = one.messages[2]
    assert isinstance(excerpt, ToolMessage)
    assert excerpt.content == (
        "a" * 120 + "\n[1000 characters in all; the rest was taken out to make room: "
        "make the call again if it is needed.]"
    )
    assert excerpt.trimmed_chars == 880
    assert one.chars == size - sum(map(message_chars, one.messages))
    everything = loop.trim(messages, 0)
    assert everything.call_ids == ("model-0", "model-1"), "short results stay"


def test_results_that_the_model_has_not_read_stay() -> None:
    messages = conversation("a" * 400, "b" * 1_000)
    assert loop.trim(messages, 0).call_ids == ("model-0",)
    assert loop.trim([ok(call(), "a" * 1_000)], 0).call_ids == (), "there is no answer at all"


def test_a_trimmed_result_says_how_to_read_it_again() -> None:
    messages = [
        *conversation("a" * 1_000, ref="r1", images=(ImagePart("image/png", "x"),) * 2, trimmed_chars=5),
        AssistantMessage((TextPart("so"),)),
    ]
    excerpt = loop.trim(messages, 0).messages[2]
    assert isinstance(excerpt, ToolMessage)
    assert "1000 characters and 2 pictures in all" in excerpt.content
    assert "read_result with ref='r1' gives it again" in excerpt.content
    assert excerpt.images == ()
    assert excerpt.trimmed_chars == 885


def window_rules(tokens: int, overhead: int = 0) -> RunSettings:
    return RunSettings(agent_id="me", window_tokens=tokens, overhead_chars=overhead)


def test_a_conversation_is_trimmed_above_the_upper_share_down_to_the_lower_one() -> None:
    messages = (*conversation(*["a" * 600] * 10), UserMessage("next"))
    state = ConversationState(messages=messages, chars=sum(map(message_chars, messages)), tokens_per_char=1.0)
    fits = loop.begin(state, window_rules(int(state.chars / loop.TRIM_ABOVE) + 1), None)
    assert fits.action == AskModel(messages=messages)
    window = int(state.chars / loop.TRIM_ABOVE) - 1
    trimmed = loop.begin(state, window_rules(window), None)
    assert isinstance(trimmed.action, AskModel)
    assert trimmed.action.trimmed
    assert trimmed.action.trimmed_chars == state.chars - trimmed.state.chars
    assert trimmed.state.chars == sum(map(message_chars, trimmed.state.messages))
    assert window * loop.TRIM_TO - 600 < trimmed.state.chars <= window * loop.TRIM_TO
    with_overhead = loop.begin(state, window_rules(window, overhead=1_000), None)
    assert with_overhead.state.chars <= window * loop.TRIM_TO - 1_000


@pytest.mark.parametrize(("chars", "trimmed"), [(850, ()), (851, ("model-0",))])
def test_trimming_starts_right_above_the_upper_share(chars: int, trimmed: tuple[str, ...]) -> None:
    messages = (*conversation("a" * 600), AssistantMessage((TextPart("so"),)))
    rest = chars - sum(map(message_chars, messages))
    state = ConversationState(messages=(*messages, UserMessage("b" * rest)), chars=chars, tokens_per_char=1.0)
    action = loop.begin(state, window_rules(1_000), None).action
    assert isinstance(action, AskModel)
    assert action.trimmed == trimmed


def test_until_a_provider_has_counted_three_characters_make_a_token() -> None:
    assert ending(loop.begin(ConversationState(), window_rules(100), UserMessage("x" * 303))) == (
        "context",
        "about 101 tokens do not fit the 100 that the model reads",
    )
    assert isinstance(
        loop.begin(ConversationState(), window_rules(100), UserMessage("x" * 302)).action, AskModel
    )


def test_a_request_over_the_window_ends_the_run() -> None:
    state = ConversationState(tokens_per_char=1.0)
    assert isinstance(loop.begin(state, window_rules(100), UserMessage("x" * 100)).action, AskModel)
    transition = loop.begin(state, window_rules(100), UserMessage("x" * 101))
    assert ending(transition) == ("context", "about 101 tokens do not fit the 100 that the model reads")
    assert transition.state.steps == 0
    assert ending(loop.begin(state, window_rules(100, overhead=1), UserMessage("x" * 100)))[0] == "context"


@pytest.mark.parametrize(
    ("chars", "overhead", "tokens", "ratio"),
    [
        (1_000, 0, 500, 0.5),
        (500, 500, 500, 0.5),
        (999, 0, 500, loop.DEFAULT_TOKENS_PER_CHAR),
        (1_000, 0, 0, loop.DEFAULT_TOKENS_PER_CHAR),
        (1_000, 0, 1, 0.1),
        (1_000, 0, 50, 0.1),
        (1_000, 0, 5_000, 1.0),
    ],
)
def test_the_ratio_follows_the_provider_within_reason(
    chars: int, overhead: int, tokens: int, ratio: float
) -> None:
    settings = RunSettings(agent_id="me", overhead_chars=overhead)
    state = begun(settings, prompt="x" * chars)
    answer = model_answer(TextPart("hi"), usage=Usage(input_tokens=tokens))
    assert loop.receive_answer(state, settings, answer).state.tokens_per_char == pytest.approx(ratio)
