"""The tool `sandbox_bash`: run a shell command in the sandbox, and stop it at its timeout."""

from __future__ import annotations

import asyncio
import codecs
import dataclasses
import errno
import os
import posixpath
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from pydantic import Field

from aisotools.builtin import programs, tasks
from aisotools.builtin.file_operations import translate_errors
from aisotools.core.exceptions import ToolError, WorkerBroken
from aisotools.core.protocols import ToolContext
from aisotools.core.truncation import CAP, HeadTailBuffer, looks_binary
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.sandbox.confinement import landlock
from aisotools.sandbox.confinement.denied_reads import limit_reads
from aisotools.sandbox.process.tree import signal_group, unreaped
from aisotools.tools.adapter import register_builtin
from aisotools.tools.function import tool
from aisotools.workspace.loaded_names import loaded_names
from aisotools.workspace.workspace import Workspace

_DEFAULT_TIMEOUT_MS = 30_000
_TIMEOUT_EXIT_CODE = 124
"""As GNU timeout reports it."""
_NO_EXIT_CODE = -1
_LOST_STATUS = (
    "[the command ended, and whether it succeeded is not known: code in this Python ignores SIGCHLD, or "
    "waits for children that are not its own, and has taken the exit status]"
)
_KILLED_EXIT_CODE = 128 + signal.SIGKILL
_CPU_TOLERANCE = 0.9
"""The kernel compares processor time in ticks with the limit, and reports it more finely."""
_DRAIN_S = 0.2
"""Wait for output after the command ended. A process that it left behind may hold the pipes open for ever."""
_DEADLINE_MARGIN_S = 0.5
_GIT = re.compile(r"git\b")
_GIT_SETTINGS = ".git/config"
_STREAMS = ("stdout", "stderr")
_MERE_SETTING = re.compile(
    r"(?:CUDA_VISIBLE_DEVICES|[A-Z]{2,20}_NUM_THREADS|OMP_THREAD_LIMIT|PYTHONHASHSEED|TOKENIZERS_PARALLELISM"
    r"|NO_COLOR|COLUMNS|LINES)=[0-9,:-]{0,100}"
    r"|CUDA_VISIBLE_DEVICES=(?:(?:GPU|MIG)-[0-9a-f-]{1,36},?){1,16}"
    r"|PYTHONHASHSEED=random|TOKENIZERS_PARALLELISM=(?:true|false)"
)
GIT_ENVIRONMENT = {"GIT_OPTIONAL_LOCKS": "0"}
"""What git is told in every command: `git status` notes nothing in the index, and runs no hook for that."""


# ---- the tool


def _deadline_s(arguments: Mapping[str, Any]) -> float:
    timeout = arguments.get("timeout", _DEFAULT_TIMEOUT_MS)
    # The command is stopped at its timeout in the worker. The gate's own deadline is a safety net behind it.
    return (timeout if isinstance(timeout, int | float) else _DEFAULT_TIMEOUT_MS) / 1000 + _DEADLINE_MARGIN_S


def _facts(arguments: Mapping[str, Json]) -> Facts:
    from aisotools.policy.shell.classify import shell_facts  # heavy, and the worker runs commands only

    command, workdir = arguments.get("command"), arguments.get("workdir", ".")
    facts = Facts()
    if isinstance(command, str):
        facts = shell_facts(command, str(workdir))
        if not facts.certain:
            # Commands that others run, as `env -C folder make` does, are among those of the facts.
            text = "\n".join((command, *facts.commands))
            names = (posixpath.normpath(posixpath.join(str(workdir), name)) for name in loaded_names(text))
            facts = dataclasses.replace(facts, scripts=tuple((name, "") for name in names))
        elif facts.hosts and any(map(_GIT.match, facts.commands)):
            # Which machine `origin` is stands in the settings.
            facts = dataclasses.replace(facts, scripts=((_GIT_SETTINGS, ""),))
    if arguments.get("background") is not True:
        return facts
    # It goes on after the call, and the input that it gets later is not known now.
    effect = Effect.LOCAL_MUTATION if facts.effect is Effect.READ_ONLY else facts.effect
    return dataclasses.replace(facts, effect=effect, background=True, without_dashes=None)


