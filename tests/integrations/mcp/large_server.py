"""An MCP server with messages of many parts, of the shape that its first argument names.

Its second argument is `stdio`; or `json` or `events`, for HTTP on a free port, which it prints.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TEXT = {"type": "text", "text": "a"}
IMAGE = {
    "type": "image",
    "mimeType": "image/png",
    "data": base64.b64encode(b"\x89PNG\r\n\x1a\n" * 40).decode(),
}
TOOL: dict[str, Any] = {"name": "t", "inputSchema": {"type": "object", "properties": {"x": {}}}}
ROWS = [[number, f"name {number}", number / 7, number % 2 == 0, None] for number in range(10_000)]
LONG_TEXT = "Grüße, [1, 2], {a}: \u200b\n" * 200_000


def keys(count: int) -> dict[str, list[Any]]:
    return {f"k{number}": [] for number in range(count)}


def named(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"uri": f"file:///{number}", **more} for number in range(count)]


def header_tools() -> list[dict[str, Any]]:
    """Return tools whose schemas are as large as all may be together, and name headers."""
    parts = {f"p{number}": {"type": "string"} for number in range(90)}
    sent = {"p": {"type": "string", "x-mcp-header": "a"}}
    return [
        {"name": f"t{number}", "inputSchema": {"type": "object", "properties": {**parts, **sent}}}
        for number in range(250)
    ]


def schema(values: list[Any]) -> dict[str, Any]:
    return {"inputSchema": {"type": "object", "properties": {"x": {"enum": values}}}}


def begin(number: int) -> bytes:
    """Return an answer up to a value in its structured content."""
    return b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"structuredContent":{"a":' % number


RESULTS: dict[str, Callable[[], dict[str, Any]]] = {
    # What honest servers send.
    "a table": lambda: {"content": [], "structuredContent": {"rows": ROWS}},
    "a table as objects": lambda: {
        "content": [{"type": "text", "text": json.dumps(ROWS)}],
        "structuredContent": {"rows": [dict(zip("abcde", row, strict=True)) for row in ROWS]},
    },
    "a long text": lambda: {"content": [{"type": "text", "text": LONG_TEXT}]},
    "100 images": lambda: {"content": [{**IMAGE, "data": "A" * 40_000}] * 100},
    "10,000 texts": lambda: {"content": [TEXT] * 10_000},
    # What hostile ones send.
    "malformed parts": lambda: {"content": [{"type": "text", "texx": 1}] * 100_000},
    "a few malformed parts": lambda: {"content": [TEXT] * 1_999 + [{"type": "x"}] * 2_000},
    "texts": lambda: {"content": [TEXT] * 150_000},
    "not quite as many texts": lambda: {"content": [TEXT] * 100_000},
    "resources": lambda: {
        "content": [{"type": "resource", "resource": part} for part in named(50_000, text="b")]
    },
    "links": lambda: {"content": named(50_000, type="resource_link", name="\u202e" * 20)},
    "images": lambda: {"content": [IMAGE] * 40_000},
    "2,000 images": lambda: {"content": [IMAGE] * 2_000},
    "metadata": lambda: {"content": [{**TEXT, "_meta": keys(300_000)}]},
    "metadata within bounds": lambda: {"content": [{**TEXT, "_meta": keys(120_000)}], "_meta": {"a": 1}},
    "unknown members": lambda: {"content": [], "extra": keys(100_000)},
    "annotations": lambda: {"content": [{**TEXT, "annotations": {"audience": ["user"] * 500_000}}]},
    "keys": lambda: {"content": [TEXT], "structuredContent": {f"password{n}": "v" for n in range(240_000)}},
    "too many keys": lambda: {
        "content": [TEXT],
        "structuredContent": dict.fromkeys(map(str, range(300_000))),
    },
    "objects": lambda: {"content": [], "structuredContent": {"a": [{"k": n} for n in range(120_000)]}},
    "numbers": lambda: {"content": [], "structuredContent": {"a": [1] * 1_000_000}},
    "nested lists": lambda: {"content": [], "structuredContent": {"a": json.loads("[" * 90 + "]" * 90)}},
    "questions": lambda: {
        "resultType": "input_required",
        "inputRequests": {f"k{n}": {"method": "roots/list", "params": {}} for n in range(50_000)},
    },
    "no list": lambda: {"content": keys(100_000)},
    "an unknown type": lambda: {"content": [], "resultType": keys(100_000)},
    "single bytes": lambda: {"content": [{"type": "text", "text": "a" * 50_000}]},
    "half a character": lambda: {"content": [{"type": "text", "text": "\ud800" + "a\n" * 4_000_000}]},
    "wide text": lambda: {"content": [{"type": "text", "text": "\U0001f600" + "a" * 15_000_000}]},
}
WHOLE: dict[str, Callable[[Any], bytes]] = {
    "an error": lambda number: write(
        id=number, error={"code": 1, "message": "x", "data": [{"k": []}] * 100_000}
    ),
    "a long error": lambda number: write(id=number, error={"code": 1, "message": "\x1b\u200b" * 2_000_000}),
    "deep lists": lambda number: (
        b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"structuredContent":{"a":%s}}}'
        % (number, b"[" * 300 + b"1," * 9_000 + b"1" + b"]" * 300)
    ),
    "no JSON": lambda number: b'{"jsonrpc":"2.0","id":%d,"result":{"a":"%s' % (number, b"\\n" * 4_000_000),
    "no message": lambda _: b"x" * 30_000_000,
    "quotes": lambda number: begin(number) + b'"' + rb"\"" * 15_000_000,
    "one number": lambda number: begin(number) + b"1" * 30_000_000 + b"}}}",
    "no UTF-8": lambda number: begin(number) + b'"' + b"\xff" * 30_000_000 + b'"}}}',
    "halves of characters": lambda number: begin(number) + b'"' + rb"\ud800" * 5_000_000 + b'"}}}',
    "spaces": lambda number: b" " * 30_000_000 + begin(number) + b"1}}}",
    "long numbers": lambda number: begin(number) + b"[" + b",".join([b"9" * 4_200] * 7_000) + b"]}}}",
    "a long value": lambda number: begin(number) + b'"' + "\xe9".encode() * 15_000_000 + b'"}}}',
    "many lines": lambda number: (
        begin(number) + b"[" + b",\n".join([b'"%s"' % (b"x" * 30_000)] * 990) + b"]}}}"
    ),
    "brackets": lambda number: b'{"jsonrpc":"2.0","id":%d,"result":%s' % (number, b"[" * 8_000_000),
}
LISTS: dict[str, Callable[[], dict[str, Any]]] = {
    "a list with metadata": lambda: {"tools": [TOOL], "_meta": keys(120_000), "extra": [1] * 300_000},
    "a tool with icons": lambda: {"tools": [{**TOOL, "name": "b", "icons": [{"src": "a"}] * 100_000}, TOOL]},
    "a tool with many arguments": lambda: {
        "tools": [{"name": "b", "inputSchema": {"type": "object", "properties": keys(100_000)}}, TOOL]
    },
    "malformed tools": lambda: {"tools": [{}] * 100_000 + [TOOL]},
    "a long name": lambda: {"tools": [TOOL, {**TOOL, "name": "b" * 28_000_000}]},
    "a long cursor": lambda: {"tools": [TOOL], "nextCursor": "c" * 20_000_000},
    "a long description": lambda: {"tools": [TOOL, {**TOOL, "name": "b", "description": "\x1b" * 4_000_000}]},
    "long numbers in a schema": lambda: {"tools": [TOOL, {**schema([10**4_199] * 7_000), "name": "b"}]},
    "long texts in schemas": lambda: {
        "tools": [TOOL, *[{**schema(["\xe9" * 500_000]), "name": f"b{number}"} for number in range(9)]]
    },
    "tools with headers": lambda: {"tools": [TOOL, *header_tools()]},
}
BEGINNINGS: dict[str, Callable[[], dict[str, Any]]] = {
    "capabilities": lambda: {"experimental": {f"k{number}": {} for number in range(100_000)}},
    "many capabilities": lambda: {"experimental": {f"k{number}": {"a": []} for number in range(200_000)}},
    "a few malformed capabilities": lambda: {"experimental": dict.fromkeys(map(str, range(900)), 5)},
}
ICONS = {"icons": [{"src": "a"}] * 100_000}
INFORMATION: dict[str, Callable[[], dict[str, Any]]] = {
    "icons": lambda: ICONS,
    "a long title": lambda: {"title": "\x1b" * 5_000_000},
    "a few malformed icons": lambda: {"icons": [{"sizes": 5}] * 480},
}
NOTICES: dict[str, Callable[[], bytes]] = {
    "progress": lambda: b"\n".join([notice(progress=1, message="m" * 200)] * 20_000),
    "progress with metadata": lambda: b"\n".join([notice(progress=1, _meta={"a": [[]] * 9_000})] * 200),
    "progress of many parts": lambda: notice(progress=1, message="m", _meta=keys(100_000)),
    "notices of many parts": lambda: b"\n".join([notice(progress=1, a=[[]] * 16_000)] * 200),
    "lines that are none": lambda: b"\n".join([b'{"id":' + b"{" * 60_000] * 200),
    "short lines that are none": lambda: b"\n".join([b"{}"] * 20_000),
    "answers to nobody": lambda: b"\n".join([write(id=2, result={"content": [TEXT] * 300})] * 300),
}
"""What is sent before an answer; over HTTP only as events."""

SHAPES = (*RESULTS, *WHOLE, *LISTS, *BEGINNINGS, *INFORMATION, *NOTICES, "blank lines", "a plain text")
HONEST = ("a table", "a table as objects", "a long text", "100 images", "10,000 texts", "a plain text")


def write(**message: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode()


def notice(**params: Any) -> bytes:
    return write(method="notifications/progress", params={"progressToken": 1, **params})


def answer(shape: str, message: dict[str, Any]) -> list[bytes]:
    """Return what is sent for a message, the answer last; nothing for a notice."""
    method, number = message.get("method"), message.get("id")
    result: dict[str, Any]
    if number is None:
        return []
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}}
        result["capabilities"] |= BEGINNINGS.get(shape, dict)()
        result["serverInfo"] = {"name": "s", "version": "0", **INFORMATION.get(shape, dict)()}
    elif method == "tools/list":
        result = LISTS[shape]() if shape in LISTS else {"tools": [TOOL]}
    elif method == "tools/call" and shape in WHOLE:
        return [WHOLE[shape](number)]
    elif method == "tools/call":
        result = RESULTS[shape]() if shape in RESULTS else {"content": [TEXT]}
    else:
        return [write(id=number, error={"code": -32601, "message": "no such method"})]
    before = []
    if method == "tools/call":
        before = NOTICES[shape]().split(b"\n") if shape in NOTICES else []
        before += [b""] * 200_000 if shape == "blank lines" else []
    return [*before, write(id=number, result=result)]


class Handler(BaseHTTPRequestHandler):
    """Answers as JSON or as events."""

    shape = ""
    as_events = False
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        sent = answer(self.shape, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if not sent:
            body, kind = b"", "text/plain"
        elif self.as_events:
            lines = (part.replace(b"\n", b"\ndata: ") for part in sent)
            body = b"".join(b"data: " + part + b"\n\n" for part in lines)
            kind = "text/event-stream"
        else:
            body, kind = sent[-1], "application/json"
        self.send_response(200 if sent else 202)
        self.send_header("Content-Type", kind)
        if self.shape == "single bytes":
            self.send_header("Transfer-Encoding", "chunked")
            body = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_error(405)

    def do_DELETE(self) -> None:
        self.send_error(405)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def main(shape: str, way: str) -> None:
    if way != "stdio":
        Handler.shape, Handler.as_events = shape, way == "events"
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        print(server.server_port, flush=True)
        server.serve_forever()
    for line in sys.stdin:
        for part in answer(shape, json.loads(line)):
            sys.stdout.buffer.write(part.replace(b",\n", b",") + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
