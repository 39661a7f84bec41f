"""Run the calls of tools on the host, and serve what they may use of the session.

A deadline is cooperative there: only the tool itself can end its work.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from aisotools.core.concurrency import cancel_future, end_future, run_to_completion
from aisotools.core.exceptions import CLOSE_FILES, ToolError, as_clause
from aisotools.core.protocols import StoredText, Tool, ToolContext, UserQuestion
from aisotools.core.threads import tool_functions
from aisotools.core.truncation import ResultStore
from aisotools.core.types import Json, ToolCall, ToolResult, with_changes
from aisotools.sandbox.results import VALUE_DROPPED
from aisotools.tools.adapter import host_exception_result, validate_value

_CANCEL_GRACE_S = 0.2
"""Seconds that a cancelled host tool has to end before its caller gets control back."""

HostWork: TypeAlias = "asyncio.Future[ToolResult] | Future[Any]"
"""What a call on the host does: its task, or a function of it in a thread."""

WorkLeft: TypeAlias = Callable[[ToolCall, Sequence[HostWork]], None]
"""Gets what a call that has been answered has left running."""


class HostCalls:
    """Runs tools on the host, and stops those that are running."""

    def __init__(self) -> None:
        """Start with none running."""
        self._stop_requests: dict[str, asyncio.Future[None]] = {}

    def __repr__(self) -> str:
        return f"<HostCalls {len(self._stop_requests)} running>"

    async def run(
        self,
        tool: Tool,
        call: ToolCall,
        context: ToolContext,
        timeout_s: float,
        on_left: WorkLeft | None = None,
    ) -> ToolResult:
        """Run one call. Return at the deadline even if the tool ignores its cancellation.

        Args:
            tool: The tool.
            call: The call.
            context: What the tool is given.
            timeout_s: When to give up.
            on_left: Called before the return if the work goes on.
        """
        functions: list[Future[Any]] = []
        work = asyncio.ensure_future(_execute(tool, call, context, functions))
        stop = self._stop_requests[call.id] = asyncio.get_running_loop().create_future()
        try:
            finished, _ = await asyncio.wait(
                [work, stop], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done() and not work.cancelled():
                return work.result()
        finally:
            del self._stop_requests[call.id]
            context.cancellation.cancel()
            if not work.done():
                cancel_future(work)
                # Also when the caller was cancelled: what the tool does to clean up belongs to the call, and
                # its changes are looked at next.
                await run_to_completion(_wait_for_end(work, functions))
            parts: list[HostWork] = [work, *functions]
            unfinished = [part for part in parts if not part.done()]
            if unfinished and on_left is not None:
                on_left(call, unfinished)
        hint = "It runs on the host, where only the tool itself can end its work."
        metadata: dict[str, Json] = {}
        if unfinished:
            hint, metadata = f"{hint} It has not ended yet.", {"still_running": True}
        if finished:
            message = f"{call.name} was interrupted. {hint}"
            return ToolResult.error(message).with_metadata(stopped=True, **metadata)
        message = f"{call.name} was called off: it ran longer than {timeout_s:g} s. {hint}"
        return ToolResult.error(message).with_metadata(timed_out=True, **metadata)

    def interrupt(self) -> None:
        """Stop every call that is running."""
        for stop in self._stop_requests.values():
            end_future(stop)


async def _wait_for_end(work: asyncio.Future[ToolResult], functions: Sequence[Future[Any]]) -> None:
    """Wait for the end of what was cancelled, for as long as it has."""
    ends = [work, *map(asyncio.wrap_future, functions)]
    await asyncio.wait(ends, timeout=_CANCEL_GRACE_S)
    for end in ends[1:]:
        if not end.cancel() and not end.cancelled():
            end.exception()  # nobody else asks for what the function raised


async def _execute(
    tool: Tool, call: ToolCall, context: ToolContext, functions: list[Future[Any]]
) -> ToolResult:
    """Return the result of a tool; `functions` gets those of it that run in threads."""
    tool_functions.set(functions)
    try:
        result: object = await tool.execute(call.arguments, context)
    except (Exception, SystemExit) as error:  # whatever a tool raises is its result
        return host_exception_result(error, call.arguments)
    if not isinstance(result, ToolResult):
        problem = f"{tool.name} returned {type(result).__name__} instead of a ToolResult"
        return ToolResult.error(f"{problem}; fix its execute().", recoverable=False)
    content: object = result.content
    if not isinstance(content, str):
        problem = f"{tool.name} returned a ToolResult whose content is {type(content).__name__}, not text"
        return ToolResult.error(f"{problem}; fix its execute().", recoverable=False)
    return result


class CallServices:
    """Implements `aisotools.core.protocols.Services` for one call."""

    def __init__(
        self,
        call: ToolCall,
        *,
        run: Callable[[ToolCall], Awaitable[ToolResult]],
        ask_user: Callable[[UserQuestion], Awaitable[str | None]],
        results: ResultStore,
        memory: MutableMapping[str, Any],
    ) -> None:
        """Serve `call`.

        Args:
            call: The call whose tool uses these services.
            run: Passes a further call through the gate.
            ask_user: Puts a question to a person.
            results: Texts that were too long for a model.
            memory: What the tools of the session keep from call to call.
        """
        self._call = call
        self._run = run
        self._ask_user = ask_user
        self._results = results
        self.memory = memory

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Make another call on behalf of the same caller."""
        # What a person typed is consent to that call alone. What its tool calls is a program's.
        origin = "program" if self._call.origin == "person" else self._call.origin
        call_id = f"{self._call.id}/{uuid.uuid4().hex[:12]}"  # the prefix names the parent call
        return await self._run(
            dataclasses.replace(self._call, id=call_id, name=name, arguments=arguments, origin=origin)
        )

    def stored(self, ref: str) -> StoredText | None:
        """Return the whole text behind a reference, or None."""
        return self._results.get(ref)

    async def ask_user(self, question: UserQuestion) -> str | None:
        """Put a question to a person. Return None when nobody answered."""
        return await self._ask_user(question)


