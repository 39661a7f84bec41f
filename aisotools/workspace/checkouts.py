"""Checkouts and environments in a workspace: which there are, and which of them a session has made.

Threat
    A person's own checkout or environment holds files that are run outside the sandbox: hooks, settings,
    programs. A workspace with one in it lets code in the sandbox change them.
Mechanism
    At a level that does not hide such files, a workspace with one is refused, unless a session has made it
    there: what it holds has been looked at then like anything that a call has made. When a session ends, the
    inodes of those that are there are noted; it has not opened on others.
Race window
    From the look to the end of the session, in which protected files are put back.
When it fails
    A session that was killed has noted nothing, and a note that cannot be read counts as none: the next one
    is refused. What lies deeper than `SCAN_DEPTH`, or beyond `SCAN_ENTRIES`, is not found.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger(__name__)

SCAN_DEPTH = 4
"""Levels below a workspace that are searched for checkouts and environments."""

SCAN_ENTRIES = 5_000
"""Directory entries that the search looks at; checkouts beyond are not found."""

_MADE = "made"  # in the folder of the checkpoints: checkouts and environments that sessions have made
_MOST_MADE = 500
_MARKS = {
    ".git": "a git checkout",
    "pyvenv.cfg": "a virtual environment",
    "conda-meta": "a conda environment",
}


def find_unexpected(workspace: Path, notes: Path) -> tuple[str, Path] | None:
    """Return the topmost checkout or environment in a workspace that no session has made.

    Args:
        workspace: The workspace.
        notes: The folder in which `note_made` has noted which were made.

    Returns:
        What it is, in words, and the folder that it is in; None if there is none.
    """
    made = _read_made(notes)
    for mark, folder in _find_marks(workspace):
        if _mark_key(workspace, mark, folder) not in made:
            return _MARKS[mark], folder
    return None


def note_made(workspace: Path, notes: Path) -> None:
    """Note which checkouts and environments a session has made, so that the next one opens all the same.

    A session at this level does not open on others, so those that are there now came while it was open: what
    they hold has been looked at like anything that a call has made. One that comes later, or in place of one
    of them, has another inode and is refused.
    """
    keys = [key for one in _find_marks(workspace) if (key := _mark_key(workspace, *one))][:_MOST_MADE]
    if not keys and not (notes / _MADE).exists():
        return
    new = notes / f"{_MADE}.new"
    try:
        new.write_text(json.dumps(keys, ensure_ascii=True), "utf-8")
        new.replace(notes / _MADE)
    except OSError as error:
        # The next session is refused, and says why; what this one has done is not lost for that.
        _log.warning("Which checkouts this session has made cannot be noted: %s", error)


def _find_marks(path: Path) -> Iterator[tuple[str, Path]]:
    """Yield the checkouts and environments in `path` within the search limits, the topmost first."""
    level, entries_seen = [path], 0
    for _ in range(SCAN_DEPTH + 1):
        below: list[Path] = []
        for folder in level:
            try:
                names = list(os.scandir(folder))
                below += [Path(entry.path) for entry in names if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue  # what this user may not read, the sandbox may not either
            yield from ((entry.name, folder) for entry in names if entry.name in _MARKS)
            entries_seen += len(names)
            if entries_seen > SCAN_ENTRIES:
                return
        level = below


def _mark_key(workspace: Path, mark: str, folder: Path) -> str:
    """Return a checkout or an environment with its inode, as it is noted; empty if it is gone."""
    try:
        return f"{(folder / mark).lstat().st_ino} {os.path.relpath(folder / mark, workspace)}"
    except OSError:
        return ""


def _read_made(notes: Path) -> frozenset[str]:
    try:
        made = json.loads((notes / _MADE).read_text("utf-8"))
    except (OSError, ValueError):
        return frozenset()  # none, or a note that was cut short: what is there is refused
    return frozenset(key for key in made if isinstance(key, str)) if isinstance(made, list) else frozenset()
