from __future__ import annotations

import dataclasses
import gc
import logging
import subprocess
import sys
import time
from typing import Any

import pytest

from aisotools.core.events import (
    CallDecided,
    CallEmitted,
    CallFinished,
    CallOutput,
    CallRequested,
    EventsDropped,
    SandboxLost,
    SandboxStarted,
    SessionEvent,
    VariablesDropped,
)
from aisotools.core.retention import RetentionBudget
from aisotools.core.sandboxes import SandboxStatus
from aisotools.core.types import Decision, Effect, Json, ToolCall, ToolResult, Truncation
from aisotools.session.event_log import DROPPED, EventLog


def test_events_are_recorded_in_order_and_the_view_is_read_only() -> None:
    event_log = EventLog()
    events = event_log.events
    event_log.output("c1", "stdout", "a")
    event_log.emitted("c1", "step", {"n": 1})
    event_log.started(SandboxStatus(level="confined", alive=True, pid=5, generation=2), "it was restarted")
    event_log.lost(2, "it was ended by SIGKILL")
    event_log.variables_dropped(["c0"], "thinned out")
    assert [event.kind for event in events] == [
        "call_output",
        "call_emitted",
        "sandbox_started",
        "sandbox_lost",
        "variables_dropped",
    ]
    output, emitted, started, lost, dropped = events
    assert isinstance(dropped, VariablesDropped)
    assert (dropped.call_ids, dropped.reason) == (("c0",), "thinned out")
    assert [event.kind for event in (output, lost)] == ["call_output", "sandbox_lost"]
    assert isinstance(output, CallOutput)
    assert (output.call_id, output.stream, output.text) == ("c1", "stdout", "a")
    assert isinstance(emitted, CallEmitted)
    assert (emitted.name, emitted.payload) == ("step", {"n": 1})
    assert isinstance(started, SandboxStarted)
    assert (started.level, started.generation, started.pid, started.reason) == (
        "confined",
        2,
        5,
        "it was restarted",
    )
    assert isinstance(lost, SandboxLost)
    assert (lost.generation, lost.reason) == (2, "it was ended by SIGKILL")
    assert len(events) == 5
    assert events[-2] is lost
    assert events[1:3] == (emitted, started)
    assert repr(events) == "<5 events>"
    assert not hasattr(events, "append")
    with pytest.raises(dataclasses.FrozenInstanceError):
        output.text = "b"  # type: ignore[misc]  # the point
    assert abs(output.time_s - time.time()) < 60


def test_listener_gets_events_from_its_subscription_to_its_end() -> None:
    event_log = EventLog()
    received: list[SessionEvent] = []
    event_log.lost(1, "before")
    stop = event_log.subscribe(received.append)
    event_log.lost(2, "during")
    stop()
    stop()
    event_log.lost(3, "after")
    assert [event.reason for event in received if isinstance(event, SandboxLost)] == ["during"]


def test_listener_that_raises_is_logged_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    event_log = EventLog()
    received: list[SessionEvent] = []

    def failing(event: SessionEvent) -> None:
        raise ValueError("the card broke")

    event_log.subscribe(failing)
    event_log.subscribe(received.append)
    with caplog.at_level(logging.ERROR, "aisotools"):
        event_log.lost(1, "gone")
    assert len(received) == len(event_log.events) == 1
    assert "A listener failed at sandbox_lost" in caplog.text
    assert "the card broke" in caplog.text


def test_listener_may_unsubscribe_itself() -> None:
    event_log = EventLog()
    received: list[SessionEvent] = []

    def once(event: SessionEvent) -> None:
        received.append(event)
        stop()

    stop = event_log.subscribe(once)
    other: list[SessionEvent] = []
    event_log.subscribe(other.append)
    event_log.lost(1, "a")
    event_log.lost(2, "b")
    assert (len(received), len(other)) == (1, 2)


# ---- the budget


def finished(log: EventLog, call_id: str, **fields: Any) -> None:
    log.add(CallFinished, call_id, name="t", result=ToolResult(**fields), duration_s=0.1)


