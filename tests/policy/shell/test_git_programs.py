"""Which groups of settings of git a command depends on, by its text alone. Real git is asked elsewhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell, shell_facts
from aisotools.policy.shell.expansion import literal
from aisotools.policy.shell.git_programs import (
    FILTERS,
    HELP,
    HOOKS,
    PATCHES,
    SIGNATURES,
    WATCHER,
    programs_started_by,
)
from aisotools.workspace.path_facts import PathResolver
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
    hooks = shell_facts("cd sub && git -C er commit -m x", "top").git_programs
    assert {one.folder for one in hooks} == {"top/sub/er"}
    assert "pre-commit" in hooks[0].hooks
    assert shell_facts("git status; git log").git_programs == ()
    clone = shell_facts("git clone https://x.example/a").git_programs
    assert [one.hooks for one in clone] == [()]


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
        subcommand, *rest = map(literal, command.split())
        started = programs_started_by(subcommand.display, [subcommand, *rest], ".")
        if strange := found - {name for one in started if one.folder == "." for name in one.hooks}:
            unexpected[command] = strange
    assert unexpected == {}
    assert len(hooks_run) >= 12, f"the control: only {sorted(hooks_run)} run"


PROGRAMS = (
    """
    core.editor|sequence.editor|core.fsmonitor|filter.t.clean|filter.t.smudge|diff.t.command|diff.t.textconv
    merge.t.driver|gpg.program|trailer.t.cmd|core.pager|pager.commit|core.sshCommand|core.askPass
    credential.helper|core.gitProxy|core.alternateRefsCommand|alias.zz|mergetool.t.cmd|difftool.t.cmd
    gc.recentObjectsHook|uploadpack.packObjectsHook|remote.r.receivepack|hook.t.command
    """,
    """
    core.editor|filter.t.process|diff.external|gpg.ssh.program|gpg.ssh.defaultKeyCommand|trailer.t.command
    interactive.diffFilter|remote.r.uploadpack|merge.default.driver
    """,
)
STARTING = """
    add f|add -A|commit -qam c|commit -a|commit --amend|commit -qam s --trailer t=x|commit -S -qam v|tag -a t2
    tag -s t3 -m x|checkout -q side|checkout -q main|checkout f|switch -q side|switch -q main|restore f
    merge -q side -m m|reset -q --hard|stash|stash pop|rm -q --cached g|mv g h|mv h g|update-index --refresh
    fetch -q r|push -q r main|pull -q r side|rebase -q side|rebase -i HEAD~1|cherry-pick side|revert HEAD
    notes add|worktree add -q ../w HEAD|apply ../p.diff|am -q ../m.patch|clean -qf|hash-object -w f
    checkout-index -f f|gc -q|commit -v|add -p|zz|difftool -y -t t HEAD|mergetool -y -t t
    fetch -q ssh://127.0.0.1:9/x|push -q ssh://127.0.0.1:9/x main|clone -q . ../cl|rm -qf f|archive HEAD f
    submodule update|branch b3|config a.b c|symbolic-ref refs/heads/y refs/heads/z|pack-refs --all|init -q
"""


@pytest.mark.parametrize("part", range(len(PROGRAMS)))
def test_settings_whose_programs_git_runs_are_those_that_are_found(tmp_path: Path, part: int) -> None:
    """Each setting names a program that says so, and git runs one command after the other."""
    home, mark = tmp_path / "r", tmp_path / "mark"
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "MARK": str(mark),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "TERM": "dumb",
    }

    def run(command: str) -> None:
        subprocess.run(
            ["bash", "-c", f"{command} </dev/null"],
            cwd=home,
            env=environ,
            capture_output=True,
            check=False,
            timeout=60,
        )

    home.mkdir()
    (tmp_path / ".gitconfig").write_text("[user]\n\tname = a\n\temail = a@a\n[safe]\n\tdirectory = *\n")
    run(
        "git init -q -b main . && echo a >f && echo b >g && echo '* filter=t diff=t merge=t' >.gitattributes"
        " && git add . && git commit -qm one && git branch side && git init -q --bare ../bare"
        " && git checkout -q side && echo c >f && git commit -qam two"
        " && git format-patch -1 --stdout >../m.patch"
        " && git checkout -q main && echo d >>f && git diff >../p.diff && git commit -qam three"
        " && git remote add r ../bare && git push -q r main side"
    )
    settings = [one.strip() for line in PROGRAMS[part].strip().split("\n") for one in line.split("|")]
    for setting in settings:
        program = tmp_path / setting
        then = "cat" if setting.endswith(("clean", "smudge", "diffFilter")) else "exit 0"
        program.write_text(f'#!/bin/sh\necho {setting} >>"$MARK"\n{then}\n')
        program.chmod(0o755)
        run(f"git config {setting} '{'!' if setting.startswith('alias') else ''}{program}'")
    if "gpg.ssh.program" in settings:
        run("git config gpg.format ssh")
    started: set[str] = set()
    missed: list[tuple[str, str]] = []
    for number, command in enumerate(
        one.strip() for line in STARTING.strip().split("\n") for one in line.split("|")
    ):
        run("rm -f .git/index.lock; git rebase --abort; git merge --abort; git am --abort")
        (home / "f").write_text(f"{number}\n")
        mark.unlink(missing_ok=True)
        # Looked for before: a command may change the settings.
        facts = PathResolver(home).resolve(shell_facts(f"git {command}"))
        found = {name.partition(" = ")[0].lower() for one in facts.git_programs for name in one.settings}
        run(f"git {command}")
        marks = set(mark.read_text().split()) if mark.exists() else set()
        started |= marks
        missed += [(command, setting) for setting in marks if setting.lower() not in found]
    assert missed == []
    assert len(started) >= (12 if part == 0 else 4), f"the control: only {sorted(started)} were started"
