"""Path resolution beneath a root, by descriptors instead of by names.

Race: a check of a name is outdated as soon as somebody puts a symbolic link in its place. So a walk opens one
directory after the other, each relative to the one before and never through a link. It reads links itself,
walks on from their text, and ends with a descriptor of the directory that holds the last name. Operations are
then relative to that descriptor. The kernel never resolves more than one component at a time.

The rules:

- `..` goes to the directory the walk came from; above the root it is an error.
- An absolute path, also that of a link, must begin with the root's own path; a path that was asked for may
  begin with `/workspace` instead.
- A link is followed when it stays beneath the root. `~`, `$HOME` and `%2e` are ordinary names.
- A trailing slash asks for a directory.

Threat: a path that a model or code in the sandbox has chosen leads out of the workspace, by `..`, by a link,
or by one that is put there at the right moment.
Mechanism: the walk described here; the kernel resolves single names only.
Failure: a path that leads out, too many links, or a part that is not a folder: a `WorkspaceError` that names
the path; nothing was opened for it outside.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aisotools.core.exceptions import PathOutside, WorkspaceError, as_clause
from aisotools.workspace.dirfd import DIRECTORY_FLAGS, WALK_FLAGS, open_unlocked

_ALIAS_COMPONENTS = ("workspace",)
"""Components of the path under which every workspace may be addressed, wherever it lies."""

MAX_LINKS = 40
"""Links followed for one path, as in Linux."""

MAX_PARTS = 5_000
"""Parts of a path, and of the links on its way, that are followed: each costs a system call.

