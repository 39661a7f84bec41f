"""All programs that are known, by name."""

from __future__ import annotations

import re
from functools import cache

from aisotools.policy.shell.commands import builtins, coreutils, git, mutating, network, scripting, wrappers
from aisotools.policy.shell.options import Row

ROWS: tuple[Row, ...] = (
    *coreutils.ROWS,
    *coreutils.SYSTEM_ROWS,
    *mutating.ROWS,
    *network.ROWS,
    *git.ROWS,
    *network.SERVICE_ROWS,
    *scripting.ROWS,
    *wrappers.FIND_ROWS,
    *wrappers.ROWS,
    *builtins.ROWS,
)
"""The whole table."""

_FOLDERS = frozenset(("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"))
_VERSIONED = re.compile(
    r"(python|pypy|pip|ruby|perl|php|lua|node|gcc|g\+\+|clang|clang\+\+|java)-?[0-9][0-9.]*"
)
_MKFS = re.compile(r"mkfs\.\w+")


@cache
def _by_name() -> dict[str, Row]:
    return {name: row for row in ROWS for name in row.names.split()}


def name_of(program: str) -> str:
    """The name of a program as the table knows it; empty for one that lies elsewhere than programs do."""
    folder, slash, name = program.rpartition("/")
    if slash and folder not in _FOLDERS:
        return ""
    if found := _VERSIONED.fullmatch(name):
        return found[1]
    return "mkfs" if _MKFS.fullmatch(name) else name


def row_of(program: str) -> Row | None:
    """What is known of a program, given by name or by its whole path."""
    return _by_name().get(name_of(program))
