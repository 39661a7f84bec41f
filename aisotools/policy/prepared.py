"""Prepare a call: validate and classify it, ask the policy, and bind the answer to exactly this call. Pure.

A `PreparedCall` is bound to the tool's version, the exact arguments and the level of the sandbox. The gate
checks its digest again at dispatch and runs the tool and the arguments of the prepared call, so what was
shown is what runs.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol

from aisotools.core.exceptions import CLOSE_FILES, TOO_MANY_FILES, ArgumentError, as_clause
from aisotools.core.protocols import Tool, ToolPayload
from aisotools.core.sandboxes import CallDispatch
from aisotools.core.truncation import summarize_names
from aisotools.core.types import Decision, Effect, Facts, Json, RunsIn, ToolCall, ToolResult, with_changes
from aisotools.policy.quoted import quoted_texts
from aisotools.policy.rules import Evaluation, Policy, assumed_effect
from aisotools.tools.adapter import (
    BuiltinTool,
    deadline_of,
    find_builtin,
    gather_facts,
    is_own_host_tool,
    payload_of,
    validate_arguments,
    version_of,
)
from aisotools.tools.declarations import DeclaredFacts, declared_facts, unite_names
from aisotools.tools.validation import encode_arguments, fresh_arguments
from aisotools.workspace.loaded_names import loaded_names
from aisotools.workspace.stamps import NAMED, is_known

_CODE_ARGUMENT = "code"
"""The argument in which tools get code to run, as `python` does."""

_MAX_PATH_CHARS = 4_096
_DEPENDS = re.compile(
    r"\$(?!\{?(?:HOME|LANG|LD_LIBRARY_PATH|OLDPWD|PATH|PWD|PYTHONPATH|SHELL|TMPDIR|USER|WORKSPACE)\b)|[`…]|\{\}"
)
"""In the place of a path that another program, or a variable, gives at run time."""

_TAKES_LIST = re.compile(r"\s(?:-\w*T|-@|--files(?:0|-from\b))")
"""Options by which tar, rsync, zip and others read the names of files from a file."""

_CODE_SIGNS = re.compile(r"[()=\n\"';]|\bimport\b|%")

_MAX_COMMANDS = 20
_MAX_COMMAND_CHARS = 5_000
"""Of commands that a tool on the host declares; some milliseconds of the event loop."""

_ONLY_DECLARED = "its author declares that it only reads, and nothing on the host enforces that"

_NOT_REMEMBERED = (
    "an approval cannot be remembered: it may run code beside the workspace, or more than can be compared"
)

_NOT_COMPARED = "an approval cannot be remembered: not all that it reads can be compared ({names})"

_UNENFORCED = (
    "its tool says that it only reads, which cannot be enforced here (level {level}): it counts as a local "
    "change"
)


PathsResolver = Callable[[Facts, Mapping[str, Json] | None], Facts]
"""Resolves the paths of a call; gets the arguments of a tool that may name paths in them."""


class CodeDigester(Protocol):
    """Looks at the code of a workspace."""

    def __call__(self, texts: Iterable[str], scripts: Iterable[str], /, *, is_any: bool = False) -> str:
        """Return a digest of all code that a call may run; see `workspace.scripts.digest_of_code`."""
        ...


SourcesFinder = Callable[[Facts, Facts], Facts]
"""Returns facts with digests of what the call reads: gets the declared facts, and the resolved ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """A call whose request is recorded.

    Attributes:
        call: The call, with arguments that its caller cannot change any more; as it came if they have a flaw.
        tool: The tool of that name when the call was made; None if there was none.
        size: How large the arguments are, as `check_size` says.
        flaw: Why the arguments are too large to be read; None if they are not too large.
        started_s: When the call was made, in seconds of the monotonic clock.
        dispatch: Whether it was given to what runs it, and whether it was interrupted.
    """

    call: ToolCall
    tool: Tool | None
    size: int = 0
    flaw: ArgumentError | None = None
    started_s: float
    dispatch: CallDispatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A classified call and the policy's answer.

    Attributes:
        tool: The tool; runs on the host if `payload` is None.
        payload: What runs in the sandbox, packed when the call was prepared; None for a tool of the host.
        original: The call as the caller made it.
        encoded_arguments: The validated arguments as JSON: what is shown, and what is dispatched.
        deadline_s: The tool's own limit in seconds, or None.
        facts: What is known about the call.
        effect: The effect that the policy assumed.
        policy: The policy that was asked.
        evaluation: Its answer.
        digest: Of the tool's version, the arguments and the level; see `call_digest`.
        only_touches_files: True for our own file tools, which reach files through the path guard and change
            nothing else. What a stranger's tool says of itself does not count.
        own_path: Where the worker imports it from if it is a registered built-in tool; empty for any other
            tool, whatever that says of itself.
        needs_reader: True for a call that only reads, of a tool in the sandbox that would otherwise only be
            believed: it runs where nothing can be changed.
        changes_variables: True if the call may change variables of the sandbox, which therefore keeps those
            from before it. Tools that overlap share the worker with others, whose variables they leave alone.
        contents: Digests of the files that its preview was computed from, by path, once it was shown.
        before: Of the paths in `contents`, digests of what was there when it was shown, where earlier calls
            of the same question leave something else.
        expected: Paths that earlier calls of the same question change: no reason to ask about it again.
        left_digests: Digests of its sources, by path, as earlier calls of the same question leave them.
        is_tried: True if it is tried without the right to change anything before anybody is asked.
        trial: What came of that, for its card: `reason` and `output`, once it was tried in vain.
        look_again: Returns its facts with the paths resolved once more; None if they were not resolved,
            or name no files.
    """

    tool: Tool
    payload: ToolPayload | None
    original: ToolCall
    encoded_arguments: bytes
    deadline_s: float | None
    facts: Facts
    effect: Effect
    policy: Policy
    evaluation: Evaluation
    digest: str
    only_touches_files: bool
    own_path: str
    needs_reader: bool
    changes_variables: bool
    contents: Mapping[str, str] = field(default_factory=dict)
    before: Mapping[str, str] = field(default_factory=dict)
    expected: tuple[str, ...] = ()
    left_digests: Mapping[str, str] = field(default_factory=dict)
    is_tried: bool = False
    trial: Mapping[str, Json] = field(default_factory=dict)
    look_again: Callable[[], Facts] | None = field(repr=False)

    @property
    def arguments(self) -> dict[str, Json]:
        """A fresh copy of the validated arguments: changing it changes neither the decision nor the call."""
        return fresh_arguments(self.encoded_arguments)

    @property
    def call(self) -> ToolCall:
        """The call with a fresh copy of the validated arguments."""
        return _with_arguments(self.original, self.arguments)


@dataclass(frozen=True, slots=True)
class CallDecision:
    """The gate's decision on a call.

    Attributes:
        prepared: The call it is about.
        decision: The decision.
        decided_by: `policy`, `typed`, `grant`, `approver` or `trial`.
        reasons: Why.
    """

    prepared: PreparedCall
    decision: Decision
    decided_by: str
    reasons: tuple[str, ...]


_LONG_ARGUMENTS_BYTES = 4096

Look = Callable[[], Facts]
"""Looks at the files that a call is about, which may be many and large, or reads long arguments of a tool of
this package. It may run in another thread."""

CallSteps = Generator[Look, Facts, PreparedCall]
"""A call that is being prepared. It yields what takes long, and is sent the facts that this returns."""


def prepare_in_steps(
    tool: Tool,
    call: ToolCall,
    policy: Policy,
    level: str,
    can_undo: Callable[[Facts], bool] | None = None,
    *,
    has_readers: bool = False,
    resolve_paths: PathsResolver | None = None,
    find_sources: SourcesFinder | None = None,
    digest_code: CodeDigester | None = None,
    enforced: frozenset[tuple[str, str]] = frozenset(),
    enforced_for_reading: frozenset[tuple[str, str]] = frozenset(),
    is_asked: bool = False,
) -> CallSteps:
    """Validate and classify a call, and ask the policy.

    An error in the tool's own classification denies the call and is named in the reasons. The tool's own code
    runs here, but for long arguments of tools of this package; what is yielded else only looks at files.

    Args:
        tool: The tool that is called.
        call: The call as the caller made it.
        policy: Decides about it.
        level: The sandbox's level.
        can_undo: Returns whether a call with these facts could be undone; None if none can.
        has_readers: Whether the sandbox can hold tools that only read to it. If not, they count as tools that
            make a local change.
        resolve_paths: Returns the facts with their paths resolved in the workspace; None leaves them as the
            tool declares them.
        find_sources: Returns the facts with digests of what the call reads, for a call that is asked about;
            None if nobody can look at it.
        digest_code: Returns a digest of the code that the call may run without naming it; None if nobody can
            look at it.
        enforced: Globs of rules that the sandbox enforces by itself; see `Facts.enforced`.
        enforced_for_reading: Further ones that hold for a command or a file tool that only reads.
        is_asked: Whether somebody is asked about the call even if the policy allows it.

    Raises:
        ArgumentError: If the arguments do not fit.
        SignatureError: If the tool cannot be sent to the sandbox.
        Exception: Whatever else the tool's own members raise.
    """
    encoded = encode_arguments(tool.name, validate_arguments(tool, call.arguments))
    payload = payload_of(tool)
    runs_in: RunsIn = "host" if payload is None else "sandbox"
    builtin = None if payload is None else find_builtin(tool)
    try:
        found = yield from _classify(
            tool,
            call,
            encoded,
            builtin,
            runs_in=runs_in,
            level=level,
            enforced=enforced,
            enforced_for_reading=enforced_for_reading,
            can_undo=can_undo,
            has_readers=has_readers,
            resolve_paths=resolve_paths,
            concerns_paths=policy.concerns_paths,
        )
    except Exception as error:
        found = _Classification(
            facts=Facts(effect=Effect.DESTRUCTIVE, certain=False, runs_in=runs_in, level=level),
            effect=Effect.DESTRUCTIVE,
        )
        remedy = "fix its classify()"
        if isinstance(error, OSError) and error.errno in TOO_MANY_FILES:
            remedy = as_clause(CLOSE_FILES)
        reason = f"its effects could not be determined ({type(error).__name__}: {error}); {remedy}"
        evaluation = Evaluation(Decision.DENY, reasons=(reason,))
    else:
        found, evaluation = yield from _evaluate(
            found,
            call,
            encoded,
            policy,
            digest_code=digest_code,
            find_sources=find_sources,
            is_asked=is_asked,
        )
    facts, effect = found.facts, found.effect
    only_touches_files = builtin is not None and facts.path_guarded
    names = facts.reads or facts.writes or facts.mentions or facts.scripts or facts.commands or facts.sources
    return PreparedCall(
        tool=tool,
        payload=payload,
        original=call,
        encoded_arguments=encoded,
        deadline_s=deadline_of(tool, encoded),
        facts=facts,
        effect=effect,
        policy=policy,
        evaluation=evaluation,
        digest=call_digest(tool, encoded, level, facts),
        only_touches_files=only_touches_files,
        own_path="" if builtin is None or payload is None else payload.import_path,
        needs_reader=found.is_believed and effect is Effect.READ_ONLY,
        changes_variables=payload is not None
        and payload.concurrency != "overlap"
        and effect is not Effect.READ_ONLY
        and not only_touches_files,
        look_again=found.resolve if found.is_resolved and names else None,
    )


def finish_steps(steps_left: CallSteps) -> PreparedCall:
    """Prepare a call to the end, and look at files here. Return the prepared call.

    Raises:
        Exception: Whatever `prepare_in_steps` raises.
    """
    try:
        look = next(steps_left)
        while True:
            try:
                facts = look()
            except Exception as error:
                look = steps_left.throw(error)
            else:
                look = steps_left.send(facts)
    except StopIteration as end:
        prepared: PreparedCall = end.value
        return prepared


_P = ParamSpec("_P")


def _in_one_go(steps: Callable[_P, CallSteps]) -> Callable[_P, PreparedCall]:
    @functools.wraps(steps)
    def prepare(*arguments: _P.args, **options: _P.kwargs) -> PreparedCall:
        return finish_steps(steps(*arguments, **options))

    return prepare


prepare_call = _in_one_go(prepare_in_steps)


@dataclass(frozen=True, slots=True)
class _Resolution:
    """Resolves the paths of a call, and finds its sources."""

    resolve: Callable[[], Facts]
    find_sources: Callable[[Facts], Facts]

    def __call__(self) -> Facts:
        return self.find_sources(self.resolve())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Classification:
    """What is known of a call before the policy is asked.

    Attributes:
        facts: What is known about the call.
        declared: The same with the paths as they are written.
        effect: The effect that the policy assumes.
        flaw: What is wrong with the declaration of the tool's author; empty if nothing is.
        resolve: Returns the facts with their paths resolved; None if nobody can resolve them.
        is_resolved: True if `facts` has resolved paths.
        is_believed: True if the call runs in the sandbox, and nothing but a reader would hold it to reading.
        is_unenforced: True if it counts as a local change because the sandbox has no readers.
    """

    facts: Facts
    declared: Facts = field(default_factory=Facts)
    effect: Effect
    flaw: str = ""
    resolve: Callable[[], Facts] | None = None
    is_resolved: bool = False
    is_believed: bool = False
    is_unenforced: bool = False


def _classify(
    tool: Tool,
    call: ToolCall,
    encoded: bytes,
    builtin: BuiltinTool | None,
    *,
    runs_in: RunsIn,
    level: str,
    enforced: frozenset[tuple[str, str]],
    enforced_for_reading: frozenset[tuple[str, str]],
    can_undo: Callable[[Facts], bool] | None,
    has_readers: bool,
    resolve_paths: PathsResolver | None,
    concerns_paths: bool,
) -> Generator[Look, Facts, _Classification]:
    """Classify a call with the arguments `encoded`; see `prepare_call`.

    Args:
        tool: The tool that is called.
        call: The call as the caller made it.
        encoded: Its validated arguments.
        builtin: The registered built-in tool that `tool` is, if it runs in the sandbox; else None.
        runs_in: Where the tool runs.
        level: As for `prepare_call`, like the other arguments that are not listed here.
        enforced: Globs that count if the tool runs in the sandbox.
        enforced_for_reading: Further ones, for a command or a file tool that only reads.
        can_undo: Asked only about a call that may change something.
        has_readers: Whether the sandbox can hold a tool to reading.
        resolve_paths: Resolves the paths of the facts.
        concerns_paths: Whether the policy has rules about paths, for which paths are resolved of every call.

    Raises:
        Exception: Whatever the tool's classification raises, or the resolution of its paths.
    """
    is_ours = builtin is not None or (runs_in == "host" and is_own_host_tool(tool))
    flaw = ""
    # Each function gets a copy of the arguments, so that none can change what the others see.
    if is_ours:
        gather = functools.partial(gather_facts, tool, fresh_arguments(encoded))
        # A command of hundreds of others takes some fifty milliseconds to read.
        facts = (yield gather) if len(encoded) > _LONG_ARGUMENTS_BYTES else gather()
    else:
        facts, flaw = _declared_facts(tool, call, encoded, on_host=runs_in == "host")
    # That a tool reaches files through the path guard is known of our own tools alone.
    is_guarded = facts.path_guarded and builtin is not None
    facts = with_changes(
        facts,
        basis="analysis" if is_ours else facts.basis,
        runs_in=runs_in,
        level=level,
        path_guarded=is_guarded,
        enforced=enforced if runs_in == "sandbox" else frozenset(),
        scripts=() if resolve_paths is None else facts.scripts,  # without a resolver nobody can read them
    )
    declared = facts
    # The paths of a call that only reads matter to rules about paths, and to a person who is asked.
    is_resolved = resolve_paths is not None and (concerns_paths or facts.effect is not Effect.READ_ONLY)
    resolve: Callable[[], Facts] | None = None
    if resolve_paths is not None:
        # The facts of our own tools name all paths; the arguments of other tools may name more.
        resolve = (
            functools.partial(resolve_paths, facts, None)
            if is_ours
            else functools.partial(_resolve_with_arguments, resolve_paths, facts, encoded)
        )
        if is_resolved:
            # Of a call that may do anything, all that it names is followed and compared.
            facts = (yield resolve) if facts.commands or not facts.certain else resolve()
    keeps_to_reading = builtin is not None and builtin.keeps_to_reading
    runs_held_command = keeps_to_reading and not facts.background and bool(facts.commands)
    # A command is started without the right to read what is denied, and a tool for files leaves it out.
    is_kept = (runs_held_command or is_guarded) and facts.certain and facts.effect is Effect.READ_ONLY
    if enforced_for_reading and is_kept:
        facts = with_changes(facts, enforced=facts.enforced | enforced_for_reading)
    is_believed = runs_in == "sandbox" and not (is_guarded or keeps_to_reading)
    is_unenforced = is_believed and not has_readers and assumed_effect(facts) is Effect.READ_ONLY
    if is_unenforced:
        facts = with_changes(facts, effect=Effect.LOCAL_MUTATION)
    effect = assumed_effect(facts)
    # A call that only reads leaves nothing to undo, and finding out takes time. What the tool itself says
    # about undo does not count.
    undoable = can_undo is not None and effect is not Effect.READ_ONLY and can_undo(facts)
    if facts.undoable is not undoable:
        facts = with_changes(facts, undoable=undoable)
    return _Classification(
        facts=facts,
        declared=declared,
        effect=effect,
        flaw=flaw,
        resolve=resolve,
        is_resolved=is_resolved,
        is_believed=is_believed,
        is_unenforced=is_unenforced,
    )


def _evaluate(
    found: _Classification,
    call: ToolCall,
    encoded: bytes,
    policy: Policy,
    *,
    digest_code: CodeDigester | None,
    find_sources: SourcesFinder | None,
    is_asked: bool,
) -> Generator[Look, Facts, tuple[_Classification, Evaluation]]:
    """Ask the policy. Return its answer, and the classification with what a person who is asked must know."""
    evaluation = policy.check(_with_arguments(call, fresh_arguments(encoded)), found.facts)
    # A person can allow to write what is protected, so that is asked about as well.
    is_asked = is_asked or evaluation.decision is Decision.ASK or bool(evaluation.protected)
    if is_asked and found.resolve is not None and not found.is_resolved:
        old, facts = found.facts, (yield found.resolve)
        facts = with_changes(facts, effect=old.effect, undoable=old.undoable)
        # A path that cannot be resolved makes the facts uncertain, and so the effect may become more severe.
        found = with_changes(found, facts=facts, effect=assumed_effect(facts), is_resolved=True)
    # What a call reads that changes nothing is shown to whoever made it, and nothing else comes of it.
    find = None
    if is_asked and found.is_resolved and find_sources is not None and found.effect is not Effect.READ_ONLY:
        assert found.resolve is not None
        find = functools.partial(find_sources, found.declared)
        found = with_changes(found, resolve=_Resolution(found.resolve, find))
    if is_asked and (find is not None or digest_code is not None):
        # One look for both: each is a change of threads.
        arguments = fresh_arguments(encoded)
        facts = yield functools.partial(_with_sources_and_code, found, arguments, find, digest_code)
        found = with_changes(found, facts=facts)
    notes = _notes(found, evaluation.decision)
    if notes:
        evaluation = with_changes(evaluation, reasons=(*evaluation.reasons, *notes))
    return found, evaluation


def _notes(found: _Classification, decision: Decision) -> Sequence[str]:
    """Return what a card or a model must be told beside the policy's own reasons."""
    facts, notes = found.facts, []
    if found.is_unenforced:
        notes.append(_UNENFORCED.format(level=facts.level))
    if facts.code == "" or "" in dict(facts.scripts).values():
        notes.append(_NOT_REMEMBERED)
    elif unknown := [path for path, digest in bound_sources(facts) if not is_known(digest)]:
        notes.append(_NOT_COMPARED.format(names=summarize_names(unknown, 3)))
    if facts.runs_in == "host" and facts.basis == "declaration" and facts.effect is Effect.READ_ONLY:
        notes.append(_ONLY_DECLARED)
    if found.flaw and decision is not Decision.ALLOW:
        notes.append(found.flaw)
    return notes


