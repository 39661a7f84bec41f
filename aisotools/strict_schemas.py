"""OpenAI's strict mode: which schemas fit it as they are, and how others are made to.

Rules: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aisotools.schema_forms import Notes, Schema, Spot, as_schema, merged, moved_to_words, resolve, subschemas

_KNOWN = {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const"),
    *("$ref", "$defs", "definitions", "description", "title"),
    *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minItems", "maxItems"),
}
_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
}
_STRUCTURAL = {"prefixItems", "patternProperties", "not", "if", "then", "else"}
_TYPES = {"string", "number", "boolean", "integer", "object", "array", "null"}
_PROPERTIES, _LEVELS, _TEXT_CHARS, _VALUES = 5_000, 10, 120_000, 1_000
_LONG_LIST, _LONG_LIST_CHARS = 250, 15_000
_WHY = "OpenAI's strict mode knows only part of JSON Schema"


def strictly_valid(schema: Mapping[str, Any]) -> str:
    """Why a schema does not fit strict mode as it is; empty when it does."""
    if "anyOf" in schema:
        return "there are alternatives at the top"
    return next(_misfits(schema, "parameters"), "") or _over_limits(schema)


def _misfits(schema: object, path: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        yield f"{path} allows anything"
        return
    for keyword in schema.keys() - _KNOWN:
        yield f"{path} uses {keyword}"
    if "$ref" in schema and len(schema) > 1:
        yield f"{path} says more beside a reference"
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not set(map(str, kinds)) <= _TYPES:
        yield f"{path} has the type {schema['type']!r}"
    if not kinds and not schema.keys() & {"$ref", "anyOf", "enum", "const"}:
        yield f"{path} allows anything"
    if "format" in schema and schema["format"] not in _FORMATS:
        yield f"{path} uses the format {schema['format']!r}"
    if "object" in kinds:
        yield from _object_misfits(schema, path)
    if "array" in kinds and not isinstance(schema.get("items"), Mapping):
        yield f"{path} is a list of anything"
    for key in ("properties", "$defs", "definitions"):
        for name, one in dict(schema.get(key) or {}).items():
            yield from _misfits(one, f"{path}.{name}")
    for one in (*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])):
        yield from _misfits(one, path)


def _object_misfits(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if schema.get("additionalProperties") is not False:
        yield f"{path} is an object of any names"
    missing = [name for name in schema.get("properties", {}) if name not in schema.get("required", ())]
    if missing:
        yield f"{path}.{missing[0]} may be left out"


def _over_limits(schema: Mapping[str, Any]) -> str:
    properties, values, text, deepest = 0, 0, 0, 0
    todo: list[tuple[Any, int]] = [(schema, 1)]
    while todo:
        node, depth = todo.pop()
        if not isinstance(node, Mapping):
            continue
        named = [*node.get("properties", {}), *node.get("$defs", {})]
        listed = [*node.get("enum", ()), *([node["const"]] if "const" in node else [])]
        texts = [one for one in listed if isinstance(one, str)]
        properties, values = properties + len(node.get("properties", {})), values + len(listed)
        text += sum(map(len, [*named, *texts]))
        deepest = max(deepest, depth)
        if len(listed) > _LONG_LIST and sum(map(len, texts)) > _LONG_LIST_CHARS:
            return f"a list of over {_LONG_LIST} values has more than {_LONG_LIST_CHARS:,} characters"
        inner = depth + (node.get("type") == "object")
        todo += [(one, inner) for one in subschemas(node)]
    over = {
        f"more than {_PROPERTIES:,} properties": properties > _PROPERTIES,
        f"objects nested deeper than {_LEVELS}": deepest > _LEVELS + 1,
        f"more than {_TEXT_CHARS:,} characters of names and values": text > _TEXT_CHARS,
        f"more than {_VALUES:,} listed values": values > _VALUES,
    }
    return next((reason for reason, is_over in over.items() if is_over), "")


def strict_form(schema: Mapping[str, Any], notes: Notes) -> tuple[Schema, tuple[Spot, ...]] | str:
    """A schema made to fit strict mode, and where null now means "left out"; or why it cannot be.

    What may be left out becomes what may be null. Keywords that strict mode does not know move into the
    description; our own validation still holds to them.
    """
    rewriting = _Rewriting(schema)
    strict = rewriting.of(schema, "parameters", ())
    reason = strictly_valid(strict)
    if reason:
        return reason
    notes.changes.extend(rewriting.notes.changes)
    return strict, tuple(rewriting.optional)


class _Rewriting:
    """Rewrites one tool's schema, and remembers where null means "left out"."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.notes = Notes()
        self.optional: list[Spot] = []

    def of(self, value: object, path: str, spot: Spot | None) -> Schema:
        """One schema; `spot` is None where its place in the arguments cannot be told."""
        schema = merged(as_schema(value), path, self.notes, _WHY)
        if "$ref" in schema and len(schema) > 1:
            schema = self._spelled_out(schema, path)
        if "oneOf" in schema:
            schema["anyOf"] = [*schema.get("anyOf", []), *schema.pop("oneOf")]
            schema.pop("discriminator", None)
            self.notes.add(path, "weakened", "oneOf becomes anyOf", _WHY)
        unknown = schema.keys() - _KNOWN - _STRUCTURAL
        if schema.get("format") not in {None, *_FORMATS}:
            unknown |= {"format"}
        schema = moved_to_words(schema, unknown, path, self.notes, _WHY)
        for key in ("$defs", "definitions"):
            for name, one in dict(schema.get(key) or {}).items():
                schema[key][name] = self.of(one, name, None)
        if "anyOf" in schema:
            parts = schema["anyOf"]
            inside = spot if len([one for one in parts if one != {"type": "null"}]) == 1 else None
            schema["anyOf"] = [self.of(one, path, inside) for one in parts]
        if isinstance(schema.get("items"), Mapping):
            inside = None if spot is None else (*spot, "*")
            schema["items"] = self.of(schema["items"], f"{path}[]", inside)
        if isinstance(schema.get("properties"), Mapping):
            schema = self._all_required(schema, path, spot)
        return schema

    def _spelled_out(self, schema: Schema, path: str) -> Schema:
        """What stands beside a reference moves into a copy of what it names, or around the reference."""
        target = resolve(self._root, schema["$ref"])
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        self.notes.add(path, "changed", "a reference with more beside it is spelled out", _WHY)
        if target is None or any("$ref" in str(one) for one in subschemas(target)):
            return {"anyOf": [{"$ref": schema["$ref"]}], **rest}
        return {**as_schema(target), **rest}

    def _all_required(self, schema: Schema, path: str, spot: Spot | None) -> Schema:
        required = set(schema.get("required", ()))
        properties = {}
        for name, one in schema["properties"].items():
            inside = None if spot is None else (*spot, name)
            inner = self.of(one, f"{path}.{name}", inside)
            if name not in required and not _takes_null(inner):
                if inside is None:
                    inner = {"not": {}}  # nobody could tell null from "left out" there: no strict form
                else:
                    inner = {"anyOf": [inner, {"type": "null"}]}
                    self.optional.append(inside)
                    self.notes.add(f"{path}.{name}", "changed", "may be null instead of left out", _WHY)
            properties[name] = inner
        schema["properties"], schema["required"] = properties, list(properties)
        if schema.get("additionalProperties") is None:
            schema["additionalProperties"] = False
            self.notes.add(path, "changed", "further names are refused", _WHY)
        return schema


def _takes_null(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", [])
    return "null" in (kinds if isinstance(kinds, list) else [kinds]) or any(
        isinstance(one, Mapping) and _takes_null(one) for one in schema.get("anyOf", ())
    )
