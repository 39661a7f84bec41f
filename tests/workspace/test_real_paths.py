"""How real paths lie to each other."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from aisotools.workspace import real_paths
from aisotools.workspace.real_paths import (
    MountWatch,
    RealPaths,
    _parse_mounts,
    count_links,
    find_hard_links,
    find_places,
    follow_path,
    is_small,
    leads_into,
    lies_to,
    links_on_way,
    list_below,
    list_links,
    parents,
    real_path,
    resolve_links,
)
from tests.sandbox.alone import in_one_thread


@pytest.mark.parametrize(
    ("workspace", "folder", "expected"),
    [
        ("/a/b", "/a/b", "is"),
        ("/a", "/a/b", "contains"),
        ("/", "/a", "contains"),
        ("/a/b/c", "/a", "lies in"),
        ("/a", "/", "lies in"),
        ("/a/bc", "/a/b", ""),
        ("/a/b", "/a/bc", ""),
    ],
)
def test_a_folder_is_contains_or_lies_in_another(workspace: str, folder: str, expected: str) -> None:
    assert lies_to(workspace, folder) == expected


def test_a_path_leads_into_a_folder_through_links_in_and_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "in").symlink_to("../inside/file")
    (inside / "out").symlink_to(outside)
    (outside / "circle").symlink_to("circle")
    folders = {str(inside)}
    assert leads_into(f"{inside}/file", folders)
    assert leads_into(f"{outside}/in", folders)
    assert leads_into(f"{inside}/out/file", folders)
    assert leads_into(f"{outside}/./x/../../inside/x", folders)
    assert not leads_into(f"{outside}/file", folders)
    assert not leads_into(f"{outside}/circle", folders)
    monkeypatch.chdir(outside)
    assert leads_into("in", folders)
    outside.rename(tmp_path / "gone")
    (tmp_path / "gone" / "in").unlink()
    (tmp_path / "gone" / "circle").unlink()
    (tmp_path / "gone").rmdir()
    assert not leads_into("in", folders)


def test_a_resolved_path_has_no_links_and_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    paths = RealPaths()
    path = f"{tmp_path}/link/file"
    assert paths.resolve(path) == f"{tmp_path}/folder/file"
    (tmp_path / "link").unlink()
    assert paths.resolve(path) == f"{tmp_path}/folder/file", "within one look"
    assert RealPaths().resolve(path) == path
    assert paths.resolve(f"{tmp_path}/folder/../folder") == f"{tmp_path}/folder"
    assert paths.resolve("/") == "/"


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_path_is_resolved_alike_whether_its_folder_was_listed_before_or_not(
    tmp_path: Path, is_listed: bool
) -> None:
    """What replaces a name after the listing is seen, and what is missing is taken as it is written."""
    folder = tmp_path / "folder"
    (tmp_path / "elsewhere" / "sub").mkdir(parents=True)
    (folder / "sub").mkdir(parents=True)
    (folder / "link").symlink_to("../elsewhere")
    names = ("sub", "link/sub", "nothing/x")
    before = [f"{folder}/sub", f"{tmp_path}/elsewhere/sub", f"{folder}/nothing/x"]
    after = [f"{tmp_path}/elsewhere", f"{folder}/link/sub", f"{folder}/nothing/x"]
    if is_listed:
        list_links(str(folder), lambda: time.time_ns() + 10**10)
        assert str(folder) in real_paths._listings
    assert [RealPaths().resolve(f"{folder}/{name}") for name in names] == before
    _wait_for_another_tick(folder)
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to("../elsewhere")
    (folder / "link").unlink()
    (folder / "link").mkdir()
    assert [RealPaths().resolve(f"{folder}/{name}") for name in names] == after


def test_links_are_listed_once_for_each_look(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("elsewhere")
    paths = RealPaths()
    assert paths.list_links(str(tmp_path)) == {"link"}
    (tmp_path / "other").symlink_to("elsewhere")
    assert paths.list_links(str(tmp_path)) == {"link"}
    assert RealPaths().list_links(str(tmp_path)) == {"link", "other"}
    assert paths.list_links(f"{tmp_path}/nothing") is None


def test_links_of_a_folder_are_listed_again_when_it_has_changed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "one").symlink_to("file")

    def later_ns() -> int:
        return time.time_ns() + 10**10

    assert list_links(str(tmp_path), later_ns) == {"one"}
    listing = real_paths._listings[str(tmp_path)]
    assert list_links(str(tmp_path), later_ns) == {"one"}
    assert real_paths._listings[str(tmp_path)] is listing, "an unchanged folder is not listed twice"
    _wait_for_another_tick(tmp_path)
    (tmp_path / "file").unlink()
    (tmp_path / "file").symlink_to("elsewhere")
    assert list_links(str(tmp_path), later_ns) == {"one", "file"}
    with pytest.raises(FileNotFoundError):
        list_links(f"{tmp_path}/nothing", later_ns)


def test_a_listing_is_not_remembered_within_one_tick_of_the_last_change(tmp_path: Path) -> None:
    """A link that is made in the same tick leaves the same times behind, where the clock is a coarse one."""
    changed_ns = max(tmp_path.stat().st_mtime_ns, tmp_path.stat().st_ctime_ns)
    assert list_links(str(tmp_path), lambda: changed_ns + 10**8) == frozenset()
    assert str(tmp_path) not in real_paths._listings
    assert list_links(str(tmp_path), lambda: changed_ns - 10**12) == frozenset()
    assert str(tmp_path) not in real_paths._listings, "the clock of the file system goes ahead"
    assert list_links(str(tmp_path), lambda: changed_ns + 10**10) == frozenset()
    assert str(tmp_path) in real_paths._listings


def _wait_for_another_tick(folder: Path) -> None:
    """Return when the clock of the file system shows another time than the folder has."""
    probe = folder.with_name(f"{folder.name}-probe")
    while True:
        probe.touch()
        os.utime(probe)
        if probe.stat().st_ctime_ns > folder.stat().st_ctime_ns:
            return


def test_links_on_the_way_of_a_path_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "a" / "c").symlink_to("/nothing/there")
    assert follow_path(f"{tmp_path}/b/./x/../y") == (f"{tmp_path}/a/y", [f"{tmp_path}/b"])
    assert follow_path(f"{tmp_path}/b/c/d") == ("/nothing/there/d", [f"{tmp_path}/b", f"{tmp_path}/a/c"])
    assert follow_path("/..") == ("/", [])
    monkeypatch.chdir(tmp_path)
    assert follow_path("b") == (f"{tmp_path}/a", [f"{tmp_path}/b"])
    (tmp_path / "d").symlink_to("d")
    with pytest.raises(OSError, match="Too many levels"):
        follow_path("d")
    assert parents("/a/b/c") == ["/a/b", "/a"]
    assert parents("/a") == parents("/") == []


def test_bind_mounts_show_a_folder_elsewhere(tmp_path: Path) -> None:
    """The mounts are made up. What they show is the same folder only where a link says so here."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "b b").symlink_to("a/b")
    (tmp_path / "c").symlink_to("a/b/c")
    (tmp_path / "covered").mkdir()
    escaped = str(tmp_path / "b b").replace(" ", "\\040")
    mounts = f"""
1 0 8:1 / / rw - ext4 x rw
2 1 8:1 {tmp_path}/a/b {escaped} rw - ext4 x rw
3 1 8:1 {tmp_path}/a/b {tmp_path}/covered rw - ext4 x rw
4 1 8:1 {tmp_path}/a/b/c {tmp_path}/c rw - ext4 x rw
5 1 0:5 / /proc rw - proc proc rw
6 1 0:4 mnt:[123] /run/x rw - nsfs x rw
"""
    folder = f"{tmp_path}/a/b"
    assert find_places(folder, mounts) == ((folder, f"{tmp_path}/b b"), (f"{tmp_path}/c",))
    assert find_places(f"{tmp_path}/b b", mounts)[0] == (f"{tmp_path}/b b", folder)
    below = find_places(f"{folder}/c", mounts)
    assert below == ((f"{folder}/c", f"{tmp_path}/b b/c", f"{tmp_path}/c"), ())
    assert find_places(folder, "") == find_places(folder, "1 2 3") == ((folder,), ())
    assert find_places(folder)[0][0] == folder


