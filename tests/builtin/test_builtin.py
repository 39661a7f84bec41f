"""The table of built-in tools, and what sandbox_write and sandbox_read do to every byte."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from aisotools.builtin import BUILTINS, builtin_tools
from aisotools.core.types import Effect
from aisotools.policy.approvers import AllowAll
from aisotools.tools.adapter import classify, payload_of
from aisotools.tools.registry import ToolRegistry
from tests.conftest import OpenSession


def test_the_table_gives_the_tools_in_order() -> None:
    assert [tool.name for tool in builtin_tools()] == [row.partition(":")[2] for row in BUILTINS]
    assert len(ToolRegistry(builtin_tools())) == len(BUILTINS)


def test_builtin_tools_are_imported_by_the_worker_and_not_sent() -> None:
    for tool, row in zip(builtin_tools(), BUILTINS, strict=True):
        shipment = payload_of(tool)
        if tool.name in ON_HOST:
            assert shipment is None
            continue
        assert shipment is not None
        assert shipment.import_path == f"aisotools.builtin.{row}"
        assert shipment.payload == b""


def test_only_what_reads_is_read_only() -> None:
    effects = {tool.name: classify(tool, {}) for tool in builtin_tools()}
    reading = {name for name, effect in effects.items() if effect is Effect.READ_ONLY}
    assert reading == READ_ONLY & effects.keys()


ON_HOST = {"web_fetch", "todo", "ask_user", "read_result"}
READ_ONLY = {
    *("sandbox_read", "task_list", "task_output", "read_result", "variables", "todo", "ask_user", "display"),
}
NASTY = (
    "plain\n",
    "",
    "no newline at the end",
    "\n",
    "\n\n\n",
    "quotes ' \" ` and $(touch pwned) ${HOME} $HOME \\n \\\\ %s",
    "EOF\n'EOF'\n<<EOF\ncat <<'EOF'\n",
    "CRLF\r\nCR\rLF\n",
    "tab\tNUL\0bell\a\x1b[31mred\x7f",
    "\ufefflooks like a BOM",
    "\u00fc\u00f1\u2713 \U0001f600 \u202e right to left",
    " leading and trailing ",
    "x" * 100_000,
    "line\n" * 10_000,
)


@pytest.mark.sample(6)
@pytest.mark.parametrize("content", NASTY, ids=lambda content: repr(content[:20]))
async def test_content_comes_back_byte_for_byte(
    real_session: OpenSession, tmp_path: Path, content: str
) -> None:
    session = real_session(approver=AllowAll())
    written = await session.call("sandbox_write", {"path": "d/file.txt", "content": content})
    assert not written.is_error, written.content
    size = len(content.encode())
    assert written.value["success"] is True
    assert (written.value["path"], written.value["size"]) == ("d/file.txt", size)
    file = tmp_path / "workspace" / "d" / "file.txt"
    assert file.read_bytes() == content.encode()
    read = await session.call("sandbox_read", {"path": "d/file.txt"})
    assert not read.is_error, read.content
    assert read.value == {"content": content, "size": size, "path": "d/file.txt"}
    assert sorted(p.name for p in (tmp_path / "workspace").rglob("*")) == ["d", "file.txt"]


@pytest.mark.parametrize("data", [bytes(range(256)), b"\xff", b"\xed\xa0\x80", b"ok\xc3"], ids=repr)
async def test_binary_files_are_described_as_binary(
    real_session: OpenSession, tmp_path: Path, data: bytes
) -> None:
    session = real_session()
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "file.bin").write_bytes(data)
    read = await session.call("sandbox_read", {"path": "file.bin"})
    assert not read.is_error, read.content
    assert read.kind == "binary"
    assert base64.b64decode(read.value["base64"]) == data
    assert read.value["size"] == len(data)


async def test_the_shell_and_the_file_tools_see_the_same_file(real_session: OpenSession) -> None:
    session = real_session(approver=AllowAll())
    await session.call("sandbox_write", {"path": "run.sh", "content": "printf '%s' \"$1\"\n"})
    shell = await session.call("sandbox_bash", {"command": "bash run.sh 'a  b'"})
    assert shell.value["stdout"] == "a  b"
    await session.call("python", {"code": "open('from_python', 'wb').write(bytes([255, 0]))"})
    read = await session.call("sandbox_read", {"path": "from_python"})
    assert base64.b64decode(read.value["base64"]) == b"\xff\x00"
