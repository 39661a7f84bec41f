"""Indexes of git that were written anew by `git status`, and those that say something else."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from aisotools.workspace import git_index
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.git_index import is_index, is_refreshed, list_objects

GIT = shutil.which("git")
needs_git = pytest.mark.skipif(GIT is None, reason="git is not installed")
STAMPS = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@b",
}
NAMES = ("a", "b" * 7, "c" * 8, "d/e", "d/f" * 40, "x" * 200)


def git(folder: Path, *arguments: str, text: str = "", check: bool = True) -> str:
    """Run git in a folder with a text as its input. Return its output."""
    assert GIT is not None
    environ = {
        **STAMPS,
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    done = subprocess.run(
        [GIT, "-C", str(folder), *arguments],
        env=environ,
        input=text,
        capture_output=True,
        text=True,
        check=check,
    )
    return done.stdout


def make(folder: Path, version: int = 2, object_format: str = "sha1") -> Path:
    """Make a repository with files of all kinds of names. Return its index."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", f"--object-format={object_format}")
    git(folder, "config", "index.version", str(version))
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "all")
    git(folder, "update-index", "--index-version", str(version))
    if version == 3:
        (folder / "later").write_text("later")
        git(folder, "add", "--intent-to-add", "later")
        git(folder, "update-index", "--skip-worktree", "a")
    return folder / ".git" / "index"


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda repo: ((repo / "d" / "e").write_text("staged"), git(repo, "add", "d/e")),
    "mode": lambda repo: git(repo, "update-index", "--chmod=+x", "d/e"),
    "removed": lambda repo: git(repo, "rm", "-q", "--cached", "d/e"),
    "added": lambda repo: ((repo / "new").write_text("new"), git(repo, "add", "new")),
    "flag": lambda repo: git(repo, "update-index", "--assume-unchanged", "d/e"),
    "renamed": lambda repo: git(repo, "mv", "d/e", "d/g"),
    "wanted": lambda repo: ((repo / "new").write_text(""), git(repo, "add", "-N", "new")),
}


@needs_git
@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("version", [2, 3, 4])
def test_index_that_a_status_has_written_anew_is_the_same(
    tmp_path: Path, version: int, object_format: str
) -> None:
    index = make(tmp_path / "repo", version, object_format)
    before = index.read_bytes()
    assert int.from_bytes(before[4:8], "big") == version
    for name in NAMES[1:]:
        os.utime(tmp_path / "repo" / name, ns=(0, time.time_ns() - 10**12))
    git(tmp_path / "repo", "status")
    after = index.read_bytes()
    assert before != after, "it was written anew"
    assert is_refreshed(before, after)
    git(tmp_path / "repo", "config", "core.untrackedCache", "true")
    git(tmp_path / "repo", "status")
    assert is_refreshed(before, index.read_bytes()), "with further extensions"


@needs_git
@pytest.mark.parametrize("version", [2, 3, 4])
def test_index_lists_the_objects_of_its_files(tmp_path: Path, version: int) -> None:
    index = make(tmp_path / "repo", version)
    git(tmp_path / "repo", "update-index", "--add", "--cacheinfo", f"160000,{'a' * 40},linked")
    listed = git(tmp_path / "repo", "ls-files", "--stage").splitlines()
    expected = [line.split()[1] for line in listed if not line.startswith("160000")]
    assert list_objects(index.read_bytes()) == expected
    with pytest.raises((ValueError, IndexError)):
        list_objects(index.read_bytes()[:-1])


@needs_git
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("version", [2, 4])
def test_index_in_which_anything_was_staged_is_another_one(tmp_path: Path, version: int, change: str) -> None:
    index = make(tmp_path / "repo", version)
    before = index.read_bytes()
    CHANGES[change](tmp_path / "repo")
    assert index.read_bytes() != before
    assert not is_refreshed(before, index.read_bytes())


@needs_git
def test_index_with_conflicting_stages_is_another_one(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    index = make(repo)
    git(repo, "checkout", "-qb", "other")
    (repo / "a").write_text("one")
    git(repo, "commit", "-qam", "one")
    git(repo, "checkout", "-q", "main")
    (repo / "a").write_text("two")
    git(repo, "commit", "-qam", "two")
    before = index.read_bytes()
    with pytest.raises(subprocess.CalledProcessError):
        git(repo, "merge", "-q", "other")
    assert not is_refreshed(before, index.read_bytes())
    conflicted = index.read_bytes()
    os.utime(repo / "d" / "e", ns=(0, 10**18))
    git(repo, "status")
    assert conflicted != index.read_bytes()
    assert is_refreshed(conflicted, index.read_bytes())


@needs_git
def test_index_whose_entries_are_in_another_file_is_in_doubt(tmp_path: Path) -> None:
    index = make(tmp_path / "repo")
    git(tmp_path / "repo", "update-index", "--split-index")
    assert not is_refreshed(index.read_bytes(), index.read_bytes())


def sealed(body: bytes) -> bytes:
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def entry(
    name: bytes = b"name", *, stamp: bytes = b"s" * 24, flags: int = 4, mode: bytes = b"\0\0\x81\xa4"
) -> bytes:
    data = stamp + mode + stamp[:12] + b"o" * 20 + flags.to_bytes(2, "big") + name
    return data.ljust((len(data) + 8) // 8 * 8, b"\0")


def index_of(*entries: bytes, version: int = 2, count: int | None = None, rest: bytes = b"") -> bytes:
    number = len(entries) if count is None else count
    return sealed(b"DIRC" + version.to_bytes(4, "big") + number.to_bytes(4, "big") + b"".join(entries) + rest)


WHOLE = index_of(entry(), entry(b"other"), rest=b"TREE\0\0\0\1x")


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (WHOLE, True),
        (index_of(entry(stamp=b"t" * 24), entry(b"other")), True),
        (index_of(entry(), entry(b"other"), rest=b"UNTR\0\0\0\0"), True),
        (index_of(entry(), entry(b"other"), rest=b"REUC\0\0\0\1x"), False),
        (index_of(entry(), entry(b"other"), rest=b"link\0\0\0\0"), False),
        (index_of(entry(), entry(b"other"), rest=b"TREE\0\0\0\2x"), False),
        (index_of(entry(), entry(b"other"), rest=b"TREE\0\0"), False),
        (index_of(entry(), entry(b"others")), False),
        (index_of(entry(flags=0x8004), entry(b"other")), False),
        (index_of(entry(flags=0x1004), entry(b"other")), False),
        (index_of(entry(flags=0x4004), entry(b"other")), False),
        (index_of(entry(mode=b"\0\0\x81\xed"), entry(b"other")), False),
        (index_of(entry()), False),
        (index_of(entry(), entry(b"other"), count=3), False),
        (index_of(entry(), entry(b"other"), count=2**32 - 1), False),
        (index_of(entry(), entry(b"other"), version=5), False),
        (index_of(entry(), entry(b"other"), version=4), False),
        (index_of(entry()[:-1] + b"x", entry(b"other")), False),
        (WHOLE[:-1] + b"x", False),
        (WHOLE[:-21], False),
        (b"", False),
    ],
)
def test_index_is_the_same_only_where_nothing_is_in_doubt(other: bytes, is_same: bool) -> None:
    assert is_refreshed(WHOLE, other) is is_same
    assert is_refreshed(other, WHOLE) is is_same


