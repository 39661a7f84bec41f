"""Files through the whole gate, against the same work in a plain ipykernel in the same run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from tests.benchmarks.figures import Figure, show
from tests.benchmarks.peer import RawKernel

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300), pytest.mark.filterwarnings("default")]

ROUNDS = 30
FILES = 2_000


def make_tree(root: Path) -> None:
    """Two thousand small files."""
    for number in range(FILES):
        file = root / "tree" / f"d{number % 50}" / f"f{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"file {number}\n" * 20 + "needle\n" * (number % 100 == 0))


async def test_write_read_and_search(raw: RawKernel, tmp_path: Path, environ: Any) -> None:
    root, text = tmp_path / "workspace", "some text of a file\n" * 5_000
    root.mkdir()
    calls: dict[str, tuple[float, str, dict[str, Any], str]] = {
        "write 100 KB": (1.5, "sandbox_write", {"path": "f", "content": text}, "open('g', 'w').write(text)"),
        "read 100 KB": (1.5, "file", {"operation": "read", "path": "f"}, "print(open('g').read())"),
        "search 2,000 files": (
            15,
            "file",
            {"operation": "search", "path": "tree", "pattern": "needle"},
            SEARCH,
        ),
    }
    raw.execute(f"import os; os.chdir({str(root)!r})")
    raw.execute("text = 'some text of a file\\n' * 5000; open('g', 'w').write(text)")
    figures = []
    async with Session(root, environ=environ, approver=AllowAll()) as session:
        for what, (budget, name, arguments, code) in calls.items():
            if "pattern" in arguments:
                make_tree(root)
            ours: list[float] = []
            theirs: list[float] = []
            for _ in range(ROUNDS + 3):
                began_s = time.perf_counter()
                result = await session.call(name, arguments)
                ours.append((time.perf_counter() - began_s) * 1e3)
                assert not result.is_error, result.content
                began_s = time.perf_counter()
                raw.execute(code)
                theirs.append((time.perf_counter() - began_s) * 1e3)
            peer = sorted(theirs[3:])[ROUNDS // 2]
            figures.append(Figure(what=what, samples=ours[3:], budget=budget, peer=peer))
    show(*figures)
    for figure in figures:
        assert figure.peer is not None
        assert figure.median <= (figure.budget or 0) or figure.median < figure.peer


SEARCH = """
import re
found = []
for folder, _, names in os.walk('tree'):
    for name in names:
        with open(os.path.join(folder, name)) as file:
            for number, line in enumerate(file, 1):
                if re.search('needle', line):
                    found.append((name, number, line))
print(len(found))
"""
