"""Crash only: however the host goes, nothing of its sandboxes is left."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aisotools.sandbox.process import spawn, tree
from tests.sandbox.rig import rig

GONE_S = 2.0

HOST = """
import asyncio, os, sys
from pathlib import Path
from tests.sandbox.rig import Rig
from aisotools.sandbox.process import spawn

async def main():
    r = Rig(Path(sys.argv[1]))
    scratch = await r.value("import os; os.path.dirname(os.environ['HOME'])")
    await r.python(DAEMONS)
    if sys.argv[2] == 'with a copy' and os.fork() == 0:
        import time
        time.sleep(3)  # holds every socket of the host
        os._exit(0)
    call = asyncio.create_task(r.python(sys.argv[3], timeout_s=100))
    await asyncio.sleep(0.2)
    link = r.kernel._connection
    print({'scratch': scratch, 'worker': link.pid, 'supervisor': link.supervisor,
           'server': spawn.server().pid}, flush=True)
    if sys.argv[2] == 'exits':
        os._exit(0)
    if sys.argv[2] == 'raises':
        raise SystemExit(3)
    await call

DAEMONS = '''
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir('/')
            time.sleep(1000)
        os._exit(0)
with open(os.environ['TMPDIR'] + '/file', 'w') as file:
    file.write('x')
'''
asyncio.run(main())
"""

BUSY = {
    "sleeping": "import time; time.sleep(1000)",
    "stubborn": "sum(range(10**12))",
    "stopped": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "printing": "import os\nwhile True: os.write(1, b'x' * 10000)",
}


@contextmanager
def host(workspace: Path, how: str, code: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    workspace.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, str(workspace), how, code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield process, ast.literal_eval(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def all_below(facts: dict[str, Any]) -> set[int]:
    table = tree.table()
    pids = {facts["worker"], facts["supervisor"], facts["server"]}
    return pids | {p for pid in pids for p in tree.below(pid, table)}


def assert_gone(pids: set[int], facts: dict[str, Any]) -> None:
    until_s = time.monotonic() + GONE_S
    left: set[int] = set()
    while time.monotonic() < until_s:
        left = pids & tree.table().keys()
        if not left and not Path(facts["scratch"]).exists():
            return
        time.sleep(0.02)
    pytest.fail(f"{left} and perhaps {facts['scratch']} are left")


@pytest.mark.parametrize("code", BUSY.values(), ids=BUSY)
def test_killing_the_host_leaves_nothing(tmp_path: Path, code: str) -> None:
    with host(tmp_path / "workspace", "waits", code) as (process, facts):
        pids = all_below(facts)
        assert len(pids) >= 6
        process.kill()
        process.wait()
        assert_gone(pids, facts)


@pytest.mark.parametrize("how", ["exits", "raises"])
def test_a_host_that_leaves_without_closing(tmp_path: Path, how: str) -> None:
    with host(tmp_path / "workspace", how, BUSY["sleeping"]) as (process, facts):
        process.wait()
        assert_gone({facts["worker"], facts["supervisor"], facts["server"]}, facts)


def test_a_copy_of_the_host_that_holds_its_sockets_does_not_keep_the_tree(tmp_path: Path) -> None:
    with host(tmp_path / "workspace", "with a copy", BUSY["stubborn"]) as (process, facts):
        pids = all_below(facts) - {facts["server"]}  # which goes with the last holder of its socket
        process.kill()
        process.wait()
        assert_gone(pids, facts)


ORDERS = [("server", "host"), ("supervisor", "host"), ("worker", "host"), ("host", "server")]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_any_order_of_deaths(tmp_path: Path, order: tuple[str, str]) -> None:
    with host(tmp_path / "workspace", "waits", BUSY["stubborn"]) as (process, facts):
        pids = all_below(facts)
        for who in order:
            os.kill(process.pid if who == "host" else facts[who], signal.SIGKILL)
        process.wait()
        assert_gone(pids, facts)


def test_interrupts_and_hangups_of_the_terminal_do_not_reach_the_sandbox(tmp_path: Path) -> None:
    with host(tmp_path / "workspace", "waits", BUSY["sleeping"]) as (process, facts):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(facts["supervisor"], number)
        os.kill(facts["server"], signal.SIGINT)
        time.sleep(0.1)
        table = tree.table()
        assert {facts["supervisor"], facts["server"], facts["worker"]} <= table.keys()
        assert process.poll() is None
        assert os.getsid(facts["supervisor"]) == facts["supervisor"]
        assert os.getsid(facts["worker"]) == facts["supervisor"]
        assert os.getpgid(facts["worker"]) == facts["worker"]


def test_every_part_holds_only_its_own_descriptors(tmp_path: Path) -> None:
    with host(tmp_path / "workspace", "waits", BUSY["sleeping"]) as (_, facts):
        sockets = {
            who: sorted(os.readlink(entry) for entry in Path(f"/proc/{facts[who]}/fd").iterdir())  # noqa: PTH115 - what it links to is no path
            for who in ("worker", "supervisor", "server")
        }
        channels = {target for target in sockets["worker"] if target.startswith("socket:")}
        assert not channels & set(sockets["supervisor"])
        assert not channels & set(sockets["server"])
        control = {target for target in sockets["supervisor"] if target.startswith("socket:")}
        assert len(control) == 1
        assert not control & set(sockets["server"])


async def test_no_worker_holds_a_namespace_of_an_isolated_one(tmp_path: Path) -> None:
    held = {probe.name for probe in spawn.detection().probes if probe.ok}
    if not {"isolated", "confined"} <= held:
        pytest.skip("this machine does not hold both levels")
    for level in ("isolated", "confined"):
        async with rig(tmp_path, level=level, name=level) as r:
            await r.python("1")
            kinds = {target.partition(":")[0] for target in descriptors(r.kernel.status().pid)}
            assert not kinds & {"user", "mnt", "pid", "net", "ipc", "uts"}


def descriptors(pid: int) -> list[str]:
    return [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115 - what it links to is no path
