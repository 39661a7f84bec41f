r"""Regular expressions of models and strangers, searched for in texts of anybody.

Threat
    A search holds up every thread of the host. Python's `re` takes exponential time for `(a+)+$`; an engine
    that takes linear time still takes as long as the text has characters times the pattern has states, which
    is a second for `[ab]*a[ab]{990}!` in 200,000 characters.
Mechanism
    Patterns go to the linear engine of pydantic. How many states one may have is counted before, from its
    text, and so many characters are searched at once as take about 25 ms.
Race window
    None: a pattern and a text do not change.
When it fails
    A pattern without a known number of states, or with too many, is not searched for; whoever wanted it says
    so. The count is of characters, classes and repetitions, and not exact.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

MAX_STATES = 3_000
"""States that a pattern may have."""

WORK_AT_ONCE = 2_500_000
"""Limit of characters times states in one search. At 10 ns each, the most that was measured: 25 ms."""

_PART = re.compile(
    r"""\((?:\?(?:P?<\w{1,40}>|[A-Za-z-]{0,10}[:)]))?   # the beginning of a group, or flags alone
    | \\[xuU]\{[0-9A-Fa-f]{0,10}\} | \\[^pPdDsSwW]
    | (?P<class>\\[pP]\{[^{}]{0,40}\} | \\. | \[(?:\\.|\[:\^?\w{1,10}:\]|[^\\\[\]])*+\] | \.)
    | .""",
    re.DOTALL | re.VERBOSE,
)
_CLASS_STATES = 3
_REPETITION = re.compile(r"\{\s*([0-9]{0,9})\s*(?:,\s*([0-9]{0,9})\s*)?\}")


@functools.lru_cache(maxsize=256)
def matcher(pattern: str) -> Callable[[str], bool] | None:
    """Return a function that searches for `pattern` in linear time, or None if that cannot be done."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    if count_states(pattern) > MAX_STATES:
        return None
    try:
        validator = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None
    return validator.isinstance_python


@functools.lru_cache(maxsize=256)
def count_states(pattern: str) -> int:
    """Return about how many states a search for a pattern goes through; too many rather than too few.

    What the engine refuses may have any number.
    """
    total, last = [0], [0]  # of each group that is open: all its states, and those of its last part
    place = 0
    while place < len(pattern):
        repetition = _REPETITION.match(pattern, place)
        if repetition is not None:
            # At least one: `a{0}` is compiled as well. Without an upper end the last repetition is a loop.
            times = max([1, *(int(number) for number in repetition.groups() if number)])
            total[-1] += last[-1] * (times - 1)
            last[-1] *= times
            place = repetition.end()
            continue
        part = _PART.match(pattern, place)
        assert part is not None  # its last alternative is any character
        place = part.end()
        if part[0].startswith("("):
            if not part[0].endswith(")"):
                total.append(0)
                last.append(0)
        elif part[0] == ")" and len(total) > 1:
            last.pop()
            last[-1] = max(1, total.pop())
            total[-1] += last[-1]
        elif part[0] not in ("*", "+", "?"):  # a loop adds no state
            last[-1] = _CLASS_STATES if part["class"] else 1
            total[-1] += last[-1]
    return max(1, sum(total))


def searchable_chars(pattern: str) -> int:
    """Return in how many characters of a text a pattern can be searched for at once."""
    return WORK_AT_ONCE // count_states(pattern)
