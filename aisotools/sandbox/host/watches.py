"""Watching files on the event loop, which fails when the kernel has no watch left for this user.

- Threat: `fs.epoll.max_user_watches` is counted per user. A sandbox, or any other program of the user, may
  use all of them up; then the loop cannot watch one file more.
- Mechanism: the failure becomes a `SandboxError` that names the sysctl and the next step. Whoever gets it
  gives back what it had made so far: a session does not start, a snapshot is not taken, a worker that can no
  longer be heard is ended.
- Race: watches may be used up and given back at any time, so the same step may work a moment later. What the
  loop watches already it goes on watching.
- Failure: one of another kind has its own reason in the same error.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

from aisotools.core.exceptions import SandboxError


def watch(
    loop: asyncio.AbstractEventLoop, file: Any, callback: Callable[..., object], *arguments: Any
) -> None:
    """Call `callback` whenever there is something to read from `file`, a descriptor or what has one.

    Raises:
        SandboxError: The kernel does not let the loop watch it.
    """
    try:
        loop.add_reader(file, callback, *arguments)
    except OSError as error:
        raise SandboxError(_explain(error)) from error


def watch_writing(loop: asyncio.AbstractEventLoop, file: Any, callback: Callable[[], object]) -> None:
    """Call `callback` whenever something can be written to `file`; see `watch`.

    Raises:
        SandboxError: The kernel does not let the loop watch it.
    """
    try:
        loop.add_writer(file, callback)
    except OSError as error:
        raise SandboxError(_explain(error)) from error


def _explain(error: OSError) -> str:
    if error.errno != errno.ENOSPC:
        return f"the host's event loop could not watch a file ({error.strerror})"
    return (
        "the host's event loop could not watch a file: programs of this user hold all the watches that one "
        "user may have (sysctl fs.epoll.max_user_watches). End the program that holds them, or raise the "
        "sysctl, and try again"
    )
