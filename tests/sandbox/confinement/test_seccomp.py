from __future__ import annotations

import errno
import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.sandbox.confinement import seccomp, syscalls
from tests.sandbox import bpf, syscall_tables

ALLOW, KILL = bpf.ALLOW, bpf.KILL
PRETEND = bpf.ERROR
EPERM = bpf.ERROR | errno.EPERM
ENOSYS = bpf.ERROR | errno.ENOSYS
EACCES = bpf.ERROR | errno.EACCES
EAGAIN = bpf.ERROR | errno.EAGAIN
ENOPROTOOPT = bpf.ERROR | errno.ENOPROTOOPT
EAFNOSUPPORT = bpf.ERROR | errno.EAFNOSUPPORT
O_CREAT, O_TMPFILE, O_TRUNC, O_RDWR = 0o100, 0o20200000, 0o1000, 2


def ask(name: str, *arguments: int, arch: str = "x86_64", level: str = "confined", abi: int = 7) -> int:
    program = seccomp.build_filter(arch, level, abi)
    number = syscalls.NUMBERS[arch][name]
    return bpf.run(program, number, *arguments, architecture=bpf.ARCHITECTURES[arch]).action


LEVELS = [("limited", 0), ("guarded", 1), ("guarded", 4), ("confined", 7), ("isolated", 0), ("reader", 7)]


def test_every_call_stands_in_one_row_with_its_reason() -> None:
    rows = [name for name, _ in seccomp.REASONS]
    assert len(rows) == len(set(rows))
    assert set(rows) == set().union(*syscalls.NUMBERS.values())
    assert all(len(reason) > 3 for _, reason in seccomp.REASONS)


@pytest.mark.parametrize(("level", "abi"), LEVELS)
def test_every_row_has_an_answer_at_each_level(level: str, abi: int) -> None:
    assert set(seccomp.rules(level, abi)) == {name for name, _ in seccomp.REASONS}


@pytest.mark.parametrize("arch", syscalls.NUMBERS)
def test_every_call_of_the_kernels_header_stands_in_a_row(arch: str) -> None:
    path = syscall_tables.HEADERS[arch]
    if not path.exists():
        pytest.skip(f"no kernel headers here: {path} is missing")
    rows = {name for name, _ in seccomp.REASONS}
    unjudged = set(syscall_tables.calls(arch)) - rows
    assert unjudged == set(), "give each a row in `seccomp`, with the reason, and a number in `syscalls`"


@pytest.mark.parametrize("arch", syscalls.NUMBERS)
@pytest.mark.parametrize(("level", "abi"), LEVELS)
def test_the_program_is_well_formed(arch: str, level: str, abi: int) -> None:
    program = seccomp.build_filter(arch, level, abi)
    length = len(program) // 8
    assert length * 8 == len(program)
    assert length <= 4096
    assert all(0 < target < length for target in bpf.endings(program))


@pytest.mark.parametrize("arch", syscalls.NUMBERS)
def test_every_number_gets_its_rule(arch: str) -> None:
    """Against the table the tree was made from, for each number there is and many there are not."""
    program = seccomp.build_filter(arch, "confined", 7)
    numbers = syscalls.NUMBERS[arch]
    rules = {numbers[n]: rule for n, rule in seccomp.rules("confined", 7).items() if n in numbers}
    header = program[: 8 * 4]
    for number in (*range(700), *range(0x40000000, 0x40000300), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF):
        rule = rules.get(number, seccomp.fail(errno.ENOSYS))
        alone = header + b"".join(struct.pack("=HBBI", *instruction) for instruction in rule)
        for arguments in ((0, 0, 0, 0), (1, 1, 1, 1), ((1 << 64) - 1,) * 4):
            expected = bpf.run(alone, number, *arguments, architecture=bpf.ARCHITECTURES[arch])
            found = bpf.run(program, number, *arguments, architecture=bpf.ARCHITECTURES[arch])
            assert found.action == expected.action, (number, arguments)


@given(
    number=st.integers(0, 0xFFFFFFFF),
    architecture=st.integers(0, 0xFFFFFFFF),
    arguments=st.lists(st.integers(0, (1 << 64) - 1), min_size=6, max_size=6),
)
def test_any_call_is_answered(number: int, architecture: int, arguments: list[int]) -> None:
    run = bpf.run(
        seccomp.build_filter("x86_64", "confined", 7), number, *arguments, architecture=architecture
    )
    assert run.action in {ALLOW, KILL} or run.action & 0xFFFF0000 == bpf.ERROR
    assert run.steps < 40


