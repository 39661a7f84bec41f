"""Making the calls of a recorded run again, without its model, and telling what came out differently.

A record may come from anybody. What it says somebody approved is taken at its word only for what runs in a
sandbox; on the host nothing is approved because a file says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from pydantic_core import to_json

from aisotools.agent import Agent
from aisotools.events import Approval, ApprovalRequest, Json
from aisotools.models.replay import ReplayModel
from aisotools.sandbox.confine import at_least
from aisotools.session import Session
from aisotools.transcript_entries import Called, entries_of
from aisotools.transcript_record import Cleaner, RecordedCall, RecordedPrompt, Transcript, call_of

_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One call, recorded and made again.

    Attributes:
        number: Which call of the record, from 1.
        name: The tool.
        difference: What differs, in words; empty when nothing does.
    """

    number: int
    name: str
    difference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a replay.

    Attributes:
        calls: Every call of the record, and those that were made besides.
        ends: How runs ended that did not end with an answer, in words.
    """

    calls: Sequence[Comparison]
    ends: Sequence[str] = ()

    @property
    def same(self) -> bool:
        """Whether every call was made again, with the same result, and no other."""
        return not any(call.difference for call in self.calls)


class RecordedApprover:
    """Answers what is asked as the record does, for what runs in a sandbox; anything else it denies."""

    def __init__(self, transcript: Transcript) -> None:
        """Answer by `transcript`."""
        self._left = list(transcript.calls)

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Approve what ran when it was recorded."""
        wanted = request.call.name, _canonical(request.call.arguments)
        for recorded in self._left:
            if (recorded.name, _canonical(recorded.asked)) == wanted or (
                recorded.name,
                _canonical(recorded.arguments),
            ) == wanted:
                self._left.remove(recorded)
                break
        else:
            return Approval("deny", reason="The record has no such call.")
        if not recorded.ran:
            return Approval("deny", reason="It was not run when it was recorded.")
        if request.level == "host" or not at_least(request.level, "guarded"):
            return Approval("deny", reason="A replay approves only what runs in a sandbox.")
        edited = _canonical(recorded.arguments) != wanted[1]
        return Approval("approve", arguments=recorded.arguments if edited and recorded.approved else None)


async def replay(transcript: Transcript, session: Session) -> Replayed:
    """Make the calls of `transcript` again.

    Args:
        transcript: What was recorded.
        session: A fresh session whose workspace holds what the recorded one held, and whose approver answers
            for this run, such as a `RecordedApprover`.

    Returns:
        What differs, call by call.
    """
    model = ReplayModel(transcript.answers, strict=False)
    agents: dict[str, Agent] = {}
    before = len(session.events)
    ends: list[str] = []
    for step in transcript.steps:
        if isinstance(step, RecordedPrompt):
            agent = agents.get(step.agent_id)
            if agent is None:
                told = transcript.instructions.get(step.agent_id, "")
                agent = agents[step.agent_id] = Agent(model, session, told)
            result = await agent.run(step.message)
            if result.outcome != "answered":
                ends.append(f"{result.outcome}: {result.reason}".rstrip(": "))
        else:
            await session.call(step.name, step.asked)
    cleaner = Cleaner(session.registry, str(session.workspace or ""))
    made = [
        call_of(entry, cleaner) for entry in entries_of(session.events[before:]) if isinstance(entry, Called)
    ]
    return Replayed(calls=compare(transcript.calls, made), ends=tuple(ends))


def compare(recorded: Sequence[RecordedCall], made: Sequence[RecordedCall]) -> list[Comparison]:
    """What differs between two lists of calls, call by call."""
    compared = []
    for number in range(1, max(len(recorded), len(made)) + 1):
        was = recorded[number - 1] if number <= len(recorded) else None
        now = made[number - 1] if number <= len(made) else None
        name = was.name if was is not None else cast("RecordedCall", now).name
        compared.append(Comparison(number=number, name=name, difference=_difference(was, now)))
    return compared


def _difference(was: RecordedCall | None, now: RecordedCall | None) -> str:
    if now is None:
        return "it was not made again"
    if was is None:
        return "it was not recorded"
    if was.name != now.name:
        return f"{now.name} was called instead"
    if _canonical(was.arguments) != _canonical(now.arguments):
        return f"its arguments are {_brief(now.arguments)}, and {_brief(was.arguments)} were recorded"
    if was.ran != now.ran:
        happened = ("was not run", "ran")
        return f"it {happened[now.ran]}, and {happened[was.ran]} when recorded: {_short(now.content)}"
    if was.is_error != now.is_error:
        ended = ("succeeded", "failed")
        return f"it {ended[bool(now.is_error)]}, and {ended[bool(was.is_error)]} when recorded"
    if was.content != now.content and was.ran:
        return f"it gave {_short(now.content)}, and {_short(was.content)} when recorded"
    return ""


def _canonical(arguments: Mapping[str, Json]) -> bytes:
    ordered = {key: arguments[key] for key in sorted(arguments)}
    return to_json(ordered, inf_nan_mode="strings", serialize_unknown=True)


def _brief(arguments: Mapping[str, Json]) -> str:
    return _short(_canonical(arguments).decode())


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…")
