"""Records of a ledger as events: what comes back, what stays out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from aisotools.core.events import (
    AgentStarted,
    ApprovalAnswered,
    CallDecided,
    CallFinished,
    CallRequested,
    CallStarted,
    GrantRevoked,
    HistoryRecovered,
    ModelAnswered,
    ProtectedFilesRestored,
    Redone,
    SandboxLost,
    SandboxStarted,
    SessionEnded,
    Undone,
    VariablesDropped,
)
from aisotools.core.exceptions import LedgerError
from aisotools.core.types import Decision, Effect
from aisotools.session.ledger_reader import events_of_records, fill_shortened

CUT = {"beginning": "abc", "chars": 1003, "sha256": "0" * 64}
WHOLE = "abc[... 1,000 more characters are not in the record ...]"


def record(kind: str, n: int = 1, call_id: str = "", **body: Any) -> dict[str, Any]:
    if call_id:
        body["call_id"] = call_id
    return {"n": n, "time_s": 5.0, "kind": kind, "body": body, "prev": "", "mac": ""}


REQUESTED = record(
    "call_requested",
    call_id="c",
    name="m",
    origin="model",
    agent_id="a",
    turn_id="t",
    arguments={"x": 1, "text": CUT},
)
FINISHED = record(
    "call_finished",
    call_id="c",
    name="m",
    duration_s=2,
    result={
        "content": "done",
        "is_error": False,
        "error_kind": None,
        "kind": "text",
        "data_chars": {"image/png": 9},
        "left_out": "",
    },
)


def read(*records: dict[str, Any]) -> Any:
    return events_of_records(records)


def test_a_request_has_its_call_and_says_what_was_cut() -> None:
    (event,) = read(REQUESTED)
    assert isinstance(event, CallRequested)
    assert (event.time_s, event.call_id, event.call.id) == (5.0, "c", "c")
    assert (event.call.name, event.call.origin, event.call.agent_id, event.call.turn_id) == (
        "m",
        "model",
        "a",
        "t",
    )
    assert event.call.arguments == {"x": 1, "text": WHOLE}


def test_arguments_that_were_no_object_are_left_out() -> None:
    (event,) = read(REQUESTED | {"body": REQUESTED["body"] | {"arguments": "repr of them"}})
    assert event.call.arguments == {}


def test_a_result_comes_back_without_its_data() -> None:
    (event,) = read(FINISHED)
    assert isinstance(event, CallFinished)
    assert (event.name, event.duration_s, event.result.content) == ("m", 2.0, "done")
    assert (event.result.is_error, event.result.metadata) == (False, {"data_chars": {"image/png": 9}})


def test_decisions_and_answers_come_back() -> None:
    decided, answered, denied = read(
        record(
            "call_decided",
            call_id="c",
            decision="allow",
            decided_by="approver",
            effect="local_mutation",
            reasons=["why"],
            arguments={"text": CUT},
            digest="d",
        ),
        record(
            "approval_answered",
            call_id="c",
            request_id="r",
            outcome="approve",
            reason="",
            remember="call",
            edited={"text": CUT},
            waited_s=1.0,
        ),
        record(
            "approval_answered",
            request_id="r",
            outcome="deny",
            reason="no",
            remember=None,
            edited=None,
            waited_s=1.0,
        ),
    )
    assert isinstance(decided, CallDecided)
    assert (decided.decision, decided.effect, decided.reasons) == (
        Decision.ALLOW,
        Effect.LOCAL_MUTATION,
        ("why",),
    )
    assert (decided.decided_by, decided.digest, decided.arguments) == ("approver", "d", {"text": WHOLE})
    assert isinstance(answered, ApprovalAnswered)
    assert (answered.approval.outcome, answered.approval.remember) == ("approve", "call")
    assert answered.approval.arguments == {"text": WHOLE}
    assert (denied.approval.outcome, denied.approval.reason, denied.approval.arguments) == (
        "deny",
        "no",
        None,
    )


def test_undo_and_redo_come_back_also_from_records_without_a_count() -> None:
    body: dict[str, Any] = {
        "call_ids": ["a", "b"],
        "variables": "words",
        "forced": True,
        "restored": 1,
        "removed": 0,
        "missing": 0,
    }
    undone, redone = read(record("undone", **body, steps=2), record("redone", **body))
    assert type(undone) is Undone
    assert type(redone) is Redone
    assert (undone.call_ids, undone.variables, undone.forced, undone.steps) == (("a", "b"), "words", True, 2)
    assert (redone.steps, redone.files_only) == (0, False)
    (last,) = read(record("undone", **body, steps=2, files_only=True))
    assert last.files_only


def test_dropped_variables_come_back_with_their_reason() -> None:
    (dropped,) = read(record("variables_dropped", call_ids=["a", "b"], reason="thinned out"))
    assert isinstance(dropped, VariablesDropped)
    assert (dropped.call_ids, dropped.reason) == (("a", "b"), "thinned out")


def test_the_plain_kinds_come_back_as_they_are() -> None:
    events = read(
        record("sandbox_started", level="confined", generation=1, pid=7, reason=""),
        record("sandbox_lost", generation=1, reason="gone"),
        record("grant_revoked", scope="call", tool="m"),
        record("call_started", call_id="c", runs_in="host", level="confined"),
        record("session_ended"),
        record("protected_files_restored", changes=["a"], count=7, problem="none"),
        record("history_recovered", notes=["completed", "lost"]),
    )
    assert [type(event) for event in events] == [
        SandboxStarted,
        SandboxLost,
        GrantRevoked,
        CallStarted,
        SessionEnded,
        ProtectedFilesRestored,
        HistoryRecovered,
    ]
    assert events[6].notes == ("completed", "lost")
    assert events[5] == ProtectedFilesRestored(
        time_s=events[5].time_s, changes=("a",), count=7, problem="none"
    )
    assert (events[0].pid, events[1].reason, events[3].runs_in) == (7, "gone", "host")


def test_unknown_kinds_are_passed_over() -> None:
    assert read(record("repaired", dropped_bytes=3), record("of_the_future", a=1)) == []


def test_an_answer_gets_its_arguments_from_the_request_though_it_comes_before_it() -> None:
    message = {
        "role": "assistant",
        "parts": [
            {"kind": "call", "id": "c", "name": "m"},
            {"kind": "call", "id": "unknown", "name": "m"},
        ],
    }
    answered = record(
        "model_answered",
        agent_id="a",
        turn_id="t",
        message=message,
        usage={},
        duration_s=1.0,
    )
    event, _ = read(answered, REQUESTED)
    assert isinstance(event, ModelAnswered)
    assert [call.arguments for call in event.message.calls] == [{"x": 1, "text": WHOLE}, {}]


@pytest.mark.parametrize(
    "broken",
    [
        {"n": 3},
        record("call_requested", 3, call_id="c"),
        record("call_decided", 3, decision="perhaps"),
        record("undone", 3, call_ids=1),
        {"n": 3, "time_s": "soon", "kind": "session_ended", "body": {}},
        {"n": 3, "time_s": 1, "kind": "session_ended", "body": 1},
        record("sandbox_lost", 3, generation=1, reason="gone", more=1),
        record("agent_started", 3),
    ],
)
def test_a_record_that_is_not_as_it_is_written_is_named(broken: dict[str, Any]) -> None:
    with pytest.raises(LedgerError, match=r"^Record 3 of the ledger cannot be read: "):
        read(REQUESTED, broken)


def test_only_shortened_texts_are_filled() -> None:
    value = {"a": [CUT, "x", 1], "b": {"beginning": "x"}}
    assert fill_shortened(value) == {"a": [WHOLE, "x", 1], "b": {"beginning": "x"}}


def test_agent_events_are_known_by_their_kind() -> None:
    assert AgentStarted.kind == "agent_started"
