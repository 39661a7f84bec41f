"""The command line, on made-up machines and made-up tutorials; one real kernel runs one of them."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aisotools.cli import main
from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.confinement.detect import ENABLED_BY, PROTECTS, Detection, Probe
from tests.waiting import HANG_S

PROBES = (Probe("landlock", True, "ABI 7"), Probe("namespaces", False, "EPERM"))


@dataclass
class Stage:
    """A machine of which everything said and started is kept."""

    package: Path
    lines: list[str] = field(default_factory=list)
    started: list[Sequence[str]] = field(default_factory=list)

    def start(self, command: Sequence[str]) -> int:
        self.started.append(command)
        return 7

    def host(self, **changes: Any) -> main.Host:
        here = self.package.parent / "here"
        here.mkdir(exist_ok=True)
        host = main.Host(
            detect=lambda: Detection("confined", PROBES),
            has=lambda name: True,
            start=self.start,
            is_root=False,
            package=self.package,
            here=here,
            echo=self.lines.append,
        )
        return dataclasses.replace(host, **changes)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    @property
    def sentences(self) -> str:
        """What was said, however the lines were broken."""
        return " ".join(self.output.split())


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    package = tmp_path / "source" / "aisotools"
    package.mkdir(parents=True)
    return Stage(package)


def write_tutorial(folder: Path, *cells: str | tuple[str, str]) -> Path:
    """A notebook of code cells; a pair is a tag and a cell."""
    folder.mkdir(parents=True, exist_ok=True)
    tagged = [cell if isinstance(cell, tuple) else ("", cell) for cell in cells]
    path = folder / main.FIRST_TUTORIAL
    path.write_text(
        json.dumps(
            {
                "nbformat": 4,
                "nbformat_minor": 5,
                "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
                "cells": [
                    {
                        "cell_type": "code",
                        "id": f"cell-{number}",
                        "source": source,
                        "metadata": {"tags": [tag]} if tag else {},
                        "outputs": [],
                        "execution_count": None,
                    }
                    for number, (tag, source) in enumerate(tagged)
                ],
            },
        ),
    )
    return path


def test_doctor_tells_level_probes_and_limits(stage: Stage) -> None:
    assert main.main(["doctor"], stage.host()) == 0
    protects, leaves_open = PROTECTS["confined"]
    assert "Sandbox level: confined" in stage.output
    assert "  yes  landlock    ABI 7" in stage.lines
    assert "  no   namespaces  EPERM" in stage.lines
    assert f"What it ensures: {protects}" in stage.sentences
    assert f"What it leaves open: {leaves_open}" in stage.sentences
    assert "limited" not in stage.output


def test_doctor_says_beside_a_level_what_it_would_take(stage: Stage) -> None:
    probes = (Probe("confined", True, "the self-test passed"), Probe("isolated", False, "unshare: EPERM"))
    assert main.main(["doctor"], stage.host(detect=lambda: Detection("confined", probes))) == 0
    failed = stage.lines.index("  no   isolated  unshare: EPERM")
    beside = stage.lines[failed + 1]
    assert " ".join(beside.split()) == f"It takes: {ENABLED_BY['isolated']}"
    assert all(line.startswith(" " * 17) and len(line) <= main.MAX_LINE_CHARS for line in beside.splitlines())
    assert ENABLED_BY["confined"] not in stage.sentences


@pytest.mark.parametrize("level", [None, "limited"])
def test_doctor_without_a_sandbox_says_how_to_go_on_knowingly(stage: Stage, level: str | None) -> None:
    host = stage.host(detect=lambda: Detection(level, PROBES))
    assert main.main(["doctor"], host) == 1
    assert "Sandbox level: none" in stage.output
    assert 'Session(level="limited")' in stage.sentences
    assert "AISOTOOLS_MIN_LEVEL=limited" in stage.sentences
    assert PROTECTS["limited"][1] in stage.sentences


@pytest.mark.parametrize(("level", "status"), [("isolated", 0), ("guarded", 0), ("limited", 1), (None, 1)])
def test_doctor_json(stage: Stage, level: str | None, status: int) -> None:
    assert main.main(["doctor", "--json"], stage.host(detect=lambda: Detection(level, PROBES))) == status
    answer = json.loads(stage.output)
    assert answer["level"] == level
    assert answer["holds"] is (status == 0)
    assert answer["probes"][1] == {"name": "namespaces", "ok": False, "detail": "EPERM"}
    assert answer["protects"] == (PROTECTS[level][0] if level and status == 0 else "")
    assert answer["leaves_open"] == PROTECTS[level or "limited"][1]


def test_doctor_that_cannot_look_says_so(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    def detect() -> Detection:
        raise SandboxError("the probe process died (signal 9)")

    assert main.main(["doctor"], stage.host(detect=detect)) == 1
    assert capsys.readouterr().err == "aisotools doctor: the probe process died (signal 9)\n"


def test_ctrl_c_ends_quietly(stage: Stage) -> None:
    def detect() -> Detection:
        raise KeyboardInterrupt

    assert main.main(["doctor"], stage.host(detect=detect)) == 130


def test_doctor_on_this_machine() -> None:
    script = Path(sys.executable).parent / "aisotools"
    run = subprocess.run(
        [script, "doctor", "--json"], capture_output=True, text=True, check=False, timeout=HANG_S
    )
    answer = json.loads(run.stdout)
    assert run.returncode == (0 if answer["holds"] else 1), run.stderr
    assert answer["probes"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["doctr"], ["doctor", "--jsn"], ["doctor", "x"], ["lab", "--execute", "--port=1"]],
)
def test_wrong_command_line(stage: Stage, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments, stage.host())
    assert ended.value.code == 2
    assert "usage: aisotools" in capsys.readouterr().err
    assert stage.started == []


def test_lab_opens_the_tutorial_of_a_checkout(stage: Stage) -> None:
    folder = write_tutorial(stage.package.parent / "notebooks").parent
    further = ["--port", "9999", "--no-browser", "--exec-x"]
    assert main.main(["lab", *further], stage.host()) == 7
    place = [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{main.FIRST_TUTORIAL}"]
    assert stage.started == [[sys.executable, "-m", "jupyterlab", *place, *further]]
    assert stage.lines == []


@pytest.mark.parametrize("further", [[], ["--allow-root"]])
def test_lab_as_root_says_what_it_adds(stage: Stage, further: list[str]) -> None:
    write_tutorial(stage.package.parent / "notebooks")
    assert main.main(["lab", *further], stage.host(is_root=True)) == 7
    assert stage.started[0].count("--allow-root") == 1
    assert len(stage.lines) == (0 if further else 1)


def test_lab_from_a_wheel_copies_the_tutorials_once(stage: Stage) -> None:
    write_tutorial(stage.package / "tutorials", "1")
    (stage.package / "tutorials" / "data").mkdir()
    (stage.package / "tutorials" / "data" / "a.csv").write_text("a\n1\n")
    (stage.package / "tutorials" / "workspace").mkdir()
    (stage.package / "tutorials" / "workspace" / "left").touch()
    host = stage.host()
    assert main.main(["lab"], host) == 7
    copy = host.here / "aisotools-tutorials"
    assert f"--ServerApp.root_dir={copy}" in stage.started[0]
    assert str(copy) in stage.output
    assert (copy / "data" / "a.csv").read_text() == "a\n1\n"
    assert not (copy / "workspace").exists()

    (copy / main.FIRST_TUTORIAL).write_text("mine")
    (copy / "data" / "a.csv").unlink()
    assert main.main(["lab"], host) == 7
    assert (copy / main.FIRST_TUTORIAL).read_text() == "mine"
    assert (copy / "data" / "a.csv").exists()


@pytest.mark.parametrize("arguments", [["lab"], ["lab", "--execute"]])
def test_lab_without_jupyterlab_says_what_to_install(stage: Stage, arguments: list[str]) -> None:
    write_tutorial(stage.package.parent / "notebooks", "1")
    assert main.main(arguments, stage.host(has=lambda name: False)) == 1
    assert stage.lines == [main.NO_LAB]
    assert 'pip install "aisotools[lab]"' in main.NO_LAB
    assert stage.started == []


@pytest.mark.parametrize("arguments", [["lab"], ["lab", "--execute"]])
def test_lab_without_tutorials(
    stage: Stage, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments, stage.host()) == 1
    assert "has no tutorials" in capsys.readouterr().err


def test_lab_in_a_folder_that_cannot_be_written(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    write_tutorial(stage.package / "tutorials")
    host = stage.host()
    (host.here / "aisotools-tutorials").write_text("a file of that name")
    assert main.main(["lab"], host) == 1
    assert "aisotools-tutorials" in capsys.readouterr().err


def test_starting_replaces_this_process() -> None:
    child = "import os; print('child', os.getpid())"
    code = f"""
