"""The choice of a tool for a request, its clauses, and the prompts that score tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from aisotools.agent.models.choice import (
    ANSWER,
    MOST_QUOTED_CHARS,
    SURE,
    Candidate,
    Choice,
    IntentChooser,
    Plan,
    Prompt,
    Scoring,
    answer_from,
    clauses_of,
    files_seen,
    fill_prompt,
    plan_of,
)
from aisotools.agent.models.filling import Filled
from aisotools.agent.models.spans import intents_of
from aisotools.core.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage
from aisotools.core.types import ToolDefinition

READ = ToolDefinition(
    "read_file",
    "Read a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    examples=[({"path": "a.txt"}, "Read a.txt")],
)
PRICE = ToolDefinition(
    "price",
    "Look up the price of an item.",
    {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    examples=[({"item": "milk"}, "What does milk cost?")],
)
READ_INTENT, PRICE_INTENT = intents_of([READ, PRICE])


def candidate(share: float, *, missing: tuple[str, ...] = ()) -> Candidate:
    return Candidate(
        intent=READ_INTENT, filled=Filled(missing=missing), score=share, share=share, matched=0.0
    )


class FakeEngine:
    """Answers each label with the same score, and picks the last option."""

    def __init__(self, scores: Mapping[str, float]) -> None:
        self.scores = scores
        self.picked: list[tuple[str, Sequence[str]]] = []

    def next_words(self, prompt: str, words: Sequence[str]) -> list[float]:
        return [self.scores.get(word, 0.0) for word in words]

    def pick(self, prompt: str, options: Sequence[str]) -> int:
        self.picked.append((prompt, options))
        return len(options) - 1

    def chat(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], on_text: Callable[[str], None]
    ) -> str:
        raise AssertionError("choosing needs no chat")


def test_choice_is_sure_from_a_share_on() -> None:
    assert Choice(candidates=(candidate(SURE),), chat=0.1).sure
    assert not Choice(candidates=(candidate(SURE - 0.01),), chat=0.1).sure


def test_choice_is_not_sure_if_the_likeliest_call_is_incomplete() -> None:
    choice = Choice(candidates=(candidate(0.9, missing=("path",)), candidate(0.7)), chat=0.0)
    assert not choice.sure
    assert choice.fitting == [choice.candidates[1]]


def test_nothing_fits_if_no_call_is_complete_or_chat_is_as_likely() -> None:
    assert Choice(candidates=(candidate(0.9, missing=("path",)),), chat=0.0).nothing
    assert Choice(candidates=(candidate(0.5),), chat=0.5).nothing
    assert not Choice(candidates=(candidate(0.5),), chat=0.4).nothing
    assert Choice(candidates=(), chat=1.0).nothing
    assert not Choice(candidates=(), chat=1.0).sure


def test_three_complete_calls_at_most_are_offered() -> None:
    candidates = (candidate(0.3), candidate(0.2, missing=("path",)), *[candidate(0.1)] * 3)
    assert Choice(candidates=candidates, chat=0.0).offered == [candidates[0], *[candidates[2]] * 2]


def test_words_decide_where_the_model_has_no_opinion() -> None:
    chooser = IntentChooser([READ_INTENT, PRICE_INTENT])
    choice = chooser.choose("Read notes.txt", [0.0, 0.0], 0.0)
    assert choice.candidates[0].intent is READ_INTENT
    assert choice.candidates[0].filled.arguments == {"path": "notes.txt"}
    assert sum(one.share for one in choice.candidates) + choice.chat == pytest.approx(1.0)


def test_model_decides_where_no_words_match() -> None:
    chooser = IntentChooser([READ_INTENT, PRICE_INTENT])
    assert chooser.choose("Hello!", [0.0, 0.0], 0.0).nothing
    choice = chooser.choose("Lemonade", [0.0, 20.0], 0.0)
    assert choice.candidates[0].intent is PRICE_INTENT


def test_missing_argument_costs_more_than_a_better_score() -> None:
    chooser = IntentChooser([READ_INTENT, PRICE_INTENT])
    found = {one.intent.tool.name: one for one in chooser.choose("Read", [0.0, 0.0], 0.0).candidates}
    assert found["read_file"].filled.missing == ("path",)
    assert found["read_file"].score == pytest.approx(0.9 * found["read_file"].matched - 6.0)


def test_calls_that_come_to_the_same_count_once_with_the_best_score() -> None:
    chooser = IntentChooser([READ_INTENT, READ_INTENT])
    (only,) = chooser.choose("Read notes.txt", [1.0, 2.0], 0.0).candidates
    assert only.score == pytest.approx(2.0 + 0.9 * only.matched)


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
        ("", "x" * (MOST_QUOTED_CHARS + 1), "x" * MOST_QUOTED_CHARS + "\n[... the result goes on ...]"),
    ],
)
def test_answer_quotes_the_last_result(question: str, content: str, answer: str) -> None:
    assert (
        answer_from(Plan(steps=(), question=question, last=ToolMessage("c", "read_file", content))) == answer
    )


def test_answer_without_a_result_says_so() -> None:
    assert answer_from(Plan(steps=())) == "There is nothing to answer from: no tool was called."


def test_prompt_shows_examples_in_turn_and_ends_with_the_request() -> None:
    prompt = Prompt([READ_INTENT, PRICE_INTENT])
    assert prompt.labels == ("file", "price", ANSWER)
    assert prompt.pieces[:3] == (
        "User: Read a.txt\nTool: file\n\n",
        "User: What does milk cost?\nTool: price\n\n",
        "User: Hello!\nTool: answer\n\n",
    )
    assert prompt.ask("Read\n  b.txt") == prompt.prefix + "User: Read b.txt\nTool:"


def test_fill_prompt_shows_examples_of_the_argument() -> None:
    expected = "Request: What does milk cost?\nitem: milk\n\nRequest: And tea?\nitem:"
    assert fill_prompt(PRICE_INTENT, "item", "And tea?") == expected
    assert fill_prompt(PRICE_INTENT, "other", "And tea?") == "Request: And tea?\nother:"


def test_scoring_subtracts_half_of_what_the_model_likes_anyway() -> None:
    checks: list[None] = []
    scoring = Scoring([READ, PRICE])
    engine = FakeEngine({"file": -2.0, "price": -4.0})
    choice = scoring.choose(engine, "Read notes.txt", (), lambda: checks.append(None))
    scores = {one.intent.tool.name: one for one in choice.candidates}
    assert scores["read_file"].score == pytest.approx(-1.0 + 0.9 * scores["read_file"].matched)
    calibrating = len(checks) - 1
    assert calibrating > 0
    checks.clear()
    scoring.choose(engine, "Read notes.txt", (), lambda: checks.append(None))
    assert len(checks) == 1  # calibrated once


def test_scoring_asks_the_model_to_pick_among_several_values() -> None:
    engine = FakeEngine({})
    choice = Scoring([PRICE]).choose(engine, "price Bread or Butter", (), lambda: None)
    (found,) = choice.candidates
    assert found.filled.open == {"item": ["Bread", "Butter"]}
    assert found.filled.arguments == {"item": "Butter"}
    assert engine.picked == [
        (fill_prompt(PRICE_INTENT, "item", "price Bread or Butter"), ["Bread", "Butter"])
    ]


def test_scoring_stops_when_nobody_waits() -> None:
    class Gone(Exception):
        pass

    def left() -> None:
        raise Gone

    with pytest.raises(Gone):
        Scoring([READ]).choose(FakeEngine({}), "Read a.txt", (), left)
