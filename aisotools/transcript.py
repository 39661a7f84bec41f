"""A session as a notebook: prompts, one cell per call with its outputs, what the model said; and back.

The door to nbformat. The notebook reads well where nobody runs anything, runs by itself with Run All, and
carries in its metadata what `aisotools replay` needs to make the same calls again without the model.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from aisotools.contracts import Tool
from aisotools.events import Json, ToolResult
from aisotools.exceptions import UsageError
from aisotools.messages import TextPart
from aisotools.redact import redact_text
from aisotools.registry import ToolRegistry
from aisotools.session_events import SessionEvent
from aisotools.transcript_entries import Answered, Called, Ended, Entry, Noted, Prompted, Started, entries_of
from aisotools.transcript_record import Cleaner, record_of

Render = Callable[[ToolResult, str], Mapping[str, Any]]
"""The MIME bundle that is stored of a tool's result."""


def plain_bundle(result: ToolResult, tool_name: str) -> dict[str, Any]:
    """What is stored of a result where nothing better renders it: its text."""
    return {"text/plain": f"output of {tool_name}\n{result.content}"}


# ---- from events to a notebook


def to_notebook(
    events: Iterable[SessionEvent],
    *,
    registry: ToolRegistry,
    workspace: str | os.PathLike[str] | None = None,
    files: Mapping[str, str] | None = None,
    render: Render = plain_bundle,
    title: str = "A run of aisotools",
) -> NotebookNode:
    """The notebook of a session; secrets are left out, and the workspace's path.

    Args:
        events: What happened.
        registry: The tools that were called.
        workspace: The folder that tools changed; named `/workspace` in the notebook.
        files: Texts that lay in the workspace at the start, by path; the notebook writes them first.
        render: What is stored of a result.
        title: Its heading.

    Returns:
        A valid notebook of format 4.5.
    """
    writer = _Writer(registry, str(workspace) if workspace else "", render)
    entries = entries_of(events)
    cells = [*writer.beginning(title, entries, files or {})]
    for entry in entries:
        cells += writer.cells(entry)
    notebook: NotebookNode = new_notebook(cells=[*cells, *writer.ending(entries)])
    notebook.metadata.update(
        kernelspec={"name": "python3", "display_name": "Python 3", "language": "python"},
        language_info={"name": "python"},
        aisotools=record_of(entries, files or {}, writer.cleaner),
    )
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
        self, title: str, entries: Sequence[Entry], files: Mapping[str, str]
    ) -> Iterable[NotebookNode]:
        calls = [entry for entry in entries if isinstance(entry, Called)]
        models = list(dict.fromkeys(entry.model for entry in entries if isinstance(entry, Started)))
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime())
        said = f"{len(calls)} calls" + (f" by {', '.join(models)}" if models else "")
        yield new_markdown_cell(
            f"# {_defanged(title)}\n\n{made} · {_defanged(said)}. Run All makes the calls again, without any "
            "model; `aisotools replay` does so too and tells what came out differently."
        )
        yield self._code("%load_ext aisotools", {"role": "setup"})
        sources = self._sources(calls)
        if sources:
            yield new_markdown_cell("## The tools of this run")
            yield self._code(sources, {"role": "tools"})
        if files:
            yield new_markdown_cell("## Files at the start")
            for path, text in files.items():
                arguments = {"operation": "write", "path": path, "content": text}
                yield self._code(call_line("file", self._clean(arguments)), {"role": "file"})

    def _sources(self, calls: Iterable[Called]) -> str:
        """The functions that tools were made of in a notebook or script, as code that registers them."""
        found = []
        for name in dict.fromkeys(call.name for call in calls):
            source = _source(self._registry.get(name))
            if source:
                found.append(source)
        if not found:
            return ""
        head = "from aisotools import Effect, ToolContext, ToolResult, current_session, tool"
        names = [re.search(r"def\s+(\w+)", source) for source in found]
        added = "\n".join(
            f"current_session().registry.register({match[1]});" for match in names if match is not None
        )
        return redact_text("\n\n".join([head, *found, added]))

    def cells(self, entry: Entry) -> list[NotebookNode]:
        match entry:
            case Prompted():
                text = self._clean(entry.message.text)
                quoted = "\n".join(f"> {line}" for line in _defanged(text).splitlines())
                return [
                    new_markdown_cell(f"## Prompt\n\n{quoted}", metadata=_about("prompt", entry.agent_id))
                ]
            case Answered():
                return self._answer(entry)
            case Called():
                return self._call(entry)
            case Ended(outcome=outcome) if outcome != "answered":
                told = f"The run ended: {outcome}" + (f", {entry.reason}" if entry.reason else "")
                return [new_markdown_cell(f"*{_defanged(self._clean(told))}*")]
            case Noted():
                return [new_markdown_cell(f"*{_defanged(self._clean(entry.text))}*")]
        return []

    def _answer(self, entry: Answered) -> list[NotebookNode]:
        texts = [part.text for part in entry.message.parts if isinstance(part, TextPart)]
        said = self._clean("".join(texts)).strip()
        if not said:
            return []
        about = _about("answer", entry.agent_id)
        return [new_markdown_cell(_defanged(said), metadata=about)]

    def _call(self, entry: Called) -> list[NotebookNode]:
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
        line = call_line(entry.name, arguments)
        said = self._comment(entry)
        if not entry.ran:
            told = "" if entry.result is None else self._clean(entry.result.content)
            shown = _fenced(f"{said}\n{line}\n\n{told}")
            return [new_markdown_cell(f"A call that was not run:\n\n{shown}", metadata=about)]
        if entry.inside:  # whoever runs the outer call makes this one again
            return [new_markdown_cell(f"↳ `{entry.name}` was called by the call above.", metadata=about)]
        cell = self._code(f"{said}\n{line}", about["aisotools"])
        if entry.result is not None:
            data = self._bundle(entry.result, entry.name)
            cell.outputs = [new_output("execute_result", data=data, execution_count=cell.execution_count)]
        return [cell]

    def _comment(self, entry: Called) -> str:
        effect = str(entry.effect or "unknown effect").replace("_", " ")
        approval = entry.approval
        if approval is None:
            decided = f"{entry.decision or 'refused'} by {entry.decided_by or 'the gate'}"
        else:
            edited = " with edited arguments" if approval.arguments is not None else ""
            reason = f" ({approval.reason})" if approval.reason else ""
            decided = f"asked: {approval.outcome}{edited}{reason}"
        who = f"by {entry.origin}" + (f" {entry.agent_id}" if entry.agent_id else "")
        return f"# {' '.join(str(self._clean(f'{who} · {effect} · {decided}')).split())}"

    def _bundle(self, result: ToolResult, name: str) -> dict[str, Any]:
        bundle = dict(self._render(result, name))
        return {
            mime: self._clean(data) if mime.startswith("text/") else data for mime, data in bundle.items()
        }

    def _code(self, source: str, about: Mapping[str, Any]) -> NotebookNode:
        self._count += 1
        cell: NotebookNode = new_code_cell(
            source, execution_count=self._count, metadata={"aisotools": dict(about)}
        )
        return cell

    def ending(self, entries: Sequence[Entry]) -> Iterable[NotebookNode]:
        ends = [entry for entry in entries if isinstance(entry, Ended)]
        if ends:
            usage = ends[0].usage
            for end in ends[1:]:
                usage += end.usage
            yield new_markdown_cell(
                f"*{usage.requests} answers, {usage.input_tokens:,} tokens read, "
                f"{usage.output_tokens:,} written.*"
            )


