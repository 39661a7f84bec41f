"""Rules about paths, as they hold in one workspace, and which of them the sandbox can enforce by itself.

Threat: a rule denies `/workspace/secrets/*`, `~/project/secrets/*` or `secrets/`, and matches nothing, since
the paths of calls are relative to the workspace and have no slash at the end. Nobody notices.
Mechanism: when a policy meets a workspace, each spelling of a path in it becomes the relative one. Another
absolute path stays as it is, for what is read and written outside.
Race window: none for texts. What links lead to is looked up by whoever calls, at the time of the call.
Failure: a part `..` is refused when the rule is made (`policy.rules`), as no path of a call has one.

A rule that denies paths decides before a call runs, by what can be known then, and a program can still open
any file. So where the level can, the paths of such rules are put out of its reach as well: those of rules
that hold for every tool, without any other condition, and name a path or everything in a folder
(`secrets/*`). Other patterns name nothing that a sandbox could be kept from before it runs.

What a level can do: `isolated` hides such a path, or makes it read only, for everything in the sandbox.
`confined` and `guarded` keep it from commands that only read (`sandbox.confinement.denied_reads`) and from
file tools (`workspace.workspace`), and what anything writes there is put back (`workspace.protected`). What
is left open is said, rule by rule: when the policy is loaded, and on the card of a call that could make use
of it. A repository of git keeps copies of its own, which no level hides.
"""

from __future__ import annotations

import dataclasses
import operator
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aisotools.core.types import Decision, Facts
from aisotools.policy.rules import PATH_KEYS, Condition, Policy, Rule, normalize_path, path_globs

_PATTERN = re.compile(r"[*?\[]")
_ESCAPED = re.compile(r"\[([*?\[])\]")
_HIDING_LEVELS = frozenset(("isolated",))
"""Levels with a root of their own, in which paths can be hidden."""

_READING_LEVELS = frozenset(("confined", "guarded"))
"""Levels at which a command or tool that only reads, and a file tool, cannot read what a rule denies."""

_VARIABLE = re.compile(r"\$(?:WORKSPACE|\{WORKSPACE\})(?=/|$)")
_ALIAS = "/workspace"

Rewrite = Callable[[Rule, str], Sequence[str]]
"""Takes a rule and one of its globs, and returns the globs that replace it."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A rule about a path that the sandbox does not enforce, or not in full.

    Attributes:
        key: The key of its condition.
        glob: The glob.
        sentence: What stays possible, and why.
    """

    key: str
    glob: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PathEnforcement:
    """What a sandbox is to enforce of the rules of policies.

    Attributes:
        unreadable: Paths, relative to the workspace, that the sandbox must not read or write.
        unwritable: Paths that the sandbox must not write.
        put_back: Paths whose changes the host reverts after each call.
        globs: The globs that are enforced for every call, each with its key in the rule's condition.
        reading_globs: Further globs that are enforced for a command or a file tool that only reads.
        gaps: The rules about paths that are not enforced for every call.
        repository_gaps: A sentence for each rule about reading that holds if there is a repository of git.
    """

    unreadable: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()
    put_back: tuple[str, ...] = ()
    globs: frozenset[tuple[str, str]] = frozenset()
    reading_globs: frozenset[tuple[str, str]] = frozenset()
    gaps: tuple[Gap, ...] = ()
    repository_gaps: tuple[str, ...] = ()

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """A sentence for each rule about paths that is not enforced for every call."""
        return tuple(dict.fromkeys(gap.sentence for gap in self.gaps))

    def gaps_of(self, facts: Facts, *, has_repository: bool = False) -> tuple[str, ...]:
        """Return a sentence for each rule that a call with these facts could evade.

        Args:
            facts: The facts of the call.
            has_repository: Whether there is a repository of git in the workspace, as far as is known.
        """
        if facts.runs_in != "sandbox" or facts.path_guarded:
            return ()
        sentences = [gap.sentence for gap in self.gaps if (gap.key, gap.glob) not in facts.enforced]
        # Of a command that was understood it is known whether it reads from a repository; of code it is not.
        if facts.recorded or (has_repository and not (facts.commands and facts.certain)):
            sentences += self.repository_gaps
        return tuple(dict.fromkeys(sentences))


