"""The fold of events into entries, and the words for entries."""

from __future__ import annotations

import pytest

from aisotools.agent.transcript.entries import (
    AnswerEntry,
    CallEntry,
    EditEntry,
    NoteEntry,
    PromptEntry,
    RewindEntry,
    RunEndEntry,
    RunStartEntry,
    StepEntry,
    TranscriptEntry,
    UndoEntry,
    calls_moved,
    decided,
    effect_words,
    entries_of,
    remark,
)
from aisotools.core.events import (
    AgentFinished,
    AgentRewound,
    AgentStarted,
    ApprovalAnswered,
    CallDecided,
    CallFinished,
    CallRequested,
    CallStarted,
    ConversationEdited,
    EventsDropped,
    HistoryRecovered,
    ModelAnswered,
    ModelRequested,
    ProtectedFilesRestored,
    Redone,
    SandboxLost,
    StepTaken,
    Undone,
)
from aisotools.core.messages import AssistantMessage, Message, TextPart, ToolMessage, Usage, UserMessage
from aisotools.core.types import Approval, Decision, Effect, ToolCall, ToolResult

QUESTION = UserMessage("What is 2 + 2?")
ANSWER = AssistantMessage((TextPart("4"),))


def requested(call_id: str) -> CallRequested:
    call = ToolCall(call_id, "add", {"x": "2"}, origin="model", agent_id="a1")
    return CallRequested(time_s=0.0, call_id=call_id, call=call)


def asked_model(step: int, *new: Message) -> ModelRequested:
    return ModelRequested(time_s=0.0, agent_id="a1", step=step, turn_id=f"t{step}", new=new, digest="")


def answered_model(step: int) -> ModelAnswered:
    return ModelAnswered(
        time_s=0.0,
        agent_id="a1",
        step=step,
        turn_id=f"t{step}",
        message=ANSWER,
        usage=Usage(input_tokens=5),
        duration_s=0.5,
    )


def called(
    *,
    decision: Decision | None = None,
    decided_by: str = "",
    origin: str = "model",
    agent_id: str = "a1",
    approval: Approval | None = None,
    effect: Effect | None = None,
) -> CallEntry:
    return CallEntry(
        call_id="c1",
        name="add",
        requested_arguments={},
        arguments={},
        origin=origin,
        agent_id=agent_id,
        decision=decision,
        decided_by=decided_by,
        approval=approval,
        effect=effect,
    )


def test_run_is_start_prompt_answer_and_end() -> None:
    finished = AgentFinished(
        time_s=0.0,
        agent_id="a1",
        outcome="answered",
        steps=1,
        calls=0,
        usage=Usage(input_tokens=5),
        duration_s=1.0,
        working_s=1.0,
    )
    started = AgentStarted(time_s=0.0, agent_id="a1", model="m", instructions="Be brief.", parent_id="a0")
    assert entries_of([started, asked_model(1, QUESTION), answered_model(1), finished]) == [
        RunStartEntry(agent_id="a1", model="m", instructions="Be brief.", parent_id="a0"),
        PromptEntry(agent_id="a1", message=QUESTION),
        AnswerEntry(agent_id="a1", step=1, message=ANSWER, usage=Usage(input_tokens=5)),
        RunEndEntry(agent_id="a1", outcome="answered", reason="", usage=Usage(input_tokens=5)),
    ]


def test_results_of_calls_are_no_prompts() -> None:
    result = ToolMessage("c1", "add", "4")
    entries = entries_of([asked_model(1, QUESTION), answered_model(1), asked_model(2, result)])
    assert [type(entry) for entry in entries] == [PromptEntry, AnswerEntry]


def test_rewound_request_repeats_no_prompt_that_is_still_there() -> None:
    rewound = AgentRewound(time_s=0.0, agent_id="a1", step=1)
    entries = entries_of([asked_model(1, QUESTION), answered_model(1), rewound, asked_model(1, QUESTION)])
    assert [type(entry) for entry in entries] == [PromptEntry, AnswerEntry, RewindEntry]


