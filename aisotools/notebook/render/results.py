"""MIME bundles for tool results. Pure.

Everything a tool returns is untrusted, although Jupyter trusts the output of a running cell. It is made safe
type by type in `mime`, bounded, and put in a box that names the tool, so that it cannot pose as anything
else.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aisotools.core.concurrency import at_once
from aisotools.core.types import MimeBundle, ToolResult
from aisotools.notebook.render import html
from aisotools.notebook.render.html import weight
from aisotools.notebook.render.mime import MAX_HTML_CHARS, SafeOutput, make_safe, safe_steps
from aisotools.notebook.render.text import one_line, readable, seconds, shorten
from aisotools.sandbox.results import IN_READER
from aisotools.tools.results import TRACEBACK

_MAX_PARTS = 40
_MAX_IMAGES_CHARS = 12 << 20
_TITLE_ROOM = 2_000
_IN_READER_NOTE = "It ran without write rights; what it changed of the variables did not reach the worker."
_ERROR_WORDS = {
    "invalid": "not run: the call was wrong",
    "failed": "failed",
    "denied": "not run: it was not allowed",
    "environment": "failed: not the tool but what runs it",
}


def sanitize_bundle(bundle: MimeBundle) -> dict[str, Any]:
    """Return `sanitize_steps(bundle)`, at once."""
    return at_once(sanitize_steps(bundle))


def sanitize_steps(bundle: MimeBundle) -> Generator[None, None, dict[str, Any]]:
    """Return, in steps, the MIME bundle that may be shown instead of the untrusted `bundle`. Not in a box.

    Returns:
        Always `text/plain`; besides it at most one of `text/html`, `text/latex`, `image/png`, `image/jpeg`,
        `application/json`. Bounded, without ids, metadata or anything else that is not a MIME type.
    """
    shown = yield from safe_steps(bundle)
    clean = dict(shown.native)
    if "text/html" in clean and shown.notes:
        clean["text/html"] += "".join(map(html.note, shown.notes))
    clean["text/plain"] = "\n".join(filter(None, [shown.plain, *shown.notes]))
    return clean


def render_result(result: ToolResult, tool_name: str, whole: str | None = None) -> dict[str, Any]:
    """Return the MIME bundle of a result: `text/html` and `text/plain`, in a box named after the tool.

    A single image is included with its own type too, for clients without HTML. JSON is not: JupyterLab would
    prefer it to the HTML and show it outside of the box.

    Args:
        result: Untrusted.
        tool_name: Untrusted as well.
        whole: The complete text of a result whose content was cut, if it is still stored; untrusted as well.
    """
    parts = list(_safe_parts(result, whole))
    notes = _notes(result)
    name, outcome = one_line(tool_name), _outcome(result)
    body = "".join([*(part.html for part in parts), *map(html.note, notes)]) or html.note("No output.")
    title = f"output of {html.code(name)}" + (f" · <strong>{outcome}</strong>" if outcome else "")
    text = "\n".join(filter(None, [*(part.plain for part in parts), *notes]))
    lines = [
        f"output of {name}" + (f" - {outcome}" if outcome else ""),
        *shorten(text, MAX_HTML_CHARS).split("\n"),
    ]
    native = parts[0].native if len(parts) == 1 else {}
    return {
        **{mime: data for mime, data in native.items() if mime.startswith("image/")},
        "text/html": html.box(title, body, html.ERROR_COLOUR if result.is_error else html.LINE),
        "text/plain": "\n| ".join(lines),
    }


@dataclass(frozen=True, slots=True)
class _Part:
    """One output of a result, with a label of this package where it needs one."""

    bundle: MimeBundle
    label: str = ""


def _safe_parts(result: ToolResult, whole: str | None) -> Iterator[SafeOutput]:
    """Yield the parts made safe, as far as there is room."""
    room, image_room = MAX_HTML_CHARS - _TITLE_ROOM, _MAX_IMAGES_CHARS
    for number, part in enumerate(_parts(result, whole)):
        output = make_safe(part.bundle, max(room, 0))
        notes = "".join(map(html.note, output.notes))
        label = html.note(part.label) if part.label else ""
        markup = label + output.html + notes
        room -= weight(markup)
        image_room -= len(markup) - weight(markup)
        if room < 0 or image_room < 0 or number == _MAX_PARTS:
            note = f"Only the first {number} outputs are shown; there is more than fits here."
            yield SafeOutput(html=html.note(note), plain=note)
            return
        plain = "\n".join(filter(None, [part.label, output.plain, *output.notes]))
        yield SafeOutput(html=markup, plain=plain, native=output.native)


def _parts(result: ToolResult, whole: str | None) -> Iterator[_Part]:
    """Yield what a person should see of `result`, in order.

    The text for the model describes figures and tables only in words. So displays are shown instead of it
    where there are any, with the printed text before them.
    """
    displays = _displays(result)
    value = result.value if isinstance(result.value, Mapping) else {}
    # The output of a command has colours and its full length; the text for the model has neither.
    command = not displays and _whole_number(value.get("exitCode")) is not None and "stdout" in value
    printed = value if displays or command else result.metadata
    for stream in ("stdout", "stderr"):
        if isinstance(text := printed.get(stream), str) and text.strip():
            yield _Part({"text/plain": text}, "stderr" if stream == "stderr" else "")
    for bundle in displays:
        yield _Part(bundle)
    if command:
        last = result.content.rstrip().rpartition("\n")[2]
        # A line in brackets says why the command ended.
        if result.is_error and last.startswith("["):
            yield _Part({"text/plain": last})
    elif displays and result.is_error:
        error = value.get("error")
        traceback = error.get("traceback") if isinstance(error, Mapping) else None
        yield _Part({"text/plain": traceback if isinstance(traceback, str) else result.content})
    elif not displays and result.kind == "json" and result.content[:1] in {"{", "["}:
        yield _Part({"application/json": result.value, "text/plain": result.content})
    elif not displays:
        yield _Part({"text/plain": result.content if whole is None else whole})
    # The model does not get the traceback of a tool on the host; it is for the person.
    if isinstance(trace := result.metadata.get(TRACEBACK), str):
        yield _Part({"text/plain": trace}, "traceback, which the model does not get")


def _displays(result: ToolResult) -> list[MimeBundle]:
    displays = result.metadata.get("displays")
    if isinstance(displays, (list, tuple)) and displays:
        return [d if isinstance(d, Mapping) else {"text/plain": readable(repr(d)[:200])} for d in displays]
    return [result.data] if result.data else []


def _notes(result: ToolResult) -> list[str]:
    """Sentences about what is missing from the result itself."""
    notes = []
    cut = result.truncation
    if cut is not None:
        note = cut.note or f"{cut.shown_chars:,} of {cut.total_chars:,} characters are kept."
        notes.append(shorten(readable(note), 300))
    for name, noun in (("dropped_bytes", "bytes of printed output"), ("dropped_displays", "displays")):
        if isinstance(count := result.metadata.get(name), int) and count:
            notes.append(f"{count:,} more {noun} were dropped.")
    if result.metadata.get(IN_READER) is True:
        notes.append(_IN_READER_NOTE)
    return notes


def _outcome(result: ToolResult) -> str:
    """Error kind, exit code and duration of a call, as far as they are known and worth a line."""
    value = result.value if isinstance(result.value, Mapping) else {}
    words = [_ERROR_WORDS.get(result.error_kind or "failed", "failed")] if result.is_error else []
    code, duration_ms = _whole_number(value.get("exitCode")), _whole_number(value.get("executionTime"))
    if code is not None:
        words.append(f"exit code {code}")
        # Shorter durations are noise and would make every run of a notebook differ from the one before.
        if duration_ms is not None and duration_ms >= 1_000:
            words.append(seconds(duration_ms / 1000))
    return " \N{MIDDLE DOT} ".join(words)


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**12 else None
