"""Preview of a call that writes a file: the diff, computed on the host before the call is approved.

The file lies in a folder that hostile code may write to. It is read within bounds, and never through a link
that leads out of the workspace. If it cannot be read, the preview says so and the call is asked about anyway.
"""

from __future__ import annotations

import difflib
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aisotools.core.exceptions import WorkspaceError
from aisotools.core.protocols import ToolPayload
from aisotools.core.types import Json
from aisotools.policy.prepared import OWN_TOOLS
from aisotools.workspace.workspace import Workspace

MAX_BYTES = 1 << 20
"""Longer files are not compared."""

MAX_LINES = 4_000
"""Files of more lines are not compared."""

_CONTEXT_LINES = 3


def preview_of(
    arguments: Mapping[str, Json], payload: ToolPayload | None, workspace: Path | None
) -> dict[str, Json]:
    """Return what the card of a call shows besides its arguments, by kind.

    Only calls of built-in tools get a preview: an argument `content` of another tool need not become the
    content of a file.

    Args:
        arguments: The validated arguments of the call.
        payload: The tool as it is sent to the sandbox; None for a tool of the host.
        workspace: The folder with the file; None if it lies on another machine.

    Returns:
        Empty, or `{"diff": {"path", "lines", "added", "removed", "note"}}`. Each line starts with a space,
        `+`, `-` or `@`. All of it is untrusted text.
    """
    if payload is None or workspace is None or not payload.import_path.startswith(OWN_TOOLS):
        return {}
    path = arguments.get("path")
    if not isinstance(path, str) or not _is_write(arguments):
        return {}
    try:
        before, exists = _read(workspace, path)
        after = _apply(arguments, before)
    except UnicodeDecodeError:
        return {"diff": _note(path, "The file is not text, so what changes in it cannot be shown.")}
    except (OSError, ValueError, WorkspaceError) as error:
        return {"diff": _note(path, f"What changes cannot be shown: {error}")}
    return {"diff": _diff(path, before, after, exists=exists)}


def _is_write(arguments: Mapping[str, Json]) -> bool:
    operation = arguments.get("operation", "write")
    writes = operation == "write" and isinstance(arguments.get("content"), str)
    return writes or (operation in {"write", "edit"} and _is_edits(arguments.get("edits")))


def _is_edits(edits: Json) -> bool:
    return (
        isinstance(edits, Sequence)
        and bool(edits)
        and all(
            isinstance(edit, Mapping)
            and isinstance(edit.get("old"), str)
            and isinstance(edit.get("new"), str)
            for edit in edits
        )
    )


def _read(workspace: Path, path: str) -> tuple[str, bool]:
    """Return the text of the file and True, or an empty text and False if there is no file."""
    try:
        data = Workspace(workspace).read_bytes(path, max_bytes=MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return "", False
    return data.decode("utf-8"), True


def _apply(arguments: Mapping[str, Json], before: str) -> str:
    """Return the text of the file after the call.

    Raises:
        ValueError: If an edit would fail; the message names it.
    """
    content = arguments.get("content")
    if isinstance(content, str):
        return content
    text = before
    for number, edit in enumerate(arguments["edits"], 1):
        if not edit["old"] or edit["old"] not in text:
            raise ValueError(f"edit {number} replaces a text that is not in the file, so the call will fail.")
        text = text.replace(edit["old"], edit["new"], -1 if edit.get("replace_all") else 1)
        if len(text) > 4 * MAX_BYTES:
            raise ValueError(f"after edit {number} the file is too long to compare.")
    return text


def _diff(path: str, before: str, after: str, *, exists: bool) -> dict[str, Json]:
    old, new = before.split("\n"), after.split("\n")
    if len(after) > MAX_BYTES or max(len(old), len(new)) > MAX_LINES:
        note = f"{len(old):,} lines become {len(new):,}; too many to compare here."
        return _note(path, note)
    if before == after:
        return _note(path, "Nothing changes: the file holds this already." if exists else "An empty file.")
    if not exists:
        lines, old = [f"+{line}" for line in _drop_last_if_empty(new)], []
    else:
        lines = list(
            difflib.unified_diff(
                _drop_last_if_empty(old), _drop_last_if_empty(new), lineterm="", n=_CONTEXT_LINES
            )
        )[2:]
    note = "A new file." if not exists else ""
    if exists and bool(before) and bool(after) and before.endswith("\n") != after.endswith("\n"):
        ends = "gains" if after.endswith("\n") else "loses"
        note = f"The file {ends} its line end at the very end."
    signs = Counter(map(operator.itemgetter(0), lines))
    return {"path": path, "lines": lines, "added": signs["+"], "removed": signs["-"], "note": note}


def _drop_last_if_empty(lines: list[str]) -> list[str]:
    """Return the lines without the empty one behind the last line end."""
    return lines[:-1] if lines[-1] == "" else lines


def _note(path: str, note: str) -> dict[str, Any]:
    return {"path": path, "lines": [], "added": 0, "removed": 0, "note": note}
