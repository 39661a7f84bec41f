"""`aisotools log show|verify|export|forget`: read the ledgers of past and present sessions."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aisotools.cli.tools import Echo, add_subcommand
from aisotools.core.exceptions import LedgerError, WorkspaceError
from aisotools.workspace.lock import state_place
from aisotools.workspace.paths import printable

_MAX_LINE_CHARS = 400
_ACTIONS = "export prints JSON lines; forget accepts that you moved or removed the ledger that you name"


def add_parser(commands: Any) -> None:
    """Add `log` to the subcommands."""
    parser = add_subcommand(
        commands,
        "log",
        "show, verify or export the ledger of a session, or forget one that you removed",
        epilog="Exit status: 0 for success, 1 if the ledger is damaged or unreadable, 2 if there is none. "
        "Before a key that begins with a dash put `--`.",
    )
    parser.add_argument("action", choices=("show", "verify", "export", "forget"), help=_ACTIONS)
    parser.add_argument("session", nargs="?", help="session key or ledger file (default: the latest session)")


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def run(
    options: argparse.Namespace, echo: Echo, environ: Mapping[str, str] = os.environ, *, warn: Echo = _warn
) -> int:
    """Run `aisotools log`.

    Args:
        options: The command line.
        echo: Prints what was asked for.
        environ: The environment.
        warn: Prints what is wrong with a ledger that is shown or exported.

    Returns:
        0 for success, 1 for a damaged or unreadable ledger, 2 if there is none.
    """
    # Imported here, since the other commands do not need it.
    from aisotools.session.ledger import read, verify
    from aisotools.session.ledger_values import escape_unseen

    try:
        folder = ledger_folder(environ)
        if options.action == "forget":
            return _forget(options.session, folder, echo)
        path, unreadable = _find_ledger(options.session, folder)
        for problem in unreadable:
            echo(problem) if options.action == "verify" else warn(problem)
        is_damaged = options.action == "verify" and _report_missing(path, options.session, folder, echo)
        is_damaged = is_damaged or bool(unreadable)
        if path is None and is_damaged:
            return 1
        if path is None:
            whose = " yet" if options.session is None else f" of session {options.session!r}"
            echo(f"There is no ledger{whose}.")
            return 2
        if options.action == "verify":
            return max(_verify(path, echo), int(is_damaged))
        for record in read(path):
            if options.action == "export":
                echo(escape_unseen(json.dumps(record, ensure_ascii=False)))
            else:
                echo(_line(record))
        if not os.path.lexists(path.parent / "key"):
            warn(f"{path} was not checked: there is no key beside it.")
            return int(is_damaged)
        problems = verify(path).problems
        for problem in problems:
            warn(f"DAMAGED: {problem}. What follows in {path} is not printed, or is not to be relied on.")
        return 1 if problems or is_damaged else 0
    except (LedgerError, WorkspaceError) as error:
        warn(str(error)) if options.action in {"show", "export"} else echo(str(error))
        return 1


def ledger_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the ledgers, which need not exist."""
    return state_place(environ) / "ledger"


def _find_ledger(session: str | None, folder: Path) -> tuple[Path | None, list[str]]:
    """Return the ledger file of `session`, of the latest session if that is None, and what was passed over.

    A session that is the path of a ledger is that ledger. What cannot be read is passed over, each with the
    reason, unless it is the only one of that session.
    """
    from aisotools.session.ledger import last_change

    names = _names_of(session)
    # Not as a pattern, nor as a part of a path: it is whatever somebody typed.
    paths = [path for path in folder.glob("*.jsonl") if session is None or path.stem in names]
    if session is not None and session.endswith(".jsonl") and not paths:
        path = Path(session)
        return (path if path.exists() or os.sep in session else None), []
    if session is not None and len(paths) == 1:
        return paths[0], []
    changed: dict[Path, float] = {}
    unreadable = []
    for path in sorted(paths):
        try:
            changed[path] = last_change(path)
        except LedgerError as error:
            unreadable.append(str(error))
    return max(changed, key=lambda path: changed[path], default=None), unreadable


