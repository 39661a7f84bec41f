r"""Regular expressions of models and strangers, searched for in texts of anybody.

Threat
    A search holds up every thread of the host, and so does the compilation of a pattern. Python's `re` takes
    exponential time for `(a+)+$`; an engine that takes linear time still takes as long as the text has
    characters times the pattern has states, a second for `[ab]*a[ab]{990}!` in 200,000 characters. It
    compiles each copy of a repeated class anew (`\w{300}`), and under `(?i)` goes through every character
    of a range: half a second for `(?i)` and 199 times `[\0-\x{10FFFF}]`.
Mechanism
    Patterns go to the linear engine of pydantic. How many states one may have, and how long it takes to
    compile, is counted before from its text, which is read as the engine reads it; what would take more
    than about 25 ms is refused. So many characters are searched at once as take about 25 ms.
Race window
    None: a pattern and a text do not change.
When it fails
    A pattern without a known number of states, with too many, or with too much to compile is not searched
    for; whoever wanted it says so. Both counts are estimates from above, measured on one machine.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_PATTERN_CHARS = 1_000
"""Characters of a pattern."""

MAX_STATES = 3_000
"""States that a pattern may have."""

MAX_COMPILE_WORK = 20_000_000
"""Work that compiling a pattern may take, by `count_compile_work`."""

WORK_AT_ONCE = 2_500_000
"""Limit of characters times states in one search. At 10 ns each, the most that was measured: 25 ms."""

LINEAR_FORM = (
    f"no look-around, no back-references, at most {MAX_STATES:,} characters when all repetitions are written "
    f"out ({MAX_PATTERN_CHARS:,} as they stand), among them at most about a hundred \\w or \\p{{L}}, few "
    "wide ranges with (?i), and no spaces or comments by (?x)"
)
"""What a pattern must keep to, for messages."""


@functools.lru_cache(maxsize=4)  # a compiled pattern may take 9 MB, which no budget counts
def matcher(pattern: str) -> Callable[[str], bool] | None:
    """Return a function that searches for `pattern` in linear time, or None if that cannot be done."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    counts = _count(pattern)
    if counts.states > MAX_STATES or counts.compile_work > MAX_COMPILE_WORK:
        return None
    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None
    return validator.isinstance_python


def count_states(pattern: str) -> int:
    """Return about how many states a search for a pattern goes through; too many rather than too few.

    What the engine refuses may have any number.
    """
    return _count(pattern).states


def count_compile_work(pattern: str) -> int:
    """Return about how many nanoseconds it takes to compile a pattern; too many rather than too few.

    What the engine refuses may have any number.
    """
    return _count(pattern).compile_work


def searchable_chars(pattern: str) -> int:
    """Return in how many characters of a text a pattern can be searched for at once."""
    return WORK_AT_ONCE // count_states(pattern)


# ---- reading a pattern

_UNKNOWN = 1 << 40  # more than any limit
_MAX_DIGITS = 10
_GROUP = re.compile(r"\((?:\?(?:P?<[^>]*>|(?P<flags>[A-Za-z-]*)[:)]))?")
_REPETITION = re.compile(r"\{\s*([0-9]*)\s*(?:,\s*([0-9]*)\s*)?\}")
_SPACE_OR_COMMENT = re.compile(r"[\s#]")
_ESCAPE = re.compile(
    r"""\\(?: (?P<property>[pP])(?:\{(?P<name>[^}]*)\}|(?P<letter>.))
    | x(?P<x>[0-9A-Fa-f]{2}) | u(?P<u>[0-9A-Fa-f]{4}) | U(?P<U>[0-9A-Fa-f]{8})
    | [xuU]\{(?P<braced>[0-9A-Fa-f]+)\}
    | b\{[A-Za-z-]+\}
    | (?P<char>.))""",
    re.DOTALL | re.VERBOSE,
)
_ASCII_CLASS = re.compile(
    r"\[:(?P<negated>\^?)(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\]"
)
_CATEGORY = re.compile(r"[LMNPSZ][a-z]?")

# The work of the engine, in nanoseconds as measured with regex 1.13. `once` is for every time that a part is
# written (parsing, folding of case), `copy` for every time that it is compiled, as often as it is repeated.
_PATTERN_ONCE = 50_000
_CHAR_ONCE = 400
_CHAR_COPY = 500
_FOLDED_CHAR_COPY = 4_000
_EMPTY_COPY = 100
_RANGE_COPY = 1_500
_LONG_RANGE = 64
_LONG_RANGE_COPY = 3_500
_FOLDED_COPY = 250  # for each character of a range that may get other forms
_MAX_FOLDED_COPY = 350_000  # for all the forms that there are
_NEGATED_COPY = 3_000
_CLASS_ONCE = 5_000
_OPERATION_ONCE = 12_000
_FOLD = 11  # for each character whose other forms are looked for
_FOLDED_CHARS = 0x1E944  # as many as there are up to the last that has any
_ALL_CHARS = 0x110000
_MAX_LETTERS = 60_000  # of those, in a general category or `\w`

