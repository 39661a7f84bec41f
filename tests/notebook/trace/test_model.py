from __future__ import annotations

from typing import Any

import pytest

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
    HistoryRecovered,
    ModelAnswered,
    ModelRequested,
    ModelStreamed,
    ProtectedFilesRestored,
    SandboxLost,
    SessionEvent,
)
from aisotools.core.messages import AssistantMessage, CallPart, TextDelta, TextPart, Usage, UserMessage
from aisotools.core.types import Approval, Decision, Effect, ToolCall, ToolResult
from aisotools.notebook.render.text import HEAD_LINES, TAIL_LINES, Bar
from aisotools.notebook.trace.model import Trace
from aisotools.notebook.trace.view import MAX_STORED_CHARS, merge_ops, trace_bundle
from tests.notebook.inert import assert_inert
from tests.policy.test_prompts import a_request

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b]8;;javascript:1\x07"


def requested(
    key: str = "c1", name: str = "sandbox_bash", at: float = 1.0, **arguments: Any
) -> CallRequested:
    call = ToolCall(key, name, arguments, origin="model")
    return CallRequested(time_s=at, call_id=key, call=call)


def printed(text: str, key: str = "c1") -> CallOutput:
    return CallOutput(time_s=2, call_id=key, stream="stdout", text=text)


def finished(result: ToolResult, key: str = "c1") -> CallFinished:
    return CallFinished(time_s=3.5, call_id=key, name="sandbox_bash", result=result, duration_s=2.5)


def a_run() -> list[SessionEvent]:
    call = CallPart("c1", "sandbox_bash", {"command": "make"})
    message = AssistantMessage((TextPart("I build it."), call))
    return [
        AgentStarted(time_s=1, agent_id="a", model="scripted"),
        ModelRequested(time_s=1, agent_id="a", step=1, turn_id="t1", new=(UserMessage("Build."),), digest=""),
        ModelStreamed(time_s=1.1, agent_id="a", step=1, event=TextDelta("I bu")),
        ModelAnswered(
            time_s=1.5,
            agent_id="a",
            step=1,
            turn_id="t1",
            message=message,
            duration_s=0.5,
            usage=Usage(input_tokens=1200, output_tokens=34),
        ),
        requested(command="make"),
        ApprovalAsked(time_s=1.6, call_id="c1", request=a_request({"command": "make"})),
        ApprovalAnswered(
            time_s=1.9, call_id="c1", request_id="r", approval=Approval("approve", reason="go on")
        ),
        CallDecided(
            time_s=1.9,
            call_id="c1",
            decision=Decision.ALLOW,
            decided_by="approver",
            effect=Effect.LOCAL_MUTATION,
            reasons=("it is local",),
            arguments={"command": "make"},
            digest="",
        ),
        CallStarted(time_s=2, call_id="c1", runs_in="sandbox", level="confined"),
        printed("cc a.c\ncc b.c\n"),
        finished(ToolResult.text("ok").with_metadata(exitCode=0)),
        AgentFinished(
            time_s=4,
            agent_id="a",
            outcome="answered",
            steps=1,
            calls=1,
            usage=Usage(),
            duration_s=3,
            working_s=2.7,
        ),
    ]


def texts_of(*events: SessionEvent, **options: Any) -> dict[str, str]:
    trace = Trace(**options)
    for event in events:
        trace.apply(event)
    return trace_bundle(trace)


def test_a_trial_is_in_the_trace() -> None:
    tried = CallTried(time_s=1.6, call_id="c1", programs=("frob",), digest="", level="confined")
    trace = Trace()
    for event in (requested(command="frob"), tried):
        trace.apply(event)
    assert "is tried without the right to change anything" in trace_bundle(trace)["text/plain"]
    decided = CallDecided(
        time_s=1.9,
        call_id="c1",
        decision=Decision.ALLOW,
        decided_by="trial",
        effect=Effect.READ_ONLY,
        reasons=("it ran without the right to change anything, and succeeded",),
        arguments={"command": "frob"},
        digest="",
    )
    trace.apply(decided)
    assert "allowed by trial" in trace_bundle(trace)["text/plain"]


def test_a_run_reads_from_the_prompt_to_the_end() -> None:
    shown = texts_of(*a_run(), title="build")
    lines = shown["text/plain"].splitlines()
    assert lines[0] == "trace of build: 1 step · 1 call · 1,200 tokens in, 34 out · 3.0 s · answered"
    order = ["prompt", "Build.", "step 1", "I build it.", "make", "approved: go on", "cc a.c", "ended"]
    places = [shown["text/plain"].index(word) for word in order]
    assert places == sorted(places)
    assert "✓ sandbox_bash · 2.5 s" in shown["text/plain"]
    assert_inert(shown["text/html"])
    for word in order:
        assert word in shown["text/html"]


