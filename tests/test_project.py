"""The project around the package: versions agree, dependencies are used, nothing of this machine is in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import aisotools
from tests import shape

ROOT = Path(__file__).resolve().parent.parent

TOP_LEVEL = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "aisotools",
    "binder",
    "notebooks",
    "pyproject.toml",
    "tests",
}

UNUSED = {
    "ipywidgets": "what anywidget renders with; the floor is ours, since 8.1 restores widgets from a reload",
    "matplotlib-inline": "figures in the worker; matplotlib loads it by name, from MPLBACKEND",
}
"""Core dependencies that nothing of ours imports, and why they are core all the same."""

BROUGHT = {
    "httpcore2": "httpx2",
    "jupyter-core": "jupyter-client",
    "langgraph-checkpoint": "langgraph",
    "langgraph-prebuilt": "langgraph",
    "pydantic-core": "pydantic",
    "pyzmq": "jupyter-client",
    "tornado": "ipykernel",
    "traitlets": "ipython",
}
"""Distributions we import that come with another one, as part of its interface."""

SAID_NAMES = {"jovyan", "user", "someone"}
"""Home folders that stand for anybody's: Binder's user, and names of nobody."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    data: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return data


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name]


def required(requirements: list[str]) -> set[str]:
    """The distributions of a list of requirements, ourselves left out."""
    return {normal(Requirement(line).name) for line in requirements} - {"aisotools"}


def imported() -> set[str]:
    """Every distribution that the package imports somewhere, lazily or not."""
    owners = packages_distributions()
    libraries = {
        one.written.partition(".")[0]
        for module in shape.read(ROOT / "aisotools").values()
        for one in module.imports
        if one.target is None
    }
    outside = libraries - sys.stdlib_module_names
    return {normal(owner) for library in outside for owner in owners.get(library, [library])}


def test_the_version_is_one(project: dict[str, Any]) -> None:
    assert project["version"] == aisotools.__version__
    head = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert head is not None
    assert head[1] in {"Unreleased", aisotools.__version__}


def test_core_dependencies_are_used(project: dict[str, Any]) -> None:
    unused = required(project["dependencies"]) - imported()
    assert unused == set(UNUSED), "drop it from pyproject.toml, or give the reason in UNUSED"


def test_imported_libraries_are_declared(project: dict[str, Any]) -> None:
    declared = required(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        declared |= required(extra)
    used = {BROUGHT.get(name, name) for name in imported()}
    assert used <= declared, f"add to pyproject.toml: {', '.join(sorted(used - declared))}"


def test_the_package_is_marked_as_typed(tracked: list[str]) -> None:
    assert "aisotools/py.typed" in tracked


def test_the_top_level_stays_small(tracked: list[str]) -> None:
    entries = {name.partition("/")[0] for name in tracked}
    surplus = sorted(entry for entry in entries - TOP_LEVEL if not entry.startswith("."))
    assert not surplus, f"these belong into one of {sorted(TOP_LEVEL)}: {surplus}"


def test_the_readme_has_its_two_commands() -> None:
    commands = re.findall(r"^\s*(python3 -m venv .*)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert [command.rpartition(".venv/bin/")[2] for command in commands] == [
        "aisotools lab",
        "python -m pytest",
    ]


def test_binder_pins_what_core_and_lab_need(project: dict[str, Any]) -> None:
    lines = (ROOT / "binder" / "requirements.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    for line in [*project["dependencies"], *project["optional-dependencies"]["lab"]]:
        needed = Requirement(line)
        pin = pins.get(normal(needed.name))
        assert pin is not None, (
            f"{line} has no pin in binder/requirements.txt; its first lines say how to renew it"
        )
        assert pin in needed.specifier, f"binder/requirements.txt pins {pin}, pyproject.toml wants {line}"


def test_the_wheel_ships_the_tutorials(tracked: list[str]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"][
        "targets"
    ]
    there = any(
        name.startswith("notebooks/") for name in tracked
    )  # hatchling refuses a folder that is missing
    shipped = {"notebooks": "aisotools/tutorials"} if there else {}
    assert settings["wheel"].get("sources", {}) == shipped, "`aisotools lab` needs them where no checkout is"


@pytest.mark.parametrize("path", [".ci/run", "binder/postBuild", "binder/start"])
def test_scripts_are_executable(path: str) -> None:
    assert os.access(ROOT / path, os.X_OK)


def test_ci_refuses_an_unknown_option() -> None:
    command = ["bash", str(ROOT / ".ci/run"), "--fulll"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (2, "usage: bash .ci/run [--full]\n")


def texts(tracked: list[str]) -> Iterator[tuple[str, str]]:
    """The tracked files that are text."""
    for name in tracked:
        path = ROOT / name
        data = path.read_bytes() if path.is_file() else b""
        if b"\0" not in data:
            yield name, data.decode("utf-8", "replace")


def homes_in(text: str) -> set[str]:
    """Home folders of particular people that a text names."""
    found = set(re.findall(r"(?:/home|/Users|\\Users)[/\\]+([A-Za-z][\w-]*)", text))
    return found - SAID_NAMES


def test_no_file_names_a_home_folder(tracked: list[str]) -> None:
    named = {name: homes for name, text in texts(tracked) if (homes := homes_in(text))}
    assert not named


def test_home_folders_are_recognised() -> None:
    somebody = "anne"  # put together here, or this file would name one
    assert homes_in(f"cd /home/{somebody}/x; /home/jovyan; C:\\Users\\{somebody}") == {somebody}


def machine_words() -> set[str]:
    """Paths and hosts that belong to this machine: the checkout, the interpreter, pip's sources."""
    words = {f"{path}/" for path in (ROOT, Path(sys.prefix)) if len(path.parts) > 2}
    settings = [value for name, value in os.environ.items() if name.startswith("PIP_")]
    files = (Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf", Path.home() / ".pip/pip.conf")
    settings += [path.read_text("utf-8") for path in files if path.is_file()]
    hosts = set(re.findall(r"https?://(?:[^/@\s]*@)?([\w.-]+)", " ".join(settings)))
    public = {"pypi.org", "files.pythonhosted.org", "localhost"}
    return words | {host for host in hosts - public if "." in host and not host.startswith("127.")}


def test_no_file_names_this_machine(tracked: list[str]) -> None:
    words = machine_words()
    found = {
        name: sorted(named) for name, text in texts(tracked) if (named := {w for w in words if w in text})
    }
    assert not found
