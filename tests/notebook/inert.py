"""Check that markup can do nothing: what a test of hostile output asserts."""

from __future__ import annotations

# ruff: noqa: SIM905 - a table of words reads better as words
import re
from html.parser import HTMLParser
from typing import Any

import nh3

OUR_TAGS = set(
    """
    abbr b bdi blockquote br caption code col colgroup dd del details div dl dt em figcaption figure hr
    i img ins kbd li mark ol p pre q s samp small span strong sub summary sup table tbody td tfoot th
    thead tr u ul var iframe
    """.split()
)
OUR_ATTRIBUTES = {
    "*": {"style", "class"},
    "col": {"span"},
    "colgroup": {"span"},
    "details": {"open"},
    "iframe": {"sandbox", "srcdoc", "title", "referrerpolicy"},
    "img": {"src", "alt", "width", "height"},
    "ol": {"start"},
    "td": {"colspan", "rowspan", "align"},
    "th": {"colspan", "rowspan", "align", "scope"},
    "tr": {"align"},
}
OUR_CLASSES = {"mathjax_ignore", "mathjax_process"}
IN_FRAME = {
    "html",
    "head",
    "body",
    "meta",
    "style",
    "center",
    "font",
    "section",
    "header",
    "footer",
    "article",
}
IN_FRAME |= {f"h{n}" for n in range(1, 7)}
EVIL_TAGS = set(
    """
    a area audio base button embed form frame iframe input link meta object param script select source
    style svg template textarea track video h1 h2 h3
    """.split()
)
EVIL_ATTRIBUTES = {
    "id",
    "href",
    "action",
    "formaction",
    "background",
    "name",
    "ping",
    "poster",
    "srcset",
    "target",
}
IMAGE = re.compile(r"data:image/(png|jpeg|svg\+xml);base64,[A-Za-z0-9+/=]+")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


class _Walker(HTMLParser):
    def __init__(self, *, framed: bool) -> None:
        super().__init__(convert_charrefs=True)
        self.framed = framed
        self.frames: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        allowed = OUR_TAGS | IN_FRAME if self.framed else OUR_TAGS
        assert tag in allowed, f"<{tag}> is in the page"
        for name, given in attrs:
            value = given or ""
            assert not name.startswith(("on", "data-")), f"{name} on <{tag}>"
            assert name not in {"href", "srcset", "action"}, f"{name} on <{tag}>"
            if name == "src":
                assert IMAGE.fullmatch(value), f"{value[:60]!r} is a source"
            if self.framed:
                continue
            if name == "class":
                assert value in OUR_CLASSES, f"class {value!r}"
            if name == "style":
                assert not re.search(r"position|url|fixed|z-index|expression|import|@", value), value
            assert name != "id"
        if tag == "iframe":
            assert not self.framed
            assert dict(attrs)["sandbox"] in {"", None}
            self.frames.append(dict(attrs)["srcdoc"] or "")
        if tag == "meta":
            assert dict(attrs) == {"http-equiv": "Content-Security-Policy", "content": POLICY}


def assert_inert(markup: str) -> None:
    """Neither Python's parser nor a browser-grade one finds anything in `markup` that could act."""
    walker = _Walker(framed=False)
    walker.feed(markup)
    walker.close()
    for page in walker.frames:
        assert page.startswith(
            f'<!doctype html><html><head><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        )
        inside = _Walker(framed=True)
        inside.feed(page)
    options: dict[str, Any] = {"clean_content_tags": set(), "link_rel": None, "strip_comments": False}
    strict = nh3.clean(markup, tags=OUR_TAGS, attributes=OUR_ATTRIBUTES, url_schemes={"data"}, **options)
    loose_attributes = {tag: names | EVIL_ATTRIBUTES for tag, names in OUR_ATTRIBUTES.items()}
    loose = nh3.clean(
        markup,
        tags=OUR_TAGS | EVIL_TAGS,
        attributes=loose_attributes,
        generic_attribute_prefixes={"on", "data-", "aria-", "xlink:"},
        url_schemes={"data", "http", "https", "javascript", "ftp", "file", "blob"},
        **options,
    )
    assert strict == loose
