"""The tool `edit`: passages of one text file replaced, all or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from aisotools.builtin.diffs import counts, unified
from aisotools.builtin.edits import Replacement, Text, apply_edits
from aisotools.builtin.file_errors import for_the_model
from aisotools.builtin.file_operations import MAX_FILE_BYTES
from aisotools.builtin.files import written_path
from aisotools.contracts import ToolContext
from aisotools.events import Effect, Facts, Json, ToolResult
from aisotools.exceptions import ToolError
from aisotools.function_tool import tool
from aisotools.paths import printable, shown
from aisotools.readcache import Touch
from aisotools.workspace import Workspace


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


def _touches(arguments: Mapping[str, Json]) -> Sequence[Touch]:
    path, edits = arguments.get("path"), arguments.get("edits")
    if not isinstance(path, str) or not isinstance(edits, list):
        return ()
    texts = tuple(str(one.get("old", "")) for one in edits if isinstance(one, Mapping))
    return (Touch(path=path, texts=texts),)


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
    import_path="aisotools.builtin.edit_tool:edit",
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
