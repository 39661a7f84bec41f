"""A session's life with fakes: opening, closing, who may use it from where, and what it refuses."""

from __future__ import annotations

import asyncio
import gc
import os
import selectors
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from aisotools.builtin.files import sandbox_read
from aisotools.core.events import SandboxStarted, SessionEnded
from aisotools.core.exceptions import (
    LedgerError,
    LevelUnavailable,
    SandboxError,
    SessionClosed,
    UsageError,
    WorkspaceError,
    WorkspaceRefused,
)
from aisotools.core.protocols import ToolContext
from aisotools.core.sandboxes import SandboxListener, SandboxStatus
from aisotools.core.types import Approval, ApprovalRequest, Effect, Facts, ToolResult
from aisotools.policy.approvers import AllowAll, ScriptedApprover
from aisotools.policy.rules import Policy
from aisotools.sandbox.confinement.detect import Detection
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session import session as session_module
from aisotools.session.ledger import verify
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.tools.adapter import renamed_tool
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry
from aisotools.workspace.lock import state_folder
from tests.conftest import OpenSession
from tests.pooled import local_sandbox
from tests.sandbox.rig import processes_of
from tests.waiting import HANG_S, eventually, loop_turns, process_state


def reading(name: str = "mock", **options: Any) -> MockTool:
    return MockTool(name, effect=Effect.READ_ONLY, **options)


class Limited(FakeSandbox):
    """A machine without Landlock."""

    @staticmethod
    def detect() -> Detection:
        return Detection("limited", ())


class Unsound(FakeSandbox):
    """A machine on which nothing starts."""

    async def start(self) -> SandboxStatus:
        raise SandboxError("No worker could be started: out of processes.")

    async def call(self, request: Any) -> ToolResult:
        raise SandboxError("No worker could be started: out of processes.")


