"""Grants: approvals that are remembered until the session ends, and cover no more than the card showed.

A grant covers one exact call, calls of the same shape, or a whole tool. A shape is what a person can read on
a card: the commands with their subcommands and with the options that change what they do (the method of a
request, rights, whether the original stays), the folders that are read and written, and the hosts. A grant
for a shape or a tool covers a call only up to the effect that the card showed, and only if everything that
the call does is known beforehand.
A grant for a call with uncertain facts holds as long as the files that the call reads keep their content:
after a change of a script, the person is asked again (see `workspace.scripts`; this does not work for files
on another machine). A grant for a call that destroys something holds as long as the files that it would
remove stay the same: see `workspace.stamps`.
A folder that a call reads or changes as a whole differs from files in that folder: a grant for `sort > out/a`
does not cover `rm -r out`. A grant answers for a person where the policy asks. It never overrides a denial.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from aisotools.core.truncation import summarize_names
from aisotools.core.types import Decision, Effect, Facts, Remember
from aisotools.policy.prepared import PreparedCall, bound_sources
from aisotools.policy.prompts import EFFECT_LABELS
from aisotools.policy.rules import Policy, normalize_path
from aisotools.tools.adapter import version_of
from aisotools.workspace.protected_names import name_to_allow
from aisotools.workspace.scripts import FOLDER, HOME_SETTINGS, MISSING
from aisotools.workspace.stamps import is_known, is_there

_MAX_LEFT = 1_000
"""Files of which it is known that a call of this session left them as they are."""

# Programs that do one thing for each of their subcommands.
_PROGRAMS_WITH_SUBCOMMANDS = frozenset(
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

_GIT_WITH_ACTIONS = frozenset(
    (
        "bisect",
        "bundle",
        "lfs",
        "notes",
        "reflog",
        "remote",
        "sparse-checkout",
        "stash",
        "submodule",
        "worktree",
    )
)


_CHANGES_THE_TREE = frozenset(
    (
        *("git am", "git apply", "git checkout", "git cherry-pick", "git merge", "git pull", "git rebase"),
        *("git reset", "git restore", "git revert", "git switch", "git stash", "git bisect", "git mv"),
        *("git read-tree", "git checkout-index", "git submodule", "git rerere", "git clean"),
    )
)
"""Commands that may change files of the workspace without naming them."""
_WHOLE = frozenset((".", "/workspace"))
"""The whole workspace: what is written, if a command does not name it."""

# Options that make another thing of a command: the method of a request and what is sent with it, rights of
# new files, and whether the original stays. Letters of short options, of which several may stand in one word,
# and beginnings of long ones; those with a colon take a value.
_PACKING = (
    "kcdrS:",
    ("keep", "stdout", "to-stdout", "decompress", "uncompress", "recursive", "suffix:", "rm"),
)
_SENT = (
    "request:",
    "data:",
    "form:",
    "json:",
    "upload:",
    "url-query:",
    "config:",
    "header:",
    "user:",
    "oauth:",
)
_RIGHTS = ("m:o:g:Z", ("mode:", "owner:", "group:", "context:"))
_OPTIONS_THAT_TELL: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(("bzip2", "bunzip2", "gzip", "gunzip", "lzma", "xz", "unxz", "zstd", "unzstd"), _PACKING),
    "curl": ("X:d:F:T:K:H:u:G", (*_SENT, "get")),
    "install": (f"{_RIGHTS[0]}sbS:", (*_RIGHTS[1], "backup", "suffix:", "strip")),
    "mkdir": _RIGHTS,
    "mkfifo": _RIGHTS,
    "rsync": ("", ("del", "remove-source-files", "inplace", "chmod:", "chown:")),
    "wget": (
        "i:mre:",
        ("method:", "post:", "body:", "input-file:", "mirror", "recursive", "delete-after", "execute:"),
    ),
}
# Programs of which each option may make another request: a method, another user or port, commands of a
# server, no check of certificates, a file for what is sent and received.
_REQUESTING = frozenset(
    (
        *("aria2c", "axel", "curl", "ftp", "http", "https", "lftp", "nc", "ncat", "netcat", "rsync", "scp"),
        *("sftp", "socat", "ssh", "telnet", "wget", "wget2", "xh", "xhs"),
    )
)
_QUIET = {
    "curl": frozenset(("-s", "-S", "-f", "-sS", "-fs", "-fsS", "-sSf", "-sf", "-v", "-#", "--silent")),
    "wget": frozenset(("-q", "-nv", "--quiet", "--no-verbose")),
}
"""Options, by program, that change nothing but what is printed of the request itself."""
_QUIET_IN_GIT = frozenset(("-q", "-v", "-m", "-am", "--quiet", "--verbose", "--message", "--"))
"""Options of git that lose nothing, whatever the subcommand is."""
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)")
_REMOTE_FILE = re.compile(r"((?:[^\s/:@]+@)?(?:\[[^\]]+\]|[^\s/:]+):)(?!//)(.*)")

_MODE_COMES_FIRST = frozenset(("7z", "7za", "ar", "tar"))
"""Programs whose first word says what they do: pack, unpack or remove."""
_PROGRAMS_OF_RIGHTS = frozenset(
    ("chattr", "chgrp", "chmod", "chown", "chcon", "setfacl", "setfattr", "umask")
)
"""Programs of which every word but the last says what becomes of the rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a call does, without its details.

    Attributes:
        commands: Programs, each with its subcommand if it has one.
        reads: Folders it reads files of, relative to the workspace; one that it reads as a whole ends in `/`.
        writes: Folders it changes files of, likewise.
        hosts: Hosts it talks to, in lower case.
        requests: How programs that send requests do so: with which options, to which scheme, user, host and
            port, and for a file on another machine to which folder.
        losses: Folders in which it overwrites or removes something that is there, likewise.
        settings: Files that define names in the call, such as the remotes of git, with their digests.
    """

    commands: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    requests: frozenset[str] = frozenset()
    losses: frozenset[str] = frozenset()
    settings: frozenset[tuple[str, str]] = frozenset()

    def covers(self, other: Shape) -> bool:
        """Return whether `other` does nothing that this shape does not."""
        return (
            other.commands <= self.commands
            and other.reads <= self.reads
            and other.writes <= self.writes
            and other.hosts <= self.hosts
            and other.requests <= self.requests
            and other.losses <= self.losses
            and other.settings <= self.settings
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One approval that is remembered.

    Attributes:
        id: Identifies the grant, for example to revoke it; numbers count from 1.
        scope: Which calls it covers: one call, a shape, a tool, or the writing of protected names.
        tool: The name of the tool.
        description: What it allows, in the words of the card.
        effect: The severest effect it covers.
        digest: For scope `call`: the digest of the exact call.
        shape: For scope `shape`: the shape that the grant covers.
        granted_s: When it was given, in seconds since the epoch.
        names: For scope `protected`: the names that may be written. Such a grant covers no call by itself.
        version: Of the tool for which it was given: another one of the same name is not covered.
        runs_in: Where the tool runs for which it was given.
        background: True if the call for which it was given goes on in the background.
    """

    id: int
    scope: Remember
    tool: str
    description: str
    effect: Effect
    digest: str
    shape: Shape | None
    granted_s: float
    names: tuple[str, ...] = ()
    version: str = ""
    runs_in: str = ""
    background: bool = False

    def covers(self, prepared: PreparedCall, left_stamps: Mapping[str, str] = MappingProxyType({})) -> bool:
        """Return whether the grant allows this call.

        Args:
            prepared: The call.
            left_stamps: Stamps of files, by path, as calls of this session have left them: to replace those
                loses nothing of anybody else's.
        """
        if prepared.original.name != self.tool or prepared.effect > self.effect or self.scope == "protected":
            return False
        if prepared.effect is Effect.REMOTE_ACTION and self.effect is not Effect.REMOTE_ACTION:
            return False  # contacting a host is no milder form of a local change
        facts = prepared.facts
        if self.scope == "call":
            return prepared.digest == self.digest
        if not _is_known(facts) or (facts.background and not self.background):
            return False
        if (version_of(prepared.tool), facts.runs_in) != (self.version, self.runs_in):
            return False  # another tool of that name, of which the card said nothing
        if self.scope == "tool":
            if prepared.policy.concerns_paths and _may_be_denied(prepared.policy, prepared):
                return False  # nobody was shown which of the files that a rule denies it concerns
            # Which of them changes would be seen by none: settings may name any program.
            return not (facts.hosts or facts.git_programs or HOME_SETTINGS in dict(facts.scripts))
        shape = shape_of(facts, left_stamps)
        return self.shape is not None and shape is not None and self.shape.covers(shape)


