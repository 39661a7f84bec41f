"""Calls in a remote kernel: preparing the kernel, the cells of a call, and its result.

The kernel is untrusted. Its output becomes a result by the same checks as that of a local worker.
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
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from aisotools.builtin.python import cell_result
from aisotools.core.exceptions import ChannelError, WorkerDied
from aisotools.core.sandboxes import SandboxCall, SandboxListener
from aisotools.core.types import ToolResult
from aisotools.integrations.jupyter_gateway.connection import (
    PendingRequest,
    RemoteLink,
    answer_from_output,
    answer_from_reply,
    result_pieces,
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
"""Base64 characters in one message to the kernel."""
_MIN_PYTHON = (3, 11)
_MODULE = '__import__("sys").modules["aisotools_remote"]'
"""The sent module, as an expression that works whatever names a user's code binds."""

_MAX_WORD_CHARS = 200
_MAX_MESSAGE_CHARS = 10_000
_MAX_TRACEBACK_CHARS = 100_000
_MAX_ORDER_BYTES = 64 << 20
_MAX_EMIT_BYTES = 1 << 16
_EMIT_BURST = 2000
_EMITS_PER_S = 100.0

KernelReply = Mapping[str, Any]
"""Content of the reply that ends a call; untrusted."""


# ---- preparing a kernel


async def prepare_kernel(link: RemoteLink, folder: str, timeout_s: float) -> Mapping[str, Any]:
    """Install the module, and the package if needed. Return the answer of `payload.hello`.

    Args:
        link: The kernel.
        folder: Workspace on its machine, created if it is missing.
        timeout_s: Time limit of each step.

    Raises:
        WorkerDied: If the kernel cannot run tools.
    """
    info = await link.ask(f"{_MODULE}.hello({json.dumps(folder)})", timeout_s, _installation())
    python = info.get("python")
    if not isinstance(python, list) or len(python) != 2 or not all(type(n) is int for n in python):
        raise WorkerDied("it is not a Python kernel, or does not report its version")
    if tuple(python) < _MIN_PYTHON:
        version_text, minimum = ".".join(map(str, python)), ".".join(map(str, _MIN_PYTHON))
        raise WorkerDied(
            f"its Python is {version_text}, and the tools need {minimum} or newer. Use another kernel"
        )
    if info.get("aisotools") != version("aisotools"):
        await send_data(link, _archive(), timeout_s)
        await link.ask(f"{_MODULE}.MimeValue({{}})", timeout_s, f"{_MODULE}.install_archive()")
    return info


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


async def send_data(link: RemoteLink, data: bytes, timeout_s: float) -> None:
    """Send `data` to the kernel, in as many messages as it needs."""
    for part in _parts(data):
        await link.ask(f"{_MODULE}.MimeValue({{}})", timeout_s, f"{_MODULE}.take({json.dumps(part)})")


def _parts(data: bytes) -> Iterator[str]:
    text = base64.b64encode(data).decode("ascii")
    for start in range(0, len(text), _PART_CHARS):
        yield text[start : start + _PART_CHARS]


def encode_order(request: SandboxCall, shipped: bool) -> bytes:
    """Encode a call for the sent module, with its tool unless the kernel has it."""
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


def build_cells(order: bytes, nonce: str, *, overlap: bool, own_kind: bool) -> tuple[list[str], str, str]:
    """Return the cells that send an order, the cell that runs it, and the expression for its result."""
    *before, last = _parts(order)
    run = f"{_MODULE}.take({json.dumps(last)}); "
    run += f"await {_MODULE}.run_call_async({nonce!r})" if overlap else f"{_MODULE}.run_call({nonce!r})"
    answer = f"{_MODULE}.answer({nonce!r}, {own_kind})"
    return [f"{_MODULE}.take({json.dumps(part)})" for part in before], run, answer


# ---- calls


