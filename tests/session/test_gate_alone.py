"""The gate without a session: what it hands on, in which order, what it refuses and what it leaves behind."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from aisotools.builtin.files import file
from aisotools.core.events import (
    ApprovalAnswered,
    CallDecided,
    CallFinished,
    CallRequested,
    CallStarted,
    SessionEvent,
)
from aisotools.core.exceptions import SandboxError, ToolError
from aisotools.core.protocols import OutputCaps, ToolContext, UserQuestion
from aisotools.core.sandboxes import INTERRUPTED_BEFORE, SandboxCall
from aisotools.core.types import (
    Approval,
    ApprovalRequest,
    Decision,
    Effect,
    Facts,
    Json,
    Remember,
    ToolCall,
    ToolResult,
)
from aisotools.policy.approvers import ScriptedApprover
from aisotools.policy.grants import Grants
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import Policy, Rule
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.sandbox.results import VALUE_DROPPED
from aisotools.session.event_log import EventLog
from aisotools.session.gate import Gate
from aisotools.session.guards import CallEnvironment
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.tools.registry import ToolRegistry
from aisotools.workspace.stamps import stamps_of
from tests.session.test_host_calls import Endless
from tests.waiting import HANG_S

Event = TypeVar("Event", bound=SessionEvent)

SPEC = WorkerSpec(level="confined", workspace="/nowhere", limits=Limits())


def reading(name: str = "read", **options: Any) -> MockTool:
    return MockTool(name, effect=Effect.READ_ONLY, **options)


def changing(name: str = "write", **options: Any) -> MockTool:
    return MockTool(name, facts=Facts(writes=("a",)), **options)


class Rig:
    """A gate with its parts. Mode `auto` unless told otherwise: what changes the workspace alone may run."""

    def __init__(
        self, *tools: Any, approver: Any = None, policy: Policy | None = None, caps: OutputCaps | None = None
    ) -> None:
        self.log = EventLog()
        self.sandbox = FakeSandbox(SPEC, self.log)
        self.gate = Gate(
            registry=ToolRegistry(tools),
            policy=policy or Policy(mode="auto"),
            approver=approver,
            event_log=self.log,
            caps=caps or OutputCaps(),
            call_timeout_s=5,
            session_key="key",
        )
        self.env = CallEnvironment(sandbox=self.sandbox, level="confined", workspace=Path("/nowhere"))
        self.number = 0

    def call(self, name: str, arguments: Mapping[str, Json] | None = None, **fields: Any) -> ToolCall:
        self.number += 1
        return ToolCall(f"c{self.number}", name, arguments or {}, **fields)

    async def run(self, name: str, arguments: Mapping[str, Json] | None = None, **options: Any) -> ToolResult:
        return await self.gate.run(self.call(name, arguments), self.env, **options)

    async def run_many(self, *names: str) -> list[ToolResult]:
        return await self.gate.run_many([self.call(name) for name in names], self.env)

    def events(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.log.events if isinstance(event, kind)]

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.log.events]


async def test_each_of_several_running_tools_is_stopped() -> None:
    works = [Endless(), Endless()]
    rig = Rig(*(reading(f"read{n}", result=work) for n, work in enumerate(works)))
    running = [asyncio.ensure_future(rig.run(f"read{n}")) for n in range(2)]
    for work in works:
        await work.begun.wait()
    rig.gate.interrupt()
    assert [(await one).metadata["stopped"] for one in running] == [True, True]


# ---- what a host tool may use of the session


async def test_a_tool_reads_what_was_cut_and_shares_a_memory() -> None:
    stored: list[Any] = []

    async def look(arguments: Mapping[str, Json], context: ToolContext) -> str:
        assert context.services is not None
        context.services.memory["seen"] = arguments["ref"]
        stored.append(context.services.stored(str(arguments["ref"])))
        return "looked"

    rig = Rig(
        reading("long", result="x" * 5_000), reading("look", result=look), caps=OutputCaps(content_chars=500)
    )
    cut = (await rig.run("long")).truncation
    assert cut is not None
    assert cut.ref is not None
    await rig.run("look", {"ref": cut.ref})
    await rig.run("look", {"ref": "no such"})
    assert stored[0] is not None
    assert (stored[0].call_id, stored[0].text) == ("c1", "x" * 5_000)
    assert stored[1] is None
    assert rig.gate.memory == {"seen": "no such"}
    await rig.gate.close()
    assert rig.gate.results.get(cut.ref) is None


@pytest.mark.parametrize("known", [True, False])
async def test_a_cut_result_says_how_to_read_the_rest_if_there_is_a_way(known: bool) -> None:
    tools = [reading("long", result="x" * 5_000), *([reading("read_result")] if known else [])]
    result = await Rig(*tools, caps=OutputCaps(content_chars=500)).run("long")
    assert ("read_result" in result.content) is known


async def test_a_tool_asks_a_person_and_its_calls_have_ids_that_name_the_parent() -> None:
    class Person(ScriptedApprover):
        async def ask_user(self, question: UserQuestion) -> str | None:
            return f"to {question.text}: blue"

    async def outer(_arguments: object, context: ToolContext) -> str:
        assert context.services is not None
        answer = await context.services.ask_user(UserQuestion(id="q1", text="which colour?"))
        inner = await context.services.call("inner", {})
        return f"{answer}; {inner.content}"

    rig = Rig(reading("outer", result=outer), reading("inner", result="in"), approver=Person([]))
    assert (await rig.run("outer")).content == "to which colour?: blue; in"
    first, second = rig.events(CallRequested)
    assert re.fullmatch(rf"{first.call.id}/[0-9a-f]{{12}}", second.call.id)
    assert rig.gate.knows(second.call.id)
    assert rig.gate.calls == 2


async def test_a_context_says_whose_call_it_is() -> None:
    mock = reading()
    rig = Rig(mock, caps=OutputCaps(content_chars=77))
    call = rig.call("read", agent_id="agent", turn_id="turn")
    await rig.gate.run(call, rig.env)
    (context,) = mock.contexts
    assert (context.agent_id, context.turn_id, context.call_id) == ("agent", "turn", call.id)
    assert (context.session_key, context.output_caps) == ("key", OutputCaps(content_chars=77))


# ---- who is asked


async def test_the_approver_can_be_replaced_and_asked_this_once() -> None:
    first, second, once = (ScriptedApprover(["deny"]) for _ in range(3))
    rig = Rig(changing(), policy=Policy(mode="safe"), approver=first)
    assert rig.gate.approver is first
    rig.gate.approver = second
    assert rig.gate.approver is second
    assert (await rig.run("write")).error_kind == "denied"
    assert (await rig.run("write", approver=once)).error_kind == "denied"
    assert [len(one.requests) for one in (first, second, once)] == [0, 1, 1]


async def test_a_remembered_approval_decides_unless_a_question_is_wanted() -> None:
    approver = ScriptedApprover([Approval("approve", remember="tool"), "approve"])
    mock = changing()
    rig = Rig(mock, policy=Policy(mode="safe"), approver=approver)
    await rig.run("write")
    assert [grant.tool for grant in rig.gate.grants.list()] == ["write"]
    await rig.run("write")
    await rig.run("write", ask=True)
    assert len(mock.calls) == 3
    decided = rig.events(CallDecided)
    assert [one.decided_by for one in decided] == ["approver", "grant", "approver"]
    assert decided[1].decision is Decision.ALLOW
    assert decided[1].reasons == ("you allowed write with any arguments, up to local change, on the host",)
    rig.gate.policy = Policy(rules=[Rule(decision=Decision.DENY, reason="no more")])
    assert (await rig.run("write")).content == "write was not run: no more."


async def test_ids_that_are_long_or_hold_half_characters_are_recorded_in_short() -> None:
    rig = Rig(reading())
    odd = ToolCall("i" * 100_000, "read", {}, agent_id="\ud800", turn_id="t" * 100_000)
    assert (await rig.gate.run(odd, rig.env)).content == "done"
    assert (await rig.gate.run(odd, rig.env)).content.endswith("an id runs at most once. Give another.")
    unknown = await rig.gate.run(ToolCall("2", "n" * 100_000, {}), rig.env)
    assert unknown.is_error
    assert len(unknown.content) < 2_000
    for event in rig.log.events:
        assert len(repr(event)) < 3_000
        repr(event).encode()


async def test_calls_run_in_the_order_in_which_they_were_made_however_long_files_are_looked_at() -> None:
    go_on = threading.Event()

    def look(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        if arguments == {"number": 0}:
            assert go_on.wait(HANG_S)
        elif arguments == {"number": 2}:
            go_on.set()
        return facts

    mock = MockTool("write", facts=Facts(certain=False))
    rig = Rig(mock, policy=Policy(mode="auto", rules=[Rule(tool="write", decision=Decision.ALLOW)]))
    rig.env = dataclasses.replace(rig.env, resolve_paths=look)
    calls = (rig.gate.run(ToolCall(f"{n}", "write", {"number": n}), rig.env) for n in range(3))
    await asyncio.gather(*calls)
    assert [event.call_id for event in rig.events(CallDecided)] == ["0", "1", "2"]


async def test_a_policy_that_is_set_while_files_are_looked_at_decides() -> None:
    mock = MockTool("write", facts=Facts(certain=False))
    rig = Rig(mock, policy=Policy(mode="auto", rules=[Rule(tool="write", decision=Decision.ALLOW)]))
    looks: list[Facts] = []

    def look(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        del arguments
        if not looks:
            rig.gate.policy = Policy(rules=[Rule(decision=Decision.DENY, reason="no more")])
        looks.append(facts)
        return facts

    rig.env = dataclasses.replace(rig.env, resolve_paths=look)
    assert (await rig.run("write")).content == "write was not run: no more."
    assert (len(looks), mock.calls) == (2, [])


@pytest.mark.parametrize("way", ["interrupt", "close"])
async def test_an_open_question_is_withdrawn(way: str) -> None:
    standing = asyncio.Event()

    class Silent:
        async def ask(self, request: ApprovalRequest) -> Approval:
            standing.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError("the question is withdrawn")

    mock = changing()
    rig = Rig(mock, policy=Policy(mode="safe"), approver=Silent())
    running = asyncio.ensure_future(rig.run("write"))
    await standing.wait()
    if way == "interrupt":
        rig.gate.interrupt()
    else:
        await rig.gate.close()
    assert "the question was cancelled" in (await running).content
    assert rig.events(ApprovalAnswered)[0].approval.outcome == "cancel"
    assert mock.calls == []


async def test_closing_stops_what_runs_and_keeps_the_last_word() -> None:
    work = Endless()
    rig = Rig(reading(result=work))
    running = asyncio.ensure_future(rig.run("read"))
    await work.begun.wait()
    await rig.gate.close()
    assert (await running).metadata["stopped"] is True
    rig.gate.block("nothing can be recorded")
    assert (await rig.run("read")).content == "read was not run: the session was closed."


# ---- several calls


async def test_calls_of_a_batch_that_need_it_are_asked_about_with_one_question() -> None:
    class Together:
        batches: Sequence[Sequence[ApprovalRequest]] = ()

        async def ask(self, request: ApprovalRequest) -> Approval:
            raise AssertionError("all at once")

        async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
            self.batches = [*self.batches, requests]
            return [Approval("deny", reason="not this"), Approval("approve")]

    approver = Together()
    one, two = changing("one"), changing("two")
    rig = Rig(one, two, reading(), policy=Policy(mode="safe"), approver=approver)
    results = await rig.run_many("one", "read", "gone", "two")
    assert [[request.call.name for request in batch] for batch in approver.batches] == [["one", "two"]]
    assert [result.is_error for result in results] == [True, False, True, False]
    assert "not this" in results[0].content
    assert (one.calls, two.calls) == ([], [{}])
    assert await rig.run_many("read") == [rig.events(CallFinished)[-1].result]
    assert len(approver.batches) == 1


async def test_readers_of_a_batch_run_together_and_each_writer_alone() -> None:
    running: set[str] = set()
    seen: list[set[str]] = []

    async def work(_arguments: object, context: ToolContext) -> str:
        running.add(context.call_id)
        for _ in range(5):
            await asyncio.sleep(0)
        seen.append(set(running))
        running.discard(context.call_id)
        return context.call_id

    rig = Rig(
        reading(result=work),
        changing(result=work),
        changing("denied"),
        policy=Policy(mode="auto", rules=[Rule(tool="denied", decision=Decision.DENY)]),
    )
    names = ["read", "denied", "read", "write", "write", "read", "read"]
    results = await rig.run_many(*names)
    assert [r.content for r in results if not r.is_error] == ["c1", "c3", "c4", "c5", "c6", "c7"]
    assert seen == [{"c1", "c3"}, {"c3"}, {"c4"}, {"c5"}, {"c6", "c7"}, {"c7"}]


async def test_no_call_is_no_batch() -> None:
    rig = Rig()
    assert await rig.run_many() == []
    assert rig.kinds == []


# ---- guards


class Watching:
    """A guard that records what it sees."""

    def __init__(self, name: str, seen: list[str], refuses: Exception | None = None) -> None:
        self.name, self.seen, self.refuses = name, seen, refuses

    async def before(self, prepared: PreparedCall) -> None:
        self.seen.append(f"{self.name} before {prepared.call.name}")
        if self.refuses is not None:
            raise self.refuses

    async def after(self, _prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        self.seen.append(f"{self.name} after {result and result.content}")
        return result and ToolResult.text(f"{result.content}+{self.name}")


async def test_guards_stand_around_changing_calls_in_order_and_may_change_the_result() -> None:
    seen: list[str] = []
    rig = Rig(changing(), reading())
    rig.env = dataclasses.replace(rig.env, guards=(Watching("a", seen), Watching("b", seen)))
    assert (await rig.run("write")).content == "done+b+a"
    assert seen == ["a before write", "b before write", "b after done", "a after done+b"]
    assert (await rig.run("read")).content == "done"
    assert len(seen) == 4


@pytest.mark.parametrize(
    ("error", "kind", "recoverable"),
    [(SandboxError("it is broken"), "environment", False), (ToolError("read first"), "invalid", True)],
)
async def test_a_guard_that_refuses_keeps_the_call_from_running(
    error: Exception, kind: str, recoverable: bool
) -> None:
    seen: list[str] = []
    mock = changing()
    rig = Rig(mock)
    guards = (Watching("a", seen), Watching("b", seen, error), Watching("c", seen))
    rig.env = dataclasses.replace(rig.env, guards=guards)
    result = await rig.run("write")
    assert (result.content, result.error_kind, result.recoverable) == (str(error), kind, recoverable)
    assert seen == ["a before write", "b before write", "a after None"]
    assert mock.calls == []


async def test_guards_look_after_a_cancelled_call() -> None:
    seen: list[str] = []
    work = Endless()
    rig = Rig(changing(result=work))
    rig.env = dataclasses.replace(rig.env, guards=(Watching("a", seen),))
    running = asyncio.ensure_future(rig.run("write"))
    await work.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen == ["a before write", "a after None"]
    assert rig.events(CallFinished)[0].result.content == "The call was cancelled."


class Slow(Watching):
    """A guard whose `after` takes until it is released."""

    def __init__(self, name: str, seen: list[str]) -> None:
        super().__init__(name, seen)
        self.reached, self.release = asyncio.Event(), asyncio.Event()

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        self.reached.set()
        await self.release.wait()
        return await super().after(prepared, result)


async def test_all_guards_look_after_a_call_whose_caller_is_cancelled_while_the_first_of_them_does() -> None:
    seen: list[str] = []
    slow = Slow("b", seen)
    rig = Rig(changing())
    rig.env = dataclasses.replace(rig.env, guards=(Watching("a", seen), slow))
    running = asyncio.ensure_future(rig.run("write"))
    await slow.reached.wait()
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    slow.release.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen[2:] == ["b after done", "a after done+b"]
    assert rig.events(CallFinished)[0].result.content == "The call was cancelled."


@pytest.mark.filterwarnings("error")
def test_a_call_whose_event_loop_was_closed_is_recorded_as_cancelled_when_it_is_collected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []
    loop = asyncio.new_event_loop()
    work = Endless()
    rig = Rig(changing(result=work))
    rig.env = dataclasses.replace(rig.env, guards=(Watching("a", seen),))
    call = rig.gate.run(rig.call("write"), rig.env)
    running = loop.create_task(call)
    loop.run_until_complete(work.begun.wait())
    loop.close()
    call.close()  # as its collection does
    assert (seen, caplog.records) == (["a before write"], [])
    assert rig.events(CallFinished)[0].result.content == "The call was cancelled."
    assert not running.done()


class Failing(Watching):
    """A guard whose `after` fails."""

    async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
        await super().after(prepared, result)
        raise SandboxError(f"{self.name} failed")


async def test_a_guard_that_fails_afterwards_keeps_no_other_from_looking() -> None:
    seen: list[str] = []
    rig = Rig(changing())
    guards = (Watching("a", seen), Failing("b", seen), Failing("c", seen))
    rig.env = dataclasses.replace(rig.env, guards=guards)
    result = await rig.run("write")
    assert seen[3:] == ["c after done", "b after done", "a after done"]
    assert (result.content, result.is_error, result.error_kind) == ("c failed", True, "environment")


# ---- what is recorded


async def test_each_call_is_recorded_from_its_request_to_its_end() -> None:
    rig = Rig(reading(), changing(), policy=Policy(mode="plan"))
    began_s = time.monotonic()
    await rig.run("read", {"x": 1})
    took_s = time.monotonic() - began_s
    assert rig.kinds == ["call_requested", "call_decided", "call_started", "call_finished"]
    (decided,), (started,) = rig.events(CallDecided), rig.events(CallStarted)
    (finished,) = rig.events(CallFinished)
    assert (decided.decision, decided.decided_by) == (Decision.ALLOW, "policy")
    assert (started.runs_in, started.level) == ("host", "confined")
    assert 0 <= finished.duration_s <= took_s
    await rig.run("write")
    assert rig.kinds[4:] == ["call_requested", "call_decided", "call_finished"]
    assert rig.events(CallDecided)[1].reasons == (
        "mode plan allows only reading, and this is a local change",
    )


async def test_a_call_that_was_typed_says_so() -> None:
    rig = Rig(reading())
    await rig.gate.run(rig.call("read", origin="person"), rig.env)
    await rig.gate.run(rig.call("read", origin="model"), rig.env)
    assert [event.decided_by for event in rig.events(CallDecided)] == ["typed", "policy"]


async def test_an_id_is_used_once_even_by_a_call_that_does_not_exist() -> None:
    rig = Rig(reading())
    assert (await rig.gate.run(ToolCall("same", "gone", {}), rig.env)).recoverable
    again = await rig.gate.run(ToolCall("same", "read", {}), rig.env)
    assert "used before" in again.content
    assert (again.error_kind, again.recoverable) == ("invalid", False)


# ---- what goes to the sandbox and what comes back


class Recording(FakeSandbox):
    """A sandbox that records the requests and answers with a prepared result."""

    def __init__(self, answer: ToolResult | Exception) -> None:
        super().__init__(SPEC, EventLog())
        self.answer = answer
        self.requests: list[SandboxCall] = []

    async def call(self, request: SandboxCall) -> ToolResult:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def with_sandbox(answer: ToolResult | Exception, *tools: Any) -> tuple[Rig, Recording]:
    rig, sandbox = Rig(*tools, caps=OutputCaps(content_chars=999)), Recording(answer)
    rig.env = dataclasses.replace(rig.env, sandbox=sandbox)
    return rig, sandbox


async def test_a_request_to_the_sandbox_says_what_may_be_done_and_how_much_may_come_back() -> None:
    rig, sandbox = with_sandbox(
        ToolResult.text("out"), reading(runs_in="sandbox"), changing(runs_in="sandbox")
    )
    without_readers, rig.env = rig.env, dataclasses.replace(rig.env, has_readers=lambda: True)
    await rig.run("read", {"x": 1})
    await rig.run("write")
    rig.env = without_readers
    await rig.run("read", {"x": 1})
    read, write, unenforced = sandbox.requests
    assert (read.call.id, read.call.arguments, read.session_key) == ("c1", {"x": 1}, "key")
    assert (read.read_only, write.read_only, unenforced.read_only) == (True, False, False)
    assert (read.in_reader, write.in_reader, unenforced.in_reader) == (True, False, False)
    assert (read.timeout_s, read.output_caps) == (5, OutputCaps(content_chars=999))


async def test_a_request_says_whether_variables_may_change() -> None:
    """Our own file tool alone is known to leave them as they are: before it no snapshot of them is needed."""
    rig, sandbox = with_sandbox(ToolResult.text("out"), file, changing(runs_in="sandbox"))
    await rig.run("file", {"operation": "write", "path": "a", "content": "1"})
    await rig.run("write")
    assert [request.changes_variables for request in sandbox.requests] == [False, True]


async def test_a_tool_of_the_session_has_caps_of_its_own_and_receives_the_result() -> None:
    class Own(MockTool):
        caps = OutputCaps(value_bytes=7)

        async def receive(self, result: ToolResult) -> ToolResult:
            return ToolResult.text(f"received {result.content}")

    rig, sandbox = with_sandbox(ToolResult.text("out"))
    own = Own("own", effect=Effect.READ_ONLY, runs_in="sandbox")
    assert (await rig.run("own", tool=own)).content == "received out"
    assert sandbox.requests[0].output_caps == OutputCaps(value_bytes=7)
    changed = Own("own", effect=Effect.LOCAL_MUTATION, runs_in="sandbox")
    assert (await rig.run("own", tool=changed)).content == "received out"


async def test_a_sandbox_that_cannot_be_used_is_an_error_of_the_environment() -> None:
    rig, _ = with_sandbox(SandboxError("no worker"), reading(runs_in="sandbox"))
    result = await rig.run("read")
    assert (result.content, result.error_kind, result.recoverable) == ("no worker", "environment", False)


class Picky(MockTool):
    """Accepts no value of a call."""

    def __init__(self, error: Exception) -> None:
        super().__init__("picky", effect=Effect.READ_ONLY, runs_in="sandbox")
        self.error = error
        self.values: list[object] = []

    def validate_value(self, value: Json) -> None:
        self.values.append(value)
        raise self.error


@pytest.mark.parametrize(
    "answer",
    [
        ToolResult.error("failed"),
        dataclasses.replace(
            ToolResult.text("large").with_metadata(**{VALUE_DROPPED: "too large"}), value=None
        ),
    ],
    ids=["error", "value left out"],
)
async def test_there_is_no_value_to_check(answer: ToolResult) -> None:
    picky = Picky(ToolError("never"))
    rig, _ = with_sandbox(answer, picky)
    assert (await rig.run("picky")).content == answer.content
    assert picky.values == []


@pytest.mark.parametrize(
    "answer",
    [
        dataclasses.replace(ToolResult.text("nothing"), value=None),
        ToolResult.json({"a": 1}),
        # A worker that claims to have left a value out, and sends one nevertheless, is not believed.
        ToolResult.json({"a": 1}).with_metadata(**{VALUE_DROPPED: "too large"}),
    ],
    ids=["none", "value", "value and claim"],
)
async def test_every_value_is_checked(answer: ToolResult) -> None:
    picky = Picky(ToolError("that is not a colour"))
    rig, _ = with_sandbox(answer, picky)
    result = await rig.run("picky")
    assert (result.content, result.is_error, result.recoverable) == ("that is not a colour", True, False)
    assert picky.values == [answer.value]


async def test_a_check_that_fails_is_a_bug_of_the_tool() -> None:
    rig, _ = with_sandbox(ToolResult.json(1), Picky(KeyError("x")))
    result = await rig.run("picky")
    assert result.content.startswith("picky ran, but its validate_value failed. This is a bug in the tool.\n")
    assert "KeyError: 'x'" in result.content
    assert (result.is_error, result.recoverable) == (True, False)


# ---- policies


async def test_the_workspaces_policy_and_what_narrows_count_together() -> None:
    rig = Rig(changing())
    bound, narrower = Policy(mode="safe"), Policy(mode="plan")
    assert rig.gate.effective_policy() == Policy(mode="auto")
    lift = rig.gate.narrow(narrower)
    assert rig.gate.effective_policy().bounds == (narrower,)
    assert rig.gate.effective_policy(bound).bounds == (bound, narrower)
    lift()
    assert rig.gate.effective_policy(bound).bounds == (bound,)
    rig.env = dataclasses.replace(rig.env, workspace_policy=Policy(mode="plan"))
    assert (await rig.run("write")).error_kind == "denied"
    with_env = rig.gate.prepare(rig.call("write"), "confined", rig.env)
    alone = rig.gate.prepare(rig.call("write"), "confined")
    assert (with_env.evaluation.decision, alone.evaluation.decision) == (Decision.DENY, Decision.ALLOW)
    own = changing("own")
    assert rig.gate.prepare(rig.call("own"), "confined", tool=own).tool is own


async def test_an_edited_call_is_bound_by_the_workspaces_policy_too() -> None:
    forbidden = Rule(when={"arguments": {"path": "b"}}, decision=Decision.DENY, reason="not b")
    approver = ScriptedApprover([Approval("approve", arguments={"path": "b"})] * 2)
    mock = changing()
    rig = Rig(mock, policy=Policy(mode="safe"), approver=approver)
    rig.env = dataclasses.replace(rig.env, workspace_policy=Policy(mode="safe", rules=[forbidden]))
    assert (await rig.run("write", {"path": "a"})).content == "write was not run: not b."
    (result,) = await rig.gate.run_many([rig.call("write", {"path": "a"})], rig.env)
    assert result.content == "write was not run: not b."
    assert mock.calls == []


# ---- protected names


async def test_a_call_that_writes_a_protected_file_is_asked_about_whatever_the_policy_would_say() -> None:
    approver = ScriptedApprover([Approval("deny"), Approval("approve", remember="protected")])
    mock = MockTool("write", facts=Facts(writes=("conftest.py",)))
    rig = Rig(mock, policy=Policy(rules=[Rule(decision=Decision.ALLOW)]), approver=approver)
    assert list(rig.gate.allowed.names) == []
    assert (await rig.run("write")).error_kind == "denied"
    assert mock.calls == []
    assert not (await rig.run("write")).is_error
    assert list(rig.gate.allowed.names) == ["conftest.py"]
    assert rig.gate.effective_policy().allow_protected == ("conftest.py",)
    assert not (await rig.run("write")).is_error
    assert len(approver.requests) == 2, "its name is allowed now"
    (grant,) = rig.gate.grants.list()
    rig.gate.grants.revoke(grant.id)
    assert rig.gate.effective_policy().allow_protected == ()


async def test_without_anybody_to_ask_a_protected_file_is_not_written() -> None:
    mock = MockTool("write", facts=Facts(writes=("conftest.py",)))
    rig = Rig(mock)
    result = await rig.run("write")
    assert result.error_kind == "denied"
    assert "conftest.py is protected" in result.content
    assert mock.calls == []


async def test_a_name_that_can_never_be_allowed_is_not_asked_about() -> None:
    approver = ScriptedApprover([Approval("approve")])
    mock = MockTool("write", facts=Facts(writes=(".aisotools.toml",)))
    assert (await Rig(mock, approver=approver).run("write")).error_kind == "denied"
    assert (approver.requests, mock.calls) == ([], [])


async def test_a_fault_of_ours_is_a_result_that_names_the_log_with_the_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        async def before(self, prepared: PreparedCall) -> None:
            raise RuntimeError(f"no guard for {prepared.tool.name}")

        async def after(self, prepared: PreparedCall, result: ToolResult | None) -> ToolResult | None:
            return result

    rig = Rig(changing())
    rig.env = dataclasses.replace(rig.env, guards=(Broken(),))
    result = await rig.run("write")
    logger = result.content.partition(" in the log of ")[2].removesuffix(".")
    (record,) = [record for record in caplog.records if record.name == logger]
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no guard for write"


# ---- what is different when it is about to run


class Moving:
    """Paths that are resolved to whatever `target` is at the moment, and an approver that changes it."""

    def __init__(self, *targets: str) -> None:
        self.target = "a"
        self.targets = [*targets]
        self.reasons: list[tuple[str, ...]] = []

    def resolve(self, facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        del arguments
        return dataclasses.replace(facts, writes=(self.target,)) if facts.writes else facts

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.reasons.append(tuple(request.reasons))
        if self.targets:
            self.target = self.targets.pop(0)
        return Approval("approve")

    def env(self, rig: Rig) -> CallEnvironment:
        return dataclasses.replace(rig.env, resolve_paths=self.resolve)


DENIES_SECRETS = Rule(when={"writes": "secrets"}, decision=Decision.DENY, reason="secrets are denied")


async def test_a_call_that_leads_to_a_denied_path_by_now_is_denied_without_another_question() -> None:
    moving, written = Moving("secrets"), changing()
    rig = Rig(written, approver=moving, policy=Policy(mode="safe", rules=[DENIES_SECRETS]))
    result = await rig.gate.run(rig.call("write"), moving.env(rig))
    assert (result.error_kind, result.content) == ("denied", "write was not run: secrets are denied.")
    assert len(moving.reasons) == 1
    assert written.calls == []


async def test_a_call_that_is_different_by_now_is_asked_about_again_with_the_difference() -> None:
    moving, written = Moving("b"), changing()
    rig = Rig(written, approver=moving, policy=Policy(mode="safe"))
    assert not (await rig.gate.run(rig.call("write"), moving.env(rig))).is_error
    first, second = moving.reasons
    assert not any("would reach" in reason for reason in first)
    assert "it would reach b as well" in second
    assert written.calls == [{}]


async def test_a_call_that_a_person_approved_is_asked_about_again_even_if_the_policy_allows_it() -> None:
    moving, written = Moving("b"), changing()
    rig = Rig(written, approver=moving)
    assert not (await rig.gate.run(rig.call("write"), moving.env(rig), ask=True)).is_error
    assert len(moving.reasons) == 2
    assert written.calls == [{}]


async def test_a_call_that_the_policy_allows_runs_after_another_of_its_batch_has_moved_its_path() -> None:
    moving = Moving()

    def move(arguments: Mapping[str, Json], context: ToolContext) -> str:
        del arguments, context
        moving.target = "b"
        return "moved"

    first, second = changing("first", result=move), changing("second")
    rig = Rig(first, second, approver=moving)
    results = await rig.gate.run_many([rig.call("first"), rig.call("second")], moving.env(rig))
    assert [result.is_error for result in results] == [False, False]
    assert (moving.reasons, second.calls) == ([], [{}])
    assert [(one.decision, one.decided_by) for one in rig.events(CallDecided)] == [("allow", "policy")] * 2


@pytest.mark.parametrize("remember", ["tool", None])
async def test_a_call_that_another_policy_asks_about_by_now_is_asked_about_unless_a_grant_allows_it(
    remember: Remember | None,
) -> None:
    def tighten(arguments: Mapping[str, Json], context: ToolContext) -> str:
        del arguments, context
        rig.gate.policy = Policy(mode="safe", rules=[Rule(tool="first", decision=Decision.ALLOW)])
        return "tightened"

    first, second = changing("first", result=tighten), changing("second")
    approver = ScriptedApprover([Approval("approve", remember=remember), "deny"])
    rig = Rig(first, second, approver=approver)
    await rig.run("second", ask=True)
    results = await rig.run_many("first", "second")
    assert [result.is_error for result in results] == [False, remember is None]
    assert len(approver.requests) == (1 if remember else 2)
    assert len(second.calls) == (2 if remember else 1)


async def test_files_that_a_call_leaves_are_noted_for_grants_unless_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("1")
    noted: list[list[str]] = []
    monkeypatch.setattr(Grants, "note_left", lambda _, __, after: noted.append([path for path, _ in after]))

    def work(arguments: Mapping[str, Json], context: ToolContext) -> str:
        del context
        if arguments.get("fails"):
            raise ToolError("no")
        return "done"

    def resolve(facts: Facts, arguments: Mapping[str, Json] | None) -> Facts:
        del arguments
        return dataclasses.replace(facts, losses=stamps_of(tmp_path, ["a"]))

    approver = ScriptedApprover([Approval("approve", remember="shape")])
    rig = Rig(changing(result=work), approver=approver)
    rig.env = dataclasses.replace(rig.env, workspace=tmp_path, resolve_paths=resolve)
    assert not (await rig.run("write")).is_error
    assert noted == [], "no grant goes by what would be lost"
    assert not (await rig.run("write", ask=True)).is_error
    assert (await rig.run("write", {"fails": True})).is_error
    assert not (await rig.run("write")).is_error
    assert noted == [["a"]] * 2


async def test_a_call_that_is_different_each_time_is_given_up() -> None:
    moving, written = Moving("b", "c", "d", "e", "f"), changing()
    rig = Rig(written, approver=moving, policy=Policy(mode="safe"))
    result = await rig.gate.run(rig.call("write"), moving.env(rig))
    assert result.error_kind == "denied"
    assert "was different each time it was shown" in result.content
    assert len(moving.reasons) == 4
    assert written.calls == []


# ---- interrupts before a call is made


@pytest.mark.parametrize("way", ["run", "run_many"])
async def test_interrupt_of_announced_calls_stops_them(way: str) -> None:
    asked: list[ApprovalRequest] = []

    class Noting:
        async def ask(self, request: ApprovalRequest) -> Approval:
            asked.append(request)
            return Approval("approve")

    mock = changing()
    rig = Rig(mock, approver=Noting(), policy=Policy(mode="safe"))
    with rig.gate.announce() as announced:
        rig.gate.interrupt()
        if way == "run":
            results = [await rig.gate.run(rig.call("write"), rig.env, announced, ask=True)]
        else:
            results = await rig.gate.run_many([rig.call("write"), rig.call("write")], rig.env, announced)
    assert {result.content for result in results} == {INTERRUPTED_BEFORE.content}
    assert (asked, mock.calls) == ([], [])
    assert len(rig.events(CallFinished)) == len(results)
    with rig.gate.announce() as announced:
        result = await rig.gate.run(rig.call("write"), rig.env, announced, ask=True)
    assert (result.content, len(asked)) == ("done", 1)
