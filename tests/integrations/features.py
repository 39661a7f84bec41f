"""What is tried on every dialect and bridge, and how each bridge is driven."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import Tool, ToolContext
from aisotools.core.types import Effect, ToolResult
from aisotools.policy.approvers import AllowAll, DenyAll
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry
from tests.waiting import HANG_S, loop_turns

Cell = str
Open = Callable[..., Session]
"""Makes a session of these tools and options."""


# ---- one tool for each kind of schema; each says what it got


class Point(BaseModel):
    x: float
    y: float


class Line(BaseModel):
    start: Point
    end: Point


class Node(BaseModel):
    value: int
    children: list[Node]


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


@tool(effect=Effect.READ_ONLY)
def objects(point: Point) -> str:
    """Take a point."""
    return f"{point.x} {point.y}"


@tool(effect=Effect.READ_ONLY)
def nested(line: Line) -> str:
    """Take a line."""
    return f"{line.start.x} {line.end.x}"


@tool(effect=Effect.READ_ONLY)
def recursive(tree: Node) -> str:
    """Take a tree."""
    return f"{tree.value} {tree.children[0].children[0].value}"


@tool(effect=Effect.READ_ONLY)
def unions(value: int | list[str] | None) -> str:
    """Take one of several types."""
    return repr(value)


@tool(effect=Effect.READ_ONLY)
def discriminated(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> str:
    """Take a pet."""
    return type(pet).__name__


@tool(effect=Effect.READ_ONLY)
def dicts(counts: dict[str, int]) -> str:
    """Take counts by name."""
    return repr(counts)


@tool(effect=Effect.READ_ONLY)
def tuples(pair: tuple[int, str]) -> str:
    """Take a pair."""
    return repr(pair)


@tool(effect=Effect.READ_ONLY)
def enums(colour: Colour) -> str:
    """Take a colour."""
    return colour.name


@tool(effect=Effect.READ_ONLY)
def formats(day: date) -> str:
    """Take a day."""
    return str(day.year)


@tool(effect=Effect.READ_ONLY)
def bounds(share: Annotated[float, Field(ge=0, le=1)], word: Annotated[str, Field(max_length=3)]) -> str:
    """Take numbers and texts within bounds."""
    return f"{share} {word}"


@tool(effect=Effect.READ_ONLY)
def defaults(first: int, second: int = 7) -> str:
    """Take one or two numbers."""
    return f"{first} {second}"


@tool(name="geo.area", effect=Effect.READ_ONLY)
def dotted(side: int) -> int:
    """Area of a square."""
    return side * side


@tool(effect=Effect.READ_ONLY)
def context(side: int, context: ToolContext) -> str:
    """Take the context too."""
    return f"{side} {bool(context.session_key)}"


TREE = {"value": 1, "children": [{"value": 2, "children": [{"value": 3, "children": []}]}]}

KINDS: Mapping[str, tuple[Tool, dict[str, Any], str]] = {
    "objects": (objects, {"point": {"x": 1.5, "y": 2}}, "1.5 2.0"),
    "nested objects": (nested, {"line": {"start": {"x": 1, "y": 0}, "end": {"x": 2, "y": 0}}}, "1.0 2.0"),
    "recursion": (recursive, {"tree": TREE}, "1 3"),
    "unions and null": (unions, {"value": ["a"]}, "['a']"),
    "discriminated unions": (discriminated, {"pet": {"kind": "dog", "tricks": []}}, "Dog"),
    "dicts": (dicts, {"counts": {"a": 1}}, "{'a': 1}"),
    "tuples": (tuples, {"pair": [1, "a"]}, "(1, 'a')"),
    "enums": (enums, {"colour": "blue"}, "BLUE"),
    "formats": (formats, {"day": "2024-02-29"}, "2024"),
    "bounds": (bounds, {"share": 0.5, "word": "abc"}, "0.5 abc"),
    "defaults": (defaults, {"first": 1}, "1 7"),
    "names that a provider rejects": (dotted, {"side": 3}, "9"),
    "context, filled in": (context, {"side": 3}, "3 True"),
}
"""Feature → its tool, arguments, and what it then says."""

BEHAVIOUR = (
    "errors that a model can mend",
    "denials told apart",
    "images",
    "structured values",
    "progress",
    "approval by the session",
    "approval by the framework",
    "arguments edited in the approval",
    "cancelling reaches the tool",
    "callers in other threads",
    "the other direction",
    "the schema as it is",
)
FEATURES = (*KINDS, *BEHAVIOUR)
assert len(FEATURES) == 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a framework got of one call.

    Attributes:
        text: What its model reads.
        error: Empty, or how the framework was told: `words` alone, or the kind.
        pictures: How many.
        value: The structured value, where the framework has a place for it.
    """

    text: str
    error: str = ""
    pictures: int = 0
    value: Any = None


