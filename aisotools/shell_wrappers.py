"""Programs that run other programs: what they run is judged in their place."""

from __future__ import annotations

import re

from aisotools.events import Effect
from aisotools.shell_options import Judge, Row, Words, parse, said_by
from aisotools.shell_variables import harmless_for_programs
from aisotools.shell_verdict import NOTHING, Verdict, merged, reads, unsure
from aisotools.shell_words import literal

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_SAME_IN_ALL_SHELLS = re.compile(r"[\w \n\t./,:%+\-'\"|;@]*", re.ASCII)


def _runs(words: Words) -> Verdict:
    return Verdict(commands=(tuple(words),)) if words else NOTHING


def _prefix(options: str, operands: int = 0, why: str = "") -> Judge:
    """A judge for programs whose options and own operands come before the command they run."""

    def judge(words: Words) -> Verdict:
        parsed = parse(words, options, posix=True)
        doubt = unsure(f"{words[0].shown} {why}") if why else NOTHING
        return merged([said_by(parsed), doubt, _runs(parsed.operands[operands:])])

    return judge


def _env(words: Words) -> Verdict:
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
    return merged([*verdicts, _runs(rest), Verdict(moves=parsed.has("-C", "--chdir"))])


def _bash(words: Words) -> Verdict:
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
        verdicts.append(Verdict(scripts=(first.text,)))
        if parsed.has("-k", "-a", "-B", "-H", "-p", "-P", "-o") or name == "zsh":
            verdicts.append(unsure(f"{name} is told to read it in its own way"))
        if name != "bash" and not _SAME_IN_ALL_SHELLS.fullmatch(first.text):
            verdicts.append(unsure(f"{name} may read it otherwise than bash"))
    elif parsed.has("-n") and first is not None and not parsed.has("-c"):
        verdicts.append(reads(first))
    else:
        verdicts.append(unsure(f"{name} runs what nobody has looked into"))
    return merged(verdicts)


def _eval(words: Words) -> Verdict:
    texts = [word.text for word in words[1:] if word.text is not None]
    if len(texts) < len(words) - 1:
        return unsure("eval runs a text that is not known beforehand")
    return Verdict(scripts=(" ".join(texts),))


def _trap(words: Words) -> Verdict:
    rest = [word for word in words[1:] if word.text != "--"]
    first = rest[0] if rest else literal("-p")
    if first.text in {"-p", "-l", "-", ""}:
        return NOTHING
    if first.text is None or first.text.startswith("-"):
        return unsure("trap runs a text that is not known beforehand")
    return Verdict(scripts=(first.text,))


def _command(words: Words) -> Verdict:
    parsed = parse(words, "-pvV", posix=True)
    if parsed.has("-v", "-V"):
        return said_by(parsed)
    other = unsure("command -p looks for programs elsewhere") if parsed.has("-p") else NOTHING
    return merged([said_by(parsed), other, _runs(parsed.operands)])


def _text(words: Words) -> Verdict:
    """watch, su -c and their kin: a command in one word or in several."""
    texts = [word.text or "" for word in words[1:] if not word.prefix.startswith("-")]
    return merged(
        [unsure(f"{words[0].shown} runs a command in its own way"), Verdict(scripts=(" ".join(texts),))]
    )


def _coproc(words: Words) -> Verdict:
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
