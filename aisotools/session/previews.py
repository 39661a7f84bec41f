"""Previews of calls that write files: the diff, computed on the host before the call is approved.

The file lies in a folder that hostile code may write to. It is read within bounds, and never through a link
that leads out of the workspace. If it cannot be read, the preview says so and the call is asked about anyway.

What was shown is what runs: a preview comes with the digest of the content that it was computed from, which
is compared before the call runs. Calls that are asked about together build on each other, so the preview of
the second change of a file is computed from what the first one leaves.
"""

from __future__ import annotations

import difflib
import hashlib
import operator
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aisotools.core.exceptions import WorkspaceError
from aisotools.core.truncation import summarize_names
from aisotools.core.types import Facts, Json
from aisotools.policy.prepared import PreparedCall
from aisotools.workspace.scripts import MISSING
from aisotools.workspace.workspace import Workspace

MAX_BYTES = 1 << 20
"""Longer files are not compared."""

MAX_LINES = 4_000
"""Files of more lines are not compared."""

_CONTEXT_LINES = 3


class Previewer:
    """Computes the previews of calls that are asked about together, in their order."""

    def __init__(self, workspace: Workspace | None) -> None:
        """Read the files of `workspace`; None if they lie on another machine."""
        self._workspace = workspace
        self._texts: dict[str, str] = {}  # of files that earlier calls change, by their resolved path

    def preview(
        self, arguments: Mapping[str, Json], own_path: str, scripts: Sequence[str] = ()
    ) -> tuple[dict[str, Json], dict[str, str]]:
        """Return what the card of a call shows besides its arguments, and what that was computed from.

        Only calls of built-in tools get a preview: an argument `content` of another tool need not become the
        content of a file.

        Args:
            arguments: The validated arguments of the call.
            own_path: The call's `PreparedCall.own_path`.
            scripts: Files that it may run. Of those that an earlier call changes, what that leaves counts.

        Returns:
            The preview: empty, or `{"diff": {"path", "lines", "added", "removed", "note"}}`. Each line starts
            with a space, `+`, `-` or `@`. All of it is untrusted text. And the digest of the content, by the
            path of the file; see `digest_of_file`.
        """
        workspace = self._workspace
        if not own_path or workspace is None:
            return {}, {}
        if scripts:
            return {}, self.digests_left(scripts)
        path = arguments.get("path")
        operation = arguments.get("operation", "write")
        writes = operation == "write" and isinstance(arguments.get("content"), str)
        if not isinstance(path, str):
            return {}, {}
        if not writes and not (operation in {"write", "edit"} and _is_edits(arguments.get("edits"))):
            return {}, {}
        key = path
        try:
            with suppress(
                OSError, WorkspaceError
            ):  # its folder is missing, or it leads out: reading says which
                key = workspace.relative(path)
            before = self._texts[key] if key in self._texts else _read(workspace, path)
        except UnicodeDecodeError:
            note = "The file is not text, so what changes in it cannot be shown."
            return {"diff": _note(path, note)}, {path: digest_of_file(workspace, path)}
        except (OSError, ValueError, WorkspaceError) as error:
            return {"diff": _note(path, f"What changes cannot be shown: {error}")}, {}
        digests = {path: _digest(before)}
        try:
            after = _apply(arguments, before or "")
        except ValueError as error:
            return {"diff": _note(path, f"What changes cannot be shown: {error}")}, digests
        self._texts[key] = after
        return {"diff": _diff(path, before or "", after, exists=before is not None)}, digests

    def digests_left(self, paths: Iterable[str]) -> dict[str, str]:
        """Return digests of those files of which it is known what the calls so far leave in them."""
        return {path: _digest(self._texts[path]) for path in paths if path in self._texts}


