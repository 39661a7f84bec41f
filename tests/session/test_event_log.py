from __future__ import annotations

import dataclasses
import logging
import time

import pytest

from aisotools.core.events import CallEmitted, CallOutput, SandboxLost, SandboxStarted, SessionEvent
from aisotools.core.protocols import SandboxStatus
from aisotools.session.event_log import EventLog


def test_events_are_kept_in_order_and_only_read() -> None:
    journal = EventLog()
    events = journal.events
    journal.output("c1", "stdout", "a")
    journal.emitted("c1", "step", {"n": 1})
    journal.started(SandboxStatus(level="confined", alive=True, pid=5, generation=2), "it was restarted")
    journal.lost(2, "it was ended by SIGKILL")
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


def test_listeners_hear_what_happens_from_then_on() -> None:
    journal = EventLog()
    heard: list[SessionEvent] = []
    journal.lost(1, "before")
    stop = journal.subscribe(heard.append)
    journal.lost(2, "during")
    stop()
    stop()
    journal.lost(3, "after")
    assert [event.reason for event in heard if isinstance(event, SandboxLost)] == ["during"]


def test_a_listener_that_fails_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    journal = EventLog()
    heard: list[SessionEvent] = []

    def failing(event: SessionEvent) -> None:
        raise ValueError("the card broke")

    journal.subscribe(failing)
    journal.subscribe(heard.append)
    with caplog.at_level(logging.ERROR, "aisotools"):
        journal.lost(1, "gone")
    assert len(heard) == len(journal.events) == 1
    assert "A listener failed at sandbox_lost" in caplog.text
    assert "the card broke" in caplog.text


def test_a_listener_may_stop_itself() -> None:
    journal = EventLog()
    heard: list[SessionEvent] = []

    def once(event: SessionEvent) -> None:
        heard.append(event)
        stop()

    stop = journal.subscribe(once)
    also: list[SessionEvent] = []
    journal.subscribe(also.append)
    journal.lost(1, "a")
    journal.lost(2, "b")
    assert (len(heard), len(also)) == (1, 2)
