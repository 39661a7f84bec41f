"""Calls that somebody watches, as the host knows them: what a worker shows and asks while it runs them.

All of it is hostile. What is out of form ends the worker; what is too much is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pydantic_core import from_json

from aisotools.exceptions import ChannelError
from aisotools.sandbox.channel import Frame
from aisotools.sandbox.streams import Allowance, Manner

KINDS = frozenset(
    {"display", "update", "result", "clear", "error", "page", "next_input", "comm", "comm_dropped"}
)
"""What a call can show."""

SCREEN_OPS = frozenset({"show", "ask"})
"""The frames that are for a screen."""

_REMEMBERED = 256
_SHOWS_AT_ONCE, _SHOWS_PER_S = 5_000, 200.0
_BYTES_AT_ONCE, _BYTES_PER_S = 256 << 20, 16 << 20
_MOST_BYTES, _SMALL_BYTES, _MOST_CONTAINERS = 20 << 20, 1 << 18, 1 << 20
_QUESTIONS = 16
_PROMPT_CHARS = 20_000

Answer = Callable[[str, Mapping[str, Any]], None]
"""Sends a frame to the worker: its op and its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One thing that a call showed; nothing of it is checked but its form.

    Attributes:
        what: One of `KINDS`.
        bundle: Its data; for most kinds a MIME bundle.
        how: What else there is to it.
        buffers: Binary parts of a widget's message.
    """

    what: str
    bundle: Mapping[str, Any] = field(default_factory=dict)
    how: Mapping[str, Any] = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()


class Screen(Protocol):
    """Somebody who watches a call."""

    def show(self, call_id: str, shown: Shown) -> None:
        """The call showed something; what it printed came before."""

    def dropped(self, call_id: str) -> None:
        """The call showed too much at once, and this was left out."""

    async def ask(self, call_id: str, prompt: str, *, password: bool) -> str | None:
        """The call asks for a line; None is the end of input."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    screen: Screen
    manner: Manner
    shows: Allowance = field(default_factory=lambda: Allowance(_SHOWS_AT_ONCE, _SHOWS_PER_S))
    bytes: Allowance = field(default_factory=lambda: Allowance(_BYTES_AT_ONCE, _BYTES_PER_S))
    asking: set[asyncio.Task[None]] = field(default_factory=set)


class Screens:
    """Who watches which call. A call's screen stays: what it left running may still show something."""

    def __init__(self) -> None:
        """Start with nobody."""
        self._watched: dict[str, _Watched] = {}

    def watch(self, call_id: str, screen: Screen, manner: Manner) -> None:
        """Have `screen` watch a call that is yet to be made."""
        self._watched[call_id] = _Watched(screen=screen, manner=manner)
        if len(self._watched) > _REMEMBERED:
            self.over(next(iter(self._watched)))
            del self._watched[next(iter(self._watched))]

    def header(self, call_id: str) -> Mapping[str, Any]:
        """What the worker is told about it."""
        watched = self._watched.get(call_id)
        return {} if watched is None else {"watch": asdict(watched.manner)}

    def over(self, call_id: str) -> None:
        """The call is over: whatever it still asks is withdrawn."""
        watched = self._watched.get(call_id)
        for task in tuple(watched.asking) if watched is not None else ():
            task.cancel()

    def take(self, call_id: str, frame: Frame, answer: Answer) -> bool:
        """Take in a frame; False if nobody wants it.

        Raises:
            ChannelError: If it is out of form.
            KeyError: If something is missing from it.
        """
        watched = self._watched.get(call_id)
        if watched is None:
            return False
        if frame.op == "ask":
            self._take_question(call_id, watched, frame.header, answer)
            return True
        if watched.shows.take() and watched.bytes.take(sum(map(len, frame.parts))) and _bearable(frame):
            watched.screen.show(call_id, _shown(frame))
        else:
            watched.screen.dropped(call_id)
        return True

    def _take_question(
        self, call_id: str, watched: _Watched, header: Mapping[str, Any], answer: Answer
    ) -> None:
        prompt, seq, password = header["prompt"], header["seq"], header["password"]
        if not isinstance(prompt, str) or len(prompt) > _PROMPT_CHARS or type(seq) is not int:
            raise ChannelError("a question of an unknown form")
        if not watched.manner.stdin or len(watched.asking) >= _QUESTIONS:
            raise ChannelError("a question where none may be asked")

        async def put() -> None:
            value = None
            try:
                value = await watched.screen.ask(call_id, prompt, password=password is True)
            finally:
                answer("reply", {"seq": seq, "value": value})

        task = asyncio.get_running_loop().create_task(put())
        watched.asking.add(task)
        task.add_done_callback(watched.asking.discard)


def _bearable(frame: Frame) -> bool:
    """Whether its JSON is no larger than a result's may be; a list takes 3 bytes to write and 64 to keep."""
    body = frame.parts[0] if frame.parts else b""
    return len(body) <= _MOST_BYTES and (
        len(body) <= _SMALL_BYTES or body.count(b"[") + body.count(b"{") <= _MOST_CONTAINERS
    )


def _shown(frame: Frame) -> Shown:
    how = dict(frame.header)
    what = how.pop("what")
    if not isinstance(what, str) or what not in KINDS or not frame.parts:
        raise ChannelError("something shown of an unknown kind")
    body = frame.parts[0]
    try:
        bundle = from_json(body, allow_inf_nan=False, cache_strings="keys") if body else {}
    except ValueError as error:
        raise ChannelError(f"something shown is not JSON: {str(error)[:200]}") from None
    if not isinstance(bundle, dict):
        raise ChannelError("something shown is no object")
    return Shown(what=what, bundle=bundle, how=how, buffers=frame.parts[1:])
