"""Choosing the tool of a request: scores of a small language model and of the words, weighed together.

The model is shown a prompt of example requests, each followed by one word that stands for an intent, and
scores these words as continuations. The prompt is read once; after that, each request takes one token.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aisotools.agent.models.filling import Filled, Filler
from aisotools.agent.models.local_engine import Engine
from aisotools.agent.models.spans import Bm25, Intent, Span, intents_of, spans_of, terms
from aisotools.core.types import ToolDefinition

SURE_SHARE = 0.6
"""Share from which on a call is made; below it, the likeliest are offered. Not a calibrated probability."""

ANSWER = "answer"
"""The label of requests that need no tool."""

CHAT_REQUESTS = (
    "Hello!",
    "Who painted the Mona Lisa?",
    "Thanks a lot",
    "Order me a pizza",
    "Tell me a story",
    "What is the capital of Italy?",
)
"""Example requests that need no tool, or one that does not exist."""

_MODEL_WEIGHT = 1.0
_WORD_WEIGHT = 0.9
_UNUSED_PENALTY = 2.0  # for each span of the request that no argument takes
_MISSING_PENALTY = 6.0
_CHAT_SPAN_PENALTY = 2.5
_MIN_WORD_SCORE = 0.8
_MAX_OFFERED = 3
_EXAMPLES_PER_LABEL = 3
_MAX_EXAMPLES = 120
_MAX_EXAMPLE_CHARS = 160
_PIECES_PER_READ = 12
_BIAS_WEIGHT = 0.5
_MAX_CALIBRATION_REQUESTS = 6
_MIN_PICK_SHARE = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to understand a request.

    Attributes:
        intent: The intent.
        filled: The arguments.
        score: Higher is likelier; only differences have a meaning.
        share: Its share of all candidates and chat, from 0 to 1.
        matched: The score of its words.
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
        chat: The share of "no tool", from 0 to 1.
    """

    candidates: tuple[Candidate, ...]
    chat: float

    @property
    def sure(self) -> bool:
        """True if the likeliest candidate is to be called."""
        return (
            bool(self.callable_candidates)
            and self.callable_candidates[0] is self.candidates[0]
            and self._share >= SURE_SHARE
        )

    @property
    def fits_nothing(self) -> bool:
        """True if no tool fits."""
        return not self.callable_candidates or self.chat >= max(one.share for one in self.callable_candidates)

    @property
    def _share(self) -> float:
        return self.callable_candidates[0].share

    @property
    def callable_candidates(self) -> list[Candidate]:
        """The candidates whose arguments are complete, the likeliest first."""
        return [one for one in self.candidates if one.filled.complete]

    @property
    def offered(self) -> list[Candidate]:
        """The candidates to offer when none is sure."""
        return self.callable_candidates[:_MAX_OFFERED]


class IntentChooser:
    """Compares requests with the intents of some tools."""

    def __init__(self, intents: Sequence[Intent]) -> None:
        """Index the words of the intents."""
        self.intents = tuple(intents)
        self._ranking = Bm25([_document(intent) for intent in intents])

    def word_scores(self, request: str) -> list[float]:
        """Return how well the words of each intent match, one score each."""
        return self._ranking.scores([*terms(_remove_quoted(request)), *_kind_terms(request)])

    def choose(
        self, request: str, model_scores: Sequence[float], chat: float, known_files: Sequence[str] = ()
    ) -> Choice:
        """Weigh the intents.

        Args:
            request: One clause.
            model_scores: For each intent, the logarithm of its probability by the model.
            chat: The same for "no tool".
            known_files: Files that were named before.
        """
        word_scores = self.word_scores(request)
        found: list[tuple[float, float, Intent, Filled]] = []
        for intent, model_score, word_score in zip(self.intents, model_scores, word_scores, strict=True):
            filled = Filler(intent, request, known_files).fill()
            score = _MODEL_WEIGHT * model_score + _WORD_WEIGHT * word_score
            score -= _UNUSED_PENALTY * min(_count_unused(filled.unused), 2.0)
            if filled.missing:
                score -= _MISSING_PENALTY
            found.append((score, word_score, intent, filled))
        # A request with files, addresses or expressions is hardly chat.
        specific = [span for span in spans_of(request) if span.kind != "number"]
        chat -= _CHAT_SPAN_PENALTY * min(len(specific), 2)
        if max(word_scores, default=0.0) < _MIN_WORD_SCORE:
            chat += 3.0
        return _normalize(found, _MODEL_WEIGHT * chat + _WORD_WEIGHT * _MIN_WORD_SCORE)


def _normalize(found: Sequence[tuple[float, float, Intent, Filled]], chat: float) -> Choice:
    """Turn scores into shares of 1. Of candidates with the same call, only the best counts."""
    best: dict[str, tuple[float, float, Intent, Filled]] = {}
    for one in found:
        key = repr((one[2].tool.name, sorted(one[3].arguments.items(), key=str)))
        if key not in best or one[0] > best[key][0]:
            best[key] = one
    top = max([chat, *(one[0] for one in best.values())])
    total = math.exp(chat - top) + sum(math.exp(one[0] - top) for one in best.values())
    candidates = [
        Candidate(
            intent=intent, filled=filled, score=score, matched=word_score, share=math.exp(score - top) / total
        )
        for score, word_score, intent, filled in best.values()
    ]
    candidates.sort(key=lambda one: -one.score)
    return Choice(candidates=tuple(candidates), chat=math.exp(chat - top) / total)


def _count_unused(unused: Sequence[Span]) -> float:
    return sum(0.5 if span.kind == "number" else 1.0 for span in unused)


