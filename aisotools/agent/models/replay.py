"""A model that answers as it was recorded, and says where a run goes another way."""

from __future__ import annotations

import difflib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from aisotools.core.events import ModelAnswered, ModelRequested, SessionEvent
from aisotools.core.exceptions import ReplayDiverged, UsageError
from aisotools.core.messages import (
    AssistantMessage,
    Message,
    ModelEvent,
    ToolMessage,
    Usage,
    UserMessage,
    conversation_digest,
    events_of,
    since_last_answer,
)
from aisotools.core.types import ToolDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTurn:
    """One request and its answer.

    Attributes:
        answer: What the model answered.
        prompt_messages: What was said since the answer before; None where the record does not tell.
        digest: Of the same, as `messages.conversation_digest` gives it; empty where the record does not tell.
        usage: What the answer took, when it was given.
    """

    answer: AssistantMessage
    prompt_messages: tuple[Message, ...] | None = None
    digest: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where a replayed run asked for something else than the recorded one.

    Attributes:
        step: Which request, from 1.
        difference: What differs, in words.
    """

    step: int
    difference: str


class ReplayModel:
    """Gives the recorded answers in order.

    Attributes:
        name: `replay`, or what it was given.
        divergences: Where the run went another way, so far.
    """

    def __init__(
        self, turns: Iterable[RecordedTurn | AssistantMessage], *, name: str = "replay", strict: bool = True
    ) -> None:
        """Take the record.

        Args:
            turns: Recorded turns; a bare answer is compared with nothing.
            name: How it is called in records.
            strict: Whether a run that goes another way ends there, with the reason; else it goes on with the
                recorded answers, and `divergences` has them.

        Raises:
            UsageError: If one of them is not a turn.
        """
        self._turns = tuple(_as_turn(turn, number) for number, turn in enumerate(turns, start=1))
        self.name = name
        self._strict = strict
        self._answer_count = 0
        self.divergences: list[Divergence] = []

    @classmethod
    def from_events(
        cls, events: Iterable[SessionEvent], *, agent_id: str | None = None, strict: bool = True
    ) -> ReplayModel:
        """Make a model of a session's recorded answers, or those of one agent if `agent_id` is given."""
        return cls(recorded_turns(events, agent_id=agent_id), strict=strict)

    def __repr__(self) -> str:
        progress = f"{self._answer_count} of {len(self._turns)} given"
        return f"<ReplayModel {progress}, {len(self.divergences)} divergences>"

    async def request(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],  # noqa: ARG002 - named by the contract
        *,
        instructions: str = "",  # noqa: ARG002 - named by the contract
    ) -> AsyncIterator[ModelEvent]:
        """Give the next recorded answer.

        Raises:
            ReplayDiverged: If none is left, or, when strict, if the run went another way.
        """
        step = self._answer_count + 1
        if step > len(self._turns):
            difference = f"the record holds {len(self._turns)} answers, and the run asks for one more"
            self.divergences.append(Divergence(step=step, difference=difference))
            raise ReplayDiverged(f"Step {step}: {difference}.")
        turn = self._turns[self._answer_count]
        difference = _difference(turn, since_last_answer(messages))
        if difference:
            self.divergences.append(Divergence(step=step, difference=difference))
            if self._strict:
                raise ReplayDiverged(f"Step {step}: {difference}.")
        self._answer_count = step
        usage = Usage(cost=0.0) if turn.usage is None else turn.usage
        for event in events_of(turn.answer, usage):
            yield event


def recorded_turns(events: Iterable[SessionEvent], *, agent_id: str | None = None) -> list[RecordedTurn]:
    """Return the turns in a session's events, or those of one agent if `agent_id` is given."""
    turns: list[RecordedTurn] = []
    requests: dict[str, ModelRequested] = {}
    for event in events:
        if isinstance(event, ModelRequested) and agent_id in {None, event.agent_id}:
            requests[event.turn_id] = event
        elif isinstance(event, ModelAnswered) and event.turn_id in requests:
            request = requests.pop(event.turn_id)
            turns.append(
                RecordedTurn(
                    answer=event.message,
                    prompt_messages=request.new,
                    digest=request.digest,
                    usage=event.usage,
                )
            )
    return turns


def _as_turn(turn: object, number: int) -> RecordedTurn:
    if isinstance(turn, AssistantMessage):
        return RecordedTurn(answer=turn)
    if isinstance(turn, RecordedTurn):
        return turn
    raise UsageError(f"Turn {number} of the record is {type(turn).__name__}; give a RecordedTurn.")


def _difference(turn: RecordedTurn, new: Sequence[Message]) -> str:
    """Return how the conversation differs from the recorded one, in words; empty if it does not."""
    if turn.prompt_messages is None and not turn.digest:
        return ""
    if turn.digest and conversation_digest(new) == turn.digest:
        return ""
    if turn.prompt_messages is None:
        return "what was said before it is not what was recorded (the digests differ)"
    for number, (was, now) in enumerate(zip(turn.prompt_messages, new, strict=False), start=1):
        difference = _differs(was, now)
        if difference:
            return f"message {number} {difference}"
    if len(turn.prompt_messages) != len(new):
        return f"{len(new)} messages came before it, and {len(turn.prompt_messages)} were recorded"
    return "" if not turn.digest else "the record was changed: its digest is not that of its messages"


def _differs(was: Message, now: Message) -> str:
    if type(was) is not type(now):
        return f"is {_describe_message(now)}, and {_describe_message(was)} was recorded"
    if isinstance(was, ToolMessage) and isinstance(now, ToolMessage):
        if was.name != now.name:
            return f"is the result of {now.name}, and of {was.name} was recorded"
        if was.is_error != now.is_error:
            ended = ("succeeded", "failed")
            return f"says that {now.name} {ended[now.is_error]}, and it {ended[was.is_error]} when recorded"
        if was.content != now.content:
            return f"is another result of {now.name}: {_first_change(was.content, now.content)}"
    if isinstance(was, UserMessage) and isinstance(now, UserMessage) and was.text != now.text:
        return f"is another prompt: {_first_change(was.text, now.text)}"
    return "" if conversation_digest([was]) == conversation_digest([now]) else "is not as it was recorded"


def _describe_message(message: Message) -> str:
    return f"a result of {message.name}" if isinstance(message, ToolMessage) else "a prompt"


def _first_change(was: str, now: str) -> str:
    for line in difflib.unified_diff(was.splitlines(), now.splitlines(), lineterm="", n=0):
        if line[0] in "+-" and line[:3] not in {"+++", "---"}:
            side = "recorded" if line[0] == "-" else "now"
            return f"{side} {line[1:][:120]!r}"
    return "white space differs"
