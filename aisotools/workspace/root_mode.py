"""The mode of a workspace's own folder: remembered while sessions are open, and put back.

Code in a sandbox may change it at level `isolated`; see `RootMode`. The next session puts back what the one
before could not, because its process was killed.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aisotools.workspace.dirfd import WALK_FLAGS, change_mode

_log = logging.getLogger(__name__)
_RECORD = "mode"


class RootMode:
    """The mode of a workspace's own folder, which is put back whenever it has changed.

    Threat: at level `isolated` code in the sandbox may change modes, also that of the workspace itself. A
    folder without the rights of its owner could not be used any more, by any session or undo.

    Mechanism: the mode is remembered when a session opens. Whoever opens the folder or is about to use it
    compares it, and calls `put_back` if it differs. What a person changes between two calls is accepted, as
    long as the owner may read, write and enter. Until the last session is closed the mode is also in a file
    of the state folder, so that the next session can put it back if this process is killed.
    Race: a process of the sandbox may change it again at any time while it runs. It is stopped while
    checkpoints are taken and files are restored.
    Failure: what cannot be put back is said in `notes`, and what needs the folder fails.

    Attributes:
        path: Real path of the folder.
        value: Its type and mode as they should be, as in `os.stat_result.st_mode`.
        notes: What was put back or could not be, in sentences, until somebody has said so.
    """

    def __init__(self, path: Path, record: Path, is_used: Callable[[], bool]) -> None:
        """Remember the mode of a folder.

        Args:
            path: Its real path.
            record: File with the mode that an earlier session remembered and did not put back.
            is_used: Returns whether a call runs that may change the folder: then no mode is accepted.
        """
        self.path = str(path)
        self.notes: list[str] = []
        self._record = record
        self._is_used = is_used
        self._closed = False
        status = path.stat()
        self._identity = status.st_dev, status.st_ino
        earlier = _read_mode(record)
        self.value = status.st_mode if earlier is None else stat.S_IFDIR | earlier
        self._write()

    def __repr__(self) -> str:
        return f"<RootMode {self.value & 0o7777:o} of {self.path!r}>"

    def put_back(self) -> None:
        """Put the mode back, if it has changed, and note that."""
        try:
            folder = os.open(self.path, WALK_FLAGS)
        except OSError:
            return  # it is gone, as whoever opens it says
        try:
            status = os.fstat(folder)
            if (status.st_dev, status.st_ino) != self._identity:
                # A sandbox cannot do that: a person has put another folder there.
                self._identity, self.value = (status.st_dev, status.st_ino), status.st_mode
                self._write()
            if status.st_mode == self.value:
                return
            note = f"The mode of the workspace's folder had become {status.st_mode & 0o7777:03o}"
            try:
                change_mode(folder, self.value & 0o7777)
            except OSError as error:
                note += f", and could NOT be put back to {self.value & 0o7777:03o}: {error.strerror}."
            else:
                note += f". It was put back to {self.value & 0o7777:03o}."
        finally:
            os.close(folder)
        _log.warning("%s: %s", self.path, note)
        if note not in self.notes:
            self.notes.append(note)

    def accept(self) -> None:
        """Remember the mode that a person has given the folder. Put back one that would make it unusable."""
        try:
            status = os.lstat(self.path)
        except OSError:
            return  # it is gone, as whoever opens it says
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            self.put_back()
        elif not self._is_used():
            self._identity, self.value = (status.st_dev, status.st_ino), status.st_mode
            self._write()

    def close(self) -> None:
        """Put the mode back, once nothing of the sandbox runs any more, and forget it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.put_back()
        with suppress(OSError):
            self._record.unlink(missing_ok=True)

    def _write(self) -> None:
        # Disk full: only a session after a crash would have needed it. A crash in between leaves no number.
        with suppress(OSError):
            self._record.touch(0o600)
            self._record.write_text(f"{self.value & 0o7777:04o}\n")


def _read_mode(record: Path) -> int | None:
    """Return the mode in a file; None if there is none."""
    try:
        text = record.read_text("ascii")
        return int(text, 8) & 0o7777 if text.endswith("\n") else None
    except (OSError, ValueError):
        return None


def put_back_mode(workspace: Path, checkpoints: Path) -> None:
    """Put back the mode of a folder that an earlier session has left changed, because its process was killed.

    A folder that has been a workspace, is ours, and that not even its owner may list or enter, gets the
    rights of its owner back: earlier versions did not remember its mode.

    Args:
        workspace: Real path of the folder.
        checkpoints: Folder of its checkpoints.
    """
    try:
        found = os.lstat(workspace).st_mode
        mode = _read_mode(checkpoints / _RECORD)
        readable = stat.S_IRUSR | stat.S_IXUSR
        if mode is None and found & readable != readable and checkpoints.is_dir():
            mode = found & 0o7777 | stat.S_IRWXU
        if mode is None or mode == found & 0o7777 or not stat.S_ISDIR(found):
            return
        place = os.open(workspace, WALK_FLAGS)
        try:
            change_mode(place, mode)
        finally:
            os.close(place)
    except OSError:
        return  # there is no such folder, or it is not ours: `refuse_workspace` says so
    _log.warning("%s: an earlier session left mode %03o; it is %03o again.", workspace, found & 0o7777, mode)


def watch_mode(workspace: Path, checkpoints: Path, is_used: Callable[[], bool]) -> RootMode | None:
    """Return the mode of a workspace, to be put back from now on; None if there is no such folder.

    Args:
        workspace: Real path of the folder.
        checkpoints: Folder of its checkpoints.
        is_used: Returns whether a call runs that may change the workspace.
    """
    try:
        return RootMode(workspace, checkpoints / _RECORD, is_used)
    except OSError:
        return None
