"""The tools of a session as an MCP server: what answers the requests of clients, whatever carries them.

Asking a person through an MCP client: by the protocol's own elicitation, bound to one call.

Clients up to revision 2025-11-25 are sent a request of ours while their call waits. From 2026-07-28 on a
server cannot call back: the call is answered by the question, and the client makes it again with the answer
and with the secret that names the question. Both ways the gate itself asks, and waits, so that what was
shown is what runs; an answer that comes with other arguments settles nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import logging
import math
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from aisotools.core.events import CallEmitted, CallOutput, SessionEvent
from aisotools.core.exceptions import UnknownTool
from aisotools.core.protocols import Approver
from aisotools.core.types import Approval, ApprovalRequest, ToolResult
from aisotools.integrations.mcp.tools import told_result, told_tool
from aisotools.policy.approvers import DenyAll
from aisotools.policy.prompts import describe_request
from aisotools.session.session import Session
from aisotools.tools.registry import ToolRegistry

Context = ServerRequestContext[Any, Any]
"""One request of a client."""

KEY = "approval"
"""Names our one question among those of an answer."""

_MOST_OPEN = 64
_KEPT_S = 60.0

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Run it, exactly as shown", "default": False},
        "reason": {"type": "string", "title": "Why, or why not", "maxLength": 500},
    },
    "required": ["approve"],
}
"""What a person fills in; nothing runs that was not ticked."""


def can_be_asked(context: Context) -> bool:
    """Whether the client declared that it puts forms to a person, and can be reached for it."""
    capabilities = context.session.client_capabilities
    asks = capabilities.elicitation if capabilities is not None else None
    if asks is None or (asks.form is None and asks.url is not None):
        return False
    return is_modern(context) or context.session.can_send_request


def is_modern(context: Context) -> bool:
    """Whether the client speaks a revision in which a call is answered by the question."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


class ElicitationApprover:
    """Asks by a request to the client, for revisions that have such."""

    def __init__(self, context: Context) -> None:
        """Ask whoever made the request of `context`."""
        self._context = context

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Put the question and wait."""
        session, related = self._context.session, self._context.request_id
        answer = await session.elicit_form(message_of(request), FORM, related_request_id=related)
        return approval_of(answer)


class DeferredApprover:
    """Hands the question to whoever answers the client's request, and waits for the next one."""

    def __init__(self) -> None:
        """Ask nothing yet."""
        self.asked: asyncio.Queue[tuple[ApprovalRequest, asyncio.Future[Approval]]] = asyncio.Queue()

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Put the question and wait."""
        answer: asyncio.Future[Approval] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((request, answer))
        return await answer


@dataclass(eq=False, kw_only=True)
class Exchange:
    """One call that may take several requests of a client.

    Attributes:
        call: The call in the gate.
        approver: Who asks about it.
        made: The client's request; further ones must repeat its tool and arguments.
        speak: Where its progress goes: to the request that is open.
    """

    call: asyncio.Task[ToolResult]
    approver: DeferredApprover
    made: types.CallToolRequestParams
    speak: list[Context] = field(default_factory=list)


class OpenQuestions:
    """Calls that wait for an answer, by the secret that names each question; a secret serves once."""

    def __init__(self) -> None:
        """Start with none."""
        self._open: dict[str, tuple[Exchange, asyncio.Future[Approval]]] = {}

    @property
    def full(self) -> bool:
        """Whether no further question can be kept open."""
        return len(self._open) >= _MOST_OPEN

    def put(
        self, exchange: Exchange, request: ApprovalRequest, answer: asyncio.Future[Approval]
    ) -> types.InputRequiredResult:
        """Keep the question open, and word it for the client."""
        secret = secrets.token_urlsafe(32)
        self._open[secret] = (exchange, answer)
        loop = asyncio.get_running_loop()
        # An answer that comes a little too late still learns what became of the call.
        exchange.call.add_done_callback(lambda _: loop.call_later(_KEPT_S, self._open.pop, secret, None))
        params = types.ElicitRequestFormParams(message=message_of(request), requested_schema=FORM)
        return types.InputRequiredResult(
            input_requests={KEY: types.ElicitRequest(params=params)}, request_state=secret
        )

    def answered(self, params: types.CallToolRequestParams) -> Exchange:
        """Settle the question that a client comes back to.

        Raises:
            MCPError: If there is no such question, or the answer comes with another call.
        """
        exchange, answer = self._open.pop(str(params.request_state), (None, None))
        if exchange is None or answer is None:
            told = "No question stands open under this requestState: each serves once. Make the call anew."
            raise MCPError(types.INVALID_PARAMS, told)
        made = exchange.made
        if params.name != made.name or (params.arguments or {}) != (made.arguments or {}):
            settle(answer, Approval("deny", reason="the answer came with another call"))
            told = "The answer belongs to another tool or other arguments; the call was denied."
            raise MCPError(types.INVALID_PARAMS, told)
        given = (params.input_responses or {}).get(KEY)
        if isinstance(given, types.ElicitResult):
            settle(answer, approval_of(given))
        else:
            settle(answer, Approval("cancel", reason="the client gave no answer"))
        return exchange

    def close(self) -> None:
        """Call off every call that waits."""
        for exchange, _ in self._open.values():
            exchange.call.cancel()
        self._open.clear()


def settle(answer: asyncio.Future[Approval], approval: Approval) -> None:
    """Give an answer, unless there is one, or nobody waits for it any more."""
    if not answer.done():
        answer.set_result(approval)


def message_of(request: ApprovalRequest) -> str:
    """The whole question as text; nothing is offered that a client could have remembered."""
    preview = {key: value for key, value in request.preview.items() if key != "remember"}
    return describe_request(dataclasses.replace(request, preview=preview))


def approval_of(answer: types.ElicitResult) -> Approval:
    """The answer of a client, which is a stranger: only an accepted form with its box ticked approves."""
    content = answer.content or {}
    reason = content.get("reason")
    told = reason[:500] if isinstance(reason, str) else ""
    if answer.action == "cancel":
        return Approval("cancel", reason="the question was dismissed")
    if answer.action == "accept" and content.get("approve") is True:
        return Approval("approve", reason=told)
    return Approval("deny", reason=told)


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
        progress = _ClientProgress(call_id, speak)
        stop = self._session.subscribe(progress.hear)
        try:
            return await self._session.call(
                name, arguments, origin="model", call_id=call_id, approver=approver
            )
        finally:
            stop()
            await progress.close()


class _ClientProgress:
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