def check_sendable(request: SandboxCall, link: RemoteLink) -> ToolResult | None:
    """Return the error of a call that cannot run in that kernel, or None."""
    there, here = tuple(link.info["python"]), sys.version_info[:2]
    name = request.call.name
    if request.in_reader or request.is_trial:
        message = f"{name} was not run: nothing in the remote kernel holds a call to changing nothing."
        return ToolResult.error(message, recoverable=False, error_kind="environment")
    if request.shipment.import_path != PythonCall.RUNS and link.info.get("pydantic") is not True:
        message = (
            f"{name} needs the library pydantic, which the remote kernel does not have. "
            "Have the `python` tool run `%pip install pydantic`, then restart the sandbox."
        )
        return ToolResult.error(message, recoverable=False, error_kind="environment")
    if request.shipment.payload and there != here:
        versions = f"{'.'.join(map(str, there))} there, {'.'.join(map(str, here))} here"
        message = (
            f"{name} cannot be sent: a pickled function needs the same version of Python ({versions}). "
            "Use a kernel of this version, or have the `python` tool define the function there."
        )
        return ToolResult.error(message, recoverable=False, error_kind="environment")
    return None


class _RemoteCall:
    """Base of both kinds of call: collects their output.

    Attributes:
        interrupted: Whether the sandbox has interrupted the call.
    """

    def __init__(self, link: RemoteLink, request: SandboxCall, listener: SandboxListener) -> None:
        """Prepare a call; `run` sends it."""
        caps = request.output_caps
        self._link = link
        self._request = request
        self._listener = listener
        self.interrupted = False
        self._printed = PrintedOutput(caps.stream_bytes)
        self._record = CallRecord(
            call_id=request.call.id, stream_left=caps.stream_bytes, data_left=caps.data_bytes
        )
        self._emits = TokenBucket(_EMIT_BURST, _EMITS_PER_S)
        self._nonce = uuid.uuid4().hex
        self._spoken: Mapping[str, Any] = {}
        self._sent: list[tuple[str, PendingRequest]] = []

    def mark_interrupted(self) -> None:
        """Note that the call is being interrupted: its failure is then no error of the tool."""
        self.interrupted = True

    def printed(self) -> dict[str, str]:
        """Return the output so far, by stream."""
        return self._printed.texts()

    def end(self) -> None:
        """Ignore further output."""
        for request_id, pending in self._sent:
            if pending.reply.done():
                self._link.forget(request_id)
            else:
                # The reply still matters: `wait_finished` waits for it after a timeout.
                pending.ignore_output()

    async def wait_finished(self, timeout_s: float) -> bool:
        """Wait until the kernel has finished the call. Return False after `timeout_s`."""
        replies = [pending.reply for _, pending in self._sent if not pending.reply.done()]
        if replies:
            await asyncio.wait(replies, timeout=timeout_s)
        return all(pending.reply.done() for _, pending in self._sent)

    async def _execute(self, code: str, **options: Any) -> Mapping[str, Any]:
        request_id, pending = await self._link.execute(code, self._on_output, **options)
        self._sent.append((request_id, pending))
        return await self._link.wait_reply(pending)

    # -- output

    def _on_output(self, kind: str, content: Mapping[str, Any]) -> None:
        if kind == "stream":
            self._on_stream(content)
        elif kind == "error":
            self._record.error = _error(content)
        elif kind == "clear_output":
            self._record.clear(wait=content.get("wait") is True)
        elif kind in {"display_data", "update_display_data", "execute_result"}:
            self._on_bundle(kind, content)

    def _on_stream(self, content: Mapping[str, Any]) -> None:
        stream, text = content.get("name"), content.get("text")
        if not isinstance(stream, str) or stream not in {"stdout", "stderr"} or not isinstance(text, str):
            return
        self._record.take(stream, text)
        if new_text := self._printed.add(stream, text):
            self._listener.output(self._request.call.id, stream, new_text)

    def _on_bundle(self, kind: str, content: Mapping[str, Any]) -> None:
        data = content.get("data")
        if not isinstance(data, dict):
            return
        if EMIT_MIME in data:
            self._on_emit(data[EMIT_MIME])
        elif kind == "execute_result":
            self._on_value(data)
        else:
            transient = content.get("transient")
            name = transient.get("display_id") if isinstance(transient, dict) else None
            display_id = name if isinstance(name, str) else ""
            self._record.display(data, display_id=display_id, update=kind == "update_display_data")

    def _on_value(self, data: dict[str, Any]) -> None:
        self._record.show_result(data)

    def _on_emit(self, event: object) -> None:
        # The nonce is not a secret to the code in the kernel. It separates the reports of calls that overlap.
        if not isinstance(event, dict) or event.get("nonce") != self._nonce:
            return
        name, payload = event.get("name"), event.get("payload")
        if not isinstance(name, str) or not isinstance(payload, dict) or not self._emits.take():
            return
        if len(to_json(payload)) <= _MAX_EMIT_BYTES:
            self._listener.emitted(self._request.call.id, name[:_MAX_WORD_CHARS], payload)


