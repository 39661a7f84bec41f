"""Where paths lead: every spelling, every kind of link, and trees made up at random."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from aisotools.core.exceptions import PathOutside, WorkspaceError
from aisotools.sandbox.confinement import landlock
from aisotools.workspace import paths
from aisotools.workspace.workspace import Workspace
from tests.sandbox.alone import in_one_thread

CANARY = b"canary: nobody may read or change this"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def open_files() -> int:
    return len(names_in(Path("/proc/self/fd")))


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A victim beside the workspace, unchanged after every test."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "canary").write_bytes(CANARY)
    yield folder
    assert names_in(folder) == ["canary"]
    assert (folder / "canary").read_bytes() == CANARY


@pytest.fixture
def root(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / 'work "space" ünï $HOME'
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "a.txt").write_bytes(b"a")
    (folder / "d" / "b.txt").write_bytes(b"b")
    return folder


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root)


def read(workspace: Workspace, path: str) -> bytes:
    return workspace.read_bytes(path, max_bytes=1000)


# ---- spellings


@pytest.mark.parametrize(
    ("path", "leads_to"),
    [
        ("a.txt", "a.txt"),
        ("./a.txt", "a.txt"),
        ("d/../a.txt", "a.txt"),
        ("d/e/../../d//b.txt", "d/b.txt"),
        ("/workspace/d/b.txt", "d/b.txt"),
        ("//workspace/./a.txt", "a.txt"),
        ("/workspace", "."),
        (".", "."),
        ("./", "."),
        ("d/", "d"),
        ("d/e/..", "d"),
        ("d/..", "."),
        ("new.txt", "new.txt"),
        ("~", "~"),
        ("~root/x", None),
        ("$HOME", "$HOME"),
        ("%2e%2e", "%2e%2e"),
        ("..a", "..a"),
        ("a\\b", "a\\b"),
    ],
)
def test_spellings(workspace: Workspace, path: str, leads_to: str | None) -> None:
    if leads_to is None:
        with pytest.raises(FileNotFoundError):
            workspace.relative(path)
    else:
        assert workspace.relative(path) == leads_to


def test_own_absolute_path(workspace: Workspace, root: Path) -> None:
    assert read(workspace, f"{root}/d/b.txt") == b"b"
    assert workspace.relative(str(root)) == "."


def test_own_absolute_path_through_a_link(tmp_path: Path, root: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    workspace = Workspace(tmp_path / "alias")
    assert workspace.root == root
    assert read(workspace, f"{tmp_path}/alias/a.txt") == b"a"
    assert read(workspace, f"{root}/a.txt") == b"a"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../outside/canary",
        "d/../../outside/canary",
        "d/e/../../..",
        "/",
        "/etc/passwd",
        "/workspace/../outside/canary",
        "/workspaces/a.txt",
        "/work",
        "../" * 50 + "etc/passwd",
    ],
)
def test_outside(workspace: Workspace, path: str, tmp_path: Path) -> None:
    for attempt in (read, Workspace.relative, Workspace.stat):
        with pytest.raises(PathOutside, match="leads outside the workspace"):
            attempt(workspace, path)
    outcome = in_one_thread(lambda: {"message": refusal_of_writing(workspace, path, only_below=tmp_path)})
    assert "leads outside the workspace" in outcome["message"]


def refusal_of_writing(workspace: Workspace, path: str, *, only_below: Path) -> str:
    """Try to write, in a process that cannot change anything elsewhere. Return the refusal."""
    if landlock.abi():
        landlock.restrict(["/"], [str(only_below)])
    elif not Path(os.path.normpath(workspace.root / path)).is_relative_to(only_below):
        return "leads outside the workspace, which cannot be tried safely here"
    try:
        workspace.write_bytes(path, b"x")
    except PathOutside as error:
        return str(error)
    return "written"


def test_outside_absolute(workspace: Workspace, root: Path, outside: Path) -> None:
    for path in (f"{outside}/canary", f"{root}/../outside/canary", f"{root}-x/a", f"{root}x"):
        with pytest.raises(PathOutside):
            read(workspace, path)


@pytest.mark.parametrize("path", ["", "a\0b", "\0", "a\ud800"])
def test_no_path_at_all(workspace: Workspace, path: str) -> None:
    with pytest.raises(WorkspaceError):
        read(workspace, path)


def test_file_on_the_way(workspace: Workspace) -> None:
    for path in ("a.txt/", "a.txt/.", "a.txt/x", "a.txt/../a.txt"):
        with pytest.raises(NotADirectoryError):
            read(workspace, path)


def test_missing_on_the_way(workspace: Workspace, root: Path) -> None:
    for path in ("nope", "nope/x", "nope/../a.txt", "d/nope/../../a.txt"):
        with pytest.raises(FileNotFoundError, match="nope"):
            read(workspace, path)
    assert names_in(root) == ["a.txt", "d"]


def test_errors_carry_the_path_as_given(workspace: Workspace) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read(workspace, "d/../d/nope")
    assert caught.value.filename == "d/../d/nope"


def test_depth_is_bounded(workspace: Workspace) -> None:
    with pytest.raises(WorkspaceError, match="folders deep"):
        workspace.write_bytes("x/" * 1000 + "file", b"")
    assert not (workspace.root / "x").exists()
    deep = "x/" * 150 + "file"
    workspace.write_bytes(deep, b"deep")
    assert read(workspace, deep) == b"deep"


def test_names_too_long(workspace: Workspace, root: Path) -> None:
    for path in ("n" * 256, "new/" + "n" * 256):
        with pytest.raises(OSError, match="too long"):
            workspace.write_bytes(path, b"")
    assert not (root / "new").exists()
    workspace.write_bytes("ü" * 127, b"")


def test_root_that_went_away(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    workspace = Workspace(tmp_path / "ws")
    (tmp_path / "ws").rmdir()
    with pytest.raises(WorkspaceError, match=r"was moved or removed .* nothing is there now\. Move it back"):
        workspace.stat(".")


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_root_in_whose_place_something_else_is(tmp_path: Path, kind: str) -> None:
    place, moved = tmp_path / "ws", tmp_path / "moved"
    place.mkdir()
    (place / "f").write_text("ours")
    workspace, folder = Workspace(place), paths.OpenedFolder.of(place)
    place.rename(moved)
    other = tmp_path / "other"
    other.mkdir()
    (other / "f").write_text("another")
    if kind == "folder":
        other.rename(place)
    elif kind == "link":
        place.symlink_to(moved)
    else:
        place.write_text("another")
    before = open_files()
    for use in (workspace.check, folder.check, lambda: read(workspace, "f")):
        with pytest.raises(WorkspaceError, match=r"something else is in its place now\. Move it back"):
            use()
    with pytest.raises((WorkspaceError, OSError)):
        folder.open()
    assert not folder.is_in_place
    assert open_files() == before
    (place.rename if kind == "folder" else lambda _: place.unlink())(tmp_path / "aside")
    moved.rename(place)
    folder.check()
    os.close(folder.open())
    assert read(workspace, "f") == b"ours"


def test_root_that_cannot_be_looked_at(tmp_path: Path) -> None:
    above = tmp_path / "above"
    (above / "ws").mkdir(parents=True)
    folder = paths.OpenedFolder.of(above / "ws")
    above.rename(tmp_path / "moved")
    above.symlink_to("above")
    with pytest.raises(WorkspaceError, match=r"cannot be looked at: Too many levels of symbolic links\."):
        folder.check()


def test_folder_that_did_not_exist_is_not_compared(tmp_path: Path) -> None:
    folder = paths.OpenedFolder.of(tmp_path / "later")
    assert folder.is_in_place
    with pytest.raises(FileNotFoundError):
        folder.open()


def test_nothing_stays_open(workspace: Workspace, root: Path) -> None:
    (root / "loop").symlink_to("loop")
    (root / "up").symlink_to("../..")
    before = open_files()
    for path in ("a.txt", "d/e/../b.txt", "nope/x", "loop", "up/x", "d", "a.txt/x", "new/d/f", "new/../x"):
        try:
            read(workspace, path)
            workspace.write_bytes(path, b"x")
        except (OSError, WorkspaceError):
            continue
    list(workspace.walk())
    assert next(workspace.walk()).path == "."  # and abandoned
    assert open_files() == before


# ---- links


def test_links_with_too_many_parts_are_not_followed(workspace: Workspace, root: Path) -> None:
    (root / "x").mkdir()
    (root / "l0").symlink_to("file")
    for number in range(10):
        (root / f"l{number + 1}").symlink_to("x/../" * 800 + f"l{number}")
    (root / "file").write_text("text")
    assert workspace.read_bytes("l2", max_bytes=9) == b"text"
    with pytest.raises(WorkspaceError, match="'l10' leads through more than 5,000 folders by its links"):
        workspace.read_bytes("l10", max_bytes=9)


def test_links_inside_are_followed(workspace: Workspace, root: Path) -> None:
    (root / "link").symlink_to("d/b.txt")
    (root / "d" / "up").symlink_to("../a.txt")
    (root / "folder").symlink_to("d/e/..")
    (root / "absolute").symlink_to(root / "d")
    (root / "chain").symlink_to("link")
    (root / "d" / "e" / "back").symlink_to(root)
    assert read(workspace, "d/e/back/d/e/back/a.txt") == b"a"
    assert workspace.relative("d/e/back/d/b.txt") == "d/b.txt"
    assert read(workspace, "link") == b"b"
    assert read(workspace, "d/up") == b"a"
    assert read(workspace, "folder/b.txt") == b"b"
    assert read(workspace, "absolute/b.txt") == b"b"
    assert read(workspace, "chain") == b"b"
    assert workspace.relative("folder/../d/b.txt") == "d/b.txt"
    assert workspace.relative("chain", follow=False) == "chain"
    assert workspace.stat("link", follow=False).kind == "symlink"


def test_parent_of_a_linked_folder_is_the_physical_one(workspace: Workspace, root: Path) -> None:
    (root / "deep").symlink_to("d/e")
    assert workspace.relative("deep/../b.txt") == "d/b.txt"


@pytest.mark.parametrize(
    "target",
    ["../outside", "../outside/", "{outside}", "d/../../outside", "..", "/", "/workspace/../outside"],
)
def test_links_to_the_outside(workspace: Workspace, root: Path, outside: Path, target: str) -> None:
    (root / "link").symlink_to(target.format(outside=outside))
    (root / "second").symlink_to("link")
    for path in ("link/canary", "link/new", "second/canary", "d/../link/canary", "link/", "link/.."):
        with pytest.raises(PathOutside, match="through the link"):
            read(workspace, path)
        with pytest.raises(PathOutside):
            workspace.write_bytes(path, b"x")
    with pytest.raises(PathOutside):
        next(workspace.walk("link"))
    with pytest.raises(PathOutside), workspace.folder("link"):
        pytest.fail("looked into it")
    with pytest.raises(PathOutside), workspace.open("link"):
        pytest.fail("opened it")


def test_final_link_to_the_outside(workspace: Workspace, root: Path, outside: Path) -> None:
    (root / "file").symlink_to(outside / "canary")
    (root / "missing").symlink_to("../outside/new")
    for path in ("file", "missing"):
        with pytest.raises(PathOutside):
            read(workspace, path)
        with pytest.raises(PathOutside):
            workspace.write_bytes(path, b"x")
        with pytest.raises(PathOutside):
            workspace.stat(path)


def test_alias_means_nothing_in_links(workspace: Workspace, root: Path) -> None:
    (root / "link").symlink_to("/workspace/a.txt")
    with pytest.raises(PathOutside):
        read(workspace, "link")


def test_loops_and_long_chains(workspace: Workspace, root: Path) -> None:
    (root / "self").symlink_to("self")
    (root / "ping").symlink_to("pong")
    (root / "pong").symlink_to("ping/x")
    (root / "grow").symlink_to("grow/x")
    (root / "n0").symlink_to("a.txt")
    for number in range(1, 60):
        (root / f"n{number}").symlink_to(f"n{number - 1}")
    for path in ("self", "self/x", "ping", "pong", "grow", "n59"):
        with pytest.raises(OSError, match="Too many levels"):
            read(workspace, path)
    assert read(workspace, f"n{paths.MAX_LINKS - 1}") == b"a"


def test_link_bomb(workspace: Workspace, root: Path) -> None:
    """Each link names the next twice: 2**30 steps for whoever does not count."""
    (root / "l0").mkdir()
    for number in range(1, 31):
        (root / f"l{number}").symlink_to(f"l{number - 1}/../l{number - 1}")
    with pytest.raises(OSError, match="Too many levels"):
        read(workspace, "l30/x")


# ---- names as text


def test_shown() -> None:
    assert paths.as_utf8("grün") == "grün"
    assert paths.as_utf8(os.fsdecode(b"caf\xe9")) == r"caf\xe9"
    assert paths.printable(os.fsdecode(b"a\n\xe9\x1b[2J")) == r"a\n\xe9\x1b[2J"
    assert paths.printable("a\u202eb") == r"a\u202eb"
    assert paths.printable("naïve ファイル.txt") == "naïve ファイル.txt"


# ---- random trees

NAMES = st.sampled_from(["a", "b", "ä", "..", ".", "in", "out", "x y", "workspace"])
TARGETS = st.one_of(
    st.lists(NAMES, min_size=1, max_size=4).map("/".join),
    st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "{root}/" + "/".join(names)),
    st.sampled_from(["../outside", "{outside}", "{outside}/canary", "/", "/workspace/a", "../ws/a", "../ws"]),
)
PATHS = st.one_of(TARGETS, st.lists(NAMES, min_size=1, max_size=6).map("/".join))
TREES = st.lists(
    st.tuples(st.lists(NAMES, min_size=1, max_size=3), st.sampled_from(["file", "folder", "link"]), TARGETS),
    max_size=8,
)


def grow(root: Path, outside: Path, tree: list[tuple[list[str], str, str]]) -> None:
    for names, kind, target in tree:
        inner = [name for name in names if name not in {"..", "."}]
        where = root.joinpath(*inner)
        if not Path(os.path.realpath(where.parent)).is_relative_to(root):
            continue
        with suppress(OSError):
            if kind == "folder":
                where.mkdir()
            elif kind == "link":
                where.symlink_to(target.format(root=root, outside=outside))
            elif not where.is_symlink():
                where.write_bytes(b"inside")


@settings(max_examples=2 * settings().max_examples, deadline=None)
@given(tree=TREES, spelled=st.lists(PATHS, min_size=1, max_size=6))
def test_guard_against_random_trees(
    tree: list[tuple[list[str], str, str]],
    spelled: list[str],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder).resolve()
        root, outside = top / "ws", top / "outside"
        root.mkdir()
        outside.mkdir()
        (outside / "canary").write_bytes(CANARY)
        grow(root, outside, tree)
        workspace = Workspace(root)
        for path in (one.format(root=root, outside=outside) for one in spelled):
            try:
                entry = workspace.stat(path)
            except (OSError, WorkspaceError):
                entry = None
            if entry is not None:
                # Where we get at all, we get where the system would: inside.
                named = path.removeprefix("/workspace") if path.startswith("/workspace") else path
                real = os.path.realpath(named if named.startswith(str(root)) else f"{root}/{named}")
                assert real == os.path.normpath(root / entry.path)
                assert real == str(root) or real.startswith(f"{root}/")
            with suppress(OSError, WorkspaceError):
                assert read(workspace, path) != CANARY
            with suppress(OSError, WorkspaceError):
                workspace.write_bytes(path, b"written")
                assert read(workspace, path) == b"written"
        assert names_in(outside) == ["canary"]
        assert (outside / "canary").read_bytes() == CANARY
        assert names_in(top) == ["outside", "ws"]
