"""Every attempt of `escape_table`, at every level, as root, as an ordinary user, and as on Binder."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aisotools.sandbox.confinement import landlock
from tests.sandbox import escape_more, escape_shared, inside
from tests.sandbox.conftest import Places
from tests.sandbox.escape_table import NEW, OPEN, PROBES, SHARED, Stage, may_succeed, names
from tests.sandbox.inside import Who
from tests.sandbox.victims import Victims

SOURCE = f"{escape_more.source_of_all()}\n{escape_shared.source()}\nanswer = run_probes(config)\n"

TAKES_ROOT = """
    read /etc/shadow; list /root; private TLS keys; write
    /proc/sys; write /proc/sysrq-trigger; device node, block; device node, character; environment of the
    parent; environment of process 1; signal 0 to the parent; advise by pidfd; raw socket; packet socket;
    mount; network namespace; mount namespace; join a namespace; join namespaces by pidfd; pivot root;
    chroot; new file system; process accounting; swap; load a module; new kernel; restart; ports; set the
    host's name; hang up the terminal; capabilities; real-time scheduling; become another user; FITRIM;
    setuid program
"""
NEVER_WORKS = """
    ftruncate a readable descriptor; punch a hole through a readable descriptor; map a readable descriptor
    to write; unmount; set the clock; release memory by pidfd; unix packet from a pair; remove a file that
    may be read; secrets in the environment; descriptors of files and folders
"""
DEPENDS_ON_THE_MACHINE = """
    block device; /dev/mem; /dev/kmsg; /dev/tty; list /dev/pts; new pseudo-terminal; kernel memory; kernel
    symbols; list /sys/fs/cgroup; list mounts by system call; describe a mount by system call; list
    namespaces; chmod by fchmodat2; change the mode of a path descriptor; set an attribute; remove an
    attribute; read an attribute; list attributes; read an attribute by descriptor; fsetxattr;
    fremovexattr; read flags by path; set flags by path; old utime; old utimes; old futimesat; setuid
    file, by open; setuid file, by creat; setuid file, nameless; make a nameless file in a home folder;
    FS_IOC_SETFLAGS; FS_IOC32_SETFLAGS; FS_IOC_SETVERSION; FS_IOC_FSSETXATTR; FS_IOC_ENABLE_VERITY;
    encryption policy; delegation of a file that may be read; write hint of a file that may be read;
    fanotify; read by a file handle; swap a file in; memory of another process, by file; read memory;
    write memory; trace; take a descriptor; compare; core sharing; performance counters; performance
    counters of another process; network namespace by pidfd; facts by pidfd; pages of another process;
    disk priority; ping socket; kernel crypto; netlink; vsock; tcp over ipv6; user namespace; user and
    mount namespace; user namespace by clone; user namespace by clone3; copy of a mount; quota; io_uring;
    bpf; keyring; add a key; page faults; secret memory; kernel log; personality; segments; list security
    modules; x32 door; x32 door without its bit; 32-bit door; clock, read by the call that sets; read by
    openat2 in another root; run a program outside by descriptor; map a program outside by the dynamic
    linker; processors of another process; core dumps; signal 0 to its group; trace oneself; oom score of
    another process; setuid file, by openat2; niceness of another process; scheduling of another process
"""
NETWORK = """
    tcp; tcp over ipv6; udp; bind a port; raw socket; ping socket; packet socket; netlink; kernel crypto;
    vsock; unix socket; unix socket by abstract name; unix socket by path; unix datagram; unix datagram
    from a pair; unix packet from a pair; unix server
