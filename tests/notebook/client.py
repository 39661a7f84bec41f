"""A real ipykernel, with the test in the place of the front end."""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.waiting import HANG_S


def private_home(folder: Path) -> dict[str, Any]:
    """Options of a notebook that works in `folder` and finds nothing of the user's."""
    state = {
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    return {"cwd": str(folder), "env": {**os.environ, **state}}


WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def decision(shown: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What a page sends when somebody decides on the card that `shown` describes."""
    return {"type": "decision", "id": shown["id"], "nonce": shown["nonce"], **more}


@dataclass
class Run:
    """One cell that runs, and what came of it so far."""

    msg_id: str
    text: str = ""
    error: str = ""
    result: dict[str, Any] = field(default_factory=dict)
    displays: list[dict[str, Any]] = field(default_factory=list)
    shown: dict[str, dict[str, Any]] = field(default_factory=dict)
    cards: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    from_kernel: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False


class Notebook:
    """Runs cells and answers what they ask, as a front end does."""

    def __init__(self, **options: Any) -> None:
        """Start a kernel with these options; without any it has a home of its own, as in `private_home`."""
        self._place = Path(tempfile.mkdtemp(prefix="aisotools-notebook-"))
        self.manager = KernelManager(connection_file=str(self._place / "connection.json"))
        self.manager.start_kernel(**(options or private_home(self._place)))
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=HANG_S)

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        shutil.rmtree(self._place, ignore_errors=True)  # it may still be leaving

    def start(self, code: str, *, allow_stdin: bool = True) -> Run:
        return Run(self.client.execute(code, allow_stdin=allow_stdin))

    def run(self, code: str, *, allow_stdin: bool = True) -> Run:
        run = self.start(code, allow_stdin=allow_stdin)
        self.until(run, lambda: run.ended)
        return run

    def until(self, run: Run, condition: Any, timeout_s: float = HANG_S) -> None:
        """Take in messages until `condition()`."""
        ends_s = time.monotonic() + timeout_s
        while not condition():
            try:
                self._take(run, self.client.get_iopub_msg(timeout=0.05))
            except queue.Empty:
                assert time.monotonic() < ends_s, f"the condition did not become true: {run}"

    def card(self, run: Run) -> str:
        """Wait for the card, say hello, and wait for what it shows; its comm."""
        self.until(run, lambda: run.cards and run.displays)
        self.send(run.cards[-1], {"type": "hello"})
        self.until(run, lambda: any(m["type"] == "show" for m in run.from_kernel))
        return run.cards[-1]

    def send(self, comm_id: str, content: Any) -> None:
        """What the page's side of a widget sends."""
        data = {"method": "custom", "content": content}
        self.client.shell_channel.send(
            self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        )

    def decide(self, run: Run, outcome: str, **more: Any) -> None:
        shown = next(m for m in run.from_kernel if m["type"] == "show")
        self.send(run.cards[-1], decision(shown, outcome=outcome, **more))

    def typed(self, answer: str, timeout_s: float = HANG_S) -> str:
        """Wait for the input box, and answer in it; its prompt."""
        prompt: str = self.client.get_stdin_msg(timeout=timeout_s)["content"]["prompt"]
        self.client.input(answer)
        return prompt

    def _take(self, run: Run, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "comm_open" and "_esm" in content["data"].get("state", {}):
            run.cards.append(content["comm_id"])
        elif kind == "comm_close":
            run.closed.append(content["comm_id"])
        elif kind == "comm_msg" and content["data"].get("method") == "custom":
            run.from_kernel.append(content["data"]["content"])
        elif kind in {"display_data", "update_display_data"}:
            if kind == "display_data":
                run.displays.append(content["data"])
            run.shown[content["transient"].get("display_id", "")] = content["data"]
        elif kind == "execute_result":
            run.result = content["data"]
        elif kind == "stream":
            run.text += content["text"]
        elif kind == "error":
            run.error = content["ename"]
        elif kind == "status" and content["execution_state"] == "idle":
            run.ended = run.ended or message["parent_header"].get("msg_id") == run.msg_id
