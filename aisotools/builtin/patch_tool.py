"""The tool `apply_patch`: a unified diff over several files, all of it or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from aisotools.builtin.edits import Text
from aisotools.builtin.file_errors import for_the_model
from aisotools.builtin.file_operations import MAX_FILE_BYTES
from aisotools.builtin.patches import FilePatch, apply_hunks, read_patch
from aisotools.contracts import ToolContext
from aisotools.events import Effect, Facts, Json, ToolResult
from aisotools.exceptions import ToolError
from aisotools.function_tool import tool
from aisotools.paths import printable, shown
from aisotools.readcache import Touch
from aisotools.workspace import Workspace


@dataclass(frozen=True, slots=True)
class _Change:
    """What one file becomes.

    Attributes:
        patch: What the diff says.
        before: Its bytes, or None when it is made.
        after: Its bytes afterwards, or None when it is deleted.
        stretched: Where the diff did not fit exactly.
    """

    patch: FilePatch
    before: bytes | None
    after: bytes | None
    stretched: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        """What happens to it, in a word."""
        if self.before is None:
            return "created"
        if self.after is None:
            return "deleted"
        return "changed" if self.patch.old == self.patch.new else "renamed"


def _files(arguments: Mapping[str, Json]) -> list[FilePatch]:
    patch = arguments.get("patch")
    return read_patch(patch) if isinstance(patch, str) else []


def _facts(arguments: Mapping[str, Json]) -> Facts:
    try:
        files = _files(arguments)
    except ToolError:
        files = []  # the call itself says what is wrong
    paths = tuple(dict.fromkeys(path for file in files for path in (file.old, file.new) if path))
    deletes = any(file.new is None for file in files)
    return Facts(
        effect=Effect.DESTRUCTIVE if deletes else Effect.LOCAL_MUTATION,
        reads=tuple(file.old for file in files if file.old),
        writes=paths,
        certain=bool(paths),
        path_guarded=True,
    )


def _effect(arguments: Mapping[str, Json]) -> Effect:
    return _facts(arguments).effect


def _touches(arguments: Mapping[str, Json]) -> Sequence[Touch]:
    touches = []
    for file in _files(arguments):
        if file.old is not None and (file.hunks or file.new is None):
            # With a trailing line feed, as `before` holds whole lines.
            texts = tuple("\n".join(hunk.before) for hunk in file.hunks if hunk.before)
            touches.append(Touch(path=file.old, texts=() if file.new is None else texts))
    return touches


@tool(
    name="apply_patch",
    classify=_effect,
    examples=[
        (
            {
                "patch": "--- a/app.py\n+++ b/app.py\n@@ -1,2 +1,2 @@\n import os\n-DEBUG = "
                "True\n+DEBUG = False\n"
            },
            "Apply this diff: switch DEBUG off in app.py.",
        ),
    ],
    gather_facts=_facts,
    touches=_touches,
    import_path="aisotools.builtin.patch_tool:apply_patch",
)
def apply_patch(
    patch: Annotated[
        str,
        Field(
            description="A unified diff, as `diff -u` or `git diff` write it: for each file '--- "
            "a/old' and '+++ "
            "b/new' ('/dev/null' for a file that is made or deleted), then hunks '@@ -1,3 +1,4 @@'. "
            "git's 'rename "
            "from' and 'rename to' are understood. Paths are relative to the workspace.",
            min_length=1,
            max_length=2_000_000,
        ),
    ],
    context: ToolContext,
) -> ToolResult:
    """Apply a unified diff to one or more text files: change, create, delete and rename them.

    Either all of it is applied or nothing. A hunk may lie elsewhere than its line numbers say; up to two
    lines of context at its ends, and white space at the ends of lines, may differ: all of that is reported.
    Existing files must have been read in this session. Line endings, byte order marks and modes are kept.
    """
    workspace = Workspace(context.workspace_path)
    changes = [_planned(workspace, file) for file in read_patch(patch)]
    _carry_out(workspace, changes)
    rows: list[dict[str, Json]] = []
    told: list[str] = []
    for change in changes:
        file = change.patch
        rows.append(
            {
                "path": shown(file.path),
                "change": change.verb,
                "old_path": shown(file.old) if file.old else None,
                "hunks": len(file.hunks),
                "fuzz": list(change.stretched),
            }
        )
        source = f" (from {printable(file.old)})" if change.verb == "renamed" and file.old else ""
        told.append(f"{change.verb} {printable(file.path)}{source}")
        told += [f"  {one}" for one in change.stretched]
    return ToolResult.json({"success": True, "files": rows}, "\n".join(told))


def _planned(workspace: Workspace, file: FilePatch) -> _Change:
    """What becomes of one file; nothing is written yet."""
    if file.new is not None and file.new != file.old:
        _demand_free(workspace, file.new)
    if file.old is None:
        text, before = Text(""), None
    else:
        with for_the_model(workspace, file.old):
            before = workspace.read_bytes(file.old, max_bytes=MAX_FILE_BYTES)
        if b"\0" in before and file.hunks:
            raise ToolError(f"{shown(file.old)!r} is a binary file. Nothing was changed.")
        text = Text.of(before)
    applied = apply_hunks(file, text.body)
    if file.new is None:
        if file.hunks and applied.body:
            raise ToolError(
                f"{shown(file.path)!r} holds more than the patch deletes, so it is not deleted. Read "
                "it again, or "
                "use file, operation 'delete'. Nothing was changed."
            )
        return _Change(file, before, None, applied.stretched)
    try:
        after = text.data(applied.body) if file.hunks else (before or b"")
    except UnicodeEncodeError:
        raise ToolError("The patch holds half a surrogate pair, which UTF-8 cannot store.") from None
    if len(after) > MAX_FILE_BYTES:
        raise ToolError(f"{shown(file.path)!r} would have {len(after):,} bytes; at most {MAX_FILE_BYTES:,}.")
    return _Change(file, before, after, applied.stretched)


def _demand_free(workspace: Workspace, path: str) -> None:
    with for_the_model(workspace, path):
        try:
            entry = workspace.stat(path, follow=False)
        except FileNotFoundError:
            return
        raise ToolError(
            f"{shown(path)!r} is there already, a {entry.kind}, and the patch would make it. Nothing "
            "was changed."
        )


def _carry_out(workspace: Workspace, changes: Sequence[_Change]) -> None:
    """Write everything; what was written is taken back when something fails on the way."""
    done: list[_Change] = []
    try:
        for change in changes:
            done.append(change)
            with for_the_model(workspace, change.patch.path):
                _write(workspace, change)
    except BaseException:
        for change in reversed(done):
            with suppress(OSError, ToolError):
                _take_back(workspace, change)
        raise


def _write(workspace: Workspace, change: _Change) -> None:
    old, new = change.patch.old, change.patch.new
    if old is not None and new is not None and old != new:
        _rename(workspace, old, new)
    if new is None:
        assert old is not None
        with workspace.locate(old, follow=False) as spot:
            spot.unlink()
    elif change.after != change.before or old is None:
        workspace.write_bytes(new, change.after or b"")


def _take_back(workspace: Workspace, change: _Change) -> None:
    old, new = change.patch.old, change.patch.new
    if old is not None and new is not None and old != new:
        with suppress(FileNotFoundError):
            _rename(workspace, new, old)
    if change.before is not None and old is not None:
        workspace.write_bytes(old, change.before)
    elif new is not None:
        with workspace.locate(new, follow=False) as spot:
            spot.unlink()


def _rename(workspace: Workspace, old: str, new: str) -> None:
    with (
        workspace.locate(old, follow=False) as source,
        workspace.locate(new, follow=False, make_parents=True) as place,
    ):
        source.rename(place)
