"""Our checker against `jsonschema` as the oracle, and against what is written to hang it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from aisotools.core.exceptions import ArgumentError
from aisotools.tools.conformance import Checker, OverBudget
from aisotools.tools.patterns import matcher
from aisotools.tools.soundness import schema_flaw
from aisotools.tools.validation import conforms, validate_against, validate_against_untrusted

STEPS = 100_000


def fits(schema: Any, value: Any, **options: Any) -> bool:
    checker = Checker(schema, max_steps=STEPS, **options)
    return next(checker.violations(value), None) is None


# ---- the oracle

SCALARS = st.sampled_from([None, True, False, 0, 1, 1.0, -1, 2.5, 3, 10**20, "", "a", "ab", "abc", "ü"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "ab", "c"]), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMES = st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3)
COUNTS = st.integers(0, 3)
NUMBERS = st.sampled_from([-1, 0, 1, 2, 2.5, 3])
TYPES = st.sampled_from(["string", "number", "integer", "boolean", "object", "array", "null"])
PATTERNS = st.sampled_from(["a", "^a", "b$", "^a+$", "[ab]{2}", "."])


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    parts = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(VALUES, max_size=3),
        "const": VALUES,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), NUMBERS),
        "multipleOf": st.sampled_from([1, 2, 0.5, 0.1, 3]),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), COUNTS),
        **dict.fromkeys(("minProperties", "maxProperties", "minContains", "maxContains"), COUNTS),
        "pattern": PATTERNS,
        "uniqueItems": st.booleans(),
        "required": NAMES,
        "dependentRequired": st.dictionaries(st.sampled_from(["a", "b"]), NAMES, max_size=2),
        **dict.fromkeys(("properties", "dependentSchemas"), named),
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), parts),
        **dict.fromkeys(("items", "contains", "additionalProperties", "propertyNames"), inner),
        **dict.fromkeys(("not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties"), inner),
        "$ref": st.sampled_from(["#/$defs/one", "#two"]),
        "format": st.just("date"),
    }
    chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


SCHEMAS = st.recursive(st.booleans() | schemas(st.booleans()), schemas, max_leaves=6)
TARGETS = {
    "one": {"type": "array", "prefixItems": [{"type": "integer"}]},
    "two": {"$anchor": "two", "minimum": 1},
}


@settings(max_examples=5 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, value=VALUES)
def test_verdicts_are_those_of_the_reference_implementation(schema: Any, value: Any) -> None:
    whole = {"allOf": [schema], "$defs": TARGETS}
    jsonschema.Draft202012Validator.check_schema(whole)
    assert schema_flaw(whole) == ""
    theirs = jsonschema.Draft202012Validator(whole).is_valid(value)
    assert fits(whole, value) is theirs
    # Without patterns nothing is refused that fits.
    assert fits(whole, value, with_patterns=False) or not theirs


BROKEN = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner))
KEYWORDS = sorted(
    {*jsonschema.Draft202012Validator.VALIDATORS, "$defs", "$id", "$anchor", "title", "if", "then", "else"}
    - {"$ref", "$dynamicRef", "$id", "$anchor", "pattern", "patternProperties", "format"}
)


@settings(max_examples=5 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    keyword=st.sampled_from(KEYWORDS), value=BROKEN, within=st.sampled_from(["properties", "anyOf", "items"])
)
def test_flaws_are_those_that_the_meta_schema_finds(keyword: str, value: Any, within: str) -> None:
    part = {keyword: value}
    schema = {within: {"properties": {"x": part}, "anyOf": [part], "items": part}[within]}
    theirs = jsonschema.Draft202012Validator(jsonschema.Draft202012Validator.META_SCHEMA).is_valid(schema)
    assert (schema_flaw(schema) == "") is theirs


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}}, "x", 1),
        ({"$ref": "#/$defs/a%25b", "$defs": {"a%b": {"type": "string"}}}, "x", 1),
        ({"$ref": "#/prefixItems/1", "prefixItems": [True, {"minItems": 2}]}, [1, [1, 2]], [1]),
        (
            {
                "$id": "https://a.example/s",
                "items": {"$ref": "https://a.example/s#/$defs/n"},
                "$defs": {"n": {}},
            },
            [1],
            0,
        ),
        ({"$dynamicRef": "#t", "$defs": {"t": {"$dynamicAnchor": "t", "type": "string"}}}, "x", 1),
        (
            {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "array"}}},
            {"$ref": "x"},
            {"$ref": 1},
        ),
    ],
)
def test_references_inside_the_schema_are_followed(schema: Any, good: Any, bad: Any) -> None:
    assert schema_flaw(schema) == ""
    assert fits(schema, good)
    if bad != 0:
        assert not fits(schema, bad)


def test_one_and_true_differ_and_one_and_one_point_nought_do_not() -> None:
    assert not fits({"enum": [1]}, True)
    assert fits({"enum": [1]}, 1.0)
    assert not fits({"const": [0, {"a": False}]}, [0, {"a": 0}])
    assert fits({"uniqueItems": True}, [1, True, "1", [1], [True]])
    assert not fits({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}])


# ---- hostile schemas and values


def tower(keyword: str, levels: int) -> dict[str, Any]:
    """Each definition names the next one twice."""

    def next_two(n: int) -> dict[str, Any]:
        return {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 2}

    defs = {f"d{n}": next_two(n) for n in range(levels)} | {f"d{levels}": {"type": "string"}}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs}


@pytest.mark.sample(1)
@pytest.mark.parametrize("keyword", ["allOf", "oneOf", "anyOf"])
def test_a_fan_of_references_ends(keyword: str) -> None:
    schema = tower(keyword, 40)
    value = "x" if keyword != "anyOf" else 1
    started_s = time.process_time()
    with pytest.raises(ArgumentError, match="too many, or nested too deep, to be checked"):
        validate_against(schema, {"x": value}, "t")
    assert validate_against_untrusted(schema, {"x": value}, "t") == {"x": value}
    assert not conforms(schema, {"x": value})
    assert time.process_time() - started_s < 20  # 2 ** 40 checks would take a fortnight
    few = tower(keyword, 8)
    assert validate_against(few, {"x": "x"}, "t") == {"x": "x"} if keyword != "oneOf" else True


LOOPS: Mapping[str, Any] = {
    "itself": {"$ref": "#"},
    "allOf": {"allOf": [{"$ref": "#"}]},
    "not": {"not": {"$ref": "#"}},
    "two": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
    },
    "if": {"if": {"$ref": "#/$defs/a"}, "$defs": {"a": {"dependentSchemas": {"x": {"$ref": "#/$defs/a"}}}}},
    "inside": {"properties": {"x": {"oneOf": [True, {"$ref": "#/properties/x"}]}}},
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_schema_that_refers_to_itself_without_end_is_broken(name: str) -> None:
    assert "without end" in schema_flaw(LOOPS[name])
    if name not in {"if", "inside"}:
        with pytest.raises(OverBudget):  # the attack, where no one looked at the schema first
            fits(LOOPS[name], {"x": 1})


def test_a_recursive_schema_is_not_endless() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    assert schema_flaw(tree) == ""
    assert fits(tree, {"left": {"right": None}, "right": {"left": {}}})
    assert not fits({**tree, "type": "object"}, {"left": {"right": 1}})


def test_deep_values_end() -> None:
    tree: dict[str, Any] = {
        "type": "object",
        "properties": {"x": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    }
    value: dict[str, Any] = {}
    for _ in range(190):
        value = {"x": value}
    problem = ""
    try:
        validate_against(tree, value, "t")
    except ArgumentError as error:
        problem = str(error)
    assert problem == "" or "nested too deep" in problem


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)+$", r"^(\w+\s?)*$", "(.*)*=(.*)*"])
def test_no_regular_expression_takes_exponential_time(pattern: str) -> None:
    schema = {"type": "object", "properties": {"x": {"pattern": pattern}}, "patternProperties": {pattern: {}}}
    assert schema_flaw(schema) == ""
    started_s = time.process_time()
    with pytest.raises(ArgumentError):
        validate_against({**schema, "additionalProperties": False}, {"y!": 1, "x": "a" * 50_000 + "!"}, "t")
    assert time.process_time() - started_s < 5  # `re` takes 2 ** 50_000 steps


@pytest.mark.parametrize(
    "pattern", [r"^(?=.*\d)a", r"(a)\1", "(?<!a)b", "(", "(?:a{1000}){1000}", "x" * 1_001]
)
def test_an_expression_that_cannot_be_checked_in_linear_time_is_a_flaw(pattern: str) -> None:
    schema = {"properties": {"x": {"pattern": pattern}}}
    assert "pattern" in schema_flaw(schema)
    assert schema_flaw(schema, with_patterns=False) == ""
    assert fits(schema, {"x": "b"}, with_patterns=False)


def test_pattern_is_not_searched_for_in_a_text_that_is_too_long_for_it() -> None:
    checker = Checker({"pattern": "[ab]*a[ab]{900}!"}, max_steps=10**9)
    assert next(checker.violations("a" * 500), None) is not None
    with pytest.raises(OverBudget):
        next(checker.violations("a" * 5_000), None)
    assert next(Checker({"pattern": "b$"}, max_steps=10**9).violations("a" * 500_000 + "b"), None) is None


def test_each_pattern_is_compiled_once_for_any_number_of_values() -> None:
    """Also when a schema has more patterns than compiled ones are remembered."""
    patterns = [f"^once{number}" for number in range(300)]
    checker = Checker({"items": {"not": {"anyOf": [{"pattern": one} for one in patterns]}}}, max_steps=STEPS)
    compiled = matcher.cache_info().misses
    assert next(checker.violations(["a"] * 20), None) is None
    assert matcher.cache_info().misses - compiled <= len(patterns)


def test_long_lists_of_values_and_items_are_bounded() -> None:
    schema = {"properties": {"x": {"items": {"enum": list(range(19_000))}}}}
    with pytest.raises(OverBudget):
        fits(schema, {"x": [18_999] * 20_000})
    assert fits({"uniqueItems": True}, [[n] for n in range(20_000)])


def test_time_is_a_budget_too() -> None:
    with pytest.raises(OverBudget):
        next(Checker({"type": "string"}, max_steps=STEPS, max_s=-1.0).violations("x"), None)
