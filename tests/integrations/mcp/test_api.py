"""add_mcp_server and serve_http: what they accept, and what ends with the session."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("mcp")

from aisotools.core.exceptions import SignatureError, ToolError, UsageError
from aisotools.core.types import Effect
from aisotools.integrations.mcp.api import add_mcp_server, serve_http
from aisotools.integrations.mcp.tools import RemoteTool
from aisotools.policy.approvers import AllowAll
from aisotools.testing.fakes import MockTool
from aisotools.tools.registry import ToolRegistry
from tests.conftest import OpenSession


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"command": ["/no/such/program"]}, "cannot be started"),
        ({"command": [sys.executable, "-c", "import sys; sys.exit('no luck today')"]}, "no luck today"),
        ({"command": []}, "name a program"),
        ({"command": "npx server"}, "give a list of words"),
        ({}, "exactly one"),
        ({"url": "ftp://a.example"}, "not the address of an MCP server"),
        ({"url": "http://a.example/mcp", "token": "x"}, "Use https"),
        ({"url": "https://me:secret@a.example/mcp"}, "Leave name and password out"),
        ({"command": ["x"], "effects": {"a": "harmless"}}, "is not an effect"),
    ],
)
async def test_malformed_servers_are_refused(options: dict[str, Any], message: str) -> None:
    registry = ToolRegistry()
    with pytest.raises((UsageError, ToolError), match=message):
        await add_mcp_server(registry, "s", **options)
    assert not registry.list()


async def test_a_name_must_be_one() -> None:
    with pytest.raises(SignatureError):
        await add_mcp_server(ToolRegistry(), "a b", command=["x"])


@pytest.mark.parametrize("token", ["x y\n", "caf\u00e9"])
async def test_a_token_must_fit_into_a_header(token: str) -> None:
    with pytest.raises(UsageError, match="visible ASCII"):
        await add_mcp_server(ToolRegistry(), "s", url="https://a.example", token=token)
    with pytest.raises(UsageError, match="needs url="):
        await add_mcp_server(ToolRegistry(), "s", command=["x"], token="t")


async def test_a_server_ends_with_its_session(open_session: OpenSession) -> None:
    offering = open_session(MockTool("own"), approver=AllowAll())
    using = open_session(approver=AllowAll())
    async with serve_http(offering) as http:
        server = await add_mcp_server(
            using.registry,
            "s",
            url=http.url,
            token=http.token,
            effects={"own": "read_only"},
            session=using,
        )
        assert "s_own" in server.tools
        tool = using.registry["s_own"]
        assert isinstance(tool, RemoteTool)
        assert tool.classify({}) is Effect.READ_ONLY
        await using.start()
        await using.close()
        assert server.state == "closed"
        assert not server.tools
        await server.close()
