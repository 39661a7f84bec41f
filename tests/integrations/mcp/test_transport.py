"""Transports: environment, addresses, tokens, the token check, and processes that end with the context."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import types
from mcp.shared.message import SessionMessage

from aisotools.core.exceptions import UsageError
from aisotools.core.truncation import HeadTailBuffer
from aisotools.integrations.mcp import transport
from aisotools.integrations.mcp.messages import Inbox
from aisotools.integrations.mcp.transport import (
    MIN_TOKEN_CHARS,
    ServerEndpoint,
    checked_token,
    checked_url,
    describe_error,
    environment,
    require_token,
    stdio_transport,
)
from tests.integrations.mcp.turns import counted_turns
from tests.waiting import eventually

TOKEN = "t" * MIN_TOKEN_CHARS


def test_the_environment_is_an_allow_list() -> None:
    given = {"PATH": "/bin", "OPENAI_API_KEY": "secret", "LD_PRELOAD": "x", "HOME": "/h"}
    assert environment(given, {"TOKEN": "t"}) == {"PATH": "/bin", "HOME": "/h", "TOKEN": "t"}


def test_an_endpoint_describes_itself_without_its_token() -> None:
    web = ServerEndpoint(url="https://a.example:8/mcp", token=TOKEN)
    assert (web.description, web.host) == ("https://a.example:8/mcp", "a.example")
    assert TOKEN not in repr(web)
    program = ServerEndpoint(command=("npx", "a b\u202e"), env={"KEY": "secret"})
    assert (program.description, program.host) == ("npx 'a b\\u202e'", "")
    assert "secret" not in repr(program)


def test_errors_are_described_without_groups() -> None:
    error = ExceptionGroup("outer", [ExceptionGroup("inner", [ValueError("the reason.")])])
    assert describe_error(error) == "ValueError: the reason"


@pytest.mark.parametrize(
    ("url", "secret", "message"),
    [
        ("ftp://a.example", False, "not the address"),
        ("https://", False, "not the address"),
        ("https://me@a.example", False, "Leave name and password out"),
        ("http://a.example", True, "unencrypted"),
        ("http://127.0.0.1.a.example", True, "unencrypted"),
    ],
)
def test_addresses_that_are_refused(url: str, secret: bool, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        checked_url(url, secret=secret)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("http://a.example", False),
        ("https://a.example", True),
        ("http://127.0.0.1:8", True),
        ("http://localhost", True),
        ("http://[::1]:8", True),
    ],
)
def test_addresses_that_are_used(url: str, secret: bool) -> None:
    assert checked_url(url, secret=secret) == url


def test_tokens() -> None:
    assert checked_token(TOKEN) == TOKEN
    assert len(checked_token(None)) >= MIN_TOKEN_CHARS
    assert checked_token(None) != checked_token(None)
    for bad in (TOKEN[1:], TOKEN + " x", TOKEN + "\n", TOKEN + "\u00e9"):
        with pytest.raises(UsageError, match="at least 32 visible ASCII"):
            checked_token(bad)


# ---- the token check


async def status_for(*headers: tuple[bytes, bytes]) -> int:
    """Return the status that a guarded app answers with; the app itself answers 200."""
    sent: list[MutableMapping[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing is read before the token is checked")

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await require_token(app, TOKEN)({"type": "http", "headers": list(headers)}, receive, send)
    return int(sent[0]["status"])


async def test_only_the_token_passes() -> None:
    good = (b"authorization", f"Bearer {TOKEN}".encode())
    assert await status_for(good) == 200
    assert await status_for((b"Authorization", good[1])) == 200
    assert await status_for() == 401
    assert await status_for((b"authorization", b"Bearer " + b"u" * 32)) == 401
    assert await status_for((b"authorization", b"bearer " + TOKEN.encode())) == 401
    assert await status_for((b"authorization", TOKEN.encode())) == 401
    assert await status_for(good, good) == 401  # a proxy and the app may disagree about which counts


async def test_other_protocols_are_refused_and_the_lifespan_passes() -> None:
    passed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope["type"])

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    await require_token(app, TOKEN)({"type": "lifespan"}, nothing, nothing)
    with pytest.raises(UsageError, match="HTTP only, not websocket"):
        await require_token(app, TOKEN)({"type": "websocket"}, nothing, nothing)
    assert passed == ["lifespan"]


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"Port {port} cannot be used"):
            transport._bind_loopback("127.0.0.1", port)


# ---- servers that are started

ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)\nsys.stderr.write('bye')"


def connect(code: str, stderr: HeadTailBuffer, ends: list[str]) -> Any:
    command = (sys.executable, "-S", "-c", code)
    return stdio_transport(command, env={}, cwd=None, stderr=stderr, on_end=ends.append, inbox=Inbox())


async def test_messages_pass_both_ways_and_stderr_is_stored() -> None:
    stderr, ends = HeadTailBuffer(0, 100), list[str]()
    async with connect(ECHO, stderr, ends) as (reading, writing):
        ping = types.JSONRPCRequest(jsonrpc="2.0", id=1, method="ping")
        await writing.send(SessionMessage(ping))
        echoed = await reading.receive()
        assert echoed.message == ping
        assert not ends
    assert ends == ["it ended"]


async def test_a_line_that_is_no_message_is_passed_on_as_an_error() -> None:
    async with connect("print('hello', flush=True); input()", HeadTailBuffer(0, 100), []) as (reading, _):
        assert isinstance(await reading.receive(), ValueError)


async def test_a_message_that_is_too_long_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_MESSAGE_BYTES", 1 << 10)
    ended = asyncio.Event()
    reasons: list[str] = []

    def on_end(reason: str) -> None:
        reasons.append(reason)
        ended.set()

    command = (sys.executable, "-S", "-c", "print('x' * 100_000, flush=True); input()")
    stderr = HeadTailBuffer(0, 100)
    async with stdio_transport(command, env={}, cwd=None, stderr=stderr, on_end=on_end, inbox=Inbox()):
        await ended.wait()
    assert reasons == ["it sent a message of more than 0 MiB"]


async def test_a_program_that_cannot_be_started() -> None:
    with pytest.raises(UsageError, match="'/no/such' cannot be started"):
        async with stdio_transport(
            ("/no/such",),
            env={},
            cwd=None,
            stderr=HeadTailBuffer(0, 1),
            on_end=lambda _reason: None,
            inbox=Inbox(),
        ):
            pytest.fail("it started")


PARENT = """
import subprocess, sys
near = subprocess.Popen(["sleep", "1000"])
far = subprocess.Popen(["setsid", "sleep", "1000"])
print('{"jsonrpc":"2.0","id":1,"result":{"near":%d,"far":%d}}' % (near.pid, far.pid), flush=True)
input()
"""


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def test_closing_ends_a_server_with_its_process_group_and_no_other() -> None:
    async with connect(PARENT, HeadTailBuffer(0, 100), []) as (reading, _):
        pids = (await reading.receive()).message.result
        assert is_running(pids["near"])
        # Until `setsid` has made its session, it is in the group of the server.
        await eventually(lambda: os.getsid(pids["far"]) == pids["far"])
    try:
        await eventually(lambda: not is_running(pids["near"]))
        assert is_running(pids["far"])
    finally:
        os.kill(pids["far"], signal.SIGKILL)


async def test_blank_lines_are_skipped_and_the_loop_goes_on() -> None:
    code = 'print(\'\\n\' * 100_000 + \'{"jsonrpc":"2.0","method":"x"}\', flush=True); input()'
    with counted_turns() as turns:
        async with connect(code, HeadTailBuffer(0, 100), []) as (reading, _):
            assert (await reading.receive()).message.method == "x"
    assert len(turns) > 100


async def test_lines_come_whole_however_they_are_cut() -> None:
    stream = asyncio.StreamReader()
    for piece in (b"a", b"b\n", b"\n", b"c\nd\ne", b"", b"f"):
        stream.feed_data(piece)
        await asyncio.sleep(0)
    stream.feed_eof()
    assert [line async for line in transport._lines(stream)] == [b"ab\n", b"\n", b"c\n", b"d\n", b"ef"]


END = """
import asyncio, gc, sys, threading
from aisotools.core.truncation import HeadTailBuffer
from aisotools.integrations.mcp.messages import Inbox
from aisotools.integrations.mcp.transport import stdio_transport

