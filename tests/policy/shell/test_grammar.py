"""The second parser: where it must object to our reading, and where it must not."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.grammar import grammar_objection
from aisotools.policy.shell.parser import parse_shell


@pytest.mark.parametrize(
    "text",
    [
        'echo `echo "a"`\n\necho ` echo "b"`',
        "cat <<E\n`a`\nE",
        "r\\\nm x",
        "{a,b} c",
        "a 3<>b",
        "a <<E 2>&1 | b\nc\nE",
        "a &&",
    ],
)
def test_the_grammar_objects_where_it_differs(text: str) -> None:
    assert grammar_objection(text, parse_shell(text))


@pytest.mark.parametrize(
    "text",
    [
        "a b | c && d; e &",
        "if a; then b; fi",
        "for x in a b; do c; done",
        "a \"$(b 'c')\" ${d:-e}",
        "[ -f a ] && b",
        "cat <<E\n$(a) ${b}\nE\nc",
        "a 2>/dev/null b",
        "x=1 y=2 a b",
        "export A=b",
        "a <(b) > c",
        "case a in b) c;; esac",
        "(a; b) | { c; }",
        "((1)) && [[ a == b* ]] && c",
        "a -x --y=z 'b c' \"d\"",
        "x=(a b); c",
        "while a; do b; done < c",
        "a --file=<(b c) d",
    ],
)
def test_the_grammar_does_not_object_where_it_agrees(text: str) -> None:
    assert parse_shell(text).doubts == []
    assert grammar_objection(text, parse_shell(text)) == ""
