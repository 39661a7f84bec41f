"""Contents and journal of a checkpoint store: exact bytes, limits, damage, crashes and full disks."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aisotools.core.exceptions import WorkspaceError
from aisotools.workspace.checkpoints.store import RecordQueue, Store, StoredFile, content_digest

CHUNK = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "state" / "store")
    yield store
    store.close()


def objects(store: Store) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (store.folder / "objects").iterdir()}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes, as on a disk that becomes full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def opened(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)


# ---- opening


def test_store_is_private(store: Store) -> None:
    store.put(b"x")
    assert mode_of(store.folder) == mode_of(store.folder / "objects") == 0o700
    assert mode_of(store.folder / "chain") == 0o600
    assert mode_of(store.folder / "objects" / content_digest(b"x")) == 0o600
    store.rewrite([])
    assert mode_of(store.folder / "chain") == 0o600


def test_reopened_store_has_its_contents_and_no_partial_ones(store: Store) -> None:
    digest = store.put(b"whole")
    store.close()
    (store.folder / "objects" / "new-7").write_bytes(b"par")
    again = Store(store.folder)
    assert digest in again
    assert "new-7" not in again
    assert again.size == 5
    assert objects(again) == {digest: b"whole"}
    assert repr(again) == "<Store store: 1 contents, 5 bytes>"
    again.close()


def test_dangling_link_among_the_contents_does_not_prevent_opening(store: Store) -> None:
    (store.folder / "objects" / "link").symlink_to("nowhere")
    Store(store.folder).close()


def test_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WorkspaceError, match=r"kept in '.*/file/store': Not a directory"):
        Store(tmp_path / "file" / "store")


def test_linked_objects_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "objects").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WorkspaceError, match="cannot be kept"):
        Store(tmp_path / "store")


def test_close_is_idempotent_and_closes_both_descriptors(tmp_path: Path) -> None:
    before = descriptors()
    store = Store(tmp_path / "store")
    store.close()
    store.close()
    assert descriptors() == before
    with pytest.raises(WorkspaceError):
        store.record(op="x")


def test_descriptor_0_is_closed_like_any_other(tmp_path: Path) -> None:
    """A process may run without standard input; then the first folder that is opened gets its number."""
    stdin = os.dup(0)
    os.close(0)
    try:
        Store(tmp_path / "store").close()
        again = os.open(os.devnull, os.O_RDONLY)
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
    assert again == 0


# ---- contents


def test_digest_is_blake2b_of_32_bytes() -> None:
    assert content_digest(b"x") == hashlib.blake2b(b"x", digest_size=32).hexdigest()


def test_put_stores_each_content_once(store: Store) -> None:
    digest = store.put(b"one")
    inode = (store.folder / "objects" / digest).stat().st_ino
    assert store.put(b"one") == digest == content_digest(b"one")
    assert (store.folder / "objects" / digest).stat().st_ino == inode
    assert store.put(b"three") != digest
    assert store.size == 8
    assert store.get(digest) == b"one"
    assert digest in store
    assert content_digest(b"two") not in store


def test_file_that_is_known_takes_no_place_of_the_stored_one(store: Store, tmp_path: Path) -> None:
    for size in (1000, CHUNK - 1, CHUNK, 3 * CHUNK):
        data = bytes(size)
        (tmp_path / "file").write_bytes(data)
        content = store.folder / "objects" / store.put(data)
        inode = content.stat().st_ino
        with opened(tmp_path / "file") as file:
            assert store.put_file(file, max_bytes=size) == StoredFile(content.name, size)
        assert content.stat().st_ino == inode


@pytest.mark.parametrize("size", [0, 1, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 3])
@pytest.mark.parametrize("room", [-1, 0, 1])
def test_put_file_stores_all_up_to_the_limit_and_nothing_beyond(
    store: Store, tmp_path: Path, size: int, room: int
) -> None:
    if size + room < 0:
        return
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    before = descriptors()
    with opened(tmp_path / "file") as file:
        stored = store.put_file(file, max_bytes=size + room)
    assert descriptors() == before
    if room < 0:
        assert stored is None
        assert objects(store) == {}
        assert store.size == 0
    else:
        assert stored == StoredFile(content_digest(data), size)
        assert objects(store) == {content_digest(data): data}
        assert store.size == size


@pytest.mark.parametrize("limit", [10, CHUNK - 1, CHUNK, CHUNK + 10])
def test_put_file_reads_one_byte_beyond_the_limit_at_most(store: Store, tmp_path: Path, limit: int) -> None:
    (tmp_path / "file").write_bytes(bytes(3 * CHUNK))
    with opened(tmp_path / "file") as file:
        assert store.put_file(file, max_bytes=limit) is None
        assert os.lseek(file, 0, os.SEEK_CUR) == limit + 1


def test_put_file_takes_what_is_appended_while_it_is_read(store: Store) -> None:
    for limit, expected in [
        (5, StoredFile(content_digest(b"abcd"), 4)),
        (4, StoredFile(content_digest(b"abcd"), 4)),
    ]:
        writing, reading = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with writing, reading:
            writing.send(b"ab")  # each read returns one packet: a short read that is not the end
            writing.send(b"cd")
            writing.close()
            assert store.put_file(reading.fileno(), max_bytes=limit) == expected
    writing, reading = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with writing, reading:
        writing.send(b"ab")
        writing.send(b"ce")
        writing.close()
        assert store.put_file(reading.fileno(), max_bytes=3) is None
    assert content_digest(b"abce") not in store


def test_copy_and_chunks_return_the_bytes(store: Store, tmp_path: Path) -> None:
    data = os.urandom(2 * CHUNK + 10)
    digest = store.put(data)
    assert [len(chunk) for chunk in store.chunks(digest)] == [CHUNK, CHUNK, 10]
    with (tmp_path / "out").open("wb") as out:
        store.copy(digest, out.fileno())
    assert (tmp_path / "out").read_bytes() == data


@pytest.mark.parametrize("damage", [b"", b"goo", b"goof", b"goods", b"good and more"])
def test_damaged_content_is_not_returned(store: Store, tmp_path: Path, damage: bytes) -> None:
    digest = store.put(b"good")
    (store.folder / "objects" / digest).write_bytes(damage)
    message = f"The checkpoint content {digest[:12]} is damaged; it is not used."
    with pytest.raises(WorkspaceError, match=message):
        store.get(digest)
    with (tmp_path / "out").open("wb") as out, pytest.raises(WorkspaceError, match=message):
        store.copy(digest, out.fileno())


def test_missing_content_is_named(store: Store) -> None:
    digest = store.put(b"x")
    (store.folder / "objects" / digest).unlink()
    with pytest.raises(WorkspaceError, match=f"The checkpoint content {digest[:12]} is gone: No such file"):
        store.get(digest)


def test_content_that_grows_while_it_is_read_has_an_end(store: Store) -> None:
    digest = store.put(bytes(CHUNK + 1))
    reader = store.chunks(digest)
    assert len(next(reader)) == CHUNK
    with (store.folder / "objects" / digest).open("ab") as file:
        file.write(bytes(100))
    assert list(reader) == [b"\0"]


def test_chunks_close_their_file(store: Store) -> None:
    digest = store.put(b"x")
    before = descriptors()
    assert list(store.chunks(digest)) == [b"x"]
    reader = store.chunks(digest)
    next(reader)
    reader.close()  # type: ignore[attr-defined]  # a generator
    assert descriptors() == before


def test_keep_only_deletes_the_others(store: Store) -> None:
    first, second = store.put(b"first"), store.put(b"2")
    store.keep_only([second, "unknown"])
    assert objects(store) == {second: b"2"}
    assert first not in store
    assert (store.size, store.count) == (1, 1)
    assert store.put(b"first") == first
    assert store.get(first) == b"first"


def test_dangling_link_among_the_contents_is_deleted_like_them(store: Store) -> None:
    (store.folder / "objects" / "link").symlink_to("nowhere")
    again = Store(store.folder)
    again.keep_only([])
    assert (objects(again), again.size, again.count) == ({}, 0, 0)
    again.close()


@pytest.mark.parametrize("size", [100_000, CHUNK, 3 * CHUNK])
def test_full_disk_leaves_no_partial_content(store: Store, tmp_path: Path, size: int) -> None:
    (tmp_path / "large").write_bytes(bytes(size))
    with opened(tmp_path / "large") as file, largest_file(50_000):
        with pytest.raises(WorkspaceError, match=r"cannot be kept in '.*': File too large\. Make room there"):
            store.put_file(file, max_bytes=size)
        with pytest.raises(WorkspaceError, match="set XDG_STATE_HOME"):
            store.put(bytes(size))
    assert objects(store) == {}
    assert store.size == 0
    assert store.put(b"y") == content_digest(b"y")


def test_deleted_store_is_reported(store: Store) -> None:
    for name in ("objects", "."):
        path = store.folder / name
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    with pytest.raises(WorkspaceError, match="The checkpoint cannot be kept"):
        store.put(b"x")
    with pytest.raises(WorkspaceError, match="The checkpoint cannot be kept"):
        store.rewrite([])


# ---- journal


def test_records_come_back_in_order(store: Store) -> None:
    store.record(op="begin", id="a")
    store.record(op="end", id="a", after={"": "x"})
    assert store.records() == [{"op": "begin", "id": "a"}, {"op": "end", "id": "a", "after": {"": "x"}}]
    store.close()
    again = Store(store.folder)
    again.record(op="third")
    assert [record["op"] for record in again.records()] == ["begin", "end", "third"]
    again.close()


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", "\udfff\ud800", "\u2028 \0"])
def test_records_hold_any_text(store: Store, text: str) -> None:
    """Of names of files that are not UTF-8, and of what a person calls a conversation."""
    store.record(op="begin", id=text, named=[[text, "b"]])
    store.record(op="end")
    assert store.records() == [{"op": "begin", "id": text, "named": [[text, "b"]]}, {"op": "end"}]
    store.close()


@pytest.mark.parametrize(
    "tail", [b'{"op":"b"', b'{"op":"b"}', b"nonsense\n", b"[]\n", b'\n{"op":"b"}\n', b"3\n"]
)
def test_records_end_at_the_first_damaged_line(store: Store, tail: bytes) -> None:
    store.record(op="a")
    with (store.folder / "chain").open("ab") as file:
        file.write(tail)
    assert store.records() == [{"op": "a"}]


def test_partially_written_record_is_an_error(store: Store) -> None:
    store.record(op="a")
    size = (store.folder / "chain").stat().st_size
    with largest_file(size + 4), pytest.raises(WorkspaceError, match="No space left on device"):
        store.record(op="too long")
    assert store.records() == [{"op": "a"}]
    store.record(op="b")
    assert store.records() == [{"op": "a"}, {"op": "b"}], "what was cut short does not end the journal"


def test_rewrite_replaces_the_journal_and_later_records_follow(store: Store) -> None:
    store.record(op="old")
    with (store.folder / "chain").open("ab") as file:
        file.write(b"damaged")
    before = descriptors()
    store.rewrite([{"op": "new"}, {"op": "newer"}])
    assert descriptors() == before
    store.record(op="last")
    assert [record["op"] for record in store.records()] == ["new", "newer", "last"]
    assert not (store.folder / "chain.new").exists()


def test_failed_rewrite_leaves_the_journal_in_place(store: Store) -> None:
    store.record(op="a")
    with largest_file(5), pytest.raises(WorkspaceError, match="File too large"):
        store.rewrite([{"op": "b"}] * 10)
    store.record(op="c")
    assert [record["op"] for record in store.records()] == ["a", "c"]


# ---- durability


class Disk:
    """What was synced, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: list[str] = []
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self.note)
        patch.setattr(
            "aisotools.workspace.checkpoints.store.flush_file_system",
            lambda _folder: self.synced.append("all"),
        )

    def note(self, file: int) -> None:
        self.synced.append(Path(f"/proc/self/fd/{file}").readlink().name)


