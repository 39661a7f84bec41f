"""Programs that run other programs: find and xargs, env and sudo, shells and eval.

What they run is judged in their place, as far as it is known before it runs.
"""

from __future__ import annotations

import re

from aisotools.core.types import Effect
from aisotools.policy.shell.commands.scripting import SAME_IN_ALL_SHELLS, is_same_in_posix_shells
from aisotools.policy.shell.expansion import Word, literal, name_set, unknown_words
from aisotools.policy.shell.options import (
    Classifier,
    CommandSpec,
    ParsedCommand,
    Words,
    option_verdict,
    parse_options,
    program_name,
)
from aisotools.policy.shell.variables import is_harmless_for_programs
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    UNKNOWN_WORDS,
    CommandVerdict,
    has_effect,
    merge,
    reads,
    uncertain,
    writes,
)

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
_SUDO = (
    "-AbEeHiKklnPSsvVB -u: -g: -p: -C: -D:r -h: -r: -t: -T: -U: -R: --chdir:r --user: --group: "
    "--preserve-env? --login "
    "--shell"
)
_XARGS = (
    "-0rtxo -a:r -d: -E: -I: -i? -L: -l? -n: -P: -s: -e? -p!u --null --arg-file:r --delimiter: --eof? "
    "--replace? --max-lines? --max-args: --max-procs: --max-chars: --no-run-if-empty --verbose --exit "
    "--interactive!u"
)
_XARGS_REPLACE = frozenset(("-I", "-i", "--replace"))
_FIND_TESTS = name_set(
    "-true -false -empty -depth -d -daystart -follow -mount -xdev -noleaf -nogroup -nouser -readable "
    "-writable -executable -prune -print -print0 -ls -quit -not -a -and -o -or ! ( ) , -warn -nowarn "
    "-ignore_readdir_race -noignore_readdir_race"
)
_FIND_TESTS_WITH_VALUE = name_set(
    "-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -lname -ilname -type -xtype "
    "-size -mtime -mmin -atime -amin -ctime -cmin -newer -anewer -cnewer -perm -user -group -uid -gid "
    "-links -inum -samefile -fstype -maxdepth -mindepth -printf -used"
)
_FIND_FILES = frozenset(("-newer", "-anewer", "-cnewer", "-samefile"))
_FIND_NEWER = re.compile(r"-newer[aBcm][aBcmt]")
_FIND_NEWER_FILE = re.compile(r"-newer[aBcm][aBcm]")
_FIND_RUNNERS = frozenset(("-exec", "-execdir", "-ok", "-okdir"))
_FIND_WRITERS = frozenset(("-fprint", "-fprint0", "-fls", "-fprintf"))


def _runs(words: Words) -> CommandVerdict:
    return CommandVerdict(commands=(tuple(words),)) if words else NO_EFFECT


def _prefix(options: str, operands: int = 0, doubt: str = "", drops: tuple[str, ...] = ()) -> Classifier:
    """Return a classifier for programs whose options and own operands precede the command they run.

    Args:
        options: The options of the program itself.
        operands: How many operands precede the command.
        doubt: Why running a command this way is never certain, after the program's name; empty if it is.
        drops: Options with which the command does not get the environment.
    """

    def classify(words: Words) -> CommandVerdict:
        parsed = parse_options(words, options, posix=True)
        doubts = [uncertain(f"{words[0].display} {doubt}")] if doubt else []
        folder = _starts_in(parsed, "-D", "--chdir")
        if parsed.has(*drops):
            doubts.append(CommandVerdict(keeps_environment=False))
        return merge([option_verdict(parsed), *doubts, _runs(parsed.operands[operands:]), folder])

    return classify


def _classify_env(words: Words) -> CommandVerdict:
    parsed = parse_options(
        words,
        "-i0v -u: -C:r -S:x --ignore-environment --null --unset: --chdir:r --debug --split-string:x",
        posix=True,
    )
    verdicts = [option_verdict(parsed)]
    command = parsed.operands
    if parsed.has("-i", "-u", "--ignore-environment", "--unset") or command[:1] == [literal("-")]:
        verdicts.append(CommandVerdict(keeps_environment=False))
    if split := parsed.value("-S", "--split-string"):
        command = [*map(literal, split.display.split()), *command]
    elif command[:1] == [literal("-")]:
        command = command[1:]
    while command and (assignment := _ASSIGNMENT.match(command[0].prefix)):
        if command[0].may_split or not is_harmless_for_programs(assignment[1]):
            verdicts.append(uncertain(f"it sets {assignment[1]} for a program"))
        command = command[1:]
    return merge([*verdicts, _runs(command), _starts_in(parsed, "-C", "--chdir")])


