"""What the sandbox enforces of the rules about paths, kept as the policy and the workspace are now.

Threat: a rule denies `.env`, which was hidden when the worker started. Then an editor replaces the file, a
branch is checked out, a file appears at the path, or the session gets another policy; code in the sandbox
reads what is there now, and nobody says that the rule does not hold any more.
Mechanism: before each call in the sandbox the denied paths and the folders above them are looked at, each
with one `lstat`, and compared with what they were when they were last enforced: device, inode and change
time, of which code in the sandbox can set none. So are, of files that a rule is about, how many names they
have: a hard link made later is a further path to one. If they differ, or the policy does, the plan is made
again and the sandbox has to follow it (`SupportsPathRules`) before the call runs. The result of the call says
which path was replaced.
Race window: from a replacement until the next call, or at level `isolated` until the supervisor has followed
it (`sandbox.confinement.remounts`), which tells which path it was, so that the result of the next call says
so even if what was there before is back. What an earlier call left running can use it, and a
call that is already running; what they have open stays open. A state that is younger than the clock of the
file system can tell is looked at again. Of the files below a rule's path beyond the first `_MOST_COUNTED` a
new name is found where a call names it (`name_lookup`), and asked about where they are too many to look at; a
call that reads the folder around it is not kept from it, which `enforcement.gaps` says.
Failure: if the sandbox cannot follow, the call does not run, and the error says why. What cannot be enforced
at all is in `enforcement.gaps`, is printed when the policy is loaded or assigned, and stands on cards.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Collection, Mapping
from functools import cache, partial
from glob import escape
from pathlib import Path

from aisotools.core.exceptions import SandboxError, as_clause
from aisotools.core.sandboxes import Sandbox, SupportsPathRules
from aisotools.core.threads import in_thread
from aisotools.core.types import Decision
from aisotools.policy.enforcement import (
    Gap,
    PathEnforcement,
    denied_paths,
    fixed_path,
    glob_below,
    plan_enforcement,
    relative_glob,
    rewrite_globs,
)
from aisotools.policy.rules import Policy, Rule
from aisotools.tools.adapter import supports
from aisotools.workspace.path_lookup import NameOf
from aisotools.workspace.protected import ProtectedFiles
from aisotools.workspace.real_paths import (
    LinkCount,
    count_links,
    find_hard_links,
    is_plain_path,
    is_small,
    links_on_way,
    list_below,
    real_path,
    resolve_links,
)

_log = logging.getLogger(__name__)

_RACY_NS = 50_000_000
"""A change time that is younger than this may stay the same when the file changes once more."""

_MOST_COUNTED = 200
"""Files and folders of one rule of which the names are counted before each call: about half a millisecond."""

_MOST_SEARCHED = 10_000
"""Files of all rules among which one with several names is looked for, when a call names it: some 30 ms."""

_Stamp = tuple[int, int, int]
"""Device and inode, and the change time of what a rule names."""


class PathRules:
    """The rules about paths of one session, and what its sandbox enforces of them.

    Attributes:
        enforcement: What the sandbox enforces, and what it does not.
        has_any: Whether there were rules about paths so far: without any there is nothing to look at.
    """

    def __init__(self, workspace: Path, level: str, home: str = "") -> None:
        """Enforce nothing yet; `follow` comes first, then `connect`.

        Args:
            workspace: The real path of the workspace.
            level: The sandbox's level.
            home: The folder that `~` stands for in a rule; empty if it is not known.
        """
        self._workspace = workspace
        self._home = home
        self._level = level
        self._policy: Policy | None = None
        self._followed = Policy()
        self._stamps: Mapping[str, _Stamp | None] = {}
        self._links_to: dict[str, list[str]] = {}
        """Links in the workspace, each with the denied paths that lead by it."""
        self._is_racy = False
        self._links: dict[str, LinkCount | None] = {}
        """Names of the files that rules are about: with another one there is another path to them."""
        self._uncounted: dict[str, str] = {}
        """Globs of rules that are about more files than are counted, each with where they lie."""
        self.enforcement = PathEnforcement()
        self.has_any = False
        self._sandbox: Sandbox | None = None
        self._follower: SupportsPathRules | None = None
        self._note = ""
        self._files: ProtectedFiles | None = None
        self._applied = self.enforcement
        self._applied_stamps: Mapping[str, _Stamp | None] = {}
        self._lock = asyncio.Lock()
        self._announced: set[str] = set()

    def __repr__(self) -> str:
        return f"<PathRules of {self._workspace}: {len(self._stamps)} paths>"

    def connect(self, sandbox: Sandbox, files: ProtectedFiles) -> None:
        """Enforce the rules in a sandbox that was made for `enforcement`, and put back files of these."""
        self._sandbox, self._files = sandbox, files
        self._follower = sandbox if supports(sandbox, SupportsPathRules) else None
        self._applied, self._applied_stamps = self.enforcement, self._stamps

    def follow(self, policy: Policy) -> Policy:
        """Plan anew what is enforced if the policy is another one, or what its rules name has changed.

        Returns:
            The policy to decide by.
        """
        # Equal ones share their rules, so this compares references.
        if (
            policy == self._policy
            and not self._is_racy
            and self._stamps_now(self._stamps) == self._stamps
            and count_links(self._workspace, self._links) == self._links
        ):
            return self._followed
        self._policy = policy
        self.has_any |= policy.concerns_paths
        # Race: looked at before the plan is made, so that what changes meanwhile is found by the next look.
        self._missing: dict[str, int] = {}
        self._links = {}
        uncounted: dict[str, str] = {}
        followed = rewrite_globs(policy, partial(self._rewrite, uncounted))
        self._uncounted = uncounted  # at once: a look in another thread goes by one plan
        paths = self._name_paths(followed)
        self._stamps = self._stamps_now(dict.fromkeys(paths))
        self._followed, self.enforcement = followed, self._plan(followed)
        return followed

    def name_lookup(self) -> NameOf | None:
        """Return a function that finds which file a rule is about, by the numbers of its device and inode.

        Only files of rules that are about very many are looked for: others are known by all their names. They
        are looked at once, when the function is first called, which may be in another thread.

        Returns:
            The function; None if there are no such rules.
        """
        folders = tuple(dict.fromkeys(self._uncounted.values()))
        if not folders:
            return None
        names: dict[tuple[int, int], str] = {}

        @cache
        def search() -> str | None:
            """Fill `names`. Return what is known of a file without one."""
            names_left = _MOST_SEARCHED
            for real in folders:
                found = list_below(self._workspace, real, names_left)
                names_left -= len(found)
                for path, key in count_links(self._workspace, found).items():
                    if key is not None:
                        names[key[:2]] = path
            return None if names_left > 0 else ""

        def name_of(device: int, inode: int) -> str | None:
            of_others = search()
            return names.get((device, inode), of_others)

        return name_of

    def announce(self) -> None:
        """Print which rules are not enforced, those that were not printed before."""
        for sentence in self.enforcement.not_enforced:
            if sentence not in self._announced:
                self._announced.add(sentence)
                _log.warning("A rule of the policy decides about calls, but %s.", sentence)

    async def enforce(self, name: str, *, is_trial: bool = False) -> str:
        """Have the sandbox follow the rules as they are now, before a call of the tool `name` runs.

        Args:
            name: The tool.
            is_trial: The result of what runs may not be seen, so the next call says what was done.

        Returns:
            What was done, for the result of the call; empty if nothing had to be.

        Raises:
            SandboxError: If it cannot follow; the call must not run.
        """
        if self._policy is None or self._sandbox is None:
            return ""
        self.follow(self._policy)
        if not self._is_applied():
            async with self._lock:
                if not self._is_applied():  # by another call, meanwhile
                    self._note = await self._apply(name) or self._note
        if is_trial:
            return ""
        note, self._note = self._note, ""
        return note

    def _is_applied(self) -> bool:
        if self._follower is not None and self._follower.replaced_paths:
            return False
        return self._applied is self.enforcement or (
            self._applied_stamps == self._stamps and _demands(self._applied) == _demands(self.enforcement)
        )

    async def _apply(self, name: str) -> str:
        wanted, stamps = self.enforcement, self._stamps
        replaced = self._list_replaced(stamps)
        touched: Collection[str] = ()
        assert self._files is not None
        if (wanted.put_back, wanted.unreadable) != (self._applied.put_back, self._applied.unreadable):
            await in_thread(self._files.follow_denied, wanted.put_back, wanted.unreadable)
        has_any = (
            wanted.unreadable or wanted.unwritable or self._applied.unreadable or self._applied.unwritable
        )
        if has_any and self._follower is not None:
            try:
                touched = await self._follower.deny_paths(wanted.unreadable, wanted.unwritable)
            except SandboxError as error:
                what = ", ".join(map(repr, replaced)) or "more than before"
                raise SandboxError(
                    f"{name} was not run: rules of the policy deny {what}, changed since the start of the "
                    f"sandbox, and it cannot be kept from it: {as_clause(error)}. Restart the sandbox, which "
                    "loses its variables, or change the rule."
                ) from error
        self._applied, self._applied_stamps = wanted, stamps
        reported = sorted({*touched} - {*replaced})
        if not (replaced or reported) or self._level != "isolated":
            return ""
        names = ", ".join(map(repr, (*replaced, *reported)))
        note = f"{names}, which a rule of the policy denies, had been replaced"
        if reported:
            note += " or touched"
        _log.info("Before a call of %s: %s. The rule was enforced again.", name, note)
        return f"[Before this call {note}. The rule was enforced again. What ran meanwhile may have read it.]"

    def _list_replaced(self, stamps: Mapping[str, _Stamp | None]) -> list[str]:
        """Return the paths at which there is something else than when the rules were enforced last."""
        denied = {*self._applied.unreadable, *self._applied.unwritable}
        replaced: set[str] = set()
        for path, now in stamps.items():
            before = self._applied_stamps.get(path)
            if now is None or (before is not None and before[:2] == now[:2]):
                continue
            if path in denied:
                replaced.add(path)
            elif before is not None:
                replaced.update(denied.intersection(self._links_to.get(path, ())))
        return sorted(replaced)

    def _rewrite(self, uncounted: dict[str, str], rule: Rule, glob: str) -> tuple[str, ...]:
        """Return a rule's glob with those of what it leads to by links, and of its files' further names.

        One that is about too many files to count is added to `uncounted`.
        """
        spelled = self._spell(glob)
        path = "" if rule.decision is Decision.ALLOW else fixed_path(spelled)
        real = real_path(self._workspace, path) if path else None
        if real is None:
            return (spelled,)  # a rule that allows something never allows more than it says
        below = list_below(self._workspace, real, _MOST_COUNTED + 1)
        if len(below) > _MOST_COUNTED:
            uncounted[spelled] = real
        self._links |= count_links(self._workspace, below[:_MOST_COUNTED])
        names, missing = find_hard_links(self._workspace, real)
        if missing > 0:
            self._missing[spelled] = missing
        aliases = [glob_below(spelled, path, real), *map(escape, names)]
        return tuple(dict.fromkeys((spelled, *aliases)))

    def _spell(self, glob: str) -> str:
        """Return a glob relative to the workspace, also if it has links on the way to it."""
        spelled = relative_glob(glob, (str(self._workspace),), self._home)
        folder = spelled.split("*", 1)[0].split("?", 1)[0].split("[", 1)[0].rpartition("/")[0]
        if spelled.startswith("/") and folder:
            real = resolve_links(folder)
            spelled = relative_glob(f"{real}{spelled[len(folder) :]}", (str(self._workspace),), "")
            if spelled.startswith("/"):
                return glob
        return spelled

    def _plan(self, policy: Policy) -> PathEnforcement:
        plan = plan_enforcement(
            [policy],
            self._level,
            partial(is_plain_path, self._workspace),
            can_copy=partial(is_small, self._workspace),
            leads_to=partial(real_path, self._workspace),
        )
        gaps = [
            Gap(key, glob, f"files of {glob!r} have {count} further names (hard links) that were not found")
            for key, glob in plan.globs | plan.reading_globs
            if (count := self._missing.get(glob))
        ]
        gaps += [
            Gap(
                key,
                glob,
                f"{glob!r} is about more than {_MOST_COUNTED} files; further names of them (hard links) that "
                "are made later are found only where a call names them",
            )
            for key, glob in plan.globs | plan.reading_globs
            if glob in self._uncounted
        ]
        # A further name of one of very many files is out of reach of no call, so the policy decides.
        open_globs = {(gap.key, gap.glob) for gap in gaps if gap.glob in self._uncounted}
        return dataclasses.replace(
            plan,
            gaps=(*plan.gaps, *gaps),
            globs=plan.globs - open_globs,
            reading_globs=plan.reading_globs - open_globs,
        )

    def _name_paths(self, policy: Policy) -> list[str]:
        """Return the paths that rules deny, those that they lead to, the links and folders on the way."""
        paths: list[str] = []
        self._links_to = {}
        for denied in denied_paths(policy):
            links = links_on_way(self._workspace, denied)
            for link in links:
                self._links_to.setdefault(link, []).append(denied)
            for path in filter(None, (denied, real_path(self._workspace, denied), *links)):
                names = path.split("/")
                paths += ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]
        return paths

    def _stamps_now(self, paths: Mapping[str, object]) -> Mapping[str, _Stamp | None]:
        """Return the present state of paths; None where there is nothing."""
        found: dict[str, _Stamp | None] = {}
        youngest_ns = 0
        for path in paths:
            try:
                status = os.lstat(f"{self._workspace}/{path}")
            except (OSError, ValueError):
                found[path] = None
                continue
            youngest_ns = max(youngest_ns, status.st_ctime_ns)
            # Of a folder on the way only which one it is matters, but a move changes its change time too.
            found[path] = (status.st_dev, status.st_ino, status.st_ctime_ns)
        self._is_racy = youngest_ns > time.time_ns() - _RACY_NS
        return found


def _demands(enforcement: PathEnforcement) -> tuple[tuple[str, ...], ...]:
    return enforcement.unreadable, enforcement.unwritable, enforcement.put_back
