"""Approvals: what an answer decides, what is recorded of it, and how open questions end."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin.files import sandbox_write
from aisotools.core.events import ApprovalAnswered, ApprovalAsked, GrantRevoked, ProtectedNamesAllowed
from aisotools.core.exceptions import SandboxError
from aisotools.core.protocols import Approver, ToolPayload, UserQuestion
from aisotools.core.sandboxes import CallDispatch, SandboxListener, SandboxStatus
from aisotools.core.types import (
    Approval,
    ApprovalRequest,
    Decision,
    Effect,
    Facts,
    Json,
    Remember,
    RunsIn,
    ToolCall,
)
from aisotools.policy.approvers import ScriptedApprover
from aisotools.policy.prepared import CallDecision, CallRequest, PreparedCall, prepare_call
from aisotools.policy.rules import Policy, Rule
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.approvals import ApprovalManager
from aisotools.session.approvers import set_default_approver_factory
from aisotools.session.event_log import EventLog
from aisotools.session.guards import CallEnvironment
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.workspace.workspace import Workspace
from tests.waiting import as_soon_as, loop_turns

SAFE = Policy(mode="safe")


class CountingSandbox(FakeSandbox):
    """Counts how often it is asked to start."""

    starts = 0

    async def start(self) -> SandboxStatus:
        self.starts += 1
        return await super().start()


class Setup:
    """A manager, the environment of its calls, and the events that it recorded."""

    def __init__(self, approver: Approver | None = None, **environment: Any) -> None:
        self.event_log = EventLog()
        self.manager = ApprovalManager(approver, self.event_log, 7.0)
        listener: SandboxListener = self.event_log
        spec = WorkerSpec(level="confined", workspace="/nowhere", limits=Limits())
        self.sandbox = CountingSandbox(spec, listener)
        self.env = CallEnvironment(
            sandbox=self.sandbox, level="confined", workspace=Path("/nowhere"), **environment
        )

    def decision(
        self,
        call_id: str = "c",
        arguments: Mapping[str, Json] | None = None,
        *,
        runs_in: RunsIn = "host",
        policy: Policy = SAFE,
        effect: Effect = Effect.LOCAL_MUTATION,
    ) -> CallDecision:
        tool = MockTool("m", effect=effect, runs_in=runs_in)
        call = ToolCall(call_id, "m", arguments or {"x": 1}, origin="model")
        prepared = prepare_call(tool, call, policy, "confined")
        return CallDecision(prepared, Decision.ASK, "policy", prepared.evaluation.reasons)

    async def resolve(self, *decisions: CallDecision, policy: Policy = SAFE) -> list[CallDecision]:
        return await self.manager.resolve(decisions, self.env, lambda: policy)

    def events(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.event_log.events if isinstance(event, kind)]


async def test_an_approval_allows_and_both_events_are_recorded() -> None:
    setup = Setup(ScriptedApprover(["approve"]))
    (decision,) = await setup.resolve(setup.decision("c"))
    assert (decision.decision, decision.decided_by) == (Decision.ALLOW, "approver")
    assert decision.reasons == decision.prepared.evaluation.reasons
    (asked,) = setup.events(ApprovalAsked)
    (answered,) = setup.events(ApprovalAnswered)
    assert (asked.call_id, answered.call_id) == ("c", "c")
    assert answered.request_id == asked.request.id
    assert answered.approval.outcome == "approve"
    assert (asked.request.timeout_s, asked.request.effect) == (7.0, Effect.LOCAL_MUTATION)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Approval("deny"), "it was denied"),
        (Approval("deny", reason="Not today."), "it was denied (Not today)"),
        (Approval("timeout"), "nobody answered in time"),
        (Approval("cancel"), "the question was cancelled"),
    ],
)
async def test_every_other_answer_denies_and_says_why(answer: Approval, reason: str) -> None:
    setup = Setup(ScriptedApprover([answer]))
    (decision,) = await setup.resolve(setup.decision())
    assert (decision.decision, decision.decided_by) == (Decision.DENY, "approver")
    assert decision.reasons == (reason, "asked because it is a local change")


async def test_without_anybody_to_ask_the_policy_decides() -> None:
    setup = Setup(None)
    (decision,) = await setup.resolve(setup.decision())
    assert (decision.decision, decision.decided_by) == (Decision.DENY, "policy")
    assert len(setup.events(ApprovalAsked)) == len(setup.events(ApprovalAnswered)) == 1
    assert setup.sandbox.starts == 0


async def test_another_approver_may_be_asked_this_once() -> None:
    setup = Setup(ScriptedApprover(["deny"]))
    once = ScriptedApprover(["approve"])
    (decision,) = await setup.manager.resolve([setup.decision()], setup.env, Policy, once)
    assert decision.decision is Decision.ALLOW
    assert len(once.requests) == 1


async def test_several_calls_get_their_own_answers_in_order() -> None:
    setup = Setup(ScriptedApprover(["approve", "deny", "approve"]))
    decisions = await setup.resolve(*(setup.decision(name) for name in ("a", "b", "c")))
    assert [one.decision for one in decisions] == [Decision.ALLOW, Decision.DENY, Decision.ALLOW]
    assert [one.prepared.original.id for one in decisions] == ["a", "b", "c"]


# ---- edited arguments


async def test_edited_arguments_are_a_new_call_that_is_not_asked_about_again() -> None:
    setup = Setup(ScriptedApprover([Approval("approve", arguments={"x": 2})]))
    (decision,) = await setup.resolve(setup.decision(arguments={"x": 1}))
    assert decision.decision is Decision.ALLOW
    assert decision.prepared.arguments == {"x": 2}
    assert len(setup.events(ApprovalAsked)) == 1


async def test_edited_arguments_are_checked_against_the_policy_of_when_they_come() -> None:
    policies = [SAFE]

    def edit(_request: ApprovalRequest) -> Approval:
        policies.append(Policy(rules=[Rule(decision=Decision.DENY, reason="never")]))
        return Approval("approve", arguments={"x": 2})

    setup = Setup(ScriptedApprover([edit]))
    (decision,) = await setup.manager.resolve([setup.decision()], setup.env, lambda: policies[-1])
    assert (decision.decision, decision.reasons) == (Decision.DENY, ("never",))


@pytest.mark.parametrize("remember", ["tool", "call"])
async def test_edited_arguments_that_a_rule_denies_stay_denied_and_are_not_remembered(
    remember: Remember,
) -> None:
    policy = Policy(rules=[Rule(decision=Decision.DENY, when={"arguments": {"x": 2}}, reason="never 2")])
    setup = Setup(ScriptedApprover([Approval("approve", arguments={"x": 2}, remember=remember)]))
    (decision,) = await setup.resolve(setup.decision(), policy=policy)
    assert (decision.decision, decision.reasons) == (Decision.DENY, ("never 2",))
    assert len(setup.manager.grants) == 0


async def test_edited_arguments_that_do_not_fit_deny() -> None:
    setup = Setup(ScriptedApprover([Approval("approve", arguments={"x": object()})]))
    (decision,) = await setup.resolve(setup.decision())
    assert decision.decision is Decision.DENY
    assert decision.reasons[0].startswith("the edited arguments do not fit: ")


# ---- remembering


async def test_an_approval_that_is_remembered_becomes_a_grant_and_its_end_an_event() -> None:
    setup = Setup(ScriptedApprover([Approval("approve", remember="call")]))
    (decision,) = await setup.resolve(setup.decision())
    assert setup.manager.grants.find(decision.prepared) is not None
    setup.manager.grants.clear()
    assert [event.scope for event in setup.events(GrantRevoked)] == ["call"]


async def test_a_denial_is_not_remembered() -> None:
    setup = Setup(ScriptedApprover(["deny"]))
    await setup.resolve(setup.decision())
    assert len(setup.manager.grants) == 0


# ---- what a request says


async def test_a_request_names_where_the_call_runs_and_what_undo_covers() -> None:
    async def describe_undo(_prepared: object) -> str:
        return "Undo covers it."

    approver = ScriptedApprover(["approve", "approve"])
    setup = Setup(approver, describe_undo=describe_undo)
    await setup.resolve(setup.decision("h"), setup.decision("s", runs_in="sandbox"))
    assert [request.level for request in approver.requests] == ["host", "confined"]
    assert {request.preview["undo"] for request in approver.requests} == {"Undo covers it."}
    assert "call" in approver.requests[0].preview["remember"]
    assert approver.requests[0].definition.name == "m"


async def test_request_names_a_call_that_would_run_without_write_rights() -> None:
    approver = ScriptedApprover(["approve"] * 3)
    setup = Setup(approver)
    for runs_in, effect in (
        ("sandbox", Effect.READ_ONLY),
        ("host", Effect.READ_ONLY),
        ("sandbox", Effect.LOCAL_MUTATION),
    ):
        call = ToolCall("c", "m", {}, origin="model")
        tool = MockTool("m", effect=effect, runs_in=runs_in)  # type: ignore[arg-type]  # one of the two
        prepared = prepare_call(tool, call, SAFE, "confined", has_readers=True)
        await setup.resolve(CallDecision(prepared, Decision.ASK, "policy", ()))
    assert [request.in_reader for request in approver.requests] == [True, False, False]


async def test_a_change_of_a_file_is_shown_for_our_own_tools_and_not_for_one_that_names_them(
    tmp_path: Path,
) -> None:
    class Impostor(MockTool):
        """Names one of our own tools as what the worker is to import."""

        def shipment(self) -> ToolPayload:
            return ToolPayload(key="x", import_path="aisotools.builtin.files:sandbox_write")

    approver = ScriptedApprover(["approve", "approve"])
    setup = Setup(approver)
    setup.env = dataclasses.replace(setup.env, workspace=tmp_path, files=Workspace(tmp_path))
    for one in (sandbox_write, Impostor("write", effect=Effect.LOCAL_MUTATION)):
        call = ToolCall("c", one.name, {"path": "a", "content": "new"}, origin="model")
        prepared = prepare_call(one, call, SAFE, "confined")
        await setup.resolve(CallDecision(prepared, Decision.ASK, "policy", ()))
    ours, strangers = approver.requests
    assert ours.preview["diff"]["added"] == 1
    assert "diff" not in strangers.preview


async def test_a_call_that_the_policy_would_allow_says_that_its_caller_wants_a_question() -> None:
    approver = ScriptedApprover(["approve"])
    setup = Setup(approver)
    await setup.resolve(setup.decision(effect=Effect.READ_ONLY))
    assert approver.requests[0].reasons == ("the caller wants it approved",)


async def test_the_sandbox_starts_while_a_person_thinks_if_a_call_needs_it() -> None:
    setup = Setup(ScriptedApprover(["approve", "approve"]))
    await setup.resolve(setup.decision("h"))
    assert setup.sandbox.starts == 0
    await setup.resolve(setup.decision("s", runs_in="sandbox"))
    await asyncio.sleep(0)
    assert setup.sandbox.starts == 1
    await setup.manager.close()


async def test_sandbox_does_not_start_while_a_person_thinks_if_it_would_take_the_place_of_another() -> None:
    class Placed(CountingSandbox):
        has_place = False

        def start_at_once(self) -> asyncio.Task[SandboxStatus] | None:
            return asyncio.ensure_future(self.start()) if self.has_place else None

    setup = Setup(ScriptedApprover(["approve", "approve"]))
    spec = WorkerSpec(level="confined", workspace="/nowhere", limits=Limits())
    setup.env = dataclasses.replace(setup.env, sandbox=(sandbox := Placed(spec, setup.event_log)))
    await setup.resolve(setup.decision("s", runs_in="sandbox"))
    await loop_turns()
    assert sandbox.starts == 0
    sandbox.has_place = True
    await setup.resolve(setup.decision("s", runs_in="sandbox"))
    await loop_turns()
    assert sandbox.starts == 1
    await setup.manager.close()


async def test_a_sandbox_that_starts_while_a_person_thinks_is_not_forgotten() -> None:
    """The event loop holds its tasks weakly."""

    class Starting(CountingSandbox):
        waiting: weakref.ref[asyncio.Future[None]] | None = None

        async def start(self) -> SandboxStatus:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting = weakref.ref(future)
            await future
            return await super().start()

    setup = Setup(ScriptedApprover(["approve"]))
    spec = WorkerSpec(level="confined", workspace="/nowhere", limits=Limits())
    sandbox = Starting(spec, setup.event_log)
    setup.env = dataclasses.replace(setup.env, sandbox=sandbox)
    await setup.resolve(setup.decision("s", runs_in="sandbox"))
    await loop_turns()
    gc.collect()
    assert sandbox.waiting is not None
    future = sandbox.waiting()
    assert future is not None, "the start goes on"
    future.set_result(None)
    await loop_turns()
    assert sandbox.starts == 1
    await setup.manager.close()


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_closing_ends_a_sandbox_that_starts_and_reports_nothing(turns: int) -> None:
    ended: list[str] = []

    class Starting(CountingSandbox):
        async def start(self) -> SandboxStatus:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("start")
            return await super().start()

    reports: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, report: reports.append(report))
    setup = Setup(ScriptedApprover(["approve"]))
    spec = WorkerSpec(level="confined", workspace="/nowhere", limits=Limits())
    setup.env = dataclasses.replace(setup.env, sandbox=Starting(spec, setup.event_log))
    await setup.resolve(setup.decision("s", runs_in="sandbox"))
    for _ in range(turns):
        await asyncio.sleep(0)
    await setup.manager.close()
    assert ended == ["start"]
    await loop_turns()
    gc.collect()
    assert reports == []


async def test_a_call_expects_what_earlier_ones_of_its_batch_change() -> None:
    """Of what it would lose or reads, that is what they write, what lies in it and what it lies in."""
    setup = Setup(ScriptedApprover(["approve", "approve"]))
    first, second = setup.decision("a"), setup.decision("b")
    facts = [
        Facts(runs_in="host", writes=("out/a", "folder"), losses=(("out/a", "1f"),)),
        Facts(
            runs_in="host",
            losses=tuple((path, "1f") for path in ("out/a", "out", "folder/x", "out/b", "other")),
            sources=(("folder", "1f"), ("another", "1f")),
        ),
    ]
    decisions = [
        dataclasses.replace(one, prepared=dataclasses.replace(one.prepared, facts=known))
        for one, known in zip((first, second), facts, strict=True)
    ]
    answered = await setup.resolve(*decisions)
    assert [one.prepared.expected for one in answered] == [(), ("out/a", "out", "folder/x", "folder")]


# ---- open questions


class Pending:
    """An approver whose question stays open until it is withdrawn."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.withdrawn = False

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.asked.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.withdrawn = True
            raise
        raise AssertionError("nobody answers")


