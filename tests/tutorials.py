"""The tutorials, and how one is run without a page: for the tests that compare, and those that measure."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbval.plugin import get_sanitize_patterns

FOLDER = Path(__file__).parents[1] / "notebooks"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))
SANITIZE = Path(__file__).with_name("nbval.cfg")
MOST_CELLS = 15
_LEVEL_SHOWS = "%sandbox status"
"""A cell whose output is this machine's own, level and process id included."""


def copy_tutorials(target: Path) -> Path:
    """A copy of the tutorials and of what lies beside them, as somebody gets them."""
    return Path(shutil.copytree(FOLDER, target, ignore=shutil.ignore_patterns("workspace", ".*")))


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def read(path: Path) -> NotebookNode:
    notebook: NotebookNode = nbformat.read(path, as_version=4)
    return notebook


def run(path: Path, *, timeout_s: int = 120, **kernel: Any) -> NotebookNode:
    """Run a notebook headless, in its folder; what it looks like afterwards."""
    from nbclient import NotebookClient

    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=timeout_s,
        store_widget_state=False,
        coalesce_streams=True,  # text that was printed bit by bit is one
        resources={"metadata": {"path": path.parent}},
    )
    manager = client.create_kernel_manager()
    if manager.has_trait("transport_encryption"):
        manager.transport_encryption = "auto"  # where it is known, a kernel warns about going without
    client.execute(**kernel)
    return notebook


def differences(stored: NotebookNode, fresh: NotebookNode) -> Iterator[str]:
    """Cells whose outputs are others than those that were stored; pictures count as pictures."""
    for before, after in zip(code_cells(stored), code_cells(fresh), strict=True):
        if _LEVEL_SHOWS not in before.source and _text_of(before) != _text_of(after):
            yield f"{before.id}\n--- stored\n{_text_of(before)}\n+++ fresh\n{_text_of(after)}"


def _text_of(cell: NotebookNode) -> str:
    """What a cell shows, without what differs from run to run."""
    lines: list[str] = []
    for output in cell.outputs:
        if output.output_type == "stream":
            lines.append(f"{output.name}: {output.text}")
        elif output.output_type == "error":
            lines.append(f"{output.ename}: {output.evalue}")
        else:
            lines += [f"[{kind}]" for kind in sorted(output.data)]
            lines.append(str(output.data.get("text/plain", "")))
    return sanitized("\n".join(lines))


def sanitized(text: str) -> str:
    """Without ids, times and what else differs from run to run, as nbval is told to compare."""
    for pattern, instead in get_sanitize_patterns(SANITIZE.read_text("utf-8")):
        text = re.sub(pattern, instead, text)
    return text
