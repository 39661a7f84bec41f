"""`aisotools log` on ledgers that the tests write themselves."""

from __future__ import annotations

import argparse
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aisotools.cli import log
from aisotools.policy.approvers import AllowAll
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}


def run(*words: str, environ: Mapping[str, str]) -> tuple[int, list[str]]:
    parser = argparse.ArgumentParser()
    log.add_parser(parser.add_subparsers())
    lines: list[str] = []
    return log.run(parser.parse_args(["log", *words]), lines.append, environ, warn=lines.append), lines


def write_ledger(environ: Mapping[str, str], name: str, *records: Mapping[str, Any], time_s: int) -> Path:
    """A ledger file without a head: it can be read, and is not sound."""
    folder = log.ledger_folder(environ)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    os.utime(path, (time_s, time_s))
    return path


RESULT = {"is_error": False, "error_kind": None, "content": "one\ntwo"}


DENIED = {**RESULT, "is_error": True, "error_kind": "denied"}


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (
            "call_requested",
            {"origin": "model", "name": "file", "arguments": {"path": "a"}},
            'model calls file {"path": "a"}',
        ),
        (
            "approval_asked",
            {"reasons": ["it writes", "it is new"]},
            "a person is asked: it writes; it is new",
        ),
        (
            "approval_answered",
            {"outcome": "deny", "waited_s": 1.26, "reason": "no"},
            "answer: deny after 1.3 s no",
        ),
        (
            "call_tried",
            {"programs": ["frob", "nicate"], "digest": "d", "level": "confined"},
            "tried without the right to change anything (frob, nicate)",
        ),
        (
            "call_decided",
            {"decision": "allow", "decided_by": "policy", "reasons": ["it reads"]},
            "allow by policy: it reads",
        ),
        ("call_started", {"runs_in": "sandbox", "level": "confined"}, "runs in the sandbox (confined)"),
        (
            "call_finished",
            {"name": "file", "duration_s": 0.5, "result": RESULT},
            "file: ok after 0.50 s: one",
        ),
        (
            "call_finished",
            {
                "name": "file",
                "duration_s": 0.5,
                "result": DENIED,
            },
            "file: denied error after 0.50 s: one",
        ),
        (
            "variables_dropped",
            {"call_ids": ["a", "b"], "reason": "only some of the older snapshots are retained"},
            "variables from before a, b are not kept: only some of the older snapshots are retained",
        ),
        ("of_another_version", {"x": 1}, '{"x": 1}'),
    ],
)
def test_a_record_is_summarized_by_its_kind(kind: str, body: Mapping[str, Any], expected: str) -> None:
    assert log._summary(kind, body) == expected


def test_a_line_has_number_time_and_kind_and_is_cut() -> None:
    line = log._line({"n": 12, "time_s": 0, "kind": "x", "body": {"long": "y" * 1000}})
    number, local_time, kind = line.split()[:3]
    assert (number, local_time.count(":"), kind) == ("12", 2, "x")
    assert len(line) == 400


@pytest.mark.parametrize("kind", ["call_finished", "other"])
def test_a_terminal_gets_no_character_that_it_would_obey(kind: str) -> None:
    hostile = "a\x1b[2J\u202eb\u2028c\x9b1m\rd"
    body = {"name": "x", "duration_s": 1.0, "result": {**RESULT, "content": hostile}}
    line = log._line({"n": 1, "time_s": 0, "kind": kind, "body": body})
    assert line.isprintable()
    assert "\\u202e" in line


def test_the_latest_session_is_the_default(environ: dict[str, str]) -> None:
    first = write_ledger(environ, "first", time_s=2_000_000_000)
    write_ledger(environ, "second", time_s=1_000_000_000)
    assert log._find_ledger(None, log.ledger_folder(environ)) == (first, [])


def test_a_session_is_found_by_key_or_by_file(environ: dict[str, str]) -> None:
    folder = log.ledger_folder(environ)
    second = write_ledger(environ, "second", time_s=1)
    write_ledger(environ, "first", time_s=2)
    assert log._find_ledger("second", folder) == (second, [])
    assert log._find_ledger("third", folder) == (None, [])
    assert log._find_ledger("/anywhere/x.jsonl", folder) == (Path("/anywhere/x.jsonl"), [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("show",), "There is no ledger yet."), (("show", "mine"), "There is no ledger of session 'mine'.")],
)
def test_without_a_ledger_the_status_is_two(
    words: tuple[str, ...], expected: str, environ: dict[str, str]
) -> None:
    assert run(*words, environ=environ) == (2, [expected])


@pytest.mark.parametrize("session", ["/nowhere", "/", "../..", "*", "[a", "x" * 300, "a\0b"])
def test_session_is_neither_a_pattern_nor_a_path(environ: dict[str, str], session: str) -> None:
    write_ledger(environ, "first", time_s=2)
    status, lines = run("verify", session, environ=environ)
    assert (status, lines) == (2, [f"There is no ledger of session {session!r}."])


