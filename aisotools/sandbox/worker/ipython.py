"""The worker's IPython shell: its output goes to the record of the running call.

The shell is a plain `InteractiveShell`, built and warmed once in the fork server, so that a worker has it at
once. Completion and inspection run in the worker as tools of our own, so that whatever they meet there (a
property that never returns) is stopped like any other call. The host asks through `notebook.kernel.session`,
which checks the answers.
"""

from __future__ import annotations

import asyncio
import base64
import builtins
import contextlib
import functools
import getpass
import itertools
import os
import subprocess
import sys
import tempfile
import traceback
import types
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import comm
from IPython.core.compilerop import CachingCompiler
from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import TryNext
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from IPython.utils.tokenutil import token_at_cursor
from traitlets import Type

from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Json, ToolResult
from aisotools.sandbox.results import cut
from aisotools.sandbox.worker.output import (
    CallRecord,
    ExecuteOptions,
    Recorder,
    Stream,
    escape_surrogates,
    install_comms,
    json_bundle,
    no_input_error,
    strip_ansi,
)

MAX_COMPLETIONS = 1_000
"""Completions that are returned for one request."""

_OWN_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep
_MAX_MESSAGE_CHARS = 10_000
_MAX_TRACEBACK_CHARS = 100_000
# Lines of the traceback of an interrupted call.
_BRIEF_LINES = 20
# Causes of an exception whose tracebacks are cleaned.
_MAX_CAUSES = 20


