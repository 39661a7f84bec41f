"""Find the files of a workspace that may have to be protected, in a folder that is hostile while it is read.

Threat: code in the sandbox hides a file from the scan (behind links, in folders that cannot be listed, very
deep, behind very many others), or makes the scan itself the attack (time, memory, descriptors, recursion).

Mechanism: folders are opened one by one, each relative to its parent and never through a link. The walk is a
loop without recursion that holds at most `_HELD_FOLDERS` descriptors; further down it goes back by `..`, and
only into the very folder it came from, by device and inode. It goes as deep as a path can be that programs
can use (`MAX_PATH_BYTES`). An unchanged folder costs one `lstat`: its listing is cached by its change time,
which user code cannot set, and by what the folders above it mean for it. Names, folders, files and the length
of all paths are bounded.
Race: a folder that changes during the walk is listed again next time, as a change within the last tick of the
clock is never trusted. One that is moved away from under the walk ends it.
Failure: whatever is beyond a bound, or ended the walk, makes the scan incomplete; `unwatched` says where. A
folder that is too deep for any path is passed over, and the walk goes on (`is_all_usable`); what is moved up
from there by a process is found by the next scan.
Callers must not take an incomplete scan for the absence of a file.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aisotools.workspace.dirfd import DIRECTORY_FLAGS, WALK_FLAGS, open_unlocked
from aisotools.workspace.git_named_files import NamedFiles
from aisotools.workspace.protected_names import (
    REPOSITORY_PARTS,
    ROOT_ZONE,
    Zone,
    fold_name,
    is_file_of_git,
    is_repository,
    names_made_of,
)

MAX_FOLDERS = 200_000
"""Folders of a workspace that are scanned."""

MAX_CANDIDATES = 50_000
"""Files of a workspace that may have to be protected, notebooks included."""

MAX_LISTED_FOLDERS = 300
"""Folders of which a scan returns the status."""

MAX_PATH_BYTES = 4096
"""Length of a path that the system takes; what lies deeper can be reached by no path."""

MAX_ALL_PATHS = 32 << 20
"""Characters of the paths of all these files together."""

RACY_NS = 20_000_000
"""Change times have the granularity of the kernel's tick, 4 to 10 ms: a younger one proves nothing."""

_REPLACED = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))  # by nothing, a file, a link
_HELD_FOLDERS = 64
_MAX_LISTINGS = 100_000  # that are cached; a folder beyond is listed each time
_BATCH = 16  # entries of a folder that are charged together: there may be as many folders with fewer
_FIRST_LETTERS_OF_GIT = frozenset("chrs")  # of files in a repository, and of their sources
_STEP_CHARS = 16
"""Characters of a name that are one step, if it is a long one: the worst take about 0.5 µs each."""


class OutOfSteps(Exception):
    """A scan that was limited would take too long."""


@dataclass(slots=True)
class Steps:
    """Work that may still be done, in units of about the time of one system call.

    A scan on an event loop gets few of them, and is done again in a thread when they are used up. They count
    work and not time, so that the same folder always ends at the same place.

    Attributes:
        remaining: How many are left; any number of them without it.
    """

    remaining: float = float("inf")

    def take(self, steps: int = 1) -> None:
        """Use up some.

        Raises:
            OutOfSteps: If there are none left.
        """
        self.remaining -= steps
        if self.remaining < 0:
            raise OutOfSteps


@dataclass(frozen=True, slots=True)
class Listing:
    """Candidates and subfolders of one folder, valid while it has this change time and lies in such a place.

    Attributes:
        above: Zone of the folder by the names above it.
        zone: The same, with what its entries say.
    """

    ctime_ns: int
    clean: bool
    above: Zone
    zone: Zone
    folders: tuple[str, ...]
    files: tuple[str, ...]

    def is_valid(self, above: Zone, status: os.stat_result) -> bool:
        """Return whether the folder with this status still has these entries."""
        return self.clean and self.ctime_ns == status.st_ctime_ns and self.above == above


@dataclass(frozen=True, slots=True)
class CandidateFile:
    """A file that may have to be protected.

    Attributes:
        status: Result of `lstat`.
        zone: What the folders above it mean.
    """

    status: os.stat_result
    zone: Zone


