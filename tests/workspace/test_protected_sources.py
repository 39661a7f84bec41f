"""Attacks through files of which a person's program makes a protected one, or in which it finds its plugins.

The real programs run: each attack first without protection, as a control, and then after the protected files
were restored.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.workspace.protected import ProtectedFiles
from aisotools.workspace.protected_names import (
    AllowedName,
    is_candidate,
    is_protected,
    name_to_allow,
    zone_of,
)
from tests.workspace.test_protected_attacks import (
    EVIL_PY,
    PYTEST,
    Attack,
    Place,
    each,
    nothing,
    restored_then_used,
    using,
    written,
)

LONG_AGO = 1e9
PLUGIN = "[pytest11]\nevil = notes_of_work\n"
COMMANDS = "[console_scripts]\nx = x.main:run\n\n[gui_scripts]\n# a comment\ny = x.main:run\n"
LOAD = "import importlib.metadata as m; [p.load() for p in m.entry_points(name='evil')]"
with_plugins = using("env", "-u", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", *PYTEST)
loading = using("python", "-c", LOAD)


def written_long_ago(name: str, text: str) -> Callable[[Place], object]:
    def write(place: Place) -> None:
        written(name, text)(place)
        os.utime(place.ws / name, (LONG_AGO, LONG_AGO))

    return write


def link_to_metadata(place: Place) -> None:
    written("notes/entry_points.txt", PLUGIN)(place)
    written("notes/PKG-INFO", "Name: x\n")(place)
    (place.ws / "x.egg-info").symlink_to("notes")


def metadata(folder: str, use: Callable[[Place], object]) -> Attack:
    """An attack by a plugin that `folder` names, or by a link in place of such a folder."""
    return Attack(
        plant=each(
            written(f"{folder}/PKG-INFO", "Name: x\n") if folder else nothing,
            written(f"{folder}/entry_points.txt", PLUGIN) if folder else link_to_metadata,
            written("notes_of_work.py", EVIL_PY),
        ),
        use=use,
        before=written("test_a.py", "def test_a(): pass\n"),
    )


def in_folder(name: str) -> Callable[[Place], object]:
    return lambda place: (place.ws / name).mkdir(exist_ok=True)


def a_repository_long_ago(place: Place) -> None:
    place.repository()
    os.utime(place.ws / ".git/config", (LONG_AGO, LONG_AGO))


def make_then_status(place: Place) -> None:
    using("make")(place)
    place.git("status")


SOURCES = {
    "a source of a person's makefile": Attack(
        plant=written("Makefile.sh", "$(shell {evil})\nall:\n"),
        use=using("make"),
        before=written_long_ago("Makefile", "all:\n\t@echo mine\n"),
    ),
    "a source of a makefile that is not there": Attack(
        plant=written("GNUmakefile.sh", "$(shell {evil})\nall:\n"), use=using("make"), before=nothing
    ),
    "a source of a file that a makefile includes": Attack(
        plant=written(".env.sh", "$(shell {evil})\n"),
        use=using("make"),
        before=each(written_long_ago(".env", "a = 1\n"), written("Makefile", "include .env\nall:\n")),
    ),
    "a source of a file that a rule needs": Attack(
        plant=written("setup.py.sh", EVIL_PY),
        use=using("make"),
        before=each(
            written_long_ago("setup.py", "import json\n"),
            written("Makefile", "all: setup.py\n\tpython setup.py\n"),
        ),
    ),
    "a source of settings that a person's settings include": Attack(
        plant=written("shared/x.cfg.sh", "[core]\n\tfsmonitor = {evil}\n"),
        use=make_then_status,
        before=each(
            lambda place: place.repository(),
            lambda place: place.git("config", "include.path", "../shared/x.cfg"),
            written("Makefile", "all: shared/x.cfg\n"),
            in_folder("shared"),
        ),
    ),
    "a source of the settings of a repository": Attack(
        plant=written(".git/config.sh", "[core]\n\tfsmonitor = {evil}\n"),
        use=make_then_status,
        before=each(
            a_repository_long_ago,
            written("Makefile", "version: .git/config\n\t@git log -1 > $@ || true\n"),
        ),
    ),
    "a source of a package in place of a module": Attack(
        plant=written("tasks/__init__.py.sh", EVIL_PY),
        use=using("sh", "-c", "make && python -c 'import tasks'"),
        before=written("Makefile", "all: tasks/__init__.py\n"),
    ),
    "a source of the first file in a folder that is run": Attack(
        plant=written("setup.py/__main__.py.sh", EVIL_PY),
        use=using("sh", "-c", "make && python setup.py"),
        before=each(in_folder("setup.py"), written("Makefile", "all: setup.py/__main__.py\n")),
    ),
}
PLUGINS = {
    "entry points in a folder of a build, and pytest": metadata("x.egg-info", with_plugins),
    "entry points of an installed distribution": metadata("x-1.0.dist-info", loading),
    "a link in place of such a folder": metadata("", loading),
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "ws", tmp_path / "mark", tmp_path / "home")


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("attack", SOURCES.values(), ids=SOURCES)
def test_make_makes_nothing_of_a_workers_files(place: Place, attack: Attack, tmp_path: Path) -> None:
    assert not restored_then_used(place, attack, tmp_path / "quarantine")


@pytest.mark.sample(1)
@pytest.mark.parametrize("attack", PLUGINS.values(), ids=PLUGINS)
def test_plugins_of_a_worker_are_not_loaded(place: Place, attack: Attack, tmp_path: Path) -> None:
    assert not restored_then_used(place, attack, tmp_path / "quarantine")


@pytest.mark.parametrize("text", [COMMANDS, "", "\n# nothing\n", "[gui_scripts]\r\nx = y:z\r\n"])
def test_entry_points_that_are_commands_may_be_written(place: Place, text: str, tmp_path: Path) -> None:
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    written("src/x.egg-info/entry_points.txt", text)(place)
    assert files.restore() == ()
    written("src/x.egg-info/entry_points.txt", PLUGIN)(place)
    assert [change.path for change in files.restore()] == ["src/x.egg-info/entry_points.txt"]


@pytest.mark.parametrize(
    "text",
    [
        *(PLUGIN, COMMANDS + PLUGIN, COMMANDS + "  [pytest11] \nx = y\n", COMMANDS + "[Console_Scripts]\n"),
        *("x = y\n", "x = y\n[console_scripts]\n", "[console_scripts\nx = y\n", "[]\nx = y\n"),
        *(COMMANDS + "\x0c[pytest11]\nx = y\n", COMMANDS + "\x1c[pytest11]\nx = y\n"),
        *(COMMANDS + "\u2028[pytest11]\nx = y\n", "\ufeff[pytest11]\nx = y\n"),
    ],
)
def test_entry_points_that_are_more_than_commands(place: Place, text: str, tmp_path: Path) -> None:
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    written("x.dist-info/entry_points.txt", text)(place)
    assert [change.path for change in files.restore()] == ["x.dist-info/entry_points.txt"]


def test_commands_do_not_excuse_a_file_that_another_name_protects(place: Place, tmp_path: Path) -> None:
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    names = [".vscode/x.egg-info/entry_points.txt", "x.egg-info/setup.py"]
    for name in names:
        written(name, COMMANDS)(place)
    assert [change.path for change in files.restore()] == names


def test_metadata_beside_installed_modules_is_ordinary(place: Place, tmp_path: Path) -> None:
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    written("venv/lib/site-packages/x-1.0.dist-info/entry_points.txt", PLUGIN)(place)
    (place.ws / "venv/lib/site-packages/y.egg-info").symlink_to("x-1.0.dist-info")
    assert files.restore() == ()


@pytest.mark.parametrize("path", ["src/x.egg-info/entry_points.txt", "Makefile.sh", "a.egg", "mutant.yml,v"])
def test_names_of_sources_and_metadata_that_a_person_allows(path: str) -> None:
    name = name_to_allow(path)
    assert name is not None
    assert AllowedName(name).covers(path)


@pytest.mark.parametrize(
    "path",
    [
        *(".cargo/config.toml.sh", ".cargo/config.toml,v", ".cargo/s.config.toml", ".cargo/config.toml.sh,v"),
        *(".cargo/RCS/config.toml,v", ".cargo/RCS/config.toml", ".cargo/sccs/s.config.toml", "RCS/Makefile"),
        *("debian/rules.c", "tools/bazel.sh", "x.egg-info/entry_points.txt.sh", ".config/nextest.toml.y"),
        *("tasks/__init__.py.sh", "tasks/s.__init__.py", "tasks/RCS/__init__.py,v", "setup.py/s.__main__.py"),
        *("conftest.so.c", "conftest.cpython-311-x86_64-linux-gnu.so.sh", "conftest.pyc,v"),
        *("rootlogon.y", "rootlogon.l", "startup.ym", "_targets.l", "rootlogon.w,v"),
    ],
)
def test_sources_of_what_is_protected_by_its_place_are_protected(path: str) -> None:
    assert is_protected(path)
    assert is_candidate(path)
    name = name_to_allow(path)
    assert name is not None
    assert AllowedName(name).covers(path)


@pytest.mark.parametrize(
    "path", [".git/config.sh", "m/.git/config,v", ".git.sh", "s..git", ".git/commondir.c"]
)
def test_sources_of_what_git_obeys_may_have_to_be_protected(path: str) -> None:
    assert is_candidate(path)


@pytest.mark.parametrize(
    "path",
    [
        *("config.toml.sh", "RCS/notes.txt,v", "cargo/config.toml.sh", ".cargo/other.sh", "main.c", "x.so.c"),
        *(
            "tools/build.sh",
            "fastlane.sh",
            "tasks.sh",
            "tools.sh",
            "git.sh",
            "tasks/run.sh",
            "notes.ipynb.sh",
        ),
        *("setup.py/run.py.sh", "__init__.py.sh", "rules.c", ".git/description.sh", "parser.y", "s.txt"),
    ],
)
def test_sources_of_ordinary_files_are_ordinary(path: str) -> None:
    assert not is_candidate(path)


def test_sources_of_what_is_allowed_stay_protected() -> None:
    assert not AllowedName(".cargo/config.toml").covers(".cargo/config.toml.sh")


def test_a_name_is_taken_for_a_source_once() -> None:
    """Make does not go further, and a name of many parts takes no longer than others."""
    zone = zone_of("x")
    assert not zone.holds_candidate("s." * 60 + "x" + ".sh" * 40)
    assert not zone.holds_candidate("s.s.Makefile")
    assert not zone.holds_candidate("Makefile.sh.sh")
