"""Results as the worker sends them; then a whole session as each kind of user, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.protocols import OutputCaps
from aisotools.core.types import ToolResult
from aisotools.sandbox.confinement import landlock, levels
from aisotools.sandbox.results import PrintedOutput, result_from_worker
from aisotools.sandbox.worker import worker
from aisotools.sandbox.worker.output import CallRecord
from tests.sandbox import escape_more, escape_shared, inside
from tests.sandbox.conftest import Places
from tests.sandbox.escape_table import PROBES
from tests.sandbox.inside import Who
from tests.sandbox.test_escape import stage_of, unexpected
from tests.sandbox.victims import Victims
from tests.waiting import HANG_S

# ---- results


def test_an_interrupted_call_says_what_it_has() -> None:
    assert worker.interrupted_result().content == "The call was interrupted."
    result = worker.interrupted_result("half")
    assert (result.content, result.is_error) == ("The call was interrupted.\nhalf", True)
    assert result.metadata["stopped"] is True


def test_an_interrupted_call_is_never_a_success() -> None:
    result = worker.mark_stopped(ToolResult.text("all done"))
    assert (result.is_error, result.error_kind, result.kind) == (True, "failed", "error")
    assert result.content == "The call was interrupted.\nall done"
    error = worker.mark_stopped(ToolResult.error("Traceback", error_kind="invalid"))
    assert (error.content, error.error_kind, error.metadata["stopped"]) == ("Traceback", "invalid", True)


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "content"),
    [
        (ValueError("no"), "no"),
        (SystemExit(3), "The tool tried to exit (3)"),
        (UnprintableError(), "UnprintableError"),
        (KeyboardInterrupt(), "The call was interrupted."),
        (asyncio.CancelledError(), "The call was interrupted."),
    ],
)
def test_an_exception_of_a_tool_is_its_result(error: BaseException, content: str) -> None:
    caps = OutputCaps()
    pieces = worker.encode_failure(error, CallRecord(call_id="1"), caps)
    result = result_from_worker(pieces, caps, PrintedOutput(0))
    assert result.is_error
    assert content in result.content
    assert result.metadata.get("stopped", False) is content.startswith("The call was interrupted")
    if result.metadata.get("stopped"):
        assert result.content == content


@pytest.mark.parametrize("kind", [KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("message", [(), ("by the host",)])
def test_an_interrupted_tool_says_where_it_was_and_does_not_name_the_exception(
    kind: type[BaseException], message: tuple[str, ...]
) -> None:
    async def tool() -> None:
        raise error

    error = kind(*message)
    caps = OutputCaps()
    with pytest.raises(kind):
        tool().send(None)
    pieces = worker.encode_failure(error, CallRecord(call_id="1"), caps)
    content = result_from_worker(pieces, caps, PrintedOutput(0)).content
    assert content.startswith("The call was interrupted.\nTraceback (most recent call last):\n")
    assert content.endswith(", in tool\n    raise error")
    assert kind.__name__ not in content


def test_displays_and_the_number_dropped_are_added() -> None:
    record = CallRecord(call_id="1", stream_left=4, data_left=100)
    assert worker.add_record(ToolResult.text("x"), record).metadata == {}
    record.take("stdout", "123456")
    record.display({"text/plain": "d"})
    record.display({"text/plain": "d" * 200})
    record.dropped_emits = 5
    metadata = worker.add_record(ToolResult.text("x"), record).metadata
    assert metadata["displays"][0] == {"text/plain": "d"}
    assert (metadata["dropped_bytes"], metadata["dropped_displays"], metadata["dropped_emits"]) == (2, 1, 5)
    included = ToolResult.text("x").with_metadata(streams_taken=True)
    assert "displays" not in worker.add_record(included, record).metadata


def test_announcements_are_for_their_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_announcers", [])
    worker.register_announcer(lambda agent_id: "task 1 ended" if agent_id == "a" else "")
    assert worker.add_announcements(ToolResult.text("x\n"), "a").content == "x\ntask 1 ended"
    result = ToolResult.text("x\n")
    assert worker.add_announcements(result, "b") is result


# ---- a whole session

HOST = """
import asyncio, json, sys
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.session.session import Session

async def main():
    job = json.load(sys.stdin)
    async with Session(job['workspace'], approver=AllowAll(), read_only=job['read_only']) as s:
        answers = []
        for name, arguments in job['calls']:
            result = await s.call(name, arguments)
            answers.append([result.is_error, result.content, result.value])
        print(json.dumps([s.level, answers]))

