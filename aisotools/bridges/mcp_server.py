"""The tools of a session as an MCP server: what answers the requests of clients, whatever carries them."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from mcp import types
from mcp.server.lowlevel import Server

from aisotools.approval import DenyAll
from aisotools.bridges.mcp_asking import (
    Context,
    DeferredApprover,
    ElicitationApprover,
    Exchange,
    OpenQuestions,
    can_be_asked,
    is_modern,
    settle,
)
from aisotools.bridges.mcp_results import told_result, told_tool
from aisotools.contracts import Approver
from aisotools.events import Approval, ToolResult
from aisotools.exceptions import UnknownTool
from aisotools.registry import ToolRegistry
from aisotools.session import Session
from aisotools.session_events import CallEmitted, CallOutput, SessionEvent

_log = logging.getLogger(__name__)

NOBODY = DenyAll(
    "nobody can be asked: the MCP client declares no elicitation. "
    "Use a client that does, or a policy rule that allows the call"
)
"""Who is asked where neither the client nor this process has a person."""

_WAITING = 64
_DRAIN_S = 1.0
_MESSAGE_CHARS = 500


class SessionServer:
    """Answers MCP clients with the tools of one session; every call passes the session's gate."""

    def __init__(
        self, session: Session, *, registry: ToolRegistry | None = None, unattended: bool = False
    ) -> None:
        """Offer the tools of `session`.

        Args:
            session: Makes the calls, as a model's. An approver that it was given is the one who is asked;
                without any, the client's person is, when the client has a way to ask.
            registry: Which of its tools; all without it.
            unattended: Whether nobody is at this process: what the client cannot ask about is denied.
        """
        self._session, self._registry, self._unattended = session, registry, unattended
        self._questions = OpenQuestions()
        self._calls: set[asyncio.Task[ToolResult]] = set()
        self.server: Server[Any] = Server(
            "aisotools",
            version=version("aisotools"),
            instructions="Tools that run in a confined worker. What changes something may be asked about.",
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    @property
    def registry(self) -> ToolRegistry:
        """The tools that are offered."""
        return self._registry if self._registry is not None else self._session.registry

    def close(self) -> None:
        """Call off what is under way."""
        self._questions.close()
        for call in self._calls:
            call.cancel()

    async def _list(
        self,
        context: Context,  # noqa: ARG002 - named by the protocol library
        params: types.PaginatedRequestParams | None,  # noqa: ARG002 - all fit one page
    ) -> types.ListToolsResult:
        registry = self.registry
        forms = registry.exports("mcp")
        tools = [told_tool(tool, form) for tool, form in zip(registry.list(), forms, strict=True)]
        return types.ListToolsResult(tools=tools, ttl_ms=0)

    async def _call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.request_state is not None and is_modern(context):
            exchange = self._questions.answered(params)
        else:
            began = self._begin(context, params)
            if isinstance(began, ToolResult):
                return told_result(began)
            exchange = began
        exchange.speak[:] = [context]
        try:
            return await self._go_on(exchange)
        except asyncio.CancelledError:
            exchange.call.cancel()  # cancelling the client's request stops the worker
            raise

    async def _go_on(self, exchange: Exchange) -> types.CallToolResult | types.InputRequiredResult:
        """What a call comes to: its result, or the question that it waits for."""
        while True:
            question = asyncio.ensure_future(exchange.approver.asked.get())
            try:
                await asyncio.wait({exchange.call, question}, return_when=asyncio.FIRST_COMPLETED)
                if exchange.call.done():
                    return told_result(exchange.call.result())
                request, answer = question.result()
            finally:
                question.cancel()
            if not self._questions.full:
                return self._questions.put(exchange, request, answer)
            settle(answer, Approval("deny", reason="too many questions stand open; answer those first"))

    def _begin(self, context: Context, params: types.CallToolRequestParams) -> Exchange | ToolResult:
        """Send a call into the gate."""
        name, arguments = params.name, dict(params.arguments or {})
        if name not in self.registry:
            name, arguments = self.registry.exports("mcp").back(name, arguments)
        try:
            tool = self.registry[name]
        except UnknownTool as error:
            return ToolResult.error(str(error), error_kind="invalid")
        deferred, speak = DeferredApprover(), [context]
        approver = self._approver(context, deferred)
        running = self._run(tool.name, arguments, approver, speak)
        call = asyncio.get_running_loop().create_task(running, context=contextvars.copy_context())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return Exchange(call=call, approver=deferred, made=params, speak=speak)

    def _approver(self, context: Context, deferred: DeferredApprover) -> Approver | None:
        if self._session.approver is not None:
            return None  # whom the operator named is never passed over for a client's word
        if can_be_asked(context):
            return deferred if is_modern(context) else ElicitationApprover(context)
        return NOBODY if self._unattended else None

    async def _run(
        self, name: str, arguments: Mapping[str, Any], approver: Approver | None, speak: list[Context]
    ) -> ToolResult:
        call_id = uuid.uuid4().hex
        progress = _Progress(call_id, speak)
        stop = self._session.subscribe(progress.hear)
        try:
            return await self._session.call(
                name, arguments, origin="model", call_id=call_id, approver=approver
            )
        finally:
            stop()
            await progress.close()


class _Progress:
    """Tells a client what a running call reports and prints; what it cannot take in time is left out."""

    def __init__(self, call_id: str, speak: list[Context]) -> None:
        self._call_id, self._speak = call_id, speak
        self._waiting: asyncio.Queue[tuple[float | None, float | None, str] | None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._last = 0.0

    def hear(self, event: SessionEvent) -> None:
        """Take an event of the session."""
        if event.call_id != self._call_id or not isinstance(event, CallEmitted | CallOutput):
            return
        if self._waiting is None:
            self._waiting = asyncio.Queue(_WAITING)
            self._sending = asyncio.get_running_loop().create_task(self._send())
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(_told(event))

    async def close(self) -> None:
        """Send what still waits, but not for long."""
        if self._waiting is None or self._sending is None:
            return
        with contextlib.suppress(asyncio.QueueFull):
            self._waiting.put_nowait(None)
        try:
            await asyncio.wait([self._sending], timeout=_DRAIN_S)
        finally:
            self._sending.cancel()

    async def _send(self) -> None:
        assert self._waiting is not None
        while (told := await self._waiting.get()) is not None:
            given, total, message = told
            forward = given is not None and given > self._last
            self._last = given if forward and given is not None else self._last + 1
            try:
                await self._speak[-1].session.report_progress(
                    self._last, total if forward else None, message or None
                )
            except Exception:
                _log.debug("A client took no progress of call %s", self._call_id, exc_info=True)
                return


def _told(event: CallEmitted | CallOutput) -> tuple[float | None, float | None, str]:
    """How far, of how much, and in words. All of it comes out of a sandbox."""
    if isinstance(event, CallOutput):
        return None, None, event.text[:_MESSAGE_CHARS]
    told = str(event.payload.get("message", event.name))[:_MESSAGE_CHARS]
    return _number(event.payload.get("progress")), _number(event.payload.get("total")), told


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