# ---- what a session is given


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"registry": [MockTool()]}, TypeError, r"registry=\[<MockTool .*give a ToolRegistry"),
        ({"policy": "safe"}, TypeError, r"policy='safe': give a Policy, such as Policy\(mode='safe'\)"),
        ({"limits": {"open_files": 5}}, TypeError, "give a Limits"),
        ({"approver": AllowAll}, TypeError, r"give an approver, such as AllowAll\(\)"),
        ({"approver": "me"}, TypeError, "give an object with `async def ask"),
        ({"workspace": ""}, ValueError, "workspace=''"),
        ({"read_only": "/tmp"}, TypeError, r"read_only='/tmp': give a list of paths"),
        ({"read_only": ["/no/such"]}, UsageError, "'/no/such' does not exist"),
        ({"read_only": [""]}, UsageError, "read_only: a path is empty"),
        ({"session_key": 5}, TypeError, "session_key=5: give a str, such as 'lesson-1'"),
        ({"output_caps": 5}, TypeError, r"output_caps=5: give a OutputCaps, such as OutputCaps\(...\)"),
        ({"allow_protected": 5}, UsageError, r"allow_protected=5: give a list of names"),
    ],
)
def test_wrong_options_are_reported_at_once(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Session(**options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"level": "tight"}, ValueError, "level is 'tight', which is not a level"),
        ({"level": "confined", "min_level": "isolated"}, ValueError, "weaker than min_level"),
        ({"min_level": "isolated"}, LevelUnavailable, "does not hold on this machine"),
        ({"sandbox": Limited}, LevelUnavailable, 'choose level="limited" knowingly'),
        ({"sandbox": Limited, "level": "limited", "policy": Policy(mode="auto")}, UsageError, "Mode auto"),
    ],
)
async def test_a_level_that_is_not_to_be_had(
    open_session: OpenSession, tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    session = open_session(**options)
    with pytest.raises(error, match=message):
        await session.call("file", {"operation": "list"})
    assert not (tmp_path / "workspace").exists(), "nothing was made"
    assert session.level == ""


async def test_a_fake_needs_no_fork_server(open_session: OpenSession) -> None:
    from aisotools.sandbox.process import spawn

    before = spawn._server
    assert (await open_session(reading()).call("mock")).content == "done"
    assert spawn._server is before


async def test_a_factory_without_detect_is_tried_on_this_machine(open_session: OpenSession) -> None:
    made: list[Any] = []

    def factory(wanted: Any, listener: Any) -> FakeSandbox:
        made.append(wanted)
        return FakeSandbox(wanted, listener)

    session = open_session(reading(), sandbox=factory, limits=Limits(open_files=100), read_only=["/usr"])
    await session.start()
    assert session.level == made[0].level
    assert made[0].workspace == str(session.workspace)
    assert (made[0].limits.open_files, made[0].readable) == (100, ("/usr",))


# ---- its life


async def test_from_opening_to_closing(tmp_path: Path, environ: Mapping[str, str]) -> None:
    session = Session(
        tmp_path / "w", ToolRegistry([reading()]), session_key="k", sandbox=FakeSandbox, environ=environ
    )
    assert repr(session) == f"<Session k: not open yet, 0 calls, {tmp_path / 'w'}>"
    assert (session.level, session.status().alive, session.closed) == ("", False, False)
    assert not (tmp_path / "w").exists()
    async with session as opened:
        assert opened is session
        assert session.level == "confined"
        assert session.workspace == tmp_path / "w"
        await session.call("mock")
        status = session.status()
        assert (status.level, status.alive, status.calls, status.generation) == ("confined", True, 1, 1)
        assert status.workspace == str(tmp_path / "w")
        assert repr(session) == f"<Session k: confined, 1 calls, {tmp_path / 'w'}>"
    assert session.closed
    assert repr(session) == f"<Session k: closed, 1 calls, {tmp_path / 'w'}>"
    assert not session.status().alive
    await session.close()
    assert [event.kind for event in session.events] == [
        "sandbox_started",
        "call_requested",
        "call_decided",
        "call_started",
        "call_finished",
        "session_ended",
    ]
    assert isinstance(session.events[-1], SessionEnded)


async def test_folders_of_modules_on_a_slow_disk_hold_up_nothing(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO stands for a file that is not there yet: reading it takes until this loop has written it."""
    slow = tmp_path / "slow-packages"
    slow.mkdir()
    os.mkfifo(slow / "slow.pth")
    written = 0

    async def write() -> None:
        nonlocal written
        while True:
            with suppress(OSError):  # nobody reads it just now
                os.close(os.open(slow / "slow.pth", os.O_WRONLY | os.O_NONBLOCK))
                written += 1
            await asyncio.sleep(0)

    writing = asyncio.ensure_future(write())
    try:
        monkeypatch.syspath_prepend(slow)
        async with Session(tmp_path / "workspace", environ=environ, approver=AllowAll()) as session:
            opened = written
            assert opened
            monkeypatch.syspath_prepend(tmp_path / "more")
            assert not (await session.run_cell("1 + 1", origin="person")).is_error
            looked = written
            assert looked > opened, "places of modules have changed, so they are looked at again"
            await session.restart()
            assert written > looked
    finally:
        writing.cancel()


async def test_a_session_opens_itself_at_the_first_call(open_session: OpenSession) -> None:
    session = open_session(reading())
    assert (await session.call("mock")).content == "done"
    assert session.level == "confined"


async def test_many_first_calls_open_it_once(open_session: OpenSession) -> None:
    session = open_session(reading(runs_in="sandbox"))
    results = await asyncio.gather(*(session.call("mock") for _ in range(8)))
    assert [r.content for r in results] == ["done"] * 8
    assert sum(isinstance(event, SandboxStarted) for event in session.events) == 1


@pytest.mark.parametrize("use", ["start", "call", "restart", "run_cell"])
async def test_a_closed_session_says_so(open_session: OpenSession, use: str) -> None:
    session = open_session(session_key="mine")
    await session.start()
    await session.close()
    uses: dict[str, Callable[[], Any]] = {
        "start": session.start,
        "restart": session.restart,
        "call": lambda: session.call("file", {}),
        "run_cell": lambda: session.run_cell("1"),
    }
    with pytest.raises(SessionClosed, match=r"Session mine is closed\. Open a new one"):
        await uses[use]()
    await session.interrupt()


async def test_one_that_was_never_opened_can_be_closed(open_session: OpenSession) -> None:
    session = open_session()
    await session.close()
    with pytest.raises(SessionClosed):
        await session.start()


class Waiting:
    """An approver that never answers."""

    def __init__(self, standing: asyncio.Event) -> None:
        self.standing = standing

    async def ask(self, request: Any) -> Any:
        self.standing.set()
        await asyncio.sleep(30)


async def test_closing_ends_what_runs(open_session: OpenSession) -> None:
    begun = [asyncio.Event(), asyncio.Event()]

    async def wait(number: int) -> str:
        begun[number].set()
        await asyncio.sleep(30)
        return "never"

    session = open_session(
        reading("host", result=lambda a, c: wait(0)),
        reading("inside", result=lambda a, c: asyncio.sleep(30), runs_in="sandbox"),
        MockTool("asked"),
        approver=Waiting(begun[1]),
    )
    running = [asyncio.ensure_future(session.call(name)) for name in ("host", "inside", "asked")]
    await asyncio.gather(*(event.wait() for event in begun))
    await session.close()
    host, inside, asked = await asyncio.gather(*running)
    assert host.metadata["stopped"] is True
    assert inside.error_kind == "environment"
    assert asked.error_kind == "denied"


async def test_a_host_tool_cannot_call_on_after_closing(open_session: OpenSession) -> None:
    begun = asyncio.Event()
    outcome: list[ToolResult] = []

    async def outer(arguments: Any, context: ToolContext) -> str:
        begun.set()
        try:
            await asyncio.sleep(30)
        finally:
            assert context.services is not None
            outcome.append(await context.services.call("inner", {}))
        return "never"

    inner = reading("inner")
    session = open_session(reading("outer", result=outer), inner)
    calling = asyncio.ensure_future(session.call("outer"))
    await begun.wait()
    await session.close()
    await calling
    assert inner.calls == []
    assert [one.error_kind for one in outcome] == ["environment"]
    assert "the session was closed" in outcome[0].content


async def test_closing_while_it_opens_lets_go_of_everything(
    open_session: OpenSession, tmp_path: Path
) -> None:
    trying, go_on = threading.Event(), threading.Event()

    class Slow(FakeSandbox):
        @staticmethod
        def detect() -> Detection:
            trying.set()
            go_on.wait(10)
            return Detection("confined", ())

    session = open_session(reading(), sandbox=Slow)
    calling = asyncio.ensure_future(session.call("mock"))
    await asyncio.to_thread(trying.wait, 10)
    await session.close()
    go_on.set()
    with pytest.raises(SessionClosed, match="was closed while it opened"):
        await calling
    assert not (tmp_path / "workspace").exists()


@pytest.mark.parametrize("act", ["start", "restart"])
async def test_closing_while_something_else_waits_for_the_worker_is_named_as_the_reason(
    open_session: OpenSession, act: str
) -> None:
    waiting, ended = asyncio.Event(), asyncio.Event()

    class Slow(FakeSandbox):
        async def start(self) -> SandboxStatus:
            waiting.set()
            await ended.wait()
            raise SandboxError("The worker did not start: the session was closed.")

        async def restart(self) -> SandboxStatus:
            return await self.start()

        async def close(self) -> None:
            ended.set()
            await super().close()

    session = open_session(reading(), sandbox=Slow)
    acting = asyncio.ensure_future(getattr(session, act)())
    await waiting.wait()
    await session.close()
    with pytest.raises(SessionClosed, match="was closed meanwhile"):
        await acting


async def test_a_worker_that_does_not_start_is_no_closed_session(open_session: OpenSession) -> None:
    class Broken(FakeSandbox):
        async def start(self) -> SandboxStatus:
            raise SandboxError("The worker did not start: no room.")

    session = open_session(reading(), sandbox=Broken)
    with pytest.raises(SandboxError, match="no room"):
        await session.start()


@pytest.mark.parametrize("ends", ["closed", "cancelled"])
async def test_ending_while_the_workspace_is_looked_at_lets_go_of_it(
    tmp_path: Path, environ: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    slow = tmp_path / "slow-packages"
    slow.mkdir()
    os.mkfifo(slow / "slow.pth")
    monkeypatch.syspath_prepend(slow)
    session = Session(tmp_path / "w", ToolRegistry([reading()]), sandbox=FakeSandbox, environ=environ)
    starting = asyncio.ensure_future(session.start())

    def write() -> bool:
        try:
            os.close(os.open(slow / "slow.pth", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False  # nobody reads it just now
        return True

    await eventually((tmp_path / "w").exists)
    if ends == "closed":
        await session.close()
    else:
        starting.cancel()

    def is_over() -> bool:
        write()
        return starting.done()

    await eventually(is_over)
    if ends == "closed":
        with pytest.raises(SessionClosed):
            await starting
    else:
        assert starting.cancelled()
        await session.close()
    monkeypatch.undo()
    with claimed_elsewhere(tmp_path / "w", environ) as (_, held):
        assert held


async def test_a_sandbox_that_does_not_start(open_session: OpenSession) -> None:
    session = open_session(reading(runs_in="sandbox"), reading("host"), sandbox=Unsound)
    result = await session.call("mock")
    assert result.content == "No worker could be started: out of processes."
    assert (result.error_kind, result.recoverable) == ("environment", False)
    assert (await session.call("host")).content == "done", "the host's tools work on"


@contextmanager
def claimed_elsewhere(folder: Path, environ: Mapping[str, str]) -> Iterator[tuple[int, bool]]:
    """The id of another process that tries to hold `folder`, and whether it does."""
    script = """
import sys
from pathlib import Path
from aisotools.workspace.lock import claim_workspace
folder, state = map(Path, sys.argv[1:])
folder.mkdir(exist_ok=True)
print(claim_workspace(folder, state).ours, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script, str(folder), str(state_folder(environ))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        yield other.pid, other.stdout.readline() == b"True\n"
        other.communicate()


async def test_a_session_that_fails_to_start_holds_nothing(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    failed = Session(tmp_path / "w", ToolRegistry([reading()]), sandbox=Unsound, environ=environ)
    with pytest.raises(SandboxError, match="out of processes"):
        await failed.__aenter__()
    assert failed.closed
    with claimed_elsewhere(tmp_path / "w", environ) as (_, held):
        assert held


class Early(FakeSandbox):
    """Notes what is asked of it, in order."""

    asked: list[str]

    def __init__(self, spec: WorkerSpec, listener: SandboxListener) -> None:
        super().__init__(spec, listener)
        type(self).asked = []

    def prepare(self) -> None:
        self.asked.append("prepare")

    def discard_prepared(self) -> None:
        self.asked.append("discard")

    async def start(self) -> SandboxStatus:
        self.asked.append("start")
        return await super().start()

    async def close(self) -> None:
        self.asked.append("close")
        await super().close()


async def test_starting_a_session_has_the_worker_get_ready_while_it_opens(open_session: OpenSession) -> None:
    session = open_session(reading(), sandbox=Early)
    await session.start()
    assert Early.asked == ["prepare", "start"]
    await session.start()
    assert Early.asked == ["prepare", "start", "start"]


async def test_a_session_that_a_call_opens_starts_no_worker_before_one_is_needed(
    open_session: OpenSession,
) -> None:
    await open_session(reading(), sandbox=Early).changes()
    assert Early.asked == []


async def test_a_session_that_cannot_be_opened_ends_the_worker_that_got_ready(
    open_session: OpenSession, environ: Mapping[str, str], tmp_path: Path
) -> None:
    ledgers = state_folder(environ) / "ledger"
    ledgers.write_text("in the way")
    fake = open_session(reading(), sandbox=Early)
    with pytest.raises(LedgerError, match="ledger"):
        await fake.start()
    assert Early.asked == ["prepare", "close"]
    real = Session(tmp_path / "w", environ=environ)
    with pytest.raises(LedgerError, match="ledger"):
        await real.start()
    assert processes_of(tmp_path / "w") == []
    await real.close()
    ledgers.unlink()
    async with Session(tmp_path / "w", environ=environ) as session:
        # The other one's worker is in no record.
        assert [event.kind for event in session.events] == ["sandbox_started"]


@pytest.mark.parametrize("ends", ["closed", "cancelled"])
async def test_ending_a_session_while_its_worker_gets_ready_leaves_nothing(
    environ: Mapping[str, str], tmp_path: Path, ends: str
) -> None:
    asked = asyncio.Event()

    class Watched(LocalSandbox):
        def prepare(self) -> None:
            super().prepare()
            asked.set()

    session = Session(tmp_path / "w", sandbox=Watched, environ=environ)
    starting = asyncio.ensure_future(session.start())
    await asked.wait()
    if ends == "closed":
        await session.close()
        with pytest.raises(SessionClosed):
            await starting
    else:
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await session.close()
    assert processes_of(tmp_path / "w") == []
    with claimed_elsewhere(tmp_path / "w", environ) as (_, held):
        assert held


async def test_a_start_that_is_cancelled_twice_holds_nothing(
    environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(FakeSandbox):
        """Takes its time to close, as one whose worker has to end first."""

        async def close(self) -> None:
            closing.set()
            await loop_turns()
            await super().close()
            closed.set()

    closing, closed = asyncio.Event(), asyncio.Event()
    session = Session(tmp_path / "w", sandbox=Slow, environ=environ)
    recording = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        recording.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(session_module, "record", never)
    starting = asyncio.ensure_future(session.start())
    await recording.wait()
    starting.cancel()
    await closing.wait()
    for _ in range(3):
        starting.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert closed.is_set()
    await session.close()
    with claimed_elsewhere(tmp_path / "w", environ) as (_, held):
        assert held


@pytest.mark.parametrize("cancels", [1, 3])
async def test_a_close_that_is_cancelled_at_any_moment_holds_nothing(
    environ: Mapping[str, str], tmp_path: Path, cancels: int
) -> None:
    class Slow(FakeSandbox):
        async def close(self) -> None:
            await loop_turns()
            await super().close()
            self.is_closed = True

        is_closed = False

    moments, turns = 0, 1  # before the first turn, nothing has begun
    while True:
        session = Session(tmp_path / f"w{moments}", ToolRegistry([reading()]), sandbox=Slow, environ=environ)
        await session.call("mock")
        sandbox = session.sandbox
        assert isinstance(sandbox, Slow)
        closing = asyncio.ensure_future(session.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        if closing.done():
            break
        for _ in range(cancels):
            closing.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert sandbox.is_closed
        with claimed_elsewhere(tmp_path / f"w{moments}", environ) as (_, held):
            assert held
        assert session.log_path is not None
        assert '"kind":"session_end' in session.log_path.read_text("utf-8").splitlines()[-1]
        moments, turns = moments + 1, turns + 1 + turns // 2
    assert moments > 4


FORKED = """
import asyncio, os, sys
from pathlib import Path
from aisotools import Session
from aisotools.core.exceptions import UsageError

async def main():
    async with Session(Path(sys.argv[1]), level=sys.argv[2]) as session:
        await session.run_cell("x = 6", origin="person")
        if not (child := os.fork()):
            status = 1
            try:
                asyncio.run(session.interrupt())
                try:
                    session.call_threadsafe('python', {'code': 'x = 1'})
                except UsageError as error:
                    print(error, flush=True)
                asyncio.run(session.close())
                status = 0
            finally:
                os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print((await session.run_cell("x * 7", origin="person")).content)
        print((await session.undo()).is_error)
    print(session.log_path)

asyncio.run(main())
"""


async def test_a_forked_process_that_closes_a_session_leaves_that_of_its_parent_alone(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path / "w"), "guarded"]
    run = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=dict(environ))
    output, _ = await asyncio.wait_for(run.communicate(), HANG_S)
    refused, closed, value, undone, ledger = output.decode().splitlines()
    assert "has lost its event loop" in refused
    assert (closed, value, undone) == ("0", "42", "False")
    assert verify(Path(ledger)).ok


async def test_a_factory_that_fails_holds_nothing(open_session: OpenSession) -> None:
    class Failing(FakeSandbox):
        def __init__(self, *_: Any) -> None:
            raise RuntimeError("no such backend")

    with pytest.raises(RuntimeError, match="no such backend"):
        await open_session(sandbox=Failing).start()
    again = open_session(reading())
    await again.start()


async def test_restart_gives_a_fresh_worker(open_session: OpenSession) -> None:
    calls = 0

    @tool(effect=Effect.READ_ONLY)
    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    session = open_session(count)
    values = [(await session.call("count")).value for _ in range(2)]
    await session.restart()
    assert [*values, (await session.call("count")).value] == [1, 2, 1]
    assert session.status().generation == 2
    assert calls == 0, "the host's own function is another one"


async def test_interrupt_without_anything_under_way(open_session: OpenSession) -> None:
    session = open_session(reading())
    await session.interrupt()
    await session.start()
    await session.interrupt()
    assert (await session.call("mock")).content == "done"


async def test_nothing_keeps_a_closed_session(tmp_path: Path, environ: Mapping[str, str]) -> None:
    session = Session(tmp_path / "w", ToolRegistry([reading()]), sandbox=FakeSandbox, environ=environ)
    async with session:
        await session.call("mock")
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


# ---- calls


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"name": 5}, TypeError, "The name of a tool is text, not int"),
        ({"name": None}, TypeError, "not NoneType"),
        (
            {"name": "mock", "origin": "robot"},
            ValueError,
            "origin='robot': use one of person, program, model",
        ),
        ({"name": "mock", "call_id": 5}, TypeError, "A call's id is text, not int"),
        ({"name": "mock", "timeout_s": 0}, ValueError, "timeout_s=0: use a number of seconds above 0"),
        ({"name": "mock", "timeout_s": -1}, ValueError, "timeout_s=-1"),
        ({"name": "mock", "timeout_s": "5"}, ValueError, "timeout_s='5'"),
        ({"name": "mock", "timeout_s": float("nan")}, ValueError, "timeout_s=nan"),
        ({"name": "mock", "timeout_s": True}, ValueError, "timeout_s=True"),
    ],
)
async def test_an_invalid_call_is_the_programs_mistake(
    open_session: OpenSession, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    session = open_session(reading())
    with pytest.raises(error, match=message):
        await session.call(**given)
    assert len(session.events) == 0


async def test_no_arguments_are_none(open_session: OpenSession) -> None:
    mock = reading()
    session = open_session(mock)
    await session.call("mock")
    await session.call("mock", {})
    assert mock.calls == [{}, {}]


async def test_each_call_gets_an_id_of_its_own(open_session: OpenSession) -> None:
    mock = reading()
    session = open_session(mock)
    for _ in range(3):
        await session.call("mock", call_id="")
    assert len({context.call_id for context in mock.contexts}) == 3


# ---- threads and loops


async def test_other_threads_call_and_wait(open_session: OpenSession) -> None:
    session = open_session(reading(result=lambda arguments, context: arguments["n"]))
    await session.start()
    results = await asyncio.gather(
        *(asyncio.to_thread(session.call_threadsafe, "mock", {"n": n}) for n in range(20))
    )
    assert [r.value for r in results] == list(range(20))


async def test_the_sessions_own_thread_is_not_blocked(open_session: OpenSession) -> None:
    session = open_session(reading())
    with pytest.raises(UsageError, match="The session is not open yet"):
        session.call_threadsafe("mock")
    await session.start()
    with pytest.raises(UsageError, match="would block the session's own loop"):
        session.call_threadsafe("mock")
    await session.close()
    with pytest.raises(SessionClosed):
        await asyncio.to_thread(session.call_threadsafe, "mock")


async def test_use_from_another_loop_is_refused_with_advice(open_session: OpenSession) -> None:
    session = open_session(reading())
    await session.start()

    for use in (session.start, session.park, session.undo, session.changes):

        def elsewhere(use: Callable[[], Coroutine[Any, Any, object]] = use) -> None:
            asyncio.run(use())

        with pytest.raises(UsageError, match=r"belongs to another event loop\. Use call_threadsafe"):
            await asyncio.to_thread(elsewhere)
    assert (await session.call("mock")).content == "done"


def test_use_after_the_loop_ended_is_refused(tmp_path: Path, environ: Mapping[str, str]) -> None:
    session = Session(tmp_path / "w", ToolRegistry([reading()]), sandbox=FakeSandbox, environ=environ)
    asyncio.run(session.start())
    with pytest.raises(UsageError, match="has lost its event loop"):
        session.call_threadsafe("mock")
    with pytest.raises(UsageError, match="belongs to another event loop"):
        asyncio.run(session.start())
    asyncio.run(session.close())


def test_the_loop_wakes_often_while_a_call_waits(tmp_path: Path, environ: Mapping[str, str]) -> None:
    # ipykernel delivers the Stop button only when its loop wakes: nothing here wakes it but the beat.
    waited: list[float] = []
    enough = asyncio.Event()

    class Watched(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            waited.append(60.0 if timeout is None else timeout)
            if len(waited) >= 8:
                enough.set()
            return super().select(timeout)

    async def scenario() -> None:
        async def wait(arguments: Any, context: Any) -> str:
            await asyncio.wait_for(enough.wait(), HANG_S)
            return "done"

        mock = reading(result=wait)
        session = Session(tmp_path / "w", ToolRegistry([mock]), sandbox=FakeSandbox, environ=environ)
        async with session:
            enough.clear()
            waited.clear()
            assert (await session.call("mock")).content == "done"
            assert max(waited) <= 0.051

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Watched())) as runner:
        runner.run(scenario())


