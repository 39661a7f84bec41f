"""Programs that run others: which command they run, and when that is certain."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.commands.wrappers import COMMANDS
from tests.policy.shell.commands.verdicts import (
    PathsAndHosts,
    nested,
    verdict,
    wrong_effects,
    wrong_paths_and_hosts,
)

EFFECTS = [
    ("env", "read_only"),
    ("env ls", "read_only"),
    ("env LC_ALL=C ls", "read_only"),
    ("env PATH=. ls", "local_mutation?"),
    ("env $x ls", "local_mutation?"),
    ("env -S 'rm x'", "local_mutation?"),
    ("env -i - ls", "read_only"),
    ("env -C d ls", "read_only"),
    ("env -u X ls", "read_only"),
    ("nice ls", "read_only"),
    ("nice -n 5 ls", "read_only"),
    ("timeout 5 ls", "read_only"),
    ("timeout 5", "read_only"),
    ("time -o x ls", "local_mutation"),
    ("exec ls", "read_only"),
    ("command ls", "read_only"),
    ("command -v ls", "read_only"),
    ("command -p ls", "local_mutation?"),
    ("nohup ls", "local_mutation?"),
    ("sudo ls", "local_mutation?"),
    ("strace ls", "local_mutation?"),
    ("flock l ls", "local_mutation?"),
    ("watch ls", "read_only"),
    ("watch -n 2 -d 'ls | head'", "read_only"),
    ("watch -x ls -l", "read_only"),
    ("watch -n $(cat x) ls", "local_mutation?"),
    ("watch $x", "local_mutation?"),
    ("watch 'cat <<< a'", "local_mutation?"),  # it is run by sh
    ("watch --frob ls", "local_mutation?"),
    ("su -c ls", "local_mutation?"),
    ("bash -c ls", "read_only"),
    ("bash x", "local_mutation?"),
    ("bash", "local_mutation?"),
    ("bash -n x", "read_only"),
    ('bash -c "$x"', "local_mutation?"),
    ("bash -k -c ls", "local_mutation?"),
    ("zsh -c ls", "local_mutation?"),
    ("zsh -c 'cat \"$1\"' _ a", "local_mutation?"),
    ("ksh -c 'cat $x'", "local_mutation?"),
    ("sh -c 'cat \"$1\" | wc -l' _ a", "read_only"),
    ('dash -c \'for f in *.txt; do [ -f "$f" ] && cat "$f"; done\'', "read_only"),
    ("sh -c 'A=-delete :; find . $A'", "local_mutation?"),
    ("sh -c 'cat a'", "read_only"),
    ("sh -c '[[ a ]]'", "local_mutation?"),
    ("bash -n -c ls", "read_only"),
    ("bash -i -c ls", "local_mutation?"),
    ("eval ls", "read_only"),
    ("eval a b", "read_only"),
    ('eval "$x"', "local_mutation?"),
    ("eval", "read_only"),
    ("trap ls EXIT", "read_only"),
    ("trap - EXIT", "read_only"),
    ("trap", "read_only"),
    ("trap -- ls EXIT", "read_only"),
    ("trap -x EXIT", "local_mutation?"),
    ('trap "$x" EXIT', "local_mutation?"),
    ("coproc ls", "local_mutation?"),
    ("coproc x { ls", "local_mutation?"),
    ("xargs", "read_only"),
    ("xargs ls", "read_only"),
    ("xargs -I{} cat {}", "read_only"),
    ("xargs -I{} -n1 cat {}", "read_only"),
    ("xargs -i cat {}", "read_only"),
    ('xargs -I "$x" cat', "local_mutation?"),
    ("xargs -p ls", "local_mutation?"),
    ("xargs -a f ls", "read_only"),
    ("xargs --replace=X cat X", "read_only"),
    ("fd x", "read_only"),
    ("fd x -x ls", "read_only"),
    ("fd -Hx rm", "local_mutation?"),
    ("fd --exec=rm", "local_mutation?"),
    ("fd -l", "local_mutation?"),
    ("taskset -p 5", "read_only"),
    ("taskset -p 3 5", "local_mutation?"),
    ("taskset -p $x", "local_mutation?"),
    ("chrt -p 5", "read_only"),
    ("chrt -p 1 5", "local_mutation?"),
    ("numactl -H", "read_only"),
    ("numactl -H ls", "local_mutation?"),
    ("prlimit -p 5", "read_only"),
    ("prlimit -cunlimited -p 5", "local_mutation?"),
    ("prlimit -n=1 -p 5", "local_mutation?"),
    ("ionice -p 5", "read_only"),
    ("ionice -c 3 ls", "read_only"),
    ("ionice -c 3 -p 5", "local_mutation?"),
    ("find", "read_only"),
    ("find a -name b", "read_only"),
    ("find $x", "local_mutation?"),
    ('find "$x" -name a', "local_mutation?"),
    ("find a -delete", "destructive"),
    ("find a -exec ls {} \\;", "read_only"),
    ("find a -exec ls {} + -name b", "read_only"),
    ("find a -execdir ls {} \\;", "read_only"),
    ("find a -ok ls \\;", "read_only"),
    ("find a -fprint b", "local_mutation"),
    ("find a -fprintf b c -name d", "local_mutation"),
    ("find a -newermt x", "read_only"),
    ("find a -frob", "local_mutation?"),
    ("find a -name $x", "local_mutation?"),
    ("find -L a", "read_only"),
    ("find ! -name a", "read_only"),
    ("find a -exec rm", "read_only"),
    ('find "$x" -exec ls {} \\;', "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


PATHS_AND_HOSTS: list[PathsAndHosts] = [
    ("env -C d ls", ("d",), (), ()),
    ("time -o x ls", (), ("x",), ()),
    ("bash -n x", ("x",), (), ()),
    ("xargs -a f ls", ("f",), (), ()),
    ("find a -name b", ("a",), (), ()),
    ("find $x", ("$x",), (), ()),
    ('find "$x" -name a', ("$x",), (), ()),
    ("find a -delete", ("a",), ("a",), ()),
    ("find a -exec ls {} \\;", ("a",), (), ()),
    ("find a -exec ls {} + -name b", ("a",), (), ()),
    ("find a -execdir ls {} \\;", ("a",), (), ()),
    ("find a -ok ls \\;", ("a",), (), ()),
    ("find a -fprint b", ("a",), ("b",), ()),
    ("find a -fprintf b c -name d", ("a",), ("b",), ()),
    ("find a -newermt x", ("a",), (), ()),
    ("find a -frob", ("a",), (), ()),
    ("find a -name $x", ("a",), (), ()),
    ("find -L a", ("a",), (), ()),
    ("find a -exec rm", ("a",), (), ()),
    ('find "$x" -exec ls {} \\;', ("$x",), (), ()),
]
"""Each command with what it reads, writes and talks to."""


def test_paths_and_hosts() -> None:
    assert wrong_paths_and_hosts(COMMANDS, PATHS_AND_HOSTS) == {}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("env", []),
        ("fd x -x wc -l", ["wc -l …"]),
        ("fd x -x wc {} -l", ["wc {} -l"]),
        ("fd x -x cat {} \\; -H -X rm", ["cat {}", "rm …"]),
        ("fd -e -x rm", ["rm …"]),
        ("env ls", ["ls"]),
        ("env LC_ALL=C ls", ["ls"]),
        ("env PATH=. ls", ["ls"]),
        ("env $x ls", ["$x ls"]),
        ("env -S 'rm x'", ["rm x"]),
        ("env -i - ls", ["ls"]),
        ("env -C d ls", ["ls"]),
        ("env -u X ls", ["ls"]),
        ("nice ls", ["ls"]),
        ("nice -n 5 ls", ["ls"]),
        ("timeout 5 ls", ["ls"]),
        ("timeout 5", []),
        ("time -o x ls", ["ls"]),
        ("exec ls", ["ls"]),
        ("command ls", ["ls"]),
        ("command -v ls", []),
        ("command -p ls", ["ls"]),
        ("nohup ls", ["ls"]),
        ("sudo ls", ["ls"]),
        ("strace ls", ["ls"]),
        ("flock l ls", ["ls"]),
        ("watch ls", ["ls"]),
        ("watch -n 1 rm -r a", ["rm -r a"]),
        ("watch -x rm -r a", ["rm -r a"]),
        ("watch --frob rm -r a", ["rm a"]),
        ("bash -c ls", ["ls"]),
        ("bash x", []),
        ("bash", []),
        ("bash -n x", []),
        ('bash -c "$x"', []),
        ("bash -k -c ls", ["ls"]),
        ("zsh -c ls", ["ls"]),
        ("sh -c 'cat a'", ["cat a"]),
        ("sh -c '[[ a ]]'", ["[[ a ]]"]),
        ("bash -n -c ls", ["ls"]),
        ("bash -i -c ls", ["ls"]),
        ("eval ls", ["ls"]),
        ("eval a b", ["a b"]),
        ('eval "$x"', []),
        ("eval", [""]),
        ("trap ls EXIT", ["ls"]),
        ("trap - EXIT", []),
        ("trap", []),
        ("trap -- ls EXIT", ["ls"]),
        ("trap -x EXIT", []),
        ('trap "$x" EXIT', []),
        ("coproc ls", ["ls"]),
        ("coproc x { ls", ["ls"]),
        ("xargs", ["echo …"]),
        ("xargs ls", ["ls …"]),
        ("xargs -I{} cat {}", ["cat {}"]),
        ("xargs -I{} -n1 cat {}", ["cat {} …"]),
        ("xargs -i cat {}", ["cat {}"]),
        ('xargs -I "$x" cat', []),
        ("xargs -p ls", ["ls …"]),
        ("xargs -a f ls", ["ls …"]),
        ("xargs --replace=X cat X", ["cat X"]),
        ("find", []),
        ("find a -name b", []),
        ("find $x", []),
        ('find "$x" -name a', []),
        ("find a -delete", []),
        ("find a -exec ls {} \\;", ["ls {}"]),
        ("find a -exec ls {} + -name b", ["ls {}"]),
        ("find a -execdir ls {} \\;", ["ls {}"]),
        ("find a -ok ls \\;", ["ls"]),
        ("find a -fprint b", []),
        ("find a -fprintf b c -name d", []),
        ("find a -newermt x", []),
        ("find a -frob", []),
        ("find a -name $x", []),
        ("find -L a", []),
        ("find ! -name a", []),
        ("find a -exec rm", ["rm"]),
        ('find "$x" -exec ls {} \\;', ["ls {}"]),
    ],
)
def test_the_wrapped_command_is_judged_in_its_place(command: str, expected: list[str]) -> None:
    assert nested(COMMANDS, command) == expected


def test_a_wrapper_may_move_elsewhere() -> None:
    assert verdict(COMMANDS, "env -C d ls").folder == "d"
    assert verdict(COMMANDS, "env --chdir=d ls").folder == "d"
    assert verdict(COMMANDS, "env -C $x ls").folder is None
    assert verdict(COMMANDS, "env ls").folder == "."
    assert verdict(COMMANDS, "sudo --chdir=d ls").folder == "d"
    assert verdict(COMMANDS, "sudo -D d ls").folder == "d"


def test_words_that_xargs_adds_are_unknown() -> None:
    (words,) = verdict(COMMANDS, "xargs cat").commands
    assert words[-1].may_split
    assert words[-1].may_be_option
    (words,) = verdict(COMMANDS, "xargs -I{} cat a/{}").commands
    assert (words[-1].text, words[-1].prefix) == (None, "a/")
    assert not words[-1].may_be_option
    (words,) = verdict(COMMANDS, "xargs -I{} cat {}").commands
    assert words[-1].may_be_option


def test_paths_that_find_adds_begin_like_its_folders() -> None:
    (words,) = verdict(COMMANDS, "find a -exec cat {} +").commands
    assert words[-2].text is None or words[-1].text is None
    assert not any(word.may_be_option for word in words[1:])
    (words,) = verdict(COMMANDS, 'find "$x" -exec cat {} +').commands
    assert any(word.may_be_option for word in words[1:])


@pytest.mark.parametrize(
    ("command", "is_option"),
    [
        ("fd x -x file {}", True),  # old versions put nothing before a name
        ("fd x src -x file {}", False),
        ("fd x src sub -x file {.}", False),
        ("fd x src a -x file {}", True),
        ("fd x src -x file {/}", True),
        ("fd x src --search-path a -x file {}", True),
        ("fd x $d -x file {}", True),
    ],
)
def test_names_that_fd_finds_begin_as_their_folder_does(command: str, is_option: bool) -> None:
    (words,) = verdict(COMMANDS, command).commands
    assert words[1].may_be_option is is_option


@pytest.mark.parametrize(
    ("command", "spelling"),
    [
        ("strace -f rm -r a", "rm -r a"),
        ("strace -o x rm -r a", "rm -r a"),
        ("busybox rm -r a", "rm -r a"),
        ("taskset -c 1 nice rm -r a", "nice rm -r a"),
        ("watch --frob 1 rm -r a", "rm -r a"),
        ("su -c 'rm -r a' me", "rm -r a me"),
    ],
)
def test_rules_see_a_command_behind_options_that_may_have_values(command: str, spelling: str) -> None:
    found = verdict(COMMANDS, command)
    assert spelling in found.spellings
    assert not found.certain
