"""The local model around a made-up language model: what is called, offered, said and left."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.models import local_engine
from aisotools.agent.models.filling import Filler
from aisotools.agent.models.local import LocalModel, clauses_of, files_seen
from aisotools.agent.models.local_engine import INSTALL
from aisotools.agent.models.spans import MAX_REQUEST_CHARS, intents_of, spans_of
from aisotools.builtin import builtin_tools
from aisotools.core.exceptions import ModelError, UsageError
from aisotools.core.messages import (
    AssistantMessage,
    CallDone,
    CallPart,
    Finished,
    Message,
    Proposal,
    TextDelta,
    ToolMessage,
    UserMessage,
)
from aisotools.core.types import ToolDefinition
from tests.agent.models.local_tools import definitions
from tests.agent.rules import assert_sound
from tests.conftest import OpenSession
from tests.waiting import HANG_S, eventually
from tests.work import lines_run

TOOLS = definitions()
MODELS = str(Path(local_engine.__file__).parent)


class FakeEngine:
    """Likes what it is told to like; indifferent without."""

    def __init__(self, *liked: str, answers: Sequence[str] = (), hold: threading.Event | None = None) -> None:
        self.liked = liked
        self.answers = list(answers)
        self.hold = hold
        self.steps = 0
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def _step(self) -> None:
        """Work until there is no reason to be held."""
        self.steps += 1
        if self.hold is not None:
            self.hold.wait(HANG_S)

    def next_words(self, prompt: str, words: Sequence[str]) -> list[float]:
        self.asked.append(prompt)
        self.threads.add(threading.get_ident())
        self._step()
        return [-1.0 if word in self.liked else -5.0 for word in words]

    def pick(self, prompt: str, options: Sequence[str]) -> int:
        return len(options) - 1

    def chat(
        self, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any], on_text: Callable[[str], None]
    ) -> str:
        self.asked.append(json.dumps([dict(message) for message in messages]))
        answer = self.answers.pop(0)
        for letter in answer:
            self._step()
            on_text(letter)
        return answer


async def events_of(
    model: LocalModel, *messages: Message | str, tools: Sequence[ToolDefinition] = TOOLS
) -> list[Any]:
    asked = [UserMessage(one) if isinstance(one, str) else one for one in messages]
    return [event async for event in model.request(asked, tools)]


async def test_sure_calls() -> None:
    call, *_, end = await events_of(LocalModel(engine=FakeEngine("list")), "List the files in data")
    assert call == CallDone(CallPart("", "file", {"operation": "list", "path": "data"}))
    assert end == Finished("calls")


async def test_unsure_offers_three() -> None:
    engine = FakeEngine("read", "delete", "metadata")
    text, proposal, *_, end = await events_of(LocalModel(engine=engine), "Do something about a.txt")
    assert isinstance(text, TextDelta)
    assert isinstance(proposal, Proposal)
    assert len(proposal.options) == 3
    assert all(option.arguments["path"] == "a.txt" for option in proposal.options)
    assert end == Finished("undecided")


async def test_nothing_fits_says_so() -> None:
    text, *_, end = await events_of(LocalModel(engine=FakeEngine("answer")), "Who wrote Hamlet?")
    assert "None of the tools fits this request" in text.text
    assert end == Finished("stop")
    text, *_ = await events_of(LocalModel(engine=FakeEngine()), "List the files", tools=[])
    assert "There are no tools" in text.text


async def test_the_model_runs_off_the_loop_and_reads_its_prompt_once() -> None:
    engine = FakeEngine("list")
    model = LocalModel(engine=engine)
    await events_of(model, "List the files")
    first = len(engine.asked)
    await events_of(model, "List the files in data")
    assert len(engine.asked) == first + 1
    assert threading.get_ident() not in engine.threads
    await model.close()


@pytest.mark.parametrize("way", ["score", "chat"])
async def test_leaving_stops_the_work(way: Any) -> None:
    release = threading.Event()
    engine = FakeEngine("list", answers=["x" * 500], hold=release)
    model = LocalModel(engine=engine, way=way)
    task = asyncio.ensure_future(events_of(model, "List the files in data"))
    await eventually(lambda: engine.steps)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.steps == 1, "leaving does not wait for the engine"
    release.set()
    await model.close()
    assert engine.steps <= 2, "it went on although nobody waits"


async def test_a_failed_call_ends_it_honestly() -> None:
    call = CallPart("1", "file", {"operation": "read", "path": "a.txt"})
    done = AssistantMessage((call,), reason="calls")
    failed = ToolMessage("1", "file", "There is no file a.txt.", is_error=True)
    text, *_ = await events_of(LocalModel(engine=FakeEngine()), "Read a.txt and delete it", done, failed)
    assert text.text == "file failed, so I stop here: There is no file a.txt."


async def test_three_steps_with_files_seen_so_far(open_session: OpenSession) -> None:
    session = open_session(*builtin_tools("files"))
    assert session.workspace is not None
    (session.workspace / "data").mkdir(parents=True)
    (session.workspace / "data/letter.txt").write_text("Dear Ada,\nthe answer is 42.\nYours")
    (session.workspace / "data/other.txt").write_text("nothing")
    agent = Agent(LocalModel(engine=FakeEngine("list", "read")), session, tools=["file"])
    result = await agent.run("List the files in data. Then read the letter and tell me what the answer is.")
    calls = [call.arguments for m in agent.messages if isinstance(m, AssistantMessage) for call in m.calls]
    assert calls == [
        {"operation": "list", "path": "data"},
        {"operation": "read", "path": "data/letter.txt"},
    ]
    assert result.outcome == "answered"
    assert "the answer is 42" in result.text
    assert_sound(agent)


@pytest.mark.parametrize(
    ("request_", "clauses"),
    [
        ("List the files", ["List the files"]),
        ("List the files, then read a.txt", ["List the files", "read a.txt"]),
        ("Read a.txt and tell me how long it is", ["Read a.txt", "tell me how long it is"]),
        ("Write 'read it and then stop' to a.txt", ["Write 'read it and then stop' to a.txt"]),
        ("1. List data\n2. Read data/a.txt", ["List data", "Read data/a.txt"]),
        ("Run this Python code: x = 1; print(x)", ["Run this Python code: x = 1; print(x)"]),
        ("Copy a.txt and b.txt", ["Copy a.txt and b.txt"]),
    ],
)
def test_clauses(request_: str, clauses: list[str]) -> None:
    assert clauses_of(request_) == clauses


def test_files_are_seen_in_results_only() -> None:
    call = AssistantMessage((CallPart("1", "file", {"operation": "list", "path": "d"}),))
    assert files_seen([UserMessage("x.txt"), call, ToolMessage("1", "file", "a.txt  3 bytes\nb/c.md")]) == (
        "d/a.txt",
        "d/b/c.md",
    )


def test_spans() -> None:
    found = [
        (span.kind, span.text) for span in spans_of("put 'it's 5' in a/b.txt on 2024-01-02, 3.5 or 2*(3+4)")
    ]
    assert found == [
        ("quoted", "it's 5"),
        ("file", "a/b.txt"),
        ("date", "2024-01-02"),
        ("number", "3.5"),
        ("expression", "2*(3+4)"),
    ]


def understand(request: str) -> None:
    """Do what is done with a request before a model is asked."""
    for intent in intents_of(TOOLS):
        Filler(intent, request).fill()
    clauses_of(request)


def test_hostile_requests_take_little_work() -> None:
    for text in (
        "((((" * 5_000,
        "1+" * 5_000,
        "'" * 9_999,
        "a/" * 9_000,
        "find " * 4_000,
        "run the " * 4_000,
        ". " * 9_000,
    ):
        work = lines_run(partial(understand, text[:MAX_REQUEST_CHARS]), below=MODELS)
        assert 0 < work < 2_000 * MAX_REQUEST_CHARS, text[:10]


def test_every_argument_is_copied_from_the_request() -> None:
    rows = [json.loads(line) for line in REQUESTS.read_text("utf-8").splitlines()]
    for row in rows:
        for intent in intents_of(TOOLS):
            filled = Filler(intent, row["request"]).fill()
            for name, value in filled.arguments.items():
                slot = next((one for one in intent.slots if one.name == name), None)
                if slot is not None and slot.kind in {"path", "url", "phrase", "text"}:
                    assert str(value) in row["request"], (row["request"], name, value)


REQUESTS = Path(__file__).parents[2] / "data" / "local_requests.jsonl"


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        LocalModel(tmp_path / "none.gguf")
    with pytest.raises(UsageError, match="not 'score' or 'chat'"):
        LocalModel(way="think")  # type: ignore[arg-type]  # the mistake
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        local_engine.has_chat_template(text)


def test_chat_template_is_found_in_the_file(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF" + b"\0" * (5 << 20) + b"tokenizer.chat_template")
    assert local_engine.has_chat_template(model)
    model.write_bytes(b"GGUF" + b"\0" * 100)
    assert not local_engine.has_chat_template(model)


def test_missing_package_is_reported_with_the_command_that_installs_it() -> None:
    assert 'pip install "aisotools[local]"' in INSTALL


async def test_an_instruct_model_writes_its_calls() -> None:
    answers = ['{"tool": "area", "arguments": {"width": 2, "height": 3}}', '{"answer": "It is 6."}', "so so"]
    engine = FakeEngine(answers=answers)
    model = LocalModel(engine=engine, way="chat")
    call, *_ = await events_of(model, "How large is 2 by 3?")
    assert call == CallDone(CallPart("", "area", {"width": 2, "height": 3}))
    text, *_ = await events_of(model, "How large is 2 by 3?")
    assert text.text == "It is 6."
    text, *_ = await events_of(model, "How large is 2 by 3?")
    assert text.text == "so so"
    assert "Area of a rectangle" in engine.asked[0]
