from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.sandbox import inside
from tests.sandbox.conftest import Places

LOOK = """
import ctypes, json, os, sys
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
facts = {name: status[name].strip() for name in ("CapEff", "CapPrm", "NoNewPrivs", "Seccomp")}
facts["uid"] = os.getuid()
facts["groups"] = os.getgroups()
facts["unshare"] = [libc.unshare(0x10000000), ctypes.get_errno()]
facts["home"] = os.environ["HOME"]
facts["arguments"] = sys.argv[1:]
import socket
socket.socket().close()
print(json.dumps(facts))
"""


def simulate(*arguments: str, cwd: str = "/") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-P", str(inside.SIMULATE), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=cwd)


def test_simulation_equals_a_container_without_privileges(place: Places) -> None:
    folder = str(place("binder"))
    done = simulate("--uid", "2345", "--", sys.executable, "-c", LOOK, "--flag", "x y", cwd=folder)
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    root = os.getuid() == 0
    assert facts == {
        "CapEff": "0" * 16,
        "CapPrm": "0" * 16,
        "NoNewPrivs": "1",
        "Seccomp": "2",
        "uid": 2345 if root else os.getuid(),
        "groups": [] if root else os.getgroups(),
        "unshare": [-1, 1],
        "home": folder,
        "arguments": ["--flag", "x y"],
    }


def test_exit_status_passes_through() -> None:
    assert simulate("--", "sh", "-c", "exit 7").returncode == 7


@pytest.mark.parametrize("arguments", [(), ("--uid", "two", "--", "true")])
def test_usage(arguments: tuple[str, ...]) -> None:
    done = simulate(*arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr
