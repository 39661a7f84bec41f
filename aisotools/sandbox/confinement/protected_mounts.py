"""Which files of a workspace are read only, or hidden, for a worker at level `isolated`, planned as mounts.

Threat: as in `aisotools.workspace.protected_names`: a worker changes a file that programs of the host run.
Mechanism: before a worker starts, its workspace is searched for these names, and each is mounted on itself
read only in the worker's own mount namespace. The folders above become mount points as well, and stay
writable: a mount point can be neither renamed nor removed.
Race: what appears after the search is not read only; nothing of this worker runs by then.
Failure: the search and the number of mounts are bounded, because both cost start-up time. What lies beyond is
compared and restored after each call, like everything that is protected, so this is a second line only.

Paths that rules of a policy deny are mounted in the same way: over one that must not be read lies an empty
file or folder that nobody may open, and one that must not be written is read only. Race: a path that is not
there when the worker starts, or is replaced later, is not covered until `remounts` has mounted it, which is
before the next call. A link on the way to such a path, which would lead past the mount, is itself mounted
over with an empty file, so that nothing is reached by it, unless what it leads to is denied as well. Failure:
a path at which nothing can be mounted ends the start of the worker, after all others were mounted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from aisotools.core.path_texts import is_within
from aisotools.workspace.protected_names import allows, fold_name, name_matcher
from aisotools.workspace.real_paths import follow_path

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
        unreadable: Paths relative to the workspace that rules of the policy keep from being read.
        unwritable: The same for being written.
    """

    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeniedPaths:
    """Paths relative to the workspace that rules deny.

    Attributes:
        unreadable: Those that must not be read or written.
        unwritable: Those that must not be written.
    """

    unreadable: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()


def without_links(workspace: str, denied: DeniedPaths) -> tuple[DeniedPaths, dict[str, set[str]]]:
    """Return where mounts have to lie, and links in the workspace with the denied paths they are the way to.

    A path with a link on the way is left to a denied path that it leads to. If it leads to none, or nobody
    can say where, the first link on the way takes its place: it has to be hidden.

    Args:
        workspace: Its real path, without any mounts for rules.
        denied: What rules deny, each with its links, and what these lead to.
    """
    links: dict[str, set[str]] = {}
    unreadable = _without_links(workspace, denied.unreadable, denied.unreadable, links)
    unwritable = _without_links(workspace, denied.unwritable, (*denied.unreadable, *denied.unwritable), links)
    # A link has nothing that could be read only: what is written by it lies elsewhere.
    hidden = (*unreadable, *(path for path in unwritable if path not in denied.unwritable))
    fixed = tuple(path for path in unwritable if path in denied.unwritable)
    return DeniedPaths(unreadable=tuple(dict.fromkeys(hidden)), unwritable=fixed), links


def _without_links(
    workspace: str, paths: Iterable[str], denied: Sequence[str], links: dict[str, set[str]]
) -> list[str]:
    found: dict[str, None] = {}
    for path in paths:
        names = path.split("/")
        ways = ("/".join(names[:depth]) for depth in range(1, len(names) + 1))
        link = next((way for way in ways if os.path.islink(f"{workspace}/{way}")), None)
        if link is None:
            found[path] = None
            continue
        links.setdefault(link, set()).add(path)
        try:
            real, followed = follow_path(f"{workspace}/{path}")
        except (OSError, ValueError):
            found[link] = None
            continue
        start = len(workspace) + 1
        for one in followed:
            if one.startswith(f"{workspace}/"):
                links.setdefault(one[start:], set()).add(path)
        if not (real.startswith(f"{workspace}/") and any(is_within(real[start:], one) for one in denied)):
            found[link] = None
    return list(found)


MountKind = Literal["hidden", "read_only", "writable"]
"""`hidden` for something empty over a path; `read_only` or `writable` for the path on itself."""


@dataclass(frozen=True, slots=True)
class ProtectionMount:
    """One mount over a path of the workspace.

    Attributes:
        path: Relative to the workspace.
        kind: What is mounted there.
    """

    path: str
    kind: MountKind


def plan_protection(
    protected: Sequence[str], *, unwritable: Sequence[str] = (), unreadable: Sequence[str] = ()
) -> tuple[ProtectionMount, ...]:
    """Return the mounts that protect and hide paths, folders before what lies in them.

    Args:
        protected: The result of `find_protected`; the first `MOST_PROTECTED` of them count.
        unwritable: Further paths to be read only, all of them.
        unreadable: Paths to be hidden.
    """
    protected = [*protected[:MOST_PROTECTED], *unwritable]
    kinds: dict[str, MountKind] = {}
    for path in (*protected, *unreadable):
        # The folders above become mount points too, and stay writable. A mount point can be neither renamed
        # nor removed, while a folder that merely holds one could be moved away and made anew. The price:
        # renaming into or out of such a folder fails with EXDEV, as it does between two disks.
        names = path.split("/")
        for depth in range(1, len(names)):
            kinds.setdefault("/".join(names[:depth]), "writable")
    kinds |= dict.fromkeys(protected, "read_only")
    kinds |= dict.fromkeys(unreadable, "hidden")
    # What lies in something hidden is gone with it. Of what lies in something read only, only the way to what
    # is hidden there needs mounts of its own.
    hidden = tuple(f"{path}/" for path in unreadable)
    fixed = tuple(f"{path}/" for path in protected)
    ways = {path for path in kinds if any(one.startswith(f"{path}/") for one in unreadable)}
    mounts: list[ProtectionMount] = []
    for path, kind in sorted(kinds.items(), key=lambda item: item[0].count("/")):
        is_fixed = path.startswith(fixed)
        if path.startswith(hidden) or (is_fixed and kind != "hidden" and path not in ways):
            continue
        mounts.append(ProtectionMount(path, "read_only" if is_fixed and kind == "writable" else kind))
    return tuple(mounts)


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
