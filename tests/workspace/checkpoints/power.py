"""A disk that loses what was not synced: system calls are recorded, and played back up to any of them.

The model is stricter than real file systems. A content is on the disk once its file was synced, a name once
its folder was; of all else any part may be lost, in any order. Only a rename is one change.
"""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

Loss = Literal["nothing", "all", "some"]
"""What is lost of what was not synced."""

ROOT = 0


@dataclass
class Inode:
    """A file, folder, link or FIFO: its kind, mode, and a link's target."""

    kind: Literal["file", "folder", "link", "fifo"]
    mode: int
    target: str = ""


@dataclass
class Change:
    """One change of a content, of names or of attributes.

    Attributes:
        inode: The file whose content changes, or the folder that gets or loses a name.
        data: What is written, and where; None for a change of names.
        size: Of a content that is cut.
        adds: The name that leads to an inode from then on.
        removes: The folder and the name that leads nowhere from then on.
        mtime_ns: The time of the inode from then on.
        mode: Its mode from then on.
        xattr: The name and the value of an extended attribute from then on; None for none.
    """

    inode: int
    data: tuple[int, bytes] | None = None
    size: int | None = None
    adds: tuple[str, int] | None = None
    removes: tuple[int, str] | None = None
    mtime_ns: int | None = None
    mode: int | None = None
    xattr: tuple[str, bytes | None] | None = None

    @property
    def is_of_attributes(self) -> bool:
        """True if neither content nor names change."""
        return all(value is None for value in (self.data, self.size, self.adds, self.removes))


@dataclass
class Sync:
    """Everything so far of one inode, or of all of them, is on the disk; or only contents and names."""

    inode: int | None
    with_attributes: bool = True


