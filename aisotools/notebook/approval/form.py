"""Form fields for the arguments of a call, built from its schema, and the edits a person makes in them. Pure.

Every argument has a field of its own; all of them together can be edited as JSON instead. Edits are validated
against the schema here although the page validates too, because the page is untrusted. The gate validates
once more what is to run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from aisotools.core.exceptions import ArgumentError
from aisotools.core.redaction import secret_parameters
from aisotools.core.types import ApprovalRequest, Json
from aisotools.policy.prompts import (
    MASK,
    MAX_SHOWN_CHARS,
    ArgumentField,
    argument_fields,
    truncate_middle,
    visible,
    visible_json,
)
from aisotools.tools.validation import conforms, schema_error, validate_against

ControlKind = Literal["shell", "python", "text", "number", "boolean", "choice", "json", "secret"]
"""Kinds of editors. The text of `shell`, `python` and `text` is the argument itself, that of `secret` a mask,
that of all others JSON."""

HIDDEN = r"Holds characters that cannot be seen; each is written as an escape, such as \u202e."
"""Note of a field whose text holds invisible characters."""

_RAW: tuple[ControlKind, ...] = ("shell", "python", "text")
_MAX_CHOICES = 100
_NULL = {"type": "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The form field of one argument.

    Attributes:
        name: The argument.
        kind: Kind of editor.
        text: Initial text.
        about: The argument's description in the schema.
        choices: For `choice`: the JSON texts to choose from.
        least: Smallest number, or fewest characters; None for no limit.
        most: Largest number, or most characters; None for no limit.
        whole: Whether a number must be an integer.
        note: A remark of this package, shown below the field.
    """

    name: str
    kind: ControlKind
    text: str
    about: str = ""
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    whole: bool = False
    note: str = ""

    @property
    def editable(self) -> bool:
        """True if the whole argument is shown, so that a person sees all that they would change."""
        return self.kind != "secret" and len(self.text) <= MAX_SHOWN_CHARS

    @property
    def shown(self) -> str:
        """`text`, or both ends of a very long one with the number of characters left out."""
        return truncate_middle(self.text)


def build_controls(request: ApprovalRequest) -> tuple[Control, ...]:
    """Return a field for each argument: code first, then short values, then long text, then secrets."""
    kinds: dict[str, str] = {field.name: field.kind for field in argument_fields(request) if field.name}
    kinds |= dict.fromkeys(secret_parameters(request.definition.parameters), "secret")
    properties = request.definition.parameters.get("properties", {})
    definitions = request.definition.parameters.get("$defs", {})
    controls = [
        _control(name, value, kinds.get(name), _resolve(properties.get(name), definitions))
        for name, value in request.call.arguments.items()
    ]
    return tuple(sorted(controls, key=_rank))


def apply_argument_edits(
    request: ApprovalRequest, edits: Mapping[str, str], whole: str | None
) -> dict[str, Json] | None:
    """Return the arguments of `request` after a person's edits; None when nothing changed.

    Args:
        request: The request that was shown.
        edits: New text by name of the field.
        whole: All arguments but the secret ones as JSON, edited instead of the fields; or None.

    Raises:
        ArgumentError: If a field cannot be edited, a text is not valid for its field, or the arguments do
            not fit the tool's schema.
    """
    arguments = _edit_fields(request, edits) if whole is None else _edit_json(request, whole)
    if arguments == request.call.arguments and _same_types(arguments, request.call.arguments):
        return None
    schema = request.definition.parameters
    # A tool with a validator of its own may hold arguments that its schema does not describe. Then the
    # schema cannot judge the edits either, and the gate's validation decides.
    if not schema_error(schema) and conforms(schema, dict(request.call.arguments)):
        validate_against(schema, arguments, request.call.name)
    return arguments


def argument_changes(
    request: ApprovalRequest, arguments: Mapping[str, Json]
) -> Iterator[tuple[str, str, str]]:
    """Yield name, old and new text of every argument that differs, in full; secrets are left out."""
    secret = secret_parameters(request.definition.parameters)
    before = request.call.arguments
    for name in dict.fromkeys([*before, *arguments]):
        old, new = before.get(name, _ABSENT), arguments.get(name, _ABSENT)
        if name not in secret and (old != new or not _same_types(old, new)):
            yield visible(name, ""), _display_text(old), _display_text(new)


class _Absent:
    """Stands for an argument that a call does not have."""


_ABSENT = _Absent()


def _display_text(value: Json) -> str:
    if isinstance(value, _Absent):
        return "(not given)"
    return value if isinstance(value, str) and visible(value) == value and value else visible_json(value)