def plan_enforcement(
    policies: Iterable[Policy],
    level: str,
    is_there: Callable[[str], bool],
    *,
    can_copy: Callable[[str], bool] = lambda _path: True,
    leads_to: Callable[[str], str | None] = lambda path: path,
) -> PathEnforcement:
    """Return what a sandbox of this level is to enforce.

    Args:
        policies: The policies that decide about calls; their bounds count too.
        level: The sandbox's level.
        is_there: Returns whether a path in the workspace exists and has no link on the way.
        can_copy: Returns whether a path holds little enough to be copied, so that changes can be reverted.
        leads_to: Returns the path in the workspace that a path leads to, with links followed; None if it
            leads out of it.
    """
    unreadable: dict[str, None] = {}
    unwritable: dict[str, None] = {}
    put_back: dict[str, None] = {}
    globs: set[tuple[str, str]] = set()
    reading_globs: set[tuple[str, str]] = set()
    gaps: dict[Gap, None] = {}
    repository_gaps: dict[str, None] = {}
    for rule in _denying_rules(policies):
        for key, glob in path_globs(rule):
            if key != "writes":
                sentence = f"what a repository of git has recorded of {glob!r} can be read from its objects"
                repository_gaps[sentence] = None
            named = fixed_path(glob) if _is_plain(rule) else ""
            path = leads_to(named) if named else ""
            if not path:
                reason = _why_not_fixed(glob) if _is_plain(rule) else "it has further conditions"
                if named:
                    reason = "it is a link, or has one on the way, that leads out of the workspace"
                gaps[Gap(key, glob, _gap_sentence(glob, reason))] = None
                continue
            denied = unwritable if key == "writes" else unreadable
            denied[path] = None
            if level in _HIDING_LEVELS:
                denied[named] = None  # the same, or with links, which may lead elsewhere later
            exists = is_there(path)
            if exists and level in _HIDING_LEVELS:
                globs.add((key, glob))
                continue
            reasons = [] if level in _HIDING_LEVELS else [f"level {level} cannot hide a path"]
            if not exists:
                reasons.append("there is nothing of that name yet, or a link on the way")
            held = []
            if exists and level in _READING_LEVELS:
                reading_globs.add((key, glob))
                held += [] if key == "writes" else ["commands that only read and file tools are kept from it"]
            if key != "reads" and level != "limited":
                if can_copy(path):
                    put_back[path] = None
                    held.append("what a call writes there is put back")
                else:
                    reasons.append("there is too much of it to put back what a call writes")
            gaps[Gap(key, glob, _gap_sentence(glob, " and ".join(reasons), held))] = None
    return PathEnforcement(
        unreadable=tuple(unreadable),
        unwritable=tuple(unwritable),
        put_back=tuple(put_back),
        globs=frozenset(globs),
        reading_globs=frozenset(reading_globs),
        gaps=tuple(gaps),
        repository_gaps=tuple(repository_gaps),
    )


def denied_paths(policy: Policy) -> list[str]:
    """Return the paths in the workspace that a policy, or one of its bounds, denies to every tool.

    They are as the rules name them; links may be on the way.
    """
    paths: dict[str, None] = {}
    for rule in filter(_is_plain, _denying_rules([policy])):
        for _, glob in path_globs(rule):
            if path := fixed_path(glob):
                paths[path] = None
    return list(paths)


def _gap_sentence(glob: str, reason: str, held: Sequence[str] = ()) -> str:
    sentence = f"the sandbox can reach {glob!r} all the same: {reason}"
    return f"{sentence}; but {', and '.join(held)}" if held else sentence


