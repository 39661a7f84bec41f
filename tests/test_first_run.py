"""The first minutes: aisotools is of use wherever it is loaded, and what goes wrong is told in a line."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pexpect  # type: ignore[import-untyped]  # it ships no types
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.notebook.client import Notebook, private_home
from tests.sandbox.inside import user_of
from tests.waiting import HANG_S

EXTRAS = (
    "anthropic, google.genai, html_to_markdown, httpx2, jupyterlab, langchain_core, matplotlib, mcp, numpy, "
    "openai, pandas, pyarrow, pydantic_ai, smolagents, xllamacpp"
)
NO_EXTRAS = f"""
import sys

class Missing:
    names = {EXTRAS.split(", ")!r}
    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
"""What makes an environment look as if only the core had been installed."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel that finds nothing of the extras, in a folder of its own."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "start").mkdir()
    (folder / "start" / "sitecustomize.py").write_text(NO_EXTRAS)
    options = private_home(folder)
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        options["env"].pop(key, None)
    options["env"]["PYTHONPATH"] = os.pathsep.join([str(folder / "start"), str(Path.cwd())])
    notebook = Notebook(**options)
    yield notebook
    notebook.close()


def output_of(notebook: Notebook, code: str) -> str:
    """The one line that a cell answers with, without a traceback."""
    run = notebook.run(code)
    assert not run.error, run.error
    assert run.text.startswith("UsageError: "), run
    assert run.text.count("\n") == 1, run
    return run.text


def test_without_extras(bare: Notebook) -> None:
    assert "not found" in output_of(bare, "%call python code='1 + 1'"), "before it is loaded"
    assert "after the one with %load_ext" in output_of(bare, "%load_ext aisotools\n%call python code='1 + 1'")
    shown = bare.run("%tools").displays
    assert "sandbox_bash" in str(shown)
    assert bare.run("r = %call python code='6 * 7'\nprint(r.content)").text == "42\n"
    run = bare.run("%%sandbox\nprint(6 * 7)")
    assert "42" in f"{run.text}{run.result}{run.displays}{run.shown}"
    assert bare.run("import numpy").error, "the extras were to be missing here"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("%tols", "`%tols` not found"),
        ("%tools fil", "file"),
        ("%call sandbox_bsh command=ls", "sandbox_bash"),
        ("%%agent\nDo something.", "-m human"),
        ("%%agent -m gpt\nDo something.", "-m local"),
        ("%%agent -m openai:gpt-5\nDo something.", "aisotools[models]"),
        ("%sandbox stats", "status"),
        ("%policy wild", "plan, safe, auto"),
    ],
)
def test_a_slip_is_answered_in_a_line_that_helps(bare: Notebook, typed: str, says: str) -> None:
    bare.run("%load_ext aisotools")
    assert says in output_of(bare, typed)


def test_without_any_level_the_error_says_what_to_do() -> None:
    """On a kernel without Landlock and namespaces; found by taking them away from a whole process."""
    code = "import asyncio; from aisotools import Session\nasyncio.run(Session('workspace').start())"
    run = simulated("-c", code)
    assert run.returncode != 0
    last = run.stderr.strip().splitlines()[-1]
    assert "LevelUnavailable" in last, run.stderr
    assert 'level="limited"' in last
    assert "aisotools doctor" in last


def simulated(*arguments: str) -> subprocess.CompletedProcess[str]:
    user_of("plain")  # skips where an ordinary user cannot read the interpreter
    simulate = Path(__file__).parent / "sandbox" / "simulate.py"
    command = [sys.executable, str(simulate), "--no-landlock", "--uid", str(os.getuid() or 2001), "--"]
    folder = Path(tempfile.mkdtemp(prefix="aisotools-first-"))
    folder.chmod(0o777)
    env = private_home(folder)["env"] | {"PYTHONPATH": str(Path.cwd())}
    try:
        return subprocess.run(
            [*command, sys.executable, *arguments],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)


# ---- terminals and runners

ASKED = 'await current_session().call("sandbox_write", {"path": "a.txt", "content": "hi"}, origin="model")'


def terminal(folder: Path, *arguments: str) -> pexpect.spawn[str]:
    options = private_home(folder)
    child = pexpect.spawn(
        sys.executable,
        list(arguments),
        cwd=options["cwd"],
        env=options["env"],
        encoding="utf-8",
        timeout=HANG_S,
    )
    child.setwinsize(50, 200)
    return child


def converse(child: pexpect.spawn[str], folder: Path) -> None:
    """Load, call, be asked and say yes."""
    child.expect(r"In \[1\]: ")
    child.sendline("%load_ext aisotools")
    child.expect(r"In \[2\]: ")
    child.sendline("%call python code='6 * 7'")
    child.expect("42")
    child.expect(r"In \[3\]: ")
    child.sendline("from aisotools import current_session")
    child.expect(r"In \[4\]: ")
    child.sendline(ASKED)
    child.expect("sandbox_write")
    child.expect(r"\[y\][^\n]*: |y/n|approve[^\n]*[:?] ")
    child.sendline("y")
    child.expect("Created a.txt")
    child.sendline("exit")
    child.expect(pexpect.EOF)
    child.close()
    assert len(list(folder.rglob("a.txt"))) == 1


def test_terminal_ipython(tmp_path: Path) -> None:
    converse(terminal(tmp_path, "-m", "IPython", "--simple-prompt", "--no-banner"), tmp_path)


@pytest.mark.slow
def test_jupyter_console_which_shows_no_card(tmp_path: Path) -> None:
    converse(terminal(tmp_path, "-m", "jupyter_console", "--simple-prompt"), tmp_path)


@pytest.mark.slow
def test_papermill_where_nobody_is_there(tmp_path: Path) -> None:
    cells = [
        "%load_ext aisotools",
        "%call python code='6 * 7'",
        "from aisotools import current_session",
        f"r = {ASKED}\nr",
    ]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = new_notebook(cells=[new_code_cell(c) for c in cells], metadata={"kernelspec": spec})
    nbformat.write(notebook, tmp_path / "in.ipynb")
    options = private_home(tmp_path)
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", "in.ipynb", "out.ipynb"]
    subprocess.run(
        command, cwd=options["cwd"], env=options["env"], check=True, timeout=HANG_S, capture_output=True
    )
    outputs = [str(cell.outputs) for cell in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells]
    assert "42" in outputs[1]
    assert "Nobody can be asked here" in outputs[3]
    assert not list(tmp_path.rglob("a.txt"))
