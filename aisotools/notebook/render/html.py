"""HTML for results and records: boxes and blocks around escaped text, and untrusted markup made safe.

Jupyter trusts the output of a running cell: scripts run with the rights of the page, a `data-commandlinker`
button runs commands of JupyterLab, a fixed position can cover the real Approve button, and every URL that is
fetched leaks data. So untrusted markup keeps structure only; styles survive in a sandboxed frame without
scripts, links or network.
"""

# ruff: noqa: SIM905 - a table of words reads better as words
from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aisotools.core.concurrency import at_once
from aisotools.core.types import Effect
from aisotools.notebook.render.text import KEEP, text_steps
from aisotools.policy.prompts import visible

LINE = "rgba(127,127,127,.35)"
"""Colour of thin lines; translucent, so that it suits light and dark themes."""

ERROR_COLOUR = "var(--jp-error-color1,#d32f2f)"
"""Colour of failures and destructive calls."""

EFFECT_COLOURS = {
    Effect.READ_ONLY: "var(--jp-success-color1,#388e3c)",
    Effect.REMOTE_ACTION: "var(--jp-info-color1,#0288d1)",
    Effect.LOCAL_MUTATION: "var(--jp-warn-color1,#f57c00)",
    Effect.DESTRUCTIVE: ERROR_COLOUR,
}
"""Colour of each effect."""

_MONO = "var(--jp-code-font-family,monospace)"


def box(title: str, body: str, colour: str = LINE) -> str:
    """Return a box; `title` and `body` are safe HTML. Its content cannot be painted outside it."""
    return (
        f'<div class="mathjax_ignore" style="border:1px solid {LINE};border-left:3px solid {colour};'
        'border-radius:3px;margin:2px 0;overflow:hidden;contain:content">'
        f'<div style="padding:4px 10px 3px;font-size:90%;opacity:.8">{title}</div>'
        f'<div style="padding:0 10px 6px;overflow-x:auto">{body}</div></div>'
    )


def block(text: str, *, exact: bool = False, markup: str = "") -> str:
    """Return plain text as a preformatted block.

    Args:
        text: The plain text.
        exact: Show right-to-left letters in their logical order, as code needs; otherwise in reading order.
        markup: The same text as safe HTML, if it has more to show, such as colours.
    """
    order = "direction:ltr;unicode-bidi:bidi-override;" if exact else ""
    return (
        f'<pre style="margin:2px 0;padding:0;max-height:32em;overflow:auto;white-space:pre-wrap;{order}'
        "overflow-wrap:anywhere;word-break:normal;background:none;color:inherit;"
        f'font-family:{_MONO}">{markup or html.escape(text)}</pre>'
    )


def paragraph(text: str) -> str:
    """Return plain text with its line breaks."""
    return f'<div style="white-space:pre-wrap;overflow-wrap:anywhere">{html.escape(text)}</div>'


_DIFF_COLOURS = {"+": "rgba(46,160,67,.18)", "-": "rgba(248,81,73,.18)", "@": "rgba(127,127,127,.12)"}


def diff(lines: Iterable[str]) -> str:
    """Return the plain lines of a unified diff, coloured by their signs."""
    rows = "".join(
        f'<span style="display:block;background:{_DIFF_COLOURS.get(line[:1], "none")}">'
        f"{html.escape(line) or ' '}</span>"
        for line in lines
    )
    return (
        '<pre style="margin:2px 0;padding:0;max-height:32em;overflow:auto;white-space:pre-wrap;'
        "direction:ltr;unicode-bidi:bidi-override;overflow-wrap:anywhere;background:none;color:inherit;"
        f'font-family:{_MONO}">{rows}</pre>'
    )


def progress_bar(percent: float, label: str) -> str:
    """Return a progress bar with a plain label."""
    shape = "height:8px;border-radius:4px;background:"
    fill = f'<div style="width:{percent:.1f}%;{shape}var(--jp-brand-color1,#1976d2)"></div>'
    track = f'<div style="{shape}{LINE}">{fill}</div>'
    return f'<div style="margin:3px 0;max-width:32em">{track}{html.escape(label)}</div>'


