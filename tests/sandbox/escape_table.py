"""What each attempt of `escape_probes`, `escape_more`, `escape_shared` is expected to end in, at each level.

An attempt that is not named in `OPEN` must be refused at every level. One that is named may succeed at the
levels given, for the reason given; at all others it must be refused. `detect.PROTECTS` tells the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tests.sandbox import escape_more, escape_probes, escape_shared

Stage = Literal["isolated", "isolated without Landlock", "confined", "guarded"]
"""A level; `guarded` is that of Landlock 1 to 5, and `isolated` may have to do without any."""

PROBES = escape_probes.PROBES
NEW = escape_more.NEW
SHARED = escape_shared.SHARED


@dataclass(frozen=True, slots=True)
class Open:
    """Why attempts may succeed, and where."""

    stages: frozenset[Stage]
    reason: str


def names(text: str) -> set[str]:
    """The names in a list that semicolons part."""
    return {" ".join(name.split()) for name in text.split(";")}


_SHARED_ROOT: frozenset[Stage] = frozenset({"confined", "guarded"})
_OWN_ROOT: frozenset[Stage] = frozenset({"isolated", "isolated without Landlock"})
_ROWS: tuple[tuple[frozenset[Stage], str, str], ...] = (
    (
        _SHARED_ROOT,
        "stat a file; ask for access; read where a link leads; statfs; host's object in shared memory",
        "Landlock governs no version of stat; names, sizes, times and texts of links are visible",
    ),
    (_SHARED_ROOT, "uname", "the host's name; only a namespace hides it"),
    (_OWN_ROOT, "uname", "the name is the sandbox's own"),
    (
        _SHARED_ROOT,
        """pidfd of another process; scheduling of another process, read; session of another process; group of
        another process; priority of another process, read""",
        "that a process exists, and how it is scheduled; every use of the handle is refused, see the others",
    ),
    (
        _SHARED_ROOT,
        "signal to everybody",
        """the kernel answers 0 though it reached nobody outside: it counts the refused as found. A worker
        does reach the parked states of itself; by ending them it loses its own undo, and nothing else""",
    ),
    (_OWN_ROOT, "signal to everybody", "everybody is whom it has started itself"),
    (
        _SHARED_ROOT | _OWN_ROOT,
        "flock a file that may be read",
        "programs need locks; it delays only who waits for one on that file",
    ),
    (
        frozenset({"guarded"}),
        """signal 0; signal 0 to its group; signal 0 to the parent; signal; signal by tkill; signal by tgkill;
        signal with a message; signal by pidfd; stop the parent""",
        "Landlock scopes signals from ABI 6 on; below, processes of the same user can be signalled",
    ),
    (
        _OWN_ROOT,
        """list /tmp; make a file in /tmp; list /dev/shm; make a file in /dev/shm; named semaphore of the
        host""",
        "folders in memory of the sandbox's own",
    ),
    (
        _OWN_ROOT,
        "udp; bind a port",
        "a network of its own, with nothing in it but its own loopback; no victim was ever reached",
    ),
    (
        _OWN_ROOT,
        """list processes; list the mount table; own environment at start; own environment at start, by
        thread; signal 0 to the parent; stop the parent; descriptors of process 1""",
        "a /proc of its own, with its own processes alone; 0, its parent there, is its own process group",
    ),
    (
        frozenset({"isolated without Landlock"}),
        """list /; socket node; socket node by one of a pair; write own oom_score_adj; own memory, written
        by file; own table of user ids,
        written; memory of process 1; maps of process 1; root of process 1; user namespace of process 1;
        environment of process 1""",
        "nothing of the host lies there, or it is its own process",
    ),
    (
        _SHARED_ROOT,
        "; ".join(
            name
            for name in PROBES
            if name.startswith("protected: ")
            and name not in {"protected: conftest.py by the alias", "protected: mode of conftest.py"}
        ),
        "Landlock only adds rights going down; the host compares after each call and puts back",
    ),
    (
        _SHARED_ROOT | _OWN_ROOT,
        "new: conftest.py; new: sitecustomize.py; new: a notebook",
        "what is not there cannot be mounted read only; the host compares after each call",
    ),
)

OPEN: Mapping[str, tuple[Open, ...]] = {
    name: tuple(Open(stages, reason) for stages, text, reason in _ROWS if name in names(text))
    for name in sorted(set().union(*(names(text) for _, text, _ in _ROWS)))
}
"""Attempts that may succeed."""


def may_succeed(name: str, stage: Stage) -> bool:
    """Whether the table lets this attempt succeed at this level."""
    return any(stage in row.stages for row in OPEN.get(name, ()))
