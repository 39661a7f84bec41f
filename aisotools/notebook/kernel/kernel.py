"""The front: the Jupyter side of a sandboxed kernel, in a process of its own that runs no user code.

It speaks the Jupyter protocol, and has a session run the cells in a confined worker: every cell is a call of
the `python` tool that a person has typed, through the session's gate. What comes back is hostile and passes
`aisotools.notebook.kernel.output`. Its interpreter is always free, so that an interrupt stops any cell.

What was typed at a front, for its history: in memory, the latest first to be forgotten last.
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
from aisotools.notebook.kernel.attach import open_remote
from aisotools.notebook.kernel.output import DisplayFilter, JupyterOutput, Message, Request
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

MOST = 10_000
"""How many inputs are kept."""


class InputHistory:
    """The inputs of one front."""

    def __init__(self) -> None:
        """Start with none."""
        self._inputs: deque[tuple[int, str]] = deque(maxlen=MOST)

    def add(self, count: int, code: str) -> None:
        """Keep the input of cell `count`."""
        self._inputs.append((count, code))

    def tell(
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
        """Inputs as a `history_reply` has them: session, number, text; with `output`, text and no output.

        Args:
            access: `tail` for the latest `n`; `range` for `start` up to before `stop`; `search` for those
                that fit `pattern`.
            output: Whether pairs are wanted.
            start: See `access`.
            stop: See `access`.
            n: At most so many, the latest.
            pattern: With `*` and `?`.
            unique: Each text once.
        """
        found = list(self._inputs)
        if access == "range":
            first, last = start or 0, MOST * MOST if stop is None else stop
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


_LEAVING = frozenset({"exit", "quit", "exit()", "quit()"})


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
        help="Two inherited sockets, as `4,5`, to a session elsewhere; without them one is opened here.",
    ).tag(config=True)
    opener: Callable[[JupyterOutput], Awaitable[SessionConnection]] = staticmethod(open_local)
    """Finds or makes the session; tests bring their own."""

    def __init__(self, **kwargs: Any) -> None:
        """Be ready; the session opens in the background."""
        super().__init__(**kwargs)
        self._execute_sleep = 0.0  # there is no output of our own to wait for
        self._filter = DisplayFilter(trusted=self.trust_output)
        self._page = JupyterOutput(self._filter, self._publish, self._question, self._answer)
        self._count = 1
        self._past = InputHistory()
        self._notices: list[str] = []
        self._opened: asyncio.Task[SessionConnection] | None = None
        self._own_loop: asyncio.AbstractEventLoop | None = None
        for kind in ("comm_open", "comm_msg", "comm_close"):
            self.shell_handlers[kind] = self.comm_request
        self.control_handlers.pop("debug_request", None)

    @property
    def banner(self) -> str:  # type: ignore[override]  # it depends on what has opened by now
        """What a console shows first."""
        opened = self._opened
        level = opened.result().level if opened is not None and _succeeded(opened) else ""
        where = f" at level {level}" if level else ""
        return (
            f"aisotools {self.implementation_version}: cells run in a sandbox{where}, not on this computer."
        )

    @property
    def kernel_info(self) -> dict[str, Any]:
        """What clients are told; there is neither a debugger nor a subshell."""
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
        """Cells that are kept count, and no others; see `do_execute`."""

    def start(self) -> None:
        """Serve, and open the session meanwhile."""
        super().start()
        self._own_loop = asyncio.get_event_loop()
        self._own_loop.add_signal_handler(signal.SIGINT, self._interrupt_soon)
        self._opened = self._own_loop.create_task(self._open())

    async def _open(self) -> SessionConnection:
        if self.attached:
            wire, pids = map(int, self.attached.split(","))
            assert isinstance(self.parent, SandboxKernelApp)
            path = self.parent.abs_connection_file
            opened = await open_remote(wire, pids, self._page, path, self.io_loop.stop)
        else:
            opened = await type(self).opener(self._page)
        self._count = opened.count
        self._notices += opened.notices
        return opened

    def pre_handler_hook(self) -> None:
        """Nothing: the signal for interrupts has a handler for good."""

    def post_handler_hook(self) -> None:
        """Nothing either."""

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
        kept = store_history and not silent
        count = self._count
        if not code.strip():
            return self._reply(count, {})
        manner = ExecuteOptions(
            silent=silent,
            store_history=kept,
            count=count,
            stdin=bool(allow_stdin),
            comms=self.trust_output,
        )
        cell = CellRequest(call_id=uuid.uuid4().hex, code=code, manner=manner)
        self._page.begin(cell.call_id, Request(ident=self._ident(), parent=self.get_parent("shell")), count)
        outcome = await self._outcome(cell)
        if kept:
            self._past.add(count, code)
            self._count += 1
        payload, error = self._page.end(cell.call_id, outcome)
        if error is not None:
            return {**error, "status": "error", "execution_count": count, "payload": payload}
        if code.strip() in _LEAVING:
            payload.append({"source": "ask_exit", "keepkernel": False})
        expressions = dict.fromkeys(user_expressions or {}, _NO_EXPRESSIONS)
        return self._reply(count, {"payload": payload, "user_expressions": expressions})

    async def _outcome(self, cell: CellRequest) -> CellResult:
        try:
            opened = await self._session()
        except Exception as error:  # whatever keeps the session from opening is told in every cell
            return CellResult(error={"ename": type(error).__name__, "evalue": str(error), "traceback": ""})
        notices, self._notices = self._notices, []
        for notice in notices:
            self._page.say(cell.call_id, f"[{notice}]\n")
        if cell.code.strip() in _LEAVING:
            return CellResult()
        return await opened.desk.execute(cell)

    async def do_complete(self, code: str, cursor_pos: int | None) -> dict[str, Any]:
        """Ask the worker what may stand at the cursor."""
        cursor = len(code) if cursor_pos is None else cursor_pos
        found = Completion(start=cursor, end=cursor)
        if (desk := await self._desk()) is not None:
            found = await desk.complete(code, cursor)
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
        omit_sections: object = (),  # noqa: ARG002 - all sections are told
    ) -> dict[str, Any]:
        """Ask the worker what the object at the cursor is."""
        desk = await self._desk()
        text = None if desk is None else await desk.inspect(code, cursor_pos, detail_level)
        data = {} if text is None else {"text/plain": self._filter.text(text)}
        return {"status": "ok", "found": bool(data), "data": data, "metadata": {}}

    async def do_is_complete(self, code: str) -> dict[str, Any]:
        """Ask the worker whether code can run as it is."""
        desk = await self._desk()
        found = CodeCompleteness() if desk is None else await desk.is_complete(code)
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
        """Tell what was typed here."""
        return {"status": "ok", "history": self._past.tell(hist_access_type, output=output, **how)}

    async def comm_request(self, _stream: Any, ident: Any, message: Mapping[str, Any]) -> None:
        """A page's message to a widget: given to it if a person trusts the notebook, else dropped."""
        if not self.trust_output:
            return
        call_id = uuid.uuid4().hex
        self._page.begin(call_id, Request(ident=ident, parent=message), self._count)
        manner = ExecuteOptions(comms=True, store_history=False)
        buffers = [bytes(buffer) for buffer in message.get("buffers", ())]
        kind = str(message["header"]["msg_type"])
        desk = await self._desk()
        if desk is not None:
            await desk.message(
                CellRequest(call_id=call_id, code="", manner=manner), kind, message["content"], buffers
            )

    async def interrupt_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Stop the running cell. Runs on the thread of the control channel."""
        assert self._own_loop is not None
        self._own_loop.call_soon_threadsafe(self._interrupt_soon)
        self._messages.send(stream, "interrupt_reply", {"status": "ok"}, parent, ident=ident)

    def _interrupt_soon(self) -> None:
        if self._opened is not None and _succeeded(self._opened):
            task = asyncio.ensure_future(self._opened.result().desk.interrupt())
            _KEPT.add(task)
            task.add_done_callback(_KEPT.discard)

    async def do_shutdown(self, restart: bool) -> dict[str, Any]:
        """Close the session. Runs on the thread of the control channel."""
        assert self._own_loop is not None
        closing = asyncio.run_coroutine_threadsafe(self._close(), self._own_loop)
        await asyncio.wait_for(asyncio.wrap_future(closing), timeout=10.0)
        return {"status": "ok", "restart": restart}

    async def _close(self) -> None:
        if self._opened is None:
            return
        if self._opened.done():
            if _succeeded(self._opened):
                await self._opened.result().close()
            return
        self._opened.cancel()

    async def _session(self) -> SessionConnection:
        assert self._opened is not None
        opened = self._opened
        if opened.done() and not _succeeded(opened):
            assert self._own_loop is not None
            opened = self._opened = self._own_loop.create_task(self._open())
        return await asyncio.shield(opened)

    async def _desk(self) -> KernelBackend | None:
        """The session's desk; None if it cannot be opened, which the next cell will tell."""
        try:
            return (await self._session()).desk
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

    def _publish(self, message: Message, request: Request) -> None:
        self._messages.send(
            self.iopub_socket,
            message.type,
            dict(message.content),
            parent=dict(request.parent),
            ident=self._topic(message.type),
            metadata=dict(message.metadata or {}),
            buffers=list(message.buffers) or None,
        )

    def _question(self, content: dict[str, Any], request: Request) -> None:
        parent = dict(request.parent)
        self._messages.send(self.stdin_socket, "input_request", content, parent=parent, ident=request.ident)

    def _answer(self) -> Mapping[str, Any] | None:
        _, reply = self._messages.recv(self.stdin_socket, zmq.NOBLOCK)
        return reply

    @staticmethod
    def _reply(count: int, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": "ok", "execution_count": count, "payload": [], "user_expressions": {}, **more}


_KEPT: set[Any] = set()
_NO_EXPRESSIONS = {
    "status": "error",
    "ename": "NotSupported",
    "evalue": "This kernel evaluates no expressions beside a cell; put them into the cell.",
    "traceback": [],
}


def _succeeded(task: asyncio.Task[SessionConnection]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


class SandboxKernelApp(IPKernelApp):
    """Starts a front as Jupyter starts kernels."""

    name = "aisotools-front"
    kernel_class = SandboxKernel
    outstream_class: Any = None  # nothing that this process prints is for the page
    classes: Any = [SandboxKernel]  # noqa: RUF012 - as traitlets wants it

    def init_sockets(self) -> None:
        """Encrypt also what nobody else has made keys for, as a server does."""
        if self.curve_secretkey is None and "attached" in self.config.Front:
            self.curve_publickey, self.curve_secretkey = zmq.curve_keypair()
        super().init_sockets()

    def init_control(self, context: Any) -> None:
        """Requests are taken by the main loop, which is always free."""
        super().init_control(context)
        self.shell_channel_thread.io_loop.close()
        self.shell_channel_thread = None

    def init_signal(self) -> None:
        """The front itself handles the signal for interrupts, once it runs."""

    def init_path(self) -> None:
        """The current folder is the notebook's: nothing is ever imported from there."""

    def init_pdb(self) -> None:
        """No code of a user runs here."""


def main() -> None:
    """Run a front; the arguments are those of a Jupyter kernel."""
    from aisotools.sandbox.process.spawn import server

    os.umask(0o077)
    if not any(argument.startswith("--SandboxKernel.attached") for argument in sys.argv):
        server()  # gets ready while everything else is set up
    app = SandboxKernelApp.instance()
    app.initialize()
    app.start()


if __name__ == "__main__":
    main()
