"""A run is cancelled at each of its await points in turn; nothing may be left over, lost, or unclear."""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

from aisotools.agent.agent import Agent
from aisotools.agent.budgets import Budgets
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.run import BeforeCall, BeforeRequest, StepChoice
from aisotools.core.events import AgentFinished
from aisotools.core.exceptions import ModelError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Approval, ApprovalRequest, Effect
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from aisotools.tools.function import tool
from tests.agent.rules import assert_no_orphans, assert_sound
from tests.conftest import OpenSession
from tests.waiting import loop_turns

T = TypeVar("T")


@types.coroutine
def cancelled_at(coroutine: Coroutine[Any, Any, T], point: int, seen: list[int]) -> Generator[Any, Any, T]:
    """Run `coroutine`; when it awaits the loop for the time `point`, cancel the task it runs in."""
    send: Callable[[], Any] = functools.partial(coroutine.send, None)
    for number in range(1, 10_000):
        try:
            waited_for = send()
        except StopIteration as end:
            value: T = end.value
            return value
        seen.append(number)
        if number == point:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
        try:
            yield waited_for
        except BaseException as error:
            send = functools.partial(coroutine.throw, error)
        else:
            send = functools.partial(coroutine.send, None)
    raise AssertionError("too many await points")


async def something_later() -> None:
    """Wait for what comes about some turns of the loop later: long enough to be cancelled meanwhile."""
    loop = asyncio.get_running_loop()
    arrival = loop.create_future()

    def approach(turns: int) -> None:
        if turns:
            loop.call_soon(approach, turns - 1)
        elif not arrival.done():
            arrival.set_result(None)

    approach(10)
    await arrival


class SlowApprover:
    async def ask(self, request: ApprovalRequest) -> Approval:
        await something_later()
        return Approval("approve")


class SlowStepper:
    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        await asyncio.sleep(0)
        return StepChoice()


async def slowly(arguments: Any, context: ToolContext) -> str:
    await something_later()
    return "done"


@tool(effect=Effect.READ_ONLY)
async def in_sandbox(n: int) -> int:
    """Wait a little and give `n` back."""
    await asyncio.sleep(0)
    return n


def script() -> ScriptedModel:
    busy = ModelError("HTTP 500", retryable=True)
    calls = [("look", {"n": 1}), ("look", {"n": 2}), ("write", {}), ("in_sandbox", {"n": 3})]
    return ScriptedModel(["Let me see.", busy, ["All at once:", *calls], ("write", {}), "ok"], delay_s=0.0005)


async def cancelled_run(make: Callable[[], Agent], point: int, *, warm: bool) -> bool:
    """Cancel at `point`, check everything, and tell whether the run was cut."""
    agent = make()
    before = asyncio.all_tasks()
    seen: list[int] = []

    async def runs() -> None:
        if warm:
            await agent.run("first")
        await cancelled_at(agent.run("second"), point, seen)

    task = asyncio.ensure_future(runs())
    await asyncio.wait([task])
    cut = task.cancelled()
    if not cut:
        task.result()
    await assert_no_orphans(before)
    assert_sound(agent)
    last = [event for event in agent.session.events if isinstance(event, AgentFinished)][-1]
    assert last.outcome == ("cancelled" if cut else "answered")
    # The conversation and the session are fit for use.
    agent.model = ScriptedModel([("look", {"n": 9}), "Back again."])
    assert (await agent.run("third")).text == "Back again."
    assert_sound(agent)
    return cut


async def every_point(make: Callable[[], Agent], at_least: int, *, warm: bool = True) -> None:
    point = 1
    while await cancelled_run(make, point, warm=warm):
        point += 1
    assert point > at_least, f"only {point - 1} await points were found"


def agent_of(session: Session, **options: Any) -> Agent:
    return Agent(script(), session, budgets=Budgets(retry_wait_s=0.0005), **options)


def tools() -> list[Any]:
    return [
        MockTool("look", effect=Effect.READ_ONLY, result=slowly),
        MockTool("write", result=slowly),
        in_sandbox,
    ]


async def test_cancelled_everywhere(open_session: OpenSession) -> None:
    def make() -> Agent:
        return agent_of(open_session(*tools(), approver=SlowApprover()))

    await every_point(make, at_least=10)


async def test_cancelled_everywhere_when_stepping(open_session: OpenSession) -> None:
    def make() -> Agent:
        return agent_of(open_session(*tools(), approver=AllowAll()), stepper=SlowStepper())

    await every_point(make, at_least=15)


async def test_cancelled_while_the_session_opens(open_session: OpenSession) -> None:
    def make() -> Agent:
        return agent_of(open_session(*tools(), approver=AllowAll()))

    await every_point(make, at_least=2, warm=False)


async def test_cancelled_twice(open_session: OpenSession) -> None:
    """Somebody presses Stop again while the first one is still being carried out."""
    agent = agent_of(open_session(*tools(), approver=SlowApprover()))
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(agent.run("go"))
    await loop_turns(5)  # it takes more of them than that
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])
    assert task.cancelled()
    await assert_no_orphans(before)
    assert_sound(agent)