"""

NEW_TAKE_ROOT = """
    memory of process 1; maps of process 1; descriptors of process 1; root of process 1; user namespace
    of process 1; memory of the parent, by file; become root; become root, all ids; join another group;
    another group; ambient capability; processor time of everybody's children; stop the parent; helper
    for modules; name of the host, by file; caches of the machine; sleep of the machine; processors,
    switched; helper for devices; process namespace; control group namespace; system v namespace; name
    namespace; time namespace; configure a mount; finish a mount; new proc; pick a mount; move a mount;
    attributes of a mount; idmapped mount; bind mount; remount to write; detach the root; copy of a
    mount with attributes; root outside, entered; join the namespaces of process 1; list queues; secure
    bits; niceness below zero; forged credentials; alarm of the machine; clock that wakes the machine; key
    management; express data path; can bus; parent of the user namespace; console in memory
"""
NEW_NEVER_WORK = """
    copy into a readable descriptor; splice into a readable descriptor; clone into a readable
    descriptor; new privileges, again; group of another process, changed; timer that signals another
    process; higher hard limit; asynchronous requests to a file outside; register files for io_uring;
    huge pages; writable and executable memory of a file that may be read; protected: conftest.py by the
    alias; type into a terminal; take a terminal; listen on one of a pair; abstract datagram; number of
    user namespaces; handler of unknown programs; control groups, entered; advise on memory of the
    parent; wait for another process; wait by pidfd
"""
NEW_DEPEND_ON_THE_MACHINE = """
    modules of the kernel; device kvm; device loop-control; device uinput; device console; device
    userfaultfd; device mapper/control; device vhost-net; device vhost-vsock; device port; device rtc0;
    device vcs; device input/event0; device dri/card0; device snd/control; device hwrng; device vda1;
    device sda; device nvidia0; device btrfs-control; device log; user faults by device; race of a
    symlink against an open; race of a rename against ..; lock more
    memory than allowed; bluetooth; datagrams of a tipc cluster; remote procedure sockets; copy of the
    mount of a home folder
"""

SHARED_TAKE_ROOT = """
    raw socket over ipv6; raw socket of udp; raw socket of everything; packet socket without its header
"""
SHARED_NEVER_WORK = """
    more open files than the limit; more queued signals than the limit; more memory than the limit;
    unix socket by path, from a pair without peer; unix socket in a folder that may be read, from a pair;
    abstract name, taken by one of a pair
"""
SHARED_DEPEND_ON_THE_MACHINE = """
    tcp by sending; tcp to the loopback as a mapped address; route out; route out over ipv6; route to
    everybody; route to a group; route to a group over ipv6; route out past the table; ping socket over
    ipv6; multipath tcp by a protocol number; stream control by a protocol number; datagram congestion;
    light datagrams; tunnel; netlink, generic; netlink, sockets of the machine; netlink, packet filter;
    keys of a user, a new one; keyring of a session; queue of messages in a file system; descriptors in
    flight, as many as the user may have; large pipe
