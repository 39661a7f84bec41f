"""Odd entries of the lists by which Python finds modules: a session says what is wrong, or opens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aisotools.workspace.search_path import find_odd_entry, text_of_entry

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import asyncio, pathlib, sys
from aisotools import AisotoolsError, AllowAll, Session

class Odd:
    def __repr__(self): raise RuntimeError("repr")
class OddPath(Odd):
    def __fspath__(self): raise RuntimeError("path")
class BytesPath:
    def __fspath__(self): return b"/tmp"
class Text(str): pass
class OddText(str):
    def __str__(self): raise RuntimeError("text")
class Finder:
    def __eq__(self, other): raise RuntimeError("equal")
    def find_spec(self, *_): return None
class LazyFinder:
    def __getattr__(self, name): return getattr(Finder(), name)

async def main():
    async with Session(sys.argv[1], approver=AllowAll(), level="limited") as session:
        print((await session.call("python", {"code": "1 + 1"})).content)

exec(sys.argv[2])
try:
    asyncio.run(main())
except AisotoolsError as error:
    print(type(error).__name__, error)
"""


def run(code: str, tmp_path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "workspace"), code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path / "state")},
        check=False,
    )
    return done.stdout.strip() or done.stderr[-500:]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("sys.path.append(b'/tmp/x')", "sys.path has the entry b'/tmp/x', which is not text"),
        ("sys.path.append(None)", "sys.path has the entry None, which is not text"),
        ("sys.path.append(3)", "sys.path has the entry 3, which is not text"),
        ("sys.path.append(bytearray(9))", "sys.path has the entry bytearray(b'"),
        ("sys.path.append(Odd())", "sys.path has the entry <Odd>, which is not text"),
        ("sys.path.append(OddPath())", "sys.path has the entry <OddPath>, which can be no path"),
        ("sys.path.append(BytesPath())", "which can be no path"),
        ("sys.path.append('a\\0b')", "sys.path has the entry 'a\\x00b', which can be no path"),
        ("sys.path.append('\\ud800')", "which can be no path"),
        ("sys.meta_path.append(b'x')", "sys.meta_path has the entry b'x', which has no find_spec"),
        ("sys.meta_path.insert(0, Odd())", "sys.meta_path has the entry <Odd>, which has no find_spec"),
        ("sys.meta_path = tuple(sys.meta_path)", "sys.meta_path is a tuple, and Python needs a list"),
        ("sys.path_hooks = tuple(sys.path_hooks)", "sys.path_hooks is a tuple"),
    ],
)
def test_an_entry_that_python_cannot_use_is_named(code: str, message: str, tmp_path: Path) -> None:
    assert message in run(code, tmp_path)
    assert not (tmp_path / "workspace").exists()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "code",
    [
        "pass",
        "sys.path.append(Text('/tmp/q'))",
        "sys.path.append(OddText('/tmp/q'))",
        "sys.path.append(pathlib.Path('/tmp/q'))",
        "sys.path.append('\\udcff')",
        "sys.path = tuple(sys.path)",
        "sys.meta_path.append(Finder())",
        "sys.meta_path.append(LazyFinder())",
        "sys.path_hooks.append(None)",
        "sys.path_importer_cache[b'x'] = None",
        "sys.modules[b'x'] = sys",
        "sys.modules['x'] = None",
    ],
)
def test_entries_that_python_passes_over_are_no_obstacle(code: str, tmp_path: Path) -> None:
    assert run(code, tmp_path) == "2"


def test_this_process_has_no_odd_entry() -> None:
    assert not find_odd_entry()


@pytest.mark.parametrize("entry", [b"x", 3, None])
def test_entries_that_are_no_text_have_none(entry: Any) -> None:
    with pytest.raises(TypeError):
        text_of_entry(entry)
    assert text_of_entry(Path("/a")) == "/a"
