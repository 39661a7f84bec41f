"""Check the arguments of a call, with error messages that a model can act on.

Tools made by `@tool` validate with pydantic and share the messages here. Other tools have a JSON Schema and
no validator; `validate_against` checks theirs.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import reprlib
import uuid
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, TypeGuard, cast, get_args

from aisotools.core.exceptions import ArgumentError, ToolError
from aisotools.core.types import Json, Origin, ToolCall
from aisotools.tools.conformance import Checker, OverBudget, Violation
from aisotools.tools.soundness import BrokenSchema, schema_flaw

MAX_ARGUMENT_BYTES = 4 << 20
"""The largest arguments of one call, encoded as JSON. The event loop copies, checks and records them: of this
size that takes some 25 ms in its longest step."""

MAX_ARGUMENT_NAMES = 1_000
"""Names of arguments in one call."""

MAX_ARGUMENT_VALUES = 20_000
"""Values in the arguments of one call, at any depth."""

MAX_ARGUMENT_CONTAINERS = 2_000
"""Lists and objects among these values."""

MAX_INTEGER_BITS = 100_000
"""Bits of the integers in the arguments of one call, of those that need more than a machine word."""

_PLAIN_BITS = 64

MAX_LABEL_CHARS = 1_000
"""Characters of a call's id, of its name, and of the ids of its agent and turn."""

MAX_PROBLEMS = 8
"""Problems that one message lists; the model corrects them and tries again."""

_MAX_MESSAGE_CHARS = 300
_LABEL_BEGINNING = 100
_MAX_HINTED_ARGUMENTS = 20
_MAX_HINTED_VALUES = 12
_MAX_HINT_CHARS = 200  # of one argument
_MAX_COMPARED_NAMES = 500

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
_short.maxlevel = 3


def short_repr(value: object) -> str:
    """Return a short `repr` of any value. Never raises, however large, deep or ill-behaved the value is."""
    try:
        return _short.repr(value)
    except Exception:
        # Any `__repr__` may raise; so does that of an int with more than 4,300 digits.
        return f"a value of type {type(value).__name__}"


_LARGE_BYTES = 1 << 14
"""From this size on a copy of parsed arguments takes less than to parse them again."""


class EncodedArguments(bytes):
    """Large arguments as JSON, parsed once.

    Parsing megabytes of escaped text takes ten milliseconds, and a call's arguments are read ten times.

    Attributes:
        parsed: The parsed arguments. They must not be changed.
    """

    parsed: dict[str, Any]


def fresh_arguments(encoded: bytes) -> dict[str, Any]:
    """Return arguments parsed from JSON: a fresh copy that the caller may change."""
    import pydantic_core  # a name taken out of it takes three times as long to import

    if isinstance(encoded, EncodedArguments):
        copied: dict[str, Any] = _copy(encoded.parsed)
        return copied
    arguments: dict[str, Any] = pydantic_core.from_json(encoded)
    return arguments


def _copy(value: Any) -> Any:
    """Return parsed JSON with lists and objects of its own; texts and numbers cannot change."""
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    return [*map(_copy, value)] if type(value) is list else value


def encode_arguments(tool: str, arguments: Mapping[str, Any]) -> bytes:
    """Encode arguments as JSON. These bytes are what is decided about, shown and run.

    Returns:
        The JSON, for `fresh_arguments`.

    Raises:
        ArgumentError: If they have no JSON form, or exceed `MAX_ARGUMENT_BYTES`.
    """
    import pydantic_core

    try:
        encoded = pydantic_core.to_json(dict(arguments))
        # Encoding accepts deeper nesting than decoding does.
        parsed = pydantic_core.from_json(encoded) if len(encoded) <= MAX_ARGUMENT_BYTES else {}
    except (ValueError, TypeError, RecursionError) as error:
        raise not_json_error(tool, error) from None
    if len(encoded) > MAX_ARGUMENT_BYTES:
        raise _too_large_error(tool, f"{len(encoded):,} bytes as JSON")
    if len(encoded) < _LARGE_BYTES:
        return encoded
    large = EncodedArguments(encoded)
    large.parsed = parsed
    return large


def bounded_call(call: ToolCall) -> ToolCall:
    """Return the call with ids and a name that every record can hold, as a model or a client chooses them.

    Of a text of more than `MAX_LABEL_CHARS` characters the beginning stays, with its length and a digest of
    its ends; half characters are escaped.
    """
    labels: tuple[object, ...] = (call.id, call.name, call.agent_id, call.turn_id)
    if all(isinstance(label, str) and len(label) <= MAX_LABEL_CHARS and label.isascii() for label in labels):
        return call
    call_id, name, agent_id, turn_id = map(_bounded_label, labels)
    return dataclasses.replace(call, id=call_id, name=name, agent_id=agent_id, turn_id=turn_id)