def _starts_in(parsed: ParsedCommand, *options: str) -> CommandVerdict:
    """Return that what is run starts in the folder that one of the options names, if any does."""
    if not parsed.has(*options):
        return NO_EFFECT
    value = parsed.value(*options)
    is_known = value is not None and value.is_located and not value.may_split and value.prefix != ""
    return CommandVerdict(folder=value.path if value is not None and is_known else None)


def _classify_shell_program(words: Words) -> CommandVerdict:
    """Return the verdict on a shell: the text after -c is known, a script file or standard input is not."""
    name = words[0].text or ""
    parsed = parse_options(
        words,
        "-abefhkmnptuvxBCEHPT -c -o: -i!u -l!u -s!u -r --norc --noprofile --posix --login!u",
        posix=True,
    )
    verdicts = [option_verdict(parsed)]
    first = parsed.operands[0] if parsed.operands else None
    if parsed.has("-c") and first is not None and first.text is not None:
        if parsed.has("-k", "-a", "-B", "-H", "-p", "-P", "-o") or name == "zsh":
            verdicts.append(uncertain(f"its options change how {name} reads the text"))
        verdicts.append(_text_verdict(name, first.text))
    elif parsed.has("-n") and first is not None and not parsed.has("-c"):
        verdicts.append(reads(first))  # only checks the syntax
    else:
        verdicts.append(uncertain(f"{name} runs code that is not analysed"))
        verdicts += map(reads, parsed.operands[:1])
    return merge(verdicts)


_POSIX_SHELLS = frozenset(("sh", "dash", "ash"))


def _text_verdict(name: str, text: str) -> CommandVerdict:
    """Return the verdict on a text that the shell `name` runs, which may read it otherwise than bash does."""
    verdict = CommandVerdict(scripts=(text,))
    is_same = name in _POSIX_SHELLS and is_same_in_posix_shells(text)
    if name == "bash" or is_same or SAME_IN_ALL_SHELLS.fullmatch(text):
        return verdict
    return merge([verdict, uncertain(f"{name} may read the text differently from bash")])


def _classify_eval(words: Words) -> CommandVerdict:
    texts = [word.text for word in words[1:] if word.text is not None]
    if len(texts) < len(words) - 1:
        return uncertain("eval runs a text that is only known at run time")
    return CommandVerdict(scripts=(" ".join(texts),))


def _classify_trap(words: Words) -> CommandVerdict:
    arguments = [word for word in words[1:] if word.text != "--"]
    action = arguments[0] if arguments else literal("-p")
    if action.text in {"-p", "-l", "-", ""}:
        return NO_EFFECT
    if action.text is None or action.text.startswith("-"):
        return uncertain("trap runs a text that is only known at run time")
    return CommandVerdict(scripts=(action.text,))


def _classify_command(words: Words) -> CommandVerdict:
    parsed = parse_options(words, "-pvV", posix=True)
    verdicts = [option_verdict(parsed)]
    if parsed.has("-v", "-V"):
        return merge(verdicts)
    if parsed.has("-p"):
        verdicts.append(uncertain("command -p looks for programs elsewhere"))
    return merge([*verdicts, _runs(parsed.operands)])


_WATCH = (
    "-bcCdegptrwx -n: -q: -s: --beep --color --no-color --differences? --errexit --chgexit --interval: "
    "--equexit: --precise --no-rerun --no-title --no-wrap --exec"
)


def _classify_watch(words: Words) -> CommandVerdict:
    """Return the verdict on watch, which runs what it is given by sh, again and again, or with -x itself."""
    parsed = parse_options(words, _WATCH, posix=True)
    if parsed.has("-x", "--exec"):
        return merge([option_verdict(parsed), _runs(parsed.operands)])
    texts = [word.text for word in parsed.operands]
    if parsed.doubts or not texts or None in texts:
        return _classify_text_runner(words)
    return merge([option_verdict(parsed), _text_verdict("sh", " ".join(map(str, texts)))])


