"""Conversion between MCP's tools and results and ours.

A server is untrusted: its hints are shown and decide nothing, its texts are marked and cleaned of invisible
characters, and its schemas are bounded in size, in depth and in what their references expand to. A schema in
which a name or a value has a character that nobody sees is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mcp import types

from aisotools.core.protocols import Declaration, Tool, ToolContext
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.core.untrusted import UNTRUSTED, mark_untrusted
from aisotools.integrations.calls import clean_schema, clean_text, images
from aisotools.policy.prompts import visible
from aisotools.tools.adapter import declared_effect
from aisotools.tools.soundness import References, size_flaw
from aisotools.tools.validation import schema_error, short_repr, validate_against_untrusted

MAX_TOOLS = 256
"""Tools of one server that are registered."""

META = "aisotools"
"""Prefix of our own names in `_meta`."""

WRAPPED = "result"
"""The key of a structured result that is not an object; clients of older revisions accept objects only."""

MAX_CONTENT_PARTS = 20_000
"""Parts of the content of one result."""

MAX_MEDIA_PARTS = 1_000
"""Images and sounds among them."""

MAX_LONG_NUMBERS = 100
"""Integers of more than 300 digits in the structured content of one result."""

_LONG_NUMBER_BITS = 1_000
_ITEMS_AT_ONCE = 5_000
_CHARS_AT_ONCE = 1 << 17
_BLOCKS_AT_ONCE = 500
_PIECES_AT_ONCE = 1_000
_MAX_LABEL_CHARS = 80
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_MAX_SCHEMA_BYTES = 64 << 10
_MAX_OFFERS_BYTES = 1 << 20
_MAX_DEPTH = 40
_MAX_NODES = 5_000
"""Nodes of a schema with its references expanded."""
_MAX_RECURSION = 2
"""How often a reference is followed within itself."""
_MAX_DESCRIPTION_CHARS = 4_000
_MAX_INNER_TEXT_CHARS = 1_000
_MAX_SERVER_NAME_CHARS = 128
_MAX_NAME_CHARS = 64
_DIGEST_CHARS = 32


# ---- tools of a server

Execute = Callable[["RemoteTool", Mapping[str, Json], ToolContext], Awaitable[ToolResult]]
"""Makes a call on the server."""


class ToolRejected(Exception):
    """Raised for a tool that is not registered; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """One tool of a server, bounded and cleaned.

    Attributes:
        name: The server's name for it.
        description: Description for a model.
        schema: JSON Schema of its arguments.
        digest: Hash of everything the server says about it.
        hints: What the server says of its effects, for people.
    """

    name: str
    description: str
    schema: Mapping[str, Json]
    digest: str
    hints: tuple[str, ...] = ()


@dataclass(slots=True)
class Offers:
    """The tools of a server that can be registered, and why others cannot.

    Attributes:
        sound: Tools that can be registered, in the server's order.
        refused: Reasons, by the server's names.
        size: Bytes of the schemas of all sound tools.
    """

    sound: list[OfferedTool] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    size: int = 0


def check_offers(listed: Sequence[object], offers: Offers) -> list[OfferedTool]:
    """Check the tools of a list one by one, add them to `offers`, and return those that are sound.

    What is beyond `MAX_TOOLS`, or too large together, is not looked at.
    """
    sound: list[OfferedTool] = []
    for number, listing in enumerate(listed):
        if len(offers.sound) >= MAX_TOOLS or offers.size > _MAX_OFFERS_BYTES:
            rest = f"({len(listed) - number:,} more)"
            offers.refused[rest] = (
                f"a server may offer {MAX_TOOLS} tools, of {_MAX_OFFERS_BYTES >> 20} MiB in all"
            )
            break
        name = listing.get("name") if isinstance(listing, Mapping) else None
        # Cut first: to make megabytes visible takes a second.
        label = "(without a name)"
        if isinstance(name, str):
            label = visible(name[:_MAX_SERVER_NAME_CHARS], "")[:_MAX_SERVER_NAME_CHARS]
        try:
            offer = check_offer(listing)
            if any(other.name == offer.name for other in offers.sound):
                raise ToolRejected("another tool of this server has the same name")
        except ToolRejected as reason:
            if len(offers.refused) < MAX_TOOLS:
                offers.refused[label] = str(reason)
            continue
        offers.size += len(json.dumps(offer.schema))
        offers.sound.append(offer)
        sound.append(offer)
    return sound


