"""What words expand to."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.expansion import (
    ParsedText,
    Token,
    Word,
    expand,
    expand_value,
    literal,
    name_set,
    unknown_words,
    without_beginning,
)
from aisotools.policy.shell.parser import parse_shell


def token(text: str) -> Token:
    """Return the one argument of `echo text`."""
    (word,) = parse_shell(f"echo {text}").commands[-1].words[1:]
    return word


# ---- values


def test_a_token_is_bare_only_without_quotes_and_expansions() -> None:
    assert token("abc").bare == "abc"
    for text in ('"abc"', "'abc'", "a'b'", "$abc", "a$b", "$(abc)"):
        assert token(text).bare == ""


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ("$x", "x"),
        ("${x}", "x"),
        ('"$x"', "x"),
        ("\"\"$x''", "x"),
        ("$@", "@"),
        ("${x:-1}", "x:-1"),
        ("$x$y", None),
        ("a$x", None),
        ("x", None),
        ("''", None),
        ("$#", None),
        ("$(x)", None),
    ],
)
def test_a_token_that_is_a_variable_and_nothing_else_says_which(text: str, variable: str | None) -> None:
    assert token(text).variable == variable


@pytest.mark.parametrize(
    ("text", "words"),
    [("x=1 y=2 ls -l", ["ls", "-l"]), ("ls x=1", ["ls", "x=1"]), ("x=1", []), ("> f", [])],
)
def test_words_of_a_program_stand_behind_the_assignments(text: str, words: list[str]) -> None:
    (command,) = parse_shell(text).commands
    assert [token.bare for token in command.program_words] == words


def test_a_doubt_is_noted_once() -> None:
    parsed = ParsedText()
    parsed.add_doubt("one")
    parsed.add_doubt("two")
    parsed.add_doubt("one")
    assert parsed.doubts == ["one", "two"]


def test_names_are_separated_by_blanks() -> None:
    assert name_set(" a  b\nc ") == {"a", "b", "c"}


# ---- words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a{b,c}d", ["abd", "acd"]),
        ("{a,b{c,d}}e", ["ae", "bce", "bde"]),
        ("{a}", ["{a}"]),
        ("{a,", ["{a,"]),
        ("{1..3}", ["1", "2", "3"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{1..7..3}", ["1", "4", "7"]),
        ("{1..3..0}", ["1", "2", "3"]),
        ("{a..c}", ["a", "b", "c"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{1..a}", ["{1..a}"]),
        ("{a..1}", ["{a..1}"]),
        ("{}{a,b}", ["{}a", "{}b"]),
        ("{a,b}{1,2}", ["a1", "a2", "b1", "b2"]),
        ("{,a}", ["a"]),
        ("'{a,b}'", ["{a,b}"]),
        ("{a,'b c'}", ["a", "b c"]),
        ("{x{a,b}", ["{xa", "{xb"]),
    ],
)
def test_braces_expand_as_in_bash(text: str, words: list[str]) -> None:
    assert [word.text for word in expand(token(text))] == words


@pytest.mark.parametrize(
    "text",
    [
        "{1..65}",
        "{01..03}",
        "{a..C}",
        "{" * 17 + ",",
        "{a,b}" * 7,
        "{" + "a," * 70 + "}",
        "{a,b}" + "x" * 2000,
    ],
)
def test_braces_that_expand_to_too_much_or_differently_are_unknown(text: str) -> None:
    (word,) = expand(token(text))
    assert (word.text, word.may_split, word.is_located) == (None, True, False)


def test_just_as_many_words_as_allowed_are_known() -> None:
    assert len(expand(token("{1..64}"))) == 64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abc", Word("abc", "abc", "abc")),
        ("a'b c'", Word("ab c", "ab c", "ab c")),
        ("a*", Word("a*", None, "a", may_split=True)),
        ("a?b", Word("a?b", None, "a", may_split=True)),
        ("a[b", Word("a[b", "a[b", "a[b")),
        ("a[b]", Word("a[b]", None, "a", may_split=True)),
        ("'a*'", Word("a*", "a*", "a*")),
        ("$HOME/a", Word("$HOME/a", None, "/")),
        ("$PWD", Word("$PWD", None, "/")),
        ("${TMPDIR}/a", Word("${TMPDIR}/a", None, "/")),
        ("a$HOME", Word("a$HOME", None, "a", is_located=False)),
        ("$x", Word("$x", None, "", may_split=True, is_located=False)),
        ('"$x"', Word("$x", None, "", is_located=False)),
        ('"$@"', Word("$@", None, "", may_split=True, is_located=False)),
        ('"${x[@]}"', Word("${x[@]}", None, "", may_split=True, is_located=False)),
        ('"${x[0]}"', Word("${x[0]}", None, "", is_located=False)),
        ("$?", Word("$?", None, "0", is_located=False, sample="1")),
        ("$(a)", Word("$(a)", None, "", may_split=True, is_located=False)),
        ("<(a)", Word("<(a)", None, "/dev/fd/")),
        ("a*$x", Word("a*$x", None, "a", may_split=True, is_located=False)),
        ("''$x", Word("$x", None, "", may_split=True, is_located=False)),
    ],
)
def test_a_word_says_what_is_known(text: str, expected: Word) -> None:
    assert expand(token(text)) == [expected]


def test_a_variable_that_holds_a_number_begins_with_a_digit_and_is_one_word() -> None:
    assert expand(token("$i"), {"i"}) == [Word("$i", None, "0", is_located=False, sample="1")]
    assert expand(token("${i}"), {"i"}) == [Word("${i}", None, "0", is_located=False, sample="1")]
    assert expand_value(token("a$i"), {"i"}) == Word("a$i", None, "a", is_located=False)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("a", "a"),
        ('"$((n - 1)),${n}p"', "1,1p"),
        ('"$(wc -l < f)p"', "1p"),
        ('"${x}p"', None),
        ('"$n$x"', None),
        ('"$(cat f)p"', None),
        ("${n}*", None),
    ],
)
def test_program_with_numbers_in_it_is_known(text: str, program: str | None) -> None:
    (word,) = expand(token(text), {"n"})
    assert (word.sample if word.text is None else word.text) == program
    assert without_beginning(word, 0).sample is None


def test_a_value_is_one_word_whatever_braces_it_has() -> None:
    assert expand_value(token("{a,b}")) == literal("{a,b}")


def test_bytes_are_shown_as_text() -> None:
    assert expand(token("é".encode().decode("latin-1"))) == [literal("é")]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (literal("-a"), True),
        (literal("a"), False),
        (Word("-*", None, "-", may_split=True), True),
        (Word("a*", None, "a", may_split=True), False),
        (Word("*", None, "", may_split=True), True),
        (Word("a$x", None, "a", may_split=True, is_located=False), True),
        (Word("a$x", None, "a", is_located=False), False),
        (Word("$x", None, "", is_located=False), True),
        (unknown_words(), True),
        (unknown_words("./a", "./"), True),
        (literal(""), False),
    ],
)
def test_words_that_may_be_options(word: Word, expected: bool) -> None:
    assert word.may_be_option is expected


def test_path_of_a_program_is_no_option_in_quotes() -> None:
    assert not expand(token('"$(command -v git)"'))[0].may_be_option
    for text in ("$(command -v git)", '"$(cat x)"', '"$(which git)$x"', '"$x$(which git)"'):
        assert expand(token(text))[0].may_be_option


def test_output_of_a_known_substitution_is_no_option() -> None:
    for text in ("$(whoami)", '"$(hostname).csv"', "$(date +%F)", '"$(pwd)"', '"$(pwd)/a"'):
        (word,) = expand(token(text))
        assert not word.may_be_option
        assert not word.may_split
    assert expand(token("$(pwd)"))[0].may_be_option  # its name may have a blank in it
    assert expand(token("$(pwd; ls)"))[0].may_be_option


def test_a_word_loses_its_beginning_and_keeps_what_is_known_of_it() -> None:
    assert without_beginning(literal("@a"), 1) == literal("a")
    word = without_beginning(Word("@$x", None, "@", is_located=False), 1)
    assert (word.display, word.text, word.prefix, word.is_located) == ("$x", None, "", False)
