"""What each provider takes as a tool, as its documentation says, in code: a form in, complaints out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

_TOP = {"anyOf", "oneOf", "allOf", "not", "enum", "if", "then", "else"}


def _metaschema(schema: Mapping[str, Any]) -> Iterator[str]:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        yield f"no JSON Schema: {error.message}"


def openai(form: Mapping[str, Any]) -> Iterator[str]:
    """https://platform.openai.com/docs/api-reference/chat/create#chat-create-tools"""
    if set(form) != {"type", "function"} or form["type"] != "function":
        yield "not nested as Chat Completions wants it"
    yield from _openai_function(form["function"])


def openai_responses(form: Mapping[str, Any]) -> Iterator[str]:
    """https://platform.openai.com/docs/api-reference/responses/create#responses-create-tools"""
    if form.get("type") != "function" or "strict" not in form:
        yield "type and strict must be said"
    yield from _openai_function({key: value for key, value in form.items() if key != "type"})


def _openai_function(function: Mapping[str, Any]) -> Iterator[str]:
    if not set(function) <= {"name", "description", "parameters", "strict"}:
        yield f"unknown fields in {sorted(function)}"
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function["name"]):
        yield f"name {function['name']!r}"
    schema = function["parameters"]
    yield from _metaschema(schema)
    if schema.get("type") != "object" or _TOP & set(schema):
        yield "the top is not one object"
    if function.get("strict"):
        yield from _strict(schema, schema, 1, ())


_STRICT = {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "$ref"),
    *("$defs", "definitions", "title", "description", "pattern", "format", "multipleOf", "minimum"),
    *("maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"),
}
_STRICT_FORMATS = {
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
}


def _strict(schema: object, root: Mapping[str, Any], depth: int, refs: tuple[str, ...]) -> Iterator[str]:
    """https://platform.openai.com/docs/guides/structured-outputs#supported-schemas"""
    if not isinstance(schema, Mapping):
        yield f"{schema!r} is not a schema"
        return
    if set(schema) - _STRICT:
        yield f"strict mode does not know {sorted(set(schema) - _STRICT)}"
    if schema.get("format", "date") not in _STRICT_FORMATS:
        yield f"strict mode does not know the format {schema['format']}"
    if "$ref" in schema and set(schema) != {"$ref"}:
        yield "$ref cannot have siblings"
    if not set(schema) & {"type", "anyOf", "$ref", "enum", "const"}:
        yield f"{schema} allows anything"
    if schema.get("type") == "object" or "properties" in schema:
        if schema.get("additionalProperties") is not False:
            yield "additionalProperties must be false"
        if set(schema.get("required", ())) != set(schema.get("properties", {})):
            yield "every property must be required"
        if depth > 10:
            yield "nested deeper than 10"
        depth += 1
    if schema.get("type") == "array" and "items" not in schema:
        yield "an array must have items"
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [*schema.get("$defs", {}).values(), *([schema["items"]] if "items" in schema else [])]
    for one in inner:
        yield from _strict(one, root, depth, refs)


def anthropic(form: Mapping[str, Any]) -> Iterator[str]:
    """https://docs.claude.com/en/docs/agents-and-tools/tool-use/implement-tool-use"""
    if set(form) != {"name", "description", "input_schema"}:
        yield f"fields {sorted(form)}"
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", form["name"]):
        yield f"name {form['name']!r}"
    schema = form["input_schema"]
    yield from _metaschema(schema)
    if schema.get("type") != "object" or {"anyOf", "oneOf", "allOf"} & set(schema):
        yield "input_schema is not one object"
    for key in schema.get("properties", {}):
        if not re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", key):
            yield f"property key {key!r}"


_GEMINI_TYPES = {"string", "number", "integer", "boolean", "array", "object"}
_GEMINI_FIELDS = {
    *("type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties"),
    *("required", "minProperties", "maxProperties", "minLength", "maxLength", "pattern", "example"),
    *("anyOf", "propertyOrdering", "default", "items", "minimum", "maximum"),
}
_GEMINI_FORMATS = {"enum", "date-time", "float", "double", "int32", "int64"}


def gemini(form: Mapping[str, Any]) -> Iterator[str]:
    """https://ai.google.dev/api/caching#FunctionDeclaration"""
    if not set(form) <= {"name", "description", "parameters"}:
        yield f"fields {sorted(form)}"
    if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}", form["name"]):
        yield f"name {form['name']!r}"
    if "parameters" in form:
        if form["parameters"].get("type") != "object":
            yield "parameters are no object"
        yield from _gemini_schema(form["parameters"])


def _gemini_schema(schema: Mapping[str, Any]) -> Iterator[str]:
    if set(schema) - _GEMINI_FIELDS:
        yield f"Schema does not know {sorted(set(schema) - _GEMINI_FIELDS)}"
    if "type" not in schema and "anyOf" not in schema:
        yield f"no type in {schema}"
    if "type" in schema and schema["type"] not in _GEMINI_TYPES:
        yield f"type {schema['type']!r}"
    if schema.get("format", "enum") not in _GEMINI_FORMATS:
        yield f"format {schema['format']!r}"
    if "enum" in schema and not all(isinstance(one, str) and one for one in schema["enum"]):
        yield f"enum {schema['enum']!r}"
    if "enum" in schema and schema.get("type") != "string":
        yield "enum of something else than texts"
    if schema.get("type") == "object" and not schema.get("properties"):
        yield "properties should be non-empty for OBJECT type"
    if schema.get("type") == "array" and "items" not in schema:
        yield "items missing"
    if not set(schema.get("required", ())) <= set(schema.get("properties", {})):
        yield "required names what is not there"
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for one in [*inner, *([schema["items"]] if "items" in schema else [])]:
        yield from _gemini_schema(one)


def mcp(form: Mapping[str, Any]) -> Iterator[str]:
    """https://modelcontextprotocol.io/specification/2025-11-25/server/tools"""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", form["name"]):
        yield f"name {form['name']!r}"
    yield from _metaschema(form["inputSchema"])
    if form["inputSchema"].get("type") != "object":
        yield "inputSchema is not an object"
    known = {"title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
    if not set(form["annotations"]) <= known:
        yield f"annotations {form['annotations']}"


RULES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "openai": openai,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
    "mcp": mcp,
}
