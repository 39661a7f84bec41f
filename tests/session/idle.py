"""When a session knows that nothing in its sandbox runs."""

from __future__ import annotations

import time

from aisotools.session.session import Session
from tests.waiting import eventually


async def idle(session: Session) -> None:
    """Wait until the sandbox counts as idle, and is: what changes from then on, a person has changed.

    Right after a call it may count as idle before a snapshot of its variables has woken up for a moment.
    """
    assert session._parts is not None
    protection = session._parts.protection
    assert protection is not None

    def is_idle() -> bool:
        recorded = protection._idle_activity
        return (
            recorded is not None
            and time.monotonic() >= protection._settled_s
            and protection._activity() == recorded
        )

    await eventually(is_idle)
