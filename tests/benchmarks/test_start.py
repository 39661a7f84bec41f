"""What importing, `%load_ext` and the first session cost, each in a fresh process; and what they load."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.figures import Figure, show
from tests.notebook.client import private_home

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]

IMPORT = """
import json, sys, time
before = set(sys.modules)
began = time.perf_counter()
import aisotools
print(json.dumps([(time.perf_counter() - began) * 1000, sorted(set(sys.modules) - before)]))
"""
LOAD = """
import json, sys, time
import ipykernel.kernelapp
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
before = set(sys.modules)
began = time.perf_counter()
shell.run_line_magic("load_ext", "aisotools")
print(json.dumps([(time.perf_counter() - began) * 1000, sorted(set(sys.modules) - before)]))
"""
TOOL = """
import json, time
began = time.perf_counter()
from aisotools import tool
@tool
def area(width: float, height: float = 1) -> float:
    "Area."
    return width * height
print(json.dumps([(time.perf_counter() - began) * 1000, []]))
"""
SESSION = """
import asyncio, json, sys, time
began = time.perf_counter()
from aisotools import AllowAll, Session
async def main():
    async with Session(sys.argv[1], approver=AllowAll()) as session:
        await session.call("python", {"code": "1 + 1"})
        return (time.perf_counter() - began) * 1000
print(json.dumps([asyncio.run(main()), []]))
"""
PANDAS = """
import asyncio, json, sys, time
from aisotools import AllowAll, Session
async def main():
    async with Session(sys.argv[1], approver=AllowAll()) as session:
        await session.call("python", {"code": "1 + 1"})  # the fork server is up
    async with Session(sys.argv[1], approver=AllowAll()) as session:
        began = time.perf_counter()
        await session.call("python", {"code": "import pandas"})
        return (time.perf_counter() - began) * 1000
print(json.dumps([asyncio.run(main()), []]))
"""
OWN_INTERPRETER = """
import json, subprocess, sys, time
began = time.perf_counter()
subprocess.run([sys.executable, "-I", "-c", "import aisotools.sandbox.worker.worker"], check=True)
print(json.dumps([(time.perf_counter() - began) * 1000, []]))
"""
FORKED_WORKER = """
import asyncio, json, sys, time
from aisotools import AllowAll, Session
async def main():
    async with Session(sys.argv[1], approver=AllowAll()) as session:  # starts the fork server
        began = time.perf_counter()
        await session.restart()
        return (time.perf_counter() - began) * 1000
print(json.dumps([asyncio.run(main()), []]))
"""
HEAVY = ("mcp", "openai", "anthropic", "google", "pydantic_ai", "litellm", "nbformat", "matplotlib", "pandas")


def measured(code: str, folder: Path, *, runs: int = 7) -> tuple[list[float], set[str]]:
    """Milliseconds of each run, with a home in `folder`, and the modules that came."""
    samples, modules = [], set()
    env = private_home(folder)["env"]
    for _ in range(runs):
        command = [sys.executable, "-c", code, str(folder / "workspace")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        took, loaded = json.loads(done.stdout.splitlines()[-1])
        samples.append(took)
        modules |= set(loaded)
    return samples, modules


def test_start(tmp_path: Path) -> None:
    importing, imported = measured(IMPORT, tmp_path)
    loading, loaded = measured(LOAD, tmp_path)
    first_tool, _ = measured(TOOL, tmp_path)
    sessions, _ = measured(SESSION, tmp_path)
    show(
        Figure(what="import aisotools", samples=importing, budget=60),
        Figure(what="%load_ext, ipykernel loaded", samples=loading, budget=100),
        Figure(what="import and first @tool", samples=first_tool, budget=200),
        Figure(what="the very first session, to its first result", samples=sessions, budget=500),
    )
    for what, modules in (("import aisotools", imported), ("%load_ext aisotools", loaded)):
        tops = sorted({name.partition(".")[0] for name in modules})
        print(f"\n{what} loads {len(modules)} modules of: {', '.join(tops)}")
        assert not set(tops) & set(HEAVY)


def test_own_interpreter(tmp_path: Path) -> None:
    """What another seed of hashes and other addresses for each session would cost, which no fork has."""
    executed, _ = measured(OWN_INTERPRETER, tmp_path)
    forked, _ = measured(FORKED_WORKER, tmp_path)
    show(
        Figure(what="a worker's interpreter, executed", samples=executed),
        Figure(what="a worker forked and confined", samples=forked, peer=statistics.median(executed)),
    )
    assert min(executed) > statistics.median(forked)


def test_preloading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh worker that imports pandas, which its fork server has imported already, or has not."""
    pytest.importorskip("pandas")
    without, _ = measured(PANDAS, tmp_path, runs=5)
    monkeypatch.setenv("AISOTOOLS_PRELOAD", "numpy,pandas")
    preloaded, _ = measured(PANDAS, tmp_path, runs=5)
    show(
        Figure(what="a fresh worker's `import pandas`", samples=without),
        Figure(what="the same, preloaded", samples=preloaded, peer=statistics.median(without)),
    )
