"""What is wrong with the arguments of a call, in words that a model can act on.

The door to jsonschema, for tools that bring a schema of their own and no validator.
"""

from __future__ import annotations

import difflib
import functools
import reprlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from itertools import islice
from typing import Any

from aisotools.core.exceptions import ArgumentError, ToolError
from aisotools.core.types import Json

MAX_ARGUMENT_BYTES = 24 << 20
"""How long the arguments of one call may be as JSON."""

_PROBLEMS = 8
_MESSAGE_CHARS = 300

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
_short.maxlevel = 3


def brief(value: object) -> str:
    """Any value in a few characters; never fails, however large, deep or ill-behaved it is."""
    try:
        return _short.repr(value)
    except Exception:  # an int of 5,000 digits, for one
        return f"a value of type {type(value).__name__}"


def freeze(tool: str, arguments: Mapping[str, Any]) -> bytes:
    """Arguments as JSON text: what is decided about, shown and run.

    Raises:
        ArgumentError: If they are no JSON, or too long.
    """
    from pydantic_core import from_json, to_json

    try:
        frozen = to_json(dict(arguments))
        if len(frozen) <= MAX_ARGUMENT_BYTES:
            from_json(frozen)  # reading has a depth limit of its own
    except (ValueError, TypeError, RecursionError) as error:
        raise not_json(tool, error) from None
    if len(frozen) > MAX_ARGUMENT_BYTES:
        raise ArgumentError(
            f"The arguments of {tool} have {len(frozen):,} bytes as JSON; at most {MAX_ARGUMENT_BYTES:,} go "
            "through in one call. Write the data to a file in parts and pass its path.",
        )
    return frozen


def not_json(tool: str, error: Exception) -> ArgumentError:
    """The error of arguments that cannot be written as JSON, such as half a surrogate pair or a loop."""
    told = str(error).removeprefix("Error serializing to JSON: ").rstrip(".")
    return ArgumentError(
        f"The arguments of {tool} are not JSON: {told[:_MESSAGE_CHARS]}. "
        "Use numbers, valid text, true, false, null, lists and objects, not too deeply nested.",
    )


def not_named(tool: str, arguments: object, parameters: Mapping[str, Json]) -> ArgumentError:
    """The error of arguments that are no object at all."""
    return ArgumentError(
        f"The arguments of {tool} must be an object with named values, not {type(arguments).__name__} "
        f"{brief(arguments)}. {signature_hint(parameters)}",
    )


def not_fitting(tool: str, problems: Sequence[str], parameters: Mapping[str, Json]) -> ArgumentError:
    """The error of arguments with these problems, and what would fit."""
    different = list(dict.fromkeys(problems))
    listed = "; ".join(different[:_PROBLEMS])
    more = f"; and {len(different) - _PROBLEMS} more" if len(different) > _PROBLEMS else ""
    return ArgumentError(f"The arguments of {tool} do not fit: {listed}{more}. {signature_hint(parameters)}")


def problem(
    loc: Sequence[object], kind: str, message: str, value: object, parameters: Mapping[str, Json]
) -> str:
    """One problem, named by where it is.

    Args:
        loc: Keys and positions from the outermost inwards.
        kind: `missing`, `extra_forbidden`, or anything else, which `message` then tells.
        message: What is wrong.
        value: What was given.
        parameters: JSON Schema of all arguments.
    """
    path = ".".join(str(part)[:80] for part in loc) or "arguments"
    if kind == "missing":
        return f"{path} is missing"
    if kind == "extra_forbidden":
        known = list(parameters.get("properties", {}))
        near = difflib.get_close_matches(str(loc[-1]), known, n=1) if len(loc) == 1 else []
        return f"{path} is not an argument" + (f" (did you mean {near[0]}?)" if near else "")
    told = message[:_MESSAGE_CHARS]
    return f"{path}: {told[:1].lower() + told[1:]}, got {brief(value)}"


def signature_hint(parameters: Mapping[str, Json]) -> str:
    """The arguments in one line, as `Expected: width (number, required), unit (string)`."""
    properties = parameters.get("properties", {})
    required = set(parameters.get("required", ()))
    if not properties:
        return "It takes no arguments." if parameters.get("additionalProperties") is False else ""
    told = []
    for name, schema in list(properties.items())[:20]:
        kind = _kind(schema, parameters.get("$defs", {}))
        told.append(f"{name} ({kind}, required)" if name in required else f"{name} ({kind})")
    return "Expected: " + ", ".join(told) + "."


def _kind(schema: Json, definitions: Mapping[str, Json]) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        found = definitions.get(name, {})
        return _kind(found, {}) if "enum" in found or "const" in found else name
    if "enum" in schema:
        return "one of " + ", ".join(brief(v) for v in schema["enum"][:12])
    if "const" in schema:
        return brief(schema["const"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(s, definitions) for s in schema["anyOf"]))
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return f"array of {_kind(schema['items'], definitions)}"
    kinds = schema.get("type", "any")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


# ---- tools that bring a schema and nothing else


