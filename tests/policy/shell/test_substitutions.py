"""What quoted text, and command substitutions, certainly stand for."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.substitutions import (
    decode_ansi,
    is_count,
    is_plain_name,
    is_program_path,
    printed_beginning,
    without_counts,
)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (r"a\n\t", "a\n\t"),
        (r"\x41\101\u0041\U00000041", "AAAA"),
        (r"\'\"\\\?", "'\"\\?"),
        (r"\e\E\a\b\f\r\v", "\x1b\x1b\a\b\f\r\v"),
        (r"\0", None),
        (r"\x80", None),
        (r"\u00e9", None),
        (r"\cA", None),
        (r"\z", None),
        (r"\x7f", "\x7f"),
    ],
)
def test_escapes_are_decoded_unless_the_locale_decides(body: str, text: str | None) -> None:
    assert decode_ansi(body) == text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("$(wc -l < f)", True),
        ('$(wc -l < "$f")', True),
        ("$(zcat f | wc -l)", True),
        ("$(cat f | grep -c 'x y')", True),
        ("$(nproc)", True),
        ("$(date +%s)", True),
        ("$(wc -l f)", False),  # prints the name, which arithmetic would evaluate
        ("$(grep -c x f g)", False),
        ("$(grep -c x)", False),
        ("$(cat x; wc -l < f)", False),
        ("$(cat x || wc -l)", False),
        ("$(cat x |& wc -l)", False),
        ("$(cat x\nwc -l < f)", False),
        ("$(cat <(cat x) | wc -l)", False),
        ("$(wc -l < f", False),
        ("$(wc -l < f) x", False),
        ("$(wc -lx < f)", False),
        ("$(cat f | wc -l g)", False),
        ("$(grep -c x f)", True),
        ("$(grep -ci 'x y' a/f)", True),
        ("$(grep -c '-Hr' x)", False),  # an option, and then names are printed too
        ("$(grep -c x *)", False),
        ('$(grep -c "$p" f)', False),
        ("$(stat -c %s f)", True),
        ("$(stat -c '%s' f)", True),
        ("$(stat -c %n f)", False),
        ("$(stat -c %s -c%n f)", False),
        ("$(du -sm . | cut -f1)", True),
        ("$(du -sm . | cut -f2)", False),
        ("$(wc -l f | awk '{print $1}')", True),
        ("$(wc -l f | awk '{print $2}')", False),
        ("$(wc -l < f | tr -d ' ')", True),
        ("$(wc -l < f | tr 0-9 a)", False),
        ("$(date +%Z)", False),
        ("$(date -d 2024-05-01 +%s)", True),
        ('$(date -u -d "$day 00:00" +%s)', True),
        ("$(date --date='2 days ago' +%j)", True),
        ("$(date -d $day +%s)", False),  # which may be several words
        ("$(date -d x +%Z)", False),
        ("$(date -f x +%s)", False),
    ],
)
def test_only_a_count_is_a_number(source: str, expected: bool) -> None:
    assert is_count(source) is expected


def test_counts_in_an_expression_are_numbers() -> None:
    assert without_counts("1 + $(wc -l < f)") == "1 + 0"
    assert without_counts("$(nproc) + $(cat f)") == "0 + $(cat f)"
    assert without_counts("a + 1") == "a + 1"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("$(command -v git)", True),
        ("$(which python3.11)", True),
        ("$(type -P g++ 2>/dev/null)", True),
        ('$(readlink -f "$(which git)")', True),
        ("$(realpath $(command -v git))", True),
        ('$(readlink "$(which git)")', False),  # what a link leads to may be any name
        ("$(readlink -f which git)", False),
        ("$(command -v -x)", False),
        ("$(command -v -- -x)", False),
        ('$(command -v "$x")', False),
        ("$(command -v git; echo -x)", False),
        ("$(command -V git)", False),
        ("$(command git)", False),
        ("$(which git | sed s/^/-/)", False),
        ("$x", False),
    ],
)
def test_path_of_a_program_is_known_to_be_one(source: str, expected: bool) -> None:
    assert is_program_path(source) is expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("$(whoami)", True),
        ("$( id -un )", True),
        ("$(hostname -s)", True),
        ("$(uname -m)", True),
        ("$(date +%F)", True),
        ("$(date '+%Y-%m-%d')", True),
        ('$(date -u "+%Y%m%dT%H%M%S")', True),
        ("$(date -d 'last monday' +%F)", True),
        ("$(date +-o%F)", False),  # an option
        ("$(date '+%F %T')", False),  # two words
        ("$(date +%z)", False),  # may begin with a minus
        ("$(date +%n-o)", False),
        ("$(date -f names +%F)", False),
        ("$(date '+%F)", False),
        ("$(uname -a)", False),
        ("$(whoami; echo -x)", False),
        ("$(hostname x)", False),
        ("$(cat name)", False),
        ("$(git rev-parse HEAD)", True),
        ("$(git rev-parse --short=8 feature/a.b~2 2>/dev/null)", True),
        ("$(git rev-parse -q --verify HEAD^)", True),
        ("$(git merge-base main HEAD)", True),
        ("$(git rev-parse --abbrev-ref HEAD)", False),  # a branch may have any name
        ("$(git rev-parse a..b)", False),  # two words, and one is excluded
        ("$(git rev-parse HEAD^@)", False),
        ("$(git rev-parse HEAD^{/-x})", False),
        ("$(git rev-parse -x HEAD)", False),
        ("$(git rev-parse --sq-quote -x)", False),
        ("$(git rev-parse HEAD; echo -x)", False),
        ("$(git rev-parse HEAD main)", False),
        ("$(git -c alias.a=!id rev-parse HEAD)", False),
    ],
)
def test_plain_name_is_one_word_and_no_option(source: str, *, expected: bool) -> None:
    assert is_plain_name(source) is expected


@pytest.mark.parametrize(
    ("source", "beginning"),
    [
        ("$(pwd)", "/"),
        ("$(pwd -P)", "/"),
        ("$(git rev-parse --show-toplevel 2>/dev/null)", "/"),
        ("$(git rev-parse --show-prefix)", ""),
        ("$(git rev-parse --show-toplevel -x)", ""),
        ("$(pwd; echo -x)", ""),
        ("$(cat x)", ""),
    ],
)
def test_folder_that_is_printed_begins_at_the_root(source: str, beginning: str) -> None:
    assert printed_beginning(source) == beginning
