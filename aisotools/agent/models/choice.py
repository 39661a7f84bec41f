"""Which tool a request is about: what the model says of each and what the words say, together. Pure.

A request of several steps, taken clause by clause; what was found so far, and the answer from it. Pure.

What a base model is shown to score tools: requests and, for each, one word that names the tool. Pure.

Scores the tools of one registry for requests: the prompt is read once, then each takes one token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aisotools.agent.models.filling import Filled, Filler
from aisotools.agent.models.local_engine import Engine
from aisotools.agent.models.spans import Bm25, Intent, Span, intents_of, spans_of, terms
from aisotools.core.messages import AssistantMessage, CallPart, Message, ToolMessage, UserMessage
from aisotools.core.types import ToolDefinition

SURE = 0.6
"""From here on the call is made; below, the likeliest are offered. Not a calibrated probability."""

ANSWER = "answer"
"""The label of what needs no tool."""

CHAT = (
    "Hello!",
    "Who painted the Mona Lisa?",
    "Thanks a lot",
    "Order me a pizza",
    "Tell me a story",
    "What is the capital of Italy?",
)
"""Requests that need no tool, or one that is not there."""

_MODEL, _WORDS = 1.0, 0.9
_UNUSED, _MISSING = 2.0, 6.0
_CHAT_HOLDS = 2.5
_LEAST_WORDS = 0.8
_MOST_OFFERED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to understand a request.

    Attributes:
        intent: What it would be about.
        filled: The arguments.
        score: The higher the likelier; only differences mean anything.
        share: Its part of all, from 0 to 1.
        matched: How well its words match.
    """

    intent: Intent
    filled: Filled
    score: float
    share: float
    matched: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The decision about a request.

    Attributes:
        candidates: All ways to understand it, the likeliest first.
        chat: The part of all that falls to "no tool", from 0 to 1.
    """

    candidates: tuple[Candidate, ...]
    chat: float

    @property
    def sure(self) -> bool:
        """True if the first candidate is to be called."""
        return bool(self.fitting) and self.fitting[0] is self.candidates[0] and self._share >= SURE

    @property
    def nothing(self) -> bool:
        """True if no tool fits."""
        return not self.fitting or self.chat >= max(one.share for one in self.fitting)

    @property
    def _share(self) -> float:
        return self.fitting[0].share

    @property
    def fitting(self) -> list[Candidate]:
        """Those that could be called as they are."""
        return [one for one in self.candidates if one.filled.complete]

    @property
    def offered(self) -> list[Candidate]:
        """The likeliest few."""
        return self.fitting[:_MOST_OFFERED]


class IntentChooser:
    """Weighs the intents of some tools against requests."""

    def __init__(self, intents: Sequence[Intent]) -> None:
        """Take the intents in."""
        self.intents = tuple(intents)
        self._ranking = Bm25([_document(intent) for intent in intents])

    def words(self, request: str) -> list[float]:
        """Return how well the words of each intent match, one score each."""
        return self._ranking.scores([*terms(_without_quotes(request)), *_looks(request)])

    def choose(
        self, request: str, said: Sequence[float], chat: float, known_files: Sequence[str] = ()
    ) -> Choice:
        """Weigh.

        Args:
            request: What was asked.
            said: What the model says of each intent: a logarithm of its probability.
            chat: What it says of "no tool".
            known_files: Files that were named before.
        """
        matched = self.words(request)
        found: list[tuple[float, float, Intent, Filled]] = []
        for intent, by_model, by_words in zip(self.intents, said, matched, strict=True):
            filled = Filler(intent, request, known_files).fill()
            score = _MODEL * by_model + _WORDS * by_words
            score -= _MISSING * bool(filled.missing) + _UNUSED * min(_weight(filled.unused), 2.0)
            found.append((score, by_words, intent, filled))
        # What holds files, addresses or several numbers is hardly chat.
        telling = [span for span in spans_of(request) if span.kind != "number"]
        chat -= _CHAT_HOLDS * min(len(telling), 2)
        if max(matched, default=0.0) < _LEAST_WORDS:
            chat += 3.0
        return _shared(found, _MODEL * chat + _WORDS * _LEAST_WORDS)


def _shared(found: Sequence[tuple[float, float, Intent, Filled]], chat: float) -> Choice:
    """The scores as parts of a whole; calls that come to the same count as one."""
    best: dict[str, tuple[float, float, Intent, Filled]] = {}
    for one in found:
        key = repr((one[2].tool.name, sorted(one[3].arguments.items(), key=str)))
        if key not in best or one[0] > best[key][0]:
            best[key] = one
    top = max([chat, *(one[0] for one in best.values())])
    total = math.exp(chat - top) + sum(math.exp(one[0] - top) for one in best.values())
    candidates = [
        Candidate(
            intent=intent, filled=filled, score=score, matched=by_words, share=math.exp(score - top) / total
        )
        for score, by_words, intent, filled in best.values()
    ]
    candidates.sort(key=lambda one: -one.score)
    return Choice(candidates=tuple(candidates), chat=math.exp(chat - top) / total)


def _weight(unused: Sequence[Span]) -> float:
    return sum(0.5 if span.kind == "number" else 1.0 for span in unused)


def _document(intent: Intent) -> list[str]:
    """Return the terms that an intent is compared by: its name twice, its purpose, and example requests."""
    name = f"{intent.tool.name} {intent.label}"
    result = [*terms(name), *terms(name)] if not intent.fixed else [*terms(intent.label)] * 2
    if not intent.fixed:
        result += terms(intent.tool.description.partition("\n")[0])
        result += [term for slot in intent.slots if slot.required for term in (slot.about[:8])]
    result += [term for slot in intent.slots for choice in slot.choices[:20] for term in terms(str(choice))]
    for said in intent.phrases:
        result += [*terms(_without_quotes(said)), *_looks(said)]
    return result


def _looks(request: str) -> list[str]:
    """Return terms for the kinds of things that a request holds."""
    folder = ["#folder"] if re.search(r"\b(?:folder|directory|dir)\b", request, re.IGNORECASE) else []
    return [f"#{span.within or span.kind}" for span in spans_of(request)] + folder


def _without_quotes(request: str) -> str:
    """Return the text without quoted parts, which say nothing about the intent."""
    for span in reversed(spans_of(request)):
        if span.kind in {"quoted", "file", "url", "glob"}:
            request = request[: span.start] + " " + request[span.end :]
    return request


MOST_QUOTED_CHARS = 2_000
"""More of a result is not repeated in an answer."""

_VERBS = (
    "read|open|show|list|search|find|write|save|store|create|make|append|add|delete|remove|move|rename|copy|run|"
    "execute|compute|calculate|convert|look|roll|load|print|display|tell|say|answer|count|put|check|get|what|how|who"
)
_BREAK = re.compile(
    rf"[.!?;]\s+(?:(?:and\s+)?(?:then|after that|finally|next),?\s+)?(?=[A-Z])"
    rf"|[,;]?\s+(?:and\s+)?(?:then|after that|finally)\s+"
    rf"|,?\s+and\s+(?=(?:{_VERBS})\b)|,\s+(?=(?:{_VERBS})\b)|\s*\n+\s*(?:\d+[.)]|[-*])?\s*",
    re.IGNORECASE,
)
_ANSWERS = re.compile(
    r"^(?:please\s+)?(?:tell|say|answer|explain|summari[sz]e|report|let me know|give me|"
    r"what|which|who|when|where|how)\b",
    re.IGNORECASE,
)
_MANNERS = re.compile(r"^(?:\d+[.)]\s*|[-*]\s+|first,?\s+|next,?\s+|finally,?\s+|please\s+)+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where a request stands.

    Attributes:
        steps: Its clauses that want something done.
        question: The clause to answer at the end; empty if there is none.
        done: How many steps have been called for.
        last: The result of the last one.
        files: Files that results named, the latest first.
    """

    steps: tuple[str, ...]
    question: str = ""
    done: int = 0
    last: ToolMessage | None = None
    files: tuple[str, ...] = ()

    @property
    def step(self) -> str | None:
        """Return the next clause; None if all are done."""
        return self.steps[self.done] if self.done < len(self.steps) else None