def test_index_that_is_too_large_is_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_index, "MAX_BYTES", len(WHOLE) - 1)
    assert not is_refreshed(WHOLE, WHOLE)


@given(st.binary(max_size=200), st.integers(0, 400), st.sampled_from([2, 3, 4]))
def test_index_of_any_bytes_is_no_error(data: bytes, at: int, version: int) -> None:
    body = b"DIRC" + version.to_bytes(4, "big") + (1 + at % 3).to_bytes(4, "big") + data
    for one in (data, body, sealed(body), sealed(WHOLE[:at] + data + WHOLE[at + len(data) : -20])):
        assert is_refreshed(one, WHOLE) == is_refreshed(WHOLE, one)
        is_refreshed(one, one)


@pytest.mark.timeout(60)
def test_index_of_long_names_takes_time_for_its_size_alone() -> None:
    first = b"s" * 60 + b"\0\4" + b"\0" + b"n" * 4000 + b"\0"
    short = b"s" * 60 + b"\0\4" + b"\0" + b"\0"
    many = index_of(first, *[short] * 200_000, version=4)
    began = time.process_time()
    assert is_refreshed(many, many)
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        (".git/index", True),
        ("sub/.git/index", True),
        (".git/worktrees/one/index", True),
        (".git/modules/a/b/index", True),
        (".git/modules/index", False),
        (".git/worktrees/index", False),
        (".git/hooks/index", False),
        (".git/refs/heads/index", False),
        ("index", False),
        (".git", False),
        ("a/index", False),
        (".git/index/other", False),
    ],
)
def test_index_is_known_by_its_place(path: str, is_one: bool) -> None:
    assert is_index(tuple(path.split("/"))) is is_one


@needs_git
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(sorted(CHANGES)), max_size=3, unique=True), st.integers(0, 5))
def test_index_is_the_same_if_and_only_if_git_lists_the_same(
    tmp_path_factory: pytest.TempPathFactory, changes: list[str], touched: int
) -> None:
    repo = tmp_path_factory.mktemp("top") / "repo"
    index = make(repo, 4)

    def listed() -> str:
        return git(repo, "ls-files", "--stage", "-v", "-t") + git(repo, "ls-files", "--stage")

    before, listing = index.read_bytes(), listed()
    for change in changes:
        with suppress(
            subprocess.CalledProcessError, OSError
        ):  # one that was made may keep it from being made
            CHANGES[change](repo)
    with suppress(FileNotFoundError):  # one of the changes gives it another name
        os.utime(repo / NAMES[touched], ns=(0, 10**18))
    git(repo, "status")
    assert is_refreshed(before, index.read_bytes()) == (listing == listed())


@needs_git
def test_status_of_a_person_keeps_no_commit_from_being_undone_and_redone(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    index = make(repo)
    chain = Checkpoints(repo, tmp_path / "store")
    chain.begin("c", "tool", "s")
    (repo / "a").write_text("changed")
    git(repo, "commit", "-qam", "of the call")
    chain.end("c")

    times = itertools.count(10**18, 10**9)

    def refresh() -> None:
        os.utime(repo / "d" / "e", ns=(0, next(times)))
        before = index.read_bytes()
        git(repo, "status")
        assert index.read_bytes() != before

    refresh()
    undone = chain.move("undo", chain.steps)
    assert (undone.done, undone.conflicts) == (True, ())
    assert git(repo, "log", "--format=%s") == "all\n"
    assert git(repo, "status", "--porcelain", "-uno") == ""
    refresh()
    redone = chain.move("redo", chain.undone)
    assert (redone.done, redone.conflicts) == (True, ())
    assert git(repo, "log", "--format=%s") == "of the call\nall\n"
    (repo / "new").write_text("staged by a person")
    git(repo, "add", "new")
    refused = chain.move("undo", chain.steps)
    assert [path for path, _ in refused.conflicts] == [".git/index"]
    chain.close()
