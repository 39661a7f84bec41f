"""The gate: what happens to one call, in this order and no other.

    resolve the name → validate → classify → policy → ask → re-check → run under a deadline → cap → record

Nothing reaches a sandbox or the host except through here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aisotools.approval import default_approver, resolve
from aisotools.contracts import Approver, Cancellation, OutputCaps, Sandbox, SandboxCall, Tool, ToolContext
from aisotools.events import Approval, ApprovalRequest, Decision, Json, ToolCall, ToolResult
from aisotools.exceptions import SandboxError, ToolError, UnknownTool
from aisotools.journal import Journal
from aisotools.policy import Policy
from aisotools.registry import ToolRegistry
from aisotools.session_events import (
    ApprovalAnswered,
    ApprovalAsked,
    CallDecided,
    CallEmitted,
    CallFinished,
    CallRequested,
    CallStarted,
)
from aisotools.ticket import ALLOWS, Ticket, capped, denial, digest_of, ticket_for
from aisotools.tool_members import (
    deadline_of,
    definition_of,
    failure,
    shipment_of,
    validate_arguments,
    validate_value,
)

_ASK_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where calls run, settled when the session opened.

    Attributes:
        sandbox: Runs what runs in the sandbox.
        level: Its confinement level.
        workspace: The folder that tools may change.
    """

    sandbox: Sandbox
    level: str
    workspace: Path


class Gate:
    """Passes calls; one per session."""

    def __init__(
        self,
        *,
        registry: ToolRegistry,
        policy: Policy,
        approver: Approver | None,
        journal: Journal,
        caps: OutputCaps,
        call_timeout_s: float,
        session_key: str,
    ) -> None:
        """Use these; `approver` None means whoever can be asked when the time comes."""
        self.registry = registry
        self.policy = policy
        self._approver = approver
        self._journal = journal
        self._caps = caps
        self._call_timeout_s = call_timeout_s
        self._session_key = session_key
        self._used: set[str] = set()
        self._on_host: dict[str, tuple[asyncio.Task[ToolResult], Cancellation]] = {}
        self._asking: dict[str, asyncio.Task[Approval]] = {}

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return len(self._used)

    async def pass_call(
        self, call: ToolCall, place: Place, *, timeout_s: float | None = None, ask: bool = False
    ) -> ToolResult:
        """Take one call from wish to result; see `Session.call`."""
        began_s = time.monotonic()
        self._journal.add(CallRequested, call.id, call=call)
        result = ToolResult.error("The call was cancelled.")
        try:
            result = capped(await self._pass(call, place, timeout_s, ask=ask), self._caps)
            result = result.with_metadata(tool=call.name, call_id=call.id)
        finally:
            took_s = time.monotonic() - began_s
            self._journal.add(CallFinished, call.id, name=call.name, result=result, duration_s=took_s)
        return result

    def interrupt(self) -> None:
        """Call off open questions, and cancel what runs on the host."""
        for question in self._asking.values():
            question.cancel()
        for task, cancellation in self._on_host.values():
            cancellation.cancel()
            task.cancel()

    async def _pass(self, call: ToolCall, place: Place, timeout_s: float | None, *, ask: bool) -> ToolResult:
        if call.id in self._used:
            told = f"The call id {call.id!r} was used before; an id runs at most once."
            return ToolResult.error(told, recoverable=False, error_kind="invalid")
        self._used.add(call.id)
        try:
            tool = self.registry[call.name]
            call = dataclasses.replace(call, arguments=validate_arguments(tool, call.arguments))
        except UnknownTool as error:
            return ToolResult.error(str(error), error_kind="invalid")
        except ToolError as error:
            return failure(error)
        ticket = ticket_for(tool, call, self.policy, place.level)
        decision, decided_by = ticket.evaluation.decision, "policy"
        reasons, hint = ticket.evaluation.reasons, ""
        if call.origin == "person" and decision is Decision.ALLOW:
            decided_by = "typed"
        if decision is Decision.ASK or (ask and decision is Decision.ALLOW):
            ticket, decision, reasons, hint = await self._ask(tool, ticket, place)
            decided_by = "approver"
        self._journal.add(
            CallDecided,
            call.id,
            decision=decision,
            decided_by=decided_by,
            effect=ticket.effect,
            reasons=reasons,
            arguments=ticket.arguments,
            digest=ticket.digest,
        )
        if decision is not Decision.ALLOW:
            return denial(call.name, reasons, hint=hint)
        return await self._dispatch(ticket, place, timeout_s)

    # ---- asking

    async def _ask(
        self, tool: Tool, ticket: Ticket, place: Place
    ) -> tuple[Ticket, Decision, tuple[str, ...], str]:
        """The ticket that may run, if any; the decision; why; and what a denial should add."""
        request = ApprovalRequest(
            id=uuid.uuid4().hex,
            call=ticket.call,
            definition=definition_of(tool),
            effect=ticket.effect,
            level="host" if ticket.facts.runs_in == "host" else place.level,
            reasons=ticket.evaluation.reasons,
            facts=ticket.facts,
            timeout_s=_ASK_S,
        )
        approver = self._approver if self._approver is not None else default_approver()
        self._journal.add(ApprovalAsked, ticket.call.id, request=request)
        approval = await self._answer(approver, request, place)
        self._journal.add(ApprovalAnswered, ticket.call.id, request_id=request.id, approval=approval)
        if approval.outcome != "approve":
            reasons = _why_not(approval, ticket)
            return ticket, Decision.DENY, reasons, ALLOWS if approver is None else ""
        if approval.arguments is None:
            return ticket, Decision.ALLOW, ticket.evaluation.reasons, ""
        return self._edited(tool, ticket, approval, place)

    async def _answer(self, approver: Approver | None, request: ApprovalRequest, place: Place) -> Approval:
        """The answer; meanwhile the worker starts, so that an approved call need not wait for it."""
        warming = None
        if approver is not None and request.facts.runs_in == "sandbox":
            warming = asyncio.ensure_future(place.sandbox.start())
            warming.add_done_callback(_looked_at)
        question = self._asking[request.id] = asyncio.ensure_future(resolve(approver, request))
        try:
            return await question
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return Approval("cancel", reason="Interrupted.")
        finally:
            question.cancel()
            self._asking.pop(request.id, None)

    def _edited(
        self, tool: Tool, ticket: Ticket, approval: Approval, place: Place
    ) -> tuple[Ticket, Decision, tuple[str, ...], str]:
        """Edited arguments are a new call: validated and checked again, and asked about no more."""
        try:
            arguments = validate_arguments(tool, approval.arguments or {})
        except ToolError as error:
            return ticket, Decision.DENY, (f"the edited arguments do not fit: {error}",), ""
        call = dataclasses.replace(ticket.call, arguments=arguments)
        edited = ticket_for(tool, call, self.policy, place.level)
        allowed = edited.evaluation.decision is not Decision.DENY
        return edited, Decision.ALLOW if allowed else Decision.DENY, edited.evaluation.reasons, ""

    # ---- running

    async def _dispatch(self, ticket: Ticket, place: Place, timeout_s: float | None) -> ToolResult:
        call, arguments = ticket.call, ticket.arguments
        tool = self.registry.get(call.name)
        if tool is None or digest_of(tool, ticket.frozen, place.level) != ticket.digest:
            return denial(call.name, ("the tool changed between decision and run; call it again",))
        default_s = min(deadline_of(tool, arguments, self._call_timeout_s), 86_400.0)
        deadline_s = default_s if timeout_s is None else timeout_s
        self._journal.add(CallStarted, call.id, runs_in=ticket.facts.runs_in, level=place.level)
        call = dataclasses.replace(call, arguments=arguments)
        shipment = shipment_of(tool)
        if shipment is None:
            return await self._run_here(tool, call, place, deadline_s)
        request = SandboxCall(
            call=call,
            shipment=shipment,
            timeout_s=deadline_s,
            output_caps=self._caps,
            session_key=self._session_key,
        )
        try:
            result = await place.sandbox.call(request)
        except SandboxError as error:
            return ToolResult.error(str(error), recoverable=False, error_kind="environment")
        return _valid(tool, result)

    async def _run_here(self, tool: Tool, call: ToolCall, place: Place, deadline_s: float) -> ToolResult:
        """Run a tool of the host; cooperative, since it is the user's own process."""
        cancellation = Cancellation()

        def emit(name: str, payload: Mapping[str, Json]) -> None:
            self._journal.add(CallEmitted, call.id, name=name, payload=payload)

        context = ToolContext(
            agent_id=call.agent_id,
            session_key=self._session_key,
            turn_id=call.turn_id,
            call_id=call.id,
            workspace_path=place.workspace,
            sandbox_config={"level": place.level},
            approval_handler=self._approver,
            cancellation=cancellation,
            output_caps=self._caps,
            services=_Services(self, call, place),
            emitter=emit,
        )
        task = asyncio.ensure_future(_executed(tool, call.arguments, context))
        self._on_host[call.id] = task, cancellation
        try:
            async with asyncio.timeout(deadline_s):
                result = await task
        except TimeoutError:
            cancellation.cancel()
            return ToolResult.error(
                f"{call.name} was stopped: it ran longer than {deadline_s:g} s."
            ).with_metadata(timed_out=True)
        except asyncio.CancelledError:
            cancellation.cancel()
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            return ToolResult.error("The call was interrupted.").with_metadata(stopped=True)
        finally:
            self._on_host.pop(call.id, None)
        return _valid(tool, result)


