"""What is certain of the variables of a parsed shell text, and which uses of them may run commands.

Bash's arithmetic evaluates the values of variables again, with the subscripts and commands in them. So only
those that certainly hold numbers may take part in arithmetic, in the numeric comparisons of `[[ ]]`, and in
the subscripts and offsets inside `${ }`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aisotools.policy.shell.expansion import (
    LoopWords,
    ParsedText,
    SimpleCommand,
    Token,
    expand,
    expand_value,
    name_set,
)
from aisotools.policy.shell.substitutions import is_count, without_counts

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


def is_variable_name(text: str) -> bool:
    """Return whether a variable can have this name."""
    return bool(_NAME.fullmatch(text))


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
        if not command.program_words:
            yield from map(_assigned_value, command.words)
        elif _program(command) == "read":
            yield from ((token.bare, False) for token in command.program_words[1:])
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
        if command.program_words:
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
        if command.program_words:
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
    words = command.program_words
    if not words:
        return True
    name = _program(command)
    if name == "command" and len(words) > 1 and words[1].bare in {"-v", "-V"}:
        return True  # it only looks for programs
    if "{" in name or any(piece.kind != "literal" for piece in words[0].pieces):
        return False
    if name == "read":
        return all(token.bare == "-r" or is_variable_name(token.bare) for token in words[1:])
    if name == "printf":
        return not any("".join(piece.text for piece in token.pieces).startswith("-") for token in words[1:2])
    return name not in _VARIABLE_SETTERS


def _program(command: SimpleCommand) -> str:
    """Return the first word that is not an assignment, as far as it is fixed."""
    words = command.program_words
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
            if operand is None or not is_variable_name(operand.bare):
                return False
        if word.bare in _NUMERIC_COMPARISONS:
            operands = (*words[max(position - 1, 0) : position], *words[position + 1 : position + 2])
            if not all(_is_numeric(operand, numbers) for operand in operands):
                return False
    return True


def _is_numeric(word: Token, numbers: frozenset[str]) -> bool:
    if word.variable is not None:
        return word.variable in numbers
    pieces = [piece for piece in word.pieces if piece.text or piece.kind != "literal"]
    return _is_integer(word._replace(pieces=tuple(pieces))) if pieces else False