def _bounded_label(label: object) -> str:
    text = str(label)
    size = len(text)
    if size > 2 * MAX_LABEL_CHARS:  # all of it may take long to read
        text = text[:MAX_LABEL_CHARS] + text[-MAX_LABEL_CHARS:]
    encoded = text.encode("utf-8", "backslashreplace")
    text = encoded.decode()
    if len(text) <= MAX_LABEL_CHARS:
        return text
    return f"{text[:_LABEL_BEGINNING]}... ({size:,} characters, {hashlib.sha256(encoded).hexdigest()[:32]})"


def make_call(name: object, arguments: object = None, *, origin: str, call_id: object = None) -> ToolCall:
    """Build a call as a program makes it. Mistakes that a model could make in it are left to the gate.

    Raises:
        TypeError: If this is not a call at all.
        ValueError: If nobody of that kind makes calls.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"The name of a tool is text, not {type(name).__name__}; give a name that `%tools` lists."
        )
    if origin not in get_args(Origin):
        raise ValueError(f"origin={origin!r}: use one of {', '.join(get_args(Origin))}.")
    if call_id is not None and not isinstance(call_id, str):
        raise TypeError(f"A call's id is text, not {type(call_id).__name__}; leave it out to have one made.")
    checked: Any = {} if arguments is None else arguments
    return bounded_call(ToolCall(call_id or uuid.uuid4().hex, name, checked, origin=cast("Origin", origin)))


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a number. A bool does not count as one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_deadline(timeout_s: object) -> None:
    """Refuse a deadline of a call that is neither None nor a number of seconds above 0.

    Raises:
        ValueError: If it is none.
    """
    if timeout_s is not None and not (is_number(timeout_s) and timeout_s > 0):
        raise ValueError(f"timeout_s={timeout_s!r}: use a number of seconds above 0.")


_CHARS_PER_VALUE = 100  # reading one value takes about as long as this much text


def check_size(tool: str, arguments: object) -> int:
    """Refuse arguments that would hold up the event loop, before anything reads or copies them.

    Returns:
        How large they are: the number of characters, and of values as if each had a hundred.

    Raises:
        ArgumentError: If they exceed one of the limits above.
    """
    chars = values = containers = bits = 0
    todo: list[object] = [arguments]
    while todo:
        item = todo.pop()
        if isinstance(item, str | bytes):
            chars += len(item)
        elif isinstance(item, int):
            # Writing an integer takes time with the square of its length: 3 million bits take seconds.
            bits += item.bit_length() if item.bit_length() > _PLAIN_BITS else 0
            if bits > MAX_INTEGER_BITS:
                raise ArgumentError(
                    f"The arguments of {tool} have large integers of more than {MAX_INTEGER_BITS:,} bits in "
                    "all. Pass them as text."
                )
        elif isinstance(item, Mapping | list | tuple):
            containers += 1
            values += len(item)
            if item is arguments and values > MAX_ARGUMENT_NAMES:
                raise _too_many_error(tool, f"{values:,} names", MAX_ARGUMENT_NAMES)
            if values <= MAX_ARGUMENT_VALUES:
                if isinstance(item, Mapping):
                    todo += item
                    todo += item.values()
                else:
                    todo += item
        if values > MAX_ARGUMENT_VALUES:
            raise _too_many_error(tool, f"more than {MAX_ARGUMENT_VALUES:,} values", MAX_ARGUMENT_VALUES)
        if containers > MAX_ARGUMENT_CONTAINERS:
            what = f"more than {MAX_ARGUMENT_CONTAINERS:,} lists and objects"
            raise _too_many_error(tool, what, MAX_ARGUMENT_CONTAINERS)
        if chars > MAX_ARGUMENT_BYTES:
            raise _too_large_error(tool, f"more than {MAX_ARGUMENT_BYTES:,} characters")
    return chars + _CHARS_PER_VALUE * values


def _too_many_error(tool: str, what: str, limit: int) -> ArgumentError:
    return ArgumentError(
        f"The arguments of {tool} have {what}; a call takes at most {limit:,}. "
        "Write the data to a file and pass its path."
    )


def _too_large_error(tool: str, what: str) -> ArgumentError:
    return ArgumentError(
        f"The arguments of {tool} have {what}; a call takes at most {MAX_ARGUMENT_BYTES:,} bytes as JSON. "
        "Write the data to a file in parts and pass its path."
    )


def not_json_error(tool: str, error: Exception) -> ArgumentError:
    """Build the error for arguments without a JSON form, such as a lone surrogate or a cyclic list."""
    reason = str(error).removeprefix("Error serializing to JSON: ").rstrip(".")
    return ArgumentError(
        f"The arguments of {tool} are not JSON: {reason[:_MAX_MESSAGE_CHARS]}. "
        "Use numbers, valid text, true, false, null, lists and objects without deep nesting.",
    )


def not_an_object_error(tool: str, arguments: object, parameters: Mapping[str, Json]) -> ArgumentError:
    """Build the error for arguments that are not an object."""
    return ArgumentError(
        f"The arguments of {tool} must be an object with named values, not {type(arguments).__name__} "
        f"{short_repr(arguments)}. {signature_hint(parameters)}",
    )


def invalid_arguments_error(
    tool: str, problems: Sequence[str], parameters: Mapping[str, Json], *, more: int = 0
) -> ArgumentError:
    """Build the error for arguments with these problems; its message ends with the expected arguments.

    Args:
        tool: Name of the tool.
        problems: Descriptions of problems.
        parameters: JSON Schema of all arguments.
        more: Number of further problems, which are not described.
    """
    unique = list(dict.fromkeys(problems))
    listed = "; ".join(unique[:MAX_PROBLEMS])
    more += max(len(unique) - MAX_PROBLEMS, 0)
    listed += f"; and {more:,} more" if more else ""
    return ArgumentError(f"The arguments of {tool} do not fit: {listed}. {signature_hint(parameters)}")


def describe_problem(
    loc: Sequence[object], kind: str, message: str, value: object, parameters: Mapping[str, Json]
) -> str:
    """Describe one problem and where it is, such as `size.width: should be a number, got 'a'`.

    Args:
        loc: Keys and positions from the outermost inwards.
        kind: pydantic's error type. `missing` and `extra_forbidden` have wordings of their own; for any other
            the wording is `message`.
        message: The description of any other kind.
        value: The rejected value.
        parameters: JSON Schema of all arguments.
    """
    path = ".".join(str(part)[:80] for part in loc) or "arguments"
    if kind == "missing":
        return f"{path} is missing"
    if kind == "extra_forbidden":
        known = list(parameters.get("properties", {}))
        is_comparable = len(loc) == 1 and len(known) <= _MAX_COMPARED_NAMES
        near = difflib.get_close_matches(str(loc[-1])[:80], known, n=1) if is_comparable else []
        suggestion = f" (did you mean {near[0][:80]}?)" if near else ""
        return f"{path} is not an argument{suggestion}"
    text = message[:_MAX_MESSAGE_CHARS]
    return f"{path}: {text[:1].lower() + text[1:]}, got {short_repr(value)}"


def signature_hint(parameters: Mapping[str, Json]) -> str:
    """Return the arguments in one line, as `Expected: width (number, required), unit (string)`."""
    properties = parameters.get("properties", {})
    required = set(parameters.get("required", ()))
    if not properties:
        return "It takes no arguments." if parameters.get("additionalProperties") is False else ""
    entries = []
    for name, schema in list(properties.items())[:_MAX_HINTED_ARGUMENTS]:
        type_name = _type_name(schema, parameters.get("$defs", {}))
        if len(type_name) > _MAX_HINT_CHARS:
            type_name = f"{type_name[:_MAX_HINT_CHARS]}..."
        need = ", required" if name in required else ""
        entries.append(f"{name[:_MAX_HINT_CHARS]} ({type_name}{need})")
    return "Expected: " + ", ".join(entries) + "."


def _type_name(schema: Json, definitions: Mapping[str, Json]) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        target = definitions.get(name, {})
        return _type_name(target, {}) if "enum" in target or "const" in target else name
    if "enum" in schema:
        return "one of " + ", ".join(short_repr(v) for v in schema["enum"][:_MAX_HINTED_VALUES])
    if "const" in schema:
        return short_repr(schema["const"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type_name(s, definitions) for s in schema["anyOf"]))
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return f"array of {_type_name(schema['items'], definitions)}"
    kinds = schema.get("type", "any")
    return kinds if isinstance(kinds, str) else " or ".join(kinds)


# -- JSON Schemas

_MAX_STEPS = 200_000
"""Keyword checks of one call's arguments: a fraction of a second, for which the event loop waits."""
_MAX_VALUE_STEPS = 500_000
_MAX_UNTRUSTED_STEPS = 20_000
_MAX_UNTRUSTED_S = 0.05


