"""What is mounted for rules is found in the kernel's table, and mounted again where it is missing."""

from __future__ import annotations

import os
from typing import Any

import pytest

from aisotools.sandbox.confinement.remounts import DeniedPaths, RuleMounts, find_covered, parse_denied
from tests.sandbox.alone import in_one_thread

TABLE = r"""20 1 0:30 / / ro,nosuid,nodev - tmpfs none rw,size=4096k
21 20 8:1 /ws /ws rw,nosuid,nodev - ext4 /dev/sda rw
22 21 0:41 / /ws/secrets ro,nosuid,nodev,noexec - tmpfs none rw,size=4k,nr_inodes=2,mode=000
23 21 0:42 /file /ws/a\040b ro,nosuid,nodev,noexec master:7 - tmpfs none rw,size=4k,nr_inodes=3
24 21 8:1 /ws/deep /ws/deep rw,nosuid,nodev - ext4 /dev/sda rw
25 24 8:1 /ws/deep/fixed /ws/deep/fixed ro,nosuid,nodev - ext4 /dev/sda rw
26 21 0:50 / /ws/memory rw,nosuid,nodev - tmpfs none rw,size=9000k
27 20 8:1 /wsx /wsx/secrets ro,nosuid,nodev,noexec - tmpfs none rw,size=4k
28 21 8:1 /ws/twice /ws/twice ro,nosuid,nodev - ext4 /dev/sda rw
29 28 0:43 / /ws/twice ro,nosuid,nodev,noexec - tmpfs none rw,size=4k,nr_inodes=2
"""


def test_mounts_are_read_from_the_table_and_the_last_one_counts() -> None:
    assert find_covered(TABLE, "/ws") == {
        "secrets": "hidden",
        "a b": "hidden",
        "deep": "writable",
        "deep/fixed": "read_only",
        "memory": "writable",
        "twice": "hidden",
    }


def test_a_request_of_the_host_is_parsed() -> None:
    denied = parse_denied({"unreadable": ["a"], "unwritable": ["b", "c"], "op": "mount"})
    assert denied == DeniedPaths(unreadable=("a",), unwritable=("b", "c"))
    with pytest.raises(KeyError):
        parse_denied({"unreadable": []})


def test_a_failure_is_said_and_the_paths_of_before_stay() -> None:
    """A process without namespaces of its own: nothing may be mounted in those of the host."""

    def apply() -> dict[str, Any]:
        mounts = RuleMounts(os.getppid(), "/nowhere", DeniedPaths(unreadable=("a",)))
        reason = mounts.apply(DeniedPaths(unreadable=("b",)))
        return {"reason": reason, "mounts": repr(mounts)}

    found = in_one_thread(apply)
    assert "setns" in found["reason"] or "not permitted" in found["reason"]  # root, or a plain user
    assert "unreadable=('a',)" in found["mounts"]
