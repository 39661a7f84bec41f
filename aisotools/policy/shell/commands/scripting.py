"""Programs with a language of their own: awk, sed, sqlite3; only what is plainly harmless is certain."""

from __future__ import annotations

import re

from aisotools.policy.shell.expansion import Word, names
from aisotools.policy.shell.options import (
    NOTHING,
    CommandVerdict,
    Row,
    Words,
    by_role,
    merged,
    parse,
    reads,
    said_by,
    unsure,
)

# ---- awk

_AWK_TOKEN = re.compile(
    r"\s+|\\\n|#[^\n]*|(?P<string>\"(?:[^\"\\\n]|\\.)*\")|(?P<name>[A-Za-z_]\w*)|(?P<number>[0-9.]\w*)"
    r"|(?P<operator>\|\||&&|\+\+|--|[-+*/%^=<>!~]=|>>|\*\*=?|.)",
    re.DOTALL,
)
_AWK_REGEX = re.compile(r"/(?:[^/\\\n\[\]]|\\.|\[[^/\\\n\[\]]*\])*/")
_AWK_UNCLEAR = frozenset((")", "++", "--", "length"))
_AWK_OPERANDS = frozenset(("operand", "]", *_AWK_UNCLEAR))
_AWK_KEYWORDS = names(
    "BEGIN END BEGINFILE ENDFILE if else while for do in return print printf exit next nextfile delete case "
    "default switch break continue function func"
)


def awk_doubt(program: str) -> str:
    """Why an awk program may do more than read and print; empty when it plainly does not."""
    at, before, prints = 0, "", False
    while at < len(program):
        if program[at] == "/" and before in _AWK_UNCLEAR and "/" in program[at + 1 :].partition("\n")[0]:
            return "what may be a division, or begin a pattern"
        if program[at] == "/" and before not in _AWK_OPERANDS:
            regex = _AWK_REGEX.match(program, at)
            if regex is None:
                return "a pattern that is not plain"
            at, before = regex.end(), "operand"
            continue
        found = _AWK_TOKEN.match(program, at)
        if found is None or (program[at] in '"@' and not found["string"]):
            return "an indirect call, or a text that is not closed"
        at = found.end()
        if name := found["name"]:
            if name in {"system", "getline"}:
                return f"{name} can run programs"
            prints |= name in {"print", "printf"}
            before = "" if name in _AWK_KEYWORDS else name if name == "length" else "operand"
        elif found["string"] or found["number"]:
            before = "operand"
        elif operator := found["operator"]:
            if operator in {"|", ">>"} or (operator == ">" and prints) or operator == "`":
                return f"{operator} writes or runs something"
            prints &= operator not in {";", "}"}
            before = operator
    return ""


def _awk(words: Words) -> CommandVerdict:
    parsed = parse(
        words,
        "-F: -v: -f:u --field-separator: --assign: --re-interval --posix --traditional "
        "--characters-as-bytes --csv -b -c -e:u --source:u -i:x --include:x -l:x --load:x -E:u --exec:u",
        posix=True,
    )
    if not parsed.operands or parsed.operands[0].text is None:
        return merged([said_by(parsed), unsure("an awk program that is not known beforehand")])
    why = awk_doubt(parsed.operands[0].text)
    doubt = unsure(f"awk: {why}") if why else NOTHING
    return merged([said_by(parsed), doubt, *map(reads, parsed.operands[1:])])


# ---- sed

_SED_ADDRESS = re.compile(r"\s*(?:[0-9]+(?:~[0-9]+)?|\$|/(?:[^/\\\n\[\]]|\\.|\[[^/\\\n\[\]]*\])*/[IM]*)")
_SED_AFTER_COMMA = re.compile(
    r"\s*,\s*(?:[0-9]+|[+~][0-9]+|\$|/(?:[^/\\\n\[\]]|\\.|\[[^/\\\n\[\]]*\])*/[IM]*)"
)
_SED_PLAIN = re.compile(
    r"\s*!?\s*(?:[{}]|(?:[=dDgGhHnNpPxzF]|[qQl][ \t]*[0-9]*|[bt][ \t]*\w*|:[ \t]*\w+)[ \t]*(?=[;\n}]|$))"
)
_SUFFIX = re.compile(r"[\w.~-]*")
_SED_SEPARATORS = re.compile(r"[\s;]+")
_SED_SUBSTITUTES = re.compile(r"\s*!?\s*[sy]([^\w\s\\;{}\[\]])")
_SED_FLAGS = re.compile(r"[gpiImM0-9]*[ \t]*")


