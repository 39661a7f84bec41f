"""An MCP server over HTTP that never answers some of what it gets, on a port that it prints.

Of `silent_server.py WHAT...`, WHAT is `DELETE`, `notices`, `answers` (to requests of its own) or
`redirections` (of DELETE, each after a second). With `refusing` it refuses to list its tools; with `odd` its
answers to calls are of a strange type.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOOL = {"name": "t", "inputSchema": {"type": "object", "properties": {}}}
SILENT = frozenset(sys.argv[1:])
BASICS = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "0"}}


class Handler(BaseHTTPRequestHandler):
    """Gives a session id, so that the client says when it ends."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, number = message.get("method"), message.get("id")
        if method is None or number is None:
            if ("answers" if method is None else "notices") in SILENT:
                threading.Event().wait()
            self.answer(202, b"")
        elif method == "initialize":
            self.result(number, {"protocolVersion": message["params"]["protocolVersion"], **BASICS})
        elif method == "tools/list" and "refusing" not in SILENT:
            self.result(number, {"tools": [TOOL]})
        elif method == "tools/call":
            odd = {"Content-Type": "text/" + "x" * 1_500} if "odd" in SILENT else {}
            self.result(number, {"content": [{"type": "text", "text": "done"}]}, **odd)
        else:
            self.reply({"id": number, "error": {"code": -32601, "message": "there is no such method"}})

    def do_GET(self) -> None:
        self.answer(405, b"")

    def do_DELETE(self) -> None:
        if "redirections" in SILENT:
            time.sleep(1)
            self.answer(307, b"", Location=self.path)
        elif "DELETE" in SILENT:
            threading.Event().wait()
        else:
            self.answer(200, b"")

    def result(self, number: Any, result: Any, **headers: str) -> None:
        self.reply({"id": number, "result": result}, **headers)

    def reply(self, message: dict[str, Any], **headers: str) -> None:
        self.answer(200, json.dumps({"jsonrpc": "2.0", **message}).encode(), **headers)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        fixed = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Mcp-Session-Id": "a"}
        for name, value in {**fixed, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