_CLASS_STATES = 3


@dataclass(frozen=True, slots=True)
class _Set:
    """A set of characters that has a name: how much work it is, and how many characters it has at most."""

    copy: int
    width: int


_SETS = {
    "d": _Set(16_000, 1_000),
    "D": _Set(40_000, _ALL_CHARS),
    "s": _Set(7_000, 30),
    "S": _Set(7_000, _ALL_CHARS),
    "w": _Set(190_000, _MAX_LETTERS),
    "W": _Set(190_000, _ALL_CHARS),
}
_SET_ONCE = 12_000
_PROPERTY_COPY = 280_000
_CATEGORY_COPY = 190_000
_FOLDED_PROPERTY_ONCE = 150_000
_ANY_CHAR_COPY = 4_000


@dataclass(frozen=True, slots=True)
class _Counts:
    states: int
    compile_work: int


@dataclass(slots=True)
class _Group:
    """What an open group has so far, and what its last part has, which may be repeated."""

    states: int = 0
    copy: int = 0
    last_states: int = 0
    last_copy: int = 0

    def add(self, states: int, copy: int) -> None:
        self.states += states
        self.copy += copy
        self.last_states, self.last_copy = states, copy

    def repeat(self, times: int) -> None:
        self.states += self.last_states * (times - 1)
        self.copy += self.last_copy * (times - 1)
        self.last_states *= times
        self.last_copy *= times


@dataclass(slots=True)
class _Level:
    """An open bracket of a class."""

    negated: bool
    width: int = 0
    operations: int = 0


@functools.lru_cache(maxsize=256)
def _count(pattern: str) -> _Counts:
    if len(pattern) > MAX_PATTERN_CHARS:
        return _Counts(_UNKNOWN, _UNKNOWN)
    return _Reader(pattern).read()


