"""kill -9 of the host, alone or with everything that would clean up after it, leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from aisotools.sandbox.process import tree

HOST = """
import asyncio, json, os, sys
from aisotools.sandbox.process import spawn
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.core.protocols import SandboxCall, ToolPayload
from aisotools.core.types import ToolCall
from tests.sandbox.rig import PYTHON, Heard

CODE = '''
import os, time
for n in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir('/')
            os.execve('/bin/sleep', ['sleep', '{mark}'], {{}})
        os._exit(0)
os.environ['HOME']
'''

async def main(workspace, level, mark):
    spec = spawn.WorkerSpec(level=level, workspace=workspace, limits=Limits())
    kernels = [LocalSandbox(spec, Heard()) for _ in range(2)]
    for number, kernel in enumerate(kernels):
        call = ToolCall(f"c{number}", "python", {"code": CODE.format(mark=mark)})
        result = await kernel.call(SandboxCall(call=call, shipment=PYTHON, timeout_s=10))
        assert not result.is_error, result.content
    supervisors = [kernel.supervisor for kernel in kernels]
    print(json.dumps({"supervisors": supervisors}), flush=True)
    await asyncio.sleep(60)

asyncio.run(main(*sys.argv[1:]))
"""


def sleeping(mark: str) -> set[int]:
    """The daemons of one test, wherever they hide."""
    found = set()
    for pid in tree.table():
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{mark}\0".encode():
                found.add(pid)
        except OSError:
            continue
    return found


def chain(pid: int, host: int, table: tree.Table) -> list[int]:
    """What stands between a process and the host, the nearest first."""
    found: list[int] = []
    while pid in table and pid not in {host, 1}:
        found.append(pid)
        pid = table[pid].parent
    return found


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait two seconds for it, at most."""
    until_s = time.monotonic() + 2
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.05)


KILLED = {
    "the host": ["host"],
    "host and fork server": ["host", "server"],
    "host and supervisors": ["host", "supervisors"],
    "all of them": ["host", "server", "supervisors"],
    "all of them, from below": ["supervisors", "server", "host"],
    "fork server and supervisors, then the host": ["server", "supervisors", "pause", "host"],
}


@pytest.mark.parametrize("killed", KILLED.values(), ids=KILLED)
def test_nothing_is_left_after_two_seconds(tmp_path: Path, killed: list[str]) -> None:
    workspace, temporary = tmp_path / "workspace", tmp_path / "tmp"
    workspace.mkdir()
    temporary.mkdir()
    mark = str(100_000 + int.from_bytes(os.urandom(3), "big"))
    command = [sys.executable, "-c", HOST, str(workspace), "confined", mark]
    environ = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as host:
        assert host.stdout is not None
        report = json.loads(host.stdout.readline())
        table = tree.table()
        # what stands between the host and a supervisor: the fork server, and what is above it
        server = chain(table[report["supervisors"][0]].parent, host.pid, table)[0]
        everything = tree.below(host.pid, table)
        try:
            wait_for(lambda: len(sleeping(mark)) == 6)
        except AssertionError:
            host.kill()
            raise
        for who in killed:
            if who == "pause":
                time.sleep(0.5)
            for pid in {"host": [host.pid], "server": [server], "pause": []}.get(who, report["supervisors"]):
                os.kill(pid, signal.SIGKILL)
        host.kill()
    with suppress(AssertionError):  # what is left is reported below
        wait_for(lambda: not (sleeping(mark) or everything & tree.table().keys() or any(temporary.iterdir())))
    left = everything & tree.table().keys()
    assert (sleeping(mark), left, list(temporary.iterdir())) == (set(), set(), [])
