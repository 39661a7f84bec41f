"""Verdicts on single commands by the specifications of one module, without the rest of the analysis."""

from __future__ import annotations

from collections.abc import Sequence

from aisotools.policy.shell.expansion import expand
from aisotools.policy.shell.options import (
    CommandSpec,
    classify_by_spec,
)
from aisotools.policy.shell.parser import parse_shell
from aisotools.policy.shell.verdicts import CommandVerdict


def verdict(commands: Sequence[CommandSpec], text: str) -> CommandVerdict:
    """Return the verdict of these specifications on `text`, one simple command."""
    words = [word for token in parse_shell(text).commands[-1].words for word in expand(token)]
    (spec,) = [spec for spec in commands if words[0].text in spec.names.split()]
    return classify_by_spec(spec, words)


def judged(commands: Sequence[CommandSpec], text: str) -> str:
    """Return effect and certainty of the verdict in one word: `read_only`, or `read_only?` if uncertain."""
    found = verdict(commands, text)
    return f"{found.effect.value}{'' if found.certain else '?'}"


def nested(commands: Sequence[CommandSpec], text: str) -> list[str]:
    """Return the commands and scripts that `text` runs."""
    found = verdict(commands, text)
    return [" ".join(word.display for word in words) for words in found.commands] + list(found.scripts)


PathsAndHosts = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""A command, with what it reads, writes and talks to."""


def wrong_effects(commands: Sequence[CommandSpec], rows: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return each command whose verdict, as `judged` has it, is not that of its row; with both verdicts.

    A table is one test, as a test of its own for each row takes a hundred times as long to collect and to
    start as the row takes to judge.
    """
    found = [(text, judged(commands, text), expected) for text, expected in rows]
    return {text: f"{is_now}, not {expected}" for text, is_now, expected in found if is_now != expected}


def wrong_paths_and_hosts(commands: Sequence[CommandSpec], rows: Sequence[PathsAndHosts]) -> dict[str, str]:
    """Return each command that reads, writes or talks to something else than its row says; with both."""
    wrong = {}
    for text, *expected in rows:
        found = verdict(commands, text)
        is_now = [found.reads, found.writes, found.hosts]
        if is_now != expected:
            wrong[text] = f"{is_now}, not {expected}"
    return wrong
