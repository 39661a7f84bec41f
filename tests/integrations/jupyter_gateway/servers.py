"""Real Jupyter servers on loopback, each a host of its own as far as a session can tell."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TOKEN = "open-sesame-4711"

JUPYTER = (sys.executable, "-m", "jupyter_server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server: its address, its folder, its process."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        """End the server itself at once; its kernels notice by themselves."""
        self.process.kill()
        self.process.wait()


@contextmanager
def jupyter_server(folder: Path, options: Sequence[str] = ()) -> Iterator[Server]:
    """A Jupyter Server that knows `TOKEN`, with its home in `folder`."""
    port = free_port()
    arguments = [
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.allow_root=True",
        "--ServerApp.jpserver_extensions={}",
        "--no-browser",
        *options,
    ]
    with serving([*JUPYTER, *arguments], port, folder) as server:
        yield server


@contextmanager
def serving(command: Sequence[str], port: int, folder: Path) -> Iterator[Server]:
    """Whatever listens at `port` once `command` runs."""
    folder.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "HOME": str(folder), "JUPYTER_PREFER_ENV_PATH": "1"}
    environ["IPYTHONDIR"] = str(folder / ".ipython")
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, env=environ
        )
    try:
        _wait_for(port, process, folder)
        yield Server(url=f"http://127.0.0.1:{port}", folder=folder, process=process)
    finally:
        process.terminate()  # it ends its kernels, too
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError((folder / "server.log").read_text(errors="replace")[-2000:])


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