def is_synced(store: Store) -> bool:
    return store.is_synced


def test_contents_are_synced_before_records(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_synced(store)
    disk = Disk(monkeypatch)
    digest = store.put(b"content")
    store.record(op="end", root=digest)
    assert not is_synced(store)
    store.sync()
    assert disk.synced[:3] == [digest, "objects", "chain"]
    assert is_synced(store)
    disk.synced.clear()
    store.sync()
    assert disk.synced == []
    assert store.put(b"content") == digest
    store.sync()
    assert disk.synced == [digest, "objects"], "an earlier process may not have synced it"


def test_new_folders_are_synced_with_the_first_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    store = Store(tmp_path / "a" / "store")
    assert disk.synced == []
    store.record(op="x")
    store.sync()
    store.close()
    assert set(disk.synced) == {"chain", tmp_path.name, "a", "store"}


@pytest.mark.parametrize("count", [32, 33])
def test_many_contents_are_synced_at_once(store: Store, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    disk = Disk(monkeypatch)
    for number in range(count):
        store.put(b"%d" % number)
    store.sync()
    assert ("all" in disk.synced) == (count > 32)
    assert len([name for name in disk.synced if len(name) == 64]) == (32 if count == 32 else 0)


@pytest.mark.parametrize("is_new", [True, False])
def test_new_content_that_cannot_be_synced_is_found_by_nobody(
    store: Store, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """The system would take it for written from then on. What was there before is not given up."""
    if not is_new:
        store.put(b"x")
        store.sync()

    def fail(_file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    digest = store.put(b"x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(WorkspaceError, match="Input/output error"):
            store.sync()
    assert (digest in store, store.count) == (not is_new, int(not is_new))
    assert not is_synced(store)
    store.put(b"x")
    store.sync()
    assert digest in store


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_folder_that_cannot_be_looked_at_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", fail)
        with pytest.raises(WorkspaceError, match=f"cannot be kept in .*: {os.strerror(code)}"):
            Store(tmp_path / "store")


def test_damaged_content_is_healed_by_the_same_bytes(store: Store) -> None:
    digest = store.put(b"good")
    for evil in (b"evil", b"", b"longer than before"):
        (store.folder / "objects" / digest).write_bytes(evil)
        with pytest.raises(WorkspaceError, match="damaged"):
            store.get(digest)
        assert store.damaged == {digest}
        assert store.put(b"good") == digest
        assert store.get(digest) == b"good"
    assert (store.size_of(digest), store.size_of("0" * 64)) == (4, -1)


@pytest.mark.parametrize("damage", [None, "another", "shorter"])
def test_large_content_that_is_there_stays_and_is_synced_and_a_damaged_one_is_replaced(
    store: Store, damage: str | None
) -> None:
    """Power loss: a copy that is not synced must not take the place of one that a step needs."""
    pieces = [b"x" * (1 << 20), b"y" * 5]
    stored = store.put_chunks(pieces, max_bytes=1 << 30)
    assert stored is not None
    store.sync()
    place = store.folder / "objects" / stored.digest
    before = place.stat().st_ino
    match damage:
        case "another":
            with place.open("r+b") as file:
                file.write(b"z")
        case "shorter":
            os.truncate(place, 1 << 20)
    assert store.put_chunks(pieces, max_bytes=1 << 30) == stored
    assert (place.stat().st_ino == before) == (damage is None)
    assert store.get(stored.digest) == b"".join(pieces)
    assert not store.is_synced
    assert [path.name for path in place.parent.iterdir()] == [stored.digest]
    assert (store.size, store.count) == (stored.size, 1)


def test_last_record_is_taken_back_without_space(store: Store) -> None:
    store.record(op="one")
    store.record(op="two")
    store.retract()
    assert store.records() == [{"op": "one"}]
    with pytest.raises(WorkspaceError, match="no record of this process"):
        store.retract()
    store.record(op="three")
    assert store.records() == [{"op": "one"}, {"op": "three"}]


def test_damage_of_the_journal_is_counted(store: Store) -> None:
    store.record(op="one")
    assert (store.records(), store.damage) == ([{"op": "one"}], "")
    with (store.folder / "chain").open("ab") as file:
        file.write(b'x\n{"op":"three"}\n{"op"')
    assert store.records() == [{"op": "one"}]
    assert store.damage == "2 of its 3 lines, from 2 on"


def test_records_that_wait_come_first_and_in_order(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = RecordQueue(store)
    assert repr(queue) == "<RecordQueue: 0 records wait>"
    queue.add(op="end", id="a")
    queue.add(op="end", id="b", needs_sync=True)
    queue.write(may_wait=False)
    assert bool(queue)
    assert store.records() == []
    disk = Disk(monkeypatch)
    digest = store.put(b"x")
    queue.write()
    assert disk.synced[0] == digest
    assert [record["id"] for record in store.records()] == ["a", "b"]
    queue.add(op="end", id="c")
    queue.write(may_wait=False)
    assert len(store.records()) == 3
    queue.add(op="end", id="d")
    queue.clear()
    queue.write()
    assert len(store.records()) == 3


def test_records_that_cannot_be_read_are_an_error_with_the_folder_and_what_to_do(store: Store) -> None:
    (store.folder / "chain").unlink()
    (store.folder / "chain").mkdir()
    with pytest.raises(WorkspaceError, match=r"Is a directory\. .*set XDG_STATE_HOME") as caught:
        store.records()
    assert str(store.folder) in str(caught.value)
