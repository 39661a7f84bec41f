"""The files that lay in a workspace when its session began, as far as they fit into a notebook."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aisotools.checkpoint_store import Store
from aisotools.checkpoint_tree import Lists, Node
from aisotools.exceptions import WorkspaceError
from aisotools.paths import printable
from aisotools.session import Session
from aisotools.session_events import CheckpointTaken

MOST_FILE_BYTES = 64 << 10
"""Size of the largest file that is embedded."""

MOST_BYTES = 1 << 20
"""Size of all embedded files together."""

_MOST_FILES = 10_000
_MOST_NAMED = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFiles:
    """What lay in a workspace.

    Attributes:
        texts: Small text files, by path.
        missing: What else there was, in words: too large, no text, no file, or not kept.
    """

    texts: dict[str, str]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """Something in a workspace: a file that can be read, or why it cannot."""

    path: str
    size: int = 0
    read: Callable[[], bytes] | None = None
    why: str = ""


def start_files(session: Session) -> StartFiles:
    """What lay in the workspace before the first call that could change it; what lies there now without one.

    Raises:
        WorkspaceError: If it cannot be told any more.
    """
    if session.workspace is None or session.history is None:
        return StartFiles(texts={})
    roots = (event.root for event in session.events if isinstance(event, CheckpointTaken))
    root = next(roots, None)
    if root is None:
        return _chosen(_on_disk(session.workspace))
    if not root:
        return StartFiles(texts={}, missing=("the files: there were too many of them to be kept",))
    return _chosen(_in_tree(session.history.store, root))


def _chosen(found: Iterator[_Found]) -> StartFiles:
    texts: dict[str, str] = {}
    missing: list[str] = []
    room, left_out = MOST_BYTES, 0
    for one in found:
        why = one.why
        if one.read is not None:
            if one.size > MOST_FILE_BYTES:
                why = f"{one.size:,} bytes"
            elif one.size > room:
                why = f"the files together are larger than {MOST_BYTES >> 20} MiB"
            else:
                text, why = _text(one.read)
                if not why:
                    texts[one.path] = text
                    room -= one.size
        if why and len(missing) == _MOST_NAMED:
            left_out += 1
        elif why:
            missing.append(f"{printable(one.path)}: {why}")
    if left_out:
        missing.append(f"{left_out:,} more files")
    return StartFiles(texts=texts, missing=tuple(missing))


def _text(read: Callable[[], bytes]) -> tuple[str, str]:
    """A file as text, or why it is none."""
    try:
        data = read()
        text = data.decode()
    except UnicodeDecodeError:
        return "", "no text"
    except (WorkspaceError, OSError):
        return "", "not kept any more"
    return ("", "no text") if "\0" in text else (text, "")


def _in_tree(store: Store, root: str) -> Iterator[_Found]:
    lists = Lists(store)
    todo: list[tuple[str, Node]] = [("", Node("folder", content=root))]
    while todo:
        path, node = todo.pop()
        if node.kind == "folder":
            try:
                inner = lists.of(node)
            except WorkspaceError:
                yield _Found(path or "the files", why="not kept any more")
                continue
            below = [(f"{path}/{name}".lstrip("/"), one) for name, one in inner.items()]
            todo += sorted(below, reverse=True)
        elif node.kind == "file":
            yield _Found(path, node.size, partial(store.get, node.content))
        else:
            why = {"link": "a link", "unkept": node.why_unkept}.get(node.kind, "no file")
            yield _Found(path, why=why)


def _on_disk(folder: Path) -> Iterator[_Found]:
    """The same of what lies there now; nothing is followed, nothing large is read."""
    seen = 0
    for here, folders, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        folders.sort()
        for name in sorted(names):
            seen += 1
            if seen > _MOST_FILES:
                yield _Found("more files", why=f"more than {_MOST_FILES:,} of them")
                return
            path = Path(here, name).relative_to(folder).as_posix()
            about = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if not stat.S_ISREG(about.st_mode):
                why = "a link" if stat.S_ISLNK(about.st_mode) else "no file"
                yield _Found(path, why=why)
                continue
            yield _Found(path, about.st_size, partial(_read, name, descriptor))


def _read(name: str, folder: int) -> bytes:
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        return os.read(file, MOST_FILE_BYTES)
    finally:
        os.close(file)