def test_beyond_the_budget_output_goes_first_then_values_then_events() -> None:
    budget = RetentionBudget(1 << 20)
    log = EventLog(budget)
    finished(log, "first", content="short", value=["x" * 100_000], metadata={"tool": "t"})
    log.add(SandboxLost, generation=1, reason="r")
    for number in range(40):
        log.output("c", "stdout", f"{number}" + "y" * 20_000)
        log.emitted("c", "n", {"text": "z" * 20_000})
    assert budget.used_bytes <= 1 << 20
    dropped = log.events[0]
    assert isinstance(dropped, EventsDropped)
    assert dropped.kinds == ("call_emitted", "call_output")
    assert dropped.is_output_only
    assert dropped.count == log.retained.dropped_events > 10
    assert dropped.reason == "over the session's budget of 1 MiB"
    result = log.events[1]
    assert isinstance(result, CallFinished)
    assert result.result.value == ["x" * 100_000], "there is output to drop yet"
    for number in range(10):
        finished(log, f"c{number}", content=f"{number}", value=["v" * 200_000], metadata={"tool": "t"})
    assert budget.used_bytes <= 1 << 20
    result = log.events[1]
    assert isinstance(result, CallFinished)
    note = "value dropped: over the session's budget of 1 MiB"
    assert (result.result.value, result.result.content) == (None, f"short\n[{note}]")
    assert result.result.metadata == {"tool": "t", DROPPED: note}
    newest = log.events[-1]
    assert isinstance(newest, CallFinished)
    assert newest.result.value == ["v" * 200_000]
    for number in range(3000):
        log.lost(number, "a reason of some length " * 20)
    assert budget.used_bytes <= 1 << 20
    dropped = log.events[0]
    assert isinstance(dropped, EventsDropped)
    assert {"call_finished", "sandbox_lost"} <= set(dropped.kinds)
    assert not dropped.is_output_only
    assert str(dropped).startswith(f"{dropped.count:,} earlier events (call_emitted, call_finished,")
    assert len(log.events) == len(list(log.events))


def test_oversized_events_are_shortened_and_listeners_get_them_whole() -> None:
    log = EventLog(RetentionBudget(1 << 20))
    received: list[SessionEvent] = []
    log.subscribe(received.append)
    finished(log, "c", content="t", data={"image/png": "x" * 300_000}, metadata={"list": [1], "m": 1})
    finished(log, "c", content="t", value=[[] for _ in range(20_000)])
    log.emitted("c", "n", {"text": "x" * 300_000})
    log.output("c", "stdout", "x" * 300_000)
    first, second, emitted, output = log.events
    assert isinstance(first, CallFinished)
    assert (first.result.data, first.result.metadata["m"]) == ({}, 1)
    assert first.result.content.endswith("[data, metadata dropped: over the session's budget of 1 MiB]")
    assert isinstance(second, CallFinished)
    assert second.result.value is None
    assert isinstance(emitted, CallEmitted)
    assert emitted.payload == {"dropped": "dropped: over the session's budget of 1 MiB"}
    assert isinstance(output, CallOutput)
    assert output.text == "[dropped: over the session's budget of 1 MiB]"
    assert isinstance(received[0], CallFinished)
    assert len(received[0].result.data["image/png"]) == 300_000
    assert log.retained.dropped_events == 0


def test_an_argument_is_counted_once_for_request_and_decision() -> None:
    budget = RetentionBudget()
    log = EventLog(budget)
    arguments: dict[str, Json] = {"code": "x" * 100_000}
    log.add(CallRequested, "c", call=ToolCall("c", "t", arguments))
    log.add(
        CallDecided,
        "c",
        decision=Decision.ALLOW,
        decided_by="policy",
        effect=Effect.READ_ONLY,
        reasons=(),
        arguments=dict(arguments),
        digest="",
    )
    assert budget.used_bytes < 1000, "it is measured when the call ends"
    finished(log, "c", content="t")
    assert 100_000 < budget.used_bytes < 103_000
    finished(log, "c", content="t")
    assert budget.used_bytes < 104_000, "only once"


