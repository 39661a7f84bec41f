"""Protected files while something is left running: nobody has to make a call to have them put back."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from aisotools.core.events import ProtectedFilesRestored
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Decision, Effect, Json, ToolResult
from aisotools.policy.rules import Policy, Rule
from aisotools.session import protection
from aisotools.session.session import Session
from aisotools.workspace.protected import ProtectedFiles
from tests.conftest import OpenSession
from tests.session.idle import idle
from tests.session.test_protection_guard import LATER, Idling, evil, idling, python, session
from tests.waiting import HANG_S, eventually, wait_until

__all__ = ["idling", "session"]

ROOT = Path(__file__).parents[2]


def records(session: Session) -> list[ProtectedFilesRestored]:
    return [event for event in session.events if isinstance(event, ProtectedFilesRestored)]


def workspace_of(session: Session) -> Path:
    assert session.workspace is not None
    return session.workspace


@pytest.mark.parametrize("code", LATER.values(), ids=LATER)
async def test_changes_by_what_was_left_running_are_put_back_without_another_call(
    session: Session, code: str
) -> None:
    first = await session.call("python", {"code": code}, origin="person")
    assert not first.is_error, first.content
    await idle(session)
    (workspace_of(session) / "go").touch()
    await eventually(lambda: records(session))
    assert not evil(session)
    (event,) = records(session)
    assert event.count == 1
    assert "'conftest.py' (new; taken away" in str(event)
    assert session.log_path is not None
    assert "protected_files_restored" in session.log_path.read_text("utf-8")
    refused = await session.call("python", {"code": "1"}, origin="person")
    assert "conftest.py" in refused.content, "whoever calls next reads it as well"
    assert not (await session.call("python", {"code": "1"}, origin="person")).is_error


async def test_changes_by_a_background_task_are_put_back_again_and_again(session: Session) -> None:
    command = "n=$(echo conf); while :; do echo evil > ${n}test.py; sleep 0.05; done"
    started = await session.call("sandbox_bash", {"command": command, "background": True}, origin="person")
    assert "runs in the background" in started.content
    for _ in range(3):
        await eventually(lambda: evil(session))
        await eventually(lambda: not evil(session))
    await eventually(lambda: records(session))
    await session.restart()
    await eventually(lambda: not evil(session))


class Reading:
    """A tool of the host that only reads, until it is allowed to end."""

    name = "reading"
    description = "Wait."

    def __init__(self) -> None:
        self.began, self.over = asyncio.Event(), asyncio.Event()

    def parameters_schema(self) -> Mapping[str, Json]:
        return {"type": "object", "properties": {}}

    def classify(self, arguments: Mapping[str, Json]) -> Effect:
        return Effect.READ_ONLY

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        self.began.set()
        await self.over.wait()
        return ToolResult.text("done")


def watch_by_a_clock(
    idling: Idling, monkeypatch: pytest.MonkeyPatch, on_look: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Have a call end, after which nobody knows whether the sandbox runs, by a clock that stands still.

    Returns:
        How long the watch has wanted to wait each time, in seconds; and the clock, a list of one number.
    """
    waits: list[float] = []
    clock_s = [time.monotonic()]

    class Waiting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0.0)
            return super().wait(0.01)

    def look(*_: object, **__: object) -> tuple[()]:
        on_look()
        return ()

    clock = SimpleNamespace(monotonic=lambda: clock_s[0], time=time.time)
    monkeypatch.setattr(protection, "time", clock)
    idling.protection._wake = Waiting()
    monkeypatch.setattr(idling.protection._files, "restore", look)
    idling.switches = None
    idling.start_call()
    idling.end_call()
    return waits, clock_s