def check_offer(listing: object) -> OfferedTool:
    """Check and clean a tool as a server lists it, in the form of the protocol.

    Raises:
        ToolRejected: If its name or schema is malformed or too large.
    """
    if not isinstance(listing, Mapping) or not isinstance(listing.get("name"), str):
        raise ToolRejected("it is not an object with a name")
    name, schema = listing["name"], listing.get("inputSchema")
    if not name:
        raise ToolRejected("its name is empty")
    if len(name) > _MAX_SERVER_NAME_CHARS:
        raise ToolRejected(
            f"its name has {len(name):,} characters, more than the {_MAX_SERVER_NAME_CHARS} allowed"
        )
    # Not part of the digest: a server may put a counter there, and every listing would be a new version.
    fields = {key: value for key, value in listing.items() if key not in {"_meta", "icons"}}
    flaw = size_flaw(fields)
    if flaw:
        raise ToolRejected(f"what the server says about it is refused {flaw}")
    try:
        canonical = json.dumps(fields, sort_keys=True)
    except (ValueError, TypeError, RecursionError):
        raise ToolRejected("what the server says about it cannot be written as JSON") from None
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ToolRejected(schema_error(schema))
    cleaned = _clean_schema(schema)
    if len(json.dumps(cleaned)) > _MAX_SCHEMA_BYTES:
        raise ToolRejected(f"the schema of its arguments has more than {_MAX_SCHEMA_BYTES >> 10} KiB")
    cleaned.setdefault("type", "object")
    flaw = schema_error(cleaned, with_patterns=False)
    if flaw:
        raise ToolRejected(flaw)
    _check_expansion(cleaned)
    texts = [text for key in ("description", "title") if isinstance(text := listing.get(key), str)]
    return OfferedTool(
        name=name,
        description=clean_text(next(filter(None, [*texts, name])), _MAX_DESCRIPTION_CHARS),
        schema=cleaned,
        digest=_digest(canonical),
        hints=_hints(listing.get("annotations")),
    )


def _hints(annotations: object) -> tuple[str, ...]:
    """Return what a server says of its tool's effect, as clauses; nothing for what is not a hint."""
    if not isinstance(annotations, Mapping):
        return ()
    hints = {
        "that it only reads": annotations.get("readOnlyHint"),
        "that it destroys": annotations.get("destructiveHint"),
        "that it reaches beyond the server": annotations.get("openWorldHint"),
    }
    return tuple(words if value else f"not {words}" for words, value in hints.items() if type(value) is bool)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARS]


def _clean_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with every text for people made visible and bounded."""
    if _is_deep(schema, _MAX_DEPTH):
        raise ToolRejected(f"the schema of its arguments is nested more than {_MAX_DEPTH} deep")
    try:
        return clean_schema(schema, max_text_chars=_MAX_INNER_TEXT_CHARS)
    except ValueError as error:
        raise ToolRejected(str(error)) from None


def _is_deep(node: object, depth: int) -> bool:
    inner = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    return depth < 0 or any(_is_deep(item, depth - 1) for item in inner)


def _check_expansion(root: Mapping[str, Any]) -> None:
    """Reject a schema whose expansion has too many nodes, or references that are not followed."""
    # Billion laughs: a few references that each double the next expand to more than any provider's format
    # can hold.
    references = References(root)
    pending: list[tuple[Any, tuple[str, ...]]] = [(root, ())]
    nodes = 0
    while pending:
        node, within = pending.pop()
        nodes += 1
        if nodes > _MAX_NODES:
            raise ToolRejected("following the references in its schema has no end")
        if isinstance(node, list):
            pending += [(item, within) for item in node]
        if not isinstance(node, Mapping):
            continue
        for key, value in node.items():
            if key in {"$dynamicRef", "$recursiveRef"} and isinstance(value, str):
                raise ToolRejected(f"its schema uses {key}, which is not followed")
            if key == "$ref" and isinstance(value, str):
                if within.count(value) < _MAX_RECURSION:
                    pending.append((references.resolve(value), (*within, value)))
            elif key not in {"$defs", "definitions"}:
                pending.append((value, within))


def local_name(server: str, name: str, used: set[str]) -> str:
    """Return a valid, unused name `SERVER_NAME` for a server's tool, and add it to `used`."""
    local = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{server}_{name}")
    if len(local) > _MAX_NAME_CHARS or local in used:
        local = f"{local[: _MAX_NAME_CHARS - 9]}_{_digest(name)[:8]}"
    used.add(local)
    return local


