"""The tool `edit`: passages of one text file replaced, all or none.

Replacing passages of a text: exact, else whole lines whatever white space ends them. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from aisotools.builtin.file_operations import MAX_FILE_BYTES, for_the_model
from aisotools.builtin.files import written_path
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.tools.function import tool
from aisotools.workspace.diff import counts, unified
from aisotools.workspace.paths import printable, shown
from aisotools.workspace.read_tracker import FileTouch
from aisotools.workspace.workspace import Workspace

_SHOWN_PLACES, _SHOWN_CHARS = 10, 80
_MAX_LINES_COMPARED = 5_000


@dataclass(frozen=True, slots=True)
class Replacement:
    """One passage and what it becomes.

    Attributes:
        old: The passage.
        new: What stands there afterwards.
        replace_all: Whether every occurrence is meant.
    """

    old: str
    new: str
    replace_all: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A text file taken apart, so that a model need not care how its lines end.

    Attributes:
        body: The text with plain line feeds, where all of its lines ended the same way.
        ending: How its lines end on disk.
        bom: The byte order mark, or nothing.
    """

    body: str
    ending: str = "\n"
    bom: str = ""

    @classmethod
    def of(cls, data: bytes) -> Text:
        """The text of a file; bytes that are not UTF-8 come back as they were."""
        text = data.decode("utf-8", "surrogateescape")
        bom = "\ufeff" if text.startswith("\ufeff") else ""
        body = text.removeprefix(bom)
        feeds = body.count("\n")
        if feeds and body.count("\r\n") == feeds:
            return cls(body.replace("\r\n", "\n"), "\r\n", bom)
        return cls(body, "\n", bom)

    def data(self, body: str) -> bytes:
        """Another body as the bytes of the same file."""
        if self.ending != "\n":
            body = body.replace("\r\n", "\n").replace("\n", self.ending)
        return (self.bom + body).encode("utf-8", "surrogateescape")


def apply_edits(path: str, body: str, edits: Sequence[Replacement]) -> tuple[str, int]:
    """The text after all edits, one after another, and how many passages were replaced.

    Raises:
        ToolError: If any cannot be made, with line numbers; none is made then.
    """
    total = 0
    for number, edit in enumerate(edits, 1):
        which = f"edits[{number - 1}]" if len(edits) > 1 else "old"
        body, count = _applied(path, body, edit, which)
        total += count
    return body, total


def _applied(path: str, body: str, edit: Replacement, which: str) -> tuple[str, int]:
    if not edit.old:
        raise ToolError(f"{which}: old is empty. Say which passage to replace; nothing was changed.")
    if edit.old == edit.new:
        raise ToolError(f"{which}: old and new are the same. Nothing was changed.")
    old, new = edit.old, edit.new
    places = list(_occurrences(body, old, _SHOWN_PLACES + 1))
    if not places and "\r" in old and "\r" not in body:  # copied from where the line endings were shown
        old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
        places = list(_occurrences(body, old, _SHOWN_PLACES + 1))
    if edit.replace_all and places:
        return body.replace(old, new), body.count(old)
    if len(places) == 1:
        return body[: places[0]] + new + body[places[0] + len(old) :], 1
    if places:
        lines = [body.count("\n", 0, place) + 1 for place in places]
        raise _ambiguous(path, which, lines, "")
    return _applied_to_lines(path, body, Replacement(old, new, edit.replace_all), which)


def _applied_to_lines(path: str, body: str, edit: Replacement, which: str) -> tuple[str, int]:
    """The same for whole lines, whatever white space ends them."""
    wanted = [line.rstrip() for line in edit.old.split("\n")]
    become = edit.new.split("\n")
    if len(wanted) > 1 and not wanted[-1]:
        wanted.pop()
        if not become[-1]:
            become.pop()
    lines = body.split("\n")
    bare = [line.rstrip() for line in lines]
    found = list(_runs(bare, wanted)) if any(wanted) else []
    if not found:
        raise ToolError(
            f"{which}: {_shown(edit.old)} is not in {path!r}. {_nearest(bare, wanted)} Nothing was changed."
        )
    if len(found) > 1 and not edit.replace_all:
        told = " when white space at the ends of lines is left aside"
        raise _ambiguous(path, which, [place + 1 for place in found], told)
    ending = "\r" if lines[found[0]].endswith("\r") and not become[-1].endswith("\r") else ""
    for place in reversed(found):
        lines[place : place + len(wanted)] = [line + ending for line in become]
    return "\n".join(lines), len(found)


