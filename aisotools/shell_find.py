"""find and xargs: programs that run others on what they find, with words that nobody has seen."""

from __future__ import annotations

import re

from aisotools.events import Effect
from aisotools.shell_options import Row, Words, parse, said_by
from aisotools.shell_text import names
from aisotools.shell_verdict import UNSEEN, Verdict, does, merged, reads, unsure, writes
from aisotools.shell_words import Word, anything, literal


def _xargs(words: Words) -> Verdict:
    """The command that xargs runs gets words that nobody has seen."""
    parsed = parse(
        words,
        "-0rtxo -a:r -d: -E: -I: -i? -L: -l? -n: -P: -s: -e? -p!u --null --arg-file:r --delimiter: --eof? "
        "--replace? --max-lines? --max-args: --max-procs: --max-chars: --no-run-if-empty --verbose --exit "
        "--interactive!u",
        posix=True,
    )
    command = tuple(parsed.operands) or (literal("echo"),)
    marks = {
        "{}" if given.value is None else given.value.text
        for given in parsed.options
        if given.name in _REPLACES
    }
    if None in marks or "" in marks:
        return merged([said_by(parsed), unsure("it cannot be told what xargs replaces")])
    for mark in filter(None, marks):
        command = tuple(_filled(word, mark) for word in command)
    if not marks or parsed.has("-n", "-L", "-l", "--max-args", "--max-lines"):  # whichever comes last counts
        command = (*command, anything(UNSEEN))
    return merged([said_by(parsed), Verdict(commands=(command,))])


_REPLACES = frozenset(("-I", "-i", "--replace"))


def _filled(word: Word, mark: str, beginning: str = "") -> Word:
    """The word with something unknown in place of `mark`."""
    before, found, _ = word.prefix.partition(mark)
    if not found and mark not in word.shown:
        return word
    return Word(word.shown, None, before or beginning, many=word.many, placed=False)


_TESTS = names(
    "-true -false -empty -depth -d -daystart -follow -mount -xdev -noleaf -nogroup -nouser -readable "
    "-writable -executable -prune -print -print0 -ls -quit -not -a -and -o -or ! ( ) , -warn -nowarn "
    "-ignore_readdir_race -noignore_readdir_race"
)
_TESTS_WITH_VALUE = names(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -lname -ilname -type -xtype "
    "-size -mtime -mmin -atime -amin -ctime -cmin -newer -anewer -cnewer -perm -user -group -uid -gid "
    "-links -inum -samefile -fstype -maxdepth -mindepth -printf -used"
)
_RUNNERS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_WRITERS = frozenset(("-fprint", "-fprint0", "-fls", "-fprintf"))
_NEWER = re.compile(r"-newer[aBcm][aBcmt]")


def _find(words: Words) -> Verdict:
    """Tests and actions, each with the number of values it takes."""
    verdicts: list[Verdict] = []
    rest = list(words[1:])
    beginning = "./"
    while rest and rest[0].text in {"-H", "-L", "-P", "-O1", "-O2", "-O3"}:
        rest.pop(0)
    while rest and not (rest[0].prefix.startswith("-") or rest[0].text in {"!", "("}):
        place = rest.pop(0)
        if place.may_be_option:
            verdicts.append(unsure(f"{place.shown} may turn out to be an action"))
            beginning = ""
        verdicts.append(reads(place))
    while rest:
        word = rest.pop(0)
        action = word.text or ""
        if action in _TESTS:
            continue
        value = rest.pop(0) if rest and action not in _RUNNERS and action != "-delete" else None
        if action in _TESTS_WITH_VALUE or _NEWER.fullmatch(action):
            if value is not None and value.many:
                verdicts.append(unsure(f"it cannot be told how many words {value.shown} becomes"))
        elif action == "-delete":
            verdicts.append(does(Effect.DESTRUCTIVE, "find -delete removes files"))
        elif action in _RUNNERS:
            ends = [
                at
                for at, one in enumerate(rest)
                if one.text == ";" or (one.text == "+" and rest[at - 1].text == "{}")
            ]
            end = ends[0] if ends else len(rest)
            verdicts.append(Verdict(commands=(tuple(_filled(one, "{}", beginning) for one in rest[:end]),)))
            del rest[: end + 1]
        elif action in _WRITERS and value is not None:
            verdicts.append(writes(value))
            del rest[: action == "-fprintf"]
        else:
            verdicts.append(unsure(f"find may do anything with {word.shown}"))
    return merged(verdicts)


ROWS = (
    Row(
        names="xargs",
        judge=_xargs,
        harmless=(
            "ls | xargs wc -l",
            "find . | xargs grep -l x",
            "ls | xargs -I{} cat {}",
            "ls | xargs -0 -n1 head",
            "xargs",
        ),
        harmful=(
            "ls | xargs rm",
            "ls | xargs -n1 rm -f",
            "ls | xargs sh -c 'rm $0'",
            "ls | xargs -I{} sh -c 'cat {}'",
            "ls | xargs -I rm rm x",
            "ls | xargs sort",
            "ls | xargs -I{} {}",
            "ls | xargs env",
            "ls | xargs -a f rm",
            "ls | xargs git",
            "ls | xargs --arg-file=x rm",
            "ls | xargs find",
        ),
    ),
    Row(
        names="find",
        judge=_find,
        harmless=(
            "find . -name '*.py'",
            "find . -type f -exec grep -l x {} \\;",
            "find . -maxdepth 2 -not -path './.git/*'",
            "find",
            "find . \\( -name a -o -name b \\) -print",
            "find src -newermt yesterday",
            "find . -type f -exec wc -l {} +",
            "find -L . -size +1M",
        ),
        harmful=(
            "find . -delete",
            "find . -exec rm {} \\;",
            "find . -exec rm {} +",
            "find . -fprint x",
            "find . -fprintf x %p",
            "find . -fls x",
            "find . -ok rm {} \\;",
            "find . -execdir rm {} \\;",
            "find $x",
            "find * -print",
            "find . -exec sh -c 'cat {}' \\;",
            "find . -x",
            "find . -exec {} \\;",
            "find . -name a -exec env -S 'rm x' \\;",
            "find . -okdir rm {} \\;",
            "find . -files0-from x",
        ),
    ),
)
