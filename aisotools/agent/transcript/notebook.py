"""A session as a notebook: prompts, one cell per call with its outputs, what the model said; and back.

The door to nbformat. The notebook reads well where nobody runs anything, runs by itself with Run All, and
carries in its metadata what `aisotools replay` needs to make the same calls again without the model.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4.rwbase import split_lines
from pydantic_core import PydanticSerializationError, to_json

from aisotools.agent.transcript.attachments import has_source, is_built_in, sources_of
from aisotools.agent.transcript.entries import (
    AnswerEntry,
    CallEntry,
    PromptEntry,
    RunEndEntry,
    RunStartEntry,
    TranscriptEntry,
    UndoEntry,
    calls_moved,
    decided,
    effect_words,
    entries_of,
    remark,
)
from aisotools.agent.transcript.metadata import Cleaner, record_of
from aisotools.core.events import SessionEvent
from aisotools.core.exceptions import UsageError
from aisotools.core.messages import TextPart
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.tools.registry import ToolRegistry

_ASKS_A_PERSON = "ask_user"

Render = Callable[[ToolResult, str], Mapping[str, Any]]
"""The MIME bundle that is stored of a tool's result."""

_FRESH = """# A fresh folder, so that each run of this notebook begins with the same files.
import tempfile
from pathlib import Path

from aisotools import Session
from aisotools.notebook.current import use_session

files = {%s}
folder = tempfile.TemporaryDirectory()
for name, text in files.items():
    Path(folder.name, name).parent.mkdir(parents=True, exist_ok=True)
    Path(folder.name, name).write_bytes(text.encode())
session = use_session(Session(folder.name))"""

# What comes out otherwise each time: moments, durations, addresses, processes and background tasks.
_VARYING = re.compile(
    r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\b0x[0-9a-f]{6,}|\bprocess \d+|\btask t\d+"
    r"|\b\d+(?:\.\d+)? (?:ms|s|min)\b|\b[A-Z][a-z]{2} [ \d]\d \d\d:\d\d\b"
)
_IGNORE_OUTPUT = "nbval-ignore-output"
_SKIP = "nbval-skip"


def plain_bundle(result: ToolResult, tool_name: str) -> dict[str, Any]:
    """Return the plain rendering of a result: its text."""
    return {"text/plain": f"output of {tool_name}\n{result.content}"}


# ---- from events to a notebook


def to_notebook(
    events: Iterable[SessionEvent],
    *,
    registry: ToolRegistry,
    workspace: str | os.PathLike[str] | None = None,
    files: Mapping[str, str] | None = None,
    missing: Sequence[str] = (),
    render: Render = plain_bundle,
    title: str = "A run of aisotools",
) -> NotebookNode:
    """Return the notebook of a session, without secrets and the workspace's path.

    Args:
        events: What happened.
        registry: The tools that were called.
        workspace: The folder that tools changed; named `/workspace` in the notebook.
        files: Texts that lay in the workspace at the start, by path; the notebook writes them first.
        missing: What lay there besides, in words.
        render: What is stored of a result.
        title: Its heading.

    Returns:
        A valid notebook of format 4.5. Cells whose output is otherwise each time bear the tag
        `nbval-ignore-output`, and those that a person must answer `nbval-skip`.
    """
    writer = _Writer(registry, str(workspace) if workspace else "", render)
    entries = entries_of(events)
    cells = [*writer.beginning(title, entries, files or {}, missing)]
    for entry in entries:
        cells += writer.cells(entry)
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
        "aisotools": record_of(entries, files or {}, missing, writer.cleaner),
    }
    notebook: NotebookNode = nbformat.from_dict({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata})
    notebook.cells = [*cells, *writer.ending(entries)]
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"aiso-{number:04d}"
    nbformat.validate(notebook)
    return notebook


