"""The one seam to programs without an event loop: a loop of one's own, with the session that lives on it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from aisotools.session import Session

T = TypeVar("T")


class OwnLoop:
    """A loop that a session lives on; both are closed together, at the latest when this is forgotten."""

    def __init__(self, session: Session) -> None:
        """Make it; nothing runs on it yet."""
        self._runner = asyncio.Runner()
        self._end = weakref.finalize(self, _close, self._runner, session)

    def __repr__(self) -> str:
        return f"<OwnLoop {'open' if self._end.alive else 'closed'}>"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end."""
        return self._runner.run(work)

    def close(self) -> None:
        """Close session and loop; again does nothing."""
        self._end()


def loop_runs_here() -> bool:
    """Whether this thread is inside a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _close(runner: asyncio.Runner, session: Session) -> None:
    def close() -> None:
        with runner:
            runner.run(session.close())

    if not loop_runs_here():
        close()
        return
    # Forgotten inside another loop: no loop can run within a loop, but on another thread it can.
    closing = threading.Thread(target=close)
    closing.start()
    closing.join()
