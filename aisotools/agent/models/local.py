"""Models in this process, without key or network: a small bundled one that chooses tools, or one of a file.

The bundled model is too small to write calls, but good at telling which of some words comes next. So it
scores the tools. How well the words of their examples match is added; arguments are copied from the request,
never invented. Sure: it calls. Unsure: it offers the likeliest calls to a person. Nothing fits: it says so.
Several steps are taken clause by clause, and answers quote results. English only.

An instruct model, given by its path, writes its calls itself, held to the tools' schemas by a grammar.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from aisotools.agent.models import local_engine
from aisotools.agent.models.choice import Candidate, Choice, IntentScorer
from aisotools.agent.models.local_engine import CallerGone, Engine, XllamacppEngine
from aisotools.agent.models.spans import spans_of, terms
from aisotools.core.exceptions import UsageError
from aisotools.core.messages import (
    AssistantMessage,
    CallDone,
    CallPart,
    Finished,
    Message,
    ModelEvent,
    Proposal,
    TextDelta,
    ToolMessage,
    Usage,
    UserMessage,
    call_from_text,
)
from aisotools.core.types import ToolDefinition

_HOW = (
    'Answer with one JSON object: {"tool": NAME, "arguments": {...}} to call a tool, or {"answer": TEXT} '
    "when no tool is needed or the results say all. Call one tool at a time. The tools:"
)


def chat_messages(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], instructions: str
) -> list[dict[str, str]]:
    """Return the conversation for a chat template: texts only, with alternating roles."""
    chat: list[dict[str, str]] = [{"role": "system", "content": _system(tools, instructions)}]
    for message in messages:
        if isinstance(message, UserMessage):
            role, content = "user", message.text
        elif isinstance(message, AssistantMessage):
            role, content = "assistant", _answer_text(message)
        else:
            role, content = "user", _result(message)
        if chat[-1]["role"] == role:
            chat[-1]["content"] += f"\n\n{content}"
        else:
            chat.append({"role": role, "content": content})
    return chat


def answer_schema(tools: Sequence[ToolDefinition]) -> dict[str, Any]:
    """Return the JSON Schema of an answer: a call of one of the tools, or a text."""
    kinds: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {"tool": {"const": tool.name}, "arguments": _simple(tool.parameters)},
            "required": ["tool", "arguments"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    kinds.append(
        {
            "type": "object",
            "properties": {"answer": {"type": "string"}},
            "required": ["answer"],
            "additionalProperties": False,
        }
    )
    return {"anyOf": kinds}


def read_answer(text: str) -> CallPart | str:
    """Return the call or the text in a model's answer; an answer that cannot be parsed is a text."""
    try:
        answer: object = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip() or "The model did not answer."
    if isinstance(answer, dict) and isinstance(answer.get("tool"), str):
        return call_from_text("", answer["tool"], json.dumps(answer.get("arguments", {})))
    if isinstance(answer, dict) and isinstance(answer.get("answer"), str):
        return str(answer["answer"])
    return text.strip()


def _system(tools: Sequence[ToolDefinition], instructions: str) -> str:
    lines = [instructions, _HOW] if instructions else [_HOW]
    for tool in tools:
        names = ", ".join(tool.parameters.get("properties", {}))
        lines.append(f"- {tool.name}({names}): {tool.description.strip().partition(chr(10))[0]}")
        lines += [
            f"  {request} -> {json.dumps(dict(arguments))}" for arguments, request in list(tool.examples)[:2]
        ]
    return "\n".join(lines)


def _answer_text(message: AssistantMessage) -> str:
    calls = [json.dumps({"tool": call.name, "arguments": dict(call.arguments)}) for call in message.calls]
    return "\n".join(calls) or json.dumps({"answer": message.text})


def _result(message: ToolMessage) -> str:
    return f"Result of {message.name}{' (an error)' if message.is_error else ''}:\n{message.content}"


