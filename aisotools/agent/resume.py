"""Going on after a kernel or program has ended: what the ledger of a session still tells.

    kept = resumed("my-analysis")                      # verified, then read; nothing is opened
    async with Session("work", session_key=kept.session_key) as session:
        for line in (*kept.said, *await kept.restore(session)):
            print(line)                                # what is not as it was
        agent = await kept.agent(model, session)       # goes on where the conversation stood
        await session.undo()                           # also undoes calls from before

The session of that key goes on with the same ledger, and a session on the same workspace with the same chain
of checkpoints: files can be undone as before. Messages, the to-do list, and approvals that were remembered
come back through `Resumed`. Variables, background tasks, pictures, secrets and most of what was very long do
not: they are not in the record, and that is said.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aisotools.agent.agent import Agent
from aisotools.core.events import (
    AgentEvent,
    AgentStarted,
    ApprovalAnswered,
    CallDecided,
    CallFinished,
    CallRequested,
    CallStarted,
    GrantRevoked,
    SandboxStarted,
    SessionEnded,
    SessionEvent,
    conversation_of,
)
from aisotools.core.exceptions import AisotoolsError, LedgerError, UsageError
from aisotools.core.messages import AssistantMessage, Message, Model, ToolMessage, message_to_json
from aisotools.core.redaction import REDACTED
from aisotools.core.types import Effect, Json, Remember, ToolCall
from aisotools.session.ledger import ledger_name, read, verify
from aisotools.session.ledger_reader import events_of_records
from aisotools.session.session import Session
from aisotools.workspace.lock import state_folder

_TODO = "todo"
_NOT_WHOLE = "are not in the record ...]"
_LOST = "{} was interrupted: the program that made the call has ended. What it did is not known."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGrant:
    """An approval that was to be remembered.

    Attributes:
        scope: How far it reaches.
        call: The call that was approved.
        effect: How severe that was.
    """

    scope: Remember
    call: ToolCall
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What the ledger of a session tells.

    Attributes:
        path: The ledger.
        session_key: Give it to `Session` to go on with the same ledger.
        events: Everything that was recorded, as far as it was.
        conversations: What each agent and its model said, by the agent's id, in the order they began; whole,
            so that a model can go on from there.
        instructions: What each agent was told before everything else.
        todo: Each agent's list of what is to be done, as the tool `todo` takes it; under the empty id that of
            the person and the programs.
        grants: Approvals that reach beyond one call and were not taken back; closing a session ends them.
        said: What is not as it was, in words.
    """

    path: Path
    session_key: str
    events: Sequence[SessionEvent]
    conversations: Mapping[str, tuple[Message, ...]]
    instructions: Mapping[str, str]
    todo: Mapping[str, Sequence[Mapping[str, Json]]]
    grants: Sequence[RecordedGrant]
    said: tuple[str, ...]

    async def restore(self, session: Session) -> tuple[str, ...]:
        """Give a session the approvals and the list of the person; opens it if need be.

        What each approval reaches is worked out again, from the tool and the rules as they are now. The list
        goes through the gate, as any call.

        Returns:
            What was not restored, in words.
        """
        await session.start()
        told = []
        for grant in self.grants:
            # Whoever hands over a ledger could hand over its key as well; one's own lies where it is kept.
            why = _granted(grant, session) if session.log_path == self.path else "the ledger is another one"
            if why:
                told.append(f"The approval of {grant.call.name} ({grant.scope}) is not restored: {why}.")
        told += await self._listed(session, "", "")
        return tuple(told)

    async def agent(
        self, model: Model | str, session: Session, agent_id: str | None = None, **options: Any
    ) -> Agent:
        """A new agent that goes on with the conversation of an earlier one, and with its list.

        Args:
            model: Who answers.
            session: Makes the calls.
            agent_id: Which conversation; without it the last that nobody delegated.
            **options: Those of `Agent`; without `instructions` those of the earlier one.

        Raises:
            UsageError: If there is no such conversation.
        """
        chosen = agent_id if agent_id is not None else self._last()
        if chosen not in self.conversations:
            known = ", ".join(self.conversations) or "none"
            raise UsageError(f"There is no conversation of agent {chosen!r}. Recorded: {known}.")
        given = {"instructions": self.instructions.get(chosen, ""), **options}
        agent = Agent(model, session, **given)
        await session.start()  # what is said before it is open would not be recorded
        agent.messages = self.conversations[chosen]
        await self._listed(session, chosen, agent.agent_id)
        return agent

    def _last(self) -> str:
        children = {e.agent_id for e in self.events if isinstance(e, AgentStarted) and e.parent_id}
        return next((one for one in reversed(tuple(self.conversations)) if one not in children), "")

    async def _listed(self, session: Session, old: str, new: str) -> list[str]:
        items = self.todo.get(old)
        if not items:
            return []
        if _TODO not in session.registry:
            return ["The list of what is to be done is not restored: there is no tool todo."]
        call = ToolCall(uuid.uuid4().hex, _TODO, {"items": list(items)}, origin="program", agent_id=new)
        (result,) = await session.call_many([call])
        told = f"The list of what is to be done is not restored: {result.content}"
        return [told] if result.is_error else []


