"""When a rule concerns a call, as data: globs on structured facts, never on the text of the arguments.

A condition is a mapping; all of its keys must hold, and of a list of globs any one::

    {"commands": ["git push*"], "hosts": ["*.example.org"], "arguments": {"path": "*.md"}}

A call may have several paths, hosts or commands. A rule that asks or denies concerns a call as soon as one of
them matches; a rule that allows, only when every one of them does, and when the classifier saw everything.
What is missing never matches: a condition on `hosts` concerns no call that talks to nobody. `*` matches `/`
as well.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from aisotools.events import Effect, Facts, Json, ToolCall

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
    from aisotools.shell import classify_shell

    report = classify_shell(command)
    names = ("effect", "reads", "writes", "hosts", "commands", "certain")
    return {name: getattr(report, name) for name in names}