@pytest.mark.parametrize("arch", syscalls.NUMBERS)
def test_another_architecture_is_killed(arch: str) -> None:
    program = seccomp.build_filter(arch, "confined", 7)
    i386, x86_64, aarch64 = 0x40000003, *bpf.ARCHITECTURES.values()
    for other in {i386, x86_64, aarch64, 0} - {bpf.ARCHITECTURES[arch]}:
        assert bpf.run(program, 0, architecture=other).action == KILL


@pytest.mark.parametrize("number", [0x40000000, 0x40000000 + 59, 512, 521, 547, 337, 423, 472, 1000])
def test_numbers_nobody_judged_do_not_exist(number: int) -> None:
    program = seccomp.build_filter("x86_64", "confined", 7)
    assert bpf.run(program, number, architecture=bpf.ARCHITECTURES["x86_64"]).action == ENOSYS


ANSWERS: list[tuple[str, tuple[int, ...], int]] = [
    ("clone", (0x11,), ALLOW),
    ("clone", (40,), EPERM),  # a real-time signal at its end
    ("clone", (0x003D0F00 & ~0x400,), EPERM),  # a thread with open files of its own
    ("close_range", (3, 9, 0), ALLOW),
    ("close_range", (3, 9, 4), ALLOW),  # to be closed at exec
    ("close_range", (3, 9, 2), bpf.ERROR | errno.EINVAL),
    ("clone", (0x003D0F00,), ALLOW),  # a thread
    *(
        ("clone", (flag | 0x11,), EPERM)
        for flag in (1 << 17, 1 << 25, 1 << 26, 1 << 27, 1 << 28, 1 << 29, 1 << 30)
    ),
    ("clone", (0x8011,), EPERM),  # a child of the parent
    ("renameat2", (5, 0, 5, 0, 0), ALLOW),
    ("renameat2", (5, 0, 5, 0, 2), ALLOW),  # two files change places
    ("renameat2", (5, 0, 5, 0, 4), EPERM),  # leaves a device node
    ("renameat2", (5, 0, 5, 0, 5), EPERM),
    ("clone3", (), ENOSYS),
    ("openat2", (), ENOSYS),
    ("io_setup", (1,), ENOSYS),
    ("socket", (2, 1), bpf.ERROR | errno.EAFNOSUPPORT),
    ("socket", (16, 3), bpf.ERROR | errno.EOPNOTSUPP),
    ("socket", (1, 1), EPERM),
    ("socketpair", (1, 1), ALLOW),
    ("socketpair", (1, 1 | 0o2004000), ALLOW),  # close on exec, not blocking
    ("socketpair", (1, 5), ALLOW),
    ("socketpair", (1, 2), EPERM),
    ("socketpair", (1, 3), EPERM),
    ("socketpair", (16, 1), bpf.ERROR | errno.EAFNOSUPPORT),
    *((name, (), EPERM) for name in ("bind", "connect", "listen", "accept", "accept4")),
    ("prlimit64", (0, 7, 1, 1), ALLOW),
    ("prlimit64", (1, 7, 0, 1), EPERM),
    ("prlimit64", (0, 4, 0, 1), ALLOW),
    ("prlimit64", (0, 4, 1, 0), PRETEND),
    ("prlimit64", (0, 4, 1 << 32, 0), PRETEND),  # a pointer whose low half is 0
    ("setrlimit", (4, 1), PRETEND),
    ("setrlimit", (7, 1), ALLOW),
    ("sched_setaffinity", (0,), ALLOW),
    ("sched_setaffinity", (1,), PRETEND),
    ("sched_setscheduler", (0xFFFFFFFF,), PRETEND),
    ("move_pages", (0,), ALLOW),
    ("migrate_pages", (7,), PRETEND),
    ("fcntl", (3, 1), ALLOW),
    ("fcntl", (3, 4, 0x2000), ALLOW),
    ("fcntl", (3, 1030), ALLOW),  # F_DUPFD_CLOEXEC
    ("fcntl", (3, 6), ALLOW),  # a POSIX lock
    *(("fcntl", (3, command), EPERM) for command in (8, 10, 15, 1024, 1026, 1031, 1036)),
    ("setsockopt", (3, 1, 2), ALLOW),  # SO_REUSEADDR
    ("setsockopt", (3, 6, 1), ALLOW),  # TCP_NODELAY
    ("setsockopt", (3, 1, 7), PRETEND),  # SO_SNDBUF
    ("setsockopt", (3, 1, 8), PRETEND),
    ("setsockopt", (3, 1, 13), PRETEND),  # SO_LINGER
    *(("setsockopt", (3, 1, name), ENOPROTOOPT) for name in (5, 12, 25, 26, 32, 33, 36, 50, 51, 83, 99)),
    # TCP_CONGESTION, ULP, MD5SIG, REPAIR; IP_HDRINCL, ADD_MEMBERSHIP, a rule of the packet filter
    *(("setsockopt", (3, 6, name), ENOPROTOOPT) for name in (13, 31, 14, 19)),
    *(("setsockopt", (3, 0, name), ENOPROTOOPT) for name in (3, 35, 64)),
    ("setsockopt", (3, 255, 1), ENOPROTOOPT),
    ("prctl", (4, 0), PRETEND),  # not to be looked at
    ("prctl", (15, 0), ALLOW),  # a name
    ("landlock_add_rule", (3, 1, 1, 0), ALLOW),  # on a path
    *(("landlock_add_rule", (3, kind, 1, 0), bpf.ERROR | errno.EINVAL) for kind in (0, 2, 3, 1 << 31)),
    *(("clock_gettime", (clock,), ALLOW) for clock in (0, 1, 2, 3, 4, 7, 11)),
    *(("clock_gettime", (clock & 0xFFFFFFFF,), ALLOW) for clock in (-6, -7, -8, ~1234 << 3 | 6, ~1 << 3 | 4)),
    *(
        (name, (clock & 0xFFFFFFFF,), bpf.ERROR | errno.EINVAL)
        # The time of process 1 and 1234 in each of three measures, and the clock of a device.
        for name in ("clock_gettime", "clock_getres", "clock_nanosleep")
        for clock in (*(~1 << 3 | kind for kind in range(4)), *(~1234 << 3 | kind for kind in range(4)), -5)
    ),
    ("memfd_create", (), ENOSYS),
    ("vmsplice", (), EPERM),
    ("kill", (1, 9), ALLOW),
    ("kill", (1, 34), ALLOW),
    ("kill", (1, 35), EAGAIN),
    ("tkill", (1, 64), EAGAIN),
    ("tgkill", (1, 1, 64), EAGAIN),
    ("pidfd_send_signal", (3, 40), EAGAIN),
    ("rt_sigqueueinfo", (1, 9), EAGAIN),
    ("rt_tgsigqueueinfo", (1, 1, 9), EAGAIN),
    ("timer_create", (), EAGAIN),
    ("fcntl", (3, 1040), bpf.ERROR | errno.EINVAL),
    ("ioctl", (0, 0x5401), ALLOW),
    ("ioctl", (0, 0x5413), ALLOW),
    ("ioctl", (0, 0x541B), ALLOW),
    *(
        ("ioctl", (3, command), bpf.ERROR | errno.ENOTTY)
        # TIOCSTI, TIOCLINUX, SETFLAGS (both), SETVERSION, FSSETXATTR, ENABLE_VERITY, encryption, SCSI, btrfs
        for command in (
            *(0x5412, 0x541C, 0x40086602, 0x40046602, 0x40087602, 0x401C5820, 0x40806685, 0x800C6613),
            *(0x2285, 0x50009401, 0x8901, 0xFF04, 0xC040FF0B, 0xB701),
        )
    ),
    ("open", (0, 0, 0o7777), ALLOW),  # nothing is created, so the mode means nothing
    ("open", (0, O_CREAT | 1, 0o777), ALLOW),
    ("open", (0, O_CREAT | 1, 0o4755), EPERM),
    ("openat", (0, 0, O_CREAT, 0o644), ALLOW),
    ("openat", (0, 0, O_CREAT, 0o1644), ALLOW),  # sticky
    ("openat", (0, 0, O_CREAT, 0o2644), EPERM),
    ("openat", (0, 0, O_TMPFILE | 1, 0o4755), EPERM),
    ("creat", (0, 0o4755), EPERM),
    ("creat", (0, 0o644), ALLOW),
    ("mknod", (0, 0o104755), EPERM),
    ("mknodat", (0, 0, 0o104755), EPERM),
    ("mknodat", (0, 0, 0o10644), ALLOW),  # a FIFO
    *(
        (name, (), PRETEND)
        for name in ("chmod", "fchmod", "fchmodat2", "fchown", "fsetxattr", "fremovexattr")
    ),
    ("utimensat", (0, 1, 1, 0), PRETEND),
    ("utimensat", (3, 0, 0, 0), PRETEND),  # now, by descriptor
    ("utimensat", (0, 1, 0, 0), EPERM),  # now, by path
    ("utimensat", (0, 1 << 32, 0, 0), EPERM),
    ("futimesat", (0, 1, 0), EPERM),
    ("utime", (1, 0), EPERM),
    ("utimes", (1, 1), PRETEND),
    *(
        (name, (), bpf.ERROR | errno.EOPNOTSUPP)
        for name in ("getxattr", "flistxattr", "file_getattr", "file_setattr")
    ),
    ("truncate", (), ALLOW),  # Landlock decides
    ("openat", (0, 0, O_TRUNC, 0), ALLOW),
]


