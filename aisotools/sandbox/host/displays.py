"""What a watched call displays and asks, on its way to the sink that watches it.

Threat
    Displays come from a hostile worker: floods of them, and up to 20 MiB of JSON in each, chosen to take long
    to count, to parse, to show and to free. Any of these at once would hold up the event loop for seconds.
Mechanism
    Displays are limited in number, in rate and in total, each call by itself and all of them together. One
    that is larger than some kilobytes is counted, parsed, shown and taken apart in steps, by a task. Whoever
    reads the channel (`FrameChannel`) handles nothing that was sent after it until that task is done, so the
    order is kept, and what cannot be read yet stays in the worker. Garbage collection pauses meanwhile: it
    would look through millions of new objects at once.
Race window
    A call may be stopped while its display is in the task. It is left out then, since what the call says last
    stands behind it; so are very large ones that it still sends, until it has ended.
When it fails
    What is over a limit is left out, and the sink is told. What is not JSON ends the worker: `ChannelError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic_core import from_json

from aisotools.core.concurrency import cancel_future, gc_paused, in_steps
from aisotools.core.exceptions import ChannelError
from aisotools.sandbox.frames import Frame, count_field, text_field
from aisotools.sandbox.parsing import TooManyKeys, has_more_parts, parse_steps, release_steps
from aisotools.sandbox.worker.output import ExecuteOptions, TokenBucket

DISPLAY_KINDS = frozenset(
    {"display", "update", "result", "clear", "error", "page", "next_input", "comm", "comm_dropped"}
)
"""The kinds of `DisplayMessage`."""

DISPLAY_OPS = frozenset({"show", "ask"})
"""The frames that are for a `DisplaySink`."""

# Watched calls that are remembered. A call's sink outlives the call, for what it left running in the
# background.
_REMEMBERED_DISPLAYS = 256
# Displays and their bytes, per call: a burst, and a rate per second. A loop that redraws a figure stays
# below.
_DISPLAY_BURST = 5_000
_DISPLAYS_PER_S = 200.0
_DISPLAY_BYTES_BURST = 64 << 20
_DISPLAY_BYTES_PER_S = 16 << 20
# The JSON of one display, and how many lists and objects it may have: an empty list takes 3 bytes on the wire
# and 64 in memory.
_MAX_DISPLAY_BYTES = 20 << 20
_MAX_CONTAINERS = 1 << 20
# Up to this size a display is parsed and shown at once: the worst takes some milliseconds.
_AT_ONCE_BYTES = 1 << 13
# What a call that is being stopped may still display at once. It is killed if it has not ended in a third of
# a second, and to parse 20 MiB may take two.
_STOPPING_BYTES = 1 << 20
# Questions that one call may have open at once, and the length of one.
_MAX_QUESTIONS = 16
_MAX_PROMPT_CHARS = 20_000

# Since the page was cleared last, what a call may display: a notebook keeps all of it.
_DISPLAY_BYTES_TOTAL = 256 << 20
# Displays of all calls together: bytes at once, and per second.
_SESSION_DISPLAY_BYTES_BURST = 256 << 20
_SESSION_DISPLAY_BYTES_PER_S = 32 << 20

SendReply = Callable[[str, Mapping[str, Any]], None]
"""Sends a frame to the worker: its op and its header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayMessage:
    """Something that a call displayed. Only its form has been checked.

    Attributes:
        kind: One of `DISPLAY_KINDS`.
        bundle: Its data; for most kinds a MIME bundle.
        details: Further fields, by kind: `display_id`, `metadata`, `wait`, ...
        buffers: Binary parts of a widget's message.
        json: The bundle of a display that is shown in steps, as the worker sent it; empty for a small one.
    """

    kind: str
    bundle: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()
    json: bytes = field(default=b"", repr=False, compare=False)


class DisplaySink(Protocol):
    """Receives what a watched call displays and asks, while it runs."""

    def show(self, call_id: str, message: DisplayMessage, /) -> Awaitable[None] | None:
        """Display `message`; what the call printed before has been delivered.

        Return None if that is done. Otherwise return what is awaited before anything that follows is
        delivered; it may be cancelled. A message that has `json` is shown in steps, and is the sink's until
        then only: its bundle is taken apart, because to free a large one at once takes long.
        """

    def dropped(self, call_id: str, /) -> None:
        """Note that a display of the call was left out, because there were too many or it was too large."""

    async def ask(self, call_id: str, prompt: str, /, *, password: bool) -> str | None:
        """Ask for a line of input. Return None at the end of input."""


