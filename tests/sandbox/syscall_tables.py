"""The tables of `aisotools.sandbox.confinement.syscalls`, written from the kernel's own headers.

    python -m tests.sandbox.syscall_tables

prints them, with every call of the headers; paste what is printed. The headers are those of Debian's
`linux-libc-dev`: for x86-64 `asm/unistd_64.h`, made from the kernel's
`arch/x86/entry/syscalls/syscall_64.tbl`; for ARM64 `asm-generic/unistd.h`, of which `3264` names are those of
64-bit machines. What is newer than the headers keeps the number it has, and is told on stderr.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from aisotools.sandbox.confinement import syscalls

HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
SHARED_FROM = 424
"""From here on all architectures share one numbering."""

Row = tuple[int | None, int | None]


def read(header: Path) -> dict[str, int]:
    """The numbers that a header defines, by name."""
    return {n: int(v) for n, v in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())}


def calls(arch: str) -> dict[str, int]:
    """The calls that a machine has by its header, by name."""
    numbers = read(HEADERS[arch])
    if arch == "x86_64":
        return numbers
    # The generic header also names the calls of 32-bit machines, and some by their 32-bit names.
    elsewhere = {"arch_specific_syscall", "sync_file_range2", "syscalls"}
    names = {"fstatat": "newfstatat"}
    return {
        names.get(name, name): number
        for name, number in numbers.items()
        if name not in elsewhere and (number < 295 or number >= SHARED_FROM)
    }


def derive(names: Iterable[str], headers: Mapping[str, Mapping[str, int]]) -> dict[str, Row]:
    """For each name that the headers know its numbers on x86-64 and ARM64, None where it has none."""
    one, other = headers["x86_64"], headers["aarch64"]
    return {name: (one.get(name), other.get(name)) for name in sorted(names) if name in {*one, *other}}


def ours() -> dict[str, Row]:
    """The rows that the package has."""
    one, other = syscalls.NUMBERS["x86_64"], syscalls.NUMBERS["aarch64"]
    return {name: (one.get(name), other.get(name)) for name in sorted({*one, *other})}


def written(rows: Mapping[str, Row]) -> str:
    """The rows as `aisotools/sandbox/confinement/syscalls.py` has them."""
    shared = {name: one for name, (one, other) in rows.items() if one == other and (one or 0) >= SHARED_FROM}
    lines = ["_BEFORE_424: dict[str, tuple[int | None, int | None]] = {"]
    lines += ["    # name: (x86_64, aarch64); None where the machine never had that call"]
    lines += [f'    "{name}": {row},' for name, row in sorted(rows.items()) if name not in shared]
    lines += ["}", "", "_FROM_424: dict[str, int] = {"]
    lines += [
        f'    "{name}": {number},' for name, number in sorted(shared.items(), key=lambda one: one[1] or 0)
    ]
    return "\n".join([*lines, "}", ""])


def main() -> None:
    """Print the tables."""
    headers = {arch: calls(arch) for arch in HEADERS}
    known = derive({*ours(), *headers["x86_64"], *headers["aarch64"]}, headers)
    newer = {name: row for name, row in ours().items() if name not in known}
    print(written(known | newer))
    print("not in these headers, kept as they are:", ", ".join(newer) or "none", file=sys.stderr)


if __name__ == "__main__":
    main()
