"""Changes of the mode of a workspace's own folder: `python -m tests.session.mode_attacks LEVEL FOLDER`.

Each attack runs in a session of its own. Printed, as JSON, is what the calls after it came to. With `outside`
for the level the attacks run without any sandbox.
"""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from aisotools import AllowAll, Session
from aisotools.core.types import ToolResult
from tests.waiting import HANG_S

MODE = 0o755

PYTHON = {
    "chmod": "import os; os.chmod('.', 0)",
    "no right to enter": "import os; os.chmod('.', 0o600)",
    "no right to list": "import os; os.chmod('.', 0o300)",
    "no right to write": "import os; os.chmod('.', 0o555)",
    "others may write": "import os; os.chmod('.', 0o777)",
    "by the absolute path": "import os; os.chmod(os.getcwd(), 0)",
    "by a descriptor": "import os; os.fchmod(os.open('.', os.O_RDONLY), 0)",
    "by a link": "import os; os.symlink('.', 'link'); os.chmod('link', 0)",
    "relative to a folder": "import os; os.mkdir('d'); os.chmod('..', 0, dir_fd=os.open('d', os.O_RDONLY))",
    "by pathlib": "import pathlib; pathlib.Path().chmod(0)",
    "then dies": "import os; os.chmod('.', 0); os._exit(3)",
    "then raises": "import os; os.chmod('.', 0); 1 / 0",
    "at the end of the process": "import os; os.chmod('.', 0); os.kill(os.getpid(), 9)",
}
BASH = {
    "bash": "chmod 0 .",
    "bash, step by step": "chmod a-w . && chmod a-r . && chmod a-x .",
    "bash, by a variable": 'chmod 000 "$WORKSPACE"',
    "bash, all below": "mkdir -p d/e && chmod -R 0 .",
    "an archive": "tar --no-recursion --mode=0 -cf archive.tar . && tar -xpf archive.tar",
}
ATTACKS = {name: ("python", "code", code) for name, code in PYTHON.items()} | {
    name: ("sandbox_bash", "command", command) for name, command in BASH.items()
}


BELOW = {
    "a folder": "chmod 0 d",
    "a folder, by another mode": "chmod 0200 d",
    "a folder in a folder": "chmod 0 d/e",
    "both, the inner one first": "chmod 0 d/e && chmod 0 d",
    "what they hold as well": "chmod 0 d/e/g d/f && chmod 0 d/e d",
    "the workspace, too": "chmod 0 d/e && chmod 0 d && chmod 0 .",
}
"""Commands on folders in the workspace, which undo brings back with what they hold."""


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def attempt(result: ToolResult) -> dict[str, Any]:
    return {"failed": result.is_error, "kind": result.error_kind, "content": result.content}


def make_workspace(folder: Path) -> Path:
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    workspace.chmod(MODE)
    (workspace / "conftest.py").write_text("safe = True\n")
    return workspace


async def attack(level: str, name: str, folder: Path) -> dict[str, Any]:
    """Make one attack between ordinary calls; return what became of them."""
    workspace = make_workspace(folder)
    (folder / "home").mkdir()
    environ = {"HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "state")}
    tool, argument, code = ATTACKS[name]
    found: dict[str, Any] = {}

    def open_session() -> Session:
        return Session(workspace, approver=AllowAll(), environ=environ, level=level)

    async with open_session() as session:

        async def call(tool: str, **arguments: str) -> dict[str, Any]:
            return attempt(await session.call(tool, arguments, timeout_s=HANG_S))

        await call("sandbox_write", path="before", content="one")
        found["attack"] = await call(tool, **{argument: code})
        found["mode"] = mode_of(workspace)
        found["read"] = await call("sandbox_read", path="before")
        found["write"] = await call("sandbox_write", path="after", content="two")
        found["bash"] = await call("sandbox_bash", command="echo three > third")
        found["python"] = await call("python", code="open('fourth', 'w').write('four')")
        found["undo"] = attempt(await session.undo(2))
        found["files"] = sorted(path.name for path in workspace.iterdir())
        found["again"] = await call("sandbox_write", path="third", content="three")
        # Once more, and nothing after it: what closing the session has to put back.
        found["last"] = await call(tool, **{argument: code.replace("mkdir ", "mkdir -p ")})
    found["closed"] = mode_of(workspace)
    async with open_session() as session:
        found["reopened"] = attempt(await session.call("sandbox_write", {"path": "fifth", "content": "5"}))
    found["protected"] = (workspace / "conftest.py").read_text()
    return found


async def attack_below(level: str, name: str, folder: Path) -> dict[str, Any]:
    """Change the modes of folders in the workspace, and undo that."""
    workspace = make_workspace(folder)
    (folder / "home").mkdir()
    environ = {"HOME": str(folder / "home"), "XDG_STATE_HOME": str(folder / "state")}
    command = "mkdir -m 750 -p d && mkdir -m 711 d/e && echo one > d/f && echo two > d/e/g"
    async with Session(workspace, approver=AllowAll(), environ=environ, level=level) as session:
        first = await session.call("sandbox_bash", {"command": command}, timeout_s=HANG_S)
        assert not first.is_error, first.content
        before = listing(workspace)
        await session.call("sandbox_bash", {"command": BELOW[name]}, timeout_s=HANG_S)
        undone = await session.undo()
        return {"undo": attempt(undone), "before": before, "after": listing(workspace)}


def listing(workspace: Path) -> dict[str, list[Any]]:
    """Return the mode and the content of everything in the workspace."""
    found = {}
    for path in sorted(workspace.rglob("*")):
        text = path.read_text() if path.is_file() else ""
        found[str(path.relative_to(workspace))] = [mode_of(path), text]
    return found


def attack_outside(name: str, folder: Path) -> dict[str, Any]:
    """Make one attack without a sandbox."""
    workspace = make_workspace(folder)
    tool, _, code = ATTACKS[name]
    program = [sys.executable, "-c", code] if tool == "python" else ["/bin/bash", "-c", code]
    environ = {"WORKSPACE": str(workspace), "PATH": "/usr/bin:/bin"}
    subprocess.run(program, cwd=workspace, env=environ, check=False, capture_output=True)
    return {"mode": mode_of(workspace)}


async def main(level: str, folder: Path, *names: str) -> None:
    found = {}
    for number, name in enumerate(names or ATTACKS):
        place = folder / str(number)
        if name in BELOW:
            found[name] = await attack_below(level, name, place)
        elif level == "outside":
            found[name] = attack_outside(name, place)
        else:
            found[name] = await attack(level, name, place)
        (place / "workspace").chmod(0o700)
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]))
