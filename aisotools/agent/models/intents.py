"""The intents of a request: a tool, or one operation of a tool that has several. Pure.

A tool such as `file` has several operations: one argument selects the operation, and the others depend on it.
Each operation is an intent of its own, with its own examples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aisotools.agent.models.ranking import words
from aisotools.agent.models.spans import spans_of
from aisotools.core.types import Json, ToolDefinition

SlotKind = Literal[
    "path", "url", "date", "glob", "code", "number", "flag", "choice", "text", "phrase", "json"
]
"""The kind of an argument: `text` is taken literally, a `phrase` is a name or a few words."""

_CODE_NAMES = {"command", "code", "script", "cmd", "source_code", "expression", "shell", "query_sql"}
_PATH_NAMES = {
    "path",
    "file",
    "filename",
    "file_name",
    "filepath",
    "source",
    "destination",
    "target",
    "folder",
    "directory",
}
_TEXT_NAMES = {"content", "text", "body", "message", "pattern", "note"}
_MIN_OPERATIONS = 3
_MAX_EXAMPLES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One argument to fill.

    Attributes:
        name: Its name.
        kind: The kind of value it takes.
        required: Whether the call needs it.
        choices: The values it may have, if they are listed.
        integer: Whether a number must be whole.
        words: The words of its name and description.
        in_examples: Whether an example has it.
    """

    name: str
    kind: SlotKind
    required: bool
    choices: tuple[Json, ...] = ()
    integer: bool = False
    words: tuple[str, ...] = ()
    in_examples: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One thing that a request can ask for: a tool, or one operation of a tool.

    Attributes:
        tool: The tool.
        label: One word for it, which the model scores.
        fixed: Arguments that select the operation.
        slots: The arguments to fill.
        examples: Pairs of arguments and a request for them.
        needs_any: Whether at least one argument must be given.
    """

    tool: ToolDefinition
    label: str
    fixed: Mapping[str, Json] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    examples: tuple[tuple[Mapping[str, Json], str], ...] = ()
    needs_any: bool = False

    @property
    def phrases(self) -> list[str]:
        """Example requests; without any, the first sentence of the description."""
        return [request for _, request in self.examples] or [_first_sentence(self.tool.description)]

    @property
    def name(self) -> str:
        """The tool's name, and that of the operation."""
        return " ".join([self.tool.name, *map(str, self.fixed.values())])


def intents_of(tools: Iterable[ToolDefinition]) -> tuple[Intent, ...]:
    """Return the intents of `tools`, in order: one for each tool, or for each operation of a tool."""
    found: list[Intent] = []
    for tool in tools:
        selector = _find_selector(tool)
        if selector is None:
            found.append(_intent(tool, {}, tuple(tool.examples)))
            continue
        for value in dict.fromkeys(given[selector] for given, _ in tool.examples):
            matching = tuple(pair for pair in tool.examples if pair[0][selector] == value)
            found.append(_intent(tool, {selector: value}, matching))
    return tuple(found)


def _find_selector(tool: ToolDefinition) -> str | None:
    """Return the argument that selects an operation, judged by the examples; None if there is none."""
    properties = tool.parameters.get("properties", {})
    for name, schema in properties.items():
        values = _resolve(schema, tool.parameters).get("enum", ())
        given = [pair[0] for pair in tool.examples if isinstance(pair[0].get(name), str)]
        if len(values) < _MIN_OPERATIONS or len(given) != len(tool.examples):
            continue
        shapes = {(arguments[name], frozenset(arguments)) for arguments in given}
        if len({shape for _, shape in shapes}) > 1 and len({value for value, _ in shapes}) > 1:
            return str(name)
    return None


def _intent(
    tool: ToolDefinition, fixed: Mapping[str, Json], examples: tuple[tuple[Mapping[str, Json], str], ...]
) -> Intent:
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    given = [set(arguments) - set(fixed) for arguments, _ in examples]
    required = set(tool.parameters.get("required", ())) - set(fixed)
    names = [name for name in properties if name not in fixed]
    if fixed:
        required |= set.intersection(*given) if given else set()
        ever = set[str]().union(*given)
        names = [name for name in names if name in ever or name in required]
    slots = tuple(_slot(name, tool, name in required, examples) for name in names)
    label = str(next(iter(fixed.values()))) if fixed else words(tool.name)[-1]
    return Intent(
        tool=tool,
        label=label,
        fixed=dict(fixed),
        slots=slots,
        examples=examples[:_MAX_EXAMPLES],
        needs_any=bool(fixed) and not required and all(given) and bool(given),
    )


def _slot(
    name: str, tool: ToolDefinition, required: bool, examples: Sequence[tuple[Mapping[str, Json], str]]
) -> Slot:
    schema = _resolve(tool.parameters.get("properties", {}).get(name, {}), tool.parameters)
    values = [given[name] for given, _ in examples if name in given]
    description = str(schema.get("description", ""))
    kind, choices = _kind(name, schema, values, description)
    return Slot(
        name=name,
        kind=kind,
        required=required,
        choices=choices,
        integer=schema.get("type") == "integer",
        words=tuple(words(f"{name} {description.partition('. ')[0]}")),
        in_examples=bool(values),
    )


def _kind(
    name: str, schema: Mapping[str, Any], values: list[Json], description: str
) -> tuple[SlotKind, tuple[Json, ...]]:
    choices = tuple(schema.get("enum", (schema["const"],) if "const" in schema else ()))
    if choices:
        return "choice", choices
    kinds = schema.get("type", "string")
    if kinds == "boolean":
        return "flag", ()
    if kinds in {"number", "integer"}:
        return "number", ()
    if kinds != "string":
        return "json", ()
    return _kind_of_text(name.lower(), values, schema, description), ()


def _kind_of_text(name: str, values: list[Json], schema: Mapping[str, Any], description: str) -> SlotKind:
    parts = set(name.split("_"))
    looks = {(spans_of(value) or (None,))[0] for value in values if isinstance(value, str)}
    seen = {span.kind if span and span.text in values else None for span in looks}
    if parts & _CODE_NAMES:
        return "code"
    if "glob" in parts:
        return "glob"
    if schema.get("format") in {"uri", "url"} or parts & {"url", "uri", "link"} or seen == {"url"}:
        return "url"
    if schema.get("format") == "date" or seen == {"date"} or re.search(r"YYYY-MM-DD|\bISO\b", description):
        return "date"
    if parts & _PATH_NAMES or (seen == {"file"}):
        return "path"
    if parts & _TEXT_NAMES:
        return "text"
    return "phrase"


def _resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema without references to `root`, and without null among its alternatives."""
    if not isinstance(schema, Mapping):
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = root.get("$defs", {}).get(reference.rpartition("/")[2], {})
        return {**(target if isinstance(target, Mapping) else {}), **schema}
    branches = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(branches) == 1 and isinstance(branches[0], Mapping):
        return {**_resolve(branches[0], root), **{k: v for k, v in schema.items() if k != "anyOf"}}
    if branches:
        # Of several types, the simplest is filled.
        simple = [
            one for one in branches if isinstance(one, Mapping) and one.get("type") in {"string", "number"}
        ]
        return {
            **(simple[0] if simple else {"type": "object"}),
            **{k: v for k, v in schema.items() if k != "anyOf"},
        }
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return {**schema, "type": next((kind for kind in kinds if kind != "null"), "string")}
    return schema


def _first_sentence(text: str) -> str:
    return text.strip().partition("\n")[0].partition(". ")[0].rstrip(".")
