"""Which lock files other processes have locked, whatever their state folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aisotools.workspace.claims import _claims_of, is_same_for, list_claims

HOLD = """
import fcntl, os, sys
for name, how in ((sys.argv[2], fcntl.LOCK_SH), (sys.argv[3], fcntl.LOCK_EX), (sys.argv[4], 0)):
    file = os.open(f"{sys.argv[1]}/{name}.lock", os.O_CREAT | os.O_RDWR)
    if how:
        fcntl.flock(file, how)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("few_files", [0, 1 << 40], ids=["the kernel is asked", "each process is looked at"])
def test_locks_of_other_processes_are_found(tmp_path: Path, few_files: int) -> None:
    folder, shared, alone, unlocked = tmp_path / "claims", "0" * 32, "1" * 32, "2" * 32
    folder.mkdir()
    command = [sys.executable, "-c", HOLD, str(folder), shared, alone, unlocked]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        claims = {one for one in list_claims(few_files=few_files) if one[0] == process.pid}
        assert claims == {(process.pid, shared, False), (process.pid, alone, True)}
        process.communicate()
    assert not [one for one in list_claims(few_files=few_files) if one[0] == process.pid]


def test_same_folder_for_a_process_that_shares_our_files(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_same_for(process.pid, str(tmp_path))
        assert not is_same_for(process.pid, str(tmp_path / "missing"))
        process.kill()


def test_a_lock_is_not_taken_for_that_of_the_next_file_with_its_number(tmp_path: Path) -> None:
    """A process that closes a lock file and locks another one: the kernel tells name and lock one by one."""
    folder, shared, alone = tmp_path / "claims", "0" * 32, "1" * 32
    folder.mkdir()
    code = f"""
import fcntl, os
print(flush=True)
while True:
    for name, how in (({shared!r}, fcntl.LOCK_SH), ({alone!r}, fcntl.LOCK_EX)):
        file = os.open({str(folder)!r} + f"/{{name}}.lock", os.O_CREAT | os.O_RDWR)
        fcntl.flock(file, how)
        for _ in range(20):
            os.getppid()
        os.close(file)
"""
    looks = set()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for _ in range(20_000):
            looks |= set(_claims_of(process.pid, is_confined=False))
        process.kill()
    assert looks == {(shared, False), (alone, True)}
