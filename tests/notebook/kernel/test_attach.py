"""A Jupyter client at a live session: the same variables, through the session's own gate."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_core.utils import ensure_event_loop

from aisotools.core.events import CallDecided
from aisotools.core.exceptions import UsageError
from aisotools.core.types import ToolResult
from aisotools.notebook.kernel.attach import Attachment, attach
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.notebook.kernel.jupyter import Client
from tests.waiting import HANG_S, eventually, wait_until


class Attached:
    """A session, and a client attached to it; the client blocks, so it runs in a thread."""

    def __init__(self, session: Session, attachment: Attachment) -> None:
        self.session, self.attachment = session, attachment
        self.thread = ThreadPoolExecutor(1)  # the client keeps a loop per thread
        kernel_client = BlockingKernelClient(connection_file=str(attachment.connection_file))
        kernel_client.load_connection_file()
        self.client: Any = Client(manager=None, client=kernel_client)  # type: ignore[arg-type]  # it has none

    async def __call__(self, work: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        return await asyncio.wrap_future(self.thread.submit(work, *arguments, **named))

    async def run(self, code: str, **how: Any) -> Any:
        return await self(self.client.run, code, **how)


@pytest.fixture
async def a(
    real_session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Attached]:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    session = real_session(approver=AllowAll())
    made = Attached(session, await attach(session))
    await made(made.client.client.start_channels)
    await made(made.client.client.wait_for_ready, timeout=HANG_S)
    yield made
    await made(made.client.client.stop_channels)
    await made(lambda: ensure_event_loop().close())
    made.thread.shutdown()
    await made.attachment.close()


async def test_an_attached_kernel_reaches_the_variables_of_the_session(a: Attached) -> None:
    await a.session.run_cell("shared = 40")
    cell = await a.run("shared += 2\nprint('hi')\nshared")
    assert cell.text() == "hi\n"
    assert cell.result["text/plain"] == "42"
    result = await a.session.run_cell("shared")
    assert result.value["result"] == "42"
    assert "shared" in (await a(a.client.ask, "complete", "shar"))["matches"]
    assert (await a(a.client.ask, "is_complete", "def f():"))["status"] == "incomplete"
    assert "int" in (await a(a.client.ask, "inspect", "shared", 3))["data"]["text/plain"]


async def test_its_sockets_are_encrypted(a: Attached) -> None:
    # No server has made keys for it, and other users of the machine can connect to its ports.
    connection = json.loads(a.attachment.connection_file.read_text())
    assert connection["curve_publickey"]
    assert connection["curve_secretkey"]


@pytest.mark.slow
async def test_its_cells_pass_the_gate_as_typed(a: Attached) -> None:
    await a.run("1 + 1")
    decided = [event for event in a.session.events if isinstance(event, CallDecided)]
    assert decided[-1].decided_by == "typed"
    assert decided[-1].arguments["code"] == "1 + 1"


@pytest.mark.slow
async def test_an_attached_kernel_does_not_show_the_calls_of_others(a: Attached) -> None:
    await a.session.run_cell("print('not yours')")
    assert (await a.run("print('yours')")).text() == "yours\n"


@pytest.mark.slow
async def test_an_attached_kernel_may_ask_for_input(a: Attached) -> None:
    cell = await a.run("input('?')", answer=lambda _: "yes")
    assert cell.result["text/plain"] == "'yes'"


async def test_errors_and_widgets_as_ever(a: Attached) -> None:
    cell = await a.run("import ipywidgets; display(ipywidgets.IntSlider(7)); 1 / 0")
    assert cell.of("display_data")[0]["data"] == {"text/plain": "IntSlider(value=7)"}
    assert cell.reply["ename"] == "ZeroDivisionError"


async def test_interrupts_work_while_this_process_is_busy(a: Attached) -> None:
    client = a.client.client
    folder = a.session.workspace
    assert folder is not None

    def run() -> Any:
        code = "import time\ntry:\n    open('began', 'w').close()\n    time.sleep(1000)\n"
        return a.client.run(f"{code}finally:\n    open('ended', 'w').close()")

    running = asyncio.ensure_future(a(run))
    await eventually((folder / "began").exists)
    client.control_channel.send(client.session.msg("interrupt_request", {}))
    wait_until((folder / "ended").exists)  # nothing of this process's loop runs meanwhile
    cell = await running
    assert cell.reply["ename"] == "KeyboardInterrupt"


@pytest.mark.slow
async def test_a_worker_that_dies_is_replaced_and_can_be_interrupted(a: Attached) -> None:
    cell = await a.run("import os; os.kill(os.getpid(), 9)")
    assert cell.reply["ename"] == "WorkerDied"
    assert (await a.run("1 + 1")).result["text/plain"] == "2"


@pytest.mark.slow
async def test_the_front_ends_with_the_session(a: Attached) -> None:
    process: Any = a.attachment._process
    assert process.poll() is None
    await a.session.close()
    await eventually(lambda: process.poll() is not None)
    assert not a.attachment.connection_file.exists()


@pytest.mark.slow
async def test_a_front_that_ends_leaves_the_session(a: Attached) -> None:
    await a.attachment.close()
    result: ToolResult = await a.session.run_cell("1 + 1")
    assert result.value["result"] == "2"


@pytest.mark.slow
async def test_the_front_has_no_way_to_the_worker_but_its_pid(a: Attached) -> None:
    process: Any = a.attachment._process
    links = [os.readlink(f"/proc/{process.pid}/fd/{n}") for n in os.listdir(f"/proc/{process.pid}/fd")]  # noqa: PTH208, PTH115 - quick
    assert links.count("anon_inode:[pidfd]") == 1


async def test_sessions_that_cannot_be_attached_to(open_session: OpenSession) -> None:
    with pytest.raises(UsageError, match="FakeSandbox"):
        await attach(open_session())
