"""The `aisotools` command: what this machine can confine, and the tutorials in JupyterLab or without it.

aisotools doctor            the sandbox level of this machine, and what it does and does not protect
aisotools lab               JupyterLab on the first tutorial; further arguments go to JupyterLab
aisotools lab --execute     run the first tutorial headless and print what happened
aisotools kernelspec        make the sandboxed kernel known to Jupyter
aisotools replay RUN.ipynb  make the calls of a recorded run again, without its model
aisotools run -m MODEL TASK let a model work on a task, asking here before it changes anything
aisotools mcp serve         offer the tools to MCP clients, with the same gate and sandbox

`aisotools kernelspec install`: makes the sandboxed kernel known to Jupyter.
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
from aisotools.core.exceptions import AisotoolsError, UsageError

if TYPE_CHECKING:
    from nbformat import NotebookNode

    from aisotools.sandbox.confinement.detect import Detection


Echo = Callable[[str], object]
"""Takes a line to print."""


def add_kernelspec_parser(commands: Any) -> None:
    """Add `kernelspec` to the command line's subcommands."""
    told = "install the sandboxed kernel for Jupyter"
    parser = commands.add_parser("kernelspec", help=told, description=told.capitalize() + ".")
    parser.add_argument("action", choices=("install",))
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user only")
    where.add_argument("--sys-prefix", action="store_true", help="for this Python only (the default)")
    where.add_argument("--prefix", help="for the installation in this folder")
    parser.add_argument(
        "--trust-output",
        action="store_true",
        help="pass on all output as it is: only for notebooks that you trust, which may then act on the page",
    )


def run_kernelspec(options: argparse.Namespace, echo: Echo) -> int:
    """Carry out `aisotools kernelspec install`; 0 when it is installed.

    Raises:
        UsageError: If the folder cannot be written.
    """
    from aisotools.notebook.kernel.provisioner import KERNEL_NAME, install_kernelspec

    prefix = None if options.user else options.prefix or sys.prefix
    made = install_kernelspec(user=options.user, prefix=prefix, trust_output=options.trust_output)
    echo(f"Installed the kernel {KERNEL_NAME} in {made}.")
    echo(f"Try: jupyter console --kernel {KERNEL_NAME}, or choose it in JupyterLab.")
    return 0


FIRST_TUTORIAL = "01-first-calls.ipynb"
COPY_NAME = "aisotools-tutorials"
CELL_TIMEOUT_S = 120
SHOWN_LINES = 8
SHOWN_CHARS = 110
NO_SANDBOX = (
    "No sandbox level holds here, so a session refuses to start. To work without a sandbox all the same, say "
    'so: Session(level="limited") in a program, or AISOTOOLS_MIN_LEVEL=limited in the environment.'
)
NO_LAB = 'JupyterLab is not installed here. Install it with: pip install "aisotools[lab]"'


def _detect() -> Detection:
    from aisotools.sandbox.confinement.detect import detect_in_subprocess

    return detect_in_subprocess()


