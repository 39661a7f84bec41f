"""What a glob of a command means, apart from its text."""

from __future__ import annotations

import pytest

from aisotools.core.types import Decision, ToolCall
from aisotools.policy.command_globs import means
from aisotools.policy.rules import Mode, Policy, Rule
from aisotools.policy.shell.classify import shell_facts

MEANT = [
    ("rm -r*", "rm -fr x"),
    ("rm -r*", "rm -R x"),
    ("rm -r*", "rm --recursive x"),
    ("rm -r*", "rm --recur x"),
    ("rm -r*", "rm --r x"),
    ("sed -i*", "sed --i x"),
    ("rm -rfv*", "rm -vfr x"),
    ("rm -rf*", "rm -fr"),
    ("rm -f *secret", "rm -f -- -secret -x"),
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
    ("rm -r*", "rm --=x"),
    ("rm -f *secret", "rm -f -secret -x"),
    ("find -exec*", "find -cex"),
    ("pip", "pip3 install x"),
    ("pi? install*", "pip3 install x"),
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


# ---- what README says of such rules


def decision_on(glob: str, command: str, mode: Mode = "auto", decision: Decision = Decision.DENY) -> Decision:
    """Return what becomes of a command where one rule decides about those that a glob means."""
    policy = Policy(mode=mode, rules=[Rule(when={"commands": [glob]}, decision=decision)])
    call = ToolCall("1", "sandbox_bash", {"command": command}, origin="model")
    return policy.check(call, shell_facts(command)).decision


@pytest.mark.parametrize(
    "command", ["rm -fr out", "rm --recursive out", "rm out -r", "rm -f -R out", "rm -vrf out"]
)
def test_options_in_any_order_and_form_meet_a_rule(command: str) -> None:
    assert decision_on("rm -r*", command) is Decision.DENY
    assert decision_on("rm -r*", "rm -f out", "safe") is Decision.ASK, "which is another command"


@pytest.mark.parametrize(
    ("glob", "command"),
    [
        ("git push*", "git -C other push origin"),
        ("git push*", "git --no-pager -c a=b push"),
        ("docker push*", "docker --debug push x"),
        ("pip install*", "pip3.11 -q install x"),
        ("pip install*", "python -m pip install x"),
        ("pip install*", "python3 -I -m pip install x"),
    ],
)
def test_options_before_a_subcommand_and_versions_hide_nothing(glob: str, command: str) -> None:
    assert decision_on(glob, command) is Decision.DENY


@pytest.mark.parametrize(
    "command", ["/usr/bin/rm -r out", "/bin/rm -r out", "'rm' -r out", "r\\m -r out", "r''m -r out"]
)
def test_a_program_of_the_system_is_the_one_of_its_name(command: str) -> None:
    assert decision_on("rm -r*", command) is Decision.DENY


@pytest.mark.parametrize(
    "command",
    [
        "sudo rm -r out",
        "sudo -u me rm -r out",
        "find . -exec rm -r {} +",
        "ls | xargs rm -r",
        "fd out -x rm -r",
        "strace -o log rm -r out",
        "busybox rm -r out",
        "watch -n 1 rm -r out",
        "env A=1 timeout 5 nice rm -r out",
        "bash -c 'cd out; rm -r .'",
        "ls && (rm -r out)",
        "x=$(rm -r out)",
        "if true; then rm -r out; fi",
        "trap 'rm -r out' EXIT",
    ],
)
def test_programs_that_run_a_command_hide_nothing(command: str) -> None:
    assert decision_on("rm -r*", command) is Decision.DENY


@pytest.mark.parametrize("mode", ["safe", "auto"])
@pytest.mark.parametrize(
    "command",
    ["$tool -r out", "bash clean.sh", "./rm -r out", "r=-r; rm $r out", 'eval "$x"', "source clean.sh"],
)
def test_a_command_that_is_only_known_when_it_runs_is_asked_about(command: str, mode: Mode) -> None:
    assert decision_on("rm -r*", command, mode) is Decision.ASK


@pytest.mark.parametrize(
    "command", ["find out -delete", "python clean.py", "git -c alias.p=push p", "make clean"]
)
def test_another_program_is_asked_about_for_what_it_is_itself(command: str) -> None:
    for glob in ("rm -r*", "git push*"):
        assert decision_on(glob, command) is Decision.ASK
        assert decision_on(glob, command, "plan") is Decision.DENY


def test_a_rule_that_allows_takes_words_in_their_order_and_every_command() -> None:
    for command in ("rm -r out", "rm -rf out", "/usr/bin/rm -r out", "'rm' -r out"):
        assert decision_on("rm -r*", command, "safe", Decision.ALLOW) is Decision.ALLOW
    for command in (
        "rm -fr out",
        "rm out -r",
        "rm --recursive out",
        "sudo rm -r out",
        "bash -c 'rm -r out'",
        "rm -r out; touch x",
        "./rm -r out",
    ):
        assert decision_on("rm -r*", command, "safe", Decision.ALLOW) is Decision.ASK
