"""The corpus: what each command is expected to be, and, run in a throw-away folder, what it then does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell
from aisotools.sandbox.confinement import landlock
from tests.policy.shell.corpus import Entry, entries, of_kind

HARMLESS_PROGRAMS = {
    "cat",
    "chmod",
    "cp",
    "echo",
    "find",
    "ln",
    "ls",
    "mkdir",
    "mv",
    "printf",
    "rm",
    "rmdir",
} | {
    "sed",
    "shuf",
    "sort",
    "tee",
    "touch",
    "tree",
    "uniq",
    "unlink",
}
"""What may be run to see whether it writes what the report says: below Landlock, in a folder of its own."""


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: repr(entry.command)[:60])
def test_each_command_is_what_it_is_expected_to_be(entry: Entry) -> None:
    report = classify_shell(entry.command)
    assert (report.effect, report.certain) == (entry.effect, entry.certain), report
    assert report == classify_shell(entry.command)


def test_nothing_that_does_more_is_taken_for_reading() -> None:
    taken = [
        entry.command
        for entry in of_kind("change", "adversarial")
        if classify_shell(entry.command).effect is Effect.READ_ONLY
    ]
    assert taken == []


def test_of_everyday_commands_at_least_95_in_100_are_taken_for_reading() -> None:
    everyday = of_kind("everyday")
    reading = [entry for entry in everyday if classify_shell(entry.command).effect is Effect.READ_ONLY]
    assert len(reading) >= 0.95 * len(everyday)


def test_the_corpus_is_large_enough_and_mostly_hostile() -> None:
    commands = [entry.command for entry in entries()]
    assert len(commands) == len(set(commands)) >= 400
    assert len(of_kind("adversarial")) >= len(commands) / 2
    assert len(of_kind("everyday")) >= 100


# ---- run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with what the commands of the corpus speak of."""
    place = tmp_path / "place"
    (place / "src").mkdir(parents=True)
    (place / "d").mkdir()
    (place / "home").mkdir()
    for name in (
        "a",
        "b",
        "x",
        "y",
        "f",
        "a.txt",
        "b.txt",
        "data.csv",
        "names.txt",
        "src/main.py",
        "list.txt",
    ):
        (place / name).write_text("one,two\nthree,four\n" * 3)
    for command in (
        "init -q .",
        "-c user.name=me -c user.email=me@x.example commit -q --allow-empty -m first",
    ):
        subprocess.run(["git", *command.split()], cwd=place, check=True)
    return place


HOUSEKEEPING = ("home/.npm", "home/.config", "home/.rustup")
"""What programs note for themselves, and do without where they may not: npm's log, top's folder, and what
rustup sets up when pip asks for the version of Rust."""


def contents(place: Path) -> dict[str, bytes | None]:
    """Every file and folder below `place`, but for housekeeping."""
    found = {str(path.relative_to(place)): path for path in place.rglob("*")}
    return {
        name: path.read_bytes() if path.is_file() else None
        for name, path in found.items()
        if not name.startswith(HOUSEKEEPING)
    }


def run(command: str, place: Path) -> None:
    """Run `command` by bash, able to write below `place` only, and to talk to nobody."""

    def confine() -> None:
        landlock.restrict(["/"], [str(place)])

    process = subprocess.Popen(
        ["/bin/bash", "-c", command],
        cwd=place,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(place / "home"),
            "LANG": "C.UTF-8",
            "GIT_OPTIONAL_LOCKS": "0",  # git status would note what it has looked at
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=confine,  # noqa: PLW1509 - there are no threads
    )
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()


def reading() -> Iterator[Entry]:
    """Whatever of the corpus is taken for reading."""
    return (entry for entry in entries() if classify_shell(entry.command).effect is Effect.READ_ONLY)


def openly_writing() -> Iterator[Entry]:
    """Whatever of the corpus writes, certainly and in the folder, by programs that do nothing else."""
    for entry in entries():
        report = classify_shell(entry.command)
        programs = {command.partition(" ")[0] for command in report.commands}
        plain = all(path.isidentifier() for path in report.writes)
        if report.certain and report.writes and plain and programs <= HARMLESS_PROGRAMS:
            yield entry


@pytest.mark.slow
@pytest.mark.skipif(landlock.abi() == 0, reason="needs Landlock to run such commands safely")
@pytest.mark.parametrize("entry", list(reading()), ids=lambda entry: repr(entry.command)[:60])
def test_what_is_taken_for_reading_changes_nothing(entry: Entry, folder: Path) -> None:
    before = contents(folder)
    run(entry.command, folder)
    assert contents(folder) == before


@pytest.mark.slow
@pytest.mark.skipif(landlock.abi() == 0, reason="needs Landlock to run such commands safely")
@pytest.mark.parametrize("entry", list(openly_writing()), ids=lambda entry: repr(entry.command)[:60])
def test_what_is_changed_is_what_the_report_says(entry: Entry, folder: Path) -> None:
    before = contents(folder)
    run(entry.command, folder)
    after = contents(folder)
    changed = {path for path in before.keys() | after.keys() if before.get(path, 0) != after.get(path, 0)}
    told = classify_shell(entry.command).writes
    assert all(path in told or path.rpartition("/")[0] in told for path in changed), changed
