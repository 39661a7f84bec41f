"""Viewers, tables, pictures and sound."""

from __future__ import annotations

from aisotools.policy.shell.commands.documents import COMMANDS
from tests.policy.shell.commands.verdicts import PathsAndHosts, wrong_effects, wrong_paths_and_hosts

EFFECTS = [
    ("less a", "read_only"),
    ("less +G a", "read_only"),
    ("less '+!x' a", "local_mutation?"),
    ("less -o x a", "local_mutation"),
    ("more a", "read_only"),
    ("bat -p a", "read_only"),
    ("bat cache --build", "local_mutation?"),
    ("man ls", "read_only"),
    ("man -P ./x ls", "local_mutation?"),
    ("pdftotext a -", "read_only"),
    ("pdftotext a", "local_mutation?"),
    ("pdftotext a b", "local_mutation"),
    ("pandoc a -t plain", "read_only"),
    ("pandoc a -o b", "local_mutation?"),
    ("pandoc -t ./x.lua a", "local_mutation?"),
    ("exiftool -s a", "read_only"),
    ("exiftool -Artist=me a", "local_mutation?"),
    ("exiftool -if x a", "local_mutation?"),
    ("identify a.png", "read_only"),
    ("identify 'msl:x'", "local_mutation?"),
    ("ffprobe a.mp4", "read_only"),
    ("ffprobe http://h/a", "remote_action"),
    ("ffmpeg -version", "read_only"),
    ("ffmpeg -i a b", "local_mutation?"),
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
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


PATHS_AND_HOSTS: list[PathsAndHosts] = [
    ("mlr --csv cat a b", ("a", "b"), (), ()),
    ("mlr --csv cat then head -n 1 a b", ("1", "a", "b"), (), ()),
    ("mlr --csv put -q '$x = 1' a b", ("a", "b"), (), ()),
    ("mlr --csv filter '$x > 1' then template -t a b", ("a", "a", "b"), (), ()),
    ("mlr --csv template -t a then cat b", ("a", "b"), (), ()),
]
"""Each command with what it reads, writes and talks to."""


def test_paths_and_hosts() -> None:
    assert wrong_paths_and_hosts(COMMANDS, PATHS_AND_HOSTS) == {}
