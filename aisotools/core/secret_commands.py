"""Passwords that programs take in a way of their own on their command lines, and files of passwords.

Each command is found by its name, and a bounded part of the line behind it is looked at.
"""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect
from collections.abc import Iterator, Sequence

from aisotools.core.secret_names import looks_mixed
from aisotools.core.secret_shapes import Secret, is_placeholder, looks_random, with_rarest

_NEW = r"(?!\[redacted)(?<!\[redacted: )"  # no mark, and nothing in one
_VALUE = rf"""(?P<open>\\{{0,3}}["'])?{_NEW}(?P<value>(?(open)[^"'\n\\]++|[^\s"'|;&\\]++))"""
_PRINTS = r"""(?:echo|printf) (?:-n |["']?%s["']? )?"""
_PAIR = (
    rf"""(?:(?P<open>\\{{0,3}}["'])[^\s"':\\]{{1,80}}+:|[^\s"':\\]{{1,80}}+:){_NEW}"""
    r"""(?P<value>(?(open)[^"'\n\\]++|[^\s"'|;&\\]++))"""
)


_compile = functools.cache(re.compile)  # most are never needed


_Program = tuple[tuple[str, str], tuple[tuple[str, str], ...], str]

_LITERAL = re.compile(r"(?:[\w <:/-](?![?{])){0,60}")  # Python 3.11.2 forgets the look-ahead in `*+`


def _program(names: str, flag: str, value: str = _VALUE, *, sign: str = "") -> _Program:
    """Return a sign, the beginnings of commands, and the pattern of what follows them up to a password.

    Where there is no such sign, nothing follows; by default it is what the flag begins with. Signs and
    beginnings come with their rarest character.
    """
    beginning = _LITERAL.match(flag)
    sign = sign or (beginning[0] if beginning else "")
    beginnings = with_rarest(f"{name} " for name in names.split("|"))
    return with_rarest([sign])[0], beginnings, rf"[^\n|;&]{{0,160}}?(?<=\s){flag}{value}"


