"""Cards of a run that somebody steps through, or chooses in: before a request, before a call, unsure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from aisotools.messages import CallPart, UserMessage
from aisotools.models.human import HumanTurn, told
from aisotools.notebook.ask import HELLO_S
from aisotools.notebook.call_form import call_fields, read_call
from aisotools.notebook.desk import Action, AtDesk, Desk
from aisotools.registry import ToolRegistry
from aisotools.stepping import BeforeCall, BeforeRequest, StepChoice


class NotebookStepper(AtDesk):
    """Asks before each request and each call, below the cell that runs."""

    def __init__(self, registry: ToolRegistry, *, shell: Any = None, hello_s: float = HELLO_S) -> None:
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
            before_call(moment, self._registry) if isinstance(moment, BeforeCall) else before_request(moment)
        )


def before_request(moment: BeforeRequest) -> Desk[StepChoice]:
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
    return Desk(
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


def before_call(moment: BeforeCall, registry: ToolRegistry) -> Desk[StepChoice]:
    """The desk before a call: go on, with other arguments too, leave it out, answer in its place, or stop."""
    call = moment.call
    definition = next((one for one in registry.to_llm_definitions() if one.name == call.name), None)
    pick = call_fields(call, definition)

    def read(message: Mapping[str, Any]) -> StepChoice:
        action = message["action"]
        if action == "continue":
            changed = read_call(call, definition, message["edits"], message["whole"])
            return StepChoice() if changed is None else StepChoice("edit", arguments=changed)
        if action == "answer":
            return StepChoice("answer", text=message["text"])
        return StepChoice("skip" if action == "skip" else "stop")

    return Desk(
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


class NotebookChooser(AtDesk):
    """Shows the likeliest calls as buttons when the model cannot choose."""

    async def choose(self, question: str, options: Sequence[CallPart]) -> CallPart | str | None:
        """One of `options`, a text for the model, or None where nobody picks."""
        return await self._at_desk(choosing(question, options))


def choosing(question: str, options: Sequence[CallPart]) -> Desk[CallPart | str | None]:
    """The desk of a model that cannot choose."""

    def read(message: Mapping[str, Any]) -> CallPart | str | None:
        if message["action"] == "pick":
            return options[int(message["pick"])]
        return str(message["text"]) if message["action"] == "say" else None

    return Desk(
        title="The model is not sure",
        chip="the gate still decides",
        said=[("model", question)],
        options=[call_words(one) for one in options],
        text_label="Or say it in other words",
        actions=(
            Action(action="say", label="Tell the model", letter="S", wants="text"),
            Action(action="none", label="None of these", letter="D"),
        ),
        read=read,
        ended=None,
    )


def call_words(call: CallPart) -> str:
    """A call in a line."""
    given = ", ".join(
        f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items()
    )
    line = f"{call.name}({given})"
    return line if len(line) <= 300 else line[:299] + "\N{HORIZONTAL ELLIPSIS}"
