"""Attacks through templates, and through folders that Python and Node take for a protected module.

The real programs run: each attack first without protection, as a control, and then after the protected files
were restored.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aisotools.workspace.protected import ProtectedFiles
from aisotools.workspace.protected_names import AllowedNames, is_candidate, is_protected
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

NOTEBOOK = {
    "cells": [
        {
            "cell_type": "code",
            "id": "a",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": ["import subprocess; subprocess.run(['{evil}'])"],
        }
    ],
    "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}
EVIL_J2 = "{{ cycler.__init__.__globals__.os.system('{evil}') }}"
EVIL_JS = "require('child_process').execFileSync('{evil}')\n"
EXECUTE = {
    "base_template": "base",
    "mimetypes": {"text/html": True},
    "preprocessors": {"1": {"type": "nbconvert.preprocessors.ExecutePreprocessor", "enabled": True}},
}
notebook = written("n.ipynb", json.dumps(NOTEBOOK))


def converted(to: str, *options: str) -> Attack:
    """An attack on a person who converts a notebook of theirs, without what is planted."""
    return Attack(
        plant=nothing, use=using("jupyter-nbconvert", "--to", to, *options, "n.ipynb"), before=notebook
    )


def planted(attack: Attack, name: str, text: str) -> Attack:
    return Attack(plant=written(name, text), use=attack.use, before=attack.before)


def link_to_package(place: Place) -> None:
    written("other/__init__.py", EVIL_PY)(place)
    (place.ws / "conftest").symlink_to("other")


TEMPLATES = {
    "a template of nbconvert": planted(converted("html"), "lab/index.html.j2", EVIL_J2),
    "settings beside a template, which run the notebook": planted(
        converted("html"), "lab/conf.json", json.dumps(EXECUTE)
    ),
    "a template of the old form": planted(
        converted("html", "--template", "full"), "classic/full.tpl", EVIL_J2
    ),
}
MODULES = {
    "a package in place of a module that starts with Python": Attack(
        plant=written("sitecustomize/__init__.py", EVIL_PY), use=using("python", "-c", "1"), before=nothing
    ),
    "a package beside a person's conftest.py": Attack(
        plant=written("conftest/__init__.py", EVIL_PY),
        use=using(*PYTEST),
        before=written("conftest.py", "import json\n"),
    ),
    "a link to a package beside a person's conftest.py": Attack(
        plant=link_to_package, use=using(*PYTEST), before=written("conftest.py", "import json\n")
    ),
    "a changed package of the person": Attack(
        plant=written("usercustomize/__init__.py", EVIL_PY),
        use=using("/usr/bin/python3", "-c", "1"),
        before=written("usercustomize/__init__.py", "import json\n"),
    ),
    "a folder of the name of a script": Attack(
        plant=written("setup.py/__main__.py", EVIL_PY),
        use=using("python", "setup.py", "--name"),
        before=nothing,
    ),
    "a folder of the name of a script that holds a package": Attack(
        plant=each(
            written("setup.py/__main__.py", "import sub.other\n"), written("setup.py/sub/other.py", EVIL_PY)
        ),
        use=using("python", "setup.py", "--name"),
        before=nothing,
    ),
}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "ws", tmp_path / "mark", tmp_path / "home")


@pytest.mark.sample(1)
@pytest.mark.parametrize("attack", TEMPLATES.values(), ids=TEMPLATES)
def test_converting_a_notebook_runs_nothing_of_a_worker(place: Place, attack: Attack, tmp_path: Path) -> None:
    pytest.importorskip("nbconvert")
    assert not restored_then_used(place, attack, tmp_path / "quarantine")


@pytest.mark.parametrize("attack", MODULES.values(), ids=MODULES)
def test_a_folder_in_place_of_a_protected_module_runs_nothing(
    place: Place, attack: Attack, tmp_path: Path
) -> None:
    assert not restored_then_used(place, attack, tmp_path / "quarantine")


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_a_folder_in_place_of_a_file_for_node_runs_nothing(place: Place, tmp_path: Path) -> None:
    attack = Attack(
        plant=written("gulpfile.js/index.js", EVIL_JS),
        use=using("node", "-e", "require('./gulpfile.js')"),
        before=nothing,
    )
    assert not restored_then_used(place, attack, tmp_path / "quarantine")


PROTECTED = """
    tasks/__init__.py a/tasks/__INIT__.PY Fabfile/__init__.py dodo/__init__.py noxfile/__init__.py
    setup/__init__.py sitecustomize/__init__.cpython-311-x86_64-linux-gnu.so tasks/__init__.abi3.so
    tasks/__init__.pyc tasks/__pycache__/__init__.cpython-311.pyc a/b/usercustomize/__pycache__/__init__.x.pyc
    celeryconfig/__init__.py superset_config/__init__.py setup.py/__main__.py a/Conftest.py/__main__.pyc
    gulpfile.js/index.js jest.config.ts/index.ts a/vite.config.mjs/package.json dodo.py/__init__.py
"""
ORDINARY = """
    tasks/x.py tasks/README.md tasks/sub/__init__.py tasks/sub/__pycache__/__init__.cpython-311.pyc
    a/__init__.py __init__.py conf/__init__.py conf/x.py tasks tests/tasks x/__init__.so
    __pycache__/__init__.cpython-311.pyc tasks/__pycache__/x.cpython-311.pyc main.py/x main.py/__main__.py
    Makefile/x.py gulp.js/index.js tasks/__init__.txt conftest.py/x conftest.py/a/__main__.py
"""


@pytest.mark.parametrize("path", PROTECTED.split())
def test_folders_that_are_taken_for_a_module_are_protected(path: str) -> None:
    assert is_protected(path)
    assert is_candidate(path)


@pytest.mark.parametrize("path", ORDINARY.split())
def test_folders_of_ordinary_modules_are_not(path: str) -> None:
    assert not is_protected(path)


def test_a_folder_with_the_name_of_a_module_is_restored(place: Place, tmp_path: Path) -> None:
    """The rest of the folder stays: only the file that acts by being there is taken away."""
    files = ProtectedFiles(place.ws, tmp_path / "quarantine")
    for name in ("__init__.py", "other.py"):
        written(f"tasks/{name}", "ordinary")(place)
    (place.ws / "dodo").symlink_to("tasks")
    (place.ws / "fabfile").write_text("a file of that name is not a module")
    assert [change.path for change in files.restore()] == ["dodo", "tasks/__init__.py"]
    assert sorted(path.name for path in place.ws.iterdir()) == ["evil.sh", "fabfile", "tasks"]
    assert (place.ws / "tasks/other.py").exists()


def test_a_package_that_a_person_allows(place: Place, tmp_path: Path) -> None:
    allowed = AllowedNames(["tasks/__init__.py"])
    files = ProtectedFiles(place.ws, tmp_path / "quarantine", allowed=allowed)
    for folder in ("tasks", "sub/tasks"):
        written(f"{folder}/__init__.py", "ordinary")(place)
    assert [change.path for change in files.restore()] == ["sub/tasks/__init__.py"]
