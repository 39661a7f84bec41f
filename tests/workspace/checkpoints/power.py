"""A disk that loses what was not synced: system calls are recorded, and played back up to any of them.

The model is stricter than real file systems. A content is on the disk once its file was synced, a name once
its folder was; of all else any part may be lost, in any order. Links and FIFOs cannot be synced: what was set
of one is on the disk once the folder was in which it then is.

Only a rename from one folder to another, or an exchange, is one change, and is on the disk once either folder
was synced. POSIX promises neither. But ext4, XFS and Btrfs make both halves of it in one transaction, and a
sync of either folder writes that as a whole: ext4 commits the running transaction, XFS forces its log up to
the last change of the folder, and Btrfs gives up its log for a full commit where a name has left a folder.
To sync both would cost a second commit for each undo, and gain something on file systems alone that have
no such transactions, as FAT. There a rename that is cut in half can lose a file, whatever is synced after it.
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

from aisotools.workspace.checkpoints import switching

Loss = Literal["nothing", "all", "some"]
"""What is lost of what was not synced."""

ROOT = 0


@dataclass
class Inode:
    """A file, folder, link or FIFO: its kind, mode, a link's target, and the time of a new link or FIFO."""

    kind: Literal["file", "folder", "link", "fifo"]
    mode: int
    target: str = ""
    mtime_ns: int | None = None


