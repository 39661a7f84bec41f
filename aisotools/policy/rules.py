"""Decide whether a call may run: modes, rules with conditions, and policies that narrow others. Pure.

A mode answers for each kind of effect; rules override it for particular calls. Of all rules that match, the
strictest decides: a rule may allow what the mode would ask about, never what plan mode denies. A policy can
be narrowed by another one, never widened. Some files are protected whatever the policy says.

A condition says as data when a rule concerns a call. It is a mapping; all of its keys must hold, and of a
list of globs any one::

    {"commands": ["git push*"], "hosts": ["*.example.org"], "arguments": {"path": "*.md"}}

Globs are matched against structured facts, never against the text of a command; `*` matches `/` as well. A
call may have several paths, hosts or commands. A rule that asks or denies concerns a call if one of them
matches; a rule that allows, only if every one of them does and the facts are certain. What is missing never
matches: a condition on `hosts` concerns no call without hosts.

Rules that ask or deny also compare commands word by word: `rm -r*` concerns `rm -fr x`, `rm --recursive x`
and `rm x -R`, and `pip install*` concerns `pip3 -i URL install x` and `python -m pip install x`. What such a
glob means is described in `policy.command_globs`. A program by another name, an alias, or a script that does
the same is not concerned: deny what it would change (`paths`, `hosts`) to be sure.

Paths are the resolved ones: relative to the workspace, with links followed. A rule about `secrets/*` concerns
a call that changes the folder `secrets`, or one around it, as a whole. It *may* concern one that reads such a
folder, or something that nobody can tell beforehand; a rule that asks or denies makes that a question. So is
reading from the objects of a repository of git, which hold copies of their own: the path that is named there
counts like a file's, and where none is, it may be any. And so is a change of such a path for a rule about
reading: moved, it could be read by another name.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal, Self, get_args

from aisotools.core.path_texts import with_folders
from aisotools.core.truncation import summarize_names
from aisotools.core.types import Decision, Effect, Facts, Json, ToolCall
from aisotools.policy.command_globs import means
from aisotools.policy.prompts import EFFECT_LABELS
from aisotools.workspace.protected_names import AllowedName, allows, is_protected

Mode = Literal["plan", "safe", "auto"]
"""`plan` allows only reading; `safe` asks about the rest; `auto` asks about the risky part of the rest."""

UNKNOWN_ON_HOST = "it runs on the host, outside the sandbox, and nothing is known of what it does"
"""The reason to ask about a call on the host whose tool declares nothing that can be used."""

When = Callable[[ToolCall, Facts], bool]
"""Returns whether a rule concerns a call."""

_CONDITION_KEYS = (
    "arguments",
    "paths",
    "reads",
    "writes",
    "hosts",
    "commands",
    "effect",
    "origin",
    "outside",
    "certain",
)
PATH_KEYS = frozenset(("paths", "reads", "writes"))
"""Keys of a condition whose values are globs of paths."""
_SHOWN_GLOBS = 3
_MOST_TOOLS = 256
_GLOB_START = re.compile(r"[*?\[]")
_MAX_GLOB_CHARS = 1_000
_OBJECTS_OF_GIT = re.compile(
    r"/\.git/(?:$|(?:objects|modules|worktrees|lfs|annex|lost-found|rebase-\w+)/)|/objects/(?:pack|[0-9a-f]{2})/"
)
_FACT_NAMES = frozenset(fact.name for fact in fields(Facts))


# ---- conditions


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as data, as this module describes it.

    Attributes:
        expected: What must hold, by key.
    """

    expected: Mapping[str, Any]

    def __post_init__(self) -> None:
        unknown = sorted(set(self.expected) - set(_CONDITION_KEYS))
        if unknown:
            known = ", ".join(_CONDITION_KEYS)
            raise ValueError(f"A rule's `when` has unknown keys: {', '.join(unknown)}. Known: {known}.")
        if not isinstance(self.expected.get("arguments", {}), Mapping):
            message = "A rule's `when.arguments` must be a table of argument names and globs."
            raise ValueError(message)  # noqa: TRY004 - every mistake in a rule is a ValueError
        for key, value in [*self.expected.items(), *self.expected.get("arguments", {}).items()]:
            for glob in [value] if isinstance(value, str) else value if isinstance(value, Sequence) else ():
                _check_length(key, glob)
        for effect in _as_list(self.expected.get("effect", ())):
            Effect(effect)  # raises ValueError naming the value
        for key in PATH_KEYS & self.expected.keys():
            for glob in _as_list(self.expected[key]):
                if ".." in str(glob).split("/"):
                    raise ValueError(
                        f"A rule's `when.{key}` has {glob!r}: no path of a call has a part '..', so it would "
                        "match nothing. Use a path relative to the workspace, such as 'secrets/*', or an "
                        "absolute one outside of it, such as '/data/*'."
                    )
        for key in ("outside", "certain"):
            value = self.expected.get(key, False)
            if not isinstance(value, bool):
                message = f"A rule's `when.{key}` must be true or false, not {value!r}."
                raise ValueError(message)  # noqa: TRY004 - every mistake in a rule is a ValueError

    def may_hold(self, call: ToolCall, facts: Facts) -> bool:
        """Return whether all keys may hold, as far as can be told, for one of the call's paths."""
        if PATH_KEYS.isdisjoint(self.expected):
            return False
        for key, value in self.expected.items():
            if key in PATH_KEYS:
                if not _may_concern_paths(key, value, facts):
                    return False
            elif not _key_holds(key, value, call, facts, False):
                return False
        return True

    def holds(self, call: ToolCall, facts: Facts, *, every: bool) -> bool:
        """Return whether all keys hold, for any of the call's paths, hosts or commands or for `every` one.

        With `every` nothing holds for uncertain facts, unless the condition is about `certain` itself.
        """
        if every and not facts.certain and "certain" not in self.expected:
            return False
        for key, value in self.expected.items():  # noqa: SIM110 - all() takes twice as long
            if not _key_holds(key, value, call, facts, every):
                return False
        return True


