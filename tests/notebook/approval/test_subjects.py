"""A model's own question in the notebook: a card below the running cell, and never a hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aisotools.core.exceptions import ArgumentError
from aisotools.core.protocols import UserQuestion
from aisotools.notebook.approval.subjects import (
    ApprovalSubject,
    QuestionReply,
    parse_reply,
    question_payload,
    question_record_bundle,
)
from tests.notebook.client import WIDGET_VIEW, Notebook
from tests.notebook.inert import assert_inert
from tests.policy.test_prompts import a_request

SETUP = """
from aisotools.policy.approvers import ask_question
from aisotools.core.protocols import UserQuestion
from aisotools.notebook.approval.approver import NotebookApprover, pending_prompts

async def ask_user(text="Which <b>one</b>?", choices=("a", "b"), hello_s=60.0, timeout_s=30.0):
    question = UserQuestion(id="q1", text=text, choices=tuple(choices), agent_id="ann", timeout_s=timeout_s)
    print(repr(await ask_question(NotebookApprover(hello_s=hello_s), question)), len(pending_prompts()))
"""
HOSTILE = "<script>alert(1)</script>\u202e which\nof these?"


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    notebook = Notebook()
    notebook.run(SETUP)
    yield notebook
    notebook.close()


async def test_calls_of_a_batch_are_not_asked_about_when_its_time_is_up() -> None:
    prompts: list[str] = []
    shown: list[object] = []

    def read_line(prompt: str) -> str:
        prompts.append(prompt)
        while True:  # a thread is cancelled between two of its own steps only
            threading.Event().wait(0.001)

    subject = ApprovalSubject(tuple(a_request({"n": n}, timeout_s=5.0) for n in range(3)))
    answers = await subject.read_typed(read_line, shown.append, asyncio.get_running_loop().time())
    assert [answer.outcome for answer in answers] == ["timeout"] * 3
    assert len(shown) == 1
    assert len(prompts) <= 1


def test_a_choice_on_the_card(notebook: Notebook) -> None:
    run = notebook.start("await ask_user()")
    card = notebook.card(run)
    assert WIDGET_VIEW in run.displays[0]
    assert "1. a" in run.displays[0]["text/plain"]
    (shown,) = run.from_kernel
    assert shown["view"] == {
        "question": "Which <b>one</b>?",
        "who": "agent ann",
        "choices": ["a", "b"],
        "longest": 10_000,
    }
    notebook.decide(run, "answer", answer=7)
    notebook.until(run, lambda: run.from_kernel[-1]["type"] == "invalid")
    notebook.decide(run, "answer", answer=1)
    notebook.until(run, lambda: run.ended)
    assert run.text == "'b' 0\n"
    assert card not in run.closed
    assert run.from_kernel[-1]["type"] == "accepted"
    (record,) = run.shown.values()
    assert record.keys() == {"text/html", "text/plain"}
    assert_inert(record["text/html"])
    assert "-> b" in record["text/plain"]
    assert "other choices: a" in record["text/plain"]


def test_text_on_the_card(notebook: Notebook) -> None:
    run = notebook.start("await ask_user(choices=())")
    notebook.card(run)
    notebook.decide(run, "answer", answer="  ")
    notebook.until(run, lambda: "Type an answer" in run.from_kernel[-1].get("message", ""))
    notebook.decide(run, "answer", answer=" report.md ")
    notebook.until(run, lambda: run.ended)
    assert run.text == "'report.md' 0\n"


@pytest.mark.parametrize(("line", "answer"), [("2", "'b'"), ("a", "'a'"), ("", "None")])
def test_without_a_page_an_input_box_asks(notebook: Notebook, line: str, answer: str) -> None:
    run = notebook.start("await ask_user(hello_s=0.1)")
    assert "answer" in notebook.typed(line)
    notebook.until(run, lambda: run.ended)
    assert run.text == f"{answer} 0\n"


def test_no_answer_is_an_answer_too(notebook: Notebook) -> None:
    run = notebook.start("await ask_user()")
    notebook.card(run)
    notebook.decide(run, "none")
    notebook.until(run, lambda: run.ended)
    assert run.text == "None 0\n"
    assert "No answer was given" in next(iter(run.shown.values()))["text/plain"]


def test_time_runs_out(notebook: Notebook) -> None:
    run = notebook.start("await ask_user(timeout_s=2)")
    notebook.card(run)
    notebook.until(run, lambda: run.ended)
    assert run.text == "None 0\n"
    assert "Not answered in time" in next(iter(run.shown.values()))["text/plain"]


def test_without_a_person_nobody_is_asked(notebook: Notebook) -> None:
    run = notebook.run("await ask_user()", allow_stdin=False)
    assert run.text == "None 0\n"
    assert not run.displays


def test_stop_while_it_stands(notebook: Notebook) -> None:
    run = notebook.start("await ask_user()")
    notebook.card(run)
    notebook.manager.interrupt_kernel()
    notebook.until(run, lambda: run.ended)
    assert "Stopped before an answer" in next(iter(run.shown.values()))["text/plain"]
    assert notebook.run("print(len(pending_prompts()))").text == "0\n"


@pytest.mark.parametrize(
    "message",
    [{}, {"outcome": "answer"}, {"outcome": "answer", "answer": True}, {"outcome": "answer", "answer": "a"}],
)
def test_an_invalid_reply_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="could not be read"):
        parse_reply(UserQuestion(id="i", text="?", choices=("a", "b")), message)


def test_everything_in_it_can_be_seen_and_nothing_acts() -> None:
    question = UserQuestion(id="i", text=HOSTILE, choices=("<img src=x onerror=y>", "b\u200b"))
    assert "\u202e" not in question_payload(question)["question"]
    record = question_record_bundle(question, QuestionReply("answer", "b\u200b"))
    assert_inert(record["text/html"])
    assert "\u200b" not in record["text/plain"] + record["text/html"]
