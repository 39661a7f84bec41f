"""Values passed between all parts: calls, results, facts and approvals.

All are frozen. Fields without a default may be positional, in the order written here; all others are keyword
only. Units are part of the names: seconds, bytes or characters; times are seconds since the epoch.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Any, Literal, Self, TypeVar, get_args

Origin = Literal["person", "program", "model"]
"""Origin of a call: typed in a cell by a person, made by a program, or chosen by a model."""

Outcome = Literal["approve", "deny", "timeout", "cancel"]
"""End of a request for approval."""

Remember = Literal["call", "shape", "tool", "protected"]
"""Scope of a remembered approval: this exact call, calls of the same shape, or the tool; per session. With
`protected` the protected names that the call writes may be written in this workspace from now on."""

ErrorKind = Literal["invalid", "failed", "denied", "environment"]
"""Cause of an error: the arguments, the tool's work, a decision, or aisotools itself."""

RunsIn = Literal["sandbox", "host"]
"""Where a tool runs."""

Basis = Literal["analysis", "declaration", "nothing"]
"""What facts rest on: what aisotools found out itself, what a tool's author declares, or nothing."""

Json = Any
"""A value that JSON can hold."""

MimeBundle = Mapping[str, Any]
"""Data of several MIME types for one thing to show; binary types hold base64 text."""

_Value = TypeVar("_Value")


def with_changes(value: _Value, **changes: Any) -> _Value:
    """Return one of our frozen dataclasses with other values in some of its fields.

    It does what `dataclasses.replace` does, in a fifth of the time. A call makes a dozen of these.

    Raises:
        TypeError: If there is no such field.
    """
    kind: type[_Value] = type(value)
    names, values_of = fields_to_copy(kind)  # type: ignore[arg-type]  # classes are hashable
    setters = _setters_of(kind)  # type: ignore[arg-type]  # the same
    if setters is None or not changes.keys() <= setters.keys():
        return kind(**dict(zip(names, values_of(value), strict=True), **changes))
    changed: _Value = object.__new__(kind)
    for setter, present in zip(setters.values(), values_of(value), strict=True):
        setter(changed, present)
    for name, new in changes.items():
        setters[name](changed, new)
    return changed


@functools.cache
def _setters_of(kind: type) -> dict[str, Callable[[object, object], None]] | None:
    """Return what sets each field of a new instance; None if its class has more to do than that."""
    own = dataclasses.fields(kind)
    members = [inspect.getattr_static(kind, one.name, None) for one in own]
    is_plain = all(map(inspect.ismemberdescriptor, members)) and all(one.init for one in own)
    has_own_init = not kind.__dataclass_params__.init  # type: ignore[attr-defined]  # typeshed lacks it
    if not is_plain or has_own_init or hasattr(kind, "__post_init__"):
        return None
    return {one.name: member.__set__ for one, member in zip(own, members, strict=True)}


@functools.cache
def fields_to_copy(kind: type) -> tuple[tuple[str, ...], Callable[[object], tuple[object, ...]]]:
    """Return the names of a dataclass's fields, and a function that returns the values of one instance."""
    names = tuple(one.name for one in dataclasses.fields(kind) if one.init)
    get = operator.attrgetter(*names)
    return names, get if len(names) > 1 else lambda value: (get(value),)


class Effect(StrEnum):
    """Severity of a call; ordered, mildest first."""

    READ_ONLY = "read_only"
    REMOTE_ACTION = "remote_action"
    LOCAL_MUTATION = "local_mutation"
    DESTRUCTIVE = "destructive"

    @property
    def rank(self) -> int:
        """Position in the order of severity, from 0."""
        return _EFFECT_RANK[self]

    def __lt__(self, other: object) -> bool:
        return self.rank < _rank_of(other, Effect)

    def __le__(self, other: object) -> bool:
        return self.rank <= _rank_of(other, Effect)

    def __gt__(self, other: object) -> bool:
        return self.rank > _rank_of(other, Effect)

    def __ge__(self, other: object) -> bool:
        return self.rank >= _rank_of(other, Effect)


