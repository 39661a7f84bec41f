"""Programs of bioinformatics: those that print, and the options by which they write files.

Some take a URL for a file, and many write an index beside the file that they look into.
"""

from __future__ import annotations

import re

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, literal, without_beginning
from aisotools.policy.shell.options import (
    NO_EFFECT,
    CommandSpec,
    CommandVerdict,
    Words,
    has_effect,
    merge,
    option_verdict,
    parse_options,
    reads,
    reads_or_contacts,
    role_verdict,
    uncertain,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands

_SAM_GLOBAL = "-@: --threads: --verbosity: --no-PG --input-fmt: --input-fmt-option: --reference:u -T:u"
_SAM_VIEW = (
    "-bCSuh1HcBMnpPX -t:r -L:i -r: -R:r -N:i -q: -l: -m: -f: -F: -G: -s: -d: -D:r -e: -x: -O: -o:W -U:w "
    "--rf: --incl-flags: --ff: --excl-flags: --expr: --with-header --header-only --no-header --count "
    "--bam --fast "
    "--uncompressed --min-MQ: --read-group: --target-file:i --targets-file:i --require-flags: "
    "--exclude-flags: "
    "--subsample: --subsample-seed: --output-fmt: --output:W --unoutput:w --tag: --min-qlen: --library: "
    "--use-index "
    "--remove-tag: --qname-file:i --add-flags: --remove-flags: --write-index!c --save-counts:w --fetch-pairs "
    "--customized-index"
)
_SAM_SHOW = (
    "-aAbdHJsxXmDgGw -r: -q: -Q: -l: -m: -f: -b:i -d: -o:W -O: -c: -i: -p: -t:r -S:c -I: -n: --region: "
    "--min-MQ: "
    "--histogram --ascii --n-bins: --rf: --ff: --incl-flags: --excl-flags: --coverage: --depth: "
    "--no-header --bins: "
    "--split:c -P:c --split-prefix:c "
    "-M -v -u --output:W --min-read-len: --ref-seq:u --remove-dups --GC-depth: --sparse -V"
)
_BCF_VIEW = (
    "-hHGaIPpkKuUl -i: -e: -r: -R:r -t: -T:r -f: -s: -S:r -v: -V: -m: -M: -c: -C: -q: -Q: -g: -x -X -n "
    "-O: -o:W -l: -A -k "
    "-N -L --header-only --no-header --include: --exclude: --regions: --regions-file:r --targets: "
    "--targets-file:r "
    "--apply-filters: --samples: --samples-file:r --types: --exclude-types: --min-alleles: "
    "--max-alleles: --min-ac: "
    "--max-ac: --min-af: --max-af: --genotype: --drop-genotypes --known --novel --phased --uncalled "
    "--output-type: "
    "--output:W --output-file:W --threads: --trim-alt-alleles --no-update --no-version --force-samples "
    "--private "
    "--compression-level: --with-header --write-index?c -W?c --regions-overlap: --targets-overlap: "
    "--soft-filter: --mode: "
    "--set-GTs: --SnpGap: --IndelGap: --format: --list-samples --print-header --allow-undef-tags "
    "--print-filtered: "
    "--collapse: --nfiles: --complement --prefix:w -p:w --apply-filters --depth: --samples-list: -d: "
    "--fasta-ref:u "
    "-F:u --af-bins: --af-tag: --1st-allele-only --split-by-ID --exons:r -E:r --user-tstv: --verbose "
    "--allow-no-header "
    "--stats --nrecords -s --all"
)
_BED = (
    "-a:i -b:i -i:i -g:r -f: -F: -r -e -s -S -u -c: -v -wa -wb -wo -wao -loj -bed -header -split -sorted "
    "-d? -D: -t: -N -io -iu "
    "-id -fu -fd -k: -mdb: -names: -filenames -sortout -nonamecheck -bg -bga -ibam:i -max: -scale: "
    "-strand: -5 -3 -pc -fs -dz -du "
    "-trackline -trackopts: -l: -o: -delim: -prec: -w: -n: -l -r: -m: -hist -counts -mean -iobuf: -ubam "
    "-abam:i -sw -sm -Sm -p: "
    "-pct -L -sizeA -sizeD -chrThenSizeA -chrThenSizeD -chrThenScoreA -chrThenScoreD -faidx:r -seed: "
    "-excl:r -incl:r -noOverlapping "
    "-bed12 -cigar -tag: -ed -color: -mate1 -bedpe -splitD -empty -full -ignorecase -both -files:i -q: "
    "-h -C -A"
)


def _classify_samtools_view(words: Words) -> CommandVerdict:
    """Return the verdict on a subcommand of samtools that prints; a second operand is a region."""
    parsed = parse_options(words, f"{_SAM_GLOBAL} {_SAM_VIEW}", allow_dynamic=True)
    return merge([option_verdict(parsed), *(_alignment(word) for word in parsed.operands[:1])])


def _alignment(word: Word) -> CommandVerdict:
    if word.display.endswith(".cram"):
        return merge(
            [reads_or_contacts(word), uncertain("for a CRAM file the reference may come from the network")]
        )
    return reads_or_contacts(word)


def _classify_each_alignment(words: Words) -> CommandVerdict:
    parsed = parse_options(words, f"{_SAM_GLOBAL} {_SAM_SHOW}", allow_dynamic=True)
    if words[0].text == "depth" and (listed := parsed.value("-f")) is not None:
        return merge(
            [option_verdict(parsed), role_verdict("L", listed, ""), *map(_alignment, parsed.operands)]
        )
    return merge([option_verdict(parsed), *map(_alignment, parsed.operands)])


def _classify_tabix(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words,
        "-hHlDcC0f -p:c -s:c -b:c -e:c -S:c -c: -R:r -T:r -r:r -m: -@: --print-header --only-header "
        "--list-chroms "
        "--regions:r --targets:r --reheader:u --preset:c --sequence:c --begin:c --end:c --force!c --csi "
        "--cache: "
        "--separate-regions --verbosity: --threads:",
        allow_dynamic=True,
    )
    shows = parsed.has("-l", "-H", "--list-chroms", "--only-header", "-R", "-T") or len(parsed.operands) > 1
    verdicts = [option_verdict(parsed), *map(reads_or_contacts, parsed.operands[:1])]
    if parsed.operands and not shows:
        verdicts.append(uncertain("tabix writes an index"))
    return merge(verdicts)


_BCF_FILE = re.compile(r"@([^\s&|()'\"]+)")


def _classify_bcftools(words: Words) -> CommandVerdict:
    """Return the verdict on a subcommand of bcftools: its expressions may name files, or a script of Perl."""
    counts = " -n:" if words[0].text == "isec" else ""
    parsed = parse_options(words, _BCF_VIEW + counts)
    verdicts = [option_verdict(parsed), *map(reads_or_contacts, parsed.operands)]
    for option in parsed.options:
        if option.name not in {"-i", "-e", "--include", "--exclude"} or option.value is None:
            continue
        if option.value.text is None or "perl" in option.value.text.lower():
            verdicts.append(uncertain(f"the expression {option.value.display} may run a script"))
        else:
            verdicts += [reads(literal(path)) for path in _BCF_FILE.findall(option.value.text)]
    return merge(verdicts)


def _classify_vcftools(words: Words) -> CommandVerdict:
    """Return the verdict on vcftools, which prints with `--stdout` and otherwise writes files."""
    files = map(reads, parse_options(words, "*").operands)
    others = any(word.prefix.startswith(_VCFTOOLS_WRITES) for word in words[1:])
    prints = any(word.text in {"--stdout", "-c"} for word in words[1:])
    writes = any(word.prefix.startswith(("--out", "--temp")) or word.text is None for word in words[1:])
    if prints and not writes and not others:
        return merge(files)
    return merge([uncertain("vcftools writes files"), *files])


_VCFTOOLS_WRITES = ("--plink", "--012", "--IMPUTE", "--BEAGLE", "--ldhat", "--diff")


def _classify_ucsc(words: Words) -> CommandVerdict:
    """Return the verdict on a converter of UCSC: the second operand is written, unless it is `stdout`."""
    operands = [word for word in words[1:] if not word.prefix.startswith("-")]
    verdicts = [role_verdict("i", word, "") for word in operands[:1]]
    verdicts += [
        reads(without_beginning(word, word.prefix.index("=") + 1))
        for word in words[1:]
        if word.prefix.startswith(("-seqList=", "-bed="))
    ]
    targets = operands[1:]
    if operands and [word.text for word in targets] not in (["stdout"], ["/dev/stdout"]):
        verdicts.append(
            role_verdict("w", targets[0], "") if targets else uncertain("where it writes is unknown")
        )
    if any(word.text is None or "udc" in word.prefix for word in words[1:] if word.prefix.startswith("-")):
        verdicts.append(uncertain("its options are unknown"))
    return merge(verdicts)


def _classify_usage(words: Words) -> CommandVerdict:
    """Return the verdict on a program that prints its usage if it gets nothing to work on."""
    is_subcommand = (
        len(words) == 2 and (words[1].text or "").isalpha() and words[0].text in {"bwa", "bwa-mem2"}
    )
    return NO_EFFECT if len(words) == 1 or is_subcommand else uncertain(f"{words[0].display} writes files")


_SEQKIT = (
    "-aTbenNilsqrRvpgGuFIPQdDBCHJtXjkKwWmMyS1 -p: -f:r -n: -j: -o:W -w: -t: -r: -s: "
    "-m: -M: -l: -g: -k: -c: -R: "
    "--pattern: --pattern-file:r --by-name --by-seq --number: --threads: --out-file:W "
    "--line-width: --seq-type: "
    "--all --tabular --name --only-id --region: --bed:r --gtf:r --min-len: --max-len: "
    "--reverse --complement --seq "
    "--qual --ignore-case --use-regexp --invert-match --gc --length --header-line "
    "--rand-seed: --proportion: --quiet "
    "--id-regexp: --infile-list:r --basename --skip-err --remove-gaps --upper-case "
    "--lower-case --validate-seq "
    "--rna2dna --dna2rna --only-name --delete-matched --degenerate --max-mismatch: --count "
    "--by-length --two-pass!c "
    "--update-faidx!c --N50: --fq-encoding: --gap-letters: --stdin-label: --compress-level:"
)


def _classify_seqkit_subseq(words: Words) -> CommandVerdict:
    """Return the verdict on `seqkit subseq`, which writes an index beside each file."""
    parsed = parse_options(words, _SEQKIT)
    verdicts = [option_verdict(parsed), *map(reads_or_contacts, parsed.operands)]
    if parsed.operands:
        verdicts.append(has_effect(Effect.LOCAL_MUTATION, "seqkit subseq writes an index beside the file"))
    return merge(verdicts)


COMMANDS = (
    CommandSpec(
        names="samtools",
        classify=subcommands(
            Subcommand(names="view", classify=_classify_samtools_view),
            Subcommand(
                names="flagstat, idxstats, stats, depth, coverage, quickcheck, head, samples, bedcov",
                classify=_classify_each_alignment,
            ),
            Subcommand(names="flags, help, version"),
            reason="writes files",
            alone=True,
        ),
        info_arguments="--version --help help version --version-only",
    ),
    CommandSpec(
        names="bcftools",
        classify=subcommands(
            Subcommand(names="view, query, filter, stats, head, gtcheck, isec", classify=_classify_bcftools),
            Subcommand(
                names="index --nrecords, index -n, index -s, index --stats, index --all",
                options="-nsa --nrecords --stats --all",
                operands="i",
            ),
            Subcommand(names="help, version"),
            reason="writes files",
            alone=True,
        ),
        info_arguments="--version --help -v -h version",
    ),
    CommandSpec(
        names="bedtools",
        classify=subcommands(
            Subcommand(
                names="intersect, merge, closest, genomecov, coverage, subtract, window, makewindows, "
                "jaccard, fisher, sort, "
                "complement, cluster, slop, flank, shift, map, groupby, annotate, multiinter, unionbedg, "
                "bamtobed, bed12tobed6, "
                "expand, overlap, spacing, summary, random, shuffle, sample, multicov, pairtobed, "
                "pairtopair, reldist, igv",
                options=_BED,
                operands="i",
                one_dash=True,
            ),
            reason="writes files",
            alone=True,
            helps="--help -h",
        ),
        info_arguments="--version --help -h",
    ),
    CommandSpec(
        names="seqkit",
        classify=subcommands(
            Subcommand(
                names="stats, stat, fx2tab, tab2fx, grep, seq, head, head-genome, locate, "
                "sample, sort, rmdup, range, "
                "sliding, translate, fq2fa, watch-stdin, duplicate, common, rename, replace, restart, "
                "shuffle, concat, amplicon, "
                "sum, fish, merge-slides, convert, version, bam --help",
                options=_SEQKIT,
                operands="i",
                allow_dynamic=False,
            ),
            Subcommand(names="subseq", classify=_classify_seqkit_subseq),
            reason="writes files",
            helps="--help -h",
        ),
        info_arguments="--help -h version",
    ),
    CommandSpec(
        names="seqtk",
        classify=subcommands(
            Subcommand(
                names="seq, comp, sample, subseq, fqchk, mergepe, mergefa, trimfq, hety, gc, "
                "mutfa, famask, cutN, gap, listhet, "
                "rename, randbase, size, telo, hpc",
                options="*",
                operands="r",
            ),
            reason="writes files",
            alone=True,
        ),
    ),
    CommandSpec(names="tabix", classify=_classify_tabix, info_arguments="--version --help -h"),
    CommandSpec(names="htsfile", options="-chv -H --copy!u --header-only --view --verbose", operands="i"),
    CommandSpec(names="vcftools", classify=_classify_vcftools, info_arguments="--version --help"),
    CommandSpec(
        names="bigWigInfo bigBedInfo bigWigSummary bigBedSummary faSize faCount twoBitDup",
        options="-chroms -zooms -minMax -extraIndex -as -detailed -tab -veryDetailed -summary -dinuc "
        "-strands -fields -udcDir:u -type:",
        one_dash=True,
        operands="i",
    ),
    CommandSpec(
        names="bigWigToBedGraph bigWigToWig bigBedToBed twoBitInfo twoBitToFa", classify=_classify_ucsc
    ),
    CommandSpec(
        names="esl-seqstat esl-alistat",
        options="-ah1 --dna --rna --amino --informat: --small --comptbl --rinfo!u --icinfo!u --list!u "
        "--cinfo!u --pcinfo!u --psinfo!u --iinfo!u --bpinfo!u",
        operands="r",
        info_arguments="-h",
    ),
    CommandSpec(
        names="hmmstat",
        options="-h --eval2score --score2eval -Z: --baseZ: --baseZ1: --noali -E: -S:",
        operands="r",
        info_arguments="-h",
    ),
    CommandSpec(
        names="bowtie-inspect bowtie2-inspect hisat2-inspect",
        options="-snev -a: --summary --names --across: --verbose -o:w --output:w --snp --ss --ss-all --exon "
        "--large-index --version --help -h",
        one_dash=False,
        operands="r",
        info_arguments="--version --help -h",
    ),
    CommandSpec(
        names="bwa bwa-mem2 bedGraphToBigWig bedToBigBed wigToBigWig liftOver faToTwoBit gtfToGenePred "
        "genePredToBed",
        classify=_classify_usage,
        info_arguments="--version version",
    ),
    CommandSpec(
        names="blastdbcmd",
        options="-db: -dbtype: -entry: -entry_batch:r -info -list:r -recursive -outfmt: -range: -strand: "
        "-target_only -taxids: -tax_info "
        "-line_length: -show_blastdb_search_path -metadata -version -help -h -out:w -logfile:w",
        one_dash=True,
        operands=".",
        info_arguments="-version -help -h",
    ),
    CommandSpec(
        names="blastn blastp blastx tblastn tblastx psiblast rpsblast makeblastdb deltablast "
        "blast_formatter dustmasker",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason="writes files, and reports its use to its makers",
        certain=False,
        info_arguments="-version -help -h",
    ),
    CommandSpec(
        names="kraken2-inspect",
        options="--db: --skip-counts --use-mpa-style --report-zero-counts --threads: --memory-mapping",
        operands=".",
    ),
    CommandSpec(
        names="nw_display nw_labels nw_stats nw_topology nw_distance nw_prune nw_reroot nw_clade nw_order",
        options="-sSrdILRtlva -w: -i: -l: -b: -m: -s: -f: -n: -c:",
        operands="r",
    ),
    CommandSpec(
        names="vdb-dump",
        options="-IrEN -R: -C: -T: -f: --info --id_range --version --help -V -h",
        operands="i",
        effect=Effect.REMOTE_ACTION,
        reason="may fetch the run",
        certain=False,
        info_arguments="--help --version -h -V",
    ),
    CommandSpec(
        names="singularity apptainer",
        classify=subcommands(
            Subcommand(
                names="cache list, version, help, sif list, sif header, remote list, instance list, "
                "plugin list",
                options="-v --verbose --type: -T:",
            ),
            options="-dqsv --quiet --silent --verbose --debug --nocolor",
            reason="runs what is in an image",
            helps="--help -h",
        ),
        info_arguments="--version --help -h version",
    ),
)
