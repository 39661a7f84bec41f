"""The programs that run notebooks find the kernel and run them in it: nbclient, papermill, a console."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pexpect  # type: ignore[import-untyped]  # it ships no types
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.notebook.kernel.jupyter import environment, install_spec
from tests.waiting import HANG_S

CELLS = ("x = 6 * 7\nprint('printed')", "x", "import os\nos.path.exists(os.path.expanduser('~/.ssh'))")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A person's folder with a notebook, and a secret beside it."""
    install_spec(tmp_path / "jupyter")
    (tmp_path / "course").mkdir()
    notebook = new_notebook(cells=[new_code_cell(code) for code in CELLS])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, tmp_path / "course" / "lesson.ipynb")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".ssh").mkdir()
    (tmp_path / "home" / ".ssh" / "id").write_text("secret")
    return tmp_path


def run(folder: Path, *command: str) -> None:
    """Run a program of this Python's in the course's folder."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder / "course",
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def outputs(path: Path) -> list[Sequence[str]]:
    """What each cell of a notebook shows."""
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    return [
        ["".join(out.get("text") or out["data"]["text/plain"]) for out in cell["outputs"]] for cell in code
    ]


def test_jupyter_execute(folder: Path) -> None:
    run(folder, "jupyter_core.command", "execute", "--kernel_name=aisotools", "--inplace", "lesson.ipynb")
    assert outputs(folder / "course" / "lesson.ipynb") == [["printed\n"], ["42"], ["False"]]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_papermill(folder: Path) -> None:
    run(folder, "papermill", "-k", "aisotools", "--no-progress-bar", "lesson.ipynb", "done.ipynb")
    assert outputs(folder / "course" / "done.ipynb") == [["printed\n"], ["42"], ["False"]]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_jupyter_console(folder: Path) -> None:
    console = pexpect.spawn(
        sys.executable,
        ["-m", "jupyter_console", "--kernel", "aisotools", "--simple-prompt"],
        cwd=str(folder / "course"),
        env={**environment(folder), "TERM": "dumb"},
        timeout=HANG_S,
        encoding="utf-8",
    )
    console.expect("In \\[1\\]: ")
    console.sendline("6 * 7")
    console.expect("42")
    console.sendline("import os; os.path.exists(os.path.expanduser('~/.ssh'))")
    console.expect("False")
    console.sendline("exit")
    console.expect(pexpect.EOF)
    console.close()
