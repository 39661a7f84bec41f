"""Read only is enforced, not believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolCall, ToolResult
from aisotools.policy.approvers import DenyAll
from aisotools.sandbox.confinement import landlock
from aisotools.session.session import Session
from aisotools.tools.adapter import payload_of
from tests.conftest import OpenSession

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock to enforce it with")


async def believed(session: Session, command: str) -> ToolResult:
    """Run `command` as if it had been taken for reading, past the classifier."""
    await session.call("sandbox_bash", {"command": "true"})
    shipment = payload_of(session.registry["sandbox_bash"])
    assert shipment is not None
    assert session.sandbox is not None
    call = ToolCall(f"believed {command}", "sandbox_bash", {"command": command})
    return await session.sandbox.call(SandboxCall(call=call, shipment=shipment, timeout_s=10, read_only=True))


async def test_reading_needs_nobody_and_works(real_session: OpenSession, tmp_path: Path) -> None:
    session = real_session(approver=DenyAll())
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "a").write_text("one\ntwo\n")
    for command, output in [
        ("cat a | tac", "two\none"),
        ("sort -r < a 2>/dev/null | head -n1", "two"),
        ("cat <<EOF\nhello\nEOF", "hello"),
        ("wc -l <<< x", "1"),
        ("diff <(cat a) <(cat a) && echo same", "same"),
        ("ls > /dev/null; echo $?", "0"),
    ]:
        result = await session.call("sandbox_bash", {"command": command}, origin="model")
        assert not result.is_error, (command, result.content)
        assert result.content == output
        assert result.metadata["read_only"] is True


async def test_a_change_wrongly_classified_read_only_fails_and_says_why(
    real_session: OpenSession, tmp_path: Path
) -> None:
    session = real_session(approver=DenyAll())
    victim = tmp_path / "workspace" / "kept"
    victim.parent.mkdir()
    victim.write_text("kept")
    for command in (
        "echo x > new",
        "echo x > kept",
        "rm kept",
        "mkdir folder",
        "mv kept moved",
        "ln -s kept link",
        'python3 -c \'open("kept", "w")\'',
        ": > $HOME/x",
        "bash -c 'echo x > new' & wait $!",
    ):
        result = await believed(session, command)
        assert result.is_error, command
        assert "without the right to change files" in result.content, command
        assert result.metadata["read_only"] is True
    assert [path.name for path in victim.parent.iterdir()] == ["kept"]
    assert victim.read_text() == "kept"


async def test_temporary_files_are_no_changes(real_session: OpenSession) -> None:
    session = real_session(approver=DenyAll())
    result = await believed(session, "echo x > $TMPDIR/x && cat $TMPDIR/x")
    assert result.content == "x"


async def test_commands_not_classified_read_only_may_change_files(
    real_session: OpenSession, tmp_path: Path
) -> None:
    session = real_session()
    result = await session.call("sandbox_bash", {"command": "echo x > new; cat new"}, origin="person")
    assert result.content == "x"
    assert "read_only" not in result.metadata
    assert (tmp_path / "workspace" / "new").exists()
