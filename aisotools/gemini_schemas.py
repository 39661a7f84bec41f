"""A JSON Schema as Gemini's `Schema`, which is a part of OpenAPI 3.0.

Fields: https://ai.google.dev/api/caching#Schema
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from aisotools.schema_forms import Notes, Schema, Spot, as_schema, merged, moved_to_words, nullable, told

_GEMINI_KEPT = {
    *("type", "format", "title", "description", "nullable", "enum", "items", "minItems", "maxItems"),
    *("properties", "required", "minProperties", "maxProperties", "minimum", "maximum"),
    *("minLength", "maxLength", "pattern", "anyOf"),
}
_GEMINI_FORMATS = {
    "string": {"enum", "date-time"},
    "integer": {"int32", "int64"},
    "number": {"float", "double"},
}
_GEMINI_WHY = "Gemini's Schema is a part of OpenAPI 3.0"
_ANYTHING = ("string", "number", "boolean")


class GeminiForm:
    """Turns one tool's schema into Gemini's.

    Attributes:
        as_text: Where objects travel as JSON text.
    """

    def __init__(self, notes: Notes) -> None:
        """Note in `notes` what is lost."""
        self._notes = notes
        self.as_text: list[Spot] = []

    def convert(self, value: object, path: str, spot: Spot, *, alone: bool = True) -> Schema:
        """One schema without references; `alone` unless it is one of several alternatives."""
        schema = merged(as_schema(value), path, self._notes, _GEMINI_WHY)
        schema, null = nullable(schema)
        if "oneOf" in schema:
            schema["anyOf"] = [*schema.get("anyOf", []), *schema.pop("oneOf")]
            self._notes.add(path, "weakened", "oneOf becomes anyOf", _GEMINI_WHY)
        if isinstance(schema.get("type"), list):
            kinds = schema.pop("type")
            schema["anyOf"] = [{"type": kind} for kind in kinds]
            self._notes.add(path, "changed", "several types become alternatives", _GEMINI_WHY)
        schema = self._typed(self._fixed_values(schema, path), path)
        if "anyOf" in schema:
            parts = schema.pop("anyOf")
            alone = alone and not any(as_schema(part).get("type") == "string" for part in parts)
            schema["anyOf"] = [self.convert(part, path, spot, alone=alone) for part in parts]
        elif schema.get("type") == "object":
            schema = self._object(schema, path, spot, alone=alone)
        elif schema.get("type") == "array":
            schema = self._array(schema, path, spot)
        schema = self._bounds(schema, path)
        schema = moved_to_words(schema, schema.keys() - _GEMINI_KEPT, path, self._notes, _GEMINI_WHY)
        if null:
            schema["nullable"] = True
        return schema

    def _fixed_values(self, schema: Schema, path: str) -> Schema:
        """Constants and lists of values: Gemini knows lists of texts."""
        if "const" in schema:
            schema = {**schema, "enum": [schema["const"]]}
            del schema["const"]
            self._notes.add(path, "changed", "const becomes a list of one value", _GEMINI_WHY)
        values = schema.get("enum")
        if not isinstance(values, list):
            return schema
        if all(isinstance(one, str) for one in values):
            return {**schema, "type": "string"}
        kinds = {type(one) for one in values}
        if kinds == {int} and "type" not in schema:
            schema = {**schema, "type": "integer"}
        if kinds <= {int, float}:
            schema = {**schema, "minimum": min(values), "maximum": max(values)}
        return moved_to_words(schema, {"enum"}, path, self._notes, "Gemini lists only texts")

    def _typed(self, schema: Schema, path: str) -> Schema:
        if "type" in schema or "anyOf" in schema:
            return schema
        guess = {"properties": "object", "items": "array", "prefixItems": "array"}
        for keyword, kind in guess.items():
            if keyword in schema:
                return {**schema, "type": kind}
        self._notes.add(path, "weakened", "anything becomes text, a number or a truth value", _GEMINI_WHY)
        return {**schema, "anyOf": [{"type": kind} for kind in _ANYTHING]}

    def _object(self, schema: Schema, path: str, spot: Spot, *, alone: bool) -> Schema:
        properties = schema.get("properties") or {}
        if not properties and spot:
            # An object without named properties is refused there, so it travels as text.
            for keyword in ("additionalProperties", "patternProperties", "propertyNames", "properties"):
                schema.pop(keyword, None)
            schema.pop("required", None)
            if alone:
                self.as_text.append(spot)
            what = "an object of any names travels as JSON text" + ("" if alone else ", and stays text")
            action: Literal["changed", "weakened"] = "changed" if alone else "weakened"
            self._notes.add(path, action, what, "Gemini takes no object without named properties")
            schema = moved_to_words(
                schema, {"minProperties", "maxProperties"}, path, self._notes, _GEMINI_WHY
            )
            return told({**schema, "type": "string"}, "A JSON object, written as text.")
        further = schema.pop("additionalProperties", False)  # that no others are allowed is understood
        if further is not False:
            self._notes.add(path, "dropped", "additionalProperties", _GEMINI_WHY)
        schema["properties"] = {
            name: self.convert(one, f"{path}.{name}", (*spot, name)) for name, one in properties.items()
        }
        if "required" in schema:
            schema["required"] = [name for name in schema["required"] if name in properties]
            if not schema["required"]:
                del schema["required"]
        return schema

    def _array(self, schema: Schema, path: str, spot: Spot) -> Schema:
        first = schema.pop("prefixItems", None)
        if isinstance(first, list) and first:
            rest = schema.get("items")
            kinds = [*first, *([rest] if isinstance(rest, Mapping) else [])]
            different = [one for number, one in enumerate(kinds) if one not in kinds[:number]]
            schema["items"] = different[0] if len(different) == 1 else {"anyOf": different}
            schema.setdefault("minItems", len(first))
            if not isinstance(rest, Mapping):
                schema.setdefault("maxItems", len(first))
            self._notes.add(path, "weakened", "which item has which type is lost", _GEMINI_WHY)
        schema["items"] = self.convert(schema.get("items", {}), f"{path}[]", (*spot, "*"))
        return schema

    def _bounds(self, schema: Schema, path: str) -> Schema:
        for keyword, inclusive, step in (
            ("exclusiveMinimum", "minimum", 1),
            ("exclusiveMaximum", "maximum", -1),
        ):
            bound = schema.get(keyword)
            if schema.get("type") == "integer" and isinstance(bound, int) and inclusive not in schema:
                schema[inclusive] = schema.pop(keyword) + step
                self._notes.add(path, "changed", f"{keyword} becomes {inclusive}", _GEMINI_WHY)
        kind = schema.get("type")
        if "format" in schema and schema["format"] not in _GEMINI_FORMATS.get(str(kind), set()):
            schema = moved_to_words(schema, {"format"}, path, self._notes, "Gemini knows few formats")
        return schema
