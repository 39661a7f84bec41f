"""The tools `file`, `sandbox_read` and `sandbox_write`. They run in the confined worker."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from aisotools.builtin import file_operations as operations
from aisotools.builtin.file_operations import translate_errors
from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.tools.adapter import register_builtin
from aisotools.tools.function import tool
from aisotools.workspace.workspace import Workspace

_READS = frozenset({"read", "search", "list", "metadata"})
_WRITES = frozenset({"write", "append"})


def workspace_of(context: ToolContext) -> Workspace:
    """Return the workspace of a call, in which nothing is read that a rule of the policy denies."""
    return Workspace(context.workspace_path, context.sandbox_config.get("unreadable", ()))


# ---- facts for the policy


def classify_operation(arguments: Mapping[str, Json]) -> Effect:
    """Return the effect of a call of `file`. An unknown operation counts as a mutation."""
    operation = arguments.get("operation")
    if isinstance(operation, str) and operation in _READS:
        return Effect.READ_ONLY
    return Effect.DESTRUCTIVE if operation == "delete" else Effect.LOCAL_MUTATION


def extract_undo_path(arguments: Mapping[str, Json]) -> Path | None:
    """Return the one path that a call of `file` changes; None for reads, and for a move: it changes two."""
    operation = arguments.get("operation")
    if operation == "copy":
        return written_path({"path": arguments.get("destination")})
    is_change = isinstance(operation, str) and operation in {*_WRITES, "delete"}
    return written_path(arguments) if is_change else None


def written_path(arguments: Mapping[str, Json]) -> Path | None:
    """Return the argument `path` as a path, or None if it is malformed."""
    path = arguments.get("path")
    return Path(path) if isinstance(path, str) and path and "\0" not in path else None


def gather_operation_facts(arguments: Mapping[str, Json]) -> Facts:
    """Return the facts of a call of `file`; it never writes outside the workspace."""
    facts = _facts(arguments, classify_operation(arguments))
    operation, path, destination = (arguments.get(name) for name in ("operation", "path", "destination"))
    if not (isinstance(path, str) and isinstance(destination, str) and operation in ("move", "copy")):
        return facts
    # If the destination is a folder when the call runs, the second is written. Name both.
    targets = (destination, f"{destination.rstrip('/')}/{path.rstrip('/').rpartition('/')[2]}")
    if operation == "copy":
        return dataclasses.replace(facts, reads=(path,), writes=targets)
    return dataclasses.replace(facts, reads=(path,), writes=(path, *targets))


def _facts(arguments: Mapping[str, Json], effect: Effect) -> Facts:
    path = arguments.get("path", ".")
    paths = (path,) if isinstance(path, str) else ()
    if effect is Effect.READ_ONLY:
        return Facts(effect=effect, reads=paths, path_guarded=True)
    return Facts(effect=effect, writes=paths, certain=bool(paths), path_guarded=True)


# ---- parameter descriptions

_WHERE = (
    "relative to the workspace, such as 'data/iris.csv'. Nothing outside the workspace can be reached; "
    "'~' and '$HOME' have no special meaning."
)
_Operation = Annotated[
    Literal["read", "write", "append", "search", "list", "metadata", "delete", "move", "copy"],
    Field(description="What to do; decides which of the other arguments matter."),
]
_FilePath = Annotated[str, Field(description=f"The file, {_WHERE}", max_length=4096)]
_AnyPath = Annotated[
    str,
    Field(
        description=f"File or folder, {_WHERE} search and list take the whole workspace without it.",
        max_length=4096,
    ),
]
_Content = Annotated[
    str,
    Field(description="The complete content, stored exactly as given, as UTF-8; to 10 MiB."),
]
_NewContent = Annotated[
    str | None,
    Field(
        description="write: the complete new content, stored exactly as given, as UTF-8; to 10 MiB. append: "
        "what to add at the end."
    ),
]
_Pattern = Annotated[
    str | None,
    Field(
        description="search: what lines must contain; a Python regular expression, case-sensitive "
        "('(?i)' in front ignores case). Without it only file names are searched, by glob.",
        min_length=1,
        max_length=2000,
    ),
]
_Glob = Annotated[
    str | None,
    Field(
        description="search, list: which file names count, such as '*.py' (in any folder) or "
        "'src/**/*.{js,ts}' (relative to path).",
        min_length=1,
        max_length=500,
    ),
]
_Regex = Annotated[
    bool,
    Field(description="search: false takes the pattern literally, character by character."),
]
_ContextLines = Annotated[
    int,
    Field(description="search: lines to show before and after each match, 0 to 20.", ge=0, le=20),
]
_StartLine = Annotated[
    int | None,
    Field(description="read: first line to read, from 1; the beginning without it.", ge=1),
]
_EndLine = Annotated[
    int | None,
    Field(description="read: last line to read, included; the end without it.", ge=1),
]
_Destination = Annotated[
    str | None,
    Field(
        description="move, copy: the new path, relative to the workspace, or a folder to put it into. "
        "What is there already is not replaced.",
        min_length=1,
        max_length=4096,
    ),
]
_Recursive = Annotated[
    bool,
    Field(description="delete: true deletes a folder with all it holds; false only an empty one."),
]
_IncludeIgnored = Annotated[
    bool,
    Field(description="search: true also searches what .gitignore leaves out, and the folder .git."),
]


# ---- the tools


@tool(
    name="file",
    examples=[
        ({"operation": "read", "path": "notes.txt"}, "What do my notes in notes.txt say?"),
        ({"operation": "read", "path": "data/plan.md"}, "Show me data/plan.md."),
        (
            {"operation": "read", "path": "log.txt", "start_line": 200, "end_line": 240},
            "Show lines 200 to 240 of the log.",
        ),
        (
            {"operation": "write", "path": "out/summary.md", "content": "# Summary\n"},
            "Start a summary file in the folder out.",
        ),
        (
            {"operation": "write", "path": "hello.txt", "content": "Hi there"},
            "Write 'Hi there' to the file hello.txt.",
        ),
        (
            {"operation": "search", "pattern": "def main", "glob": "*.py", "context_lines": 2},
            "Where is main defined?",
        ),
        ({"operation": "search", "pattern": "FIXME", "path": "lib"}, "Search for FIXME in lib."),
        ({"operation": "search", "pattern": "budget"}, "Which files mention the word budget?"),
        ({"operation": "search", "glob": "*.csv"}, "Which CSV files are there?"),
        ({"operation": "list", "path": "data"}, "What is in the folder data?"),
        ({"operation": "list"}, "List all files."),
        ({"operation": "metadata", "path": "data/iris.csv"}, "How big is the file data/iris.csv?"),
        ({"operation": "metadata", "path": "plan.md"}, "When was plan.md modified?"),
        (
            {"operation": "append", "path": "notes.txt", "content": "buy milk\n"},
            "Add 'buy milk' to my notes.",
        ),
        ({"operation": "delete", "path": "draft-2.txt"}, "Delete the file draft-2.txt."),
        (
            {"operation": "delete", "path": "tmp", "recursive": True},
            "Delete the folder tmp with everything in it.",
        ),
        (
            {"operation": "move", "path": "draft.md", "destination": "reports/final.md"},
            "Rename draft.md to reports/final.md.",
        ),
        ({"operation": "move", "path": "img.png", "destination": "images"}, "Move img.png into images."),
        (
            {"operation": "copy", "path": "config.toml", "destination": "backup/"},
            "Copy config.toml to the folder backup/.",
        ),
    ],
    classify=classify_operation,
    extract_undo_path=extract_undo_path,
    gather_facts=gather_operation_facts,
    import_path="aisotools.builtin.files:file",
    programs="none",
)
def file(
    *,
    operation: _Operation,
    path: _AnyPath = ".",
    content: _NewContent = None,
    pattern: _Pattern = None,
    glob: _Glob = None,
    regex: _Regex = True,
    context_lines: _ContextLines = 0,
    start_line: _StartLine = None,
    end_line: _EndLine = None,
    destination: _Destination = None,
    recursive: _Recursive = False,
    include_ignored: _IncludeIgnored = False,
    context: ToolContext,
) -> ToolResult:
    """Read, write, search, list, delete, move and copy files in the workspace.

    read gives the text of a file, whole or a range of lines (binary files: use sandbox_read). write replaces
    a file or makes it, missing folders too, at once; append adds at the end; an existing file keeps its mode,
    and modes cannot be changed. To change parts of a file use edit. search finds lines by pattern in the
    files that match glob, or file names by glob alone; binary files, and what .gitignore leaves out, are
    skipped. list gives name, kind, size, mode and time of everything in one folder, metadata the same for one
    path. delete removes a file or an empty folder, move renames, copy duplicates; these two never replace
    anything. Files to 10 MiB; what had to be left out is said in the result.
    """
    workspace = workspace_of(context)
    with translate_errors(workspace, path):
        match operation:
            case "read":
                return operations.read_lines(workspace, path, start=start_line, end=end_line)
            case "write" | "append":
                if content is None:
                    raise ToolError(f"operation {operation!r} needs content. Give '' for an empty file.")
                change = operations.write if operation == "write" else operations.append
                return change(workspace, path, content)
            case "delete":
                return operations.delete(workspace, path, recursive=recursive)
            case "move":
                return operations.move(workspace, path, destination)
            case "copy":
                return operations.copy(workspace, path, destination, context)
            case "search":
                return operations.search(
                    workspace,
                    path,
                    pattern=pattern,
                    glob=glob,
                    regex=regex,
                    context_lines=context_lines,
                    include_ignored=include_ignored,
                    emit=context.emit,
                )
            case "list":
                return operations.list_files(workspace, path, glob=glob)
            case "metadata":
                return operations.metadata(workspace, path)


@tool(
    name="sandbox_read",
    effect=Effect.READ_ONLY,
    examples=[
        ({"path": "plot.png"}, "Load the plot plot.png from the sandbox."),
        ({"path": "data.bin"}, "Get the whole of data.bin out of the sandbox."),
    ],
    gather_facts=functools.partial(_facts, effect=Effect.READ_ONLY),
    import_path="aisotools.builtin.files:sandbox_read",
    programs="none",
)
def sandbox_read(
    path: _FilePath,
    context: ToolContext,
) -> ToolResult:
    """Read one whole file from the sandbox's workspace, byte for byte.

    Gives content, size in bytes and path. A file that is not UTF-8 text comes as binary data with its type.
    Files to 10 MiB. To read some lines of a text file, use the tool file.
    """
    workspace, caps = workspace_of(context), context.output_caps
    with translate_errors(workspace, path):
        return operations.read_whole(workspace, path, max_json_bytes=caps.value_bytes)


@tool(
    name="sandbox_write",
    effect=Effect.LOCAL_MUTATION,
    examples=[
        ({"path": "run.sh", "content": "echo hello\n"}, "Put a script run.sh into the sandbox."),
        ({"path": "state.txt", "content": "ok"}, "Write 'ok' to state.txt in the sandbox."),
    ],
    extract_undo_path=written_path,
    gather_facts=functools.partial(_facts, effect=Effect.LOCAL_MUTATION),
    import_path="aisotools.builtin.files:sandbox_write",
    programs="none",
)
def sandbox_write(
    path: _FilePath,
    content: _Content,
    context: ToolContext,
) -> ToolResult:
    """Write one file in the sandbox's workspace, replacing what was there.

    The content is stored byte for byte: nothing is interpreted, quoted or appended. Missing folders are made.
    The file is replaced at once, never seen half-written; an existing file keeps its mode.
    """
    workspace = workspace_of(context)
    with translate_errors(workspace, path):
        return operations.write(workspace, path, content)


register_builtin(file, sandbox_read, sandbox_write)
