"""Programs that take a program in a small language: awk, sed, jq, yq, sqlite3 and duckdb.

A module of `aisotools.policy.shell.languages` reads each of those programs whole. What it cannot read is
uncertain.
"""

from __future__ import annotations

import re

from aisotools.policy.shell.expansion import Word, literal, name_set
from aisotools.policy.shell.languages.awk import read_awk
from aisotools.policy.shell.languages.jq import read_jq
from aisotools.policy.shell.languages.reading import ProgramReading
from aisotools.policy.shell.languages.sed import read_sed
from aisotools.policy.shell.languages.sql import read_duckdb, read_sql
from aisotools.policy.shell.options import (
    CommandSpec,
    Words,
    option_verdict,
    parse_options,
    role_verdict,
)
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    UNKNOWN_WORDS,
    CommandVerdict,
    contacts,
    merge,
    reads,
    uncertain,
)

SAME_IN_ALL_SHELLS = re.compile(r"[\w \n\t./,:%+\-'\"|;@]*", re.ASCII)
"""A text that bash reads as every other shell does."""
# Not possessive: before Python 3.11.5 `(...)*+` loses alternatives that look ahead.
_SAME_IN_POSIX_SHELLS = re.compile(
    r"""(?:
        (?<=\s) -- [\w-]+ = | (?<=[ !=]) = (?=[ =]) | !=  # Any other `=` may be an assignment.
        | \$ (?:\w | [@#?*] | \((?!\())  # `$((` may be arithmetic, and `$'` and `$"` are quotes of bash
        | \$ \{ [#]? \w+ \}
        | \$ \{ \w+ (?::?- | %%? | [#][#]?) [\w.*/-]* \}
        | (?<![&|>]) && (?![&>|])
        | < (?![<(&>])
        | > & [12] (?=[\s;|)]|\Z)
        | >>? (?![(&>|])
        | ! (?!\()
        | \[ (?![\[^])                   # `[[` is a command of bash; in `[^a]` some shells know only `!`
        | \\ [\w\\"$.|*/;()\[\]-]
        | [\w\ \n\t./,:%+\-'"|;@?*)\]]    # Without `(` before it, `)` ends a substitution or a pattern.
    )*""",
    re.ASCII | re.VERBOSE,
)
# Builtins that other shells lack: what follows may then be done in another folder, or for other words.
_ONLY_IN_BASH = re.compile(
    r"\b(?:pushd|popd|dirs|mapfile|readarray|source|declare|typeset|let|shopt|enable|builtin|select|coproc"
    r"|function|compgen|complete|disown|caller)\b"
)


def is_same_in_posix_shells(text: str) -> bool:
    """Return whether sh reads `text` as bash does, be it dash, the ash of busybox, or bash by another name.

    What is read in two ways is left out: assignments, which outlast a special builtin in sh alone, functions
    and subshells, braces, arithmetic, the quotes that begin with `$`, redirections of `&`, here-strings, and
    a backslash beside `echo`, which some of them decode.
    """
    is_decoded = "\\" in text and "echo" in text
    is_plain = _SAME_IN_POSIX_SHELLS.fullmatch(text) is not None
    return is_plain and not is_decoded and not _ONLY_IN_BASH.search(text)


def _program_of(word: Word) -> str | None:
    """Return the text of a program, or one as it is with numbers in it; None if it is not known."""
    return word.sample if word.text is None else word.text


def _program_verdict(language: str, reading: ProgramReading) -> CommandVerdict:
    if reading.doubt:
        return uncertain(f"{language}: {reading.doubt}")
    if not all(map(is_same_in_posix_shells, reading.scripts)):  # awk and sed run them by sh
        return uncertain(f"{language}: a command that sh may read differently from bash")
    return CommandVerdict(scripts=reading.scripts, reads=reading.reads)


# ---- awk

_AWK = (
    "-F: -v: -f:u --field-separator: --assign: --re-interval --posix --traditional -n -S -M -N -P -r -t "
    "-O -s "
    "--characters-as-bytes --csv -k -b -c -e:u --source:u -i:x --include:x -l:x --load:x -E:u --exec:u "
    "--sandbox "
    "--non-decimal-data --lint? --bignum --use-lc-numeric"
)


