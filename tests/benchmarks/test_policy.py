"""What it costs to ask a policy of many rules about one call."""

from __future__ import annotations

import time

import pytest

from aisotools.core.types import Decision, Facts, ToolCall
from aisotools.policy.rules import Policy, Rule
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
