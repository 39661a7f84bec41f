"""What a base model is shown to score tools: requests and, for each, one word that names the tool. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from aisotools.models.local_choice import ANSWER, CHAT
from aisotools.models.local_intents import Intent

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
