"""Stock approvers, and functions that ask an approver and turn every failure into an answer."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import Approver, SupportsBatch, SupportsQuestions, UserQuestion
from aisotools.core.types import Approval, ApprovalRequest

ScriptedAnswer = str | Approval | Callable[[ApprovalRequest], str | Approval]
"""One step of a script: an outcome, an approval, or a function that returns either for a request."""

NO_APPROVER_REASON = (
    "Nobody can be asked here: there is no notebook with a person at it and no terminal. "
    "Give the session an approver, or a policy rule that allows the call."
)
"""Why a request that nobody can see is denied, and what to do about it."""


# ---- stock approvers


_APPROVED = Approval("approve")


class AllowAll:
    """Approves everything. For programs that trust what they call."""

    async def ask(self, request: ApprovalRequest) -> Approval:  # noqa: ARG002 - named by the contract
        """Approve `request`."""
        return _APPROVED


@dataclass(frozen=True, slots=True)
class DenyAll:
    """Denies everything.

    Attributes:
        reason: Why, for the model.
    """

    reason: str = ""

    async def ask(self, request: ApprovalRequest) -> Approval:  # noqa: ARG002 - named by the contract
        """Deny `request`."""
        return Approval("deny", reason=self.reason)


class ScriptedApprover:
    """Gives prepared answers in order, then denies. For tests and demonstrations.

    Attributes:
        requests: The requests so far.
    """

    def __init__(self, answers: Sequence[ScriptedAnswer] = ()) -> None:
        """Answer with `answers`, one for each request.

        Raises:
            UsageError: If an answer is neither an outcome, an `Approval`, nor callable.
        """
        for position, answer in enumerate(answers):
            if isinstance(answer, str):
                try:
                    _as_approval(answer)
                except ValueError as error:
                    raise UsageError(f"Answer {position} of the script: {error}") from None
            elif not isinstance(answer, Approval) and not callable(answer):
                raise UsageError(
                    f"Answer {position} of the script is {answer!r}. "
                    'Use an outcome such as "approve", an Approval, or a function of the request.',
                )
        self._answers = tuple(answers)
        self.requests: list[ApprovalRequest] = []

    def __repr__(self) -> str:
        return f"<ScriptedApprover {len(self.requests)} asked, {len(self._answers)} answers>"

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the next answer; deny if none is left."""
        position = len(self.requests)
        self.requests.append(request)
        if position >= len(self._answers):
            return Approval("deny", reason=f"All {len(self._answers)} answers of the script are used up.")
        answer = self._answers[position]
        return _as_approval(answer(request) if callable(answer) else answer)


def _as_approval(answer: str | Approval) -> Approval:
    return Approval(answer) if isinstance(answer, str) else answer  # type: ignore[arg-type]  # it checks itself


# ---- asking


async def request_approval(approver: Approver | None, request: ApprovalRequest) -> Approval:
    """Ask `approver` within `request.timeout_s` seconds.

    Whatever goes wrong is an answer that does not approve. Only cancellation passes through.

    Race: an approver that holds up the event loop, or that does not end when it is cancelled, may answer when
    its time is up, or when nobody asks any more. Such an answer counts for nothing.
    """
    if approver is None:
        return Approval("deny", reason=NO_APPROVER_REASON)
    clock = _Deadline(request.timeout_s)
    try:
        async with asyncio.timeout(request.timeout_s) as limit:
            answer = await approver.ask(request)
    except Exception as error:
        # A TimeoutError may also be the approver's own failure, long before the time is up.
        if isinstance(error, TimeoutError) and limit.expired():
            return timeout_approval(request.timeout_s)
        return _failure(error)
    clock.refuse_when_cancelled()
    return timeout_approval(request.timeout_s) if clock.is_over() else _check(answer)


async def request_approvals(approver: Approver | None, requests: Sequence[ApprovalRequest]) -> list[Approval]:
    """Ask `approver` about several calls, as `request_approval` does about one.

    An approver that supports it gets all requests at once, and the shortest of their time limits applies; any
    other is asked about one call after another.

    Returns:
        One answer per request, in the order of the requests.
    """
    if approver is None or len(requests) < 2 or not isinstance(approver, SupportsBatch):
        return [await request_approval(approver, request) for request in requests]
    timeout_s = min(
        (request.timeout_s for request in requests if request.timeout_s is not None), default=None
    )
    clock = _Deadline(timeout_s)
    try:
        async with asyncio.timeout(timeout_s) as limit:
            answers = await approver.ask_many(requests)
    except Exception as error:
        expired = isinstance(error, TimeoutError) and limit.expired()
        return [timeout_approval(timeout_s) if expired else _failure(error) for _ in requests]
    clock.refuse_when_cancelled()
    if clock.is_over():
        return [timeout_approval(timeout_s) for _ in requests]
    return _check_batch(answers, len(requests))