def digest_of_file(workspace: Workspace, path: str) -> str:
    """Return a digest of the content of a file: of a fixed text if there is none, or it cannot be read."""
    try:
        data = workspace.read_bytes(path, max_bytes=MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return _digest(None)
    except (OSError, WorkspaceError):
        return "unreadable"
    return hashlib.sha256(data).hexdigest()


def describe_differences(shown: PreparedCall, workspace: Workspace | None) -> list[str]:
    """Return what of a call is no longer as it was shown, as reasons to ask about it once more."""
    differences: list[str] = []
    was, found = shown.facts, shown.facts
    names = was.reads or was.writes or was.mentions or was.scripts or was.commands
    if shown.look_again is not None and names:
        found = shown.look_again()
    if _reach(was) != _reach(found):
        links = [f"{name} leads to {path} now" for name, path in found.links if (name, path) not in was.links]
        links += [f"{name} is no link any more" for name, _ in was.links if name not in dict(found.links)]
        paths = sorted({*found.reads, *found.writes} - {*was.reads, *was.writes})
        reach = [f"it would reach {summarize_names(paths, 5)} as well"] if paths else []
        differences += links or reach or ["it would reach other files"]
    if was.scripts or found.scripts:
        differences += _changed_scripts(shown, found)
    if was.sources or found.sources:
        differences += _changed_sources(shown, found)
    # What a diff was shown of is compared with that, below.
    if was.losses and (was.scripts or not shown.contents):
        differences += _changed_losses(shown, found)
    if workspace is not None:
        differences += [
            f"{path} has changed since it was shown"
            for path, digest in shown.contents.items()
            if digest_of_file(workspace, path) != digest
        ]
    return list(dict.fromkeys(differences))


def _changed_sources(shown: PreparedCall, found: Facts) -> list[str]:
    """Return what of the files that the call reads has changed, or is there now."""
    # A file that would be lost is compared as that, and one of which a diff was shown, with that.
    others = {*dict(shown.facts.losses), *shown.contents, *shown.expected} - shown.left.keys()
    before = {**dict(shown.facts.sources), **shown.left}
    return _describe_changed(before, dict(found.sources), others, use="read")


def _changed_scripts(shown: PreparedCall, found: Facts) -> list[str]:
    """Return what of the files that the call may run has changed, or is there now."""
    # Those in `contents` are compared for themselves, with what an earlier call of the batch makes of them.
    return _describe_changed(dict(shown.facts.scripts), dict(found.scripts), shown.contents, use="run")


def _describe_changed(
    before: Mapping[str, str], now: Mapping[str, str], others: Container[str], *, use: str
) -> list[str]:
    """Return which files have another digest now, or are there only now. Paths among `others` are left out.

    Args:
        before: Digests by path, as they were shown.
        now: The same at this moment.
        others: Paths that are compared elsewhere.
        use: What the call would do with them, `read` or `run`.
    """
    changed = [
        f"{path} has changed since it was shown"
        for path, digest in before.items()
        if digest != MISSING and now.get(path) != digest and path not in others
    ]
    return changed + [
        f"{path} is there now, and would be {use}"
        for path, digest in now.items()
        if before.get(path, MISSING) == MISSING and digest != MISSING and path not in others
    ]


def _changed_losses(shown: PreparedCall, found: Facts) -> list[str]:
    """Return what of the files that the call would remove or overwrite has changed."""
    left = dict(found.losses)
    return [
        f"{path} has changed since it was shown, and would be lost"
        for path, stamp in shown.facts.losses
        if path in left and left[path] != stamp and path not in shown.expected
    ]


def _reach(facts: Facts) -> tuple[object, ...]:
    return facts.links, facts.reads, facts.writes, facts.mentions, facts.certain


def _digest(text: str | None) -> str:
    return "missing" if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


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


def _read(workspace: Workspace, path: str) -> str | None:
    """Return the text of a file; None if there is no file."""
    try:
        data = workspace.read_bytes(path, max_bytes=MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return data.decode("utf-8")


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
    for lines in (old, new):
        if lines[-1] == "":
            lines.pop()  # what stands behind the last line end is no line
    if not exists:
        lines = list(map("+".__add__, new))
    else:
        lines = list(difflib.unified_diff(old, new, lineterm="", n=_CONTEXT_LINES))[2:]
    note = "A new file." if not exists else ""
    if exists and bool(before) and bool(after) and before.endswith("\n") != after.endswith("\n"):
        ends = "gains" if after.endswith("\n") else "loses"
        note = f"The file {ends} its line end at the very end."
    signs = Counter(map(operator.itemgetter(0), lines))
    return {"path": path, "lines": lines, "added": signs["+"], "removed": signs["-"], "note": note}


def _note(path: str, note: str) -> dict[str, Any]:
    return {"path": path, "lines": [], "added": 0, "removed": 0, "note": note}
