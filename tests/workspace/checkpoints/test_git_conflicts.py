"""A person adds to a repository what needs the objects of a call that is undone."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.workspace.checkpoints import git_conflicts
from aisotools.workspace.checkpoints.git_conflicts import NEEDS_OBJECTS
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.timeline import Checkpoints
from tests.waiting import file_times_advance
from tests.workspace.test_git_index import git, needs_git

pytestmark = needs_git


def commit(root: Path, name: str = "a") -> None:
    (root / name).write_text(f"{name} again")
    git(root, "add", ".")
    git(root, "commit", "-qm", "another")


def commit_and_pack(root: Path) -> None:
    commit(root)
    git(root, "gc", "-q", "--prune=now")


def commit_and_repack(root: Path) -> None:
    commit(root)
    git(root, "repack", "-dq")


def stash(root: Path) -> None:
    (root / "b").write_text("work")
    git(root, "stash")


def stash_twice(root: Path) -> None:
    stash(root)
    git(root, "reset", "-q", "--hard", "HEAD")
    (root / "b").write_text("other work")
    git(root, "stash")
    git(root, "stash", "drop", "-q", "stash@{1}")


def commit_on_branch(root: Path) -> None:
    """Leave the branch of the call, its index and its files as they were."""
    tree = git(root, "rev-parse", "HEAD^{tree}").strip()
    new = git(root, "commit-tree", "-p", "HEAD", "-m", "on top", tree).strip()
    newer = git(root, "commit-tree", "-p", new, "-m", "on top of that", tree).strip()
    git(root, "update-ref", "refs/heads/other", newer)


def commit_old_tree(root: Path) -> None:
    tree = git(root, "rev-parse", "HEAD~1^{tree}").strip()
    new = git(root, "commit-tree", "-p", "HEAD~1", "-m", "beside", tree).strip()
    git(root, "update-ref", "refs/heads/other", new)


def commit_call_file(root: Path) -> None:
    """Make a commit that has nothing of the call but a file's content."""
    blob = git(root, "rev-parse", "HEAD:a").strip()
    tree = git(root, "mktree", text=f"100644 blob {blob}\tcopied\n").strip()
    new = git(root, "commit-tree", "-m", "alone", tree).strip()
    git(root, "update-ref", "refs/heads/other", new)


def detach(root: Path) -> None:
    git(root, "checkout", "-q", "--detach")


def add_worktree(root: Path) -> None:
    git(root, "worktree", "add", "-q", "--detach", "../beside")


def remove_branch(root: Path) -> None:
    git(root, "branch", "keep")
    git(root, "branch", "-D", "keep")


NEEDING: dict[str, Callable[[Path], object]] = {
    "a branch": lambda root: git(root, "branch", "keep"),
    "a tag": lambda root: git(root, "tag", "keep"),
    "a tag with a text": lambda root: git(root, "tag", "-a", "-m", "text", "keep"),
    "another kind of reference": lambda root: git(root, "update-ref", "refs/notes/x", "HEAD"),
    "a packed branch": lambda root: (git(root, "branch", "keep"), git(root, "pack-refs", "--all")),
    "a stash": stash,
    "another stash": stash_twice,
    "a commit on top": commit_on_branch,
    "a commit with one of its files": commit_call_file,
    "a detached head": detach,
    "a worktree": add_worktree,
}
OTHERS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _root: None,
    "status": lambda root: git(root, "status"),
    "a branch of the old commit": lambda root: git(root, "branch", "keep", "HEAD~1"),
    "a tag of the old commit": lambda root: git(root, "tag", "-a", "-m", "text", "keep", "HEAD~1"),
    "a commit beside": commit_old_tree,
    "a symbolic reference": lambda root: git(root, "symbolic-ref", "refs/heads/x", "refs/heads/main"),
    "a branch that was removed": remove_branch,
}


def fetch(root: Path) -> None:
    """Fetch a pack, as a call."""
    upstream = root.parent / "upstream"
    git(root.parent, "clone", "-q", str(root), str(upstream))
    commit(upstream, "b")
    git(root, "-c", "fetch.unpackLimit=1", "fetch", "-q", str(upstream), "main:refs/remotes/origin/main")


