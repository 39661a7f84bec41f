"""Programs that show tables and arrays: CSV, Parquet, HDF5, NetCDF.

Many of them are one program with subcommands, or come together; each has a table of its own, as the same
letter takes a value in one and none in the next.
"""

from __future__ import annotations

import re
from itertools import pairwise

from aisotools.policy.shell.expansion import name_set
from aisotools.policy.shell.languages.sql import read_sql
from aisotools.policy.shell.options import (
    CommandSpec,
    Words,
    by_program,
    classify_by_spec,
    join_option_tables,
    option_verdict,
    parse_options,
    role_verdict,
)
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.policy.shell.verdicts import (
    CommandVerdict,
    merge,
    reads,
    uncertain,
)

# ---- csvkit

_CSVKIT = (
    "-htbSHvlV -d: -q: -u: -p: -z: -e: -K: --help --delimiter: --tabs --quotechar: --quoting: "
    "--no-doublequote --escapechar: --maxfieldsize: --encoding: --skipinitialspace --no-header-row "
    "--skip-lines: --verbose --linenumbers --add-bom --zero --version"
)
_CSVKIT_TYPED = (
    f"{_CSVKIT} -I -L: -y: --locale: --blanks --null-value: --date-format: --datetime-format: "
    "--no-leading-zeroes --snifflimit: --sniff-limit: --no-inference"
)
_CSVKIT_TABLES = {
    "csvlook": f"{_CSVKIT_TYPED} --max-rows: --max-columns: --max-column-width: --max-precision: "
    "--no-number-ellipsis",
    "csvcut": f"{_CSVKIT} -nx -c: -C: --names --columns: --not-columns: --delete-empty-rows",
    "csvgrep": f"{_CSVKIT} -nia -c: -m: -r: -f:r --names --columns: --match: --regex: --file:r "
    "--invert-match --any-match",
    "csvstat": f"{_CSVKIT_TYPED} -nG -i: -c: --csv --json --indent: --names --columns: --type --nulls "
    "--non-nulls --unique --min --max --sum --mean --median --stdev --len --max-precision --freq "
    "--freq-count: --count --decimal-format: --no-grouping-separator",
    "csvsort": f"{_CSVKIT_TYPED} -nri -c: --names --columns: --reverse --ignore-case",
    "csvjoin": f"{_CSVKIT_TYPED} -c: --columns: --outer --left --right",
    "csvstack": f"{_CSVKIT} -g: -n: --groups: --group-name: --filenames",
    "csvformat": f"{_CSVKIT} -ETAB -L: -D: -Q: -U: -P: -M: --locale: --skip-header --out-delimiter: "
    "--out-tabs --out-asv --out-quotechar: --out-quoting: --out-no-doublequote --out-escapechar: "
    "--out-lineterminator:",
    "csvjson": f"{_CSVKIT_TYPED} -i: -k: --indent: --key: --lat: --lon: --type: --geometry: --crs: --no-bbox "
    "--stream",
    "in2csv": f"{_CSVKIT_TYPED} -n -f: -s:r -k: --names --format: --schema:r --key: --sheet: "
    "--write-sheets:w --use-sheet-names --reset-dimensions --encoding-xls:",
}
_CSVSQL = (
    f"{_CSVKIT_TYPED} -i: --dialect: --query: --tables: --no-constraints --unique-constraint: --chunk-size: "
    "--min-col-len: --col-len-multiplier: --db:u --insert!u --before-insert:u --after-insert:u "
    "--create-if-not-exists!u --overwrite!u"
)


def _classify_csvsql(words: Words) -> CommandVerdict:
    """Return the verdict on csvsql: a statement on tables in memory, or one that it prints."""
    parsed = parse_options(words, _CSVSQL)
    verdicts = [option_verdict(parsed), *map(reads, parsed.operands)]
    query = parsed.value("--query")
    if parsed.has("--query") and (query is None or query.text is None or read_sql(query.text).doubt):
        verdicts.append(uncertain("csvsql may run any statement"))
    return merge(verdicts)


# ---- xsv and csvtk: what takes a value differs from subcommand to subcommand

