"""Which groups of settings of git a command depends on, by its text alone. Real git is asked elsewhere."""

from __future__ import annotations

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell, shell_facts
from aisotools.policy.shell.git_programs import FILTERS, HELP, HOOKS, PATCHES, SIGNATURES, WATCHER


def groups_of(command: str) -> set[str]:
    report = classify_shell(command)
    assert (report.certain, report.effect) == (True, Effect.READ_ONLY), command
    return {group for absent in report.absent for group in absent.programs}


@pytest.mark.parametrize(
    ("command", "some", "none"),
    [
        ("git status", {WATCHER, FILTERS, HOOKS}, {PATCHES, SIGNATURES, HELP}),
        ("git status -v", {WATCHER, FILTERS, PATCHES}, {HELP}),
        ("git status --verb", {PATCHES}, set()),
        ("git diff", {WATCHER, FILTERS, HOOKS, PATCHES}, {HELP}),
        ("git diff --stat", {WATCHER, FILTERS}, {PATCHES}),
        ("git diff --stat -p", {PATCHES}, set()),
        ("git diff --no-ext-diff --no-textconv", {FILTERS}, {PATCHES}),
        ("git diff --no-textconv", {PATCHES}, set()),
        ("git log --oneline", {SIGNATURES}, {FILTERS, PATCHES}),
        ("git log -p", {PATCHES}, set()),
        ("git log -Sx", {PATCHES}, set()),
        ("git show", {PATCHES}, set()),
        ("git show -s", {SIGNATURES}, {PATCHES}),
        ("git stash list", {SIGNATURES}, {PATCHES}),
        ("git stash show", {PATCHES}, set()),
        ("git describe", {WATCHER}, {FILTERS, PATCHES}),
        ("git describe --dirty", {FILTERS, HOOKS}, {PATCHES}),
        ("git blame a", {PATCHES}, set()),
        ("git branch -a", {WATCHER}, {FILTERS, HOOKS, PATCHES, SIGNATURES}),
        ("git help log", {HELP}, {WATCHER, PATCHES}),
        ("git log --help", {HELP}, {WATCHER, PATCHES}),
        ("git help --help", {HELP}, set()),
    ],
)
def test_groups_of_a_command(command: str, some: set[str], none: set[str]) -> None:
    found = groups_of(command)
    assert some <= found
    assert none.isdisjoint(found)


@pytest.mark.parametrize(
    "command",
    ["git remote -v", "git config --list", "git version", "git --version", "git help -a", "git log -h"],
)
def test_commands_that_run_no_program_depend_on_no_setting(command: str) -> None:
    assert groups_of(command) == set()


def test_folders_are_those_in_which_git_starts() -> None:
    absent = shell_facts("cd sub && git -C er status", "top").absent
    assert {one.folder for one in absent} == {"top/sub/er"}


def test_the_settled_facts_are_those_of_reading() -> None:
    facts = shell_facts("git status")
    assert (facts.certain, facts.effect) == (False, Effect.LOCAL_MUTATION)
    assert facts.without_dashes is not None
    assert (facts.without_dashes.certain, facts.without_dashes.effect) == (True, Effect.READ_ONLY)
    # What changes something does not become doubtful beside a command of git.
    assert shell_facts("cp a b; git status").without_dashes is not None
