"""Digests of what a call may run, and which files are code."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from aisotools.workspace.loaded_names import MAX_SIGN_CHARS
from aisotools.workspace.scripts import (
    FOLDER,
    MAX_HASHED_BYTES,
    MAX_SOURCES,
    MAX_STAMPED,
    MISSING,
    UNREADABLE,
    digest_of_code,
    digests_of,
    find_program,
    is_code,
    source_digests,
)
from aisotools.workspace.stamps import is_known


def digest(workspace: Path, path: str) -> str:
    return dict(digests_of(workspace, [path]))[path]


def test_a_digest_is_of_the_content_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("same")
    (tmp_path / "b").write_text("same")
    before = digest(tmp_path, "a")
    assert before == digest(tmp_path, "b")
    assert len(before) == 64
    (tmp_path / "a").write_text("others")
    assert digest(tmp_path, "a") != before
    (tmp_path / "a").write_text("same")
    assert digest(tmp_path, "a") == before


def test_missing_files_and_folders_are_noted_as_that(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert digests_of(tmp_path, ["missing", "folder", "folder/missing"]) == (
        ("folder", FOLDER),
        ("folder/missing", MISSING),
        ("missing", MISSING),
    )


@pytest.mark.parametrize("path", ["~/x.sh", "$TMPDIR/x.sh", "/tmp/x.sh", "../x.sh", "/srv/x", "out"])
def test_files_elsewhere_where_a_sandbox_may_write_have_no_digest(tmp_path: Path, path: str) -> None:
    (tmp_path / "out").symlink_to("/tmp")
    assert digest(tmp_path, path) == UNREADABLE


def test_files_of_the_system_are_left_out(tmp_path: Path) -> None:
    assert digests_of(tmp_path, ["/usr/bin/env", "/etc/hosts", "/dev/null"]) == ()


def test_pipes_have_no_digest_and_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert digest(tmp_path, "fifo") == UNREADABLE


def test_large_files_are_compared_by_a_stamp_that_every_write_changes(tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(MAX_HASHED_BYTES + 1))
    before = digest(tmp_path, "large")
    assert before.startswith("stamp ")
    assert digest(tmp_path, "large") == before
    times = file.stat()
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest(tmp_path, "large") != before, "setting the times back is a change as well"


def test_after_four_times_as_much_further_files_are_not_read(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"f{number}").write_bytes(bytes(MAX_HASHED_BYTES))
    found = [value for _, value in digests_of(tmp_path, [f"f{number}" for number in range(6)])]
    assert [value.startswith("stamp ") for value in found] == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    "line", ["source lib.sh", ". lib.sh", "  source ./lib.sh", "source lib.sh; run", ". lib.sh # why"]
)
def test_files_that_a_script_loads_by_name_count(tmp_path: Path, line: str) -> None:
    (tmp_path / "run.sh").write_text(f"#!/bin/sh\n{line}\necho on\n")
    (tmp_path / "lib.sh").write_text("one")
    before = digests_of(tmp_path, ["run.sh"])
    assert [path.removeprefix("./") for path, _ in before] == ["lib.sh", "run.sh"]
    (tmp_path / "lib.sh").write_text("two")
    assert digests_of(tmp_path, ["run.sh"]) != before


def test_too_many_paths_have_no_digest(tmp_path: Path) -> None:
    assert dict(digests_of(tmp_path, [f"f{number}" for number in range(60)]))["..."] == UNREADABLE
    loads = "".join(f"source f{number}\n" for number in range(60))
    (tmp_path / "run.sh").write_text(loads)
    assert dict(digests_of(tmp_path, ["run.sh"]))["..."] == UNREADABLE


@pytest.mark.parametrize(
    ("name", "content", "mode", "expected"),
    [
        ("x.py", "", 0o644, True),
        ("X.SH", "", 0o644, True),
        ("Makefile", "", 0o644, True),
        ("package.json", "{}", 0o644, False),
        ("plain", "#!/bin/sh", 0o644, True),
        ("plain", "", 0o755, True),
        ("plain", "", 0o644, False),
        ("a.csv", "1,2", 0o644, False),
        ("notes.ipynb", "{}", 0o644, False),
    ],
)
def test_code_is_told_by_rights_beginning_and_name(
    tmp_path: Path, name: str, content: str, mode: int, expected: bool
) -> None:
    file = tmp_path / name
    file.write_text(content)
    file.chmod(mode)
    assert is_code(tmp_path, name) is expected
    assert is_code(tmp_path, str(file)) is expected


def test_missing_files_are_no_code_and_unreadable_ones_are(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "out").symlink_to("/tmp")
    assert not is_code(tmp_path, "missing.py")
    assert not is_code(tmp_path, "folder.py")
    assert is_code(tmp_path, "fifo")
    assert is_code(tmp_path, "out/x")
    assert is_code(tmp_path, "*.py")
    assert not is_code(tmp_path, "*.csv")


def test_programs_are_found_with_links_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text("#!/bin/sh\n")
    real.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").symlink_to(real)
    assert find_program("tool", str(tmp_path / "bin")) == str(real)
    assert find_program("other", str(tmp_path / "bin")) == ""


def code_digest(workspace: Path, text: str = "bash x.sh", scripts: tuple[str, ...] = ()) -> str:
    return digest_of_code(workspace, [text], scripts)


@pytest.mark.parametrize(
    ("name", "mode", "is_bound"),
    [
        ("lib/l.py", 0o644, True),
        ("a.unknown", 0o644, True),
        ("prog", 0o755, True),
        ("notes", 0o644, False),
        ("Makefile", 0o644, True),
        (".envrc", 0o644, True),
        ("a.csv", 0o644, False),
        ("a.csv", 0o755, True),
        ("package.json", 0o644, True),
        ("requirements-dev.txt", 0o644, True),
        ("notes.txt", 0o644, False),
        (".git/objects/ab/x", 0o644, False),
        (".git/hooks/pre-commit", 0o755, True),
    ],
)
def test_all_files_that_may_be_code_are_bound(tmp_path: Path, name: str, mode: int, is_bound: bool) -> None:
    before = code_digest(tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("1")
    (tmp_path / name).chmod(mode)
    assert (code_digest(tmp_path) != before) is is_bound
    if not name.startswith(".git/objects"):
        assert code_digest(tmp_path, "ls | xargs sh") != digest_of_code(tmp_path, ["ls | xargs sh"], [name])


def test_a_file_whose_content_is_known_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("1")
    before = code_digest(tmp_path, scripts=("x.sh", "missing.sh"))
    (tmp_path / "x.sh").unlink()
    (tmp_path / "x.sh").write_text("1")
    assert code_digest(tmp_path, scripts=("x.sh", "missing.sh")) == before


def test_a_script_that_runs_any_file_binds_all(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_text("bash $(cat list)")
    before = code_digest(tmp_path, scripts=("x.sh",))
    (tmp_path / "data.csv").write_text("1")
    assert code_digest(tmp_path, scripts=("x.sh",)) != before
    (tmp_path / "x.sh").write_text("bash $TMPDIR/$F")
    assert code_digest(tmp_path, scripts=("x.sh",)) == UNREADABLE


@pytest.mark.parametrize("parts", [1, 3])
def test_a_call_that_is_given_more_code_than_is_read_for_signs_has_no_digest(
    tmp_path: Path, parts: int
) -> None:
    """To look through 256 KiB took the event loop 0.2 s."""
    texts = ["x" * (MAX_SIGN_CHARS // parts)] * parts
    assert digest_of_code(tmp_path, texts, []) != UNREADABLE
    assert digest_of_code(tmp_path, [*texts, "y" * parts], []) == UNREADABLE


def test_links_count_with_what_they_lead_to(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "a").symlink_to("/usr/bin/env")
    before = code_digest(workspace)
    assert before != UNREADABLE
    (workspace / "a").unlink()
    (workspace / "a").symlink_to("/usr/bin/true")
    assert code_digest(workspace) not in {before, UNREADABLE}
    (tmp_path / "beside.sh").write_text("1")
    (workspace / "b.sh").symlink_to(tmp_path / "beside.sh")
    assert code_digest(workspace) == UNREADABLE


def test_more_files_than_are_looked_at_have_no_digest(tmp_path: Path) -> None:
    for number in range(MAX_STAMPED + 2):
        (tmp_path / f"{number}.py").touch()
    assert code_digest(tmp_path) == UNREADABLE


def links(folder: Path) -> None:
    for number in range(1_600):
        (folder / f"{number}.sh").symlink_to("/usr/bin/env")


def folders(folder: Path) -> None:
    for number in range(3_000):
        (folder / str(number)).mkdir()


def chain(folder: Path) -> None:
    place = os.open(folder, os.O_RDONLY)
    for _ in range(900):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)


@pytest.mark.parametrize("make", [links, folders, chain])
def test_work_to_find_all_code_is_bounded(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A worker makes tens of thousands of folders in a second, and looking at them held up the event loop."""
    (tmp_path / "few").mkdir()
    assert code_digest(tmp_path) != UNREADABLE
    make(tmp_path)
    assert code_digest(tmp_path) == UNREADABLE