def note(text: str) -> str:
    """Return a remark of this package, set apart from untrusted content; `text` is plain."""
    return f'<div style="margin:2px 0;font-size:90%;opacity:.7"><em>{html.escape(text)}</em></div>'


def small_print(*lines: str) -> str:
    """Return plain lines in small print."""
    inside = "<br>".join(map(html.escape, lines))
    return f'<div style="font-size:90%;line-height:1.45;opacity:.8">{inside}</div>'


def details(title: str, body: str) -> str:
    """Return an element to unfold; `title` is plain, `body` safe HTML."""
    summary = (
        f'<summary style="font-size:90%;opacity:.8;overflow-wrap:anywhere">{html.escape(title)}</summary>'
    )
    return f"<details>{summary}{body}</details>"


def code(text: str) -> str:
    """Return plain text as inline code."""
    return f"<code>{html.escape(text)}</code>"


def escape(text: str) -> str:
    """Return plain text as HTML."""
    return html.escape(text)


MAX_IMAGE_BYTES = 4 << 20
"""Largest image that is shown."""

MAX_SVG_CHARS = 1 << 20
"""Longest SVG that is shown."""

MAX_PIXELS = 40_000_000
"""Largest area that is shown: a small file can ask for gigabytes of memory."""

_BLANKS = b" \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f"
_PNG_START = b"\x89PNG\r\n\x1a\n"
_JPEG_START = b"\xff\xd8\xff"
# Markers of a JPEG that carry its height and width: start of frame, without the three that are tables.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_EMBEDDED = re.compile(r"data:image/(?:png|jpeg|svg\+xml);base64,[A-Za-z0-9+/=]+")
_DATA_URI = re.compile(r"data:(image/(?:png|jpeg));base64,([A-Za-z0-9+/=\s]*)", re.ASCII)


def checked_image(mime: str, data: Any) -> str:
    """Return `image_steps(mime, data)`, at once.

    Raises:
        ValueError: If it is no such image.
    """
    return at_once(image_steps(mime, data))


def image_steps(mime: str, data: Any) -> Generator[None, None, str]:
    """Return, in steps, a PNG or JPEG image as canonical base64 text.

    Args:
        mime: `image/png` or `image/jpeg`.
        data: Base64 text, or bytes.

    Raises:
        ValueError: If it is not such an image, or too large; the message says which.
    """
    raw = yield from _decode(data)
    yield
    if len(raw) > MAX_IMAGE_BYTES:
        raise ValueError(f"{len(raw):,} bytes are more than {MAX_IMAGE_BYTES:,}")
    width, height = _png_size(raw) if mime == "image/png" else _jpeg_size(raw)
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"{width:,} x {height:,} pixels are more than {MAX_PIXELS:,}, or none")
    return base64.b64encode(raw).decode("ascii")


def checked_data_uri(uri: str) -> str:
    """Return `data_uri_steps(uri)`, at once.

    Raises:
        ValueError: If it is no such image.
    """
    return at_once(data_uri_steps(uri))


def data_uri_steps(uri: str) -> Generator[None, None, str]:
    """Return, in steps, the `data:` URI of a valid PNG or JPEG image in canonical form.

    Raises:
        ValueError: If it is anything else.
    """
    match = _DATA_URI.fullmatch(uri.strip())
    if match is None:
        raise ValueError("not a data: URI of a PNG or JPEG image")
    mime, data = match.groups()
    yield
    encoded = yield from image_steps(mime, data)
    return f"data:{mime};base64,{encoded}"


def svg_data_uri(data: Any) -> str:
    """Return `svg_steps(data)`, at once.

    Raises:
        ValueError: If it is no SVG image.
    """
    return at_once(svg_steps(data))


