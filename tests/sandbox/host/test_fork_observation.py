"""What is observed of a fork, and texts of /proc that a worker decides."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic_core import to_json

from aisotools.core.exceptions import SandboxError
from aisotools.sandbox.host import fork_observation
from aisotools.sandbox.host.fork_observation import (
    DetachedFiles,
    MemoryMap,
    ProcessCounts,
    ProcessObservation,
    TooMuchToRead,
    find_detached_files,
    label_snapshot,
    list_inherited,
    observe,
    parse_memory_map,
    why_unrestricted,
)
from tests.sandbox.rig import rig

# ---- files that were replaced


@contextlib.contextmanager
def mapped(descriptor: int, protection: int, kind: int) -> Iterator[None]:
    """Map a page of a file, without the further descriptor that Python's own mappings keep."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    address = libc.mmap(None, mmap.PAGESIZE, protection, kind, descriptor, 0)
    assert address not in {None, ctypes.c_void_p(-1).value}, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        libc.munmap(address, mmap.PAGESIZE)


def test_files_are_named_that_are_open_and_gone_from_their_paths(tmp_path: Path) -> None:
    files = (
        "replaced",
        "removed",
        "read",
        "there",
        "closed",
        "both",
        "mapped",
        "map for writing",
        "own copy",
    )
    names = {str(tmp_path / name): name for name in files}
    for name in [*names.values(), "foreign"]:
        (tmp_path / name).write_text(name)
    with contextlib.ExitStack() as opened:
        for name in ("replaced", "removed", "there", "foreign"):
            opened.enter_context((tmp_path / name).open("a"))
        for name in ("read", "both"):
            opened.enter_context((tmp_path / name).open())
        opened.enter_context((tmp_path / "both").open("a"))
        for name, mode, protection, kind in (
            ("mapped", "rb", mmap.PROT_READ, mmap.MAP_SHARED),
            ("map for writing", "r+b", mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED),
            ("own copy", "rb", mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE),
        ):
            with (tmp_path / name).open(mode) as file:
                opened.enter_context(mapped(file.fileno(), protection, kind))
        for name in ("removed", "read", "foreign", "closed", "both", "mapped", "map for writing", "own copy"):
            (tmp_path / name).unlink()
        (tmp_path / "new").write_text("new")
        (tmp_path / "new").rename(tmp_path / "replaced")
        found = find_detached_files(os.getpid(), names)
        assert found == DetachedFiles(
            frozenset({"removed", "replaced", "both", "map for writing"}),
            frozenset({"read", "mapped", "own copy"}),
        )
    assert find_detached_files(os.getpid(), names) == DetachedFiles()
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    assert find_detached_files(int(ended.stdout), names) == DetachedFiles()


def test_files_of_two_processes_are_put_together() -> None:
    one = DetachedFiles(frozenset({"a"}), frozenset({"b"}))
    other = DetachedFiles(frozenset({"b"}), frozenset({"a", "c"}))
    assert one | other == DetachedFiles(frozenset({"a", "b"}), frozenset({"c"}))


# ---- labels


def observation(
    *, threads: int = 0, children: Mapping[int, str] | None = None, **more: Any
) -> ProcessObservation:
    more.setdefault("descriptors", {})
    return ProcessObservation(counts=ProcessCounts(threads=threads, children=children or {}), **more)


@pytest.mark.parametrize(
    ("seen", "label", "lost"),
    [
        (observation(), "exact", ()),
        (observation(threads=1, thread_names=("t",)), "partial", ("threads: t",)),
        (observation(threads=2), "partial", ("2 threads of a library",)),
        (
            observation(threads=3, thread_names=("t",)),
            "partial",
            ("threads: t", "2 threads of a library"),
        ),
        (observation(threads=2, libraries=frozenset({"libopenblas.so.0"})), "exact", ()),
        (
            observation(threads=1, libraries=frozenset({"polars.abi3.so"})),
            "data only",
            ("the threads of polars, which cannot be started again",),
        ),
        (observation(libraries=frozenset({"polars.abi3.so"})), "exact", ()),
        (observation(children={5: "sleep"}), "partial", ("child processes: sleep",)),
        (observation(descriptors={"pipes": 2, "sockets": 1}), "partial", ("2 pipes", "1 sockets")),
        (observation(written_files=("f",)), "partial", ("what was written to open files: f",)),
        (observation(written_files=("f", "f")), "partial", ("what was written to open files: f",)),
        (observation(shared_mappings=("f", "f")), "partial", ("what was written to shared memory: f",)),
        (observation(shared_mappings=("m",)), "partial", ("what was written to shared memory: m",)),
        (observation(is_complete=False), "partial", ("anything that could not be inspected",)),
        (
            observation(written_files=tuple("abcdefghij")),
            "partial",
            ("what was written to open files: a, b, c, d, e, f, g, h and 2 more",),
        ),
    ],
)
def test_labels(seen: ProcessObservation, label: str, lost: tuple[str, ...]) -> None:
    assert label_snapshot(seen) == (label, lost)