class _Services:
    """What a tool on the host may ask of its session: further calls through the same gate, as its caller."""

    def __init__(self, gate: Gate, call: ToolCall, place: Place) -> None:
        self._gate, self._call, self._place = gate, call, place

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Make another call on behalf of the same caller; a person's consent does not reach this far."""
        origin = "program" if self._call.origin == "person" else self._call.origin
        call = dataclasses.replace(
            self._call, id=uuid.uuid4().hex, name=name, arguments=arguments, origin=origin
        )
        return await self._gate.pass_call(call, self._place)


async def _executed(tool: Tool, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
    try:
        result: object = await tool.execute(arguments, context)
    except Exception as error:  # whatever a tool raises is its result
        return failure(error)
    if isinstance(result, ToolResult):
        return result
    told = f"{tool.name} returned {type(result).__name__} instead of a ToolResult; mend its execute()."
    return ToolResult.error(told, recoverable=False)


def _valid(tool: Tool, result: ToolResult) -> ToolResult:
    """The result, if what it holds fits the type that the tool declared."""
    if result.is_error:
        return result
    try:
        validate_value(tool, result.value)
    except ToolError as error:
        return ToolResult.error(str(error), recoverable=False)
    return result


def _why_not(approval: Approval, ticket: Ticket) -> tuple[str, ...]:
    said = {
        "deny": "it was denied",
        "timeout": "nobody answered in time",
        "cancel": "the question was cancelled",
    }
    told = said[approval.outcome] + (f" ({approval.reason.rstrip('.')})" if approval.reason else "")
    return (told, *(f"asked because {reason}" for reason in ticket.evaluation.reasons))


def _looked_at(task: asyncio.Future[object]) -> None:
    """A worker that does not start is reported by the call that needs it."""
    if not task.cancelled():
        task.exception()