asyncio.run(main())
"""

needs_landlock = pytest.mark.skipif(
    landlock.abi() < levels.LANDLOCK_NEEDED["confined"],
    reason="this kernel cannot confine: Landlock is too old",
)
everybody = pytest.mark.parametrize("who", ["root", "plain", "binder"])


def session(
    who: Who,
    workspace: str,
    home: str,
    calls: list[tuple[str, dict[str, Any]]],
    read_only: tuple[str, ...] = (),
    *,
    python: str = sys.executable,
) -> tuple[str, list[Any]]:
    """Run calls through a real session as `who`; its level, and error, content and value of each call."""
    uid = inside.user_of(who)
    argv = [python, "-P", "-B", "-c", HOST]
    if who == "binder":
        target = [] if uid is None else ["--uid", str(uid)]
        argv = [python, "-P", "-B", str(inside.SIMULATE), *target, "--", *argv]
    argv, user = inside.command_of(argv, None if who == "binder" else uid)
    done = subprocess.run(
        argv,
        input=json.dumps({"workspace": workspace, "read_only": read_only, "calls": calls}),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        cwd=home,
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": home,
            "LANG": "C.UTF-8",
            "VICTIM_SECRET": "x",
            **({"PYTHONPATH": str(Path(__file__).parents[3])} if python == sys.executable else {}),
        },
        **user,
    )
    assert done.returncode == 0, done.stderr or done.stdout
    level, answers = json.loads(done.stdout)
    return level, answers


@everybody
def test_a_session_works(place: Places, who: Who) -> None:
    home = place(who)
    workspace = place(who)
    level, answers = session(
        who,
        str(workspace),
        str(home),
        [
            ("python", {"code": "x = 6; print('printed'); x * 7"}),
            ("python", {"code": "!echo from a program; id -u > uid"}),
            ("sandbox_bash", {"command": "echo from bash; cat uid | wc -l"}),
            ("sandbox_write", {"path": "a/b.txt", "content": "text\n"}),
            ("sandbox_read", {"path": "a/b.txt"}),
            ("file", {"operation": "search", "pattern": "text"}),
            ("python", {"code": "open('/etc/passwd').read()"}),
            ("python", {"code": "import socket; socket.create_connection(('192.0.2.77', 80))"}),
            ("python", {"code": "import time; time.sleep(100)", "timeout": 200}),
            ("python", {"code": "x"}),
        ],
    )
    assert level == ("confined" if who == "binder" and landlock.abi() >= 6 else level)
    errors, contents, _ = zip(*answers, strict=True)
    assert contents[0] == "printed\n42"
    assert contents[1] == "from a program"
    assert contents[2] == "from bash\n1"
    assert answers[4][2]["content"] == "text\n"
    assert "b.txt" in contents[5]
    assert ("FileNotFoundError" if level == "isolated" else "PermissionError") in contents[6]
    assert "OSError" in contents[7] or "PermissionError" in contents[7]
    assert "timed out after 0.2 s" in contents[8]
    assert contents[9] == "6"
    assert [n for n, error in enumerate(errors) if error] == [6, 7, 8]


@needs_landlock
@everybody
def test_nothing_gets_out_of_a_session(place: Places, who: Who) -> None:
    """Every attempt of `escape_probes`, made by the `python` tool of a real session."""
    source = f"{escape_more.source_of_all()}\n{escape_shared.source()}"
    home = place(who)
    with Victims(uid=inside.user_of(who)) as victims:
        if who == "binder":  # a checkout is not a workspace there
            shutil.rmtree(Path(victims.workspace, ".git"))
        before = victims.state()
        config = victims.config() | {"scratch": str(victims.workspace)}
        code = f"""
import json, sys, types
module = types.ModuleType('escape_probes')
sys.modules['escape_probes'] = module
exec(compile({source!r}, 'escape_probes', 'exec'), module.__dict__)
with open('answer.json', 'w') as file:
    json.dump(module.run_probes(json.loads({json.dumps(config)!r})), file)
"""
        level, [(is_error, content, _)] = session(
            who,
            victims.workspace,
            str(home),
            [("python", {"code": code})],
            (victims.shown,),
            python=victims.python,
        )
        assert is_error
        assert "changed protected files" in content  # and that is all that was wrong with it
        for name in ("inner/conftest.py", "start.pth", ".aisotools.toml"):
            assert Path(victims.workspace, name).read_text() == "# the host runs this"
        assert not Path(victims.workspace, "conftest.py").exists()
        results = json.loads((Path(victims.workspace) / "answer.json").read_text())
        assert set(results) == set(PROBES)
        assert unexpected(results, stage_of(level, None)) == {}
        (Path(victims.workspace) / "answer.json").unlink()
        assert victims.state() == before
        assert before["visits"] == []
