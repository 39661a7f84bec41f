"""The form on which a person is the model: what was said, a tool to pick and fill in, or an answer.

The arguments of a call as fields for a person who makes or changes it, and what was filled in. Pure.

Cards of a run that somebody steps through, or chooses in: before a request, before a call, unsure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aisotools.agent.models.human import HumanTurn, checked_call, told
from aisotools.agent.run import BeforeCall, BeforeRequest, StepChoice
from aisotools.core.exceptions import ArgumentError
from aisotools.core.messages import CallPart, UserMessage
from aisotools.core.types import ApprovalRequest, Effect, Json, ToolCall, ToolDefinition
from aisotools.notebook.approval.approver import HELLO_TIMEOUT_S, can_ask, running_shell
from aisotools.notebook.approval.form import apply_edits
from aisotools.notebook.approval.prompt import Action, FormAsker, FormPrompt
from aisotools.notebook.approval.view import card_payload
from aisotools.notebook.render.text import one_line
from aisotools.policy.prompts import visible_json
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.validation import schema_error, validate_against


def call_form(call: CallPart, definition: ToolDefinition | None) -> dict[str, Any]:
    """The fields of a call that is there."""
    view = card_payload(_request(call.name, call.arguments, definition))
    return {
        "name": one_line(call.name),
        "about": view["about"],
        "fields": view["fields"],
        "as_json": view["as_json"],
    }


def parse_call_edits(
    call: CallPart, definition: ToolDefinition | None, edits: Mapping[str, str], whole: str | None
) -> dict[str, Json] | None:
    """The arguments after a person's edits; None when nothing changed.

    Raises:
        ArgumentError: If they are not what the tool takes; told to the person.
    """
    return apply_edits(_request(call.name, call.arguments, definition), edits, whole)


def new_call_form(definition: ToolDefinition) -> dict[str, Any]:
    """The fields of a call that is still to be made: defaults stand there, what is required comes first."""
    required = set(definition.parameters.get("required", ()))
    start = _start(definition)
    view = card_payload(_request(definition.name, start, definition))
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


def parse_new_call(definition: ToolDefinition, edits: Mapping[str, str]) -> CallPart:
    """The call that a person filled in; what they left as it was is left out, unless it is required.

    Raises:
        ArgumentError: If an argument is missing, or they do not fit the tool; told to the person.
    """
    start = _start(definition)
    required = [name for name in definition.parameters.get("required", ()) if name in start]
    shown = {one["name"]: one for one in new_call_form(definition)["fields"]}
    for name in required:
        if name not in edits and shown[name]["kind"] not in {"boolean", "choice"}:
            raise ArgumentError(f"The argument {name!r} of {definition.name} is required.")
    request = _request(definition.name, start, definition)
    arguments = apply_edits(request, edits, None) if edits else None
    whole = dict(start) if arguments is None else arguments
    kept = {name: whole[name] for name in whole if name in required or whole[name] != start.get(name)}
    if not schema_error(definition.parameters):
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


class NotebookAsker(FormAsker):
    """Asks the person at the notebook what the model answers."""

    async def answer(self, turn: HumanTurn) -> CallPart | str | None:
        """A call or a text; None where nobody answers."""
        return await self._at_desk(model_form(turn))


def notebook_asker() -> NotebookAsker | None:
    """The asker of the running notebook; None where nobody can be asked through it."""
    shell = running_shell()
    return NotebookAsker() if getattr(shell, "kernel", None) is not None and can_ask(shell) else None


def model_form(turn: HumanTurn) -> FormPrompt[CallPart | str | None]:
    """The desk of a person who is the model."""

    def read(message: Mapping[str, Any]) -> CallPart | str | None:
        if message["action"] == "call":
            call = parse_new_call(turn.tools[message["pick"]], message["edits"])
            return checked_call(turn, call.name, call.arguments)
        return str(message["text"]) if message["action"] == "answer" else None

    call = (Action(action="call", label="Call", letter="A", wants="call"),) if turn.tools else ()
    return FormPrompt(
        title="You are the model",
        chip=f"{len(turn.tools)} tools",
        said=told(turn),
        picks=[new_call_form(tool) for tool in turn.tools],
        pick_label="tool" if turn.tools else "",
        text_label="Or answer in words",
        actions=(
            *call,
            Action(action="answer", label="Answer", letter="S", wants="text"),
            Action(action="stop", label="Stop", letter="D"),
        ),
        read=read,
        ended=None,
    )


class NotebookStepper(FormAsker):
    """Asks before each request and each call, below the cell that runs."""

    def __init__(
        self, registry: ToolRegistry, *, shell: Any = None, hello_s: float = HELLO_TIMEOUT_S
    ) -> None:
        """Step through a run.

        Args:
            registry: The tools, to make form fields of their arguments.
            shell: Another IPython shell to ask through than the running one.
            hello_s: How long a page has to show that its card is alive, before an input box asks instead.
        """
        super().__init__(shell=shell, hello_s=hello_s)
        self._registry = registry

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        """Ask what is to happen; where nobody is there, the run stops."""
        return await self._at_desk(
            call_step_form(moment, self._registry) if isinstance(moment, BeforeCall) else request_form(moment)
        )


def request_form(moment: BeforeRequest) -> FormPrompt[StepChoice]:
    """The desk before a request: go on, ask something else, answer in the model's place, or stop."""
    turn = HumanTurn(messages=tuple(moment.messages), tools=tuple(moment.tools))
    place = max((n for n, m in enumerate(moment.messages) if isinstance(m, UserMessage)), default=None)
    task = moment.messages[place] if place is not None else None

    def read(message: Mapping[str, Any]) -> StepChoice:
        action, text = message["action"], message["text"]
        if action == "answer":
            return StepChoice("answer", text=text)
        if action == "edit" and place is not None and isinstance(task, UserMessage):
            messages = [*moment.messages]
            messages[place] = replace(task, text=text)
            return StepChoice("edit", messages=messages)
        return StepChoice("continue" if action == "continue" else "stop")

    offered = ", ".join(tool.name for tool in moment.tools) or "none"
    edit = (Action(action="edit", label="Ask this instead", letter="E", wants="text"),) if task else ()
    return FormPrompt(
        title=f"Step {moment.step}: the model is about to be asked",
        chip=f"{len(moment.tools)} tools",
        said=[*told(turn), ("tools it may call", offered)],
        text_label="Instead: an answer in the model's place, or another task",
        actions=(
            Action(action="continue", label="Continue", letter="A"),
            Action(action="answer", label="Answer myself", letter="S", wants="text"),
            *edit,
            Action(action="stop", label="Stop", letter="D"),
        ),
        read=read,
        ended=StepChoice("stop"),
    )


