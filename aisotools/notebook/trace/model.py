"""A run as it is seen: a fold over the events of a session or an agent. No page is needed to read it.

Each event changes the state and gives operations for a page that follows live. Everything in both is text of
strangers made visible, cut to size, with secrets left out.

What a trace holds: the things that happened, what they took together, and how a page is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Literal

from aisotools.core.events import (
    AgentFinished,
    AgentStarted,
    ApprovalAnswered,
    ApprovalAsked,
    CallDecided,
    CallEmitted,
    CallFinished,
    CallOutput,
    CallRequested,
    CallStarted,
    ContextTrimmed,
    ModelAnswered,
    ModelRequested,
    ModelRetried,
    ModelStreamed,
    SandboxLost,
    SandboxStarted,
    SessionEvent,
)
from aisotools.core.messages import CallPart, TextDelta, TextPart, UserMessage
from aisotools.core.redaction import redact_arguments, redact_text
from aisotools.core.types import Decision, Json, ToolResult
from aisotools.notebook.render.text import (
    KEEP,
    Bar,
    TerminalScreen,
    bar_in,
    one_line,
    readable,
    seconds,
    shorten,
)
from aisotools.policy.prompts import visible

State = Literal["running", "asking", "ok", "error", "denied", "note"]
"""How far an item has come."""

Op = dict[str, Json]
"""One change of what a page shows: `op` is `item`, `state`, `text`, `lines`, `now` or `total`."""


@dataclass(slots=True)
class TraceItem:
    """One thing that happened: an answer of a model, a call, or a remark.

    Attributes:
        key: Names it within the trace.
        kind: `model`, `call` or `note`.
        title: What it is, in a line.
        state: How far it has come.
        began_s: When it began, in seconds since the epoch.
        words: What became of it, in a few words.
        arguments: Of a call.
        text: What a model said, or a call answered.
        screen: What a call printed.
        bar: The progress bar that stands last.
        decision: Who decided about a call and why.
    """

    key: str
    kind: Literal["model", "call", "note"]
    title: str
    state: State
    began_s: float
    words: str = ""
    arguments: str = ""
    text: str = ""
    decision: str = ""
    screen: TerminalScreen = field(default_factory=TerminalScreen)
    bar: Bar | None = None


@dataclass(slots=True)
class Totals:
    """What a run took so far.

    Attributes:
        steps: Requests to a model.
        calls: Calls that were made.
        input_tokens: Tokens that models read.
        output_tokens: Tokens that models wrote.
        outcome: How the run ended, in words; empty while it goes on.
    """

    steps: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    outcome: str = ""
    first_s: float = 0.0
    last_s: float = 0.0

    def words(self) -> str:
        """All of it in a line."""
        parts = [_count(self.steps, "step"), _count(self.calls, "call")]
        if self.input_tokens or self.output_tokens:
            parts.append(f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out")
        parts.append(seconds(self.last_s - self.first_s))
        return " \N{MIDDLE DOT} ".join(filter(None, parts))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


MAX_TEXT_CHARS = 6_000
"""Longest text of a model, arguments or result that is kept of one item."""


class Trace:
    """The state of one run.

    Attributes:
        title: What the run is.
        items: What happened, in order.
        totals: What it took.
    """

    def __init__(
        self, title: str = "run", secrets_of: Callable[[str], frozenset[str]] = lambda _tool: frozenset()
    ) -> None:
        """Start empty.

        Args:
            title: What the run is.
            secrets_of: Tells which arguments of a tool are never shown.
        """
        self.title = one_line(title, 200)
        self.items: list[TraceItem] = []
        self.totals = Totals()
        self._by_key: dict[str, TraceItem] = {}
        self._secrets_of = secrets_of
        self._asked: dict[str, str] = {}
        self._agent = ""

    def hear(self, event: SessionEvent) -> list[Op]:
        """Take in one event; what changes on a page that shows this trace."""
        self.totals.first_s = self.totals.first_s or event.time_s
        self.totals.last_s = max(self.totals.last_s, event.time_s)
        ops: list[Op] = self._heard(event)
        return [*ops, {"op": "total", "words": self.totals.words()}] if ops else ops

    def snapshot(self) -> list[Op]:
        """What makes an empty page show all of it."""
        ops: list[Op] = []
        for item in self.items:
            ops.append(self._op_item(item))
            ops += (
                [{"op": "lines", "key": item.key, "lines": item.screen.finished()}]
                if item.screen.count
                else []
            )
            ops += self._now(item) if item.screen.current or item.bar else []
        return [*ops, {"op": "total", "words": self.totals.words()}]

    # ---- one method for each kind of event

    @singledispatchmethod
    def _heard(self, event: SessionEvent) -> list[Op]:  # noqa: ARG002 - what is not known is not shown
        return []

    @_heard.register
    def _(self, event: AgentStarted) -> list[Op]:
        self._agent = self._agent or event.agent_id
        who = f"agent {one_line(event.agent_id, 40)} started" + (
            f" by {one_line(event.parent_id, 40)}" if event.parent_id else ""
        )
        return self._note(event, f"{who}, model {one_line(event.model, 80)}")

    @_heard.register
    def _(self, event: ModelRequested) -> list[Op]:
        self.totals.steps += 1
        ops: list[Op] = []
        for message in event.new:
            if isinstance(message, UserMessage):
                ops += self._note(event, "prompt", text=message.text)
        who = f"agent {one_line(event.agent_id, 40)}, " if event.agent_id != self._agent else ""
        return ops + self._add(_model_key(event), "model", f"{who}step {event.step}", "running", event)

    @_heard.register
    def _(self, event: ModelStreamed) -> list[Op]:
        item = next((i for i in reversed(self.items) if i.kind == "model" and i.state == "running"), None)
        if item is None or not isinstance(event.event, TextDelta):
            return []
        piece = visible(readable(event.event.text), KEEP)
        item.text = shorten(item.text + piece, MAX_TEXT_CHARS)
        return [{"op": "text", "key": item.key, "add": piece}]

    @_heard.register
    def _(self, event: ModelRetried) -> list[Op]:
        return self._note(event, f"tried again in {seconds(event.wait_s)}: {one_line(event.reason, 300)}")

    @_heard.register
    def _(self, event: ModelAnswered) -> list[Op]:
        self.totals.input_tokens += event.usage.input_tokens
        self.totals.output_tokens += event.usage.output_tokens
        item = self._by_key.get(_model_key(event))
        if item is None:
            return []
        said = "".join(part.text for part in event.message.parts if isinstance(part, TextPart))
        wanted = [part.name for part in event.message.parts if isinstance(part, CallPart)]
        item.text = _clean(said)
        calls = f"calls {', '.join(one_line(name, 40) for name in wanted)}" if wanted else ""
        tokens = event.usage.input_tokens + event.usage.output_tokens
        item.words = _words(calls, f"{tokens:,} tokens" if tokens else "", seconds(event.duration_s))
        return self._state(item, "ok")

    @_heard.register
    def _(self, event: ContextTrimmed) -> list[Op]:
        return self._note(event, f"{event.chars:,} characters of old results were taken out of the context")

    @_heard.register
    def _(self, event: AgentFinished) -> list[Op]:
        self.totals.outcome = one_line(f"{event.outcome} {event.reason}".strip(), 300)
        for item in self.items:
            if item.state == "running" and item.kind == "model":
                item.state, item.words = "error", "no answer"
        return self._note(event, f"ended: {self.totals.outcome}")

    @_heard.register
    def _(self, event: SandboxStarted) -> list[Op]:
        why = f" ({one_line(event.reason, 200)})" if event.reason else ""
        return self._note(event, f"sandbox started, level {one_line(event.level, 20)}{why}")

    @_heard.register
    def _(self, event: SandboxLost) -> list[Op]:
        return self._note(event, f"sandbox lost: {one_line(event.reason, 300)}", state="error")

    @_heard.register
    def _(self, event: CallRequested) -> list[Op]:
        self.totals.calls += 1
        call = event.call
        title = one_line(call.name) + ("" if call.origin == "model" else f" (by a {call.origin})")
        return self._add(
            event.call_id, "call", title, "running", event, arguments=self._told(call.name, call.arguments)
        )

    @_heard.register
    def _(self, event: ApprovalAsked) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        item.words = "a person is asked"
        return self._state(item, "asking")

    @_heard.register
    def _(self, event: ApprovalAnswered) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        reason = one_line(redact_text(event.approval.reason), 300)
        said = {"approve": "approved", "deny": "denied"}.get(event.approval.outcome, event.approval.outcome)
        item.decision = said + (f": {reason}" if reason else "")
        item.words = item.decision
        return self._state(item, "running")

    @_heard.register
    def _(self, event: CallDecided) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        item.arguments = self._told(item.title.partition(" ")[0], event.arguments)
        why = one_line("; ".join(event.reasons), 300)
        verdict = "allowed" if event.decision is Decision.ALLOW else "denied"
        by = f"{verdict} by {one_line(event.decided_by, 20)}" + (f": {why}" if why else "")
        item.decision = f"{item.decision}; {by}" if item.decision else by
        item.words = by
        return [self._op_item(item)]

    @_heard.register
    def _(self, event: CallStarted) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        item.words = f"runs {'on the HOST' if event.runs_in == 'host' else 'in the sandbox'}"
        return self._state(item, "running")

    @_heard.register
    def _(self, event: CallOutput) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        lines = item.screen.feed(event.text)
        item.bar = bar_in(item.screen.current)
        ops: list[Op] = [{"op": "lines", "key": item.key, "lines": lines}] if lines else []
        return ops + self._now(item)

    @_heard.register
    def _(self, event: CallEmitted) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        if event.name == "progress" and bar_in(item.screen.current) is not None:
            return []  # the same as is drawn, in fewer words
        item.bar = _reported(event.name, event.payload)
        if item.bar is None:
            item.words = one_line(f"{event.name} {json.dumps(event.payload, ensure_ascii=False)}", 200)
            return self._state(item, item.state)
        return self._now(item)

    @_heard.register
    def _(self, event: CallFinished) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        result = event.result
        item.text = "" if item.screen.count or item.screen.current else _clean(result.content)
        if result.is_error:
            item.text = _clean(result.content)
        item.bar = None
        item.words = _words(outcome_text(result), seconds(event.duration_s))
        denied = result.is_error and result.error_kind == "denied"
        ops = self._state(item, "denied" if denied else "error" if result.is_error else "ok")
        return [*self._now(item), *ops]

    # ---- what they share

    def _told(self, name: str, arguments: Mapping[str, Json]) -> str:
        shown = redact_arguments(arguments, self._secrets_of(name))
        if len(shown) == 1 and all(isinstance(value, str) for value in shown.values()):
            return _clean(next(iter(shown.values())).strip("\n"))
        return _clean(json.dumps(shown, ensure_ascii=False, indent=1, default=repr))

    def _note(self, event: SessionEvent, title: str, *, text: str = "", state: State = "note") -> list[Op]:
        return self._add(f"note {len(self.items)}", "note", title, state, event, text=_clean(text))

    def _add(
        self,
        key: str,
        kind: Literal["model", "call", "note"],
        title: str,
        state: State,
        event: SessionEvent,
        **more: str,
    ) -> list[Op]:
        item = TraceItem(key=key, kind=kind, title=title, state=state, began_s=event.time_s, **more)  # type: ignore[arg-type]  # only texts
        self.items.append(item)
        self._by_key[key] = item
        return [self._op_item(item)]

    def _state(self, item: TraceItem, state: State) -> list[Op]:
        item.state = state
        return [self._op_item(item)]

    @staticmethod
    def _op_item(item: TraceItem) -> Op:
        return {
            "op": "item",
            "key": item.key,
            "kind": item.kind,
            "state": item.state,
            "title": item.title,
            "words": item.words,
            "arguments": item.arguments,
            "text": item.text,
        }

    @staticmethod
    def _now(item: TraceItem) -> list[Op]:
        bar = item.bar
        told = None if bar is None else {"percent": bar.percent, "label": bar.label, "rest": bar.rest}
        return [{"op": "now", "key": item.key, "text": item.screen.current, "bar": told}]


def outcome_text(result: ToolResult) -> str:
    """How a call ended, in a word or two."""
    value = result.value if isinstance(result.value, Mapping) else {}
    code = value.get("exitCode", result.metadata.get("exitCode"))
    told = f"exit code {code}" if isinstance(code, int) and not isinstance(code, bool) and code else ""
    if not result.is_error:
        return told
    return told or {"denied": "denied", "invalid": "wrong call"}.get(result.error_kind or "", "failed")


def _model_key(event: ModelRequested | ModelAnswered) -> str:
    return f"model {event.agent_id} {event.turn_id}"


def _clean(text: str) -> str:
    return readable(shorten(redact_text(shorten(text, 4 * MAX_TEXT_CHARS)), MAX_TEXT_CHARS))


def _words(*parts: str) -> str:
    return " \N{MIDDLE DOT} ".join(filter(None, parts))


def _reported(name: str, payload: Mapping[str, Json]) -> Bar | None:
    """The progress that a tool reports as `fraction`, `percent`, or `done` of `total`."""

    def number(key: str) -> float | None:
        value = payload.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    done, total = number("done"), number("total")
    percent = number("percent")
    if (fraction := number("fraction")) is not None:
        percent = 100 * fraction
    elif done is not None and total:
        percent = 100 * done / total
    if percent is None or not 0 <= percent <= 100:
        return None
    rest = f"{done:g}/{total:g}" if done is not None and total else ""
    return Bar(percent, one_line(name, 60), rest)