@pytest.mark.parametrize("end", ["interrupt", "close"])
async def test_interrupting_withdraws_the_question_and_denies(end: str) -> None:
    approver = Pending()
    setup = Setup(approver)
    resolving = asyncio.ensure_future(setup.resolve(setup.decision()))
    await approver.asked.wait()
    if end == "close":
        await setup.manager.close()
    else:
        setup.manager.interrupt()
    (decision,) = await resolving
    assert decision.decision is Decision.DENY
    assert decision.reasons[0] == "the question was cancelled (Interrupted)"
    assert approver.withdrawn
    assert setup.events(ApprovalAnswered)[0].approval.outcome == "cancel"


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_interrupting_calls_off_the_start_of_a_sandbox(turns: int) -> None:
    class Starting(CountingSandbox):
        async def start(self) -> SandboxStatus:
            await loop_turns(20)
            return await super().start()

    approver = Pending()
    setup = Setup(approver)
    spec = WorkerSpec(level="confined", workspace="/nowhere", limits=Limits())
    setup.env = dataclasses.replace(setup.env, sandbox=(sandbox := Starting(spec, setup.event_log)))
    resolving = asyncio.ensure_future(setup.resolve(setup.decision("s", runs_in="sandbox")))
    await as_soon_as(lambda: setup.manager._starting)
    await loop_turns(turns)
    setup.manager.interrupt()
    (decision,) = await resolving
    await loop_turns(50)
    assert (decision.decision, sandbox.starts) == (Decision.DENY, 0)
    setup.manager.interrupt()  # nothing is left of it


