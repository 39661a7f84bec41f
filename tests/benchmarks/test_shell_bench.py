"""How long it takes to tell what a shell command does."""

from __future__ import annotations

import time

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell
from tests.benchmarks.figures import Figure, show
from tests.policy.shell.corpus import of_kind

pytestmark = pytest.mark.benchmark

PIPELINE = (
    "find . -type f -name '*.py' -not -path './.git/*' | xargs grep -n \"def main\" | sort -t: -k2,2n | "
    "awk -F: '{print $1, $2}' | head -n 50 | sed -e 's/foo/bar/g' | uniq -c | sort -rn | tee /dev/null "
    "| wc -l && git log --oneline -n 20 --since=yesterday -- src/main.py | cut -d' ' -f1 "
    "| tr a-z A-Z; ls -la /tmp"
)


def samples_ms(commands: list[str]) -> list[float]:
    samples = []
    for command in commands:
        began_s = time.perf_counter()
        classify_shell(command)
        samples.append((time.perf_counter() - began_s) * 1000)
    return samples


def test_a_pipeline_of_300_characters_takes_at_most_a_millisecond() -> None:
    assert 290 <= len(PIPELINE) <= 310
    assert classify_shell(PIPELINE).effect is Effect.READ_ONLY
    everyday = [entry.command for entry in of_kind("everyday")]
    samples_ms([PIPELINE] * 20)
    pipeline = Figure(what="a pipeline of 300 characters", samples=samples_ms([PIPELINE] * 500), budget=1)
    short = Figure(what="an everyday command", samples=samples_ms(everyday * 3))
    show(pipeline, short)
    assert pipeline.median <= 1
