from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from aisotools.core.exceptions import UsageError
from aisotools.core.protocols import Approver, UserQuestion
from aisotools.core.types import Approval, ApprovalRequest, Effect, ToolCall, ToolDefinition
from aisotools.policy.approvers import (
    AllowAll,
    DenyAll,
    ScriptedApprover,
    ask_question,
    request_approval,
    request_approvals,
)


def a_request(timeout_s: float | None = 5.0, **arguments: Any) -> ApprovalRequest:
    return ApprovalRequest(
        id="r1",
        call=ToolCall("c1", "file", arguments or {"path": "a.txt"}, origin="model"),
        definition=ToolDefinition("file", "Files.", {"type": "object"}),
        effect=Effect.LOCAL_MUTATION,
        level="confined",
        timeout_s=timeout_s,
    )


# --- the contract: every approver answers every request with an Approval, and lets itself be cancelled


APPROVERS: dict[str, Callable[[], Approver]] = {
    "allow": AllowAll,
    "deny": DenyAll,
    "script": lambda: ScriptedApprover(["approve"]),
    "empty script": ScriptedApprover,
}


@pytest.mark.parametrize("make", APPROVERS.values(), ids=APPROVERS.keys())
async def test_every_approver_gives_an_approval(make: Callable[[], Approver]) -> None:
    first, second = await request_approval(make(), a_request()), await make().ask(a_request())
    assert isinstance(first, Approval)
    assert first == second
    assert first.outcome in {"approve", "deny"}
    assert first.arguments is None


@pytest.mark.parametrize("make", APPROVERS.values(), ids=APPROVERS.keys())
async def test_every_approver_serves_many_at_once(make: Callable[[], Approver]) -> None:
    approver = make()
    answers = await asyncio.gather(*(approver.ask(a_request()) for _ in range(5)))
    assert all(isinstance(answer, Approval) for answer in answers)


# --- scripted


async def test_a_script_answers_in_order_then_denies() -> None:
    edited = Approval("approve", arguments={"path": "b.txt"})
    approver = ScriptedApprover(
        ["approve", "deny", edited, lambda request: "cancel" if request.id == "r1" else "deny"]
    )
    outcomes = [await approver.ask(a_request(path=str(i))) for i in range(6)]
    assert [o.outcome for o in outcomes] == ["approve", "deny", "approve", "cancel", "deny", "deny"]
    assert outcomes[2] is edited
    assert "4 answers" in outcomes[5].reason
    assert [r.call.arguments["path"] for r in approver.requests] == list("012345")


@pytest.mark.parametrize("answer", ["aprove", 3, None])
def test_a_script_refuses_what_is_no_answer(answer: Any) -> None:
    with pytest.raises(UsageError, match=r"Answer 1 of the script.*"):
        ScriptedApprover(["approve", answer])


# --- console


# --- run_blocking


# --- resolve: whatever an approver does, the answer is an Approval


class Odd:
    """An approver that does what `act` does."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act

    async def ask(self, request: ApprovalRequest) -> Approval:
        answer = self._act()
        return await answer if asyncio.iscoroutine(answer) else answer  # type: ignore[no-any-return]  # any is the point


def fail(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: fail(RuntimeError("no screen")), "RuntimeError: no screen"),
        (lambda: fail(TimeoutError("theirs")), "TimeoutError: theirs"),
        (lambda: None, "NoneType"),
        (lambda: True, "bool"),
        (lambda: "approve", "str"),
        (lambda: Approval("approve", arguments=[1]), "list"),  # type: ignore[arg-type]  # wrong is the point
        (lambda: Approval("approve", reason=3), "int"),  # type: ignore[arg-type]  # wrong is the point
    ],
)
async def test_a_broken_approver_denies(act: Callable[[], Any], words: str) -> None:
    answer = await request_approval(Odd(act), a_request())
    assert answer.outcome == "deny"
    assert words in answer.reason


async def test_an_approver_that_is_not_async_denies() -> None:
    class NotAsync:
        def ask(self, request: ApprovalRequest) -> Approval:
            return Approval("approve")

    answer = await request_approval(NotAsync(), a_request())  # type: ignore[arg-type]  # wrong is the point
    assert answer.outcome == "deny"


async def test_nobody_denies() -> None:
    assert (await request_approval(None, a_request())).outcome == "deny"


async def test_time_runs_out() -> None:
    answer = await request_approval(Odd(lambda: asyncio.sleep(30)), a_request(timeout_s=0.05))
    assert answer == Approval("timeout", reason="Nobody answered within 0.05 s.")


async def test_cancelling_passes_through() -> None:
    asking = asyncio.create_task(request_approval(Odd(lambda: asyncio.sleep(30)), a_request()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


# --- the default


async def test_edited_arguments_are_approved_for_this_call_only() -> None:
    answer = Approval("approve", arguments={"n": 2}, remember="tool")
    (unlimited, limited) = await request_approvals(
        ScriptedApprover([Approval("approve", remember="tool"), answer]), [a_request(), a_request()]
    )
    assert unlimited.remember == "tool"
    assert limited.remember is None
    assert limited.arguments == {"n": 2}


async def test_a_batch_that_nobody_answers_says_how_long_it_stood() -> None:
    class Never:
        async def ask(self, request: ApprovalRequest) -> Approval:
            raise AssertionError

        async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
            await asyncio.sleep(30)
            return []

    brief = a_request(0.05)
    answers = await request_approvals(Never(), [a_request(), brief])
    assert [answer.reason for answer in answers] == ["Nobody answered within 0.05 s."] * 2


# --- questions


class Answering(AllowAll):
    """An approver that takes questions and does what `act` does."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act

    async def ask_user(self, question: UserQuestion) -> str | None:
        answer = self._act()
        return await answer if asyncio.iscoroutine(answer) else answer  # type: ignore[no-any-return]  # any is the point


