"""The notebook's own session: the one the magics use."""

from __future__ import annotations

import asyncio

from aisotools.events import ToolResult
from aisotools.session import Session

_session: Session | None = None
_closing: set[asyncio.Task[None]] = set()


def current_session() -> Session:
    """The notebook's own session, made on first use and again after it was closed.

    Nothing is started before its first call. Replace it with `use_session`.
    """
    global _session  # noqa: PLW0603 - one per notebook is the point
    if _session is None or _session.closed:
        _session = Session()
    return _session


def kept_text(result: ToolResult) -> str | None:
    """The whole text of a result that was cut, if the notebook's session still keeps it."""
    ref = result.truncation.ref if result.truncation is not None else None
    if _session is None or ref is None:
        return None
    stored = _session.results.get(ref)
    return stored.text if stored is not None and stored.call_id == result.metadata.get("call_id") else None


def use_session(session: Session) -> Session:
    """Make `session` the notebook's own and return it; the former one stays open."""
    global _session  # noqa: PLW0603 - one per notebook is the point
    _session = session
    return session


def close_current() -> asyncio.Task[None] | None:
    """Close the notebook's session if there is one; inside a running loop it closes in the background."""
    global _session
    session, _session = _session, None
    if session is None or session.closed:
        return None
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(session.close())
        return None
    task = loop.create_task(session.close())
    _closing.add(task)  # the loop alone would let it be collected
    task.add_done_callback(_closing.discard)
    return task
