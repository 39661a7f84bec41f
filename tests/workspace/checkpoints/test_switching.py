"""A person saves, adds or removes a file at any moment of an undo or redo: it stays as the person left it.

Each case is one undo, with one change by a person right before one of its system calls. Whatever the result
says, no other path is half way: all are as before, or all are as after.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from aisotools.workspace.checkpoints import switching
from aisotools.workspace.checkpoints.moves import UndoResult
from aisotools.workspace.checkpoints.staging import switch_name
from aisotools.workspace.checkpoints.store import Store
from aisotools.workspace.checkpoints.switching import (
    ChangedMeanwhile,
    Switcher,
    has_stamp,
    looks_like,
    mark_of,
    put_back_displaced,
)
from aisotools.workspace.checkpoints.timeline import Checkpoints
from aisotools.workspace.checkpoints.tree import Node, TreePath, digest_below, stamp_text
from aisotools.workspace.dirfd import exchange, file_time, rename_new
from tests.points import by_points, points_of
from tests.waiting import file_times_advance
from tests.workspace.checkpoints.test_timeline_faults import CHANGES, LOOKS, places_of

Act = Literal["undo", "redo", "forced", "revert", "open"]
MINE = "by a person, and of another length"
BOTH = ["edited", "made", "gone", "new/inner", "tree/inner", "kind", "twin"]
"""Paths that the call has changed: what it has edited, made, removed, or turned into a folder."""


def fill(root: Path) -> None:
    for name in ("edited", "gone", "kind", "other"):
        (root / name).write_text(f"old {name}")
    (root / "tree").mkdir()
    (root / "tree" / "inner").write_text("old inner")
    (root / "twin").write_text("twin")
    os.link(root / "twin", root / "second")


def work(root: Path) -> None:
    (root / "edited").write_text("new")
    (root / "made").write_text("made")
    (root / "gone").unlink()
    (root / "kind").unlink()
    (root / "kind").mkdir()
    (root / "kind" / "file").write_text("x")
    (root / "new").mkdir()
    (root / "new" / "inner").write_text("x")
    (root / "tree" / "inner").unlink()
    (root / "tree").rmdir()
    (root / "twin").unlink()
    (root / "twin").write_text("alone")


def texts_of(root: Path) -> dict[str, str]:
    """Return the files and folders by path, each file with its content."""
    return {
        str(path.relative_to(root)): path.read_text() if path.is_file() else "/" for path in root.rglob("*")
    }


class Ended(BaseException):
    """Stands for the end of the process."""


class Calls:
    """Does something right before one of the system calls of this process, from 0 on; counts them."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, act: Callable[[], object]) -> None:
        self.count = 0
        self.was_done = False
        self._at, self._act, self._busy = at, act, False
        for name in [*CHANGES, *LOOKS]:
            for module, attribute in places_of(name):
                patch.setattr(module, attribute, self._watched(getattr(module, attribute)))

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not self._busy:
                number = self.count
                self.count += 1
                if number == self._at:
                    self._busy = self.was_done = True
                    self._act()
                    self._busy = False
            return real(*arguments, **options)

        return call


def save_whole(path: Path) -> None:
    """Save as an editor does that writes beside the file and renames."""
    beside = path.parent.parent / "beside"
    beside.write_text(MINE)
    if path.is_dir():
        path = path / "mine"
    if path.parent.is_dir():
        beside.rename(path)
    else:
        beside.unlink()


def save_in_place(path: Path) -> None:
    """Save as a server of notebooks does."""
    if path.is_dir():
        path = path / "mine"
    if path.parent.is_dir():
        path.write_text(MINE)


def remove(path: Path) -> None:
    if path.is_file():
        path.unlink()


PERSONS = {"save_whole": save_whole, "save_in_place": save_in_place, "remove": remove}


