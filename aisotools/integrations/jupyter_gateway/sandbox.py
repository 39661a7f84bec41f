"""A sandbox in a kernel on another machine: at a Jupyter Server or an Enterprise Gateway.

Nothing there is confined by us, so its level is `limited`, whatever the other side says about itself: a
person may type, and everything a program or a model wants is asked about. Files and variables live there, and
what calls change there cannot be undone from here. One kernel is made for each sandbox, and ended with it.
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

from aisotools.core.exceptions import ChannelError, SandboxError, WorkerDied
from aisotools.core.protocols import SandboxCall, SandboxListener, SandboxStatus
from aisotools.core.types import ToolResult
from aisotools.integrations.jupyter_gateway.calls import PythonCall, Shown, ToolCell, settle, unsendable
from aisotools.integrations.jupyter_gateway.connection import RemoteLink
from aisotools.integrations.jupyter_gateway.http import Gateway, GatewayError, read_address
from aisotools.sandbox.confinement.detect import Detection, Probe
from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.sandbox.host.failures import timeout_result, worker_died_result
from aisotools.sandbox.host.scheduler import CallScheduler
from aisotools.sandbox.process.spawn import WorkerSpec

_log = logging.getLogger(__name__)

LEVEL = "limited"
"""What every kernel elsewhere counts as: nothing of ours confines it."""

_GRACE_S = 0.4
_CALM_S, _CALM_TRIES = 1.0, 5
_CONNECT_S = 10.0
_END_S = 6.0


class GatewaySandbox:
    """Makes sandboxes in kernels at one gateway; a `SandboxFactory`.

    Attributes:
        elsewhere: Where the calls run, in words.
        least: The level that whoever names a gateway has consented to.
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
        """Describe them; nothing is contacted yet.

        Args:
            gateway: The URL of a Jupyter Server or an Enterprise Gateway; a token may stand in it.
            token: What the server knows us by.
            kernel: The name of the kernelspec; the server's default without it.
            folder: The workspace there; without it one below the kernel's own folder, for this workspace.
            start_timeout_s: How long a kernel may take to start.
            ca_certs: A file of further certificates to trust.

        Raises:
            TypeError: If the URL or the token is no text.
            ValueError: If the URL is none.
        """
        self._address = read_address(gateway, token)
        self._kernel, self._folder = kernel, folder
        self._start_timeout_s, self._ca_certs = start_timeout_s, ca_certs
        self.elsewhere = f"a kernel at {self._address.url}"

    def __repr__(self) -> str:
        return f"<GatewaySandbox at {self._address.url}>"

    def detect(self) -> Detection:
        """What it holds: nothing that we could vouch for."""
        why = f"calls run in {self.elsewhere}, and nothing there is confined by this program"
        return Detection(LEVEL, tuple(Probe(level, False, why) for level in reversed(LEVELS[1:])))

    def __call__(self, wanted: WorkerSpec, listener: SandboxListener) -> RemoteSandbox:
        """A sandbox for the session that wants one."""
        return RemoteSandbox(
            Gateway(self._address, ca_certs=self._ca_certs),
            listener,
            kernel=self._kernel,
            folder=self._folder or _folder_for(wanted.workspace),
            start_timeout_s=self._start_timeout_s,
        )


def _folder_for(workspace: str) -> str:
    """A folder there that belongs to this workspace here, and to no other one's."""
    where = f"{platform.node()}\0{os.path.realpath(workspace)}".encode("utf-8", "surrogateescape")
    name = os.path.basename(workspace).encode("ascii", "replace").decode().replace("?", "_")
    return f"workspace/{name[:40] or 'default'}-{hashlib.sha256(where).hexdigest()[:8]}"


