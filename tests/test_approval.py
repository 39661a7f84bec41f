from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pexpect  # type: ignore[import-untyped]  # it has no types
import pytest

from aisotools import approval
from aisotools.approval import (
    AllowAll,
    ConsoleApprover,
    DenyAll,
    ScriptedApprover,
    default_approver,
    resolve,
    resolve_all,
    run_blocking,
    set_default_approver_factory,
)
from aisotools.contracts import Approver
from aisotools.events import Approval, ApprovalRequest, Effect, ToolCall, ToolDefinition
from aisotools.exceptions import UsageError


def a_request(timeout_s: float | None = 5.0, **arguments: Any) -> ApprovalRequest:
    return ApprovalRequest(
        id="r1",
        call=ToolCall("c1", "file", arguments or {"path": "a.txt"}, origin="model"),
        definition=ToolDefinition("file", "Files.", {"type": "object"}),
        effect=Effect.LOCAL_MUTATION,
        level="confined",
        timeout_s=timeout_s,
    )


def typing(*lines: str) -> Callable[[str], str]:
    """A reader that gives `lines`, then the end of input."""
    left = iter(lines)

    def read(prompt: str) -> str:
        for line in left:
            return line
        raise EOFError

    return read


# --- the contract: every approver answers every request with an Approval, and lets itself be cancelled


APPROVERS: dict[str, Callable[[], Approver]] = {
    "allow": AllowAll,
    "deny": DenyAll,
    "script": lambda: ScriptedApprover(["approve"]),
    "empty script": ScriptedApprover,
    "console": lambda: ConsoleApprover(read_line=typing("y"), write=lambda text: None),
    "console at its end": lambda: ConsoleApprover(read_line=typing(), write=lambda text: None),
    "console without a terminal": ConsoleApprover,
}


@pytest.mark.parametrize("make", APPROVERS.values(), ids=APPROVERS.keys())
async def test_every_approver_gives_an_approval(make: Callable[[], Approver]) -> None:
    first, second = await resolve(make(), a_request()), await make().ask(a_request())
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


async def test_console_shows_the_question_and_takes_the_reason() -> None:
    shown: list[str] = []
    approver = ConsoleApprover(read_line=typing("too broad"), write=shown.append)
    answer = await approver.ask(a_request(path="\u202etxt.a"))
    assert answer == Approval("deny", reason="too broad")
    assert "May this run?  file" in shown[0]
    assert '"path": "\\u202etxt.a"' in shown[0]


async def test_console_without_a_terminal_denies_and_says_what_would_help() -> None:
    answer = await ConsoleApprover().ask(a_request())
    assert answer.outcome == "deny"
    assert "Give the session an approver" in answer.reason


async def test_console_does_not_block_the_loop_and_can_be_called_off() -> None:
    seen = threading.Event()
    ended = threading.Event()

    def read(prompt: str) -> str:
        seen.set()
        try:
            while True:
                time.sleep(0.01)
        finally:
            ended.set()

    asking = asyncio.create_task(ConsoleApprover(read_line=read, write=lambda text: None).ask(a_request()))
    await asyncio.to_thread(seen.wait, 5)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(ended.wait, 5), "the reading thread must not outlive the question"


async def test_two_questions_on_one_console_take_turns() -> None:
    log: list[str] = []

    def read(prompt: str) -> str:
        log.append("read")
        time.sleep(0.05)
        log.append("done")
        return "y"

    approvers = [ConsoleApprover(read_line=read, write=lambda text: log.append("asked")) for _ in range(2)]
    await asyncio.gather(*(approver.ask(a_request()) for approver in approvers))
    assert log == ["asked", "read", "done"] * 2


async def test_an_interrupt_while_reading_is_a_cancel() -> None:
    def read(prompt: str) -> str:
        raise KeyboardInterrupt

    answer = await ConsoleApprover(read_line=read, write=lambda text: None).ask(a_request())
    assert answer.outcome == "cancel"