@pytest.mark.parametrize("end", ["denied", "cancelled"])
async def test_start_of_a_sandbox_is_called_off_if_the_call_will_not_run(end: str) -> None:
    class Starting(CountingSandbox):
        async def start(self) -> SandboxStatus:
            await loop_turns(20)
            return await super().start()

    approver = Pending() if end == "cancelled" else ScriptedApprover([Approval("deny"), Approval("approve")])
    setup = Setup(approver)
    spec = WorkerSpec(level="confined", workspace="/nowhere", limits=Limits())
    setup.env = dataclasses.replace(setup.env, sandbox=(sandbox := Starting(spec, setup.event_log)))
    resolving = asyncio.ensure_future(setup.resolve(setup.decision("s", runs_in="sandbox")))
    await as_soon_as(lambda: setup.manager._starting or resolving.done())
    if end == "cancelled":
        resolving.cancel()
    await asyncio.wait([resolving])
    await loop_turns(50)
    assert sandbox.starts == 0
    if end == "denied":
        two = setup.decision("s", runs_in="sandbox"), setup.decision("s", runs_in="sandbox")
        setup.manager.approver = ScriptedApprover([Approval("deny"), Approval("approve")])
        await setup.resolve(*two)
        await loop_turns(50)
        assert sandbox.starts == 1, "one of them will run"