def a_question(*choices: str, timeout_s: float | None = 5.0) -> UserQuestion:
    return UserQuestion(id="q1", text="Which?", choices=choices, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("act", "choices", "answer"),
    [
        (lambda: "anything", (), "anything"),
        (lambda: "", (), ""),
        (lambda: "a", ("a", "b"), "a"),
        (lambda: "c", ("a", "b"), None),
        (lambda: None, (), None),
        (lambda: 3, (), None),
        (lambda: fail(RuntimeError("no screen")), (), None),
    ],
)
async def test_only_a_text_among_the_choices_is_an_answer(
    act: Callable[[], Any], choices: tuple[str, ...], answer: str | None
) -> None:
    assert await ask_question(Answering(act), a_question(*choices)) == answer


async def test_an_approver_that_takes_no_questions_gives_no_answer() -> None:
    assert await ask_question(None, a_question()) is None
    assert await ask_question(AllowAll(), a_question()) is None


async def test_a_question_ends_with_its_time() -> None:
    never = Answering(lambda: asyncio.Event().wait())
    assert await ask_question(never, a_question(timeout_s=0.01)) is None


@pytest.mark.parametrize("answers", [None, [], [Approval("approve")] * 3, "ab"])
async def test_a_batch_without_an_answer_for_each_denies_all(answers: Any) -> None:
    class Wrong(AllowAll):
        async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
            return answers  # type: ignore[no-any-return]  # wrong is the point

    outcomes = [answer.outcome for answer in await request_approvals(Wrong(), [a_request(), a_request()])]
    assert outcomes == ["deny", "deny"]


async def test_a_single_request_is_never_a_batch() -> None:
    class Both(DenyAll):
        async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
            raise AssertionError

    (answer,) = await request_approvals(Both("alone"), [a_request()])
    assert (answer.outcome, answer.reason) == ("deny", "alone")


class FormerApprover(AllowAll):
    """Answers questions by the method that the first version called, which reads what a question had then."""

    async def inquire(self, inquiry: Any) -> str | None:
        """Answer with everything that the question says."""
        return f"{inquiry.id} {inquiry.text} {inquiry.choices} {inquiry.agent_id!r} {inquiry.timeout_s}"


class BothApprover(FormerApprover):
    """Has the method under both names, to serve two versions."""

    async def ask_user(self, question: UserQuestion) -> str | None:
        """Answer."""
        return f"new {question.text}"


async def test_an_approver_with_the_former_name_of_the_method_answers() -> None:
    question = UserQuestion(id="q1", text="Which?", agent_id="a", timeout_s=5.0)
    assert await ask_question(FormerApprover(), question) == "q1 Which? () 'a' 5.0"
    assert await ask_question(BothApprover(), question) == "new Which?"
    limited = UserQuestion(id="q1", text="Which?", choices=("x", "y"))
    assert await ask_question(FormerApprover(), limited) is None, "its answer is checked like any other"


def hold_up() -> None:
    time.sleep(0.02)  # as `input()` does


class Late:
    """Answers when its time is up: it holds up the loop, or goes on when it is cancelled."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.is_asked = asyncio.Event()

    async def ask(self, request: ApprovalRequest) -> Approval:
        (answer,) = await self.ask_many([request])
        return answer

    async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
        self.is_asked.set()
        if self.how == "blocks":
            hold_up()
        else:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return [Approval("approve") for _ in requests]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("how", ["blocks", "goes on"])
async def test_an_answer_after_the_time_is_none(how: str, count: int) -> None:
    requests = [a_request(timeout_s=0.01) for _ in range(count)]
    answers = await request_approvals(Late(how), requests)
    assert [answer.outcome for answer in answers] == ["timeout"] * count


@pytest.mark.parametrize("count", [1, 2])
async def test_an_answer_to_a_question_that_was_cancelled_is_none(count: int) -> None:
    late = Late("goes on")
    (asking,) = [asyncio.ensure_future(request_approvals(late, [a_request() for _ in range(count)]))]
    await late.is_asked.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_answers_count_for_a_task_that_took_no_notice_of_an_earlier_cancellation() -> None:
    """It goes on, and asks: nobody has cancelled the question."""

    async def ask() -> list[Approval]:
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        alone = await request_approval(ScriptedApprover(["approve"]), a_request())
        return [alone, *await request_approvals(AllowAll(), [a_request(), a_request()])]

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    asking.cancel()
    assert [answer.outcome for answer in await asking] == ["approve"] * 3
