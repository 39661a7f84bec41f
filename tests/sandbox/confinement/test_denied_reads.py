"""Reading some paths below a readable folder is refused, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from aisotools.sandbox.confinement import landlock
from aisotools.sandbox.confinement.denied_reads import limit_reads, restrict_reads

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel offers no Landlock")

SYSTEM = ["/usr", "/bin", "/lib", "/lib64", sys.prefix]


@pytest.fixture
def ws(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "a" / "secrets" / "deep").mkdir(parents=True)
    (folder / "a" / "secrets" / "key").write_text("SECRET")
    (folder / "a" / "secrets" / "deep" / "key").write_text("SECRET")
    (folder / "a" / "notes").write_text("plain")
    (folder / "notes").write_text("plain")
    (folder / "link").symlink_to("a/secrets")
    (folder / "a" / "file").symlink_to("secrets/key")
    return folder


def read(ws: Path, command: str, denied: list[str], *, restricted: bool = True) -> str:
    """Return what a command prints on both streams."""
    paths = [str(ws / path) for path in denied]
    restrict = partial(restrict_reads, [*SYSTEM, str(ws)], paths) if restricted else None
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=ws, preexec_fn=restrict, capture_output=True, check=False, text=True
    )
    return done.stdout + done.stderr


WAYS = [
    "cat a/secrets/key",
    "cat link/key",
    "cat a/file",
    "cat a/secrets/deep/key",
    "cd a/secrets && cat key",
    "cat a/*/key",
    "grep -rh . .",
    "cat < a/secrets/key",
    "tar cf - a | tr -d '\\0'",
]


@pytest.mark.parametrize("command", WAYS)
def test_no_way_leads_to_what_is_denied(ws: Path, command: str) -> None:
    assert "SECRET" in read(ws, command, ["a/secrets"], restricted=False)
    assert "SECRET" not in read(ws, command, ["a/secrets"])


def test_all_else_can_be_read_and_listed(ws: Path) -> None:
    assert read(ws, "cat notes a/notes; ls; ls a", ["a/secrets"]).split() == [
        *("plainplaina", "link", "notes"),
        *("file", "notes", "secrets"),
    ]


def test_a_single_file(ws: Path) -> None:
    assert "SECRET" not in read(ws, "cat a/secrets/key", ["a/secrets/key"])
    assert "SECRET" in read(ws, "cat a/secrets/deep/key", ["a/secrets/key"])


def test_files_that_are_made_after_the_walk_are_closed(ws: Path) -> None:
    assert "Permission denied" in read(ws, "mkdir later && echo SECRET > later/key; cat later/key", ["later"])
    command = "rm -r a/secrets && mkdir a/secrets && echo SECRET > a/secrets/key; cat a/secrets/key"
    assert "SECRET" not in read(ws, command, ["a/secrets"])


def test_another_name_of_a_denied_file_beside_the_way_opens_nothing(ws: Path) -> None:
    """A right is one on the inode: it would hold for the denied name, too."""
    os.link(ws / "a" / "secrets" / "key", ws / "a" / "hard")
    assert "SECRET" not in read(ws, "cat a/hard a/secrets/key", ["a/secrets"])


def test_a_readable_folder_around_the_workspace_grants_nothing_more(ws: Path) -> None:
    done = subprocess.run(
        ["/bin/cat", str(ws / "a" / "secrets" / "key"), str(ws / "notes")],
        preexec_fn=partial(restrict_reads, [*SYSTEM, str(ws.parent), str(ws)], [str(ws / "a" / "secrets")]),
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.stdout == "plain"


def test_a_path_that_is_not_named_cannot_be_read(ws: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("OUTSIDE")
    assert "Permission denied" in read(ws, f"cat {tmp_path}/outside", ["a/secrets"])
    assert read(ws, "head -c 0 /dev/urandom; cat /dev/null", ["a/secrets"]) == ""


def test_more_entries_than_can_be_granted_start_nothing(ws: Path) -> None:
    command = ["/bin/cat", str(ws / "notes")]
    denied = [str(ws / "a" / "secrets")]
    enough = partial(restrict_reads, [*SYSTEM, str(ws)], denied, most_entries=6)
    assert subprocess.run(command, preexec_fn=enough, capture_output=True, check=True).stdout == b"plain"
    with pytest.raises(subprocess.SubprocessError):
        subprocess.run(command, preexec_fn=partial(enough, most_entries=5), check=True)


def test_reading_is_limited_only_where_something_is_denied_and_the_level_can_keep_it() -> None:
    assert limit_reads({"readable": ["/a"]}, ["/a/b"]) == {"readable": ["/a"], "denied": ["/a/b"]}
    assert limit_reads({"readable": ["/a"]}, []) is None
    assert limit_reads({}, ["/a/b"]) is None
