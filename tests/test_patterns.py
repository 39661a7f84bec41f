"""No regular expression of the package takes time that grows with the square of a text, or faster.

Texts come from models, pages, tools and files. Each pattern is tried on many that are made of one part, again
and again, at one size and at four times that size.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aisotools
from aisotools.core import secret_commands, secret_shapes

_ROOT = Path(aisotools.__file__).parent
_CHARS = 2_000
_QUICK_S = 0.004  # shorter times are noise
_MOST_GROWTH = 7  # for four times the text: linear is 4, quadratic 16; between them is room for noise
_ANCHORED = ("match", "fullmatch")

_LETTERS = [
    "a",
    "A",
    "1",
    "_",
    "\u00e9",
    "\u0301",
    "\0",
    "\n",
    " ",
    "\t",
    "\r",
    "\x1b",
    *"`*\\<>#[](){}'\"-=/.:@$;&|+~!?%,",
]
_PARTS = [
    *_LETTERS,
    *(
        "\n ",
        "[\n",
        "**a",
        "`a ",
        "\x1b[",
        "\x1b]",
        "\x1bP",
        "\x1b[0;",
        "a\r",
        "<!--",
        "# ",
        "[a](",
        "a.",
        "a=",
        " -",
    ),
    *(
        " =",
        "a b ",
        "../",
        "a/",
        "http://",
        "a:b@",
        '{"a": "',
        '"a",',
        "${",
        "$(",
        "1,",
        "1.",
        "1e",
        "a_",
        "Aa",
    ),
    *(
        "::",
        "%a ",
        "![",
        "<a ",
        "<a b=",
        '<a b="',
        "&#",
        "&a",
        "```\n",
        "- ",
        "> ",
        "1. ",
        "| ",
        "|-",
        "a-",
        "a@a.",
    ),
    *(
        "-----BEGIN ",
        "key=",
        "password=",
        "Bearer ",
        "sk-",
        "eyJ",
        "eyJa.",
        '\\"',
        "\\e",
        "the ",
        "line ",
        "in ",
    ),
    *("0x", "~/", "[0] ", 'File "', '  File "a", line 1\n'),
    *(
        "a=1;",
        "a=1 ",
        ";a=",
        "a=a&",
        "(a ",
        "import a,",
        "from a ",
        "-m a",
        "-a=",
        "a{",
        "{a,",
        "a\\\n",
        "<<a\n",
        "a()",
    ),
]


_BOUNDED: dict[str | bytes, str] = {}
"""Patterns that see nothing but short texts, each with what bounds them."""


def _inline_patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Yield the patterns that stand in a call as a text, `re.compile` among them."""
    for path in sorted(_ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            function, text = node.func, node.args[0]
            if not (isinstance(function.value, ast.Name) and function.value.id == "re"):
                continue
            if isinstance(text, ast.Constant) and isinstance(text.value, str | bytes):
                flags = re.RegexFlag(0)
                for name in re.findall(r"re\.([A-Z]+)\b", ast.unparse(node)):
                    flags |= getattr(re, name)
                yield f"{path.relative_to(_ROOT)}:{node.lineno}", re.compile(text.value, flags), function.attr


def _named_patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Yield the compiled patterns of modules, with the one method that their module uses, if it is one."""
    for module in pkgutil.walk_packages([str(_ROOT)], "aisotools."):
        if module.name.endswith("__main__"):
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:  # it takes a package that is not installed
            continue
        source = Path(str(loaded.__file__)).read_text("utf-8")
        for name, member in vars(loaded).items():
            pattern = getattr(member, "__self__", member)  # a method such as `findall` of one
            if isinstance(pattern, re.Pattern):
                uses = set(re.findall(rf"\b{name}\.(\w+)\(", source))
                if pattern is not member:
                    uses.add(member.__name__)
                yield (
                    f"{module.name}.{name}",
                    pattern,
                    min(uses) if uses and (len(uses) == 1 or uses <= {*_ANCHORED}) else "",
                )


def _late_patterns() -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """Yield the patterns that are made of parts when they are needed."""
    for kind, beginning, rest in secret_shapes._TOKENS:
        yield f"{secret_shapes.__name__}: {kind}", secret_shapes._compile(beginning, rest), "finditer"
    for _, names, text in secret_commands._PROGRAMS:
        yield f"{secret_commands.__name__}: {names[0]}", re.compile(text), "match"


def _patterns() -> dict[tuple[str | bytes, int], tuple[str, re.Pattern[Any], str]]:
    """Return each pattern once: where it is, and how it is used, which a module that names it says best."""
    found = {}
    for place, pattern, use in (*_inline_patterns(), *_named_patterns(), *_late_patterns()):
        found[pattern.pattern, pattern.flags] = place, pattern, use
    return found


def _time_s(pattern: re.Pattern[Any], use: str, text: str) -> float:
    subject: Any = text if isinstance(pattern.pattern, str) else text.encode("utf-8", "replace")
    began_s = time.thread_time()
    if use in _ANCHORED:
        getattr(pattern, use)(subject)
    else:
        for _ in pattern.finditer(subject):
            pass
    return time.thread_time() - began_s


def _grows(pattern: re.Pattern[Any], use: str, part: str, end: str) -> bool:
    def shortest_s(size: int, rounds: int) -> float:
        text = (part * size)[:size] + end
        return min(_time_s(pattern, use, text) for _ in range(rounds))

    size = _CHARS
    if shortest_s(size, 1) < _QUICK_S / 4:
        return False
    # More often, and once more, before it counts: the machine may have been busy.
    return all(
        shortest_s(4 * size, rounds) > max(_QUICK_S, _MOST_GROWTH * shortest_s(size, rounds))
        for rounds in (1, 3)
    )


def test_a_quadratic_pattern_is_found() -> None:
    assert _grows(re.compile(r"^(\s*)\[([^\]]+)\]:", re.MULTILINE), "sub", "\n", "")
    assert not _grows(re.compile(r"[ \t]+"), "sub", " ", "")


@pytest.mark.timeout(300)
def test_no_pattern_takes_time_with_the_square_of_a_text() -> None:
    patterns = _patterns()
    assert len(patterns) > 200, "the patterns were not found"
    slow = []
    for place, pattern, use in patterns.values():
        if pattern.pattern in _BOUNDED:
            continue
        ways = ((part, end) for part in _PARTS for end in ("", "\0x"))
        way = next((way for way in ways if _grows(pattern, use, *way)), None)
        if way is not None:
            slow.append(f"{place}: {use} {pattern.pattern!r} on {way!r}")
    assert not slow, "\n".join(slow)
