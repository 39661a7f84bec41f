"""Rewrite JSON Schema for providers that support a part of it, and log every change.

A keyword that a provider does not support moves into the description, where a model still reads it. There are
two targets: OpenAI's strict mode and Gemini's `Schema`, a part of OpenAPI 3.0.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import to_json

from aisotools.core.types import Json

ChangeAction = Literal["changed", "weakened", "dropped"]
Schema = dict[str, Any]
ArgumentPath = tuple[str, ...]
"""The place of a value in the arguments: names of properties, and `*` for every item of a list."""

_MAX_REFERENCE_DEPTH = 32
_MAX_INLINED_REFERENCES = 500
_MAX_VALUE_CHARS = 300  # of one keyword's value in a description

_NAMED_SUBSCHEMAS = {"properties", "patternProperties", "dependentSchemas"}
_PLAIN_VALUES = {"enum", "const", "default", "examples", "example", "required", "discriminator"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """One difference between a tool's schema and its export.

    Attributes:
        path: The place, such as `parameters.items.limit`; `name` for the tool's name.
        action: `changed` means the same in another form, `weakened` allows more than the tool does, `dropped`
            leaves something out.
        what: The change.
        why: The provider's rule that requires it.
    """

    path: str
    action: ChangeAction
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what} ({self.action}: {self.why})"


class ChangeLog:
    """Collects the changes of one export."""

    def __init__(self) -> None:
        """Start without changes."""
        self.changes: list[SchemaChange] = []
        self._known: set[SchemaChange] = set()

    def __repr__(self) -> str:
        return f"<ChangeLog of {len(self.changes)} changes>"

    def add(self, path: str, action: ChangeAction, what: str, why: str) -> None:
        """Add a change unless it is listed already."""
        change = SchemaChange(path=path, action=action, what=what, why=why)
        if change not in self._known:
            self._known.add(change)
            self.changes.append(change)


def as_schema(value: object) -> Schema:
    """Return a schema as a new dict. `True` becomes the empty schema; so does what is not a schema."""
    if value is False:
        return {"not": {}}
    return copy.deepcopy(dict(value)) if isinstance(value, Mapping) else {}


def _own(value: object) -> Schema:
    """Return a schema as a dict whose keywords can be replaced, not changed: what is inside is shared.

    A deep copy at each level would take quadratic time.
    """
    if value is False:
        return {"not": {}}
    return dict(value) if isinstance(value, Mapping) else {}


def resolve_reference(root: Mapping[str, Any], reference: object) -> Mapping[str, Any] | None:
    """Return the schema that a reference inside `root` points to, or None if there is none in `root`."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    node: Any = root
    for part in filter(None, reference[1:].split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else None


def inline_references(root: Mapping[str, Any], log: ChangeLog, why: str, *, rounds: int = 1) -> Schema:
    """Return `root` with each reference replaced by its target.

    Args:
        root: A schema.
        log: Receives the changes.
        why: The provider's rule that requires it.
        rounds: How often a recursive schema is repeated inside itself. Deeper levels allow any value.
    """
    followed = itertools.count()

    def walk(node: object, path: str, within: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [walk(item, path, within) for item in node]
        if not isinstance(node, Mapping):
            return node
        reference = node.get("$ref")
        if reference is None:
            return {
                key: value if key in _PLAIN_VALUES else walk_named(key, value, path, within)
                for key, value in node.items()
                if key not in {"$defs", "definitions"}
            }
        target = resolve_reference(root, reference)
        rest = {key: value for key, value in node.items() if key != "$ref"}
        if target is None:
            log.add(
                path,
                "dropped",
                f"the reference to {_json_text(reference)}",
                "it does not point into this schema",
            )
            return walk(rest, path, within)
        # A fan: references that each double the next expand to more than any memory holds.
        is_endless = next(followed) > _MAX_INLINED_REFERENCES
        if is_endless or within.count(str(reference)) > rounds or len(within) > _MAX_REFERENCE_DEPTH:
            what = "what references lead to" if is_endless else "a recursive schema"
            log.add(path, "weakened", f"{what} is repeated a limited number of times", why)
            kind = target.get("type")
            text = f"{target.get('description', '')} Nested as above.".strip()
            nested: Schema = {"description": text, **rest}
            return {"type": kind, **nested} if isinstance(kind, str) else nested
        return walk({**target, **rest}, path, (*within, str(reference)))

    def walk_named(key: str, value: object, path: str, within: tuple[str, ...]) -> Any:
        if key in _NAMED_SUBSCHEMAS and isinstance(value, Mapping):
            return {name: walk(item, f"{path}.{name}", within) for name, item in value.items()}
        return walk(value, path, within)

    schema: Schema = walk(root, "parameters", ())
    return schema


def merge_all_of(schema: Schema, path: str, log: ChangeLog, why: str) -> Schema:
    """Return `schema` with the parts of `allOf` merged into it. Where they disagree, the first one counts."""
    parts = schema.pop("allOf", None)
    if not isinstance(parts, list):
        return schema
    lossless = True
    for part in map(_own, parts):
        inner = merge_all_of(part, path, log, why)
        properties = {**inner.get("properties", {}), **schema.get("properties", {})}
        required = [*schema.get("required", []), *inner.get("required", [])]
        clash = {key for key in inner.keys() & schema.keys() if inner[key] != schema[key]}
        if len(parts) > 1 and clash - {"properties", "required", "description", "title"}:
            lossless = False
        schema = {**inner, **schema}
        if properties:
            schema["properties"] = properties
        if required:
            schema["required"] = list(dict.fromkeys(required))
    action: ChangeAction = "changed" if lossless else "weakened"
    log.add(path, action, "the parts of allOf are merged", why)
    return schema


def flatten_root(schema: Schema, log: ChangeLog, why: str) -> Schema:
    """Return `schema` as one object. Alternatives at the top are united, which allows more than they do."""
    schema = merge_all_of(schema, "parameters", log, why)
    for keyword in ("anyOf", "oneOf"):
        parts = schema.pop(keyword, None)
        if not isinstance(parts, list):
            continue
        branches = [merge_all_of(_own(part), "parameters", log, why) for part in parts]
        objects = [branch for branch in branches if isinstance(branch.get("properties"), Mapping)]
        properties: Schema = {}
        for branch in objects:
            for name, value in branch["properties"].items():
                properties[name] = _either(properties[name], value) if name in properties else value
        own = schema.get("properties", {})
        required_by_branch = [set(branch.get("required", [])) for branch in branches]
        always = set.intersection(*required_by_branch) if required_by_branch else set()
        required = [*schema.get("required", []), *(name for name in properties if name in always)]
        schema = {**schema, "type": "object", "properties": {**properties, **own}}
        if required:
            schema["required"] = list(dict.fromkeys(required))
        log.add("parameters", "weakened", f"the alternatives of {keyword} become one object", why)
    for keyword in ("not", "enum", "const", "if", "then", "else", "dependentRequired", "dependentSchemas"):
        if keyword in schema:
            del schema[keyword]
            log.add("parameters", "dropped", keyword, why)
    schema.setdefault("type", "object")
    schema.setdefault("properties", {})
    return schema


def _either(first: object, second: object) -> Any:
    return first if first == second else {"anyOf": [first, second]}


def split_null(schema: Schema) -> tuple[Schema, bool]:
    """Return `schema` without null among its types and alternatives, and whether it was there."""
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
    """Return `schema` with `sentences` added to its description."""
    text = str(schema.get("description") or "").strip()
    if text and text[-1] not in ".!?:":
        text += "."
    return {**schema, "description": " ".join(filter(None, [text, *sentences]))}


_KEYWORD_TEXTS = {
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
    """Return the meaning of a keyword as a sentence, or `""` for one that is of no use to a model."""
    if keyword == "enum" and isinstance(value, list):
        return _KEYWORD_TEXTS["enum"].format(_cut(", ".join(map(_json_text, value))))
    if keyword == "uniqueItems" and not value:
        return ""
    if keyword not in _KEYWORD_TEXTS:
        return ""
    unquoted = {"pattern", "format", "contentEncoding", "contentMediaType"}
    text = value if keyword in unquoted and isinstance(value, str) else _json_text(value)
    return _KEYWORD_TEXTS[keyword].format(_cut(text))


def _json_text(value: object) -> str:
    try:
        return _cut(to_json(value).decode())
    except ValueError:
        return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}…"


def move_to_description(schema: Schema, keywords: set[str], path: str, log: ChangeLog, why: str) -> Schema:
    """Remove `keywords` from `schema` and append their meaning to its description."""
    sentences = []
    for keyword in [keyword for keyword in schema if keyword in keywords]:
        sentence = describe_keyword(keyword, schema.pop(keyword))
        if sentence:
            sentences.append(sentence)
            log.add(path, "weakened", f"{keyword}: moved to the description", why)
        else:
            log.add(path, "dropped", f"{keyword}: left out", why)
    return append_description(schema, *sentences) if sentences else schema


def subschemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas directly inside `schema`."""
    for key, value in schema.items():
        if key in _NAMED_SUBSCHEMAS | {"$defs", "definitions"} and isinstance(value, Mapping):
            yield from value.values()
        elif key in {"anyOf", "oneOf", "allOf", "prefixItems"} and isinstance(value, list):
            yield from value
        elif key in {"items", "additionalProperties", "not", "contains", "propertyNames"}:
            yield value


# -- OpenAI's strict mode: https://platform.openai.com/docs/guides/structured-outputs#supported-schemas

_STRICT_KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const"),
    *("$ref", "$defs", "definitions", "description", "title"),
    *("pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minItems", "maxItems"),
}
_STRICT_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
# Keywords without a sentence that describes them: a schema that has one of these cannot become strict.
_STRUCTURAL = {"prefixItems", "patternProperties", "not", "if", "then", "else"}
_TYPES = {"string", "number", "boolean", "integer", "object", "array", "null"}
# The published limits of one schema.
_MAX_PROPERTIES = 5_000
_MAX_LEVELS = 10
_MAX_TEXT_CHARS = 120_000  # names of properties and definitions, values of enum and const
_MAX_VALUES = 1_000
_LONG_ENUM = 250  # an enum with more values than this ...
_MAX_LONG_ENUM_CHARS = 15_000  # ... may have this many characters
_STRICT_RULE = "OpenAI's strict mode supports only part of JSON Schema"


def strict_violation(schema: Mapping[str, Any]) -> str:
    """Return the first reason why a schema does not fit strict mode as it is, or `""` if it fits."""
    if "anyOf" in schema:
        return "there are alternatives at the top"
    return next(_violations(schema, "parameters"), "") or _exceeded_limit(schema)


def _violations(schema: object, path: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        yield f"{path} allows anything"
        return
    for keyword in schema.keys() - _STRICT_KEYWORDS:
        yield f"{path} uses {keyword}"
    if "$ref" in schema and len(schema) > 1:
        yield f"{path} has keywords beside a reference"
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if not set(map(str, kinds)) <= _TYPES:
        yield f"{path} has the type {schema['type']!r}"
    if not kinds and not schema.keys() & {"$ref", "anyOf", "enum", "const"}:
        yield f"{path} allows anything"
    if "format" in schema and schema["format"] not in _STRICT_FORMATS:
        yield f"{path} uses the format {schema['format']!r}"
    if "object" in kinds:
        yield from _object_violations(schema, path)
    if "array" in kinds and not isinstance(schema.get("items"), Mapping):
        yield f"{path} is a list of anything"
    for key in ("properties", "$defs", "definitions"):
        for name, value in dict(schema.get(key) or {}).items():
            yield from _violations(value, f"{path}.{name}")
    for value in schema.get("anyOf", ()):
        yield from _violations(value, path)
    if "items" in schema:
        yield from _violations(schema["items"], path)


def _object_violations(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if schema.get("additionalProperties") is not False:
        yield f"{path} is an object of any names"
    missing = [name for name in schema.get("properties", {}) if name not in schema.get("required", ())]
    if missing:
        yield f"{path}.{missing[0]} is optional"


def _exceeded_limit(schema: Mapping[str, Any]) -> str:
    properties = values = text_chars = deepest = 0
    pending: list[tuple[Any, int]] = [(schema, 1)]
    while pending:
        node, depth = pending.pop()
        if not isinstance(node, Mapping):
            continue
        names = [*node.get("properties", {}), *node.get("$defs", {})]
        listed = [*node.get("enum", ())]
        if "const" in node:
            listed.append(node["const"])
        texts = [value for value in listed if isinstance(value, str)]
        properties += len(node.get("properties", {}))
        values += len(listed)
        text_chars += sum(map(len, [*names, *texts]))
        deepest = max(deepest, depth)
        if len(listed) > _LONG_ENUM and sum(map(len, texts)) > _MAX_LONG_ENUM_CHARS:
            return f"a list of over {_LONG_ENUM} values has more than {_MAX_LONG_ENUM_CHARS:,} characters"
        inner = depth + (node.get("type") == "object")
        pending += [(child, inner) for child in subschemas(node)]
    over = {
        f"more than {_MAX_PROPERTIES:,} properties": properties > _MAX_PROPERTIES,
        f"objects nested deeper than {_MAX_LEVELS}": deepest > _MAX_LEVELS + 1,
        f"more than {_MAX_TEXT_CHARS:,} characters of names and values": text_chars > _MAX_TEXT_CHARS,
        f"more than {_MAX_VALUES:,} listed values": values > _MAX_VALUES,
    }
    return next((reason for reason, is_over in over.items() if is_over), "")


def to_strict(schema: Mapping[str, Any], log: ChangeLog) -> tuple[Schema, tuple[ArgumentPath, ...]] | str:
    """Rewrite a schema to fit strict mode. Return it with the paths where null stands for "left out".

    Optional arguments become required and nullable. Keywords that strict mode does not support move into the
    description; the tool's own validation still enforces them. If the schema cannot be rewritten, return the
    reason instead, and leave `log` unchanged.
    """
    converter = _StrictConverter(schema)
    strict = converter.convert(schema, "parameters", ())
    reason = strict_violation(strict)
    if reason:
        return reason
    log.changes.extend(converter.log.changes)
    return strict, tuple(converter.optional)


class _StrictConverter:
    """Rewrites one tool's schema; `optional` collects the paths where null stands for "left out"."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self.log = ChangeLog()
        self.optional: list[ArgumentPath] = []

    def convert(self, value: object, path: str, location: ArgumentPath | None) -> Schema:
        """Convert one schema. `location` is its place in the arguments; None if that is ambiguous."""
        schema = merge_all_of(_own(value), path, self.log, _STRICT_RULE)
        if "$ref" in schema and len(schema) > 1:
            schema = self._expand_reference(schema, path)
        if "oneOf" in schema:
            schema["anyOf"] = [*schema.get("anyOf", []), *schema.pop("oneOf")]
            schema.pop("discriminator", None)
            self.log.add(path, "weakened", "oneOf becomes anyOf", _STRICT_RULE)
        unknown = schema.keys() - _STRICT_KEYWORDS - _STRUCTURAL
        if schema.get("format") not in {None, *_STRICT_FORMATS}:
            unknown |= {"format"}
        schema = move_to_description(schema, unknown, path, self.log, _STRICT_RULE)
        for key in ("$defs", "definitions"):
            if schema.get(key):
                schema[key] = {
                    name: self.convert(part, name, None) for name, part in dict(schema[key]).items()
                }
        if "anyOf" in schema:
            parts = schema["anyOf"]
            inside = location if len([part for part in parts if part != {"type": "null"}]) == 1 else None
            schema["anyOf"] = [self.convert(part, path, inside) for part in parts]
        if isinstance(schema.get("items"), Mapping):
            inside = None if location is None else (*location, "*")
            schema["items"] = self.convert(schema["items"], f"{path}[]", inside)
        if isinstance(schema.get("properties"), Mapping):
            schema = self._require_all(schema, path, location)
        return schema

    def _expand_reference(self, schema: Schema, path: str) -> Schema:
        """Merge the keywords beside a reference into a copy of its target, or wrap the reference."""
        target = resolve_reference(self._root, schema["$ref"])
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        self.log.add(
            path, "changed", "a reference with keywords beside it is replaced by a copy", _STRICT_RULE
        )
        if target is None or any("$ref" in str(child) for child in subschemas(target)):
            return {"anyOf": [{"$ref": schema["$ref"]}], **rest}
        return {**_own(target), **rest}

    def _require_all(self, schema: Schema, path: str, location: ArgumentPath | None) -> Schema:
        required = set(schema.get("required", ()))
        properties = {}
        for name, value in schema["properties"].items():
            inside = None if location is None else (*location, name)
            inner = self.convert(value, f"{path}.{name}", inside)
            if name not in required and not _allows_null(inner):
                if inside is None:
                    # Null and "left out" would look the same here. `not` is not a strict keyword, so the
                    # whole schema stays as it is.
                    inner = {"not": {}}
                else:
                    inner = {"anyOf": [inner, {"type": "null"}]}
                    self.optional.append(inside)
                    self.log.add(f"{path}.{name}", "changed", "optional becomes nullable", _STRICT_RULE)
            properties[name] = inner
        schema["properties"], schema["required"] = properties, list(properties)
        if schema.get("additionalProperties") is None:
            schema["additionalProperties"] = False
            self.log.add(path, "changed", "additional properties are rejected", _STRICT_RULE)
        return schema


def _allows_null(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type", [])
    if "null" in (kinds if isinstance(kinds, list) else [kinds]):
        return True
    return any(isinstance(part, Mapping) and _allows_null(part) for part in schema.get("anyOf", ()))


# -- Gemini: https://ai.google.dev/api/caching#Schema

_GEMINI_KEYWORDS = {
    *("type", "format", "title", "description", "nullable", "enum", "items", "minItems", "maxItems"),
    *("properties", "required", "minProperties", "maxProperties", "minimum", "maximum"),
    *("minLength", "maxLength", "pattern", "anyOf"),
}
_GEMINI_FORMATS = {
    "string": {"enum", "date-time"},
    "integer": {"int32", "int64"},
    "number": {"float", "double"},
}
_GEMINI_RULE = "Gemini's Schema is a part of OpenAPI 3.0"
_ANY_TYPE = ("string", "number", "boolean")


class GeminiConverter:
    """Converts one tool's schema to Gemini's.

    Attributes:
        as_text: The paths of objects that become JSON text.
    """

    def __init__(self, log: ChangeLog) -> None:
        """Add the changes to `log`."""
        self._log = log
        self.as_text: list[ArgumentPath] = []

    def convert(self, value: object, path: str, location: ArgumentPath, *, alone: bool = True) -> Schema:
        """Convert one schema without references. `alone` is false if it is one of several alternatives."""
        schema = merge_all_of(_own(value), path, self._log, _GEMINI_RULE)
        schema, null = split_null(schema)
        if "oneOf" in schema:
            schema["anyOf"] = [*schema.get("anyOf", []), *schema.pop("oneOf")]
            self._log.add(path, "weakened", "oneOf becomes anyOf", _GEMINI_RULE)
        if isinstance(schema.get("type"), list):
            kinds = schema.pop("type")
            schema["anyOf"] = [{"type": kind} for kind in kinds]
            self._log.add(path, "changed", "several types become alternatives", _GEMINI_RULE)
        schema = self._with_type(self._fixed_values(schema, path), path)
        if "anyOf" in schema:
            parts = schema.pop("anyOf")
            alone = alone and not any(_own(part).get("type") == "string" for part in parts)
            schema["anyOf"] = [self.convert(part, path, location, alone=alone) for part in parts]
        elif schema.get("type") == "object":
            schema = self._object(schema, path, location, alone=alone)
        elif schema.get("type") == "array":
            schema = self._array(schema, path, location)
        schema = self._bounds(schema, path)
        schema = move_to_description(schema, schema.keys() - _GEMINI_KEYWORDS, path, self._log, _GEMINI_RULE)
        if null:
            schema["nullable"] = True
        return schema

    def _fixed_values(self, schema: Schema, path: str) -> Schema:
        """Convert `const` and `enum`: Gemini has enums of strings only."""
        if "const" in schema:
            schema = {**schema, "enum": [schema["const"]]}
            del schema["const"]
            self._log.add(path, "changed", "const becomes an enum of one value", _GEMINI_RULE)
        values = schema.get("enum")
        if not isinstance(values, list):
            return schema
        if all(isinstance(value, str) for value in values):
            return {**schema, "type": "string"}
        kinds = {type(value) for value in values}
        if kinds == {int} and "type" not in schema:
            schema = {**schema, "type": "integer"}
        if kinds <= {int, float}:
            schema = {**schema, "minimum": min(values), "maximum": max(values)}
        return move_to_description(schema, {"enum"}, path, self._log, "Gemini has enums of strings only")

    def _with_type(self, schema: Schema, path: str) -> Schema:
        if "type" in schema or "anyOf" in schema:
            return schema
        guess = {"properties": "object", "items": "array", "prefixItems": "array"}
        for keyword, kind in guess.items():
            if keyword in schema:
                return {**schema, "type": kind}
        self._log.add(path, "weakened", "any value becomes a string, a number or a boolean", _GEMINI_RULE)
        return {**schema, "anyOf": [{"type": kind} for kind in _ANY_TYPE]}

    def _object(self, schema: Schema, path: str, location: ArgumentPath, *, alone: bool) -> Schema:
        properties = schema.get("properties") or {}
        if not properties and location:
            # Gemini rejects an object without named properties, so it becomes JSON text.
            for keyword in ("additionalProperties", "patternProperties", "propertyNames", "properties"):
                schema.pop(keyword, None)
            schema.pop("required", None)
            rule = "Gemini takes no object without named properties"
            if alone:
                self.as_text.append(location)
                self._log.add(path, "changed", "an object of any names becomes JSON text", rule)
            else:
                # Among alternatives, a string may be meant as a string. It is not parsed back.
                self._log.add(
                    path, "weakened", "an object of any names becomes JSON text, and stays text", rule
                )
            schema = move_to_description(
                schema, {"minProperties", "maxProperties"}, path, self._log, _GEMINI_RULE
            )
            return append_description({**schema, "type": "string"}, "A JSON object, written as text.")
        additional = schema.pop("additionalProperties", False)  # Gemini assumes False
        if additional is not False:
            self._log.add(path, "dropped", "additionalProperties", _GEMINI_RULE)
        schema["properties"] = {
            name: self.convert(value, f"{path}.{name}", (*location, name))
            for name, value in properties.items()
        }
        if "required" in schema:
            schema["required"] = [name for name in schema["required"] if name in properties]
            if not schema["required"]:
                del schema["required"]
        return schema

    def _array(self, schema: Schema, path: str, location: ArgumentPath) -> Schema:
        first = schema.pop("prefixItems", None)
        if isinstance(first, list) and first:
            rest = schema.get("items")
            kinds = [*first, rest] if isinstance(rest, Mapping) else first
            unique = [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]
            schema["items"] = unique[0] if len(unique) == 1 else {"anyOf": unique}
            schema.setdefault("minItems", len(first))
            if not isinstance(rest, Mapping):
                schema.setdefault("maxItems", len(first))
            self._log.add(path, "weakened", "the types of the items lose their order", _GEMINI_RULE)
        schema["items"] = self.convert(schema.get("items", {}), f"{path}[]", (*location, "*"))
        return schema

    def _bounds(self, schema: Schema, path: str) -> Schema:
        for keyword, inclusive, step in (
            ("exclusiveMinimum", "minimum", 1),
            ("exclusiveMaximum", "maximum", -1),
        ):
            bound = schema.get(keyword)
            if schema.get("type") == "integer" and isinstance(bound, int) and inclusive not in schema:
                schema[inclusive] = schema.pop(keyword) + step
                self._log.add(path, "changed", f"{keyword} becomes {inclusive}", _GEMINI_RULE)
        kind = schema.get("type")
        if "format" in schema and schema["format"] not in _GEMINI_FORMATS.get(str(kind), set()):
            schema = move_to_description(schema, {"format"}, path, self._log, "Gemini supports few formats")
        return schema
