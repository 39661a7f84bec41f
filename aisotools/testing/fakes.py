"""For tests of programs that use aisotools: fakes, and the contracts that fakes and real parts pass alike.

The fakes are whole implementations that keep to memory. A contract is a class of test methods: subclass it in
a test module under a name that starts with `Test`, say in `make` what is to be tested, and any runner that
collects classes will do. Nothing here needs pytest.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pickle
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from aisotools.core.exceptions import SandboxError, ToolError
from aisotools.core.protocols import (
    Cancellation,
    SandboxCall,
    SandboxListener,
    SandboxStatus,
    Tool,
    ToolContext,
    ToolPayload,
)
from aisotools.core.types import Effect, Facts, Json, RunsIn, ToolResult
from aisotools.sandbox.confinement.detect import Detection
from aisotools.sandbox.host.scheduler import CallScheduler
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.approvers import run_blocking
from aisotools.tools.adapter import exception_result
from aisotools.tools.function import FunctionTool

_GRACE_S = 0.3
_NEEDS_A_WORKER = ("aisotools.builtin.python:", "aisotools.builtin.shell:")


class MockTool:
    """A tool that gives prepared results and remembers how it was called.

    It has the optional members of a tool only if they are asked for: without `effect` there is no `classify`,
    with `runs_in="sandbox"` there is a `shipment`.

    Attributes:
        name: Its name.
        description: What a model reads.
        calls: The arguments of each call so far. In a sandbox of another process a copy of the tool is
            called, and this stays empty.
        contexts: The context of each call so far.
    """

    classify: Callable[[Mapping[str, Json]], Effect]
    gather_facts: Callable[[Mapping[str, Json]], Facts]
    extract_undo_path: Callable[[Mapping[str, Json]], Path | None]
    shipment: Callable[[], ToolPayload]
    timeout_s: float
    examples: Sequence[tuple[Mapping[str, Json], str]]

    def __init__(
        self,
        name: str = "mock",
        *,
        description: str = "A mock tool.",
        parameters: Mapping[str, Json] | None = None,
        result: object = "done",
        raises: BaseException | type[BaseException] | None = None,
        runs_in: RunsIn = "host",
        effect: Effect | None = None,
        facts: Facts | None = None,
        undo_path: Path | None = None,
        timeout_s: float | None = None,
        examples: Sequence[tuple[Mapping[str, Json], str]] | None = None,
    ) -> None:
        """Prepare it.

        Args:
            name: Its name.
            description: What a model reads.
            parameters: JSON Schema of its arguments; any without it.
            result: What a call gives: a `ToolResult`, a text or JSON value, a function of arguments and
                context (`async def` too), or a list or tuple of these, one for each call.
            raises: What a call raises instead.
            runs_in: Where it runs.
            effect: What every call may do.
            facts: What a policy is told of every call.
            undo_path: The path that every call changes.
            timeout_s: Deadline of a call in seconds.
            examples: Pairs of arguments and what a person would say.
        """
        self._given = {key: value for key, value in locals().items() if key != "self"}
        self._id = uuid.uuid4().hex
        _mocks[self._id] = self
        self.name, self.description = name, description
        self._parameters = parameters if parameters is not None else {"type": "object"}
        self._result, self._raises = result, raises
        self.calls: list[dict[str, Json]] = []
        self.contexts: list[ToolContext] = []
        asked_for = {
            "classify": effect and (lambda _: effect),
            "gather_facts": facts and (lambda _: facts),
            "extract_undo_path": undo_path and (lambda _: undo_path),
            "shipment": self._ship if runs_in == "sandbox" else None,
            "timeout_s": timeout_s,
            "examples": examples,
        }
        self.__dict__.update({k: v for k, v in asked_for.items() if v is not None})

    def __repr__(self) -> str:
        return f"<MockTool {self.name}, called {len(self.calls)} times>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _same_mock, (self._id, _if_it_travels(self._given))

    def parameters_schema(self) -> Mapping[str, Json]:
        """JSON Schema of the arguments."""
        return self._parameters

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Remember the call and give the next result."""
        self.calls.append(dict(arguments))
        self.contexts.append(context)
        if self._raises is not None:
            raise self._raises
        result: Any = self._result
        if isinstance(result, list | tuple):
            if len(self.calls) > len(result):
                return ToolResult.error(f"{self.name} has no more results: all {len(result)} were given.")
            result = result[len(self.calls) - 1]
        if callable(result):
            result = result(arguments, context)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, ToolResult):
            return result
        return ToolResult.text(result) if isinstance(result, str) else ToolResult.json(result)

    def _ship(self) -> ToolPayload:
        return ToolPayload(key=self._id, payload=pickle.dumps(self), concurrency="overlap")


