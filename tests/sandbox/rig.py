"""A real kernel to test with: its calls, what it reports, and the processes it leaves."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aisotools.builtin import WORKER_MODULES
from aisotools.core.protocols import OutputCaps, ToolPayload
from aisotools.core.sandboxes import SandboxCall, SandboxStatus
from aisotools.core.types import Json, ToolCall, ToolResult
from aisotools.sandbox.host.calls import StopTimeouts
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn
from aisotools.tools.function import FunctionTool

PYTHON = ToolPayload(key="python", import_path="aisotools.builtin.python:python", concurrency="exclusive")
BASH = ToolPayload(
    key="bash", import_path="aisotools.builtin.shell:sandbox_bash", concurrency="overlap", programs="named"
)
_ids = itertools.count(1)

UNHURRIED = StopTimeouts(kill_s=50, recover_s=50)
"""Waits for events instead of the clock, so that a busy machine changes no result; the grace period stays."""

PATIENT = StopTimeouts(interrupt_s=50, kill_s=50, recover_s=50)
"""The same for calls that can be interrupted: on a busy machine that takes its time too."""

DEAF_ONCE = """
import signal, time
def miss(*_, handler=signal.getsignal(signal.SIGINT), signal=signal):
    signal.signal(signal.SIGINT, handler)
signal.signal(signal.SIGINT, miss)
print('began', flush=True)
time.sleep(100)
"""
"""Code that misses the first interrupt, as Python does when one arrives just before a system call."""


@dataclass
class ReportLog:
    """A `SandboxListener` that records everything."""

    outputs: list[tuple[str, str, str]] = field(default_factory=list)
    emits: list[tuple[str, str, Mapping[str, Json]]] = field(default_factory=list)
    starts: list[tuple[SandboxStatus, str]] = field(default_factory=list)
    losses: list[tuple[int, str]] = field(default_factory=list)
    dropped: list[tuple[tuple[str, ...], str]] = field(default_factory=list)

    def output(self, call_id: str, stream: str, text: str) -> None:
        self.outputs.append((call_id, stream, text))

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Json]) -> None:
        self.emits.append((call_id, name, payload))

    def started(self, status: SandboxStatus, reason: str) -> None:
        self.starts.append((status, reason))

    def lost(self, generation: int, reason: str) -> None:
        self.losses.append((generation, reason))

    def variables_dropped(self, call_ids: Sequence[str], reason: str) -> None:
        self.dropped.append((tuple(call_ids), reason))

    def text(self, call_id: str, stream: str = "stdout") -> str:
        return "".join(text for c, s, text in self.outputs if (c, s) == (call_id, stream))


class Rig:
    """A kernel on a workspace, with short forms for calls."""

    def __init__(
        self,
        workspace: Path,
        limits: Limits | None = None,
        level: str | None = None,
        *,
        stop_timeouts: StopTimeouts = UNHURRIED,
        slow_fork_s: float = 60,
        readable: tuple[str, ...] = (),
        **options: Any,
    ) -> None:
        self.workspace = workspace
        self.reported = ReportLog()
        level = level or spawn.detection(WORKER_MODULES).level
        assert level is not None
        self.level = level
        self.wanted = spawn.WorkerSpec(
            level=level,
            workspace=str(workspace),
            limits=limits or Limits(),
            tool_modules=WORKER_MODULES,
            readable=readable,
        )
        self.kernel = LocalSandbox(
            self.wanted, self.reported, stop_timeouts=stop_timeouts, slow_fork_s=slow_fork_s, **options
        )

    async def call(
        self,
        shipment: ToolPayload,
        arguments: Mapping[str, Json],
        *,
        timeout_s: float = 20,
        caps: OutputCaps | None = None,
        call_id: str | None = None,
        name: str = "",
        **flags: Any,
    ) -> ToolResult:
        request = SandboxCall(
            call=ToolCall(call_id or f"call-{next(_ids)}", name or shipment.key, arguments),
            shipment=shipment,
            timeout_s=timeout_s,
            output_caps=caps or OutputCaps(),
            session_key="test",
            **flags,
        )
        return await self.kernel.call(request)

    async def python(self, code: str, **more: Any) -> ToolResult:
        return await self.call(PYTHON, {"code": code}, **more)

    async def bash(self, command: str, **more: Any) -> ToolResult:
        arguments = {"command": command, "timeout": more.pop("timeout", 30_000)}
        if more.get("background"):
            arguments["background"] = more.pop("background")
            more["starts_task"] = True
        return await self.call(BASH, arguments, **more)

    async def tool(
        self, tool: FunctionTool[..., Any], arguments: Mapping[str, Json] | None = None, **more: Any
    ) -> ToolResult:
        shipment = tool.shipment()
        assert shipment is not None
        return await self.call(shipment, arguments or {}, name=tool.name, **more)

    async def value(self, code: str, **more: Any) -> Any:
        """What `code`, ending in an expression, evaluates to."""
        result = await self.python(code, **more)
        assert not result.is_error, result.content
        return eval(result.value["result"])


@asynccontextmanager
async def rig(
    folder: Path,
    limits: Limits | None = None,
    *,
    level: str | None = None,
    name: str = "workspace",
    **options: Any,
) -> AsyncIterator[Rig]:
    """A rig on `folder/name`; afterwards nothing of it may be left."""
    workspace = folder / name
    workspace.mkdir(exist_ok=True)
    made = Rig(workspace, limits, level, **options)
    try:
        yield made
    finally:
        await made.kernel.close()
    assert processes_of(workspace) == []


def processes_of(workspace: Path) -> list[str]:
    """What still runs there: as its working folder, or told by its environment."""
    found = []
    inside, own, marker = f"{workspace}/", str(os.getpid()), os.fsencode(workspace)
    # Plain system calls: this looks at every process of the machine, after each test that has a sandbox.
    for pid in os.listdir("/proc"):  # noqa: PTH208 - see above
        if not pid.isdigit() or pid == own:
            continue
        try:
            where = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - see above
            if f"{where}/".startswith(inside) or marker in _read(f"/proc/{pid}/environ"):
                command = _read(f"/proc/{pid}/cmdline")
                found.append(f"{pid}: {command.replace(bytes(1), b' ').decode()}")
        except OSError:
            continue
    return found


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        content = b""
        while part := os.read(descriptor, 1 << 17):
            content += part
        return content
    finally:
        os.close(descriptor)


def sleepers(workspace: Path) -> list[str]:
    """What of it sleeps, as most programs of these tests do."""
    return [process for process in processes_of(workspace) if ": sleep" in process]


def is_there(path: str) -> bool:
    """Whether a file or folder exists; for use in async tests."""
    return Path(path).exists()


def open_files(pid: int | str = "self") -> int:
    """How many descriptors a process has."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def rss_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
