"""Prompts that are forms: calls to fill in, a text, buttons. Used to stand in for a model and to step a run.

Like every prompt, a form falls back to an input box where no page renders its card, and to `no_answer` where
nobody can be asked.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from aisotools.core.exceptions import ArgumentError
from aisotools.notebook.approval.approver import (
    HELLO_TIMEOUT_S,
    NotebookPrompt,
    accepts_input,
    kernel_of,
    running_shell,
)
from aisotools.notebook.approval.subjects import INPUT_BOX_HINT, PromptSubject, ReadLine, ShowBundle
from aisotools.notebook.render import html
from aisotools.policy.prompts import visible
from aisotools.session.approvers import on_terminal, run_blocking

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
