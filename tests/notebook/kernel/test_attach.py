"""A Jupyter client at a live session: the same variables, through the session's own gate."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_core.utils import ensure_event_loop
from pydantic_core import from_json, to_json

from aisotools.core.events import CallDecided
from aisotools.core.exceptions import SandboxError, UsageError
from aisotools.core.types import ToolResult
from aisotools.notebook.kernel.attach import AttachedSession, Attachment, AttachSocket, attach, open_remote
from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.host.displays import DisplayMessage
from aisotools.sandbox.process import tree
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.notebook.kernel.jupyter import Client
from tests.sandbox.host.test_displays import longest_stall_s
from tests.sandbox.host.test_watches import FullSelector, run
from tests.sandbox.hostile_displays import SHAPES
from tests.sandbox.rig import open_files
from tests.stalls import stall_limit_s
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


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a kernel process starts late; none of these tests is about that."""
    monkeypatch.setattr("aisotools.notebook.kernel.attach.READY_TIMEOUT_S", HANG_S)


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


# ---- large displays, and a host without watches


class RecordingSink:
    """An `OutputSink` that notes what comes, a large display as it came."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def printed(self, _call_id: str, _stream: str, text: str) -> None:
        self.seen.append(text)

    def show(self, call_id: str, shown: DisplayMessage) -> Awaitable[None] | None:
        if not shown.json:
            self.seen.append((call_id, shown))
            return None
        return self._show_later(call_id, replace(shown, bundle=from_json(shown.json)))

    async def _show_later(self, call_id: str, shown: DisplayMessage) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        self.seen.append((call_id, shown))

    def dropped(self, call_id: str) -> None:
        raise AssertionError(call_id)

    def lost(self, reason: str) -> None:
        self.seen.append(reason)

    async def ask(self, call_id: str, prompt: str, *, password: bool) -> str | None:
        raise AssertionError((call_id, prompt, password))


@asynccontextmanager
async def two_ends(sink: RecordingSink) -> AsyncIterator[AttachSocket]:
    """The session's end of a channel whose other end is served for a kernel process."""
    local, remote = socket.socketpair()
    pidfds, remote_pidfds = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours, theirs = await AttachSocket.open(local), await AttachSocket.open(remote)
    attached = AttachedSession(theirs, remote_pidfds, sink)
    ended = asyncio.Event()
    serving = asyncio.ensure_future(attached.serve(ended.set))
    yield ours
    ours.close()
    await ended.wait()
    await serving
    pidfds.close()
    remote_pidfds.close()


@pytest.mark.parametrize("shape", ["different keys", "digits", "escapes"])
def test_no_display_holds_up_the_loop_of_either_end(shape: str) -> None:
    body = SHAPES[shape]()

    async def forward() -> None:
        sink = RecordingSink()
        sink.show = lambda call_id, shown: sink.seen.append(shown.kind)  # type: ignore[method-assign]  # looks at nothing
        async with two_ends(sink) as ours:
            await ours.send_large(
                "show", {"call_id": "c", "what": "display", "bundle": None, "how": {}}, (body,)
            )
            ours.send("printed", ["c", "stdout", "after\n"])
            await eventually(lambda: sink.seen == ["display", "after\n"])

    assert longest_stall_s(forward) <= stall_limit_s()


async def test_displays_keep_their_order_and_their_content_on_the_way() -> None:
    sink = RecordingSink()
    large = {"text/plain": "x" * 100_000, "x/y": [1, {"a": None}]}
    messages = [
        DisplayMessage(kind="display", bundle={"a": 1}, details={"display_id": "d"}, buffers=(b"1",)),
        DisplayMessage(kind="result", bundle=large, buffers=(b"2", b"3"), json=to_json(large)),
        DisplayMessage(kind="update", bundle={}),
    ]
    async with two_ends(sink) as ours:
        forwarding = SimpleNamespace(_channel=ours)
        for message in messages:
            rest = Attachment.show(forwarding, "c", message)  # type: ignore[arg-type]  # has all that this needs
            assert (rest is not None) == bool(message.json)
            if rest is not None:
                await rest
            ours.send("printed", ["c", "stdout", message.kind])
        await eventually(lambda: len(sink.seen) == 6)
    expected: list[Any] = []
    for message in messages:
        expected += [("c", message), message.kind]
    assert sink.seen == expected


@pytest.mark.parametrize("left", range(2))
def test_a_host_without_a_watch_left_says_so_in_one_sentence(left: int) -> None:
    async def main(selector: FullSelector) -> None:
        local, remote = socket.socketpair()
        pidfds, remote_pidfds = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opening = open_remote(
            remote.detach(), remote_pidfds.detach(), RecordingSink(), "unused", lambda: None
        )
        selector.left = left  # of the channel's and the one for pidfds
        with pytest.raises(SandboxError, match=r"could not watch a file: .*max_user_watches") as raised:
            await opening
        assert "\n" not in str(raised.value)
        selector.left = None
        assert pidfds.recv(1) == b"", "the other ends are closed"
        local.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(local, 1) == b""
        local.close()
        pidfds.close()

    run(main)


def test_a_session_whose_host_has_no_watch_left_is_not_attached_to_and_leaves_nothing(
    environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))

    async def main(selector: FullSelector) -> None:
        async with Session(tmp_path / "workspace", environ=environ, level="confined") as session:
            await session.start()  # and no call: its snapshot would open files meanwhile
            descriptors, watched = open_files(), len(selector.get_map())
            processes = tree.descendants(os.getpid())
            selector.left = 0
            with pytest.raises(SandboxError, match=r"could not watch a file: .*max_user_watches"):
                await attach(session)
            selector.left = None
            # Threads of the session look at its processes now and then, through files of their own.
            await eventually(lambda: open_files() == descriptors)
            assert len(selector.get_map()) == watched
            assert tree.descendants(os.getpid()) <= processes
            assert (await session.run_cell("1 + 1", origin="person")).content == "2"

    run(main)