TERMINAL_PROGRAM = """
import asyncio
import dataclasses
from aisotools.approval import ConsoleApprover, default_approver, resolve
from aisotools.events import ApprovalRequest, Effect, ToolCall, ToolDefinition

request = ApprovalRequest(
    id="r", call=ToolCall("c", "file", {"path": "a.txt"}), definition=ToolDefinition("file", "", {}),
    effect=Effect.LOCAL_MUTATION, level="confined", timeout_s=20,
)

async def main():
    answer = await resolve(default_approver(), request)
    print("got", answer.outcome, repr(answer.reason))
    print("then", input())

asyncio.run(main())
"""


@pytest.fixture
def terminal() -> Iterator[Any]:
    child = pexpect.spawn(sys.executable, ["-c", TERMINAL_PROGRAM], encoding="utf-8", timeout=15)
    child.expect_exact("why not: ")
    try:
        yield child
    finally:
        child.close(force=True)


@pytest.mark.parametrize(
    ("typed", "got"),
    [
        ("y\n", "got approve ''"),
        ("not now\n", "got deny 'not now'"),
        ("\x03", "got cancel 'Interrupted"),
        ("\x04", "got deny 'The input ended"),
    ],
    ids=["yes", "reason", "ctrl-c", "end"],
)
def test_on_a_real_terminal(terminal: Any, typed: str, got: str) -> None:
    terminal.send(typed)
    terminal.expect_exact(got)
    if typed != "\x04":  # what is typed next belongs to the program: no reader is left over
        terminal.send("mine\n")
        terminal.expect_exact("then mine")


# --- run_blocking


async def test_run_blocking_gives_value_error_and_context() -> None:
    assert await run_blocking(lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await run_blocking(lambda: 1 // 0)
    with pytest.raises(EOFError):
        await run_blocking(lambda: next(iter(())))


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
    answer = await resolve(Odd(act), a_request())
    assert answer.outcome == "deny"
    assert words in answer.reason


async def test_an_approver_that_is_not_async_denies() -> None:
    class NotAsync:
        def ask(self, request: ApprovalRequest) -> Approval:
            return Approval("approve")

    answer = await resolve(NotAsync(), a_request())  # type: ignore[arg-type]  # wrong is the point
    assert answer.outcome == "deny"


async def test_nobody_denies() -> None:
    assert (await resolve(None, a_request())).outcome == "deny"


async def test_time_runs_out() -> None:
    answer = await resolve(Odd(lambda: asyncio.sleep(30)), a_request(timeout_s=0.05))
    assert answer == Approval("timeout", reason="Nobody answered within 0.05 s.")


async def test_cancelling_passes_through() -> None:
    asking = asyncio.create_task(resolve(Odd(lambda: asyncio.sleep(30)), a_request()))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


# --- the default


@pytest.fixture
def factory() -> Iterator[Callable[[approval.ApproverFactory | None], None]]:
    yield set_default_approver_factory
    set_default_approver_factory(None)


def test_default_is_what_the_notebook_registered(factory: Callable[[Any], None]) -> None:
    mine = AllowAll()
    factory(lambda: mine)
    assert default_approver() is mine


def test_default_is_nobody_without_notebook_and_terminal(factory: Callable[[Any], None]) -> None:
    factory(lambda: None)
    assert default_approver() is None


async def test_edited_arguments_are_approved_for_this_call_only() -> None:
    answer = Approval("approve", arguments={"n": 2}, remember="tool")
    (kept, limited) = await resolve_all(
        ScriptedApprover([Approval("approve", remember="tool"), answer]), [a_request(), a_request()]
    )
    assert kept.remember == "tool"
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
    answers = await resolve_all(Never(), [a_request(), brief])
    assert [answer.reason for answer in answers] == ["Nobody answered within 0.05 s."] * 2


async def test_the_terminal_offers_to_remember() -> None:
    shown: list[str] = []
    offer = {"shape": "sandbox_bash running only make", "tool": "sandbox_bash with any arguments"}
    request = dataclasses.replace(a_request(), preview={"remember": offer})
    answers = iter(["s", "T", "c", "y"])
    console = ConsoleApprover(lambda _prompt: next(answers), shown.append)
    assert [(await console.ask(request)).remember for _ in range(4)] == ["shape", "tool", None, None]
    for words in offer.values():
        assert words in shown[0]