The links on the way of one path may have 80,000 parts together.
"""

MAX_DEPTH = 200
"""Directories that a walk or a listing holds open; well below the usual limit of 1,024 descriptors."""


@dataclass(frozen=True, slots=True)
class OpenedFolder:
    """A folder as it was when a session opened on it.

    Threat: somebody moves it while the session is open, and another folder is in its place, or a link to one,
    or another file system is mounted there. A path leads to that, and a sandbox still to the first one.
    Mechanism: whoever uses the folder compares device and inode with those at the beginning.
    Race: it may be moved right after it was compared by its path; never if a descriptor is given.
    Failure: an error that says so. When the folder is in its place again, work goes on.

    Attributes:
        path: Real path.
        identity: Its device and inode; None if it did not exist.
    """

    path: str
    identity: tuple[int, int] | None

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> OpenedFolder:
        """Return what is at a real path now."""
        try:
            status = os.lstat(path)
        except OSError:
            return cls(os.fspath(path), None)
        return cls(os.fspath(path), (status.st_dev, status.st_ino))

    @property
    def is_in_place(self) -> bool:
        """True if it is still at its path, or did not exist."""
        if self.identity is None:
            return True
        try:
            status = os.lstat(self.path)
        except OSError:
            return False
        return self.identity == (status.st_dev, status.st_ino)

    def find_path(self, folder: int) -> str:
        """Return its real path now, whatever name it or a folder above it has been given meanwhile.

        Args:
            folder: Descriptor of it. Where the kernel knows no path of that here, the first one is returned.
        """
        try:
            path = os.readlink(f"/proc/self/fd/{folder}")  # noqa: PTH115 - a text, as everything here
            status = os.lstat(path)
        except OSError:
            return self.path
        # Race: somebody may have closed all descriptors, and this be the number of another file.
        return path if self.identity == (status.st_dev, status.st_ino) else self.path

    def open(self) -> int:
        """Return a descriptor of it, for reading, also if its mode does not let its owner read it.

        Raises:
            OSError: If it cannot be opened.
            WorkspaceError: If it is not in its place; see `check`.
        """
        try:
            folder = os.open(self.path, DIRECTORY_FLAGS)
        except PermissionError:
            folder = open_unlocked(self.path)
        try:
            self.check(folder)
        except BaseException:
            os.close(folder)
            raise
        return folder

    def check(self, folder: int | None = None) -> None:
        """Check that it is still at its path, or that it is what was opened there.

        Args:
            folder: Descriptor of what was opened.

        Raises:
            WorkspaceError: If it is not. It says what is possible.
        """
        if folder is None and self.identity is None:
            return
        instead = "nothing is there"
        try:
            status = os.lstat(self.path) if folder is None else os.fstat(folder)
            if self.identity in {None, (status.st_dev, status.st_ino)}:
                return
            if os.path.lexists(self.path):
                instead = "something else is in its place"
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise WorkspaceError(
                f"The folder {self.path!r} cannot be looked at: {as_clause(error.strerror)}. Make it "
                "readable again, or close this session and open another one."
            ) from error
        raise WorkspaceError(
            f"The folder {self.path!r} was moved or removed after this session had opened, and {instead} "
            "now. Move it back, or close this session and open another one."
        )

    def check_above(self) -> None:
        """Check that it is at its path, and no link has taken the place of a folder above it.

        Whoever gives its path to a sandbox has to know that: the kernel does not follow links there.

        Raises:
            WorkspaceError: If it is not so.
        """
        self.check()
        if (now := os.path.realpath(self.path)) != self.path:
            raise WorkspaceError(
                f"A folder above {self.path!r} was moved after this session had opened, and a link is in its "
                f"place: the workspace is {now!r} now. Move it back, or close this session and open another."
            )


@dataclass(frozen=True, slots=True)
class Root:
    """The top of a tree that no walk leaves.

    Attributes:
        path: Real path.
        spellings: Components of the paths by which links and callers may refer to it.
        folder: The folder that it was at first.
    """

    path: str
    spellings: tuple[tuple[str, ...], ...]
    folder: OpenedFolder

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Root:
        """Return the root at an existing path."""
        real = os.path.realpath(path)
        spelled = os.fspath(Path(path).absolute())
        spellings = dict.fromkeys((tuple(_components(spelled)), tuple(_components(real))))
        return cls(real, tuple(spellings), OpenedFolder.of(real))


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """A resolved path: a name in an open directory.

    Attributes:
        directory: Descriptor of the directory; good for `dir_fd`, not for reading. Closed by `locate`.
        name: The last component, which need not exist; `.` for the directory itself.
        path: The path relative to the root, without links; `.` for the root.
    """

    directory: int
    name: str
    path: str

    def unlink(self) -> None:
        """Remove a file or a link."""
        # Race: the entry may be another one by now; never one of another folder, which is open.
        os.unlink(self.name, dir_fd=self.directory)

    def rename(self, place: ResolvedPath) -> None:
        """Move this entry to `place`, replacing a file there."""
        # Both folders by descriptor: a path could lead elsewhere once somebody puts a link in its way.
        os.rename(self.name, place.name, src_dir_fd=self.directory, dst_dir_fd=place.directory)


@contextmanager
def locate(
    root: Root, path: str, *, follow: bool = True, make_parents: bool = False
) -> Iterator[ResolvedPath]:
    """Resolve `path` and hold its directory open.

    An `OSError` raised inside the `with` block gets `path` as its file name. Directories that were created
    are removed again if the block fails.

    Args:
        root: The tree to stay in.
        path: Relative to the root, or absolute beneath it.
        follow: Follow a link at the end.
        make_parents: Create missing directories on the way; not the last component.

    Raises:
        PathOutside: If the path leaves the root at any point.
        WorkspaceError: If it is empty, holds a NUL, or is nested too deeply.
        OSError: If the walk fails: nothing there, a file on the way, no permission.
    """
    check_path(path)
    walk = _PathWalk(root, path)
    try:
        yield walk.run(follow=follow, make_parents=make_parents)
    except OSError as error:
        walk.remove_created()
        raise type(error)(error.errno, error.strerror or str(error), as_utf8(path)) from None
    except BaseException:
        walk.remove_created()
        raise
    finally:
        walk.close()


def check_path(path: str) -> None:
    """Check that text can be a path at all.

    Raises:
        WorkspaceError: If it is empty, holds a NUL, or cannot be encoded.
    """
    if not path:
        raise WorkspaceError("The path is empty. Use '.' for the workspace itself.")
    if "\0" in path:
        raise WorkspaceError(f"The path {path!r} holds a NUL character, which no file name can.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise WorkspaceError(f"The path {path!r} holds characters that no file name can.") from None


def as_utf8(name: str) -> str:
    r"""Return a file name as text that can be encoded; bytes that are not UTF-8 appear as `\xff`."""
    if name.isascii():
        return name
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # it is not a name on disk either
        return name.encode("utf-8", "backslashreplace").decode()


def printable(name: str) -> str:
    r"""Return a file name for one line of text, with control characters as escapes such as `\n`."""
    if name.isprintable():
        return name
    escaped = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in as_utf8(name))
    return "".join(escaped)


def _components(path: str) -> list[str]:
    """Split a path into names; a final `.` asks for a directory."""
    names = [*filter(None, path.split("/"))]
    if "." in names:
        names = [name for name in names if name != "."]
    return [*names, "."] if path == "." or path.endswith(("/", "/.")) else names


def _link_text(directory: int, name: str) -> str | None:
    """Return the target of a symbolic link; None if the name is not a link."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT}:
            return None
        raise


