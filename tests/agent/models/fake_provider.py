"""A local server that answers as model providers do, or fails as they do. Speaks just enough HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class Reply:
    """One answer of the server: what it sends, and how it ends."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False
    hang_s: float = 0.0


@dataclass
class FakeProvider:
    """What it will say, and what it was asked."""

    replies: list[Reply]
    url: str = ""
    asked: list[Json] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            path = (await reader.readline()).decode().split(" ")[1]
            headers = {}
            while (line := (await reader.readline()).decode().strip()) != "":
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.asked.append(json.loads(body or b"{}"))
            self.headers.append(headers)
            self.paths.append(path)
            reply = self.replies.pop(0)
            kind = "text/event-stream" if reply.status == 200 else "application/json"
            reply_headers = {"content-type": kind, "connection": "close", **reply.headers}
            if not reply.cut:
                reply_headers["content-length"] = str(len(reply.body))
            else:
                reply_headers["content-length"] = str(
                    len(reply.body) + 1_000
                )  # so that the end is seen to be no end
            head = f"HTTP/1.1 {reply.status} X\r\n" + "".join(
                f"{n}: {v}\r\n" for n, v in reply_headers.items()
            )
            if reply.hang_s:
                await asyncio.sleep(reply.hang_s)
            writer.write(head.encode() + b"\r\n" + reply.body)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, IndexError):
            return  # whoever asked has gone
        finally:
            writer.close()


@asynccontextmanager
async def fake_provider(*replies: Reply) -> AsyncIterator[FakeProvider]:
    """The server, with these answers in order."""
    provider = FakeProvider(list(replies))
    server = await asyncio.start_server(provider.answer, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()
        for task in provider.tasks:
            task.cancel()
        await asyncio.gather(*provider.tasks, return_exceptions=True)


def sse(events: Sequence[Json | str]) -> bytes:
    lines = []
    for event in events:
        if isinstance(event, dict) and "type" in event:
            lines.append(f"event: {event['type']}\n")
        lines.append(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return "".join(lines).encode()


def chat(*deltas: Json, finish: str | None = "stop", usage: Json | None = None, done: bool = True) -> bytes:
    """A streamed answer as Chat Completions has it."""

    def chunk(**more: Any) -> Json:
        return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5", **more}

    events: list[Json | str] = [
        chunk(choices=[{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas
    ]
    if finish is not None:
        events.append(chunk(choices=[{"index": 0, "delta": {}, "finish_reason": finish}]))
    if usage is not None:
        events.append(chunk(choices=[], usage=usage))
    return sse([*events, "[DONE]"] if done else events)


def chat_call(name: str, *arguments: str, index: int = 0) -> list[Json]:
    """The deltas of a call whose arguments come in pieces."""
    first = {"index": index, "id": f"call_{index}", "type": "function"}
    pieces: list[Json] = [{"tool_calls": [{**first, "function": {"name": name, "arguments": ""}}]}]
    return pieces + [
        {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in arguments
    ]


def anthropic(*blocks: Json, stop: str | None = "end_turn") -> bytes:
    """A streamed answer as Anthropic has it; a block is its start and its `deltas`."""
    start: Json = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "claude-opus-4-8",
    }
    start |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 20, "output_tokens": 1}}
    events: list[Json | str] = [{"type": "message_start", "message": start}]
    for index, block in enumerate(blocks):
        begun = {name: value for name, value in block.items() if name != "deltas"}
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": one} for one in block["deltas"]]
        events.append({"type": "content_block_stop", "index": index})
    if stop is not None:
        delta = {"stop_reason": stop, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 12}})
        events.append({"type": "message_stop"})
    return sse(events)