def _key_holds(key: str, expected: Any, call: ToolCall, facts: Facts, every: bool) -> bool:
    match key:
        case "arguments":
            return _arguments_match(expected, call.arguments)
        case "paths" | "reads" | "writes":
            return _paths_match(key, expected, facts, every)
        case "hosts":
            return _globs_match(expected, (host.lower() for host in facts.hosts), every=every)
        case "commands":
            if _globs_match(expected, facts.commands, every=every):
                return True
            globs = () if every else _as_list(expected)
            return any(means(glob, command) for glob in globs for command in facts.commands)
        case "effect":
            return facts.effect in {Effect(effect) for effect in _as_list(expected)}
        case "origin":
            return call.origin in _as_list(expected)
        case "outside":
            return facts.outside is expected
        case _:
            return facts.certain is expected


def _paths_match(key: str, globs: object, facts: Facts, every: bool) -> bool:
    """Return whether the paths that a key is about match; with `every`, all of them and nothing unknown."""
    paths = list(map(normalize_path, _paths_of(key, facts)))
    if every:
        is_known = not (_has_unresolved_writes(facts) if key == "writes" else facts.unresolved)
        return is_known and _globs_match(globs, paths, every=True)
    if _globs_match(globs, (place for path in paths for place in with_folders(path)), every=False):
        return True
    if key != "writes" and _takes_folder(key, globs, facts):
        return True
    # Whoever changes a folder as a whole changes what is in it.
    changed = () if key == "reads" else [path for path in facts.writes if path in facts.folders]
    return any(_is_around(path, glob) for path in changed for glob in _as_list(globs))


def _takes_folder(key: str, globs: object, facts: Facts) -> bool:
    """Return whether a call sends or copies a folder of which a glob matches whatever is in it."""
    if not facts.folders or facts.effect is Effect.READ_ONLY:
        return False
    sends = bool(facts.hosts) or facts.effect is Effect.REMOTE_ACTION
    taken = [
        glob for glob in _as_list(globs) if sends or (facts.writes and (key, glob) not in facts.enforced)
    ]
    return _globs_match(taken, [f"{path}/\0" for path in facts.reads if path in facts.folders], every=False)


def _paths_of(key: str, facts: Facts) -> tuple[str, ...]:
    mentions = () if key == "writes" and facts.effect is Effect.READ_ONLY else facts.mentions
    reads = () if key == "writes" else (*facts.reads, *facts.recorded, *facts.named)
    writes = () if key == "reads" else facts.writes
    return (*reads, *writes, *mentions)


