"""The `aisotools` command: the parser of all subcommands, and `doctor`, `lab` and `kernelspec`.

The other subcommands have a module each: `log`, `mcp`, `replay`, `run`, and `tools` with `call`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aisotools.cli import log, mcp, replay, run, tools
from aisotools.cli.tools import Echo
from aisotools.core.exceptions import AisotoolsError, UsageError

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from aisotools.sandbox.confinement.detect import Detection


MAX_LINE_CHARS = 110
NO_SANDBOX = (
    "No sandbox level holds here, so a session refuses to start. To work without a sandbox, choose it "
    'explicitly: Session(level="limited") in a program, or AISOTOOLS_MIN_LEVEL=limited in the environment.'
)


def _detect() -> Detection:
    from aisotools.sandbox.confinement.detect import detect_in_subprocess

    return detect_in_subprocess()


def _exec(command: Sequence[str]) -> int:
    """Replace this process, so that signals and the terminal belong to the new program."""
    # The buffer belongs to this program, which ends here without `atexit`: what is still in it would be lost.
    sys.stdout.flush()
    os.execv(command[0], list(command))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The machine that the commands run on. Tests pass their own.

    Attributes:
        detect: Detects the sandbox level by probing, in a process of its own.
        has: Returns whether a Python module is installed.
        start: Runs a command and returns its exit status. The default replaces this process.
        is_root: Whether this process runs as root.
        package: The folder of the aisotools package.
        here: The folder for copies of the tutorials.
        echo: Prints a line of output.
    """

    detect: Callable[[], Detection] = _detect
    has: Callable[[str], bool] = lambda name: find_spec(name) is not None
    start: Callable[[Sequence[str]], int] = _exec
    is_root: bool = os.geteuid() == 0
    package: Path = Path(__file__).resolve().parents[1]
    here: Path = Path()
    echo: Callable[[str], None] = lambda line: print(line, flush=True)


