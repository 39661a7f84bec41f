"""Values of a parsed shell text, and what its words and variables expand to.

Words: braces are expanded and quotes removed; of the rest, a `Word` says how much is known beforehand.

Variables: bash's arithmetic evaluates the values of variables again, with the subscripts and commands in
them. So only those that certainly hold numbers may take part in arithmetic, in the numeric comparisons of
`[[ ]]`, and in the subscripts and offsets inside `${ }`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from aisotools.policy.shell.substitutions import (
    is_count,
    is_plain_name,
    is_program_path,
    printed_beginning,
    without_counts,
)

# ---- values

PieceKind = Literal["literal", "variable", "number", "unknown", "channel"]
"""Fixed text, a variable, an expansion to digits, any other expansion, or a process substitution."""


class Piece(NamedTuple):
    """A part of a word: fixed text, or the source of an expansion without its `$`."""

    kind: PieceKind
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
    """A redirection other than a here-document; `descriptor` is '' where the operator implies it."""

    operator: str
    target: Token
    descriptor: str


class SimpleCommand(NamedTuple):
    """Words and redirections between two separators; the first `assignments` words are assignments."""

    words: tuple[Token, ...]
    assignments: int
    redirects: tuple[Redirect, ...]


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
    values = files.get(first.text.strip("{}"))
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
    return [body[left + 1 : right] for left, right in pairwise([*commas, len(body)])]


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
        is_path = piece.kind == "variable" and piece.text.strip("{}") in ABSOLUTE_PATH_VARIABLES
        is_number = piece.kind == "number" or piece.text.strip("{}") in numbers or is_plain_name(piece.text)
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
        is_number = piece.kind == "number" or piece.text.strip("{}") in numbers or is_count(piece.text)
        if is_pattern or not (is_literal or is_number):
            return None
        parts.append(piece.text if is_literal else "1")
    return _decode_utf8("".join(parts))


def _decode_utf8(text: str) -> str:
    """Decode a text that has one character per byte."""
    return text if text.isascii() else text.encode("latin-1").decode("utf-8", "replace")


# ---- variables

_HARMLESS_FOR_PROGRAMS = re.compile(
    r"LC_\w+|LANG|LANGUAGE|TZ|COLUMNS|LINES|TERM|NO_COLOR|CLICOLOR|CLICOLOR_FORCE|FORCE_COLOR|LS_COLORS"
    r"|GREP_COLORS?|[a-z][a-z0-9]*"
)
_HAS_MEANING = re.compile(
    r"_|PATH|IFS|ENV|HOME|PWD|OLDPWD|TMPDIR|TEMP|TMP|WORKSPACE|SHELL|SHELLOPTS|BASH\w*|PS\d|PROMPT\w*|CDPATH"
    r"|GLOBIGNORE|GLOBSORT|EXECIGNORE|FIGNORE|FUNCNEST|HIST\w*|INPUTRC|MAIL\w*|OPT(?:ARG|ERR|IND)|POSIXLY_CORRECT"
    r"|TIMEFORMAT|TMOUT|FCEDIT|COPROC|DIRSTACK|READLINE\w*|COMP_?\w*|MAPFILE|REPLY|RANDOM|SECONDS|LINENO"
    r"|EPOCH\w+|SRANDOM|UID|EUID|GROUPS|USER|LOGNAME|PAGER|EDITOR|VISUAL|BROWSER|MANPAGER|LESS\w*|MORE|GIT_\w+|SSH_\w+|GPG_\w+"
    r"|LD_\w+|DYLD_\w+|PYTHON\w*|PERL\w*|RUBY\w*|NODE_\w+|NPM_\w+|npm_\w+|JAVA\w*|_JAVA\w*|LUA\w*|PHP\w*|R_\w+"
    r"|GCONV_PATH|LOCPATH|NLSPATH|MALLOC_\w+|GLIBC_\w+|HOSTALIASES|RES_\w+|TERMINFO\w*|TERMCAP|XDG_\w+|GZIP|BZIP2?"
    r"|XZ_\w+|ZSTD_\w+|TAR_\w+|TAPE|UNZIP\w*|ZIP\w*|RIPGREP_\w+|RSYNC_\w+|CURL_\w+|WGET\w*|DOCKER_\w+|KUBE\w+"
    r"|MAKE\w*|CARGO_\w+|RUST\w*|GO[A-Z]*|AISOTOOLS_\w+|\w*(?:PATH|OPTS?|OPTIONS|FLAGS|PAGER|EDITOR|COMMAND|CMD"
    r"|SHELL|CONFIG|HOOKS?|PRELOAD|PROXY|proxy)"
)
_INTEGER = re.compile(r"-?[0-9]+")
_PLAIN_BEGINNING = re.compile(r"[\w.]", re.ASCII)
_PLAIN_WORD = re.compile(r"[\w./+-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMERIC_VARIABLES = name_set("BASHPID EPOCHSECONDS EUID LINENO PPID RANDOM SECONDS SRANDOM UID")
_ARITHMETIC = re.compile(
    r"(?:\s|0[xX][0-9a-fA-F]+|[0-9]+|\$?[A-Za-z_]\w*|\$[#?$]|\$\{#\w+\}|[-+*/%<>=!&|^~?:,;()])*+",
)
_ARITHMETIC_NAME = re.compile(r"(?<![\w#{])[A-Za-z_]\w*")
_ARITHMETIC_SETS = re.compile(
    # A name is looked for at the beginning of a word alone, or a long word takes long.
    r"(?<!\w)[^\WA-Za-z_]*+([A-Za-z_]\w*+)\s*+(?:[-+*/%&|^]|<<|>>)?=(?!=)|(?:\+\+|--)\s*+([A-Za-z_]\w*+)"
    r"|(?<!\w)[^\WA-Za-z_]*+([A-Za-z_]\w*+)\s*+(?:\+\+|--)"
)
_PARAMETER = re.compile(r"\{#?(?:([A-Za-z_]\w*)|[0-9]+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)\}", re.DOTALL)
_OPERATION = re.compile(r"(?:(:?=)|:?[-+?]|##?|%%?|/[/#%]?|\^\^?|,,?)(.*)|@[QULu]|", re.DOTALL)
_OFFSET = re.compile(r":\s*(\$?\w+|-[0-9]+)(?:\s*:\s*(\$?\w+|-[0-9]+))?\s*")
_SUBSTITUTES_COMMAND = re.compile(r"\$\(|`|[<>]\(")
_VARIABLE_SETTERS = name_set(
    "mapfile readarray getopts declare typeset local export readonly let unset wait eval source . builtin "
    "command coproc trap enable time"
)
_NUMERIC_COMPARISONS = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))


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


@dataclass(frozen=True, slots=True)
class VariableUsage:
    """What is known of the variables of a text.

    Attributes:
        numbers: Variables that hold numbers whenever they are used.
        files: Variables that hold names of files written here, or found by patterns written here: the words
            of the loop that sets each, or the one that it is set to.
        assigned: All that are set, be it for one command only.
        doubts: Why setting or using some of them may not be harmless.
    """

    numbers: frozenset[str]
    files: Mapping[str, LoopWords]
    assigned: frozenset[str]
    doubts: tuple[str, ...]


def is_harmless_in_shell(name: str) -> bool:
    """Return whether a variable means nothing to the shell, nor to programs if it is already exported."""
    return not _HAS_MEANING.fullmatch(name)


def is_harmless_for_programs(name: str) -> bool:
    """Return whether a variable of this name may be given to any program."""
    return bool(_HARMLESS_FOR_PROGRAMS.fullmatch(name)) and is_harmless_in_shell(name)


def split_assignment(token: Token) -> tuple[str, Token]:
    """Return the name and the value of a word that is an assignment."""
    first = token.pieces[0]
    target, _, rest = first.text.partition("=")
    name = target.rstrip("+").partition("[")[0]
    pieces = token.pieces[1:]
    if rest or not pieces:
        pieces = (first._replace(text=rest), *pieces)
    return name, Token(token.end - len(rest), token.end, pieces)


def survey_variables(parsed: ParsedText, *, is_only_text: bool = True) -> VariableUsage:
    """Determine how a text sets and uses variables.

    Args:
        parsed: The text.
        is_only_text: Whether no other text sets variables before, as one that runs this one may do.
    """
    assigned: dict[str, bool] = {}
    doubts: list[str] = []
    for name, is_number in _assignments(parsed):
        assigned[name] = assigned.get(name, True) and is_number
        if name != "_" and not is_harmless_in_shell(name):
            doubts.append(f"it sets {name}")
    for name, is_number in _temporary_assignments(parsed):
        assigned[name] = assigned.get(name, True) and is_number
    numbers: frozenset[str] = frozenset()
    files: dict[str, LoopWords] = {}
    if is_only_text and all(map(_sets_plainly, parsed.commands)):
        numbers = frozenset(name for name, is_number in assigned.items() if is_number and name != "_")
        files = dict(_file_variables(parsed))
    doubts += [
        f"arithmetic can run commands: {source.strip()}"
        for source in parsed.arithmetic
        if not _is_plain_arithmetic(source, numbers)
    ]
    doubts += [
        f"${source} can run commands"
        for source in parsed.parameters
        if not _is_plain_parameter(source, numbers)
    ]
    if not all(_is_plain_test(words, numbers) for _, words in parsed.tests):
        doubts.append("a test that evaluates its words can run commands")
    return VariableUsage(numbers, files, frozenset(assigned), tuple(dict.fromkeys(doubts)))


def _assignments(parsed: ParsedText) -> Iterator[tuple[str, bool]]:
    """Yield every name that is set for the text, and whether to a number."""
    for command in parsed.commands:
        if command.assignments == len(command.words):
            yield from map(_assigned_value, command.words)
        elif _program(command) == "read":
            yield from ((token.bare, False) for token in command.words[command.assignments + 1 :])
    for words in parsed.loops:
        if words:
            values = words[2:]
            yield words[0].bare, bool(values) and all(map(_are_integers, values))
    for source in parsed.arithmetic:
        for assignment in _ARITHMETIC_SETS.finditer(source):
            yield next(filter(None, assignment.groups())), True
    for source in parsed.parameters:
        parameter = _PARAMETER.fullmatch(source)
        if parameter and parameter[1] and parameter[3].startswith(("=", ":=")):
            yield parameter[1], False


def _temporary_assignments(parsed: ParsedText) -> Iterator[tuple[str, bool]]:
    """Yield the same for what is set for one command only."""
    for command in parsed.commands:
        if command.assignments < len(command.words):
            yield from map(_assigned_value, command.words[: command.assignments])


def _assigned_value(token: Token) -> tuple[str, bool]:
    name, value = split_assignment(token)
    return name, _is_integer(value) and "[" not in token.pieces[0].text.partition("=")[0]


def _file_variables(parsed: ParsedText) -> Iterator[tuple[str, LoopWords]]:
    """Yield the variables (but `_`) that are set once, by a loop over plain words or to one, with these."""
    setters = [name for name, _ in (*_assignments(parsed), *_temporary_assignments(parsed))]
    for words in parsed.loops:
        values = [word for token in words[2:] for word in expand(token)]
        are_files = all(
            word.is_located and ":" not in word.display and not (word.text or "").startswith("/dev")
            for word in values
        )
        if values and are_files and setters.count(words[0].bare) == 1 and words[0].bare != "_":
            displays = tuple(word.display for word in values)
            are_single = all(_PLAIN_WORD.fullmatch(word.text or "") for word in values)
            beginning = _common_beginning([word.prefix for word in values])
            yield words[0].bare, LoopWords(displays, beginning, are_single)
    for command in parsed.commands:
        if command.assignments < len(command.words):
            continue
        for token in command.words:
            name, value = split_assignment(token)
            text = expand_value(value).text or ""
            is_set_to = token.pieces[0].text.partition("=")[0] == name  # no part of it, and nothing is added
            is_plain = _PLAIN_WORD.fullmatch(text) is not None and not text.startswith("/dev")
            if is_set_to and is_plain and setters.count(name) == 1 and name != "_":
                yield name, LoopWords((text,), _common_beginning([text]), are_single=True)


def _common_beginning(texts: Sequence[str]) -> str:
    if all(map(_PLAIN_BEGINNING.match, texts)):
        return "0"
    return "/" if all(text.startswith("/") for text in texts) else ""


def _sets_plainly(command: SimpleCommand) -> bool:
    """Return whether it is plain which variables a command sets, if any."""
    words = command.words[command.assignments :]
    if not words:
        return True
    name = _program(command)
    if name == "command" and len(words) > 1 and words[1].bare in {"-v", "-V"}:
        return True  # it only looks for programs
    if "{" in name or any(piece.kind != "literal" for piece in words[0].pieces):
        return False
    if name == "read":
        return all(token.bare == "-r" or _NAME.fullmatch(token.bare) for token in words[1:])
    if name == "printf":
        return not any("".join(piece.text for piece in token.pieces).startswith("-") for token in words[1:2])
    return name not in _VARIABLE_SETTERS


def _program(command: SimpleCommand) -> str:
    """Return the first word that is no assignment, as far as it is fixed."""
    words = command.words[command.assignments :]
    return "".join(piece.text for piece in words[0].pieces) if words else ""


def _is_integer(value: Token) -> bool:
    kinds = {piece.kind for piece in value.pieces}
    if kinds <= {"literal"}:
        return bool(_INTEGER.fullmatch("".join(piece.text for piece in value.pieces)))
    if len(value.pieces) == 1 and kinds == {"unknown"}:
        return is_count(value.pieces[0].text)
    return len(value.pieces) == 1 and kinds == {"number"}


def _are_integers(word: Token) -> bool:
    return _is_integer(word) or bool(re.fullmatch(r"\{[0-9]+\.\.[0-9]+\}", word.bare))


def _is_plain_arithmetic(source: str, numbers: frozenset[str]) -> bool:
    source = without_counts(source)
    if not _ARITHMETIC.fullmatch(source):
        return False
    # 0x1f is a number, not a name.
    names = _ARITHMETIC_NAME.findall(re.sub(r"\b0[xX][0-9a-fA-F]+", "0", source))
    return all(
        name in _NUMERIC_VARIABLES or (name in numbers and is_harmless_in_shell(name)) for name in names
    )


def _is_plain_parameter(source: str, numbers: frozenset[str]) -> bool:
    parameter = _PARAMETER.fullmatch(source)
    if not parameter:
        return False
    _, index, rest = parameter.groups()
    if index is not None and index not in {"@", "*"} and not _is_plain_index(index, numbers):
        return False
    if offset := _OFFSET.fullmatch(rest):
        return all(_is_plain_index(part, numbers) for part in offset.groups() if part)
    operation = _OPERATION.fullmatch(rest)
    return operation is not None and not _SUBSTITUTES_COMMAND.search(operation[2] or "")


def _is_plain_index(index: str, numbers: frozenset[str]) -> bool:
    return bool(_INTEGER.fullmatch(index)) or index.removeprefix("$") in numbers


def _is_plain_test(words: tuple[Token, ...], numbers: frozenset[str]) -> bool:
    """Return whether `[[ ]]` takes no word for an expression that it would evaluate."""
    for position, word in enumerate(words):
        if word.bare in {"-v", "-R"}:
            operand = words[position + 1] if position + 1 < len(words) else None
            if operand is None or not re.fullmatch(r"[A-Za-z_]\w*", operand.bare):
                return False
        if word.bare in _NUMERIC_COMPARISONS:
            operands = (*words[max(position - 1, 0) : position], *words[position + 1 : position + 2])
            if not all(_is_numeric(operand, numbers) for operand in operands):
                return False
    return True


def _is_numeric(word: Token, numbers: frozenset[str]) -> bool:
    pieces = [piece for piece in word.pieces if piece.text or piece.kind != "literal"]
    if len(pieces) == 1 and pieces[0].kind == "variable":
        return pieces[0].text.strip("{}") in numbers
    return _is_integer(word._replace(pieces=tuple(pieces))) if pieces else False
