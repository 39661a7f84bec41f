"""Random histories against a reference: a list of the states before each call, files and variables.

After every call, undo, redo and branch, files and variables are those of the reference; or the request was
refused or failed, changed nothing, and a refusal named states that can be reached. Calls fail and crash, the
disk fails under calls and under moves, snapshots and old checkpoints are evicted.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import os
import random
import stat
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest

from aisotools.core.events import VariablesDropped
from aisotools.core.exceptions import WorkspaceError
from aisotools.core.protocols import ToolPayload
from aisotools.core.sandboxes import SandboxCall
from aisotools.core.types import ToolCall, ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from aisotools.workspace.checkpoints import switching, timeline
from aisotools.workspace.dirfd import exchange, rename_new
from tests.conftest import OpenSession
from tests.pooled import local_sandbox
from tests.session.variables_fake import Act, VariablesSandbox
from tests.waiting import file_times_advance
from tests.workspace.checkpoints.test_timeline_stateful import (
    ACCESS,
    IS_ROOT,
    access_list,
    has_access_lists,
)

HOLE_BYTES = 1 << 16

Files = dict[str, str]
FileChanges = Mapping[str, str | None]
"""What becomes of files: a new content, or None for one that is removed."""
Values = dict[str, int]


@dataclass
class State:
    """Files and variables at one moment."""

    files: Files
    values: Values


@dataclass
class Entry:
    """A call of the history, with the state before it."""

    call_id: str
    before: State


@dataclass
class Model:
    """The reference.

    Attributes:
        now: The present state.
        done: The calls that can be undone, the oldest first.
        undone: Those that can be redone, the next one first.
        latest: The state that the first of the undos has left.
        first: The state before the first call.
    """

    now: State = field(default_factory=lambda: State({}, {}))
    done: list[Entry] = field(default_factory=list)
    undone: list[Entry] = field(default_factory=list)
    latest: State = field(default_factory=lambda: State({}, {}))
    first: State = field(default_factory=lambda: State({}, {}))

    def call(self, call_id: str, files: FileChanges, values: Values, *, may_set: bool) -> None:
        self.done.append(Entry(call_id, self.now))
        texts = {name: text for name, text in {**self.now.files, **files}.items() if text is not None}
        after = State(texts, {**self.now.values, **values})
        # A file that is written has another time, whatever is in it.
        is_written = any(text is not None for text in files.values())
        if may_set or is_written or after.files != self.now.files:
            self.undone.clear()
        self.now = after

    def undo(self, count: int, *, keeps: bool) -> None:
        if not self.undone:
            self.latest = self.now
        taken, self.done = self.done[-count:], self.done[:-count]
        self.undone[:0] = taken
        self._go_to(taken[0].before, keeps=keeps)

    def redo(self, count: int, *, keeps: bool) -> None:
        self.done += self.undone[:count]
        del self.undone[:count]
        self._go_to(self.undone[0].before if self.undone else self.latest, keeps=keeps)

    def _go_to(self, target: State, *, keeps: bool) -> None:
        self.now = State(target.files, self.now.values if keeps else target.values)

    def drop(self, call_ids: Sequence[str]) -> None:
        """Take over which calls can be undone: all of them, or the newest."""
        assert [entry.call_id for entry in self.done][len(self.done) - len(call_ids) :] == [*call_ids]
        del self.done[: len(self.done) - len(call_ids)]

    @property
    def oldest(self) -> State:
        """The state before the oldest call that is known."""
        return next((entry.before for entry in (*self.done, *self.undone)), self.now)


WRITE = f"""
import os

