"""One call in a remote kernel: the cells that it takes, what they show, and the result that comes of it.

All that comes is hostile, and becomes a result by the same way as what a worker of our own sends.

What a remote kernel is sent before the first call: our module, and the package if it is not there.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import io
import json
import sys
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from aisotools.builtin.python import cell_result
from aisotools.core.exceptions import ChannelError, WorkerDied
from aisotools.core.protocols import SandboxCall, SandboxListener
from aisotools.core.types import ToolResult
from aisotools.integrations.jupyter_gateway.connection import (
    RemoteLink,
    Running,
    pieces_of,
    spoken_answer,
    told_answer,
)
from aisotools.integrations.jupyter_gateway.payload import EMIT_MIME
from aisotools.sandbox.results import PrintedOutput, cut, encode_result, result_from_worker
from aisotools.sandbox.worker.output import CallRecord, TokenBucket, strip_ansi
from aisotools.sandbox.worker.worker import add_record, interrupted_result, mark_stopped

_PACKAGE = Path(__file__).resolve().parents[2]
_HOST_PACKAGES = frozenset({"agent", "cli", "integrations", "notebook"})
"""Packages that no tool imports in a worker; they are left out of the archive."""

_CARRIED_LIBRARIES = ("cloudpickle", "pathspec")
"""Pure Python libraries that our tools import in a worker and that an ordinary kernel may lack."""

_PART_CHARS = 2 << 20
_NEEDED = (3, 11)


async def settle(link: RemoteLink, folder: str, timeout_s: float) -> Mapping[str, Any]:
    """Make a kernel ready for our tools; what it says about itself.

    Args:
        link: The kernel.
        folder: Its workspace there, made if it is missing.
        timeout_s: How long each step may take.

    Raises:
        WorkerDied: If it is no kernel that can run them; the message says why.
    """
    told = await link.ask(f"{_MODULE}.hello({json.dumps(folder)})", timeout_s, _installation())
    python = told.get("python")
    if not isinstance(python, list) or len(python) != 2 or not all(type(n) is int for n in python):
        raise WorkerDied("it is no Python kernel, or does not say what it is")
    if tuple(python) < _NEEDED:
        here, needed = ".".join(map(str, python)), ".".join(map(str, _NEEDED))
        raise WorkerDied(f"its Python is {here}, and the tools need {needed} or newer. Use another kernel")
    if told.get("aisotools") != version("aisotools"):
        await carry(link, _archive(), timeout_s)
        await link.ask(f"{_MODULE}.Answer({{}})", timeout_s, f"{_MODULE}.unpack()")
    return told


_MODULE = '__import__("sys").modules["aisotools_remote"]'


def _installation() -> str:
    source = (_PACKAGE / "integrations" / "jupyter_gateway" / "payload.py").read_text("utf-8")
    lines = (
        "def _install(source):",
        "    import sys, types",
        '    module = sys.modules["aisotools_remote"] = types.ModuleType("aisotools_remote")',
        '    exec(compile(source, "<aisotools>", "exec"), module.__dict__)',
        f"_install({source!r})",
        "del _install",
    )
    return "\n".join(lines)


@cache
def _archive() -> bytes:
    """Return a zip of the package, without what only a host needs, and of `_CARRIED_LIBRARIES`."""
    buffer = io.BytesIO()
    folders = {"aisotools": _PACKAGE, **{name: _folder_of(name) for name in _CARRIED_LIBRARIES}}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, folder in folders.items():
            for path in sorted(folder.rglob("*.py")):
                inner = path.relative_to(folder)
                if name != "aisotools" or inner.parts[0] not in _HOST_PACKAGES:
                    archive.write(path, f"{name}/{inner.as_posix()}")
    return buffer.getvalue()


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


async def carry(link: RemoteLink, data: bytes, timeout_s: float) -> None:
    """Have the kernel take `data`, in as many messages as it needs."""
    for part in _parts(data):
        await link.ask(f"{_MODULE}.Answer({{}})", timeout_s, f"{_MODULE}.take({json.dumps(part)})")


def _parts(data: bytes) -> Iterator[str]:
    text = base64.b64encode(data).decode("ascii")
    for start in range(0, len(text), _PART_CHARS):
        yield text[start : start + _PART_CHARS]


def order_for(request: SandboxCall, shipped: bool) -> bytes:
    """A call, with its tool unless the kernel has it, as our module there takes it."""
    from dataclasses import asdict

    from pydantic_core import to_json

    call, shipment = request.call, request.shipment
    payload = b"" if shipped or shipment.import_path else shipment.payload
    return to_json(
        {
            "key": shipment.key,
            "import_path": shipment.import_path,
            "payload": base64.b64encode(payload).decode("ascii"),
            "arguments": call.arguments,
            "caps": asdict(request.output_caps),
            "agent_id": call.agent_id,
            "turn_id": call.turn_id,
            "call_id": call.id,
            "session_key": request.session_key,
            "read_only": request.read_only,
        }
    )


def cell_for(order: bytes, nonce: str, *, overlap: bool, own_kind: bool) -> tuple[list[str], str, str]:
    """The cells that a call takes: those that bring it, the one that runs it, and what tells its result."""
    *before, last = _parts(order)
    runs = f"{_MODULE}.take({json.dumps(last)}); "
    runs += f"await {_MODULE}.run_async({nonce!r})" if overlap else f"{_MODULE}.run({nonce!r})"
    told = f"{_MODULE}.answer({nonce!r}, {own_kind})"
    return [f"{_MODULE}.take({json.dumps(part)})" for part in before], runs, told


_WORD_CHARS, _MESSAGE_CHARS, _TRACEBACK_CHARS = 200, 10_000, 100_000
_ORDER_BYTES = 64 << 20
_EMIT_BYTES = 1 << 16
_EMITS_AT_ONCE, _EMITS_PER_S = 2000, 100.0

Shown = Mapping[str, Any]
"""The content of the reply that ends a call."""


def unsendable(request: SandboxCall, link: RemoteLink) -> ToolResult | None:
    """Why a call cannot be sent to that kernel; None if it can."""
    there, here = tuple(link.info["python"]), sys.version_info[:2]
    name = request.call.name
    if request.shipment.import_path != PythonCall.RUNS and link.info.get("pydantic") is not True:
        told = f"{name} needs the library pydantic in the remote kernel, which has none. "
        told += "Have the `python` tool run `%pip install pydantic`, then restart the sandbox."
        return ToolResult.error(told, recoverable=False, error_kind="environment")
    if request.shipment.payload and there != here:
        versions = f"{'.'.join(map(str, there))} there, {'.'.join(map(str, here))} here"
        told = f"{name} cannot be sent: a function travels only to the same version of Python ({versions}). "
        told += "Use a kernel of this version, or have the `python` tool define the function there."
        return ToolResult.error(told, recoverable=False, error_kind="environment")
    return None


class _Calling:
    """What both kinds of call have in common: what is heard of them.

    Attributes:
        interrupted: Whether it was told to stop.
    """

    def __init__(self, link: RemoteLink, request: SandboxCall, listener: SandboxListener) -> None:
        """Be ready to run `request` over `link`."""
        caps = request.output_caps
        self._link, self._request, self._listener = link, request, listener
        self.interrupted = False
        self._printed = PrintedOutput(caps.stream_bytes)
        self._record = CallRecord(
            call_id=request.call.id, stream_left=caps.stream_bytes, data_left=caps.data_bytes
        )
        self._emits = TokenBucket(_EMITS_AT_ONCE, _EMITS_PER_S)
        self._nonce = uuid.uuid4().hex
        self._spoken: Mapping[str, Any] = {}
        self._sent: list[tuple[str, Running]] = []

    def printed(self) -> dict[str, str]:
        """What it printed so far, by stream."""
        return self._printed.texts()

    def end(self) -> None:
        """Hear no more of it."""
        for name, running in self._sent:
            if running.reply.done():
                self._link.end(name)
            else:  # it is still heard of, but for its end alone
                running.hear = lambda _kind, _content: None

    async def over(self, within_s: float) -> bool:
        """Whether the kernel is done with it, in time."""
        replies = [running.reply for _, running in self._sent if not running.reply.done()]
        if replies:
            await asyncio.wait(replies, timeout=within_s)
        return all(running.reply.done() for _, running in self._sent)

    async def _cell(self, code: str, **how: Any) -> Mapping[str, Any]:
        name, running = await self._link.begin(code, self._hear, **how)
        self._sent.append((name, running))
        return await self._link.outcome(running)

    # ---- what it shows

    def _hear(self, kind: str, content: Mapping[str, Any]) -> None:
        if kind == "stream":
            self._hear_text(content)
        elif kind == "error":
            self._record.error = _error(content)
        elif kind == "clear_output":
            self._record.clear(wait=content.get("wait") is True)
        elif kind in {"display_data", "update_display_data", "execute_result"}:
            self._hear_bundle(kind, content)

    def _hear_text(self, content: Mapping[str, Any]) -> None:
        stream, text = content.get("name"), content.get("text")
        if not isinstance(stream, str) or stream not in {"stdout", "stderr"} or not isinstance(text, str):
            return
        self._record.take(stream, text)
        if kept := self._printed.add(stream, text):
            self._listener.output(self._request.call.id, stream, kept)

    def _hear_bundle(self, kind: str, content: Mapping[str, Any]) -> None:
        data = content.get("data")
        if not isinstance(data, dict):
            return
        if EMIT_MIME in data:
            self._hear_emit(data[EMIT_MIME])
        elif kind == "execute_result":
            self._hear_value(data)
        else:
            transient = content.get("transient")
            name = transient.get("display_id") if isinstance(transient, dict) else None
            known = name if isinstance(name, str) else ""
            self._record.display(data, display_id=known, update=kind == "update_display_data")

    def _hear_value(self, data: dict[str, Any]) -> None:
        self._record.show_result(data)

    def _hear_emit(self, told: object) -> None:
        if not isinstance(told, dict) or told.get("nonce") != self._nonce:
            return
        name, payload = told.get("name"), told.get("payload")
        if not isinstance(name, str) or not isinstance(payload, dict) or not self._emits.take():
            return
        if len(to_json(payload)) <= _EMIT_BYTES:
            self._listener.emitted(self._request.call.id, name[:_WORD_CHARS], payload)


class PythonCall(_Calling):
    """A call of the `python` tool: its code is a cell of the kernel's own."""

    RUNS = "aisotools.builtin.python:python"

    async def run(self) -> Shown:
        """Run it; the reply.

        Raises:
            WorkerDied: If the kernel or the connection was lost.
        """
        code = self._request.call.arguments.get("code")
        return await self._cell(str(code), store_history=True)

    def result(self, reply: Shown) -> ToolResult:
        """What came of it.

        Raises:
            ChannelError: If what came is out of form.
        """
        record, caps = self._record, self._request.output_caps
        failed = reply.get("status") != "ok"
        if failed and record.error is None:
            record.error = _error(reply)
        if not failed:
            record.error = None
        result = add_record(cell_result(record, failed=failed), record)
        if self.interrupted and failed:
            result = mark_stopped(interrupted_result(result.content))
        return result_from_worker(encode_result(result, caps), caps, PrintedOutput(0))


