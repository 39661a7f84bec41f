"""The tools of MCP servers in our registry: servers that behave, and servers that do not."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import types

from aisotools.core.exceptions import ArgumentError, SignatureError, ToolError, UsageError
from aisotools.core.types import Approval, Effect, ToolResult
from aisotools.integrations.mcp.api import McpServer, add_mcp_server, serve_http
from aisotools.integrations.mcp.tools import OfferedTool, RemoteTool, ToolRejected, offer_of, our_name
from aisotools.integrations.mcp.transport import environment
from aisotools.policy.approvers import AllowAll, ScriptedApprover
from aisotools.policy.rules import Policy
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from aisotools.tools.registry import ToolRegistry
from tests.conftest import OpenSession
from tests.integrations.tools import picture, shape_area

STRANGER = [sys.executable, "-S", str(Path(__file__).parents[1] / "stranger.py")]


async def stranger(session: Session, how: str = "plain", **options: Any) -> McpServer:
    return await add_mcp_server(session.registry, "s", command=[*STRANGER, how], session=session, **options)


@pytest.fixture
def trusting(open_session: OpenSession) -> Session:
    return open_session(MockTool("own"), approver=AllowAll())


# ---- servers that behave


async def test_a_servers_tools_are_ours_until_the_session_ends(trusting: Session) -> None:
    server = await stranger(trusting, "old")
    assert (server.tools, server.protocol, server.state) == (("s_act",), "2024-11-05", "connected")
    tool = trusting.registry["s_act"]
    assert tool.description == "[MCP server s] Acts."
    assert (await trusting.call("s_act", {"x": "1"})).content == "call 1"
    await trusting.close()
    await server.close()
    assert server.state == "closed"
    assert "s_act" not in trusting.registry
    assert not any(command_of(pid).endswith("stranger.py old") for pid in children())


def children() -> list[int]:
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text("ascii")
    return [int(pid) for pid in found.split()]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


async def test_over_http_with_pictures_values_and_our_own_server(
    open_session: OpenSession, tmp_path: Path
) -> None:
    theirs = open_session(shape_area, picture)
    ours = open_session(MockTool("own"), workspace=tmp_path / "ours", approver=AllowAll())
    async with serve_http(theirs) as http:
        server = await add_mcp_server(ours.registry, "far", url=http.url, token=http.token, session=ours)
        assert server.protocol == "2026-07-28"
        area = await ours.call("far_shape_area", {"shape": {"width": 2, "height": 3}})
        assert (area.content, area.value) == ("6.0", {"result": 6.0})
        assert "image/png" in (await ours.call("far_picture")).data
        wrong = await ours.call("far_shape_area", {"shape": {"width": "wide"}})
        assert wrong.is_error
        assert http.token not in repr(server) + ours.registry["far_picture"].description
        (asked, *_) = [event for event in ours.events if event.kind == "approval_asked"]
        assert asked.request.level == "host"  # type: ignore[attr-defined]  # it is an ApprovalAsked
        assert asked.request.facts.hosts == ("127.0.0.1",)  # type: ignore[attr-defined]  # likewise
        await server.close()


async def test_a_restarted_server_is_found_again(open_session: OpenSession, tmp_path: Path) -> None:
    theirs = open_session(shape_area)
    ours = open_session(MockTool("own"), workspace=tmp_path / "ours", approver=AllowAll())
    token, arguments = "t" * 40, {"shape": {"width": 1}}
    async with serve_http(theirs, token=token) as http:
        server = await add_mcp_server(ours.registry, "far", url=http.url, token=token, session=ours)
        assert not (await ours.call("far_shape_area", arguments)).is_error
    down = await ours.call("far_shape_area", arguments)
    assert (down.is_error, down.error_kind) == (True, "environment")
    async with serve_http(theirs, token=token, port=int(http.url.split(":")[2].split("/")[0])):
        assert not (await ours.call("far_shape_area", arguments)).is_error
        await server.close()


# ---- what it may do


async def test_hints_loosen_nothing_and_only_a_persons_word_does(open_session: OpenSession) -> None:
    approver = ScriptedApprover(["deny", "approve"])
    session = open_session(MockTool("own"), approver=approver)
    server = await stranger(session)  # whose tool claims to be read only
    assert (await session.call("s_act")).error_kind == "denied"
    assert approver.requests[0].effect is Effect.LOCAL_MUTATION
    assert set(approver.requests[0].preview["remember"]) == {"call"}
    typed = await session.call("s_act", origin="person")
    assert not typed.is_error
    assert len(approver.requests) == 2  # it runs on the host: typing alone is no consent
    await server.close()
    session.policy = Policy(mode="plan")
    server = await stranger(session, effects={"act": Effect.READ_ONLY})
    assert not (await session.call("s_act")).is_error
    assert len(approver.requests) == 2
    await server.close()


async def test_a_tool_that_changes_loses_every_approval_and_declaration(open_session: OpenSession) -> None:
    approver = ScriptedApprover([Approval("approve", remember="call"), "deny"])
    session = open_session(MockTool("own"), approver=approver)
    server = await stranger(session, "rug")
    before = session.registry["s_act"]
    assert not (await session.call("s_act", {"x": "1"})).is_error  # after which it changes
    async with asyncio.timeout(10):
        while session.registry["s_act"] is before:  # noqa: ASYNC110 - a server tells in its own time
            await asyncio.sleep(0.01)
    assert (await session.call("s_act", {"x": "1"})).error_kind == "denied"
    assert len(approver.requests) == 2
    assert "sends your files" in approver.requests[1].definition.description
    await server.close()


async def test_a_declaration_is_for_the_tool_that_was_there(trusting: Session) -> None:
    server = await stranger(trusting, "rug", effects={"act": "read_only"})
    before = trusting.registry["s_act"]
    assert isinstance(before, RemoteTool)
    await trusting.call("s_act")
    async with asyncio.timeout(10):
        while trusting.registry["s_act"] is before:  # noqa: ASYNC110 - a server tells in its own time
            await asyncio.sleep(0.01)
    after = trusting.registry["s_act"]
    assert isinstance(after, RemoteTool)
    assert (before.effect, after.effect, server.undeclared) == (Effect.READ_ONLY, None, {"act"})
    late = await before.execute({}, None)  # type: ignore[arg-type]  # it does not come to that
    assert (late.is_error, late.error_kind) == (True, "denied")
    await server.close()


# ---- servers that do not behave


async def test_giant_answers_end_the_connection_and_not_the_host(trusting: Session) -> None:
    server = await stranger(trusting, "giant")
    result = await trusting.call("s_act")
    assert (result.is_error, result.error_kind) == (True, "environment")
    assert "more than 32 MiB" in result.content
    await server.close()


async def test_endless_lists_are_cut(trusting: Session) -> None:
    server = await stranger(trusting, "endless")
    assert len(server.tools) == 256
    await server.close()


async def test_noise_forged_progress_and_answers_to_others_change_nothing(trusting: Session) -> None:
    server = await stranger(trusting, "noise")
    result = await trusting.call("s_act", timeout_s=30)
    assert result.content == "call 1"
    told = [event for event in trusting.events if event.kind == "call_emitted"]
    assert 1 <= len(told) <= 500
    assert all("\u202e" not in event.payload["message"] for event in told)  # type: ignore[attr-defined]  # CallEmitted
    assert all(len(event.payload["message"]) < 2_100 for event in told)  # type: ignore[attr-defined]  # CallEmitted
    await server.close()


async def test_a_server_that_dies_is_told_and_started_again(trusting: Session, tmp_path: Path) -> None:
    server = await stranger(trusting, "die")
    lost = await trusting.call("s_act", {"x": str(tmp_path / "died")})
    assert (lost.is_error, lost.error_kind) == (True, "environment")
    assert "not known" in lost.content
    assert (await trusting.call("s_act", {"x": str(tmp_path / "died")})).content == "call 1"
    await server.close()


async def test_calls_have_deadlines(trusting: Session) -> None:
    server = await stranger(trusting, "sleep")
    began = time.monotonic()
    result = await trusting.call("s_act", timeout_s=0.3)
    assert result.is_error
    assert "longer than 0.3 s" in result.content
    assert time.monotonic() - began < 5
    await server.close()
    assert time.monotonic() - began < 10


async def test_answers_that_are_none_and_questions_that_are_not_for_servers(trusting: Session) -> None:
    server = await stranger(trusting, "junk")
    assert "no MCP result" in (await trusting.call("s_act")).content
    await server.close()
    server = await stranger(trusting, "asking")
    assert (await trusting.call("s_act")).content == "True True True"
    await server.close()


async def test_an_output_schema_is_not_run_against_the_answer(trusting: Session) -> None:
    server = await stranger(trusting, "output")
    began = time.monotonic()
    result = await trusting.call("s_act")
    assert result.value == {"s": "a" * 40 + "!"}
    assert time.monotonic() - began < 5
    await server.close()


async def test_names_are_made_fit_and_clashes_told(open_session: OpenSession) -> None:
    session = open_session(MockTool("s_taken"))
    server = await stranger(session, "names")
    assert len(server.tools) == 3
    assert server.tools[0] == "s_a_b"
    assert server.tools[1].startswith("s_a_b_")
    assert len(server.tools[2]) == 64
    assert "Two tools are named 's_taken'" in server.refused["taken"]
    await server.close()
    assert session.registry.list() == [session.registry["s_taken"]]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"command": ["/no/such/program"]}, "cannot be started"),
        ({"command": [sys.executable, "-c", "import sys; sys.exit('no luck today')"]}, "no luck today"),
        ({"command": []}, "name a program"),
        ({"command": "npx server"}, "give a list of words"),
        ({}, "exactly one"),
        ({"url": "ftp://a.example"}, "no address"),
        ({"url": "http://a.example/mcp", "token": "x"}, "use https"),
        ({"url": "https://me:secret@a.example/mcp"}, "Leave name and password out"),
        ({"command": ["x"], "effects": {"a": "harmless"}}, "no effect"),
    ],
)
async def test_what_cannot_be_added_is_told(how: dict[str, Any], told: str) -> None:
    registry = ToolRegistry()
    with pytest.raises((UsageError, ToolError), match=told):
        await add_mcp_server(registry, "s", **how)
    assert not registry.list()


async def test_a_name_must_be_one() -> None:
    with pytest.raises(SignatureError):
        await add_mcp_server(ToolRegistry(), "a b", command=["x"])


def test_the_environment_is_an_allow_list() -> None:
    given = {"PATH": "/bin", "OPENAI_API_KEY": "secret", "LD_PRELOAD": "x", "HOME": "/h"}
    assert environment(given, {"TOKEN": "t"}) == {"PATH": "/bin", "HOME": "/h", "TOKEN": "t"}


# ---- what a server says about a tool


def told(**schema: Any) -> types.Tool:
    return types.Tool(name="t", description="d\u202e\x1b[2J" + "x" * 9_000, input_schema=schema)


def test_descriptions_are_cleaned_and_short() -> None:
    offer = offer_of(told(type="object", properties={"description": {"description": "a\u202eb"}}))
    assert "\u202e" not in offer.description
    assert len(offer.description) == 4_000
    assert offer.schema["properties"]["description"]["description"] == "a\\u202eb"


def chain(length: int) -> dict[str, Any]:
    """Each definition names the next one twice: spelled out, that is 2 ** length."""

    def next_two(n: int) -> dict[str, Any]:
        return {"properties": {side: {"$ref": f"#/$defs/d{n + 1}"} for side in "ab"}}

    defs = {f"d{n}": next_two(n) for n in range(length)} | {f"d{length}": {}}
    return {"type": "object", "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": defs}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (chain(40), "no end"),
        (nested(60), "nested more than"),
        ({"type": "object", "properties": {f"p{n}": {"enum": ["x" * 50]} for n in range(2_000)}}, "64 KiB"),
        ({"type": "object", "$ref": "file:///etc/passwd"}, "outside itself"),
        ({"type": "object", "properties": {"x": {"$ref": "http://a.example/s"}}}, "outside itself"),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/no"}}}, "not there"),
        ({"type": "object", "properties": {"x": {"$dynamicRef": "#a"}}}, "not followed"),
        ({"type": "object", "properties": {"x": {"type": "strnig"}}}, "broken"),
        ({"type": "array"}, "of type 'object'"),
    ],
)
def test_schemas_that_are_none_or_have_no_end_are_not_taken(schema: dict[str, Any], why: str) -> None:
    began = time.monotonic()
    with pytest.raises(ToolRejected, match=why):
        offer_of(told(**schema))
    assert time.monotonic() - began < 5


def remote(**schema: Any) -> RemoteTool:
    async def never(tool: RemoteTool, arguments: Any, context: Any) -> ToolResult:
        raise AssertionError

    offer = OfferedTool(name="t", description="d", schema={"type": "object", **schema}, digest="0")
    return RemoteTool(offer, name="t", server="s", origin="o", host="", declared=None, execute=never)


def test_arguments_are_checked_but_never_by_a_strangers_pattern() -> None:
    evil = {"type": "string", "pattern": "^(a+)+$"}
    tool = remote(
        properties={"s": evil, "n": {"type": "integer"}},
        patternProperties={"^(a+)+$": {"type": "string"}},
        additionalProperties=False,
        required=["n"],
    )
    began = time.monotonic()
    hostile = {"s": "a" * 40 + "!", "n": 1, "a" * 40 + "!": "x"}
    assert tool.validate_arguments(hostile) == hostile
    with pytest.raises(ArgumentError, match="n is missing"):
        tool.validate_arguments({"s": "a"})
    with pytest.raises(ArgumentError, match="integer"):
        tool.validate_arguments({"n": "1"})
    assert time.monotonic() - began < 2


def test_a_schema_that_grows_with_the_arguments_is_given_up() -> None:
    twice = {"$ref": "#/$defs/a"}
    tool = remote(
        properties={"x": twice}, **{"$defs": {"a": {"properties": {"x": {"allOf": [twice, twice, twice]}}}}}
    )
    deep: dict[str, Any] = {}
    for _ in range(60):
        deep = {"x": deep}
    began = time.monotonic()
    assert json.dumps(tool.validate_arguments(deep)) == json.dumps(deep)
    assert time.monotonic() - began < 2


def test_names_are_unique_and_legal() -> None:
    taken: set[str] = set()
    names = [our_name("s", name, taken) for name in ("a b", "a/b", "a_b", "ü", "x" * 200, "x" * 201)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 64 and name.isascii() for name in names)
