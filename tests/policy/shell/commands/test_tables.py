"""Tables and arrays."""

from __future__ import annotations

from aisotools.policy.shell.commands.tables import COMMANDS
from tests.policy.shell.commands.verdicts import PathsAndHosts, wrong_effects, wrong_paths_and_hosts

EFFECTS = [
    ("csvlook a", "read_only"),
    ("csvsql --query 'select 1' a", "read_only"),
    ("csvsql --query 'drop table a' a", "local_mutation?"),
    ("mlr --csv put '$z = 1' a", "read_only"),
    ("mlr --csv put 'tee > \"x\", $*' a", "local_mutation?"),
    ("mlr -I --csv cat a", "local_mutation?"),
    ("xsv stats a", "read_only"),
    ("xsv index a", "local_mutation?"),
    ("parquet-tools schema a", "read_only"),
    ("parquet-tools schema s3://b/a", "remote_action"),
    ("h5dump -H a", "read_only"),
    ("h5dump -o x a", "local_mutation"),
    ("ncdump -h a", "read_only"),
    ("csvcut --frob a", "local_mutation?"),
    ("csvtk plot hist a", "local_mutation?"),
    ("csvtk headers a", "read_only"),
    ("csvtk sort -L 1:a b", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


PATHS_AND_HOSTS: list[PathsAndHosts] = [
    ("mlr --csv cat a b", ("a", "b"), (), ()),
    ("mlr --csv cat then head -n 1 a b", ("1", "a", "b"), (), ()),
    ("mlr --csv put -q '$x = 1' a b", ("a", "b"), (), ()),
    ("mlr --csv filter '$x > 1' then template -t a b", ("a", "a", "b"), (), ()),
    ("mlr --csv template -t a then cat b", ("a", "b"), (), ()),
    ("csvgrep -i -c 1 -f a b", ("a", "b"), (), ()),
    ("csvsort -r a", ("a",), (), ()),
    ("csvstack -n x a b", ("a", "b"), (), ()),
    ("in2csv -f fixed -s a b", ("a", "b"), (), ()),
    ("xsv headers -j a", ("a",), (), ()),
    ("xsv stats -j 4 a", ("a",), (), ()),
    ("xsv search -i a b", ("a", "b"), (), ()),
    ("xsv slice -i 4 a", ("a",), (), ()),
    ("csvtk join -p a b", ("a", "b"), (), ()),
    ("csvtk grep -p x a", ("a",), (), ()),
    ("csvtk freq -k a", ("a",), (), ()),
    ("csvtk sort -k 1 a", ("a",), (), ()),
    ("parquet-tools dump -n a", ("a",), (), ()),
    ("parquet-tools head -n 3 a", ("a",), (), ()),
    ("pqrs cat -c a", ("a",), (), ()),
    ("parq a --head 3", ("a", "3"), (), ()),
    ("h5dump -A a", ("a", "a"), (), ()),
    ("h5dump -o a", ("a",), ("a",), ()),
    ("h5dump -a x b", ("b", "b"), (), ()),
    ("h5ls -w 80 a", ("a",), (), ()),
    ("h5stat -a 3 b", ("b",), (), ()),
    ("h5stat -A b", ("b",), (), ()),
    ("h5diff -d 0.1 a b", ("a", "b"), (), ()),
]
"""Each command with what it reads, writes and talks to."""


def test_paths_and_hosts() -> None:
    assert wrong_paths_and_hosts(COMMANDS, PATHS_AND_HOSTS) == {}
