"""The history of a session whose files are on another machine."""

from __future__ import annotations

import pytest

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Effect, Facts, ToolCall
from aisotools.session.undo_history import NoUndoHistory, UndoHistory
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession


async def test_without_files_here_every_request_is_refused(open_session: OpenSession) -> None:
    session = open_session(MockTool("m", runs_in="sandbox"), MockTool("h", runs_in="host"))
    history: UndoHistory = NoUndoHistory()
    for refused in (await history.undo(), await history.redo()):
        assert (refused.is_error, refused.error_kind) == (True, "invalid")
        assert "another machine" in refused.content
    for request in (history.exclusive, lambda: history.store):
        with pytest.raises(UsageError, match="another machine"):
            request()
    with pytest.raises(UsageError, match="Ask `sandbox_bash`"):
        await history.changes()
    assert not history.can_undo(Facts(effect=Effect.LOCAL_MUTATION, path_guarded=True))
    words = [await history.describe(session.explain(ToolCall("1", name, {}))) for name in ("m", "h")]
    assert words == [
        "It cannot be undone: it runs on another machine.",
        "It cannot be undone: this session keeps no earlier state.",
    ]
    history.close()
