"""Somebody else may be asked about one call than whom the session asks."""

from __future__ import annotations

import asyncio

from aisotools.core.types import Effect
from aisotools.policy.approvers import AllowAll, DenyAll
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
