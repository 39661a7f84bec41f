"""The difference of two texts as a unified diff, in bounded time."""

from __future__ import annotations

import difflib

MAX_COMPARED_LINES = 2_000
"""Where more lines than this differ, they are shown as one block, not matched with each other."""

CONTEXT = 3


def unified(before: str, after: str, old_name: str, new_name: str) -> str:
    r"""A unified diff; empty when nothing differs. Only `\\n` ends a line."""
    if before == after:
        return ""
    old, new = before.split("\n"), after.split("\n")
    shorter = min(len(old), len(new))
    head = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    left = shorter - head
    tail = next((n for n in range(left) if old[-1 - n] != new[-1 - n]), left)
    start = max(0, head - CONTEXT)
    old_end, new_end = len(old) - max(0, tail - CONTEXT), len(new) - max(0, tail - CONTEXT)
    if max(old_end, new_end) - start > MAX_COMPARED_LINES:
        rows = _block(old, new, head, tail)
    else:
        rows = [
            row if not row.startswith("@@") else _moved(row, start)
            for row in list(
                difflib.unified_diff(old[start:old_end], new[start:new_end], n=CONTEXT, lineterm="")
            )[2:]
        ]
    return "\n".join([f"--- {old_name}", f"+++ {new_name}", *rows])


def _block(old: list[str], new: list[str], head: int, tail: int) -> list[str]:
    gone, come = old[head : len(old) - tail], new[head : len(new) - tail]
    title = f"@@ -{head + 1},{len(gone)} +{head + 1},{len(come)} @@"
    return [title, *(f"-{line}" for line in gone), *(f"+{line}" for line in come)]


def _moved(title: str, by: int) -> str:
    """A hunk's title with its line numbers counted from the beginning of the text."""
    _, old, new, _ = title.split(" ")
    return f"@@ -{_shifted(old[1:], by)} +{_shifted(new[1:], by)} @@"


def _shifted(span: str, by: int) -> str:
    first, comma, count = span.partition(",")
    return f"{int(first) + by}{comma}{count}"


def counts(diff: str) -> tuple[int, int]:
    """How many lines a diff of ours adds and removes."""
    rows = diff.split("\n")[2:]
    return sum(row.startswith("+") for row in rows), sum(row.startswith("-") for row in rows)