def _with_arguments(call: ToolCall, arguments: Mapping[str, Json]) -> ToolCall:
    """Return a call with other arguments. `dataclasses.replace` takes three times as long."""
    return ToolCall(
        call.id, call.name, arguments, origin=call.origin, agent_id=call.agent_id, turn_id=call.turn_id
    )


def _declared_facts(tool: Tool, call: ToolCall, encoded: bytes, *, on_host: bool) -> DeclaredFacts:
    """Return what the author of a tool that is not ours declares of a call, and what its code names."""
    facts, flaw = declared_facts(tool, encoded, on_host=on_host)
    if on_host and facts.commands:
        facts = _with_commands(facts)
    # No tool says what code does that it is given to run; what it names is seen all the same.
    code = call.arguments.get(_CODE_ARGUMENT)
    if isinstance(code, str):
        facts = with_changes(
            facts,
            named=tuple(quoted_texts(code)),
            scripts=tuple((name, "") for name in loaded_names(code)),
        )
    return DeclaredFacts(facts, flaw)


def _resolve_with_arguments(resolve_paths: PathsResolver, facts: Facts, encoded: bytes) -> Facts:
    """Return the facts with their paths resolved, and those that the arguments name."""
    arguments = fresh_arguments(encoded)
    code = arguments.get(_CODE_ARGUMENT)
    if isinstance(code, str) and (len(code) > _MAX_PATH_CHARS or _CODE_SIGNS.search(code)):
        del arguments[_CODE_ARGUMENT]  # of code, what stands in quotes counts
    return resolve_paths(facts, arguments)


