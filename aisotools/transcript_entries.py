"""What a session's events tell, in the order a reader wants it: prompts, answers, calls, ends. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from aisotools.agent_events import (
    AgentFinished,
    AgentRewound,
    AgentStarted,
    ConversationEdited,
    ModelAnswered,
    ModelRequested,
)
from aisotools.events import Approval, Decision, Effect, Json, RunsIn, ToolResult
from aisotools.messages import AssistantMessage, Usage, UserMessage
from aisotools.session_events import (
    ApprovalAnswered,
    CallDecided,
    CallFinished,
    CallRequested,
    CallStarted,
    SandboxLost,
    SessionEvent,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A run began."""

    agent_id: str
    model: str
    instructions: str = ""
    parent_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompted:
    """Somebody asked an agent something."""

    agent_id: str
    message: UserMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A model answered."""

    agent_id: str
    step: int
    message: AssistantMessage
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A call, from wish to result.

    Attributes:
        call_id: Names it in its session.
        name: The tool.
        asked: The arguments as they were asked for.
        arguments: What ran, or would have run: validated, and edited where the approver did.
        origin: Who made it.
        agent_id: The agent that made it; empty for a person or a program.
        inside: The call of a tool on the host that made this one; empty for one of its own.
        decision: What was decided; None for what was no call at all.
        decided_by: Who decided.
        effect: How severe it is.
        reasons: Why that was decided.
        approval: What whoever was asked said, if anybody was.
        runs_in: Where it ran; None when it did not.
        result: What came of it; None when that is not known.
        duration_s: From wish to result.
    """

    call_id: str
    name: str
    asked: Mapping[str, Json]
    arguments: Mapping[str, Json]
    origin: str = "program"
    agent_id: str = ""
    inside: str = ""
    decision: Decision | None = None
    decided_by: str = ""
    effect: Effect | None = None
    reasons: Sequence[str] = ()
    approval: Approval | None = None
    runs_in: RunsIn | None = None
    result: ToolResult | None = None
    duration_s: float = 0.0

    @property
    def ran(self) -> bool:
        """Whether anything was run."""
        return self.runs_in is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run ended."""

    agent_id: str
    outcome: str
    reason: str
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """Something else that a reader must know."""

    text: str


Entry = Started | Prompted | Answered | Called | Ended | Noted
"""One thing that happened."""


@dataclass(slots=True)
class _Fold:
    """The state of reading events one by one."""

    entries: list[Entry] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    on_host: list[str] = field(default_factory=list)
    prompts: dict[str, UserMessage] = field(default_factory=dict)

    def take(self, event: SessionEvent) -> None:
        match event:
            case AgentStarted():
                self.entries.append(
                    Started(
                        agent_id=event.agent_id,
                        model=event.model,
                        instructions=event.instructions,
                        parent_id=event.parent_id,
                    )
                )
            case ModelRequested():
                for message in event.new:
                    if isinstance(message, UserMessage) and self.prompts.get(event.turn_id) is not message:
                        self.prompts[event.turn_id] = message
                        self.entries.append(Prompted(agent_id=event.agent_id, message=message))
            case ModelAnswered():
                self.entries.append(
                    Answered(
                        agent_id=event.agent_id, step=event.step, message=event.message, usage=event.usage
                    )
                )
            case AgentFinished():
                self.entries.append(
                    Ended(
                        agent_id=event.agent_id,
                        outcome=event.outcome,
                        reason=event.reason,
                        usage=event.usage,
                    )
                )
            case AgentRewound():
                self.entries.append(Noted(text=f"The run was taken back to before step {event.step}."))
            case ConversationEdited():
                self.entries.append(Noted(text="What was said was edited by hand here."))
            case SandboxLost():
                self.entries.append(Noted(text=f"The sandbox was lost: {event.reason}."))
            case _:
                self._take_call(event)

    def _take_call(self, event: SessionEvent) -> None:
        if isinstance(event, CallRequested):
            call = event.call
            self.calls[event.call_id] = len(self.entries)
            self.entries.append(
                Called(
                    call_id=event.call_id,
                    name=call.name,
                    asked=call.arguments,
                    arguments=call.arguments,
                    origin=call.origin,
                    agent_id=call.agent_id,
                    inside=self.on_host[-1] if self.on_host else "",
                )
            )
            return
        place = self.calls.get(event.call_id)
        if place is None:
            return
        told = self.entries[place]
        assert isinstance(told, Called)
        match event:
            case CallDecided():
                told = replace(
                    told,
                    decision=event.decision,
                    decided_by=event.decided_by,
                    effect=event.effect,
                    reasons=event.reasons,
                    arguments=event.arguments,
                )
            case ApprovalAnswered():
                told = replace(told, approval=event.approval)
            case CallStarted():
                told = replace(told, runs_in=event.runs_in)
                if event.runs_in == "host":
                    self.on_host.append(event.call_id)
            case CallFinished():
                told = replace(told, result=event.result, duration_s=event.duration_s)
                if event.call_id in self.on_host:
                    self.on_host.remove(event.call_id)
        self.entries[place] = told


def entries_of(events: Iterable[SessionEvent]) -> list[Entry]:
    """The events of a session as a reader wants them; each call stands where it was asked for."""
    fold = _Fold()
    for event in tuple(events):
        fold.take(event)
    return fold.entries
