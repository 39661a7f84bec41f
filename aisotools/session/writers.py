"""Who writes in the workspace while a call runs, as far as the host can tell.

`aisotools.workspace.checkpoints.authorship` says what follows from it, and why: threat, mechanism, race
window and failure. This module has the two kinds of evidence: what built-in file tools name, and when nothing
has run in the sandboxes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from itertools import filterfalse

from aisotools.core.threads import in_thread, start_in_thread
from aisotools.core.types import ToolResult
from aisotools.policy.prepared import PreparedCall
from aisotools.sandbox.host.activity import IdleTimes, Observation
from aisotools.session.guards import is_file_tool
from aisotools.session.sharing import SharedWorkspace
from aisotools.session.undo_results import explain_host_work, explain_others
from aisotools.workspace.checkpoints.authorship import Authorship, Evidence, TimeSpan, parse_names
from aisotools.workspace.checkpoints.steps import Checkpoint
from aisotools.workspace.checkpoints.store import content_digest
from aisotools.workspace.checkpoints.tree import TreePath

_LOOK_INTERVAL_S = 0.1
"""How often it is looked whether anything runs in the sandboxes, during a call."""

_MOST_NAMED_INLINE = 100
"""Paths that a call may name for its changes to be compared on the event loop."""

LONG_CALL_S = 1.0
"""A call that takes so long names what it has changed: a person may well have saved a file meanwhile."""


class WriterWatch:
    """Watches for other writers during the calls of one session."""

    def __init__(self, shared: SharedWorkspace) -> None:
        """Watch the sandboxes that share a workspace."""
        self._shared = shared
        self._running: dict[str, CallWriters] = {}

    def __repr__(self) -> str:
        return f"<WriterWatch of {len(self._running)} calls>"

    def begin(self, prepared: PreparedCall) -> None:
        """Watch from now on during a call, whose checkpoint is about to be taken."""
        named = None
        facts = prepared.facts
        if facts.runs_in == "sandbox":
            if prepared.only_touches_files and facts.certain and not facts.outside:
                named = parse_names(facts.writes)
            else:
                self._shared.has_run_code = True
        writers = CallWriters(self._shared, named, _content_of(prepared), on_host=facts.runs_in == "host")
        # Calls that overlap: what each of them changes lies between the checkpoints of all.
        for other in self._running.values():
            writers.overlapping.append(other)
            other.overlapping.append(writers)
        self._running[prepared.original.id] = writers

    def stop(self, call_id: str) -> CallWriters:
        """Look no more what runs during a call, which is over. Return what was seen."""
        writers = self._running[call_id]
        writers.stop()
        return writers

    def end(self, call_id: str) -> None:
        """Forget a call, after the workspace was looked at once more: it overlaps with no further call."""
        self._running.pop(call_id).stop()


def _content_of(prepared: PreparedCall) -> dict[TreePath, str]:
    """Return the digest of what a call writes as a whole, by path, whether it succeeds or not."""
    content = prepared.arguments.get("content")
    if is_file_tool(prepared, "sandbox_write", "write") and isinstance(content, str):
        digest = content_digest(content.encode("utf-8", "surrogatepass"))
        return dict.fromkeys(parse_names(prepared.facts.writes) or (), digest)
    return {}


class CallWriters:
    """What is known about who writes while one call runs.

    Attributes:
        own: Paths that it changes itself; None if it does not say.
        written: Digests of what it writes as a whole, by path.
        on_host: Whether it runs outside of the sandboxes, where nobody looks when it runs.
        looks: How often it was looked what runs.
        host_work: The earlier calls that have left something running on the host.
        overlapping: The calls that have run at the same time, and may have written to the same files.
    """

    def __init__(
        self,
        shared: SharedWorkspace,
        named: frozenset[TreePath] | None,
        written: Mapping[TreePath, str],
        *,
        on_host: bool = False,
    ) -> None:
        self.own = named
        self.written = written
        self.on_host = on_host
        self.overlapping: list[CallWriters] = []
        self.host_work = shared.find_host_work()
        self.looks = 0
        self._is_over = False
        self._shared = shared
        self._idle = IdleTimes()
        self._began_s = time.monotonic()
        self._next = asyncio.get_running_loop().call_later(_LOOK_INTERVAL_S, self._look)

    def __repr__(self) -> str:
        return f"<CallWriters: {len(self.idle_spans)} idle spans>"

    def find_evidence(self) -> Evidence:
        """Return what is known by now, without what has changed."""
        named, beside = self.own, frozenset[TreePath]()
        for call in self.overlapping:
            if named is None or call.own is None:
                named, beside = None, frozenset()  # what one of them does not say may be anything
                break
            beside |= call.own - named
        authorship = Authorship(named=named, beside=beside, is_certain=not self._shared.has_run_code)
        if any(call.on_host for call in (self, *self.overlapping)):
            return Evidence(authorship=authorship)
        return Evidence(
            authorship=authorship,
            idle=self.idle_spans,
            unwritten=self.unwritten_spans,
            contents=self.contents,
        )

    @property
    def contents(self) -> dict[TreePath, frozenset[str]]:
        """Return the digests of what it and calls that overlap write as a whole, by path.

        Nothing is known of a path to which one of them may write something else.
        """
        contents: dict[TreePath, frozenset[str]] = {}
        others: list[TreePath] = []
        for call in (self, *self.overlapping):
            if call.own is None:
                return {}
            for path, digest in call.written.items():
                contents[path] = contents.get(path, frozenset()) | {digest}
            others += filterfalse(call.written.__contains__, call.own)
        for other in others:
            for path in [path for path in contents if path[: len(other)] == other]:
                del contents[path]
        return contents

    @property
    def idle_spans(self) -> tuple[TimeSpan, ...]:
        """Return when nothing of the sandboxes has run."""
        return tuple(self._idle.spans)

    @property
    def unwritten_spans(self) -> tuple[TimeSpan, ...]:
        """Return when nothing of the sandboxes has written into a file, as far as can be told."""
        return tuple(self._idle.unwritten)

    def _look(self) -> None:
        # In a thread: a process that begins another program holds up whoever looks at it, see `IdleTimes`.
        looking = start_in_thread(self._idle.observe, [*self._shared.supervisors()])
        looking.add_done_callback(self._note)

    def _note(self, looking: asyncio.Future[Observation]) -> None:
        seen = looking.result()
        # Race: the call may have ended during the look, and what it has changed be judged already.
        if self._is_over:
            return
        self.looks += 1
        if self._idle.note(seen):
            self._next = asyncio.get_running_loop().call_later(_LOOK_INTERVAL_S, self._look)

    def stop(self) -> None:
        """Look no more. Doing so again has no effect."""
        self._is_over = True
        self._next.cancel()

    async def name_others(self, step: Checkpoint, result: ToolResult, *, inline: bool) -> ToolResult:
        """Return a result that says what else has changed, as far as anybody can tell or nobody can.

        Args:
            step: What the call has changed.
            result: The call's result.
            inline: Whether there are so few files that the event loop can compare them itself.
        """
        if self.host_work:
            result = explain_host_work(result, self.host_work)
        authorship = step.authorship
        took_long = time.monotonic() - self._began_s >= LONG_CALL_S
        # One that timed out names what it has changed in any case.
        is_open = authorship.named is None and took_long and result.metadata.get("timed_out") is not True
        if authorship.named is None and not (authorship.seen or authorship.visited or is_open):
            return result
        # What other calls have changed that ran at the same time is in their results.
        step = dataclasses.replace(step, authorship=authorship.together())
        compare = self._shared.checkpoints.changes_by_author
        is_quick = inline and len(step.authorship.named or ()) <= _MOST_NAMED_INLINE
        changes = compare(step) if is_quick else await in_thread(compare, step)
        return explain_others(result, changes, names_all=is_open)