def write(path, text):
    # A new file with what its text names after an `@`: another name of the one that has the same text, or
    # attributes.
    folder, name = os.path.split(os.fspath(path))
    if os.path.lexists(path):
        os.unlink(path)
    traits = text.partition("@")[2].split(",")
    if "link" in traits:
        for other in "ab":
            place = os.path.join(folder, other)
            if other != name and os.path.exists(place):
                with open(place) as file:
                    is_same = file.read().rstrip(chr(0)) == text
                if is_same:
                    os.link(place, path)
                    return
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        if "holes" in traits:
            os.ftruncate(file.fileno(), {HOLE_BYTES})
        if "mark" in traits:
            os.setxattr(file.fileno(), "user.mark", text.encode())
        if "list" in traits:
            os.setxattr(file.fileno(), {ACCESS!r}, {access_list(7)!r})
        if "owner" in traits:
            os.fchown(file.fileno(), 12345, 23456)
        if "mode" in traits:
            os.fchmod(file.fileno(), 0o1640)
        if "lends" in traits:
            os.fchmod(file.fileno(), 0o6755)
    if "time" in traits:
        os.utime(path, ns=(1, 1_000_000_007))
"""
"""The function by which calls write a file."""


def make_writer() -> Callable[[Path, str], object]:
    """Return the function of `WRITE`."""
    found: dict[str, Any] = {}
    exec(WRITE, found)  # it is ours, and is run in a sandbox as well
    write: Callable[[Path, str], object] = found["write"]
    return write


def read_files(folder: Path) -> Files:
    """Return the texts of all files. A trait that a file should have by its text and has not is in it."""
    files = {}
    texts: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        text, status = path.read_text().rstrip("\0"), path.stat()
        traits = set(filter(None, text.partition("@")[2].split(",")))
        with path.open("rb") as file:
            has_holes = bool(status.st_size) and os.lseek(file.fileno(), 0, os.SEEK_HOLE) < status.st_size
        has = {
            "link": texts.setdefault(text, status.st_ino) == status.st_ino,
            "holes": has_holes and status.st_size == HOLE_BYTES,
            "mark": "user.mark" in os.listxattr(path) and os.getxattr(path, "user.mark") == text.encode(),
            "list": ACCESS in os.listxattr(path) and os.getxattr(path, ACCESS) == access_list(7),
            "owner": (status.st_uid, status.st_gid) == (12345, 23456),
            "mode": stat.S_IMODE(status.st_mode) == 0o1640,
            "lends": stat.S_IMODE(status.st_mode) == 0o6755,
            "time": status.st_mtime_ns == 1_000_000_007,
        }
        files[path.name] = text + "".join(f" without {trait}" for trait in sorted(traits) if not has[trait])
    return files


async def ask_when_quiet(ask: Callable[..., Awaitable[ToolResult]], **options: Any) -> ToolResult:
    """Undo or redo when forks that were dropped a moment ago, and killed, have ended."""
    while "in the background and may go on changing files" in (result := await ask(**options)).content:
        pass
    return result


class Place(Protocol):
    """How a kind of sandbox is used."""

    @property
    def traits(self) -> Sequence[str]:
        """What files may be beside their contents."""

    @property
    def endings(self) -> Sequence[str]:
        """How its calls may end besides well: `raises`, or `dies` and has the variables from before back."""

    def connect(self, session: Session) -> None:
        """Be ready for the calls of a session."""

    async def act(
        self, session: Session, call_id: str, values: Values, files: FileChanges, ending: str
    ) -> ToolResult:
        """Change variables and files in one call."""

    async def look(self, session: Session) -> Values:
        """Return the variables."""

    def evict(self, session: Session, call_id: str) -> bool:
        """Drop the variables from before a call, as for memory. Return whether there were some."""

    def break_restore(self, session: Session) -> bool:
        """Let the next restore of variables fail. Return whether that is possible."""

    def mend_restore(self, session: Session) -> None:
        """Let none fail any more."""


class History:
    """One random history of a session, and of the reference."""

    def __init__(
        self,
        draw: random.Random,
        session: Session,
        place: Place,
        counts: Counter[str],
        model: Model | None = None,
    ) -> None:
        self.draw = draw
        self.session = session
        self.place = place
        self.model = model or Model()
        self.counts = counts
        self.prefix = "" if model is None else f"b{counts['branches']}-"
        self.calls = 0

    @property
    def checkpoints(self) -> timeline.Checkpoints:
        history: Any = self.session.history
        found: timeline.Checkpoints = history._checkpoints
        return found

    async def run(self, length: int, *, may_branch: bool = True) -> None:
        # Few calls or many before the first undo: with more than eight, snapshots are thinned out.
        calls = self.draw.choice([0.4, 0.6, 0.9])
        for number in range(length):
            if self.draw.random() < calls or number < 2:
                await self.call()
            else:
                moves = [
                    self.undo,
                    self.undo,
                    self.undo_to,
                    self.redo,
                    self.redo,
                    self.drop,
                    self.list_changes,
                ]
                await self.draw.choice(moves)()
            if number % 7 == 6:
                calls = self.draw.choice([0.2, 0.6])
            await self.check()
            if may_branch and self.draw.random() < 0.02:
                await self.branch(length // 2)
                may_branch = False

    async def check(self) -> None:
        assert self.session.workspace is not None
        files = read_files(self.session.workspace)
        assert (files, await self.place.look(self.session)) == (self.model.now.files, self.model.now.values)
        self.model.drop([step.call_id for step in self.checkpoints.steps])
        undone = [entry.call_id for entry in self.model.undone]
        assert [step.call_id for step in reversed(self.checkpoints.undone)] == undone

    async def call(self) -> None:
        self.calls += 1
        call_id = f"{self.prefix}c{self.calls}"
        kind = self.draw.choice(
            ["variable", "variable", "file", "both", "nothing", "write", "same", "remove"]
        )
        name, content = self.draw.choice("ab"), f"{self.prefix}{self.calls}"
        files: dict[str, str | None] = {name: content} if kind in {"file", "both", "write"} else {}
        values = {self.draw.choice("xy"): self.calls} if kind in {"variable", "both"} else {}
        if kind in {"file", "both"} and self.draw.random() < 0.5:
            traits = sorted(self.draw.sample(self.place.traits, self.draw.randint(1, 2)))
            # Each of these sets the rights of the group, and takes away what another one has set.
            setting = [trait for trait in traits if trait in {"list", "mode", "lends"}]
            traits = [trait for trait in traits if trait not in setting[1:]]
            files[name] = f"{content}@{','.join(traits)}"
            if "link" in traits:
                files = dict.fromkeys("ab", files[name])
        if kind == "remove":
            files = {name: None}
        ending = self.draw.choice([*self.place.endings, *[""] * 8])
        with self.failing_disk(is_due=self.draw.random() < 0.05) as disk:
            if kind in {"write", "same"}:
                ending = ""
                # A file that is written by a tool has no attribute of the one before but its mode.
                if kind == "same" and "@" not in self.model.now.files.get(name, content):
                    files = {name: self.model.now.files.get(name, content)}
                elif kind == "same":
                    files = {name: content}
                result = await self.session.call(
                    "sandbox_write", {"path": name, "content": files[name]}, call_id=call_id
                )
            else:
                result = await self.place.act(self.session, call_id, values, files, ending)
        if "was not run: " in result.content:
            assert disk, result.content
            self.counts["calls refused"] += 1
            return
        assert result.is_error == bool(ending), result.content
        if ending == "dies":
            # Whatever it had assigned is gone with it; the variables from before are back, or about to be.
            assert result.metadata["state_kept"] or result.metadata["state_pending"], result
            values = {}
        self.model.call(call_id, files, values, may_set=kind not in {"write", "same"})
        self.counts[f"calls that {ending or 'end well'}"] += 1

    @contextlib.contextmanager
    def failing_disk(self, *, is_due: bool) -> Iterator[list[str]]:
        """Let the disk take nothing new before the call, and all again after it has begun."""
        failed: list[str] = []
        store: Any = self.checkpoints.store
        begin = self.checkpoints.begin

        def refuse() -> tuple[str, int]:
            failed.append("full")
            raise store._write_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

        def begin_on_full_disk(*arguments: Any, **options: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(store, "_create_temporary", refuse)
                patch.setattr(store, "record", lambda **_: refuse())
                return begin(*arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            if is_due:
                patch.setattr(self.checkpoints, "begin", begin_on_full_disk)
            yield failed

    @contextlib.contextmanager
    def failing_move(self) -> Iterator[list[str]]:
        """Let one rename of a file of the workspace fail, or the reading of what is to be restored."""
        failed: list[str] = []
        store = self.checkpoints.store
        left = self.draw.randrange(3)

        def failing(real: Callable[..., None]) -> Callable[..., None]:
            def rename(*arguments: Any, **options: Any) -> None:
                nonlocal left
                if options.get("src_dir_fd") != store._objects and not failed:
                    if not left:
                        failed.append("rename")
                        raise OSError(errno.EIO, os.strerror(errno.EIO))
                    left -= 1
                real(*arguments, **options)

            return rename

        def unread(digest: str, file: int) -> None:
            failed.append("copy")
            raise WorkspaceError(f"The checkpoint content {digest[:12]} cannot be read ({file}).")

        with pytest.MonkeyPatch.context() as patch:
            if self.draw.random() < 0.7:
                patch.setattr(os, "rename", failing(os.rename))
                patch.setattr(switching, "exchange", failing(exchange))
                patch.setattr(switching, "rename_new", failing(rename_new))
            else:
                patch.setattr(store, "copy", unread)
            yield failed

    async def undo(self) -> None:
        count = self.draw.choice([1, 1, 2, 3, self.draw.randint(1, len(self.model.done) + 2)])
        await self.move("undo", count)

    async def undo_to(self) -> None:
        if self.model.done:
            count = self.draw.randint(1, len(self.model.done))
            await self.move("undo", count, to=self.model.done[-count].call_id)

    async def redo(self) -> None:
        await self.move("redo", self.draw.choice([1, 2, len(self.model.undone) or 1, 30]))

    async def drop(self) -> None:
        entries = [*self.model.done, *self.model.undone]
        if entries:
            self.place.evict(self.session, self.draw.choice(entries).call_id)

    async def list_changes(self) -> None:
        entries = [*self.model.done, *self.model.undone]
        since = self.draw.choice(entries) if entries and self.draw.random() < 0.5 else None
        changes = await self.session.changes(None if since is None else since.call_id)
        if since is not None:
            before = since.before.files
        elif changes.since:
            before = self.model.oldest.files
            self.counts["changes that begin later"] += 1
        else:
            before = self.model.first.files
        now = self.model.now.files
        differing = {name for name in {*before, *now} if before.get(name) != now.get(name)}
        assert {one.path for one in changes} | {one.was for one in changes} - {""} == differing
        self.counts["changes"] += 1

    async def branch(self, length: int) -> None:
        """Go on in a branch for a while; neither sees what the other does."""
        self.counts["branches"] += 1
        branch = await self.session.branch()
        try:
            self.place.connect(branch)
            now = copy.deepcopy(self.model.now)
            other = History(self.draw, branch, self.place, self.counts, Model(now=now, first=now, latest=now))
            await other.check()
            await other.run(length, may_branch=False)
            await self.check()
            await self.call()
            await self.check()
            await other.check()
        finally:
            await branch.close()

    async def move(self, direction: str, count: int, to: str | None = None) -> None:
        keeps = self.draw.random() < 0.25
        there = self.model.done if direction == "undo" else self.model.undone
        ask: Any = self.session.undo if direction == "undo" else self.session.redo
        options: dict[str, Any] = {"to": to} if to is not None else {"steps": count}
        options["variables"] = "keep" if keeps else "restore"
        if self.draw.random() < 0.1:
            file_times_advance()  # else it may be planned anew, and what fails the first time does not then
            with self.failing_move() as failed:
                result = await ask_when_quiet(ask, **options)
            if failed and result.is_error:
                self.counts["moves that failed"] += 1
                return
            # A content that was damaged may have been mended after that, and all of it done once more.
        else:
            breaks = not keeps and self.draw.random() < 0.05 and self.place.break_restore(self.session)
            result = await ask_when_quiet(ask, **options)
            if breaks:
                self.place.mend_restore(self.session)
            if breaks and "the variables could not be restored" in result.content:
                self.counts["moves without variables"] += 1
                return
        if result.is_error:
            self.counts["refused"] += 1
            assert result.error_kind == "invalid", result.content
            await self.check()
            if count > len(there):
                assert ("only" in result.content) == bool(there)
                return
            assert not keeps
            assert "are not kept" in result.content
            offers = result.value["nearest"]
            if not offers:
                return
            count = self.draw.choice(offers)["steps"]
            result = await ask_when_quiet(ask, steps=count)
            assert not result.is_error, f"what a refusal offers can be done: {result.content}"
        assert count <= len(there)
        self.counts["moved"] += 1
        if direction == "undo":
            self.model.undo(count, keeps=keeps)
        else:
            self.model.redo(count, keeps=keeps)


async def play(
    open_session: OpenSession,
    place: Callable[[], Place],
    seed: str,
    count: int,
    length: int,
    *,
    prepare: Callable[[History], object] = lambda _: None,
    **options: Any,
) -> tuple[Counter[str], list[Session]]:
    """Run random histories, each in a session and a workspace of its own. Return what happened, counted."""
    counts: Counter[str] = Counter()
    sessions = []
    for number in range(count):
        folder = Path(open_session.args[1]).with_name(f"w{seed}-{number}")  # type: ignore[attr-defined]  # a partial
        session = open_session(workspace=folder, approver=AllowAll(), protect_notebooks=False, **options)
        used = place()
        await session.start()
        used.connect(session)
        history = History(random.Random(f"{seed}-{number}"), session, used, counts)
        prepare(history)
        try:
            await history.run(length)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, history {number}") from error
        await session.close()
        sessions.append(session)
    print(f"\n{count} histories of {length}, seed {seed!r}: {dict(sorted(counts.items()))}")
    return counts, sessions


class FakePlace:
    """The fake sandbox: its variables are a dictionary."""

    endings = ("raises",)

    def __init__(self) -> None:
        self.acting = Act(write=make_writer())
        self.traits = ["link", "holes", "mark", "mode", "time", "owner" if IS_ROOT else "lends"]

    def connect(self, session: Session) -> None:
        assert session.workspace is not None
        if "list" not in self.traits and has_access_lists(session.workspace.parent):
            self.traits.append("list")
        sandbox: Any = session.sandbox
        self.acting.sandboxes[str(session.workspace)] = sandbox
        if self.acting.tool.name not in session.registry:
            session.registry.register(self.acting.tool)

    async def act(
        self, session: Session, call_id: str, values: Values, files: FileChanges, ending: str
    ) -> ToolResult:
        arguments = {"variables": values, "files": dict(files), "raises": ending == "raises"}
        return await session.call("act", arguments, call_id=call_id)

    async def look(self, session: Session) -> Values:
        sandbox: Any = session.sandbox
        return dict(sandbox.variables.values)

    def evict(self, session: Session, call_id: str) -> bool:
        sandbox: Any = session.sandbox
        return bool(sandbox.variables.evict(call_id, "the snapshots together took too much memory"))

    def break_restore(self, session: Session) -> bool:
        sandbox: Any = session.sandbox
        sandbox.variables.failure = "The worker does not answer."
        return True

    def mend_restore(self, session: Session) -> None:
        sandbox: Any = session.sandbox
        sandbox.variables.failure = ""


def evict_early(history: History) -> None:
    """Let few steps and few contents be kept."""
    checkpoints: Any = history.checkpoints
    checkpoints.kept_bytes = history.draw.choice([60, 250, 1 << 30])


play_fake = partial(play, place=FakePlace, sandbox=VariablesSandbox)


async def test_random_histories_are_as_in_the_reference(open_session: OpenSession) -> None:
    counts, sessions = await play_fake(open_session, seed="1", count=50, length=6)
    more, others = await play_fake(open_session, seed="2", count=10, length=24)
    counts += more
    assert counts["moved"] > 50
    assert counts["refused"] > 15, "and some are refused"
    assert min(counts["calls that raises"], counts["calls refused"], counts["moves that failed"]) > 0, counts
    thinned = [
        event
        for session in (*sessions, *others)
        for event in session.events
        if isinstance(event, VariablesDropped) and "only some of the older" in event.reason
    ]
    assert thinned


async def test_random_histories_with_early_eviction_are_as_in_the_reference(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "KEPT_STEPS", 4)
    monkeypatch.setattr(timeline, "_DROP_SLACK", 1)
    counts, _ = await play_fake(open_session, seed="3", count=15, length=30, prepare=evict_early)
    assert counts["changes that begin later"] > 0, counts


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("eviction", ["usual", "early"])
async def test_many_histories_are_as_in_the_reference(
    open_session: OpenSession, monkeypatch: pytest.MonkeyPatch, seed: int, eviction: str
) -> None:
    """All variants together: two thousand histories."""
    if eviction == "early":
        monkeypatch.setattr(timeline, "KEPT_STEPS", 4)
        monkeypatch.setattr(timeline, "_DROP_SLACK", 1)
    prepare = evict_early if eviction == "early" else lambda _: None
    await play_fake(open_session, seed=f"{eviction} {seed}", count=250, length=30, prepare=prepare)


# ---- with real forks


VARIABLES = ToolPayload(
    key="variables", import_path="aisotools.builtin.python:variables", concurrency="exclusive"
)


class RealPlace:
    """The real sandbox."""

    endings = ("raises", "dies")

    def __init__(self) -> None:
        self.traits = ["link", "holes"]  # the sandbox sets no modes and no extended attributes

    def connect(self, session: Session) -> None:
        if session.level == "isolated" and "time" not in self.traits:  # elsewhere it only pretends to set one
            self.traits.append("time")

    async def act(
        self, session: Session, call_id: str, values: Values, files: FileChanges, ending: str
    ) -> ToolResult:
        lines = [WRITE, *(f"{name} = {value}" for name, value in values.items())]
        for name, content in files.items():
            lines.append(
                f"import os; os.path.exists({name!r}) and os.unlink({name!r})"
                if content is None
                else f"write({name!r}, {content!r})"
            )
        lines.append({"raises": "1 / 0", "dies": "import os; os.kill(os.getpid(), 9)"}.get(ending, "pass"))
        return await session.call("python", {"code": "\n".join(lines)}, call_id=call_id)

    async def look(self, session: Session) -> Values:
        assert session.sandbox is not None
        # Past the gate: at some levels it would count as a step.
        call = ToolCall(uuid.uuid4().hex, "variables", {})
        request = SandboxCall(call=call, shipment=VARIABLES, timeout_s=60, read_only=True)
        result = await session.sandbox.call(request)
        assert not result.is_error, result.content
        return {
            row["name"]: int(row["repr"]) for row in result.value["variables"] if row["name"] in {"x", "y"}
        }

    def evict(self, session: Session, call_id: str) -> bool:
        store = local_sandbox(session).variables._store
        found = store.find(call_id)
        # The fork may still be on its way, which no eviction for memory drops.
        if found is None or found.drop_reason or not found.settled.done():
            return False
        store.evict(found, "the snapshots together took too much memory")
        return True

    def break_restore(self, session: Session) -> bool:
        return False

    def mend_restore(self, session: Session) -> None:
        """Do nothing."""


async def test_histories_of_real_forks_are_as_in_the_reference(real_session: OpenSession) -> None:
    counts, _ = await play(real_session, RealPlace, "real 1", 3, 16)
    assert counts["moved"] > 5


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", ["isolated", "confined", "guarded"])
async def test_many_histories_of_real_forks_are_as_in_the_reference(
    real_session: OpenSession, level: str
) -> None:
    counts, _ = await play(
        real_session, RealPlace, f"real {level}", 100, 30, prepare=evict_early, level=level
    )
    assert counts["refused"] > 10
