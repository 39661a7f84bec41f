r"""Choose from an untrusted MIME bundle one representation that can be made safe.

Passed on after validation: PNG, JPEG, JSON, text. Rebuilt: HTML, SVG, LaTeX. Shown as source: Markdown,
JavaScript, any other text type. Refused: widgets and every `application/vnd...` (they fetch, or could show a
genuine approval card with a false caption), PDF.

LaTeX is limited to commands that set symbols, because MathJax can also link (`\href`), style (`\style`,
`\bbox`), mark (`\class`, `\cssId`), define and load. An allow-list stays right when MathJax learns more.
"""

# ruff: noqa: SIM905 - a table of words reads better as words
from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from itertools import islice
from typing import Any

from aisotools.core.concurrency import at_once
from aisotools.core.types import Json, MimeBundle
from aisotools.notebook.render import html
from aisotools.notebook.render.html import image_steps, markup_steps, svg_steps
from aisotools.notebook.render.text import (
    Ends,
    coloured_html,
    one_line,
    readable,
    shorten,
    text_of,
    text_steps,
)
from aisotools.policy.prompts import visible
from aisotools.sandbox.parsing import release_steps
from aisotools.sandbox.results import MAX_MIME_TYPES

MAX_HTML_CHARS = 64 << 10
"""Longest HTML stored in a notebook for one result, without images."""

_AT_ONCE_CHARS = 8_000
_MAX_JSON_DEPTH = 40
_MAX_NOTES = 5
_MAX_NAME_CHARS = 1_000
_CONTAINERS = (Mapping, list, tuple)
_NUMBERS = frozenset((int, float, bool, type(None)))
_ITEMS_AT_ONCE = 1_000
_PIECES_AT_ONCE = 2_000
_TEXT_BASED = {"application/json", "text/markdown", "text/plain"}
_REFUSED = ("application/vnd.", "application/pdf", "application/x-")

MAX_LATEX_CHARS = 10_000
"""Longest formula that is typeset."""

_COMMANDS = frozenset(
    """
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi
    varpi rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi
    Sigma Upsilon Phi Psi Omega aleph beth hbar ell wp Re Im partial nabla infty emptyset varnothing
    imath jmath prime angle sum prod coprod int iint iiint oint bigcup bigcap bigoplus bigotimes bigvee
    bigwedge limits nolimits frac dfrac tfrac cfrac binom dbinom tbinom sqrt root of over choose pm mp
    times div cdot ast star circ bullet cap cup setminus oplus ominus otimes oslash odot wedge vee land
    lor lnot neg dagger ddagger amalg wr leq le geq ge ll gg neq ne equiv sim simeq approx cong propto
    prec succ preceq succeq subset supset subseteq supseteq in ni notin not mid nmid parallel perp
    models vdash dashv asymp doteq lt gt to gets leftarrow rightarrow leftrightarrow Leftarrow
    Rightarrow Leftrightarrow mapsto longmapsto implies iff longrightarrow longleftarrow Longrightarrow
    uparrow downarrow updownarrow Uparrow Downarrow hookrightarrow rightharpoonup xrightarrow xleftarrow
    forall exists nexists top bot therefore because ldots cdots vdots ddots dots dotsc dotsb colon quad
    qquad left right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr lfloor rfloor lceil rceil
    langle rangle lvert rvert lVert rVert vert Vert lbrace rbrace backslash hat widehat bar overline
    underline tilde widetilde vec dot ddot acute grave breve check mathring overbrace underbrace overset
    underset stackrel overrightarrow overleftarrow substack sin cos tan cot sec csc arcsin arccos arctan
    sinh cosh tanh coth log ln lg exp lim limsup liminf sup inf max min det dim ker hom arg deg gcd Pr
    mod bmod pmod pod operatorname mathrm mathbf mathit mathsf mathtt mathcal mathbb mathfrak mathscr
    boldsymbol bm text textrm textbf textit displaystyle textstyle scriptstyle begin end hline cr tag
    notag nonumber
    """.split()
)
_ENVIRONMENTS = frozenset(
    """
    matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array cases aligned align align* alignat
    gathered gather gather* split equation equation* multline eqnarray
    """.split()
)
_SIGNS = frozenset("\\,;:!{}|_&# \n")
_COMMAND = re.compile(r"\\([A-Za-z]+|.|\Z)", re.DOTALL)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*(\{[^{}]*\})?")
_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\[", r"\]"), (r"\(", r"\)"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeOutput:
    """A representation that is safe to show.

    Attributes:
        html: For a page; not in a box.
        plain: For a terminal.
        native: Data that a client may get as it is, by MIME type; may be empty.
        notes: Sentences about what was left out.
    """

    html: str
    plain: str
    native: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


