"""A trace as a static record, as a live output, and the output of one running call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aisotools.core.events import CallFinished, CallOutput, CallRequested, SessionEvent
from aisotools.core.types import ToolCall, ToolResult
from aisotools.notebook.render.text import TerminalScreen
from aisotools.notebook.trace.model import Op, Trace
from aisotools.notebook.trace.view import (
    MAX_STORED_CHARS,
    follow,
    last_trace,
    merge_ops,
    progress_bundle,
    trace_bundle,
)
from tests.notebook.inert import assert_inert

HOSTILE = "<img src=x onerror=alert(1)>\u202e"


def requested(key: str, **arguments: Any) -> CallRequested:
    call = ToolCall(key, "sandbox_bash", arguments, origin="model")
    return CallRequested(time_s=1.0, call_id=key, call=call)


def finished(key: str, text: str) -> CallFinished:
    result = ToolResult.text(text)
    return CallFinished(time_s=2.0, call_id=key, name="sandbox_bash", result=result, duration_s=1.0)


class Source:
    """Emits events when a test says so."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[SessionEvent], None]] = []

    def subscribe(self, listener: Callable[[SessionEvent], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    bundles: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, **_: bundles.append(bundle))
    return bundles


# ---- the record


def test_a_record_is_inert_and_names_what_it_leaves_out() -> None:
    trace = Trace(HOSTILE)
    for n in range(300):
        trace.apply(requested(f"c{n}", command=HOSTILE * 20))
        trace.apply(finished(f"c{n}", HOSTILE * 50))
    bundle = trace_bundle(trace)
    assert_inert(bundle["text/html"])
    assert max(map(len, bundle.values())) <= MAX_STORED_CHARS
    assert "entries are left out here; the session's log has them." in bundle["text/plain"]
    assert "\u202e" not in "".join(bundle.values())


def test_a_short_run_is_complete() -> None:
    trace = Trace("build")
    trace.apply(requested("c1", command="make all"))
    trace.apply(finished("c1", "built"))
    text = trace_bundle(trace)["text/plain"]
    for word in ("trace of build: 1 call", "sandbox_bash", "make all", "built"):
        assert word in text


# ---- operations


def test_of_replacing_operations_the_last_counts_and_lines_are_joined() -> None:
    ops: list[Op] = [
        {"op": "lines", "key": "a", "lines": ["1"]},
        {"op": "lines", "key": "a", "lines": ["2"]},
        {"op": "now", "key": "a", "text": "x"},
        {"op": "now", "key": "b", "text": "other"},
        {"op": "lines", "key": "a", "lines": ["3"]},
        {"op": "now", "key": "a", "text": "y"},
        {"op": "total", "words": "1"},
        {"op": "total", "words": "2"},
    ]
    assert merge_ops(ops) == [
        {"op": "lines", "key": "a", "lines": ["1", "2"]},
        {"op": "now", "key": "b", "text": "other"},
        {"op": "lines", "key": "a", "lines": ["3"]},
        {"op": "now", "key": "a", "text": "y"},
        {"op": "total", "words": "2"},
    ]


# ---- following


async def test_a_followed_run_leaves_its_record_and_stops_listening(displayed: list[dict[str, Any]]) -> None:
    source = Source()

    async def work() -> str:
        for listener in source.listeners:
            listener(requested("c1", command="make"))
            listener(finished("c1", "built"))
        return "result"

    assert await follow(source, work(), title="build") == "result"
    assert source.listeners == []
    assert "application/vnd.jupyter.widget-view+json" in displayed[0]
    assert displayed[-1].keys() == {"text/html", "text/plain"}
    assert "make" in displayed[-1]["text/plain"]
    trace = last_trace()
    assert trace is not None
    assert trace.title == "build"


async def test_a_failing_or_cancelled_run_leaves_its_record_too(displayed: list[dict[str, Any]]) -> None:
    source = Source()

    async def fail() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await follow(source, fail())
    assert displayed[-1].keys() == {"text/html", "text/plain"}

    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    following = asyncio.create_task(follow(source, hang()))
    await started.wait()
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert source.listeners == []
    assert displayed[-1].keys() == {"text/html", "text/plain"}


# ---- output of a running call


def test_only_the_end_of_output_is_shown_and_a_bar_is_drawn() -> None:
    screen = TerminalScreen()
    event = CallOutput(time_s=1.0, call_id="c", stream="stdout", text="<b>\n" * 500 + "last\n")
    screen.feed(event.text)
    bundle = progress_bundle(screen)
    assert_inert(bundle["text/html"])
    assert bundle["text/plain"].count("\n") < 45
    assert bundle["text/plain"].endswith("last")
    screen.feed("fit:  40%|####      | 4/10 [00:01<00:02]")
    bundle = progress_bundle(screen)
    assert "width:40.0%" in bundle["text/html"]
    assert "4/10 [00:01&lt;00:02]" in bundle["text/html"]
    assert "####" not in bundle["text/html"]
    assert bundle["text/plain"].endswith("4/10 [00:01<00:02]")
