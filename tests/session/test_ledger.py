from __future__ import annotations

import functools
import itertools
import os
import random
import shutil
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from aisotools.core.exceptions import LedgerError
from aisotools.policy.approvers import AllowAll
from aisotools.session import ledger as ledger_module
from aisotools.session.ledger import Ledger, ledger_name, open_ledger, prepare_folder, read, verify
from aisotools.session.ledger_index import IndexEntry, LedgerIndex
from tests.conftest import OpenSession
from tests.waiting import HANG_S
from tests.workspace.checkpoints.power import Disk, Loss


def written(folder: Path, records: int = 5) -> Path:
    with open_ledger(folder, "log") as ledger:
        for number in range(records):
            ledger.append("step", {"number": number, "text": "é\n"})
    return ledger.path


def test_appended_events_are_read_back_in_order(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert [r["body"]["number"] for r in read(path)] == [0, 1, 2, 3, 4]
    assert verify(path).ok
    assert verify(path).records == 5


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "new")
    for file in (path, path.with_suffix(".head"), path.parent / "key"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(head=st.booleans(), place=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_any_changed_byte_is_found(tmp_path: Path, head: bool, place: float, change: int) -> None:
    folder = tmp_path / "ledger"
    shutil.rmtree(folder, ignore_errors=True)
    path = written(folder)
    file = path.with_suffix(".head") if head else path
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= change
    file.write_bytes(content)
    assert not verify(path).ok


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[:3], "cut off"),
        (lambda lines: lines[:2] + lines[3:], "line 3 does not follow"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1 does not follow"),
        (lambda lines: [*lines, lines[-1]], "line 6 does not follow"),
        (
            lambda lines: [*lines[:2], lines[2].replace(b'"number":2', b'"number":9'), *lines[3:]],
            "line 3 was changed",
        ),
        (lambda lines: [], "cut off"),
    ],
)
def test_truncation_removal_reordering_and_edits_are_found(
    tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], message: str
) -> None:
    path = written(tmp_path)
    path.write_bytes(b"".join(change(lines_of(path))))
    found = verify(path)
    assert not found.ok
    assert message in found.problems[0]
    with pytest.raises(LedgerError, match="damaged"):
        open_ledger(tmp_path, "log")


def test_a_missing_head_and_another_ledgers_head_are_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    other = open_ledger(tmp_path, "other")
    other.append("step", {"number": 7})
    other.close()
    shutil.copy(other.path.with_suffix(".head"), path.with_suffix(".head"))
    assert verify(path).problems == ("its head belongs to the ledger other",)
    path.with_suffix(".head").unlink()
    assert "head is missing" in verify(path).problems[0]


def test_line_torn_by_a_crash_is_removed_and_that_is_recorded(tmp_path: Path) -> None:
    path = written(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"n":6,"time_s":1.0,"ki')
    assert verify(path).torn_bytes == 23
    assert not verify(path).problems
    with open_ledger(tmp_path, "log") as ledger:
        ledger.append("step", {"number": 5})
    assert [r["kind"] for r in read(path)] == ["step"] * 5 + ["repaired", "step"]
    assert verify(path).ok


def test_lines_after_the_last_seal_are_no_problem(tmp_path: Path) -> None:
    """A crash between a line and the head after it leaves sound lines that the head does not count."""
    ledger = open_ledger(tmp_path, "log")
    ledger.append("step", {})
    ledger.seal()
    ledger.append("step", {})
    assert verify(ledger.path).ok
    assert verify(ledger.path).records == 2
    ledger.close()


def test_going_on_later_keeps_the_chain(tmp_path: Path) -> None:
    path = written(tmp_path, 2)
    with open_ledger(tmp_path, "log") as ledger:
        assert ledger.records == 2
        ledger.append("step", {"number": 2})
    assert verify(path).ok
    assert verify(path).records == 3


def test_another_key_finds_everything_changed(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "key").write_bytes(os.urandom(32))
    assert verify(path).problems == ("line 1 was changed",)


def test_an_unusable_ledger_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"gone\.jsonl"):
        verify(tmp_path / "gone.jsonl")
    with pytest.raises(LedgerError, match=r"gone\.jsonl"):
        list(read(tmp_path / "gone.jsonl"))
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(LedgerError, match="damaged"):
        open_ledger(tmp_path, "log")
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerError, match="cannot be used"):
        open_ledger(tmp_path / "file" / "below", "log")