def test_layers_of_overlays_are_read_whatever_their_names() -> None:
    text = (
        r"1 0 0:39 /sub /m rw - overlay overlay rw,lowerdir=/l1:/l\0403\134:x::/a\054b,upperdir=/u\075"
        "\n2 0 0:40 / /n rw - overlay overlay rw,lowerdir+=/p,lowerdir+=/q,datadir+=/d"
        "\n3 0 0:41 / /r rw - overlay overlay rw,lowerdir=a:b,upperdir=c,workdir=w"
        "\n4 0 0:42 / /s rw - ext4 x rw,upperdir=/u"
        "\n5 0 0:43 / /t rw"
    )
    first, second, relative, other, short = _parse_mounts(text)
    assert (first.layers, first.upper) == (("/l1", "/l 3:x", "/a,b", "/u="), "/u=")
    assert (second.layers, second.upper) == (("/p", "/q", "/d"), "")
    assert (relative.layers, relative.upper) == (("a", "b", "c"), "c")
    assert [(one.layers, one.upper) for one in (other, short)] == [((), "")] * 2


def test_small_is_what_can_be_copied(tmp_path: Path) -> None:
    workspace = tmp_path
    (workspace / "secrets").mkdir()
    (workspace / "secrets" / "key").write_text("k")
    assert is_small(workspace, "secrets")
    assert is_small(workspace, "missing")
    with (workspace / "secrets" / "large").open("wb") as file:
        file.truncate((16 << 20) + 1)
    assert not is_small(workspace, "secrets")
    (workspace / "many").mkdir()
    for number in range(2_000):
        (workspace / "many" / str(number)).touch()
    assert not is_small(workspace, "many")


