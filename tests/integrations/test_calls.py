"""What the integrations share: calls from any loop, and the images of results."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from aisotools.core.exceptions import UsageError
from aisotools.core.types import Effect, ToolResult
from aisotools.integrations.calls import (
    Image,
    call_blocking,
    call_session_tool,
    check_asking,
    check_schema,
    clean_schema,
    images,
    needs_asking,
)
from aisotools.policy.approvers import AllowAll
from aisotools.testing.fakes import MockTool
from tests.conftest import OpenSession


@pytest.mark.parametrize("asking", ["session", "framework"])
def test_the_parties_that_may_ask(asking: str) -> None:
    check_asking(asking)


def test_nobody_else_may_ask() -> None:
    with pytest.raises(UsageError, match="asking='model'"):
        check_asking("model")


async def test_a_repeated_id_gets_a_new_one(open_session: OpenSession) -> None:
    session = open_session(MockTool(result="ok", effect=Effect.READ_ONLY))
    first = await call_session_tool(session, "mock", {}, call_id="c1")
    again = await call_session_tool(session, "mock", {}, call_id="c1")
    assert first.metadata["call_id"] == "c1"
    assert again.metadata["call_id"] != "c1"
    assert again.content == "ok"


async def test_calls_from_another_loop_and_thread_run_on_the_sessions(open_session: OpenSession) -> None:
    session = open_session(MockTool(result="ok", effect=Effect.READ_ONLY))
    await session.start()

    def elsewhere() -> list[str]:
        assert threading.current_thread() is not threading.main_thread()
        awaited = asyncio.run(call_session_tool(session, "mock", {}))
        return [awaited.content, call_blocking(session, "mock", {}).content]

    assert await asyncio.to_thread(elsewhere) == ["ok", "ok"]


async def test_reasons_for_asking(open_session: OpenSession) -> None:
    session = open_session(
        MockTool("read", effect=Effect.READ_ONLY), MockTool("destroy", effect=Effect.DESTRUCTIVE)
    )
    assert needs_asking(session, "read", {}) is None
    assert needs_asking(session, "destroy", {})
    assert needs_asking(session, "nosuch", {}) is None
    granted = await session.call("destroy", {}, origin="model", approver=AllowAll())
    assert not granted.is_error


def test_images_of_a_result_and_its_displays() -> None:
    png = {"image/png": "AAAA", "image/jpeg": "BBBB"}
    result = ToolResult(
        content="", data=png, metadata={"displays": [{"image/jpeg": "AAAA"}, "odd", {"x": 1}]}
    )
    assert list(images(result)) == [
        Image(mime="image/png", data=b"\0\0\0"),
        Image(mime="image/jpeg", data=b"\0\0\0"),
    ]
    assert next(images(result)).base64 == "AAAA"


@pytest.mark.parametrize("data", [{"image/png": "A"}, {"image/png": 5}, {"image/svg+xml": "<svg/>"}, {}])
def test_data_that_is_no_image_is_skipped(data: Any) -> None:
    assert list(images(ToolResult(content="", data=data))) == []


def test_a_strangers_schema_is_taken_if_it_can_be_read() -> None:
    sound = {"type": "object", "properties": {"x": {"pattern": "(?=a)"}}}
    assert check_schema("theirs", sound) is sound
    with pytest.raises(UsageError, match=r"'theirs' cannot be taken .* outside itself"):
        check_schema("theirs", {"type": "object", "$ref": "http://127.0.0.1:9/"})


HIDDEN = [*"\u202e\x1b\x00\u200b\u2066\ufeff\x7f\x9b\U000e0041\u2028\ud800"]
PLACES: dict[str, Any] = {
    "a property": {"properties": {"aX": {}}},
    "a property of a property": {"properties": {"a": {"properties": {"bX": {}}}}},
    "a property named enum": {"properties": {"enum": {"enum": ["X"]}}},
    "a required name": {"required": ["aX"]},
    "an enum": {"properties": {"a": {"enum": ["b", "aX"]}}},
    "a const": {"properties": {"a": {"const": "aX"}}},
    "a default": {"properties": {"a": {"default": "aX"}}},
    "a text in a const": {"properties": {"a": {"const": {"description": "X"}}}},
    "a name in a default": {"properties": {"a": {"default": {"X": 1}}}},
    "a pattern": {"properties": {"a": {"pattern": "X"}}},
    "a pattern of names": {"patternProperties": {"X": {}}},
    "a format": {"properties": {"a": {"format": "X"}}},
    "a type": {"properties": {"a": {"type": "X"}}},
    "a definition": {"$defs": {"X": {}}},
    "a reference": {"properties": {"a": {"$ref": "#/$defs/X"}}},
    "an unknown keyword": {"x-X": 1},
    "the value of an unknown keyword": {"x-note": "X"},
    "a choice": {"anyOf": [{"const": "X"}]},
    "a name that others depend on": {"dependentRequired": {"a": ["X"]}},
}


def put(node: Any, hidden: str) -> Any:
    if isinstance(node, str):
        return node.replace("X", hidden)
    if isinstance(node, list):
        return [put(item, hidden) for item in node]
    if isinstance(node, dict):
        return {put(key, hidden): put(value, hidden) for key, value in node.items()}
    return node


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
def test_characters_that_nobody_sees_are_refused_where_a_model_would_send_them(hidden: str) -> None:
    for place, schema in PLACES.items():
        with pytest.raises(ValueError, match=rf"its schema has U\+{ord(hidden):04X}, which nobody sees"):
            clean_schema(put(schema, hidden))
        assert clean_schema(put(schema, "e\u0301 \u3000\xa0x")), f"the control: {place}"
    with pytest.raises(UsageError, match="'theirs' cannot be taken"):
        check_schema("theirs", {"type": "object", "properties": {f"a{hidden}": {}}})


@pytest.mark.parametrize("hidden", HIDDEN, ids=ascii)
def test_characters_that_nobody_sees_are_escaped_in_texts_for_people(hidden: str) -> None:
    text = f"a{hidden}b"
    part = {"title": text, "description": text, "$comment": text, "examples": [text, {text: [text]}]}
    cleaned = clean_schema({"properties": {"title": part, "description": part}, **part})
    assert hidden not in repr(cleaned).encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")
    assert hidden not in str(cleaned["properties"]["title"]["description"])
    assert cleaned["title"].startswith("a\\u")


def test_line_ends_and_tabs_are_values() -> None:
    schema = {"properties": {"separator": {"enum": [",", "\t", "\r\n"], "default": "\n"}}}
    assert clean_schema(schema) == schema
