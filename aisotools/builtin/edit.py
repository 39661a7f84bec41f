"""The tool `edit`: replace passages of one text file, all of them or none.

A passage is found exactly or, failing that, as whole lines that differ only in trailing white space.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from aisotools.builtin.file_operations import MAX_FILE_BYTES, translate_errors
from aisotools.builtin.files import workspace_of, written_path
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.tools.adapter import register_builtin
from aisotools.tools.function import tool
from aisotools.workspace.diff import counts, unified
from aisotools.workspace.paths import as_utf8, printable
from aisotools.workspace.read_tracker import FileTouch

_MAX_PLACES_LISTED = 10
_MAX_CHARS_QUOTED = 80
_MAX_LINES_COMPARED = 5_000
"""Longer files get no suggestion: every line is compared by a slow, fuzzy measure."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """A replacement in a text.

    Attributes:
        old: The passage to replace.
        new: The new passage.
        replace_all: Replace every occurrence; otherwise `old` must occur exactly once.
    """

    old: str
    new: str
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A text file without its line endings and byte order mark, so that a model need not know them.

    Attributes:
        body: The text. Line ends are plain line feeds if all lines ended the same way on disk.
        ending: The line end on disk.
        bom: The byte order mark, or empty.
    """

    body: str
    ending: str = "\n"
    bom: str = ""

    @classmethod
    def of(cls, data: bytes) -> Text:
        """Decode a file. Bytes that are not UTF-8 survive the round trip through `data`."""
        text = data.decode("utf-8", "surrogateescape")
        bom = "\ufeff" if text.startswith("\ufeff") else ""
        body = text.removeprefix(bom)
        feeds = body.count("\n")
        if feeds and body.count("\r\n") == feeds:
            return cls(body.replace("\r\n", "\n"), "\r\n", bom)
        return cls(body, "\n", bom)

    def data(self, body: str) -> bytes:
        """Encode another body with the line ends and byte order mark of this file."""
        if self.ending != "\n":
            body = body.replace("\r\n", "\n").replace("\n", self.ending)
        return (self.bom + body).encode("utf-8", "surrogateescape")


def apply_edits(path: str, body: str, edits: Sequence[Replacement]) -> tuple[str, int]:
    """Apply edits one after another. Return the new text and the number of passages replaced.

    Raises:
        ToolError: If one of them cannot be applied; the message gives line numbers.
    """
    total = 0
    for number, edit in enumerate(edits, 1):
        which = f"edits[{number - 1}]" if len(edits) > 1 else "old"
        body, count = _apply_edit(path, body, edit, which)
        total += count
    return body, total


def _apply_edit(path: str, body: str, edit: Replacement, which: str) -> tuple[str, int]:
    if not edit.old:
        raise ToolError(f"{which}: old is empty. Say which passage to replace; nothing was changed.")
    if edit.old == edit.new:
        raise ToolError(f"{which}: old and new are the same. Nothing was changed.")
    old, new = edit.old, edit.new
    places = list(_occurrences(body, old, _MAX_PLACES_LISTED + 1))
    if not places and "\r" in old and "\r" not in body:
        # The model copied the passage from output that showed the line ends on disk.
        old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
        places = list(_occurrences(body, old, _MAX_PLACES_LISTED + 1))
    if edit.replace_all and places:
        return body.replace(old, new), body.count(old)
    if len(places) == 1:
        return body[: places[0]] + new + body[places[0] + len(old) :], 1
    if places:
        lines = [body.count("\n", 0, place) + 1 for place in places]
        raise _ambiguous(path, which, lines, "")
    return _apply_to_lines(path, body, Replacement(old, new, edit.replace_all), which)


def _apply_to_lines(path: str, body: str, edit: Replacement, which: str) -> tuple[str, int]:
    """Apply an edit to whole lines, ignoring trailing white space."""
    old_lines = [line.rstrip() for line in edit.old.split("\n")]
    new_lines = edit.new.split("\n")
    if len(old_lines) > 1 and not old_lines[-1]:
        # A final line feed ends the last line; it is not an empty line of its own.
        old_lines.pop()
        if not new_lines[-1]:
            new_lines.pop()
    lines = body.split("\n")
    stripped = [line.rstrip() for line in lines]
    places = list(_find_runs(stripped, old_lines)) if any(old_lines) else []
    if not places:
        raise ToolError(
            f"{which}: {_quote(edit.old)} is not in {path!r}."
            f" {_suggest_place(stripped, old_lines)} Nothing was changed."
        )
    if len(places) > 1 and not edit.replace_all:
        condition = " when white space at the ends of lines is ignored"
        raise _ambiguous(path, which, [place + 1 for place in places], condition)
    # A file with mixed line ends keeps its carriage returns in the body: the new lines end like the old ones.
    ending = "\r" if lines[places[0]].endswith("\r") and not new_lines[-1].endswith("\r") else ""
    for place in reversed(places):
        lines[place : place + len(old_lines)] = [line + ending for line in new_lines]
    return "\n".join(lines), len(places)


def _occurrences(body: str, old: str, limit: int) -> Iterator[int]:
    """Yield at most `limit` positions of a passage, overlapping ones included."""
    place = body.find(old)
    while place >= 0 and limit:
        yield place
        limit -= 1
        place = body.find(old, place + 1)


def _find_runs(lines: Sequence[str], run: Sequence[str]) -> Iterator[int]:
    place = 0
    length = len(run)
    while place + length <= len(lines):
        if lines[place] == run[0] and lines[place : place + length] == list(run):
            yield place
            place += length
        else:
            place += 1


