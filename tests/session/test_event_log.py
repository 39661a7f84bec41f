from __future__ import annotations

import dataclasses
import logging
import time

import pytest

from aisotools.core.events import CallEmitted, CallOutput, SandboxLost, SandboxStarted, SessionEvent
from aisotools.core.sandboxes import SandboxStatus
from aisotools.session.event_log import EventLog


def test_events_are_recorded_in_order_and_the_view_is_read_only() -> None:
    event_log = EventLog()
    events = event_log.events
    event_log.output("c1", "stdout", "a")
    event_log.emitted("c1", "step", {"n": 1})
    event_log.started(SandboxStatus(level="confined", alive=True, pid=5, generation=2), "it was restarted")
    event_log.lost(2, "it was ended by SIGKILL")
    assert [event.kind for event in events] == [
        "call_output",
        "call_emitted",
        "sandbox_started",
        "sandbox_lost",
    ]
    output, emitted, started, lost = events
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
    assert len(events) == 4
    assert events[-1] is lost
    assert events[1:3] == (emitted, started)
    assert repr(events) == "<4 events>"
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
