"""A full state folder refuses calls; once there is room, the session goes on, and nothing told is lost."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisotools.core.exceptions import LedgerError
from aisotools.core.types import ToolResult
from aisotools.policy.rules import Policy
from aisotools.session.ledger import read, verify
from aisotools.session.session import Session
from tests.conftest import OpenSession

AUTO = Policy(mode="auto")


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the system write no file beyond this size: a write that does not fit is cut short, then refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def write(session: Session, number: int) -> ToolResult:
    arguments = {"path": "a", "content": str(number)}
    return await session.call("sandbox_write", arguments, call_id=f"c{number}")


@pytest.mark.sample(6)
@pytest.mark.parametrize("room", range(0, 2_400, 75))
async def test_a_session_goes_on_once_its_ledger_has_room(open_session: OpenSession, room: int) -> None:
    session = open_session(policy=AUTO)
    for number in range(8):
        assert not (await write(session, number)).is_error
    assert session.log_path is not None
    assert session.workspace is not None
    done = {f"c{number}" for number in range(8)}
    with largest_file(session.log_path.stat().st_size + room):
        refused = 0
        for number in range(8, 20):
            before = (session.workspace / "a").read_text()
            result = await write(session, number)
            if result.is_error:
                refused += 1
                assert "could not be recorded" in result.content
                assert (session.workspace / "a").read_text() == before
            else:
                done.add(f"c{number}")
        assert refused > 5
    assert not (await write(session, 20)).is_error
    undone = await session.undo()
    assert not undone.is_error, undone.content
    await session.close()
    assert verify(session.log_path).ok
    ends: Counter[str] = Counter()
    for record in read(session.log_path):
        if record["kind"] == "call_finished":
            ends[record["body"]["call_id"]] += 1
    assert ends == Counter(f"c{number}" for number in range(21)), "whatever was refused is told, too"
    again = open_session(policy=AUTO, session_key=session.session_key)
    assert not (await write(again, 21)).is_error
    assert again.history is not None
    assert len(again.history.store.records()) > len(done)


async def test_undo_that_cannot_be_recorded_yet_says_so(open_session: OpenSession) -> None:
    session = open_session(policy=AUTO)
    await write(session, 0)
    assert session.log_path is not None
    assert session.workspace is not None
    with largest_file(session.log_path.stat().st_size):
        undone = await session.undo()
        assert not undone.is_error, undone.content
        assert "[This undo is not in the ledger yet, which cannot be written now.]" in undone.content
    assert not (session.workspace / "a").exists()
    redone = await session.redo()
    assert (redone.is_error, "ledger" in redone.content) == (False, False)
    await session.close()
    assert verify(session.log_path).ok
    assert [record["kind"] for record in read(session.log_path)][-3:-1] == ["undone", "redone"]


async def test_a_session_that_ends_while_there_is_no_room_leaves_a_sound_ledger(
    open_session: OpenSession,
) -> None:
    session = open_session(policy=AUTO)
    await write(session, 0)
    assert session.log_path is not None
    with largest_file(session.log_path.stat().st_size + 100):
        assert (await write(session, 1)).is_error
        await session.close()
    assert verify(session.log_path).problems == ()
    again = open_session(policy=AUTO, session_key=session.session_key)
    assert not (await write(again, 2)).is_error
    assert again.log_path == session.log_path


async def test_too_many_records_that_wait_end_the_recording(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aisotools.session.recording._MOST_WAITING", 10)
    session = open_session(policy=AUTO)
    await write(session, 0)
    assert session.log_path is not None
    with largest_file(session.log_path.stat().st_size):
        for number in range(1, 9):
            assert (await write(session, number)).is_error
    refused = await write(session, 9)
    assert "10 records wait for room" in refused.content


async def test_a_head_without_room_is_written_later(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(policy=AUTO)
    await write(session, 0)
    recording = session._recording
    assert recording is not None
    with monkeypatch.context() as patch:
        patch.setattr(
            recording._ledger, "seal", lambda: (_ for _ in ()).throw(LedgerError("No room.", retryable=True))
        )
        recording._seal()
        await write(session, 1)
        refused = await write(session, 2)
        assert refused.is_error
        assert "No room." in refused.content
    assert not (await write(session, 3)).is_error
    await session.close()
    assert session.log_path is not None
    assert verify(session.log_path).ok


ON_A_SMALL_DISK = """
import asyncio, os, sys
from pathlib import Path
from aisotools.policy.rules import Policy
from aisotools.session.ledger import read, verify
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox

top = Path(sys.argv[1])
disk = top / "disk"
environ = {"HOME": str(top), "XDG_STATE_HOME": str(disk)}

def fill():
    with open(disk / "filler", "wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                pass

async def write(session, number):
    arguments = {"path": "a", "content": str(number) * 500}
    return await session.call("sandbox_write", arguments, call_id=f"c{number}")

async def main():
    def opened():
        return Session(top / "workspace", sandbox=FakeSandbox, environ=environ, policy=Policy(mode="auto"),
                       session_key="full")
    session = opened()
    await session.start()
    done, number = [], 0
    for round in range(6):
        for _ in range(3):
            number += 1
            result = await write(session, number)
            assert not result.is_error, (round, result.content)
            done.append(number)
        fill()
        refused = 0
        while refused < 4:
            number += 1
            result = await write(session, number)
            refused += result.is_error
            if not result.is_error:
                done.append(number)
        undone = await session.undo()
        if not undone.is_error:
            done.pop()
        assert (top / "workspace" / "a").read_text() == str(done[-1]) * 500
        if round == 3:
            await session.close()
            assert verify(session.log_path).problems == (), verify(session.log_path)
        os.unlink(disk / "filler")
        if round == 3:
            session = opened()
            await session.start()
    # What was refused is a step as well if it came as far as that, so not so many steps, but to a call.
    result = await session.undo(to=f"c{done[-5]}", variables="keep")
    assert not result.is_error, result.content
    assert (top / "workspace" / "a").read_text() == str(done[-6]) * 500
    await session.close()
    assert verify(session.log_path).ok
    print("works again")

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="it takes root to mount a disk of its own"
)
def test_a_session_goes_on_once_a_small_disk_has_room(tmp_path: Path) -> None:
    """On a real file system without room, in a mount namespace of its own."""
    (tmp_path / "disk").mkdir()
    command = 'mount -t tmpfs -o size=600k tmpfs "$1/disk" && exec "$2" -c "$3" "$1"'
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", str(tmp_path), sys.executable, ON_A_SMALL_DISK],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "works again\n", ended.stderr


REDO_ON_A_FULL_DISK = """
import asyncio, os, sys
from pathlib import Path
from aisotools.policy.rules import Policy
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox

top, full = Path(sys.argv[1]), sys.argv[2].split("+")
place = top / "workspace" / "w"
environ = {"HOME": str(top), "XDG_STATE_HOME": str(top / "state" / "s")}

def fill():
    for disk in full:
        with open(top / disk / "filler", "wb", buffering=0) as file:
            for size in (4096, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    pass

def free():
    for disk in full:
        os.unlink(top / disk / "filler")

def read():
    return {str(path.relative_to(place)): (path.lstat().st_mode, path.lstat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"") for path in place.rglob("*")}

async def write(session, path, text):
    result = await session.call("sandbox_write", {"path": path, "content": text})
    assert not result.is_error, result.content

async def main():
    place.mkdir()
    (place / "a").write_text("0" * 50_000)
    (place / "gone").write_text("0")
    def opened():
        return Session(place, sandbox=FakeSandbox, environ=environ, policy=Policy(mode="auto"),
                       session_key="full")
    session = opened()
    async with session:
        before = read()
        await write(session, "a", "1" * 100_000)
        await write(session, "d/e/b", "2" * 60_000)
        await write(session, "a", "3" * 70_000)
        after = read()
        for count in (1, 3):
            assert not (await session.undo(count)).is_error
            undone = read()
            if count == 3:
                assert {name: one[::2] for name, one in undone.items()} == {
                    name: one[::2] for name, one in before.items()}
            fill()
            refused = 0
            for _ in range(2):
                result = await session.redo(count)
                if not result.is_error:
                    break
                refused += 1
                assert read() == undone, (result.content, sorted(read()), sorted(undone))
                assert "No space left on device" in result.content, result.content
            free()
            if refused:
                result = await session.redo(count)
            else:
                # Its records have found room in the last block of the journal.
                assert full == ["state"], result.content
            assert not result.is_error, result.content
            assert read() == after, sorted(read())
        assert not (await session.undo(3)).is_error
        fill()
        result = await session.redo(3)
        is_redone = not result.is_error
        assert read() == (after if is_redone else undone), result.content
    # Closed on a full disk, and opened again when there is room.
    free()
    session = opened()
    async with session:
        if not is_redone:
            assert read() == undone
            result = await session.redo(3, variables="keep")
            assert not result.is_error, result.content
        assert read() == after
    print("exact")

asyncio.run(main())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="it takes root to mount a disk of its own"
)
@pytest.mark.parametrize("full", ["state", "workspace", "state+workspace"])
def test_redo_on_a_full_disk_changes_nothing_and_is_exact_once_there_is_room(
    tmp_path: Path, full: str
) -> None:
    """On real file systems without room, in a mount namespace of its own."""
    for name in ("state", "workspace"):
        (tmp_path / name).mkdir()
    mounts = 'mount -t tmpfs -o size=2m tmpfs "$1/state" && mount -t tmpfs -o size=2m tmpfs "$1/workspace"'
    command = f'{mounts} && exec "$2" -c "$3" "$1" "$4"'
    ended = subprocess.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            command,
            "sh",
            str(tmp_path),
            sys.executable,
            REDO_ON_A_FULL_DISK,
            full,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "exact\n", ended.stderr