_mocks: WeakValueDictionary[str, MockTool] = WeakValueDictionary()


def _same_mock(known_as: str, given: Mapping[str, Any] | None) -> MockTool:
    """In the process that made it the tool itself; anywhere else a copy."""
    known = _mocks.get(known_as)
    if known is None and given is None:
        raise ToolError(
            "This MockTool was given something that cannot be sent to another process. Give a plain result, "
            "or use FakeSandbox.",
            recoverable=False,
        )
    return known or MockTool(**(given or {}))


def _if_it_travels(given: Mapping[str, Any]) -> Mapping[str, Any] | None:
    try:
        pickle.dumps(given)
    except Exception:  # pickle raises whatever the parts raise
        return None
    return given


# ---- a sandbox


class FakeSandbox:
    """A sandbox without processes or confinement: tools run in this one, on copies as in a worker.

    Use it as `Session(sandbox=FakeSandbox)`. Deadlines, cancellation, turns and restarts are those of a real
    one, except that a sync tool which is stopped goes on to its next line of Python, in a thread. What tools
    print goes to this process's own streams. The built-ins `python` and `sandbox_bash` need a real worker and
    say so.
    """

    @staticmethod
    def detect() -> Detection:
        """What it claims to hold, so that a session needs no fork server; override it for other levels."""
        return Detection("confined", ())

    def __init__(self, wanted: WorkerSpec, listener: SandboxListener) -> None:
        """Stand for the worker that `wanted` describes."""
        self._wanted = wanted
        self._listener = listener
        self._scheduler = CallScheduler()
        self._worker: _Worker | None = None
        self._generation = 0
        self._why_new = ""
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"generation {self._generation}"
        return f"<FakeSandbox {self._wanted.level}, {state}>"

    async def start(self) -> SandboxStatus:
        """Have a worker up; at once if there is one."""
        self._up()
        return self.status()

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run `request`; stop it at its deadline, and when the awaiting task is cancelled."""
        async with self._scheduler.slot(request.shipment.concurrency):
            worker = self._up()
            work = worker.begin(request)
            try:
                ends: list[asyncio.Future[Any]] = [work, worker.lost]
                done, _ = await asyncio.wait(
                    ends, timeout=request.timeout_s, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                worker.cancel(request.call.id)
            if worker.lost.done():
                return ToolResult.error(
                    f"The sandbox's worker ended during the call: {worker.lost.result()}. Its variables are "
                    "lost; the next call gets a fresh worker.",
                    error_kind="environment",
                ).with_metadata(worker_died=True, state_kept=False)
            await asyncio.wait([work], timeout=_GRACE_S)
            if not done:
                return ToolResult.error(
                    f"{request.call.name} timed out after {request.timeout_s:g} s. Variables are kept, "
                    "including changes made before the timeout.",
                ).with_metadata(timed_out=True, state_kept=True)
            if work.cancelled():
                return ToolResult.error("The call was interrupted.").with_metadata(stopped=True)
            return work.result()

    async def interrupt(self) -> None:
        """Stop whatever runs, keeping the worker."""
        if self._worker is not None:
            self._worker.cancel(*self._worker.running)

    async def restart(self) -> SandboxStatus:
        """End the worker, with the state of its tools, and have a fresh one."""
        self.lose("the sandbox was restarted")
        self._why_new = "it was restarted"
        return await self.start()

    async def close(self) -> None:
        """End the worker; nothing can be called afterwards."""
        self._closed = True
        self.lose("the session was closed")

    def status(self) -> SandboxStatus:
        """The state right now."""
        return SandboxStatus(
            level=self._wanted.level,
            alive=self._worker is not None,
            generation=self._generation,
            age_s=time.monotonic() - self._worker.since_s if self._worker is not None else 0.0,
        )

    def lose(self, reason: str = "it was ended by SIGKILL") -> None:
        """Let the worker die, as real ones do; calls under way fail, and the next gets a fresh one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.end(reason)
            self._why_new = reason
            if not self._closed:
                self._listener.lost(self._generation, reason)

    def _up(self) -> _Worker:
        if self._closed:
            raise SandboxError("The sandbox was closed.")
        if self._worker is None:
            self._worker = _Worker(self._wanted, self._listener)
            self._generation += 1
            self._listener.started(self.status(), self._why_new)
        return self._worker