def test_snapshots_are_no_children_of_user_code() -> None:
    counts = ProcessCounts(threads=1, children={1: "a", 2: "b"})
    assert counts.without({2, 3}) == ProcessCounts(threads=1, children={1: "a"})


# ---- /proc


def test_threads_and_children_are_counted() -> None:
    before = fork_observation.count_processes(os.getpid(), ())
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    child = subprocess.Popen(["sleep", "1000"])
    try:
        counts = fork_observation.count_processes(os.getpid(), ())
        assert counts.threads == before.threads + 1
        assert counts.children[child.pid] in {"sleep", Path(sys.executable).name, "python"}
        assert fork_observation.count_processes(os.getpid(), {child.pid}).children[child.pid] == ""
    finally:
        child.kill()
        child.wait()
        end.set()
        thread.join()
    assert fork_observation.count_processes(child.pid, ()) == ProcessCounts()


def test_shared_resources_of_a_process_are_observed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with (tmp_path / "out").open("wb") as out, Path(__file__).open("rb"):
        code = "import sys, time; print(flush=True); time.sleep(1000)"
        child = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[reading, writing, out.fileno()], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
    try:
        seen = fork_observation.observe(
            child.pid, ProcessCounts(threads=1), {"threads": ["t" * 99], "ours": [reading]}
        )
        assert seen.descriptors == {"pipes": 1}
        assert seen.written_files == ("out",)
        assert seen.thread_names == ("t" * 40,)
        assert seen.is_complete
        assert fork_observation.private_bytes(child.pid) > 0
        alone = fork_observation.observe(child.pid, ProcessCounts(), {"threads": ["a lie"]})
        assert alone.thread_names == (), "the kernel has counted one thread"
    finally:
        child.kill()
        child.communicate()
        os.close(reading)
        os.close(writing)
    assert not fork_observation.observe(child.pid, ProcessCounts(), {}).is_complete
    assert fork_observation.private_bytes(child.pid) == 0


def test_of_many_children_only_some_are_named() -> None:
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(40)]
    try:
        counts = fork_observation.count_processes(os.getpid(), {children[0].pid})
        assert counts.children.keys() >= {child.pid for child in children}
        assert 8 <= sum(map(bool, counts.children.values())) <= 32
    finally:
        for child in children:
            child.kill()
            child.wait()


# ---- texts that a worker decides

LINE = b"7f0000001000-7f0000002000 rw-s 00000000 fd:00 1234                       /folder/file\n"
LINES = LINE * 3 + b"7f0000003000-7f0000004000 r-xp 00000000 fd:00 99 /usr/lib/libx.so.1\n"
# Each ends a line somewhere, though not for the kernel; or looks like the rest of one.
ODD_NAMES = {
    "carriage return": b"a\rb",
    "form feed": b"a\x0cb",
    "file separator": b"a\x1cb",
    "next line": "a\x85b".encode(),
    "line separator": "a\u2028b".encode(),
    "no text": b"a\xff\xfeb",
    "another line": b"a\r7f0000001000-7f0000002000 rw-s 00000000 fd:00 1 ",
    "deleted": b"a (deleted)",
    "spaces": b" a  b ",
    "library": b"libx.so",
}


