"""What a tool's author declares about a call: read once, checked, and bounded in time.

No sandbox holds a tool on the host. So a policy knows of its calls only what its author declares, and of a
tool without a usable declaration it knows nothing: such a call counts as uncertain and as reaching outside
the workspace, and is asked about in every mode. So does one that writes to a URL, to a path of another
machine or system, or to a blank: that no file of the workspace is meant is certain of none of them.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import ipaddress
import operator
import os
import posixpath
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar, get_args

from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import (
    Declaration,
    SupportsClassification,
    SupportsDeclaration,
    SupportsEffect,
    SupportsFacts,
    Tool,
)
from aisotools.core.types import (
    AbsentNames,
    Basis,
    Effect,
    Facts,
    GitPrograms,
    Json,
    MadeName,
    PatchFile,
    RunsIn,
    with_changes,
)
from aisotools.tools.adapter import supports
from aisotools.tools.function import FunctionTool
from aisotools.tools.validation import fresh_arguments, short_repr

ANSWER_S: Final = 2.0
"""Seconds that the declaration of one call may take. Meanwhile the event loop waits."""

MAX_NAMES: Final = 10_000
"""Paths, hosts or programs that facts may name."""

MAX_PATH_BYTES: Final = 4_096
"""The longest path that Linux knows."""

MAX_COMMAND_CHARS: Final = 65_536
"""The longest command that facts may name."""

_MAX_HOST_CHARS = 253
# Names and addresses, as the network sees them: a name in other letters could be one that only looks alike.
_HOST = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?(?::\d{1,5})?", re.IGNORECASE | re.ASCII)
_BRACKETED = re.compile(r"\[([^\[\]]*)\](?::\d{1,5})?", re.ASCII)
_ELSEWHERE = re.compile(r"[^/]*[:\\]")
_FOREIGN_VARIABLE = re.compile(r"%\w+%|\$\{?\w|\$\(|`")

# Members by which an object may say something else about its calls than its class does.
_OVERRIDDEN = frozenset({"classify", "gather_facts"})

_NAME_KINDS = frozenset(
    {
        *("reads", "writes", "folders", "mentions", "named", "places", "unresolved", "recorded"),
        *("dash_folders", "hosts", "commands"),
    }
)
"""Fields of facts of which what is usable counts, whatever is wrong with the rest."""

_DEFAULTS = {one.name: one.default for one in dataclasses.fields(Facts)}
_FIELDS: Final = tuple(_DEFAULTS)
_values_of = operator.attrgetter(*_FIELDS)

_Answer = TypeVar("_Answer")


class DeclaredFacts(NamedTuple):
    """The facts that are declared about a call.

    Attributes:
        facts: The usable part; with `basis` `nothing` if no more is known than that.
        flaw: What is wrong with the declaration; empty if nothing is, or if there is none.
    """

    facts: Facts
    flaw: str = ""


def declaration_of(tool: Tool) -> Declaration:
    """Return how the effects of the tool's calls are declared. What it says itself can only lower that."""
    declares = any(supports(tool, one) for one in (SupportsFacts, SupportsClassification, SupportsEffect))
    declaration: object = tool.declaration if supports(tool, SupportsDeclaration) else "computed"
    if not declares:
        return "none"
    # By its type first: an object of a class of its own could equal anything.
    if type(declaration) is str and declaration in {"constant", "computed"}:
        return "constant" if declaration == "constant" else "computed"
    return "none"  # also for what is not a declaration at all


