"""What lies in a workspace and where tools come from is written down, within bounds, following no link."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.transcript import attachments
from aisotools.agent.transcript.attachments import (
    MOST_BYTES,
    MOST_FILE_BYTES,
    has_source,
    is_built_in,
    sources_of,
    start_files,
)
from aisotools.builtin import builtin_tools
from aisotools.core.events import CallEmitted, EventsDropped, SandboxLost
from aisotools.core.types import Effect
from aisotools.policy.rules import Policy
from aisotools.testing.fakes import MockTool
from aisotools.tools.function import tool
from aisotools.workspace.checkpoints.timeline import KEPT_STEPS
from tests.conftest import OpenSession

FACTOR = 3


@tool(effect=Effect.READ_ONLY)
def tripled(number: int) -> int:
    """Three times a number."""
    return number * FACTOR


async def test_small_text_files_are_taken_and_others_named(open_session: OpenSession) -> None:
    session = open_session()
    await session.start()
    folder = session.workspace
    assert folder is not None
    (folder / "sub").mkdir()
    (folder / "a.txt").write_text("text")
    (folder / "sub" / "b.txt").write_text("below")
    (folder / "image").write_bytes(b"\xff\xfe")
    (folder / "zero").write_bytes(b"a\0b")
    (folder / "large").write_text("x" * (MOST_FILE_BYTES + 1))
    (folder / "limit").write_text("x" * MOST_FILE_BYTES)
    (folder / "link").symlink_to(folder / "a.txt")
    os.mkfifo(folder / "pipe")
    files = start_files(session)
    assert sorted(files.texts) == ["a.txt", "limit", "sub/b.txt"]
    assert sorted(files.missing) == [
        "image: no text",
        f"large: {MOST_FILE_BYTES + 1:,} bytes",
        "link: a link",
        "pipe: no file",
        "zero: no text",
    ]


async def test_files_from_before_the_first_call_stay_and_are_missing_where_room_is_short(
    open_session: OpenSession,
) -> None:
    session = open_session(policy=Policy(mode="auto"))
    await session.start()
    history: Any = session.history
    assert session.workspace is not None
    (session.workspace / "a").write_text("before")
    for number in range(KEPT_STEPS + 25):
        await session.call("sandbox_write", {"path": "a", "content": str(number)})
    assert start_files(session).texts == {"a": "before"}
    history._checkpoints.kept_bytes = 0
    await session.call("sandbox_write", {"path": "a", "content": "last"})
    (reason,) = start_files(session).missing
    assert "is not kept, to make room" in reason


async def test_all_files_together_are_bounded(open_session: OpenSession) -> None:
    session = open_session()
    await session.start()
    assert session.workspace is not None
    for number in range(MOST_BYTES // MOST_FILE_BYTES + 1):
        (session.workspace / f"{number:02}").write_text("x" * MOST_FILE_BYTES)
    files = start_files(session)
    assert len(files.texts) == MOST_BYTES // MOST_FILE_BYTES
    assert files.missing == ("16: the files together are larger than 1 MiB",)


async def test_of_many_files_that_are_left_out_some_are_named(open_session: OpenSession) -> None:
    session = open_session()
    await session.start()
    assert session.workspace is not None
    for number in range(60):
        (session.workspace / f"{number:02}").write_bytes(b"\xff")
    assert start_files(session).missing[-1] == "10 more files"
    assert len(start_files(session).missing) == 51


async def test_a_session_without_a_workspace_has_no_files(open_session: OpenSession) -> None:
    assert start_files(open_session()) == attachments.StartFiles(texts={})


def test_the_origin_of_a_tool() -> None:
    (reader,) = (one for one in builtin_tools("core") if one.name == "sandbox_read")
    assert is_built_in(reader)
    assert not has_source(reader)
    assert not is_built_in(tripled)
    assert has_source(tripled)
    assert not has_source(None)
    assert not has_source(MockTool("mock", effect=Effect.READ_ONLY))


def test_the_source_of_a_tool_brings_what_it_names(tmp_path: Path) -> None:
    source = sources_of([tripled])
    assert "FACTOR = 3" in source
    assert "def tripled(number: int)" in source
    assert "current_session().registry.register" in source
    compile(source, str(tmp_path / "source.py"), "exec")


@pytest.mark.parametrize("tools", [[], builtin_tools("core")])
def test_without_known_sources_there_is_nothing_to_write(tools: list[object]) -> None:
    assert sources_of(tools) == ""  # type: ignore[arg-type]  # they are tools


async def test_files_are_missing_when_the_first_calls_were_dropped(
    open_session: OpenSession,
) -> None:
    session = open_session(retained_bytes=1 << 20)
    await session.start()
    session._event_log._retained.spill = None  # as on a disk without room
    assert session.workspace is not None
    (session.workspace / "a.txt").write_text("text")
    for _ in range(30):
        session.record(CallEmitted, "c", name="n", payload={"text": "x" * 50_000})
    assert isinstance(session.events[0], EventsDropped)
    assert start_files(session).texts == {"a.txt": "text"}, "only output is missing"
    for number in range(3000):
        session.record(SandboxLost, generation=number, reason="r" * 500)
    assert start_files(session).texts == {}
    (missing,) = start_files(session).missing
    assert "were dropped: over the session's budget of 1 MiB" in missing
