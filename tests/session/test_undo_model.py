"""Random histories against a reference: a list of the states before each call, files and variables.

After every undo and redo the workspace and the variables are those of the reference, or the request was
refused, changed nothing, and named states that can be reached.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aisotools.core.events import VariablesDropped
from aisotools.core.types import ToolResult
from aisotools.policy.approvers import AllowAll
from aisotools.sandbox.host.sandbox import LocalSandbox
from aisotools.session.session import Session
from tests.conftest import OpenSession
from tests.session.variables_fake import Act, VariablesSandbox

Files = dict[str, str]
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
    """

    now: State = field(default_factory=lambda: State({}, {}))
    done: list[Entry] = field(default_factory=list)
    undone: list[Entry] = field(default_factory=list)
    latest: State = field(default_factory=lambda: State({}, {}))

    def call(self, call_id: str, files: Files, values: Values, *, may_set: bool) -> None:
        self.done.append(Entry(call_id, self.now))
        after = State({**self.now.files, **files}, {**self.now.values, **values})
        if may_set or after.files != self.now.files:
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


def read_files(folder: Path) -> Files:
    return {path.name: path.read_text() for path in folder.iterdir()}


async def ask_when_quiet(ask: Callable[..., Awaitable[ToolResult]], **options: Any) -> ToolResult:
    """Undo or redo when forks that were dropped a moment ago, and killed, have ended."""
    while "still runs in the background" in (result := await ask(**options)).content:
        pass
    return result


class History:
    """One random history of a session, and of the reference."""

    def __init__(
        self,
        draw: random.Random,
        session: Session,
        look: Callable[[], Awaitable[Values]],
        act: Callable[[str, Values, Files], Awaitable[ToolResult]],
        evict: Callable[[str], bool] | None = None,
    ) -> None:
        self.draw = draw
        self.session = session
        self.look = look
        self.act = act
        self.evict = evict
        self.model = Model()
        self.calls = self.refused = self.moved = 0

    async def run(self, length: int) -> None:
        # Few calls or many before the first undo: with more than eight, snapshots are thinned out.
        calls = self.draw.choice([0.4, 0.6, 0.9])
        for number in range(length):
            if self.draw.random() < calls or number < 2:
                await self.call()
            else:
                moves = [self.undo, self.undo, self.undo_to, self.redo, self.redo, self.drop]
                await self.draw.choice(moves)()
            if number % 7 == 6:
                calls = self.draw.choice([0.2, 0.6])
            await self.check()

    async def check(self) -> None:
        assert self.session.workspace is not None
        files = read_files(self.session.workspace)
        assert (files, await self.look()) == (self.model.now.files, self.model.now.values)

    async def call(self) -> None:
        self.calls += 1
        call_id = f"c{self.calls}"
        kind = self.draw.choice(["variable", "variable", "file", "both", "nothing", "write", "same"])
        name, content = self.draw.choice("ab"), str(self.calls)
        files = {name: content} if kind in {"file", "both", "write"} else {}
        values = {self.draw.choice("xy"): self.calls} if kind in {"variable", "both"} else {}
        if kind in {"write", "same"}:
            if kind == "same":
                files = {name: self.model.now.files.get(name, content)}
            arguments = {"path": name, "content": files[name]}
            result = await self.session.call("sandbox_write", arguments, call_id=call_id)
            self.model.call(call_id, files, {}, may_set=False)
        else:
            result = await self.act(call_id, values, files)
            self.model.call(call_id, files, values, may_set=True)
        assert not result.is_error, result.content

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
        if self.evict is not None and entries:
            self.evict(self.draw.choice(entries).call_id)

    async def move(self, direction: str, count: int, to: str | None = None) -> None:
        keeps = self.draw.random() < 0.25
        there = self.model.done if direction == "undo" else self.model.undone
        ask: Any = self.session.undo if direction == "undo" else self.session.redo
        options: dict[str, Any] = {"to": to} if to is not None else {"steps": count}
        result = await ask_when_quiet(ask, **options, variables="keep" if keeps else "restore")
        if result.is_error:
            self.refused += 1
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
        self.moved += 1
        if direction == "undo":
            self.model.undo(count, keeps=keeps)
        else:
            self.model.redo(count, keeps=keeps)