class Place:
    """A workspace with a call that was made, or made and undone."""

    def __init__(self, top: Path, act: Act) -> None:
        self.act, self.root, self.store = act, top / "workspace", top / "store"
        self.root.mkdir(parents=True)
        fill(self.root)
        self.before = texts_of(self.root)
        self.chain = Checkpoints(self.root, self.store)
        self.chain.begin("c", "tool", "s")
        work(self.root)
        self.chain.end("c")
        self.after = texts_of(self.root)
        self.moved: UndoResult | None = None
        if act in {"redo", "revert"}:
            self.moved = self.chain.move("undo", self.chain.steps)
        if act == "open":
            self.chain.store.record(op="move", way="undo", ids=["c"], token="t", force=False)
            self.chain.close()

    def run(self) -> UndoResult | None:
        if self.act == "open":
            self.chain = Checkpoints(self.root, self.store)
            return None
        if self.act == "revert":
            assert self.moved is not None
            return self.chain.revert(self.moved)
        if self.act == "redo":
            return self.chain.move("redo", self.chain.undone)
        return self.chain.move("undo", self.chain.steps, force=self.act == "forced")

    def is_new(self) -> bool:
        """Return whether the history says that the call is done."""
        return bool(self.chain.steps)


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about what the power takes away."""
    for call in ("fsync", "fdatasync", "syncfs"):
        for module, attribute in places_of(call):
            monkeypatch.setattr(module, attribute, lambda _file: None)


def check(top: Path, act: Act, person: str, name: str, at: int) -> int | None:
    """Check one case. If there is no such call any more, return how many there are."""
    place = Place(top, act)
    path = place.root / name
    with pytest.MonkeyPatch.context() as patch:
        saved: list[bool] = []

        def act_on_path() -> None:
            PERSONS[person](path)
            # Where the folder is not there at that moment, nobody can save into it.
            saved.append(MINE in texts_of(place.root).values())

        calls = Calls(patch, at, act_on_path)
        moved = place.run()
    place.chain.close()
    if not calls.was_done:
        return calls.count
    case = f"{act}, {person} {name} before call {at}: {moved}"
    now = texts_of(place.root)
    mine = {path: text for path, text in now.items() if text == MINE}
    state = place.after if place.is_new() else place.before
    other = place.before if place.is_new() else place.after
    touched = {*mine, *([name] if person == "remove" else [])}
    around = {path.rpartition("/")[0] for path in touched}

    def is_right(path: str) -> bool:
        # A folder that holds what a person has put there stays, whatever becomes of the rest; and where a
        # person's file stands, no folder can be.
        is_below = any(path.startswith(f"{one}/") for one in mine)
        return now.get(path) == state.get(path) or path in around or is_below

    wrong = [path for path in {*now, *state} - touched if not is_right(path)]
    if moved is not None and moved.done and moved.missing:
        named = [path for path, _ in moved.missing]
        wrong = [
            path for path in wrong if not any(path == one or one.startswith(f"{path}/") for one in named)
        ]
    assert not wrong, (case, {path: (now.get(path), state.get(path), other.get(path)) for path in wrong})
    if saved == [True] and not mine:
        assert act == "forced", case
        assert moved is not None
        assert moved.conflicts, "it was there when the undo was planned, which force replaces"
    return None


CASES = [(person, name) for person in PERSONS for name in BOTH if (person, name) != ("remove", "gone")]


@pytest.mark.sample(30)
@by_points(200)
@pytest.mark.parametrize(("person", "name"), CASES)
@pytest.mark.parametrize("act", ["undo", "redo", "forced", "revert", "open"])
def test_change_by_a_person_before_any_call_of_an_undo_stays(
    tmp_path: Path, act: Act, person: str, name: str, part: int
) -> None:
    for at in points_of(f"{act} {person} {name}", part):
        count = check(tmp_path / str(at), act, person, name, at)
        if count is not None:
            assert count >= 50
            break


# ---- the process ends right then


@pytest.mark.parametrize("name", ["edited", "made", "kind", "new/inner"])
@pytest.mark.parametrize("act", ["undo", "redo"])
def test_save_that_was_taken_out_of_its_place_when_the_process_ended_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Act, name: str
) -> None:
    """It came right before the switch, and nobody has looked at what came out."""
    place = Place(tmp_path, act)
    path = place.root / name
    if not path.is_file():
        place.chain.close()
        return

    def end_after(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(source: str, target: str, **folders: int) -> None:
            if path.name not in {source, target}:
                real(source, target, **folders)
                return
            (place.root.parent / "beside").write_text(MINE)
            (place.root.parent / "beside").rename(path)
            real(source, target, **folders)
            raise Ended

        return call

    with monkeypatch.context() as patch:
        patch.setattr(switching, "exchange", end_after(exchange))
        patch.setattr(os, "rename", end_after(os.rename))
        with pytest.raises(Ended):
            place.run()
    assert not path.exists() or path.read_text() != MINE
    (aside,) = [
        one
        for one in (place.root / ".").glob(".aisotools-write-*-switched/*")
        if one.is_file() and one.read_text() == MINE
    ]
    place.chain.close()
    place.chain = Checkpoints(place.root, place.store)
    assert path.read_text() == MINE
    assert not aside.parent.exists()
    note = place.chain.take_notes()[0]
    assert "was completed, but for what somebody else has changed: " in note
    assert name in note
    place.chain.close()


def test_staged_file_is_not_taken_for_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends while some is switched: the rest is as the call has left it, and is completed."""
    for number in range(1, 8):
        place = Place(tmp_path / str(number), "undo")
        left = iter(range(number))

        def end(*arguments: Any, left: Iterator[int] = left, **options: Any) -> None:
            if next(left, None) is None:
                raise Ended
            exchange(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(switching, "exchange", end)
            with suppress(Ended):
                place.run()
        place.chain.close()
        place.chain = Checkpoints(place.root, place.store)
        assert texts_of(place.root) == place.before
        place.chain.close()


# ---- one path


class Bench:
    """A folder with one file, a file beside it that is put in its place, and what the plan has seen."""

    def __init__(self, top: Path) -> None:
        self.root, self.aside = top / "root", top / "aside"
        self.root.mkdir()
        self.aside.mkdir()
        self.store = Store(top / "store")
        self.path = self.root / "f"
        self.path.write_text("seen")
        (self.aside / "new").write_text("restored")
        self.parent = os.open(self.root, os.O_RDONLY)
        self.folder = os.open(self.aside, os.O_RDONLY)
        self.present: dict[TreePath, Node | None] = {("f",): self.node(self.path)}
        file_times_advance()
        self.looked_ns = file_time()

    def node(self, path: Path) -> Node:
        status = path.lstat()
        digest = self.store.put(path.read_bytes())
        owner = status.st_uid, status.st_gid
        return Node("file", stat.S_IMODE(status.st_mode), digest, status.st_size, status.st_mtime_ns, owner)

    @property
    def switcher(self) -> Switcher:
        return Switcher(self.store, self.present, self.looked_ns, lambda: self.folder)

    def put(self) -> None:
        self.switcher.put(("f",), "new", self.folder, self.parent)

    def take(self) -> None:
        self.switcher.take(("f",), self.parent, self.path.lstat())

    def left(self) -> list[str]:
        return sorted(one.read_text() for one in self.aside.iterdir())

    def close(self) -> None:
        os.close(self.parent)
        os.close(self.folder)
        self.store.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_file_that_the_plan_has_seen_is_replaced_and_deleted(bench: Bench) -> None:
    bench.put()
    assert (bench.path.read_text(), bench.left()) == ("restored", [])


def test_file_that_the_plan_has_seen_is_removed(bench: Bench) -> None:
    bench.take()
    assert (bench.path.exists(), bench.left()) == (False, ["restored"])


def edit(path: Path) -> None:
    path.write_text("mine")


def edit_same_size_and_time(path: Path) -> None:
    status = path.stat()
    path.write_text("mine")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change_mode(path: Path) -> None:
    path.chmod(0o600)


def mark(path: Path) -> None:
    os.setxattr(path, "user.mark", b"mine")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("elsewhere")


EDITS = [edit, edit_same_size_and_time, change_mode, mark, replace_by_folder, replace_by_link]


@pytest.mark.parametrize("change", EDITS)
@pytest.mark.parametrize("act", ["put", "take"])
def test_entry_that_the_plan_has_not_seen_stays(
    bench: Bench, change: Callable[[Path], None], act: str
) -> None:
    change(bench.path)
    before = bench.path.lstat()
    with pytest.raises(ChangedMeanwhile, match="somebody else is changing it just now"):
        getattr(bench, act)()
    after = bench.path.lstat()
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino,
        before.st_mode,
        before.st_mtime_ns,
    )
    assert bench.left() == ["restored"]


