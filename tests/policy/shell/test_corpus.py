"""The corpus: what each command is expected to be, and, run in a throw-away folder, what it then does."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import classify_shell
from aisotools.sandbox.confinement import landlock
from tests.policy.shell.corpus import KINDS, Entry, entries, of_kind
from tests.sandbox.alone import in_own_thread

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


# One test for many commands, which names each that fails: an item of its own for each of thousands costs more
# time, in every process that collects it, than its check.


@pytest.mark.parametrize("kind", KINDS)
def test_each_command_is_what_it_is_expected_to_be(kind: str) -> None:
    reports = {entry: classify_shell(entry.command) for entry in of_kind(kind)}
    assert reports
    wrong = {
        entry.command: f"expected {entry.effect.value}, certain: {entry.certain}; {report}"
        for entry, report in reports.items()
        if (report.effect, report.certain) != (entry.effect, entry.certain)
    }
    assert wrong == {}
    assert {e.command: r for e, r in reports.items() if r != classify_shell(e.command)} == {}


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
    assert {entry.kind for entry in entries()} == {*KINDS}
    commands = [entry.command for entry in entries()]
    assert len(commands) == len(set(commands)) >= 400
    assert len(of_kind("adversarial")) >= len(commands) / 2
    assert len(of_kind("everyday")) >= 100


# ---- run


def make_folder(place: Path) -> None:
    """Make the folder `place` with what the commands of the corpus speak of."""
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
        "db.sqlite",  # sqlite3 makes an empty database of what does not exist, where it may
        "x.db",
    ):
        (place / name).write_text("one,two\nthree,four\n" * 3)
    for command in (
        "init -q .",
        "-c user.name=me -c user.email=me@x.example commit -q --allow-empty -m first",
    ):
        subprocess.run(["git", *command.split()], cwd=place, check=True)


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

    def start() -> subprocess.Popen[bytes]:
        landlock.restrict(["/"], [str(place)])
        return subprocess.Popen(
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
        )

    process = in_own_thread(start)
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


def changes(entries: Iterable[Entry], place: Path) -> dict[str, set[str]]:
    """Return what each command changes of a folder made for it alone, without those that change nothing."""
    found = {}
    for entry in entries:
        make_folder(place)
        before = contents(place)
        run(entry.command, place)
        after = contents(place)
        changed = {path for path in before.keys() | after.keys() if before.get(path, 0) != after.get(path, 0)}
        if changed:
            found[entry.command] = changed
        shutil.rmtree(place)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(landlock.abi() == 0, reason="needs Landlock to run such commands safely")
def test_commands_classified_read_only_change_nothing(tmp_path: Path) -> None:
    entries = list(reading())
    assert len(entries) >= 500
    assert changes(entries, tmp_path / "place") == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(landlock.abi() == 0, reason="needs Landlock to run such commands safely")
def test_changed_files_are_those_in_the_report(tmp_path: Path) -> None:
    entries = list(openly_writing())
    assert len(entries) >= 50
    unreported = {}
    for command, changed in changes(entries, tmp_path / "place").items():
        writes = classify_shell(command).writes
        if left := {path for path in changed if not {path, path.rpartition("/")[0]} & {*writes}}:
            unreported[command] = left
    assert unreported == {}
