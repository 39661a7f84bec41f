"""Tables of programs: a row says what a program does, which options it knows, and what they change.

A table knows the options that are harmless and those that are not; what it does not know is never certain.

Options are written as `-abc` (flags), `-k:` (with a value), `-i?` (with a value only if attached), and the
same for `--long`. A letter after `:` or `?` says what the value is, a letter after `!` what the flag does:

    r  a path that is read        w  a path that is written         x  something that is run
    h  a host                     W  the same, but - is no file     u  who knows what
    m  a path that is changed     d  a path that is destroyed       n  acts elsewhere
    c  changes something here     D  destroys something             s  changes the machine

Operands are of one kind: the same letters, or `.` for plain text; `pr` and `pm` for a plain one before what
is read or changed, `rw` for one that is read and one that is written, `c` for sources and a destination, `-`
for none at all.

What is said about one command: its effect, what it touches and what else it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, literal

UNSEEN = "…"
"""Shown for words that are added by another program."""

_NO_FILES = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/zero", "/dev/full"))
_DESCRIPTORS = re.compile(r"/dev/fd/[12]")
_DISKS = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|rdisk|loop|dm-|md|mapper/|mem|kmem|port).*")
_SOCKETS = re.compile(r"/dev/(?:tcp|udp)/([^/]*)/.*")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://(?:[^/?#]*@)?(\[[^\]]*\]|[^/:?#]*)", re.IGNORECASE)
_PLAIN_HOST = re.compile(r"[\w.:%\[\]-]+")
_REMOTE_PATH = re.compile(r"(?:[^/@:]*@)?(\[[^\]]*\]|[^/:@\[\]]+):.*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandVerdict:
    """What is known of a command before it runs.

    Attributes:
        effect: The most severe thing it does itself.
        certain: Whether that is all.
        reads: Paths it reads.
        writes: Paths it writes.
        hosts: Hosts it talks to.
        reasons: Why the effect is what it is, or why it is not certain.
        commands: Words of commands that it runs.
        scripts: Shell texts that it runs.
        moves: Whether it changes the folder to one that may lie outside the workspace.
    """

    effect: Effect = Effect.READ_ONLY
    certain: bool = True
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    commands: tuple[tuple[Word, ...], ...] = ()
    scripts: tuple[str, ...] = ()
    moves: bool = False


NOTHING = CommandVerdict()
"""It does nothing but compute and print."""


def merged(verdicts: Iterable[CommandVerdict]) -> CommandVerdict:
    """All of them together."""
    several = [verdict for verdict in verdicts if verdict is not NOTHING]
    if len(several) < 2:
        return several[0] if several else NOTHING
    return CommandVerdict(
        effect=max(verdict.effect for verdict in several),
        certain=all(verdict.certain for verdict in several),
        reads=tuple(path for verdict in several for path in verdict.reads),
        writes=tuple(path for verdict in several for path in verdict.writes),
        hosts=tuple(host for verdict in several for host in verdict.hosts),
        reasons=tuple(reason for verdict in several for reason in verdict.reasons),
        commands=tuple(words for verdict in several for words in verdict.commands),
        scripts=tuple(script for verdict in several for script in verdict.scripts),
        moves=any(verdict.moves for verdict in several),
    )


def unsure(why: str, effect: Effect = Effect.LOCAL_MUTATION) -> CommandVerdict:
    """It may do anything up to `effect` and beyond."""
    return CommandVerdict(effect=effect, certain=False, reasons=(why,))


def does(effect: Effect, why: str) -> CommandVerdict:
    """It has this effect."""
    return CommandVerdict(effect=effect, reasons=(why,))


def reads(word: Word) -> CommandVerdict:
    """It reads this path."""
    return NOTHING if word.shown in {"-", UNSEEN} else CommandVerdict(reads=(word.shown,))


def opens(word: Word) -> CommandVerdict:
    """The shell opens this path for reading; it can open connections by name."""
    if socket := _SOCKETS.fullmatch(word.shown):
        return contacts(socket[1], "it opens a connection")
    if word.text is None and not word.placed and not _harmless_beginning(word.prefix):
        return unsure(f"it cannot be told what {word.shown} opens")
    return reads(word)


def _harmless_beginning(prefix: str) -> bool:
    return bool(prefix) and not prefix.startswith("/dev/") and not "/dev/".startswith(prefix)


def writes(word: Word, why: str = "", effect: Effect = Effect.LOCAL_MUTATION) -> CommandVerdict:
    """It writes this path."""
    path = word.shown
    if (word.text is not None and (path in _NO_FILES or _DESCRIPTORS.fullmatch(path))) or (
        word.text is None and word.placed and word.prefix == "/dev/fd/"
    ):
        return NOTHING
    if socket := _SOCKETS.fullmatch(path):
        return contacts(socket[1], "it opens a connection")
    reason = why or f"it writes {path}"
    if not word.placed:
        return CommandVerdict(
            effect=effect, certain=False, writes=(path,), reasons=(f"{reason}, wherever that is",)
        )
    if word.many:
        return CommandVerdict(
            effect=effect, certain=False, writes=(path,), reasons=(f"{reason}, whatever that is",)
        )
    if _DISKS.fullmatch(path):
        effect, reason = Effect.DESTRUCTIVE, f"it writes to the device {path}"
    return CommandVerdict(effect=effect, writes=(path,), reasons=(reason,))


def contacts(host: str, why: str) -> CommandVerdict:
    """It talks to this host; to an unknown one if it is empty."""
    known = bool(host) and _PLAIN_HOST.fullmatch(host) is not None
    return CommandVerdict(
        effect=Effect.REMOTE_ACTION, certain=known, hosts=(host or "an unknown host",), reasons=(why,)
    )


def host_named(text: str) -> str:
    """The host where one is expected: in a URL, or as `user@host:port/path`."""
    return host_of(text) or text.partition("/")[0].rpartition("@")[2]


def host_of(text: str) -> str:
    """The host in a URL or in `user@host:path`; empty when there is none."""
    found = _URL.match(text) or _REMOTE_PATH.fullmatch(text)
    return found[1] if found else ""


Words = Sequence[Word]
"""A command: the program and its arguments."""

Judge = Callable[[Words], CommandVerdict]
"""What a command does, where a table cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What is known of one or more programs.

    Attributes:
        names: Programs, separated by blanks.
        options: The options they know; `*` for any.
        operands: What their operands are.
        effect: What they do anyway.
        why: The same in words.
        certain: Whether that is all.
        loose: Whether words that are not known beforehand are harmless, even if they should be options.
        posix: Whether the first operand ends the options.
        apart: Whether options with values must stand alone: what joining them means depends on the program.
        judge: Decides instead of the table.
        about: Options that only print something when they stand alone.
        harmless: Commands that only read.
        harmful: Commands that do more, or may.
    """

    names: str
    options: str = ""
    operands: str = "r"
    effect: Effect = Effect.READ_ONLY
    why: str = ""
    certain: bool = True
    loose: bool = False
    posix: bool = False
    apart: bool = False
    judge: Judge | None = None
    about: str = "--help --version"
    harmless: tuple[str, ...] = ()
    harmful: tuple[str, ...] = ()


class Option(NamedTuple):
    """What a table knows of an option: whether it takes a value (`:`, `?` or not), and what that means."""

    arity: str
    role: str


class Given(NamedTuple):
    """An option as given."""

    name: str
    role: str
    value: Word | None


class Parsed(NamedTuple):
    """A command taken apart."""

    options: list[Given]
    operands: list[Word]
    doubts: list[str]

    def has(self, *names: str) -> bool:
        """Whether any of these options is given."""
        return any(option.name in names for option in self.options)

    def value(self, *names: str) -> Word | None:
        """The value of the last of these options."""
        return next((o.value for o in reversed(self.options) if o.name in names and o.value), None)


_SPEC = re.compile(r"(-#|-[^-\s:?!]+|--[^\s:?!]+)(?:([:?])(\w?)|!(\w))?")
_WORST = "xusdDwWmcnhr"
"""Roles, the worst first."""


@cache
def table(options: str) -> Mapping[str, Option]:
    """The options of a row, by name."""
    known: dict[str, Option] = {}
    for name, arity, role, flag_role in _SPEC.findall(options):
        option = Option(arity, role or flag_role)
        if name.startswith("--") or name == "-#":
            known[name] = option
        elif arity and len(name) > 2:
            raise ValueError(f"{name}{arity} in a table: write options with values one by one")
        else:
            known.update((f"-{letter}", option) for letter in name[1:])
    return known


def parse(
    words: Words, options: str, *, loose: bool = False, posix: bool = False, apart: bool = False
) -> Parsed:
    """Take a command apart as a `Row` says; `words` begin with the program."""
    if options == "*":
        return _roughly(words)
    known = table(options)
    parsed = Parsed([], [], [])
    rest = iter(words[1:])
    for word in rest:
        text = word.text
        if text == "--":
            if apart:
                parsed.doubts.append("-- may be no end of options here")
            parsed.operands.extend(rest)
        elif text is None:
            _take_unknown(word, known, parsed, loose=loose)
        elif text.startswith("--"):
            _take_long(word, known, rest, parsed)
        elif text.startswith("-") and len(text) > 1:
            _take_short(text, known, rest, parsed, apart=apart)
        else:
            parsed.operands.append(word)
        if posix and parsed.operands:
            parsed.operands.extend(rest)
    return parsed


def _roughly(words: Words) -> Parsed:
    operands = [
        word
        for before, word in pairwise(words)
        # a number after an option is its value more often than a file
        if not word.prefix.startswith("-") and not (before.prefix.startswith("-") and word.shown.isdecimal())
    ]
    return Parsed([], operands, [])


def _take_unknown(word: Word, known: Mapping[str, Option], parsed: Parsed, *, loose: bool) -> None:
    name, equals, _ = word.prefix.partition("=")
    if equals and name.startswith("--") and name in known and not word.many:
        value = Word(word.shown.partition("=")[2], None, word.prefix.partition("=")[2], placed=False)
        parsed.options.append(Given(name, known[name].role, value))
        return
    if word.may_be_option and not loose:
        parsed.doubts.append(f"{word.shown} may turn out to be an option")
    parsed.operands.append(word)


def _take_long(word: Word, known: Mapping[str, Option], rest: Iterator[Word], parsed: Parsed) -> None:
    name, equals, value = word.shown.partition("=")
    option = known.get(name)
    if option is None:
        alike = [other for other in known if other.startswith(name) and other.startswith("--")]
        parsed.doubts.append(f"the option {name} is not known" if not alike else f"{name} is not spelled out")
        if not alike:
            return
        name = min(alike, key=lambda other: _rank(known[other].role))
        option = known[name]
    given = literal(value) if equals else None
    if option.arity == ":" and not equals:
        given = _next(rest, parsed)
    elif equals and not option.arity:
        parsed.doubts.append(f"the option {name} takes no value")
    parsed.options.append(Given(name, option.role, given))


def _take_short(
    text: str, known: Mapping[str, Option], rest: Iterator[Word], parsed: Parsed, *, apart: bool
) -> None:
    if "-#" in known and text[1:].isdecimal():
        return
    for at, letter in enumerate(text[1:], 2):
        option = known.get(f"-{letter}")
        if option is None:
            parsed.doubts.append(f"the option -{letter} is not known")
            return
        if not option.arity:
            parsed.options.append(Given(f"-{letter}", option.role, None))
            continue
        if apart and len(text) > 2:
            parsed.doubts.append(f"the options in {text} are not apart")
            return
        attached = literal(text[at:]) if text[at:] else None
        given = _next(rest, parsed) if option.arity == ":" and attached is None else attached
        parsed.options.append(Given(f"-{letter}", option.role, given))
        return


def _next(rest: Iterator[Word], parsed: Parsed) -> Word | None:
    value = next(rest, None)
    if value is not None and value.many:
        parsed.doubts.append(f"it cannot be told how many words {value.shown} becomes")
    return value


def _rank(role: str) -> int:
    return _WORST.index(role) if role else len(_WORST)


# ---- judging by a row


def by_row(row: Row, words: Words) -> CommandVerdict:
    """What a command of this row does."""
    if row.judge is not None:
        return row.judge(words)
    parsed = parse(words, row.options, loose=row.loose, posix=row.posix, apart=row.apart)
    verdicts = [said_by(parsed), by_operands(row, parsed)]
    if row.effect is not Effect.READ_ONLY or not row.certain:
        why = f"{words[0].shown} {row.why}" if row.why else ""
        verdicts.append(CommandVerdict(effect=row.effect, certain=row.certain, reasons=(why,) if why else ()))
    return merged(verdicts)


def said_by(parsed: Parsed) -> CommandVerdict:
    """What the options and the doubts about them amount to."""
    verdicts = [unsure(doubt) for doubt in parsed.doubts]
    verdicts += [by_role(given.role, given.value, given.name) for given in parsed.options if given.role]
    return merged(verdicts)


def by_role(role: str, value: Word | None, name: str) -> CommandVerdict:
    """What an option or operand of this role amounts to."""
    shown = value.shown if value is not None else ""
    if role == "r":
        return reads(value) if value is not None else NOTHING
    if role == "W" and (value is None or value.text == "-"):
        return NOTHING
    if role in {"w", "W", "m"} and value is not None:
        return writes(value, f"it changes {shown}" if role == "m" else "")
    if role == "d" and value is not None:
        return writes(value, f"it destroys {shown}", Effect.DESTRUCTIVE)
    if role == "h":
        return contacts(host_named(shown), f"it contacts {shown}")
    if role in {"w", "m", "c"}:
        return does(Effect.LOCAL_MUTATION, f"{name} changes something")
    if role in {"d", "D"}:
        return does(Effect.DESTRUCTIVE, f"{name} destroys something")
    if role == "n":
        return does(Effect.REMOTE_ACTION, f"{name} acts elsewhere")
    if role == "s":
        return unsure(f"{name or shown} changes the machine")
    if role == "x":
        return unsure(f"{name} runs {shown or 'something'}")
    return unsure(f"{name} may do anything") if role else NOTHING


def by_operands(row: Row, parsed: Parsed) -> CommandVerdict:
    """What the operands amount to."""
    kind, operands = row.operands, parsed.operands
    if kind == ".":
        return NOTHING
    if kind == "-":
        return unsure("it is not known with operands") if operands else NOTHING
    if kind == "pr":
        given = parsed.has("-e", "-f", "--regexp", "--file")
        return merged(map(reads, operands if given else operands[1:]))
    if kind == "pm":
        return merged(by_role("m", operand, "") for operand in operands[1:])
    if kind == "rw":
        several = [unsure(f"it cannot be told which files {o.shown} means") for o in operands if o.many]
        return merged([*map(reads, operands[:1]), *several, *map(writes, operands[1:])])
    if kind == "c":
        sources, written = copied(parsed)
        return merged([*map(reads, sources), *written])
    return merged(by_role(kind, operand, operand.shown) for operand in operands)


def copied(parsed: Parsed) -> tuple[list[Word], list[CommandVerdict]]:
    """What is copied or moved to the last operand, or to where `-t` says; and what is written thereby."""
    folder, operands = parsed.value("-t", "--target-directory"), parsed.operands
    if folder is None and len(operands) < 2:
        folder = literal(".")
    sources, destination = (operands, folder) if folder else (operands[:-1], operands[-1])
    shown = destination.shown
    into = folder or len(sources) > 1 or shown.endswith("/") or shown in {".", ".."}
    return sources, [writes(_inside(destination, s)) for s in sources] if into else [writes(destination)]


def _inside(folder: Word, file: Word) -> Word:
    """What `file` is called in `folder`."""
    name = file.shown.rstrip("/").rpartition("/")[2]
    shown = f"{folder.shown.rstrip('/')}/{name}"
    text = shown if folder.text is not None and file.text is not None else None
    return Word(shown, text, text or folder.prefix, folder.many or file.many, folder.placed and file.placed)
