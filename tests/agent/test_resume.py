"""Going on after a host was killed: messages, approvals, list and files come back; what does not is said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.resume import Resumed, resumed
from aisotools.builtin.shell import sandbox_bash
from aisotools.core.events import CallFinished
from aisotools.core.exceptions import LedgerError, UsageError
from aisotools.core.messages import AssistantMessage, ToolMessage, UserMessage
from aisotools.core.types import Approval, Effect, Json, ToolCall
from aisotools.policy.approvers import DenyAll, ScriptedApprover
from aisotools.session.ledger import verify
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox, MockTool
from tests.conftest import OpenSession
from tests.sandbox.rig import processes_of
from tests.waiting import eventually, wait_until

VALUES: list[Json] = [None, 5, "x", [], {}]

HOST = """
import asyncio, sys
from aisotools import Agent, AllowAll, Session, ScriptedModel

async def main(folder):
    environ = {"HOME": folder, "XDG_STATE_HOME": folder + "/state"}
    session = Session(folder + "/work", session_key="mine", approver=AllowAll(), environ=environ)
    async with session:
        model = ScriptedModel([
            ("todo", {"items": [{"task": "write"}, {"task": "wait", "status": "in_progress"}]}),
            ("file", {"operation": "write", "path": "a.txt", "content": "one"}),
            ("python", {"code": "x = 41; open('b.txt', 'w').write('two')"}),
            [("file", {"operation": "read", "path": "a.txt"}),
             ("sandbox_bash", {"command": "echo three > a.txt; echo now > going; sleep 1000"})],
        ])
        await Agent(model, session, "Be brief.").run("Write things, then wait.")

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def killed(tmp_path: Path) -> Mapping[str, str]:
    """Settings under which a host worked until it was killed in the middle of a call."""
    host = subprocess.Popen([sys.executable, "-c", HOST, str(tmp_path)])
    try:
        wait_until(lambda: (tmp_path / "work/going").exists() or host.poll() is not None)
        assert host.poll() is None
        wait_until(lambda: verify(tmp_path / "state/aisotools/ledger/mine.jsonl").ok)  # its head is written
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait()
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}


async def opened(folder: Path, environ: Mapping[str, str]) -> Session:
    """The session again, as soon as nothing of the killed host is left."""
    await eventually(lambda: processes_of(folder / "work") == [])
    session = Session(folder / "work", session_key="mine", approver=DenyAll(), environ=environ)
    await session.start()
    assert session.log_path == folder / "state/aisotools/ledger/mine.jsonl"
    return session


async def test_a_killed_host_is_gone_on_from(killed: Mapping[str, str], tmp_path: Path) -> None:
    past = resumed("mine", killed)
    (messages,) = past.conversations.values()
    assert messages[0] == UserMessage("Write things, then wait.")
    calls = [call for message in messages if isinstance(message, AssistantMessage) for call in message.calls]
    assert [call.name for call in calls] == ["todo", "file", "python", "file", "sandbox_bash"]
    assert calls[1].arguments == {"operation": "write", "path": "a.txt", "content": "one"}
    results = [message for message in messages if isinstance(message, ToolMessage)]
    assert [result.call_id for result in results] == [call.id for call in calls]
    assert (results[3].content.strip(), results[3].is_error) == ("one", False)
    assert "was interrupted" in results[4].content
    missing = "\n".join(past.missing)
    assert "variables of the sandbox are gone" in missing
    assert "sandbox_bash" in missing
    session = await opened(tmp_path, killed)
    try:
        assert await past.restore(session) == ()
        model = ScriptedModel([("todo", {}), "Done."])
        agent = await past.agent(model, session)
        assert (agent.instructions, agent.messages) == ("Be brief.", messages)
        assert (await agent.run("Go on.")).text == "Done."
        assert model.requests[0].messages == (*messages, UserMessage("Go on."))
        (listed,) = [m for m in agent.messages[-3:] if isinstance(m, ToolMessage)]
        assert "[>] wait" in listed.content
        assert (tmp_path / "work/a.txt").read_text() == "three\n"
        assert not (await session.undo()).is_error
        assert (tmp_path / "work/a.txt").read_text() == "one"
        await session.undo()
        assert not (tmp_path / "work/b.txt").exists()
        assert (await session.call("python", {"code": "x"}, origin="person")).is_error
    finally:
        await session.close()
    assert verify(past.path).ok
    again = resumed("mine", killed)
    assert again.conversations[agent.agent_id] == agent.messages, "it can be gone on from once more"
    assert any("was closed" in one for one in again.missing)


# ---- what the ledger tells


