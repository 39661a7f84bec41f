from __future__ import annotations

import errno
from pathlib import Path

import pytest

from aisotools.sandbox.confinement import landlock, levels, seccomp, syscalls
from tests.sandbox import syscall_tables

OURS = {"capget", "capset", "prctl", "seccomp"} | {
    f"landlock_{action}" for action in ("create_ruleset", "add_rule", "restrict_self")
}
"""Calls that the package itself makes, beside those the filter has rules for."""


def header(arch: str) -> dict[str, int]:
    path = syscall_tables.HEADERS[arch]
    if not path.exists():
        pytest.skip(f"no kernel headers here: {path} is missing")
    return syscall_tables.read(path)


@pytest.mark.parametrize("arch", syscalls.NUMBERS)
def test_numbers_are_the_kernels(arch: str) -> None:
    known = header(arch)
    newest = max(known.values())
    table = syscalls.NUMBERS[arch]
    assert {name: number for name, number in table.items() if known.get(name, number) != number} == {}
    unknown = {name: number for name, number in table.items() if name not in known}
    assert all(number > newest for number in unknown.values()), (
        "only calls newer than the headers may be missing"
    )


def test_the_tables_are_what_is_written_from_the_headers() -> None:
    rows = syscall_tables.ours()
    known = syscall_tables.derive(rows, {arch: header(arch) for arch in syscalls.NUMBERS})
    assert len(known) > 100
    assert {name: rows[name] for name in known} == known
    source = Path(syscalls.__file__).read_text()
    assert syscall_tables.written(rows) in source, "python -m tests.sandbox.syscall_tables prints them"


@pytest.mark.parametrize("arch", syscalls.NUMBERS)
def test_no_number_means_two_calls(arch: str) -> None:
    assert len(set(syscalls.NUMBERS[arch].values())) == len(syscalls.NUMBERS[arch])


def test_numbers_from_424_on_are_equal_everywhere() -> None:
    newer = [{n: v for n, v in table.items() if v >= 424} for table in syscalls.NUMBERS.values()]
    assert newer[0] == newer[1]
    assert newer[0]


def test_tables_hold_the_names_that_are_used_and_no_others() -> None:
    used = OURS | set(seccomp.rules("confined", 1))
    assert set().union(*syscalls.NUMBERS.values()) == used


def test_every_number_of_the_headers_is_judged() -> None:
    """For x86-64; the generic header also numbers the calls of 32-bit machines."""
    judged = syscalls.JUDGED["x86_64"]
    beyond = {n for n, v in header("x86_64").items() if not any(first <= v <= last for first, last in judged)}
    assert beyond == set()


def test_call_reports_what_the_kernel_says() -> None:
    with pytest.raises(OSError, match="prctl") as refused:
        syscalls.call("prctl", 0xFFFF, 0, 0, 0, 0)
    assert refused.value.errno == errno.EINVAL


def test_call_of_a_name_without_a_number() -> None:
    with pytest.raises(OSError, match="no such system call") as refused:
        syscalls.call("no_such_call")
    assert refused.value.errno == errno.ENOSYS


def test_call_fills_buffers_and_takes_bytes() -> None:
    assert len(levels._capabilities()) == 6


def test_wide_numbers_arrive_whole() -> None:
    # the size argument is 64 bits: cut to 32 it would be 0, which is another error
    with pytest.raises(OSError, match="landlock") as refused:
        syscalls.call("landlock_create_ruleset", bytes(8), 1 << 32, 0)
    assert refused.value.errno in (
        {errno.E2BIG} if landlock.abi() else {errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
    )


def test_this_machine_has_a_table() -> None:
    assert syscalls.architecture() in syscalls.NUMBERS
