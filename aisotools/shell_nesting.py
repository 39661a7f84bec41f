"""Quotes, substitutions and expansions: where they begin and end, by bash's rules.

The lower half of our own reading of a shell text; `shell_reader` has the upper half, words and commands. One
loop over a stack of frames, so no depth of nesting can exhaust Python. Whatever may be read otherwise by bash
becomes a doubt, and the reading goes on, so that as much as possible is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from aisotools.shell_text import Kind, Piece, Reading, Redirect, Token, decode_ansi

LIST, ARRAY, TEST, QUOTES, PARAMETER, ARITHMETIC, HERE = range(7)
"""Kinds of frames. The first three hold words; the others are parts of one, or a here-document."""

DEEPEST = 100
"""Levels of nesting that are read; whatever goes deeper is meant to confuse."""

_LOOK_AHEADS = 10_000

_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_IN_HERE = re.compile(r"[^\\$`]+")
_IN_PARAMETER = re.compile(r"[^}\"'\\$`<>]+")
_IN_ARITHMETIC = re.compile(r"[^()\]$`]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_LENGTH = re.compile(r"\{#\w+\}")
_TO_QUOTE = re.compile(r"(?:[^'\\]|\\.)*+", re.DOTALL)
_TO_BACKTICK = re.compile(r"(?:[^`\\]|\\.)*+", re.DOTALL)
_PARENTHESIS = re.compile(r"[()]")


@dataclass(slots=True)
class Frame:
    """One level of nesting.

    Attributes:
        kind: What it is.
        start: Where it begins.
        closer: What ends it.
        end: Where it must end, if that is known beforehand.
        quoted: Whether what is expanded in here is safe from being split into words.
        sink: Gets the parts of the enclosing word; None where that word is of no interest.
        depth: Open parentheses of arithmetic.
        word: Start of the word being read, or -1; its parts so far are in `pieces`.
        ready: Whether a command may start here.
        closed: Whether a compound command has just ended: only redirections may follow.
        head: `for`, `select`, `case` or `function` while their own words are read.
        pattern: Whether the patterns of a case are read; `cases` counts open ones.
        redirect: An operator that waits for its target; `descriptor` stood before it.
        pending: Here-documents to come: delimiter, whether quoted, whether tabs are stripped.
    """

    kind: int
    start: int
    closer: str = ""
    end: int = -1
    quoted: bool = False
    sink: list[Piece] | None = None
    depth: int = 0
    word: int = -1
    pieces: list[Piece] = field(default_factory=list)
    words: list[Token] = field(default_factory=list)
    assignments: int = 0
    redirects: list[Redirect] = field(default_factory=list)
    ready: bool = True
    closed: bool = False
    head: str = ""
    pattern: bool = False
    cases: int = 0
    redirect: str = ""
    descriptor: str = ""
    pending: list[tuple[str, bool, bool]] = field(default_factory=list)


class Nesting:
    """Reads everything inside words; whoever inherits reads the words and commands."""

    def __init__(self, text: str) -> None:
        """Start at the beginning of `text`."""
        self.text = text
        self.at = 0
        self.look_aheads = 0
        self.reading = Reading()
        self.frames = [Frame(LIST, 0)]
        self.steps: tuple[Callable[[], None], ...] = (
            *[self.in_words] * 3,
            self._in_quotes,
            self._in_parameter,
            self._in_arithmetic,
            self._in_here,
        )

    def in_words(self) -> None:
        """Read on in a frame that holds words."""
        raise NotImplementedError

    # ---- frames and parts of words

    def push(self, frame: Frame, length: int) -> None:
        """Enter `frame`, whose opening is `length` characters long."""
        self.frames.append(frame)
        self.at += length

    def sink(self) -> list[Piece] | None:
        """Where the parts of the current word go; begins a word if need be."""
        frame = self.frames[-1]
        if frame.kind > TEST:
            return frame.sink if frame.kind == QUOTES else None
        if frame.word < 0:
            frame.word = self.at
        return frame.pieces

    def add(self, kind: Kind, text: str, *, quoted: bool) -> None:
        """Add a part to the current word."""
        sink = self.sink()
        if sink is not None:
            sink.append(Piece(kind, text, quoted))

    def close(self, kind: Kind, text: str) -> None:
        """Leave the frame, which was a part of a word."""
        frame = self.frames.pop()
        if frame.sink is not None:
            frame.sink.append(Piece(kind, text, frame.quoted))

    # ---- what may begin in many places

    def double_quotes(self) -> None:
        """Enter double quotes."""
        self.add("literal", "", quoted=True)  # two quotes with nothing between are a word, too
        self.push(Frame(QUOTES, self.at, quoted=True, sink=self.sink()), 1)

    def single_quotes(self) -> None:
        """Step over single quotes."""
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self.reading.doubt("a quote is never closed")
            end = len(self.text)
        self.add("literal", self.text[self.at + 1 : end], quoted=True)
        self.at = end + 1

    def expansion(self) -> None:
        """Read what begins with `$` or a backtick."""
        text, at, frame = self.text, self.at, self.frames[-1]
        if text[at] == "`":
            self._backtick()
            return
        plain = frame.kind <= TEST
        quoted = not plain and frame.quoted
        opening = text[at + 1 : at + 2]
        if opening == "(" and text.startswith("(", at + 2) and self.closes_doubly(at + 3):
            self.push(Frame(ARITHMETIC, at + 3, "))", quoted=quoted, sink=self.sink()), 3)
        elif opening == "(":
            self.push(Frame(LIST, at, ")", quoted=quoted, sink=self.sink()), 2)
        elif opening == "{":
            self.push(Frame(PARAMETER, at, quoted=quoted, sink=self.sink()), 2)
        elif opening == "[":
            self.reading.doubt("arithmetic in its old form, $[ ]")
            self.push(Frame(ARITHMETIC, at + 2, "]", quoted=quoted, sink=self.sink()), 2)
        elif opening == "'" and plain:
            self._ansi_quotes()
        elif opening == '"' and plain:
            self.reading.doubt("a text that may be translated")
            self.at += 1
        elif name := _NAME.match(text, at + 1):
            self.add("number" if name[0] in {"#", "?", "$", "!"} else "variable", name[0], quoted=quoted)
            self.at = name.end()
        else:
            self.add("literal", "$", quoted=quoted)
            self.at += 1

    def closes_doubly(self, at: int) -> bool:
        """Whether the two parentheses open before `at` close together, as those of arithmetic do."""
        depth = 0
        for found in _PARENTHESIS.finditer(self.text, at):
            depth += 1 if found[0] == "(" else -1
            self.look_aheads += 1
            if depth < 0:
                return self.text.startswith("))", found.start())
            if self.look_aheads > _LOOK_AHEADS:  # every one of them may look to the end of the text
                self.reading.doubt("there are too many parentheses")
                break
        return False

    def _ansi_quotes(self) -> None:
        body = _TO_QUOTE.match(self.text, self.at + 2)
        end = body.end() if body else self.at + 2
        decoded = decode_ansi(self.text[self.at + 2 : end])
        if decoded is None or end >= len(self.text):
            self.reading.doubt("$' ' that is not closed, or holds what is better not guessed")
        self.add("literal", decoded or "", quoted=True)
        self.at = end + 1

    def _backtick(self) -> None:
        for depth, frame in enumerate(self.frames):
            if frame.closer == "`" and frame.end == self.at:
                self.reading.doubt("quotes and backticks cross")
                del self.frames[depth + 1 :]
                return
        body = _TO_BACKTICK.match(self.text, self.at + 1)
        end = body.end() if body else self.at + 1
        if end >= len(self.text) or "\\" in self.text[self.at : end]:
            self.reading.doubt("backticks that are not closed, or hold a backslash")
        frame = self.frames[-1]
        quoted = frame.kind > TEST and frame.quoted
        self.push(Frame(LIST, self.at, "`", end, quoted=quoted, sink=self.sink()), 1)

    # ---- one step in each kind of frame

    def _in_quotes(self) -> None:
        text, at = self.text, self.at
        if plain := _IN_QUOTES.match(text, at):
            self.add("literal", plain[0], quoted=True)
            self.at = plain.end()
        elif text[at] == '"':
            self.frames.pop()
            self.at += 1
        elif text[at] == "\\":
            following = text[at + 1 : at + 2]
            if following != "\n":
                kept = following if following in {"$", "`", '"', "\\"} else f"\\{following}"
                self.add("literal", kept, quoted=True)
            self.at += 2
        else:
            self.expansion()

    def _in_here(self) -> None:
        frame, text, at = self.frames[-1], self.text, self.at
        if at >= frame.end:
            self.leave_here()
        elif plain := _IN_HERE.match(text, at, frame.end):
            self.at = plain.end()
        elif text[at] == "\\":
            self.at += 2
        else:
            self.expansion()

    def leave_here(self) -> None:
        """Leave a here-document."""
        if self.at != self.frames.pop().end:
            self.reading.doubt("a here-document ends inside of something")

    def _in_parameter(self) -> None:
        frame, text, at = self.frames[-1], self.text, self.at
        character = text[at]
        if plain := _IN_PARAMETER.match(text, at):
            self.at = plain.end()
        elif character == "}":
            source = text[frame.start + 1 : at + 1]
            self.reading.parameters.append(source)
            self.close("number" if _LENGTH.fullmatch(source) else "variable", source)
            self.at += 1
        elif character == "\\":
            self.at += 2
        elif character in "'\"" and frame.quoted:
            # whether they quote anything depends on the operator
            self.reading.doubt("quotes inside ${ } inside quotes")
            self.at += 1
        elif character == "'":
            self.single_quotes()
        elif character == '"':
            self.double_quotes()
        elif character in "<>":
            if text.startswith("(", at + 1):
                self.reading.doubt("a process substitution inside ${ }")
                self.push(Frame(LIST, at, ")"), 2)
            else:
                self.at += 1
        else:
            self.expansion()

    def _in_arithmetic(self) -> None:
        frame, text, at = self.frames[-1], self.text, self.at
        character = text[at]
        if plain := _IN_ARITHMETIC.match(text, at):
            self.at = plain.end()
        elif not frame.depth and text.startswith(frame.closer, at):
            self.reading.arithmetic.append(text[frame.start : at])
            self.close("number", f"(({text[frame.start : at]}))")
            self.at += len(frame.closer)
        elif character in "$`":
            self.expansion()
        else:
            frame.depth += {"(": 1, ")": -1}.get(character, 0)
            self.at += 1