def _may_concern_paths(key: str, globs: object, facts: Facts) -> bool:
    """Return whether a call may touch, below a folder or somewhere unknown, what one of the globs names.

    What the sandbox enforces by itself is out of its reach, but for what a repository has recorded of it.
    """
    recorded = () if key == "writes" else _recorded_paths(facts)
    if any(_may_contain(path, glob) for path in recorded for glob in _as_list(globs)):
        return True
    is_unresolved = _has_unresolved_writes(facts) if key == "writes" else bool(facts.unresolved)
    moved = facts.writes if key == "reads" else ()
    folders = [path for path in _paths_of(key, facts) if path in facts.folders] if facts.folders else []
    if not (is_unresolved or moved or folders):
        return False
    reachable = [glob for glob in _as_list(globs) if (key, glob) not in facts.enforced]
    if reachable and is_unresolved:
        return True
    if any(_may_move(path, glob, facts) for path in moved for glob in reachable):
        return True
    return any(_may_contain(path, glob) for path in folders for glob in reachable)


def _has_unresolved_writes(facts: Facts) -> bool:
    """Return whether one of the written paths could not be resolved before the call."""
    return any(path in facts.unresolved for path in facts.writes)


def _may_move(path: str, glob: str, facts: Facts) -> bool:
    """Return whether a change of `path` may move what a glob names to another name, to be read there."""
    normal = normalize_path(path)
    return bool(glob_matcher(glob)(normal)) or (path in facts.folders and _is_around(normal, glob))


def _recorded_paths(facts: Facts) -> tuple[str, ...]:
    """Return the paths of which a call may read what a repository of git has recorded; `.` for any."""
    if any(_OBJECTS_OF_GIT.search(f"/{normalize_path(path)}/") for path in facts.reads):
        return (".",)
    return tuple(map(normalize_path, facts.recorded))


def _is_around(folder: str, glob: str) -> bool:
    """Return whether a folder is, or contains, the one that all paths of a glob lie in."""
    fixed = _fixed_folder(glob)
    return bool(fixed) and (folder in {".", fixed} or fixed.startswith(f"{folder}/"))


def _may_contain(folder: str, glob: str) -> bool:
    """Return whether a path below a folder could match a glob."""
    fixed = _fixed_folder(glob)
    return not fixed or _is_around(folder, glob) or folder.startswith(f"{fixed}/")


def _fixed_folder(glob: str) -> str:
    """Return the folder at the beginning of a glob, or the path itself if it has no pattern."""
    fixed = _GLOB_START.split(glob, maxsplit=1)[0]
    return normalize_path(fixed if fixed == glob else fixed.rpartition("/")[0])


def _globs_match(globs: object, values: Iterable[str], *, every: bool) -> bool:
    """Return whether any value, or with `every` each, matches one of the globs. False for no values."""
    patterns = [glob_matcher(glob) for glob in _as_list(globs)]
    matches = [any(pattern(value) for pattern in patterns) for value in values]
    return bool(matches) and (all(matches) if every else any(matches))


def _arguments_match(expected: Mapping[str, Any], arguments: Mapping[str, Json]) -> bool:
    """Return whether all named arguments are there: strings match a glob, anything else is equal."""
    for name, pattern in expected.items():
        if name not in arguments:
            return False
        value = arguments[name]
        if isinstance(value, str) and isinstance(pattern, str | list):
            if not _globs_match(pattern, (value,), every=True):
                return False
        elif value != pattern:
            return False
    return True


def _as_list(value: object) -> Sequence[Any]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence):
        raise ValueError(f"A rule's condition needs a text or a list of texts, not {value!r}.")  # noqa: TRY004 - as above
    return value


def _check_length(key: str, glob: object) -> None:
    # A workspace may bring rules, and translating `[a[a[a...` takes time with the square of its length.
    if isinstance(glob, str) and len(glob) > _MAX_GLOB_CHARS:
        raise ValueError(
            f"A rule's `{key}` has {len(glob):,} characters, {glob[:40]!r}...: "
            f"use at most {_MAX_GLOB_CHARS:,}."
        )


