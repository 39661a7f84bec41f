"""What holds for every text."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from aisotools.core.types import Effect
from aisotools.policy.shell.classify import MAX_COMMAND_BYTES, classify_shell, shell_facts
from tests.policy.shell.corpus import entries

PARTS = [
    *" \t\n;&|()<>{}[]'\"`$\\#!=~*?,-+%^:/@",
    *(
        "&&",
        "||",
        "$(",
        "$((",
        "))",
        "${",
        "[[ ",
        " ]]",
        "<<EOF\n",
        "\nEOF\n",
        "<(",
        "$'",
        "\\\n",
        "2>&1",
        ">&",
    ),
    *(
        "rm x",
        "ls",
        "echo ",
        "cat a",
        "x=1",
        "$x",
        '"$x"',
        "if ",
        "then ",
        "fi",
        "do ",
        "done",
        "case x in ",
        "esac",
    ),
    *("for i in ", "eval ", "bash -c ", "xargs ", "sort -o x", "git log", "a", "1", "é", "EOF", "f() "),
]
ARBITRARY = st.one_of(st.text(max_size=80), st.lists(st.sampled_from(PARTS), max_size=20).map("".join))
MILD = [
    "echo ",
    "ls ",
    "a ",
    "'b c' ",
    '"d e" ',
    "# f",
    "; ",
    "\n",
    "&& ",
    "| cat ",
    "$x ",
    "(ls) ",
    "\\\n",
    "\\",
    "'",
]
MILD += [
    '"',
    "cat <<EOF\n",
    "\nEOF\n",
    "cat <<'EOF'\n",
    "$(",
    ") ",
    "`",
    "${x:-",
    "}",
    "{ ",
    "[[ a ]] ",
    "if :; then ",
]
MILD += [
    "fi ",
    "$((1 + ",
    ")) ",
    "2>&1 ",
    "<<< ",
    "case a in ",
    "a) ",
    ";; ",
    "esac ",
    "$'",
    "=",
    "{b,c} ",
    "\\'",
    '\\"',
]
ADDED = [
    "; rm x",
    "\nrm x",
    "& rm x",
    "&& rm x",
    "|| rm x",
    "| tee x",
    "|& rm x",
    "> x",
    ">> x",
    "&> x",
    " <(rm x)",
]
ADDED += [
    " $(rm x)",
    " `rm x`",
    ' "$(rm x)"',
    "\n. x",
    "; $x",
    "; ./x",
    "; PATH=.; ls",
    " | bash",
    " | xargs rm",
]
WRAPPED = [
    "bash -c {}",
    "eval {}",
    "bash -c -- {}",
    "timeout 5 bash -c {}",
    "trap {} EXIT",
    "ls; eval {}",
    "bash -xc {}",
]
WRAPPED += [
    "env bash -c {}",
    "echo $(bash -c {})",
    "if true; then eval {}; fi",
    "exec bash -c {}",
    "ls | eval {}",
]
WRAPPED += [
    "find . -exec bash -c {} \\;",
    "ls | xargs -n1 bash -c {}",
    "nice -n 5 sh -c {}",
    "bash -c 'eval \"$0\"' {}",
]
COMMANDS = st.sampled_from([entry.command for entry in entries()])
READING = st.sampled_from(
    [e.command for e in entries() if e.kind == "everyday" and e.effect is Effect.READ_ONLY]
)
HARMFUL = st.sampled_from([e.command for e in entries() if e.effect is not Effect.READ_ONLY])


def reads_only(command: str) -> bool:
    return classify_shell(command).effect is Effect.READ_ONLY


@given(text=ARBITRARY)
@settings(max_examples=4 * settings().max_examples)
def test_any_text_gets_a_report(text: str) -> None:
    report = classify_shell(text)
    assert report.certain or report.effect is not Effect.READ_ONLY
    assert report.certain or report.reasons
    assert report == classify_shell(text)
    facts = shell_facts(text, "sub")
    assert facts.commands == report.commands
    if facts.absent:  # whether it only reads depends on files, which are looked at later
        assert facts.without_dashes is not None
        assert not facts.certain
        assert facts.effect >= report.effect
    else:
        assert (facts.effect, facts.certain) == (report.effect, report.certain)


@given(command=COMMANDS, part=st.sampled_from(PARTS), where=st.floats(0, 1), cut=st.integers(0, 3))
@settings(max_examples=5 * settings().max_examples)
def test_any_change_to_a_command_gets_a_report(command: str, part: str, where: float, cut: int) -> None:
    at = int(where * len(command))
    report = classify_shell(command[:at] + part + command[at + cut :])
    assert report.certain or report.effect is not Effect.READ_ONLY


@given(text=st.text(st.characters(categories=["Cc", "Cf", "Cs", "Co", "Zs", "Zl", "Zp"]), min_size=1))
def test_a_command_that_cannot_be_parsed_is_never_read_only(text: str) -> None:
    if text.strip(" \t\n"):
        assert not reads_only(f"echo {text}")
        assert not reads_only(f"ls {text}; pwd")


@given(text=ARBITRARY)
@settings(max_examples=3 * settings().max_examples)
def test_no_text_makes_a_command_before_it_harmless(text: str) -> None:
    assert not reads_only("rm x\n" + text)
    assert not reads_only("touch x;\n" + text)


@given(text=st.lists(st.sampled_from(MILD), max_size=8).map("".join))
@settings(max_examples=6 * settings().max_examples)
def test_no_text_that_only_reads_hides_a_line_after_it(text: str) -> None:
    if reads_only(text) and not text.endswith("\\"):
        assert not reads_only(text + "\nrm x")


@pytest.mark.sample(8)
@given(command=READING)
@settings(max_examples=2 * settings().max_examples)
@pytest.mark.parametrize("added", ADDED)
def test_adding_something_harmful_is_seen(command: str, added: str) -> None:
    if "\n" in command or command.startswith("#"):
        command += "\n:"  # a here-document, or a comment, would swallow what is added
    assert not reads_only(command + added)


@pytest.mark.sample(6)
@given(command=HARMFUL)
@settings(max_examples=3 * settings().max_examples)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_quoting_and_running_it_hides_nothing(command: str, wrapped: str) -> None:
    assert not reads_only(wrapped.format(shlex.quote(command)))


@pytest.mark.sample(3)
@given(command=HARMFUL)
@settings(max_examples=3 * settings().max_examples)
@pytest.mark.parametrize(
    "group", ["({}\n)", "{{ {}\n}}", "if true; then {}\nfi", "! {}", "ls; {}", "while false; do {}\ndone"]
)
def test_grouping_hides_nothing(command: str, group: str) -> None:
    assert not reads_only(group.format(command))


@given(command=COMMANDS, noise=st.sampled_from(["", " ", "\n", "\t", "  # comment\n", "\\\n", ":;"]))
@example(command="(cd src; ls)", noise="\\\n")
def test_blanks_and_comments_before_it_change_nothing(command: str, noise: str) -> None:
    plain, noisy = classify_shell(command), classify_shell(noise + command)
    assert (noisy.effect, noisy.writes, noisy.hosts) == (plain.effect, plain.writes, plain.hosts)


@given(
    # Inside quotes it is another text, which other rules are about.
    command=HARMFUL.filter(lambda command: "'" not in command and '"' not in command),
    place=st.floats(0, 1),
    count=st.integers(1, 3),
)
@settings(max_examples=3 * settings().max_examples)
@example(command="echo a >> file", place=0.53, count=1)
@example(command="echo a || rm b", place=0.5, count=2)
def test_a_line_that_is_continued_anywhere_hides_nothing(command: str, place: float, count: int) -> None:
    position = int(len(command) * place)
    begin = command[:position]
    # After a backslash it is not a continuation: the two are one character.
    assume((len(begin) - len(begin.rstrip("\\"))) % 2 == 0)
    assert not reads_only(begin + "\\\n" * count + command[position:])


@pytest.mark.parametrize(
    "context",
    [
        "echo ${{x:-$({})}}",
        'echo "${{x:-$({})}}"',
        'echo "$({})"',
        "echo `{}`",
        "cat <<E\n$({})\nE",
        "echo ${{x:-`{}`}}",
        "cat <({})",
        "echo $((1+$({})))",
        "{{ {}; }}",
        "x=$({}) ls",
        "[[ -n $({}) ]]",
        "echo ${{x[$({})]}}",
        "echo ${{x/$({})/}}",
    ],
)
def test_a_line_that_is_continued_at_any_place_of_an_expansion_hides_nothing(context: str) -> None:
    command = context.format("rm x")
    for place in range(len(command) + 1):
        assert not reads_only(f"{command[:place]}\\\n{command[place:]}"), place


@given(text=st.text(min_size=1))
def test_length_alone_is_enough_to_ask(text: str) -> None:
    long = (text * (MAX_COMMAND_BYTES + 1))[: MAX_COMMAND_BYTES + 1]
    assert not reads_only(long)