class Grants:
    """The grants of one session."""

    def __init__(self, on_revoked: Callable[[Grant], None] = lambda _grant: None) -> None:
        """Start empty; `on_revoked` is called with each grant that is revoked."""
        self._on_revoked = on_revoked
        self._grants: dict[int, Grant] = {}
        self._ids = itertools.count(1)
        self._left: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def list(self) -> Sequence[Grant]:
        """Return all grants, the oldest first."""
        return tuple(self._grants.values())

    def add(self, scope: Remember, prepared: PreparedCall) -> Grant | None:
        """Remember an approval. Return None if nothing of that scope was offered for this call."""
        description = remember_scopes(prepared).get(scope)
        if description is None:
            return None
        grant = Grant(
            id=next(self._ids),
            scope=scope,
            tool=prepared.original.name,
            description=description,
            effect=prepared.effect,
            digest=prepared.digest,
            shape=shape_of(prepared.facts) if scope == "shape" else None,
            granted_s=time.time(),
            names=names_to_allow(prepared.evaluation.protected) if scope == "protected" else (),
            version=version_of(prepared.tool),
            runs_in=prepared.facts.runs_in,
            background=prepared.facts.background,
        )
        self._grants[grant.id] = grant
        return grant

    def find(self, prepared: PreparedCall) -> Grant | None:
        """Return the oldest grant that allows this call, or None."""
        for grant in self._grants.values():
            if grant.covers(prepared, self._left):
                return grant
        return None

    @property
    def goes_by_losses(self) -> bool:
        """True if one of the grants depends on what a call would overwrite."""
        return any(grant.shape is not None for grant in self._grants.values())

    def note_left(self, before: Iterable[tuple[str, str]], after: Iterable[tuple[str, str]]) -> None:
        """Note the files that a call of this session has made: a later one may lose them.

        What was there before and is not the session's own stays a person's, whatever the call has changed of
        it: its mode, its end, or nothing. Where any of that is gone, it may be what lies in a new place.

        Args:
            before: The files that the call could replace, each with its stamp of before the call.
            after: The same files as the call has left them. What has several names is not a file of its own.
        """
        found, stamps_after = dict(before), dict(after)
        others = {path for path, stamp in found.items() if is_there(stamp) and self._left.get(path) != stamp}
        is_moved = any(not is_there(stamps_after[path]) for path in others & stamps_after.keys())
        for path, stamp in stamps_after.items():
            self._left.pop(path, None)  # the latest come last
            if not is_moved and path not in others and is_there(stamp) and is_known(stamp):
                self._left[path] = stamp
        while len(self._left) > _MAX_LEFT:
            del self._left[next(iter(self._left))]

    def revoke(self, grant_id: int) -> Grant | None:
        """Revoke a grant and return it; None if there is none with that id."""
        grant = self._grants.pop(grant_id, None)
        if grant is not None:
            self._on_revoked(grant)
        return grant

    def clear(self) -> None:
        """Revoke all grants."""
        for grant_id in list(self._grants):
            self.revoke(grant_id)