async def test_looks_come_as_often_as_readme_says(idling: Idling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first look after a call, and from then on, by a clock that stands still."""
    looks: list[int] = []
    waits, clock_s = watch_by_a_clock(idling, monkeypatch, lambda: looks.append(len(waits)))
    await eventually(lambda: len(waits) >= 4)
    assert not looks
    clock_s[0] += 1
    await eventually(lambda: len(looks) >= 4)
    assert max(waits) <= protection.WATCH_S


async def test_files_are_put_back_while_a_call_that_only_reads_goes_on(session: Session) -> None:
    tool = Reading()
    session.registry.register(tool)
    await python(session, LATER["a daemon"])
    await idle(session)
    reading = asyncio.create_task(session.call("reading", {}, origin="person", timeout_s=HANG_S))
    await tool.began.wait()
    (workspace_of(session) / "go").touch()
    await eventually(lambda: records(session))
    assert not evil(session)
    tool.over.set()
    assert not (await reading).is_error


async def test_files_are_put_back_while_the_loop_of_the_program_stands_still(session: Session) -> None:
    """A cell of a notebook computes on the loop of its session."""
    await python(session, LATER["a daemon"])
    await idle(session)
    (workspace_of(session) / "go").touch()
    # That the loop stands still meanwhile is the point.
    wait_until((workspace_of(session) / "done").exists)
    wait_until(lambda: not evil(session))


async def test_files_that_a_call_may_write_are_left_alone_while_it_runs(
    real_session: OpenSession, tmp_path: Path
) -> None:
    """With something left running, the watch looks; but it takes nothing from under a call that changes."""
    notebook = tmp_path / "workspace" / "a.ipynb"
    notebook.parent.mkdir()
    notebook.write_text("{}")
    session = real_session(policy=Policy(mode="auto"), level="confined")
    busy = "def f():\n    while True: time.sleep(0.01)\nthreading.Thread(target=f).start()"
    busy = f"import threading, time\n{busy}"
    await python(session, busy)
    written = await session.call("sandbox_write", {"path": "a.ipynb", "content": "[]"}, origin="person")
    if written.is_error:  # it wants to have been read
        await session.call("sandbox_read", {"path": "a.ipynb"}, origin="person")
        written = await session.call("sandbox_write", {"path": "a.ipynb", "content": "[]"}, origin="person")
    assert not written.is_error, written.content
    await idle(session)
    assert notebook.read_text() == "[]"
    assert not records(session)


# ---- what is a person's


@pytest.mark.parametrize("way", ["changes", "undo", "restart"])
async def test_an_edit_is_a_persons_though_the_host_stops_the_sandbox_after_it(
    session: Session, way: str
) -> None:
    """These stop or end its processes, so that they run."""
    await python(session, "open('a', 'w').write('1')")
    await idle(session)
    mine = workspace_of(session) / "conftest.py"
    mine.write_text("mine")
    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "changes": session.changes,
        "undo": session.undo,
        "restart": session.restart,
    }
    await ways[way]()
    await idle(session)
    result = await session.call("python", {"code": "1"}, origin="person")
    assert not result.is_error, result.content
    assert mine.read_text() == "mine"
    assert not records(session)


@pytest.mark.parametrize("call", [("sandbox_bash", "command", "ls"), ("python", "code", "x = 1")])
async def test_an_edit_right_after_a_call_is_a_persons_where_a_rule_denies_the_file(
    real_session: OpenSession, tmp_path: Path, call: tuple[str, str, str]
) -> None:
    tool, parameter, value = call
    file = tmp_path / "workspace" / ".env"
    file.parent.mkdir()
    file.write_text("old")
    rule = Rule(when={"paths": [".env"]}, decision=Decision.DENY)
    session = real_session(policy=Policy(mode="auto", rules=[rule]), level="confined")
    await python(session, "open('a', 'w').write('1')")
    assert session._parts is not None
    files = session._parts.protection._files
    for _ in range(20):  # a snapshot of the variables may just wake up: then nobody can tell
        await session.call(tool, {parameter: value}, origin="person", timeout_s=HANG_S)
        file.write_text("mine")
        await eventually(lambda: not files.differs())  # it was accepted, or put back
        if file.read_text() == "mine":
            break
        await session.call("python", {"code": "1"}, origin="person")  # it may say what was put back, once
    else:
        pytest.fail("each edit was put back")
    result = await session.call("python", {"code": "1"}, origin="person", timeout_s=HANG_S)
    assert not result.is_error, result.content


@pytest.mark.parametrize("code", LATER.values(), ids=LATER)
async def test_a_denied_file_that_something_left_running_writes_is_put_back(
    real_session: OpenSession, tmp_path: Path, code: str
) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "conftest.py").write_text("mine")
    rule = Rule(when={"writes": ["conftest.py"]}, decision=Decision.DENY)
    session = real_session(policy=Policy(mode="auto", rules=[rule]), level="confined")
    first = await session.call("python", {"code": code}, origin="person", timeout_s=HANG_S)
    assert not first.is_error, first.content
    await idle(session)
    (workspace_of(session) / "go").touch()
    await eventually(lambda: records(session))
    assert (workspace_of(session) / "conftest.py").read_text() == "mine"


async def test_a_file_of_a_person_at_a_denied_name_is_taken_away_while_something_runs(
    real_session: OpenSession, tmp_path: Path
) -> None:
    """Nobody can tell who made it. A copy is kept, and the next call says so."""
    rule = Rule(when={"paths": ["later.key"]}, decision=Decision.DENY)
    session = real_session(policy=Policy(mode="auto", rules=[rule]))
    await python(
        session, "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f).start()"
    )
    mine = workspace_of(session) / "later.key"
    mine.write_text("mine")
    await eventually(lambda: not mine.exists())
    await eventually(lambda: records(session))
    refused = await session.call("python", {"code": "1"}, origin="person", timeout_s=HANG_S)
    assert refused.is_error
    assert "later.key" in refused.content
    assert contents_below(tmp_path, "*later.key*") == ["mine"]


def contents_below(folder: Path, pattern: str) -> list[str]:
    return [file.read_text() for file in folder.rglob(pattern) if file.is_file()]


def test_changes_made_while_an_edit_is_accepted_are_not_accepted(tmp_path: Path) -> None:
    """It wakes up after the sandbox was found idle, and before the files were read."""
    (tmp_path / "conftest.py").write_text("original")
    files = ProtectedFiles(tmp_path, tmp_path / "quarantine")
    (tmp_path / "conftest.py").write_text("evil")
    assert files.accept(still=lambda: False) is False
    assert [change.path for change in files.restore()] == ["conftest.py"]
    assert (tmp_path / "conftest.py").read_text() == "original"
    (tmp_path / "conftest.py").write_text("mine")
    assert files.accept(still=lambda: True) is True, "the control"
    assert files.restore() == ()


async def test_an_edit_is_not_accepted_if_the_sandbox_begins_to_run_meanwhile(idling: Idling) -> None:
    await idling.run_call()
    await idling.become_idle()
    activities = iter([{(1, 1): 1}])
    idling.file.write_text("evil")
    # Only the first time is it as it was.
    idling.protection._activity = lambda: next(activities, {(1, 1): 2})
    idling.start_call()
    await eventually(lambda: idling.file.read_text() == "original" or idling.protection._check_pending)
    assert idling.protection._check_pending, "it was not accepted"


# ---- what it costs, and its end


async def test_an_idle_sandbox_has_its_files_looked_at_no_more(
    idling: Idling, monkeypatch: pytest.MonkeyPatch
) -> None:
    await idling.run_call()
    await idling.become_idle()
    await eventually(lambda: idling.protection._idle_activity is not None)
    looks: list[str] = []
    restore = idling.protection._files.restore

    def look(*_: object, **__: object) -> object:
        looks.append("look")
        return restore()

    monkeypatch.setattr(idling.protection._files, "restore", look)
    for _ in range(3):
        await idling.become_idle()
    assert not looks
    idling.switches = 2
    await eventually(lambda: looks == ["look"])


async def test_looks_that_take_long_take_a_quarter_of_the_time(
    idling: Idling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the watch reads the clock: each look lasts for 10 s of it."""

    def take_long() -> None:
        clock_s[0] += 10

    waits, clock_s = watch_by_a_clock(idling, monkeypatch, take_long)
    clock_s[0] += 1
    await eventually(lambda: len(waits) >= 4)
    assert waits[2:4] == [30.0, 30.0]


async def test_nothing_is_looked_at_while_the_host_works_on_the_files(idling: Idling) -> None:
    """Files on their way out of a deep folder, which an undo moves up, would be taken for the sandbox's."""
    await idling.run_call()
    await idling.become_idle()
    assert idling.protection._may_look()
    with idling.protection._looking:  # a look is in progress
        working = asyncio.Event()

        async def work() -> None:
            async with idling.protection.paused():
                working.set()
                assert not idling.protection._may_look()

        task = asyncio.ensure_future(work())
        await eventually(lambda: not idling.protection._may_look())
        assert not working.is_set(), "it waits for the end of that look"
    await task
    assert working.is_set()
    assert idling.protection._may_look()


async def test_the_watch_ends_with_its_session(session: Session) -> None:
    def watches() -> int:
        return sum(thread.name == "aisotools-protection" for thread in threading.enumerate())

    before = watches()
    await session.start()
    assert watches() == before, "nothing has run yet"
    await python(session, "1")
    assert watches() == before + 1
    await session.close()
    assert watches() == before


async def test_a_look_that_fails_is_reported_and_leaves_nothing_accepted(
    idling: Idling, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await idling.run_call()
    await idling.become_idle()

    def fail(*_: object, **__: object) -> tuple[()]:
        raise OSError("too many open files")

    monkeypatch.setattr(idling.protection._files, "restore", fail)
    idling.switches = 2
    await eventually(lambda: "a look at it failed (OSError: too many open files)" in caplog.text)
    assert idling.protection._idle_activity is None
    monkeypatch.undo()
    await eventually(lambda: idling.protection._idle_activity is not None)


async def test_changes_that_never_end_are_counted_and_not_piled_up(
    idling: Idling, caplog: pytest.LogCaptureFixture
) -> None:
    await idling.run_call()
    for number in range(100):
        folder = idling.file.parent / f"{number}-{'x' * 200}"
        folder.mkdir()
        (folder / "conftest.py").write_text("evil")
    await eventually(lambda: "and 90 more" in caplog.text)
    texts, count = idling.protection._unreported.take()
    assert (len(texts), count) == (10, 100)
    assert max(map(len, texts)) < 600


def test_readme_says_how_long_such_a_file_may_exist() -> None:
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    (times, share) = re.findall(r"it looks (\d+) times a second, or, .*? for (\d+) % of the time", text)[0]
    assert 1 / int(times) == protection.WATCH_S
    assert int(share) / 100 == protection.WATCH_LOAD
