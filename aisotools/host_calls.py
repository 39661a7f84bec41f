"""Running a tool on the host: under a deadline, but cooperative, since it is the user's own process."""

from __future__ import annotations

import asyncio

from aisotools.contracts import Tool, ToolContext
from aisotools.events import ToolCall, ToolResult
from aisotools.tool_members import failure

_GRACE_S = 0.2
_STAYS = "It runs on the host, where only the tool itself can end its work."


class HostCalls:
    """The host tools that run right now."""

    def __init__(self) -> None:
        """Start with none."""
        self._stops: dict[str, asyncio.Future[None]] = {}

    def __repr__(self) -> str:
        return f"<HostCalls {len(self._stops)} running>"

    async def run(self, tool: Tool, call: ToolCall, context: ToolContext, deadline_s: float) -> ToolResult:
        """Run one call; control comes back at the deadline even if the tool does not listen."""
        work = asyncio.ensure_future(_executed(tool, call, context))
        stop = self._stops[call.id] = asyncio.get_running_loop().create_future()
        try:
            done, _ = await asyncio.wait(
                [work, stop], timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done() and not work.cancelled():
                return work.result()
            context.cancellation.cancel()
            work.cancel()
            await asyncio.wait([work], timeout=_GRACE_S)
        finally:
            del self._stops[call.id]
            context.cancellation.cancel()
            work.cancel()
        if done:
            return ToolResult.error(f"{call.name} was interrupted. {_STAYS}").with_metadata(stopped=True)
        told = f"{call.name} was called off: it ran longer than {deadline_s:g} s. {_STAYS}"
        return ToolResult.error(told).with_metadata(timed_out=True)

    def interrupt(self) -> None:
        """Call off everything that runs."""
        for stop in self._stops.values():
            if not stop.done():
                stop.set_result(None)


async def _executed(tool: Tool, call: ToolCall, context: ToolContext) -> ToolResult:
    try:
        result: object = await tool.execute(call.arguments, context)
    except (Exception, SystemExit) as error:  # whatever a tool raises is its result
        return failure(error)
    if not isinstance(result, ToolResult):
        told = f"{tool.name} returned {type(result).__name__} instead of a ToolResult"
        return ToolResult.error(f"{told}; mend its execute().", recoverable=False)
    content: object = result.content
    if isinstance(content, str):
        return result
    told = f"{tool.name} returned a ToolResult whose content is {type(content).__name__}, not text"
    return ToolResult.error(f"{told}; mend its execute().", recoverable=False)
