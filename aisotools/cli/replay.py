"""`aisotools replay RUN.ipynb`: repeat the calls of a recorded run, without its model."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aisotools.cli.tools import Echo, add_subcommand, import_tools
from aisotools.core.exceptions import UsageError

if TYPE_CHECKING:
    from aisotools.agent.replay import Replayed
    from aisotools.agent.transcript.metadata import Transcript
    from aisotools.tools.registry import ToolRegistry


_MAX_COPY_BYTES = 256 << 20
"""The largest --workspace folder that is copied."""


def add_parser(commands: Any) -> None:
    """Add `replay` to the subcommands."""
    parser = add_subcommand(
        commands,
        "replay",
        "repeat the calls of a recorded run, without its model",
        more="They are made in a fresh workspace; what differs is printed.",
        epilog="Exit status: 0 if every call gave the same result, 1 if not.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.ipynb", help="file written by `%%trace export`")
    parser.add_argument(
        "--workspace", type=Path, help="start with a copy of this folder (default: the files in RUN.ipynb)"
    )
    parser.add_argument(
        "--tools", metavar="MODULE:NAME", help="add the tools of a ToolRegistry or list in a module"
    )


def run(options: argparse.Namespace, echo: Echo) -> int:
    """Run `aisotools replay`. Return 0 if every call gave the same result, 1 if not.

    Raises:
        UsageError: If the file is not a recorded run, or the tools or the folder cannot be used.
    """
    from aisotools.agent.transcript.metadata import read_transcript

    transcript = read_transcript(options.run)
    registry = _registry(options.tools)
    missing = [name for name in transcript.tools if name not in registry]
    with tempfile.TemporaryDirectory(prefix="aisotools-replay-") as folder:
        workspace = Path(folder) / "workspace"
        _fill_workspace(workspace, options.workspace, transcript)
        replayed = asyncio.run(_replay(transcript, registry, workspace))
    return print_comparison(replayed, missing, echo)


def _registry(reference: str | None) -> ToolRegistry:
    from aisotools.builtin import builtin_tools
    from aisotools.tools.registry import ToolRegistry

    registry = ToolRegistry(builtin_tools())
    if reference is not None:
        for tool in import_tools(reference):
            registry.register(tool)
    return registry


def _fill_workspace(workspace: Path, source: Path | None, transcript: Transcript) -> None:
    """Create `workspace` with a copy of `source`, or with the files that the transcript holds."""
    if source is not None:
        if not source.is_dir():
            raise UsageError(f"--workspace {str(source)!r} is not a folder.")
        size = sum(path.lstat().st_size for path in source.rglob("*"))
        if size > _MAX_COPY_BYTES:
            limit = _MAX_COPY_BYTES >> 20
            raise UsageError(
                f"--workspace {str(source)!r} has {size >> 20} MiB; at most {limit} MiB are copied."
            )
        shutil.copytree(source, workspace, symlinks=True)
        return
    from aisotools.workspace.workspace import Workspace

    workspace.mkdir()
    # The transcript may be anybody's file. `Workspace` refuses paths that lead out of the folder.
    rooted = Workspace(workspace)
    for path, text in transcript.files.items():
        rooted.write_bytes(path, text.encode())


async def _replay(transcript: Transcript, registry: ToolRegistry, workspace: Path) -> Replayed:
    from aisotools.agent.replay import RecordedApprover, replay
    from aisotools.policy.rules import Policy
    from aisotools.session.session import Session

    approver = RecordedApprover(transcript)
    policy = Policy(mode="safe")
    async with Session(workspace, registry=registry, policy=policy, approver=approver) as session:
        return await replay(transcript, session)


def print_comparison(replayed: Replayed, missing: Sequence[str], echo: Echo) -> int:
    """Print what differs. Return 0 if every call gave the same result, 1 if not.

    Args:
        replayed: The comparison with the record.
        missing: Names of recorded tools that are not registered here.
        echo: Prints a line.
    """
    for path in replayed.missing:
        echo(f"Not in the file, though it was in the workspace: {path}")
    for call in replayed.calls:
        echo(f"{call.number or '':4} {call.name}: {call.difference or 'the same'}")
    for end in replayed.ends:
        echo(f"A run ended without an answer: {end}")
    if missing:
        echo(f"Tools that are not registered: {', '.join(missing)}. Add them with --tools MODULE:NAME.")
    different = sum(bool(call.difference) for call in replayed.calls)
    if different:
        echo(f"{len(replayed.calls)} calls, {different} different.")
        return 1
    echo("All calls were the same.")
    return 0