@pytest.mark.parametrize("act", ["put", "take"])
def test_a_new_stamp_alone_is_no_change(bench: Bench, act: str) -> None:
    """A hard link of ours, for instance, gives a file another change time."""
    os.utime(bench.path, ns=(1, 1))
    os.link(bench.path, bench.aside / "further")
    getattr(bench, act)()
    assert not bench.path.exists() or bench.path.read_text() == "restored"


def test_file_that_was_removed_is_not_put_back(bench: Bench) -> None:
    bench.path.unlink()
    with pytest.raises(ChangedMeanwhile):
        bench.put()
    assert not bench.path.exists()


def test_nothing_is_put_where_the_plan_has_seen_nothing_and_something_is(bench: Bench) -> None:
    bench.present["f",] = None
    for _ in range(2):
        with pytest.raises(ChangedMeanwhile):
            bench.put()
    assert (bench.path.read_text(), bench.left()) == ("seen", ["restored"])
    bench.path.unlink()
    bench.put()
    assert bench.path.read_text() == "restored"


@pytest.mark.parametrize("saves", [1, 2, 3, 4])
def test_the_newest_of_many_saves_is_the_one_that_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    """Each comes right before an exchange, also before the ones that put the save before back."""
    left = iter(range(1, saves + 1))

    def save_before(source: str, target: str, **folders: int) -> None:
        number = next(left, None)
        if number is not None:
            (bench.root.parent / "beside").write_text(f"save {number}")
            (bench.root.parent / "beside").rename(bench.path)
        exchange(source, target, **folders)

    monkeypatch.setattr(switching, "exchange", save_before)
    with pytest.raises(ChangedMeanwhile):
        bench.put()
    assert bench.path.read_text() == f"save {saves}"


