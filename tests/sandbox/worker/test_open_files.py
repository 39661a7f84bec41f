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
import errno, fcntl, json, mmap, os, resource, tempfile
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


# ---- files that were replaced


def test_nothing_can_be_done_with_a_file_that_was_replaced(tmp_path: Path) -> None:
    """Its number stays taken, and what it was can be told from what is there now."""
    (tmp_path / "f").write_text("old")
    code = """
number = os.open('f', os.O_RDWR)
os.set_inheritable(number, True)
former = os.fstat(number).st_ino
files = list(open_files.list_open_files())
open('g', 'w').write('new')
os.replace('g', 'f')
open_files.cut_off_replaced(files)
found = {}
for name, act in {
    'read': lambda: os.read(number, 3),
    'write': lambda: os.write(number, b'x'),
    'truncate': lambda: os.ftruncate(number, 0),
    'map': lambda: mmap.mmap(number, 3),
    'lock': lambda: fcntl.flock(number, fcntl.LOCK_EX),
    'lock a part': lambda: fcntl.lockf(number, fcntl.LOCK_EX),
    'sync': lambda: os.fsync(number),
}.items():
    try:
        act()
    except OSError as error:
        found[name] = errno.errorcode[error.errno]
same = os.fstat(number).st_ino == former != os.stat('f').st_ino
os.close(os.open('f', os.O_RDONLY))
later = list(open_files.list_open_files())
report([found, same, os.get_inheritable(number), later])
"""
    found, same, inheritable, later = run(code, tmp_path)
    assert found == dict.fromkeys(
        ["read", "write", "truncate", "map", "lock", "lock a part", "sync"], "EBADF"
    )
    assert (same, inheritable, later) == (True, True, [])
    assert (tmp_path / "f").read_text() == "new"


def test_files_that_are_not_replaced_stay_open(tmp_path: Path) -> None:
    code = """
for name in ('there', 'renamed', 'linked', 'removed before', 'reused', 'closed', 'other', 'scratch/f'):
    os.makedirs(os.path.dirname(f'./{name}'), exist_ok=True)
    open(name, 'w').write(name)
os.link('linked', 'another name')
names = ('there', 'renamed', 'linked', 'removed before', 'reused', 'closed', 'scratch/f')
numbers = {name: os.open(name, os.O_RDWR) for name in names}
temporary = tempfile.TemporaryFile(dir='.')
numbers['temporary'] = temporary.fileno()
os.write(numbers['temporary'], b'temporary')
os.lseek(numbers['temporary'], 0, os.SEEK_SET)
os.unlink('removed before')
files = list(open_files.list_open_files())
os.rename('renamed', 'new name')
for name in ('linked', 'reused', 'closed', 'scratch/f'):
    os.unlink(name)
other = os.open('other', os.O_RDONLY)
os.dup2(other, numbers['reused'])
os.close(other)
os.close(numbers.pop('closed'))
open_files.cut_off_replaced(files, ['', f'{os.getcwd()}/scratch', '/nowhere'])
report({name: os.read(number, 100).decode() for name, number in numbers.items()})
"""
    names = ("there", "renamed", "linked", "removed before", "scratch/f", "temporary")
    assert run(code, tmp_path) == {**{name: name for name in names}, "reused": "other"}


def test_replaced_file_is_cut_off_where_no_further_file_can_be_opened(tmp_path: Path) -> None:
    code = """
numbers = [os.open('f', os.O_RDWR | os.O_CREAT) for _ in range(3)]
files = list(open_files.list_open_files())
os.unlink('f')
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (numbers[-1] + 1, hard))
open_files.cut_off_replaced(files)
found = []
for number in numbers:
    os.fstat(number)
    try:
        os.write(number, b'x')
    except OSError as error:
        found.append(errno.errorcode[error.errno])
report(found)
"""
    assert run(code, tmp_path) == ["EBADF"] * 3


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
    assert "what a variable does with it fails from now on: close it, then open it again.]" in moved.content
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


@pytest.mark.slow
async def test_connection_whose_log_was_replaced_fails_and_leaves_the_database(
    real_session: OpenSession, tmp_path: Path
) -> None:
    """So does a new one, which SQLite has share what it knows, until all of them are closed."""
    session = real_session(policy=policy_at("auto"), approver=AllowAll())
    await session.start()
    for code in (FILLS, INSERTS):
        assert not (await session.run_cell(f"{code}\nNone")).is_error
    assert not (await session.undo()).is_error
    # SQLite tries for ten seconds.
    writes = "new = sqlite3.connect('db', isolation_level=None); new.execute('insert into t values(7)')"
    failed = await session.run_cell(writes)
    assert "OperationalError: locking protocol" in failed.content
    await session.run_cell("con.close(); new.close()")
    assert rows_in(here(session, "."), tmp_path / "copy") == [0, 1, 2, 3, 4]
    result = await session.run_cell(f"{CONNECTS}\ncon.execute('select max(a) from t').fetchall()")
    assert "[(4,)]" in result.content


@pytest.mark.parametrize("ends", ["close", "restart"])
async def test_closing_a_connection_that_was_kept_brings_undone_rows_back(
    real_session: OpenSession, tmp_path: Path, ends: str
) -> None:
    """Documented, and not wanted: with `variables="keep"` nothing is cut off. A restart closes nothing."""
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


@pytest.mark.parametrize("level", ["isolated", "confined", "guarded", "limited"])
async def test_temporary_files_stay_open_after_an_undo(real_session: OpenSession, level: str) -> None:
    """Undo puts nothing back in the sandbox's own folders, nor a file that never had a name."""
    session = real_session(policy=policy_at(level), approver=AllowAll(), level=level)
    await session.start()
    opens = """
import os, tempfile
files = [tempfile.TemporaryFile(), tempfile.NamedTemporaryFile(), tempfile.TemporaryFile(dir='.')]
files.append(open(os.path.expanduser('~/own'), 'w+b'))
files.append(open('there', 'w+b'))
for file in files:
    file.write(b'kept'); file.flush()
"""
    assert not (await session.run_cell(opens)).is_error
    removes = "for file in files: file.close()\nos.unlink(os.path.expanduser('~/own')); os.unlink('there')"
    assert not (await session.run_cell(removes)).is_error
    undone = await session.undo()
    assert undone.metadata["detached_files"] == ["there"]
    reads = """
found = []
for file in files:
    try:
        file.seek(0)
        found.append(file.read())
    except OSError as error:
        found.append(error.errno)
print(found)
"""
    result = await session.run_cell(reads)
    assert "[b'kept', b'kept', b'kept', b'kept', 9]" in result.content