def declared_facts(
    tool: Tool, encoded_arguments: bytes, *, on_host: bool, timeout_s: float = ANSWER_S
) -> DeclaredFacts:
    """Return the facts that a tool's author declares about a call, checked.

    On the host nothing is known without a usable declaration. In the sandbox, which holds the tool, no
    declaration is a local change, and one that cannot be used is uncertain.

    Args:
        tool: The tool, which is none of our own.
        encoded_arguments: The arguments as JSON. Whatever the tool does to them stays with it.
        on_host: Whether the tool runs on the host.
        timeout_s: Seconds after which the tool's own code is no longer waited for.

    Raises:
        ToolError: If the tool's own code does not answer in time.
        Exception: Whatever the tool's own code raises.
    """
    declaration = declaration_of(tool)
    if declaration != "computed" and type(tool) is FunctionTool and _OVERRIDDEN.isdisjoint(vars(tool)):
        effect: object = tool.classify({})
        if type(effect) is Effect:  # a program may assign anything to the tool
            return _constant_facts(effect, declaration, on_host)
    if declaration == "computed":
        answers = _asker.ask(tool, lambda: _read_twice(tool, encoded_arguments), timeout_s)
        declared = _agreed(*answers)
    else:
        declared = _read(tool, fresh_arguments(encoded_arguments))
    if not declared.flaw and (flaw := _declaration_flaw(tool)):
        declared = DeclaredFacts(declared.facts, flaw)
    return _conclude(declared, declaration, on_host)


def _declaration_flaw(tool: Tool) -> str:
    """Return what is wrong with the member `declaration` of a tool; empty if nothing is, or it has none."""
    if not supports(tool, SupportsDeclaration):
        return ""
    declaration: object = tool.declaration
    if type(declaration) is str and declaration in get_args(Declaration):
        return ""
    return f"its declaration is {short_repr(declaration)}, which is none of 'computed', 'constant', 'none'"


@functools.cache
def _constant_facts(effect: Effect, declaration: Declaration, on_host: bool) -> DeclaredFacts:
    """Return the facts of a tool of our own class for which an effect is declared and nothing more."""
    return _conclude(DeclaredFacts(Facts(effect=effect)), declaration, on_host)


def _conclude(declared: DeclaredFacts, declaration: Declaration, on_host: bool) -> DeclaredFacts:
    """Return what is known of a call by its declaration; see `declared_facts`."""
    facts = declared.facts
    names_change = facts.writes or facts.hosts or facts.commands
    if on_host and not declared.flaw and facts.effect > Effect.READ_ONLY and facts.reads and not names_change:
        flaw = "its facts say that it changes something, and name only what it reads"
        declared = DeclaredFacts(facts, flaw)
    if not on_host:
        certain = facts.certain and not declared.flaw
        return DeclaredFacts(with_changes(facts, certain=certain, basis="declaration"), declared.flaw)
    if declaration == "none" or declared.flaw:
        effect = Effect.LOCAL_MUTATION if facts.effect is Effect.READ_ONLY else facts.effect
        unknown = with_changes(facts, effect=effect, certain=False, outside=True, basis="nothing")
        return DeclaredFacts(unknown, declared.flaw)
    written_elsewhere = any(map(_is_elsewhere, facts.writes))
    outside = facts.outside or written_elsewhere or any(map(_leaves_workspace, facts.writes))
    certain = facts.certain and not written_elsewhere and not any(map(_is_elsewhere, facts.reads))
    return DeclaredFacts(with_changes(facts, outside=outside, certain=certain, basis="declaration"))


# ---- reading


def _read_twice(tool: Tool, encoded_arguments: bytes) -> tuple[DeclaredFacts, DeclaredFacts]:
    # Each with arguments of its own: what the first did to them is not what the second is asked about.
    return _read(tool, fresh_arguments(encoded_arguments)), _read(tool, fresh_arguments(encoded_arguments))


def _read(tool: Tool, arguments: Mapping[str, Json]) -> DeclaredFacts:
    declared = _read_first(tool, arguments)
    if declared.flaw:
        return declared
    # What the policy goes by is the first of these members. One that says more makes it a contradiction.
    effects: dict[str, object] = {}
    if supports(tool, SupportsFacts) and supports(tool, SupportsClassification):
        effects["classify() returned"] = tool.classify(arguments)
    if supports(tool, SupportsEffect):
        effects["effect is"] = tool.effect
    for source, effect in effects.items():
        # Of contacting a host and changing something here neither is milder, so any other effect counts.
        if type(effect) is Effect and effect not in {Effect.READ_ONLY, declared.facts.effect}:
            facts = with_changes(declared.facts, effect=max(effect, declared.facts.effect))
            flaw = f"its {source} {short_repr(str(effect))}, and what else it declares is something else"
            return DeclaredFacts(facts, flaw)
        if type(effect) is not Effect and effect is not None:
            return DeclaredFacts(declared.facts, f"its {source} {short_repr(effect)}, which is not an Effect")
    return declared


