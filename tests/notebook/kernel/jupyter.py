"""A client of a kernel, as tests use it: runs cells and tells what came of them."""

from __future__ import annotations

import json
import os
import queue
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.waiting import HANG_S

SPEC = Path(__file__).resolve().parents[3] / "aisotools" / "kernelspec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one request gave.

    Attributes:
        reply: The content of its reply.
        messages: What was published, in order: type and content; without input and status.
    """

    reply: Mapping[str, Any]
    messages: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        """The contents of one type of message."""
        return [content for type_, content in self.messages if type_ == kind]

    def text(self, stream: str = "stdout") -> str:
        """What was printed."""
        return "".join(content["text"] for content in self.of("stream") if content["name"] == stream)

    @property
    def result(self) -> Mapping[str, Any]:
        """The MIME bundle of the cell's value."""
        (content,) = self.of("execute_result")
        data: Mapping[str, Any] = content["data"]
        return data


@dataclass(slots=True, kw_only=True)
class Client:
    """A kernel and a client of it."""

    manager: KernelManager
    client: BlockingKernelClient

    def run(
        self,
        code: str,
        *,
        answer: Callable[[Mapping[str, Any]], str | None] | None = None,
        meanwhile: Callable[[str, Mapping[str, Any]], None] | None = None,
        within_s: float = HANG_S,
        **how: Any,
    ) -> Ran:
        """Run a cell; `answer` answers its questions, `meanwhile` sees what it shows as it comes.

        A question that `answer` returns None for stays without an answer.
        """
        request = self.client.execute(code, allow_stdin=answer is not None, **how)
        messages: list[tuple[str, Mapping[str, Any]]] = []
        ends_s = time.monotonic() + within_s
        idle = False
        while not idle:
            assert time.monotonic() < ends_s, (code, messages)
            if answer is not None:
                self._answer(answer)
            try:
                message = self.client.get_iopub_msg(timeout=0.05 if answer is not None else 1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status":
                idle = content["execution_state"] == "idle"
            elif kind != "execute_input":
                messages.append((kind, content))
                if meanwhile is not None:
                    meanwhile(kind, content)
        return Ran(reply=self._reply(request), messages=messages)

    def ask(self, kind: str, *arguments: Any, **named: Any) -> Mapping[str, Any]:
        """Ask something else, such as `complete`; the content of the reply."""
        return self._reply(getattr(self.client, kind)(*arguments, **named))

    def late(self, within_s: float = HANG_S) -> list[tuple[str, Mapping[str, Any]]]:
        """What is published though no cell runs, until something was."""
        message = self.client.get_iopub_msg(timeout=within_s)
        return [(message["msg_type"], message["content"])]

    def _reply(self, request: str) -> Mapping[str, Any]:
        while True:
            reply = self.client.get_shell_msg(timeout=HANG_S)
            if reply["parent_header"].get("msg_id") == request:
                content: Mapping[str, Any] = reply["content"]
                return content

    def _answer(self, answer: Callable[[Mapping[str, Any]], str | None]) -> None:
        try:
            question = self.client.get_stdin_msg(timeout=0)
        except queue.Empty:
            return
        text = answer(question["content"])
        if text is not None:
            self.client.input(text)


def install_spec(folder: Path, **config: Any) -> None:
    """Put our kernelspec below `folder`, for this Python."""
    place = folder / "kernels" / "aisotools"
    shutil.copytree(SPEC, place)
    spec = json.loads((place / "kernel.json").read_text())
    spec["argv"][0] = sys.executable
    spec["metadata"]["kernel_provisioner"]["config"] = config
    (place / "kernel.json").write_text(json.dumps(spec))


def environment(folder: Path) -> dict[str, str]:
    """The environment of a person of the tests' own, who has our kernelspec."""
    (folder / "home").mkdir(exist_ok=True)
    others = ("JUPYTER", "XDG", "PYTEST")  # under pytest a plain kernel does not hear its programs
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {
        **inherited,
        "HOME": str(folder / "home"),
        "XDG_STATE_HOME": str(folder / "state"),
        "JUPYTER_PATH": str(folder / "jupyter"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "home" / ".ipython"),
    }


@contextmanager
def kernel(folder: Path, **how: Any) -> Iterator[Client]:
    """A kernel as in `started`, and a client of it."""
    with started(folder, **how) as manager:
        client = manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=60)
            yield Client(manager=manager, client=client)
        finally:
            client.stop_channels()


@contextmanager
def started(
    folder: Path,
    *,
    cwd: Path | None = None,
    name: str = "aisotools",
    more: Mapping[str, str] | None = None,
    **config: Any,
) -> Iterator[KernelManager]:
    """A kernel with a home below `folder`, in `cwd` or a folder of its own.

    Args:
        folder: Holds everything of it.
        cwd: Its current folder.
        name: Of its kernelspec.
        more: What its environment has besides.
        config: For the provisioner.
    """
    if not (folder / "jupyter").exists():
        install_spec(folder / "jupyter", **config)
    if cwd is None:
        cwd = folder / "notebooks"
        cwd.mkdir(exist_ok=True)
    environ = {**environment(folder), **(more or {})}
    before = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_PATH"] = environ["JUPYTER_PATH"]
    try:
        manager = KernelManager(kernel_name=name, connection_file=str(folder / "connection.json"))
        manager.transport_encryption = "auto"  # without it kernels warn
        manager.start_kernel(cwd=str(cwd), env=environ)
    finally:
        os.environ.pop("JUPYTER_PATH")
        if before is not None:
            os.environ["JUPYTER_PATH"] = before
    try:
        yield manager
    finally:
        manager.shutdown_kernel()
        manager.cleanup_resources()
