"""`aisotools replay RUN.ipynb`: make the calls of a recorded run again, without its model."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aisotools.core.exceptions import UsageError

if TYPE_CHECKING:
    from aisotools.agent.replay import Replayed
    from aisotools.agent.transcript.metadata import Transcript
    from aisotools.tools.registry import ToolRegistry


_MOST_COPIED_BYTES = 256 << 20


def add_parser(commands: Any) -> None:
    """Add the command to the parser of `aisotools`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "replay",
        help="make the calls of a recorded run again, without its model",
        description="Make the calls of a recorded run again in a fresh workspace, and tell what differs.",
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, metavar="RUN.ipynb", help="what `%%trace export` wrote")
    parser.add_argument(
        "--workspace", type=Path, help="start with a copy of this folder; else with what the file holds"
    )
    parser.add_argument(
        "--tools", metavar="MODULE:NAME", help="further tools: a ToolRegistry or a list in a module"
    )


def run(options: argparse.Namespace, echo: Callable[[str], None]) -> int:
    """Replay and say what came of it; 0 when all was the same, 1 when something differed.

    Raises:
        UsageError: If the file is no record, or the tools cannot be had.
    """
    from aisotools.agent.transcript.metadata import read_transcript

    transcript = read_transcript(options.run)
    registry = _registry(options.tools)
    missing = [name for name in transcript.tools if name not in registry]
    with tempfile.TemporaryDirectory(prefix="aisotools-replay-") as folder:
        workspace = Path(folder) / "workspace"
        _prepare(workspace, options.workspace, transcript)
        replayed = asyncio.run(_replay(transcript, registry, workspace))
    return _tell(replayed, missing, echo)


def _registry(further: str | None) -> ToolRegistry:
    from aisotools.builtin import builtin_tools
    from aisotools.tools.registry import ToolRegistry

    registry = ToolRegistry(builtin_tools())
    if further is not None:
        module, colon, name = further.partition(":")
        if not colon:
            raise UsageError(f"--tools {further!r}: write MODULE:NAME, such as my_tools:registry.")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"--tools {further!r} cannot be had: {error}.") from None
        for tool in found:
            registry.register(tool)
    return registry


def _prepare(workspace: Path, folder: Path | None, transcript: Transcript) -> None:
    """Fill a fresh workspace; paths come from a file that may be anybody's."""
    if folder is not None:
        if not folder.is_dir():
            raise UsageError(f"--workspace {str(folder)!r} is no folder.")
        size = sum(path.lstat().st_size for path in folder.rglob("*"))
        if size > _MOST_COPIED_BYTES:
            raise UsageError(f"--workspace {str(folder)!r} holds {size >> 20} MiB; at most 256 are copied.")
        shutil.copytree(folder, workspace, symlinks=True)
        return
    from aisotools.workspace.workspace import Workspace

    workspace.mkdir()
    rooted = Workspace(workspace)
    for path, text in transcript.files.items():
        rooted.write_bytes(path, text.encode())


async def _replay(transcript: Transcript, registry: ToolRegistry, workspace: Path) -> Replayed:
    from aisotools.agent.replay import RecordedApprover, replay
    from aisotools.policy.rules import Policy
    from aisotools.session.session import Session

    approver, policy = RecordedApprover(transcript), Policy(mode="safe")
    async with Session(workspace, registry=registry, policy=policy, approver=approver) as session:
        return await replay(transcript, session)


def _tell(replayed: Replayed, missing: list[str], echo: Callable[[str], None]) -> int:
    for one in replayed.said:
        echo(f"It lay in the workspace and is not in the file: {one}")
    for call in replayed.calls:
        echo(f"{call.number or '':4} {call.name}: {call.difference or 'the same'}")
    for end in replayed.ends:
        echo(f"A run ended otherwise than with an answer: {end}")
    if missing:
        echo(f"Tools that are not there: {', '.join(missing)}. Bring them with --tools MODULE:NAME.")
    different = sum(bool(call.difference) for call in replayed.calls)
    echo(f"{len(replayed.calls)} calls, {different} different." if different else "All calls were the same.")
    return 1 if different else 0
