"""Server side of MCP: the tools of a session for clients, over any transport.

Calls that need approval are put to the client's user by the protocol's elicitation. Up to revision 2025-11-25
the server sends a request while the call waits. From 2026-07-28 on a server cannot call back: the response to
the call is the question, and the client repeats the call with the answer and the secret of the question.
In both cases the gate waits for the answer, so what was shown is what runs.
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
from aisotools.integrations.mcp.tools import to_mcp_result, to_mcp_tool
from aisotools.policy.approvers import DenyAll
from aisotools.policy.prompts import describe_request
from aisotools.session.session import Session
from aisotools.tools.registry import ToolRegistry

_log = logging.getLogger(__name__)

Context = ServerRequestContext[Any, Any]
"""One request of a client."""

KEY = "approval"
"""Name of our question in the input requests of a call."""

_MAX_OPEN_QUESTIONS = 64
_LATE_ANSWER_S = 60.0
"""An answer that comes this long after the call ended still gets the call's result."""
_MAX_REASON_CHARS = 500
_MAX_MESSAGE_CHARS = 500
_MAX_QUEUED_REPORTS = 64
_DRAIN_S = 1.0
"""Wait for queued progress reports after a call ended."""

_DENY_UNATTENDED = DenyAll(
    "nobody can be asked: the MCP client declares no elicitation. "
    "Use a client that does, or a policy rule that allows the call"
)
"""The approver if neither the client nor this process has a user to ask."""

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Run it, exactly as shown", "default": False},
        "reason": {"type": "string", "title": "Why, or why not", "maxLength": 500},
    },
    "required": ["approve"],
}
"""Schema of the question. A call runs only if the box was ticked."""


# ---- asking the client's user


def can_be_asked(context: Context) -> bool:
    """Return whether the client supports form elicitation and can be reached for it."""
    capabilities = context.session.client_capabilities
    asks = capabilities.elicitation if capabilities is not None else None
    if asks is None or (asks.form is None and asks.url is not None):
        return False
    return is_modern(context) or context.session.can_send_request


def is_modern(context: Context) -> bool:
    """Return whether the client speaks a revision in which the question is the response to the call."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


class ElicitationApprover:
    """Asks by a request to the client; for revisions up to 2025-11-25."""

    def __init__(self, context: Context) -> None:
        """Ask the client that sent the request of `context`."""
        self._context = context

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Send the question and wait for the answer."""
        session, related = self._context.session, self._context.request_id
        answer = await session.elicit_form(format_question(request), FORM, related_request_id=related)
        return parse_answer(answer)