def sed_doubt(script: str) -> str:
    """Why a sed script may do more than print; empty when it plainly does not."""
    at = 0
    while at < len(script):
        if separators := _SED_SEPARATORS.match(script, at):
            at = separators.end()
            continue
        if address := _SED_ADDRESS.match(script, at):
            at = address.end()
            if second := _SED_AFTER_COMMA.match(script, at):
                at = second.end()
        if plain := _SED_PLAIN.match(script, at):
            at = plain.end()
            continue
        end = _substitution(script, at)
        if end < 0:
            return f"{script[at : at + 10]} may write or run something"
        at = end
    return ""


def _substitution(script: str, at: int) -> int:
    """Where `s///` or `y///` ends, or -1 when it is not plain."""
    start = _SED_SUBSTITUTES.match(script, at)
    if not start:
        return -1
    mark, at = start[1], start.end()
    for _ in range(2):
        while at < len(script) and script[at] != mark:
            if script[at] == "\n":
                return -1
            at += 2 if script[at] == "\\" else 1
        at += 1
    # where brackets hold the mark, one sed ends the pattern and another does not
    parts = script[start.end() : at].split(mark)
    if at > len(script) or any("[" in part and "]" not in part.partition("[")[2] for part in parts):
        return -1
    flags = _SED_FLAGS.match(script, at)
    at = flags.end() if flags else at
    return at if at == len(script) or script[at] in ";}\n" else -1


def _sed(words: Words) -> CommandVerdict:
    parsed = parse(
        words,
        "-nErsuz -e: -f:u -i? -I? --quiet --silent --expression: --file:u --regexp-extended --separate "
        "--unbuffered --null-data --line-length: --posix --debug --in-place? --follow-symlinks",
    )
    scripts = [given.value for given in parsed.options if given.name in {"-e", "--expression"}]
    files = parsed.operands
    if not scripts and not parsed.has("-f", "--file"):
        scripts, files = list(files[:1]), files[1:]
    doubts = [_sed_script(script) for script in scripts]
    role = "m" if parsed.has("-i", "-I", "--in-place") else "r"
    suffix = parsed.value("-i", "-I", "--in-place")
    if suffix is not None and not _SUFFIX.fullmatch(suffix.shown):
        doubts.append(unsure("it cannot be told where sed keeps what was there"))
    elif suffix is not None:
        doubts += [by_role("m", _with_suffix(file, suffix.shown), "") for file in files]
    return merged([said_by(parsed), *doubts, *(by_role(role, file, "") for file in files)])


def _with_suffix(word: Word, suffix: str) -> Word:
    text = None if word.text is None else word.text + suffix
    return Word(word.shown + suffix, text, text or word.prefix, word.many, word.placed)


def _sed_script(script: Word | None) -> CommandVerdict:
    if script is None or script.text is None:
        return unsure("a sed script that is not known beforehand")
    why = sed_doubt(script.text)
    return unsure(f"sed: {why}") if why else NOTHING


# ---- sqlite3

_SQL_READS = re.compile(
    r"\s*(?:select|with|explain|values)\b(?!.*\b(?:insert|update|delete|replace|into)\b)",
    re.IGNORECASE | re.DOTALL,
)
_SQL_SHOWS = re.compile(r"\.(?:tables|schema|indexes|databases)(?:\s+\w+)?")
_SQL_CALL = re.compile(r"([A-Za-z_]\w*)\s*\(")
_SQL_KNOWN = names(
    "count sum avg min max total length lower upper substr substring round abs coalesce ifnull nullif iif "
    "group_concat date time datetime julianday strftime printf format replace trim ltrim rtrim instr hex "
    "quote typeof cast in as values over exists and or not on using json json_extract json_each row_number "
    "rank dense_rank lag lead ntile distinct select from when then case"
)
_SQLITE_SHOWS = names(
    "-header -noheader -csv -json -column -line -list -box -table -markdown -batch -readonly"
)


