"""Resume a conversation from the ledger of a session whose kernel or program has ended.

    past = resumed("my-analysis")                      # verify, then read; nothing is opened
    async with Session("work", session_key=past.session_key) as session:
        for line in (*past.missing, *await past.restore(session)):
            print(line)                                # what could not be restored
        agent = await past.agent(model, session)       # continues the conversation
        await session.undo()                           # also undoes calls from before

A session with the same key continues the same ledger, and a session on the same workspace the same timeline
of checkpoints, so files can be undone as before. `Resumed` brings back messages, the to-do list and
remembered approvals. Variables, background tasks, pictures, secrets and most of very long texts are not in
the ledger; `Resumed.missing` lists what.
"""

from __future__ import annotations

import dataclasses
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
from aisotools.core.exceptions import AisotoolsError, LedgerError, UsageError, as_clause
from aisotools.core.messages import AssistantMessage, Message, Model, ToolMessage, message_to_json
from aisotools.core.redaction import has_marks
from aisotools.core.types import Effect, Json, Remember, ToolCall
from aisotools.policy.prepared import bound_sources
from aisotools.session.ledger import ledger_name, read, verify
from aisotools.session.ledger_reader import events_of_records
from aisotools.session.session import Session
from aisotools.workspace.lock import state_folder
from aisotools.workspace.stamps import ABSENT

