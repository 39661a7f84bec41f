"""The gate: `Gate.run` decides about every call of a session, runs it and records it.

    resolve the name → validate → classify → policy → ask → re-check → run under a deadline → cap → record

A command that nobody knows may be tried without any right to change something before anybody is asked.
Nothing reaches the sandbox or the host by another way. Host tools run in this process, so their deadline is
cooperative; `HostCalls` runs them, and `CallServices` is what they may use of the session.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from aisotools.core.concurrency import LoopTurns, OrderedTurns, run_to_completion
from aisotools.core.events import CallDecided, CallEmitted, CallFinished, CallRequested, CallStarted
from aisotools.core.exceptions import (
    ArgumentError,
    SandboxError,
    ToolError,
    UnknownTool,
    WorkspaceError,
    as_clause,
)
from aisotools.core.protocols import Approver, OutputCaps, Tool, ToolContext
from aisotools.core.retention import RetentionBudget
from aisotools.core.sandboxes import INTERRUPTED_BEFORE, CallDispatch, SandboxCall
from aisotools.core.truncation import ResultStore, truncate_result
from aisotools.core.types import Decision, Effect, Facts, Json, ToolCall, ToolResult, with_changes
from aisotools.policy.grants import Grants, names_to_allow
from aisotools.policy.prepared import (
    CallDecision,
    CallRequest,
    PreparedCall,
    call_digest,
    changes_something,
    denial_result,
    in_waves,
    prepare_call,
)
from aisotools.policy.rules import Evaluation, Policy
from aisotools.session.approvals import DEFAULT_ANSWER_TIMEOUT_S, ApprovalManager
from aisotools.session.event_log import EventLog
from aisotools.session.guards import CallEnvironment, Guard, foresee_refusal, leave_guards
from aisotools.session.host_calls import CallServices, HostCalls, fault_result, validated_result
from aisotools.session.losses import UnseenLosses
from aisotools.session.path_rules import PathRules
from aisotools.session.transfer import TransferTool
from aisotools.session.trials import Trials
from aisotools.tools.adapter import (
    broken_tool_result,
    exception_result,
    load_analysis,
)
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.validation import bounded_call, check_size
from aisotools.workspace.protected_names import AllowedNames
from aisotools.workspace.stamps import stamps_of

_MAX_QUESTIONS = 3
"""The most questions about one call, if what it would change differs again each time before it runs."""

_MAX_TIMEOUT_S = 86_400.0
"""One day. A tool that names a longer deadline, or none that is finite, gets this one."""

_LARGE_ARGUMENTS = 1 << 18
"""From this size on (see `check_size`) recording and judging a call takes some milliseconds or more."""

_LARGE_EVENT = 1 << 14
"""From this size on an event is prepared before it is added: the search for secrets takes up to 1 ms for
1,000 characters that were written to slow it down."""

_NEW_POLICY = "the policy is another one than when the call was decided about"
_MEANWHILE = "another call ran after the approval; call it again to be asked about what is there now"
_CANCELLED = ToolResult.error("The call was cancelled.")

_log = logging.getLogger(__name__)


class Gate:
    """Decides about calls, runs them and records them. A session has one.

    Attributes:
        registry: The tools that can be called.
        policy: What may run, before it is narrowed; see `effective_policy`.
        caps: How much of a result goes where.
        results: Texts of results that were too long for a model.
        memory: What host tools keep from call to call.
    """

    def __init__(
        self,
        *,
        registry: ToolRegistry,
        policy: Policy,
        approver: Approver | None,
        event_log: EventLog,
        caps: OutputCaps,
        call_timeout_s: float,
        session_key: str,
        approval_timeout_s: float | None = DEFAULT_ANSWER_TIMEOUT_S,
        allowed: AllowedNames | None = None,
        retention: RetentionBudget | None = None,
    ) -> None:
        """Create a gate. Without an `approver`, each question goes to `default_approver()` of that moment."""
        self.registry = registry
        self.policy = policy
        self.caps = caps
        self.results = ResultStore(budget=retention)
        self.memory: dict[str, Any] = {}
        self._narrowing: list[Policy] = []
        self._approvals = ApprovalManager(approver, event_log, approval_timeout_s, allowed)
        self._event_log = event_log
        self._call_timeout_s = call_timeout_s
        self._session_key = session_key
        self._used_ids: set[str] = set()
        self._host_calls = HostCalls()
        self._unfinished: WeakSet[CallDispatch] = WeakSet()
        self._closed_reason = self._block_reason = ""
        self._turns = LoopTurns()
        self._preparing = OrderedTurns()
        self._losses = UnseenLosses()
        self._trials = Trials(event_log, caps, session_key, self._refuse_if_closed, self._losses)

    @property
    def approver(self) -> Approver | None:
        """The approver that is asked; None means `default_approver()` at the time of each question."""
        return self._approvals.approver

    @approver.setter
    def approver(self, approver: Approver | None) -> None:
        self._approvals.approver = approver

    @property
    def grants(self) -> Grants:
        """Approvals that reach beyond one call."""
        return self._approvals.grants

    @property
    def allowed(self) -> AllowedNames:
        """The protected names that a person has allowed."""
        return self._approvals.allowed

    @property
    def calls(self) -> int:
        """The number of calls so far."""
        return len(self._used_ids)

    def knows(self, call_id: str) -> bool:
        """Return whether there was a call of this id."""
        return call_id in self._used_ids

    def narrow(self, policy: Policy) -> Callable[[], None]:
        """Allow only what `policy` allows as well, until the returned function is called."""
        self._narrowing.append(policy)
        return functools.partial(self._narrowing.remove, policy)

    def effective_policy(self, bound: Policy | None = None, rules: PathRules | None = None) -> Policy:
        """Return the policy narrowed by `bound`, the workspace's own, and by whatever narrows it now.

        What the sandbox enforces of it follows, if the `rules` about paths are given.
        """
        bounds = self._narrowing if bound is None else [bound, *self._narrowing]
        policy, allowed = self.policy, self._approvals.allowed.names
        if policy.allow_protected != allowed:
            policy = with_changes(policy, allow_protected=allowed)
        policy = functools.reduce(Policy.narrowed, bounds, policy)
        return rules.follow(policy) if rules and (policy.concerns_paths or rules.has_any) else policy

    def block(self, reason: str) -> None:
        """Refuse further calls and name `reason`, or the reason given first; "" allows calls again."""
        # What cannot be recorded must not happen.
        self._block_reason = reason and (self._block_reason or reason)

    def interrupt(self) -> None:
        """Withdraw open questions, stop what runs on the host, and let no call begin that was made before."""
        for dispatch in tuple(self._unfinished):
            dispatch.is_interrupted = True
        self._approvals.interrupt()
        self._host_calls.interrupt()

    @contextmanager
    def announce(self) -> Iterator[CallDispatch]:
        """Return a context for calls that are about to be made: an interrupt within it is one of theirs.

        Its value is for `run` and `run_many`.
        """
        announced = CallDispatch(is_given=False)
        self._unfinished.add(announced)
        yield announced

    async def close(self) -> None:
        """Let no further call run, and stop what is under way."""
        self._closed_reason = "the session was closed"
        self._host_calls.interrupt()
        await self._approvals.close()
        self.results.close()

    # ---- calls

    async def run(
        self,
        call: ToolCall,
        env: CallEnvironment,
        announced: CallDispatch | None = None,
        *,
        tool: TransferTool | None = None,
        timeout_s: float | None = None,
        ask: bool = False,
        approver: Approver | None = None,
    ) -> ToolResult:
        """Decide about one call, run it if it may run, and record it.

        Args:
            call: The call, as it was made.
            env: Where it runs.
            announced: See `announce`.
            tool: Replaces the registry's tool, for calls that the session makes itself.
            timeout_s: Deadline in seconds; the tool's own, or the session's, without it.
            ask: Ask a person even if the policy would allow the call.
            approver: Who is asked about this call, instead of the session's approver.
        """
        request = await self._record_request(call, announced)
        return await self._finish(
            request, self._decide_and_run(request, env, tool, timeout_s, ask=ask, approver=approver)
        )

    async def run_many(
        self, calls: Sequence[ToolCall], env: CallEnvironment, announced: CallDispatch | None = None
    ) -> list[ToolResult]:
        """Run several calls with one question for all that need one; see `Session.call_many`."""
        unfinished: dict[int, CallRequest] = {}
        results: dict[int, ToolResult] = {}

        async def run(index: int, decision: CallDecision | ToolResult) -> None:
            request = unfinished.pop(index)
            results[index] = await self._finish(request, self._confirm_and_run(request, decision, env))

        try:
            for index, call in enumerate(calls):
                unfinished[index] = await self._record_request(call, announced)
            decisions: list[CallDecision | ToolResult] = []
            for request in tuple(unfinished.values()):
                await self._take_turn(request.size)
                decisions.append(await self._decide(request, env))
            await self._ask_where_needed(decisions, env, list(unfinished.values()))
            for wave in in_waves(decisions):
                await asyncio.gather(*(run(index, decisions[index]) for index in wave))
        finally:
            # Cancelled before their turn: these were requested, so their end is recorded too.
            for request in unfinished.values():
                self._record_end(request, _CANCELLED)
        return [results[index] for index in range(len(calls))]

    async def _record_request(self, call: ToolCall, announced: CallDispatch | None) -> CallRequest:
        """Find the tool, copy the arguments if they are not too large, and record the request."""
        dispatch = CallDispatch(is_given=False, is_interrupted=bool(announced and announced.is_interrupted))
        self._unfinished.add(dispatch)
        call = bounded_call(call)
        tool = self.registry.get(call.name)
        await load_analysis(tool)
        if self._turns.is_spent:
            await self._turns.wait()
        try:
            size = check_size(call.name, call.arguments)
        except ArgumentError as flaw:
            # Neither copied nor recorded.
            self._event_log.add(CallRequested, call.id, call=with_changes(call, arguments={}))
            return CallRequest(call=call, tool=tool, flaw=flaw, started_s=time.monotonic(), dispatch=dispatch)
        if size >= _LARGE_ARGUMENTS:
            self._turns.spend()
        try:
            arguments = copy.deepcopy(call.arguments)
        except Exception:
            arguments = call.arguments  # what cannot be copied is not JSON; validation refuses it
        else:
            if size >= _LARGE_EVENT:
                await self._event_log.prepare(call.id, arguments)
                # Several may be ready in the same turn, and adding the event has its share as well.
                await self._take_turn(size)
        call = with_changes(call, arguments=arguments)
        self._event_log.add(CallRequested, call.id, call=call)
        return CallRequest(call=call, tool=tool, size=size, started_s=time.monotonic(), dispatch=dispatch)

    async def _take_turn(self, size: int) -> None:
        """Wait for a turn of the loop in which no other large arguments are read, if these are large."""
        if size >= _LARGE_ARGUMENTS:
            await self._turns.take()

    async def _keep_long(self, call_id: str, shown: str) -> None:
        await self.results.write_waiting(call_id)
        if len(shown) >= _LARGE_EVENT:
            await self._event_log.prepare(call_id, shown)
        else:
            await asyncio.sleep(0)  # to be recorded in a turn of its own takes less time than a thread

    async def _finish(self, request: CallRequest, work: Awaitable[ToolResult]) -> ToolResult:
        """Await `work`, cap its result and record it, whatever happens."""
        call, result = request.call, _CANCELLED
        try:
            whole = await work
            named = {"tool": call.name, "call_id": call.id}
            truncated = truncate_result(
                whole, self.caps, self.results, **named, tools=self.registry, may_wait=True
            )
            result = with_changes(truncated, metadata={**truncated.metadata, **named})
            if len(whole.content) >= _LARGE_EVENT:
                # In another turn of the loop, since to cut the text takes long as well. To its end: what a
                # call has done is recorded, whoever is cancelled meanwhile.
                await run_to_completion(self._keep_long(call.id, result.content))
        except WorkspaceError as error:
            # Race: something in the workspace was replaced while the host looked at it.
            result = ToolResult.error(
                f"{call.name} could not be completed: {as_clause(error)}. Make the call again.",
                error_kind="environment",
            )
        except Exception as error:  # whoever makes calls in a loop must survive every one of them
            _log.exception("The call %s of %s failed in the gate itself", call.id, call.name)
            result = fault_result(call.name, error, log=_log.name, was_given=request.dispatch.is_given)
        finally:
            self._record_end(request, result)
        return result

    def _record_end(self, request: CallRequest, result: ToolResult) -> None:
        call, duration_s = request.call, time.monotonic() - request.started_s
        self._event_log.add(CallFinished, call.id, name=call.name, result=result, duration_s=duration_s)

    # ---- deciding

    def prepare(
        self, call: ToolCall, level: str, env: CallEnvironment | None = None, tool: Tool | None = None
    ) -> PreparedCall:
        """Classify `call` and evaluate the policy, without making the call.

        Raises:
            UnknownTool: If there is no such tool.
            ArgumentError: If the arguments do not fit.
            Exception: Whatever else the tool's own members raise.
        """
        check_size(call.name, call.arguments)
        tool = self.registry[call.name] if tool is None else tool
        if env is None:
            # Before the session is open nothing can run: the preview assumes a sandbox that has readers.
            return prepare_call(tool, call, self.effective_policy(), level, has_readers=True)
        policy = self.effective_policy(env.workspace_policy, env.path_rules)
        return env.with_trial(env.prepare(tool, call, policy), policy)

    async def _prepare(
        self, call: ToolCall, env: CallEnvironment, tool: Tool | None, *, is_asked: bool = False
    ) -> PreparedCall:
        """Do what `prepare` does, in threads, for a call whose arguments are known not to be too large."""
        tool = self.registry[call.name] if tool is None else tool
        # In order: a look in a thread may take longer than that of the next call, which has to run after it.
        async with self._preparing.turn():
            while True:
                policies = self.policy, *self._narrowing
                policy = self.effective_policy(env.workspace_policy, env.path_rules)
                prepared = await env.prepare_in_threads(tool, call, policy, is_asked=is_asked)
                # Race: somebody may have set another policy while files were looked at, and that one holds.
                if policies == (self.policy, *self._narrowing):
                    break
        return env.with_trial(prepared, policy)

    async def _decide(
        self,
        request: CallRequest,
        env: CallEnvironment,
        tool: Tool | None = None,
        *,
        ask: bool = False,
        approver: Approver | None = None,
    ) -> CallDecision | ToolResult:
        """Return what policy and grants say about the call, or the error that makes it no call at all."""
        call = request.call
        if call.id in self._used_ids:
            message = f"The call id {call.id!r} was used before, and an id runs at most once. Give another."
            return ToolResult.error(message, recoverable=False, error_kind="invalid")
        self._used_ids.add(call.id)
        if refused := env.refuse_if_moved(call):
            return refused
        if request.flaw is not None:
            return broken_tool_result(call.name, request.flaw)
        try:
            prepared = await self._prepare(call, env, tool or request.tool, is_asked=ask)
        except UnknownTool as error:
            return ToolResult.error(str(error), error_kind="invalid")
        except Exception as error:  # tools are written by strangers too
            return broken_tool_result(call.name, error)
        decision, reasons = prepared.evaluation.decision, prepared.evaluation.reasons
        if self._trials.last_counted:
            self._trials.on_decided(prepared)
        if prepared.evaluation.protected and names_to_allow(prepared.evaluation.protected):
            return self._approvals.decide_protected(prepared, approver)
        if decision is Decision.ALLOW:
            decided_by = "typed" if call.origin == "person" else "policy"
            return CallDecision(prepared, Decision.ASK if ask else decision, decided_by, reasons)
        if decision is Decision.ASK and not ask:
            grant = self._approvals.grants.find(prepared)
            if grant is not None:
                return CallDecision(prepared, Decision.ALLOW, "grant", (f"you allowed {grant.description}",))
        return CallDecision(prepared, decision, "policy", reasons)

    async def _decide_and_run(
        self,
        request: CallRequest,
        env: CallEnvironment,
        tool: TransferTool | None,
        timeout_s: float | None,
        *,
        ask: bool,
        approver: Approver | None,
    ) -> ToolResult:
        await self._take_turn(request.size)
        decision = await self._decide(request, env, tool, ask=ask, approver=approver)
        if isinstance(decision, CallDecision) and decision.prepared.is_tried and not ask:
            decision = await self._try_first(decision, env, timeout_s)
        if isinstance(decision, CallDecision) and decision.decision is Decision.ASK:
            if flaw := foresee_refusal(decision, env):
                return exception_result(flaw)
            await self._take_turn(request.size)
            if request.dispatch.is_interrupted:
                return INTERRUPTED_BEFORE
            (decision,) = await self._ask([decision], env, [request], approver)
            decision = await self._confirm(request, decision, env, tool, approver)
        return await self._run_decided(request, decision, env, timeout_s, tool)

    async def _ask_where_needed(
        self,
        decisions: list[CallDecision | ToolResult],
        env: CallEnvironment,
        requests: Sequence[CallRequest],
    ) -> None:
        """Ask one question about all calls that need approval; replace their decisions by the answers."""
        for index, decision in enumerate(decisions):
            if isinstance(decision, CallDecision) and decision.prepared.is_tried:
                decisions[index] = await self._try_first(decision, env)
            if changes_something(decisions[index]):
                break  # what comes after is about what this one leaves
        earlier: list[Facts] = []
        for index, decision in enumerate(decisions):
            if requests[index].dispatch.is_interrupted:
                decisions[index] = INTERRUPTED_BEFORE
            elif isinstance(decision, CallDecision) and decision.decision is not Decision.DENY:
                if flaw := foresee_refusal(decision, env, earlier):
                    decisions[index] = exception_result(flaw)
                else:
                    earlier.append(decision.prepared.facts)
        to_ask = {
            index: decision
            for index, decision in enumerate(decisions)
            if isinstance(decision, CallDecision) and decision.decision is Decision.ASK
        }
        if to_ask:
            answers = await self._ask(list(to_ask.values()), env, requests)
            for index, answer in zip(to_ask, answers, strict=True):
                decisions[index] = answer

    async def _ask(
        self,
        decisions: Sequence[CallDecision],
        env: CallEnvironment,
        requests: Sequence[CallRequest],
        approver: Approver | None = None,
    ) -> list[CallDecision]:
        """Ask one question about several calls. Return the decision about each."""
        # A person may edit arguments and answer late: the policy at the time of the answer counts.
        policy = functools.partial(self.effective_policy, env.workspace_policy, env.path_rules)
        return await self._approvals.resolve(decisions, env, policy, approver, requests)

    async def _try_first(
        self, decision: CallDecision, env: CallEnvironment, timeout_s: float | None = None
    ) -> CallDecision | ToolResult:
        """Return the result of a call whose trial counts; else the decision, with what came of the trial."""
        tried = await self._trials.run(decision, env, timeout_s)
        return validated_result(decision.prepared.tool, tried) if isinstance(tried, ToolResult) else tried

    async def _confirm_and_run(
        self, request: CallRequest, decision: CallDecision | ToolResult, env: CallEnvironment
    ) -> ToolResult:
        if isinstance(decision, CallDecision):
            decision = await self._confirm(request, decision, env)
        return await self._run_decided(request, decision, env, None)

    async def _confirm(
        self,
        request: CallRequest,
        decision: CallDecision,
        env: CallEnvironment,
        tool: TransferTool | None = None,
        approver: Approver | None = None,
    ) -> CallDecision:
        """Return the decision if the call and the policy are as they were; otherwise decide once more.

        Time has passed since the decision: a person took time to answer, or other calls of the batch have
        run. What the policy of this moment denies is denied; what it asks about, an answer has settled. If
        the call would do another thing, the approver is asked again, and the question lists the differences.
        """
        for _ in range(_MAX_QUESTIONS):
            shown = decision.prepared
            if decision.decision is not Decision.ALLOW:
                return decision
            differences = await env.find_differences(shown)
            is_same_policy = self.effective_policy(env.workspace_policy, env.path_rules) == shown.policy
            is_gone = tool is None and self.registry.get(shown.original.name) is None
            if is_gone or (is_same_policy and not differences):
                return decision
            is_answered = decision.decided_by == "approver"
            prepared = await self._prepare(shown.call, env, tool, is_asked=is_answered)
            evaluation = prepared.evaluation
            if evaluation.decision is Decision.DENY:
                reasons = evaluation.reasons if is_same_policy else (*evaluation.reasons, _NEW_POLICY)
                return CallDecision(prepared, Decision.DENY, "policy", reasons)
            if evaluation.decision is Decision.ALLOW and not is_answered:
                return CallDecision(prepared, Decision.ALLOW, decision.decided_by, evaluation.reasons)
            if not differences and (is_answered or self.grants.find(prepared) is not None):
                return decision
            changed = Evaluation(Decision.ASK, reasons=(*differences, *evaluation.reasons))
            question = CallDecision(
                with_changes(prepared, evaluation=changed), Decision.ASK, "policy", changed.reasons
            )
            (decision,) = await self._ask([question], env, [request], approver)
        reason = (
            "what it would change was different each time it was shown; call it again when that has settled"
        )
        return CallDecision(decision.prepared, Decision.DENY, "policy", (reason,))

    # ---- running

    async def _run_decided(
        self,
        request: CallRequest,
        decision: CallDecision | ToolResult,
        env: CallEnvironment,
        timeout_s: float | None,
        session_tool: TransferTool | None = None,
    ) -> ToolResult:
        """Record the decision, check that it still holds, and run the call if it may run."""
        if isinstance(decision, ToolResult):
            return decision
        prepared = decision.prepared
        call = prepared.original
        await self._take_turn(len(prepared.encoded_arguments))
        self._event_log.add(
            CallDecided,
            call.id,
            decision=decision.decision,
            decided_by=decision.decided_by,
            effect=prepared.effect,
            reasons=decision.reasons,
            arguments=prepared.arguments,
            digest=prepared.digest,
            links=prepared.facts.links,
        )
        if decision.decision is not Decision.ALLOW:
            return denial_result(call.name, decision.reasons)
        # While a person was asked, the tool may have been redefined or removed: what was shown is what runs.
        tool = session_tool or self.registry.get(call.name)
        if tool is None or prepared.digest != call_digest(
            tool, prepared.encoded_arguments, env.level, prepared.facts
        ):
            return denial_result(call.name, ("the tool changed between decision and run; call it again",))
        if refused := self._refuse_if_closed(call) or env.refuse_if_moved(call):
            return refused
        if timeout_s is None:
            timeout_s = min(prepared.deadline_s or self._call_timeout_s, _MAX_TIMEOUT_S)
        self._event_log.add(CallStarted, call.id, runs_in=prepared.facts.runs_in, level=env.level)
        try:
            if prepared.effect is not Effect.READ_ONLY:
                return await self._run_guarded(request.dispatch, decision, env, timeout_s, session_tool)
            if env.before_read is not None:
                await env.before_read()
            result = await self._find_refusal(prepared) or await self._run_unguarded(
                request.dispatch, prepared, env, timeout_s, session_tool
            )
            return result if env.on_read is None else env.on_read(prepared, result)
        except ToolError as error:  # a guard demands that something is done first
            return exception_result(error)
        except SandboxError as error:
            return ToolResult.error(str(error), recoverable=False, error_kind="environment")

    def _refuse_if_closed(self, call: ToolCall) -> ToolResult | None:
        """Return the result of a call that must not run any more; None if it may."""
        reason = self._closed_reason or self._block_reason
        if not reason:
            return None
        message = f"{call.name} was not run: {reason}."
        return ToolResult.error(message, recoverable=False, error_kind="environment")

    async def _run_guarded(
        self,
        dispatch: CallDispatch,
        decision: CallDecision,
        env: CallEnvironment,
        timeout_s: float,
        session_tool: TransferTool | None,
    ) -> ToolResult:
        """Run a call that may change something between the guards' `before` and `after`."""
        prepared = decision.prepared
        entered: list[Guard] = []
        result: ToolResult | None = None
        try:
            for guard in env.guards:
                await guard.before(prepared)
                entered.append(guard)
            # Race: while the workspace's lock was waited for, another call may have changed what was shown.
            is_shown = decision.decided_by == "approver"
            if is_shown and (differences := await env.find_differences(prepared)):
                result = denial_result(prepared.original.name, (*differences, _MEANWHILE))
            elif (result := await self._find_refusal(prepared)) is None:
                result = await self._run_unguarded(dispatch, prepared, env, timeout_s, session_tool)
        finally:
            # A cancelled call may have changed something too. All guards that were entered run to their end,
            # however often the caller is cancelled meanwhile: the outermost holds the workspace's lock.
            leaving = leave_guards(entered, prepared, result, has_run=dispatch.is_given)
            result = await run_to_completion(leaving)
        assert result is not None
        facts = prepared.facts
        if facts.losses and facts.certain and not result.is_error and self.grants.goes_by_losses:
            # Race: what a person saves in the moment since the call ended counts as the call's; undo has it.
            self.grants.note_left(facts.losses, stamps_of(env.workspace, dict(facts.losses), own_names=True))
        return result

    async def _find_refusal(self, prepared: PreparedCall) -> ToolResult | None:
        """Return the result of a call that must not run after all, right before it would; None if it may."""
        await self._take_turn(len(prepared.encoded_arguments))
        # Once more: the record of the start may have failed, or one of another call while guards were waited
        # for. What is not in the ledger must not happen.
        return self._refuse_if_closed(prepared.call)

    async def _run_unguarded(
        self,
        dispatch: CallDispatch,
        prepared: PreparedCall,
        env: CallEnvironment,
        timeout_s: float,
        session_tool: TransferTool | None,
    ) -> ToolResult:
        """Have the sandbox or the host run a call, and check the value that comes back."""
        call, only_reads = prepared.call, prepared.effect is Effect.READ_ONLY
        rules = None if prepared.payload is None else env.path_rules
        done = await rules.enforce(call.name) if rules is not None and rules.has_any else ""
        if dispatch.is_interrupted:
            return INTERRUPTED_BEFORE
        dispatch.is_given = True
        if prepared.payload is None:
            context, on_left = self._context(call, env), None if only_reads else env.on_work_left
            result = await self._host_calls.run(prepared.tool, call, context, timeout_s, on_left)
        else:
            request = SandboxCall(
                call=call,
                shipment=prepared.payload,
                timeout_s=timeout_s,
                output_caps=self.caps if session_tool is None else session_tool.caps,
                session_key=self._session_key,
                read_only=only_reads,
                in_reader=prepared.needs_reader,
                changes_variables=not prepared.only_touches_files,
                starts_task=prepared.facts.background,
                dispatch=dispatch,
            )
            result = await env.sandbox.call(request)
            if done:
                result = with_changes(result, content=f"{result.content}\n{done}".lstrip("\n"))
        result = validated_result(prepared.tool, result)
        if session_tool is not None:
            self._losses.note(dispatch)
            return await session_tool.receive(result)
        return self._losses.report(result) if self._losses.lines else result

    def _context(self, call: ToolCall, env: CallEnvironment) -> ToolContext:
        """Build the context of a host tool's call."""

        def emit(name: str, payload: Mapping[str, Json]) -> None:
            self._event_log.add(CallEmitted, call.id, name=name, payload=payload)

        async def run(further: ToolCall) -> ToolResult:
            return await self.run(further, env)

        return ToolContext(
            agent_id=call.agent_id,
            session_key=self._session_key,
            turn_id=call.turn_id,
            call_id=call.id,
            workspace_path=env.workspace,
            sandbox_config={"level": env.level},
            approval_handler=self._approvals.approver,
            output_caps=self.caps,
            services=CallServices(
                call, run=run, ask_user=self._approvals.ask_user, results=self.results, memory=self.memory
            ),
            emitter=emit,
        )
