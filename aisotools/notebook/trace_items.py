"""What a trace holds: the things that happened, what they took together, and how a page is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from aisotools.events import Json
from aisotools.notebook.screen import Bar, Screen
from aisotools.notebook.text import seconds

State = Literal["running", "asking", "ok", "error", "denied", "note"]
"""How far an item has come."""

Op = dict[str, Json]
"""One change of what a page shows: `op` is `item`, `state`, `text`, `lines`, `now` or `total`."""


@dataclass(slots=True)
class Item:
    """One thing that happened: an answer of a model, a call, or a remark.

    Attributes:
        key: Names it within the trace.
        kind: `model`, `call` or `note`.
        title: What it is, in a line.
        state: How far it has come.
        began_s: When it began, in seconds since the epoch.
        words: What became of it, in a few words.
        arguments: Of a call.
        text: What a model said, or a call answered.
        screen: What a call printed.
        bar: The progress bar that stands last.
        decision: Who decided about a call and why.
    """

    key: str
    kind: Literal["model", "call", "note"]
    title: str
    state: State
    began_s: float
    words: str = ""
    arguments: str = ""
    text: str = ""
    decision: str = ""
    screen: Screen = field(default_factory=Screen)
    bar: Bar | None = None


@dataclass(slots=True)
class Totals:
    """What a run took so far.

    Attributes:
        steps: Requests to a model.
        calls: Calls that were made.
        input_tokens: Tokens that models read.
        output_tokens: Tokens that models wrote.
        outcome: How the run ended, in words; empty while it goes on.
    """

    steps: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    outcome: str = ""
    first_s: float = 0.0
    last_s: float = 0.0

    def words(self) -> str:
        """All of it in a line."""
        parts = [_count(self.steps, "step"), _count(self.calls, "call")]
        if self.input_tokens or self.output_tokens:
            parts.append(f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out")
        parts.append(seconds(self.last_s - self.first_s))
        return " \N{MIDDLE DOT} ".join(filter(None, parts))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}" if number else ""