def test_a_memory_map_is_read() -> None:
    seen = parse_memory_map([LINES])
    assert seen.is_complete
    assert seen.libraries == {"libx.so.1"}
    assert seen.shared == ((0x7F0000001000, 0x7F0000002000, "rw-", "file"),) * 3
    assert parse_memory_map([LINES[at : at + 7] for at in range(0, len(LINES), 7)]) == seen


def test_memory_that_is_shared_and_has_no_file() -> None:
    seen = parse_memory_map([b"7f00-7f01 rw-s 00000000 00:01 12 \n7f02-7f03 r--s 00000000 00:01 0\n"])
    assert [name for *_, name in seen.shared] == ["no file", "no file"]


@pytest.mark.parametrize("cut", range(1, len(LINE)))
def test_a_line_that_is_cut_counts_as_not_complete(cut: int) -> None:
    seen = parse_memory_map([LINES, LINE[:cut]])
    assert not seen.is_complete
    assert len(seen.shared) == 3


@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
def test_a_name_is_a_name_whatever_is_in_it(name: bytes) -> None:
    seen = parse_memory_map([LINE.replace(b"file", name)])
    assert seen.is_complete
    assert [shared for *_, shared in seen.shared] == [name.decode("utf-8", "replace")]


def test_nothing_at_all_is_not_complete() -> None:
    """The kernel shows an empty map of a process that is ending."""
    assert parse_memory_map([]) == MemoryMap()


@pytest.mark.parametrize(
    "text",
    [
        LINE * 257,
        b"".join(b"7f00-7f01 r-xp 00000000 fd:00 1 /%d.so\n" % n for n in range(4097)),
        b"7f00-7f01 rw-p 00000000 00:00 0\n" * (5 << 20 >> 5),
        b"x" * (5 << 20),
    ],
    ids=["shared", "libraries", "lines", "one line"],
)
def test_more_than_is_looked_at_counts_as_not_complete(text: bytes) -> None:
    read = 0

    def parts() -> Any:
        nonlocal read
        for at in range(0, len(text), 1 << 15):
            read += 1 << 15
            yield text[at : at + (1 << 15)]

    seen = parse_memory_map(parts())
    assert not seen.is_complete
    assert len(seen.shared) <= 256
    assert read <= (4 << 20) + (1 << 15)


hostile_bytes = st.lists(
    st.sampled_from(
        [LINE, LINE[:30], b"\n", b"\r", b"-", b" ", b"/", b".so", b"rw-s", b"\x00", b"\xff", b"7f00"]
    )
    | st.binary(max_size=20),
    max_size=30,
).map(b"".join)


@settings(deadline=None)
@given(hostile_bytes, st.integers(1, 50))
def test_no_text_raises_and_its_division_does_not_matter(text: bytes, size: int) -> None:
    whole = parse_memory_map([text])
    parts = parse_memory_map([text[at : at + size] for at in range(0, len(text), size)])
    assert whole == parts
    observation = ProcessObservation(
        descriptors={}, shared_mappings=tuple(name for *_, name in whole.shared), libraries=whole.libraries
    )
    to_json(label_snapshot(observation)[1])


def test_names_of_open_files_become_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/a\xff\rb"
    number = os.open(path, os.O_RDWR | os.O_CREAT)
    os.truncate(path, 4096)
    with mmap.mmap(number, 4096):
        seen = observe(os.getpid(), ProcessCounts(), {})
    os.close(number)
    assert "a\ufffd\rb" in seen.written_files
    assert "a\ufffd\rb" in seen.shared_mappings
    to_json(label_snapshot(seen)[1])


