"""Start workers for a sandbox: ask the fork server for one, and wait until it takes calls.

A worker may be asked for ahead of its use, so that it gets ready while the session still reads its workspace.

Threat: a worker that starts early runs where the host may import from, in a workspace that another session
has, or by rules that no longer hold.
Mechanism: it has no call, and runs no code of a user, before `WorkerStarter.start` has returned it, which
looks at the import roots again. A session starts it when it has its own locks of the workspace, and opens
only after it has looked at those of other processes; if one has the workspace, the worker ends. One that was
asked for with other rules about paths, or before an undo that was cut short was completed, is thrown away. No
event names it before it is used. It is a process of the sandbox like any other: it ends with the sandbox, and
with the host.
Race: it ends, or is killed, before it is used. `start` finds it lost and asks for another one.
Failure: what cannot be asked for ahead is asked for by `start`, which reports why it cannot be had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aisotools.core.exceptions import SandboxError, WorkspaceRefused
from aisotools.core.threads import in_thread
from aisotools.sandbox.host.connection import WorkerConnection
from aisotools.sandbox.process import spawn
from aisotools.sandbox.process.descriptors import IN_FLIGHT_PATIENCE_S, IN_FLIGHT_PAUSE_S
from aisotools.workspace.import_roots import refuse_import_root


class WorkerStarter:
    """Starts the workers of one sandbox.

    Attributes:
        prepared: The tree of a worker that was asked for and not used yet; None without one.
    """

    def __init__(
        self,
        connect: Callable[[spawn.WorkerHandles], WorkerConnection],
        *,
        timeout_s: float,
    ) -> None:
        """Start nothing yet.

        Args:
            connect: Makes the connection to a tree that has just been spawned.
            timeout_s: A start that takes longer is tried once more, with another fork server.
        """
        self._connect = connect
        self._timeout_s = timeout_s
        self._closed = False
        self.prepared: WorkerConnection | None = None

    def prepare(self, spec: spawn.WorkerSpec) -> None:
        """Ask for a worker and do not wait for it; nothing if there is one that was not used yet."""
        if self._closed or self.prepared is not None:
            return
        with suppress(SandboxError):  # `start` tries again, and says why it fails
            self.prepared = self._connect(spawn.server(spec.tool_modules).spawn(spec))

    def discard(self, reason: str) -> None:
        """End a worker that was asked for and not used yet."""
        prepared, self.prepared = self.prepared, None
        if prepared is not None:
            prepared.lose(reason)

    async def start(self, spec: spawn.WorkerSpec) -> WorkerConnection:
        """Return the connection to a worker that takes calls: the one that was asked for, if it can be used.

        It is tried twice, since the fork server may have died meanwhile.

        Raises:
            SandboxError: If none starts, or the host could import from the workspace.
        """
        for is_last in (False, True):
            self._refuse_if_closed()
            server = spawn.server(spec.tool_modules)
            connection, self.prepared = self.prepared, None
            try:
                if connection is None or connection.lost_reason is not None:
                    connection = None
                    connection = self._connect(await self._spawn(server, spec))
                await self._wait_ready(connection, Path(spec.workspace))
            except SandboxError as error:
                if isinstance(error.__cause__, WorkspaceRefused) or is_last or self._closed:
                    raise
                if connection is not None and not connection.supervisor:
                    # The request was never served: the fork server itself is broken.
                    spawn.discard(server)
            else:
                return connection
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Start no more. Whoever has made the connections ends what was started."""
        self._closed = True
        self.prepared = None

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise SandboxError("The sandbox was closed.")

    async def _spawn(self, server: spawn.ForkServerHandle, spec: spawn.WorkerSpec) -> spawn.WorkerHandles:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + IN_FLIGHT_PATIENCE_S
        while True:
            self._refuse_if_closed()  # meanwhile
            try:
                return server.spawn(spec)
            except spawn.TooManyOnTheirWay:
                if loop.time() > ends_s:
                    raise
                await asyncio.sleep(IN_FLIGHT_PAUSE_S)

    async def _wait_ready(self, connection: WorkerConnection, workspace: Path) -> None:
        try:
            await self._refuse_import_root(connection, workspace)
            async with asyncio.timeout(self._timeout_s):
                # The timeout cancels the waiting, not the future: `lose` sets the error on it for all who
                # wait.
                await asyncio.shield(connection.ready)
        except TimeoutError:
            connection.lose(f"it was not ready within {self._timeout_s:g} s")
            raise SandboxError(f"No worker was ready within {self._timeout_s:g} s.") from None
        except BaseException:
            # Cancelled: nobody waits for this worker any more, and nobody else knows of it.
            connection.lose("its start was cancelled")
            raise

    async def _refuse_import_root(self, connection: WorkerConnection, workspace: Path) -> None:
        """Look once more at where the workspace lies, while the fork server makes the worker.

        Raises:
            SandboxError: The host could import from it. The worker is lost, and has had no call.
        """
        try:
            # In a thread: it lists the folders of modules, which may be large, or lie on a slow disk.
            await in_thread(refuse_import_root, workspace)
        except WorkspaceRefused as error:
            refusal = f"The worker was ended before its first call: {error}"
            connection.lose(refusal)
            raise SandboxError(refusal) from error