@dataclass(slots=True)
class _Reader:
    """Reads one pattern from left to right, with the engine's rules, and counts."""

    pattern: str
    place: int = 0
    once: int = _PATTERN_ONCE
    folds: bool = False  # from the first (?i) on, wherever its group ends
    groups: list[_Group] = field(default_factory=lambda: [_Group()])

    def read(self) -> _Counts:
        while self.place < len(self.pattern):
            self.once += _CHAR_ONCE
            char = self.pattern[self.place]
            if char == "{":
                self._read_repetition()
            elif char == "(":
                if not self._read_group():
                    return _Counts(_UNKNOWN, _UNKNOWN)
            elif char == "[":
                self._add(_CLASS_STATES, self._read_class())
            elif char == "\\":
                self._read_escape()
            else:
                self.place += 1
                if char == ")" and len(self.groups) > 1:
                    self._close_group()
                elif char == ".":
                    self._add(_CLASS_STATES, _ANY_CHAR_COPY)
                elif char not in "*+?":  # a loop adds no state
                    self._add(1, self._char_copy())
        while len(self.groups) > 1:
            self._close_group()
        return _Counts(max(1, self.groups[0].states), self.once + self.groups[0].copy)

    def _add(self, states: int, copy: int) -> None:
        self.groups[-1].add(states, copy)

    def _char_copy(self) -> int:
        return _FOLDED_CHAR_COPY if self.folds else _CHAR_COPY

    def _read_repetition(self) -> None:
        repetition = _REPETITION.match(self.pattern, self.place)
        if repetition is None:
            self.place += 1
            return
        self.place = repetition.end()
        # At least one: `a{0}` is compiled as well. Without an upper end the last repetition is a loop.
        numbers = [number.lstrip("0") for number in repetition.groups() if number]
        times = [_UNKNOWN if len(number) > _MAX_DIGITS else int(number or 0) for number in numbers]
        self.groups[-1].repeat(max([1, *times]))

    def _read_group(self) -> bool:
        """Read the beginning of a group, or flags alone; return False for what is not counted."""
        opening = _GROUP.match(self.pattern, self.place)
        assert opening is not None  # the rest after the bracket is optional
        self.place = opening.end()
        flags = opening["flags"] or ""
        self.folds = self.folds or "i" in flags
        if "x" in flags and _SPACE_OR_COMMENT.search(self.pattern, self.place):
            return False  # from here on, what is a comment and where a part ends would have to be followed
        if not opening[0].endswith(")"):
            self.groups.append(_Group())
        return True

    def _close_group(self) -> None:
        group = self.groups.pop()
        # Two more states of a group are where its text begins and ends.
        self._add(max(1, group.states), group.copy + 2 * _EMPTY_COPY)

    def _read_escape(self) -> None:
        escape = self._next_escape()
        found = None if escape is None else self._set_of(escape)
        if escape is None or found is None:
            self._add(1, self._char_copy())
            return
        self._add(_CLASS_STATES, found.copy)

    def _next_escape(self) -> re.Match[str] | None:
        escape = _ESCAPE.match(self.pattern, self.place)
        self.place = len(self.pattern) if escape is None else escape.end()
        return escape

    def _set_of(self, escape: re.Match[str]) -> _Set | None:
        """Return the set that an escape stands for, or None if it stands for a character or a place."""
        if not escape["property"]:
            found = _SETS.get(escape["char"] or "")
            self.once += 0 if found is None else _SET_ONCE
            return found
        name = escape["letter"] or escape["name"]
        self.once += _SET_ONCE
        if self.folds:
            self.once += _fold_work(_ALL_CHARS) if "any" in name.casefold() else _FOLDED_PROPERTY_ONCE
        if _CATEGORY.fullmatch(name):
            return _Set(_CATEGORY_COPY, _MAX_LETTERS if escape["property"] == "p" else _ALL_CHARS)
        return _Set(_PROPERTY_COPY, _ALL_CHARS)

    # ---- classes in brackets

    def _read_class(self) -> int:
        """Read a class and return the work of each copy."""
        levels: list[_Level] = []
        copy = 0
        while self.place < len(self.pattern):
            self.once += _CHAR_ONCE
            ascii_class = _ASCII_CLASS.match(self.pattern, self.place) if levels else None
            if ascii_class is not None:
                self.place = ascii_class.end()
                levels[-1].width += _ALL_CHARS if ascii_class["negated"] else 128
                copy += 4 * _RANGE_COPY
            elif self.pattern[self.place] == "[":
                levels.append(self._open_class())
                copy += self._char_copy() + (_NEGATED_COPY if levels[-1].negated else 0)
            elif self.pattern[self.place] == "]":
                self.place += 1
                level = levels.pop()
                if self.folds:
                    self.once += _fold_work(level.width) * (1 + 2 * level.operations)
                if not levels:
                    break
                levels[-1].width += _ALL_CHARS if level.negated else level.width
            elif self.pattern[self.place : self.place + 2] in ("&&", "--", "~~"):
                self.place += 2
                self.once += _OPERATION_ONCE
                levels[-1].operations += 1
            else:
                copy += self._read_item(levels[-1])
        return copy

    def _open_class(self) -> _Level:
        self.once += _CLASS_ONCE
        self.place += 1
        negated = self.pattern.startswith("^", self.place)
        self.place += negated
        begin = self.place
        while self.pattern.startswith("-", self.place):
            self.place += 1
        # In the first place a `]` is a character like any other.
        if self.place == begin and self.pattern.startswith("]", self.place):
            self.place += 1
        # One character more than these can be, for the `-` and the `]` themselves.
        return _Level(negated, width=2)

    def _read_item(self, level: _Level) -> int:
        """Read a character, a range or a set, and return the work of each copy."""
        first = self._next_char()
        if isinstance(first, _Set):
            level.width += first.width
            # What is left out may be more pieces than what is named, and the class may be a negated one.
            return first.copy if first is not _SETS["d"] else _SETS["D"].copy
        after = self.pattern[self.place : self.place + 2]
        if len(after) < 2 or after[0] != "-" or after[1] in "]-":
            level.width += 1
            return self._char_copy()
        self.place += 1
        last = self._next_char()
        if isinstance(last, _Set):  # the engine refuses this
            return 0
        width = max(1, last - first + 1)
        level.width += width
        copy = _RANGE_COPY if width <= _LONG_RANGE else _LONG_RANGE_COPY
        return copy + (min(width * _FOLDED_COPY, _MAX_FOLDED_COPY) if self.folds else 0)

    def _next_char(self) -> int | _Set:
        """Read a character of a class, as written or by an escape, and return its code point, or a set."""
        char = self.pattern[self.place]
        if char != "\\":
            self.place += 1
            return ord(char)
        escape = self._next_escape()
        if escape is None:
            return 0
        found = self._set_of(escape)
        if found is not None:
            return found
        digits = escape["x"] or escape["u"] or escape["U"] or escape["braced"]
        return int(digits, 16) if digits else ord(escape["char"] or "\0")


def _fold_work(width: int) -> int:
    return min(width, _FOLDED_CHARS) * _FOLD + max(0, min(width, _ALL_CHARS) - _FOLDED_CHARS)
