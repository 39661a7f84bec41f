"""What words become: braces expanded, quotes removed, and how much is known of the rest beforehand."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from aisotools.shell_text import Piece, Token

_MOST_WORDS = 64
_LONGEST = 2000
_HOLE = 0x100000  # characters from here on stand for parts that brace expansion cannot look into
_GLOB_ALONE = frozenset("*?")
_GLOB = frozenset("*?[")
_SEQUENCE = re.compile(r"(-?\d{1,6}|[A-Za-z])\.\.(-?\d{1,6}|[A-Za-z])(?:\.\.(-?\d{1,6}))?")
_SEVERAL = re.compile(r"[@*]|\{.*\[[@*]\].*\}|\{[@*].*\}", re.DOTALL)

STEADY = frozenset(("HOME", "PWD", "TMPDIR", "WORKSPACE"))
"""Variables that hold an absolute path wherever we run; assigning to them is never certain."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word as a program gets it, as far as that can be known.

    Attributes:
        shown: For people: the fixed text, with expansions as written.
        text: The whole text if it is fixed, else None.
        prefix: How it certainly begins.
        many: Whether it may become several words, or none.
        placed: Whether it is known which path it means, apart from patterns in it.
    """

    shown: str
    text: str | None
    prefix: str
    many: bool = False
    placed: bool = True

    @property
    def may_be_option(self) -> bool:
        """Whether it, or a word that it is split into, may begin with a dash."""
        splits = self.many and not self.placed  # patterns alone keep the beginning
        return self.prefix.startswith("-") or (self.text is None and (splits or not self.prefix))


def literal(text: str) -> Word:
    """A word of fixed text."""
    return Word(text, text, text)


def anything(shown: str = "", prefix: str = "") -> Word:
    """Any number of words that nothing is known of but how they begin."""
    return Word(shown, None, prefix, many=True, placed=False)


def expanded(token: Token, numbers: Collection[str] = ()) -> list[Word]:
    """The words that `token` becomes.

    Args:
        token: A word as written.
        numbers: Variables that are known to hold numbers.
    """
    template = _template(token)
    if "{" not in template:
        return [_word(template, token.pieces, numbers)]
    alternatives = _alternatives(template)
    if alternatives is None:
        return [anything("".join(_source(piece) for piece in token.pieces))]
    return [_word(alternative, token.pieces, numbers) for alternative in alternatives if alternative]


def value_of(token: Token, numbers: Collection[str] = ()) -> Word:
    """The one word that the value of an assignment or the target of a redirection becomes."""
    return _word(_template(token), token.pieces, numbers)


def _template(token: Token) -> str:
    """The word with a hole for each part that is quoted or expanded."""
    return "".join(
        piece.text if piece.kind == "literal" and not piece.quoted else chr(_HOLE + number)
        for number, piece in enumerate(token.pieces)
    )


def _alternatives(template: str) -> list[str] | None:
    """Brace expansion; None when there is too much of it."""
    if template.count("{") > _MOST_WORDS or len(template) > _LONGEST:
        return None
    todo, done = [(template, 0)], list[str]()
    while todo:
        if len(todo) + len(done) > _MOST_WORDS:
            return None
        text, start = todo.pop()
        group = _group(text, start)
        if group is None:
            done.append(text)
            continue
        begin, end, parts = group
        if len(parts) > _MOST_WORDS:
            return None
        # the last ones first, since they are taken from the end
        todo.extend((text[:begin] + part + text[end:], begin) for part in reversed(parts))
    return done


def _group(text: str, start: int) -> tuple[int, int, list[str]] | None:
    """The first braces from `start` on that expand: where they begin and end, and to what."""
    begin = text.find("{", start)
    while begin >= 0:
        depth, commas = 0, [begin]
        for at in range(begin, len(text)):
            character = text[at]
            if character == "{":
                depth += 1
            elif character == "," and depth == 1:
                commas.append(at)
            elif character == "}":
                depth -= 1
                if not depth:
                    cuts = [*commas, at]
                    if len(commas) > 1:
                        inner = [text[a + 1 : b] for a, b in pairwise(cuts)]
                        return begin, at + 1, inner
                    if sequence := _sequence(text[begin + 1 : at]):
                        return begin, at + 1, sequence
                    break
        begin = text.find("{", begin + 1)
    return None


def _sequence(inner: str) -> list[str] | None:
    found = _SEQUENCE.fullmatch(inner)
    if not found:
        return None
    first, last, by = found.groups()
    step = abs(int(by or 1)) or 1
    numeric = first.lstrip("-").isdigit() and last.lstrip("-").isdigit()
    if not numeric and not (first.isalpha() and last.isalpha()):
        return None
    padded = any(len(end.lstrip("-")) > 1 and end.lstrip("-").startswith("0") for end in (first, last))
    if padded or (not numeric and first.islower() != last.islower()):
        return [""] * (_MOST_WORDS + 1)  # what these become is better not guessed
    low, high = (int(first), int(last)) if numeric else (ord(first), ord(last))
    span = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
    kept = span[: _MOST_WORDS + 1]
    return [str(number) if numeric else chr(number) for number in kept]


def _source(piece: Piece) -> str:
    return f"${piece.text}" if piece.kind in {"variable", "number"} else piece.text


def _word(template: str, pieces: tuple[Piece, ...], numbers: Collection[str]) -> Word:
    """One word without braces to expand: `template` with its holes filled."""
    shown: list[str] = []
    prefix: str | None = None  # as soon as something is not fixed, what stood before it
    many = False
    placed = True
    globs = _GLOB if "]" in template else _GLOB_ALONE
    for character in template:
        if ord(character) < _HOLE:
            if character in globs:
                many = True
                prefix = "".join(shown) if prefix is None else prefix
            shown.append(character)
            continue
        piece = pieces[ord(character) - _HOLE]
        shown.append(_source(piece))
        if piece.kind == "literal":
            continue
        before = "".join(shown[:-1]) if prefix is None else prefix
        leads = prefix is None and not before
        steady = piece.kind == "variable" and piece.text.strip("{}") in STEADY
        number = piece.kind == "number" or piece.text.strip("{}") in numbers
        if leads:
            before = "/dev/fd/" if piece.kind == "channel" else "/" if steady else "0" if number else ""
        prefix = before
        splits = not piece.quoted or (piece.kind == "variable" and _SEVERAL.fullmatch(piece.text))
        many |= bool(splits) and not (steady or number or piece.kind == "channel")
        placed &= leads and (steady or piece.kind == "channel")
    whole = _decoded("".join(shown))
    return Word(whole, whole if prefix is None else None, whole if prefix is None else prefix, many, placed)


def _decoded(text: str) -> str:
    """The text of bytes that were read as one character each."""
    return text if text.isascii() else text.encode("latin-1").decode("utf-8", "replace")
