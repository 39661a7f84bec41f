"""A model's answer as HTML. Pure.

What a model writes is untrusted: the CommonMark parser passes on no HTML of its own (`html` is off), so every
element of the result is made here, from a fixed set, around escaped text. Nothing in it can act or fetch: a
picture is named and not loaded, a link is its text with its address beside it, and a heading is a bold line,
because JupyterLab lists headings in its table of contents.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from aisotools.notebook.render import html
from aisotools.notebook.render.text import KEEP, shorten
from aisotools.policy.prompts import visible

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

MAX_MARKDOWN_CHARS = 32_000
"""Longest text that is parsed. A longer one is shown as it is: parsing a hostile one takes up to a second."""

MAX_SHOWN_CHARS = 200_000
"""Longest HTML, and longest text, of an answer. Of a longer text both ends are shown."""

_MONO = "var(--jp-code-font-family,monospace)"
_CODE_BLOCK = (
    f'<pre style="margin:6px 0;padding:6px 10px;white-space:pre-wrap;overflow-wrap:anywhere;'
    f"background:rgba(127,127,127,.1);border-radius:3px;color:inherit;direction:ltr;unicode-bidi:bidi-override;"
    f'font-family:{_MONO}">'
)
_SIZES = {"h1": "140%", "h2": "125%", "h3": "112%"}


def answer_bundle(text: str, note: str = "") -> dict[str, str]:
    """Return the MIME bundle of a model's answer: rendered Markdown, with its source to copy.

    Args:
        text: The answer; untrusted.
        note: How the run ended, if not with an answer; untrusted as well.
    """
    source = visible(text, KEEP)
    body = markdown_html(source) if source.strip() else ""
    remark = html.note(visible(note)) if note else ""
    if not body:
        return {"text/html": remark or html.note("No answer."), "text/plain": visible(note) or "No answer."}
    # The button is shown by the script of the cards alone, since without it a click would do nothing.
    footer = (
        '<div style="margin-top:4px;font-size:90%;opacity:.8">'
        '<button type="button" class="aiso-copy" style="display:none">Copy</button>'
        '<details style="display:inline-block;vertical-align:top">'
        "<summary>Markdown</summary>"
        f'<pre class="aiso-source" style="margin:2px 0;white-space:pre-wrap;overflow-wrap:anywhere;'
        f'background:none;color:inherit;font-family:{_MONO}">'
        f"{html.escape(shorten(source, MAX_SHOWN_CHARS))}</pre></details></div>"
    )
    return {
        "text/html": (
            '<div class="aiso-answer mathjax_ignore" style="margin:6px 0;overflow:hidden;contain:content;'
            f'overflow-wrap:anywhere">{body}{remark}{footer}</div>'
        ),
        "text/plain": "\n".join(filter(None, [shorten(source, MAX_SHOWN_CHARS), visible(note)])),
    }


def markdown_html(source: str) -> str:
    """Return Markdown as safe HTML; a text that is too long, or becomes so, as plain text.

    Args:
        source: Untrusted, in visible characters.
    """
    if len(source) <= MAX_MARKDOWN_CHARS:
        # Once more: an entity such as `&#x202e;` has become the character that it stands for.
        rendered = visible(_parser().render(source), KEEP)
        if len(rendered) <= MAX_SHOWN_CHARS:
            return rendered
    return html.block(shorten(source, MAX_SHOWN_CHARS // 2))


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    for name, rule in {
        "heading_open": _open_heading,
        "heading_close": _close_heading,
        "fence": _code,
        "code_block": _code,
        "link_open": _open_link,
        "link_close": _close_link,
        "image": _image,
    }.items():
        parser.add_render_rule(name, rule)
    return parser


def _open_heading(_self: Any, tokens: Sequence[Token], index: int, *_: Any) -> str:
    size = _SIZES.get(tokens[index].tag, "100%")
    return f'<p style="font-size:{size};margin:10px 0 4px"><strong>'


def _close_heading(*_: Any) -> str:
    return "</strong></p>\n"


def _code(_self: Any, tokens: Sequence[Token], index: int, *_: Any) -> str:
    return f"{_CODE_BLOCK}<code>{html.escape(tokens[index].content)}</code></pre>\n"


def _open_link(_self: Any, _tokens: Sequence[Token], _index: int, *_: Any) -> str:
    return "<u>"


def _close_link(
    _self: Any,
    tokens: Sequence[Token],
    index: int,
    _options: Mapping[str, Any],
    _env: MutableMapping[str, Any],
) -> str:
    start = next(i for i in range(index, -1, -1) if tokens[i].type == "link_open")
    address = str(tokens[start].attrGet("href") or "")
    shown = "".join(token.content for token in tokens[start + 1 : index])
    return "</u>" if shown == address else f"</u> ({html.code(address)})"


def _image(_self: Any, tokens: Sequence[Token], index: int, *_: Any) -> str:
    address = str(tokens[index].attrGet("src") or "")
    return f"[picture: {html.escape(tokens[index].content)} {html.code(address)}]"