@dataclass(slots=True)
class _PathWalk:
    """One walk down from the root, and the directories it holds open."""

    _root: Root
    _path: str
    _open: list[int] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)  # of the open directories but the first
    _todo: list[str] = field(default_factory=list)  # components still to go, the next one last
    _links: int = 0
    _link: str = ""  # the last one followed
    _created: list[tuple[int, str]] = field(default_factory=list)  # position of the parent in _open, name

    def run(self, *, follow: bool, make_parents: bool) -> ResolvedPath:
        """Walk all components and return the resolved path."""
        self._todo = self._beneath(self._path, (*self._root.spellings, _ALIAS_COMPONENTS))[::-1]
        try:
            self._open.append(os.open(self._root.path, WALK_FLAGS))
        except (FileNotFoundError, NotADirectoryError):
            self._root.folder.check()
            raise  # Race: it is there again
        self._root.folder.check(self._open[-1])
        parts_left = MAX_PARTS
        while self._todo:
            name, parts_left = self._todo.pop(), parts_left - 1
            if parts_left < 0:
                raise WorkspaceError(
                    f"The path {self._path[:80]!r} leads through more than {MAX_PARTS:,} folders by its "
                    "links; use a shorter way.",
                )
            if name == "..":
                self._up()
            elif name == ".":
                continue
            elif self._todo:
                self._down(name, make_parents=make_parents and self._may_make())
            elif follow and (text := _link_text(self._open[-1], name)) is not None:
                self._follow(name, text)
            else:
                return ResolvedPath(self._open[-1], name, "/".join([*self._names, name]))
        return ResolvedPath(self._open[-1], ".", "/".join(self._names) or ".")

    def close(self) -> None:
        """Close all directories."""
        while self._open:
            os.close(self._open.pop())

    def remove_created(self) -> None:
        """Remove the directories that were created on the way, if they are still empty."""
        for position, name in reversed(self._created):
            with suppress(OSError):
                os.rmdir(name, dir_fd=self._open[position])

    def _up(self) -> None:
        if not self._names:
            raise self._outside()
        self._names.pop()
        os.close(self._open.pop())

    def _down(self, name: str, *, make_parents: bool) -> None:
        try:
            directory = os.open(name, WALK_FLAGS, dir_fd=self._open[-1])
        except FileNotFoundError:
            if not make_parents:
                raise
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self._open[-1])
                self._created.append((len(self._open) - 1, name))
            directory = os.open(name, WALK_FLAGS, dir_fd=self._open[-1])
        except OSError as error:
            # A link, or no directory: Linux says ENOTDIR for both, others ELOOP for a link.
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
            text = _link_text(self._open[-1], name)
            if text is None:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
            self._follow(name, text)
            return
        self._open.append(directory)
        self._names.append(name)
        if len(self._names) > MAX_DEPTH:
            raise WorkspaceError(
                f"The path {self._path[:80]!r}... is more than {MAX_DEPTH} folders deep; use a shorter way.",
            )

    def _follow(self, name: str, text: str) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        self._link = "/".join([*self._names, name])
        names = self._beneath(text, self._root.spellings)
        if text.startswith("/"):
            while self._names:
                self._up()
        self._todo.extend(reversed(names))

    def _may_make(self) -> bool:
        # Only for a plain path to a name: create nothing for a path with `..`, or one that must be a
        # directory.
        return ".." not in self._todo and self._todo[0] != "."

    def _beneath(self, path: str, spellings: Sequence[tuple[str, ...]]) -> list[str]:
        """Return the components of a path, relative to the root."""
        names = _components(path)
        if not path.startswith("/"):
            return names
        for spelling in spellings:
            if tuple(names[: len(spelling)]) == spelling:
                return names[len(spelling) :]
        raise self._outside()

    def _outside(self) -> PathOutside:
        through = f" (through the link {as_utf8(self._link)!r})" if self._link else ""
        return PathOutside(
            f"The path {self._path!r} leads outside the workspace{through}. "
            "Use a path inside it, relative like 'notes/today.txt'.",
        )