def main(arguments: Sequence[str] | None = None, host: Host | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command line without the program's name. Default: that of this process.
        host: The machine to run on.

    Returns:
        The exit status: 0 for success, 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C. Some
        commands use further numbers; see their help.
    """
    parser = command_parser()
    options, extra = parser.parse_known_args(arguments)
    if extra and (options.command != "lab" or options.execute):
        parser.error(f"unrecognized arguments of {options.command}: {' '.join(extra)}")
    host = host or Host()
    try:
        return _dispatch(options, extra, host)
    except KeyboardInterrupt:
        return 130
    except (AisotoolsError, OSError) as error:
        print(f"aisotools {options.command}: {error}", file=sys.stderr)
        return 1


def _dispatch(options: argparse.Namespace, extra: Sequence[str], host: Host) -> int:
    match options.command:
        case "doctor":
            return doctor(host, as_json=options.json)
        case "lab":
            return execute(host) if options.execute else lab(host, extra)
        case "kernelspec":
            return run_kernelspec(options, host.echo)
        case "mcp":
            return mcp.run(options)
    commands: dict[str, Callable[[argparse.Namespace, Echo], int]] = {
        "log": log.run,
        "replay": replay.run,
        "run": run.run,
        "tools": tools.tools,
        "call": tools.call_tool,
    }
    return commands[options.command](options, host.echo)


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = argparse.ArgumentParser(
        "aisotools",
        description="Tool calling you can see, approve, interrupt and undo, in a notebook.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version("aisotools"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_doctor_parser(commands)
    log.add_parser(commands)
    _add_kernelspec_parser(commands)
    mcp.add_parser(commands)
    replay.add_parser(commands)
    run.add_parser(commands)
    tools.add_parsers(commands)
    _add_lab_parser(commands)
    return parser


def _add_doctor_parser(commands: Any) -> None:
    parser = tools.add_subcommand(
        commands,
        "doctor",
        "print the sandbox level of this machine, and what it does and does not protect",
        epilog="Exit status: 0 if the level is guarded, confined or isolated, 1 if not.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def doctor(host: Host, *, as_json: bool = False) -> int:
    """Print the sandbox level of this machine.

    Args:
        host: The machine.
        as_json: Print one JSON object instead of text, with the keys level, holds, probes, protects,
            leaves_open, missing, and the versions.

    Returns:
        0 if the level is `guarded` or stronger, 1 otherwise.
    """
    from aisotools.sandbox.confinement.detect import ENABLED_BY, PROTECTS
    from aisotools.session.status import missing_levels

    detection = host.detect()
    holds = detection.level not in {None, "limited"}
    protects, leaves_open = PROTECTS[detection.level or "limited"]
    versions = {
        "aisotools": version("aisotools"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    if as_json:
        probes = [{"name": probe.name, "ok": probe.ok, "detail": probe.detail} for probe in detection.probes]
        report: dict[str, Any] = {
            "level": detection.level,
            "holds": holds,
            "probes": probes,
            "protects": protects if holds else "",
            "leaves_open": leaves_open,
            "missing": list(missing_levels(detection.level, detection)),
            **versions,
        }
        host.echo(json.dumps(report, indent=2))
        return 0 if holds else 1

    host.echo(f"Sandbox level: {detection.level if holds else 'none'}\n\nProbes:")
    width = max((len(probe.name) for probe in detection.probes), default=0)
    for probe in detection.probes:
        host.echo(f"  {'yes' if probe.ok else 'no ':3}  {probe.name:{width}}  {probe.detail}".rstrip())
        if not probe.ok and probe.name in ENABLED_BY:
            host.echo(_indent(f"It takes: {ENABLED_BY[probe.name]}", width + 9))
    host.echo("")
    if not holds:
        host.echo(_wrap(NO_SANDBOX) + "\n")
    host.echo(_wrap(f"What {'it' if holds else '`limited`'} ensures: {protects}"))
    host.echo(_wrap(f"What it leaves open: {leaves_open}"))
    host.echo("\n" + ", ".join(f"{name} {number}" for name, number in versions.items()))
    return 0 if holds else 1


def _wrap(text: str) -> str:
    return textwrap.fill(text, MAX_LINE_CHARS, subsequent_indent="  ", break_on_hyphens=False)


def _indent(text: str, columns: int) -> str:
    indent = " " * columns
    return textwrap.fill(
        text, MAX_LINE_CHARS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


# -- lab

FIRST_TUTORIAL = "01-first-calls.ipynb"
COPY_NAME = "aisotools-tutorials"
NO_LAB = 'JupyterLab is not installed. Install it with: pip install "aisotools[lab]"'
TUTORIAL_CELL_TIMEOUT_S = 120  # the slowest cell of the tutorial takes a few seconds
MAX_OUTPUT_LINES = 8  # of each cell

_GENERATED = {"workspace", ".ipynb_checkpoints", "__pycache__"}
"""Folders that appear when the tutorials run; they are not copied."""


def _add_lab_parser(commands: Any) -> None:
    parser = tools.add_subcommand(
        commands,
        "lab",
        "open JupyterLab on the first tutorial",
        more="Unknown arguments are passed on to JupyterLab.",
    )
    parser.add_argument(
        "--execute", action="store_true", help="run the tutorial without JupyterLab and print the output"
    )


def lab(host: Host, arguments: Sequence[str] = ()) -> int:
    """Open JupyterLab on the first tutorial.

    In a checkout, the tutorial opens in place. From an installed package, it is copied to the folder
    `aisotools-tutorials` in the current one; files that exist there are not overwritten.

    Args:
        host: The machine.
        arguments: More arguments for JupyterLab.

    Returns:
        JupyterLab's exit status, or 1 if there is no JupyterLab.

    Raises:
        UsageError: If this installation has no tutorials.
    """
    if not host.has("jupyterlab"):
        host.echo(NO_LAB)
        return 1
    folder = _tutorials(host)
    if folder.parent == host.package:
        folder = _copy(folder, host.here.resolve() / COPY_NAME)
        host.echo(f"The tutorials are in {folder}. Your changes there are kept.")
    # The tutorial is the default URL and not an argument: JupyterLab prints the default URL, so that it also
    # opens where no browser was started.
    location = [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{FIRST_TUTORIAL}"]
    command = [sys.executable, "-m", "jupyterlab", *location, *arguments]
    if host.is_root and "--allow-root" not in arguments:
        host.echo("JupyterLab refuses to run as root by default. Starting it with --allow-root.")
        command.append("--allow-root")
    return host.start(command)


def execute(host: Host) -> int:
    """Run the first tutorial without JupyterLab, in a temporary copy of its folder, and print the output.

    Args:
        host: The machine.

    Returns:
        0 if every cell succeeded, or raised an error that the tutorial expects; 1 otherwise.

    Raises:
        UsageError: If this installation has no tutorials.
    """
    if not host.has("nbclient"):
        host.echo(NO_LAB)
        return 1
    with tempfile.TemporaryDirectory(prefix="aisotools-") as temporary:
        folder = _copy(_tutorials(host), Path(temporary) / COPY_NAME)
        return _run(folder / FIRST_TUTORIAL, host.echo)


def _tutorials(host: Host) -> Path:
    """Return the folder of the tutorials: beside the package in a checkout, inside it in a wheel."""
    for folder in (host.package.parent / "notebooks", host.package / "tutorials"):
        if (folder / FIRST_TUTORIAL).is_file():
            return folder
    raise UsageError(
        f"this installation has no tutorials ({FIRST_TUTORIAL}); reinstall aisotools, or clone its repository"
    )


def _copy(source: Path, target: Path) -> Path:
    """Copy the files that `target` does not have yet."""
    for path in sorted(source.rglob("*")):
        inner = path.relative_to(source)
        if path.is_file() and not _GENERATED & set(inner.parts) and not (target / inner).exists():
            (target / inner).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / inner)
    return target


def _run(path: Path, echo: Callable[[str], None]) -> int:
    """Run a notebook in its folder and print each cell's output as it ends. Stop at the first failure."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    report = _Report(notebook, echo)
    client = NotebookClient(
        notebook,
        timeout=TUTORIAL_CELL_TIMEOUT_S,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_execute=report.cell_started,
        on_cell_executed=report.cell_ended,
    )
    manager = client.create_kernel_manager()
    if manager.has_trait("transport_encryption"):
        # Kernels that know this option warn when it is off.
        manager.transport_encryption = "auto"
    echo(f"Running {path.name} in a copy of its folder ...")
    try:
        asyncio.run(client.async_execute())
    except CellExecutionError as error:
        return report.failed(f"failed with {error.ename}")
    except CellTimeoutError:
        return report.failed(f"did not finish within {TUTORIAL_CELL_TIMEOUT_S} s")
    except DeadKernelError:
        return report.failed("ended the notebook's kernel")
    return report.passed()


class _Report:
    """Prints the output of each cell of a notebook, shortened."""

    def __init__(self, notebook: NotebookNode, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._total = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)
        self._number = 0
        self._start = self._cell_start = time.monotonic()

    def cell_started(self, **_: Any) -> None:
        self._number += 1
        self._cell_start = time.monotonic()

    def cell_ended(self, cell: NotebookNode, **_: Any) -> None:
        seconds = time.monotonic() - self._cell_start
        first = cell.source.strip().partition("\n")[0]
        self._echo(f"\n[{self._number}/{self._total}] {_cut(first)}  ({seconds:.1f} s)")
        expected = "raises-exception" in cell.metadata.get("tags", ())
        lines = [line for output in cell.outputs for line in _output_lines(output, expected=expected)]
        for line in lines[:MAX_OUTPUT_LINES]:
            self._echo(f"    {_cut(line)}")
        if len(lines) > MAX_OUTPUT_LINES:
            self._echo(f"    ... {len(lines) - MAX_OUTPUT_LINES} more lines")

    def failed(self, reason: str) -> int:
        remaining = self._total - self._number
        self._echo(f"\nCell {self._number} of {self._total} {reason}. Cells not run: {remaining}.")
        return 1

    def passed(self) -> int:
        seconds = time.monotonic() - self._start
        self._echo(f"\nAll {self._total} cells ran as expected, in {seconds:.1f} s.")
        return 0


def _output_lines(output: NotebookNode, *, expected: bool) -> list[str]:
    """Return one output of a cell as plain lines."""
    if output.output_type == "stream":
        text = output.text
    elif output.output_type == "error":
        prefix = "expected " if expected else ""
        text = f"{prefix}{output.ename}: {output.evalue}"
    else:
        pictures = [f"[{kind}]" for kind in output.data if kind.startswith("image/")]
        text = "\n".join([*pictures, output.data.get("text/plain", "")])
    return [line for line in _plain(text).splitlines() if line.strip()]


_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _plain(text: str) -> str:
    """Remove escape sequences and escape control characters: a cell may print the output of a sandbox."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _INVISIBLE.sub(lambda match: ascii(match.group())[1:-1], text)


def _cut(line: str) -> str:
    return line if len(line) <= MAX_LINE_CHARS else line[: MAX_LINE_CHARS - 3] + "..."


# -- kernelspec


def _add_kernelspec_parser(commands: Any) -> None:
    parser = tools.add_subcommand(commands, "kernelspec", "install the sandboxed kernel for Jupyter")
    parser.add_argument("action", choices=("install",))
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="install for this user only")
    where.add_argument("--sys-prefix", action="store_true", help="install for this Python only (default)")
    where.add_argument("--prefix", help="install below this folder")
    parser.add_argument(
        "--trust-output",
        action="store_true",
        help="do not sanitize output. For trusted notebooks only: its scripts can then act on the page",
    )


def run_kernelspec(options: argparse.Namespace, echo: Echo) -> int:
    """Run `aisotools kernelspec install`. Return 0.

    Raises:
        UsageError: If the folder cannot be written.
    """
    from aisotools.notebook.kernel.provisioner import KERNEL_NAME, install_kernelspec

    prefix = None if options.user else options.prefix or sys.prefix
    folder = install_kernelspec(user=options.user, prefix=prefix, trust_output=options.trust_output)
    echo(f"Installed the kernel {KERNEL_NAME} in {folder}.")
    echo(f"Try it with: jupyter console --kernel {KERNEL_NAME}, or choose it in JupyterLab.")
    return 0
