"""Programs with subcommands, apart from what any of them is known to do."""

from __future__ import annotations

import pytest

from aisotools.core.types import Decision, Effect, ToolCall
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.shell.classify import classify_shell, shell_facts
from aisotools.policy.shell.expansion import literal, unknown_words
from aisotools.policy.shell.subcommands import Subcommand, subcommands

CLASSIFY = subcommands(
    Subcommand(names="list, cache list", options="-a --out:w", operands="r"),
    options="-q --config:u",
    reason="changes things",
    effect=Effect.REMOTE_ACTION,
)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("p list", "read_only"),
        ("p -q list -a x", "read_only"),
        ("p list -q", "read_only"),
        ("p cache list", "read_only"),
        ("p cache", "remote_action?"),
        ("p cache clear", "remote_action?"),
        ("p", "remote_action?"),
        ("p list --out x", "local_mutation"),
        ("p list --frob", "local_mutation?"),
        ("p --frob list", "remote_action?"),
        ("p --config x list", "remote_action?"),
        ("p remove --help", "read_only"),
        ("p remove x --help", "remote_action?"),
        ("p ./x --help", "remote_action?"),
        ("p $x", "remote_action?"),
        ("p $x --help", "remote_action?"),
    ],
)
def test_effect_and_certainty(command: str, expected: str) -> None:
    verdict = CLASSIFY([unknown_words(w) if w.startswith("$") else literal(w) for w in command.split()])
    assert f"{verdict.effect.value}{'' if verdict.certain else '?'}" == expected


@pytest.mark.parametrize(
    ("command", "spelling"),
    [
        ("git -C . push", "git push"),
        ("git --no-pager push origin", "git push origin"),
        ("git -c core.x=y --git-dir=z push", "git push"),
        ("/usr/bin/git -P push", "git push"),
        ("env git -C a push", "git push"),
        ("bash -c 'git -C a push'", "git push"),
        ("docker --debug push x", "docker push x"),
        ("pip --verbose install x", "pip install x"),
        ("python -m pip install x", "pip install x"),
        ("npm --silent publish", "npm publish"),
    ],
)
def test_options_before_a_subcommand_hide_it_from_no_rule(command: str, spelling: str) -> None:
    assert spelling in classify_shell(command).commands
    rule = Rule(tool="sandbox_bash", when={"commands": f"{spelling}*"}, decision=Decision.DENY)
    call = ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
    assert Policy(rules=[rule]).check(call, shell_facts(command)).decision is Decision.DENY


def test_no_rule_that_allows_the_plain_form_allows_one_with_options_before_it() -> None:
    rule = Rule(tool="sandbox_bash", when={"commands": "git status*"}, decision=Decision.ALLOW)
    call = ToolCall("1", "sandbox_bash", {}, origin="model")
    assert rule.matches(call, shell_facts("git status"))
    assert not rule.matches(call, shell_facts("git -C elsewhere status"))
