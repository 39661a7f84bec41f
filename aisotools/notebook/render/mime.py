r"""One thing to show, given as several MIME types by a stranger: choose one that can be made safe.

Passed on after a check: PNG, JPEG, JSON, text. Made anew: HTML, SVG, LaTeX. Shown as source: Markdown,
JavaScript, anything unknown that is text. Refused: widgets, every `application/vnd...` (they fetch, or show
a real approval card under a false caption), PDF.

Formulas from a stranger: only commands that set symbols.

MathJax can also link (`\href`), style (`\style`, `\bbox`), mark (`\class`, `\cssId`), define and load. A list
of what is allowed stays right when MathJax learns more.

JSON as something to unfold, and lists of like objects as a table. Pure; what is too much is not made.
"""

# ruff: noqa: SIM905 - a table of words reads better as words
from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aisotools.core.types import Json, MimeBundle
from aisotools.notebook.render import html as frame
from aisotools.notebook.render.html import checked_image, clean_markup, svg_data_uri
from aisotools.notebook.render.text import coloured_html, one_line, readable, shorten, text_of
from aisotools.policy.prompts import visible, visible_json

MAX_LATEX_CHARS = 10_000
"""Longest formula that is set."""

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


def checked_latex(data: object) -> str:
    """The formula in `data` without its delimiters, fit to be put between others.

    Raises:
        ValueError: If it is more than a formula; says what.
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
    if not _balanced(body):
        raise ValueError("its braces do not match")
    return body.replace("<", r"\lt ").replace(">", r"\gt ")


def _without_delimiters(text: str) -> str:
    for start, end in _DELIMITERS:
        if text.startswith(start) and text.endswith(end) and len(text) >= len(start) + len(end):
            return text[len(start) : -len(end)].strip()
    return text


def _balanced(body: str) -> bool:
    depth = 0
    for char in _COMMAND.sub("", body):
        depth += (char == "{") - (char == "}")
        if not 0 <= depth <= 60:
            return False
    return depth == 0


_MOST_NODES = 400
_MOST_ROWS, _MOST_COLUMNS = 100, 12
_MOST_CHARS = 400
_CELL = "padding:1px 12px 1px 0;text-align:left;vertical-align:top"
_COLOURS = {str: "#2f9e44", int: "#3b82f6", float: "#3b82f6", bool: "#b65bd6", type(None): "#8a8a8a"}


def tree_html(value: Json) -> str | None:
    """`value` as HTML; None for what is no object or list, is empty, or has too many parts."""
    if not isinstance(value, dict | list) or not value or _count(value) > _MOST_NODES:
        return None
    return f'<div style="overflow-wrap:anywhere">{_inside(value, 0)}</div>'


def _count(value: Json) -> int:
    """How many parts there are, counted no further than matters."""
    count, todo = 0, [value]
    while todo and count <= _MOST_NODES:
        node = todo.pop()
        count += 1
        if isinstance(node, Mapping):
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)
    return count


def _inside(value: Json, depth: int) -> str:
    if columns := _columns(value):
        return _table(value, columns)
    pairs: Iterator[tuple[str, Json]]
    pairs = iter(value.items()) if isinstance(value, dict) else ((str(n), v) for n, v in enumerate(value))
    return "".join(_pair(name, part, depth) for name, part in pairs)


def _pair(name: str, value: Json, depth: int) -> str:
    label = f"<code>{_leaf_text(name)}</code>"
    if isinstance(value, dict | list) and value:
        size = f"{len(value)} {'items' if isinstance(value, list) else 'entries'}"
        opened = " open" if depth < 1 and len(value) <= 20 else ""
        return (
            f'<details{opened} style="padding-left:1em"><summary>{label} <em>{size}</em></summary>'
            f"{_inside(value, depth + 1)}</details>"
        )
    return f'<div style="padding-left:2.1em">{label}: {_scalar(value)}</div>'


def _scalar(value: Json) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = json.dumps(value, ensure_ascii=False) if value == "" else shown
    colour = _COLOURS.get(type(value), "inherit")
    return f'<span style="color:{colour};white-space:pre-wrap">{_leaf_text(shown)}</span>'


def _columns(value: Json) -> list[str]:
    """The names that every row of a table has; none if `value` is no table."""
    if not isinstance(value, list) or not 2 <= len(value) <= _MOST_ROWS:
        return []
    names = list(value[0]) if isinstance(value[0], dict) else []
    alike = all(
        isinstance(row, dict)
        and list(row) == names
        and not any(isinstance(part, dict | list) for part in row.values())
        for row in value
    )
    return names if alike and 1 <= len(names) <= _MOST_COLUMNS else []


def _table(rows: Sequence[Mapping[str, Json]], columns: Sequence[str]) -> str:
    head = "".join(f'<th style="{_CELL}">{_leaf_text(name)}</th>' for name in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}">{_scalar(row[name])}</td>' for name in columns) + "</tr>"
        for row in rows
    )
    return f'<div style="overflow-x:auto"><table><tr>{head}</tr>{body}</table></div>'


def _leaf_text(text: str) -> str:
    return html.escape(visible(shorten(text, _MOST_CHARS)))


MAX_HTML_CHARS = 64 << 10
"""Longest HTML that is kept in a notebook for one result, without images."""

_AT_ONCE_CHARS = 8_000
_MAX_JSON_DEPTH = 40
_MAX_NOTES = 5
_OWN_WORDS = {"application/json", "text/markdown", "text/plain"}
_REFUSED = ("application/vnd.", "application/pdf", "application/x-")


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeOutput:
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


def make_safe(bundle: MimeBundle, room: int = MAX_HTML_CHARS) -> SafeOutput:
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
        shown = SafeOutput(html="", plain="")
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


def _text(data: Any, room: int) -> SafeOutput:
    given = shorten(text_of(data), 4 * room)
    text = fit_html(readable(given), room)
    if len(text) <= _AT_ONCE_CHARS:
        coloured = coloured_html(given, room)
        return SafeOutput(html=frame.block(text, markup=coloured or "") if text else "", plain=text)
    excerpt = fit_html(shorten(readable(given), _AT_ONCE_CHARS * 3 // 4), room)
    whole = fit_html(text, room - len(html.escape(excerpt)))
    shown = coloured_html(given, room - len(html.escape(excerpt))) or ""
    title = f"show all, {len(text_of(data)):,} characters"
    title += " less those left out" if whole != readable(text_of(data)[: 4 * room]) else ""
    folded = frame.details(title, frame.block(whole, markup=shown)) if len(whole) > len(excerpt) else ""
    return SafeOutput(html=frame.block(excerpt) + folded, plain=text)


def fit_html(text: str, room: int) -> str:
    """Both ends of `text`, as much of them as has room as HTML."""
    limit = room
    while len(html.escape(text)) > room and limit > 0:
        limit = limit * room // (len(html.escape(text)) + 1) * 9 // 10
        text = shorten(text, limit)
    return text


def _source(data: Any, room: int) -> SafeOutput:
    return _text(data, room)


def _image(mime: str) -> Callable[[Any, int], SafeOutput]:
    def show(data: Any, _room: int) -> SafeOutput:
        encoded = checked_image(mime, data)
        return SafeOutput(
            html=_img(f"data:{mime};base64,{encoded}"),
            plain=f"[{mime}, {len(encoded) * 3 // 4:,} bytes]",
            native={mime: encoded},
        )

    return show


def _svg(data: Any, _room: int) -> SafeOutput:
    img = _img(svg_data_uri(data))
    return SafeOutput(html=img, plain="[image/svg+xml]", native={"text/html": img})


def _img(source: str) -> str:
    return f'<img src="{source}" alt="image" style="max-width:100%;background:#fff">'


def _html(data: Any, room: int) -> SafeOutput:
    markup = clean_markup(text_of(data), room)
    notes = (f"Left out: {', '.join(markup.left_out)}.",) if markup.left_out else ()
    native = {"text/html": f'<div class="mathjax_ignore" style="contain:content">{markup.html}</div>'}
    return SafeOutput(html=markup.html, plain="[table or other HTML]", native=native, notes=notes)


def _latex(data: Any, _room: int) -> SafeOutput:
    formula = f"$$ {checked_latex(data)} $$"
    # The box around it tells MathJax to keep out; here it may set what was checked.
    typeset = f'<div class="mathjax_process">{html.escape(formula)}</div>'
    return SafeOutput(html=typeset, plain=formula, native={"text/latex": formula})


def _json(data: Any, room: int) -> SafeOutput:
    value = bounded_json(data)
    tree = tree_html(value) or ""
    if len(tree) > room // 2:
        tree = ""
    shown = _text(visible_json(value), room - len(tree))
    if tree:
        shown = replace(shown, html=tree + frame.details("as JSON", shown.html))
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


_SHOW: Mapping[str, Callable[[Any, int], SafeOutput]] = {
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
