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

The examples under `match` and `not_match` are checked when the file is loaded. The user's own file may also
hold the settings of the notebook, in a table `[settings]`; a workspace's may not.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from aisotools.core.exceptions import UsageError, WorkspaceError
from aisotools.policy.rules import Policy, Rule
from aisotools.workspace.workspace import Workspace

FILE_NAME = "aisotools.toml"
"""The user's policy in the Jupyter config folder."""

WORKSPACE_FILE_NAME = ".aisotools.toml"
"""A policy in a workspace; it may only tighten the user's."""

_MAX_BYTES = 1 << 18
_RULE_KEYS = {"tool", "when", "decision", "reason", "match", "not_match"}


def policy_from_toml(text: str, *, source: str = "policy", beside: Collection[str] = ()) -> Policy:
    """Read a policy.

    Args:
        text: TOML.
        source: What to call it in errors.
        beside: Keys that may stand there too, which are none of the policy's business.

    Raises:
        UsageError: Naming the source, the rule and the mistake.
    """
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not TOML: {error}.") from None
    unknown = sorted(set(told) - {"mode", "rule", *beside})
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


def user_policy(environ: Mapping[str, str]) -> Policy:
    """The user's own policy, from the Jupyter config folder; mode `safe` without rules where there is none.

    Raises:
        UsageError: If the file is there and cannot be read as a policy.
    """
    path = user_file(environ)
    return _policy(path, path.read_bytes, beside=("settings",)) or Policy()


def user_file(environ: Mapping[str, str]) -> Path:
    """Where the user's own file is, or would be: policy, and the notebook's settings."""
    folder = environ.get("JUPYTER_CONFIG_DIR") or Path(environ.get("HOME", "~")).expanduser() / ".jupyter"
    return Path(folder) / FILE_NAME


def user_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """The table `[settings]` of the user's own file; empty where there is none.

    Raises:
        UsageError: If the file is there and cannot be read, or holds no such table.
    """
    path = user_file(environ)
    try:
        told = tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"The settings {path} cannot be read: {error}") from None
    settings = told.get("settings", {})
    if not isinstance(settings, dict):
        raise UsageError(f"{path}: write settings as a table: [settings].")
    return settings


def workspace_policy(workspace: Path) -> Policy | None:
    """A workspace's own policy, by which any other is narrowed; None where there is none.

    Raises:
        UsageError: If the file is there and cannot be read as a policy; nothing is loosened by a broken file.
    """
    # What lies in a workspace may be a link out of it, or a pipe that never ends.
    read = partial(Workspace(workspace).read_bytes, WORKSPACE_FILE_NAME, max_bytes=_MAX_BYTES)
    return _policy(workspace / WORKSPACE_FILE_NAME, read)


def _policy(path: Path, read: Callable[[], bytes], beside: Collection[str] = ()) -> Policy | None:
    try:
        text = read().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, WorkspaceError) as error:
        raise UsageError(f"The policy {path} cannot be read: {error}") from None
    return policy_from_toml(text, source=str(path), beside=beside)
