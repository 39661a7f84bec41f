"""Values of a parsed shell text, and what its words expand to.

Braces are expanded and quotes removed; of the rest, a `Word` says how much is known beforehand. What its
variables certainly hold, the caller says.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from aisotools.policy.shell.substitutions import (
    is_count,
    is_plain_name,
    is_program_path,
    printed_beginning,
)

# ---- values

PieceKind = Literal["literal", "variable", "number", "unknown", "channel"]
"""Fixed text, a variable, an expansion to digits, any other expansion, or a process substitution."""


class Piece(NamedTuple):
    """A part of a word: fixed text, or the source of an expansion without its `$`."""

    kind: PieceKind
    text: str
    quoted: bool

    @property
    def name(self) -> str:
        """Of a variable that is used as it is, the name: the text without braces around it."""
        return self.text.strip("{}")


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

    @property
    def variable(self) -> str | None:
        """The text behind the `$`, without braces, if it is a variable and nothing else; else None."""
        pieces = [piece for piece in self.pieces if piece.text]
        return pieces[0].name if len(pieces) == 1 and pieces[0].kind == "variable" else None


class Redirect(NamedTuple):
    """A redirection other than a here-document; `descriptor` is '' where the operator implies it."""

    operator: str
    target: Token
    descriptor: str


class SimpleCommand(NamedTuple):
    """Words and redirections between two separators; the first `assignments` words are assignments."""

    words: tuple[Token, ...]
    assignments: int
    redirects: tuple[Redirect, ...]

    @property
    def program_words(self) -> tuple[Token, ...]:
        """The program and its arguments; empty for assignments and redirections alone."""
        return self.words[self.assignments :]


class FlowStep(NamedTuple):
    """A step on the way through the commands of a text, in the order in which bash reads them.

    Attributes:
        kind: `open` and `close` for what runs in a shell of its own: `( )`, `$( )`, backticks, `<( )`. `end`
            for the end of a simple or a compound command.
        command: The simple command that ends; None for a compound one.
        operator: What separates it from the next; `;` also stands for a line's end, and for the end.
    """

    kind: Literal["open", "close", "end"]
    command: SimpleCommand | None = None
    operator: str = ""


@dataclass(slots=True)
class ParsedText:
    """What a text contains, at any depth.

    Attributes:
        commands: Every simple command, in the order of their ends.
        flow: How they follow each other.
        is_linear: Whether none is repeated, chosen or negated by a reserved word: no loop, no `if`, no `!`.
        loops: What follows `for` or `select`: the variable, `in`, and the words.
        data: Other words that are expanded: subjects and patterns of `case`, elements of arrays.
        tests: What stands between `[[` and `]]`, with the position of the `[[`.
        functions: Names of functions defined here.
        arithmetic: Sources of arithmetic expressions.
        parameters: Sources of `${...}`.
        doubts: Why bash may read the text otherwise.
    """

    commands: list[SimpleCommand] = field(default_factory=list)
    flow: list[FlowStep] = field(default_factory=list)
    is_linear: bool = True
    loops: list[tuple[Token, ...]] = field(default_factory=list)
    data: list[Token] = field(default_factory=list)
    tests: list[tuple[int, tuple[Token, ...]]] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    arithmetic: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def add_doubt(self, reason: str) -> None:
        """Add a doubt unless it is there already."""
        if reason not in self.doubts:
            self.doubts.append(reason)


def name_set(text: str) -> frozenset[str]:
    """Return the blank-separated names in `text`."""
    return frozenset(text.split())


# ---- words

_MAX_WORDS = 64  # that braces may expand to; more are treated as unknown
_MAX_BRACES = 16  # that open in a word; each may be looked at up to the end of the word
_MAX_BRACE_CHARS = 2000
_FIRST_HOLE = 0x100000  # characters from here on stand for parts that brace expansion cannot look into
_GLOB_WITHOUT_BRACKETS = frozenset("*?")
_GLOB = frozenset("*?[")
_SEQUENCE = re.compile(r"([-+]?\d+|[A-Za-z])\.\.([-+]?\d+|[A-Za-z])(?:\.\.([-+]?\d+))?", re.ASCII)
_MAX_NUMBER_CHARS = 7  # of a number in a sequence; at how many digits bash gives up depends on the machine
_BRACE_MARK = re.compile(r"[{},]|\.(?=\.(?!\}))")  # of the dots, the first of two that do not end the braces
_AFTER_HOLE = re.compile(f"[{chr(_FIRST_HOLE)}-\U0010ffff]{{}}")
_EXPANDS_TO_SEVERAL = re.compile(r"[@*]|\{.*\[[@*]\].*\}|\{[@*].*\}", re.DOTALL)

ABSOLUTE_PATH_VARIABLES = frozenset(("HOME", "PWD", "TMPDIR", "WORKSPACE"))
"""Variables that hold an absolute path in every sandbox. A text that assigns to one is never certain."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word as a program gets it, as far as that is known before it runs.

    Attributes:
        display: For people: the fixed text, with expansions as written.
        text: The whole text if it is fixed, else None.
        prefix: How it certainly begins.
        may_split: Whether it may become several words, or none.
        is_located: Whether it is known which path it means, apart from patterns in it.
        is_file: Whether it is a variable that certainly holds the name of a file written or found here.
        is_name: Whether it is a pattern of which it is taken for granted that no match begins with a dash.
        sample: The text with `1` in place of each number, if nothing else of it is open; None otherwise.
    """

    display: str
    text: str | None
    prefix: str
    may_split: bool = False
    is_located: bool = True
    is_file: bool = False
    is_name: bool = False
    sample: str | None = None

    @property
    def path(self) -> str:
        """The word as a path: a name that only looks like a variable, as it was quoted, is told from that."""
        return f"./{self.text}" if self.text and self.text[0] in "$`" else self.display

    @property
    def is_bare_pattern(self) -> bool:
        """True if it begins with a pattern and has nothing else in it that is only known at run time."""
        return self.text is None and not self.prefix and self.is_located and self.display[:1] in _GLOB

    @property
    def may_be_option(self) -> bool:
        """True if it, or a word that it is split into, may begin with a dash."""
        if self.is_name:
            return False
        splits = self.may_split and not self.is_located  # patterns alone keep the beginning
        return self.prefix.startswith("-") or (self.text is None and (splits or not self.prefix))


class LoopWords(NamedTuple):
    """The words that a loop's variable is in turn, or the one that a variable is set to.

    Attributes:
        displays: The words, as they are written.
        beginning: `0` if none begins with a dash or a slash, `/` if all begin with a slash, else empty.
        are_single: Whether none can split.
    """

    displays: tuple[str, ...]
    beginning: str
    are_single: bool


def literal(text: str) -> Word:
    """Return a word of fixed text."""
    return Word(text, text, text)


def without_beginning(word: Word, length: int) -> Word:
    """Return `word` without its first characters, which are fixed text."""
    text = None if word.text is None else word.text[length:]
    return replace(
        word,
        display=word.display[length:],
        text=text,
        prefix=word.prefix[length:],
        is_name=False,
        sample=None,
    )


def unknown_words(display: str = "", prefix: str = "") -> Word:
    """Return any number of words of which nothing is known but how they begin."""
    return Word(display, None, prefix, may_split=True, is_located=False)


def expand(
    token: Token, numbers: Collection[str] = (), files: Mapping[str, LoopWords] | None = None
) -> list[Word]:
    """Return the words that `token` becomes.

    Args:
        token: A word as written.
        numbers: Variables that certainly hold numbers.
        files: Variables that certainly hold the name of a file.
    """
    template = _template(token)
    if "{" not in template:
        word = _fill_holes(template, token.pieces, numbers)
        if word.text is None:
            word = replace(word, sample=_fill_in_numbers(token.pieces, numbers))
        pieces = [piece for piece in token.pieces if piece.text]
        if len(pieces) == 1 and pieces[0].quoted and is_program_path(pieces[0].text):
            return [replace(word, is_name=True)]
        return [_know_file(word, token, files) if files else word]
    alternatives = _expand_braces(template, token.pieces)
    if alternatives is None:
        return [unknown_words("".join(_source(piece) for piece in token.pieces))]
    return [_fill_holes(alternative, token.pieces, numbers) for alternative in alternatives if alternative]


def _know_file(word: Word, token: Token, files: Mapping[str, LoopWords]) -> Word:
    """Return `word` with what is known of it if it is a variable of `files`, with fixed text behind it."""
    pieces = [piece for piece in token.pieces if piece.text]
    first, rest = (pieces[0], pieces[1:]) if pieces else (None, [])
    if first is None or first.kind != "variable" or any(piece.kind != "literal" for piece in rest):
        return word
    values = files.get(first.name)
    if values is None:
        return word
    has_pattern = any(not piece.quoted and not _GLOB.isdisjoint(piece.text) for piece in rest)
    return replace(
        word,
        is_file=True,
        prefix=values.beginning or word.prefix,
        may_split=word.may_split and (has_pattern or not values.are_single),
    )


def expand_value(token: Token, numbers: Collection[str] = ()) -> Word:
    """Return the one word that the value of an assignment becomes, in which braces stay."""
    return _fill_holes(_template(token), token.pieces, numbers)


def _template(token: Token) -> str:
    """Return the word with a hole for each part that is quoted or expanded."""
    return "".join(
        piece.text if piece.kind == "literal" and not piece.quoted else chr(_FIRST_HOLE + index)
        for index, piece in enumerate(token.pieces)
    )


def _expand_braces(text: str, pieces: tuple[Piece, ...]) -> list[str] | None:
    """Return what bash makes of the braces in `text`, in its order; None if too much or not certain."""
    if "," not in text and ".." not in text:
        return [text]
    if text.count("{") > _MAX_BRACES or len(text) > _MAX_BRACE_CHARS:
        return None
    # Case: bash looks at the character before `{}`, and how a blank there was quoted is not known here.
    if _AFTER_HOLE.search(text) and any(piece.text[-1:].isspace() for piece in pieces):
        return None
    group = _find_brace_group(text)
    if group is None:
        return [text]
    if "$" in text:
        return None  # `{$,x}HOME` becomes `$HOME`, which is expanded after the braces
    begin, end = group
    body = text[begin + 1 : end]
    parts: list[str] = []
    if "," in body:
        for part in _split_at_commas(body):
            words = _expand_braces(part, pieces)
            if words is None or len(parts) + len(words) > _MAX_WORDS:
                return None
            parts += words
    elif any(
        "," in pieces[ord(character) - _FIRST_HOLE].text
        for character in body
        if character >= chr(_FIRST_HOLE)
    ):
        # Case: for bash a quoted comma makes `{a..","}` a list of one; an escaped one does not.
        return None
    else:
        parts = _expand_sequence(body) or [text[begin : end + 1]]
    # What follows is read as if it were a word of its own: `{}` at its beginning opens nothing.
    endings = _expand_braces(text[end + 1 :], pieces)
    if endings is None or len(parts) * len(endings) > _MAX_WORDS:
        return None
    return [text[:begin] + part + ending for part in parts for ending in endings]


def _find_brace_group(text: str) -> tuple[int, int] | None:
    """Return where the first braces that bash looks into open and close."""
    opening = text.find("{")
    while opening >= 0:
        # `{}` at the beginning, as in `find -exec`, opens nothing; `a{},b}` is the list of `}` and `b`.
        if opening or not text.startswith("{}"):
            closing = _find_closing_brace(text, opening + 1)
            if closing is not None:
                return opening, closing
        opening = text.find("{", opening + 1)
    return None


def _find_closing_brace(text: str, start: int) -> int | None:
    """Return where the braces that open before `start` close: after a comma or two dots of their own."""
    depth = 0
    is_list = False
    for match in _BRACE_MARK.finditer(text, start):
        mark = match[0]
        if mark == "{":
            depth += 1
        elif mark == "}" and depth:
            depth -= 1
        elif mark == "}" and is_list:
            return match.start()
        elif mark != "}" and not depth:
            is_list = True
    return None


def _split_at_commas(body: str) -> list[str]:
    """Return the parts of a list in braces; commas of inner braces do not separate."""
    depth = 0
    commas = [-1]
    for position, character in enumerate(body):
        if character == "{":
            depth += 1
        elif character == "}" and depth:
            depth -= 1
        elif character == "," and not depth:
            commas.append(position)
    return [body[comma + 1 : right] for comma, right in pairwise([*commas, len(body)])]


def _expand_sequence(body: str) -> list[str] | None:
    """Return what `{body}` becomes if it is a sequence such as `1..5`; more than `_MAX_WORDS` if unclear."""
    sequence = _SEQUENCE.fullmatch(body)
    if not sequence:
        return None
    first, last, increment = sequence.groups()
    numeric = not first.isalpha() and not last.isalpha()
    if not numeric and not (first.isalpha() and last.isalpha()):
        return None
    ends = [end.lstrip("+-") for end in (first, last)]
    padded = any(len(end) > 1 and end.startswith("0") for end in ends)
    is_long = max(len(first), len(last), len(increment or "")) > _MAX_NUMBER_CHARS
    if padded or is_long or (not numeric and first.islower() != last.islower()):
        return [""] * (_MAX_WORDS + 1)  # zero padding and mixed case differ between versions of bash
    step = abs(int(increment or 1)) or 1
    low, high = (int(first), int(last)) if numeric else (ord(first), ord(last))
    values = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
    return [str(value) if numeric else chr(value) for value in values[: _MAX_WORDS + 1]]


def _source(piece: Piece) -> str:
    return f"${piece.text}" if piece.kind in {"variable", "number"} else piece.text


def _fill_holes(template: str, pieces: tuple[Piece, ...], numbers: Collection[str]) -> Word:
    """Return one word: `template`, which has no braces left to expand, with its holes filled."""
    display: list[str] = []
    prefix: str | None = None  # what precedes the first part that is not fixed; None before one is met
    may_split = False
    is_located = True
    globs = _GLOB if "]" in template else _GLOB_WITHOUT_BRACKETS
    for character in template:
        if ord(character) < _FIRST_HOLE:
            if character in globs:
                may_split = True
                prefix = "".join(display) if prefix is None else prefix
            display.append(character)
            continue
        piece = pieces[ord(character) - _FIRST_HOLE]
        display.append(_source(piece))
        if piece.kind == "literal":
            continue
        is_path = piece.kind == "variable" and piece.name in ABSOLUTE_PATH_VARIABLES
        is_number = piece.kind == "number" or piece.name in numbers or is_plain_name(piece.text)
        is_channel = piece.kind == "channel"
        is_first = prefix is None and not "".join(display[:-1])
        if is_first:
            beginning = printed_beginning(piece.text) if piece.kind == "unknown" else ""
            prefix = "/dev/fd/" if is_channel else "/" if is_path else "0" if is_number else beginning
        elif prefix is None:
            prefix = "".join(display[:-1])
        splits = not piece.quoted or (piece.kind == "variable" and _EXPANDS_TO_SEVERAL.fullmatch(piece.text))
        may_split |= bool(splits) and not (is_path or is_number or is_channel)
        is_located &= is_first and (is_path or is_channel)
    whole = _decode_utf8("".join(display))
    text = whole if prefix is None else None
    return Word(whole, text, whole if prefix is None else prefix, may_split, is_located)


def _fill_in_numbers(pieces: tuple[Piece, ...], numbers: Collection[str]) -> str | None:
    """Return the text of a word without braces with `1` for each number; None if more of it is open."""
    parts = []
    for piece in pieces:
        is_literal = piece.kind == "literal"
        is_pattern = is_literal and not piece.quoted and not _GLOB.isdisjoint(piece.text)
        is_number = piece.kind == "number" or piece.name in numbers or is_count(piece.text)
        if is_pattern or not (is_literal or is_number):
            return None
        parts.append(piece.text if is_literal else "1")
    return _decode_utf8("".join(parts))


def _decode_utf8(text: str) -> str:
    """Decode a text that has one character per byte."""
    return text if text.isascii() else text.encode("latin-1").decode("utf-8", "replace")