_BIOAWK = "-F: -v: -f:u -c: -tH"
_BIOAWK_FUNCTIONS = name_set("gc meanqual qualcount reverse revcomp translate trimq")


def _classify_awk(words: Words) -> CommandVerdict:
    is_bioawk = words[0].text == "bioawk"
    functions = _BIOAWK_FUNCTIONS if is_bioawk else frozenset()
    parsed = parse_options(words, _BIOAWK if is_bioawk else _AWK, posix=True)
    if not parsed.operands or _program_of(parsed.operands[0]) is None:
        return merge([option_verdict(parsed), uncertain("an awk program that is only known at run time")])
    program, *files = parsed.operands
    return merge(
        [
            option_verdict(parsed),
            _program_verdict("awk", read_awk(_program_of(program) or "", functions)),
            *map(_awk_file_verdict, files),
        ]
    )


def _awk_file_verdict(word: Word) -> CommandVerdict:
    """Return the verdict on an operand, for which gawk may take a connection: `/inet/tcp/0/host/port`."""
    if word.prefix.startswith("/inet"):
        return contacts("", "gawk opens a connection")
    return reads(word)


# ---- sed

_SED = (
    "-nErsuzb -e: -f:u -l: -i? -I? --quiet --silent --expression: --file:u --regexp-extended --separate "
    "--unbuffered --null-data --line-length: --posix --debug --sandbox --binary --in-place? --follow-symlinks"
)
_SUFFIX = re.compile(r"[\w.~-]*")


def _classify_sed(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _SED)
    scripts = [option.value for option in parsed.options if option.name in {"-e", "--expression"}]
    files = parsed.operands
    if not scripts and not parsed.has("-f", "--file"):
        scripts, files = list(files[:1]), files[1:]
    verdicts = [option_verdict(parsed), _sed_script_verdict(scripts)]
    role = "m" if parsed.has("-i", "-I", "--in-place") else "r"
    suffix = parsed.value("-i", "-I", "--in-place")
    if suffix is not None and not _SUFFIX.fullmatch(suffix.display):
        verdicts.append(uncertain("where sed saves the original is unknown"))
    elif suffix is not None:
        verdicts += [role_verdict("m", _with_suffix(file, suffix.display), "") for file in files]
    return merge([*verdicts, *(role_verdict(role, file, "") for file in files)])


def _with_suffix(word: Word, suffix: str) -> Word:
    text = None if word.text is None else word.text + suffix
    return Word(word.display + suffix, text, text or word.prefix, word.may_split, word.is_located)


def _sed_script_verdict(scripts: list[Word | None]) -> CommandVerdict:
    texts = [text for script in scripts if script is not None and (text := _program_of(script)) is not None]
    if not scripts:
        return NO_EFFECT
    if len(texts) < len(scripts):
        return uncertain("a sed script that is only known at run time")
    # Several scripts are lines of one: what one leaves open, the next goes on with.
    if any(text.endswith("\\") for text in texts):
        return uncertain("sed: a script that goes on in the next")
    return _program_verdict("sed", read_sed("\n".join(texts)))


# ---- jq and yq

_JQ = (
    "-rRncCMSseajhV -f:u -L:r --raw-output --raw-input --null-input --compact-output --color-output "
    "--monochrome-output --sort-keys --slurp --exit-status --ascii-output --join-output --raw-output0 "
    "--tab --indent: --args --jsonargs --stream --stream-errors --seq --from-file:u --unbuffered "
    "--yaml-output "
    "--yaml-input --yaml-roundtrip -y"
)
_JQ_PAIRS = frozenset(("--arg", "--argjson", "--slurpfile", "--rawfile", "--argfile"))
_JQ_FILES = frozenset(("--slurpfile", "--rawfile", "--argfile"))
_YQ = (
    "-rPenNCMcjyYS0 -s:u -o: -p: -I: -w: -x -t -l: -f? --output-format: --input-format: --indent: "
    "--prettyPrint --exit-status "
    "--null-input --no-colors --colors --raw-output --unwrapScalar? --no-doc --xml-root: -i!u --inplace!u "
    "--in-place!u --front-matter: --split-exp:u --yaml-output --yaml-roundtrip --width: --xml-output "
    "--toml-output "
    "--raw-input --compact-output --tojson -T:u --from-file:u"
)


