"""Displays that take long to parse, to show or to free: what a hostile worker makes of 20 MiB."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from functools import partial

from tests.notebook.hostile import PNG

SIZE = 20 << 20


def bundle(mime: str, piece: str, count: int = SIZE, *, opening: str = '"', closing: str = '"') -> bytes:
    """Return a bundle whose only entry is `piece`, so often or as often as there is room."""
    fits = (SIZE - 200) // len(piece.encode())
    return f'{{"{mime}":{opening}{piece * min(fits, count)}{closing}}}'.encode()


def _items(piece: str, count: int = SIZE, mime: str = "application/json") -> bytes:
    return bundle(mime, f"{piece},", count, opening="[", closing=f"{piece}]")


def _keys() -> bytes:
    """Different keys, in objects that are not too large."""
    starts = range(0, _MILLION, 200_000)
    objects = (",".join(f'"{n}":1' for n in range(start, start + 200_000)) for start in starts)
    return bundle("application/json", "{" + "},{".join(objects) + "}", 1, opening="[", closing="]")


def _types(names: Iterable[str]) -> bytes:
    return ("{" + ",".join(f'"{name}":""' for name in names) + "}").encode()


_MILLION = 1_000_000
SHAPES: dict[str, Callable[[], bytes]] = {
    "empty lists": partial(_items, "[]", _MILLION),
    "empty objects": partial(_items, "{}", _MILLION),
    "objects with an entry": partial(_items, '{"a":0}', _MILLION, "x/y"),
    "different keys": _keys,
    "digits": partial(_items, "1"),
    "fractions": partial(_items, "1.25e-3", mime="x/y"),
    "empty texts": partial(_items, '""', mime="text/plain"),
    "escapes": partial(bundle, "text/plain", "\\u0041"),
    "nested lists": partial(_items, "[" * 30 + "]" * 30, _MILLION // 31),
    "text with colours": partial(bundle, "text/plain", "\\u001b[31mx"),
    "text of carriage returns": partial(bundle, "text/plain", "x\\r"),
    "one long text": partial(bundle, "text/plain", "x"),
    "invisible characters": partial(bundle, "text/html", "\\u202e"),
    "markup": partial(bundle, "text/html", "<b a b c d e>"),
    "styles": partial(bundle, "text/html", "<p style='color:red;position:fixed'>x</p>"),
    "small images": partial(bundle, "text/html", "data:image/png;base64,A "),
    "beginnings of images": partial(bundle, "text/html", "data:image/"),
    "one long image": partial(bundle, "text/html", "A", opening='"data:image/png;base64,'),
    "an image of blanks": partial(bundle, "image/png", "A ", (4 << 20) - 1),
    "many types": lambda: _types(f"a/{n}" for n in range(240_000)),
    "types with long names": lambda: _types(f"{n}" + " " * _MILLION for n in range(18)),
    "formula": partial(bundle, "text/latex", "{"),
}
"""By what they are made of, the JSON of a display."""


def image(size: int) -> bytes:
    """Return the JSON of a display of a picture with so many bytes, of which few are its content."""
    raw = base64.b64decode(PNG)
    return json.dumps({"image/png": base64.b64encode(raw + b"\0" * (size - len(raw))).decode()}).encode()
