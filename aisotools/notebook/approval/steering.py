"""Forms in a cell, with which a person stands in for a model, steps through a run, or chooses a call.

A form has calls to fill in, a text and buttons. Like every prompt, it falls back to an input box where no
page renders its card, and to `no_answer` where nobody can be asked.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from aisotools.agent.models.human import HumanTurn, checked_call, labelled_texts
from aisotools.agent.run import BeforeCall, BeforeRequest, StepChoice
from aisotools.core.exceptions import ArgumentError
from aisotools.core.messages import CallPart, UserMessage
from aisotools.core.types import ApprovalRequest, Effect, Json, ToolCall, ToolDefinition
from aisotools.notebook.approval.approver import (
    HELLO_TIMEOUT_S,
    NotebookPrompt,
    accepts_input,
    can_ask,
    kernel_of,
    running_shell,
)
from aisotools.notebook.approval.form import apply_argument_edits
from aisotools.notebook.approval.subjects import INPUT_BOX_HINT, PromptSubject, ReadLine, ShowBundle
from aisotools.notebook.approval.view import card_payload
from aisotools.notebook.render import html
from aisotools.notebook.render.text import one_line
from aisotools.policy.prompts import visible, visible_json
from aisotools.session.approvers import on_terminal, run_blocking
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.validation import schema_error, validate_against

T = TypeVar("T")

MAX_TEXT_CHARS = 50_000
"""Longest text that a card may send."""

_COLOUR = "var(--jp-info-color1,#0288d1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FormAction:
    """A button of a form.

    Attributes:
        action: Its name in the reply.
        label: Its label.
        letter: Its key, with Alt; and what is typed for it in an input box.
        wants: What a reply with this action must carry: nothing, the text, or a call.
    """

    action: str
    label: str
    letter: str
    wants: Literal["", "text", "call"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPrompt(Generic[T]):
    """A form that a person answers.

    Attributes:
        title: One line above it.
        actions: The buttons; the last one ends the run.
        parse: Turns a checked reply into the answer; raises ArgumentError, which the card shows.
        no_answer: The answer that stands for none.
        chip: A word beside the title.
        transcript: Pairs of speaker and text, shown above the form.
        calls: Calls to fill in: name, about, fields, as_json.
        calls_label: Label of the list of calls; empty when there is only one call, which needs no list.
        options: Calls to choose as they are.
        text_label: Label of the text field; empty for no text field.
        text: Initial text of that field.
        id: Correlates a reply with this form.
    """

    title: str
    actions: tuple[FormAction, ...]
    parse: Callable[[Mapping[str, Any]], T]
    no_answer: T
    chip: str = ""
    transcript: Sequence[tuple[str, str]] = ()
    calls: Sequence[Mapping[str, Any]] = ()
    calls_label: str = ""
    options: Sequence[str] = ()
    text_label: str = ""
    text: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(slots=True)
class FormSubject(PromptSubject[T]):
    """A form as the subject of a prompt.

    Attributes:
        form: What is asked.
        outcome: The answer as the record words it; set by `parse_reply` and `no_answer`.
    """

    form: FormPrompt[T]
    outcome: str = ""

    @property
    def id(self) -> str:
        return self.form.id

    @property
    def title(self) -> str:
        return self.form.title

    @property
    def timeout_s(self) -> float | None:
        return None

    def card_payload(self) -> dict[str, Any]:
        form = self.form
        return {
            "title": visible(form.title, ""),
            "chip": visible(form.chip, ""),
            "transcript": [[visible(speaker, ""), visible(text)] for speaker, text in form.transcript],
            "calls": list(form.calls),
            "calls_label": form.calls_label,
            "options": [visible(option, "") for option in form.options],
            "text_label": form.text_label,
            "text": form.text,
            "actions": [
                {"action": a.action, "label": a.label, "letter": a.letter, "wants": a.wants}
                for a in form.actions
            ],
        }

    def parse_reply(self, message: Mapping[str, Any]) -> T:
        answer = self.form.parse(_validate_reply(self.form, message))
        self.outcome = _outcome(self.form, message)
        return answer

    async def read_typed(
        self,
        read_line: ReadLine,
        show: ShowBundle,
        deadline: float | None,  # noqa: ARG002 - forms never expire
    ) -> T:
        show(self._bundle(f"{self._text()}\n{_typing_help(self.form)}", INPUT_BOX_HINT))
        try:
            return await run_blocking(lambda: self._converse(read_line))
        except EOFError:
            return self.form.no_answer

    def no_answer(self, reason: str) -> T:  # noqa: ARG002 - the same for each reason
        self.outcome = "stopped before an answer"
        return self.form.no_answer

    def fallback_bundle(self) -> dict[str, Any]:
        return self._bundle(self._text())

    def record_bundle(self, answer: T) -> dict[str, Any]:  # noqa: ARG002 - `outcome` words it
        outcome = visible(self.outcome or "answered", "")
        title = visible(self.form.title, "")
        heading = f"{html.escape(title)} \N{RIGHTWARDS ARROW} <strong>{html.escape(outcome)}</strong>"
        body = html.details("what was shown", html.block(self._text()))
        return {"text/html": html.box(heading, body, _COLOUR), "text/plain": f"{title} -> {outcome}"}

    def _bundle(self, text: str, hint: str = "") -> dict[str, Any]:
        title = html.escape(visible(self.form.title, ""))
        body = html.block(text)
        if hint:
            body += html.note(hint)
        return {
            "text/html": html.box(title, body, _COLOUR),
            "text/plain": "\n".join(filter(None, [text, hint])),
        }

    def _text(self) -> str:
        """Return the form as plain text."""
        form = self.form
        lines = [visible(form.title, "")]
        for speaker, text in form.transcript:
            lines.append(f"{visible(speaker, '')}:")
            lines += [f"  {line}" for line in visible(text).split("\n")]
        names = [str(call["name"]) for call in form.calls] if form.calls_label else []
        for number, name in enumerate([*form.options, *names], 1):
            lines.append(f"  {number}. {visible(name, '')}")
        return "\n".join(lines)

    def _converse(self, read_line: ReadLine) -> T:
        """Read lines until one of them is a valid answer."""
        problem = ""
        while True:
            line = read_line(f"{problem}answer: ").strip()
            try:
                return self.parse_reply(self._reply(line, read_line))
            except ArgumentError as error:
                problem = f"{visible(str(error), '')} "

    def _reply(self, line: str, read_line: ReadLine) -> dict[str, Any]:
        """Build from a typed line the message that a card would have sent."""
        form = self.form
        number = int(line) if line.isascii() and line.isdecimal() and len(line) < 4 else 0
        message: dict[str, Any] = {"action": "", "pick": 0, "edits": {}, "whole": None, "text": form.text}
        if 1 <= number <= len(form.options):
            return {**message, "action": "pick", "pick": number - 1}
        call_action = next((a for a in form.actions if a.wants == "call"), None)
        if form.calls_label and call_action and 1 <= number <= len(form.calls):
            edits = _read_fields(form.calls[number - 1]["fields"], read_line)
            return {**message, "action": call_action.action, "pick": number - 1, "edits": edits}
        for action in form.actions:
            if line.lower() in {action.letter.lower(), action.label.lower(), action.action}:
                text = read_line("text: ") if action.wants == "text" else form.text
                return {**message, "action": action.action, "text": text}
        text_action = next((a for a in form.actions if a.wants == "text"), None)
        if text_action and line:
            return {**message, "action": text_action.action, "text": line}
        raise ArgumentError(_typing_help(form))


class FormAsker:
    """Base of the objects that put forms to the person at the notebook."""

    def __init__(self, *, shell: Any = None, hello_s: float = HELLO_TIMEOUT_S) -> None:
        """Ask through an IPython shell.

        Args:
            shell: Another shell than the running one.
            hello_s: Seconds for a page to render the card before an input box asks instead.
        """
        self._shell = shell
        self._hello_s = hello_s

    async def _ask(self, form: FormPrompt[T]) -> T:
        """Return the answer to `form`; `form.no_answer` where nobody can be asked."""
        return await ask_form(form, shell=self._shell, hello_s=self._hello_s)


async def ask_form(form: FormPrompt[T], *, shell: Any = None, hello_s: float = HELLO_TIMEOUT_S) -> T:
    """Return the answer to `form` from a card, an input box or the terminal.

    Returns:
        `form.no_answer` where nobody can be asked.
    """
    shell = shell if shell is not None else running_shell()
    kernel = kernel_of(shell)
    if kernel is None:
        if not on_terminal():
            return form.no_answer
        return await FormSubject(form).read_typed(input, lambda bundle: print(bundle["text/plain"]), None)
    if not accepts_input(kernel):
        return form.no_answer
    from aisotools.notebook.approval.widgets import FormCard

    return await NotebookPrompt(FormSubject(form), kernel, FormCard).answer(hello_s)


def _read_fields(fields: Sequence[Mapping[str, Any]], read_line: ReadLine) -> dict[str, str]:
    edits: dict[str, str] = {}
    for one in fields:
        if not one["editable"]:
            continue
        text = read_line(f"{one['name']} [{one['text'][:60]}]: ")
        if text:
            edits[one["name"]] = text
    return edits


def _typing_help(form: FormPrompt[Any]) -> str:
    keys = ", ".join(f"{a.letter.lower()} = {a.label}" for a in form.actions)
    numbers = "a number from the list, " if form.options or form.calls_label else ""
    return f"Type {numbers}{keys}."


def _validate_reply(form: FormPrompt[Any], message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parts of a reply that `FormPrompt.parse` may rely on. The page is untrusted."""
    action, pick, text = message.get("action"), message.get("pick"), message.get("text", "")
    edits, whole = message.get("edits", {}), message.get("whole")
    actions = {one.action: one for one in form.actions}
    well_formed = (
        isinstance(text, str)
        and isinstance(action, str)
        and len(text) <= MAX_TEXT_CHARS
        and isinstance(edits, Mapping)
        and all(isinstance(key, str) and isinstance(value, str) for key, value in edits.items())
        and isinstance(whole, str | None)
        and (action in actions or (action == "pick" and bool(form.options)))
    )
    if not well_formed:
        raise ArgumentError("The card's answer could not be read.")
    count = len(form.options) if action == "pick" else len(form.calls)
    needs_pick = action == "pick" or actions[str(action)].wants == "call"
    if needs_pick and not (type(pick) is int and 0 <= pick < count):
        raise ArgumentError("The choice is not in the list. Choose a listed one.")
    if action in actions and actions[str(action)].wants == "text" and not text.strip():
        raise ArgumentError("Write the answer first.")
    return {"action": action, "pick": pick, "edits": dict(edits), "whole": whole, "text": text.strip()}


def _outcome(form: FormPrompt[Any], message: Mapping[str, Any]) -> str:
    name = message.get("action")
    if name == "pick":
        return str(form.options[message["pick"]])
    action = next(one for one in form.actions if one.action == name)
    if action.wants == "call" and form.calls:
        return f"{action.label}: {form.calls[message['pick']]['name']}"
    if action.wants == "text":
        text = " ".join(str(message.get("text", "")).split())[:200]
        return f"{action.label}: {text}"
    return action.label


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
