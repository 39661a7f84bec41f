"""Both histories offer what a session needs of one."""

from __future__ import annotations

import inspect

import pytest

from aisotools.session.history import WorkspaceHistory
from aisotools.session.undo_history import NoUndoHistory, UndoHistory

MEMBERS = [name for name in vars(UndoHistory) if not name.startswith("_")]


@pytest.mark.parametrize("history", [WorkspaceHistory, NoUndoHistory])
@pytest.mark.parametrize("name", MEMBERS)
def test_histories_have_what_a_session_calls(history: type, name: str) -> None:
    wanted, offered = vars(UndoHistory)[name], inspect.getattr_static(history, name, None)
    if isinstance(wanted, property):
        assert offered is not None or f"self.{name}" in inspect.getsource(history)
    else:
        assert callable(offered)
    if inspect.isfunction(wanted) and inspect.isfunction(offered):
        assert inspect.iscoroutinefunction(offered) == inspect.iscoroutinefunction(wanted)
        assert {*inspect.signature(wanted).parameters} == {*inspect.signature(offered).parameters}


def test_members_are_found() -> None:
    assert {"undo", "redo", "changes", "store", "recovered"} <= {*MEMBERS}