_TODO_TOOL = "todo"
_CUT_MARK = "are not in the record ...]"  # how the ledger ends a text that it holds only in part
_INTERRUPTED = "{} was interrupted: the program that made the call has ended. What it did is not known."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGrant:
    """A remembered approval.

    Attributes:
        scope: Which further calls it covers.
        call: The call that was approved.
        effect: The effect of that call.
        digest: Of that call, with the content of the scripts that it ran.
    """

    scope: Remember
    call: ToolCall
    effect: Effect
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A session as its ledger describes it.

    Attributes:
        path: The ledger.
        session_key: Pass it to `Session` to continue the same ledger.
        events: All recorded events.
        conversations: The messages of each agent, by its id, in the order in which the agents started. Every
            call has a result, so that a model can continue.
        instructions: The system prompt of each agent.
        todo: The to-do list of each agent, as the tool `todo` takes it; that of the person and of programs
            has an empty id.
        grants: Approvals for more than one call that were not revoked; closing a session ends them.
        missing: What could not be brought back, in words.
    """

    path: Path
    session_key: str
    events: Sequence[SessionEvent]
    conversations: Mapping[str, tuple[Message, ...]]
    instructions: Mapping[str, str]
    todo: Mapping[str, Sequence[Mapping[str, Json]]]
    grants: Sequence[RecordedGrant]
    missing: tuple[str, ...]

    async def restore(self, session: Session) -> tuple[str, ...]:
        """Restore the approvals and the person's to-do list in `session`; start it if necessary.

        What an approval covers is computed anew from the tool and the rules as they are now. The list is set
        by a call through the gate.

        Returns:
            What was not restored, and why, in words.
        """
        await session.start()
        problems = []
        for grant in self.grants:
            # A stranger who hands over a ledger could hand over its key as well. Only this user's own ledger,
            # in its usual place, can grant anything.
            if session.log_path == self.path:
                problem = _restore_grant(grant, session)
            else:
                problem = "the ledger is another one"
            if problem:
                approval = f"The approval of {grant.call.name} ({grant.scope})"
                problems.append(f"{approval} is not restored: {problem}.")
        problems += await self._restore_todo(session, "", "")
        return tuple(problems)

    async def agent(
        self, model: Model | str, session: Session, agent_id: str | None = None, **options: Any
    ) -> Agent:
        """Return a new agent that continues the conversation of an earlier one, with its to-do list.

        Args:
            model: The model.
            session: The session that makes the calls.
            agent_id: Id of the earlier agent; by default the last one that no other agent delegated to.
            **options: Options of `Agent`; `instructions` are those of the earlier agent by default.

        Raises:
            UsageError: If there is no such conversation.
        """
        chosen = agent_id if agent_id is not None else self._last_top_level()
        if chosen not in self.conversations:
            known = ", ".join(self.conversations) or "none"
            raise UsageError(f"There is no conversation of agent {chosen!r}. Recorded: {known}.")
        agent = Agent(model, session, **{"instructions": self.instructions.get(chosen, ""), **options})
        # The ledger opens with the session; the conversation would not be written to it before.
        await session.start()
        agent.messages = self.conversations[chosen]
        await self._restore_todo(session, chosen, agent.agent_id)
        return agent

    def _last_top_level(self) -> str:
        children = {e.agent_id for e in self.events if isinstance(e, AgentStarted) and e.parent_id}
        return next((one for one in reversed(tuple(self.conversations)) if one not in children), "")

    async def _restore_todo(self, session: Session, old_id: str, new_id: str) -> list[str]:
        items = self.todo.get(old_id)
        if not items:
            return []
        if _TODO_TOOL not in session.registry:
            return ["The to-do list is not restored: there is no tool todo."]
        call_id, arguments = uuid.uuid4().hex, {"items": list(items)}
        call = ToolCall(call_id, _TODO_TOOL, arguments, origin="program", agent_id=new_id)
        (result,) = await session.call_many([call])
        if result.is_error:
            return [f"The to-do list is not restored: {result.content}"]
        return []


def resumed(path_or_key: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Resumed:
    """Verify and read the ledger of a session that has ended, normally or not.

    Args:
        path_or_key: The session's key, or the path of its ledger, which ends with `.jsonl`.
        environ: The environment in which to look up settings; that of the process by default.

    Raises:
        LedgerError: If there is no such ledger, or it is damaged, or its last line is incomplete.
    """
    path = _path_of(path_or_key, os.environ if environ is None else environ)
    verification = verify(path)
    if verification.problems:
        raise LedgerError(
            f"{path} is not resumed, it is damaged: {as_clause('; '.join(verification.problems))}."
        )
    if verification.torn_bytes:
        raise LedgerError(
            f"{path} is not resumed, its last line is unfinished ({verification.torn_bytes} bytes), as a "
            f"crash leaves it. Open and close Session(session_key={path.stem!r}) once: that cuts the line "
            "off and records it."
        )
    events = events_of_records(read(path))
    started = [event for event in events if isinstance(event, AgentStarted)]
    agents = dict.fromkeys(event.agent_id for event in events if isinstance(event, AgentEvent))
    finished = {event.call_id: event for event in events if isinstance(event, CallFinished)}
    conversations = {
        agent_id: _with_every_call_answered(conversation_of(events, agent_id), finished)
        for agent_id in agents
    }
    return Resumed(
        path=path,
        session_key=path.stem,
        events=tuple(events),
        conversations={agent_id: messages for agent_id, messages in conversations.items() if messages},
        instructions={event.agent_id: event.instructions for event in started},
        todo=_todo_lists(events, finished),
        grants=_grants(events),
        missing=tuple(_missing(events, finished, conversations)),
    )


def _path_of(path_or_key: str | os.PathLike[str], environ: Mapping[str, str]) -> Path:
    text = os.fspath(path_or_key)
    if text.endswith(".jsonl"):
        return Path(text).expanduser()
    folder = state_folder(environ) / "ledger"
    path = folder / f"{ledger_name(text)}.jsonl"
    if not path.exists():
        raise LedgerError(f"There is no ledger of a session {text!r} in {folder}. See `aisotools log show`.")
    return path


def _with_every_call_answered(
    messages: Sequence[Message], finished: Mapping[str, CallFinished]
) -> tuple[Message, ...]:
    """Return the conversation with a result for every call.

    A crash can come between an answer and the results of its calls: only the last answer can have open calls.
    """
    answered = {message.call_id for message in messages if isinstance(message, ToolMessage)}
    complete: list[Message] = []
    for number, message in enumerate(messages):
        complete.append(message)
        if not isinstance(message, AssistantMessage):
            continue
        if any(isinstance(later, AssistantMessage) for later in messages[number + 1 :]):
            continue
        for call in message.calls:
            if call.id not in answered:
                event = finished.get(call.id)
                content = _INTERRUPTED.format(call.name) if event is None else event.result.content
                failed = event is None or event.result.is_error
                complete.append(ToolMessage(call.id, call.name, content, is_error=failed))
    return tuple(complete)


def _grants(events: Iterable[SessionEvent]) -> tuple[RecordedGrant, ...]:
    """Return the remembered approvals that were neither revoked nor ended by closing the session."""
    calls: dict[str, ToolCall] = {}
    pending: dict[str, Remember] = {}
    grants: list[RecordedGrant] = []
    for event in events:
        match event:
            case CallRequested(call=call):
                calls[event.call_id] = call
            case ApprovalAnswered(approval=approval) if approval.outcome == "approve" and approval.remember:
                if approval.remember != "protected":  # a choice for the workspace that is made anew each time
                    pending[event.call_id] = approval.remember
            case CallDecided() if event.call_id in pending and event.call_id in calls:
                scope = pending.pop(event.call_id)
                if str(event.decision) == "allow":
                    call = calls[event.call_id]
                    grants.append(
                        RecordedGrant(scope=scope, call=call, effect=event.effect, digest=event.digest)
                    )
            case GrantRevoked():
                # The event names scope and tool only. Of several such grants all are dropped: too few, not
                # too many.
                revoked = (event.scope, event.tool)
                grants = [grant for grant in grants if (str(grant.scope), grant.call.name) != revoked]
            case SessionEnded():
                grants.clear()
    return tuple(grants)


def _restore_grant(grant: RecordedGrant, session: Session) -> str:
    """Restore an approval. Return why it cannot be restored; empty if it was."""
    if not _is_complete(grant.call.arguments):
        return "its arguments are not complete in the record"
    try:
        prepared = session.explain(grant.call)
    except AisotoolsError as error:
        return str(error).rstrip(".")
    if prepared.effect > grant.effect:
        return f"the call counts as {prepared.effect} now, and as {grant.effect} when it was approved"
    depends = prepared.facts.scripts or prepared.facts.code or bound_sources(prepared.facts)
    if depends and prepared.digest != grant.digest:
        return "what it may run or reads is not as it was when the call was approved"
    if grant.scope == "shape":
        # What the call replaced when it was approved is not recorded: the grant covers no loss.
        facts = prepared.facts
        without_losses = dataclasses.replace(facts, losses=tuple((path, ABSENT) for path, _ in facts.losses))
        prepared = dataclasses.replace(prepared, facts=without_losses)
    if session.grants.add(grant.scope, prepared) is None:
        return "there is nothing of that scope to remember any more"
    return ""


def _is_complete(value: object) -> bool:
    text = repr(value)
    return not has_marks(text) and _CUT_MARK not in text


def _todo_lists(
    events: Iterable[SessionEvent], finished: Mapping[str, CallFinished]
) -> dict[str, Sequence[Mapping[str, Json]]]:
    lists: dict[str, Sequence[Mapping[str, Json]]] = {}
    for event in events:
        if not isinstance(event, CallRequested) or event.call.name != _TODO_TOOL:
            continue
        end, items = finished.get(event.call_id), event.call.arguments.get("items")
        if end is not None and not end.result.is_error and isinstance(items, list):
            lists[event.call.agent_id] = [item for item in items if isinstance(item, Mapping)]
    return lists


def _missing(
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
            note = "What it did is not known; undo covers its files."
            yield f"{call.name} ({call.id}) was running when the program or its event loop ended. {note}"
    tasks = [call for call in calls if call.arguments.get("background") is True and call.id in started]
    if tasks:
        yield f"Commands in the background have ended with their worker: {len(tasks)} had been started."
    texts = repr([message_to_json(m) for messages in conversations.values() for m in messages])
    if has_marks(texts):
        yield "Secrets were not recorded: the conversations have [redacted] in their place."
    if _CUT_MARK in texts:
        yield "Of very long texts the conversations have only the beginning."
    if any(event.result.metadata.get("data_chars") for event in finished.values()):
        yield "Pictures and other displays of results were not recorded."
    ended = [event for event in events if isinstance(event, SessionEnded)]
    if ended:
        yield "The session was closed: approvals that were remembered until then have ended."
