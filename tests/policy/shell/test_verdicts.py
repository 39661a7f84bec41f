"""The verdict on a command: how verdicts are merged, and what reading, writing and contacting are."""

from __future__ import annotations

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, literal, unknown_words
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    UNKNOWN_WORDS,
    CommandVerdict,
    contacts,
    has_effect,
    host_from_operand,
    host_of,
    merge,
    opens,
    reads,
    uncertain,
    writes,
)

READ, REMOTE, LOCAL, GONE = (
    Effect.READ_ONLY,
    Effect.REMOTE_ACTION,
    Effect.LOCAL_MUTATION,
    Effect.DESTRUCTIVE,
)
QUOTED = Word("$x", None, "", may_split=False, is_located=False)
"""A quoted variable: one word of which nothing is known."""


def summary(verdict: CommandVerdict) -> tuple[Effect, bool]:
    return verdict.effect, verdict.certain


def test_merging_keeps_the_worst_and_everything() -> None:
    both = merge([reads(literal("a")), NO_EFFECT, writes(literal("b")), uncertain("doubt")])
    assert summary(both) == (LOCAL, False)
    assert (both.reads, both.writes) == (("a",), ("b",))
    assert both.reasons == ("doubt", "it writes b")
    assert merge([]) is NO_EFFECT
    assert merge([NO_EFFECT, reads(literal("a"))]) == reads(literal("a"))
    assert merge([has_effect(GONE, "r"), has_effect(REMOTE, "s")]).effect is GONE
    assert merge([CommandVerdict(folder="d"), reads(literal("a"))]).folder == "d"
    assert merge([CommandVerdict(folder="d"), CommandVerdict(folder="e")]).folder is None
    assert merge([CommandVerdict(folder=None), reads(literal("a"))]).folder is None
    commands = ((literal("ls"),),)
    nested = merge([CommandVerdict(commands=commands), CommandVerdict(scripts=("x",), hosts=("h",))])
    assert (nested.commands, nested.scripts, nested.hosts) == (commands, ("x",), ("h",))


def test_uncertain_verdict_is_a_local_change_unless_an_effect_is_given() -> None:
    assert summary(uncertain("r")) == (LOCAL, False)
    assert summary(uncertain("r", REMOTE)) == (REMOTE, False)


def test_standard_input_is_no_path_that_is_read() -> None:
    assert reads(literal("-")) is NO_EFFECT


def test_paths_that_a_text_does_not_say_are_unresolved() -> None:
    assert reads(literal(UNKNOWN_WORDS)).unresolved == (UNKNOWN_WORDS,)
    assert reads(unknown_words("$x", "")).unresolved == ("$x",)
    assert reads(literal("a")).unresolved == ()


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (literal("a"), (READ, True)),
        (literal("/dev/tcp/x.example/80"), (REMOTE, True)),
        (literal("/dev/udp/x.example/53"), (REMOTE, True)),
        (QUOTED, (LOCAL, False)),
        (Word("/dev$x", None, "/dev", is_located=False), (LOCAL, False)),
        (Word("/dev/$x", None, "/dev/", is_located=False), (LOCAL, False)),
        (Word("/d$x", None, "/d", is_located=False), (LOCAL, False)),
        (Word("data/$x", None, "data/", is_located=False), (READ, True)),
        (Word("$HOME/a", None, "/", is_located=True), (READ, True)),
    ],
)
def test_a_redirection_may_be_a_connection(word: Word, expected: tuple[Effect, bool]) -> None:
    assert summary(opens(word)) == expected


@pytest.mark.parametrize(
    ("word", "expected", "paths"),
    [
        (literal("a"), (LOCAL, True), ("a",)),
        (literal("/dev/null"), (READ, True), ()),
        (literal("/dev/fd/2"), (READ, True), ()),
        (literal("/dev/fd/3"), (LOCAL, True), ("/dev/fd/3",)),
        (literal("/dev/sda"), (GONE, True), ("/dev/sda",)),
        (literal("/dev/tcp/x.example/80"), (REMOTE, True), ()),
        (Word("<(a)", None, "/dev/fd/", is_located=True), (READ, True), ()),
        (QUOTED, (LOCAL, False), ("$x",)),
        (Word("*.txt", None, "", may_split=True), (LOCAL, False), ("*.txt",)),
    ],
)
def test_writing_is_certain_only_for_a_known_path(
    word: Word, expected: tuple[Effect, bool], paths: tuple[str, ...]
) -> None:
    verdict = writes(word)
    assert summary(verdict) == expected
    assert verdict.writes == paths


def test_writing_can_be_worse_and_have_another_reason() -> None:
    assert writes(literal("a"), "because", GONE) == CommandVerdict(
        effect=GONE, writes=("a",), reasons=("because",)
    )
    assert writes(QUOTED).reasons == ("it writes $x, wherever that is",)
    assert writes(Word("*", None, "", may_split=True)).reasons == ("it writes *, whatever that is",)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://x.example/a", "x.example"),
        ("https://me:pw@x.example:80/a", "x.example"),
        ("me@x.example:a", "x.example"),
        ("x.example:a", "x.example"),
        ("https://a@good.example@bad.example", "bad.example"),
        ("https://bad.example#@good.example/", "bad.example"),
        ("a/b:c", ""),
        ("a", ""),
    ],
)
def test_hosts_are_found_in_urls_and_remote_paths(text: str, host: str) -> None:
    assert host_of(text) == host


def test_an_operand_that_must_be_a_host_needs_no_marks() -> None:
    assert host_from_operand("me@x.example/path") == "x.example"
    assert host_from_operand("https://x.example/a") == "x.example"


def test_a_host_that_is_not_known_is_uncertain() -> None:
    assert summary(contacts("x.example", "r")) == (REMOTE, True)
    assert summary(contacts("", "r")) == (REMOTE, False)
    assert contacts("", "r").hosts == ("an unknown host",)
    assert summary(contacts("$host", "r")) == (REMOTE, False)
