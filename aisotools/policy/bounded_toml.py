"""Parse TOML that may be hostile.

Threat: a policy in a workspace is read on the host before anything else happens. The parser of Python's
standard library takes cubic time for a key of many parts (120 KB: 45 s), ends with a `RecursionError` for
nested brackets, and with a plain `ValueError` for a long number.

Mechanism: the size is checked first. Then one pass, which knows strings and comments and nothing else of
TOML, counts how deep brackets are nested and how many parts a key has; both are bounded far above what
anybody writes. Only then does the parser see the text.
Race: none; the text was read once and is judged and parsed as it was read.
Failure: whatever is refused or malformed is a `UsageError` that names the file; a broken policy loosens
nothing, as the session then does not open.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from aisotools.core.exceptions import UsageError

MAX_BYTES = 64 << 10
"""Size of the largest text that is parsed."""

MAX_DEPTH = 16
"""Levels of nested arrays and tables."""

MAX_PARTS = 16
"""Parts of a dotted key."""

_SHOWN_CHARS = 60

_next_sign = re.compile(r"""["'#\[\]{}.=,\n]""").search
_basic_string = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"').match


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Return the document.

    Args:
        text: TOML.
        source: What to call it in errors.

    Raises:
        UsageError: Naming the source and the mistake.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise UsageError(f"{source} has more than {MAX_BYTES:,} bytes. Make it shorter.")
    problem = _find_excess(text)
    if problem:
        raise UsageError(f"{source} is not read: {problem}.")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of very many digits are no TOMLDecodeError
        raise UsageError(f"{source} is not TOML: {shorten_middle(str(error))}.") from None


def shorten_middle(text: str) -> str:
    """Return `text` for an error message, with the middle of a long one left out."""
    if len(text) <= 4 * _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]} ... {text[-_SHOWN_CHARS:]}"


def _find_excess(text: str) -> str:
    """Return what is nested too deeply, or a string that does not end; empty if all is well."""
    depth = parts = at = 0
    while (sign := _next_sign(text, at)) is not None:
        at, char = sign.end(), sign[0]
        if char == "#":
            at = text.find("\n", at)
            if at < 0:
                return ""
        elif char in "\"'":
            at = _end_of_string(text, sign.start())
            if at < 0:
                return "a string in it does not end"
        elif char in "[{":
            depth, parts = depth + 1, 0
            if depth > MAX_DEPTH:
                return f"brackets in it are nested more than {MAX_DEPTH} deep"
        elif char in "]}":
            depth -= 1
        elif char == ".":
            parts += 1
            if parts >= MAX_PARTS:
                return f"a key in it has more than {MAX_PARTS} parts"
        else:
            parts = 0
    return ""


def _end_of_string(text: str, start: int) -> int:
    """Return the position behind the string that begins at `start`; -1 if it does not end."""
    quote = text[start]
    if text.startswith(quote * 3, start):
        at = start + 3
        while (at := text.find(quote * 3, at)) >= 0:
            first = at  # of the backslashes before it
            while quote == '"' and first > start + 3 and text[first - 1] == "\\":
                first -= 1
            if (at - first) % 2 == 0:
                # One or two more quotes belong to the string; otherwise they would begin another one.
                return at + 3 + text.startswith(quote, at + 3) + text.startswith(quote * 2, at + 3)
            at += 1
        return -1
    if quote == "'":
        end = text.find("'", start + 1)
        return -1 if end < 0 or "\n" in text[start:end] else end + 1
    string = _basic_string(text, start)
    return -1 if string is None else string.end()
