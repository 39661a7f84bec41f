"""Archives and compressed files: what is listed or printed, and what is written."""

from __future__ import annotations

from aisotools.policy.shell.commands.archives import COMMANDS
from tests.policy.shell.commands.verdicts import wrong_effects

EFFECTS = [
    ("gzip -dc a", "read_only"),
    ("gzip a", "local_mutation"),
    ("pigz -l a", "read_only"),
    ("gzip -t $x", "read_only"),
    ("gzip $x", "local_mutation?"),
    ("xz -t $x", "local_mutation?"),
    ("zstd -dc a", "read_only"),
    ("zstd a", "local_mutation?"),
    ("zstd -c a -o b", "local_mutation"),
    ("unzstd a", "local_mutation?"),
    ("lz4 -dc a", "read_only"),
    ("lz4 a b", "local_mutation?"),
    ("bgzip -cd a", "read_only"),
    ("bgzip a", "local_mutation?"),
    ("tar xOf a b", "read_only"),
    ("tar xf a", "local_mutation?"),
    ("tar cf - a", "read_only"),
    ("tar -czf - -C d a --exclude=b", "read_only"),
    ("tar cf a.tar b", "local_mutation?"),
    ("tar c b", "local_mutation?"),  # where that goes depends on the system
    ("tar cf - -f a.tar b", "local_mutation?"),
    ("tar cf - -I ./x a", "local_mutation?"),
    ("tar cf - a --to-command=./x", "local_mutation?"),
    ("tar cf - --remove-files a", "local_mutation?"),
    ("tar cf - $x", "local_mutation?"),
    ("zcat $x", "read_only"),
    ("bzcat $x", "local_mutation?"),
    ("tar tf a --to-command=x", "local_mutation?"),
    ("tar -x --to-stdout -f a", "read_only"),
    ("unzip -p a", "read_only"),
    ("unzip a", "local_mutation?"),
    ("7z l a", "read_only"),
    ("7z x -so a", "read_only"),
    ("7z x a", "local_mutation?"),
    ("ar t a", "read_only"),
    ("ar r a b", "local_mutation?"),
    ("zless *.gz", "read_only"),
    ("zstdcat a", "read_only"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}
