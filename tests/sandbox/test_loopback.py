"""The network of a sandbox: a loopback of its own at level `isolated`, none at the others."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisotools.builtin.python import python
from aisotools.builtin.shell import sandbox_bash
from aisotools.sandbox.process import spawn
from tests.sandbox.rig import rig

SERVER = """
import http.server, threading, urllib.request
open('page.txt', 'w').write('from the workspace')
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = server.server_port
"""
FETCH = "urllib.request.urlopen(f'http://localhost:{port}/page.txt', timeout=20).read().decode()"

isolates = pytest.mark.skipif(
    spawn.detection().level != "isolated", reason="level isolated does not hold on this machine"
)


@contextmanager
def host_server() -> Iterator[tuple[int, list[str]]]:
    """A server on the host's loopback, with everybody who has come."""
    visits: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    visitor, address = server.accept()
                except OSError:
                    return
                visits.append(str(address))
                visitor.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], visits
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@isolates
async def test_a_server_and_its_client_in_one_call_and_across_calls(tmp_path: Path) -> None:
    async with rig(tmp_path, level="isolated") as r:
        assert await r.value(SERVER + FETCH) == "from the workspace"
        assert await r.value(FETCH) == "from the workspace"
        port = await r.value("port")
        code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/page.txt').read())"
        result = await r.bash(f'python3 -c "{code}"')
        assert "from the workspace" in result.content, result.content


@isolates
async def test_a_server_that_a_command_started(tmp_path: Path) -> None:
    async with rig(tmp_path, level="isolated") as r:
        started = await r.bash("echo page > page.txt; (python3 -m http.server 8123 >/dev/null 2>&1 &)")
        assert not started.is_error, started.content
        code = """
import time, urllib.error, urllib.request
while True:
    try:
        page = urllib.request.urlopen('http://localhost:8123/page.txt', timeout=20).read()
        break
    except urllib.error.URLError:
        time.sleep(0.01)
page.decode()
"""
        assert await r.value(code, timeout_s=50) == "page\n"


@isolates
async def test_datagrams_ipv6_and_asyncio(tmp_path: Path) -> None:
    code = """
import asyncio, socket
receiver, sender = (socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(2))
receiver.bind(('::1', 0))
sender.sendto(b'datagram', receiver.getsockname())
first = receiver.recv(99)
async def main():
    async def answer(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, 'localhost', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    writer.write(b'stream\\n')
    line = await reader.readline()
    writer.close()
    server.close()
    return line
[first, await main()]
"""
    async with rig(tmp_path, level="isolated") as r:
        assert await r.value(code) == [b"datagram", b"STREAM\n"]


@isolates
async def test_a_jupyter_kernel_inside(tmp_path: Path) -> None:
    pytest.importorskip("jupyter_client")
    code = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(startup_timeout=90, kernel_name='python3')
reply = client.execute_interactive('6 * 7', timeout=90, user_expressions={'x': '6 * 7'})
client.stop_channels()
manager.shutdown_kernel(now=True)
[manager.transport, reply['content']['user_expressions']['x']['data']['text/plain']]
"""
    async with rig(tmp_path, level="isolated") as r:
        assert await r.value(code, timeout_s=200) == ["tcp", "42"]


@isolates
async def test_nobody_else_is_on_it(tmp_path: Path) -> None:
    """Not the host, not another session, not the way out; neither from inside nor from outside."""
    reach = """
import errno, socket
def reach(address, family=socket.AF_INET):
    try:
        socket.create_connection(address, timeout=20).close()
    except OSError as error:
        return errno.errorcode.get(error.errno)
    return 'reached'
"""
    with host_server() as (host_port, visits):
        socket.create_connection(("127.0.0.1", host_port)).close()  # the control: it does listen
        async with (
            rig(tmp_path, level="isolated", name="one") as one,
            rig(tmp_path, level="isolated", name="two") as two,
        ):
            await one.python(SERVER)
            port = await one.value("port")
            assert await two.value(f"{reach}reach(('127.0.0.1', {port}))") == "ECONNREFUSED"
            assert await one.value(f"{reach}reach(('127.0.0.1', {host_port}))") == "ECONNREFUSED"
            assert await one.value("reach(('127.0.0.1', port))") == "reached"
            for address in ("192.0.2.77", "10.0.0.1", "169.254.169.254", "2001:db8::77"):
                assert await one.value(f"reach(({address!r}, 80))") == "ENETUNREACH"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
        assert len(visits) == 1


@isolates
async def test_the_same_port_in_two_sessions(tmp_path: Path) -> None:
    bind = "import socket; server = socket.create_server(('127.0.0.1', {})); server.getsockname()[1]"
    async with (
        rig(tmp_path, level="isolated", name="one") as one,
        rig(tmp_path, level="isolated", name="two") as two,
    ):
        port = await one.value(bind.format(0))
        assert await two.value(bind.format(port)) == port


@isolates
async def test_a_way_out_is_explained(tmp_path: Path) -> None:
    async with rig(tmp_path, level="isolated") as r:
        for code in (
            "import socket; socket.create_connection(('192.0.2.77', 80), 20)",
            "import urllib.request; urllib.request.urlopen('http://example.invalid/')",
        ):
            result = await r.python(code)
            assert result.is_error
            assert "a loopback of the sandbox's own" in result.content


@isolates
async def test_buffers_of_connections_are_small(tmp_path: Path) -> None:
    """Their memory is the kernel's: what one connection takes is bounded, whatever the host allows."""
    code = """
import socket
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname())
client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
client.setblocking(False)
sent = 0
try:
    while True:
        sent += client.send(bytes(1 << 16))
except BlockingIOError:
    pass
sent
"""
    async with rig(tmp_path, level="isolated") as r:
        assert await r.value(code) < 1 << 20


@pytest.mark.parametrize("level", ["confined", "guarded", "limited"])
async def test_other_levels_have_none_and_say_so(tmp_path: Path, level: str) -> None:
    if level not in {probe.name for probe in spawn.detection().probes if probe.ok}:
        pytest.skip(f"level {level} does not hold on this machine")
    async with rig(tmp_path, level=level) as r:
        result = await r.python("import http.server; http.server.HTTPServer(('127.0.0.1', 0), None)")
        assert result.is_error
        assert f"[level {level}: there is no network here, not even 127.0.0.1." in result.content


def test_the_descriptions_of_tools_say_where_a_loopback_is() -> None:
    for tool in (python, sandbox_bash):
        assert "127.0.0.1 at level isolated" in " ".join(tool.description.split())
