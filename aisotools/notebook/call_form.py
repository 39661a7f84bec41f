"""The arguments of a call as fields for a person who makes or changes it, and what was filled in. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aisotools.arguments import schema_flaw, validate_against
from aisotools.events import ApprovalRequest, Effect, Json, ToolCall, ToolDefinition
from aisotools.exceptions import ArgumentError
from aisotools.messages import CallPart
from aisotools.notebook.cards.form import edited
from aisotools.notebook.cards.view import card_view
from aisotools.notebook.text import one_line
from aisotools.question import visible_json


def call_fields(call: CallPart, definition: ToolDefinition | None) -> dict[str, Any]:
    """The fields of a call that is there."""
    view = card_view(_request(call.name, call.arguments, definition))
    return {
        "name": one_line(call.name),
        "about": view["about"],
        "fields": view["fields"],
        "as_json": view["as_json"],
    }


def read_call(
    call: CallPart, definition: ToolDefinition | None, edits: Mapping[str, str], whole: str | None
) -> dict[str, Json] | None:
    """The arguments after a person's edits; None when nothing changed.

    Raises:
        ArgumentError: If they are not what the tool takes; told to the person.
    """
    return edited(_request(call.name, call.arguments, definition), edits, whole)


def blank_fields(definition: ToolDefinition) -> dict[str, Any]:
    """The fields of a call that is still to be made: defaults stand there, what is required comes first."""
    required = set(definition.parameters.get("required", ()))
    start = _start(definition)
    view = card_view(_request(definition.name, start, definition))
    fields = []
    for shown in view["fields"]:
        needed = shown["name"] in required
        empty = needed and shown["kind"] in {"number", "json"}
        label = shown["label"] if needed else f"{shown['label']} (optional)"
        empty = empty or start[shown["name"]] is None
        kind = (
            "number" if shown["kind"] == "json" and _is_number(definition, shown["name"]) else shown["kind"]
        )
        text = "" if empty else shown["text"]
        fields.append({**shown, "label": label, "kind": kind, "text": text, "folded": False})
    fields.sort(key=lambda one: one["name"] not in required)
    schema = visible_json(definition.parameters)
    return {
        "name": definition.name,
        "about": view["about"],
        "fields": fields,
        "as_json": False,
        "schema": schema,
    }


def filled_call(definition: ToolDefinition, edits: Mapping[str, str]) -> CallPart:
    """The call that a person filled in; what they left as it was is left out, unless it is required.

    Raises:
        ArgumentError: If an argument is missing, or they do not fit the tool; told to the person.
    """
    start = _start(definition)
    required = [name for name in definition.parameters.get("required", ()) if name in start]
    shown = {one["name"]: one for one in blank_fields(definition)["fields"]}
    for name in required:
        if name not in edits and shown[name]["kind"] not in {"boolean", "choice"}:
            raise ArgumentError(f"The argument {name!r} of {definition.name} is required.")
    request = _request(definition.name, start, definition)
    arguments = edited(request, edits, None) if edits else None
    whole = dict(start) if arguments is None else arguments
    kept = {name: whole[name] for name in whole if name in required or whole[name] != start.get(name)}
    if not schema_flaw(definition.parameters):
        validate_against(definition.parameters, kept, definition.name)
    return CallPart("", definition.name, kept)


def _is_number(definition: ToolDefinition, name: str) -> bool:
    schema = definition.parameters["properties"][name]
    kinds = {one.get("type") for one in schema.get("anyOf", (schema,))}
    return bool(kinds & {"number", "integer"}) and kinds <= {"number", "integer", "null"}


def _start(definition: ToolDefinition) -> dict[str, Json]:
    """What stands in the fields before anything is filled in."""
    properties: Mapping[str, Any] = definition.parameters.get("properties", {})
    return {name: _first(schema) for name, schema in properties.items()}


def _first(schema: Mapping[str, Any]) -> Json:
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    branches = [one for one in schema.get("anyOf", (schema,)) if one.get("type") != "null"]
    first = branches[0] if branches else {}
    if first.get("enum"):
        return None if "anyOf" in schema else first["enum"][0]
    empty: dict[str, Json] = {"string": "", "boolean": False, "array": [], "object": {}}
    kind = first.get("type")
    if kind in {"number", "integer"}:
        return None if "anyOf" in schema else 0
    return empty.get(kind) if isinstance(kind, str) else None


def _request(name: str, arguments: Mapping[str, Json], definition: ToolDefinition | None) -> ApprovalRequest:
    return ApprovalRequest(
        id="form",
        call=ToolCall("form", name, arguments, origin="model"),
        definition=definition or ToolDefinition(name, "", {"type": "object"}),
        effect=Effect.READ_ONLY,
        level="",
    )