_XSV = "-h -o:w -n -d: --help --output:w --no-headers --delimiter:"
_XSV_SUBCOMMANDS = {
    "cat rows, cat columns": "-p --pad --flexible -N: --group-name:",
    "count": "-Hf --human-readable --flexible --width --no-polars",
    "fixlengths": "-l: -i: --length: --insert: --quote: --escape:",
    "flatten": "-c: -f: -s: --condense: --field-separator: --separator:",
    "fmt": "-t: --out-delimiter: --crlf --ascii --quote: --quote-always --quote-never --escape: "
    "--no-final-newline",
    "frequency": "-s: -l: -u: -ai -j: --select: --limit: --unq-limit: --asc --ignore-case --no-nulls "
    "--no-trim --jobs:",
    "headers": "-jJ --just-names --just-count --intersect --trim",
    "input": "--quote: --escape: --no-quoting --skip-lines: --skip-lastlines: --auto-skip --trim-headers "
    "--trim-fields --comment:",
    "join": "-i --ignore-case --no-case --left --left-anti --left-semi --right --full --cross --nulls",
    "reverse": "",
    "sample": "--seed:",
    "search": "-iuvq -s: -f: --ignore-case --unicode --invert-match --quick --select: --flag: --literal "
    "--json",
    "select": "-RS --random --seed: --sort",
    "slice": "-s: -e: -l: -i: --start: --end: --len: --index: --json --invert",
    "sort": "-NRiu -s: -j: --numeric --reverse --ignore-case --unique --select: --jobs: --random --seed:",
    "stats": "-E -s: -j: --everything --select: --jobs: --mode --cardinality --median --mad --quartiles "
    "--nulls --round: --infer-dates --dates-whitelist: --prefer-dmy",
    "table": "-w: -p: -a: -c: --width: --pad: --align: --condense:",
    "dedup": "-NiHQ -s: -D:w -j: --numeric --ignore-case --no-case --sorted --human-readable --select: "
    "--dupes-output:w --jobs: --quiet",
    "behead": "-f --flexible",
    "sniff": "-p -q: --sample: --prefer-dmy --quote: --json --pretty-json --no-infer --just-mime",
    "schema --stdout": "-i -j: --ignore-case --jobs: --enum-threshold: --pattern-columns: "
    "--dates-whitelist: --prefer-dmy",
    "validate schema": "-Q --quiet",
    "lens": "-it --tab-separated --ignore-case --columns: --filter: --find: --echo-column:",
    "help": "",
}
_CSVTK = (
    "-htTHUZEIlV -d: -D: -C: -q: -j: -o:W -X:L --help --tabs --out-tabs --no-header-row --delete-header "
    "--show-row-number --ignore-empty-row --ignore-illegal-row --lazy-quotes --delimiter: --out-delimiter: "
    "--comment-char: --quote-char: --num-cpus: --out-file:W --infile-list:L"
)
_CSVTK_FIELDS = "-f: -Fi --fields: --fuzzy-fields --ignore-case"
_CSVTK_SUBCOMMANDS = {
    "headers": "-v --verbose",
    "dim": "-n --tabular --cols --rows --no-files",
    "nrow, ncol": "-n --file-name",
    "summary": "-i -f: -g: -w: -s: -S: --ignore-non-numbers --fields: --groups: --decimal-width: "
    "--separater: --rand-seed:",
    "corr": "-iLx -f: --fields: --ignore_nan --log --pass",
    # Old versions take no value after `-r`.
    "pretty": "-r -s: -m: -w: -W: -x: -n: -S: --separator: --align-right? --align-center: --min-width: "
    "--max-width: --wrap-delimiter: --buf-rows: --style: --clip --clip-mark:",
    "csv2tab, tab2csv, transpose, del-header, version": "",
    "csv2json": "-bK -i: -k: -n: --blanks --skip-key --indent: --key: --parse-num:",
    "csv2md": "-a: -w: --alignments: --min-width:",
    "head": "-n: --number:",
    "cut": f"{_CSVTK_FIELDS} -umb --uniq-column --allow-missing-col --blank-missing-col",
    "uniq": f"{_CSVTK_FIELDS} -n: --keep-n:",
    "freq": f"{_CSVTK_FIELDS} -nkr --sort-by-freq --sort-by-key --reverse",
    "inter": _CSVTK_FIELDS,
    "grep": f"{_CSVTK_FIELDS} -vrnN -p: -P:r --invert --use-regexp --line-number --no-highlight "
    "--delete-matched --immediate-output --pattern: --pattern-file:r",
    "filter": "-Fn -f: --filter: --fuzzy-fields --any --line-number",
    "filter2": "-ns -f: --filter: --line-number --numeric-as-string",
    "join": f"{_CSVTK_FIELDS} -kLOnpeP -s: --keep-unmatched --left-join --outer-join --na: --ignore-null "
    "--prefix-filename --prefix-trim-ext --suffix:",
    "sort": "-i -k: --keys: --ignore-case",
    "sample": "-n -s: -p: --line-number --rand-seed: --proportion:",
    "rename": f"{_CSVTK_FIELDS} -n: --names:",
    "add-header": "-n: --names:",
    "round": "-aF -f: -n: --fields: --fuzzy-fields --all-fields --decimal-width:",
    "concat": "-ik -u: --ignore-case --keep-unmatched --unmatched-repl:",
}


