"""Programs of bioinformatics: what prints, and what writes an index or a file."""

from __future__ import annotations

from aisotools.policy.shell.commands.biology import COMMANDS
from tests.policy.shell.commands.verdicts import PathsAndHosts, wrong_effects, wrong_paths_and_hosts

EFFECTS = [
    ("samtools view a.bam", "read_only"),
    ("samtools view -o b a.bam", "local_mutation"),
    ("samtools view https://h/a.bam", "remote_action"),
    ("samtools view a.cram", "local_mutation?"),
    ("samtools view $x", "local_mutation?"),
    ("samtools view d/$x.bam", "read_only"),
    ("samtools index a", "local_mutation?"),
    ("samtools sort --help", "read_only"),
    ("bcftools view -H a", "read_only"),
    ("bcftools index a", "local_mutation?"),
    ("bcftools index -n a", "read_only"),
    ("bedtools merge -i a", "read_only"),
    ("bedtools getfasta -fi a -bed b", "local_mutation?"),
    ("seqkit stats a", "read_only"),
    ("seqkit seq -o b a", "local_mutation"),
    # Whether these options take a value differs between the subcommands.
    ("seqkit sort -r a", "read_only"),
    ("seqkit sort -r -o b a", "local_mutation"),
    ("seqkit sort -rob a", "local_mutation"),
    ("seqkit seq -g --out-file b a", "local_mutation"),
    ("seqkit locate -p A --bed -o b a", "local_mutation"),
    ("seqkit rmdup -D b a", "local_mutation"),
    ("seqkit rename -m a", "local_mutation"),
    ("seqkit sort -2 a", "local_mutation"),
    ("samtools coverage -m a", "read_only"),
    ("samtools coverage -m -o b a", "local_mutation"),
    ("samtools samples -iob a", "local_mutation"),
    ("bcftools query -l a", "read_only"),
    ("bcftools query -l -o b a", "local_mutation"),
    ("bcftools isec -n=2 -w1 a b", "read_only"),
    ("bcftools isec -p d a b", "local_mutation"),
    ("seqtk comp a", "read_only"),
    ("tabix a chr1:1-2", "read_only"),
    ("tabix a", "local_mutation?"),
    ("vcftools --vcf a --freq --stdout", "read_only"),
    ("vcftools --vcf a --freq", "local_mutation?"),
    ("bigWigToBedGraph a stdout", "read_only"),
    ("bigWigToBedGraph a b", "local_mutation"),
    ("bwa", "read_only"),
    ("bwa index a", "local_mutation?"),
    ("blastn -query a", "local_mutation?"),
    ("singularity inspect a", "local_mutation?"),
    ("singularity exec a ls", "local_mutation?"),
]


def test_effect_and_certainty() -> None:
    assert wrong_effects(COMMANDS, EFFECTS) == {}


PATHS_AND_HOSTS: list[PathsAndHosts] = [
    ("bcftools query -l a", ("a",), (), ()),
    ("seqkit sort -r a", ("a",), (), ()),
    ("seqkit rmdup -D b a", ("a",), ("b",), ()),
    ("samtools coverage -m a", ("a",), (), ()),
    ("kraken2-inspect --db d", ("d",), (), ()),
    ("blastdbcmd -db d/x -info", ("d/x",), (), ()),
]
"""Each command with what it reads, writes and talks to."""


def test_paths_and_hosts() -> None:
    assert wrong_paths_and_hosts(COMMANDS, PATHS_AND_HOSTS) == {}
