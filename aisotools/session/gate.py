"""The gate: what happens to one call, in this order and no other.

    resolve the name → validate → classify → policy → ask → re-check → run under a deadline → cap → record

Nothing reaches a sandbox or the host except through here.

Running a tool on the host: under a deadline, but cooperative, since it is the user's own process.

What a tool on the host may ask of its session: further calls as its caller, kept texts, a person.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aisotools.core.concurrency import run_to_completion
from aisotools.core.events import CallDecided, CallEmitted, CallFinished, CallRequested, CallStarted
from aisotools.core.exceptions import SandboxError, ToolError, UnknownTool
from aisotools.core.protocols import (
    Approver,
    OutputCaps,
    SandboxCall,
    StoredText,
    Tool,
    ToolContext,
    UserQuestion,
)
from aisotools.core.truncation import ResultStore, truncate_result
from aisotools.core.types import Decision, Effect, Facts, Json, ToolCall, ToolResult
from aisotools.policy.grants import Grants
from aisotools.policy.prepared import CallDecision, PreparedCall, denial, digest_of, ticket_for
from aisotools.policy.rules import Policy
from aisotools.sandbox.results import VALUE_DROPPED
from aisotools.session.approvals import ASK_S, ApprovalManager
from aisotools.session.event_log import EventLog
from aisotools.session.guards import CallEnvironment, Guard
from aisotools.session.transfer import OwnTool
from aisotools.tools.adapter import broken_tool_result, exception_result, validate_value
from aisotools.tools.registry import ToolRegistry

_GRACE_S = 0.2
_STAYS = "It runs on the host, where only the tool itself can end its work."


class HostCalls:
    """The host tools that run right now."""

    def __init__(self) -> None:
        """Start with none."""
        self._stops: dict[str, asyncio.Future[None]] = {}

    def __repr__(self) -> str:
        return f"<HostCalls {len(self._stops)} running>"

    async def run(self, tool: Tool, call: ToolCall, context: ToolContext, deadline_s: float) -> ToolResult:
        """Run one call; control comes back at the deadline even if the tool does not listen."""
        work = asyncio.ensure_future(_executed(tool, call, context))
        stop = self._stops[call.id] = asyncio.get_running_loop().create_future()
        try:
            done, _ = await asyncio.wait(
                [work, stop], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done() and not work.cancelled():
                return work.result()
            context.cancellation.cancel()
            work.cancel()
            await asyncio.wait([work], timeout=_GRACE_S)
        finally:
            del self._stops[call.id]
            context.cancellation.cancel()
            work.cancel()
        if done:
            return ToolResult.error(f"{call.name} was interrupted. {_STAYS}").with_metadata(stopped=True)
        told = f"{call.name} was called off: it ran longer than {deadline_s:g} s. {_STAYS}"
        return ToolResult.error(told).with_metadata(timed_out=True)

    def interrupt(self) -> None:
        """Call off everything that runs."""
        for stop in self._stops.values():
            if not stop.done():
                stop.set_result(None)


async def _executed(tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
    try:
        result: object = await tool.execute(call.arguments, context)
    except (Exception, SystemExit) as error:  # whatever a tool raises is its result
        return exception_result(error)
    if not isinstance(result, ToolResult):
        told = f"{tool.name} returned {type(result).__name__} instead of a ToolResult"
        return ToolResult.error(f"{told}; mend its execute().", recoverable=False)
    content: object = result.content
    if isinstance(content, str):
        return result
    told = f"{tool.name} returned a ToolResult whose content is {type(content).__name__}, not text"
    return ToolResult.error(f"{told}; mend its execute().", recoverable=False)


PassCall = Callable[[ToolCall], Awaitable[ToolResult]]
"""Takes a call through the gate."""

Inquire = Callable[[UserQuestion], Awaitable[str | None]]
"""Puts a question to a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all calls of one session have in common.

    Attributes:
        inquire: Puts questions to a person.
        results: The texts that were too long for a model.
        memory: What tools keep from call to call.
    """

    inquire: Inquire
    results: ResultStore = field(default_factory=ResultStore)
    memory: MutableMapping[str, Any] = field(default_factory=dict)


class CallServices:
    """Implements `aisotools.core.protocols.Services` for one call."""

    def __init__(self, call: ToolCall, pass_call: PassCall, shared: Shared) -> None:
        """Serve `call`; what it calls goes through `pass_call`."""
        self._call, self._pass_call, self._shared = call, pass_call, shared

    @property
    def memory(self) -> MutableMapping[str, Any]:
        """What tools of this session keep from call to call."""
        return self._shared.memory

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Make another call on behalf of the same caller; a person's consent does not reach this far."""
        origin = "program" if self._call.origin == "person" else self._call.origin
        call_id = f"{self._call.id}/{uuid.uuid4().hex[:12]}"  # tells whose call it is part of
        call = dataclasses.replace(self._call, id=call_id, name=name, arguments=arguments, origin=origin)
        return await self._pass_call(call)

    def stored(self, ref: str) -> StoredText | None:
        """The whole text behind a reference."""
        return self._shared.results.get(ref)

    async def inquire(self, inquiry: UserQuestion) -> str | None:
        """Put a question to a person; None when nobody answered."""
        return await self._shared.inquire(inquiry)


