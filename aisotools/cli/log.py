"""`aisotools log show|verify|export`: the ledgers of past and present sessions."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aisotools.core.exceptions import LedgerError, WorkspaceError
from aisotools.workspace.lock import state_folder

Echo = Callable[[str], object]
"""Takes a line to print."""


def add_parser(commands: Any) -> None:
    """Add `log` to the command line's subcommands."""
    log = commands.add_parser("log", help="show, verify or export the ledger of a session")
    log.add_argument("action", choices=("show", "verify", "export"))
    log.add_argument("session", nargs="?", help="a session's key, or a ledger file; the latest without it")


def run(options: argparse.Namespace, echo: Echo, environ: Mapping[str, str] = os.environ) -> int:
    """Carry out `aisotools log`; 0 when all is well, 1 when the ledger is damaged, 2 when there is none."""
    from aisotools.session.ledger import read  # the other subcommands need none of it

    try:
        path = _ledger_of(options.session, ledger_folder(environ))
        if path is None:
            named = f" of {options.session!r}" if options.session is not None else " yet"
            echo(f"There is no ledger{named}.")
            return 2
        if options.action == "verify":
            return _verify(path, echo)
        for record in read(path):
            echo(json.dumps(record, ensure_ascii=False) if options.action == "export" else _line(record))
    except (LedgerError, WorkspaceError) as error:
        echo(str(error))
        return 1
    return 0


def ledger_folder(environ: Mapping[str, str]) -> Path:
    """Where the ledgers lie.

    Raises:
        WorkspaceError: If the state folder cannot be used.
    """
    return state_folder(environ) / "ledger"


def _ledger_of(session: str | None, folder: Path) -> Path | None:
    if session is not None and session.endswith(".jsonl"):
        return Path(session)
    found = sorted(folder.glob(f"{session or '*'}.jsonl"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def _verify(path: Path, echo: Echo) -> int:
    from aisotools.session.ledger import verify

    found = verify(path)
    for problem in found.problems:
        echo(f"DAMAGED: {problem}")
    if found.torn_bytes:
        echo(f"The last line is unfinished ({found.torn_bytes} bytes), as a crash leaves it.")
    echo(f"{path}: {found.records} records are sound.")
    return 1 if found.problems else 0


def _line(record: Mapping[str, Any]) -> str:
    body = record.get("body", {})
    when = time.strftime("%H:%M:%S", time.localtime(record.get("time_s", 0)))
    told: Mapping[str, Callable[[], str]] = {
        "call_requested": lambda: f"{body['origin']} asks for {body['name']} {json.dumps(body['arguments'])}",
        "approval_asked": lambda: f"a person is asked: {'; '.join(body['reasons'])}",
        "approval_answered": lambda: (
            f"answer: {body['outcome']} after {body['waited_s']:.1f} s {body['reason']}"
        ),
        "call_decided": lambda: f"{body['decision']} by {body['decided_by']}: {'; '.join(body['reasons'])}",
        "call_started": lambda: f"runs in the {body['runs_in']} ({body['level']})",
        "call_finished": lambda: _told_result(body),
    }
    tell = told.get(record.get("kind", ""), lambda: json.dumps(body))
    return f"{record.get('n', 0):5}  {when}  {record.get('kind', ''):18}  {tell()}"[:400]


def _told_result(body: Mapping[str, Any]) -> str:
    result = body["result"]
    word = f"{result['error_kind']} error" if result["is_error"] else "ok"
    first = result["content"].strip().partition("\n")[0]
    return f"{body['name']}: {word} after {body['duration_s']:.2f} s: {first}"
