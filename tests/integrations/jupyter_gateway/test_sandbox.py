"""Sessions whose calls run in kernels of real Jupyter servers."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import aisotools
from aisotools.core.events import CallEmitted, CallOutput
from aisotools.core.exceptions import LevelUnavailable, SandboxError, UsageError
from aisotools.core.sandboxes import Sandbox, SandboxCall
from aisotools.core.types import ToolCall, ToolResult
from aisotools.integrations.jupyter_gateway.sandbox import GatewaySandbox, RemoteSandbox
from aisotools.policy.approvers import ScriptedApprover
from aisotools.policy.rules import Policy
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.pool import SessionPool
from aisotools.session.session import Session
from aisotools.testing.contracts import RecordingListener, SandboxContract
from aisotools.tools.function import tool
from tests.integrations.jupyter_gateway.servers import TOKEN, Server, free_port, jupyter_server, serving
from tests.waiting import eventually, loop_turns


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with jupyter_server(tmp_path_factory.mktemp("host")) as one:
        yield one


OpenRemote = Callable[..., Session]


@pytest.fixture
async def remote(server: Server, tmp_path: Path, environ: Mapping[str, str]) -> AsyncIterator[OpenRemote]:
    async with contextlib.AsyncExitStack() as stack:

        def make(**options: Any) -> Session:
            url, token = options.pop("url", server.url), options.pop("token", TOKEN)
            given = {
                "workspace": tmp_path / "here",
                "environ": environ,
                "sandbox": GatewaySandbox(url, token),
            }
            session = Session(**{**given, **options})
            stack.push_async_callback(session.close)
            return session

        yield make


async def typed(session: Session, name: str, **arguments: Any) -> ToolResult:
    return await session.call(name, arguments, origin="person")


async def cell(session: Session, code: str, timeout_s: float | None = None) -> ToolResult:
    return await session.run_cell(code, origin="person", timeout_s=timeout_s)


@tool
def _area(width: float, height: float) -> float:
    """Area of a rectangle."""
    return width * height


async def test_a_session_works_as_everywhere(
    remote: OpenRemote, server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    session = remote()
    session.registry.register(_area)
    assert (await cell(session, "x = 41; print('hello'); x + 1")).value["result"] == "42"
    completed = (await typed(session, "sandbox_bash", command="echo $((6 * 7)); pwd; exit 3")).value
    assert (completed["exitCode"], completed["stdout"].split("\n")[0]) == (3, "42")
    assert not (await typed(session, "sandbox_write", path="a/b.txt", content="one\ntwo\n")).is_error
    assert "two" in (await typed(session, "sandbox_read", path="a/b.txt")).content
    edit = {"old": "two", "new": "zwei"}
    assert not (await typed(session, "edit", path="a/b.txt", edits=[edit])).is_error
    listed = (await typed(session, "file", operation="search", pattern="zwei")).value
    assert [match["path"] for match in listed["matches"]] == ["a/b.txt"]
    assert (await typed(session, "_area", width=2, height=3)).value == 6
    failed = await cell(session, "1 / 0")
    assert failed.is_error
    assert "ZeroDivisionError" in failed.content
    await session.put("y", [1, {"z": 2}])
    assert await session.get("y") == [1, {"z": 2}]
    large = await cell(session, "print('x' * 2_000_000)")
    assert large.metadata["dropped_bytes"] > 900_000
    # the files are there and not here
    assert [p.name for p in server.folder.glob("workspace/here-*/a/*")] == ["b.txt"]
    assert not list((tmp_path / "here").iterdir())
    # the token is nowhere
    assert session.log_path is not None
    everything = [session.log_path.read_text(), caplog.text, repr(session), repr(session.sandbox)]
    assert not [text for text in [*everything, *map(repr, session.events)] if TOKEN in text]


async def test_a_call_that_is_too_large_keeps_the_kernel(remote: OpenRemote) -> None:
    table = bytes(31 << 20)

    @tool
    def _count(text: str) -> int:
        """Count the characters of a text, and the bytes of a table that is sent with the tool."""
        return len(table) + len(text)

    session = remote()
    await cell(session, "x = 41")
    payload = _count.shipment()
    assert payload is not None
    assert session.sandbox is not None
    # A session refuses such arguments before; a program may use the sandbox without one.
    call = ToolCall("large", "_count", {"text": "x" * (23 << 20)})
    refused = await session.sandbox.call(SandboxCall(call=call, shipment=payload, timeout_s=60))
    assert "_count was not run: it could not be sent to the sandbox. The call has" in refused.content
    assert (refused.error_kind, (await cell(session, "x + 1")).value["result"]) == ("invalid", "42")


async def test_the_gate_stays_careful(remote: OpenRemote) -> None:
    approver = ScriptedApprover(["deny"] * 3)
    session = remote(approver=approver)
    assert (await cell(session, "1 + 1")).value["result"] == "2"
    assert session.level == "limited"
    session.registry.register(_area)
    for name, arguments in (
        ("python", {"code": "1"}),
        ("sandbox_bash", {"command": "ls"}),
        ("_area", {"width": 1, "height": 1}),
    ):
        result = await session.call(name, arguments, origin="model")
        assert result.error_kind == "denied", name
    assert {request.level for request in approver.requests} == {"limited"}
    with pytest.raises(UsageError, match="auto is refused"):
        session.policy = Policy(mode="auto")
    undone = await session.undo()
    assert undone.is_error
    assert "nothing can be undone" in undone.content
    for refused in (session.changes(), session.branch()):
        with pytest.raises(UsageError, match="another machine"):
            await refused
    assert await session.history.describe(session.explain(_call())) == (  # type: ignore[union-attr]  # it is open
        "It cannot be undone: it runs on another machine."
    )


def _call() -> Any:
    from aisotools.core.types import ToolCall

    return ToolCall("one", "sandbox_bash", {"command": "rm x"})


async def test_levels_are_never_assumed(remote: OpenRemote, environ: Mapping[str, str]) -> None:
    for options in (
        {"level": "confined"},
        {"min_level": "guarded"},
        {"environ": {**environ, "AISOTOOLS_MIN_LEVEL": "guarded"}},
    ):
        with pytest.raises(LevelUnavailable, match="nothing there is confined"):
            await remote(**options).start()
    with pytest.raises(UsageError, match="auto is refused"):
        await remote(policy=Policy(mode="auto")).start()
    with pytest.raises(UsageError, match="read_only"):
        remote(read_only=["/usr"])


async def test_calls_can_be_stopped(remote: OpenRemote) -> None:
    session = remote()
    await cell(session, "kept = 1")
    late = await cell(session, "import time\nwhile True: time.sleep(0.001)", timeout_s=0.3)
    assert late.metadata["timed_out"] is True
    running = asyncio.ensure_future(typed(session, "sandbox_bash", command="echo begun; sleep 30"))
    await eventually(lambda: any(isinstance(e, CallOutput) and "begun" in e.text for e in session.events))
    waiting = asyncio.ensure_future(cell(session, "1"))
    await loop_turns(20)
    await session.interrupt()
    for result in (await running, await waiting):
        assert result.is_error
        assert result.metadata["stopped"] is True
    assert (await cell(session, "kept")).value["result"] == "1"


@pytest.mark.slow
async def test_a_kernel_that_will_not_stop_is_given_up(remote: OpenRemote) -> None:
    session = remote()
    code = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)"
    await session.start()
    late = await cell(session, code, timeout_s=0.3)
    assert "has not reacted yet" in late.content
    fresh = await cell(session, "'time' in globals()")
    assert fresh.value["result"] == "False"
    assert session.status().generation == 2


@pytest.mark.slow
async def test_a_broken_connection_keeps_the_kernel(remote: OpenRemote) -> None:
    session = remote()
    await cell(session, "kept = 1")
    kernel = _kernel(session)
    running = asyncio.ensure_future(cell(session, "print('begun', flush=True)\nimport time; time.sleep(20)"))
    await eventually(lambda: any(isinstance(e, CallOutput) for e in session.events))
    kernel._link._socket.protocol.stream.close()  # type: ignore[union-attr]  # it is connected
    cut = await running
    assert cut.error_kind == "environment"
    assert "connection broke" in cut.content
    assert (await cell(session, "kept")).value["result"] == "1"
    assert session.status().generation == 1


@pytest.mark.slow
async def test_death_of_the_kernel_is_reported(remote: OpenRemote) -> None:
    session = remote()
    died = await cell(session, "import os; os.kill(os.getpid(), 9)")
    assert died.metadata["worker_died"] is True
    assert "fresh worker" in died.content
    assert (await cell(session, "2 * 21")).value["result"] == "42"
    assert session.status().generation == 2


async def test_wrong_tokens_and_absent_servers(remote: OpenRemote, server: Server, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="does not accept the token") as wrong:
        await remote(token="wrong-secret").start()
    assert "wrong-secret" not in str(wrong.value)
    with pytest.raises(SandboxError, match="nothing listens there"):
        await remote(url="http://127.0.0.1:9", workspace=tmp_path / "other").start()


@pytest.mark.slow
async def test_two_hosts_and_one_is_killed(
    tmp_path: Path, environ: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with contextlib.ExitStack() as servers:
        one, two = (servers.enter_context(jupyter_server(tmp_path / name)) for name in ("one", "two"))
        async with contextlib.AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(
                    Session(
                        tmp_path / f"here-{n}",
                        sandbox=GatewaySandbox(f"{host.url}/?token={TOKEN}"),
                        environ=environ,
                    )
                )
                for n, host in enumerate((one, two))
            ]
            hosts = [await cell(session, "import os; os.getcwd()") for session in sessions]
            assert [
                str(host.folder) in result.content for host, result in zip((one, two), hosts, strict=True)
            ] == [
                True,
                True,
            ]
            code = (
                "import os, time\nprint('begun', flush=True)\n"
                "while not os.path.exists('go'): time.sleep(0.01)\n'done'"
            )
            running = [asyncio.ensure_future(cell(session, code)) for session in sessions]
            for session in sessions:
                await eventually(lambda s=session: any(isinstance(e, CallOutput) for e in s.events))  # type: ignore[misc]  # bound now
            one.kill()
            (Path(ast.literal_eval(str(hosts[1].value["result"]))) / "go").touch()
            lost, fine = await asyncio.gather(*running)
            assert lost.is_error
            assert "connection broke" in lost.content
            assert "nothing listens there" in lost.content
            assert fine.value["result"] == "'done'"
            again = await cell(sessions[0], "1")
            assert again.error_kind == "environment"
            assert "cannot be reached" in again.content
            assert (await cell(sessions[1], "1")).value["result"] == "1"


@pytest.mark.slow
async def test_a_pool_of_kernels(server: Server, tmp_path: Path, environ: Mapping[str, str]) -> None:
    async with SessionPool(
        sandbox=GatewaySandbox(server.url, TOKEN), max_live=2, root=tmp_path / "pool", environ=environ
    ) as pool:
        keys = ("ada", "bob", "cyd")
        for key in keys:
            await cell(await pool.get(key), f"secret = {key!r}; open('own.txt', 'w').write(secret)")
        for key in keys:
            result = await cell(await pool.get(key), "open('own.txt').read()")
            assert result.value["result"] == repr(key)
        assert pool.status().live == 2
        assert "fresh_sandbox" in result.metadata or "fresh" in str(pool.status())


@pytest.mark.slow
async def test_our_own_kernel_tells_its_level_and_that_is_a_claim(
    remote: OpenRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "share" / "kernels" / "aisotools"
    folder.mkdir(parents=True)
    spec = json.loads((Path(aisotools.__file__).parent / "kernelspec" / "kernel.json").read_text())
    spec["argv"][0] = sys.executable
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    with jupyter_server(tmp_path / "host") as server:
        kernels = GatewaySandbox(server.url, TOKEN, kernel="aisotools")
        session = remote(sandbox=kernels)
        await session.start()
        claims = [e.payload["says"] for e in session.events if isinstance(e, CallEmitted)]
        assert "cells run in a sandbox at level" in str(claims)
        assert session.level == "limited"
        session.registry.register(_area)
        assert (await cell(session, "6 * 7")).value["result"] == "42"
        assert not (await typed(session, "sandbox_write", path="a.txt", content="x")).is_error
        assert (await typed(session, "sandbox_bash", command="ls")).value["stdout"] == "a.txt\n"
        assert (await typed(session, "_area", width=2, height=3)).value == 6
        await session.close()


@pytest.mark.slow
async def test_an_enterprise_gateway(remote: OpenRemote, tmp_path: Path) -> None:
    python = os.environ.get("AISOTOOLS_TEST_ENTERPRISE_GATEWAY")
    if not python:
        pytest.skip("AISOTOOLS_TEST_ENTERPRISE_GATEWAY names no Python that has jupyter_enterprise_gateway")
    port = free_port()
    settings = (f"port={port}", f"auth_token={TOKEN}", "ip=127.0.0.1", "unauthorized_users=[]")
    command = [python, "-m", "enterprise_gateway", *(f"--EnterpriseGatewayApp.{one}" for one in settings)]
    with serving(command, port, tmp_path / "gateway") as server:
        session = remote(url=server.url)
        session.registry.register(_area)
        assert (await cell(session, "x = 6; x * 7")).value["result"] == "42"
        assert not (await typed(session, "sandbox_write", path="a.txt", content="x")).is_error
        assert (await typed(session, "sandbox_bash", command="ls")).value["stdout"] == "a.txt\n"
        late = await cell(session, "import time; time.sleep(60)", timeout_s=0.3)
        assert late.metadata["timed_out"] is True
        assert (await cell(session, "x")).value["result"] == "6"
        await session.close()


def _kernel(session: Session) -> RemoteSandbox:
    assert isinstance(session.sandbox, RemoteSandbox)
    return session.sandbox


@pytest.mark.slow
class TestContract(SandboxContract):
    """The suite of every sandbox; only the overlapping of async tools is not had in one kernel."""

    @pytest.fixture(autouse=True)
    def _place(self, server: Server, tmp_path: Path) -> None:
        self.server, self.workspace = server, tmp_path

    def make(self, listener: RecordingListener) -> Sandbox:
        kernels = GatewaySandbox(self.server.url, TOKEN)
        return kernels(WorkerSpec(level="limited", workspace=str(self.workspace), limits=Limits()), listener)

    def test_takes_turns(self) -> None:
        pytest.skip("a kernel runs one cell at a time, async or not")
