"""`%undo`, `%redo`, `%changes`: show and take back the changes of calls to the workspace."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand

from aisotools.core.types import ToolResult
from aisotools.notebook.current import current_session
from aisotools.notebook.render import html
from aisotools.notebook.render.text import KEEP, one_line, shorten
from aisotools.policy.prompts import visible
from aisotools.workspace.diff import Changes, PathChange

if TYPE_CHECKING:
    from aisotools.session.undo_history import VariablesChoice

_MAX_DIGITS = 9

_USAGE = {
    "undo": "%undo [N | --to CALL] [--files] [--force]",
    "redo": "%redo [N] [--files] [--force]",
    "changes": "%changes [--since CALL]",
}
_MAX_DIFF_CHARS = 20_000
_MAX_CARD_CHARS = 200_000
_MAX_SHOWN = 200
# Diffs of the first paths are unfolded.
_UNFOLDED = 3


@magics_class
class UndoMagics(Magics):
    """The plain forms of magics that must be awaited; see `aisotools.notebook.magics.transform`."""

    @no_var_expand
    @line_magic
    def undo(self, line: str) -> None:  # noqa: ARG002 - called by IPython with it
        """Take back exactly the last call, or the last 3: `%undo`, `%undo 3`, `%undo --to CALL`.

        A call that changed nothing counts, and is shown as such. If the variables from before these calls are
        not kept, nothing is done, and the nearest states that are kept are named; with `--files` the files
        alone are taken back. An undo that would overwrite what somebody else did, or that background
        processes might disturb, is refused. With `--force` it overwrites it, and ends these processes.
        """
        _refuse_plain_magic("undo", "await current_session().undo()")

    @no_var_expand
    @line_magic
    def redo(self, line: str) -> None:  # noqa: ARG002 - called by IPython with it
        """Do again what was undone: `%redo`, `%redo 3`.

        With `--files` the variables stay as they are. A redo that would overwrite what somebody else did, or
        that background processes might disturb, is refused. With `--force` it overwrites it, and ends these
        processes.
        """
        _refuse_plain_magic("redo", "await current_session().redo()")

    @no_var_expand
    @line_magic
    def changes(self, line: str) -> None:  # noqa: ARG002 - called by IPython with it
        """Show what changed in the workspace: `%changes`, `%changes --since CALL`."""
        _refuse_plain_magic("changes", "await current_session().changes()")


def _refuse_plain_magic(magic: str, instead: str) -> NoReturn:
    raise UsageError(
        f"%{magic} works at the top level of a cell of its own, not inside a function or another cell magic. "
        f"There, write: {instead}",
    )


async def run_undo_magic(magic: str, line: str) -> ToolResult | Changes:
    """Run one of the three magics.

    Args:
        magic: `undo`, `redo` or `changes`.
        line: The rest of its line.

    Raises:
        UsageError: For every error that the person can correct; one line.
    """
    options = _parse_options(magic, line)
    session = current_session()
    if magic == "changes":
        return await session.changes(options.call)
    variables: VariablesChoice = "keep" if options.files_only else "restore"
    if magic == "redo":
        return await session.redo(options.count or 1, force=options.force, variables=variables)
    return await session.undo(options.count or 1, to=options.call, force=options.force, variables=variables)


@dataclass(slots=True)
class _Options:
    """The words behind one of the magics."""

    count: int | None = None
    call: str | None = None
    force: bool = False
    files_only: bool = False


def _parse_options(magic: str, line: str) -> _Options:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%{magic}: {error} in {line!r}. Use {_USAGE[magic]}.") from None
    options = _Options()
    named = {"undo": "--to", "changes": "--since"}.get(magic)
    while words:
        word = words.pop(0)
        if word == named and words:
            options.call = words.pop(0)
        elif word == "--force" and magic != "changes":
            options.force = True
        elif word == "--files" and magic != "changes":
            options.files_only = True
        elif magic != "changes" and options.count is None and _is_count(word):
            options.count = int(word)
        else:
            raise UsageError(f"%{magic} does not take {word!r}. Use {_USAGE[magic]}.")
    if options.count is not None and options.call is not None:
        raise UsageError(f"%{magic} takes a number or a call, not both. Use {_USAGE[magic]}.")
    return options


def _is_count(word: str) -> bool:
    # Python makes no number of thousands of digits.
    return word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS and int(word) > 0


def changes_bundle(changes: Changes) -> dict[str, Any]:
    """Return the changes as a card: a line per path, with the diffs of text files. Texts are untrusted."""
    shown = changes.every[:_MAX_SHOWN]
    body: list[str] = []
    room = _MAX_CARD_CHARS
    for number, change in enumerate(shown):
        diff = shorten(visible(change.diff, KEEP), min(_MAX_DIFF_CHARS, room))
        room = max(room - len(diff), 0)
        body.append(_change_html(change, diff, unfolded=number < _UNFOLDED))
    notes = [f"Not covered by undo: {one_line(one, 200)}" for one in changes.uncovered]
    if len(changes) > _MAX_SHOWN:
        notes.insert(0, f"{len(changes) - _MAX_SHOWN:,} more changes.")
    notes += [one_line(sentence, 1_000) for sentence in (changes.since, changes.reach) if sentence]
    body += map(html.note, notes)
    title = f"workspace · {html.escape(changes.headline)}"
    lines = ["workspace - " + changes.headline, *(one_line(str(change), 400) for change in shown)]
    diffs = "\n\n".join(visible(change.diff, KEEP).rstrip() for change in shown if change.diff)
    sections = ["\n".join(lines), shorten(diffs, _MAX_DIFF_CHARS), "\n".join(notes)]
    return {"text/html": html.box(title, "".join(body)), "text/plain": "\n\n".join(filter(None, sections))}


def _change_html(change: PathChange, diff: str, *, unfolded: bool) -> str:
    line = one_line(str(change), 400)
    if not diff:
        return html.small_print(line)
    markup = html.details(line, html.block(diff, exact=True))
    return markup.replace("<details>", "<details open>", 1) if unfolded else markup
