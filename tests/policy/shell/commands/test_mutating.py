"""Programs that change things: what exactly they write, and when it is certain."""

from __future__ import annotations

from aisotools.policy.shell.commands import archives, interpreters, mutating
from tests.policy.shell.commands.verdicts import PathsAndHosts, wrong_effects, wrong_paths_and_hosts

COMMANDS = (*archives.COMMANDS, *interpreters.COMMANDS, *mutating.COMMANDS)


EFFECTS = [
    ("rm a", "destructive"),
    ("rm $x", "destructive?"),
    ("shred a", "destructive"),
    ("mkfs a", "destructive"),
    ("pkill a", "destructive"),
    ("reboot", "destructive"),
    ("cp a b", "local_mutation"),
    ("cp a b d", "local_mutation"),
    ("cp -t d a", "local_mutation"),
    ("cp $x b", "local_mutation?"),
    ("cp a $x", "local_mutation?"),
    ("cp -z a b", "local_mutation?"),
    ("mv a b", "local_mutation"),
    ("mv a /dev/null", "destructive"),
    ("mv a b d", "local_mutation"),
    ("mv *.txt d", "local_mutation?"),
    ("mkdir a", "local_mutation"),
    ("touch $x", "local_mutation?"),
    ("tee a", "local_mutation"),
    ("tee /dev/null", "read_only"),
    ("tee", "read_only"),
    ("chmod +x a", "local_mutation"),
    ("chmod 644 $x", "local_mutation?"),
    ("dd if=a", "read_only"),
    ("dd if=a of=b", "destructive"),
    ("dd of=/dev/sda", "destructive"),
    ("dd x", "local_mutation?"),
    ("dd $x", "local_mutation?"),
    ("dd bs=1", "read_only"),
    ("gzip a", "local_mutation"),
    ("gzip -c a", "read_only"),
    ("gzip -l a", "read_only"),
    ("gzip", "read_only"),
    ("gunzip -k a", "local_mutation"),
    ("gzip -t a", "read_only"),
    ("zcat a", "read_only"),
    ("unzip a", "local_mutation?"),
    ("unzip -l a", "read_only"),
    ("unzip -p a b", "read_only"),
    ("unzip -lT a", "local_mutation?"),
    ("unzip -d x -l a", "local_mutation"),
    ("tar tf a", "read_only"),
    ("tar -tf a", "read_only"),
    ("tar --list -f a", "read_only"),
    ("tar xf a", "local_mutation?"),
    ("tar cf a b", "local_mutation?"),
    ("tar tf h:a", "local_mutation?"),
    ("tar tf $x", "local_mutation?"),
    ("tar $x", "local_mutation?"),
    ("tar -tf a --to-command=x", "local_mutation?"),
    ("tar tIf x a", "local_mutation?"),
    ("tar", "local_mutation?"),
    ("crontab -l", "read_only"),
    ("crontab -e", "local_mutation?"),
    ("crontab a", "local_mutation?"),
    ("crontab -r", "destructive?"),
    ("crontab", "local_mutation?"),
    ("vim a", "local_mutation?"),
    ("python a", "local_mutation?"),
    ("cargo a", "local_mutation?"),
    ("source a", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


PATHS_AND_HOSTS: list[PathsAndHosts] = [
    ("rm a", (), ("a",), ()),
    ("rm $x", (), ("$x",), ()),
    ("shred a", (), ("a",), ()),
    ("mkfs a", (), ("a",), ()),
    ("cp a b", ("a",), ("b",), ()),
    ("cp a b d", ("a", "b"), ("d/a", "d/b"), ()),
    ("cp -t d a", ("a",), ("d/a",), ()),
    ("cp -l a d/b", ("a",), ("d/b", "a"), ()),
    ("cp -al a d", ("a",), ("d", "a"), ()),
    ("cp --link a b d", ("a", "b"), ("d/a", "d/b", "a", "b"), ()),
    ("ln a d/b", ("a",), ("a", "d/b"), ()),
    ("ln -s a b", ("a", "b/a"), ("b",), ()),
    ("cp $x b", ("$x",), ("b",), ()),
    ("cp a $x", ("a",), ("$x",), ()),
    ("cp -z a b", ("a",), ("b",), ()),
    ("mv a b", (), ("a", "b"), ()),
    ("mv a /dev/null", (), ("a",), ()),
    ("mv a b d", (), ("a", "b", "d/a", "d/b"), ()),
    ("mv *.txt d", (), ("*.txt", "d"), ()),
    ("mkdir a", (), ("a",), ()),
    ("touch $x", (), ("$x",), ()),
    ("tee a", (), ("a",), ()),
    ("chmod +x a", (), ("a",), ()),
    ("chmod 644 $x", (), ("$x",), ()),
    ("dd if=a", ("a",), (), ()),
    ("dd if=a of=b", ("a",), ("b",), ()),
    ("dd of=/dev/sda", (), ("/dev/sda",), ()),
    ("gzip a", (), ("a",), ()),
    ("gzip -c a", ("a",), (), ()),
    ("gzip -l a", ("a",), (), ()),
    ("gunzip -k a", (), ("a",), ()),
    ("gzip -t a", ("a",), (), ()),
    ("zcat a", ("a",), (), ()),
    ("unzip a", ("a",), (), ()),
    ("unzip -l a", ("a",), (), ()),
    ("unzip -p a b", ("a",), (), ()),
    ("unzip -lT a", ("a",), (), ()),
    ("unzip -d x -l a", ("a",), ("x",), ()),
    ("crontab a", (), ("a",), ()),
    ("vim a", ("a",), (), ()),
    ("python a", ("a",), (), ()),
    ("cargo a", ("a",), (), ()),
    ("source a", ("a",), (), ()),
]
"""Each command with what it reads, writes and talks to."""


def test_paths_and_hosts() -> None:
    assert wrong_paths_and_hosts(COMMANDS, PATHS_AND_HOSTS) == {}
