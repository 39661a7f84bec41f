"""A question with several kinds of answer: fields of a call, text, buttons. For who is the model, or steps.

Where the page shows no card an input box below the cell asks; where nobody is there the run stops.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from aisotools.core.exceptions import ArgumentError
from aisotools.notebook.approval.approver import HELLO_TIMEOUT_S, NotebookPrompt, accepts_input, running_shell
from aisotools.notebook.render import html
from aisotools.policy.prompts import visible
from aisotools.session.approvers import on_terminal, run_blocking

T = TypeVar("T")

MAX_TEXT_CHARS = 50_000
"""The longest text that is taken from a card."""

_BELOW = "Answer in the box below."
_COLOUR = "var(--jp-info-color1,#0288d1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """A button.

    Attributes:
        action: What it means.
        label: What stands on it.
        letter: Its key, with Alt; and what is typed for it where there is no card.
        wants: What goes along with it.
    """

    action: str
    label: str
    letter: str
    wants: Literal["", "text", "call"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormPrompt(Generic[T]):
    """One question at the desk.

    Attributes:
        title: What it is about.
        actions: The buttons; the last ends the run.
        read: What a checked answer comes to; raises ArgumentError, which is told to the person.
        ended: What stands for no answer.
        chip: A word beside the title.
        said: Pairs of who and what.
        picks: Calls to fill in: name, about, fields, as_json.
        pick_label: What stands before their list.
        options: Calls to pick as they are.
        text_label: What can be written; empty for nothing.
        text: What stands there already.
        id: What an answer must name.
    """

    title: str
    actions: tuple[Action, ...]
    read: Callable[[Mapping[str, Any]], T]
    ended: T
    chip: str = ""
    said: Sequence[tuple[str, str]] = ()
    picks: Sequence[Mapping[str, Any]] = ()
    pick_label: str = ""
    options: Sequence[str] = ()
    text_label: str = ""
    text: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(slots=True)
class FormSubject(Generic[T]):
    """A desk as what a question on the page is about.

    Attributes:
        desk: What is asked.
        done: How the answer reads in the record.
    """

    desk: FormPrompt[T]
    done: str = ""

    @property
    def id(self) -> str:
        """What an answer must name."""
        return self.desk.id

    @property
    def words(self) -> str:
        """What it is, in a line."""
        return self.desk.title

    @property
    def timeout_s(self) -> float | None:
        """A step stands until it is answered."""
        return None

    def view(self) -> dict[str, Any]:
        """Everything the card shows."""
        desk = self.desk
        return {
            "title": visible(desk.title, ""),
            "chip": visible(desk.chip, ""),
            "said": [[visible(who, ""), visible(text)] for who, text in desk.said],
            "picks": list(desk.picks),
            "pick_label": desk.pick_label,
            "options": [visible(option, "") for option in desk.options],
            "text_label": desk.text_label,
            "text": desk.text,
            "actions": [
                {"action": a.action, "label": a.label, "letter": a.letter, "wants": a.wants}
                for a in desk.actions
            ],
        }

    def read(self, message: Mapping[str, Any]) -> T:
        """What the card's message means.

        Raises:
            ArgumentError: If it means nothing; told to the person.
        """
        answer = self.desk.read(_checked(self.desk, message))
        self.done = _words(self.desk, message)
        return answer

    async def typed(self, read_line: Any, show: Any, ends_s: float | None) -> T:  # noqa: ARG002 - steps have no end
        """The answer typed into the input box."""
        show(self._bundle(self._plain(typed=True), _BELOW))
        try:
            return await run_blocking(lambda: self._converse(read_line))
        except EOFError:
            return self.desk.ended

    def unanswered(self, why: str) -> T:  # noqa: ARG002 - the same for each
        """What stands for an answer that did not come: the run stops."""
        self.done = "stopped before an answer"
        return self.desk.ended

    def question(self) -> dict[str, Any]:
        """The question without a card."""
        return self._bundle(self._plain(typed=False))

    def record(self, answer: T) -> dict[str, Any]:  # noqa: ARG002 - `done` has it in words
        """What stays in the notebook."""
        done = visible(self.done or "answered", "")
        asked = html.escape(visible(self.desk.title, ""))
        title = f"{asked} \N{RIGHTWARDS ARROW} <strong>{html.escape(done)}</strong>"
        return {
            "text/html": html.box(
                title, html.details("what was shown", html.block(self._plain(typed=False))), _COLOUR
            ),
            "text/plain": f"{visible(self.desk.title, '')} -> {done}",
        }

    def _bundle(self, plain: str, hint: str = "") -> dict[str, Any]:
        title = html.escape(visible(self.desk.title, ""))
        body = html.block(plain) + (html.note(hint) if hint else "")
        return {
            "text/html": html.box(title, body, _COLOUR),
            "text/plain": "\n".join(filter(None, [plain, hint])),
        }

    def _plain(self, *, typed: bool) -> str:
        desk = self.desk
        lines = [visible(desk.title, "")]
        for who, text in desk.said:
            lines += [f"{visible(who, '')}:", *(f"  {line}" for line in visible(text).split("\n"))]
        names = [str(pick["name"]) for pick in desk.picks] if desk.pick_label else []
        for number, one in enumerate([*desk.options, *names], 1):
            lines.append(f"  {number}. {visible(one, '')}")
        if typed:
            lines.append(_typed_help(desk))
        return "\n".join(lines)

    def _converse(self, read_line: Callable[[str], str]) -> T:
        """Ask line by line until an answer is one."""
        problem = ""
        while True:
            line = read_line(f"{problem}answer: ").strip()
            try:
                return self.read(self._message(line, read_line))
            except ArgumentError as error:
                problem = f"{visible(str(error), '')} "

    def _message(self, line: str, read_line: Callable[[str], str]) -> dict[str, Any]:
        desk = self.desk
        number = int(line) if line.isascii() and line.isdecimal() and len(line) < 4 else 0
        message: dict[str, Any] = {"action": "", "pick": 0, "edits": {}, "whole": None, "text": desk.text}
        if 1 <= number <= len(desk.options):
            return {**message, "action": "pick", "pick": number - 1}
        calling = next((a for a in desk.actions if a.wants == "call"), None)
        if desk.pick_label and calling and 1 <= number <= len(desk.picks):
            pick = desk.picks[number - 1]
            edits = {
                f["name"]: read_line(f"{f['name']} [{f['text'][:60]}]: ")
                for f in pick["fields"]
                if f["editable"]
            }
            edits = {name: text for name, text in edits.items() if text}
            return {**message, "action": calling.action, "pick": number - 1, "edits": edits}
        for action in desk.actions:
            if line.lower() in {action.letter.lower(), action.label.lower(), action.action}:
                text = read_line("text: ") if action.wants == "text" else desk.text
                return {**message, "action": action.action, "text": text}
        writing = next((a for a in desk.actions if a.wants == "text"), None)
        if writing and line:
            return {**message, "action": writing.action, "text": line}
        raise ArgumentError(_typed_help(desk))


def _typed_help(desk: FormPrompt[Any]) -> str:
    keys = ", ".join(f"{a.letter.lower()} = {a.label}" for a in desk.actions)
    numbers = "a number from the list, " if desk.options or desk.pick_label else ""
    return f"Type {numbers}{keys}."


def _checked(desk: FormPrompt[Any], message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message, once its parts are what they must be: the page is not believed."""
    action, pick, text = message.get("action"), message.get("pick"), message.get("text", "")
    edits, whole = message.get("edits", {}), message.get("whole")
    known = {one.action: one for one in desk.actions}
    count = len(desk.options) if action == "pick" else len(desk.picks)
    sound = (
        isinstance(text, str)
        and isinstance(action, str)
        and len(text) <= MAX_TEXT_CHARS
        and isinstance(edits, Mapping)
        and all(isinstance(key, str) and isinstance(value, str) for key, value in edits.items())
        and isinstance(whole, str | None)
        and (action in known or (action == "pick" and bool(desk.options)))
    )
    if not sound:
        raise ArgumentError("The card's answer could not be read.")
    wants_pick = action == "pick" or known[str(action)].wants == "call"
    if wants_pick and not (type(pick) is int and 0 <= pick < count):
        raise ArgumentError("Pick one of those that are listed.")
    if action in known and known[str(action)].wants == "text" and not text.strip():
        raise ArgumentError("Write the answer first.")
    return {"action": action, "pick": pick, "edits": dict(edits), "whole": whole, "text": text.strip()}


