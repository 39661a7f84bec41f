"""Many conversations over few sandboxes."""

from __future__ import annotations

import asyncio
import functools
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.events import AgentStarted
from aisotools.core.exceptions import SandboxError, SessionClosed, WorkspaceRefused
from aisotools.core.types import Approval, ApprovalRequest
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.session.ledger import verify
from aisotools.session.pool import SessionPool
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox
from tests.sandbox.rig import processes_of
from tests.waiting import HANG_S, eventually


@pytest.fixture
def options(tmp_path: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    return {"root": tmp_path / "pool", "environ": environ, "policy": Policy(mode="auto")}


async def test_one_session_per_key_with_a_workspace_of_its_own(
    options: dict[str, Any], tmp_path: Path
) -> None:
    async with SessionPool(sandbox=FakeSandbox, **options) as pool:
        a, b = await pool.get("a"), await pool.get("b")
        assert a is await pool.get("a")
        assert a is not b
        for session in (a, b):
            await session.start()
        assert {a.workspace, b.workspace} == {tmp_path / "pool" / "a", tmp_path / "pool" / "b"}
        assert pool.status().sessions == len(pool) == 2
    assert a.closed
    with pytest.raises(SessionClosed, match="pool is closed"):
        await pool.get("a")


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "key", ["../../etc", "a/b", ".", "..", "\0", "A", "x" * 300, "ключ", "key with space", "\udcff"]
)
async def test_a_strangers_key_never_leaves_the_folder(
    key: str, options: dict[str, Any], tmp_path: Path
) -> None:
    async with SessionPool(sandbox=FakeSandbox, **options) as pool:
        session = await pool.get(key)
        await session.start()
        assert session.workspace is not None
        assert session.workspace.parent == tmp_path / "pool"
        assert session.workspace.name.startswith("key-")


async def test_keys_that_differ_only_in_case_share_nothing(options: dict[str, Any]) -> None:
    async with SessionPool(sandbox=FakeSandbox, **options) as pool:
        one, other = await pool.get("abc"), await pool.get("ABC")
        await one.start()
        await other.start()
        assert str(one.workspace).lower() != str(other.workspace).lower()


async def test_key_that_names_the_folder_of_another_one_gets_one_of_its_own(options: dict[str, Any]) -> None:
    async with SessionPool(sandbox=FakeSandbox, **options) as pool:
        first = await pool.get("ключ")
        await first.start()
        assert first.workspace is not None
        other = await pool.get(first.workspace.name)
        await other.start()
        assert other.workspace != first.workspace


async def test_branch_is_no_conversation_of_a_key(options: dict[str, Any]) -> None:
    async with SessionPool(max_live=3, **options, approver=AllowAll()) as pool:
        for key in ("k", "ключ"):
            session = await pool.get(key)
            await session.call("sandbox_write", {"path": "secret", "content": key})
            branch = await session.branch()
            for _ in range(2):
                assert branch.workspace is not None
                other = await pool.get(branch.workspace.name)
                await other.start()
                assert other.workspace != branch.workspace
                assert other.workspace is not None
                assert not (other.workspace / "secret").exists()
                await pool.forget(branch.workspace.name)
                await branch.close()


async def test_branch_is_closed_with_the_pool(options: dict[str, Any]) -> None:
    state = options["environ"]["XDG_STATE_HOME"]
    async with SessionPool(max_live=2, **options, approver=AllowAll()) as pool:
        session = await pool.get("k")
        await session.call("sandbox_write", {"path": "a", "content": "1"})
        branch = await session.branch()
        inner = await branch.branch()
        assert not (await branch.call("python", {"code": "x = 1"}, origin="person")).is_error
    assert pool.status().live == 0
    assert branch.closed
    assert inner.closed
    assert [name for name in open_names() if name.startswith(state)] == []
    with pytest.raises(SessionClosed):
        await branch.call("python", {"code": "x = 1"}, origin="person")
    with pytest.raises((SessionClosed, SandboxError)):
        await session.branch()
    assert pool.status().live == 0


@pytest.mark.sample(3)
@pytest.mark.parametrize("moment_s", [0, 0.01, 0.02, 0.05, 0.1])
def test_pool_whose_loop_stops_while_it_is_closed_is_closed_on_another_one(
    options: dict[str, Any], moment_s: float
) -> None:
    pool = SessionPool(max_live=2, **options, approver=AllowAll())
    state = options["environ"]["XDG_STATE_HOME"]
    closing: list[asyncio.Task[None]] = []
    folders: list[Path] = []

    async def begin() -> None:
        for key in ("a", "b", "c"):
            session = await pool.get(key)
            assert not (await session.call("sandbox_write", {"path": "f", "content": "1"})).is_error
            assert session.workspace is not None
            folders.append(session.workspace)
        closing.append(asyncio.ensure_future(pool.close()))
        await asyncio.sleep(moment_s)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    asyncio.run(asyncio.wait_for(pool.close(), HANG_S))
    assert [name for folder in folders for name in processes_of(folder)] == []
    assert [name for name in open_names() if name.startswith(state)] == []
    assert (pool.status().live, len(pool)) == (0, 0)
    loop.run_until_complete(asyncio.wait_for(closing[0], HANG_S))
    _end_loop(loop)

    async def open_again() -> None:
        async with SessionPool(**options, approver=AllowAll()) as again:
            session = await again.get("a")
            assert (await session.undo(variables="keep")).content.startswith("Undid 1 call")

    asyncio.run(open_again())


