"""The option-table engine: parsing arguments by a specification, and the verdict on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from aisotools.core.types import Effect
from aisotools.policy.shell.commands import COMMANDS
from aisotools.policy.shell.expansion import Word, literal, unknown_words
from aisotools.policy.shell.options import (
    CommandSpec,
    OptionSpec,
    ParsedCommand,
    SimilarPrograms,
    by_program,
    classify_by_spec,
    copy_targets,
    join_option_tables,
    parse_option_table,
    parse_options,
    path_below,
    role_verdict,
)
from aisotools.policy.shell.subcommands import Subcommands
from aisotools.policy.shell.verdicts import (
    CommandVerdict,
    has_effect,
    merge,
)

READ, REMOTE, LOCAL, GONE = (
    Effect.READ_ONLY,
    Effect.REMOTE_ACTION,
    Effect.LOCAL_MUTATION,
    Effect.DESTRUCTIVE,
)
QUOTED = Word("$x", None, "", may_split=False, is_located=False)
"""A quoted variable: one word of which nothing is known."""


def words(text: str) -> list[Word]:
    """Return the words of `text`: `$...` is unknown and may split, `"$..."` is unknown and one word."""
    made = []
    for part in text.split():
        if part.startswith("$"):
            made.append(unknown_words(part))
        elif "$" in part:
            made.append(Word(part, None, part.partition("$")[0], is_located=False))
        else:
            made.append(literal(part))
    return made


def summary(verdict: CommandVerdict) -> tuple[Effect, bool]:
    return verdict.effect, verdict.certain


# ---- tables


def all_specs() -> Iterator[CommandSpec]:
    """Every specification, and those of every subcommand."""
    stack = list(COMMANDS)
    while stack:
        spec = stack.pop()
        yield spec
        if isinstance(spec.classify, (Subcommands, SimilarPrograms)):
            stack += spec.classify.specs.values()


def test_options_are_written_as_the_table_reads_them() -> None:
    option = r"-#|(-[^-\s:?!]+|--[a-zA-Z0-9][\w.-]*)(([:?][rwWmdhxuncsDikLp]?)|![rwWmdhxuncsDL])?"
    specs = list(all_specs())
    assert len(specs) > 500
    for spec in specs:
        if spec.options != "*":
            parse_option_table(spec.options, one_dash=spec.one_dash)
            wrong = [word for word in spec.options.split() if not re.fullmatch(option, word)]
            assert wrong == [], spec.names


def test_every_table_of_a_classifier_can_be_read() -> None:
    """They are read when they are used first; a mistake in one must not wait for that."""
    for spec in COMMANDS:
        subcommands = spec.classify.specs if isinstance(spec.classify, Subcommands) else {}
        for arguments in (
            "",
            "a",
            "-q a b",
            "-m json.tool a",
            "-m tarfile -l a",
            *subcommands,
            "check x",
            "tree x",
            "dgst a",
        ):
            for name in spec.names.split():
                classify_by_spec(spec, words(f"{name} {arguments} --frobnicate x"))


@pytest.mark.parametrize(
    ("table", "one_dash"),
    [
        ("-w -w:", False),
        ("-abw -w:r", False),
        ("-aba", False),  # though both are the same, one of them is not meant
        ("-w: -w:", False),
        ("--in: -q --in:r", False),
        ("-# -n -#", False),
        ("-in:r -in", True),
    ],
)
def test_a_table_that_states_an_option_twice_is_an_error(table: str, one_dash: bool) -> None:
    with pytest.raises(ValueError, match="stands twice"):
        parse_option_table(table, one_dash=one_dash)


@pytest.mark.parametrize("table", ["-a b", "-a,b: :", "-no-in", "-a:rw", "-a!", "x"])
def test_a_table_with_anything_but_options_is_an_error(table: str) -> None:
    with pytest.raises(ValueError, match="in a table"):
        parse_option_table(table)


def test_a_dash_within_an_option_is_part_of_its_name() -> None:
    table = parse_option_table("-CAfile:r -no-CAfile --a-b", one_dash=True)
    assert table == {
        "-CAfile": OptionSpec(":", "r"),
        "-no-CAfile": OptionSpec("", ""),
        "--a-b": OptionSpec("", ""),
    }


def test_of_two_tables_the_one_of_the_subcommand_counts() -> None:
    joined = join_option_tables("-vlq -f:r --host:u -k!w", "-l: -f --host")
    assert parse_option_table(joined) == parse_option_table("-l: -f --host -v -q -k!w")
    assert join_option_tables("-v", "*") == "*"
    assert join_option_tables("", "-a:") == "-a:"
    joined = join_option_tables("-vq --host:u", "-in:r -v:", one_dash=True)
    assert parse_option_table(joined, one_dash=True) == parse_option_table(
        "-in:r -v: -q --host:u", one_dash=True
    )


@pytest.mark.parametrize("tables", [("-a -a", ""), ("", "-a -a:")])
def test_tables_that_are_joined_are_parsed(tables: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="stands twice"):
        join_option_tables(*tables)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", ("a",)), ("a:b/c", ("a:b/c", "a", "b/c")), (":a", (":a", "a")), ("-", ())],
)
def test_each_path_of_a_list_is_read(value: str, expected: tuple[str, ...]) -> None:
    reads = role_verdict("p", literal(value), "-p").reads
    assert reads == expected
    assert role_verdict("p", QUOTED, "-p").unresolved == ("$x",)
    assert role_verdict("p", None, "-p") == merge([])


def test_of_programs_that_are_judged_alike_each_has_its_own_options() -> None:
    classify = by_program({"a b": "-w", "c": "-w:"})
    assert classify(words("a -w x y")).reads == ("x", "y")
    assert classify(words("/usr/bin/b -w x y")).reads == ("x", "y")
    assert classify(words("c -w x y")).reads == ("y",)


def test_a_table_with_joined_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="one by one"):
        parse_option_table("-ab:")


def test_a_table_names_arity_and_role() -> None:
    assert parse_option_table("-ab -c: -d?w -e!x --long:r --flag -#") == {
        "-a": ("", ""),
        "-b": ("", ""),
        "-c": (":", ""),
        "-d": ("?", "w"),
        "-e": ("", "x"),
        "--long": (":", "r"),
        "--flag": ("", ""),
        "-#": ("", ""),
    }


# ---- parsing


def parsed_text(parsed: ParsedCommand) -> tuple[list[tuple[str, str | None]], list[str]]:
    options = [(option.name, option.value.display if option.value else None) for option in parsed.options]
    return options, [operand.display for operand in parsed.operands]


@pytest.mark.parametrize(
    ("command", "options", "operands"),
    [
        ("p a -x b", [("-x", None)], ["a", "b"]),
        ("p -xk v a", [("-x", None), ("-k", "v")], ["a"]),
        ("p -kv a", [("-k", "v")], ["a"]),
        ("p -k", [("-k", None)], []),
        ("p -i a", [("-i", None)], ["a"]),
        ("p -ia b", [("-i", "a")], ["b"]),
        ("p -- -x", [], ["-x"]),
        ("p - a", [], ["-", "a"]),
        ("p -12 a", [], ["a"]),
        ("p --key v a", [("--key", "v")], ["a"]),
        ("p --key=v a", [("--key", "v")], ["a"]),
        ("p --flag a", [("--flag", None)], ["a"]),
        ("p --key=$v a", [("--key", "$v")], ["a"]),
    ],
)
def test_arguments_are_parsed_by_the_table(
    command: str, options: list[tuple[str, str | None]], operands: list[str]
) -> None:
    parsed = parse_options(words(command), "-x -k: -i? -# --key: --flag")
    assert parsed_text(parsed) == (options, operands)
    assert parsed.doubts == []


@pytest.mark.parametrize(
    ("command", "doubt"),
    [
        ("p -z", "the option -z is unknown"),
        ("p -xz", "the option -z is unknown"),
        ("p --zzz", "the option --zzz is unknown"),
        ("p --fl", "the option --fl is abbreviated"),  # two letters say little
        ("p --flag=1", "the option --flag takes no value"),
        ("p $x", "$x may be an option"),
        ("p -k $x", "it cannot be determined how many words $x becomes"),
        ("p --key $x", "it cannot be determined how many words $x becomes"),
    ],
)
def test_ambiguous_options_are_doubted(command: str, doubt: str) -> None:
    assert parse_options(words(command), "-x -k: --key: --flag").doubts == [doubt]


@pytest.mark.parametrize("value", ["-o", "-xo", "-xof", "--out", "--out=f", "--ou"])
def test_a_value_that_may_be_an_option_which_does_more_is_doubted(value: str) -> None:
    """Another subcommand, or another version, may know the option before it without a value."""
    for option in ("-k", "-xk", "--key"):
        assert parse_options(words(f"p {option} {value} f a"), "-x -k: --key: -o:w --out:w").doubts
    assert parse_options(words(f"p --key={value} a"), "-x -k: --key: -o:w --out:w").doubts == []


@pytest.mark.parametrize("value", ["-", "-1", "-x", "--flag", "x-o"])
def test_a_value_that_is_no_such_option_is_plain(value: str) -> None:
    assert parse_options(words(f"p -k {value} a"), "-x -k: --flag -o:w").doubts == []


def test_letters_joined_to_an_option_of_a_shared_table_may_be_options() -> None:
    options = "-x -k: -o:w"
    assert parse_options(words("p -kof a"), options, is_shared=True).doubts
    assert parse_options(words("p -k9 -kx a"), options, is_shared=True).doubts == []
    assert parse_options(words("p -kof a"), options).doubts == []


def test_no_value_in_any_table_hides_an_option_that_does_more() -> None:
    hidden = []
    count = 0
    for spec in all_specs():
        if spec.options == "*" or spec.classify is not None:
            continue
        table = parse_option_table(spec.options, one_dash=spec.one_dash)
        harmful = [name for name, option in table.items() if option.role in {*"xusdDwWmcnh"}]
        for name in (name for name, option in table.items() if option.arity == ":" and not option.role):
            for other in harmful:
                count += 1
                verdict = classify_by_spec(spec, words(f"p {name} {other} f a"))
                hidden += [f"{spec.names}: {name} {other}"] if verdict.only_reads else []
    assert count > 5000
    assert hidden == []


def test_an_abbreviation_stands_for_the_worst_it_may_mean() -> None:
    parsed = parse_options(words("p --o"), "--one --output:w --overrule:x --other!d")
    assert [option.name for option in parsed.options] == ["--overrule"]


def test_dynamic_words_are_operands_where_they_are_harmless() -> None:
    parsed = parse_options(words("p $x a"), "-x", allow_dynamic=True)
    assert parsed_text(parsed) == ([], ["$x", "a"])
    assert parsed.doubts == []


def test_the_first_operand_ends_the_options_of_posix_programs() -> None:
    assert parsed_text(parse_options(words("p -x a -x"), "-x", posix=True)) == ([("-x", None)], ["a", "-x"])
    assert parsed_text(parse_options(words("p -x a -x"), "-x"))[1] == ["a"]


def test_values_that_must_be_separate_are_doubted_when_joined() -> None:
    assert parse_options(words("p -kv"), "-k:", separate_values=True).doubts
    assert parse_options(words("p -xk v"), "-x -k:", separate_values=True).doubts
    assert parse_options(words("p -- a"), "-x", separate_values=True).doubts
    assert parse_options(words("p -k v"), "-k:", separate_values=True).doubts == []


def test_without_a_table_a_number_after_an_option_is_its_value() -> None:
    assert parsed_text(parse_options(words("p -n 5 a 6 -x b"), "*")) == ([], ["a", "6", "b"])


def test_options_are_found_by_name() -> None:
    parsed = parse_options(words("p -k a --key b -x"), "-x -k: --key:")
    assert parsed.has("-k")
    assert parsed.has("-z", "-x")
    assert not parsed.has("-z")
    assert parsed.value("-k", "--key") == literal("b")
    assert parsed.value("-x") is None


# ---- verdicts


@pytest.mark.parametrize(
    ("role", "value", "expected", "field"),
    [
        ("", "v", (READ, True), {}),
        ("r", "v", (READ, True), {"reads": ("v",)}),
        ("r", None, (READ, True), {}),
        ("w", "v", (LOCAL, True), {"writes": ("v",)}),
        ("w", "-", (LOCAL, True), {"writes": ("-",)}),
        ("w", None, (LOCAL, True), {}),
        ("W", "v", (LOCAL, True), {"writes": ("v",)}),
        ("W", "-", (READ, True), {}),
        ("W", None, (READ, True), {}),
        ("m", "v", (LOCAL, True), {"writes": ("v",), "reasons": ("it changes v",)}),
        ("m", None, (LOCAL, True), {}),
        ("c", "v", (LOCAL, True), {}),
        ("d", "v", (GONE, True), {"writes": ("v",), "reasons": ("it destroys v",)}),
        ("d", None, (GONE, True), {}),
        ("D", "v", (GONE, True), {"writes": ()}),
        ("h", "https://v.example/", (REMOTE, True), {"hosts": ("v.example",)}),
        ("n", "v", (REMOTE, True), {}),
        ("s", "v", (LOCAL, False), {}),
        ("x", "v", (LOCAL, False), {"reasons": ("-o runs v",)}),
        ("x", None, (LOCAL, False), {"reasons": ("-o runs something",)}),
        ("u", "v", (LOCAL, False), {}),
    ],
)
def test_each_role_has_its_verdict(
    role: str, value: str | None, expected: tuple[Effect, bool], field: dict[str, Any]
) -> None:
    verdict = role_verdict(role, literal(value) if value is not None else None, "-o")
    assert summary(verdict) == expected
    assert {name: getattr(verdict, name) for name in field} == field


@pytest.mark.parametrize(
    ("operands", "command", "expected"),
    [
        (".", "p a b", ((), (), True)),
        ("-", "p a", ((), (), False)),
        ("-", "p", ((), (), True)),
        ("r", "p a b", (("a", "b"), (), True)),
        ("pr", "p pattern a", (("a",), (), True)),
        ("pr", "p -e pattern a", (("a",), (), True)),
        ("pm", "p mode a b", ((), ("a", "b"), True)),
        ("rw", "p a", (("a",), (), True)),
        ("rw", "p a b", (("a",), ("b",), True)),
        ("c", "p a b", (("a",), ("b",), True)),
        ("c", "p a b d", (("a", "b"), ("d/a", "d/b"), True)),
    ],
)
def test_each_kind_of_operands_has_its_verdict(
    operands: str, command: str, expected: tuple[tuple[str, ...], tuple[str, ...], bool]
) -> None:
    spec = CommandSpec(names="p", options="-e: -t:", operands=operands)
    verdict = classify_by_spec(spec, words(command))
    assert (verdict.reads, verdict.writes, verdict.certain) == expected


def test_a_pattern_that_may_be_two_files_may_write_the_second() -> None:
    verdict = classify_by_spec(
        CommandSpec(names="p", operands="rw"), [literal("p"), Word("*", None, "", True)]
    )
    assert not verdict.certain


def test_the_effect_of_a_specification_is_added() -> None:
    spec = CommandSpec(names="p", options="*", effect=LOCAL, reason="changes things")
    verdict = classify_by_spec(spec, words("p a"))
    assert summary(verdict) == (LOCAL, True)
    assert verdict.reasons == ("p changes things",)
    unsure = CommandSpec(names="p", options="*", certain=False)
    assert summary(classify_by_spec(unsure, words("p a"))) == (READ, False)
    assert classify_by_spec(unsure, words("p a")).reasons == ()


def test_doubts_and_roles_of_options_count() -> None:
    spec = CommandSpec(names="p", options="-o:w -x:x", operands=".")
    assert classify_by_spec(spec, words("p -o f")).writes == ("f",)
    assert summary(classify_by_spec(spec, words("p -x f"))) == (LOCAL, False)
    assert summary(classify_by_spec(spec, words("p -z"))) == (LOCAL, False)
    assert summary(classify_by_spec(spec, words("p f"))) == (READ, True)


def test_the_classifier_of_a_specification_replaces_its_table() -> None:
    spec = CommandSpec(names="p", classify=lambda words: has_effect(GONE, words[0].display))
    assert classify_by_spec(spec, words("p")) == has_effect(GONE, "p")


@pytest.mark.parametrize(
    ("command", "sources", "targets"),
    [
        ("p a b", ["a"], ("b",)),
        ("p a/x b/", ["a/x"], ("b/x",)),
        ("p a/x .", ["a/x"], ("./x",)),
        ("p a b d", ["a", "b"], ("d/a", "d/b")),
        ("p -t d a b", ["a", "b"], ("d/a", "d/b")),
        ("p a/b", ["a/b"], ("./b",)),
    ],
)
def test_copies_are_written_where_they_go(command: str, sources: list[str], targets: tuple[str, ...]) -> None:
    copied, verdicts = copy_targets(parse_options(words(command), "-t:"))
    assert [word.display for word in copied] == sources
    assert merge(verdicts).writes == targets


def test_a_copy_into_an_unknown_folder_is_uncertain() -> None:
    _, (verdict,) = copy_targets(parse_options([literal("p"), literal("-t"), QUOTED, literal("a")], "-t:"))
    assert (verdict.writes, verdict.certain) == (("$x/a",), False)


def test_path_below_a_folder_is_as_certain_as_both() -> None:
    assert path_below(literal("d/"), literal("a/b")) == literal("d/a/b")
    pattern = Word("*", None, "", may_split=True)
    for folder, path, is_known in [
        (literal("d"), QUOTED, False),
        (QUOTED, literal("a"), False),
        (pattern, literal("a"), True),
    ]:
        found = path_below(folder, path)
        assert (found.text, found.prefix, found.is_located) == (None, "", is_known)
