"""HTML from a stranger: its structure inline, its looks only in a frame that can do nothing.

Jupyter trusts the output of a running cell: script runs with the rights of the page, a `data-commandlinker`
button runs commands of JupyterLab, a fixed position covers the real Approve button, any address that is
fetched carries data away. So nothing with such meaning is kept, and the looks of what has some go into a
sandboxed frame without script, links or network.
"""

from __future__ import annotations

# ruff: noqa: SIM905 - a table of words reads better as words
import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aisotools.notebook import frame
from aisotools.notebook.images import checked_data_uri, weight
from aisotools.notebook.text import KEEP
from aisotools.question import visible

_TEXT_TAGS = frozenset(
    """
    abbr b bdi blockquote br caption code col colgroup dd del details div dl dt em figcaption figure h1
    h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp small span strong sub summary sup table
    tbody td tfoot th thead tr u ul var
    """.split()
)
_ATTRIBUTES = {
    "col": {"span"},
    "colgroup": {"span"},
    "details": {"open"},
    "img": {"src", "alt", "width", "height"},
    "ol": {"start"},
    "td": {"colspan", "rowspan", "align"},
    "th": {"colspan", "rowspan", "align", "scope"},
    "tr": {"align"},
}
_NUMBERS = frozenset({"span", "width", "height", "start", "colspan", "rowspan"})
_WITH_CONTENT = frozenset(
    """
    audio button canvas iframe math noscript object script select style svg template textarea title
    video
    """.split()
)
_LOOKS = {"*": {"style", "class", "id"}}
_LOOKS_TAGS = _TEXT_TAGS | {"style", "center", "font", "section", "header", "footer", "article"}
# Looks that are no loss: what every table of pandas carries along.
_PLAIN_STYLES = frozenset({"text-align", "vertical-align", "white-space", "width", "min-width", "max-width"})
_PANDAS_STYLE = re.compile(
    r"<style scoped>(?:\s*\.dataframe [\w :,-]+\{[\w\s:;-]*\})+\s*</style>", re.IGNORECASE
)
_LEFT_OUT = re.compile(
    r"<(script|iframe|object|embed|applet|form|button|input|svg|canvas|audio|video|link|meta|base)\b",
    re.IGNORECASE,
)
_HEADING = re.compile(r"<(/?)h[1-6]>")
_TAG = re.compile(r"<(/?)([a-z][^\s/>]*)")
# Elements without content, and those that the next of their kind closes: they add no depth.
_SHALLOW = frozenset("br col dd dt hr img input li link meta option p tbody td tfoot th thead tr wbr".split())
_MAX_DEPTH = 200
_IMAGE = re.compile(r"data:image/(?:png|jpeg);base64,[A-Za-z0-9+/=\s]+")
_MAX_IMAGES_CHARS = 8 << 20
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """HTML made safe.

    Attributes:
        html: What may stand in the page.
        left_out: Names of elements that are not in it.
    """

    html: str
    left_out: tuple[str, ...] = ()


def clean_markup(source: str, room: int) -> Markup:
    """Make `source` safe, in about `room` characters without counting images.

    Raises:
        ValueError: If it is built to overwhelm the reader, or nothing that can be seen is left.
    """
    source, images = _lift_images(source)
    # Parsers are quadratic in what follows from here, so it is small before they see it.
    whole, source = len(source), _PANDAS_STYLE.sub("", source[: 2 * room])
    if _depth(source) > _MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} elements")
    left_out = tuple(dict.fromkeys(name.lower() for name in _LEFT_OUT.findall(source)))
    inline = _inline(source, images)
    cut = len(source) if whole <= 2 * room else 2 * room
    while weight(inline) > room and cut:
        cut = cut * room // (weight(inline) + 1) * 9 // 10
        inline = _inline(source[:cut], images)
    if "<img src" not in inline and not html.unescape(re.sub("<[^>]*>", "", inline)).strip():
        raise ValueError("nothing in it can be shown" + (f" ({', '.join(left_out)})" if left_out else ""))
    if cut < len(source) or whole > 2 * room:
        inline += f"<p>[... cut after {cut:,} of {whole:,} characters ...]</p>"
    elif (framed := _framed(source, images)) and weight(framed) + weight(inline) <= room:
        inline = framed + frame.folded("the same without its style", inline)
    return Markup(html=inline, left_out=left_out)


