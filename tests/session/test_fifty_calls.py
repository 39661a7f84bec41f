"""A realistic session in mode safe: fifty calls of a model that cleans a data set, and how often it asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aisotools.core.events import CallDecided, CallFinished
from aisotools.core.types import Approval, ApprovalRequest, Effect
from aisotools.policy.approvers import ScriptedApprover
from tests.conftest import OpenSession

MOST_PROMPTS = 5
ROWS = "name,mass\n" + "".join(f"bird{n},{3000 + n}\n" for n in range(40)) + "broken,NA\n"

Call = tuple[str, Mapping[str, Any]]


def bash(command: str) -> Call:
    return "sandbox_bash", {"command": command}


def write(path: str, content: str) -> Call:
    return "file", {"operation": "write", "path": path, "content": content}


def read(path: str) -> Call:
    return "file", {"operation": "read", "path": path}


def python(code: str) -> Call:
    return "python", {"code": code}


LOOKING: list[Call] = [
    ("file", {"operation": "list", "path": "."}),
    bash("ls -la"),
    bash("head -n 5 raw/birds.csv"),
    bash("wc -l raw/birds.csv"),
    bash("cut -d, -f2 raw/birds.csv | sort | uniq -c | sort -rn | head"),
    bash("grep -n NA raw/birds.csv"),
    bash("file raw/birds.csv && stat raw/birds.csv"),
    ("file", {"operation": "search", "path": ".", "pattern": "NA"}),
    ("file", {"operation": "metadata", "path": "raw/birds.csv"}),
    ("sandbox_read", {"path": "raw/birds.csv"}),
    bash("awk -F, 'NR > 1 {print $1}' raw/birds.csv | head -3"),
    bash("sed -n '1,3p' raw/birds.csv"),
]
CLEANING: list[Call] = [
    python("import csv, pathlib\nrows = list(csv.DictReader(open('raw/birds.csv')))\nlen(rows)"),
    python("clean = [r for r in rows if r['mass'] != 'NA']\nlen(clean)"),
    write("out/notes.md", "# Notes\n"),
    python("import statistics\nmean = statistics.mean(int(r['mass']) for r in clean)\nmean"),
    write("out/summary.md", "# Summary\n\nMean mass.\n"),
    write("out/clean.csv", "name,mass\nbird1,3001\n"),
    read("out/clean.csv"),
    bash("diff raw/birds.csv out/clean.csv || true"),
    bash("sort -t, -k2 -n raw/birds.csv > out/sorted.csv"),
    bash("sort -t, -k1 raw/birds.csv > out/by-name.csv"),
    bash("cut -d, -f1 raw/birds.csv | sort > out/names.csv"),
    read("out/sorted.csv"),
]
CHECKING: list[Call] = [
    bash("cat out/summary.md"),
    bash("ls out | wc -l"),
    bash("tail -n 3 out/sorted.csv"),
    python("sorted(pathlib.Path('out').iterdir())[:2]"),
    write("out/summary.md", "# Summary\n\nMean mass: 3019.5 g.\n"),
    bash("md5sum out/sorted.csv"),
    bash("test -s out/summary.md && echo there"),
]
FIFTY: list[Call] = [
    *LOOKING,
    *CLEANING,
    *CHECKING,
    *LOOKING[1:8],
    *CHECKING,
    bash("du -sh out"),
    bash("find out -name '*.csv' | sort"),
    read("out/notes.md"),
    read("out/summary.md"),
    bash("rm out/names.csv"),
]


class Person(ScriptedApprover):
    """Approves what it is shown, remembering the widest scope offered, but destruction only this once."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.requests.append(request)
        if request.effect is Effect.DESTRUCTIVE:
            return Approval("approve")
        offered = request.preview["remember"]
        return Approval("approve", remember="shape" if "shape" in offered else "tool")


async def test_fifty_calls_ask_at_most_five_times(real_session: OpenSession, tmp_path: Any) -> None:
    person = Person()
    raw = tmp_path / "workspace" / "raw"
    raw.mkdir(parents=True)
    (raw / "birds.csv").write_text(ROWS)
    session = real_session(approver=person)
    assert len(FIFTY) == 50
    for name, arguments in FIFTY:
        await session.call(name, arguments, origin="model")
    ended = [e for e in session.events if isinstance(e, CallFinished)]
    failed = [(e.name, e.result.content) for e in ended if e.result.is_error]
    assert not failed, failed
    asked = [(r.call.name, dict(r.call.arguments)) for r in person.requests]
    assert len(asked) <= MOST_PROMPTS, asked
    # Nothing destructive ran unasked, and nothing that changes anything ran on the policy's word alone.
    decided = [e for e in session.events if isinstance(e, CallDecided)]
    assert all(e.decided_by == "approver" for e in decided if e.effect is Effect.DESTRUCTIVE)
    assert all(e.decided_by in {"approver", "grant"} for e in decided if e.effect is not Effect.READ_ONLY)
    assert not (tmp_path / "workspace" / "out" / "names.csv").exists()
