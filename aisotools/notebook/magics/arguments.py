"""Parse tool calls as they are typed, and complete them on Tab.

They have the form `NAME key=value ...` or `NAME --json OBJECT`. Values are typed by the tool's schema. The
command line uses the parser too, so nothing here needs IPython before `make_matcher` is called.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Json

_USAGE = "NAME key=value ... | NAME --json '{...}'  [--ask] [--timeout SECONDS]"

CALL_USAGE = f"%call {_USAGE}"
"""Usage of `%call`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """A parsed `%call`.

    Attributes:
        name: The tool.
        arguments: Its arguments, typed by its schema where the schema is specific.
        ask: Ask even if the policy would allow the call.
        timeout_s: Deadline, or None.
    """

    name: str
    arguments: Mapping[str, Json]
    ask: bool = False
    timeout_s: float | None = None


def parse_call(line: str, schemas: Mapping[str, Mapping[str, Json]], *, command: str = "%call") -> CallLine:
    """Parse the line of a `%call`, or of another command that takes calls in the same form.

    Args:
        line: The text behind the command.
        schemas: The parameter schema of every tool, by name.
        command: What was typed before the line, for the usage in messages.

    Raises:
        UsageError: If the line is invalid; one line.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{error} in {line!r}. Quote values like path='my file.txt'.") from None
    if not words:
        raise UsageError(f"Which tool? Usage: {command} {_USAGE}")
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
                raise UsageError(f"{name}: {word!r} is not key=value. Usage: {command} {_USAGE}")
            arguments[key] = _typed_value(text, properties.get(key, {}))
    return CallLine(name=name, arguments=arguments, ask=ask, timeout_s=timeout_s)


def _json_object(text: str) -> dict[str, Json]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f'--json takes an object such as \'{{"path": "a.txt"}}\': {error}.') from None
    if not isinstance(value, dict):
        raise UsageError(f"--json takes an object, not {text!r}.")
    return value


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise UsageError(f"--timeout takes a number of seconds greater than 0, not {text!r}.")
    return seconds


def _typed_value(text: str, schema: Any) -> Json:
    """Parse a value as JSON unless the schema takes text: `n=3` is a number, `name=3` is text."""
    if "string" in _types(schema):
        return text
    try:
        return json.loads(text)
    except ValueError:
        # Not valid for this argument; the gate reports what would be.
        return text


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


_LINE = re.compile(
    r"(?:^|\n)[ \t]*+(?:[\w.\[\]'\", ]+=[ \t]*)?"
    r"%(?P<magic>call|tools|policy[ \t]+why)[ \t]+(?P<rest>[^\n]*)\Z"
)
_FORMATS = ("--format",)
_CALL = ("--json", "--ask", "--timeout")


def complete_line(text: str, schemas: Mapping[str, Mapping[str, Any]]) -> list[str] | None:
    """Return completions of the last word of `text`; None where no magic of this package is being typed.

    Args:
        text: The cell up to the cursor.
        schemas: The parameter schema of every tool, by name.
    """
    match = _LINE.search(text)
    if match is None:
        return None
    words = re.split(r"[ \t]+", match["rest"])
    *before, last = words
    if not before:
        return [name for name in schemas if name.startswith(last)]
    if match["magic"] == "tools":
        return [flag for flag in _FORMATS if last and flag.startswith(last)]
    properties = schemas.get(before[0], {}).get("properties", {})
    name, equals, value = last.partition("=")
    if equals:
        return [f"{name}={v}" for v in _values(properties.get(name, {})) if v.startswith(value)]
    present = {word.partition("=")[0] for word in before}
    flags = [flag for flag in _CALL if last.startswith("-") and flag.startswith(last)]
    return [f"{name}=" for name in properties if name.startswith(last) and name not in present] + flags


def _values(schema: Any) -> list[str]:
    """Return the values of an enumerated argument as they are typed."""
    if not isinstance(schema, Mapping):
        return []
    if schema.get("type") == "boolean":
        return ["true", "false"]
    values = [v for v in schema.get("enum", ()) if isinstance(v, str) and v and " " not in v]
    return values + [v for option in schema.get("anyOf", ()) for v in _values(option)]


def make_matcher() -> Callable[[Any], Any]:
    """Return a matcher for IPython's completer that suppresses all others."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher()  # type: ignore[untyped-decorator]  # IPython's decorators are untyped
    def aisotools_matcher(context: Any) -> Any:
        before = context.text_until_cursor
        lines = context.full_text.split("\n")[: context.cursor_line]
        typed = "\n".join([*lines, before])
        # Lazy: the command line imports this module and has no notebook.
        from aisotools.notebook.current import current_session

        schemas = {tool.name: tool.parameters_schema() for tool in current_session().registry.list()}
        matches = complete_line(typed, schemas)
        if matches is None:
            return {"completions": [], "suppress": False}
        token, word = context.token, re.split(r"[ \t]", before)[-1]
        # IPython replaces its own idea of a word, which may begin behind `=` or `-`.
        cut = len(word) - len(token) if word.endswith(token) else 0
        completions = [
            SimpleCompletion(text=match[cut:], type="tool")
            for match in matches
            if match.startswith(word[:cut])
        ]
        return {"completions": completions, "suppress": True, "matched_fragment": token}

    matcher: Callable[[Any], Any] = aisotools_matcher
    return matcher
