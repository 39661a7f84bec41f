"""The calls that a worker has under way, as the host knows them, and what the worker says about them.

All of it is hostile. What is out of form, or far too much, is a `ChannelError`, which ends the worker; what
merely names a call that is over is dropped.

Calls that somebody watches, as the host knows them: what a worker shows and asks while it runs them.

All of it is hostile. What is out of form ends the worker; what is too much is dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pydantic_core import from_json, to_json

from aisotools.core.exceptions import ChannelError, WorkerDied
from aisotools.core.protocols import SandboxListener
from aisotools.sandbox.frames import Frame
from aisotools.sandbox.limits import LimitExceeded
from aisotools.sandbox.process import tree
from aisotools.sandbox.results import Printed
from aisotools.sandbox.worker.output import Allowance, ExecuteOptions

KINDS = frozenset(
    {"display", "update", "result", "clear", "error", "page", "next_input", "comm", "comm_dropped"}
)
"""What a call can show."""

SCREEN_OPS = frozenset({"show", "ask"})
"""The frames that are for a screen."""

_REMEMBERED_DISPLAYS = 256
_SHOWS_AT_ONCE, _SHOWS_PER_S = 5_000, 200.0
_BYTES_AT_ONCE, _BYTES_PER_S = 256 << 20, 16 << 20
_MOST_BYTES, _SMALL_BYTES, _MOST_CONTAINERS = 20 << 20, 1 << 18, 1 << 20
_QUESTIONS = 16
_PROMPT_CHARS = 20_000

Answer = Callable[[str, Mapping[str, Any]], None]
"""Sends a frame to the worker: its op and its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayMessage:
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


class DisplaySink(Protocol):
    """Somebody who watches a call."""

    def show(self, call_id: str, shown: DisplayMessage) -> None:
        """The call showed something; what it printed came before."""

    def dropped(self, call_id: str) -> None:
        """The call showed too much at once, and this was left out."""

    async def ask(self, call_id: str, prompt: str, *, password: bool) -> str | None:
        """The call asks for a line; None is the end of input."""


@dataclass(slots=True, kw_only=True)
class _Watched:
    screen: DisplaySink
    manner: ExecuteOptions
    shows: Allowance = field(default_factory=lambda: Allowance(_SHOWS_AT_ONCE, _SHOWS_PER_S))
    bytes: Allowance = field(default_factory=lambda: Allowance(_BYTES_AT_ONCE, _BYTES_PER_S))
    asking: set[asyncio.Task[None]] = field(default_factory=set)


class DisplayRouter:
    """Who watches which call. A call's screen stays: what it left running may still show something."""

    def __init__(self) -> None:
        """Start with nobody."""
        self._watched: dict[str, _Watched] = {}

    def watch(self, call_id: str, screen: DisplaySink, manner: ExecuteOptions) -> None:
        """Have `screen` watch a call that is yet to be made."""
        self._watched[call_id] = _Watched(screen=screen, manner=manner)
        if len(self._watched) > _REMEMBERED_DISPLAYS:
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


def _shown(frame: Frame) -> DisplayMessage:
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
    return DisplayMessage(what=what, bundle=bundle, how=how, buffers=frame.parts[1:])


_EMITS_AT_ONCE, _EMITS_PER_S = 2000, 100.0
_EMIT_CHARS = 1 << 17
_HOMELESS_AT_ONCE, _HOMELESS_PER_S = 1 << 20, 10_000.0
_WASTE_AT_ONCE, _WASTE_PER_S, _WASTE_CHARS = 50_000, 100.0, 32
_REMEMBERED = 256
_STREAMS = ("stdout", "stderr")
_ALL_BYTES = 1 << 24


@dataclass(slots=True, kw_only=True)
class PendingCall:
    """One call under way.

    Attributes:
        call_id: Its id.
        number: What the channel calls it.
        future: Gets the pieces of the result, or the reason why there is none.
        printed: What it printed so far.
        holds: Whether it holds the worker's main thread.
        since: When it was sent; what it starts is born later.
        emits: Progress reports that will still be passed on.
        over: The limit for which it was stopped, if it was.
    """

    call_id: str
    number: int
    future: asyncio.Future[tuple[bytes, ...]]
    printed: Printed
    holds: bool
    since: tree.Moment = field(default_factory=tree.now)
    emits: Allowance = field(default_factory=lambda: Allowance(_EMITS_AT_ONCE, _EMITS_PER_S))
    over: LimitExceeded | None = None