def svg_steps(data: Any) -> Generator[None, None, str]:
    """Return, in steps, an SVG image as a `data:` URI.

    As the source of an `<img>` it neither runs nor fetches anything.

    Raises:
        ValueError: If it is not SVG text, too large, or defines entities, which can grow without bound.
    """
    source = yield from text_steps(data)
    if len(source) > MAX_SVG_CHARS:
        raise ValueError(f"{len(source):,} characters are more than {MAX_SVG_CHARS:,}")
    if "<svg" not in source or "<!ENTITY" in source.upper():
        raise ValueError("it is not plain SVG")
    return "data:image/svg+xml;base64," + base64.b64encode(source.encode("utf-8", "replace")).decode("ascii")


def weight(markup: str) -> int:
    """Return the length of `markup` without the images in it."""
    return len(_EMBEDDED.sub("", markup))


def _decode(data: Any) -> Generator[None, None, bytes]:
    if isinstance(data, bytes):
        return data
    text = yield from text_steps(data)
    if len(text) > MAX_IMAGE_BYTES * 2:
        raise ValueError(f"{len(text):,} characters are too many")
    try:
        encoded = text.encode("ascii").translate(None, _BLANKS)
        yield
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        raise ValueError("it is not base64 text") from None


def _png_size(raw: bytes) -> tuple[int, int]:
    if not raw.startswith(_PNG_START) or raw[12:16] != b"IHDR":
        raise ValueError("the bytes are not a PNG image")
    return int.from_bytes(raw[16:20]), int.from_bytes(raw[20:24])


def _jpeg_size(raw: bytes) -> tuple[int, int]:
    position = 2
    while raw.startswith(_JPEG_START) and position + 9 <= len(raw) and raw[position] == 0xFF:
        marker = raw[position + 1]
        if marker in _JPEG_FRAMES:
            return int.from_bytes(raw[position + 7 : position + 9]), int.from_bytes(
                raw[position + 5 : position + 7]
            )
        position += 2 + max(2, int.from_bytes(raw[position + 2 : position + 4]))
    raise ValueError("the bytes are not a JPEG image")


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
_STYLE_ATTRIBUTES = {"*": {"style", "class", "id"}}
_STYLED_TAGS = _TEXT_TAGS | {"style", "center", "font", "section", "header", "footer", "article"}
# Styles that are no loss: every table of pandas carries them.
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
# Void elements, and those that a sibling closes implicitly: they add no depth.
_SHALLOW = frozenset("br col dd dt hr img input li link meta option p tbody td tfoot th thead tr wbr".split())
_MAX_DEPTH = 200
_IMAGE_START = "data:image/"
_match_image_type = re.compile(r"data:image/(?:png|jpeg);base64,").match
_match_encoded = re.compile(r"[A-Za-z0-9+/=\s]*").match
_MAX_IMAGES_CHARS = 8 << 20
_CHARS_AT_ONCE = 1 << 20
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """Sanitized HTML.

    Attributes:
        html: Safe to insert into the page.
        left_out: Names of the elements that were removed.
    """

    html: str
    left_out: tuple[str, ...] = ()


def clean_markup(source: str, room: int) -> Markup:
    """Return `markup_steps(source, room)`, at once.

    Raises:
        ValueError: If it cannot be shown.
    """
    return at_once(markup_steps(source, room))


