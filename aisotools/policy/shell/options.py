"""Command specifications: which options a program knows, what they do, and the verdict on one invocation.

An option that a specification does not list makes the verdict uncertain; nothing is assumed harmless.

Options are written as `-abc` (flags), `-k:` (takes a value), `-i?` (takes a value only if attached), and the
same for `--long`; `-#` is any number. A letter after `:` or `?` is the role of the value, a letter after `!`
the role of the flag itself:

    r  reads this path            w  writes this path               x  runs this
    h  contacts this host         W  like w, but - is stdout        u  unknown
    m  changes this path          d  destroys this path             n  acts on another machine
    c  changes something here     D  destroys something             s  changes the machine
    i  reads this path, or contacts the host of this URL
    k  settings such as `name=value`, which may have URLs of files in them
    L  reads this path, and what links below it, or lines in it, lead to
    p  reads these paths, with colons between them

The operands of a command have one kind: one of the roles above, or

    .   plain text                          pr  a pattern, then paths that are read
    -   none are known                      pm  a mode, then paths that are changed
    c   sources, then a destination         rw  a path that is read, then one that is written
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, literal
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    UNKNOWN_WORDS,
    CommandVerdict,
    contacts,
    has_effect,
    host_from_operand,
    merge,
    reads,
    reads_or_contacts,
    uncertain,
    writes,
)

# ---- specifications

Words = Sequence[Word]
"""A command: the program and its arguments."""

Classifier = Callable[[Words], CommandVerdict]
"""Judges one command that no option table can describe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """What is known of one or more programs.

    Attributes:
        names: Programs, separated by blanks.
        options: The options they know, as the module describes; `*` accepts any without looking at them.
        operands: The kind of their operands.
        effect: Their effect whatever the arguments are.
        reason: The reason for `effect` or for being uncertain; follows the program's name in a sentence.
        certain: Whether the specification covers everything they do.
        allow_dynamic: Whether words that are only known at run time are harmless even as options.
        allow_patterns: The same, but only for what patterns such as `*.png` become: the names of files.
        posix: Whether the first operand ends the options.
        separate_values: Whether an option with a value must stand alone, because implementations differ in
            how they read joined ones.
        one_dash: Whether a single dash begins options of several letters, as in `-noout`.
        classify: Replaces the option table.
        info_arguments: Arguments that only print information when given alone, separated by blanks.
        obeys: Globs of files, in the folder or above, whose code it runs even then, separated by blanks.
        searches: Options, separated by blanks, with one of which it reads the folder it runs in, if no
            operand names a file; `*` if it does so with any.
    """

    names: str
    options: str = ""
    operands: str = "r"
    effect: Effect = Effect.READ_ONLY
    reason: str = ""
    certain: bool = True
    allow_dynamic: bool = False
    allow_patterns: bool = False
    posix: bool = False
    separate_values: bool = False
    one_dash: bool = False
    classify: Classifier | None = None
    info_arguments: str = "--help --version"
    obeys: str = ""
    searches: str = ""


class OptionSpec(NamedTuple):
    """One option of a table.

    Attributes:
        arity: `:` if it takes a value, `?` if it takes an attached one, else empty.
        role: The role of the value or of the flag; empty if it is harmless.
    """

    arity: str
    role: str


class ParsedOption(NamedTuple):
    """An option of a command, with its role from the table."""

    name: str
    role: str
    value: Word | None


class ParsedCommand(NamedTuple):
    """The arguments of a command, and why they may have been parsed otherwise than the program does."""

    options: list[ParsedOption]
    operands: list[Word]
    doubts: list[str]

    def has(self, *names: str) -> bool:
        """Return whether any of these options is present."""
        return any(option.name in names for option in self.options)

    def value(self, *names: str) -> Word | None:
        """Return the value of the last of these options that has one."""
        return next((o.value for o in reversed(self.options) if o.name in names and o.value), None)


_SYSTEM_FOLDERS = frozenset(
    ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"),
)
_VERSIONED = re.compile(
    r"(python|pypy|pip|ruby|perl|php|lua|node|gcc|g\+\+|clang|clang\+\+|java)-?[0-9][0-9.]*"
)
_MKFS = re.compile(r"mkfs\.\w+")