def commit_large(root: Path) -> None:
    (root / "large").write_bytes(os.urandom(9 << 20))
    blob = git(root, "hash-object", "-w", "large").strip()
    tree = git(root, "mktree", text=f"100644 blob {blob}\tlarge\n").strip()
    git(root, "update-ref", "refs/heads/large", git(root, "commit-tree", "-m", "large", tree).strip())


def touch_and_ask(root: Path) -> None:
    os.utime(root / "a", ns=(0, 10**18))
    git(root, "status")


def push_pack(root: Path) -> None:
    """Push a branch on top of what is there, in a pack, as a person."""
    clone = root.parent / "clone"
    git(root.parent, "clone", "-q", str(root), str(clone))
    commit(clone, "b")
    git(root, "config", "receive.unpackLimit", "1")
    git(clone, "push", "-q", "origin", "HEAD:refs/heads/feature")
    git(root, "config", "--unset", "receive.unpackLimit")


PACKED: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "a pack that is fetched, and a status": (fetch, lambda root: git(root, "status")),
    "a pack that is fetched, and a branch": (fetch, lambda root: git(root, "branch", "mine")),
    "packs that are joined, and a status": (
        lambda root: git(root, "repack", "-adfq"),
        touch_and_ask,
    ),
    "a branch, and one named index": (
        lambda root: git(root, "branch", "of-the-call"),
        lambda root: git(root, "branch", "index"),
    ),
    "a branch, and one in a folder": (
        lambda root: git(root, "branch", "of-the-call"),
        lambda root: git(root, "branch", "x/index"),
    ),
    "a blob, and a large file": (
        lambda root: git(root, "hash-object", "-w", "--stdin", text="of the call"),
        commit_large,
    ),
}


class Repository:
    """A repository in which a call has made a commit."""

    def __init__(self, top: Path, call: Callable[[Path], object] = commit) -> None:
        self.root = top / "workspace"
        self.root.mkdir()
        git(self.root, "init", "-q", "-b", "main")
        for name in ("a", "b"):
            (self.root / name).write_text(name)
        commit(self.root, "c")
        self.chain = Checkpoints(self.root, top / "store")
        self.chain.begin("1", "tool", "s")
        call(self.root)
        self.chain.end("1")
        file_times_advance()

    def undo(self, count: int = 1, *, force: bool = False) -> UndoResult:
        steps = list(self.chain.steps)[: -count - 1 : -1]
        return self.chain.move("undo", steps, force=force)


@pytest.mark.parametrize("call", [commit, commit_and_pack])
@pytest.mark.parametrize("what", NEEDING)
def test_reference_to_objects_of_a_call_is_a_conflict(
    tmp_path: Path, what: str, call: Callable[[Path], object]
) -> None:
    repository = Repository(tmp_path, call)
    NEEDING[what](repository.root)
    refused = repository.undo()
    assert not refused.done
    assert refused.conflicts
    git(repository.root, "fsck", "--strict", "--no-reflogs")


@pytest.mark.parametrize("what", ["a branch", "a tag with a text", "a commit on top", "a packed branch"])
def test_reason_names_the_reference(tmp_path: Path, what: str) -> None:
    repository = Repository(tmp_path)
    NEEDING[what](repository.root)
    reasons = dict(repository.undo().conflicts)
    names = {path for path, why in reasons.items() if why == NEEDS_OBJECTS}
    assert names
    assert all(name.startswith((".git/refs/", ".git/packed-refs")) for name in names)
    assert repository.undo(force=True).done


@pytest.mark.parametrize("what", OTHERS)
def test_work_that_needs_no_objects_of_a_call_is_no_conflict(tmp_path: Path, what: str) -> None:
    repository = Repository(tmp_path)
    OTHERS[what](repository.root)
    assert repository.undo().done
    git(repository.root, "fsck", "--strict", "--no-reflogs")
    assert git(repository.root, "status", "--short") == ""
    assert (repository.root / "a").read_text() == "a"


@pytest.mark.parametrize("call", [commit, commit_and_repack, commit_and_pack])
def test_branch_in_a_pack_of_somebody_else_is_a_conflict(
    tmp_path: Path, call: Callable[[Path], object]
) -> None:
    """What is in the pack is not looked into."""
    repository = Repository(tmp_path, call)
    push_pack(repository.root)
    conflicts = dict(repository.undo().conflicts)
    assert conflicts[".git/refs/heads/feature"] == NEEDS_OBJECTS
    git(repository.root, "fsck", "--strict", "--no-reflogs")