def _classify_jq(words: Words) -> CommandVerdict:
    """Return the verdict on jq: a program, then files."""
    rest, verdicts = [words[0]], []
    position = 1
    while position < len(words):
        option = words[position].text
        if option in _JQ_PAIRS:
            if any(word.may_split for word in words[position + 1 : position + 3]):
                verdicts.append(uncertain("it cannot be determined how many words an option has"))
            if option in _JQ_FILES:
                verdicts += map(reads, words[position + 2 : position + 3])
            position += 3
            continue
        rest.append(words[position])
        position += 1
    parsed = parse_options(rest, _JQ, allow_dynamic=True)
    files = parsed.operands
    if not parsed.has("-f", "--from-file"):
        verdicts.append(_filter_verdict("jq", files[:1]))
        files = files[1:]
    return merge([option_verdict(parsed), *verdicts, *map(reads, files)])


def _classify_yq(words: Words) -> CommandVerdict:
    """Return the verdict on yq, in either of its kinds: an expression in the manner of jq, then files."""
    arguments = [words[0], *words[2:]] if len(words) > 1 and words[1].text in _YQ_EVALUATES else words
    parsed = parse_options(arguments, _YQ)
    operands = parsed.operands
    if len(operands) == 1 and _YAML_FILE.fullmatch(operands[0].text or ""):
        return merge([option_verdict(parsed), reads(operands[0])])
    return merge([option_verdict(parsed), _filter_verdict("yq", operands[:1]), *map(reads, operands[1:])])


_YQ_EVALUATES = frozenset(("e", "ea", "eval", "eval-all"))
_YAML_FILE = re.compile(r"[\w./-]+\.(?:ya?ml|json|xml|toml)", re.ASCII)


def _filter_verdict(language: str, program: Words) -> CommandVerdict:
    if not program:
        return NO_EFFECT
    if program[0].text is None:
        return uncertain(f"a program of {language} that is only known at run time")
    return _program_verdict(language, read_jq(program[0].text))


# ---- sqlite3

_SQLITE_FLAGS = name_set(
    "-header -noheader -csv -json -column -line -list -box -table -markdown -batch -readonly -html "
    "-quote -tabs -ascii "
    "-bail -safe -echo -stats -nofollow -version -help -memtrace"
)
_SQLITE_VALUES = frozenset(("-separator", "-nullvalue", "-newline", "-mmap", "-cmd"))
_SQLITE_SHOWS = re.compile(
    r"\.(?:tables|schema|indexes|indices|fullschema|dump)(?:[ \t]+[\w%*?.\"-]+)*"
    r"|\.(?:databases|dbinfo|help|show|version|quit|exit|dbconfig)"
    r"|\.(?:headers?|echo|timer|stats|changes|eqp|bail)[ \t]+(?:on|off)"
    r"|\.mode[ \t]+[a-z]+|\.nullvalue[ \t]+[\w\"'-]*|\.separator[ \t]+\S{1,4}|\.width(?:[ \t]+-?[0-9]+)*",
    re.ASCII,
)
_DATABASE = re.compile(r":memory:|[^:|]*")
_DATABASE_TO_READ = re.compile(r"file:(?!//)([^:|?#%]+)\?(?:immutable=1&)?mode=ro(?:&immutable=1)?")


