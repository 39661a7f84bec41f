"""Scratch folders: the private home and temporary files of one worker, named, made and removed.

Each belongs to a fork server, whose process id is in its name, so that whoever is left at the end can find
all of them. Removing one is hard: strangers' code has worked in it.

Threat: code of a sandbox makes a tree that cannot be removed (too deep, locked, full of links), or has the
removal reach outside; in a shared /tmp somebody else puts a link where the folder is to be.
Mechanism: a folder is made with `mkdir`, never taken over, and only its owner may enter. To be removed each
folder in it is moved to the top first, so that no path gets long, and links are removed, never followed.
Race: none: it is removed when no process of the sandbox is left, and nobody else may enter it.
Failure: one that exists already is an error, and the worker does not start. What cannot be removed stays in
the private folder, and whoever comes later may look at it.
"""

from __future__ import annotations

import os
import stat


def scratch_prefix(temporary: str, server: int) -> str:
    """Return how the paths of all scratch folders of the fork server with process id `server` begin."""
    return f"{os.path.realpath(temporary)}/aisotools-{server}-"


def make_scratch(folder: str) -> None:
    """Create a scratch folder with a `home` and a `tmp`, which only we may enter.

    Raises:
        OSError: It exists already, or cannot be made.
    """
    # Never `exist_ok`: in a shared /tmp somebody else may have put a folder, or a link, in that place.
    # matplotlib needs its folder, and a tool that only reads could not make one.
    for path in (folder, f"{folder}/home", f"{folder}/home/.matplotlib", f"{folder}/tmp"):  # noqa: S108 - private
        os.mkdir(path, 0o700)


def remove_folder(path: str) -> None:
    """Remove a folder in which strangers' code has worked, however deep, locked or odd.

    Nothing outside is touched: links are removed and never followed. To be called when nothing runs in there
    any more. What cannot be removed stays, and the folders above it.
    """
    # Strangers can make a tree deeper than the recursion limit, than PATH_MAX and than our descriptors. So
    # every folder is moved to the top before it is emptied: paths stay short, and in the end there is one
    # level of empty folders. The random part is a name that nobody in there can have taken.
    unguessable = os.urandom(8).hex()
    todo = [path]
    moved = 0
    while todo:
        folder = todo.pop()
        for entry in _entries(folder):
            try:
                if not entry.is_dir(follow_symlinks=False):
                    # Race: none. All processes of the sandbox have ended, so nobody puts a link on the way.
                    os.unlink(entry.path)
                    continue
                place = entry.path
                if folder != path:
                    moved += 1
                    place = f"{path}/{unguessable}-{moved}"
                    # Moving a folder rewrites its "..", which takes the right to write in it.
                    os.chmod(entry.path, stat.S_IRWXU)
                    os.rename(entry.path, place)
                todo.append(place)
            except OSError:
                continue
    for place in (*(entry.path for entry in _entries(path)), path):
        try:
            os.rmdir(place)
        except OSError:
            return  # something resists; the folder is private, and stays as evidence


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        # Strangers may have locked it. It is a real folder: links were sorted out on the way here.
        os.chmod(folder, stat.S_IRWXU)
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
