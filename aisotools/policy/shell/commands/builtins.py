"""What bash does itself: variables, options, tests, jobs."""

from __future__ import annotations

import re
from itertools import pairwise

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, harmless_for_programs, harmless_for_shell, names
from aisotools.policy.shell.options import (
    NOTHING,
    CommandVerdict,
    Row,
    Words,
    does,
    merged,
    parse,
    said_by,
    unsure,
)

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_STORES = re.compile(r"%[-+ #0-9.*'hlLjzt]*n")


def _sets(word: Word, *, for_programs: bool = False) -> CommandVerdict:
    """A word that names a variable to set, perhaps with `=value`."""
    name, equals, value = word.prefix.partition("=")
    known = _NAME.fullmatch(name) and (equals or word.text is not None) and not value.startswith("(")
    harmless = harmless_for_programs if for_programs else harmless_for_shell
    return NOTHING if known and not word.many and harmless(name) else unsure(f"it sets {word.shown}")


def _change_folder(words: Words) -> CommandVerdict:
    parsed = parse(words, "-LPe@n", loose=True)
    target = parsed.operands[0].text if len(parsed.operands) == 1 else None
    inside = (
        target is not None and not target.startswith(("/", "~", "-", "+")) and ".." not in target.split("/")
    )
    return merged([said_by(parsed), NOTHING if inside else CommandVerdict(moves=True)])


def _printf(words: Words) -> CommandVerdict:
    rest = list(words[1:])
    verdicts = []
    if rest and rest[0].text == "-v":
        verdicts.append(
            _sets(rest[1]) if len(rest) > 1 and rest[1].text is not None else unsure("it sets a variable")
        )
        rest = rest[2:]
    elif rest and rest[0].text == "--":
        rest = rest[1:]
    elif rest and rest[0].may_be_option:
        return unsure(f"{rest[0].shown} may turn out to be an option")
    if rest and (rest[0].text is None or _STORES.search(rest[0].text.replace("%%", ""))):
        verdicts.append(unsure("a format can set variables"))
    return merged(verdicts)


def _read(words: Words) -> CommandVerdict:
    parsed = parse(words, "-rs -a: -d: -n: -N: -p: -t: -u:")
    names = [*parsed.operands, *filter(None, [parsed.value("-a")])]
    return merged([said_by(parsed), *map(_sets, names)])


def _mapfile(words: Words) -> CommandVerdict:
    parsed = parse(words, "-t -d: -n: -O: -s: -u: -C:x -c:")
    return merged([said_by(parsed), *map(_sets, parsed.operands)])


def _declare(words: Words) -> CommandVerdict:
    exports = words[0].text == "export"
    parsed = parse(words, "-pnaAr" if exports else "-aAprglufFx")
    for_programs = exports or parsed.has("-x")
    return merged([said_by(parsed), *(_sets(word, for_programs=for_programs) for word in parsed.operands)])


def _unset(words: Words) -> CommandVerdict:
    parsed = parse(words, "-v")
    plain = [word for word in parsed.operands if "=" not in word.prefix]
    return merged([said_by(parsed), *map(_sets, plain)])


_SET_LETTERS = frozenset("euxfvnCb")
_SET_NAMES = names("errexit nounset xtrace pipefail noglob verbose noclobber noexec notify")


def _set(words: Words) -> CommandVerdict:
    rest = list(words[1:])
    while (
        rest
        and rest[0].text is not None
        and rest[0].text[:1] in {"-", "+"}
        and rest[0].text not in {"--", "-"}
    ):
        letters = rest.pop(0).shown[1:]
        named = letters.endswith("o")
        name = rest.pop(0) if named and rest else None
        if not set(letters.rstrip("o")) <= _SET_LETTERS or (name is not None and name.text not in _SET_NAMES):
            return unsure("it changes how the shell reads what follows")
    if rest and rest[0].may_be_option and rest[0].text not in {"--", "-"}:
        return unsure(f"{rest[0].shown} may turn out to be an option")
    return NOTHING


_SHOPT = names("nullglob dotglob globstar nocaseglob nocasematch failglob inherit_errexit globskipdots")


def _shopt(words: Words) -> CommandVerdict:
    parsed = parse(words, "-supq")
    known = all(word.text in _SHOPT for word in parsed.operands)
    return merged(
        [said_by(parsed), NOTHING if known else unsure("it changes how the shell reads what follows")]
    )


def _alias(words: Words) -> CommandVerdict:
    return NOTHING if len(words) < 2 or words[1].text == "-p" else unsure("it changes what names mean")


def _hash(words: Words) -> CommandVerdict:
    return said_by(parse(words, "-rlt -p:u -d!u"))


def _history(words: Words) -> CommandVerdict:
    if len(words) < 2 or (words[1].text or "").isdecimal():
        return NOTHING
    clears = words[1].prefix.startswith(("-c", "-d"))
    return does(Effect.DESTRUCTIVE, "it deletes the history") if clears else unsure("history can write files")


def _test(words: Words) -> CommandVerdict:
    """`-v` evaluates subscripts, so no word that may be `-v` may stand before one that is not known."""
    rest = list(words[1:])
    if words[0].text == "[" and (not rest or rest.pop().text != "]"):
        return unsure("a test that is never closed")
    if any(word.many for word in rest):
        return unsure("a test with words that may become several")
    for word, following in pairwise(rest):
        evaluates = word.text in {"-v", "-R"} or (word.text is None and word.may_be_option)
        if evaluates and (following.text is None or "[" in following.text):
            return unsure("a test that evaluates its words can run commands")
    return NOTHING


