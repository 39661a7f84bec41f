"""Variables in a shell text: which may be set, which hold numbers, and expressions that can run commands.

Arithmetic evaluates the values of variables again, subscripts and the command substitutions in them included,
so only variables that are known to hold numbers may take part. The same goes for what `[[ ]]` compares as
numbers and for the subscripts and offsets inside `${ }`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from aisotools.shell_text import Command, Reading, Token, names
from aisotools.shell_words import expanded

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
class Survey:
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


def survey(reading: Reading, *, alone: bool = True) -> Survey:
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
    return Survey(numbers, files, frozenset(sets), tuple(dict.fromkeys(doubts)))


def _assigned(reading: Reading) -> Iterator[tuple[str, bool]]:
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


def _files(reading: Reading) -> Iterator[str]:
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


def _lent(reading: Reading) -> Iterator[tuple[str, bool]]:
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
