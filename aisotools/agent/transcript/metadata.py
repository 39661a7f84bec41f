"""The metadata with which a run's notebook can be replayed: to JSON and back. It holds no code.

What is kept of a session in its notebook, as JSON, with what must not be shared left out.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from aisotools.agent.transcript.entries import (
    AnswerEntry,
    CallEntry,
    EditEntry,
    PromptEntry,
    RewindEntry,
    RunEndEntry,
    RunStartEntry,
    StepEntry,
    TranscriptEntry,
    UndoEntry,
)
from aisotools.core.exceptions import UsageError
from aisotools.core.messages import AssistantMessage, Message, UserMessage, message_from_json, message_to_json
from aisotools.core.redaction import redact, redact_arguments, secret_parameters
from aisotools.core.types import Decision, Json, ToolResult
from aisotools.tools.registry import ToolRegistry

FORMAT = 1
"""The version of the record that is written and read; another one is refused."""

_MOST_BYTES = 64 << 20
_M = TypeVar("_M", UserMessage, AssistantMessage)


# The keys of the file, where they are not the names of the attributes.
_KEYS = {"was_run": "ran", "requested_arguments": "asked"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A recorded call, with its result.

    Attributes:
        name: The name of the tool.
        arguments: The arguments that ran, or would have run: validated and as edited by the approver.
        requested_arguments: The arguments as the caller gave them.
        origin: Who made the call: a person, a model or a program.
        agent_id: The id of the agent that made the call; empty for a person or a program.
        inside: Whether the tool of another call made this one.
        was_run: Whether the call ran.
        approved: Whether an approver was asked and approved the call.
        call_id: The id of the call in the session that was recorded.
        is_error: Whether the call failed; None if it is not known.
        content: The text of the result, as the model read it.
        shows: MIME types of what the call displayed besides, such as figures.
    """

    name: str
    arguments: Mapping[str, Json]
    requested_arguments: Mapping[str, Json]
    origin: str
    agent_id: str
    inside: bool
    was_run: bool
    approved: bool
    call_id: str = ""
    is_error: bool | None = None
    content: str = ""
    shows: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class RecordedRun:
    """One run of an agent.

    Attributes:
        agent_id: The id of the agent in the session that was recorded.
        parent_id: The id of the agent that delegated the task; empty if no agent did.
        instructions: The system prompt.
        prompt: The prompt that started the run; None if the run continued the conversation without one.
        answers: The answers of the model, in order.
        stepped: By call id, what a person chose who stepped through the run: the action and its text.
        by_hand: Whether a person stepped through the run.
        outcome: How the run ended; empty if it is not known.
    """

    agent_id: str
    parent_id: str = ""
    instructions: str = ""
    prompt: UserMessage | None = None
    answers: list[AssistantMessage] = field(default_factory=list)
    stepped: dict[str, tuple[str, str]] = field(default_factory=dict)
    by_hand: bool = False
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMove:
    """Calls were undone, or redone.

    Attributes:
        direction: `undo` or `redo`.
        call_ids: The ids of the calls, in the order in which they were undone or redone.
        steps: The number of these calls that `undo` counted when it was recorded; earlier versions of this
            package left some of them out.
        forced: Whether changes that somebody else had made since were overwritten.
        files_only: Whether the variables were left as they were.
    """

    direction: Literal["undo", "redo"]
    call_ids: Sequence[str]
    steps: int = 1
    forced: bool = False
    files_only: bool = False

    @property
    def count(self) -> int:
        """The number of calls that `undo` counts: all but those that were made inside another one."""
        outer = tuple(f"{call_id}/" for call_id in self.call_ids)
        return sum(not call_id.startswith(outer) for call_id in self.call_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRewind:
    """An agent's conversation was rewound to an earlier request, or edited by hand.

    Attributes:
        agent_id: The id of the agent in the session that was recorded.
        step: The request to which the conversation was rewound; None if the conversation was edited.
        messages: The whole conversation after the edit; empty if it was rewound.
    """

    agent_id: str
    step: int | None = None
    messages: Sequence[Message] = ()


Step = RecordedRun | RecordedCall | RecordedMove | RecordedRewind
"""One step of a replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """A recorded session, as a notebook holds it.

    Attributes:
        steps: Runs, calls that no agent made, and ways back, in order.
        runs: Every run, those of delegated agents included, in the order in which they began.
        calls: Every call, in order.
        files: Texts that lay in the workspace at the start.
        missing: What lay there besides, in words.
        tools: Names of the tools that were called.
    """

    steps: Sequence[Step]
    runs: Sequence[RecordedRun]
    calls: Sequence[RecordedCall]
    files: Mapping[str, str] = field(default_factory=dict)
    missing: Sequence[str] = ()
    tools: Sequence[str] = ()

    @property
    def answers(self) -> Sequence[AssistantMessage]:
        """The models' answers, run by run, as `ReplayModel` takes them."""
        return [answer for run in self.runs for answer in run.answers]


def read_transcript(path: str | os.PathLike[str]) -> Transcript:
    """Read the recording from a notebook that `to_notebook` made. No code of the notebook is run.

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
        raise UsageError(f"{shown} is not a notebook: {str(error)[:200]}.") from None
    metadata = notebook.get("metadata") if isinstance(notebook, dict) else None
    record = metadata.get("aisotools") if isinstance(metadata, dict) else None
    if not isinstance(record, dict) or "steps" not in record:
        raise UsageError(
            f"{shown} is not a record of a run. Export one with `%trace export {Path(path).name}`."
        )
    if record.get("format") != FORMAT:
        raise UsageError(f"{shown} has format {record.get('format')!r}, and this version reads {FORMAT}.")
    try:
        return _transcript(record)
    except (KeyError, TypeError, ValueError, AttributeError, UsageError) as error:
        raise UsageError(f"{shown} is damaged: {type(error).__name__}: {str(error)[:200]}.") from None


def _transcript(record: Mapping[str, Any]) -> Transcript:
    reading = _RecordReader()
    for step in record["steps"]:
        reading.take(step)
    return Transcript(
        steps=tuple(reading.steps),
        runs=tuple(reading.runs),
        calls=tuple(reading.calls),
        files={_text(path): _text(text) for path, text in record["files"].items()},
        missing=tuple(_text(one) for one in record.get("missing", ())),
        tools=tuple(_text(name) for name in record["tools"]),
    )


class _RecordReader:
    """Reads the steps of a record one by one."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.runs: list[RecordedRun] = []
        self.calls: list[RecordedCall] = []
        self._current: dict[str, RecordedRun] = {}

    def take(self, step: Mapping[str, Any]) -> None:
        """Take in the next step."""
        match step["kind"]:
            case "call":
                call = _recorded_call(step)
                self.calls.append(call)
                if not call.agent_id and not call.inside:
                    self.steps.append(call)
            case "undo" | "redo" as direction:
                self.steps.append(self._move(direction, step))
            case "rewind":
                if self.steps and self._of_an_agent(self.steps[-1]):
                    del self.steps[-1]  # going back does that itself
                number = _number(step["step"])
                self.steps.append(RecordedRewind(agent_id=_text(step["agent_id"]), step=number))
            case "edit":
                messages = tuple(map(message_from_json, step["messages"]))
                run = self._current.get(_text(step["agent_id"]))
                if run is None or run.outcome:  # during a run it is part of that
                    self.steps.append(RecordedRewind(agent_id=_text(step["agent_id"]), messages=messages))
            case kind:
                self._take_run(kind, step)

    def _move(self, direction: Literal["undo", "redo"], step: Mapping[str, Any]) -> RecordedMove:
        ids = tuple(_text(one) for one in step["call_ids"])
        if not ids:
            raise ValueError("an undo or redo names no call")
        steps = max(_number(step["steps"]), 1)
        return RecordedMove(
            direction=direction,
            call_ids=ids,
            steps=steps,
            forced=step["forced"] is True,
            files_only=step.get("files_only") is True,
        )

    def _of_an_agent(self, step: Step) -> bool:
        """Return whether this is an undo of an agent's calls."""
        if not isinstance(step, RecordedMove) or step.direction != "undo":
            return False
        return any(call.call_id == step.call_ids[-1] and call.agent_id for call in self.calls)

    def _take_run(self, kind: object, step: Mapping[str, Any]) -> None:
        agent_id = _text(step["agent_id"])
        if kind == "agent":
            parent_id = _text(step["parent_id"])
            instructions = _text(step["instructions"])
            run = RecordedRun(agent_id=agent_id, parent_id=parent_id, instructions=instructions)
            self._current[agent_id] = run
            self.runs.append(run)
            if not parent_id:
                self.steps.append(run)
            return
        run = self._current[agent_id]
        if kind == "prompt":
            run.prompt = _read(step["message"], UserMessage)
        elif kind == "answer":
            run.answers.append(_read(step["message"], AssistantMessage))
        elif kind == "stepped":
            run.by_hand = True
            run.stepped[_text(step["call_id"])] = _text(step["action"]), _text(step["text"])
        elif kind == "end":
            run.outcome = _text(step["outcome"])
        else:
            raise ValueError(f"there is no step {kind!r}")


def _read(value: Json, kind: type[_M]) -> _M:
    message = message_from_json(value)
    if not isinstance(message, kind):
        raise TypeError(f"a message has the role {message.role!r}, which does not belong here")
    return message


def _recorded_call(step: Mapping[str, Any]) -> RecordedCall:
    if step["origin"] not in {"person", "program", "model"}:
        raise ValueError(f"the origin of a call is {step['origin']!r}; use person, program or model")
    return RecordedCall(
        name=_text(step["name"]),
        arguments=dict(step["arguments"]),
        requested_arguments=dict(step[_KEYS["requested_arguments"]]),
        origin=step["origin"],
        agent_id=_text(step["agent_id"]),
        inside=bool(step["inside"]),
        was_run=bool(step[_KEYS["was_run"]]),
        approved=bool(step["approved"]),
        call_id=_text(step["call_id"]),
        is_error=None if step.get("is_error") is None else bool(step["is_error"]),
        content=_text(step.get("content", "")),
        shows=tuple(_text(one) for one in step.get("shows", ())),
    )


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r:.50} is not a number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.50} is not text")
    return value


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
        """Return the arguments of a call without secrets."""
        redacted = redact_arguments(arguments, self._secret.get(name, ()))
        cleaned: dict[str, Json] = _mapped_texts(redacted, self._hidden_path)
        return cleaned

    def result(self, result: ToolResult) -> ToolResult:
        """Return a result without secrets, for people to read; the same object if it has none."""
        fields = {"content": result.content, "value": result.value}
        fields |= {"data": result.data, "metadata": result.metadata}
        cleaned = {name: self._clean_texts(value) for name, value in fields.items()}
        return result if cleaned == fields else dataclasses.replace(result, **cleaned)

    def _clean_texts(self, value: Any) -> Any:
        """Return JSON without secrets. Pictures, in which none could be found, stay as they are."""
        if isinstance(value, Mapping):
            return {
                key: item if str(key).startswith("image/") else self._clean_texts(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return type(value)(map(self._clean_texts, value)) if type(value) in {list, tuple} else value
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
    entries: Sequence[TranscriptEntry], files: Mapping[str, str], missing: Sequence[str], cleaner: Cleaner
) -> dict[str, Any]:
    """Return the record of a session as JSON."""
    steps = [step for entry in entries if (step := _step_of(entry, cleaner)) is not None]
    return {
        "format": FORMAT,
        "steps": steps,
        "files": cleaner.clean(dict(files)),
        "missing": list(missing),
        "tools": sorted({entry.name for entry in entries if isinstance(entry, CallEntry)}),
    }


def _step_of(entry: TranscriptEntry, cleaner: Cleaner) -> dict[str, Any] | None:
    match entry:
        case RunStartEntry():
            origin = {"parent_id": entry.parent_id, "model": entry.model}
            instructions = cleaner.clean(entry.instructions)
            return {"kind": "agent", "agent_id": entry.agent_id, **origin, "instructions": instructions}
        case PromptEntry():
            message = cleaner.clean(message_to_json(entry.message))
            return {"kind": "prompt", "agent_id": entry.agent_id, "message": message}
        case AnswerEntry():
            message = _message_record(entry.message, cleaner)
            return {"kind": "answer", "agent_id": entry.agent_id, "message": message}
        case CallEntry():
            members = dataclasses.asdict(call_of(entry, cleaner))
            return {"kind": "call", **{_KEYS.get(name, name): value for name, value in members.items()}}
        case StepEntry():
            about = {"call_id": entry.call_id, "action": entry.action, "text": cleaner.clean(entry.text)}
            return {"kind": "stepped", "agent_id": entry.agent_id, **about}
        case RunEndEntry():
            return {"kind": "end", "agent_id": entry.agent_id, "outcome": entry.outcome}
        case UndoEntry():
            about = {"call_ids": list(entry.call_ids), "steps": entry.steps, "forced": entry.forced}
            return {"kind": entry.direction, **about, "files_only": entry.files_only}
        case RewindEntry():
            return {"kind": "rewind", "agent_id": entry.agent_id, "step": entry.step}
        case EditEntry():
            messages = [_message_record(message, cleaner) for message in entry.messages]
            return {"kind": "edit", "agent_id": entry.agent_id, "messages": messages}
    return None


def _message_record(message: Message, cleaner: Cleaner) -> Json:
    payload = message_to_json(message)
    parts = payload.get("parts", [])
    for part in parts if isinstance(parts, list) else ():
        part.pop("opaque", None)
        if part["kind"] == "call":
            part["arguments"] = cleaner.arguments(part["name"], part["arguments"])
    cleaned: Json = cleaner.clean(payload)
    return cleaned


def call_of(entry: CallEntry, cleaner: Cleaner) -> RecordedCall:
    """Return a call in its recorded form."""
    result = entry.result
    return RecordedCall(
        name=entry.name,
        arguments=cleaner.arguments(entry.name, entry.arguments),
        requested_arguments=cleaner.arguments(entry.name, entry.requested_arguments),
        origin=entry.origin,
        agent_id=entry.agent_id,
        inside=bool(entry.inside),
        was_run=entry.was_run,
        approved=entry.approval is not None and entry.decision is Decision.ALLOW,
        call_id=entry.call_id,
        is_error=None if result is None else result.is_error,
        content="" if result is None else cleaner.clean(result.content),
        shows=() if result is None else _list_mime_types(result),
    )


def _list_mime_types(result: ToolResult) -> tuple[str, ...]:
    """Return the MIME types that a result shows besides its text, in order."""
    displays = result.metadata.get("displays")
    bundles = displays if isinstance(displays, list | tuple) and displays else [result.data]
    return tuple(
        " ".join(sorted(map(str, bundle))) for bundle in bundles if isinstance(bundle, Mapping) and bundle
    )
