"""The Jupyter side of a sandboxed kernel, in a process of its own that runs no user code.

Every cell is a call of the `python` tool that a person typed, and goes through the gate of a session to a
confined worker. All output is untrusted and passes `aisotools.notebook.kernel.output`. The interpreter of
this process is always free, so an interrupt stops any cell.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
import signal
import sys
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import version
from typing import Any

import zmq
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel
from jupyter_client._version import protocol_version
from jupyter_client.session import Session
from traitlets import Bool, Unicode

from aisotools.core.exceptions import AisotoolsError
from aisotools.core.threads import in_thread
from aisotools.notebook.kernel.attach import open_remote
from aisotools.notebook.kernel.output import CellOrigin, DisplayFilter, JupyterMessage, JupyterOutput
from aisotools.notebook.kernel.session import (
    CellRequest,
    CellResult,
    CodeCompleteness,
    Completion,
    KernelBackend,
    SessionConnection,
    open_local,
)
from aisotools.sandbox.worker.output import ExecuteOptions

MAX_INPUTS = 10_000
"""Inputs kept in the history; the oldest are dropped."""


class InputHistory:
    """The inputs of one kernel, in memory."""

    def __init__(self) -> None:
        """Start empty."""
        self._inputs: deque[tuple[int, str]] = deque(maxlen=MAX_INPUTS)

    def add(self, count: int, code: str) -> None:
        """Add the input of cell `count`."""
        self._inputs.append((count, code))

    def query(
        self,
        access: str,
        *,
        output: bool = False,
        start: int | None = None,
        stop: int | None = None,
        n: int | None = None,
        pattern: str | None = None,
        unique: bool = False,
        **_: Any,
    ) -> list[tuple[int, int, Any]]:
        """Return inputs as a `history_reply` holds them: session, number, text.

        Args:
            access: `tail` for the latest `n`; `range` for `start` up to before `stop`; `search` for inputs
                that match `pattern`.
            output: Return pairs of text and None instead of text; outputs are not stored.
            start: First number of a range.
            stop: End of a range, exclusive.
            n: Return at most this many, the latest.
            pattern: A glob with `*` and `?`.
            unique: Return each text once, with its latest number.
        """
        found = list(self._inputs)
        if access == "range":
            first, last = start or 0, MAX_INPUTS**2 if stop is None else stop
            found = [(count, code) for count, code in found if first <= count < last]
        elif access == "search":
            found = [(c, code) for c, code in found if fnmatch.fnmatchcase(code, pattern or "*")]
        elif access != "tail":
            return []
        if unique:
            found = [(count, code) for code, count in {code: count for count, code in found}.items()]
        if n is not None:
            found = found[-n:] if n > 0 else []
        return [(0, count, (code, None) if output else code) for count, code in found]


_EXIT_COMMANDS = frozenset({"exit", "quit", "exit()", "quit()"})


class SandboxKernel(Kernel):
    """A Jupyter kernel whose cells run in a sandbox."""

    implementation = "aisotools"
    implementation_version = version("aisotools")
    language_info = {  # noqa: RUF012 - a class attribute is how kernels say it
        "name": "python",
        "version": sys.version.split()[0],
        "mimetype": "text/x-python",
        "codemirror_mode": {"name": "ipython", "version": sys.version_info.major},
        "pygments_lexer": "ipython3",
        "nbconvert_exporter": "python",
        "file_extension": ".py",
    }
    trust_output = Bool(
        default_value=False,
        help="Pass on all output as it is: widgets and scripts of the notebook may act on the page.",
    ).tag(config=True)
    attached = Unicode(
        help="Descriptors of two inherited sockets, as `4,5`, to a session in another process; "
        "without them a session is opened in this one.",
    ).tag(config=True)
    opener: Callable[[JupyterOutput], Awaitable[SessionConnection]] = staticmethod(open_local)
    """Opens the session; tests replace it."""

    def __init__(self, **kwargs: Any) -> None:
        """Initialize the kernel. `start` opens the session in the background."""
        super().__init__(**kwargs)
        # ipykernel waits after each cell for output of its own streams; this process has none.
        self._execute_sleep = 0.0
        self._filter = DisplayFilter(trusted=self.trust_output)
        self._output = JupyterOutput(self._filter, self._publish, self._request_input, self._poll_input)
        self._count = 1
        self._history = InputHistory()
        self._notices: list[str] = []
        self._connecting: asyncio.Task[SessionConnection] | None = None
        self._main_loop: asyncio.AbstractEventLoop | None = None
        for kind in ("comm_open", "comm_msg", "comm_close"):
            self.shell_handlers[kind] = self.comm_request
        self.control_handlers.pop("debug_request", None)

    @property
    def banner(self) -> str:  # type: ignore[override]  # it depends on whether the session is open yet
        """The banner of consoles."""
        connecting = self._connecting
        level = connecting.result().level if connecting is not None and _has_succeeded(connecting) else ""
        where = f" at level {level}" if level else ""
        return (
            f"aisotools {self.implementation_version}: cells run in a sandbox{where}, not on this computer."
        )

    @property
    def kernel_info(self) -> dict[str, Any]:
        """The `kernel_info_reply`; there is neither a debugger nor a subshell."""
        return {
            "protocol_version": protocol_version,
            "implementation": self.implementation,
            "implementation_version": self.implementation_version,
            "language_info": self.language_info,
            "banner": self.banner,
            "help_links": [],
            "supported_features": [],
        }

    @property
    def execution_count(self) -> int:
        """The number of the next cell."""
        return self._count

    @execution_count.setter
    def execution_count(self, _count: int) -> None:
        """Ignore ipykernel's count: only cells stored in the history count; see `do_execute`."""

    def start(self) -> None:
        """Serve requests, and open the session meanwhile."""
        super().start()
        self._main_loop = asyncio.get_event_loop()
        # Jupyter interrupts with SIGINT. Python's own handler would raise inside whatever callback runs just
        # then; this one runs as a callback of the loop itself.
        self._main_loop.add_signal_handler(signal.SIGINT, self._interrupt_soon)
        self._connecting = self._main_loop.create_task(self._open())

    async def _open(self) -> SessionConnection:
        if self.attached:
            channel_fd, pidfds_fd = map(int, self.attached.split(","))
            assert isinstance(self.parent, SandboxKernelApp)
            path = self.parent.abs_connection_file
            connection = await open_remote(channel_fd, pidfds_fd, self._output, path, self.io_loop.stop)
        else:
            connection = await type(self).opener(self._output)
        self._count = connection.count
        self._notices += connection.notices
        return connection

    def pre_handler_hook(self) -> None:
        """Do nothing: SIGINT has a permanent handler, see `start`."""

    def post_handler_hook(self) -> None:
        """Do nothing, as `pre_handler_hook`."""

    # ---- requests

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: Mapping[str, str] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: Any = None,  # noqa: ARG002 - the base class passes these
        cell_id: Any = None,  # noqa: ARG002 - likewise
    ) -> dict[str, Any]:
        """Run a cell in the sandbox."""
        is_stored = store_history and not silent
        count = self._count
        if not code.strip():
            return self._reply(count, {})
        options = ExecuteOptions(
            silent=silent,
            store_history=is_stored,
            count=count,
            stdin=bool(allow_stdin),
            comms=self.trust_output,
        )
        cell = CellRequest(call_id=uuid.uuid4().hex, code=code, options=options)
        self._output.begin(
            cell.call_id, CellOrigin(ident=self._ident(), parent=self.get_parent("shell")), count
        )
        outcome = await self._run(cell)
        if is_stored:
            self._history.add(count, code)
            self._count += 1
        payload, error = self._output.end(cell.call_id, outcome)
        if error is not None:
            return {**error, "status": "error", "execution_count": count, "payload": payload}
        if code.strip() in _EXIT_COMMANDS:
            payload.append({"source": "ask_exit", "keepkernel": False})
        expressions = dict.fromkeys(user_expressions or {}, _NO_EXPRESSIONS)
        return self._reply(count, {"payload": payload, "user_expressions": expressions})

    async def _run(self, cell: CellRequest) -> CellResult:
        try:
            connection = await self._connection()
        except Exception as error:
            # Whatever keeps the session from opening is the error of every cell until it opens.
            return CellResult(error={"ename": type(error).__name__, "evalue": str(error), "traceback": ""})
        notices, self._notices = self._notices, []
        for notice in notices:
            self._output.say(cell.call_id, f"[{notice}]\n")
        if cell.code.strip() in _EXIT_COMMANDS:
            return CellResult()
        return await connection.backend.execute(cell)

    async def do_complete(self, code: str, cursor_pos: int | None) -> dict[str, Any]:
        """Return the completions at the cursor."""
        cursor = len(code) if cursor_pos is None else cursor_pos
        backend = await self._backend()
        found = Completion(start=cursor, end=cursor)
        if backend is not None:
            found = await backend.complete(code, cursor)
        texts = [self._filter.text(match.text) for match in found.matches]
        types = [
            {
                "start": found.start,
                "end": found.end,
                "text": text,
                "type": self._filter.text(match.type),
                "signature": self._filter.text(match.signature),
            }
            for text, match in zip(texts, found.matches, strict=True)
        ]
        return {
            "status": "ok",
            "matches": texts,
            "cursor_start": found.start,
            "cursor_end": found.end,
            "metadata": {"_jupyter_types_experimental": types},
        }

    async def do_inspect(
        self,
        code: str,
        cursor_pos: int,
        detail_level: int = 0,
        omit_sections: object = (),  # noqa: ARG002 - all sections are returned
    ) -> dict[str, Any]:
        """Return the documentation of the object at the cursor."""
        backend = await self._backend()
        text = None if backend is None else await backend.inspect(code, cursor_pos, detail_level)
        data = {} if text is None else {"text/plain": self._filter.text(text)}
        return {"status": "ok", "found": bool(data), "data": data, "metadata": {}}

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        """Return whether code can run as it is."""
        backend = await self._backend()
        found = CodeCompleteness() if backend is None else await backend.is_complete(code)
        reply: dict[str, Any] = {"status": found.status}
        if found.status == "incomplete":
            reply["indent"] = " " * found.indent
        return reply

    async def do_history(  # type: ignore[override]  # by keyword all the same
        self,
        hist_access_type: str,
        output: bool,
        raw: bool,  # noqa: ARG002 - inputs are kept as they were typed
        **how: Any,
    ) -> dict[str, Any]:
        """Return the inputs of this kernel."""
        return {"status": "ok", "history": self._history.query(hist_access_type, output=output, **how)}

    async def comm_request(self, _stream: Any, ident: Any, message: Mapping[str, Any]) -> None:
        """Deliver a page's message to a widget if output is trusted; drop it otherwise."""
        if not self.trust_output:
            return
        call_id = uuid.uuid4().hex
        self._output.begin(call_id, CellOrigin(ident=ident, parent=message), self._count)
        options = ExecuteOptions(comms=True, store_history=False)
        buffers = [bytes(buffer) for buffer in message.get("buffers", ())]
        kind = str(message["header"]["msg_type"])
        backend = await self._backend()
        if backend is not None:
            await backend.message(
                CellRequest(call_id=call_id, code="", options=options), kind, message["content"], buffers
            )

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Stop the running cell. Runs on the thread of the control channel."""
        assert self._main_loop is not None
        # Two threads: the shell of this kernel lives on the main loop, which may be busy. The reply says
        # that the request has arrived, not that the cell has stopped.
        self._main_loop.call_soon_threadsafe(self._interrupt_soon)
        self._messages.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    def _interrupt_soon(self) -> None:
        if self._connecting is not None and _has_succeeded(self._connecting):
            task = asyncio.ensure_future(self._connecting.result().backend.interrupt())
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """Close the session. Runs on the thread of the control channel."""
        assert self._main_loop is not None
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._main_loop)
        await asyncio.wait_for(asyncio.wrap_future(closing), timeout=10.0)
        return {"status": "ok", "restart": restart}

    async def _close(self) -> None:
        if self._connecting is None:
            return
        if self._connecting.done():
            if _has_succeeded(self._connecting):
                await self._connecting.result().close()
            return
        self._connecting.cancel()

    async def _connection(self) -> SessionConnection:
        assert self._connecting is not None
        connecting = self._connecting
        if connecting.done() and not _has_succeeded(connecting):
            assert self._main_loop is not None
            connecting = self._connecting = self._main_loop.create_task(self._open())
        # Several requests wait for one connection: cancelling one of them must not cancel it for all.
        return await asyncio.shield(connecting)

    async def _backend(self) -> KernelBackend | None:
        """Return the session's backend; None if the session cannot be opened, which the next cell reports."""
        try:
            return (await self._connection()).backend
        except AisotoolsError:
            self.log.warning("The session cannot be opened", exc_info=True)
            return None

    # ---- the sockets

    @property
    def _messages(self) -> Session:
        assert self.session is not None
        return self.session

    def _ident(self) -> Any:
        return self._get_shell_context_var(self._shell_parent_ident)

    def _publish(self, message: JupyterMessage, request: CellOrigin) -> Awaitable[None] | None:
        if message.is_large:
            return self._publish_large(message, request)
        self._messages.send(
            self.iopub_socket,
            message.type,
            dict(message.content),
            parent=dict(request.parent),
            ident=self._topic(message.type),
            metadata=dict(message.metadata or {}),
            buffers=list(message.buffers) or None,
        )
        return None

    async def _publish_large(self, message: JupyterMessage, request: CellOrigin) -> None:
        content: Any = message.packed or dict(message.content)  # bytes are sent as they are
        parent, metadata = dict(request.parent), dict(message.metadata or {})
        # `Session.send` packs and signs at once, which takes 100 ms for 20 MiB. A thread that signs lets the
        # loop go on.
        made = self._messages.msg(message.type, content, parent=parent, metadata=metadata)
        parts = await in_thread(self._messages.serialize, made, self._topic(message.type))
        assert self.iopub_socket is not None
        self.iopub_socket.send_multipart([*parts, *message.buffers], copy=False)

    def _request_input(self, content: dict[str, Any], request: CellOrigin) -> None:
        parent = dict(request.parent)
        self._messages.send(self.stdin_socket, "input_request", content, parent=parent, ident=request.ident)

    def _poll_input(self) -> Mapping[str, Any] | None:
        _, reply = self._messages.recv(self.stdin_socket, zmq.NOBLOCK)
        return reply

    @staticmethod
    def _reply(count: int, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": "ok", "execution_count": count, "payload": [], "user_expressions": {}, **more}


# The event loop holds tasks weakly; a task that nobody awaits could be collected while it runs.
_tasks: set[Any] = set()
_NO_EXPRESSIONS = {
    "status": "error",
    "ename": "NotSupported",
    "evalue": "This kernel evaluates no expressions beside a cell; put them into the cell.",
    "traceback": [],
}


def _has_succeeded(task: asyncio.Task[SessionConnection]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


class SandboxKernelApp(IPKernelApp):
    """Starts the kernel process as Jupyter starts kernels."""

    name = "aisotools-kernel"
    kernel_class = SandboxKernel
    outstream_class: Any = None  # what this process prints is not output of cells
    classes: Any = [SandboxKernel]  # noqa: RUF012 - as traitlets wants it

    def init_sockets(self) -> None:
        """Encrypt the sockets of an attached kernel: no server has made keys for it."""
        if self.curve_secretkey is None and "attached" in self.config.SandboxKernel:
            self.curve_publickey, self.curve_secretkey = zmq.curve_keypair()
        super().init_sockets()

    def init_control(self, context: Any) -> None:
        """Serve the shell channel on the main loop, which is always free."""
        super().init_control(context)
        self.shell_channel_thread.io_loop.close()
        self.shell_channel_thread = None

    def init_signal(self) -> None:
        """Do nothing: the kernel handles SIGINT itself, see `SandboxKernel.start`."""

    def init_path(self) -> None:
        """Do nothing: the current folder is the notebook's, and nothing may be imported from there."""

    def init_pdb(self) -> None:
        """Do nothing: no user code runs in this process."""


def main() -> None:
    """Run a kernel process; the arguments are those of a Jupyter kernel."""
    from aisotools.builtin import WORKER_MODULES
    from aisotools.sandbox.process.spawn import server

    os.umask(0o077)
    if not any(argument.startswith("--SandboxKernel.attached") for argument in sys.argv):
        # The fork server starts while everything else is set up.
        server(WORKER_MODULES)
    app = SandboxKernelApp.instance()
    app.initialize()
    app.start()


if __name__ == "__main__":
    main()