def _become(command: Sequence[str]) -> int:
    """Replace this process, so that signals and the terminal are the new program's own."""
    sys.stdout.flush()
    os.execv(command[0], list(command))


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the commands ask of the machine they run on; tests bring their own.

    Attributes:
        detect: Finds the sandbox level by trying, in a process of its own.
        has: Whether a Python module of that name is installed.
        start: Runs a command; the default replaces this process and never returns.
        is_root: Whether this process runs as root.
        package: The folder of the aisotools package.
        here: The folder that copies go to.
        echo: Takes each line of the answer.
    """

    detect: Callable[[], Detection] = _detect
    has: Callable[[str], bool] = lambda name: find_spec(name) is not None
    start: Callable[[Sequence[str]], int] = _become
    is_root: bool = os.geteuid() == 0
    package: Path = Path(__file__).resolve().parents[1]
    here: Path = Path()
    echo: Callable[[str], None] = lambda line: print(line, flush=True)


def main(arguments: Sequence[str] | None = None, host: Host | None = None) -> int:
    """Run the command.

    Args:
        arguments: Without the program's name; those of this process when not given.
        host: What to use of the machine.

    Returns:
        The exit status: 0 for success, 1 for a failure, 2 for a wrong command line, 130 after Ctrl-C.
    """
    parser = _parser()
    options, further = parser.parse_known_args(arguments)
    if further and (options.command != "lab" or options.execute):
        parser.error(f"{options.command} does not take: {' '.join(further)}")
    host = host or Host()
    try:
        if options.command == "doctor":
            return doctor(host, as_json=options.json)
        if options.command == "log":
            return log.run(options, host.echo)
        if options.command == "kernelspec":
            return run_kernelspec(options, host.echo)
        if options.command == "mcp":
            return mcp.run(options)
        if options.command == "replay":
            return replay.run(options, host.echo)
        if options.command == "run":
            return run.run(options, host.echo)
        if options.command in {"tools", "call"}:
            return (tools.tools if options.command == "tools" else tools.call)(options, host.echo)
        return execute(host) if options.execute else lab(host, further)
    except KeyboardInterrupt:
        return 130
    except (AisotoolsError, OSError) as error:
        print(f"aisotools {options.command}: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "aisotools",
        description="Tool calling you can see, approve, interrupt and undo, in a notebook.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version("aisotools"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    told = "print the sandbox level of this machine, and what it does and does not protect"
    doctor_parser = commands.add_parser("doctor", help=told, description=told.capitalize() + ".")
    doctor_parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    log.add_parser(commands)
    add_kernelspec_parser(commands)
    mcp.add_parser(commands)
    replay.add_parser(commands)
    run.add_parser(commands)
    tools.add_parsers(commands)
    told = "open JupyterLab on the first tutorial"
    lab_parser = commands.add_parser(
        "lab",
        help=told,
        description=told.capitalize() + ". Further arguments go to JupyterLab.",
        allow_abbrev=False,
    )
    lab_parser.add_argument("--execute", action="store_true", help="run it headless and print what happened")
    return parser


def doctor(host: Host, *, as_json: bool = False) -> int:
    """Tell the sandbox level of this machine.

    Args:
        host: The machine.
        as_json: One JSON object instead of text: level, holds, probes, protects, leaves_open, missing
            and versions.

    Returns:
        0 if a sandbox level holds, `guarded` or better; 1 otherwise.
    """
    from aisotools.sandbox.confinement.detect import ENABLED_BY, PROTECTS
    from aisotools.session.status import missing_levels

    found = host.detect()
    holds = found.level not in {None, "limited"}
    protects, leaves_open = PROTECTS[found.level or "limited"]
    versions = {
        "aisotools": version("aisotools"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    if as_json:
        probes = [{"name": probe.name, "ok": probe.ok, "detail": probe.detail} for probe in found.probes]
        answer: dict[str, Any] = {"level": found.level, "holds": holds, "probes": probes}
        answer |= {"protects": protects if holds else "", "leaves_open": leaves_open}
        answer |= {"missing": list(missing_levels(found.level, found))} | versions
        host.echo(json.dumps(answer, indent=2))
        return 0 if holds else 1

    host.echo(f"Sandbox level: {found.level if holds else 'none'}\n\nWhat was tried:")
    width = max((len(probe.name) for probe in found.probes), default=0)
    for probe in found.probes:
        host.echo(f"  {'yes' if probe.ok else 'no ':3}  {probe.name:{width}}  {probe.detail}".rstrip())
        if not probe.ok and probe.name in ENABLED_BY:
            host.echo(_indented(f"It takes: {ENABLED_BY[probe.name]}", width + 9))
    host.echo("")
    if not holds:
        host.echo(_wrapped(NO_SANDBOX) + "\n")
    host.echo(_wrapped(f"{'It' if holds else '`limited`'} protects: {protects}"))
    host.echo(_wrapped(f"It does not protect: {leaves_open}"))
    host.echo("\n" + ", ".join(f"{name} {number}" for name, number in versions.items()))
    return 0 if holds else 1


def _wrapped(text: str) -> str:
    return textwrap.fill(text, SHOWN_CHARS, subsequent_indent="  ", break_on_hyphens=False)


def _indented(text: str, columns: int) -> str:
    indent = " " * columns
    return textwrap.fill(
        text, SHOWN_CHARS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def lab(host: Host, further: Sequence[str] = ()) -> int:
    """Open JupyterLab on the first tutorial.

    From a checkout it opens the tutorial there; otherwise a copy in `aisotools-tutorials` in the current
    folder, made from the installed package and kept as it is the next time.

    Args:
        host: The machine.
        further: More arguments for JupyterLab.

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
        host.echo(f"The tutorials are in {folder}; what you change there stays.")
    # Not the file as an argument: then the address that is printed would not lead to it, only the browser.
    place = [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{FIRST_TUTORIAL}"]
    command = [sys.executable, "-m", "jupyterlab", *place, *further]
    if host.is_root and "--allow-root" not in further:
        host.echo(
            "You are root, which JupyterLab refuses unless told otherwise: starting it with --allow-root."
        )
        command.append("--allow-root")
    return host.start(command)


def execute(host: Host) -> int:
    """Run the first tutorial headless, in a temporary copy of its folder, and print what happened.

    Args:
        host: The machine.

    Returns:
        0 if every cell did what it should; 1 otherwise.

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
    """Where the tutorials are: beside the package in a checkout, inside it when installed from a wheel."""
    for folder in (host.package.parent / "notebooks", host.package / "tutorials"):
        if (folder / FIRST_TUTORIAL).is_file():
            return folder
    raise UsageError(
        f"this installation has no tutorials ({FIRST_TUTORIAL}); reinstall aisotools, or clone its source"
    )


def _copy(source: Path, target: Path) -> Path:
    """Copy what `target` does not have yet."""
    for path in sorted(source.rglob("*")):
        inner = path.relative_to(source)
        if path.is_file() and not _MADE & set(inner.parts) and not (target / inner).exists():
            (target / inner).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / inner)
    return target


_MADE = {"workspace", ".ipynb_checkpoints", "__pycache__"}
"""Folders that appear while the tutorials run."""


def _run(path: Path, echo: Callable[[str], None]) -> int:
    """Run a notebook in its folder, telling of each cell as it ends; stop at the first that fails."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    report = _Report(notebook, echo)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_execute=report.began,
        on_cell_executed=report.ended,
    )
    manager = client.create_kernel_manager()
    if manager.has_trait("transport_encryption"):
        manager.transport_encryption = "auto"  # where it is known, a kernel warns about going without
    echo(f"Running {path.name} in a copy of its folder ...")
    try:
        asyncio.run(client.async_execute())
    except CellExecutionError as error:
        return report.failed(f"failed with {error.ename}")
    except CellTimeoutError:
        return report.failed(f"did not end within {CELL_TIMEOUT_S} s")
    except DeadKernelError:
        return report.failed("took the notebook's kernel down")
    return report.passed()


