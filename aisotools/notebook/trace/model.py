"""The trace of a run: a fold over the events of a session or an agent. Pure; no page is needed to read it.

Each event changes the state and returns operations for a page that follows live. All text in both is
untrusted text made visible, cut to size, with secrets left out.
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
    CallTried,
    ContextTrimmed,
    HistoryRecovered,
    ModelAnswered,
    ModelRequested,
    ModelRetried,
    ModelStreamed,
    ProtectedFilesRestored,
    SandboxLost,
    SandboxStarted,
    SessionEvent,
)
from aisotools.core.messages import CallPart, TextDelta, TextPart, UserMessage
from aisotools.core.redaction import LineRedactor, redact_arguments, redact_text
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

ItemState = Literal["running", "asking", "ok", "error", "denied", "note"]
"""The state of an item."""

Op = dict[str, Json]
"""One change of what a page shows; `op` is `item`, `text`, `lines`, `now` or `total`."""


@dataclass(slots=True)
class TraceItem:
    """One entry of a trace: a model's answer, a call, or a remark.

    Attributes:
        key: Identifies it within the trace.
        kind: `model`, `call` or `note`.
        title: One line.
        state: Its state.
        began_s: Start, in seconds since the epoch.
        summary: The outcome so far, in a few words.
        arguments: The arguments of a call.
        text: The text of a model's answer or of a call's result.
        screen: The printed output of a call.
        bar: The progress bar drawn or reported last.
        decision: Who decided about a call and why.
    """

    key: str
    kind: Literal["model", "call", "note"]
    title: str
    state: ItemState
    began_s: float
    summary: str = ""
    arguments: str = ""
    text: str = ""
    decision: str = ""
    screen: TerminalScreen = field(default_factory=lambda: TerminalScreen(LineRedactor()))
    bar: Bar | None = None


@dataclass(slots=True)
class Totals:
    """Counters of a run.

    Attributes:
        steps: Requests to a model.
        calls: Requested calls.
        input_tokens: Tokens that models read.
        output_tokens: Tokens that models wrote.
        outcome: How the run ended; empty while it runs.
        first_s: Time of the first event, in seconds since the epoch.
        last_s: Time of the last event.
    """

    steps: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    outcome: str = ""
    first_s: float = 0.0
    last_s: float = 0.0

    def summary(self) -> str:
        """Return all counters in a line."""
        parts = [_count(self.steps, "step"), _count(self.calls, "call")]
        if self.input_tokens or self.output_tokens:
            parts.append(f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out")
        parts.append(seconds(self.last_s - self.first_s))
        return " \N{MIDDLE DOT} ".join(filter(None, parts))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""


MAX_TEXT_CHARS = 6_000
"""Longest text or arguments stored for one item."""


class Trace:
    """The trace of one run.

    Attributes:
        title: Name of the run.
        items: Its entries, in order.
        totals: Its counters.
    """

    def __init__(
        self, title: str = "run", secrets_of: Callable[[str], frozenset[str]] = lambda _tool: frozenset()
    ) -> None:
        """Start empty.

        Args:
            title: Name of the run.
            secrets_of: Returns the names of a tool's arguments that are never shown.
        """
        self.title = one_line(title, 200)
        self.items: list[TraceItem] = []
        self.totals = Totals()
        self._by_key: dict[str, TraceItem] = {}
        self._secrets_of = secrets_of
        self._agent = ""

    def apply(self, event: SessionEvent) -> list[Op]:
        """Apply one event. Return the changes for a page that shows this trace."""
        self.totals.first_s = self.totals.first_s or event.time_s
        self.totals.last_s = max(self.totals.last_s, event.time_s)
        ops: list[Op] = self._apply(event)
        return [*ops, {"op": "total", "words": self.totals.summary()}] if ops else ops

    def snapshot(self) -> list[Op]:
        """Return the operations that make an empty page show the whole trace."""
        ops: list[Op] = []
        for item in self.items:
            ops.append(self._item_op(item))
            if item.screen.count:
                ops.append({"op": "lines", "key": item.key, "lines": item.screen.finished()})
            if item.screen.current or item.bar:
                ops += self._now_ops(item)
        return [*ops, {"op": "total", "words": self.totals.summary()}]

    # ---- one method for each kind of event. An event of an unknown call is ignored: a trace may start late.

    @singledispatchmethod
    def _apply(self, event: SessionEvent) -> list[Op]:  # noqa: ARG002 - unknown events are not shown
        return []

    @_apply.register
    def _(self, event: AgentStarted) -> list[Op]:
        self._agent = self._agent or event.agent_id
        title = f"agent {one_line(event.agent_id, 40)} started"
        if event.parent_id:
            title += f" by {one_line(event.parent_id, 40)}"
        return self._add_note(event, f"{title}, model {one_line(event.model, 80)}")

    @_apply.register
    def _(self, event: ModelRequested) -> list[Op]:
        self.totals.steps += 1
        ops: list[Op] = []
        for message in event.new:
            if isinstance(message, UserMessage):
                ops += self._add_note(event, "prompt", text=message.text)
        title = f"step {event.step}"
        if event.agent_id != self._agent:
            title = f"agent {one_line(event.agent_id, 40)}, {title}"
        return ops + self._add(_model_key(event), "model", title, "running", event)

    @_apply.register
    def _(self, event: ModelStreamed) -> list[Op]:
        item = next((i for i in reversed(self.items) if i.kind == "model" and i.state == "running"), None)
        if item is None or not isinstance(event.event, TextDelta):
            return []
        piece = visible(readable(event.event.text), KEEP)
        item.text = shorten(item.text + piece, MAX_TEXT_CHARS)
        return [{"op": "text", "key": item.key, "add": piece}]

    @_apply.register
    def _(self, event: ModelRetried) -> list[Op]:
        return self._add_note(event, f"tried again in {seconds(event.wait_s)}: {one_line(event.reason, 300)}")

    @_apply.register
    def _(self, event: ModelAnswered) -> list[Op]:
        self.totals.input_tokens += event.usage.input_tokens
        self.totals.output_tokens += event.usage.output_tokens
        item = self._by_key.get(_model_key(event))
        if item is None:
            return []
        item.text = _clean("".join(p.text for p in event.message.parts if isinstance(p, TextPart)))
        names = [one_line(p.name, 40) for p in event.message.parts if isinstance(p, CallPart)]
        calls = f"calls {', '.join(names)}" if names else ""
        tokens = event.usage.input_tokens + event.usage.output_tokens
        item.summary = _join_words(calls, f"{tokens:,} tokens" if tokens else "", seconds(event.duration_s))
        return self._set_state(item, "ok")

    @_apply.register
    def _(self, event: ContextTrimmed) -> list[Op]:
        return self._add_note(
            event, f"{event.chars:,} characters of old results were taken out of the context"
        )

    @_apply.register
    def _(self, event: AgentFinished) -> list[Op]:
        self.totals.outcome = one_line(f"{event.outcome} {event.reason}".strip(), 300)
        for item in self.items:
            if item.state == "running" and item.kind == "model":
                item.state = "error"
                item.summary = "no answer"
        return self._add_note(event, f"ended: {self.totals.outcome}")

    @_apply.register
    def _(self, event: SandboxStarted) -> list[Op]:
        title = f"sandbox started, level {one_line(event.level, 20)}"
        if event.reason:
            title += f" ({one_line(event.reason, 200)})"
        return self._add_note(event, title)

    @_apply.register
    def _(self, event: SandboxLost) -> list[Op]:
        return self._add_note(event, f"sandbox lost: {one_line(event.reason, 300)}", state="error")

    @_apply.register
    def _(self, event: ProtectedFilesRestored) -> list[Op]:
        return self._add_note(event, one_line(str(event), 300), state="error")

    @_apply.register
    def _(self, event: HistoryRecovered) -> list[Op]:
        return self._add_note(event, one_line(str(event), 300))

    @_apply.register
    def _(self, event: CallRequested) -> list[Op]:
        self.totals.calls += 1
        call = event.call
        title = one_line(call.name) + ("" if call.origin == "model" else f" (by a {call.origin})")
        return self._add(
            event.call_id,
            "call",
            title,
            "running",
            event,
            arguments=self._arguments_text(call.name, call.arguments),
        )

    @_apply.register
    def _(self, event: ApprovalAsked) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        item.summary = "a person is asked"
        return self._set_state(item, "asking")

    @_apply.register
    def _(self, event: ApprovalAnswered) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        reason = one_line(redact_text(event.approval.reason), 300)
        verdict = {"approve": "approved", "deny": "denied"}.get(
            event.approval.outcome, event.approval.outcome
        )
        item.decision = f"{verdict}: {reason}" if reason else verdict
        item.summary = item.decision
        return self._set_state(item, "running")

    @_apply.register
    def _(self, event: CallTried) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        item.summary = "is tried without the right to change anything"
        return [self._item_op(item)]

    @_apply.register
    def _(self, event: CallDecided) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        item.arguments = self._arguments_text(item.title.partition(" ")[0], event.arguments)
        reasons = one_line("; ".join(event.reasons), 300)
        verdict = "allowed" if event.decision is Decision.ALLOW else "denied"
        decision = f"{verdict} by {one_line(event.decided_by, 20)}"
        if reasons:
            decision += f": {reasons}"
        item.decision = f"{item.decision}; {decision}" if item.decision else decision
        item.summary = decision
        return [self._item_op(item)]

    @_apply.register
    def _(self, event: CallStarted) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        item.summary = f"runs {'on the HOST' if event.runs_in == 'host' else 'in the sandbox'}"
        return self._set_state(item, "running")

    @_apply.register
    def _(self, event: CallOutput) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        lines = item.screen.feed(event.text)
        item.bar = bar_in(item.screen.current)
        ops: list[Op] = [{"op": "lines", "key": item.key, "lines": lines}] if lines else []
        return ops + self._now_ops(item)

    @_apply.register
    def _(self, event: CallEmitted) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        # A printed bar, as of tqdm, is reported as an event too and says more.
        if event.name == "progress" and bar_in(item.screen.current) is not None:
            return []
        item.bar = _reported_bar(event.name, event.payload)
        if item.bar is None:
            item.summary = one_line(f"{event.name} {json.dumps(event.payload, ensure_ascii=False)}", 200)
            return self._set_state(item, item.state)
        return self._now_ops(item)

    @_apply.register
    def _(self, event: CallFinished) -> list[Op]:
        item = self._by_key.get(event.call_id)
        if item is None:
            return []
        result = event.result
        item.text = "" if item.screen.count or item.screen.current else _clean(result.content)
        if result.is_error:
            item.text = _clean(result.content)
        item.bar = None
        item.summary = _join_words(outcome_text(result), seconds(event.duration_s))
        denied = result.is_error and result.error_kind == "denied"
        ops = self._set_state(item, "denied" if denied else "error" if result.is_error else "ok")
        return [*self._now_ops(item), *ops]

    # ---- helpers

    def _arguments_text(self, name: str, arguments: Mapping[str, Json]) -> str:
        shown = redact_arguments(arguments, self._secrets_of(name))
        if len(shown) == 1 and all(isinstance(value, str) for value in shown.values()):
            return _clean(next(iter(shown.values())).strip("\n"))
        return _clean(json.dumps(shown, ensure_ascii=False, indent=1, default=repr))

    def _add_note(
        self, event: SessionEvent, title: str, *, text: str = "", state: ItemState = "note"
    ) -> list[Op]:
        return self._add(f"note {len(self.items)}", "note", title, state, event, text=_clean(text))

    def _add(
        self,
        key: str,
        kind: Literal["model", "call", "note"],
        title: str,
        state: ItemState,
        event: SessionEvent,
        **more: str,
    ) -> list[Op]:
        item = TraceItem(key=key, kind=kind, title=title, state=state, began_s=event.time_s, **more)  # type: ignore[arg-type]  # only texts
        self.items.append(item)
        self._by_key[key] = item
        return [self._item_op(item)]

    def _set_state(self, item: TraceItem, state: ItemState) -> list[Op]:
        item.state = state
        return [self._item_op(item)]

    @staticmethod
    def _item_op(item: TraceItem) -> Op:
        return {
            "op": "item",
            "key": item.key,
            "kind": item.kind,
            "state": item.state,
            "title": item.title,
            "words": item.summary,
            "arguments": item.arguments,
            "text": item.text,
        }

    @staticmethod
    def _now_ops(item: TraceItem) -> list[Op]:
        bar = item.bar
        payload = None if bar is None else {"percent": bar.percent, "label": bar.label, "rest": bar.rest}
        return [{"op": "now", "key": item.key, "text": item.screen.shown, "bar": payload}]


def outcome_text(result: ToolResult) -> str:
    """Return how a call ended, in a word or two; empty for a plain success."""
    value = result.value if isinstance(result.value, Mapping) else {}
    code = value.get("exitCode", result.metadata.get("exitCode"))
    exit_text = f"exit code {code}" if isinstance(code, int) and not isinstance(code, bool) and code else ""
    if not result.is_error:
        return exit_text
    return exit_text or {"denied": "denied", "invalid": "wrong call"}.get(result.error_kind or "", "failed")


def _model_key(event: ModelRequested | ModelAnswered) -> str:
    return f"model {event.agent_id} {event.turn_id}"


def _clean(text: str) -> str:
    return readable(shorten(redact_text(shorten(text, 4 * MAX_TEXT_CHARS)), MAX_TEXT_CHARS))


def _join_words(*parts: str) -> str:
    return " \N{MIDDLE DOT} ".join(filter(None, parts))


def _reported_bar(name: str, payload: Mapping[str, Json]) -> Bar | None:
    """Return the progress bar of a report with `fraction`, `percent`, or `done` of `total`; else None."""

    def number(key: str) -> float | None:
        value = payload.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    finished, total = number("done"), number("total")
    percent = number("percent")
    if (fraction := number("fraction")) is not None:
        percent = 100 * fraction
    elif finished is not None and total:
        percent = 100 * finished / total
    if percent is None or not 0 <= percent <= 100:
        return None
    rest = f"{finished:g}/{total:g}" if finished is not None and total else ""
    return Bar(percent, one_line(name, 60), rest)
