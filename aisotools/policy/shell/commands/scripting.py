"""Programs with a language of their own: awk, sed and sqlite3. Only plainly harmless texts are certain."""

from __future__ import annotations

import re

from aisotools.policy.shell.expansion import Word, name_set
from aisotools.policy.shell.options import (
    NO_EFFECT,
    CommandSpec,
    CommandVerdict,
    Words,
    merge,
    option_verdict,
    parse_options,
    reads,
    role_verdict,
    uncertain,
)

# ---- awk

_AWK_TOKEN = re.compile(
    r"\s+|\\\n|#[^\n]*|(?P<string>\"(?:[^\"\\\n]|\\.)*\")|(?P<name>[A-Za-z_]\w*)|(?P<number>[0-9.]\w*)"
    r"|(?P<operator>\|\||&&|\+\+|--|[-+*/%^=<>!~]=|>>|\*\*=?|.)",
    re.DOTALL,
)
_AWK_REGEX = re.compile(r"/(?:[^/\\\n\[\]]|\\.|\[[^/\\\n\[\]]*\])*/")
# After these, a slash may be a division or begin a pattern: implementations differ.
_AWK_AMBIGUOUS = frozenset((")", "++", "--", "length"))
_AWK_OPERANDS = frozenset(("operand", "]", *_AWK_AMBIGUOUS))
_AWK_KEYWORDS = name_set(
    "BEGIN END BEGINFILE ENDFILE if else while for do in return print printf exit next nextfile delete case "
    "default switch break continue function func"
)


def awk_doubt(program: str) -> str:
    """Return why an awk program may do more than read and print; empty if it plainly does not."""
    position = 0
    previous = ""  # what the last token was: "operand", a name or operator that matters, or "" for a keyword
    prints = False  # whether a print statement has begun, in which > writes a file
    while position < len(program):
        if program[position] == "/":
            rest_of_line = program[position + 1 :].partition("\n")[0]
            if previous in _AWK_AMBIGUOUS and "/" in rest_of_line:
                return "what may be a division or begin a pattern"
            if previous not in _AWK_OPERANDS:
                regex = _AWK_REGEX.match(program, position)
                if regex is None:
                    return "a pattern that is not plain"
                position, previous = regex.end(), "operand"
                continue
        token = _AWK_TOKEN.match(program, position)
        if token is None or (program[position] in '"@' and not token["string"]):
            return "an indirect call or an unclosed string"
        position = token.end()
        if name := token["name"]:
            if name in {"system", "getline"}:
                return f"{name} can run programs"
            if name in {"print", "printf"}:
                prints = True
            previous = "length" if name == "length" else "" if name in _AWK_KEYWORDS else "operand"
        elif token["string"] or token["number"]:
            previous = "operand"
        elif operator := token["operator"]:
            if operator in {"|", ">>", "`"} or (operator == ">" and prints):
                return f"{operator} writes or runs something"
            if operator in {";", "}"}:
                prints = False
            previous = operator
    return ""


def _classify_awk(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words,
        "-F: -v: -f:u --field-separator: --assign: --re-interval --posix --traditional "
        "--characters-as-bytes --csv -b -c -e:u --source:u -i:x --include:x -l:x --load:x -E:u --exec:u",
        posix=True,
    )
    if not parsed.operands or parsed.operands[0].text is None:
        return merge([option_verdict(parsed), uncertain("an awk program that is only known at run time")])
    reason = awk_doubt(parsed.operands[0].text)
    doubt = uncertain(f"awk: {reason}") if reason else NO_EFFECT
    return merge([option_verdict(parsed), doubt, *map(reads, parsed.operands[1:])])


# ---- sed

_SED_ADDRESS = re.compile(r"\s*(?:[0-9]+(?:~[0-9]+)?|\$|/(?:[^/\\\n\[\]]|\\.|\[[^/\\\n\[\]]*\])*/[IM]*)")
_SED_AFTER_COMMA = re.compile(
    r"\s*,\s*(?:[0-9]+|[+~][0-9]+|\$|/(?:[^/\\\n\[\]]|\\.|\[[^/\\\n\[\]]*\])*/[IM]*)"
)
_SED_PLAIN = re.compile(
    r"\s*+(?:!\s*+)?"
    r"(?:[{}]|(?:[=dDgGhHnNpPxzF]|[qQl][ \t]*[0-9]*|[bt][ \t]*\w*|:[ \t]*\w+)[ \t]*(?=[;\n}]|$))"
)
_SUFFIX = re.compile(r"[\w.~-]*")
_SED_SEPARATORS = re.compile(r"[\s;]+")
_SED_SUBSTITUTES = re.compile(r"\s*+(?:!\s*+)?[sy]([^\w\s\\;{}\[\]])")
_SED_FLAGS = re.compile(r"[gpiImM0-9]*[ \t]*")