@lru_cache(maxsize=4096)
def glob_matcher(glob: str) -> Callable[[str], re.Match[str] | None]:
    """Return a function that matches a text against a glob, case-sensitively."""
    return re.compile(fnmatch.translate(glob)).match


@lru_cache(maxsize=4096)
def normalize_path(path: str) -> str:
    """Remove `.`, `..` and doubled slashes from a path, so that its spelling cannot dodge a glob."""
    return posixpath.normpath(path).replace("//", "/") if path else path  # normpath keeps two at the start


# ---- rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One exception to the mode.

    Attributes:
        tool: Glob for the names of the tools that the rule is about.
        when: Further condition on the call and its facts: a function, or a mapping as this module
            describes; None for any call of those tools.
        decision: The decision about the calls that the rule concerns.
        reason: Why, for people and models.
        match: Examples that the rule must concern, checked when the rule is made; see `parse_example`.
        not_match: Examples that it must not concern.
    """

    tool: str = "*"
    when: When | Condition | Mapping[str, Any] | None = None
    decision: Decision = Decision.ASK
    reason: str = ""
    match: Sequence[Mapping[str, Any]] = ()
    not_match: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.tool, str):
            raise TypeError(f"Rule tool={self.tool!r}: use a glob of names of tools, such as 'sandbox_*'.")
        _check_length("tool", self.tool)
        if self.decision not in tuple(Decision):
            raise ValueError(f"Rule decision {self.decision!r} is not one of {', '.join(Decision)}.")
        object.__setattr__(self, "decision", Decision(self.decision))
        if isinstance(self.when, Mapping):
            object.__setattr__(self, "when", Condition(self.when))
        elif not (self.when is None or isinstance(self.when, Condition) or callable(self.when)):
            raise TypeError(
                f"Rule when={self.when!r}: use a mapping, or a function of the call and its facts."
            )
        for example in self.match:
            if not self.matches(*parse_example(example, self.tool)):
                raise ValueError(f"The rule for {self.tool!r} does not match its example {dict(example)!r}.")
        for example in self.not_match:
            if self.matches(*parse_example(example, self.tool)):
                raise ValueError(
                    f"The rule for {self.tool!r} matches {dict(example)!r}, which `not_match` excludes."
                )

    def matches(self, call: ToolCall, facts: Facts) -> bool:
        """Return whether the rule concerns this call. Whatever `when` raises passes through."""
        return self.is_about(call.name) and self.holds(call, facts)

    def is_about(self, tool: str) -> bool:
        """Return whether the rule is about calls of a tool, by its name."""
        return glob_matcher(self.tool)(tool) is not None

    def holds(self, call: ToolCall, facts: Facts) -> bool:
        """Return whether the rule concerns this call, of a tool that it is about."""
        if isinstance(self.when, Condition):
            return self.when.holds(call, facts, every=self.decision is Decision.ALLOW)
        return self.when is None or bool(self.when(call, facts))  # type: ignore[operator]  # no mapping any more

    @property
    def concerns_paths(self) -> bool:
        """True if the rule may go by the paths of a call. What a function looks at is not known."""
        if isinstance(self.when, Condition):
            return not PATH_KEYS.isdisjoint(self.when.expected)
        return self.when is not None

    def may_hold(self, call: ToolCall, facts: Facts) -> bool:
        """Return whether the rule may concern effects of a call that cannot be known before it runs.

        The call is one of a tool that the rule is about.
        """
        return (
            self.decision is not Decision.ALLOW
            and isinstance(self.when, Condition)
            and self.when.may_hold(call, facts)
        )


def path_globs(rule: Rule) -> list[tuple[str, str]]:
    """Return the globs of a rule's conditions on paths, each with its key."""
    if not isinstance(rule.when, Condition):
        return []
    return [
        (key, glob)
        for key, value in rule.when.expected.items()
        if key in PATH_KEYS
        for glob in _as_list(value)
    ]


