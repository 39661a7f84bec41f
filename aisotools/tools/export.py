"""Export tools to the formats of model providers, and convert the calls of their models back.

The rules are those that the providers publish: OpenAI's "Structured outputs: supported schemas", Anthropic's
"Tool use", Google's reference of `FunctionDeclaration` and `Schema`, and the schema of the Model Context
Protocol. Every difference between a tool's schema and its export is listed as a `SchemaChange`.
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
"""The supported formats."""


class Export(dict[str, Any]):
    """One tool in a provider's format, with the way back for the arguments of a call.

    Attributes:
        tool_name: The tool's own name. The exported name differs where the provider rejects this one.
        changes: The differences from the tool's schema, each with its reason.
    """

    def __init__(
        self,
        payload: Mapping[str, Any],
        *,
        tool_name: str,
        changes: Sequence[SchemaChange] = (),
        renamed: Mapping[str, str] | None = None,
        optional: Iterable[ArgumentPath] = (),
        as_text: Iterable[ArgumentPath] = (),
    ) -> None:
        """Wrap `payload`.

        Args:
            payload: The dict that the provider's client takes.
            tool_name: The tool's own name.
            changes: The differences from the tool's schema.
            renamed: The tool's own names of arguments, by their exported names, where these differ.
            optional: Where null stands for an argument that was left out.
            as_text: Where an object is exported as JSON text.
        """
        super().__init__(payload)
        self.tool_name = tool_name
        self.changes = tuple(changes)
        self._renamed = dict(renamed or {})
        self._optional = tuple(optional)
        self._as_text = tuple(as_text)

    def restore(self, arguments: Mapping[str, Json]) -> dict[str, Json]:
        """Convert the arguments of a model's call to those that the tool takes."""
        restored: dict[str, Json] = copy.deepcopy(dict(arguments))
        for path in self._as_text:
            _visit(restored, path, _parse_json_text)
        for path in self._optional:
            _visit(restored, path, _drop_null)
        return {self._renamed.get(name, name): value for name, value in restored.items()}


def _visit(value: Any, path: ArgumentPath, action: Callable[[dict[str, Any] | list[Any], Any], None]) -> None:
    """Call `action(container, key)` for every value at `path`; parts of the path may be missing."""
    first, rest = path[0], path[1:]
    if first == "*":
        keys: Iterable[Any] = range(len(value)) if isinstance(value, list) else ()
    else:
        keys = (first,) if isinstance(value, dict) and first in value else ()
    for key in tuple(keys):
        if rest:
            _visit(value[key], rest, action)
        else:
            action(value, key)


def _parse_json_text(container: Any, key: Any) -> None:
    text = container[key]
    if not isinstance(text, str):
        return
    try:
        parsed = json.loads(text)
    except ValueError:
        # The tool's own validation reports it to the model, with the expected type.
        return
    if isinstance(parsed, dict):
        container[key] = parsed


def _drop_null(container: Any, key: Any) -> None:
    if isinstance(container, dict) and container[key] is None:
        del container[key]


