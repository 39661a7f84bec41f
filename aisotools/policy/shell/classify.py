"""What a shell command does: read by two parsers, judged by a table, never run.

`classify_shell` says what it finds and how certain it is; whether the command may run is for a policy to say.
It fails safe: read only means that every command in the text was found by both parsers, is known, and was
understood with all its arguments.

The grammar's reading of a shell text: tree-sitter with its bash grammar, compared with ours.

The grammar tells whether a text is well formed, and where commands are. It is made for editors: it forgives,
and in places it reads otherwise than bash does, without an error (backticks, here-documents, quotes inside
`${ }`). So nothing is certain unless it finds the very commands and words that our own reading finds.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from aisotools.core.types import Effect, Facts
from aisotools.policy.shell.commands import name_of, row_of
from aisotools.policy.shell.expansion import (
    Command,
    ParsedText,
    Redirect,
    Token,
    VariableSurvey,
    Word,
    assignment_of,
    expanded,
    harmless_for_programs,
    survey,
    value_of,
)
from aisotools.policy.shell.options import NOTHING, CommandVerdict, by_row, merged, opens, unsure, writes
from aisotools.policy.shell.parser import read

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


_COMMANDS = frozenset(("command", "declaration_command", "unset_command", "test_command"))
_ASSIGNMENTS = frozenset(("variable_assignment", "variable_assignments"))
_NOT_ALONE = frozenset((*_COMMANDS, "variable_assignments", "c_style_for_statement"))
_REDIRECTS = frozenset(("file_redirect", "herestring_redirect", "heredoc_redirect"))


def objection(text: str, reading: ParsedText) -> str:
    """Why the grammar does not agree with `reading`; empty when it does.

    Args:
        text: The command, one character per byte of its UTF-8.
        reading: Ours.
    """
    root = _parser().parse(text.encode("latin-1")).root_node
    if root.has_error:
        return "it does not parse"
    starts, ranges = _commands_of(root)
    ours = {command.words[0].start for command in reading.commands if command.words}
    ours.update(start for start, _ in reading.tests)
    words = {word[:2] for command in reading.commands for word in command.words}
    if ours != starts or not words <= ranges:
        return "the grammar reads it otherwise than bash may"
    return ""


@cache
def _parser() -> Parser:
    from tree_sitter import Language, Parser
    from tree_sitter_bash import language

    return Parser(Language(language()))


def _commands_of(root: Node) -> tuple[set[int], set[tuple[int, int]]]:
    """Where commands start, and the ranges of all nodes."""
    starts: set[int] = set()
    ranges: set[tuple[int, int]] = set()
    todo: list[tuple[Node, str]] = [(root, "")]
    while todo:
        node, above = todo.pop()
        kind, start = node.type, node.start_byte
        ranges.add((start, node.end_byte))
        children = node.children
        if kind in _COMMANDS or (kind in _ASSIGNMENTS and above not in _NOT_ALONE):
            first = next((child for child in children if child.type not in _REDIRECTS), node)
            if first.type != "((":
                starts.add(first.start_byte)
        if children:
            todo.extend([(child, kind) for child in children])
    return starts, ranges


MOST_BYTES = 64 << 10
"""Longer commands are not looked into."""

_MOST_TEXTS = 100
_MOST_COMMANDS = 500
_MOST_REASONS = 50
_LONGEST_REASON = 160
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"))
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_COPIES = frozenset(("1", "2", "-"))
_DESCRIPTOR = re.compile(r"[0-9]+-?")
_CROSSED = "it cannot be told what its descriptors mean"
_LOCALE = re.compile(r"\b(?:LC_\w+|LANG|LANGUAGE)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellReport:
    """What a shell command does, as far as can be known before it runs.

    Attributes:
        effect: The most severe thing it does.
        commands: Commands it runs with their arguments, such as `git push origin`, in the order they appear.
        reads: Paths it reads, as written.
        writes: Paths it writes, as written.
        hosts: Network hosts it talks to.
        reasons: Why it is more than reading, or not certain, in words.
        certain: False when not everything it does could be seen; then it is never read only.
    """

    effect: Effect
    commands: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    certain: bool = True


def classify_shell(command: str) -> ShellReport:
    """What `command` does when bash runs it.

    Args:
        command: A command line or a whole script.

    Returns:
        A report; for any text, and always the same for the same text.
    """
    if why := _unreadable(command):
        return ShellReport(effect=Effect.LOCAL_MUTATION, reasons=(why,), certain=False)
    return _Inquiry().run(command)


def shell_facts(command: str, folder: str = ".") -> Facts:
    """What a policy should know about `command` when bash runs it in `folder` of the workspace."""
    report = classify_shell(command)
    writes = tuple(_from_workspace(path, folder) for path in report.writes)
    return Facts(
        effect=report.effect,
        reads=tuple(_from_workspace(path, folder) for path in report.reads),
        writes=writes,
        outside=any(map(_is_outside, writes)),
        hosts=report.hosts,
        commands=report.commands,
        certain=report.certain,
    )


def _from_workspace(path: str, folder: str) -> str:
    return path if path.startswith(("/", "~", "$")) or folder in {"", "."} else f"{folder}/{path}"


def _is_outside(path: str) -> bool:
    """Whether a path lies outside the workspace, as far as its text tells."""
    for ours in ("$TMPDIR", "$WORKSPACE", "$PWD", "/workspace"):
        if path == ours or path.startswith(f"{ours}/"):
            path = path[len(ours) + 1 :]
            break
    path = posixpath.normpath(path or ".")
    return path.startswith(("/", "~", "$")) or path.partition("/")[0] == ".."


def _unreadable(command: str) -> str:
    """Why a text is better not read at all."""
    if len(command) > MOST_BYTES or len(command.encode("utf-8", "replace")) > MOST_BYTES:
        return "it is too long to look into"
    if _CONTROL.search(command):
        return "it holds control characters"
    if not command.isascii() and any(
        unicodedata.category(character) in _UNSEEN
        or character in _FILLERS
        or "\ufe00" <= character <= "\ufe0f"
        for character in command
        if character > "\x7f"
    ):
        return "it holds characters that cannot be seen"
    if not command.isascii() and _LOCALE.search(command):
        return "in another locale its characters may be others"
    return ""


class _Inquiry:
    """Follows a command into the commands and texts that it runs."""

    def __init__(self) -> None:
        self.verdicts: list[CommandVerdict] = []
        self.programs: list[str] = []
        self.sets: set[str] = set()
        self.texts = 0
        self.bytes = 0

    def run(self, command: str) -> ShellReport:
        todo = [command]
        while todo:
            text = todo.pop(0)
            self.texts += 1
            self.bytes += len(text)
            if self.texts > _MOST_TEXTS or self.bytes > 2 * MOST_BYTES:
                self.verdicts.append(unsure("it runs too many texts within texts"))
                break
            todo.extend(self._text(text))
        total = merged(self.verdicts)
        outside = total.moves and any(map(_follows, total.writes))
        return self._report(
            merged([total, unsure("it writes after changing the folder")]) if outside else total
        )

    def _report(self, total: CommandVerdict) -> ShellReport:
        effect = total.effect
        if effect is Effect.READ_ONLY and not total.certain:
            effect = Effect.LOCAL_MUTATION
        return ShellReport(
            effect=effect,
            commands=_once(self.programs),
            reads=_once(total.reads),
            writes=_once(total.writes),
            hosts=_once(total.hosts),
            reasons=_once(map(_short, filter(None, total.reasons)))[:_MOST_REASONS],
            certain=total.certain,
        )

    def _text(self, command: str) -> list[str]:
        """Judge one text; the texts that it runs in turn."""
        text = command.encode("utf-8", "replace").decode("latin-1")  # one character per byte
        reading = read(text)
        found = survey(reading, alone=self.texts == 1)
        doubts = [*reading.doubts, *found.doubts]
        doubts += [f"it defines {name}, which may mean something else then" for name in reading.functions]
        if self.sets & found.sets:
            doubts.append("variables are set in more than one text")
        self.sets |= found.sets
        if len(reading.commands) > _MOST_COMMANDS:
            doubts.append("there are too many commands")
        if not doubts and (why := objection(text, reading)):
            doubts.append(why)
        self.verdicts += map(unsure, doubts)
        scripts: list[str] = []
        for one in sorted(reading.commands, key=_place)[:_MOST_COMMANDS]:
            verdict = self._command(one, found)
            self.verdicts.append(verdict)
            scripts += verdict.scripts
        return scripts

    def _command(self, command: Command, found: VariableSurvey) -> CommandVerdict:
        words = [
            word for token in command.words[command.assignments :] for word in expanded(token, found.numbers)
        ]
        verdicts = [_redirected(redirect, found) for redirect in command.redirects]
        if words:
            verdicts += _given(command, words[0])
        todo: list[tuple[Word, ...]] = [tuple(words)] if words else []
        while todo:
            one = todo.pop()
            verdict = self._program(one)
            verdicts.append(verdict)
            todo += filter(None, verdict.commands)
            if len(verdicts) > _MOST_TEXTS:
                verdicts.append(unsure("there are too many commands within commands"))
                break
        return merged(verdicts)

    def _program(self, words: tuple[Word, ...]) -> CommandVerdict:
        """Judge a program with its arguments."""
        program = words[0].text
        if program is None:
            return unsure(f"it cannot be told which program {words[0].shown} is")
        name = name_of(program)
        called = program.rpartition("/")[2] if name else program
        self.programs.append(" ".join([called, *(word.shown for word in words[1:])]))
        row = row_of(program)
        if row is None:
            return unsure(f"{program} is not known")
        if len(words) == 2 and words[1].text and words[1].text in row.about.split():
            return NOTHING
        return by_row(row, words)


def _given(command: Command, program: Word) -> Iterator[CommandVerdict]:
    """Variables set for one command only."""
    for token in command.words[: command.assignments]:
        name, _ = assignment_of(token)
        if not harmless_for_programs(name) and not (name == "IFS" and program.text == "read"):
            yield unsure(f"it sets {name} for {program.shown}")


def _redirected(redirect: Redirect, found: VariableSurvey) -> CommandVerdict:
    """What a redirection opens; one that copies standard output or standard error opens nothing."""
    target = value_of(redirect.target, found.numbers)
    operator = redirect.operator
    if operator == "<<<":
        return NOTHING
    if operator in {">&", "<&"} and target.text in _COPIES:
        return NOTHING if operator == ">&" or not redirect.descriptor else unsure(_CROSSED)
    if operator == "<" and _is_file(redirect.target, found) and not redirect.descriptor:
        return NOTHING
    if operator == "<":
        # /dev/stdout would mean that file then, for writing
        crossed = redirect.descriptor not in {"", "0"}
        return merged([opens(target), unsure(_CROSSED) if crossed else NOTHING])
    if operator == "<&" or (target.text is not None and _DESCRIPTOR.fullmatch(target.text)):
        return unsure(_CROSSED)
    return writes(target)


def _is_file(target: Token, found: VariableSurvey) -> bool:
    """Whether a target is just a variable that holds the name of a file, and thus opens no connection."""
    parts = [piece for piece in target.pieces if piece.text]
    return len(parts) == 1 and parts[0].kind == "variable" and parts[0].text.strip("{}") in found.files


def _follows(path: str) -> bool:
    """Whether a path means something else in another folder."""
    return path.startswith("$PWD") or not path.startswith(("/", "~", "$"))


def _place(command: Command) -> int:
    return command.words[0].start if command.words else command.redirects[0].target.start


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"


def _once(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
