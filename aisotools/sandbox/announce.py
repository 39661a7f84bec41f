"""What a result tells beside its own call: that something in the background has ended meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from aisotools.events import ToolResult

Announcer = Callable[[str], str]
"""Gives what is to be told to an agent, by its id; empty for nothing."""

_announcers: list[Announcer] = []


def announce_by(announcer: Announcer) -> None:
    """Ask `announcer` before every result that leaves this worker."""
    _announcers.append(announcer)


def announced(result: ToolResult, agent_id: str) -> ToolResult:
    """The result, with what there is to tell at its end."""
    told = [text for announcer in _announcers if (text := announcer(agent_id))]
    if not told:
        return result
    content = "\n".join(filter(None, [result.content.removesuffix("\n"), *told]))
    return dataclasses.replace(result, content=content)
