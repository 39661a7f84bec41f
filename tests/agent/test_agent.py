from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.budgets import Budgets
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.run import BeforeCall, BeforeRequest, StepChoice
from aisotools.core.events import (
    AgentFinished,
    ContextTrimmed,
    ConversationEdited,
    ModelAnswered,
    ModelRequested,
    ModelRetried,
    ModelStreamed,
    StepTaken,
)
from aisotools.core.exceptions import ModelError, SessionClosed, UnknownTool, UsageError
from aisotools.core.messages import (
    AssistantMessage,
    CallDone,
    CallPart,
    Finished,
    FinishReason,
    Message,
    Model,
    ModelEvent,
    PartDone,
    Proposal,
    TextDelta,
    TextPart,
    ThinkingDelta,
    ToolMessage,
    Usage,
    UserMessage,
)
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Approval, ApprovalRequest, Effect, ToolDefinition, ToolResult
from aisotools.policy.approvers import AllowAll, DenyAll, ScriptedApprover
from aisotools.session.ledger import read
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from tests.agent.rules import assert_no_orphans, assert_sound
from tests.conftest import OpenSession
from tests.waiting import LoopClock

READS = Effect.READ_ONLY


def look(name: str = "look", **given: Any) -> MockTool:
    return MockTool(name, effect=READS, **given)


class EventModel:
    """Gives prepared events, one list for each request; an exception among them is raised."""

    def __init__(self, *answers: Sequence[ModelEvent | Exception], name: str = "events") -> None:
        self.name = name
        self._answers = list(answers)
        self.closed = 0

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        try:
            for event in self._answers.pop(0):
                await asyncio.sleep(0)
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed += 1


def done(text: str = "done", reason: FinishReason = "stop") -> list[ModelEvent]:
    return [TextDelta(text), Finished(reason)]


async def test_answers(open_session: OpenSession) -> None:
    session = open_session(look())
    agent = Agent(ScriptedModel(["Hello."]), session)
    result = await agent.run("Hi.")
    assert (result.text, result.outcome, result.ok, str(result)) == ("Hello.", "answered", True, "Hello.")
    assert (result.steps, result.calls) == (1, 0)
    assert agent.messages == (
        UserMessage("Hi."),
        AssistantMessage((TextPart("Hello."),), model="scripted"),
    )
    assert_sound(agent)


async def test_makes_calls_through_the_gate(open_session: OpenSession) -> None:
    tool = look(result=lambda arguments, _: f"saw {arguments['what']}")
    model = ScriptedModel([("look", {"what": "a"}), "It saw a."])
    agent = Agent(model, open_session(tool), "Be short.")
    result = await agent.run("Look.")
    assert result.text == "It saw a."
    assert tool.calls == [{"what": "a"}]
    context = tool.contexts[0]
    assert context.agent_id == agent.agent_id
    assert context.turn_id.startswith(agent.agent_id)
    second = model.requests[1]
    assert second.instructions == "Be short."
    assert [tool.name for tool in second.tools] == ["look"]
    assert second.messages[-1] == ToolMessage(context.call_id, "look", "saw a")
    assert_sound(agent)


async def test_calls_of_one_answer_are_made_together(open_session: OpenSession) -> None:
    running = 0
    most = 0
    both = asyncio.Barrier(2)

    async def slow(arguments: Mapping[str, Any], context: ToolContext) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await both.wait()
        running -= 1
        return str(arguments["n"])

    agent = Agent(
        ScriptedModel([["Both:", ("look", {"n": 1}), ("look", {"n": 2})], "ok"]),
        open_session(look(result=slow)),
    )
    result = await agent.run("go")
    assert most == 2
    assert [m.content for m in result.messages if isinstance(m, ToolMessage)] == ["1", "2"]
    assert_sound(agent)


async def test_the_conversation_goes_on(open_session: OpenSession) -> None:
    model = ScriptedModel(["One.", "Two."])
    agent = Agent(model, open_session(look()))
    await agent.run("first")
    result = await agent.run("second")
    assert [m.text for m in model.requests[1].messages if not isinstance(m, ToolMessage)] == [
        "first",
        "One.",
        "second",
    ]
    assert result.messages == agent.messages[2:]
    assert result.steps == 1
    assert_sound(agent)


