"""Policies from TOML: the user's own, and a workspace's, which may only tighten it.

::

    mode = "safe"

    [[rule]]
    tool = "sandbox_bash"
    when = { commands = ["git push*"] }
    decision = "deny"
    reason = "people push, models do not"
    match = [{ command = "git push origin main" }]
    not_match = [{ command = "git status" }]

The examples under `match` and `not_match` are checked when the file is loaded.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aisotools.exceptions import UsageError
from aisotools.policy import Policy, Rule

FILE_NAME = "aisotools.toml"
"""The user's policy in the Jupyter config folder."""

WORKSPACE_FILE_NAME = ".aisotools.toml"
"""A policy in a workspace; it may only tighten the user's."""

_RULE_KEYS = {"tool", "when", "decision", "reason", "match", "not_match"}


def policy_from_toml(text: str, *, source: str = "policy") -> Policy:
    """Read a policy.

    Args:
        text: TOML.
        source: What to call it in errors.

    Raises:
        UsageError: Naming the source, the rule and the mistake.
    """
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not TOML: {error}.") from None
    unknown = sorted(set(told) - {"mode", "rule"})
    if unknown:
        raise UsageError(f"{source} has unknown keys: {', '.join(unknown)}. Known: mode, rule.")
    rules = told.get("rule", [])
    if not isinstance(rules, list):
        raise UsageError(f"{source}: write rules as [[rule]] tables.")
    made = tuple(_rule(rule, f"{source}, rule {number}") for number, rule in enumerate(rules, start=1))
    try:
        return Policy(mode=told.get("mode", "safe"), rules=made)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None


def _rule(told: Mapping[str, Any], source: str) -> Rule:
    unknown = sorted(set(told) - _RULE_KEYS)
    if unknown:
        raise UsageError(
            f"{source} has unknown keys: {', '.join(unknown)}. Known: {', '.join(sorted(_RULE_KEYS))}."
        )
    try:
        return Rule(**told)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{source}: {error}") from None


def load_policy(config_folder: Path | None, workspace: Path | None = None) -> Policy:
    """The user's policy, tightened by the workspace's; mode `safe` without rules where there is neither.

    Raises:
        UsageError: If a file is there and cannot be read as a policy; nothing is loosened by a broken file.
    """
    policy = _from_file(config_folder / FILE_NAME) if config_folder is not None else None
    policy = policy if policy is not None else Policy()
    tighter = _from_file(workspace / WORKSPACE_FILE_NAME) if workspace is not None else None
    return policy.narrowed(tighter) if tighter is not None else policy


def _from_file(path: Path) -> Policy | None:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The policy {path} cannot be read: {error}.") from None
    return policy_from_toml(text, source=str(path))
