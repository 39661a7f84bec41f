"""Parse a shell text by bash's rules: quotes, expansions, words and simple commands.

One loop over a stack of frames, so that no depth of nesting can exhaust Python's stack. Reserved words are
known only as far as they tell where commands begin; whether the text is well formed is for `grammar` to say.
Whatever bash may read otherwise becomes a doubt, and the parser goes on, so that as many commands as possible
are found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from aisotools.policy.shell.expansion import (
    FlowStep,
    ParsedText,
    Piece,
    PieceKind,
    Redirect,
    SimpleCommand,
    Token,
)
from aisotools.policy.shell.substitutions import decode_ansi

# A word, a blank and an operator are a step each, and so is a line in which the end of a here-document is
# looked for once more. The event loop waits meanwhile.
_MAX_STEPS = 4_000
MAX_DEPTH = 100
"""Levels of nesting that are parsed; people write less than ten."""

# Every `((` may look ahead to the end of the text. This bounds all of them together.
_MAX_LOOKAHEADS = 10_000

# Kinds of frames. The first three hold words, the next three are parts of a word.
_LIST = 0
_ARRAY = 1
_TEST = 2
_QUOTES = 3
_PARAMETER = 4
_ARITHMETIC = 5
_HERE = 6

# Runs of characters without a meaning in the frame.
_PLAIN = re.compile(r"[^ \t\n'\"\\$`|&;<>()]+")
_PLAIN_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_PLAIN_IN_HERE = re.compile(r"[^\\$`]+")
_PLAIN_IN_PARAMETER = re.compile(r"[^}\"'\\$`<>]+")
_PLAIN_IN_ARITHMETIC = re.compile(r"[^()\]$`]+")

_BLANKS = re.compile(r"[ \t]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-]")
_LENGTH = re.compile(r"\{#\w+\}")
_TO_QUOTE = re.compile(r"(?:[^'\\]|\\.)*+", re.DOTALL)
_TO_BACKTICK = re.compile(r"(?:[^`\\]|\\.)*+", re.DOTALL)
_PARENTHESIS = re.compile(r"[()]")
_NO_ARGUMENTS = re.compile(r"\([ \t]*\)")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[([^\]]*)\])?\+?=")
_INDEX = re.compile(r"[A-Za-z_]\w*\[.*")
_VARIABLE_DESCRIPTOR = re.compile(r"\{[A-Za-z_]\w*\}")

_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&>>|&>|&|\|\||\|&|\||<<<|<<-|<<|<>|<&|<|>>|>\||>&|>|\(|\)")
_SEPARATORS = frozenset((";", "&", "&&", "||", "|", "|&", ";;", ";&", ";;&"))
_NEXT_CASE = frozenset((";;", ";&", ";;&"))
_TEST_OPERATORS = frozenset(("<", ">", "(", ")", "|", "||", "&&"))
_OPENERS = frozenset(("!", "if", "then", "elif", "else", "while", "until", "do", "{"))
_CLOSERS = frozenset(("fi", "done", "esac", "}"))
_HEADERS = frozenset(("for", "select", "case", "function"))
_DECLARERS = frozenset(("declare", "typeset", "local", "export", "readonly"))


def parse_shell(text: str) -> ParsedText:
    """Parse `text`, which has one character per byte. Never raises: what is unclear becomes a doubt."""
    return _ShellParser(text).run()


@dataclass(slots=True)
class _Nesting:
    """One level of nesting.

    Attributes:
        kind: One of the constants above.
        start: Where it begins.
        closer: What ends it.
        end: Where it must end, if that is known beforehand, else -1.
        quoted: Whether expansions in here are safe from being split into words.
        sink: Collects the parts of the enclosing word; None where that word does not matter.
        depth: Open parentheses of arithmetic.
        word_start: Start of the current word, or -1; its parts so far are in `pieces`.
        expects_command: Whether a command may start here.
        after_compound: Whether a compound command has just ended: only redirections may follow.
        header: `for`, `select`, `case` or `function` while its own words are read.
        in_pattern: Whether the patterns of a case are read.
        open_cases: How many `case` are not ended by `esac` yet.
        redirect_operator: An operator that waits for its target.
        descriptor: The number before `redirect_operator`.
        here_documents: Bodies to come: delimiter, whether it is quoted, whether leading tabs are stripped.
    """

    kind: int
    start: int
    closer: str = ""
    end: int = -1
    quoted: bool = False
    sink: list[Piece] | None = None
    depth: int = 0
    word_start: int = -1
    pieces: list[Piece] = field(default_factory=list)
    words: list[Token] = field(default_factory=list)
    assignments: int = 0
    redirects: list[Redirect] = field(default_factory=list)
    expects_command: bool = True
    after_compound: bool = False
    header: str = ""
    in_pattern: bool = False
    open_cases: int = 0
    redirect_operator: str = ""
    descriptor: str = ""
    here_documents: list[tuple[str, bool, bool]] = field(default_factory=list)


class _ShellParser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._lookaheads = 0
        self._steps_left = _MAX_STEPS
        self._looked_until = 0  # for the end of a here-document
        self._parsed = ParsedText()
        self._frames = [_Nesting(_LIST, 0)]
        # By kind of frame.
        self._steps: tuple[Callable[[], None], ...] = (
            self._step_words,
            self._step_words,
            self._step_words,
            self._step_quotes,
            self._step_parameter,
            self._step_arithmetic,
            self._step_here,
        )

    def run(self) -> ParsedText:
        text, frames, steps = self._text, self._frames, self._steps
        # Case: bash joins lines before it looks at what follows a `$`, in all contexts but single quotes.
        if "$\\\n" in text:
            self._parsed.add_doubt("a line is continued in the middle of an operator")
        while self._position < len(text):
            steps[frames[-1].kind]()
            self._steps_left -= 1
            if self._steps_left < 0:
                self._parsed.add_doubt("it has too many words to analyse")
                self._position = len(text)
            if len(frames) > MAX_DEPTH:
                self._parsed.add_doubt("it is nested too deeply")
                self._position = len(text)
        self._close_frames()
        return self._parsed

    def _close_frames(self) -> None:
        """Close whatever is open at the end of the text."""
        frames = self._frames
        while frames:
            frame = frames[-1]
            if frame.kind == _HERE:
                self._close_here_document()
                continue
            if frame.kind <= _TEST:
                self._end_word()
                self._end_command()
                if frame.here_documents:
                    self._parsed.add_doubt("a here-document has no body")
            if frames[-1] is frame:  # ending a word may have closed a test
                frames.pop()
                if frames:
                    self._parsed.add_doubt("something is opened and never closed")

    # ---- frames and parts of words

    def _push(self, frame: _Nesting, length: int) -> None:
        """Enter `frame`, whose opening is `length` characters long."""
        self._frames.append(frame)
        if frame.kind == _LIST:
            self._parsed.flow.append(FlowStep("open"))
        self._position += length

    def _sink(self) -> list[Piece] | None:
        """Return the list that takes the parts of the current word; begin a word if there is none."""
        frame = self._frames[-1]
        if frame.kind > _TEST:
            return frame.sink if frame.kind == _QUOTES else None
        if frame.word_start < 0:
            frame.word_start = self._position
        return frame.pieces

    def _add_piece(self, kind: PieceKind, text: str, *, quoted: bool) -> None:
        sink = self._sink()
        if sink is not None:
            sink.append(Piece(kind, text, quoted))

    def _close_piece(self, kind: PieceKind, text: str) -> None:
        """Leave the frame, which was a part of a word."""
        frame = self._frames.pop()
        if frame.sink is not None:
            frame.sink.append(Piece(kind, text, frame.quoted))

    # ---- quotes and expansions, which may begin in any kind of frame

    def _open_quotes(self) -> None:
        self._add_piece("literal", "", quoted=True)  # "" is a word, too
        self._push(_Nesting(_QUOTES, self._position, quoted=True, sink=self._sink()), 1)

    def _skip_single_quotes(self) -> None:
        end = self._text.find("'", self._position + 1)
        if end < 0:
            self._parsed.add_doubt("a quote is never closed")
            end = len(self._text)
        self._add_piece("literal", self._text[self._position + 1 : end], quoted=True)
        self._position = end + 1

    def _open_expansion(self) -> None:
        """Enter or step over what begins with `$` or a backtick."""
        text, position, frame = self._text, self._position, self._frames[-1]
        if text[position] == "`":
            self._open_backtick()
            return
        plain = frame.kind <= _TEST
        quoted = not plain and frame.quoted
        opening = text[position + 1 : position + 2]
        doubled = opening == "(" and text.startswith("(", position + 2)
        if doubled and self._closes_as_arithmetic(position + 3):
            self._push(_Nesting(_ARITHMETIC, position + 3, "))", quoted=quoted, sink=self._sink()), 3)
        elif opening == "(":
            self._push(_Nesting(_LIST, position, ")", quoted=quoted, sink=self._sink()), 2)
        elif opening == "{":
            self._push(_Nesting(_PARAMETER, position, quoted=quoted, sink=self._sink()), 2)
        elif opening == "[":
            self._parsed.add_doubt("arithmetic in its old form, $[ ]")
            self._push(_Nesting(_ARITHMETIC, position + 2, "]", quoted=quoted, sink=self._sink()), 2)
        elif opening == "'" and plain:
            self._skip_ansi_quotes()
        elif opening == '"' and plain:
            self._parsed.add_doubt("a text that may be translated")
            self._position += 1
        elif name := _NAME.match(text, position + 1):
            kind: PieceKind = "number" if name[0] in {"#", "?", "$", "!"} else "variable"
            self._add_piece(kind, name[0], quoted=quoted)
            self._position = name.end()
        else:
            self._add_piece("literal", "$", quoted=quoted)
            self._position += 1

    def _closes_as_arithmetic(self, position: int) -> bool:
        """Return whether the `((` before `position` is closed by `))`, as arithmetic is."""
        depth = 0
        for parenthesis in _PARENTHESIS.finditer(self._text, position):
            depth += 1 if parenthesis[0] == "(" else -1
            self._lookaheads += 1
            if depth < 0:
                return self._text.startswith("))", parenthesis.start())
            if self._lookaheads > _MAX_LOOKAHEADS:
                self._parsed.add_doubt("there are too many parentheses")
                break
        return False

    def _skip_ansi_quotes(self) -> None:
        body = _TO_QUOTE.match(self._text, self._position + 2)
        end = body.end() if body else self._position + 2
        decoded = decode_ansi(self._text[self._position + 2 : end])
        if decoded is None or end >= len(self._text):
            self._parsed.add_doubt("$' ' that is not closed or depends on the locale")
        self._add_piece("literal", decoded or "", quoted=True)
        self._position = end + 1

    def _open_backtick(self) -> None:
        # Case: this backtick closes an outer substitution while quotes opened in it are still open. The text
        # between backticks is read first, so the quotes end here.
        for depth, frame in enumerate(self._frames):
            if frame.closer == "`" and frame.end == self._position:
                self._parsed.add_doubt("quotes and backticks cross")
                del self._frames[depth + 1 :]
                return
        body = _TO_BACKTICK.match(self._text, self._position + 1)
        end = body.end() if body else self._position + 1
        if end >= len(self._text) or "\\" in self._text[self._position : end]:
            self._parsed.add_doubt("backticks that are not closed, or hold a backslash")
        frame = self._frames[-1]
        quoted = frame.kind > _TEST and frame.quoted
        self._push(_Nesting(_LIST, self._position, "`", end, quoted=quoted, sink=self._sink()), 1)

    # ---- one step in frames that are parts of a word

    def _step_quotes(self) -> None:
        text, position = self._text, self._position
        if plain := _PLAIN_IN_QUOTES.match(text, position):
            self._add_piece("literal", plain[0], quoted=True)
            self._position = plain.end()
        elif text[position] == '"':
            self._frames.pop()
            self._position += 1
        elif text[position] == "\\":
            following = text[position + 1 : position + 2]
            if following != "\n":
                unescaped = following if following in {"$", "`", '"', "\\"} else f"\\{following}"
                self._add_piece("literal", unescaped, quoted=True)
            self._position += 2
        else:
            self._open_expansion()

    def _step_here(self) -> None:
        frame, text, position = self._frames[-1], self._text, self._position
        if position >= frame.end:
            self._close_here_document()
        elif plain := _PLAIN_IN_HERE.match(text, position, frame.end):
            self._position = plain.end()
        elif text[position] == "\\":
            self._position += 2
        else:
            self._open_expansion()

    def _close_here_document(self) -> None:
        if self._position != self._frames.pop().end:
            self._parsed.add_doubt("a here-document ends inside of something")

    def _step_parameter(self) -> None:
        frame, text, position = self._frames[-1], self._text, self._position
        character = text[position]
        if plain := _PLAIN_IN_PARAMETER.match(text, position):
            self._position = plain.end()
        elif character == "}":
            source = text[frame.start + 1 : position + 1]
            self._parsed.parameters.append(source)
            self._close_piece("number" if _LENGTH.fullmatch(source) else "variable", source)
            self._position += 1
        elif character == "\\":
            self._position += 2
        elif character in "'\"" and frame.quoted:
            # Whether they quote anything depends on the operator.
            self._parsed.add_doubt("quotes inside ${ } inside quotes")
            self._position += 1
        elif character == "'":
            self._skip_single_quotes()
        elif character == '"':
            self._open_quotes()
        elif character in "<>":
            if text.startswith("(", position + 1):
                self._parsed.add_doubt("a process substitution inside ${ }")
                self._push(_Nesting(_LIST, position, ")"), 2)
            else:
                self._position += 1
        else:
            self._open_expansion()

    def _step_arithmetic(self) -> None:
        frame, text, position = self._frames[-1], self._text, self._position
        character = text[position]
        if plain := _PLAIN_IN_ARITHMETIC.match(text, position):
            self._position = plain.end()
        elif not frame.depth and text.startswith(frame.closer, position):
            self._parsed.arithmetic.append(text[frame.start : position])
            self._close_piece("number", f"(({text[frame.start : position]}))")
            self._position += len(frame.closer)
        elif character in "$`":
            self._open_expansion()
        else:
            frame.depth += {"(": 1, ")": -1}.get(character, 0)
            self._position += 1

    # ---- one step in frames that hold words

    def _step_words(self) -> None:
        frame, text, position = self._frames[-1], self._text, self._position
        if position == frame.end:
            self._close_list()
        elif text[position] == "#" and frame.word_start < 0:
            self._skip_comment()
        elif plain := _PLAIN.match(text, position):
            self._add_piece("literal", plain[0], quoted=False)
            self._position = plain.end()
        elif blanks := _BLANKS.match(text, position):
            self._end_word()
            self._position = blanks.end()
        elif text[position] == "\n":
            self._handle_newline()
        elif text[position] == "\\":
            self._handle_escape()
        elif text[position] == "'":
            self._skip_single_quotes()
        elif text[position] == '"':
            self._open_quotes()
        elif text[position] in "$`":
            self._open_expansion()
        elif text[position] in "<>" and text.startswith("(", position + 1):
            self._push(_Nesting(_LIST, position, ")", sink=self._sink()), 2)
        else:
            self._handle_operator()

    def _skip_comment(self) -> None:
        frame = self._frames[-1]
        if frame.kind == _TEST:
            self._parsed.add_doubt("a # inside [[ ]]")
        end = self._text.find("\n", self._position)
        self._position = len(self._text) if end < 0 else end
        if frame.end >= 0:
            self._position = min(self._position, frame.end)

    def _handle_escape(self) -> None:
        following = self._text[self._position + 1 : self._position + 2]
        if following == "\n":
            # Case: an operator is cut in two by the continuation; bash joins it before reading it. At the
            # very beginning there is none to be cut.
            previous = self._text[self._position - 1 : self._position]
            following = self._text[self._position + 2 : self._position + 3]
            if previous and not set("|&;<>()$").isdisjoint(previous + following):
                self._parsed.add_doubt("a line is continued in the middle of an operator")
        else:
            self._add_piece("literal", following or "\\", quoted=True)
        self._position += 2

    def _handle_newline(self) -> None:
        self._end_word()
        self._position += 1
        frame = self._frames[-1]
        if frame.kind != _LIST:
            return
        if frame.header != "case" and not frame.in_pattern:
            self._end_command()
        if len(frame.here_documents) > 1 or any(outer.here_documents for outer in self._frames[:-1]):
            self._parsed.add_doubt("several here-documents, one within the other")
        for delimiter, quoted, tabs in frame.here_documents:
            self._open_here_document(delimiter, quoted=quoted, tabs=tabs)
        frame.here_documents = []

    def _open_here_document(self, delimiter: str, *, quoted: bool, tabs: bool) -> None:
        """Step over the body of a here-document, or enter it if bash expands it."""
        line = end = self._position
        while True:
            end = self._text.find("\n", line)
            end = len(self._text) if end < 0 else end
            content = self._text[line:end]
            self._steps_left -= line < self._looked_until
            self._looked_until = max(self._looked_until, end)
            if (content.lstrip("\t") if tabs else content) == delimiter:
                break
            if end == len(self._text) or self._steps_left < 0:
                self._parsed.add_doubt("a here-document is never ended")
                break
            line = end + 1
        if quoted:
            self._position = end
            return
        if "\\\n" in self._text[self._position : end]:
            self._parsed.add_doubt("a line is continued inside a here-document")
        self._push(_Nesting(_HERE, self._position, end=end, quoted=True), 0)

    # ---- words

    def _end_word(self) -> None:
        frame = self._frames[-1]
        if frame.word_start < 0:
            return
        # A part that was never closed leaves no pieces.
        pieces = tuple(frame.pieces) or (Piece("unknown", "", quoted=False),)
        token = Token(frame.word_start, self._position, pieces)
        frame.word_start, frame.pieces = -1, []
        if frame.redirect_operator:
            self._finish_redirect(frame, token)
        elif frame.kind == _ARRAY:
            if token.pieces[0].text.startswith("["):
                self._parsed.add_doubt("an array whose elements have an index")
            self._parsed.data.append(token)
        elif frame.kind == _TEST:
            if token.bare == "]]":
                self._frames.pop()
                self._parsed.tests.append((frame.start, tuple(frame.words)))
            else:
                frame.words.append(token)
        elif frame.in_pattern and token.bare != "esac":
            self._parsed.data.append(token)
        elif frame.header:
            self._finish_header_word(frame, token)
        elif frame.expects_command:
            self._finish_first_word(frame, token)
        else:
            if frame.after_compound:
                self._parsed.add_doubt("words follow the end of a compound command")
            frame.words.append(token)

    def _finish_redirect(self, frame: _Nesting, token: Token) -> None:
        operator, frame.redirect_operator = frame.redirect_operator, ""
        if operator not in {"<<", "<<-"}:
            frame.redirects.append(Redirect(operator, token, frame.descriptor))
            return
        delimiter = "".join(piece.text for piece in token.pieces)
        quoted = any(piece.quoted for piece in token.pieces)
        if any(piece.kind != "literal" for piece in token.pieces) or not delimiter.strip("\t"):
            self._parsed.add_doubt("a here-document whose delimiter is empty or expanded")
        frame.here_documents.append((delimiter, quoted, operator == "<<-"))

    def _finish_first_word(self, frame: _Nesting, token: Token) -> None:
        """Take a word where a command may start: an assignment, a reserved word or a program."""
        bare, first = token.bare, token.pieces[0]
        assigned = _ASSIGNMENT.match(first.text) if first.kind == "literal" and not first.quoted else None
        if assigned or self._has_unclear_index(token):
            if assigned and assigned[1] is not None:
                self._parsed.arithmetic.append(assigned[1])
            frame.words.append(token)
            frame.assignments += 1
        elif frame.assignments or frame.redirects:  # no word is reserved after these
            frame.words.append(token)
            frame.expects_command = False
        elif bare in _CLOSERS:
            frame.expects_command, frame.after_compound = False, True
            self._parsed.is_linear &= bare == "}"
            if bare == "esac":
                frame.in_pattern = False
                frame.open_cases -= 1
        elif bare in _HEADERS:
            frame.header, frame.expects_command = bare, False
            self._parsed.is_linear = False
        elif bare == "[[":
            frame.expects_command, frame.after_compound = False, True
            self._frames.append(_Nesting(_TEST, token.start))
        elif bare in _OPENERS:
            self._parsed.is_linear &= bare == "{"
        else:
            frame.words.append(token)
            frame.expects_command = False

    def _has_unclear_index(self, token: Token) -> bool:
        """Return whether a word may assign to an array element whose index is quoted or expanded."""
        first = token.pieces[0]
        if len(token.pieces) > 1 and not first.quoted and _INDEX.fullmatch(first.text):
            self._parsed.add_doubt("an array index that is not plain")
            return "=" in self._text[token.start : token.end]
        return False

    def _finish_header_word(self, frame: _Nesting, token: Token) -> None:
        if frame.header == "function":
            self._parsed.functions.append(self._text[token.start : token.end])
            frame.header, frame.expects_command = "", True
            blanks = _BLANKS.match(self._text, self._position)
            if empty := _NO_ARGUMENTS.match(self._text, blanks.end() if blanks else self._position):
                self._position = empty.end()
        elif frame.header == "case" and frame.words and token.bare == "in":
            self._parsed.data.extend(frame.words)
            frame.words, frame.header, frame.in_pattern = [], "", True
            frame.expects_command = True
            frame.open_cases += 1
        else:
            frame.words.append(token)

    def _end_command(self, operator: str = ";") -> None:
        frame, ended = self._frames[-1], None
        if frame.redirect_operator:
            self._parsed.add_doubt("a redirection without a target")
        if frame.header in {"for", "select"}:
            self._parsed.loops.append(tuple(frame.words))
        elif frame.header:
            self._parsed.add_doubt(f"{frame.header} is not followed by what belongs there")
        elif frame.words or frame.redirects:
            ended = SimpleCommand(tuple(frame.words), frame.assignments, tuple(frame.redirects))
            self._parsed.commands.append(ended)
        if ended is not None or frame.after_compound:
            self._parsed.flow.append(FlowStep("end", ended, operator))
        frame.words = []
        frame.redirects = []
        frame.assignments = 0
        frame.expects_command = True
        frame.after_compound = False
        frame.header = ""
        frame.redirect_operator = ""

    # ---- operators

    def _handle_operator(self) -> None:
        frame = self._frames[-1]
        match = _OPERATOR.match(self._text, self._position)
        operator = match[0] if match else self._text[self._position]
        if operator[0] in "<>":
            self._take_descriptor(frame)
        if operator == "(" and self._open_array(frame):
            return
        self._end_word()
        if self._frames[-1] is not frame or not self._text.startswith(operator, self._position):
            # Ending the word changed the frame (it was the `]]` of a test) or moved on (it was the name of a
            # function, with its parentheses). Look at what is here now.
            return
        if operator == "(" and frame.kind == _LIST:
            self._open_parenthesis(frame)
        elif operator == ")" and frame.kind != _TEST:
            self._close_parenthesis(frame)
        else:
            self._handle_plain_operator(frame, operator)
            self._position += len(operator)

    def _handle_plain_operator(self, frame: _Nesting, operator: str) -> None:
        if frame.kind == _TEST:
            if operator not in _TEST_OPERATORS:
                self._parsed.add_doubt(f"{operator} inside [[ ]]")
            piece = Piece("literal", operator, quoted=False)
            frame.words.append(Token(self._position, self._position + len(operator), (piece,)))
        elif frame.kind == _ARRAY or (frame.in_pattern and operator != "|"):
            self._parsed.add_doubt(f"{operator} where only words belong")
        elif frame.in_pattern:
            return
        elif operator in _SEPARATORS:
            self._end_command(operator)
            frame.in_pattern = operator in _NEXT_CASE and frame.open_cases > 0
        else:
            if frame.redirect_operator or frame.header:
                self._parsed.add_doubt(f"{operator} where no redirection belongs")
            frame.redirect_operator = operator

    def _take_descriptor(self, frame: _Nesting) -> None:
        """Take a number right before a redirection as its descriptor; it is not a word."""
        if frame.kind != _LIST or frame.redirect_operator:
            return
        frame.descriptor = ""
        if frame.word_start < 0:
            return
        word = self._text[frame.word_start : self._position]
        if word.isascii() and word.isdecimal():
            frame.descriptor = word
            frame.word_start, frame.pieces = -1, []
        elif _VARIABLE_DESCRIPTOR.fullmatch(word):
            self._parsed.add_doubt("a redirection whose descriptor goes into a variable")

    def _open_array(self, frame: _Nesting) -> bool:
        """Enter `name=(` where an assignment may stand; return whether there is one."""
        if frame.kind != _LIST or frame.word_start < 0:
            return False
        if frame.redirect_operator or frame.header or frame.in_pattern:
            return False
        program = frame.words[frame.assignments :][:1]
        declares = bool(program) and program[0].bare in _DECLARERS
        assignment = _ASSIGNMENT.fullmatch(self._text[frame.word_start : self._position])
        if not assignment or assignment[1] is not None or not (frame.expects_command or declares):
            return False
        frame.pieces.append(Piece("unknown", "(", quoted=True))
        self._push(_Nesting(_ARRAY, self._position, ")"), 1)
        return True

    def _open_parenthesis(self, frame: _Nesting) -> None:
        starts = (frame.expects_command and not frame.words and not frame.redirects) or (
            frame.header == "for" and not frame.words
        )
        if frame.in_pattern:
            self._position += 1
        elif (
            starts
            and self._text.startswith("((", self._position)
            and self._closes_as_arithmetic(self._position + 2)
        ):
            frame.expects_command, frame.after_compound, frame.header = False, True, ""
            self._push(_Nesting(_ARITHMETIC, self._position + 2, "))"), 2)
        elif starts and not frame.header:
            frame.expects_command, frame.after_compound = False, True
            self._push(_Nesting(_LIST, self._position, ")"), 1)
        elif (
            len(frame.words) == 1
            and not (frame.assignments or frame.redirects or frame.header)
            and (empty := _NO_ARGUMENTS.match(self._text, self._position))
        ):
            name = frame.words.pop()
            self._parsed.functions.append(self._text[name.start : name.end])
            frame.expects_command = True
            self._position = empty.end()
        else:
            self._parsed.add_doubt("a parenthesis where none belongs")
            self._push(_Nesting(_LIST, self._position, ")"), 1)

    def _close_parenthesis(self, frame: _Nesting) -> None:
        if frame.kind == _ARRAY:
            self._frames.pop()
            self._position += 1
        elif frame.in_pattern:
            frame.in_pattern, frame.expects_command = False, True
            self._position += 1
        elif frame.closer == ")":
            self._close_list()
        else:
            self._parsed.add_doubt("a parenthesis is closed that was never opened")
            self._end_command()
            self._position += 1

    def _close_list(self) -> None:
        self._end_word()
        frame = self._frames[-1]
        if frame.kind != _LIST:
            self._parsed.add_doubt("quotes and backticks cross")
            self._frames.pop()
            return
        self._end_command()
        if frame.here_documents or frame.open_cases or (frame.end >= 0 and frame.end != self._position):
            self._parsed.add_doubt("a substitution ends inside of something")
        self._parsed.flow.append(FlowStep("close"))
        self._position += 1
        source = self._text[frame.start : self._position]
        self._close_piece("channel" if source.startswith(("<(", ">(")) else "unknown", source)