SafeSteps = Generator[None, None, SafeOutput]
"""Work on a representation, in steps."""

Convert = Callable[[Any, int], SafeSteps]
"""Makes an entry of a bundle safe; gets the entry and the room that there is for it."""


def make_safe(bundle: MimeBundle, room: int = MAX_HTML_CHARS) -> SafeOutput:
    """Return `safe_steps(bundle, room)`, at once."""
    return at_once(safe_steps(bundle, room))


def safe_steps(bundle: MimeBundle, room: int = MAX_HTML_CHARS) -> SafeSteps:
    """Return, in steps, the richest safe representation of `bundle`.

    It has about `room` characters without images. No step takes long, whatever the bundle is: it comes from a
    sandbox, and may have 20 MiB.
    """
    data = {_mime_name(name): value for name, value in islice(bundle.items(), MAX_MIME_TYPES)}
    output: SafeOutput | None = None
    chosen = ""
    notes = []
    for mime, convert in _CONVERTERS.items():
        if mime in data and output is None:
            try:
                output, chosen = (yield from convert(data[mime], room)), mime
            except ValueError as error:
                notes.append(f"{mime} is not shown: {error}.")
            yield
    for mime in data.keys() - _CONVERTERS.keys():
        if output is None and isinstance(data[mime], str) and not mime.startswith(_REFUSED):
            output = yield from _source(data[mime], room)
            notes.append(f"{one_line(mime, 60)} is shown as its source.")
        else:
            notes.append(_refusal(mime))
    if output is None:
        output = SafeOutput(html="", plain="")
    plain = output.plain
    if chosen not in _TEXT_BASED:
        plain = (yield from _plain_text(data, room)) or plain
    notes = [*output.notes, *sorted(notes)]
    more = len(bundle) - min(len(bundle), MAX_MIME_TYPES) + len(notes) - _MAX_NOTES
    if more > 0:
        notes[_MAX_NOTES:] = [f"{more} more types are not shown."]
    return replace(output, plain=plain, notes=tuple(notes))


def _mime_name(name: object) -> str:
    return str(name)[:_MAX_NAME_CHARS].partition(";")[0].strip().lower()


def _plain_text(data: Mapping[str, Any], room: int) -> Generator[None, None, str]:
    """Return the `text/plain` representation; empty if there is no valid one."""
    try:
        return (yield from _text(data["text/plain"], room)).plain
    except (KeyError, ValueError):
        return ""


def _refusal(mime: str) -> str:
    name = one_line(mime, 60)
    if "widget" in mime:
        return f"{name} is not shown: widgets stay in the sandbox."
    if mime.startswith(_REFUSED):
        return f"{name} is not shown: it can do more than show. Ask the tool for a PNG or a table."
    return f"{name} is not shown."


def _text(data: Any, room: int) -> SafeSteps:
    text = yield from text_steps(data)
    return (yield from _both_ends(Ends(text[: 4 * room], text[-2 * room :], len(text)), room))


