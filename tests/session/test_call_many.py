"""Several calls at once: one question, results in order, reading together, changing one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from aisotools.core.events import CallDecided, CallFinished, CallRequested
from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts, ToolCall
from aisotools.policy.approvers import AllowAll, DenyAll, ScriptedApprover
from aisotools.policy.rules import Policy, Rule
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession
from tests.waiting import as_soon_as


class Together:
    """An approver that sees a batch at once."""

    def __init__(self, answers: Sequence[Any]) -> None:
        self.answers = answers
        self.batches: list[Sequence[ApprovalRequest]] = []

    async def ask(self, request: ApprovalRequest) -> Approval:
        answers: Sequence[Approval] = await self.ask_many([request])
        return answers[0]

    async def ask_many(self, requests: Sequence[ApprovalRequest]) -> Any:
        self.batches.append(requests)
        return self.answers


class Busy:
    """Tools that tell how many ran at once, and in which order."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.seen: list[set[str]] = []
        self.order: list[str] = []

    def tool(self, name: str, effect: Effect) -> MockTool:
        async def run(arguments: Any, context: Any) -> str:
            self.running.add(name)
            self.order.append(name)
            for _ in range(5):
                await asyncio.sleep(0)
                self.seen.append(set(self.running))
            self.running.discard(name)
            return f"{name} done"

        return MockTool(name, effect=effect, result=run)


async def test_reading_calls_run_together_and_changing_ones_are_barriers(open_session: OpenSession) -> None:
    busy = Busy()
    tools = [busy.tool(n, Effect.READ_ONLY) for n in ("r1", "r2", "r3")]
    tools += [busy.tool(n, Effect.LOCAL_MUTATION) for n in ("w1", "w2")]
    session = open_session(*tools, approver=AllowAll())
    results = await session.call_many([(n, {}) for n in ("r1", "r2", "w1", "w2", "r3")])
    assert [r.content for r in results] == ["r1 done", "r2 done", "w1 done", "w2 done", "r3 done"]
    assert {"r1", "r2"} in busy.seen
    assert all(len(seen) == 1 for seen in busy.seen if seen & {"w1", "w2", "r3"})
    assert busy.order[2:] == ["w1", "w2", "r3"]


async def test_one_question_for_all_that_need_asking(open_session: OpenSession) -> None:
    approver = Together([Approval("approve"), Approval("deny", reason="not this one")])
    tools = [MockTool("read", effect=Effect.READ_ONLY), MockTool("one"), MockTool("two")]
    session = open_session(*tools, approver=approver)
    results = await session.call_many([("one", {}), ("read", {}), ("two", {}), ("gone", {})])
    assert [[r.call.name for r in batch] for batch in approver.batches] == [["one", "two"]]
    assert [r.is_error for r in results] == [False, False, True, True]
    assert "not this one" in results[2].content
    assert "no tool named 'gone'" in results[3].content
    assert tools[2].calls == []


async def test_an_approver_for_one_at_a_time_is_asked_in_order(open_session: OpenSession) -> None:
    approver = ScriptedApprover(["deny", "approve"])
    tools = [MockTool("one"), MockTool("two")]
    session = open_session(*tools, approver=approver)
    results = await session.call_many([("one", {}), ("two", {})])
    assert [r.call.name for r in approver.requests] == ["one", "two"]
    assert [r.is_error for r in results] == [True, False]


@pytest.mark.parametrize("answers", [None, [], [Approval("approve")], ["approve", "approve"], 3])
async def test_answers_that_do_not_fit_the_questions_deny_all(
    open_session: OpenSession, answers: Any
) -> None:
    tools = [MockTool("one"), MockTool("two")]
    session = open_session(*tools, approver=Together(answers))
    results = await session.call_many([("one", {}), ("two", {})])
    assert [r.error_kind for r in results] == ["denied", "denied"]
    assert tools[0].calls == tools[1].calls == []


async def test_each_call_is_recorded_whole(open_session: OpenSession) -> None:
    session = open_session(MockTool("one"), MockTool("read", effect=Effect.READ_ONLY), approver=DenyAll())
    calls = [ToolCall("a", "one", {}, origin="model"), ToolCall("b", "read", {}), ToolCall("a", "read", {})]
    results = await session.call_many(calls)
    assert [r.error_kind for r in results] == ["denied", None, "invalid"]
    for kind in (CallRequested, CallFinished):
        assert sorted(e.call_id for e in session.events if isinstance(e, kind)) == ["a", "a", "b"]
    assert sorted(e.call_id for e in session.events if isinstance(e, CallDecided)) == ["a", "b"]


async def test_cancelling_while_asked_ends_every_call_in_the_record(open_session: OpenSession) -> None:
    asked = asyncio.Event()

    class Never:
        async def ask(self, request: ApprovalRequest) -> Approval:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    tools = [MockTool("one"), MockTool("read", effect=Effect.READ_ONLY)]
    session = open_session(*tools, approver=Never())
    task = asyncio.ensure_future(session.call_many([("one", {}), ("read", {})]))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    finished = [e for e in session.events if isinstance(e, CallFinished)]
    assert [(e.name, e.result.is_error) for e in finished] == [("one", True), ("read", True)]
    assert tools[0].calls == tools[1].calls == []