def sed_doubt(script: str) -> str:
    """Return why a sed script may do more than print; empty if it plainly does not."""
    position = 0
    while position < len(script):
        if separators := _SED_SEPARATORS.match(script, position):
            position = separators.end()
            continue
        if address := _SED_ADDRESS.match(script, position):
            position = address.end()
            if second := _SED_AFTER_COMMA.match(script, position):
                position = second.end()
        if command := _SED_PLAIN.match(script, position):
            position = command.end()
            continue
        end = _end_of_substitution(script, position)
        if end < 0:
            return f"{script[position : position + 10]} may write or run something"
        position = end
    return ""


def _end_of_substitution(script: str, position: int) -> int:
    """Return where the `s///` or `y///` at `position` ends, or -1 if there is none, or none that is plain."""
    start = _SED_SUBSTITUTES.match(script, position)
    if not start:
        return -1
    delimiter, position = start[1], start.end()
    for _ in range(2):
        while position < len(script) and script[position] != delimiter:
            if script[position] == "\n":
                return -1
            position += 2 if script[position] == "\\" else 1
        position += 1
    if position > len(script):
        return -1
    # Where brackets hold the delimiter, one sed ends the pattern there and another does not.
    parts = script[start.end() : position].split(delimiter)
    if any("[" in part and "]" not in part.partition("[")[2] for part in parts):
        return -1
    flags = _SED_FLAGS.match(script, position)
    position = flags.end() if flags else position
    return position if position == len(script) or script[position] in ";}\n" else -1


def _classify_sed(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words,
        "-nErsuz -e: -f:u -i? -I? --quiet --silent --expression: --file:u --regexp-extended --separate "
        "--unbuffered --null-data --line-length: --posix --debug --in-place? --follow-symlinks",
    )
    scripts = [option.value for option in parsed.options if option.name in {"-e", "--expression"}]
    files = parsed.operands
    if not scripts and not parsed.has("-f", "--file"):
        scripts, files = list(files[:1]), files[1:]
    verdicts = [option_verdict(parsed), *map(_sed_script_verdict, scripts)]
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


def _sed_script_verdict(script: Word | None) -> CommandVerdict:
    if script is None or script.text is None:
        return uncertain("a sed script that is only known at run time")
    reason = sed_doubt(script.text)
    return uncertain(f"sed: {reason}") if reason else NO_EFFECT


# ---- sqlite3

_SQL_READS = re.compile(
    r"\s*(?:select|with|explain|values)\b(?!.*\b(?:insert|update|delete|replace|into)\b)",
    re.IGNORECASE | re.DOTALL,
)
_SQL_SHOWS = re.compile(r"\.(?:tables|schema|indexes|databases)(?:\s+\w+)?")
_SQL_CALL = re.compile(r"(?<!\w)[^\WA-Za-z_]*+([A-Za-z_]\w*+)\s*+\(")
_SQL_FUNCTIONS = name_set(
    "count sum avg min max total length lower upper substr substring round abs coalesce ifnull nullif iif "
    "group_concat date time datetime julianday strftime printf format replace trim ltrim rtrim instr hex "
    "quote typeof cast in as values over exists and or not on using json json_extract json_each row_number "
    "rank dense_rank lag lead ntile distinct select from when then case"
)
_SQLITE_OPTIONS = name_set(
    "-header -noheader -csv -json -column -line -list -box -table -markdown -batch -readonly"
)


def _classify_sqlite(words: Words) -> CommandVerdict:
    options = {word.text for word in words[1:] if word.prefix.startswith("-")}
    operands = [word for word in words[1:] if not word.prefix.startswith("-")]
    statement = ((operands[1].text or "") if len(operands) == 2 else "").strip().rstrip(";")
    calls = {name.lower() for name in _SQL_CALL.findall(statement)}
    only_reads = _SQL_SHOWS.fullmatch(statement) or (_SQL_READS.match(statement) and ";" not in statement)
    is_plain = (
        "-readonly" in options
        and options <= _SQLITE_OPTIONS
        and not any(word.may_be_option for word in operands)
        and only_reads
        and calls <= _SQL_FUNCTIONS
    )
    verdict = NO_EFFECT if is_plain else uncertain("sqlite3 may change the database or run programs")
    return merge([*map(reads, operands[:1]), verdict])


COMMANDS = (
    CommandSpec(names="awk gawk mawk nawk", classify=_classify_awk),
    CommandSpec(names="sed gsed", classify=_classify_sed),
    CommandSpec(names="sqlite3", classify=_classify_sqlite),
)
