"""A tool as each provider's client takes it, and what had to be changed, weakened or dropped for that.

The rules are those the providers publish: OpenAI's "Structured outputs: supported schemas", Anthropic's "Tool
use", Google's reference of `FunctionDeclaration` and `Schema`, and the schema of the Model Context Protocol.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aisotools.core.types import Effect, Json, ToolDefinition
from aisotools.tools.json_schema import (
    ArgumentPath,
    ChangeLog,
    GeminiConverter,
    Schema,
    SchemaChange,
    append_description,
    as_schema,
    flatten_root,
    inline_references,
    strict_violation,
    to_strict,
)

Provider = Literal["openai", "openai-responses", "anthropic", "gemini", "mcp"]
PROVIDERS: tuple[Provider, ...] = ("openai", "openai-responses", "anthropic", "gemini", "mcp")
"""Every dialect, by the name of who reads it."""


class Export(dict[str, Any]):
    """One tool, as a dict that a provider's client takes.

    Attributes:
        tool_name: The tool's own name, which may be another than the provider is told.
        changes: What the provider is told differently, and why.
    """

    def __init__(
        self,
        form: Mapping[str, Any],
        *,
        tool_name: str,
        changes: Sequence[SchemaChange] = (),
        renamed: Mapping[str, str] | None = None,
        optional: Iterable[ArgumentPath] = (),
        as_text: Iterable[ArgumentPath] = (),
    ) -> None:
        """Wrap `form`.

        Args:
            form: What the client takes.
            tool_name: The tool's own name.
            changes: What is told differently.
            renamed: Arguments whose names the provider rejects: the name told → the tool's own.
            optional: Where null means "left out".
            as_text: Where an object travels as JSON text.
        """
        super().__init__(form)
        self.tool_name = tool_name
        self.changes = tuple(changes)
        self._renamed = dict(renamed or {})
        self._optional, self._as_text = tuple(optional), tuple(as_text)

    def restore(self, arguments: Mapping[str, Json]) -> dict[str, Json]:
        """The arguments that a model gave through this form, as the tool takes them."""
        restored: dict[str, Json] = copy.deepcopy(dict(arguments))
        for spot in self._as_text:
            _at(restored, spot, _parse_in)
        for spot in self._optional:
            _at(restored, spot, _leave_out_null)
        return {self._renamed.get(name, name): value for name, value in restored.items()}


def _at(value: Any, spot: ArgumentPath, act: Callable[[dict[str, Any] | list[Any], Any], None]) -> None:
    """Have `act` change what lies at `spot`, wherever it is there."""
    first, rest = spot[0], spot[1:]
    if first == "*":
        keys: Iterable[Any] = range(len(value)) if isinstance(value, list) else ()
    else:
        keys = (first,) if isinstance(value, dict) and first in value else ()
    for key in tuple(keys):
        if rest:
            _at(value[key], rest, act)
        else:
            act(value, key)


def _parse_in(holder: Any, key: Any) -> None:
    text = holder[key]
    if not isinstance(text, str):
        return
    try:
        parsed = json.loads(text)
    except ValueError:
        return  # the tool's own validation tells the model what it wants instead
    if isinstance(parsed, dict):
        holder[key] = parsed


def _leave_out_null(holder: Any, key: Any) -> None:
    if isinstance(holder, dict) and holder[key] is None:
        del holder[key]


class Exports(list[Export]):
    """All tools for one provider, with the way back from what its model answers.

    Attributes:
        provider: Who reads them.
    """

    def __init__(self, provider: Provider, exports: Iterable[Export]) -> None:
        """Collect `exports`."""
        super().__init__(exports)
        self.provider = provider

    @property
    def changes(self) -> dict[str, tuple[SchemaChange, ...]]:
        """What is told differently, by the tool's own name; only tools of which anything is."""
        return {export.tool_name: export.changes for export in self if export.changes}

    def back(self, name: str, arguments: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """The tool and arguments meant by a model's call.

        A name that was never told comes back as it is: the gate answers it with the nearest names.
        """
        for export in self:
            if exported_name(export) == name:
                return export.tool_name, export.restore(arguments)
        return name, dict(arguments)


def exported_name(export: Mapping[str, Any]) -> str:
    """The tool's name as the provider is told."""
    function = export.get("function")
    return str(function["name"] if isinstance(function, Mapping) else export["name"])


def export_tools(
    definitions: Iterable[tuple[ToolDefinition, Effect | None]],
    provider: Provider,
    *,
    strict: bool | None = None,
) -> Exports:
    """All tools in one dialect; names that a provider rejects get an alias that nobody else has.

    Args:
        definitions: Tools, each with what every call of it may do, or None if that depends.
        provider: Who reads them.
        strict: For OpenAI's strict mode: None where a schema fits it as it is; True also where arguments that
            may be left out become ones that may be null; False never.

    Raises:
        ValueError: If there is no such dialect.
    """
    if provider not in PROVIDERS:
        known = ", ".join(repr(one) for one in (None, *PROVIDERS))
        raise ValueError(f"There is no dialect {provider!r}. Known: {known}.")
    given = list(definitions)
    taken = {definition.name for definition, _ in given}
    exports = []
    for definition, effect in given:
        notes = ChangeLog()
        alias = _alias(definition.name, provider, taken, notes)
        exports.append(_FORMS[provider](_Wish(definition, alias, effect, strict, notes)))
    return Exports(provider, exports)


@dataclass(frozen=True, slots=True)
class _Wish:
    """One tool on its way into one dialect."""

    definition: ToolDefinition
    name: str
    effect: Effect | None
    strict: bool | None
    notes: ChangeLog

    def export(self, form: Mapping[str, Any], **ways_back: Any) -> Export:
        """The finished form."""
        return Export(form, tool_name=self.definition.name, changes=self.notes.changes, **ways_back)


# ---- names

_NAMES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "openai": (re.compile(r"[A-Za-z0-9_-]{1,64}\Z"), "OpenAI takes 1 to 64 letters, digits, '_' and '-'"),
    "anthropic": (
        re.compile(r"[A-Za-z0-9_-]{1,64}\Z"),
        "Anthropic takes 1 to 64 letters, digits, '_' and '-'",
    ),
    "gemini": (
        re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z"),
        "Gemini takes names that start with a letter or '_', then letters, digits, '_', '.', '-'; 64 at most",
    ),
    "mcp": (re.compile(r"[A-Za-z0-9_.-]{1,128}\Z"), "MCP takes 1 to 128 letters, digits, '_', '-' and '.'"),
}