def plan_of(messages: Sequence[Message]) -> Plan:
    """The plan of the last request in a conversation."""
    place = max((n for n, one in enumerate(messages) if isinstance(one, UserMessage)), default=None)
    if place is None:
        return Plan(steps=())
    request = messages[place]
    assert isinstance(request, UserMessage)
    since = messages[place + 1 :]
    steps, question = _sorted(clauses_of(request.text))
    results = [one for one in since if isinstance(one, ToolMessage)]
    return Plan(
        steps=steps,
        question=question,
        done=sum(1 for one in since if isinstance(one, AssistantMessage) and one.calls),
        last=results[-1] if results else None,
        files=files_seen(messages),
    )


def clauses_of(request: str) -> list[str]:
    """The request in parts that each want one thing; what is quoted is never taken apart."""
    request = re.sub(r"(?m)^\s*\d{1,2}[.)]\s+", "", request.strip())
    quoted = [span for span in spans_of(request) if span.kind == "quoted"]
    parts, start = [], 0
    for match in _BREAK.finditer(request):
        inside = any(span.start < match.end() and match.start() < span.end for span in quoted)
        if inside or match.start() < start:
            continue
        # Code that follows a colon is one thing, however many lines it has.
        if re.search(
            r"\b(?:code|python|bash|shell|command|script|snippet)\s*:",
            request[: match.start()],
            re.IGNORECASE,
        ):
            break
        parts.append(request[start : match.start() + (match[0][:1] in "!?")])
        start = match.end()
    parts.append(request[start:])
    return [clean for part in parts if (clean := _MANNERS.sub("", part.strip(" ,;")))]