@pytest.mark.parametrize(
    "path",
    [
        *("file", "folder/inner", "folder/../file", "to_file", "to_folder/inner", "to_folder/../file"),
        *("nothing", "folder/nothing/more", "to_nothing", "to_nothing/more", "file/below", "up/file"),
        *("/", "/etc/..", "."),
        *("loop", "loop/more", "half_loop"),
    ],
)
def test_links_are_resolved_as_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "inner").touch()
    for name, target in {
        "to_file": "folder/../file",
        "to_folder": "./folder/",
        "up": f"../{tmp_path.name}",
        "to_nothing": "folder/gone/file",
        "half_loop": "to_file/../loop",
    }.items():
        (tmp_path / name).symlink_to(target)
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    if "loop" in path:  # Python leaves some of such a path out, the kernel opens none
        assert resolve_links(path) == f"{tmp_path}/{path}"
    else:
        assert resolve_links(path) == os.path.realpath(path)
        assert resolve_links(f"{tmp_path}/{path}") == os.path.realpath(f"{tmp_path}/{path}")
    assert resolve_links("a\0b") == f"{tmp_path}/a\0b"


@pytest.mark.parametrize("last", ["file", "nothing"])
def test_links_that_take_long_to_follow_are_left_as_they_are(tmp_path: Path, last: str) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "many0").symlink_to(last)
    (tmp_path / "long0").symlink_to("x/../" * 800 + last)
    for number in range(1_500):
        (tmp_path / f"many{number + 1}").symlink_to(f"many{number}")
    for number in range(35):
        (tmp_path / f"long{number + 1}").symlink_to("x/../" * 800 + f"long{number}")
    with pytest.raises(RecursionError):
        os.path.realpath(tmp_path / "many1500")  # the control
    assert resolve_links(f"{tmp_path}/many1500") == f"{tmp_path}/many1500"
    assert resolve_links(f"{tmp_path}/many39") == f"{tmp_path}/{last}"
    assert resolve_links(f"{tmp_path}/long1") == f"{tmp_path}/{last}"
    # The kernel follows it to what is there; where there is nothing, nobody does.
    expected = last if last == "file" else "long35"
    assert resolve_links(f"{tmp_path}/long35") == f"{tmp_path}/{expected}"
    with pytest.raises(OSError, match="Too many parts"):
        follow_path(f"{tmp_path}/long35")
    assert leads_into(f"{tmp_path}/long35", {"/elsewhere"}), "nobody knows, so it counts"
    assert not leads_into(f"{tmp_path}/long1", {"/elsewhere"})


def test_a_file_that_is_removed_while_links_are_resolved_has_no_path_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    kernel = os.readlink

    def remove_first(path: str) -> str:
        (tmp_path / "file").unlink(missing_ok=True)
        return kernel(path)

    monkeypatch.setattr(os, "readlink", remove_first)
    assert resolve_links(f"{tmp_path}/file") == f"{tmp_path}/file"


def test_a_path_is_followed_within_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "out").symlink_to("/")
    (tmp_path / "circle").symlink_to("circle")
    ends = [real_path(tmp_path, name) for name in ("a/x", "link/x", "out/x", "circle", "none")]
    assert ends == ["a/x", "a/x", None, None, "none"]