class RemoteTool:
    """A server's tool in our registry. Calls go to the server from the host, outside the sandbox."""

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
            offer: The checked listing.
            name: Name in the registry.
            server: Name of the server.
            origin: Its command or address.
            host: Its host name; empty for a program on this machine.
            declared: Effect declared by the user, or None.
            execute: Makes a call.
            timeout_s: Deadline of a call in seconds; None for the session's.
        """
        self.offer = offer
        self.hints = offer.hints
        self.effect = declared
        self.timeout_s = timeout_s
        self._name = name
        self._host = host
        self._execute = execute
        self.source = f"MCP server {server}: {origin}"
        self.version = _digest("\0".join([name, origin, offer.digest, str(declared)]))
        described = mark_untrusted(offer.description, "what the server says of this tool")
        self.description = f"[MCP server {server}] {described}"

    def __repr__(self) -> str:
        return f"<tool {self.name} (host) from {self.source}>"

    @property
    def name(self) -> str:
        """The tool's name."""
        return self._name

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return the server's JSON Schema of the arguments."""
        return self.offer.schema

    def validate_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        """Validate as far as that is cheap with a hostile schema. The server validates again."""
        return validate_against_untrusted(self.offer.schema, arguments, self.name)

    @property
    def declaration(self) -> Declaration:
        """`constant` if the effect of its calls is declared, else `none`."""
        return "none" if self.effect is None else "constant"

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - named by the contract
        """Return the declared effect, or one derived from where the server runs; never the server's hint."""
        return self.effect or (Effect.REMOTE_ACTION if self._host else Effect.LOCAL_MUTATION)

    def gather_facts(self, arguments: Mapping[str, Json]) -> Facts:
        """Return the facts of a call. They are uncertain unless the tool is declared read only."""
        effect = self.classify(arguments)
        reads = effect is Effect.READ_ONLY
        hosts = (self._host,) if self._host else ()
        return Facts(effect=effect, hosts=hosts, certain=reads, outside=not reads, runs_in="host")

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Make the call on the server."""
        return await self._execute(self, arguments, context)


# ---- our tools and results for clients


def to_mcp_result(result: ToolResult) -> types.CallToolResult:
    """Convert a result to MCP's form.

    A value that is not an object is wrapped as `{"result": ...}`. The kind of an error, and whether it is
    recoverable, are in `_meta`, since the protocol has no fields for them.
    """
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=result.content)]
    pictures = list(images(result))
    content += [
        types.ImageContent(type="image", data=image.base64, mime_type=image.mime) for image in pictures
    ]
    if result.kind == "binary" and not pictures:
        content += _embedded_resources(result)
    meta: dict[str, Any] = {}
    if result.is_error:
        meta = {f"{META}/errorKind": result.error_kind, f"{META}/recoverable": result.recoverable}
    if result.truncation is not None:
        meta[f"{META}/truncation"] = {
            "totalChars": result.truncation.total_chars,
            "shownChars": result.truncation.shown_chars,
            "ref": result.truncation.ref,
        }
    fields: dict[str, Any] = {"content": content, "is_error": result.is_error}
    structured = _structured_content(result)
    if structured is not None:
        fields["structured_content"] = structured
    if meta:
        fields["_meta"] = meta
    return types.CallToolResult(**fields)


def _structured_content(result: ToolResult) -> dict[str, Any] | None:
    """Return the value as an object, or None if the content already has all of it."""
    if result.value is None or result.kind == "binary" or result.value == result.content:
        return None
    if result.metadata.get(UNTRUSTED) and isinstance(result.value, str):
        return None  # the content has it, between its marks
    return dict(result.value) if isinstance(result.value, Mapping) else {WRAPPED: result.value}


def _embedded_resources(result: ToolResult) -> list[types.ContentBlock]:
    call = str(result.metadata.get("call_id", "result"))
    return [
        types.EmbeddedResource(
            type="resource",
            resource=types.BlobResourceContents(uri=f"aisotools://result/{call}", mime_type=mime, blob=data),
        )
        for mime, data in result.data.items()
        if isinstance(data, str)
    ]


def from_mcp_result(response: Mapping[str, Any], server: str) -> Generator[None, None, ToolResult]:
    """Convert the result of a call on `server`, whose name is used in messages, in steps.

    All of it is untrusted. The text for a model is marked as such; the value for programs is as it came.

    Args:
        response: The result as it came, parsed. Nothing in it is changed.
        server: The name.

    Raises:
        ValueError: If it is none of the protocol, or has too many parts.
    """
    if response.get("resultType", "complete") != "complete":
        raise ValueError(f"its resultType is {_label(response['resultType'])}, not 'complete'")
    blocks = response.get("content")
    if not isinstance(blocks, list):
        raise ValueError(f"its content is {_label(blocks)}, not a list")  # noqa: TRY004 - a value of the server
    if len(blocks) > MAX_CONTENT_PARTS:
        raise ValueError(
            f"its content has {len(blocks):,} parts, more than the {MAX_CONTENT_PARTS:,} that are read; ask "
            "for fewer at a time, or for one text"
        )
    texts: list[str] = []
    media: list[dict[str, str]] = []
    for number, block in enumerate(blocks):
        text, bundle = _convert_block(block, number)
        texts.append(text)
        if bundle:
            media.append(bundle)
            if len(media) > MAX_MEDIA_PARTS:
                raise ValueError(
                    f"it has more than {MAX_MEDIA_PARTS:,} images and sounds; ask for fewer at a time"
                )
        if not number % _BLOCKS_AT_ONCE:
            yield
    value = response.get("structuredContent")
    content = "\n".join(texts)
    if value is not None:
        yield from _check_numbers(value)
    if not content and value is not None:
        content = yield from _json_text(value)
    yield
    data, displays = (media[0], media[1:]) if media else ({}, [])
    metadata: dict[str, Any] = {"server": server, UNTRUSTED: True}
    if displays:
        metadata["displays"] = tuple(displays)
    marked = mark_untrusted(content, f"result of the MCP server {server}")
    if response.get("isError") is True:
        return ToolResult(
            content=marked if content else f"{server} reports that the call failed, without a reason.",
            is_error=True,
            recoverable=True,
            error_kind="failed",
            kind="error",
            value=value,
            data=data,
            metadata=metadata,
        )
    whole = content if value is None and not data else value
    kind: Literal["json", "binary", "text"] = "text"
    if value is not None:
        kind = "json"
    elif data and len(texts) == 1:
        kind = "binary"
    return ToolResult(content=marked, kind=kind, value=whole, data=data, metadata=metadata)


def _convert_block(block: Any, number: int) -> tuple[str, dict[str, str]]:
    """Return the text for one part of a result, and its MIME bundle, which is empty without a medium.

    Raises:
        ValueError: If it is none of the protocol. `number` is its place, for the message.
    """
    match block:
        case {"type": "text", "text": str(text)}:
            return text, {}
        case {"type": "image" | "audio", "data": str(data), "mimeType": str(mime)}:
            return f"[{mime[:80]}, {_decoded_bytes(data)} bytes]", {mime[:80]: data}
        case {"type": "resource_link", "uri": str(uri), "name": str(name)}:
            description = block.get("description")
            label = description if isinstance(description, str) and description else name
            return f"[resource {uri[:500]}: {label[:500]}]", {}
        case {"type": "resource", "resource": {"uri": str(), "text": str(text)}}:
            return text, {}
        case {"type": "resource", "resource": {"uri": str(uri), "blob": str(blob)}}:
            return f"[resource {uri[:500]}, {_decoded_bytes(blob)} bytes]", {}
    kind = _label(block.get("type") if isinstance(block, Mapping) else block)
    raise ValueError(f"part {number + 1:,} of its content ({kind}) is unknown or malformed")


def _label(value: object) -> str:
    """Return a value in a few characters; of one with parts, which may be many, only what it is."""
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list) else short_repr(value)[:_MAX_LABEL_CHARS]


def _check_numbers(value: Json) -> Generator[None, None, None]:
    """Look at the integers of a value, in steps: to write one down takes time with the square of its digits.

    Raises:
        ValueError: If there are more than `MAX_LONG_NUMBERS` long ones.
    """
    pending: list[Iterator[Any]] = [iter((value,))]
    long = looked_at = 0
    while pending:
        for item in pending[-1]:
            looked_at += 1
            if not looked_at % _ITEMS_AT_ONCE:
                yield
            if isinstance(item, int):
                long += item.bit_length() > _LONG_NUMBER_BITS
            elif isinstance(item, list | Mapping):
                pending.append(iter(item.values() if isinstance(item, Mapping) else item))
                break
        else:
            pending.pop()
        if long > MAX_LONG_NUMBERS:
            raise ValueError(
                f"its structuredContent has more than {MAX_LONG_NUMBERS} integers of hundreds of digits; ask "
                "for fewer at a time, or for them as texts"
            )


def _json_text(value: Json) -> Generator[None, None, str]:
    """Return the compact JSON of a value, in steps."""
    parts: list[str] = []
    pieces: list[str] = []
    chars = 0
    for piece in _json_pieces(value):
        pieces.append(piece)
        chars += len(piece)
        if len(pieces) >= _PIECES_AT_ONCE or chars >= _CHARS_AT_ONCE:
            parts.append("".join(pieces))
            pieces.clear()
            chars = 0
            yield
    return "".join([*parts, *pieces])


def _json_pieces(value: Json) -> Iterator[str]:
    """Yield the compact JSON of a value in pieces, also of a long text."""
    if isinstance(value, str):
        if len(value) <= _CHARS_AT_ONCE:
            yield _JSON.encode(value)
            return
        yield '"'
        for at in range(0, len(value), _CHARS_AT_ONCE):
            yield _JSON.encode(value[at : at + _CHARS_AT_ONCE])[1:-1]
        yield '"'
    elif isinstance(value, Mapping):
        sign = "{"
        for key, item in value.items():
            yield sign
            yield from _json_pieces(key)
            yield ":"
            yield from _json_pieces(item)
            sign = ","
        yield "}" if sign == "," else "{}"
    elif isinstance(value, list):
        sign = "["
        for item in value:
            yield sign
            yield from _json_pieces(item)
            sign = ","
        yield "]" if sign == "," else "[]"
    else:
        yield _JSON.encode(value)


def _decoded_bytes(encoded: str) -> int:
    """Return the length of base64 text decoded, without decoding a stranger's megabytes."""
    return len(encoded) * 3 // 4 - encoded[-2:].count("=")


def to_mcp_tool(tool: Tool, export: Mapping[str, Any]) -> types.Tool:
    """Build the listing of a tool from its export for MCP."""
    effect = declared_effect(tool)
    meta = {f"{META}/effect": str(effect)} if isinstance(effect, Effect) else None
    return types.Tool.model_validate({**export, **({"_meta": meta} if meta else {})})