def markup_steps(source: str, room: int) -> Generator[None, None, Markup]:
    """Sanitize `source` in steps, in about `room` characters without counting images.

    Raises:
        ValueError: If it is nested to overwhelm the browser, or nothing visible is left.
    """
    # HTML parsers are quadratic on hostile nesting, so the source is cut before they see it.
    source, total, images = yield from _lift_images(source, 2 * room)
    source = _PANDAS_STYLE.sub("", source)
    yield
    if _depth(source) > _MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {_MAX_DEPTH} elements")
    yield
    left_out = tuple(dict.fromkeys(name.lower() for name in _LEFT_OUT.findall(source)))
    inline = _inline(source, images)
    yield
    cut = len(source) if total <= 2 * room else 2 * room
    while weight(inline) > room and cut:
        cut = cut * room // (weight(inline) + 1) * 9 // 10
        yield
        inline = _inline(source[:cut], images)
    yield
    if "<img src" not in inline and not html.unescape(re.sub("<[^<>]*+>", "", inline)).strip():
        raise ValueError("nothing in it can be shown" + (f" ({', '.join(left_out)})" if left_out else ""))
    if cut < len(source) or total > 2 * room:
        inline += f"<p>[... cut after {cut:,} of {total:,} characters ...]</p>"
    else:
        yield
        framed = _put_in_frame(source, images)
        yield
        if framed and weight(framed) + weight(inline) <= room:
            inline = framed + details("the same without its style", inline)
    return Markup(html=inline, left_out=left_out)


def _lift_images(source: str, max_chars: int) -> Generator[None, None, tuple[str, int, dict[str, str]]]:
    """Replace every image by a short name, in steps.

    Return the first `max_chars` characters of the result, its whole length, and the valid images that may be
    in there, by their names.
    """
    images: dict[str, str] = {}
    pieces: list[str] = []
    length = total = count = at = 0
    while True:
        start = source.find(_IMAGE_START, at)
        end = start if start < 0 else (yield from _image_end(source, start))
        is_image = end > start
        if start >= 0 and not is_image:
            end = start + len(_IMAGE_START)
        text = source[at:] if start < 0 else source[at : start if is_image else end]
        if length < max_chars:
            pieces.append(text)
        length += len(text)
        if start < 0:
            return "".join(pieces)[:max_chars], length, images
        if is_image:
            name = f"data:,{count}"
            count += 1
            total += end - start
            if length < max_chars:
                pieces.append(name)
                images[name] = ""
                if total <= _MAX_IMAGES_CHARS:
                    with suppress(ValueError):
                        images[name] = yield from data_uri_steps(source[start:end])
            length += len(name)
        at = end
        yield


def _image_end(source: str, start: int) -> Generator[None, None, int]:
    """Return where the image ends that starts here; `start` itself if it is none."""
    found = _match_image_type(source, start)
    if found is None:
        return start
    end = found.end()
    while (run := _match_encoded(source, end, end + _CHARS_AT_ONCE)) and run.end() > end:
        end = run.end()
        yield
    return end if end > found.end() else start


def _depth(source: str) -> int:
    """Return a lower bound of the nesting depth. Only closing tags inside comments can mislead it."""
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
    """Return `source` reduced to its structure.

    Headings become bold lines, because JupyterLab lists headings in its table of contents.
    """
    cleaned = _clean(
        source, _TEXT_TAGS, _ATTRIBUTES, lambda _tag, name, value: _attribute(name, value, images)
    )
    return _HEADING.sub(lambda tag: "</strong></p>" if tag[1] else "<p><strong>", cleaned)


def _put_in_frame(source: str, images: Mapping[str, str]) -> str:
    """Return `source` with its styles, in a sandboxed frame; empty if it has no styles worth a frame."""
    styled = False

    def filter_attribute(_tag: str, name: str, value: str) -> str | None:
        nonlocal styled
        styled = styled or (name == "style" and not _is_plain(value))
        return _attribute(name, value, images)

    body = _clean(source, _STYLED_TAGS, _ATTRIBUTES | _STYLE_ATTRIBUTES, filter_attribute)
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
    filter_attribute: Callable[[str, str, str], str | None],
) -> str:
    import nh3

    cleaned = nh3.clean(
        source,
        tags=tags,
        clean_content_tags=_WITH_CONTENT - tags,
        attributes=attributes,
        attribute_filter=filter_attribute,
        url_schemes={"data"},
        link_rel=None,
    )
    return visible(cleaned, KEEP)