def _alias(name: str, provider: str, taken: set[str], notes: ChangeLog) -> str:
    legal, why = _NAMES["openai" if provider == "openai-responses" else provider]
    if legal.match(name):
        return name
    alias = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not re.match(r"[A-Za-z_]", alias):
        alias = f"_{alias}"
    alias = alias[:64]
    if alias in taken:
        alias = f"{alias[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    taken.add(alias)
    notes.add("name", "changed", f"{name!r} is called {alias!r}", why)
    return alias


# ---- OpenAI

_ROOT_WHY = "the provider takes one object of named arguments, without alternatives at its top"


def _root(wish: _Wish) -> Schema:
    """The schema as one object, as every provider but MCP demands it."""
    schema = as_schema(wish.definition.parameters)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        schema = inline_references(schema, wish.notes, _ROOT_WHY)
    if {"anyOf", "oneOf", "allOf", "not", "enum", "const", "if"} & schema.keys():
        return flatten_root(schema, wish.notes, _ROOT_WHY)
    schema.setdefault("type", "object")
    return schema


def _openai_function(wish: _Wish) -> tuple[Schema, tuple[ArgumentPath, ...]]:
    """The function, strict if that is wanted and possible, and where null means "left out"."""
    schema = _root(wish)
    optional: tuple[ArgumentPath, ...] = ()
    reason = "it was not asked for" if wish.strict is False else strict_violation(schema)
    if reason and wish.strict:
        rewritten = to_strict(schema, wish.notes)
        if isinstance(rewritten, str):
            reason = rewritten
        else:
            reason, (schema, optional) = "", rewritten
    if reason and wish.strict is not False:
        wish.notes.add("strict", "dropped", "strict mode is off for this tool", reason)
    function: Schema = {"name": wish.name, "description": wish.definition.description, "parameters": schema}
    if not reason:
        function["strict"] = True
    return function, optional


def _openai(wish: _Wish) -> Export:
    function, optional = _openai_function(wish)
    return wish.export({"type": "function", "function": function}, optional=optional)


def _openai_responses(wish: _Wish) -> Export:
    function, optional = _openai_function(wish)
    # The Responses API takes a missing `strict` for true.
    return wish.export({"type": "function", "strict": False, **function}, optional=optional)


# ---- Anthropic

_KEYS = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_KEYS_WHY = "Anthropic takes argument names of 1 to 64 letters, digits, '_', '.' and '-'"


def _anthropic(wish: _Wish) -> Export:
    schema, renamed = _root(wish), {}
    properties = {}
    for number, (name, one) in enumerate(schema.get("properties", {}).items()):
        key = name if _KEYS.match(name) else f"argument_{number + 1}"
        if key != name:
            renamed[key] = name
            wish.notes.add(f"parameters.{name}", "changed", f"called {key!r}", _KEYS_WHY)
            one = append_description(as_schema(one), f"This is {name!r}.")  # noqa: PLW2901 - the same schema, with its name
        properties[key] = one
    back = {name: key for key, name in renamed.items()}
    schema["properties"] = properties
    if "required" in schema:
        schema["required"] = [back.get(name, name) for name in schema["required"]]
    form = {"name": wish.name, "description": wish.definition.description, "input_schema": schema}
    return wish.export(form, renamed=renamed)


# ---- MCP

_HINTS: Mapping[Effect, Mapping[str, bool]] = {
    Effect.READ_ONLY: {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
    Effect.REMOTE_ACTION: {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
    Effect.LOCAL_MUTATION: {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    Effect.DESTRUCTIVE: {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False},
}


def _mcp(wish: _Wish) -> Export:
    schema = as_schema(wish.definition.parameters)
    schema.setdefault("type", "object")
    form: dict[str, Any] = {
        "name": wish.name,
        "description": wish.definition.description,
        "inputSchema": schema,
    }
    # What depends on the arguments is announced as the worst that the protocol takes for granted.
    form["annotations"] = dict(_HINTS[wish.effect]) if wish.effect else {"readOnlyHint": False}
    return wish.export(form)


# ---- Gemini


def _gemini(wish: _Wish) -> Export:
    notes = wish.notes
    schema = inline_references(wish.definition.parameters, notes, "Gemini knows no references")
    schema = flatten_root(schema, notes, _ROOT_WHY)
    form: dict[str, Any] = {"name": wish.name, "description": wish.definition.description}
    if not schema["properties"]:
        return wish.export(form)
    gemini = GeminiConverter(notes)
    form["parameters"] = gemini.convert(schema, "parameters", ())
    return wish.export(form, as_text=gemini.as_text)


_FORMS: Mapping[str, Callable[[_Wish], Export]] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mcp": _mcp,
}
