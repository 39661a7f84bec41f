"""Commands of unknown programs: tried first, and asked about only if that comes to nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.transcript.entries import CallEntry, entries_of
from aisotools.core.events import (
    CallDecided,
    CallFinished,
    CallOutput,
    CallTried,
    CheckpointTaken,
    SessionEvent,
)
from aisotools.core.types import Approval, ApprovalRequest, Decision, Effect, ToolCall, ToolResult
from aisotools.policy.rules import Mode, Policy, Rule
from aisotools.sandbox.results import RAN_READ_ONLY
from aisotools.session import ledger
from aisotools.session.ledger_reader import events_of_records
from aisotools.session.session import Session
from aisotools.session.trials import MAX_SHOWN_CHARS, TRIAL_S, judge, trial_lookups
from tests.conftest import OpenSession

pytestmark = pytest.mark.timeout(120)

READS = "captoinfo a.txt"
"""A program of ncurses that no table has, and that only reads."""

WRITES = "csplit a.txt 2"
"""Another, which writes xx00 and xx01."""


class Answers:
    """Denies what it is asked, or approves it, and keeps the questions."""

    def __init__(self, answer: Approval | None = None) -> None:
        self.answer = answer or Approval("deny", reason="not now")
        self.requests: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.requests.append(request)
        return self.answer


async def ready(open_one: OpenSession, approver: Answers, **options: Any) -> Session:
    session = open_one(approver=approver, **options)
    await session.start()
    assert session.workspace is not None
    (session.workspace / "a.txt").write_text("one\ntwo\nthree\n")
    return session


async def bash(session: Session, command: str, **more: Any) -> ToolResult:
    return await session.call("sandbox_bash", {"command": command}, origin="model", **more)


def kinds(session: Session) -> list[str]:
    return [event.kind for event in session.events if event.call_id]


def of_kind(session: Session, kind: type[SessionEvent]) -> list[Any]:
    return [event for event in session.events if isinstance(event, kind)]


def files(session: Session) -> list[str]:
    assert session.workspace is not None
    return sorted(path.name for path in session.workspace.iterdir())


# ---- a trial that counts


@pytest.mark.parametrize("level", ["isolated", "confined"])
@pytest.mark.parametrize("mode", ["safe", "auto"])
async def test_commands_that_only_read_run_and_nobody_is_asked(
    real_session: OpenSession, mode: Mode, level: str
) -> None:
    approver = Answers()
    session = await ready(real_session, approver, policy=Policy(mode=mode), level=level)
    result = await bash(session, READS)
    assert approver.requests == []
    assert not result.is_error
    assert "three" in result.value["stdout"]
    assert result.metadata[RAN_READ_ONLY] is True
    assert "[ran read-only: what captoinfo does is not known" in result.content
    assert "Nothing was changed" in result.content


async def test_trials_are_recorded_before_and_after_and_leave_nothing_to_undo(
    real_session: OpenSession,
) -> None:
    session = await ready(real_session, Answers())
    await bash(session, READS, call_id="one")
    assert kinds(session) == ["call_requested", "call_tried", "call_decided", "call_started", "call_finished"]
    (tried,) = of_kind(session, CallTried)
    (decided,) = of_kind(session, CallDecided)
    assert (tried.programs, tried.level, tried.digest) == (("captoinfo",), session.level, decided.digest)
    assert (decided.decision, decided.decided_by, decided.effect) == (
        Decision.ALLOW,
        "trial",
        Effect.READ_ONLY,
    )
    assert of_kind(session, CheckpointTaken) == []
    undone = await session.undo()
    assert "one" not in undone.content
    entry = next(entry for entry in entries_of(session.events) if isinstance(entry, CallEntry))
    assert (entry.decided_by, entry.runs_in) == ("trial", "sandbox")
    assert session.log_path is not None
    await session.close()
    recorded = events_of_records(ledger.read(session.log_path))
    assert [event.programs for event in recorded if isinstance(event, CallTried)] == [("captoinfo",)]


async def test_variables_stay_as_they_are(real_session: OpenSession) -> None:
    session = await ready(real_session, Answers())
    await session.call("python", {"code": "x = 1"}, origin="person")
    await bash(session, READS)
    result = await session.call("python", {"code": "x"}, origin="person")
    assert result.value["result"] == "1"


# ---- one that does not


@pytest.mark.parametrize("level", ["isolated", "confined"])
async def test_commands_that_write_become_a_question_that_shows_their_output(
    real_session: OpenSession, level: str
) -> None:
    approver = Answers()
    session = await ready(real_session, approver, level=level)
    result = await bash(session, WRITES)
    assert result.error_kind == "denied"
    (request,) = approver.requests
    assert request.reasons[-1] == (
        "it was tried without the right to change anything, and it exited with code 1"
    )
    assert "Permission denied" in request.preview["trial"]["output"]
    assert files(session) == ["a.txt"]
    assert of_kind(session, CallOutput) == [], "what a trial prints belongs to no call that ran"
    approver.answer = Approval("approve")
    allowed = await bash(session, WRITES)
    assert not allowed.is_error
    assert RAN_READ_ONLY not in allowed.metadata
    assert files(session) == ["a.txt", "xx00", "xx01"], "the control: it can write once it is approved"


async def test_a_refusal_that_a_command_ignores_is_no_success(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    await bash(session, f"{WRITES} || true")
    assert "refused something ('permission denied')" in approver.requests[-1].reasons[-1]


async def test_a_refusal_that_nobody_could_see_is_said_and_the_same_call_again_is_asked_about(
    real_session: OpenSession,
) -> None:
    approver = Answers(Approval("approve"))
    session = await ready(real_session, approver)
    silent = f"{WRITES} > /dev/null 2> /dev/null || true"
    result = await bash(session, silent)
    assert (result.is_error, approver.requests, files(session)) == (False, [], ["a.txt"])
    assert "If it was meant to change something, make the same call again" in result.content
    again = await bash(session, silent)
    assert "is called again" in approver.requests[-1].reasons[-1]
    assert RAN_READ_ONLY not in again.metadata
    assert files(session) == ["a.txt", "xx00", "xx01"]


async def test_another_call_between_makes_it_no_repetition(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    for command in (READS, "ls", READS):
        await bash(session, command)
    assert approver.requests == []
    await bash(session, READS)
    assert len(approver.requests) == 1


async def test_files_in_the_scratch_folder_are_gone_and_so_no_success(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    await bash(session, f"{READS}; mktemp")
    assert "which are gone" in approver.requests[-1].reasons[-1]


async def test_commands_that_do_not_end_become_a_question(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    for timeout_s in (0.5, TRIAL_S):
        await bash(session, f"{READS}; sleep 1000", timeout_s=timeout_s)
        if "three" in approver.requests[-1].preview["trial"]["output"]:
            break  # on a busy machine, not in half a second
    assert "it did not end in time" in approver.requests[-1].reasons[-1]
    assert "three" in approver.requests[-1].preview["trial"]["output"]


async def test_secrets_that_it_prints_are_masked_on_the_card(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    assert session.workspace is not None
    token = "ghp_" + "a1B2" * 9
    (session.workspace / "a.txt").write_text(f"{token}\n")
    await bash(session, f"cat a.txt; {READS}; false")
    output = approver.requests[-1].preview["trial"]["output"]
    assert output
    assert token not in output


async def test_one_that_is_stopped_is_asked_about_no_more(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    assert session.workspace is not None
    fifo = session.workspace / "fifo"
    os.mkfifo(fifo)
    running = asyncio.ensure_future(bash(session, f"{READS}; cat fifo; sleep 1000"))
    await asyncio.to_thread(fifo.write_text, "x")  # returns when the command reads
    await session.interrupt()
    result = await running
    assert result.is_error
    assert approver.requests == []


# ---- when there are none


async def off(session: Session, approver: Answers, command: str = READS) -> None:
    await bash(session, command)
    assert len(approver.requests) == 1
    assert "trial" not in approver.requests[0].preview
    assert of_kind(session, CallTried) == []


async def test_none_if_it_is_switched_off(real_session: OpenSession) -> None:
    approver = Answers()
    await off(await ready(real_session, approver, try_unknown_commands=False), approver)


@pytest.mark.parametrize("level", ["guarded", "limited"])
async def test_none_where_nothing_can_be_held_to_reading(real_session: OpenSession, level: str) -> None:
    approver = Answers()
    await off(await ready(real_session, approver, level=level), approver)


async def test_none_in_a_fake_sandbox(open_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(open_session, approver)
    await bash(session, READS)
    assert len(approver.requests) == 1
    assert "trial" not in approver.requests[0].preview


async def test_none_in_mode_plan(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver, policy=Policy(mode="plan"))
    assert (await bash(session, READS)).error_kind == "denied"
    assert of_kind(session, CallTried) == []


async def test_none_if_the_caller_wants_an_approval(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    await bash(session, READS, ask=True)
    assert len(approver.requests) == 1
    assert of_kind(session, CallTried) == []


async def test_none_for_what_a_grant_covers(real_session: OpenSession) -> None:
    approver = Answers(Approval("approve", remember="call"))
    session = await ready(real_session, approver)
    await bash(session, WRITES)
    assert len(of_kind(session, CallTried)) == 1
    await bash(session, WRITES)
    assert len(of_kind(session, CallTried)) == len(approver.requests) == 1


async def test_none_where_a_rule_may_forbid_what_it_reads(real_session: OpenSession) -> None:
    approver = Answers()
    rules = [Rule(decision=Decision.DENY, when={"reads": "secrets/*"})]
    session = await ready(real_session, approver, policy=Policy(rules=rules), level="confined")
    await off(session, approver)


@pytest.mark.parametrize("command", ["./tool a.txt", "bin/tool", "bash tool", "python tool", "frob tool.py"])
async def test_none_of_a_script_of_the_workspace(real_session: OpenSession, command: str) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    assert session.workspace is not None
    for path in ("tool", "bin/tool", "tool.py"):
        script = session.workspace / path
        script.parent.mkdir(exist_ok=True)
        script.write_text("#!/bin/sh\necho ran\n")
        script.chmod(0o755)
    await off(session, approver, command)


async def test_nothing_runs_once_nothing_can_be_recorded(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    session.subscribe(lambda event: session._gate.block("the disk is full") if is_tried(event) else None)
    result = await bash(session, f"{READS}; cat missing")
    assert (result.error_kind, approver.requests) == ("environment", [])
    assert "the disk is full" in result.content


def is_tried(event: SessionEvent) -> bool:
    return isinstance(event, CallTried)


# ---- several calls


def calls(*commands: str) -> list[ToolCall]:
    return [
        ToolCall(f"call-{number}", "sandbox_bash", {"command": command}, origin="model")
        for number, command in enumerate(commands)
    ]


async def test_in_a_batch_only_what_failed_is_asked_about(real_session: OpenSession) -> None:
    approver = Answers()
    session = await ready(real_session, approver)
    results = await session.call_many(calls(READS, "ls", WRITES))
    assert [result.is_error for result in results] == [False, False, True]
    assert [request.call.arguments["command"] for request in approver.requests] == [WRITES]
    assert len(of_kind(session, CallFinished)) == 3


async def test_in_a_batch_nothing_is_tried_that_comes_after_a_change(real_session: OpenSession) -> None:
    approver = Answers(Approval("approve"))
    session = await ready(real_session, approver)
    results = await session.call_many(calls("echo new > a.txt", READS))
    assert len(approver.requests) == 2
    assert "new" in results[1].value["stdout"]
    assert of_kind(session, CallTried) == []


# ---- what is shown


async def test_trials_are_explained_beforehand(real_session: OpenSession) -> None:
    session = await ready(real_session, Answers())
    (reads, plain) = calls(READS, "python x.py")
    assert session.explain(reads).is_tried
    assert not session.explain(plain).is_tried


def outcome(**value: Any) -> ToolResult:
    full = {"stdout": "", "stderr": "", "exitCode": 0, "executionTime": 1, **value}
    failed = full["exitCode"] != 0
    return ToolResult(content=full["stdout"], is_error=failed, kind="json", value=full)


@pytest.mark.parametrize(
    "text",
    [
        "touch: cannot touch 'x': Permission denied",
        "[Errno 30] Read-only file system: 'x'",
        "OSError: [Errno 13]",
        "EACCES: mkdir",
        "Operation not permitted",
        "could not open output file",
        "Failed to create cache",
        "unable to write",
        "Temporary failure in name resolution",
        "Address family not supported by protocol",
    ],
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_signs_of_a_refusal(text: str, stream: str) -> None:
    judged = judge(outcome(**{stream: text}), ("frob",))
    assert judged is not None
    assert judged.result is None
    assert "refused something" in judged.reason


@pytest.mark.parametrize("text", ["", "all fine", "writes: 3", "errno 12", "permissions: rw"])
def test_no_signs_of_one(text: str) -> None:
    judged = judge(outcome(stdout=text), ("frob",))
    assert judged is not None
    assert judged.result is not None
    assert judged.reason == ""


def test_output_on_a_card_is_bounded() -> None:
    judged = judge(outcome(stdout="x " * 100_000, exitCode=1), ("frob",))
    assert judged is not None
    assert len(judged.output) <= MAX_SHOWN_CHARS + 1
    assert judged.preview == {"reason": "it exited with code 1", "output": judged.output}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ToolResult.error("no process could be made", error_kind="environment"), None),
        (ToolResult.success("no exit code"), None),
        (dataclasses.replace(outcome(), value={"stdout": 1, "stderr": "", "exitCode": 0}), None),
        (dataclasses.replace(outcome(), value={"stdout": "", "stderr": "", "exitCode": True}), None),
        (ToolResult.error("it ended").with_metadata(reader_died=True), "its process ended"),
        (ToolResult.error("too long").with_metadata(timed_out=True), "it did not end in time"),
        (dataclasses.replace(outcome(), is_error=True), "it exited with code 0"),
    ],
)
def test_hostile_and_broken_results_never_count(result: ToolResult, expected: str | None) -> None:
    judged = judge(result, ("frob",))
    assert (judged and judged.reason) == expected
    assert judged is None or judged.result is None


def test_programs_in_the_workspace_are_none_of_the_system(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "tool"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path.parent / "elsewhere").mkdir(exist_ok=True)
    link = tmp_path.parent / "elsewhere" / "tool"
    link.symlink_to(tool)
    for folder in (tool.parent, link.parent):
        assert trial_lookups(tmp_path, str(folder)).find_program("tool") == ""
    assert trial_lookups(tmp_path / "bin" / "x", str(tool.parent)).find_program("tool") == str(tool)
    is_code = trial_lookups(tmp_path, "").is_code
    assert (is_code("bin/tool"), is_code("x")) == (True, False)