import os, sys
from aisotools.cli import main
print("parent", os.getpid())
main._exec([sys.executable, "-c", {child!r}])
print("not reached")
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=HANG_S
    )
    parent, became = run.stdout.splitlines()
    assert parent.replace("parent", "child") == became


def test_execute_tells_of_each_cell(stage: Stage) -> None:
    folder = stage.package.parent / "notebooks"
    tutorial = write_tutorial(
        folder,
        "# count\nfor n in range(20):\n    print('line', n)",
        "open('data.csv').read()",
        ("raises-exception", "1 / 0"),
        "",
        "open('made.txt', 'w').close(); print('\\x1b[31mred\\x1b[0m \\u202eevil\\x07')",
        "display({'image/png': 'aGk=', 'text/plain': 'a plot'}, raw=True)",
    )
    (folder / "data.csv").write_text("a,b")
    before = tutorial.read_bytes()
    assert main.main(["lab", "--execute"], stage.host()) == 0
    text = stage.output
    assert "[1/5] # count  (" in text
    assert "    line 7\n    ... 12 more lines" in text
    assert "    'a,b'" in text
    assert "    expected ZeroDivisionError: division by zero" in text
    assert "    red \\u202eevil\\x07" in text
    assert "    [image/png]\n    a plot" in text
    assert stage.lines[-1].startswith("\nAll 5 cells ran as expected, in ")
    assert tutorial.read_bytes() == before
    assert not (folder / "made.txt").exists()


def test_execute_stops_at_a_cell_that_fails(stage: Stage) -> None:
    write_tutorial(stage.package.parent / "notebooks", "1", "undefined", "print('never')")
    assert main.main(["lab", "--execute"], stage.host()) == 1
    assert "    NameError: name 'undefined' is not defined" in stage.output
    assert stage.lines[-1] == "\nCell 2 of 3 failed with NameError. Cells not run: 1."
    assert "never" not in stage.output


def test_execute_survives_a_kernel_that_does_not(stage: Stage) -> None:
    write_tutorial(stage.package.parent / "notebooks", "import os\nos._exit(3)")
    assert main.main(["lab", "--execute"], stage.host()) == 1
    assert "Cell 1 of 1 ended the notebook's kernel. Cells not run: 0." in stage.output