def program_name(program: str) -> str:
    """Return the name under which a program is specified; empty for a path outside the system's folders."""
    folder, slash, name = program.rpartition("/")
    if slash and folder not in _SYSTEM_FOLDERS:
        return ""
    if found := _VERSIONED.fullmatch(name):
        return found[1]
    return "mkfs" if _MKFS.fullmatch(name) else name


# ---- parsing the arguments of a command

_OPTION = re.compile(r"(--?[^\s:?!-][^\s:?!]*)(?:([:?])(\w?)|!(\w))?")
_URL_WITHIN = re.compile(r"(?:^|(?<=[=:,;|]))(?!file:)[A-Za-z][A-Za-z0-9+-]{0,20}://[^\s,;|]+", re.IGNORECASE)
_ROLES_WORST_FIRST = "xusdDwWmcnhiLkpr"
_DOES_MORE = frozenset("xusdDwWmcnh")
_ABBREVIATED_CHARS = 3  # after the dashes, at least


@cache
def parse_option_table(options: str, *, one_dash: bool = False) -> Mapping[str, OptionSpec]:
    """Parse the options of a specification; with `one_dash` no option is a group of letters.

    Raises:
        ValueError: If several short options with values are joined, an option is stated twice, or a word is
            no option.
    """
    table: dict[str, OptionSpec] = {}
    for word in options.split():
        found = _OPTION.fullmatch(word)
        if found is None:
            raise ValueError(f"{word} in a table is not an option")
        name, arity, value_role, flag_role = found.groups(default="")
        is_whole = one_dash or name.startswith("--") or name == "-#"
        if not is_whole and arity and len(name) > 2:
            raise ValueError(f"{name}{arity} in a table: write options with values one by one")
        if not is_whole and "-" in name[1:]:
            raise ValueError(f"{name} in a table: with one dash it is a group of letters")
        for each in [name] if is_whole else [f"-{letter}" for letter in name[1:]]:
            if each in table:
                raise ValueError(f"{each} stands twice in a table: nobody could tell which one is meant")
            table[each] = OptionSpec(arity, value_role or flag_role)
    return table


def join_option_tables(program: str, subcommand: str, *, one_dash: bool = False) -> str:
    """Return the options that a subcommand knows: its own, then those of its program that it has not.

    An option of both is meant as the subcommand states it, since it stands behind the subcommand's name:
    `docker -l debug ps -l`.

    Args:
        program: The options of the program, of which a group of letters is one each.
        subcommand: The options of the subcommand; `*` for any.
        one_dash: Whether those of the subcommand begin with a single dash; see `CommandSpec`.
    """
    if subcommand == "*":
        return subcommand
    own = parse_option_table(subcommand, one_dash=one_dash)
    others = [
        f"{name}{arity or ('!' if role else '')}{role}"
        for name, (arity, role) in parse_option_table(program).items()
        if name not in own
    ]
    return " ".join([subcommand, *others])


def parse_options(
    words: Words,
    options: str,
    *,
    allow_dynamic: bool = False,
    allow_patterns: bool = False,
    posix: bool = False,
    separate_values: bool = False,
    one_dash: bool = False,
    is_shared: bool = False,
) -> ParsedCommand:
    """Return the options and operands of a command, and the doubts about them. Raises nothing.

    Args:
        words: The program and its arguments.
        options: The options that it knows, as this module describes; `*` for any.
        allow_dynamic: See `CommandSpec`.
        allow_patterns: See `CommandSpec`.
        posix: See `CommandSpec`.
        separate_values: See `CommandSpec`.
        one_dash: See `CommandSpec`.
        is_shared: Whether programs share the table, so that an option of it may have no value.
    """
    if options == "*":
        return ParsedCommand([], _likely_operands(words), [])
    table = parse_option_table(options, one_dash=one_dash)
    parsed = ParsedCommand([], [], [])
    rest = iter(words[1:])
    for word in rest:
        text = word.text
        if text == "--":
            if separate_values:
                parsed.doubts.append("-- may not end the options here")
            parsed.operands.extend(rest)
        elif text is None:
            is_harmless = allow_dynamic or (allow_patterns and word.is_located and not word.prefix)
            _parse_dynamic_word(word, table, parsed, allow_dynamic=is_harmless)
        elif one_dash and text.startswith("-") and len(text) > 1:
            _parse_one_dash_option(word, table, rest, parsed)
        elif text.startswith("--"):
            _parse_long_option(word, table, rest, parsed)
        elif text.startswith("-") and len(text) > 1:
            _parse_short_options(
                text, table, rest, parsed, separate_values=separate_values, is_shared=is_shared
            )
        else:
            parsed.operands.append(word)
        if posix and parsed.operands:
            parsed.operands.extend(rest)
    return parsed


