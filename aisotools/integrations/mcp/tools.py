"""What an MCP server says about its tools, as our tools. All of it is a stranger's word.

Nothing that a server says loosens anything: its hints count for nothing, its descriptions are cleaned of what
cannot be seen, its schemas are bounded in size, in depth and in what following their references comes to.
What a person declares about a tool holds for that very version of it.

A result as MCP tells it: content for the model, structured content for programs, pictures for people.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mcp import types

from aisotools.core.protocols import Tool, ToolContext
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.integrations.calls import images
from aisotools.policy.prompts import visible
from aisotools.tools.adapter import declared_effect
from aisotools.tools.validation import schema_error, validate_against_untrusted

MOST_TOOLS = 256
"""How many tools of one server are taken."""

_SCHEMA_BYTES = 64 << 10
_DEEPEST = 40
_MOST_NODES = 5_000
_DESCRIPTION_CHARS = 4_000
_INNER_CHARS = 1_000
_NAME_CHARS = 64
_TEXTS = ("description", "title", "$comment")

Execute = Callable[["RemoteTool", Mapping[str, Json], ToolContext], Awaitable[ToolResult]]
"""Makes a call on the server."""


class ToolRejected(Exception):
    """A tool that is not taken; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """One tool of a server, bounded and cleaned.

    Attributes:
        name: What the server calls it.
        description: For a model.
        schema: JSON Schema of its arguments.
        digest: Changes with anything the server says about it.
    """

    name: str
    description: str
    schema: Mapping[str, Json]
    digest: str


def offer_of(told: types.Tool) -> OfferedTool:
    """What a server says about a tool, as far as it can be taken.

    Raises:
        Unfit: If it is too large, or its schema is none.
    """
    if not told.name or len(told.name) > 128:
        raise ToolRejected("its name has no or more than 128 characters")
    said = told.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"icons"})
    said.pop("_meta", None)  # a server may count there, and would change its tools with each listing
    try:
        whole = json.dumps(said, sort_keys=True, default=str)
    except (ValueError, RecursionError):
        raise ToolRejected("what the server says about it cannot be written as JSON") from None
    schema = _cleaned(told.input_schema, 0)
    if len(json.dumps(schema)) > _SCHEMA_BYTES:
        raise ToolRejected(f"the schema of its arguments has more than {_SCHEMA_BYTES >> 10} KiB")
    schema.setdefault("type", "object")
    _count(schema, schema, [_MOST_NODES], ())
    flaw = schema_error(schema)
    if flaw:
        raise ToolRejected(flaw)
    return OfferedTool(
        name=told.name,
        description=_text(told.description or told.title or told.name, _DESCRIPTION_CHARS),
        schema=schema,
        digest=hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:32],
    )


def _text(said: str, most: int) -> str:
    text = visible(said[: most + 1])
    return text if len(text) <= most else text[: most - 3] + "..."


def _cleaned(node: Any, depth: int) -> Any:
    """A schema in which every text for people can be seen, and none is long."""
    if depth > _DEEPEST:
        raise ToolRejected(f"the schema of its arguments is nested more than {_DEEPEST} deep")
    if isinstance(node, list):
        return [_cleaned(one, depth + 1) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        str(key): _text(value, _INNER_CHARS)
        if key in _TEXTS and isinstance(value, str)
        else _cleaned(value, depth + 1)
        for key, value in node.items()
    }


def _count(node: Any, root: Mapping[str, Any], left: list[int], within: tuple[str, ...]) -> None:
    """Walk the schema as whoever spells its references out would, and give up when that has no end."""
    left[0] -= 1
    if left[0] < 0:
        raise ToolRejected("following the references in its schema has no end")
    if isinstance(node, list):
        for one in node:
            _count(one, root, left, within)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key in {"$dynamicRef", "$recursiveRef"} and isinstance(value, str):
            raise ToolRejected(f"its schema uses {key}, which is not followed")
        if key == "$ref" and isinstance(value, str):
            target = _named(root, value)
            if within.count(value) < 2:
                _count(target, root, left, (*within, value))
        elif key not in {"$defs", "definitions"}:
            _count(value, root, left, within)


def _named(root: Mapping[str, Any], reference: str) -> Any:
    if not reference.startswith("#"):
        raise ToolRejected("its schema refers to something outside itself")
    node: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, dict) or key not in node:
            raise ToolRejected("its schema refers to something that is not there")
        node = node[key]
    return node


def our_name(server: str, name: str, taken: set[str]) -> str:
    """The name a server's tool bears here: the server's and its own, made one that a tool may bear."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{server}_{name}")
    if len(plain) > _NAME_CHARS or plain in taken:
        mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        plain = f"{plain[: _NAME_CHARS - 9]}_{mark}"
    taken.add(plain)
    return plain


class RemoteTool:
    """One tool of a server, as one of ours; it is called from the host, outside the sandbox."""

    def __init__(
        self,
        offer: OfferedTool,
        *,
        name: str,
        server: str,
        origin: str,
        host: str,
        declared: Effect | None,
        execute: Execute,
        timeout_s: float | None = None,
    ) -> None:
        """Wrap `offer`.

        Args:
            offer: What the server says.
            name: What it is called here.
            server: The server's name.
            origin: What is reached: a command or an address.
            host: The machine that is reached; empty for a program on this one.
            declared: What every call does by a person's word.
            execute: Makes a call.
            timeout_s: Deadline of a call in seconds; the session's without it.
        """
        self.offer, self.effect, self.timeout_s = offer, declared, timeout_s
        self._name, self._host, self._execute = name, host, execute
        self.source = f"MCP server {server}: {origin}"
        parts = [name, origin, offer.digest, str(declared)]
        self.version = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self.description = f"[MCP server {server}] {offer.description}"

    def __repr__(self) -> str:
        return f"<tool {self.name} (host) from {self.source}>"

    @property
    def name(self) -> str:
        """The tool's name."""
        return self._name

    def parameters_schema(self) -> Mapping[str, Json]:
        """JSON Schema of its arguments, as the server tells it."""
        return self.offer.schema

    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """The arguments as JSON, checked as far as that is cheap; the server checks them again."""
        return validate_against_untrusted(self.offer.schema, arguments, self.name)

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - named by the contract
        """What a call may do: what a person declared, else what the place suggests; never a server's hint."""
        return self.effect or (Effect.REMOTE_ACTION if self._host else Effect.LOCAL_MUTATION)

    def gather_facts(self, arguments: Mapping[str, Json]) -> Facts:
        """What a policy should know: nobody sees what a server does, unless a person says it only reads."""
        effect = self.classify(arguments)
        reads = effect is Effect.READ_ONLY
        hosts = (self._host,) if self._host else ()
        return Facts(effect=effect, hosts=hosts, certain=reads, outside=not reads, runs_in="host")

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Call it on the server."""
        return await self._execute(self, arguments, context)


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
