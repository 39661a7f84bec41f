"""An MCP server over HTTP whose heads are odd, in the way that its first argument names: `WHEN/WHAT`.

It prints the port on which it listens.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

WHATS = ("interim", "interim with lines", "lines", "folded lines", "trailer", "cookies")
WHENS = ("call", "list", "notice", "GET", "DELETE")
HEADS = (
    *(f"{when}/{what}" for when, what in itertools.product(WHENS, WHATS[:4])),
    "call/trailer",
    "all/cookies",
)

_FLOOD_S = 4.0
_count = itertools.count()


def before_head(what: str) -> Iterator[bytes]:
    """Yield what comes before the head of a response, for some seconds."""
    parts = {
        "interim": b"HTTP/1.1 100 \r\n\r\n" * 4_000,
        "interim with lines": b"HTTP/1.1 103 E\r\n" + b"a:\r\n" * 20_000 + b"\r\n",
    }
    ends_s = time.monotonic() + _FLOOD_S
    while what in parts and time.monotonic() < ends_s:
        yield parts[what]


def lines(what: str) -> bytes:
    """Return more lines of a head."""
    if what == "cookies":
        number = next(_count)
        return b"".join(b"Set-Cookie: c%d_%d=v\r\n" % (number, each) for each in range(400))
    return {"lines": b"a:\r\n" * 20_000, "folded lines": b"x: y\r\n" + b" z\r\n" * 20_000}.get(what, b"")


def body_of(message: dict[str, Any]) -> bytes:
    """Return the answer to a message; nothing to a notice."""
    result: dict[str, Any] | None = None
    match message.get("method"):
        case "initialize":
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "s", "version": "0"}
        case "tools/list":
            result = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": "a"}]}
    if "id" not in message:
        return b""
    answer = {"error": {"code": -32601, "message": "no"}} if result is None else {"result": result}
    return json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode()


def serve(connection: socket.socket, odd_when: str, what: str) -> None:
    """Answer the requests of a connection."""
    reading = connection.makefile("rb")
    with connection, contextlib.suppress(OSError):
        while line := reading.readline():
            method = line.split()[0].decode()
            headers = dict(
                header.lower().split(b":", 1) for header in iter(reading.readline, b"\r\n") if header
            )
            message = json.loads(reading.read(int(headers.get(b"content-length", b"0"))) or b"{}")
            when = method
            if method == "POST":
                when = str(message.get("method", "")).removeprefix("tools/") if "id" in message else "notice"
            is_odd = odd_when in {when, "all"}
            if is_odd:
                for part in before_head(what):
                    connection.sendall(part)
            body = body_of(message) if method == "POST" else b""
            status = b"405 No" if method == "GET" else b"200 OK" if body or method == "DELETE" else b"202 OK"
            head = b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nMcp-Session-Id: s1\r\n"
            head += lines(what) if is_odd else b""
            if is_odd and what == "trailer":
                body = b"%x\r\n%s\r\n0\r\n" % (len(body), body) + b"a:\r\n" * 20_000 + b"\r\n"
                connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + body)
            else:
                connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def main(shape: str) -> None:
    """Listen, and answer each connection in a thread."""
    when, _, what = shape.partition("/")
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=serve, args=(connection, when, what), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