def test_two_at_once_write_two_ledgers(tmp_path: Path) -> None:
    with open_ledger(tmp_path, "log") as one, open_ledger(tmp_path, "log") as two:
        one.append("step", {"number": 1})
        two.append("step", {"number": 2})
        assert (one.path.name, two.path.name) == ("log.jsonl", "log-2.jsonl")
    assert verify(one.path).ok
    assert verify(two.path).ok


class _SlowIndex(LedgerIndex):
    """Takes as long as it is told to."""

    def __init__(self, folder: Path, key: bytes) -> None:
        super().__init__(folder, key)
        self.began, self.goes_on = threading.Event(), threading.Event()

    def update(self, name: str, entry: IndexEntry) -> None:
        self.began.set()
        assert self.goes_on.wait(HANG_S)
        super().update(name, entry)


def test_ledger_that_two_threads_close_is_closed_once(tmp_path: Path) -> None:
    """As after the loop on which a session was being closed was stopped: its thread goes on."""
    key = prepare_folder(tmp_path)
    index = _SlowIndex(tmp_path, key)
    ledger = Ledger(tmp_path / "log.jsonl", key, index)
    index.goes_on.set()
    ledger.resume()
    ledger.append("step", {"number": 1})
    index.began.clear()
    index.goes_on.clear()
    with ThreadPoolExecutor(3) as threads:
        closings = [threads.submit(ledger.close)]
        assert index.began.wait(HANG_S)
        closings += [threads.submit(ledger.close), threads.submit(ledger.seal)]
        index.goes_on.set()
        for closing in closings:
            closing.result(HANG_S)
    assert verify(ledger.path).ok


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("plain-key_1", "plain-key_1"),
        ("a/../b", "a-b-"),
        (".hidden", "-hidden-"),
        ("x" * 200, "x" * 60 + "-"),
    ],
)
def test_a_session_key_of_any_kind_gives_a_plain_file_name(key: str, name: str) -> None:
    file_name = ledger_name(key)
    assert file_name.startswith(name)
    assert "/" not in file_name
    assert len(file_name) <= 100


def test_a_full_disk_is_an_error() -> None:
    ledger = Ledger(Path("/dev/full"), b"k" * 32)
    with pytest.raises(LedgerError, match="cannot be written"):
        ledger.append("step", {})
    os.close(ledger._descriptor)


def test_all_who_create_the_key_at_once_get_the_same_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            folder = tmp_path / str(number)
            folder.mkdir()
            keys = set(pool.map(ledger_module._load_key, [folder] * 8))
            assert len(keys) == 1
            assert [file.name for file in folder.iterdir()] == ["key"], "nothing temporary is left"
            assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600


def test_a_folder_of_ledgers_is_prepared_once_and_refused_when_it_cannot_be_used(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "ledger"
    key = prepare_folder(folder)
    assert (folder / "key").read_bytes() == key == prepare_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "key").write_bytes(b"short")
    with pytest.raises(LedgerError, match="is damaged"):
        prepare_folder(folder)
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be used: Not a directory"):
        prepare_folder(tmp_path / "file" / "ledger")


