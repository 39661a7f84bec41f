from __future__ import annotations

import errno
from pathlib import Path

import pytest

from aisotools.sandbox.confinement import landlock, levels, syscalls
from tests.sandbox import syscall_tables


def header(arch: str) -> dict[str, int]:
    path = syscall_tables.HEADERS[arch]
    if not path.exists():
        pytest.skip(f"no kernel headers here: {path} is missing")
    return syscall_tables.calls(arch)


@pytest.mark.parametrize("arch", syscalls.NUMBERS)
def test_numbers_are_the_kernels(arch: str) -> None:
    known = header(arch)
    newest = max(known.values())
    table = syscalls.NUMBERS[arch]
    assert {name: number for name, number in table.items() if known.get(name, number) != number} == {}
    # The kernel makes these two calls itself, in numbers that it had left free.
    unknown = {n: v for n, v in table.items() if n not in known and n not in {"uprobe", "uretprobe"}}
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


def test_every_number_up_to_the_newest_has_a_name() -> None:
    """Numbers that no machine has are those that Linux left free."""
    x86_64, aarch64 = ({*table.values()} for table in syscalls.NUMBERS.values())
    newest = max(x86_64)
    assert max(aarch64) == newest
    assert set(range(newest + 1)) - x86_64 == set(range(337, 424))
    for_other_machines = set(range(244, 260)) | set(range(295, 424))
    assert set(range(newest + 1)) - aarch64 == for_other_machines


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
