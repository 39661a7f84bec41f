"""`%trace export FILE`: write the session as a notebook, or as one self-contained HTML page.

The page runs no script and fetches nothing, whatever the tools returned. nbconvert cannot promise that: its
templates load scripts from a CDN, none of them has a content security policy, and even with `sanitize_html`
it keeps images of other servers and drops the sandboxed frames of results.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from aisotools.agent.transcript.attachments import StartFiles, start_files
from aisotools.agent.transcript.entries import (
    AnswerEntry,
    CallEntry,
    PromptEntry,
    RunEndEntry,
    RunStartEntry,
    TranscriptEntry,
    decided,
    effect_words,
    entries_of,
    remark,
)
from aisotools.agent.transcript.metadata import Cleaner
from aisotools.agent.transcript.notebook import Render, to_notebook, write_notebook, write_whole
from aisotools.core.events import CallRequested, SessionEvent
from aisotools.core.exceptions import UsageError, WorkspaceError
from aisotools.core.messages import TextPart, ThinkingPart, Usage
from aisotools.core.redaction import remembering
from aisotools.core.types import Decision, Effect, ToolResult
from aisotools.notebook.render import html
from aisotools.notebook.render.results import render_result
from aisotools.notebook.render.text import KEEP, one_line, readable, seconds, shorten
from aisotools.policy.prompts import visible
from aisotools.session.session import Session

_MAX_TEXT_CHARS = 60_000
_MAX_ARGUMENT_CHARS = 20_000
# Longer arguments are folded.
_MAX_UNFOLDED_LINES = 6
_MAX_UNFOLDED_CHARS = 600

_EMPTY = '<p class="remark">Nothing happened.</p>'

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
"""The page's content security policy: a second barrier, should markup get past the sanitizer."""

_STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--ink:#1c2128;--soft:#59636e;--line:#d8dee4;
--brand:#0b62c4;--prompt:#e8f1fd;--ok:#2e7d32;--warn:#b35900;--info:#0277bd;--bad:#c62828;
--jp-error-color1:var(--bad);--jp-success-color1:var(--ok);--jp-warn-color1:var(--warn);
--jp-info-color1:var(--info);--jp-brand-color1:var(--brand);
--jp-code-font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
@media(prefers-color-scheme:dark){:root{--page:#0f1319;--card:#171c24;--ink:#dfe5ec;--soft:#98a3b0;
--line:#2b333e;--brand:#6cb0ff;--prompt:#16263b;--ok:#66bb6a;--warn:#ffa64d;--info:#4fc3f7;--bad:#ff7b72}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 system-ui,"Segoe UI",Roboto,sans-serif}
main,header,footer{max-width:58rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.2rem}h1{font-size:1.6rem;line-height:1.25;margin:0;overflow-wrap:anywhere}
header p,footer p{color:var(--soft);margin:.35rem 0 1.4rem;font-size:.9rem}
footer{padding-bottom:2.5rem}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;margin:.7rem 0;overflow:hidden}
section.prompt{background:var(--prompt);border-color:transparent;margin-top:1.6rem;padding:.7rem 1rem}
section.answer{padding:.7rem 1rem}
.who{color:var(--soft);font-size:.8rem;margin:0 0 .3rem}
.prose{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
.prose pre,.args{font:.85rem/1.5 var(--jp-code-font-family);background:var(--page);border-radius:6px;
padding:.55rem .75rem;margin:.45rem 0;white-space:pre-wrap;overflow-wrap:anywhere;
max-height:32rem;overflow:auto}
code{font-family:var(--jp-code-font-family);font-size:.9em}
.head{display:flex;flex-wrap:wrap;gap:.25rem .6rem;align-items:baseline;padding:.55rem 1rem;margin:0}
.mark{font-weight:700}.ok .mark{color:var(--ok)}.error .mark,.denied .mark{color:var(--bad)}
.name{font-weight:600;font-family:var(--jp-code-font-family)}
.effect{font-size:.75rem;border:1px solid;border-radius:99px;padding:0 .5rem}
.why{color:var(--soft);font-size:.8rem;flex:1 1 14rem;overflow-wrap:anywhere}
.took{color:var(--soft);font-size:.8rem;margin-left:auto}
.body{padding:0 1rem .6rem}
section.denied{border-style:dashed}
details>summary{cursor:pointer;color:var(--soft);font-size:.85rem}
.inner{margin-left:1.6rem}
.remark{color:var(--soft);font-style:italic;font-size:.9rem;margin:.7rem .2rem;overflow-wrap:anywhere}
img{max-width:100%;height:auto}
@media print{body{background:#fff}section{break-inside:avoid}}
"""

_EFFECT_COLOURS = {
    Effect.READ_ONLY: "--ok",
    Effect.REMOTE_ACTION: "--info",
    Effect.LOCAL_MUTATION: "--warn",
    Effect.DESTRUCTIVE: "--bad",
}


def session_page(
    events: Iterable[SessionEvent],
    *,
    cleaner: Cleaner,
    render: Render,
    title: str,
    missing: Sequence[str] = (),
) -> str:
    """Return the HTML page of a session, without secrets and without the workspace's path.

    Args:
        events: The session's events; untrusted.
        cleaner: Removes what must not be shared.
        render: Makes results safe to show.
        title: Heading.
        missing: Sentences about what the page lacks.
    """
    entries = entries_of(events)
    page = _Page(
        cleaner,
        render,
        {entry.agent_id for entry in entries if isinstance(entry, RunStartEntry) and entry.parent_id},
    )
    sections = "".join(page.section(entry) for entry in entries)
    heading = escape(one_line(cleaner.clean(title), 200))
    notes = "".join(f'<p class="remark">{page.text(one)}</p>' for one in missing)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{heading}</title><style>{_STYLE}</style></head>\n"
        f"<body><header><h1>{heading}</h1><p>{escape(_summary(entries))}</p></header>\n"
        f"<main>{notes}{sections or _EMPTY}</main>\n"
        f"<footer><p>{escape(_usage(entries))}</p></footer></body></html>\n"
    )


def _summary(entries: Sequence[TranscriptEntry]) -> str:
    calls = sum(isinstance(entry, CallEntry) for entry in entries)
    models = list(
        dict.fromkeys(one_line(entry.model) for entry in entries if isinstance(entry, RunStartEntry))
    )
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime())
    return " · ".join([date, f"{calls} call{'' if calls == 1 else 's'}", *models])


def _usage(entries: Sequence[TranscriptEntry]) -> str:
    ends = [entry for entry in entries if isinstance(entry, RunEndEntry)]
    usage = sum((end.usage for end in ends), Usage(requests=0))
    if not usage.requests:
        return ""
    return f"{usage.requests} answers · {usage.input_tokens:,} tokens read, {usage.output_tokens:,} written"


class _Page:
    """Renders the entries of one page."""

    def __init__(self, cleaner: Cleaner, render: Render, children: set[str]) -> None:
        self._cleaner, self._render, self._children = cleaner, render, children

    def text(self, text: str) -> str:
        """Return untrusted text as inert HTML."""
        return escape(visible(readable(shorten(self._cleaner.clean(text), _MAX_TEXT_CHARS)), KEEP))

    def section(self, entry: TranscriptEntry) -> str:
        match entry:
            case PromptEntry():
                return self._section(
                    "prompt", entry.agent_id, '<p class="who">Prompt</p>', self._prose(entry.message.text)
                )
            case AnswerEntry():
                return self._answer(entry)
            case CallEntry():
                return self._call(entry)
        text = remark(entry)
        return f'<p class="remark">{self.text(text)}</p>\n' if text else ""

    def _section(self, kind: str, agent_id: str, *parts: str) -> str:
        inner = " inner" if agent_id in self._children else ""
        return f'<section class="{kind}{inner}">{"".join(parts)}</section>\n'

    def _prose(self, text: str) -> str:
        return f'<div class="prose">{_light_markdown(self.text(text))}</div>'

    def _answer(self, entry: AnswerEntry) -> str:
        parts = entry.message.parts
        text = "".join(part.text for part in parts if isinstance(part, TextPart)).strip()
        thoughts = "".join(part.text for part in parts if isinstance(part, ThinkingPart)).strip()
        if not text and not thoughts:
            return ""
        usage = f" · {entry.usage.tokens:,} tokens" if entry.usage.tokens else ""
        who = f"{one_line(entry.message.model or 'model')} · step {entry.step}{usage}"
        thinking = html.details("thoughts", self._prose(thoughts)) if thoughts else ""
        answer = self._prose(text) if text else ""
        return self._section("answer", entry.agent_id, f'<p class="who">{escape(who)}</p>', thinking, answer)

    def _call(self, entry: CallEntry) -> str:
        denied = entry.decision is not Decision.ALLOW or not entry.was_run
        failed = entry.result is None or entry.result.is_error
        kind, mark = ("denied", "✕") if denied else ("error", "✕") if failed else ("ok", "✓")
        effect = ""
        if entry.effect is not None:
            colour, words = _EFFECT_COLOURS[entry.effect], effect_words(entry)
            effect = f'<span class="effect" style="color:var({colour})">{words}</span>'
        where = "on the HOST · " if entry.runs_in == "host" else ""
        head = (
            f'<p class="head"><span class="mark">{mark}</span>'
            f'<span class="name">{self.text(one_line(entry.name))}</span>{effect}'
            f'<span class="why">{where}{self.text(decided(entry))}</span>'
            f'<span class="took">{seconds(entry.duration_s) if entry.was_run else "not run"}</span></p>'
        )
        inside = " inner" if entry.inside else ""
        body = f'<div class="body">{self._arguments(entry)}{self._result(entry)}</div>'
        return self._section(f"call {kind}{inside}", entry.agent_id, head, body)

    def _arguments(self, entry: CallEntry) -> str:
        if not entry.arguments:
            return ""
        arguments = self._cleaner.arguments(entry.name, entry.arguments)
        lines = []
        for name, value in arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
            lines.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
        text = self._cleaner.clean("\n".join(lines))
        shown = shorten(visible(readable(text), KEEP), _MAX_ARGUMENT_CHARS)
        block = f'<pre class="args">{escape(shown)}</pre>'
        return (
            block
            if shown.count("\n") < _MAX_UNFOLDED_LINES and len(shown) < _MAX_UNFOLDED_CHARS
            else html.details("arguments", block)
        )

    def _result(self, entry: CallEntry) -> str:
        if entry.result is None:
            return '<p class="remark">Its result is not known.</p>'
        name = self._cleaner.clean(entry.name)
        return str(self._render(self._cleaner.result(entry.result), name)["text/html"])


_FENCE = re.compile(r"^```[^\n`]*\n(.*?)(?:\n```[ \t]*(?:\n|$)|\Z)", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")


def _light_markdown(escaped: str) -> str:
    """Render code and bold of Markdown in escaped text; everything else stays as written."""
    parts = _FENCE.split(escaped)
    for number, part in enumerate(parts):
        if number % 2:
            parts[number] = f"<pre>{part}</pre>"
        else:
            parts[number] = _BOLD.sub(r"<strong>\1</strong>", _CODE.sub(r"<code>\1</code>", part)).strip("\n")
    return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """The outcome of an export.

    Attributes:
        path: The written file.
        calls: Number of calls in it.
        embedded: Number of workspace files in it.
        missing: Sentences about what it lacks.
    """

    path: Path
    calls: int
    embedded: int = 0
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        line = f"{self.path}: {self.calls} call{'' if self.calls == 1 else 's'}"
        if self.embedded:
            line += f", and {self.embedded} file{'' if self.embedded == 1 else 's'} of the workspace"
        return "\n".join([line + ".", *(f"Not in it: {one}" for one in self.missing)])


def export_session(session: Session, path: str | Path, *, title: str = "") -> ExportSummary:
    """Write the session so far to a file.

    Args:
        session: The session; open or closed.
        path: Ends with `.ipynb` for a notebook that repeats the calls, with `.html` for a page.
        title: Heading; by default the file's name.

    Raises:
        UsageError: If the suffix is another one, or the file cannot be written.
    """
    # The same texts are in the calls, in what the model was sent and in what is shown.
    with remembering({}):
        return _write(session, Path(path).expanduser(), title)


def _write(session: Session, target: Path, title: str) -> ExportSummary:
    title = title or target.stem
    calls = sum(isinstance(event, CallRequested) for event in session.events)
    cleaner = Cleaner(session.registry, str(session.workspace or ""))
    render = _make_renderer(session, cleaner)
    if target.suffix == ".html":
        page = session_page(session.events, cleaner=cleaner, render=render, title=title)
        return ExportSummary(path=write_whole(target, page), calls=calls)
    if target.suffix != ".ipynb":
        raise UsageError(
            f"{str(target)!r}: the name must end with .ipynb for a notebook, or .html for a page."
        )
    try:
        files = start_files(session)
    except (WorkspaceError, OSError) as error:
        files = StartFiles(texts={}, missing=(f"the files of the workspace: {error}",))
    notebook = to_notebook(
        session.events,
        registry=session.registry,
        workspace=session.workspace,
        files=files.texts,
        missing=files.missing,
        render=render,
        title=title,
    )
    write_notebook(notebook, target)
    return ExportSummary(path=target, calls=calls, embedded=len(files.texts), missing=files.missing)


def _make_renderer(session: Session, cleaner: Cleaner) -> Render:
    """Render results as `%call` does, with the complete text of cut ones while it is stored."""

    def render(result: ToolResult, tool_name: str) -> Mapping[str, Any]:
        ref = result.truncation.ref if result.truncation is not None else None
        stored = session.results.get(ref) if ref is not None else None
        if stored is not None and stored.call_id != result.metadata.get("call_id"):
            stored = None
        return render_result(result, tool_name, None if stored is None else cleaner.clean(stored.text))

    return render