@pytest.mark.parametrize(
    ("result", "state", "words"),
    [
        (ToolResult.text("x"), "ok", "2.5 s"),
        (ToolResult.error("no").with_metadata(exitCode=3), "error", "exit code 3 · 2.5 s"),
        (ToolResult.error("no"), "error", "failed · 2.5 s"),
        (ToolResult.error("no", error_kind="denied"), "denied", "denied · 2.5 s"),
    ],
)
def test_states_of_a_call_that_ended(result: ToolResult, state: str, words: str) -> None:
    trace = Trace()
    trace.apply(requested(command="x"))
    trace.apply(finished(result))
    assert (trace.items[0].state, trace.items[0].summary) == (state, words)


def test_progress_is_a_bar_and_not_a_thousand_lines() -> None:
    trace = Trace()
    trace.apply(requested(command="x"))
    ops = []
    for n in range(1000):
        ops += trace.apply(
            printed(f"\rtrain:  {n // 10}%|{'#' * (n // 100)}| {n}/1000 [00:01<00:02, 9.99it/s]")
        )
    assert trace.items[0].bar == Bar(99, "train", "999/1000 [00:01<00:02, 9.99it/s]")
    assert trace.items[0].screen.count == 0
    assert [op["op"] for op in merge_ops(ops)] == ["now", "total"]
    trace.apply(printed("\n"))
    assert trace.items[0].screen.lines() == ["train:  99%|#########| 999/1000 [00:01<00:02, 9.99it/s]"]
    trace.apply(finished(ToolResult.text("")))
    assert trace.items[0].bar is None


def test_progress_that_a_tool_reports() -> None:
    trace = Trace()
    trace.apply(requested(command="x"))

    def report(**payload: Any) -> Bar | None:
        trace.apply(CallEmitted(time_s=2, call_id="c1", name="fit", payload=payload))
        return trace.items[0].bar

    assert report(done=1, total=4) == Bar(25, "fit", "1/4")
    assert report(fraction=0.5) == Bar(50, "fit", "")
    for odd in ({"fraction": 7}, {"percent": "50"}, {"done": 1, "total": 0}, {"x": HOSTILE}):
        assert report(**odd) is None


def test_strangers_text_is_inert_and_visible() -> None:
    shown = texts_of(
        requested(name=HOSTILE, command=HOSTILE),
        printed(HOSTILE),
        CallEmitted(time_s=2, call_id="c1", name=HOSTILE, payload={HOSTILE: HOSTILE}),
        SandboxLost(time_s=3, generation=1, reason=HOSTILE),
        ProtectedFilesRestored(time_s=3, changes=(HOSTILE,), count=2, problem=HOSTILE),
        HistoryRecovered(time_s=3, notes=(HOSTILE,)),
        finished(ToolResult.error(HOSTILE)),
        AgentStarted(time_s=1, agent_id=HOSTILE, model=HOSTILE),
        title=HOSTILE,
    )
    assert_inert(shown["text/html"])
    for text in shown.values():
        assert "\u202e" not in text
        assert "\x1b" not in text


def test_secrets_are_not_shown() -> None:
    shown = texts_of(
        requested(name="login", password="hunter2", user="ann"),
        requested("c2", command="curl -H 'Authorization: Bearer abcdef123456'"),
        secrets_of=lambda name: frozenset({"password"}) if name == "login" else frozenset(),
    )
    assert "hunter2" not in repr(shown)
    assert "abcdef123456" not in repr(shown)
    assert "ann" in shown["text/plain"]


@pytest.mark.parametrize(("calls", "lines"), [(1, 20_000), (2000, 3), (150, 300)])
def test_stored_items_are_bounded(calls: int, lines: int) -> None:
    trace = Trace()
    for n in range(calls):
        trace.apply(requested(f"c{n}", command="<&>" * 3000))
        trace.apply(printed("<&>" * 20 + "\n" * lines, f"c{n}"))
        trace.apply(finished(ToolResult.text("<&>" * 9000), f"c{n}"))
    shown = trace_bundle(trace)
    assert max(map(len, shown.values())) <= MAX_STORED_CHARS
    assert_inert(shown["text/html"])
    assert f"{calls:,}" in shown["text/html"].replace(f"{calls} ", f"{calls:,} ")


def test_a_page_that_comes_late_sees_all_of_it() -> None:
    trace = Trace()
    for event in a_run()[:-2]:
        trace.apply(event)
    ops = trace.snapshot()
    assert [op["key"] for op in ops if op["op"] == "item"] == [item.key for item in trace.items]
    assert {"op": "lines", "key": "c1", "lines": ["cc a.c", "cc b.c"]} in ops


def test_events_of_calls_that_nobody_knows_change_nothing() -> None:
    trace = Trace()
    for event in a_run()[5:11]:
        assert trace.apply(event) == []
    assert trace.items == []


def test_the_work_of_an_event_does_not_grow_with_the_events_before_it() -> None:
    trace = Trace()
    trace.apply(requested(command="x"))
    sizes = [len(repr(trace.apply(printed(f"line {n}\n")))) for n in range(10_000)]
    assert trace.items[0].screen.count == 10_000
    assert max(sizes) < 500, "one operation for one line"
    assert len(trace.items[0].screen.lines()) == HEAD_LINES + TAIL_LINES + 1