def _effect(arguments: Mapping[str, Json]) -> Effect:
    return _facts(arguments).effect


def _name_to_nobody(pid: int) -> None:
    """Name a program where no host asks whose it is: at a gateway, and in tests."""


@tool(
    name="sandbox_bash",
    classify=_effect,
    gather_facts=_facts,
    import_path="aisotools.builtin.shell:sandbox_bash",
    concurrency="overlap",
    programs="named",
    timeout_s=_deadline_s,
    examples=[
        ({"command": "wc -l *.csv"}, "how many lines do the CSV files have?"),
        ({"command": "git log -3"}, "Run `git log -3`."),
        ({"command": "du -sh ."}, "Run the command du -sh . in the shell."),
    ],
)
async def sandbox_bash(
    command: Annotated[
        str,
        Field(
            description="The command line, run by bash. Pipes, redirections and several lines work.",
            min_length=1,
        ),
    ],
    timeout: Annotated[  # noqa: ASYNC109 - part of the tool's schema
        int,
        Field(
            description="Milliseconds after which the command and all it started is stopped.",
            ge=1,
            le=3_600_000,
        ),
    ] = _DEFAULT_TIMEOUT_MS,
    workdir: Annotated[
        str,
        Field(
            description="Folder to run in, relative to the workspace; the workspace itself by default.",
            max_length=4096,
        ),
    ] = ".",
    background: Annotated[
        bool,
        Field(
            description="Start the command as a task, without timeout, and return at once; then use "
            "task_output, task_input and task_stop. For servers, watchers and long jobs."
        ),
    ] = False,
    *,
    context: ToolContext,
) -> ToolResult:
    """Run a shell command in the sandbox and return its output and exit code.

    Commands start in the workspace folder (also in $WORKSPACE), which persists from call to call; shell
    variables, `cd` and what Python sets in os.environ do not. Only the workspace and $TMPDIR can be written,
    file modes cannot be changed afterwards, there is no terminal and no network, but for the sandbox's own
    127.0.0.1 at level isolated, and standard input is empty. A non-zero exit code or a timeout is an error.
    """
    folder = _folder(context, workdir)
    if background:
        return await _start_task(command, folder, context)
    started_s = time.monotonic()
    processor_s = _processor_time_of_children_s()
    output = _Output(context.output_caps.stream_bytes)
    protocol = _CommandProtocol(output)
    config = context.sandbox_config
    denied = config.get("unreadable")
    reads = limit_reads(config, denied) if denied else None
    with _explain_failures(command):
        process = programs.spawn(
            _shell(command),
            cwd=folder,
            env=_environment(context),
            protocol=protocol,
            name_program=context.metadata.get("name_program", _name_to_nobody),
            read_only=_must_not_write(context),
            reads=reads,
        )
    timed_out = False
    try:
        async with asyncio.timeout(timeout / 1000):
            await protocol.exited
    except TimeoutError:
        timed_out = True
    finally:
        # Three ways lead here: the command ended, its timeout passed, or the call was cancelled. In the last
        # two it still runs, and is killed with its process group.
        if process.get_returncode() is None:
            signal_group(process.get_pid(), signal.SIGKILL)
        await asyncio.wait([protocol.drained], timeout=_DRAIN_S)
        process.close()
    # Whatever number there is for a program whose exit status was lost, it is made up.
    status = None if process.get_pid() in unreaped else process.get_returncode()
    code = _TIMEOUT_EXIT_CODE if timed_out else _exit_code(status)
    elapsed_ms = round((time.monotonic() - started_s) * 1000)
    result = _build_result(output, code, elapsed_ms, timeout if timed_out else None)
    if code == _KILLED_EXIT_CODE:
        used_s = _processor_time_of_children_s() - processor_s
        result = explain_kill(result, used_s, _processor_time_limit_s())
    if _must_not_write(context):
        result = _explain_denial(result, reads).with_metadata(read_only=True)
    return result.with_metadata(**{CAP: "shell"}, command=command, timed_out=timed_out, streams_taken=True)