class _Worker:
    """One generation: the copies of tools it was sent, and the calls under way."""

    def __init__(self, wanted: WorkerSpec, listener: SandboxListener) -> None:
        self._wanted = wanted
        self._listener = listener
        self._tools: dict[str, Tool] = {}
        self._loop = asyncio.get_running_loop()
        self.since_s = time.monotonic()
        self.running: dict[str, tuple[asyncio.Future[ToolResult], Cancellation]] = {}
        self.lost: asyncio.Future[str] = self._loop.create_future()

    def begin(self, request: SandboxCall) -> asyncio.Future[ToolResult]:
        cancellation = Cancellation()
        work = asyncio.ensure_future(self._attempt(request, cancellation))
        self.running[request.call.id] = work, cancellation
        work.add_done_callback(lambda _: self.running.pop(request.call.id, None))
        return work

    def cancel(self, *call_ids: str) -> None:
        for work, cancellation in [self.running[one] for one in call_ids if one in self.running]:
            cancellation.cancel()
            work.cancel()

    def end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
        self.cancel(*self.running)

    async def _attempt(self, request: SandboxCall, cancellation: Cancellation) -> ToolResult:
        try:
            tool = self._tool(request.shipment)
            arguments, context = _as_json(request.call.arguments), self._context(request, cancellation)
            if isinstance(tool, FunctionTool) and not inspect.iscoroutinefunction(tool.function):
                result = await run_blocking(lambda: _driven(tool.execute(arguments, context)))
            else:
                result = await tool.execute(arguments, context)
            return _as_sent(result)
        except SandboxError as error:
            return ToolResult.error(str(error), recoverable=False, error_kind="environment")
        except (Exception, SystemExit) as error:  # whatever a tool raises is its result
            return exception_result(error)

    def _tool(self, shipment: ToolPayload) -> Tool:
        if shipment.import_path.startswith(_NEEDS_A_WORKER):
            raise SandboxError(
                f"{shipment.import_path.rpartition(':')[2]} needs a real worker, and FakeSandbox has none. "
                "Test it with a real sandbox, or register a MockTool of that name.",
            )
        if shipment.key not in self._tools:
            module, _, attribute = shipment.import_path.partition(":")
            imported = getattr(importlib.import_module(module), attribute) if module else None
            self._tools[shipment.key] = imported or pickle.loads(shipment.payload)  # noqa: S301 - our own
        return self._tools[shipment.key]

    def _context(self, request: SandboxCall, cancellation: Cancellation) -> ToolContext:
        call = request.call

        def emit(name: str, payload: Mapping[str, Json]) -> None:
            self._loop.call_soon_threadsafe(self._listener.emitted, call.id, name, _as_json(payload))

        return ToolContext(
            agent_id=call.agent_id,
            session_key=request.session_key,
            turn_id=call.turn_id,
            call_id=call.id,
            workspace_path=Path(self._wanted.workspace),
            sandbox_config={"level": self._wanted.level, "workspace": self._wanted.workspace},
            cancellation=cancellation,
            output_caps=request.output_caps,
            emitter=emit,
            metadata={"read_only": request.read_only},
        )


def _driven(execution: Coroutine[Any, Any, ToolResult]) -> ToolResult:
    """What a sync function gives, in a thread without a loop."""
    try:
        execution.send(None)
    except StopIteration as done:
        result: ToolResult = done.value
        return result
    finally:
        execution.close()
    raise RuntimeError("a sync function has nothing to await here; make it async def")


def _as_json(value: Any) -> Any:
    """A value as it is after it was sent: copied, and reduced to what JSON holds."""
    from pydantic_core import from_json, to_json

    return from_json(to_json(value, inf_nan_mode="strings", serialize_unknown=True))


def _as_sent(result: ToolResult) -> ToolResult:
    fields = ("content", "is_error", "recoverable", "error_kind", "kind", "value", "data", "metadata")
    return ToolResult(**_as_json({name: getattr(result, name) for name in fields}))
