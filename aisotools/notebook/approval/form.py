"""The arguments of a call as form fields, made from its schema, and what a person's edits come to. Pure.

Every argument has a field of its own; all of them together can be edited as JSON instead. An edit is checked
against the schema here, after the page has checked what it can, and the gate validates once more what is to
run.
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
    Field,
    argument_fields,
    shown_ends,
    visible,
    visible_json,
)
from aisotools.tools.validation import conforms, schema_error, validate_against

ControlKind = Literal["shell", "python", "text", "number", "boolean", "choice", "json", "secret"]
"""How a field is edited. The text of the first three is the argument itself; of the others but the last it is
JSON."""

HIDDEN = r"Holds characters that cannot be seen; each is written as an escape, such as \u202e."
"""Said of a field whose text shows characters that could not be seen."""

_RAW: tuple[ControlKind, ...] = ("shell", "python", "text")
_MAX_CHOICES = 100
_NULL = {"type": "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One argument, as a person reads and edits it.

    Attributes:
        name: The argument.
        kind: How it is edited.
        text: What stands in the field.
        about: What the schema says of it.
        choices: For `choice`: JSON texts, of which one is chosen.
        least: Smallest number, or fewest characters; None for any.
        most: Largest number, or most characters; None for any.
        whole: Whether a number must be whole.
        note: A remark of ours.
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
        """Whether a person sees all that they would change."""
        return self.kind != "secret" and len(self.text) <= MAX_SHOWN_CHARS

    @property
    def shown(self) -> str:
        """`text`, or of a very long one both ends and how much is missing between them."""
        return shown_ends(self.text)


def build_controls(request: ApprovalRequest) -> tuple[Control, ...]:
    """A field for each argument: code first, then the short ones, then long text, then secrets."""
    secret = secret_parameters(request.definition.parameters)
    raw: dict[str, str] = {field.name: field.kind for field in argument_fields(request) if field.name}
    raw |= dict.fromkeys(secret, "secret")
    properties = request.definition.parameters.get("properties", {})
    shared = request.definition.parameters.get("$defs", {})
    found = [
        _control(name, value, raw.get(name), _resolved(properties.get(name), shared))
        for name, value in request.call.arguments.items()
    ]
    return tuple(sorted(found, key=_place))


def apply_edits(
    request: ApprovalRequest, edits: Mapping[str, str], whole: str | None
) -> dict[str, Json] | None:
    """The arguments of `request` after a person's edits; None when nothing changed.

    Args:
        request: What was asked.
        edits: New text by name of the field.
        whole: All arguments but the secret ones as JSON, edited instead of the fields; or None.

    Raises:
        ArgumentError: If a field cannot be edited, a text is not what its field takes, or the arguments do
            not fit the tool's schema.
    """
    arguments = _by_field(request, edits) if whole is None else _by_json(request, whole)
    if arguments == request.call.arguments and _same_types(arguments, request.call.arguments):
        return None
    schema = request.definition.parameters
    # A tool with a validator of its own may make of its arguments what its schema does not describe.
    if not schema_error(schema) and conforms(schema, dict(request.call.arguments)):
        validate_against(schema, arguments, request.call.name)
    return arguments


def argument_changes(
    request: ApprovalRequest, arguments: Mapping[str, Json]
) -> Iterator[tuple[str, str, str]]:
    """Name, old and new text of every argument that differs, in full; secrets are never told."""
    secret = secret_parameters(request.definition.parameters)
    before = request.call.arguments
    for name in dict.fromkeys([*before, *arguments]):
        old, new = before.get(name, _ABSENT), arguments.get(name, _ABSENT)
        if name not in secret and (old != new or not _same_types(old, new)):
            yield visible(name, ""), _told(old), _told(new)


class _Absent:
    """An argument that is not given."""


_ABSENT = _Absent()


def _told(value: Json) -> str:
    if isinstance(value, _Absent):
        return "(not given)"
    return value if isinstance(value, str) and visible(value) == value and value else visible_json(value)


def _by_field(request: ApprovalRequest, edits: Mapping[str, str]) -> dict[str, Json]:
    known = {control.name: control for control in build_controls(request)}
    arguments = dict(request.call.arguments)
    for name, text in edits.items():
        control = known.get(name)
        if control is None or not control.editable:
            raise ArgumentError(f"There is no field {name!r} that can be edited.")
        if text != control.text:
            arguments[name] = text if control.kind in _RAW else _parsed(text, f"The argument {name!r}")
    return arguments


def _by_json(request: ApprovalRequest, whole: str) -> dict[str, Json]:
    secret = secret_parameters(request.definition.parameters)
    value = _parsed(whole, "The text")
    if not isinstance(value, dict):
        raise ArgumentError(f"The arguments must be a JSON object {{...}}, not {type(value).__name__}.")
    if named := value.keys() & secret:
        raise ArgumentError(f"The argument {min(named)!r} is secret and cannot be edited here.")
    return value | {name: old for name, old in request.call.arguments.items() if name in secret}


def _parsed(text: str, what: str) -> Json:
    """Parse strictly: refuse what a reader could take one way and the tool another way."""

    def pairs(items: list[tuple[str, Json]]) -> dict[str, Json]:
        seen: dict[str, Json] = {}
        for name, value in items:
            if name in seen:
                raise ValueError(f"the name {name!r} stands there twice")
            seen[name] = value
        return seen

    def constant(word: str) -> Json:
        raise ValueError(f"{word} is no JSON value")

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else constant(digits)

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{what} is not valid JSON: {error}.") from None


def _same_types(one: Json, other: Json) -> bool:
    """Whether equal values are also spelled the same as JSON: `1`, `1.0` and `true` are equal in Python."""
    if isinstance(one, _Absent) or isinstance(other, _Absent):
        return one is other
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _control(name: str, value: Json, raw_kind: str | None, about: Mapping[str, Any]) -> Control:
    said = visible(str(about.get("description", "")), "")
    if raw_kind == "secret":
        return Control(name=name, kind="secret", text=MASK, about=said)
    options, nullable = _options(about)
    texts = tuple(visible(json.dumps(option, ensure_ascii=False)) for option in options)
    given = visible(json.dumps(value, ensure_ascii=False))
    if given in texts and len(texts) > 1:
        if len(texts) == 2 and set(texts) == {"true", "false"}:
            return Control(name=name, kind="boolean", text=given, about=said)
        return Control(name=name, kind="choice", text=given, about=said, choices=texts)
    if isinstance(value, str) and visible(value) == value:
        kind: ControlKind = "shell" if raw_kind == "shell" else "python" if raw_kind == "python" else "text"
        least, most = about.get("minLength"), about.get("maxLength")
        return Control(name=name, kind=kind, text=value, about=said, least=_number(least), most=_number(most))
    if isinstance(value, bool):
        return Control(name=name, kind="boolean", text=given, about=said)
    if isinstance(value, int | float) and not nullable:
        return Control(
            name=name,
            kind="number",
            text=given,
            about=said,
            least=_number(about.get("minimum")),
            most=_number(about.get("maximum")),
            whole=about.get("type") == "integer",
        )
    text = visible_json(value)
    hides = Field(name=name, kind="json", text=text).hides
    return Control(name=name, kind="json", text=text, about=said, note=HIDDEN if hides else "")


def _resolved(about: Any, shared: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(about, Mapping):
        return {}
    if isinstance(about.get("$ref"), str):
        target = shared.get(about["$ref"].rpartition("/")[2])
        return {**target, **about} if isinstance(target, Mapping) else about
    return about


def _options(about: Mapping[str, Any]) -> tuple[list[Json], bool]:
    """The few values that the schema allows, if it is only a few, and whether null is one of them."""
    branches = about.get("anyOf")
    if not isinstance(branches, list):
        return _listed(about), False
    nullable = _NULL in branches
    listed: list[Json] = []
    for branch in branches:
        here = [None] if branch == _NULL else _listed(branch)
        if not here:
            return [], nullable
        listed += here
    return listed, nullable


def _listed(about: Any) -> list[Json]:
    if not isinstance(about, Mapping):
        return []
    if about.get("type") == "boolean" and "enum" not in about:
        return [True, False]
    values = about.get("enum", [about["const"]] if "const" in about else [])
    return list(values) if isinstance(values, list) and len(values) <= _MAX_CHOICES else []


def _number(limit: Any) -> float | None:
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _place(control: Control) -> int:
    if control.kind in {"shell", "python"}:
        return 0
    if control.kind == "secret":
        return 3
    return 2 if "\n" in control.text else 1
