"""Which patches `patch`, `git apply` and `git am` apply: what they change stands in these alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from aisotools.core.types import PatchFile
from aisotools.policy.shell.expansion import Word
from aisotools.policy.shell.folders import START, join
from aisotools.policy.shell.options import (
    ParsedCommand,
    Words,
    parse_options,
)
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
)

_GIT = (
    "-RNzqvkbcusi3 -p: -C: -S? --index --cached --3way --reject --apply --check --stat --numstat --summary "
    "--reverse --recount --unidiff-zero --verbose --quiet --whitespace: --directory: --include: --exclude: "
    "--signoff --keep-cr --patch-format: --ignore-whitespace --allow-empty --build-fake-ancestor:"
)
_MAX_COUNT_CHARS = 4
_STANDARD_INPUT = "-"


def patches_of_patch(parsed: ParsedCommand) -> CommandVerdict:
    """Return the patch that `patch` applies to the files that it names, if the command names none instead."""
    if parsed.operands or parsed.has("--dry-run", "-o", "--output"):
        return NO_EFFECT
    folder, file = parsed.value("-d", "--directory"), parsed.value("-i", "--input")
    place = START if folder is None else folder.path
    path = _STANDARD_INPUT if file is None or file.text == "-" else join(place, file.path)
    return CommandVerdict(
        patches=(PatchFile(path, place, strip=_count(parsed.value("-p", "--strip"))),),
    )


def patches_of_git(words: Words) -> CommandVerdict:
    """Return the patches that `git apply` or `git am` applies.

    Args:
        words: The subcommand and its arguments.
    """
    parsed = parse_options(words, _GIT)
    strip, folder = _count(parsed.value("-p")), parsed.value("--directory")
    place = START if folder is None else folder.path
    paths = [word.path for word in parsed.operands] or [_STANDARD_INPUT]
    return CommandVerdict(
        patches=tuple(PatchFile(path, place, strip=1 if strip is None else strip) for path in paths)
    )


def patches_in(patches: Iterable[PatchFile], folder: str) -> Iterator[PatchFile]:
    """Yield patches that are meant in a folder, as they are meant where that is meant."""
    for one in patches:
        path = one.path if one.path == _STANDARD_INPUT else join(folder, one.path)
        yield dataclasses.replace(one, path=path, folder=join(folder, one.folder).removesuffix("/."))


def _count(value: Word | None) -> int | None:
    """Return the number in `-p1`; None without one."""
    text = value.text if value is not None else None
    if text is None or not (text.isascii() and text.isdecimal()) or len(text) >= _MAX_COUNT_CHARS:
        return None
    return int(text)
