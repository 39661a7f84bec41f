"""Secrets out of what is written down: by the shape they have, and by what a tool's schema declares.

A safety net, not a proof: a secret of an unknown shape in a parameter that is not declared `SecretStr` stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from aisotools.events import Json

REDACTED = "[redacted]"
"""What stands where a secret was."""

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
    r"""(?P<name>\b[A-Za-z0-9_-]*(?:password|passwd|secret|token|api[_-]?key|authorization)[A-Za-z0-9_-]*)
        (?P<between>["']?\s*[:=]\s*(?:bearer\s+|basic\s+)?["']?)
        (?P<value>[^\s"',;&]{6,})""",
    re.VERBOSE | re.IGNORECASE,
)


def redact_text(text: str) -> str:
    """`text` with everything that looks like a secret replaced."""
    text = _SHAPES.sub(REDACTED, text)
    return _NAMED.sub(lambda m: m["name"] + m["between"] + REDACTED, text)


def redact(value: Json) -> Json:
    """JSON with everything that looks like a secret replaced, in keys' values and in text."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {key: redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return value


def redact_arguments(arguments: Mapping[str, Json], secret: Iterable[str]) -> dict[str, Json]:
    """Arguments with the declared secret ones replaced whole, and the rest by shape."""
    hidden = set(secret)
    return {name: REDACTED if name in hidden else redact(value) for name, value in arguments.items()}


def secret_parameters(schema: Mapping[str, Any]) -> frozenset[str]:
    """Names of the parameters that a schema declares secret (`SecretStr` gives `writeOnly`)."""
    properties = schema.get("properties", {})
    return frozenset(name for name, about in properties.items() if _is_secret(about))


def _is_secret(about: Any) -> bool:
    if not isinstance(about, Mapping):
        return False
    if about.get("writeOnly") is True or about.get("format") == "password":
        return True
    return any(_is_secret(option) for key in ("anyOf", "oneOf", "allOf") for option in about.get(key, ()))
