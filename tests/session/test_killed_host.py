"""kill -9 of a host at random moments, and clocks that jump: what was acknowledged stays, without an alarm.

A process makes calls, undoes and redoes, prints what it was told, and is killed between two instructions or
system calls. The next one opens the same session.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aisotools.policy.rules import Policy
from aisotools.session.ledger import read, verify
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox
from aisotools.workspace.workspace import TEMPORARY
from tests.conftest import OpenSession

AUTO = Policy(mode="auto")

HOST = """
import asyncio, json, os, random, signal, sys
from pathlib import Path
from aisotools.policy.rules import Policy
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox

top, seed, moments = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)

def tell(**told):
    os.write(1, json.dumps(told).encode() + b"\\n")

def die(event, arguments):
    # Between two instructions: right before a system call that Python reports. Those of the test's own loop
    # are reported as well.
    global moments
    if event in {"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.truncate", "fcntl.flock"}:
        moments -= 1
        if moments < 0:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    environ = {"HOME": str(top), "XDG_STATE_HOME": str(top / "state")}
    session = Session(top / "workspace", sandbox=FakeSandbox, environ=environ, policy=Policy(mode="auto"),
                      session_key="killed")
    if moments >= 0:
        sys.addaudithook(die)
    await session.start()
    tell(ready=True)
    for number in range(10_000):
        kind = draw.choice(["write", "write", "write", "undo", "redo"])
        if kind == "write":
            call_id = f"{seed}-{number}"
            arguments = {"path": draw.choice("abc"), "content": f"{call_id} " * 20}
            tell(asked=arguments)
            result = await session.call("sandbox_write", arguments, call_id=call_id)
            assert not result.is_error, result.content
            tell(call=call_id)
        else:
            tell(asked=kind)
            result = await (session.undo if kind == "undo" else session.redo)(draw.randint(1, 2))
        tell(files={path.name: path.read_text() for path in (top / "workspace").iterdir()})

asyncio.run(main())
"""

CUT_WRITE = """
import asyncio, os, signal, sys
from pathlib import Path
from aisotools.policy.rules import Policy
from aisotools.session.session import Session
from aisotools.testing.fakes import FakeSandbox

async def main():
    top = Path(sys.argv[1])
    environ = {"HOME": str(top), "XDG_STATE_HOME": str(top / "state")}
    session = Session(top / "workspace", sandbox=FakeSandbox, environ=environ, policy=Policy(mode="auto"),
                      session_key="killed")
    await session.call("sandbox_write", {"path": "a", "content": "old"}, call_id="c1")
    replace = os.replace

    def kill_at_the_file(source, target, **options):
        if Path(target).name == "a":  # the head of the ledger is replaced as well, at any moment
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target, **options)

    os.replace = kill_at_the_file
    await session.call("sandbox_write", {"path": "a", "content": "new"}, call_id="c2")

