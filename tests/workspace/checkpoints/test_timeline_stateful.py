"""Random work on a tree, undone and redone along random paths: it is byte for byte what it was.

Work goes through links, too. The one that leads out of the workspace leads to a file of the test's own.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aisotools.workspace.checkpoints.timeline import Checkpoints

pytestmark = pytest.mark.timeout(900)  # 750 steps, each of which may wait for a script, on a busy machine

NAMES = st.sampled_from(["a", "b", "c d", "ü", "x\udcff", "-n", "sub/a", "sub/deep/b", "sub", "other/e"])
CONTENTS = st.binary(max_size=40) | st.sampled_from([b"", b"same", b"line\n" * 50])
SCRIPTS = st.sampled_from(
    [
        "rm -rf -- sub",
        "mkdir -p new/empty && echo hi > new/f",
        'ln -sf "$OUTSIDE" link; ln -s nowhere other-link',
        "mv a b; mv sub renamed",
        "chmod 755 a; chmod 700 sub",
        "printf x >> a; printf y >> sub/a",
        "cp -r . copy 2>/dev/null; rm -rf copy/copy",
        "mkfifo pipe; ln a hard",
        "touch a; true",
        "touch -d '2001-02-03 04:05:06.789' a sub; ln sub/a sub/deep/hard",
        "ln -f a b; chmod 1777 sub; chmod 640 hard",
        "touch sub/.new; rm sub/.new",
        "rm a; cp b a; cp -a sub kept",
        "rm -f -- a; mkdir a; echo in > a/b",
    ]
)


@dataclass(frozen=True)
class Entry:
    """Whatever a file, folder, link or FIFO is, as far as undo brings it back."""

    kind: int
    mode: int
    data: bytes
    mtime_ns: int
    owner: tuple[int, int]
    xattrs: tuple[tuple[str, bytes], ...]
    first_name: str
    """Of a file with several names the first one."""
    has_holes: bool


State = dict[str, Entry]

IS_ROOT = os.geteuid() == 0
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


def access_list(reader: int, rights: int = 4, *, owner: int = 6) -> bytes:
    """Return a list by which the owner and a further user have some rights, and others none."""
    nobody = 0xFFFFFFFF
    entries = [(0x01, owner, nobody), (0x02, rights, reader), (0x04, 4, nobody), (0x10, 7, nobody)]
    entries.append((0x20, 0, nobody))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def has_access_lists(folder: Path) -> bool:
    """Return whether the file system of a folder has access control lists."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            os.setxattr(file.fileno(), ACCESS, access_list(1))
        except OSError as error:
            if error.errno != errno.ENOTSUP:
                raise
            return False
        return True


def make_holes(path: Path, *data: int, size: int = 1 << 18) -> None:
    """Write a file of holes with a block of data at some places."""
    with path.open("wb") as file:
        file.truncate(size)
        for place in data:
            os.pwrite(file.fileno(), b"data" * 1024, place)


def state_of(root: Path) -> State:
    """Everything in a folder."""
    found: State = {}
    names_of_files: dict[int, str] = {}
    for folder, names, files in os.walk(root):
        names.sort()
        for name in sorted([*names, *files]):
            path = Path(folder, name)
            key, status = str(path.relative_to(root)), path.lstat()
            data, xattrs, first, has_holes = b"", [], key, False
            if path.is_symlink():
                data = os.fsencode(path.readlink())
            elif path.is_file() or path.is_dir():
                xattrs = [(one, os.getxattr(path, one)) for one in sorted(os.listxattr(path))]
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    data = file.read()
                    has_holes = bool(data) and os.lseek(file.fileno(), 0, os.SEEK_HOLE) < len(data)
            if not stat.S_ISDIR(status.st_mode):
                first = names_of_files.setdefault(status.st_ino, key)
            found[key] = Entry(
                stat.S_IFMT(status.st_mode),
                0 if path.is_symlink() else stat.S_IMODE(status.st_mode),
                data,
                status.st_mtime_ns,
                (status.st_uid, status.st_gid),
                tuple(xattrs),
                first,
                has_holes,
            )
    return found