class _Publisher(DisplayPublisher):
    """Records what is displayed in the running call."""

    recorder: Recorder

    def publish(  # type: ignore[override]  # the base takes deprecated arguments as well
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        *,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        flush()
        display_id = str((transient or {}).get("display_id", ""))
        record = self.recorder.current()
        record.display(data, display_id=display_id, update=update, metadata=metadata)

    def clear_output(self, wait: bool = False) -> None:
        flush()
        self.recorder.current().clear(wait=wait)


class _DisplayHook(DisplayHook):
    """Records the value of the last expression of the running call."""

    recorder: Recorder

    def write_output_prompt(self) -> None:
        """Write no prompt: the result is a value, not text."""

    def write_format_data(self, format_dict: Mapping[str, Any], md_dict: Any = None) -> None:
        flush()
        self.recorder.current().show_result(format_dict, md_dict)

    def finish_displayhook(self) -> None:
        self._is_active = False
        flush()


class _Compiler(CachingCompiler):
    """Names cells as ipykernel does: after a file that does not exist.

    IPython formats tracebacks of such names several times faster, and some libraries recognize user code by
    them.
    """

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:  # noqa: ARG002 - IPython's
        folder = os.path.join(tempfile.gettempdir(), f"ipykernel_{os.getpid()}")
        return os.path.join(folder, f"{zlib.crc32(raw_code.encode('utf-8', 'backslashreplace'))}.py")


class ZMQInteractiveShell(InteractiveShell):
    """The worker's shell.

    It has the name of ipykernel's shell, because pandas and rich look for that name to detect a notebook.
    """

    compiler_class = Type(_Compiler)
    displayhook_class = Type(_DisplayHook)
    display_pub_class = Type(_Publisher)
    recorder: Recorder
    display_failed = False
    """Whether the last traceback came from displaying a value."""

    def init_history(self) -> None:
        """Keep no history file; inputs stay in memory for tracebacks."""
        self.config.HistoryManager.enabled = False
        super().init_history()  # type: ignore[no-untyped-call]  # IPython's

    def init_user_ns(self) -> None:
        """Fill the namespace, also after `%reset`."""
        super().init_user_ns()  # type: ignore[no-untyped-call]  # IPython's
        # Processes that multiprocessing starts afresh ask the main module for it. IPython removes it.
        self.user_ns["__spec__"] = self.user_ns_hidden["__spec__"] = None

    def enable_gui(self, gui: Any = None) -> None:
        """Do nothing: no event loop of a toolkit runs here. `%matplotlib inline` calls this all the same."""

    def set_next_input(self, s: str, replace: bool = False) -> None:
        """Offer text for the next cell, as `%load` does; the listener decides."""
        listener = self.recorder.current().listener
        if listener is not None:
            listener.show("next_input", {"text/plain": escape_surrogates(s)}, replace=replace)
        else:
            super().set_next_input(s, replace)

    def ask_exit(self) -> None:
        """End the cell, for `exit` and `quit`; the worker stays."""
        raise SystemExit

    def _get_exc_info(self, exc_tuple: Any = None) -> tuple[type, BaseException, Any]:
        kind, error, trace = super()._get_exc_info(exc_tuple)  # type: ignore[no-untyped-call]  # IPython's
        cause = error.__cause__ or error.__context__
        # Bounded: user code can make a chain of causes that ends in itself.
        for _ in range(_MAX_CAUSES):
            if cause is None:
                break
            cause.__traceback__ = strip_own_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        return kind, error, strip_own_frames(trace)

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        """Show what was raised; of an interrupt briefly, because somebody waits for the call to end."""
        kind, error, trace = self._get_exc_info(exc_tuple)
        if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
            self._showtraceback(kind, error, self._brief_traceback(kind, trace))
        else:
            super().showtraceback(exc_tuple, *args, **kwargs)

    def _brief_traceback(self, kind: type, trace: types.TracebackType | None) -> list[str]:
        # IPython's own formatter parses every file in the traceback, which takes longer than the grace
        # period.
        lines = []
        for frame in traceback.extract_tb(trace)[1:]:  # the first one is IPython's
            name = self.compile.format_code_name(frame.filename)
            file = " ".join(name) if name is not None else f'File "{frame.filename}"'
            lines.append(f"{file}, line {frame.lineno}" + (f", in {frame.name}" if name is None else ""))
            lines.append(f"    {frame.line}")
        return ["Traceback (most recent call last):", *lines[-_BRIEF_LINES:], kind.__name__]

    def _format_exception_for_storage(self, exception: BaseException, *_: Any, **__: Any) -> dict[str, Any]:
        # IPython would format every traceback a second time, for a history that is disabled here.
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        flush()
        self.display_failed = self.displayhook.is_active
        try:
            message = str(evalue)
        except Exception as error:
            message = f"(its message cannot be shown: {type(error).__name__})"
        trace = cut(escape_surrogates("\n".join(stb)), _MAX_TRACEBACK_CHARS)[0]
        fields = {
            "ename": escape_surrogates(etype.__name__),
            "evalue": cut(escape_surrogates(message), _MAX_MESSAGE_CHARS)[0],
        }
        record = self.recorder.current()
        record.error = {**fields, "traceback": strip_ansi(trace)}
        if record.listener is not None:
            record.listener.show("error", {**fields, "traceback": trace})

    @contextlib.contextmanager
    def _tee(self, channel: str) -> Iterator[None]:  # noqa: ARG002 - the name is IPython's
        # IPython's own would store every output of every cell in memory for good.
        yield

    def system(self, cmd: str) -> None:
        """Run a command for `!cmd`, without a terminal, and print its output line by line."""
        command = self.var_expand(cmd, depth=1)  # type: ignore[no-untyped-call]  # IPython's
        # What the command leaves behind ends with the session at the latest: the host finds it among the
        # worker's descendants.
        with subprocess.Popen(
            ["/bin/bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    sys.stdout.write(line)
            except BaseException:
                # Interrupted: the command must not outlive its cell.
                process.kill()
                raise
        self.user_ns["_exit_code"] = process.returncode

    def run_script(self, program: str, line: str, cell: str) -> None:
        """Run a script for `%%bash` and `%%sh`; with options, by IPython's own magic.

        IPython's own takes a thread, and does not survive an interrupt. The program writes to the worker's
        descriptors, which the host reads.
        """
        if line.strip():
            self.run_cell_magic("script", f"{program} {line}", cell)  # type: ignore[no-untyped-call]  # IPython's
            return
        flush()
        with tempfile.TemporaryFile() as script:
            script.write(cell.encode())
            script.seek(0)
            status = subprocess.run([program], stdin=script, check=False).returncode
        if status:
            raise subprocess.CalledProcessError(status, cell.encode())


def flush() -> None:
    """Send everything printed so far, so that what follows arrives after it."""
    sys.stdout.flush()
    sys.stderr.flush()


def build(recorder: Recorder) -> ZMQInteractiveShell:
    """Create the shell of this process, and install its streams, `input` and widget messages."""
    _install_input(recorder)
    install_comms(lambda: recorder.current().listener)
    sys.stdout = Stream("stdout", 1, recorder)
    sys.stderr = Stream("stderr", 2, recorder)
    with tempfile.TemporaryDirectory(prefix="aisotools-profile-") as folder:
        # IPython needs a profile folder while the shell is built, and not afterwards.
        profile = ProfileDir.create_profile_dir(folder)
        shell = ZMQInteractiveShell.instance(ipython_dir=folder, profile_dir=profile, colors="nocolor")
    parts: tuple[Any, ...] = (shell, shell.display_pub, shell.displayhook)
    for part in parts:
        part.recorder = recorder
    shell.autoawait = True
    register: Any = shell.register_magic_function  # untyped decorators
    for program in ("bash", "sh"):
        register(functools.partial(shell.run_script, program), "cell", program)
    shell.set_hook("show_in_pager", _show_page, 1)  # type: ignore[no-untyped-call]  # IPython's
    sys.displayhook = shell.displayhook
    return shell


def warm(shell: ZMQInteractiveShell) -> None:
    """Run a little of everything, so that workers forked later find it imported and compiled."""
    recorder = shell.recorder
    recorder.main = CallRecord(call_id="warm")
    for code in ("1+1", "print(1)", "1/0", "%pwd", "import asyncio", "x = !true"):
        shell.run_cell(code)  # type: ignore[no-untyped-call]  # IPython's
    shell.reset(new_session=False)  # type: ignore[no-untyped-call]  # IPython's
    shell.execution_count = 1
    recorder.main = None


async def run_cell(shell: ZMQInteractiveShell, code: str) -> None:
    """Run one cell; what it prints and displays goes to the current record.

    The whole cell runs in the current task: top-level `await` works, and sync code holds the loop.
    """
    try:
        transformed, problem = shell.transform_cell(code), None  # type: ignore[no-untyped-call]  # IPython's
    except Exception:
        transformed, problem = code, sys.exc_info()
    result = None
    listener = shell.recorder.current().listener
    options = listener.options if listener is not None else ExecuteOptions()
    shell.colors = "neutral" if listener is not None else "nocolor"
    if options.count is not None:
        shell.execution_count = options.count
    try:
        result = await shell.run_cell_async(
            code,
            store_history=options.store_history,
            silent=options.silent,
            transformed_cell=transformed,
            preprocessing_exc_tuple=problem,
        )
    finally:
        shell.events.trigger("post_execute")
        shell.events.trigger("post_run_cell", result)
        record = shell.recorder.current()
        # `%tb` shows a traceback in a cell that succeeds: it is output, not the cell's error.
        succeeded = result is not None and result.success and not shell.display_failed
        if succeeded and record.error is not None and listener is None:
            print(record.error["traceback"], file=sys.stderr)
        if succeeded:
            record.error = None
        flush()


def strip_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Return a traceback without our own frames at its end, which raise on behalf of user code."""
    last = step = trace
    while step is not None:
        if not step.tb_frame.f_code.co_filename.startswith(_OWN_FOLDER):
            last = step
        step = step.tb_next
    if last is not None:
        last.tb_next = None
    return trace


def _show_page(shell: ZMQInteractiveShell, data: str | Mapping[str, Any], *_: Any, **__: Any) -> None:
    """Show the help of `obj?` in the listener's pager; without a listener IPython prints it."""
    listener = shell.recorder.current().listener
    if listener is None:
        raise TryNext
    listener.show("page", json_bundle(data if isinstance(data, Mapping) else {"text/plain": data}))


def _install_input(recorder: Recorder) -> None:
    """Make `input` and `getpass` ask the listener of the call."""

    def ask(prompt: object, *, password: bool) -> str:
        listener = recorder.current().listener
        if listener is None:
            raise no_input_error(prompt)
        return listener.ask(prompt, password=password)

    def read_line(prompt: object = "", /) -> str:
        """Read a line from the person who runs this cell."""
        return ask(prompt, password=False)

    def read_password(
        prompt: object = "Password: ",
        stream: object = None,  # noqa: ARG001 - as getpass has it
        **_: object,
    ) -> str:
        """Read a line from the person who runs this cell, without showing it."""
        return ask(prompt, password=True)

    builtins.input = read_line
    getpass.getpass = read_password


# ---- questions about the variables

_Answer = Callable[[ZMQInteractiveShell, Mapping[str, Json]], Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellQuery:
    """A tool that only the host calls: queries the worker's shell, or hands it a message."""

    name: str
    description: str
    answer: _Answer

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return a schema that accepts any object: the host makes the arguments itself."""
        return {"type": "object"}

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Return what `answer` returns for the worker's shell, as JSON.

        Raises:
            ToolError: If this process is not a sandbox worker.
        """
        shell = context.metadata_get("shell")
        if not isinstance(shell, ZMQInteractiveShell):
            raise ToolError(f"{self.name} runs only in a sandbox worker; this process is not one.")
        return ToolResult.json(self.answer(shell, arguments), content="")


def _complete(shell: ZMQInteractiveShell, arguments: Mapping[str, Json]) -> Json:
    # jedi reads the source files of a library, which takes five seconds for a data frame, in every sandbox
    # anew. The objects themselves are here and can be inspected.
    shell.Completer.use_jedi = False
    code, cursor = arguments["code"], arguments["cursor"]
    with provisionalcompleter():
        completions = shell.Completer.completions(code, cursor)
        matches = list(itertools.islice(rectify_completions(code, completions), MAX_COMPLETIONS))
    return {
        "start": matches[0].start if matches else cursor,
        "end": matches[0].end if matches else cursor,
        "matches": [
            {
                "text": escape_surrogates(m.text),
                "type": escape_surrogates(m.type or ""),
                "signature": escape_surrogates(m.signature or ""),
            }
            for m in matches
        ],
    }


def _inspect(shell: ZMQInteractiveShell, arguments: Mapping[str, Json]) -> Json:
    name = token_at_cursor(arguments["code"], arguments["cursor"])
    shell.colors = "neutral"
    try:
        bundle = shell.object_inspect_mime(name, detail_level=arguments["detail"])  # type: ignore[no-untyped-call]  # IPython's
    except KeyError:
        return None
    text = bundle.get("text/plain", "")
    return json_bundle({"text/plain": text})


def _is_complete(shell: ZMQInteractiveShell, arguments: Mapping[str, Json]) -> Json:
    status, indent = shell.input_transformer_manager.check_complete(arguments["code"])
    return {"status": status, "indent": indent or 0}


def _take_message(_shell: ZMQInteractiveShell, arguments: Mapping[str, Json]) -> Json:
    message = {
        "content": arguments["content"],
        "metadata": {},
        "buffers": [memoryview(base64.b64decode(buffer)) for buffer in arguments["buffers"]],
    }
    getattr(comm.get_comm_manager(), arguments["kind"])(None, None, message)
    return None


complete = ShellQuery(name="complete", description="Complete the code at the cursor.", answer=_complete)
inspect = ShellQuery(name="inspect", description="Describe the object at the cursor.", answer=_inspect)
is_complete = ShellQuery(
    name="is_complete", description="Check whether code is complete.", answer=_is_complete
)
take_message = ShellQuery(
    name="take_message", description="Deliver a message to a widget.", answer=_take_message
)
