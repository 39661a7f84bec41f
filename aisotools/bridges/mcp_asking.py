"""Asking a person through an MCP client: by the protocol's own elicitation, bound to one call.

Clients up to revision 2025-11-25 are sent a request of ours while their call waits. From 2026-07-28 on a
server cannot call back: the call is answered by the question, and the client makes it again with the answer
and with the secret that names the question. Both ways the gate itself asks, and waits, so that what was
shown is what runs; an answer that comes with other arguments settles nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from dataclasses import dataclass, field
from typing import Any

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from aisotools.events import Approval, ApprovalRequest, ToolResult
from aisotools.question import describe

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
    return describe(dataclasses.replace(request, preview=preview))


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