class ToolCell(_Calling):
    """A call of any other tool: our module in the kernel runs it."""

    async def run(self) -> Shown:
        """Run it; the reply.

        Raises:
            WorkerDied: If the kernel or the connection was lost.
        """
        shipment, link = self._request.shipment, self._link
        order = order_for(self._request, shipment.key in link.shipped)
        if len(order) > _ORDER_BYTES:
            raise ChannelError(f"a call of {len(order):,} bytes is too large")
        overlap = shipment.concurrency == "overlap"
        before, code, told = cell_for(order, self._nonce, overlap=overlap, own_kind=link.own_kind)
        for part in before:
            reply = await self._cell(part, silent=True)
            if reply.get("status") != "ok":
                return reply
        if link.own_kind:
            reply = await self._cell(f"{code}\n{told}")
        else:
            reply = await self._cell(code, silent=True, user_expressions={"answer": told})
        if reply.get("status") == "ok":
            link.shipped.add(shipment.key)
        return reply

    def _hear_value(self, data: dict[str, Any]) -> None:
        told = spoken_answer({"data": data}) if self._link.own_kind else {}
        if told.get("nonce") == self._nonce:
            self._spoken = told
        else:
            super()._hear_value(data)

    def result(self, reply: Shown) -> ToolResult:
        """What came of it.

        Raises:
            ChannelError: If what came is out of form.
        """
        caps = self._request.output_caps
        if reply.get("status") != "ok":
            told = _error(reply)
            if self.interrupted or told["ename"] in {"KeyboardInterrupt", "CancelledError"}:
                return interrupted_result().with_metadata(**self.printed())
            words = f"{told['ename']}: {told['evalue']}" if told["ename"] else "it did not say why"
            text = f"{self._request.call.name} failed in the remote kernel: {words}"
            return ToolResult.error(text, recoverable=False, error_kind="environment")
        pieces = pieces_of(self._spoken or told_answer(reply), self._nonce)
        result = result_from_worker(pieces, caps, self._printed)
        if self.interrupted:
            result = mark_stopped(result)
        return add_record(result, self._record)


def _error(content: Mapping[str, Any]) -> dict[str, str]:
    """What was raised, as text of a bearable length."""

    def text(key: str, most: int) -> str:
        value = content.get(key)
        return cut(value, most)[0] if isinstance(value, str) else ""

    lines = content.get("traceback")
    trace = "\n".join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ""
    return {
        "ename": text("ename", _WORD_CHARS),
        "evalue": text("evalue", _MESSAGE_CHARS),
        "traceback": strip_ansi(cut(trace, _TRACEBACK_CHARS)[0]),
    }


__all__ = ["PythonCall", "Shown", "ToolCell", "WorkerDied", "unsendable"]
