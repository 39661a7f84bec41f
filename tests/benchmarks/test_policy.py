"""What it costs to ask a policy of many rules about one call, and to classify a shell command."""

from __future__ import annotations

import time

import pytest

from aisotools.core.types import Decision, Effect, Facts, ToolCall
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.shell.classify import classify_shell
from tests.benchmarks.figures import Figure, show

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(60)]

RULES = 200


def test_two_hundred_rules() -> None:
    rules = [
        Rule(
            tool=("file", "sandbox_*", "other*")[number % 3],
            when={"writes": [f"folder{number}/*"], "commands": ["git*"]}
            if number % 2
            else {"arguments": {"path": f"*{number}.md"}},
        )
        for number in range(RULES)
    ]
    policy = Policy(rules=rules)
    call = ToolCall("1", "sandbox_bash", {"path": "a/7.md"}, origin="model")
    facts = Facts(writes=("a/b", "c/d"), commands=("git push", "ls"))
    assert policy.check(call, facts).decision is Decision.ASK
    samples = []
    for _ in range(300):
        began_s = time.perf_counter()
        policy.check(call, facts)
        samples.append((time.perf_counter() - began_s) * 1000)
    show(Figure(what=f"a policy of {RULES} rules, one call", samples=samples, budget=0.2))


def test_a_shell_command_of_three_hundred_characters() -> None:
    command = (
        "for f in data/*.csv; do awk -F, 'NR>1{s[$2]+=$3; n[$2]++} END{for (k in s) print k, s[k]/n[k]}' "
        '"$f" | '
        "sort -k2,2nr | head -5; done; git log --oneline -3 | sed 's/^/  /'; "
        'jq -r \'.cells[] | select(.cell_type=="code") | .source | join("")\' n.ipynb | grep -c import; '
        "find . -name '*.log' -mtime -2 -exec wc -l {} +"
    )
    assert 280 <= len(command) <= 340
    assert classify_shell(command).effect is Effect.READ_ONLY
    samples = []
    for _ in range(300):
        began_s = time.perf_counter()
        classify_shell(command)
        samples.append((time.perf_counter() - began_s) * 1000)
    show(Figure(what=f"a shell command of {len(command)} characters", samples=samples, budget=1))
