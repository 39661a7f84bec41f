"""Protected files around real calls: every way a call may end, and what goes on between calls."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from aisotools.core.events import CallFinished, CallStarted
from aisotools.core.exceptions import SandboxError
from aisotools.core.types import Effect, ToolCall, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.policy.prepared import prepare_call
from aisotools.policy.rules import Policy
from aisotools.session.protection import PROTECTED, Protection, RestGuard
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from aisotools.workspace.lock import state_folder
from aisotools.workspace.protected import ProtectedFiles
from tests.conftest import OpenSession
from tests.session.idle import idle
from tests.waiting import HANG_S, eventually, late

PLANT = "open('conftest.py', 'w').write('evil')"


@pytest.fixture
async def session(real_session: OpenSession, tmp_path: Path) -> Session:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / ".envrc").write_text("export SAFE=1\n")
    return real_session(policy=Policy(mode="auto"), level="confined")


async def python(session: Session, code: str, timeout_s: float = HANG_S) -> object:
    return await session.call("python", {"code": code}, origin="person", timeout_s=timeout_s)


def evil(session: Session) -> bool:
    assert session.workspace is not None
    changed = (session.workspace / ".envrc").read_text() != "export SAFE=1\n"
    return changed or (session.workspace / "conftest.py").exists()


WAYS = {
    "it returns": "1",
    "it raises": "1/0",
    "it dies": "import os; os._exit(1)",
    "it is killed": "import os; os.kill(os.getpid(), 9)",
}
WAYS_WITHOUT_END = {
    "it is stopped at its deadline": "import time; time.sleep(1000)",
    "it cannot be interrupted": "sum(range(10**12))",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("way", [*WAYS, *WAYS_WITHOUT_END])
async def test_every_end_of_a_call(session: Session, way: str) -> None:
    ending = (WAYS | WAYS_WITHOUT_END)[way]
    code = f"{PLANT}\nopen('.envrc', 'w').write('evil')\nopen('mine.txt', 'w').write('stays')\n{ending}"
    await session.start()
    assert session.workspace is not None
    file = session.workspace / "mine.txt"
    call = session.call("python", {"code": code}, origin="person", timeout_s=HANG_S)
    if way in WAYS_WITHOUT_END:
        result = await late(
            call, when=lambda: file.exists() and file.read_text() == "stays", deadline_s=HANG_S
        )
    else:
        result = await call
    assert not evil(session)
    assert (result.is_error, result.error_kind) == (True, "denied")
    assert "'conftest.py' (new; taken away" in result.content
    assert "'.envrc' (changed; put back" in result.content
    assert result.metadata["protected"] == [".envrc", "conftest.py"]
    assert file.read_text() == "stays"
    assert not (await session.call("python", {"code": "2"}, origin="person")).is_error


async def test_hooks_that_a_persons_settings_name_are_put_back(
    real_session: OpenSession, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    """Those of a repository above the workspace, and those of the person, found by the environment."""
    environ = {**environ, "GIT_CONFIG_GLOBAL": str(tmp_path / "personal")}
    workspace = tmp_path / "workspace"
    (workspace / "shared").mkdir(parents=True)
    (workspace / "shared/x.cfg").write_text("[user]\n\tname = x\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("[core]\n\thooksPath = workspace/scripts\n")
    (tmp_path / "personal").write_text(f"[include]\n\tpath = {workspace}/shared/x.cfg\n")
    session = real_session(policy=Policy(mode="auto"), level="confined", environ=environ)
    code = (
        "import os; os.mkdir('scripts'); open('scripts/pre-commit', 'w').write('evil')\n"
        "open('shared/x.cfg', 'a').write('evil'); open('shared/other.cfg', 'w').write('ordinary')"
    )
    result = await session.call("python", {"code": code}, origin="person", timeout_s=HANG_S)
    assert result.metadata["protected"] == ["scripts/pre-commit", "shared/x.cfg"]
    assert not (workspace / "scripts/pre-commit").exists()
    assert (workspace / "shared/x.cfg").read_text() == "[user]\n\tname = x\n"
    assert (workspace / "shared/other.cfg").exists()


async def test_a_module_that_a_persons_setting_loads_is_put_back_and_the_setting_is_named(
    real_session: OpenSession, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    environ = {**environ, "GIT_CONFIG_GLOBAL": str(tmp_path / "personal")}
    (tmp_path / "personal").write_text('[filter "t"]\n\tclean = python3 -m json.tool\n')
    session = real_session(policy=Policy(mode="auto"), level="confined", environ=environ)
    arguments = {"operation": "write", "path": "argparse.py", "content": "evil = 1\n"}
    result = await session.call("file", arguments, origin="person", timeout_s=HANG_S)
    assert result.metadata["protected"] == ["argparse.py"]
    assert "a setting of git: filter.t.clean = 'python3 -m json.tool' starts Python" in result.content
    assert not (tmp_path / "workspace/argparse.py").exists()


async def test_a_git_command_that_would_run_a_program_of_the_settings_does_not_count_as_reading(
    real_session: OpenSession, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "sub").mkdir(parents=True)
    run = functools.partial(subprocess.run, cwd=workspace / "sub", check=True)
    run(["git", "init", "-q", "."])
    status = {"command": "cd sub && git status"}
    try:
        session = real_session(policy=Policy(mode="plan"), level="isolated")
        await session.start()
    except Exception as error:
        pytest.skip(str(error))  # `confined` opens no repository of the person
    assert not (await session.call("sandbox_bash", status, timeout_s=HANG_S)).is_error
    await idle(session)
    run(["git", "config", "core.fsmonitor", "sh -c 'echo RAN >&2' --"])
    result = await session.call("sandbox_bash", status, timeout_s=HANG_S)
    assert "was not run" in result.content
    assert "core.fsmonitor = \"sh -c 'echo RAN >&2' --\"" in result.content
    assert not (
        await session.call("sandbox_bash", {"command": "git -C sub remote -v"}, timeout_s=HANG_S)
    ).is_error
    await idle(session)
    run(["git", "config", "--unset", "core.fsmonitor"])
    assert not (await session.call("sandbox_bash", status, timeout_s=HANG_S)).is_error
    await idle(session)
    hook = workspace / "sub/.git/hooks/post-index-change"
    hook.write_text("#!/bin/sh\necho RAN >&2\n")
    hook.chmod(0o755)
    result = await session.call("sandbox_bash", {"command": "git -C sub diff"}, timeout_s=HANG_S)
    assert "was not run" in result.content
    assert "git may run the hook sub/.git/hooks/post-index-change" in result.content
    await idle(session)
    (workspace / "sub/f").write_text("f")
    run(["git", "add", "f"])
    os.utime(workspace / "sub/f", ns=(1, 1))  # so that git has something to note in the index
    result = await session.call("sandbox_bash", status, timeout_s=HANG_S)
    assert not result.is_error
    assert "RAN" not in result.content
    await idle(session)
    hook.chmod(0o644)
    assert not (await session.call("sandbox_bash", status, timeout_s=HANG_S)).is_error


async def test_settings_that_a_call_has_made_in_the_home_of_the_sandbox_count_too(
    real_session: OpenSession, tmp_path: Path
) -> None:
    (tmp_path / "workspace").mkdir()
    session = real_session(policy=Policy(mode="auto"), level="confined")
    make = "git init -q sub && git config --global core.fsmonitor \"sh -c 'echo RAN >&2' --\""
    status = {"command": "git -C sub status"}
    assert not (await session.call("sandbox_bash", {"command": make}, origin="person")).is_error
    session.policy = Policy(mode="plan")
    result = await session.call("sandbox_bash", status, timeout_s=HANG_S)
    assert "RAN" not in result.content.partition("core.fsmonitor")[0]
    assert "was not run" in result.content
    session.policy = Policy(mode="auto")
    undo = {"command": "git config --global --unset core.fsmonitor"}
    assert not (await session.call("sandbox_bash", undo, origin="person")).is_error
    session.policy = Policy(mode="plan")
    assert not (await session.call("sandbox_bash", status, timeout_s=HANG_S)).is_error


async def test_a_cancelled_call(session: Session) -> None:
    code = f"{PLANT}\nimport time; time.sleep(1000)"
    call = asyncio.create_task(python(session, code, timeout_s=1000))
    assert session.workspace is not None
    await eventually((session.workspace / "conftest.py").exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not evil(session)


async def test_the_shell_and_what_the_policy_does_not_see(session: Session) -> None:
    named = await session.call("sandbox_bash", {"command": "echo evil > conftest.py"}, origin="person")
    assert named.error_kind == "denied"
    assert "protected" in named.content
    assert "protected" not in named.metadata  # it did not even run
    hidden = "n=conf; printf evil > ${n}test.py; echo done"
    result = await session.call("sandbox_bash", {"command": hidden}, origin="person")
    assert result.is_error
    assert not evil(session)


@pytest.mark.parametrize("tool", ["sandbox_write", "write"])
async def test_a_write_that_says_so_is_denied(session: Session, tool: str) -> None:
    if tool not in session.registry:
        pytest.skip(f"there is no {tool}")
    arguments = {"path": "sub/../conftest.py", "content": "evil"}
    result = await session.call(tool, arguments, origin="person")
    assert result.error_kind == "denied", result.content
    assert not evil(session)


def found_in(state: Path, content: str) -> list[str]:
    """Return the texts of the copies in the state folder that a result names. Only their owner reads them."""
    copies = [path for path in state.rglob("*.kept") if str(path) in content]
    assert not any(folder.stat().st_mode & 0o077 for folder in (state, *(path.parent for path in copies)))
    return [path.read_text() for path in copies]


async def test_copies_of_what_was_found_are_in_the_state_folder_and_nowhere_in_the_workspace(
    session: Session, environ: Mapping[str, str]
) -> None:
    code = f"{PLANT}\nopen('.envrc', 'w').write('evil too')"
    result = await session.call("python", {"code": code}, origin="person")
    assert result.error_kind == "denied"
    state = state_folder(environ)
    assert sorted(found_in(state, result.content)) == ["evil", "evil too"]
    assert session.workspace is not None
    assert [entry.name for entry in os.scandir(session.workspace)] == [".envrc"]


INSTALL = """
import os
for path in {paths!r}:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, 'w').write('changed')
"""


async def test_programs_of_an_environment_in_the_workspace_can_be_changed(
    session: Session, tmp_path: Path
) -> None:
    """As README says: what installs something writes them, with the modules that they run."""
    paths = [
        *(".venv/bin/python", ".venv/bin/activate", ".venv/bin/pip", "node_modules/.bin/tsc"),
        *(".venv/lib/python3.13/site-packages/pip/__init__.py", "node_modules/typescript/lib/tsc.js"),
    ]
    await session.start()
    for path in paths:  # the person's environment
        (tmp_path / "workspace" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "workspace" / path).write_text("mine")
    await session.call("python", {"code": "1"}, origin="person")
    result = await session.call("python", {"code": INSTALL.format(paths=paths)}, origin="person")
    assert not result.is_error, result.content
    assert {(tmp_path / "workspace" / path).read_text() for path in paths} == {"changed"}
    # What Python runs whenever it starts, and what editors know an environment by, is put back.
    started = [".venv/pyvenv.cfg", ".venv/lib/python3.13/site-packages/x.pth"]
    result = await session.call("python", {"code": INSTALL.format(paths=started)}, origin="person")
    assert result.metadata["protected"] == sorted(started)


# What each does as soon as there is a file `go`. A file `done` says that it has: the protected file itself
# may have been taken away again by then.
WAIT_AND_PLANT = "while [ ! -e go ]; do sleep 0.01; done; echo evil > conftest.py; touch done"
LATER = {
    "a thread": f"""
