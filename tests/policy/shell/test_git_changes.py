"""What git changes in a work tree is among what its command is said to write, compared with git itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aisotools.policy.shell.classify import shell_facts
from aisotools.policy.shell.expansion import literal
from aisotools.policy.shell.git_changes import changed_files
from tests.waiting import HANG_S

SETUP = """
git init -q -b main . && git config user.name a && git config user.email a@b
mkdir -p data out sub
echo one > in.txt && echo raw > data/raw.csv && echo k > data/k.txt && echo s > sub/s.txt
git add . && git commit -qm first
git branch old && echo two >> in.txt && echo more > data/more.csv && git add . && git commit -qm second
git checkout -q -b side old && echo side > side.txt && git add . && git commit -qm side
git checkout -q main
echo kept > in.txt && git stash -q
git worktree add -q -b tree w old
echo dirty > in.txt && echo dirty > data/raw.csv && echo new > new.txt && echo new > out/new.txt
"""

COMMANDS = [
    "git checkout -- in.txt",
    "git checkout in.txt",
    "git checkout HEAD in.txt",
    "git checkout HEAD -- data",
    "git checkout -- '*.csv'",
    "git checkout -- .",
    "git checkout -f old",
    "git checkout -f",
    "git checkout -q --force side",
    "git checkout -b fresh",
    "git checkout -B fresh old",
    "git checkout -fB fresh old",
    "git checkout side -- side.txt",
    "git checkout old data/raw.csv in.txt",
    "git restore in.txt",
    "git restore .",
    "git restore data",
    "git restore -s old in.txt",
    "git restore --source=old -- in.txt data",
    "git restore -SW in.txt",
    "git restore --staged --worktree in.txt",
    "git restore --staged in.txt",
    "git restore ':(glob)**/*.csv'",
    "git restore :/",
    "git reset --hard",
    "git reset --hard old",
    "git reset --har old",
    "git reset old",
    "git reset --keep HEAD",
    "git reset in.txt",
    "git clean -f",
    "git clean -fd",
    "git clean -fd out",
    "git clean -f -- new.txt",
    "git clean -fdx -e new.txt",
    "git -c clean.requireForce=false clean -d",
    "git rm -f in.txt",
    "git rm -rf data",
    "git rm --cached in.txt",
    "git rm -f --cached data/raw.csv",
    "git mv in.txt moved.txt",
    "git mv data elsewhere",
    "git mv in.txt sub",
    "git mv -f data/k.txt in.txt",
    "git stash",
    "git stash -u",
    "git stash push in.txt",
    "git stash push -m words -- data",
    "git stash save words",
    "git stash list",
    "git stash drop",
    "git stash show -p",
    "git checkout -q . && git stash pop",
    "git checkout -q . && git stash apply",
    "git checkout -q . && git merge -q side -m m",
    "git checkout -q . && git merge --no-commit --no-ff side",
    "git checkout -q . && git cherry-pick side",
    "git checkout -q . && git revert --no-edit HEAD",
    "git checkout -q . && git rebase -q side",
    "git checkout -q . && git switch -q old",
    "git switch -f old",
    "git switch --discard-changes side",
    "git switch -c fresh",
    "git switch -C fresh old -f",
    "git checkout -q . && git pull -q . side",
    "git read-tree -u --reset old",
    "git read-tree old",
    "git checkout-index -f in.txt",
    "git checkout-index -fa",
    "git worktree remove -f w",
    "git worktree move w w2",
    "git clone -q . copy",
    "git clone -q --no-hardlinks w",
    "git commit -qam words",
    "git add .",
    "git tag x",
    "git branch -D side",
    "git gc -q",
    "cd sub && git reset -q --hard",
    "cd sub && git checkout -q -- :/",
    "cd sub && git checkout -q -- ../in.txt",
    "cd sub && git stash -q",
    "git -C sub checkout -q -- ../in.txt",
    "git -C sub reset -q --hard",
    "git -C data checkout -q -- raw.csv",
    "find data/raw.csv -delete",
    "find out -delete",
    "find . -name '*.csv' -delete",
]


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a work tree by path; nothing of repositories."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.relative_to(folder).parts
    }


def is_written(path: str, writes: tuple[str, ...]) -> bool:
    return any(
        written in {".", "/workspace"}
        or path == written.rstrip("/")
        or path.startswith(f"{written.rstrip('/')}/")
        for written in writes
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    run(SETUP, folder)
    return folder


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # Nothing of the user's: a setting could change what git does.
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_files_that_git_changes_are_said_to_be_written(command: str, original: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    subprocess.run(["cp", "-a", original, folder], check=True)
    git = folder / "w" / ".git"
    git.write_text(f"gitdir: {folder}/.git/worktrees/w\n", "utf-8")
    (folder / ".git/worktrees/w/gitdir").write_text(f"{git}\n", "utf-8")
    before = contents(folder)
    run(command, folder)
    after = contents(folder)
    changed = [path for path in before | after if before.get(path) != after.get(path)]
    facts = shell_facts(command)
    writes = tuple(path.replace("sub/../", "") for path in facts.writes)
    missing = [path for path in changed if not is_written(path, writes)]
    assert missing == [] or not facts.certain, (facts.writes, missing)


def test_most_of_these_change_something(original: Path, tmp_path: Path) -> None:
    """Or the comparison above would hold of nothing."""
    count = 0
    for number, command in enumerate(COMMANDS):
        folder = tmp_path / str(number)
        subprocess.run(["cp", "-a", original, folder], check=True)
        before = contents(folder)
        run(command, folder)
        count += contents(folder) != before
    assert count > 0.6 * len(COMMANDS)


@pytest.mark.parametrize(
    "command",
    [
        *("add .", "commit -m x", "tag x", "branch x", "rm --cached f", "restore --staged f", "reset HEAD f"),
        *("stash list", "stash drop", "stash show", "switch -c x", "checkout -b x", "read-tree x", "gc"),
    ],
)
def test_subcommand_that_keeps_all_files_writes_none(command: str) -> None:
    words = [literal(word) for word in command.split()]
    assert changed_files(words[0].text or "", words).writes == ()


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("checkout -- a b", ("a", "b")),
        ("restore a", ("a",)),
        ("restore -s x a", ("a",)),
        ("mv a b", ("a", "b")),
        ("rm -r a", ("a",)),
        ("clean -fd a", ("a",)),
        ("clean -fd", (".",)),
        ("stash push -m words a", ("a",)),
        ("worktree remove a", ("a",)),
        ("reset --hard", ("/workspace",)),
        ("restore *.csv", ("*.csv", "/workspace")),
        ("restore --pathspec-from-file=x", ("/workspace",)),
        ("rm --pathspec-from-file x", ("/workspace",)),
    ],
)
def test_named_files_alone_are_written(command: str, written: tuple[str, ...]) -> None:
    words = [literal(word) for word in command.split()]
    assert changed_files(words[0].text or "", words).writes == written