def shape_of(facts: Facts, left_stamps: Mapping[str, str] = MappingProxyType({})) -> Shape | None:
    """Return the shape of a call, or None.

    What still is as it is in `left_stamps` counts as nothing that would be lost; see `Grant.covers`. A call
    has no shape if not everything about it is known, if it names no commands, files or hosts, or if it
    destroys something without naming it.
    """
    if not _is_known(facts) or not (facts.commands or facts.writes or facts.hosts):
        return None
    if facts.effect is Effect.DESTRUCTIVE and not facts.writes:
        return None
    names_its_writes = bool(facts.writes) and _WHOLE.isdisjoint(map(normalize_path, facts.writes))
    if not names_its_writes and any(map(_changes_the_tree, facts.commands)):
        return None  # it changes files that it does not name
    return Shape(
        commands=frozenset(map(_command_prefix, facts.commands)),
        reads=_folders_of(facts.reads, facts.folders) | _folders_of(facts.recorded, facts.recorded),
        writes=_folders_of(facts.writes, facts.folders),
        hosts=frozenset(map(str.lower, facts.hosts)),
        requests=frozenset(_requests_of(facts)) if facts.hosts else frozenset(),
        losses=_folders_of(
            [path for path, stamp in facts.losses if is_there(stamp) and left_stamps.get(path) != stamp],
            facts.folders,
        ),
        settings=frozenset(facts.scripts),
    )


