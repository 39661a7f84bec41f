"""Open files in a fork, each test in a process of its own: pytest's must not lose its places in files."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.sandbox.worker.open_files import _F_DUPFD_QUERY
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.sandbox.worker.interpreter import run_alone

HEAD = """
import fcntl, json, os, resource, sys, tempfile, threading, time
from aisotools.sandbox.worker import open_files

def report(value):
    print(json.dumps(value), flush=True)

def restore():
    return open_files.restore_offsets(list(open_files.list_open_files()))
"""


def run(code: str, folder: Path) -> Any:
    return run_alone(HEAD + code, folder)


def here(session: Session, path: str) -> Path:
    assert session.workspace is not None
    return session.workspace / path


def policy_at(level: str) -> Policy:
    return Policy(mode="safe" if level == "limited" else "auto")


def says_what_is_shared() -> bool:
    reading, writing = os.pipe()
    try:
        fcntl.fcntl(reading, _F_DUPFD_QUERY, writing)
    except OSError:  # EINVAL: an older kernel
        return False
    finally:
        os.close(reading)
        os.close(writing)
    return True


needs_linux_6_10 = pytest.mark.skipif(
    not says_what_is_shared(), reason="this kernel does not say which descriptors are one open file"
)


# ---- places in files


def test_files_are_read_on_from_where_they_were(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("0123456789")
    code = """
a, b, c = (os.open('f', os.O_RDONLY) for _ in range(3))
for number in (a, b, c):
    os.read(number, 2)
files = list(open_files.list_open_files())
for number in (a, b, c):
    os.read(number, 3)
os.close(b)
os.close(c)
assert os.open('/dev/null', os.O_RDONLY) == b
lost = open_files.restore_offsets(files)
report([lost, os.read(a, 2).decode(), os.read(b, 2).decode(), os.get_inheritable(a)])
"""
    assert run(code, tmp_path) == [[], "23", "", False]


def test_a_file_that_another_thread_closes_meanwhile_has_no_place_to_keep(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("0123456789")
    code = """
number = os.open('f', os.O_RDONLY)
status = os.fstat(number)
found = [open_files.describe_file(number, status) is None]
os.close(number)
found.append(open_files.describe_file(number, status) is None)
reading, writing = os.pipe()
assert number == reading
found.append(open_files.describe_file(number, status) is None)
report(found)
"""
    assert run(code, tmp_path) == [False, True, True]


@needs_linux_6_10
@pytest.mark.parametrize(
    ("flags", "is_written"),
    [("os.O_RDONLY", False), ("os.O_WRONLY", True), ("os.O_RDWR | os.O_APPEND", True), ("os.O_RDWR", True)],
)
def test_descriptors_that_shared_a_place_share_one_again(
    tmp_path: Path, flags: str, is_written: bool
) -> None:
    """And not with another process, whose place stays where it is."""
    (tmp_path / "f").write_text("0123456789")
    code = f"""
one = os.open('f', {flags})
twin, apart = os.dup(one), os.open('f', {flags})
later = os.dup2(one, 20, inheritable=True)
for number in (one, apart):
    os.lseek(number, 2, os.SEEK_SET)
reading, writing = os.pipe()
pid = os.fork()
if not pid:
    lost = restore()
    os.lseek(one, 5, os.SEEK_SET)
    places = [os.lseek(number, 0, os.SEEK_CUR) for number in (one, twin, later, apart)]
    if {is_written}:
        for number in (one, twin, later):
            os.write(number, b'x')
    inheritable = [number for number in (one, twin, later, apart) if os.get_inheritable(number)]
    same_flags = len({{fcntl.fcntl(number, fcntl.F_GETFL) for number in (one, twin, later, apart)}})
    os.write(writing, json.dumps([lost, places, inheritable == [later], same_flags]).encode())
    os._exit(0)
os.waitpid(pid, 0)
there = json.loads(os.read(reading, 1000))
report([there, [os.lseek(number, 0, os.SEEK_CUR) for number in (one, twin, later, apart)]])
"""
    assert run(code, tmp_path) == [[[], [5, 5, 5, 2], True, 1], [2, 2, 2, 2]]
    text = {"os.O_RDONLY": "0123456789", "os.O_RDWR | os.O_APPEND": "0123456789xxx"}.get(flags, "01234xxx89")
    assert (tmp_path / "f").read_text() == text


def test_each_descriptor_has_its_own_place_where_the_kernel_does_not_say_what_is_shared(
    tmp_path: Path,
) -> None:
    (tmp_path / "f").write_text("0123456789")
    code = """
