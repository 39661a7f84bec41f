"""Images from a stranger: what they say they are, and of a size that a browser can bear."""

from __future__ import annotations

import base64
import re
from typing import Any

from aisotools.notebook.text import text_of

MAX_IMAGE_BYTES = 4 << 20
"""Largest image that is shown."""

MAX_SVG_CHARS = 1 << 20
"""Longest SVG that is shown."""

MAX_PIXELS = 40_000_000
"""Largest area that is shown: a small file can ask for gigabytes of memory."""

_PNG_START = b"\x89PNG\r\n\x1a\n"
_JPEG_START = b"\xff\xd8\xff"
# Markers of a JPEG that carry its height and width: start of frame, without the three that are tables.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_EMBEDDED = re.compile(r"data:image/(?:png|jpeg|svg\+xml);base64,[A-Za-z0-9+/=]+")
_DATA_URI = re.compile(r"data:(image/(?:png|jpeg));base64,([A-Za-z0-9+/=\s]*)", re.ASCII)


def checked_image(mime: str, data: Any) -> str:
    """The base64 text of a PNG or JPEG image, written anew.

    Args:
        mime: `image/png` or `image/jpeg`.
        data: Base64 text, or bytes.

    Raises:
        ValueError: If it is not such an image, or too large; says which.
    """
    raw = _decoded(data)
    if len(raw) > MAX_IMAGE_BYTES:
        raise ValueError(f"{len(raw):,} bytes are more than {MAX_IMAGE_BYTES:,}")
    width, height = _png_size(raw) if mime == "image/png" else _jpeg_size(raw)
    if not 0 < width * height <= MAX_PIXELS:
        raise ValueError(f"{width:,} x {height:,} is no size to show")
    return base64.b64encode(raw).decode("ascii")


def checked_data_uri(uri: str) -> str:
    """A `data:` URI of a sound PNG or JPEG image, written anew.

    Raises:
        ValueError: If it is anything else.
    """
    match = _DATA_URI.fullmatch(uri.strip())
    if match is None:
        raise ValueError("not a data: URI of a PNG or JPEG image")
    mime, data = match.groups()
    return f"data:{mime};base64,{checked_image(mime, data)}"


def svg_data_uri(data: Any) -> str:
    """A `data:` URI of an SVG image; as the source of an `<img>` it neither runs nor fetches anything.

    Raises:
        ValueError: If it is no SVG text, too large, or defines entities, which can grow without bound.
    """
    source = text_of(data)
    if len(source) > MAX_SVG_CHARS:
        raise ValueError(f"{len(source):,} characters are more than {MAX_SVG_CHARS:,}")
    if "<svg" not in source or "<!ENTITY" in source.upper():
        raise ValueError("it is no plain SVG")
    return "data:image/svg+xml;base64," + base64.b64encode(source.encode("utf-8", "replace")).decode("ascii")


def weight(markup: str) -> int:
    """Length of `markup` without the images in it."""
    return len(_EMBEDDED.sub("", markup))


def _decoded(data: Any) -> bytes:
    if isinstance(data, bytes):
        return data
    text = text_of(data)
    if len(text) > MAX_IMAGE_BYTES * 2:
        raise ValueError(f"{len(text):,} characters are too many")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
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
