"""Check JSON values against JSON Schemas, within a budget.

A checker of our own, since nothing else can be stopped: a few references that each double the next keep the
libraries busy for minutes. Here every keyword spends a step of a budget, nothing is ever fetched, and regular
expressions take linear time. Importing it costs nothing; `jsonschema` takes a second where all of its formats
are installed.

Schemas are read as draft 2020-12. `format` is a remark, as it is in the standard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from aisotools.core.types import Json
from aisotools.tools.patterns import count_states, matcher, searchable_chars
from aisotools.tools.soundness import JSON_TYPES, BrokenSchema, References, pattern_flaw

_ENTRIES_PER_STEP = 50
_WORK_PER_STEP = 100_000  # characters times states of a pattern

Path = tuple[str | int, ...]
"""The place of a value: keys and positions from the outermost inwards."""


class OverBudget(Exception):
    """Raised when a check would take more steps or time than it may, or nests too deep."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One value that does not fit.

    Attributes:
        path: Its place.
        keyword: The keyword that it does not fit; `false` for a value that may not be there.
        expected: The keyword's value.
        value: The value.
        names: Names that are missing, or that are not allowed.
    """

    path: Path
    keyword: str
    expected: Json
    value: Json
    names: tuple[str, ...] = ()


class _Site(NamedTuple):
    """A value, where it is, and the schema that it is checked against."""

    schema: Mapping[str, Any]
    value: Any
    path: Path

    def violation(self, keyword: str, expected: Json, names: tuple[str, ...] = ()) -> Violation:
        return Violation(self.path, keyword, expected, self.value, names)


Found = Iterator[Violation]


def _is_type(expected: Any, value: Json) -> bool:
    kinds = expected if isinstance(expected, list) else [expected]
    return any(kind in JSON_TYPES and JSON_TYPES[kind](value) for kind in kinds)


def _is_multiple(expected: Any, value: Any) -> bool:
    try:
        if isinstance(value, int) and isinstance(expected, int):
            return value % expected == 0
        return float(value / expected).is_integer()
    except (OverflowError, ZeroDivisionError):
        return Fraction(value) % Fraction(expected) == 0


def _for_numbers(fits: Callable[[Any, Any], bool]) -> Callable[[Any, Json], bool]:
    return lambda expected, value: not JSON_TYPES["number"](value) or fits(expected, value)


def _for_sizes(kind: type[Sized], fits: Callable[[Any, int], bool]) -> Callable[[Any, Json], bool]:
    return lambda expected, value: fits(expected, len(value)) if isinstance(value, kind) else True


# Keywords that are about the value alone, and take a moment.
_PREDICATES: Mapping[str, Callable[[Any, Json], bool]] = {
    "type": _is_type,
    "maximum": _for_numbers(lambda expected, value: value <= expected),
    "minimum": _for_numbers(lambda expected, value: value >= expected),
    "exclusiveMaximum": _for_numbers(lambda expected, value: value < expected),
    "exclusiveMinimum": _for_numbers(lambda expected, value: value > expected),
    "multipleOf": _for_numbers(_is_multiple),
    "maxLength": _for_sizes(str, lambda expected, size: size <= expected),
    "minLength": _for_sizes(str, lambda expected, size: size >= expected),
    "maxItems": _for_sizes(list, lambda expected, size: size <= expected),
    "minItems": _for_sizes(list, lambda expected, size: size >= expected),
    "maxProperties": _for_sizes(dict, lambda expected, size: size <= expected),
    "minProperties": _for_sizes(dict, lambda expected, size: size >= expected),
}


# Without patterns these are left out: they are regular expressions, or what fits less when more matches.
_WITH_PATTERNS = frozenset(
    {"pattern", "patternProperties", "not", "if", "unevaluatedItems", "unevaluatedProperties"}
)


class Checker:
    """Checks values against one schema, within a budget."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        max_steps: int,
        max_s: float | None = None,
        with_patterns: bool = True,
    ) -> None:
        """Check against `schema`.

        Args:
            schema: A schema without a flaw.
            max_steps: Keywords that may be checked in all.
            max_s: Seconds from now that all checks may take; None for any time.
            with_patterns: Whether regular expressions are checked. Without them a schema counts as if they
                all matched, and what could turn for that (`not`, `if`) is left out.
        """
        self._root = schema
        self._references = References(schema)
        self._steps = max_steps
        self._deadline_s = None if max_s is None else time.monotonic() + max_s
        checks: dict[str, Callable[[Any, _Site], Found]] = {
            **dict.fromkeys(("$ref", "$dynamicRef"), self._reference),
            "enum": self._enum,
            "const": self._const,
            "not": self._not,
            "if": self._if,
            "allOf": self._all_of,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "pattern": self._pattern,
            "required": self._required,
            "prefixItems": self._prefix_items,
            "items": self._items,
            "contains": self._contains,
            "uniqueItems": self._unique_items,
            "properties": self._properties,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "propertyNames": self._property_names,
            "dependentRequired": self._dependent_required,
            "dependentSchemas": self._dependent_schemas,
            "unevaluatedItems": self._unevaluated_items,
            "unevaluatedProperties": self._unevaluated_properties,
        }
        if not with_patterns:
            checks["oneOf"] = self._any_of
            checks = {keyword: check for keyword, check in checks.items() if keyword not in _WITH_PATTERNS}
        self._checks = checks
        self._with_patterns = with_patterns
        # Each is compiled once: a schema may have more than `matcher` remembers, for any number of values.
        self._matchers: dict[str, Callable[[str], bool]] = {}

    def violations(self, value: Json) -> Found:
        """Yield what does not fit.

        Raises:
            OverBudget: When the budget is used up, or value or schema are nested too deep.
            BrokenSchema: If a reference or a pattern of the schema cannot be followed.
        """
        try:
            yield from self._check(self._root, value, ())
        except RecursionError:
            raise OverBudget from None

    def _spend(self, steps: int) -> None:
        self._steps -= steps
        if self._steps < 0 or (self._deadline_s is not None and time.monotonic() > self._deadline_s):
            raise OverBudget

    def _check(self, schema: Any, value: Json, path: Path) -> Found:
        if not isinstance(schema, Mapping):
            if schema is False:
                yield Violation(path, "false", False, value)
            elif schema is not True:
                raise BrokenSchema(f"a {type(schema).__name__} stands where a schema must be")
            return
        site = None
        for keyword, expected in schema.items():
            fits = _PREDICATES.get(keyword)
            if fits is not None:
                self._spend(1)
                if not fits(expected, value):
                    yield Violation(path, keyword, expected, value)
            elif keyword in self._checks:
                self._spend(1)
                site = site or _Site(schema, value, path)
                yield from self._checks[keyword](expected, site)

    def _fits(self, schema: Any, value: Json) -> bool:
        return next(self._check(schema, value, ()), None) is None

    def _matches(self, pattern: str, text: str) -> bool:
        matches = self._matchers.get(pattern) or matcher(pattern)
        if matches is None:
            raise BrokenSchema(pattern_flaw(pattern))
        self._matchers[pattern] = matches
        if len(text) > searchable_chars(pattern):
            raise OverBudget  # a search cannot be interrupted, and holds up every thread
        self._spend(1 + len(text) * count_states(pattern) // _WORK_PER_STEP)
        return matches(text)

    # ---- any value

    def _reference(self, expected: str, site: _Site) -> Found:
        yield from self._check(self._references.resolve(expected), site.value, site.path)

    def _enum(self, expected: list[Any], site: _Site) -> Found:
        self._spend(len(expected) // _ENTRIES_PER_STEP)
        if isinstance(site.value, str):
            is_listed = site.value in expected
        else:
            form = self._comparable(site.value)
            is_listed = any(self._comparable(entry) == form for entry in expected)
        if not is_listed:
            yield site.violation("enum", expected)

    def _const(self, expected: Any, site: _Site) -> Found:
        if self._comparable(expected) != self._comparable(site.value):
            yield site.violation("const", expected)

    def _comparable(self, value: Json) -> object:
        """Return a hashable form, equal for what is equal as JSON: 1 and 1.0 are, 1 and true are not."""
        if isinstance(value, Mapping):
            self._spend(1 + len(value) // _ENTRIES_PER_STEP)
            return frozenset((name, self._comparable(entry)) for name, entry in value.items())
        if isinstance(value, list):
            self._spend(1 + len(value) // _ENTRIES_PER_STEP)
            return tuple(map(self._comparable, value))
        return (bool, value) if isinstance(value, bool) else value

    def _all_of(self, expected: list[Any], site: _Site) -> Found:
        for part in expected:
            yield from self._check(part, site.value, site.path)

    def _any_of(self, expected: list[Any], site: _Site) -> Found:
        if not any(self._fits(part, site.value) for part in expected):
            yield site.violation("anyOf", expected)

    def _one_of(self, expected: list[Any], site: _Site) -> Found:
        if sum(self._fits(part, site.value) for part in expected) != 1:
            yield site.violation("oneOf", expected)

    def _not(self, expected: Any, site: _Site) -> Found:
        if self._fits(expected, site.value):
            yield site.violation("not", expected)

    def _if(self, expected: Any, site: _Site) -> Found:
        branch = "then" if self._fits(expected, site.value) else "else"
        if branch in site.schema:
            yield from self._check(site.schema[branch], site.value, site.path)

    def _pattern(self, expected: str, site: _Site) -> Found:
        if isinstance(site.value, str) and not self._matches(expected, site.value):
            yield site.violation("pattern", expected)

    # ---- lists

    def _prefix_items(self, expected: list[Any], site: _Site) -> Found:
        if isinstance(site.value, list):
            for number, (part, entry) in enumerate(zip(expected, site.value, strict=False)):
                yield from self._check(part, entry, (*site.path, number))

    def _items(self, expected: Any, site: _Site) -> Found:
        if isinstance(site.value, list):
            for number in range(len(site.schema.get("prefixItems", ())), len(site.value)):
                yield from self._check(expected, site.value[number], (*site.path, number))

    def _contains(self, expected: Any, site: _Site) -> Found:
        if not isinstance(site.value, list):
            return
        count = sum(self._fits(expected, entry) for entry in site.value)
        if count < site.schema.get("minContains", 1):
            yield site.violation("contains", expected)
        elif self._with_patterns and count > site.schema.get("maxContains", count):
            yield site.violation("maxContains", site.schema["maxContains"])

    def _unique_items(self, expected: bool, site: _Site) -> Found:
        if expected and isinstance(site.value, list):
            # By a hashable form: comparing each with each takes quadratic time.
            self._spend(len(site.value) // _ENTRIES_PER_STEP)
            if len(set(map(self._comparable, site.value))) < len(site.value):
                yield site.violation("uniqueItems", expected)

    # ---- objects

    def _properties(self, expected: Mapping[str, Any], site: _Site) -> Found:
        if isinstance(site.value, Mapping):
            names = expected if len(expected) < len(site.value) else site.value
            for name in names:
                if name in site.value and name in expected:
                    yield from self._check(expected[name], site.value[name], (*site.path, name))

    def _pattern_properties(self, expected: Mapping[str, Any], site: _Site) -> Found:
        if isinstance(site.value, Mapping):
            for pattern, part in expected.items():
                for name, entry in site.value.items():
                    if self._matches(pattern, name):
                        yield from self._check(part, entry, (*site.path, name))

    def _additional_properties(self, expected: Any, site: _Site) -> Found:
        patterns = site.schema.get("patternProperties", ())
        if not isinstance(site.value, Mapping) or (patterns and not self._with_patterns):
            # Which names are additional would depend on regular expressions that are not checked.
            return
        self._spend(len(site.value) // _ENTRIES_PER_STEP)
        known = site.schema.get("properties", {})
        names = tuple(
            name
            for name in site.value
            if name not in known and not any(self._matches(pattern, name) for pattern in patterns)
        )
        if names and expected is False:
            yield site.violation("additionalProperties", expected, names)
            return
        for name in names:
            yield from self._check(expected, site.value[name], (*site.path, name))

    def _property_names(self, expected: Any, site: _Site) -> Found:
        if isinstance(site.value, Mapping):
            for name in site.value:
                yield from self._check(expected, name, site.path)

    def _required(self, expected: list[str], site: _Site) -> Found:
        if isinstance(site.value, Mapping):
            self._spend(len(expected) // _ENTRIES_PER_STEP)
            missing = tuple(name for name in expected if name not in site.value)
            if missing:
                yield site.violation("required", expected, missing)

    def _dependent_required(self, expected: Mapping[str, list[str]], site: _Site) -> Found:
        if isinstance(site.value, Mapping):
            for name in site.value.keys() & expected.keys():
                yield from self._required(expected[name], site)

    def _dependent_schemas(self, expected: Mapping[str, Any], site: _Site) -> Found:
        if isinstance(site.value, Mapping):
            for name in site.value.keys() & expected.keys():
                yield from self._check(expected[name], site.value, site.path)

    # ---- what no other keyword has looked at

    def _unevaluated_items(self, expected: Any, site: _Site) -> Found:
        if isinstance(site.value, list):
            yield from self._unevaluated("unevaluatedItems", expected, site, range(len(site.value)))

    def _unevaluated_properties(self, expected: Any, site: _Site) -> Found:
        if isinstance(site.value, Mapping):
            yield from self._unevaluated("unevaluatedProperties", expected, site, site.value)

    def _unevaluated(self, keyword: str, expected: Any, site: _Site, keys: Any) -> Found:
        others = {name: part for name, part in site.schema.items() if name != keyword}
        seen = self._evaluated(others, site.value)
        for key in keys:
            if key not in seen and not self._fits(expected, site.value[key]):
                yield Violation((*site.path, key), keyword, expected, site.value[key])

    def _evaluated(self, schema: Any, value: Any) -> set[Any]:
        """Return the keys or positions of `value` that a keyword of `schema` has looked at."""
        if not isinstance(schema, Mapping):
            return set()
        self._spend(len(schema) + len(value) // _ENTRIES_PER_STEP)
        seen: set[Any] = set()
        if isinstance(value, Mapping):
            seen |= value.keys() & schema.get("properties", {}).keys()
            for pattern in schema.get("patternProperties", ()):
                seen |= {name for name in value if self._matches(pattern, name)}
            if {"additionalProperties", "unevaluatedProperties"} & schema.keys():
                seen |= value.keys()
        else:
            seen |= set(range(min(len(schema.get("prefixItems", ())), len(value))))
            if "contains" in schema:
                seen |= {n for n, entry in enumerate(value) if self._fits(schema["contains"], entry)}
            if {"items", "unevaluatedItems"} & schema.keys():
                seen |= set(range(len(value)))
        for part in self._parts_in_place(schema, value):
            if self._fits(part, value):
                seen |= self._evaluated(part, value)
        return seen

    def _parts_in_place(self, schema: Mapping[str, Any], value: Any) -> Iterator[Any]:
        """Yield the schemas directly in `schema` that speak of the value itself."""
        for keyword in ("$ref", "$dynamicRef"):
            if keyword in schema:
                yield self._references.resolve(schema[keyword])
        for keyword in ("allOf", "anyOf", "oneOf"):
            yield from schema.get(keyword, ())
        if isinstance(value, Mapping):
            dependent = schema.get("dependentSchemas", {})
            yield from (dependent[name] for name in value.keys() & dependent.keys())
        if "if" in schema:
            if self._fits(schema["if"], value):
                yield schema["if"]
                yield schema.get("then", True)
            else:
                yield schema.get("else", True)