def _likely_operands(words: Words) -> list[Word]:
    """Return the words that are no options. A number after an option is more often its value than a file."""
    return [
        word
        for previous, word in pairwise(words)
        if not word.prefix.startswith("-")
        and not (previous.prefix.startswith("-") and word.display.isdecimal())
    ]


def _parse_dynamic_word(
    word: Word, table: Mapping[str, OptionSpec], parsed: ParsedCommand, *, allow_dynamic: bool
) -> None:
    name, equals, _ = word.prefix.partition("=")
    if equals and name in table and not (word.may_split and not word.is_located):
        value = Word(word.display.partition("=")[2], None, word.prefix.partition("=")[2], is_located=False)
        parsed.options.append(ParsedOption(name, table[name].role, value))
        return
    if word.may_be_option and not allow_dynamic:
        parsed.doubts.append(f"{word.display} may be an option")
    parsed.operands.append(word)


def _parse_one_dash_option(
    word: Word, table: Mapping[str, OptionSpec], rest: Iterator[Word], parsed: ParsedCommand
) -> None:
    name, equals, value = word.display.partition("=")
    name = name[1:] if name.startswith("--") and name not in table else name
    if name not in table:
        parsed.doubts.append(f"the option {name} is unknown")
        return
    _add_option(name, table, literal(value) if equals else None, rest, parsed, has_value=bool(equals))


def _parse_long_option(
    word: Word, table: Mapping[str, OptionSpec], rest: Iterator[Word], parsed: ParsedCommand
) -> None:
    name, equals, value = word.display.partition("=")
    if name not in table:
        # Programs accept abbreviated long options. Assume the worst of those that this one may stand for.
        candidates = [other for other in table if other.startswith(name) and other.startswith("--")]
        if not candidates:
            parsed.doubts.append(f"the option {name} is unknown")
            return
        if not _abbreviates(name, candidates, table):
            parsed.doubts.append(f"the option {name} is abbreviated")
        name = min(candidates, key=lambda other: _severity_rank(table[other].role))
    _add_option(name, table, literal(value) if equals else None, rest, parsed, has_value=bool(equals))


def _add_option(
    name: str,
    table: Mapping[str, OptionSpec],
    argument: Word | None,
    rest: Iterator[Word],
    parsed: ParsedCommand,
    *,
    has_value: bool,
) -> None:
    """Add an option whose value, if it has one, stands in the same word; else the next word is taken."""
    arity, role = table[name]
    if arity == ":" and not has_value:
        argument = _next_value(name, table, rest, parsed)
    elif has_value and not arity:
        parsed.doubts.append(f"the option {name} takes no value")
    parsed.options.append(ParsedOption(name, role, argument))


def _abbreviates(name: str, candidates: Sequence[str], table: Mapping[str, OptionSpec]) -> bool:
    """Return whether an abbreviation is harmless, whichever of `candidates` it stands for.

    An option that is in no table may have exactly this name if it ends where a word of theirs ends.
    """
    ends_word = any(other[len(name) : len(name) + 1] == "-" for other in candidates)
    arities = {table[other].arity for other in candidates}
    is_harmless = not any(table[other].role for other in candidates)
    return is_harmless and len(arities) == 1 and not ends_word and len(name) >= _ABBREVIATED_CHARS + 2


