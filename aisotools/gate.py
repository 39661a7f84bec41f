"""The gate: what happens to one call, in this order and no other.

    resolve the name → validate → classify → policy → ask → re-check → run under a deadline → cap → record

Nothing reaches a sandbox or the host except through here.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aisotools.approval import default_approver, resolve
from aisotools.contracts import Approver, OutputCaps, Sandbox, SandboxCall, Tool, ToolContext
from aisotools.events import Approval, ApprovalRequest, Decision, Json, ToolCall, ToolResult
from aisotools.exceptions import SandboxError, ToolError, UnknownTool
from aisotools.host_calls import HostCalls
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
from aisotools.tool_members import unusable, validate_value

_log = logging.getLogger(__name__)

_ASK_S = 300.0
_LONGEST_S = 86_400.0


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


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What the gate says about a call: what may run, whether, by whose word, why, and what would allow it."""

    ticket: Ticket
    decision: Decision
    decided_by: str
    reasons: tuple[str, ...]
    hint: str = ""


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
        self._on_host = HostCalls()
        self._asking: dict[str, asyncio.Task[Approval]] = {}
        self._warming: set[asyncio.Future[object]] = set()
        self._closed = False

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return len(self._used)

    async def pass_call(
        self, call: ToolCall, place: Place, *, timeout_s: float | None = None, ask: bool = False
    ) -> ToolResult:
        """Take one call from wish to result; see `Session.call`."""
        began_s = time.monotonic()
        call = dataclasses.replace(call, arguments=_own_copy(call.arguments))
        self._journal.add(CallRequested, call.id, call=call)
        result = ToolResult.error("The call was cancelled.")
        try:
            result = capped(await self._pass(call, place, timeout_s, ask=ask), self._caps)
            result = result.with_metadata(tool=call.name, call_id=call.id)
        except Exception as error:  # whoever makes calls in a loop must survive every one of them
            _log.exception("The call %s of %s failed in the gate itself", call.id, call.name)
            told = f"{call.name} could not be run, by a fault in aisotools or a part given to it: "
            told += f"{type(error).__name__}: {error}. The log has the whole story."
            result = ToolResult.error(told, recoverable=False, error_kind="environment")
        finally:
            took_s = time.monotonic() - began_s
            self._journal.add(CallFinished, call.id, name=call.name, result=result, duration_s=took_s)
        return result

    def interrupt(self) -> None:
        """Call off open questions, and cancel what runs on the host."""
        for question in self._asking.values():
            question.cancel()
        self._on_host.interrupt()

    async def close(self) -> None:
        """Let nothing pass any more, and call off what is under way."""
        self._closed = True
        self.interrupt()
        for warming in self._warming:
            warming.cancel()
        await asyncio.gather(*self._warming, return_exceptions=True)

    async def _pass(self, call: ToolCall, place: Place, timeout_s: float | None, *, ask: bool) -> ToolResult:
        if call.id in self._used:
            told = f"The call id {call.id!r} was used before; an id runs at most once."
            return ToolResult.error(told, recoverable=False, error_kind="invalid")
        self._used.add(call.id)
        try:
            ticket = ticket_for(self.registry[call.name], call, self.policy, place.level)
        except UnknownTool as error:
            return ToolResult.error(str(error), error_kind="invalid")
        except Exception as error:  # tools are written by strangers too
            return unusable(call.name, error)
        verdict = _verdict(ticket)
        if verdict.decision is Decision.ASK or (ask and verdict.decision is Decision.ALLOW):
            verdict = await self._ask(ticket, place)
        self._journal.add(
            CallDecided,
            call.id,
            decision=verdict.decision,
            decided_by=verdict.decided_by,
            effect=verdict.ticket.effect,
            reasons=verdict.reasons,
            arguments=verdict.ticket.arguments,
            digest=verdict.ticket.digest,
        )
        if verdict.decision is not Decision.ALLOW:
            return denial(call.name, verdict.reasons, hint=verdict.hint)
        return await self._dispatch(verdict.ticket, place, timeout_s)

    # ---- asking

    async def _ask(self, ticket: Ticket, place: Place) -> _Verdict:
        """What a person, or whoever stands in, says about the call."""
        asked = ticket.evaluation.decision is Decision.ASK
        reasons = ticket.evaluation.reasons if asked else ("the caller wants it approved",)
        request = ApprovalRequest(
            id=uuid.uuid4().hex,
            call=ticket.call,
            definition=ticket.definition,
            effect=ticket.effect,
            level="host" if ticket.facts.runs_in == "host" else place.level,
            reasons=reasons,
            facts=ticket.facts,
            timeout_s=_ASK_S,
        )
        approver = self._approver if self._approver is not None else default_approver()
        self._journal.add(ApprovalAsked, request.call.id, request=request)
        approval = Approval("cancel", reason="The call was cancelled.")
        try:
            approval = await self._answer(approver, request, place)
        finally:
            self._journal.add(ApprovalAnswered, request.call.id, request_id=request.id, approval=approval)
        verdict = _Verdict(ticket, Decision.DENY, "approver" if approver is not None else "policy", reasons)
        if approval.outcome != "approve":
            hint = ALLOWS if approver is None else ""
            return dataclasses.replace(verdict, reasons=_why_not(approval, reasons), hint=hint)
        if approval.arguments is None:
            return dataclasses.replace(verdict, decision=Decision.ALLOW)
        return self._edited(verdict, approval.arguments, place)

    async def _answer(self, approver: Approver | None, request: ApprovalRequest, place: Place) -> Approval:
        """The answer; meanwhile the worker starts, so that an approved call need not wait for it."""
        if approver is not None and request.facts.runs_in == "sandbox":
            warming: asyncio.Future[object] = asyncio.ensure_future(place.sandbox.start())
            self._warming.add(warming)
            warming.add_done_callback(self._warmed)
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

    def _warmed(self, warming: asyncio.Future[object]) -> None:
        self._warming.discard(warming)
        if not warming.cancelled():
            warming.exception()  # a worker that does not start is reported by the call that needs it

    def _edited(self, verdict: _Verdict, arguments: Mapping[str, Json], place: Place) -> _Verdict:
        """Edited arguments are a new call: validated and checked again, and asked about no more."""
        call = dataclasses.replace(verdict.ticket.made, arguments=arguments)
        try:
            ticket = ticket_for(verdict.ticket.tool, call, self.policy, place.level)
        except Exception as error:  # as for the call itself
            return dataclasses.replace(verdict, reasons=(f"the edited arguments do not fit: {error}",))
        denied = ticket.evaluation.decision is Decision.DENY
        decision = Decision.DENY if denied else Decision.ALLOW
        return dataclasses.replace(
            verdict, ticket=ticket, decision=decision, reasons=ticket.evaluation.reasons
        )

    # ---- running

    async def _dispatch(self, ticket: Ticket, place: Place, timeout_s: float | None) -> ToolResult:
        call = ticket.call
        tool = self.registry.get(call.name)
        if tool is None or digest_of(tool, ticket.frozen, place.level) != ticket.digest:
            return denial(call.name, ("the tool changed between decision and run; call it again",))
        if self._closed:
            told = f"{call.name} was not run: the session was closed."
            return ToolResult.error(told, recoverable=False, error_kind="environment")
        if timeout_s is None:
            timeout_s = min(ticket.deadline_s or self._call_timeout_s, _LONGEST_S)
        self._journal.add(CallStarted, call.id, runs_in=ticket.facts.runs_in, level=place.level)
        if ticket.shipment is None:
            context = self._context(call, place)
            return _valid(ticket.tool, await self._on_host.run(ticket.tool, call, context, timeout_s))
        request = SandboxCall(
            call=call,
            shipment=ticket.shipment,
            timeout_s=timeout_s,
            output_caps=self._caps,
            session_key=self._session_key,
        )
        try:
            result = await place.sandbox.call(request)
        except SandboxError as error:
            return ToolResult.error(str(error), recoverable=False, error_kind="environment")
        return _valid(ticket.tool, result)

    def _context(self, call: ToolCall, place: Place) -> ToolContext:
        """What a tool on the host knows about its call."""

        def emit(name: str, payload: Mapping[str, Json]) -> None:
            self._journal.add(CallEmitted, call.id, name=name, payload=payload)

        return ToolContext(
            agent_id=call.agent_id,
            session_key=self._session_key,
            turn_id=call.turn_id,
            call_id=call.id,
            workspace_path=place.workspace,
            sandbox_config={"level": place.level},
            approval_handler=self._approver,
            output_caps=self._caps,
            services=_Services(self, call, place),
            emitter=emit,
        )


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


