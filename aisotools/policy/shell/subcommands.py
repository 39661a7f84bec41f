"""Programs whose arguments name a subcommand: which of them only read, with the options of each.

Options may stand before the subcommand. The verdict then also names the command without them, so that a rule
on `docker push*` concerns `docker --debug push` too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word
from aisotools.policy.shell.options import (
    Classifier,
    CommandSpec,
    Words,
    classify_by_spec,
    join_option_tables,
    option_verdict,
    parse_options,
)
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    merge,
    uncertain,
)

_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_MAX_WORDS = 3  # of a subcommand


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """Subcommands that are judged alike.

    Attributes:
        names: Their names, separated by commas; a name may be several words, such as `cache list`.
        options: The options they know beside those of the program; of two with the same name these count.
        operands: The kind of their operands.
        allow_dynamic: Whether words that are only known at run time are harmless even as options.
        one_dash: See `CommandSpec`.
        classify: Replaces the option table; it gets the words from the subcommand on.
    """

    names: str
    options: str = ""
    operands: str = "."
    allow_dynamic: bool = True
    one_dash: bool = False
    classify: Classifier | None = None


def subcommands(
    *known: Subcommand,
    options: str = "",
    reason: str,
    effect: Effect = Effect.LOCAL_MUTATION,
    alone: bool = False,
    helps: str = "--help",
) -> Subcommands:
    """Return a classifier for a program with subcommands.

    Args:
        known: The subcommands that are not uncertain.
        options: The options of the program, which may stand before the subcommand and behind it.
        reason: Why any other subcommand is uncertain, after the program's name.
        effect: The least effect of any other subcommand.
        alone: Whether the program only prints when it gets no subcommand.
        helps: Arguments that make any subcommand print its help and do nothing else.
    """
    specs = {name.strip(): _spec(entry, options) for entry in known for name in entry.names.split(",")}
    return Subcommands(
        specs=specs,
        options=options,
        reason=reason,
        effect=effect,
        alone=alone,
        helps=frozenset(helps.split()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommands:
    """Judges a command of a program with subcommands; see `subcommands`.

    Attributes:
        specs: What is known of each subcommand.
        options: The options of the program.
        reason: Why any other subcommand is uncertain.
        effect: The least effect of any other subcommand.
        alone: Whether the program only prints when it gets no subcommand.
        helps: Arguments that ask a subcommand for its help.
    """

    specs: Mapping[str, CommandSpec]
    options: str
    reason: str
    effect: Effect
    alone: bool
    helps: frozenset[str]

    def __call__(self, words: Words) -> CommandVerdict:
        """Return the verdict on a command of the program."""
        parsed = parse_options(words, self.options, posix=True)
        rest = parsed.operands
        reason = f"{words[0].display} {self.reason}"
        before = option_verdict(parsed)
        if not before.certain:
            before = CommandVerdict(effect=self.effect, certain=False, reasons=(*before.reasons, reason))
        if not rest:
            verdict = NO_EFFECT if self.alone else uncertain(reason, self.effect)
        elif _asks_for_help(rest, self.helps):
            verdict = NO_EFFECT
        elif depth := _matching(rest, self.specs):
            verdict = classify_by_spec(self.specs[_name(rest[:depth])], rest[depth - 1 :])
        else:
            verdict = uncertain(reason, self.effect)
        return merge([before, verdict, _spelling(words, rest)])


def _spec(entry: Subcommand, options: str) -> CommandSpec:
    return CommandSpec(
        names=entry.names,
        options=join_option_tables(options, entry.options, one_dash=entry.one_dash),
        operands=entry.operands,
        allow_dynamic=entry.allow_dynamic,
        one_dash=entry.one_dash,
        classify=entry.classify,
    )


def _name(words: Sequence[Word]) -> str:
    return " ".join(word.text or "" for word in words)


def _matching(words: Sequence[Word], specs: Mapping[str, CommandSpec]) -> int:
    """Return how many of the first words are the longest known subcommand; 0 if none is."""
    depths = range(min(_MAX_WORDS, len(words)), 0, -1)
    return next((depth for depth in depths if _name(words[:depth]) in specs), 0)


def _asks_for_help(words: Sequence[Word], helps: Collection[str]) -> bool:
    """Return whether the words are a subcommand and a request for its help.

    No more than one word may come before: `docker run image --help` runs the image.
    """
    is_plain = len(words) == 2 and _PLAIN_NAME.fullmatch(words[0].text or "") is not None
    return is_plain and words[1].text in helps


def _spelling(words: Words, rest: Sequence[Word]) -> CommandVerdict:
    if not rest or len(rest) == len(words) - 1:
        return NO_EFFECT
    program = (words[0].text or "").rpartition("/")[2]
    return CommandVerdict(spellings=(" ".join([program, *(word.display for word in rest)]),))