_log = logging.getLogger(__name__)

_LONGEST_S = 86_400.0
_CANCELLED = ToolResult.error("The call was cancelled.")


class Gate:
    """Passes calls; one per session."""

    def __init__(
        self,
        *,
        registry: ToolRegistry,
        policy: Policy,
        approver: Approver | None,
        journal: EventLog,
        caps: OutputCaps,
        call_timeout_s: float,
        session_key: str,
        approval_timeout_s: float | None = ASK_S,
    ) -> None:
        """Use these; `approver` None means whoever can be asked when the time comes."""
        self.registry = registry
        self.policy = policy
        self.bound: Policy | None = None
        self.narrower: list[Policy] = []
        self._questions = ApprovalManager(approver, journal, approval_timeout_s)
        self._journal = journal
        self.caps = caps
        self._call_timeout_s = call_timeout_s
        self._session_key = session_key
        self._used: set[str] = set()
        self._own: dict[str, OwnTool] = {}
        self.shared = Shared(inquire=self._questions.inquire)
        self._on_host = HostCalls()
        self._closed = False
        self._shut_because = ""

    @property
    def approver(self) -> Approver | None:
        """Who is asked; None means whoever can be asked when the time comes."""
        return self._questions.approver

    @approver.setter
    def approver(self, approver: Approver | None) -> None:
        self._questions.approver = approver

    @property
    def grants(self) -> Grants:
        """Approvals that reach beyond one call."""
        return self._questions.grants

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return len(self._used)

    def knows(self, call_id: str) -> bool:
        """Whether there was a call of this id."""
        return call_id in self._used

    async def pass_call(
        self,
        call: ToolCall,
        place: CallEnvironment,
        *,
        timeout_s: float | None = None,
        ask: bool = False,
        approver: Approver | None = None,
    ) -> ToolResult:
        """Take one call from wish to result; see `Session.call`."""
        call, began_s = self._begin(call)

        async def work() -> ToolResult:
            verdict = self._judge(call, place, ask=ask)
            if isinstance(verdict, CallDecision) and verdict.decision is Decision.ASK:
                verdict = (await self._ask([verdict], place, approver))[0]
            return await self._carry_out(verdict, place, timeout_s)

        return await self._finish(call, began_s, work())

    async def pass_own(self, tool: OwnTool, call: ToolCall, place: CallEnvironment) -> ToolResult:
        """Take a call of a tool that the session itself brings, and no registry holds, to its result."""
        self._own[call.id] = tool
        try:
            return await self.pass_call(call, place)
        finally:
            del self._own[call.id]

    async def pass_many(self, calls: Sequence[ToolCall], place: CallEnvironment) -> list[ToolResult]:
        """Take several calls from wish to result; see `Session.call_many`."""
        begun = [self._begin(call) for call in calls]
        open_calls = dict(enumerate(begun))
        results: dict[int, ToolResult] = {}

        async def run(number: int, verdict: CallDecision | ToolResult) -> None:
            call, began_s = open_calls.pop(number)
            results[number] = await self._finish(call, began_s, self._carry_out(verdict, place, None))

        try:
            verdicts = [self._judge(call, place) for call, _ in begun]
            await self._ask_where_needed(verdicts, place)
            for together in _waves(verdicts):
                await asyncio.gather(*(run(number, verdicts[number]) for number in together))
        finally:
            for call, began_s in open_calls.values():
                self._record_end(call, began_s, _CANCELLED)
        return [results[number] for number in range(len(calls))]

    def shut(self, reason: str) -> None:
        """Let no further call pass: what cannot be recorded must not run."""
        self._shut_because = reason

    def effective_policy(self) -> Policy:
        """The policy, narrowed by the workspace's own and by whatever narrows it for a while."""
        bounds = self.narrower if self.bound is None else [self.bound, *self.narrower]
        return functools.reduce(Policy.narrowed, bounds, self.policy)

    def explain(self, call: ToolCall, level: str) -> PreparedCall:
        """What policy and classification say about a call that is not made; see `Session.explain`."""
        undoable = self._questions.undoable
        tool = self._own.get(call.id) or self.registry[call.name]
        return ticket_for(tool, call, self.effective_policy(), level, undoable)

    def know_undo(self, undoable: Callable[[Facts], bool]) -> None:
        """Let the facts of calls tell whether undo covers them."""
        self._questions.undoable = undoable

    def interrupt(self) -> None:
        """Call off open questions, and cancel what runs on the host."""
        self._questions.interrupt()
        self._on_host.interrupt()

    async def close(self) -> None:
        """Let nothing pass any more, and call off what is under way."""
        self._closed = True
        self._on_host.interrupt()
        await self._questions.close()
        self.shared.results.close()

    # ---- from wish to verdict

    def _begin(self, call: ToolCall) -> tuple[ToolCall, float]:
        call = dataclasses.replace(call, arguments=_own_copy(call.arguments))
        self._journal.add(CallRequested, call.id, call=call)
        return call, time.monotonic()

    async def _finish(self, call: ToolCall, began_s: float, work: Awaitable[ToolResult]) -> ToolResult:
        """The result of `work`, capped and recorded, whatever becomes of it."""
        result = _CANCELLED
        try:
            result = self._fitted(call, await work).with_metadata(tool=call.name, call_id=call.id)
        except Exception as error:  # whoever makes calls in a loop must survive every one of them
            _log.exception("The call %s of %s failed in the gate itself", call.id, call.name)
            told = f"{call.name} could not be run, by a fault in aisotools or a part given to it: "
            told += f"{type(error).__name__}: {error}. The log has the whole story."
            result = ToolResult.error(told, recoverable=False, error_kind="environment")
        finally:
            self._record_end(call, began_s, result)
        return result

    def _fitted(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """The result as a model gets it; the whole of what is too long is kept."""
        return truncate_result(
            result,
            self.caps,
            self.shared.results,
            tool=call.name,
            call_id=call.id,
            readable="read_result" in self.registry,
        )

    def _record_end(self, call: ToolCall, began_s: float, result: ToolResult) -> None:
        took_s = time.monotonic() - began_s
        self._journal.add(CallFinished, call.id, name=call.name, result=result, duration_s=took_s)

    def _judge(
        self, call: ToolCall, place: CallEnvironment, *, ask: bool = False
    ) -> CallDecision | ToolResult:
        """What policy and grants say about the call, or why it is no call at all."""
        if call.id in self._used:
            told = f"The call id {call.id!r} was used before, and an id runs at most once. Give another."
            return ToolResult.error(told, recoverable=False, error_kind="invalid")
        self._used.add(call.id)
        try:
            ticket = self.explain(call, place.level)
        except UnknownTool as error:
            return ToolResult.error(str(error), error_kind="invalid")
        except Exception as error:  # tools are written by strangers too
            return broken_tool_result(call.name, error)
        verdict = _by_policy(ticket)
        if ask and verdict.decision is Decision.ALLOW:
            return dataclasses.replace(verdict, decision=Decision.ASK)
        if verdict.decision is Decision.ASK and not ask:
            grant = self.grants.covering(ticket)
            if grant is not None:
                return CallDecision(ticket, Decision.ALLOW, "grant", (f"you allowed {grant.words}",))
        return verdict

    async def _ask(
        self, verdicts: Sequence[CallDecision], place: CallEnvironment, approver: Approver | None = None
    ) -> list[CallDecision]:
        return await self._questions.put(
            verdicts,
            sandbox=place.sandbox,
            level=place.level,
            policy=self.effective_policy(),
            workspace=place.workspace,
            approver=approver,
            undo_note=place.undo_note,
        )

    async def _ask_where_needed(
        self, verdicts: list[CallDecision | ToolResult], place: CallEnvironment
    ) -> None:
        """Put one question for all calls that need asking; their verdicts are replaced by the answers."""
        asked = {
            number: verdict
            for number, verdict in enumerate(verdicts)
            if isinstance(verdict, CallDecision) and verdict.decision is Decision.ASK
        }
        if asked:
            for number, answer in zip(asked, await self._ask(list(asked.values()), place), strict=True):
                verdicts[number] = answer

    async def _carry_out(
        self, verdict: CallDecision | ToolResult, place: CallEnvironment, timeout_s: float | None
    ) -> ToolResult:
        if isinstance(verdict, ToolResult):
            return verdict
        ticket = verdict.ticket
        self._journal.add(
            CallDecided,
            ticket.made.id,
            decision=verdict.decision,
            decided_by=verdict.decided_by,
            effect=ticket.effect,
            reasons=verdict.reasons,
            arguments=ticket.arguments,
            digest=ticket.digest,
        )
        if verdict.decision is not Decision.ALLOW:
            return denial(ticket.made.name, verdict.reasons)
        return await self._dispatch(ticket, place, timeout_s)

    # ---- running

    async def _dispatch(
        self, ticket: PreparedCall, place: CallEnvironment, timeout_s: float | None
    ) -> ToolResult:
        call = ticket.call
        tool = self._own.get(call.id) or self.registry.get(call.name)
        if tool is None or digest_of(tool, ticket.frozen, place.level) != ticket.digest:
            return denial(call.name, ("the tool changed between decision and run; call it again",))
        if self._closed or self._shut_because:
            because = "the session was closed" if self._closed else self._shut_because
            told = f"{call.name} was not run: {because}."
            return ToolResult.error(told, recoverable=False, error_kind="environment")
        if timeout_s is None:
            timeout_s = min(ticket.deadline_s or self._call_timeout_s, _LONGEST_S)
        self._journal.add(CallStarted, call.id, runs_in=ticket.facts.runs_in, level=place.level)
        try:
            if ticket.effect is Effect.READ_ONLY:
                result = await self._run(ticket, place, timeout_s)
                return result if place.heard is None else place.heard(ticket, result)
            return await self._run_guarded(ticket, place, timeout_s)
        except ToolError as error:  # of a guard: something has to be done first
            return exception_result(error)
        except SandboxError as error:
            return ToolResult.error(str(error), recoverable=False, error_kind="environment")

    async def _run_guarded(
        self, ticket: PreparedCall, place: CallEnvironment, timeout_s: float
    ) -> ToolResult:
        """Run a call that may change anything, between those who look before and after."""
        ready: list[Guard] = []
        result: ToolResult | None = None
        try:
            for guard in place.guards:
                await guard.before(ticket)
                ready.append(guard)
            result = await self._run(ticket, place, timeout_s)
        finally:
            for guard in reversed(ready):  # also after a cancelled call, which may have changed something
                result = await run_to_completion(guard.after(ticket, result))
        assert result is not None
        return result

    async def _run(self, ticket: PreparedCall, place: CallEnvironment, timeout_s: float) -> ToolResult:
        call = ticket.call
        if ticket.shipment is None:
            context = self._context(call, place)
            return _valid(ticket.tool, await self._on_host.run(ticket.tool, call, context, timeout_s))
        own = self._own.get(call.id)
        request = SandboxCall(
            call=call,
            shipment=ticket.shipment,
            timeout_s=timeout_s,
            output_caps=self.caps if own is None else own.caps,
            session_key=self._session_key,
            read_only=ticket.effect is Effect.READ_ONLY,
        )
        result = _valid(ticket.tool, await place.sandbox.call(request))
        return result if own is None else own.received(result)

    def _context(self, call: ToolCall, place: CallEnvironment) -> ToolContext:
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
            approval_handler=self._questions.approver,
            output_caps=self.caps,
            services=CallServices(call, lambda further: self.pass_call(further, place), self.shared),
            emitter=emit,
        )


