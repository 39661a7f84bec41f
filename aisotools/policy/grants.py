"""Approvals that reach beyond one call, until the session ends: never wider than what was shown.

A grant covers this exact call, calls of the same shape, or the same tool. A shape is what a person can read
on a card: the commands with their first word after the program, the folders written to, the hosts. Whatever
a grant covers, it covers only up to the effect that was shown, only where the classifier saw everything, and
only what the policy would ask about: a denial stands against every grant.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from aisotools.core.types import Effect, Facts, Remember
from aisotools.policy.prepared import PreparedCall
from aisotools.policy.prompts import EFFECT_WORDS
from aisotools.policy.rules import normal_path

_WITH_SUBCOMMANDS = frozenset(
    [
        "apt",
        "apt-get",
        "brew",
        "cargo",
        "conda",
        "docker",
        "gh",
        "git",
        "go",
        "helm",
        "kubectl",
        "npm",
        "pip",
        "pip3",
        "pnpm",
        "podman",
        "poetry",
        "svn",
        "systemctl",
        "terraform",
        "uv",
        "yarn",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a call does, without its details.

    Attributes:
        commands: Programs, each with its subcommand if it has one.
        folders: Folders it writes to, relative to the workspace.
        hosts: Hosts it talks to.
    """

    commands: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()

    def covers(self, other: Shape) -> bool:
        """Whether `other` does nothing that this shape does not."""
        return other.commands <= self.commands and other.folders <= self.folders and other.hosts <= self.hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One approval that is remembered.

    Attributes:
        id: Names it for revoking; counts from 1.
        scope: How far it reaches.
        tool: The tool.
        words: What it allows, in the words that were shown.
        effect: The severest effect it covers.
        digest: For scope `call`: the very call.
        shape: For scope `shape`: what may be done.
        granted_s: When, in seconds since the epoch.
    """

    id: int
    scope: Remember
    tool: str
    words: str
    effect: Effect
    digest: str
    shape: Shape | None
    granted_s: float

    def covers(self, ticket: PreparedCall) -> bool:
        """Whether it allows this call."""
        facts = ticket.facts
        if ticket.call.name != self.tool or ticket.effect > self.effect:
            return False
        if ticket.effect is Effect.REMOTE_ACTION and self.effect is not Effect.REMOTE_ACTION:
            return False  # reaching out is no milder form of changing something here
        if self.scope == "call":
            return ticket.digest == self.digest
        if not facts.certain or facts.outside:
            return False
        shape = shape_of(facts)
        if self.scope == "tool":
            return not facts.hosts
        return self.shape is not None and shape is not None and self.shape.covers(shape)


class Grants:
    """The grants of one session."""

    def __init__(self, on_revoked: Callable[[Grant], None] = lambda _grant: None) -> None:
        """Start without any; `on_revoked` hears of each that is taken back."""
        self._on_revoked = on_revoked
        self._grants: dict[int, Grant] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._grants)

    def list(self) -> Sequence[Grant]:
        """All grants, the oldest first."""
        return tuple(self._grants.values())

    def add(self, scope: Remember, ticket: PreparedCall) -> Grant | None:
        """Remember an approval; None when this call has nothing of that scope to remember."""
        words = scopes_of(ticket).get(scope)
        if words is None:
            return None
        grant = Grant(
            id=next(self._ids),
            scope=scope,
            tool=ticket.call.name,
            words=words,
            effect=ticket.effect,
            digest=ticket.digest,
            shape=shape_of(ticket.facts) if scope == "shape" else None,
            granted_s=time.time(),
        )
        self._grants[grant.id] = grant
        return grant

    def covering(self, ticket: PreparedCall) -> Grant | None:
        """A grant that allows this call, or None."""
        return next((grant for grant in self._grants.values() if grant.covers(ticket)), None)

    def revoke(self, grant_id: int) -> Grant | None:
        """Take one back; None when there is none of that id."""
        grant = self._grants.pop(grant_id, None)
        if grant is not None:
            self._on_revoked(grant)
        return grant

    def clear(self) -> None:
        """Take all back."""
        for grant_id in list(self._grants):
            self.revoke(grant_id)


def shape_of(facts: Facts) -> Shape | None:
    """The shape of a call, or None when it has none that could be told in words."""
    if not facts.certain or not (facts.commands or facts.writes or facts.hosts):
        return None
    return Shape(
        commands=frozenset(_prefix(command) for command in facts.commands),
        folders=frozenset(_folder(path) for path in facts.writes),
        hosts=frozenset(host.lower() for host in facts.hosts),
    )


def scopes_of(ticket: PreparedCall) -> dict[Remember, str]:
    """What could be remembered about a call, by scope, in words that say exactly what would be allowed."""
    name, facts = ticket.call.name, ticket.facts
    words: dict[Remember, str] = {"call": f"{name} with exactly these arguments"}
    if not facts.certain or facts.outside:
        return words
    shape = shape_of(facts)
    limit = f"up to {EFFECT_WORDS[ticket.effect]}"
    if shape is not None:
        words["shape"] = f"{name}{_told(shape)}, {limit}"
    if not facts.hosts and ticket.effect is not Effect.DESTRUCTIVE:
        words["tool"] = f"{name} with any arguments, {limit}, in the workspace"
    assert set(words) <= set(get_args(Remember))
    return words


def _told(shape: Shape) -> str:
    parts = [
        (" running only ", shape.commands),
        (" writing only to ", shape.folders),
        (" talking only to ", shape.hosts),
    ]
    return ",".join(word + ", ".join(sorted(values)) for word, values in parts if values)


def _prefix(command: str) -> str:
    """A command without its details: `git push` of `git push origin main`, `sort` of `sort -u a`.

    Where an option stands before the subcommand, nothing tells which word that is: then all of it counts.
    """
    program, _, rest = command.partition(" ")
    if program not in _WITH_SUBCOMMANDS:
        return program
    subcommand = rest.split(maxsplit=1)[0] if rest else ""
    return command if subcommand.startswith("-") else f"{program} {subcommand}".strip()


def _folder(path: str) -> str:
    return normal_path(path).rpartition("/")[0] or "."