asyncio.run(main())
"""

Files = dict[str, str]


def run_host(top: Path, seed: int, moments: int, delay_s: float) -> tuple[Files | None, Any, list[str]]:
    """Run a host until it is killed. Return the last files it has told, what it was doing, and its calls."""
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(top), str(seed), str(moments)], stdout=subprocess.PIPE
    )
    assert host.stdout is not None
    lines: list[bytes] = []
    if moments < 0:
        lines.append(host.stdout.readline())
        assert b"ready" in lines[0]
        time.sleep(delay_s)
        host.send_signal(signal.SIGKILL)
    lines += host.stdout.read().split(b"\n")
    host.stdout.close()
    assert host.wait() == -signal.SIGKILL
    files, doing, calls = None, None, []
    for line in filter(None, lines):
        message = json.loads(line)
        if "asked" in message:
            doing = message["asked"]
        elif "call" in message:
            calls.append(message["call"])
        elif "files" in message:
            files, doing = message["files"], None
    return files, doing, calls


def read_files(workspace: Path) -> Files:
    """Return all files, but for those that a killed writer had not given their name yet."""
    return {path.name: path.read_text() for path in workspace.iterdir() if path.name in {"a", "b", "c"}}


def is_whole(content: str) -> bool:
    """Return whether a content is one that a call has written, from its begin to its end."""
    return content == f"{content.partition(' ')[0]} " * 20


async def test_a_write_that_is_cut_leaves_nothing_beside_the_file_and_is_said(tmp_path: Path) -> None:
    """The host is killed when all of the new content is in a file that does not have its name yet."""
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    workspace = tmp_path / "workspace"
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", CUT_WRITE, str(tmp_path))
    assert await host.wait() == -signal.SIGKILL
    (partial,) = workspace.glob(f"{TEMPORARY}*")
    assert partial.read_text() == "new"
    session = Session(workspace, sandbox=FakeSandbox, environ=environ, policy=AUTO, session_key="killed")
    await session.start()
    assert {path.name: path.read_text() for path in workspace.iterdir()} == {"a": "old"}
    removed = f"Removed what sandbox_write (c2) has left half written: {partial.name}."
    assert removed in session.status().recovered
    await session.close()


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_three_hundred_kills_lose_nothing_and_raise_no_alarm(tmp_path: Path) -> None:
    """Half of them right before a system call, among them those between two lines and heads of the ledger."""
    count, seed = int(os.environ.get("KILLS", "300")), 11
    draw = random.Random(seed)
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    workspace = tmp_path / "workspace"
    acknowledged: set[str] = set()
    last: Files = {}
    ended = halves = 0
    for number in range(count):
        moments = draw.randint(0, 250) if number % 2 else -1
        files, doing, calls = run_host(tmp_path, number, moments, draw.uniform(0, 0.2))
        last = last if files is None else {name: files[name] for name in files if name in {"a", "b", "c"}}
        acknowledged |= set(calls)
        assert all(map(is_whole, read_files(workspace).values())), number
        session = Session(workspace, sandbox=FakeSandbox, environ=environ, policy=AUTO, session_key="killed")
        await session.start()  # no alarm of tampering, and what was half done is completed or ended
        assert session.log_path is not None
        assert session.log_path.name == "killed.jsonl"
        now = read_files(workspace)
        halves += " ".join(session.status().recovered).count("half written")
        assert not [path.name for path in workspace.iterdir() if path.name not in now], "nothing half written"
        differing = {name for name in {*last, *now} if last.get(name) != now.get(name)}
        if isinstance(doing, dict):
            assert differing <= {doing["path"]}, (number, differing, doing)
        elif doing is None:
            assert not differing, (number, differing)
        ended += bool(session.status().recovered)
        # The way back is there: what can be undone is undone and redone, and is as before.
        if session.history is not None and (await session.undo(1, variables="keep")).value is not None:
            redone = await session.redo(1, variables="keep")
            assert not redone.is_error, redone.content
            assert read_files(workspace) == now
        last = now
        await session.close()
        checked = verify(session.log_path)
        assert checked.ok, (number, checked)
    log = tmp_path / "state" / "aisotools" / "ledger" / "killed.jsonl"
    finished = {record["body"]["call_id"] for record in read(log) if record["kind"] == "call_finished"}
    assert acknowledged <= finished
    print(
        f"\n{count} kills, seed {seed}: {len(acknowledged)} acknowledged calls, all in the ledger; "
        f"{ended} times something was completed or ended at the next start, {halves} times what was half "
        "written was removed; no false alarm"
    )


@pytest.mark.parametrize("jump_s", [-10 * 365 * 86_400, -3_600, 3_600, 50 * 365 * 86_400])
async def test_clock_that_jumps_changes_nothing(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """Backwards and forwards, during a session and between two; of files as of the ledger."""
    session = open_session(policy=AUTO)

    async def write(content: str, call_id: str) -> None:
        result = await session.call("sandbox_write", {"path": "a", "content": content}, call_id=call_id)
        assert not result.is_error, result.content

    await write("one", "c1")
    assert session.workspace is not None
    file = session.workspace / "a"
    real_s = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: real_s() + jump_s)
        await write("two", "c2")
        # A file of that time, with the content of another size and of the same.
        moment_s = max(real_s() + jump_s, 1)
        file.write_text("six")
        os.utime(file, (moment_s, moment_s))
        await write("three", "c3")
        await session.close()
        session = open_session(policy=AUTO, session_key=session.session_key)
        await write("four", "c4")
    await write("five", "c5")
    assert session.log_path is not None
    for count, expected in ((1, "four"), (2, "six"), (1, "one")):
        result = await session.undo(count, variables="keep", force=expected == "one")
        assert not result.is_error, result.content
        assert file.read_text() == expected
    await session.close()
    assert verify(session.log_path).ok
    ends = [
        record["body"]["call_id"] for record in read(session.log_path) if record["kind"] == "call_finished"
    ]
    assert ends == ["c1", "c2", "c3", "c4", "c5"], "in the order in which they were made"
