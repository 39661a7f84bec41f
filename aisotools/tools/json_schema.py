"""Rewriting JSON Schema for a reader that knows only part of it, keeping a list of everything that was lost.

What a schema says and its reader does not know is moved into the description, where a model still reads it.

OpenAI's strict mode: which schemas fit it as they are, and how others are made to.

Rules: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas

A JSON Schema as Gemini's `Schema`, which is a part of OpenAPI 3.0.

Fields: https://ai.google.dev/api/caching#Schema
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_json

from aisotools.core.types import Json

Action = Literal["changed", "weakened", "dropped"]
Schema = dict[str, Any]
ArgumentPath = tuple[str, ...]
"""Where a value lies in the arguments: names of properties, and `*` for every item of a list."""

_DEEPEST = 32
_TOLD_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """One difference between what a tool says and what a provider is told.

    Attributes:
        path: Where, such as `parameters.items.limit`; `name` for the tool's name.
        action: `changed` says the same in other words, `weakened` allows more than the tool does, `dropped`
            leaves something out.
        what: What was done.
        why: The provider's rule behind it.
    """

    path: str
    action: Action
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what} ({self.action}: {self.why})"


class ChangeLog:
    """The changes so far."""

    def __init__(self) -> None:
        """Start with none."""
        self.changes: list[SchemaChange] = []

    def __repr__(self) -> str:
        return f"<Notes of {len(self.changes)} changes>"

    def add(self, path: str, action: Action, what: str, why: str) -> None:
        """Note one change, once."""
        change = SchemaChange(path=path, action=action, what=what, why=why)
        if change not in self.changes:
            self.changes.append(change)


def as_schema(value: object) -> Schema:
    """A schema as a new dict: `True` allows everything; what is no schema is taken for that too."""
    if value is False:
        return {"not": {}}
    return copy.deepcopy(dict(value)) if isinstance(value, Mapping) else {}


def resolve(root: Mapping[str, Any], reference: object) -> Mapping[str, Any] | None:
    """What a reference inside `root` points to; None if it points elsewhere or nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else None


