"""Conversion between MCP's tools and results and ours; a server is hostile."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import types

from aisotools.core.concurrency import at_once
from aisotools.core.exceptions import ArgumentError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Effect, ToolResult
from aisotools.integrations.mcp.tools import (
    META,
    OfferedTool,
    Offers,
    RemoteTool,
    ToolRejected,
    check_offer,
    check_offers,
    from_mcp_result,
    local_name,
    to_mcp_result,
    to_mcp_tool,
)
from aisotools.tools.export import PROVIDERS
from aisotools.tools.registry import ToolRegistry

MARKED = r"(?s){prefix}\[untrusted ([0-9a-f]{{12}}): [^\n]*\]\n{text}\n\[end of untrusted \1\]"

# ---- what a server says about a tool


def listing(**schema: Any) -> dict[str, Any]:
    return {"name": "t", "description": "d\u202e\x1b[2J" + "x" * 9_000, "inputSchema": schema}


def test_descriptions_are_cleaned_and_short() -> None:
    offer = check_offer(listing(type="object", properties={"description": {"description": "a\u202eb"}}))
    assert "\u202e" not in offer.description
    assert len(offer.description) == 4_000
    assert offer.schema["properties"]["description"]["description"] == "a\\u202eb"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a\u202eb": {}}},
        {"properties": {"a": {"enum": ["x\x1b[2J"]}}},
        {"properties": {"a": {"default": "x\u200b"}}},
        {"properties": {"a": {"const": "\u2066"}}},
        {"required": ["a\u202e"]},
    ],
)
def test_a_tool_whose_names_or_values_nobody_sees_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ToolRejected, match=r"its schema has U\+[0-9A-F]{4}, which nobody sees"):
        check_offer(listing(type="object", **schema))


def test_titles_and_examples_are_escaped() -> None:
    offer = check_offer(
        listing(title="a\u202eb", properties={"a": {"title": "\x1b[2J", "examples": ["\u200b"]}})
    )
    shown = json.dumps(offer.schema, ensure_ascii=False)
    assert not {"\u202e", "\x1b", "\u200b"} & set(shown)
    assert offer.schema["title"] == "a\\u202eb"


def chain(length: int) -> dict[str, Any]:
    """Each definition names the next one twice: spelled out, that is 2 ** length."""

    def next_two(n: int) -> dict[str, Any]:
        return {"properties": {side: {"$ref": f"#/$defs/d{n + 1}"} for side in "ab"}}

    defs = {f"d{n}": next_two(n) for n in range(length)} | {f"d{length}": {}}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs}


def line(length: int) -> dict[str, Any]:
    return {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)} | {f"d{length}": {}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (chain(40), "no end"),
        ({"type": "object", "properties": {f"p{n}": {} for n in range(20_000)}}, "more than 20,000 values"),
        ({"type": "object", "properties": {"x": {"enum": list(range(10**6))}}}, "more than 20,000 values"),
        ({"type": "object", "description": "x" * (40 << 20)}, "more than 1,048,576 characters"),
        ({"type": "object", "$ref": "#"}, "without end"),
        ({"type": "object", "allOf": [{"anyOf": [{"$ref": "#/allOf/0"}]}]}, "without end"),
        ({"type": "object", "$schema": 5}, "at .schema: a whole number is not a text"),
        ({"type": "object", "$schema": "http://a.example/d", "required": "x"}, "at required"),
        (nested(60), "nested more than"),
        (nested(5_000), "nested more than"),
        ({"type": "object", "properties": {f"p{n}": {"enum": ["x" * 50]} for n in range(2_000)}}, "64 KiB"),
        ({"type": "object", "$ref": "file:///etc/passwd"}, "outside itself"),
        ({"type": "object", "properties": {"x": {"$ref": "http://a.example/s"}}}, "outside itself"),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/no"}}}, "not there"),
        (
            {"type": "object", "properties": {"x": {"$dynamicRef": "#a", "$dynamicAnchor": "a"}}},
            "without end",
        ),
        (
            {"type": "object", "$dynamicAnchor": "a", "properties": {"x": {"$dynamicRef": "#a"}}},
            "not followed",
        ),
        ({"type": "object", "properties": {"x": {"type": "strnig"}}}, "broken"),
        ({"type": "array"}, "of type 'object'"),
    ],
)
def test_schemas_that_are_none_or_have_no_end_are_not_taken(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolRejected, match=message):
        check_offer(listing(**schema))


def test_a_long_line_of_references_is_followed_without_recursion() -> None:
    offer = check_offer(
        listing(type="object", properties={"x": {"$ref": "#/$defs/d0"}}, **{"$defs": line(1_500)})
    )
    tool = remote(**offer.schema)
    assert tool.validate_arguments({"x": 1}) == {"x": 1}
    for provider in PROVIDERS:
        assert ToolRegistry([tool]).exports(provider)


def remote(**schema: Any) -> RemoteTool:
    async def never(tool: RemoteTool, arguments: Any, context: Any) -> ToolResult:
        raise AssertionError

    offer = OfferedTool(name="t", description="d", schema={**schema, "type": "object"}, digest="0")
    return RemoteTool(offer, name="t", server="s", origin="o", host="", declared=None, execute=never)


def test_arguments_are_checked_but_never_by_a_strangers_pattern() -> None:
    evil = {"type": "string", "pattern": "^(a+)+$"}
    tool = remote(
        properties={"s": evil, "n": {"type": "integer"}},
        patternProperties={"^(a+)+$": {"type": "string"}},
        additionalProperties=False,
        required=["n"],
    )
    hostile = {"s": "a" * 40 + "!", "n": 1, "a" * 40 + "!": "x"}
    assert tool.validate_arguments(hostile) == hostile
    with pytest.raises(ArgumentError, match="n is missing"):
        tool.validate_arguments({"s": "a"})
    with pytest.raises(ArgumentError, match="integer"):
        tool.validate_arguments({"n": "1"})


def test_a_schema_that_grows_with_the_arguments_is_given_up() -> None:
    twice = {"$ref": "#/$defs/a"}
    tool = remote(
        properties={"x": twice}, **{"$defs": {"a": {"properties": {"x": {"allOf": [twice, twice, twice]}}}}}
    )
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"x": deep}
    assert json.dumps(tool.validate_arguments(deep)) == json.dumps(deep)


def test_names_are_unique_and_legal() -> None:
    taken: set[str] = set()
    names = [local_name("s", name, taken) for name in ("a b", "a/b", "a_b", "ü", "x" * 200, "x" * 201)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 64 and name.isascii() for name in names)


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "its name is empty"), ("x" * 129, "its name has 129 characters, more than the 128 allowed")],
)
def test_names_have_a_length(name: str, message: str) -> None:
    with pytest.raises(ToolRejected, match=message):
        check_offer({"name": name, "inputSchema": {"type": "object"}})


def test_the_digest_covers_all_but_meta_and_icons() -> None:
    def digest(**more: Any) -> str:
        return check_offer({"name": "t", "inputSchema": {"type": "object"}, **more}).digest

    assert digest() == digest(_meta={"count": 1})
    assert digest() != digest(title="T")
    assert digest() != digest(annotations={"readOnlyHint": True})
    assert digest() != digest(outputSchema={"type": "object"})


@pytest.mark.parametrize(
    ("host", "declared", "effect", "certain"),
    [
        ("", None, Effect.LOCAL_MUTATION, False),
        ("a.example", None, Effect.REMOTE_ACTION, False),
        ("a.example", Effect.READ_ONLY, Effect.READ_ONLY, True),
        ("", Effect.DESTRUCTIVE, Effect.DESTRUCTIVE, False),
    ],
)
def test_facts_come_from_the_declaration_and_the_place(
    host: str, declared: Effect | None, effect: Effect, certain: bool
) -> None:
    tool = remote_tool(host, declared)
    facts = tool.gather_facts({})
    assert (tool.classify({}), facts.effect, facts.certain, facts.outside) == (
        effect,
        effect,
        certain,
        not certain,
    )
    assert facts.hosts == ((host,) if host else ())
    assert tool.version != remote_tool(host, declared, digest="1").version


async def executed(tool: RemoteTool, arguments: Any, context: Any) -> ToolResult:
    return ToolResult.json({"tool": tool.name, "arguments": dict(arguments)})


def remote_tool(host: str, declared: Effect | None, digest: str = "0") -> RemoteTool:
    offer = OfferedTool(name="t", description="d", schema={"type": "object"}, digest=digest)
    return RemoteTool(
        offer, name="s_t", server="s", origin="o", host=host, declared=declared, execute=executed
    )


async def test_a_call_goes_to_the_server() -> None:
    tool = remote_tool("", None)
    result = await tool.execute({"a": 1}, ToolContext())
    assert result.value == {"tool": "s_t", "arguments": {"a": 1}}
    assert re.fullmatch(MARKED.format(prefix=r"\[MCP server s\] ", text="d"), tool.description)
    assert repr(tool) == "<tool s_t (host) from MCP server s: o>"


# ---- results


def test_results_for_clients() -> None:
    plain = to_mcp_result(ToolResult(content="text", value="text"))
    assert (plain.structured_content, plain.meta, plain.is_error) == (None, None, False)
    assert to_mcp_result(ToolResult.json({"a": 1})).structured_content == {"a": 1}
    assert to_mcp_result(ToolResult.json([1])).structured_content == {"result": [1]}
    error = to_mcp_result(ToolResult.error("no", recoverable=False, error_kind="denied"))
    assert error.is_error
    assert error.meta == {f"{META}/errorKind": "denied", f"{META}/recoverable": False}
    binary = to_mcp_result(ToolResult.binary(b"abc", "application/x-data").with_metadata(call_id="c"))
    resource = binary.content[1]
    assert isinstance(resource, types.EmbeddedResource)
    assert str(resource.resource.uri) == "aisotools://result/c"


def answer(*content: types.ContentBlock, **more: Any) -> ToolResult:
    return converted(types.CallToolResult(content=list(content), **more).model_dump(by_alias=True))


IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


def converted(result: dict[str, Any]) -> ToolResult:
    return at_once(from_mcp_result(result, "s"))


def test_results_of_servers() -> None:
    text = types.TextContent(type="text", text="hello")
    image = types.ImageContent(type="image", data="AAAA", mime_type="image/png")
    link = types.ResourceLink(type="resource_link", uri="file:///x", name="x", description="the file")
    assert re.fullmatch(MARKED.format(prefix="", text="hello"), answer(text).content)
    assert (answer(text).kind, answer(text).value) == ("text", "hello")
    assert answer(text).metadata == {"server": "s", "untrusted": True}
    structured = answer(structured_content={"a": 1})
    assert (structured.kind, structured.value) == ("json", {"a": 1})
    assert '"a"' in structured.content
    picture = answer(image)
    assert (picture.kind, picture.data) == ("binary", {"image/png": "AAAA"})
    assert re.fullmatch(MARKED.format(prefix="", text=r"\[image/png, 3 bytes\]"), picture.content)
    assert answer(text, image, image).metadata["displays"] == ({"image/png": "AAAA"},)
    assert re.fullmatch(
        MARKED.format(prefix="", text=r"\[resource file:///x: the file\]"), answer(link).content
    )


def test_errors_of_servers() -> None:
    failed = answer(is_error=True)
    assert (failed.is_error, failed.recoverable, failed.error_kind) == (True, True, "failed")
    assert failed.content == "s reports that the call failed, without a reason."


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({}, "its content is None, not a list"),
        ({"content": {"a": 1}}, "its content is an object, not a list"),
        ({"content": [], "resultType": ["x"]}, "its resultType is a list, not 'complete'"),
        (
            {"content": [{"type": "text", "texx": 1}]},
            r"part 1 of its content \('text'\) is unknown or mal",
        ),
        ({"content": [{"type": "text", "text": "a"}, 5]}, r"part 2 of its content \(5\) is unknown"),
        ({"content": [{"type": "image", "data": "AAAA"}]}, r"part 1 of its content \('image'\)"),
        ({"content": [{"type": "resource_link", "uri": "a"}]}, r"part 1 of its content \('resource_link'\)"),
        ({"content": [{"type": "resource", "resource": {"uri": "a"}}]}, "malformed"),
        ({"content": [{"type": "resource", "resource": [1]}]}, "malformed"),
        ({"content": [{"type": {"a": 1}}]}, r"\(an object\)"),
        ({"content": [1] * 20_001}, "has 20,001 parts, more than the 20,000 that are read; ask for fewer"),
        ({"content": [IMAGE] * 1_001}, "more than 1,000 images and sounds; ask for fewer"),
    ],
    ids=range(12),
)
def test_results_that_are_none(result: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        converted(result)


def test_resources_and_large_values_become_text() -> None:
    text = {"type": "resource", "resource": {"uri": "a", "text": "inside"}}
    blob = {"type": "resource", "resource": {"uri": "b", "blob": "AAAA"}}
    audio = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    link = {"type": "resource_link", "uri": "c", "name": "n", "description": ["no text"]}
    result = converted({"content": [text, blob, audio, link]})
    for part in ("inside", "[resource b, 3 bytes]", "[audio/wav, 3 bytes]", "[resource c: n]"):
        assert f"\n{part}\n" in result.content
    rows = [[number, "\u00e9", None, 0.5] for number in range(3_000)]
    result = converted({"content": [], "structuredContent": {"rows": rows}})
    assert result.value == {"rows": rows}
    assert '\n{"rows":[[0,"\u00e9",null,0.5],[1,' in result.content


VALUES: list[Any] = [
    {},
    [],
    {"a": [], "b": {}, "c": [{}, [[]]]},
    {"a": [1, -2.5, 1e300, True, False, None, ""], 'k"\n\u00e9': {"\u0001": "\u202e\U0001f600"}},
    [10**299, 10**4_000],
    {"t": 'a"\\\n\u00e9' * 100_000, "k" * 300_000: ["x" * 131_072, "y" * 131_073]},
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_result_without_content_is_the_json_of_its_value(value: Any) -> None:
    result = converted({"content": [], "structuredContent": value})
    text = result.content.partition("]\n")[2].rpartition("\n[")[0]
    assert text == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert result.value == value


def test_integers_of_a_value_have_a_limit() -> None:
    for value in ([10**400] * 100, {"a": [10**299] * 5_000}, {"a": [{"b": -(10**4_000)}] * 100}):
        assert converted({"content": [], "structuredContent": value}).value == value
    for value in ([10**400] * 101, {"a": [{"b": -(10**4_000)}] * 101}):
        for content in ([], [{"type": "text", "text": "a"}]):
            with pytest.raises(ValueError, match="more than 100 integers of hundreds of digits"):
                converted({"content": content, "structuredContent": value})


def test_names_of_refused_tools_are_cut() -> None:
    offers = Offers()
    assert check_offers([{"name": "\u202e" * 5_000}], offers) == []
    (label,) = offers.refused
    assert len(label) <= 128
    assert "5,000 characters" in offers.refused[label]


def test_a_tool_is_listed_with_its_effect() -> None:
    tool = remote_tool("", Effect.READ_ONLY)
    listed = to_mcp_tool(tool, {"name": "t", "inputSchema": {"type": "object"}})
    assert listed.meta == {f"{META}/effect": "read_only"}