def test_events_of_many_calls_in_progress_count_all_the_same() -> None:
    budget = RetentionBudget()
    log = EventLog(budget)
    for number in range(1000):
        log.add(CallRequested, f"c{number}", call=ToolCall("c", "t", {"code": "x" * 10_000}))
    assert budget.used_bytes > 740 * 10_000


async def test_a_result_that_was_cut_is_charged_at_once() -> None:
    """Several of them within a moment would be far above the budget before any was measured."""
    budget = RetentionBudget()
    log = EventLog(budget)
    cut = Truncation(total_chars=1_000_000, shown_chars=1, ref="r1")
    finished(log, "a", content="t", value="x" * 1_000_000)
    assert budget.used_bytes < 10_000
    finished(log, "b", content="t", value="y" * 1_000_000, truncation=cut)
    assert budget.used_bytes > 2_000_000


def test_events_of_a_call_in_progress_may_be_dropped() -> None:
    budget = RetentionBudget(1 << 20)
    log = EventLog(budget)
    log.add(CallRequested, "c", call=ToolCall("c", "t", {"code": "x" * 10_000}))
    for number in range(3000):
        log.lost(number, "a reason of some length " * 20)
    assert isinstance(log.events[0], EventsDropped)
    finished(log, "c", content="t")
    assert budget.used_bytes <= 1 << 20


GROWTH = """
import gc, os
from aisotools.session.event_log import EventLog
from aisotools.core.events import *
from aisotools.core.retention import RetentionBudget
from aisotools.core.types import *
def resident():
    gc.collect()
    return int(open('/proc/self/statm').read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
budget = RetentionBudget(1 << 30)
log = EventLog(budget)
before = resident()
for n in range(20_000):
    i = 'call-%032d' % n
    log.add(CallRequested, i, call=ToolCall(i, 't', {'code': 'x' * 50, 'n': n}))
    log.add(CallStarted, i, runs_in='sandbox', level='confined')
    log.output(i, 'stdout', 'line %d' % n)
    log.emitted(i, 'progress', {'n': n})
    result = ToolResult(content='line %d' % n, value={'n': n}, metadata={'call_id': i})
    log.add(CallFinished, i, name='t', result=result, duration_s=n / 7)
print((resident() - before) / budget.used_bytes)
"""


def test_small_events_are_charged_within_a_factor_of_two_of_what_they_take() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True, timeout=100
    )
    print(f"\ngrown / charged: {float(done.stdout):.2f}")
    assert 0.5 <= float(done.stdout) <= 2


def test_printed_text_is_nothing_that_the_garbage_collector_visits() -> None:
    """Tens of thousands of pieces would make each full collection, and with it the event loop, slow."""
    log = EventLog()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        log.output("1", ("stdout", "stderr")[number % 2], f"piece {number}")
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    texts = [event.text for event in log.events if isinstance(event, CallOutput)]
    assert texts == [f"piece {number}" for number in range(1000)]
    assert log.events[-1] == log.events[999:][0]


async def test_preparations_are_awaited_in_order_and_what_one_raises_is_raised() -> None:
    """What could not be prepared must not pass for prepared."""
    log = EventLog()
    await log.prepare("c1", "text")  # nobody prepares anything
    seen: list[tuple[str, str, Json]] = []

    async def first(call_id: str, content: Json) -> None:
        seen.append(("first", call_id, content))

    async def second(call_id: str, content: Json) -> None:
        seen.append(("second", call_id, content))
        raise ValueError("it cannot be read")

    log.add_preparation(first)
    log.add_preparation(second)
    with pytest.raises(ValueError, match="cannot be read"):
        await log.prepare("c1", {"a": 1})
    assert seen == [("first", "c1", {"a": 1}), ("second", "c1", {"a": 1})]
    assert not log.events
