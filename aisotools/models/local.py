"""A real model in this process: no key, no network, and honest about how little it can do.

The bundled model is too small to write calls, but good at telling which of some words comes next. So it
scores the tools. How well the words of their examples match is added; arguments are copied from the request,
never invented. Sure: it calls. Unsure: it offers the likeliest calls to a person. Nothing fits: it says so.
Several steps are taken clause by clause, and answers quote results. English only.

An instruct model, given by its path, writes its calls itself, held to the tools' schemas by a grammar.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

from aisotools.events import ToolDefinition
from aisotools.exceptions import UsageError
from aisotools.messages import (
    CallDone,
    CallPart,
    Finished,
    Message,
    ModelEvent,
    Proposal,
    TextDelta,
    Usage,
)
from aisotools.models import local_weights
from aisotools.models.local_chat import answer_schema, chat_messages, read_answer
from aisotools.models.local_choice import Candidate, Choice
from aisotools.models.local_clauses import Plan, answer_from, plan_of
from aisotools.models.local_engine import Engine, Left, XllamacppEngine
from aisotools.models.local_scoring import Scoring

_T = TypeVar("_T")

LocalWay = Literal["score", "chat"]
"""How the model is used: it scores tools, or writes calls through its chat template."""

_PROPOSED = "I am not sure what is meant. Which of these?"
_NO_TOOLS = "There are no tools that I could call, and without tools I cannot do anything."
_NOTHING = (
    "None of the tools fits this request, as far as I can tell: {request!r}. I am a very small model; say it "
    "with one plain verb and the names of files, or ask a larger model."
)

_engines: dict[Path, XllamacppEngine] = {}
_loading = threading.Lock()


class LocalModel:
    """A model that runs here.

    Attributes:
        name: `local:` and the file's name.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        way: LocalWay | None = None,
        threads: int | None = None,
        engine: Engine | None = None,
        notice: Callable[[str], object] | None = None,
    ) -> None:
        """Choose the model; it is loaded when it is first asked.

        Args:
            path: A GGUF file; without one the small model of the extra `[local]`.
            way: How to use it; without it `chat` if the file has a chat template, else `score`.
            threads: How many processor cores to use; at most four without it.
            engine: Does the work instead of a file; for tests.
            notice: Is told the terms of the small model before its first use; standard error without it.

        Raises:
            UsageError: If there is no such file, or no such way.
        """
        if way not in {None, "score", "chat"}:
            raise UsageError(f"LocalModel(way={way!r}) is not 'score' or 'chat'.")
        self._path = None if path is None else Path(path).expanduser()
        if self._path is not None and not self._path.is_file():
            raise UsageError(
                f"LocalModel({str(path)!r}): there is no such file. Give the path of a GGUF file."
            )
        self.name = f"local:{'gemma-3-270m' if self._path is None else self._path.stem}"
        self._way = way
        self._threads = threads
        self._engine = engine
        self._notice = notice or sys.stderr.write
        self._thread: ThreadPoolExecutor | None = None
        self._scoring: tuple[str, Scoring] | None = None

    def __repr__(self) -> str:
        return f"<LocalModel {self.name}{'' if self._engine is None else ', loaded'}>"

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        """Call a tool, offer calls, or answer from results.

        Raises:
            ModelError: If the extra `[local]` is missing, or the file is no model.
        """
        if self._used_for() == "chat":
            events = self._chatted(messages, tools, instructions)
        else:
            events = self._scored(plan_of(messages), tools)
        async for event in events:
            yield event

    async def close(self) -> None:
        """Let go of the thread; the loaded file stays for other models of this process."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    # ---- scoring

    async def _scored(self, plan: Plan, tools: Sequence[ToolDefinition]) -> AsyncIterator[ModelEvent]:
        step = plan.step
        if plan.last is not None and plan.last.is_error:
            told = f"{plan.last.name} failed, so I stop here: {plan.last.content.strip()}"
            for event in _text(told):
                yield event
            return
        if step is None or not tools:
            for event in _text(answer_from(plan) if step is None and plan.done else _NO_TOOLS):
                yield event
            return
        choice = await self._in_thread(lambda left: self._choose(step, plan, tools, left))
        for event in _decided(choice, step):
            yield event

    def _choose(
        self, step: str, plan: Plan, tools: Sequence[ToolDefinition], left: Callable[[], None]
    ) -> Choice:
        engine = self._loaded()
        key = repr([(tool.name, tool.description, tool.examples, tool.parameters) for tool in tools])
        if self._scoring is None or self._scoring[0] != key:
            self._scoring = (key, Scoring(tools))
        return self._scoring[1].choose(engine, step, plan.files, left)

    # ---- chatting

    async def _chatted(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], instructions: str
    ) -> AsyncIterator[ModelEvent]:
        told, schema = chat_messages(messages, tools, instructions), answer_schema(tools)

        def chat(left: Callable[[], None]) -> str:
            return self._loaded().chat(told, schema, lambda _: left())

        answer = read_answer(await self._in_thread(chat))
        if isinstance(answer, CallPart):
            yield CallDone(answer)
            yield Usage(cost=0.0)
            yield Finished("calls")
        else:
            for event in _text(answer):
                yield event

    # ---- the engine and its thread

    def _used_for(self) -> LocalWay:
        if self._way is None:
            chats = (
                self._path is not None
                and self._engine is None
                and local_weights.has_chat_template(self._path)
            )
            self._way = "chat" if chats else "score"
        return self._way

    def _loaded(self) -> Engine:
        """The engine; one for each file in this process, as each holds the whole file in memory."""
        if self._engine is None:
            with _loading:
                path = (self._path or local_weights.weights()).resolve()
                if path not in _engines:
                    _engines[path] = XllamacppEngine(path, threads=self._threads)
                self._engine = _engines[path]
        return self._engine

    async def _in_thread(self, work: Callable[[Callable[[], None]], _T]) -> _T:
        """Run `work` off the event loop; it looks between tokens and scores whether anybody still waits."""
        if self._engine is None and self._path is None and local_weights.terms_due():
            self._notice(local_weights.TERMS)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="aisotools-local-model")
        gone = threading.Event()

        def left() -> None:
            if gone.is_set():
                raise Left

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, left)
        finally:
            gone.set()


def _decided(choice: Choice, request: str) -> list[ModelEvent]:
    """The events that a choice comes to."""
    if choice.nothing:
        return _text(_lacking(choice) or _NOTHING.format(request=request[:200]))
    if choice.sure:
        return [CallDone(_call(choice.fitting[0])), Usage(cost=0.0), Finished("calls")]
    options = tuple(_call(one) for one in choice.offered)
    return [TextDelta(_PROPOSED), Proposal(options), Usage(cost=0.0), Finished("undecided")]


def _lacking(choice: Choice) -> str:
    """What is missing for the call that seems to be meant; empty if none does."""
    first = choice.candidates[0] if choice.candidates else None
    if first is None or first.filled.complete or first.share < choice.chat or first.matched <= 0:
        return ""
    names = " and ".join(first.filled.missing)
    return f"It sounds like {first.intent.name}, but I cannot find its {names} in the request."


def _call(candidate: Candidate) -> CallPart:
    return CallPart("", candidate.intent.tool.name, dict(candidate.filled.arguments))


def _text(text: str) -> list[ModelEvent]:
    return [TextDelta(text), Usage(cost=0.0), Finished("stop")]