def _classify_text_runner(words: Words) -> CommandVerdict:
    """Return the verdict on su -c and similar: they take a command in one word or in several."""
    text = " ".join(word.text or "" for word in words[1:] if not word.prefix.startswith("-"))
    doubt = uncertain(f"{words[0].display} runs a command in its own way")
    return merge([doubt, CommandVerdict(scripts=(text,), spellings=_possible_commands(words))])


def _possible_commands(words: Words) -> tuple[str, ...]:
    """Return what may be the command that a program runs, for rules: all from one of its first words on.

    Which of the options before the command have a value is not known.
    """
    starts = [at for at, word in enumerate(words) if at and not word.prefix.startswith("-")]
    return tuple(" ".join(word.display for word in words[at:]) for at in starts[:_MAX_STARTS])


_MAX_STARTS = 5


def _classify_coproc(words: Words) -> CommandVerdict:
    command = list(words[1:])
    while len(command) > 1 and (command[0].text == "{" or command[1].text == "{"):
        command.pop(0)
    return merge([uncertain("coproc sets variables and runs in the background"), _runs(command)])


def _classify_xargs(words: Words) -> CommandVerdict:
    parsed = parse_options(words, _XARGS, posix=True)
    command = tuple(parsed.operands) or (literal("echo"),)
    placeholders: set[str] = set()
    for option in parsed.options:
        if option.name in _XARGS_REPLACE:
            placeholder = "{}" if option.value is None else option.value.text
            if not placeholder:
                return merge([option_verdict(parsed), uncertain("what xargs replaces is unknown")])
            placeholders.add(placeholder)
    for placeholder in placeholders:
        command = tuple(_fill(word, placeholder) for word in command)
    # Of -I and -n the last one counts. Assume that words are added whenever one of them may add some.
    if not placeholders or parsed.has("-n", "-L", "-l", "--max-args", "--max-lines"):
        command = (*command, unknown_words(UNKNOWN_WORDS))
    return merge([option_verdict(parsed), _runs(command)])


def _fill(word: Word, placeholder: str, beginning: str = "") -> Word:
    """Return `word` with something unknown, that begins with `beginning`, in place of `placeholder`."""
    before, found, _ = word.prefix.partition(placeholder)
    if not found and placeholder not in word.display:
        return word
    return Word(word.display, None, before or beginning, may_split=word.may_split, is_located=False)


def _classify_find(words: Words) -> CommandVerdict:
    """Return the verdict on find: starting points, then tests and actions with a fixed number of values."""
    verdicts: list[CommandVerdict] = []
    rest = list(words[1:])
    found_prefix = "./"  # how every path that is found begins, so that none can be taken for an option
    while rest and rest[0].text in {"-H", "-L", "-P", "-O1", "-O2", "-O3"}:
        rest.pop(0)
    starts: list[Word] = []
    while rest and not (rest[0].prefix.startswith("-") or rest[0].text in {"!", "("}):
        folder = rest.pop(0)
        starts.append(folder)
        if folder.may_be_option:
            verdicts.append(uncertain(f"{folder.display} may be an action"))
            found_prefix = ""
        verdicts.append(reads(folder))
    if not starts:
        starts.append(literal("."))
        verdicts.append(reads(starts[0]))
    while rest:
        word = rest.pop(0)
        predicate = word.text or ""
        if predicate in _FIND_TESTS:
            continue
        if predicate == "-delete":
            verdicts.append(has_effect(Effect.DESTRUCTIVE, "find -delete removes files"))
            verdicts += map(writes, starts)
            continue
        if predicate in _FIND_RUNNERS:
            end = _end_of_find_command(rest)
            verdicts.append(_runs([_fill(argument, "{}", found_prefix) for argument in rest[:end]]))
            del rest[: end + 1]
            continue
        value = rest.pop(0) if rest else None
        if value is not None and (predicate in _FIND_FILES or _FIND_NEWER_FILE.fullmatch(predicate)):
            verdicts.append(reads(value))
        if predicate in _FIND_TESTS_WITH_VALUE or _FIND_NEWER.fullmatch(predicate):
            if value is not None and value.may_split and not _becomes_no_predicate(value):
                verdicts.append(uncertain(f"it cannot be determined how many words {value.display} becomes"))
        elif predicate in _FIND_WRITERS and value is not None:
            verdicts.append(writes(value))
            if predicate == "-fprintf":
                del rest[:1]  # its format
        else:
            verdicts.append(uncertain(f"find may do anything with {word.display}"))
    return merge(verdicts)


