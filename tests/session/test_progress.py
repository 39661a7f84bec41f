"""Progress bars in printed text: which lines are read as bars, and how often they are reported."""

from __future__ import annotations

import io
from typing import Any

import pytest
from tqdm import tqdm

from aisotools.core.events import CallEmitted
from aisotools.session.event_log import EventLog
from aisotools.session.progress import BarReader, ProgressTracker, parse_bar
from tests.conftest import OpenSession

TQDM = """
import sys, time
from tqdm import tqdm
for _ in tqdm(range(40), desc="train", mininterval=0.02, unit="step"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("options", "steps", "expected"),
    [
        ({"total": 40, "desc": "train"}, 10, {"done": 10, "total": 40, "label": "train", "unit": "it"}),
        (
            {"total": 4000, "unit": "B", "unit_scale": True},
            1000,
            {"done": 1000.0, "total": 4000.0, "unit": "B"},
        ),
        ({"total": 3, "unit": " rows"}, 3, {"done": 3, "total": 3, "unit": "rows"}),
    ],
)
def test_bar_of_tqdm_is_parsed(options: dict[str, Any], steps: int, expected: dict[str, Any]) -> None:
    file = io.StringIO()
    with tqdm(file=file, mininterval=0, ascii=True, **options) as bar:
        bar.update(steps)
        bar.refresh()
        line = file.getvalue().rpartition("\r")[2]
    numbers = parse_bar(line)
    assert numbers is not None, line
    assert numbers.pop("rate", 1) > 0
    assert numbers == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "  5%|5         | 1/20 [00:02<00:38,  2.00s/it]",
            {"done": 1, "total": 20, "unit": "it", "rate": 0.5},
        ),
        ("a:  0%|          | 0/20 [00:00<?, ?it/s]", {"done": 0, "total": 20, "label": "a"}),
        (
            " 50%|#####     | 1/2 [00:00<00:00,  9.1it/s, loss=0.3]",
            {"done": 1, "total": 2, "unit": "it", "rate": 9.1},
        ),
        ("50% done", None),
        ("100%|", None),
        ("x" * 10_000 + "%|", None),
        (" 50%|#|" * 60, None),
    ],
)
def test_lines_that_are_bars_and_lines_that_are_not(line: str, expected: dict[str, Any] | None) -> None:
    assert parse_bar(line) == expected


def test_progress_is_reported_a_few_times_and_at_the_end() -> None:
    now_s = 0.0
    reader = BarReader(lambda: now_s)
    reports = []
    for n in range(101):
        now_s += 0.01
        whole = f"\r{n:3}%|{'#' * (n // 10):10}| {n}/100 [00:01<00:01, 9.00it/s]"
        reports += [reader.feed(whole[:20]), reader.feed(whole[20:])]
    done = [report["done"] for report in reports if report is not None]
    assert done[-1] == 100
    assert 5 < len(done) < 15
    assert reader.feed("\n") is None


BAR = "\r 40%|####      | 4/10 [00:01<00:02, 3.10it/s]"


def test_few_streams_are_watched_at_once() -> None:
    tracker = ProgressTracker()
    reports = [tracker.feed(f"c{n}", "stderr", BAR) for n in range(100)]
    assert None not in reports
    assert len(tracker) == 32


def test_output_without_a_bar_is_not_watched() -> None:
    tracker = ProgressTracker()
    assert tracker.feed("c", "stdout", "50% done\r") is None
    assert len(tracker) == 0


def test_the_event_log_records_the_progress_of_each_call() -> None:
    event_log = EventLog()
    event_log.output("c1", "stderr", BAR)
    event_log.output("c1", "stderr", BAR)
    event_log.output("c2", "stderr", BAR)
    emitted = [event for event in event_log.events if isinstance(event, CallEmitted)]
    assert [(event.call_id, event.name, event.payload["done"]) for event in emitted] == [
        ("c1", "progress", 4),
        ("c2", "progress", 4),
    ]


@pytest.mark.parametrize("tool", ["python", "sandbox_bash"])
async def test_tqdm_in_the_sandbox(real_session: OpenSession, tool: str) -> None:
    session = real_session()
    command = {"command": f"python3 -c '{TQDM}'"}
    result = await session.call(tool, {"code": TQDM} if tool == "python" else command, origin="person")
    if tool == "sandbox_bash" and "No module named" in result.content:
        pytest.skip("the sandbox's python3 has no tqdm")
    assert not result.is_error, result.content
    reports = [e.payload for e in session.events if isinstance(e, CallEmitted) and e.name == "progress"]
    assert 2 <= len(reports) <= 15
    assert reports[-1]["done"] == reports[-1]["total"] == 40
    assert reports[-1]["label"] == "train"
    assert reports[-1]["unit"] == "step"
