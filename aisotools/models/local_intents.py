"""What a request can be about: a tool, or one operation of a tool that has several. Pure.

A tool such as `file` is many in one: an argument says which, and the others depend on it. Each such operation
is an intent of its own, with the examples that show it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from aisotools.events import Json, ToolDefinition
from aisotools.models.local_spans import spans_of
from aisotools.models.local_words import words

SlotKind = Literal[
    "path", "url", "date", "glob", "code", "number", "flag", "choice", "text", "phrase", "json"
]
"""What an argument takes: `text` is written down as it is, a `phrase` is a name or a few words."""

_CODE = {"command", "code", "script", "cmd", "source_code", "expression", "shell", "query_sql"}
_PATHS = {
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
_TEXTS = {"content", "text", "body", "message", "pattern", "note"}
_FEWEST_OPERATIONS = 3
_MOST_EXAMPLES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One argument to fill.

    Attributes:
        name: Its name.
        kind: What it takes.
        required: Whether the call makes no sense without it.
        choices: The values it may have, if they are listed.
        whole: Whether a number must be whole.
        about: Its name and description as words.
        shown: Whether an example gives it.
    """

    name: str
    kind: SlotKind
    required: bool
    choices: tuple[Json, ...] = ()
    whole: bool = False
    about: tuple[str, ...] = ()
    shown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """One thing that a request can be about.

    Attributes:
        tool: The tool.
        label: One word for it, for the model to read.
        fixed: Arguments that make it this and no other operation.
        slots: The arguments to fill.
        examples: Pairs of arguments and what a person would say.
        needs_any: Whether one argument at least must be given, whichever.
    """

    tool: ToolDefinition
    label: str
    fixed: Mapping[str, Json] = field(default_factory=dict)
    slots: tuple[Slot, ...] = ()
    examples: tuple[tuple[Mapping[str, Json], str], ...] = ()
    needs_any: bool = False

    @property
    def phrases(self) -> list[str]:
        """What people would say."""
        return [said for _, said in self.examples] or [_first_sentence(self.tool.description)]

    @property
    def name(self) -> str:
        """The tool, and which of its operations."""
        return " ".join([self.tool.name, *map(str, self.fixed.values())])


def intents_of(tools: Iterable[ToolDefinition]) -> tuple[Intent, ...]:
    """All intents of `tools`, in order, each with a label of its own where one can be found."""
    found: list[Intent] = []
    for tool in tools:
        which = _discriminator(tool)
        if which is None:
            found.append(_intent(tool, {}, tuple(tool.examples)))
            continue
        for value in dict.fromkeys(given[which] for given, _ in tool.examples):
            matching = tuple(pair for pair in tool.examples if pair[0][which] == value)
            found.append(_intent(tool, {which: value}, matching))
    return tuple(found)


def _discriminator(tool: ToolDefinition) -> str | None:
    """The argument on which it depends what the others are; told from the examples."""
    properties = tool.parameters.get("properties", {})
    for name, schema in properties.items():
        values = _resolved(schema, tool.parameters).get("enum", ())
        given = [pair[0] for pair in tool.examples if isinstance(pair[0].get(name), str)]
        if len(values) < _FEWEST_OPERATIONS or len(given) != len(tool.examples):
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
        examples=examples[:_MOST_EXAMPLES],
        needs_any=bool(fixed) and not required and all(given) and bool(given),
    )


def _slot(
    name: str, tool: ToolDefinition, required: bool, examples: Sequence[tuple[Mapping[str, Json], str]]
) -> Slot:
    schema = _resolved(tool.parameters.get("properties", {}).get(name, {}), tool.parameters)
    values = [given[name] for given, _ in examples if name in given]
    about = str(schema.get("description", ""))
    kind, choices = _kind(name, schema, values, about)
    return Slot(
        name=name,
        kind=kind,
        required=required,
        choices=choices,
        whole=schema.get("type") == "integer",
        about=tuple(words(f"{name} {about.partition('. ')[0]}")),
        shown=bool(values),
    )


def _kind(
    name: str, schema: Mapping[str, Any], values: list[Json], about: str
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
    return _kind_of_text(name.lower(), values, schema, about), ()


def _kind_of_text(name: str, values: list[Json], schema: Mapping[str, Any], about: str) -> SlotKind:
    parts = set(name.split("_"))
    looks = {(spans_of(value) or (None,))[0] for value in values if isinstance(value, str)}
    seen = {span.kind if span and span.text in values else None for span in looks}
    if parts & _CODE:
        return "code"
    if "glob" in parts:
        return "glob"
    if schema.get("format") in {"uri", "url"} or parts & {"url", "uri", "link"} or seen == {"url"}:
        return "url"
    if schema.get("format") == "date" or seen == {"date"} or re.search(r"YYYY-MM-DD|\bISO\b", about):
        return "date"
    if parts & _PATHS or (seen == {"file"}):
        return "path"
    if parts & _TEXTS:
        return "text"
    return "phrase"


def _resolved(schema: Any, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema without references and without the choice of null."""
    if not isinstance(schema, Mapping):
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        target = whole.get("$defs", {}).get(reference.rpartition("/")[2], {})
        return {**(target if isinstance(target, Mapping) else {}), **schema}
    branches = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    if len(branches) == 1 and isinstance(branches[0], Mapping):
        return {**_resolved(branches[0], whole), **{k: v for k, v in schema.items() if k != "anyOf"}}
    if branches:
        # Of several types a model gives the plainest.
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
