"""Whether a glob of a rule means a command, however its options are written.

Threat: a rule denies `rm -r*`, and `rm -fr x`, `rm --recursive x` or `rm x -r` are not denied, since their
texts begin otherwise. Or it denies `pip install*`, and `pip3 -i URL install x` is not.
Mechanism: a glob is read as a program, the words of a subcommand, options and operands. It means a command
that has the same program and subcommand, all of these options and all of these operands. Short options may be
joined, in any order and place, and long ones shortened; of the usual pairs, such as `-r` and `--recursive`,
either will do. Before the subcommand there may be options, each with a value. The version at the end of a
program's name does not count.
Race window: none, texts alone are compared.
Failure: pairs that are not in the table are not known, nor are aliases, settings and scripts that do the
same. A value that looks like an option, or like a subcommand after an option, counts as that. Rules that
allow do not use this: they compare texts.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

_PATTERN = re.compile(r"[*?\[]")
_VERSION = re.compile(r"(?<=[A-Za-z])-?[0-9][0-9.]*$")
_CLUSTER = re.compile(r"-[A-Za-z]{1,6}")
_MAX_WORDS = 200
_MAX_LETTERS = 3  # more of them are one option, such as `-delete`
_SHORTEST_LONG = 3  # `rm --r`: a program takes any beginning that is unambiguous to it
_LONG_FORMS = {
    "a": ("--all",),
    "d": ("--delete",),
    "D": ("--delete",),
    "f": ("--force",),
    "g": ("--global",),
    "i": ("--in-place", "--interactive"),
    "m": ("--message",),
    "o": ("--output",),
    "p": ("--parents", "--patch"),
    "q": ("--quiet",),
    "r": ("--recursive",),
    "R": ("--recursive",),
    "u": ("--update", "--user", "--set-upstream"),
    "U": ("--upgrade",),
    "v": ("--verbose",),
    "y": ("--yes", "--assume-yes"),
}
_SAME_IN_BOTH_CASES = frozenset(("rm", "cp", "grep", "egrep", "fgrep", "zip"))
"""Programs for which `-r` and `-R` are the same."""


class _Wanted(NamedTuple):
    """What a glob asks for: a program, the words of a subcommand, options, and operands."""

    program: str
    subcommand: tuple[str, ...]
    options: tuple[str, ...]
    operands: tuple[str, ...]


def means(glob: str, command: str) -> bool:
    """Return whether a glob such as `rm -r*` means a command, the words of which are joined by blanks."""
    wanted = _parse(glob)
    words = command.split(maxsplit=_MAX_WORDS)[:_MAX_WORDS]
    if wanted is None or not words or _without_version(words[0]) != wanted.program:
        return False
    options = list(_options(words))
    operands = [word for word, _ in _operands(words)]
    return (
        _has_subcommand(words, wanted.subcommand)
        and all(_has_option(wanted.program, option, options) for option in wanted.options)
        and all(any(fnmatch.fnmatchcase(word, one) for word in operands) for one in wanted.operands)
    )


@lru_cache(maxsize=4096)
def _parse(glob: str) -> _Wanted | None:
    """Return what a glob asks for; None if its text is all that can be compared."""
    program, *rest = glob.split() or [""]
    if not rest or _PATTERN.search(program):
        return None
    first = next((position for position, word in enumerate(rest) if word.startswith("-")), len(rest))
    options = [word.rstrip("*") for word in rest if word.startswith("-")]
    if any(_PATTERN.search(option) for option in options):
        return None
    operands = [word for word in rest[first:] if not word.startswith("-")]
    return _Wanted(
        _without_version(program),
        tuple(word for word in rest[:first] if word != "*"),
        tuple(option for option in options if option.strip("-")),
        tuple(word for word in operands if word != "*"),
    )


def _without_version(program: str) -> str:
    return _VERSION.sub("", program)


def _options(words: Sequence[str]) -> Iterator[str]:
    for word in words[1:]:
        if word == "--":
            return
        if word.startswith("-"):
            yield word


def _operands(words: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield each operand, and whether it may be the value of the option before it."""
    are_options_over = False
    for before, word in pairwise(words):
        if word == "--" and not are_options_over:
            are_options_over = True
        elif are_options_over or not word.startswith("-"):
            yield word, before.startswith("-") and not are_options_over


def _has_subcommand(words: Sequence[str], subcommand: Sequence[str]) -> bool:
    """Return whether a subcommand comes first, but for options and what may be their values."""
    operands = list(_operands(words))
    for start in range(len(operands)):
        found = operands[start : start + len(subcommand)]
        if len(found) == len(subcommand) and all(
            fnmatch.fnmatchcase(word, wanted) for (word, _), wanted in zip(found, subcommand, strict=True)
        ):
            return True
        if not operands[start][1]:
            return False
    return not subcommand


def _has_option(program: str, wanted: str, options: Sequence[str]) -> bool:
    if any(option.startswith(wanted) for option in options):
        return True
    if wanted.startswith("--"):
        letters = [letter for letter, forms in _LONG_FORMS.items() if wanted in forms]
        return _has_long((wanted,), options) or any(_has_letter(program, one, options) for one in letters)
    letters = list(wanted[1:])
    return len(letters) <= _MAX_LETTERS and all(_has_letter(program, one, options) for one in letters)


def _has_letter(program: str, letter: str, options: Sequence[str]) -> bool:
    same = {letter, letter.swapcase()} if letter in "rR" and program in _SAME_IN_BOTH_CASES else {letter}
    return any(
        _CLUSTER.fullmatch(option) is not None and not same.isdisjoint(option[1:]) for option in options
    ) or _has_long(_LONG_FORMS.get(letter, ()), options)


def _has_long(forms: Sequence[str], options: Sequence[str]) -> bool:
    """Return whether one of the long options is there, perhaps shortened."""
    names = [option.partition("=")[0] for option in options if option.startswith("--")]
    return any(form.startswith(name) and len(name) >= _SHORTEST_LONG for form in forms for name in names)