def test_file_without_a_name_is_not_given_one(tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as nameless, (tmp_path / "gone").open("w") as gone:
        (tmp_path / "gone").unlink()
        seen = observe(os.getpid(), ProcessCounts(), {})
        assert nameless.fileno() > 2 < gone.fileno()
    assert "gone (deleted)" in seen.written_files
    assert "a temporary file" in seen.written_files
    assert not any(name.startswith("#") for name in seen.written_files)


def test_files_that_an_undo_has_taken_away_are_not_given_the_names_that_it_gave_them(tmp_path: Path) -> None:
    stage = tmp_path / ".aisotools-write-0123456789ab-switched"
    stage.mkdir()
    old = stage / "25ee4a0525ee4a0525ee4a0525ee4a05"
    old.write_bytes(bytes(mmap.PAGESIZE))
    with old.open("r+b") as file, old.open("r+b") as again:
        old.unlink()
        with mapped(file.fileno(), mmap.PROT_WRITE, mmap.MAP_SHARED):
            seen = observe(os.getpid(), ProcessCounts(), {})
        assert file.fileno() > 2 < again.fileno()
    replaced = "a file that an undo or redo has replaced"
    assert [name for name in seen.written_files if "undo" in name] == [replaced] * 2
    assert replaced in seen.shared_mappings
    assert "25ee4a05" not in str(seen)
    of_files = [line for line in label_snapshot(seen)[1] if line.startswith("what was written to open files")]
    assert of_files[0].count(replaced) == 1


def test_too_many_open_files_count_as_not_complete() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 5000:
        pytest.skip("this process may not have that many")
    reading, writing = os.pipe()
    many = [os.dup(reading) for _ in range(4096)]
    try:
        assert not observe(os.getpid(), ProcessCounts(), {}).is_complete
        with pytest.raises(SandboxError, match="too many files or mappings"):
            list_inherited(os.getpid())
    finally:
        for end in (reading, writing, *many):
            os.close(end)


def test_a_process_of_which_the_kernel_shows_nothing_is_no_reader() -> None:
    with subprocess.Popen(["true"]) as child:
        child.wait()
    assert "does not show" in why_unrestricted(child.pid, os.getpid())
    assert "does not show" in why_unrestricted(os.getpid(), child.pid)


def test_a_process_without_a_filter_of_its_own_is_no_reader() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            assert "has not given up its rights" in why_unrestricted(child.pid, os.getpid())
        finally:
            child.kill()


def test_much_is_not_read_while_the_loop_waits() -> None:
    reading, writing = os.pipe()
    assert observe(os.getpid(), ProcessCounts(), {}).descriptors
    many = [os.dup(reading) for _ in range(100)]
    try:
        with pytest.raises(TooMuchToRead):
            observe(os.getpid(), ProcessCounts(), {}, is_quick=True)
        assert observe(os.getpid(), ProcessCounts(), {}).descriptors["pipes"] >= 100
    finally:
        for end in (reading, writing, *many):
            os.close(end)
    with mmap.mmap(-1, 4096 * 6000) as memory:
        for page in range(0, 6000, 2):  # rights that differ make a mapping of each page
            _protect(memory, 4096 * page)
        with pytest.raises(TooMuchToRead):
            list_inherited(os.getpid(), is_quick=True)


def _protect(memory: mmap.mmap, offset: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert library.mprotect(start + offset, 4096, mmap.PROT_READ) == 0


# ---- in a session

MAP = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
with open({name!r}, 'w+b') as file:
    file.truncate(4096)
    for n in range({count}):  # with rights that differ, so that the kernel makes one of no two
        assert libc.mmap(None, 4096, 3 if n % 2 else 1, 1, file.fileno(), 0) != 2**64 - 1
v = 1
"""


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ODD_NAMES.values(), ids=ODD_NAMES)
async def test_an_undo_is_not_stopped_by_the_name_of_a_mapped_file(tmp_path: Path, name: bytes) -> None:
    async with rig(tmp_path) as r:
        await r.python(MAP.format(name=name, count=2), call_id="mapped")
        await r.python("v = 2", call_id="changed")
        point = await r.kernel.variables.restore("changed")
        assert "what was written to shared memory" in " ".join(point.lost)
        assert await r.value("v") == 1


async def test_an_undo_with_more_mappings_than_are_listed(tmp_path: Path) -> None:
    async with rig(tmp_path) as r:
        folders = "/".join(["d" * 250] * 15)
        await r.python(f"import os; os.makedirs({folders!r})")
        # Each line has some four thousand characters: a thousand of them are more than is read.
        await r.python(MAP.format(name=f"{folders}/m", count=1200), call_id="mapped")
        await r.python("v = 2", call_id="changed")
        point = await r.kernel.variables.restore("changed")
        assert point.label == "partial"
        assert "anything that could not be inspected" in point.lost
        assert await r.value("v") == 1
