"""The second parser: tree-sitter with its bash grammar, whose reading of a text is compared with ours.

It tells whether a text is well formed, but it is made for editors: it forgives, and in places it silently
reads otherwise than bash does (backticks, here-documents, quotes inside `${ }`). So nothing is certain unless
it finds exactly the commands and words that ours finds.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING

from aisotools.policy.shell.expansion import ParsedText, Token

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_MAX_GRAMMAR_LOOKS = 300

# Node types of the grammar.
_COMMANDS = frozenset(("command", "declaration_command", "unset_command", "test_command"))
_ASSIGNMENTS = frozenset(("variable_assignment", "variable_assignments"))
_OWNS_ASSIGNMENTS = frozenset((*_COMMANDS, "variable_assignments", "c_style_for_statement"))
_REDIRECTS = frozenset(("file_redirect", "herestring_redirect", "heredoc_redirect"))


def grammar_objection(text: str, parsed: ParsedText) -> str:
    """Return how the bash grammar's parse of `text` differs from ours; empty if it does not.

    Args:
        text: The command, one character per byte of its UTF-8.
        parsed: Our parse of it.
    """
    data = text.encode("latin-1")
    looks = itertools.count()

    def is_over(_offset: int, has_error: bool) -> bool:
        # After an error the grammar looks for what may have been meant, for seconds in a text of 64 KiB. The
        # error is all that counts. It asks here after so many operations, and not after so much time.
        return has_error or next(looks) > _MAX_GRAMMAR_LOOKS

    try:
        root = _grammar().parse(lambda offset, _: data[offset:], progress_callback=is_over).root_node
    except ValueError:
        _grammar().reset()
        return "it does not parse, or has too many words to analyse"
    if root.has_error:
        return "it does not parse"
    starts, ranges = _grammar_commands(root)
    our_starts = {command.words[0].start for command in parsed.commands if command.words}
    our_starts.update(start for start, _ in parsed.tests)
    missing = {
        word[:2]: word for command in parsed.commands for word in command.words if word[:2] not in ranges
    }
    if our_starts != starts or not all(_is_split(word, ranges) for word in missing.values()):
        return "the grammar reads it otherwise than bash may"
    return ""


def _is_split(word: Token, ranges: set[tuple[int, int]]) -> bool:
    """Return whether the grammar has a word as two that touch: `--file=` and the `<( )` at its end."""
    *before, last = word.pieces
    if last.kind != "channel" or any(piece.kind != "literal" or piece.quoted for piece in before):
        return False
    middle = word.start + sum(len(piece.text) for piece in before)
    return (word.start, middle) in ranges and (middle, word.end) in ranges


@cache
def _grammar() -> Parser:
    from tree_sitter import Language, Parser
    from tree_sitter_bash import language

    return Parser(Language(language()))


def _grammar_commands(root: Node) -> tuple[set[int], set[tuple[int, int]]]:
    """Return where commands start, and the ranges of all nodes."""
    starts: set[int] = set()
    ranges: set[tuple[int, int]] = set()
    stack: list[tuple[Node, str]] = [(root, "")]  # no recursion: a hostile text may nest deeply
    while stack:
        node, parent_type = stack.pop()
        node_type = node.type
        ranges.add((node.start_byte, node.end_byte))
        children = node.children
        stands_alone = node_type in _ASSIGNMENTS and parent_type not in _OWNS_ASSIGNMENTS
        if node_type in _COMMANDS or stands_alone:
            first = next((child for child in children if child.type not in _REDIRECTS), node)
            if first.type != "((":
                starts.add(first.start_byte)
        stack.extend([(child, node_type) for child in children])
    return starts, ranges
