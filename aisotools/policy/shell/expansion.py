"""What a shell text holds, as values: words, redirections, commands, and doubts about reading them.

What words become: braces expanded, quotes removed, and how much is known of the rest beforehand.

Variables in a shell text: which may be set, which hold numbers, and expressions that can run commands.

Arithmetic evaluates the values of variables again, subscripts and the command substitutions in them included,
so only variables that are known to hold numbers may take part. The same goes for what `[[ ]]` compares as
numbers and for the subscripts and offsets inside `${ }`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
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
class ParsedText:
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


_EVERYWHERE = (
    r"LC_\w+|LANG|LANGUAGE|TZ|COLUMNS|LINES|TERM|NO_COLOR|CLICOLOR|CLICOLOR_FORCE|FORCE_COLOR|LS_COLORS"
    r"|GREP_COLORS?|[a-z][a-z0-9]*"
)
_HARMLESS_FOR_PROGRAMS = re.compile(_EVERYWHERE)
_MEANS_SOMETHING = re.compile(
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
_NUMBER = re.compile(r"-?[0-9]+")
_SPECIAL_NUMBERS = names("BASHPID EPOCHSECONDS EUID LINENO PPID RANDOM SECONDS SRANDOM UID")
_ARITHMETIC = re.compile(
    r"(?:\s|0[xX][0-9a-fA-F]+|[0-9]+|\$?[A-Za-z_]\w*|\$[#?$]|\$\{#\w+\}|[-+*/%<>=!&|^~?:,;()])*+",
)
_ARITHMETIC_NAME = re.compile(r"(?<![\w#{])[A-Za-z_]\w*")
_ARITHMETIC_SETS = re.compile(
    r"([A-Za-z_]\w*)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)|(?:\+\+|--)\s*([A-Za-z_]\w*)|([A-Za-z_]\w*)\s*(?:\+\+|--)"
)
_PARAMETER = re.compile(r"\{#?(?:([A-Za-z_]\w*)|[0-9]+|[@*#?$!-])(?:\[([^\]]*)\])?(.*)\}", re.DOTALL)
_OPERATION = re.compile(r"(?:(:?=)|:?[-+?]|##?|%%?|/[/#%]?|\^\^?|,,?)(.*)|@[QULu]|", re.DOTALL)
_OFFSET = re.compile(r":\s*(\$?\w+|-[0-9]+)(?:\s*:\s*(\$?\w+|-[0-9]+))?\s*")
_RUNS = re.compile(r"\$\(|`|[<>]\(")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SETTERS = names(
    "mapfile readarray getopts declare typeset local export readonly let unset wait eval source . builtin "
    "command coproc trap enable time"
)
_TEST_NUMBERS = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))


@dataclass(frozen=True, slots=True)
class VariableSurvey:
    """What is known of the variables of a text.

    Attributes:
        numbers: Variables that hold numbers whenever they are used.
        files: Variables that hold names of files written here, or found by patterns written here.
        sets: All that are set, be it for one command only.
        doubts: Why setting or using some of them is not certain to be harmless.
    """

    numbers: frozenset[str]
    files: frozenset[str]
    sets: frozenset[str]
    doubts: tuple[str, ...]


def harmless_for_shell(name: str) -> bool:
    """Whether such a variable means nothing to the shell, nor to programs if it is exported already."""
    return not _MEANS_SOMETHING.fullmatch(name)


def harmless_for_programs(name: str) -> bool:
    """Whether a variable of this name may be given to any program."""
    return bool(_HARMLESS_FOR_PROGRAMS.fullmatch(name)) and harmless_for_shell(name)


def assignment_of(token: Token) -> tuple[str, Token]:
    """The name and the value of a word that is an assignment."""
    first = token.pieces[0]
    target, _, rest = first.text.partition("=")
    name = target.rstrip("+").partition("[")[0]
    value = (
        (first._replace(text=rest), *token.pieces[1:]) if rest or len(token.pieces) == 1 else token.pieces[1:]
    )
    return name, Token(token.end - len(rest), token.end, value)


def survey(reading: ParsedText, *, alone: bool = True) -> VariableSurvey:
    """Look at all variables of a text.

    Args:
        reading: The text.
        alone: Whether its variables are set by nobody else before, as those of a text within a text may be.
    """
    sets: dict[str, bool] = {}
    doubts: list[str] = []
    for name, is_number in _assigned(reading):
        sets[name] = sets.get(name, True) and is_number
        if not harmless_for_shell(name):
            doubts.append(f"it sets {name}")
    for name, is_number in _lent(reading):
        sets[name] = sets.get(name, True) and is_number
    clear = alone and all(map(_sets_plainly, reading.commands))
    numbers = frozenset(name for name, known in sets.items() if known) if clear else frozenset()
    doubts += [
        f"arithmetic can run commands: {source.strip()}"
        for source in reading.arithmetic
        if not _plain_arithmetic(source, numbers)
    ]
    doubts += [
        f"${source} can run commands"
        for source in reading.parameters
        if not _plain_parameter(source, numbers)
    ]
    if not all(_plain_test(words, numbers) for _, words in reading.tests):
        doubts.append("a test that evaluates its words can run commands")
    files = frozenset(_files(reading)) if clear else frozenset[str]()
    return VariableSurvey(numbers, files, frozenset(sets), tuple(dict.fromkeys(doubts)))


def _assigned(reading: ParsedText) -> Iterator[tuple[str, bool]]:
    """Every name that is set, and whether to a number."""
    for command in reading.commands:
        if command.assignments == len(command.words):
            yield from map(_setting, command.words)
        elif _program(command) == "read":
            yield from ((token.bare, False) for token in command.words[command.assignments + 1 :])
    for words in reading.loops:
        if words:
            listed = words[2:]
            yield words[0].bare, bool(listed) and all(map(_is_numbers, listed))
    for source in reading.arithmetic:
        for found in _ARITHMETIC_SETS.finditer(source):
            yield next(filter(None, found.groups())), True
    for source in reading.parameters:
        assigning = _PARAMETER.fullmatch(source)
        if assigning and assigning[1] and assigning[3].startswith(("=", ":=")):
            yield assigning[1], False


def _files(reading: ParsedText) -> Iterator[str]:
    """Variables of loops over plain words, and set by nothing else."""
    setters = [name for name, _ in (*_assigned(reading), *_lent(reading))]
    for words in reading.loops:
        values = [word for token in words[2:] for word in expanded(token)]
        files = all(word.placed and not (word.text or "").startswith("/dev") for word in values)
        if values and files and setters.count(words[0].bare) == 1:
            yield words[0].bare


def _sets_plainly(command: Command) -> bool:
    """Whether it is plain which variables the command sets, if any."""
    words = command.words[command.assignments :]
    if not words:
        return True
    name = "".join(piece.text for piece in words[0].pieces)
    if "{" in name or any(piece.kind != "literal" for piece in words[0].pieces):
        return False
    if name == "read":
        return all(token.bare == "-r" or _NAME.fullmatch(token.bare) for token in words[1:])
    if name == "printf":
        return not any("".join(p.text for p in token.pieces).startswith("-") for token in words[1:2])
    return name not in _SETTERS


def _lent(reading: ParsedText) -> Iterator[tuple[str, bool]]:
    """The same for what is set for one command only."""
    for command in reading.commands:
        if command.assignments < len(command.words):
            yield from map(_setting, command.words[: command.assignments])


def _setting(token: Token) -> tuple[str, bool]:
    name, value = assignment_of(token)
    return name, _is_number(value) and "[" not in token.pieces[0].text.partition("=")[0]


def _program(command: Command) -> str:
    """The first word that is no assignment, as far as it is fixed."""
    words = command.words[command.assignments :]
    return "".join(piece.text for piece in words[0].pieces) if words else ""


def _is_number(value: Token) -> bool:
    kinds = {piece.kind for piece in value.pieces}
    if kinds <= {"literal"}:
        return bool(_NUMBER.fullmatch("".join(piece.text for piece in value.pieces)))
    return len(value.pieces) == 1 and kinds == {"number"}


def _is_numbers(word: Token) -> bool:
    return _is_number(word) or bool(re.fullmatch(r"\{[0-9]+\.\.[0-9]+\}", word.bare))


def _plain_arithmetic(source: str, numbers: frozenset[str]) -> bool:
    if not _ARITHMETIC.fullmatch(source):
        return False
    # 0x1f is a number, not a name
    names = _ARITHMETIC_NAME.findall(re.sub(r"\b0[xX][0-9a-fA-F]+", "0", source))
    return all(name in _SPECIAL_NUMBERS or (name in numbers and harmless_for_shell(name)) for name in names)


def _plain_parameter(source: str, numbers: frozenset[str]) -> bool:
    found = _PARAMETER.fullmatch(source)
    if not found:
        return False
    _, index, rest = found.groups()
    if index is not None and index not in {"@", "*"} and not _plain_index(index, numbers):
        return False
    if offset := _OFFSET.fullmatch(rest):
        return all(_plain_index(part, numbers) for part in offset.groups() if part)
    operation = _OPERATION.fullmatch(rest)
    return operation is not None and not _RUNS.search(operation[2] or "")


def _plain_index(index: str, numbers: frozenset[str]) -> bool:
    return bool(_NUMBER.fullmatch(index)) or index.removeprefix("$") in numbers


def _plain_test(words: tuple[Token, ...], numbers: frozenset[str]) -> bool:
    """Whether `[[ ]]` takes no word for an expression that it would evaluate."""
    for at, word in enumerate(words):
        if word.bare in {"-v", "-R"}:
            operand = words[at + 1] if at + 1 < len(words) else None
            if operand is None or not re.fullmatch(r"[A-Za-z_]\w*", operand.bare):
                return False
        if word.bare in _TEST_NUMBERS and not all(_numeric(side, numbers) for side in _around(words, at)):
            return False
    return True


def _around(words: tuple[Token, ...], at: int) -> tuple[Token, ...]:
    return (*words[max(at - 1, 0) : at], *words[at + 1 : at + 2])


def _numeric(word: Token, numbers: frozenset[str]) -> bool:
    solid = [piece for piece in word.pieces if piece.text or piece.kind != "literal"]
    if len(solid) == 1 and solid[0].kind == "variable":
        return solid[0].text.strip("{}") in numbers
    return _is_number(word._replace(pieces=tuple(solid))) if solid else False