class CallTable:
    """The calls of one worker, by number.

    Attributes:
        screens: Who watches which call.
        answer: Sends the worker what it was waiting for.
    """

    def __init__(self, listener: SandboxListener, drain_raw: Callable[[str, int], None]) -> None:
        """Pass on to `listener` what calls print and report.

        Args:
            listener: Hears it.
            drain_raw: Takes in what programs wrote to a descriptor of the worker, of which so many bytes had
                not been read when the frame in hand was sent.
        """
        self._listener = listener
        self._drain_raw = drain_raw
        self._pending: dict[int, PendingCall] = {}
        self._over: dict[int, tuple[str, Printed]] = {}
        self._heard: list[tuple[int, str, str]] = []
        self._homeless = Allowance(_HOMELESS_AT_ONCE, _HOMELESS_PER_S)
        self._waste = Allowance(_WASTE_AT_ONCE, _WASTE_PER_S)
        self._numbers = 0
        self.screens = DisplayRouter()
        self.answer: Answer = lambda _op, _header: None

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[PendingCall]:
        return iter(tuple(self._pending.values()))

    def begin(self, call_id: str, *, stream_bytes: int, holds: bool) -> PendingCall:
        """A new call with a number of its own."""
        self._numbers += 1
        call = self._pending[self._numbers] = PendingCall(
            call_id=call_id,
            number=self._numbers,
            future=asyncio.get_running_loop().create_future(),
            printed=Printed(stream_bytes),
            holds=holds,
        )
        return call

    def end(self, call: PendingCall) -> None:
        """The call is over; what it left running in the background may still print."""
        if self._pending.pop(call.number, None) is not None:
            self._over[call.number] = call.call_id, call.printed.rest()
            if len(self._over) > _REMEMBERED:
                del self._over[next(iter(self._over))]

    def fail(self, error: WorkerDied) -> None:
        """The worker is gone, and every call with it."""
        for call in self:
            if not call.future.done():
                call.future.set_exception(error)
                call.future.exception()  # whoever waits will see it; nobody may be waiting any more

    # ---- what the worker says

    def take(self, frame: Frame) -> None:
        """Take in one frame.

        Raises:
            ChannelError: If it is out of form, or one of far too many.
            KeyError: If something is missing from it.
        """
        header = frame.header
        if frame.op == "out":
            self._hear(header["id"], header["stream"], header["text"], header.get("after"))
            return
        self.pass_on()
        if frame.op == "emit":
            self._take_emit(header["id"], header["name"], header["payload"])
        elif frame.op == "done":
            self._take_done(header["id"], frame.parts)
        elif frame.op in SCREEN_OPS:
            self._take_shown(frame)
        else:
            raise ChannelError(f"unknown frame {frame.op[:40]!r}")

    def pass_on(self) -> None:
        """Tell the listener what was printed; text that came in one go is one piece."""
        heard, self._heard = self._heard, []
        for number, stream, text in heard:
            call_id, printed = "", None
            if (call := self._pending.get(number)) is not None:
                call_id, printed = call.call_id, call.printed
            elif number in self._over:
                call_id, printed = self._over[number]
            if printed is not None:
                kept = printed.take(stream, text)
            else:
                kept = text if self._homeless.take(len(text)) else ""
            if kept:
                self._listener.output(call_id, stream, kept)
            else:
                self._count_waste(1 + len(text) // _WASTE_CHARS)

    def take_raw(self, stream: str, data: bytes) -> None:
        """Take in what a program wrote straight to a descriptor of the worker."""
        call = self._writer()
        if call is not None:
            if text := call.printed.take_raw(stream, data):
                self._listener.output(call.call_id, stream, text)
        elif self._homeless.take(len(data)):
            self._listener.output("", stream, data.decode("utf-8", "backslashreplace"))

    def _writer(self) -> PendingCall | None:
        """The call that raw output belongs to: whichever holds the main thread, or the only one."""
        calls = self._pending.values()
        only = next(iter(calls)) if len(calls) == 1 else None
        return next((call for call in calls if call.holds), only)

    def _hear(self, call_id: object, stream: object, text: object, after: object) -> None:
        if not isinstance(call_id, str) or not isinstance(stream, str) or not isinstance(text, str):
            raise ChannelError("printed output of an unknown form")
        if stream not in _STREAMS:
            raise ChannelError(f"output of an unknown stream {stream[:40]!r}")
        number = int(call_id) if call_id.isascii() and call_id.isdigit() and len(call_id) < 20 else 0
        if after is not None:
            if type(after) is not int or after <= 0:
                raise ChannelError("printed output after an unknown amount")
            self.pass_on()
            self._drain_raw(stream, after)
        last = self._heard[-1] if self._heard else None
        if last is not None and last[:2] == (number, stream):
            self._heard[-1] = number, stream, last[2] + text
        else:
            self._heard.append((number, stream, text))

    def _take_emit(self, number: object, name: object, payload: object) -> None:
        if not isinstance(name, str) or not isinstance(payload, dict):
            raise ChannelError("a progress report of an unknown form")
        call = self._call(number)
        if call is None or not call.emits.take() or len(to_json(payload)) > _EMIT_CHARS:
            self._count_waste()
        else:
            self._listener.emitted(call.call_id, name[:200], payload)

    def _take_done(self, number: object, pieces: tuple[bytes, ...]) -> None:
        call = self._call(number)
        if call is None or call.future.done():
            self._count_waste()
            return
        for stream in _STREAMS:
            self._drain_raw(stream, _ALL_BYTES)
        call.future.set_result(pieces)

    def _take_shown(self, frame: Frame) -> None:
        number, after = frame.header["id"], frame.header.get("after", {})
        for stream in _STREAMS:
            if stream in after:
                self._drain_raw(stream, int(after[stream]))
        call = self._call(number)
        call_id = call.call_id if call is not None else self._over.get(number, ("", None))[0]
        if not self.screens.take(call_id, frame, self.answer):
            self._count_waste()

    def _call(self, number: object) -> PendingCall | None:
        return self._pending.get(number) if type(number) is int else None

    def _count_waste(self, amount: int = 1) -> None:
        if not self._waste.take(amount):
            raise ChannelError("it floods the channel with messages that are of no use")
