"""One thing to show, given as several MIME types by a stranger: choose one that can be made safe.

Passed on after a check: PNG, JPEG, JSON, text. Made anew: HTML, SVG, LaTeX. Shown as source: Markdown,
JavaScript, anything unknown that is text. Refused: widgets, every `application/vnd...` (they fetch, or show
a real approval card under a false caption), PDF.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aisotools.events import Json, MimeBundle
from aisotools.notebook import frame
from aisotools.notebook.ansi import coloured_html
from aisotools.notebook.images import checked_image, svg_data_uri
from aisotools.notebook.json_tree import tree_html
from aisotools.notebook.latex import checked_latex
from aisotools.notebook.markup import clean_markup
from aisotools.notebook.text import one_line, readable, shorten, text_of
from aisotools.question import visible_json

MAX_HTML_CHARS = 64 << 10
"""Longest HTML that is kept in a notebook for one result, without images."""

_AT_ONCE_CHARS = 8_000
_MAX_JSON_DEPTH = 40
_MAX_NOTES = 5
_OWN_WORDS = {"application/json", "text/markdown", "text/plain"}
_REFUSED = ("application/vnd.", "application/pdf", "application/x-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One thing made safe to show.

    Attributes:
        html: For a page; not in a box.
        plain: For a terminal.
        native: By MIME type, what a front end may be given as it is; never empty.
        notes: What was left out, in words.
    """

    html: str
    plain: str
    native: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def show_bundle(bundle: MimeBundle, room: int = MAX_HTML_CHARS) -> Shown:
    """The best of `bundle` that can be made safe, in about `room` characters without images."""
    data = {_mime_name(name): value for name, value in bundle.items()}
    shown, chosen, notes = None, "", []
    for mime, show in _SHOW.items():
        if mime in data and shown is None:
            try:
                shown, chosen = show(data[mime], room), mime
            except ValueError as error:
                notes.append(f"{mime} is not shown: {error}.")
    for mime in data.keys() - _SHOW.keys():
        if shown is None and isinstance(data[mime], str) and not mime.startswith(_REFUSED):
            shown = _source(data[mime], room)
            notes.append(f"{one_line(mime, 60)} is shown as its source.")
        else:
            notes.append(_refusal(mime))
    if shown is None:
        shown = Shown(html="", plain="")
    plain = shown.plain if chosen in _OWN_WORDS else _plain_text(data, room) or shown.plain
    notes = [*shown.notes, *sorted(notes)]
    if len(notes) > _MAX_NOTES:
        notes[_MAX_NOTES:] = [f"{len(notes) - _MAX_NOTES} more types are not shown."]
    return replace(shown, plain=plain, notes=tuple(notes))


def _mime_name(name: object) -> str:
    return str(name).partition(";")[0].strip().lower()


def _plain_text(data: Mapping[str, Any], room: int) -> str:
    """The text that a thing brings along for terminals, if it does."""
    try:
        return _text(data["text/plain"], room).plain
    except (KeyError, ValueError):
        return ""


def _refusal(mime: str) -> str:
    name = one_line(mime, 60)
    if "widget" in mime:
        return f"{name} is not shown: widgets stay in the sandbox."
    if mime.startswith(_REFUSED):
        return f"{name} is not shown: it can do more than show. Ask the tool for a PNG or a table."
    return f"{name} is not shown."


def _text(data: Any, room: int) -> Shown:
    given = shorten(text_of(data), 4 * room)
    text = fitting(readable(given), room)
    if len(text) <= _AT_ONCE_CHARS:
        coloured = coloured_html(given, room)
        return Shown(html=frame.block(text, markup=coloured or "") if text else "", plain=text)
    excerpt = fitting(shorten(readable(given), _AT_ONCE_CHARS * 3 // 4), room)
    whole = fitting(text, room - len(html.escape(excerpt)))
    shown = coloured_html(given, room - len(html.escape(excerpt))) or ""
    title = f"show all, {len(text_of(data)):,} characters"
    title += " less those left out" if whole != readable(text_of(data)[: 4 * room]) else ""
    folded = frame.folded(title, frame.block(whole, markup=shown)) if len(whole) > len(excerpt) else ""
    return Shown(html=frame.block(excerpt) + folded, plain=text)


def fitting(text: str, room: int) -> str:
    """Both ends of `text`, as much of them as has room as HTML."""
    limit = room
    while len(html.escape(text)) > room and limit > 0:
        limit = limit * room // (len(html.escape(text)) + 1) * 9 // 10
        text = shorten(text, limit)
    return text


def _source(data: Any, room: int) -> Shown:
    return _text(data, room)


def _image(mime: str) -> Callable[[Any, int], Shown]:
    def show(data: Any, _room: int) -> Shown:
        encoded = checked_image(mime, data)
        return Shown(
            html=_img(f"data:{mime};base64,{encoded}"),
            plain=f"[{mime}, {len(encoded) * 3 // 4:,} bytes]",
            native={mime: encoded},
        )

    return show


def _svg(data: Any, _room: int) -> Shown:
    img = _img(svg_data_uri(data))
    return Shown(html=img, plain="[image/svg+xml]", native={"text/html": img})


def _img(source: str) -> str:
    return f'<img src="{source}" alt="image" style="max-width:100%;background:#fff">'


def _html(data: Any, room: int) -> Shown:
    markup = clean_markup(text_of(data), room)
    notes = (f"Left out: {', '.join(markup.left_out)}.",) if markup.left_out else ()
    native = {"text/html": f'<div class="mathjax_ignore" style="contain:content">{markup.html}</div>'}
    return Shown(html=markup.html, plain="[table or other HTML]", native=native, notes=notes)


def _latex(data: Any, _room: int) -> Shown:
    formula = f"$$ {checked_latex(data)} $$"
    # The box around it tells MathJax to keep out; here it may set what was checked.
    typeset = f'<div class="mathjax_process">{html.escape(formula)}</div>'
    return Shown(html=typeset, plain=formula, native={"text/latex": formula})


def _json(data: Any, room: int) -> Shown:
    value = bounded_json(data)
    tree = tree_html(value) or ""
    if len(tree) > room // 2:
        tree = ""
    shown = _text(visible_json(value), room - len(tree))
    if tree:
        shown = replace(shown, html=tree + frame.folded("as JSON", shown.html))
    try:
        small = len(json.dumps(value, allow_nan=False)) <= MAX_HTML_CHARS
    except ValueError:  # not a number, or infinite: Python's JSON only
        small = False
    return replace(shown, native={"application/json": value} if small else {})


def bounded_json(value: Any, depth: int = _MAX_JSON_DEPTH) -> Json:
    """A copy of `value` that is JSON through and through.

    Raises:
        ValueError: If it is nested too deep.
    """
    if depth == 0:
        raise ValueError(f"it is nested deeper than {_MAX_JSON_DEPTH} levels")
    if isinstance(value, Mapping):
        return {_encodable(str(name)): bounded_json(item, depth - 1) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bounded_json(item, depth - 1) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _encodable(value if isinstance(value, str) else f"<{type(value).__name__}>")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


_SHOW: Mapping[str, Callable[[Any, int], Shown]] = {
    "image/png": _image("image/png"),
    "image/jpeg": _image("image/jpeg"),
    "image/svg+xml": _svg,
    "text/html": _html,
    "text/latex": _latex,
    "application/json": _json,
    "text/markdown": _source,
    "text/plain": _text,
}
"""How each known type is shown, the most telling first."""
