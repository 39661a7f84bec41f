"""Programs that read, compute and print, and those that show the state of the machine.

The option tables name the few options by which some of them do more.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, literal, without_beginning
from aisotools.policy.shell.folders import join
from aisotools.policy.shell.options import (
    CommandSpec,
    OptionSpec,
    ParsedOption,
    Words,
    by_program,
    option_verdict,
    parse_option_table,
    parse_options,
    program_name,
    role_verdict,
)
from aisotools.policy.shell.patches import patches_of_patch
from aisotools.policy.shell.subcommands import Subcommand, subcommands
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    CommandVerdict,
    has_effect,
    merge,
    reads,
    uncertain,
    writes,
)

_GREP = (
    "-EFGPiyvwxclLqsonHhbTZzUurIa -R!L -e: -f:r -m: -A: -B: -C: -d: -D: -# --extended-regexp --fixed-strings "
    "--basic-regexp --perl-regexp --regexp: --file:r --ignore-case --no-ignore-case --word-regexp "
    "--line-regexp --null-data --no-messages --invert-match --max-count: --byte-offset --line-number "
    "--line-buffered --with-filename --no-filename --label: --only-matching --quiet --silent "
    "--binary-files: --text --directories: --devices: --recursive --dereference-recursive!L --include: "
    "--exclude: --exclude-from:r --exclude-dir: --files-without-match --files-with-matches --count "
    "--initial-tab --null --before-context: --after-context: --context: --group-separator: "
    "--no-group-separator --color? --colour?"
)


_FILES_OF_READERS = {
    "wc": "--files0-from:L",
    "du": "--files0-from:L -X:r --exclude-from:r",
    "dust": "--files0-from:L --files-from:L -X:r --config:r",
    **dict.fromkeys(
        (
            "md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum shasum b3sum",
            "xxhsum xxh32sum xxh64sum xxh128sum",
        ),
        "-c!L --check!L --files-from:L --filelist:L",
    ),
    "hexdump hd": "-f:r",
    "findmnt": "-F:r --tab-file:r",
    "locate plocate": "-d:p --database:p",
    "lsd": "--config-file:r",
    "procs": "--load-config:r --gen-completion:c",
    "units": "-f:r --file:r -L:w --log:w --history:w",
    "readelf": "-P!L --process-links!L",
    "pgrep": "-F:r --pidfile:r",
    "last lastb": "-f:r --file:r",
    "lslogins": "--wtmp-file:r --btmp-file:r --lastlog-file:r",
    "mcookie": "-f:r --file:r",
    "figlet": "-f:r -d:r -C:r",
    "cpuid": "-f:r --file:r",
}
"""Options of programs that take any: those that name a file, or follow what one names, as in a table."""


@cache
def _file_options(program: str) -> Mapping[str, OptionSpec]:
    options = next((options for names, options in _FILES_OF_READERS.items() if program in names.split()), "")
    return parse_option_table(options)


def _classify_reader(words: Words) -> CommandVerdict:
    """Return the verdict on a program that reads its operands whatever its options are."""
    return merge([*map(reads, parse_options(words, "*").operands), _classify_printer(words)])


_LISTERS = {
    **dict.fromkeys(
        ("ls", "dir", "vdir"),
        "-I -w -T --hide --ignore --block-size --width --tabsize --format "
        "--sort --time --time-style --indicator-style --quoting-style",
    ),
    "du": "-d -t -B -X --max-depth --threshold --block-size --exclude --exclude-from --time-style",
    "dust": "-d -n -X -v -e -z -w -o --depth --number-of-lines --ignore-directory --invert-filter --filter "
    "--min-size --terminal_width --output-format",
    **dict.fromkeys(
        ("exa", "eza"), "-L -t -I -s -w --level --time --ignore-glob --sort --time-style --width"
    ),
    "lsd": "-I --ignore-glob --depth --sort --date --size --icon --color --permission --group-dirs",
    "lsattr": "",
}
"""Programs that list the folder they run in if no operand names another, with their options that have a value
in a word of its own."""


def _classify_lister(words: Words) -> CommandVerdict:
    """Return the verdict on a program that lists folders."""
    with_value = _LISTERS[program_name(words[0].text or "")].split()
    letters = {name[1] for name in with_value if not name.startswith("--")}

    def takes_next(word: Word) -> bool:
        text = word.text or ""
        if text.startswith("--"):
            return "=" not in text and any(name.startswith(text) for name in with_value)
        return text.startswith("-") and text[-1:] in letters

    operands = parse_options(words, "*").operands
    values = {id(word) for previous, word in pairwise(words[1:]) if takes_next(previous)}
    names_one = any(id(operand) not in values for operand in operands)
    here = NO_EFFECT if names_one else reads(literal("."))
    return merge([_classify_reader(words), here])


def _classify_printer(words: Words) -> CommandVerdict:
    """Return the verdict on the options by which a program that only prints reads or writes files."""
    table = _file_options(program_name(words[0].text or ""))
    options = merge(role_verdict(role, value, name) for name, role, value in _listed_options(words, table))
    if words[0].text == "users":
        return merge([options, *map(reads, parse_options(words, "*").operands)])
    if words[0].text == "pwgen":
        seeds = _listed_options(words, parse_option_table("-H:r --sha1:r"))
        return merge([options, *(reads(_before_mark(seed.value, "#")) for seed in seeds if seed.value)])
    return options


def _before_mark(word: Word, mark: str) -> Word:
    """Return what a word has in front of a mark: `path#seed`."""
    return word if word.text is None else literal(word.text.partition(mark)[0])


def _listed_options(words: Words, table: Mapping[str, OptionSpec]) -> Iterator[ParsedOption]:
    """Yield the options of a table that are among words, in any position and however shortened."""
    for word, following in pairwise([*words, None] if table else ()):
        if word is None or not word.prefix.startswith("-"):
            continue
        name, equals, _ = word.prefix.partition("=")
        if name.startswith("--"):
            found = [option for option in table if option.startswith(name) and len(name) > 3]
            value = without_beginning(word, len(name) + 1) if equals else following
        else:
            letters = [position for position, letter in enumerate(name) if f"-{letter}" in table]
            found = [f"-{name[letters[0]]}"] if letters else []
            rest = letters[0] + 1 if letters else 0
            value = without_beginning(word, rest) if len(word.prefix) > rest else following
        for option in found[:1]:
            yield ParsedOption(option, table[option].role, value if table[option].arity else None)


def _classify_date(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words,
        "-uR -I? -d: -r:r -f:r --date: --reference:r --file:r --iso-8601? --rfc-3339: --rfc-email --utc "
        "--universal --debug --resolution -s:s --set:s",
    )
    # An operand is a format (+%F) or a time to set the clock to.
    is_format = all(word.prefix.startswith("+") and not word.may_split for word in parsed.operands)
    return merge([option_verdict(parsed), NO_EFFECT if is_format else uncertain("date sets the clock")])


def _classify_top(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-bciHS1 -n: -d: -p: -u: -U: -o: -w? -e: -E:")
    interactive = NO_EFFECT if parsed.has("-b") else uncertain("top without -b takes commands")
    return merge([option_verdict(parsed), interactive])


def _classify_sysctl(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-aAXbeNnq -r: --all --values --names --binary --ignore --pattern:")
    sets = any("=" in operand.display or operand.text is None for operand in parsed.operands)
    return merge([option_verdict(parsed), uncertain("sysctl sets a parameter") if sets else NO_EFFECT])


def _classify_getent(words: Words) -> CommandVerdict:
    database = words[1].text if len(words) > 1 else None
    if database in {"passwd", "group", "services", "protocols", "shells"}:
        return NO_EFFECT
    return uncertain("getent may ask the network", Effect.REMOTE_ACTION)


def _classify_kill(words: Words) -> CommandVerdict:
    first = words[1].text if len(words) > 1 else None
    if first in {"-l", "-L", "--list", "--table", "-0"}:
        return NO_EFFECT
    if first in {"-s", "-n"} and len(words) > 2 and words[2].text in {"0", "EXIT"}:
        return NO_EFFECT  # signal 0 only checks that the process exists
    return has_effect(Effect.DESTRUCTIVE, "it ends processes, which cannot be undone")


_NVIDIA = (
    "-L -q -x -u -s -h -i: -d: -l? -lms? -f:w --query-gpu: --query-compute-apps: --query-accounted-apps: "
    "--format: --list-gpus "
    "--query --display: --id: --loop? --loop-ms? --unit --xml-format --filename:w --help-query-gpu "
    "--version -c: -o: "
    "--query-supported-clocks: --query-retired-pages: --query-remapped-rows: -B --list-excluded-gpus"
)


def _classify_nvidia(words: Words) -> CommandVerdict:
    """Return the verdict on nvidia-smi, which can also set the modes of a card."""
    parsed = parse_options(words, _NVIDIA, one_dash=True)
    if len(words) > 1 and words[1].text == "topo":
        plain = all(word.text in {"topo", "-m", "-h", "-i", "0"} for word in words[1:])
        return NO_EFFECT if plain else uncertain("nvidia-smi may change a card")
    if len(words) > 1 and words[1].text in {"dmon", "pmon"}:
        return option_verdict(parse_options(words[1:], _NVIDIA_MONITOR, one_dash=True))
    sets = parsed.has("-c", "-o") or any(not (word.text or "").isdecimal() for word in parsed.operands)
    return merge([option_verdict(parsed), uncertain("nvidia-smi may change a card") if sets else NO_EFFECT])


_NVIDIA_MONITOR = "-i: -d: -c: -s: -o: -f:w --filename:w --format: --gpm-metrics: -h --help"


_SYSSTAT = "--human --dec: --pretty"


def _classify_compgen(words: Words) -> CommandVerdict:
    """Return the verdict on compgen, which may also call functions and expand texts."""
    parsed = parse_options(words, "-abcdefgjksuv -A: -P: -S: -X: -o:")
    return option_verdict(parsed)


def _classify_ldconfig(words: Words) -> CommandVerdict:
    prints = any(word.text in {"-p", "--print-cache"} for word in words[1:])
    return (
        NO_EFFECT if prints and len(words) == 2 else uncertain("ldconfig changes which libraries are found")
    )


def _classify_patch(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words,
        "-RNEflstubcen -p: -d: -i:r -F: -D: -V: -g: --dry-run --strip: --directory: --input:r "
        "--reverse --forward "
        "--force --batch --silent --quiet --verbose --fuzz: --unified --context --binary --ignore-whitespace "
        "-o:w --output:w -r:w --reject-file:w",
    )
    doubt = NO_EFFECT if parsed.has("--dry-run") else uncertain("patch changes files")
    verdict = merge([option_verdict(parsed), *map(reads, parsed.operands)])
    if doubt is not NO_EFFECT:
        verdict = merge([verdict, *map(writes, parsed.operands[:1])])  # else the patch names them
    if (folder := parsed.value("-d", "--directory")) is not None:
        # It goes there before it reads or writes anything; only standard input is opened before that.
        verdict = dataclasses.replace(
            verdict,
            reads=tuple(join(folder.path, path) for path in verdict.reads),
            unresolved=tuple(join(folder.display, path) for path in verdict.unresolved),
            writes=tuple(join(folder.path, path) for path in verdict.writes),
        )
        doubt = merge([doubt, reads(folder)])
    return merge([verdict, doubt, patches_of_patch(parsed)])


_XMLSTARLET = {
    # Behind `-s` and `-a` of a template there are several words, which count as files, too.
    "sel, select": "-QCRTIDBtnfbs -E: -N: -c: -v: -o: -m: -i: -e: -a: --quiet --comp --root --text --indent "
    "--xml-decl --noblanks --encode: --net!n --template --copy-of: --value-of: --output: --nl --inp-name "
    "--match: --var --break --if: --elif: --else --elem: --attr: --sort",
    "el, elements": "-avu -d?",
    "format": "-ntoRDCNH -s: -e: --noindent --indent-tab --indent-spaces: --omit-decl --net!n --recover "
    "--dropdtd --nocdata --nsclean --encode: --html",
    "val, validate": "-wESebgq -d:i -s:i -r:i --well-formed --dtd:i --xsd:i --embed --relaxng:i --err --stop "
    "--list-bad --list-good --quiet --net!n",
    "c14n, canonic": "--net!n --with-comments --without-comments --exc-with-comments --exc-without-comments",
    "esc, escape, unesc, unescape, pyx, xmln": "",
}


def _classify_json_pp(words: Words) -> CommandVerdict:
    """Return the verdict on json_pp, which runs what it gets as Perl with `-f eval`."""
    parsed = parse_options(words, "-v -V -t: -f: -json_opt:", one_dash=True)
    source = parsed.value("-f")
    runs = source is not None and source.text != "json"
    return merge([option_verdict(parsed), uncertain("json_pp runs what it gets") if runs else NO_EFFECT])


def _classify_dos2unix(words: Words) -> CommandVerdict:
    """Return the verdict on dos2unix: with `-i` before every file it only tells which line ends there are."""
    parsed = parse_options(words, "-i? --info? -c: -q")
    tells = len(words) > 1 and re.fullmatch(r"-i[0dumbtecxhp,]*|--info(?:=\w*)?", words[1].text or "")
    operands = map(reads, parsed.operands) if tells else (role_verdict("m", w, "") for w in parsed.operands)
    return merge([option_verdict(parsed), *operands])


COMMANDS = (
    CommandSpec(
        names="who fc-scan fc-query fortune ac dircolors",
        options="*",
        allow_dynamic=True,
    ),
    CommandSpec(
        names="ompi_info",
        options="-ahV --all --help --version --parsable --parseable --pretty-print --arch --config "
        "--hostname",
        operands="-",
    ),
    CommandSpec(
        names="cat tac nl wc head tail cut rev paste join comm cmp fold fmt column expand unexpand od "
        "hexdump hd strings md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum shasum "
        "stat df readlink realpath pr tsort look locate plocate readelf zipinfo "
        "getfacl findmnt namei bc b3sum xxhsum xxh32sum xxh64sum xxh128sum crc32 col colrm "
        "colcrt hexyl eu-readelf duf procs jsonpp "
        "lsar par units ul isosize ansi2txt zipdetails",
        classify=_classify_reader,
    ),
    CommandSpec(names=" ".join(_LISTERS), classify=_classify_lister),
    CommandSpec(
        names="diff colordiff",
        options="-qsycenuplatTNEZbwBidHP -r!L -C: -U: -F: -W: -I: -x: -X:r -S: -D: -L: -# --normal --brief "
        "--report-identical-files --context? --unified? --ed --rcs --side-by-side --width: --left-column "
        "--suppress-common-lines --show-c-function --show-function-line: --label: --expand-tabs "
        "--initial-tab --tabsize: --suppress-blank-empty --paginate --recursive!L --no-dereference "
        "--new-file --unidirectional-new-file --ignore-file-name-case --no-ignore-file-name-case --exclude: "
        "--exclude-from:r --starting-file: --from-file:r --to-file:r --ignore-case --ignore-tab-expansion "
        "--ignore-trailing-space --ignore-space-change --ignore-all-space --ignore-blank-lines "
        "--ignore-matching-lines: --text --strip-trailing-cr --ifdef: --minimal --horizon-lines: "
        "--speed-large-files --color? --palette: --line-format: --old-line-format: --new-line-format: "
        "--unchanged-line-format: --old-group-format: --new-group-format: --changed-group-format: "
        "--unchanged-group-format: --help --version --difftype: --fakeexitcode",
        allow_dynamic=True,
    ),
    CommandSpec(
        names="sdiff wdiff icdiff dwdiff",
        classify=by_program(
            {
                "sdiff": "-iEZbWBalstdHv -o:w -I: -w: --output:w --ignore-case --ignore-tab-expansion "
                "--ignore-trailing-space --ignore-space-change --ignore-all-space --ignore-blank-lines "
                "--ignore-matching-lines: --strip-trailing-cr --text --width: --left-column "
                "--suppress-common-lines --expand-tabs --tabsize: --minimal --speed-large-files "
                "--diff-program:x",
                "wdiff": "-123dhilnpstvK -w: -x: -y: -z: --no-deleted --no-inserted --no-common --diff-input "
                "--ignore-case --less-mode --avoid-wraps --printer --statistics --terminal --start-delete: "
                "--end-delete: --start-insert: --end-insert: --no-init-term",
                "icdiff": "-hHNstuWP -r!L -E: -L: -U: -x: --cols: --encoding: --exclude-lines: --head: "
                "--highlight --label: --line-numbers --no-bold --no-headers --output-encoding: --recursive!L "
                "--report-identical-files --show-all-spaces --tabsize: --truncate --patch --unified: "
                "--numlines: --whole-file --permissions --strip-trailing-cr --color-map: --exclude:",
                "dwdiff": "-hvPu123siIlpR -d: -W: -L? -C: -c? -m: -A: -S? -w: -x: -y: -z: --delimiters: "
                "--punctuation --white-space: --diff-input --no-deleted --no-inserted --no-common "
                "--line-numbers? --context: --statistics --ignore-case --ignore-formatting --color? "
                "--less-mode --printer --match-context: --aggregate-changes --algorithm: "
                "--paragraph-separator? --wdiff-output --start-delete: --stop-delete: --start-insert: "
                "--stop-insert: --repeat-markers --no-profile",
            }
        ),
    ),
    CommandSpec(
        names="echo pwd seq factor numfmt expr basename dirname true false : sleep yes tr nproc arch uname "
        "whoami id groups users w uptime free vmstat lscpu lsblk lsmod locale getconf "
        "logname tty printenv ps pgrep pidof pstree which whereis type cal ncal clear last lastb lslocks "
        "ipcs lsb_release "
        "uuidgen fc-list fc-match quota lsns lsmem lsipc lslogins "
        "lsscsi acpi cpuid numastat clinfo glxinfo xdpyinfo gpustat "
        "ibstat ibv_devinfo pinky mcookie pwgen figlet banner jot "
        "getopt pathchk runlevel errno envsubst",
        classify=_classify_printer,
    ),
    CommandSpec(
        names="grep egrep fgrep",
        options=_GREP,
        operands="pr",
        allow_dynamic=True,
        # Every value of `-d` counts: those that do not recurse may be shortened, too.
        searches="-r -R -d --recursive --dereference-recursive --directories",
    ),
    CommandSpec(
        names="zgrep zegrep zfgrep bzgrep xzgrep zstdgrep lzgrep",
        options=_GREP,
        operands="pr",
        allow_patterns=True,
    ),
    CommandSpec(
        names="rg",
        options="-nNHhIilcovwxsSFPUuaVqp0. -L!L -z!x -A: -B: -C: -m: -g: -t: -T: -e: -f:r -d: -j: -M: -r: "
        "-E: --line-number --no-line-number --with-filename --no-filename --ignore-case --files-with-matches "
        "--files-without-match --count --count-matches --only-matching --invert-match --word-regexp "
        "--line-regexp --case-sensitive --smart-case --fixed-strings --pcre2 --multiline --multiline-dotall "
        "--hidden --no-ignore --no-ignore-vcs --follow!L --text --quiet --pretty --vimgrep --json --files "
        "--stats --column --no-heading --heading --trim --sort: --sortr: --type: --type-not: --type-list "
        "--glob: --iglob: --max-count: --max-depth: --max-columns: --max-filesize: --after-context: "
        "--before-context: --context: --regexp: --file:r --color: --colors: --replace: --passthru "
        "--threads: --encoding: --engine: --debug --trace --null --no-messages --no-config "
        "--one-file-system --type-add: --type-clear: --ignore-file:r --binary --block-buffered "
        "--line-buffered --byte-offset --context-separator: --field-match-separator: --crlf --null-data "
        "--glob-case-insensitive --max-columns-preview --no-ignore-parent --no-ignore-global "
        "--no-ignore-files --no-ignore-dot --no-ignore-exclude --no-unicode --path-separator: "
        "--stop-on-nonmatch --unrestricted --include-zero --pre:x --pre-glob: "
        "--hostname-bin:x --search-zip!x",
        operands="pr",
        searches="*",
    ),
    CommandSpec(
        names="sort",
        options="-bdfgiMhnRrVcCmsuz -k: -t: -S: -T: -o:w --output:w --compress-program:x --files0-from:L "
        "--ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort "
        "--ignore-nonprinting --month-sort --human-numeric-sort --numeric-sort --random-sort "
        "--random-source:r --reverse --sort: --version-sort --batch-size: --check? --debug --key: --merge "
        "--stable --buffer-size: --field-separator: --temporary-directory: --parallel: --unique "
        "--zero-terminated",
    ),
    CommandSpec(
        names="uniq",
        options="-cdDiuz -f: -s: -w: --count --repeated --all-repeated? --group? --ignore-case --unique "
        "--skip-fields: --skip-chars: --check-chars: --zero-terminated",
        operands="rw",
        posix=True,  # not every uniq looks for options after the first file
    ),
    CommandSpec(
        names="shuf",
        options="-erz -i: -n: -o:w --output:w --echo --repeat --input-range: --head-count: --random-source:r "
        "--zero-terminated",
    ),
    CommandSpec(
        names="ptx",
        options="-ArfRT -w: -g: -i:r -o:r -b:r -S: -W: -M: -F: --auto-reference --references --ignore-case "
        "--right-side-refs --width: --gap-size: --ignore-file:r --only-file:r --break-file:r "
        "--sentence-regexp: --word-regexp: --flag-truncation:",
        operands="r",
    ),
    CommandSpec(
        names="diff3",
        options="-aAeEx3XimT -L: --text --show-all --merge --ed --show-overlap --easy-only --overlap-only "
        "--label: --strip-trailing-cr --initial-tab --diff-program:x",
        operands="r",
    ),
    CommandSpec(
        names="tree",
        options="-adlfxqNQpugshDFvtcUriASnCXJ -L: -P: -I: -H: -T: -o:w --ignore-case --matchdirs --prune "
        "--noreport --charset: --filelimit: --gitignore --si --du --timefmt: --inodes --device --dirsfirst "
        "--filesfirst --sort: --nolinks --fromfile --metafirst",
        separate_values=True,
        searches="*",
    ),
    CommandSpec(
        names="file",
        options="-bikLhNnprsv0cdEZ -F: -f:r -e: -m:p -P: -C!s -z!x --brief --mime --mime-type "
        "--mime-encoding --extension --dereference --no-dereference --separator: --files-from:r --exclude: "
        "--magic-file:p --keep-going --raw --print0 --checking-printout --compile!s --uncompress!x "
        "--uncompress-noreport!x",
        allow_patterns=True,
    ),
    CommandSpec(names="date", classify=_classify_date),
    CommandSpec(names="patch", classify=_classify_patch, info_arguments="--help --version -v"),
    CommandSpec(names="compgen", classify=_classify_compgen, info_arguments=""),
    CommandSpec(
        names="dos2unix unix2dos mac2unix",
        classify=_classify_dos2unix,
        info_arguments="--help --version -h -V",
    ),
    CommandSpec(
        names="tidy",
        options="-q -e -qe -i -u -m!u -config:u -o:u -xml -ashtml -asxml -utf8 -wrap: -errors -quiet",
        one_dash=True,
        operands="r",
    ),
    CommandSpec(
        names="json_pp",
        classify=_classify_json_pp,
    ),
    CommandSpec(
        names="yamllint jsonlint json_verify",
        classify=by_program(
            {
                "yamllint": "-s -d: -c:r -f: --strict --format: --no-warnings --config-data: "
                "--config-file:r --list-files",
                # There are several of the name.
                "jsonlint": "-sqcpdtfS --strict --format --quiet --compact --sort-keys --allow",
                "json_verify": "-qcsu",
            }
        ),
    ),
    CommandSpec(names="ldconfig", options="-pvNX -C:r --print-cache -f:r", classify=_classify_ldconfig),
    CommandSpec(names="sensors", options="-AujvhC -f -c:r", operands="."),
    CommandSpec(
        names="pidstat sar iostat mpstat",
        classify=by_program(
            {
                "pidstat": f"{_SYSSTAT} -dHhIlRrstUuVvw -C: -G: -p: -T: -e!x",
                # Behind `-f` and `-o` a name may be left out.
                "sar": f"{_SYSSTAT} -# -AaBbCDdFHhprStuVvWwyzqx -e? -s? -f:r -o:w -I? -P: -m: -n: -j: "
                "-i: --dev: --fs: --iface: --int:",
                "iostat": f"{_SYSSTAT} -cdhkmNstVxyzH -p? -f:r -j: -o:u -g: --compact",
                "mpstat": f"{_SYSSTAT} -AnuTV -I: -N: -o:u -P:",
            },
            operands=".",
        ),
    ),
    CommandSpec(
        names="pmap", options="-xXdqpkV -A: --extended --device --quiet --show-path --range:", operands="."
    ),
    CommandSpec(
        names="dmidecode",
        options="-qu -t: -s: -H: --type: --string: --quiet --dump --no-sysfs --handle:",
        operands="-",
    ),
    CommandSpec(
        names="lshw",
        options="-short -html -xml -json -businfo -class: -C: -c: -quiet -numeric -sanitize -disable: "
        "-enable:",
        one_dash=True,
        operands="-",
    ),
    CommandSpec(names="swapon", options="-sv --show? --noheadings --raw --bytes --summary", operands="s"),
    CommandSpec(
        names="blkid",
        options="-piLUk -o: -s: -t: -c:u -w:u -n: -u: --output: --match-tag: --match-token: --probe "
        "--info --garbage-collect!u",
        operands="r",
    ),
    CommandSpec(
        names="pygmentize", options="-glNLVhvs -f: -O:u -P:u -F:u -S: -o:w -x!x -C -H:", operands="r"
    ),
    CommandSpec(
        names="rocm-smi",
        options="-aibgtupfPvlsc --showid --showuse --showmeminfo: --showtemp --showpower "
        "--showproductname --showallinfo --json --csv --showdriverversion",
        operands="-",
    ),
    CommandSpec(
        names="xxd",
        options="-abCEeipuv -c: -g: -l: -s: -o: -n: -r!u",
        operands="rw",
        posix=True,
        separate_values=True,
    ),
    CommandSpec(
        names="base64 base32 basenc",
        options="-dDi -w: --decode --ignore-garbage --wrap: --base64 --base64url --base32 --base16 --z85",
    ),
    CommandSpec(
        names="iconv",
        options="-f: -t: -csl --from-code: --to-code: --list --silent -o:w --output:w",
    ),
    CommandSpec(
        names="xmllint",
        options="--format --noout --xpath: --nonet --recover --html --xmlout --pretty: --encode: --c14n "
        "--output:w --huge --schema:i --relaxng:i --schematron:i --dtdvalid:i --noblanks --valid!n "
        "--noent!n --loaddtd!n --path:u --shell!u --debug "
        "--nowarning --stream --push --memory --timing",
        operands="i",
    ),
    CommandSpec(
        names="xmlstarlet xml",
        classify=subcommands(
            *(
                Subcommand(names=names, options=f"-h --help {options}", operands="i")
                for names, options in _XMLSTARLET.items()
            ),
            reason="changes documents",
        ),
        info_arguments="--version --help",
    ),
    CommandSpec(
        names="javap",
        options="-version -c -v -p -s -l -verbose -private -protected -public -package -constants -sysinfo "
        "-classpath:p -cp:p --class-path:p --module: -m:",
        one_dash=True,
        operands="r",
        info_arguments="-version --version --help -help",
    ),
    CommandSpec(
        names="nm size objdump llvm-nm llvm-size llvm-objdump",
        options="-aACDdgmnuprhtTxsflBovP -S!L -j: -M: -b: --demangle? --no-demangle --defined-only "
        "--undefined-only --dynamic --disassemble? "
        "--syms --plugin:x --extern-only --print-size --size-sort --numeric-sort --reverse-sort "
        "--format: --radix: --totals "
        "--section-headers --headers --private-headers --all-headers --full-contents --section: --source!L "
        "--line-numbers "
        "--no-show-raw-insn --reloc --dynamic-syms --dynamic-reloc --start-address: --stop-address: "
        "--no-sort --common -k",
        allow_patterns=True,
    ),
    # ---- the state of the machine
    CommandSpec(
        names="tput reset",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        reason="may run a program that the terminal description names",
        certain=False,
        info_arguments="cols lines colors",
    ),
    CommandSpec(
        names="stty",
        classify=subcommands(
            Subcommand(names="size, speed", operands="-"), reason="changes the terminal", alone=True
        ),
        info_arguments="-a -g --all --save --help --version",
    ),
    CommandSpec(names="mountpoint", options="-qdx --quiet --fs-devno --devno", operands="r"),
    CommandSpec(
        names="getfattr",
        options="-dhRLP -n: -m: -e: --dump --no-dereference --recursive --name: --match: --encoding: "
        "--absolute-names --only-values",
        operands="r",
    ),
    CommandSpec(
        names="modinfo", options="-adlpn0 -F: -k: -b:r --author --description --field:", operands="r"
    ),
    CommandSpec(names="atq", options="-V -q: -o:", operands="."),
    CommandSpec(
        names="fuser",
        options="-acflmMsuvVI46 -n: -kiw!d --kill!d --all --ismountpoint --mount --namespace: --silent "
        "--user --verbose --ipv4 --ipv6 --inode --list-signals",
        operands=".",
    ),
    CommandSpec(names="lastlog", options="-b: -t: -u: --before: --time: --user:", operands="-"),
    CommandSpec(names="top", classify=_classify_top),
    CommandSpec(names="sysctl", classify=_classify_sysctl),
    CommandSpec(
        names="ifconfig",
        options="-asv",
        operands="-",
    ),
    CommandSpec(
        names="ss",
        options="-tulpnarxwsoemi460HOZzb --tcp --udp --listening --processes --numeric --all --summary -f: "
        "-K!d -D:w -F:r",
        operands=".",
    ),
    CommandSpec(
        names="netstat",
        options="-atulpnrsiewcogW46xvM --tcp --udp --listening --programs --numeric --all --route "
        "--statistics",
        operands=".",
    ),
    CommandSpec(
        names="lsof",
        options="-nPtlabR -i? -p: -u: -c: -d: -s? -g? -D:s",
        operands="r",
    ),
    CommandSpec(
        names="lspci lsusb",
        options="-vnkmtDxbP -s: -d:",
        operands="-",
    ),
    CommandSpec(
        names="dmesg",
        options="-THkwxtur -l: -f: -L? -P --human --follow --level: --facility: --ctime --color? --nopager "
        "--kernel --decode --since: --until: -c!d -C!d --clear!d --read-clear!d -D!s -E!s -n:s",
        operands="-",
    ),
    CommandSpec(
        names="mount",
        options="-l -t: --show-labels",
        operands="s",
    ),
    CommandSpec(names="getent", classify=_classify_getent),
    CommandSpec(names="kill", classify=_classify_kill),
    CommandSpec(
        names="journalctl",
        options="-frxekaq -# -u: -n? -b? -p: -o: -S: -U: -t: -g: -F: -D:r --unit: --lines? --boot? --dmesg "
        "--priority: --output: --since: --until: --no-pager --user --system --grep: --list-boots "
        "--disk-usage --directory:r --file:r --fields --identifier: --follow --reverse --all --quiet "
        "--vacuum-size:D --vacuum-time:D --vacuum-files:D --rotate!s --flush!s --sync!s --cursor-file:w",
        operands=".",
    ),
    CommandSpec(
        names="nvidia-smi",
        classify=_classify_nvidia,
    ),
    CommandSpec(
        names="hostname",
        options="-sfiIdAya --short --fqdn --long --ip-address --all-ip-addresses --domain --all-fqdns "
        "--alias -F:s --file:s -b!s",
        operands="s",
    ),
)