def inline_references(root: Mapping[str, Any], notes: ChangeLog, why: str, *, rounds: int = 1) -> Schema:
    """`root` without references: each is replaced by what it names.

    A schema that contains itself is spelled out `rounds` times, then anything goes.

    Args:
        root: A schema.
        notes: Takes what could not be kept.
        why: The rule that makes this necessary.
        rounds: How often a recursive schema is spelled out inside itself.
    """

    def walk(node: object, path: str, within: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [walk(one, path, within) for one in node]
        if not isinstance(node, Mapping):
            return node
        reference = node.get("$ref")
        if reference is None:
            return {
                key: value if key in _NOT_SCHEMAS else walk_named(key, value, path, within)
                for key, value in node.items()
                if key not in {"$defs", "definitions"}
            }
        target = resolve(root, reference)
        rest = {key: value for key, value in node.items() if key != "$ref"}
        if target is None:
            notes.add(path, "dropped", f"the reference to {_told(reference)}", "it points nowhere in here")
            return walk(rest, path, within)
        if within.count(str(reference)) > rounds or len(within) > _DEEPEST:
            notes.add(path, "weakened", "a schema that contains itself is spelled out only so far", why)
            kind = target.get("type")
            text = f"{target.get('description', '')} Nested as above.".strip()
            return {**({"type": kind} if isinstance(kind, str) else {}), "description": text, **rest}
        return walk({**target, **rest}, path, (*within, str(reference)))

    def walk_named(key: str, value: object, path: str, within: tuple[str, ...]) -> Any:
        if key in _MAPS and isinstance(value, Mapping):
            return {name: walk(one, f"{path}.{name}", within) for name, one in value.items()}
        return walk(value, path, within)

    found: Schema = walk(root, "parameters", ())
    return found


_MAPS = {"properties", "patternProperties", "dependentSchemas"}
_NOT_SCHEMAS = {"enum", "const", "default", "examples", "example", "required", "discriminator"}


def merge_all_of(schema: Schema, path: str, notes: ChangeLog, why: str) -> Schema:
    """`schema` without `allOf`, as far as its parts can be laid over one another."""
    parts = schema.pop("allOf", None)
    if not isinstance(parts, list):
        return schema
    whole = len(parts) == 1
    for part in map(as_schema, parts):
        inner = merge_all_of(part, path, notes, why)
        properties = {**inner.get("properties", {}), **schema.get("properties", {})}
        required = [*schema.get("required", []), *inner.get("required", [])]
        clash = {key for key in inner.keys() & schema.keys() if inner[key] != schema[key]}
        whole = whole or not clash - {"properties", "required", "description", "title"}
        schema = {**inner, **schema}
        if properties:
            schema["properties"] = properties
        if required:
            schema["required"] = list(dict.fromkeys(required))
    action: Action = "changed" if whole else "weakened"
    notes.add(path, action, "the parts of allOf are laid over one another", why)
    return schema


def flatten_root(schema: Schema, notes: ChangeLog, why: str) -> Schema:
    """`schema` as one object: alternatives at the top are thrown together, so more is allowed."""
    schema = merge_all_of(schema, "parameters", notes, why)
    for keyword in ("anyOf", "oneOf"):
        parts = schema.pop(keyword, None)
        if not isinstance(parts, list):
            continue
        branches = [merge_all_of(as_schema(part), "parameters", notes, why) for part in parts]
        objects = [branch for branch in branches if isinstance(branch.get("properties"), Mapping)]
        properties: Schema = {}
        for branch in objects:
            for name, one in branch["properties"].items():
                properties[name] = _either(properties[name], one) if name in properties else one
        own = schema.get("properties", {})
        always = [set(branch.get("required", [])) for branch in branches]
        both = set.intersection(*always) if always else set()
        required = [*schema.get("required", []), *(name for name in properties if name in both)]
        schema = {**schema, "type": "object", "properties": {**properties, **own}}
        if required:
            schema["required"] = list(dict.fromkeys(required))
        notes.add("parameters", "weakened", f"the alternatives of {keyword} become one object", why)
    for keyword in ("not", "enum", "const", "if", "then", "else", "dependentRequired", "dependentSchemas"):
        if keyword in schema:
            del schema[keyword]
            notes.add("parameters", "dropped", keyword, why)
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    return schema


def _either(one: object, other: object) -> Any:
    return one if one == other else {"anyOf": [one, other]}


def split_null(schema: Schema) -> tuple[Schema, bool]:
    """`schema` without null among its types and alternatives, and whether it was there."""
    found = False
    kind = schema.get("type")
    if isinstance(kind, list):
        rest = [one for one in kind if one != "null"]
        found = len(rest) < len(kind)
        schema = {**schema, "type": rest[0] if len(rest) == 1 else rest}
    for keyword in ("anyOf", "oneOf"):
        parts = schema.get(keyword)
        if not isinstance(parts, list):
            continue
        rest = [part for part in parts if part != {"type": "null"}]
        if len(rest) < len(parts):
            found = True
            schema = {key: value for key, value in schema.items() if key != keyword}
            if len(rest) == 1 and isinstance(rest[0], Mapping):
                schema = {**rest[0], **schema}
            elif rest:
                schema[keyword] = rest
    return schema, found


def append_description(schema: Schema, *sentences: str) -> Schema:
    """`schema` with `sentences` added to its description."""
    text = str(schema.get("description") or "").strip()
    if text and text[-1] not in ".!?:":
        text += "."
    return {**schema, "description": " ".join(filter(None, [text, *sentences]))}


_WORDS = {
    "minLength": "At least {} characters.",
    "maxLength": "At most {} characters.",
    "minItems": "At least {} items.",
    "maxItems": "At most {} items.",
    "minProperties": "At least {} entries.",
    "maxProperties": "At most {} entries.",
    "minimum": "At least {}.",
    "maximum": "At most {}.",
    "exclusiveMinimum": "More than {}.",
    "exclusiveMaximum": "Less than {}.",
    "multipleOf": "A multiple of {}.",
    "pattern": "Matches the regular expression {}.",
    "format": "In the format {}.",
    "default": "Default: {}.",
    "const": "Always {}.",
    "enum": "One of {}.",
    "uniqueItems": "No item twice.",
    "contentEncoding": "Encoded as {}.",
    "contentMediaType": "Of the type {}.",
}


def describe_keyword(keyword: str, value: Json) -> str:
    """What a keyword says, for a description; empty for one that a model has no use for."""
    if keyword == "enum" and isinstance(value, list):
        return _WORDS["enum"].format(_cut(", ".join(_told(one) for one in value)))
    if keyword == "uniqueItems" and not value:
        return ""
    plain = {"pattern", "format", "contentEncoding", "contentMediaType"}
    shown = value if keyword in plain and isinstance(value, str) else _told(value)
    return _WORDS[keyword].format(_cut(str(shown))) if keyword in _WORDS else ""


def _told(value: object) -> str:
    try:
        return _cut(to_json(value).decode())
    except ValueError:
        return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _TOLD_CHARS else f"{text[:_TOLD_CHARS]}…"


def move_to_description(schema: Schema, keywords: set[str], path: str, notes: ChangeLog, why: str) -> Schema:
    """`schema` without `keywords`, which its description tells instead."""
    found = [keyword for keyword in schema if keyword in keywords]
    words = [describe_keyword(keyword, schema[keyword]) for keyword in found]
    for keyword, text in zip(found, words, strict=True):
        del schema[keyword]
        where = "the description tells it instead" if text else "left out"
        notes.add(path, "weakened" if text else "dropped", f"{keyword}: {where}", why)
    return append_description(schema, *words) if any(words) else schema


def subschemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """All schemas directly inside `schema`."""
    for key, value in schema.items():
        if key in _MAPS | {"$defs", "definitions"} and isinstance(value, Mapping):
            yield from value.values()
        elif key in {"anyOf", "oneOf", "allOf", "prefixItems"} and isinstance(value, list):
            yield from value
        elif key in {"items", "additionalProperties", "not", "contains", "propertyNames"}:
            yield value


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


def strict_violation(schema: Mapping[str, Any]) -> str:
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


def to_strict(schema: Mapping[str, Any], notes: ChangeLog) -> tuple[Schema, tuple[ArgumentPath, ...]] | str:
    """A schema made to fit strict mode, and where null now means "left out"; or why it cannot be.

    What may be left out becomes what may be null. Keywords that strict mode does not know move into the
    description; our own validation still holds to them.
    """
    rewriting = _Rewriting(schema)
    strict = rewriting.of(schema, "parameters", ())
    reason = strict_violation(strict)
    if reason:
        return reason
    notes.changes.extend(rewriting.notes.changes)
    return strict, tuple(rewriting.optional)


class _Rewriting:
    """Rewrites one tool's schema, and remembers where null means "left out"."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.notes = ChangeLog()
        self.optional: list[ArgumentPath] = []

    def of(self, value: object, path: str, spot: ArgumentPath | None) -> Schema:
        """One schema; `spot` is None where its place in the arguments cannot be told."""
        schema = merge_all_of(as_schema(value), path, self.notes, _WHY)
        if "$ref" in schema and len(schema) > 1:
            schema = self._spelled_out(schema, path)
        if "oneOf" in schema:
            schema["anyOf"] = [*schema.get("anyOf", []), *schema.pop("oneOf")]
            schema.pop("discriminator", None)
            self.notes.add(path, "weakened", "oneOf becomes anyOf", _WHY)
        unknown = schema.keys() - _KNOWN - _STRUCTURAL
        if schema.get("format") not in {None, *_FORMATS}:
            unknown |= {"format"}
        schema = move_to_description(schema, unknown, path, self.notes, _WHY)
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

    def _all_required(self, schema: Schema, path: str, spot: ArgumentPath | None) -> Schema:
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


_GEMINI_KEPT = {
    *("type", "format", "title", "description", "nullable", "enum", "items", "minItems", "maxItems"),
    *("properties", "required", "minProperties", "maxProperties", "minimum", "maximum"),
    *("minLength", "maxLength", "pattern", "anyOf"),
}
_GEMINI_FORMATS = {
    "string": {"enum", "date-time"},
    "integer": {"int32", "int64"},
    "number": {"float", "double"},
}
_GEMINI_WHY = "Gemini's Schema is a part of OpenAPI 3.0"
_ANYTHING = ("string", "number", "boolean")


class GeminiConverter:
    """Turns one tool's schema into Gemini's.

    Attributes:
        as_text: Where objects travel as JSON text.
    """

    def __init__(self, notes: ChangeLog) -> None:
        """Note in `notes` what is lost."""
        self._notes = notes
        self.as_text: list[ArgumentPath] = []

    def convert(self, value: object, path: str, spot: ArgumentPath, *, alone: bool = True) -> Schema:
        """One schema without references; `alone` unless it is one of several alternatives."""
        schema = merge_all_of(as_schema(value), path, self._notes, _GEMINI_WHY)
        schema, null = split_null(schema)
        if "oneOf" in schema:
            schema["anyOf"] = [*schema.get("anyOf", []), *schema.pop("oneOf")]
            self._notes.add(path, "weakened", "oneOf becomes anyOf", _GEMINI_WHY)
        if isinstance(schema.get("type"), list):
            kinds = schema.pop("type")
            schema["anyOf"] = [{"type": kind} for kind in kinds]
            self._notes.add(path, "changed", "several types become alternatives", _GEMINI_WHY)
        schema = self._typed(self._fixed_values(schema, path), path)
        if "anyOf" in schema:
            parts = schema.pop("anyOf")
            alone = alone and not any(as_schema(part).get("type") == "string" for part in parts)
            schema["anyOf"] = [self.convert(part, path, spot, alone=alone) for part in parts]
        elif schema.get("type") == "object":
            schema = self._object(schema, path, spot, alone=alone)
        elif schema.get("type") == "array":
            schema = self._array(schema, path, spot)
        schema = self._bounds(schema, path)
        schema = move_to_description(schema, schema.keys() - _GEMINI_KEPT, path, self._notes, _GEMINI_WHY)
        if null:
            schema["nullable"] = True
        return schema

    def _fixed_values(self, schema: Schema, path: str) -> Schema:
        """Constants and lists of values: Gemini knows lists of texts."""
        if "const" in schema:
            schema = {**schema, "enum": [schema["const"]]}
            del schema["const"]
            self._notes.add(path, "changed", "const becomes a list of one value", _GEMINI_WHY)
        values = schema.get("enum")
        if not isinstance(values, list):
            return schema
        if all(isinstance(one, str) for one in values):
            return {**schema, "type": "string"}
        kinds = {type(one) for one in values}
        if kinds == {int} and "type" not in schema:
            schema = {**schema, "type": "integer"}
        if kinds <= {int, float}:
            schema = {**schema, "minimum": min(values), "maximum": max(values)}
        return move_to_description(schema, {"enum"}, path, self._notes, "Gemini lists only texts")

    def _typed(self, schema: Schema, path: str) -> Schema:
        if "type" in schema or "anyOf" in schema:
            return schema
        guess = {"properties": "object", "items": "array", "prefixItems": "array"}
        for keyword, kind in guess.items():
            if keyword in schema:
                return {**schema, "type": kind}
        self._notes.add(path, "weakened", "anything becomes text, a number or a truth value", _GEMINI_WHY)
        return {**schema, "anyOf": [{"type": kind} for kind in _ANYTHING]}

    def _object(self, schema: Schema, path: str, spot: ArgumentPath, *, alone: bool) -> Schema:
        properties = schema.get("properties") or {}
        if not properties and spot:
            # An object without named properties is refused there, so it travels as text.
            for keyword in ("additionalProperties", "patternProperties", "propertyNames", "properties"):
                schema.pop(keyword, None)
            schema.pop("required", None)
            if alone:
                self.as_text.append(spot)
            what = "an object of any names travels as JSON text" + ("" if alone else ", and stays text")
            action: Literal["changed", "weakened"] = "changed" if alone else "weakened"
            self._notes.add(path, action, what, "Gemini takes no object without named properties")
            schema = move_to_description(
                schema, {"minProperties", "maxProperties"}, path, self._notes, _GEMINI_WHY
            )
            return append_description({**schema, "type": "string"}, "A JSON object, written as text.")
        further = schema.pop("additionalProperties", False)  # that no others are allowed is understood
        if further is not False:
            self._notes.add(path, "dropped", "additionalProperties", _GEMINI_WHY)
        schema["properties"] = {
            name: self.convert(one, f"{path}.{name}", (*spot, name)) for name, one in properties.items()
        }
        if "required" in schema:
            schema["required"] = [name for name in schema["required"] if name in properties]
            if not schema["required"]:
                del schema["required"]
        return schema

    def _array(self, schema: Schema, path: str, spot: ArgumentPath) -> Schema:
        first = schema.pop("prefixItems", None)
        if isinstance(first, list) and first:
            rest = schema.get("items")
            kinds = [*first, *([rest] if isinstance(rest, Mapping) else [])]
            different = [one for number, one in enumerate(kinds) if one not in kinds[:number]]
            schema["items"] = different[0] if len(different) == 1 else {"anyOf": different}
            schema.setdefault("minItems", len(first))
            if not isinstance(rest, Mapping):
                schema.setdefault("maxItems", len(first))
            self._notes.add(path, "weakened", "which item has which type is lost", _GEMINI_WHY)
        schema["items"] = self.convert(schema.get("items", {}), f"{path}[]", (*spot, "*"))
        return schema

    def _bounds(self, schema: Schema, path: str) -> Schema:
        for keyword, inclusive, step in (
            ("exclusiveMinimum", "minimum", 1),
            ("exclusiveMaximum", "maximum", -1),
        ):
            bound = schema.get(keyword)
            if schema.get("type") == "integer" and isinstance(bound, int) and inclusive not in schema:
                schema[inclusive] = schema.pop(keyword) + step
                self._notes.add(path, "changed", f"{keyword} becomes {inclusive}", _GEMINI_WHY)
        kind = schema.get("type")
        if "format" in schema and schema["format"] not in _GEMINI_FORMATS.get(str(kind), set()):
            schema = move_to_description(schema, {"format"}, path, self._notes, "Gemini knows few formats")
        return schema