def _occurrences(body: str, old: str, most: int) -> Iterator[int]:
    """Where a passage begins, also where occurrences overlap."""
    place = body.find(old)
    while place >= 0 and most:
        yield place
        most -= 1
        place = body.find(old, place + 1)


def _runs(lines: Sequence[str], wanted: Sequence[str]) -> Iterator[int]:
    place, length = 0, len(wanted)
    while place + length <= len(lines):
        if lines[place] == wanted[0] and lines[place : place + length] == list(wanted):
            yield place
            place += length
        else:
            place += 1


def _ambiguous(path: str, which: str, lines: Sequence[int], told: str) -> ToolError:
    more = len(lines) > _SHOWN_PLACES
    count = f"more than {_SHOWN_PLACES}" if more else f"{len(lines)}"
    listed = ", ".join(str(line) for line in lines[:_SHOWN_PLACES]) + (", ..." if more else "")
    return ToolError(
        f"{which}: the passage stands {count} times in {path!r}{told}, at lines {listed}. Give more "
        "of the text "
        "around the one you mean, or set replace_all. Nothing was changed."
    )


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """Where something like the passage's first line stands."""
    first = next((line.strip() for line in wanted if line.strip()), "")
    if not first:
        return ""
    same = [number for number, line in enumerate(lines, 1) if first in line]
    if not same and len(lines) <= _MAX_LINES_COMPARED:
        stripped = [line.strip() for line in lines]
        near = difflib.get_close_matches(first, stripped, n=3, cutoff=0.6)
        same = sorted({stripped.index(one) + 1 for one in near})
    if not same:
        return "Read the file again, and give old exactly as it stands there."
    listed = ", ".join(map(str, same[:_SHOWN_PLACES]))
    return f"Something like its first line stands at line {listed}; read that part, and give old exactly."


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")


class Edit(BaseModel):
    """One replacement."""

    model_config = ConfigDict(extra="forbid")

    old: Annotated[
        str,
        Field(
            description="The passage to replace, exactly as it stands in the file, with enough "
            "around it to be "
            "the only one.",
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
    texts = tuple(str(one.get("old", "")) for one in edits if isinstance(one, Mapping))
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
)
def edit(
    path: Annotated[
        str,
        Field(
            description="The text file, relative to the workspace, such as 'src/app.py'. It must "
            "exist, and it "
            "must have been read in this session.",
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
    nothing is changed, and the line numbers are told. Line endings, byte order mark and mode are kept. Read
    the file first with the tool file; for a new file, or one that changes all over, write it instead.
    """
    workspace = Workspace(context.workspace_path)
    with for_the_model(workspace, path):
        data = workspace.read_bytes(path, max_bytes=MAX_FILE_BYTES)
        if b"\0" in data:
            raise ToolError(f"{shown(path)!r} is a binary file. Change it with python.")
        text = Text.of(data)
        wanted = [Replacement(one.old, one.new, one.replace_all) for one in edits]
        body, count = apply_edits(shown(path), text.body, wanted)
        try:
            changed = text.data(body)
        except UnicodeEncodeError:
            raise ToolError("new holds half a surrogate pair, which UTF-8 cannot store.") from None
        if len(changed) > MAX_FILE_BYTES:
            raise ToolError(
                f"The file would have {len(changed):,} bytes; at most {MAX_FILE_BYTES:,} are written."
            )
        written = workspace.write_bytes(path, changed)
    name = printable(written.path)
    diff = unified(text.body, body, f"a/{name}", f"b/{name}")
    added, removed = counts(diff)
    value = {
        "success": True,
        "path": shown(written.path),
        "replacements": count,
        "added": added,
        "removed": removed,
        "diff": diff.encode("utf-8", "backslashreplace").decode(),
    }
    passages = "1 passage" if count == 1 else f"{count:,} passages"
    return ToolResult.json(
        value, f"Replaced {passages} in {name} (+{added} -{removed} lines).\n{value['diff']}"
    )
