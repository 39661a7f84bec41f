"""What a worker says a call gave, checked before anybody believes its form. Its content stays untrusted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json

from aisotools.contracts import OutputCaps
from aisotools.events import ErrorKind, ToolResult
from aisotools.exceptions import ChannelError

_KINDS = {"text", "json", "binary", "error"}
_ERROR_KINDS: Mapping[object, ErrorKind] = {
    "invalid": "invalid",
    "failed": "failed",
    "denied": "denied",
    "environment": "environment",
}
_SLACK_BYTES = 4 << 20


def result_from_worker(data: bytes, caps: OutputCaps, raw: Mapping[str, bytes | bytearray]) -> ToolResult:
    """A result in our own form.

    Args:
        data: The JSON a worker sent.
        caps: What it may hold.
        raw: What the worker's own descriptors gave during the call, by stream.

    Raises:
        ChannelError: If it is out of form.
    """
    allowed = caps.value_bytes + caps.data_bytes + caps.stream_bytes + _SLACK_BYTES
    if len(data) > allowed:
        return ToolResult.error(
            f"The tool returned {len(data)} bytes; {allowed} are allowed. "
            "Write large results to a file in the workspace and return its path.",
        )
    try:
        told = from_json(data, cache_strings="keys")
    except ValueError as error:
        raise ChannelError(f"a result is not JSON: {str(error)[:200]}") from None
    if not isinstance(told, dict):
        raise ChannelError("a result is no object")
    result = _shaped(told)
    return _with_raw(result, raw)


def _shaped(told: Mapping[str, Any]) -> ToolResult:
    content, kind, error_kind = told.get("content"), told.get("kind", "text"), told.get("error_kind")
    value, data, metadata = told.get("value"), told.get("data") or {}, told.get("metadata") or {}
    if not isinstance(content, str) or kind not in _KINDS:
        raise ChannelError("a result has no text, or is of an unknown kind")
    if not isinstance(data, dict) or not isinstance(metadata, dict):
        raise ChannelError("a result's data or metadata is no object")
    is_error = told.get("is_error") is True
    return ToolResult(
        content=content,
        is_error=is_error,
        recoverable=is_error and told.get("recoverable") is True,
        error_kind=_ERROR_KINDS.get(error_kind, "failed") if is_error else None,
        kind=kind,
        value=value,
        data=data,
        metadata=metadata,
    )


def _with_raw(result: ToolResult, raw: Mapping[str, bytes | bytearray]) -> ToolResult:
    """Add what programs wrote straight to the worker's descriptors; nobody else will show it."""
    texts = {stream: bytes(data).decode("utf-8", "replace") for stream, data in raw.items() if data}
    if not texts:
        return result
    content = "\n".join(t for t in (result.content, *(text.rstrip("\n") for text in texts.values())) if t)
    metadata = {**result.metadata, **{f"raw_{stream}": text for stream, text in texts.items()}}
    return dataclasses.replace(result, content=content, metadata=metadata)
