"""Load policies from TOML: the user's own, and a workspace's, which may only narrow it.

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
contain the settings of the notebook, in a table `[settings]`, and the protected names that may be written, by
workspace::

    [allow_protected]
    "~/project" = ["conftest.py", "pyproject.toml"]

A workspace's own file may contain neither.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from aisotools.core.exceptions import UsageError, WorkspaceError
from aisotools.policy.rules import Condition, Policy, Rule, glob_matcher
from aisotools.workspace.protected_names import AllowedNames
from aisotools.workspace.workspace import Workspace

FILE_NAME = "aisotools.toml"
"""The user's policy in the Jupyter config folder."""

WORKSPACE_FILE_NAME = ".aisotools.toml"
"""A policy in a workspace, which may only narrow the user's."""

_ALLOW = "allow_protected"
_RULE_KEYS = frozenset(("tool", "when", "decision", "reason", "match", "not_match"))


def policy_from_toml(text: str, *, source: str = "policy", beside: Collection[str] = ()) -> Policy:
    """Parse a policy.

    Args:
        text: TOML.
        source: What to call it in errors.
        beside: Other top-level keys that are allowed and ignored.

    Raises:
        UsageError: Naming the source, the rule and the mistake.
    """
    document = parse_toml(text, source)
    known = ("mode", "rule", *beside)
    unknown = sorted(set(document) - {*known})
    if unknown:
        raise UsageError(
            f"{source} has unknown keys: {shorten_middle(', '.join(unknown))}. Known: {', '.join(known)}."
        )
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{source}: write rules as [[rule]] tables.")
    rules = tuple(_parse_rule(table, f"{source}, rule {number}") for number, table in enumerate(tables, 1))
    try:
        return Policy(mode=document.get("mode", "safe"), rules=rules)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None


def _parse_rule(table: Mapping[str, Any], source: str) -> Rule:
    unknown = sorted(set(table) - _RULE_KEYS)
    if unknown:
        known = ", ".join(sorted(_RULE_KEYS))
        raise UsageError(f"{source} has unknown keys: {', '.join(unknown)}. Known: {known}.")
    try:
        return Rule(**table)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{source}: {error}") from None


def user_policy(environ: Mapping[str, str]) -> Policy:
    """Return the user's own policy; mode `safe` without rules if there is no file.

    Raises:
        UsageError: If the file is not a valid policy.
    """
    path = user_file(environ)
    return _load_policy(path, path.read_bytes, beside=("settings", _ALLOW)) or Policy()


def user_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's own file, which need not exist: policy, and the notebook's settings."""
    folder = environ.get("JUPYTER_CONFIG_DIR") or Path(environ.get("HOME", "~")).expanduser() / ".jupyter"
    return Path(folder) / FILE_NAME


def user_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the table `[settings]` of the user's own file; empty if there is none.

    Raises:
        UsageError: If the file cannot be read, or `settings` is not a table.
    """
    path = user_file(environ)
    settings = _read_user_file(path).get("settings", {})
    if not isinstance(settings, dict):
        raise UsageError(f"{path}: write settings as a table: [settings].")
    return settings


def user_allowed_names(environ: Mapping[str, str], workspace: Path) -> tuple[str, ...]:
    """Return the protected names that the user's own file allows for this workspace.

    Raises:
        UsageError: If the file cannot be read, or the table is malformed.
    """
    path = user_file(environ)
    table = _read_user_file(path).get(_ALLOW, {})
    if not isinstance(table, dict):
        raise UsageError(f'{path}: write allow_protected as a table of lines such as "FOLDER" = ["NAME"].')
    allowed: list[str] = []
    for folder, names in table.items():
        if not isinstance(names, list):
            raise UsageError(f"{path}, [allow_protected]: {folder!r} needs a list of names, not {names!r}.")
        try:
            AllowedNames(names)
        except UsageError as error:
            raise UsageError(f"{path}, [allow_protected], {folder!r}: {error}") from None
        home = environ.get("HOME", "~")
        expanded = home + folder[1:] if folder == "~" or folder.startswith("~/") else folder
        if Path(expanded).is_absolute() and Path(expanded).resolve() == workspace:
            allowed += names
    return tuple(dict.fromkeys(allowed))


def workspace_policy(workspace: Path) -> Policy | None:
    """Return a workspace's own policy, which narrows any other; None if it has none.

    Raises:
        UsageError: If the file is not a valid policy, or anything else is there but a folder. A broken file
            never loosens anything.
    """
    # A folder of that name holds no rules. One that a call makes is not taken away as a file is, and must not
    # keep the next session from opening. Where there was a file, that has been put back.
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(workspace / WORKSPACE_FILE_NAME).st_mode):
            return None
    # What lies in a workspace may be a link out of it, or a pipe that never ends.
    read = partial(Workspace(workspace).read_bytes, WORKSPACE_FILE_NAME, max_bytes=MAX_BYTES)
    policy = _load_policy(workspace / WORKSPACE_FILE_NAME, read)
    if policy is not None:
        _compile_globs(policy)
    return policy


