"""Which schemas are refused, and that this is found out in bounded time however they are written."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from aisotools.core.exceptions import RegistryError
from aisotools.core.types import ToolResult
from aisotools.tools.patterns import matcher
from aisotools.tools.registry import ToolRegistry
from aisotools.tools.soundness import (
    MAX_SCHEMA_DEPTH,
    BrokenSchema,
    References,
    pattern_flaw,
    schema_flaw,
    size_flaw,
)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"x": schema}}
    return schema


def towered(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"allOf": [schema]}
    return schema


def cyclic() -> dict[str, Any]:
    schema: dict[str, Any] = {"properties": {}}
    schema["properties"]["x"] = schema["properties"]["y"] = schema
    return schema


HOSTILE: Mapping[str, tuple[Callable[[], Any], str]] = {
    "500 deep": (lambda: nested(500), "nested more than 64 deep"),
    "100,000 deep": (lambda: nested(100_000), "nested more than 64 deep"),
    "a tower": (lambda: towered(5_000), "nested more than 64 deep"),
    "cyclic": (cyclic, "more than 20,000 values|nested more than 64"),
    "20,000 properties": (
        lambda: {"properties": {f"p{n}": {} for n in range(20_000)}},
        "more than 20,000 values",
    ),
    "a million values": (
        lambda: {"properties": {"x": {"enum": list(range(10**6))}}},
        "more than 20,000 values",
    ),
    "a huge description": (lambda: {"description": "x" * (64 << 20)}, "more than 1,048,576 characters"),
    "a huge name": (lambda: {"properties": {"x" * (64 << 20): {}}}, "more than 1,048,576 characters"),
    "a web reference": (
        lambda: {"properties": {"x": {"$ref": "http://127.0.0.1:9/s"}}},
        "at properties.x.*not fetched",
    ),
    "a file reference": (lambda: {"$ref": "file:///etc/passwd"}, "outside itself"),
    "a relative reference": (lambda: {"$ref": "other.json"}, "outside itself"),
    "an unknown dialect": (
        lambda: {"$schema": "http://127.0.0.1:9/dialect", "type": "objekt"},
        "at type: 'objekt' is not",
    ),
    "two bases": (
        lambda: {"properties": {"x": {"$id": "http://a.example/", "items": {"$ref": "#/properties/x"}}}},
        "gives them two meanings",
    ),
    "no schema": (lambda: {"properties": {"x": 5}}, "at properties.x: a whole number is not a schema"),
    "a huge number": (
        lambda: {"properties": {"x": {"maxLength": -(10**5000)}}},
        "a whole number is not a whole number from",
    ),
}
"""A function that makes the schema, as some are large, and what is said of it."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_in_bounded_time(name: str) -> None:
    make, message = HOSTILE[name]
    schema = make()
    started_s = time.process_time()
    flaw = schema_flaw(schema)
    assert time.process_time() - started_s < 2
    assert flaw
    assert len(flaw) < 400
    assert re.search(message, flaw)