def test_pool_is_closed_though_the_loop_ends_that_stopped_a_sandbox(options: dict[str, Any]) -> None:
    """`stop` had taken the sandbox out of its place, and nobody else knew of it."""
    pool = SessionPool(max_live=2, **options, approver=AllowAll())
    folders: list[Path] = []

    async def begin() -> None:
        session = await pool.get("a")
        assert not (await session.call("sandbox_write", {"path": "f", "content": "1"})).is_error
        assert session.workspace is not None
        folders.append(session.workspace)
        stopping = asyncio.ensure_future(pool.stop("a"))
        await asyncio.sleep(0.001)
        assert not stopping.done()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    asyncio.run(asyncio.wait_for(pool.close(), HANG_S))
    assert processes_of(folders[0]) == []
    _end_loop(loop)


def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=HANG_S))
    loop.close()


async def test_call_that_waits_for_a_place_is_ended_with_the_pool(options: dict[str, Any]) -> None:
    assert await _end_waiting_calls(options, "1", 1) == set()


@pytest.mark.parametrize("calls", [1, 3])
async def test_call_that_the_pool_has_not_run_any_more_is_no_step(
    options: dict[str, Any], calls: int
) -> None:
    run = await _end_waiting_calls(options, "open('f', 'w')", calls)
    async with SessionPool(**options, approver=AllowAll()) as again:
        session = await again.get("b")
        await session.start()
        history: Any = session.history
        assert history.recovered == ()
        assert {step.call_id for step in history._checkpoints.steps} == run


async def _end_waiting_calls(options: dict[str, Any], code: str, calls: int) -> set[str]:
    """Close a pool in which so many calls wait. Return those that got the place and have run all the same."""
    pool = SessionPool(max_live=1, wait_s=600, **options, approver=AllowAll())
    first, second = await pool.get("a"), await pool.get("b")
    busy = asyncio.create_task(first.run_cell("import time; time.sleep(600)"))
    await eventually(lambda: first.sandbox is not None and first.sandbox.status().alive)
    waiting = [asyncio.create_task(second.run_cell(code)) for _ in range(calls)]
    await eventually(lambda: pool.status().waiting == calls)
    await asyncio.wait_for(pool.close(), HANG_S)
    assert (await busy).is_error
    return {call.result().metadata["call_id"] for call in waiting if not (await call).is_error}


@pytest.mark.parametrize("what", ["a call", "a question"])
async def test_close_ends_calls_of_a_conversation_that_is_being_parked(
    options: dict[str, Any], what: str
) -> None:
    class Silent:
        def __init__(self) -> None:
            self.asked = asyncio.Event()

        async def ask(self, request: ApprovalRequest) -> Approval:
            self.asked.set()
            await asyncio.get_running_loop().create_future()
            raise AssertionError

    approver = Silent()
    pool = SessionPool(max_live=2, **options, approver=approver if what == "a question" else AllowAll())
    session = await pool.get("k")
    await session.call("sandbox_write", {"path": "a", "content": "1"})
    if what == "a question":
        call = asyncio.create_task(session.call("python", {"code": "1"}, ask=True))
        await asyncio.wait_for(approver.asked.wait(), HANG_S)
    else:
        call = asyncio.create_task(session.run_cell("import time; time.sleep(600)"))
        await eventually(lambda: session.sandbox is not None and session.sandbox.status().alive)
    pool._park(session)
    await asyncio.sleep(0)
    assert pool._parking
    await asyncio.wait_for(pool.close(), HANG_S)
    assert (await call).is_error


@pytest.mark.parametrize("wrong", [{"max_live": 0}, {"idle_s": -1}, {"wait_s": "x"}, {"max_live": True}])
def test_numbers_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use a number above 0"):
        SessionPool(**wrong)


def test_options_of_single_sessions_cannot_be_given_to_a_pool() -> None:
    with pytest.raises(TypeError, match="workspace: each session"):
        SessionPool(workspace="x")


def test_an_argument_that_no_session_has_is_refused_with_what_would_do() -> None:
    with pytest.raises(TypeError, match=r"^gateway: a session has no such argument\. .* page of `Session`"):
        SessionPool(gateway="http://localhost")


