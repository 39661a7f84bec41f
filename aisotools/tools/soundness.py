"""Whether a JSON Schema is sound: bounded, its keywords well formed, its references inside it.

Schemas come from strangers: MCP servers, other frameworks' tools. They are read as draft 2020-12, whatever
they say they are. Nothing that they name is ever fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from aisotools.tools.patterns import (
    LINEAR_FORM,
    MAX_COMPILE_WORK,
    MAX_PATTERN_CHARS,
    count_compile_work,
    matcher,
)

MAX_SCHEMA_DEPTH = 64
"""Levels of a schema."""

MAX_SCHEMA_VALUES = 20_000
"""Values in a schema, at any depth."""

MAX_SCHEMA_CHARS = 1 << 20
"""Characters of all names and texts in a schema, with the digits of its integers."""

_MAX_PATTERNS_WORK = 2 * MAX_COMPILE_WORK  # of all patterns of a schema; the event loop waits meanwhile
_MAX_SHOWN_CHARS = 80
_WHOLE = "as a whole"
_BITS_PER_DIGIT = 3
_MAX_INDEX_DIGITS = 6


def _is_integer(value: object) -> bool:
    if isinstance(value, float):
        return value.is_integer()
    return isinstance(value, int) and not isinstance(value, bool)


JSON_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": _is_integer,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "null": lambda value: value is None,
}


class BrokenSchema(Exception):
    """Raised for a schema that cannot be followed; the message says why."""


# ---- whether a schema is sound

_STRINGS = frozenset(
    {"pattern", "format", "$ref", "$dynamicRef", "$anchor", "$dynamicAnchor", "$id", "$schema", "$comment"}
    | {"title", "description", "contentEncoding", "contentMediaType"}
)
_NUMBERS = frozenset({"maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf"})
_COUNTS = frozenset(
    {"maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"}
    | {"maxContains", "minContains"}
)
_FLAGS = frozenset({"uniqueItems", "deprecated", "readOnly", "writeOnly"})
_SCHEMAS = frozenset(
    {"items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else"}
    | {"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
)
_REFERENCES = ("$ref", "$dynamicRef")
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})


def _is_names(value: object) -> bool:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return False
    return len(set(value)) == len(value)


def _is_types(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and _is_names(value) and JSON_TYPES.keys() >= set(value)
    return isinstance(value, str) and value in JSON_TYPES


_FORMS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "type": (f"one of {', '.join(JSON_TYPES)}, or a list of these", _is_types),
    "enum": ("a list", lambda value: isinstance(value, list)),
    "examples": ("a list", lambda value: isinstance(value, list)),
    "required": ("a list of different names", _is_names),
    "dependentRequired": (
        "an object of lists of names",
        lambda value: isinstance(value, Mapping) and all(map(_is_names, value.values())),
    ),
    **dict.fromkeys(_STRINGS, ("a text", JSON_TYPES["string"])),
    **dict.fromkeys(_NUMBERS, ("a number", JSON_TYPES["number"])),
    "multipleOf": ("a number above 0", lambda value: JSON_TYPES["number"](value) and value > 0),
    **dict.fromkeys(_COUNTS, ("a whole number from 0", lambda value: _is_integer(value) and value >= 0)),
    **dict.fromkeys(_FLAGS, ("true or false", JSON_TYPES["boolean"])),
    **dict.fromkeys(_SCHEMAS, ("a schema", lambda value: isinstance(value, Mapping | bool))),
    **dict.fromkeys(
        _SCHEMA_LISTS, ("a list of schemas", lambda value: isinstance(value, list) and bool(value))
    ),
    **dict.fromkeys(_SCHEMA_MAPS, ("an object of schemas", lambda value: isinstance(value, Mapping))),
}


def size_flaw(schema: object) -> str:
    """Return why `schema` is too deep or too large to be read at all, or `""` if it is neither."""
    values = chars = 0
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        deeper: list[object] = []
        for node in level:
            if isinstance(node, str):
                chars += len(node)
            elif isinstance(node, int):
                # About that many digits. To write them down takes time with the square of their number.
                chars += node.bit_length() // _BITS_PER_DIGIT
            elif isinstance(node, Mapping | list | tuple):
                values += len(node)
                if values > MAX_SCHEMA_VALUES:
                    return f"{_WHOLE}: it has more than {MAX_SCHEMA_VALUES:,} values"
                if isinstance(node, Mapping):
                    chars += sum(map(len, map(str, node)))
                    deeper += node.values()
                else:
                    deeper += node
            if chars > MAX_SCHEMA_CHARS:
                return f"{_WHOLE}: it has more than {MAX_SCHEMA_CHARS:,} characters"
        if not deeper:
            return ""
        level = deeper
    return f"{_WHOLE}: it is nested more than {MAX_SCHEMA_DEPTH} deep"


def schema_flaw(schema: Mapping[str, Any], *, with_patterns: bool = True) -> str:
    """Return where and why a schema is broken, to follow "broken"; `""` if it is not.

    Every keyword must have its form, and every reference a target in the schema.

    Args:
        schema: The schema.
        with_patterns: Whether a regular expression that is not checked in linear time counts as a flaw.
    """
    flaw = size_flaw(schema)
    if flaw:
        return flaw
    references = References(schema)
    inner_id = ""
    has_reference = False
    patterns = _SchemaPatterns()
    pending: list[tuple[Any, tuple[str, ...]]] = [(schema, ())]
    while pending:
        node, path = pending.pop()
        if not isinstance(node, Mapping):
            if not isinstance(node, bool):
                return _misformed(path, node, "a schema: an object, true or false")
            continue
        for keyword, value in node.items():
            place = (*path, str(keyword))
            form, fits = _FORMS.get(keyword, ("", None))
            if fits is not None and not fits(value):
                return _misformed(place, value, form)
            if keyword in _REFERENCES:
                has_reference = True
                try:
                    references.resolve(value)
                except BrokenSchema as error:
                    return _flaw_at(place, str(error))
            elif keyword == "$id" and path and not value.startswith("#"):
                inner_id = value
            elif keyword == "pattern" and with_patterns:
                flaw = patterns.flaw([value])
            elif keyword == "patternProperties" and with_patterns:
                flaw = patterns.flaw(value)
            if flaw:
                return _flaw_at(place, flaw)
            if keyword in _SCHEMAS:
                pending.append((value, place))
            elif keyword in _SCHEMA_LISTS:
                pending += [(part, (*place, str(number))) for number, part in enumerate(value)]
            elif keyword in _SCHEMA_MAPS:
                pending += [(part, (*place, str(name))) for name, part in value.items()]
    if inner_id and has_reference:
        return f"{_WHOLE}: it has references, and the $id {_short(inner_id)} inside gives them two meanings"
    return _endless_flaw(schema, references) if has_reference else ""


def _endless_flaw(schema: Mapping[str, Any], references: References) -> str:
    """Return "" unless a schema refers to itself for the same value, so that no check of it would end."""
    open_ids, done_ids = set[int](), set[int]()
    for start in _subschemas(schema):
        pending = [(start, False)]
        while pending:
            node, is_done = pending.pop()
            if is_done:
                open_ids.discard(id(node))
                done_ids.add(id(node))
            elif id(node) in open_ids:
                return f"{_WHOLE}: it refers to itself without end"
            elif id(node) not in done_ids:
                open_ids.add(id(node))
                pending.append((node, True))
                pending += [(part, False) for part in _parts_in_place(node, references)]
    return ""


def _subschemas(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield `schema` and every schema inside it."""
    pending: list[Any] = [schema]
    while pending:
        node = pending.pop()
        if not isinstance(node, Mapping):
            continue
        yield node
        for keyword, value in node.items():
            if keyword in _SCHEMAS:
                pending.append(value)
            elif keyword in _SCHEMA_LISTS:
                pending += value
            elif keyword in _SCHEMA_MAPS:
                pending += value.values()