def _getopts(words: Words) -> CommandVerdict:
    return merged(map(_sets, words[2:3])) if len(words) > 2 else unsure("getopts needs a name")


def _jobs(words: Words) -> CommandVerdict:
    return said_by(parse(words, "-lpnrs -x!x"))


def _wait(words: Words) -> CommandVerdict:
    return said_by(parse(words, "-nf -p:u"))


ROWS = (
    Row(
        names="cd pushd popd dirs",
        judge=_change_folder,
        harmless=("cd src && ls", "pushd a", "cd"),
        harmful=("cd /etc && echo x > passwd", "cd $(rm x)"),
    ),
    Row(
        names="printf",
        judge=_printf,
        harmless=("printf '%s\\n' \"$x\"", "printf -v x %d 1", "printf hi"),
        harmful=(
            "printf -v 'a[$(rm x)]' 1",
            "printf -v PATH .",
            'printf "$x" y',
            "printf %n PATH",
            "printf $x",
        ),
    ),
    Row(
        names="read",
        judge=_read,
        about="",
        harmless=("read -r x", "read -p 'name: ' x", 'while IFS= read -r line; do echo "$line"; done < a'),
        harmful=("read PATH", "read 'a[$(rm x)]'", "read $x", "read -e x"),
    ),
    Row(
        names="mapfile readarray",
        judge=_mapfile,
        about="",
        harmless=("mapfile -t lines < a",),
        harmful=("mapfile -C 'rm x' -c 1 a", "mapfile 'a[$(rm x)]'", "readarray -tC ./x a"),
    ),
    Row(
        names="declare typeset local readonly export",
        judge=_declare,
        about="",
        harmless=("declare -p", "export LC_ALL=C", "declare -a list", "readonly x=1", "export x=1"),
        harmful=(
            "export PATH=.",
            "declare -i x='a[$(rm x)]'",
            "declare -n r='a[$(rm x)]'",
            "export LD_PRELOAD=./x",
            "typeset PATH=.",
            'declare "x[$(rm x)]=1"',
            "declare -a 'x=($(rm x))'",
            "export -f ls",
            "readonly PATH=.",
            "export $x",
            "declare -x PAGER=./x",
            "export GIT_PAGER=./x && git log",
            "declare -xg BASH_ENV=./x",
        ),
    ),
    Row(
        names="unset",
        judge=_unset,
        about="",
        harmless=("unset x",),
        harmful=("unset 'a[$(rm x)]'", "unset -f ls", "unset PATH", "unset $x"),
    ),
    Row(
        names="set",
        judge=_set,
        about="",
        harmless=("set -euo pipefail; ls", "set -e", "set -- a b", "set +x", "set -o pipefail"),
        harmful=(
            "set -a",
            "set -k; ls LD_PRELOAD=./x",
            "set -o allexport",
            "set -o posix",
            "set $x",
            "set -eao pipefail",
        ),
    ),
    Row(
        names="shopt",
        judge=_shopt,
        about="",
        harmless=("shopt -s nullglob", "shopt"),
        harmful=("shopt -s extglob", "shopt -s expand_aliases", "shopt $x"),
    ),
    Row(
        names="alias",
        judge=_alias,
        about="",
        harmless=("alias",),
        harmful=("alias ls=rm",),
    ),
    Row(
        names="hash",
        judge=_hash,
        about="",
        harmless=("hash -r", "hash ls"),
        harmful=("hash -p ./x ls", "hash -d ls"),
    ),
    Row(
        names="history",
        judge=_history,
        about="",
        harmless=("history", "history 10"),
        harmful=("history -c", "history -w x", "history -s x", "history -a"),
    ),
    Row(
        names="test [",
        judge=_test,
        about="",
        harmless=(
            "[ -f a ]",
            'test -n "$x"',
            '[ "$x" = "$y" ]',
            "[ ! -d a ] && ls",
            "[ -v x ]",
            "[ -f a -a -r a ]",
        ),
        harmful=(
            "[ -v 'a[$(rm x)]' ]",
            'test -v "$x"',
            "[ $x ]",
            '[ "$x" "$y" ]',
            "[ a > b ]",
            "[ a",
            '[ -R "$x" ]',
        ),
    ),
    Row(
        names="getopts",
        judge=_getopts,
        about="",
        harmless=("getopts ab x",),
        harmful=("getopts ab 'a[$(rm x)]'", "getopts ab PATH"),
    ),
    Row(
        names="jobs",
        judge=_jobs,
        about="",
        harmless=("jobs -l",),
        harmful=("jobs -x rm x",),
    ),
    Row(
        names="wait",
        judge=_wait,
        about="",
        harmless=("ls & wait",),
        harmful=("wait -p 'a[$(rm x)]'",),
    ),
    Row(
        names="exit return break continue shift logout times caller help umask ulimit fg bg disown",
        options="*",
        operands=".",
        loose=True,
        about="",
        harmless=("exit 0", "ulimit -n", "umask"),
        harmful=("exit 0 > x", "umask | tee x"),
    ),
    Row(
        names="let enable bind complete compgen compopt fc suspend unalias",
        options="*",
        operands=".",
        effect=Effect.LOCAL_MUTATION,
        why="can run commands or change what names mean",
        certain=False,
        about="",
        harmless=(),
        harmful=(
            "let 'a[$(rm x)]=1'",
            "enable -f ./x.so x",
            "bind -x '\"a\":rm x'",
            "compgen -C 'rm x' a",
            "compgen -W '$(rm x)'",
            "fc -s",
            "fc -e ./x",
            "complete -C 'rm x' y",
        ),
    ),
)