# ---- workspaces


async def test_a_program_may_keep_all_threads_of_its_loop_waiting_for_a_session(
    open_session: OpenSession,
) -> None:
    """As frameworks do that run functions in such threads, which then call tools of a session."""
    session = open_session(MockTool(facts=Facts(writes=("a",), path_guarded=True)), approver=AllowAll())
    await session.start()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))
    calls = (asyncio.to_thread(session.call_threadsafe, "mock", {"n": n}) for n in range(6))
    results = await asyncio.wait_for(asyncio.gather(*calls), HANG_S)
    assert [result.content for result in results] == ["done"] * 6


async def test_functions_on_the_host_that_never_return_hold_up_no_other_call(
    open_session: OpenSession,
) -> None:
    go_on = threading.Event()

    @tool(runs_in="host")
    def stuck() -> str:
        """Wait for something that does not come."""
        go_on.wait(HANG_S)
        return "at last"

    changing = MockTool(facts=Facts(writes=("a",), path_guarded=True))
    session = open_session(stuck, changing, approver=AllowAll())
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    try:
        for _ in range(8):
            result = await session.call("stuck", timeout_s=0.01)
            assert result.metadata["timed_out"] is True
        assert (await session.call("mock")).content == "done"
        assert not go_on.is_set()
    finally:
        go_on.set()


