"""What a built-in tool must do when it runs: let itself be cancelled, and leave nothing that undo misses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin import builtin_tools
from aisotools.core.events import CallStarted
from aisotools.core.protocols import UserQuestion
from aisotools.core.types import Approval, ApprovalRequest, Effect
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.tools.adapter import classify
from tests.conftest import OpenSession
from tests.waiting import eventually

PATCH = "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n"
CHANGING: list[tuple[str, dict[str, Any]]] = [
    ("file", {"operation": "write", "path": "new/b.txt", "content": "b"}),
    ("file", {"operation": "append", "path": "a.txt", "content": "more\n"}),
    ("file", {"operation": "delete", "path": "d", "recursive": True}),
    ("file", {"operation": "move", "path": "a.txt", "destination": "d/moved.txt"}),
    ("file", {"operation": "copy", "path": "d", "destination": "e"}),
    ("sandbox_write", {"path": "a.txt", "content": ""}),
    ("edit", {"path": "a.txt", "edits": [{"old": "two", "new": "three"}]}),
    ("apply_patch", {"patch": PATCH}),
    ("sandbox_bash", {"command": "rm -r d; ln -s a.txt link; mkdir empty; echo x >> a.txt"}),
    ("python", {"code": "import os, shutil\nshutil.rmtree('d'); os.rename('a.txt', 'z.txt')"}),
]
WAITING: list[tuple[str, dict[str, Any]]] = [
    ("sandbox_bash", {"command": "sleep 30"}),
    ("python", {"code": "while True: pass"}),
    ("python", {"code": "import asyncio\nawait asyncio.sleep(30)"}),
    ("ask_user", {"question": "What now?"}),
]
QUICK = {"read_result", "todo", "display", "variables", "sandbox_read", "web_fetch"}
"""Tools that change no file of the workspace, and wait for nothing but what is bounded by itself."""

TASKS = {"task_list", "task_output", "task_input", "task_stop"}
"""Tools about what goes on in the background, which undo stops or refuses to overrun."""


class Silent(AllowAll):
    """Approves everything, and never answers a model's own question."""

    async def ask_user(self, question: UserQuestion) -> str | None:
        await asyncio.sleep(60)
        return question.text

    async def ask(self, request: ApprovalRequest) -> Approval:
        return await super().ask(request)


def tree(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "/" if path.is_dir() else path.read_text("utf-8")
    return found


@pytest.fixture
async def session(real_session: OpenSession) -> Session:
    session = real_session(approver=Silent())
    await session.start()
    assert session.workspace is not None
    (session.workspace / "d").mkdir()
    (session.workspace / "d" / "c.txt").write_text("c")
    (session.workspace / "a.txt").write_text("one\ntwo\n")
    return session


def test_every_built_in_tool_is_looked_at() -> None:
    named = {name for name, _ in (*CHANGING, *WAITING)}
    assert named | QUICK | TASKS == {tool.name for tool in builtin_tools()}
    tools = {tool.name: tool for tool in builtin_tools()}
    assert all(classify(tools[name], given) is not Effect.READ_ONLY for name, given in CHANGING)


async def test_undo_and_redo_of_each(session: Session) -> None:
    assert session.workspace is not None
    before = tree(session.workspace)
    for name, arguments in CHANGING:
        read = await session.call("file", {"operation": "read", "path": "a.txt"})
        assert not read.is_error
        result = await session.call(name, arguments, origin="model")
        assert not result.is_error, f"{name} {arguments}: {result.content}"
        after = tree(session.workspace)
        assert after != before, name
        undone = await session.undo()
        assert not undone.is_error, undone.content
        assert tree(session.workspace) == before, f"{name} {arguments}"
        await session.redo()
        assert tree(session.workspace) == after, f"{name} {arguments}"
        await session.undo()


@pytest.mark.parametrize(
    ("name", "arguments"), WAITING, ids=[f"{name}{n}" for n, (name, _) in enumerate(WAITING)]
)
async def test_a_tool_can_be_cancelled(session: Session, name: str, arguments: dict[str, Any]) -> None:
    assert not (await session.call("python", {"code": "kept = 1"}, origin="person")).is_error
    call = asyncio.ensure_future(session.call(name, arguments, origin="model"))
    await eventually(lambda: [one for one in session.events if isinstance(one, CallStarted)][1:])
    assert not call.done()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    again = await session.call("python", {"code": "kept"}, origin="person")
    assert again.value["result"] == "1"
