"""Starting a program that must not change files, without copying this whole process first.

The kernel takes rights from a thread, not from a process. So a thread of its own gives them up and starts the
program, which inherits what is left, and then ends; no Python code runs between fork and exec, which lets
Python use `vfork`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO

from aisotools.sandbox import landlock

_READ_BYTES = 1 << 16


def spawn_reading(
    command: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    protocol: asyncio.SubprocessProtocol,
    stdin: int = subprocess.DEVNULL,
) -> asyncio.SubprocessTransport:
    """Start `command` in a session of its own; its output goes to `protocol`.

    Its standard input is empty: what is fed while it runs belongs to no call that only reads.

    Raises:
        OSError: If it cannot be started.
        subprocess.SubprocessError: If it cannot be kept from changing files; then it is not started.
    """
    if stdin != subprocess.DEVNULL:
        raise subprocess.SubprocessError("a program that only reads takes no input")
    scratch = [env["TMPDIR"]] if env.get("TMPDIR") else []  # programs such as `tac` have temporary files
    outcome: list[subprocess.Popen[bytes] | Exception] = []

    def start() -> None:
        try:
            try:
                landlock.restrict_read_only(scratch)
            except OSError as error:
                raise subprocess.SubprocessError(str(error)) from error
            outcome.append(
                subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
            )
        except Exception as error:  # told to whoever waits for this thread
            outcome.append(error)

    thread = threading.Thread(target=start, name="starts a program that only reads")
    thread.start()
    thread.join()
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return Reading(outcome[0], protocol)


class Reading(asyncio.SubprocessTransport):
    """A program under way, as asyncio's own transport is: output, then its end, are told to the protocol."""

    def __init__(self, process: subprocess.Popen[bytes], protocol: asyncio.SubprocessProtocol) -> None:
        """Watch `process` on the running loop."""
        super().__init__()
        assert process.stdout is not None
        assert process.stderr is not None
        self._loop = asyncio.get_running_loop()
        self._process, self._protocol = process, protocol
        self._pipes: dict[int, IO[bytes]] = {1: process.stdout, 2: process.stderr}
        self._closed = False
        self._ended = os.pidfd_open(process.pid)
        self._loop.add_reader(self._ended, self._reap)
        for number, pipe in self._pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._loop.add_reader(pipe, self._read, number)

    def __repr__(self) -> str:
        return f"<Reading pid={self._process.pid} {self._process.returncode}>"

    def get_pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def get_returncode(self) -> int | None:
        """How it ended; None as long as it runs."""
        return self._process.returncode

    def close(self) -> None:
        """Read no more; a program that still runs is killed."""
        if self._closed:
            return
        self._closed = True
        for number in tuple(self._pipes):
            self._drop(number)
        if self._process.returncode is None:
            self._process.kill()

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def _read(self, number: int) -> None:
        try:
            data = os.read(self._pipes[number].fileno(), _READ_BYTES)
        except BlockingIOError:
            return  # nothing there just now
        except OSError:
            data = b""
        if data:
            self._protocol.pipe_data_received(number, data)
        else:
            self._drop(number)
            self._finish()

    def _drop(self, number: int) -> None:
        pipe = self._pipes.pop(number)
        self._loop.remove_reader(pipe)
        pipe.close()

    def _reap(self) -> None:
        self._loop.remove_reader(self._ended)
        os.close(self._ended)
        self._ended = -1
        self._process.wait()
        self._protocol.process_exited()
        self._finish()

    def _finish(self) -> None:
        if self._ended < 0 and not self._pipes and not self._closed:
            self._protocol.connection_lost(None)
