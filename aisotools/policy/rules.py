"""Whether a call may run: pure, strictest wins, and every answer says why.

A mode gives the answer for a kind of effect; rules override it for particular tools. If any rule matches, the
strictest matching rule decides: a rule may allow what the mode would ask, never what plan mode denies. A
policy can be narrowed by another one, never widened; some files are protected whatever the policy says.

When a rule concerns a call, as data: globs on structured facts, never on the text of the arguments.

A condition is a mapping; all of its keys must hold, and of a list of globs any one::

    {"commands": ["git push*"], "hosts": ["*.example.org"], "arguments": {"path": "*.md"}}

A call may have several paths, hosts or commands. A rule that asks or denies concerns a call as soon as one of
them matches; a rule that allows, only when every one of them does, and when the classifier saw everything.
What is missing never matches: a condition on `hosts` concerns no call that talks to nobody. `*` matches `/`
as well.
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

from aisotools.core.types import Decision, Effect, Facts, Json, ToolCall
from aisotools.policy.prompts import EFFECT_WORDS
from aisotools.workspace.protected import PROTECTED_FOLDERS, PROTECTED_NAMES

_KNOWN = (
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


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition as data.

    Attributes:
        wanted: What must hold, by key.
    """

    wanted: Mapping[str, Any]

    def __post_init__(self) -> None:
        unknown = sorted(set(self.wanted) - set(_KNOWN))
        if unknown:
            raise ValueError(f"A rule's `when` knows no {', '.join(unknown)}. Known: {', '.join(_KNOWN)}.")
        if not isinstance(self.wanted.get("arguments", {}), Mapping):
            told = "A rule's `when.arguments` is a table of argument names and globs."
            raise ValueError(told)  # noqa: TRY004 - every mistake in a rule is a ValueError
        for effect in _listed(self.wanted.get("effect", ())):
            Effect(effect)  # raises ValueError naming the value
        for key in ("outside", "certain"):
            if not isinstance(self.wanted.get(key, False), bool):
                told = f"A rule's `when.{key}` is true or false, not {self.wanted[key]!r}."
                raise ValueError(told)  # noqa: TRY004 - every mistake in a rule is a ValueError

    def holds(self, call: ToolCall, facts: Facts, *, every: bool) -> bool:
        """Whether everything that is wanted holds; with `every`, for all of the call's paths and so on."""
        if every and not facts.certain and "certain" not in self.wanted:
            return False
        matching = all if every else any
        return all(_CHECKS[key](wanted, call, facts, matching) for key, wanted in self.wanted.items())


@lru_cache(maxsize=4096)
def glob_matches(glob: str) -> Callable[[str], re.Match[str] | None]:
    """What tells whether a text matches a glob, upper and lower case apart; made once per glob."""
    return re.compile(fnmatch.translate(glob)).match


@lru_cache(maxsize=4096)
def normal_path(path: str) -> str:
    """A path without `.`, `..` and doubled slashes, so that a spelling cannot dodge a glob."""
    return posixpath.normpath(path) if path else path


def _listed(wanted: object) -> Sequence[Any]:
    if isinstance(wanted, str):
        return (wanted,)
    if not isinstance(wanted, Sequence):
        raise ValueError(f"A rule's condition wants a text or a list of texts, not {wanted!r}.")  # noqa: TRY004 - as above
    return wanted


def _globs(wanted: object, values: Sequence[str], matching: _Matching) -> bool:
    if not values:
        return False
    tests = [glob_matches(glob) for glob in _listed(wanted)]
    return matching(any(test(value) for test in tests) for value in values)


def _paths(values: Sequence[str]) -> list[str]:
    return [normal_path(value) for value in values]


def _arguments(wanted: Mapping[str, Any], arguments: Mapping[str, Json]) -> bool:
    for name, expected in wanted.items():
        if name not in arguments:
            return False
        value = arguments[name]
        if isinstance(value, str) and isinstance(expected, str | list):
            if not _globs(expected, (value,), all):
                return False
        elif value != expected:
            return False
    return True


_Matching = Callable[[Iterable[bool]], bool]
_CHECKS: Mapping[str, Callable[[Any, ToolCall, Facts, _Matching], bool]] = {
    "arguments": lambda wanted, call, _facts, _how: _arguments(wanted, call.arguments),
    "paths": lambda wanted, _call, facts, how: _globs(wanted, _paths((*facts.reads, *facts.writes)), how),
    "reads": lambda wanted, _call, facts, how: _globs(wanted, _paths(facts.reads), how),
    "writes": lambda wanted, _call, facts, how: _globs(wanted, _paths(facts.writes), how),
    "hosts": lambda wanted, _call, facts, how: _globs(wanted, [host.lower() for host in facts.hosts], how),
    "commands": lambda wanted, _call, facts, how: _globs(wanted, facts.commands, how),
    "effect": lambda wanted, _call, facts, _how: facts.effect in {Effect(e) for e in _listed(wanted)},
    "origin": lambda wanted, call, _facts, _how: call.origin in _listed(wanted),
    "outside": lambda wanted, _call, facts, _how: facts.outside is wanted,
    "certain": lambda wanted, _call, facts, _how: facts.certain is wanted,
}