def test_schemas_that_people_write_are_sound() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://a.example/s",
        "type": "object",
        "properties": {
            "when": {"type": "string", "format": "date-time", "title": "When", "examples": ["2024-02-29"]},
            "old": {"$id": "#/properties/old", "x-own": {"anything": [1]}, "nullable": True},
            "name with ünï": {"$ref": "https://a.example/s#/definitions/n"},
        },
        "definitions": {"n": {"type": ["string", "null"], "pattern": "^[a-z]+$"}},
    }
    assert schema_flaw(schema) == ""
    assert size_flaw(nested(MAX_SCHEMA_DEPTH // 2 - 1)) == ""


def test_references_know_their_schema_only() -> None:
    references = References({"$defs": {"a": {"$anchor": "here"}, "b": [True]}})
    assert references.resolve("#") is not None
    assert references.resolve("#here") == references.resolve("#/$defs/a") == {"$anchor": "here"}
    assert references.resolve("#/$defs/b/0") is True
    for nowhere in ("#/$defs/b/1", "#/$defs/b", "#/$defs/c", "#there", "#/$defs/b/" + "1" * 5_000):
        with pytest.raises(BrokenSchema, match="not there"):
            references.resolve(nowhere)


def test_patterns_that_are_not_searched_for_are_flaws() -> None:
    assert pattern_flaw("b+$") == ""
    assert "look-around" in pattern_flaw("(?=a)")
    assert "3,000 characters when all repetitions are written out" in pattern_flaw("a{0,30000}b")
    assert "about a hundred \\w" in pattern_flaw(r"\w{900}")


@pytest.mark.parametrize("pattern", [r"\w{{30}}{}", r"(?i)[\S]{}", "[ab]{{300}}{}", "a{}"])
@pytest.mark.parametrize(
    "schema",
    [
        lambda patterns: {"properties": {one: {"pattern": one} for one in patterns}},
        lambda patterns: {"patternProperties": dict.fromkeys(patterns, True)},
        lambda patterns: {
            "anyOf": [{"patternProperties": {one: {"pattern": f"^{one}"}}} for one in patterns]
        },
    ],
)
def test_patterns_of_a_schema_have_a_bounded_work_in_all(pattern: str, schema: Any) -> None:
    """Each may be as much as is accepted; the event loop waits for all of them."""
    different = [pattern.format(number) for number in range(2_000)]
    compiled = matcher.cache_info().misses
    assert "take too long to compile" in schema_flaw(schema(different))
    assert matcher.cache_info().misses - compiled < 1_000
    assert schema_flaw(schema(different[:3])) == ""
    assert schema_flaw({"anyOf": [schema(different[:3])] * 500}) == ""  # each is compiled once


class Own:
    """A tool with a schema and no validator."""

    name, description = "own", "Does nothing."

    def __init__(self, schema: Any) -> None:
        self._schema = schema

    def parameters_schema(self) -> Any:
        return self._schema

    async def execute(self, arguments: Any, context: Any) -> ToolResult:
        return ToolResult.success()


def test_a_tool_with_such_a_schema_is_not_registered() -> None:
    for make, _ in HOSTILE.values():
        schema = make()
        if isinstance(schema, dict):
            with pytest.raises(RegistryError, match="the schema of its arguments"):
                ToolRegistry([Own({**schema, "type": "object"} if "type" not in schema else schema)])


STALL = """
import asyncio, sys, time

async def main():
    from aisotools.core.types import ToolCall, ToolResult
    from aisotools.policy.rules import Policy
    from aisotools.tools.registry import ToolRegistry
    from aisotools.tools.adapter import validate_arguments
    import pydantic_core

    class Own:
        name, description = "own", "Does nothing."
        def parameters_schema(self):
            return {"type": "object", "properties": {"x": {"type": "string", "pattern": "^a+$"}}}
        async def execute(self, arguments, context):
            return ToolResult.success()

    longest = 0.0
    async def tick():
        nonlocal longest
        while True:
            before = time.process_time()
            await asyncio.sleep(0)
            longest = max(longest, time.process_time() - before)

    ticking = asyncio.ensure_future(tick())
    await asyncio.sleep(0)
    if "control" in sys.argv:
        started_s = time.process_time()
        while time.process_time() - started_s < 0.1:
            pass
    registry = ToolRegistry([Own()])
    await asyncio.sleep(0)
    validate_arguments(registry["own"], {"x": "aaa"})
    await asyncio.sleep(0)
    ticking.cancel()
    print(longest, "jsonschema" in sys.modules)

asyncio.run(main())
"""


def stall(*options: str) -> tuple[float, str]:
    command = [sys.executable, "-c", STALL, *options]
    longest, imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(longest), imported


def test_the_first_call_of_a_tool_with_a_schema_does_not_hold_up_the_loop() -> None:
    # In processor time, so that a busy machine does not count; a process of its own has imported nothing.
    longest_s, imported = stall()
    assert longest_s < 0.05
    assert imported == "False"
    assert stall("control")[0] > 0.05