def remember_scopes(prepared: PreparedCall) -> dict[Remember, str]:
    """Return the scopes for which an approval can be remembered, each with exactly what it would allow."""
    name, facts = prepared.original.name, prepared.facts
    if prepared.evaluation.protected:
        names = names_to_allow(prepared.evaluation.protected)
        return {"protected": f"{', '.join(names)} may be written in this workspace"} if names else {}
    if facts.code == "" or "" in dict(facts.scripts).values():
        return {}  # the code that the call runs may differ next time, and no digest would show it
    if not all(map(is_known, dict(bound_sources(facts)).values())):
        return {}  # likewise, what it reads
    if facts.effect is Effect.DESTRUCTIVE and not all(map(is_known, dict(facts.losses).values())):
        return {}  # likewise, what the call removes may differ next time
    scopes: dict[Remember, str] = {"call": f"{name} with exactly these arguments{_while_unchanged(facts)}"}
    if not _is_known(facts):
        return scopes
    limit = f"up to {EFFECT_LABELS[prepared.effect]}"
    shape = shape_of(facts)
    if shape is not None:
        limits = []
        for limited, members in (
            ("running only", sorted(shape.commands)),
            ("reading only", map(_describe_folder, sorted(shape.reads))),
            ("writing only to", map(_describe_folder, sorted(shape.writes))),
            ("replacing only what is in", map(_describe_folder, sorted(shape.losses))),
            ("talking only to", sorted(shape.hosts)),
            ("and only as in", sorted(shape.requests)),
        ):
            if listed := ", ".join(members):
                limits.append(f" {limited} {listed}")
        settings = sorted(dict(shape.settings))
        if facts.losses and not shape.losses:
            limits.append(" replacing nothing")
        are = "is" if len(settings) == 1 else "are"
        unchanged = f", while {summarize_names(settings, 3)} {are} unchanged" if settings else ""
        scopes["shape"] = f"{name}{','.join(limits)}, {limit}{unchanged}"
    is_open = facts.hosts or facts.git_programs or HOME_SETTINGS in dict(facts.scripts)
    is_open = is_open or (prepared.policy.concerns_paths and _may_be_denied(prepared.policy, prepared))
    if not is_open and prepared.effect is not Effect.DESTRUCTIVE:
        place = "on the host" if facts.runs_in == "host" else "in the workspace"
        scopes["tool"] = f"{name} with any arguments, {limit}, {place}"
    return scopes


def _may_be_denied(policy: Policy, prepared: PreparedCall) -> bool:
    """Return whether a rule that denies paths may concern a call, as far as can be told before it runs."""
    call, facts = prepared.original, prepared.facts
    for rule in policy.rules:
        if rule.decision is Decision.DENY and rule.is_about(call.name) and rule.may_hold(call, facts):
            return True
    return any(_may_be_denied(bound, prepared) for bound in policy.bounds)


def _while_unchanged(facts: Facts) -> str:
    """Return how long a grant for exactly this call holds: the end of its description, or an empty text."""
    names = [path for path, digest in facts.scripts if digest not in {MISSING, FOLDER}]
    names = list(
        dict.fromkeys((*names, *(path for path, digest in bound_sources(facts) if digest != MISSING)))
    )
    also = ", and no other code in the workspace is changed" if facts.code is not None else ""
    if names:
        have = "has" if len(names) == 1 else "have"
        return f", while {summarize_names(names, 3)} {have} the present content{also}"
    if facts.effect is Effect.DESTRUCTIVE and facts.losses:
        return f", while what it would remove is as it is now{also}"
    return ", while no code in the workspace is changed" if also else ""


def _is_known(facts: Facts) -> bool:
    """Return whether everything that a call does is known beforehand, and lies in the workspace."""
    return facts.certain and not facts.outside and not facts.unresolved


def names_to_allow(paths: Sequence[str]) -> tuple[str, ...]:
    """Return the names that would allow all of these protected paths; none if one cannot be allowed."""
    names = [name_to_allow(normalize_path(path)) for path in paths]
    return tuple(dict.fromkeys(name for name in names if name)) if all(names) else ()


