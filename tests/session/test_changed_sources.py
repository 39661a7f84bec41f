"""What was shown is what runs, and what is remembered is what was shown: for files that a call reads."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.events import CallStarted
from aisotools.core.types import (
    Approval,
    ApprovalRequest,
    Decision,
    Effect,
    Facts,
    Json,
    ToolCall,
    ToolResult,
)
from aisotools.policy.grants import remember_scopes
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.rules import Mode, Policy, Rule
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession
from tests.session.changed_sources import TARGET, Case, copies, put_files, unknowns
from tests.waiting import HANG_S, eventually

pytestmark = pytest.mark.timeout(180)
_PARTS = 8


class Changing:
    """Approves, after it has changed the workspace the first time; keeps the questions."""

    def __init__(self, change: Callable[[], object], remember: Any = None) -> None:
        self.requests: list[ApprovalRequest] = []
        self.change, self.remember = change, remember

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.requests.append(request)
        if len(self.requests) == 1:
            self.change()
        return Approval("approve", remember=self.remember)

    def reset(self) -> None:
        self.requests.clear()


async def opened(open_one: OpenSession, *tools: Any, **options: Any) -> tuple[Session, Path]:
    session = open_one(*tools, **options)
    await session.start()
    assert session.workspace is not None
    put_files(session.workspace)
    return session, session.workspace


def contents() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"other {number}\n"


@pytest.mark.sample(2)
@pytest.mark.parametrize("part", range(_PARTS))
async def test_a_source_that_changes_while_the_card_is_up_is_asked_about_again(
    open_session: OpenSession, part: int
) -> None:
    session, workspace = await opened(open_session)
    new = contents()
    approver = session.approver = Changing(lambda: (workspace / TARGET).write_text(next(new)))
    tried = [*copies(), *unknowns()][part::_PARTS]
    unnoticed = []
    for case in tried:
        if case.is_indirect:
            continue
        approver.reset()
        arguments = {"command": case.command, "workdir": case.workdir}
        await session.call("sandbox_bash", arguments, origin="model")
        reasons = [reason for request in approver.requests[1:] for reason in request.reasons]
        if not any("in.csv" in reason or "has changed" in reason for reason in reasons):
            unnoticed.append((case.workdir, case.command, len(approver.requests)))
    assert len(tried) > 100
    assert not unnoticed


def outlives(session: Session, workspace: Path, case: Case, new: Iterator[str]) -> str:
    """Return how an approval of the call outlives a change of the target; empty if it does not."""
    arguments = {"command": case.command, "workdir": case.workdir}
    call = ToolCall("one", "sandbox_bash", arguments, origin="model")
    before = session.explain(call)
    assert before.evaluation.decision is Decision.ASK, case
    scopes = remember_scopes(before)
    assert session.explain(call).digest == before.digest, "the control: nothing has changed"
    (workspace / TARGET).write_text(next(new))
    if "call" not in scopes:
        return "not remembered"
    wide = sorted({"shape", "tool"} & set(scopes)) if not before.facts.hosts else []
    return (
        f"remembered as {wide}" if wide else "same" if session.explain(call).digest == before.digest else ""
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("part", range(_PARTS))
async def test_an_approval_of_what_may_do_anything_ends_with_a_change_of_what_it_names(
    open_session: OpenSession, part: int
) -> None:
    session, workspace = await opened(open_session)
    new = contents()
    tried = list(unknowns())[part::_PARTS]
    found = [(outlives(session, workspace, case, new), case) for case in tried]
    assert not [(how, case) for how, case in found if how and how != "not remembered"]
    remembered = sum(not how for how, _ in found)
    assert remembered > len(tried) * 0.7, "the control: nearly all of them can be remembered"


# ---- every tool


def takes_path(name: str, **options: Any) -> MockTool:
    """A tool of which nothing is known but its arguments."""
    return MockTool(name, effect=Effect.LOCAL_MUTATION, **options)


TOOLS: dict[str, tuple[str, dict[str, Json]]] = {
    "copy": ("file", {"operation": "copy", "path": TARGET, "destination": "out/z"}),
    "copy over": ("file", {"operation": "copy", "path": "folder/in.csv", "destination": "out/a.txt"}),
    "move": ("file", {"operation": "move", "path": TARGET, "destination": "out/z"}),
    "edit": ("edit", {"path": TARGET, "edits": [{"old": "o", "new": "p"}]}),
    "write": ("sandbox_write", {"path": TARGET, "content": "mine\n"}),
    "in the sandbox": ("mine", {"path": TARGET}),
    "in a text": ("mine", {"text": f"send {TARGET} to them"}),
    "on the host": ("host", {"path": "link"}),
    "folder and name": ("host", {"folder": "data", "name": "in.csv"}),
    "declared": ("declares", {"n": 1}),
    "declared folder": ("declares_folder", {"n": 1}),
    "declared command": ("commands", {"n": 1}),
}


@pytest.mark.parametrize("name", TOOLS)
async def test_a_source_of_any_tool_is_compared(open_session: OpenSession, name: str) -> None:
    writes = Facts(effect=Effect.LOCAL_MUTATION, writes=("out/z",))
    tools = [
        takes_path("mine", runs_in="sandbox"),
        takes_path("host", runs_in="host"),
        MockTool("declares", facts=dataclasses.replace(writes, reads=(TARGET,)), runs_in="host"),
        MockTool("declares_folder", facts=dataclasses.replace(writes, reads=("data",)), runs_in="sandbox"),
        MockTool(
            "commands", facts=dataclasses.replace(writes, commands=(f"strange {TARGET}",)), runs_in="host"
        ),
    ]
    session, workspace = await opened(open_session)
    for one in tools:
        session.registry.register(one)
    tool, arguments = TOOLS[name]
    session.approver = asked = Changing(lambda: None)
    assert session.reads is not None
    session.reads.note_read(TARGET, (workspace / TARGET).read_bytes())
    await session.call(tool, arguments, origin="model")
    assert len(asked.requests) == 1, "the control: nothing has changed"
    put_files_again(workspace)
    session.reads.note_read(TARGET, (workspace / TARGET).read_bytes())
    session.approver = asked = Changing(lambda: (workspace / TARGET).write_text("else\n"))
    await session.call(tool, arguments, origin="model")
    assert len(asked.requests) == 2
    assert any("has changed since it was shown" in reason for reason in asked.requests[1].reasons)


def put_files_again(workspace: Path) -> None:
    for name in ("link", "folder"):
        (workspace / name).unlink()
    put_files(workspace)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("one", "two", "data/in.csv has changed since it was shown"),
        (None, "two", "data/in.csv is there now, and would be read"),
        ("one", None, "data/in.csv has changed since it was shown"),
    ],
)
async def test_the_question_says_what_is_different(
    open_session: OpenSession, before: str | None, after: str | None, reason: str
) -> None:
    session, workspace = await opened(open_session)

    def put(text: str | None) -> None:
        if text is None:
            (workspace / TARGET).unlink()
        else:
            (workspace / TARGET).write_text(text)

    put(before)
    session.approver = asked = Changing(lambda: put(after))
    await session.call("sandbox_bash", {"command": f"cp {TARGET} out/z"}, origin="model")
    assert reason in asked.requests[1].reasons


async def test_a_source_that_an_earlier_call_of_the_question_leaves_is_expected(
    real_session: OpenSession,
) -> None:
    session, workspace = await opened(real_session)
    session.approver = asked = Changing(lambda: None)
    await session.call("sandbox_read", {"path": TARGET}, origin="model")
    calls = [
        ToolCall("1", "sandbox_write", {"path": TARGET, "content": "two\n"}, origin="model"),
        ToolCall("2", "sandbox_bash", {"command": f"cp {TARGET} out/b"}, origin="model"),
        ToolCall("3", "sandbox_bash", {"command": "sed -i s/two/three/ out/b"}, origin="model"),
        ToolCall("4", "sandbox_bash", {"command": "cp out/b out/c"}, origin="model"),
    ]
    results = await session.call_many(calls)
    assert not any(result.is_error for result in results), results
    assert len(asked.requests) == 4, "one question for each call"
    assert (workspace / "out/c").read_text() == "three\n"


async def test_a_source_that_no_earlier_call_has_changed_is_asked_about_again(
    real_session: OpenSession,
) -> None:
    """The first call was denied: the second would not read what was shown."""

    class DeniesFirst(Changing):
        async def ask(self, request: ApprovalRequest) -> Approval:
            answer = await super().ask(request)
            return Approval("deny") if request.call.id == "1" else answer

    session, _ = await opened(real_session)
    session.approver = asked = DeniesFirst(lambda: None)
    calls = [
        ToolCall("1", "sandbox_write", {"path": TARGET, "content": "two\n"}, origin="model"),
        ToolCall("2", "sandbox_bash", {"command": f"cp {TARGET} out/b"}, origin="model"),
    ]
    await session.call_many(calls)
    assert f"{TARGET} has changed since it was shown" in asked.requests[2].reasons


async def test_a_source_that_another_call_changes_after_the_answer_is_not_used(
    real_session: OpenSession,
) -> None:
    """Race: the approved call waits for the workspace, and the session that holds it writes the source."""
    entered, go_on = asyncio.Event(), asyncio.Event()

    class Slow(MockTool):
        async def execute(self, arguments: Any, context: Any) -> ToolResult:
            entered.set()
            await go_on.wait()
            (context.workspace_path / TARGET).write_text("else\n")
            return ToolResult.text("done")

    slow = Slow("slow", facts=Facts(writes=(TARGET,)), runs_in="host")
    other = real_session(slow, approver=Changing(lambda: None))
    session, workspace = await opened(real_session, approver=Changing(lambda: None))
    writing = asyncio.create_task(other.call("slow", {}, origin="model"))
    await asyncio.wait_for(entered.wait(), HANG_S)
    copy = {"command": f"cp {TARGET} out/z"}
    copying = asyncio.create_task(session.call("sandbox_bash", copy, origin="model"))
    await eventually(lambda: any(isinstance(event, CallStarted) for event in session.events))
    go_on.set()
    assert not (await writing).is_error
    result = await copying
    assert result.error_kind == "denied"
    assert f"{TARGET} has changed since it was shown; another call ran" in result.content
    assert not (workspace / "out/z").exists()


async def test_an_unchanged_source_is_asked_about_once(open_session: OpenSession) -> None:
    session, _ = await opened(open_session)
    session.approver = asked = Changing(lambda: None)
    for number, case in enumerate([*copies()][::7]):
        await session.call("sandbox_bash", {"command": case.command, "workdir": case.workdir}, origin="model")
        assert len(asked.requests) == number + 1, case


# ---- what is remembered


@pytest.mark.parametrize(
    "command",
    ["strange big", "cp big out/z; strange .", "strange many/*", "strange ../x", "cat ~/x | strange"],
)
async def test_a_source_that_cannot_be_compared_is_not_remembered_and_the_card_says_so(
    open_session: OpenSession, command: str
) -> None:
    session, workspace = await opened(open_session)
    (workspace / "many").mkdir()
    for number in range(600):
        (workspace / "many" / str(number)).write_text("")
    (workspace.parent / "x").write_text("")
    (workspace / "big").mkdir()
    for number in range(3_100):
        (workspace / "big" / str(number)).touch()
    prepared = session.explain(ToolCall("1", "sandbox_bash", {"command": command}, origin="model"))
    assert remember_scopes(prepared) == {}
    assert any("cannot be remembered" in reason for reason in prepared.evaluation.reasons)


async def test_a_grant_says_which_files_it_depends_on(open_session: OpenSession) -> None:
    session, _ = await opened(open_session)
    call = ToolCall("1", "sandbox_bash", {"command": "git apply data/*.csv"}, origin="model")
    words = remember_scopes(session.explain(call))["call"]
    assert "while data/in.csv has the present content" in words


async def test_a_new_file_that_a_pattern_finds_ends_a_grant(open_session: OpenSession) -> None:
    session, workspace = await opened(open_session)
    for command in ("git apply data/*.csv", "strange data", "for f in data/*; do strange $f; done"):
        call = ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
        before = session.explain(call)
        (workspace / "data" / f"{len(command)}.csv").write_text("new\n")
        assert session.explain(call).digest != before.digest


async def test_a_shape_given_where_nothing_was_lost_covers_no_loss(open_session: OpenSession) -> None:
    session, workspace = await opened(open_session)

    def explain(command: str) -> PreparedCall:
        return session.explain(ToolCall("1", "sandbox_bash", {"command": command}, origin="model"))

    new = explain(f"cp {TARGET} out/new.txt")
    assert "replacing nothing" in remember_scopes(new)["shape"]
    grant = session.grants.add("shape", new)
    assert grant is not None
    assert grant.covers(explain(f"cp {TARGET} out/other.txt"))
    assert not grant.covers(explain(f"cp {TARGET} out/a.txt"))
    (workspace / "out" / "new.txt").write_text("mine\n")
    assert not grant.covers(explain(f"cp {TARGET} out/new.txt"))
    over = explain(f"cp {TARGET} out/a.txt")
    assert "replacing only what is in out" in remember_scopes(over)["shape"]
    grant = session.grants.add("shape", over)
    assert grant is not None
    assert grant.covers(explain(f"cp {TARGET} out/new.txt"))
    assert grant.covers(explain(f"cp {TARGET} out/other.txt"))


async def test_a_file_that_a_covered_call_has_made_may_be_replaced_until_somebody_else_changes_it(
    real_session: OpenSession,
) -> None:
    session, workspace = await opened(real_session)
    session.approver = asked = Changing(lambda: None, remember="shape")

    async def copy(name: str) -> int:
        result = await session.call("sandbox_bash", {"command": f"cp {TARGET} out/{name}"}, origin="model")
        assert not result.is_error
        return len(asked.requests)

    assert await copy("b") == 1
    assert await copy("b") == 1, "its own file"
    assert await copy("c") == 1
    (workspace / "out/c").write_text("a person's\n")
    asked.remember = None
    assert await copy("c") == 2
    assert await copy("b") == 2
    (workspace / "out/b").unlink()
    (workspace / "out/b").write_text("another file\n")
    assert await copy("b") == 3


LOSING = {
    "sandbox_bash": [
        ({"command": "echo x > out/{}"}, "out/{}"),
        ({"command": "tee out/{} < data/in.csv"}, "out/{}"),
        ({"command": "mv list out/{}"}, "out/{}"),
        ({"command": "sort data/in.csv -o out/{}"}, "out/{}"),
    ],
    "sandbox_write": [({"path": "out/{}", "content": "x"}, "out/{}")],
    "file": [({"operation": "copy", "path": TARGET, "destination": "out/{}"}, "out/{}")],
}


@pytest.mark.parametrize("tool", LOSING)
async def test_no_shape_of_a_new_file_covers_an_old_one(open_session: OpenSession, tool: str) -> None:
    session, _ = await opened(open_session)
    for arguments, _ in LOSING[tool]:
        new, old = (
            session.explain(
                ToolCall(
                    "1", tool, {key: value.format(name) for key, value in arguments.items()}, origin="model"
                )
            )
            for name in ("new.txt", "a.txt")
        )
        grant = session.grants.add("shape", new)
        assert grant is not None
        assert grant.covers(new)
        assert not grant.covers(old), arguments


# ---- the policy of the moment


DENIES = Rule(when={"writes": "out/*"}, decision=Decision.DENY)
POLICIES: dict[str, tuple[Policy, bool]] = {
    "plan": (Policy(mode="plan"), False),
    "a rule about what it writes": (Policy(rules=[DENIES]), False),
    "a rule about what it reads": (
        Policy(rules=[Rule(when={"reads": "data/*"}, decision=Decision.DENY)]),
        False,
    ),
    "a rule about the tool": (Policy(rules=[Rule(tool="sandbox_bash", decision=Decision.DENY)]), False),
    "a rule that asks": (Policy(rules=[Rule(decision=Decision.ASK)]), True),
    "auto": (Policy(mode="auto"), True),
    "the same": (Policy(), True),
}


@pytest.mark.parametrize("name", POLICIES)
async def test_a_policy_that_denies_when_the_answer_comes_stands(
    open_session: OpenSession, name: str
) -> None:
    session, _ = await opened(open_session)
    policy, runs = POLICIES[name]

    def change() -> None:
        session.policy = policy

    session.approver = asked = Changing(change, remember="call")
    result = await session.call("sandbox_bash", {"command": f"cp {TARGET} out/z"}, origin="model")
    assert len(asked.requests) == 1, "an answer settles what the policy asks about"
    assert (result.error_kind != "denied") is runs
    if not runs:
        assert "the policy is another one than when the call was decided about" in result.content


async def call_two_while_the_mode_changes(
    open_session: OpenSession, mode: Mode
) -> tuple[Changing, list[ToolResult]]:
    """Make two calls, of which one is asked about in mode auto; the policy changes when it is answered."""
    session, _ = await opened(open_session, policy=Policy(mode="auto"))

    def change() -> None:
        session.policy = Policy(mode=mode)

    session.approver = asked = Changing(change)
    calls = [
        ToolCall("1", "sandbox_bash", {"command": "curl -T list http://example.org/x"}, origin="model"),
        ToolCall("2", "sandbox_bash", {"command": f"cp {TARGET} out/z"}, origin="model"),
    ]
    return asked, list(await session.call_many(calls))


async def test_a_call_that_waits_for_others_is_decided_by_the_policy_of_its_turn(
    open_session: OpenSession,
) -> None:
    asked, results = await call_two_while_the_mode_changes(open_session, "plan")
    assert len(asked.requests) == 1
    assert [result.error_kind for result in results] == ["denied", "denied"]


async def test_a_call_that_is_asked_about_only_now_is_asked_about(open_session: OpenSession) -> None:
    asked, _ = await call_two_while_the_mode_changes(open_session, "safe")
    assert [request.call.id for request in asked.requests] == ["1", "2"]


CODE = {
    "code": "import os; print(open('data/a.txt').read(), os.listdir('data'), open('o.txt', 'w').write('x'))"
}


async def with_folder(real_session: OpenSession, approver: Changing) -> tuple[Session, Path]:
    session, workspace = await opened(real_session, approver=approver, policy=Policy(mode="safe"))
    (workspace / "data").mkdir(exist_ok=True)
    (workspace / "data/a.txt").write_text("shown")
    return session, workspace


@pytest.mark.parametrize(
    ("tool", "arguments", "changed"),
    [
        ("python", CODE, "data/a.txt"),
        ("python", CODE, "data/new.txt"),
        ("sandbox_bash", {"command": "mv data moved"}, "data/new.txt"),
        ("file", {"operation": "move", "path": "data", "destination": "moved"}, "data/new.txt"),
    ],
)
async def test_files_named_by_code_and_folders_that_are_moved_are_as_they_were_shown(
    real_session: OpenSession, tool: str, arguments: dict[str, Json], changed: str
) -> None:
    approver = Changing(lambda: (workspace / changed).write_text("another"))
    session, workspace = await with_folder(real_session, approver)
    await session.call(tool, arguments)
    assert len(approver.requests) == 2
    assert any("data" in reason for reason in approver.requests[1].reasons)


async def test_code_that_changes_what_it_names_is_remembered_and_asked_about_once(
    real_session: OpenSession,
) -> None:
    approver = Changing(lambda: None, remember="call")
    session, workspace = await with_folder(real_session, approver)
    for text in ("one", "two"):
        assert not (await session.call("python", CODE)).is_error
        (workspace / "data/a.txt").write_text(text)
    assert len(approver.requests) == 1


async def test_code_may_read_what_earlier_code_of_the_same_question_writes(real_session: OpenSession) -> None:
    approver = Changing(lambda: None)
    session, _ = await with_folder(real_session, approver)
    write, read = "print(open('data/a.txt', 'w').write('1'))", "print(open('data/a.txt').read())"
    calls = [ToolCall(str(n), "python", {"code": code}) for n, code in enumerate((write, read))]
    results = await session.call_many(calls)
    assert [result.is_error for result in results] == [False, False]
    assert len(approver.requests) == 2
