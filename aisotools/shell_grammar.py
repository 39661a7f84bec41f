"""The grammar's reading of a shell text: tree-sitter with its bash grammar, compared with ours.

The grammar tells whether a text is well formed, and where commands are. It is made for editors: it forgives,
and in places it reads otherwise than bash does, without an error (backticks, here-documents, quotes inside
`${ }`). So nothing is certain unless it finds the very commands and words that our own reading finds.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from aisotools.shell_text import Reading

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_COMMANDS = frozenset(("command", "declaration_command", "unset_command", "test_command"))
_ASSIGNMENTS = frozenset(("variable_assignment", "variable_assignments"))
_NOT_ALONE = frozenset((*_COMMANDS, "variable_assignments", "c_style_for_statement"))
_REDIRECTS = frozenset(("file_redirect", "herestring_redirect", "heredoc_redirect"))


def objection(text: str, reading: Reading) -> str:
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
