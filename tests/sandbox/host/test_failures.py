from __future__ import annotations

from typing import Any

import pytest

from aisotools.core.exceptions import WorkerDied
from aisotools.core.protocols import ToolPayload
from aisotools.core.sandboxes import CallDispatch, SandboxCall, VariablePoint
from aisotools.core.types import ToolCall, ToolResult
from aisotools.sandbox.host.failures import (
    Recovery,
    describe_exit,
    describe_recovery,
    explain_replaced,
    recovery_metadata,
    timeout_result,
    unreadable_result,
    worker_died_result,
)

POINT = VariablePoint(call_id="c7")
PARTIAL = VariablePoint(call_id="c7", label="partial", lost=("threads: t", "2 pipes"))
LOST_SENTENCE = " Lost: threads: t; 2 pipes."


@pytest.mark.parametrize(
    ("recovery", "sentence"),
    [
        (None, "Its variables are lost; the next call gets a fresh worker."),
        (
            Recovery(point=POINT, is_complete=True),
            "The variables were restored to what they were before this call.",
        ),
        (
            Recovery(point=POINT, is_complete=False),
            "The variables were restored to what they were before the call c7; later changes are lost.",
        ),
        (
            Recovery(point=PARTIAL, is_complete=True),
            "The variables were restored to what they were before this call." + LOST_SENTENCE,
        ),
    ],
)
def test_a_recovery_in_words(recovery: Recovery | None, sentence: str) -> None:
    assert describe_recovery(recovery) == sentence


@pytest.mark.parametrize(("is_complete", "moment"), [(True, "this call"), (False, "the call c7")])
def test_a_pending_recovery_is_not_reported_as_done(is_complete: bool, moment: str) -> None:
    sentence = describe_recovery(Recovery(point=POINT, is_complete=is_complete, is_pending=True))
    assert sentence.startswith(f"A snapshot of the variables from before {moment} exists")
    assert "that had not finished when this was reported" in sentence
    assert "were restored" not in sentence


@pytest.mark.parametrize(
    ("recovery", "metadata"),
    [
        (None, {"state_kept": False}),
        (
            Recovery(point=POINT, is_complete=True),
            {"state_kept": True, "state_label": "exact", "state_before": "c7"},
        ),
        (
            Recovery(point=POINT, is_complete=True, is_pending=True),
            {"state_kept": False, "state_pending": True, "state_label": "exact", "state_before": "c7"},
        ),
        (
            Recovery(point=PARTIAL, is_complete=False),
            {
                "state_kept": False,
                "state_label": "partial",
                "state_before": "c7",
                "state_lost": ["threads: t", "2 pipes"],
            },
        ),
    ],
)
def test_metadata(recovery: Recovery | None, metadata: dict[str, Any]) -> None:
    assert recovery_metadata(recovery) == metadata


def test_a_death_names_the_reason_and_the_last_output() -> None:
    result = worker_died_result(WorkerDied("it ended", last_words="x" * 5000 + "end"), None)
    head = "The sandbox's worker ended during the call: it ended. Its variables are lost; "
    assert result.content.startswith(head)
    assert result.content.endswith("end")
    assert len(result.content.partition("\nIts last output:\n")[2]) == 4000
    assert (result.is_error, result.error_kind) == (True, "environment")
    assert result.metadata == {"worker_died": True, "state_kept": False}


def test_a_death_without_a_last_output() -> None:
    result = worker_died_result(WorkerDied("it ended"), Recovery(point=POINT, is_complete=True))
    assert "last output" not in result.content
    assert result.metadata["state_kept"] is True


def test_a_timeout_of_a_call_that_was_interrupted() -> None:
    result = timeout_result("python", 0.25, {"stdout": "1\n"}, partial="KeyboardInterrupt", recovery=None)
    assert result.content == (
        "python timed out after 0.25 s. Variables are kept, including changes made before the timeout.\n"
        "KeyboardInterrupt"
    )
    assert (result.is_error, result.error_kind) == (True, "failed")
    assert result.metadata == {"timed_out": True, "state_kept": True, "stdout": "1\n"}


def test_a_timeout_of_a_call_that_was_killed() -> None:
    output = {"stdout": "a" * 3000 + "end", "stderr": "oh"}
    result = timeout_result("bash", 3, output, partial=None, recovery=None)
    reason, out, err = result.content.split("\n")
    assert reason == (
        "bash timed out after 3 s. It could not be interrupted. Its variables are lost; "
        "the next call gets a fresh worker."
    )
    assert (len(out), out[-3:], err) == (2000, "end", "oh")
    assert result.metadata == {"timed_out": True, "state_kept": False, **output}


def test_loss_before_a_call_is_the_first_line_of_its_result() -> None:
    note = "[Before this call the sandbox's worker ended: it exited.]"
    dispatch = CallDispatch()
    assert explain_replaced(ToolResult(content="1\n2"), "it exited.", dispatch).content == f"{note}\n1\n2"
    assert dispatch.loss == note
    assert explain_replaced(ToolResult(content=""), "it exited", dispatch).content == note


LESS_DATA = "if the call takes much memory, try it with less data"


@pytest.mark.parametrize(
    ("exit_status", "signal_number", "words"),
    [
        (0, 0, "it exited with status 0"),
        (-1, 0, "its exit status is not known"),
        (-1, 11, "it was ended by SIGSEGV"),
        (-1, 9, f"it was ended by SIGKILL, whose sender is not known; {LESS_DATA}"),
        (-1, 24, "it was ended by SIGXCPU, which the kernel sends when processor time is used up"),
        (-1, 2**40, "it was ended by signal 1099511627776"),
    ],
)
def test_the_end_of_a_process_in_words(exit_status: int, signal_number: int, words: str) -> None:
    assert describe_exit(exit_status, signal_number) == words


def call_of(tool: str, import_path: str = "") -> SandboxCall:
    payload = ToolPayload(key=tool, import_path=import_path)
    call = ToolCall(id="one", name=tool, arguments={}, origin="model")
    return SandboxCall(call=call, shipment=payload, timeout_s=1.0)


def test_a_reader_that_found_no_room_names_what_makes_room() -> None:
    busy = unreadable_result(
        call_of("area"), "the process could not be forked (Resource temporarily unavailable)"
    )
    assert "%sandbox restart" in busy.content
    assert "effect='local_mutation'" not in busy.content


def test_a_reader_that_could_not_be_made_names_what_helps() -> None:
    reason = "it stopped answering"
    theirs = unreadable_result(call_of("area", "theirs:area"), reason)
    assert theirs.content.endswith(
        "could be made for it: it stopped answering. Try again. If that fails as well, restart the sandbox "
        "(`%sandbox restart`, `await session.restart()`), which loses its variables, or declare the tool "
        "with effect='local_mutation'."
    )
    # Nobody can declare a tool of ours.
    for ours in (call_of("variables", "aisotools.builtin.python:variables"), call_of("session.get")):
        assert unreadable_result(ours, reason).content.endswith("which loses its variables.")
