"""What `os.wait` sees in a worker: every child of user code, in whatever process group, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aisotools.sandbox.worker import children
from tests.sandbox.rig import rig
from tests.sandbox.worker.interpreter import run_alone

HEAD = """
import json, os, subprocess, time

def report(value):
    print(json.dumps(value), flush=True)

def leave(status, detach=None):
    child = os.fork()
    if child == 0:
        if detach:
            detach()
        os._exit(status)
    return child

def ended(pid):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid

def none_left(wait):
    try:
        return wait()
    except ChildProcessError:
        return 'none'
"""
HIDE = f"from {children.__package__} import children\nchildren.hide_snapshots_from_wait()\n"
DETACH = {
    "stays": "None",
    "setsid": "os.setsid",
    "setpgid": "lambda: os.setpgid(0, 0)",
}


def run(code: str, folder: Path) -> Any:
    return run_alone(HEAD + code, folder)


@pytest.mark.parametrize("hide", ["", HIDE], ids=["plain Python", "hidden"])
@pytest.mark.parametrize("detach", DETACH.values(), ids=DETACH)
def test_a_child_is_found_whatever_its_group(tmp_path: Path, detach: str, hide: str) -> None:
    code = f"""{hide}
child = leave(3, {detach})
found = [os.wait() == (child, 3 << 8)]
child = ended(leave(4, {detach}))
found.append(os.waitpid(-1, os.WNOHANG) == (child, 4 << 8))
child = leave(5, {detach})
found.append(os.waitpid(-1, 0) == (child, 5 << 8))
found += [none_left(os.wait), none_left(lambda: os.waitpid(-1, os.WNOHANG))]
report(found)
"""
    assert run(code, tmp_path) == [True, True, True, "none", "none"]


def test_hidden_children_are_not_waited_for_and_hide_no_other(tmp_path: Path) -> None:
    code = f"""{HIDE}
first, kept = os.pipe()
hidden = leave(0, lambda: (os.close(kept), os.read(first, 1)))
children.hide_child(hidden)
os.setpgid(hidden, hidden)
gone = leave(0, lambda: os.setpgid(0, 0))
children.hide_child(gone)
ended(gone)
child = leave(3, os.setsid)
found = [os.wait() == (child, 3 << 8), none_left(os.wait), none_left(lambda: os.waitpid(-1, os.WNOHANG))]
os.close(kept)
found.append(os.waitpid(hidden, 0)[0] == hidden)
report(found)
"""
    assert run(code, tmp_path) == [True, "none", "none", True]


def test_a_child_that_runs_is_there_though_it_has_not_ended(tmp_path: Path) -> None:
    code = f"""{HIDE}
first, kept = os.pipe()
child = leave(3, lambda: (os.setsid(), os.close(kept), os.read(first, 1)))
found = [os.waitpid(-1, os.WNOHANG)]
os.close(kept)
found.append(os.wait() == (child, 3 << 8))
pid, terminal = os.forkpty()
if pid == 0:
    os._exit(4)
found.append(os.wait() == (pid, 4 << 8))
pid = os.posix_spawn('/bin/true', ['true'], {{}}, setsid=True)
found.append(os.wait() == (pid, 0))
started = subprocess.Popen(['true'], start_new_session=True)
ended(started.pid)
found.append(os.wait() == (started.pid, 0))
report(found)
"""
    assert run(code, tmp_path) == [[0, 0], True, True, True, True]


async def test_a_session_keeps_its_variables_and_its_children(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        await r.python("import os, time\nx = 1")
        code = "p = os.fork()\nif p == 0:\n    os.setsid(); os._exit(3)\nos.wait() == (p, 3 << 8)"
        for _ in range(3):
            assert await r.value(code) is True
        points = r.kernel.variables.points()
        await r.kernel.variables.restore(points[-1].call_id)
        assert await r.value(code) is True
        assert await r.value("x") == 1