def _read_first(tool: Tool, arguments: Mapping[str, Json]) -> DeclaredFacts:
    if supports(tool, SupportsFacts):
        facts: object = tool.gather_facts(arguments)
        if isinstance(facts, Facts):
            return check_facts(facts)
        return DeclaredFacts(Facts(), f"its gather_facts() returned {short_repr(facts)}, not Facts")
    if supports(tool, SupportsClassification):
        effect: object = tool.classify(arguments)
        source = "its classify() returned"
    elif supports(tool, SupportsEffect):
        effect, source = tool.effect, "its effect is"
    else:
        return DeclaredFacts(Facts())
    if type(effect) is Effect:
        return DeclaredFacts(Facts(effect=effect))
    return DeclaredFacts(Facts(), f"{source} {short_repr(effect)}, which is not an Effect")


def _agreed(first: DeclaredFacts, second: DeclaredFacts) -> DeclaredFacts:
    """Return the declaration if both answers agree; else the union of both, with that flaw."""
    if first.facts == second.facts:
        return first if first.flaw else second
    one, other = first.facts, second.facts
    facts = Facts(
        effect=max(one.effect, other.effect),
        outside=one.outside or other.outside,
        certain=False,
        background=one.background or other.background,
        reads=unite_names(one.reads, other.reads),
        writes=unite_names(one.writes, other.writes),
        folders=unite_names(one.folders, other.folders),
        unresolved=unite_names(one.unresolved, other.unresolved),
        recorded=unite_names(one.recorded, other.recorded),
        hosts=unite_names(one.hosts, other.hosts),
        commands=unite_names(one.commands, other.commands),
    )
    flaw = first.flaw or second.flaw or "it was declared twice for the same arguments, each time differently"
    return DeclaredFacts(facts, flaw)