def test_with_more_folders_than_are_looked_at_nothing_is_complete(tmp_path: Path) -> None:
    assert dict(digests_of(tmp_path, [], ["m.py"], [f"d{number}" for number in range(5)])).get("...") is None
    found = dict(digests_of(tmp_path, [], ["m.py"], [f"d{number}" for number in range(50)]))
    assert found["..."] == UNREADABLE


def test_sources_are_compared_by_content_and_folders_by_stamps(tmp_path: Path) -> None:
    (tmp_path / "d/.git").mkdir(parents=True)
    (tmp_path / "a").write_text("one")
    (tmp_path / "d/b").write_text("two")
    names = ("a", "d", "missing", "/usr/bin/env")
    before = dict(source_digests(tmp_path, names))
    assert set(before) == {"a", "d", "missing"}
    assert before["a"] == hashlib.sha256(b"one").hexdigest()
    assert before["missing"] == MISSING
    (tmp_path / "a").write_text("one")
    (tmp_path / "d/.git/index").write_text("")
    assert dict(source_digests(tmp_path, names)) == before, "the same content, and what git keeps"
    (tmp_path / "d/b").write_text("other")
    after = dict(source_digests(tmp_path, names))
    assert [name for name in before if before[name] != after[name]] == ["d"]


def test_a_source_that_cannot_be_compared_has_an_unknown_digest(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    os.mkfifo(workspace / "pipe")
    (tmp_path / "beside").write_text("one")
    beside = str(tmp_path / "beside")
    names = ("pipe", beside, "~/x", "$TMPDIR/x", "../beside", str(tmp_path))
    before = dict(source_digests(workspace, names))
    assert set(before) == set(names)
    assert not any(map(is_known, before.values()))
    (tmp_path / "beside").write_text("other")
    after = dict(source_digests(workspace, names))
    assert {name for name in names if before[name] != after[name]} == {beside, "../beside"}


def test_more_sources_than_are_looked_at_are_noted(tmp_path: Path) -> None:
    names = [str(number) for number in range(MAX_SOURCES + 1)]
    assert "..." not in dict(source_digests(tmp_path, names[1:]))
    assert not is_known(dict(source_digests(tmp_path, names))["..."])


def test_large_sources_are_compared_by_a_stamp(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (MAX_HASHED_BYTES + 1))
    before = source_digests(tmp_path, ["large"])
    assert is_known(before[0][1])
    with (tmp_path / "large").open("r+b") as file:
        file.write(b"y")
    assert source_digests(tmp_path, ["large"]) != before


def test_a_call_that_may_read_any_file_is_bound_to_all(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("one")

    def digests() -> tuple[str, str]:
        return digest_of_code(tmp_path, ["x"], ()), digest_of_code(tmp_path, ["x"], (), is_any=True)

    code, everything = digests()
    (tmp_path / "a.csv").write_text("other")
    assert digests()[0] == code
    assert digests()[1] != everything
