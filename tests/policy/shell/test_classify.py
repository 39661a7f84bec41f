from __future__ import annotations

import dataclasses
import subprocess
import sys
import time

import pytest

import aisotools
from aisotools.core.types import Effect
from aisotools.policy.shell.classify import MAX_COMMAND_BYTES, ShellReport, classify_shell, shell_facts


def test_a_report_says_what_a_command_does_in_words() -> None:
    report = classify_shell("cat a.txt | sort -o b.txt && curl -sd @c https://example.org:8080/x")
    assert report == ShellReport(
        effect=Effect.LOCAL_MUTATION,
        commands=("cat a.txt", "sort -o b.txt", "curl -sd @c https://example.org:8080/x"),
        reads=("a.txt", "c"),
        writes=("b.txt",),
        hosts=("example.org",),
        reasons=(
            "it writes b.txt",
            "curl talks to another machine",
            "it contacts https://example.org:8080/x",
        ),
        certain=True,
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.certain = False  # type: ignore[misc]  # frozen


def test_reading_is_read_only_and_says_what_is_read() -> None:
    report = classify_shell("head -n 5 data.csv; cat < notes.md")
    assert report.effect is Effect.READ_ONLY
    assert report.certain
    assert report.reads == ("data.csv", "notes.md")
    assert report.writes == report.hosts == report.reasons == ()


def test_the_worst_of_all_commands_counts() -> None:
    assert classify_shell("ls; touch a; rm b").effect is Effect.DESTRUCTIVE
    assert classify_shell("ls; touch a; curl https://x.example").effect is Effect.LOCAL_MUTATION
    assert classify_shell("ls; curl https://x.example").effect is Effect.REMOTE_ACTION


def test_an_uncertain_command_is_never_read_only() -> None:
    report = classify_shell('"$program" a')
    assert (report.effect, report.certain) == (Effect.LOCAL_MUTATION, False)
    assert report.reasons == ("it cannot be determined which program $program is",)


@pytest.mark.parametrize(
    ("command", "commands"),
    [
        ("git push origin main", ("git push origin main",)),
        ("/bin/ls -l", ("ls -l",)),
        ("./ls -l", ("./ls -l",)),
        ("r''m \"a b\"", ("rm a b",)),
        ("find . -name '*.py' | xargs -n1 wc -l", ("find . -name *.py", "xargs -n1 wc -l", "wc -l …")),
        ("timeout 5 nice cat a", ("timeout 5 nice cat a", "nice cat a", "cat a")),
        ("bash -c 'ls; pwd'", ("bash -c ls; pwd", "ls", "pwd")),
        ("echo {a,b}.txt", ("echo a.txt b.txt",)),
        ("echo $(date) `pwd`", ("echo $(date) `pwd`", "date", "pwd")),
        ("x=1 LC_ALL=C sort a", ("sort a",)),
        ("cat é.txt", ("cat é.txt",)),
    ],
)
def test_commands_are_described_with_their_arguments(command: str, commands: tuple[str, ...]) -> None:
    assert classify_shell(command).commands == commands


@pytest.mark.parametrize(
    ("command", "writes"),
    [
        ("ls > a 2> b", ("a", "b")),
        ("ls > /dev/null 2>&1", ()),
        ("cp a b", ("b",)),
        ("cp a/b c d/", ("d/b", "d/c")),
        ("cp -t d a/b", ("d/b",)),
        ("cp a/conftest.py .", ("./conftest.py",)),
        ("ln -s a/b", ("./b",)),
        ("mv a/b c d", ("a/b", "c", "d/b", "d/c")),
        ("mv -t d a", ("a", "d/a")),
        ("cp a{,.bak}", ("a.bak",)),
        ("tee -a x y >(cat) < z", ("x", "y")),
        ("sed -i s/a/b/ x y", ("x", "y")),
        ("sed -i.bak s/a/b/ x", ("x.bak", "x")),
        ("uniq a b", ("b",)),
        ("dd if=a of=b", ("b",)),
        ("chmod +x a b", ("a", "b")),
        ("mkdir -p a/b", ("a/b",)),
        ("sort -uoout in", ("out",)),
        ("curl -o page https://x.example", ("page",)),
        ("find . -fprintf list %p", ("list",)),
        ("rm -rf a b", ("a", "b")),
        ("mv a b", ("a", "b")),
        ("gzip a", ("a",)),
        ("ls > $TMPDIR/x", ("$TMPDIR/x",)),
    ],
)
def test_writes_are_described_by_path(command: str, writes: tuple[str, ...]) -> None:
    assert classify_shell(command).writes == writes


@pytest.mark.parametrize(
    ("command", "hosts"),
    [
        ("curl -X POST -d a https://me:pw@x.example/y z.example", ("x.example", "z.example")),
        ("ssh me@x.example ls", ("x.example",)),
        ("scp a me@x.example:b", ("x.example",)),
        ("rsync -a a/ b/", ()),
        ("nc -v x.example 80", ("x.example",)),
        ("cat < /dev/tcp/x.example/80", ("x.example",)),
        ("git clone git@x.example:a/b.git", ("x.example",)),
        ("git push origin main", ("origin",)),
        ("wget", ()),
        ("curl $url", ("$url",)),
        ("curl https://good.example@bad.example/x", ("bad.example",)),
        ("curl https://a@good.example@bad.example", ("bad.example",)),
        ("curl https://bad.example#@good.example/", ("bad.example",)),
    ],
)
def test_hosts_are_described(command: str, hosts: tuple[str, ...]) -> None:
    assert classify_shell(command).hosts == hosts


@pytest.mark.parametrize(
    ("path", "outside"),
    [
        ("a", False),
        ("a/b/../c", False),
        ("./a", False),
        ("/workspace/a", False),
        ("$TMPDIR/a", False),
        ("$WORKSPACE/a", False),
        ("../a", True),
        ("a/../../b", True),
        ("/etc/passwd", True),
        ("/workspace/../a", True),
        ("/workspaces", True),
        ("$TMPDIR/../a", True),
        ("~/a", True),
        ("$HOME/a", True),
    ],
)
def test_facts_tell_writing_outside_the_workspace(path: str, outside: bool) -> None:
    facts = shell_facts(f"ls > {path}")
    assert facts.outside is outside
    assert facts.effect is Effect.LOCAL_MUTATION


def test_facts_are_relative_to_the_workspace() -> None:
    facts = shell_facts("cat a /b > ../c", "sub/folder")
    assert facts.reads == ("sub/folder/a", "/b")
    assert facts.writes == ("sub/folder/../c",)
    assert not facts.outside
    assert shell_facts("ls > ../../../c", "sub/folder").outside


@pytest.mark.parametrize(
    ("command", "folders", "effect"),
    [
        ("sort *.csv", ("sub",), Effect.READ_ONLY),
        ("sort [a-b]?.csv | head", ("sub",), Effect.READ_ONLY),
        ("cd data && sort *.csv", ("sub/data",), Effect.READ_ONLY),
        ("bash -c 'sort *.csv'", ("sub",), Effect.READ_ONLY),
        ("sort *.csv -o out", ("sub",), Effect.LOCAL_MUTATION),
    ],
)
def test_patterns_that_may_be_options_come_with_both_answers(
    command: str, folders: tuple[str, ...], effect: Effect
) -> None:
    facts = shell_facts(command, "sub")
    assert not facts.certain
    assert facts.dash_folders == folders
    assert facts.without_dashes is not None
    assert (facts.without_dashes.certain, facts.without_dashes.effect) == (True, effect)


@pytest.mark.parametrize(
    "command",
    ["sort $x", "sort *$x", "sort $x*", "cd $x; sort *.csv", "ls | xargs sort *", "sort *.csv; frobnicate"],
)
def test_words_that_may_be_options_for_another_reason_stay_uncertain(command: str) -> None:
    facts = shell_facts(command)
    assert (facts.certain, facts.without_dashes) == (False, None)


def test_facts_that_are_remembered_of_a_command_are_those_of_its_folder() -> None:
    facts = {folder: shell_facts("cat a > ../b", folder) for folder in (".", "sub", "sub/folder")}
    assert len({(one.reads, one.writes) for one in facts.values()}) == 3
    for folder, first in facts.items():
        assert shell_facts("cat a > ../b", folder) == first
    assert shell_facts(f"cat {'a' * 2_000} > b").writes == ("b",), "long ones are classified each time"


def test_a_change_of_folder_makes_relative_writes_uncertain() -> None:
    assert classify_shell("cd sub && touch a").certain
    for elsewhere in ("cd /etc", "cd ..", "cd", "cd -", "cd $x", "cd a/../..", "pushd /", "cd ~"):
        report = classify_shell(f"{elsewhere} && touch a")
        assert not report.certain, elsewhere
        assert "it writes after changing the folder" in report.reasons
    assert classify_shell("cd /etc && cat passwd").effect is Effect.READ_ONLY
    assert classify_shell("cd /etc && touch /tmp/a").certain


def test_a_command_that_is_too_long_is_not_analysed() -> None:
    fits = "echo " + "a" * (MAX_COMMAND_BYTES - 5)
    assert classify_shell(fits).effect is Effect.READ_ONLY
    for long in (fits + "a", "echo " + "é" * (MAX_COMMAND_BYTES // 2)):
        report = classify_shell(long)
        assert (report.effect, report.certain) == (Effect.LOCAL_MUTATION, False)
        assert report.reasons == ("it is too long to analyse",)


@pytest.mark.parametrize("text", ["", " ", "\n\n", "# nothing", "  # nothing\n"])
def test_nothing_reads_only(text: str) -> None:
    assert classify_shell(text) == ShellReport(effect=Effect.READ_ONLY)


MANY = [
    "$(",
    "`",
    "((",
    "a<<b\n",
    "{a,b}",
    '"$(',
    "${a",
    "&",
    "a|",
    "{",
    "[[ ",
    "a=(",
    "case x in a) ",
    "$((1+",
]
MANY += [
    "0x1 ",
    "<(",
    "a;",
    "a=b ",
    "eval ",
    "env ",
    "xargs ",
    "$x ",
    "{1..9}",
    "find . -exec ",
    "awk /",
    "é",
]
MANY += ["bash -c 'ls' ;", "((a[1]))\n", "\\\n", 'echo "a$(b)" ;', "a=$((0x1 0x1 @))\n", "[[ -v x ]]\n", "! "]


# These took the grammar, or the search for the end of a here-document, up to nine seconds.
MANY += [
    "|",
    ",]",
    "}}",
    "`<<E\n",
    "`;<<E\n",
    "sed -e <<E\n--`\\",
    ">a ",
    "a=(",
    "<<E\nE\n",
    ",\n",
    "[*;x=sudo ",
]


@pytest.mark.sample(40)
@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", ["", "<([[ ", "\n)`'"])
@pytest.mark.parametrize("part", MANY)
def test_no_text_takes_long(part: str, end: str) -> None:
    text = part * ((MAX_COMMAND_BYTES - len(end)) // len(part.encode())) + end
    classify_shell("ls")  # loads the grammar
    began_s = time.thread_time()
    report = classify_shell(text)
    # Processor time of this thread, some 50 ms: anything worse than nearly linear takes seconds.
    assert time.thread_time() - began_s < 1
    assert len(report.reasons) <= 50
    assert all(len(reason) < 200 for reason in report.reasons)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo " + "a " * 4_000, "it has too many words to analyse"),
        ("echo " + "a,]" * 20_000, "it does not parse, or has too many words to analyse"),
        ("`<<E\n" * 2_000, "it has too many words to analyse"),
    ],
    ids=["words", "parts of a word", "here-documents"],
)
def test_a_text_of_too_many_words_is_uncertain(text: str, reason: str) -> None:
    report = classify_shell(text)
    assert not report.certain
    assert report.effect is not Effect.READ_ONLY
    assert reason in report.reasons


@pytest.mark.parametrize("wrapper", ["env ", "nice ", "time "])
def test_programs_that_run_programs_are_followed_so_far(wrapper: str) -> None:
    """Each of them is looked at with all words after it: thousands took the event loop 0.15 s."""
    assert classify_shell(wrapper * 5 + "ls").certain
    report = classify_shell(wrapper * 1_800 + "ls")
    assert not report.certain
    assert report.effect is not Effect.READ_ONLY


def test_a_long_document_is_analysed() -> None:
    lines = "\n".join(f"line {number} of (a, b) and [c];" for number in range(1_500))
    report = classify_shell(f"cat <<'END'\n{lines}\nEND\n")
    assert (report.effect, report.certain) == (Effect.READ_ONLY, True)


def test_importing_the_package_does_not_load_the_grammar() -> None:
    code = (
        "import sys, aisotools, aisotools.policy.shell.classify; assert 'tree_sitter' not in sys.modules; "
        "aisotools.classify_shell('ls'); assert 'tree_sitter' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_names_are_public() -> None:
    assert {"classify_shell", "ShellReport"} <= set(dir(aisotools))
    assert aisotools.__getattr__("classify_shell") is classify_shell
    assert aisotools.__getattr__("ShellReport") is ShellReport


# ---- commands that could be tried, and scripts


@pytest.mark.parametrize(
    ("command", "unknown"),
    [
        ("frob a", (("frob", "a"),)),
        ("frob a | head", (("frob", "a"),)),
        ("frob a; nicate 'b c'", (("frob", "a"), ("nicate", "b c"))),
        ("sort --frob a", (("sort",),)),
        ("frob a > out", ()),
        ("frob a; rm b", ()),
        ("frob a; python b.py", ()),
        ("frob a; curl example.org", ()),
        ("frob $a", ()),
        ("cd b; frob a", ()),
        ("env -C b frob a", ()),
        ("ls | xargs frob", ()),
        ("find . -exec frob {} +", ()),
        ("nice frob a", (("frob", "a"),)),
        ("ls", ()),
    ],
)
def test_unknown_commands_are_listed_if_they_are_the_only_doubt(
    command: str, unknown: tuple[tuple[str, ...], ...]
) -> None:
    report = classify_shell(command)
    assert report.unknown == unknown
    assert not (unknown and report.certain)


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("./run.sh a", "./run.sh"),
        ("bash run.sh a", "run.sh"),
        ("sh -e run.sh", "run.sh"),
        ("cd bin && ./run.sh", "bin/./run.sh"),
        ('"$WORKSPACE/run.sh"', "$WORKSPACE/run.sh"),
    ],
)
def test_a_script_is_among_what_is_read(command: str, script: str) -> None:
    report = classify_shell(command)
    assert script in report.reads
    assert not report.certain


@pytest.mark.parametrize(
    "command", ["grep --dereference-recur x y", "grep --dereference x y", "rg --foll x", "sort --files0 a"]
)
def test_shortened_options_are_classified_whatever_they_do(command: str) -> None:
    assert not classify_shell(command).certain


@pytest.mark.parametrize(
    ("command", "is_certain"),
    [
        ("nm a.o @opts", False),
        ("nm *.o", False),  # one of the names may begin with `@`
        ("nm ./*.o", True),
        ("strings @opts", False),
        ("strings *", True),  # no argument of strings runs or writes anything
        ("javap @opts", False),
        ("/usr/bin/nm @opts", False),
        ("cat @opts", True),
    ],
)
def test_arguments_that_stand_in_a_file_are_not_known(command: str, is_certain: bool) -> None:
    report = classify_shell(command)
    assert report.certain is is_certain
    assert ("opts" in report.reads) is (not is_certain and "@" in command)


def test_in_an_uncertain_command_what_marks_set_apart_is_named() -> None:
    named = classify_shell("frob name@a/b file://%2Fc x=@d e:f:g --opt=k=v").named
    assert {"a/b", "/c", "d", "e", "f", "g", "v"} <= set(named)
