"""Every attempt of `escape_probes`, confined: as root, as an ordinary user, and as on Binder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aisotools.sandbox import confine, landlock
from tests.sandbox import escape_probes, inside
from tests.sandbox.inside import Who
from tests.sandbox.victims import Victims

SOURCE = Path(escape_probes.__file__).read_text("utf-8") + "\nanswer = run_probes(config)\n"

ACCEPTED = {
    "stat a file": "Landlock governs no version of stat; names, sizes and times are visible",
    "ask for access": "the same knowledge as stat",
    "read where a link leads": "the same: the text of a link is part of its name",
    "statfs": "the same, about the file system",
    "uname": "the host's name; only a namespace hides it",
    "pidfd of another process": "existence of a process; every use of the handle is refused, see the others",
    "scheduling of another process, read": "existence again, and where it may run",
    "flock a file that may be read": "programs need locks; it delays only who waits for one on that file",
}
"""What may be open at level `confined`, and why; `detect.PROTECTS` tells the user."""

TAKES_ROOT = """
    read /etc/shadow; list /root; private TLS keys; poison the packages; poison the package itself; write
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


def names(text: str) -> set[str]:
    return {" ".join(name.split()) for name in text.split(";")}


def attack(who: Who, level: str | None, victims: Victims) -> dict[str, str]:
    done = inside.run(
        SOURCE,
        who=who,
        workspace=victims.workspace,
        readable=(victims.shown,),
        scratch=str(victims.facts["scratch"]),
        level=level,
        config=victims.config(),
    )
    results: dict[str, str] = done.answer
    assert set(results) == set(escape_probes.PROBES)
    return results


def still_open(results: dict[str, str]) -> dict[str, str]:
    """Attempts that succeeded, and those that failed in a way no confinement fails."""
    blocked = re.compile(r"blocked (E[A-Z0-9]+|no effect|status -?\d+)")
    return {name: result for name, result in results.items() if not blocked.fullmatch(result)}


@pytest.mark.skipif(
    landlock.abi() < confine.LANDLOCK_NEEDED["confined"],
    reason="this kernel cannot confine: Landlock is too old",
)
@pytest.mark.parametrize("who", ["root", "plain", "binder"])
def test_nothing_gets_out(who: Who) -> None:
    with Victims(uid=inside.user_of(who)) as victims:
        before = victims.state()
        results = attack(who, "confined", victims)
        assert set(still_open(results)) == set(ACCEPTED), still_open(results)
        assert victims.state() == before
        assert before["visits"] == []


@pytest.mark.parametrize("who", ["root", "plain", "binder"])
def test_limited_has_no_network(who: Who) -> None:
    with Victims(uid=inside.user_of(who)) as victims:
        results = attack(who, "limited", victims)
        assert names(NETWORK) & set(still_open(results)) == set()
        visits: Any = victims.state()["visits"]
        assert {visit for visit in visits if not visit.startswith("signal")} == set()


def test_the_attempts_succeed_where_nothing_confines() -> None:
    """A test that cannot fail proves nothing. As an ordinary user, so that nothing else comes to harm."""
    unproven = names(TAKES_ROOT) | names(NEVER_WORKS) | names(DEPENDS_ON_THE_MACHINE)
    assert unproven - set(escape_probes.PROBES) == set(), "names of attempts that are gone"
    with Victims(uid=inside.user_of("plain")) as victims:
        before = victims.state()
        results = attack("plain", None, victims)
        failed = {name: result for name, result in results.items() if not result.startswith("OPEN")}
        assert set(failed) - unproven == set(), failed
        after = victims.state()
        changed = {fact for fact in before if before[fact] != after[fact]}
        assert changed >= {"files", "visits", "shared", "niceness", "limits"}
        assert {"tcp", "udp", "abstract", "stream", "dgram", "signal 10"} <= set(after["visits"])
    assert len(results) - len(failed) > 150
