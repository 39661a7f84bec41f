"""What people use today: a plain ipykernel, called through jupyter_client's blocking client."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.notebook.client import private_home


class RawKernel:
    """A running kernel.

    Attributes:
        start_ms: From the request to its first result.
    """

    def __enter__(self) -> Self:
        began_s = time.perf_counter()
        self._place = Path(tempfile.mkdtemp(prefix="aisotools-peer-"))
        file = str(self._place / "connection.json")
        self.manager = KernelManager(kernel_name="python3", connection_file=file)
        self.manager.start_kernel(**private_home(self._place))
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.execute("1+1")
        self.start_ms = (time.perf_counter() - began_s) * 1000
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        shutil.rmtree(self._place, ignore_errors=True)  # it may still be leaving

    @property
    def memory_bytes(self) -> int:
        """Its share of memory (PSS)."""
        provisioner: Any = self.manager.provisioner
        return pss_bytes(provisioner.pid)

    def send(self, code: str) -> str:
        """Begin to execute; the request's id."""
        return str(self.client.execute(code, store_history=False))

    def finish(self, request: str) -> None:
        """Wait for the reply and for all output."""
        while self.client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != request:
            continue
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            idle = message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"
            if idle and message["parent_header"].get("msg_id") == request:
                return

    def execute(self, code: str) -> None:
        """Execute and wait for everything."""
        self.finish(self.send(code))


def pss_bytes(pid: int) -> int:
    """A process's proportional share of memory; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)
