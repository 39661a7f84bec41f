"""A run's result and handle, its live events, and the choices of whoever steps through it."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from aisotools.agent import run
from aisotools.agent.run import AgentRun, LiveEvents, RunResult, StepAction, StepChoice
from aisotools.core.events import AgentRewound, ModelStreamed, RunOutcome
from aisotools.core.exceptions import UsageError
from aisotools.core.messages import TextDelta, UserMessage

ANSWERED = RunResult(text="4", outcome="answered")


def piece(text: str) -> ModelStreamed:
    return ModelStreamed(time_s=0.0, agent_id="a1", event=TextDelta(text))


def other(step: int) -> AgentRewound:
    return AgentRewound(time_s=0.0, agent_id="a1", step=step)


@pytest.mark.parametrize(
    ("text", "outcome", "reason", "expected"),
    [
        ("4", "answered", "", "4"),
        ("4", "answered", "a reason", "4"),
        ("", "cancelled", "", "[cancelled]"),
        ("", "budget", "3 steps are used up", "[budget: 3 steps are used up]"),
        ("So far", "length", "it was cut", "So far\n[length: it was cut]"),
    ],
)
def test_result_as_text(text: str, outcome: RunOutcome, reason: str, expected: str) -> None:
    result = RunResult(text=text, outcome=outcome, reason=reason)
    assert str(result) == expected
    assert result.ok is (outcome == "answered")


async def test_live_events_come_in_order_and_end_when_closed() -> None:
    events = LiveEvents()
    events.add(other(1))
    events.add(piece("x"))
    assert repr(events) == "<LiveEvents 2 pending, open>"
    events.close()
    assert repr(events) == "<LiveEvents 2 pending, closed>"
    assert [event async for event in events] == [other(1), piece("x")]


async def test_live_events_wait_for_the_next_event() -> None:
    events = LiveEvents()
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert not waiting.done()
    events.add(other(1))
    assert await waiting == other(1)


async def test_closing_ends_a_wait_for_the_next_event() -> None:
    events = LiveEvents()

    async def fetch_all() -> list[object]:
        return [event async for event in events]

    waiting = asyncio.ensure_future(fetch_all())
    await asyncio.sleep(0)
    events.close()
    assert await waiting == []


async def test_only_streamed_pieces_are_dropped_beyond_the_limit() -> None:
    events = LiveEvents()
    limit = run._MAX_PENDING_PIECES
    for _ in range(limit):
        events.add(piece("x"))
    events.add(piece("dropped"))
    for step in range(limit + 1):
        events.add(other(step))
    events.close()
    fetched = [event async for event in events]
    assert fetched == [piece("x")] * limit + [other(step) for step in range(limit + 1)]


async def test_fetching_a_piece_makes_room_for_another() -> None:
    events = LiveEvents()
    for _ in range(run._MAX_PENDING_PIECES):
        events.add(piece("x"))
    await anext(events)
    events.add(piece("fits"))
    events.add(piece("dropped"))
    events.close()
    fetched = [event async for event in events]
    assert len(fetched) == run._MAX_PENDING_PIECES
    assert fetched[-1] == piece("fits")


def test_step_choice_with_an_unknown_action_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'leave' is not one of continue, edit, skip, answer, stop\."):
        StepChoice(cast("StepAction", "leave"))


def test_step_choice_edit_needs_something_edited() -> None:
    with pytest.raises(UsageError, match=r"needs messages= \(a request\) or arguments= \(a call\)\."):
        StepChoice("edit", text="no edit")


def test_step_choice_edit_takes_messages_or_arguments_even_if_empty() -> None:
    assert StepChoice("edit", messages=[UserMessage("Hi")]).arguments is None
    assert StepChoice("edit", arguments={}).messages is None


def test_step_choice_continues_by_default() -> None:
    assert StepChoice().action == "continue"


async def test_finished_run_gives_its_result_and_closes_its_events() -> None:
    release = asyncio.Event()

    async def work() -> RunResult:
        await release.wait()
        return ANSWERED

    agent_run = AgentRun(asyncio.ensure_future(work()), LiveEvents(), lambda: None)
    assert (agent_run.done, agent_run.result, repr(agent_run)) == (False, None, "<AgentRun running>")
    release.set()
    assert await agent_run == ANSWERED
    assert (agent_run.done, agent_run.result, repr(agent_run)) == (True, ANSWERED, "<AgentRun done>")
    assert [event async for event in agent_run.events] == []
    agent_run.cancel()
    assert await agent_run == ANSWERED


async def test_run_cancelled_before_its_start_says_so() -> None:
    started = False

    async def work() -> RunResult:
        nonlocal started
        started = True
        return ANSWERED

    agent_run = AgentRun(asyncio.ensure_future(work()), LiveEvents(), lambda: None)
    agent_run.cancel()
    result = await agent_run
    assert (result.outcome, result.reason) == ("cancelled", "it was cancelled before it began")
    assert not started
    assert [event async for event in agent_run.events] == []


async def test_cancelled_run_gives_the_result_of_what_it_did() -> None:
    partial = RunResult(text="So far", outcome="cancelled", reason="it was cancelled", steps=1)
    started = asyncio.Event()

    async def work() -> RunResult:
        started.set()
        await asyncio.Event().wait()
        return ANSWERED

    agent_run = AgentRun(asyncio.ensure_future(work()), LiveEvents(), lambda: partial)
    await started.wait()
    agent_run.cancel()
    assert await agent_run == partial


async def test_exception_of_a_run_is_raised_to_whoever_awaits_it() -> None:
    async def work() -> RunResult:
        raise UsageError("The session is closed.")

    agent_run = AgentRun(asyncio.ensure_future(work()), LiveEvents(), lambda: None)
    with pytest.raises(UsageError, match="The session is closed"):
        await agent_run
    assert agent_run.done
    assert [event async for event in agent_run.events] == []
    with pytest.raises(UsageError, match="The session is closed"):
        _ = agent_run.result


async def test_cancelling_whoever_awaits_a_run_does_not_stop_it() -> None:
    release = asyncio.Event()

    async def work() -> RunResult:
        await release.wait()
        return ANSWERED

    agent_run = AgentRun(asyncio.ensure_future(work()), LiveEvents(), lambda: None)

    async def wait_for_run() -> RunResult:
        return await agent_run

    waiting = asyncio.ensure_future(wait_for_run())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not agent_run.done
    release.set()
    assert await agent_run == ANSWERED
