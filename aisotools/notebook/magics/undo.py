"""`%undo`, `%redo`, `%changes`: what calls did to the workspace, seen and taken back."""

from __future__ import annotations

import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class, no_var_expand

from aisotools.core.types import ToolResult
from aisotools.notebook.current import current_session
from aisotools.notebook.render import html
from aisotools.notebook.render.text import KEEP, one_line, shorten
from aisotools.policy.prompts import visible
from aisotools.workspace.diff import Changes, PathChange

_USAGE = {
    "undo": "%undo [N | --to CALL] [--force]",
    "redo": "%redo [N] [--force]",
    "changes": "%changes [--since CALL]",
}
_DIFF_CHARS = 20_000
_CARD_CHARS = 200_000
_SHOWN = 200
_OPEN = 3


@magics_class
class UndoMagics(Magics):
    """The plain forms of magics that must be awaited; see `aisotools.notebook.magics.transform`."""

    @no_var_expand
    @line_magic
    def undo(self, line: str) -> None:  # noqa: ARG002 - called by IPython with it
        """Take back what the last calls changed: `%undo`, `%undo 3`, `%undo --to CALL`; `--force`."""
        _must_await("undo", "await current_session().undo()")

    @no_var_expand
    @line_magic
    def redo(self, line: str) -> None:  # noqa: ARG002 - called by IPython with it
        """Do again what was undone: `%redo`, `%redo 3`; `--force`."""
        _must_await("redo", "await current_session().redo()")

    @no_var_expand
    @line_magic
    def changes(self, line: str) -> None:  # noqa: ARG002 - called by IPython with it
        """Show what changed in the workspace: `%changes`, `%changes --since CALL`."""
        _must_await("changes", "await current_session().changes()")


def _must_await(magic: str, instead: str) -> NoReturn:
    raise UsageError(
        f"%{magic} works at the top level of a cell of its own, not inside a function or another cell magic. "
        f"There, write: {instead}",
    )


async def run_undo_magic(magic: str, line: str) -> ToolResult | Changes:
    """Run one of the three.

    Args:
        magic: `undo`, `redo` or `changes`.
        line: What was typed behind it.

    Raises:
        UsageError: In one line, for whatever the person who typed it can mend.
    """
    count, call, force = _parsed(magic, line)
    session = current_session()
    if magic == "changes":
        return await session.changes(call)
    if magic == "redo":
        return await session.redo(count or 1, force=force)
    return await session.undo(count or 1, to=call, force=force)


def _parsed(magic: str, line: str) -> tuple[int | None, str | None, bool]:
    """How many, which call, and whether by force."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%{magic}: {error} in {line!r}. Use {_USAGE[magic]}.") from None
    count: int | None = None
    call: str | None = None
    force = False
    named = {"undo": "--to", "changes": "--since"}.get(magic)
    while words:
        word = words.pop(0)
        if word == named and words:
            call = words.pop(0)
        elif word == "--force" and magic != "changes":
            force = True
        elif magic != "changes" and count is None and word.isascii() and word.isdigit() and int(word) > 0:
            count = int(word)
        else:
            raise UsageError(f"%{magic} does not take {word!r}. Use {_USAGE[magic]}.")
    if count is not None and call is not None:
        raise UsageError(f"%{magic} takes a number or a call, not both. Use {_USAGE[magic]}.")
    return count, call, force


def changes_bundle(changes: Changes) -> dict[str, Any]:
    """What changed as a card: a line per path, and the diffs of text files to unfold. Texts are untrusted."""
    body: list[str] = []
    room = _CARD_CHARS
    for number, change in enumerate(changes.every[:_SHOWN]):
        diff = shorten(visible(change.diff, KEEP), min(_DIFF_CHARS, room))
        room = max(room - len(diff), 0)
        body.append(_shown(change, diff, unfolded=number < _OPEN))
    notes = [f"{len(changes) - _SHOWN:,} more changes."] if len(changes) > _SHOWN else []
    notes += [f"Not covered by undo: {one_line(one, 200)}" for one in changes.uncovered]
    body += map(html.note, notes)
    title = f"workspace · {html.escape(changes.headline)}"
    plain = "\n".join(
        [
            "workspace - " + changes.headline,
            *(one_line(str(change), 400) for change in changes.every[:_SHOWN]),
        ]
    )
    diffs = "\n\n".join(
        visible(change.diff, KEEP).rstrip() for change in changes.every[:_SHOWN] if change.diff
    )
    told = "\n\n".join(filter(None, [plain, shorten(diffs, _DIFF_CHARS), "\n".join(notes)]))
    return {"text/html": html.box(title, "".join(body)), "text/plain": told}


def _shown(change: PathChange, diff: str, *, unfolded: bool) -> str:
    line = one_line(str(change), 400)
    if not diff:
        return html.small_print(line)
    return html.details(line, html.block(diff, exact=True)).replace(
        "<details>", "<details open>" if unfolded else "<details>", 1
    )