class Bridge:
    """One framework, driven as its users drive it; what it has no way for stays None."""

    name = ""
    blocks_a_thread = False
    """Its calls wait in a thread, which nobody can cancel."""

    async def call(self, session: Session, name: str, arguments: dict[str, Any]) -> Seen:
        raise NotImplementedError

    def schema(self, session: Session) -> Mapping[str, Any] | None:
        """The schema of a session's one tool as the framework's model gets it."""
        raise NotImplementedError

    progress: Callable[[Session, str], Awaitable[list[str]]] | None = None
    asked: Callable[[Session, str, dict[str, Any]], Awaitable[Seen]] | None = None
    threaded: Callable[[Session, str, dict[str, Any]], Awaitable[Seen]] | None = None
    other: Callable[[Session], Awaitable[Seen]] | None = None


@dataclass(slots=True)
class Slow:
    """A tool that waits, and knows whether it was cancelled."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, _arguments: Any, _context: Any) -> ToolResult:
        self.started.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return ToolResult.text("it was not cancelled")


def dialect_cell(feature: str, provider: Any, *, strict: bool | None = None) -> Cell:
    """Whether a dialect tells the tool as it is; arguments find their way back in any case."""
    if feature not in KINDS:
        return "-"
    tool_, arguments, _ = KINDS[feature]
    exports = ToolRegistry([tool_]).exports(provider, strict=strict)
    changes = next(iter(exports)).changes
    name = exports[0]["function"]["name"] if "function" in exports[0] else exports[0]["name"]
    back, restored = exports.back(name, in_dialect(arguments, provider))
    try:
        tool_.validate_arguments(restored)  # type: ignore[attr-defined]  # function tools validate by themselves
    except ToolError:
        return "no"
    if back != tool_.name or "context" in json.dumps(exports[0].get("parameters", {})):
        return "no"
    if any(change.path == "strict" for change in changes):
        return "not strict"
    actions = {change.action for change in changes}
    return next((action for action in ("dropped", "weakened", "changed") if action in actions), "yes")


def in_dialect(arguments: dict[str, Any], provider: str) -> dict[str, Any]:
    """The arguments as that provider's model writes them: where it has no free-form objects, as JSON text."""
    if provider == "gemini" and "counts" in arguments:
        return {"counts": json.dumps(arguments["counts"])}
    return arguments


async def bridge_cell(bridge: Bridge, feature: str, open_one: Open) -> Cell:
    """What holds of one feature on one bridge, found by trying."""
    if feature in KINDS:
        tool_, arguments, message = KINDS[feature]
        seen = await bridge.call(open_one(tool_, approver=AllowAll()), tool_.name, arguments)
        return "yes" if not seen.error and message in seen.text else "no"
    return await _BEHAVIOUR[feature](bridge, open_one)


async def _mend(bridge: Bridge, open_one: Open) -> Cell:
    seen = await bridge.call(open_one(objects, approver=AllowAll()), "objects", {"point": {"x": "far"}})
    if "point.x" not in seen.text:
        return "no"
    return "yes" if seen.error not in {"", "words"} else "in words"


async def _denied(bridge: Bridge, open_one: Open) -> Cell:
    change = MockTool("change", effect=Effect.LOCAL_MUTATION)
    seen = await bridge.call(open_one(change, approver=DenyAll("not now")), "change", {})
    if "not now" not in seen.text:
        return "no"
    return "yes" if seen.error in {"denied", "final"} else "in words"


