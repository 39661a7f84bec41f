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
import posixpath
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aisotools.core.exceptions import ToolError, WorkspaceError
from aisotools.core.truncation import summarize_names
from aisotools.core.types import Facts, Json
from aisotools.policy.prepared import PreparedCall
from aisotools.workspace.scripts import MISSING
from aisotools.workspace.stamps import NAMED
from aisotools.workspace.workspace import Workspace

if TYPE_CHECKING:
    from aisotools.builtin.patch import Hunk

MAX_BYTES = 1 << 20
"""Longer files are not compared."""

MAX_LINES = 4_000
"""Files of more lines are not compared."""

_CONTEXT_LINES = 3
_MAX_PATCH_WORK = 300_000  # lines of hunks times lines of a file


class Previewer:
    """Computes the previews of calls that are asked about together, in their order.

    What earlier calls leave is followed through writes, edits, patches, copies, moves and deletions.
    """

    def __init__(self, workspace: Workspace | None) -> None:
        """Read the files of `workspace`; None if they lie on another machine."""
        self._workspace = workspace
        # What earlier calls leave, by resolved path: the content of a file, None where nothing is.
        self._left: dict[str, bytes | _Unknown | None] = {}

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
        path, patch = arguments.get("path"), arguments.get("patch")
        operation = arguments.get("operation", "write")
        if isinstance(patch, str) and own_path.endswith(":apply_patch"):
            return {}, self._follow_patch(workspace, patch)
        if not isinstance(path, str):
            return {}, {}
        destination = arguments.get("destination")
        if operation == "delete" or (operation in {"move", "copy"} and isinstance(destination, str)):
            return {}, self._follow(workspace, str(operation), path, destination)
        adds = operation in {"write", "append"} and isinstance(arguments.get("content"), str)
        if not adds and not (operation in {"write", "edit"} and _is_edits(arguments.get("edits"))):
            return {}, {}
        return self._preview_text(workspace, path, arguments)

    def _preview_text(
        self, workspace: Workspace, path: str, arguments: Mapping[str, Json]
    ) -> tuple[dict[str, Json], dict[str, str]]:
        """Return the diff of a call that writes one text, and what it was computed from; follow the call."""
        key = _key(workspace, path)
        try:
            before = self._content(workspace, key, path)
        except (OSError, ValueError, WorkspaceError) as error:
            self._left[key] = _UNKNOWN
            return {"diff": _note(path, f"What changes cannot be shown: {error}")}, {}
        digests = {path: _digest(before)}
        if isinstance(before, _Unknown):
            return {
                "diff": _note(path, "What changes can be shown once the calls before it have run.")
            }, digests
        assert not isinstance(before, _Unknown)
        try:
            after = _apply(arguments, before or b"")
        except _WillFail as error:
            return {"diff": _note(path, f"What changes cannot be shown: {error}")}, digests
        except ValueError as error:
            self._left[key] = _UNKNOWN
            return {"diff": _note(path, f"What changes cannot be shown: {error}")}, digests
        self._left[key] = after
        try:
            old, new = (before or b"").decode(), after.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            note = "The file is not text, so what changes in it cannot be shown."
            return {"diff": _note(path, note)}, digests
        return {"diff": _diff(path, old, new, exists=before is not None)}, digests

    def _follow(self, workspace: Workspace, operation: str, path: str, destination: Json) -> dict[str, str]:
        """Follow a deletion, move or copy. Return what it finds where earlier calls have left that."""
        key = _key(workspace, path, follow=operation == "copy")
        is_left = self._is_left(key)
        try:
            content = self._content(workspace, key, path)
        except (OSError, ValueError, WorkspaceError):
            content = _UNKNOWN  # a folder, or a file that is too large
        if content is not None and isinstance(destination, str):
            target = _key(workspace, destination, follow=False)
            with suppress(OSError, WorkspaceError):
                if workspace.stat(destination).kind == "directory":
                    target = f"{target}/{posixpath.basename(key)}"
            self._left[target] = content
        if operation != "copy":
            below = [one for one in self._left if one.startswith(f"{key}/")]
            self._left.update(dict.fromkeys([key, *below]))
        return {path: _digest(content)} if is_left else {}

    def _follow_patch(self, workspace: Workspace, patch: str) -> dict[str, str]:
        """Follow a patch of several files. Return what it finds where earlier calls have left that."""
        from aisotools.builtin.patch import parse_patch, patch_content  # loaded with the tool

        digests: dict[str, str] = {}
        after: dict[str, bytes | _Unknown | None] = {}
        is_left = False
        try:
            for file in parse_patch(patch):
                before: bytes | _Unknown | None = None
                if file.old is not None:
                    key = _key(workspace, file.old)
                    is_left = is_left or self._is_left(key)
                    before = self._content(workspace, key, file.old)
                    digests[file.old] = _digest(before)
                    after[key] = None
                if file.new is not None:
                    key = _key(workspace, file.new)
                    is_left = is_left or self._is_left(key)
                    if isinstance(before, _Unknown) or not _is_quick(file.hunks, before):
                        after[key] = _UNKNOWN
                    else:
                        after[key] = patch_content(file, before)
                    if file.new != file.old:
                        digests[file.new] = _digest(self._content(workspace, key, file.new))
        except ToolError:
            return digests if is_left else {}  # the call will fail, and leave all as it is
        except (OSError, ValueError, WorkspaceError):
            after = dict.fromkeys(after, _UNKNOWN)
        self._left.update(after)
        return digests if is_left else {}

    def digests_left(self, paths: Iterable[str]) -> dict[str, str]:
        """Return digests of those files of which it is known what the calls so far leave in them."""
        return {path: _digest(self._left[path]) for path in paths if self._left.get(path) is not None}

    def _is_left(self, key: str) -> bool:
        return any(one in self._left for one in _with_parents(key))

    def _content(self, workspace: Workspace, key: str, path: str) -> bytes | _Unknown | None:
        """Return the content of a file as the calls so far leave it; None if there is no file.

        Raises:
            OSError: If it cannot be read.
            ValueError: If its path cannot be.
            WorkspaceError: If it leads out of the workspace, or is too large.
        """
        for one in _with_parents(key):
            if one in self._left:
                content = self._left[one]
                return content if one == key or content is None else _UNKNOWN
        try:
            return workspace.read_bytes(path, max_bytes=MAX_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _is_quick(hunks: Sequence[Hunk], before: bytes | None) -> bool:
    """Return whether finding the hunks in a file takes a few milliseconds at most: the event loop waits."""
    lines = sum(len(hunk.before) + len(hunk.after) for hunk in hunks)
    return lines * ((before or b"").count(b"\n") + 1) <= _MAX_PATCH_WORK


class _Unknown:
    """In place of a content that cannot be told before earlier calls have run."""


_UNKNOWN: Final = _Unknown()


class _WillFail(ValueError):
    """A call that will fail, and leave the file as it is."""


def _with_parents(key: str) -> Iterator[str]:
    yield key
    while key not in {"", "/"}:
        key = posixpath.dirname(key)
        yield key


def _key(workspace: Workspace, path: str, *, follow: bool = True) -> str:
    """Return the resolved path of a file; without `follow`, a link at its end is the file itself."""
    # Its folder is missing, or it leads out: reading says which.
    with suppress(OSError, ValueError, WorkspaceError):
        if follow:
            return workspace.relative(path)
        folder, name = posixpath.split(posixpath.normpath(path))
        return posixpath.normpath(posixpath.join(workspace.relative(folder or "."), name))
    return path


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
    if shown.look_again is not None:
        found = shown.look_again()
    if _reach(was) != _reach(found):
        links = [f"{name} leads to {path} now" for name, path in found.links if (name, path) not in was.links]
        links += [f"{name} is not a link any more" for name, _ in was.links if name not in dict(found.links)]
        paths = sorted({*found.reads, *found.writes} - {*was.reads, *was.writes})
        reach = [f"it would reach {summarize_names(paths, 5)} as well"] if paths else []
        differences += links or reach
        is_explained = bool(differences) or was.doubts != found.doubts
        differences += [] if is_explained else ["it would reach other files"]
        differences += [f"{doubt}, as was not shown" for doubt in found.doubts if doubt not in was.doubts]
    if was.scripts or found.scripts:
        differences += _changed_scripts(shown, found)
    if was.sources or found.sources:
        differences += _changed_sources(shown, found)
    # What a diff was shown of is compared with that, below.
    if was.losses and (was.scripts or not shown.contents):
        differences += _changed_losses(shown, found)
    if workspace is not None:
        for path, digest in shown.contents.items():
            now = digest_of_file(workspace, path)
            if now != digest and shown.before.get(path) == now:
                differences.append(
                    f"{path} is as it was: an earlier call was shown to change it, and has not"
                )
            elif now != digest:
                differences.append(f"{path} has changed since it was shown")
    return list(dict.fromkeys(differences))


def _changed_sources(shown: PreparedCall, found: Facts) -> list[str]:
    """Return what of the files that the call reads has changed, or is there now."""
    # A file that would be lost is compared as that, and one of which a diff was shown, with that.
    others = {*dict(shown.facts.losses), *shown.contents, *shown.expected} - shown.left_digests.keys()
    before = {**_plain_digests(shown.facts.sources), **shown.left_digests}
    return _describe_changed(before, _plain_digests(found.sources), others, use="read")


def _plain_digests(sources: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {path: digest.removeprefix(NAMED) for path, digest in sources}


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
    stamps = dict(found.losses)
    return [
        f"{path} has changed since it was shown, and would be lost"
        for path, stamp in shown.facts.losses
        if path in stamps and stamps[path] != stamp and path not in shown.expected
    ]


def _reach(facts: Facts) -> tuple[object, ...]:
    return facts.links, facts.reads, facts.writes, facts.mentions, facts.certain


def _digest(content: bytes | _Unknown | None) -> str:
    if isinstance(content, _Unknown):
        return "unknown"  # nothing that is found is the same
    return "missing" if content is None else hashlib.sha256(content).hexdigest()


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


def _apply(arguments: Mapping[str, Json], before: bytes) -> bytes:
    """Return the content of the file after the call.

    Raises:
        _WillFail: If an edit will fail; the message names it.
        ValueError: If it cannot be told here what an edit does.
    """
    content = arguments.get("content")
    if isinstance(content, str):
        added = content.encode("utf-8", "surrogatepass")
        return before + added if arguments.get("operation") == "append" else added
    from aisotools.builtin.edit import Text  # loaded with the tool

    text = Text.of(before)
    body = text.body
    for number, edit in enumerate(arguments["edits"], 1):
        old, new = edit["old"], edit["new"]
        place = body.find(old) if old else -1
        if not old or old == new:
            raise _WillFail(f"edit {number} replaces nothing, so the call will fail.")
        if place < 0:
            # Case: the tool also finds whole lines that differ in white space at their ends.
            raise ValueError(
                f"edit {number} replaces a text that is not in the file, exactly as it is given."
            )
        count = 1
        if edit.get("replace_all"):
            count = body.count(old)
        elif body.find(old, place + 1) >= 0:
            raise _WillFail(
                f"edit {number} replaces a text that stands there several times; the call will fail."
            )
        # Before it is made: an edit may turn each of a million letters into a long text.
        if len(body) + count * len(new) > 4 * MAX_BYTES:
            raise ValueError(f"after edit {number} the file is too long to compare.")
        body = body.replace(old, new, count)
    try:
        return text.data(body)
    except UnicodeEncodeError:
        raise _WillFail("new holds half a surrogate pair, so the call will fail.") from None


def _diff(path: str, before: str, after: str, *, exists: bool) -> dict[str, Json]:
    old, new = before.split("\n"), after.split("\n")
    if len(after) > MAX_BYTES or max(len(old), len(new)) > MAX_LINES:
        note = f"{len(old):,} lines become {len(new):,}; too many to compare here."
        return _note(path, note)
    if before == after:
        return _note(path, "Nothing changes: the file holds this already." if exists else "An empty file.")
    for lines in (old, new):
        if lines[-1] == "":
            lines.pop()  # what stands behind the last line end is not a line
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
