"""Locks on files that a sandbox may only read: which it can take, as README says, and how they end.

Landlock knows no right to lock, and a filter of system calls could refuse `flock` only for the workspace too,
where package managers and caches need it.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
from pathlib import Path

import pytest

from tests.sandbox.rig import rig
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["isolated", "confined"])
def level(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def can_lock(path: Path) -> bool:
    """Whether a program of the host, which does not wait, can lock a file for itself."""
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def shared_file(folder: Path) -> Path:
    data = folder / "data"
    data.mkdir()
    path = data / "database"
    path.write_text("content")
    path.chmod(0o644)
    return path


LOCKS = {
    "flock": "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
    "lock for reading": "fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
}


@pytest.mark.parametrize("lock", LOCKS)
async def test_readable_file_can_be_locked_until_the_sandbox_lets_go(
    tmp_path: Path, level: str, lock: str
) -> None:
    path = shared_file(tmp_path)
    async with rig(tmp_path, level=level, readable=(str(path.parent),)) as r:
        assert can_lock(path)
        result = await r.python(f"import fcntl; file = open({str(path)!r}); {LOCKS[lock]}")
        assert not result.is_error, result.content
        assert not can_lock(path)
        await r.kernel.restart()
        assert can_lock(path)


WAITING = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
"""


def waits_for_a_lock(pid: int) -> bool:
    """Whether the kernel has the process in the queue behind a lock."""
    lines = Path("/proc/locks").read_text("utf-8").splitlines()
    waiting = (line.split() for line in lines if " -> " in line)
    return any(words[2] == "FLOCK" and words[5] == str(pid) for words in waiting)


async def test_closing_a_file_keeps_its_lock_while_a_state_for_undo_has_it_open(
    tmp_path: Path, level: str
) -> None:
    """Such a state is a fork of the worker, and shares the open file: `flock` belongs to that."""
    path = shared_file(tmp_path)
    lock = f"import fcntl; file = open({str(path)!r}); fcntl.flock(file, fcntl.LOCK_EX)"
    async with rig(tmp_path, level=level, readable=(str(path.parent),)) as r:
        await r.python("1")
        await r.python(f"{lock}; file.close()")
        assert can_lock(path), "no state was made in between"
        await r.python(lock)
        await r.python("file.close()")
        assert not can_lock(path)
        r.kernel.variables.clear("the test says so")
        await eventually(lambda: can_lock(path))


@pytest.mark.parametrize("ending", ["let go", "restarted", "closed"])
async def test_program_that_waits_for_a_lock_gets_it_when_the_sandbox_lets_go(
    tmp_path: Path, level: str, ending: str
) -> None:
    path = shared_file(tmp_path)
    async with rig(tmp_path, level=level, readable=(str(path.parent),)) as r:
        result = await r.python(f"import fcntl; file = open({str(path)!r}); fcntl.flock(file, fcntl.LOCK_EX)")
        assert not result.is_error, result.content
        program = await asyncio.create_subprocess_exec(sys.executable, "-c", WAITING, str(path))
        try:
            await eventually(lambda: waits_for_a_lock(program.pid))
            if ending == "let go":
                await r.python("fcntl.flock(file, fcntl.LOCK_UN)")
            elif ending == "restarted":
                await r.kernel.restart()
            else:
                await r.kernel.close()
            await eventually(lambda: program.returncode is not None)
            assert program.returncode == 0
        finally:
            if program.returncode is None:
                program.kill()
            await program.wait()


async def test_lock_for_writing_takes_a_file_that_may_be_written(tmp_path: Path, level: str) -> None:
    """Of a program, and of SQLite; in the workspace, as a control, both get it."""
    path = shared_file(tmp_path)
    lock = """
import fcntl, os, sqlite3
def lock(path):
    held.append(os.open(path, os.O_RDWR))
    fcntl.lockf(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
def change(path):
    held.append(sqlite3.connect(path, isolation_level=None))
    held[-1].execute('begin immediate')
    held[-1].execute('create table t (a)')
def succeeds(action, path):
    try:
        action(path)
    except (OSError, sqlite3.Error):
        return False
    return True
held = []
"""
    async with rig(tmp_path, level=level, readable=(str(path.parent),)) as r:
        await r.python(lock)
        for folder, expected in ((r.workspace, True), (path.parent, False)):
            for action in ("lock", "change"):
                file = folder / f"file-to-{action}"
                # An empty file is a database without tables.
                file.touch()
                file.chmod(0o666)
                assert await r.value(f"succeeds({action}, {str(file)!r})") is expected, (folder, action)
                if action == "change" and not expected:
                    await r.python("held.pop().close()")  # it has a lock for reading
                assert can_lock(file) is not expected, (folder, action)


async def test_readable_file_cannot_be_locked_for_writing(tmp_path: Path, level: str) -> None:
    path = shared_file(tmp_path)
    async with rig(tmp_path, level=level, readable=(str(path.parent),)) as r:
        code = f"import fcntl; file = open({str(path)!r}); fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
        result = await r.python(code)
        assert result.is_error
        assert "Bad file descriptor" in result.content
        assert can_lock(path)


async def test_file_outside_that_is_not_readable_cannot_be_locked(tmp_path: Path, level: str) -> None:
    path = shared_file(tmp_path)
    async with rig(tmp_path, level=level) as r:
        result = await r.python(f"import fcntl; fcntl.flock(open({str(path)!r}), fcntl.LOCK_EX)")
        assert result.is_error
        assert can_lock(path)
