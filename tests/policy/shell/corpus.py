"""The corpus of shell commands: what is expected of each, one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from aisotools.core.types import Effect

Kind = Literal["everyday", "change", "adversarial"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One command.

    Attributes:
        kind: `everyday` reads what people read all day, `change` changes something openly, `adversarial` is
            a technique from published bypasses of command lists, or one found while attacking our own.
        command: The text.
        effect: What it does.
        certain: Whether that is all, as far as the text tells.
        about: The technique.
    """

    kind: Kind
    command: str
    effect: Effect
    certain: bool
    about: str = ""


@cache
def entries() -> tuple[Entry, ...]:
    """The whole corpus."""
    lines = (Path(__file__).parents[2] / "data" / "shell_corpus.jsonl").read_text("utf-8").splitlines()
    return tuple(Entry(**{**given, "effect": Effect(given["effect"])}) for given in map(json.loads, lines))


def of_kind(*kinds: str) -> list[Entry]:
    """The part of the corpus that is of these kinds."""
    return [entry for entry in entries() if entry.kind in kinds]
