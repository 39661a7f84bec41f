"""Which tool a request is about: what the model says of each and what the words say, together. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from aisotools.models.local_filling import Filled, Filler
from aisotools.models.local_intents import Intent
from aisotools.models.local_spans import Span, spans_of
from aisotools.models.local_words import Bm25, terms

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
    """What is to be done with a request.

    Attributes:
        candidates: All ways to understand it, the likeliest first.
        chat: The part of all that falls to "no tool", from 0 to 1.
    """

    candidates: tuple[Candidate, ...]
    chat: float

    @property
    def sure(self) -> bool:
        """Whether the first candidate is to be called."""
        return bool(self.fitting) and self.fitting[0] is self.candidates[0] and self._share >= SURE

    @property
    def nothing(self) -> bool:
        """Whether no tool fits."""
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


class Chooser:
    """Weighs the intents of some tools against requests."""

    def __init__(self, intents: Sequence[Intent]) -> None:
        """Take the intents in."""
        self.intents = tuple(intents)
        self._ranking = Bm25([_document(intent) for intent in intents])

    def words(self, request: str) -> list[float]:
        """How well the words of each intent match."""
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
    """What an intent is compared by: its name twice, what it is for, and what people say."""
    name = f"{intent.tool.name} {intent.label}"
    told = [*terms(name), *terms(name)] if not intent.fixed else [*terms(intent.label)] * 2
    if not intent.fixed:
        told += terms(intent.tool.description.partition("\n")[0])
        told += [term for slot in intent.slots if slot.required for term in (slot.about[:8])]
    told += [term for slot in intent.slots for choice in slot.choices[:20] for term in terms(str(choice))]
    for said in intent.phrases:
        told += [*terms(_without_quotes(said)), *_looks(said)]
    return told


def _looks(request: str) -> list[str]:
    """What a request holds, as terms of its own."""
    folder = ["#folder"] if re.search(r"\b(?:folder|directory|dir)\b", request, re.IGNORECASE) else []
    return [f"#{span.within or span.kind}" for span in spans_of(request)] + folder


def _without_quotes(request: str) -> str:
    """What is quoted says nothing about what to do with it."""
    for span in reversed(spans_of(request)):
        if span.kind in {"quoted", "file", "url", "glob"}:
            request = request[: span.start] + " " + request[span.end :]
    return request
