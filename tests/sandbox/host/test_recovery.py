"""What comes back of a kept state: the label that the host gives is the behaviour seen; nothing hangs.

Each row: set up, keep, change, go back, use again, with a deadline.
"""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import pytest

from aisotools.core.sandboxes import VariableLabel
from aisotools.sandbox.process import spawn
from tests.sandbox.rig import rig


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of state.

    Attributes:
        setup: Makes it.
        change: Changes it after it was kept.
        use: Uses it after going back, and gives `expected`.
        expected: What `use` gives; an exception's name if it raises.
        label: What the host says beforehand.
        lost: What it says is lost, in part.
        needs: The library it takes.
    """

    setup: str
    change: str = ""
    use: str
    expected: str
    label: VariableLabel = "exact"
    lost: str = ""
    needs: str = ""


ROWS = {
    "numpy": Row(
        needs="numpy",
        setup="import numpy as np; a = np.arange(6.0).reshape(2, 3); m = np.ones((300, 300)); m @ m",
        change="a[:] = 0; m = None",
        use="float(a.sum()), float((m @ m).sum())",
        expected="(15.0, 27000000.0)",
    ),
    "pandas": Row(
        needs="pandas",
        setup="import pandas as pd; df = pd.DataFrame({'k': ['a', 'b', 'a'], 'v': [1, 2, 3]})",
        change="df['v'] = 0",
        use="df.groupby('k').v.sum().to_dict()",
        expected="{'a': 4, 'b': 2}",
    ),
    "scikit-learn": Row(
        needs="sklearn",
        setup="import numpy as np\nfrom sklearn.ensemble import HistGradientBoostingClassifier as H\n"
        "X = np.arange(400.0).reshape(-1, 1); y = (X[:, 0] > 200) * 1\nmodel = H(max_iter=5).fit(X, y)",
        change="model = None",
        use="float(model.score(X, y)), float(H(max_iter=5).fit(X, y).score(X, y))",
        expected="(1.0, 1.0)",
    ),
    "matplotlib": Row(
        needs="matplotlib",
        setup="import matplotlib; matplotlib.use('agg'); import matplotlib.pyplot as plt, io\n"
        "fig, ax = plt.subplots(); ax.plot([1, 2])",
        change="ax.plot([3, 4]); plt.close('all')",
        use="fig.savefig(b := io.BytesIO()); print(len(ax.lines), b.getvalue()[:4])",
        expected=r"1 b'\x89PNG'",
    ),
    "polars": Row(
        needs="polars",
        setup="import polars as pl; df = pl.DataFrame({'k': [1, 1, 2], 'v': [1, 2, 3]})\n"
        "df.group_by('k').agg(pl.col('v').sum())",
        change="df = None",
        use="df['v'].to_list()",
        expected="[1, 2, 3]",
        label="data only",
        lost="polars",
    ),
    "duckdb": Row(
        needs="duckdb",
        setup="import duckdb; con = duckdb.connect(); con.execute('create table t as select 1 as x')",
        change="con.execute('insert into t values (2)')",
        use="con.execute('select sum(x) from t').fetchall()",
        expected="[(1,)]",
    ),
    "pyarrow": Row(
        needs="pyarrow",
        setup="import pyarrow as pa, pyarrow.compute as pc; t = pa.table({'x': list(range(1000))})\n"
        "t.filter(pc.greater(t['x'], 5))",
        change="t = None",
        use="t.filter(pc.greater(t['x'], 5)).num_rows",
        expected="994",
    ),
    "sqlite in memory": Row(
        setup="import sqlite3; db = sqlite3.connect(':memory:'); db.execute('create table t (x)')",
        change="db.execute('insert into t values (1)')",
        use="db.execute('select count(*) from t').fetchall()",
        expected="[(0,)]",
    ),
    "sqlite in a file": Row(
        setup="import sqlite3; db = sqlite3.connect('f.db'); db.execute('create table t (x)'); db.commit()",
        change="db.execute('insert into t values (1)'); db.commit()",
        use="sqlite3.connect('f.db').execute('select count(*) from t').fetchall()",
        expected="[(1,)]",
        label="partial",
        lost="written to open files: f.db",
    ),
    "file open for reading": Row(
        setup="open('f', 'w').write('0123456789'); f = open('f', 'rb', buffering=0); f.read(2)",
        change="f.read(4)",
        use="f.read(2)",
        expected="b'23'",
    ),
    "file open for writing": Row(
        setup="f = open('f', 'wb', buffering=0); f.write(b'ab')",
        change="f.write(b'cd')",
        use="f.tell(), f.write(b'X'), open('f').read()",
        expected="(2, 1, 'abXd')",
        label="partial",
        lost="written to open files: f",
    ),
    "generator": Row(
        setup="g = (n * n for n in range(10)); next(g)",
        change="list(g)",
        use="list(g)[:3]",
        expected="[1, 4, 9]",
    ),
    "asyncio task": Row(
        setup="import asyncio\nticks = []\nasync def tick():\n    while True:\n        ticks.append(1)\n"
        "        await asyncio.sleep(0.005)\ntask = asyncio.create_task(tick()); await asyncio.sleep(0.02)",
        change="task.cancel()",
        use="n = len(ticks); await asyncio.sleep(0.1); print(len(ticks) > n, task.done())",
        expected="True False",
    ),
    "thread": Row(
        setup="import threading, time\n"
        "t = threading.Thread(target=time.sleep, args=(60,), name='mine', daemon=True); t.start()",
        use="t.join(timeout=5); t.is_alive()",
        expected="False",
        label="partial",
        lost="threads: mine",
    ),
    "thread pool": Row(
        setup="from concurrent.futures import ThreadPoolExecutor as E; e = E(1); e.submit(int).result()",
        use="e.submit(int).result(timeout=5)",
        expected="BrokenThreadPool",
        label="partial",
        lost="threads: ThreadPoolExecutor",
    ),
    "work of the loop's own pool": Row(
        setup="import asyncio; await asyncio.to_thread(int)",
        use="print(await asyncio.wait_for(asyncio.to_thread(int), 5))",
        expected="0",
        label="partial",
        lost="threads: asyncio_0",
    ),
    "Popen": Row(
        # Popen returns before the kernel has renamed the child: wait for a word of the child itself.
        setup=(
            "import os, subprocess\n"
            "r, w = os.pipe()\n"
            "p = subprocess.Popen(['sh', '-c', 'echo up; kill -STOP $$'], stdout=w)\n"
            "word = os.read(r, 2)\n"
            "os.close(r)\n"
            "os.close(w)"
        ),
        change="p.kill(); p.wait()",
        use="p.wait(timeout=5)",
        expected="ChildProcessError",
        label="partial",
        lost="child processes: sh",
    ),
    "socket": Row(
        setup="import socket; a, b = socket.socketpair(); a.send(b'x')",
        change="b.recv(1)",
        use="b.recv(1)",
        expected="OSError",
        label="partial",
        lost="2 sockets",
    ),
    "pipe": Row(
        setup="import os; reading, writing = os.pipe()",
        use="os.write(writing, b'x'), os.read(reading, 1)",
        expected="(1, b'x')",
        label="partial",
        lost="2 pipes",
    ),
    "shared memory map": Row(
        setup="import mmap; m = mmap.mmap(-1, 4096); m[0] = 1",
        change="m[0] = 2",
        use="m[0]",
        expected="2",
        label="partial",
        lost="shared memory",
    ),
    "process pool": Row(
        setup="import multiprocessing as mp; pool = mp.get_context('fork').Pool(1); pool.apply(int)",
        use="pool.apply_async(int).get(timeout=5)",
        expected="ValueError",
        label="partial",
        lost="child processes",
    ),
}


UNUSABLE = {("process pool", "confined"), ("duckdb", "confined")}
"""What cannot even be made there, kept states or not."""

LEVELS = [p.name for p in spawn.detection().probes if p.ok and p.name in {"isolated", "confined"}]


@pytest.mark.sample(8)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ROWS)
async def test_restored_variables_match_the_label(tmp_path: Path, name: str, level: str) -> None:
    row = ROWS[name]
    if row.needs and importlib.util.find_spec(row.needs) is None:
        pytest.skip(f"{row.needs} is not installed")
    async with asyncio.timeout(50), rig(tmp_path, level=level) as r:
        made = await r.python(row.setup)
        if made.is_error and (name, level) in UNUSABLE:
            pytest.skip(f"cannot be made at level {level}: {made.content[-100:]}")
        assert not made.is_error, made.content
        changed = await r.python(row.change or "pass", call_id="change")
        assert not changed.is_error, changed.content
        point = await r.kernel.variables.restore("change")
        assert (point.label, row.lost in "; ".join(point.lost)) == (row.label, True), point
        if row.label == "exact":
            assert point.lost == ()
        used = await r.python(row.use, timeout_s=15)
        assert row.expected in used.content, used.content
        assert used.metadata.get("timed_out") is None
        assert not used.metadata.get("worker_died"), used.content
        assert (await r.python("1 + 1")).content == "2"
