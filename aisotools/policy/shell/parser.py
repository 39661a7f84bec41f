"""Words and commands of a shell text, by bash's rules: the upper half of our own reading.

It knows reserved words only as far as they tell where commands begin; whether the text is well formed is for
the grammar to say (`shell_grammar`). Both must find the same commands, or nothing is certain.

Quotes, substitutions and expansions: where they begin and end, by bash's rules.

The lower half of our own reading of a shell text; `shell_reader` has the upper half, words and commands. One
loop over a stack of frames, so no depth of nesting can exhaust Python. Whatever may be read otherwise by bash
becomes a doubt, and the reading goes on, so that as much as possible is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from aisotools.policy.shell.expansion import Command, Kind, ParsedText, Piece, Redirect, Token, decode_ansi

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
class NestingLevel:
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
        self.reading = ParsedText()
        self.frames = [NestingLevel(LIST, 0)]
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

    def push(self, frame: NestingLevel, length: int) -> None:
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
        self.push(NestingLevel(QUOTES, self.at, quoted=True, sink=self.sink()), 1)

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
            self.push(NestingLevel(ARITHMETIC, at + 3, "))", quoted=quoted, sink=self.sink()), 3)
        elif opening == "(":
            self.push(NestingLevel(LIST, at, ")", quoted=quoted, sink=self.sink()), 2)
        elif opening == "{":
            self.push(NestingLevel(PARAMETER, at, quoted=quoted, sink=self.sink()), 2)
        elif opening == "[":
            self.reading.doubt("arithmetic in its old form, $[ ]")
            self.push(NestingLevel(ARITHMETIC, at + 2, "]", quoted=quoted, sink=self.sink()), 2)
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
        self.push(NestingLevel(LIST, self.at, "`", end, quoted=quoted, sink=self.sink()), 1)

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
                self.push(NestingLevel(LIST, at, ")"), 2)
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


_PLAIN = re.compile(r"[^ \t\n'\"\\$`|&;<>()]+")
_BLANKS = re.compile(r"[ \t]+")
_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&>>|&>|&|\|\||\|&|\||<<<|<<-|<<|<>|<&|<|>>|>\||>&|>|\(|\)")
_SEPARATORS = frozenset((";", "&", "&&", "||", "|", "|&", ";;", ";&", ";;&"))
_NEXT_CASE = frozenset((";;", ";&", ";;&"))
_IN_TESTS = frozenset(("<", ">", "(", ")", "|", "||", "&&"))
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[([^\]]*)\])?\+?=")
_NO_ARGUMENTS = re.compile(r"\([ \t]*\)")
_VARIABLE_DESCRIPTOR = re.compile(r"\{[A-Za-z_]\w*\}")
_OPENERS = frozenset(("!", "if", "then", "elif", "else", "while", "until", "do", "{"))
_CLOSERS = frozenset(("fi", "done", "esac", "}"))
_HEADS = frozenset(("for", "select", "case", "function"))
_DECLARERS = frozenset(("declare", "typeset", "local", "export", "readonly"))
_UNCLOSED = "something is opened and never closed"


def read(text: str) -> ParsedText:
    """Read `text`; never raises."""
    return _ShellReader(text).run()


class _ShellReader(Nesting):
    def run(self) -> ParsedText:
        text, frames, steps = self.text, self.frames, self.steps
        while self.at < len(text):
            steps[frames[-1].kind]()
            if len(frames) > DEEPEST:
                self.reading.doubt("it is nested too deeply")
                self.at = len(text)
        while frames:
            frame = frames[-1]
            if frame.kind == HERE:
                self.leave_here()
                continue
            if frame.kind <= TEST:
                self._end_word()
                self._end_command()
                if frame.pending:
                    self.reading.doubt("a here-document has no body")
            if frames[-1] is frame:
                frames.pop()
                if frames:
                    self.reading.doubt(_UNCLOSED)
        return self.reading

    # ---- one step

    def in_words(self) -> None:
        frame, text, at = self.frames[-1], self.text, self.at
        if at == frame.end:
            self._close_list()
        elif text[at] == "#" and frame.word < 0:
            self._comment()
        elif plain := _PLAIN.match(text, at):
            self.add("literal", plain[0], quoted=False)
            self.at = plain.end()
        elif blanks := _BLANKS.match(text, at):
            self._end_word()
            self.at = blanks.end()
        elif text[at] == "\n":
            self._newline()
        elif text[at] == "\\":
            self._escape()
        elif text[at] == "'":
            self.single_quotes()
        elif text[at] == '"':
            self.double_quotes()
        elif text[at] in "$`":
            self.expansion()
        elif text[at] in "<>" and text.startswith("(", at + 1):
            self.push(NestingLevel(LIST, at, ")", sink=self.sink()), 2)
        else:
            self._operator()

    def _comment(self) -> None:
        frame = self.frames[-1]
        if frame.kind == TEST:
            self.reading.doubt("a # inside [[ ]]")
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end
        if frame.end >= 0:
            self.at = min(self.at, frame.end)

    def _escape(self) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following == "\n":
            around = self.text[self.at - 1 : self.at] + self.text[self.at + 2 : self.at + 3]
            if not set("|&;<>()$").isdisjoint(around):
                self.reading.doubt("a line is continued in the middle of an operator")
        else:
            self.add("literal", following or "\\", quoted=True)
        self.at += 2

    def _newline(self) -> None:
        self._end_word()
        self.at += 1
        frame = self.frames[-1]
        if frame.kind != LIST:
            return
        if frame.head != "case" and not frame.pattern:
            self._end_command()
        if len(frame.pending) > 1 or any(outer.pending for outer in self.frames[:-1]):
            self.reading.doubt("several here-documents, one within the other")
        for delimiter, quoted, tabs in frame.pending:
            self._here_document(delimiter, quoted=quoted, tabs=tabs)
        frame.pending = []

    def _here_document(self, delimiter: str, *, quoted: bool, tabs: bool) -> None:
        """Step over a body, or into it when it is expanded; its last line can then be read along."""
        line = end = self.at
        while True:
            end = self.text.find("\n", line)
            end = len(self.text) if end < 0 else end
            content = self.text[line:end]
            if (content.lstrip("\t") if tabs else content) == delimiter:
                break
            if end == len(self.text):
                self.reading.doubt("a here-document is never ended")
                break
            line = end + 1
        if quoted:
            self.at = end
            return
        if "\\\n" in self.text[self.at : end]:
            self.reading.doubt("a line is continued inside a here-document")
        self.push(NestingLevel(HERE, self.at, end=end, quoted=True), 0)

    # ---- words

    def _end_word(self) -> None:
        frame = self.frames[-1]
        if frame.word < 0:
            return
        # a part that was never closed left nothing
        token = Token(frame.word, self.at, tuple(frame.pieces) or (Piece("unknown", "", quoted=False),))
        frame.word, frame.pieces = -1, []
        if frame.redirect:
            self._take_target(frame, token)
        elif frame.kind == ARRAY:
            if token.pieces[0].text.startswith("["):
                self.reading.doubt("an array whose elements say their place")
            self.reading.data.append(token)
        elif frame.kind == TEST:
            if token.bare == "]]":
                self.frames.pop()
                self.reading.tests.append((frame.start, tuple(frame.words)))
            else:
                frame.words.append(token)
        elif frame.pattern and token.bare != "esac":
            self.reading.data.append(token)
        elif frame.head:
            self._take_head(frame, token)
        elif frame.ready:
            self._take_first(frame, token)
        else:
            if frame.closed:
                self.reading.doubt("words follow the end of a compound command")
            frame.words.append(token)

    def _take_target(self, frame: NestingLevel, token: Token) -> None:
        operator, frame.redirect = frame.redirect, ""
        if operator not in {"<<", "<<-"}:
            frame.redirects.append(Redirect(operator, token, frame.descriptor))
            return
        delimiter = "".join(piece.text for piece in token.pieces)
        quoted = any(piece.quoted for piece in token.pieces)
        if any(piece.kind != "literal" for piece in token.pieces) or not delimiter.strip("\t"):
            self.reading.doubt("a here-document with a peculiar delimiter")
        frame.pending.append((delimiter, quoted, operator == "<<-"))

    def _take_first(self, frame: NestingLevel, token: Token) -> None:
        """A word where a command may start."""
        bare, first = token.bare, token.pieces[0]
        assigned = _ASSIGNMENT.match(first.text) if first.kind == "literal" and not first.quoted else None
        if assigned or self._index_unclear(token):
            if assigned and assigned[1] is not None:
                self.reading.arithmetic.append(assigned[1])
            frame.words.append(token)
            frame.assignments += 1
        elif frame.assignments or frame.redirects:  # after these no word is reserved
            frame.words.append(token)
            frame.ready = False
        elif bare in _CLOSERS:
            frame.ready, frame.closed = False, True
            if bare == "esac":
                frame.pattern = False
                frame.cases -= 1
        elif bare in _HEADS:
            frame.head, frame.ready = bare, False
        elif bare == "[[":
            frame.ready, frame.closed = False, True
            self.frames.append(NestingLevel(TEST, token.start))
        elif bare not in _OPENERS:
            frame.words.append(token)
            frame.ready = False

    def _index_unclear(self, token: Token) -> bool:
        """`name[` with an expansion or quotes before the `=`: perhaps an assignment."""
        first = token.pieces[0]
        if len(token.pieces) > 1 and not first.quoted and re.fullmatch(r"[A-Za-z_]\w*\[.*", first.text):
            self.reading.doubt("an array index that is not plain")
            return "=" in self.text[token.start : token.end]
        return False

    def _take_head(self, frame: NestingLevel, token: Token) -> None:
        if frame.head == "function":
            self.reading.functions.append(self.text[token.start : token.end])
            frame.head, frame.ready = "", True
            blanks = _BLANKS.match(self.text, self.at)
            if empty := _NO_ARGUMENTS.match(self.text, blanks.end() if blanks else self.at):
                self.at = empty.end()
        elif frame.head == "case" and frame.words and token.bare == "in":
            self.reading.data.extend(frame.words)
            frame.words, frame.head, frame.pattern = [], "", True
            frame.ready = True
            frame.cases += 1
        else:
            frame.words.append(token)

    def _end_command(self) -> None:
        frame = self.frames[-1]
        if frame.redirect:
            self.reading.doubt("a redirection without a target")
        if frame.head in {"for", "select"}:
            self.reading.loops.append(tuple(frame.words))
        elif frame.head:
            self.reading.doubt(f"{frame.head} is not followed by what belongs there")
        elif frame.words or frame.redirects:
            command = Command(tuple(frame.words), frame.assignments, tuple(frame.redirects))
            self.reading.commands.append(command)
        frame.words, frame.redirects, frame.assignments = [], [], 0
        frame.ready, frame.closed, frame.head, frame.redirect = True, False, "", ""

    # ---- operators

    def _operator(self) -> None:
        frame = self.frames[-1]
        found = _OPERATOR.match(self.text, self.at)
        operator = found[0] if found else self.text[self.at]
        if operator[0] in "<>":
            self._drop_descriptor(frame)
        if operator == "(" and self._open_array(frame):
            return
        self._end_word()
        if self.frames[-1] is not frame or not self.text.startswith(operator, self.at):
            return  # that word was the ]] of a test, or brought its ( ) along: look again
        if operator == "(" and frame.kind == LIST:
            self._open_parenthesis(frame)
        elif operator == ")" and frame.kind != TEST:
            self._close_parenthesis(frame)
        else:
            self._plain_operator(frame, operator)
            self.at += len(operator)

    def _plain_operator(self, frame: NestingLevel, operator: str) -> None:
        if frame.kind == TEST:
            if operator not in _IN_TESTS:
                self.reading.doubt(f"{operator} inside [[ ]]")
            piece = Piece("literal", operator, quoted=False)
            frame.words.append(Token(self.at, self.at + len(operator), (piece,)))
        elif frame.kind == ARRAY or (frame.pattern and operator != "|"):
            self.reading.doubt(f"{operator} where only words belong")
        elif frame.pattern:
            return
        elif operator in _SEPARATORS:
            self._end_command()
            frame.pattern = operator in _NEXT_CASE and frame.cases > 0
        else:
            if frame.redirect or frame.head:
                self.reading.doubt(f"{operator} where no redirection belongs")
            frame.redirect = operator

    def _drop_descriptor(self, frame: NestingLevel) -> None:
        """A number right before a redirection is no word but its descriptor."""
        if frame.kind != LIST or frame.redirect:
            return
        frame.descriptor = ""
        if frame.word < 0:
            return
        written = self.text[frame.word : self.at]
        if written.isascii() and written.isdecimal():
            frame.word, frame.pieces, frame.descriptor = -1, [], written
        elif _VARIABLE_DESCRIPTOR.fullmatch(written):
            self.reading.doubt("a redirection whose descriptor goes into a variable")

    def _open_array(self, frame: NestingLevel) -> bool:
        """Enter `name=(` where an assignment may stand."""
        if frame.kind != LIST or frame.word < 0 or frame.redirect or frame.head or frame.pattern:
            return False
        program = frame.words[frame.assignments :][:1]
        declares = bool(program) and program[0].bare in _DECLARERS
        found = _ASSIGNMENT.fullmatch(self.text[frame.word : self.at])
        if not found or found[1] is not None or not (frame.ready or declares):
            return False
        frame.pieces.append(Piece("unknown", "(", quoted=True))
        self.push(NestingLevel(ARRAY, self.at, ")"), 1)
        return True

    def _open_parenthesis(self, frame: NestingLevel) -> None:
        starts = (frame.ready and not frame.words and not frame.redirects) or (
            frame.head == "for" and not frame.words
        )
        if frame.pattern:
            self.at += 1
        elif starts and self.text.startswith("((", self.at) and self.closes_doubly(self.at + 2):
            frame.ready, frame.closed, frame.head = False, True, ""
            self.push(NestingLevel(ARITHMETIC, self.at + 2, "))"), 2)
        elif starts and not frame.head:
            frame.ready, frame.closed = False, True
            self.push(NestingLevel(LIST, self.at, ")"), 1)
        elif (
            len(frame.words) == 1
            and not (frame.assignments or frame.redirects or frame.head)
            and (empty := _NO_ARGUMENTS.match(self.text, self.at))
        ):
            name = frame.words.pop()
            self.reading.functions.append(self.text[name.start : name.end])
            frame.ready = True
            self.at = empty.end()
        else:
            self.reading.doubt("a parenthesis where none belongs")
            self.push(NestingLevel(LIST, self.at, ")"), 1)

    def _close_parenthesis(self, frame: NestingLevel) -> None:
        if frame.kind == ARRAY:
            self.frames.pop()
            self.at += 1
        elif frame.pattern:
            frame.pattern, frame.ready = False, True
            self.at += 1
        elif frame.closer == ")":
            self._close_list()
        else:
            self.reading.doubt("a parenthesis is closed that was never opened")
            self._end_command()
            self.at += 1

    def _close_list(self) -> None:
        self._end_word()
        frame = self.frames[-1]
        if frame.kind != LIST:
            self.reading.doubt("quotes and backticks cross")
            self.frames.pop()
            return
        self._end_command()
        if frame.pending or frame.cases or (frame.end >= 0 and frame.end != self.at):
            self.reading.doubt("a substitution ends inside of something")
        self.at += 1
        written = self.text[frame.start : self.at]
        self.close("channel" if written.startswith(("<(", ">(")) else "unknown", written)
