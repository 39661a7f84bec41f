"""The tests of defences that hold for any user, as an ordinary one: root may do what others cannot.

Where the tests themselves run as an ordinary user, they have been run as one already.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox import inside
from tests.sandbox.conftest import Places

ROOT = Path(__file__).parents[2]

FILES = (
    *("sandbox/confinement/test_denied_reads.py", "sandbox/host/test_leftovers.py"),
    *("sandbox/host/test_readers.py", "sandbox/host/test_readers_processes.py"),
    *("sandbox/host/test_trials.py", "sandbox/host/test_worker_limits.py"),
    *("sandbox/worker/test_self_check.py", "session/test_path_rules.py", "session/test_protection.py"),
    *("session/test_protection_unwatched.py", "session/test_trials.py"),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES)
def test_defences_hold_for_an_ordinary_user(file: str, place: Places) -> None:
    if os.getuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    folder = place("plain")
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={folder}/tests", "-m", "not e2e"]
    argv = [sys.executable, "-B", "-m", "pytest", *options, f"tests/{file}"]
    argv, user = inside.command_of(argv, inside.user_of("plain"))
    environment = {
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, **user
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    print(f"\n{file}: {done.stdout.strip().splitlines()[-1]}")
    assert " passed" in done.stdout