open_files._F_DUPFD_QUERY = 1 << 20  # unknown, as to an older kernel
one = os.open('f', os.O_RDONLY)
twin = os.dup(one)
os.lseek(one, 2, os.SEEK_SET)
lost = restore()
os.lseek(one, 5, os.SEEK_SET)
report([lost, os.lseek(twin, 0, os.SEEK_CUR)])
"""
    assert run(code, tmp_path) == [[], 2]


def test_many_descriptors_of_one_file_are_compared_for_a_moment_alone(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("0123456789")
    code = """
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2048), hard))
asked, fcntl_itself = [], fcntl.fcntl

def counted(number, command, argument=0):
    asked.append(command == open_files._F_DUPFD_QUERY)
    return fcntl_itself(number, command, argument)

fcntl.fcntl = counted
numbers = [os.open('f', os.O_RDONLY) for _ in range(min(hard, 2048) - 100)]
lost = restore()
report([lost, sum(asked) <= 10_000])
"""
    assert run(code, tmp_path) == [[], True]


@needs_linux_6_10
def test_shared_place_of_a_file_that_cannot_be_opened_again_is_lost(tmp_path: Path) -> None:
    code = """
one = os.open('f', os.O_WRONLY | os.O_CREAT)
twin = os.dup(one)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
files = list(open_files.list_open_files())
resource.setrlimit(resource.RLIMIT_NOFILE, (twin + 1, hard))
report([open_files.restore_offsets(files), one, twin])
"""
    lost, one, twin = run(code, tmp_path)
    assert lost == [f"the place in an open file (descriptors {one}, {twin}: Too many open files)"]


@needs_linux_6_10
@pytest.mark.parametrize("level", ["isolated", "confined", "guarded", "limited"])
async def test_undo_keeps_one_place_for_what_has_one(real_session: OpenSession, level: str) -> None:
    session = real_session(policy=policy_at(level), approver=AllowAll(), level=level)
    await session.start()
    opens = """
import os
one = os.open('log', os.O_WRONLY | os.O_CREAT)
twin = os.fdopen(os.dup(one), 'w')
print('one', end=' ', file=twin, flush=True)
"""
    assert not (await session.run_cell(opens)).is_error
    assert not (await session.run_cell("x = 2")).is_error
    undone = await session.undo()
    assert not undone.is_error, undone.content
    writes = """
os.write(one, b'two ')
print('three', end=' ', file=twin, flush=True)
os.write(one, b'four ')
"""
    assert not (await session.run_cell(writes)).is_error
    assert here(session, "log").read_text() == "one two three four "


# ---- logs of SQLite that were replaced


def test_log_that_was_replaced_cannot_be_read_or_written(tmp_path: Path) -> None:
    """Its number stays taken, and what it was can be told from what is there now."""
    code = """
import errno
names = ('db', 'db-wal', 'there-wal', 'reused-wal', 'linked-wal', 'gone-wal')
numbers = {name: os.open(name, os.O_RDWR | os.O_CREAT) for name in names}
for name, number in numbers.items():
    os.write(number, name.encode())
os.link('linked-wal', 'another name')
os.unlink('gone-wal')
files = list(open_files.list_open_files())
for name in ('db', 'db-wal'):
    open('new', 'w').write('new')
    os.replace('new', name)
os.unlink('linked-wal')
os.unlink('reused-wal')
os.dup2(numbers['there-wal'], numbers['reused-wal'])
open_files.cut_off_logs(files)
found = {}
for name in names:
    try:
        found[name] = os.pread(numbers[name], 100, 0).decode()
    except OSError as error:
        found[name] = errno.errorcode[error.errno]
report([found, os.fstat(numbers['db-wal']).st_ino == os.stat('db-wal').st_ino])
"""
    found, is_new = run(code, tmp_path)
    assert found == {
        "db": "db",
        "db-wal": "EBADF",
        "there-wal": "there-wal",
        "reused-wal": "there-wal",
        "linked-wal": "linked-wal",
        "gone-wal": "gone-wal",
    }
    assert not is_new
    assert (tmp_path / "db-wal").read_text() == "new"


CONNECTS = "con = sqlite3.connect('db', isolation_level=None)"
FILLS = f"""
import sqlite3
{CONNECTS}
for line in ('pragma journal_mode=wal', 'pragma wal_autocheckpoint=0', 'create table t(a)'):
    con.execute(line).fetchall()