class _Writer:
    """Turns entries into cells, with what must not be shared left out."""

    def __init__(self, registry: ToolRegistry, workspace: str, render: Render) -> None:
        self._registry, self._render = registry, render
        self.cleaner = Cleaner(registry, workspace)
        self._clean, self._arguments = self.cleaner.clean, self.cleaner.arguments
        self._count = 0

    def beginning(
        self, title: str, entries: Sequence[TranscriptEntry], files: Mapping[str, str], missing: Sequence[str]
    ) -> Iterable[NotebookNode]:
        calls = [entry for entry in entries if isinstance(entry, CallEntry)]
        models = list(dict.fromkeys(entry.model for entry in entries if isinstance(entry, RunStartEntry)))
        date = time.strftime("%Y-%m-%d %H:%M", time.localtime())
        summary = f"{len(calls)} calls" + (f" by {', '.join(models)}" if models else "")
        yield _markdown(
            f"# {_defang(title)}\n\n{date} · {_defang(summary)}. Run All makes the calls again, without "
            "any model; `aisotools replay` does so too and tells what came out differently."
        )
        yield self._code("%load_ext aisotools", {"role": "setup"})
        written = "".join(f"\n    {path!r}: {self._clean(text)!r}," for path, text in files.items())
        yield self._code(_FRESH % (f"{written}\n" if written else ""), {"role": "files"})
        if missing:
            listed = "\n".join(f"- {_code_span(self._clean(one))}" for one in missing)
            yield _markdown(f"Not in this notebook, and not there when it runs:\n\n{listed}")
        tools = [self._registry.get(name) for name in dict.fromkeys(call.name for call in calls)]
        sources = sources_of(tool for tool in tools if tool is not None)
        if sources:
            yield _markdown("## The tools of this run")
            yield self._code(sources, {"role": "tools"})

    def cells(self, entry: TranscriptEntry) -> list[NotebookNode]:
        match entry:
            case PromptEntry():
                text = self._clean(entry.message.text)
                quoted = "\n".join(f"> {line}" for line in _defang(text).splitlines())
                about = _about("prompt", entry.agent_id)
                return [_markdown(f"## Prompt\n\n{quoted}", metadata=about)]
            case AnswerEntry():
                return self._answer(entry)
            case CallEntry():
                return self._call(entry)
            case UndoEntry():
                return self._make_undo_cells(entry)
        text = remark(entry)
        return [_markdown(f"*{_defang(self._clean(text))}*")] if text else []

    def _answer(self, entry: AnswerEntry) -> list[NotebookNode]:
        texts = [part.text for part in entry.message.parts if isinstance(part, TextPart)]
        text = self._clean("".join(texts)).strip()
        if not text:
            return []
        about = _about("answer", entry.agent_id)
        return [_markdown(_defang(text), metadata=about)]

    def _call(self, entry: CallEntry) -> list[NotebookNode]:
        arguments = self._arguments(entry.name, entry.arguments)
        about = _about("call", entry.agent_id)
        about["aisotools"] |= {
            "call_id": entry.call_id,
            "origin": entry.origin,
            "decision": None if entry.decision is None else str(entry.decision),
            "decided_by": entry.decided_by,
            "effect": None if entry.effect is None else str(entry.effect),
            "duration_s": round(entry.duration_s, 6),
        }
        line, header = (
            call_line(self._clean(entry.name), arguments),
            f"# {effect_words(entry)} · {self._clean(decided(entry))}",
        )
        content = "" if entry.result is None else self._clean(entry.result.content)
        if not entry.was_run:
            shown = _fence(f"{header}\n{line}\n\n{content}")
            return [_markdown(f"A call that was not run:\n\n{shown}", metadata=about)]
        if entry.inside:  # whoever runs the outer call makes this one again
            return [_markdown(f"↳ `{entry.name}` was called by the call above.", metadata=about)]
        tool = self._registry.get(entry.name)
        if not (is_built_in(tool) or has_source(tool)):
            shown = _fence(f"{header}\n{line}\n\n{content}")
            why = "A call of a tool whose code is not in this notebook"
            return [_markdown(f"{why}:\n\n{shown}", metadata=about)]
        cell = self._code(f"{header}\n{line}", about["aisotools"])
        if entry.result is not None:
            result = self.cleaner.result(entry.result)
            data = dict(self._render(result, entry.name))
            output = {"data": data, "metadata": {}, "execution_count": cell.execution_count}
            cell.outputs = [nbformat.from_dict({"output_type": "execute_result", **output})]
            self._tag(cell, entry, same=result is entry.result and arguments == entry.arguments)
        return [cell]

    def _tag(self, cell: NotebookNode, entry: CallEntry, *, same: bool) -> None:
        """Tell nbval what cannot come out the same, or not without somebody who answers."""
        asks = entry.runs_in == "host" and entry.effect is not Effect.READ_ONLY
        if asks or entry.name == _ASKS_A_PERSON:
            cell.metadata["tags"] = [_SKIP]
        elif not same or _VARYING.search(cell.outputs[0].data.get("text/plain", "")):
            cell.metadata["tags"] = [_IGNORE_OUTPUT]

    def _make_undo_cells(self, entry: UndoEntry) -> list[NotebookNode]:
        line = f"%{entry.direction} {max(entry.steps, 1)}"
        line += (" --files" if entry.files_only else "") + (" --force" if entry.forced else "")
        cell = self._code(
            f"# {calls_moved(entry)}\n{line}", {"role": entry.direction, "call_ids": list(entry.call_ids)}
        )
        cell.metadata["tags"] = [_IGNORE_OUTPUT]  # the output of that call was not recorded
        return [cell]

    def _code(self, source: str, about: Mapping[str, Any]) -> NotebookNode:
        self._count += 1
        fields = {"metadata": {"aisotools": dict(about)}, "source": source, "outputs": []}
        cell: NotebookNode = nbformat.from_dict(
            {"cell_type": "code", "execution_count": self._count, **fields}
        )
        return cell

    def ending(self, entries: Sequence[TranscriptEntry]) -> Iterable[NotebookNode]:
        ends = [entry for entry in entries if isinstance(entry, RunEndEntry)]
        if ends:
            usage = ends[0].usage
            for end in ends[1:]:
                usage += end.usage
            yield _markdown(
                f"*{usage.requests} answers, {usage.input_tokens:,} tokens read, "
                f"{usage.output_tokens:,} written.*"
            )


