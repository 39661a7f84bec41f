"""A sandbox in a kernel on another machine, at a Jupyter Server or an Enterprise Gateway.

This program does not confine that kernel, so its level is `limited` whatever it claims: a person may type,
and every call of a program or a model needs approval. Files and variables live on the other machine, and
changes there cannot be undone. Each sandbox starts a kernel of its own and ends it; if this program is
killed, a guardian beside it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import platform
import time
from typing import Any

from aisotools.core.exceptions import ChannelError, SandboxError, WorkerDied, as_clause
from aisotools.core.sandboxes import INTERRUPTED_BEFORE, SandboxCall, SandboxListener, SandboxStatus
from aisotools.core.types import ToolResult
from aisotools.integrations.jupyter_gateway.calls import (
    KernelReply,
    PythonCall,
    ToolCell,
    check_sendable,
    prepare_kernel,
)
from aisotools.integrations.jupyter_gateway.connection import RemoteLink
from aisotools.integrations.jupyter_gateway.guardian import GUARDIAN
from aisotools.integrations.jupyter_gateway.http import Gateway, GatewayError, parse_address
from aisotools.sandbox.confinement.detect import Detection, Probe
from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.sandbox.host.failures import explain_replaced, timeout_result, worker_died_result
from aisotools.sandbox.host.scheduler import CallScheduler
from aisotools.sandbox.process.spawn import WorkerSpec

_log = logging.getLogger(__name__)

LEVEL = "limited"
"""Level of every remote kernel."""

_INTERRUPT_GRACE_S = 0.4
_RETRY_INTERRUPT_S = 1.0
_MAX_INTERRUPTS = 5
"""A kernel that is still busy after so many further interrupts is ended."""
_RECONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 6.0


class GatewaySandbox:
    """Creates sandboxes in kernels at one gateway: `Session(sandbox=GatewaySandbox(url, token))`.

    It is a `SandboxFactory` that implements `SupportsRemoteLocation`, `SupportsLeastLevel` and
    `SupportsDetection`.

    Attributes:
        elsewhere: Where the calls run, for messages.
        least: Weakest level that counts as accepted: naming a gateway is consent to its level.
    """

    least = LEVEL

    def __init__(
        self,
        gateway: str,
        token: str | None = None,
        *,
        kernel: str = "",
        folder: str = "",
        start_timeout_s: float = 120.0,
        ca_certs: str | None = None,
    ) -> None:
        """Configure a gateway; nothing is contacted yet.

        Args:
            gateway: URL of a Jupyter Server or an Enterprise Gateway; it may contain the token.
            token: Authentication token.
            kernel: Name of the kernelspec; '' for the server's default.
            folder: Workspace on the other machine; '' for a folder of this workspace's own below the
                kernel's execution directory.
            start_timeout_s: Seconds that a kernel may take to start.
            ca_certs: File of additional certificates to trust.

        Raises:
            TypeError: If the URL or the token is not a string.
            ValueError: If the URL or the token is malformed.
        """
        self._address = parse_address(gateway, token)
        self._kernel = kernel
        self._folder = folder
        self._start_timeout_s = start_timeout_s
        self._ca_certs = ca_certs
        self.elsewhere = f"a kernel at {self._address.url}"

    def __repr__(self) -> str:
        return f"<GatewaySandbox at {self._address.url}>"

    def detect(self) -> Detection:
        """Return `limited`: no stronger level can be verified."""
        reason = f"calls run in {self.elsewhere}, and nothing there is confined by this program"
        return Detection(LEVEL, tuple(Probe(level, False, reason) for level in reversed(LEVELS[1:])))

    def __call__(self, spec: WorkerSpec, listener: SandboxListener) -> RemoteSandbox:
        """Create a sandbox. No kernel is started yet."""
        return RemoteSandbox(
            Gateway(self._address, ca_certs=self._ca_certs, guardian=GUARDIAN),
            listener,
            kernel=self._kernel,
            folder=self._folder or _folder_for(spec.workspace),
            start_timeout_s=self._start_timeout_s,
        )


def _folder_for(workspace: str) -> str:
    """Return a folder name for this workspace that no other workspace or machine uses."""
    where = f"{platform.node()}\0{os.path.realpath(workspace)}".encode("utf-8", "surrogateescape")
    name = os.path.basename(workspace).encode("ascii", "replace").decode().replace("?", "_")
    return f"workspace/{name[:40] or 'default'}-{hashlib.sha256(where).hexdigest()[:8]}"


class RemoteSandbox:
    """Implements `aisotools.core.sandboxes.Sandbox` with a kernel at a gateway.

    Attributes:
        claim: The kernel's own description of its confinement. Show it; never rely on it.
    """

    def __init__(
        self,
        gateway: Gateway,
        listener: SandboxListener,
        *,
        kernel: str = "",
        folder: str = "workspace",
        start_timeout_s: float = 120.0,
    ) -> None:
        """Prepare a sandbox; see `GatewaySandbox`."""
        self._gateway = gateway
        self._listener = listener
        self._kernel_name = kernel
        self._folder = folder
        self._start_timeout_s = start_timeout_s
        self._link: RemoteLink | None = None
        self._scheduler = CallScheduler()
        self._queued: dict[asyncio.Task[Any], int] = {}
        self._stopped: set[asyncio.Task[Any]] = set()
        self._cell: PythonCall | ToolCell | None = None
        self._starting: asyncio.Task[RemoteLink] | None = None
        self._recovering: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._generation = 0
        self._started_s = 0.0
        self._restart_reason = ""
        # The kernel that calls have run in last; and why it ended, until a result says so.
        self._used: RemoteLink | None = None
        self._unreported_end = ""
        self._closed = False
        self.claim = ""

    def __repr__(self) -> str:
        return f"<RemoteSandbox generation={self._generation} {self._link!r}>"

    async def start(self) -> SandboxStatus:
        """Start a kernel, unless one is up.

        Raises:
            SandboxError: If no kernel comes up.
        """
        await self._ensure_link()
        return self.status()

    def status(self) -> SandboxStatus:
        """Return the current state. Process id and memory are not known."""
        alive = self._link is not None
        return SandboxStatus(
            level=LEVEL,
            alive=alive,
            generation=self._generation,
            age_s=time.monotonic() - self._started_s if alive else 0.0,
        )

    # -- calls

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run one call; see `aisotools.core.sandboxes.Sandbox.call`. A kernel runs one at a time."""
        if request.dispatch.is_interrupted:
            request.dispatch.is_given = False
            return INTERRUPTED_BEFORE
        task = asyncio.current_task()
        assert task is not None
        self._queued[task] = task.cancelling()
        try:
            async with self._scheduler.slot("exclusive"):
                link = await self._ensure_link()
                del self._queued[task]
                result = await self._run(link, request)
                if end := self._unreported_end:
                    result, self._unreported_end = explain_replaced(result, end, request.dispatch), ""
                return result
        except asyncio.CancelledError:
            # `interrupt` cancels queued calls. If nobody else cancelled the task too, that is a result, no
            # cancellation: uncancel() restores the count from before.
            if task in self._stopped and task.uncancel() <= self._queued[task]:
                return INTERRUPTED_BEFORE
            raise
        finally:
            self._queued.pop(task, None)
            self._stopped.discard(task)

    async def _run(self, link: RemoteLink, request: SandboxCall) -> ToolResult:
        problem = check_sendable(request, link)
        if problem is not None:
            return problem
        self._used = link
        kind = PythonCall if request.shipment.import_path == PythonCall.RUNS else ToolCell
        cell = self._cell = kind(link, request, self._listener)
        execution = asyncio.ensure_future(cell.run())
        execution.add_done_callback(_retrieve_error)
        try:
            done, _ = await asyncio.wait([execution], timeout=request.timeout_s)
            if not done:
                return await self._end_at_timeout(link, request, cell, execution)
            return await self._result(link, request, cell, execution)
        except asyncio.CancelledError:
            # The cell runs on in the remote kernel, whoever waits for it here. It has to be interrupted
            # there, or the next call would queue behind it.
            await self._stop(link, cell, execution)
            raise
        finally:
            self._cell = None
            cell.end()
            if not execution.done():
                execution.cancel()

    async def _result(
        self,
        link: RemoteLink,
        request: SandboxCall,
        cell: PythonCall | ToolCell,
        execution: asyncio.Future[KernelReply],
    ) -> ToolResult:
        try:
            reply = execution.result()
        except ChannelError as error:
            content = f"{request.call.name} was not run: it could not be sent to the sandbox. {error}"
            return ToolResult.error(content, error_kind="invalid")
        except WorkerDied as error:
            if link.lost.done() or self._closed:
                return worker_died_result(error, None)
            return await self._build_disconnected_result(link, error)
        try:
            return cell.result(reply)
        except ChannelError as error:
            reason = f"it sent a malformed result: {error}"
            link.lose(reason)
            return worker_died_result(WorkerDied(reason), None)

    async def _build_disconnected_result(self, link: RemoteLink, error: WorkerDied) -> ToolResult:
        """Build the result of a call whose connection broke."""
        # The kernel may still be running the call, with nobody to see its output.
        try:
            await link.interrupt(_INTERRUPT_GRACE_S)
            consequence = "It was interrupted. If the kernel still exists, the next call uses it"
        except GatewayError as problem:
            consequence = f"{problem} The next call tries again"
        message = (
            f"The connection broke during the call: {as_clause(error)}. "
            f"Whether it finished is not known. {as_clause(consequence)}."
        )
        result = ToolResult.error(message, error_kind="environment", recoverable=False)
        return result.with_metadata(worker_died=True, state_kept=False)

    # -- stopping

    async def _end_at_timeout(
        self,
        link: RemoteLink,
        request: SandboxCall,
        cell: PythonCall | ToolCell,
        execution: asyncio.Future[KernelReply],
    ) -> ToolResult:
        name = request.call.name
        if await self._stop(link, cell, execution):
            partial = (await self._result(link, request, cell, execution)).content
            return timeout_result(name, request.timeout_s, cell.printed(), partial=partial, recovery=None)
        patience_s = _RETRY_INTERRUPT_S * _MAX_INTERRUPTS
        content = (
            f"{name} was stopped: it ran longer than {request.timeout_s:g} s. The remote kernel was "
            f"interrupted and has not reacted yet. If it does not within {patience_s:g} s, the next call "
            "gets a new kernel, without the variables."
        )
        result = ToolResult.error(content, error_kind="failed")
        return result.with_metadata(timed_out=True, **cell.printed())

    async def _stop(
        self, link: RemoteLink, cell: PythonCall | ToolCell, execution: asyncio.Future[KernelReply]
    ) -> bool:
        """Interrupt the kernel. Return whether the call ended within the grace period."""
        cell.mark_interrupted()
        interrupting = asyncio.ensure_future(_interrupt(link))
        await asyncio.wait([execution], timeout=_INTERRUPT_GRACE_S)
        if execution.done():
            await asyncio.wait([interrupting], timeout=_INTERRUPT_GRACE_S)
            return True
        if self._recovering is None or self._recovering.done():
            self._recovering = asyncio.ensure_future(self._interrupt_until_idle(link, cell))
        return False

    async def _interrupt_until_idle(self, link: RemoteLink, cell: PythonCall | ToolCell) -> None:
        """Keep interrupting until the kernel is idle; end it if it stays busy."""
        for _ in range(_MAX_INTERRUPTS):
            if link.lost.done() or await cell.wait_finished(_RETRY_INTERRUPT_S):
                return
            await _interrupt(link)
        self._discard(link, "a call could not be interrupted")

    async def interrupt(self) -> None:
        """Stop running and queued calls. The kernel is kept if it reacts."""
        for task in self._queued:
            self._stopped.add(task)
            task.cancel()
        cell, link = self._cell, self._link
        if cell is not None and link is not None:
            cell.mark_interrupted()
            await _interrupt(link)
            if not await cell.wait_finished(_INTERRUPT_GRACE_S) and (
                self._recovering is None or self._recovering.done()
            ):
                self._recovering = asyncio.ensure_future(self._interrupt_until_idle(link, cell))

    # -- the kernel

    async def restart(self) -> SandboxStatus:
        """End the kernel and start a new one. Its variables are lost."""
        link, self._link = self._link, None
        if link is not None:
            self._restart_reason = "it was restarted"
            self._note_end(link, "the sandbox was restarted")
            await link.close("the sandbox was restarted")
        return await self.start()

    async def close(self) -> None:
        """End the kernel, if the gateway can be reached. Closing again does nothing."""
        self._closed = True
        link, self._link = self._link, None
        if self._recovering is not None:
            self._recovering.cancel()
        if link is not None:
            self._end_in_background(link, "the session was closed")
        waiting: list[asyncio.Task[Any]] = [*self._ending]
        if self._starting is not None and not self._starting.done():
            waiting.append(self._starting)  # it sees `_closed` and ends the kernel that it starts
        if waiting:
            await asyncio.wait(waiting, timeout=_CLOSE_TIMEOUT_S)
        self._gateway.close()

    def _discard(self, link: RemoteLink, reason: str) -> None:
        """End an unusable kernel in the background, and report its loss."""
        self._end_in_background(link, reason)
        if link is self._link:
            self._link = None
            self._restart_reason = reason
            self._note_end(link, reason)
            if not self._closed:
                self._listener.lost(self._generation, reason)

    def _note_end(self, link: RemoteLink, reason: str) -> None:
        """Have the next result say that variables are lost, unless the call under way says it."""
        if link is self._used:
            self._unreported_end = f"{reason}; its variables are lost" if self._cell is None else ""

    def _end_in_background(self, link: RemoteLink, reason: str) -> None:
        task = asyncio.ensure_future(link.close(reason))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _ensure_link(self) -> RemoteLink:
        """Return the kernel; start or reconnect it if needed."""
        if self._closed:
            raise SandboxError("The sandbox was closed.")
        if self._recovering is not None and not self._recovering.done():
            await asyncio.wait([self._recovering])
        link = self._link
        if link is not None and link.connected:
            return link
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._start_or_reconnect())
            self._starting.add_done_callback(_retrieve_error)
        # Shielded: a caller that is cancelled must not stop a start that others wait for.
        return await asyncio.shield(self._starting)

    async def _start_or_reconnect(self) -> RemoteLink:
        link = self._link
        if link is not None:
            if not link.lost.done() and await self._reconnect(link):
                return link
            reason = link.lost.result() if link.lost.done() else "it is gone from its server"
            self._discard(link, reason)
        link = await self._start_kernel()
        if self._closed:
            await link.close("the session was closed")
            raise SandboxError("The sandbox was closed.")
        self._link = link
        link.lost.add_done_callback(lambda lost: self._discard(link, lost.result()))
        self._generation += 1
        self._started_s = time.monotonic()
        self._listener.started(self.status(), self._restart_reason)
        if link.own_kind:
            self.claim = link.banner
            self._listener.emitted("", "remote_claim", {"says": link.banner})
        return link

    async def _reconnect(self, link: RemoteLink) -> bool:
        """Connect to the kernel again. Return whether it exists and responds.

        Raises:
            GatewayError: If the gateway cannot be reached.
        """
        if not await self._gateway.has_kernel(link.kernel):
            return False
        try:
            await link.connect(_RECONNECT_TIMEOUT_S)
        except WorkerDied:
            return False
        return True

    async def _start_kernel(self) -> RemoteLink:
        kernel = await self._gateway.start_kernel(self._kernel_name, self._start_timeout_s)
        link = RemoteLink(self._gateway, kernel)
        try:
            await link.connect(self._start_timeout_s)
            link.set_prepared(await prepare_kernel(link, self._folder, self._start_timeout_s))
            if link.own_kind:
                # Its banner names its level, which it knows only now.
                await link.request_info(self._start_timeout_s)
        except BaseException as error:
            # Race: whoever waits for the start may be cancelled again while the kernel is ended. The error
            # that led here is the one that is raised.
            with contextlib.suppress(asyncio.CancelledError):
                await link.close("it could not be prepared")
            if isinstance(error, WorkerDied):
                where = self._gateway.address.url
                raise SandboxError(f"The kernel at {where} cannot be used: {as_clause(error)}.") from None
            raise
        return link


def _retrieve_error(execution: asyncio.Future[Any]) -> None:
    # Whoever waits gets the error. After a deadline or a cancellation nobody waits, and asyncio would log it.
    if not execution.cancelled():
        execution.exception()


async def _interrupt(link: RemoteLink) -> None:
    try:
        await link.interrupt()
    except GatewayError as error:
        _log.warning("The kernel %s was not interrupted: %s", link.kernel, error)