_PROGRAMS: tuple[_Program, ...] = (
    _program("mysql|mysqldump|mysqladmin|mysqlimport|mariadb|mariadb-dump|7z|7za|rar|unrar", "-p"),
    _program(
        "sshpass|docker login|podman login|nerdctl login|skopeo login|oras login|helm registry login", "-p ?"
    ),
    _program(
        "mongo|mongosh|mongodump|mongorestore|oc login|az login|cf login|influx|arangosh|kinit", "-p[ =]"
    ),
    _program("login", "-p[ =]?"),
    _program("redis-cli", "-a "),
    _program("ssh-keygen", "-N ?"),
    _program("ssh-keygen", "-P ?"),
    _program("xfreerdp|xfreerdp3|wfreerdp|cmdkey|net use|net user", "/(?:p|pass):"),
    _program("ConvertTo-SecureString", "(?:-String )?"),
    _program("svn|hg|cvs", "--password "),
    _program("useradd|usermod", "-p "),
    _program("sudo -S|passwd|docker login|podman login|gh auth login|kinit", "<<<[ ]?"),
    _program("gh secret set", "(?:-b|--body)[ =]"),
    _program("mc alias set|mc config host add", r"\S{1,60}+ \S{1,200}+ \S{1,80}+ "),
    _program("zip|unzip|sqlcmd|bcp|isql|tsql|ipmitool", "-P ?"),
    _program("ldapsearch|ldapmodify|ldapadd|ldapdelete|ldapwhoami|ldappasswd", "-w "),
    _program("smbclient|rpcclient|smbget|mount.cifs", r"-U ?[^\s%]{1,80}+%"),
    _program("openssl", r"(?:-\w{1,12} )?pass:", sign="pass:"),
    _program("lftp", r"""-u ?["']?[^\s,"']{1,80}+,"""),
    _program("ncftp|ncftpget|ncftpput|ncftpls", "-p "),
    _program("snmpget|snmpset|snmpwalk|snmpbulkwalk|snmpgetnext|snmptable|snmptrap", "-[AX] "),
    _program("pdftotext|pdfinfo|pdfimages|pdffonts|pdftoppm|pdftocairo|pdftohtml|pdfdetach", "-[uo]pw "),
    _program("ascp", "-W "),
    _program("wpa_passphrase", r"""(?:"[^"\n]{1,60}+"|'[^'\n]{1,60}+'|\S{1,60}+) """),
    _program("iwconfig", r"(?:key|enc) (?!open\b|restricted\b)(?:s:)?"),
    _program("rclone obscure", ""),
    _program("net use", r"/user:\S{1,80}+ (?!/)"),
    _program("npm config set|npm set|pnpm config set|pnpm set", r"\S{0,200}?_(?:authToken|auth|password) "),
    _program("setx", r"\w{0,40}?(?i:token|secret|passw(?:or)?d|pwd|api_?key|access_?key)\w{0,20} "),
    _program("restic", rf"""--password-command[ =]["']?{_PRINTS}"""),
    _program("cryptsetup", rf"<\({_PRINTS}", rf"""["']?{_NEW}(?P<value>[^\s"'|;&\\)]++)"""),
    _program("openssl enc|openssl aes-256-cbc", "-k "),
    _program("rabbitmqctl add_user|rabbitmqctl change_password", r"[\w.@-]{1,60}+ "),
    _program("htpasswd", r"-[a-zA-Z]{0,6}b[a-zA-Z]{0,6} \S{1,200}+ \S{1,80}+ "),
    _program(
        "curl|http|https|wget|aria2c|ab|xh",
        "(?:-u|-U|-a|--user|--proxy-user|--auth|-A)[ =]?",
        _PAIR,
        sign="-",
    ),
)
_NETRC = re.compile(
    r"(?:machine|login|account|user)[ \t]{1,40}\S{1,200}+\s{1,20}+password[ \t]{1,20}"
    rf"{_NEW}(?P<value>\S++)"
)
_PGPASS = re.compile(
    r"(?m)^[\w.*-]{1,200}+:(?:54\d\d|6432|\*):[\w.*-]{1,80}+:[\w.*-]{1,80}+:"
    rf"{_NEW}(?P<value>\S{{4,}}+)$"
)
_PIPED = re.compile(
    r"""(?<![\w-])echo[ \t]{1,40}(?:-\w{1,10}[ \t]{1,40})?["']?"""
    r"""(?:[\w.-]{1,60}+:(?=[^|\n]{1,200}\|[ \t]{0,40}(?:sudo )?chpasswd))?"""
    rf"""{_NEW}(?P<value>[^\s"'|]++)["']?[ \t]{{0,40}}\|[ \t]{{0,40}}"""
    r"""(?:sudo[ \t]{1,40}(?:-\w[ \t]{1,40})?(?:chpasswd|-S)|chpasswd"""
    r"""|(?:docker|podman|helm registry|gh auth)[ \t]login|kinit)"""
)
_LOGIN_PAIR = re.compile(
    r"""(?:auth[ ]?[=:][ ]?[(\[]|(?:BasicAuth|[Ll]ogin|authenticate|simple_bind_s|Credentials?)\()"""
    r"""\s{0,20}["'][^"'\n]{1,80}["'],\s{0,20}["'](?!\[redacted)(?<!\[redacted: )(?P<value>[^"'\n]++)"""
)


_SQL = re.compile(r"""(?i:identified by) ["'](?!\[redacted)(?<!\[redacted: )(?P<value>[^"'\n]++)""")


_SIGNS = (
    *(" -", "'-", '"-', ":", "<<<", " /", "add_user", "change_password", "alias", "SecureString"),
    *("wpa_passphrase", "obscure", "iwconfig", "setx "),
)
_VERBS = ("login ", "authtoken ", "set-token ")
_LOGIN_TOKEN = re.compile(r"(?:-{1,2}[\w-]{1,20}[ \t=])?(?P<value>[\w.+/=~-]{16,}+)")
_OTHERS = (  # hints, without all of which there is nothing, and patterns
    (("machine ", "login ", "user "), _NETRC),
    ((":54", ":6432:", ":*:"), _PGPASS),
    (("echo ",), _PIPED),
    (("auth", "Auth(", "ogin(", "authenticate(", "simple_bind_s(", "redential"), _LOGIN_PAIR),
    (("IDENTIFIED BY", "Identified by", "identified by"), _SQL),
)

_RARE_AND_SIGN = with_rarest(_SIGNS)
_RARE_AND_VERB = with_rarest(_VERBS)
_RARE_HINTS_AND_PATTERN = tuple((with_rarest(hints), pattern) for hints, pattern in _OTHERS)

