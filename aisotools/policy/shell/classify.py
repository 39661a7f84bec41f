"""Classify a shell command without running it: two parsers read it, command specifications judge it.

The classification fails safe. Read only means that both parsers found the same commands in the text, that
each program has a specification, and that all its arguments were understood. Whether the command may run is
for a policy to decide.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import itertools
import posixpath
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote

from aisotools.core.path_texts import is_within
from aisotools.core.types import AbsentNames, Effect, Facts, GitPrograms, MadeName, PatchFile
from aisotools.policy.quoted import quoted_texts
from aisotools.policy.shell.commands import (
    classify_response_files,
    find_spec,
    is_information_request,
)
from aisotools.policy.shell.expansion import (
    LoopWords,
    Redirect,
    SimpleCommand,
    Word,
    expand,
    expand_value,
    literal,
    name_set,
)
from aisotools.policy.shell.folders import (
    START,
    Folders,
    find_folders,
    is_relative,
    join,
    leaves_start,
    normal_folder,
    relocate,
)
from aisotools.policy.shell.git_changes import ANY_FILE
from aisotools.policy.shell.git_programs import HOOKS
from aisotools.policy.shell.grammar import grammar_objection
from aisotools.policy.shell.options import classify_by_spec, program_name
from aisotools.policy.shell.parser import parse_shell
from aisotools.policy.shell.patches import patches_in
from aisotools.policy.shell.variables import (
    VariableUsage,
    is_harmless_for_programs,
    split_assignment,
    survey_variables,
)
from aisotools.policy.shell.verdicts import (
    NO_EFFECT,
    UNKNOWN_WORDS,
    CommandVerdict,
    merge,
    opens,
    reads,
    uncertain,
    writes,
)

MAX_COMMAND_BYTES = 64 << 10
"""Longer commands are not analysed."""

# A text may run texts (`bash -c`, `eval`) that run others. These bound the work on hostile input.
_MAX_TEXTS = 100
_MAX_COMMANDS = 500
_MAX_NESTED_COMMANDS = 20
_MAX_NAMED_WORDS = 200
_MAX_NAMED_FOLDERS = 4
_MAX_REASONS = 50
_SHOWN_REASONS = 2
_MAX_REASON_CHARS = 160

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_INVISIBLE_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"))
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
_MARKS = re.compile(r"fileb?:(?://(?:localhost(?=/))?)?|[@=:,<>|;]", re.IGNORECASE)
_MAX_MARKS = 8  # in a word
_LOCALE = re.compile(r"\b(?:LC_\w+|LANG|LANGUAGE)\b")
_COPIED_DESCRIPTORS = frozenset(("1", "2", "-"))
_DESCRIPTOR = re.compile(r"[0-9]+-?")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_SETS_VARIABLES = frozenset(("set", "declare", "typeset", "export", "local", "readonly", "echo", "printf"))
_OPTION_DOUBT = re.compile(r" may be an option$")
_FILLED_IN = ("$", "`", "{}", UNKNOWN_WORDS)  # by bash, by `find -exec`, by `xargs`
_MAY_BE_ANY = ("$", "`", "{}", "*", "?", "[", UNKNOWN_WORDS)
_RUNS_INPUT = frozenset(("sqlite3",))
"""Programs that run each line they get as they run an argument."""
_REDIRECTED_DESCRIPTOR = "it cannot be determined what its file descriptors mean"
_InFolder = TypeVar("_InFolder", AbsentNames, GitPrograms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellReport:
    """What a shell command does, as far as can be known before it runs.

    Attributes:
        effect: The most severe thing it does.
        commands: Commands it runs with their arguments, such as `git push origin`, in the order they appear.
        reads: Paths it reads, as they are meant where the command starts; patterns and variables as written.
        writes: Paths it writes, likewise.
        unresolved: What it reads where the text does not say which path that is, as written.
        recorded: Paths of which it reads, or spreads, what a repository of git has recorded; `.` for any.
        named: What words of commands may name, where not everything that these do is listed here.
        places: Folders that such commands run in, if those are named by `cd` or an option.
        made: Names that it makes by copying, moving or linking, and what they lead to.
        patches: Patches that it applies, which name the files that it changes.
        git_programs: Hooks, and programs named by settings, that git may start.
        absent: What must not be in folders for this to hold: otherwise programs run it, or obey it, and may
            do anything. `shell_facts` has both answers.
        hosts: Network hosts it talks to.
        reasons: Why it is more than reading, or not certain.
        certain: False if not everything it does could be determined; then it is never read only.
        unknown: Commands of which it is not known what they do, word by word, if that is the only doubt and
            all else reads; empty otherwise.
    """

    effect: Effect
    commands: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    made: tuple[MadeName, ...] = ()
    patches: tuple[PatchFile, ...] = ()
    git_programs: tuple[GitPrograms, ...] = ()
    absent: tuple[AbsentNames, ...] = ()
    hosts: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    certain: bool = True
    unknown: tuple[tuple[str, ...], ...] = ()


def classify_shell(command: str) -> ShellReport:
    """Return what `command` does when bash runs it.

    Args:
        command: A command line or a whole script.

    Returns:
        A report; for any text, and always the same for the same text.
    """
    if reason := _unanalysable(command):
        return ShellReport(effect=Effect.LOCAL_MUTATION, reasons=(reason,), certain=False)
    return _ShellAnalysis().run(command)


def shell_facts(command: str, folder: str = ".") -> Facts:
    """Return what a policy should know about `command` when bash runs it in `folder` of the workspace."""
    # It depends on nothing else, and a call is classified once for each question that is asked of it.
    look = _facts_of_known if len(command) + len(folder) <= _MOST_KNOWN_CHARS else _find_facts
    return look(command, folder)


def _find_facts(command: str, folder: str) -> Facts:
    start = frozenset((folder or ".",))
    report = found = classify_shell(command)
    dash_folders: tuple[str, ...] = ()
    # Only who sees the files can tell whether one has the name of an option, or stands in for what a program
    # runs: both answers are handed on.
    if not report.certain and any(map(_OPTION_DOUBT.search, report.reasons)):
        analysis = _ShellAnalysis(takes_patterns_for_names=True)
        found = analysis.run(command)
        dash_folders = _unique(
            path.removesuffix("/.") for path in relocate(sorted(analysis.name_folders), start)
        )
    if not found.certain or not (dash_folders or found.absent):
        return _facts_of(report, folder)
    if found.absent:
        report = dataclasses.replace(
            report, certain=False, effect=max(report.effect, Effect.LOCAL_MUTATION), unknown=()
        )
        if any(one.names or one.modules for one in found.absent) and _may_make(found):
            return _facts_of(report, folder)
    return dataclasses.replace(
        _facts_of(report, folder),
        dash_folders=dash_folders,
        absent=tuple(_relocate_folders(found.absent, start)),
        without_dashes=_facts_of(found, folder),
    )


_MOST_KNOWN_CHARS = 1_000
_facts_of_known = functools.lru_cache(maxsize=128)(_find_facts)


def _may_make(report: ShellReport) -> bool:
    """Return whether a command may itself put something of `absent` where it must not be."""
    if report.made:
        return True
    globs = ("*.py", "*.pyc", "*.so", *(glob for absent in report.absent for glob in absent.names))
    names = [path.rstrip("/").rpartition("/")[2] for path in report.writes]
    return any(
        any(mark in path for mark in _MAY_BE_ANY) or any(fnmatch.fnmatchcase(name, glob) for glob in globs)
        for path, name in zip(report.writes, names, strict=True)
    )


def _relocate_folders(found: Iterable[_InFolder], folders: frozenset[str]) -> Iterator[_InFolder]:
    """Yield what was found in a folder, for each of `folders` that this folder may be meant in."""
    for one in found:
        for folder in sorted(folders):
            place = join(folder, one.folder).removesuffix("/.")
            yield one if place == one.folder else dataclasses.replace(one, folder=place)


def _facts_of(report: ShellReport, folder: str) -> Facts:
    start = frozenset((folder or ".",))
    written = tuple(relocate(report.writes, start))
    named, places = tuple(relocate(report.named, start)), tuple(relocate(report.places, start))
    return Facts(
        effect=report.effect,
        reads=tuple(relocate(report.reads, start)),
        writes=written,
        unresolved=report.unresolved,
        recorded=_recorded_in(report.recorded, folder),
        named=_unique((*named, *places)),
        places=tuple(place for place in places if place not in named),
        made=tuple(_relocate_made(report.made, start)),
        patches=tuple(_relocate_patches(report.patches, start)),
        git_programs=tuple(_relocate_folders(report.git_programs, start)),
        outside=any(map(_is_outside, written)),
        hosts=report.hosts,
        commands=report.commands,
        certain=report.certain,
        doubts=() if report.certain else report.reasons[:_SHOWN_REASONS],
        unknown=report.unknown if folder in {"", "."} else (),
    )


def _recorded_in(paths: tuple[str, ...], folder: str) -> tuple[str, ...]:
    """Return recorded paths as they are meant in the workspace; `.` among them where that is not known."""
    if not paths or posixpath.normpath(folder or ".") == ".":
        return paths
    return _unique((*paths, *relocate(paths, frozenset((folder,))), "."))


def _is_outside(path: str) -> bool:
    """Return whether a path lies outside the workspace, as far as its text tells."""
    for root in ("$TMPDIR", "$WORKSPACE", "$PWD", "/workspace"):
        if is_within(path, root):
            path = path[len(root) + 1 :]
            break
    path = posixpath.normpath(path or ".")
    return path.startswith(("/", "~", "$")) or path.partition("/")[0] == ".."


def _unanalysable(command: str) -> str:
    """Return why a text must not be analysed at all; empty if it may."""
    if len(command) > MAX_COMMAND_BYTES or len(command.encode("utf-8", "replace")) > MAX_COMMAND_BYTES:
        return "it is too long to analyse"
    if _CONTROL.search(command):
        return "it contains control characters"
    if command.isascii():
        return ""
    if any(character > "\x7f" and _is_invisible(character) for character in command):
        return "it contains invisible characters"
    if _LOCALE.search(command):
        return "in another locale its characters may be others"
    return ""


def _is_invisible(character: str) -> bool:
    return (
        unicodedata.category(character) in _INVISIBLE_CATEGORIES
        or character in _FILLERS
        or "\ufe00" <= character <= "\ufe0f"
    )


class _ShellAnalysis:
    """One classification: follows a command into the commands and texts that it runs."""

    def __init__(self, *, takes_patterns_for_names: bool = False) -> None:
        """Start an analysis; see `name_folders`."""
        self._takes_patterns_for_names = takes_patterns_for_names
        self.name_folders: set[str] = set()
        """Folders in which no name may begin with a dash, if patterns were to be taken for names."""
        self._verdicts: list[CommandVerdict] = []
        self._places: set[str] = set()
        self._values: dict[str, None] = {}
        self._commands: list[str] = []
        self._variables: set[str] = set()
        self._texts = 0
        self._bytes = 0
        self._has_here_document = False

    def run(self, command: str) -> ShellReport:
        queue: list[tuple[str, Folders]] = [(command, frozenset((START,)))]
        while queue:
            text, start = queue.pop(0)
            self._texts += 1
            self._bytes += len(text)
            if self._texts > _MAX_TEXTS or self._bytes > 2 * MAX_COMMAND_BYTES:
                self._verdicts.append(uncertain("it runs too many texts within texts"))
                break
            queue.extend(self._analyse_text(text, start))
        return self._report(merge(self._verdicts))

    def _report(self, total: CommandVerdict) -> ShellReport:
        effect = total.effect
        if effect is Effect.READ_ONLY and not total.certain:
            effect = Effect.LOCAL_MUTATION
        absent: Iterable[AbsentNames] = total.absent
        if not total.keeps_environment:  # with which git would run no hook; see `git_programs`
            absent = [_with_hooks(one) for one in absent]
        return ShellReport(
            effect=effect,
            commands=_unique(self._commands),
            reads=_unique(total.reads),
            writes=_unique(total.writes),
            unresolved=_unique(total.unresolved),
            recorded=_unique(total.recorded),
            # What a variable holds may become any word of a command.
            named=_unique((*total.named, *(() if total.certain else self._values))),
            places=tuple(sorted(self._places)),
            made=tuple(dict.fromkeys(total.made)),
            patches=tuple(dict.fromkeys(total.patches)),
            git_programs=tuple(dict.fromkeys(total.git_programs)),
            absent=tuple(dict.fromkeys(absent)),
            hosts=_unique(total.hosts),
            reasons=_unique(_shorten(reason) for reason in total.reasons if reason)[:_MAX_REASONS],
            certain=total.certain,
            unknown=tuple(dict.fromkeys(total.unknown)),
        )

    def _analyse_text(self, command: str, start: Folders) -> list[tuple[str, Folders]]:
        """Judge one text. Return the texts that it runs, each with the folders where it may start."""
        text = command.encode("utf-8", "replace").decode("latin-1")  # one character per byte
        parsed = parse_shell(text)
        variables = survey_variables(parsed, is_only_text=self._texts == 1)
        doubts = [*parsed.doubts, *variables.doubts]
        doubts += [f"it defines {name}, which may mean something else then" for name in parsed.functions]
        if self._variables & variables.assigned:
            doubts.append("variables are set in more than one text")
        self._variables |= variables.assigned
        self._has_here_document = "<<" in text.replace("<<<", "")
        if len(parsed.commands) > _MAX_COMMANDS:
            doubts.append("there are too many commands")
        if not doubts and (reason := grammar_objection(text, parsed)):
            doubts.append(reason)
        self._verdicts += map(uncertain, doubts)
        folders = find_folders(parsed, start)
        scripts: list[tuple[str, Folders]] = []
        for simple in sorted(parsed.commands, key=_start)[:_MAX_COMMANDS]:
            verdict = self._analyse_command(simple, variables, folders[id(simple)])
            self._verdicts.append(verdict)
            scripts += [(script, folders[id(simple)]) for script in verdict.scripts]
        return scripts

    def _analyse_command(
        self, command: SimpleCommand, variables: VariableUsage, folders: Folders
    ) -> CommandVerdict:
        """Judge a simple command, its redirections and assignments, and the commands that it runs."""
        values = [expand_value(split_assignment(token)[1]) for token in command.words[: command.assignments]]
        words = [
            word
            for token in command.program_words
            for word in expand(token, variables.numbers, variables.files)
        ]
        if self._takes_patterns_for_names and folders is not None:
            bare = [word.is_bare_pattern for word in words]
            words = [
                dataclasses.replace(word, is_name=True) if is_bare else word
                for word, is_bare in zip(words, bare, strict=True)
            ]
            self.name_folders |= folders if any(bare) else frozenset()
        if words and program_name(words[0].text or "") in _SETS_VARIABLES:
            values += words[1:]
        if values and len(self._values) < _MAX_NAMED_WORDS:
            self._values |= dict.fromkeys(relocate(_named_by(values), folders or frozenset((START,))))
        redirects = merge(_redirect_verdict(redirect, variables) for redirect in command.redirects)
        self._note_place(redirects, folders)
        verdicts = [_located(redirects, folders, variables.files)]
        stack: list[tuple[tuple[Word, ...], Folders]] = []
        if words:
            verdicts += _temporary_assignment_verdicts(command, words[0])
            stack.append((tuple(words), folders))
        program_text = self._program_text(command, words, variables)
        while stack:
            words_of_program, place = stack.pop()
            verdict = self._analyse_program(words_of_program)
            if program_text is not None and not verdict.certain:
                # The program text on its standard input is known: judge it as if it were the last argument.
                given = self._analyse_program((*words_of_program, program_text))
                verdict = given if given.certain and given.effect is Effect.READ_ONLY else verdict
            program_text = None
            self._note_place(verdict, place)
            verdicts.append(_located(verdict, place, variables.files))
            inner = _inner_folders(place, verdict.folder)
            stack += [(inner_words, inner) for inner_words in verdict.commands if inner_words]
            if len(verdicts) > _MAX_NESTED_COMMANDS:
                verdicts.append(uncertain("there are too many commands within commands"))
                break
        return merge(verdicts)

    def _program_text(
        self, command: SimpleCommand, words: Sequence[Word], variables: VariableUsage
    ) -> Word | None:
        """Return the text that a command gets as `<<< text`, if it runs that like an argument; else None.

        It is one line, or what begins a further line could be a command of the program instead of SQL. No
        other redirection may stand in for it: the last one counts, and here-documents are not among them.
        """
        if not words or program_name(words[0].text or "") not in _RUNS_INPUT or self._has_here_document:
            return None
        inputs = [one for one in command.redirects if "<" in one.operator or one.descriptor == "0"]
        if len(inputs) != 1 or inputs[0].operator != "<<<" or inputs[0].descriptor not in {"", "0"}:
            return None
        word = expand_value(inputs[0].target, variables.numbers)
        is_line = word.text is not None and "\n" not in word.text and not word.text.startswith("-")
        return word if is_line else None

    def _note_place(self, verdict: CommandVerdict, folders: Folders) -> None:
        # What may do anything takes from its folder what it runs: a Makefile, modules, settings.
        if not verdict.certain and folders not in {None, frozenset((START,))}:
            self._places |= folders or frozenset()

    def _analyse_program(self, words: tuple[Word, ...]) -> CommandVerdict:
        program = words[0].text
        if program is None:
            verdict = uncertain(f"it cannot be determined which program {words[0].display} is")
            is_path = words[0].is_located and "/" in words[0].display
            return merge([verdict, reads(words[0])]) if is_path else verdict
        name = program.rpartition("/")[2] if program_name(program) else program
        self._commands.append(" ".join([name, *(word.display for word in words[1:])]))
        spec = find_spec(program)
        obeyed = NO_EFFECT
        if spec is not None and spec.obeys:
            names = tuple(spec.obeys.split())
            obeyed = CommandVerdict(absent=(AbsentNames(START, names, above=True),))
        if is_information_request(words):
            return obeyed
        if spec is None:
            verdict = uncertain(f"what {program} does is unknown", unknown=_fixed_texts(words))
            # Outside the system's folders it may be a script, whose content decides what it does.
            if "/" in program and not program_name(program):
                verdict = merge([verdict, reads(words[0])])
        else:
            # Nothing depends on how the program is written, but a trial has to start the same one.
            words = (literal(name), *words[1:])
            verdict = merge([classify_by_spec(spec, words), classify_response_files(words), obeyed])
            if verdict.unknown and name != program:
                verdict = dataclasses.replace(verdict, unknown=_named_as(verdict.unknown, name, program))
            self._commands += verdict.spellings
            if _changes_unnamed_files(verdict) and program_name(program) not in _CHANGES_NO_FILES:
                verdict = merge([verdict, writes(ANY_FILE)])
        return verdict if verdict.certain else dataclasses.replace(verdict, named=_named_by(words[1:]))


_CHANGES_NO_FILES = name_set(
    "git kill pkill killall killall5 skill fuser ss journalctl dmesg history crontab init reboot shutdown "
    "poweroff halt"
)
"""Programs that change something of the machine, or, as git does, say themselves which files they change."""


def _changes_unnamed_files(verdict: CommandVerdict) -> bool:
    """Return whether a command changes something and does not say what: then it may be any file."""
    if not verdict.certain or verdict.effect not in {Effect.LOCAL_MUTATION, Effect.DESTRUCTIVE}:
        return False
    return not (verdict.writes or verdict.patches or verdict.hosts or verdict.commands or verdict.scripts)


def _named_as(commands: Iterable[tuple[str, ...]], name: str, program: str) -> tuple[tuple[str, ...], ...]:
    return tuple((program, *words[1:]) if words[0] == name else words for words in commands)


def _inner_folders(folders: Folders, folder: str | None) -> Folders:
    """Return where a command starts that is run in `folder` by one that runs in `folders`."""
    if folder is None or (folders is None and is_relative(folder)):
        return None
    return frozenset(normal_folder(join(place, folder)) for place in folders or (START,))


def _located(verdict: CommandVerdict, folders: Folders, loops: Mapping[str, LoopWords]) -> CommandVerdict:
    """Return the verdict with its paths as they are meant where the text starts.

    Args:
        verdict: On a command.
        folders: Where the command may run.
        loops: The words of a loop, by the variable that is each of them in turn.
    """
    doubts: list[CommandVerdict] = []
    moved: dict[str, Any] = {}  # once for all of it: a copy takes as long as the rest
    if verdict.unknown and folders != frozenset((START,)):
        moved["unknown"] = ()  # its words mean files of another folder
    if verdict.made and (made := tuple(_relocate_made(verdict.made, folders))) != verdict.made:
        moved["made"] = made
    if verdict.patches and (patches := tuple(_relocate_patches(verdict.patches, folders))) != verdict.patches:
        moved["patches"] = patches
    if verdict.git_programs:
        started = tuple(_relocate_folders(verdict.git_programs, folders or frozenset()))
        if started != verdict.git_programs:
            moved["git_programs"] = started
        if folders is None:
            doubts.append(
                uncertain("git may start hooks, and what settings name, of a repository that is not known")
            )
    if verdict.absent and folders is None:
        doubts.append(uncertain("it may run what lies in the folder, which is not known"))
    elif verdict.absent:
        absent = tuple(_relocate_folders(verdict.absent, folders or frozenset()))
        if absent != verdict.absent:
            moved["absent"] = absent
    if doubts or moved:
        verdict = merge([dataclasses.replace(verdict, **moved), *doubts])
    if not (verdict.reads or verdict.writes or verdict.unresolved or verdict.recorded or verdict.named):
        return verdict
    named = [name for written in verdict.named for name in (written, *_loop_values(written, loops))]
    values = {path: _loop_values(path, loops) for path in verdict.reads}
    # What was written stays: quoted, it may be the name of a file.
    read = [path for written, found in values.items() for path in (written, *found)]
    unresolved = [path for path in verdict.unresolved if not values.get(path)]
    unresolved += [path for path in read if "{}" in path]  # what `find -exec` puts there
    doubts = []
    if folders is None:
        unresolved += [path for path in read if is_relative(path)]
    written_paths = [name for path in verdict.writes for name in (path, *_loop_values(path, loops))]
    if pipes := [path for path in read if path.strip().startswith("|") or path.strip().endswith("|")]:
        # sox, exiftool and other programs run what stands before or after it, in place of a file.
        doubts.append(uncertain(f"its program may run {pipes[0]} instead of reading it"))
    if any(map(is_relative, verdict.writes)) and leaves_start(folders):
        doubts.append(uncertain("it writes after changing the folder"))
    # In another folder there may be another repository, whose paths begin there.
    recorded = verdict.recorded
    if recorded and folders != frozenset((START,)):
        recorded = _unique((*recorded, *relocate(recorded, folders), "."))
    located = dataclasses.replace(
        verdict,
        recorded=recorded,
        named=tuple(relocate(named, folders)),
        reads=tuple(relocate(read, folders)),
        writes=tuple(relocate(written_paths, folders)),
        unresolved=tuple(unresolved),
    )
    return merge([located, *doubts])


def _relocate_patches(patches: Iterable[PatchFile], folders: Folders) -> Iterator[PatchFile]:
    """Yield patches as they are meant in each folder; for None, as they would be where the text starts."""
    patches = tuple(patches)
    for folder in sorted(folders or (START,)):
        yield from patches_in(patches, folder)


def _with_hooks(absent: AbsentNames) -> AbsentNames:
    return dataclasses.replace(absent, programs=(*absent.programs, HOOKS)) if absent.programs else absent


def _relocate_made(made: Iterable[MadeName], folders: Folders) -> Iterator[MadeName]:
    """Yield names that are made as they are meant in each folder; for None, that any name may be one."""
    for one in made:
        if folders is None:
            yield MadeName(START)
            continue
        for folder in sorted(folders):
            source = join(folder, one.source) if one.source else ""
            yield MadeName(join(folder, one.name), source, is_link=one.is_link)


def _loop_values(path: str, loops: Mapping[str, LoopWords]) -> list[str]:
    """Return what a path that begins with the variable of a loop is in turn; nothing for any other path."""
    variable = _VARIABLE.match(path)
    rest = path[variable.end() :] if variable else ""
    words = loops.get(variable[1] or variable[2]) if variable else None
    return [] if words is None or "$" in rest or "`" in rest else [word + rest for word in words.displays]


def _temporary_assignment_verdicts(command: SimpleCommand, program: Word) -> Iterator[CommandVerdict]:
    """Yield the verdicts on variables that are set for one command only."""
    for token in command.words[: command.assignments]:
        name, _ = split_assignment(token)
        splits_read = name == "IFS" and program.text == "read"
        if not splits_read and not is_harmless_for_programs(name):
            yield uncertain(f"it sets {name} for {program.display}")


def _redirect_verdict(redirect: Redirect, variables: VariableUsage) -> CommandVerdict:
    operator = redirect.operator
    if operator == "<<<":
        return NO_EFFECT
    # Case: bash expands braces there as well, so that `> {s..s}x` writes `sx`. Several words it refuses, and
    # other shells take them as they are written.
    words = expand(redirect.target, variables.numbers)
    target = words[0] if len(words) == 1 else expand_value(redirect.target, variables.numbers)
    if operator in {">&", "<&"} and target.text in _COPIED_DESCRIPTORS:
        if operator == ">&" or not redirect.descriptor:
            return NO_EFFECT  # copies standard output or standard error, or closes one
        return uncertain(_REDIRECTED_DESCRIPTOR)
    if operator == "<":
        if not redirect.descriptor and redirect.target.variable in variables.files:
            # It becomes each of the loop's words, and none opens a connection.
            return CommandVerdict(reads=(target.display,))
        if redirect.descriptor in {"", "0"}:
            return opens(target)
        # `1<file` makes /dev/stdout mean that file, and a program may open it for writing.
        return merge([opens(target), uncertain(_REDIRECTED_DESCRIPTOR)])
    if operator == "<&" or (target.text is not None and _DESCRIPTOR.fullmatch(target.text)):
        return uncertain(_REDIRECTED_DESCRIPTOR)
    return writes(target)


def _fixed_texts(words: Sequence[Word]) -> tuple[str, ...]:
    """Return the words as they are written; nothing if one of them is only known at run time."""
    texts = tuple(word.display for word in words)
    return () if any(mark in text for text in texts for mark in _FILLED_IN) else texts


def _named_by(words: Sequence[Word]) -> tuple[str, ...]:
    """Return the paths that words may be, or hold.

    They may be the value of an option (`-o=a/b` and `-fa/b` hold `a/b`) or stand in quotes. Programs such as
    tar and make take what follows `-C folder` from that folder.
    """
    named: dict[str, None] = {}
    folders: list[str] = []
    begins_folder = False
    for word in words[:_MAX_NAMED_WORDS]:
        text = word.display
        named |= dict.fromkeys(quoted_texts(text))  # a program in another language
        if begins_folder:
            folders.append(text)
        option, _, value = text.partition("=")
        begins_folder = text in {"-C", "--directory"}
        if option == "--directory" or (text.startswith("-C") and len(text) > len("-C")):
            folders.append(value or text[len("-C") :])
        paths = [value, *([text[2:]] if text[:1] == "-" and text[1:2] != "-" else [text])]
        if _MARKS.search(text):
            paths += _marked_parts(text)
        for path in filter(None, paths):
            named[path] = None
            if is_relative(path):
                named |= dict.fromkeys(f"{folder}/{path}" for folder in folders[-_MAX_NAMED_FOLDERS:])
    return tuple(named)


def _marked_parts(text: str) -> Iterator[str]:
    """Yield what marks set apart in a word: `@file`, `name@file`, `file:path`, `a:b`, `x=a,y=b`.

    What is before a mark may be a path, what is between two, and all that is behind one.
    """
    for found in itertools.islice(_MARKS.finditer(text), _MAX_MARKS):
        yield text[found.end() :]
    parts = _MARKS.split(text, maxsplit=_MAX_MARKS)
    yield from parts
    if "%" in text:  # as it is written in a URL
        yield from map(unquote, parts)


def _start(command: SimpleCommand) -> int:
    return command.words[0].start if command.words else command.redirects[0].target.start


def _shorten(reason: str) -> str:
    return reason if len(reason) <= _MAX_REASON_CHARS else f"{reason[:_MAX_REASON_CHARS]}…"


def _unique(items: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(items))