@pytest.mark.parametrize("arch", syscalls.NUMBERS)
def test_answer(arch: str) -> None:
    asked = [answer for answer in ANSWERS if answer[0] in syscalls.NUMBERS[arch]]
    assert len(asked) > 100, "most calls are there on each machine"
    wrong = [answer for answer in asked if ask(answer[0], *answer[1], arch=arch) != answer[2]]
    assert wrong == []


@pytest.mark.parametrize("arch", syscalls.NUMBERS)
@pytest.mark.parametrize(("level", "abi"), [row for row in LEVELS if row[0] != "isolated"])
def test_network_sockets_are_refused_at_each_level_on_either_machine(arch: str, level: str, abi: int) -> None:
    """Of every family, and by calls that take no address; pairs that nobody else can reach are allowed."""
    for family in range(50):
        for kind in (1, 2, 3, 5):
            for flags in (0, 0o2004000):
                asked = [ask("socket", family, kind | flags, 0, arch=arch, level=level, abi=abi)]
                if (family, kind) not in {(1, 1), (1, 5)}:
                    asked.append(ask("socketpair", family, kind | flags, 0, arch=arch, level=level, abi=abi))
                assert ALLOW not in asked, (family, kind, flags)
    assert ask("socketpair", 1, 1, 0, arch=arch, level=level, abi=abi) == ALLOW, "the control"
    for name in ("io_uring_setup", "io_uring_enter", "io_uring_register", "bind", "listen", "accept4"):
        assert ask(name, arch=arch, level=level, abi=abi) != ALLOW, name


