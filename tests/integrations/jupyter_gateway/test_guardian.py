"""Remote kernels end when the process that has started them is killed."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.integrations.jupyter_gateway.guardian import KernelGuardian, end_kernel
from tests.integrations.jupyter_gateway.servers import TOKEN, jupyter_server
from tests.waiting import eventually


class Deletions(http.server.BaseHTTPRequestHandler):
    """Answers `DELETE` by the last part of the path, and notes what it was asked."""

    asked: list[tuple[str, str | None]]

    def do_DELETE(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(int(self.path.rpartition("/")[2]))
        self.send_header("Location", "/elsewhere/204")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def gateway() -> Iterator[str]:
    Deletions.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Deletions) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


@pytest.mark.parametrize(
    ("status", "is_over"), [(204, True), (404, True), (403, True), (302, True), (500, False), (503, False)]
)
def test_ending_is_tried_again_only_where_that_may_help(gateway: str, status: int, is_over: bool) -> None:
    order = {"watch": f"{gateway}/k/{status}", "headers": {"Authorization": "token t"}, "ca_certs": None}
    assert end_kernel(order) is is_over
    assert Deletions.asked == [(f"/k/{status}", "token t")], "the token goes nowhere else"


def test_ending_at_what_is_no_gateway() -> None:
    order: dict[str, Any] = {"watch": "http://127.0.0.1:9/k/1", "headers": {}, "ca_certs": None}
    assert not end_kernel(order)
    assert end_kernel({**order, "watch": "file:///etc/hostname"}), "nothing but http is asked"


HOST = """
import os, sys, time
from aisotools.integrations.jupyter_gateway.guardian import KernelGuardian
guardian = KernelGuardian()
for number in (204, 404):
    guardian.watch(f"{sys.argv[1]}/k{number}/{number}", {"Authorization": "token t"})
guardian.release(f"{sys.argv[1]}/k404/404")
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        time.sleep(100)
    print(child, flush=True)
print("ready", flush=True)
time.sleep(100)
"""


def started(program: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", ["alone", "fork"])
async def test_killed_host_leaves_no_kernel(gateway: str, how: str) -> None:
    host = started(HOST, gateway, how)
    assert host.stdout is not None
    child = int(host.stdout.readline()) if how == "fork" else 0
    assert host.stdout.readline() == "ready\n"
    assert Deletions.asked == []
    try:
        host.kill()
        host.wait()
        host.stdout.close()
        await eventually(lambda: bool(Deletions.asked), hang_s=60)
        assert Deletions.asked == [("/k204/204", "token t")]
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


def test_guardian_ends_with_its_last_kernel(gateway: str) -> None:
    guardian = KernelGuardian()
    guardian.release("unknown")
    assert guardian.pid == 0
    for _ in range(2):
        guardian.watch(f"{gateway}/k/204", {"Authorization": "token secret"})
        pid = guardian.pid
        assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        guardian.release(f"{gateway}/k/204")
        assert guardian.pid == 0
        assert not Path(f"/proc/{pid}").exists()
    assert Deletions.asked == []


SESSION = """
import asyncio, sys
from pathlib import Path
from aisotools.integrations.jupyter_gateway.sandbox import GatewaySandbox
from aisotools.session.session import Session

async def main():
    top = Path(sys.argv[1])
    environ = {"HOME": str(top), "XDG_STATE_HOME": str(top / "state")}
    session = Session(top / "here", sandbox=GatewaySandbox(sys.argv[2], sys.argv[3]), environ=environ)
    code = "import os; print('pid', os.getpid(), flush=True)\\nwhile True: pass"
    session.subscribe(lambda event: event.kind == "call_output" and print(event.text, flush=True))
    await session.run_cell(code, origin="person")

asyncio.run(main())
"""


def listed_kernels(url: str) -> object:
    request = urllib.request.Request(f"{url}/api/kernels", headers={"Authorization": f"token {TOKEN}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.slow
async def test_kernel_of_a_real_server_ends_after_its_host_was_killed(tmp_path: Path) -> None:
    """In the middle of a cell, within a minute, and the server starts no other in its place."""
    with jupyter_server(tmp_path / "server") as server:
        host = started(SESSION, str(tmp_path), server.url, TOKEN)
        assert host.stdout is not None
        word, _, pid = host.stdout.readline().strip().partition(" ")
        assert word == "pid"
        host.kill()
        host.wait()
        host.stdout.close()
        await eventually(lambda: not Path(f"/proc/{pid}").exists(), hang_s=60)
        await eventually(lambda: listed_kernels(server.url) == [], hang_s=60)
