"""Plans: clauses of requests, steps done in a conversation, files seen, and the answer."""

from __future__ import annotations

import pytest

from aisotools.agent.models.local import (
    MAX_QUOTED_CHARS,
    Plan,
    clauses_of,
    files_seen,
    plan_of,
    quote_last_result,
)
from aisotools.core.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage


@pytest.mark.parametrize(
    ("request_text", "clauses"),
    [
        ("Read a.txt", ["Read a.txt"]),
        ("Read a.txt and then write b.txt", ["Read a.txt", "write b.txt"]),
        ("Read a.txt, delete it", ["Read a.txt", "delete it"]),
        ("1. Read a.txt\n2. Delete b.txt", ["Read a.txt", "Delete b.txt"]),
        ("First, please read a.txt. Tell me more", ["read a.txt", "Tell me more"]),
        ('Write "a and then b" to c.txt', ['Write "a and then b" to c.txt']),
        ("Run this code: a = 1\nprint(a)", ["Run this code: a = 1\nprint(a)"]),
        ("Salt and pepper", ["Salt and pepper"]),
    ],
)
def test_clauses(request_text: str, clauses: list[str]) -> None:
    assert clauses_of(request_text) == clauses


def test_plan_without_a_request_has_no_step() -> None:
    assert plan_of([]) == Plan(steps=())
    assert plan_of([]).step is None


def test_plan_counts_answers_with_calls_since_the_last_request() -> None:
    call = CallPart("c1", "read_file", {"path": "a.txt"})
    result = ToolMessage("c1", "read_file", "four")
    messages: list[Message] = [
        UserMessage("Read old.txt"),
        AssistantMessage((CallPart("c0", "read_file", {}),)),
        ToolMessage("c0", "read_file", "old"),
        UserMessage("Read a.txt, then read b.txt, then tell me which is longer"),
    ]
    plan = plan_of(messages)
    assert (plan.steps, plan.question) == (("Read a.txt", "read b.txt"), "tell me which is longer")
    assert (plan.step, plan.last) == ("Read a.txt", None)
    plan = plan_of([*messages, AssistantMessage((call,)), result])
    assert (plan.done, plan.step, plan.last) == (1, "read b.txt", result)
    plan = plan_of([*messages, AssistantMessage((call,)), result, AssistantMessage((call,)), result])
    assert plan.step is None


def test_question_about_a_file_is_a_step() -> None:
    plan = plan_of([UserMessage("Read a.txt, then tell me what is in b.txt")])
    assert (plan.steps, plan.question) == (("Read a.txt", "tell me what is in b.txt"), "")


def test_files_of_results_are_under_the_folder_of_the_call_the_latest_first() -> None:
    messages: list[Message] = [
        AssistantMessage((CallPart("c1", "file", {"operation": "list", "path": "data/"}),)),
        ToolMessage("c1", "file", "a.csv\ndata/b.csv\nsub/"),
        AssistantMessage((CallPart("c2", "file", {"operation": "list"}),)),
        ToolMessage("c2", "file", "top.txt"),
    ]
    assert files_seen(messages) == ("top.txt", "data/a.csv", "data/b.csv")


@pytest.mark.parametrize("operation", ["read", "list"])
def test_files_in_read_contents_errors_and_unknown_results_do_not_count(operation: str) -> None:
    messages: list[Message] = [
        AssistantMessage((CallPart("c1", "file", {"operation": operation}),)),
        ToolMessage("c1", "file", "a.csv", is_error=operation == "list"),
        ToolMessage("c9", "file", "b.csv"),
    ]
    assert files_seen(messages) == ()


@pytest.mark.parametrize(
    ("question", "content", "answer"),
    [
        ("", " four \n", "four"),
        ("which is the apple", "apple 3\npear 4\nplum 5", "apple 3"),
        ("which is the cherry", "apple 3\npear 4", "apple 3\npear 4"),
        ("which apple", "apple\n" * 4, "apple\napple\napple\napple"),
        ("", "", "read_file returned an empty result."),
        ("", "x" * (MAX_QUOTED_CHARS + 1), "x" * MAX_QUOTED_CHARS + "\n[... the result goes on ...]"),
    ],
)
def test_answer_quotes_the_last_result(question: str, content: str, answer: str) -> None:
    assert (
        quote_last_result(Plan(steps=(), question=question, last=ToolMessage("c", "read_file", content)))
        == answer
    )


def test_answer_without_a_result_says_so() -> None:
    assert quote_last_result(Plan(steps=())) == "There is nothing to answer from: no tool was called."
