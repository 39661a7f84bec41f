"""What a front asks of a worker besides running cells; the answers are hostile and are checked here.

An enquiry is a call that changes nothing on purpose, of a tool that only workers have. It waits until the
worker is free and gives up soon, so that typing never waits for a cell.
"""

from __future__ import annotations

import asyncio
import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aisotools.contracts import OutputCaps, Sandbox, SandboxCall, Shipment
from aisotools.events import Json, ToolCall

WITHIN_S = 2.0
"""How long an answer may take."""

_MODULE = "aisotools.sandbox.introspect"
_WAIT_S = 1.0
_MESSAGE_S = 60.0
_CODE_CHARS = 1 << 20
_MATCHES, _MATCH_CHARS, _TEXT_CHARS = 1_000, 2_000, 200_000
_CAPS = OutputCaps(content_chars=2_000, stream_bytes=1 << 16, value_bytes=2 << 20, data_bytes=1 << 20)
_MESSAGES = frozenset({"comm_open", "comm_msg", "comm_close"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One completion.

    Attributes:
        text: What to put there.
        type: What it is, such as `function`; may be empty.
        signature: How it is called; may be empty.
    """

    text: str
    type: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What may stand at the cursor.

    Attributes:
        start: From which character of the code on it is replaced.
        end: Up to which one.
        matches: What may stand there; empty also when the worker is busy.
    """

    start: int
    end: int
    matches: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Wholeness:
    """Whether code can run as it is.

    Attributes:
        status: `complete`, `incomplete`, `invalid` or `unknown`.
        indent: By how many spaces its next line would be indented.
    """

    status: str = "unknown"
    indent: int = 0


async def complete(sandbox: Sandbox, code: str, cursor: int) -> Completion:
    """What may stand at `cursor`, counted in characters of `code`."""
    cursor = max(0, min(cursor, len(code)))
    nothing = Completion(start=cursor, end=cursor)
    answer = await _ask(sandbox, "complete", {"code": code, "cursor": cursor}, code)
    if not isinstance(answer, Mapping) or not isinstance(answer.get("matches"), list):
        return nothing
    start, end = answer.get("start"), answer.get("end")
    if type(start) is not int or type(end) is not int or not 0 <= start <= end <= len(code):
        return nothing
    matches = tuple(match for told in answer["matches"][:_MATCHES] if (match := _match(told)) is not None)
    return Completion(start=start, end=end, matches=matches)


async def inspect(sandbox: Sandbox, code: str, cursor: int, *, detail: int = 0) -> str | None:
    """What the object at `cursor` is, in words; untrusted, with the colours of a terminal. None: unknown."""
    asked = {"code": code, "cursor": max(0, min(cursor, len(code))), "detail": 1 if detail else 0}
    answer = await _ask(sandbox, "inspect", asked, code)
    text = answer.get("text/plain") if isinstance(answer, Mapping) else None
    return text[:_TEXT_CHARS] if isinstance(text, str) else None


async def is_complete(sandbox: Sandbox, code: str) -> Wholeness:
    """Whether `code` can run as it is, or goes on."""
    answer = await _ask(sandbox, "is_complete", {"code": code}, code)
    if not isinstance(answer, Mapping) or answer.get("status") not in {"complete", "incomplete", "invalid"}:
        return Wholeness()
    indent = answer.get("indent")
    return Wholeness(
        status=answer["status"], indent=indent if type(indent) is int and 0 <= indent <= 400 else 0
    )


async def send_message(
    sandbox: Sandbox, kind: str, content: Mapping[str, Any], buffers: Sequence[bytes], *, call_id: str
) -> None:
    """Give a widget in the worker a message of its page, and run what the widget does about it.

    Raises:
        ValueError: If there is no such kind of message.
    """
    if kind not in _MESSAGES:
        raise ValueError(f"{kind!r} is no message of a widget; use one of {', '.join(sorted(_MESSAGES))}.")
    packed = [base64.b64encode(buffer).decode("ascii") for buffer in buffers]
    asked = {"kind": kind, "content": dict(content), "buffers": packed}
    await sandbox.call(_request("take_message", asked, call_id, _MESSAGE_S, OutputCaps(), read_only=False))


async def _ask(sandbox: Sandbox, name: str, arguments: Mapping[str, Json], code: str) -> Json:
    """The answer of a tool of the worker's own, or None."""
    if len(code) > _CODE_CHARS:
        return None
    request = _request(name, arguments, uuid.uuid4().hex, WITHIN_S, _CAPS, read_only=True)
    asking = asyncio.ensure_future(sandbox.call(request))
    try:
        async with asyncio.timeout(_WAIT_S + WITHIN_S + 1.0):
            return (await asking).value
    except TimeoutError:
        return None


def _request(
    name: str,
    arguments: Mapping[str, Json],
    call_id: str,
    timeout_s: float,
    caps: OutputCaps,
    *,
    read_only: bool,
) -> SandboxCall:
    return SandboxCall(
        call=ToolCall(call_id, name, arguments, origin="person"),
        shipment=Shipment(key=f"{_MODULE}:{name}", import_path=f"{_MODULE}:{name}", concurrency="main"),
        timeout_s=timeout_s,
        output_caps=caps,
        read_only=read_only,
    )


def _match(told: object) -> Match | None:
    if not isinstance(told, Mapping):
        return None
    text, kind, signature = (told.get(name) for name in ("text", "type", "signature"))
    if not isinstance(text, str) or not isinstance(kind, str) or not isinstance(signature, str):
        return None
    if len(text) > _MATCH_CHARS:
        return None
    return Match(text=text, type=kind[:100], signature=signature[:_MATCH_CHARS])