@pytest.mark.parametrize("name", ["clone", "socket", "prlimit64", "fcntl", "ioctl", "sched_setaffinity"])
def test_the_upper_half_of_an_int_changes_nothing(name: str) -> None:
    """The kernel reads 32 bits of these; a filter that compared 64 would be passed by a dirty upper half."""
    for arguments in ((0, 1), (1, 1), (1, 1024), (1 << 28, 0x5401)):
        dirty = [argument | 0xDEAD << 32 for argument in arguments]
        assert ask(name, *dirty) == ask(name, *arguments)


@pytest.mark.parametrize(
    ("flags", "action"),
    [(O_TRUNC, EACCES), (3 | O_TRUNC, EACCES), (1 | O_TRUNC, ALLOW), (O_RDWR | O_TRUNC, ALLOW), (0, ALLOW)],
)
def test_below_abi_3_reading_cannot_truncate(flags: int, action: int) -> None:
    for abi in (1, 2):
        assert ask("openat", 0, 0, flags, 0, level="guarded", abi=abi) == action
        assert ask("open", 0, flags, 0, level="guarded", abi=abi) == action
        assert ask("truncate", level="guarded", abi=abi) == EACCES
    assert ask("openat", 0, 0, 1 | O_TRUNC | O_CREAT, 0o4755, level="guarded", abi=1) == EPERM
    assert ask("openat", 0, 0, flags, 0, level="guarded", abi=3) == ALLOW
    assert ask("openat", 0, 0, flags, 0, level="limited", abi=0) == ALLOW