def test_further_names_of_files_are_found_and_those_elsewhere_counted(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "secrets").mkdir(parents=True)
    (workspace / "pub").mkdir()
    for name in ("one", "two", "three"):
        (workspace / "secrets" / name).write_text(name)
    assert find_hard_links(workspace, "secrets") == ([], 0)
    (workspace / "pub" / "hard").hardlink_to(workspace / "secrets" / "one")
    (workspace / "secrets" / "inside").hardlink_to(workspace / "secrets" / "two")
    assert find_hard_links(workspace, "secrets") == (["pub/hard"], 0)
    assert find_hard_links(workspace, "secrets/two") == (["secrets/inside"], 0)
    (tmp_path / "elsewhere").hardlink_to(workspace / "secrets" / "three")
    assert find_hard_links(workspace, "secrets") == (["pub/hard"], 1)
    assert find_hard_links(workspace, "none") == ([], 0)


def test_a_further_name_changes_the_count_and_a_new_file_that_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("1")
    (tmp_path / "a" / "link").symlink_to("b")
    paths = list_below(tmp_path, "a", 10)
    assert paths == ["a", "a/b", "a/b/file"]
    assert list_below(tmp_path, "a", 2) == ["a", "a/b"], "no more than are wanted"
    assert list_below(tmp_path, "missing", 10) == []
    before = count_links(tmp_path, paths)
    assert count_links(tmp_path, paths) == before
    (tmp_path / "a" / "b" / "file").write_text("2")
    assert count_links(tmp_path, paths) == before, "content does not matter"
    (tmp_path / "other").hardlink_to(tmp_path / "a" / "b" / "file")
    changed = count_links(tmp_path, paths)
    assert [path for path in paths if changed[path] != before[path]] == ["a/b/file"]
    os.utime(tmp_path / "a" / "b", ns=(1, 1))  # as a new file does
    assert count_links(tmp_path, paths)["a/b"] != before["a/b"]
    assert count_links(tmp_path, ["missing"]) == {"missing": None}


def test_the_watch_of_mounts_counts_changes_once_for_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = MountWatch()
    first = watch.count()
    assert first > 0
    assert watch.count() == first
    polls = iter([[(3, 8)], [], [(3, 8)]])
    monkeypatch.setattr(watch, "_poll", SimpleNamespace(poll=lambda _timeout: next(polls)))
    assert [watch.count() for _ in range(3)] == [first + 1, first + 1, first + 2]


def test_the_watch_of_mounts_counts_when_folders_that_they_show_are_moved() -> None:
    """The kernel reports no change then, but names other paths."""
    texts = iter([b"1 /a", b"1 /a", b"1 /b"])
    watch = MountWatch(lambda: next(texts))
    first = watch.read()
    assert first == (1, b"1 /a")
    assert watch.read() == first
    assert watch.read() == (2, b"1 /b")


def test_a_long_list_of_mounts_is_read_for_a_twentieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns, reads = 0, list[int]()

    def read() -> bytes:
        nonlocal now_ns
        now_ns += 1_000
        reads.append(now_ns)
        return b"x" * size

    def look_often() -> int:
        nonlocal now_ns
        reads.clear()
        for _ in range(1_000):
            now_ns += 100
            watch.count()
        return len(reads)

    size = 1 << 16
    watch = MountWatch(read, lambda: now_ns)
    assert look_often() == 1_000
    size += 1
    assert look_often() in {5, 6}
    monkeypatch.setattr(watch, "_poll", SimpleNamespace(poll=lambda _timeout: [(3, 8)]))
    assert look_often() == 1_000, "the kernel has reported a change"


def test_a_list_of_mounts_that_cannot_be_read_stays_as_it_was_until_it_can() -> None:
    texts: list[bytes | OSError] = [b"1", OSError(24, "Too many open files"), b"2"]

    def read() -> bytes:
        if isinstance(text := texts.pop(0), OSError):
            raise text
        return text

    watch = MountWatch(read)
    assert [watch.read() for _ in range(3)] == [(1, b"1"), (1, b"1"), (2, b"2")]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_watches_mounts_by_a_file_of_its_own() -> None:
    watch = MountWatch()
    before = watch.count()
    found = in_one_thread(lambda: {"is_closed": watch._file is None, "count": watch.count()})
    assert found["is_closed"]
    assert found["count"] > before


def test_links_on_the_way_to_a_path_are_listed_where_they_lie_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/link").symlink_to("../other")
    (tmp_path / "first").symlink_to("deep")
    (tmp_path / "other").symlink_to("/usr")
    (tmp_path / "round").symlink_to("round")
    assert links_on_way(tmp_path, "first/link/bin") == ["first", "deep/link", "other"]
    assert links_on_way(tmp_path, "deep/plain") == []
    assert links_on_way(tmp_path, "round") == []