@dataclass(slots=True)
class CandidateScan:
    """Result of one walk through the workspace.

    Attributes:
        files: The files by path, relative to the workspace.
        folders: Status of the folders by path, each ending with a slash unless it is the workspace. Empty
            if there are more than `MAX_LISTED_FOLDERS`, or one may still change under the same change time.
        repositories: The folders that git takes for a repository, each ending with a slash.
        unwatched: Why the walk is incomplete, and where; empty if it reached every folder.
        is_all_usable: Whether what the walk left out lies deeper than a path goes, if it left out anything.
        is_closed: Whether the workspace itself could not be opened, so that nothing is known of its files.
    """

    repositories: list[str] = field(default_factory=list)
    files: dict[str, CandidateFile] = field(default_factory=dict)
    folders: dict[str, os.stat_result] = field(default_factory=dict)
    unwatched: str = ""
    is_all_usable: bool = True
    is_closed: bool = False

    @property
    def complete(self) -> bool:
        """True if every folder was reached."""
        return not self.unwatched


@dataclass(slots=True)
class _OpenFolder:
    """A folder on the way down: its descriptor, or -1 while it is closed, and the subfolders to come."""

    folder: int
    key: tuple[int, int]
    path: str
    folded: str
    listing: Listing
    subfolders: Iterator[str]


class CandidateScanner:
    """Scans one workspace again and again."""

    def __init__(self, root: str, *, max_folders: int = MAX_FOLDERS, denied: Collection[str] = ()) -> None:
        """Scan the folder with the real path `root`.

        Args:
            root: The folder.
            max_folders: Folders below it that are scanned.
            denied: Paths in it that are candidates with all that is in them, whatever their names.
        """
        self._root = root
        self._max_folders = max_folders
        self._max_path_chars = MAX_PATH_BYTES - len(os.fsencode(root)) - 2
        self._listings: dict[tuple[int, int], Listing]
        self._named = _NamedEntries()
        self.deny(denied)

    def deny(self, denied: Collection[str]) -> None:
        """Count these paths as candidates from now on, with all that is in them, and those of before not."""
        self._listings = {}  # listings hold only what counted
        self._denied = frozenset(denied)
        self._places = frozenset(path[: path.rfind("/") + 1] for path in denied)

    def name(self, named: NamedFiles) -> bool:
        """Count these files as candidates, too; return whether they are others than before."""
        entries = _NamedEntries.of(named)
        if entries == self._named:
            return False
        self._named, self._listings = entries, {}  # listings hold only what counted
        return True

    def __repr__(self) -> str:
        return f"<CandidateScanner of {self._root!r}: {len(self._listings)} listings>"

    def scan(self, steps: Steps) -> CandidateScan:
        """Walk through the workspace.

        Raises:
            OutOfSteps: If it takes more than `steps`. The next walk begins anew, but finds listings cached.
        """
        walk = _CandidateWalk(
            self._listings,
            self._max_folders,
            self._max_path_chars,
            steps,
            self._named,
            self._denied,
            self._places,
        )
        try:
            with suppress(FileNotFoundError, NotADirectoryError):  # without a workspace all files are gone
                try:
                    root = os.open(self._root, DIRECTORY_FLAGS)
                except PermissionError:
                    root = open_unlocked(self._root)
                walk.run(root)
        except OSError as error:
            walk.result.unwatched = f"a folder of its own that cannot be opened ({error.strerror})"
            walk.result.is_all_usable = False
            walk.result.is_closed = True
        except OutOfSteps:
            self._listings = (self._listings | walk.listings) if len(self._listings) < _MAX_LISTINGS else {}
            raise
        self._listings = walk.listings
        return walk.result