async def test_nobody_is_asked_about_a_call_that_is_stopped_while_the_question_is_prepared() -> None:
    dispatch = CallDispatch()

    async def describe(_prepared: PreparedCall) -> str:
        dispatch.is_interrupted = True
        return "undo restores it"

    approver = ScriptedApprover(["approve"])
    setup = Setup(approver)
    setup.env = dataclasses.replace(setup.env, describe_undo=describe)
    decisions = [setup.decision(), setup.decision()]
    made = CallRequest(call=decisions[0].prepared.call, tool=None, started_s=0, dispatch=dispatch)
    decided = await setup.manager.resolve(decisions, setup.env, lambda: SAFE, calls=[made])
    assert [(one.decision, one.reasons) for one in decided] == [
        (Decision.DENY, ("the call was interrupted before anybody was asked",))
    ] * 2
    assert (approver.requests, setup.events(ApprovalAsked)) == ([], [])


async def test_a_cancelled_caller_withdraws_its_question_and_the_answer_is_recorded() -> None:
    approver = Pending()
    setup = Setup(approver)
    resolving = asyncio.ensure_future(setup.resolve(setup.decision()))
    await approver.asked.wait()
    resolving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resolving
    assert approver.withdrawn
    (answered,) = setup.events(ApprovalAnswered)
    assert (answered.approval.outcome, answered.approval.reason) == ("cancel", "The call was cancelled.")