"""


def attack(who: Who, level: str | None, victims: Victims, landlock_abi: int | None = None) -> dict[str, str]:
    done = inside.run(
        SOURCE,
        who=who,
        workspace=victims.workspace,
        readable=(victims.shown,),
        scratch=str(victims.facts["scratch"]),
        level=level,
        config=victims.config(),
        landlock_abi=landlock_abi,
        python=victims.python,
    )
    results: dict[str, str] = done.answer
    assert set(results) == set(PROBES)
    return results


def still_open(results: dict[str, str]) -> dict[str, str]:
    """Attempts that succeeded, and those that failed in a way no confinement fails."""
    blocked = re.compile(r"blocked (E[A-Z0-9]+|no effect|status -?\d+)")
    return {name: result for name, result in results.items() if not blocked.fullmatch(result)}


def unexpected(results: dict[str, str], stage: Stage) -> dict[str, str]:
    """What the table does not allow."""
    found = still_open(results)
    return {
        name: result
        for name, result in found.items()
        if not (result.startswith("OPEN") and may_succeed(name, stage))
    }


# ---------------------------------------------------------------- the table


def test_the_table_is_about_attempts_that_exist() -> None:
    assert set(OPEN) - set(PROBES) == set()
    assert all(row.reason for rows in OPEN.values() for row in rows)


def test_there_are_many_attempts() -> None:
    assert len(NEW) >= 180
    assert len(SHARED) >= 50
    assert len(PROBES) - len(NEW) - len(SHARED) >= 250


def test_only_what_is_visible_is_open_at_the_stronger_levels() -> None:
    """The strongest level opens nothing of the host's; what is open there is the sandbox's own, or new."""
    count = {stage: sum(may_succeed(name, stage) for name in PROBES) for stage in ("isolated", "confined")}
    assert count["isolated"] <= 20
    assert count["confined"] <= 40


# ---------------------------------------------------------------- every level, every user

slow = pytest.mark.slow
MATRIX = [
    pytest.param("root", "isolated", None),
    pytest.param("plain", "isolated", None),
    pytest.param("root", "isolated", 0, marks=slow),
    pytest.param("plain", "isolated", 0),
    pytest.param("plain", "isolated", 2, marks=slow),
    pytest.param("root", "confined", None),
    pytest.param("plain", "confined", None, marks=slow),
    pytest.param("binder", "confined", None),
    *(
        pytest.param(who, "guarded", abi, marks=() if (who, abi) in {("plain", 1), ("binder", 4)} else slow)
        for who in ("root", "plain", "binder")
        for abi in (1, 2, 4, 5)
    ),
]


def stage_of(level: str, abi: int | None) -> Stage:
    if level == "isolated":
        return "isolated" if abi != 0 and landlock.abi() else "isolated without Landlock"
    return "confined" if level == "confined" else "guarded"


@pytest.mark.sample(6)  # one of each stage is among them
@pytest.mark.parametrize(("who", "level", "abi"), MATRIX)
def test_nothing_gets_out(who: Who, level: str, abi: int | None) -> None:
    needed = {"confined": 6, "guarded": abi, "isolated": abi}[level] or 0
    if landlock.abi() < needed:
        pytest.skip(f"this kernel has no Landlock ABI {needed}")
    stage = stage_of(level, abi)
    with Victims(uid=inside.user_of(who)) as victims:
        before = victims.state()
        results = attack(who, level, victims, abi)
        assert unexpected(results, stage) == {}
        after = victims.state()
        if stage == "guarded":  # signals arrive, and nothing else
            assert {visit.split()[0] for visit in after["visits"]} <= {"signal"}
            before["visits"] = after["visits"]
        assert after == before


def test_binder_cannot_isolate_and_says_why(place: Places) -> None:
    with pytest.raises(AssertionError, match="Namespaces of its own could not be made"):
        inside.run("answer = 1", who="binder", workspace=str(place("binder")), level="isolated")


@pytest.mark.parametrize("who", ["root", "plain", "binder"])
def test_limited_has_no_network(who: Who) -> None:
    with Victims(uid=inside.user_of(who)) as victims:
        results = attack(who, "limited", victims)
        assert names(NETWORK) & set(still_open(results)) == set()
        visits: Any = victims.state()["visits"]
        assert {visit for visit in visits if not visit.startswith("signal")} == set()


def open_as_root(path: Path) -> str:
    """Open a device as we are, and close it; an empty text, or the name of the error."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return ""


def why_untried(
    name: str, result: str, opened: Callable[[Path], str], *, root: bool, closed: bool = False
) -> str:
    """Why an attempt on a device could not succeed on this machine even without a sandbox, or an empty text.

    Args:
        name: The attempt.
        result: How it ended for an ordinary user whom nothing confines.
        opened: Opens a device as this process; the name of the error, or an empty text.
        root: Whether this process is root, and may open what others may not.
        closed: Whether its mode gives nobody but its owner and group any access.
    """
    if not name.startswith("device "):
        return ""
    device = Path("/dev", name.removeprefix("device "))
    error = opened(device)
    if error in {"ENOENT", "ENOTDIR"}:
        return f"{device} does not exist on this machine"
    if error in {"ENXIO", "ENODEV"}:
        return f"{device} is a node without a device on this machine ({error})"
    # The node is closed to everybody but root. As root it opens, so the attempt itself is proven.
    if result == "blocked EACCES" and root and not error:
        return f"{device} is root's alone on this machine; tried as root, it opens"
    if result == "blocked EACCES" and not root and error == "EACCES" and closed:
        return f"{device} is root's alone on this machine; only the suite of root can try it"
    return ""