def schema_error(schema: object, *, with_patterns: bool = True) -> str:
    """Return why `schema` cannot describe a tool's arguments, or `""` if it can.

    Args:
        schema: Any object.
        with_patterns: Whether a regular expression that cannot be checked in linear time is an error.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return f"the schema of its arguments must be a JSON Schema of type 'object', not {short_repr(schema)}"
    flaw = schema_flaw(schema, with_patterns=with_patterns)
    return f"the schema of its arguments is broken {flaw}" if flaw else ""


def conforms(schema: Mapping[str, Json], value: Json) -> bool:
    """Return whether `value` fits `schema`; False also if the check exceeds its budget."""
    try:
        return next(Checker(schema, max_steps=_MAX_VALUE_STEPS).violations(value), None) is None
    except (OverBudget, BrokenSchema):
        return False


def validate_against(schema: Mapping[str, Json], arguments: Mapping[str, Any], tool: str) -> dict[str, Json]:
    """Return the arguments as plain JSON, checked against a JSON Schema. Nothing is coerced.

    Raises:
        ArgumentError: Naming every argument that does not fit.
        ToolError: If the schema itself is broken; not recoverable.
    """
    flaw = schema_flaw(schema)
    if flaw:
        raise _broken_schema_error(tool, flaw)
    checker = Checker(schema, max_steps=_MAX_STEPS)
    try:
        return _validate(schema, arguments, tool, checker)
    except OverBudget:
        raise ArgumentError(
            f"The arguments of {tool} are too many, or nested too deep, to be checked against its schema in "
            f"{_MAX_STEPS:,} steps. Pass less at once, or write the data to a file and pass its path."
        ) from None


def validate_against_untrusted(
    schema: Mapping[str, Json], arguments: Mapping[str, Any], tool: str
) -> dict[str, Json]:
    """Return the arguments as plain JSON, checked against a schema that may be written to hang us.

    Regular expressions are not checked, and what takes too many steps or too long counts as valid: whoever
    wrote the schema validates the call again.

    Raises:
        ArgumentError: Naming arguments that do not fit.
        ToolError: If the schema itself is broken; not recoverable.
    """
    checker = Checker(schema, max_steps=_MAX_UNTRUSTED_STEPS, max_s=_MAX_UNTRUSTED_S, with_patterns=False)
    try:
        return _validate(schema, arguments, tool, checker)
    except OverBudget:
        return _plain(tool, arguments)


def _plain(tool: str, arguments: Mapping[str, Any]) -> dict[str, Json]:
    return fresh_arguments(encode_arguments(tool, arguments))


def _validate(
    schema: Mapping[str, Json], arguments: Mapping[str, Any], tool: str, checker: Checker
) -> dict[str, Json]:
    if not isinstance(arguments, Mapping):
        raise not_an_object_error(tool, arguments, schema)
    plain = _plain(tool, arguments)
    violations: list[Violation] = []
    try:
        for violation in islice(checker.violations(plain), MAX_PROBLEMS):
            violations.append(violation)  # noqa: PERF402 - a list comprehension would lose them at OverBudget
    except OverBudget:
        if not violations:
            raise
    except Exception as error:
        raise _broken_schema_error(tool, f"at this call: {type(error).__name__}: {error}") from error
    if violations:
        violations.sort(key=lambda violation: [str(part) for part in violation.path])
        problems = [text for violation in violations for text in _describe_violation(violation, schema)]
        raise invalid_arguments_error(tool, problems, schema)
    return plain


def _broken_schema_error(tool: str, flaw: str) -> ToolError:
    return ToolError(
        f"{tool} was not called: the schema of its arguments is broken {flaw[:_MAX_MESSAGE_CHARS]}. "
        "The author of the tool must fix it.",
        recoverable=False,
    )


def _describe_violation(violation: Violation, schema: Mapping[str, Json]) -> list[str]:
    """Describe what does not fit in the same words as an error of pydantic."""
    loc = violation.path
    if violation.keyword == "required":
        return [describe_problem((*loc, name), "missing", "", None, schema) for name in violation.names]
    if violation.keyword == "additionalProperties":
        # Only what is listed is worth the search for a name that is near; of the others the number counts.
        return [
            describe_problem((*loc, name), "extra_forbidden", "", None, schema)
            if number < MAX_PROBLEMS
            else f"{name[:80]} is not an argument"
            for number, name in enumerate(violation.names)
        ]
    message = f"does not fit {violation.keyword} {short_repr(violation.expected)}"
    if violation.keyword == "false":
        message = "may not be there"
    return [describe_problem(loc, violation.keyword, message, violation.value, schema)]