def _words(desk: FormPrompt[Any], message: Mapping[str, Any]) -> str:
    action = message.get("action")
    if action == "pick":
        return str(desk.options[message["pick"]])
    known = next(one for one in desk.actions if one.action == action)
    if known.wants == "call" and desk.picks:
        return f"{known.label}: {desk.picks[message['pick']]['name']}"
    text = " ".join(str(message.get("text", "")).split())[:200]
    return f"{known.label}: {text}" if known.wants == "text" else known.label


async def ask_form(desk: FormPrompt[T], *, shell: Any = None, hello_s: float = HELLO_TIMEOUT_S) -> T:
    """The answer to `desk`: by a card, an input box, or the terminal; `desk.ended` where nobody is there."""
    shell = shell if shell is not None else running_shell()
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        if not on_terminal():
            return desk.ended
        return await FormSubject(desk).typed(input, lambda bundle: print(bundle["text/plain"]), None)
    if not accepts_input(kernel):
        return desk.ended
    from aisotools.notebook.approval.widgets import PromptCard

    return await NotebookPrompt(FormSubject(desk), kernel, PromptCard).answer(hello_s)


class FormAsker:
    """Somebody who asks at desks, all in one way."""

    def __init__(self, *, shell: Any = None, hello_s: float = HELLO_TIMEOUT_S) -> None:
        """Ask.

        Args:
            shell: Another IPython shell to ask through than the running one.
            hello_s: How long a page has to show that its card is alive, before an input box asks instead.
        """
        self._shell = shell
        self._hello_s = hello_s

    async def _at_desk(self, desk: FormPrompt[T]) -> T:
        """The answer to `desk`; `desk.ended` where nobody is there."""
        return await ask_form(desk, shell=self._shell, hello_s=self._hello_s)
