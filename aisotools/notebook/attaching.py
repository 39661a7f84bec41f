"""`%sandbox attach`: lets a terminal's `jupyter console` reach the notebook's own session."""

from __future__ import annotations

import asyncio
from typing import Any

from aisotools.exceptions import AisotoolsError
from aisotools.session import Session

_attaching: set[asyncio.Task[Any]] = set()


def attach_soon(session: Session, *, trust_output: bool = False) -> None:
    """Start a front for `session` in the background, and print what a client connects by.

    The magic cannot wait; a front that does not start is told in the same place. With `trust_output` all
    output is passed on as it is.
    """
    from IPython.display import display

    from aisotools.sandbox.attach import attach, new_connection_file

    path = new_connection_file()
    told = f"In a terminal: jupyter console --existing {path}"
    handle: Any = display({"text/plain": told}, raw=True, display_id=True)

    async def start() -> None:
        try:
            await attach(session, path, trust_output=trust_output)
        except (AisotoolsError, OSError) as error:
            handle.update({"text/plain": f"Not attached: {error}"}, raw=True)

    task = asyncio.ensure_future(start())
    _attaching.add(task)
    task.add_done_callback(_attaching.discard)