def test_isolated_may_change_mode_and_times_but_not_to_set_id() -> None:
    for name, at in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)):
        before = [0] * at
        assert ask(name, *before, 0o755, level="isolated") == ALLOW
        for bits in (0o4755, 0o2755, 0o6000):
            assert ask(name, *before, bits, level="isolated") == EPERM
    for name in ("utime", "utimes", "futimesat", "utimensat"):
        assert ask(name, 1, 2, 3, level="isolated") == ALLOW
    for name in ("chown", "fsetxattr", "setxattr"):
        assert ask(name, level="isolated") == PRETEND
    for name in ("unshare", "setns", "mount", "open_tree", "move_mount", "pivot_root", "umount2"):
        assert ask(name, level="isolated") == EPERM


def test_a_reader_is_refused_what_a_worker_is_only_told_to_have_done() -> None:
    for name in ("chmod", "fchmodat2", "chown", "setxattrat", "fremovexattr", "utimensat", "file_setattr"):
        assert ask(name, 1, 1, 1, level="reader") == EPERM
    for command in (0x40086602, 0x40046602, 0x40087602, 0x40047602, 0x401C5820):
        assert ask("ioctl", 3, command, level="reader") == EPERM
    assert ask("ioctl", 3, 0x5401, level="reader") == ALLOW
    # All else is as in a worker of level `confined`.
    same = {"prctl": (4, 0), "sched_setaffinity": (1,), "socket": (2, 1), "connect": (), "read": ()}
    for name, arguments in same.items():
        assert ask(name, *arguments, level="reader") == ask(name, *arguments)


@pytest.mark.parametrize(
    ("family", "kind", "protocol", "action"),
    [
        (2, 1, 0, ALLOW),
        (10, 1 | 0o2004000, 6, ALLOW),
        (2, 2, 17, ALLOW),
        (10, 2, 0, ALLOW),
        # raw, ping, another protocol of streams and datagrams, another type
        *((2, 3, protocol, EPERM) for protocol in (0, 1, 17, 255)),
        (2, 2, 1, EPERM),
        (10, 2, 58, EPERM),
        *((2, 1, protocol, EPERM) for protocol in (17, 132, 262)),
        *((2, 2, protocol, EPERM) for protocol in (6, 115, 136)),
        *((2, kind, 0, EPERM) for kind in (4, 5, 6, 10, 0)),
        (1, 1, 0, EPERM),
        *((family, 2, 0, EAFNOSUPPORT) for family in (0, 17, 38, 40, 44)),
        (16, 3, 0, bpf.ERROR | errno.EOPNOTSUPP),
    ],
)
def test_sockets_with_a_network_of_its_own(family: int, kind: int, protocol: int, action: int) -> None:
    assert ask("socket", family, kind, protocol, level="isolated") == action
    dirty = [argument | 0xDEAD << 32 for argument in (family, kind, protocol)]
    assert ask("socket", *dirty, level="isolated") == action
    for level in ("limited", "guarded", "confined"):
        assert ask("socket", family, kind, protocol, level=level) != ALLOW


def test_calls_that_only_level_isolated_allows() -> None:
    for name in ("bind", "connect", "listen", "accept", "accept4"):
        assert ask(name, level="isolated") == ALLOW
    for name, arguments in (("kill", (1, 64)), ("timer_create", ()), ("rt_sigqueueinfo", (1, 9))):
        assert ask(name, *arguments, level="isolated") == EAGAIN, "what is queued counts outside too"
    assert ask("clone", 64, level="isolated") == EPERM


def test_levels_and_machines_without_a_filter() -> None:
    with pytest.raises(ValueError, match=r"no filter for level 'none'.*guarded, confined, isolated, reader"):
        seccomp.build_filter("x86_64", "none", 7)
    with pytest.raises(ValueError, match="no system call table for 'riscv64'"):
        seccomp.build_filter("riscv64", "confined", 7)


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_far_jumps(step: int) -> None:
    """More rules than a conditional jump can cross."""
    numbers = syscalls.NUMBERS["x86_64"]
    deep = {  # each another one, or neighbours would share theirs
        name: seccomp.if_equal(0, (*range(200), 1000 + number), seccomp.REFUSE, seccomp.ALLOW)
        for name, number in numbers.items()
    }
    program = seccomp.compile_rules("x86_64", deep)
    run: Any = lambda number, argument: bpf.run(program, number, argument, architecture=0xC000003E).action  # noqa: E731 - a short name for this test
    ordered = sorted(numbers.values())
    for number in {*ordered[:10], *ordered[10:-10:step], *ordered[-10:]}:
        assert [run(number, argument) for argument in (0, 199, 200)] == [EPERM, EPERM, ALLOW]
    assert len(program) // 8 > 10_000
