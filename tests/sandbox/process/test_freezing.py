from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.sandbox.process.tree import descendants, find_background_processes, freeze_tree

SCRIPT = "while :; do echo x >> busy; done & (while :; do sleep 0.001; echo y >> lazy; done) & wait"


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[int]:
    shell = subprocess.Popen(["sh", "-c", SCRIPT], cwd=tmp_path, start_new_session=True)
    try:
        while not ((tmp_path / "busy").exists() and (tmp_path / "lazy").exists()):
            time.sleep(0.001)
        yield shell.pid
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()


def sizes(folder: Path) -> list[int]:
    return [(folder / name).stat().st_size for name in ("busy", "lazy")]


def test_nothing_is_written_meanwhile_and_all_goes_on_afterwards(busy: int, tmp_path: Path) -> None:
    for _ in range(5):
        with freeze_tree(busy):
            before = sizes(tmp_path)
            time.sleep(0.02)
            assert sizes(tmp_path) == before
        while any(now <= then for now, then in zip(sizes(tmp_path), before, strict=True)):
            time.sleep(0.001)


def test_what_was_stopped_before_stays_stopped(busy: int) -> None:
    writer = min(descendants(busy))
    os.kill(writer, signal.SIGSTOP)
    while "\nState:\tT" not in Path(f"/proc/{writer}/status").read_text():
        time.sleep(0.001)
    with freeze_tree(busy):
        pass
    time.sleep(0.01)
    assert "\nState:\tT" in Path(f"/proc/{writer}/status").read_text()
    assert writer not in find_background_processes(busy, 0)


def test_background_processes_are_returned_with_their_names(busy: int) -> None:
    worker = min(descendants(busy))
    found = find_background_processes(busy, worker)
    assert worker not in found
    assert set(found.values()) <= {"sh", "sleep", "dash"}
    assert find_background_processes(0, 0) == {}
    assert descendants(0) == set()
