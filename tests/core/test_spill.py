"""One file for what a process moves to the disk: shared, reused, and compared with what was written."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from aisotools.core.spill import SpillFile, spill_file


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_contents_come_back_and_their_room_is_used_again(tmp_path: Path) -> None:
    before = descriptors()
    spill = SpillFile(tmp_path)
    draw = random.Random(3)
    held: dict[bytes, object] = {}
    for number in range(2_000):
        if held and draw.random() < 0.5:
            content = draw.choice([*held])
            extent = held.pop(content)
            assert spill.get(extent) == content  # type: ignore[arg-type]  # as it was put
            spill.free(extent)  # type: ignore[arg-type]  # likewise
        else:
            content = b"%d " % number * draw.randint(1, 100)
            held[content] = spill.put(content)
    for content, extent in held.items():
        assert spill.get(extent) == content  # type: ignore[arg-type]  # likewise
    size = os.fstat(spill._file).st_size
    assert size < 3 * max(1, sum(map(len, held)))
    assert list(tmp_path.iterdir()) == [], "no name"
    assert descriptors() == before + 1
    for extent in held.values():
        spill.free(extent)  # type: ignore[arg-type]  # likewise
    assert descriptors() == before
    assert spill.get(spill.put(b"again")) == b"again"


def test_changed_content_is_refused(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path)
    extent = spill.put(b"written")
    with Path(f"/proc/self/fd/{spill._file}").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(OSError, match="has been changed"):
        spill.get(extent)
    spill.free(extent)


def test_forked_process_writes_nothing_into_the_file_of_its_parent(tmp_path: Path) -> None:
    spill = SpillFile(tmp_path)
    extent = spill.put(b"parent")
    pid = os.fork()
    if pid == 0:
        try:
            spill.free(extent)
            spill.put(b"child")
        except OSError:
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert spill.get(extent) == b"parent"
    spill.free(extent)


def test_each_folder_has_one_file(tmp_path: Path) -> None:
    assert spill_file(tmp_path) is spill_file(tmp_path)
    assert spill_file(tmp_path) is not spill_file(tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        spill_file(tmp_path / "other").put(b"x")
