"""A person in the place of the model: reads what a model would see, and answers or calls a tool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from aisotools.core.exceptions import ArgumentError, ModelError, UsageError
from aisotools.core.messages import (
    AssistantMessage,
    CallDone,
    CallPart,
    Finished,
    Message,
    ModelEvent,
    TextDelta,
    ToolMessage,
    Usage,
    UserMessage,
)
from aisotools.core.types import Json, ToolDefinition
from aisotools.policy.prompts import visible
from aisotools.session.approvers import on_terminal, run_blocking
from aisotools.tools.validation import schema_error, validate_against

_NOBODY_MESSAGE = (
    "Nobody is there to be the model. Run this in JupyterLab or a terminal, or give HumanModel(asker=...) "
    "somebody to ask."
)
"""Why a request fails where no person can answer."""

_MOST_SHOWN = 4_000
_PROMPT = "number of a tool, or your answer: "


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanTurn:
    """A request as a person sees it who stands in for the model.

    Attributes:
        messages: The conversation.
        tools: What may be called.
        instructions: The system prompt.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    instructions: str = ""

    def tool(self, name: str) -> ToolDefinition:
        """Return the tool with that name.

        Raises:
            ArgumentError: If there is none.
        """
        for tool in self.tools:
            if tool.name == name:
                return tool
        known = ", ".join(one.name for one in self.tools) or "none"
        raise ArgumentError(f"There is no tool {name!r}. Tools: {known}.")


@runtime_checkable
class HumanAsker(Protocol):
    """Asks the person who is the model."""

    async def answer(self, turn: HumanTurn) -> CallPart | str | None:
        """Return a call, the text of an answer, or None if nobody answers."""


class HumanModel:
    """A model that is a person.

    Attributes:
        name: `human`.
        is_person: That its time to think is not working time.
    """

    is_person = True

    def __init__(self, asker: HumanAsker | None = None, *, name: str = "human") -> None:
        """Choose who is asked.

        Args:
            asker: Asks the person; without one the notebook, else the terminal.
            name: How it is called in records.

        Raises:
            UsageError: If that cannot ask.
        """
        if asker is not None and not isinstance(asker, HumanAsker):
            raise UsageError(f"HumanModel(asker={asker!r}): it needs a method `async answer(turn)`.")
        self.name = name
        self._asker = asker

    def __repr__(self) -> str:
        return f"<HumanModel {self.name}>"

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        """Have the person answer.

        Raises:
            ModelError: If nobody is there.
        """
        turn = HumanTurn(messages=tuple(messages), tools=tuple(tools), instructions=instructions)
        asker = self._asker or default_asker()
        answer = None if asker is None else await asker.answer(turn)
        if answer is None:
            raise ModelError(
                _NOBODY_MESSAGE if asker is None else "The person who stands in for the model did not answer."
            )
        if isinstance(answer, CallPart):
            yield CallDone(checked_call(turn, answer.name, answer.arguments))
        else:
            yield TextDelta(answer)
        yield Usage(cost=0.0)
        yield Finished("calls" if isinstance(answer, CallPart) else "stop")


def checked_call(turn: HumanTurn, name: str, arguments: Mapping[str, Json]) -> CallPart:
    """Return the call with its arguments validated against the tool's schema.

    Raises:
        ArgumentError: If they do not; the message is shown to the person.
    """
    parameters = turn.tool(name).parameters
    if not schema_error(parameters):  # otherwise the gate's validation decides
        validate_against(parameters, dict(arguments), name)
    return CallPart("", name, dict(arguments))


# ---- who is asked

_factory: Callable[[], HumanAsker | None] | None = None


def set_default_asker_factory(factory: Callable[[], HumanAsker | None] | None) -> None:
    """Register who makes the asker of a model that was given none; None takes it back."""
    global _factory  # noqa: PLW0603 - one per process, as there is one notebook
    _factory = factory


def default_asker() -> HumanAsker | None:
    """Return the notebook's asker if it can ask, else the terminal's, else None."""
    asker = _factory() if _factory is not None else None
    return asker or (ConsoleAsker(input) if on_terminal() else None)


class ConsoleAsker:
    """Asks line by line."""

    def __init__(self, read_line: Callable[[str], str], show: Callable[[str], object] = print) -> None:
        """Ask by these.

        Args:
            read_line: Shows a prompt and gives one line; blocks, and raises EOFError at the end of input.
            show: Shows text.
        """
        self._read_line = read_line
        self._show = show

    async def answer(self, turn: HumanTurn) -> CallPart | str | None:
        """Return what the person typed; None at the end of input."""
        return await run_blocking(lambda: self._converse(turn))

    def _converse(self, turn: HumanTurn) -> CallPart | str | None:
        self._show(describe_turn(turn))
        try:
            while True:
                line = self._read_line(_PROMPT).strip()
                number = int(line) if line.isascii() and line.isdecimal() and len(line) < 4 else 0
                if 1 <= number <= len(turn.tools):
                    try:
                        return self._call(turn, turn.tools[number - 1])
                    except ArgumentError as error:
                        self._show(visible(str(error)))
                elif line:
                    return line
        except EOFError:
            return None

    def _call(self, turn: HumanTurn, tool: ToolDefinition) -> CallPart:
        required = set(tool.parameters.get("required", ()))
        arguments: dict[str, Json] = {}
        for name, schema in tool.parameters.get("properties", {}).items():
            need = "required" if name in required else "nothing to leave it out"
            text = self._read_line(f"{visible(name, '')} ({_type_of(schema)}, {need}): ")
            if text or name in required:
                arguments[name] = value_of(text, schema)
        return checked_call(turn, tool.name, arguments)


def value_of(text: str, schema: Mapping[str, Json]) -> Json:
    """Return the value of a typed argument: the text itself where text is expected, else JSON."""
    if "string" in _type_of(schema) or schema.get("enum"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _type_of(schema: Mapping[str, Json]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        kinds = [_type_of(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(kinds)
    return str(schema.get("type", "JSON"))


def describe_turn(turn: HumanTurn) -> str:
    """Return the request as plain text in which every character is visible."""
    lines = ["You are the model. What it would see:"]
    for who, text in labelled_texts(turn):
        lines.append(f"{who}:")
        lines += [f"  {line}" for line in visible(text).split("\n")]
    lines.append("The tools:")
    for number, tool in enumerate(turn.tools, 1):
        about = tool.description.strip().partition("\n")[0]
        lines.append(f"  {number}. {visible(tool.name, '')}: {visible(about, '')}")
    return "\n".join(lines)


def labelled_texts(turn: HumanTurn) -> list[tuple[str, str]]:
    """Return the conversation as pairs of a speaker and a text."""
    instructions = [("instructions", turn.instructions)] if turn.instructions else []
    return [*instructions, *map(_labelled_text, turn.messages)]


def _labelled_text(message: Message) -> tuple[str, str]:
    if isinstance(message, UserMessage):
        return "user", _short(message.text)
    if isinstance(message, ToolMessage):
        return f"{message.name}{', an error' if message.is_error else ''}", _short(message.content)
    assert isinstance(message, AssistantMessage)
    calls = [f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}" for call in message.calls]
    return "model", _short("\n".join(filter(None, [message.text, *calls])))


def _short(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "\n[... more ...]"