import os, threading, time
def f():
    while not os.path.exists('go'): time.sleep(0.01)
    {PLANT}
    open('done', 'w').close()
threading.Thread(target=f).start()
""",
    "a task": f"""
import asyncio, os
async def f():
    while not os.path.exists('go'): await asyncio.sleep(0.01)
    {PLANT}
    open('done', 'w').close()
t = asyncio.create_task(f())
""",
    "a process": f"import subprocess\np = subprocess.Popen(['sh', '-c', '{WAIT_AND_PLANT}'])",
    "a daemon": f"import os; os.system('(setsid sh -c \"{WAIT_AND_PLANT}\" >/dev/null 2>&1 &)')",
}


async def planted(session: Session) -> None:
    """Let what was left running go on, and wait until it has done its work."""
    assert session.workspace is not None
    (session.workspace / "go").touch()
    await eventually((session.workspace / "done").exists)


@pytest.mark.parametrize("code", LATER.values(), ids=LATER)
async def test_changes_by_a_process_left_running_are_reverted(session: Session, code: str) -> None:
    first = await session.call("python", {"code": code}, origin="person")
    assert not first.is_error, first.content
    await planted(session)
    refused = await session.call("python", {"code": "1"}, origin="person")
    assert refused.is_error
    assert "left running" in refused.content
    assert "conftest.py" in refused.content
    assert not evil(session)
    assert not (await session.call("python", {"code": "1"}, origin="person")).is_error


async def test_changes_by_a_process_left_running_at_the_end_are_reverted(session: Session) -> None:
    await python(session, LATER["a thread"])
    await planted(session)
    await session.close()
    assert not evil(session)


async def test_a_person_edits_between_calls(session: Session) -> None:
    """Before the first call, after a call, after calls that only read: what they write stands."""
    await session.start()
    assert session.workspace is not None
    mine = session.workspace / "conftest.py"
    for number in range(4):
        mine.write_text(f"mine {number}")
        if number == 2:
            await session.call("sandbox_bash", {"command": "cat conftest.py"}, origin="person")
            await idle(session)
            mine.write_text("mine again")
        result = await session.call("python", {"code": f"{number}"}, origin="person")
        assert not result.is_error, result.content
        assert mine.read_text().startswith("mine")
        await idle(session)
    mine.write_text("mine at last")
    await session.close()
    assert mine.read_text() == "mine at last"


async def test_calls_side_by_side(session: Session) -> None:
    # Each plants its file while all four run.
    meet = "while [ ! -e 0 ] || [ ! -e 1 ] || [ ! -e 2 ] || [ ! -e 3 ]; do sleep 0.01; done"
    commands = [f"touch {number}; {meet}; n=conf; echo {number} > ${{n}}test.py" for number in range(4)]
    results = await asyncio.gather(
        *(session.call("sandbox_bash", {"command": command}, origin="person") for command in commands)
    )
    assert not evil(session)
    assert any(result.is_error for result in results)


async def test_sessions_side_by_side_on_one_workspace(session: Session, real_session: OpenSession) -> None:
    other = real_session(policy=Policy(mode="auto"), level="confined")
    # Calls that change one workspace take turns, so that neither has to last.
    await asyncio.gather(python(session, PLANT), python(other, PLANT))
    assert not evil(session)


class Idling:
    """A protection of `conftest.py`, with calls that start and finish and a sandbox whose activity is set."""

    def __init__(self, folder: Path, *, denied: tuple[str, ...] = ()) -> None:
        (folder / "workspace").mkdir()
        self.file = folder / "workspace" / "conftest.py"
        self.file.write_text("original")
        self.switches: int | None = 1
        self.asked = threading.Event()
        files = ProtectedFiles(folder / "workspace", folder / "quarantine", denied=denied)
        self.protection = Protection(files, self.activity)
        tool = MockTool("m", effect=Effect.LOCAL_MUTATION)
        self.prepared = prepare_call(tool, ToolCall("1", "m", {}), Policy(), "confined")

    def activity(self) -> Mapping[tuple[int, int], int] | None:
        self.asked.set()
        return None if self.switches is None else {(1, 1): self.switches}

    async def run_call(self) -> None:
        self.start_call()
        await self.protection.before(self.prepared)
        self.end_call()

    def start_call(self) -> None:
        self.protection.on_event(CallStarted(time_s=1, call_id="1", runs_in="sandbox", level="confined"))

    def end_call(self) -> None:
        self.protection.on_event(
            CallFinished(time_s=2, call_id="1", name="m", result=ToolResult.text("ok"), duration_s=1)
        )

    async def become_idle(self) -> None:
        """Wait for the look after a call."""
        self.asked.clear()
        await eventually(lambda: self.asked.is_set() and not self.protection._looking.locked())


@pytest.fixture
async def idling(tmp_path: Path) -> AsyncIterator[Idling]:
    idling = Idling(tmp_path)
    yield idling
    await idling.protection.close()


def test_closing_on_another_loop_does_not_wait_for_a_task_of_one_that_was_closed(tmp_path: Path) -> None:
    idling = Idling(tmp_path)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(idling.run_call())
    idling.file.write_text("evil")

    async def begin() -> asyncio.Task[ToolResult | None]:
        looking = asyncio.create_task(idling.protection.after(idling.prepared, None))
        await asyncio.sleep(0)
        assert idling.protection._lock().locked()
        return looking

    looking = loop.run_until_complete(begin())
    loop.close()
    asyncio.run(asyncio.wait_for(idling.protection.close(), HANG_S))
    assert not looking.done()
    assert idling.file.read_text() == "original"


async def test_edit_before_the_first_call_is_accepted(idling: Idling) -> None:
    idling.file.write_text("a person's")
    await idling.run_call()
    idling.protection.prepare_close()
    await idling.protection.close()
    assert idling.file.read_text() == "a person's"


async def test_edit_while_the_sandbox_is_idle_is_accepted(idling: Idling) -> None:
    await idling.run_call()
    await idling.become_idle()
    idling.file.write_text("a person's")
    await idling.run_call()
    assert await idling.protection.after(idling.prepared, None) is None
    assert idling.file.read_text() == "a person's"


async def test_edit_while_the_sandbox_runs_is_restored_and_refuses_one_call(idling: Idling) -> None:
    await idling.run_call()
    await idling.become_idle()
    idling.file.write_text("evil")
    idling.switches = 2
    with pytest.raises(SandboxError, match=r"an earlier call left running .* 'conftest.py'"):
        await idling.run_call()
    assert idling.file.read_text() == "original"
    await idling.protection.before(idling.prepared)


@pytest.mark.parametrize("is_known_later", [False, True])
async def test_edit_is_restored_if_nobody_knows_whether_the_sandbox_ran(
    idling: Idling, is_known_later: bool
) -> None:
    idling.switches = None if is_known_later else 1
    await idling.run_call()
    await idling.become_idle()
    idling.switches = 1 if is_known_later else None
    idling.file.write_text("evil")
    with pytest.raises(SandboxError, match=r"an earlier call left running .* 'conftest.py'"):
        await idling.run_call()
    assert idling.file.read_text() == "original"


async def test_edit_right_after_a_call_is_restored(idling: Idling) -> None:
    await idling.run_call()
    idling.file.write_text("evil")
    idling.protection.prepare_close()
    await idling.protection.close()
    assert idling.file.read_text() == "original"


@pytest.mark.parametrize("only_reads", [True, False])
@pytest.mark.parametrize(("switches", "left"), [(1, "a person's"), (2, "original"), (None, "original")])
async def test_edit_right_after_a_call_is_a_persons_where_a_rule_denies_the_file_and_nothing_runs(
    tmp_path: Path, switches: int | None, left: str, only_reads: bool
) -> None:
    idling = Idling(tmp_path, denied=("conftest.py",))
    idling.start_call()
    if not only_reads:
        guards = (RestGuard(idling.protection), idling.protection)
        for guard in guards:
            await guard.before(idling.prepared)
        for guard in reversed(guards):
            await guard.after(idling.prepared, None)
    idling.end_call()
    idling.switches = switches  # before the edit: the watch may look at any time
    idling.file.write_text("a person's")
    idling.protection.prepare_close()
    await idling.protection.close()
    assert idling.file.read_text() == left


async def test_a_call_waits_for_its_sandbox_to_come_to_rest(tmp_path: Path) -> None:
    idling = Idling(tmp_path, denied=("conftest.py",))
    steps = iter([1, 2, 3, 4])
    idling.protection._activity = lambda: {(1, 1): next(steps, 5)}
    idling.start_call()
    await RestGuard(idling.protection).after(idling.prepared, None)
    idling.end_call()
    idling.file.write_text("a person's")
    await idling.run_call()
    assert idling.file.read_text() == "a person's"
    await idling.protection.close()


async def test_a_change_before_the_sandbox_has_come_to_rest_is_restored(tmp_path: Path) -> None:
    """What writes while the processes are looked at is none of a person's."""
    idling = Idling(tmp_path, denied=("conftest.py",))
    counts = iter([1, 1])

    def activity() -> Mapping[tuple[int, int], int]:
        count = next(counts, 2)
        if count == 2:
            idling.file.write_text("evil")
        return {(1, 1): count}

    idling.protection._activity = activity
    idling.start_call()
    await RestGuard(idling.protection).after(idling.prepared, None)
    idling.end_call()
    idling.protection.prepare_close()
    idling.protection._activity = lambda: {(1, 1): 3}
    await idling.protection.close()
    assert idling.file.read_text() == "original"


