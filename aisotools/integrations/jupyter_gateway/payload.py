"""The module that is sent to a remote kernel as source, and runs tools there.

It needs only what an ordinary IPython kernel has. The package is imported if the same version is installed
there; otherwise the host sends it as an archive. The host trusts nothing that this module returns.
"""

from __future__ import annotations

import base64
import builtins
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Coroutine, Mapping
from typing import Any

RESULT_MIME = "application/vnd.aisotools.result+json"
EMIT_MIME = "application/vnd.aisotools.emit+json"

_parts: list[str] = []
"""Received parts of a large argument, in base64."""
_tools: dict[str, Any] = {}
_results: dict[str, tuple[bytes, ...]] = {}
"""Encoded results by the nonce of their call."""
_state: dict[str, str] = {"folder": ""}


class MimeValue:
    """A value for the host, as a MIME bundle of our own type.

    With `spoken` it is repeated as plain text, for kernels that remove unknown media types from outputs.
    """

    def __init__(self, value: Mapping[str, Any], *, spoken: bool = True) -> None:
        """Wrap `value`, which must be JSON."""
        self._value = value
        self._spoken = spoken

    def __repr__(self) -> str:
        return json.dumps(self._value)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {RESULT_MIME: self._value, "text/plain": repr(self) if self._spoken else ""}


def hello(folder: str) -> MimeValue:
    """Create `folder`, make it the working directory, and return versions and libraries of this kernel."""
    os.makedirs(folder, exist_ok=True)
    _state["folder"] = os.path.realpath(folder)
    os.chdir(_state["folder"])
    os.environ["WORKSPACE"] = _state["folder"]
    try:
        version = importlib.metadata.version("aisotools")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return MimeValue(
        {
            "python": list(sys.version_info[:2]),
            "aisotools": version,
            "pydantic": importlib.util.find_spec("pydantic") is not None,
            "cloudpickle": importlib.util.find_spec("cloudpickle") is not None,
            "folder": _state["folder"],
        }
    )


def take(part: str) -> None:
    """Store a part of an argument that is too large for one message."""
    _parts.append(part)


def take_all() -> bytes:
    """Return the decoded parts, and drop them."""
    data = base64.b64decode("".join(_parts))
    _parts.clear()
    return data


def install_archive() -> None:
    """Put the stored archive at the head of the import path."""
    with tempfile.NamedTemporaryFile(prefix="aisotools-", suffix=".zip", delete=False) as file:
        file.write(take_all())
    sys.path.insert(0, file.name)
    importlib.invalidate_caches()


def run_call(nonce: str) -> None:
    """Run the stored call without yielding to the event loop, so that an interrupt raises inside the tool."""
    order = json.loads(take_all())
    record, caps, context = _context(nonce, order)
    try:
        _store_result(nonce, _run_to_end(_tool(order).execute(order["arguments"], context)), record, caps)
    except BaseException as error:  # whatever a tool raises, SystemExit too, is its result
        _store_failure(nonce, error, record, caps)


async def run_call_async(nonce: str) -> None:
    """Run the stored call on the kernel's event loop."""
    order = json.loads(take_all())
    record, caps, context = _context(nonce, order)
    try:
        _store_result(nonce, await _tool(order).execute(order["arguments"], context), record, caps)
    except BaseException as error:  # whatever a tool raises, SystemExit too, is its result
        _store_failure(nonce, error, record, caps)


def answer(nonce: str, spoken: bool) -> MimeValue:
    """Return the result of a call, and drop it."""
    pieces = [base64.b64encode(piece).decode("ascii") for piece in _results.pop(nonce)]
    return MimeValue({"nonce": nonce, "pieces": pieces}, spoken=spoken)


def _run_to_end(execution: Coroutine[Any, Any, Any]) -> Any:
    try:
        execution.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        execution.close()
    raise RuntimeError("a function that is not `async def` has nothing to await; make it one")


def _store_result(nonce: str, result: Any, record: Any, caps: Any) -> None:
    from aisotools.core.types import ToolResult
    from aisotools.sandbox.results import encode_result
    from aisotools.sandbox.worker.worker import add_record

    if not isinstance(result, ToolResult):
        message = f"The tool returned {type(result).__name__} instead of a ToolResult. Fix its execute()."
        result = ToolResult.error(message, recoverable=False)
    _results[nonce] = encode_result(add_record(result, record), caps)


def _store_failure(nonce: str, error: BaseException, record: Any, caps: Any) -> None:
    from aisotools.sandbox.worker.worker import encode_failure

    _results[nonce] = encode_failure(error, record, caps)


def _tool(order: Mapping[str, Any]) -> Any:
    key = order["key"]
    if key not in _tools:
        module, _, attribute = order["import_path"].partition(":")
        if module:
            _tools[key] = getattr(importlib.import_module(module), attribute)
        else:
            _tools[key] = pickle.loads(base64.b64decode(order["payload"]))  # noqa: S301 - from the host
    return _tools[key]


def _context(nonce: str, order: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    from pathlib import Path

    from aisotools.core.protocols import OutputCaps, ToolContext
    from aisotools.sandbox.worker.output import CallRecord, json_bundle

    shell = _shell()

    def emit(name: str, payload: Mapping[str, Any]) -> None:
        event = {"nonce": nonce, "name": str(name), "payload": payload}
        shell.display_pub.publish({EMIT_MIME: json.loads(json.dumps(event))})

    def present(value: Any) -> dict[str, Any]:
        return json_bundle(shell.display_formatter.format(value)[0])

    caps = OutputCaps(**order["caps"])
    record = CallRecord(call_id=nonce, stream_left=caps.stream_bytes, data_left=caps.data_bytes)
    context = ToolContext(
        agent_id=order["agent_id"],
        session_key=order["session_key"],
        turn_id=order["turn_id"],
        call_id=order["call_id"],
        workspace_path=Path(_state["folder"]),
        sandbox_config={"level": "limited", "workspace": _state["folder"]},
        output_caps=caps,
        emitter=emit,
        metadata={"present": present, "record": record, "shell": shell, "read_only": order["read_only"]},
    )
    return record, caps, context


def _shell() -> Any:
    return builtins.get_ipython()  # type: ignore[attr-defined]  # every IPython kernel puts it there
