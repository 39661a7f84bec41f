"""What a checkpoint costs, beside a bare walk over the same files."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.workspace.checkpoints.timeline import Checkpoints

pytestmark = pytest.mark.benchmark

FOLDERS, FILES = 100, 100
ROUNDS = 21


def walk(folder: str) -> int:
    """What anybody pays who looks at every file: list and stat, nothing else."""
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            entry.stat(follow_symlinks=False)
            count += 1 + (walk(entry.path) if entry.is_dir(follow_symlinks=False) else 0)
    return count


def walk_by_path(folder: str) -> None:
    """The same by `os.walk` and `os.lstat`, as most programs do it."""
    for parent, _, files in os.walk(folder):
        for name in files:
            os.lstat(os.path.join(parent, name))  # noqa: PTH118 - paths would take longer still


def took_s(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


@pytest.mark.timeout(300)
def test_an_unchanged_workspace_of_10000_files(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    for folder in range(FOLDERS):
        (root / str(folder)).mkdir(parents=True)
        for file in range(FILES):
            (root / str(folder) / str(file)).write_text(f"{folder} {file}")
    chain = Checkpoints(root, tmp_path / "store")
    first_s = took_s(chain.snapshot)
    time.sleep(0.05)
    chain.snapshot()
    bare, by_path, ours = [], [], []
    for _ in range(ROUNDS):  # side by side, so that all meet the same machine
        bare.append(took_s(lambda: walk(str(root))))
        by_path.append(took_s(lambda: walk_by_path(str(root))))
        ours.append(took_s(chain.snapshot))
    chain.close()
    ratio = statistics.median(ours) / statistics.median(bare)
    ratio_by_path = statistics.median(ours) / statistics.median(by_path)
    print(
        f"\n10,000 files unchanged: checkpoint {statistics.median(ours) * 1e3:.1f} ms, bare walk "
        f"{statistics.median(bare) * 1e3:.1f} ms, ratio {ratio:.2f} (<= 1.5); os.walk and os.lstat "
        f"{statistics.median(by_path) * 1e3:.1f} ms, ratio {ratio_by_path:.2f} (<= 1.0); "
        f"first copy {first_s:.1f} s"
    )
    assert ratio <= 1.5
    assert ratio_by_path <= 1.0


def test_a_small_workspace(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    root.mkdir()
    for file in range(20):
        (root / str(file)).write_text(str(file))
    chain = Checkpoints(root, tmp_path / "store")
    chain.snapshot()
    time.sleep(0.05)
    chain.snapshot()

    def step(number: int) -> None:
        chain.begin(str(number), "tool", "s")
        chain.end(str(number))

    times = [took_s(lambda number=number: step(number)) for number in range(300)]  # type: ignore[misc]  # a loop's value
    print(f"\n20 files unchanged: before and after a call {statistics.median(times) * 1e3:.2f} ms")
    chain.close()


def bare_syncs(folder: Path, contents: int) -> None:
    """What anybody pays who keeps a change: new files, their folder and a journal, each synced."""
    for number in range(contents):
        file = os.open(folder / f"new {number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(file, os.urandom(60))
        (folder / f"new {number}").rename(folder / os.urandom(8).hex())
        os.fdatasync(file)
        os.close(file)
    opened = os.open(folder, os.O_RDONLY)
    os.fsync(opened)
    os.close(opened)
    journal = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(journal, bytes(300))
    os.fdatasync(journal)
    os.close(journal)


@pytest.mark.timeout(300)
def test_durable_change_costs_the_bare_syncs_and_a_millisecond(tmp_path: Path) -> None:
    root, bare_folder = tmp_path / "workspace", tmp_path / "bare"
    for folder in (root, bare_folder):
        folder.mkdir()
    for number in range(20):
        (root / str(number)).write_text("unchanged")
    chain = Checkpoints(root, tmp_path / "store")
    time.sleep(0.05)
    bare, ours = [], []

    def change() -> None:
        chain.end(call_id)

    for number in range(3 * ROUNDS):
        call_id = str(number)
        chain.begin(call_id, "tool", "s")
        file = os.open(root / "0", os.O_WRONLY | os.O_TRUNC)
        os.write(file, call_id.encode())
        os.fdatasync(file)  # a scan syncs what it reads, so that is paid for here
        os.close(file)
        bare.append(took_s(lambda: bare_syncs(bare_folder, 2)))
        ours.append(took_s(change))
    chain.close()
    over_ms = (statistics.median(ours) - statistics.median(bare)) * 1e3
    print(
        f"\ndurable change of a small file: {statistics.median(ours) * 1e3:.1f} ms, of which bare syncs "
        f"{statistics.median(bare) * 1e3:.1f} ms, {over_ms:+.2f} ms over them (<= 1)"
    )
    assert over_ms <= 1


class Syncs:
    """Counts and times what waits for the disk."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count, self.took_s = 0, 0.0
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._timed(getattr(os, name)))

    def _timed(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def call(file: int) -> None:
            began_s = time.perf_counter()
            sync(file)
            self.took_s += time.perf_counter() - began_s
            self.count += 1

        return call


BARE_FORK = """
import os, statistics, time
times = []
for _ in range(21):
    began = time.perf_counter()
    child = os.fork()
    if not child:
        os._exit(0)
    times.append(time.perf_counter() - began)
    os.waitpid(child, 0)
print(statistics.median(times) * 1e3)
"""


@pytest.mark.timeout(300)
async def test_undo_of_a_small_change_with_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 21 undos the median: what it takes beside its syncs, and what of that is work of this process.

    An undo forks the snapshot of the worker. What a bare fork of the same worker takes is printed beside it,
    to tell a slow undo from a slow machine.
    """
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    async with Session(tmp_path / "workspace", environ=environ, approver=AllowAll()) as session:
        assert session.workspace is not None
        for number in range(20):
            (session.workspace / str(number)).write_text("unchanged")
        await session.run_cell("x = 0")
        syncs = Syncs(monkeypatch)
        walls_s, works_s, counts = [], [], []
        for number in range(ROUNDS):
            code = f"x = {number + 1}; _ = open('0', 'w').write('{number}')"
            assert not (await session.run_cell(code)).is_error
            count, synced_s = syncs.count, syncs.took_s
            began_s, work_s = time.perf_counter(), time.process_time()
            undone = await session.undo()
            works_s.append(time.process_time() - work_s)
            walls_s.append(time.perf_counter() - began_s - (syncs.took_s - synced_s))
            counts.append(syncs.count - count)
            assert not undone.is_error, undone.content
            assert (await session.run_cell("x")).content == "0"
        fork_ms = float((await session.run_cell(BARE_FORK)).content)
    wall_ms, work_ms = statistics.median(walls_s) * 1e3, statistics.median(works_s) * 1e3
    print(
        f"\nundo of a small change with variables: {wall_ms:.1f} ms beside {statistics.median(counts):.0f} "
        f"syncs (<= 15), of which {work_ms:.1f} ms are CPU time of the host; a bare fork of the worker takes "
        f"{fork_ms:.1f} ms"
    )
    assert work_ms <= 15
    assert wall_ms <= 15
