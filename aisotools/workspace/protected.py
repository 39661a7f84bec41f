"""Protected files: files in a workspace that programs outside the sandbox run or obey.

Threat: a sandbox writes in its workspace, and the host's own programs read there, too; see
`aisotools.workspace.protected_names` for which files they run or obey.

Mechanism: the confinement cannot exempt single files of a writable folder, so the host holds a copy of each
such file, compares, and restores it. Whatever is new is removed, unless its content is known to be harmless
(plain settings of git, samples of its hooks). Restored files get a new inode, as a process of the sandbox may
have the old one open; replaced content is kept (`aisotools.workspace.quarantine`). The folder is hostile,
also while it is scanned: see `aisotools.workspace.candidates`.
What a rule of the policy denies to write is restored in the same way, whatever its name and content.
A file is read again by each comparison while its times prove nothing about its content: where somebody may
still write through a memory map whose page is dirty already (asked of the kernel, `dirfd.has_writer`), and on
file systems that give such a store no time at all.
Race: between two comparisons a planted file exists. It is removed at the end of the call that wrote it, or
soon after it was written if something was left running (`aisotools.session.protection` says when); a
comparison is repeated while it finds anything. At level `isolated` files that exist when a worker starts are
read only for it.
Failure: what cannot be restored is reported as such. Where not every folder can be watched, `unwatched` says
why, and known files are compared by their paths. Calls run, and fail, until the folders are removed.
"""

from __future__ import annotations

import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aisotools.core.concurrency import sorted_in_runs
from aisotools.core.path_texts import is_within
from aisotools.workspace.candidates import (
    MAX_FOLDERS,
    MAX_LISTED_FOLDERS,
    RACY_NS,
    CandidateFile,
    CandidateScan,
    CandidateScanner,
    OutOfSteps,
    Steps,
)
from aisotools.workspace.dirfd import (
    DIRECTORY_FLAGS,
    FileSnapshot,
    extend_name,
    holds,
    open_unlocked,
    replace_file,
    take_snapshot,
    trusted_device,
)
from aisotools.workspace.git_config import MAX_CONFIG_BYTES, is_harmless_file, is_harmless_name
from aisotools.workspace.git_named_files import GitNamedFiles
from aisotools.workspace.paths import OpenedFolder
from aisotools.workspace.protected_names import (
    AllowedNames,
    find_checkpointed,
    fold_name,
    is_candidate,
    is_notebook,
    zone_of,
)
from aisotools.workspace.quarantine import KeptContent, Quarantine, plain_name
from aisotools.workspace.root_mode import RootMode

FILE_BYTES = 16 << 20
"""Size of the largest file that is copied; a larger one is watched, but cannot be restored."""

ALL_BYTES = 64 << 20
"""Size of all copies together."""

_ROUNDS = 3  # a process of the sandbox may change files again while they are restored
_STEP_BYTES = 1 << 14  # reading this much takes about as long as another system call
_JUDGED_STEPS = 1_000  # judging settings of git takes up to 3 ms
_REREAD_BYTES = 256 << 10  # content that one look reads again where nothing else differs: up to 0.2 ms
_REREAD_FILES = 64
_MAX_SHOWN_CHARS = 200  # of a path, which may have thousands

DifferenceKind = Literal["changed", "removed", "new"]
"""Difference of a protected file from its copy."""

