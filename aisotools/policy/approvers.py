"""Stock approvers, and asking one so that every way it can go wrong is a denial."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import Approver, UserQuestion
from aisotools.core.types import Approval, ApprovalRequest

Answer = str | Approval | Callable[[ApprovalRequest], str | Approval]
"""One line of a script: an outcome, a whole approval, or what makes either from the request."""


NOBODY = (
    "Nobody can be asked here: there is no notebook with a person at it and no terminal. "
    "Give the session an approver, or a policy rule that allows the call."
)
"""Why a question that nobody can see is denied, and what would help."""


class AllowAll:
    """Approves everything. For programs that trust what they call."""

    async def ask(self, request: ApprovalRequest) -> Approval:  # noqa: ARG002 - named by the contract
        """Approve `request`."""
        return Approval("approve")


@dataclass(frozen=True, slots=True)
class DenyAll:
    """Denies everything.

    Attributes:
        reason: What the model is told.
    """

    reason: str = ""

    async def ask(self, request: ApprovalRequest) -> Approval:  # noqa: ARG002 - named by the contract
        """Deny `request`."""
        return Approval("deny", reason=self.reason)


class ScriptedApprover:
    """Gives prepared answers in order, then denies. For tests and demonstrations.

    Attributes:
        requests: What was asked so far.
    """

    def __init__(self, answers: Sequence[Answer] = ()) -> None:
        """Take the script.

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
                    'Give an outcome such as "approve", an Approval, or a function of the request.',
                )
        self._answers = tuple(answers)
        self.requests: list[ApprovalRequest] = []

    def __repr__(self) -> str:
        return f"<ScriptedApprover {len(self.requests)} asked, {len(self._answers)} answers>"

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Give the next answer; deny when none is left."""
        position = len(self.requests)
        self.requests.append(request)
        if position >= len(self._answers):
            return Approval("deny", reason=f"The script holds {len(self._answers)} answers, all given.")
        answer = self._answers[position]
        return _as_approval(answer(request) if callable(answer) else answer)


def _as_approval(answer: str | Approval) -> Approval:
    return Approval(answer) if isinstance(answer, str) else answer  # type: ignore[arg-type]  # it checks itself


async def resolve(approver: Approver | None, request: ApprovalRequest) -> Approval:
    """Ask `approver` within `request.timeout_s` seconds; whatever goes wrong is an answer that denies.

    Only cancellation passes through.
    """
    if approver is None:
        return Approval("deny", reason=NOBODY)
    try:
        async with asyncio.timeout(request.timeout_s) as limit:
            answer = await approver.ask(request)
    except Exception as error:
        if isinstance(error, TimeoutError) and limit.expired():
            return timed_out(request.timeout_s)
        return Approval("deny", reason=f"The approver failed: {type(error).__name__}: {error}")
    return _checked(answer)


async def resolve_all(approver: Approver | None, requests: Sequence[ApprovalRequest]) -> list[Approval]:
    """Ask `approver` about several calls, as `resolve` does about one; the answers come in the same order.

    An approver with a method `ask_many(requests) -> list[Approval]` sees them all at once; any other is asked
    one after another.
    """
    together = getattr(approver, "ask_many", None)
    if len(requests) < 2 or not callable(together):
        return [await resolve(approver, request) for request in requests]
    limits_s = [request.timeout_s for request in requests if request.timeout_s is not None]
    try:
        async with asyncio.timeout(min(limits_s, default=None)) as limit:
            answers: object = await together(requests)
    except Exception as error:
        if isinstance(error, TimeoutError) and limit.expired():
            return [timed_out(min(limits_s)) for _ in requests]
        told = f"The approver failed: {type(error).__name__}: {error}"
        return [Approval("deny", reason=told) for _ in requests]
    if not isinstance(answers, Sequence) or len(answers) != len(requests):
        told = f"The approver gave no list of {len(requests)} answers."
        return [Approval("deny", reason=told) for _ in requests]
    return [_checked(answer) for answer in answers]


async def resolve_inquiry(approver: Approver | None, inquiry: UserQuestion) -> str | None:
    """Put a model's question to `approver`, if it takes such; None when nobody answers in time.

    An approver takes them by a method `inquire(inquiry) -> str | None`. Only cancellation passes through.
    """
    ask = getattr(approver, "inquire", None)
    if not callable(ask):
        return None
    try:
        async with asyncio.timeout(inquiry.timeout_s):
            answer: object = await ask(inquiry)
    except Exception:
        return None  # fails closed: what was not answered is told as such
    fits = isinstance(answer, str) and (not inquiry.choices or answer in inquiry.choices)
    return answer if fits else None  # type: ignore[return-value]  # it is text


def timed_out(timeout_s: float | None) -> Approval:
    """The answer to a question that nobody answered while it stood."""
    within = "" if timeout_s is None else f" within {timeout_s:g} s"
    return Approval("timeout", reason=f"Nobody answered{within}.")


def _checked(answer: object) -> Approval:
    """`answer` itself if it is a sound approval; approvers are written by strangers too."""
    if not isinstance(answer, Approval):
        return Approval("deny", reason=f"The approver answered {type(answer).__name__}, not an Approval.")
    arguments: object = answer.arguments
    reason: object = answer.reason
    if arguments is not None and not isinstance(arguments, Mapping):
        return Approval("deny", reason=f"The approver edited arguments into {type(arguments).__name__}.")
    if not isinstance(reason, str):
        return Approval("deny", reason=f"The approver's reason is {type(reason).__name__}, no text.")
    if arguments is not None and answer.remember is not None:
        # What the scopes would allow was told for the arguments that were asked about.
        return dataclasses.replace(answer, remember=None)
    return answer