def _each_subcommand(common: str, tables: dict[str, str]) -> list[Subcommand]:
    """Return subcommands that read their operands, each with options of its own beside the common ones."""
    return [
        Subcommand(names=names, options=join_option_tables(common, own), operands="r", allow_dynamic=False)
        for names, own in tables.items()
    ]


# ---- Miller

_MLR_VERBS = name_set(
    "altkv bar bootstrap bottom-up cat count count-distinct count-similar cut decimate fill-down fill-empty "
    "flatten format-values fraction gap grep group-by group-like gsub having-fields head histogram "
    "json-parse json-stringify label latin1-to-utf8 least-frequent merge-fields most-frequent nest nothing "
    "regularize rename reorder repeat reshape sec2gmt sec2gmtdate seqgen shuffle sort sort-within-records "
    "sparsify ssub stats1 stats2 step sub summary tac template top unflatten uniq unsparsify utf8-to-latin1"
)
_MLR_PROGRAM = re.compile(
    r"(?:[\s\w$@.,;:+*/%=!<>&?(){}\[\]~^-]|\"(?:[^\"\\]|\\.)*\"|'[^']*'|\|\||#[^\n]*)*", re.ASCII
)
_MLR_DOES_MORE = re.compile(
    r"\b(?:tee|emit\w*|print\w*|eprint\w*|dump|edump|system|exec|os_type|hostname|split|case|include)\b"
)
_MLR_WORDS = re.compile(r"\"(?:[^\"\\]|\\.){0,200}\"")
_MLR_MAIN = name_set(
    "--icsv --ocsv --csv -c --itsv --otsv --tsv -t --ijson --ojson --json -j --ijsonl --ojsonl --jsonl "
    "--ipprint --opprint --pprint -p --ixtab --oxtab --xtab --inidx --onidx --nidx --c2p --c2j --c2t --c2d "
    "--c2n --c2m --c2b --c2l --t2c --t2j --t2p --j2c --j2p --j2t --l2p --l2c --implicit-csv-header "
    "--headerless-csv-output --barred --right --allow-ragged-csv-input --ragged -n --no-auto-flatten -S -A "
    "-O --from-csv --omarkdown --icsvlite --csvlite --idkvp --odkvp --c2x --no-color -M -C --key-color "
    "--xvright --jvstack --no-jvstack --quote-all --gzin"
)
_MLR_MAIN_VALUES = frozenset(
    ("--ifs", "--ofs", "--fs", "--ips", "--ops", "--ps", "--irs", "--ors", "--rs", "--nr-progress-mod")
)


