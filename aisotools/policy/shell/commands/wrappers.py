"""Programs that run other programs: what they run is judged in their place.

find and xargs: programs that run others on what they find, with words that nobody has seen.
"""

from __future__ import annotations

import re

from aisotools.core.types import Effect
from aisotools.policy.shell.expansion import Word, anything, harmless_for_programs, literal, names
from aisotools.policy.shell.options import (
    NOTHING,
    UNSEEN,
    CommandVerdict,
    Judge,
    Row,
    Words,
    does,
    merged,
    parse,
    reads,
    said_by,
    unsure,
    writes,
)

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_SAME_IN_ALL_SHELLS = re.compile(r"[\w \n\t./,:%+\-'\"|;@]*", re.ASCII)


def _runs(words: Words) -> CommandVerdict:
    return CommandVerdict(commands=(tuple(words),)) if words else NOTHING


def _prefix(options: str, operands: int = 0, why: str = "") -> Judge:
    """A judge for programs whose options and own operands come before the command they run."""

    def judge(words: Words) -> CommandVerdict:
        parsed = parse(words, options, posix=True)
        doubt = unsure(f"{words[0].shown} {why}") if why else NOTHING
        return merged([said_by(parsed), doubt, _runs(parsed.operands[operands:])])

    return judge


def _env(words: Words) -> CommandVerdict:
    """Env sets variables and runs a command, or prints the variables."""
    parsed = parse(
        words,
        "-i0v -u: -C:r -S:x --ignore-environment --null --unset: --chdir:r --debug --split-string:x",
        posix=True,
    )
    verdicts = [said_by(parsed)]
    if split := parsed.value("-S", "--split-string"):
        rest = (*map(literal, split.shown.split()), *parsed.operands)
    else:
        rest = tuple(parsed.operands[1:] if parsed.operands[:1] == [literal("-")] else parsed.operands)
    while rest and (found := _ASSIGNMENT.match(rest[0].prefix)):
        if rest[0].many or not harmless_for_programs(found[1]):
            verdicts.append(unsure(f"it sets {found[1]} for a program"))
        rest = rest[1:]
    return merged([*verdicts, _runs(rest), CommandVerdict(moves=parsed.has("-C", "--chdir"))])


def _bash(words: Words) -> CommandVerdict:
    """A shell with a text to run; what comes from a file or from its input nobody has looked into."""
    name = (words[0].text or "").rpartition("/")[2]
    parsed = parse(
        words,
        "-abefhkmnptuvxBCEHPT -c -o: -i!u -l!u -s!u -r --norc --noprofile --posix --login!u",
        posix=True,
    )
    verdicts = [said_by(parsed)]
    first = parsed.operands[0] if parsed.operands else None
    if parsed.has("-c") and first is not None and first.text is not None:
        verdicts.append(CommandVerdict(scripts=(first.text,)))
        if parsed.has("-k", "-a", "-B", "-H", "-p", "-P", "-o") or name == "zsh":
            verdicts.append(unsure(f"{name} is told to read it in its own way"))
        if name != "bash" and not _SAME_IN_ALL_SHELLS.fullmatch(first.text):
            verdicts.append(unsure(f"{name} may read it otherwise than bash"))
    elif parsed.has("-n") and first is not None and not parsed.has("-c"):
        verdicts.append(reads(first))
    else:
        verdicts.append(unsure(f"{name} runs what nobody has looked into"))
    return merged(verdicts)


def _eval(words: Words) -> CommandVerdict:
    texts = [word.text for word in words[1:] if word.text is not None]
    if len(texts) < len(words) - 1:
        return unsure("eval runs a text that is not known beforehand")
    return CommandVerdict(scripts=(" ".join(texts),))


def _trap(words: Words) -> CommandVerdict:
    rest = [word for word in words[1:] if word.text != "--"]
    first = rest[0] if rest else literal("-p")
    if first.text in {"-p", "-l", "-", ""}:
        return NOTHING
    if first.text is None or first.text.startswith("-"):
        return unsure("trap runs a text that is not known beforehand")
    return CommandVerdict(scripts=(first.text,))