def _rank_of(other: object, kind: type[Effect | Decision]) -> int:
    # A plain string would be compared by its spelling, and silently give a wrong order.
    if not isinstance(other, kind):
        raise TypeError(f"{kind.__name__} cannot be compared with {other!r}; use {kind.__name__}({other!r}).")
    return other.rank


_EFFECT_RANK = {effect: rank for rank, effect in enumerate(Effect)}


class Decision(StrEnum):
    """Decision of a policy; ordered `ALLOW < ASK < DENY`, so the strictest is `max`."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def rank(self) -> int:
        """Position in the order of strictness, from 0."""
        return _DECISION_RANK[self]

    def __lt__(self, other: object) -> bool:
        return self.rank < _rank_of(other, Decision)

    def __le__(self, other: object) -> bool:
        return self.rank <= _rank_of(other, Decision)

    def __gt__(self, other: object) -> bool:
        return self.rank > _rank_of(other, Decision)

    def __ge__(self, other: object) -> bool:
        return self.rank >= _rank_of(other, Decision)


_DECISION_RANK = {decision: rank for rank, decision in enumerate(Decision)}


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as a model sees it.

    Attributes:
        name: Unique in its registry.
        description: Written for a model to read.
        parameters: JSON Schema of the arguments, always of type `object`.
        examples: Pairs of arguments and a request that leads to them.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    _: KW_ONLY
    examples: Sequence[tuple[Mapping[str, Json], str]] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A requested call of a tool, not yet approved.

    Attributes:
        id: Unique in its session; an id runs at most once.
        name: The tool's name in the registry.
        arguments: Arguments as received, not yet validated.
        origin: Kind of caller.
        agent_id: The calling agent; empty for a person or a program.
        turn_id: The turn of that agent; empty outside an agent.
    """

    id: str
    name: str
    arguments: Mapping[str, Json]
    _: KW_ONLY
    origin: Origin = "program"
    agent_id: str = ""
    turn_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Truncation of a result's `content`.

    Attributes:
        total_chars: Characters of the whole content.
        shown_chars: Characters that the model sees.
        ref: Reference that reads the whole content, or None if it is not stored.
        note: The note in the content that says so.
    """

    total_chars: int
    shown_chars: int
    ref: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Result of a call, with one form each for the model, the program and the person.

    Attributes:
        content: Text for the model.
        is_error: True if the call failed; a non-zero exit or a timeout is never a success.
        recoverable: For an error: true if a different call may succeed.
        error_kind: For an error: its cause.
        kind: Form of the result.
        value: The whole structured result as JSON, also of an error.
        data: MIME bundle for people; raw and untrusted until `notebook.render.results` has cleaned it.
        metadata: Further facts about the call.
        truncation: Present if `content` was cut.
    """

    content: str
    is_error: bool = False
    recoverable: bool = False
    error_kind: ErrorKind | None = None
    kind: Literal["text", "json", "binary", "error"] = "text"
    value: Json = None
    data: MimeBundle = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    truncation: Truncation | None = None

    @classmethod
    def success(cls, content: str = "") -> Self:
        """Return a success with `content` for the model; `value` is the same text."""
        return cls(content=content, value=content)

    @classmethod
    def text(cls, content: str) -> Self:
        """Return a text result; `value` is the same text."""
        return cls(content=content, value=content)

    @classmethod
    def json(cls, value: Json, content: str | None = None) -> Self:
        """Return a structured result.

        Args:
            value: Any JSON value.
            content: Text for the model; the compact JSON of `value` by default.

        Raises:
            pydantic_core.PydanticSerializationError: If `value` has something JSON cannot hold.
        """
        from pydantic_core import to_json

        text = to_json(value).decode()
        return cls(content=text if content is None else content, kind="json", value=value)

    @classmethod
    def binary(cls, data: bytes, mime: str = "application/octet-stream") -> Self:
        """Return bytes of a MIME type: base64 in `data`, type and size for the model."""
        encoded = base64.b64encode(data).decode("ascii")
        return cls(
            content=f"[{mime}, {len(data)} bytes]",
            kind="binary",
            value={"mime": mime, "size": len(data), "base64": encoded},
            data={mime: encoded},
        )

    @classmethod
    def error(cls, message: str, *, recoverable: bool = True, error_kind: ErrorKind = "failed") -> Self:
        """Return an error. The message should say what to do next."""
        return cls(
            content=message,
            is_error=True,
            recoverable=recoverable,
            error_kind=error_kind,
            kind="error",
        )

    def with_metadata(self, **more: Any) -> Self:
        """Return a copy with `more` added to the metadata."""
        return with_changes(self, metadata={**self.metadata, **more})

    def with_first_line(self, line: str) -> Self:
        """Return a copy whose content begins with a line, or with several."""
        return with_changes(self, content=f"{line}\n{self.content}" if self.content else line)


