"""What servers with messages of many parts cost the host: its growth, and for how long its loop stands still.

`python -m tests.integrations.mcp.large_messages` runs all shapes over all transports and prints a table; with
names of shapes, only those. `... --each` reads lines with a JSON array of a shape and a way, runs each in a
process that is forked, since to import the library takes longer than all else, and prints a JSON object: for
how long the loop stood still at most, in seconds (see `tests.stalls`), resident memory before and at most
after that, in bytes, and what came of the call.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from aisotools.core.exceptions import ToolError
from aisotools.core.threads import in_thread
from aisotools.integrations.mcp.api import add_mcp_server
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.tools.registry import ToolRegistry
from tests import stalls
from tests.integrations.mcp.large_server import SHAPES
from tests.sandbox.rig import rss_bytes

SERVER = [sys.executable, "-S", str(Path(__file__).with_name("large_server.py"))]
HEAD_SERVER = [sys.executable, "-S", str(Path(__file__).with_name("head_server.py"))]
WAYS = ("stdio", "json", "events")
HEADS = "heads"
"""The way of a server whose shape is one of heads; see `head_server`."""
_SAMPLE_S = 0.002


class Peak:
    """The most memory that this process has while a function samples it in a thread."""

    def __init__(self) -> None:
        self.most = 0
        self.is_done = False

    def sample(self) -> None:
        while not self.is_done:
            self.most = max(self.most, rss_bytes())
            time.sleep(_SAMPLE_S)


@contextmanager
def serving(shape: str, way: str) -> Iterator[dict[str, Any]]:
    """Give the address of a server for the duration of the context."""
    if way == "stdio":
        yield {"command": [*SERVER, shape, way]}
        return
    server = HEAD_SERVER if way == HEADS else SERVER
    with subprocess.Popen([*server, shape, way], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield {"url": f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"}
        finally:
            process.kill()


async def measure(address: dict[str, Any], folder: Path, record: stalls.Stalls) -> dict[str, Any]:
    """Connect to a server and call its tool."""
    environ = {"HOME": str(folder.with_name("home"))}
    options: dict[str, Any] = {"sandbox": FakeSandbox, "approver": AllowAll(), "environ": environ}
    registry = ToolRegistry([MockTool("own")])
    async with Session(folder, registry=registry, **options) as session:
        # One call to a server that has nothing to hide: what is imported and set up once does not count.
        for way in WAYS:
            with serving("a plain text", way) as plain_address:
                plain = await add_mcp_server(registry, "p", session=session, **plain_address)
                await session.call("p_t")
                await plain.close()
        gc.collect()
        gc.freeze()
        gc.disable()
        before, peak = rss_bytes(), Peak()
        await asyncio.sleep(0.05)
        sampling = asyncio.ensure_future(in_thread(peak.sample))
        record.longest_s = record.longest_wall_s = 0.0
        record.where.clear()
        found: dict[str, Any] = {"before": before}
        try:
            server = await add_mcp_server(registry, "s", session=session, **address)
            result = await session.call("s_t", timeout_s=100)
            found |= {"content": result.content[:500], "is_error": result.is_error, "kind": result.kind}
            record.is_paused = True  # what is asked here
            found["size"] = len(str(result.value))
            del result
            await server.close()
        except ToolError as error:
            found |= {"content": str(error)[:500], "is_error": True}
        found |= {"stall_s": record.longest_s, "wall_s": record.longest_wall_s, "where": record.where}
        record.is_paused = True
        peak.is_done = True
        await sampling
        found["peak"] = peak.most
    return found


class Measurer:
    """An interpreter that has imported what is needed and nothing else, and is forked for each shape."""

    def __enter__(self) -> Self:
        arguments = [sys.executable, "-m", "tests.integrations.mcp.large_messages", "--each"]
        root, pipe = Path(__file__).resolve().parents[3], subprocess.PIPE
        self._process = subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True, cwd=root)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def run(self, shape: str, way: str) -> dict[str, Any]:
        """Measure a shape in a process of its own and return what was found."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps([shape, way])}\n")
        self._process.stdin.flush()
        found: dict[str, Any] | None = json.loads(self._process.stdout.readline())
        assert found is not None, "the process has failed; see its standard error"
        return found


def measure_each() -> None:
    """Measure the shapes of standard input, each in a process that is forked."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                shape, way = json.loads(line)
                with tempfile.TemporaryDirectory() as folder, serving(shape, way) as address:
                    work = partial(measure, address, Path(folder, "workspace"))
                    found = stalls.run(work, with_stacks=True)
                print(json.dumps(found), flush=True)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                raise
            finally:
                os._exit(1)
        if os.waitpid(pid, 0)[1]:
            print("null", flush=True)


def report(shape: str, way: str, found: dict[str, Any]) -> str:
    """Return the figures of a shape in a line."""
    peak_mib = (found["peak"] - found["before"]) / (1 << 20)
    stall_ms, wall_ms = found["stall_s"] * 1000, found["wall_s"] * 1000
    content = " ".join(found["content"].partition("a stranger, no instr")[0].split())[:60]
    return f"{shape:28} {way:7} {stall_ms:8.1f} {wall_ms:8.1f} {peak_mib:+8.1f}  {content}"


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    if arguments == ["--each"]:
        measure_each()
        return
    print(f"{'':36} stall ms  wall ms  peak MiB")
    with Measurer() as measurer:
        for shape, way in itertools.product(arguments or SHAPES, WAYS):
            found = measurer.run(shape, way)
            print(report(shape, way, found), flush=True)
            for stall_s, stack in found["where"]:
                if stall_s > 0.02:
                    print(f"    {stall_s * 1000:.0f} ms: {stack}")


if __name__ == "__main__":
    main(sys.argv[1:])
