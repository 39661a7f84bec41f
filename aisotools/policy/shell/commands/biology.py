"""Programs of bioinformatics: those that print, and the options by which they write files.

Some take a URL for a file, and many write an index beside the file that they look into.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, literal, name_set, without_beginning
from aisotools.policy.shell.options import (
    CommandSpec,
    ParsedCommand,
    Words,
    by_program,
    join_option_tables,
    option_verdict,
    parse_options,
    role_verdict,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    has_effect,
    merge,
    reads,
    reads_or_contacts,
    uncertain,
    writes,
)

_SAM_COMMON = "-@: --threads: --verbosity: --input-fmt:k --input-fmt-option:k --reference:u"
_SAM_GLOBAL = f"{_SAM_COMMON} --no-PG -T:u"
_SAM_VIEW = (
    "-bCSuh1HcBMnpPX -t:r -L:i -r: -R:r -N:i -q: -l: -m: -f: -F: -G: -s: -d: -D:p -e: -x: -O: -o:W -U:w "
    "--rf: --incl-flags: --ff: --excl-flags: --expr: --with-header --header-only --no-header --count "
    "--bam --fast "
    "--uncompressed --min-MQ: --read-group: --target-file:i --targets-file:i --require-flags: "
    "--exclude-flags: "
    "--subsample: --subsample-seed: --output-fmt: --output:W --unoutput:w --tag: --min-qlen: --library: "
    "--use-index "
    "--remove-tag: --qname-file:i --add-flags: --remove-flags: --write-index!c --save-counts:w --fetch-pairs "
    "--customized-index"
)
_SAM_SHOWS = {
    "flagstat": "-O: --output-fmt:",
    "idxstats": "-X",
    "stats": "-c: -d -X -f: -F: -i: -I: -l: -m: -P:c -q: -r:u -s -S:c -t:r -x -p -g: --coverage: "
    "--remove-dups --customized-index-file --required-flag: --filtering-flag: --GC-depth: --insert-size: "
    "--id: --read-length: --most-inserts: --split-prefix:c --trim-quality: --ref-seq:u --sam --split:c "
    "--target-regions:r --sparse --remove-overlaps --cov-threshold:",
    "depth": "-aXHJs -r: -b:r -f:L -g: -G: -l: -o:w -q: -Q: -d: -m: --min-BQ: --min-MQ: --incl-flags: "
    "--excl-flags: --require-flags:",
    "coverage": "-b:L -l: -q: -Q: -d: -m -A -D -o:w -H -w: -r: -h --bam-list:L --min-read-len: --min-MQ: "
    "--min-BQ: --rf: --ff: --depth: --histogram --ascii --plot-depth --output:w --no-header --n-bins: "
    "--region: --incl-flags: --excl-flags:",
    "quickcheck": "-vqu",
    "head": "-h: -n: --headers: --records:",
    "samples": "-hidX -T: -o:w -f:u -F:u",
    "dict": "-AH -a: -l:r -o:w -s: -u: --alias --alternative-name --no-header --assembly: --alt:r --output:w "
    "--species: --uri:",
    "fasta, fastq": "-nNOti -0:w -1:w -2:w -o:w -s:w -f: -F: -G: -T: -v: -c: --i1:w --i2:w --barcode-tag: "
    "--quality-tag: --index-format:",
    "bedcov": "-Xjc -Q: -g: -G: -d: --min-MQ:",
}
_BCF_COMMON = (
    "-i: -e: -r: -R:r -t: -T:r --include: --exclude: --regions: --regions-file:r --targets: "
    "--targets-file:r --regions-overlap: --targets-overlap: --threads: --verbosity:"
)
_BCF_WRITER = "-O: -o:W --output-type: --output:W --output-file:W -W?c --write-index?c --no-version"
_BCF_SHOWS = {
    # An option such as `-l` takes a value for some of them, and none for others.
    "view": f"{_BCF_WRITER} -hHGIakpPnuUxXA -c: -C: -f: -g: -l: -m: -M: -q: -Q: -s: -S:r -v: -V: "
    "--header-only --no-header --with-header --drop-genotypes --no-update --trim-alt-alleles "
    "--trim-unseen-allele --force-samples --known --novel --phased --exclude-phased --uncalled "
    "--exclude-uncalled --private --exclude-private --min-ac: --max-ac: --min-af: --max-af: "
    "--min-alleles: --max-alleles: --apply-filters: --genotype: --compression-level: --samples: "
    "--samples-file:r --types: --exclude-types:",
    "query": "-HluN -f: -F: -o:W -s: -S:r -v:L --format: --output:W --samples: --samples-file:r "
    "--vcf-list:L --print-header --list-samples --allow-undef-tags --force-samples --print-filtered: "
    "--disable-automatic-newline",
    "filter": f"{_BCF_WRITER} -g: -G: -m: -s: -S: -M:r --SnpGap: --IndelGap: --mode: --soft-filter: "
    "--set-GTs: --mask: --mask-file:r --mask-overlap:",
    "stats": "-1Iv -c: -d: -f: -s: -S:r -u: -E:r -F:u --1st-allele-only --split-by-ID --verbose "
    "--collapse: --depth: --apply-filters: --samples: --samples-file:r --user-tstv: --exons:r "
    "--fasta-ref:u --af-bins: --af-tag:",
    "head": "-h: -n: -s: --headers: --records: --samples:",
    "gtcheck": "-H -g:i -p: -P:r -s: -S:r -u: --homs-only --genotypes:i --pairs: --pairs-file:r "
    "--samples: --samples-file:r --use: --n-matches: --no-HWE-prob --dry-run --error-probability: -E:",
    "norm": f"{_BCF_WRITER} -aDNs -c: -d: -f:u -m: -w: --atomize --atom-overlaps: --check-ref: "
    "--remove-duplicates --rm-dup: --fasta-ref:u --force --keep-sum: --multiallelics: --do-not-normalize "
    "--old-rec-tag: --strict-filter --site-win:",
    "concat": f"{_BCF_WRITER} -aclnD -d: -f:L -q: -v: --allow-overlaps --compact-PS --rm-dups: "
    "--remove-duplicates --file-list:L --ligate --ligate-force --ligate-warn --naive --naive-force --min-PQ: "
    "--verbose:",
    "merge": f"{_BCF_WRITER} -0 -f: -F: -g:u -i: -l:L -L: -m: --force-samples --print-header --use-header:r "
    "--missing-to-ref --apply-filters: --filter-logic: --gvcf:u --info-rules: --file-list:L "
    "--local-alleles: --merge: --no-index",
    "annotate": f"{_BCF_WRITER} -k -a:i -c: -C:r -h:r -H: -I: -l: -m: -s: -S:r -x: --annotations:i "
    "--columns: --columns-file:r --force --header-line: --header-lines:r --set-id: --keep-sites "
    "--merge-logic: --mark-sites: --min-overlap: --pair-logic: --rename-annots:r --rename-chrs:r "
    "--samples: --samples-file:r --single-overlaps --remove:",
    "isec": f"{_BCF_WRITER} -C -c: -f: -n: -l:L -p:w -w: --complement --collapse: --apply-filters: "
    "--nfiles: --file-list:L --prefix:w --write:",
}
_BED = (
    "-a:i -b:i -i:i -g:r -e -S -u -v -wa -wb -wo -wao -loj -bed -header -split -sorted -t: -io -iu "
    "-id -fu -fd -k: -mdb: -names: -filenames -sortout -nonamecheck -bg -bga -ibam:i -max: -scale: "
    "-strand: -5 -3 -pc -fs -dz -du -trackline -trackopts: -o: -delim: -prec: -hist -counts -mean "
    "-iobuf: -ubam -abam:i -sw -sm -Sm -pct -L -sizeA -sizeD -chrThenSizeA -chrThenSizeD "
    "-chrThenScoreA -chrThenScoreD -faidx:r -seed: -excl:r -incl:r -noOverlapping -bed12 -cigar "
    "-tag: -ed -color: -mate1 -bedpe -splitD -empty -full -ignorecase -both -files:i -q: -h -C -A"
)
_BED_SUBCOMMANDS = {
    # An option such as `-c` takes a value for some of them, and none for others.
    "intersect": "-s -f: -F: -r -c",
    "window": "-c -w: -l: -r:",
    "closest, coverage, subtract, jaccard, fisher": "-s -f: -F: -r -d -D: -N -m",
    "map": "-s -f: -F: -r -c:",
    "merge, cluster": "-s -n -d: -c:",
    "groupby, expand": "-c:",
    "slop, flank": "-s -l: -r:",
    "shift": "-s: -m: -p:",
    "random, sample": "-s -l: -n:",
    "makewindows": "-s: -n: -w:",
    "shuffle, pairtobed, pairtopair": "-s -f:",
    "multicov": "-s -f: -r -p -D -F",
    "genomecov": "-d",
    "bed12tobed6": "-n",
    "sort, complement, annotate, multiinter, unionbedg, bamtobed, overlap, spacing, summary": "-s",
    "reldist, igv": "",
}


def _classify_samtools_view(words: Words) -> CommandVerdict:
    """Return the verdict on a subcommand of samtools that prints; a second operand is a region."""
    parsed = parse_options(words, f"{_SAM_GLOBAL} {_SAM_VIEW}", allow_dynamic=True)
    shows_header = parsed.has("-H", "--header-only") and {o.name for o in parsed.options} <= _SAM_HEADER
    look = reads_or_contacts if shows_header else _alignment
    files = parsed.operands[: 2 if parsed.has("-X", "--customized-index") else 1]
    verdicts = [option_verdict(parsed), *_marked_files(parsed, _SAM_LISTS)]
    return merge([*verdicts, *(look(word) for word in files)])


_SAM_LISTS = name_set("-N --qname-file -R --read-group-file")
_BCF_LISTS = name_set("-S --samples-file -T --targets-file -R --regions-file -M --mask-file")
_LIST_MARK = re.compile(r"\^|(?:qry|gt):\^?")
"""What may stand in front of a file with a list: all but what is in it, or for which of two files it is."""


def _marked_files(parsed: ParsedCommand, options: frozenset[str]) -> Iterator[CommandVerdict]:
    """Yield the verdicts on the files that have such a mark in front."""
    for name, _, value in parsed.options:
        if name in options and value is not None and (found := _LIST_MARK.match(value.prefix)):
            yield reads(without_beginning(value, found.end()))


_SAM_HEADER = name_set("-H --header-only -h --with-header --no-PG -S -@ --threads --verbosity")
"""Options with which the header is printed as text, for which no reference is looked up."""


def _alignment(word: Word) -> CommandVerdict:
    if word.display.endswith(".cram"):
        return merge(
            [reads_or_contacts(word), uncertain("for a CRAM file the reference may come from the network")]
        )
    return reads_or_contacts(word)


def _classify_each_alignment(words: Words) -> CommandVerdict:
    options = next(o for names, o in _SAM_SHOWS.items() if words[0].text in names.split(", "))
    parsed = parse_options(words, f"{_SAM_COMMON} {options}", allow_dynamic=True)
    return merge([option_verdict(parsed), *map(_alignment, parsed.operands)])


def _classify_tabix(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words,
        "-hHlDC0f -p:c -s:c -b:c -e:c -S:c -c: -R:r -T:r -r:r -m: -@: --print-header --only-header "
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
    parsed = parse_options(words, join_option_tables(_BCF_COMMON, _BCF_SHOWS[words[0].text or ""]))
    verdicts = [option_verdict(parsed), *map(reads_or_contacts, parsed.operands)]
    verdicts += _marked_files(parsed, _BCF_LISTS)
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
    "--alphabet-guess-seq-length: --compress-level: --id-ncbi --id-regexp: --infile-list:L -X:L -w: "
    "--line-width: -o:W --out-file:W --quiet --skip-file-check -t: --seq-type: -j: --threads:"
)
_SEQKIT_OPTIONS = {
    # An option such as `-r` takes a value for some of them, and none for others.
    "stats, stat": "-abeT --all --basename -E: --fq-encoding: -G: --gap-letters: --skip-err -i: "
    "--stdin-label: --tabular -N: --N: -S",
    "fx2tab": "-aqIgGHlnQis --alphabet --avg-qual -B: --base-content: -C: --base-count: "
    "--case-sensitive --gc --gc-skew --header-line --length --name --no-qual --only-id -b: "
    "--qual-ascii-base: --seq-hash",
    "tab2fx": "-b: --buffer-size: -p: --comment-line-prefix:",
    "grep": "-nscCdiIvPr --by-name --by-seq --circular --count --degenerate --delete-matched "
    "--ignore-case --immediate-output --invert-match -m: --max-mismatch: "
    "--only-positive-strand -p: --pattern: -f:r --pattern-file:r -R: --region: "
    "--use-regexp",
    "seq": "-kplniqgrsuv --color --complement --dna2rna -G: --gap-letters: --lower-case -M: "
    "--max-len: -R: --max-qual: -m: --min-len: -Q: --min-qual: --name --only-id --qual -b: "
    "--qual-ascii-base: --remove-gaps --reverse --rna2dna --seq --upper-case "
    "--validate-seq -V: --validate-seq-length:",
    "head": "-n: --number:",
    "head-genome": "-m: --mini-common-words:",
    "locate": "-cdMiIGPFr --bed --circular --degenerate --gtf --hide-matched --ignore-case "
    "--immediate-output -m: --max-mismatch: --non-greedy --only-positive-strand -p: "
    "--pattern: -f:r --pattern-file:r --use-fmi --use-regexp -V: --validate-seq-length:",
    "sample": "-2 -n: --number: -p: --proportion: -s: --rand-seed: --two-pass",
    "sort": "-blnsiNr --by-bases --by-length --by-name --by-seq -G: --gap-letters: --ignore-case "
    "-k!c --keep-temp!c --natural-order --reverse -L: --seq-prefix-length: -2!c "
    "--two-pass!c",
    "rmdup": "-nsiP --by-name --by-seq -D:w --dup-num-file:w -d:w --dup-seqs-file:w --ignore-case "
    "--only-positive-strand",
    "range": "-r: --range:",
    "sliding": "-cCg --circular --circular-genome --greedy -s: --step: -W: --window:",
    "translate": "-xFM --allow-unknown-codon --append-frame --clean -f: --frame: --init-codon-as-M -l: "
    "--list-transl-table: -L: --list-transl-table-with-amb-codons: -T: --transl-table: "
    "--trim",
    "fq2fa": "",
    "duplicate": "-n: --times:",
    "common": "-nsiP --by-name --by-seq --ignore-case --only-positive-strand",
    "rename": "-n --by-name -f!c --force!c -m!c --multiple-outfiles!c -O:w --out-dir:w",
    "replace": "-siKU --by-seq --ignore-case --keep-key --keep-untouch -I: --key-capt-idx: -m: "
    "--key-miss-repl: -k:r --kv-file:r --nr-width: -p: --pattern: -r: --replacement:",
    "restart": "-i: --new-start:",
    "shuffle": "-k!c --keep-temp!c -s: --rand-seed: -2!c --two-pass!c",
    "concat": "-f --full -s: --separator:",
    "amplicon": "-fIPMus --bed --flanking-region -F: --forward: --immediate-output -m: --max-mismatch: "
    "--only-positive-strand --output-mismatches -p:r --primer-file:r -r: --region: -R: "
    "--reverse: --save-unmatched --strict-mode",
    "sum": "-abcgs --all --basename --circular -G: --gap-letters: -k: --kmer-size: --remove-gaps "
    "--rna2dna --single-strand",
    "fish": "-aixgDsv --all -p: --aln-params: --invert -q: --min-qual: -b:w --out-bam:w --pass "
    "--print-aln --print-desc -f:r --query-fastx:r -F: --query-sequences: -r: --ranges: "
    "--stranded --validate-seq -V: --validate-seq-length:",
    "convert": "-df --dry-run --force --from: -n: --nrecords: -N: --thresh-B-in-n-most-common: -F: "
    "--thresh-illumina1.5-frac: --to:",
}
_SEQKIT_SUBSEQ = (
    "-f --bed:r --chr: -d: --down-stream: --feature: --gtf:r --gtf-tag: --only-flank -r: "
    "--region: -u: --up-stream:"
)


def _classify_seqkit_subseq(words: Words) -> CommandVerdict:
    """Return the verdict on `seqkit subseq`, which writes an index beside each file."""
    parsed = parse_options(words, f"{_SEQKIT} {_SEQKIT_SUBSEQ}")
    verdicts = [option_verdict(parsed), *map(reads_or_contacts, parsed.operands)]
    if parsed.operands:
        verdicts.append(has_effect(Effect.LOCAL_MUTATION, "seqkit subseq writes an index beside the file"))
    return merge(verdicts)


_COOLER = (
    "-t: -c: -r: -k: -o:W -Hfblm -h --table: --columns: --header --na-rep: --float-format: --range: "
    "--range2: --fill-lower --balanced --join --annotate: --one-based-ids --one-based-starts --chunksize: "
    "--out:W --long --metadata --help"
)


def _classify_cooler(words: Words) -> CommandVerdict:
    """Return the verdict on a subcommand of cooler that shows what is in a file, `FILE::PATH IN IT`."""
    parsed = parse_options(words, _COOLER)
    verdicts = [option_verdict(parsed)]
    for word in parsed.operands:
        file = literal(word.text.partition("::")[0]) if word.text else word
        verdicts.append(role_verdict("L", file, ""))
    return merge(verdicts)


def _classify_ncks(words: Words) -> CommandVerdict:
    """Return the verdict on ncks, which prints what is in one file, and writes it to a second one."""
    parsed = parse_options(words, "-mMHCcqux -v: -d: -g: -s: -o:w --cdl --json --xml --trd --hdn --metadata")
    sources, targets = parsed.operands[:1], parsed.operands[1:]
    elsewhere = [word for word in sources if word.text is None or ":" in word.text]
    return merge(
        [
            option_verdict(parsed),
            *map(reads, sources),
            *map(writes, targets),
            *(uncertain(f"ncks may fetch {word.display}") for word in elsewhere),
        ]
    )


COMMANDS = (
    CommandSpec(
        names="samtools",
        classify=subcommands(
            Subcommand(names="view", classify=_classify_samtools_view),
            Subcommand(names=", ".join(_SAM_SHOWS), classify=_classify_each_alignment),
            Subcommand(names="flags, help, version"),
            reason="writes files",
            alone=True,
        ),
        info_arguments="--version --help help version --version-only",
    ),
    CommandSpec(
        names="bcftools",
        classify=subcommands(
            Subcommand(names=", ".join(_BCF_SHOWS), classify=_classify_bcftools),
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
            *(
                Subcommand(names=names, options=f"{_BED} {options}", operands="i", one_dash=True)
                for names, options in _BED_SUBCOMMANDS.items()
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
            *(
                Subcommand(names=names, options=options, operands="i", allow_dynamic=False)
                for names, options in _SEQKIT_OPTIONS.items()
            ),
            Subcommand(names="version, merge-slides", operands="i"),
            Subcommand(names="subseq", classify=_classify_seqkit_subseq),
            options=_SEQKIT,
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
        names="hmmsearch hmmscan phmmer",
        options="-h -E: -T: -Z: -o:w -A:w --tblout:w --domtblout:w --pfamtblout:w --acc --noali --notextw "
        "--textw: --domE: --domT: --incE: --incT: --incdomE: --incdomT: --cut_ga --cut_nc --cut_tc --max "
        "--F1: --F2: --F3: --nobias --nonull2 --domZ: --seed: --tformat: --qformat: --cpu:",
        operands="r",
        info_arguments="-h",
    ),
    CommandSpec(
        names="minimap2",
        options="-HDPaQLycY2 -k: -w: -j:r -I: -d:w -f: -U: -e: -g: -r: -n: -m: -p: -N: -G: -F: -A: -B: -O: "
        "-E: -C: -z: -s: -u: -o:w -R: -t: -K: -x: -h --cs? --MD --eqx --seed: --secondary: --junc-bed:r "
        "--version --paf-no-hit --sam-hit-only --splice --for-only --rev-only --no-long-join "
        "--end-bonus: --score-N: --split-prefix:w",
        operands="r",
    ),
    CommandSpec(
        names="gffread",
        # With -g, an index is written beside the genome.
        options="-RUCAWZVHBPNJMKQYFGOTLDEvSh -i: -r: -l: --ids:r --nids:r --attrs: --table: --nc --stream "
        "--keep-genes --keep-comments --keep-exon-attrs --sort-alpha --sort-by:r --tlf --bed -m:r -t: -o:W "
        "-d:w -j:w --version",
        operands="r",
    ),
    CommandSpec(
        names="cooler",
        classify=subcommands(
            Subcommand(names="ls, tree, attrs, info", classify=_classify_cooler),
            Subcommand(names="dump", classify=_classify_cooler),
            reason="writes files",
        ),
    ),
    CommandSpec(
        names="h5glance",
        options="-s: --slice: --attrs --depth: -h",
        operands="L",  # a dataset may lie in any other file
    ),
    CommandSpec(
        names="ncks",
        classify=_classify_ncks,
        info_arguments="--version --help -r",
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
        options="-db:r -dbtype: -entry: -entry_batch:r -info -list:r -recursive -outfmt: -range: -strand: "
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
        options="--db:r --skip-counts --use-mpa-style --report-zero-counts --threads: --memory-mapping",
        operands=".",
    ),
    CommandSpec(
        names="nw_display nw_labels nw_stats nw_topology nw_distance nw_prune nw_reroot nw_clade nw_order",
        classify=by_program(
            {
                "nw_display": "-hrsStV -c:r -o:r -U:r -a: -A: -b: -d: -e: -i: -I: -l: -n: -R: -u: -v: "
                "-w: -W:",
                "nw_labels": "-hILrt",
                "nw_stats": "-hH -f:",
                "nw_topology": "-bhIL",
                "nw_distance": "-hnt -m: -s:",
                "nw_prune": "-fhv",
                "nw_reroot": "-dhls",
                "nw_clade": "-hmrs -c:",
                "nw_order": "-hr -c:",
            }
        ),
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
    CommandSpec(
        names="kallisto",
        classify=subcommands(
            Subcommand(
                names="inspect",
                options="-G:w -g:r -b:w --gfa:w --gtf:r --bed:w -t: --threads:",
                allow_dynamic=False,
                operands="r",
            ),
            Subcommand(names="version, cite", operands="-"),
            alone=True,
            reason="writes files",
        ),
        info_arguments="--version --help version cite",
    ),
    CommandSpec(
        names="bamtools",
        classify=subcommands(
            Subcommand(
                names="count, stats, header, coverage",
                options="-in:i -list:L -region: -insert -out:w",
                one_dash=True,
                operands="-",
            ),
            alone=True,
            reason="writes files",
        ),
        info_arguments="--version --help -h",
    ),
    CommandSpec(
        names="bedmap bedops closest-features unstarch",
        options="*",  # they print all that they find, and know no file to write
        operands="r",
        info_arguments="--version --help -h",
    ),
    CommandSpec(
        names="esl-sfetch hmmfetch cmfetch",
        options="-fr -o:w -O!w -n: -c: --index!w --informat: -h",
        operands="r",
        info_arguments="-h",
    ),
    CommandSpec(
        names="mash",
        classify=subcommands(
            Subcommand(names="info", options="-Htcd", operands="r", allow_dynamic=False),
            Subcommand(
                names="dist",
                options="-tiarn -l!L -p: -v: -d: -k: -s: -S: -w: -b: -m: -c: -g:",
                operands="r",
                allow_dynamic=False,
            ),
            Subcommand(names="bounds", options="-k: -p:", operands="-"),
            alone=True,
            reason="writes files",
        ),
        info_arguments="--version --help -h",
    ),
)