@pytest.mark.parametrize("timeout_s", [0, -1, True, "5"])
def test_a_deadline_that_is_none_is_refused(timeout_s: Any) -> None:
    with pytest.raises(ValueError, match="approval_timeout_s="):
        ApprovalManager(None, EventLog(), timeout_s)


@pytest.mark.parametrize("timeout_s", [None, 0.5, 300])
async def test_every_other_deadline_is_part_of_the_question(timeout_s: float | None) -> None:
    approver = ScriptedApprover(["approve"])
    setup = Setup(approver)
    setup.manager = ApprovalManager(approver, setup.event_log, timeout_s)
    await setup.resolve(setup.decision())
    assert approver.requests[0].timeout_s == timeout_s


# ---- who is asked


@pytest.fixture
def default() -> Iterator[list[Approver | None]]:
    """Who can be asked here if the session has nobody: the last of the list."""
    found: list[Approver | None] = [None]
    set_default_approver_factory(lambda: found[-1])
    yield found
    set_default_approver_factory(None)


class Answering(ScriptedApprover):
    """Answers questions with its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    async def ask_user(self, _question: UserQuestion) -> str | None:
        return self.name


async def test_a_question_of_a_model_goes_to_the_approver_of_the_session(
    default: list[Approver | None],
) -> None:
    own, usual = Answering("own"), Answering("usual")
    question = UserQuestion(id="q", text="What?")
    assert await Setup(None).manager.ask_user(question) is None
    default.append(usual)
    assert await Setup(own).manager.ask_user(question) == "own"
    assert await Setup(None).manager.ask_user(question) == "usual"


def protected_write(level: str = "confined", path: str = "conftest.py") -> PreparedCall:
    call = ToolCall("c", sandbox_write.name, {"path": path, "content": "x"}, origin="model")
    return prepare_call(sandbox_write, call, Policy(mode="auto"), level)


@pytest.mark.parametrize("who", ["nobody", "own", "session", "usual", "own and session"])
async def test_a_protected_name_is_asked_about_by_whoever_can_be_asked(
    who: str, default: list[Approver | None]
) -> None:
    if who == "usual":
        default.append(ScriptedApprover())
    setup = Setup(ScriptedApprover() if "session" in who else None)
    prepared = protected_write()
    decision = setup.manager.decide_protected(prepared, ScriptedApprover() if "own" in who else None)
    assert decision.prepared is prepared
    assert decision.decided_by == "policy"
    if who == "nobody":
        assert decision.decision is Decision.DENY
        way = "a person can allow it for this workspace, on the card or by "
        assert decision.reasons[-1] == f"{way}Session(allow_protected=['conftest.py'])"
    else:
        assert decision.decision is Decision.ASK
        assert decision.reasons == prepared.evaluation.reasons


@pytest.mark.parametrize("level", ["isolated", "confined"])
@pytest.mark.parametrize("exists", [False, True])
async def test_an_allowed_protected_name_runs_unless_the_sandbox_has_it_mounted(
    tmp_path: Path, level: str, exists: bool
) -> None:
    setup = Setup(ScriptedApprover([Approval("approve", remember="protected")]))
    setup.env = dataclasses.replace(setup.env, workspace=tmp_path, level=level)
    if exists:
        (tmp_path / "conftest.py").touch()
    asked = setup.manager.decide_protected(protected_write(level))
    (decision,) = await setup.resolve(asked)
    assert setup.manager.allowed.names == ("conftest.py",)
    assert [event.names for event in setup.events(ProtectedNamesAllowed)] == [("conftest.py",)]
    assert decision.decided_by == "approver"
    if exists and level == "isolated":
        assert decision.decision is Decision.DENY
        assert "has conftest.py mounted read only. Restart the sandbox" in decision.reasons[0]
    else:
        assert decision.decision is Decision.ALLOW
        assert decision.reasons[0].startswith("you allowed that ")
    setup.manager.grants.clear()
    assert list(setup.manager.allowed.names) == []


@pytest.mark.parametrize("answer", [Approval("approve"), Approval("approve", remember="call")])
async def test_approval_of_the_call_alone_allows_no_protected_name(answer: Approval) -> None:
    setup = Setup(ScriptedApprover([answer]))
    asked = setup.manager.decide_protected(protected_write())
    (decision,) = await setup.resolve(asked)
    assert decision.decision is Decision.DENY
    assert "approving the call alone does not allow this" in decision.reasons[-1]
    assert (setup.manager.allowed.names, len(setup.manager.grants)) == ((), 0)
    assert setup.events(ProtectedNamesAllowed) == []


async def test_a_sandbox_that_does_not_start_while_a_person_thinks_is_no_error_of_the_question() -> None:
    class Failing(CountingSandbox):
        async def start(self) -> SandboxStatus:
            raise SandboxError("no worker")

    reports: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, report: reports.append(report))
    setup = Setup(ScriptedApprover(["approve"]))
    setup.env = dataclasses.replace(
        setup.env,
        sandbox=Failing(WorkerSpec(level="confined", workspace="/w", limits=Limits()), setup.event_log),
    )
    (decision,) = await setup.resolve(setup.decision(runs_in="sandbox"))
    assert decision.decision is Decision.ALLOW
    await loop_turns()
    gc.collect()
    assert reports == []
