"""Scores the tools of one registry for requests: the prompt is read once, then each takes one token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aisotools.events import ToolDefinition
from aisotools.models.local_choice import Choice, Chooser
from aisotools.models.local_engine import Engine
from aisotools.models.local_intents import intents_of
from aisotools.models.local_prompt import Prompt, fill_prompt

_AT_ONCE = 12
_STRENGTH = 0.5
_MOST_CALIBRATING = 6
_WORTH_PICKING = 0.15


class Scoring:
    """What is the same for all requests over the same tools."""

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        """Prepare; no model is asked yet."""
        self._intents = intents_of(tools)
        self._chooser = Chooser(self._intents)
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
        """How much the model likes each label whatever it is asked; half of it is taken off."""
        pieces = self._prompt.pieces
        for end in range(_AT_ONCE, len(pieces), _AT_ONCE):
            left()
            engine.next_words("".join(pieces[:end]), ())  # reads a part, so that it can be left between parts
        told = []
        for request in self._prompt.calibrating[:_MOST_CALIBRATING]:
            left()
            told.append(engine.next_words(self._prompt.ask(request), self._prompt.labels))
        return [sum(column) / len(column) for column in zip(*told, strict=True)]