@pytest.mark.parametrize(("switches", "left"), [(1, "a person's"), (2, "original")])
async def test_edit_before_the_end_is_accepted_if_the_sandbox_was_idle(
    idling: Idling, switches: int, left: str
) -> None:
    await idling.run_call()
    await idling.become_idle()
    idling.switches = switches  # before the edit: the watch may look at any time
    idling.file.write_text("a person's")
    idling.protection.prepare_close()
    await idling.protection.close()
    assert idling.file.read_text() == left


async def test_change_during_a_call_is_restored_and_denied(idling: Idling) -> None:
    idling.start_call()
    await idling.protection.before(idling.prepared)
    idling.file.write_text("evil")
    result = await idling.protection.after(idling.prepared, ToolResult.text("done"))
    assert result is not None
    assert (result.is_error, result.error_kind) == (True, "denied")
    assert result.content.endswith("Its result:\ndone")
    assert result.metadata[PROTECTED] == ["conftest.py"]
    assert idling.file.read_text() == "original"


async def test_change_that_the_host_made_is_accepted(idling: Idling) -> None:
    await idling.run_call()
    idling.file.write_text("restored by undo")
    idling.protection.accept()
    idling.protection.prepare_close()
    await idling.protection.close()
    assert idling.file.read_text() == "restored by undo"