class RemoteSandbox:
    """Implements `aisotools.core.protocols.Sandbox` with a kernel at a gateway.

    Attributes:
        claim: What the kernel says about its own confinement; to be shown, never to be relied on.
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
        """Be ready to start a kernel; see `GatewaySandbox`."""
        self._gateway = gateway
        self._listener = listener
        self._name, self._folder, self._start_timeout_s = kernel, folder, start_timeout_s
        self._link: RemoteLink | None = None
        self._scheduler = CallScheduler()
        self._queued: dict[asyncio.Task[Any], int] = {}
        self._stopped: set[asyncio.Task[Any]] = set()
        self._cell: PythonCall | ToolCell | None = None
        self._starting: asyncio.Task[RemoteLink] | None = None
        self._calming: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._generation = 0
        self._since_s = 0.0
        self._why_new = ""
        self._closed = False
        self.claim = ""

    def __repr__(self) -> str:
        return f"<RemoteKernel generation={self._generation} {self._link!r}>"

    async def start(self) -> SandboxStatus:
        """Have a kernel up; at once if there is one.

        Raises:
            SandboxError: If none comes up; the message says why.
        """
        await self._ensure()
        return self.status()

    def status(self) -> SandboxStatus:
        """The state right now; process and memory are the other machine's business."""
        alive = self._link is not None
        return SandboxStatus(
            level=LEVEL,
            alive=alive,
            generation=self._generation,
            age_s=time.monotonic() - self._since_s if alive else 0.0,
        )

    # ---- calls

    async def call(self, request: SandboxCall) -> ToolResult:
        """Run one call; see `aisotools.core.protocols.Sandbox.call`. A kernel runs one at a time."""
        task = asyncio.current_task()
        assert task is not None
        self._queued[task] = task.cancelling()
        try:
            async with self._scheduler.slot("exclusive"):
                link = await self._ensure()
                del self._queued[task]
                return await self._run(link, request)
        except asyncio.CancelledError:
            if task in self._stopped and task.uncancel() <= self._queued[task]:
                return ToolResult.error("The call was interrupted before it ran.").with_metadata(stopped=True)
            raise
        finally:
            self._queued.pop(task, None)
            self._stopped.discard(task)

    async def _run(self, link: RemoteLink, request: SandboxCall) -> ToolResult:
        problem = unsendable(request, link)
        if problem is not None:
            return problem
        kind = PythonCall if request.shipment.import_path == PythonCall.RUNS else ToolCell
        cell = self._cell = kind(link, request, self._listener)
        working = asyncio.ensure_future(cell.run())
        working.add_done_callback(_seen)
        try:
            done, _ = await asyncio.wait([working], timeout=request.timeout_s)
            if not done:
                return await self._timed_out(link, request, cell, working)
            return await self._result(link, cell, working)
        except asyncio.CancelledError:
            await self._stop(link, cell, working)
            raise
        finally:
            self._cell = None
            cell.end()
            if not working.done():
                working.cancel()

    async def _result(
        self, link: RemoteLink, cell: PythonCall | ToolCell, working: asyncio.Future[Shown]
    ) -> ToolResult:
        try:
            return cell.result(working.result())
        except ChannelError as error:
            link.lose(f"it sent a malformed result: {error}")
            return worker_died_result(WorkerDied(f"it sent a malformed result: {error}"), None)
        except WorkerDied as error:
            if link.lost.done() or self._closed:
                return worker_died_result(error, None)
            return await self._cut_off(link, error)

    async def _cut_off(self, link: RemoteLink, error: WorkerDied) -> ToolResult:
        """The connection broke, and perhaps the kernel lives: what ran there must not go on unseen."""
        try:
            await link.interrupt(_GRACE_S)
            then = "It was told to stop. If the kernel is still there, the next call goes on in it"
        except GatewayError as problem:
            then = f"{problem} The next call tries again"
        told = f"The call was cut off: {error}. Whether it had finished is not known. {then}."
        result = ToolResult.error(told, error_kind="environment", recoverable=False)
        return result.with_metadata(worker_died=True, state_kept=False)

    # ---- stopping

    async def _timed_out(
        self,
        link: RemoteLink,
        request: SandboxCall,
        cell: PythonCall | ToolCell,
        working: asyncio.Future[Shown],
    ) -> ToolResult:
        name, ran = request.call.name, f"it ran longer than {request.timeout_s:g} s"
        if await self._stop(link, cell, working):
            partial = (await self._result(link, cell, working)).content
            return timeout_result(name, request.timeout_s, cell.printed(), partial=partial, recovery=None)
        told = (
            f"{name} was stopped: {ran}. The remote kernel was told so and has not answered yet; if it stays "
            f"silent for {_CALM_S * _CALM_TRIES:g} s, the next call gets a fresh one, without the variables."
        )
        result = ToolResult.error(told, error_kind="failed")
        return result.with_metadata(timed_out=True, **cell.printed())

    async def _stop(
        self, link: RemoteLink, cell: PythonCall | ToolCell, working: asyncio.Future[Shown]
    ) -> bool:
        """Interrupt the kernel; whether the call came to its end within the grace period."""
        cell.interrupted = True
        interrupting = asyncio.ensure_future(_interrupt(link))
        await asyncio.wait([working], timeout=_GRACE_S)
        if working.done():
            await asyncio.wait([interrupting], timeout=_GRACE_S)
            return True
        if self._calming is None or self._calming.done():
            self._calming = asyncio.ensure_future(self._calm(link, cell))
        return False

    async def _calm(self, link: RemoteLink, cell: PythonCall | ToolCell) -> None:
        """Keep interrupting until the kernel is free again, or else give it up."""
        for _ in range(_CALM_TRIES):
            if link.lost.done() or await cell.over(_CALM_S):
                return
            await _interrupt(link)
        self._give_up(link, "a call could not be interrupted")

    async def interrupt(self) -> None:
        """Stop whatever runs or waits to run, keeping the kernel if it lets itself be stopped."""
        for task in self._queued:
            self._stopped.add(task)
            task.cancel()
        cell, link = self._cell, self._link
        if cell is not None and link is not None:
            cell.interrupted = True
            await _interrupt(link)
            if not await cell.over(_GRACE_S) and (self._calming is None or self._calming.done()):
                self._calming = asyncio.ensure_future(self._calm(link, cell))

    # ---- the kernel

    async def restart(self) -> SandboxStatus:
        """End the kernel, and have a fresh one; its variables are lost."""
        link, self._link = self._link, None
        if link is not None:
            self._why_new = "it was restarted"
            await link.close("the sandbox was restarted")
        return await self.start()

    async def close(self) -> None:
        """End the kernel, as far as the gateway can be asked. Closing again does nothing."""
        self._closed = True
        link, self._link = self._link, None
        if self._calming is not None:
            self._calming.cancel()
        if link is not None:
            self._end(link, "the session was closed")
        waiting: list[asyncio.Task[Any]] = [*self._ending]
        if self._starting is not None and not self._starting.done():
            waiting.append(self._starting)  # it ends what it starts by itself
        if waiting:
            await asyncio.wait(waiting, timeout=_END_S)
        self._gateway.close()

    def _give_up(self, link: RemoteLink, reason: str) -> None:
        """A kernel is of no use any more: end it behind our back, and forget it."""
        self._end(link, reason)
        if link is self._link:
            self._link = None
            self._why_new = reason
            if not self._closed:
                self._listener.lost(self._generation, reason)

    def _end(self, link: RemoteLink, reason: str) -> None:
        task = asyncio.ensure_future(link.close(reason))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _ensure(self) -> RemoteLink:
        """The kernel, started if there is none, connected if it is not."""
        if self._closed:
            raise SandboxError("The sandbox was closed.")
        if self._calming is not None and not self._calming.done():
            await asyncio.wait([self._calming])
        link = self._link
        if link is not None and link.connected:
            return link
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._started())
            self._starting.add_done_callback(_seen)
        return await asyncio.shield(self._starting)

    async def _started(self) -> RemoteLink:
        link = self._link
        if link is not None:
            if not link.lost.done() and await self._connected_again(link):
                return link
            reason = link.lost.result() if link.lost.done() else "it is gone from its server"
            self._give_up(link, reason)
        link = await self._fresh()
        if self._closed:
            await link.close("the session was closed")
            raise SandboxError("The sandbox was closed.")
        self._link = link
        link.lost.add_done_callback(lambda lost: self._give_up(link, lost.result()))
        self._generation += 1
        self._since_s = time.monotonic()
        self._listener.started(self.status(), self._why_new)
        if link.own_kind:
            self.claim = link.banner
            self._listener.emitted("", "remote_claim", {"says": link.banner})
        return link

    async def _connected_again(self, link: RemoteLink) -> bool:
        """Whether the kernel is still there, and answers.

        Raises:
            GatewayError: If the gateway cannot be asked.
        """
        if not await self._gateway.has_kernel(link.kernel):
            return False
        try:
            await link.connect(_CONNECT_S)
        except WorkerDied:
            return False
        return True

    async def _fresh(self) -> RemoteLink:
        kernel = await self._gateway.make_kernel(self._name, self._start_timeout_s)
        link = RemoteLink(self._gateway, kernel)
        try:
            await link.connect(self._start_timeout_s)
            link.info = await settle(link, self._folder, self._start_timeout_s)
            if link.own_kind:  # by now it knows its level
                await link.introduce(self._start_timeout_s)
        except BaseException as error:
            with contextlib.suppress(asyncio.CancelledError):
                await link.close("it could not be made ready")
            if isinstance(error, WorkerDied):
                where = self._gateway.address.url
                raise SandboxError(f"The kernel at {where} cannot be used: {error}.") from None
            raise
        return link


def _seen(working: asyncio.Future[Any]) -> None:
    """Whoever waits gets the error; after a deadline, or a cancellation, nobody does any more."""
    if not working.cancelled():
        working.exception()


async def _interrupt(link: RemoteLink) -> None:
    try:
        await link.interrupt()
    except GatewayError as error:
        _log.warning("The kernel %s was not interrupted: %s", link.kernel, error)
