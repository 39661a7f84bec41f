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
from tests.waiting import HANG_S

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock to enforce it with")


async def believed(session: Session, command: str) -> ToolResult:
    """Run `command` as if it had been taken for reading, past the classifier."""
    await session.call("sandbox_bash", {"command": "true"})
    shipment = payload_of(session.registry["sandbox_bash"])
    assert shipment is not None
    assert session.sandbox is not None
    call = ToolCall(f"believed {command}", "sandbox_bash", {"command": command})
    return await session.sandbox.call(
        SandboxCall(call=call, shipment=shipment, timeout_s=HANG_S, read_only=True)
    )


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


@pytest.mark.skipif(landlock.abi() < 6, reason="this kernel does not keep signals in a scope")
async def test_no_command_taken_for_reading_reaches_the_worker_or_its_tasks(
    real_session: OpenSession, tmp_path: Path
) -> None:
    session = real_session()
    await session.call("python", {"code": "import os; total = 41; worker = os.getpid()"}, origin="person")
    task = await session.call("sandbox_bash", {"command": "sleep 300", "background": True}, origin="person")
    assert not task.is_error, task.content
    asked = await session.call("python", {"code": "print(worker)"}, origin="person")
    worker = asked.content.strip().splitlines()[0]
    for command in (
        "kill -9 -1",
        f"kill -9 {worker}",
        f"kill -TERM {worker}; kill -INT {worker}; kill -STOP {worker}",
        "kill -9 $PPID",
        "pkill -9 sleep; killall -9 sleep",
        "awk 'BEGIN { system(\"kill -9 -1\") }'",
        "setsid bash -c 'kill -9 -1'",
        f"bash -c 'kill -9 -{worker}' & wait",
        f"python3 -c 'import os, signal; os.kill({worker}, 9)'",
    ):
        await believed(session, command)
        after = await session.call(
            "python", {"code": "print(total + 1, os.getpid() == worker)"}, origin="person"
        )
        assert "42 True" in after.content, command
    listed = await session.call("sandbox_bash", {"command": "pgrep -x sleep | wc -l"}, origin="person")
    assert int(listed.content.split()[0]) >= 1
    # The control: with the right to, the worker would be gone.
    gone = await session.call("sandbox_bash", {"command": f"kill -9 {worker}"}, origin="person")
    assert gone.is_error
    assert "ended" in gone.content


async def test_a_command_taken_for_reading_may_end_what_it_started(real_session: OpenSession) -> None:
    session = real_session()
    await session.call("sandbox_bash", {"command": "true"})
    result = await believed(
        session, "sleep 300 & kill $!; wait $!; echo ended $?; timeout 0.1 sleep 300; echo $?"
    )
    assert "ended 143" in result.content
    assert "124" in result.content


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
