"""Fakes for tests of programs that use aisotools: `MockTool` and `FakeSandbox`.

They are complete in-memory implementations, and pass the suites in `aisotools.testing.contracts`.
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
from aisotools.core.protocols import Cancellation, Declaration, Tool, ToolContext, ToolPayload
from aisotools.core.sandboxes import INTERRUPTED_BEFORE, SandboxCall, SandboxListener, SandboxStatus
from aisotools.core.types import Effect, Facts, Json, RunsIn, ToolResult
from aisotools.sandbox.confinement.detect import Detection
from aisotools.sandbox.confinement.levels import at_least
from aisotools.sandbox.host.failures import VARIABLES_KEPT, explain_replaced
from aisotools.sandbox.host.scheduler import CallScheduler
from aisotools.sandbox.process.spawn import WorkerSpec
from aisotools.session.approvers import run_blocking
from aisotools.tools.adapter import exception_result
from aisotools.tools.function import FunctionTool

_CANCEL_GRACE_S = 0.3  # for a cancelled tool to clean up
_NEEDS_A_WORKER = ("aisotools.builtin.python:", "aisotools.builtin.shell:")


class MockTool:
    """A tool that returns prepared results and records its calls.

    It has an optional member of a tool only if the matching argument is passed: `classify` and `declaration`
    for `effect`, `shipment` for `runs_in="sandbox"`.

    Attributes:
        name: Its name.
        description: Its description for models.
        calls: The arguments of each call so far. Stays empty in a sandbox of other processes, where a copy of
            the tool is called.
        contexts: The context of each call so far.
    """

    classify: Callable[[Mapping[str, Json]], Effect]
    declaration: Declaration
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
        """Prepare the results.

        Args:
            name: Its name.
            description: Its description for models.
            parameters: JSON Schema of its arguments. Default: any arguments.
            result: The result of a call: a `ToolResult`, a text or JSON value, a function of arguments and
                context (`async def` too), or a list or tuple of these, one for each call.
            raises: The exception that a call raises instead.
            runs_in: Where it runs.
            effect: The effect of every call.
            facts: The facts of every call for the policy.
            undo_path: The path that every call changes.
            timeout_s: Deadline of a call in seconds.
            examples: Pairs of arguments and a request that they answer.
        """
        # First in this function: `locals()` is exactly the arguments here, for a copy in another process.
        self._options = {key: value for key, value in locals().items() if key != "self"}
        self._id = uuid.uuid4().hex
        _mocks[self._id] = self
        self.name = name
        self.description = description
        self._parameters = parameters if parameters is not None else {"type": "object"}
        self._result = result
        self._raises = raises
        self.calls: list[dict[str, Json]] = []
        self.contexts: list[ToolContext] = []
        if effect is not None:
            self.classify = lambda _: effect
            if facts is None:
                self.declaration = "constant"
        if facts is not None:
            self.gather_facts = lambda _: facts
        if undo_path is not None:
            self.extract_undo_path = lambda _: undo_path
        if runs_in == "sandbox":
            self.shipment = self._payload
        if timeout_s is not None:
            self.timeout_s = timeout_s
        if examples is not None:
            self.examples = examples

    def __repr__(self) -> str:
        return f"<MockTool {self.name}, called {len(self.calls)} times>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_or_copy, (self._id, _if_picklable(self._options))

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return the JSON Schema of the arguments."""
        return self._parameters

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Record the call and return the next result."""
        self.calls.append(dict(arguments))
        self.contexts.append(context)
        if self._raises is not None:
            raise self._raises
        result: Any = self._result
        if isinstance(result, list | tuple):
            if len(self.calls) > len(result):
                return ToolResult.error(
                    f"{self.name} has no result for call {len(self.calls)}; {len(result)} were prepared."
                )
            result = result[len(self.calls) - 1]
        if callable(result):
            result = result(arguments, context)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, ToolResult):
            return result
        return ToolResult.text(result) if isinstance(result, str) else ToolResult.json(result)

    def _payload(self) -> ToolPayload:
        return ToolPayload(key=self._id, payload=pickle.dumps(self), concurrency="overlap")


_mocks: WeakValueDictionary[str, MockTool] = WeakValueDictionary()


def _find_or_copy(mock_id: str, options: Mapping[str, Any] | None) -> MockTool:
    """Unpickle a mock: itself in the process that created it, a copy in any other."""
    original = _mocks.get(mock_id)
    if original is not None:
        return original
    if options is None:
        raise ToolError(
            "An argument of this MockTool cannot be pickled for another process. Use a plain result, or "
            "FakeSandbox.",
            recoverable=False,
        )
    return MockTool(**options)


def _if_picklable(options: Mapping[str, Any]) -> Mapping[str, Any] | None:
    try:
        pickle.dumps(options)
    except Exception:
        # Pickling raises whatever the objects raise.
        return None
    return options


class FakeSandbox:
    """A sandbox without processes or confinement. Tools run in this process, on copies as in a worker.

    Use it as `Session(sandbox=FakeSandbox)`. Deadlines, cancellation, scheduling and restarts behave as in a
    real sandbox, except that a stopped sync tool continues in its thread until its next line of Python.
    Output of tools goes to the streams of this process. The built-ins `python` and `sandbox_bash` need a real
    worker; calls of them fail with a message that says so.
    """

    @staticmethod
    def detect() -> Detection:
        """Return the level it pretends to have, `confined`. Override it for another level."""
        return Detection("confined", ())

    def __init__(self, spec: WorkerSpec, listener: SandboxListener) -> None:
        """Stand in for the worker that `spec` describes."""
        self._spec = spec
        self._listener = listener
        self._scheduler = CallScheduler()
        self._worker: _FakeWorker | None = None
        self._generation = 0
        self._start_reason = ""
        self._unreported_end = ""
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"generation {self._generation}"
        return f"<FakeSandbox {self._spec.level}, {state}>"

    @property
    def has_readers(self) -> bool:
        """True if the level it pretends to have holds tools that only read to it; nothing does so here."""
        return at_least(self._spec.level, "confined")

    async def start(self) -> SandboxStatus:
        """Start a worker unless there is one."""
        self._ensure_worker()
        return self.status()

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run `request`. It is stopped at its deadline, and when the awaiting task is cancelled.

        A trial is refused: nothing here would hold it to changing nothing.
        """
        if request.is_trial:
            return ToolResult.error(
                f"{request.call.name} was not tried: FakeSandbox confines nothing. Use a real sandbox.",
                error_kind="environment",
            )
        async with self._scheduler.slot(request.shipment.concurrency):
            if request.dispatch.is_interrupted:
                request.dispatch.is_given = False
                return INTERRUPTED_BEFORE
            result = await self._run(self._ensure_worker(), request)
            if end := self._unreported_end:
                result, self._unreported_end = explain_replaced(result, end, request.dispatch), ""
            return result

    async def _run(self, worker: _FakeWorker, request: SandboxCall) -> ToolResult:
        work = worker.begin(request)
        try:
            ends: list[asyncio.Future[Any]] = [work, worker.lost]
            done, _ = await asyncio.wait(ends, timeout=request.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            worker.cancel(request.call.id)
        if worker.lost.done():
            return ToolResult.error(
                f"The sandbox's worker ended during the call: {worker.lost.result()}. Its variables are "
                "lost; the next call gets a fresh worker.",
                error_kind="environment",
            ).with_metadata(worker_died=True, state_kept=False)
        await asyncio.wait([work], timeout=_CANCEL_GRACE_S)
        if not done:
            return ToolResult.error(
                f"{request.call.name} timed out after {request.timeout_s:g} s. {VARIABLES_KEPT}"
            ).with_metadata(timed_out=True, state_kept=True)
        if work.cancelled():
            return ToolResult.error("The call was interrupted.").with_metadata(stopped=True)
        return work.result()

    async def interrupt(self) -> None:
        """Stop all running calls; the worker and its state stay."""
        if self._worker is not None:
            self._worker.cancel(*self._worker.running)

    async def restart(self) -> SandboxStatus:
        """Replace the worker. The state of its tools is lost."""
        self.lose("the sandbox was restarted")
        self._start_reason = "it was restarted"
        return await self.start()

    async def close(self) -> None:
        """End the worker. Later calls raise `SandboxError`."""
        self._closed = True
        self.lose("the session was closed")

    def status(self) -> SandboxStatus:
        """Return the current state."""
        return SandboxStatus(
            level=self._spec.level,
            alive=self._worker is not None,
            generation=self._generation,
            age_s=time.monotonic() - self._worker.start_s if self._worker is not None else 0.0,
        )

    def lose(self, reason: str = "it was ended by SIGKILL") -> None:
        """Let the worker die as in a crash: running calls fail, and the next call starts another worker."""
        worker, self._worker = self._worker, None
        if worker is not None:
            if worker.is_used:  # calls in progress say it themselves
                self._unreported_end = "" if worker.running else f"{reason}; its variables are lost"
            worker.end(reason)
            self._start_reason = reason
            if not self._closed:
                self._listener.lost(self._generation, reason)

    def _ensure_worker(self) -> _FakeWorker:
        if self._closed:
            raise SandboxError("The sandbox was closed.")
        if self._worker is None:
            self._worker = _FakeWorker(self._spec, self._listener)
            self._generation += 1
            self._listener.started(self.status(), self._start_reason)
        return self._worker


class _FakeWorker:
    """One generation: its copies of the tools, and the running calls."""

    def __init__(self, spec: WorkerSpec, listener: SandboxListener) -> None:
        self._spec = spec
        self._listener = listener
        self._tools: dict[str, Tool] = {}
        self._loop = asyncio.get_running_loop()
        self.start_s = time.monotonic()
        self.is_used = False
        self.running: dict[str, tuple[asyncio.Future[ToolResult], Cancellation]] = {}
        self.lost: asyncio.Future[str] = self._loop.create_future()

    def begin(self, request: SandboxCall) -> asyncio.Future[ToolResult]:
        self.is_used = True
        cancellation = Cancellation()
        work = asyncio.ensure_future(self._attempt(request, cancellation))
        self.running[request.call.id] = work, cancellation
        work.add_done_callback(lambda _: self.running.pop(request.call.id, None))
        return work

    def cancel(self, *call_ids: str) -> None:
        for work, cancellation in [self.running[call_id] for call_id in call_ids if call_id in self.running]:
            cancellation.cancel()
            work.cancel()

    def end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
        self.cancel(*self.running)

    async def _attempt(self, request: SandboxCall, cancellation: Cancellation) -> ToolResult:
        try:
            tool = self._tool(request.shipment)
            arguments = _json_copy(request.call.arguments)
            context = self._context(request, cancellation)
            if isinstance(tool, FunctionTool) and not inspect.iscoroutinefunction(tool.function):
                result = await run_blocking(lambda: _run_coroutine(tool.execute(arguments, context)))
            else:
                result = await tool.execute(arguments, context)
            return _json_result(result)
        except SandboxError as error:
            return ToolResult.error(str(error), recoverable=False, error_kind="environment")
        except (Exception, SystemExit) as error:
            # As in a worker: any exception of a tool is its result.
            return exception_result(error)

    def _tool(self, payload: ToolPayload) -> Tool:
        if payload.import_path.startswith(_NEEDS_A_WORKER):
            raise SandboxError(
                f"{payload.import_path.rpartition(':')[2]} needs a real worker, and FakeSandbox has none. "
                "Test it with a real sandbox, or register a MockTool of that name.",
            )
        if payload.key not in self._tools:
            module, _, attribute = payload.import_path.partition(":")
            imported = getattr(importlib.import_module(module), attribute) if module else None
            self._tools[payload.key] = imported or pickle.loads(payload.payload)  # noqa: S301 - our own
        return self._tools[payload.key]

    def _context(self, request: SandboxCall, cancellation: Cancellation) -> ToolContext:
        call = request.call

        def emit(name: str, payload: Mapping[str, Json]) -> None:
            # Called on any thread: a tool may work in threads of its own, and listeners expect the loop's.
            self._loop.call_soon_threadsafe(self._listener.emitted, call.id, name, _json_copy(payload))

        return ToolContext(
            agent_id=call.agent_id,
            session_key=request.session_key,
            turn_id=call.turn_id,
            call_id=call.id,
            workspace_path=Path(self._spec.workspace),
            sandbox_config={"level": self._spec.level, "workspace": self._spec.workspace},
            cancellation=cancellation,
            output_caps=request.output_caps,
            emitter=emit,
            metadata={"read_only": request.read_only},
        )


def _run_coroutine(execution: Coroutine[Any, Any, ToolResult]) -> ToolResult:
    """Run the coroutine of a sync function in a thread without an event loop: it never suspends."""
    try:
        execution.send(None)
    except StopIteration as stop:
        result: ToolResult = stop.value
        return result
    finally:
        execution.close()
    raise RuntimeError("a sync function returned an awaitable; make it async def")


def _json_copy(value: Any) -> Any:
    """Return the value as a worker receives it: copied, and reduced to JSON types."""
    from pydantic_core import from_json, to_json

    return from_json(to_json(value, inf_nan_mode="strings", serialize_unknown=True))


def _json_result(result: ToolResult) -> ToolResult:
    fields = ("content", "is_error", "recoverable", "error_kind", "kind", "value", "data", "metadata")
    return ToolResult(**_json_copy({name: getattr(result, name) for name in fields}))
