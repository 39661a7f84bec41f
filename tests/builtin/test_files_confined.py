"""The file tools where they really run: in a process that gave up everything but the workspace."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys
from pathlib import Path
from aisotools.builtin.files import file, sandbox_read, sandbox_write
from aisotools.core.protocols import ToolContext
from aisotools.core.exceptions import LevelUnavailable, ToolError
from aisotools.sandbox.confinement.levels import Confinement, confine

root = Path(sys.argv[1])
os.umask(0o022)
try:
    confine(Confinement(level="confined", writable=(str(root),)))
except LevelUnavailable as error:
    print(json.dumps({"unavailable": str(error)}))
    sys.exit()
context = ToolContext(workspace_path=root)

def run(tool, **arguments):
    try:
        tool.execute(arguments, context).send(None)
    except StopIteration as done:
        return done.value.content
    except ToolError as error:
        return f"error: {error}"

paths = ("f", "s", "hard", "new/g", "out/x", "../x")
told = {path: run(sandbox_write, path=path, content="new") for path in paths}
told["read"] = run(sandbox_read, path="link")
told["search"] = run(file, operation="search", pattern="new")
told["umask"] = os.umask(0)
print(json.dumps(told))
"""


def test_file_tools_when_confined(tmp_path: Path) -> None:
    root, outside = tmp_path / "ws", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "canary").write_bytes(b"canary")
    for name, mode in (("f", 0o777), ("s", 0o4755)):
        (root / name).write_bytes(b"old")
        (root / name).chmod(mode)
    os.link(outside / "canary", root / "hard")
    (root / "link").symlink_to("f")
    (root / "out").symlink_to(outside)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root)], capture_output=True, text=True, check=True, cwd="/"
    )
    results = json.loads(done.stdout)
    if "unavailable" in results:
        pytest.skip(results["unavailable"])
    assert results["read"] == "new"
    assert results["new/g"] == "Created new/g (3 bytes)."
    assert results["search"].splitlines() == ["f:1: new", "hard:1: new", "s:1: new", "new/g:1: new"]
    for name in ("out/x", "../x"):
        assert results[name].startswith("error: The path")
    # Changing a mode has no effect in there; keeping one has.
    assert stat.S_IMODE((root / "f").stat().st_mode) == 0o777
    assert stat.S_IMODE((root / "s").stat().st_mode) == 0o755
    assert stat.S_IMODE((root / "new" / "g").stat().st_mode) == 0o644
    assert results["umask"] == 0o022
    assert (outside / "canary").read_bytes() == b"canary"
    assert [path.name for path in outside.iterdir()] == ["canary"]
