"""kill -9 of the host at a random point: the workspace is some checkpoint plus at most the running call."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aisotools.workspace.checkpoints.timeline import Checkpoints
from tests.workspace.checkpoints.test_timeline_stateful import State, state_of

pytestmark = pytest.mark.slow

HOST = """
import json, os, random, sys
from pathlib import Path
from aisotools.workspace.checkpoints.timeline import Checkpoints
root, store, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
chain = Checkpoints(root, store)
told = len(chain.steps)
print("ready", flush=True)
for number in range(10_000):
    if chain.steps and draw.random() < 0.4:
        way = draw.choice(["undo", "redo"])
        source = chain.steps if way == "undo" else chain.undone
        if source:
            chain.move(way, source[::-1][: draw.randint(1, 3)])
        continue
    chain.begin(f"{seed}-{number}", "tool", "s")
    for name in draw.sample("abcdef", 3):
        folder = root / name
        folder.mkdir(exist_ok=True)
        for inner in range(5):
            (folder / str(inner)).write_bytes(os.urandom(200))
    chain.end(f"{seed}-{number}")
"""


def reachable(chain: Checkpoints) -> set[str]:
    steps = [*chain.steps, *chain.undone]
    return {root for step in steps for root in [*step.before.values(), *step.after.values()]}


@pytest.mark.timeout(300)
def test_a_killed_host_leaves_a_checkpoint_and_the_chain_goes_on(tmp_path: Path) -> None:
    root, store = tmp_path / "workspace", tmp_path / "store"
    root.mkdir()
    draw = random.Random(7)
    for seed in range(40):
        host = subprocess.Popen(
            [sys.executable, "-c", HOST, str(root), str(store), str(seed)], stdout=subprocess.PIPE
        )
        assert host.stdout is not None
        assert host.stdout.readline() == b"ready\n"
        time.sleep(draw.uniform(0.0, 0.15))
        host.send_signal(signal.SIGKILL)
        host.wait()
        host.stdout.close()
        chain = Checkpoints(root, store)
        found = chain.snapshot().root
        # A running call ended with what is there, which so became the state after it.
        assert found in reachable(chain) or not reachable(chain), seed
        assert not list(root.rglob(".aisotools-*"))
        state: State = state_of(root)
        if chain.steps:
            chain.move("undo", chain.steps[-1:])
            moved = chain.move("redo", chain.undone[-1:])
            assert (moved.conflicts, moved.missing) == ((), ())
            assert state_of(root) == state
        chain.close()
