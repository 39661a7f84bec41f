"""What a program in a small language does, as far as its text tells, and how to end the reading of one."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PROGRAM_CHARS = 8_000
"""Longer programs are not read."""


@dataclass(frozen=True, slots=True)
class ProgramReading:
    """What a program does besides computing and printing.

    Attributes:
        doubt: Why it may do more than the rest says, as a noun phrase; empty if it certainly does not.
        scripts: Shell texts that it runs.
        reads: Paths that it reads, besides those that the command names.
    """

    doubt: str = ""
    scripts: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


class NotPlain(Exception):
    """The program does more than print, or is not of the grammar; the message is the doubt."""