class _Report:
    """Tells what each cell of a notebook gave, in short."""

    def __init__(self, notebook: NotebookNode, echo: Callable[[str], None]) -> None:
        self._echo = echo
        self._total = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)
        self._number = 0
        self._start = self._cell_start = time.monotonic()

    def began(self, **_: Any) -> None:
        self._number += 1
        self._cell_start = time.monotonic()

    def ended(self, cell: NotebookNode, **_: Any) -> None:
        seconds = time.monotonic() - self._cell_start
        first = cell.source.strip().partition("\n")[0]
        self._echo(f"\n[{self._number}/{self._total}] {_cut(first)}  ({seconds:.1f} s)")
        expected = "raises-exception" in cell.metadata.get("tags", ())
        lines = [line for output in cell.outputs for line in _told(output, expected=expected)]
        for line in lines[:SHOWN_LINES]:
            self._echo(f"    {_cut(line)}")
        if len(lines) > SHOWN_LINES:
            self._echo(f"    ... {len(lines) - SHOWN_LINES} more lines")

    def failed(self, how: str) -> int:
        left = self._total - self._number
        self._echo(f"\nCell {self._number} of {self._total} {how}; {left} after it did not run.")
        return 1

    def passed(self) -> int:
        self._echo(
            f"\nAll {self._total} cells did what they should, in {time.monotonic() - self._start:.1f} s."
        )
        return 0


def _told(output: NotebookNode, *, expected: bool) -> list[str]:
    """One output of a cell as plain lines."""
    if output.output_type == "stream":
        text = output.text
    elif output.output_type == "error":
        text = f"{'expected ' if expected else ''}{output.ename}: {output.evalue}"
    else:
        pictures = [f"[{kind}]" for kind in output.data if kind.startswith("image/")]
        text = "\n".join([*pictures, output.data.get("text/plain", "")])
    return [line for line in _plain(text).splitlines() if line.strip()]


_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _plain(text: str) -> str:
    """`text` with nothing in it that a terminal would obey: a cell may print what a sandbox gave."""
    text = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _INVISIBLE.sub(lambda found: ascii(found.group())[1:-1], text)


def _cut(line: str) -> str:
    return line if len(line) <= SHOWN_CHARS else line[: SHOWN_CHARS - 3] + "..."
