from __future__ import annotations

import asyncio
import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pexpect  # type: ignore[import-untyped]  # it has no types
import pytest

from aisotools.core.protocols import Approver
from aisotools.core.types import Approval
from aisotools.policy.approvers import AllowAll
from aisotools.session import approvers
from aisotools.session.approvers import (
    ConsoleApprover,
    default_approver,
    run_blocking,
    set_default_approver_factory,
)
from tests.policy import test_approvers as policy_approvers
from tests.policy.test_approvers import a_request
from tests.waiting import HANG_S


def typing(*lines: str) -> Callable[[str], str]:
    """A reader that gives `lines`, then the end of input."""
    left = iter(lines)

    def read(prompt: str) -> str:
        for line in left:
            return line
        raise EOFError

    return read


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
    await asyncio.to_thread(seen.wait, HANG_S)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await asyncio.to_thread(ended.wait, HANG_S), "the reading thread must not outlive the question"


async def test_two_questions_on_one_console_take_turns() -> None:
    log: list[str] = []

    def read(prompt: str) -> str:
        log.append("read")
        time.sleep(0)  # the other one may come in between, if nothing prevents it
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
from aisotools.policy.approvers import request_approval
from aisotools.session.approvers import ConsoleApprover, default_approver
from aisotools.core.types import ApprovalRequest, Effect, ToolCall, ToolDefinition

request = ApprovalRequest(
    id="r", call=ToolCall("c", "file", {"path": "a.txt"}), definition=ToolDefinition("file", "", {}),
    effect=Effect.LOCAL_MUTATION, level="confined", timeout_s=20,
)

async def main():
    answer = await request_approval(default_approver(), request)
    print("got", answer.outcome, repr(answer.reason))
    print("then", input())

asyncio.run(main())
"""


@pytest.fixture
def terminal() -> Iterator[Any]:
    child = pexpect.spawn(sys.executable, ["-c", TERMINAL_PROGRAM], encoding="utf-8", timeout=HANG_S)
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


async def test_run_blocking_gives_value_error_and_context() -> None:
    assert await run_blocking(lambda: threading.current_thread().daemon)
    with pytest.raises(ZeroDivisionError):
        await run_blocking(lambda: 1 // 0)
    with pytest.raises(EOFError):
        await run_blocking(lambda: next(iter(())))


@pytest.fixture
def factory() -> Iterator[Callable[[approvers.ApproverFactory | None], None]]:
    yield set_default_approver_factory
    set_default_approver_factory(None)


def test_default_is_what_the_notebook_registered(factory: Callable[[Any], None]) -> None:
    mine = AllowAll()
    factory(lambda: mine)
    assert default_approver() is mine


def test_default_is_nobody_without_notebook_and_terminal(factory: Callable[[Any], None]) -> None:
    factory(lambda: None)
    assert default_approver() is None


async def test_the_terminal_offers_to_remember() -> None:
    shown: list[str] = []
    offer = {"shape": "sandbox_bash running only make", "tool": "sandbox_bash with any arguments"}
    request = dataclasses.replace(a_request(), preview={"remember": offer})
    answers = iter(["s", "T", "c", "y"])
    console = ConsoleApprover(lambda _prompt: next(answers), shown.append)
    assert [(await console.ask(request)).remember for _ in range(4)] == ["shape", "tool", None, None]
    for words in offer.values():
        assert words in shown[0]


APPROVERS: dict[str, Callable[[], Approver]] = {
    "console": lambda: ConsoleApprover(read_line=typing("y"), write=lambda text: None),
    "console at its end": lambda: ConsoleApprover(read_line=typing(), write=lambda text: None),
    "console without a terminal": ConsoleApprover,
}


@pytest.mark.parametrize("make", APPROVERS.values(), ids=APPROVERS.keys())
async def test_every_console_approver_gives_an_approval(make: Callable[[], Approver]) -> None:
    await policy_approvers.test_every_approver_gives_an_approval(make)


@pytest.mark.parametrize("make", APPROVERS.values(), ids=APPROVERS.keys())
async def test_every_console_approver_serves_many_at_once(make: Callable[[], Approver]) -> None:
    await policy_approvers.test_every_approver_serves_many_at_once(make)
