"""Forms with which a person stands in for a model, steps through a run, or chooses a call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aisotools.agent.models.human import HumanTurn, checked_call, labelled_texts
from aisotools.agent.run import BeforeCall, BeforeRequest, StepChoice
from aisotools.core.exceptions import ArgumentError
from aisotools.core.messages import CallPart, UserMessage
from aisotools.core.types import ApprovalRequest, Effect, Json, ToolCall, ToolDefinition
from aisotools.notebook.approval.approver import HELLO_TIMEOUT_S, can_ask, kernel_of, running_shell
from aisotools.notebook.approval.form import apply_argument_edits
from aisotools.notebook.approval.prompt import FormAction, FormAsker, FormPrompt
from aisotools.notebook.approval.view import card_payload
from aisotools.notebook.render.text import one_line
from aisotools.policy.prompts import visible_json
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.validation import schema_error, validate_against

_MAX_SUMMARY_CHARS = 300


class NotebookAsker(FormAsker):
    """Asks the person at the notebook to answer in a model's place."""

    async def answer(self, turn: HumanTurn) -> CallPart | str | None:
        """Return a call or a text; None where nobody answers."""
        return await self._ask(model_form(turn))


def notebook_asker() -> NotebookAsker | None:
    """Return the asker of the running notebook; None where nobody can be asked through it."""
    shell = running_shell()
    return NotebookAsker() if kernel_of(shell) is not None and can_ask(shell) else None


class NotebookStepper(FormAsker):
    """Asks before each request and each call, below the running cell."""

    def __init__(
        self, registry: ToolRegistry, *, shell: Any = None, hello_s: float = HELLO_TIMEOUT_S
    ) -> None:
        """Step through a run.

        Args:
            registry: The tools, whose schemas make the fields of the forms.
            shell: Another IPython shell than the running one.
            hello_s: Seconds for a page to render the card before an input box asks instead.
        """
        super().__init__(shell=shell, hello_s=hello_s)
        self._registry = registry

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        """Ask how to continue. Where nobody can be asked, the run stops."""
        if isinstance(moment, BeforeCall):
            return await self._ask(call_step_form(moment, self._registry))
        return await self._ask(request_form(moment))


class NotebookChooser(FormAsker):
    """Shows the likeliest calls as buttons when the model cannot choose."""

    async def choose(self, question: str, options: Sequence[CallPart]) -> CallPart | str | None:
        """Return one of `options`, a text for the model, or None where nobody chooses."""
        return await self._ask(choice_form(question, options))


def model_form(turn: HumanTurn) -> FormPrompt[CallPart | str | None]:
    """Return the form of a person who stands in for the model."""

    def parse(message: Mapping[str, Any]) -> CallPart | str | None:
        if message["action"] == "call":
            call = parse_new_call(turn.tools[message["pick"]], message["edits"])
            return checked_call(turn, call.name, call.arguments)
        return str(message["text"]) if message["action"] == "answer" else None

    actions = [
        FormAction(action="answer", label="Answer", letter="S", wants="text"),
        FormAction(action="stop", label="Stop", letter="D"),
    ]
    if turn.tools:
        actions.insert(0, FormAction(action="call", label="Call", letter="A", wants="call"))
    return FormPrompt(
        title="You are the model",
        chip=f"{len(turn.tools)} tools",
        transcript=labelled_texts(turn),
        calls=[new_call_form(tool) for tool in turn.tools],
        calls_label="tool" if turn.tools else "",
        text_label="Or answer in words",
        actions=tuple(actions),
        parse=parse,
        no_answer=None,
    )


def request_form(moment: BeforeRequest) -> FormPrompt[StepChoice]:
    """Return the form before a request: continue, change the task, answer in the model's place, or stop."""
    turn = HumanTurn(messages=tuple(moment.messages), tools=tuple(moment.tools))
    index = max((n for n, m in enumerate(moment.messages) if isinstance(m, UserMessage)), default=None)
    task = moment.messages[index] if index is not None else None

    def parse(message: Mapping[str, Any]) -> StepChoice:
        action, text = message["action"], message["text"]
        if action == "answer":
            return StepChoice("answer", text=text)
        if action == "edit" and index is not None and isinstance(task, UserMessage):
            messages = [*moment.messages]
            messages[index] = replace(task, text=text)
            return StepChoice("edit", messages=messages)
        return StepChoice("continue" if action == "continue" else "stop")

    actions = [
        FormAction(action="continue", label="Continue", letter="A"),
        FormAction(action="answer", label="Answer myself", letter="S", wants="text"),
        FormAction(action="stop", label="Stop", letter="D"),
    ]
    if task is not None:
        actions.insert(2, FormAction(action="edit", label="Ask this instead", letter="E", wants="text"))
    tool_names = ", ".join(tool.name for tool in moment.tools) or "none"
    return FormPrompt(
        title=f"Step {moment.step}: the model is about to be asked",
        chip=f"{len(moment.tools)} tools",
        transcript=[*labelled_texts(turn), ("tools it may call", tool_names)],
        text_label="Instead: an answer in the model's place, or another task",
        actions=tuple(actions),
        parse=parse,
        no_answer=StepChoice("stop"),
    )