def _by_policy(ticket: PreparedCall) -> CallDecision:
    evaluation = ticket.evaluation
    typed = ticket.made.origin == "person" and evaluation.decision is Decision.ALLOW
    return CallDecision(ticket, evaluation.decision, "typed" if typed else "policy", evaluation.reasons)


def _waves(verdicts: Sequence[CallDecision | ToolResult]) -> Iterator[list[int]]:
    """Numbers of the calls that may run together, in order: reading ones do, each other one is alone."""
    together: list[int] = []
    for number, verdict in enumerate(verdicts):
        changes = isinstance(verdict, CallDecision) and verdict.ticket.effect is not Effect.READ_ONLY
        if changes and isinstance(verdict, CallDecision) and verdict.decision is Decision.ALLOW:
            yield together
            yield [number]
            together = []
        else:
            together.append(number)
    yield together


def _own_copy(arguments: Mapping[str, Json]) -> Mapping[str, Json]:
    """A copy that the caller cannot change any more; what cannot be copied is no JSON, and refused later."""
    try:
        return copy.deepcopy(arguments)
    except Exception:
        return arguments


def _valid(tool: Tool, result: ToolResult) -> ToolResult:
    """The result, if what it holds fits the type that the tool declared."""
    left_out = result.value is None and VALUE_DROPPED in result.metadata  # over the cap, and said
    if result.is_error or left_out:
        return result
    try:
        validate_value(tool, result.value)
    except ToolError as error:
        return ToolResult.error(str(error), recoverable=False)
    except Exception as error:  # tools are written by strangers too
        return broken_tool_result(tool.name, error)
    return result
