"""A loss of variables is in the next result that somebody reads."""

from __future__ import annotations

import pytest

from aisotools.core.exceptions import ToolError
from aisotools.core.sandboxes import CallDispatch
from aisotools.core.types import Approval, ApprovalRequest, ToolResult
from aisotools.policy.rules import Policy
from aisotools.session.losses import UnseenLosses
from aisotools.session.session import Session
from tests.conftest import OpenSession

LOST = "[Before this call the sandbox's worker ended: the sandbox was restarted; its variables are lost.]"


class Denies:
    async def ask(self, request: ApprovalRequest) -> Approval:
        return Approval("deny", reason="not now")


def test_losses_are_reported_once_and_in_their_order() -> None:
    losses = UnseenLosses()
    for loss in ("", "[first]", "[second]"):
        dispatch = CallDispatch()
        dispatch.loss = loss
        losses.note(dispatch)
    assert repr(losses) == "<UnseenLosses '[first]\\n[second]'>"
    assert losses.report(ToolResult(content="text")).content == "[first]\n[second]\ntext"
    assert losses.report(ToolResult(content="text")).content == "text"


async def opened(real_session: OpenSession) -> Session:
    session = real_session(policy=Policy(mode="auto"), approver=Denies())
    await session.run_cell("v = 1")
    await session.restart()
    return session


async def hidden_get(session: Session) -> None:
    with pytest.raises(ToolError, match="v"):
        await session.get("v")


async def hidden_put(session: Session) -> None:
    await session.put("w", 1)
    assert await session.get("w") == 1


async def dropped_trial(session: Session) -> None:
    refused = await session.call("sandbox_bash", {"command": "csplit a.txt 2"}, origin="model")
    assert "not now" in refused.content
    assert "worker ended" not in refused.content


@pytest.mark.pooled
@pytest.mark.parametrize("hidden", [hidden_get, hidden_put, dropped_trial])
async def test_loss_is_in_the_next_result_that_is_read(real_session: OpenSession, hidden: object) -> None:
    session = await opened(real_session)
    assert callable(hidden)
    await hidden(session)
    following = await session.call("python", {"code": "1 + 1"}, origin="model")
    assert following.content.splitlines()[:1] == [LOST]
    assert following.content.endswith("2")
    assert "worker ended" not in (await session.call("python", {"code": "1 + 1"}, origin="model")).content


@pytest.mark.pooled
async def test_result_of_a_tool_on_the_host_says_it_as_well(real_session: OpenSession) -> None:
    session = await opened(real_session)
    await hidden_put(session)
    listed = await session.call("task_list", {}, origin="model")
    assert listed.content.startswith(LOST)