def _changes_the_tree(command: str) -> bool:
    return " ".join(command.split()[:2]) in _CHANGES_THE_TREE


def _command_prefix(command: str) -> str:
    """Return a command without its details: `git push` for `git push origin main`, `sort` for `sort -u a`.

    Where an option precedes the subcommand, it is unknown which word that is. Then the whole command counts.
    """
    program, _, rest = command.partition(" ")
    if program in _PROGRAMS_OF_RIGHTS:
        # All options and the first other word: `chmod 644 a` is another thing than `chmod 777 a`.
        options = sum(1 for _ in itertools.takewhile(lambda word: word.startswith("-"), rest.split()))
        return " ".join([program, *rest.split()[: options + 1]])
    if program in _MODE_COMES_FIRST:
        return " ".join([program, *rest.split()[:1]])
    if program in _OPTIONS_THAT_TELL:
        return " ".join([program, *_telling_words(rest.split(), *_OPTIONS_THAT_TELL[program])])
    if program not in _PROGRAMS_WITH_SUBCOMMANDS:
        return program
    words = rest.split(maxsplit=2)
    subcommand = words[0] if words else ""
    if subcommand.startswith("-"):
        return command
    if program == "git" and subcommand in _GIT_WITH_ACTIONS and len(words) > 1:
        # `git remote add` is another thing than `git remote remove`.
        return command if words[1].startswith("-") else f"{program} {subcommand} {words[1]}"
    if program == "git":
        # `git branch -C`, `git commit --amend`: the options tell what is lost.
        named = {word.partition("=")[0] for word in rest.split()[1:] if word.startswith("-")}
        return " ".join([program, subcommand, *sorted(named - _QUIET_IN_GIT)]).strip()
    return f"{program} {subcommand}".strip()


def _requests_of(facts: Facts) -> Iterator[str]:
    """Yield the commands that send requests, without the paths of this machine that the facts list."""
    paths = {normalize_path(path) for path in (*facts.reads, *facts.writes)}
    for command in facts.commands:
        program, *words = command.split()
        if program not in _REQUESTING:
            continue
        telling = [program]
        for word in words:
            address, remote = _ADDRESS.match(word), _REMOTE_FILE.fullmatch(word)
            host = word.partition("/")[0]
            if word in _QUIET.get(program, ()) or (
                not word.startswith("-") and normalize_path(word) in paths
            ):
                continue
            if address:
                telling.append(f"{address[1].lower()}/")
            elif remote and not word.startswith("-"):
                telling.append(f"{remote[1]}{remote[2].rpartition('/')[0]}/")
            elif host in facts.hosts or host.partition(":")[0] in facts.hosts:
                telling.append(f"{host}/")
            else:
                telling.append(word)
        yield " ".join(telling)


def _telling_words(words: Sequence[str], letters: str, names: Sequence[str]) -> list[str]:
    """Return those options among some words that a table lists, with their values."""
    telling: list[str] = []
    is_value = False
    for word in words:
        takes_value = False
        if word.startswith("--"):
            option, _, value = word[2:].partition("=")
            # Either may be shorter: an option may be abbreviated, and a name is a beginning.
            meant = [
                name
                for name in names
                if option and (name.startswith(option) or option.startswith(name.rstrip(":")))
            ]
            is_telling, takes_value = bool(meant), any(name.endswith(":") for name in meant) and not value
        else:
            is_telling = word.startswith("-") and not set(letters.replace(":", "")).isdisjoint(word[1:])
            takes_value = is_telling and f"{word[-1]}:" in letters
        if is_telling or is_value:
            telling.append(word)
        is_value = takes_value
    return telling


def _folders_of(paths: Sequence[str], whole: Sequence[str]) -> frozenset[str]:
    """Return the folders that paths lie in; a path that is a `whole` folder is one itself, with a `/`."""
    folders = set()
    for path in paths:
        normal = normalize_path(path)
        folders.add(f"{normal}/" if path in whole else normal.rpartition("/")[0] or ".")
    return frozenset(folders)


def _describe_folder(folder: str) -> str:
    return f"all of {folder.rstrip('/')}" if folder.endswith("/") else folder
