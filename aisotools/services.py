"""What a tool on the host may ask of its session: further calls as its caller, kept texts, a person."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from aisotools.contracts import Inquiry, StoredText
from aisotools.events import Json, ToolCall, ToolResult
from aisotools.result_store import ResultStore

PassCall = Callable[[ToolCall], Awaitable[ToolResult]]
"""Takes a call through the gate."""

Inquire = Callable[[Inquiry], Awaitable[str | None]]
"""Puts a question to a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all calls of one session have in common.

    Attributes:
        inquire: Puts questions to a person.
        results: The texts that were too long for a model.
        memory: What tools keep from call to call.
    """

    inquire: Inquire
    results: ResultStore = field(default_factory=ResultStore)
    memory: MutableMapping[str, Any] = field(default_factory=dict)


class CallServices:
    """Implements `aisotools.contracts.Services` for one call."""

    def __init__(self, call: ToolCall, pass_call: PassCall, shared: Shared) -> None:
        """Serve `call`; what it calls goes through `pass_call`."""
        self._call, self._pass_call, self._shared = call, pass_call, shared

    @property
    def memory(self) -> MutableMapping[str, Any]:
        """What tools of this session keep from call to call."""
        return self._shared.memory

    async def call(self, name: str, arguments: Mapping[str, Json]) -> ToolResult:
        """Make another call on behalf of the same caller; a person's consent does not reach this far."""
        origin = "program" if self._call.origin == "person" else self._call.origin
        call_id = f"{self._call.id}/{uuid.uuid4().hex[:12]}"  # tells whose call it is part of
        call = dataclasses.replace(self._call, id=call_id, name=name, arguments=arguments, origin=origin)
        return await self._pass_call(call)

    def stored(self, ref: str) -> StoredText | None:
        """The whole text behind a reference."""
        return self._shared.results.get(ref)

    async def inquire(self, inquiry: Inquiry) -> str | None:
        """Put a question to a person; None when nobody answered."""
        return await self._shared.inquire(inquiry)