def unite_names(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of both sequences, each once, in order of first appearance."""
    return tuple(dict.fromkeys((*names, *others)))


# ---- checking


def check_facts(facts: Facts) -> DeclaredFacts:
    """Return the usable part of facts from a tool that is not ours, as plain values, and their first flaw.

    What is usable is not dropped for another flaw, so that a rule that denies a path or a host still holds.
    """
    # Each member is looked up once: what was checked is what is used.
    values = dict(zip(_FIELDS, _values_of(facts), strict=True))
    flaws: list[str] = []
    checked: dict[str, Any] = {}
    for name, value in values.items():
        # By type and not by equality, here and below: an object of another class could change its answer.
        if name in _NAME_KINDS:
            checked[name], flaw = _check_names(name, value)
        else:
            kind, is_kind = _KINDS[name]
            is_usable = value is _DEFAULTS[name] or is_kind(value)
            checked[name] = value if is_usable else _DEFAULTS[name]
            flaw = "" if is_usable else f"{name}={short_repr(value)}, which is not a valid {kind}"
        if flaw:
            flaws.append(f"its facts have {flaw}")
    stated = Facts(**checked)
    if not flaws and (contradiction := _contradiction(stated)):
        flaws.append(contradiction)
    return DeclaredFacts(_usable_part(stated), flaws[0] if flaws else "")


def _usable_part(stated: Facts) -> Facts:
    """Return what counts of checked facts: what an author can know, with every path that they name.

    How a call is held, what undo covers, and digests of what is there are for the gate to find out.
    """
    removed = [path for path, _ in stated.losses]
    made = [one.name for one in stated.made]
    patches = [one.path for one in stated.patches if one.path != "-"]
    scripts = [path for path, _ in stated.scripts]
    linked = [path for link in stated.links for path in link]
    copied = [one.source for one in stated.made if one.source]
    reads = (*patches, *stated.mentions, *stated.named, *stated.places, *scripts, *linked, *copied)
    return Facts(
        effect=stated.effect,
        outside=stated.outside,
        certain=stated.certain,
        background=stated.background,
        reads=unite_names(stated.reads, _outside_of(stated.reads, reads)),
        writes=unite_names(stated.writes, _outside_of(stated.writes, (*removed, *made))),
        folders=stated.folders,
        unresolved=stated.unresolved,
        recorded=stated.recorded,
        hosts=stated.hosts,
        commands=stated.commands,
    )


def _outside_of(paths: tuple[str, ...], others: Iterable[str]) -> tuple[str, ...]:
    """Return those of the others that are none of the paths, nor below one."""
    known = set(paths)
    return tuple(other for other in others if known.isdisjoint(_with_parents(other)))


def _with_parents(path: str) -> Iterator[str]:
    yield path
    while (end := path.rfind("/")) > 0:
        path = path[:end]
        yield path


def _contradiction(facts: Facts) -> str:
    """Return which two statements of the facts contradict each other; empty if none do."""
    if facts.effect is Effect.READ_ONLY:
        statements = {
            "writes": facts.writes or facts.outside,
            "leaves something running": facts.background,
            "removes or replaces something (losses)": facts.losses,
            "makes names (made)": facts.made,
            "applies patches (patches)": facts.patches,
            "runs files of the workspace (scripts)": facts.scripts,
            "has git start programs (git_programs)": facts.git_programs,
            "may run code (code)": facts.code is not None,
            "is compared like a change (sources)": facts.sources,
        }
        for statement, is_made in statements.items():
            if is_made:
                return f"its facts say that it only reads, and that it {statement}"
    if facts.certain:
        open_questions = {
            "doubts": facts.doubts,
            "unknown": facts.unknown,
            "dash_folders": facts.dash_folders,
            "absent": facts.absent,
            "without_dashes": facts.without_dashes is not None,
        }
        for name, is_open in open_questions.items():
            if is_open:
                return f"its facts say that all is certain, and have {name}, for what is not"
    strays = set(facts.folders) - {*facts.reads, *facts.writes}
    if strays:
        return f"its facts name {short_repr(min(strays))} as a folder that it neither reads nor writes"
    return ""


def _is_pairs(value: object) -> bool:
    return _is_tuple_of(value, lambda pair: _is_tuple_of(pair, _is_text, 2) and _is_path(pair[0]))


def _is_tuple_of(value: object, is_member: Callable[[Any], bool], length: int | None = None) -> bool:
    if type(value) is not tuple or len(value) > MAX_NAMES or (length is not None and len(value) != length):
        return False
    return all(map(is_member, value))


def _is_text(value: object) -> bool:
    return type(value) is str and len(value) <= MAX_COMMAND_CHARS


def _is_made_name(value: object) -> bool:
    if type(value) is not MadeName:
        return False
    name, source, is_link = value.name, value.source, value.is_link
    is_source = _is_text(source) and (not source or _is_path(source))
    return _is_text(name) and _is_path(name) and is_source and type(is_link) is bool


def _is_patch_file(value: object) -> bool:
    if type(value) is not PatchFile:
        return False
    path, folder, strip = value.path, value.folder, value.strip
    is_located = all(_is_text(one) and _is_path(one) for one in (path, folder))
    return is_located and (strip is None or type(strip) is int)


def _is_git_programs(value: object) -> bool:
    if type(value) is not GitPrograms or not _is_text(value.folder):
        return False
    return _is_tuple_of(value.hooks, _is_text) and _is_tuple_of(value.settings, _is_text)


def _is_absent_names(value: object) -> bool:
    return type(value) is AbsentNames and _is_text(value.folder) and _is_tuple_of(value.names, _is_text)


def _check_names(kind: str, names: object) -> tuple[tuple[str, ...], str]:
    """Return the valid names among `names`, and what is wrong with the others."""
    if type(names) is str:
        usable = (names,) if not _name_flaw(kind, names) else ()
        return usable, f"the text {short_repr(names)} as {kind}, in place of a tuple of texts"
    if type(names) is not tuple and type(names) is not list:
        return (), f"{kind}={short_repr(names)}, which is not a tuple of texts"
    if len(names) > MAX_NAMES:
        return (), f"{len(names):,} {kind}, more than the {MAX_NAMES:,} allowed"
    flaws = [_name_flaw(kind, name) for name in names]
    usable = tuple(name for name, flaw in zip(names, flaws, strict=True) if not flaw)
    return usable, next(filter(None, flaws), "")


def _name_flaw(kind: str, name: object) -> str:
    if type(name) is not str:
        return f"{short_repr(name)} among its {kind}, which is not text"
    if kind == "hosts":
        what, usable = "host", _is_host(name)
    elif kind in {"commands", "unresolved"}:
        what, usable = "command", bool(name.strip()) and "\0" not in name and len(name) <= MAX_COMMAND_CHARS
    else:
        what, usable = "path", _is_path(name)
    return "" if usable else f"the {what} {short_repr(name)}, which is none"


def _is_host(text: str) -> bool:
    if len(text) > _MAX_HOST_CHARS:
        return False
    if _HOST.fullmatch(text):
        return True
    bracketed = _BRACKETED.fullmatch(text)
    try:
        return ipaddress.IPv6Address(bracketed[1] if bracketed else text) is not None
    except ValueError:
        return False


def _is_path(text: str) -> bool:
    try:
        return 0 < len(os.fsencode(text)) <= MAX_PATH_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False


def _leaves_workspace(path: str) -> bool:
    """Return whether a path that was declared leads out of the workspace, however it is spelt."""
    return path.startswith(("/", "~")) or posixpath.normpath(path).partition("/")[0] == ".."


def _is_elsewhere(path: str) -> bool:
    """Return whether a path may name another machine, follow the rules of another system, or is blank.

    A colon before the first slash is a URL, a remote path such as `host:/x`, or a drive. That a file in the
    workspace can have such a name is no reason to believe it.
    """
    return not path.strip() or bool(_ELSEWHERE.match(path)) or bool(_FOREIGN_VARIABLE.search(path))


def _is_flag(value: object) -> bool:
    return type(value) is bool


def _is_one_of(*texts: str) -> Callable[[object], bool]:
    return lambda value: type(value) is str and value in texts


_KINDS: Final[Mapping[str, tuple[str, Callable[[object], bool]]]] = {
    "effect": ("Effect", lambda value: type(value) is Effect),
    "links": ("tuple of pairs of paths", _is_pairs),
    "patches": ("tuple of PatchFile", lambda value: _is_tuple_of(value, _is_patch_file)),
    "git_programs": ("tuple of GitPrograms", lambda value: _is_tuple_of(value, _is_git_programs)),
    "made": ("tuple of MadeName", lambda value: _is_tuple_of(value, _is_made_name)),
    "absent": ("tuple of AbsentNames", lambda value: _is_tuple_of(value, _is_absent_names)),
    "without_dashes": ("Facts", lambda value: value is None or type(value) is Facts),
    "enforced": (
        "frozenset of pairs of texts",
        lambda value: type(value) is frozenset and all(_is_tuple_of(one, _is_text, 2) for one in value),
    ),
    "outside": ("bool", _is_flag),
    "certain": ("bool", _is_flag),
    "doubts": ("tuple of texts", lambda value: _is_tuple_of(value, _is_text)),
    "unknown": (
        "tuple of tuples of words",
        lambda value: _is_tuple_of(value, lambda words: bool(words) and _is_tuple_of(words, _is_text)),
    ),
    "scripts": ("tuple of pairs of path and digest", _is_pairs),
    "code": ("text", lambda value: value is None or _is_text(value)),
    "sources": ("tuple of pairs of path and digest", _is_pairs),
    "losses": ("tuple of pairs of path and stamp", _is_pairs),
    "runs_in": ("place (sandbox, host)", _is_one_of(*get_args(RunsIn))),
    "level": ("text", _is_text),
    "undoable": ("bool", _is_flag),
    "path_guarded": ("bool", _is_flag),
    "background": ("bool", _is_flag),
    "basis": ("basis (analysis, declaration, nothing)", _is_one_of(*get_args(Basis))),
}
"""For the other fields of facts what their values are, and whether one is such a value."""


# ---- bounded in time


class _AskingThread:
    """A thread that runs one question after the other, as long as each is answered in time.

    Starting a thread takes several times as long as handing a question over, and each call of a tool with a
    declaration asks one. Two locks hand it over and back; a queue and a future take five times as long.

    Attributes:
        is_done: Whether the last question has been answered.
        answer: What it returned.
        error: What it raised instead, or None.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self.is_done = True
        self.answer: Any = None
        self.error: BaseException | None = None
        self._question: Callable[[], object] | None = None
        # Each is released by one thread and acquired by the other.
        self._asked, self._answered = threading.Lock(), threading.Lock()
        self._asked.acquire()
        self._answered.acquire()
        # A daemon: a program that ends does not wait for it.
        threading.Thread(target=self._run, name="aisotools-declarations", daemon=True).start()

    def ask(self, question: Callable[[], object], timeout_s: float) -> bool:
        """Run `question` in the context of the caller. Return whether it was answered in time."""
        self.is_done, self.answer, self.error = False, None, None
        self._question = functools.partial(contextvars.copy_context().run, question)
        self._asked.release()
        return self._answered.acquire(timeout=max(timeout_s, 0.0))

    def end(self) -> None:
        """End the thread once it has answered what it was asked."""
        self._question = None
        # Race: it may still be busy, or be done just now. Either way it asks for the next question once more.
        self._asked.release()

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            question, self._question = self._question, None
            if question is None:
                return
            try:
                self.answer = question()
            except BaseException as error:  # also what would end the program: it is the tool's answer
                self.error = error
            del question  # what it holds is not kept until the next one comes
            self.is_done = True
            self._answered.release()


class _Asker:
    """Runs the code of tools' authors in threads, and waits for it no longer than is allowed.

    Threat: `classify` is code of a stranger, and its arguments are a model's. It may be slow for some of
    them, or never end, on the event loop, which delivers clicks and the Stop button.

    Mechanism: it runs in a thread, and after the time is up nobody waits for that any more. No thread can be
    ended from outside, so as long as one is busy with a tool no other is used for that tool: a model that
    calls again and again gets its answer at once, and a single thread is lost. One that has answered in time
    is used for the next question, of any tool.
    Race: the thread may answer while it is given up. Nobody reads that answer.
    Failure: the call is denied. Code in C that holds the interpreter's lock, such as a regular expression
    that takes exponential time, holds up everything, as in any other code of the program.
    """

    def __init__(self) -> None:
        """Start with no thread."""
        self._idle: list[_AskingThread] = []
        # By identity, with the tool itself, so that no other gets its number.
        self._busy: dict[int, tuple[Tool, _AskingThread]] = {}
        # A fork has none of the threads.
        os.register_at_fork(after_in_child=self._idle.clear)

    def ask(self, tool: Tool, question: Callable[[], _Answer], timeout_s: float) -> _Answer:
        """Return what `question` returns.

        Raises:
            ToolError: If it does not return in time, or an earlier question about this tool has not yet.
            Exception: Whatever it raises; in place of what would end the program, a `ToolError`.
        """
        for number, (_, late) in list(self._busy.items()):
            if late.is_done:
                self._busy.pop(number, None)  # sessions of other threads look, too
        if id(tool) in self._busy:
            raise ToolError("it is still busy with an earlier call", recoverable=False)
        try:
            # Race: sessions of other threads take from the list, too, which is one step of the interpreter.
            thread = self._idle.pop()
        except IndexError:
            thread = _AskingThread()
        try:
            is_in_time = thread.ask(question, timeout_s)
        except BaseException:
            thread.end()  # a person has interrupted the program
            raise
        if not is_in_time:
            thread.end()
            self._busy[id(tool)] = (tool, thread)
            raise ToolError(f"it did not answer within {timeout_s:g} s", recoverable=False)
        # Taken out before others may use the thread, and not kept until they do.
        answer: _Answer = thread.answer
        error, thread.answer, thread.error = thread.error, None, None
        self._idle.append(thread)
        if error is None:
            return answer
        if isinstance(error, Exception):
            raise error
        raise ToolError(f"it raised {type(error).__name__}: {error}", recoverable=False)


_asker = _Asker()