@dataclass(slots=True, kw_only=True)
class _WatchedCall:
    sink: DisplaySink
    options: ExecuteOptions
    displays: TokenBucket = field(default_factory=lambda: TokenBucket(_DISPLAY_BURST, _DISPLAYS_PER_S))
    bytes: TokenBucket = field(
        default_factory=lambda: TokenBucket(_DISPLAY_BYTES_BURST, _DISPLAY_BYTES_PER_S)
    )
    bytes_left: int = _DISPLAY_BYTES_TOTAL
    questions: set[asyncio.Task[str | None]] = field(default_factory=set)
    showing: asyncio.Task[None] | None = None
    is_stopping: bool = False


class DisplayRouter:
    """Routes displays and questions to the sink that watches a call.

    A sink stays after the end of its call: what the call left running may still display something.

    Attributes:
        watched: The calls that are watched, by their id.
    """

    def __init__(self) -> None:
        self.watched: dict[str, _WatchedCall] = {}
        self._bytes = TokenBucket(_SESSION_DISPLAY_BYTES_BURST, _SESSION_DISPLAY_BYTES_PER_S)

    def watch(self, call_id: str, sink: DisplaySink, options: ExecuteOptions) -> None:
        """Route a call that has not been sent yet to `sink`; `options` say how it runs."""
        self.watched[call_id] = _WatchedCall(sink=sink, options=options)
        if len(self.watched) > _REMEMBERED_DISPLAYS:
            oldest = next(iter(self.watched))
            self.withdraw_questions(oldest)
            del self.watched[oldest]

    def withdraw_questions(self, call_id: str) -> None:
        """Cancel what the call still asks: it is over."""
        watched = self.watched.get(call_id)
        if watched is not None:
            for task in tuple(watched.questions):
                cancel_future(task)

    def keep_parts(self, call_id: str, sizes: Sequence[int]) -> Sequence[bool]:
        """Return which parts of a display are of use; a `KeepParts` for the frames of one call."""
        watched = self.watched.get(call_id)
        is_kept = (
            watched is not None
            and sizes[0] <= _MAX_DISPLAY_BYTES
            and sum(sizes) <= min(watched.bytes_left, _DISPLAY_BYTES_BURST)
        )
        return [is_kept] * len(sizes)

    def is_watched(self, call_id: str) -> bool:
        """Return whether a sink watches the call."""
        return call_id in self.watched

    def leave_out(self, call_id: str) -> None:
        """Leave out the display that the call waits for, and very large ones that follow: it is stopped."""
        watched = self.watched.get(call_id)
        if watched is not None:
            watched.is_stopping = True
            if watched.showing is not None:
                watched.showing.cancel()

    def route(self, call_id: str, frame: Frame, send_reply: SendReply) -> asyncio.Task[None] | None:
        """Route a frame of `DISPLAY_OPS` of a call that is watched.

        Return None if that is done, or the task that does it. It fails with `ChannelError` if the frame is
        malformed, and is cancelled if the display is left out after all.

        Raises:
            ChannelError: If it is malformed.
        """
        watched = self.watched[call_id]
        if frame.op == "ask":
            self._ask(call_id, watched, frame.header, send_reply)
            return None
        size = sum(map(len, frame.parts))
        if (
            not watched.displays.take()
            or frame.dropped
            or size > watched.bytes_left
            or not watched.bytes.take(size)
            or not self._bytes.take(size)
            or len(frame.parts[0] if frame.parts else b"") > _MAX_DISPLAY_BYTES
            or (watched.is_stopping and size > _STOPPING_BYTES)
        ):
            watched.sink.dropped(call_id)
            return None
        kind, details, body = _display_parts(frame)
        if len(body) <= _AT_ONCE_BYTES:
            message = DisplayMessage(
                kind=kind, bundle=_parse_bundle(body), details=details, buffers=frame.parts[1:]
            )
            rest = self._show(call_id, watched, message, size)
            if rest is None:
                return None
            work = self._finish(rest)
        else:
            work = self._show_in_steps(call_id, watched, kind, details, frame)
        watched.showing = task = asyncio.get_running_loop().create_task(work)

        def note_end(task: asyncio.Task[None]) -> None:
            if watched.showing is task:
                watched.showing = None
            # Also if it was cancelled before its first step, where no code of its own would say so.
            if task.cancelled():
                watched.sink.dropped(call_id)

        task.add_done_callback(note_end)
        return task

    def _show(
        self, call_id: str, watched: _WatchedCall, message: DisplayMessage, size: int
    ) -> Awaitable[None] | None:
        # What is updated or cleared takes the place of what was there; the rest adds to the page.
        watched.bytes_left -= size if message.kind != "update" else 0
        if message.kind == "clear":
            watched.bytes_left = _DISPLAY_BYTES_TOTAL
        return watched.sink.show(call_id, message)

    @staticmethod
    async def _finish(rest: Awaitable[None]) -> None:
        await rest

    async def _show_in_steps(
        self, call_id: str, watched: _WatchedCall, kind: str, details: dict[str, Any], frame: Frame
    ) -> None:
        body, size = frame.parts[0], sum(map(len, frame.parts))
        if await in_steps(has_more_parts(body, _MAX_CONTAINERS, len(body))):
            watched.sink.dropped(call_id)
            return

        def show(bundle: dict[str, Any]) -> Awaitable[None] | None:
            message = DisplayMessage(
                kind=kind, bundle=bundle, details=details, buffers=frame.parts[1:], json=body
            )
            return self._show(call_id, watched, message, size)

        try:
            await show_in_steps(body, show)
        except TooManyKeys:
            watched.sink.dropped(call_id)

    def _ask(
        self, call_id: str, watched: _WatchedCall, header: Mapping[str, Any], send_reply: SendReply
    ) -> None:
        prompt, seq = text_field(header, "prompt"), count_field(header, "seq")
        if len(prompt) > _MAX_PROMPT_CHARS:
            raise ChannelError(
                f"a question has an unknown form: its prompt has {len(prompt)} characters; "
                f"{_MAX_PROMPT_CHARS} are allowed"
            )
        if not watched.options.stdin or len(watched.questions) >= _MAX_QUESTIONS:
            raise ChannelError("a question was asked where none may be asked")

        def reply(task: asyncio.Task[str | None]) -> None:
            watched.questions.discard(task)
            value = None
            try:
                if not task.cancelled():
                    value = task.result()
            finally:
                # Cancelled or failed, even before its first step: the worker blocks in input() until the
                # reply comes, so that it always gets one.
                send_reply("reply", {"seq": seq, "value": value})

        question = watched.sink.ask(call_id, prompt, password=header.get("password") is True)
        task = asyncio.get_running_loop().create_task(question)
        watched.questions.add(task)
        task.add_done_callback(reply)