def is_closed(device: Path) -> bool:
    """Whether the mode of a device gives nobody but its owner and group any access."""
    try:
        return device.stat().st_mode & 0o007 == 0
    except OSError:
        return False


@pytest.mark.parametrize(
    ("name", "result", "error", "root", "reason"),
    [
        ("device fuse", "blocked ENOENT", "ENOENT", True, "/dev/fuse does not exist on this machine"),
        ("device net/tun", "blocked ENOENT", "ENOTDIR", False, "/dev/net/tun does not exist on this machine"),
        ("device fuse", "blocked ENXIO", "ENXIO", True, "a node without a device"),
        ("device fuse", "blocked EACCES", "", True, "tried as root, it opens"),
        # It can be tried here, so its failure must stay one.
        ("device fuse", "blocked EACCES", "EACCES", True, ""),
        ("device fuse", "blocked EACCES", "EACCES", False, ""),
        ("device fuse", "blocked EPERM", "", True, ""),
        ("device fuse", "broken OSError", "", True, ""),
        ("tcp", "blocked ENOENT", "ENOENT", True, ""),
    ],
)
def test_only_what_a_machine_does_not_have_goes_untried(
    name: str, result: str, error: str, root: bool, reason: str
) -> None:
    found = why_untried(name, result, lambda _: error, root=root)
    assert reason in found
    assert bool(found) is bool(reason)


def test_a_device_of_root_alone_goes_untried_by_others() -> None:
    found = why_untried("device fuse", "blocked EACCES", lambda _: "EACCES", root=False, closed=True)
    assert "only the suite of root can try it" in found
    assert not why_untried("device fuse", "blocked EPERM", lambda _: "EACCES", root=False, closed=True)
    assert not why_untried("device fuse", "blocked EACCES", lambda _: "EACCES", root=True, closed=True)


def test_the_attempts_succeed_where_nothing_confines() -> None:
    """A test that cannot fail proves nothing. As an ordinary user, so that nothing else comes to harm."""
    unproven = names(TAKES_ROOT) | names(NEVER_WORKS) | names(DEPENDS_ON_THE_MACHINE)
    unproven |= names(NEW_TAKE_ROOT) | names(NEW_NEVER_WORK) | names(NEW_DEPEND_ON_THE_MACHINE)
    unproven |= names(SHARED_TAKE_ROOT) | names(SHARED_NEVER_WORK) | names(SHARED_DEPEND_ON_THE_MACHINE)
    assert unproven - set(PROBES) == set(), "names of attempts that are gone"
    for _ in range(3):  # a race is won by chance, and not each time on a busy machine
        with Victims(uid=inside.user_of("plain")) as victims:
            before = victims.state()
            results = attack("plain", None, victims)
            after = victims.state()
        failed = {name: result for name, result in results.items() if not result.startswith("OPEN")}
        root = os.getuid() == 0
        untried = {
            name: why_untried(
                name,
                failed[name],
                open_as_root,
                root=root,
                closed=is_closed(Path("/dev", name.removeprefix("device "))),
            )
            for name in set(failed) - unproven
        }
        without_reason = {name: failed[name] for name, reason in untried.items() if not reason}
        if not any(name.startswith("race") for name in without_reason):
            break
    for name, reason in sorted(untried.items()):
        print(f"not tried as an ordinary user: {name}: {reason}")
    assert without_reason == {}
    changed = {fact for fact in before if before[fact] != after[fact]}
    assert changed >= {"files", "visits", "shared", "niceness", "limits"}
    assert {"tcp", "udp", "abstract", "stream", "dgram", "signal 10"} <= set(after["visits"])
    assert len(results) - len(failed) > 250