def _classify_mlr(words: Words) -> CommandVerdict:
    """Return the verdict on Miller: options, verbs that only compute joined by `then`, and files."""
    doubt = uncertain("mlr may write files or run programs")
    rest = list(words[1:])
    verdicts = []
    while rest and rest[0].prefix.startswith("-"):
        option = rest.pop(0)
        if option.text in _MLR_MAIN_VALUES and rest:
            rest.pop(0)
        elif option.text == "--from" and rest:
            verdicts.append(role_verdict("i", rest.pop(0), ""))
        elif option.text not in _MLR_MAIN:
            return doubt
    if not rest or any(word.text is None and not word.is_located for word in rest):
        return doubt
    starts = [0, *(position + 1 for position, word in enumerate(rest) if word.text == "then")]
    ends = [*(start - 1 for start in starts[1:]), len(rest)]
    if not all(_is_plain_verb(rest[start:end]) for start, end in zip(starts, ends, strict=True)):
        return doubt
    verdicts += [reads(word) for before, word in pairwise(rest) if before.text == "-t"]  # of `template`
    return merge([*verdicts, *(role_verdict("i", word, "") for word in _last_operands(rest[starts[-1] :]))])


def _last_operands(words: Words) -> Words:
    """Return what may be a file among the words of the last verb: those behind its options and program."""
    first = len(words)
    while first > 1 and not words[first - 1].prefix.startswith("-"):
        first -= 1
    if words[0].text in {"put", "filter"}:
        programs = (at for at, word in enumerate(words) if at and not word.prefix.startswith("-"))
        first = max(first, next(programs, 0) + 1)
    return words[first:]


def _is_plain_verb(words: Words) -> bool:
    verb = words[0].text if words else None
    if verb not in {"put", "filter"}:
        return verb in _MLR_VERBS
    options = {word.text for word in words[1:] if word.prefix.startswith("-")}
    program = next((word.text for word in words[1:] if not word.prefix.startswith("-")), None)
    return options <= {"-q", "-S", "-x"} and program is not None and _is_plain_mlr(program)


def _is_plain_mlr(program: str) -> bool:
    return (
        len(program) < 2000
        and bool(_MLR_PROGRAM.fullmatch(program))
        and not _MLR_DOES_MORE.search(_MLR_WORDS.sub("", program))
    )


# ---- Parquet

_PARQUET_ENDPOINTS = "-h --help --awsprofile: --endpoint-url:h"
_PARQUET_TOOLS = {
    # The one in Python, and the one in Java that it is named after.
    "show, csv": f"{_PARQUET_ENDPOINTS} --format: --columns: --head:",
    "inspect": f"{_PARQUET_ENDPOINTS} --detail",
    "cat": "-hj --help --json --no-color",
    "head": "-h -n: --help --records: --no-color",
    "schema, rowcount, size, meta": "-hdpu --help --detailed --pretty --uncompressed",
    "column-size": "-h --help",
    "dump": "-hmdn -c: --help --disable-crop --disable-data --no-color --column:",
}
_PARQUET_CLI = {
    "cat, head": "-h -n: -c: --help --num: --column: --columns:",
    "meta, footer, schema, pages, column-size": "-h -c: --help --column: --columns:",
}
_PQRS = {
    "cat": "-hcj --help --csv --json --no-header",
    "head": "-hcj -n: --help --csv --json --records:",
    "schema": "-hDdj --help --detailed --json",
    "rowcount, size": "-hpu --help --pretty --uncompressed",
}


# ---- HDF5

_H5_MESSAGES = "-hV --help --version --enable-error-stack?"
_H5DUMP = CommandSpec(
    names="h5dump",
    options=f"{_H5_MESSAGES} -BHipruyexRCGE -n? -A? -b? -o:w -O:w -a: -d: -g: -l: -t: -N: -c: -s: -S: -k: "
    "-w: -m: -M: -q: -z: -v -D: -X: -F: -f:u --contents? --superblock --boot-block --header --output:w "
    "--ddl:w --binary? --attribute: --dataset: --group: --soft-link: --datatype: --any_path: --onlyattr? "
    "--object-ids --properties --packedbits: --packed-bits: --region --escape --string --noindex --no-index "
    "--format: --sort_by: --sort_order: --no-compact-subset --width: --xml --use-dtd --xml-dtd: --xml-ns: "
    "--start: --stride: --count: --block: --filedriver:u --hide-attributes --vds-view-first-missing "
    "--vds-gap-size:",
    operands="L",  # a dataset may lie in any other file
)