def _becomes_no_predicate(pattern: Word) -> bool:
    """Return whether what an unquoted pattern becomes is not a predicate of find, however many words it is.

    No predicate has a dot in it, and what does not begin with a dash is a folder, which find refuses there.
    """
    ending = re.split(r"[*?\]]", pattern.display)[-1]
    return pattern.is_located and ("." in ending or pattern.prefix[:1].isalnum())


def _end_of_find_command(words: Words) -> int:
    for position, word in enumerate(words):
        if word.text == ";" or (word.text == "+" and words[position - 1].text == "{}"):
            return position
    return len(words)


# ---- programs that run another in their own way, or show a state

_PRLIMIT = (
    "-p: -o: --pid: --output: -c -d -e -f -i -l -m -n -q -r -s -t -u -v -x -y --core --data --nice --fsize "
    "--sigpending --memlock --rss --nofile --msgqueue --rtprio --stack --cpu --nproc --as --locks --rttime "
    "--noheadings --raw --verbose"
)
_SHOWS: dict[str, tuple[str, tuple[str, ...], int]] = {
    # What each knows when it runs nothing, the options of which it then has one, and how many operands.
    "taskset": (
        "-a -c -p -ac -ap -cp -pc --all-tasks --cpu-list --pid",
        ("-p", "-ap", "-cp", "-pc", "--pid"),
        1,
    ),
    "chrt": ("-a -p -v --all-tasks --pid --verbose", ("-p", "--pid"), 1),
    "ionice": ("-p: --pid:", ("-p", "--pid"), 0),
    "prlimit": (_PRLIMIT, (), 0),
    "choom": ("-p: --pid:", ("-p", "--pid"), 0),
    "numactl": ("-H -s --hardware --show", ("-H", "-s", "--hardware", "--show"), 0),
    "setarch": ("--list", ("--list",), 0),
    "setpriv": ("-d --dump", ("-d", "--dump"), 0),
    "capsh": ("--print", ("--print",), 0),
}


def _classify_runner(words: Words) -> CommandVerdict:
    name = program_name(words[0].text or "")
    if name in _SHOWS:
        options, needed, operands = _SHOWS[name]
        # Case: `-cunlimited` of prlimit is not a group of letters, but sets a limit.
        parsed = parse_options(words, options, posix=True, one_dash=True)
        are_plain = not any(word.may_split or word.may_be_option for word in parsed.operands)
        has_needed = parsed.has(*needed) or not needed
        if not parsed.doubts and has_needed and are_plain and len(parsed.operands) == operands:
            return NO_EFFECT
    if name == "ionice":
        return _prefix("-c: -n: -t")(words)
    likely = parse_options(words, "*").operands
    command = next((words[at:] for at, word in enumerate(words) if likely and word is likely[0]), ())
    doubt = uncertain(f"{words[0].display} runs a program in its own way")
    return merge([doubt, _runs(command), CommandVerdict(spellings=_possible_commands(words))])


# ---- fd

_FD = (
    "-HIusiFgapL0q1hV -d: -t: -e: -E: -c: -j: -S: -o: -x:x -X:x -l!x --hidden --no-ignore --no-ignore-vcs "
    "--no-ignore-parent --unrestricted --case-sensitive --ignore-case --glob --regex --fixed-strings --and: "
    "--absolute-path --full-path --follow --max-depth: --min-depth: --exact-depth: --prune --type: "
    "--extension: --exclude: --color: --threads: --size: --changed-within: --changed-before: "
    "--change-newer-than: --newer: --changed-after: --change-older-than: --older: --owner: --print0 "
    "--max-results: --quiet --show-errors --batch-size: --ignore-file:r --base-directory:r --search-path:r "
    "--path-separator: --strip-cwd-prefix --one-file-system --exec:x --exec-batch:x --list-details!x"
)
_FD_RUNNERS = frozenset(("-x", "--exec", "-X", "--exec-batch"))
_FD_PLACEHOLDERS = {"{}": True, "{/}": False, "{//}": True, "{.}": True, "{/.}": False}
"""Each with whether it begins as the folder does in which it was found."""


