"""Calls in a remote kernel: what can be sent, the archive, the cells, and output that becomes a result."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import pytest

from aisotools.core.exceptions import ChannelError, WorkerDied
from aisotools.core.protocols import ToolPayload
from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolCall
from aisotools.integrations.jupyter_gateway import calls
from aisotools.integrations.jupyter_gateway.calls import (
    PythonCall,
    ToolCell,
    build_cells,
    check_sendable,
    encode_order,
    prepare_kernel,
)
from aisotools.integrations.jupyter_gateway.connection import PendingRequest
from aisotools.integrations.jupyter_gateway.payload import EMIT_MIME, RESULT_MIME

HERE = list(sys.version_info[:2])


class Link:
    """A kernel that answers questions from a table and cells with prepared replies."""

    own_kind = False

    def __init__(self, info: Mapping[str, Any] | None = None, **reply: Any) -> None:
        self.info: Mapping[str, Any] = info or {"python": HERE, "pydantic": True}
        self.reply = {"status": "ok", **reply}
        self.outputs: list[tuple[str, dict[str, Any]]] = []
        self.shipped: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.executed: list[str] = []
        self.forgotten: list[str] = []

    async def ask(self, expression: str, timeout_s: float, before: str = "") -> Mapping[str, Any]:
        self.asked.append((expression, before))
        return self.info

    async def execute(self, code: str, on_output: Any, **options: Any) -> tuple[str, PendingRequest]:
        self.executed.append(code)
        for kind, content in self.outputs:
            on_output(kind, content)
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        future.set_result(self.reply)
        return f"r{len(self.executed)}", PendingRequest(on_output=on_output, reply=future)

    async def wait_reply(self, pending: PendingRequest) -> Mapping[str, Any]:
        return await pending.reply

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


class Listener:
    """Records what a call reports."""

    def __init__(self) -> None:
        self.reports: list[tuple[Any, ...]] = []

    def output(self, call_id: str, stream: str, text: str) -> None:
        self.reports.append((stream, text))

    def emitted(self, call_id: str, name: str, payload: Mapping[str, Any]) -> None:
        self.reports.append((name, payload))


def request(import_path: str = "", **arguments: Any) -> SandboxCall:
    shipment = ToolPayload(key="k", import_path=import_path, payload=b"" if import_path else b"pickle")
    return SandboxCall(call=ToolCall("c", "tool", arguments), shipment=shipment, timeout_s=5)


def cell(kind: Any, link: Link, listener: Listener | None = None, **arguments: Any) -> Any:
    path = PythonCall.RUNS if kind is PythonCall else ""
    return kind(link, request(path, **arguments), listener or Listener())


# ---- preparing


async def test_a_kernel_with_the_same_version_gets_the_module_alone() -> None:
    link = Link({"python": HERE, "aisotools": version("aisotools")})
    assert (await prepare_kernel(link, "work", 5))["python"] == HERE  # type: ignore[arg-type]  # a fake
    [(expression, before)] = link.asked
    assert expression.endswith('.hello("work")')
    assert "def hello(" in before


async def test_another_version_gets_the_archive() -> None:
    link = Link({"python": HERE, "aisotools": "0.0"})
    await prepare_kernel(link, "work", 5)  # type: ignore[arg-type]  # a fake
    assert link.asked[-1][1].endswith(".install_archive()")
    assert all(".take(" in before for _, before in link.asked[1:-1])


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (None, "not a Python kernel"),
        ([3], "not a Python kernel"),
        ([3, "x"], "not a Python"),
        ([3, 9], "3.11 or newer"),
    ],
)
async def test_kernels_that_cannot_run_tools(python: object, message: str) -> None:
    with pytest.raises(WorkerDied, match=message):
        await prepare_kernel(Link({"python": python}), "work", 5)  # type: ignore[arg-type]  # a fake


def test_the_archive_has_what_tools_import_and_nothing_of_the_host() -> None:
    names = zipfile.ZipFile(io.BytesIO(calls._archive())).namelist()
    assert {"aisotools/builtin/search.py", "pathspec/__init__.py", "cloudpickle/__init__.py"} <= set(names)
    folders = {name.split("/")[1] for name in names if name.startswith("aisotools/")}
    assert not folders & {"agent", "cli", "integrations", "notebook"}
    assert {"core", "sandbox", "tools", "workspace"} <= folders


# ---- sending


def test_tools_that_can_be_sent() -> None:
    other = {"python": [3, 99], "pydantic": True}
    bare = {"python": HERE, "pydantic": False}
    assert check_sendable(request(), Link()) is None  # type: ignore[arg-type]  # a fake
    assert check_sendable(request("m:f"), Link(other)) is None  # type: ignore[arg-type]  # a fake
    assert check_sendable(request(PythonCall.RUNS), Link(bare)) is None  # type: ignore[arg-type]  # a fake
    refused = check_sendable(request(), Link(other))  # type: ignore[arg-type]  # a fake
    assert refused is not None
    assert "3.99 there" in refused.content
    refused = check_sendable(request("m:f"), Link(bare))  # type: ignore[arg-type]  # a fake
    assert refused is not None
    assert "%pip install pydantic" in refused.content


def test_an_order_brings_the_tool_once() -> None:
    first, second = (json.loads(encode_order(request(a=1), shipped)) for shipped in (False, True))
    assert base64.b64decode(first["payload"]) == b"pickle"
    assert second["payload"] == ""
    assert first["arguments"] == {"a": 1}
    assert json.loads(encode_order(request("m:f"), False))["payload"] == ""


def test_large_orders_take_several_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_PART_CHARS", 8)
    before, run, answer = build_cells(b"x" * 10, "n", overlap=True, own_kind=False)
    assert len(before) == 1
    assert ".take(" in run
    assert "await" in run
    assert answer.endswith(".answer('n', False)")
    assert "await" not in build_cells(b"x", "n", overlap=False, own_kind=True)[1]


# ---- results


async def test_a_python_call_collects_its_output() -> None:
    link, listener = Link(), Listener()
    link.outputs = [
        ("stream", {"name": "stdout", "text": "hi\n"}),
        ("stream", {"name": "elsewhere", "text": "x"}),
        ("execute_result", {"data": {"text/plain": "42"}}),
    ]
    call = cell(PythonCall, link, listener, code="6 * 7")
    result = call.result(await call.run())
    assert link.executed == ["6 * 7"]
    assert (result.content, result.is_error) == ("hi\n42", False)
    assert listener.reports == [("stdout", "hi\n")]
    call.end()
    assert link.forgotten == ["r1"]


async def test_a_failed_python_call_has_its_error_and_an_interrupted_one_says_so() -> None:
    link = Link(status="error", ename="E", evalue="v", traceback=["\x1b[31mTraceback\x1b[0m", 5, "E: v"])
    call = cell(PythonCall, link, code="1/0")
    result = call.result(await call.run())
    assert (result.is_error, result.value["error"]["ename"]) == (True, "E")
    assert result.content == "Traceback\nE: v"
    call.mark_interrupted()
    assert call.result(await call.run()).metadata["stopped"] is True


async def test_reports_of_another_call_are_ignored() -> None:
    listener = Listener()
    call = cell(ToolCell, Link(), listener)

    def emit(nonce: str, name: Any, payload: Any) -> None:
        data = {EMIT_MIME: {"nonce": nonce, "name": name, "payload": payload}}
        call._on_output("display_data", {"data": data})

    emit(call._nonce, "progress", {"done": 1})
    emit("another", "progress", {"done": 2})
    emit(call._nonce, 5, {})
    emit(call._nonce, "progress", "text")
    emit(call._nonce, "progress", {"text": "x" * (1 << 17)})
    assert listener.reports == [("progress", {"done": 1})]


async def test_a_tool_that_fails_in_the_kernel_says_why() -> None:
    call = cell(ToolCell, Link(status="error", ename="NameError", evalue="x"))
    result = call.result(await call.run())
    assert result.content == "tool failed in the remote kernel: NameError: x"
    assert (result.recoverable, result.error_kind) == (False, "environment")
    assert "k" not in call._link.shipped
    silent = cell(ToolCell, Link(status="error"))
    assert "no reason was sent" in silent.result(await silent.run()).content
    stopped = cell(ToolCell, Link(status="error", ename="KeyboardInterrupt", evalue=""))
    assert stopped.result(await stopped.run()).is_error


async def test_a_call_that_is_too_large_is_refused_before_anything_is_sent() -> None:
    call = cell(ToolCell, Link(), text="x" * (64 << 20))
    with pytest.raises(ChannelError, match=r"The call has 67,\d+,\d+ bytes; 67,108,864 are allowed\. Put"):
        await call.run()
    assert call._link.executed == []


async def test_an_answer_with_another_nonce_is_malformed() -> None:
    data = {RESULT_MIME: {"nonce": "other", "pieces": ["AA=="]}}
    call = cell(ToolCell, Link(user_expressions={"answer": {"data": data}}))
    reply = await call.run()
    assert call._link.shipped == {"k"}
    with pytest.raises(ChannelError):
        call.result(reply)


async def test_waiting_for_the_end_of_a_call() -> None:
    call = cell(PythonCall, Link(), code="1")
    assert await call.wait_finished(0) is True
    await call.run()
    assert await call.wait_finished(0) is True
    future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
    call._sent.append(("r9", PendingRequest(on_output=lambda _kind, _content: None, reply=future)))
    assert await call.wait_finished(0) is False
    call.end()
    assert "r9" not in call._link.forgotten