def test_prompts_of_two_agents_are_kept_apart() -> None:
    other = ModelRequested(time_s=0.0, agent_id="a2", step=1, turn_id="t", new=(QUESTION,), digest="")
    assert entries_of([asked_model(1, QUESTION), other]) == [
        PromptEntry(agent_id="a1", message=QUESTION),
        PromptEntry(agent_id="a2", message=QUESTION),
    ]


def test_edits_and_steps_are_entries() -> None:
    edited = ConversationEdited(time_s=0.0, agent_id="a1", messages=(QUESTION,))
    stepped = StepTaken(time_s=0.0, agent_id="a1", call_id="c1", action="answer", text="5")
    assert entries_of([edited, stepped]) == [
        EditEntry(agent_id="a1", messages=(QUESTION,)),
        StepEntry(agent_id="a1", call_id="c1", action="answer", text="5"),
    ]


def test_call_gathers_its_events_where_it_was_requested() -> None:
    approval = Approval("approve", arguments={"x": 3})
    result = ToolResult.text("5")
    entries = entries_of(
        [
            requested("c1"),
            SandboxLost(time_s=0.0, generation=1, reason="out of memory"),
            ApprovalAnswered(time_s=0.0, call_id="c1", request_id="r1", approval=approval),
            CallDecided(
                time_s=0.0,
                call_id="c1",
                decision=Decision.ALLOW,
                decided_by="approver",
                effect=Effect.READ_ONLY,
                reasons=("it only reads",),
                arguments={"x": 3},
                digest="d",
            ),
            CallStarted(time_s=0.0, call_id="c1", runs_in="host", level="none"),
            CallFinished(time_s=0.0, call_id="c1", name="add", result=result, duration_s=1.5),
        ]
    )
    assert entries == [
        CallEntry(
            call_id="c1",
            name="add",
            requested_arguments={"x": "2"},
            arguments={"x": 3},
            origin="model",
            agent_id="a1",
            decision=Decision.ALLOW,
            decided_by="approver",
            effect=Effect.READ_ONLY,
            reasons=("it only reads",),
            approval=approval,
            runs_in="host",
            result=result,
            duration_s=1.5,
        ),
        NoteEntry(text="The sandbox was lost: out of memory."),
    ]


def test_call_ran_only_if_it_started() -> None:
    started = CallStarted(time_s=0.0, call_id="c1", runs_in="sandbox", level="confined")
    first, second = entries_of([requested("c1"), requested("c2"), started])
    assert isinstance(first, CallEntry)
    assert first.was_run
    assert isinstance(second, CallEntry)
    assert not second.was_run


def test_call_of_a_tool_is_inside_its_call_if_that_is_known() -> None:
    entries = entries_of([requested("c1"), requested("c1/1"), requested("c9/1")])
    assert [entry.inside for entry in entries if isinstance(entry, CallEntry)] == ["", "c1", ""]


def test_event_of_an_unknown_call_is_left_out() -> None:
    assert entries_of([CallStarted(time_s=0.0, call_id="c9", runs_in="host", level="none")]) == []