@dataclass(frozen=True, slots=True)
class MadeName:
    """A name that a call makes, as it copies, moves or links something.

    Attributes:
        name: The name, as it is meant where the call starts.
        source: What the link leads to, or what is copied or moved; likewise. Empty if that is not known: then
            anything may be found at the name and below it.
        is_link: Whether it is a symbolic link. What is copied or moved may be one, or have some in it.
    """

    name: str
    source: str = ""
    _: KW_ONLY
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class PatchFile:
    """A patch that a call applies: what it changes stands there.

    Attributes:
        path: The patch, as it is meant where the call starts; `-` for what the call reads otherwise.
        folder: Where its names are meant, likewise.
        strip: How many folders are left out at the beginning of its names; None for all.
    """

    path: str
    folder: str = "."
    _: KW_ONLY
    strip: int | None = 1


@dataclass(frozen=True, slots=True)
class GitPrograms:
    """Programs that git may start in a call: hooks of a repository, and what its settings name.

    Attributes:
        folder: Where git is started, as it is meant where the call starts; once the paths are resolved, the
            folder of the hooks, or an empty text for settings.
        hooks: Which hooks these may be; once the paths are resolved, those that are there.
        settings: Groups of settings that may name a program; see `aisotools.policy.shell.git_programs`. Once
            the paths are resolved, the settings that are there, as text.
    """

    folder: str
    hooks: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AbsentNames:
    """What must not be in a folder, since a program that is run there would run it, or obey it.

    Attributes:
        folder: The folder, as it is meant where the call starts.
        names: Globs of names.
        modules: Which modules of Python must not be there either: `standard`, those that may stand in for one
            of its library; or `any`.
        above: Whether the same holds for the folders above, up to the workspace.
        programs: Groups of settings of git of which none may name a program there; see
            `aisotools.policy.shell.git_programs`.
    """

    folder: str
    names: tuple[str, ...] = ()
    _: KW_ONLY
    modules: Literal["", "standard", "any"] = ""
    above: bool = False
    programs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a call before it runs, on which a policy decides.

    Attributes:
        effect: Severity.
        reads: Paths it reads, relative to the workspace where they lie in it.
        writes: Paths it writes, likewise.
        folders: Of these, the folders: it may read, or change, whatever is below.
        links: Names among these that lead to another path, each with that path, which is listed as well.
        mentions: Paths in the workspace that arguments name, of a tool that does not say what it reads.
        named: What words of its commands name of the workspace, where it is not known what these do with it.
            It counts for rules about what is read, or about any path, and an approval binds its content.
        places: Folders among these that no word names: a command runs in them, and may do anything.
        unresolved: What it reads where nobody can tell beforehand which path that is, as it is written.
        recorded: Paths of which it reads, or spreads, what a repository of git has recorded; `.` for any.
        made: Names that it makes, and what these lead to from then on: what else it reads and writes below
            them is that.
        patches: Patches that it applies. Once the paths are resolved, the files that these name are among the
            writes.
        git_programs: Hooks, and programs named by settings, that git may start. Once the paths are resolved,
            these are among the scripts, too.
        dash_folders: Folders in which patterns among the arguments of programs find names; one with a dash in
            front would be an option.
        absent: What else may be in folders and would make programs do more than they do otherwise.
        without_dashes: The facts that hold if there is no such name, and nothing of `absent`; None if that
            makes no difference.
        enforced: Globs of rules whose paths are out of its reach, whatever it tries; each with its key.
        outside: True if any of the writes is outside the workspace.
        hosts: Network hosts it talks to.
        commands: Programs it starts.
        certain: False when the classifier could not see everything: ask, and never read only.
        doubts: Why it is not certain, as clauses about the call; the first few.
        unknown: Commands of which nobody here knows what they do, word by word, if that is all that is not
            certain, and the rest only reads. They may be tried; see `policy.trials`.
        scripts: Files of the workspace that it may run, each with a digest of its content: what it reads if
            it is not certain, code that it names, and what is loaded by name; settings of git that name
            programs, likewise. Empty digests before the paths are resolved.
        code: For a call that is asked about and may run files of the workspace without naming them, a digest
            of all files that may be code; empty if they cannot be compared. None for any other call.
        sources: For a call that is asked about and may change something, what it reads or names, each with a
            digest of what is there at this moment; compared before it runs.
        losses: What it would remove or overwrite, each with a stamp of what is there at this moment; compared
            before it runs, and bound by a grant if it destroys something.
        runs_in: Where the tool runs.
        level: The sandbox's confinement level.
        undoable: True if undo covers everything that the call may change.
        path_guarded: True if the tool reaches files only through the workspace's path guard. Believed of the
            built-in tools alone.
        background: True if what it starts goes on after the call.
        basis: What these facts rest on. A tool cannot say this itself: the gate finds it out. With `nothing`
            the call is asked about, whatever else stands here.
    """

    effect: Effect = Effect.LOCAL_MUTATION
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    mentions: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    made: tuple[MadeName, ...] = ()
    patches: tuple[PatchFile, ...] = ()
    git_programs: tuple[GitPrograms, ...] = ()
    dash_folders: tuple[str, ...] = ()
    absent: tuple[AbsentNames, ...] = ()
    without_dashes: Facts | None = None
    enforced: frozenset[tuple[str, str]] = frozenset()
    outside: bool = False
    hosts: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    certain: bool = True
    doubts: tuple[str, ...] = ()
    unknown: tuple[tuple[str, ...], ...] = ()
    scripts: tuple[tuple[str, str], ...] = ()
    code: str | None = None
    sources: tuple[tuple[str, str], ...] = ()
    losses: tuple[tuple[str, str], ...] = ()
    runs_in: RunsIn = "sandbox"
    level: str = "confined"
    undoable: bool = False
    path_guarded: bool = False
    background: bool = False
    basis: Basis = "declaration"


@dataclass(frozen=True, slots=True)
class Approval:
    """Answer to a request for approval.

    Attributes:
        outcome: The decision, or why there is none.
        arguments: Edited arguments to run instead, or None.
        reason: Explanation; a model reads it after a denial.
        remember: Scope in which the approval is remembered, or None.
    """

    outcome: Outcome
    _: KW_ONLY
    arguments: Mapping[str, Json] | None = None
    reason: str = ""
    remember: Remember | None = None

    def __post_init__(self) -> None:
        if self.outcome not in {"approve", "deny", "timeout", "cancel"}:
            raise ValueError(
                f"Approval outcome {self.outcome!r} is not one of approve, deny, timeout, cancel.",
            )
        if self.remember is not None and self.remember not in get_args(Remember):
            scopes = ", ".join(get_args(Remember))
            raise ValueError(f"Approval.remember {self.remember!r} is not one of None, {scopes}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A question to a person: may this run?

    Attributes:
        id: Unique; answers to any other id are dropped.
        call: The call with validated arguments, exactly as it would run.
        definition: The tool as a model sees it.
        effect: Severity of the call.
        level: The sandbox's level, or `host` for a tool that runs on the host.
        reasons: Reasons why a person is asked.
        facts: Facts about the call.
        preview: Previews by kind, shown on the card instead of raw arguments.
        timeout_s: After this the answer is `timeout`, which denies; None waits for ever.
        in_reader: True if it would run in the sandbox without write rights: what it changes of the variables
            would not reach the worker.
    """

    id: str
    call: ToolCall
    definition: ToolDefinition
    effect: Effect
    level: str
    reasons: tuple[str, ...] = ()
    facts: Facts = field(default_factory=Facts)
    preview: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = 300.0
    in_reader: bool = False
