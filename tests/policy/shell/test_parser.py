"""Our own reading of bash's rules, held against bash itself where that is harmless."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings, strategies as st

from aisotools.policy.shell.expansion import Word, expand
from aisotools.policy.shell.parser import MAX_DEPTH, parse_shell
from aisotools.policy.shell.substitutions import decode_ansi


def commands_of(text: str) -> list[list[str]]:
    return [[text[word.start : word.end] for word in command.words] for command in parse_shell(text).commands]


def words_of(text: str) -> list[Word]:
    (command,) = parse_shell(text).commands
    return [word for token in command.words for word in expand(token)]


@pytest.mark.parametrize(
    ("text", "commands"),
    [
        ("a b;c&&d||e|f&g", [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("a 2>b c 3<d >e", [["a", "c"]]),
        ("a\\\nb c\\ d", [["a\\\nb", "c\\ d"]]),
        ("a #b\nc#d", [["a"], ["c#d"]]),
        ('a "b;c" \'d|e\' "f$(g h)i"', [["g", "h"], ["a", '"b;c"', "'d|e'", '"f$(g h)i"']]),
        ("if a; then b; else c; fi; d", [["a"], ["b"], ["c"], ["d"]]),
        ("while a; do b; done > c", [["a"], ["b"], []]),
        ("for x in a b; do c; done", [["c"]]),
        ("for ((i=0; i<3; i++)); do a; done", [["a"]]),
        ("case a in b|c) d;; (e) f;; *) g; esac; h", [["d"], ["f"], ["g"], ["h"]]),
        ("f() { a; }; function g { b; }; function h() { c; }", [["a"], ["b"], ["c"]]),
        ("(a; b); { c; }", [["a"], ["b"], ["c"]]),
        ("((1 + 2)); [[ a && b ]]; c", [["c"]]),
        ("((a) & (b))", [["a"], ["b"]]),
        ("x=1 y=$(a) b; z=2", [["a"], ["x=1", "y=$(a)", "b"], ["z=2"]]),
        ("x=(a $(b)); c", [["b"], ["x=(a $(b))"], ["c"]]),
        ("a <(b) >(c)", [["b"], ["c"], ["a", "<(b)", ">(c)"]]),
        ("cat <<E | a\nb $(c) `d` \\$(e)\nE\nf", [["cat"], ["a"], ["c"], ["d"], ["f"]]),
        ("cat <<'E'\n$(a)\nE\nb", [["cat"], ["b"]]),
        ("cat <<-E\n\ta\n\tE\nb", [["cat"], ["b"]]),
        ('a `b "c"` d', [["b", '"c"'], ["a", '`b "c"`', "d"]]),
        ("! time a; x=1 [[ b", [["time", "a"], ["x=1", "[[", "b"]]),
        ("echo ${a:-$(b)} ${c#d}", [["b"], ["echo", "${a:-$(b)}", "${c#d}"]]),
        ("echo $((1 + $(a))) $((2))", [["a"], ["echo", "$((1 + $(a)))", "$((2))"]]),
    ],
)
def test_commands_are_found(text: str, commands: list[list[str]]) -> None:
    assert commands_of(text) == commands
    assert parse_shell(text).doubts == []


@pytest.mark.parametrize(
    "text",
    [
        "a '",
        'a "',
        "a `",
        "a $(",
        "a ${",
        "(a",
        "a )",
        "a <<E\nb",
        "a <<E",
        "a >",
        "`a \\` b`",
        "a \"${b:-'c'}\"",
        "a ${b:-<(c)}",
        "a $[1]",
        'a $"b"',
        "a b(c)",
        "a <<E <<F\nE\nF",
        "a=([b]=c)",
        "{ a; } b",
        "a &\\\n& b",
        "case a; b",
        "a $'\\xff'",
        "a[$b]=c",
        "a {b}>c",
        "[[ a ; b ]]",
        "a <<E\nb\\\nE\nE",
    ],
)
def test_ambiguous_bash_syntax_is_doubted(text: str) -> None:
    assert parse_shell(text).doubts


def test_no_nesting_is_too_deep() -> None:
    for opening in ("$(", "`$(", '"$(', "${a:-", "((", "<("):
        reading = parse_shell(opening * 10_000)
        assert reading.doubts
    assert parse_shell("$(" * (MAX_DEPTH - 2) + "a" + ")" * (MAX_DEPTH - 2)).doubts == []


@pytest.mark.parametrize(
    ("text", "displayed"),
    [
        ("a r''m \"b\"'c'\\d", ["a", "rm", "bcd"]),
        ('a{b,c}d e{,f} {g} "{h,i}" j{1..3}', ["abd", "acd", "e", "ef", "{g}", "{h,i}", "j1", "j2", "j3"]),
        ("{a,b{c,d}}{e,f}", ["ae", "af", "bce", "bcf", "bde", "bdf"]),
        ("{,a} b", ["a", "b"]),
        ("$'a\\x62\\n' $'\\162'", ["ab\n", "r"]),
        ('"a\\"b\\$c\\d"', ['a"b$c\\d']),
        ("é \"ü\" 'ß'", ["é", "ü", "ß"]),
        ("{c..a} {1..5..2}", ["c", "b", "a", "1", "3", "5"]),
        ("{\\ },} {},a} b{},a}", [" }", "{},a}", "b}", "ba"]),
        ("{a,b}{},c} {a..{1,2}}", ["a{},c}", "b{},c}", "a..1", "a..2"]),
        ("{a..{1..3}} {1..3..} {+1..2}", ["{a..{1..3}}", "{1..3..}", "1", "2"]),
    ],
)
def test_fixed_words(text: str, displayed: list[str]) -> None:
    words = words_of(text.encode().decode("latin-1"))
    assert [word.display for word in words] == displayed
    assert all(word.text == word.display == word.prefix and not word.may_split for word in words)


@pytest.mark.parametrize(
    ("text", "prefix", "may_split", "is_located", "may_be_option"),
    [
        ("$x", "", True, False, True),
        ('"$x"', "", False, False, True),
        ('a"$x"', "a", False, False, False),
        ("a$x", "a", True, False, True),
        ('a"$@"', "a", True, False, True),
        ('a"${x[@]}"', "a", True, False, True),
        ("*.txt", "", True, True, True),
        ("a*", "a", True, True, False),
        ("-[o]", "-", True, True, True),
        ("$HOME/a", "/", False, True, False),
        ('"$TMPDIR"/*', "/", True, True, False),
        ("$x$HOME", "", True, False, True),
        ("$#", "0", False, False, False),
        ("$((1 + 2))", "0", False, False, False),
        ("<(a)", "/dev/fd/", False, True, False),
        ("$(a)", "", True, False, True),
        ("{1..1000}", "", True, False, True),
        ("{1000000000..1000000001}", "", True, False, True),
        ("{$,x}HOME", "", True, False, True),
        ("{x,$}{HOME,}", "", True, False, True),
        ('{x..","c}', "", True, False, True),
        ("\\ {},b}", "", True, False, True),
    ],
)
def test_words_that_are_not_fixed(
    text: str, prefix: str, may_split: bool, is_located: bool, may_be_option: bool
) -> None:
    token = parse_shell(f"echo {text}").commands[-1].words[1]
    (word,) = expand(token)
    assert (word.text, word.prefix, word.may_split, word.is_located) == (None, prefix, may_split, is_located)
    assert word.may_be_option is may_be_option


def test_ansi_quotes_are_decoded_or_doubted() -> None:
    assert decode_ansi(r"\x72\155\u0020\'\"\\\t") == "rm '\"\\\t"
    for uncertain in (r"\c@", r"\xff", r"\u00e9", r"\0", r"\z"):
        assert decode_ansi(uncertain) is None


def test_numbers_in_variables_are_digits() -> None:
    token = parse_shell("echo $i").commands[0].words[1]
    assert expand(token, {"i"})[0].prefix == "0"


SAFE = "abc{},.'\"\\ 1=~-_$+"
PLAIN_WORDS = st.lists(st.text(SAFE, min_size=1, max_size=8), min_size=1, max_size=4).map(" ".join)
BRACED_WORDS = st.lists(
    st.sampled_from(["{", "}", ",", "..", "\\ ", "a", "1", "'b'", '","', "{}", "$"]), max_size=12
)


@given(text=PLAIN_WORDS | BRACED_WORDS.map("".join))
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_fixed_words_are_those_that_bash_makes(text: str) -> None:
    line = f"printf '%s\\0' {text}"
    reading = parse_shell(line)
    if reading.doubts or "~" in text or len(reading.commands) != 1:
        return
    words = words_of(line)
    if any(word.text is None for word in words):
        return
    made = subprocess.run(["/bin/bash", "-c", line], capture_output=True, check=False, cwd="/")
    assert made.returncode == 0
    assert made.stdout.decode().split("\0")[:-1] == [word.text for word in words[2:]] or words[2:] == []
