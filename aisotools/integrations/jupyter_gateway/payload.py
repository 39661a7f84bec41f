"""What runs in a remote kernel: a module of its own there, sent as source, which runs our tools.

It needs no more than an ordinary Python kernel has. The package itself is imported if it is installed there
in the same version, and else comes along as an archive. Nothing in here is believed by the host.
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
_tools: dict[str, Any] = {}
_answers: dict[str, tuple[bytes, ...]] = {}
_state: dict[str, str] = {"folder": ""}


class Answer:
    """Something for the host, as a MIME bundle of our own type, and in plain text if it lets no other out."""

    def __init__(self, value: Mapping[str, Any], *, spoken: bool = True) -> None:
        """Bring `value`."""
        self._value = value
        self._spoken = spoken

    def __repr__(self) -> str:
        return json.dumps(self._value)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {RESULT_MIME: self._value, "text/plain": repr(self) if self._spoken else ""}


def hello(folder: str) -> Answer:
    """Settle in `folder`, which is made, and tell what there is here."""
    os.makedirs(folder, exist_ok=True)
    _state["folder"] = os.path.realpath(folder)
    os.chdir(_state["folder"])
    os.environ["WORKSPACE"] = _state["folder"]
    try:
        version = importlib.metadata.version("aisotools")
    except importlib.metadata.PackageNotFoundError:
        version = ""
    return Answer(
        {
            "python": list(sys.version_info[:2]),
            "aisotools": version,
            "pydantic": importlib.util.find_spec("pydantic") is not None,
            "cloudpickle": importlib.util.find_spec("cloudpickle") is not None,
            "folder": _state["folder"],
        }
    )


def take(part: str) -> None:
    """Keep a part of something that is too large for one message."""
    _parts.append(part)


def taken() -> bytes:
    """All that was kept, which is forgotten then."""
    data = base64.b64decode("".join(_parts))
    _parts.clear()
    return data


def unpack() -> None:
    """Have the modules of the archive that was taken at the head of the path."""
    with tempfile.NamedTemporaryFile(prefix="aisotools-", suffix=".zip", delete=False) as file:
        file.write(taken())
    sys.path.insert(0, file.name)
    importlib.invalidate_caches()


def run(nonce: str) -> None:
    """Run the call that was taken, without yielding to the loop, so that an interrupt strikes it."""
    order = json.loads(taken())
    record, caps, context = _context(nonce, order)
    try:
        _keep(nonce, _stepped(_tool(order).execute(order["arguments"], context)), record, caps)
    except BaseException as error:  # whatever a tool raises is its result
        _fail(nonce, error, record, caps)


async def run_async(nonce: str) -> None:
    """Run the call that was taken, as a part of the kernel's loop."""
    order = json.loads(taken())
    record, caps, context = _context(nonce, order)
    try:
        _keep(nonce, await _tool(order).execute(order["arguments"], context), record, caps)
    except BaseException as error:  # whatever a tool raises is its result
        _fail(nonce, error, record, caps)


def answer(nonce: str, spoken: bool) -> Answer:
    """What the call gave."""
    pieces = [base64.b64encode(piece).decode("ascii") for piece in _answers.pop(nonce)]
    return Answer({"nonce": nonce, "pieces": pieces}, spoken=spoken)


def _stepped(execution: Coroutine[Any, Any, Any]) -> Any:
    try:
        execution.send(None)
    except StopIteration as done:
        return done.value
    finally:
        execution.close()
    raise RuntimeError("a function that is not `async def` has nothing to await; make it one")


def _keep(nonce: str, result: Any, record: Any, caps: Any) -> None:
    from aisotools.core.types import ToolResult
    from aisotools.sandbox.results import encode_result
    from aisotools.sandbox.worker.worker import add_record

    if not isinstance(result, ToolResult):
        told = f"The tool returned {type(result).__name__} instead of a ToolResult; mend its execute()."
        result = ToolResult.error(told, recoverable=False)
    _answers[nonce] = encode_result(add_record(result, record), caps)


def _fail(nonce: str, error: BaseException, record: Any, caps: Any) -> None:
    from aisotools.sandbox.worker.worker import encode_failure

    _answers[nonce] = encode_failure(error, record, caps)


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
        told = {"nonce": nonce, "name": str(name), "payload": payload}
        shell.display_pub.publish({EMIT_MIME: json.loads(json.dumps(told))})

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