def _classify_h5dump(words: Words) -> CommandVerdict:
    """Return the verdict on h5dump, for which the last word is the file even behind an option as `-o`."""
    last = words[-1] if len(words) > 1 and not words[-1].prefix.startswith("-") else None
    return merge([classify_by_spec(_H5DUMP, words), role_verdict("L" if last else "", last, "")])


_H5_TABLES = {
    # With -E it follows links to other files, and a dataset, which -d prints, may lie in any other.
    "h5ls": f"{_H5_MESSAGES} -afglrsSvxe -d!L -E!L -w: --address --data!L --external!L --full --group "
    "--label --recursive --string --simple --verbose --hexdump --errors --width: --follow-symlinks!L "
    "--no-dangling-links --vfd:u",
    "h5stat": f"{_H5_MESSAGES} -fFgGdDTAsS -l: -m: -a: --file --filemetadata --group --links: "
    "--groupmetadata --dset --dims: --dsetmetadata --dtypemetadata --attribute --numattrs: --freespace "
    "--summary",
    "h5debug": "-h --help",
}
_H5DIFF = (
    f"{_H5_MESSAGES} -rqcN -v? -n: -d: -p: --report --verbose? --quiet --follow-symlinks --no-dangling-links "
    "--compare --nan --count: --delta: --relative: --use-system-epsilon --exclude-path: --exclude-attribute:"
)


COMMANDS = (
    CommandSpec(
        names="csvlook csvcut csvgrep csvstat csvsort csvjoin csvstack csvformat csvjson in2csv",
        classify=by_program(_CSVKIT_TABLES),
        info_arguments="--help --version -h -V",
    ),
    CommandSpec(names="csvsql", classify=_classify_csvsql, info_arguments="--help --version -h -V"),
    CommandSpec(
        names="xsv qsv",
        classify=subcommands(
            *_each_subcommand(_XSV, _XSV_SUBCOMMANDS),
            reason="may write files or run code",
            helps="--help -h",
        ),
        info_arguments="--help --version -h --list",
    ),
    CommandSpec(
        names="csvtk",
        classify=subcommands(
            *_each_subcommand(_CSVTK, _CSVTK_SUBCOMMANDS),
            reason="may write files",
            helps="--help -h",
        ),
        info_arguments="--help -h version",
    ),
    CommandSpec(
        names="mlr", classify=_classify_mlr, info_arguments="--version --help help version", obeys=".mlrc"
    ),
    CommandSpec(
        names="datamash",
        options="*",
        operands=".",
        allow_dynamic=True,
        info_arguments="--help --version -h -V",
    ),
    *(
        CommandSpec(
            names=names,
            classify=subcommands(
                *(
                    Subcommand(names=subcommand, options=options, operands="i", allow_dynamic=False)
                    for subcommand, options in tables.items()
                ),
                reason="may write files",
                helps="--help -h",
            ),
            info_arguments="--help --version -h",
        )
        for names, tables in (
            ("parquet parquet-cli", _PARQUET_CLI),
            ("parquet-tools", _PARQUET_TOOLS),
            ("pqrs", _PQRS),
        )
    ),
    CommandSpec(
        names="parq",  # the word behind an option may be its value
        options="-sch --schema? --head? --tail? --count? --help",
        operands="i",
        info_arguments="--help --version -h",
    ),
    CommandSpec(names="h5dump", classify=_classify_h5dump),
    CommandSpec(names="h5ls h5stat h5debug", classify=by_program(_H5_TABLES, operands="i")),
    CommandSpec(names="h5diff", options=_H5DIFF, operands="L"),
    CommandSpec(
        names="ncdump",
        options="-hcistxkw -v: -g: -b: -f: -l: -n: -p: -L: -F:",
        operands="i",
    ),
    CommandSpec(names="ncinfo", options="-v: -g:", one_dash=True, operands="i"),
)
