"""Mask secrets, such as API keys, in everything that is written to disk, and in the trace.

Secrets are recognised by their shape, such as API keys, and by parameters that a tool's schema declares
secret. This is a safety net: a secret of an unknown shape in an undeclared parameter is not recognised.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from aisotools.core.types import Json

REDACTED = "[redacted]"
"""Replacement for a secret."""

_SHAPES = re.compile(
    r"""
      \bsk-[A-Za-z0-9_-]{16,}                                     # OpenAI, Anthropic and many after them
    | \b(?:gh[pousr]|github_pat|glpat|hf|npm|pypi)[_-][A-Za-z0-9_-]{16,}
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,}                            # Slack
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b                               # AWS access keys
    | \bAIza[A-Za-z0-9_-]{30,}                                    # Google
    | \beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+ # JSON web tokens
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----.*?(?:-----END[ ][A-Z ]*PRIVATE[ ]KEY-----|\Z)
    | (?<=://)[^\s/:@]+:[^\s/@]+(?=@)                             # user:password@host
    """,
    re.VERBOSE | re.DOTALL,
)
_NAMED = re.compile(
    r"""(?P<name>(?:password|passwd|secret|token|api[_-]?key|authorization)[A-Za-z0-9_-]*)
        (?P<between>["']?\s*[:=]\s*(?:bearer\s+|basic\s+)?["']?)
        (?P<value>[^\s"',;&]{6,})""",
    re.VERBOSE | re.IGNORECASE,
)


# Substrings of which a text must contain one for a pattern to match. Searching them is far cheaper than
# trying the patterns.
_SHAPE_HINTS = (
    "sk-",
    "gh",
    "glpat",
    "hf",
    "npm",
    "pypi",
    "xox",
    "AKIA",
    "ASIA",
    "AIza",
    "eyJ",
    "-----",
    "://",
)
_NAME_HINTS = ("passw", "secret", "token", "key", "authorization")


def redact_text(text: str) -> str:
    """Return `text` with everything that looks like a secret replaced."""
    for hint in _SHAPE_HINTS:
        if hint in text:
            text = _SHAPES.sub(REDACTED, text)
            break
    lowered = text.lower()
    for hint in _NAME_HINTS:
        if hint in lowered:
            return _NAMED.sub(lambda m: m["name"] + m["between"] + REDACTED, text)
    return text


def shortened(value: Json, max_chars: int) -> Json:
    """Return JSON in which longer texts are replaced by their beginning, length and SHA-256."""
    if isinstance(value, str) and len(value) > max_chars:
        digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        return {"beginning": value[:max_chars], "chars": len(value), "sha256": digest}
    if isinstance(value, Mapping):
        return {key: shortened(item, max_chars) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(item, max_chars) for item in value]
    return value


def redact(value: Json, max_chars: int | None = None) -> Json:
    """JSON with everything that looks like a secret replaced, in keys' values and in text.

    With `max_chars`, longer texts are replaced as by `shortened` first.
    """
    if isinstance(value, str):
        if max_chars is not None and len(value) > max_chars:
            return redact(shortened(value, max_chars))
        return redact_text(value)
    if isinstance(value, Mapping):
        return {key: redact(item, max_chars) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, max_chars) for item in value]
    return value


def redact_arguments(arguments: Mapping[str, Json], secret: Iterable[str]) -> dict[str, Json]:
    """Return arguments with those in `secret` replaced whole, and the others redacted by shape."""
    hidden = set(secret)
    return {name: REDACTED if name in hidden else redact(value) for name, value in arguments.items()}


def secret_parameters(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the parameters that a schema declares secret. Pydantic's `SecretStr` declares `writeOnly`."""
    properties, shared = schema.get("properties", {}), schema.get("$defs", {})
    return frozenset(name for name, about in properties.items() if _holds_secret(about, shared))


def _holds_secret(about: Any, shared: Mapping[str, Any]) -> bool:
    """Return whether a schema, or anything that it refers to, declares a secret."""
    todo = [about]
    visited = set()  # types may contain themselves
    while todo:
        node = todo.pop()
        if isinstance(node, Mapping):
            if node.get("writeOnly") is True or node.get("format") == "password":
                return True
            name = str(node.get("$ref", "")).rpartition("/")[2]
            if name in shared and name not in visited:
                visited.add(name)
                todo.append(shared[name])
            todo.extend(node.values())
        elif isinstance(node, list):
            todo.extend(node)
    return False
