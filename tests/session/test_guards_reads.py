"""Edits need a read: what counts as one, and what a worker cannot make count."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin.edit import edit
from aisotools.builtin.files import file, sandbox_read, sandbox_write
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import Tool, ToolPayload
from aisotools.core.types import Json, Origin, ToolCall, ToolResult, Truncation
from aisotools.policy.prepared import PreparedCall, prepare_call
from aisotools.policy.rules import Policy
from aisotools.session.guards import ReadGuard
from aisotools.testing.fakes import MockTool
from aisotools.workspace.read_tracker import ReadCache
from aisotools.workspace.workspace import Workspace

LINES = "".join(f"line {number}, which is long enough to be worth a note\n" for number in range(1, 13))


class Impostor(MockTool):
    """Names one of our own tools as what the worker is to import."""

    def shipment(self) -> ToolPayload:
        return ToolPayload(key="x", import_path="aisotools.builtin.files:sandbox_read")


class Rig:
    """A guard of one workspace, with the file `a` of twelve lines."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "a"
        self.file.write_text(LINES)
        self.reads = ReadCache(Workspace(folder))
        self.guard = ReadGuard(self.reads)

    def read(
        self, value: Json, tool: Tool = sandbox_read, *, origin: Origin = "model", call_id: str = "r"
    ) -> ToolResult:
        arguments: dict[str, Json] = {"path": "a"}
        if tool is file:
            arguments["operation"] = "read"
        prepared = prepared_call(tool, arguments, origin=origin, call_id=call_id)
        content = str(value.get("content")) if isinstance(value, dict) else ""
        return self.guard.on_read(prepared, ToolResult(content=content, value=value))

    async def edit(self, old: str, new: str) -> None:
        prepared = prepared_call(edit, {"path": "a", "edits": [{"old": old, "new": new}]})
        await self.guard.before(prepared)
        self.file.write_text(self.file.read_text().replace(old, new))
        await self.guard.after(prepared, ToolResult.text("edited"))


def prepared_call(
    tool: Tool, arguments: Mapping[str, Any], *, origin: Origin = "model", call_id: str = "c"
) -> PreparedCall:
    return prepare_call(tool, ToolCall(call_id, tool.name, arguments, origin=origin), Policy(), "confined")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_edit_of_an_unread_file_is_refused(rig: Rig) -> None:
    with pytest.raises(ToolError, match="'a' was not read in this session"):
        await rig.edit("line 3,", "line three,")


@pytest.mark.parametrize("tool", [sandbox_read, file], ids=["sandbox_read", "file"])
async def test_edit_after_a_read_is_allowed_and_counts_as_read(rig: Rig, tool: Tool) -> None:
    rig.read({"path": "a", "content": LINES, "start_line": 1}, tool)
    await rig.edit("line 3,", "line three,")
    await rig.edit("line three,", "line 3,")


async def test_file_that_somebody_else_changed_must_be_read_again(rig: Rig) -> None:
    rig.read({"path": "a", "content": LINES, "start_line": 1})
    rig.file.write_text(LINES + "more\n")
    with pytest.raises(ToolError, match="has changed since it was read"):
        await rig.edit("line 3,", "line three,")


async def test_written_file_counts_as_read(rig: Rig) -> None:
    prepared = prepared_call(sandbox_write, {"path": "a", "content": "one\ntwo\n"})
    await rig.guard.before(prepared)
    rig.file.write_text("one\ntwo\n")
    await rig.guard.after(prepared, ToolResult.text("written"))
    await rig.edit("two", "three")


@pytest.mark.parametrize("result", [None, ToolResult.error("disk full")], ids=["cancelled", "failed"])
async def test_write_that_failed_does_not_count_as_read(rig: Rig, result: ToolResult | None) -> None:
    prepared = prepared_call(sandbox_write, {"path": "a", "content": LINES})
    await rig.guard.before(prepared)
    assert await rig.guard.after(prepared, result) is result
    with pytest.raises(ToolError, match="was not read"):
        await rig.edit("line 3,", "line three,")


@pytest.mark.parametrize(
    "value",
    [
        {"path": "a", "content": "made up\n" * 12, "start_line": 1},
        {"path": "a", "content": "", "start_line": 1},
        {"path": "a", "content": LINES, "start_line": 2},
        {"path": "a", "content": LINES, "start_line": "1"},
        {"path": "a", "content": LINES, "start_line": True},
        {"path": "a", "content": LINES.split("\n")[1] + "\n" * 14, "start_line": -11},
        {"path": "b", "content": LINES, "start_line": 1},
        {"path": 1, "content": LINES, "start_line": 1},
        {"path": "a", "content": None, "start_line": 1},
        [],
        None,
    ],
)
async def test_report_that_does_not_match_the_file_is_no_read(rig: Rig, value: Json) -> None:
    content = str(value.get("content")) if isinstance(value, dict) else ""
    assert rig.read(value) == ToolResult(content=content, value=value), "its caller gets it as it is"
    with pytest.raises(ToolError, match="was not read"):
        await rig.edit("line 1,", "line one,")