def _about(role: str, agent_id: str) -> dict[str, Any]:
    return {"aisotools": {"role": role, **({"agent_id": agent_id} if agent_id else {})}}


def call_line(name: str, arguments: Mapping[str, Json]) -> str:
    """What somebody would type to make the call."""
    if not arguments:
        return f"%call {name}"
    text = json.dumps(arguments, ensure_ascii=False)
    if not text.isprintable():
        text = json.dumps(arguments)
    return f"%call {name} --json {shlex.quote(text)}"


_TAGS = re.compile(r"<(?=[A-Za-z/!?])")
_IMAGES = re.compile(r"!\[")
_LINKS = re.compile(r"\]\((?!https?://|mailto:|#)")
_REFERENCES = re.compile(r"^(\s*)\[([^\]]+)\]:", re.MULTILINE)


def _fenced(text: str) -> str:
    """A block of code that nothing in it can end."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _defanged(text: str) -> str:
    """Markdown of a stranger that can neither act on a page nor fetch anything; read, it says the same."""
    text = _TAGS.sub(r"\\<", text)
    text = _IMAGES.sub(r"!\\[", text)
    text = _LINKS.sub(r"]\\(", text)
    return _REFERENCES.sub(r"\1\\[\2]:", text)


def _source(tool: Tool | None) -> str:
    """The source of the function behind a tool, with its decorator; empty for what has none to give."""
    function = getattr(tool, "function", None)
    if function is None or getattr(tool, "source", "") == "built-in":
        return ""
    try:
        return textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError):
        return ""


# ---- the file


def write_notebook(notebook: NotebookNode, path: str | os.PathLike[str]) -> Path:
    """Write a notebook, whole or not at all.

    Raises:
        UsageError: If it cannot be written.
    """
    target = Path(path).expanduser()
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(nbformat.writes(notebook))
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except OSError as error:
        raise UsageError(f"The notebook {str(target)!r} cannot be written: {error.strerror}.") from error
    return target
