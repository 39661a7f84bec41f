"""A session is closed to its end, whatever becomes of the event loops on which that is done."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from tests.sandbox.rig import processes_of
from tests.waiting import HANG_S

_CUT_OFF = """
import asyncio, gc, os, sys
from aisotools.policy.approvers import AllowAll
from aisotools.session.pool import SessionPool
from aisotools.session.session import Session
from tests.sandbox.rig import processes_of
from tests.waiting import HANG_S, eventually

folder, what, moment_s, how = sys.argv[1:]
calls = {
    "a call": ("python", {"code": "import time; time.sleep(600)"}),
    "a reader": ("sandbox_bash", {"command": "sleep 600"}),
}
options = {"environ": os.environ, "approver": AllowAll()}
pool = SessionPool(root=folder, max_live=2, **options)
sessions = [] if "pool" in what else [Session(folder + "/a", **options)]
owner = pool if "pool" in what else sessions[0]
tasks = []

async def begin():
    if "pool" in what:
        sessions.extend([await pool.get(key) for key in "abc"])
    for session in sessions:
        result = await session.call("sandbox_write", {"path": "f", "content": "1"}, origin="person")
        assert not result.is_error, result.content
    if what in calls:
        tasks.append(asyncio.ensure_future(sessions[0].call(*calls[what], origin="person")))
        await eventually(lambda: len(sessions[0].sandbox._callers) == 1)
    else:
        tasks.append(asyncio.ensure_future(owner.close()))
    await asyncio.sleep(float(moment_s))

loop = asyncio.new_event_loop()
loop.run_until_complete(begin())
if how == "closed":
    loop.close()
asyncio.run(asyncio.wait_for(owner.close(), HANG_S))
state = os.environ["XDG_STATE_HOME"]
links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
names = [os.readlink(link) for link in links if os.path.islink(link)]
print([name for key in "abc" for name in processes_of(f"{folder}/{key}")], end=" ")
print([name for name in names if name.startswith(state)], flush=True)
del owner, pool
tasks.clear()
sessions.clear()
gc.collect()
os._exit(0)  # what was cut off never ends
"""


def run_program(program: str, environ: Mapping[str, str], *arguments: str) -> tuple[str, str]:
    """Return what it prints to standard output and to standard error."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("how", ["stopped", "closed"])
@pytest.mark.parametrize("what", ["a call", "a reader"])
def test_session_whose_loop_ended_while_it_was_busy_is_closed_on_another_one(
    tmp_path: Path, environ: Mapping[str, str], what: str, how: str
) -> None:
    printed, errors = run_program(_CUT_OFF, environ, str(tmp_path), what, "0.1", how)
    assert printed == "[] []\n", errors
    assert "Traceback" not in errors
    assert "never" not in errors


@pytest.mark.sample(3)
@pytest.mark.parametrize("how", ["stopped", "closed"])
@pytest.mark.parametrize("moment_s", [0, 0.012, 0.02, 0.025, 0.03, 0.035])
def test_session_whose_loop_ends_while_it_is_closed_is_closed_on_another_one(
    tmp_path: Path, environ: Mapping[str, str], moment_s: float, how: str
) -> None:
    printed, errors = run_program(_CUT_OFF, environ, str(tmp_path), "session", str(moment_s), how)
    assert printed == "[] []\n", errors
    assert "never retrieved" not in errors


@pytest.mark.sample(3)
@pytest.mark.parametrize("moment_s", [0, 0.01, 0.02, 0.05, 0.1])
def test_pool_whose_loop_is_closed_while_it_is_closed_is_closed_on_another_one(
    tmp_path: Path, environ: Mapping[str, str], moment_s: float
) -> None:
    printed, errors = run_program(_CUT_OFF, environ, str(tmp_path), "pool", str(moment_s), "closed")
    assert printed == "[] []\n", errors
    assert "never retrieved" not in errors


_CLOSED_AT_THE_END = """
import asyncio, atexit, os, sys, threading
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session

session = Session(sys.argv[1], environ=os.environ, approver=AllowAll())
asyncio.run(session.call("sandbox_write", {"path": "f", "content": "1"}, origin="person"))

def close():
    asyncio.run(session.close())
    state = os.environ["XDG_STATE_HOME"]
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    print(session.sandbox.status().alive, [os.readlink(link) for link in links
          if os.path.exists(link) and os.readlink(link).startswith(state)])

def close_in_a_thread():
    thread = threading.Thread(target=close)
    thread.start()
    thread.join()

def outlive():
    threading.main_thread().join()
    close()

if sys.argv[2] == "outlives":
    threading.Thread(target=outlive).start()
else:
    atexit.register(close if sys.argv[2] == "atexit" else close_in_a_thread)
"""


@pytest.mark.parametrize("way", ["atexit", "atexit, in a thread", "outlives"])
def test_session_is_closed_while_the_interpreter_ends(
    tmp_path: Path, environ: Mapping[str, str], way: str
) -> None:
    folder = tmp_path / "workspace"
    assert run_program(_CLOSED_AT_THE_END, environ, str(folder), way) == ("False []\n", "")
    assert processes_of(folder) == []


async def test_worker_that_cannot_be_ended_is_an_error_of_closing(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    session = Session(tmp_path / "workspace", environ=environ, approver=AllowAll())
    await session.start()
    sandbox: Any = session.sandbox
    connection = sandbox._connection
    terminate = connection.terminate

    async def fail(reason: str) -> None:
        await terminate(reason)
        raise OSError("it cannot be ended")

    connection.terminate = fail
    with pytest.raises(OSError, match="cannot be ended"):
        await session.close()
    assert not sandbox.status().alive
