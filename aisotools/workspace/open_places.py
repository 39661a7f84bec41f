"""Where this process finds what is in open workspaces, whatever has been moved or mounted since they opened.

Threat: a person renames a workspace while its session is open, or a folder above it; or moves a folder into
it which a bind mount shows elsewhere, or in which something is mounted. What sandboxed code writes is then at
places that nothing which was known when the session opened tells of.

Mechanism: each open workspace is held by a descriptor, of which the kernel knows the path now. With that, and
with the list of mounts as it is now, the places are looked for anew as soon as one of both has changed. What
an overlay has once shown of a workspace counts until it is unmounted, since the kernel names its layers as
they were called when it was mounted. Between the calls of a parked conversation, in which no sandbox runs,
the path that was known last is used instead of a descriptor.

Race window: what is moved or mounted after the look counts at the next one. An overlay of a layer that had
another name before anybody looked is not known. A workspace whose path the kernel cannot tell, as it was
moved out of all that is mounted here, is looked for where it was.

When the folder is gone it is looked for where it was. An error of the system goes to the caller.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from aisotools.workspace.paths import OpenedFolder
from aisotools.workspace.real_paths import (
    OverlayPlace,
    find_other_places,
    find_overlays,
    mount_watch,
    note_overlays,
)


class OpenPlaces:
    """The places of the workspaces that are open in this process."""

    def __init__(self, on_change: Callable[[str], None]) -> None:
        """Begin without any.

        Args:
            on_change: Called with each path at which something of a workspace is, or is no longer.
        """
        self._on_change = on_change
        self._lock = threading.Lock()
        self._uses: Counter[OpenedFolder] = Counter()
        self._descriptors: dict[OpenedFolder, int] = {}
        self._parked: dict[OpenedFolder, str] = {}
        self._overlays: dict[OpenedFolder, frozenset[OverlayPlace]] = {}
        self._last: tuple[tuple[int, tuple[tuple[OpenedFolder, str], ...]], frozenset[str]]
        self._last = ((0, ()), frozenset())

    def __bool__(self) -> bool:
        return bool(self._uses)

    def add(self, workspace: Path) -> OpenedFolder:
        """Count a folder as open once more, until `remove` is called with what is returned.

        Raises:
            OSError: If it cannot be opened.
        """
        descriptor, folder = _hold(os.path.realpath(workspace))
        with self._lock:
            self._uses[folder] += 1
            self._parked.pop(folder, None)
            if self._descriptors.setdefault(folder, descriptor) != descriptor:
                os.close(descriptor)
        self.find()
        return folder

    def park(self, workspace: Path) -> None:
        """Close the descriptor of a folder that no other session has open, until `wake`."""
        with self._lock:
            for folder in tuple(self._descriptors):
                if folder.path == str(workspace) and self._uses[folder] == 1:
                    # Race: a look in another thread, which takes no lock, finds it in at least one of both.
                    self._parked[folder] = folder.find_path(self._descriptors[folder])
                    os.close(self._descriptors.pop(folder))

    def wake(self, workspace: Path) -> None:
        """Open the descriptor of a parked folder again; one that is not in its place stays as it is."""
        if not self._parked:
            return
        with self._lock:
            for folder in [one for one in self._parked if one.path == str(workspace)]:
                try:
                    descriptor, present = _hold(folder.path)
                except OSError:
                    continue  # moved or removed: calls are refused, and it is looked for where it was
                if present == folder:
                    self._descriptors[folder] = descriptor
                    del self._parked[folder]
                else:
                    os.close(descriptor)

    def remove(self, folder: OpenedFolder) -> None:
        """Take back one call of `add`."""
        with self._lock:
            self._uses[folder] -= 1
            if not self._uses[folder]:
                del self._uses[folder]
                self._overlays.pop(folder, None)
                if self._parked.pop(folder, None) is None:
                    os.close(self._descriptors.pop(folder))
        self.find()

    def find(self) -> tuple[frozenset[str], frozenset[tuple[int, int]]]:
        """Return where what is in open workspaces is now, and the devices and inodes of these."""
        # Race: no lock is held, which a fork would leave locked in its copy; whoever asks at the same time
        # looks as well. Mounts are counted before the places are looked for, so that one made meanwhile is
        # found the next time.
        mounts = mount_watch.count()
        parked = tuple(self._parked.items())
        held = tuple(self._descriptors.items())
        open_now = (*((one, one.find_path(number)) for one, number in held), *parked)
        identities = frozenset(one.identity for one, _ in open_now if one.identity)
        last, before = self._last
        if (mounts, open_now) == last:
            return before, identities
        places: set[str] = set()
        for folder, path in open_now:
            others = {*find_other_places(path), *find_overlays(self._overlays.get(folder, ()))}
            self._overlays[folder] = note_overlays(others)
            places |= {folder.path, path, *others}
        self._last = (mounts, open_now), frozenset(places)
        for place in places ^ before:
            self._on_change(place)
        return frozenset(places), identities


def _hold(path: str) -> tuple[int, OpenedFolder]:
    """Return a descriptor of the folder at a real path, which does not let it be read, and the folder."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    status = os.fstat(descriptor)
    return descriptor, OpenedFolder(path, (status.st_dev, status.st_ino))