async def test_keys_are_text(options: dict[str, Any]) -> None:
    async with SessionPool(sandbox=FakeSandbox, **options) as pool:
        with pytest.raises(ValueError, match="give the conversation a key"):
            await pool.get("")
        with pytest.raises(TypeError, match="a key is text"):
            await pool.get(5)  # type: ignore[arg-type]  # what a person might give


async def test_idle_sandboxes_stop_and_a_session_can_be_forgotten(options: dict[str, Any]) -> None:
    async with SessionPool(idle_s=0.05, **options) as pool:
        a = await pool.get("a")
        await a.run_cell("1")
        await eventually(lambda: pool.status().live == 0)
        assert not a.status().alive
        await pool.forget("a")
        assert a.closed
        assert "a" not in pool
        again = await pool.get("a")
        assert again is not a
        assert not (await again.run_cell("1")).is_error


async def test_busy_sandboxes_are_not_stopped_and_the_wait_has_an_end(options: dict[str, Any]) -> None:
    async with SessionPool(max_live=1, wait_s=0.2, idle_s=0.05, **options) as pool:
        a, b = await pool.get("a"), await pool.get("b")
        code = "import os, time; open('began', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)"
        long = asyncio.ensure_future(a.run_cell(f"{code}\nprint('done')"))
        assert a.workspace is not None
        await eventually((a.workspace / "began").exists)
        refused = await b.run_cell("1")
        assert (refused.is_error, refused.error_kind) == (True, "environment")
        assert "raise max_live" in refused.content
        (a.workspace / "go").touch()
        assert "done" in (await long).content


async def test_conversations_at_once_never_meet(options: dict[str, Any]) -> None:
    async with SessionPool(max_live=3, **options) as pool:

        async def converse(number: int) -> None:
            session = await pool.get(f"c{number}")
            await session.run_cell(f"open('secret', 'w').write('{number}')")
            for _ in range(2):
                result = await session.run_cell("import os; print(open('secret').read(), os.listdir('.'))")
                assert result.content.splitlines()[-1].split()[0] == str(number)
                assert "['secret']" in result.content

        await asyncio.gather(*(converse(number) for number in range(12)))
        assert pool.status().live <= 3


async def test_a_pool_belongs_to_one_loop(options: dict[str, Any]) -> None:
    pool = SessionPool(sandbox=FakeSandbox, **options)
    await pool.get("a")

    def elsewhere() -> str:
        try:
            asyncio.run(pool.get("a"))
        except Exception as error:
            return str(error)
        return "none"

    assert "another event loop" in await asyncio.to_thread(elsewhere)
    await pool.close()


async def test_a_folder_of_a_pool_is_no_link(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "pool").symlink_to("disk")  # a person's
    (tmp_path / "pool" / "demo").symlink_to(tmp_path / "private")
    async with SessionPool(sandbox=FakeSandbox, **options) as pool:
        with pytest.raises(WorkspaceRefused, match="symbolic link") as refusal:
            await pool.get("demo")
        assert str(tmp_path / "private") in str(refusal.value)
        session = await pool.get("other")
        await session.start()
        assert session.workspace == tmp_path / "disk" / "other"


def open_names() -> list[str]:
    """The files that this process has open."""
    names = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder itself
            names.append(str(link.readlink()))
    return names


async def test_parked_conversation_has_one_file_open_and_wakes_up_as_it_was(options: dict[str, Any]) -> None:
    state = options["environ"]["XDG_STATE_HOME"]

    def held() -> list[str]:
        """Which files of conversations are open, but for the locks that all of them share."""
        return [name for name in open_names() if name.startswith(state) and not name.endswith(".lock")]

    async with SessionPool(max_live=3, **options) as pool:
        before = len(open_names())
        for number in range(12):
            session = await pool.get(f"c{number}")
            for content in ("one", "two"):
                result = await session.run_cell(f"_ = open('f', 'w').write('{content} {number}')")
                assert not result.is_error
        for number in range(12):
            await pool.stop(f"c{number}")
        await eventually(lambda: held() == [])
        assert len(open_names()) - before <= 12 + 8, "one each, and the locks and the fork server of all"
        for number in range(12):
            session = await pool.get(f"c{number}")
            assert (await session.changes()).added == ("f",)
            undone = await session.undo(variables="keep")
            assert not undone.is_error, undone.content
            assert session.workspace is not None
            assert (session.workspace / "f").read_text() == f"one {number}"
            assert not (await session.run_cell("_ = open('f', 'w').write('three')")).is_error
            assert session.log_path is not None
            logs = session.log_path
            await pool.forget(f"c{number}")
            assert verify(logs).ok