def parse_example(example: Mapping[str, Any], tool: str) -> tuple[ToolCall, Facts]:
    """Return a rule's example as a call and its facts.

    Args:
        example: Facts by name, and `tool`, `arguments`, `origin` or `command`. A `command` is classified as a
            shell command and gives the facts that are not named.
        tool: The tool, unless the example names one or has a `command`.

    Raises:
        ValueError: If the example has an unknown key.
    """
    rest = dict(example)
    name = rest.pop("tool", "sandbox_bash" if "command" in rest else tool)
    arguments = dict(rest.pop("arguments", {}))
    origin = rest.pop("origin", "model")
    facts: dict[str, Any] = {}
    if "command" in rest:
        arguments["command"] = rest.pop("command")
        facts = _shell_facts(arguments["command"])
    unknown = sorted(set(rest) - _FACT_NAMES)
    if unknown:
        raise ValueError(
            f"An example has unknown keys: {', '.join(unknown)}. Known: tool, arguments, command and facts."
        )
    facts |= {key: tuple(value) if isinstance(value, list) else value for key, value in rest.items()}
    if "effect" in facts:
        facts["effect"] = Effect(facts["effect"])
    return ToolCall("example", name, arguments, origin=origin), Facts(**facts)


def _shell_facts(command: str) -> dict[str, Any]:
    # Few policies have such examples, and this loads the grammar.
    from aisotools.policy.shell.classify import classify_shell

    report = classify_shell(command)
    return {
        "effect": report.effect,
        "reads": report.reads,
        "writes": report.writes,
        "unresolved": report.unresolved,
        "recorded": report.recorded,
        "hosts": report.hosts,
        "commands": report.commands,
        "certain": report.certain,
    }