@dataclass(slots=True)
class _CandidateWalk:
    """One walk."""

    _cached: dict[tuple[int, int], Listing]
    _max_folders: int
    _max_path_chars: int
    _steps: Steps
    _named: _NamedEntries
    _denied: frozenset[str]
    _places: frozenset[str]
    result: CandidateScan = field(default_factory=CandidateScan)
    listings: dict[tuple[int, int], Listing] = field(default_factory=dict)
    _folders: int = 0
    _all_clean: bool = True
    _path_chars: int = 0
    _stack: list[_OpenFolder] = field(default_factory=list)

    def run(self, root: int) -> None:
        try:
            languages = self._named.languages.get("", frozenset())
            self._push(root, "", "", ROOT_ZONE.with_languages(languages) if languages else ROOT_ZONE)
            while self._stack:
                frame = self._stack[-1]
                name = next(frame.subfolders, None)
                if name is None:
                    self._pop()
                else:
                    self._enter(frame, name)
        except _Incomplete as reason:
            self.result.unwatched = str(reason)
            self.result.is_all_usable = False
        finally:
            for frame in self._stack:
                if frame.folder >= 0:
                    os.close(frame.folder)

    def _push(self, folder: int, path: str, folded: str, above: Zone) -> None:
        """Take an open folder as the next one; it is closed when the walk leaves it.

        Args:
            folder: Its descriptor.
            path: Its path, which ends with a slash.
            folded: What `fold_name` gives for the path, if that is looked up.
            above: Zone of the folder by the names above it.
        """
        try:
            status = os.fstat(folder)
            key = status.st_dev, status.st_ino
            listing = self._cached.get(key)
            if listing is None or not listing.is_valid(above, status):
                listing = self._list(folder, path, folded, above, status)
        except BaseException:
            os.close(folder)
            raise
        self._stack.append(_OpenFolder(folder, key, path, folded, listing, iter(listing.folders)))
        self._remember(path, key, listing, status)
        if listing.zone.repository:
            self.result.repositories.append(path)
        for name in listing.files:
            self._steps.take()
            self._add_file(folder, path, name, listing.zone)

    def _add_file(self, folder: int, path: str, name: str, zone: Zone) -> None:
        self._path_chars += len(path) + len(name)
        if len(self.result.files) >= MAX_CANDIDATES or self._path_chars > MAX_ALL_PATHS:
            raise _Incomplete(f"more than {MAX_CANDIDATES} notebooks and protected files", path)
        with suppress(OSError):  # removed since it was listed
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            self.result.files[path + name] = CandidateFile(status, zone)

    def _remember(self, path: str, key: tuple[int, int], listing: Listing, status: os.stat_result) -> None:
        if len(self.listings) < _MAX_LISTINGS:
            self.listings[key] = listing
        self._all_clean = self._all_clean and listing.clean and self._folders <= MAX_LISTED_FOLDERS
        if self._all_clean:
            self.result.folders[path] = status
        else:
            self.result.folders.clear()

    def _enter(self, frame: _OpenFolder, name: str) -> None:
        self._folders += 1
        self._steps.take()
        if self._folders > self._max_folders:
            raise _Incomplete(f"more than {self._max_folders} folders", frame.path)
        path = f"{frame.path}{name}/"
        if len(path) > self._max_path_chars:
            # Programs get there by steps or through links only. The walk goes on beside it.
            reason = f"a folder whose path has more than {MAX_PATH_BYTES} bytes"
            self.result.unwatched = self.result.unwatched or str(_Incomplete(reason, frame.path))
            return
        self._take_chars(name)
        above = frame.listing.zone.enter(name)
        folded = ""
        if self._named.names or self._named.folders or self._named.languages:
            # Name by name: the whole path of each folder would be folded again for all below it.
            folded = f"{frame.folded}{fold_name(name)}/"
            if folded in self._named.folders:
                above = above.as_protected()
            if folded in self._named.languages:
                above = above.with_languages(self._named.languages[folded])
        # Compared as they are written: a rule about `secrets` does not concern `Secrets`.
        if path[:-1] in self._denied:
            above = above.as_protected()
        elif path in self._places:
            above = above.of_folder(path)  # a listing that is cached holds for this path alone
        try:
            status = os.stat(name, dir_fd=frame.folder, follow_symlinks=False)
        except OSError:
            return  # removed since it was listed
        key = status.st_dev, status.st_ino
        cached = self._cached.get(key)
        if cached is not None and not cached.folders and not cached.files and cached.is_valid(above, status):
            self._remember(path, key, cached, status)  # nothing of interest in it: do not open it
            return
        inner = self._open(frame, name, status)
        if inner is None:
            return
        if len(self._stack) >= _HELD_FOLDERS:
            os.close(frame.folder)
            frame.folder = -1
        self._push(inner, path, folded, above)

    def _open(self, frame: _OpenFolder, name: str, status: os.stat_result) -> int | None:
        """Open a subfolder; None if it is gone, or nobody can use it."""
        try:
            return os.open(name, DIRECTORY_FLAGS, dir_fd=frame.folder)
        except PermissionError:
            pass
        except OSError as error:
            if error.errno in _REPLACED:
                return None
            raise _Incomplete(f"a folder that cannot be opened ({error.strerror})", frame.path) from None
        if status.st_uid != os.geteuid() or not status.st_mode & stat.S_IXUSR:
            return None  # nobody else's program enters it, either
        # It cannot be listed, but programs can use it as their folder and find files in it by name.
        try:
            return _open_unlistable(frame.folder, name)
        except OSError:
            raise _Incomplete("a folder that cannot be listed", f"{frame.path}{name}/") from None

    def _pop(self) -> None:
        frame = self._stack.pop()
        if self._stack and self._stack[-1].folder < 0:
            parent = self._stack[-1]
            try:
                parent.folder = os.open("..", DIRECTORY_FLAGS, dir_fd=frame.folder)
                status = os.fstat(parent.folder)
            except OSError:
                os.close(frame.folder)
                raise _Incomplete("a folder that was moved during the look", parent.path) from None
            if (status.st_dev, status.st_ino) != parent.key:
                # Race: it was moved, so `..` leads elsewhere, perhaps out of the workspace.
                os.close(frame.folder)
                raise _Incomplete("a folder that was moved during the look", parent.path)
        os.close(frame.folder)

    def _take_chars(self, name: str) -> None:
        """Use up the steps that it takes to fold and to match a name, if it is a long one or not ASCII."""
        if len(name) >= 2 * _STEP_CHARS or not name.isascii():
            self._steps.take(1 + len(name) // _STEP_CHARS)

    def _list(self, folder: int, path: str, folded_path: str, above: Zone, status: os.stat_result) -> Listing:
        # A folder that changed within the last tick may change again without a new change time.
        clean = status.st_ctime_ns < time.time_ns() - RACY_NS
        folders: list[str] = []
        files: list[str] = []
        maybe: list[str] = []
        parts: set[str] = set()
        named = self._named.names.get(folded_path, frozenset())
        self._steps.take(4)
        with os.scandir(folder) as entries:
            for count, entry in enumerate(entries):
                if count % _BATCH == _BATCH - 1:
                    self._steps.take(_BATCH // 4)
                name = entry.name
                self._take_chars(name)
                folded = name.lower() if name.isascii() else fold_name(name)
                if len(folded) < 10 and folded in REPOSITORY_PARTS:
                    parts.add(folded)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                    if len(folders) > self._max_folders:
                        raise _Incomplete(f"more than {self._max_folders} folders", path)
                elif (
                    above.holds_folded_candidate(folded, link=entry.is_symlink())
                    or folded in named
                    or (path + name if path else name) in self._denied
                    or (named and not named.isdisjoint(names_made_of(folded)))
                ):
                    files.append(name)
                elif folded[:1] in _FIRST_LETTERS_OF_GIT and is_file_of_git(folded):
                    maybe.append(name)
                if len(files) > MAX_CANDIDATES:
                    raise _Incomplete(f"more than {MAX_CANDIDATES} notebooks and protected files", path)
        zone = above
        if is_repository(parts):
            zone = above.as_repository()
            files += maybe
        return Listing(status.st_ctime_ns, clean, above, zone, tuple(folders), tuple(files))


@dataclass(frozen=True, slots=True)
class _NamedEntries:
    """Files that settings of git name, as a walk looks them up: by their folder, which ends with a slash."""

    folders: frozenset[str] = frozenset()
    names: Mapping[str, AbstractSet[str]] = field(default_factory=dict)
    languages: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, named: NamedFiles) -> _NamedEntries:
        names: dict[str, set[str]] = {}
        for path in named.files:
            folder, slash, name = fold_name(path).rpartition("/")
            names.setdefault(folder + slash, set()).add(name)
        languages = {fold_name(f"{path}/" if path else ""): one for path, one in named.languages.items()}
        return cls(frozenset(fold_name(f"{path}/") for path in named.folders), names, languages)


class _Incomplete(Exception):
    """The walk cannot go on."""

    def __init__(self, reason: str, path: str) -> None:
        place = path if len(path) <= 60 else f"{path[:40]}.../{path.rstrip('/').rpartition('/')[2][:16]}/"
        super().__init__(f"{reason}, in {place!r}" if path else reason)


def _open_unlistable(folder: int, name: str) -> int:
    """Open a folder of ours that only lacks the right to be listed, which it has for a moment."""
    place = os.open(name, WALK_FLAGS, dir_fd=folder)
    try:
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        path = Path(f"/proc/self/fd/{place}")
        path.chmod(mode | stat.S_IRUSR)
        try:
            return os.open(path, DIRECTORY_FLAGS & ~os.O_NOFOLLOW)
        finally:
            path.chmod(mode)
    finally:
        os.close(place)