_FACTS = {field.name for field in fields(Facts)}


def example_of(told: Mapping[str, Any], tool: str) -> tuple[ToolCall, Facts]:
    """A rule's example as a call and its facts.

    `command` stands for a shell command: its facts are the classifier's. Any fact may be given by its name.

    Raises:
        ValueError: If the example has an unknown key.
    """
    given = dict(told)
    name = given.pop("tool", "sandbox_bash" if "command" in given else tool)
    arguments = dict(given.pop("arguments", {}))
    origin = given.pop("origin", "model")
    known: dict[str, Any] = {}
    if "command" in given:
        arguments["command"] = given.pop("command")
        known = _shell_facts(arguments["command"])
    unknown = sorted(set(given) - _FACTS)
    if unknown:
        raise ValueError(
            f"An example knows no {', '.join(unknown)}. Known: tool, arguments, command and facts."
        )
    known |= {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    if "effect" in known:
        known["effect"] = Effect(known["effect"])
    return ToolCall("example", name, arguments, origin=origin), Facts(**known)


def _shell_facts(command: str) -> dict[str, Any]:
    from aisotools.policy.shell.classify import classify_shell

    report = classify_shell(command)
    names = ("effect", "reads", "writes", "hosts", "commands", "certain")
    return {name: getattr(report, name) for name in names}


Mode = Literal["plan", "safe", "auto"]
"""How much runs without asking: nothing but reading, the same but the rest is asked, or all but the risky."""

When = Callable[[ToolCall, Facts], bool]
"""Whether a rule concerns this call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One exception to the mode.

    Attributes:
        tool: Glob of the tool names it concerns.
        when: Further condition on the call and its facts: a function, or a mapping as this module
            describes; always true without it.
        decision: What it says.
        reason: Why, for people and models.
        match: Examples that it must concern; checked when the rule is made. See `conditions.example_of`.
        not_match: Examples that it must not concern.
    """

    tool: str = "*"
    when: When | Condition | Mapping[str, Any] | None = None
    decision: Decision = Decision.ASK
    reason: str = ""
    match: Sequence[Mapping[str, Any]] = ()
    not_match: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        if self.decision not in tuple(Decision):
            known = ", ".join(Decision)
            raise ValueError(f"Rule decision {self.decision!r} is not one of {known}.")
        object.__setattr__(self, "decision", Decision(self.decision))
        if isinstance(self.when, Mapping):
            object.__setattr__(self, "when", Condition(self.when))
        elif not (self.when is None or isinstance(self.when, Condition) or callable(self.when)):
            raise TypeError(
                f"Rule when={self.when!r}: give a mapping, or a function of the call and its facts."
            )
        for example in self.match:
            if not self.matches(*example_of(example, self.tool)):
                raise ValueError(
                    f"A rule for {self.tool!r} does not concern its own example {dict(example)!r}."
                )
        for example in self.not_match:
            if self.matches(*example_of(example, self.tool)):
                raise ValueError(f"A rule for {self.tool!r} concerns {dict(example)!r}, which it should not.")

    def matches(self, call: ToolCall, facts: Facts) -> bool:
        """Whether the rule concerns this call; whatever `when` raises passes through."""
        if not glob_matches(self.tool)(call.name):
            return False
        if isinstance(self.when, Condition):
            return self.when.holds(call, facts, every=self.decision is Decision.ALLOW)
        return self.when is None or bool(self.when(call, facts))  # type: ignore[operator]  # no mapping any more


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a policy says about one call.

    Attributes:
        decision: The answer.
        reasons: Why, in words.
        matched: The rules that concerned it.
    """

    decision: Decision
    _: KW_ONLY
    reasons: tuple[str, ...] = ()
    matched: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A mode and its exceptions.

    Attributes:
        mode: `plan`, `safe` or `auto`.
        rules: Exceptions; their order does not matter, the strictest match wins.
        bounds: Policies that narrow this one: what any of them forbids, or asks about, stays so.
    """

    mode: Mode = "safe"
    rules: Sequence[Rule] = field(default_factory=tuple)
    bounds: tuple[Policy, ...] = ()

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"Policy mode {self.mode!r} is not one of {', '.join(get_args(Mode))}.")
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(
                    f"Policy rules: {rule!r} is no Rule. Give a list such as [Rule(tool='file')]."
                )
        object.__setattr__(self, "rules", tuple(self.rules))

    def narrowed(self, bound: Policy) -> Self:
        """This policy, allowing only what `bound` allows as well."""
        return dataclasses.replace(self, bounds=(*self.bounds, bound))

    def check(self, call: ToolCall, facts: Facts) -> Evaluation:
        """Decide about `call`; the strictest of this policy and its bounds.

        A rule that fails counts as a denial that names it: nothing runs because a rule was broken.
        """
        protected = protected_writes(facts)
        if protected:
            told = f"{', '.join(protected)} is protected: something outside the sandbox may run it"
            return Evaluation(Decision.DENY, reasons=(told,))
        strictest = self._check_alone(call, facts)
        for bound in self.bounds:
            evaluation = bound.check(call, facts)
            if evaluation.decision.rank > strictest.decision.rank:
                strictest = evaluation
        return strictest

    def _check_alone(self, call: ToolCall, facts: Facts) -> Evaluation:
        matched: list[Rule] = []
        for rule in self.rules:
            try:
                if rule.matches(call, facts):
                    matched.append(rule)
            except Exception as error:
                told = f"a rule for {rule.tool!r} failed ({type(error).__name__}: {error}); mend or remove it"
                return Evaluation(Decision.DENY, reasons=(told,), matched=(rule,))
        by_mode = self._by_mode(call, facts)
        if not matched or (self.mode == "plan" and by_mode.decision is Decision.DENY):
            return by_mode
        decision = max(rule.decision for rule in matched)
        if call.origin == "person" and decision is Decision.ASK:
            decision = by_mode.decision  # typing is consent; only a denying rule stands against it
        if decision is Decision.ALLOW and call.origin != "person" and unguarded(facts):
            decision = Decision.ASK  # without a sandbox no rule lets a program or a model act unasked
        reasons = tuple(r.reason or f"rule for {r.tool!r}" for r in matched if r.decision is decision)
        return Evaluation(decision, reasons=reasons or by_mode.reasons, matched=tuple(matched))

    def _by_mode(self, call: ToolCall, facts: Facts) -> Evaluation:
        effect = severity(facts)
        what = EFFECT_WORDS[effect] if effect is Effect.DESTRUCTIVE else f"a {EFFECT_WORDS[effect]}"
        if effect is Effect.READ_ONLY:
            return Evaluation(Decision.ALLOW, reasons=("it only reads",))
        if self.mode == "plan":
            return Evaluation(
                Decision.DENY,
                reasons=(f"mode plan allows only reading, and this is {what}",),
            )
        if call.origin == "person":
            return _typed(facts, effect)
        if self.mode == "auto":
            return _auto(facts, effect)
        return Evaluation(Decision.ASK, reasons=(f"it is {what}",))


