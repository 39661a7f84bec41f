"""Which entries of a folder stand in for modules, for `python -m` there and programs that obey settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aisotools.core.types import AbsentNames, Effect, Facts
from aisotools.policy.shell.classify import classify_shell, shell_facts
from aisotools.workspace.importable import may_be_imported
from aisotools.workspace.path_facts import PathResolver

EVIL = "print('EVIL')\n"
PLANTED = [
    ("calendar.py", "python3 -m calendar 2024"),
    ("calendar.py", "python3 -B -m calendar 2024"),
    ("calendar/__init__.py", "python3 -m calendar 2024"),
    ("calendar/__main__.py", "python3 -m calendar 2024"),
    ("json/__init__.py", "python3 -m json.tool x.json"),
    ("re.py", "python3 -m base64 -t"),
    ("argparse.py", "python3 -m ast x.py"),
    ("tabnanny.py", "python3 -m tabnanny x.py"),
    ("zipfile.py", "python3 -m zipfile -l a.zip"),
    ("_colorize.py", "python3 -m calendar 2024"),
    ("timeit.py", "python3 -m timeit --help"),
    ("pip/__main__.py", "python3 -m pip list"),
    ("requests.py", "python3 -m pip list"),
    ("numpy/f2py/__main__.py", "python3 -m numpy.f2py -v"),
    ("sub/this.py", "cd sub && python3 -m this"),
    ("sub/this.py", "cd sub; python3 -m this"),
    ("this.py", "bash -c 'python3 -m this'"),
    ("this.py", "ls | xargs python3 -m this"),
    ("jupyter_config.py", "jupyter kernelspec list"),
    ("jupyter_kernelspec_config.json", "jupyter kernelspec list"),
    ("pylintrc", "pylint --version"),
    ("pyproject.toml", "cd sub && pylint --version"),
    ("setup.cfg", "flake8 --version"),
    ("latexmkrc", "latexmk -version"),
]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "sub").mkdir(parents=True)
    (folder / "x.json").write_text("{}")
    (folder / "x.py").write_text("1\n")
    (folder / "test").mkdir()
    (folder / "venv").mkdir()
    (folder / "html").mkdir()
    (folder / "main.py").write_text("1\n")
    return folder


def plant(workspace: Path, path: str) -> None:
    (workspace / path).parent.mkdir(parents=True, exist_ok=True)
    (workspace / path).write_text(EVIL)


def resolved(workspace: Path, command: str) -> Facts:
    return PathResolver(workspace).resolve(shell_facts(command))


@pytest.mark.parametrize(("path", "command"), PLANTED)
def test_a_file_that_a_command_would_run_makes_it_uncertain(workspace: Path, path: str, command: str) -> None:
    if " pip" in command or "numpy" in command:  # what is installed may import a module of any name
        assert not resolved(workspace, command).certain
        (workspace / "x.py").unlink()
    plain = resolved(workspace, command)
    if "xargs" not in command:
        assert (plain.certain, plain.effect, plain.without_dashes) == (True, Effect.READ_ONLY, None)
    plant(workspace, path)
    facts = resolved(workspace, command)
    assert (facts.certain, facts.effect) == (False, Effect.LOCAL_MUTATION)
    assert (facts.absent, facts.without_dashes) == ((), None)


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("calendar.py", "calendar 2024"),
        ("json/__init__.py", "json.tool x.json"),
        ("re.py", "base64 -t"),
        ("argparse.py", "ast x.py"),
    ],
)
def test_python_does_run_it_without_these_options(workspace: Path, path: str, module: str) -> None:
    """The control."""
    plant(workspace, path)

    def run(*options: str) -> str:
        words = [sys.executable, *options, "-m", *module.split()]
        environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            words, cwd=workspace, env=environment, capture_output=True, text=True, check=False
        ).stdout

    assert "EVIL" in run()
    for option in ("-I", "-P"):
        assert "EVIL" not in run(option)
        facts = resolved(workspace, f"python3 {option} -m {module}")
        assert (facts.certain, facts.effect) == (True, Effect.READ_ONLY)


@pytest.mark.parametrize(
    "path", ["calendar.txt", "calendar", "src/calendar.py", "data/x", "helpers.py", "setup.py"]
)
def test_files_that_stand_in_for_nothing_leave_it_free(workspace: Path, path: str) -> None:
    plant(workspace, path)
    assert resolved(workspace, "python3 -m calendar 2024").effect is Effect.READ_ONLY


@pytest.mark.parametrize(
    "command",
    [
        "echo 'print(1)' > this.py; python3 -m this",
        "cp x.py this.py; python3 -m this",
        "mkdir this; cp x.py this/__main__.py; python3 -m this",
        "ln -s x.py this.py; python3 -m this",
        "mv sub json; python3 -m json.tool x.json",
        "git checkout evil; python3 -m this",
        "tee this.pyc < x; python3 -m this",
        "cat x > pylintrc; pylint --version",
        "for d in *; do cd $d; python3 -m this; done",
        "cd $x; python3 -m this",
        "cd ..; python3 -m this",
        "cd /tmp; python3 -m this",
        "cd ..; pylint --version",
        "PYTHONPATH=sub python3 -m this",
        "export PYTHONPATH=sub; python3 -m this",
    ],
)
def test_a_module_that_the_command_makes_or_looks_for_elsewhere_is_uncertain(
    workspace: Path, command: str
) -> None:
    assert not resolved(workspace, command).certain


@pytest.mark.parametrize("command", ["python3 -m json.tool x.json > y.json", "python3 -m this | tee log.txt"])
def test_other_files_that_the_command_writes_do_not_matter(workspace: Path, command: str) -> None:
    facts = resolved(workspace, command)
    assert (facts.certain, facts.effect) == (True, Effect.LOCAL_MUTATION)


@pytest.mark.parametrize(
    "command", ["flask --help", "locust --version", "rubocop --version", "pdm --version"]
)
def test_programs_that_load_code_of_the_folder_before_they_answer_are_asked(command: str) -> None:
    assert not classify_shell(command).certain


def test_both_answers_come_with_the_folder_that_decides() -> None:
    facts = shell_facts("cd sub && python3 -m this", "top")
    assert facts.absent == (AbsentNames("top/sub", modules="standard"),)
    assert facts.without_dashes is not None
    assert (facts.certain, facts.without_dashes.certain) == (False, True)


def test_a_folder_that_cannot_be_read_may_hold_anything(workspace: Path) -> None:
    (workspace / "json").symlink_to("json")
    (entry,) = [entry for entry in os.scandir(workspace) if entry.name == "json"]
    assert may_be_imported(entry, "standard")
    assert not may_be_imported(entry, "")
