"""Files of a workspace that programs of the host run or trust, mounted on themselves read only.

So are, writable, the folders above them: a mount point can be neither renamed nor removed, while a folder
that merely holds one could be moved away and made anew. The price: renaming into or out of such a folder
fails with EXDEV, as it does between two disks.
"""

from __future__ import annotations

import fnmatch
import os
from dataclasses import dataclass

from aisotools.sandbox import mounts
from aisotools.sandbox.mounts import Attribute

DEPTH = 6
"""How many levels of folders are searched."""

ENTRIES = 5_000
"""How many directory entries are looked at, the upper levels first; what lies beyond is not shielded."""

MOST = 128
"""How many files and folders are shielded at most."""

_PLAIN = Attribute.NO_SETUID | Attribute.NO_DEVICES


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What is to be read only wherever it lies in the workspace; letter case does not matter.

    Attributes:
        files: Globs of file names.
        folders: Paths of folders, such as `.git/hooks`.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    def cover(self, path: str, *, folder: bool) -> bool:
        """Whether `path`, relative to the workspace, is one of these."""
        low = path.lower()
        if folder:
            return any(f"/{low}".endswith(f"/{name}") for name in self.folders)
        name = low.rpartition("/")[2]
        return any(fnmatch.fnmatchcase(name, glob) for glob in self.files)


@dataclass(frozen=True, slots=True)
class Shield:
    """One mount to make.

    Attributes:
        path: Relative to the workspace.
        read_only: Whether it is what is protected, or a folder above it.
    """

    path: str
    read_only: bool


def shields(protected: list[str]) -> tuple[Shield, ...]:
    """The mounts that protect these paths, folders before what lies in them."""
    found: dict[str, bool] = {}
    for path in protected[:MOST]:
        names = path.split("/")
        for depth in range(1, len(names)):
            found.setdefault("/".join(names[:depth]), False)
        found[path] = True
    inside = [path for path in found if any(path.startswith(f"{p}/") for p in protected if found.get(p))]
    ordered = sorted((path for path in found if path not in inside), key=lambda path: path.count("/"))
    return tuple(Shield(path, found[path]) for path in ordered)


def find(workspace: str, names: Names) -> list[str]:
    """What `names` cover in the workspace, relative to it, within the bounds; links are not followed."""
    found: list[str] = []
    level, seen = [""], 0
    for _ in range(DEPTH):
        below: list[str] = []
        for folder in level:
            try:
                with os.scandir(f"{workspace}/{folder}") as entries:
                    for entry in entries:
                        seen += 1
                        path = f"{folder}/{entry.name}" if folder else entry.name
                        is_folder = entry.is_dir(follow_symlinks=False)
                        if names.cover(path, folder=is_folder) and not entry.is_symlink():
                            found.append(path)
                        elif is_folder:
                            below.append(path)
            except OSError:
                continue  # what may not be read here cannot be searched
            if seen > ENTRIES:
                return found
        level = below
    return found


def raise_shields(workspace: str, names: Names) -> tuple[str, ...]:
    """Mount everything that `names` cover read only on itself; in a mount namespace of one's own.

    Returns:
        The paths that are mount points now.

    Raises:
        OSError: The kernel refused.
    """
    raised = []
    for shield in shields(find(workspace, names)):
        path = f"{workspace}/{shield.path}"
        try:
            place = mounts.straight(path)
        except FileNotFoundError:
            continue  # another session has removed it meanwhile
        tree = mounts.clone(place, _PLAIN | (Attribute.READ_ONLY if shield.read_only else Attribute(0)))
        mounts.attach(tree, place)
        raised.append(path)
    return tuple(raised)