def _compile_globs(policy: Policy) -> None:
    """Compile all globs now: this may be in a thread, and the first call is on the event loop."""
    for rule in policy.rules:
        glob_matcher(rule.tool)
        if isinstance(rule.when, Condition):
            for value in rule.when.expected.values():
                for glob in [value] if isinstance(value, str) else value if isinstance(value, list) else []:
                    if isinstance(glob, str):
                        glob_matcher(glob)


def _read_user_file(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_bytes().decode("utf-8"), "it")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, UsageError) as error:
        raise UsageError(f"The settings {path} cannot be read: {error}") from None


def _load_policy(path: Path, read: Callable[[], bytes], beside: Collection[str] = ()) -> Policy | None:
    try:
        text = read().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, WorkspaceError) as error:
        raise UsageError(f"The policy {path} cannot be read: {error}") from None
    return policy_from_toml(text, source=str(path), beside=beside)


# ---- TOML that may be hostile

MAX_BYTES = 64 << 10
"""Size of the largest text that is parsed."""

MAX_DEPTH = 16
"""Levels of nested arrays and tables."""

MAX_PARTS = 16
"""Parts of a dotted key."""

_SHOWN_CHARS = 60

_next_sign = re.compile(r"""["'#\[\]{}.=,\n]""").search
_basic_string = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"').match


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Return a document that may be hostile.

    Threat: a policy in a workspace is read on the host before anything else happens. The parser of Python's
    standard library takes cubic time for a key of many parts (120 KB: 45 s), ends with a `RecursionError` for
    nested brackets, and with a plain `ValueError` for a long number.

    Mechanism: the size is checked first. Then one pass, which knows strings and comments and nothing else of
    TOML, counts how deep brackets are nested and how many parts a key has; both are bounded far above what
    anybody writes. Only then does the parser see the text.
    Race: none; the text was read once and is judged and parsed as it was read.
    Failure: whatever is refused or malformed is a `UsageError` that names the file; a broken policy loosens
    nothing, as the session then does not open.

    Args:
        text: TOML.
        source: What to call it in errors.

    Raises:
        UsageError: Naming the source and the mistake.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise UsageError(f"{source} has more than {MAX_BYTES:,} bytes. Make it shorter.")
    problem = _find_excess(text)
    if problem:
        raise UsageError(f"{source} is not read: {problem}.")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # numbers of very many digits are no TOMLDecodeError
        raise UsageError(f"{source} is not TOML: {shorten_middle(str(error))}.") from None


def shorten_middle(text: str) -> str:
    """Return `text` for an error message, with the middle of a long one left out."""
    if len(text) <= 4 * _SHOWN_CHARS:
        return text
    return f"{text[:_SHOWN_CHARS]} ... {text[-_SHOWN_CHARS:]}"


def _find_excess(text: str) -> str:
    """Return what is nested too deeply, or a string that does not end; empty if all is well."""
    depth = parts = at = 0
    while (sign := _next_sign(text, at)) is not None:
        at, char = sign.end(), sign[0]
        if char == "#":
            at = text.find("\n", at)
            if at < 0:
                return ""
        elif char in "\"'":
            at = _end_of_string(text, sign.start())
            if at < 0:
                return "a string in it does not end"
        elif char in "[{":
            depth, parts = depth + 1, 0
            if depth > MAX_DEPTH:
                return f"brackets in it are nested more than {MAX_DEPTH} deep"
        elif char in "]}":
            depth -= 1
        elif char == ".":
            parts += 1
            if parts >= MAX_PARTS:
                return f"a key in it has more than {MAX_PARTS} parts"
        else:
            parts = 0
    return ""


def _end_of_string(text: str, start: int) -> int:
    """Return the position behind the string that begins at `start`; -1 if it does not end."""
    quote = text[start]
    if text.startswith(quote * 3, start):
        at = start + 3
        while (at := text.find(quote * 3, at)) >= 0:
            first = at  # of the backslashes before it
            while quote == '"' and first > start + 3 and text[first - 1] == "\\":
                first -= 1
            if (at - first) % 2 == 0:
                # One or two more quotes belong to the string; otherwise they would begin another one.
                return at + 3 + text.startswith(quote, at + 3) + text.startswith(quote * 2, at + 3)
            at += 1
        return -1
    if quote == "'":
        end = text.find("'", start + 1)
        return -1 if end < 0 or "\n" in text[start:end] else end + 1
    string = _basic_string(text, start)
    return -1 if string is None else string.end()