def _simple(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema without the keywords that a grammar cannot express."""
    expressible: dict[str, Any] = {}
    for key, value in schema.items():
        if key in {
            "description",
            "title",
            "pattern",
            "format",
            "default",
            "examples",
            "writeOnly",
        } and not isinstance(value, Mapping):
            continue
        if key in {"minLength", "maxLength", "minItems", "maxItems"}:
            continue
        if isinstance(value, Mapping):
            expressible[key] = _simple(value)
        elif isinstance(value, list):
            expressible[key] = [_simple(one) if isinstance(one, Mapping) else one for one in value]
        else:
            expressible[key] = value
    return expressible


_T = TypeVar("_T")

LocalWay = Literal["score", "chat"]
"""The mode of use: the model scores tools, or writes calls through its chat template."""

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
            notice: Called with the terms of the small model before its first use; without it they are
                written to standard error.

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
        self._scorer: tuple[str, IntentScorer] | None = None

    def __repr__(self) -> str:
        return f"<LocalModel {self.name}{'' if self._engine is None else ', loaded'}>"

    async def request(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], *, instructions: str = ""
    ) -> AsyncIterator[ModelEvent]:
        """Call a tool, offer calls, or answer from results.

        Raises:
            ModelError: If the extra `[local]` is missing, or the file is not a model.
        """
        if self._choose_way() == "chat":
            events = self._answer_by_chat(messages, tools, instructions)
        else:
            events = self._answer_by_scores(plan_of(messages), tools)
        async for event in events:
            yield event

    async def close(self) -> None:
        """Let go of the thread; the loaded file stays for other models of this process."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None

    # ---- scoring

    async def _answer_by_scores(
        self, plan: Plan, tools: Sequence[ToolDefinition]
    ) -> AsyncIterator[ModelEvent]:
        step = plan.step
        if plan.last is not None and plan.last.is_error:
            text = f"{plan.last.name} failed, so I stop here: {plan.last.content.strip()}"
            for event in _text(text):
                yield event
            return
        if step is None or not tools:
            for event in _text(quote_last_result(plan) if step is None and plan.done else _NO_TOOLS):
                yield event
            return
        choice = await self._in_thread(lambda check_waiting: self._choose(step, plan, tools, check_waiting))
        for event in _events_of_choice(choice, step):
            yield event

    def _choose(
        self, step: str, plan: Plan, tools: Sequence[ToolDefinition], check_waiting: Callable[[], None]
    ) -> Choice:
        engine = self._load_engine()
        key = repr([(tool.name, tool.description, tool.examples, tool.parameters) for tool in tools])
        if self._scorer is None or self._scorer[0] != key:
            self._scorer = (key, IntentScorer(tools))
        return self._scorer[1].choose(engine, step, plan.files, check_waiting)

    # ---- chatting

    async def _answer_by_chat(
        self, messages: Sequence[Message], tools: Sequence[ToolDefinition], instructions: str
    ) -> AsyncIterator[ModelEvent]:
        conversation = chat_messages(messages, tools, instructions)
        schema = answer_schema(tools)

        def chat(check_waiting: Callable[[], None]) -> str:
            return self._load_engine().chat(conversation, schema, lambda _: check_waiting())

        answer = read_answer(await self._in_thread(chat))
        if isinstance(answer, CallPart):
            yield CallDone(answer)
            yield Usage(cost=0.0)
            yield Finished("calls")
        else:
            for event in _text(answer):
                yield event

    # ---- the engine and its thread

    def _choose_way(self) -> LocalWay:
        if self._way is None:
            chats = (
                self._path is not None and self._engine is None and local_engine.has_chat_template(self._path)
            )
            self._way = "chat" if chats else "score"
        return self._way

    def _load_engine(self) -> Engine:
        """Return the engine, shared by all models of one file: each engine holds the whole file in memory."""
        if self._engine is None:
            with _loading:
                path = (self._path or local_engine.weights()).resolve()
                if path not in _engines:
                    _engines[path] = XllamacppEngine(path, threads=self._threads)
                self._engine = _engines[path]
        return self._engine

    async def _in_thread(self, work: Callable[[Callable[[], None]], _T]) -> _T:
        """Run `work` off the event loop; it looks between tokens and scores whether anybody still waits."""
        if self._engine is None and self._path is None and local_engine.terms_due():
            self._notice(local_engine.TERMS)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="aisotools-local-model")
        gone = threading.Event()

        def check_waiting() -> None:
            if gone.is_set():
                raise CallerGone

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, check_waiting)
        finally:
            gone.set()


def _events_of_choice(choice: Choice, request: str) -> list[ModelEvent]:
    """Return the events of the answer that a choice leads to."""
    if choice.fits_nothing:
        return _text(_lacking(choice) or _NOTHING.format(request=request[:200]))
    if choice.sure:
        return [CallDone(_call(choice.callable_candidates[0])), Usage(cost=0.0), Finished("calls")]
    options = tuple(_call(one) for one in choice.offered)
    return [TextDelta(_PROPOSED), Proposal(options), Usage(cost=0.0), Finished("undecided")]


def _lacking(choice: Choice) -> str:
    """Return a question for what is missing of the likeliest call; empty if no call is likely."""
    first = choice.candidates[0] if choice.candidates else None
    if first is None or first.filled.complete or first.share < choice.chat or first.matched <= 0:
        return ""
    names = " and ".join(first.filled.missing)
    return f"It sounds like {first.intent.name}, but I cannot find its {names} in the request."


def _call(candidate: Candidate) -> CallPart:
    return CallPart("", candidate.intent.tool.name, dict(candidate.filled.arguments))


def _text(text: str) -> list[ModelEvent]:
    return [TextDelta(text), Usage(cost=0.0), Finished("stop")]


# ---- the plan of a request

MAX_QUOTED_CHARS = 2_000
"""An answer quotes at most this much of a result."""