def protected_writes(facts: Facts) -> tuple[str, ...]:
    """What of the call's writes is protected whatever the mode."""
    if not facts.writes:
        return ()
    return tuple([path for path in facts.writes if _protected(normal_path(path))])


_PROTECTED_NAME = re.compile("|".join(fnmatch.translate(glob) for glob in PROTECTED_NAMES))


def _protected(path: str) -> bool:
    path = f"/{path.lower()}/"
    for folder in PROTECTED_FOLDERS:
        if f"/{folder}/" in path:
            return True
    return _PROTECTED_NAME.match(path[1:-1].rpartition("/")[2]) is not None


def severity(facts: Facts) -> Effect:
    """The effect a policy goes by: what is uncertain, or unguarded without a sandbox, is never read only."""
    if facts.effect is Effect.READ_ONLY and (unguarded(facts) or not facts.certain):
        return Effect.LOCAL_MUTATION
    return facts.effect


def unguarded(facts: Facts) -> bool:
    """Whether nothing keeps the call from the user's files: no sandbox, and no path guard of ours."""
    return facts.level == "limited" and facts.runs_in == "sandbox" and not facts.path_guarded


def _typed(facts: Facts, effect: Effect) -> Evaluation:
    """A person typed it: that is consent to run it in the sandbox."""
    if facts.runs_in == "host":
        return Evaluation(Decision.ASK, reasons=("it runs on the host, outside the sandbox",))
    if effect is Effect.DESTRUCTIVE and not facts.undoable:
        return Evaluation(Decision.ASK, reasons=("it destroys something that undo cannot bring back",))
    return Evaluation(Decision.ALLOW, reasons=("you typed it",))


def _auto(facts: Facts, effect: Effect) -> Evaluation:
    reasons = []
    if effect is Effect.DESTRUCTIVE:
        reasons.append("it is destructive")
    if facts.hosts:
        reasons.append("it talks to " + ", ".join(facts.hosts))
    elif effect is Effect.REMOTE_ACTION:
        reasons.append("it acts on something remote that it does not name")
    if facts.outside:
        reasons.append("it writes outside the workspace")
    if not facts.certain:
        reasons.append("not everything it does could be seen beforehand")
    if unguarded(facts):
        reasons.append("there is no sandbox at this level")
    if reasons:
        return Evaluation(Decision.ASK, reasons=tuple(reasons))
    return Evaluation(Decision.ALLOW, reasons=("mode auto allows what stays in the workspace",))