@dataclass
class Disk:
    """What happened below one folder, in order."""

    top: Path
    log: list[Change | Sync] = field(default_factory=list)
    inodes: dict[int, Inode] = field(default_factory=lambda: {ROOT: Inode("folder", 0o700)})
    _numbers: dict[int, int] = field(default_factory=dict)  # by the number that the real system has
    _positions: dict[int, int] = field(default_factory=dict)  # by descriptor

    def __post_init__(self) -> None:
        self._numbers[self.top.stat().st_ino] = ROOT

    # ---- recording

    def record(self, patch: pytest.MonkeyPatch) -> None:
        """Record from now on what this process does through `os`."""
        for name in (
            *("open", "write", "ftruncate", "fchmod", "fsync", "fdatasync", "mkdir", "symlink", "mkfifo"),
            *("rename", "replace", "unlink", "rmdir", "link", "utime", "setxattr", "removexattr"),
        ):
            patch.setattr(os, name, self._recording(getattr(self, f"_{name}"), getattr(os, name)))
        for module in ("store", "staging"):
            place = f"aisotools.workspace.checkpoints.{module}.flush_file_system"
            patch.setattr(place, lambda _folder: self.log.append(Sync(None)))

    @staticmethod
    def _recording(note: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            return note(real, *arguments, **options)

        return call

    def _place(self, path: str | Path, dir_fd: int | None) -> tuple[int, str] | None:
        """Return the folder and the name that a path leads to; None outside of what is recorded."""
        head, name = os.path.split(path)
        if dir_fd is not None:
            assert not head
            number = os.fstat(dir_fd).st_ino
        else:
            if not Path(path).is_relative_to(self.top):
                return None
            number = Path(head).stat().st_ino
        folder = self._numbers.get(number)
        return None if folder is None else (folder, name)

    def _made(self, place: tuple[int, str], inode: Inode, number: int, at: int | Path) -> None:
        known = self._numbers[number] = max(self.inodes) + 1
        self.inodes[known] = inode
        self._log_names(Change(place[0], adds=(place[1], known)), at)

    def _log_names(self, change: Change, folder: int | Path) -> None:
        status = os.fstat(folder) if isinstance(folder, int) else Path(folder).stat()
        change.mtime_ns = status.st_mtime_ns
        self.log.append(change)

    @staticmethod
    def _around(path: str | Path, dir_fd: int | None) -> int | Path:
        return dir_fd if dir_fd is not None else Path(path).parent

    def _open(self, real: Any, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        place = self._place(path, dir_fd) if flags & os.O_CREAT else None
        is_new = place is not None and not self._is_there(path, dir_fd)
        file: int = real(path, flags, mode, dir_fd=dir_fd)
        self._positions[file] = 0
        if is_new and place is not None:
            self._made(place, Inode("file", mode), os.fstat(file).st_ino, self._around(path, dir_fd))
        elif flags & os.O_TRUNC and (inode := self._of(file)) is not None:
            self.log.append(Change(inode, size=0, mtime_ns=os.fstat(file).st_mtime_ns))
        return file

    @staticmethod
    def _is_there(path: Any, dir_fd: int | None) -> bool:
        try:
            os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _of(self, file: int) -> int | None:
        return self._numbers.get(os.fstat(file).st_ino)

    def _write(self, real: Any, file: int, data: Any) -> int:
        inode = self._of(file)
        count: int = real(file, data)
        if inode is not None:
            at = os.lseek(file, 0, os.SEEK_CUR) - count  # not from before: that may be beyond a shortened end
            change = Change(inode, data=(at, bytes(data[:count])), mtime_ns=os.fstat(file).st_mtime_ns)
            self.log.append(change)
        return count

    def _ftruncate(self, real: Any, file: int, size: int) -> None:
        real(file, size)
        if (inode := self._of(file)) is not None:
            self.log.append(Change(inode, size=size, mtime_ns=os.fstat(file).st_mtime_ns))

    def _fchmod(self, real: Any, file: int, mode: int) -> None:
        real(file, mode)
        if (inode := self._of(file)) is not None:
            self.log.append(Change(inode, mode=mode))

    def _utime(
        self,
        real: Any,
        path: Any,
        *arguments: Any,
        dir_fd: int | None = None,
        follow_symlinks: bool = True,
        **times: Any,
    ) -> None:
        if dir_fd is not None or not follow_symlinks:
            times |= {"dir_fd": dir_fd, "follow_symlinks": follow_symlinks}
        real(path, *arguments, **times)
        status = os.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        if (inode := self._numbers.get(status.st_ino)) is not None:
            self.log.append(Change(inode, mtime_ns=status.st_mtime_ns))

    def _setxattr(self, real: Any, file: Any, name: str, value: bytes) -> None:
        real(file, name, value)
        if (inode := self._of(file)) is not None:
            self.log.append(Change(inode, xattr=(name, value)))

    def _removexattr(self, real: Any, file: Any, name: str) -> None:
        real(file, name)
        if (inode := self._of(file)) is not None:
            self.log.append(Change(inode, xattr=(name, None)))

    def _link(self, real: Any, old: Any, new: Any, *, dst_dir_fd: int | None = None, **options: Any) -> None:
        place = self._place(new, dst_dir_fd)
        real(old, new, dst_dir_fd=dst_dir_fd, **options)
        if place is not None:
            number = self._numbers[os.stat(new, dir_fd=dst_dir_fd, follow_symlinks=False).st_ino]
            self._log_names(Change(place[0], adds=(place[1], number)), self._around(new, dst_dir_fd))

    def _fsync(self, real: Any, file: int) -> None:
        del real  # nobody has to wait for the real disk
        if (inode := self._of(file)) is not None:
            self.log.append(Sync(inode))

    def _fdatasync(self, real: Any, file: int) -> None:
        del real
        if (inode := self._of(file)) is not None:
            self.log.append(Sync(inode, with_attributes=False))

    def _mkdir(self, real: Any, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        real(path, mode, dir_fd=dir_fd)
        if place is not None:
            number = os.stat(path, dir_fd=dir_fd).st_ino
            self._made(place, Inode("folder", mode), number, self._around(path, dir_fd))

    def _symlink(self, real: Any, target: str, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        real(target, path, dir_fd=dir_fd)
        if place is not None:
            number = os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_ino
            self._made(place, Inode("link", 0, target), number, self._around(path, dir_fd))

    def _mkfifo(self, real: Any, path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        real(path, mode, dir_fd=dir_fd)
        if place is not None:
            number = os.stat(path, dir_fd=dir_fd).st_ino
            self._made(place, Inode("fifo", mode), number, self._around(path, dir_fd))

    def _rename(
        self, real: Any, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        source, target = self._place(old, src_dir_fd), self._place(new, dst_dir_fd)
        number = os.stat(old, dir_fd=src_dir_fd, follow_symlinks=False).st_ino
        real(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if source is not None and target is not None:
            change = Change(target[0], adds=(target[1], self._numbers[number]), removes=source)
            self._log_names(change, self._around(new, dst_dir_fd))

    _replace = _rename

    def _unlink(self, real: Any, path: Any, *, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        real(path, dir_fd=dir_fd)
        if place is not None:
            self._log_names(Change(place[0], removes=place), self._around(path, dir_fd))

    _rmdir = _unlink

    # ---- after the power has failed

    def write_to(self, folder: Path, cut: int, loss: Loss, draw: random.Random) -> None:
        """Write what is on the disk after so many calls to an empty folder."""
        names: dict[int, dict[str, int]] = {}
        contents: dict[int, bytearray] = {}
        modes = {number: inode.mode for number, inode in self.inodes.items()}
        times: dict[int, int] = {}
        xattrs: dict[int, dict[str, bytes | None]] = {}
        for change in self._surviving(cut, loss, draw):
            if change.data is not None:
                at, data = change.data
                content = contents.setdefault(change.inode, bytearray())
                content.extend(bytes(max(at - len(content), 0)))  # a part before it was lost
                content[at : at + len(data)] = data
            if change.size is not None:
                content = contents.setdefault(change.inode, bytearray())
                del content[change.size :]
            if change.removes is not None:
                names.setdefault(change.removes[0], {}).pop(change.removes[1], None)
            if change.adds is not None:
                names.setdefault(change.inode, {})[change.adds[0]] = change.adds[1]
            if change.mtime_ns is not None:
                times[change.inode] = change.mtime_ns
            if change.mode is not None:
                modes[change.inode] = change.mode
            if change.xattr is not None:
                xattrs.setdefault(change.inode, {})[change.xattr[0]] = change.xattr[1]
        _Filling(self.inodes, names, contents, modes, times, xattrs).fill(folder, ROOT)

    def _surviving(self, cut: int, loss: Loss, draw: random.Random) -> list[Change]:
        survivors: list[Change] = []
        unsynced: list[Change] = []
        is_lost: dict[int, bool] = {}
        log = self.log[:cut]
        synced: set[int] = set()
        complete: set[int] = set()  # of which attributes are on the disk, too
        for number in range(len(log) - 1, -1, -1):
            entry = log[number]
            if isinstance(entry, Sync):
                inodes = set(self.inodes) if entry.inode is None else {entry.inode}
                synced |= inodes
                complete |= inodes if entry.with_attributes else set()
                continue
            if entry.inode not in (complete if entry.is_of_attributes else synced):
                unsynced.append(entry)
                is_lost[id(entry)] = loss == "all" or (loss == "some" and draw.random() < 0.5)
            if not is_lost.get(id(entry), False):
                survivors.append(entry)
        return survivors[::-1]


@dataclass
class _Filling:
    """What is on a disk, to be written to an empty folder."""

    inodes: dict[int, Inode]
    names: dict[int, dict[str, int]]
    contents: dict[int, bytearray]
    modes: dict[int, int]
    times: dict[int, int]
    xattrs: dict[int, dict[str, bytes | None]]
    made: dict[int, Path] = field(default_factory=dict)

    def fill(self, folder: Path, inode: int) -> None:
        for name, number in self.names.get(inode, {}).items():
            path, entry = folder / name, self.inodes[number]
            if number in self.made and entry.kind != "folder":
                os.link(self.made[number], path, follow_symlinks=False)
                continue
            self.made[number] = path
            match entry.kind:
                case "folder":
                    path.mkdir()
                    self.fill(path, number)
                case "file":
                    path.write_bytes(self.contents.get(number, b""))
                case "link":
                    path.symlink_to(entry.target)
                case "fifo":
                    os.mkfifo(path)
            for attribute, value in self.xattrs.get(number, {}).items():
                if value is not None:
                    os.setxattr(path, attribute, value)
            if entry.kind != "link":
                path.chmod(stat.S_IMODE(self.modes[number]))
            if number in self.times:
                os.utime(path, ns=(0, self.times[number]), follow_symlinks=False)
