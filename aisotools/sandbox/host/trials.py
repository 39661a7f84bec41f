"""What a trial gets of the host: a scratch folder in the sandbox's own, removed after it, and no listener.

Threat
    A trial (see `session.trials`) may write in this one folder and nowhere else. Code in there can make any
    tree: links that lead out, folders that are locked, too deep or too many. What else runs in the sandbox,
    such as a task in the background, may write in there as well, and replace any part at any moment: the host
    follows a link that was put in the way, and removes files of the user's.
Mechanism
    The name cannot be guessed, and the folder above the sandbox's own belongs to nobody in there. Removing
    opens each folder by its descriptor and follows no link on the way (`shutil.rmtree`). What is moved into
    the tree meanwhile could have been removed by who has moved it. It is done in a thread, when nothing of
    the trial is left that could make more.
Race window
    Between making and handing over, somebody in the sandbox may remove or replace the folder, who has to
    guess its name or list the folders there. The trial can then write nowhere, or where that somebody may.
When it fails
    What cannot be removed (a tree too deep, a locked folder) goes with the sandbox's scratch folder, when its
    worker ends; until then it counts for the limit on disk space.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence

from aisotools.core.exceptions import SandboxError
from aisotools.core.sandboxes import SandboxStatus
from aisotools.core.threads import in_thread
from aisotools.core.types import Json

SCRATCH_NAME = re.compile(r"/trial-[0-9a-f]{16}\b")
"""The end of the path of a trial's scratch folder."""

_log = logging.getLogger(__name__)


class TrialScratch:
    """A folder that one trial may change.

    Attributes:
        path: Where it is, for the host and for the sandbox.
    """

    def __init__(self, folder: str) -> None:
        """Make it.

        Args:
            folder: The scratch folder of the sandbox; empty if that is not known.

        Raises:
            SandboxError: If it cannot be made.
        """
        if not folder:
            raise SandboxError("the sandbox has no scratch folder")
        self.path = f"{folder}/trial-{os.urandom(8).hex()}"
        self._removing: asyncio.Future[None] | None = None
        try:
            above = os.stat(folder)
            os.mkdir(self.path, 0o700)
            # As root the worker is another user. The folder above belongs to it.
            if above.st_uid != os.geteuid():
                os.chown(self.path, above.st_uid, above.st_gid, follow_symlinks=False)
        except OSError as error:
            raise SandboxError(f"no scratch folder could be made for it ({error.strerror})") from None

    def __repr__(self) -> str:
        return f"<TrialScratch {self.path!r}>"

    async def remove(self) -> None:
        """Remove it, also if the caller is cancelled. Nothing of the trial may run any more."""
        if self._removing is None:
            self._removing = asyncio.ensure_future(in_thread(remove_scratch, self.path))
        # Cancelled meanwhile: the thread goes on, and so does what it removes.
        await asyncio.shield(self._removing)


class SilentListener:
    """A `SandboxListener` that drops what a trial prints: it is in its result, and in no other place."""

    def output(self, call_id: str, stream: str, text: str) -> None:
        """Drop it."""

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Json]) -> None:
        """Drop it."""

    def started(self, status: SandboxStatus, reason: str) -> None:
        """Never called: a trial starts no worker."""

    def lost(self, generation: int, reason: str) -> None:
        """Never called, likewise."""

    def variables_dropped(self, call_ids: Sequence[str], reason: str) -> None:
        """Never called, likewise."""


def remove_scratch(path: str) -> None:
    """Remove a folder in which strangers' code may be at work. Links are removed, never followed."""
    if not shutil.rmtree.avoids_symlink_attacks:
        return  # not on Linux: it goes with its sandbox
    try:
        # A locked folder stays: it would have to be unlocked by its name, which may mean a link by then.
        shutil.rmtree(path)
    except FileNotFoundError:
        return  # somebody in the sandbox was faster
    except (OSError, RecursionError) as error:
        _log.info("The scratch folder %r of a trial goes with its sandbox: %s", path, error)
