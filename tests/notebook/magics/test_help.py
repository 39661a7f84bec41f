"""What `%magic?` shows: every option of a magic with its meaning, and the name that a person types."""

from __future__ import annotations

import re

import pytest

from aisotools.notebook.magics.agent import USAGE
from aisotools.notebook.magics.session import AisotoolsMagics, ToolMagics
from aisotools.notebook.magics.undo import _USAGE, UndoMagics


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<!\w)--[a-z][a-z-]+|(?<![\w-])-[a-z]\b", text))


def test_help_of_an_agent_cell_names_every_option() -> None:
    shown = options_in(str(AisotoolsMagics.agent.__doc__))
    named = options_in(USAGE)
    assert len(named) > 6
    assert named <= shown


@pytest.mark.parametrize("magic", ["undo", "redo", "changes"])
def test_help_of_undo_names_every_option_and_what_force_does(magic: str) -> None:
    shown = str(getattr(UndoMagics, magic).__doc__)
    assert options_in(_USAGE[magic]) <= options_in(shown)
    if "--force" in _USAGE[magic]:
        assert "With `--force` it overwrites it, and ends these processes." in " ".join(shown.split())


def test_help_of_a_tool_cell_shows_the_name_that_is_typed() -> None:
    shown = str(ToolMagics.tool_cell.__doc__)
    assert "%%tool [--name NAME]" in shown
    assert "tool_cell" not in shown
