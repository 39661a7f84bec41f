"""What the integrations share: calls from any loop, and the images of results."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Effect, ToolResult
from aisotools.integrations.calls import (
    Image,
    call_blocking,
    call_session_tool,
    check_asking,
    check_schema,
    images,
    needs_asking,
)
from aisotools.policy.approvers import AllowAll
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession


@pytest.mark.parametrize("asking", ["session", "framework"])
def test_the_parties_that_may_ask(asking: str) -> None:
    check_asking(asking)


def test_nobody_else_may_ask() -> None:
    with pytest.raises(UsageError, match="asking='model'"):
        check_asking("model")


async def test_a_repeated_id_gets_a_new_one(open_session: OpenSession) -> None:
    session = open_session(MockTool(result="ok", effect=Effect.READ_ONLY))
    first = await call_session_tool(session, "mock", {}, call_id="c1")
    again = await call_session_tool(session, "mock", {}, call_id="c1")
    assert first.metadata["call_id"] == "c1"
    assert again.metadata["call_id"] != "c1"
    assert again.content == "ok"


async def test_calls_from_another_loop_and_thread_run_on_the_sessions(open_session: OpenSession) -> None:
    session = open_session(MockTool(result="ok", effect=Effect.READ_ONLY))
    await session.start()

    def elsewhere() -> list[str]:
        assert threading.current_thread() is not threading.main_thread()
        awaited = asyncio.run(call_session_tool(session, "mock", {}))
        return [awaited.content, call_blocking(session, "mock", {}).content]

    assert await asyncio.to_thread(elsewhere) == ["ok", "ok"]


async def test_reasons_for_asking(open_session: OpenSession) -> None:
    session = open_session(
        MockTool("read", effect=Effect.READ_ONLY), MockTool("destroy", effect=Effect.DESTRUCTIVE)
    )
    assert needs_asking(session, "read", {}) is None
    assert needs_asking(session, "destroy", {})
    assert needs_asking(session, "nosuch", {}) is None
    granted = await session.call("destroy", {}, origin="model", approver=AllowAll())
    assert not granted.is_error


def test_images_of_a_result_and_its_displays() -> None:
    png = {"image/png": "AAAA", "image/jpeg": "BBBB"}
    result = ToolResult(
        content="", data=png, metadata={"displays": [{"image/jpeg": "AAAA"}, "odd", {"x": 1}]}
    )
    assert list(images(result)) == [
        Image(mime="image/png", data=b"\0\0\0"),
        Image(mime="image/jpeg", data=b"\0\0\0"),
    ]
    assert next(images(result)).base64 == "AAAA"


@pytest.mark.parametrize("data", [{"image/png": "A"}, {"image/png": 5}, {"image/svg+xml": "<svg/>"}, {}])
def test_data_that_is_no_image_is_skipped(data: Any) -> None:
    assert list(images(ToolResult(content="", data=data))) == []


def test_a_strangers_schema_is_taken_if_it_can_be_read() -> None:
    sound = {"type": "object", "properties": {"x": {"pattern": "(?=a)"}}}
    assert check_schema("theirs", sound) is sound
    with pytest.raises(UsageError, match=r"'theirs' cannot be taken .* outside itself"):
        check_schema("theirs", {"type": "object", "$ref": "http://127.0.0.1:9/"})
