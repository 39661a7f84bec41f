"""Removal of folders with all that they hold, and of what a crash left of a restore.

Nothing follows a link, and hostile code can nest folders deeper than any path may be long.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Set as AbstractSet
from contextlib import suppress

from aisotools.workspace.checkpoints.staging import (
    replaced_name,
    stage_name,
    switch_name,
    temporary_prefix,
    writable,
)
from aisotools.workspace.checkpoints.switching import Switcher
from aisotools.workspace.checkpoints.tree import TreePath, open_below
from aisotools.workspace.dirfd import open_unlocked
from aisotools.workspace.workspace import TEMPORARY


def sweep(root: int, folders: Iterable[TreePath], token: str, *, spares_replaced: bool = False) -> bool:
    """Remove what a crash left of partial files and removed folders in these folders, as far as possible.

    Args:
        root: Descriptor of the folder that the paths begin in.
        folders: The folders.
        token: Part of the names of what is removed.
        spares_replaced: Leave what was replaced and is not stored; see `Replaced`.

    Returns:
        False if something of it may be left.
    """
    is_clean = True
    for path in folders:
        try:
            _sweep_folder(root, path, token, {replaced_name(token)} if spares_replaced else set())
        except (FileNotFoundError, NotADirectoryError):
            pass  # a folder that does not exist holds no partial files
        except OSError:
            is_clean = False
    return is_clean


def _sweep_folder(root: int, path: TreePath, token: str, spared: AbstractSet[str]) -> None:
    failures: list[OSError] = []
    folder = open_below(root, path)
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - a descriptor, no path
            if name.startswith(temporary_prefix(token)) and name not in spared:
                try:
                    with suppress(IsADirectoryError):  # nothing of ours: something else has taken the name
                        stages = stage_name(token), switch_name(token), replaced_name(token)
                        if name.startswith(_removed_prefix(token)) or name in stages:
                            with writable(folder, ()) as parent:
                                # Crash: the next sweep finds by their names what is moved out of it here.
                                _remove_below(parent, name, _removed_prefix(token))
                        else:
                            os.unlink(name, dir_fd=folder)
                except FileNotFoundError:
                    pass  # somebody else was faster
                except OSError as error:
                    failures.append(error)
    finally:
        os.close(folder)
    if failures:
        raise failures[0]


def _removed_prefix(token: str) -> str:
    return f"{temporary_prefix(token)}removed-"


def remove_tree(root: int, path: TreePath, token: str = "", switcher: Switcher | None = None) -> None:
    """Remove a path with everything below it, at any depth and of any mode, following no link.

    Subfolders are moved up beside the folder that is being emptied, so that depth costs neither recursion nor
    descriptors: hostile code can nest folders deeper than any path may be long.

    Args:
        root: Descriptor of the folder that the path begins in.
        path: What to remove.
        token: With it the path gets a temporary name first, so that after a crash it is whole or gone, and
            `sweep` finds the rest.
        switcher: Looks whether it is what the plan has seen. Without one nobody does.

    Raises:
        OSError: If something cannot be removed. What is left of it is at `path`.
        ChangedMeanwhile: If somebody else has changed it. It is left as it is.
    """
    with writable(root, path[:-1]) as parent:
        name = path[-1]
        if not token:
            _remove_below(parent, name, TEMPORARY)
            return
        prefix = f"{_removed_prefix(token)}{os.urandom(6).hex()}-"
        if switcher is None:
            # Crash: it is whole, or `sweep` finds what is left by that name.
            os.rename(name, prefix, src_dir_fd=parent, dst_dir_fd=parent)
        else:
            switcher.take_tree(path, prefix, parent)
        try:
            _remove_below(parent, prefix, prefix)
        except OSError:
            # What could not be removed gets its name back, so that a person finds it where it was. Race: with
            # something else at that name by now the rest keeps the temporary one, and `sweep` removes it.
            with suppress(OSError):
                os.rename(prefix, name, src_dir_fd=parent, dst_dir_fd=parent)
            raise


def _remove_below(parent: int, top: str, prefix: str) -> None:
    moved = 0
    todo = [top]
    while todo:
        name = todo.pop()
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            # Race: if it is a folder by now, that is an error, and it stays.
            os.unlink(name, dir_fd=parent)
            continue
        folder = open_unlocked(name, parent)
        try:
            os.fchmod(folder, 0o700)
            for inner in os.listdir(folder):  # noqa: PTH208 - a descriptor, no path
                inner_status = os.stat(inner, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(inner_status.st_mode):
                    # A folder can be moved only by who may write to it.
                    below = open_unlocked(inner, folder)
                    try:
                        # 0o700 and no more: it is moved out of folders whose modes kept other users from it.
                        os.fchmod(below, 0o700)
                    finally:
                        os.close(below)
                    moved += 1
                    new_name = f"{prefix}{os.urandom(6).hex()}-{moved}"
                    os.rename(inner, new_name, src_dir_fd=folder, dst_dir_fd=parent)
                    todo.append(new_name)
                else:
                    # By the open folder, which cannot become a link: nothing outside of it is removed.
                    os.unlink(inner, dir_fd=folder)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)
