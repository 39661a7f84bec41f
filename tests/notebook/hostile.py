"""Outputs that do harm when Jupyter shows them as they are, and small sound images."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image


def as_text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def an_image(form: str = "PNG", size: tuple[int, int] = (3, 2)) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", size, "red").save(buffer, form)
    return as_text(buffer.getvalue())


PNG = an_image()
JPEG = an_image("JPEG")
EVIL = "https://evil.example/?q="
DELL = "\u202e"
WIDGET = "application/vnd.jupyter.widget-view+json"
VEGA = "application/vnd.vegalite.v5+json"

# Each of these does harm when Jupyter shows it as it is.
HOSTILE: dict[str, dict[str, Any]] = {
    "script": {"text/html": "<b>hi</b><script>fetch('/api/contents')</script>"},
    "handler": {"text/html": "<img src=x onerror=alert(1)><b onclick=alert(1)>hi</b>"},
    "javascript": {"application/javascript": "alert(1)"},
    "markdown script": {"text/markdown": "hi <script>alert(1)</script> [x](javascript:alert(1))"},
    "svg": {
        "image/svg+xml": "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'>"
        f"<script>alert(1)</script><image href='{EVIL}'/></svg>"
    },
    "svg in html": {"text/html": "<svg><script>alert(1)</script></svg><p>hi"},
    "latex link": {"text/latex": r"$\href{javascript:alert(1)}{x}$"},
    "latex style": {"text/latex": r"$$\style{position:fixed;top:0}{x}$$"},
    "latex box": {"text/latex": r"\[\bbox[position:fixed]{x}\]"},
    "latex html": {"text/latex": "$x$<img src=x onerror=alert(1)>"},
    "latex end": {"text/latex": "$$x\\$$"},
    "latex define": {"text/latex": r"$\def\x{\href{javascript:1}{y}}\x$"},
    "json": {"application/json": {"<script>": "</pre><script>alert(1)</script>"}},
    "plain": {"text/plain": "</pre><script>alert(1)</script><img src=x onerror=alert(1)>"},
    "link in text": {"text/plain": "\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07"},
    "command button": {"text/html": "<button data-commandlinker-command='notebook:undo'>Approve</button>hi"},
    "command link": {
        "text/html": "<b data-commandlinker-command='notebook:delete-cell' data-x=1>Approve</b>"
    },
    "overlay": {"text/html": "<div style='position:fixed;inset:0;z-index:99999'>Approve</div>"},
    "overlay by class": {"text/html": "<div class='jp-Dialog lm-mod-hidden' id=main>hi</div>"},
    "style sheet": {"text/html": f"<style>@import '{EVIL}';body{{background:url({EVIL})}}</style><p>hi"},
    "remote image": {"text/html": f"<img src='{EVIL}'><img srcset='{EVIL} 2x'><p background='{EVIL}'>hi"},
    "remote others": {
        "text/html": f"<link rel=preconnect href='{EVIL}'><video poster='{EVIL}'></video>"
        f"<object data='{EVIL}'></object><iframe src='{EVIL}'></iframe><embed src='{EVIL}'>"
        f"<base href='{EVIL}'><meta http-equiv=refresh content='0;{EVIL}'>hi"
    },
    "form": {"text/html": f"<form action='{EVIL}'><input name=x><button>go</button></form>hi"},
    "links": {
        "text/html": f"<a href='{EVIL}' ping='{EVIL}'>a</a>"
        "<a href='javascript:alert(1)'>b</a><a href='#x'>c</a>"
    },
    "heading": {"text/html": "<h1 id=x>Approved by you</h1>"},
    "mutation": {
        "text/html": "<math><mtext><table><mglyph><style><!--</style>"
        "<img title='--><img src=1 onerror=alert(1)>'>hi"
    },
    "noscript": {"text/html": "<noscript><p title='</noscript><img src=x onerror=alert(1)>'></noscript>hi"},
    "frame escape": {
        "text/html": "<p style='color:red' title='\"></iframe><script>alert(1)</script>'>hi</p>"
    },
    "style escape": {"text/html": "<style>p{}</style ><script>alert(1)</script><p style='top:0'>hi"},
    "widget": {WIDGET: {"model_id": "0" * 32, "version_major": 2}, "text/plain": "Card()"},
    "vega": {VEGA: {"data": {"url": EVIL}}, "text/plain": "Chart"},
    "plotly": {"application/vnd.plotly.v1+json": {}, "text/html": "<script>x</script>"},
    "pdf": {"application/pdf": as_text(b"%PDF-1.4")},
    "fake png": {"image/png": as_text(b"<svg onload=alert(1)>")},
    "png injection": {"image/png": '"><script>alert(1)</script>'},
    "png bomb": {
        "image/png": base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\xff\xff\xff\0\xff\xff\xff").decode()
    },
    "jpeg bomb": {
        "image/jpeg": base64.b64encode(b"\xff\xd8\xff\xc0\0\x11\x08\xff\xff\xff\xff" + b"\0" * 20).decode()
    },
    "svg bomb": {"image/svg+xml": "<!DOCTYPE svg [<!ENTITY a 'aaaa'>]><svg>&a;</svg>"},
    "type with spaces": {" Text/HTML ; charset=utf-8": "<script>alert(1)</script>hi"},
    "type injection": {"text/<script>alert(1)</script>": "hi"},
    "data in a list": {"text/html": ["<scr", "ipt>alert(1)</script>hi"]},
    "wrong sorts": {"text/html": 3, "image/png": {"a": 1}, "text/plain": None, "application/json": object()},
    "not only types": {"text/plain": "hi", "display_id": "x", "transient": {"display_id": "x"}},
    "surrogates": {"text/plain": "\ud800", "application/json": ["\udfff"]},
}
