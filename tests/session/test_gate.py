"""What happens to one call, with fakes: every way in, every way out, and what is recorded of it."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from aisotools.core.events import (
    ApprovalAnswered,
    ApprovalAsked,
    CallDecided,
    CallEmitted,
    CallFinished,
    CallRequested,
    CallStarted,
    SessionEvent,
)
from aisotools.core.exceptions import ArgumentError, PathOutside, ToolError, WorkspaceError
from aisotools.core.protocols import OutputCaps, ToolContext
from aisotools.core.sandboxes import SandboxListener
from aisotools.core.types import (
    Approval,
    ApprovalRequest,
    Decision,
    Effect,
    Facts,
    Json,
    Origin,
    ToolCall,
    ToolResult,
)
from aisotools.policy.approvers import AllowAll, DenyAll, ScriptedApprover
from aisotools.policy.rules import UNKNOWN_ON_HOST, Mode, Policy, Rule
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.event_log import EventLog
from aisotools.session.gate import Gate
from aisotools.session.guards import CallEnvironment
from aisotools.session.host_calls import HostCalls
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry
from tests.conftest import OpenSession
from tests.ids import stable
from tests.waiting import HANG_S, LoopClock, eventually

STRICT: Mapping[str, Json] = {
    "type": "object",
    "properties": {"x": {"type": "integer"}},
    "required": ["x"],
    "additionalProperties": False,
}
WHOLE = ["call_requested", "call_decided", "call_started", "call_finished"]


def reading(name: str = "mock", **options: Any) -> MockTool:
    return MockTool(name, effect=Effect.READ_ONLY, **options)


def kinds(session: Session) -> list[str]:
    """The kinds of all events but those of the sandbox."""
    return [event.kind for event in session.events if not event.kind.startswith("sandbox")]


def only(session: Session, kind: type[SessionEvent]) -> Any:
    (event,) = [event for event in session.events if isinstance(event, kind)]
    return event


class Asked:
    """An approver that holds a question until the test answers it."""

    def __init__(self) -> None:
        self.request: ApprovalRequest | None = None
        self.standing = asyncio.Event()
        self.answer: asyncio.Future[Approval] = asyncio.get_running_loop().create_future()
        self.withdrawn = False

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.request = request
        self.standing.set()
        try:
            return await self.answer
        except asyncio.CancelledError:
            self.withdrawn = True
            raise


# ---- what a model can get wrong


async def test_an_unknown_tool_is_told_with_the_nearest(open_session: OpenSession) -> None:
    session = open_session(MockTool("file"), MockTool("python"))
    result = await session.call("fiel", {})
    assert result.content == "There is no tool named 'fiel'. Did you mean 'file'?"
    assert (result.error_kind, result.recoverable) == ("invalid", True)
    assert kinds(session) == ["call_requested", "call_finished"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "x is missing. Expected: x (integer, required)."),
        ({"x": "1"}, "x: does not fit type 'integer', got '1'"),
        ({"x": 1, "y": 2}, "y is not an argument"),
        (["x"], "must be an object with named values, not list ['x']"),
        ("x=1", "not str 'x=1'"),
        ({"x": object()}, "are not JSON"),
        ({"x": threading.Lock()}, "are not JSON"),
    ],
    ids=stable,
)
async def test_wrong_arguments_are_told_before_anybody_is_asked(
    open_session: OpenSession, arguments: Any, message: str
) -> None:
    mock, approver = MockTool(parameters=STRICT), ScriptedApprover(["approve"])
    session = open_session(mock, approver=approver)
    result = await session.call("mock", arguments)
    assert result.content.startswith("The arguments of mock")
    assert message in result.content
    assert (result.is_error, result.error_kind, result.recoverable) == (True, "invalid", True)
    assert (mock.calls, approver.requests) == ([], [])
    assert kinds(session) == ["call_requested", "call_finished"]


class Counted(dict[str, Any]):
    """Counts how often it is copied."""

    copies = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        Counted.copies += 1
        return dict(self)


@pytest.mark.parametrize("many", [False, True], ids=["one call", "in a batch"])
async def test_arguments_that_are_too_large_are_refused_and_neither_copied_nor_recorded(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    monkeypatch.setattr(Counted, "copies", 0)
    session = open_session(policy=Policy(mode="auto"))
    session.registry.register(reading())
    arguments = Counted({f"name{number}": number for number in range(2_000)})
    if many:
        (result,) = await session.call_many([ToolCall("c1", "mock", arguments)])
    else:
        result = await session.call("mock", arguments, call_id="c1")
    assert result.content == (
        "The arguments of mock have 2,000 names; a call takes at most 1,000. "
        "Write the data to a file and pass its path."
    )
    assert (result.is_error, result.recoverable, result.error_kind) == (True, True, "invalid")
    (requested,) = [event for event in session.events if isinstance(event, CallRequested)]
    assert (requested.call.name, requested.call.arguments) == ("mock", {})
    assert Counted.copies == 0
    with pytest.raises(ArgumentError, match="have 2,000 names"):
        session.explain(ToolCall("c2", "mock", arguments))
    assert (await session.call("mock", {"x": 1}, call_id="c1")).is_error  # the id is used


async def test_an_id_runs_at_most_once(open_session: OpenSession) -> None:
    mock = reading()
    session = open_session(mock)
    assert not (await session.call("mock", call_id="mine")).is_error
    again = await session.call("mock", call_id="mine")
    assert "The call id 'mine' was used before, and an id runs at most once." in again.content
    assert len(mock.calls) == 1


async def test_an_id_that_is_under_way_is_taken(open_session: OpenSession) -> None:
    release = asyncio.Event()

    async def run(arguments: Any, context: ToolContext) -> str:
        await release.wait()
        return "done"

    mock = reading(result=run)
    session = open_session(mock)
    running = asyncio.ensure_future(session.call("mock", call_id="mine"))
    await eventually(lambda: mock.calls)
    refused = await asyncio.gather(*(session.call("mock", call_id="mine") for _ in range(2)))
    assert [r.is_error for r in refused] == [True, True]
    release.set()
    assert not (await running).is_error
    assert len(mock.calls) == 1


@pytest.mark.parametrize("outcome", ["deny", "timeout", "cancel"])
async def test_a_rejected_id_can_never_run(open_session: OpenSession, outcome: Any) -> None:
    mock = MockTool()
    session = open_session(mock, approver=ScriptedApprover([outcome, "approve"]))
    assert (await session.call("mock", call_id="mine")).error_kind == "denied"
    assert "used before" in (await session.call("mock", call_id="mine")).content
    assert mock.calls == []


# ---- who may do what


@pytest.mark.sample(18)
@pytest.mark.parametrize("runs_in", ["host", "sandbox"])
@pytest.mark.parametrize("origin", get_args(Origin))
@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("effect", list(Effect))
async def test_modes_origins_and_effects(
    open_session: OpenSession, mode: Mode, origin: Origin, effect: Effect, runs_in: Any
) -> None:
    mock, approver = MockTool(effect=effect, runs_in=runs_in), ScriptedApprover(["approve"])
    session = open_session(mock, policy=Policy(mode=mode), approver=approver)
    result = await session.call("mock", origin=origin)
    if effect is Effect.READ_ONLY:
        decided_by = "typed" if origin == "person" else "policy"
    elif mode == "plan":
        decided_by = ""
    elif origin == "person":
        decided_by = "approver" if runs_in == "host" or effect is Effect.DESTRUCTIVE else "typed"
    elif mode == "auto":
        # Nothing holds a change on the host to the workspace: without declared files it is asked about.
        stays = effect is Effect.LOCAL_MUTATION and runs_in == "sandbox"
        decided_by = "policy" if stays else "approver"
    else:
        decided_by = "approver"
    decision = only(session, CallDecided)
    assert decision.decision is (Decision.ALLOW if decided_by else Decision.DENY)
    assert decision.decided_by == (decided_by or "policy")
    assert decision.effect is effect
    assert len(approver.requests) == (decided_by == "approver")
    assert result.is_error is not bool(decided_by), result.content
    assert len(mock.calls) == bool(decided_by)
    if not decided_by:
        assert result.content.startswith("mock was not run: mode plan allows only reading, and this is ")
        assert (result.error_kind, result.recoverable) == ("denied", False)


async def test_without_anybody_to_ask_it_is_denied_with_what_would_help(open_session: OpenSession) -> None:
    mock = MockTool()
    session = open_session(mock)
    result = await session.call("mock")
    assert result.error_kind == "denied"
    assert "Nobody can be asked here" in result.content
    assert "asked because it runs on the host, outside the sandbox, and nothing is known" in result.content
    assert "Give the session an approver, or a policy rule that allows the call" in result.content
    assert only(session, CallDecided).decided_by == "policy"
    assert mock.calls == []


@pytest.mark.parametrize("origin", get_args(Origin))
async def test_ask_asks_what_would_be_allowed(open_session: OpenSession, origin: Origin) -> None:
    approver = ScriptedApprover([Approval("deny", reason="not today")])
    session = open_session(reading(), approver=approver)
    result = await session.call("mock", origin=origin, ask=True)
    assert result.content == (
        "mock was not run: it was denied (not today); asked because the caller wants it approved."
    )
    assert approver.requests[0].reasons == ("the caller wants it approved",)


async def test_ask_does_not_lift_a_denial(open_session: OpenSession) -> None:
    approver = ScriptedApprover(["approve"])
    session = open_session(MockTool(), approver=approver, policy=Policy(mode="plan"))
    assert (await session.call("mock", ask=True)).error_kind == "denied"
    assert approver.requests == []


async def test_an_assigned_policy_counts_from_then_on(open_session: OpenSession) -> None:
    session = open_session(MockTool(), approver=DenyAll())
    assert (await session.call("mock")).is_error
    session.policy = Policy(rules=[Rule(tool="mock", decision=Decision.ALLOW)])
    assert not (await session.call("mock")).is_error


# ---- asking


async def test_the_question_shows_exactly_what_would_run(open_session: OpenSession) -> None:
    mock, approver = MockTool(parameters=STRICT, description="Does it."), ScriptedApprover(["approve"])
    session = open_session(mock, approver=approver)
    await session.call("mock", {"x": 1.0}, origin="model", call_id="c1")
    (request,) = approver.requests
    assert (request.call.id, request.call.name, request.call.origin) == ("c1", "mock", "model")
    assert request.call.arguments == mock.calls[0] == {"x": 1.0}
    assert request.definition.description == "Does it."
    assert (request.effect, request.level) == (Effect.LOCAL_MUTATION, "host")
    assert request.reasons == (UNKNOWN_ON_HOST,)
    assert kinds(session) == [
        "call_requested",
        "approval_asked",
        "approval_answered",
        "call_decided",
        "call_started",
        "checkpoint_taken",
        "call_finished",
    ]


async def test_the_question_tells_the_level_of_the_sandbox(open_session: OpenSession) -> None:
    approver = ScriptedApprover(["approve"])
    session = open_session(MockTool(runs_in="sandbox"), approver=approver)
    assert not (await session.call("mock")).is_error
    assert approver.requests[0].level == "confined"
    assert approver.requests[0].facts.runs_in == "sandbox"


async def test_edited_arguments_are_validated_shown_and_run(open_session: OpenSession) -> None:
    mock = MockTool(parameters=STRICT)
    session = open_session(mock, approver=ScriptedApprover([Approval("approve", arguments={"x": 2})]))
    assert not (await session.call("mock", {"x": 1})).is_error
    assert mock.calls == [{"x": 2}]
    decided = only(session, CallDecided)
    assert (decided.arguments, decided.decided_by) == ({"x": 2}, "approver")
    assert only(session, CallRequested).call.arguments == {"x": 1}


async def test_edited_arguments_that_do_not_fit_deny(open_session: OpenSession) -> None:
    mock = MockTool(parameters=STRICT)
    session = open_session(mock, approver=ScriptedApprover([Approval("approve", arguments={"y": 2})]))
    result = await session.call("mock", {"x": 1})
    assert result.content.startswith(
        "mock was not run: the edited arguments do not fit: The arguments of mock"
    )
    assert mock.calls == []


async def test_edited_arguments_are_checked_against_the_policy(open_session: OpenSession) -> None:
    rule = Rule(when=lambda call, facts: call.arguments["x"] > 9, decision=Decision.DENY, reason="too much")
    mock = MockTool(parameters=STRICT)
    session = open_session(
        mock,
        policy=Policy(rules=[rule]),
        approver=ScriptedApprover([Approval("approve", arguments={"x": 10})]),
    )
    assert (await session.call("mock", {"x": 1})).content == "mock was not run: too much."
    assert mock.calls == []


class Failing:
    async def ask(self, request: ApprovalRequest) -> Approval:
        raise ConnectionError("the front end is gone")


class Odd:
    async def ask(self, request: ApprovalRequest) -> Any:
        return True


@pytest.mark.parametrize(
    ("approver", "message"),
    [
        (Failing(), "it was denied (The approver failed: ConnectionError: the front end is gone)"),
        (Odd(), "it was denied (The approver returned bool, not an Approval)"),
        (ScriptedApprover([Approval("timeout", reason="Nobody answered within 300 s.")]), "nobody answered"),
        (ScriptedApprover(["cancel"]), "the question was cancelled"),
        (ScriptedApprover(), "it was denied (All 0 answers of the script are used up)"),
    ],
)
async def test_a_failing_approver_is_a_denial(open_session: OpenSession, approver: Any, message: str) -> None:
    mock = MockTool()
    session = open_session(mock, approver=approver)
    result = await session.call("mock")
    assert message in result.content
    assert result.error_kind == "denied"
    assert mock.calls == []
    assert kinds(session)[-2:] == ["call_decided", "call_finished"]
    assert only(session, ApprovalAnswered).request_id == only(session, ApprovalAsked).request.id


async def test_an_interrupt_calls_off_the_question(open_session: OpenSession) -> None:
    approver, mock = Asked(), MockTool()
    session = open_session(mock, approver=approver)
    calling = asyncio.ensure_future(session.call("mock"))
    await approver.standing.wait()
    await session.interrupt()
    result = await calling
    assert "the question was cancelled (Interrupted)" in result.content
    assert approver.withdrawn
    assert mock.calls == []


async def test_cancelling_the_caller_withdraws_the_question_and_is_recorded(
    open_session: OpenSession,
) -> None:
    approver, mock = Asked(), MockTool()
    session = open_session(mock, approver=approver)
    calling = asyncio.ensure_future(session.call("mock", call_id="c1"))
    await approver.standing.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert approver.withdrawn
    assert kinds(session) == ["call_requested", "approval_asked", "approval_answered", "call_finished"]
    assert only(session, ApprovalAnswered).approval.outcome == "cancel"
    assert only(session, CallFinished).result.content == "The call was cancelled."
    assert "used before" in (await session.call("mock", call_id="c1")).content


# ---- what is decided is what runs


async def test_later_changes_by_the_caller_do_not_run(open_session: OpenSession) -> None:
    approver, mock = Asked(), MockTool()
    session = open_session(mock, approver=approver)
    arguments: dict[str, Any] = {"paths": ["a"]}
    calling = asyncio.ensure_future(session.call("mock", arguments))
    await approver.standing.wait()
    arguments["paths"].append("/etc/passwd")
    arguments["more"] = True
    assert approver.request is not None
    assert approver.request.call.arguments == {"paths": ["a"]}
    approver.request.call.arguments["paths"].append("changed by the approver")
    approver.answer.set_result(Approval("approve"))
    await calling
    assert mock.calls == [{"paths": ["a"]}]
    assert only(session, CallRequested).call.arguments == {"paths": ["a"]}
    assert only(session, CallDecided).arguments == {"paths": ["a"]}


async def test_a_tool_that_is_replaced_while_the_question_stands_does_not_run(
    open_session: OpenSession,
) -> None:
    approver, shown, other = Asked(), MockTool(), MockTool(description="Another one.")
    session = open_session(shown, approver=approver)
    calling = asyncio.ensure_future(session.call("mock"))
    await approver.standing.wait()
    session.registry.unregister("mock")
    session.registry.register(other)
    approver.answer.set_result(Approval("approve"))
    result = await calling
    assert result.content == ("mock was not run: the tool changed between decision and run; call it again.")
    assert (shown.calls, other.calls) == ([], [])


async def test_a_tool_that_goes_away_while_the_question_stands_does_not_run(
    open_session: OpenSession,
) -> None:
    approver, mock = Asked(), MockTool()
    session = open_session(mock, approver=approver)
    calling = asyncio.ensure_future(session.call("mock"))
    await approver.standing.wait()
    session.registry.unregister("mock")
    approver.answer.set_result(Approval("approve"))
    assert "the tool changed" in (await calling).content
    assert mock.calls == []


async def test_the_tool_that_was_shown_runs_even_if_its_twin_took_its_place(
    open_session: OpenSession,
) -> None:
    # Two functions of the same code may close over different things.
    approver = Asked()
    given: list[str] = []

    def make(value: str) -> Any:
        @tool(runs_in="host")
        def twin() -> str:
            given.append(value)
            return value

        return twin

    session = open_session(make("shown"), approver=approver)
    calling = asyncio.ensure_future(session.call("twin"))
    await approver.standing.wait()
    session.registry.unregister("twin")
    session.registry.register(make("slipped in"))
    approver.answer.set_result(Approval("approve"))
    await calling
    assert given == ["shown"]


# ---- tools of strangers


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("classify", "its effects could not be determined (KeyError: 'x'); fix its classify()"),
        ("gather_facts", "its effects could not be determined (KeyError: 'x'); fix its classify()"),
        ("timeout_s", "mock was not called: the tool failed while checking the call"),
        (
            "validate_arguments",
            "mock was not called: the tool failed while checking the call",
        ),
        ("shipment", "mock was not called: the tool failed while checking the call"),
    ],
)
async def test_a_member_that_fails_is_named_and_nothing_runs(
    open_session: OpenSession, member: str, message: str
) -> None:
    def fail(*_: object) -> Any:
        raise KeyError("x")

    mock = MockTool()
    setattr(mock, member, fail)
    session = open_session(mock, approver=AllowAll(), policy=Policy(mode="auto"))
    result = await session.call("mock")
    assert message in result.content
    assert (result.is_error, result.recoverable) == (True, False)
    assert mock.calls == []


async def test_a_validator_that_gives_no_json_is_told(open_session: OpenSession) -> None:
    mock = MockTool()
    mock.validate_arguments = lambda arguments: {"x": object()}  # type: ignore[attr-defined]  # optional member
    session = open_session(mock, approver=AllowAll())
    assert "are not JSON" in (await session.call("mock")).content


async def test_a_rule_that_fails_denies(open_session: OpenSession) -> None:
    rule = Rule(tool="m*", when=lambda call, facts: bool(1 / 0))
    session = open_session(reading(), policy=Policy(rules=[rule]), approver=AllowAll())
    result = await session.call("mock")
    assert "the rule for 'm*' failed (ZeroDivisionError" in result.content
    assert result.error_kind == "denied"


async def test_facts_of_a_tool_do_not_say_where_it_runs(open_session: OpenSession) -> None:
    # The level and the place are the session's to tell.
    claims = Facts(effect=Effect.LOCAL_MUTATION, runs_in="sandbox", level="isolated")
    approver = ScriptedApprover(["approve"])
    session = open_session(MockTool(facts=claims), approver=approver)
    await session.call("mock", origin="person")
    assert (approver.requests[0].facts.runs_in, approver.requests[0].facts.level) == ("host", "confined")


async def test_a_function_that_cannot_travel_is_told(open_session: OpenSession) -> None:
    lock = threading.Lock()

    @tool(effect=Effect.READ_ONLY)
    def locked() -> bool:
        return lock.locked()

    session = open_session(locked)
    result = await session.call("locked")
    assert "locked cannot be sent to the sandbox" in result.content
    assert "runs_in='host'" in result.content


async def test_a_fault_in_a_part_given_to_us_is_a_result_and_logged(
    open_session: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeSandbox):
        async def call(self, request: Any) -> ToolResult:
            raise RuntimeError("no idea")

    session = open_session(reading(runs_in="sandbox"), sandbox=Broken)
    with caplog.at_level(logging.ERROR, "aisotools"):
        result = await session.call("mock")
    assert "by a fault in aisotools or a part given to it: RuntimeError: no idea" in result.content
    assert (result.error_kind, result.recoverable) == ("environment", False)
    assert "failed in the gate itself" in caplog.text
    assert kinds(session) == WHOLE


@pytest.mark.parametrize(
    ("number", "problem", "remedy"),
    [
        (errno.EMFILE, "Too many open files (EMFILE): '/proc/7/limits'. ", "raise the limit (`ulimit -n`)."),
        (
            errno.ENFILE,
            "Too many open files in system (ENFILE): '/proc/7/limits'. ",
            "raise the limit (`ulimit -n`).",
        ),
        (
            errno.ENOMEM,
            "Cannot allocate memory (ENOMEM): '/proc/7/limits'. ",
            "Free some memory, and make it again.",
        ),
    ],
)
@pytest.mark.parametrize("given", [False, True])
async def test_shortage_of_the_machine_is_no_fault_and_named(
    open_session: OpenSession, number: int, problem: str, remedy: str, given: bool
) -> None:
    class Short(FakeSandbox):
        async def call(self, request: Any) -> ToolResult:
            request.dispatch.is_given = given
            raise OSError(number, os.strerror(number), "/proc/7/limits")

    session = open_session(reading(runs_in="sandbox"), sandbox=Short)
    result = await session.call("mock")
    assert "fault" not in result.content
    happened = "mock could not be completed, and may have run: " if given else "mock was not run: "
    assert result.content.startswith(happened + problem)
    assert result.content.endswith(remedy)
    assert (result.error_kind, result.recoverable) == ("environment", True)
    assert kinds(session) == WHOLE


async def test_a_race_in_the_workspace_is_a_result_of_one_line(
    open_session: OpenSession, caplog: pytest.LogCaptureFixture
) -> None:
    class Swapped(FakeSandbox):
        async def call(self, request: Any) -> ToolResult:
            raise WorkspaceError("'a' became a link while it was used.")

    session = open_session(reading(runs_in="sandbox"), sandbox=Swapped)
    with caplog.at_level(logging.ERROR, "aisotools"):
        result = await session.call("mock")
    assert result.content == (
        "mock could not be completed: 'a' became a link while it was used. Make the call again."
    )
    assert result.error_kind == "environment"
    assert not caplog.text
    assert kinds(session) == WHOLE


# ---- running on the host


@pytest.mark.parametrize(
    ("raises", "kind", "message"),
    [
        (ToolError("give another path"), "invalid", "give another path"),
        (PathOutside("'../x' leads out"), "invalid", "'../x' leads out"),
        (ValueError("broken"), "failed", "ValueError: broken"),
        (TimeoutError("its own"), "failed", "TimeoutError: its own"),
        (SystemExit(1), "failed", "The tool tried to exit (1). Only the call was ended."),
    ],
    ids=lambda part: type(part).__name__,
)
async def test_an_exception_of_a_host_tool_is_its_result(
    open_session: OpenSession, raises: BaseException, kind: str, message: str
) -> None:
    session = open_session(reading(raises=raises))
    result = await session.call("mock")
    assert result.content.startswith(message)
    assert (result.is_error, result.error_kind) == (True, kind)
    assert kinds(session) == WHOLE


class Returning:
    """A tool that returns whatever it was given."""

    name, description = "returning", "Returns."

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def classify(self, arguments: Mapping[str, Json]) -> Effect:
        return Effect.READ_ONLY

    def parameters_schema(self) -> Mapping[str, Json]:
        return {"type": "object"}

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        answer: ToolResult = self.answer
        return answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "returning returned NoneType instead of a ToolResult; fix its execute()."),
        ("text", "returning returned str instead of a ToolResult"),
        (ToolResult(content=5), "whose content is int, not text"),  # type: ignore[arg-type]  # the point
    ],
)
async def test_a_host_tool_that_returns_no_result_is_told(
    open_session: OpenSession, answer: Any, message: str
) -> None:
    session = open_session(Returning(answer))
    result = await session.call("returning")
    assert message in result.content
    assert not result.recoverable


async def test_a_host_tool_is_called_off_at_its_deadline(open_session: OpenSession) -> None:
    seen: list[ToolContext] = []

    async def slow(arguments: Any, context: ToolContext) -> str:
        seen.append(context)
        await asyncio.Event().wait()
        return "never"

    session = open_session(reading(result=slow, timeout_s=0.05))
    result = await session.call("mock")
    assert result.content == (
        "mock was called off: it ran longer than 0.05 s. "
        "It runs on the host, where only the tool itself can end its work."
    )
    assert result.metadata["timed_out"] is True
    assert result.is_error
    assert seen[0].cancellation.cancelled


async def test_the_callers_deadline_beats_the_tools(open_session: OpenSession) -> None:
    session = open_session(reading(result=lambda a, c: asyncio.Event().wait(), timeout_s=1000))
    assert "0.05 s" in (await session.call("mock", timeout_s=0.05)).content


async def test_waiting_for_a_person_does_not_count_against_the_deadline(open_session: OpenSession) -> None:
    approver = Asked()
    clock = LoopClock()
    session = open_session(MockTool(timeout_s=50), approver=approver)
    calling = asyncio.ensure_future(session.call("mock"))
    await approver.standing.wait()
    await clock.advance(100)
    approver.answer.set_result(Approval("approve"))
    assert not (await calling).is_error


async def test_a_host_tool_that_ignores_cancellation_holds_nobody(open_session: OpenSession) -> None:
    released = asyncio.Event()

    async def stubborn(arguments: Any, context: ToolContext) -> str:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    mock = reading(result=stubborn, timeout_s=0.05)
    session = open_session(mock)
    assert (await session.call("mock")).metadata["timed_out"] is True  # although the tool runs on
    calling = asyncio.ensure_future(session.call("mock", timeout_s=1000))
    await eventually(lambda: len(mock.calls) == 2)
    await session.interrupt()
    assert (await calling).metadata["stopped"] is True
    released.set()
    await asyncio.sleep(0)


async def test_a_sync_host_tool_sees_that_it_should_stop(open_session: OpenSession) -> None:
    stopped = threading.Event()

    @tool(runs_in="host", effect=Effect.READ_ONLY, timeout_s=0.05)
    def patient(context: ToolContext) -> None:
        if context.cancellation.wait(HANG_S):
            stopped.set()

    session = open_session(patient)
    assert (await session.call("patient")).metadata["timed_out"] is True
    assert await asyncio.to_thread(stopped.wait, HANG_S)


async def test_an_interrupt_ends_a_host_tool(open_session: OpenSession) -> None:
    begun = asyncio.Event()

    async def slow(arguments: Any, context: ToolContext) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    session = open_session(reading(result=slow))
    calling = asyncio.ensure_future(session.call("mock"))
    await begun.wait()
    await session.interrupt()
    result = await calling
    assert result.content.startswith("mock was interrupted.")
    assert result.metadata["stopped"] is True


async def test_cancelling_the_caller_cancels_the_host_tool(open_session: OpenSession) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(arguments: Any, context: ToolContext) -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    session = open_session(reading(result=slow))
    calling = asyncio.ensure_future(session.call("mock"))
    await begun.wait()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await ended.wait()
    assert only(session, CallFinished).result.content == "The call was cancelled."


async def test_a_host_tool_knows_its_call(open_session: OpenSession) -> None:
    def report(arguments: Any, context: ToolContext) -> str:
        context.emit("step", number=1)
        return "done"

    mock = reading(result=report)
    session = open_session(mock, session_key="conversation", approver=DenyAll())
    await session.call("mock", call_id="c1", origin="model")
    (context,) = mock.contexts
    assert (context.call_id, context.session_key) == ("c1", "conversation")
    assert context.workspace_path == session.workspace
    assert context.sandbox_config == {"level": "confined"}
    assert isinstance(context.approval_handler, DenyAll)
    emitted = only(session, CallEmitted)
    assert (emitted.call_id, emitted.name, emitted.payload) == ("c1", "step", {"number": 1})


@pytest.mark.parametrize(("origin", "passed_on"), [("person", "program"), ("model", "model")])
async def test_a_host_tool_calls_through_the_same_gate(
    open_session: OpenSession, origin: Origin, passed_on: Origin
) -> None:
    async def outer(arguments: Any, context: ToolContext) -> ToolResult:
        assert context.services is not None
        return await context.services.call("inner", {"x": 1})

    inner, approver = MockTool("inner"), ScriptedApprover(["deny"])
    session = open_session(reading("outer", result=outer), inner, approver=approver)
    result = await session.call("outer", origin=origin)
    assert "inner was not run" in result.content
    assert approver.requests[0].call.origin == passed_on
    assert inner.calls == []


# ---- results


async def test_a_value_that_the_declared_type_forbids_is_told(open_session: OpenSession) -> None:
    class Lying(FakeSandbox):
        async def call(self, request: Any) -> ToolResult:
            return ToolResult.json({"rm": "-rf"})

    @tool(effect=Effect.READ_ONLY)
    def count() -> int:
        return 1

    session = open_session(count, sandbox=Lying)
    result = await session.call("count")
    assert result.is_error
    assert result.content.startswith(
        "count returned {'rm': '-rf'}, which does not fit its declared return type int"
    )


async def test_a_value_check_that_fails_is_told(open_session: OpenSession) -> None:
    def fail(value: Json) -> None:
        raise KeyError("x")

    mock = reading()
    mock.validate_value = fail  # type: ignore[attr-defined]  # an optional member
    session = open_session(mock)
    assert (await session.call("mock")).content.startswith("mock ran, but its validate_value failed.")


async def test_huge_content_is_cut_for_the_model_and_kept_for_the_program(open_session: OpenSession) -> None:
    session = open_session(reading(result="x" * 10_000_000), output_caps=OutputCaps(content_chars=1000))
    result = await session.call("mock")
    assert len(result.content) <= 1000
    assert result.truncation is not None
    assert result.truncation.total_chars == 10_000_000
    assert len(result.value) == 10_000_000
    assert only(session, CallFinished).result.truncation == result.truncation


async def test_a_result_names_its_tool_and_call(open_session: OpenSession) -> None:
    result = await open_session(reading()).call("mock", call_id="c1")
    assert (result.metadata["tool"], result.metadata["call_id"]) == ("mock", "c1")


# ---- the sandbox


async def test_a_function_runs_in_the_sandbox(open_session: OpenSession) -> None:
    @tool(effect=Effect.READ_ONLY)
    def area(width: float, context: ToolContext) -> dict[str, Any]:
        context.emit("half", done=0.5)
        return {"area": width * 2, "services": context.services is None, "id": context.call_id}

    session = open_session(area)
    result = await session.call("area", {"width": "2"}, call_id="c1")
    assert result.value == {"area": 4.0, "services": True, "id": "c1"}
    assert only(session, CallStarted).runs_in == "sandbox"
    assert only(session, CallEmitted).payload == {"done": 0.5}
    assert kinds(session) == [*WHOLE[:3], "call_emitted", "call_finished"]


async def test_a_worker_that_dies_is_told_and_replaced(open_session: OpenSession) -> None:
    made: list[FakeSandbox] = []

    class Watched(FakeSandbox):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    async def wait(arguments: Any, context: ToolContext) -> str:
        context.emit("begun")
        if len(mock.calls) == 1:
            await asyncio.Event().wait()
        return "alive"

    mock = reading(runs_in="sandbox", result=wait)
    session = open_session(mock, sandbox=Watched)
    begun = asyncio.Event()
    session.subscribe(lambda event: begun.set() if isinstance(event, CallEmitted) else None)
    calling = asyncio.ensure_future(session.call("mock"))
    await begun.wait()
    made[0].lose("it was ended by SIGSEGV")
    result = await calling
    assert "ended during the call: it was ended by SIGSEGV" in result.content
    assert (result.error_kind, result.metadata["worker_died"]) == ("environment", True)
    assert not (await session.call("mock")).is_error
    sandbox = [event.kind for event in session.events if event.kind.startswith("sandbox")]
    assert sandbox == ["sandbox_started", "sandbox_lost", "sandbox_started"]


@pytest.mark.parametrize("name", ["python", "sandbox_bash"])
async def test_the_fake_says_what_it_cannot_do(open_session: OpenSession, name: str) -> None:
    session = open_session(approver=AllowAll())
    result = await session.call(name, {"code": "1"} if name == "python" else {"command": "true"})
    assert f"{name} needs a real worker, and FakeSandbox has none" in result.content
    assert result.error_kind == "environment"


# ---- the gate by itself


def bare_gate(
    *tools: Any, approver: Any = None, policy: Policy | None = None
) -> tuple[Gate, CallEnvironment]:
    event_log = EventLog()
    gate = Gate(
        registry=ToolRegistry(tools),
        policy=Policy(mode="auto"),
        approver=None,
        event_log=event_log,
        caps=OutputCaps(),
        call_timeout_s=5,
        session_key="k",
    )
    listener: SandboxListener = event_log
    spec = WorkerSpec(level="confined", workspace="/nowhere", limits=Limits())
    env = CallEnvironment(sandbox=FakeSandbox(spec, listener), level="confined", workspace=Path("/nowhere"))
    return gate, env


async def test_a_blocked_gate_runs_nothing_and_says_why() -> None:
    mock = reading()
    gate, env = bare_gate(mock)
    assert not (await gate.run(ToolCall("1", "mock", {}), env)).is_error
    gate.block("nothing can be recorded")
    gate.block("a later reason")
    result = await gate.run(ToolCall("2", "mock", {}), env)
    assert result.content == "mock was not run: nothing can be recorded."
    assert (result.error_kind, result.recoverable) == ("environment", False)
    await gate.close()
    assert "the session was closed" in (await gate.run(ToolCall("3", "mock", {}), env)).content
    assert len(mock.calls) == 1
    assert (gate.calls, gate.knows("3"), gate.knows("4")) == (3, True, False)


async def test_a_narrowed_gate_allows_less_until_it_is_lifted() -> None:
    mock = MockTool(facts=Facts(writes=("a",)))
    gate, env = bare_gate(mock)
    lift = gate.narrow(Policy(mode="plan"))
    assert (await gate.run(ToolCall("1", "mock", {}), env)).error_kind == "denied"
    assert gate.effective_policy().bounds == (Policy(mode="plan"),)
    lift()
    assert not (await gate.run(ToolCall("2", "mock", {}), env)).is_error
    bound = dataclasses.replace(env, workspace_policy=Policy(mode="plan"))
    assert (await gate.run(ToolCall("3", "mock", {}), bound)).error_kind == "denied"
    assert [one.is_error for one in await gate.run_many([ToolCall("4", "mock", {})], bound)] == [True]
    assert len(mock.calls) == 1


async def test_a_tool_of_the_session_replaces_the_registrys_for_one_call() -> None:
    class Own(MockTool):
        caps = OutputCaps(value_bytes=7)

        async def receive(self, result: ToolResult) -> ToolResult:
            return ToolResult.text(f"received {result.content}")

    gate, env = bare_gate()
    for runs_in in ("host", "sandbox"):
        own = Own("own", effect=Effect.READ_ONLY, result="own", runs_in=runs_in)
        result = await gate.run(ToolCall(runs_in, "own", {}), env, tool=own)
        assert result.content == "received own"
        assert len(own.calls) == 1
    assert (await gate.run(ToolCall("3", "own", {}), env)).error_kind == "invalid"


async def test_a_preparation_runs_and_records_nothing() -> None:
    mock = reading()
    gate, env = bare_gate(mock)
    prepared = gate.prepare(ToolCall("1", "mock", {}), "confined", env)
    assert (prepared.tool, prepared.evaluation.decision) == (mock, Decision.ALLOW)
    assert (mock.calls, gate.calls) == ([], 0)
    assert gate.prepare(ToolCall("1", "mock", {}), "guarded").facts.level == "guarded"


async def test_facts_of_a_changing_call_say_whether_undo_covers_it() -> None:
    gate, env = bare_gate(MockTool("write"), reading("read"))
    env = dataclasses.replace(env, can_undo=lambda facts: True)
    assert gate.prepare(ToolCall("1", "write", {}), "confined", env).facts.undoable
    assert not gate.prepare(ToolCall("1", "read", {}), "confined", env).facts.undoable
    assert not gate.prepare(ToolCall("1", "write", {}), "confined").facts.undoable


async def test_results_of_reading_calls_alone_are_shown_to_the_reader() -> None:
    shown: list[str] = []

    def on_read(_prepared: object, result: ToolResult) -> ToolResult:
        shown.append(result.content)
        return ToolResult.text("seen")

    gate, env = bare_gate(
        reading("read", result="r"), MockTool("write", facts=Facts(writes=("a",)), result="w")
    )
    env = dataclasses.replace(env, on_read=on_read)
    assert (await gate.run(ToolCall("1", "read", {}), env)).content == "seen"
    assert (await gate.run(ToolCall("2", "write", {}), env)).content == "w"
    assert shown == ["r"]


async def test_a_host_tool_that_ignores_its_cancellation_gives_control_back() -> None:
    release = asyncio.Event()

    class Stubborn(MockTool):
        async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
            self.context = context
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            return ToolResult.text("too late")

    mock = Stubborn()
    calls = HostCalls()
    context = ToolContext()
    result = await calls.run(mock, ToolCall("1", "mock", {}), context, 0.01)
    assert result.metadata["timed_out"] is True
    assert "ran longer than 0.01 s" in result.content
    assert context.cancellation.cancelled
    assert repr(calls) == "<HostCalls 0 running>"
    release.set()


async def test_interrupting_stops_what_runs_on_the_host() -> None:
    started = asyncio.Event()

    async def endless(_arguments: Mapping[str, Json], _context: ToolContext) -> ToolResult:
        started.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it is cancelled before")

    gate, env = bare_gate(MockTool("m", effect=Effect.READ_ONLY, result=endless))
    running = asyncio.ensure_future(gate.run(ToolCall("1", "m", {}), env))
    await started.wait()
    gate.interrupt()
    gate.interrupt()
    result = await running
    assert result.content.startswith("m was interrupted.")
    assert result.metadata["stopped"] is True


@pytest.mark.parametrize(
    ("origin", "inner"), [("person", "program"), ("program", "program"), ("model", "model")]
)
async def test_an_inner_call_has_its_callers_origin_but_no_persons_consent(origin: Any, inner: Any) -> None:
    async def outer(_arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        assert context.services is not None
        return await context.services.call("inner", {"x": 1})

    gate, env = bare_gate(
        MockTool("outer", effect=Effect.READ_ONLY, result=outer, runs_in="host"),
        reading("inner", result="in"),
    )
    assert (await gate.run(ToolCall("1", "outer", {}, origin=origin), env)).content == "in"
    requested = [e for e in gate._event_log.events if isinstance(e, CallRequested)]
    assert [event.call.origin for event in requested] == [origin, inner]
    assert requested[1].call.id.startswith("1/")
    assert requested[1].call.arguments == {"x": 1}


async def test_a_longer_deadline_than_a_day_is_a_day_and_the_callers_own_counts() -> None:
    deadlines: list[float] = []

    class Listening(FakeSandbox):
        async def call(self, request: Any) -> ToolResult:
            deadlines.append(request.timeout_s)
            return ToolResult.text("done")

    gate, env = bare_gate(
        reading("long", timeout_s=1e9, runs_in="sandbox"), reading("usual", runs_in="sandbox")
    )
    spec = WorkerSpec(level="confined", workspace="/nowhere", limits=Limits())
    env = dataclasses.replace(env, sandbox=Listening(spec, gate._event_log))
    await gate.run(ToolCall("1", "long", {}), env)
    await gate.run(ToolCall("2", "usual", {}), env)
    await gate.run(ToolCall("3", "usual", {}), env, timeout_s=2.0)
    assert deadlines == [86_400.0, 5, 2.0]


async def test_calls_of_a_batch_that_were_cancelled_before_their_turn_are_recorded_as_ended() -> None:
    started = asyncio.Event()

    async def endless(_arguments: Mapping[str, Json], _context: ToolContext) -> ToolResult:
        started.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it is cancelled before")

    gate, env = bare_gate(MockTool("m", facts=Facts(writes=("a",)), result=endless), reading("r"))
    batch = asyncio.ensure_future(gate.run_many([ToolCall("1", "m", {}), ToolCall("2", "r", {})], env))
    await started.wait()
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    finished = {e.call_id: e.result for e in gate._event_log.events if isinstance(e, CallFinished)}
    assert {name: result.content for name, result in finished.items()} == dict.fromkeys(
        ["1", "2"], "The call was cancelled."
    )


@pytest.mark.parametrize("cancelled", [False, True])
async def test_long_result_is_written_in_a_thread_and_recorded_whoever_is_cancelled(
    open_session: OpenSession, cancelled: bool
) -> None:
    """A text that would fit into the memory for texts goes to the file as well: the thread has it anyway."""
    text = "long\n" * (1 << 18)
    session = open_session(reading(result=text))
    calling = asyncio.ensure_future(session.call("mock"))
    await eventually(lambda: len(session.results) == 1)
    if cancelled:
        calling.cancel()
    await asyncio.wait([calling])
    assert calling.cancelled() is cancelled
    finished = only(session, CallFinished).result
    assert finished.truncation.total_chars == len(text)
    assert session.results[finished.truncation.ref].text == text
    assert "1 in files" in repr(session.results)