# ---- policies


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The answer of a policy for one call.

    Attributes:
        decision: The answer.
        reasons: Why.
        matched: The rules that concerned the call.
        protected: The protected paths that the call writes, if there is no other reason to deny the call.
            A person may allow them for the workspace.
    """

    decision: Decision
    _: KW_ONLY
    reasons: tuple[str, ...] = ()
    matched: tuple[Rule, ...] = ()
    protected: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A mode and its exceptions.

    Attributes:
        mode: `plan`, `safe` or `auto`.
        rules: Exceptions; their order does not matter, the strictest match decides.
        bounds: Policies that narrow this one: what any of them denies, or asks about, stays so.
        allow_protected: Protected names that may be written. A session puts here what a person allowed for
            its workspace, see `Session`; the bounds have no say in it.
        concerns_paths: True if a rule of this policy, or of one of its bounds, may go by the paths of a call.
    """

    mode: Mode = "safe"
    rules: Sequence[Rule] = field(default_factory=tuple)
    bounds: tuple[Policy, ...] = ()
    allow_protected: tuple[str, ...] = ()
    concerns_paths: bool = field(init=False, repr=False, compare=False)
    _rules_by_tool: dict[str, tuple[Rule, ...]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"Policy mode {self.mode!r} is not one of {', '.join(get_args(Mode))}.")
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(
                    f"Policy rules: {rule!r} is not a Rule. Use a list such as [Rule(tool='file')]."
                )
        object.__setattr__(self, "rules", tuple(self.rules))
        concerns_paths = any(rule.concerns_paths for rule in self.rules)
        concerns_paths = concerns_paths or any(bound.concerns_paths for bound in self.bounds)
        object.__setattr__(self, "concerns_paths", concerns_paths)
        for name in self.allow_protected:
            AllowedName(name)  # raises an error that names it

    def _rules_about(self, tool: str) -> tuple[Rule, ...]:
        """Return the rules about calls of a tool, in their order.

        Raises:
            Exception: Whatever a rule raises that is broken.
        """
        found = self._rules_by_tool.get(tool)
        if found is None:
            found = tuple(rule for rule in self.rules if rule.is_about(tool))
            if len(self._rules_by_tool) >= _MOST_TOOLS:
                self._rules_by_tool.clear()
            self._rules_by_tool[tool] = found
        return found

    def narrowed(self, bound: Policy) -> Self:
        """Return this policy, allowing only what `bound` allows as well."""
        return dataclasses.replace(self, bounds=(*self.bounds, bound))

    def check(self, call: ToolCall, facts: Facts) -> Evaluation:
        """Decide about `call`: the strictest answer of this policy and its bounds.

        A rule that raises counts as a denial that names it: nothing runs because a rule was broken.
        """
        protected = protected_writes(facts, self.allow_protected) if facts.writes else ()
        if protected:
            reason = f"{', '.join(protected)} is protected: something outside the sandbox may run it"
            denied = self.check_rules(call, facts).decision is Decision.DENY
            return Evaluation(Decision.DENY, reasons=(reason,), protected=() if denied else protected)
        return self.check_rules(call, facts)

    def check_rules(self, call: ToolCall, facts: Facts) -> Evaluation:
        """Decide about `call` as if nothing were protected."""
        strictest = self._check_alone(call, facts)
        for bound in self.bounds:
            evaluation = bound.check_rules(call, facts)
            if evaluation.decision.rank > strictest.decision.rank:
                strictest = evaluation
        return strictest

    def is_restricted(self, call: ToolCall, facts: Facts) -> bool:
        """Return whether a rule that asks or denies, of this policy or its bounds, concerns the call or may.

        A function as a condition may go by anything: it may concern every call of its tools.
        """
        for rule in self._rules_about(call.name):
            if rule.decision is Decision.ALLOW:
                continue
            if not isinstance(rule.when, Condition):
                return True
            if rule.when.holds(call, facts, every=False) or rule.when.may_hold(call, facts):
                return True
        return any(bound.is_restricted(call, facts) for bound in self.bounds)

    def _check_alone(self, call: ToolCall, facts: Facts) -> Evaluation:
        matched: list[Rule] = []
        doubtful: list[Rule] = []
        for rule in self._rules_about(call.name):
            try:
                if rule.holds(call, facts):
                    matched.append(rule)
                elif rule.may_hold(call, facts):
                    doubtful.append(rule)
            except Exception as error:
                reason = (
                    f"the rule for {rule.tool!r} failed ({type(error).__name__}: {error}); fix or remove it"
                )
                return Evaluation(Decision.DENY, reasons=(reason,), matched=(rule,))
        by_mode = self._check_mode(call, facts)
        if self.mode == "plan" and by_mode.decision is Decision.DENY:
            return by_mode
        decided = self._check_matched(call, facts, matched, by_mode) if matched else by_mode
        if doubtful and decided.decision is Decision.ALLOW and call.origin != "person":
            reasons = tuple(f"it may concern what {_describe(rule)} is about" for rule in doubtful)
            return Evaluation(Decision.ASK, reasons=reasons, matched=tuple(matched))
        return decided

    def _check_matched(
        self, call: ToolCall, facts: Facts, matched: Sequence[Rule], by_mode: Evaluation
    ) -> Evaluation:
        decision = max(rule.decision for rule in matched)
        if call.origin == "person" and decision is Decision.ASK:
            # Typing a call is consent to it. Only a rule that denies stands against it.
            decision = by_mode.decision
        if call.origin != "person" and decision is Decision.ALLOW and is_unguarded(facts):
            # Without a sandbox no rule lets a program or a model act unasked.
            decision = Decision.ASK
        reasons = tuple(rule.reason or _describe(rule) for rule in matched if rule.decision is decision)
        return Evaluation(decision, reasons=reasons or by_mode.reasons, matched=tuple(matched))

    def _check_mode(self, call: ToolCall, facts: Facts) -> Evaluation:
        effect = assumed_effect(facts)
        if effect is Effect.READ_ONLY:
            if facts.hosts and facts.runs_in == "host" and call.origin != "person":
                return self._check_reading(facts)
            return Evaluation(Decision.ALLOW, reasons=("it only reads",))
        if facts.basis == "nothing":
            return self._check_unknown(facts)
        label = EFFECT_LABELS[effect] if effect is Effect.DESTRUCTIVE else f"a {EFFECT_LABELS[effect]}"
        if self.mode == "plan":
            is_doubtful = not facts.certain and facts.doubts and effect is Effect.LOCAL_MUTATION
            what = f"counts as {label}, since {_describe_doubt(facts)}" if is_doubtful else f"is {label}"
            return Evaluation(Decision.DENY, reasons=(f"mode plan allows only reading, and this {what}",))
        if call.origin == "person":
            return _check_typed(facts, effect)
        if self.mode == "auto":
            return _check_auto(facts, effect)
        if not facts.certain and effect is Effect.LOCAL_MUTATION:
            return Evaluation(
                Decision.ASK, reasons=(f"it counts as {label}, since {_describe_doubt(facts)}",)
            )
        return Evaluation(Decision.ASK, reasons=(f"it is {label}",))

    def _check_reading(self, facts: Facts) -> Evaluation:
        """Decide about a call on the host that reads from hosts: what it sends there leaves the machine."""
        hosts = ", ".join(facts.hosts)
        if self.mode == "plan":
            reason = f"mode plan allows only reading what is here, and this talks to {hosts}"
            return Evaluation(Decision.DENY, reasons=(reason,))
        return Evaluation(Decision.ASK, reasons=(f"it talks to {hosts}",))

    def _check_unknown(self, facts: Facts) -> Evaluation:
        """Decide about a call on the host of which nothing is known. Only a rule allows it unasked."""
        if self.mode == "plan":
            reason = "mode plan allows only reading, and nothing is known of what this does on the host"
            return Evaluation(Decision.DENY, reasons=(reason,))
        reasons = [UNKNOWN_ON_HOST]
        if facts.hosts:
            reasons.append("it talks to " + ", ".join(facts.hosts))
        return Evaluation(Decision.ASK, reasons=tuple(reasons))