def _denying_rules(policies: Iterable[Policy]) -> Iterator[Rule]:
    for policy in policies:
        yield from (rule for rule in policy.rules if rule.decision is Decision.DENY)
        yield from _denying_rules(policy.bounds)


def _is_plain(rule: Rule) -> bool:
    """Return whether a rule denies its paths to every tool, whoever calls it."""
    expected: Mapping[str, object] = rule.when.expected if isinstance(rule.when, Condition) else {}
    return rule.tool == "*" and len(expected) == 1


def _why_not_fixed(glob: str) -> str:
    """Return why a glob names no path of the workspace that a sandbox could be kept from."""
    if glob.startswith(("/", "~", "$")):
        return "it is a path outside the workspace, where the level decides what can be reached"
    if normalize_path(glob) == ".":
        return "it is the workspace itself, in which every call works"
    return "it is neither a path nor a folder followed by /*"


def fixed_path(glob: str) -> str:
    """Return the path that a glob names with all that is in it; empty for any other glob."""
    fixed = re.sub(r"/\*\*?$", "", glob)
    path = normalize_path(_ESCAPED.sub(r"\1", fixed))
    is_pattern = _PATTERN.search(_ESCAPED.sub("", fixed))
    if is_pattern or path in {"", "."} or path.startswith(("/", "~", "$", "../")) or path == "..":
        return ""
    return path


def relative_glob(glob: str, workspaces: Sequence[str], home: str) -> str:
    """Return a glob relative to the workspace; a glob for paths outside of it is returned unchanged.

    Args:
        glob: The glob as the rule has it.
        workspaces: Paths of the workspace, without a slash at the end.
        home: The folder that `~` stands for; empty if it is not known.
    """
    text = _VARIABLE.sub(_ALIAS, glob)
    if home and (text == "~" or text.startswith("~/")):
        text = f"{home.rstrip('/')}{text[1:]}"
    if text.startswith("/"):
        text = re.sub(r"/(?:\.?/)+", "/", f"{text}/" if text.endswith("/.") else text)
        for workspace in (*workspaces, _ALIAS):
            if text.rstrip("/") == workspace:
                return "*" if text.endswith("/") else "."
            if text.startswith(f"{workspace}/"):
                text = text[len(workspace) + 1 :]
                break
        else:
            return glob
    is_folder = text.endswith(("/", "/."))
    path = posixpath.normpath(text) if text else text
    if path == ".":
        return "*" if is_folder else path
    return f"{path}/*" if is_folder else path


def rewrite_globs(policy: Policy, rewrite: Rewrite) -> Policy:
    """Return a policy with the globs of its path rules, and those of its bounds, replaced by `rewrite`.

    The policy itself is returned if `rewrite` changes no glob.
    """
    rules = [_rewrite_rule(rule, rewrite) for rule in policy.rules]
    bounds = tuple(rewrite_globs(bound, rewrite) for bound in policy.bounds)
    if all(map(operator.is_, rules, policy.rules)) and all(map(operator.is_, bounds, policy.bounds)):
        return policy
    return dataclasses.replace(policy, rules=tuple(rules), bounds=bounds)


def glob_below(glob: str, path: str, real: str) -> str:
    """Return `glob`, which begins with the path `path`, with the path `real` in its place."""
    return f"{real}{glob[len(path) :]}"


def _rewrite_rule(rule: Rule, rewrite: Rewrite) -> Rule:
    written = path_globs(rule)
    rewritten = [(key, new) for key, glob in written for new in rewrite(rule, glob)]
    if rewritten == written or not isinstance(rule.when, Condition):
        return rule
    expected: dict[str, Any] = dict(rule.when.expected)
    for key in PATH_KEYS & expected.keys():
        expected[key] = [glob for name, glob in rewritten if name == key]
    # The examples were checked against the rule as it was written.
    return dataclasses.replace(rule, when=Condition(expected), match=(), not_match=())
