"""What is known of the variables of a text."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.expansion import Piece, Token, expand
from aisotools.policy.shell.parser import parse_shell
from aisotools.policy.shell.variables import (
    VariableUsage,
    is_harmless_for_programs,
    is_harmless_in_shell,
    is_variable_name,
    split_assignment,
    survey_variables,
)


def assignment(text: str) -> Token:
    """Return the one word of `text`."""
    (word,) = parse_shell(text).commands[-1].words
    return word


def usage(text: str, *, is_only_text: bool = True) -> VariableUsage:
    return survey_variables(parse_shell(text), is_only_text=is_only_text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", True),
        ("_1", True),
        ("1x", False),
        ("x-y", False),
        ("x[0]", False),
        ("", False),
        ("x\u00c3", False),
    ],
)
def test_name_of_a_variable_has_letters_of_ascii_alone(text: str, expected: bool) -> None:
    assert is_variable_name(text) is expected


@pytest.mark.parametrize("name", ["x", "FOO", "i", "result", "MY_DATA"])
def test_names_without_a_meaning_are_harmless_in_the_shell(name: str) -> None:
    assert is_harmless_in_shell(name)


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "IFS", "BASH_ENV", "ENV", "PS4", "PROMPT_COMMAND", "LD_PRELOAD", "GIT_PAGER", "PYTHONPATH"),
        *("LESSOPEN", "EDITOR", "HOME", "PWD", "_", "RANDOM", "OPTARG", "http_proxy", "MY_OPTIONS", "X_PATH"),
    ],
)
def test_names_with_a_meaning_are_not(name: str) -> None:
    assert not is_harmless_in_shell(name)
    assert not is_harmless_for_programs(name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("LC_ALL", True), ("LANG", True), ("TZ", True), ("x", True), ("FOO", False), ("MY_DATA", False)],
)
def test_programs_get_only_names_that_mean_nothing_to_any(name: str, expected: bool) -> None:
    assert is_harmless_for_programs(name) is expected


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [("x=1", "x", "1"), ("x=", "x", ""), ("x+=a", "x", "a"), ("x[1]=a", "x", "a"), ("x=a=b", "x", "a=b")],
)
def test_an_assignment_has_a_name_and_a_value(text: str, name: str, value: str) -> None:
    found, rest = split_assignment(assignment(text))
    assert (found, "".join(piece.text for piece in rest.pieces)) == (name, value)


def test_the_value_of_an_assignment_keeps_its_pieces() -> None:
    _, value = split_assignment(assignment("x='a b'$c"))
    assert value.pieces == (Piece("literal", "a b", True), Piece("variable", "c", False))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("x=1", {"x"}),
        ("x=-12", {"x"}),
        ("x=a", set()),
        ("x=$#", {"x"}),
        ("x=$((1 + 2))", {"x"}),
        ("x=$y", set()),
        ("x=1; x=a", set()),
        ("x=1 ls", {"x"}),
        ("x=1; x=a ls", set()),
        ("x[1]=1", set()),
        ("for i in 1 2 3; do ls; done", {"i"}),
        ("for i in {1..3}; do ls; done", {"i"}),
        ("for i in 1 a; do ls; done", set()),
        ("for i; do ls; done", set()),
        ("read x", set()),
        ("x=1; read x", set()),
        ("((x = 1))", {"x"}),
        ("((x++))", {"x"}),
        ("x=1; : ${x:=a}", set()),
        ("x=1; : ${x=a}", set()),
        ("x=1; declare x", set()),
        ("x=1; eval y", set()),
        ("x=1; $y", set()),
        ("x=1; printf -v x a", set()),
        ("x=1; printf a", {"x"}),
        ("x=1; read -e y", set()),
        ("x=1; read -r y", {"x"}),
    ],
)
def test_only_variables_that_certainly_hold_numbers_do(text: str, numbers: set[str]) -> None:
    assert usage(text).numbers == numbers
    assert usage(text, is_only_text=False).numbers == frozenset()


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("for f in a b; do ls; done", {"f": ("a", "b")}),
        ("for f in *.txt; do ls; done", {"f": ("*.txt",)}),
        ("for f in $HOME/a; do ls; done", {"f": ("$HOME/a",)}),
        ("for f in $x; do ls; done", {}),
        ("for f in /dev/tcp/x/80; do ls; done", {}),
        ("for f in a; do f=b; done", {}),
        ("f=a g='b'; ls", {"f": ("a",), "g": ("b",)}),
        ("f=a; f=b; ls", {}),
        ("f=a; f+=b; ls", {}),
        ("f[0]=a; ls", {}),
        ("f=a; read f", {}),
        ("f=$x; ls", {}),
        ("f='a b'; ls", {}),
        ("f=/dev/tcp/x/80; ls", {}),
        ("f=a ls", {}),  # for that command alone
        ("for f in a; do eval x; done", {}),
        ("for f in a; do command -v $f; done", {"f": ("a",)}),
        ("for f in a; do command read f; done", {}),
        ("for f; do ls; done", {}),
    ],
)
def test_loops_over_plain_words_hold_files(text: str, files: dict[str, tuple[str, ...]]) -> None:
    assert {name: words.displays for name, words in usage(text).files.items()} == files
    assert usage(text, is_only_text=False).files == {}


@pytest.mark.parametrize(
    ("loop", "word", "may_be_option", "may_split"),
    [
        ("a b", "$f", False, False),
        ("a b", "${f}_x.gz", False, False),
        ("a b", "${f}*", True, True),  # what it becomes is only known then
        ("-o b", "$f", True, False),
        ("'a -o'", '"$f"', False, False),
        ("'a -o'", "$f", True, True),  # it splits
        ("d/*.csv", '"$f"', False, False),
        ("*.csv", '"$f"', True, False),
        ("*.csv", "$f", True, True),
    ],
)
def test_a_loop_over_plain_words_tells_how_its_variable_begins(
    loop: str, word: str, may_be_option: bool, may_split: bool
) -> None:
    parsed = parse_shell(f"for f in {loop}; do echo {word}; done")
    used = survey_variables(parsed)
    (found,) = expand(parsed.commands[-1].words[1], used.numbers, used.files)
    assert found.is_file
    assert (found.may_be_option, found.may_split) == (may_be_option, may_split)


@pytest.mark.parametrize(
    ("value", "may_be_option"),
    [("a", False), ("/a/b", False), ("./-a", False), ("-a", True), ("''", True)],
)
def test_variable_that_is_set_once_begins_as_its_value_does(value: str, may_be_option: bool) -> None:
    parsed = parse_shell(f'f={value}; echo "$f"')
    used = survey_variables(parsed)
    (found,) = expand(parsed.commands[-1].words[1], used.numbers, used.files)
    assert found.may_be_option is may_be_option


def test_all_assigned_names_are_listed() -> None:
    assert usage("a=1; b=2 ls; for c in x; do :; done; ((d = 1)); : ${e:=1}; read f").assigned == set(
        "abcdef"
    )


@pytest.mark.parametrize(
    "text",
    [
        "x=1; echo $((x + 1))",
        "echo $((1 + 0x1f))",
        "echo $((RANDOM % 3))",
        "echo ${x:-a} ${x#a} ${x%%a} ${#x} ${x/a/b} ${x^^} ${x@Q}",
        "echo ${x[@]} ${x[0]} ${x:1:2} ${x:-1}",
        "i=1; echo ${x[i]} ${x[$i]} ${x:i}",
        "[[ -v x ]]; [[ 1 -eq 2 ]]; [[ $x == a ]]",
        "i=1; [[ $i -lt 3 ]]",
    ],
)
def test_plain_uses_of_variables_raise_no_doubt(text: str) -> None:
    assert usage(text).doubts == ()


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("PATH=.", "it sets PATH"),
        ("for IFS in a; do :; done", "it sets IFS"),
        ("echo $((x + 1))", "arithmetic can run commands: x + 1"),
        ("x=a; echo $((x))", "arithmetic can run commands: x"),
        ("((a[1]))", "arithmetic can run commands: a[1]"),
        ("echo ${x[$i]}", "${x[$i]} can run commands"),
        ("echo ${x[i]}", "${x[i]} can run commands"),
        ("echo ${x:i}", "${x:i} can run commands"),
        ("echo ${x:-$(rm y)}", "${x:-$(rm y)} can run commands"),
        ("echo ${x@P}", "${x@P} can run commands"),
        ("echo ${!x}", "${!x} can run commands"),
        ("[[ -v x[1] ]]", "a test that evaluates its words can run commands"),
        ("[[ -v x\u00c3 ]]", "a test that evaluates its words can run commands"),
        ("[[ -v $x ]]", "a test that evaluates its words can run commands"),
        ("[[ -R ]]", "a test that evaluates its words can run commands"),
        ("[[ $x -eq 1 ]]", "a test that evaluates its words can run commands"),
        ("[[ 1 -lt a ]]", "a test that evaluates its words can run commands"),
        ("[[ 1 -lt $x ]]", "a test that evaluates its words can run commands"),
    ],
)
def test_uses_of_variables_that_may_run_commands_are_doubted(text: str, doubt: str) -> None:
    assert doubt in usage(text).doubts