def call_step_form(moment: BeforeCall, registry: ToolRegistry) -> FormPrompt[StepChoice]:
    """Return the form before a call: continue, edit the arguments, skip it, answer in its place, or stop."""
    call = moment.call
    definition = next((one for one in registry.to_llm_definitions() if one.name == call.name), None)

    def parse(message: Mapping[str, Any]) -> StepChoice:
        action = message["action"]
        if action == "continue":
            arguments = parse_call_edits(call, definition, message["edits"], message["whole"])
            return StepChoice() if arguments is None else StepChoice("edit", arguments=arguments)
        if action == "answer":
            return StepChoice("answer", text=message["text"])
        return StepChoice("skip" if action == "skip" else "stop")

    return FormPrompt(
        title=f"Step {moment.step}: {call.name} is about to be called",
        chip="the gate still decides",
        calls=[call_form(call, definition)],
        text_label="Instead of the call: its result, in your words",
        actions=(
            FormAction(action="continue", label="Continue", letter="A", wants="call"),
            FormAction(action="skip", label="Skip", letter="K"),
            FormAction(action="answer", label="Answer myself", letter="S", wants="text"),
            FormAction(action="stop", label="Stop", letter="D"),
        ),
        parse=parse,
        no_answer=StepChoice("stop"),
    )


def choice_form(question: str, options: Sequence[CallPart]) -> FormPrompt[CallPart | str | None]:
    """Return the form of a model that cannot choose between `options`."""

    def parse(message: Mapping[str, Any]) -> CallPart | str | None:
        if message["action"] == "pick":
            return options[int(message["pick"])]
        return str(message["text"]) if message["action"] == "say" else None

    return FormPrompt(
        title="The model is not sure",
        chip="the gate still decides",
        transcript=[("model", question)],
        options=[call_summary(one) for one in options],
        text_label="Or say it in other words",
        actions=(
            FormAction(action="say", label="Tell the model", letter="S", wants="text"),
            FormAction(action="none", label="None of these", letter="D"),
        ),
        parse=parse,
        no_answer=None,
    )


def call_summary(call: CallPart) -> str:
    """Return a call in one line of at most 300 characters."""
    pairs = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    line = f"{call.name}({', '.join(pairs)})"
    if len(line) <= _MAX_SUMMARY_CHARS:
        return line
    return line[: _MAX_SUMMARY_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def call_form(call: CallPart, definition: ToolDefinition | None) -> dict[str, Any]:
    """Return the fields of an existing call, as a form's `calls` hold them."""
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
    """Return the arguments of `call` after a person's edits; None when nothing changed.

    Raises:
        ArgumentError: If they do not fit the tool; the message is shown on the card.
    """
    return apply_argument_edits(_request(call.name, call.arguments, definition), edits, whole)


def new_call_form(definition: ToolDefinition) -> dict[str, Any]:
    """Return the fields of a call that is still to be made: required ones first, defaults filled in."""
    required = set(definition.parameters.get("required", ()))
    initial = _initial_arguments(definition)
    view = card_payload(_request(definition.name, initial, definition))
    fields = []
    for one in view["fields"]:
        name, kind = one["name"], one["kind"]
        # A required number or object has no sensible initial value: its field starts empty.
        is_blank = initial[name] is None or (name in required and kind in {"number", "json"})
        fields.append(
            {
                **one,
                "label": one["label"] if name in required else f"{one['label']} (optional)",
                "kind": "number" if kind == "json" and _is_number(definition, name) else kind,
                "text": "" if is_blank else one["text"],
                "folded": False,
            }
        )
    fields.sort(key=lambda one: one["name"] not in required)
    return {
        "name": definition.name,
        "about": view["about"],
        "fields": fields,
        "as_json": False,
        "schema": visible_json(definition.parameters),
    }


def parse_new_call(definition: ToolDefinition, edits: Mapping[str, str]) -> CallPart:
    """Return the call that a person filled in, without optional arguments left at their initial value.

    Raises:
        ArgumentError: If an argument is missing or does not fit the tool; the message is shown on the card.
    """
    initial = _initial_arguments(definition)
    required = [name for name in definition.parameters.get("required", ()) if name in initial]
    kinds = {one["name"]: one["kind"] for one in new_call_form(definition)["fields"]}
    for name in required:
        # A check box or list always shows a value, so leaving it alone is an answer.
        if name not in edits and kinds[name] not in {"boolean", "choice"}:
            raise ArgumentError(f"The argument {name!r} of {definition.name} is required.")
    request = _request(definition.name, initial, definition)
    arguments = (apply_argument_edits(request, edits, None) if edits else None) or dict(initial)
    arguments = {
        name: value for name, value in arguments.items() if name in required or value != initial.get(name)
    }
    if not schema_error(definition.parameters):
        validate_against(definition.parameters, arguments, definition.name)
    return CallPart("", definition.name, arguments)


def _is_number(definition: ToolDefinition, name: str) -> bool:
    schema = definition.parameters["properties"][name]
    kinds = {one.get("type") for one in schema.get("anyOf", (schema,))}
    return bool(kinds & {"number", "integer"}) and kinds <= {"number", "integer", "null"}


def _initial_arguments(definition: ToolDefinition) -> dict[str, Json]:
    properties: Mapping[str, Any] = definition.parameters.get("properties", {})
    return {name: _initial_value(schema) for name, schema in properties.items()}


def _initial_value(schema: Mapping[str, Any]) -> Json:
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    branches = [one for one in schema.get("anyOf", (schema,)) if one.get("type") != "null"]
    first = branches[0] if branches else {}
    if first.get("enum"):
        return None if "anyOf" in schema else first["enum"][0]
    kind = first.get("type")
    if kind in {"number", "integer"}:
        return None if "anyOf" in schema else 0
    empty: dict[str, Json] = {"string": "", "boolean": False, "array": [], "object": {}}
    return empty.get(kind) if isinstance(kind, str) else None


def _request(name: str, arguments: Mapping[str, Json], definition: ToolDefinition | None) -> ApprovalRequest:
    return ApprovalRequest(
        id="form",
        call=ToolCall("form", name, arguments, origin="model"),
        definition=definition or ToolDefinition(name, "", {"type": "object"}),
        effect=Effect.READ_ONLY,
        level="",
    )
