"""Which secrets stay readable, and which innocent texts are touched, of those in `secret_shapes.toml`."""

from __future__ import annotations

import base64
import json
import random
import re
import string
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aisotools.core.redaction import redact, redact_text

FILE = Path(__file__).parents[1] / "data" / "secret_shapes.toml"
CORPUS: dict[str, dict[str, dict[str, list[str]]]] = tomllib.loads(FILE.read_text("utf-8"))

ALPHABETS = {
    "a": string.ascii_letters + string.digits,
    "A": string.ascii_uppercase + string.digits,
    "l": string.ascii_lowercase,
    "h": "0123456789abcdef",
    "d": string.digits,
    "b": string.ascii_letters + string.digits + "+/",
    "u": string.ascii_letters + string.digits + "-_",
}
READABLE_CHARS = 8
"""So many characters of a secret in a row are readable."""


def expand(template: str) -> str:
    """Return a text with made-up values, always the same."""
    chance = random.Random(template)

    def some(kind: str, length: int) -> str:
        return "".join(chance.choices(ALPHABETS[kind], k=length))

    def value(match: re.Match[str]) -> str:
        kind, _, length = match[1].partition(" ")
        if kind == "basic":
            return base64.b64encode(f"admin:{some('a', 14)}".encode()).decode()
        if kind == "jwt":
            head = base64.urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
            return f"{head}.{some('u', 80)}.{some('u', 43)}"
        if kind == "pem":
            return "\n".join(some("b", 64) for _ in range(4))
        return some(kind, int(length))

    return re.sub(r"⟨([^⟩]+)⟩", value, template)


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)


def redacted(text: str) -> str:
    if text.startswith("json:"):
        return json.dumps(redact(json.loads(text[5:])), ensure_ascii=False)
    return redact_text(text)


def secrets_of(marked: str) -> list[str]:
    return [part for secret in re.findall("«([^»]+)»", marked) for part in secret.split("\n")]


def readable_secrets(template: str) -> list[str]:
    """Return the secrets of a template of which a part is still readable."""
    marked = expand(template)
    result = re.sub(r"\[redacted[^]]*\]", "", redacted(re.sub("[«»]", "", marked)))
    readable = []
    for secret in secrets_of(marked):
        size = min(READABLE_CHARS, len(secret))
        if any(secret[i : i + size] in result for i in range(len(secret) - size + 1)):
            readable.append(f"{secret} in {result}")
    return readable


def touched(template: str) -> str:
    """Return what became of an innocent text that was changed; else an empty text."""
    text = expand(template)
    if text.startswith("json:"):
        value = json.loads(text[5:])
        return "" if redact(value) == value else str(redact(value))
    result = redact_text(text)
    return "" if result == text else result