async def test_a_model_asks_like_a_model(open_session: OpenSession) -> None:
    approver = ScriptedApprover(["approve", Approval("deny", reason="Not today.")])
    agent = Agent(
        ScriptedModel([("write", {}), ("write", {}), "ok"]),
        open_session(MockTool("write"), approver=approver),
    )
    result = await agent.run("go")
    assert [request.call.origin for request in approver.requests] == ["model", "model"]
    answers = [m for m in result.messages if isinstance(m, ToolMessage)]
    assert [m.is_error for m in answers] == [False, True]
    assert "Not today" in answers[1].content


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (("lok", {}), "look"),
        (("look", {"n": "many"}), "n"),
        ([CallPart("", "look", {}, flaw="The arguments are no valid JSON: {")], "no valid JSON"),
    ],
    ids=["unknown tool", "wrong arguments", "no JSON"],
)
async def test_the_model_can_mend_its_calls(open_session: OpenSession, turn: Any, message: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    model = ScriptedModel([turn, ("look", {"n": 1}), "ok"])
    agent = Agent(model, open_session(look(parameters=schema)))
    result = await agent.run("go")
    assert result.ok
    answer = model.requests[1].messages[-1]
    assert isinstance(answer, ToolMessage)
    assert answer.is_error
    assert message in answer.content
    assert_sound(agent)


async def test_going_in_circles_ends(open_session: OpenSession) -> None:
    tool = look(raises=ValueError("no such file"))
    model = ScriptedModel([("look", {"path": "x"})] * 10)
    agent = Agent(model, open_session(tool))
    result = await agent.run("go")
    assert result.outcome == "loop"
    assert "look" in result.reason
    assert len(tool.calls) == 3
    warned = model.requests[2].messages[-1]
    assert isinstance(warned, ToolMessage)
    assert "Do something else" in warned.content
    assert_sound(agent)


async def test_a_failing_test_between_edits_is_no_circle(open_session: OpenSession) -> None:
    turns: list[Any] = [("check", {}), ("edit", {})] * 5
    agent = Agent(
        ScriptedModel([*turns, "ok"]),
        open_session(look("check", result=ToolResult.error("1 failed")), look("edit")),
    )
    assert (await agent.run("go")).ok


class TestBudgets:
    async def test_steps(self, open_session: OpenSession) -> None:
        agent = Agent(ScriptedModel([("look", {})] * 9), open_session(look()), budgets=Budgets(steps=3))
        result = await agent.run("go")
        assert (result.outcome, result.steps, result.calls) == ("budget", 3, 3)
        assert "3 steps" in result.reason
        assert_sound(agent)

    async def test_calls(self, open_session: OpenSession) -> None:
        tool = look()
        script = ScriptedModel([[("look", {"n": n}) for n in range(4)], ("look", {}), "never"])
        agent = Agent(script, open_session(tool), budgets=Budgets(calls=3))
        result = await agent.run("go")
        assert (result.outcome, len(tool.calls), result.calls) == ("budget", 3, 3)
        refused = script.requests[1].messages[-1]
        assert isinstance(refused, ToolMessage)
        assert "budget of 3 calls" in refused.content
        assert_sound(agent)

    async def test_tokens(self, open_session: OpenSession) -> None:
        call: list[ModelEvent] = [
            CallDone(CallPart("", "look", {})),
            Usage(input_tokens=60, output_tokens=1),
            Finished("calls"),
        ]
        agent = Agent(EventModel(*[call] * 9), open_session(look()), budgets=Budgets(tokens=100))
        result = await agent.run("go")
        assert (result.outcome, result.steps, result.usage.tokens) == ("budget", 2, 122)

    async def test_cost(self, open_session: OpenSession) -> None:
        call: list[ModelEvent] = [CallDone(CallPart("", "look", {})), Usage(cost=0.3), Finished("calls")]
        agent = Agent(EventModel(*[call] * 9), open_session(look()), budgets=Budgets(cost=0.5))
        result = await agent.run("go")
        assert (result.outcome, result.steps, result.usage.cost) == ("budget", 2, 0.6)

    async def test_an_unknown_price_keeps_no_budget(self, open_session: OpenSession) -> None:
        call: list[ModelEvent] = [
            CallDone(CallPart("", "look", {})),
            Usage(input_tokens=1),
            Finished("calls"),
        ]
        agent = Agent(EventModel(*[call] * 9), open_session(look()), budgets=Budgets(cost=0.5))
        result = await agent.run("go")
        assert (result.outcome, result.steps) == ("budget", 1)
        assert "price" in result.reason

    async def test_wall_clock_ends_a_call(self, open_session: OpenSession) -> None:
        async def sleeps(*_: object) -> str:
            await asyncio.Event().wait()
            return ""

        agent = Agent(
            ScriptedModel([("look", {}), "ok"]),
            open_session(look(result=sleeps)),
            budgets=Budgets(wall_s=0.1),
        )
        result = await agent.run("go")
        assert (result.outcome, result.reason) == ("budget", "the budget of 0.1 s is used up")
        assert_sound(agent)

    async def test_wall_clock_ends_an_answer(self, open_session: OpenSession) -> None:
        agent = Agent(ScriptedModel(["ok"], delay_s=30), open_session(look()), budgets=Budgets(wall_s=0.05))
        assert (await agent.run("go")).outcome == "budget"

    async def test_working_time_leaves_people_out(self, open_session: OpenSession) -> None:
        clock = LoopClock()

        class Slow:
            async def ask(self, request: ApprovalRequest) -> Approval:
                await clock.advance(100)
                return Approval("approve")

        agent = Agent(
            ScriptedModel([("write", {}), "ok"]),
            open_session(MockTool("write"), approver=Slow()),
            budgets=Budgets(working_s=50),
        )
        result = await agent.run("go")
        assert result.ok
        assert result.duration_s > 100
        assert result.working_s < 50

    async def test_working_time_ends_a_call(self, open_session: OpenSession) -> None:
        async def sleeps(*_: object) -> str:
            await asyncio.Event().wait()
            return ""

        agent = Agent(
            ScriptedModel([("write", {}), "ok"]),
            open_session(MockTool("write", result=sleeps), approver=AllowAll()),
            budgets=Budgets(working_s=0.1),
        )
        result = await agent.run("go")
        assert result.outcome == "budget"
        assert_sound(agent)

    @pytest.mark.parametrize("wrong", [{"steps": 0}, {"cost": -1}, {"wall_s": "1"}, {"retries": None}])
    def test_refuses(self, wrong: Any) -> None:
        with pytest.raises(UsageError, match=next(iter(wrong))):
            Budgets(**wrong)


class TestContext:
    async def test_old_results_are_trimmed_with_a_note(self, open_session: OpenSession) -> None:
        tool = look(result="x" * 3_000)
        model = ScriptedModel([("look", {"n": n}) for n in range(8)] + ["ok"], context_tokens=4_000)
        session = open_session(tool)
        agent = Agent(model, session)
        result = await agent.run("go")
        assert result.ok
        trimmed = [event for event in session.events if isinstance(event, ContextTrimmed)]
        assert trimmed
        for request in model.requests:
            assert sum(len(getattr(m, "content", "")) for m in request.messages) < 12_000
        shown = model.requests[-1].messages
        first = next(m for m in shown if isinstance(m, ToolMessage))
        assert first.trimmed_chars > 0
        assert "3000 characters" in first.content
        last = shown[-1]
        assert isinstance(last, ToolMessage)
        assert last.content == "x" * 3_000

    async def test_trimmed_results_can_be_read_again(self, open_session: OpenSession) -> None:
        def read_again(messages: Sequence[Message]) -> tuple[str, dict[str, str]]:
            gone = next(m for m in messages if isinstance(m, ToolMessage))
            assert f"read_result with ref={gone.ref!r}" in gone.content
            return "read_result", {"ref": gone.ref}

        session = open_session()  # the built-in tools, and this one
        session.registry.register(look(result=[f"{n} " * 1_500 for n in range(8)]))
        turns: list[Any] = [("look", {"n": n}) for n in range(8)]
        model = ScriptedModel([*turns, read_again, "ok"], context_tokens=8_000)
        result = await Agent(model, session).run("go")
        assert result.ok
        again = result.messages[-2]
        assert isinstance(again, ToolMessage)
        assert not again.is_error
        assert "0 0 0" in again.content

    async def test_a_conversation_that_cannot_fit_ends_the_run(self, open_session: OpenSession) -> None:
        agent = Agent(ScriptedModel(["ok"], context_tokens=100), open_session(look()))
        result = await agent.run("x" * 5_000)
        assert result.outcome == "context"
        assert "100" in result.reason

    async def test_images_reach_the_model(self, open_session: OpenSession) -> None:
        shown = ToolResult(content="a plot", data={"image/png": "aGk=", "text/html": "<b>"})
        model = ScriptedModel([("look", {}), "ok"])
        await Agent(model, open_session(look(result=shown))).run("go")
        message = model.requests[1].messages[-1]
        assert isinstance(message, ToolMessage)
        assert [(image.mime, image.data) for image in message.images] == [("image/png", "aGk=")]


class TestFaults:
    async def test_a_failed_request_is_tried_again(self, open_session: OpenSession) -> None:
        busy = ModelError("429", retryable=True, retry_after_s=0.01)
        model = EventModel([TextDelta("half"), busy], [busy], done("whole"))
        session = open_session(look())
        agent = Agent(model, session)
        result = await agent.run("go")
        assert result.text == "whole"
        waits = [event.wait_s for event in session.events if isinstance(event, ModelRetried)]
        assert waits == [0.01, 0.01]
        assert model.closed == 3
        assert_sound(agent)

    async def test_tries_are_bounded(self, open_session: OpenSession) -> None:
        busy = ModelError("HTTP 500", retryable=True)
        model = EventModel(*[[busy]] * 9)
        agent = Agent(model, open_session(look()), budgets=Budgets(retries=2, retry_wait_s=0.001))
        result = await agent.run("go")
        assert (result.outcome, result.reason, model.closed) == ("failed", "HTTP 500", 3)
        assert str(result) == "[failed: HTTP 500]"
        assert_sound(agent)

    async def test_a_long_wait_is_not_waited_for(self, open_session: OpenSession) -> None:
        model = EventModel([ModelError("come back tomorrow", retryable=True, retry_after_s=86_400)])
        result = await Agent(model, open_session(look())).run("go")
        assert (result.outcome, result.reason) == ("failed", "come back tomorrow")

    @pytest.mark.parametrize(
        ("events", "outcome", "message"),
        [
            ([TextDelta("half")], "failed", "cut"),
            ([ModelError("no key")], "failed", "no key"),
            ([ZeroDivisionError("a bug")], "failed", "ZeroDivisionError"),
            ([TextDelta("hm"), Finished("unknown", detail="banana")], "failed", "banana"),
            ([TextDelta("hm"), Finished("filtered")], "filtered", "withheld"),
            ([TextDelta("hm"), Finished("length")], "length", "cut"),
            ([Finished("undecided")], "undecided", "choose"),
            ([3], "failed", "int"),
        ],
    )
    async def test_bad_answers_end_clearly(
        self, open_session: OpenSession, events: Any, outcome: str, message: str
    ) -> None:
        agent = Agent(EventModel(events), open_session(look()), budgets=Budgets(retries=0))
        result = await agent.run("go")
        assert result.outcome == outcome
        assert message in result.reason
        assert_sound(agent)

    @pytest.mark.parametrize(
        "event",
        [
            CallDone(CallPart("1", "look", {"a": "\ud800"})),
            CallDone(CallPart("1", "lo\ud800ok" + "k" * 100_000, {})),
            CallDone(CallPart("1", "look", {"a": object()})),
            CallDone(CallPart("1", "look", {1: 2})),  # type: ignore[dict-item]  # the wrong type is the attack
            CallDone(CallPart("1", "look", "text")),  # type: ignore[arg-type]  # likewise
            CallDone(CallPart(None, None, None)),  # type: ignore[arg-type]  # likewise
            PartDone(TextPart("\ud800", opaque={"x": object()})),
            TextDelta("a\ud800"),
            TextDelta(None),  # type: ignore[arg-type]  # likewise
            Finished("weird"),  # type: ignore[arg-type]  # likewise
        ],
        ids=lambda event: type(event).__name__,
    )
    async def test_malformed_events_of_a_model_leave_the_record_sound(
        self, open_session: OpenSession, event: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        session = open_session(look())
        agent = Agent(EventModel([event, Finished("calls")], done()), session)
        result = await agent.run("go")
        assert_sound(agent)
        assert result.text.encode() is not None
        await session.close()
        assert session.log_path is not None
        kinds = [record["kind"] for record in read(session.log_path)]
        assert kinds.count("call_requested") == kinds.count("call_finished") == result.calls
        assert kinds[-2:] == ["agent_finished", "session_ended"]
        assert not [one for one in caplog.records if "listener failed" in one.message]

    async def test_calls_of_an_answer_that_ended_oddly_are_not_made(self, open_session: OpenSession) -> None:
        tool = look()
        events: list[ModelEvent] = [CallDone(CallPart("1", "look", {})), Finished("unknown", detail="odd")]
        agent = Agent(EventModel(events), open_session(tool))
        result = await agent.run("go")
        assert (result.outcome, tool.calls) == ("failed", [])
        assert_sound(agent)

    async def test_an_endless_answer_is_cut_off(self, open_session: OpenSession) -> None:
        events: list[ModelEvent] = [TextDelta("x" * 1_000_000)] * 9
        result = await Agent(EventModel(events), open_session(look())).run("go")
        assert result.outcome == "failed"
        assert "characters" in result.reason

    async def test_ids_of_a_model_are_not_relied_on(self, open_session: OpenSession) -> None:
        tool = look()
        twice: list[ModelEvent] = [
            CallDone(CallPart("same", "look", {"n": 1})),
            CallDone(CallPart("same", "look", {"n": 2})),
            Finished("calls"),
        ]
        agent = Agent(EventModel(twice, twice, done()), open_session(tool))
        assert (await agent.run("go")).ok
        assert len(tool.calls) == 4
        assert_sound(agent)

    async def test_approval_that_times_out_is_reported_to_the_model(self, open_session: OpenSession) -> None:
        class Nobody:
            async def ask(self, request: ApprovalRequest) -> Approval:
                return Approval("timeout", reason="Nobody answered within 300 s.")

        model = ScriptedModel([("write", {}), "Then not."])
        agent = Agent(model, open_session(MockTool("write"), approver=Nobody()))
        result = await agent.run("go")
        assert result.text == "Then not."
        message = model.requests[1].messages[-1]
        assert isinstance(message, ToolMessage)
        assert "nobody answered in time" in message.content
        assert_sound(agent)


class Steps:
    """A stepper with prepared choices."""

    def __init__(self, *choices: StepChoice) -> None:
        self._choices = list(choices)
        self.moments: list[BeforeRequest | BeforeCall] = []

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        self.moments.append(moment)
        return self._choices.pop(0) if self._choices else StepChoice()


class TestStepping:
    async def test_pauses_before_each_request_and_call(self, open_session: OpenSession) -> None:
        steps = Steps()
        script = ScriptedModel([[("look", {"n": 1}), ("look", {"n": 2})], "ok"])
        agent = Agent(script, open_session(look()), stepper=steps)
        assert (await agent.run("go")).ok
        kinds = [type(moment).__name__ for moment in steps.moments]
        assert kinds == ["BeforeRequest", "BeforeCall", "BeforeCall", "BeforeRequest"]
        assert_sound(agent)

    async def test_edit_skip_answer(self, open_session: OpenSession) -> None:
        tool = look()
        steps = Steps(
            StepChoice(),
            StepChoice("edit", arguments={"n": 10}),
            StepChoice("skip"),
            StepChoice("answer", text="as if"),
        )
        calls = [("look", {"n": n}) for n in (1, 2, 3)]
        session = open_session(tool)
        agent = Agent(ScriptedModel([calls, "ok"]), session, stepper=steps)
        result = await agent.run("go")
        assert tool.calls == [{"n": 10}]
        contents = [m.content for m in result.messages if isinstance(m, ToolMessage)]
        assert contents[0] == "done"
        assert "left it out" in contents[1]
        assert contents[2] == "as if"
        answer = result.messages[1]
        assert isinstance(answer, AssistantMessage)
        assert answer.calls[0].arguments == {"n": 10}
        taken = [event.action for event in session.events if isinstance(event, StepTaken)]
        assert taken == ["edit", "skip", "answer"]
        assert_sound(agent)

    async def test_answer_in_the_place_of_the_model(self, open_session: OpenSession) -> None:
        model = ScriptedModel(["never"])
        steps = Steps(StepChoice("answer", text="I say."))
        agent = Agent(model, open_session(look()), stepper=steps)
        result = await agent.run("go")
        assert (result.text, model.requests) == ("I say.", [])
        assert_sound(agent)

    async def test_stepper_can_edit_the_messages(self, open_session: OpenSession) -> None:
        model = ScriptedModel(["ok"])
        session = open_session(look())
        steps = Steps(StepChoice("edit", messages=[UserMessage("something else")]))
        agent = Agent(model, session, stepper=steps)
        await agent.run("go")
        assert model.requests[0].messages == (UserMessage("something else"),)
        assert any(isinstance(event, ConversationEdited) for event in session.events)
        assert_sound(agent)

    @pytest.mark.parametrize("after", [0, 1, 2, 3])
    async def test_stop_anywhere(self, open_session: OpenSession, after: int) -> None:
        tool = look()
        steps = Steps(*[StepChoice()] * after, StepChoice("stop"))
        script = ScriptedModel([[("look", {"n": 1}), ("look", {"n": 2})], "ok"])
        agent = Agent(script, open_session(tool), stepper=steps)
        result = await agent.run("go")
        assert result.outcome == "stopped"
        assert len(tool.calls) == max(0, after - 1)
        assert_sound(agent)


class TestChoosing:
    options = (CallPart("", "look", {"n": 1}), CallPart("", "look", {"n": 2}))

    def model(self) -> EventModel:
        unsure: list[ModelEvent] = [TextDelta("Which?"), Proposal(self.options), Finished("undecided")]
        return EventModel(unsure, done())

    async def test_nobody_chooses(self, open_session: OpenSession) -> None:
        agent = Agent(self.model(), open_session(look()))
        result = await agent.run("go")
        assert (result.outcome, result.text, result.options) == ("undecided", "Which?", self.options)
        assert_sound(agent)

    async def test_somebody_chooses(self, open_session: OpenSession) -> None:
        class Second:
            async def choose(self, question: str, options: Sequence[CallPart]) -> CallPart:
                assert question == "Which?"
                return options[1]

        tool = look()
        session = open_session(tool)
        agent = Agent(self.model(), session, chooser=Second())
        assert (await agent.run("go")).ok
        assert tool.calls == [{"n": 2}]
        answered = [event for event in session.events if isinstance(event, ModelAnswered)]
        assert [len(event.message.calls) for event in answered] == [1, 0]
        assert_sound(agent)

    async def test_somebody_says_something_instead(self, open_session: OpenSession) -> None:
        class Neither:
            async def choose(self, question: str, options: Sequence[CallPart]) -> str:
                return "Neither."

        agent = Agent(self.model(), open_session(look()), chooser=Neither())
        result = await agent.run("go")
        assert result.ok
        assert UserMessage("Neither.") in result.messages
        assert_sound(agent)


class TestInTheBackground:
    async def test_live_events(self, open_session: OpenSession) -> None:
        agent = Agent(ScriptedModel([("look", {}), "ok"]), open_session(look()))
        run = agent.start("go")
        kinds = [event.kind async for event in run.events]
        assert kinds.index("agent_started") < kinds.index("call_started") < kinds.index("agent_finished")
        assert "model_streamed" in kinds
        assert (await run).ok
        assert run.done
        assert run.result is not None
        assert run.result.text == "ok"

    async def test_pieces_are_not_recorded(self, open_session: OpenSession) -> None:
        session = open_session(look())
        await Agent(ScriptedModel(["ok"]), session).run("go")
        assert not any(isinstance(event, ModelStreamed) for event in session.events)

    async def test_cancel(self, open_session: OpenSession) -> None:
        async def sleeps(*_: object) -> str:
            await asyncio.Event().wait()
            return ""

        session = open_session(look(result=sleeps))
        agent = Agent(ScriptedModel([("look", {}), "ok"]), session)
        before = asyncio.all_tasks()
        run = agent.start("go")
        async for event in run.events:
            if event.kind == "call_started":
                break
        run.cancel()
        result = await run
        assert result.outcome == "cancelled"
        assert_sound(agent)
        await assert_no_orphans(before)
        ended = [event for event in session.events if isinstance(event, AgentFinished)]
        assert [event.outcome for event in ended] == ["cancelled"]

    async def test_cancelled_before_it_began(self, open_session: OpenSession) -> None:
        run = Agent(ScriptedModel(["ok"]), open_session(look())).start("go")
        run.cancel()
        assert (await run).outcome == "cancelled"

    async def test_a_waiting_caller_may_stop_waiting(self, open_session: OpenSession) -> None:
        release = asyncio.Event()

        async def waits(*_: object) -> str:
            await release.wait()
            return "done"

        run = Agent(ScriptedModel([("look", {}), "ok"]), open_session(look(result=waits))).start("go")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run, 0.01)
        release.set()
        assert (await run).ok

    async def test_one_run_at_a_time(self, open_session: OpenSession) -> None:
        agent = Agent(ScriptedModel(["ok"], delay_s=0.05), open_session(look()))
        run = agent.start("go")
        with pytest.raises(UsageError, match="under way"):
            agent.start("again")
        with pytest.raises(UsageError, match="under way"):
            await agent.run("again")
        assert (await run).ok


async def test_a_listener_that_fails_stops_nothing(open_session: OpenSession) -> None:
    agent = Agent(ScriptedModel(["ok"]), open_session(look()))

    def fails(event: object) -> None:
        raise ValueError("a broken view")

    agent.subscribe(fails)
    assert (await agent.run("go")).ok


async def test_thoughts_are_kept(open_session: OpenSession) -> None:
    model = EventModel([ThinkingDelta("Hm"), ThinkingDelta("m."), TextDelta("Yes."), Finished("stop")])
    result = await Agent(model, open_session(look())).run("go")
    assert result.text == "Yes."
    answer = result.messages[-1]
    assert isinstance(answer, AssistantMessage)
    assert [(part.kind, getattr(part, "text", "")) for part in answer.parts] == [
        ("thinking", "Hmm."),
        ("text", "Yes."),
    ]


async def test_only_some_of_the_tools(open_session: OpenSession) -> None:
    other = look("other")
    model = ScriptedModel([("other", {}), "ok"])
    agent = Agent(model, open_session(look(), other), tools=["look"])
    await agent.run("go")
    assert [tool.name for tool in model.requests[0].tools] == ["look"]
    assert other.calls == []
    refused = model.requests[1].messages[-1]
    assert isinstance(refused, ToolMessage)
    assert "not one of your tools" in refused.content
    with pytest.raises(UnknownTool):
        Agent(model, open_session(look()), tools=["nothing"])


@pytest.mark.parametrize(
    "make",
    [
        lambda session: Agent(object(), session),  # type: ignore[arg-type]  # the wrong type is the test
        lambda session: Agent("nonsense", session),
        lambda session: Agent(ScriptedModel(["a"]), "here"),  # type: ignore[arg-type]  # the same
        lambda session: Agent(ScriptedModel(["a"]), session, budgets=3),  # type: ignore[arg-type]  # the same
    ],
)
def test_refuses_what_it_cannot_be_made_of(
    open_session: OpenSession, make: Callable[[Session], Agent]
) -> None:
    with pytest.raises(UsageError):
        make(open_session(look()))


async def test_a_closed_session_is_the_programs_mistake(open_session: OpenSession) -> None:
    session = open_session(look())
    agent = Agent(ScriptedModel(["ok"]), session)
    await session.close()
    with pytest.raises(SessionClosed):
        await agent.run("go")


async def test_nothing_to_answer(open_session: OpenSession) -> None:
    agent = Agent(ScriptedModel(["ok"]), open_session(look()))
    result = await agent.run()
    assert (result.outcome, "prompt" in result.reason) == ("failed", True)


async def test_goes_on_without_a_prompt(open_session: OpenSession) -> None:
    agent = Agent(ScriptedModel([("look", {}), "ok"]), open_session(look()), budgets=Budgets(steps=1))
    assert (await agent.run("go")).outcome == "budget"
    assert (await agent.run()).text == "ok"
    assert_sound(agent)


async def test_denied_by_everybody(open_session: OpenSession) -> None:
    tool = MockTool("write")
    agent = Agent(ScriptedModel([("write", {}), "ok"]), open_session(tool, approver=DenyAll()))
    assert (await agent.run("go")).ok
    assert tool.calls == []


def test_is_a_model() -> None:
    assert isinstance(ScriptedModel(["a"]), Model)
    assert isinstance(EventModel(), Model)


async def test_steps_are_numbered_in_the_record(open_session: OpenSession) -> None:
    session = open_session(look())
    agent = Agent(ScriptedModel([("look", {}), "ok", "again"]), session)
    await agent.run("go")
    await agent.run("more")
    assert [event.step for event in session.events if isinstance(event, ModelRequested)] == [1, 2, 3]
    assert agent.step == 3
    assert "3 steps" in repr(agent)
