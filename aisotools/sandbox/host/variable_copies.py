"""Copies of variables, for another sandbox or for an older worker of the same one.

A fork of a snapshot pickles them into a memory file, from which another worker loads them.

Threat: what the fork has started changes the copy while it is read, or has the host wait or fill up with it.
Mechanism: the host makes the file and never reads it. Once it is written, it is sealed, and then passed on.
Race: the fork may go on to write until it is sealed. What it writes are its own variables in any case.
Failure: a copy that is not written and sealed in time is closed, and the error says why. A worker that cannot
load it says so, and whoever called takes back what was done for it.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Sequence
from typing import Protocol

from aisotools.core.exceptions import SandboxError, as_clause
from aisotools.core.protocols import ToolPayload
from aisotools.core.sandboxes import SandboxCall, VariablePoint
from aisotools.core.types import ToolCall, ToolResult
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.host.fork_handle import ForkSnapshot
from aisotools.sandbox.process.descriptors import close_apart

# How long writing all variables into a file may take, and reading them.
_COPY_S = 30.0
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LOAD_TOOL = ToolPayload(
    key="load", import_path="aisotools.sandbox.worker.fork:load", concurrency="exclusive"
)


class RunCall(Protocol):
    """Runs a call on a worker; the caller holds the slot."""

    async def __call__(
        self, connection: WorkerConnection, request: SandboxCall, attachments: Sequence[int] = ()
    ) -> ToolResult:
        """Run `request`, with descriptors sent along."""


class VariablesFile:
    """Variables on their way to another sandbox: a sealed memory file, which nobody can change any more.

    Attributes:
        file: Its descriptor; -1 after `close`.
    """

    def __init__(self, point: VariablePoint, file: int) -> None:
        self._point = point
        self.file = file

    @property
    def point(self) -> VariablePoint:
        """The snapshot that was copied, and what of it could not be copied."""
        return self._point

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        if self.file >= 0:
            # Memory that a fork of the worker has filled takes the kernel long to free.
            close_apart([self.file])
            self.file = -1


async def copy_variables(connection: WorkerConnection, snapshot: ForkSnapshot) -> VariablesFile:
    """Return a copy of the variables that a snapshot holds, without those that cannot be copied.

    Raises:
        SandboxError: If there is none.
    """
    file = os.memfd_create("variables", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        lost = await snapshot.copy(lambda: connection.supervisor, file, within_s=_COPY_S)
        # The fork that wrote it may still hold a descriptor. Seal the content before anybody reads it.
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except (SandboxError, OSError) as error:
        close_apart([file])
        raise SandboxError(f"The variables could not be copied: {as_clause(error)}.") from None
    point = VariablePoint(call_id=snapshot.point.call_id, label="data only", lost=lost)
    return VariablesFile(point, file)


async def load_variables(run_call: RunCall, connection: WorkerConnection, copy: VariablesFile) -> None:
    """Add the variables of a copy to those of a worker. The caller holds the slot.

    Raises:
        SandboxError: If they could not be loaded.
    """
    call = ToolCall(uuid.uuid4().hex, "load_variables", {})
    request = SandboxCall(call=call, shipment=_LOAD_TOOL, timeout_s=_COPY_S)
    result = await run_call(connection, request, [copy.file])
    if result.is_error:
        raise SandboxError(f"The variables could not be loaded: {result.content}")
