"""What is kept of a session in its notebook, as JSON, with what must not be shared left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aisotools.events import Decision, Json, ToolResult
from aisotools.messages import Message, message_to_json
from aisotools.redact import redact, redact_arguments, secret_parameters
from aisotools.registry import ToolRegistry
from aisotools.transcript_entries import (
    Answered,
    Called,
    Edited,
    Ended,
    Entry,
    Moved,
    Prompted,
    Rewound,
    Started,
    Stepped,
)
from aisotools.transcript_record import FORMAT, RecordedCall


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

    def result(self, result: ToolResult) -> ToolResult:
        """A result without them, for people to look at; the very same if there was nothing to take out."""
        told = {"content": result.content, "value": result.value}
        told |= {"data": result.data, "metadata": result.metadata}
        cleaned = {name: self._seen(value) for name, value in told.items()}
        return result if cleaned == told else dataclasses.replace(result, **cleaned)

    def _seen(self, value: Any) -> Any:
        """JSON without them; pictures, in which nothing could be found, stay as they are."""
        if isinstance(value, Mapping):
            return {
                key: item if str(key).startswith("image/") else self._seen(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return type(value)(map(self._seen, value)) if type(value) in {list, tuple} else value
        return self.clean(value) if isinstance(value, str) else value

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


def record_of(
    entries: Sequence[Entry], files: Mapping[str, str], missing: Sequence[str], cleaner: Cleaner
) -> dict[str, Any]:
    """The record of a session as JSON."""
    steps = [step for entry in entries if (step := _step_of(entry, cleaner)) is not None]
    return {
        "format": FORMAT,
        "steps": steps,
        "files": cleaner.clean(dict(files)),
        "missing": list(missing),
        "tools": sorted({entry.name for entry in entries if isinstance(entry, Called)}),
    }


def _step_of(entry: Entry, cleaner: Cleaner) -> dict[str, Any] | None:
    match entry:
        case Started():
            told = {"parent_id": entry.parent_id, "model": entry.model}
            instructions = cleaner.clean(entry.instructions)
            return {"kind": "agent", "agent_id": entry.agent_id, **told, "instructions": instructions}
        case Prompted():
            message = cleaner.clean(message_to_json(entry.message))
            return {"kind": "prompt", "agent_id": entry.agent_id, "message": message}
        case Answered():
            message = _message_record(entry.message, cleaner)
            return {"kind": "answer", "agent_id": entry.agent_id, "message": message}
        case Called():
            return {"kind": "call", **dataclasses.asdict(call_of(entry, cleaner))}
        case Stepped():
            about = {"call_id": entry.call_id, "action": entry.action, "text": cleaner.clean(entry.text)}
            return {"kind": "stepped", "agent_id": entry.agent_id, **about}
        case Ended():
            return {"kind": "end", "agent_id": entry.agent_id, "outcome": entry.outcome}
        case Moved():
            about = {"call_ids": list(entry.call_ids), "steps": entry.steps, "forced": entry.forced}
            return {"kind": entry.way, **about}
        case Rewound():
            return {"kind": "rewind", "agent_id": entry.agent_id, "step": entry.step}
        case Edited():
            messages = [_message_record(message, cleaner) for message in entry.messages]
            return {"kind": "edit", "agent_id": entry.agent_id, "messages": messages}
    return None


def _message_record(message: Message, cleaner: Cleaner) -> Json:
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
        call_id=entry.call_id,
        is_error=None if result is None else result.is_error,
        content="" if result is None else cleaner.clean(result.content),
        shows=() if result is None else _shown(result),
    )


def _shown(result: ToolResult) -> tuple[str, ...]:
    """The types of what a result shows besides its text, in order."""
    displays = result.metadata.get("displays")
    bundles = displays if isinstance(displays, list | tuple) and displays else [result.data]
    return tuple(
        " ".join(sorted(map(str, bundle))) for bundle in bundles if isinstance(bundle, Mapping) and bundle
    )