def resumed(path_or_key: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Resumed:
    """Read the ledger of a session that has ended, however it ended. It is verified first, line by line.

    Args:
        path_or_key: The session's key, or its ledger, which ends with `.jsonl`.
        environ: Where settings are looked up; the process's environment without it.

    Raises:
        LedgerError: If there is none, or it is damaged or torn; the message says what is wrong.
    """
    path = _path_of(path_or_key, os.environ if environ is None else environ)
    found = verify(path)
    if found.problems:
        raise LedgerError(f"{path} is not resumed, it is damaged: {'; '.join(found.problems)}.")
    if found.torn_bytes:
        raise LedgerError(
            f"{path} is not resumed, its last line is unfinished ({found.torn_bytes} bytes), as a crash "
            f"leaves it. Open and close Session(session_key={path.stem!r}) once: that cuts the line off and "
            "records it."
        )
    events = events_of_records(read(path))
    started = [event for event in events if isinstance(event, AgentStarted)]
    agents = dict.fromkeys(event.agent_id for event in events if isinstance(event, AgentEvent))
    finished = {event.call_id: event for event in events if isinstance(event, CallFinished)}
    conversations = {one: _completed(conversation_of(events, one), finished) for one in agents}
    grants = _grants(events)
    todo = _todo(events, finished)
    return Resumed(
        path=path,
        session_key=path.stem,
        events=tuple(events),
        conversations={one: messages for one, messages in conversations.items() if messages},
        instructions={event.agent_id: event.instructions for event in started},
        todo=todo,
        grants=grants,
        said=tuple(_said(events, finished, conversations)),
    )


def _path_of(path_or_key: str | os.PathLike[str], environ: Mapping[str, str]) -> Path:
    given = os.fspath(path_or_key)
    if given.endswith(".jsonl"):
        return Path(given).expanduser()
    folder = state_folder(environ) / "ledger"
    path = folder / f"{ledger_name(given)}.jsonl"
    if not path.exists():
        raise LedgerError(f"There is no ledger of a session {given!r} in {folder}. See `aisotools log show`.")
    return path


def _completed(messages: Sequence[Message], finished: Mapping[str, CallFinished]) -> tuple[Message, ...]:
    """The conversation with a result for every call: of what was under way when all ended, what is known."""
    known = {message.call_id for message in messages if isinstance(message, ToolMessage)}
    whole: list[Message] = []
    for number, message in enumerate(messages):
        whole.append(message)
        if not isinstance(message, AssistantMessage):
            continue
        if any(isinstance(later, AssistantMessage) for later in messages[number + 1 :]):
            continue
        for call in message.calls:
            if call.id not in known:
                event = finished.get(call.id)
                told = _LOST.format(call.name) if event is None else event.result.content
                failed = event is None or event.result.is_error
                whole.append(ToolMessage(call.id, call.name, told, is_error=failed))
    return tuple(whole)


def _grants(events: Iterable[SessionEvent]) -> tuple[RecordedGrant, ...]:
    """The approvals that still hold: they end with the session, and when they are taken back."""
    calls: dict[str, ToolCall] = {}
    pending: dict[str, Remember] = {}
    grants: list[RecordedGrant] = []
    for event in events:
        match event:
            case CallRequested(call=call):
                calls[event.call_id] = call
            case ApprovalAnswered(approval=approval) if approval.outcome == "approve" and approval.remember:
                pending[event.call_id] = approval.remember
            case CallDecided() if event.call_id in pending and event.call_id in calls:
                scope = pending.pop(event.call_id)
                if str(event.decision) == "allow":
                    grants.append(RecordedGrant(scope=scope, call=calls[event.call_id], effect=event.effect))
            case GrantRevoked():  # of those alike all go, since nothing tells them apart
                grants = [
                    one for one in grants if (str(one.scope), one.call.name) != (event.scope, event.tool)
                ]
            case SessionEnded():
                grants.clear()
    return tuple(grants)


def _granted(grant: RecordedGrant, session: Session) -> str:
    """Restore an approval; why not, if it cannot be."""
    if not _is_whole(grant.call.arguments):
        return "its arguments are not whole in the record"
    try:
        ticket = session.explain(grant.call)
    except AisotoolsError as error:
        return str(error).rstrip(".")
    if ticket.effect > grant.effect:
        return f"the call counts as {ticket.effect} now, and as {grant.effect} when it was approved"
    if session.grants.add(grant.scope, ticket) is None:
        return "there is nothing of that scope to remember any more"
    return ""


def _is_whole(value: object) -> bool:
    text = repr(value)
    return REDACTED not in text and _NOT_WHOLE not in text


def _todo(
    events: Iterable[SessionEvent], finished: Mapping[str, CallFinished]
) -> dict[str, Sequence[Mapping[str, Json]]]:
    lists: dict[str, Sequence[Mapping[str, Json]]] = {}
    for event in events:
        if not isinstance(event, CallRequested) or event.call.name != _TODO:
            continue
        end, items = finished.get(event.call_id), event.call.arguments.get("items")
        if end is not None and not end.result.is_error and isinstance(items, list):
            lists[event.call.agent_id] = [item for item in items if isinstance(item, Mapping)]
    return lists


def _said(
    events: Sequence[SessionEvent],
    finished: Mapping[str, CallFinished],
    conversations: Mapping[str, Sequence[Message]],
) -> Iterable[str]:
    started = {event.call_id for event in events if isinstance(event, CallStarted)}
    calls = [event.call for event in events if isinstance(event, CallRequested)]
    if any(isinstance(event, SandboxStarted) for event in events):
        yield "The variables of the sandbox are gone; files of the workspace are as they were left."
    for call in calls:
        if call.id in started and call.id not in finished:
            told = "was under way when all ended. What it did is not known; undo covers its files"
            yield f"{call.name} ({call.id}) {told}."
    tasks = [call for call in calls if call.arguments.get("background") is True and call.id in started]
    if tasks:
        yield f"Commands in the background have ended with their worker: {len(tasks)} had been started."
    texts = repr([message_to_json(one) for messages in conversations.values() for one in messages])
    if REDACTED in texts:
        yield "Secrets were not recorded: the conversations have [redacted] in their place."
    if _NOT_WHOLE in texts:
        yield "Of very long texts the conversations have only the beginning."
    if any(event.result.metadata.get("data_chars") for event in finished.values()):
        yield "Pictures and other displays of results were not recorded."
    ended = [event for event in events if isinstance(event, SessionEnded)]
    if ended:
        yield "The session was closed: approvals that were remembered until then have ended."
