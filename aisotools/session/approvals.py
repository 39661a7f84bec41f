"""Ask a person about calls, and turn the answers into decisions.

An answer settles exactly what was asked. Edited arguments are a new call: validated and checked against the
policy once more, but not asked about again, since they are the answerer's own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import uuid
from collections.abc import Callable, Mapping, Sequence

from aisotools.core.concurrency import cancel_future
from aisotools.core.events import ApprovalAnswered, ApprovalAsked, GrantRevoked, ProtectedNamesAllowed
from aisotools.core.path_texts import is_within
from aisotools.core.protocols import Approver, UserQuestion
from aisotools.core.sandboxes import Sandbox, SandboxStatus, SupportsPlaces
from aisotools.core.types import Approval, ApprovalRequest, Decision, Facts, Json, ToolCall
from aisotools.policy.approvers import ask_question, request_approvals
from aisotools.policy.grants import Grant, Grants, names_to_allow, remember_scopes
from aisotools.policy.prepared import CallDecision, CallRequest, PreparedCall
from aisotools.policy.rules import Policy
from aisotools.session.approvers import default_approver
from aisotools.session.event_log import EventLog
from aisotools.session.guards import CallEnvironment
from aisotools.session.previews import Previewer, digest_of_file
from aisotools.tools.adapter import definition_of, hints_of, supports
from aisotools.tools.validation import is_number
from aisotools.workspace.protected_names import AllowedNames
from aisotools.workspace.stamps import NAMED

DEFAULT_ANSWER_TIMEOUT_S = 300.0
"""Seconds that a person has to answer, unless a session says otherwise."""

_CANCELLED = Approval("cancel", reason="The call was cancelled.")
_OUTCOMES = {
    "deny": "it was denied",
    "timeout": "nobody answered in time",
    "cancel": "the question was cancelled",
}


class ApprovalManager:
    """The open questions of one session, and the approvals to be remembered.

    Attributes:
        approver: Who is asked; None means `default_approver()` at the time of each question.
        grants: Remembered approvals, which cover further calls.
        allowed: The protected names that a person has allowed.
    """

    def __init__(
        self,
        approver: Approver | None,
        event_log: EventLog,
        answer_timeout_s: float | None = DEFAULT_ANSWER_TIMEOUT_S,
        allowed: AllowedNames | None = None,
    ) -> None:
        """Ask `approver`, who has `answer_timeout_s` seconds to answer; None waits for ever.

        Raises:
            ValueError: If `answer_timeout_s` is neither None nor a number above 0.
        """
        if answer_timeout_s is not None and not (is_number(answer_timeout_s) and answer_timeout_s > 0):
            raise ValueError(
                f"approval_timeout_s={answer_timeout_s!r}: use a number of seconds above 0, or None."
            )
        self.approver = approver
        self.allowed = allowed or AllowedNames()
        self.grants = Grants(self._on_revoked)
        self._answer_timeout_s = answer_timeout_s
        self._event_log = event_log
        self._open: set[asyncio.Task[list[Approval]]] = set()
        self._starting: set[asyncio.Task[SandboxStatus]] = set()

    def interrupt(self) -> None:
        """Withdraw every open question, and call off the starts of sandboxes that were begun meanwhile."""
        # Race: a start that waits for the place of a sandbox in a pool may only be about to do so. Nobody
        # else knows of it yet.
        for waited_for in (*self._open, *self._starting):
            cancel_future(waited_for)

    async def close(self) -> None:
        """Withdraw every open question, and await the end of the starts that were begun meanwhile."""
        self.interrupt()
        here = asyncio.get_running_loop()
        for one in tuple(self._starting):
            if (loop := one.get_loop()) is here:
                one.cancel()
                await asyncio.wait([one])
            elif not loop.is_closed():  # a session can be closed on another loop than its own
                loop.call_soon_threadsafe(one.cancel)

    def _on_revoked(self, grant: Grant) -> None:
        self.allowed.withdraw(grant.names)
        self._event_log.add(GrantRevoked, scope=grant.scope, tool=grant.tool)

    def decide_protected(self, prepared: PreparedCall, approver: Approver | None = None) -> CallDecision:
        """Decide to ask about a call that writes protected files, or to deny it if nobody can be asked.

        Args:
            prepared: The call.
            approver: Who is asked this time, instead of the session's approver.
        """
        own = self.approver if approver is None else approver
        can_ask = own is not None or default_approver() is not None
        reasons = prepared.evaluation.reasons
        if not can_ask:
            reasons = (*reasons, _way_out(prepared))
        return CallDecision(prepared, Decision.ASK if can_ask else Decision.DENY, "policy", reasons)

    async def ask_user(self, question: UserQuestion) -> str | None:
        """Put a model's own question to the approver. Return None if nobody answered."""
        return await ask_question(self.approver or default_approver(), question)

    async def resolve(
        self,
        decisions: Sequence[CallDecision],
        env: CallEnvironment,
        policy: Callable[[], Policy],
        approver: Approver | None = None,
        calls: Sequence[CallRequest] = (),
    ) -> list[CallDecision]:
        """Ask about several calls with one question. Return the decision about each.

        Args:
            decisions: The calls to ask about.
            env: Where they would run.
            policy: Returns the policy that edited arguments are checked against, when they have come.
            approver: Who is asked this time, instead of the session's approver.
            calls: Nobody is asked if one of these was interrupted.
        """
        previewer = Previewer(env.files)
        shown: list[PreparedCall] = []
        requests: list[ApprovalRequest] = []
        changed: list[str] = []
        named: list[str] = []  # by code, which may write it
        for decision in decisions:
            prepared, call = decision.prepared, decision.prepared.call
            scripts = tuple(dict(prepared.facts.scripts))
            # Before the preview, which adds what this call leaves.
            left_digests = previewer.digests_left(dict(prepared.facts.sources))
            preview, contents = previewer.preview(call.arguments, prepared.own_path, scripts)
            expected = _expected_among(prepared.facts, changed, named) if changed or named else ()
            before = {}
            if changed and env.files is not None:
                before = {path: digest_of_file(env.files, path) for path in contents}
            prepared = dataclasses.replace(
                prepared, contents=contents, before=before, expected=expected, left_digests=left_digests
            )
            changed += prepared.facts.writes
            named += () if prepared.facts.commands else prepared.facts.named
            shown.append(prepared)
            requests.append(await self._request(prepared, call, preview, env))
        if approver is None:
            approver = default_approver() if self.approver is None else self.approver
        for made in calls:
            if made.dispatch.is_interrupted:
                # Race: Stop came while previews were made, when there was no question to withdraw.
                stopped = ("the call was interrupted before anybody was asked",)
                return [CallDecision(one, Decision.DENY, "policy", stopped) for one in shown]
        needs_sandbox = False
        for request in requests:
            self._event_log.add(ApprovalAsked, request.call.id, request=request)
            needs_sandbox = needs_sandbox or request.facts.runs_in == "sandbox"
        starting = self._start(env.sandbox) if approver is not None and needs_sandbox else None
        answered: list[CallDecision] = []
        will_run = False
        try:
            answers = [_CANCELLED] * len(requests)
            try:
                answers = await self._ask(approver, requests)
            finally:
                for request, answer in zip(requests, answers, strict=True):
                    self._event_log.add(
                        ApprovalAnswered, request.call.id, request_id=request.id, approval=answer
                    )
            decided_by = "policy" if approver is None else "approver"
            for prepared, request, answer in zip(shown, requests, answers, strict=True):
                decision = await self._decide(
                    prepared, answer, request.reasons, decided_by, env=env, policy=policy
                )
                answered.append(decision)
                will_run = will_run or decision.decision is not Decision.DENY
        finally:
            if starting is not None and not will_run:
                cancel_future(starting)  # nobody needs it any more
        return answered

    async def _request(
        self, prepared: PreparedCall, call: ToolCall, previewed: Mapping[str, Json], env: CallEnvironment
    ) -> ApprovalRequest:
        """Return the question about a call. `call` is a copy that only the approver gets."""
        preview: dict[str, Json] = {"remember": remember_scopes(prepared), **previewed}
        if prepared.trial:
            preview["trial"] = dict(prepared.trial)
        if hints := hints_of(prepared.tool):
            preview["hints"] = list(hints)
        if env.describe_undo is not None:
            preview["undo"] = await env.describe_undo(prepared)
        asked_by_policy = prepared.evaluation.decision is not Decision.ALLOW
        reasons = prepared.evaluation.reasons if asked_by_policy else ("the caller wants it approved",)
        rules = env.path_rules
        if rules and (rules.enforcement.gaps or rules.enforcement.repository_gaps):
            reasons += env.gaps_of(prepared.facts)
        return ApprovalRequest(
            id=uuid.uuid4().hex,
            call=call,
            definition=definition_of(prepared.tool),
            effect=prepared.effect,
            level="host" if prepared.facts.runs_in == "host" else env.level,
            reasons=reasons,
            facts=prepared.facts,
            preview=preview,
            timeout_s=self._answer_timeout_s,
            in_reader=prepared.needs_reader,
        )

    async def _ask(self, approver: Approver | None, requests: Sequence[ApprovalRequest]) -> list[Approval]:
        question = asyncio.ensure_future(request_approvals(approver, requests))
        self._open.add(question)
        try:
            return await question
        except asyncio.CancelledError:
            # Two cases: the waiting task was cancelled, or `interrupt` cancelled the question alone.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return [Approval("cancel", reason="Interrupted.") for _ in requests]
        finally:
            question.cancel()
            self._open.discard(question)

    def _start(self, sandbox: Sandbox) -> asyncio.Task[SandboxStatus] | None:
        """Start the worker while the person thinks, so that an approved call need not wait for it.

        Not if that takes the place of another sandbox: the call may never run. Return the start, if any.
        """
        # Race: of two questions at once only one gets the last free place, so it is taken here and now.
        if supports(sandbox, SupportsPlaces):
            starting = sandbox.start_at_once()
            if starting is None:
                return None
        else:
            starting = asyncio.ensure_future(sandbox.start())
        self._starting.add(starting)
        starting.add_done_callback(self._forget_start)
        return starting

    def _forget_start(self, starting: asyncio.Task[SandboxStatus]) -> None:
        self._starting.discard(starting)
        if not starting.cancelled():
            # A worker that does not start is reported by the call that needs it, not by the event loop.
            starting.exception()

    async def _decide(
        self,
        prepared: PreparedCall,
        approval: Approval,
        reasons: tuple[str, ...],
        decided_by: str,
        *,
        env: CallEnvironment,
        policy: Callable[[], Policy],
    ) -> CallDecision:
        if approval.outcome != "approve":
            denied = _OUTCOMES[approval.outcome]
            if approval.reason:
                denied += f" ({approval.reason.rstrip('.')})"
            causes = tuple(f"asked because {reason}" for reason in reasons)
            return CallDecision(prepared, Decision.DENY, decided_by, (denied, *causes))
        decision = CallDecision(prepared, Decision.ALLOW, decided_by, reasons)
        if approval.arguments is not None:
            decision = await _decide_edited(prepared, approval.arguments, decided_by, env, policy())
        elif prepared.evaluation.protected:
            return self._allow_protected(prepared, approval, reasons, decided_by, env)
        if approval.remember is not None and decision.decision is Decision.ALLOW:
            self.grants.add(approval.remember, decision.prepared)
        return decision

    def _allow_protected(
        self,
        prepared: PreparedCall,
        approval: Approval,
        reasons: tuple[str, ...],
        decided_by: str,
        env: CallEnvironment,
    ) -> CallDecision:
        """Allow the names that the call writes, if that was chosen; approval of the call does not suffice."""
        grant = self.grants.add("protected", prepared) if approval.remember == "protected" else None
        if grant is None:
            reason = f"approving the call alone does not allow this; {_way_out(prepared)}"
            return CallDecision(prepared, Decision.DENY, decided_by, (*reasons, reason))
        self.allowed.allow(grant.names)
        call_id = prepared.original.id
        self._event_log.add(ProtectedNamesAllowed, call_id, names=grant.names, source="approver")
        there = [path for path in prepared.evaluation.protected if os.path.lexists(env.workspace / path)]
        if env.level == "isolated" and there:
            # A worker has files that were there when it started mounted read only, and keeps them so.
            reason = (
                f"{', '.join(grant.names)} may be written from now on, but the present sandbox has "
                f"{', '.join(there)} mounted read only. Restart the sandbox, then make the call again"
            )
            return CallDecision(prepared, Decision.DENY, decided_by, (reason,))
        return CallDecision(prepared, Decision.ALLOW, decided_by, (f"you allowed that {grant.description}",))