_VERBS = (
    "read|open|show|list|search|find|write|save|store|create|make|append|add|delete|remove|move|rename|copy|run|"
    "execute|compute|calculate|convert|look|roll|load|print|display|tell|say|answer|count|put|check|get|what|how|who"
)
_CLAUSE_BREAK = re.compile(
    rf"[.!?;]\s+(?:(?:and\s+)?(?:then|after that|finally|next),?\s+)?(?=[A-Z])"
    rf"|[,;]?(?<!\s)\s++(?:and\s+)?(?:then|after that|finally)\s+"
    rf"|,?(?<!\s)\s++and\s+(?=(?:{_VERBS})\b)|,\s+(?=(?:{_VERBS})\b)"
    r"|(?<!\s)[^\S\n]*+\n\s*+(?:\d+[.)]|[-*])?\s*",
    re.IGNORECASE,
)
_QUESTION_START = re.compile(
    r"^(?:please\s+)?(?:tell|say|answer|explain|summari[sz]e|report|let me know|give me|"
    r"what|which|who|when|where|how)\b",
    re.IGNORECASE,
)
_LEADING_PHRASES = re.compile(
    r"^(?:\d+[.)]\s*|[-*]\s+|first,?\s+|next,?\s+|finally,?\s+|please\s+)+", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps of a request, and how many of them are done.

    Attributes:
        steps: The clauses that need a call.
        question: The clause to answer at the end; empty if there is none.
        done: Number of steps for which calls were made.
        last: The result of the last call.
        files: Files that results named, the latest first.
    """

    steps: tuple[str, ...]
    question: str = ""
    done: int = 0
    last: ToolMessage | None = None
    files: tuple[str, ...] = ()

    @property
    def step(self) -> str | None:
        """The next clause; None if all are done."""
        return self.steps[self.done] if self.done < len(self.steps) else None


def plan_of(messages: Sequence[Message]) -> Plan:
    """Return the plan of the last request in a conversation."""
    index = max((n for n, one in enumerate(messages) if isinstance(one, UserMessage)), default=None)
    if index is None:
        return Plan(steps=())
    request = messages[index]
    assert isinstance(request, UserMessage)
    since = messages[index + 1 :]
    steps, question = _split_question(clauses_of(request.text))
    results = [one for one in since if isinstance(one, ToolMessage)]
    return Plan(
        steps=steps,
        question=question,
        done=sum(1 for one in since if isinstance(one, AssistantMessage) and one.calls),
        last=results[-1] if results else None,
        files=files_seen(messages),
    )


def clauses_of(request: str) -> list[str]:
    """Split a request into clauses that each ask for one thing. Quoted text is never split."""
    request = re.sub(r"(?m)^[^\S\n]*\d{1,2}[.)]\s+", "", request.strip())
    quoted = [span for span in spans_of(request) if span.kind == "quoted"]
    parts, start = [], 0
    for match in _CLAUSE_BREAK.finditer(request):
        inside = any(span.start < match.end() and match.start() < span.end for span in quoted)
        if inside or match.start() < start:
            continue
        # Code after a colon is one clause, however many lines it has.
        if re.search(
            r"\b(?:code|python|bash|shell|command|script|snippet)\s*:",
            request[: match.start()],
            re.IGNORECASE,
        ):
            break
        parts.append(request[start : match.start() + (match[0][:1] in "!?")])
        start = match.end()
    parts.append(request[start:])
    return [clean for part in parts if (clean := _LEADING_PHRASES.sub("", part.strip(" ,;")))]


def _split_question(clauses: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Split a request into clauses to carry out and a last one that only asks about their results."""
    steps = list(clauses[:1])
    question = ""
    for clause in clauses[1:]:
        if _QUESTION_START.match(clause) and not [s for s in spans_of(clause) if s.kind != "number"]:
            question = clause
        else:
            steps.append(clause)
    return tuple(steps), question


def files_seen(messages: Sequence[Message]) -> tuple[str, ...]:
    """Return files that results of calls named, the latest first, as paths from the workspace."""
    calls: dict[str, CallPart] = {}
    found: list[str] = []
    for message in messages:
        if isinstance(message, AssistantMessage):
            calls.update((call.id, call) for call in message.calls)
        elif isinstance(message, ToolMessage) and not message.is_error:
            call = calls.get(message.call_id)
            if call is None or call.arguments.get("operation") == "read":
                continue
            folder = str(call.arguments.get("path", ".")).rstrip("/")
            names = [span.text for span in spans_of(message.content) if span.kind == "file"]
            under = [
                name if folder in {"", "."} or name.startswith(f"{folder}/") else f"{folder}/{name}"
                for name in names
                if not name.endswith("/")
            ]
            found = under + found
    return tuple(dict.fromkeys(found))


def quote_last_result(plan: Plan) -> str:
    """Quote the lines of the last result that match the question, or all of it."""
    if plan.last is None:
        return "There is nothing to answer from: no tool was called."
    content = plan.last.content.strip()
    words = set(terms(plan.question))
    if words and "\n" in content:
        lines = [line for line in content.split("\n") if words & set(terms(line))]
        if lines and len(lines) < 4:
            content = "\n".join(lines)
    if len(content) > MAX_QUOTED_CHARS:
        content = content[:MAX_QUOTED_CHARS] + "\n[... the result goes on ...]"
    return content or f"{plan.last.name} returned an empty result."
