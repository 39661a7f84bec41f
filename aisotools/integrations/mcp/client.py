"""Client side of MCP: the tools of a server, kept up to date in a registry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Self, TypeVar

from mcp import Client, types
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from aisotools.core.concurrency import in_steps
from aisotools.core.exceptions import AisotoolsError, RegistryError, ToolError, UsageError
from aisotools.core.protocols import ToolContext
from aisotools.core.truncation import HeadTailBuffer
from aisotools.core.types import Effect, Json, ToolResult
from aisotools.core.untrusted import UNTRUSTED, mark_untrusted
from aisotools.integrations.mcp.logs import LogBudget
from aisotools.integrations.mcp.messages import Inbox, Streams
from aisotools.integrations.mcp.screening import Screen
from aisotools.integrations.mcp.tools import MAX_TOOLS, Offers, RemoteTool, from_mcp_result, local_name
from aisotools.integrations.mcp.transport import STDERR_TAIL_BYTES, ServerEndpoint, describe_error
from aisotools.policy.prompts import visible
from aisotools.sandbox.parsing import release_steps
from aisotools.tools.registry import ToolRegistry

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 7.0
"""How long a connection may take to end by itself: a program is given three seconds, and so is a server that
is told so over HTTP."""
_CANCEL_TIMEOUT_S = 1.5
_MAX_PAGES = 32
_MIN_RELIST_INTERVAL_S = 1.0
"""A server may announce changes of its list as often as it likes; it is not read more often."""
_MIN_PROGRESS_INTERVAL_S = 0.1
_MAX_PROGRESS_REPORTS = 500
_MAX_MESSAGE_CHARS = 2_000
_UNKNOWN_EFFECT = "Whether it did anything is not known."


class McpServer:
    """A connected MCP server, whose tools are registered until it is closed.

    A call that finds the connection lost connects again. Changes of the server's list are followed. A tool
    that changed gets a new version, so approvals, grants and declarations for the old one no longer apply.

    Attributes:
        name: Name of the server in this registry.
        endpoint: How it is reached.
        refused: Reasons why tools were not registered, by the server's names.
        undeclared: Tools that changed after their effect was declared, so that the declaration ended.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        name: str,
        endpoint: ServerEndpoint,
        *,
        effects: Mapping[str, Effect] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Describe a server; `connect` connects. See `aisotools.integrations.mcp.api.add_mcp_server`."""
        self.name = name
        self.endpoint = endpoint
        self.refused: dict[str, str] = {}
        self.undeclared: set[str] = set()
        self._registry = registry
        self._effects = dict(effects or {})
        self._timeout_s = timeout_s
        self._log_budget = LogBudget(name)
        self._declared_digests: dict[str, str] = {}
        self._tools: dict[str, RemoteTool] = {}
        self._client: Client | None = None
        self._screen: Screen | None = None
        self._connection: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._ended = asyncio.Event()
        self._list_changed = asyncio.Event()
        self._end_reason = ""
        self._stderr = HeadTailBuffer(0, STDERR_TAIL_BYTES)
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def __repr__(self) -> str:
        return f"<McpServer {self.name}: {self.endpoint.description}, {len(self._tools)} tools, {self.state}>"

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
        """Names of its registered tools."""
        return tuple(self._tools)

    @property
    def protocol(self) -> str:
        """Negotiated protocol revision, or empty without a connection."""
        return self._client.protocol_version if self._client is not None else ""

    # -- connecting

    async def connect(self) -> None:
        """Connect and register the tools, unless connected.

        Raises:
            ToolError: If the server cannot be reached or does not speak MCP; not recoverable.
            UsageError: If `close` was called.
        """
        async with self._connecting:
            if self._closed:
                raise UsageError(f"The MCP server {self.name!r} was removed; add it again.")
            if self._client is not None:
                return
            await self._wait_for_end()  # of the last connection, which notes its end where this one begins
            self._ended.clear()
            self._end_reason = ""
            ready: asyncio.Future[None] = self._loop.create_future()
            with self._log_budget.apply():  # a task has the context in which it was made
                self._connection = self._loop.create_task(self._run_connection(ready))
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    await ready
            except BaseException as error:
                ready.cancel()
                self._connection.cancel()
                await asyncio.wait([self._connection], timeout=_CLOSE_TIMEOUT_S)
                if isinstance(error, AisotoolsError) or not isinstance(error, Exception):
                    raise
                raise ToolError(self._connect_error(error), recoverable=False) from None

    def _connect_error(self, error: BaseException) -> str:
        reason = (
            f"it did not answer within {_CONNECT_TIMEOUT_S:g} s"
            if isinstance(error, TimeoutError)
            else describe_error(error)
        )
        if self._end_reason and self._end_reason not in reason:
            reason = f"{reason}; {self._end_reason}"
        stderr = self._stderr.tail_text().strip()
        stderr = f" It said: {visible(stderr)}" if stderr else ""
        return f"The MCP server {self.name!r} ({self.endpoint.description}) cannot be used: {reason}.{stderr}"

    async def _run_connection(self, ready: asyncio.Future[None]) -> None:
        """Hold one connection. Set `ready` when the tools are registered, or to the error."""
        # A task of its own: the library's contexts must be entered and left in the same task.
        try:
            inbox = Inbox()
            screen = Screen(inbox, self._on_end)
            async with (
                self.endpoint.open(self._stderr, self._on_end, inbox) as transport,
                screen.between(transport) as streams,
            ):
                connection: Any = _OpenStreams(streams)
                async with Client(
                    connection,
                    message_handler=self._on_message,
                    client_info=types.Implementation(name="aisotools", version=version("aisotools")),
                    cache=None,
                ) as client:
                    self._update_tools(await _list_tools(client, screen))
                    self._client, self._screen = client, screen
                    try:
                        ready.set_result(None)
                        async with self._subscribe(client):
                            await self._follow_changes(client, screen)
                    finally:
                        self._client = self._screen = None  # from now on no call can be made
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
            else:
                _log.info("The connection to the MCP server %s ended: %s", self.name, describe_error(error))
        finally:
            self._log_budget.report()
            if not ready.done():
                ready.set_exception(ConnectionError(self._end_reason or "the connection ended"))

    def _on_end(self, reason: str) -> None:
        self._end_reason = reason
        self._ended.set()

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._list_changed.set()

    @asynccontextmanager
    async def _subscribe(self, client: Client) -> AsyncIterator[None]:
        # Older revisions send the notification unasked; newer ones only to subscribers.
        tools = client.server_capabilities.tools
        if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools and tools.list_changed):
            yield
            return

        async def subscribe() -> None:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        self._list_changed.set()
            except Exception as error:
                _log.info(
                    "No change notifications from the MCP server %s: %s", self.name, describe_error(error)
                )

        subscription = asyncio.ensure_future(subscribe())
        try:
            yield
        finally:
            subscription.cancel()
            await asyncio.wait([subscription])

    async def _follow_changes(self, client: Client, screen: Screen) -> None:
        """Read the list again whenever it changed, until the connection ends."""
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            while not ended.done():
                if await _before(ended, self._list_changed.wait()) is None:
                    return
                self._list_changed.clear()
                # A long list is read no further once the connection ends.
                offers = await _before(ended, _list_tools(client, screen))
                if offers is None:
                    return
                self._update_tools(offers)
                await asyncio.wait([ended], timeout=_MIN_RELIST_INTERVAL_S)
        finally:
            ended.cancel()

    # -- tools

    def _update_tools(self, offers: Offers) -> None:
        """Register exactly the listed tools. Unchanged ones keep their objects, and so their grants."""
        before = self._tools
        names = set[str]()
        self.refused = dict(offers.refused)
        self._tools = {}
        for offer in offers.sound:
            tool = RemoteTool(
                offer,
                name=local_name(self.name, offer.name, names),
                server=self.name,
                origin=self.endpoint.description,
                host=self.endpoint.host,
                declared=self._declared_effect(offer.name, offer.digest),
                execute=self._execute,
                timeout_s=self._timeout_s,
            )
            old = before.pop(tool.name, None)
            if old is not None and old.version == tool.version and self._registry.get(tool.name) is old:
                self._tools[tool.name] = old
                continue
            self._unregister(tool.name, old)
            try:
                self._registry.register(tool)
            except (RegistryError, TypeError) as error:
                self.refused[visible(offer.name, "")] = str(error)
            else:
                self._tools[tool.name] = tool
        for name, old in before.items():
            self._unregister(name, old)

    def _unregister(self, name: str, tool: RemoteTool | None) -> None:
        # Someone may have registered another tool under the name in the meantime; that one stays.
        if tool is not None and self._registry.get(name) is tool:
            self._registry.unregister(name)

    def _declared_effect(self, name: str, digest: str) -> Effect | None:
        """Return the declared effect of a tool, or None if it changed since the declaration was made."""
        effect = self._effects.get(name)
        if effect is not None and self._declared_digests.setdefault(name, digest) != digest:
            self.undeclared.add(name)
        return None if name in self.undeclared else effect

    async def _execute(
        self, tool: RemoteTool, arguments: Mapping[str, Json], context: ToolContext
    ) -> ToolResult:
        if asyncio.get_running_loop() is self._loop:
            return await self._send_call(tool, arguments, context)
        future = asyncio.run_coroutine_threadsafe(self._send_call(tool, arguments, context), self._loop)
        return await asyncio.wrap_future(future)

    async def _send_call(
        self, tool: RemoteTool, arguments: Mapping[str, Json], context: ToolContext
    ) -> ToolResult:
        """Make a call on the server. It is never repeated: a call that failed may have run."""
        try:
            await self.connect()
        except (ToolError, UsageError) as error:
            return self._marked_error("", str(error), recoverable=False, error_kind="environment")
        client, screen = self._client, self._screen
        if client is None or screen is None or self._tools.get(tool.name) is not tool:
            # Race: the list changed after the approval. What would run is not what was approved.
            message = f"{tool.name} was not run: its server changed or withdrew it after it was approved."
            return ToolResult.error(f"{message} Call it again.", recoverable=True, error_kind="denied")
        params: dict[str, Any] = {"name": tool.offer.name, "arguments": dict(arguments)}
        try:
            # Not `call_tool`: it validates the result by the server's own schema, which may be hostile.
            with screen.awaiting() as awaited:
                await client.session.send_request(
                    types.CallToolRequest(
                        params=types.CallToolRequestParams.model_validate({**params, "_meta": awaited.meta})
                    ),
                    types.CallToolResult,
                    progress_callback=_ServerProgress(context),
                )
            if awaited.value is None:
                raise ValueError("its result got lost")
            return await self._result(tool.name, awaited.value)
        except MCPError as error:
            return self._error_result(tool.name, error)
        except (ValidationError, ValueError) as error:
            prefix = f"{tool.name}: the server's response is not an MCP result. {_UNKNOWN_EFFECT}\n"
            return self._marked_error(prefix, describe_error(error), recoverable=False)

    async def _result(self, name: str, response: dict[str, Any]) -> ToolResult:
        """Convert the result of a call on the server, and take the rest of it apart."""
        if response.get("resultType") == "input_required":
            message = f"{name}: the server wants to ask a person or a model first. That is not allowed."
            result = ToolResult.error(message, recoverable=False)
        else:
            result = await in_steps(from_mcp_result(response, self.name))
            response.pop("structuredContent", None)
        await asyncio.sleep(0)  # a long text is copied in one go
        await in_steps(release_steps([response]))
        return result

    def _error_result(self, name: str, error: MCPError) -> ToolResult:
        message = visible(error.message[:_MAX_MESSAGE_CHARS])[:_MAX_MESSAGE_CHARS]
        # Servers use the same code for errors of their own.
        is_closed = bool(self.endpoint.url) or self._ended.is_set() or message == "Connection closed"
        is_lost = (error.code == types.CONNECTION_CLOSED and is_closed) or message == "Session terminated"
        if not is_lost and not (self.endpoint.url and error.code == types.INTERNAL_ERROR):
            if error.code == types.PARSE_ERROR:
                prefix = (
                    f"{name}: there is no result, since its server broke the protocol. {_UNKNOWN_EFFECT}\n"
                )
                return self._marked_error(prefix, message, recoverable=False)
            invalid = error.code == types.INVALID_PARAMS
            return self._marked_error(f"{name}: ", message, error_kind="invalid" if invalid else "failed")
        self._client = None
        self._ended.set()
        reason = self._end_reason or "it gave no answer"
        content = (
            f"{name}: the connection to its MCP server ended during the call ({reason}). "
            f"{_UNKNOWN_EFFECT} The next call connects again.\n"
        )
        return self._marked_error(content, message, recoverable=False, error_kind="environment")

    def _marked_error(self, prefix: str, text: str, **details: Any) -> ToolResult:
        """Return an error whose `text` came from the server, or quotes it."""
        marked = mark_untrusted(text, f"error of the MCP server {self.name}")
        return ToolResult.error(prefix + marked, **details).with_metadata(**{UNTRUSTED: True})

    async def close(self) -> None:
        """Disconnect, stop the server if it was started here, and unregister its tools.

        It ends within ten seconds, whatever the server does.
        """
        self.begin_close()
        await self._wait_for_end()

    async def _wait_for_end(self) -> None:
        """Wait until the connection has ended, of which it knows that it is to."""
        if self._connection is None:
            return
        _, pending = await asyncio.wait([self._connection], timeout=_CLOSE_TIMEOUT_S)
        if pending:
            self._connection.cancel()
            await asyncio.wait([self._connection], timeout=_CANCEL_TIMEOUT_S)

    def begin_close(self) -> None:
        """Start closing without waiting. Call it on the event loop on which the server was added."""
        self._closed = True
        self._ended.set()
        for name, tool in self._tools.items():
            self._unregister(name, tool)
        self._tools = {}


class _OpenStreams(contextlib.nullcontext[Streams]):
    """Streams that the transport opens and closes, in the form that the library takes."""


class _ServerProgress:
    """Forwards the progress reports of one call, at a rate that a person can read."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._last_s = 0.0
        self._count = 0

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        now = time.monotonic()
        if now - self._last_s < _MIN_PROGRESS_INTERVAL_S or self._count >= _MAX_PROGRESS_REPORTS:
            return
        self._last_s = now
        self._count += 1
        text = visible((message or "")[:_MAX_MESSAGE_CHARS])
        self._context.emit("progress", progress=progress, total=total, message=text)


async def _before(ended: asyncio.Future[Any], work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return the result of `work`, which is cancelled when `ended` is done; None then."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([ended, task], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if task.cancel():
            await asyncio.wait([task], timeout=_CANCEL_TIMEOUT_S)
    if not ended.done():
        return task.result()
    if task.done() and not task.cancelled():
        task.exception()  # of no interest any more; asyncio would log that nobody has looked at it
    return None


async def _list_tools(client: Client, screen: Screen) -> Offers:
    """Return the tools of a server, at most `MAX_TOOLS`."""
    screen.forget_offers()
    accepted = set[str]()
    cursor: str | None = None
    async with asyncio.timeout(_CONNECT_TIMEOUT_S):
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            accepted |= {tool.name for tool in page.tools}
            cursor = page.next_cursor
            if cursor is None or len(screen.offers.sound) >= MAX_TOOLS:
                break
    offers = screen.offers
    for offer in offers.sound:
        if offer.name not in accepted:
            offers.refused[visible(offer.name, "")] = "its schema names a header that may not be sent"
    offers.sound = [offer for offer in offers.sound if offer.name in accepted]
    return offers