def _parts_in_place(schema: Mapping[str, Any], references: References) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that `schema` checks against the same value."""
    parts = [references.resolve(schema[keyword]) for keyword in _REFERENCES if keyword in schema]
    parts += [part for keyword in ("allOf", "anyOf", "oneOf") for part in schema.get(keyword, ())]
    parts += [schema[keyword] for keyword in ("not", "if", "then", "else") if keyword in schema]
    parts += schema.get("dependentSchemas", {}).values()
    yield from (part for part in parts if isinstance(part, Mapping))


def _misformed(path: Sequence[str], value: object, form: str) -> str:
    return _flaw_at(path, f"{_short(value)} is not {form}")


def _flaw_at(path: Sequence[str], flaw: str) -> str:
    where = ".".join(part[:80] for part in path[-6:])
    return f"at {where}: {flaw}" if where else f"{_WHOLE}: {flaw}"


def _short(value: object) -> str:
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_SHOWN_CHARS else f"{value[:_MAX_SHOWN_CHARS]}...")
    if value is None or isinstance(value, bool | float):
        return {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    kinds = ((Mapping, "an object"), (list, "a list"), (int, "a whole number"))
    return next((words for kind, words in kinds if isinstance(value, kind)), f"a {type(value).__name__}")


# ---- references


class References:
    """Finds what the references of one schema point to. Only that schema is searched."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Search `schema`."""
        self._root = schema
        self._targets: dict[str, Any] = {}
        self._anchors: dict[str, Any] | None = None

    def resolve(self, reference: str) -> Any:
        """Return the schema that `reference` points to.

        Raises:
            BrokenSchema: If there is none in this schema.
        """
        if reference not in self._targets:
            self._targets[reference] = self._find_target(reference)
        return self._targets[reference]

    def _find_target(self, reference: str) -> Any:
        own = self._root.get("$id")
        base, _, fragment = reference.partition("#")
        if base and base != (own.partition("#")[0] if isinstance(own, str) else ""):
            raise BrokenSchema(
                f"{_short(reference)} refers to something outside itself, which is not fetched"
            )
        missing = BrokenSchema(f"{_short(reference)} refers to something that is not there")
        if fragment and not fragment.startswith("/"):
            if fragment not in self._find_anchors():
                raise missing
            return self._find_anchors()[fragment]
        node: Any = self._root
        for part in fragment.split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and key.isascii() and key.isdecimal() and len(key) < _MAX_INDEX_DIGITS:
                node = node[int(key)] if int(key) < len(node) else None
            else:
                node = node.get(key) if isinstance(node, Mapping) else None
        if not isinstance(node, Mapping | bool):
            raise missing
        return node

    def _find_anchors(self) -> dict[str, Any]:
        if self._anchors is None:
            self._anchors = {}
            pending: list[Any] = [self._root]
            while pending:
                node = pending.pop()
                if isinstance(node, Mapping):
                    for keyword in ("$anchor", "$dynamicAnchor"):
                        if isinstance(node.get(keyword), str):
                            self._anchors.setdefault(node[keyword], node)
                    pending += node.values()
                elif isinstance(node, list):
                    pending += node
        return self._anchors


# ---- regular expressions


class _SchemaPatterns:
    """The regular expressions of one schema, which are compiled one after the other when it is checked."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._work = 0

    def flaw(self, patterns: Iterable[str]) -> str:
        """Return why one of these, or all so far together, are not checked, or `""`."""
        for pattern in patterns:
            if pattern in self._known:
                continue
            self._known.add(pattern)
            work = count_compile_work(pattern)
            self._work += work if work <= MAX_COMPILE_WORK else 0  # then it is not compiled
            if self._work > _MAX_PATTERNS_WORK:
                return (
                    f"with the pattern {_short(pattern)}, all patterns of the schema take too long to "
                    "compile; use fewer, with fewer repetitions of large classes"
                )
            if flaw := pattern_flaw(pattern):
                return flaw
        return ""


def pattern_flaw(pattern: str) -> str:
    """Return why a regular expression is not checked, or `""` if it is."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"the pattern has {len(pattern):,} characters; at most {MAX_PATTERN_CHARS:,} are checked"
    if matcher(pattern) is None:
        return (
            f"the pattern {_short(pattern)} cannot be checked in linear time; keep to {LINEAR_FORM}; "
            "or check it in the tool"
        )
    return ""