async def _start_task(command: str, folder: str, context: ToolContext) -> ToolResult:
    task = tasks.Task(command, context.agent_id)
    with _explain_failures(command):
        program = programs.KeptProgram(
            _shell(command),
            cwd=folder,
            env=_environment(context),
            protocol=task,
            name_program=context.metadata.get("name_program", _name_to_nobody),
        )
        try:
            await program.started()
        except BaseException:
            program.close()
            task.forget()
            raise
    task.attach(program)
    content = f"Task {task.id} runs in the background (process {task.pid}). Read its output with task_output."
    return ToolResult.json(task.as_json(), content)


def _must_not_write(context: ToolContext) -> bool:
    """Return whether the command was classified read only and the kernel can enforce it."""
    return context.metadata_get("read_only") is True and landlock.abi() > 0


def _explain_denial(result: ToolResult, reads: Mapping[str, Json] | None) -> ToolResult:
    # Independent of the exit code: some commands report the error, go on and succeed.
    if "ermission denied" not in result.content:
        return result
    note = "[it was classified read only, so it ran without the right to change files]"
    if reads is not None:
        note = f"{note[:-1]}, or to read what rules of the policy deny]"
    return dataclasses.replace(result, content=f"{result.content}\n{note}")


def _processor_time_of_children_s() -> float:
    """Return the processor time of all programs of this process that have ended, in seconds."""
    import resource  # not on Windows, where this module is imported for its schema only

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _processor_time_limit_s() -> int | None:
    """Return RLIMIT_CPU in seconds; None for no limit."""
    import resource

    limit_s = resource.getrlimit(resource.RLIMIT_CPU)[0]
    return None if limit_s == resource.RLIM_INFINITY else limit_s


def explain_kill(result: ToolResult, used_s: float, limit_s: int | None) -> ToolResult:
    """Return the result of a killed command, with a note if it had used up its processor time.

    The kernel sends the same SIGKILL for a processor time limit as anybody else. Programs of commands that
    ended meanwhile count too, so the note says what was used, and is a hint.

    Args:
        result: Of the command.
        used_s: Processor time of the command and of others that ended meanwhile, in seconds.
        limit_s: RLIMIT_CPU in seconds; None for no limit.
    """
    if limit_s is None or used_s < _CPU_TOLERANCE * limit_s:
        return result
    note = f"[killed after {used_s:.1f} s of processor time: CPU time limit exceeded]"
    return dataclasses.replace(result, content=f"{result.content}\n{note}")


def _folder(context: ToolContext, workdir: str) -> str:
    workspace = Workspace(context.workspace_path)
    with translate_errors(workspace, workdir):
        if workspace.stat(workdir).kind != "directory":
            raise ToolError(
                f"workdir {workdir!r} is not a folder. Use a folder of the workspace, or leave it out.",
            )
        return str(context.workspace_path / workspace.relative(workdir))


def _shell(command: str) -> tuple[str, ...]:
    if "\0" in command:
        raise ToolError(
            "command contains a NUL character, which bash cannot take. Write '\\0' in printf's format: "
            "printf 'a\\0b'."
        )
    return "/bin/bash", "-c", command


@contextmanager
def _explain_failures(command: str) -> Iterator[None]:
    """Raise what keeps a command from being started as what the model can do about it."""
    try:
        yield
    except (ToolError, WorkerBroken):
        raise
    except ProcessLookupError:
        # It was started: only its end could not be watched any more, as its status had been taken already.
        raise ToolError(f"What the command printed was lost, and it may have run. {_LOST_STATUS}") from None
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EPERM, errno.EBADF}:
            # Bash can be started by every worker that has not given up the right to, or lost its descriptors.
            raise WorkerBroken(f"An earlier call has left it unable to start programs: {error}.") from None
        if error.errno == errno.E2BIG:
            raise ToolError(
                f"command is too long for bash ({len(command.encode()):,} bytes). Write it to a file with "
                "sandbox_write and run `bash that-file`.",
            ) from None
        raise ToolError(f"The command could not be started: {error}.", recoverable=False) from None
    except subprocess.SubprocessError as error:
        message = (
            "The command was not started: the right to change files, or to read what rules deny, could not "
            f"be taken away: {error}"
        )
        raise ToolError(message, recoverable=False) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise WorkerBroken(f"An earlier call has left it unable to start programs: {reason}.") from error


