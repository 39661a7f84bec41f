"""Run code confined, in a fresh process: a fork of the test's own would take its threads' locks along."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

SIMULATE = Path(__file__).with_name("simulate.py")
# Its own for each test process: some tests count all that this user runs.
PLAIN_UID = 100_000 + os.getpid()
BINDER_UID = 2000

Who = Literal["root", "plain", "binder"]
"""As whom: the user root, an ordinary user, or an ordinary user in a container like Binder's."""

_BOOT = """
import json, os, sys, traceback
job = json.load(sys.stdin)

def play():
    space = {"__name__": "inside", "config": job["config"]}
    exec(compile(job["source"], "inside", "exec"), space)
    sys.stdout.flush()
    os.write(job["answer"], json.dumps(space.get("answer")).encode())

def run_confined():
    from aisotools.sandbox.confinement import levels
    from aisotools.sandbox import limits
    limits.apply_rlimits(limits.Limits())
    plan = levels.Confinement(
        level=job["level"],
        writable=tuple(job["writable"]),
        readable=(*levels.interpreter_paths(), *job["readable"]),
        landlock_abi=job["landlock_abi"],
    )
    levels.confine(plan)
    failures = levels.verify_confinement(plan)
    assert not failures, failures
    play()

def run_isolated():
    from aisotools.workspace import protected_names
    from aisotools.sandbox.confinement import isolated, namespaces, protected_mounts, rootfs
    from aisotools.sandbox import limits
    from aisotools.sandbox.process import tree
    import resource  # as a fork server does: the user that the child becomes may not read this Python

    def child(entry):
        status = 1
        try:
            limits.apply_rlimits(limits.Limits(), tasks=2)
            isolated.enter(isolation, entry)
            os.chdir(job["workspace"])
            play()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    isolation = isolated.Isolation(
        interpreter=isolated.Interpreter.running(),
        readable=tuple(job["readable"]),
        workspace=job["workspace"],
        scratch=job["scratch"],
        protected=protected_mounts.ProtectedNames(
            files=protected_names.PROTECTED_NAMES, folders=protected_names.PROTECTED_FOLDERS
        ),
        landlock_abi=job["landlock_abi"],
    )
    tree.become_subreaper()
    users = namespaces.UserNamespaces(namespaces.identity(os.getpid()))
    started = isolated.start_isolated(isolation, users, child)
    status = os.waitstatus_to_exitcode(os.waitpid(started.worker, 0)[1])
    os.kill(started.init, 9)
    os.waitpid(started.init, 0)
    sys.exit(status)

if job["level"] == "isolated":
    run_isolated()
else:
    os.chdir(job["workspace"])
    run_confined() if job["level"] else play()
"""


@dataclass(frozen=True, slots=True)
class Done:
    """How it ended: the value of `answer`, and what it printed."""

    answer: Any
    stdout: str
    stderr: str


def user_of(who: Who) -> int | None:
    """The uid to switch to, or None to stay; skips what this machine cannot do."""
    if who == "root":
        if os.getuid() != 0:
            pytest.skip("only root can try what the confinement does for root")
        return None
    if os.getuid() != 0:
        return None
    uid = PLAIN_UID if who == "plain" else BINDER_UID
    for path in (sys.executable, __file__):
        if not _is_readable(path, uid):
            pytest.skip(f"an ordinary user cannot read {path}, so nothing can be run as one")
    return uid


@functools.cache
def _is_readable(path: str, uid: int) -> bool:
    return not subprocess.run(["test", "-r", path], **as_user(uid), check=False).returncode


def as_user(uid: int | None) -> dict[str, Any]:
    """Return the options of `subprocess` for starting something as that user; None for the own one."""
    return {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}


def command_of(argv: list[str], uid: int | None) -> tuple[list[str], dict[str, Any]]:
    """Return a command that runs `argv` as that user, and the options of `subprocess` that it needs.

    Where there is a program that changes the user, Python need not: it would have the kernel copy the page
    tables of all that the tests hold in memory, which takes tens of milliseconds each time.
    """
    if uid is None or (program := shutil.which("setpriv")) is None:
        return argv, as_user(uid)
    return [program, "--reuid", str(uid), "--regid", str(uid), "--clear-groups", *argv], {}


def run(
    source: str,
    *,
    who: Who,
    workspace: str,
    level: str | None = "confined",
    readable: tuple[str, ...] = (),
    scratch: str | None = None,
    config: dict[str, Any] | None = None,
    landlock_abi: int | None = None,
    python: str = sys.executable,
    timeout_s: float = 50,
) -> Done:
    """Run `source` confined, with `config` as a global; it leaves its result in `answer`.

    Args:
        source: Python code.
        who: As whom.
        workspace: Its working folder, writable.
        level: A confinement level; None for no confinement at all.
        readable: Further readable folders.
        scratch: HOME and TMPDIR, writable too.
        config: Any JSON.
        landlock_abi: Pretend that the kernel's Landlock is no newer.
        python: By which interpreter, which must find `aisotools`.
        timeout_s: When to give up.
    """
    uid = user_of(who)
    argv = [python, "-P", "-B", "-c", _BOOT]
    if who == "binder":
        target = [] if uid is None else ["--uid", str(uid)]
        argv = [python, "-P", "-B", str(SIMULATE), *target, "--", *argv]
    argv, user = command_of(argv, None if who == "binder" else uid)
    scratch = scratch or workspace
    reading, writing = os.pipe()
    job = {
        "level": level,
        "workspace": workspace,
        "writable": sorted({workspace, scratch}),
        "scratch": scratch,
        "landlock_abi": landlock_abi,
        "readable": readable,
        "source": source,
        "config": config,
        "answer": writing,
    }
    try:
        done = subprocess.run(
            argv,
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            pass_fds=[writing],
            env={
                "PATH": f"{Path(python).parent}:/usr/local/bin:/usr/bin:/bin",
                "HOME": scratch,
                "TMPDIR": scratch,
                "MPLCONFIGDIR": scratch,
                "MPLBACKEND": "agg",
                "LANG": "C.UTF-8",
                "GIT_CONFIG_NOSYSTEM": "1",
                "OPENBLAS_NUM_THREADS": "1",
            },
            **user,
        )
        os.close(writing)
        writing = -1
        with os.fdopen(reading, "rb") as pipe:
            reading = -1
            answer = pipe.read()
    finally:
        for descriptor in (reading, writing):
            if descriptor >= 0:
                os.close(descriptor)
    assert done.returncode == 0, done.stderr or done.stdout
    return Done(json.loads(answer), done.stdout, done.stderr)
