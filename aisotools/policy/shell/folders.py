"""Follow a shell text from folder to folder: where each of its commands may run.

A relative path means something else after `cd`. So for each simple command this module gives every folder
that it may run in: those of the ways through the text on which the commands before have succeeded or failed.
`cd a && cat b` reads `a/b` only; after `cd a; cat b` it may also be `b`, as `cd` can fail. Where commands are
repeated or chosen (`for`, `if`, functions), or where the folder is not written in the text, the answer is
None: any folder.

Folders are texts relative to where the text starts, absolute, or beginning with one of the variables that
hold a path in every sandbox. They are joined as bash's `cd` does it: `..` takes back the last name, even if
that is a link.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from aisotools.core.path_texts import is_within
from aisotools.policy.shell.expansion import ParsedText, SimpleCommand, Word, expand

START = "."
"""The folder in which a text starts."""

Folders = frozenset[str] | None
"""The folders in which a command may run; None for any."""

_CHANGERS = frozenset(("cd", "pushd", "popd"))
# Run a text, or another command, in this very shell, which may change the folder.
_RUN_TEXTS = frozenset(("eval", "source", ".", "trap"))
_RUN_COMMANDS = frozenset(("builtin", "command", "time", "exec"))
_LEAVERS = frozenset(("exit", "return", "break", "continue"))
_MAX_FOLDERS = 8
_WORKSPACE = ("$WORKSPACE", "${WORKSPACE}")
_ROOTS = ("~", "$HOME", "${HOME}", "$TMPDIR", "${TMPDIR}", *_WORKSPACE)
_MARKS = frozenset("$`~")
_OTHER_TILDE = re.compile(r"~[^/]")
_CURRENT = ("$PWD", "${PWD}")


def find_folders(parsed: ParsedText, start: Folders = frozenset((START,))) -> dict[int, Folders]:
    """Return the folders that each command of a text may run in, by the `id` of the `SimpleCommand`.

    Args:
        parsed: The text.
        start: Where it may start.
    """
    everywhere: dict[int, Folders] = {id(command): start for command in parsed.commands}
    if not any(map(_may_change_folder, parsed.commands)):
        return everywhere
    if not parsed.is_linear or parsed.functions or parsed.doubts:
        return dict.fromkeys(everywhere)
    return _FolderWalk(parsed, start).run()


def join(folder: str, path: str) -> str:
    """Return `path` as it is meant in `folder`; one that is absolute or begins with a variable stays."""
    for variable in _CURRENT:
        if is_within(path, variable):
            path = path[len(variable) + 1 :] or START
            break
    if folder == START or path.startswith(("/", "~", "$")):
        return path
    return f"{folder}/{path}"


def normal_folder(path: str) -> str:
    """Return the normal form of a path, in which a name still is told from a variable, and from a tilde."""
    normal = posixpath.normpath(path)
    return f"./{normal}" if normal[:1] in _MARKS and path[:1] not in _MARKS else normal


@dataclass(slots=True)
class _ListState:
    """Where a list of commands may be.

    Attributes:
        now: Where the next command runs.
        succeeded: Where it is if the next command is skipped because the ones before have succeeded.
        failed: The same, because they have failed.
        piped: Whether the command before this one writes to it.
    """

    now: Folders
    succeeded: Folders = frozenset()
    failed: Folders = frozenset()
    piped: bool = False


class _FolderWalk:
    def __init__(self, parsed: ParsedText, start: Folders) -> None:
        self._parsed = parsed
        self._found: dict[int, Folders] = {}
        self._states = [_ListState(start)]

    def run(self) -> dict[int, Folders]:
        for step in self._parsed.flow:
            if step.kind == "open":
                self._states.append(_ListState(self._states[-1].now))
            elif step.kind == "close":
                if len(self._states) > 1:
                    self._states.pop()
            else:
                self._end(step.command, step.operator)
        return {id(command): self._found.get(id(command)) for command in self._parsed.commands}

    def _end(self, command: SimpleCommand | None, operator: str) -> None:
        state = self._states[-1]
        before = state.now
        if command is not None:
            self._found[id(command)] = before
        in_pipeline = state.piped or operator in {"|", "|&"}
        state.piped = operator in {"|", "|&"}
        after, leaves = before, False
        if command is not None and not in_pipeline and operator != "&":
            # What runs in a pipeline or in the background has a shell of its own.
            after = _after(command, before)
            leaves = _program(command) in _LEAVERS
        _advance(state, before, after, operator, leaves=leaves)


def _advance(state: _ListState, before: Folders, after: Folders, operator: str, *, leaves: bool) -> None:
    """Step over the operator behind a command that leads from `before` to `after` if it succeeds."""
    if operator in {"|", "|&"}:
        return
    if operator == "&&":
        state.failed = _union(state.failed, before)
        state.now, state.succeeded = _union(after, state.succeeded), frozenset()
    elif operator == "||":
        state.succeeded = _union(state.succeeded, after)
        state.now, state.failed = _union(before, state.failed), frozenset()
    else:
        ways = [state.succeeded, state.failed]
        # Case: `cd a || exit` goes on only where `cd` has succeeded. Behind an `exit` that always runs there
        # is nothing to come, and it does not matter where that is.
        if not leaves or not any(way is None or way for way in ways):
            ways += [before, after]
        state.now = _union(*ways)
        state.succeeded = state.failed = frozenset()


def _union(*ways: Folders) -> Folders:
    total: set[str] = set()
    for way in ways:
        if way is None:
            return None
        total |= way
    return frozenset(total) if len(total) <= _MAX_FOLDERS else None


def _after(command: SimpleCommand, before: Folders) -> Folders:
    """Return where a command leads if it succeeds."""
    program = _program(command)
    if program not in _CHANGERS:
        return None if _may_change_folder(command) else before
    arguments = command.program_words[1:]
    target = _target(program, [word for token in arguments for word in expand(token)])
    if target is None or (before is None and not _is_fixed(target)):
        return None
    return frozenset(normal_folder(join(folder, target)) for folder in before or (START,))


def _target(program: str, arguments: list[Word]) -> str | None:
    """Return the operand of `cd` or `pushd`; None if it cannot be determined."""
    while arguments and arguments[0].text in {"-L", "-e", "--"}:
        ended = arguments.pop(0).text == "--"
        if ended:
            break
    if not arguments:
        return "~" if program == "cd" else None
    first = arguments[0]
    if program == "popd" or len(arguments) > 1 or not first.is_located or not first.display:
        return None
    # Options such as -P and -n, the last folder (`-`), and places on the stack of folders, also as `~+1`.
    is_other = first.display.startswith(("-", "+")) or _OTHER_TILDE.match(first.display)
    return None if is_other else first.path


def _is_fixed(path: str) -> bool:
    return path.startswith("/") or any(is_within(path, root) for root in _ROOTS)


def _may_change_folder(command: SimpleCommand) -> bool:
    """Return whether a command may leave its shell in another folder."""
    program = _program(command)
    if program is None or program in _CHANGERS or program in _RUN_TEXTS:
        return True
    if program not in _RUN_COMMANDS:
        return False
    arguments = command.program_words[1:]
    return any(token.bare == "" or token.bare in _CHANGERS | _RUN_TEXTS for token in arguments)


def _program(command: SimpleCommand) -> str | None:
    """Return the name of the program, empty for assignments alone; None if it is not fixed."""
    tokens = command.program_words
    if not tokens:
        return ""
    words = expand(tokens[0])
    return words[0].text if len(words) == 1 else None


def is_relative(path: str) -> bool:
    """Return whether a path means something else in another folder."""
    return not _is_fixed(path)


def leaves_start(folders: Folders) -> bool:
    """Return whether one of the folders may lie outside the folder where the text starts."""
    return folders is None or not all(map(_stays, folders))


def _stays(folder: str) -> bool:
    for variable in _WORKSPACE:
        if is_within(folder, variable):
            folder = folder[len(variable) + 1 :] or START
    return not folder.startswith(("/", "~", "$")) and folder.partition("/")[0] != ".."


def relocate(paths: Collection[str], folders: Folders) -> Iterator[str]:
    """Yield each path as it is meant in each folder; for None, only those that are the same in all."""
    for path in paths:
        if folders is None:
            if _is_fixed(path):
                yield path
            continue
        for folder in sorted(folders):
            yield join(folder, path)