for number in range(5):
    con.execute('insert into t values(?)', (number,)).close()
"""
INSERTS = """
for number in range(10, 15):
    con.execute('insert into t values(?)', (number,)).close()
"""
BY_ANOTHER = CONNECTS.replace("con =", "other =") + INSERTS.replace("con.", "other.")


def rows_in(workspace: Path, folder: Path) -> list[int]:
    """Return what a program of the user's would find, which looks at a copy: SQLite changes what it reads."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("db", "db-wal"):
        if (workspace / name).exists():
            shutil.copy(workspace / name, folder)
    database = sqlite3.connect(folder / "db")
    try:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        return [number for (number,) in database.execute("select a from t order by a")]
    finally:
        database.close()


@pytest.mark.sample(3)
@pytest.mark.parametrize("level", ["isolated", "confined", "guarded", "limited"])
@pytest.mark.parametrize(
    ("prepares", "undone"),
    [
        ("", INSERTS),
        ("", BY_ANOTHER),
        ("two = sqlite3.connect('db'); two.execute('select * from t').fetchall()", INSERTS),
        ("con.execute('begin'); con.execute('select * from t').fetchall()", BY_ANOTHER),
        ("con.execute('begin'); con.execute('insert into t values(50)').close()", "con.commit()"),
        ("con.execute('pragma wal_checkpoint').fetchall()", INSERTS),
        ("", f"{INSERTS}con.execute('pragma wal_checkpoint(truncate)').fetchall()"),
        ("", "con.execute('delete from t').close(); con.execute('vacuum').close(); con.close()"),
    ],
    ids=["alone", "other", "two", "reading", "writing", "restarted", "checkpoint", "vacuum"],
)
async def test_undone_rows_of_a_database_stay_undone(
    real_session: OpenSession, tmp_path: Path, level: str, prepares: str, undone: str
) -> None:
    """Closing a connection copies its log into the database: it must not be the log of another state."""
    session = real_session(policy=policy_at(level), approver=AllowAll(), level=level)
    await session.start()
    for code in (FILLS + prepares, undone):
        result = await session.run_cell(f"{code}\nNone")
        assert not result.is_error, result.content
    moved = await session.undo()
    assert not moved.is_error, moved.content
    assert "[Still open in the sandbox: db" in moved.content
    rows = [0, 1, 2, 3, 4]
    assert rows_in(here(session, "."), tmp_path / "copy") == rows
    closes = "for name in ('con', 'two'):\n    if name in globals(): globals()[name].close()\n"
    result = await session.run_cell(
        f"{closes}{CONNECTS}\ncon.execute('select a from t order by a').fetchall()"
    )
    assert "(0,), (1,), (2,), (3,), (4,)]" in result.content
    assert rows_in(here(session, "."), tmp_path / "copy") == rows
    result = await session.run_cell("con.execute('insert into t values(100)').close(); con.close()")
    assert not result.is_error, result.content
    assert rows_in(here(session, "."), tmp_path / "copy") == [*rows, 100]


@pytest.mark.parametrize("ends", ["close", "restart"])
async def test_closing_a_connection_that_was_kept_brings_undone_rows_back(
    real_session: OpenSession, tmp_path: Path, ends: str
) -> None:
    """Documented, and not wanted: with `variables="keep"` no log is cut off. A restart closes nothing."""
    session = real_session(policy=policy_at("auto"), approver=AllowAll())
    await session.start()
    for code in (FILLS, INSERTS):
        assert not (await session.run_cell(f"{code}\nNone")).is_error
    assert not (await session.undo(variables="keep")).is_error
    assert rows_in(here(session, "."), tmp_path / "copy") == [0, 1, 2, 3, 4]
    if ends == "restart":
        await session.restart()
    await session.run_cell("con.close()")
    rows = [0, 1, 2, 3, 4] if ends == "restart" else [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    assert rows_in(here(session, "."), tmp_path / "copy") == rows