def _with_sources_and_code(
    found: _Classification,
    arguments: Mapping[str, Json],
    find_sources: Callable[[Facts], Facts] | None,
    digest_code: CodeDigester | None,
) -> Facts:
    """Return the facts with digests of what the call reads, and of code that it may run without naming it.

    Args:
        found: The call as it is classified.
        arguments: Its arguments.
        find_sources: Finds what it reads; None to leave that out.
        digest_code: Looks at the code; None to leave that out.
    """
    facts = found.facts if find_sources is None else find_sources(found.facts)
    if digest_code is None:
        return facts
    is_given_code = isinstance(arguments.get(_CODE_ARGUMENT), str)
    words = found.declared.named if facts.commands else ()
    is_any = any(map(_DEPENDS.search, (*facts.unresolved, *words)))
    is_any = is_any or any(map(_TAKES_LIST.search, facts.commands))
    runs_unknown = (is_any or not facts.certain) and not facts.path_guarded
    if not is_given_code and not (runs_unknown and (facts.commands or facts.runs_in == "sandbox")):
        return facts
    texts = [value for value in arguments.values() if isinstance(value, str)]
    scripts = [path for path, _ in facts.scripts]
    return with_changes(facts, code=digest_code(texts, scripts, is_any=is_any))


def bound_sources(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Return the sources on which an approval that is remembered depends, with their digests.

    What a certain call makes of what it reads is known, and stays in the workspace; everything else may be
    another thing with other sources.
    """
    is_bound = not facts.certain or facts.unresolved or facts.effect is Effect.REMOTE_ACTION
    return tuple(one for one in facts.sources if not one[1].startswith(NAMED)) if is_bound else ()


def _with_commands(facts: Facts) -> Facts:
    """Return facts that an author declares, with what the commands do that they name; never milder ones."""
    # Few tools declare commands, and this loads the grammar.
    from aisotools.policy.shell.classify import shell_facts

    commands = facts.commands
    if len(commands) > _MAX_COMMANDS or sum(map(len, commands)) > _MAX_COMMAND_CHARS:
        return with_changes(facts, certain=False)
    for command in commands:
        found = shell_facts(command)
        # On the host, the programs that settings of git name are the person's own.
        is_by_files = bool(found.dash_folders) or any(one.names or one.modules for one in found.absent)
        if found.without_dashes is not None and not is_by_files:
            found = found.without_dashes
        # A program alone stands for whatever it may be given: only what it does with any argument counts.
        with_argument = shell_facts(f"{command} ./x") if " " not in command.strip() else found
        facts = with_changes(
            facts,
            effect=max(facts.effect, found.effect, with_argument.effect),
            writes=unite_names(facts.writes, found.writes),
            unresolved=unite_names(facts.unresolved, found.unresolved),
            # What they read counts for rules; the author says what the call reads.
            named=unite_names(facts.named, (*found.reads, *found.named)),
            hosts=unite_names(facts.hosts, (*found.hosts, *with_argument.hosts)),
            outside=facts.outside or found.outside,
            certain=facts.certain and found.certain and with_argument.certain,
        )
    return facts


def call_digest(tool: Tool, encoded_arguments: bytes, level: str, facts: Facts) -> str:
    """Return the digest of what a decision is bound to: tool, version, level, arguments, paths, scripts."""
    digest = hashlib.sha256()
    known = (
        facts.reads,
        facts.writes,
        facts.links,
        facts.mentions,
        facts.unresolved,
        facts.recorded,
        facts.scripts,
        facts.code,
        bound_sources(facts),
        facts.losses if facts.effect is Effect.DESTRUCTIVE else (),
    )
    paths = repr(known).encode()
    for part in (tool.name.encode(), version_of(tool).encode(), level.encode(), encoded_arguments, paths):
        # The lengths keep two different lists of parts from joining into the same bytes.
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def changes_something(decision: CallDecision | ToolResult) -> bool:
    """Return whether a call may change something, if it runs at all."""
    return (
        isinstance(decision, CallDecision)
        and decision.decision is not Decision.DENY
        and decision.prepared.effect is not Effect.READ_ONLY
    )


def in_waves(decisions: Sequence[CallDecision | ToolResult]) -> Iterator[list[int]]:
    """Group the indices of calls that may run together, in order: readers share, each writer is alone."""
    together: list[int] = []
    for index, decision in enumerate(decisions):
        if (
            isinstance(decision, CallDecision)
            and decision.decision is Decision.ALLOW
            and decision.prepared.effect is not Effect.READ_ONLY
        ):
            yield together
            yield [index]
            together = []
        else:
            together.append(index)
    yield together


def denial_result(name: str, reasons: tuple[str, ...]) -> ToolResult:
    """Return the result of a denied call, with the reasons, for the model."""
    explanation = "; ".join(reason.rstrip(".") for reason in reasons if reason) or "no reason was given"
    return ToolResult.error(f"{name} was not run: {explanation}.", recoverable=False, error_kind="denied")
