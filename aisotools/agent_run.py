"""One run of an agent: what came of it, and the handle of one that goes on in the background."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from dataclasses import dataclass, field

from aisotools.agent_events import ModelStreamed, RunOutcome
from aisotools.messages import CallPart, Message, Usage
from aisotools.session_events import SessionEvent

Listener = Callable[[SessionEvent], None]
"""Hears what happens during a run: the session's events, and `ModelStreamed`."""

_MOST_PIECES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What came of a run.

    Attributes:
        text: The model's last words; with any outcome but `answered` they may be none.
        outcome: How it ended; see `agent_events.RunOutcome`.
        reason: Why, in words; empty when the model simply answered.
        steps: Answers asked of the model.
        calls: Calls of tools.
        usage: What the answers took.
        duration_s: Seconds on the clock.
        working_s: Seconds without those in which a person was waited for.
        messages: What was said in this run.
        options: With outcome `undecided`: what the model proposed.
    """

    text: str
    outcome: RunOutcome
    reason: str = ""
    steps: int = 0
    calls: int = 0
    usage: Usage = field(default_factory=lambda: Usage(requests=0))
    duration_s: float = 0.0
    working_s: float = 0.0
    messages: tuple[Message, ...] = ()
    options: tuple[CallPart, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the model said all it had to say."""
        return self.outcome == "answered"

    def __str__(self) -> str:
        if self.ok:
            return self.text
        told = f"[{self.outcome}: {self.reason}]" if self.reason else f"[{self.outcome}]"
        return f"{self.text}\n{told}" if self.text else told


class AgentRun:
    """A run that goes on in the background: await it for its `RunResult`, or look on.

    The run stops when it is cancelled, not when whoever awaits it is.

    Attributes:
        events: What happens, from the start, as an async iterator that ends with the run.
    """

    def __init__(
        self, task: asyncio.Task[RunResult], events: LiveEvents, cut: Callable[[], RunResult | None]
    ) -> None:
        """Stand for `task`; `cut` gives what came of it when it was cancelled, if it ever began."""
        self._task = task
        self._cut = cut
        self._result: asyncio.Future[RunResult] = task.get_loop().create_future()
        self.events = events
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[RunResult]) -> None:
        self.events.close()
        if task.cancelled():
            never = RunResult(text="", outcome="cancelled", reason="it was cancelled before it began")
            self._result.set_result(self._cut() or never)
        elif (error := task.exception()) is not None:
            self._result.set_exception(error)
        else:
            self._result.set_result(task.result())

    def __repr__(self) -> str:
        return f"<AgentRun {'done' if self.done else 'running'}>"

    def __await__(self) -> Generator[None, None, RunResult]:
        """The result; outcome `cancelled` after `cancel`.

        Raises:
            CancelledError: If the awaiting task is cancelled; the run goes on.
        """
        return asyncio.shield(self._result).__await__()

    @property
    def done(self) -> bool:
        """Whether it is over."""
        return self._result.done()

    @property
    def result(self) -> RunResult | None:
        """What came of it; None while it goes on."""
        return self._result.result() if self._result.done() else None

    def cancel(self) -> None:
        """Stop it, with the call that is under way; without effect on one that is over."""
        self._task.cancel()


class LiveEvents:
    """Events as they come; pieces of answers that nobody fetches are dropped in the end, others never are."""

    def __init__(self) -> None:
        """Start empty."""
        self._waiting: deque[SessionEvent] = deque()
        self._pieces = 0
        self._more = asyncio.Event()
        self._closed = False

    def __repr__(self) -> str:
        return f"<LiveEvents {len(self._waiting)} waiting, {'closed' if self._closed else 'open'}>"

    def add(self, event: SessionEvent) -> None:
        """Take one event."""
        if isinstance(event, ModelStreamed):
            if self._pieces >= _MOST_PIECES:
                return
            self._pieces += 1
        self._waiting.append(event)
        self._more.set()

    def close(self) -> None:
        """Nothing comes any more."""
        self._closed = True
        self._more.set()

    def __aiter__(self) -> AsyncIterator[SessionEvent]:
        return self

    async def __anext__(self) -> SessionEvent:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        event = self._waiting.popleft()
        if isinstance(event, ModelStreamed):
            self._pieces -= 1
        return event
