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
from aisotools.workspace.protected_names import AllowedName, name_to_allow, zone_of
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


def test_a_name_is_taken_for_a_source_once() -> None:
    """Make does not go further, and a name of many parts takes no longer than others."""
    zone = zone_of("x")
    assert not zone.holds_candidate("s." * 60 + "x" + ".sh" * 40)
    assert not zone.holds_candidate("s.s.Makefile")
    assert not zone.holds_candidate("Makefile.sh.sh")