def _remove(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _add_to(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def _move_away(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))


def _replace(path: Path) -> None:
    copy = path.with_suffix(".copy")
    shutil.copy(path, copy)
    copy.replace(path)


def _remove_its_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_remove, "is gone"),
        (_empty, "bytes where"),
        (_cut, "bytes where"),
        (_add_to, "bytes where"),
        (_move_away, "is gone"),
        (_replace, "is another file now"),
        (_remove_its_folder, "is gone"),
    ],
)
def test_a_ledger_that_another_program_changes_takes_no_record(
    tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    for count in (0, 1, 3):  # a new one, and one that was opened again
        folder = tmp_path / str(count)
        if count == 3:
            written(folder)
        ledger = open_ledger(folder, "log")
        ledger.append("step", {})
        change(ledger.path)
        with pytest.raises(LedgerError, match=message):
            ledger.append("step", {})
        with suppress(LedgerError):  # there may be no folder for its head
            ledger.close()


async def test_no_call_runs_when_its_ledger_is_gone(real_session: OpenSession, tmp_path: Path) -> None:
    session = real_session(approver=AllowAll())
    assert not (await session.call("sandbox_write", {"path": "a", "content": "1"})).is_error
    assert session.log_path is not None
    session.log_path.unlink()
    refused = await session.call("sandbox_write", {"path": "b", "content": "1"})
    assert refused.is_error
    assert "is gone: another program has changed it" in refused.content
    assert not (tmp_path / "workspace" / "b").exists()


def end_at(moments: Iterator[int], most: int, event: str, arguments: tuple[object, ...]) -> None:
    """End the process at its `most`th moment."""
    del arguments
    if event in ENDED_AT and next(moments) == most:
        os._exit(9)


def test_no_moment_of_opening_and_writing_is_taken_for_tampering(tmp_path: Path) -> None:
    """Whatever call a process ends at, the ledger is sound and can be continued."""
    moments = 0
    while True:
        folder = tmp_path / str(moments)
        pid = os.fork()
        if pid == 0:
            try:
                sys.addaudithook(functools.partial(end_at, itertools.count(), moments))
                with open_ledger(folder, "log") as ledger:
                    ledger.append("step", {})
                    with suppress(OSError):  # only to have a moment between two records
                        os.truncate(tmp_path, 0)
                    ledger.append("step", {})
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        if (folder / "log.jsonl").exists() and (folder / "key").exists():
            assert verify(folder / "log.jsonl").problems == ()
        with open_ledger(folder, "log") as ledger:
            ledger.append("again", {})
        assert verify(ledger.path).ok
        if os.waitstatus_to_exitcode(status) == 0:
            break
        moments += 1
    assert moments > 10


ENDED_AT = frozenset(
    ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.truncate", "os.listdir", "fcntl.flock")
)
"""What Python reports before it calls the kernel, of what opening and writing a ledger does."""


def test_an_empty_key_blocks_nothing_that_was_not_written_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "key").touch()
    with open_ledger(folder, "log") as ledger:
        ledger.append("step", {})
    assert verify(ledger.path).ok
    (folder / "key").write_bytes(b"")
    with pytest.raises(LedgerError, match="Put the key back from a copy, or move the folder away"):
        open_ledger(folder, "other")


# ---- power


@pytest.mark.parametrize("loss", ["nothing", "all", "some"])
def test_power_that_fails_is_not_taken_for_tampering(tmp_path: Path, loss: Loss) -> None:
    """Whatever is lost that was not synced: the ledger opens again, with all records up to the last head."""
    recorded, sealed = tmp_path / "recorded", [(0, 0)]
    key = prepare_folder(recorded)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(recorded)
        disk.record(patch)
        with open_ledger(recorded, "log") as ledger:
            for number in range(12):
                ledger.append("step", {"number": number})
                if number % 3 == 2:
                    ledger.seal()
                    sealed.append((len(disk.log), ledger.records))
        with open_ledger(recorded, "log") as ledger:
            ledger.append("step", {"number": 12})
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _file: None)
        for cut, seed in itertools.product(range(1, len(disk.log) + 1), range(4)):
            folder = tmp_path / "cut"
            folder.mkdir()
            disk.write_to(folder, cut, loss, random.Random(f"{seed} {cut}"))
            (folder / "key").write_bytes(key)
            with open_ledger(folder, "log") as ledger:
                assert ledger.records >= max(count for at, count in sealed if at <= cut)
            assert verify(folder / "log.jsonl").ok
            shutil.rmtree(folder)


def test_zeros_in_what_a_head_counts_are_damage(tmp_path: Path) -> None:
    """Only what no head counts may be lost with the power."""
    path = written(tmp_path)
    lines = lines_of(path)
    path.write_bytes(b"".join([*lines[:3], bytes(len(lines[3])), *lines[4:]]))
    assert not verify(path).ok
    with pytest.raises(LedgerError, match="is damaged: 2 lines were cut off its end"):
        open_ledger(tmp_path, "log")