def _severity_rank(role: str) -> int:
    return _ROLES_WORST_FIRST.index(role) if role else len(_ROLES_WORST_FIRST)


def _parse_short_options(
    text: str,
    table: Mapping[str, OptionSpec],
    rest: Iterator[Word],
    parsed: ParsedCommand,
    *,
    separate_values: bool,
    is_shared: bool,
) -> None:
    if "-#" in table and text[1:].isdecimal():
        return
    for end, letter in enumerate(text[1:], 2):
        option = table.get(f"-{letter}")
        if option is None:
            parsed.doubts.append(f"the option -{letter} is unknown")
            return
        if not option.arity:
            parsed.options.append(ParsedOption(f"-{letter}", option.role, None))
            continue
        if separate_values and len(text) > 2:
            parsed.doubts.append(f"the options in {text} are joined")
            return
        value = literal(text[end:]) if text[end:] else None
        if value is None and option.arity == ":":
            value = _next_value(f"-{letter}", table, rest, parsed)
        elif value is not None and is_shared and _has_letter_that_does_more(text[end:], table):
            parsed.doubts.append(f"the options in {text} are joined")
        parsed.options.append(ParsedOption(f"-{letter}", option.role, value))
        return


def _next_value(
    name: str, table: Mapping[str, OptionSpec], rest: Iterator[Word], parsed: ParsedCommand
) -> Word | None:
    value = next(rest, None)
    if value is not None and value.may_split:
        parsed.doubts.append(f"it cannot be determined how many words {value.display} becomes")
    # Case: another subcommand or version knows `-r` without a value, and the `-o` after it writes a file.
    if value is not None and len(value.prefix) > 1 and value.prefix[0] == "-" and _does_more(value, table):
        parsed.doubts.append(f"{value.display} may be an option, and not the value of {name}")
    return value


def _does_more(word: Word, table: Mapping[str, OptionSpec]) -> bool:
    """Return whether a word is an option that does more than read, if it is one."""
    name = word.prefix.partition("=")[0]
    is_joined = not name.startswith("--") and _has_letter_that_does_more(name[1:], table)
    return is_joined or any(o.startswith(name) and table[o].role in _DOES_MORE for o in table)


def _has_letter_that_does_more(text: str, table: Mapping[str, OptionSpec]) -> bool:
    return any(table[f"-{letter}"].role in _DOES_MORE for letter in text if f"-{letter}" in table)


# ---- verdicts by specification


def classify_by_spec(spec: CommandSpec, words: Words) -> CommandVerdict:
    """Return the verdict on a command of a known program: on its options, its operands and its own effect.

    Args:
        spec: What is known of the program.
        words: The program and its arguments.
    """
    if spec.classify is not None:
        return spec.classify(words)
    parsed = parse_options(
        words,
        spec.options,
        allow_dynamic=spec.allow_dynamic,
        allow_patterns=spec.allow_patterns,
        posix=spec.posix,
        separate_values=spec.separate_values,
        one_dash=spec.one_dash,
        is_shared=" " in spec.names,
    )
    verdicts = [option_verdict(parsed, program=words[0].display), operand_verdict(spec, parsed)]
    if spec.searches and _reads_folder(spec, parsed):
        verdicts.append(reads(literal(".")))
    if any(option.role in _CHANGES_OPERANDS for option in parsed.options):
        verdicts.append(_change_of_operands(spec, parsed))
    table = parse_option_table(spec.options, one_dash=spec.one_dash) if spec.options != "*" else {}
    if spec.operands == "i" or any(option.role == "i" for option in table.values()):
        harmless = [option.value for option in parsed.options if not option.role and option.value]
        verdicts += map(_contacts_within, harmless)
    if spec.effect is not Effect.READ_ONLY or not spec.certain:
        reasons = (f"{words[0].display} {spec.reason}",) if spec.reason else ()
        verdicts.append(CommandVerdict(effect=spec.effect, certain=spec.certain, reasons=reasons))
    return merge(verdicts)


_CHANGES_OPERANDS = frozenset("cD")
"""Roles of flags with which a program changes, or destroys, the files that it would only read."""