def _lift_images(source: str) -> tuple[str, dict[str, str]]:
    """Put a short name in place of every image; also the sound images by that name."""
    images: dict[str, str] = {}
    total = 0

    def lift(match: re.Match[str]) -> str:
        nonlocal total
        name = f"data:,{len(images)}"
        total += len(match[0])
        try:
            images[name] = checked_data_uri(match[0]) if total <= _MAX_IMAGES_CHARS else ""
        except ValueError:
            images[name] = ""
        return name

    return _IMAGE.sub(lift, source), images


def _depth(source: str) -> int:
    """At least how deep the elements of `source` nest, mistaken only by closing tags inside comments."""
    opened: dict[str, int] = {}
    depth = deepest = 0
    for closing, name in _TAG.findall(source.lower()):
        if name in _SHALLOW or (closing and not opened.get(name)):
            continue
        step = -1 if closing else 1
        opened[name] = opened.get(name, 0) + step
        depth += step
        deepest = max(deepest, depth)
    return deepest


def _inline(source: str, images: Mapping[str, str]) -> str:
    """Structure only. Headings become bold lines: JupyterLab would list them among the notebook's own."""
    cleaned = _clean(
        source, _TEXT_TAGS, _ATTRIBUTES, lambda _tag, name, value: _attribute(name, value, images)
    )
    return _HEADING.sub(lambda tag: "</strong></p>" if tag[1] else "<p><strong>", cleaned)


def _framed(source: str, images: Mapping[str, str]) -> str:
    """`source` with its looks, in a sandboxed frame; empty if it has none worth a frame."""
    styled = False

    def keep(_tag: str, name: str, value: str) -> str | None:
        nonlocal styled
        styled = styled or (name == "style" and not _is_plain(value))
        return _attribute(name, value, images)

    body = _clean(source, _LOOKS_TAGS, _ATTRIBUTES | _LOOKS, keep)
    if not styled and "<style>" not in body:
        return ""
    height = min(480, 32 + 21 * len(re.findall(r"<(?:tr|p|li|h\d|br|div)\b", body)))
    page = (
        f'<!doctype html><html><head><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        "<style>body{margin:4px;background:#fff;color:#111;font:13px sans-serif}"
        "table{border-collapse:collapse}td,th{padding:2px 6px}</style></head>"
        f"<body>{body}</body></html>"
    )
    return (
        f'<iframe sandbox="" srcdoc="{html.escape(page)}" title="output" referrerpolicy="no-referrer"'
        f' style="width:100%;height:{height}px;border:0;resize:vertical;display:block"></iframe>'
    )


def _is_plain(style: str) -> bool:
    names = {part.partition(":")[0].strip().lower() for part in style.split(";") if part.strip()}
    return names <= _PLAIN_STYLES


def _attribute(name: str, value: str, images: Mapping[str, str]) -> str | None:
    if name == "src":
        return images.get(value) or None
    if name in _NUMBERS and not (value.isascii() and value.isdigit() and int(value[:5]) <= 4000):
        return None
    return value


def _clean(
    source: str,
    tags: frozenset[str],
    attributes: Mapping[str, set[str]],
    keep: Callable[[str, str, str], str | None],
) -> str:
    import nh3

    cleaned = nh3.clean(
        source,
        tags=tags,
        clean_content_tags=_WITH_CONTENT - tags,
        attributes=attributes,
        attribute_filter=keep,
        url_schemes={"data"},
        link_rel=None,
    )
    return visible(cleaned, KEEP)
