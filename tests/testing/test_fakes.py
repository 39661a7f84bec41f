"""The fakes do what they promise to tests of other programs."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.exceptions import SandboxError, ToolError
from aisotools.core.protocols import OutputCaps, Tool, ToolContext, ToolPayload
from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import Effect, Facts, ToolCall, ToolResult
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.testing.contracts import RecordingListener
from aisotools.testing.fakes import FakeSandbox, MockTool
from aisotools.tools.adapter import deadline_of, gather_facts, undo_path
from aisotools.tools.function import tool
from tests.waiting import eventually


async def use(mock: MockTool, **arguments: Any) -> ToolResult:
    return await mock.execute(arguments, ToolContext())


# ---- MockTool


def test_a_mock_has_only_what_was_asked_for() -> None:
    mock = MockTool()
    assert isinstance(mock, Tool)
    for member in ("classify", "gather_facts", "extract_undo_path", "shipment", "timeout_s", "examples"):
        assert not hasattr(mock, member), member
    full = MockTool(
        effect=Effect.READ_ONLY,
        facts=Facts(outside=True),
        undo_path=Path("a"),
        runs_in="sandbox",
        timeout_s=3,
        examples=[({}, "go")],
    )
    assert full.classify({}) is Effect.READ_ONLY
    assert gather_facts(full, {}).outside
    assert undo_path(full, {}) == Path("a")
    assert full.shipment().concurrency == "overlap"
    assert deadline_of(full, b"{}") == 3
    assert full.examples == [({}, "go")]


async def test_a_mock_remembers_its_calls() -> None:
    mock = MockTool()
    await use(mock, x=1)
    await mock.execute({"y": 2}, ToolContext(call_id="c1"))
    assert mock.calls == [{"x": 1}, {"y": 2}]
    assert mock.contexts[1].call_id == "c1"
    assert repr(mock) == "<MockTool mock, called 2 times>"


async def later(arguments: Any, context: ToolContext) -> int:
    await asyncio.sleep(0)
    return len(arguments)


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("text", "text"),
        ({"a": 1}, '{"a":1}'),
        (5, "5"),
        (ToolResult.error("no"), "no"),
        (lambda arguments, context: f"{arguments}", "{'x': 1}"),
        (later, "1"),
        (lambda arguments, context: ToolResult.text("made"), "made"),
    ],
)
async def test_a_mock_gives_what_it_was_given(result: object, content: str) -> None:
    assert (await use(MockTool(result=result), x=1)).content == content


async def test_a_mock_gives_its_results_in_order() -> None:
    mock = MockTool(result=["one", ToolResult.error("two"), lambda a, c: "three"])
    assert [(await use(mock)).content for _ in range(4)] == [
        "one",
        "two",
        "three",
        "mock has no result for call 4; 3 were prepared.",
    ]


@pytest.mark.parametrize("error", [ValueError("broken"), KeyError])
async def test_a_mock_raises_what_it_was_given(error: Any) -> None:
    mock = MockTool(raises=error)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        await use(mock)
    assert mock.calls == [{}]


def test_in_its_own_process_a_mock_that_travelled_is_itself() -> None:
    for mock in (MockTool(), MockTool(result=lambda a, c: "local")):
        assert pickle.loads(pickle.dumps(mock)) is mock


def test_elsewhere_it_is_a_copy_or_says_why_not() -> None:
    code = "import pickle, sys; print(repr(pickle.load(sys.stdin.buffer)))"

    def elsewhere(mock: MockTool) -> str:
        run = subprocess.run(
            [sys.executable, "-c", code], input=pickle.dumps(mock), capture_output=True, check=False
        )
        return (run.stdout + run.stderr).decode()

    assert elsewhere(MockTool("copied", result={"a": 1})) == "<MockTool copied, called 0 times>\n"
    assert ToolError.__name__ in elsewhere(MockTool(result=lambda a, c: 1))
    assert "Use a plain result, or FakeSandbox" in elsewhere(MockTool(result=lambda a, c: 1))


# ---- FakeSandbox


def sandbox(tmp_path: Path, listener: RecordingListener) -> FakeSandbox:
    return FakeSandbox(WorkerSpec(level="confined", workspace=str(tmp_path), limits=Limits()), listener)


def a_call(shipment: ToolPayload, **arguments: Any) -> SandboxCall:
    return SandboxCall(
        call=ToolCall("c1", "f", arguments, agent_id="a", turn_id="t"),
        shipment=shipment,
        timeout_s=5,
        output_caps=OutputCaps(content_chars=7),
        session_key="k",
    )


async def test_a_tool_in_the_fake_sees_what_it_would_in_a_worker(tmp_path: Path) -> None:
    seen: list[ToolContext] = []
    mock = MockTool(runs_in="sandbox", result=lambda a, context: seen.append(context))
    await sandbox(tmp_path, RecordingListener()).call(a_call(mock.shipment()))
    (context,) = seen
    assert (context.agent_id, context.turn_id, context.call_id, context.session_key) == ("a", "t", "c1", "k")
    assert (context.workspace_path, context.output_caps.content_chars) == (tmp_path, 7)
    assert context.sandbox_config == {"level": "confined", "workspace": str(tmp_path)}
    assert (context.services, context.approval_handler) == (None, None)


async def test_a_worker_of_the_fake_can_die(tmp_path: Path) -> None:
    listener = RecordingListener()
    fake = sandbox(tmp_path, listener)
    mock = MockTool(runs_in="sandbox", result=lambda a, c: asyncio.sleep(30))
    calling = asyncio.ensure_future(fake.call(a_call(mock.shipment())))
    await eventually(lambda: mock.calls)
    fake.lose("it was ended by SIGSEGV")
    result = await calling
    assert "it was ended by SIGSEGV" in result.content
    assert (result.error_kind, result.metadata["state_kept"]) == ("environment", False)
    assert not fake.status().alive
    await fake.start()
    assert listener.events == [
        ("started", 1, ""),
        ("lost", 1, "it was ended by SIGSEGV"),
        ("started", 2, "it was ended by SIGSEGV"),
    ]
    assert repr(fake) == "<FakeSandbox confined, generation 2>"
    await fake.close()
    assert repr(fake) == "<FakeSandbox confined, closed>"
    with pytest.raises(SandboxError, match="The sandbox was closed"):
        await fake.start()


async def test_a_stopped_sync_tool_ends_at_its_next_line(tmp_path: Path) -> None:
    import threading
    import time

    began = tmp_path / "began"
    names: dict[str, Any] = {"time": time, "began": began}
    source = """def f() -> None:
    began.touch()
    while True:
        time.sleep(0.001)
"""
    exec(source, names)
    before = threading.active_count()
    fake = sandbox(tmp_path, RecordingListener())
    shipment = tool(names["f"]).shipment()
    assert shipment is not None
    calling = asyncio.ensure_future(fake.call(a_call(shipment)))
    await eventually(began.exists)
    await fake.interrupt()
    assert (await calling).metadata["stopped"] is True
    await eventually(lambda: threading.active_count() <= before + 1)


async def test_sync_function_that_returns_an_awaitable_is_reported(tmp_path: Path) -> None:
    @tool
    def f() -> Any:
        return asyncio.sleep(0)

    shipment = f.shipment()
    assert shipment is not None
    result = await sandbox(tmp_path, RecordingListener()).call(a_call(shipment))
    assert result.is_error
    assert "make it async def" in result.content
