"""A call that somebody watches, in the worker: what it shows goes out at once, and it may ask for input.

Without a watcher a call's displays travel with its result, nobody can be asked, and the messages of widgets
go nowhere. The host says in the call's header who watches and how; see `aisotools.sandbox.screens`.
"""

from __future__ import annotations

import contextlib
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import to_json

from aisotools.sandbox.streams import Manner, Watch, json_bundle, sendable

Send = Callable[[str, Mapping[str, Any], tuple[bytes, ...]], None]
"""Sends a frame to the host: its op, its header and its parts."""

_PROMPT_CHARS = 10_000
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True, kw_only=True)
class HostWatch:
    """Whoever watches one call, at the other end of the channel.

    Attributes:
        number: The call, as the channel calls it.
        manner: How it is to run.
        send: Sends a frame to the host.
        inputs: Asks the host for a line.
    """

    number: int
    manner: Manner
    send: Send
    inputs: Inputs
    _comm_noted: bool = field(default=False, init=False)

    def show(
        self,
        what: str,
        bundle: Mapping[str, Any] | None = None,
        *,
        buffers: Sequence[bytes] = (),
        **how: Any,
    ) -> None:
        """Send what is shown; `bundle` is within the caps already."""
        _flush()
        body = b"" if bundle is None else to_json(bundle, inf_nan_mode="strings", serialize_unknown=True)
        self.send("show", {"id": self.number, "what": what, **how}, (body, *buffers))

    def ask(self, prompt: object, *, password: bool) -> str:
        """A line from whoever watches.

        Raises:
            RuntimeError: If nobody can be asked.
            EOFError: If they end their input.
        """
        _flush()
        if not self.manner.stdin:
            raise refusal(prompt)
        return self.inputs.ask(self.number, sendable(str(prompt))[:_PROMPT_CHARS], password=password)

    def message(
        self,
        kind: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any],
        buffers: Sequence[bytes],
    ) -> None:
        """Pass a widget's message on; or say, once, that it is not."""
        if self.manner.comms:
            self.show("comm", content, buffers=buffers, kind=kind, metadata=metadata)
        elif not self._comm_noted:
            self._comm_noted = True
            self.show("comm_dropped")


def refusal(prompt: object) -> RuntimeError:
    """What stands for an answer when nobody can be asked."""
    return RuntimeError(
        f"input({str(prompt)!r}) cannot ask anybody from inside the sandbox. "
        "Pass the value in as an argument or assign it before this call.",
    )


class Inputs:
    """Questions to the host, and their answers; asked from any thread."""

    def __init__(self, send: Send, descriptor: int, receive: Callable[[], None]) -> None:
        """Ask through `send`.

        Args:
            send: Sends a frame.
            descriptor: The channel, for waiting.
            receive: Reads the channel once and handles what came; may call `take`.
        """
        self._send, self._descriptor, self._receive = send, descriptor, receive
        self._waiting: dict[int, threading.Event] = {}
        self._answers: dict[int, str | None] = {}
        self._asked = 0

    def take(self, header: Mapping[str, Any]) -> None:
        """The host answers."""
        waiting = self._waiting.pop(header["seq"], None)
        if waiting is not None:
            self._answers[header["seq"]] = header["value"]
            waiting.set()

    def ask(self, number: int, prompt: str, *, password: bool) -> str:
        """Ask on behalf of a call and wait; the main thread serves the channel meanwhile."""
        self._asked += 1
        seq, answered = self._asked, threading.Event()
        self._waiting[seq] = answered
        self._send("ask", {"id": number, "seq": seq, "prompt": prompt, "password": password}, ())
        try:
            if threading.current_thread() is threading.main_thread():
                while not answered.is_set():
                    self._serve_once()
            else:
                answered.wait()
            value = self._answers[seq]
        finally:
            self._waiting.pop(seq, None)
            self._answers.pop(seq, None)
        if value is None:
            raise EOFError
        return value

    def _serve_once(self) -> None:
        select.select([self._descriptor], [], [])  # an interrupt strikes here, where it loses nothing
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._receive()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)


def without_colours(text: str) -> str:
    """`text` as a model reads it."""
    return _COLOURS.sub("", text)


def use_comms(current: Callable[[], Watch | None]) -> None:
    """Have the messages of widgets go to whoever watches the current call."""
    import comm
    from comm.base_comm import BaseComm

    class Comm(BaseComm):
        def publish_msg(
            self,
            msg_type: str,
            data: Any = None,
            metadata: Any = None,
            buffers: Any = None,
            **keys: Any,
        ) -> None:
            watch = current()
            if watch is not None:
                told = json_bundle({**keys, "comm_id": self.comm_id, "data": data or {}})
                more = [bytes(memoryview(buffer).cast("B")) for buffer in buffers or ()]
                watch.message(msg_type, told, json_bundle(metadata or {}), more)

    comm.create_comm = Comm


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # user code may have put None there
            stream.flush()