def _both_ends(complete: Ends, room: int) -> SafeSteps:
    """Return a text, or both ends of a long one."""
    source = complete.shorten(4 * room)
    shown = readable(source)
    yield
    text = fit_html(shown, room)
    yield
    if len(text) <= _AT_ONCE_CHARS:
        coloured = coloured_html(source, room)
        return SafeOutput(html=html.block(text, markup=coloured or "") if text else "", plain=text)
    excerpt = fit_html(shorten(shown, _AT_ONCE_CHARS * 3 // 4), room)
    whole = fit_html(text, room - len(escape(excerpt)))
    markup = html.block(excerpt)
    if len(whole) > len(excerpt):
        title = f"show all, {complete.total:,} characters"
        yield
        if whole != readable(complete.start[: 4 * room]):
            title += " less those left out"
        yield
        coloured = coloured_html(source, room - len(escape(excerpt)))
        markup += html.details(title, html.block(whole, markup=coloured or ""))
    return SafeOutput(html=markup, plain=text)


def fit_html(text: str, room: int) -> str:
    """Return both ends of `text`, as much as fits into `room` characters of HTML."""
    limit = room
    while len(escape(text)) > room and limit > 0:
        limit = limit * room // (len(escape(text)) + 1) * 9 // 10
        text = shorten(text, limit)
    return text


def _source(data: Any, room: int) -> SafeSteps:
    return (yield from _text(data, room))


def _image(mime: str) -> Convert:
    def convert(data: Any, _room: int) -> SafeSteps:
        encoded = yield from image_steps(mime, data)
        return SafeOutput(
            html=_img(f"data:{mime};base64,{encoded}"),
            plain=f"[{mime}, {len(encoded) * 3 // 4:,} bytes]",
            native={mime: encoded},
        )

    return convert


def _svg(data: Any, _room: int) -> SafeSteps:
    img = _img((yield from svg_steps(data)))
    return SafeOutput(html=img, plain="[image/svg+xml]", native={"text/html": img})


def _img(source: str) -> str:
    return f'<img src="{source}" alt="image" style="max-width:100%;background:#fff">'


def _html(data: Any, room: int) -> SafeSteps:
    markup = yield from markup_steps((yield from text_steps(data)), room)
    notes = (f"Left out: {', '.join(markup.left_out)}.",) if markup.left_out else ()
    native = {"text/html": f'<div class="mathjax_ignore" style="contain:content">{markup.html}</div>'}
    return SafeOutput(html=markup.html, plain="[table or other HTML]", native=native, notes=notes)


def _latex(data: Any, _room: int) -> SafeSteps:
    formula = f"$$ {checked_latex((yield from text_steps(data)))} $$"
    # The surrounding box switches MathJax off; here it may typeset the checked formula.
    typeset = f'<div class="mathjax_process">{escape(formula)}</div>'
    return SafeOutput(html=typeset, plain=formula, native={"text/latex": formula})


def _json(data: Any, room: int) -> SafeSteps:
    value = yield from _bounded(data, _MAX_JSON_DEPTH)
    text = Ends()
    # With its indentation it may have a hundred times as many characters as without.
    for piece in _encode_in_pieces(json.JSONEncoder(ensure_ascii=False, indent=2), value):
        text.add(visible(piece, keep="\n"), 4 * room)
        yield
    output = yield from _both_ends(text, room)
    if (yield from _fits(value)):
        return replace(output, native={"application/json": value})
    yield from release_steps([value])
    return output


def _fits(value: Json) -> Generator[None, None, bool]:
    """Return whether a value is short enough to be passed on as it is."""
    chars = 0
    try:
        for piece in _encode_in_pieces(json.JSONEncoder(allow_nan=False), value):
            chars += len(piece)
            yield
            if chars > MAX_HTML_CHARS:
                return False
    except ValueError:
        # NaN and infinity exist in Python's JSON only; a browser would fail to parse the whole message.
        return False
    return True


def _encode_in_pieces(encoder: json.JSONEncoder, value: Json) -> Iterator[str]:
    """Yield a value as JSON, in pieces of some kilobytes; a text stands in one piece."""
    pieces = encoder.iterencode(value)
    while piece := "".join(islice(pieces, _PIECES_AT_ONCE)):
        yield piece


def checked_latex(data: object) -> str:
    """Return the formula in `data` without its delimiters.

    Raises:
        ValueError: If it holds anything but a formula; the message names it.
    """
    body = _without_delimiters(text_of(data).strip())
    if len(body) > MAX_LATEX_CHARS:
        raise ValueError(f"{len(body):,} characters are more than {MAX_LATEX_CHARS:,}")
    if visible(body) != body or "$" in body or "%" in body:
        raise ValueError("it holds a character that does not belong in a formula")
    for command in _COMMAND.findall(body):
        if command not in _COMMANDS and command not in _SIGNS:
            raise ValueError(f"the command \\{command} is not one that only sets symbols")
    for environment in _ENVIRONMENT.findall(body):
        if environment[1:-1] not in _ENVIRONMENTS:
            raise ValueError(f"the environment {environment or 'without a name'} is not known here")
    if not _is_balanced(body):
        raise ValueError("its braces do not match")
    return body.replace("<", r"\lt ").replace(">", r"\gt ")


def _without_delimiters(text: str) -> str:
    for start, end in _DELIMITERS:
        if text.startswith(start) and text.endswith(end) and len(text) >= len(start) + len(end):
            return text[len(start) : -len(end)].strip()
    return text


def _is_balanced(body: str) -> bool:
    depth = 0
    for char in _COMMAND.sub("", body):
        depth += (char == "{") - (char == "}")
        if not 0 <= depth <= 60:
            return False
    return depth == 0


def bounded_json(value: Any, depth: int = _MAX_JSON_DEPTH) -> Json:
    """Return a copy of `value` that holds JSON values only.

    Raises:
        ValueError: If it is nested deeper than `depth` levels.
    """
    return at_once(_bounded(value, depth))


def _bounded(value: Any, depth: int) -> Generator[None, None, Json]:
    if depth == 0:
        raise ValueError(f"it is nested deeper than {_MAX_JSON_DEPTH} levels")
    if isinstance(value, Mapping):
        entries: dict[str, Json] = {}
        for name, item in value.items():
            if isinstance(item, _CONTAINERS):
                entries[_encodable(str(name))] = yield from _bounded(item, depth - 1)
                continue
            entries[_encodable(str(name))] = _bounded_item(item, depth - 1)
            if not len(entries) % _ITEMS_AT_ONCE:
                yield
        yield
        return entries
    if not isinstance(value, (list, tuple)):
        return _bounded_item(value, depth)
    items: list[Json] = []
    for start in range(0, len(value), _ITEMS_AT_ONCE):
        part = value[start : start + _ITEMS_AT_ONCE]
        if depth > 1 and _NUMBERS.issuperset(map(type, part)):
            items.extend(part)
        else:
            for item in part:
                if isinstance(item, _CONTAINERS):
                    items.append((yield from _bounded(item, depth - 1)))
                else:
                    items.append(_bounded_item(item, depth - 1))
        yield
    return items


def _bounded_item(value: Any, depth: int) -> Json:
    if depth == 0:
        raise ValueError(f"it is nested deeper than {_MAX_JSON_DEPTH} levels")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _encodable(value if isinstance(value, str) else f"<{type(value).__name__}>")


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


_CONVERTERS: Mapping[str, Convert] = {
    "image/png": _image("image/png"),
    "image/jpeg": _image("image/jpeg"),
    "image/svg+xml": _svg,
    "text/html": _html,
    "text/latex": _latex,
    "application/json": _json,
    "text/markdown": _source,
    "text/plain": _text,
}
"""The known MIME types, the richest first."""