def test_branch_among_packed_references_that_is_checked_out_is_a_conflict(tmp_path: Path) -> None:
    def add_branch(root: Path) -> None:
        git(root, "branch", "other")
        git(root, "pack-refs", "--all")

    repository = Repository(tmp_path, add_branch)
    git(repository.root, "checkout", "-q", "other")
    assert (".git/HEAD", NEEDS_OBJECTS) in repository.undo().conflicts
    git(repository.root, "checkout", "-q", "main")
    git(repository.root, "checkout", "-q", "-b", "mine")
    assert repository.undo().done
    assert git(repository.root, "log", "--oneline")


def test_packs_beyond_those_that_are_read_are_a_conflict(tmp_path: Path) -> None:
    """Each of them would be asked for each file of an index."""
    empty = b"\xfftOc\x00\x00\x00\x02" + bytes(4 * 256)

    def add_packs(root: Path) -> None:
        for number in range(200):
            data = empty + hashlib.sha1(b"%d" % number).digest() * 2
            (root / ".git" / "objects" / "pack" / f"pack-{number}.idx").write_bytes(data)

    repository = Repository(tmp_path, add_packs)
    (repository.root / "new").write_text("new")
    git(repository.root, "add", "new")
    file_times_advance()
    assert (".git/index", NEEDS_OBJECTS) in repository.undo().conflicts


@pytest.mark.parametrize("what", PACKED)
def test_work_on_what_is_packed_is_no_conflict(tmp_path: Path, what: str) -> None:
    call, work = PACKED[what]
    repository = Repository(tmp_path, lambda root: None)
    git(repository.root, "gc", "-q", "--prune=now")
    file_times_advance()
    repository.chain.begin("2", "tool", "s")
    call(repository.root)
    repository.chain.end("2")
    file_times_advance()
    work(repository.root)
    undone = repository.undo()
    assert (undone.done, undone.conflicts) == (True, ())
    git(repository.root, "fsck", "--strict", "--no-reflogs")


def test_redo_of_a_call_that_packs_is_no_conflict_with_a_new_branch(tmp_path: Path) -> None:
    repository = Repository(tmp_path, commit_and_pack)
    assert repository.undo().done
    git(repository.root, "branch", "mine")
    git(repository.root, "status")
    file_times_advance()
    redone = repository.chain.move("redo", repository.chain.undone[-1:])
    assert (redone.done, redone.conflicts) == (True, ())
    git(repository.root, "fsck", "--strict", "--no-reflogs")


@pytest.mark.parametrize(
    "work", [("checkout", "-q", "other"), ("symbolic-ref", "refs/heads/x", "refs/heads/other")]
)
def test_symbolic_reference_to_a_branch_of_the_call_is_a_conflict(
    tmp_path: Path, work: tuple[str, ...]
) -> None:
    repository = Repository(tmp_path, lambda root: git(root, "branch", "other"))
    git(repository.root, *work)
    conflicts = dict(repository.undo().conflicts)
    assert {path for path, why in conflicts.items() if why == NEEDS_OBJECTS} & {
        ".git/HEAD",
        ".git/refs/heads/x",
    }


def test_symbolic_reference_to_one_right_below_refs_is_a_conflict(tmp_path: Path) -> None:
    repository = Repository(tmp_path, lambda root: git(root, "update-ref", "refs/top", "HEAD"))
    git(repository.root, "symbolic-ref", "refs/heads/x", "refs/top")
    assert dict(repository.undo().conflicts).get(".git/refs/heads/x") == NEEDS_OBJECTS


def bomb(count: int) -> dict[str, bytes]:
    """Return loose objects, by their names, each of which takes megabytes once it is inflated."""
    objects: dict[str, bytes] = {}
    inner = b"\0" * 20
    for number in range(count):
        entries = b"".join(b"40000 %d\0%s" % (place, inner) for place in range(200_000))
        data = b"tree %d\0" % len(entries) + entries
        name = f"{number + 1:040x}"
        objects[name] = zlib.compress(data)
        inner = bytes.fromhex(name)
    return objects


