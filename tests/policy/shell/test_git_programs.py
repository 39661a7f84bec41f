"""Which groups of settings of git a command depends on, by its text alone. Real git is asked elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell, shell_facts
from aisotools.policy.shell.git_programs import (
    FILTERS,
    HELP,
    HOOKS,
    PATCHES,
    SIGNATURES,
    WATCHER,
    hooks_run_by,
)
from tests.waiting import HANG_S


def groups_of(command: str) -> set[str]:
    report = classify_shell(command)
    assert (report.certain, report.effect) == (True, Effect.READ_ONLY), command
    return {group for absent in report.absent for group in absent.programs}


@pytest.mark.parametrize(
    ("command", "some", "none"),
    [
        ("git status", {WATCHER, FILTERS}, {HOOKS, PATCHES, SIGNATURES, HELP}),
        ("git status -v", {WATCHER, FILTERS, PATCHES}, {HELP}),
        ("git status --verb", {PATCHES}, set()),
        ("git diff", {WATCHER, FILTERS, HOOKS, PATCHES}, {HELP}),
        ("env -i git status", {HOOKS}, {PATCHES}),
        ("env -u A bash -c 'git status'", {HOOKS}, {PATCHES}),
        ("env LANG=C git ls-files", {FILTERS}, {HOOKS}),
        ("git diff --stat", {WATCHER, FILTERS, HOOKS}, {PATCHES}),
        ("git diff --stat -p", {PATCHES}, set()),
        ("git diff --no-ext-diff --no-textconv", {FILTERS}, {PATCHES}),
        ("git diff --no-textconv", {PATCHES}, set()),
        ("git log --oneline", {SIGNATURES}, {FILTERS, PATCHES}),
        ("git log -p", {PATCHES}, {HOOKS}),
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


def test_hooks_of_a_command_are_meant_where_git_starts() -> None:
    hooks = shell_facts("cd sub && git -C er commit -m x", "top").hooks
    assert {one.folder for one in hooks} == {"top/sub/er"}
    assert "pre-commit" in hooks[0].names
    assert shell_facts("git status; git log").hooks == ()
    assert shell_facts("git clone https://x.example/a").hooks == ()


ALL_HOOKS = """
    applypatch-msg pre-applypatch post-applypatch pre-commit pre-merge-commit prepare-commit-msg commit-msg
    post-commit pre-rebase post-checkout post-merge pre-push reference-transaction pre-auto-gc post-rewrite
    sendemail-validate post-index-change
"""
CHANGING = """
    add f|commit -qam c|commit --amend -qm d|commit -q --allow-empty -m e|branch n|branch -d n|tag t|tag -d t
    checkout -q side|checkout -q main|switch -q side|switch -q main|checkout -q -b n2|checkout -q main
    merge -q side -m m|reset -q HEAD~1|reset -q --hard|stash|stash pop|rm -q --cached g|restore --staged g
    mv g h|mv h g|update-index --refresh|fetch -q .|push -q ../bare main|pull -q . side|rebase -q side|gc -q
    cherry-pick side|cherry-pick --abort|revert --no-edit HEAD|notes add -m n|worktree add -q ../w HEAD
    apply ../p.diff|apply --index ../p.diff|am -q ../m.patch|am --abort|format-patch -1 -o ../o|archive HEAD
    clean -qf|config a.b c|remote add r x|remote rename r s|remote remove s|pack-refs --all|repack -qad|prune
    update-ref refs/heads/z HEAD|symbolic-ref refs/heads/y refs/heads/z|read-tree HEAD|write-tree
    hash-object -w f|checkout-index -f f|maintenance run --task=gc|reflog expire --all|replace -d x
    commit-tree HEAD^{tree} -m x|bundle create ../b HEAD|submodule update --init|bisect start|bisect reset
"""


def test_hooks_that_git_runs_are_those_of_the_table(tmp_path: Path) -> None:
    """Every hook of a repository says its name, and git runs one command after the other."""
    home = tmp_path / "r"
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "MARK": str(tmp_path / "mark"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_EDITOR": "true",
    }

    def run(command: str) -> None:
        subprocess.run(
            ["bash", "-c", command], cwd=home, env=environ, capture_output=True, check=False, timeout=HANG_S
        )

    home.mkdir()
    (tmp_path / ".gitconfig").write_text("[user]\n\tname = a\n\temail = a@a\n[gc]\n\tauto = 1\n")
    run(
        "git init -q -b main . && echo a >f && echo b >g && git add . && git commit -qm one"
        " && git branch side && git init -q --bare ../bare && git checkout -q side && echo c >h && git add h"
        " && git commit -qm two && git format-patch -1 --stdout >../m.patch && git checkout -q main"
        " && echo d >>f && git diff >../p.diff && git checkout -q f && cp f f.orig"
    )
    for name in ALL_HOOKS.split():
        hook = home / ".git/hooks" / name
        hook.write_text(f'#!/bin/sh\necho {name} >>"$MARK"\n')
        hook.chmod(0o755)
    mark = tmp_path / "mark"
    hooks_run: set[str] = set()
    unexpected: dict[str, set[str]] = {}
    commands = [one.strip() for line in CHANGING.strip().split("\n") for one in line.split("|")]
    for number, command in enumerate(commands):
        mark.unlink(missing_ok=True)
        if command.startswith(("add", "commit -qam", "stash")):
            (home / "f").write_text(f"{number}\n")
        if (home / "g").exists():
            os.utime(home / "g", (number, number))
        run(f"git {command}")
        found = set(mark.read_text().split()) if mark.exists() else set()
        hooks_run |= found
        if strange := found - set(hooks_run_by(command.split()[0])):
            unexpected[command] = strange
    assert unexpected == {}
    assert len(hooks_run) >= 12, f"the control: only {sorted(hooks_run)} run"
