"""All programs that are known, by name."""

from __future__ import annotations

import re
from functools import cache

from aisotools import (
    shell_builtins,
    shell_changers,
    shell_find,
    shell_git,
    shell_network,
    shell_readers,
    shell_scripts,
    shell_services,
    shell_system,
    shell_wrappers,
)
from aisotools.shell_options import Row

ROWS: tuple[Row, ...] = (
    *shell_readers.ROWS,
    *shell_system.ROWS,
    *shell_changers.ROWS,
    *shell_network.ROWS,
    *shell_git.ROWS,
    *shell_services.ROWS,
    *shell_scripts.ROWS,
    *shell_find.ROWS,
    *shell_wrappers.ROWS,
    *shell_builtins.ROWS,
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