async def _images(bridge: Bridge, open_one: Open) -> Cell:
    from tests.integrations.tools import picture

    seen = await bridge.call(open_one(picture, approver=AllowAll()), "picture", {})
    return "yes" if seen.pictures == 1 else "no"


async def _values(bridge: Bridge, open_one: Open) -> Cell:
    fact = MockTool("fact", effect=Effect.READ_ONLY, result=ToolResult.json({"a": [1]}, "one a"))
    seen = await bridge.call(open_one(fact), "fact", {})
    return "yes" if seen.value == {"a": [1]} else "no"


async def _progress(bridge: Bridge, open_one: Open) -> Cell:
    if bridge.progress is None:
        return "no"

    async def telling(_arguments: Any, context: ToolContext) -> ToolResult:
        context.emit("step", message="half")
        return ToolResult.text("done")

    session = open_one(MockTool("tell", effect=Effect.READ_ONLY, result=telling))
    return "yes" if "half" in await bridge.progress(session, "tell") else "no"


def _change() -> MockTool:
    return MockTool(
        "change",
        effect=Effect.LOCAL_MUTATION,
        runs_in="sandbox",
        result=lambda arguments, _context: f"changed {dict(arguments)}",
    )


async def _by_session(bridge: Bridge, open_one: Open) -> Cell:
    from aisotools.policy.approvers import ScriptedApprover

    approver = ScriptedApprover(["approve"])
    seen = await bridge.call(open_one(_change(), approver=approver), "change", {"n": 1})
    return "yes" if len(approver.requests) == 1 and "changed {'n': 1}" in seen.text else "no"


async def _by_framework(bridge: Bridge, open_one: Open) -> Cell:
    if bridge.asked is None:
        return "no"
    approver = None if bridge.name == "MCP" else DenyAll()  # there the client's person is the approver
    seen = await bridge.asked(open_one(_change(), approver=approver), "change", {"n": 1})
    return "yes" if "changed {'n': 1}" in seen.text else "no"


async def _edited(bridge: Bridge, open_one: Open) -> Cell:
    from aisotools.core.types import Approval
    from aisotools.policy.approvers import ScriptedApprover

    approver = ScriptedApprover([Approval("approve", arguments={"n": 2})])
    seen = await bridge.call(open_one(_change(), approver=approver), "change", {"n": 1})
    return "yes" if "changed {'n': 2}" in seen.text else "no"


async def _cancel(bridge: Bridge, open_one: Open) -> Cell:
    slow = Slow()
    session = open_one(MockTool("wait", effect=Effect.READ_ONLY, result=slow))
    await session.start()
    running = asyncio.ensure_future(bridge.call(session, "wait", {}))
    await asyncio.wait_for(slow.started.wait(), HANG_S)
    running.cancel()
    if bridge.blocks_a_thread:
        await asyncio.wait([running])
        await loop_turns(20)
    else:
        await asyncio.wait_for(slow.cancelled.wait(), HANG_S)
    if slow.cancelled.is_set():
        await asyncio.wait([running])
        return "yes"
    await session.interrupt()
    await asyncio.wait_for(slow.cancelled.wait(), HANG_S)
    return "by session.interrupt()"


async def _threads(bridge: Bridge, open_one: Open) -> Cell:
    if bridge.threaded is None:
        return "no"
    session = open_one(dotted, approver=AllowAll())
    await session.start()
    return "yes" if "9" in (await bridge.threaded(session, "geo.area", {"side": 3})).text else "no"


async def _other(bridge: Bridge, open_one: Open) -> Cell:
    if bridge.other is None:
        return "no"
    session = open_one(MockTool("own"), approver=AllowAll())
    return "yes" if "9" in (await bridge.other(session)).text else "no"


async def _schema(bridge: Bridge, open_one: Open) -> Cell:
    exported = bridge.schema(open_one(recursive))
    return "yes" if exported == recursive.parameters_schema() else "no"


_BEHAVIOUR: Mapping[str, Callable[[Bridge, Open], Awaitable[Cell]]] = dict(
    zip(
        BEHAVIOUR,
        (
            *(_mend, _denied, _images, _values, _progress, _by_session, _by_framework, _edited),
            *(_cancel, _threads, _other, _schema),
        ),
        strict=True,
    )
)
