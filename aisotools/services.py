"""What a tool on the host may ask of its session: further calls through the same gate, as its caller."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Mapping

from aisotools.events import Json, ToolCall, ToolResult

PassCall = Callable[[ToolCall], Awaitable[ToolResult]]
"""Takes a call through the gate."""


class CallServices:
    """Implements `aisotools.contracts.Services` for one call."""

    def __init__(self, call: ToolCall, pass_call: PassCall) -> None:
        """Serve `call`; what it calls goes through `pass_call`."""
        self._call, self._pass_call = call, pass_call

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Make another call on behalf of the same caller; a person's consent does not reach this far."""
        origin = "program" if self._call.origin == "person" else self._call.origin
        call = dataclasses.replace(
            self._call, id=uuid.uuid4().hex, name=name, arguments=arguments, origin=origin
        )
        return await self._pass_call(call)
