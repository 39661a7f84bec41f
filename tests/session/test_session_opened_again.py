"""Whatever a worker leaves in a workspace, its session goes on and the next one opens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from aisotools.builtin import WORKER_MODULES
from aisotools.core.types import ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.confinement.levels import LEVELS
from aisotools.sandbox.limits import Limits
from aisotools.sandbox.process import spawn
from aisotools.session.session import Session

pytestmark = pytest.mark.timeout(300)

BROKEN_LINKS = """
import os, socket
os.symlink("itself", "itself")
os.symlink("pair2", "pair1"); os.symlink("pair1", "pair2")
os.symlink("x" * 255 + "/" + "y" * 300, "to a long name")
os.symlink("z" * 4000, "to a longer name")
open("f", "w").close(); os.symlink("f/x", "through a file")
os.makedirs("locked/in"); os.symlink("locked/in", "into a locked folder")
os.mkfifo("fifo"); os.symlink("fifo", "to a fifo")
os.symlink("/proc/self/fd/9999/x", "to a process"); os.symlink("/proc/self", "to itself as a process")
os.symlink("/root/x", "to another home"); os.symlink("/", "to the root"); os.symlink("..", "up")
for number in range(50): os.symlink(f"hop{number + 1}", f"hop{number}")
os.makedirs("below"); os.symlink("a", "below/a"); os.symlink(".", "below/here")
os.chmod("locked", 0)
"""

KINDS = """
import os, socket
for name in NAMES:
    os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
    MAKE
"""

MAKERS = {
    "folder": "os.mkdir(name)",
    "full folder": "os.makedirs(name + '/in')",
    "locked folder": "os.mkdir(name, 0)",
    "link to itself": "os.symlink(os.path.basename(name), name)",
    "link to a folder": "os.symlink('.', name)",
    "fifo": "os.mkfifo(name)",
    "locked file": "os.close(os.open(name, os.O_CREAT, 0))",
    "file": "open(name, 'w').write('[[')",
}

NAMES = [".aisotools.toml", "conftest.py", "a/conftest.py", "pyproject.toml", "setup.cfg", ".gitignore"]
NAMES += ["x.pth", ".vscode/tasks.json", "n.ipynb", ".ipynb_checkpoints/n-checkpoint.ipynb", ".pdbrc"]
# At the other levels a checkout is refused as a workspace.
NAMES_OF_GIT = [
    ".git/config",
    ".git/HEAD",
    ".git/hooks/pre-commit",
    ".git/commondir",
    "sub/.git",
    ".gitmodules",
]


async def open_again(
    workspace: Path, environ: Mapping[str, str], level: str, code: str
) -> list[tuple[str, ToolResult]]:
    """Run the code in a session and use that; open the workspace again. Return the results of the tools."""
    results: list[tuple[str, ToolResult]] = []
    for number in range(2):
        session = Session(workspace, environ=environ, approver=AllowAll(), level=level)
        async with session:
            if not number:
                results.append(("attack", await session.run_cell(code)))
            results += [
                ("cell", await session.run_cell("1 + 1")),
                ("list", await session.call("file", {"operation": "list", "path": "."})),
                ("write", await session.call("sandbox_write", {"path": "new.txt", "content": "1"})),
                ("command", await session.call("sandbox_bash", {"command": "ls > listed"})),
                ("undo", await session.undo(2)),
                ("redo", await session.redo(2)),
            ]
            if not number:
                await session.restart()
            branch = await session.branch(workspace=workspace.with_name(f"branch-{number}"))
            async with branch:
                results.append(("branch", await branch.run_cell("1 + 1")))
    return results


def level_or_skip(level: str) -> str:
    strongest = spawn.detection(WORKER_MODULES).level
    if strongest is None or LEVELS.index(level) > LEVELS.index(strongest):
        pytest.skip(f"this machine has no level {level}")
    return level


@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
async def test_links_that_lead_nowhere_keep_no_session_from_opening(
    level: str, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    results = await open_again(workspace, environ, level_or_skip(level), BROKEN_LINKS)
    assert not [one for one in results if one[1].is_error]
    (workspace / "locked").chmod(0o700)


@pytest.mark.sample(6)
@pytest.mark.parametrize("level", ["isolated", "confined"])
@pytest.mark.parametrize("kind", MAKERS)
async def test_anything_at_a_protected_name_keeps_no_session_from_opening(
    level: str, kind: str, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    names = NAMES + (NAMES_OF_GIT if level == "isolated" else [])
    code = KINDS.replace("NAMES", repr(names)).replace("MAKE", MAKERS[kind])
    results = await open_again(workspace, environ, level_or_skip(level), code)
    assert not [one for one in results if one[1].is_error and one[0] != "attack"]


def room_of(folder: Path) -> int:
    """Return how many bytes the files in a folder take on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


async def test_sparse_files_take_no_more_room_on_the_host_than_in_the_sandbox(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    """Undo, a branch and the next session stay below the limit that holds for what the sandbox writes."""
    limit, files = 8 << 20, 20
    workspace, state = tmp_path / "ws", Path(environ["XDG_STATE_HOME"])
    workspace.mkdir()
    async with Session(
        workspace, environ=environ, approver=AllowAll(), limits=Limits(disk_bytes=limit)
    ) as session:
        made = await session.run_cell(
            f"for number in range({files}):\n"
            "    with open(f's{number}', 'wb') as file:\n"
            "        file.truncate(20 << 20)\n"
            "        file.seek(number << 20)\n"
            "        file.write(b'x' * 4096)"
        )
        assert not made.is_error, made.content
        for command in (f"for i in $(seq 0 {files - 1}); do echo x >> s$i; done", "rm s*"):
            assert not (await session.call("sandbox_bash", {"command": command})).is_error
        undone = await session.undo()
        assert not undone.is_error
        assert "Not brought back" not in undone.content
        assert len([*workspace.glob("s*")]) == files
        async with await session.branch(workspace=tmp_path / "branch"):
            assert len([*(tmp_path / "branch").glob("s*")]) == files
        for folder in (workspace, tmp_path / "branch", state):
            assert room_of(folder) < limit, folder