@dataclass
class Change:
    """One change of a content, of names or of attributes.

    Attributes:
        inode: The file whose content changes, or the folder that gets or loses a name.
        data: What is written, and where; None for a change of names.
        size: Of a content that is cut.
        adds: The name that leads to an inode from then on.
        also: Of an exchange, the folder and the name that lead to a second one, and that.
        removes: The folder and the name that leads nowhere from then on.
        mtime_ns: The time of the inode from then on.
        mode: Its mode from then on.
        owner: Its user and group from then on.
        xattr: The name and the value of an extended attribute from then on; None for none.
    """

    inode: int
    data: tuple[int, bytes] | None = None
    size: int | None = None
    adds: tuple[str, int] | None = None
    removes: tuple[int, str] | None = None
    also: tuple[int, str, int] | None = None
    mtime_ns: int | None = None
    mode: int | None = None
    owner: tuple[int, int] | None = None
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
    within: frozenset[int] = frozenset()
    """Links and FIFOs in a folder."""


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
            *("chmod", "fchown", "chown"),
        ):
            patch.setattr(os, name, self._recording(getattr(self, f"_{name}"), getattr(os, name)))
        for name in ("exchange", "rename_new"):
            place = f"aisotools.workspace.checkpoints.switching.{name}"
            note = self._exchange if name == "exchange" else self._rename
            patch.setattr(place, self._recording(note, getattr(switching, name)))
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

    def _chmod(self, real: Any, path: Any, mode: int, **options: Any) -> None:
        real(path, mode, **options)
        if (inode := self._numbers.get(Path(path).stat().st_ino)) is not None:
            self.log.append(Change(inode, mode=mode))

    def _fchown(self, real: Any, file: int, uid: int, gid: int) -> None:
        real(file, uid, gid)
        self._log_owner(os.fstat(file))

    def _chown(self, real: Any, path: Any, uid: int, gid: int, **options: Any) -> None:
        real(path, uid, gid, **options)
        self._log_owner(os.stat(path, **options))  # noqa: PTH116 - it may be below a descriptor

    def _log_owner(self, status: os.stat_result) -> None:
        # The system takes the bits away that lend rights, and may give others.
        if (inode := self._numbers.get(status.st_ino)) is not None:
            owner, mode = (status.st_uid, status.st_gid), stat.S_IMODE(status.st_mode)
            self.log.append(Change(inode, owner=owner, mode=mode))

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
        if (inode := self._of(file)) is None:
            return
        within: set[int] = set()
        if self.inodes[inode].kind == "folder":
            with os.scandir(file) as entries:
                # What was there before the recording is not known.
                within = {self._numbers[one.inode()] for one in entries if one.inode() in self._numbers}
        special = {number for number in within if self.inodes[number].kind in {"link", "fifo"}}
        self.log.append(Sync(inode, within=frozenset(special)))

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

    def _symlink(
        self, real: Any, target: str, path: Any, is_folder: bool = False, *, dir_fd: int | None = None
    ) -> None:
        del is_folder
        place = self._place(path, dir_fd)
        real(target, path, dir_fd=dir_fd)
        if place is not None:
            status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
            inode = Inode("link", 0, target, status.st_mtime_ns)
            self._made(place, inode, status.st_ino, self._around(path, dir_fd))

    def _mkfifo(self, real: Any, path: Any, mode: int = 0o666, *, dir_fd: int | None = None) -> None:
        place = self._place(path, dir_fd)
        real(path, mode, dir_fd=dir_fd)
        if place is not None:
            status = os.stat(path, dir_fd=dir_fd)
            inode = Inode("fifo", stat.S_IMODE(status.st_mode), mtime_ns=status.st_mtime_ns)
            self._made(place, inode, status.st_ino, self._around(path, dir_fd))

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

    def _exchange(self, real: Any, old: str, new: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        places = self._place(old, src_dir_fd), self._place(new, dst_dir_fd)
        real(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        (first, one), (second, other) = (place or (ROOT, "") for place in places)
        put, out = (
            self._numbers[os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino]
            for name, folder in ((new, dst_dir_fd), (old, src_dir_fd))
        )
        self._log_names(Change(second, adds=(other, put), also=(first, one, out)), dst_dir_fd)

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
        contents: dict[int, Content] = {}
        owners: dict[int, tuple[int, int]] = {}
        modes = {number: inode.mode for number, inode in self.inodes.items()}
        times: dict[int, int] = {}
        xattrs: dict[int, dict[str, bytes | None]] = {}
        for change in self._surviving(cut, loss, draw):
            if change.data is not None:
                contents.setdefault(change.inode, Content()).write(*change.data)
            if change.size is not None:
                contents.setdefault(change.inode, Content()).cut(change.size)
            if change.removes is not None:
                names.setdefault(change.removes[0], {}).pop(change.removes[1], None)
            if change.adds is not None:
                names.setdefault(change.inode, {})[change.adds[0]] = change.adds[1]
            if change.also is not None:
                names.setdefault(change.also[0], {})[change.also[1]] = change.also[2]
            if change.mtime_ns is not None:
                times[change.inode] = change.mtime_ns
            if change.mode is not None:
                modes[change.inode] = change.mode
            if change.owner is not None:
                owners[change.inode] = change.owner
            if change.xattr is not None:
                xattrs.setdefault(change.inode, {})[change.xattr[0]] = change.xattr[1]
        _Filling(self.inodes, names, contents, modes, owners, times, xattrs).fill(folder, ROOT)

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
                inodes = set(self.inodes) if entry.inode is None else {entry.inode, *entry.within}
                synced |= inodes
                complete |= inodes if entry.with_attributes else set()
                continue
            on_disk = complete if entry.is_of_attributes else synced
            # A rename is on the disk as soon as the folder is that it has taken a name from.
            if on_disk.isdisjoint({entry.inode, *(entry.removes or ())[:1]}):
                unsynced.append(entry)
                is_lost[id(entry)] = loss == "all" or (loss == "some" and draw.random() < 0.5)
            if not is_lost.get(id(entry), False):
                survivors.append(entry)
        return survivors[::-1]


BLOCK_BYTES = 4096


class Content:
    """Bytes of a file, and which blocks of it were written: the others are holes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.blocks: set[int] = set()

    def write(self, at: int, data: bytes) -> None:
        self.data.extend(bytes(max(at - len(self.data), 0)))  # a part before it was lost, or is a hole
        self.data[at : at + len(data)] = data
        self.blocks.update(range(at // BLOCK_BYTES, -(-(at + len(data)) // BLOCK_BYTES)))

    def cut(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))
        self.blocks = {block for block in self.blocks if block * BLOCK_BYTES < size}

    def write_to(self, path: Path) -> None:
        """Write it to an empty file."""
        with path.open("r+b", buffering=0) as file:
            for block in sorted(self.blocks):
                start = block * BLOCK_BYTES
                os.pwrite(file.fileno(), self.data[start : start + BLOCK_BYTES], start)
            file.truncate(len(self.data))


@dataclass
class _Filling:
    """What is on a disk, to be written to an empty folder."""

    inodes: dict[int, Inode]
    names: dict[int, dict[str, int]]
    contents: dict[int, Content]
    modes: dict[int, int]
    owners: dict[int, tuple[int, int]]
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
                    path.touch()
                    if number in self.contents:
                        self.contents[number].write_to(path)
                case "link":
                    path.symlink_to(entry.target)
                case "fifo":
                    os.mkfifo(path)
            for attribute, value in self.xattrs.get(number, {}).items():
                if value is not None:
                    os.setxattr(path, attribute, value)
            if number in self.owners:
                os.chown(path, *self.owners[number], follow_symlinks=False)
            if entry.kind != "link":
                path.chmod(stat.S_IMODE(self.modes[number]))
            mtime_ns = self.times.get(number, entry.mtime_ns)
            if mtime_ns is not None:
                os.utime(path, ns=(0, mtime_ns), follow_symlinks=False)