def _command(words: Words) -> CommandVerdict:
    parsed = parse(words, "-pvV", posix=True)
    if parsed.has("-v", "-V"):
        return said_by(parsed)
    other = unsure("command -p looks for programs elsewhere") if parsed.has("-p") else NOTHING
    return merged([said_by(parsed), other, _runs(parsed.operands)])


def _text(words: Words) -> CommandVerdict:
    """watch, su -c and their kin: a command in one word or in several."""
    texts = [word.text or "" for word in words[1:] if not word.prefix.startswith("-")]
    return merged(
        [
            unsure(f"{words[0].shown} runs a command in its own way"),
            CommandVerdict(scripts=(" ".join(texts),)),
        ]
    )


def _coproc(words: Words) -> CommandVerdict:
    inner = list(words[1:])
    while len(inner) > 1 and (inner[0].text == "{" or inner[1].text == "{"):
        inner.pop(0)
    return merged([unsure("coproc sets variables and goes on in the background"), _runs(inner)])


_SUDO = (
    "-AbEeHiKklnPSsvVB -u: -g: -p: -C: -D: -h: -r: -t: -T: -U: -R: --user: --group: --preserve-env? --login "
    "--shell"
)

ROWS = (
    Row(
        names="env",
        judge=_env,
        harmless=("env", "env LC_ALL=C sort a", "env -u X ls", "env -i ls"),
        harmful=(
            "env rm x",
            "env LD_PRELOAD=./x ls",
            "env -S 'rm x'",
            "env PATH=. ls",
            "env $x ls",
            "env -S'rm x'",
            "env -i - rm x",
            "env --split-string='rm x'",
            "env BASH_ENV=x bash -c ls",
            "env a=b rm x",
        ),
    ),
    Row(
        names="nice",
        judge=_prefix("-n: -# --adjustment:"),
        harmless=("nice ls", "nice -n 5 wc a", "nice -5 ls"),
        harmful=("nice rm x", "nice -n 5 rm x", "nice -n5 $x"),
    ),
    Row(
        names="ionice",
        judge=_prefix("-c: -n: -t"),
        harmless=("ionice -c 3 ls",),
        harmful=("ionice -c 3 rm x", "ionice -p 1"),
    ),
    Row(
        names="timeout",
        judge=_prefix("-k: -s: -v --kill-after: --signal: --foreground --preserve-status --verbose", 1),
        harmless=("timeout 5 ls", "timeout -k 1 5s wc a"),
        harmful=("timeout 5 rm x", "timeout -s KILL 5 sh x"),
    ),
    Row(
        names="stdbuf",
        judge=_prefix("-i: -o: -e: --input: --output: --error:"),
        harmless=("stdbuf -oL ls",),
        harmful=("stdbuf -oL rm x",),
    ),
    Row(
        names="setsid",
        judge=_prefix("-cfw --ctty --fork --wait"),
        harmless=("setsid ls",),
        harmful=("setsid rm x", "setsid -f rm x"),
    ),
    Row(
        names="time",
        judge=_prefix("-pvaq -f: -o:w --portability --format: --output:w --append --verbose"),
        harmless=("time ls", "time -p wc a"),
        harmful=("time rm x", "/usr/bin/time -o x ls", "time { rm x; }"),
    ),
    Row(
        names="builtin exec",
        judge=_prefix("-cl -a:"),
        about="",
        harmless=("builtin echo x", "exec ls"),
        harmful=("builtin eval 'rm x'", "exec rm x", "exec > x", "exec -a ls rm x"),
    ),
    Row(
        names="command",
        judge=_command,
        about="",
        harmless=("command -v rm", "command ls", "command -V ls"),
        harmful=("command rm x", "command -p rm x", "command command rm x"),
    ),
    Row(
        names="nohup",
        judge=_prefix("", 0, "may write nohup.out"),
        harmless=("nohup --version",),
        harmful=("nohup rm x", "nohup ls"),
    ),
    Row(
        names="sudo doas",
        judge=_prefix(_SUDO, 0, "gives up the protection of being an ordinary user"),
        harmless=("sudo --version",),
        harmful=("sudo rm x", "sudo -u me ls", "doas ls", "sudo -E env rm x"),
    ),
    Row(
        names="chroot taskset chrt setarch prlimit numactl busybox toybox strace ltrace perf valgrind gdb "
        "script unshare nsenter systemd-run firejail bwrap fakeroot proot unbuffer rlwrap expect xvfb-run "
        "dbus-run-session parallel entr torify proxychains caffeinate cpulimit start-stop-daemon runcon "
        "setpriv capsh faketime ld.so rush sem pv-run runuser pkexec catchsegv lldb rr heaptrack linux32 "
        "linux64 i386 x86_64",
        judge=_prefix("*", 0, "runs a program in its own way"),
        harmless=("busybox --help",),
        harmful=("busybox rm x", "strace rm x", "ls | parallel rm", "script -c 'rm x'"),
    ),
    Row(
        names="flock",
        judge=_prefix("-sxnuoF -w: -E: -c!u --shared --exclusive --nonblock --timeout:", 1, "makes a lock"),
        harmless=("flock --version",),
        harmful=("flock l rm x", "flock l ls", "flock l -c 'rm x'"),
    ),
    Row(
        names="watch su at batch tmux screen rsh",
        judge=_text,
        harmless=("watch --version",),
        harmful=("watch rm x", "su -c 'rm x'", "watch 'rm x'", "at now"),
    ),
    Row(
        names="bash sh dash ash ksh mksh zsh fish csh tcsh rbash",
        judge=_bash,
        harmless=("bash -c 'ls | wc -l'", "sh -c 'cat a'", "bash -n a.sh", "bash --version"),
        harmful=(
            "bash -c 'rm x'",
            "bash x.sh",
            "bash",
            "cat x | bash",
            "bash <<< 'rm x'",
            'bash -c "$x"',
            "sh -c '[[ a && rm x ]]'",
            "bash -ic ls",
            "bash -lc ls",
            "bash --rcfile x -c ls",
            "bash -s < x",
            "zsh -c 'ls *(e:x:)'",
            "bash -O extglob -c ls",
            "bash -xc 'rm x'",
        ),
    ),
    Row(
        names="eval",
        judge=_eval,
        about="",
        harmless=("eval ls", "eval 'ls; pwd'"),
        harmful=("eval rm x", "eval 'r''m x'", 'eval "$x"', "eval 'eval rm x'", "eval $(cat x)"),
    ),
    Row(
        names="trap",
        judge=_trap,
        about="",
        harmless=("trap - EXIT", "trap 'ls' EXIT"),
        harmful=("trap 'rm x' EXIT", 'trap "$x" DEBUG', "trap -- 'rm x' EXIT"),
    ),
    Row(
        names="coproc",
        judge=_coproc,
        about="",
        harmless=(),
        harmful=("coproc rm x", "coproc X { rm x; }", "coproc ls"),
    ),
    Row(
        names="source .",
        options="*",
        effect=Effect.LOCAL_MUTATION,
        why="runs a file that is not looked into",
        certain=False,
        about="",
        harmless=(),
        harmful=("source x", ". ./x", ". <(echo rm x)"),
    ),
)


def _xargs(words: Words) -> CommandVerdict:
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
    return merged([said_by(parsed), CommandVerdict(commands=(command,))])


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


def _find(words: Words) -> CommandVerdict:
    """Tests and actions, each with the number of values it takes."""
    verdicts: list[CommandVerdict] = []
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
            verdicts.append(
                CommandVerdict(commands=(tuple(_filled(one, "{}", beginning) for one in rest[:end]),))
            )
            del rest[: end + 1]
        elif action in _WRITERS and value is not None:
            verdicts.append(writes(value))
            del rest[: action == "-fprintf"]
        else:
            verdicts.append(unsure(f"find may do anything with {word.shown}"))
    return merged(verdicts)


FIND_ROWS = (
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
