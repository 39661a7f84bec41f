"""Ledgers that were emptied, removed or replaced together with their heads."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.core.exceptions import LedgerError
from aisotools.session import ledger as ledger_module
from aisotools.session.ledger import forget_ledger, missing_ledgers, open_ledger, verify
from aisotools.session.ledger_index import IndexEntry, LedgerIndex


def written(folder: Path, name: str = "log", records: int = 5) -> Path:
    with open_ledger(folder, name) as ledger:
        for number in range(records):
            ledger.append("step", {"number": number})
    return ledger.path


def empty(path: Path) -> None:
    path.write_bytes(b"")
    path.with_suffix(".head").unlink()


def empty_both(path: Path) -> None:
    path.write_bytes(b"")
    path.with_suffix(".head").write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()
    path.with_suffix(".head").unlink()


def replace(path: Path) -> None:
    other = written(path.parent, "other", 9)
    shutil.copy(other, path)
    shutil.copy(other.with_suffix(".head"), path.with_suffix(".head"))


def replace_by_unnamed(path: Path) -> None:
    """With a head as earlier versions wrote it, which names no ledger."""
    replace(path)
    key = (path.parent / "key").read_bytes()
    last = ledger_module._read_last_mac(path)
    path.with_suffix(".head").write_bytes(ledger_module._head_text(key, 9, last, name=None))


def put_back(path: Path) -> None:
    backup = path.parent / "backup"
    backup.mkdir()
    for file in (path, path.with_suffix(".head")):
        shutil.copy(file, backup)
    written(path.parent)
    for file in (path, path.with_suffix(".head")):
        shutil.copy(backup / file.name, file)


def replace_by_empty(path: Path) -> None:
    other = written(path.parent, "other", 0)
    path.write_bytes(b"")
    shutil.copy(other.with_suffix(".head"), path.with_suffix(".head"))


ATTACKS = [empty, empty_both, remove, replace, replace_by_unnamed, put_back, replace_by_empty]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_ledger_changed_together_with_its_head_is_found(
    tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    path = written(tmp_path)
    assert verify(path).ok
    attack(path)
    if path.exists():
        assert not verify(path).ok
    else:
        assert missing_ledgers(tmp_path) == {"log": 5}
    with pytest.raises(LedgerError, match=r"damaged.*aisotools log forget log"):
        open_ledger(tmp_path, "log")
    assert not verify(path).ok


@pytest.mark.parametrize("attack", [empty, replace_by_unnamed, put_back])
def test_without_the_index_the_attack_works(
    tmp_path: Path, attack: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the chain and the head alone do not find it."""
    path = written(tmp_path)
    attack(path)
    monkeypatch.setattr(LedgerIndex, "check", lambda *_: [])
    assert verify(path).ok


def test_a_removed_index_is_found_by_every_ledger_that_was_written_with_one(tmp_path: Path) -> None:
    path, other = written(tmp_path), written(tmp_path, "other")
    empty(path)
    (tmp_path / "index").unlink()
    for one in (path, other):
        assert "index" in verify(one).problems[0]
        assert "gone" in verify(one).problems[0]
    with pytest.raises(LedgerError, match="is gone: ledgers may have been removed"):
        open_ledger(tmp_path, "third")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"ledgers":{},"seal":""}'])
def test_a_changed_index_is_found(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path)
    (tmp_path / "index").write_bytes(content)
    assert "was changed" in verify(path).problems[0]


def test_a_ledger_of_an_earlier_version_gets_into_the_index_when_it_is_opened(tmp_path: Path) -> None:
    path = written(tmp_path)
    key = (tmp_path / "key").read_bytes()
    head = ledger_module._head_text(key, 5, ledger_module._read_last_mac(path), name=None)
    path.with_suffix(".head").write_bytes(head)
    (tmp_path / "index").unlink()
    assert verify(path).ok
    written(tmp_path, records=1)
    assert LedgerIndex(tmp_path, key).read()["log"].count == 6
    empty(path)
    assert not verify(path).ok


def test_a_crash_soon_after_the_first_records_leaves_an_index_that_counts_them(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, "log")
    ledger.append("step", {})
    ledger.seal()
    key = (tmp_path / "key").read_bytes()
    assert LedgerIndex(tmp_path, key).read()["log"].count == 1
    ledger.append("step", {})
    assert verify(ledger.path).ok, "what came after is not a problem"
    ledger.close()
    assert LedgerIndex(tmp_path, key).read()["log"].count == 2


def test_forgetting_is_the_way_on(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(LedgerError, match="still there"):
        forget_ledger(tmp_path, "log")
    remove(path)
    assert forget_ledger(tmp_path, "log")
    assert not forget_ledger(tmp_path, "log")
    assert verify(written(tmp_path, records=1)).ok
    assert not forget_ledger(tmp_path / "nowhere", "log")


def test_an_index_that_another_process_holds_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    path = written(tmp_path)
    monkeypatch.setattr("aisotools.session.ledger_index._LOCK_TIMEOUT_S", 0.0)
    index = LedgerIndex(tmp_path, (tmp_path / "key").read_bytes())
    with (tmp_path / "key").open("rb") as key:
        fcntl.flock(key, fcntl.LOCK_EX)
        index.update("log", IndexEntry(99, "x"))
    assert index.read()["log"].count == 5
    assert verify(path).ok