def _display_parts(frame: Frame) -> tuple[str, dict[str, Any], bytes]:
    """Return the kind, the details and the JSON of a display."""
    details = dict(frame.header)
    kind = details.pop("what", None)
    if not isinstance(kind, str) or kind not in DISPLAY_KINDS or not frame.parts:
        raise ChannelError("a display is of an unknown kind")
    return kind, details, frame.parts[0]


def _parse_bundle(body: bytes) -> dict[str, Any]:
    try:
        bundle = from_json(body, allow_inf_nan=False, cache_strings="keys") if body else {}
    except ValueError as error:
        raise _not_json(error) from None
    return _checked_object(bundle)


async def show_in_steps(body: bytes, show: Callable[[dict[str, Any]], Awaitable[None] | None]) -> None:
    """Parse the large JSON of a bundle, have it shown, and take it apart, all in steps.

    Garbage collection pauses until then. If this is cancelled or fails, what was parsed is taken apart later.

    Args:
        body: The JSON.
        show: Gets the bundle, for as long as what it returns is awaited.

    Raises:
        TooManyKeys: If an object in it has too many keys.
        ChannelError: If it is not a JSON object.
    """
    built: list[Any] = []
    with ExitStack() as paused:
        paused.enter_context(gc_paused())
        try:
            rest = show(_checked_object(await _parse_in_steps(body, built)))
            if rest is not None:
                await rest
            await in_steps(release_steps(built))
        finally:
            if built:
                task = asyncio.get_running_loop().create_task(in_steps(release_steps(built)))
                _releasing.add(task)
                task.add_done_callback(_releasing.discard)
                ended = paused.pop_all()
                task.add_done_callback(lambda _: ended.close())


# The loop itself would forget these tasks.
_releasing: set[asyncio.Task[None]] = set()


async def _parse_in_steps(body: bytes, built: list[Any]) -> Any:
    try:
        return await in_steps(parse_steps(body, built))
    except TooManyKeys:
        raise
    except ValueError as error:
        raise _not_json(error) from None


def _not_json(error: ValueError) -> ChannelError:
    return ChannelError(f"a display is not JSON: {str(error)[:200]}")


def _checked_object(bundle: object) -> dict[str, Any]:
    if not isinstance(bundle, dict):
        raise ChannelError("a display is not an object")
    return bundle