async def test_two_sessions_of_one_process_share_a_workspace(open_session: OpenSession) -> None:
    one, two = (open_session(approver=AllowAll()) for _ in range(2))
    await one.call("sandbox_write", {"path": "a.txt", "content": "from one"})
    assert (await two.call("sandbox_read", {"path": "a.txt"})).value["content"] == "from one"
    await one.close()
    assert not (await two.call("sandbox_read", {"path": "a.txt"})).is_error


async def test_a_workspace_of_another_process_is_refused(
    open_session: OpenSession, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    session = open_session(reading())
    with claimed_elsewhere(tmp_path / "workspace", environ) as (pid, held):
        assert held
        with pytest.raises(WorkspaceRefused, match=f"in use by process {pid}"):
            await session.call("mock")
    assert (await session.call("mock")).content == "done", "it may be tried again"


@pytest.mark.parametrize(
    "name", ["with space", "quo'te\"s", "\u00fcn\u00efc\u00f6d\u00e9", "$(touch x)", "-rf"]
)
async def test_a_workspace_may_have_any_name(open_session: OpenSession, tmp_path: Path, name: str) -> None:
    session = open_session(workspace=tmp_path / name, approver=AllowAll())
    written = await session.call("sandbox_write", {"path": "d/\u00f6 'x'.txt", "content": "text"})
    assert not written.is_error, written.content
    assert (tmp_path / name / "d" / "\u00f6 'x'.txt").read_text() == "text"
    assert (await session.call("file", {"operation": "list", "path": "d"})).value["entries"][0]["size"] == 4


async def test_a_refused_workspace_opens_nothing(open_session: OpenSession, tmp_path: Path) -> None:
    made: list[Any] = []

    class Watched(FakeSandbox):
        def __init__(self, *given: Any) -> None:
            made.append(given)
            super().__init__(*given)

    (tmp_path / "checkout" / ".git").mkdir(parents=True)
    session = open_session(workspace=tmp_path / "checkout", sandbox=Watched)
    with pytest.raises(WorkspaceRefused, match=r"a git checkout.*A new folder below would do"):
        await session.start()
    assert made == []
    assert list((tmp_path / "checkout").iterdir()) == [tmp_path / "checkout" / ".git"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_unwritable_workspace_is_reported(open_session: OpenSession, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(WorkspaceRefused, match=r"may not read and write it\. Change its perm"):
        await open_session(workspace=folder).start()


async def test_unusable_state_folder_is_reported(open_session: OpenSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    session = open_session(environ={"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "file")})
    with pytest.raises(WorkspaceError, match="Set XDG_STATE_HOME to a folder of your own"):
        await session.start()


# ---- without a sandbox


async def test_at_limited_code_asks_and_our_own_guarded_reading_does_not(
    open_session: OpenSession, tmp_path: Path
) -> None:
    @tool(effect=Effect.READ_ONLY)
    def peek() -> int:
        return 1

    (tmp_path / "workspace").mkdir(exist_ok=True)
    (tmp_path / "workspace" / "a").write_text("text")
    reads = Facts(effect=Effect.READ_ONLY, path_guarded=True)
    claims = MockTool("claims", facts=reads, runs_in="sandbox")
    tools = [peek, claims, renamed_tool(sandbox_read, "guarded"), MockTool("python", runs_in="sandbox")]
    approver = ScriptedApprover()
    session = open_session(*tools, approver=approver, sandbox=Limited, level="limited")
    for origin in ("program", "model"):
        for name in ("peek", "python", "claims"):
            assert (await session.call(name, origin=origin)).error_kind == "denied"
        assert not (await session.call("guarded", {"path": "a"}, origin=origin)).is_error
    assert [request.level for request in approver.requests] == ["limited"] * 6
    for name in ("peek", "python", "claims"):
        assert not (await session.call(name, origin="person")).is_error
    with pytest.raises(UsageError, match="Mode auto is refused at level limited"):
        session.policy = Policy(mode="auto")
    with pytest.raises(TypeError, match="policy='plan'"):
        session.policy = "plan"  # type: ignore[assignment]  # the point


async def test_the_environment_may_consent_to_limited(
    open_session: OpenSession, environ: Mapping[str, str]
) -> None:
    consent = {**environ, "AISOTOOLS_MIN_LEVEL": "limited"}
    session = open_session(reading(), sandbox=Limited, environ=consent)
    await session.start()
    assert session.level == "limited"
    better = open_session(reading(), environ=consent)
    await better.start()
    assert better.level == "confined"


@pytest.mark.parametrize("name", ["file", "sandbox_read"])
async def test_at_limited_the_built_in_tools_read_unasked(
    open_session: OpenSession, tmp_path: Path, name: str
) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "a.txt").write_text("text")
    session = open_session(sandbox=Limited, level="limited")
    arguments = {"path": "a.txt"} | ({"operation": "read"} if name == "file" else {})
    result = await session.call(name, arguments, origin="model")
    assert not result.is_error, result.content


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("python", {"code": "1"}),
        ("sandbox_bash", {"command": "cat a.txt"}),
        ("sandbox_write", {"path": "a.txt", "content": ""}),
    ],
)
async def test_at_limited_the_other_built_in_tools_ask(
    open_session: OpenSession, name: str, arguments: dict[str, Any]
) -> None:
    session = open_session(sandbox=Limited, level="limited", approver=ScriptedApprover())
    assert (await session.call(name, arguments, origin="model")).error_kind == "denied"


@pytest.mark.parametrize("number", [0xD800, 0xDCFF, 0])
async def test_key_and_ids_may_be_any_text(
    number: int, tmp_path: Path, environ: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """They come from strangers, too: half characters can stand in no file and no message."""
    workspace, key = tmp_path / "w", chr(number)
    for _ in range(2):  # the second one reads what the first one has recorded
        async with Session(workspace, environ=environ, approver=AllowAll(), session_key=key) as session:
            call = {"code": "open('made', 'w').close(); 1 + 1"}
            result = await session.call("python", call, call_id=f"{key}1")
            assert (result.content, result.is_error) == ("2", False)
            undone = await session.undo()
            assert not undone.is_error
    assert [path.name for path in workspace.iterdir()] == []
    assert not caplog.records


async def test_second_close_of_a_session_waits_until_nothing_is_left(
    real_session: OpenSession,
) -> None:
    session = real_session(policy=Policy(mode="auto"))
    code = "import os\nif not os.fork():\n    while True: open('grows', 'a').write('x')"
    await session.run_cell(code)
    assert session.workspace is not None
    grows = session.workspace / "grows"
    await eventually(grows.exists)
    closing = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    cancelled = asyncio.ensure_future(session.close())
    await asyncio.sleep(0)
    cancelled.cancel()
    elsewhere = asyncio.to_thread(asyncio.run, session.close())
    await asyncio.gather(session.close(), elsewhere)
    assert cancelled.cancelled()
    size = grows.stat().st_size
    await closing
    assert grows.stat().st_size == size


def test_session_is_closed_on_another_loop_without_a_wait_for_its_own(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    """As a script does that calls `asyncio.run` for each step."""
    session = Session(workspace=tmp_path / "workspace", environ=environ, policy=Policy(mode="auto"))
    asyncio.run(session.start())
    sandbox = local_sandbox(session)
    worker = sandbox.worker_pid
    fired: list[float] = []

    async def close() -> None:
        loop: Any = asyncio.get_running_loop()
        call_later = loop.call_later

        def note(delay_s: float, callback: Callable[..., object], *arguments: Any, **options: Any) -> Any:
            def fire() -> None:
                fired.append(delay_s)
                callback(*arguments)

            return call_later(delay_s, fire, **options)

        loop.call_later = note
        await session.close()

    asyncio.run(close())
    assert [delay_s for delay_s in fired if delay_s > 1] == [], "what was waited for has not come"
    assert process_state(worker) == ""


async def test_session_is_closed_in_a_thread_while_a_question_is_open(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    """The start of the worker that goes with the question belongs to the session's own loop."""

    class ClosesInAThread:
        async def ask(self, request: ApprovalRequest) -> Approval:
            await asyncio.to_thread(asyncio.run, session.close())
            return Approval("deny")

    folder = tmp_path / "workspace"
    session = Session(
        workspace=folder, environ=environ, approver=ClosesInAThread(), policy=Policy(mode="safe")
    )
    assert (await session.call("python", {"code": "1"}, ask=True)).is_error
    await session.close()
    sandbox = local_sandbox(session)
    assert not sandbox.status().alive
    await eventually(lambda: not processes_of(folder))


async def test_session_that_is_closed_in_a_thread_is_ended_on_its_own_loop(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    """What it ends belongs to that loop: on two at once, records got lost and an end was never heard of."""
    ended_on: list[asyncio.AbstractEventLoop] = []

    class Noting(FakeSandbox):
        async def close(self) -> None:
            ended_on.append(asyncio.get_running_loop())
            await super().close()

    for _ in range(3):
        session = Session(workspace=tmp_path / "workspace", environ=environ, sandbox=Noting)
        await session.start()
        closing = [asyncio.to_thread(asyncio.run, session.close()) for _ in range(3)]
        await asyncio.gather(session.call("python", {"code": "1"}), *closing)
    assert ended_on == [asyncio.get_running_loop()] * 3


@pytest.mark.parametrize("moment", range(4))
async def test_session_whose_own_loop_stops_while_it_is_closed_in_a_thread_is_ended_here(
    tmp_path: Path, environ: Mapping[str, str], moment: int
) -> None:
    home = asyncio.new_event_loop()
    running = threading.Thread(target=home.run_forever)
    running.start()
    folder = tmp_path / "workspace"
    session = Session(workspace=folder, environ=environ, policy=Policy(mode="auto"), session_key="one")
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(session.start(), home))
    closing = asyncio.create_task(session.close())
    await asyncio.wait([closing], timeout=0.004 * moment)
    home.call_soon_threadsafe(home.stop)
    await asyncio.wait_for(closing, HANG_S)
    await asyncio.to_thread(running.join)
    await eventually(lambda: not processes_of(folder))
    await asyncio.wait_for(session.close(), HANG_S)
    again = Session(workspace=folder, environ=environ, policy=Policy(mode="auto"), session_key="one")
    assert not (await again.call("sandbox_bash", {"command": "true"}, origin="person")).is_error
    await again.close()
    for task in asyncio.all_tasks(home):
        task.cancel()
    await asyncio.to_thread(home.run_until_complete, asyncio.sleep(0.01))
    home.close()


async def test_sandbox_is_ended_although_the_gate_cannot_be_closed(open_session: OpenSession) -> None:
    session = open_session()
    await session.start()

    async def fail() -> None:
        raise RuntimeError("it cannot be closed")

    session._gate.close = fail  # type: ignore[method-assign]  # nothing else makes it fail here
    with pytest.raises(RuntimeError, match="cannot be closed"):
        await session.close()
    assert session.sandbox is not None
    assert not session.sandbox.status().alive


def test_session_is_closed_though_its_loop_has_ended_during_a_restart(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    """What ends the old worker was left on that loop, and was waited for without end."""
    sessions: list[Session] = []

    async def open_and_leave() -> None:
        session = Session(tmp_path / "workspace", environ=environ, approver=AllowAll())
        sessions.append(session)
        await session.start()
        restarting = asyncio.ensure_future(session.restart())
        sandbox: Any = session.sandbox
        await eventually(lambda: any(sandbox._connections.values()))
        assert not restarting.done()

    asyncio.run(open_and_leave())
    asyncio.run(asyncio.wait_for(sessions[0].close(), HANG_S))


@pytest.mark.parametrize("turns", [1, 2, 5, 20])
@pytest.mark.parametrize("together", [False, True])
async def test_stop_reaches_the_first_call_while_its_session_opens(
    open_session: OpenSession, turns: int, *, together: bool
) -> None:
    answered = asyncio.Event()

    class Waiting:
        async def ask(self, request: ApprovalRequest) -> Approval:
            await answered.wait()
            return Approval("approve")

    mock = MockTool("write", facts=Facts(writes=("a",)))
    session = open_session(mock, approver=Waiting())
    calling = asyncio.ensure_future(
        session.call_many([("write", {})]) if together else session.call("write", ask=True)
    )
    await loop_turns(turns)
    await session.interrupt()
    results: Any = await asyncio.wait_for(calling, HANG_S)
    (result,) = results if together else [results]
    assert "interrupted" in result.content.lower()
    assert mock.calls == []
    answered.set()
    assert not (await session.call("write")).is_error, "the next one is another one"