async def played(history: History, length: int, name: str) -> History:
    """Run a history and close its session; what is different is an error that names the history."""
    try:
        await history.run(length)
    except AssertionError as error:
        raise AssertionError(name) from error
    await history.session.close()
    return history


async def play(open_session: OpenSession, seed: int, count: int, length: int) -> list[History]:
    """Run random histories on the fake sandbox, each in a session and a workspace of its own."""
    histories = []
    for number in range(count):
        draw = random.Random(f"{seed}-{number}")
        acting = Act()
        folder = Path(open_session.args[1]).with_name(f"w{seed}-{number}")  # type: ignore[attr-defined]  # a partial
        session = open_session(
            workspace=folder, sandbox=VariablesSandbox, approver=AllowAll(), protect_notebooks=False
        )
        session.registry.register(acting.tool)
        await session.start()
        sandbox: Any = session.sandbox
        acting.sandbox = sandbox

        async def act(call_id: str, values: Values, files: Files, session: Session = session) -> ToolResult:
            return await session.call("act", {"variables": values, "files": files}, call_id=call_id)

        async def look(sandbox: Any = sandbox) -> Values:
            return dict(sandbox.variables.values)

        def evict(call_id: str, sandbox: Any = sandbox) -> bool:
            return bool(sandbox.variables.evict(call_id, "the snapshots together took too much memory"))

        history = History(draw, session, look, act, evict)
        histories.append(await played(history, length, f"seed {seed}, history {number}"))
    return histories


async def test_random_histories_are_as_in_the_reference(open_session: OpenSession) -> None:
    histories = [*await play(open_session, 1, 50, 6), *await play(open_session, 2, 10, 24)]
    assert sum(history.moved for history in histories) > 50
    assert sum(history.refused for history in histories) > 15, "and some are refused"
    thinned = [
        event
        for history in histories
        for event in history.session.events
        if isinstance(event, VariablesDropped) and "only some of the older" in event.reason
    ]
    assert thinned


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
async def test_many_histories_are_as_in_the_reference(open_session: OpenSession, seed: int) -> None:
    await play(open_session, 10 + seed, 500, 30)


# ---- with real forks


async def play_real(real_session: OpenSession, seed: int, count: int, length: int) -> list[History]:
    """Run random histories on the real sandbox, each in a session and a workspace of its own."""
    histories = []
    for number in range(count):
        folder = Path(real_session.args[1]).with_name(f"w{seed}-{number}")  # type: ignore[attr-defined]  # a partial
        session = real_session(workspace=folder, approver=AllowAll())
        await session.start()
        sandbox = session.sandbox
        assert isinstance(sandbox, LocalSandbox)

        async def act(call_id: str, values: Values, files: Files, session: Session = session) -> ToolResult:
            lines = [f"{name} = {value}" for name, value in values.items()]
            lines += [f"_ = open({name!r}, 'w').write({content!r})" for name, content in files.items()]
            return await session.call("python", {"code": "\n".join(lines) or "pass"}, call_id=call_id)

        async def look(session: Session = session) -> Values:
            result = await session.call("variables", {})
            assert not result.is_error, result.content
            return {
                row["name"]: int(row["repr"])
                for row in result.value["variables"]
                if row["name"] in {"x", "y"}
            }

        def evict(call_id: str, sandbox: LocalSandbox = sandbox) -> bool:
            store = sandbox.variables._store
            found = store.find(call_id)
            # The fork may still be on its way, which no eviction for memory drops.
            if found is None or found.drop_reason or not found.settled.done():
                return False
            store.evict(found, "the snapshots together took too much memory")
            return True

        history = History(random.Random(f"real {seed}-{number}"), session, look, act, evict)
        histories.append(await played(history, length, f"seed {seed}, history {number}"))
    return histories


async def test_histories_of_real_forks_are_as_in_the_reference(real_session: OpenSession) -> None:
    histories = await play_real(real_session, 1, 3, 16)
    assert sum(history.moved for history in histories) > 5


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_many_histories_of_real_forks_are_as_in_the_reference(real_session: OpenSession) -> None:
    histories = await play_real(real_session, 2, 40, 30)
    assert sum(history.refused for history in histories) > 10