def _document(intent: Intent) -> list[str]:
    """Return the terms that an intent is compared by: its name twice, its purpose, and example requests."""
    name = f"{intent.tool.name} {intent.label}"
    result = [*terms(name), *terms(name)] if not intent.fixed else [*terms(intent.label)] * 2
    if not intent.fixed:
        result += terms(intent.tool.description.partition("\n")[0])
        result += [term for slot in intent.slots if slot.required for term in slot.words[:8]]
    result += [term for slot in intent.slots for choice in slot.choices[:20] for term in terms(str(choice))]
    for phrase in intent.phrases:
        result += [*terms(_remove_quoted(phrase)), *_kind_terms(phrase)]
    return result


def _kind_terms(request: str) -> list[str]:
    """Return terms that stand for the kinds of the spans of a request."""
    folder = ["#folder"] if re.search(r"\b(?:folder|directory|dir)\b", request, re.IGNORECASE) else []
    return [f"#{span.within or span.kind}" for span in spans_of(request)] + folder


def _remove_quoted(request: str) -> str:
    """Return the text without quoted parts, which say nothing about the intent."""
    for span in reversed(spans_of(request)):
        if span.kind in {"quoted", "file", "url", "glob"}:
            request = request[: span.start] + " " + request[span.end :]
    return request


class Prompt:
    """The prompt by which a base model scores intents: example requests, each followed by a label.

    Attributes:
        labels: The possible continuations: one for each intent, and the one for "no tool" last.
        pieces: The examples, one text each.
        prefix: The part that is the same for all requests; the engine caches it.
        calibration_requests: Requests by which the model's bias for each label is measured.
    """

    def __init__(self, intents: Sequence[Intent]) -> None:
        """Choose the examples."""
        self.labels = (*(intent.label for intent in intents), ANSWER)
        count = min(_EXAMPLES_PER_LABEL, max(1, _MAX_EXAMPLES // max(len(intents), 1)))
        requests = [intent.phrases for intent in intents] + [list(CHAT_REQUESTS)]
        # Labels take turns, so that none is repeated at the end.
        self.pieces = tuple(
            _format_example(phrases[number], label)
            for number in range(count)
            for phrases, label in zip(requests, self.labels, strict=True)
            if number < min(len(phrases), count)
        )
        self.prefix = "".join(self.pieces)
        self.calibration_requests = tuple(phrases[-1] for phrases in requests[:: max(1, len(requests) // 10)])

    def ask(self, request: str) -> str:
        """Return the prompt for one request."""
        return f"{self.prefix}User: {_line(request)}\nTool:"


def fill_prompt(intent: Intent, name: str, request: str) -> str:
    """Return the prompt for one argument: the intent's own examples, and the request."""
    shown = [
        f"Request: {_line(phrase)}\n{name}: {arguments[name]}\n\n"
        for arguments, phrase in intent.examples
        if isinstance(arguments.get(name), str) and "\n" not in str(arguments[name])
    ]
    return "".join(shown[:3]) + f"Request: {_line(request)}\n{name}:"


def _format_example(request: str, label: str) -> str:
    return f"User: {_line(request)}\nTool: {label}\n\n"


def _line(text: str) -> str:
    return " ".join(text.split())[:_MAX_EXAMPLE_CHARS]


class IntentScorer:
    """Chooses the intent of requests over the same tools, by a language model and by words."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        """Prepare the prompt. The model is not asked yet."""
        self._intents = intents_of(tools)
        self._chooser = IntentChooser(self._intents)
        self._prompt = Prompt(self._intents)
        self._bias: list[float] | None = None

    def choose(
        self, engine: Engine, request: str, known_files: Sequence[str], check_waiting: Callable[[], None]
    ) -> Choice:
        """Weigh the intents of `request`, with all arguments filled.

        Args:
            engine: The language model.
            request: One clause.
            known_files: Files that were named before.
            check_waiting: Called between scores; raises when nobody waits for the result any more.
        """
        if self._bias is None:
            self._bias = self._measure_bias(engine, check_waiting)
        check_waiting()
        logprobs = engine.next_words(self._prompt.ask(request), self._prompt.labels)
        scores = [logprob - _BIAS_WEIGHT * bias for logprob, bias in zip(logprobs, self._bias, strict=True)]
        choice = self._chooser.choose(request, scores[:-1], scores[-1], known_files)
        for candidate in choice.offered:
            # The model is asked only about candidates that may be called.
            if candidate.share < _MIN_PICK_SHARE and candidate is not choice.candidates[0]:
                for name, options in candidate.filled.undecided.items():
                    candidate.filled.arguments[name] = options[0]
                continue
            for name, options in candidate.filled.undecided.items():
                check_waiting()
                prompt = fill_prompt(candidate.intent, name, request)
                candidate.filled.arguments[name] = options[engine.pick(prompt, options)]
        return choice

    def _measure_bias(self, engine: Engine, check_waiting: Callable[[], None]) -> list[float]:
        """Return the model's bias for each label: the mean score over unrelated requests."""
        pieces = self._prompt.pieces
        for end in range(_PIECES_PER_READ, len(pieces), _PIECES_PER_READ):
            check_waiting()
            engine.next_words(
                "".join(pieces[:end]), ()
            )  # read in parts, so that the caller can stop in between
        samples = []
        for request in self._prompt.calibration_requests[:_MAX_CALIBRATION_REQUESTS]:
            check_waiting()
            samples.append(engine.next_words(self._prompt.ask(request), self._prompt.labels))
        return [sum(column) / len(column) for column in zip(*samples, strict=True)]