class Work(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="undo-"))
        self.root = self.top / "workspace"
        self.root.mkdir()
        self.outside = self.top / "outside"
        self.outside.write_text("nobody:x:65534\n")
        self.chain = Checkpoints(self.root, self.top / "store")
        self.number = 0
        self.has_access_lists = has_access_lists(self.top)
        self.past: list[State] = []
        self.future: list[State] = []

    def teardown(self) -> None:
        self.chain.close()
        shutil.rmtree(self.top)

    def step(self, act: Callable[[], object]) -> None:
        self.number += 1
        before = state_of(self.root)
        self.chain.begin(f"call-{self.number}", "tool", "s")
        with contextlib.suppress(OSError):
            act()
        self.chain.end(f"call-{self.number}")
        self.past.append(before)
        if state_of(self.root) != before:
            self.future.clear()

    @rule(name=NAMES, data=CONTENTS)
    def write(self, name: str, data: bytes) -> None:
        def act() -> None:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

        self.step(act)

    @rule(name=NAMES, data=st.binary(min_size=1, max_size=8))
    def edit_in_place(self, name: str, data: bytes) -> None:
        def act() -> None:
            with (self.root / name).open("r+b") as file:
                file.write(data)

        self.step(act)

    @rule(name=NAMES, letter=st.binary(min_size=1, max_size=1))
    def write_through_a_map(self, name: str, letter: bytes) -> None:
        def act() -> None:
            path = self.root / name
            if path.is_file() and path.stat().st_size:
                with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
                    view[0:1] = letter

        self.step(act)

    def find(self, number: int) -> Path:
        """Return one of the paths that are there; the workspace if there is none."""
        found = sorted(self.root.rglob("*"))
        return found[number % len(found)] if found else self.root

    @rule(number=st.integers(0, 30), value=st.sampled_from([b"", b"1", b"two"]))
    def set_attribute(self, number: int, value: bytes) -> None:
        path = self.find(number)
        if not path.is_symlink():
            self.step(lambda: os.setxattr(path, "user.mark", value))

    @rule(
        number=st.integers(0, 30),
        names=st.sampled_from([(ACCESS,), (DEFAULT,), (ACCESS, DEFAULT)]),
        who=st.integers(1, 3),
    )
    def set_access_list(self, number: int, names: tuple[str, ...], who: int) -> None:
        path = self.find(number)
        if self.has_access_lists and path != self.root and not path.is_symlink():

            def act() -> None:
                for one in names:  # a default list is of folders only
                    os.setxattr(path, one, access_list(who, owner=7))

            self.step(act)

    @rule(
        number=st.integers(0, 30),
        mode=st.sampled_from([0o1777, 0o2755, 0o2070, 0o3700, 0o4755, 0o6750, 0o600]),
    )
    def set_mode(self, number: int, mode: int) -> None:
        path = self.find(number)
        if path != self.root and not path.is_symlink():
            # Bits that lend rights to who runs a file come back as a plain user only, and by undo only.
            possible = mode & (0o1777 if path.is_file() else 0o7777)
            if not IS_ROOT:  # what its owner cannot read is not kept, which other tests are about
                possible |= 0o600 if path.is_file() else 0o700
            self.step(lambda: path.chmod(possible))

    @rule(number=st.integers(0, 30), owner=st.sampled_from([(0, 0), (7, 0), (0, 8), (12345, 23456)]))
    def give(self, number: int, owner: tuple[int, int]) -> None:
        path = self.find(number)
        if IS_ROOT and path != self.root:
            self.step(lambda: os.chown(path, *owner, follow_symlinks=False))

    @rule(name=NAMES, data=st.sampled_from([(), (0,), (1 << 16,), (0, 1 << 17), ((1 << 18) - 4096,)]))
    def write_holes(self, name: str, data: tuple[int, ...]) -> None:
        path = self.root / name
        if not path.is_symlink():
            self.step(lambda: make_holes(path, *data))

    @rule(number=st.integers(0, 30), new=NAMES)
    def add_name(self, number: int, new: str) -> None:
        self.step(lambda: os.link(self.find(number), self.root / new, follow_symlinks=False))

    @rule(number=st.integers(0, 30))
    def remove(self, number: int) -> None:
        path = self.find(number)

        def act() -> None:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

        if path != self.root:
            self.step(act)

    @rule()
    def remove_all_and_undo(self) -> None:
        """Have everything made again, with all that it had."""

        def act() -> None:
            for path in self.root.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

        if any(self.root.iterdir()):
            self.step(act)
            self.undo_steps(1)

    @rule(name=NAMES, new=NAMES)
    def move(self, name: str, new: str) -> None:
        self.step(lambda: (self.root / name).rename(self.root / new))

    @rule(name=NAMES, text=st.sampled_from(["a", "{outside}", "..", "gone"]))
    def link(self, name: str, text: str) -> None:
        target = text.format(outside=self.outside)
        self.step(lambda: (self.root / name).symlink_to(target))

    @rule(script=SCRIPTS)
    def shell(self, script: str) -> None:
        # Whoever opens a FIFO waits for its other end, which nobody ever opens.
        command = ["timeout", "--signal=KILL", "10", "sh", "-c", script]
        environ = {**os.environ, "OUTSIDE": str(self.outside)}
        quiet = subprocess.DEVNULL
        self.step(lambda: subprocess.run(command, cwd=self.root, env=environ, stderr=quiet, check=False))

    @rule(count=st.integers(1, 4))
    def undo(self, count: int) -> None:
        self.undo_steps(count)

    def undo_steps(self, count: int) -> None:
        steps = self.chain.steps[::-1][:count]
        if not steps:
            return
        now = state_of(self.root)
        moved = self.chain.move("undo", steps)
        assert (moved.conflicts, moved.missing) == ((), ())
        states = [*self.past, now]
        for _ in steps:
            self.future.append(states.pop())
        del self.past[len(self.past) - len(steps) :]
        assert state_of(self.root) == states[-1]

    @rule(count=st.integers(1, 4))
    def redo(self, count: int) -> None:
        steps = self.chain.undone[::-1][:count]
        if not steps or len(self.future) != len(self.chain.undone):
            return
        self.past.append(state_of(self.root))
        moved = self.chain.move("redo", steps)
        assert (moved.conflicts, moved.missing) == ((), ())
        reached = [self.future.pop() for _ in steps]
        self.past.extend(reached[:-1])
        assert state_of(self.root) == reached[-1]

    @rule()
    def open_again(self) -> None:
        self.chain.close()
        self.chain = Checkpoints(self.root, self.top / "store")

    @invariant()
    def nothing_is_left_over(self) -> None:
        if hasattr(self, "root"):
            assert not list(self.root.glob(".aisotools*"))


Work.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, suppress_health_check=list(HealthCheck), deadline=None
)
TestWork = Work.TestCase
