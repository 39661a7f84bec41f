"""Somebody else may be asked about one call than whom the session asks."""

from __future__ import annotations

import asyncio

import pytest

from aisotools.core.protocols import Approver
from aisotools.core.types import Approval, Effect
from aisotools.policy.approvers import AllowAll, DenyAll, ScriptedApprover
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession


async def test_one_call_asks_somebody_else(open_session: OpenSession) -> None:
    change = MockTool("change", effect=Effect.LOCAL_MUTATION, runs_in="sandbox")
    session = open_session(change, approver=DenyAll())
    assert (await session.call("change", {})).is_error
    assert not (await session.call("change", {}, approver=AllowAll())).is_error
    assert (await session.call("change", {})).is_error


async def test_a_thread_may_bring_its_own_too(open_session: OpenSession) -> None:
    change = MockTool("change", effect=Effect.LOCAL_MUTATION, runs_in="sandbox")
    session = open_session(change, approver=DenyAll())
    await session.start()
    result = await asyncio.to_thread(
        session.call_threadsafe, "change", {}, approver=AllowAll(), origin="model", call_id="mine"
    )
    assert not result.is_error
    assert session.events[-1].call_id == "mine"


@pytest.mark.parametrize("session_approver", [None, DenyAll()], ids=["nobody", "somebody"])
async def test_a_call_that_writes_a_protected_name_asks_its_own_approver(
    real_session: OpenSession, session_approver: Approver | None
) -> None:
    own = ScriptedApprover([Approval("approve", remember="protected")])
    session = real_session(approver=session_approver, level="confined")
    arguments = {"path": "conftest.py", "content": "x = 1\n"}
    refused = await session.call("sandbox_write", arguments, origin="model")  # a control: it is refused
    assert (refused.error_kind, len(own.requests)) == ("denied", 0)
    result = await session.call("sandbox_write", arguments, origin="model", approver=own)
    assert not result.is_error, result.content
    assert len(own.requests) == 1
    assert session.workspace is not None
    assert (session.workspace / "conftest.py").read_text() == "x = 1\n"


async def test_an_own_approver_that_refuses_a_protected_name_is_the_only_one_asked(
    real_session: OpenSession,
) -> None:
    willing = ScriptedApprover([Approval("approve", remember="protected")])
    own = ScriptedApprover(["deny"])
    session = real_session(approver=willing, level="confined")
    arguments = {"path": "conftest.py", "content": "x = 1\n"}
    result = await session.call("sandbox_write", arguments, origin="model", approver=own)
    assert (result.error_kind, len(own.requests), len(willing.requests)) == ("denied", 1, 0)
    assert session.allowed_protected == ()