def _edit_fields(request: ApprovalRequest, edits: Mapping[str, str]) -> dict[str, Json]:
    controls = {control.name: control for control in build_controls(request)}
    arguments = dict(request.call.arguments)
    for name, text in edits.items():
        control = controls.get(name)
        if control is None or not control.editable:
            raise ArgumentError(f"There is no editable field {name!r}.")
        if text != control.text:
            arguments[name] = text if control.kind in _RAW else _parse_json(text, f"The argument {name!r}")
    return arguments


def _edit_json(request: ApprovalRequest, whole: str) -> dict[str, Json]:
    secret = secret_parameters(request.definition.parameters)
    value = _parse_json(whole, "The text")
    if not isinstance(value, dict):
        raise ArgumentError(f"The arguments must be a JSON object {{...}}, not {type(value).__name__}.")
    if forbidden := value.keys() & secret:
        raise ArgumentError(f"The argument {min(forbidden)!r} is secret and cannot be edited here.")
    return value | {name: old for name, old in request.call.arguments.items() if name in secret}


def _parse_json(text: str, what: str) -> Json:
    """Parse strictly: refuse JSON that a reader could take one way and the tool another way."""

    def build_object(items: list[tuple[str, Json]]) -> dict[str, Json]:
        members: dict[str, Json] = {}
        for name, value in items:
            # Parsers disagree which of two members of one name counts.
            if name in members:
                raise ValueError(f"the name {name!r} occurs twice")
            members[name] = value
        return members

    def refuse_constant(word: str) -> Json:
        raise ValueError(f"{word} is not a JSON value")

    def parse_number(digits: str) -> float:
        value = float(digits)
        # 1e999 is valid JSON but would become infinity.
        return value if math.isfinite(value) else refuse_constant(digits)

    try:
        return json.loads(
            text,
            object_pairs_hook=build_object,
            parse_constant=refuse_constant,
            parse_float=parse_number,
        )
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{what} is not valid JSON: {error}.") from None


def _same_types(one: Json, other: Json) -> bool:
    """Compare as JSON: in Python `1`, `1.0` and `True` are equal."""
    if isinstance(one, _Absent) or isinstance(other, _Absent):
        return one is other
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _control(name: str, value: Json, kind: str | None, schema: Mapping[str, Any]) -> Control:
    about = visible(str(schema.get("description", "")), "")
    if kind == "secret":
        return Control(name=name, kind="secret", text=MASK, about=about)
    options, nullable = _options(schema)
    choices = tuple(visible(json.dumps(option, ensure_ascii=False)) for option in options)
    text = visible(json.dumps(value, ensure_ascii=False))
    if text in choices and len(choices) > 1:
        if set(choices) == {"true", "false"} and len(choices) == 2:
            return Control(name=name, kind="boolean", text=text, about=about)
        return Control(name=name, kind="choice", text=text, about=about, choices=choices)
    if isinstance(value, str) and visible(value) == value:
        return Control(
            name=name,
            kind="shell" if kind == "shell" else "python" if kind == "python" else "text",
            text=value,
            about=about,
            least=_number(schema.get("minLength")),
            most=_number(schema.get("maxLength")),
        )
    if isinstance(value, bool):
        return Control(name=name, kind="boolean", text=text, about=about)
    if isinstance(value, int | float) and not nullable:
        return Control(
            name=name,
            kind="number",
            text=text,
            about=about,
            least=_number(schema.get("minimum")),
            most=_number(schema.get("maximum")),
            whole=schema.get("type") == "integer",
        )
    indented = visible_json(value)
    hides = ArgumentField(name=name, kind="json", text=indented).has_escapes
    return Control(name=name, kind="json", text=indented, about=about, note=HIDDEN if hides else "")


def _resolve(schema: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow a `$ref` into `$defs`, one level deep."""
    if not isinstance(schema, Mapping):
        return {}
    if isinstance(schema.get("$ref"), str):
        target = definitions.get(schema["$ref"].rpartition("/")[2])
        return {**target, **schema} if isinstance(target, Mapping) else schema
    return schema


def _options(schema: Mapping[str, Any]) -> tuple[list[Json], bool]:
    """Return the values that an enumerating schema allows, if any, and whether null is one of them."""
    branches = schema.get("anyOf")
    if not isinstance(branches, list):
        return _list_choices(schema), False
    nullable = _NULL in branches
    values: list[Json] = []
    for branch in branches:
        branch_values = [None] if branch == _NULL else _list_choices(branch)
        if not branch_values:
            return [], nullable
        values += branch_values
    return values, nullable


def _list_choices(schema: Any) -> list[Json]:
    if not isinstance(schema, Mapping):
        return []
    if schema.get("type") == "boolean" and "enum" not in schema:
        return [True, False]
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return list(values) if isinstance(values, list) and len(values) <= _MAX_CHOICES else []


def _number(limit: Any) -> float | None:
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _rank(control: Control) -> int:
    if control.kind in {"shell", "python"}:
        return 0
    if control.kind == "secret":
        return 3
    return 2 if "\n" in control.text else 1
