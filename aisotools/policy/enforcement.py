"""Which rules about paths the sandbox can enforce by itself, whatever a call tries.

A rule that denies paths decides before a call runs, by what can be known then, and a program can still open
any file. So where the level can, the paths of such rules are put out of its reach as well: those of rules
that hold for every tool, without any other condition, and name a path or everything in a folder
(`secrets/*`). Other patterns name nothing that a sandbox could be kept from before it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from aisotools.core.types import Decision
from aisotools.policy.rules import Condition, Policy, Rule, normalize_path, path_globs

_PATTERN = re.compile(r"[*?\[]")
_LEVELS = frozenset(("isolated",))
"""Levels with a root of their own, in which paths can be hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEnforcement:
    """What a sandbox is to enforce of the rules of policies.

    Attributes:
        unreadable: Paths relative to the workspace that it must not read or write.
        unwritable: Paths that it must not write.
        globs: The globs that these stand for, each with its key in the rule's condition.
        not_enforced: A sentence for each rule about paths that only decides about what is known beforehand.
    """

    unreadable: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()
    globs: frozenset[tuple[str, str]] = frozenset()
    not_enforced: tuple[str, ...] = ()


def plan_enforcement(
    policies: Iterable[Policy], level: str, is_there: Callable[[str], bool]
) -> PathEnforcement:
    """Return what a sandbox of this level is to enforce.

    Args:
        policies: What decides about calls; with their bounds.
        level: The sandbox's level.
        is_there: Returns whether a path in the workspace exists and has no link on the way.
    """
    paths: dict[str, dict[str, None]] = {"reads": {}, "writes": {}}
    globs: set[tuple[str, str]] = set()
    not_enforced: dict[str, None] = {}
    for rule in _denying_rules(policies):
        for key, glob in path_globs(rule):
            path = _fixed_path(glob)
            if not _is_plain(rule):
                reason = "it has further conditions"
            elif not path:
                reason = "it is neither a path nor a folder followed by /*"
            elif level not in _LEVELS:
                reason = f"level {level} cannot hide a path"
            elif not is_there(path):
                reason = "there is nothing of that name yet, or a link on the way"
            else:
                reason = ""
                globs.add((key, glob))
            if path and _is_plain(rule):
                paths["writes" if key == "writes" else "reads"][path] = None
            if reason:
                sentence = f"the sandbox can reach {glob!r} all the same: {reason}"
                not_enforced[sentence] = None
    return PathEnforcement(
        unreadable=tuple(paths["reads"]),
        unwritable=tuple(paths["writes"]),
        globs=frozenset(globs),
        not_enforced=tuple(not_enforced),
    )


def _denying_rules(policies: Iterable[Policy]) -> Iterator[Rule]:
    for policy in policies:
        yield from (rule for rule in policy.rules if rule.decision is Decision.DENY)
        yield from _denying_rules(policy.bounds)


def _is_plain(rule: Rule) -> bool:
    """Return whether a rule denies its paths to every tool, whoever calls it."""
    expected: Mapping[str, object] = rule.when.expected if isinstance(rule.when, Condition) else {}
    return rule.tool == "*" and len(expected) == 1


def _fixed_path(glob: str) -> str:
    """Return the path that a glob names with all that is in it; empty for any other glob."""
    fixed = re.sub(r"/\*\*?$", "", glob)
    path = normalize_path(fixed)
    if _PATTERN.search(fixed) or path in {"", "."} or path.startswith(("/", "~", "$", "../")) or path == "..":
        return ""
    return path