async def a_session(folder: Path, environ: Mapping[str, str], *tools: Any, **options: Any) -> Session:
    from aisotools.builtin import builtin_tools
    from aisotools.tools.registry import ToolRegistry

    registry = ToolRegistry([*builtin_tools(), *tools])
    session = Session(
        folder, registry=registry, session_key="k", sandbox=FakeSandbox, environ=environ, **options
    )
    await session.start()
    return session


def left(session: Session, environ: Mapping[str, str]) -> Resumed:
    """What a host that was killed now would leave."""
    assert session._recording is not None  # as the timer does before long
    session._recording._ledger.seal()
    return resumed("k", environ)


async def test_approvals_hold_until_the_session_ends_or_they_are_taken_back(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    tools = [MockTool(name, effect=Effect.LOCAL_MUTATION, runs_in="sandbox") for name in ("one", "two")]
    approver = ScriptedApprover([Approval("approve", remember="tool"), Approval("approve", remember="call")])
    session = await a_session(tmp_path / "w", environ, *tools, approver=approver)
    await session.call("one", {"x": 1})
    await session.call("two", {"x": 1})
    past = left(session, environ)
    assert [(grant.scope, grant.call.name) for grant in past.grants] == [("tool", "one"), ("call", "two")]
    session.grants.revoke(1)
    assert [grant.call.name for grant in left(session, environ).grants] == ["two"]
    await session.close()
    closed = resumed("k", environ)
    assert closed.grants == ()
    assert any("was closed" in one for one in closed.missing)

    again = await a_session(tmp_path / "w", environ, *tools, approver=DenyAll())
    assert await past.restore(again) == ()
    assert [grant.scope for grant in again.grants.list()] == ["tool", "call"]
    assert not (await again.call("one", {"x": 2})).is_error
    assert not (await again.call("two", {"x": 1})).is_error
    assert (await again.call("two", {"x": 2})).is_error, "it never reached further than what was shown"
    await again.close()


async def test_an_approval_is_not_restored_where_it_would_be_another_one(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    mild = MockTool("one", effect=Effect.LOCAL_MUTATION, runs_in="sandbox")
    approver = ScriptedApprover([Approval("approve", remember="tool")])
    session = await a_session(tmp_path / "w", environ, mild, approver=approver)
    await session.call("one", {"x": 1})
    past = left(session, environ)
    await session.close()
    severe = MockTool("one", effect=Effect.DESTRUCTIVE, runs_in="sandbox")
    again = await a_session(tmp_path / "w", environ, severe, approver=DenyAll())
    (problem,) = await past.restore(again)
    assert "counts as destructive now, and as local_mutation when" in problem
    await again.close()
    none = await a_session(tmp_path / "w", environ, approver=DenyAll())
    (problem,) = await past.restore(none)
    assert "There is no tool named 'one'" in problem
    await none.close()


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize(("name", "command"), [("run.sh", "bash run.sh"), ("a.diff", "git apply *.diff")])
async def test_an_approval_of_what_a_file_says_is_not_restored_for_another_content(
    tmp_path: Path, environ: Mapping[str, str], name: str, command: str, is_changed: bool
) -> None:
    file = tmp_path / "w" / name
    file.parent.mkdir()
    file.write_text("echo one\n")
    approver = ScriptedApprover([Approval("approve", remember="call")])
    session = await a_session(tmp_path / "w", environ, sandbox_bash, approver=approver)
    await session.call("sandbox_bash", {"command": command})
    past = left(session, environ)
    await session.close()
    assert len(past.grants) == 1
    if is_changed:
        file.write_text("echo other\n")
    again = await a_session(tmp_path / "w", environ, sandbox_bash, approver=DenyAll())
    problems = await past.restore(again)
    assert len(problems) == len([one for one in problems if "is not as it was" in one]) == is_changed
    assert len(again.grants) == (not is_changed)
    await again.close()


async def test_a_restored_shape_covers_no_loss(tmp_path: Path, environ: Mapping[str, str]) -> None:
    approver = ScriptedApprover([Approval("approve", remember="shape")])
    workspace = tmp_path / "w"
    session = await a_session(workspace, environ, sandbox_bash, approver=approver)
    await session.call("sandbox_bash", {"command": "echo 1 > new"})
    past = left(session, environ)
    await session.close()
    (workspace / "new").write_text("a person's")
    again = await a_session(workspace, environ, sandbox_bash, approver=DenyAll())
    assert await past.restore(again) == ()
    commands = {"new": "echo 2 > new", "other": "echo 2 > other"}
    covered = [
        name
        for name, command in commands.items()
        if again.grants.find(again.explain(ToolCall("1", "sandbox_bash", {"command": command})))
    ]
    assert covered == ["other"]
    await again.close()


async def test_approvals_of_a_strangers_ledger_are_not_taken(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    tool = MockTool("one", effect=Effect.LOCAL_MUTATION, runs_in="sandbox")
    approver = ScriptedApprover([Approval("approve", remember="tool")])
    theirs = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "theirs")}
    session = await a_session(tmp_path / "w", theirs, tool, approver=approver)
    await session.call("one", {"x": 1})
    past = left(session, theirs)
    await session.close()
    assert len(past.grants) == 1
    ours = await a_session(tmp_path / "w2", environ, tool, approver=DenyAll())
    (problem,) = await past.restore(ours)
    assert "the ledger is another one" in problem
    assert len(ours.grants) == 0
    await ours.close()


async def test_missing_secrets_and_long_texts_are_reported(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    long = "0123456789" * 1_000
    tool = MockTool("look", effect=Effect.READ_ONLY)
    session = await a_session(tmp_path / "w", environ, tool)
    model = ScriptedModel([("look", {"text": long}), "Fine."])
    await Agent(model, session).run(f"My key is sk-{'a' * 30}.")
    await session.close()
    past = resumed(session.log_path or "", environ)
    (messages,) = past.conversations.values()
    assert messages[0] == UserMessage("My key is [redacted: api-key].")
    (call,) = messages[1].calls  # type: ignore[union-attr]  # it is an answer
    text = call.arguments["text"]
    assert isinstance(text, str)
    assert text.startswith(long[:4000])
    assert "[... 6,000 more characters are not in the record ...]" in text
    missing = "\n".join(past.missing)
    assert "[redacted]" in missing
    assert "only the beginning" in missing


async def test_long_results_are_whole(tmp_path: Path, environ: Mapping[str, str]) -> None:
    long = "result\n" * 500
    tool = MockTool("look", effect=Effect.READ_ONLY, result=lambda *_: long)
    session = await a_session(tmp_path / "w", environ, tool)
    agent = Agent(ScriptedModel([("look", {}), "Fine."]), session)
    await agent.run("go")
    await session.close()
    past = resumed("k", environ)
    assert past.conversations[agent.agent_id] == agent.messages


# ---- what is refused


async def written(tmp_path: Path, environ: Mapping[str, str]) -> Path:
    session = await a_session(tmp_path / "w", environ, MockTool("look", effect=Effect.READ_ONLY))
    for number in range(3):
        await session.call("look", {"x": number})
    await session.close()
    assert session.log_path is not None
    return session.log_path


async def test_a_damaged_ledger_is_refused_with_the_reason(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    path = await written(tmp_path, environ)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole.replace(b'"x":1', b'"x":7', 1))
    with pytest.raises(LedgerError, match=r"is not resumed, it is damaged: line \d+ was changed"):
        resumed("k", environ)
    path.write_bytes(b"".join(lines[:-1]))
    with pytest.raises(LedgerError, match="1 lines were cut off its end"):
        resumed("k", environ)
    path.write_bytes(whole)
    path.with_suffix(".head").unlink()
    with pytest.raises(LedgerError, match="its head is missing"):
        resumed("k", environ)


async def test_a_torn_ledger_is_refused_until_it_was_mended(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    path = await written(tmp_path, environ)
    with path.open("ab") as file:
        file.write(b'{"n":99,"ti')
    with pytest.raises(LedgerError, match=r"unfinished \(11 bytes\).*Open and close Session"):
        resumed("k", environ)
    session = await a_session(tmp_path / "w", environ)
    await session.close()
    past = resumed("k", environ)
    assert len([event for event in past.events if isinstance(event, CallFinished)]) == 3


def test_there_is_none(environ: Mapping[str, str]) -> None:
    with pytest.raises(LedgerError, match=r"no ledger of a session 'nobody' in .* See `aisotools log show`"):
        resumed("nobody", environ)
    with pytest.raises(LedgerError, match="cannot be read"):
        resumed("/nowhere/x.jsonl", environ)


async def test_there_is_no_such_conversation(
    open_session: OpenSession, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    await written(tmp_path, environ)
    past = resumed("k", environ)
    with pytest.raises(UsageError, match=r"no conversation of agent ''\. Recorded: none"):
        await past.agent(ScriptedModel(["x"]), open_session())


async def test_records_that_differ_are_reported_by_number(tmp_path: Path, environ: Mapping[str, str]) -> None:
    """Whoever has the key can write anything; that must not crash whoever reads it."""
    from aisotools.session.ledger_reader import events_of_records

    path = await written(tmp_path, environ)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert events_of_records(records)
    for number, record in enumerate(records):
        for name in record["body"]:
            for value in VALUES:
                changed = json.loads(json.dumps(records))
                changed[number]["body"][name] = value
                with suppress(LedgerError):  # any other error is a crash
                    events_of_records(changed)
