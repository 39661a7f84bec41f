"""Which files of a workspace are read only for a worker at level `isolated`, found and planned as mounts.

Threat: as in `aisotools.workspace.protected_names`: a worker changes a file that programs of the host run.
Mechanism: before a worker starts, its workspace is searched for these names, and each is mounted on itself
read only in the worker's own mount namespace. The folders above become mount points as well, and stay
writable: a mount point can be neither renamed nor removed.
Race: what appears after the search is not read only; nothing of this worker runs by then.
Failure: the search and the number of mounts are bounded, because both cost start-up time. What lies beyond is
compared and restored after each call, like everything that is protected, so this is a second line only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from aisotools.workspace.protected_names import allows, fold_name, name_matcher

SEARCH_DEPTH = 6
"""How many levels of folders are searched for protected names."""

SEARCH_ENTRIES = 25_000
"""How many directory entries are looked at, the upper levels first: 10 to 20 ms. What lies beyond is not read
only for the worker; it is compared and restored after each call, like everything else that is protected."""

MOST_PROTECTED = 128
"""How many files and folders are protected at most; each is a mount, which costs start-up time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedNames:
    """What is to be read only wherever it lies in the workspace; letter case does not matter.

    Attributes:
        files: File names and globs of them.
        folders: Paths of folders, such as `.git/hooks`.
        allowed: Names that a person has allowed all the same; see `AllowedName`.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    def cover(self, path: str, *, folder: bool) -> bool:
        """Return whether `path`, relative to the workspace, is one of these."""
        return self.compare()(path, folder)

    def compare(self) -> Callable[[str, bool], bool]:
        """Return `cover` as a function of a path and whether it is a folder; thousands are compared."""
        is_file = name_matcher(self.files)
        endings = tuple(f"/{folder}" for folder in self.folders)

        def covers(path: str, folder: bool) -> bool:
            if folder:
                found = f"/{fold_name(path)}".endswith(endings)
            else:
                found = is_file(fold_name(path.rpartition("/")[2]))
            return found and not allows(self.allowed, path)

        return covers


@dataclass(frozen=True, slots=True)
class ProtectionMount:
    """One mount of a path of the workspace on itself.

    Attributes:
        path: Relative to the workspace.
        read_only: Whether it is what is protected, or a folder above it.
    """

    path: str
    read_only: bool


def plan_protection(protected: list[str]) -> tuple[ProtectionMount, ...]:
    """Return the mounts that protect these paths, folders before what lies in them."""
    read_only: dict[str, bool] = {}
    for path in protected[:MOST_PROTECTED]:
        # The folders above become mount points too, and stay writable. A mount point can be neither renamed
        # nor removed, while a folder that merely holds one could be moved away and made anew. The price:
        # renaming into or out of such a folder fails with EXDEV, as it does between two disks.
        names = path.split("/")
        for depth in range(1, len(names)):
            read_only.setdefault("/".join(names[:depth]), False)
        read_only[path] = True
    covering = tuple(f"{path}/" for path in protected[:MOST_PROTECTED])
    covered = {path for path in read_only if path.startswith(covering)}
    ordered = sorted((path for path in read_only if path not in covered), key=lambda path: path.count("/"))
    return tuple(ProtectionMount(path, read_only[path]) for path in ordered)


def find_protected(workspace: str, names: ProtectedNames) -> list[str]:
    """Return the paths that `names` cover, relative to the workspace, within the bounds of the search.

    Links are not followed, nor protected themselves.
    """
    found: list[str] = []
    covers = names.compare()
    level = [""]
    looked_at = 0
    # Breadth first: names that matter lie near the top, and a large folder must not use up the bound before.
    for _ in range(SEARCH_DEPTH):
        below: list[str] = []
        for folder in level:
            try:
                with os.scandir(f"{workspace}/{folder}") as entries:
                    for entry in entries:
                        looked_at += 1
                        path = f"{folder}/{entry.name}" if folder else entry.name
                        is_folder = entry.is_dir(follow_symlinks=False)
                        if covers(path, is_folder) and not entry.is_symlink():
                            found.append(path)
                        elif is_folder and entry.name != "node_modules":  # it would use up all mounts
                            below.append(path)
            except OSError:
                continue  # what may not be read here cannot be searched
            if looked_at > SEARCH_ENTRIES:
                return found
        level = below
    return found
