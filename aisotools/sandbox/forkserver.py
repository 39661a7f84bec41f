"""The fork server: a process that has everything imported and forks a confined worker in milliseconds.

It is executed afresh with an allow-listed environment, so that no secret of the host is anywhere in its
memory, and has one thread, because forks copy only one. It never runs user code. For each request it forks a
supervisor, which forks the worker, which confines itself, checks that this holds, and only then serves calls.

Requests come over a SEQPACKET socket, one JSON packet each: `spawn {plan, limits, env, workspace, scratch}`
with four descriptors (call channel, control socket, stdout, stderr), or `detect {}`, which is answered.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import os
import random
import signal
import socket
import sys
from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic_core import from_json, to_json

from aisotools.sandbox import confine, detect, limits, shell, supervisor, worker
from aisotools.sandbox.channel import BlockingChannel
from aisotools.sandbox.streams import Recorder

PACKET_BYTES = 1 << 17
_CHANNEL, _CONTROL = 3, 4
_TOOLS = ("aisotools.builtin.files", "aisotools.builtin.shell_tool", "aisotools.builtin.python_tool")


def main(descriptor: int) -> NoReturn:
    """Serve requests from the socket `descriptor` until the host closes it."""
    requests = socket.socket(fileno=descriptor)
    os.setsid()  # a Ctrl-C in the host's terminal, or an interrupt of its process group, is not for us
    interpreter = shell.build(Recorder(lambda _call, _stream, _text: None))
    shell.warm(interpreter)
    for name in _TOOLS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is imported stays shared: no collection in a child will touch it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    while True:
        packet, descriptors, _, _ = socket.recv_fds(requests, PACKET_BYTES, 4)
        if not packet:
            os._exit(0)
        request = from_json(packet)
        if request["op"] == "detect":
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the probes wait for their children
            requests.send(to_json(detect.detect()))
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        elif len(descriptors) == 4 and os.fork() == 0:
            requests.detach()  # its number is about to mean something else
            _become(request, descriptors, interpreter)
        for received in descriptors:
            os.close(received)


def _become(
    request: Mapping[str, Any], descriptors: list[int], interpreter: shell.ZMQInteractiveShell
) -> NoReturn:
    """In the fresh fork: be the supervisor, and fork the worker."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _take_descriptors(descriptors)
        os.environ.clear()
        os.environ.update(request["env"])
        supervisor.become_subreaper()
        ready_read, ready_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ready_read)
            os.close(_CONTROL)
            os.close(ready_write)
            _work(request, interpreter)
        os.close(ready_read)
        os.close(ready_write)
        control = socket.socket(fileno=_CONTROL)
        for descriptor in (1, 2, _CHANNEL):
            os.dup2(0, descriptor)  # only the worker may hold those, or their end would never be seen
        supervisor.supervise(control, pid, request["scratch"])
    finally:
        os._exit(1)


def _take_descriptors(descriptors: list[int]) -> None:
    """Keep the four descriptors of the request, as 3, 4, 1 and 2, and close every other."""
    high = [fcntl.fcntl(d, fcntl.F_DUPFD_CLOEXEC, 64) for d in descriptors]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for source, target in zip(high, (_CHANNEL, _CONTROL, 1, 2), strict=True):
        os.dup2(source, target, inheritable=target in {1, 2})
    os.closerange(_CONTROL + 1, os.sysconf("SC_OPEN_MAX"))


def _work(request: Mapping[str, Any], interpreter: shell.ZMQInteractiveShell) -> NoReturn:
    """In the second fork: confine, check, serve."""
    channel = BlockingChannel(socket.socket(fileno=_CHANNEL))
    try:
        _prepare(request)
    except Exception as error:  # told to the host, which decides; nothing has run yet
        channel.send("failed", {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    try:
        loop = worker.new_loop()
        described = {"level": request["plan"]["level"], "workspace": request["workspace"]}
        worker.Worker(channel, interpreter, described).serve(loop)
    finally:
        os._exit(1)


def _prepare(request: Mapping[str, Any]) -> None:
    os.chdir(request["workspace"])
    sys.path.insert(0, "")
    sys.argv = [""]
    random.seed()
    plan = confine.Confinement(
        level=request["plan"]["level"],
        writable=tuple(request["plan"]["writable"]),
        readable=(*confine.interpreter_paths(), *request["plan"]["readable"]),
    )
    limits.apply_rlimits(limits.Limits(**request["limits"]))
    confine.confine(plan)
    failures = confine.verify(plan)
    if failures:
        raise RuntimeError("the confinement does not hold: " + "; ".join(failures))