def schema_flaw(schema: object) -> str:
    """What keeps this from being the JSON Schema of a tool's arguments; empty if nothing does."""
    import jsonschema

    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return f"the schema of its arguments must be a JSON Schema of type 'object', not {brief(schema)}"
    try:
        jsonschema.Draft202012Validator.check_schema(dict(schema))
    except jsonschema.SchemaError as error:
        where = ".".join(str(part) for part in error.absolute_path)
        told = error.message[:_MESSAGE_CHARS]
        return f"the schema of its arguments is broken{f' at {where}' if where else ''}: {told}"
    return ""


def fits(schema: Mapping[str, Json], value: Json) -> bool:
    """Whether a value is what a sound JSON Schema describes."""
    return bool(_validator(schema).is_valid(value))


def validate_against(schema: Mapping[str, Json], arguments: Mapping[str, Any], tool: str) -> dict[str, Json]:
    """The arguments as plain JSON, checked against a JSON Schema; nothing is coerced.

    Raises:
        ArgumentError: Naming every argument that does not fit.
        ToolError: If the schema itself is broken; not recoverable.
    """
    return _validated(schema, arguments, tool, _validator)


def _validated(
    schema: Mapping[str, Json],
    arguments: Mapping[str, Any],
    tool: str,
    validator: Callable[[Mapping[str, Json]], Any],
) -> dict[str, Json]:
    from pydantic_core import from_json

    if not isinstance(arguments, Mapping):
        raise not_named(tool, arguments, schema)
    plain: dict[str, Json] = from_json(freeze(tool, arguments))
    errors: list[Any] = []
    try:
        for error in islice(validator(schema).iter_errors(plain), _PROBLEMS):
            errors.append(error)  # noqa: PERF402 - what was found stays when the rest is given up
    except _Spent:
        pass  # whoever wrote the schema checks the rest
    except Exception as error:
        raise ToolError(
            f"{tool} cannot be called: the schema of its arguments is broken ({type(error).__name__}: "
            f"{str(error)[:_MESSAGE_CHARS]}). Whoever provides the tool must mend it.",
            recoverable=False,
        ) from error
    if errors:
        errors.sort(key=lambda error: [str(part) for part in error.absolute_path])
        raise not_fitting(tool, [told for error in errors for told in _problems(error, schema)], schema)
    return plain


# ---- schemas of strangers

# Whatever a keyword may cost here is bounded by what it looks at; patterns are not among them.
_CHEAP = (
    *("$ref", "type", "enum", "const", "required", "properties", "additionalProperties", "items"),
    *("prefixItems", "anyOf", "oneOf", "allOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
)
_STEPS, _SECONDS = 20_000, 0.25
_budget: ContextVar[list[float]] = ContextVar("budget")


class _Spent(Exception):
    """The work that a stranger's schema may cause is used up."""


def validate_strangers(
    schema: Mapping[str, Json], arguments: Mapping[str, Any], tool: str
) -> dict[str, Json]:
    """The arguments as plain JSON, checked against the schema of a stranger who may want us to hang.

    Only what is cheap is checked, and only for so long; the rest is left to whoever wrote the schema.

    Raises:
        ArgumentError: Naming arguments that do not fit.
        ToolError: If the schema itself is broken; not recoverable.
    """
    token = _budget.set([_STEPS, time.monotonic() + _SECONDS])
    try:
        return _validated(schema, arguments, tool, _strangers_validator)
    finally:
        _budget.reset(token)


@functools.cache
def _bounded_kind() -> Any:
    import jsonschema

    def counted(name: str, check: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
        def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            budget = _budget.get()
            budget[0] -= 1
            if budget[0] < 0 or time.monotonic() > budget[1]:
                raise _Spent
            if name == "additionalProperties" and "patternProperties" in schema:
                return  # which names are additional depends on patterns
            yield from check(validator, value, instance, schema) or ()

        return keyword

    usual = jsonschema.Draft202012Validator
    checks = {name: counted(name, usual.VALIDATORS[name]) for name in _CHEAP}
    return jsonschema.validators.create(usual.META_SCHEMA, checks, type_checker=usual.TYPE_CHECKER)


def _strangers_validator(schema: Mapping[str, Json]) -> Any:
    from referencing import Registry

    return _bounded_kind()(dict(schema), registry=Registry())


def _validator(schema: Mapping[str, Json]) -> Any:
    import jsonschema
    from referencing import Registry

    # A registry of our own: jsonschema's default would fetch whatever a `$ref` points at, files included.
    return jsonschema.Draft202012Validator(dict(schema), registry=Registry())


def _problems(error: Any, schema: Mapping[str, Json]) -> list[str]:
    """One error of jsonschema, told like pydantic's."""
    loc = tuple(error.absolute_path)
    if error.validator == "required":
        missing = [n for n in error.validator_value if n not in error.instance]
        return [problem((*loc, n), "missing", "", None, schema) for n in missing]
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = set(error.schema.get("properties", {}))
        extra = [n for n in error.instance if n not in known]
        return [problem((*loc, n), "extra_forbidden", "", None, schema) for n in extra]
    wanted = f"does not fit {error.validator} {brief(error.validator_value)}"
    return [problem(loc, str(error.validator), wanted, error.instance, schema)]