def test_undo_and_redo_count_files() -> None:
    undone = Undone(
        time_s=0.0, call_ids=("c2", "c1"), restored=("a", "b"), removed=("c",), steps=1, forced=True
    )
    redone = Redone(time_s=0.0, call_ids=("c1",), variables="restored")
    assert entries_of([undone, redone]) == [
        UndoEntry(direction="undo", call_ids=("c2", "c1"), steps=1, forced=True, restored=2, removed=1),
        UndoEntry(direction="redo", call_ids=("c1",), variables="restored"),
    ]


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (RunEndEntry(agent_id="a", outcome="answered", reason="", usage=Usage()), ""),
        (
            RunEndEntry(agent_id="a", outcome="cancelled", reason="", usage=Usage()),
            "The run ended: cancelled",
        ),
        (
            RunEndEntry(agent_id="a", outcome="budget", reason="3 steps", usage=Usage()),
            "The run ended: budget, 3 steps",
        ),
        (RewindEntry(agent_id="a", step=2), "The run was taken back to before step 2."),
        (EditEntry(agent_id="a", messages=()), "What was said was edited by hand here."),
        (
            StepEntry(agent_id="a", call_id="", action="stop"),
            "Whoever steps through the run chose here: stop.",
        ),
        (
            StepEntry(agent_id="a", call_id="c1", action="skip"),
            "Whoever steps through the run chose for a call: skip.",
        ),
        (
            StepEntry(agent_id="a", call_id="c1", action="answer", text="5"),
            "Whoever steps through the run chose for a call: answer: 5.",
        ),
        (RunStartEntry(agent_id="b", model="m"), ""),
        (
            RunStartEntry(agent_id="b", model="m", parent_id="a"),
            "Agent b begins to work for agent a.",
        ),
        (
            UndoEntry(direction="undo", call_ids=("c1",), restored=1),
            "1 call was undone: 1 files brought back, 0 removed.",
        ),
        (
            UndoEntry(direction="redo", call_ids=("c1", "c2"), removed=2, variables="as before."),
            "2 calls were redone: 0 files brought back, 2 removed. Variables: as before.",
        ),
        (NoteEntry(text="The sandbox was lost."), "The sandbox was lost."),
        (PromptEntry(agent_id="a", message=QUESTION), ""),
    ],
)
def test_remark(entry: TranscriptEntry, text: str) -> None:
    assert remark(entry) == text


def test_calls_moved_counts_calls() -> None:
    assert calls_moved(UndoEntry(direction="undo", call_ids=())) == "0 calls were undone"
    assert calls_moved(UndoEntry(direction="redo", call_ids=("c1",))) == "1 call was redone"


def test_effect_in_the_words_of_the_cards() -> None:
    assert effect_words(called()) == "unknown effect"
    assert effect_words(called(effect=Effect.LOCAL_MUTATION)) == "local change"


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (called(), "by model a1 · refused by the gate"),
        (
            called(origin="program", agent_id="", decision=Decision.ALLOW, decided_by="policy"),
            "by program · allow by policy",
        ),
        (called(approval=Approval("timeout")), "by model a1 · asked: timeout"),
        (called(approval=Approval("deny", reason="too\nrisky")), "by model a1 · asked: deny (too risky)"),
        (
            called(approval=Approval("approve", arguments={})),
            "by model a1 · asked: approve with edited arguments",
        ),
    ],
)
def test_decided(entry: CallEntry, text: str) -> None:
    assert decided(entry) == text


@pytest.mark.parametrize(
    ("kinds", "what"),
    [(("call_output",), "printed output and reports"), (("call_requested",), "events, calls among them")],
)
def test_dropped_events_become_a_note(kinds: tuple[str, ...], what: str) -> None:
    dropped = EventsDropped(time_s=0, count=1200, kinds=kinds, size_bytes=9, reason="over the budget")
    (entry,) = entries_of([dropped])
    assert (
        remark(entry) == f"Not everything is shown here. 1,200 earlier {what} were dropped: over the budget."
    )


def test_recovered_work_is_told() -> None:
    (entry,) = entries_of([HistoryRecovered(time_s=0.0, notes=("One.", "Two."))])
    assert isinstance(entry, NoteEntry)
    assert entry.text == "One. Two."


def test_protected_files_that_were_put_back_are_told() -> None:
    event = ProtectedFilesRestored(
        time_s=0.0, changes=("'a' (new; taken away)",), count=3, problem="it has b"
    )
    (entry,) = entries_of([event])
    assert isinstance(entry, NoteEntry)
    assert entry.text == (
        "Something that an earlier call left running (or a person right after a call) had changed protected "
        "files: 'a' (new; taken away) and 2 more. The workspace cannot be watched for protected files: it "
        "has b."
    )