def _classify_sqlite(words: Words) -> CommandVerdict:
    """Return the verdict on sqlite3: options, the database, then statements or commands with a dot."""
    verdicts: list[CommandVerdict] = []
    operands: list[Word] = []
    statements: list[Word | None] = []
    rest = list(words[1:])
    while rest:
        word = rest.pop(0)
        option = "-" + word.prefix.lstrip("-")
        if word.text is not None and word.prefix.startswith("-") and option in _SQLITE_FLAGS:
            continue
        if word.text is not None and word.prefix.startswith("-") and option in _SQLITE_VALUES and rest:
            value = rest.pop(0)
            if option == "-cmd":
                statements.append(value)
            if value.may_split:
                verdicts.append(uncertain(f"it cannot be determined how many words {value.display} becomes"))
        elif word.prefix.startswith("-") or word.may_split or (word.may_be_option and operands):
            verdicts.append(uncertain(f"sqlite3 may do anything with {word.display}"))
        else:
            operands.append(word)
    statements += operands[1:]
    if len(operands) < 2:
        verdicts.append(uncertain("sqlite3 runs what is typed, or comes from elsewhere"))
    if operands and (address := _DATABASE_TO_READ.fullmatch(operands[0].text or "")):
        operands[0] = literal(address[1])
    if operands and (operands[0].may_be_option or not _DATABASE.fullmatch(operands[0].display)):
        verdicts.append(uncertain(f"it cannot be determined what sqlite3 opens as {operands[0].display}"))
    return merge([*map(reads, operands[:1]), *verdicts, *map(_statement_verdict, statements)])


def _statement_verdict(word: Word | None) -> CommandVerdict:
    if word is None or word.text is None:
        return uncertain("a statement that is only known at run time")
    if word.text.startswith("."):
        is_plain = _SQLITE_SHOWS.fullmatch(word.text.rstrip(" \t"))
        return NO_EFFECT if is_plain else uncertain("sqlite3: a command that may write files or run programs")
    return _program_verdict("sqlite3", read_sql(word.text))


# ---- duckdb

_DUCKDB = (
    "-readonly -c: -s: -cmd:u -csv -json -jsonlines -line -list -column -box -table -markdown -html -ascii "
    "-quote -latex -header -noheader -bail -batch -echo -safe -no-stdin -separator: -nullvalue: -newline: "
    "-version -help -interactive!u -init:u -unsigned!u -f:u -ui!u"
)


def _classify_duckdb(words: Words) -> CommandVerdict:
    """Return the verdict on duckdb: a database that is opened for reading alone, or none, and statements."""
    parsed = parse_options(words, _DUCKDB, one_dash=True)
    statements = [option.value for option in parsed.options if option.name in {"-c", "-s"}]
    statements += parsed.operands[1:]
    verdicts = [option_verdict(parsed), *map(_duckdb_verdict, statements)]
    databases = [word for word in parsed.operands[:1] if word.text != ":memory:"]
    for word in databases:
        # A table of a database may be a view of any other file.
        verdicts.append(role_verdict("L", word, ""))
        if word.text is None or ":" in word.text:
            verdicts.append(uncertain(f"it cannot be determined what duckdb opens as {word.display}"))
    if databases and not parsed.has("-readonly"):
        verdicts.append(uncertain("duckdb may write to a database that is not opened with -readonly"))
    if not statements or any(word.may_split for word in parsed.operands):
        verdicts.append(uncertain("duckdb runs what is typed, or comes from elsewhere"))
    return merge(verdicts)


def _duckdb_verdict(word: Word | None) -> CommandVerdict:
    if word is None or word.text is None:
        return uncertain("a statement that is only known at run time")
    if word.text.lstrip().startswith("."):
        is_plain = word.text.strip(" \t") in {".tables", ".schema", ".databases", ".help", ".version"}
        return NO_EFFECT if is_plain else uncertain("duckdb: a command that may write files or run programs")
    reading = read_duckdb(word.text)
    are_patterns = any(character in path for path in reading.reads for character in "*?[{")
    found = CommandVerdict(unresolved=(UNKNOWN_WORDS,)) if are_patterns else NO_EFFECT
    return merge([_program_verdict("duckdb", reading), found])


COMMANDS = (
    CommandSpec(
        names="awk gawk mawk nawk original-awk bioawk",
        classify=_classify_awk,
        info_arguments="--help --version -V",
    ),
    CommandSpec(names="sed gsed", classify=_classify_sed),
    CommandSpec(names="jq gojq", classify=_classify_jq, info_arguments="--help --version -h -V"),
    CommandSpec(names="yq tomlq", classify=_classify_yq, info_arguments="--help --version -h -V"),
    CommandSpec(names="sqlite3", classify=_classify_sqlite, info_arguments="-version -help --version --help"),
    CommandSpec(names="duckdb", classify=_classify_duckdb, info_arguments="-version -help --version --help"),
)