# ---- imports


async def test_calls_are_refused_while_modules_could_be_imported_from_the_workspace(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = open_session(approver=AllowAll())
    await session.start()
    workspace = tmp_path / "workspace"
    monkeypatch.chdir(workspace)
    refused = await session.call("sandbox_write", {"path": "json.py", "content": "1"})
    assert (refused.is_error, refused.error_kind) == (True, "environment")
    assert "sandbox_write was not run" in refused.content
    assert "it is the current folder" in refused.content
    assert not (workspace / "json.py").exists()
    monkeypatch.chdir(tmp_path)
    assert not (await session.call("sandbox_write", {"path": "json.py", "content": "1"})).is_error


async def test_this_process_imports_nothing_from_the_workspace_of_an_open_session(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = open_session(approver=AllowAll())
    await session.call("sandbox_write", {"path": "written_by_a_model.py", "content": "value = 1"})
    monkeypatch.syspath_prepend(tmp_path / "workspace")
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("written_by_a_model")
    await session.close()
    importlib.import_module("written_by_a_model")  # the control: a person may use it afterwards
    del sys.modules["written_by_a_model"]


@pytest.mark.parametrize("name", ["__init__.py", "__init__.pyc", "__init__.abi3.so"])
async def test_a_workspace_below_a_folder_of_modules_does_not_become_a_package(
    real_session: OpenSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else each later call would be refused, also one that takes the file away."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        session = real_session(policy=Policy(mode="auto"), level="confined")
        result = await session.call("python", {"code": f"open({name!r}, 'w').close()"}, origin="person")
        assert result.is_error
        assert f"{name!r} (new; taken away)" in result.content
        assert "make the package in a folder of the workspace" in result.content
        inside = await session.call(
            "sandbox_write", {"path": "pkg/__init__.py", "content": ""}, origin="person"
        )
        assert not inside.is_error, inside.content
        assert (await session.call("python", {"code": "1 + 1"}, origin="person")).content == "2"
        await session.restart()
        await session.close()


async def test_a_package_may_be_made_in_a_workspace_elsewhere(session: Session, tmp_path: Path) -> None:
    result = await session.call("python", {"code": "open('__init__.py', 'w').close()"}, origin="person")
    assert not result.is_error, result.content
    assert (tmp_path / "workspace" / "__init__.py").exists()