def _markdown(source: str, metadata: Mapping[str, Any] | None = None) -> NotebookNode:
    # nbformat's own makers would check each cell by itself; here all are checked together, once.
    cell: NotebookNode = nbformat.from_dict(
        {"cell_type": "markdown", "metadata": dict(metadata or {}), "source": source}
    )
    return cell


def _about(role: str, agent_id: str) -> dict[str, Any]:
    return {"aisotools": {"role": role, **({"agent_id": agent_id} if agent_id else {})}}


def call_line(name: str, arguments: Mapping[str, Json]) -> str:
    """Return the code that makes the call."""
    if not arguments:
        return f"%call {name}"
    text = json.dumps(arguments, ensure_ascii=False)
    if not text.isprintable():
        text = json.dumps(arguments)
    return f"%call {name} --json {shlex.quote(text)}"


_TAGS = re.compile(r"<(?=[A-Za-z/!?])")
_IMAGES = re.compile(r"!\[")
_LINKS = re.compile(r"\]\((?!https?://|mailto:|#)")
# Also in quotations and lists. A label holds no bracket but escaped ones, so no text is searched twice.
_REFERENCES = re.compile(
    r"((?:^|(?<=[\r\n]))[ \t>*+.)\d-]*+)\[([^\[\]\\]*+(?:\\.[^\[\]\\]*+)*)\]:", re.DOTALL
)


def _fence(text: str) -> str:
    """Return a block of code with a fence that nothing in the text can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _code_span(text: str) -> str:
    return f"`{' '.join(text.replace('`', chr(39)).split())}`"


def _defang(text: str) -> str:
    """Return Markdown that can neither act on a page nor fetch anything; read, it says the same."""
    text = _TAGS.sub(r"\\<", text)
    text = _IMAGES.sub(r"!\\[", text)
    text = _LINKS.sub(r"]\\(", text)
    return _REFERENCES.sub(r"\1\\[\2]:", text)


# ---- the file


def write_notebook(notebook: NotebookNode, path: str | os.PathLike[str]) -> Path:
    """Write a notebook, whole or not at all.

    Raises:
        UsageError: If it cannot be written.
    """
    try:  # the same layout as nbformat's, in a fraction of the time
        text = to_json(split_lines(copy.deepcopy(notebook)), indent=1).decode() + "\n"
    except (PydanticSerializationError, ValueError):  # half a surrogate pair somewhere
        text = nbformat.writes(notebook)
    return write_whole(path, text)


_SHORT_NAME = 40
"""Characters of a file's name in that of the file that replaces it: the longest name has no room for more."""


def write_whole(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file, whole or not at all.

    Raises:
        UsageError: If it cannot be written.
    """
    target = Path(path).expanduser()
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:_SHORT_NAME]}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        temporary.chmod(0o644)
        # Whole or not at all: after a crash, or for somebody who reads it now, there is the old file or the
        # new.
        temporary.replace(target)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise UsageError(f"The file {str(target)!r} cannot be written: {error.strerror}.") from error
    return target