class _Deadline:
    """When an answer comes too late, and whether anybody still waits for it."""

    def __init__(self, timeout_s: float | None) -> None:
        self._ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        task = asyncio.current_task()
        self._cancel_requests = 0 if task is None else task.cancelling()

    def is_over(self) -> bool:
        return self._ends_s is not None and time.monotonic() >= self._ends_s

    def refuse_when_cancelled(self) -> None:
        """Raise what an approver has swallowed.

        Raises:
            CancelledError: The task that asks was cancelled since.
        """
        task = asyncio.current_task()
        if task is not None and task.cancelling() > self._cancel_requests:
            raise asyncio.CancelledError


@runtime_checkable
class _SupportsInquire(Protocol):
    """An approver of the first version, in which `ask_user` was called `inquire`."""

    async def inquire(self, inquiry: UserQuestion) -> str | None:
        """Return the answer, or None if nobody answered."""


@dataclass(frozen=True, slots=True)
class _InquireAdapter:
    """Adapts an approver written for the first version, with `inquire`, to `SupportsQuestions`."""

    approver: _SupportsInquire

    async def ask_user(self, question: UserQuestion) -> str | None:
        return await self.approver.inquire(question)


def has_former_method(approver: object) -> bool:
    """Return whether an approver takes questions by `inquire` alone, the former name of `ask_user`."""
    return isinstance(_question_recipient(approver), _InquireAdapter)


def _question_recipient(approver: object) -> SupportsQuestions | None:
    """Return the object that takes questions for `approver`; None if it supports no questions."""
    if isinstance(approver, SupportsQuestions):
        return approver
    return _InquireAdapter(approver) if isinstance(approver, _SupportsInquire) else None


async def ask_question(approver: Approver | None, question: UserQuestion) -> str | None:
    """Put a model's question to `approver`, if it supports questions, within `question.timeout_s` seconds.

    Only cancellation passes through.

    Returns:
        The answer; None if there is none in time, or none of the choices.
    """
    recipient = _question_recipient(approver)
    if recipient is None:
        return None
    try:
        async with asyncio.timeout(question.timeout_s):
            answer = await recipient.ask_user(question)
    except Exception:
        return None  # a failure of the approver is not an answer
    return _check_answer(answer, question)


def timeout_approval(timeout_s: float | None) -> Approval:
    """Return the answer to a request that nobody answered within `timeout_s` seconds."""
    within = "" if timeout_s is None else f" within {timeout_s:g} s"
    return Approval("timeout", reason=f"Nobody answered{within}.")


def _failure(error: Exception) -> Approval:
    return Approval("deny", reason=f"The approver failed: {type(error).__name__}: {error}")


# Anybody can write an approver, so what one returns is checked although its type is declared.


def _check_answer(answer: object, question: UserQuestion) -> str | None:
    if not isinstance(answer, str) or (question.choices and answer not in question.choices):
        return None
    return answer


def _check_batch(answers: object, count: int) -> list[Approval]:
    if not isinstance(answers, Sequence) or len(answers) != count:
        return [Approval("deny", reason=f"The approver returned no list of {count} answers.")] * count
    return [_check(answer) for answer in answers]


def _check(answer: object) -> Approval:
    if not isinstance(answer, Approval):
        return Approval("deny", reason=f"The approver returned {type(answer).__name__}, not an Approval.")
    arguments: object = answer.arguments
    reason: object = answer.reason
    if arguments is not None and not isinstance(arguments, Mapping):
        return Approval(
            "deny", reason=f"The approver's arguments are {type(arguments).__name__}, not a mapping."
        )
    if not isinstance(reason, str):
        return Approval("deny", reason=f"The approver's reason is {type(reason).__name__}, not a string.")
    if arguments is not None and answer.remember is not None:
        # The scopes were offered for the original arguments, not for edited ones.
        return dataclasses.replace(answer, remember=None)
    return answer