@pytest.mark.parametrize("calls", [[()], [3], ["one"], [(1, {})]])
async def test_an_invalid_call_is_the_programs_mistake(open_session: OpenSession, calls: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        await open_session(MockTool("one")).call_many(calls)


# ---- approvals that are remembered

WRITES = Facts(effect=Effect.LOCAL_MUTATION, writes=("out/a",))


async def test_a_remembered_approval_is_not_asked_about_again(open_session: OpenSession) -> None:
    approver = ScriptedApprover([Approval("approve", remember="shape")])
    session = open_session(MockTool("write", facts=WRITES), approver=approver)
    for number in range(3):
        assert not (await session.call("write", {"n": number})).is_error
    assert len(approver.requests) == 1
    assert approver.requests[0].preview["remember"]["shape"] == (
        "write writing only to out, replacing nothing, up to local change"
    )
    decided = [e for e in session.events if isinstance(e, CallDecided)]
    assert [e.decided_by for e in decided] == ["approver", "grant", "grant"]
    assert decided[1].reasons == (
        "you allowed write writing only to out, replacing nothing, up to local change",
    )


async def test_a_denying_rule_and_mode_plan_beat_a_grant(open_session: OpenSession) -> None:
    approver = ScriptedApprover([Approval("approve", remember="tool")])
    session = open_session(MockTool("write", facts=WRITES), approver=approver)
    assert not (await session.call("write")).is_error
    session.policy = Policy(rules=[Rule(tool="write", decision="deny")])  # type: ignore[arg-type]  # as in TOML
    assert (await session.call("write")).error_kind == "denied"
    session.policy = Policy(mode="plan")
    assert (await session.call("write")).error_kind == "denied"
    session.policy = Policy()
    assert not (await session.call("write")).is_error


async def test_asking_for_approval_goes_past_a_grant(open_session: OpenSession) -> None:
    approver = ScriptedApprover([Approval("approve", remember="tool"), "deny"])
    session = open_session(MockTool("write", facts=WRITES), approver=approver)
    await session.call("write")
    assert (await session.call("write", ask=True)).error_kind == "denied"


async def test_grants_can_be_seen_and_taken_back(open_session: OpenSession) -> None:
    approver = ScriptedApprover([Approval("approve", remember="tool"), "deny"])
    session = open_session(MockTool("write", facts=WRITES), approver=approver)
    await session.call("write")
    (grant,) = session.grants.list()
    session.grants.revoke(grant.id)
    assert (await session.call("write")).error_kind == "denied"


class Turns:
    """Notes the turn of the loop in which each call is recorded."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._count)

    def _count(self) -> None:
        self._turn += 1
        self._handle = self._loop.call_soon(self._count)

    def note(self, event: object) -> None:
        if isinstance(event, CallRequested):
            self.seen.append(self._turn)

    def stop(self) -> None:
        self._handle.cancel()


@pytest.mark.parametrize(
    "arguments", [{"text": "x" * (1 << 18)}, {"list": [0] * 3000}], ids=["a long text", "many values"]
)
@pytest.mark.parametrize("is_batch", [True, False], ids=["as a batch", "at once"])
async def test_the_loop_has_its_turn_between_calls_with_large_arguments(
    open_session: OpenSession, arguments: dict[str, Any], is_batch: bool
) -> None:
    """Recording one takes milliseconds: eight in one turn held up the loop for a sixth of a second."""
    session = open_session(MockTool("r", effect=Effect.READ_ONLY))
    await session.start()
    turns = Turns()
    session.subscribe(turns.note)
    calls = [ToolCall(f"large-{n}", "r", arguments) for n in range(8)]
    if is_batch:
        results = await session.call_many(calls)
    else:
        results = await asyncio.gather(*(session.call("r", arguments) for _ in calls))
    turns.stop()
    assert not any(result.is_error for result in results)
    assert len(set(turns.seen)) == len(calls)


async def test_control_calls_with_small_arguments_share_a_turn(
    open_session: OpenSession,
) -> None:
    session = open_session(MockTool("r", effect=Effect.READ_ONLY))
    await session.start()
    turns = Turns()
    session.subscribe(turns.note)
    await asyncio.gather(*(session.call("r", {"text": "x" * 1000}) for _ in range(8)))
    turns.stop()
    assert len(set(turns.seen)) == 1


async def test_a_batch_that_is_cancelled_while_it_is_recorded(open_session: OpenSession) -> None:
    session = open_session(MockTool("r", effect=Effect.READ_ONLY))
    await session.start()
    batch = asyncio.create_task(
        session.call_many([ToolCall(f"c{n}", "r", {"text": "x" * (1 << 18)}) for n in range(8)])
    )
    await as_soon_as(lambda: any(isinstance(event, CallRequested) for event in session.events))
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    requested = [event.call_id for event in session.events if isinstance(event, CallRequested)]
    finished = [event.call_id for event in session.events if isinstance(event, CallFinished)]
    assert 1 <= len(requested) < 8
    assert finished == requested