def test_objects_that_inflate_to_much_are_bounded_together(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    objects = bomb(4)
    for name, data in objects.items():
        place = repository.root / ".git" / "objects" / name[:2]
        place.mkdir(exist_ok=True)
        (place / name[2:]).write_bytes(data)
    (repository.root / ".git" / "refs" / "heads" / "evil").write_text(f"{[*objects][-1]}\n")
    file_times_advance()
    repository.chain.snapshot()
    tracemalloc.start()
    try:
        refused = repository.undo()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert ".git/refs/heads/evil" in dict(refused.conflicts)
    assert peak < 64 << 20


def test_object_in_a_folder_that_the_call_has_made_stays_and_is_no_conflict(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    new = git(repository.root, "rev-parse", "HEAD").strip()
    number = 0
    while True:
        blob = git(repository.root, "hash-object", "--stdin", text=f"{number}").strip()
        if blob[:2] == new[:2]:
            break
        number += 1
    git(repository.root, "hash-object", "-w", "--stdin", text=f"{number}")
    file_times_advance()
    undone = repository.undo()
    assert (undone.done, undone.conflicts) == (True, ())
    assert git(repository.root, "cat-file", "-p", blob) == f"{number}"
    names = [path.name for path in (repository.root / ".git" / "objects" / new[:2]).iterdir()]
    assert (blob[2:] in names, new[2:] in names) == (True, False)
    redone = repository.chain.move("redo", repository.chain.undone[-1:])
    assert (redone.done, redone.conflicts) == (True, ())
    git(repository.root, "fsck", "--strict", "--no-reflogs")


def test_object_in_a_repository_that_the_call_has_made_is_a_conflict(tmp_path: Path) -> None:
    def make(root: Path) -> None:
        (root / "inner").mkdir()
        git(root / "inner", "init", "-q", "-b", "main")
        commit(root / "inner")

    repository = Repository(tmp_path, make)
    objects = repository.root / "inner" / ".git" / "objects"
    folder = next(path for path in objects.iterdir() if len(path.name) == 2)
    (folder / ("0" * 38)).write_text("of a person")
    file_times_advance()
    refused = repository.undo()
    assert [path for path, _ in refused.conflicts] == [f"inner/.git/objects/{folder.name}/{'0' * 38}"]


@pytest.mark.parametrize("around", ["repository", "folder"])
@pytest.mark.parametrize("name", ["objects/ab", "objects"])
@pytest.mark.parametrize("before", ["file", "link"])
def test_folder_of_objects_that_was_something_else_is_a_conflict(
    tmp_path: Path, before: str, name: str, around: str
) -> None:
    root = tmp_path / "workspace"
    (root / name).parent.mkdir(parents=True)
    if around == "repository":
        (root / "HEAD").write_text("ref: refs/heads/main")
    if before == "file":
        (root / name).write_text("before")
    else:
        (root / name).symlink_to("nowhere")
    chain = Checkpoints(root, tmp_path / "store")
    chain.begin("1", "tool", "s")
    (root / name).unlink()
    (root / "objects" / "ab").mkdir(parents=True)
    (root / "objects" / "ab" / "x").write_text("of the call")
    chain.end("1")
    file_times_advance()
    (root / "objects" / "ab" / "p").write_text("of a person")
    file_times_advance()
    refused = chain.move("undo", chain.steps[-1:])
    assert (refused.done, [path for path, _ in refused.conflicts]) == (False, ["objects/ab/p"])
    assert (root / "objects" / "ab" / "x").read_text() == "of the call"
    chain.close()


def test_folder_of_objects_outside_a_repository_is_a_folder_like_others(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    (root / "objects").mkdir(parents=True)
    chain = Checkpoints(root, tmp_path / "store")
    chain.begin("1", "tool", "s")
    (root / "objects" / "ab").mkdir()
    chain.end("1")
    (root / "objects" / "ab" / "p").write_text("of a person")
    file_times_advance()
    assert [path for path, _ in chain.move("undo", chain.steps[-1:]).conflicts] == ["objects/ab/p"]
    chain.close()


def test_clone_that_shares_objects_is_not_seen(tmp_path: Path) -> None:
    """A limit, which README names."""
    repository = Repository(tmp_path)
    git(tmp_path, "clone", "-q", "--shared", str(repository.root), str(tmp_path / "clone"))
    assert repository.undo().done
    with pytest.raises(subprocess.CalledProcessError):
        git(tmp_path / "clone", "fsck")


def test_branch_of_an_earlier_call_is_a_conflict_of_an_undo_of_both(tmp_path: Path) -> None:
    repository = Repository(tmp_path)
    git(repository.root, "branch", "keep")
    file_times_advance()
    repository.chain.begin("2", "tool", "s")
    commit(repository.root, "b")
    repository.chain.end("2")
    file_times_advance()
    assert [path for path, _ in repository.undo(2).conflicts] == [".git/refs/heads/keep"]
    assert repository.undo(1).done
    git(repository.root, "fsck", "--strict", "--no-reflogs")


def test_file_that_is_staged_with_a_content_of_the_call_is_a_conflict(tmp_path: Path) -> None:
    """The object is there already, so nothing but the index is written."""

    def store_blob(root: Path) -> None:
        (root / "new").write_text("content")
        git(root, "hash-object", "-w", "new")

    repository = Repository(tmp_path, store_blob)
    git(repository.root, "add", "new")
    assert [path for path, _ in repository.undo().conflicts] == [".git/index"]


def test_more_objects_than_are_followed_count_as_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(tmp_path)
    commit_old_tree(repository.root)
    monkeypatch.setattr(git_conflicts, "_MOST_OBJECTS", 1)
    assert [path for path, _ in repository.undo().conflicts] == [".git/refs/heads/other"]


@pytest.mark.parametrize(
    ("limit", "value"), [("_MOST_REPOSITORIES", 0), ("_MOST_BYTES", 10), ("_MOST_OBJECTS", 0)]
)
def test_limit_of_what_is_followed_puts_the_rest_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """A tag of the old commit is no conflict, and none is found if it may be followed."""
    repository = Repository(tmp_path)
    OTHERS["a tag of the old commit"](repository.root)
    monkeypatch.setattr(git_conflicts, limit, value)
    assert dict(repository.undo().conflicts)[".git/refs/tags/keep"] == NEEDS_OBJECTS
    monkeypatch.undo()
    assert repository.undo().done


def test_repository_right_at_the_limit_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(tmp_path)
    OTHERS["a commit beside"](repository.root)
    monkeypatch.setattr(git_conflicts, "_MOST_REPOSITORIES", 1)
    assert repository.undo().done


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ((".git", "objects", "ab"), True),
        (("objects", "0f"), True),
        ((".git", "objects", "abc"), False),
        ((".git", "objects", "AB"), False),
        ((".git", "objects", "info"), False),
        ((".git", "refs", "ab"), False),
        (("ab",), False),
    ],
)
def test_folder_of_objects_is_told_by_its_name_and_the_one_around_it(
    path: tuple[str, ...], is_one: bool
) -> None:
    assert git_conflicts.is_object_folder(path) is is_one


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"no object", b"\x78\x9c\x03\x00\x00\x00\x00\x01", bytes(100)),
        *map(zlib.compress, (b"junk 3\0abc", b"commit 3", b"tree", b"commits 3\0abc")),
    ],
)
def test_object_that_cannot_be_read_counts_as_one_that_needs_them(tmp_path: Path, data: bytes) -> None:
    repository = Repository(tmp_path)
    name = "ab" + "cd" * 19
    place = repository.root / ".git" / "objects" / name[:2]
    place.mkdir(exist_ok=True)
    (place / name[2:]).write_bytes(data)
    (repository.root / ".git" / "refs" / "heads" / "other").write_text(f"{name}\n")
    assert [path for path, _ in repository.undo().conflicts] == [".git/refs/heads/other"]


def test_folder_of_another_kind_is_no_repository(tmp_path: Path) -> None:
    def work(root: Path) -> None:
        for name in ("objects/ab/cd", "other/objects/ef/gh"):
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text("a model")

    repository = Repository(tmp_path, work)
    (repository.root / "refs").mkdir()
    (repository.root / "refs" / "list").write_text("ab" * 20)
    assert repository.undo().done