async def test_read_that_failed_is_no_read(rig: Rig) -> None:
    prepared = prepared_call(sandbox_read, {"path": "a"})
    failed = ToolResult(content="", value={"path": "a", "content": LINES}, is_error=True)
    assert rig.guard.on_read(prepared, failed) is failed
    with pytest.raises(ToolError, match="was not read"):
        await rig.edit("line 3,", "line three,")


async def test_read_for_which_the_host_can_open_no_file_was_not_replaced(rig: Rig) -> None:
    class Full(ReadCache):
        def note_read(self, *_: object, **__: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files", "a")

    guard = ReadGuard(Full(Workspace(rig.file.parent)))
    value = {"path": "a", "content": LINES, "start_line": 1}
    with pytest.raises(OSError, match="Too many open files"):
        guard.on_read(prepared_call(sandbox_read, {"path": "a"}), ToolResult(content=LINES, value=value))


async def test_read_without_a_first_line_starts_at_the_first(rig: Rig) -> None:
    rig.read({"path": "a", "content": LINES})
    await rig.edit("line 1,", "line one,")
    await rig.edit("line 12,", "line twelve,")


async def test_last_line_counts_with_and_without_its_end(rig: Rig) -> None:
    last = LINES.splitlines(keepends=True)[-1]
    rig.read({"path": "a", "content": last.rstrip("\n"), "start_line": 12})
    await rig.edit("line 12,", "line twelve,")
    rig.file.write_text(LINES.rstrip("\n"))
    rig.read({"path": "a", "content": LINES.rstrip("\n"), "start_line": 1})
    await rig.edit("line 12,", "line twelve,")


async def test_model_has_read_the_whole_lines_that_were_left_of_a_result(rig: Rig) -> None:
    """A person's program has all of it in the value."""
    shown = LINES.index("line 5,") + 3  # the fifth line is cut
    truncation = Truncation(shown_chars=shown, total_chars=len(LINES), ref="r")
    value: Json = {"path": "a", "content": LINES, "start_line": 1}
    cut = ToolResult(content=LINES[:shown], value=value, truncation=truncation)
    rig.guard.on_read(prepared_call(sandbox_read, {"path": "a"}), cut)
    await rig.edit("line 4,", "line four,")
    with pytest.raises(ToolError, match=r"Only lines 1-4 of 12"):
        await rig.edit("line 5,", "line five,")
    rig.file.write_text(LINES)
    rig.guard.on_read(prepared_call(sandbox_read, {"path": "a"}, origin="person"), cut)
    await rig.edit("line 12,", "line twelve,")


async def test_file_written_without_content_is_not_noted(rig: Rig) -> None:
    prepared = prepared_call(file, {"operation": "write", "path": "a"})
    done = ToolResult.text("written")
    assert await rig.guard.after(prepared, done) is done


async def test_file_that_has_other_content_than_was_written_does_not_count_as_read(rig: Rig) -> None:
    prepared = prepared_call(sandbox_write, {"path": "a", "content": "one\n"})
    await rig.guard.before(prepared)
    await rig.guard.after(prepared, ToolResult.text("written"))
    with pytest.raises(ToolError, match="was not read"):
        await rig.edit("line 3,", "line three,")


async def test_written_file_that_is_gone_is_no_error(rig: Rig) -> None:
    prepared = prepared_call(sandbox_write, {"path": "a", "content": "one\n"})
    rig.file.unlink()
    done = ToolResult.text("written")
    assert await rig.guard.after(prepared, done) is done


async def test_file_written_by_the_other_operations_of_the_tool_is_not_taken_for_read(rig: Rig) -> None:
    for operation in ("append", "read"):
        prepared = prepared_call(file, {"operation": operation, "path": "a", "content": LINES})
        await rig.guard.after(prepared, ToolResult.text("done"))
    with pytest.raises(ToolError, match="was not read"):
        await rig.edit("line 3,", "line three,")
    written = prepared_call(file, {"operation": "write", "path": "a", "content": LINES})
    await rig.guard.after(written, ToolResult.text("written"))
    await rig.edit("line 3,", "line three,")


async def test_edit_of_a_file_that_goes_meanwhile_is_not_noted(rig: Rig) -> None:
    rig.read({"path": "a", "content": LINES})
    prepared = prepared_call(edit, {"path": "a", "edits": [{"old": "line 3,", "new": "x"}]})
    await rig.guard.before(prepared)
    rig.file.unlink()
    done = ToolResult.text("edited")
    assert await rig.guard.after(prepared, done) is done


async def test_edit_that_failed_is_not_noted(rig: Rig) -> None:
    rig.read({"path": "a", "content": LINES})
    prepared = prepared_call(edit, {"path": "a", "edits": [{"old": "line 3,", "new": "x"}]})
    await rig.guard.before(prepared)
    rig.file.write_text(LINES.replace("line 3,", "x"))
    failed = ToolResult.error("disk full")
    assert await rig.guard.after(prepared, failed) is failed
    with pytest.raises(ToolError, match="has changed since it was read"):
        await rig.edit("line 5,", "line five,")


async def test_read_reported_by_another_tool_is_no_read(rig: Rig) -> None:
    rig.read({"path": "a", "content": LINES, "start_line": 1}, MockTool("sandbox_read"))
    rig.read({"path": "a", "content": LINES, "start_line": 1}, Impostor("sandbox_read"))
    with pytest.raises(ToolError, match="was not read"):
        await rig.edit("line 3,", "line three,")


async def test_only_the_lines_that_were_read_may_be_edited(rig: Rig) -> None:
    part = "".join(LINES.splitlines(keepends=True)[3:6])
    rig.read({"path": "a", "content": part, "start_line": 4})
    await rig.edit("line 5,", "line five,")
    with pytest.raises(ToolError, match="Only lines 4-6 of 12"):
        await rig.edit("line 8,", "line eight,")


def test_second_read_of_an_unchanged_file_is_shortened_for_a_model_that_has_it(rig: Rig) -> None:
    value = {"path": "a", "content": LINES, "start_line": 1}
    rig.reads.follow("")
    assert rig.read(value, call_id="first").content == LINES
    second = rig.read(value, call_id="second")
    assert second.content == "[Unchanged since first: lines 1-12 of a are as that result shows them.]"
    assert second.metadata["unchanged_since"] == "first"
    assert rig.read(value, origin="person", call_id="third").content == LINES


def test_note_names_the_lines_that_were_read(rig: Rig) -> None:
    part = "".join(LINES.splitlines(keepends=True)[1:11])
    value = {"path": "a", "content": part, "start_line": 2}
    rig.reads.follow("")
    rig.read(value, call_id="first")
    assert rig.read(value, call_id="second").content == (
        "[Unchanged since first: lines 2-11 of a are as that result shows them.]"
    )
    whole = {"path": "a", "content": LINES, "start_line": 1}
    assert rig.read(whole, call_id="third").content == LINES, "only a part of it is in the context"


def test_result_is_repeated_whole_unless_the_agents_context_is_followed(rig: Rig) -> None:
    value = {"path": "a", "content": LINES, "start_line": 1}
    assert [rig.read(value, call_id=call_id).content for call_id in ("1", "2")] == [LINES, LINES]


def test_short_results_are_repeated_whole(rig: Rig) -> None:
    rig.reads.follow("")
    line = LINES.splitlines(keepends=True)[0]
    value = {"path": "a", "content": line, "start_line": 1}
    assert [rig.read(value, call_id=call_id).content for call_id in ("1", "2")] == [line, line]


# ---- the file is replaced meanwhile


class Swapping(ReadCache):
    """Finds a file as it was read; then something puts a link to the outside in its place."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Workspace(folder))
        self.file = folder / "a"
        self.swaps = False

    def content(self, path: str) -> bytes | None:
        data = super().content(path)
        if self.swaps:
            self.file.unlink()
            self.file.symlink_to("/etc/hostname")
        return data


@pytest.fixture
def swapping(rig: Rig) -> Rig:
    rig.reads = Swapping(rig.file.parent)
    rig.guard = ReadGuard(rig.reads)
    return rig


def test_read_of_a_file_that_is_replaced_is_an_error_of_one_line(swapping: Rig) -> None:
    swapping.reads.swaps = True  # type: ignore[attr-defined]  # of `Swapping`
    result = swapping.read({"path": "a", "content": LINES, "start_line": 1})
    assert (result.is_error, result.error_kind) == (True, "environment")
    assert "was replaced meanwhile" in result.content
    assert "Read it again" in result.content
    assert "\n" not in result.content


async def test_edit_of_a_file_that_is_replaced_is_not_noted(swapping: Rig) -> None:
    swapping.read({"path": "a", "content": LINES, "start_line": 1})
    prepared = prepared_call(edit, {"path": "a", "edits": [{"old": "line 3,", "new": "x"}]})
    await swapping.guard.before(prepared)
    swapping.reads.swaps = True  # type: ignore[attr-defined]  # of `Swapping`
    done = ToolResult.text("edited")
    assert await swapping.guard.after(prepared, done) is done


async def test_write_of_a_file_that_is_replaced_is_not_noted(swapping: Rig) -> None:
    prepared = prepared_call(sandbox_write, {"path": "a", "content": LINES})
    await swapping.guard.before(prepared)
    swapping.reads.swaps = True  # type: ignore[attr-defined]  # of `Swapping`
    done = ToolResult.text("written")
    assert await swapping.guard.after(prepared, done) is done