def _sorted(clauses: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Split a request into clauses to carry out and a last one that only asks about their results."""
    steps = list(clauses[:1])
    question = ""
    for clause in clauses[1:]:
        if _ANSWERS.match(clause) and not [s for s in spans_of(clause) if s.kind != "number"]:
            question = clause
        else:
            steps.append(clause)
    return tuple(steps), question


def files_seen(messages: Sequence[Message]) -> tuple[str, ...]:
    """Files that results of calls named, the latest first, as paths from the workspace."""
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


def answer_from(plan: Plan) -> str:
    """Quote the lines of the last result that match the question, or all of it."""
    if plan.last is None:
        return "There is nothing to answer from: no tool was called."
    content = plan.last.content.strip()
    asked = set(terms(plan.question))
    if asked and "\n" in content:
        lines = [line for line in content.split("\n") if asked & set(terms(line))]
        if lines and len(lines) < 4:
            content = "\n".join(lines)
    if len(content) > MOST_QUOTED_CHARS:
        content = content[:MOST_QUOTED_CHARS] + "\n[... the result goes on ...]"
    return content or f"{plan.last.name} returned an empty result."


_SHOTS = 3
_MOST_SHOTS = 120
_MOST_CHARS = 160


class Prompt:
    """The prompt for some intents.

    Attributes:
        labels: What the prompt may go on with: one for each intent, and the one for "no tool" last.
        prefix: What is the same for all requests; the model keeps it.
        calibrating: Requests that tell how much the model likes each label anyway.
    """

    def __init__(self, intents: Sequence[Intent]) -> None:
        """Write it."""
        self.labels = (*(intent.label for intent in intents), ANSWER)
        shots = min(_SHOTS, max(1, _MOST_SHOTS // max(len(intents), 1)))
        said = [intent.phrases for intent in intents] + [list(CHAT)]
        # Taken in turn, so that no label stands at the end again and again.
        self.pieces = tuple(
            _shot(_spread(phrases, shots)[number], label)
            for number in range(shots)
            for phrases, label in zip(said, self.labels, strict=True)
            if number < min(len(phrases), shots)
        )
        self.prefix = "".join(self.pieces)
        self.calibrating = tuple(phrases[-1] for phrases in said[:: max(1, len(said) // 10)])

    def ask(self, request: str) -> str:
        """The prompt for one request."""
        return f"{self.prefix}User: {_line(request)}\nTool:"


def fill_prompt(intent: Intent, name: str, request: str) -> str:
    """The prompt for one argument: the intent's own examples, and the request."""
    shown = [
        f"Request: {_line(said)}\n{name}: {given[name]}\n\n"
        for given, said in intent.examples
        if isinstance(given.get(name), str) and "\n" not in str(given[name])
    ]
    return "".join(shown[:3]) + f"Request: {_line(request)}\n{name}:"


def _shot(request: str, label: str) -> str:
    return f"User: {_line(request)}\nTool: {label}\n\n"


def _spread(phrases: Sequence[str], count: int) -> list[str]:
    return list(phrases[:count])


def _line(text: str) -> str:
    return " ".join(text.split())[:_MOST_CHARS]


_AT_ONCE = 12
_STRENGTH = 0.5
_MOST_CALIBRATING = 6
_WORTH_PICKING = 0.15


class Scoring:
    """The part of the prompt that is the same for all requests over the same tools."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        """Prepare; no model is asked yet."""
        self._intents = intents_of(tools)
        self._chooser = IntentChooser(self._intents)
        self._prompt = Prompt(self._intents)
        self._liked: list[float] | None = None

    def choose(
        self, engine: Engine, request: str, known_files: Sequence[str], left: Callable[[], None]
    ) -> Choice:
        """Which intent `request` has, all arguments filled.

        Args:
            engine: The language model.
            request: One clause.
            known_files: Files that were named before.
            left: Called between scores; raises when nobody waits any more.
        """
        if self._liked is None:
            self._liked = self._calibrated(engine, left)
        left()
        said = engine.next_words(self._prompt.ask(request), self._prompt.labels)
        scores = [score - _STRENGTH * liked for score, liked in zip(said, self._liked, strict=True)]
        choice = self._chooser.choose(request, scores[:-1], scores[-1], known_files)
        for candidate in choice.offered:
            # Only what may be called or offered is worth a question to the model.
            if candidate.share < _WORTH_PICKING and candidate is not choice.candidates[0]:
                for name, options in candidate.filled.open.items():
                    candidate.filled.arguments[name] = options[0]
                continue
            for name, options in candidate.filled.open.items():
                left()
                prompt = fill_prompt(candidate.intent, name, request)
                candidate.filled.arguments[name] = options[engine.pick(prompt, options)]
        return choice

    def _calibrated(self, engine: Engine, left: Callable[[], None]) -> list[float]:
        """Return the model's bias for each label, whatever the request; half of it is subtracted."""
        pieces = self._prompt.pieces
        for end in range(_AT_ONCE, len(pieces), _AT_ONCE):
            left()
            engine.next_words("".join(pieces[:end]), ())  # reads a part, so that it can be left between parts
        samples = []
        for request in self._prompt.calibrating[:_MOST_CALIBRATING]:
            left()
            samples.append(engine.next_words(self._prompt.ask(request), self._prompt.labels))
        return [sum(column) / len(column) for column in zip(*samples, strict=True)]
