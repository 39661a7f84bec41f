"""What a run's notebook carries so that its calls can be made again: as JSON, and back. No code is in it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aisotools.events import Decision, Json
from aisotools.exceptions import UsageError
from aisotools.messages import AssistantMessage, UserMessage, message_from_json, message_to_json
from aisotools.redact import redact, redact_arguments, secret_parameters
from aisotools.registry import ToolRegistry
from aisotools.transcript_entries import Answered, Called, Entry, Prompted, Started

FORMAT = 1
"""Of what lies in the metadata."""

_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPrompt:
    """Somebody asked an agent something."""

    agent_id: str
    message: UserMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call that was made, and what came of it.

    Attributes:
        name: The tool.
        arguments: What ran, or would have run.
        asked: What was asked for.
        origin: Who made it.
        agent_id: The agent that made it, if one did.
        inside: Whether a tool on the host made it.
        ran: Whether it ran.
        approved: Whether somebody was asked and agreed.
        is_error: Whether it failed; None when that is not known.
        content: What the model read.
    """

    name: str
    arguments: Mapping[str, Json]
    asked: Mapping[str, Json]
    origin: str
    agent_id: str
    inside: bool
    ran: bool
    approved: bool
    is_error: bool | None = None
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What a notebook says of a run.

    Attributes:
        steps: Prompts, and the calls that no agent made, in order.
        answers: What models answered, in order.
        calls: Every call, in order.
        instructions: What each agent was told before everything else.
        files: Texts that lay in the workspace at the start.
        tools: Names of the tools that were called.
    """

    steps: Sequence[RecordedPrompt | RecordedCall]
    answers: Sequence[AssistantMessage]
    calls: Sequence[RecordedCall]
    instructions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    tools: Sequence[str] = ()


class Cleaner:
    """Takes out what must not be shared: secrets, and the path of the workspace on this machine."""

    def __init__(self, registry: ToolRegistry, workspace: str) -> None:
        """Know which arguments of which tool are secret, and what `workspace` is called."""
        self._workspace = workspace.rstrip("/")
        self._secret = {tool.name: secret_parameters(tool.parameters_schema()) for tool in registry.list()}

    def clean(self, value: Any) -> Any:
        """JSON or text without them."""
        return _mapped_texts(redact(value), self._hidden_path)

    def arguments(self, name: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
        """The arguments of a call without them."""
        told = redact_arguments(arguments, self._secret.get(name, ()))
        cleaned: dict[str, Json] = _mapped_texts(told, self._hidden_path)
        return cleaned

    def _hidden_path(self, text: str) -> str:
        return text.replace(self._workspace, "/workspace") if self._workspace else text


def _mapped_texts(value: Any, change: Callable[[str], str]) -> Any:
    """JSON with every text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped_texts(item, change) for item in value]
    return value


def record_of(entries: Sequence[Entry], files: Mapping[str, str], cleaner: Cleaner) -> dict[str, Any]:
    """The record of a run as JSON."""
    steps: list[dict[str, Any]] = []
    parents = {entry.agent_id: entry.parent_id for entry in entries if isinstance(entry, Started)}
    for entry in entries:
        match entry:
            case Started():
                steps.append(
                    {
                        "kind": "agent",
                        "agent_id": entry.agent_id,
                        "parent_id": entry.parent_id,
                        "model": entry.model,
                        "instructions": cleaner.clean(entry.instructions),
                    }
                )
            case Prompted() if not parents.get(entry.agent_id):
                steps.append(
                    {
                        "kind": "prompt",
                        "agent_id": entry.agent_id,
                        "message": cleaner.clean(message_to_json(entry.message)),
                    }
                )
            case Answered():
                steps.append(
                    {
                        "kind": "answer",
                        "agent_id": entry.agent_id,
                        "message": _answer_record(entry.message, cleaner),
                    }
                )
            case Called():
                steps.append({"kind": "call", **dataclasses.asdict(call_of(entry, cleaner))})
    return {
        "format": FORMAT,
        "steps": steps,
        "files": cleaner.clean(dict(files)),
        "tools": sorted({entry.name for entry in entries if isinstance(entry, Called)}),
    }