class DeferredApprover:
    """Hands questions to the handler of the client's request; for revisions from 2026-07-28 on.

    Attributes:
        questions: Requests for approval, each with the future that `ask` waits for.
    """

    def __init__(self) -> None:
        """Start with no questions."""
        self.questions: asyncio.Queue[tuple[ApprovalRequest, asyncio.Future[Approval]]] = asyncio.Queue()

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Queue the question and wait until its future is set."""
        answer: asyncio.Future[Approval] = asyncio.get_running_loop().create_future()
        self.questions.put_nowait((request, answer))
        return await answer


@dataclass(eq=False, kw_only=True)
class Exchange:
    """One call in the gate, which may take several requests of a client.

    Attributes:
        call: The task that runs the call.
        approver: Receives its questions.
        params: The client's first request; later ones must repeat its tool and arguments.
        contexts: The open request of the client, to which progress is reported; one element.
    """

    call: asyncio.Task[ToolResult]
    approver: DeferredApprover
    params: types.CallToolRequestParams
    contexts: list[Context] = field(default_factory=list)


class OpenQuestions:
    """Questions that wait for an answer, by secret. A secret can be used once."""

    def __init__(self) -> None:
        """Start with no questions."""
        self._open: dict[str, tuple[Exchange, asyncio.Future[Approval]]] = {}

    @property
    def full(self) -> bool:
        """True if no further question can be opened."""
        return len(self._open) >= _MAX_OPEN_QUESTIONS

    def open(
        self, exchange: Exchange, request: ApprovalRequest, answer: asyncio.Future[Approval]
    ) -> types.InputRequiredResult:
        """Register a question, and return it in the form for the client."""
        secret = secrets.token_urlsafe(32)
        self._open[secret] = (exchange, answer)
        loop = asyncio.get_running_loop()
        # Race: the call may end (deadline, interrupt) while the client's user answers. The late answer still
        # gets its result.
        exchange.call.add_done_callback(
            lambda _: loop.call_later(_LATE_ANSWER_S, self._open.pop, secret, None)
        )
        params = types.ElicitRequestFormParams(message=format_question(request), requested_schema=FORM)
        return types.InputRequiredResult(
            input_requests={KEY: types.ElicitRequest(params=params)}, request_state=secret
        )

    def answer(self, params: types.CallToolRequestParams) -> Exchange:
        """Answer the question that `params.request_state` names, and return its exchange.

        Raises:
            MCPError: If there is no such question, or the answer comes with another call; that is denied.
        """
        exchange, future = self._open.pop(str(params.request_state), (None, None))
        if exchange is None or future is None:
            message = (
                "No question is open under this requestState: each can be used once. Make the call again."
            )
            raise MCPError(types.INVALID_PARAMS, message)
        first = exchange.params
        if params.name != first.name or (params.arguments or {}) != (first.arguments or {}):
            set_approval(future, Approval("deny", reason="the answer came with another call"))
            message = "The answer belongs to another tool or other arguments; the call was denied."
            raise MCPError(types.INVALID_PARAMS, message)
        response = (params.input_responses or {}).get(KEY)
        if isinstance(response, types.ElicitResult):
            set_approval(future, parse_answer(response))
        else:
            set_approval(future, Approval("cancel", reason="the client gave no answer"))
        return exchange

    def close(self) -> None:
        """Cancel every call that waits for an answer."""
        for exchange, _ in self._open.values():
            exchange.call.cancel()
        self._open.clear()


def set_approval(future: asyncio.Future[Approval], approval: Approval) -> None:
    """Set the result, unless the call was answered or cancelled in the meantime."""
    if not future.done():
        future.set_result(approval)


def format_question(request: ApprovalRequest) -> str:
    """Return the question as text, without the offers to remember the answer: a client cannot select them."""
    preview = {key: value for key, value in request.preview.items() if key != "remember"}
    return describe_request(dataclasses.replace(request, preview=preview))


def parse_answer(answer: types.ElicitResult) -> Approval:
    """Parse the answer of an untrusted client. Only an accepted form with its box ticked approves."""
    content = answer.content or {}
    text = content.get("reason")
    reason = text[:_MAX_REASON_CHARS] if isinstance(text, str) else ""
    if answer.action == "cancel":
        return Approval("cancel", reason="the question was dismissed")
    if answer.action == "accept" and content.get("approve") is True:
        return Approval("approve", reason=reason)
    return Approval("deny", reason=reason)


# ---- the server


class SessionServer:
    """Offers the tools of one session to MCP clients. Every call passes the session's gate.

    Attributes:
        server: The protocol library's server; a transport runs it.
    """

    def __init__(
        self, session: Session, *, registry: ToolRegistry | None = None, unattended: bool = False
    ) -> None:
        """Offer the tools of `session`.

        Args:
            session: Makes the calls, as a model's. If it has no approver, the client's user is asked if the
                client supports elicitation.
            registry: Tools to offer; None for all tools of the session.
            unattended: True if this process has no user: calls that the client cannot ask about are denied.
        """
        self._session = session
        self._registry = registry
        self._unattended = unattended
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
        """The offered tools."""
        return self._registry if self._registry is not None else self._session.registry

    def close(self) -> None:
        """Cancel all running calls."""
        self._questions.close()
        for call in self._calls:
            call.cancel()

    async def _list(
        self,
        context: Context,  # noqa: ARG002 - named by the protocol library
        params: types.PaginatedRequestParams | None,  # noqa: ARG002 - all fit one page
    ) -> types.ListToolsResult:
        registry = self.registry
        exports = registry.exports("mcp")
        tools = [to_mcp_tool(tool, export) for tool, export in zip(registry.list(), exports, strict=True)]
        return types.ListToolsResult(tools=tools, ttl_ms=0)

    async def _call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.request_state is not None and is_modern(context):
            exchange = self._questions.answer(params)
        else:
            started = self._start_call(context, params)
            if isinstance(started, ToolResult):
                return to_mcp_result(started)
            exchange = started
        exchange.contexts[:] = [context]
        try:
            return await self._wait(exchange)
        except asyncio.CancelledError:
            # The client cancelled its request, or hung up. The call is a task of its own, which outlives this
            # request where the client has to answer a question first: without this it would run on, with
            # nobody who takes its result.
            exchange.call.cancel()
            raise

    async def _wait(self, exchange: Exchange) -> types.CallToolResult | types.InputRequiredResult:
        """Wait for the result of the call, or for a question that the client must answer first."""
        while True:
            question = asyncio.ensure_future(exchange.approver.questions.get())
            try:
                await asyncio.wait({exchange.call, question}, return_when=asyncio.FIRST_COMPLETED)
                if exchange.call.done():
                    return to_mcp_result(exchange.call.result())
                request, answer = question.result()
            finally:
                question.cancel()
            if not self._questions.full:
                return self._questions.open(exchange, request, answer)
            set_approval(answer, Approval("deny", reason="too many questions stand open; answer those first"))

    def _start_call(self, context: Context, params: types.CallToolRequestParams) -> Exchange | ToolResult:
        """Start a call in the gate; return an error result for an unknown tool."""
        name, arguments = params.name, dict(params.arguments or {})
        if name not in self.registry:
            name, arguments = self.registry.exports("mcp").back(name, arguments)
        try:
            tool = self.registry[name]
        except UnknownTool as error:
            return ToolResult.error(str(error), error_kind="invalid")
        deferred = DeferredApprover()
        contexts = [context]
        approver = self._approver(context, deferred)
        run = self._run(tool.name, arguments, approver, contexts)
        call = asyncio.get_running_loop().create_task(run, context=contextvars.copy_context())
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return Exchange(call=call, approver=deferred, params=params, contexts=contexts)

    def _approver(self, context: Context, deferred: DeferredApprover) -> Approver | None:
        if self._session.approver is not None:
            return None  # the operator's choice is never replaced by what a client declares
        if can_be_asked(context):
            return deferred if is_modern(context) else ElicitationApprover(context)
        return _DENY_UNATTENDED if self._unattended else None

    async def _run(
        self, name: str, arguments: Mapping[str, Any], approver: Approver | None, contexts: list[Context]
    ) -> ToolResult:
        call_id = uuid.uuid4().hex
        progress = _ClientProgress(call_id, contexts)
        unsubscribe = self._session.subscribe(progress.on_event)
        try:
            return await self._session.call(
                name, arguments, origin="model", call_id=call_id, approver=approver
            )
        finally:
            unsubscribe()
            await progress.close()


class _ClientProgress:
    """Forwards what a call reports and prints to the client. Reports are dropped while the client is slow."""

    def __init__(self, call_id: str, contexts: list[Context]) -> None:
        self._call_id = call_id
        self._contexts = contexts
        # Made with the first event: most calls report nothing.
        self._queue: asyncio.Queue[_ProgressReport | None] | None = None
        self._sender: asyncio.Task[None] | None = None
        self._last_progress = 0.0

    def on_event(self, event: SessionEvent) -> None:
        """Queue a report if the event belongs to the call."""
        if event.call_id != self._call_id or not isinstance(event, CallEmitted | CallOutput):
            return
        if self._queue is None:
            self._queue = asyncio.Queue(_MAX_QUEUED_REPORTS)
            self._sender = asyncio.get_running_loop().create_task(self._send())
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(_report(event))

    async def close(self) -> None:
        """Send what is queued, for `_DRAIN_S` at most."""
        if self._queue is None or self._sender is None:
            return
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)
        try:
            await asyncio.wait([self._sender], timeout=_DRAIN_S)
        finally:
            self._sender.cancel()

    async def _send(self) -> None:
        assert self._queue is not None
        while (report := await self._queue.get()) is not None:
            # The protocol demands that progress increases. A value that does not is replaced by a count.
            increases = report.progress is not None and report.progress > self._last_progress
            if increases and report.progress is not None:
                self._last_progress = report.progress
            else:
                self._last_progress += 1
            total = report.total if increases else None
            try:
                await self._contexts[-1].session.report_progress(
                    self._last_progress, total, report.message or None
                )
            except Exception:
                _log.debug("A client did not accept progress of call %s", self._call_id, exc_info=True)
                return


@dataclass(frozen=True, slots=True)
class _ProgressReport:
    """A progress report. All of it comes out of a sandbox.

    Attributes:
        progress: Amount of work completed, if the tool reported one.
        total: Amount of work in total, if known.
        message: Text for people.
    """

    progress: float | None
    total: float | None
    message: str


def _report(event: CallEmitted | CallOutput) -> _ProgressReport:
    if isinstance(event, CallOutput):
        return _ProgressReport(None, None, event.text[:_MAX_MESSAGE_CHARS])
    message = str(event.payload.get("message", event.name))[:_MAX_MESSAGE_CHARS]
    return _ProgressReport(
        _number(event.payload.get("progress")), _number(event.payload.get("total")), message
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
