"""The tools of an MCP server in our registry, for as long as somebody wants them there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Self

from mcp import Client, types
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from aisotools.core.exceptions import AisotoolsError, RegistryError, ToolError, UsageError
from aisotools.core.protocols import ToolContext
from aisotools.core.truncation import HeadTailBuffer
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.integrations.mcp.tools import (
    MOST_TOOLS,
    RemoteTool,
    ToolRejected,
    offer_of,
    our_name,
    taken_result,
)
from aisotools.integrations.mcp.transport import STDERR_TAIL_BYTES, ServerEndpoint, Streams, words
from aisotools.policy.prompts import visible
from aisotools.tools.registry import ToolRegistry

_log = logging.getLogger(__name__)

_CONNECT_S = 30.0
_MOST_PAGES = 32
_RELIST_S = 1.0
_PROGRESS_S, _MOST_PROGRESS = 0.1, 500
_MESSAGE_CHARS = 2_000
_ANSWER: TypeAdapter[Any] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)


class McpServer:
    """A server that was added: its tools stand in a registry until it is closed.

    It connects again by itself when a call finds the connection gone, and follows changes of the server's
    list. A tool that changed is another one: what was decided or remembered about it does not hold any more,
    nor does what a person declared about it.

    Attributes:
        name: What it is called here.
        reach: How it is reached.
        refused: Tools that were not taken, each with why.
        undeclared: Tools that changed after a person had declared what they do.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        name: str,
        reach: ServerEndpoint,
        *,
        effects: Mapping[str, Effect] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Describe it; `connect` reaches it. See `aisotools.integrations.mcp.api.add_mcp_server`."""
        self.name, self.reach = name, reach
        self.refused: dict[str, str] = {}
        self.undeclared: set[str] = set()
        self._registry, self._effects, self._timeout_s = registry, dict(effects or {}), timeout_s
        self._declared_for: dict[str, str] = {}
        self._current: dict[str, RemoteTool] = {}
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._over, self._changed = asyncio.Event(), asyncio.Event()
        self._ended_because = ""
        self._stderr = HeadTailBuffer(0, STDERR_TAIL_BYTES)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def __repr__(self) -> str:
        return f"<McpServer {self.name}: {self.reach.told}, {len(self._current)} tools, {self.state}>"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def state(self) -> str:
        """`closed`, `connected`, or `lost`, after which the next call connects again."""
        if self._closed:
            return "closed"
        return "connected" if self._client is not None else "lost"

    @property
    def tools(self) -> tuple[str, ...]:
        """The names under which its tools are registered."""
        return tuple(self._current)

    @property
    def protocol(self) -> str:
        """The protocol revision that was agreed on; empty without a connection."""
        return self._client.protocol_version if self._client is not None else ""

    # ---- connecting, and staying so

    async def connect(self) -> None:
        """Reach the server and take its tools, unless it is connected.

        Raises:
            ToolError: If it cannot be reached, or does not speak MCP; not recoverable.
            UsageError: If it was closed.
        """
        async with self._connecting:
            if self._closed:
                raise UsageError(f"The MCP server {self.name!r} was removed; add it again.")
            if self._client is not None:
                return
            self._over.clear()
            ready: asyncio.Future[None] = self._loop.create_future()
            self._owner = self._loop.create_task(self._live(ready))
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await ready
            except BaseException as error:
                ready.cancel()
                self._owner.cancel()
                await asyncio.wait([self._owner])
                if isinstance(error, AisotoolsError) or not isinstance(error, Exception):
                    raise
                raise ToolError(self._why_not(error), recoverable=False) from None

    def _why_not(self, error: BaseException) -> str:
        told = (
            f"it did not answer within {_CONNECT_S:g} s" if isinstance(error, TimeoutError) else words(error)
        )
        stderr = self._stderr.tail_text().strip()
        said = f" It said: {visible(stderr)}" if stderr else ""
        return f"The MCP server {self.name!r} ({self.reach.told}) cannot be used: {told}.{said}"

    async def _live(self, ready: asyncio.Future[None]) -> None:
        """Hold one connection from its beginning to its end; the library wants both in one task."""
        try:
            async with self.reach.open(self._stderr, self._lost) as streams:
                connection: Any = _Given(streams)
                async with Client(
                    connection,
                    message_handler=self._heard,
                    client_info=types.Implementation(name="aisotools", version=version("aisotools")),
                    cache=None,
                ) as client:
                    self._offer(await _listed(client))
                    self._client = client
                    ready.set_result(None)
                    async with self._listening(client):
                        await self._follow(client)
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
            else:
                _log.info("The connection to the MCP server %s ended: %s", self.name, words(error))
        finally:
            self._client = None
            if not ready.done():
                ready.set_exception(ConnectionError(self._ended_because or "the connection ended"))

    def _lost(self, why: str) -> None:
        self._ended_because = why
        self._over.set()

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    @asynccontextmanager
    async def _listening(self, client: Client) -> AsyncIterator[None]:
        """Hear of changes also where they must be subscribed to."""
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools and tools.list_changed):
            yield
            return

        async def listen() -> None:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self._changed.set()
            except Exception as error:
                _log.info("The MCP server %s tells no changes: %s", self.name, words(error))

        listening = asyncio.ensure_future(listen())
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def _follow(self, client: Client) -> None:
        """Take the list anew whenever it changed, but not as often as a server may want, until the end."""
        over = asyncio.ensure_future(self._over.wait())
        try:
            while not over.done():
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait([over, changed], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if over.done():
                    return
                self._changed.clear()
                self._offer(await _listed(client))
                await asyncio.wait([over], timeout=_RELIST_S)
        finally:
            over.cancel()

    # ---- its tools

    def _offer(self, told: Sequence[types.Tool]) -> None:
        """Have exactly these tools in the registry; those that did not change stay the ones they are."""
        before, names = self._current, set[str]()
        self.refused = {}
        self._current = {}
        for one in told:
            try:
                offer = offer_of(one)
            except ToolRejected as why:
                self.refused[visible(one.name, "")[:128]] = str(why)
                continue
            tool = RemoteTool(
                offer,
                name=our_name(self.name, one.name, names),
                server=self.name,
                origin=self.reach.told,
                host=self.reach.host,
                declared=self._declared(one.name, offer.digest),
                execute=self._execute,
                timeout_s=self._timeout_s,
            )
            old = before.pop(tool.name, None)
            if old is not None and old.version == tool.version and self._registry.get(tool.name) is old:
                self._current[tool.name] = old
                continue
            self._withdraw(tool.name, old)
            try:
                self._registry.register(tool)
            except (RegistryError, TypeError) as error:
                self.refused[visible(one.name, "")[:128]] = str(error)
            else:
                self._current[tool.name] = tool
        for name, old in before.items():
            self._withdraw(name, old)

    def _withdraw(self, name: str, tool: RemoteTool | None) -> None:
        if tool is not None and self._registry.get(name) is tool:
            self._registry.unregister(name)

    def _declared(self, name: str, digest: str) -> Effect | None:
        """What a person declared of a tool, as long as it is the one that was there then."""
        effect = self._effects.get(name)
        if effect is not None and self._declared_for.setdefault(name, digest) != digest:
            self.undeclared.add(name)
        return None if name in self.undeclared else effect

    async def _execute(
        self, tool: RemoteTool, arguments: Mapping[str, Json], context: ToolContext
    ) -> ToolResult:
        if asyncio.get_running_loop() is self._loop:
            return await self._passed(tool, arguments, context)
        there = asyncio.run_coroutine_threadsafe(self._passed(tool, arguments, context), self._loop)
        return await asyncio.wrap_future(there)

    async def _passed(
        self, tool: RemoteTool, arguments: Mapping[str, Json], context: ToolContext
    ) -> ToolResult:
        """Make a call on the server, once: what may have run is not tried again."""
        try:
            await self.connect()
        except (ToolError, UsageError) as error:
            return ToolResult.error(str(error), recoverable=False, error_kind="environment")
        client = self._client
        if client is None or self._current.get(tool.name) is not tool:
            told = f"{tool.name} was not run: its server changed or withdrew it since it was decided about."
            return ToolResult.error(f"{told} Call it again.", recoverable=True, error_kind="denied")
        params = types.CallToolRequestParams(name=tool.offer.name, arguments=dict(arguments))
        try:
            # Not `call_tool`: that would check the answer by a schema of the server's, patterns included.
            answer = await client.session.send_request(
                types.CallToolRequest(params=params), _ANSWER, progress_callback=_ServerProgress(context)
            )
        except MCPError as error:
            return self._failed(tool.name, error)
        except (ValidationError, ValueError) as error:
            told = f"{tool.name}: the server answered something that is no MCP result ({words(error)})."
            return ToolResult.error(told, recoverable=False)
        if isinstance(answer, types.InputRequiredResult):
            told = f"{tool.name}: the server wants to ask a person or a model first; it is not let."
            return ToolResult.error(told, recoverable=False)
        return taken_result(answer, self.name)

    def _failed(self, name: str, error: MCPError) -> ToolResult:
        said = visible(error.message)[:_MESSAGE_CHARS]
        gone = error.code == types.CONNECTION_CLOSED or said == "Session terminated"
        if not gone and not (self.reach.url and error.code == types.INTERNAL_ERROR):
            invalid = error.code == types.INVALID_PARAMS
            return ToolResult.error(f"{name}: {said}", error_kind="invalid" if invalid else "failed")
        self._client = None
        self._over.set()
        why = self._ended_because or said
        told = f"{name}: the connection to its MCP server ended during the call ({why}). "
        told += "Whether it did anything is not known. The next call connects again."
        return ToolResult.error(told, recoverable=False, error_kind="environment")

    async def close(self) -> None:
        """End the connection, and the server if we started it; take its tools out of the registry."""
        self.end()
        if self._owner is not None:
            await asyncio.wait([self._owner])

    def end(self) -> None:
        """Begin to close, without waiting; from the loop that it was added on."""
        self._closed = True
        self._over.set()
        for name, tool in self._current.items():
            self._withdraw(name, tool)
        self._current = {}


class _Given(contextlib.nullcontext[Streams]):
    """Streams that somebody else opens and closes, as the library takes them."""


class _ServerProgress:
    """Passes on what a server reports about one call, as far as a person could read it."""

    def __init__(self, context: ToolContext) -> None:
        self._context, self._last_s, self._told = context, 0.0, 0

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        if now - self._last_s < _PROGRESS_S or self._told >= _MOST_PROGRESS:
            return
        self._last_s, self._told = now, self._told + 1
        text = visible((message or "")[:_MESSAGE_CHARS])
        self._context.emit("progress", progress=progress, total=total, message=text)


async def _listed(client: Client) -> list[types.Tool]:
    """The tools of a server; a list without an end is cut."""
    found: list[types.Tool] = []
    cursor: str | None = None
    async with asyncio.timeout(_CONNECT_S):
        for _ in range(_MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) >= MOST_TOOLS:
                break
    return found[:MOST_TOOLS]
