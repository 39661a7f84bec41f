"""What a card shows besides the arguments. Pure; everything comes out as visible text in bounded lists.

The change to a file, the request that goes out, what a shell command does, what undo would cover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from aisotools.events import ApprovalRequest, Effect
from aisotools.notebook.text import one_line
from aisotools.question import visible

MAX_DIFF_LINES = 400
"""A longer change is cut, and said."""

_MAX_LINE_CHARS = 500
_MAX_NAMED = 8
_SEEN = (("runs", "commands"), ("writes", "writes"), ("reads", "reads"), ("talks to", "hosts"))


def preview(request: ApprovalRequest) -> dict[str, Any]:
    """All previews of a request, by kind: `diff`, `web`, `findings`, `undo`; each only where there is one."""
    found = {
        "diff": diff_of(request),
        "web": web_of(request),
        "findings": findings_of(request),
        "undo": undo_of(request),
    }
    return {kind: shown for kind, shown in found.items() if shown}


def diff_of(request: ApprovalRequest) -> dict[str, Any]:
    """The change to a file that the host worked out; empty when there is none."""
    given = request.preview.get("diff")
    if not isinstance(given, Mapping):
        return {}
    lines = given.get("lines", ())
    lines = [line for line in lines if isinstance(line, str)] if isinstance(lines, Sequence) else []
    note = str(given.get("note", ""))
    if len(lines) > MAX_DIFF_LINES:
        left_out = len(lines) - MAX_DIFF_LINES
        note = f"{note} {left_out:,} more lines are not shown here.".strip()
    shown = [_cut(line) for line in lines[:MAX_DIFF_LINES]]
    return {
        "path": one_line(str(given.get("path", "")), 300),
        "lines": shown,
        "whole": bool(lines) and len(lines) == len(shown) and all(len(n) < _MAX_LINE_CHARS for n in shown),
        "added": int(given.get("added", 0)),
        "removed": int(given.get("removed", 0)),
        "note": visible(note, ""),
    }


def web_of(request: ApprovalRequest) -> dict[str, Any]:
    """Method, address and host of a request that goes out; the host as the network sees it."""
    url = request.call.arguments.get("url")
    if not isinstance(url, str) or not (request.facts.hosts or request.effect is Effect.REMOTE_ACTION):
        return {}
    method = request.call.arguments.get("method", "GET")
    try:
        host = urlsplit(url).hostname or ""
        host = host if host.isascii() else host.encode("idna").decode()
    except ValueError:
        host = "an address that cannot be read"
    method = one_line(method, 12).upper() if isinstance(method, str) else "GET"
    told = one_line(url, 2_000)
    return {"method": method, "url": told, "host": one_line(host, 253), "whole": told == url}


def findings_of(request: ApprovalRequest) -> list[tuple[str, str]]:
    """What was found out about a call, as pairs of a word and names."""
    facts = request.facts
    shown_elsewhere = {"writes"} if diff_of(request) else {"hosts"} if web_of(request) else set()
    found = []
    for word, field in _SEEN:
        names: tuple[str, ...] = getattr(facts, field)
        if names and field not in shown_elsewhere and (facts.commands or field == "hosts"):
            more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            found.append((word, ", ".join(one_line(name, 100) for name in names[:_MAX_NAMED]) + more))
    if facts.outside:
        found.append(("beware", "it writes outside the workspace"))
    if facts.commands and not facts.certain:
        found.append(("beware", "not everything it does could be seen"))
    return found


def undo_of(request: ApprovalRequest) -> str:
    """What undo would cover, in the words of whoever keeps it; empty when nobody said."""
    told = request.preview.get("undo")
    return one_line(told, 400) if isinstance(told, str) else ""


def _cut(line: str) -> str:
    line = visible(line, "\t")
    return line if len(line) <= _MAX_LINE_CHARS else line[: _MAX_LINE_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
