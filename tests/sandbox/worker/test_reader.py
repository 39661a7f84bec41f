"""What a reader cannot do, at both levels that have readers, in every mode, as root and as a plain user."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.host.fork_observation import list_inherited
from aisotools.sandbox.process import spawn
from aisotools.sandbox.worker import reader
from tests.sandbox import inside
from tests.sandbox.conftest import Places
from tests.sandbox.inside import Who
from tests.sandbox.reader_attacks import ATTACKS, attacks_at
from tests.sandbox.worker.interpreter import run_alone

pytestmark = pytest.mark.timeout(300)

LEVELS = ("isolated", "confined")


def play(who: Who, folder: Path, *arguments: str) -> Any:
    uid = inside.user_of(who)
    command, user = inside.command_of(
        [sys.executable, "-m", "tests.sandbox.reader_attacks", *arguments, str(folder)], uid
    )
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        timeout=280,
        check=False,
        **user,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize(
    ("how", "who", "mode", "level"),
    [
        # Every attempt at each level, and as each user there is; the other combinations are slow.
        ("together", "root", "plan", "isolated"),
        ("together", "plain", "safe", "confined"),
        pytest.param(
            "together", "plain", "safe", "isolated", marks=[pytest.mark.slow] if os.getuid() == 0 else []
        ),
        *(
            pytest.param("together", who, mode, level, marks=pytest.mark.slow)
            for who, mode, level in [
                ("root", "plan", "confined"),
                *itertools.product(["plain"], ["plan", "auto"], LEVELS),
            ]
        ),
        # The same with a reader for each attempt.
        *(
            pytest.param("apart", who, mode, level, marks=pytest.mark.slow)
            for who, mode, level in [
                *itertools.product(["root"], ["plan"], LEVELS),
                *itertools.product(["plain"], ["plan", "safe", "auto"], LEVELS),
            ]
        ),
    ],
)
def test_no_attempt_works_in_a_reader_and_each_works_where_changes_are_declared(
    how: str, who: Who, mode: str, level: str, place: Places
) -> None:
    if not any(probe.name == level and probe.ok for probe in spawn.detection().probes):
        pytest.skip(f"this machine cannot hold the level {level}")
    found = play(who, place(who), how, level, mode)
    assert found.keys() == attacks_at(level).keys()
    for name, outcome in found.items():
        assert outcome["tried"], (name, outcome)
        assert outcome["reading"] is False, (name, outcome)
        assert outcome["changing"] is True or ATTACKS[name].control == "outside", (name, outcome)


def test_attempts_that_no_worker_may_make_work_without_a_sandbox(place: Places) -> None:
    who: Who = "root" if os.getuid() == 0 else "plain"
    found = play(who, place(who), "outside")
    assert found == {name: True for name, attack in ATTACKS.items() if attack.control == "outside"}


def test_number_of_attempts() -> None:
    assert all(len(attacks_at(level)) > 100 for level in LEVELS)
    assert len({attack.attempt + attack.prepare for attack in ATTACKS.values()}) == len(ATTACKS)


# ---- one step at a time


def test_descriptors_are_replaced_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    found = run_alone(
        """
import errno, json, os, socket
from aisotools.sandbox.worker.reader import replace_descriptors

def outcome(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return 'done'

file = os.open('file', os.O_RDWR)
os.lseek(file, 3, os.SEEK_SET)
other = os.dup(file)
writing = os.open('file', os.O_WRONLY)
folder = os.open('.', os.O_RDONLY)
null = os.open('/dev/null', os.O_WRONLY)
r, w = os.pipe()
kept_r, kept_w = os.pipe()
pair, _ = socket.socketpair()
listed = [file, other, writing, folder, null, r, w, kept_r, kept_w, pair.fileno(), 999]
lost = replace_descriptors(listed, {kept_r, kept_w})
os.read(file, 1)
print(json.dumps([
    os.lseek(other, 0, os.SEEK_CUR), os.read(other, 9).decode(),
    [outcome(os.write, number, b'x') for number in (file, other, writing, null, w, kept_w, pair.fileno())],
    outcome(os.read, r, 1), outcome(os.listdir, folder), lost,
]))
""",
        tmp_path,
    )
    assert found == [
        3,
        "tent",
        ["EBADF", "EBADF", "EBADF", "done", "EBADF", "done", "EBADF"],
        "EBADF",
        "done",
        ["3 pipes, sockets or the like"],
    ]


def test_shared_memory_becomes_private(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old" + bytes(5000))
    found = run_alone(
        """
import json, mmap, os
from aisotools.sandbox.host.fork_observation import list_inherited
from aisotools.sandbox.worker.reader import unshare_memory

file, reading = os.open('file', os.O_RDWR), os.open('file', os.O_RDONLY)
writable = mmap.mmap(file, 0)
guarded = mmap.mmap(file, 0, prot=mmap.PROT_READ)
only_read = mmap.mmap(reading, 0, prot=mmap.PROT_READ)
anonymous = mmap.mmap(-1, 4096)
anonymous[0] = 7
before = list_inherited(os.getpid())['shared']
unshare_memory(before)
after = list_inherited(os.getpid())['shared']
writable[:3] = b'new'
os.pwrite(file, b'own', 0)
print(json.dumps([
    len(before) - len(after), writable[:3].decode(), guarded[:3].decode(), only_read[:3].decode(),
    anonymous[0], open('file', 'rb').read(3).decode(),
]))
""",
        tmp_path,
    )
    assert found == [3, "new", "old", "own", 7, "own"]


def test_too_much_shared_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_COPIED_BYTES", 4096)
    shared = mmap.mmap(-1, 8192)
    with pytest.raises(SandboxError, match=r"shares more than .* numpy\.memmap"):
        reader.unshare_memory(list_inherited(os.getpid())["shared"])
    assert shared[0] == 0


def test_a_process_with_its_rights_is_no_reader(tmp_path: Path) -> None:
    failures = reader.list_remaining_rights([str(tmp_path)])
    assert f"files can still be made in {str(tmp_path)!r}" in failures
    assert "sockets can still be made" in failures
    assert reader.list_remaining_rights([str(tmp_path / "missing")]) == failures[1:]