_ACTIONS: dict[DifferenceKind, str] = {
    "changed": "put back",
    "removed": "put back",
    "new": "taken away",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedFileChange:
    """A protected file that differed from its copy.

    Attributes:
        path: Relative to the workspace.
        kind: The difference.
        restored: True if the file is again as it was.
        saved_as: Path of the content that was found, in the quarantine or, where that has no room for all of
            it, under another name in the workspace; empty if there was none to save.
        lost: What of that content was not kept, and why; empty if all of it was.
        denied: True if a rule of the policy denies to write it, whatever its name.
        loader: The setting of git whose program loads it, and how; empty if that is not why.
    """

    path: str
    kind: DifferenceKind
    restored: bool
    saved_as: str = ""
    lost: str = ""
    denied: bool = False
    loader: str = ""

    def __str__(self) -> str:
        action = _ACTIONS[self.kind]
        outcome = action if self.restored else f"could NOT be {action}"
        saved = f", found content is in {self.saved_as}" if self.saved_as else ""
        if self.lost:
            saved += f", {self.lost}"
        path = self.path
        if len(path) > _MAX_SHOWN_CHARS:
            path = f"{path[: _MAX_SHOWN_CHARS // 2]}...{path[-_MAX_SHOWN_CHARS // 2 :]}"
        kind = f"{self.kind}, which a rule denies" if self.denied else self.kind
        return f"{path!r} ({kind}; {outcome}{saved})"


def _is_expected(change: ProtectedFileChange) -> bool:
    """Return whether an ordinary run of Python or of tests makes this change, and it has been restored.

    Both write bytecode of protected modules, and write it again where it is missing: nothing is lost by its
    removal, so that no call has to fail for it.
    """
    zone, name = zone_of(change.path), fold_name(change.path).rpartition("/")[2]
    is_bytecode = zone.bytecode and (
        zone.is_compiled(name) or (bool(change.loader) and name.endswith(".pyc"))
    )
    return change.restored and not change.denied and is_bytecode


Stamp = tuple[int, int, int]
"""Inode, device and change time of an entry, in nanoseconds: what user code cannot set."""


class ProtectedFiles:
    """The protected files of one workspace, with copies of how they should be. Thread-safe.

    A notebook is protected if it existed when this object was created, if it is `notebook`, or once Jupyter
    has a checkpoint of it. The sandbox may write other notebooks.

    Attributes:
        allowed: Protected names that a person has allowed; a change counts at once.
        has_denied: Whether there are paths that rules of a policy deny to write or to read.
        root_mode: Mode of the workspace's folder, which every scan puts back; None if nobody watches it.
        unwatched: Why the last scan did not reach every folder, and where; empty if it did.
        is_all_usable: Whether it reached all that a path leads to.
        scan_duration_s: Duration of the last scan in seconds.
    """

    def __init__(
        self,
        workspace: Path,
        quarantine: Path,
        *,
        allowed: AllowedNames | None = None,
        notebook: str = "",
        notebooks: bool = True,
        environ: Mapping[str, str] | None = None,
        most_folders: int = MAX_FOLDERS,
        file_bytes: int = FILE_BYTES,
        denied: Collection[str] = (),
        unreadable: Collection[str] = (),
        package_marks: Collection[str] = (),
    ) -> None:
        """Copy the protected files as they are now.

        Args:
            workspace: Real path of the workspace.
            quarantine: Folder for content found in the place of protected files; made when needed.
            allowed: Protected names that a person has allowed; none without it.
            notebook: Path of the notebook that is open here, if it is known.
            notebooks: Whether to protect notebooks; not where Jupyter writes them all the time.
            environ: Says where a person's settings of git are, which may name files here; None reads none.
            most_folders: Folders that are scanned.
            file_bytes: Size of the largest file that is copied.
            denied: Paths relative to the workspace that no call may write, with all that is in them.
            unreadable: The same for reading: what is found there never gets another name in the workspace.
            package_marks: Further ones, which would make the workspace part of a package.
        """
        self.allowed = allowed or AllowedNames()
        self._folder = OpenedFolder.of(workspace)
        self._file_bytes = file_bytes
        self._quarantine = Quarantine(quarantine, self._set_aside)
        self._package_marks = package_marks
        self._denied = (*package_marks, *denied)
        self._unreadable = tuple(unreadable)
        self.has_denied = bool(denied or unreadable)
        self._scanner = CandidateScanner(self._folder.path, max_folders=most_folders, denied=self._denied)
        self._git = GitNamedFiles(self._folder.path, environ or {})
        self._git_differs = False  # what it has read is not what the settings are now
        self._lock = threading.Lock()
        self._copies: dict[str, FileSnapshot] = {}
        self._judged: dict[str, FileSnapshot] = {}
        """New files that were found harmless, with their content if they have to be read again each time."""
        self._trusted = trusted_device(workspace)
        self._notebooks = notebooks
        self._protected_notebooks = (
            {os.path.relpath(notebook, workspace)} if notebook and notebooks else set()
        )
        self._allowed_names = self.allowed.names
        self.root_mode: RootMode | None = None
        self.unwatched = ""
        self.is_all_usable = True
        self.scan_duration_s = 0.0
        self._settled: tuple[tuple[str, Stamp, bytes | None], ...] = ()
        """Folders and files at a time when every protected file was as its copy; see `_is_settled`."""
        scan = self._scan(Steps())
        if notebooks:
            self._protected_notebooks.update(filter(is_notebook, scan.files))
        self._copy_files(scan)

    def __repr__(self) -> str:
        return f"<ProtectedFiles of {self._folder.path!r}: {len(self._copies)}>"

    @property
    def complete(self) -> bool:
        """True if the last scan reached every folder."""
        return not self.unwatched

    def watch_mode(self, mode: RootMode | None) -> None:
        """Have every scan put back the mode of the workspace's folder from now on; None ends that."""
        self.root_mode = mode

    def follow_denied(self, denied: Collection[str], unreadable: Collection[str]) -> None:
        """Put back these paths from now on, with all that is in them, as they are now; others no longer.

        Args:
            denied: The paths.
            unreadable: Those of which nothing that is found there gets another name in the workspace.
        """
        with self._limit(float("inf")) as steps:
            self._unreadable = tuple(unreadable)
            before, self._denied = self._denied, (*self._package_marks, *denied)
            self.has_denied = bool(denied or unreadable)
            self._scanner.deny(self._denied)
            scan = self._scan(steps)

            def was_denied(path: str) -> bool:
                return any(is_within(path, one) for one in before)

            for path in self._copies.keys() - scan.files.keys():
                if was_denied(path) and not self._is_denied(path) and not is_candidate(path):
                    del self._copies[path]
            # What is protected by its name is not taken as it is now: something may have written it.
            self._adopt(scan, {path for path in scan.files if self._is_denied(path) and not was_denied(path)})

    def accept(self, *, most_steps: float = float("inf"), still: Callable[[], bool] = lambda: True) -> bool:
        """Accept the present state of all protected files as the one to restore.

        Args:
            most_steps: Work that may be done.
            still: Asked when all of them have been read. If it says no, nothing is accepted.

        Returns:
            Whether it was accepted.

        Raises:
            OutOfSteps: If it takes more than `most_steps`; nothing has happened then.
        """
        if not self._folder.is_in_place:
            return False
        with self._limit(most_steps) as steps:
            before = self._copies
            self._copy_files(self._scan(steps), steps)
            if not still():
                self._copies = before
                return False
            return True

    def differs(self, *, most_steps: float = float("inf")) -> bool:
        """Return whether any protected file differs from its copy. Change nothing.

        Raises:
            OutOfSteps: If it takes more than `most_steps`.
        """
        if self._is_settled():
            return False
        with self._limit(most_steps) as steps:
            scan = self._scan(steps)
            differing, rewritten = self._compare(scan, steps)
            self._settle(scan, differs=bool(differing or rewritten))
            return bool(differing)

    def restore(
        self, spared: frozenset[str] = frozenset(), *, most_steps: float = float("inf")
    ) -> tuple[ProtectedFileChange, ...]:
        """Compare all protected files with their copies and restore those that differ.

        Args:
            spared: Notebooks that may differ, because the call declared that it writes them and was allowed
                to. A notebook that is open in Jupyter is restored all the same.
            most_steps: Work that may be done. With any limit nothing is restored, only found to be as it was.

        Returns:
            The differences, sorted by path. Bytecode in `__pycache__` is restored and not among them, as an
            ordinary run of Python writes it.

        Raises:
            OutOfSteps: If it takes more than `most_steps`, or there is something to restore or to accept.
        """
        if self._is_settled():
            return ()
        with self._limit(most_steps) as steps:
            changes: dict[str, ProtectedFileChange] = {}
            # Race: a process that still runs in the sandbox may change a file again while it is restored.
            for round_ in range(_ROUNDS):
                scan = self._scan(steps)
                if spared and round_ == 0:
                    spared -= self._protected_notebooks & set(find_checkpointed(scan.files))
                    spared -= {path for path in spared if self._is_denied(path)}
                differing, rewritten = self._compare(scan, steps)
                for path in spared:
                    differing.pop(path, None)
                if (differing or rewritten or spared) and most_steps != float("inf"):
                    raise OutOfSteps  # copies and writes take as long as the disk takes
                for path in rewritten:
                    self._restore_file(path, "changed")
                for path, kind in differing.items():
                    changes[path] = self._restore_file(path, kind)
                if not differing and not rewritten:
                    self._settle(scan, differs=bool(spared))
                    break
            accepted = set(spared)
            for path, change in changes.items():
                # A copy that could not be put back is tried again: without it undo would plant the file.
                if not change.restored and ((copy := self._copies.get(path)) is None or copy.data is None):
                    accepted.add(path)
            if accepted or (self._protected_notebooks - self._copies.keys()) & scan.files.keys():
                self._adopt(scan, accepted)
            if not changes:
                return ()
            return tuple(changes[path] for path in sorted_in_runs(changes) if not _is_expected(changes[path]))

    @contextmanager
    def _limit(self, most_steps: float) -> Iterator[Steps]:
        """Hold the lock, and give so many steps; a limited caller does not wait for the lock either."""
        if not self._lock.acquire(blocking=most_steps == float("inf")):
            raise OutOfSteps
        try:
            if self.allowed.names != self._allowed_names:
                if most_steps != float("inf"):
                    raise OutOfSteps
                self._follow_allowed()
            if self._git_differs:
                if most_steps != float("inf"):
                    raise OutOfSteps
                self._git_differs = False
                self._follow_git()
            yield Steps(most_steps)
        finally:
            self._lock.release()

    def _settle(self, scan: CandidateScan, *, differs: bool) -> None:
        """Remember a scan that later ones may be compared with, if it is one that found nothing."""
        if differs or self.unwatched or not scan.folders or len(scan.files) > MAX_LISTED_FOLDERS:
            return
        settled: list[tuple[str, Stamp, bytes | None]] = []
        files = bytes_ = 0
        for path, status in scan.folders.items():
            stamp = status.st_ino, status.st_dev, status.st_ctime_ns
            settled.append((f"{self._folder.path}/{path}".rstrip("/"), stamp, None))
        for path, file in scan.files.items():
            known = self._judged.get(path) or self._copies.get(path)
            if known is not None and not known.matches(file.status):
                return
            data = None
            if known is not None and not known.clean:
                # It may still change under the same change time.
                files, bytes_ = files + 1, bytes_ + len(known.data or b"")
                if known.data is None or files > _REREAD_FILES or bytes_ > _REREAD_BYTES:
                    return
                if stat.S_ISREG(file.status.st_mode):
                    data = known.data
            stamp = file.status.st_ino, file.status.st_dev, file.status.st_ctime_ns
            settled.append((f"{self._folder.path}/{path}", stamp, data))
        self._settled = tuple(settled)

    def _is_settled(self) -> bool:
        """Return whether no folder and no file has changed since the scan that `_settle` remembers.

        This is what most calls find. It costs one `lstat` for each of them, and reading those whose times
        prove nothing. It may use whole paths: where a folder was exchanged for another one or for a link, its
        inode or that of what lies in it differs, and user code can set neither inode numbers nor change
        times. A folder that changed has a new change time, so nothing can be new without being noticed. It
        takes no lock, since it reads one reference to what nobody changes any more.
        """
        # Where the workspace is not in its place, what is there is no business of this session, and stays as
        # it is. That is asked last, since what has not changed is in its place.
        # Settings of git outside the workspace are the person's own: they may be links, and need not exist.
        for path, known in self._git.stamps.items():
            now = None
            with suppress(OSError, ValueError):
                status = os.stat(path)  # noqa: PTH116 - a Path takes longer
                now = status.st_ino, status.st_dev, status.st_ctime_ns
            if now != known:
                self._git_differs = True
                return not self._folder.is_in_place
        if not (settled := self._settled) or self.allowed.names != self._allowed_names:
            return not self._folder.is_in_place
        try:
            for path, stamp, data in settled:
                if data is not None:
                    if not holds(path, stamp, data):
                        return not self._folder.is_in_place
                    continue
                status = os.lstat(path)
                if (status.st_ino, status.st_dev, status.st_ctime_ns) != stamp:
                    return not self._folder.is_in_place
        except OSError:
            return not self._folder.is_in_place
        return True

    # ---- scan

    def _scan(self, steps: Steps) -> CandidateScan:
        self._settled = ()
        started_s = time.monotonic()
        with suppress(OSError):  # without a folder there is no mode
            if self.root_mode is not None and os.lstat(self._folder.path).st_mode != self.root_mode.value:
                self.root_mode.put_back()
        scan = self._scanner.scan(steps)
        if scan.repositories and self._scanner.name(self._git.of_repositories(scan.repositories)):
            scan = self._scanner.scan(steps)  # a new repository, for which a person's settings name hooks
        if scan.unwatched:
            # The walk did not reach everything, but what is known is looked up by its path.
            for path in self._copies.keys() - scan.files.keys():
                with suppress(OSError), self._parent(path) as (folder, name):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    scan.files[path] = CandidateFile(status, zone_of(path))
        if self._allowed_names:
            scan.files = {path: file for path, file in scan.files.items() if not self._is_allowed(path)}
        if self._notebooks and scan.files:
            self._protected_notebooks.update(find_checkpointed(scan.files))
        self.unwatched, self.is_all_usable = scan.unwatched, scan.is_all_usable
        self.scan_duration_s = time.monotonic() - started_s
        return scan

    def _is_denied(self, path: str) -> bool:
        return any(is_within(path, one) for one in self._denied)

    def _is_allowed(self, path: str) -> bool:
        return self.allowed.cover(path) and not self._is_denied(path)

    def _follow_allowed(self) -> None:
        """Drop the copies of names that were allowed since, and copy those that no longer are."""
        before = AllowedNames(self._allowed_names)
        self._allowed_names = self.allowed.names
        for path in [path for path in self._copies if self._is_allowed(path)]:
            del self._copies[path]
        scan = self._scan(Steps())
        self._adopt(scan, {path for path in scan.files if before.cover(path)})

    def _follow_git(self) -> None:
        """Protect what a person's own settings of git name since they changed, as it is now."""
        before = self._scan(Steps())
        scan = self._name(before, Steps())
        self._adopt(scan, scan.files.keys() - before.files.keys())

    def _name(self, scan: CandidateScan, steps: Steps) -> CandidateScan:
        """Read the settings of git, and scan again if they name other files than before."""
        for _ in range(_ROUNDS):  # what is named may be a link, or a repository
            settings, links = [], []
            for path, file in scan.files.items():
                if stat.S_ISLNK(file.status.st_mode):
                    links.append(path)
                name = path.rpartition("/")[2]
                if file.zone.is_git_settings(name) or fold_name(name) == ".git":
                    settings.append(path)
            if not self._scanner.name(self._git.read(settings, links, scan.repositories)):
                break
            scan = self._scan(steps)
        return scan

    # ---- compare

    def _compare(self, scan: CandidateScan, steps: Steps) -> tuple[dict[str, DifferenceKind], list[str]]:
        """Return the differing files, and those whose inode or times changed while the content is the same.

        The latter are rewritten under a new inode: a process of the sandbox may hold them open for writing.
        """
        differing: dict[str, DifferenceKind] = {}
        known: dict[str, FileSnapshot] = {}
        rewritten = []
        for path, copy in self._copies.items():
            file = scan.files.get(path)
            if file is None:
                if not scan.is_closed:
                    differing[path] = "removed"
                continue
            if copy.clean and copy.matches(file.status):
                continue
            # More than the copy has, or git's settings may have, need not be read: then it differs.
            limit = max(len(copy.data or b""), MAX_CONFIG_BYTES)
            now = self._read(path, file, limit, steps)
            if not now.matches(file.status):  # Race: it was exchanged since the walk; see `_judge`
                scan.files[path] = file = CandidateFile(now.status, file.zone)
            same = now.data == copy.data and file.status.st_mode == copy.status.st_mode
            if copy.matches(file.status) and (same or copy.data is None):
                self._copies[path] = now
            elif same and copy.data is not None:
                rewritten.append(path)
            elif self._is_denied(path) or not self._is_harmless(path, file, now.data, copy.data):
                differing[path] = "changed"
            else:
                known[path] = now  # it is compared with its copy again as long as they differ
        for path, file in scan.files.items():
            if self._is_denied(path) and path not in self._copies:
                differing[path] = "new"
            if path in self._copies or path in differing or is_notebook(path):
                continue
            judged = self._judge(path, file, scan, steps)
            if judged is None:
                differing[path] = "new"
            else:
                known[path] = judged
        self._judged = self._limit_content(known)
        return differing, rewritten

    def _judge(
        self, path: str, file: CandidateFile, scan: CandidateScan, steps: Steps
    ) -> FileSnapshot | None:
        """Return a new file as it was found harmless; None if it is not."""
        if is_harmless_name(path, file.zone) and stat.S_ISREG(file.status.st_mode):
            return FileSnapshot(file.status, None, clean=True)
        before = self._judged.get(path)
        if before is not None and before.clean and before.matches(file.status):
            return before
        found = self._read(path, file, MAX_CONFIG_BYTES, steps)
        if not found.matches(file.status):
            # Race: another file was moved there since the walk. What was read is what is judged.
            scan.files[path] = CandidateFile(found.status, file.zone)
        if before is None or before.data is None or before.data != found.data:
            steps.take(_JUDGED_STEPS)
            if not self._is_harmless(path, file, found.data):
                return None
        return found

    @staticmethod
    def _is_harmless(path: str, file: CandidateFile, found: bytes | None, known: bytes | None = None) -> bool:
        return stat.S_ISREG(file.status.st_mode) and is_harmless_file(path, file.zone, found, known)

    @staticmethod
    def _limit_content(judged: dict[str, FileSnapshot]) -> dict[str, FileSnapshot]:
        """Forget the content of files that need not be read again, and of those that are too many."""
        left_bytes = _REREAD_BYTES
        for path, one in judged.items():
            left_bytes -= 0 if one.clean else len(one.data or b"")
            if one.clean or left_bytes < 0:
                judged[path] = FileSnapshot(one.status, None, one.clean)
        return judged

    # ---- copies

    def _copy_files(self, scan: CandidateScan, steps: Steps | None = None) -> None:
        used_bytes = 0
        copies = {}
        scan = self._name(scan, steps or Steps())
        # What rules deny comes last: however much it is, it takes no room from what programs run.
        for path, file in sorted(scan.files.items(), key=lambda one: self._is_denied(one[0])):
            if is_notebook(path) and not (path in self._protected_notebooks or self._is_denied(path)):
                continue
            copy = self._copies.get(path)
            if copy is None or not copy.clean or not copy.matches(file.status):
                copy = self._read(path, file, ALL_BYTES - used_bytes, steps)
            used_bytes += len(copy.data or b"")
            copies[path] = copy
        self._copies = copies

    def _adopt(self, scan: CandidateScan, accepted: AbstractSet[str]) -> None:
        """Copy notebooks that are newly protected, and files whose present state is `accepted`.

        Accepted are the files that a call was allowed to write, and those of which there is no copy.
        """
        for path in accepted - scan.files.keys():
            self._copies.pop(path, None)
        used_bytes = sum(len(copy.data or b"") for copy in self._copies.values())
        for path in (self._protected_notebooks | accepted) & scan.files.keys():
            if path not in self._copies or path in accepted:
                copy = self._read(path, scan.files[path], ALL_BYTES - used_bytes)
                self._copies[path] = copy
                used_bytes += len(copy.data or b"")

    def _read(
        self, path: str, file: CandidateFile, max_bytes: int = ALL_BYTES, steps: Steps | None = None
    ) -> FileSnapshot:
        """Read a file; its content is None if it has more than `max_bytes` or than any copy may have."""
        status, data = file.status, None
        max_bytes = min(max_bytes, self._file_bytes)
        racy_ns = time.time_ns() - RACY_NS
        if steps is not None:
            steps.take(4 + min(status.st_size, max_bytes) // _STEP_BYTES)
        with suppress(OSError), self._parent(path) as (folder, name):
            if stat.S_ISLNK(status.st_mode):
                data = os.fsencode(os.readlink(name, dir_fd=folder))
            elif stat.S_ISREG(status.st_mode):
                trusted = status.st_dev == self._trusted
                return take_snapshot(folder, name, max_bytes, racy_ns=racy_ns, trusted=trusted)
        return FileSnapshot(status, data, status.st_ctime_ns < racy_ns)

    # ---- restore

    def _restore_file(self, path: str, kind: DifferenceKind) -> ProtectedFileChange:
        found, restored, denied = KeptContent(), True, self._is_denied(path)
        by_rule = denied and path not in self._package_marks
        copy = self._copies.get(path)
        in_the_way: list[KeptContent] = []
        try:
            with self._parent(path, in_the_way if copy is not None else None) as (folder, name):
                if copy is not None and copy.data is None:
                    # Too large to have been copied. Removing what is there would lose the file altogether.
                    return ProtectedFileChange(path=path, kind=kind, restored=False, denied=by_rule)
                # "Removed" files may be there all the same, where they count as protected no longer.
                with suppress(FileNotFoundError, IsADirectoryError):
                    found = self._quarantine.take(
                        folder,
                        name,
                        known=None if copy is None else copy.data,
                        replaces=copy is not None or denied,
                        may_stay=not (denied or any(is_within(path, one) for one in self._unreadable)),
                        compiled=zone_of(path).bytecode and zone_of(path).is_compiled(fold_name(name)),
                    )
                if copy is not None:
                    self._copies[path] = replace_file(folder, name, copy)
        except OSError:
            restored = False
        if not found and in_the_way:
            found = in_the_way[-1]
        loader = "" if denied or is_candidate(path) else self._git.explain(path)
        where = {"saved_as": found.place, "lost": found.lost}
        return ProtectedFileChange(
            path=path, kind=kind, restored=restored, denied=by_rule, loader=loader, **where
        )

    def _set_aside(self, folder: int, name: str) -> str:
        """Move `name` of an open folder to a free name of the workspace that nothing runs or obeys.

        Nobody can foresee the name, and the sandbox could have made such a file itself. Nothing is moved in
        the place of a protected name, or to where a rule applies.

        Returns:
            Its new path.

        Raises:
            OSError: If it cannot be moved, or there is no such name.
        """
        ending = f"found-{uuid.uuid4().hex[:12]}"
        for free in (extend_name(plain_name(name), f".{ending}"), ending):
            if is_candidate(free) or self._is_denied(free):
                continue
            with self._parent(free) as (root, last):
                # Race: whatever has this name by now is moved; the next scan looks at it again.
                os.rename(name, last, src_dir_fd=folder, dst_dir_fd=root)
            return f"{self._folder.path}/{free}"
        raise PermissionError("a rule denies to write every name")

    @contextmanager
    def _parent(self, path: str, in_the_way: list[KeptContent] | None = None) -> Iterator[tuple[int, str]]:
        """Open the folder of `path`; yield its descriptor and the last name.

        With `in_the_way` missing folders are created, and what stood in their place is listed there.
        """
        *above, name = path.split("/")
        folder = self._folder.open()
        try:
            for part in above:
                inner = self._open_folder(folder, part, in_the_way)
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)

    def _open_folder(self, folder: int, name: str, in_the_way: list[KeptContent] | None) -> int:
        try:
            return os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
        except PermissionError:
            return open_unlocked(name, folder)
        except OSError:
            if in_the_way is None:
                raise
        # A file or a link stands where there was a folder. Move it away, never walk through it.
        with suppress(FileNotFoundError):
            in_the_way.append(self._quarantine.take(folder, name))
        os.mkdir(name, dir_fd=folder)
        return os.open(name, DIRECTORY_FLAGS, dir_fd=folder)
