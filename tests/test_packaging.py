"""What is built and installed: the wheel's content, and smoke tests where there is no repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = """
import sys
from hatchling import build

print(getattr(build, f"build_{sys.argv[1]}")(sys.argv[2]))
"""
NEEDED = {
    "aisotools/py.typed",
    "aisotools/notebook/approval/page/card.js",
    "aisotools/notebook/approval/page/card.css",
    "aisotools/kernelspec/kernel.json",
    "aisotools/tutorials/01-first-calls.ipynb",
    "aisotools/tutorials/data/penguins.csv",
}
KINDS = {".py", ".js", ".css", ".json", ".png", ".svg", ".ipynb", ".csv", ".md"}
OURS = ("aisotools/", "aisotools-")

SMOKE = """
import asyncio, importlib.util, json, subprocess, sys
import aisotools
from aisotools import AllowAll, Session, tool

assert aisotools.__file__.startswith(sys.prefix), aisotools.__file__
assert importlib.util.find_spec("pytest") is None, "this environment is not empty"

@tool
def double(x: int) -> int:
    "Twice x."
    return 2 * x

async def main():
    async with Session("workspace/smoke", approver=AllowAll()) as session:
        session.registry.register(double)
        assert (await session.call("double", {"x": "4"})).value == 8
        assert "hi" in (await session.call("sandbox_bash", {"command": "echo hi"})).content
        assert (await session.run_cell("x = 1\\nx + 1")).content == "2"
        print(session.level)

asyncio.run(main())

from jupyter_client.kernelspec import KernelSpecManager
assert "aisotools" in KernelSpecManager().find_kernel_specs()

from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext aisotools").raise_error()
shell.run_cell("%tools").raise_error()

from aisotools.notebook.approval.widgets import ApprovalCard
assert "render" in ApprovalCard._esm and ApprovalCard._css
"""


def build(kind: str, target: Path, source: Path = ROOT) -> Path:
    """Build a wheel or a source archive, without looking anything up."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_what_is_needed(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= NEEDED
    assert any(name.endswith("share/jupyter/kernels/aisotools/kernel.json") for name in names)
    sources = {
        f"aisotools/{path.relative_to(ROOT / 'aisotools')}" for path in (ROOT / "aisotools").rglob("*.py")
    }
    assert names >= sources


def surplus(names: Sequence[str]) -> list[str]:
    """What has no business in a wheel: other folders, caches, what the tutorials wrote, odd files."""
    odd = ("__pycache__", ".ipynb_checkpoints", "/tutorials/workspace/", "/tests/", ".toml", "/.")
    return [
        name
        for name in names
        if not name.startswith(OURS)
        or any(part in f"/{name}" for part in odd)
        or (".dist-info/" not in name and name != "aisotools/py.typed" and Path(name).suffix not in KINDS)
    ]


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    assert not surplus(zipfile.ZipFile(wheel).namelist())
    assert wheel.stat().st_size < 8 << 20, "a wheel of more than 8 MiB: what has come in?"


def test_surplus_is_seen() -> None:
    names = [
        "aisotools/a.py",
        "tests/a.py",
        "aisotools/tutorials/workspace/default/x.csv",
        "aisotools/key.pem",
    ]
    assert surplus(names) == names[1:]


def test_no_private_words_are_in_the_wheel(wheel: Path) -> None:
    """Where it was built is not in it."""
    with zipfile.ZipFile(wheel) as opened:
        named = [name for name in opened.namelist() if f"{ROOT}/".encode() in opened.read(name)]
    assert not named


def test_an_editable_installation_leads_here(tmp_path: Path) -> None:
    built = zipfile.ZipFile(build("editable", tmp_path))
    (paths,) = (name for name in built.namelist() if name.endswith(".pth"))
    assert built.read(paths).decode().split() == [str(ROOT)]


# ---- installed, without the repository


def install(archive: Path, place: Path) -> Path:
    """An empty environment with the archive and what it needs; its Python."""
    pip = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
    subprocess.run([pip, "-m", "venv", "--without-pip", str(place)], check=True, capture_output=True)
    python = place / "bin" / "python"
    done = subprocess.run(
        [pip, "-m", "pip", "--python", str(python), "install", "-q", str(archive)],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return python


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_the_installed_package_works(kind: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    if kind == "sdist":  # what is built from the archive is built without a repository, too
        archive = build("sdist", tmp_path)
        source.mkdir()
        subprocess.run(["tar", "-xzf", str(archive), "-C", str(source)], check=True)
        (unpacked,) = source.iterdir()
        assert (unpacked / "tests" / "conftest.py").is_file()
        assert not surplus(zipfile.ZipFile(build("wheel", tmp_path, unpacked)).namelist())
    else:
        archive = build("wheel", tmp_path)
    python = install(archive, tmp_path / "environment")
    (tmp_path / "work").mkdir()
    inherited = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    env = {**inherited, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    for command in (
        [str(python), "-c", SMOKE],
        [str(python.parent / "aisotools"), "--version"],
        [str(python.parent / "aisotools"), "doctor", "--json"],
        [str(python.parent / "aisotools"), "tools"],
    ):
        done = subprocess.run(
            command, cwd=tmp_path / "work", env=env, capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, f"{command[:2]}: {done.stdout}{done.stderr}"