def validated_result(tool: Tool, result: ToolResult) -> ToolResult:
    """Return the result if its value is as the tool's own check says; else an error."""
    # A value over the cap was left out, and the result says so: there is nothing to validate.
    if result.is_error or (result.value is None and VALUE_DROPPED in result.metadata):
        return result
    try:
        validate_value(tool, result.value)
    except ToolError as error:
        return ToolResult.error(str(error), recoverable=False)
    except Exception as error:  # tools are written by strangers too
        failed = host_exception_result(error)
        message = f"{tool.name} ran, but its validate_value failed. This is a bug in the tool.\n"
        return with_changes(failed, content=message + failed.content, recoverable=False)
    return result


_NEEDS = {
    errno.EMFILE: CLOSE_FILES,
    errno.ENFILE: CLOSE_FILES,
    errno.ENOMEM: "Free some memory, and make it again.",
}
"""What the machine may lack at any step of a call, and what to do then."""


def fault_result(name: str, error: Exception, *, log: str, was_given: bool) -> ToolResult:
    """Return the result of a call that failed on its way, outside of its tool.

    Args:
        name: The tool.
        error: What was raised.
        log: The log that has the traceback.
        was_given: Whether the call was given to what runs it.
    """
    if isinstance(error, OSError) and error.errno in _NEEDS:
        happened = "could not be completed, and may have run" if was_given else "was not run"
        problem = f"{error.strerror} ({errno.errorcode[error.errno]})"
        if isinstance(error.filename, str | bytes):
            problem += f": {os.fsdecode(error.filename)!a}"
        content = f"{name} {happened}: {problem}. {_NEEDS[error.errno]}"
        return ToolResult.error(content, error_kind="environment")
    return ToolResult.error(
        f"{name} could not be run, by a fault in aisotools or a part given to it: {type(error).__name__}: "
        f"{as_clause(error)}. The traceback is in the log of {log}.",
        recoverable=False,
        error_kind="environment",
    )
