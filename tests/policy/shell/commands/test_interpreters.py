"""Interpreters: all code is uncertain, but for modules of Python that only print."""

from __future__ import annotations

from aisotools.policy.shell.commands.interpreters import COMMANDS
from tests.policy.shell.commands.verdicts import nested, wrong_effects

EFFECTS = [
    ("python -m json.tool a", "read_only"),
    ("python -m json.tool a b", "local_mutation?"),
    ("python -c 1", "local_mutation?"),
    ("python a.py --version", "local_mutation?"),
    ("python -m venv x", "local_mutation?"),
    ("python -m venv --help", "read_only"),
    ("python -m zipfile -l a", "read_only"),
    ("python -m zipfile -e a b", "local_mutation?"),
    ("python -I -m calendar", "read_only"),
    ("python -X x -m calendar", "local_mutation?"),
    ("ldd /bin/ls", "read_only"),
    ("ldd ./a", "local_mutation?"),
    ("ldd /bin/../tmp/a", "local_mutation?"),
    ("ruff check --no-cache a", "read_only"),
    ("ruff check a", "local_mutation?"),
    ("black --check a", "read_only"),
    ("black a", "local_mutation?"),
    ("jupyter kernelspec list", "read_only"),
    ("jupyter lab", "local_mutation?"),
    ("perl -ne x", "local_mutation?"),
    ("ack --output=x y", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


def test_a_module_that_is_a_program_of_its_own_is_judged_as_that() -> None:
    assert nested(COMMANDS, "python -m pip install x") == ["pip install x"]
    assert nested(COMMANDS, "python -mpip list") == ["pip list"]
