"""What is mounted for rules is found in the kernel's table, and mounted again where it is missing."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aisotools.sandbox.confinement.protected_mounts import DeniedPaths
from aisotools.sandbox.confinement.remounts import (
    NameWatch,
    RuleMounts,
    find_covered,
    parse_denied,
)
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


def test_changes_of_names_on_the_way_are_seen_and_others_are_not(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "key").touch()
    watch = NameWatch(str(tmp_path))
    paths = ("deep/er/key", "late/file")
    watch.follow(paths)
    assert not watch.find_changed()
    (tmp_path / "other").touch()
    (tmp_path / "key").touch()
    (tmp_path / "deep" / "er" / "late").touch()
    (tmp_path / "deep" / "er" / "key").write_text("written where it is")
    assert not watch.find_changed()
    changes: tuple[Callable[[], object], ...] = (
        lambda: (tmp_path / "key").replace(tmp_path / "deep" / "er" / "key"),
        (tmp_path / "deep" / "er" / "key").unlink,
        (tmp_path / "deep" / "er" / "key").touch,
        lambda: (tmp_path / "deep").rename(tmp_path / "away"),
        lambda: (tmp_path / "deep" / "er").mkdir(parents=True),
        (tmp_path / "deep" / "er" / "key").touch,
        (tmp_path / "late").mkdir,
        (tmp_path / "late" / "file").touch,
    )
    for change in changes:
        change()
        assert watch.find_changed()
        assert not watch.find_changed()
        watch.follow(paths)
    (tmp_path / "away" / "er" / "key").unlink()
    assert not watch.find_changed(), "what was moved away is watched no more"


def test_a_change_names_the_paths_that_it_is_on_the_way_to(tmp_path: Path) -> None:
    for folder in ("deep", "moved"):
        (tmp_path / folder).mkdir()
    (tmp_path / "link").symlink_to("moved")
    watch = NameWatch(str(tmp_path))
    watch.follow(["deep/one", "deep/two", "link/three", "moved/three", "four"], {"way": {"four"}})
    (tmp_path / "deep/one").touch()
    assert watch.find_changed() == {"deep/one"}
    (tmp_path / "moved/three").touch()
    assert watch.find_changed() == {"moved/three"}, "what a link leads to is denied by its own name"
    (tmp_path / "way").symlink_to("elsewhere")
    assert watch.find_changed() == {"four"}
    (tmp_path / "deep").rename(tmp_path / "gone")
    (tmp_path / "gone").rename(tmp_path / "deep")
    assert watch.find_changed() == {"deep/one", "deep/two"}


def test_more_names_than_the_kernel_keeps_count_as_a_change(tmp_path: Path) -> None:
    watch = NameWatch(str(tmp_path))
    watch.follow(["denied"])
    for number in range(int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) + 1):
        (tmp_path / f"{number % 2}").touch()
        (tmp_path / f"{number % 2}").unlink()
    assert watch.find_changed() == {"denied"}


def test_a_watch_that_the_kernel_refuses_tells_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    """Then what was replaced is found before the next call, as on a file system that tells nothing."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        watch = NameWatch(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert watch.fileno() == -1
    watch.follow(["key"])
    (tmp_path / "key").touch()
    assert not watch.find_changed()