def _expected_among(facts: Facts, changed: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    """Return those of the paths that a call would change or reads that earlier calls are expected to change.

    Args:
        facts: Of the call.
        changed: What earlier calls of the same question write.
        named: What code among them names. For what the call only names as well, that counts.
    """
    return tuple(
        path
        for path, digest in (*facts.losses, *facts.sources)
        for others in ((*changed, *named) if digest.startswith(NAMED) else changed,)
        if any(is_within(path, other) or is_within(other, path) for other in others)
    )


def _way_out(prepared: PreparedCall) -> str:
    names = list(names_to_allow(prepared.evaluation.protected))
    return f"a person can allow it for this workspace, on the card or by Session(allow_protected={names})"


async def _decide_edited(
    prepared: PreparedCall,
    arguments: Mapping[str, Json],
    decided_by: str,
    env: CallEnvironment,
    policy: Policy,
) -> CallDecision:
    """Decide about a call with arguments that the person wrote. Only a denying rule stands against it."""
    call = dataclasses.replace(prepared.original, arguments=arguments)
    try:
        edited = await env.prepare_in_threads(prepared.tool, call, policy)
    except Exception as error:  # tools are written by strangers too
        return CallDecision(
            prepared, Decision.DENY, decided_by, (f"the edited arguments do not fit: {error}",)
        )
    denied = edited.evaluation.decision is Decision.DENY
    decision = Decision.DENY if denied else Decision.ALLOW
    return CallDecision(edited, decision, decided_by, edited.evaluation.reasons)