def _environment(context: ToolContext) -> dict[str, str]:
    """Return the environment of a command: that with which the worker started, and few later settings.

    Case: a command is approved to be run again, and then a call of Python sets PATH, LD_PRELOAD, LESSOPEN or
    a variable that the command names. With any of these it would be another command than was shown.

    Not covered: this runs in the worker's own Python, as does what starts the command. An earlier call that
    was allowed to run code there may have replaced functions of the interpreter, and so change how later
    commands start. They stay in the sandbox, and a restart of it ends that.
    """
    try:
        own = dict(os.environ)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise WorkerBroken(f"An earlier call has replaced os.environ: {reason}.") from error
    start = context.sandbox_config.get("environment")
    if isinstance(start, dict):
        chosen = {name: own[name] for name in own if _is_mere_setting(name, own[name])}
        own = {**{name: str(value) for name, value in start.items()}, **chosen}
    return {**{name: own[name] for name in own if not _is_obeyed_by_bash(name)}, **GIT_ENVIRONMENT}


def _is_mere_setting(name: str, value: str) -> bool:
    """Return whether a variable says by numbers which devices, or how many threads, may be used."""
    return _MERE_SETTING.fullmatch(f"{name}={value}") is not None


def _is_obeyed_by_bash(name: str) -> bool:
    return name in {"BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS"} or name.startswith("BASH_FUNC_")


class _Output:
    """Both streams of a command: the beginning and the end of each, within `cap_bytes`."""

    def __init__(self, cap_bytes: int) -> None:
        self.buffer = HeadTailBuffer.halves(cap_bytes)
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in _STREAMS}

    def add(self, stream: str, data: bytes) -> str:
        """Store `data`, and return the text of it that may be shown while the command runs."""
        # Incremental: a multi-byte character may be split between two reads.
        return self._decoders[stream].decode(self.buffer.append(data, stream))


class _CommandProtocol(asyncio.SubprocessProtocol):
    """Collects the output of a command.

    Attributes:
        exited: Done when the command ended.
        drained: Done at the end of its output, which may come much later.
    """

    def __init__(self, output: _Output) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()
        self._output = output

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        # Output over the cap is read all the same: a full pipe would block the command.
        name, stream = ("stdout", sys.stdout) if fd == 1 else ("stderr", sys.stderr)
        stream.write(self._output.add(name, data))
        stream.flush()

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - named by asyncio
        if not self.drained.done():
            self.drained.set_result(None)


def _exit_code(status: int | None) -> int:
    """Return the exit code as a shell reports it: 128 plus the signal number if a signal ended it."""
    if status is None:
        return _NO_EXIT_CODE
    return status if status >= 0 else 128 - status


def _readable(text: str) -> str:
    if looks_binary(text):
        return f"[binary output, {len(text)} characters, left out here; write it to a file or pipe it to xxd]"
    return text.rstrip("\n")


def _build_result(output: _Output, code: int, elapsed_ms: int, timeout_ms: int | None) -> ToolResult:
    """Build the result; `timeout_ms` is None unless the command was stopped at its timeout."""
    buffer = output.buffer
    stdout, stderr = buffer.text("stdout"), buffer.text("stderr")
    pieces = [_readable(stdout), _readable(stderr)]
    if buffer.dropped_bytes:
        total = f"{buffer.total_bytes} bytes and {buffer.total_lines} lines of output"
        pieces.append(f"[of {total} {buffer.dropped_bytes} bytes were dropped; write such output to a file]")
    if timeout_ms is not None:
        pieces.append(f"[timed out after {timeout_ms} ms; the command and all it started was stopped]")
    elif code == _NO_EXIT_CODE:
        pieces.append(_LOST_STATUS)
    elif code:
        pieces.append(f"[exit code {code}]")
    failed = code != 0
    return ToolResult(
        content="\n".join(filter(None, pieces)),
        is_error=failed,
        recoverable=failed,
        error_kind="failed" if failed else None,
        kind="error" if failed else "json",
        value={"stdout": stdout, "stderr": stderr, "exitCode": code, "executionTime": elapsed_ms},
    )


# Programs of a call that only reads run under a layer without write rights.
register_builtin(sandbox_bash, keeps_to_reading=True, analysis="aisotools.policy.shell.classify")
