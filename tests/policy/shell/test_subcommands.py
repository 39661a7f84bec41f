"""Programs with subcommands, apart from what any of them is known to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from aisotools.core.types import Decision, Effect, ToolCall
from aisotools.policy.rules import Policy, Rule
from aisotools.policy.shell.classify import classify_shell, shell_facts
from aisotools.policy.shell.expansion import literal, unknown_words
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.workspace.path_facts import PathResolver

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


def test_no_rule_that_allows_the_plain_form_allows_one_with_options_before_it(tmp_path: Path) -> None:
    rule = Rule(tool="sandbox_bash", when={"commands": "git status*"}, decision=Decision.ALLOW)
    call = ToolCall("1", "sandbox_bash", {}, origin="model")
    # In a folder without settings of git that name programs, which only who sees the files can tell.
    assert rule.matches(call, PathResolver(tmp_path).resolve(shell_facts("git status")))
    assert not rule.matches(call, shell_facts("git -C elsewhere status"))


_WITH_SUBCOMMANDS = [
    "git status",
    "git log -3",
    "git submodule status",
    "git submodule",
    "git stash list",
    "git worktree list",
    "git reflog show",
    "git notes show",
    "git bundle verify a",
    "git bisect log",
    "git remote -v",
    "git lfs env",
    "git sparse-checkout list",
    "git commit -m x",
    "git add a",
    "git push origin main",
    "docker ps",
    "docker compose ps",
    "docker-compose logs",
    "podman image ls",
    "kubectl config view",
    "helm repo list",
    "aws configure list",
    "gcloud config list",
    "conda env list",
    "conda config --show",
    "pip list",
    "pip cache dir",
    "npm ls",
    "npm config get x",
    "go version",
    "systemctl status x",
    "resolvectl dns eth0",
    "apt list",
    "apt-mark showauto",
    "dnf history list",
    "brew services list",
    "snap list",
    "flatpak list",
    "gem list",
    "uv pip list",
    "pipx list",
    "rustup target list",
    "tmux list-sessions",
    "scontrol show job",
    "sacctmgr list user",
    "openssl x509 -in a",
    "samtools view a",
    "bcftools view a",
    "bedtools merge -i a",
    "seqkit stats a",
    "singularity cache list",
    "jupyter kernelspec list",
    "ruff check --no-cache a",
    "ollama list",
    "7z l a",
    "apk info",
    "xsv headers a",
]
_UNKNOWN_OPTIONS = ("--frob", "--frob=x", "--frob x", "-^", "-^ x", "--quiet-frob", "--frob foreach", "$x")


@pytest.mark.parametrize("command", _WITH_SUBCOMMANDS)
def test_unknown_options_anywhere_never_make_a_command_less_asked(command: str) -> None:
    words = command.split()
    plain = classify_shell(command)
    for position in range(1, len(words) + 1):
        for option in _UNKNOWN_OPTIONS:
            # Behind the subcommand, words that are only known at run time are harmless to some.
            if option == "$x" and position > 1:
                continue
            changed = " ".join([*words[:position], option, *words[position:]])
            report = classify_shell(changed)
            assert report.effect is not Effect.READ_ONLY or position > 1, changed
            assert (report.effect, not report.certain) >= (plain.effect, not plain.certain), changed
            assert not (report.certain and position == 1), changed
