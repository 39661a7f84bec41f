"""What a glob of a command means, apart from its text."""

from __future__ import annotations

import pytest

from aisotools.core.types import Decision, ToolCall
from aisotools.policy.command_globs import means
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.shell.classify import shell_facts

MEANT = [
    ("rm -r*", "rm -fr x"),
    ("rm -r*", "rm -R x"),
    ("rm -r*", "rm --recursive x"),
    ("rm -r*", "rm --recur x"),
    ("rm -r*", "rm x -r"),
    ("rm -r*", "rm -f -r x"),
    ("rm -r*", "rm -vfr x"),
    ("rm -rf*", "rm -r --force x"),
    ("rm -rf *", "rm -fr x"),
    ("rm -rf out*", "rm out/a -r -f"),
    ("rm --recursive*", "rm -r x"),
    ("rm --force*", "rm -rf x"),
    ("pip install*", "pip3 install x"),
    ("pip install*", "pip3.11 install x"),
    ("pip install*", "pip -i u install x"),
    ("pip install*", "pip -q --index-url=u install x"),
    ("pip3 install*", "pip install x"),
    ("git push*", "git --attr-source HEAD push"),
    ("git push*", "git -C a -c b push origin"),
    ("git push --force*", "git push -f origin"),
    ("git push --force*", "git push origin --forc"),
    ("git push -f*", "git push origin main --force"),
    ("git commit -m*", "git commit -am x"),
    ("docker system prune*", "docker --debug system prune -f"),
    ("sed -i*", "sed --in-place x"),
    ("sed -i*", "sed -ni p x"),
]
NOT_MEANT = [
    ("rm -r*", "rm -f x"),
    ("rm -r*", "rm -- -r"),
    ("rm -r*", "rmdir -r"),
    ("rm -r*", "echo rm -r"),
    ("rm -rf*", "rm -r x"),
    ("rm -rf out*", "rm -rf other"),
    ("git push*", "git commit -m push"),
    ("git push*", "git status push"),
    ("git push*", "git stash push"),
    ("git push --force*", "git push origin"),
    ("git push -f*", "git push --follow-tags"),
    ("ls -r*", "ls -R"),
    ("pip install*", "pip download install"),
    ("pip*", "pipx install x"),
    ("find * -delete*", "find . -name d -print"),
    ("*", ""),
    ("rm *", ""),
]


@pytest.mark.parametrize(("glob", "command"), MEANT)
def test_options_in_any_spelling_are_meant(glob: str, command: str) -> None:
    assert means(glob, command)


@pytest.mark.parametrize(("glob", "command"), NOT_MEANT)
def test_other_commands_are_not_meant(glob: str, command: str) -> None:
    assert not means(glob, command)


@pytest.mark.parametrize(
    ("glob", "command"),
    [
        *MEANT,
        ("pip install*", "python -um pip install x"),
        ("pip install*", "python3 -I -m pip -q install x"),
        ("git push*", "cd a && env git -P push"),
        ("git push*", "git submodule --quiet foreach git push"),
    ],
)
def test_a_rule_that_denies_is_met_or_asks(glob: str, command: str) -> None:
    policy = Policy(mode="auto", rules=[Rule(when={"commands": [glob]}, decision=Decision.DENY)])
    call = ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
    decision = policy.check(call, shell_facts(command)).decision
    assert decision is (Decision.ASK if "foreach" in command else Decision.DENY)


@pytest.mark.parametrize(("glob", "command"), MEANT)
def test_a_rule_that_allows_goes_by_the_text(glob: str, command: str) -> None:
    rule = Rule(when={"commands": [glob]}, decision=Decision.ALLOW)
    call = ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
    assert not rule.matches(call, shell_facts(command))
