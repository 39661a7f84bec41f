"""What an agent adds to the record of its session, and the one kind of event that is not recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from aisotools.messages import AssistantMessage, Message, ModelEvent, Usage
from aisotools.session_events import SessionEvent

RunOutcome = Literal[
    "answered",
    "undecided",
    "length",
    "filtered",
    "budget",
    "loop",
    "context",
    "failed",
    "stopped",
    "cancelled",
]
"""How a run ended: the model answered; it could not choose and nobody chose; its answer was cut, or withheld;
a budget was used up; it went in circles; the conversation does not fit the model; the model failed; whoever
steps through it stopped it; it was cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent(SessionEvent):
    """Base of what an agent records.

    Attributes:
        agent_id: Which agent.
        step: Which request of its conversation, from 1; 0 before the first.
    """

    kind: ClassVar[str] = "agent_event"
    agent_id: str
    step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStarted(AgentEvent):
    """A run began. Its prompt is in the first `ModelRequested`.

    Attributes:
        model: Which model answers.
        instructions: What the model is told before everything else.
        parent_id: The agent that delegated this; empty for a run of its own.
    """

    kind: ClassVar[str] = "agent_started"
    model: str
    instructions: str = ""
    parent_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequested(AgentEvent):
    """A model was asked.

    Attributes:
        turn_id: Names this request; the calls that come of it carry it.
        new: Everything that was said since the last answer.
        digest: Of `new`; see `messages.digest_of`. A record that leaves secrets out still has it.
    """

    kind: ClassVar[str] = "model_requested"
    turn_id: str
    new: tuple[Message, ...]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRetried(AgentEvent):
    """A request failed and is tried again.

    Attributes:
        reason: What happened, in words.
        wait_s: Seconds until the next try.
    """

    kind: ClassVar[str] = "model_retried"
    reason: str
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswered(AgentEvent):
    """A model answered, or somebody in its place.

    Attributes:
        turn_id: Which request.
        message: The answer, its calls bearing the ids they have in the session.
        usage: What it took.
        duration_s: From the request to the end of the answer, failed tries included.
    """

    kind: ClassVar[str] = "model_answered"
    turn_id: str
    message: AssistantMessage
    usage: Usage
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTrimmed(AgentEvent):
    """Old results were taken out of what the model is shown, to make room.

    Attributes:
        call_ids: Whose results.
        chars: How many characters.
    """

    kind: ClassVar[str] = "context_trimmed"
    call_ids: tuple[str, ...]
    chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken(AgentEvent):
    """Somebody who steps through the run did something else than let it go on.

    Attributes:
        action: What they did; see `stepping.StepChoice`.
        text: What they said, if anything.
    """

    kind: ClassVar[str] = "step_taken"
    action: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEdited(AgentEvent):
    """Somebody changed by hand what was said.

    Attributes:
        messages: The whole conversation from now on.
    """

    kind: ClassVar[str] = "conversation_edited"
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRewound(AgentEvent):
    """The conversation was taken back to before the request `step`."""

    kind: ClassVar[str] = "agent_rewound"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFinished(AgentEvent):
    """A run ended, however it ended.

    Attributes:
        outcome: How.
        reason: Why, in words; empty when the model simply answered.
        steps: Requests of this run.
        calls: Calls of this run.
        usage: What the answers took, those of delegated runs included.
        duration_s: Seconds on the clock.
        working_s: Seconds without those in which a person was waited for.
        new: Everything that was said since the last answer.
    """

    kind: ClassVar[str] = "agent_finished"
    outcome: RunOutcome
    reason: str = ""
    steps: int
    calls: int
    usage: Usage
    duration_s: float
    working_s: float
    new: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStreamed(AgentEvent):
    """A piece of an answer as it comes; goes to whoever listens to the agent, and is not recorded.

    Attributes:
        event: The piece.
    """

    kind: ClassVar[str] = "model_streamed"
    event: ModelEvent