async def hold(held):
    command = (sys.executable, "-S", "-c", "input()")
    options = {"env": {}, "cwd": None, "stderr": HeadTailBuffer(0, 100), "on_end": lambda _: None}
    async with stdio_transport(command, inbox=Inbox(), **options):
        held.set()
        await ended.wait()

async def main():
    global ended, task
    held, ended = asyncio.Event(), asyncio.Event()
    task = asyncio.ensure_future(hold(held))
    await held.wait()
    ended.set()
    for _ in range(TURNS):
        await asyncio.sleep(0)

asyncio.run(main())
del task, ended
gc.collect()
for thread in threading.enumerate():  # one waits for the end of the process
    if thread is not threading.current_thread() and thread.daemon:
        thread.join()
"""


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_loop_that_ends_while_a_server_is_stopped_leaves_nothing_behind(turns: int) -> None:
    code = END.replace("TURNS", str(turns))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


BREAK = """
import asyncio, gc, sys
from mcp import types
from mcp.shared.message import SessionMessage
from aisotools.core.truncation import HeadTailBuffer
from aisotools.integrations.mcp.messages import Inbox
from aisotools.integrations.mcp.transport import stdio_transport

MESSAGE = types.JSONRPCNotification(jsonrpc="2.0", method="x", params={"a": "a" * 1_000_000})

async def main():
    ended = asyncio.Event()
    # The first message is longer than a pipe holds: it is being written when the process ends.
    command = (sys.executable, "-S", "-c", "import sys; sys.stdin.read(5)")
    options = {"env": {}, "cwd": None, "stderr": HeadTailBuffer(0, 100), "on_end": lambda _: ended.set()}
    async with stdio_transport(command, inbox=Inbox(), **options) as (_, writing):
        await writing.send(SessionMessage(MESSAGE))
        await ended.wait()

asyncio.run(main())
gc.collect()
"""


def test_an_input_that_breaks_while_a_message_is_written_is_no_error() -> None:
    done = subprocess.run([sys.executable, "-c", BREAK], capture_output=True, text=True, check=True)
    assert done.stderr == ""