def _describe(rule: Rule) -> str:
    """Return which rule it is, with the paths that it is about."""
    about = ", ".join(f"{key} {glob!r}" for key, glob in path_globs(rule)[:_SHOWN_GLOBS])
    return f"rule for {rule.tool!r}" + (f" about {about}" if about else "")


def _describe_doubt(facts: Facts) -> str:
    why = "; ".join(facts.doubts)
    return f"not everything it does could be determined beforehand{': ' if why else ''}{why}"


def _check_typed(facts: Facts, effect: Effect) -> Evaluation:
    """Decide about a call that a person typed, which is consent to run it in the sandbox."""
    if facts.runs_in == "host":
        return Evaluation(Decision.ASK, reasons=("it runs on the host, outside the sandbox",))
    if effect is Effect.DESTRUCTIVE and not facts.undoable:
        return Evaluation(Decision.ASK, reasons=("it destroys something that undo cannot restore",))
    return Evaluation(Decision.ALLOW, reasons=("you typed it",))


def _check_auto(facts: Facts, effect: Effect) -> Evaluation:
    reasons = []
    if effect is Effect.DESTRUCTIVE:
        reasons.append("it is destructive")
    if facts.hosts:
        reasons.append("it talks to " + ", ".join(facts.hosts))
    elif effect is Effect.REMOTE_ACTION:
        reasons.append("it acts on something remote that it does not name")
    if facts.outside:
        reasons.append("it writes outside the workspace")
    if effect is Effect.LOCAL_MUTATION and facts.runs_in == "host" and (facts.unresolved or not facts.writes):
        reasons.append("it changes something on the host, and its author does not declare which files")
    if not facts.certain:
        reasons.append(_describe_doubt(facts))
    if hooks := [f"{one.folder}/{name}" for one in facts.git_programs for name in one.hooks]:
        reasons.append(f"git may run {summarize_names(hooks, 3)}")
    if is_unguarded(facts):
        reasons.append("there is no sandbox at this level")
    if reasons:
        return Evaluation(Decision.ASK, reasons=tuple(reasons))
    declared = ", as its author declares of this" if facts.runs_in == "host" else ""
    return Evaluation(Decision.ALLOW, reasons=(f"mode auto allows what stays in the workspace{declared}",))


def assumed_effect(facts: Facts) -> Effect:
    """Return the effect a policy goes by: what is uncertain or unguarded is never read only."""
    if facts.effect is Effect.READ_ONLY and (is_unguarded(facts) or not facts.certain):
        return Effect.LOCAL_MUTATION
    return facts.effect


def is_unguarded(facts: Facts) -> bool:
    """Return whether nothing keeps the call from the user's files: no sandbox, and no path guard of ours."""
    return facts.level == "limited" and facts.runs_in == "sandbox" and not facts.path_guarded


def protected_writes(facts: Facts, allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the paths that the call writes and that are protected, less those that a person `allowed`."""
    protected = []
    for path in facts.writes:
        normalized = normalize_path(path)
        if is_protected(normalized) and not allows(allowed, normalized):
            protected.append(path)
    return tuple(protected)
