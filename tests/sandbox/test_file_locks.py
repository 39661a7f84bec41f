"""Locks on files that a sandbox may only read: which it can take, as README says, and how they end.

Landlock knows no right to lock, and a filter of system calls could refuse `flock` only for the workspace too,
where package managers and caches need it.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tests.sandbox.rig import rig

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
