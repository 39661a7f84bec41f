"""How a small instruct model is asked: through its chat template, its answer held to a grammar. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aisotools.answers import call_from_text
from aisotools.events import ToolDefinition
from aisotools.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage

_HOW = (
    'Answer with one JSON object: {"tool": NAME, "arguments": {...}} to call a tool, or {"answer": TEXT} '
    "when no tool is needed or the results say all. Call one tool at a time. The tools:"
)


def chat_messages(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], instructions: str
) -> list[dict[str, str]]:
    """The conversation for a chat template: only texts, roles in turn."""
    told: list[dict[str, str]] = [{"role": "system", "content": _system(tools, instructions)}]
    for message in messages:
        if isinstance(message, UserMessage):
            role, content = "user", message.text
        elif isinstance(message, AssistantMessage):
            role, content = "assistant", _said(message)
        else:
            role, content = "user", _result(message)
        if told[-1]["role"] == role:
            told[-1]["content"] += f"\n\n{content}"
        else:
            told.append({"role": role, "content": content})
    return told


def answer_schema(tools: Sequence[ToolDefinition]) -> dict[str, Any]:
    """JSON Schema of an answer: a call of one of the tools, or a text."""
    kinds: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"tool": {"const": tool.name}, "arguments": _simple(tool.parameters)},
            "required": ["tool", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    kinds.append(
        {
            "type": "object",
            "properties": {"answer": {"type": "string"}},
            "required": ["answer"],
            "additionalProperties": False,
        }
    )
    return {"anyOf": kinds}


def read_answer(text: str) -> CallPart | str:
    """The call or the text that a model answered; what cannot be read is the text itself."""
    try:
        said: object = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip() or "The model gave no answer."
    if isinstance(said, dict) and isinstance(said.get("tool"), str):
        return call_from_text("", said["tool"], json.dumps(said.get("arguments", {})))
    if isinstance(said, dict) and isinstance(said.get("answer"), str):
        return str(said["answer"])
    return text.strip()


def _system(tools: Sequence[ToolDefinition], instructions: str) -> str:
    lines = [instructions, _HOW] if instructions else [_HOW]
    for tool in tools:
        names = ", ".join(tool.parameters.get("properties", {}))
        lines.append(f"- {tool.name}({names}): {tool.description.strip().partition(chr(10))[0]}")
        lines += [f"  {said} -> {json.dumps(dict(given))}" for given, said in list(tool.examples)[:2]]
    return "\n".join(lines)


def _said(message: AssistantMessage) -> str:
    calls = [json.dumps({"tool": call.name, "arguments": dict(call.arguments)}) for call in message.calls]
    return "\n".join(calls) or json.dumps({"answer": message.text})


def _result(message: ToolMessage) -> str:
    return f"Result of {message.name}{' (an error)' if message.is_error else ''}:\n{message.content}"


def _simple(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without what a grammar cannot say."""
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key in {
            "description",
            "title",
            "pattern",
            "format",
            "default",
            "examples",
            "writeOnly",
        } and not isinstance(value, Mapping):
            continue
        if key in {"minLength", "maxLength", "minItems", "maxItems"}:
            continue
        if isinstance(value, Mapping):
            kept[key] = _simple(value)
        elif isinstance(value, list):
            kept[key] = [_simple(one) if isinstance(one, Mapping) else one for one in value]
        else:
            kept[key] = value
    return kept
