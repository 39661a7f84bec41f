"""What stands for other text in a shell text: `$'...'`, and command substitutions that print what is known.

What bash puts in the place of a substitution may be a word of a command, or a part of an expression that it
evaluates. So each is matched as a whole: with anything else in it, such as a second command or an option,
nothing is known.

The programs in them are judged like all commands of a text; here they are taken to be what their names say. A
function or an alias of such a name, and a `PATH` that is set, are doubts about the text as a whole.
"""

from __future__ import annotations

import re

_MAX_COUNT_CHARS = 1000

# ---- quotes

_ANSI_ESCAPE = re.compile(
    r"\\(?:([abeEfnrtv\\'\"?])|([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|(.))",
    re.DOTALL,
)
_ANSI_CHARACTERS = dict(zip("abeEfnrtv\\'\"?", "\a\b\x1b\x1b\f\n\r\t\v\\'\"?", strict=True))


def decode_ansi(body: str) -> str | None:
    """Return what the text between `$'` and `'` stands for; None if its meaning depends on the locale."""
    ambiguous = False

    def decode(escape: re.Match[str]) -> str:
        nonlocal ambiguous
        letter, octal, *hexadecimal, other = escape.groups()
        if letter:
            return _ANSI_CHARACTERS[letter]
        number = int(octal, 8) if octal else int(next(filter(None, hexadecimal), "0"), 16)
        ambiguous |= bool(other) or not 0 < number < 0x80
        return chr(number) if number < 0x80 else ""

    text = _ANSI_ESCAPE.sub(decode, body)
    return None if ambiguous else text


# ---- numbers

_COUNTED = r"(?!-)[\w./-]+"
_COUNT = re.compile(
    r"\$\((?:[^;&()`\n|]*\|)*\s*(?:wc\s+-[lwcm](?:\s*<\s*[\w./-]+|\s*<\s*\"?\$\{?\w+\}?\"?)?"
    r"(?:\s*\|\s*tr\s+-d\s+(?:' '|\"\ \"|'\[:space:\]'))?"
    rf"|wc\s+-[lwcm]\s+{_COUNTED}\s*\|\s*(?:cut\s+-d\s?(?:' '|\"\ \")\s+-f\s?1|awk\s+'\{{print\s*\$1\}}')"
    r"|nproc(?:\s+--all)?|id\s+-[ug]"
    # What is given with `-d` can be nothing but a time, so that a variable in quotes may stand for it.
    r"|date(?:\s+-u)?(?:\s+(?:-d\s?|--date=)(?:[\w:-]+|'[\w +:-]*'|\"[\w +:-]*(?:\$\{?\w+\}?)?[\w +:-]*\"))?"
    r"\s+\+%[sYmdHMSju]"
    # A name that begins with a dash would be an option, such as one that prints other things.
    rf"|grep\s+-[Eivw]*c[Eivw]*\s+(?:'(?!-)[^']*'|\"(?!-)[^\"$`\\]*\"|[\w.]+)(?:\s+{_COUNTED})?"
    rf"|stat\s+-c\s?(?P<q>['\"]?)%[sYXZhiugbB](?P=q)\s+{_COUNTED}"
    rf"|du\s+-(?:s[bkm]?|[bkm]s)\s+{_COUNTED}\s*\|\s*cut\s+-f\s?1)\s*\)",
    re.ASCII,
)
"""A command substitution that prints numbers and nothing else: a count, a size, a time."""
_NO_COUNT = re.compile(r"""\$\(\s*grep\s+-\w+\s+(?:'[^']*'|"[^"]*"|[\w.]+)\s*\)|\|\s*\|""")


def is_count(source: str) -> bool:
    """Return whether a command substitution certainly prints numbers alone, or nothing.

    Case: `grep -c` and `stat` print names of files as well if they get several, and a name may be `a[$(id)]`,
    which arithmetic runs. So they get one, that is written here; `||` would let another command print, too.
    """
    return len(source) < _MAX_COUNT_CHARS and bool(_COUNT.fullmatch(source)) and not _NO_COUNT.search(source)


def without_counts(source: str) -> str:
    """Return an arithmetic expression with a number in place of each substitution that prints one."""
    if "$(" not in source or len(source) > _MAX_COUNT_CHARS:
        return source
    return _COUNT.sub(lambda match: "0" if is_count(match[0]) else match[0], source)


# ---- paths of programs

_WHERE = r"\$\( *(?:command -v|which|type -[pP]) +[A-Za-z0-9_][\w.+-]*(?: +2> ?/dev/null)? *\)"
_PROGRAM_PATH = re.compile(
    rf'{_WHERE}|\$\( *(?:readlink -[efm]|realpath) +(?:"{_WHERE}"|{_WHERE}) *\)', re.ASCII
)


def is_program_path(source: str) -> bool:
    """Return whether a command substitution prints where one program lies, and nothing else.

    That is a path, or the name as it is written, or nothing: in quotes it is one word, and no option.

    Case: what `readlink` prints without `-f` is what a link holds, which may be any text, such as `-x`.
    Without quotes, a folder of `PATH` with a blank in its name makes several words.
    """
    return bool(_PROGRAM_PATH.fullmatch(source))


# ---- names and folders

# One commit of git: `HEAD`, a tag or a branch, or an ancestor of it. Where there is none, git prints what it
# was asked for. What begins with a dash would be an option, and `..` and `^@` stand for several commits.
_COMMIT = r"[A-Za-z0-9_](?:[\w/-]|\.(?!\.))*(?:[~^]\d*)*"
_PLAIN_NAME = re.compile(
    r"\$\( *(?:whoami|logname|id +-un|hostname(?: +-s)?|uname(?: +-[srm])?"
    rf"|git +rev-parse(?: +(?:--short(?:=\d+)?|--verify|-q|--quiet))* +{_COMMIT}(?: +2> ?/dev/null)?"
    rf"|git +merge-base +{_COMMIT} +{_COMMIT}(?: +2> ?/dev/null)?"
    r"|date(?: +-u)?(?: +(?:-d ?|--date=)'[\w +-]*')?"
    r" +(?P<q>['\"]?)\+(?!-)(?:%[YymdHMSFTjuNsVGgU]|[\w.:/-])*(?P=q)) *\)",
    re.ASCII,
)
_FOLDER = re.compile(
    r"\$\( *(?:pwd(?: +-[PL])?|git +rev-parse +--show-toplevel)(?: +2> ?/dev/null)? *\)", re.ASCII
)


def is_plain_name(source: str) -> bool:
    """Return whether a command substitution prints one word that is not an option: a user's name, a date."""
    return bool(_PLAIN_NAME.fullmatch(source))


def printed_beginning(source: str) -> str:
    """Return how what a command substitution prints begins; empty if it is not known.

    A folder is printed with its whole path, which may have blanks in it, or nothing is.
    """
    return "/" if _FOLDER.fullmatch(source) else ""
