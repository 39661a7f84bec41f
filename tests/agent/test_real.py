"""Agents on the real sandbox: workers that die, calls that are cancelled, and what the ledger holds of it."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.core.messages import ToolMessage
from aisotools.policy.approvers import AllowAll
from aisotools.session.ledger import read, verify
from aisotools.session.session import Session
from tests.agent.rules import assert_no_orphans, assert_sound
from tests.conftest import OpenSession
from tests.waiting import eventually


def python(code: str) -> tuple[str, dict[str, Any]]:
    return "python", {"code": code}


BEGIN = "open('began', 'w').close(); "


async def running(session: Session) -> None:
    """Wait until code runs that starts with `BEGIN`."""
    await session.start()
    assert session.workspace is not None
    await eventually((session.workspace / "began").exists)


async def test_killed_worker_is_reported_and_the_run_goes_on(real_session: OpenSession) -> None:
    session = real_session(approver=AllowAll())
    waiting = python(f"{BEGIN}import time; time.sleep(1000)")
    model = ScriptedModel([waiting, python("print(6 * 7)"), "It is 42."])
    agent = Agent(model, session)
    run = agent.start("Count.")
    await running(session)
    os.kill(session.status().pid, signal.SIGKILL)
    result = await run
    assert result.text == "It is 42."
    answers = [m for m in result.messages if isinstance(m, ToolMessage)]
    assert answers[0].is_error
    assert "worker" in answers[0].content
    assert "42" in answers[1].content
    assert_sound(agent)


@pytest.mark.parametrize("code", ["import time; time.sleep(1000)", "while True: pass"])
async def test_cancelling_reaches_the_worker(real_session: OpenSession, code: str) -> None:
    session = real_session(approver=AllowAll())
    await session.start()
    before = asyncio.all_tasks()
    agent = Agent(ScriptedModel([python(f"{BEGIN}\n{code}"), "never"]), session)
    run = agent.start("Go.")
    await running(session)
    run.cancel()
    assert (await run).outcome == "cancelled"
    again = await session.call("python", {"code": "1 + 1"})
    assert again.value is not None
    assert not again.is_error
    await assert_no_orphans(before)
    assert_sound(agent)


async def test_the_ledger_has_the_whole_conversation(real_session: OpenSession) -> None:
    session = real_session(approver=AllowAll())
    secret = "sk-" + "a1b2c3d4" * 4
    agent = Agent(ScriptedModel([python("print(1)"), "Done."]), session, instructions="Be brief.")
    await agent.run(f"Print one. The key is {secret}.")
    await session.close()
    assert session.log_path is not None
    assert verify(session.log_path).ok
    records = list(read(session.log_path))
    kinds = [record["kind"] for record in records]
    assert [kind for kind in kinds if kind.startswith(("agent", "model"))] == [
        "agent_started",
        "model_requested",
        "model_answered",
        "model_requested",
        "model_answered",
        "agent_finished",
    ]
    bodies = {kind: record["body"] for kind, record in zip(kinds, records, strict=True)}
    assert bodies["agent_started"]["instructions"] == "Be brief."
    assert bodies["model_answered"]["message"]["parts"] == [{"kind": "text", "text": "Done."}]
    assert bodies["agent_finished"]["outcome"] == "answered"
    assert secret not in session.log_path.read_text()
    first = next(record["body"] for record in records if record["kind"] == "model_requested")
    assert "Print one." in first["new"][0]["text"]