def _classify_fd(words: Words) -> CommandVerdict:
    """Return the verdict on fd, for which all from `-x` to `;` is a command, run with what was found."""
    rest, commands = [words[0]], []
    ahead = list(words[1:])
    while ahead:
        word = ahead.pop(0)
        if word.text not in _FD_RUNNERS:
            rest.append(word)
            continue
        end = next((at for at, one in enumerate(ahead) if one.text == ";"), len(ahead))
        commands.append(ahead[:end])
        del ahead[: end + 1]
    parsed = parse_options(rest, _FD)
    starts = parsed.operands[1:]
    # What is found begins as the folder does. Without one, old versions put nothing before a name.
    beginnings = {start.prefix[:1] for start in starts} | ({""} if parsed.has("--search-path") else set())
    beginning = beginnings.pop() if len(beginnings) == 1 else ""
    is_elsewhere = parsed.has("--search-path", "--base-directory")
    verdicts = [option_verdict(parsed), *map(reads, starts)]
    if not starts and not is_elsewhere:
        verdicts.append(reads(literal(".")))
    verdicts += [_runs(_filled_by_fd(command, beginning)) for command in commands]
    if commands and parsed.has("--base-directory"):
        verdicts.append(CommandVerdict(folder=None))
    return merge(verdicts)


def _filled_by_fd(command: Words, beginning: str) -> Words:
    """Return a command with something unknown in place of each placeholder, or behind it if it has none."""
    filled = list(command)
    for placeholder, has_folder in _FD_PLACEHOLDERS.items():
        filled = [_fill(word, placeholder, beginning if has_folder else "") for word in filled]
    return filled if filled != list(command) else [*filled, unknown_words(UNKNOWN_WORDS)]


COMMANDS = (
    CommandSpec(names="fd fdfind", classify=_classify_fd, info_arguments="--help --version -h -V"),
    CommandSpec(names="find", classify=_classify_find),
    CommandSpec(names="xargs", classify=_classify_xargs),
    CommandSpec(names="env", classify=_classify_env),
    CommandSpec(names="nice", classify=_prefix("-n: -# --adjustment:")),
    CommandSpec(
        names="timeout",
        classify=_prefix("-k: -s: -v --kill-after: --signal: --foreground --preserve-status --verbose", 1),
    ),
    CommandSpec(names="stdbuf", classify=_prefix("-i: -o: -e: --input: --output: --error:")),
    CommandSpec(names="setsid", classify=_prefix("-cfw --ctty --fork --wait")),
    CommandSpec(
        names="time",
        classify=_prefix("-pvaq -f: -o:w --portability --format: --output:w --append --verbose"),
    ),
    CommandSpec(names="builtin exec", classify=_prefix("-cl -a:", drops=("-c",)), info_arguments=""),
    CommandSpec(names="command", classify=_classify_command, info_arguments=""),
    CommandSpec(names="nohup", classify=_prefix("", 0, "may write nohup.out")),
    CommandSpec(names="sudo doas", classify=_prefix(_SUDO, 0, "runs it with the rights of another user")),
    CommandSpec(
        names="chroot taskset chrt ionice choom setarch prlimit numactl busybox toybox strace ltrace perf "
        "valgrind gdb script unshare nsenter systemd-run firejail bwrap fakeroot proot unbuffer rlwrap "
        "expect xvfb-run dbus-run-session parallel entr torify proxychains caffeinate cpulimit "
        "start-stop-daemon runcon setpriv capsh faketime ld.so rush sem pv-run runuser pkexec catchsegv "
        "lldb rr heaptrack linux32 linux64 i386 x86_64",
        classify=_classify_runner,
    ),
    CommandSpec(
        names="flock",
        classify=_prefix(
            "-sxnuoF -w: -E: -c!u --shared --exclusive --nonblock --timeout:", 1, "creates a lock file"
        ),
    ),
    CommandSpec(names="watch", classify=_classify_watch),
    CommandSpec(names="su at batch rsh", classify=_classify_text_runner),
    CommandSpec(names="bash sh dash ash ksh mksh zsh fish csh tcsh rbash", classify=_classify_shell_program),
    CommandSpec(names="eval", classify=_classify_eval, info_arguments=""),
    CommandSpec(names="trap", classify=_classify_trap, info_arguments=""),
    CommandSpec(names="coproc", classify=_classify_coproc, info_arguments=""),
)