def _change_of_operands(spec: CommandSpec, parsed: ParsedCommand) -> CommandVerdict:
    """Return the paths that a program changes which is told to by a flag, as `gofmt -w` is."""
    if spec.operands in {".", "-"}:
        return NO_EFFECT
    return merge(map(writes, _file_operands(spec, parsed) or [literal(".")]))


def _reads_folder(spec: CommandSpec, parsed: ParsedCommand) -> bool:
    if spec.searches != "*" and not parsed.has(*spec.searches.split()):
        return False
    # Of what may be an option nobody knows whether it names a file; a pattern such as `*.py` does.
    operands = [word for word in parsed.operands if not word.may_be_option or word.is_bare_pattern]
    return not _file_operands(spec, parsed._replace(operands=operands))


def _file_operands(spec: CommandSpec, parsed: ParsedCommand) -> list[Word]:
    has_pattern = spec.operands == "pr" and not _pattern_is_option(parsed)
    return parsed.operands[1:] if has_pattern else parsed.operands


def _pattern_is_option(parsed: ParsedCommand) -> bool:
    return parsed.has("-e", "-f", "--regexp", "--file")


def by_program(tables: Mapping[str, str], *, operands: str = "r", searches: str = "") -> SimilarPrograms:
    """Return a classifier for programs that do the same, but each with options of its own.

    The same letter takes a value in one of them and none in another: in one table for all of them a file
    would be taken for the value of an option.

    Args:
        tables: The options of each program, or of several programs whose names have blanks between them.
        operands: The kind of their operands; see `CommandSpec`.
        searches: See `CommandSpec`.
    """
    specs = {
        name: CommandSpec(names=name, options=options, operands=operands, searches=searches)
        for names, options in tables.items()
        for name in names.split()
    }

    return SimilarPrograms(specs=specs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarPrograms:
    """Judges a command of one of several programs; see `by_program`.

    Attributes:
        specs: What is known of each program.
    """

    specs: Mapping[str, CommandSpec]

    def __call__(self, words: Words) -> CommandVerdict:
        """Return the verdict on a command of one of the programs."""
        return classify_by_spec(self.specs[program_name(words[0].text or "")], words)


def _contacts_within(value: Word) -> CommandVerdict:
    """Return the verdict on URLs within the value of an option: `reference=http://host/a`.

    Only for a program that takes URLs in place of files; for others, such as grep, they are texts.
    """
    urls = _URL_WITHIN.findall(value.display)
    return merge(contacts(host_from_operand(url), f"it contacts {url}") for url in urls)


def matches_arguments(words: Words, pattern: re.Pattern[str]) -> bool:
    """Return whether all arguments are known and match a pattern as a whole, with blanks between them."""
    texts = [word.text for word in words[1:]]
    known = [text for text in texts if text is not None and " " not in text]
    return len(known) == len(texts) and pattern.fullmatch(" ".join(known)) is not None


def option_verdict(parsed: ParsedCommand, *, program: str = "") -> CommandVerdict:
    """Return the verdict on the options of a command; uncertain if there are doubts about parsing it.

    Args:
        parsed: The command.
        program: The program, if these doubts are the only ones there can be about its options.
    """
    unknown = (program,) if program else ()
    verdicts = [uncertain(doubt, unknown=unknown) for doubt in parsed.doubts]
    verdicts += [role_verdict(option.role, option.value, option.name) for option in parsed.options]
    return merge(verdicts)


def role_verdict(role: str, value: Word | None, name: str) -> CommandVerdict:
    """Return the verdict on one option or operand; uncertain for a role that is not in the table.

    Args:
        role: A letter of the table at the top of this module, or empty for harmless.
        value: The value of the option, or the operand.
        name: The option, for reasons; may be empty.
    """
    display = value.display if value is not None else ""
    match role:
        case "":
            return NO_EFFECT
        case "r":
            return reads(value) if value is not None else NO_EFFECT
        case "p":
            return merge(map(reads, path_list(value))) if value is not None else NO_EFFECT
        case "L":
            return CommandVerdict(reads=(display,) if display else (), unresolved=(UNKNOWN_WORDS,))
        case "i":
            return reads_or_contacts(value) if value is not None else NO_EFFECT
        case "k":
            return _contacts_within(value) if value is not None else NO_EFFECT
        case "W" if value is None or value.text == "-":
            return NO_EFFECT
        case "w" | "W" if value is not None:
            return writes(value)
        case "m" if value is not None:
            return writes(value, f"it changes {display}")
        case "d" if value is not None:
            return writes(value, f"it destroys {display}", Effect.DESTRUCTIVE)
        case "h":
            return contacts(host_from_operand(display), f"it contacts {display}")
        case "w" | "m" | "c":
            return has_effect(Effect.LOCAL_MUTATION, f"{name} changes something")
        case "d" | "D":
            return has_effect(Effect.DESTRUCTIVE, f"{name} destroys something")
        case "n":
            return has_effect(Effect.REMOTE_ACTION, f"{name} acts on another machine")
        case "s":
            return uncertain(f"{name or display} changes the machine")
        case "x":
            return uncertain(f"{name} runs {display or 'something'}")
        case _:
            return uncertain(f"{name} may do anything")


def path_list(value: Word) -> list[Word]:
    """Return the paths of a list such as `a:b/c`, and the list itself, which may be one path."""
    if value.text is None or ":" not in value.text:
        return [value]
    return [value, *map(literal, filter(None, value.text.split(":")))]


def operand_verdict(spec: CommandSpec, parsed: ParsedCommand) -> CommandVerdict:
    """Return the verdict on the operands of a command; see `CommandSpec.operands`."""
    operands = parsed.operands
    match spec.operands:
        case ".":
            return NO_EFFECT
        case "-":
            return uncertain("its operands are unknown") if operands else NO_EFFECT
        case "pr":
            return merge(map(reads, _file_operands(spec, parsed)))
        case "pm":
            return merge(role_verdict("m", operand, "") for operand in operands[1:])
        case "rw":
            doubts = [
                uncertain(f"it cannot be determined which files {operand.display} means")
                for operand in operands
                if operand.may_split
            ]
            return merge([*map(reads, operands[:1]), *doubts, *map(writes, operands[1:])])
        case "c":
            sources, targets = copy_targets(parsed)
            return merge([*map(reads, sources), *targets])
        case role:
            return merge(role_verdict(role, operand, operand.display) for operand in operands)


def copy_targets(parsed: ParsedCommand) -> tuple[list[Word], list[CommandVerdict]]:
    """Return the sources of a copy or move, and the verdicts on the paths it writes.

    The destination is the last operand or the value of `-t`; a single operand goes to the current folder.
    """
    sources, destination, is_folder = copy_operands(parsed)
    if is_folder:
        return sources, [writes(path_in(destination, source)) for source in sources]
    return sources, [writes(destination)]


def copy_operands(parsed: ParsedCommand) -> tuple[list[Word], Word, bool]:
    """Return the sources of a copy, the destination, and whether that is a folder as its place tells."""
    folder, operands = parsed.value("-t", "--target-directory"), parsed.operands
    if folder is None and len(operands) < 2:
        folder = literal(".")
    sources, destination = (operands, folder) if folder else (operands[:-1], operands[-1])
    display = destination.display
    is_folder = folder is not None or len(sources) > 1 or display.endswith("/") or display in {".", ".."}
    return sources, destination, is_folder


def path_below(folder: Word, path: Word) -> Word:
    """Return a path that is meant in a folder, with that folder in front."""
    display = f"{folder.display.rstrip('/')}/{path.display}"
    if folder.text is not None and path.text is not None:
        return literal(display)
    return Word(display, None, "", is_located=folder.is_located and path.text is not None)


def path_in(folder: Word, file: Word) -> Word:
    """Return the path that a file gets in a folder into which it is copied."""
    name = file.display.rstrip("/").rpartition("/")[2]
    display = f"{folder.display.rstrip('/')}/{name}"
    text = display if folder.text is not None and file.text is not None else None
    return Word(
        display,
        text,
        text or folder.prefix,
        may_split=folder.may_split or file.may_split,
        is_located=folder.is_located and file.is_located,
    )
