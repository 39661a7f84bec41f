"""What a checkpoint costs, beside a bare walk over the same files."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import pytest

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
    bare, ours = [], []
    for _ in range(ROUNDS):  # side by side, so that both meet the same machine
        bare.append(took_s(lambda: walk(str(root))))
        ours.append(took_s(chain.snapshot))
    chain.close()
    ratio = statistics.median(ours) / statistics.median(bare)
    print(
        f"\n10,000 files unchanged: checkpoint {statistics.median(ours) * 1e3:.1f} ms, bare walk "
        f"{statistics.median(bare) * 1e3:.1f} ms, ratio {ratio:.2f} (<= 1.5); first copy {first_s:.1f} s"
    )
    assert ratio <= 1.5


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
