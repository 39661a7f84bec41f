"""What a shell text holds, as values: words, redirections, commands, and doubts about reading them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["literal", "variable", "number", "unknown", "channel"]
"""A fixed text, a variable, something that gives digits, anything at all, or a process substitution."""


class Piece(NamedTuple):
    """A part of a word: fixed text, or the source of an expansion without its `$`."""

    kind: Kind
    text: str
    quoted: bool


class Token(NamedTuple):
    """A word as written, from `start` to `end` in the text."""

    start: int
    end: int
    pieces: tuple[Piece, ...]

    @property
    def bare(self) -> str:
        """The text if nothing of it is quoted or expanded, else ''."""
        first = self.pieces[0]
        return first.text if len(self.pieces) == 1 and first.kind == "literal" and not first.quoted else ""


class Redirect(NamedTuple):
    """A redirection of any form but a here-document; `descriptor` is '' where the operator tells it."""

    operator: str
    target: Token
    descriptor: str


class Command(NamedTuple):
    """Words and redirections between two separators; the first `assignments` words are assignments."""

    words: tuple[Token, ...]
    assignments: int
    redirects: tuple[Redirect, ...]


@dataclass(slots=True)
class Reading:
    """What a text holds, at any depth.

    Attributes:
        commands: Every simple command, in the order of their ends.
        loops: What follows `for` or `select`: the variable, `in`, and the words.
        data: Other words that are expanded: subjects and patterns of `case`, elements of arrays.
        tests: What stands between `[[` and `]]`, with the position of the `[[`.
        functions: Names of functions defined here.
        arithmetic: Sources of arithmetic expressions.
        parameters: Sources of `${...}`.
        doubts: Why this may not be how bash reads it, in words.
    """

    commands: list[Command] = field(default_factory=list)
    loops: list[tuple[Token, ...]] = field(default_factory=list)
    data: list[Token] = field(default_factory=list)
    tests: list[tuple[int, tuple[Token, ...]]] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    arithmetic: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def doubt(self, why: str) -> None:
        """Note a doubt, once."""
        if why not in self.doubts:
            self.doubts.append(why)


def names(text: str) -> frozenset[str]:
    """The names in `text`, which are separated by blanks."""
    return frozenset(text.split())


_ESCAPE = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|(.))",
    re.DOTALL,
)
_LETTERS = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


def decode_ansi(body: str) -> str | None:
    """What stands between `$'` and `'`, decoded; None when it holds what is better not guessed."""
    unsure = False

    def decoded(found: re.Match[str]) -> str:
        nonlocal unsure
        letter, octal, *coded, other = found.groups()
        if letter:
            return _LETTERS[letter]
        number = int(octal, 8) if octal else int(next(filter(None, coded), "0"), 16)
        unsure |= bool(other) or not 0 < number < 0x80
        return chr(number) if number < 0x80 else ""

    text = _ESCAPE.sub(decoded, body)
    return None if unsure else text
