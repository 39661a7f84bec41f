"""A call as it is typed: `NAME key=value ... | NAME --json OBJECT`, its values typed by the tool's schema."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aisotools.events import Json
from aisotools.exceptions import UsageError

CALL_USAGE = "%call NAME key=value ... | NAME --json '{...}'  [--ask] [--timeout SECONDS]"
"""How it is typed in a notebook."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """What was typed behind `%call`.

    Attributes:
        name: The tool.
        arguments: Its arguments, typed by its schema as far as that says.
        ask: Whether to ask even if the policy would allow it.
        timeout_s: Deadline, or None.
    """

    name: str
    arguments: Mapping[str, Json]
    ask: bool = False
    timeout_s: float | None = None


def parse_call(line: str, schemas: Mapping[str, Mapping[str, Json]]) -> CallLine:
    """Read what was typed behind `%call`.

    Args:
        line: The text.
        schemas: Of every known tool, by name.

    Raises:
        UsageError: In one line, when it cannot be read.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%call: {error} in {line!r}. Quote values like path='my file.txt'.") from None
    if not words:
        raise UsageError(f"Which tool? {CALL_USAGE}")
    name, *words = words
    if name not in schemas:
        near = difflib.get_close_matches(name, schemas, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(schemas)}."
        raise UsageError(f"There is no tool named {name!r}. {hint}")
    properties = schemas[name].get("properties", {})
    arguments: dict[str, Json] = {}
    ask, timeout_s = False, None
    while words:
        word = words.pop(0)
        if word == "--ask":
            ask = True
        elif word == "--json":
            arguments.update(_json_object(words.pop(0) if words else ""))
        elif word == "--timeout":
            timeout_s = _seconds(words.pop(0) if words else "")
        else:
            key, equals, text = word.partition("=")
            if not equals or not key.isidentifier():
                raise UsageError(f"%call {name}: {word!r} is no key=value. {CALL_USAGE}")
            arguments[key] = _typed_value(text, properties.get(key, {}))
    return CallLine(name=name, arguments=arguments, ask=ask, timeout_s=timeout_s)


def _json_object(text: str) -> dict[str, Json]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f'--json wants an object like \'{{"path": "a.txt"}}\': {error}.') from None
    if not isinstance(value, dict):
        raise UsageError(f"--json wants an object, not {text!r}.")
    return value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UsageError(f"--timeout wants a number of seconds above 0, not {text!r}.")
    return seconds


def _typed_value(text: str, schema: Any) -> Json:
    """A typed value where the schema wants no text: `n=3` is a number, `name=3` is text."""
    if "string" in _types(schema):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # the gate says what would fit


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    types = schema.get("type", [])
    found = {types} if isinstance(types, str) else set(types)
    if any(isinstance(v, str) for v in schema.get("enum", ())):
        found.add("string")
    for option in schema.get("anyOf", ()):
        found |= _types(option)
    return found