def call_step_form(moment: BeforeCall, registry: ToolRegistry) -> FormPrompt[StepChoice]:
    """The desk before a call: go on, with other arguments too, leave it out, answer in its place, or stop."""
    call = moment.call
    definition = next((one for one in registry.to_llm_definitions() if one.name == call.name), None)
    pick = call_form(call, definition)

    def read(message: Mapping[str, Any]) -> StepChoice:
        action = message["action"]
        if action == "continue":
            changed = parse_call_edits(call, definition, message["edits"], message["whole"])
            return StepChoice() if changed is None else StepChoice("edit", arguments=changed)
        if action == "answer":
            return StepChoice("answer", text=message["text"])
        return StepChoice("skip" if action == "skip" else "stop")

    return FormPrompt(
        title=f"Step {moment.step}: {call.name} is about to be called",
        chip="the gate still decides",
        picks=[pick],
        text_label="Instead of the call: its result, in your words",
        actions=(
            Action(action="continue", label="Continue", letter="A", wants="call"),
            Action(action="skip", label="Skip", letter="K"),
            Action(action="answer", label="Answer myself", letter="S", wants="text"),
            Action(action="stop", label="Stop", letter="D"),
        ),
        read=read,
        ended=StepChoice("stop"),
    )


# ---- choosing


class NotebookChooser(FormAsker):
    """Shows the likeliest calls as buttons when the model cannot choose."""

    async def choose(self, question: str, options: Sequence[CallPart]) -> CallPart | str | None:
        """One of `options`, a text for the model, or None where nobody picks."""
        return await self._at_desk(choice_form(question, options))


def choice_form(question: str, options: Sequence[CallPart]) -> FormPrompt[CallPart | str | None]:
    """The desk of a model that cannot choose."""

    def read(message: Mapping[str, Any]) -> CallPart | str | None:
        if message["action"] == "pick":
            return options[int(message["pick"])]
        return str(message["text"]) if message["action"] == "say" else None

    return FormPrompt(
        title="The model is not sure",
        chip="the gate still decides",
        said=[("model", question)],
        options=[call_summary(one) for one in options],
        text_label="Or say it in other words",
        actions=(
            Action(action="say", label="Tell the model", letter="S", wants="text"),
            Action(action="none", label="None of these", letter="D"),
        ),
        read=read,
        ended=None,
    )


def call_summary(call: CallPart) -> str:
    """A call in a line."""
    given = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    line = f"{call.name}({given})"
    return line if len(line) <= 300 else line[:299] + "\N{HORIZONTAL ELLIPSIS}"
