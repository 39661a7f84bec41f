"""Putting questions to whoever approves, one or several at a time, and taking the answers for what they are.

An answer settles exactly what was asked about. Edited arguments are a new call: validated and checked against
the policy once more, and asked about no more, since they are the answerer's own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from aisotools.core.events import ApprovalAnswered, ApprovalAsked, GrantRevoked
from aisotools.core.protocols import Approver, Sandbox, UserQuestion
from aisotools.core.types import Approval, ApprovalRequest, Decision, Facts, Json
from aisotools.policy.approvers import resolve_all, resolve_inquiry
from aisotools.policy.grants import Grants, scopes_of
from aisotools.policy.prepared import CallDecision, PreparedCall, ticket_for
from aisotools.policy.rules import Policy
from aisotools.session.approvers import default_approver
from aisotools.session.event_log import EventLog
from aisotools.session.options import is_number
from aisotools.session.preview import preview_of

ASK_S = 300.0
"""How many seconds a person has to answer, unless a session says otherwise."""


class ApprovalManager:
    """The questions of one session that stand open, and the approvals that were to be remembered."""

    def __init__(self, approver: Approver | None, journal: EventLog, ask_s: float | None = ASK_S) -> None:
        """Ask `approver`, who has `ask_s` seconds; None means whoever can be asked when the time comes.

        Raises:
            ValueError: If `ask_s` is no number above 0, nor None, which waits for ever.
        """
        if ask_s is not None and not (is_number(ask_s) and ask_s > 0):
            raise ValueError(f"approval_timeout_s={ask_s!r}: use a number of seconds above 0, or None.")
        self.approver = approver
        self._ask_s = ask_s
        self.grants = Grants(lambda grant: journal.add(GrantRevoked, scope=grant.scope, tool=grant.tool))
        self.undoable: Callable[[Facts], bool] | None = None
        self._journal = journal
        self._open: set[asyncio.Task[list[Approval]]] = set()
        self._warming: set[asyncio.Future[object]] = set()

    def interrupt(self) -> None:
        """Call off every open question."""
        for question in self._open:
            question.cancel()

    async def close(self) -> None:
        """Call off every open question, and whatever was started meanwhile."""
        self.interrupt()
        for warming in self._warming:
            warming.cancel()
        await asyncio.gather(*self._warming, return_exceptions=True)

    async def inquire(self, inquiry: UserQuestion) -> str | None:
        """Put a model's own question to whoever approves; None when nobody answered."""
        return await resolve_inquiry(self.approver or default_approver(), inquiry)

    async def put(
        self,
        verdicts: Sequence[CallDecision],
        *,
        sandbox: Sandbox,
        level: str,
        policy: Policy,
        workspace: Path | None = None,
        undo_note: Callable[[PreparedCall], Awaitable[str]] | None = None,
        approver: Approver | None = None,
    ) -> list[CallDecision]:
        """Ask about calls, all at once, and return what is to be done with each."""
        asked = [_request(verdict, level, workspace, self._ask_s) for verdict in verdicts]
        if undo_note is not None:
            asked = [
                dataclasses.replace(one, preview={**one.preview, "undo": await undo_note(verdict.ticket)})
                for one, verdict in zip(asked, verdicts, strict=True)
            ]
        approver = self.approver if approver is None else approver
        approver = default_approver() if approver is None else approver
        for request in asked:
            self._journal.add(ApprovalAsked, request.call.id, request=request)
        if approver is not None and any(request.facts.runs_in == "sandbox" for request in asked):
            self._warm(sandbox)
        answers = [Approval("cancel", reason="The call was cancelled.") for _ in asked]
        try:
            answers = await self._answers(approver, asked)
        finally:
            for request, answer in zip(asked, answers, strict=True):
                self._journal.add(ApprovalAnswered, request.call.id, request_id=request.id, approval=answer)
        decided_by = "approver" if approver is not None else "policy"
        return [
            self._settled(verdict.ticket, answer, request.reasons, decided_by, level=level, policy=policy)
            for verdict, request, answer in zip(verdicts, asked, answers, strict=True)
        ]

    async def _answers(self, approver: Approver | None, asked: Sequence[ApprovalRequest]) -> list[Approval]:
        question = asyncio.ensure_future(resolve_all(approver, asked))
        self._open.add(question)
        try:
            return await question
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return [Approval("cancel", reason="Interrupted.") for _ in asked]
        finally:
            question.cancel()
            self._open.discard(question)

    def _warm(self, sandbox: Sandbox) -> None:
        """Have the worker start meanwhile, so that an approved call need not wait for it."""
        warming: asyncio.Future[object] = asyncio.ensure_future(sandbox.start())
        self._warming.add(warming)
        warming.add_done_callback(self._warmed)

    def _warmed(self, warming: asyncio.Future[object]) -> None:
        self._warming.discard(warming)
        if not warming.cancelled():
            warming.exception()  # a worker that does not start is reported by the call that needs it

    def _settled(
        self,
        ticket: PreparedCall,
        approval: Approval,
        reasons: tuple[str, ...],
        decided_by: str,
        *,
        level: str,
        policy: Policy,
    ) -> CallDecision:
        if approval.outcome != "approve":
            return CallDecision(ticket, Decision.DENY, decided_by, _why_not(approval, reasons))
        if approval.arguments is not None:
            verdict = _edited(
                ticket, approval.arguments, decided_by, level=level, policy=policy, undoable=self.undoable
            )
        else:
            verdict = CallDecision(ticket, Decision.ALLOW, decided_by, reasons)
        if approval.remember is not None and verdict.decision is Decision.ALLOW:
            self.grants.add(approval.remember, verdict.ticket)
        return verdict


def _request(
    verdict: CallDecision, level: str, workspace: Path | None, ask_s: float | None
) -> ApprovalRequest:
    ticket = verdict.ticket
    asked = ticket.evaluation.decision is Decision.ASK
    return ApprovalRequest(
        id=uuid.uuid4().hex,
        call=ticket.call,
        definition=ticket.definition,
        effect=ticket.effect,
        level="host" if ticket.facts.runs_in == "host" else level,
        reasons=ticket.evaluation.reasons if asked else ("the caller wants it approved",),
        facts=ticket.facts,
        preview={"remember": scopes_of(ticket), **preview_of(ticket.arguments, ticket.shipment, workspace)},
        timeout_s=ask_s,
    )


def _edited(
    ticket: PreparedCall,
    arguments: Mapping[str, Json],
    decided_by: str,
    *,
    level: str,
    policy: Policy,
    undoable: Callable[[Facts], bool] | None,
) -> CallDecision:
    call = dataclasses.replace(ticket.made, arguments=arguments)
    try:
        edited = ticket_for(ticket.tool, call, policy, level, undoable)
    except Exception as error:  # tools are written by strangers too
        told = f"the edited arguments do not fit: {error}"
        return CallDecision(ticket, Decision.DENY, decided_by, (told,))
    denied = edited.evaluation.decision is Decision.DENY
    decision = Decision.DENY if denied else Decision.ALLOW
    return CallDecision(edited, decision, decided_by, edited.evaluation.reasons)


def _why_not(approval: Approval, asked_because: tuple[str, ...]) -> tuple[str, ...]:
    said = {
        "deny": "it was denied",
        "timeout": "nobody answered in time",
        "cancel": "the question was cancelled",
    }
    told = said[approval.outcome] + (f" ({approval.reason.rstrip('.')})" if approval.reason else "")
    return (told, *(f"asked because {reason}" for reason in asked_because))
