"""The notebook's own session: the one the magics use."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

from aisotools.events import ToolResult
from aisotools.notebook.settings import AisoTools
from aisotools.notebook.toolsets import choose_set
from aisotools.policy_file import user_policy
from aisotools.session import Session

_session: Session | None = None
_settings: AisoTools | None = None
_closing: set[asyncio.Task[None]] = set()


def current_session() -> Session:
    """The notebook's own session, made on first use and again after it was closed.

    Nothing is started before its first call. Replace it with `use_session`.
    """
    global _session  # noqa: PLW0603 - one per notebook is the point
    if _session is None or _session.closed:
        settings = current_settings()
        _session = Session(**settings.session_options())
        if settings.toolset is not None:
            choose_set(_session.registry, settings.toolset)
    return _session


def current_settings() -> AisoTools:
    """The settings that `%config AisoTools` shows; the defaults before `%load_ext aisotools`."""
    global _settings  # noqa: PLW0603 - one per notebook is the point
    if _settings is None:
        _settings = AisoTools()
    return _settings


def use_settings(settings: AisoTools | None) -> None:
    """Take these settings from now on, and follow what `%config` changes in them; None for the defaults."""
    global _settings  # noqa: PLW0603 - one per notebook is the point
    _settings = settings
    if settings is not None:
        settings.observe(_changed, names=settings.trait_names(config=True))


def _changed(change: Any) -> None:
    """A setting was changed: apply it to the session that is there, or say when it will count."""
    if _session is None or _session.closed or change.name in _LOOKED_UP:
        return
    if change.name != "mode":
        print(
            f"The notebook's session was made without this: {change.name} counts for the next one. "
            "Run `await aisotools.current_session().close()` to end this one."
        )
        return
    policy = _session.policy if _session.level else user_policy(os.environ)
    _session.policy = dataclasses.replace(policy, mode=change.new or user_policy(os.environ).mode)


_LOOKED_UP = {"model", "trust_output", "card_timeout_s"}
"""Settings that are read at the moment they are needed."""


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