def test_save_that_its_place_is_refused_to_is_beside_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(bench.path)
    calls = []

    def refuse(*names: str, **folders: int) -> None:
        calls.append(names)
        if len(calls) > 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        exchange(names[0], names[1], **folders)

    monkeypatch.setattr(switching, "exchange", refuse)
    with pytest.raises(ChangedMeanwhile) as raised:
        bench.put()
    (saved,) = bench.root.glob("f.saved-*")
    assert saved.read_text() == "mine"
    reason = f"it could not be put back to its place (Input/output error), and is {saved.name!r} now"
    assert str(raised.value) == reason


@pytest.mark.parametrize("is_edited", [False, True])
def test_file_system_that_cannot_exchange_gets_a_look_and_a_rename(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_edited: bool
) -> None:
    def refuse(*_arguments: str, **_folders: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    for name in ("exchange", "rename_new"):
        monkeypatch.setattr(switching, name, refuse)
    if not is_edited:
        bench.put()
        assert bench.path.read_text() == "restored"
        bench.present["f",] = None
        bench.path.unlink()
        (bench.aside / "new").write_text("again")
        bench.put()
        assert bench.path.read_text() == "again"
        return
    edit(bench.path)
    for _ in range(2):
        with pytest.raises(ChangedMeanwhile):
            bench.put()
        bench.present["f",] = None
    assert bench.path.read_text() == "mine"


@pytest.mark.parametrize("is_edited", [False, True])
def test_full_disk_or_another_mount_gets_a_look_and_a_removal(bench: Bench, is_edited: bool) -> None:
    def full() -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    switcher = Switcher(bench.store, bench.present, bench.looked_ns, full)
    if is_edited:
        edit(bench.path)
        with pytest.raises(ChangedMeanwhile):
            switcher.take(("f",), bench.parent, bench.path.lstat())
        assert bench.path.read_text() == "mine"
    else:
        switcher.take(("f",), bench.parent, bench.path.lstat())
        assert not bench.path.exists()


def test_folder_that_could_not_be_removed_is_not_exchanged(bench: Bench) -> None:
    bench.path.unlink()
    bench.path.mkdir()
    bench.present["f",] = Node("folder", 0o755)
    with pytest.raises(FileExistsError):
        bench.put()
    assert bench.path.is_dir()


def test_node_is_compared_by_all_that_a_status_tells(bench: Bench) -> None:
    status, node = bench.path.lstat(), bench.present["f",]
    assert node is not None
    assert looks_like(status, node)
    for other in (
        node._replace(kind="link"),
        node._replace(mode=0o600),
        node._replace(size=5),
        node._replace(mtime_ns=1),
        node._replace(owner=(4, 5)),
    ):
        assert not looks_like(status, other)


# ---- what is not stored, not seen or refused


def unkept(path: Path, *, sealed: bool = False) -> Node:
    """The node of something whose content is not stored."""
    status = path.lstat()
    content = f"too large;{stamp_text(status)}"
    if sealed:
        folder = os.open(path, os.O_RDONLY)
        content += f";{digest_below(folder, status.st_dev, 100)[0]}"
        os.close(folder)
    return Node("unkept", stat.S_IMODE(status.st_mode), content)


def open_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_folder_holds_something_new_if_one_of_its_names_is_unknown(bench: Bench) -> None:
    (bench.root / "d").mkdir()
    (bench.root / "d" / "known").write_text("x")
    bench.present["d", "known"] = bench.node(bench.root / "d" / "known")
    assert not bench.switcher.holds_new(("d",), bench.parent)
    (bench.root / "d" / "new").write_text("x")
    assert bench.switcher.holds_new(("d",), bench.parent)
    bench.present["d", "new"] = None
    assert bench.switcher.holds_new(("d",), bench.parent), "the plan has seen that nothing is there"


@pytest.mark.parametrize("is_covered", [True, False])
def test_entry_that_the_plan_could_not_look_at_is_replaced_and_removed(
    bench: Bench, is_covered: bool
) -> None:
    covered = {("f",)} if is_covered else set()
    switcher = Switcher(bench.store, {}, bench.looked_ns, lambda: bench.folder, covered=covered)
    if not is_covered:
        with pytest.raises(ChangedMeanwhile):
            switcher.put(("f",), "new", bench.folder, bench.parent)
        with pytest.raises(ChangedMeanwhile):
            switcher.take(("f",), bench.parent, bench.path.lstat())
        assert (bench.path.read_text(), bench.left()) == ("seen", ["restored"])
        return
    switcher.put(("f",), "new", bench.folder, bench.parent)
    assert (bench.path.read_text(), bench.left()) == ("restored", [])
    switcher.take(("f",), bench.parent, bench.path.lstat())
    assert not bench.path.exists()


def test_folder_is_not_taken_as_a_file_is(bench: Bench) -> None:
    bench.present["f",] = Node("folder", 0o755)
    with pytest.raises(ChangedMeanwhile):
        bench.take()
    assert bench.path.read_text() == "seen"


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_refusal_of_the_place_aside_is_an_error_and_removes_nothing(bench: Bench, error: int) -> None:
    def refuse() -> int:
        raise OSError(error, os.strerror(error))

    switcher = Switcher(bench.store, bench.present, bench.looked_ns, refuse)
    with pytest.raises(OSError, match=re.escape(os.strerror(error))):
        switcher.take(("f",), bench.parent, bench.path.lstat())
    assert bench.path.read_text() == "seen"


@pytest.mark.parametrize("error", [None, errno.EXDEV, errno.EIO])
@pytest.mark.parametrize("act", ["put", "take"])
def test_entry_that_is_not_stored_is_kept_if_that_is_possible(
    bench: Bench, error: int | None, act: str
) -> None:
    bench.present["f",] = unkept(bench.path)
    contents: list[str] = []

    def keep(_path: TreePath, name: str, folder: int) -> os.stat_result:
        if error is not None:
            raise OSError(error, os.strerror(error))
        os.rename(name, "kept", src_dir_fd=folder, dst_dir_fd=bench.folder)
        contents.append((bench.aside / "kept").read_text())
        return (bench.aside / "kept").lstat()

    restamped: dict[int, set[int]] = {}
    switcher = Switcher(
        bench.store, bench.present, bench.looked_ns, lambda: bench.folder, keep=keep, restamped=restamped
    )
    with pytest.raises(OSError, match="Input/output") if error == errno.EIO else nullcontext():
        if act == "put":
            switcher.put(("f",), "new", bench.folder, bench.parent)
        else:
            switcher.take(("f",), bench.parent, bench.path.lstat())
    if error == errno.EIO:
        assert bench.path.read_text() == "seen", "it is put back"
    else:
        assert contents == (["seen"] if error is None else [])
        assert bool(restamped) is (error is None)
        assert not bench.path.exists() or bench.path.read_text() == "restored"


@pytest.mark.parametrize("is_ours", [True, False])
def test_new_change_time_counts_as_none_only_if_it_is_of_a_step_of_ours(bench: Bench, is_ours: bool) -> None:
    """What is not stored is known by its stamp alone, which a move of ours has changed."""
    bench.present["f",] = unkept(bench.path)
    bench.looked_ns = bench.path.lstat().st_ctime_ns + 1
    file_times_advance()
    bench.path.rename(bench.root / "g").rename(bench.path)
    status = bench.path.lstat()
    restamped = {status.st_ino: {status.st_ctime_ns}} if is_ours else {status.st_ino: {1}}
    switcher = Switcher(
        bench.store, bench.present, bench.looked_ns, lambda: bench.folder, restamped=restamped
    )
    with nullcontext() if is_ours else pytest.raises(ChangedMeanwhile):
        switcher.take(("f",), bench.parent, status)
    assert bench.path.exists() is not is_ours


@pytest.mark.parametrize("target", ["there", "elsewhere"])
def test_link_is_known_by_where_it_leads(bench: Bench, target: str) -> None:
    bench.path.unlink()
    bench.path.symlink_to(target)
    status = bench.path.lstat()
    owner = status.st_uid, status.st_gid
    bench.present["f",] = Node("link", 0, "there", 0, status.st_mtime_ns, owner)
    bench.looked_ns = 0  # so that it is compared
    with nullcontext() if target == "there" else pytest.raises(ChangedMeanwhile):
        bench.take()
    assert bench.path.is_symlink() is (target != "there")


def test_comparing_a_file_leaves_nothing_open(bench: Bench) -> None:
    bench.looked_ns = 0  # so that it is compared
    before = open_count()
    bench.put()
    assert open_count() == before


@pytest.mark.parametrize("is_changed", [False, True])
def test_sealed_folder_is_taken_if_all_below_is_as_it_was(bench: Bench, is_changed: bool) -> None:
    tree = bench.root / "tree"
    (tree / "below").mkdir(parents=True)
    (tree / "below" / "file").write_text("x")
    bench.present["tree",] = unkept(tree, sealed=True)
    if is_changed:
        (tree / "below" / "file").write_text("mine")
    with pytest.raises(ChangedMeanwhile) if is_changed else nullcontext():
        bench.switcher.take_tree(("tree",), "taken", bench.parent)
    assert tree.exists() is is_changed
    assert (bench.root / "taken").exists() is not is_changed


def test_tree_that_the_plan_has_not_seen_is_not_taken(bench: Bench) -> None:
    (bench.root / "tree").mkdir()
    with pytest.raises(ChangedMeanwhile):
        bench.switcher.take_tree(("tree",), "taken", bench.parent)
    assert (bench.root / "tree").exists()


def test_stamp_of_what_is_not_stored_leaves_out_the_change_time_alone(bench: Bench) -> None:
    node = unkept(bench.path)
    assert has_stamp(bench.path.lstat(), node)
    bench.path.chmod(0o600)  # a new change time
    assert has_stamp(bench.path.lstat(), node)
    bench.path.write_text("longer than before")
    assert not has_stamp(bench.path.lstat(), node)
    assert not has_stamp(bench.path.lstat(), Node("unkept", 0, "too large"))


def test_entry_that_is_not_stored_can_be_anything_but_a_sealed_one_is_a_folder(bench: Bench) -> None:
    (bench.root / "tree").mkdir()
    sealed = unkept(bench.root / "tree", sealed=True)
    assert looks_like(bench.path.lstat(), unkept(bench.path))
    assert looks_like((bench.root / "tree").lstat(), sealed)
    assert not looks_like(bench.path.lstat(), sealed)


def test_node_of_an_earlier_version_is_compared_by_its_permissions_and_a_link_by_none(bench: Bench) -> None:
    status = bench.path.lstat()
    old = Node("file", stat.S_IMODE(status.st_mode), size=4)
    assert looks_like(status, old)
    assert not looks_like(status, old._replace(mode=0o700))
    (bench.root / "link").symlink_to("there")
    assert looks_like((bench.root / "link").lstat(), Node("link", 0, "there"))


def test_a_save_whose_replacement_was_removed_is_put_back_to_the_empty_place(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person saves before the exchange, and removes what it has put there before it can be taken back."""
    edit(bench.path)
    calls = 0

    def remove_after(*names: str, **folders: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            bench.path.unlink()
        exchange(names[0], names[1], **folders)

    monkeypatch.setattr(switching, "exchange", remove_after)
    with pytest.raises(ChangedMeanwhile):
        bench.put()
    assert bench.path.read_text() == "mine"


def test_only_what_was_taken_out_of_a_path_of_the_plan_is_put_back(tmp_path: Path) -> None:
    root = tmp_path / "root"
    place = root / switch_name("t")
    place.mkdir(parents=True)
    wanted: dict[TreePath, Node | None] = {("gone",): None, ("there",): None, ("no", "folder"): None}
    for path in [*wanted, ("unknown",)]:
        (place / f"taken-{mark_of(path)}").write_text("mine")
    (root / "there").write_text("newer")
    opened = os.open(root, os.O_RDONLY)
    try:
        put_back_displaced(opened, switch_name("t"), wanted)
        put_back_displaced(opened, switch_name("other"), wanted)
    finally:
        os.close(opened)
    assert (root / "gone").read_text() == "mine"
    assert (root / "there").read_text() == "newer"
    assert len([*place.iterdir()]) == 3
    assert not (root / "unknown").exists()


@pytest.mark.parametrize("is_switched", [False, True])
def test_place_of_what_was_staged_and_not_switched_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_switched: bool
) -> None:
    path = ("locked", "f")
    place = tmp_path / switch_name("t")
    place.mkdir()
    (tmp_path / "locked").mkdir()
    staged = place / mark_of(path)
    staged.write_text("staged")
    staged.chmod(0o644)
    node = Node("file", 0o644, "digest", 6, staged.stat().st_mtime_ns, (os.getuid(), os.getgid()))
    if is_switched:
        staged.write_text("what was there before")

    def refuse(_folder: int, names: TreePath) -> int:
        raise PermissionError(13, "Permission denied", names[-1])

    monkeypatch.setattr("aisotools.workspace.checkpoints.switching.open_below", refuse)
    opened = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(PermissionError) if is_switched else nullcontext():
            put_back_displaced(opened, switch_name("t"), {path: node})
    finally:
        os.close(opened)
    assert staged.exists()


def test_folder_that_came_out_of_the_place_of_a_file_is_put_back(tmp_path: Path) -> None:
    place = tmp_path / switch_name("t")
    (place / mark_of(("f",))).mkdir(parents=True)
    (place / mark_of(("f",)) / "mine").write_text("mine")
    file = tmp_path / "f"
    file.write_text("staged")
    file.chmod(0o644)
    node = Node("file", 0o644, "digest", 6, file.stat().st_mtime_ns, (os.getuid(), os.getgid()))
    opened = os.open(tmp_path, os.O_RDONLY)
    try:
        put_back_displaced(opened, switch_name("t"), {("f",): node})
    finally:
        os.close(opened)
    assert (file / "mine").read_text() == "mine"


def test_names_are_exchanged_or_given_to_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        exchange("a", "b", src_dir_fd=folder, dst_dir_fd=folder)
        with pytest.raises(FileExistsError):
            rename_new("a", "b", src_dir_fd=folder, dst_dir_fd=folder)
        with pytest.raises(FileNotFoundError):
            exchange("a", "c", src_dir_fd=folder, dst_dir_fd=folder)
        rename_new("a", "c", src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"b": "a", "c": "b"}


def test_program_that_has_opened_the_file_before_writes_to_the_old_one(bench: Bench) -> None:
    with bench.path.open("a") as file:
        bench.put()
        file.write("more")
    assert bench.path.read_text() == "restored"
