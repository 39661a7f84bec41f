"""Package managers: what shows, and what installs."""

from __future__ import annotations

from aisotools.policy.shell.commands.packages import COMMANDS
from tests.policy.shell.commands.verdicts import wrong_effects

EFFECTS = [
    ("pip cache list", "read_only"),
    ("pip --verbose list", "read_only"),
    ("pip install a", "local_mutation?"),
    ("npm run", "read_only"),
    ("npm run a", "local_mutation?"),
    ("conda list", "read_only"),
    ("conda config --show", "read_only"),
    ("conda config --set a b", "local_mutation?"),
    ("conda search a", "local_mutation?"),
    ("brew list", "read_only"),
    ("brew install a", "local_mutation?"),
    ("pacman -Q", "read_only"),
    ("pacman -Syu", "local_mutation?"),
    ("uv pip list", "read_only"),
    ("uv tree", "local_mutation?"),
    ("uv tree --frozen", "read_only"),
    ("rustup show", "local_mutation?"),
    ("gem list --remote", "remote_action"),
    ("pkg-config --libs a", "read_only"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}
