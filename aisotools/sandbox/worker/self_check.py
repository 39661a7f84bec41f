"""Whether cells still run in this process: a cell that does nothing, run as the calls run theirs.

Threat: user code shares the process with what runs it. One line (`ast.parse = None`) makes every later cell
fail, also in each snapshot that is taken from then on, so that the session would be of no use any more.
Mechanism: after a cell has failed, and in a fork of a snapshot before that takes a worker's place, this runs
the same tool by the same way with `NOTHING`; the fork then serves a whole call of it as well. If that fails,
the fault is not the cell's. The worker then ends with `BROKEN_STATUS`, and the host restores the latest
snapshot whose fork passes, or starts a fresh worker.
Race: the check runs between two steps of the event loop; a thread of user code may break things right after
it, which the next failing cell finds.
Failure: hostile code can pass the check, or never return from it, and harms only its own session. The call's
deadline ends a check that hangs, and a fork has a second. After three calls in a row that broken workers
ended, the host trusts no snapshot.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

from aisotools.core.exceptions import WorkerBroken
from aisotools.core.protocols import Tool
from aisotools.core.types import ToolResult
from aisotools.sandbox.worker.event_loop import ForkableEventLoop
from aisotools.sandbox.worker.ipython import ZMQInteractiveShell
from aisotools.sandbox.worker.output import CallRecord, ExecuteOptions, HostListener, InputChannel

CELLS = ".python:python"
"""End of the import path of the tool that runs cells, which lies above this package."""

NOTHING = "print(0)\n..."
"""A cell that prints, shows a value that nobody has a formatter for, and leaves nothing."""

CHECK_ID = "check"
"""Id of the check's record. What that prints is encoded and sent to nobody."""


def _send_nothing(op: str, header: Mapping[str, Any], parts: tuple[bytes, ...] = ()) -> None:
    """Stand in for the channel: nobody is to hear anything."""


def make_check_record(inputs: InputChannel) -> CallRecord:
    """Return the record of one check."""
    options = ExecuteOptions(store_history=False)
    listener = HostListener(number=0, options=options, send=_send_nothing, inputs=inputs)
    return CallRecord(call_id=CHECK_ID, listener=listener)


@contextlib.contextmanager
def unnoticed(shell: ZMQInteractiveShell) -> Iterator[None]:
    """Keep a cell of ours out of the user's variables, history and callbacks."""
    hook, events = shell.displayhook, shell.events
    succeeded, result = shell.last_execution_succeeded, shell.last_execution_result
    cache_size, callbacks, display_failed = hook.cache_size, events.callbacks, shell.display_failed
    attributes: dict[str, Any] = vars(hook)
    own_quiet = attributes.get("quiet")
    # IPython's looks for a semicolon in the last cell of the history, which this one is not in.
    attributes["quiet"] = functools.partial(hook.semicolon_at_end_of_expression, NOTHING)
    # Without a cache the value is not put into `_`, `Out` and the like.
    hook.cache_size, events.callbacks = 0, {name: [] for name in callbacks}
    try:
        yield
    finally:
        del attributes["quiet"]
        if own_quiet is not None:
            attributes["quiet"] = own_quiet
        hook.cache_size, events.callbacks, shell.display_failed = cache_size, callbacks, display_failed
        shell.last_execution_succeeded, shell.last_execution_result = succeeded, result


def require_sound(
    shell: ZMQInteractiveShell,
    record: CallRecord,
    execute: Callable[[], Coroutine[Any, Any, ToolResult]],
    encode: Callable[[ToolResult], object],
) -> None:
    """Run `NOTHING` as calls run cells.

    Args:
        shell: The worker's shell.
        record: What `make_check_record` returned.
        execute: Begins the tool `CELLS`, for a call with this record.
        encode: Encodes its result, as that of a call.

    Raises:
        WorkerBroken: It fails, so every cell does.
    """

    def run() -> ToolResult:
        shell.recorder.enter(record)
        with unnoticed(shell):
            if "_oh" not in shell.user_ns:  # where IPython looks before it shows a value
                raise WorkerBroken("IPython's own variables are gone")
            coroutine = execute()
            try:
                coroutine.send(None)
            except StopIteration as stop:
                result: ToolResult = stop.value
                encode(result)
                return result
        raise WorkerBroken("it waits for something")

    try:
        result = contextvars.copy_context().run(run)
        fault = result.content if result.is_error else ""
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    if fault:
        *_, last_line = fault.strip().splitlines() or [fault]
        raise WorkerBroken(f"a cell that does nothing fails: {last_line}")


def run_in_fork(check: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a check as a task, in a fork whose own event loop stands still."""
    loop = ForkableEventLoop()  # the worker's own would go on with what waits in it
    try:
        loop.run_until_complete(check())
    finally:
        loop.close()


def import_tool(path: str) -> Tool:
    """Return the tool that an import path such as `package.module:name` names.

    Raises:
        WorkerBroken: If it is one of aisotools' own, which only what an earlier call has left can hinder.
        Exception: Whatever the import of another one raises.
    """
    module, _, attribute = path.partition(":")
    try:
        tool: Tool = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        if not module.startswith("aisotools."):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise WorkerBroken(
            f"What an earlier call has left keeps {module} from being imported: {reason}."
        ) from error
    return tool