def _verdict(ticket: Ticket) -> _Verdict:
    """The policy's own word."""
    evaluation = ticket.evaluation
    typed = ticket.made.origin == "person" and evaluation.decision is Decision.ALLOW
    return _Verdict(ticket, evaluation.decision, "typed" if typed else "policy", evaluation.reasons)


def _own_copy(arguments: Mapping[str, Json]) -> Mapping[str, Json]:
    """A copy that the caller cannot change any more; what cannot be copied is no JSON, and refused later."""
    try:
        return copy.deepcopy(arguments)
    except Exception:
        return arguments


def _valid(tool: Tool, result: ToolResult) -> ToolResult:
    """The result, if what it holds fits the type that the tool declared."""
    if result.is_error:
        return result
    try:
        validate_value(tool, result.value)
    except ToolError as error:
        return ToolResult.error(str(error), recoverable=False)
    except Exception as error:  # tools are written by strangers too
        return unusable(tool.name, error)
    return result


def _why_not(approval: Approval, asked_because: tuple[str, ...]) -> tuple[str, ...]:
    said = {
        "deny": "it was denied",
        "timeout": "nobody answered in time",
        "cancel": "the question was cancelled",
    }
    told = said[approval.outcome] + (f" ({approval.reason.rstrip('.')})" if approval.reason else "")
    return (told, *(f"asked because {reason}" for reason in asked_because))