def _names_of(session: str | None) -> frozenset[str]:
    """Return the names that the ledger of `session`, a key or the name of a ledger, may have."""
    from aisotools.session.ledger import ledger_name

    return frozenset() if session is None else frozenset((session, ledger_name(session)))


def _report_missing(path: Path | None, session: str | None, folder: Path, echo: Echo) -> bool:
    """Say which ledgers are gone: the one that was asked for, or any. Return whether there are such."""
    from aisotools.session.ledger import missing_ledgers

    if path is not None and path.parent != folder:
        return False
    try:
        missing = missing_ledgers(folder)
    except LedgerError as error:
        echo(f"DAMAGED: {error}")
        return True
    names = _names_of(session)
    gone = {name: count for name, count in missing.items() if session is None or name in names}
    for name, count in gone.items():
        echo(
            f"DAMAGED: the ledger {name} is gone; it had {count} records or more. If you removed it, "
            f"`aisotools log forget {name}` accepts that."
        )
    return bool(gone)


def _forget(session: str | None, folder: Path, echo: Echo) -> int:
    from aisotools.session.ledger import forget_ledger

    if session is None:
        echo("Name the ledger that you moved or removed: `aisotools log forget NAME`.")
        return 2
    path = Path(session)
    is_file = path.suffix == ".jsonl" and path.parent.absolute() == folder
    for name in (path.stem,) if is_file else sorted(_names_of(session)):
        if forget_ledger(folder, name):
            echo(f"The ledger {name} is forgotten. The next session of that key begins a new one.")
            return 0
    echo(f"There is no ledger of session {session!r} in the index.")
    return 2


def _verify(path: Path, echo: Echo) -> int:
    from aisotools.session.ledger import verify

    verification = verify(path)
    for problem in verification.problems:
        echo(f"DAMAGED: {problem}")
    if verification.torn_bytes:
        echo(f"The last line is incomplete ({verification.torn_bytes} bytes), as after a crash.")
    echo(f"{path}: {verification.records} records are sound.")
    return 1 if verification.problems else 0


def _line(record: Mapping[str, Any]) -> str:
    """Format one record as one line: number, local time, kind, and a summary."""
    try:
        kind = record["kind"]
        local_time = time.strftime("%H:%M:%S", time.localtime(record["time_s"]))
        line = f"{record['n']:5}  {local_time}  {kind:18}  {_summary(kind, record['body'])}"
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError):
        line = json.dumps(record)  # Somebody has changed it, which is said when all is printed.
    # A terminal obeys what a sandbox or a page has put into a record.
    return printable(line[:_MAX_LINE_CHARS])


def _summary(kind: str, body: Mapping[str, Any]) -> str:
    match kind:
        case "call_requested":
            return f"{body['origin']} calls {body['name']} {json.dumps(body['arguments'])}"
        case "approval_asked":
            return f"a person is asked: {'; '.join(body['reasons'])}"
        case "approval_answered":
            return f"answer: {body['outcome']} after {body['waited_s']:.1f} s {body['reason']}"
        case "call_tried":
            return f"tried without the right to change anything ({', '.join(body['programs'])})"
        case "call_decided":
            links = ", ".join(f"{name} -> {target}" for name, target in body.get("links", ()))
            summary = f"{body['decision']} by {body['decided_by']}: {'; '.join(body['reasons'])}"
            return f"{summary} (links: {links})" if links else summary
        case "call_started":
            return f"runs in the {body['runs_in']} ({body['level']})"
        case "call_finished":
            result = body["result"]
            outcome = f"{result['error_kind']} error" if result["is_error"] else "ok"
            first_line = result["content"].strip().partition("\n")[0]
            return f"{body['name']}: {outcome} after {body['duration_s']:.2f} s: {first_line}"
        case "variables_dropped":
            return f"variables from before {', '.join(body['call_ids'])} are not kept: {body['reason']}"
    return json.dumps(body)