COMMAND_SIGNS = (*_SIGNS, *_VERBS, *(hint for hints, _ in _OTHERS for hint in hints))
"""A text without any of these has no password that `find_in_commands` finds."""


def find_in_commands(text: str) -> Iterator[Secret]:
    """Yield passwords that programs take in a way of their own, and those of `.netrc` and `.pgpass`."""
    for (first, sign), names, behind in _PROGRAMS if _has_any(text, _RARE_AND_SIGN) else ():
        # Most of the time goes into looking for words, and a flag is one for many names.
        for rare, name in names if first in text and sign in text else ():
            for match in (
                _matches_behind(text, name, _compile(behind)) if rare in text and name in text else ()
            ):
                value = match["value"]
                if not (is_placeholder(value) or value.isdigit() or value.startswith(("-", "//"))):
                    yield Secret(*match.span("value"), "password")
    for rare, verb in _RARE_AND_VERB:
        for match in _matches_behind(text, verb, _LOGIN_TOKEN) if rare in text and verb in text else ():
            if looks_random(match["value"]):
                yield Secret(*match.span("value"), "token")
    for rare_hints, pattern in _RARE_HINTS_AND_PATTERN:
        if _has_any(text, rare_hints):
            for match in pattern.finditer(text):
                if not is_placeholder(match["value"]):
                    yield Secret(*match.span("value"), "password")


_PROGRAM_WORDS = frozenset(
    [name.split()[0] for _, names, _ in _PROGRAMS for _, name in names] + [verb.strip() for verb in _VERBS]
)
_LIST = re.compile(
    r"""(?:\\{0,3}["'][^"'\\\n]{1,300}\\{0,3}["'][\s,(\[]{1,20}){1,63}\\{0,3}["'][^"'\\\n]{1,300}\\{0,3}["']"""
)
_LIST_WORD = re.compile(r"""\\{0,3}["']([^"'\\\n]{1,300})\\{0,3}["']""")


def find_in_lists(text: str) -> Iterator[Secret]:
    """Yield passwords on command lines that are written as lists of words, such as `['mysql', '-px']`."""
    if "'-" not in text and '"-' not in text:
        return
    for found in _LIST.finditer(text):
        words = list(_LIST_WORD.finditer(found[0]))
        if any(word[1].startswith("-") for word in words):
            for place, start, end in find_in_words([word[1] for word in words]):
                offset = found.start() + words[place].start(1)
                yield Secret(offset + start, offset + end, "password")


def find_in_words(words: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    """Yield passwords among the words of a command line: the index of the word, and where in it.

    A password that some programs take only behind their flag, in the same word, counts in the next one as
    well if it is not a word of a language.
    """
    if _PROGRAM_WORDS.isdisjoint(word.rpartition("/")[2] for word in words):
        return
    for separated in (False, True):
        parts = [
            word if index == 0 or (separated and words[index - 1] == "-p") else f" {word}"
            for index, word in enumerate(words)
        ]
        if separated and len("".join(parts)) == len(" ".join(words)):
            return
        starts = list(itertools.accumulate((len(part) for part in parts), initial=0))
        line = "".join(parts)
        for secret in find_in_commands(line):
            place = bisect(starts, secret.start) - 1
            start = secret.start - starts[place] - (len(parts[place]) - len(words[place]))
            end = start + secret.end - secret.start
            if start < 0 or end > len(words[place]):
                continue
            is_next = separated and place > 0 and words[place - 1] == "-p"
            if not separated or (is_next and looks_mixed(words[place][start:end])):
                yield place, start, end


def _has_any(text: str, words: tuple[tuple[str, str], ...]) -> bool:
    """Return whether one of the words, each behind its rarest character, is in a text."""
    for rare, word in words:  # noqa: SIM110 - any() takes twice as long
        if rare in text and word in text:
            return True
    return False


def _matches_behind(text: str, name: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield what follows a command, wherever it is a word of its own."""
    place = text.find(name)
    while place >= 0:
        end = place + len(name)
        match = None
        if not place or not (text[place - 1].isalnum() or text[place - 1] in "_.-"):
            match = pattern.match(text, end - 1) or pattern.match(text, end)
        if match is not None:
            yield match
            end = match.end()
        place = text.find(name, end)