class Exports(list[Export]):
    """All tools in one provider's format, with the way back for the calls of its model.

    Attributes:
        provider: The format.
    """

    def __init__(self, provider: Provider, exports: Iterable[Export]) -> None:
        """Collect `exports`."""
        super().__init__(exports)
        self.provider = provider

    @property
    def changes(self) -> dict[str, tuple[SchemaChange, ...]]:
        """The differences from the tools' schemas, by the tool's own name. Unchanged tools are left out."""
        return {export.tool_name: export.changes for export in self if export.changes}

    def back(self, name: str, arguments: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Convert a model's call to the tool's own name and arguments.

        An unknown name is returned unchanged: the gate answers it with the nearest names.
        """
        for export in self:
            if exported_name(export) == name:
                return export.tool_name, export.restore(arguments)
        return name, dict(arguments)


def exported_name(export: Mapping[str, Any]) -> str:
    """Return the tool's name in the export."""
    function = export.get("function")
    return str(function["name"] if isinstance(function, Mapping) else export["name"])


def export_tools(
    definitions: Iterable[tuple[ToolDefinition, Effect | None]],
    provider: Provider,
    *,
    strict: bool | None = None,
) -> Exports:
    """Export tools to one format. A name that the provider rejects is replaced by a unique alias.

    Args:
        definitions: Tools, each with the effect of every call, or None if that depends on the arguments.
        provider: The format.
        strict: Use of OpenAI's strict mode. None: for schemas that fit it unchanged. True: also for schemas
            that fit once optional arguments are nullable instead. False: never.

    Raises:
        ValueError: If `provider` is unknown.
    """
    if provider not in PROVIDERS:
        known = ", ".join(map(repr, (None, *PROVIDERS)))
        raise ValueError(f"Unknown provider {provider!r}. Use one of {known}.")
    pairs = list(definitions)
    names = {definition.name for definition, _ in pairs}
    exports = []
    for definition, effect in pairs:
        log = ChangeLog()
        alias = _alias(definition.name, provider, names, log)
        exports.append(_EXPORTERS[provider](_ExportRequest(definition, alias, effect, strict, log)))
    return Exports(provider, exports)


@dataclass(frozen=True, slots=True)
class _ExportRequest:
    """One tool and the options of its export. `name` is what the provider reads; changes go to `log`."""

    definition: ToolDefinition
    name: str
    effect: Effect | None
    strict: bool | None
    log: ChangeLog

    def finish(self, payload: Mapping[str, Any], **way_back: Any) -> Export:
        return Export(payload, tool_name=self.definition.name, changes=self.log.changes, **way_back)


# -- names

_NAME_RULES: Mapping[str, tuple[re.Pattern[str], str]] = {
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


def _alias(name: str, provider: str, taken: set[str], log: ChangeLog) -> str:
    valid, rule = _NAME_RULES["openai" if provider == "openai-responses" else provider]
    if valid.match(name):
        return name
    alias = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    if not re.match(r"[A-Za-z_]", alias):
        alias = f"_{alias}"
    alias = alias[:64]
    if alias in taken:
        alias = f"{alias[:55]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    taken.add(alias)
    log.add("name", "changed", f"{name!r} is called {alias!r}", rule)
    return alias


# -- OpenAI

_ROOT_RULE = "the provider takes one object of named arguments, without alternatives at its top"


def _object_schema(request: _ExportRequest) -> Schema:
    """Return the schema as one object without alternatives, as every provider but MCP requires."""
    schema = as_schema(request.definition.parameters)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        schema = inline_references(schema, request.log, _ROOT_RULE)
    if {"anyOf", "oneOf", "allOf", "not", "enum", "const", "if"} & schema.keys():
        return flatten_root(schema, request.log, _ROOT_RULE)
    schema.setdefault("type", "object")
    return schema


def _openai_function(request: _ExportRequest) -> tuple[Schema, tuple[ArgumentPath, ...]]:
    """Return the function, strict if requested and possible, and where null means "left out"."""
    schema = _object_schema(request)
    optional: tuple[ArgumentPath, ...] = ()
    reason = "it was not requested" if request.strict is False else strict_violation(schema)
    if reason and request.strict:
        converted = to_strict(schema, request.log)
        if isinstance(converted, str):
            reason = converted
        else:
            reason = ""
            schema, optional = converted
    if reason and request.strict is not False:
        request.log.add("strict", "dropped", "strict mode is off for this tool", reason)
    function: Schema = {
        "name": request.name,
        "description": request.definition.description,
        "parameters": schema,
    }
    if not reason:
        function["strict"] = True
    return function, optional


def _openai(request: _ExportRequest) -> Export:
    function, optional = _openai_function(request)
    return request.finish({"type": "function", "function": function}, optional=optional)


def _openai_responses(request: _ExportRequest) -> Export:
    function, optional = _openai_function(request)
    # In the Responses API a missing `strict` means true.
    return request.finish({"type": "function", "strict": False, **function}, optional=optional)


# -- Anthropic

_ANTHROPIC_KEY = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_ANTHROPIC_KEY_RULE = "Anthropic takes argument names of 1 to 64 letters, digits, '_', '.' and '-'"


def _anthropic(request: _ExportRequest) -> Export:
    schema = _object_schema(request)
    own_names = {}
    properties = {}
    for number, (name, value) in enumerate(schema.get("properties", {}).items(), 1):
        key = name if _ANTHROPIC_KEY.match(name) else f"argument_{number}"
        if key != name:
            own_names[key] = name
            request.log.add(f"parameters.{name}", "changed", f"called {key!r}", _ANTHROPIC_KEY_RULE)
            properties[key] = append_description(as_schema(value), f"This is {name!r}.")
        else:
            properties[key] = value
    exported_names = {name: key for key, name in own_names.items()}
    schema["properties"] = properties
    if "required" in schema:
        schema["required"] = [exported_names.get(name, name) for name in schema["required"]]
    payload = {"name": request.name, "description": request.definition.description, "input_schema": schema}
    return request.finish(payload, renamed=own_names)


# -- MCP

_HINTS: Mapping[Effect, Mapping[str, bool]] = {
    Effect.READ_ONLY: {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
    Effect.REMOTE_ACTION: {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
    Effect.LOCAL_MUTATION: {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    Effect.DESTRUCTIVE: {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False},
}


def _mcp(request: _ExportRequest) -> Export:
    schema = as_schema(request.definition.parameters)
    schema.setdefault("type", "object")
    payload: dict[str, Any] = {
        "name": request.name,
        "description": request.definition.description,
        "inputSchema": schema,
    }
    # Where the effect depends on the arguments, the protocol's defaults apply: destructive, open world.
    payload["annotations"] = dict(_HINTS[request.effect]) if request.effect else {"readOnlyHint": False}
    return request.finish(payload)


# -- Gemini


def _gemini(request: _ExportRequest) -> Export:
    schema = inline_references(request.definition.parameters, request.log, "Gemini has no references")
    schema = flatten_root(schema, request.log, _ROOT_RULE)
    payload: dict[str, Any] = {"name": request.name, "description": request.definition.description}
    if not schema["properties"]:
        # Gemini rejects an object without properties; a function without arguments has no `parameters`.
        return request.finish(payload)
    converter = GeminiConverter(request.log)
    payload["parameters"] = converter.convert(schema, "parameters", ())
    return request.finish(payload, as_text=converter.as_text)


_EXPORTERS: Mapping[str, Callable[[_ExportRequest], Export]] = {
    "openai": _openai,
    "openai-responses": _openai_responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mcp": _mcp,
}
