"""kill -9 of the host, alone or with everything that would clean up after it, leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.sandbox.process import spawn, tree
from tests.waiting import wait_until

HOST = """
import asyncio, json, os, sys
from aisotools.sandbox.process import spawn
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.core.protocols import ToolPayload
from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolCall
from tests.sandbox.rig import PYTHON, ReportLog

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
    kernels = [LocalSandbox(spec, ReportLog()) for _ in range(2)]
    for number, kernel in enumerate(kernels):
        call = ToolCall(f"c{number}", "python", {"code": CODE.format(mark=mark)})
        result = await kernel.call(SandboxCall(call=call, shipment=PYTHON, timeout_s=100))
        assert not result.is_error, result.content
    supervisors = [kernel.supervisor for kernel in kernels]
    print(json.dumps({"supervisors": supervisors}), flush=True)
    await asyncio.sleep(1000)

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


def living() -> set[int]:
    return {*tree.table()}


def chain(pid: int, host: int, table: tree.Table) -> list[int]:
    """What stands between a process and the host, the nearest first."""
    found: list[int] = []
    while pid in table and pid not in {host, 1}:
        found.append(pid)
        pid = table[pid].parent
    return found


KILLED = {
    "the host": ["host"],
    "host and fork server": ["host", "server"],
    "host and supervisors": ["host", "supervisors"],
    "all of them": ["host", "server", "supervisors"],
    "all of them, from below": ["supervisors", "server", "host"],
    "fork server and supervisors, then the host": ["server", "supervisors", "their end", "host"],
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("killed", KILLED.values(), ids=KILLED)
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_left(tmp_path: Path, level: str, killed: list[str]) -> None:
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"this machine cannot hold the level {level}")
    workspace, temporary = tmp_path / "workspace", tmp_path / "tmp"
    workspace.mkdir()
    temporary.mkdir()
    mark = str(100_000 + int.from_bytes(os.urandom(3), "big"))
    command = [sys.executable, "-c", HOST, str(workspace), level, mark]
    environ = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as host:
        assert host.stdout is not None
        report = json.loads(host.stdout.readline())
        table = tree.table()
        # what stands between the host and a supervisor: the fork server, and what is above it
        server = chain(table[report["supervisors"][0]].parent, host.pid, table)[0]
        everything = tree.below(host.pid, table)
        try:
            wait_until(lambda: len(sleeping(mark)) == 6)
            for who in killed:
                if who == "their end":
                    wait_until(lambda: not {server, *report["supervisors"]} & living())
                    continue
                for pid in {"host": [host.pid], "server": [server]}.get(who, report["supervisors"]):
                    os.kill(pid, signal.SIGKILL)
        finally:
            host.kill()
    with suppress(AssertionError):  # what is left is reported below
        wait_until(lambda: not (sleeping(mark) or everything & living() or any(temporary.iterdir())))
    assert (sleeping(mark), everything & living(), list(temporary.iterdir())) == (set(), set(), [])