class PythonCall(_RemoteCall):
    """A call of the `python` tool: its code runs as an ordinary cell."""

    RUNS = "aisotools.builtin.python:python"

    async def run(self) -> KernelReply:
        """Run the call and return its reply.

        Raises:
            WorkerDied: If the kernel or the connection was lost.
        """
        code = self._request.call.arguments.get("code")
        return await self._execute(str(code), store_history=True)

    def result(self, reply: KernelReply) -> ToolResult:
        """Build the result of the call.

        Raises:
            ChannelError: If the kernel sent a malformed result.
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


class ToolCell(_RemoteCall):
    """A call of any other tool: the sent module runs it."""

    async def run(self) -> KernelReply:
        """Run the call and return its reply.

        Raises:
            ChannelError: If the call is too large; nothing of it was sent.
            WorkerDied: If the kernel or the connection was lost.
        """
        shipment, link = self._request.shipment, self._link
        order = encode_order(self._request, shipment.key in link.shipped)
        if len(order) > _MAX_ORDER_BYTES:
            raise ChannelError(
                f"The call has {len(order):,} bytes; {_MAX_ORDER_BYTES:,} are allowed. Put the data into a "
                "file of the workspace, or pass it in several calls."
            )
        overlap = shipment.concurrency == "overlap"
        before, code, answer = build_cells(order, self._nonce, overlap=overlap, own_kind=link.own_kind)
        for part in before:
            reply = await self._execute(part, silent=True)
            if reply.get("status") != "ok":
                return reply
        if link.own_kind:
            reply = await self._execute(f"{code}\n{answer}")
        else:
            reply = await self._execute(code, silent=True, user_expressions={"answer": answer})
        if reply.get("status") == "ok":
            link.shipped.add(shipment.key)
        return reply

    def _on_value(self, data: dict[str, Any]) -> None:
        answer = answer_from_output({"data": data}) if self._link.own_kind else {}
        if answer.get("nonce") == self._nonce:
            self._spoken = answer
        else:
            super()._on_value(data)

    def result(self, reply: KernelReply) -> ToolResult:
        """Build the result of the call.

        Raises:
            ChannelError: If the kernel sent a malformed result.
        """
        caps = self._request.output_caps
        if reply.get("status") != "ok":
            error = _error(reply)
            if self.interrupted or error["ename"] in {"KeyboardInterrupt", "CancelledError"}:
                return interrupted_result().with_metadata(**self.printed())
            reason = f"{error['ename']}: {error['evalue']}" if error["ename"] else "no reason was sent"
            text = f"{self._request.call.name} failed in the remote kernel: {reason}"
            return ToolResult.error(text, recoverable=False, error_kind="environment")
        pieces = result_pieces(self._spoken or answer_from_reply(reply), self._nonce)
        result = result_from_worker(pieces, caps, self._printed)
        if self.interrupted:
            result = mark_stopped(result)
        return add_record(result, self._record)


def _error(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the error in a message, each part cut to a bounded length."""

    def text(key: str, most: int) -> str:
        value = content.get(key)
        return cut(value, most)[0] if isinstance(value, str) else ""

    lines = content.get("traceback")
    trace = "\n".join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ""
    return {
        "ename": text("ename", _MAX_WORD_CHARS),
        "evalue": text("evalue", _MAX_MESSAGE_CHARS),
        "traceback": strip_ansi(cut(trace, _MAX_TRACEBACK_CHARS)[0]),
    }


__all__ = ["KernelReply", "PythonCall", "ToolCell", "WorkerDied", "check_sendable"]
