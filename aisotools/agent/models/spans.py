"""The parts of a request that can be arguments: quoted text, addresses, files, dates, numbers. Pure.

Every argument is copied from the request, never invented.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from aisotools.agent.models.ranking import STOP_WORDS

SpanKind = Literal["quoted", "url", "date", "glob", "file", "number", "expression"]
"""The kind of a span."""

MAX_REQUEST_CHARS = 4_000
"""The rest of a longer request is ignored."""

_QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"|“([^”]+)”|(?<![\w'])'((?:[^']|(?<=\w)'(?=\w))+)'(?!\w)")
_PATTERNS: tuple[tuple[SpanKind, re.Pattern[str]], ...] = (
    ("url", re.compile(r"https?://[^\s<>\"']+[^\s<>\"'.,;:!?)]")),
    ("date", re.compile(r"(?<![\w-])\d{4}-\d{2}-\d{2}(?![\w-])")),
    ("glob", re.compile(r"(?<!\S)[\w./-]*\*[\w./*{},-]*\w")),
    (
        "file",
        re.compile(
            r"(?<![\w/.])(?:[\w.-]+/)+[\w-][\w.-]*\w|(?<![\w/.])(?:[\w.-]+/)+"
            r"|(?<![\w/])\.?[\w-]+(?:\.[A-Za-z_]\w{0,9})+(?![\w(])"
        ),
    ),
    ("number", re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w|\.\d)")),
)
_EXPRESSION = re.compile(
    r"(?<![\w.])[-+(\s]{0,20}\d[\d\s.()]{0,40}(?:(?:\*\*|//|[-+*/%^])[\d\s.()+-]{1,40})+"
)
_NAME = re.compile(r"(?<![\w./-])[A-Z][\w-]*(?:\s+[A-Z][\w-]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A piece of a request.

    Attributes:
        kind: Its kind.
        text: The text for an argument, without quotes.
        start: Offset of its beginning in the request, quotes included.
        end: Offset of its end.
        within: The kind of quoted text by itself, such as a file's name.
    """

    kind: SpanKind
    text: str
    start: int
    end: int
    within: SpanKind | None = None


@functools.lru_cache(256)
def spans_of(request: str) -> tuple[Span, ...]:
    """Return the spans of a request in their order. None overlaps another."""
    request = request[:MAX_REQUEST_CHARS]
    found = list(_quoted(request))
    # Blanked, not removed: offsets stay the same, and no number is found inside a file's name.
    left = _blank_out(request, found)
    for match in _EXPRESSION.finditer(left):
        text = match[0].strip()
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            start = match.start() + len(match[0]) - len(match[0].lstrip())
            found.append(Span(kind="expression", text=_balance(text), start=start, end=match.end()))
    left = _blank_out(left, found)
    for kind, pattern in _PATTERNS:
        new = [Span(kind=kind, text=m[0], start=m.start(), end=m.end()) for m in pattern.finditer(left)]
        left = _blank_out(left, new)
        found += new
    return tuple(sorted(found, key=lambda span: span.start))


def _quoted(request: str) -> Iterator[Span]:
    for match in _QUOTED.finditer(request):
        text = next(group for group in match.groups() if group is not None)
        within: SpanKind | None = None
        for kind, pattern in _PATTERNS:
            if pattern.fullmatch(text):
                within = kind
                break
        yield Span(kind="quoted", text=text, start=match.start(), end=match.end(), within=within)


def _balance(text: str) -> str:
    """Return an expression without a bracket that has no counterpart in it."""
    while text.count("(") < text.count(")") and text.endswith(")"):
        text = text[:-1].rstrip()
    while text.count("(") > text.count(")") and text.startswith("("):
        text = text[1:].lstrip()
    return text.strip(" .")


def _blank_out(request: str, spans: Sequence[Span]) -> str:
    for span in spans:
        request = request[: span.start] + "\x00" * (span.end - span.start) + request[span.end :]
    return request


def names_in(request: str) -> list[str]:
    """Return capitalized words, except those that only begin a sentence."""
    found = []
    for match in _NAME.finditer(request):
        before = request[: match.start()].rstrip()
        parts = match[0].split()
        if not before or before[-1] in ".!?:":
            parts = parts[1:]
        while parts and parts[0].lower() in STOP_WORDS:
            parts = parts[1:]
        if parts and parts != ["I"]:
            found.append(" ".join(parts))
    return found


_FOLDER = (
    re.compile(r"\b(?:folder|directory|dir)\s+(?:called\s+|named\s+)?(?P<name>[\w][\w./-]*)", re.IGNORECASE),
    re.compile(r"(?P<name>[\w][\w./-]*)\s+(?:folder|directory|dir)\b", re.IGNORECASE),
    re.compile(
        r"\b(?:in|inside|under|within|of|below|through)\s+(?:the\s+|my\s+)?(?P<name>[\w][\w./-]*)",
        re.IGNORECASE,
    ),
)
_NOT_FOLDERS = STOP_WORDS | {
    "workspace",
    "folder",
    "directory",
    "dir",
    "current",
    "files",
    "file",
    "contents",
    "everything",
    "sandbox",
    "bash",
    "shell",
    "python",
    "it",
    "them",
    "subfolder",
    "whole",
    "same",
    "list",
    "full",
}


def folders_in(request: str) -> list[str]:
    """Return words that name a folder by their position: `in data`, `the data folder`, `folder data`."""
    unquoted = _QUOTED.sub(lambda match: " " * len(match[0]), request)
    found = []
    for pattern in _FOLDER:
        for match in pattern.finditer(unquoted):
            name = match["name"].rstrip(".,;:!?")
            if name.lower() not in _NOT_FOLDERS and not name.replace(".", "").isdigit():
                found.append(name)
    return list(dict.fromkeys(found))
