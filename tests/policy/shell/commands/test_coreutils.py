"""Programs that read and print, and the few options by which they do more."""

from __future__ import annotations

import pytest

from aisotools.policy.shell.classify import classify_shell
from aisotools.policy.shell.commands import coreutils, scripting
from tests.policy.shell.commands.verdicts import PathsAndHosts, wrong_effects, wrong_paths_and_hosts

COMMANDS = (*coreutils.COMMANDS, *scripting.COMMANDS)


EFFECTS = [
    ("cat a", "read_only"),
    ("cat $x", "read_only"),
    ("echo a", "read_only"),
    ("date", "read_only"),
    ("date +%F", "read_only"),
    ("date -s x", "local_mutation?"),
    ("date 0102", "local_mutation?"),
    ("date +$x", "local_mutation?"),
    ("date $x", "local_mutation?"),
    ("date --set=x", "local_mutation?"),
    ("date -u -d tomorrow +%s", "read_only"),
    ("sort a", "read_only"),
    ("sort -o a b", "local_mutation"),
    ("sort --compress-program=x a", "local_mutation?"),
    ("sort $x", "local_mutation?"),
    ("sort -k 2 a", "read_only"),
    ("uniq a", "read_only"),
    ("uniq a b", "local_mutation"),
    ("uniq -c a b", "local_mutation"),
    ("uniq a -c", "local_mutation"),
    ("shuf -o a b", "local_mutation"),
    ("tree -o a", "local_mutation"),
    ("tree -L 2", "read_only"),
    ("tree -Lo 2 x", "local_mutation?"),
    ("file a", "read_only"),
    ("file -C -m x", "local_mutation?"),
    ("xxd a", "read_only"),
    ("xxd a b", "local_mutation"),
    ("xxd -r a", "local_mutation?"),
    ("rg x a", "read_only"),
    ("rg --pre x a", "local_mutation?"),
    ("grep x a", "read_only"),
    ("grep $x a", "read_only"),
    ("zgrep $x a", "local_mutation?"),
    ("jq . a", "read_only"),
    ("jq -i . a", "local_mutation?"),
    ("yq -i . a", "local_mutation?"),
    ("nvidia-smi dmon -c 3 -s pu", "read_only"),
    ("nvidia-smi dmon -f x", "local_mutation"),
    ("nvidia-smi -c 3", "local_mutation?"),
    ("nvidia-smi drain", "local_mutation?"),
    ("fuser -v 80/tcp", "read_only"),
    ("fuser -vk 80/tcp", "destructive"),
    ("atq", "read_only"),
    ("iconv -o a b", "local_mutation"),
    ("base64 a", "read_only"),
    ("base64 -o a", "local_mutation?"),
    ("top -b", "read_only"),
    ("top", "local_mutation?"),
    ("sysctl a", "read_only"),
    ("sysctl a=1", "local_mutation?"),
    ("sysctl -w a", "local_mutation?"),
    ("sysctl $x", "local_mutation?"),
    ("getent passwd a", "read_only"),
    ("getent hosts a", "remote_action?"),
    ("getent", "remote_action?"),
    ("kill -l", "read_only"),
    ("kill -0 1", "read_only"),
    ("kill 1", "destructive"),
    ("kill -s 0 1", "read_only"),
    ("kill -s TERM 1", "destructive"),
    ("kill -n EXIT 1", "read_only"),
    ("kill", "destructive"),
    ("mount", "read_only"),
    ("mount a", "local_mutation?"),
    ("dmesg", "read_only"),
    ("dmesg -C", "destructive"),
    ("dmesg -n 1", "local_mutation?"),
    ("ss -t", "read_only"),
    ("ss -K", "destructive"),
    ("lsof a", "read_only"),
    ("lsof -D b", "local_mutation?"),
    ("hostname", "read_only"),
    ("hostname a", "local_mutation?"),
    ("hostname -F a", "local_mutation?"),
    ("journalctl -u a", "read_only"),
    ("journalctl --vacuum-size=1", "destructive"),
    ("journalctl --rotate", "local_mutation?"),
    ("ifconfig", "read_only"),
    ("ifconfig a", "local_mutation?"),
    ("tput cols", "local_mutation?"),
    ("nvidia-smi -r", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


PATHS_AND_HOSTS: list[PathsAndHosts] = [
    ("cat a", ("a",), (), ()),
    ("cat $x", ("$x",), (), ()),
    ("sort a", ("a",), (), ()),
    ("sort -o a b", ("b",), ("a",), ()),
    ("sort --compress-program=x a", ("a",), (), ()),
    ("sort $x", ("$x",), (), ()),
    ("sort -k 2 a", ("a",), (), ()),
    ("uniq a", ("a",), (), ()),
    ("uniq a b", ("a",), ("b",), ()),
    ("uniq -c a b", ("a",), ("b",), ()),
    ("uniq a -c", ("a",), ("-c",), ()),
    ("shuf -o a b", ("b",), ("a",), ()),
    ("tree -o a", (".",), ("a",), ()),
    ("tree -Lo 2 x", ("2", "x"), (), ()),
    ("file a", ("a",), (), ()),
    ("file -C -m x", ("x",), (), ()),
    ("xxd a", ("a",), (), ()),
    ("xxd a b", ("a",), ("b",), ()),
    ("xxd -r a", ("a",), (), ()),
    ("rg x a", ("a",), (), ()),
    ("grep x a", ("a",), (), ()),
    ("grep $x a", ("a",), (), ()),
    ("zgrep $x a", ("a",), (), ()),
    ("jq . a", ("a",), (), ()),
    ("jq -i . a", ("a",), (), ()),
    ("yq -i . a", ("a",), (), ()),
    ("iconv -o a b", ("b",), ("a",), ()),
    ("base64 a", ("a",), (), ()),
    ("base64 -o a", ("a",), (), ()),
    ("lsof a", ("a",), (), ()),
    ("tput cols", ("cols",), (), ()),
    ("patch -i p.diff", ("p.diff",), (), ()),
    ("patch a p.diff", ("a", "p.diff"), ("a",), ()),
    ("patch --dry-run a p.diff", ("a", "p.diff"), (), ()),
    ("patch -d out -i p.diff", ("out/p.diff", "out"), (), ()),
    ("patch -dout -ip.diff", ("out/p.diff", "out"), (), ()),
    ("patch --directory=out --input=p.diff -o b", ("out/p.diff", "out"), ("out/b",), ()),
    ("patch -d out a ../p.diff", ("out/a", "out/../p.diff", "out"), ("out/a",), ()),
    ("patch -d out /a/b /p.diff", ("/a/b", "/p.diff", "out"), ("/a/b",), ()),
    ("patch -d a -d b -i p.diff", ("b/p.diff", "b"), (), ()),
]
"""Each command with what it reads, writes and talks to."""


SEARCHERS = [
    *(
        "grep -r x",
        "grep -rn x",
        "egrep -r x",
        "fgrep -rh x",
        "grep --recursive x",
        "grep -R x",
        "grep -d recurse x",
    ),
    *("grep -drecurse x", "grep --directories=recurse x", "grep --directories rec x", "grep -r -e x"),
    *(
        "grep -r --include=*.pem x",
        "grep -r --include='*.pem' x",
        "grep -r --inc=*.pem x",
        "grep -rf patterns",
    ),
    *(
        "grep -r -m*1 x",
        "grep -r $x y",
        "rg x",
        "rg -l x",
        "rg -e x",
        "rg --files",
        "ag x",
        "ack x",
        "pdfgrep -r x",
    ),
    *(
        "ls",
        "ls -l",
        "ls -w 80",
        "ls -lw 80",
        "ls --width 80",
        "ls -I '*.o'",
        "dir",
        "vdir -a",
        "du",
        "du -sh",
    ),
    *(
        "du -d 1",
        "du --max-depth 1",
        "du --max-depth=1",
        "tree",
        "tree -L 2",
        "exa -L 2",
        "eza --level 2",
        "lsd",
    ),
    *(
        "dust -d 1",
        "lsattr",
        "find",
        "find -name x",
        "find -L -type f",
        "find ! -name x",
        "fd",
        "fd x",
        "fdfind -e py",
    ),
    *("tokei", "scc", "cloc --by-file", "typos"),
]
"""Commands that read the folder that they run in, as they would with `.` behind them."""
NAMING_A_FILE = [
    *(
        "grep -r x a",
        "grep x",
        "grep -c x",
        "rg x a",
        "rg -e x a",
        "ls a",
        "ls -l a",
        "ls -lw 80 a",
        "du -sh a",
    ),
    *(
        "du -d 1 a",
        "tree -L 2 a",
        "find a -name x",
        "fd x a",
        "fd -e py --search-path a",
        "tokei a",
        "typos a",
    ),
    *("eza --level 2 a", "pdfgrep x a.pdf", "ag x a", "cat", "sort", "stat a", "grep -r x *.py"),
]


@pytest.mark.parametrize("command", SEARCHERS)
def test_folder_is_read_that_no_operand_names(command: str) -> None:
    assert "." in classify_shell(command).reads
    assert "sub/." in classify_shell(f"cd sub && {command}").reads


@pytest.mark.parametrize("command", NAMING_A_FILE)
def test_folder_is_not_read_where_a_file_is_named(command: str) -> None:
    assert "." not in classify_shell(command).reads


def test_paths_and_hosts() -> None:
    assert wrong_paths_and_hosts(COMMANDS, PATHS_AND_HOSTS) == {}