def _answer_record(message: AssistantMessage, cleaner: Cleaner) -> Json:
    told = message_to_json(message)
    parts = told.get("parts", [])
    for part in parts if isinstance(parts, list) else ():
        part.pop("opaque", None)
        if part["kind"] == "call":
            part["arguments"] = cleaner.arguments(part["name"], part["arguments"])
    cleaned: Json = cleaner.clean(told)
    return cleaned


def call_of(entry: Called, cleaner: Cleaner) -> RecordedCall:
    """A call as it is recorded."""
    result = entry.result
    return RecordedCall(
        name=entry.name,
        arguments=cleaner.arguments(entry.name, entry.arguments),
        asked=cleaner.arguments(entry.name, entry.asked),
        origin=entry.origin,
        agent_id=entry.agent_id,
        inside=bool(entry.inside),
        ran=entry.ran,
        approved=entry.approval is not None and entry.decision is Decision.ALLOW,
        is_error=None if result is None else result.is_error,
        content="" if result is None else cleaner.clean(result.content),
    )


# ---- and back


def read_transcript(path: str | os.PathLike[str]) -> Transcript:
    """What a notebook that `to_notebook` made says of its run; nothing in it is run.

    Raises:
        UsageError: If it cannot be read, or is none; the message says what is wrong.
    """
    shown = repr(str(path))
    try:
        if Path(path).stat().st_size > _MOST_BYTES:
            raise UsageError(f"{shown} is larger than {_MOST_BYTES >> 20} MiB: too large for a run.")
        notebook = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown} is no notebook: {str(error)[:200]}.") from None
    metadata = notebook.get("metadata") if isinstance(notebook, dict) else None
    record = metadata.get("aisotools") if isinstance(metadata, dict) else None
    if not isinstance(record, dict) or "steps" not in record:
        raise UsageError(f"{shown} is no record of a run. Export one with `%trace export {Path(path).name}`.")
    if record.get("format") != FORMAT:
        raise UsageError(f"{shown} has format {record.get('format')!r}, and this version reads {FORMAT}.")
    try:
        return _transcript(record)
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise UsageError(f"{shown} is damaged: {type(error).__name__}: {str(error)[:200]}.") from None


def _transcript(record: Mapping[str, Any]) -> Transcript:
    steps: list[RecordedPrompt | RecordedCall] = []
    answers: list[AssistantMessage] = []
    calls: list[RecordedCall] = []
    instructions: dict[str, str] = {}
    for step in record["steps"]:
        match step["kind"]:
            case "agent":
                instructions[_text(step["agent_id"])] = _text(step["instructions"])
            case "prompt":
                message = message_from_json(step["message"])
                if not isinstance(message, UserMessage):
                    raise TypeError("a prompt is no message of a user")
                steps.append(RecordedPrompt(agent_id=_text(step["agent_id"]), message=message))
            case "answer":
                message = message_from_json(step["message"])
                if not isinstance(message, AssistantMessage):
                    raise TypeError("an answer is no message of a model")
                answers.append(message)
            case "call":
                call = _recorded_call(step)
                calls.append(call)
                if not call.agent_id and not call.inside:
                    steps.append(call)
            case kind:
                raise ValueError(f"there is no step {kind!r}")
    files = {_text(path): _text(text) for path, text in record["files"].items()}
    tools = tuple(_text(name) for name in record["tools"])
    return Transcript(
        steps=tuple(steps),
        answers=tuple(answers),
        calls=tuple(calls),
        instructions=instructions,
        files=files,
        tools=tools,
    )


def _recorded_call(step: Mapping[str, Any]) -> RecordedCall:
    if step["origin"] not in {"person", "program", "model"}:
        raise ValueError(f"nobody named {step['origin']!r} makes calls")
    return RecordedCall(
        name=_text(step["name"]),
        arguments=dict(step["arguments"]),
        asked=dict(step["asked"]),
        origin=step["origin"],
        agent_id=_text(step["agent_id"]),
        inside=bool(step["inside"]),
        ran=bool(step["ran"]),
        approved=bool(step["approved"]),
        is_error=None if step.get("is_error") is None else bool(step["is_error"]),
        content=_text(step.get("content", "")),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.50} is no text")
    return value