def test_a_missing_file_is_an_error_of_one_line(environ: dict[str, str], tmp_path: Path) -> None:
    status, lines = run("show", str(tmp_path / "gone.jsonl"), environ=environ)
    assert status == 1
    assert len(lines) == 1
    assert "gone.jsonl" in lines[0]


async def test_a_sound_ledger_is_shown_exported_and_verified(
    open_session: OpenSession, environ: dict[str, str]
) -> None:
    session = open_session(MockTool("look", result="seen"), approver=AllowAll(), session_key="mine")
    await session.call("look")
    await session.close()
    path = session.log_path
    assert path is not None
    status, shown = run("show", str(path), environ=environ)
    assert status == 0
    assert any("look: ok" in line and "seen" in line for line in shown)
    status, exported = run("export", str(path), environ=environ)
    assert status == 0
    assert [json.loads(line)["n"] for line in exported] == list(range(1, len(shown) + 1))
    assert run("verify", str(path), environ=environ) == (0, [f"{path}: {len(shown)} records are sound."])


async def one_ledger(open_session: OpenSession) -> Path:
    """Return the ledger of a session, which is closed."""
    session = open_session(MockTool("look"), approver=AllowAll(), session_key="mine")
    await session.call("look")
    await session.close()
    assert session.log_path is not None
    return session.log_path


def make_bad(path: Path, kind: str) -> None:
    if kind == "a link to itself":
        path.symlink_to(path.name)
    elif kind == "a link to nothing":
        path.symlink_to("nowhere")
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(path)
    elif kind == "a socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)  # the path that a socket is bound to has to be short
    else:
        path.write_text("{}\n")
        path.chmod(0)


BAD = {
    "a link to itself": "Too many levels of symbolic links",
    "a link to nothing": "it is a link to a file that is not there",
    "a folder": "it is a folder",
    "a FIFO": "it is a FIFO",
    "a socket": "it is a socket",
    "unreadable": "Permission denied",
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", BAD)
async def test_a_ledger_that_cannot_be_read_is_named_and_the_others_are_looked_at(
    open_session: OpenSession, environ: dict[str, str], kind: str
) -> None:
    if kind == "unreadable" and not os.geteuid():
        pytest.skip("root may read everything")
    path = await one_ledger(open_session)
    environ = {**environ, "XDG_STATE_HOME": str(path.parent.parent.parent)}
    assert log.ledger_folder(environ) == path.parent
    status, shown = run("show", environ=environ)
    assert status == 0
    bad = path.parent / "bad.jsonl"
    make_bad(bad, kind)
    named = f"The ledger {bad} cannot be read: {BAD[kind]}."
    assert run("show", environ=environ) == (1, [named, *shown])
    status, exported = run("export", environ=environ)
    assert (status, exported[0], len(exported)) == (1, named, 1 + len(shown))
    assert run("verify", environ=environ) == (1, [named, f"{path}: {len(shown)} records are sound."])
    # Whoever has asked for another one is not told of it, and who has asked for it is told of nothing else.
    assert run("show", "mine", environ=environ) == (0, shown)
    for name in ("bad", str(bad)):
        for action in ("show", "export", "verify"):
            assert run(action, name, environ=environ) == (1, [named])
    path.unlink()
    path.with_suffix(".head").unlink()
    status, lines = run("verify", environ=environ)
    assert (status, lines[0]) == (1, named)
    assert "There is no ledger" not in lines[-1]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["key", "index", "mine.head"])
@pytest.mark.parametrize("kind", [kind for kind in BAD if kind not in {"a link to nothing", "unreadable"}])
async def test_a_file_beside_a_ledger_that_cannot_be_read_is_named(
    open_session: OpenSession, environ: dict[str, str], name: str, kind: str
) -> None:
    path = await one_ledger(open_session)
    environ = {**environ, "XDG_STATE_HOME": str(path.parent.parent.parent)}
    beside = path.with_suffix(".head") if name == "mine.head" else path.parent / name
    beside.unlink()
    make_bad(beside, kind)
    status, lines = run("verify", environ=environ)
    assert status == 1
    assert any(beside.name in line and BAD[kind] in line for line in lines), lines
    status, lines = run("show", environ=environ)
    assert status == 1
    assert any("look: ok" in line for line in lines)


async def test_verify_names_damage_and_an_incomplete_last_line(
    open_session: OpenSession, environ: dict[str, str]
) -> None:
    session = open_session(MockTool("look"), approver=AllowAll())
    await session.call("look")
    await session.close()
    path = session.log_path
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"n": 99')
    status, lines = run("verify", str(path), environ=environ)
    assert (status, lines[0]) == (0, "The last line is incomplete (8 bytes), as after a crash.")
    path.write_bytes(whole.replace(b"look", b"lock", 1))
    status, lines = run("verify", str(path), environ=environ)
    assert status == 1
    assert lines[0].startswith("DAMAGED: line 1")
