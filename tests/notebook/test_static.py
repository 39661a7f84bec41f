"""What stays in a notebook reads well without a kernel, without scripts, and without trust."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from aisotools.core.types import Approval, Effect, Facts, ToolResult
from aisotools.notebook.approval.view import batch_record_bundle, fallback_bundle, record_bundle
from aisotools.notebook.render.results import render_result
from aisotools.notebook.trace.model import Trace
from aisotools.notebook.trace.view import trace_bundle
from tests.notebook.inert import assert_inert
from tests.notebook.trace.test_model import a_run
from tests.policy.test_prompts import a_request
from tests.waiting import HANG_S

DIFF = {"diff": {"path": "a.txt", "lines": ["-old", "+new"], "added": 1, "removed": 1, "note": ""}}


def records() -> dict[str, dict[str, Any]]:
    request = a_request({"path": "a.txt", "content": "new\n"}, preview=DIFF, facts=Facts(commands=("make",)))
    other = a_request({"command": "make"}, effect=Effect.DESTRUCTIVE)
    trace = Trace("build")
    for event in a_run():
        trace.apply(event)
    rows = [{"path": "a.txt", "line": 1}, {"path": "b.txt", "line": 2}]
    return {
        "approved": record_bundle(request, Approval("approve", reason="fine")),
        "edited": record_bundle(
            request, Approval("approve", arguments={"path": "b.txt", "content": "new\n"})
        ),
        "timed out": record_bundle(other, Approval("timeout")),
        "batch": batch_record_bundle([request, other], [Approval("approve"), Approval("deny", reason="no")]),
        "question": fallback_bundle(other, "Answer in the box below."),
        "result": render_result(ToolResult.json({"matches": rows}), "file"),
        "colours": render_result(ToolResult.text("\x1b[31mred\x1b[0m"), "sandbox_bash"),
        "trace": trace_bundle(trace),
    }


@pytest.mark.parametrize("name", list(records()))
def test_only_html_and_text_without_widgets(name: str) -> None:
    record = records()[name]
    assert record.keys() <= {"text/html", "text/plain"}
    assert_inert(record["text/html"])
    assert len(record["text/html"]) < 64 << 10
    words = {w for w in re.findall(r"[A-Za-z]{4,}", record["text/plain"]) if w != "because"}
    missing = {word for word in words if word not in record["text/html"]}
    assert len(missing) <= 3, f"the page does not say {missing}"


@pytest.mark.slow
def test_nbconvert_shows_them(tmp_path: Path) -> None:
    notebook: Any = nbformat.v4.new_notebook()
    for name, record in records().items():
        output = nbformat.v4.new_output("display_data", data=record)
        notebook.cells.append(nbformat.v4.new_code_cell(f"# {name}", outputs=[output], execution_count=1))
    path = tmp_path / "records.ipynb"
    nbformat.write(notebook, path)
    command = [sys.executable, "-m", "nbconvert", "--to", "html", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=HANG_S)
    page = path.with_suffix(".html").read_text("utf-8")
    for words in ("✓ Approved", "with changed arguments", "Not answered in time", "1 of 2 calls approved"):
        assert words in page
    for words in ("output of <code>file</code>", "trace of build", "cc a.c", "+new"):
        assert words in page
    assert "widget-view" not in page