def _record_on(session: Session, loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(functools.partial(session.record, AgentStarted, agent_id="1", model="m"))


_OPERATIONS: dict[str, Callable[[Session], Awaitable[object]]] = {
    "undo": lambda session: session.undo(variables="keep"),
    "redo": lambda session: session.redo(variables="keep"),
    "refused undo": lambda session: session.undo(),
    "changes": lambda session: session.changes(),
    "unknown tool": lambda session: session.call("no_such_tool"),
    "denied call": lambda session: session.call("web_fetch", {"url": "ftp://x"}),
    "record": lambda session: asyncio.to_thread(_record_on, session, asyncio.get_running_loop()),
    "branch": lambda session: session.branch(),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("operation", _OPERATIONS)
async def test_parked_conversation_has_one_file_open_after_whatever_it_does(
    options: dict[str, Any], operation: str
) -> None:
    state = options["environ"]["XDG_STATE_HOME"]

    def held() -> list[str]:
        return [name for name in open_names() if name.startswith(state) and not name.endswith(".lock")]

    async with SessionPool(max_live=3, idle_s=0.2, **options) as pool:
        session = await pool.get("k")
        for content in ("one", "two"):
            assert not (await session.run_cell(f"_ = open('f', 'w').write('{content}')")).is_error
        if operation == "redo":
            assert not (await session.undo(variables="keep")).is_error
        await pool.stop("k")
        await eventually(lambda: held() == [] and pool.status().live == 0)
        await _OPERATIONS[operation](session)
        await eventually(lambda: held() == [] and pool.status().live == 0)
        assert not (await session.run_cell("_ = open('f', 'w').write('three')")).is_error
        assert held() != []
        assert session.log_path is not None
    assert verify(session.log_path).ok


async def test_calls_that_run_while_their_sandbox_is_stopped_are_waited_for(options: dict[str, Any]) -> None:
    async with SessionPool(sandbox=FakeSandbox, **options) as pool:
        session = await pool.get("a")
        await session.call("sandbox_write", {"path": "a", "content": "1"})
        session._ticker.__enter__()  # as a call does
        await pool.stop("a")
        await asyncio.sleep(0)
        history: Any = session.history
        assert history._checkpoints.store._parked is None, "a call runs"
        session._ticker.__exit__()
        await eventually(lambda: history._checkpoints.store._parked is not None)
        assert not (await session.undo()).is_error


async def test_replaced_files_of_a_parked_conversation_are_not_used(options: dict[str, Any]) -> None:
    async with SessionPool(sandbox=FakeSandbox, **options) as pool:
        session = await pool.get("a")
        await session.call("sandbox_write", {"path": "a", "content": "1"})
        await pool.stop("a")
        history: Any = session.history
        store = history._checkpoints.store
        await eventually(lambda: store._parked is not None)
        chain = store.folder / "chain"
        chain.write_bytes(chain.read_bytes() + b"{}\n")
        refused = await session.call("sandbox_write", {"path": "a", "content": "2"})
        assert "another program has replaced or changed it" in refused.content
        assert session.log_path is not None
        await session.park()
        session.log_path.write_bytes(session.log_path.read_bytes() + b"{}\n")
        refused = await session.call("sandbox_write", {"path": "a", "content": "2"})
        assert "another program has changed it" in refused.content


FEW_FILES = """
import asyncio, os, resource, sys
from pathlib import Path
from aisotools.core.exceptions import UsageError
from aisotools.policy.rules import Policy
from aisotools.session.pool import SessionPool
from aisotools.session.pooled_sandbox import PooledSandbox

top = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4096))

async def main():
    environ = {"HOME": str(top), "XDG_STATE_HOME": str(top / "state")}
    options = {"root": top / "pool", "environ": environ, "policy": Policy(mode="auto")}
    async with SessionPool(max_live=1, **options) as pool:
        try:
            for number in range(200):
                session = await pool.get(f"c{number}")
                result = await session.run_cell("_ = open('f', 'w').write('1')")
                assert not result.is_error, (number, result.content)
        except UsageError as error:
            print(number, error)
        for key in ("c0", f"c{number - 1}"):
            session = await pool.get(key)
            result = await session.run_cell("_ = open('f', 'w').write('2')")
            assert not result.is_error, result.content
            assert not (await session.undo()).is_error
        for number in range(4):  # one that is live and has undone something has some more open
            await pool.forget(f"c{number}")
        await (await pool.get("another")).run_cell("1")

asyncio.run(main())
"""


def test_a_pool_without_files_refuses_with_the_limit_and_its_cause(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FEW_FILES, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    number, _, message = ended.stdout.partition(" ")
    assert int(number) > 50
    assert re.search(r"this process has \d+ files open, may have 200, and a call needs up to 64", message)
    assert "`ulimit -n`" in message