def _sqlite(words: Words) -> CommandVerdict:
    options = {word.text for word in words[1:] if word.prefix.startswith("-")}
    operands = [word for word in words[1:] if not word.prefix.startswith("-")]
    statement = ((operands[1].text or "") if len(operands) == 2 else "").strip().rstrip(";")
    plain = (
        "-readonly" in options
        and options <= _SQLITE_SHOWS
        and not any(word.may_be_option for word in operands)
        and (_SQL_SHOWS.fullmatch(statement) or (_SQL_READS.match(statement) and ";" not in statement))
        and {name.lower() for name in _SQL_CALL.findall(statement)} <= _SQL_KNOWN
    )
    doubt = NOTHING if plain else unsure("sqlite3 may change the database, or run programs")
    return merged([*map(reads, operands[:1]), doubt])


ROWS = (
    Row(
        names="awk gawk mawk nawk",
        judge=_awk,
        harmless=(
            "awk '{print $1}' a",
            "awk -F, '$3 > 100 {print $1, $2}' a.csv",
            "awk 'NR==1 || /x/ {n++} END {print n}' a",
            "awk '{s+=$1} END {print s/NR}'",
            "awk -v n=3 'NR<=n' a",
            "awk '!seen[$0]++' a",
            "awk '{print \";\" $2}' a",
            "awk 'BEGIN {printf \"%d\\n\", 3}'",
        ),
        harmful=(
            "awk 'BEGIN {system(\"rm x\")}'",
            "awk '{print > \"x\"}' a",
            "awk '{print | \"sh\"}' a",
            "awk 'BEGIN {\"rm x\" | getline}'",
            "awk -f x a",
            "awk '{print $1 >> \"x\"}' a",
            'awk "$x" a',
            "awk -i inplace 1 a",
            'awk \'BEGIN {f="system"; @f("rm x")}\'',
            'awk \'{printf "a" > "x"}\' a',
            'awk \'/"/ {print > "x"}\' a',
            'awk \'BEGIN{print ";" > "x"}\'',
            "awk -l readdir 1",
            "awk '{ print $1 |& \"sh\" }' a",
            'awk \'{print "a", \n "b" > "x"}\' a',
            "awk 'BEGIN { while ((\"ls\" | getline x) > 0) print x }'",
        ),
    ),
    Row(
        names="sed gsed",
        judge=_sed,
        harmless=(
            "sed -n '1,10p' a",
            "sed 's/a/b/g' a",
            "sed -E 's|a(.*)|\\1|; s/x/y/' a",
            "sed '/^#/d' a",
            "sed -n -e '5p' -e '$p' a",
            "sed '1d;$d'",
            "sed 10q a",
            "sed -n '/a/,/b/p' a",
            "sed 's/[0-9]*//g' a",
        ),
        harmful=(
            "sed -i s/a/b/ a",
            "sed s/a/b/w\\ x a",
            "sed 's/a/b/e' a",
            "sed '1e rm x' a",
            "sed 'w x' a",
            "sed -n '1,$w x' a",
            "sed --in-place=.bak s/a/b/ a",
            "sed -f x a",
            'sed "$x" a',
            "sed -n p a -i",
            "sed --in-pl s/a/b/ a",
            "sed -ni.bak p a",
            "sed 's/a/b/gw x' a",
            "sed e a",
            "sed -e 'W x' a",
            "sed s,a,b,w,x a",
            "sed 's/a/b/;w x' a",
            "sed '1!e rm x'",
            "sed -E '1{e rm x\n}' a",
            "sed 'a\\\ntext' a",
            "sed 'r /dev/stdin' a",
            "sed 's/[/]/x/w y/' a",
        ),
    ),
    Row(
        names="sqlite3",
        judge=_sqlite,
        harmless=("sqlite3 -readonly a.db 'select count(*) from t'", "sqlite3 -readonly a.db .tables"),
        harmful=(
            "sqlite3 a.db 'drop table t'",
            "sqlite3 a.db .shell",
            "sqlite3 -readonly a.db \"select writefile('x', 1)\"",
            "sqlite3 a.db",
            "sqlite3 a.db '.shell rm x'",
            "sqlite3 -readonly a.db \"select load_extension('x')\"",
            "sqlite3 -cmd '.shell rm x' a.db 'select 1'",
            "sqlite3 a.db 'select 1; delete from t'",
        ),
    ),
)