def _ambiguous(path: str, which: str, lines: Sequence[int], condition: str) -> ToolError:
    more = len(lines) > _MAX_PLACES_LISTED
    count = f"more than {_MAX_PLACES_LISTED}" if more else f"{len(lines)}"
    listed = ", ".join(str(line) for line in lines[:_MAX_PLACES_LISTED]) + (", ..." if more else "")
    return ToolError(
        f"{which}: the passage stands {count} times in {path!r}{condition}, at lines {listed}. Give more "
        "of the text around the one you mean, or set replace_all. Nothing was changed."
    )


def _suggest_place(lines: Sequence[str], old_lines: Sequence[str]) -> str:
    first = next((line.strip() for line in old_lines if line.strip()), "")
    if not first:
        return ""
    numbers = [number for number, line in enumerate(lines, 1) if first in line]
    if not numbers and len(lines) <= _MAX_LINES_COMPARED:
        stripped = [line.strip() for line in lines]
        near = difflib.get_close_matches(first, stripped, n=3, cutoff=0.6)
        numbers = sorted({stripped.index(line) + 1 for line in near})
    if not numbers:
        return "Read the file again, and give old exactly as it stands there."
    listed = ", ".join(map(str, numbers[:_MAX_PLACES_LISTED]))
    return f"Something like its first line stands at line {listed}; read that part, and give old exactly."


def _quote(text: str) -> str:
    return repr(text if len(text) <= _MAX_CHARS_QUOTED else text[:_MAX_CHARS_QUOTED] + "...")


class Edit(BaseModel):
    """One replacement."""

    model_config = ConfigDict(extra="forbid")

    old: Annotated[
        str,
        Field(
            description="The passage to replace, exactly as it stands in the file, with enough "
            "around it to be the only one.",
            min_length=1,
            max_length=1_000_000,
        ),
    ]
    new: Annotated[
        str, Field(description="What stands there afterwards; '' removes the passage.", max_length=1_000_000)
    ]
    replace_all: Annotated[
        bool, Field(description="Replace every occurrence instead of demanding that there is only one.")
    ] = False


def _facts(arguments: Mapping[str, Json]) -> Facts:
    path = arguments.get("path")
    paths = (path,) if isinstance(path, str) else ()
    return Facts(
        effect=Effect.LOCAL_MUTATION, reads=paths, writes=paths, certain=bool(paths), path_guarded=True
    )


def _touches(arguments: Mapping[str, Json]) -> Sequence[FileTouch]:
    path, edits = arguments.get("path"), arguments.get("edits")
    if not isinstance(path, str) or not isinstance(edits, list):
        return ()
    texts = tuple(str(edit.get("old", "")) for edit in edits if isinstance(edit, Mapping))
    return (FileTouch(path=path, texts=texts),)


@tool(
    name="edit",
    effect=Effect.LOCAL_MUTATION,
    examples=[
        (
            {"path": "app.py", "edits": [{"old": "timeout = 10", "new": "timeout = 30"}]},
            "Raise the timeout in app.py to 30.",
        ),
        (
            {"path": "notes.md", "edits": [{"old": "colour", "new": "color", "replace_all": True}]},
            "Use American spelling for color in my notes.",
        ),
    ],
    extract_undo_path=written_path,
    gather_facts=_facts,
    touches=_touches,
    import_path="aisotools.builtin.edit:edit",
    programs="none",
)
def edit(
    path: Annotated[
        str,
        Field(
            description="The text file, relative to the workspace, such as 'src/app.py'. It must "
            "exist, and it must have been read in this session.",
            min_length=1,
            max_length=4096,
        ),
    ],
    edits: Annotated[
        list[Edit],
        Field(
            description="The replacements, made one after another; either all of them or none.",
            min_length=1,
            max_length=100,
        ),
    ],
    context: ToolContext,
) -> ToolResult:
    """Replace passages of a text file and show the difference.

    Each passage must stand in the file exactly once, or replace_all must be set; whole lines are also found
    when only the white space at their ends differs. If one passage is missing or stands there several times,
    nothing is changed, and the error gives the line numbers. Line endings, byte order mark and mode are kept.
    Read the file first with the tool file; for a new file, or one that changes all over, write it instead.
    """
    workspace = workspace_of(context)
    with translate_errors(workspace, path):
        data = workspace.read_bytes(path, max_bytes=MAX_FILE_BYTES)
        if b"\0" in data:
            raise ToolError(f"{as_utf8(path)!r} is a binary file. Change it with python.")
        text = Text.of(data)
        replacements = [Replacement(edit.old, edit.new, edit.replace_all) for edit in edits]
        body, count = apply_edits(as_utf8(path), text.body, replacements)
        try:
            data = text.data(body)
        except UnicodeEncodeError:
            raise ToolError(
                "new holds half a surrogate pair, which UTF-8 cannot store. Write the whole character."
            ) from None
        if len(data) > MAX_FILE_BYTES:
            raise ToolError(
                f"The file would have {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are written. "
                "Split it into several files, or write it with python."
            )
        written = workspace.write_bytes(path, data)
    name = printable(written.path)
    diff = unified(text.body, body, f"a/{name}", f"b/{name}")
    added, removed = counts(diff)
    value = {
        "success": True,
        "path": as_utf8(written.path),
        "replacements": count,
        "added": added,
        "removed": removed,
        "diff": diff.encode("utf-8", "backslashreplace").decode(),
    }
    passages = "1 passage" if count == 1 else f"{count:,} passages"
    return ToolResult.json(
        value, f"Replaced {passages} in {name} (+{added} -{removed} lines).\n{value['diff']}"
    )


register_builtin(edit)
