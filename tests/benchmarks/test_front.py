"""The Jupyter side of a sandbox against a plain ipykernel: cells as notebooks run them, start, interrupt."""

from __future__ import annotations

import queue
import statistics
import time
from pathlib import Path

import pytest

from tests.benchmarks.figures import Figure, show
from tests.notebook.kernel.jupyter import Client, kernel

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]

CELLS = {"silent: pass": "pass", "print(1)": "print(1)", "1 + 1": "1 + 1", "1 / 0": "1 / 0"}
ROUNDS = 60


def idle_ms(client: Client, code: str) -> float:
    """From the request to idle, as a notebook sees it."""
    began_s = time.perf_counter()
    request = client.client.execute(code)
    while client.client.get_shell_msg(timeout=30)["parent_header"].get("msg_id") != request:
        continue
    while True:
        message = client.client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") != request or message["msg_type"] != "status":
            continue
        if message["content"]["execution_state"] == "idle":
            return (time.perf_counter() - began_s) * 1000


def start_ms(folder: Path, name: str) -> float:
    """From the request for a kernel to the reply of its first cell."""
    folder.mkdir()
    began_s = time.perf_counter()
    with kernel(folder, name=name) as client:
        client.client.execute("1 + 1")
        client.client.get_shell_msg(timeout=30)
        return (time.perf_counter() - began_s) * 1000


def interrupt_ms(client: Client, code: str) -> float:
    """From the interrupt to the reply; of a call that does not end, how long it was waited for."""
    request = client.client.execute(f"print('go', flush=True)\n{code}")
    while client.client.get_iopub_msg(timeout=10)["content"].get("text") != "go\n":
        continue
    time.sleep(0.1)
    began_s = time.perf_counter()
    client.manager.interrupt_kernel()
    try:
        while client.client.get_shell_msg(timeout=5)["parent_header"].get("msg_id") != request:
            continue
    except queue.Empty:
        client.manager.restart_kernel(now=True)
        client.client.wait_for_ready(timeout=30)
        return float("inf")
    took = (time.perf_counter() - began_s) * 1000
    while True:
        try:
            client.client.get_iopub_msg(timeout=0.3)
        except queue.Empty:
            return took


def test_cells(tmp_path: Path) -> None:
    figures = []
    for name in ("ours", "plain"):
        (tmp_path / name).mkdir()
    with kernel(tmp_path / "ours") as ours, kernel(tmp_path / "plain", name="python3") as plain:
        for what, code in CELLS.items():
            mine, theirs = [], []
            for _ in range(ROUNDS):
                mine.append(idle_ms(ours, code))
                theirs.append(idle_ms(plain, code))
            figures.append(Figure(what=f"to idle, {what}", samples=mine, peer=statistics.median(theirs)))
        for what, code in (
            ("sleep", "import time; time.sleep(60)"),
            ("loop", "while True: pass"),
            ("regex", "import re; re.match(r'(a+)+$', 'a' * 40 + 'b')"),
        ):
            mine = [interrupt_ms(ours, code) for _ in range(5)]
            theirs = [interrupt_ms(plain, code) for _ in range(1 if what == "regex" else 5)]
            figures.append(Figure(what=f"interrupt, {what}", samples=mine, peer=statistics.median(theirs)))
    show(*figures)


def test_start(tmp_path: Path) -> None:
    mine, theirs = [], []
    for number in range(5):
        mine.append(start_ms(tmp_path / f"ours{number}", "aisotools"))
        theirs.append(start_ms(tmp_path / f"plain{number}", "python3"))
    show(Figure(what="start to the first reply", samples=mine, peer=statistics.median(theirs)))
