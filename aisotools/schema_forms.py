"""Rewriting JSON Schema for a reader that knows only part of it, keeping a list of everything that was lost.

What a schema says and its reader does not know is moved into the description, where a model still reads it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_json

from aisotools.events import Json

Action = Literal["changed", "weakened", "dropped"]
Schema = dict[str, Any]
Spot = tuple[str, ...]
"""Where a value lies in the arguments: names of properties, and `*` for every item of a list."""

_DEEPEST = 32
_TOLD_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
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


class Notes:
    """The changes so far."""

    def __init__(self) -> None:
        """Start with none."""
        self.changes: list[Change] = []

    def __repr__(self) -> str:
        return f"<Notes of {len(self.changes)} changes>"

    def add(self, path: str, action: Action, what: str, why: str) -> None:
        """Note one change, once."""
        change = Change(path=path, action=action, what=what, why=why)
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


def inlined(root: Mapping[str, Any], notes: Notes, why: str, *, rounds: int = 1) -> Schema:
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


def merged(schema: Schema, path: str, notes: Notes, why: str) -> Schema:
    """`schema` without `allOf`, as far as its parts can be laid over one another."""
    parts = schema.pop("allOf", None)
    if not isinstance(parts, list):
        return schema
    whole = len(parts) == 1
    for part in map(as_schema, parts):
        inner = merged(part, path, notes, why)
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


def flattened_root(schema: Schema, notes: Notes, why: str) -> Schema:
    """`schema` as one object: alternatives at the top are thrown together, so more is allowed."""
    schema = merged(schema, "parameters", notes, why)
    for keyword in ("anyOf", "oneOf"):
        parts = schema.pop(keyword, None)
        if not isinstance(parts, list):
            continue
        branches = [merged(as_schema(part), "parameters", notes, why) for part in parts]
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


def nullable(schema: Schema) -> tuple[Schema, bool]:
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


def told(schema: Schema, *sentences: str) -> Schema:
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


def in_words(keyword: str, value: Json) -> str:
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


def moved_to_words(schema: Schema, keywords: set[str], path: str, notes: Notes, why: str) -> Schema:
    """`schema` without `keywords`, which its description tells instead."""
    found = [keyword for keyword in schema if keyword in keywords]
    words = [in_words(keyword, schema[keyword]) for keyword in found]
    for keyword, text in zip(found, words, strict=True):
        del schema[keyword]
        where = "the description tells it instead" if text else "left out"
        notes.add(path, "weakened" if text else "dropped", f"{keyword}: {where}", why)
    return told(schema, *words) if any(words) else schema


def subschemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """All schemas directly inside `schema`."""
    for key, value in schema.items():
        if key in _MAPS | {"$defs", "definitions"} and isinstance(value, Mapping):
            yield from value.values()
        elif key in {"anyOf", "oneOf", "allOf", "prefixItems"} and isinstance(value, list):
            yield from value
        elif key in {"items", "additionalProperties", "not", "contains", "propertyNames"}:
            yield value
