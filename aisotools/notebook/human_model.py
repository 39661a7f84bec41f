"""The form on which a person is the model: what was said, a tool to pick and fill in, or an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aisotools.messages import CallPart
from aisotools.models.human import HumanTurn, checked_call, told
from aisotools.notebook.ask import _running_shell, can_ask
from aisotools.notebook.call_form import blank_fields, filled_call
from aisotools.notebook.desk import Action, AtDesk, Desk


class NotebookAsker(AtDesk):
    """Asks the person at the notebook what the model answers."""

    async def answer(self, turn: HumanTurn) -> CallPart | str | None:
        """A call or a text; None where nobody answers."""
        return await self._at_desk(being_the_model(turn))


def notebook_asker() -> NotebookAsker | None:
    """The asker of the running notebook; None where nobody can be asked through it."""
    shell = _running_shell()
    return NotebookAsker() if getattr(shell, "kernel", None) is not None and can_ask(shell) else None


def being_the_model(turn: HumanTurn) -> Desk[CallPart | str | None]:
    """The desk of a person who is the model."""

    def read(message: Mapping[str, Any]) -> CallPart | str | None:
        if message["action"] == "call":
            call = filled_call(turn.tools[message["pick"]], message["edits"])
            return checked_call(turn, call.name, call.arguments)
        return str(message["text"]) if message["action"] == "answer" else None

    call = (Action(action="call", label="Call", letter="A", wants="call"),) if turn.tools else ()
    return Desk(
        title="You are the model",
        chip=f"{len(turn.tools)} tools",
        said=told(turn),
        picks=[blank_fields(tool) for tool in turn.tools],
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
