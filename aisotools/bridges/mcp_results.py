"""A result as MCP tells it: content for the model, structured content for programs, pictures for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from mcp import types

from aisotools.bridges.passing import images
from aisotools.contracts import Tool
from aisotools.events import Effect, ToolResult
from aisotools.tool_members import declared_effect

META = "aisotools"
"""Before the names of what we tell beyond the protocol, in `_meta`."""

WRAPPED = "result"
"""The key of a structured result that is no object itself; clients of older revisions take only objects."""


def told_result(result: ToolResult) -> types.CallToolResult:
    """Our result as MCP tells it.

    What is not an object is wrapped as `{"result": ...}`. The kind of an error, and whether another call may
    do better, stand in `_meta`, since the protocol has no words for them.
    """
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=result.content)]
    pictures = list(images(result))
    content += [types.ImageContent(type="image", data=one.base64, mime_type=one.mime) for one in pictures]
    if result.kind == "binary" and not pictures:
        content += _blobs(result)
    meta: dict[str, Any] = {}
    if result.is_error:
        meta = {f"{META}/errorKind": result.error_kind, f"{META}/recoverable": result.recoverable}
    if result.truncation is not None:
        meta[f"{META}/truncation"] = {
            "totalChars": result.truncation.total_chars,
            "shownChars": result.truncation.shown_chars,
            "ref": result.truncation.ref,
        }
    told: dict[str, Any] = {"content": content, "is_error": result.is_error}
    structured = _structured(result)
    if structured is not None:
        told["structured_content"] = structured
    if meta:
        told["_meta"] = meta
    return types.CallToolResult(**told)


def _structured(result: ToolResult) -> dict[str, Any] | None:
    """The whole value as an object; None where the content already says all of it."""
    if result.value is None or result.kind == "binary" or result.value == result.content:
        return None
    return dict(result.value) if isinstance(result.value, Mapping) else {WRAPPED: result.value}


def _blobs(result: ToolResult) -> list[types.ContentBlock]:
    call = str(result.metadata.get("call_id", "result"))
    return [
        types.EmbeddedResource(
            type="resource",
            resource=types.BlobResourceContents(uri=f"aisotools://result/{call}", mime_type=mime, blob=data),
        )
        for mime, data in result.data.items()
        if isinstance(data, str)
    ]


def taken_result(told: types.CallToolResult, server: str) -> ToolResult:
    """What a server answered, as our result. Everything in it is a stranger's.

    Args:
        told: The answer.
        server: Who gave it, for messages.
    """
    texts: list[str] = []
    data: dict[str, str] = {}
    displays: list[dict[str, str]] = []
    for block in told.content:
        if isinstance(block, types.TextContent):
            texts.append(block.text)
        elif isinstance(block, types.ImageContent | types.AudioContent):
            texts.append(f"[{block.mime_type[:80]}, {_size(block.data)} bytes]")
            bundle = {block.mime_type[:80]: block.data}
            if data:
                displays.append(bundle)
            else:
                data = bundle
        elif isinstance(block, types.ResourceLink):
            texts.append(f"[resource {block.uri[:500]}: {(block.description or block.name)[:500]}]")
        elif isinstance(block.resource, types.TextResourceContents):
            texts.append(block.resource.text)
        else:
            texts.append(f"[resource {block.resource.uri[:500]}, {_size(block.resource.blob)} bytes]")
    value = told.structured_content
    content = "\n".join(texts)
    if not content and value is not None:
        content = ToolResult.json(value).content
    metadata: dict[str, Any] = {"server": server}
    if displays:
        metadata["displays"] = tuple(displays)
    if told.is_error:
        return ToolResult(
            content=content or f"{server} says that the call failed, and not why.",
            is_error=True,
            recoverable=True,
            error_kind="failed",
            kind="error",
            value=value,
            data=data,
            metadata=metadata,
        )
    whole = content if value is None and not data else value
    kind: Literal["json", "binary", "text"]
    kind = "json" if value is not None else "binary" if data and len(texts) == 1 else "text"
    return ToolResult(content=content, kind=kind, value=whole, data=data, metadata=metadata)


def _size(encoded: str) -> int:
    """Bytes of what base64 text holds, without decoding a stranger's megabytes to know."""
    return len(encoded) * 3 // 4 - encoded[-2:].count("=")


def told_tool(tool: Tool, form: Mapping[str, Any]) -> types.Tool:
    """A tool as MCP lists it.

    Args:
        tool: Ours.
        form: Its export for MCP.
    """
    effect = declared_effect(tool)
    meta = {f"{META}/effect": str(effect)} if isinstance(effect, Effect) else None
    return types.Tool.model_validate({**form, **({"_meta": meta} if meta else {})})


__all__ = ["META", "WRAPPED", "taken_result", "told_result", "told_tool"]
