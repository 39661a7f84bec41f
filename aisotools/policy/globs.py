"""The globs of rules about paths, in the one form in which paths are compared: relative to the workspace.

Threat: a rule denies `/workspace/secrets/*`, `~/project/secrets/*` or `secrets/`, and matches nothing, since
the paths of calls are relative to the workspace and have no slash at the end. Nobody notices.
Mechanism: when a policy meets a workspace, each spelling of a path in it becomes the relative one. Another
absolute path stays as it is, for what is read and written outside.
Race window: none for texts. What links lead to is looked up by whoever calls, at the time of the call.
Failure: a part `..` is refused when the rule is made (`policy.rules`), as no path of a call has one.
"""

from __future__ import annotations

import dataclasses
import operator
import posixpath
import re
from collections.abc import Callable, Sequence
from typing import Any

from aisotools.policy.rules import PATH_KEYS, Condition, Policy, Rule, path_globs

_VARIABLE = re.compile(r"\$(?:WORKSPACE|\{WORKSPACE\})(?=/|$)")
_ALIAS = "/workspace"

Rewrite = Callable[[Rule, str], Sequence[str]]
"""Takes a rule and one of its globs, and returns the globs that replace it."""


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
