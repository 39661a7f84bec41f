"""How calls end in the worker when they do not end well, and what is added to what they give."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from aisotools.contracts import OutputCaps
from aisotools.events import ToolResult
from aisotools.sandbox.results import STREAMS_TAKEN, Pieces, encode_result
from aisotools.sandbox.shell import without_ours
from aisotools.sandbox.streams import CallRecord
from aisotools.tool_members import failure


def interrupted(content: str = "") -> ToolResult:
    """What a call gives that was interrupted."""
    told = "\n".join(filter(None, ["The call was interrupted.", content]))
    return ToolResult.error(told).with_metadata(stopped=True)


def stopped(result: ToolResult) -> ToolResult:
    """What a call gave that was interrupted and had something to say all the same: never a success."""
    if not result.is_error:
        told = interrupted(result.content)
        result = dataclasses.replace(
            result, content=told.content, is_error=True, recoverable=True, error_kind="failed", kind="error"
        )
    return result.with_metadata(stopped=True)


def failed(error: BaseException, record: CallRecord, caps: OutputCaps) -> Pieces:
    """What a call gives whose tool raised."""
    try:
        result = failure(error.with_traceback(without_ours(error.__traceback__)))
    except BaseException:  # its own text could not be had
        result = ToolResult.error(f"{type(error).__name__} (its message cannot be shown)")
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
        result = interrupted(result.content)
    return encode_result(with_record(result, record), caps)


def with_record(result: ToolResult, record: CallRecord) -> ToolResult:
    """Add what was displayed beside the result, unless the tool took it up itself, and what was dropped."""
    taken = result.metadata.get(STREAMS_TAKEN)
    counts = {
        "dropped_bytes": record.missing_bytes if taken else record.dropped_bytes,
        "dropped_displays": record.dropped_displays,
        "dropped_emits": record.dropped_emits,
    }
    more: dict[str, Any] = {name: count for name, count in counts.items() if count}
    if record.displays and "displays" not in result.metadata and not taken:
        more["displays"] = [bundle for _, bundle in record.displays]
    return result.with_metadata(**more) if more else result
