"""The door to providers, against a local server that speaks their formats and fails in their ways."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="needs the extra [models]")

from aisotools.agent.agent import Agent
from aisotools.agent.budgets import Budgets
from aisotools.agent.models.provider import ProviderModel, provider_model
from aisotools.core.events import ModelRetried, ModelStreamed
from aisotools.core.exceptions import ModelError, UsageError
from aisotools.core.messages import (
    AssistantMessage,
    CallDelta,
    CallPart,
    Finished,
    Message,
    ModelEvent,
    TextDelta,
    ThinkingPart,
    ToolMessage,
    Usage,
    UserMessage,
)
from aisotools.core.types import Effect, ToolDefinition, ToolResult
from aisotools.testing.fakes import MockTool
from tests.agent.models.fake_provider import FakeProvider, Reply, anthropic, chat, chat_call, fake_provider
from tests.agent.rules import assert_no_orphans, assert_sound
from tests.conftest import OpenSession
from tests.waiting import HANG_S, eventually

KEY = "sk-test-1234567890abcdefghij"
LOOK = ToolDefinition("look", "Look.", {"type": "object", "properties": {"n": {"type": "integer"}}})
USED = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def openai(provider: FakeProvider, **more: Any) -> ProviderModel:
    return provider_model("openai:gpt-5", api_key=KEY, base_url=provider.url + "/v1", **more)


def claude(provider: FakeProvider, **more: Any) -> ProviderModel:
    return provider_model("anthropic:claude-opus-4-8", api_key=KEY, base_url=provider.url, **more)


def ollama(provider: FakeProvider, **more: Any) -> ProviderModel:
    return provider_model("ollama:qwen3", base_url=provider.url + "/v1", environ={}, **more)


async def events(model: ProviderModel, *messages: Any, instructions: str = "") -> list[ModelEvent]:
    asked = messages or (UserMessage("Hi."),)
    try:
        return [event async for event in model.request(asked, [LOOK], instructions=instructions)]
    finally:
        await model.close()


def look(**given: Any) -> MockTool:
    return MockTool("look", effect=Effect.READ_ONLY, parameters=LOOK.parameters, **given)


async def test_text_is_streamed_and_counted() -> None:
    reply = Reply(chat({"role": "assistant", "content": "Hel"}, {"content": "lo."}, usage=USED))
    async with fake_provider(reply) as provider:
        received = await events(openai(provider), instructions="Be kind.")
    assert [event.text for event in received if isinstance(event, TextDelta)] == ["Hel", "lo."]
    usage = next(event for event in received if isinstance(event, Usage))
    assert (usage.input_tokens, usage.output_tokens) == (100, 20)
    assert usage.cost is not None
    assert usage.cost > 0
    assert received[-1] == Finished("stop", detail="stop")
    asked = provider.asked[0]
    assert provider.paths == ["/v1/chat/completions"]
    assert provider.headers[0]["authorization"] == f"Bearer {KEY}"
    assert [message["role"] for message in asked["messages"]] == ["developer", "user"] or (
        asked["messages"][0]["role"] == "system"
    )
    assert asked["tools"][0]["function"]["name"] == "look"


async def test_a_whole_run_over_chat_completions(open_session: OpenSession) -> None:
    shown = ToolResult(content="a plot", data={"image/png": "iVBORw0KGgo="})
    replies = (
        Reply(chat(*chat_call("look", '{"n"', ": 1}"), finish="tool_calls", usage=USED)),
        Reply(chat({"content": "It is a plot."}, usage=USED)),
    )
    async with fake_provider(*replies) as provider:
        agent = Agent(openai(provider), open_session(look(result=shown)))
        pieces: list[Any] = []
        agent.subscribe(pieces.append)
        result = await agent.run("Look.")
        await agent.model.close()  # type: ignore[attr-defined]  # a provider's model has it
    assert result.text == "It is a plot."
    assert result.usage.tokens == 240
    sent = provider.asked[1]["messages"]
    call = next(m for m in sent if m.get("tool_calls"))["tool_calls"][0]
    answer = next(m for m in sent if m["role"] == "tool")
    assert call["id"] == answer["tool_call_id"]
    assert call["id"].startswith(agent.agent_id)
    assert "a plot" in str(answer["content"])
    assert "iVBORw0KGgo=" in str(sent), "the picture went to the model"
    streamed = [one.event for one in pieces if isinstance(one, ModelStreamed)]
    assert [one.arguments for one in streamed if isinstance(one, CallDelta) and one.arguments] == [
        '{"n"',
        ": 1}",
    ]
    assert_sound(agent)


async def test_a_whole_run_over_anthropic_with_thoughts(open_session: OpenSession) -> None:
    thought: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
    thought["deltas"] = [
        {"type": "thinking_delta", "thinking": "Let me look."},
        {"type": "signature_delta", "signature": "c2lnbmVk"},
    ]
    call: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    call["deltas"] = [{"type": "input_json_delta", "partial_json": '{"n": 7}'}]
    text = {"type": "text", "text": "", "deltas": [{"type": "text_delta", "text": "Seen."}]}
    replies = Reply(anthropic(thought, call, stop="tool_use")), Reply(anthropic(text))
    async with fake_provider(*replies) as provider:
        tool = look()
        agent = Agent(claude(provider), open_session(tool))
        result = await agent.run("Look.")
        await agent.model.close()  # type: ignore[attr-defined]  # a provider's model has it
    assert result.text == "Seen."
    assert tool.calls == [{"n": 7}]
    answer = result.messages[1]
    assert isinstance(answer, AssistantMessage)
    part = answer.parts[0]
    assert isinstance(part, ThinkingPart)
    assert part.text == "Let me look."
    sent = provider.asked[1]["messages"]
    assert sent[1]["content"][0]["signature"] == "c2lnbmVk", "the thought went back as it came"
    assert KEY in provider.headers[0].values() or f"Bearer {KEY}" in provider.headers[0].values()
    assert_sound(agent)


async def test_ollama_needs_no_key() -> None:
    async with fake_provider(Reply(chat({"content": "Hello."}))) as provider:
        received = await events(ollama(provider))
    assert received[-1] == Finished("stop", detail="stop")


FAULTS: list[tuple[str, Callable[[], Reply], bool, str]] = [
    ("429", lambda: Reply(b'{"error": {"message": "slow down"}}', 429, {"retry-after": "0"}), True, "429"),
    ("500", lambda: Reply(b'{"error": {"message": "oops"}}', 500), True, "500"),
    ("html", lambda: Reply(b"<html>Bad gateway</html>", 502), True, "502"),
    ("401", lambda: Reply(f'{{"error": {{"message": "wrong {KEY}"}}}}'.encode(), 401), False, "401"),
    ("400", lambda: Reply(b'{"error": {"message": "what?"}}', 400), False, "400"),
    ("timeout", lambda: Reply(hang_s=1000), True, ""),
    ("cut at once", lambda: Reply(cut=True), True, ""),
    ("cut inside", lambda: Reply(chat({"content": "Hel"}, finish=None, done=False), cut=True), True, ""),
    ("ended early", lambda: Reply(chat({"content": "Hel"}, finish=None)), True, ""),
    ("no JSON", lambda: Reply(b"data: {not json\n\n"), True, ""),
    ("nothing", lambda: Reply(b""), True, ""),
]


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    ("fault", "retryable", "message"), [one[1:] for one in FAULTS], ids=[one[0] for one in FAULTS]
)
@pytest.mark.parametrize("make", [openai, claude, ollama])
async def test_provider_faults_are_reported(
    make: Callable[..., ProviderModel], fault: Callable[[], Reply], retryable: bool, message: str
) -> None:
    reply = fault()
    async with fake_provider(reply) as provider:
        with pytest.raises(ModelError) as caught:
            await events(make(provider, timeout_s=0.3 if reply.hang_s else HANG_S))
        assert len(provider.asked) == 1, "nobody retries behind our back"
    assert caught.value.retryable is retryable
    assert message in str(caught.value)
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "fault", [one[1] for one in FAULTS if one[2]], ids=[one[0] for one in FAULTS if one[2]]
)
async def test_a_run_survives_one_fault_and_ends_clearly_with_many(
    open_session: OpenSession, fault: Callable[[], Reply]
) -> None:
    session = open_session(look())
    before = asyncio.all_tasks()
    async with fake_provider(fault(), Reply(chat({"content": "Hello."})), fault(), fault()) as provider:
        model = openai(provider, timeout_s=1 if fault().hang_s else HANG_S)
        agent = Agent(model, session, budgets=Budgets(retries=1, retry_wait_s=0.01))
        assert (await agent.run("Hi.")).text == "Hello."
        failed = await agent.run("Hi again.")
        await model.close()
        assert (failed.outcome, len(provider.asked)) == ("failed", 4)
    assert failed.reason
    assert len([event for event in session.events if isinstance(event, ModelRetried)]) == 2
    assert_sound(agent)
    await assert_no_orphans(before)


async def test_an_answer_that_anthropic_ended_early() -> None:
    text = {"type": "text", "text": "", "deltas": [{"type": "text_delta", "text": "Hel"}]}
    async with fake_provider(Reply(anthropic(text, stop=None))) as provider:
        with pytest.raises(ModelError, match="cut") as caught:
            await events(claude(provider))
    assert caught.value.retryable


async def test_an_unknown_finish_reason_ends_the_run(open_session: OpenSession) -> None:
    async with fake_provider(Reply(chat(*chat_call("look", "{}"), finish="banana"))) as provider:
        tool = look()
        model = openai(provider)
        result = await Agent(model, open_session(tool)).run("Hi.")
        await model.close()
    assert (result.outcome, tool.calls) == ("failed", [])
    assert "banana" in result.reason


async def test_arguments_that_are_no_json_can_be_mended(open_session: OpenSession) -> None:
    replies = (
        Reply(chat(*chat_call("look", '{"n": '), finish="tool_calls")),
        Reply(chat(*chat_call("look", '{"n": 1}'), finish="tool_calls")),
        Reply(chat({"content": "ok"})),
    )
    async with fake_provider(*replies) as provider:
        tool = look()
        model = openai(provider)
        agent = Agent(model, open_session(tool))
        assert (await agent.run("Hi.")).ok
        await model.close()
        answer = next(m for m in provider.asked[1]["messages"] if m["role"] == "tool")
    assert "no valid JSON" in answer["content"]
    assert tool.calls == [{"n": 1}]
    assert_sound(agent)


async def test_cancelling_closes_the_connection(open_session: OpenSession) -> None:
    before = asyncio.all_tasks()
    async with fake_provider(Reply(hang_s=1000)) as provider:
        model = openai(provider)
        agent = Agent(model, open_session(look()))
        run = agent.start("Hi.")
        await eventually(lambda: provider.asked)
        run.cancel()
        assert (await run).outcome == "cancelled"
        await model.close()
    assert_sound(agent)
    await assert_no_orphans(before)


async def test_the_key_is_written_nowhere(open_session: OpenSession, tmp_path: Path) -> None:
    wrong = Reply(f'{{"error": {{"message": "Incorrect API key provided: {KEY}"}}}}'.encode(), 401)
    async with fake_provider(wrong) as provider:
        session = open_session(look())
        model = openai(provider)
        result = await Agent(model, session).run("Hi.")
        await model.close()
    assert result.outcome == "failed"
    assert KEY not in repr(model) + str(result) + str(list(session.events))
    assert session.log_path is not None
    assert KEY not in session.log_path.read_text()
    with pytest.raises(TypeError, match="key"):
        pickle.dumps(model)


class TestMaking:
    def test_key_from_the_environment(self) -> None:
        assert provider_model("openai:gpt-5", environ={"OPENAI_API_KEY": KEY}).name == "openai:gpt-5"
        made = provider_model("google:gemini-2.5-pro", environ={"GEMINI_API_KEY": KEY})
        assert repr(made) == "<ProviderModel google:gemini-2.5-pro>"

    def test_key_from_a_person(self) -> None:
        asked: list[str] = []

        def ask(prompt: str) -> str:
            asked.append(prompt)
            return KEY

        provider_model("anthropic:claude-opus-4-8", environ={}, ask_key=ask)
        assert "ANTHROPIC_API_KEY" in asked[0]

    def test_no_key(self) -> None:
        with pytest.raises(UsageError, match="OPENAI_API_KEY"):
            provider_model("openai:gpt-5", environ={}, ask_key=lambda _: "")

    @pytest.mark.parametrize("name", ["gpt-5", "nobody:gpt-5", "openai:", ""])
    def test_unknown(self, name: str) -> None:
        with pytest.raises(UsageError, match="anthropic"):
            provider_model(name, api_key=KEY)

    def test_a_call_keeps_what_its_provider_wants_back(self) -> None:
        from aisotools.agent.models.provider import to_theirs

        opaque = {"provider_name": "google", "provider_details": {"thought_signature": "x"}}
        call = CallPart("a-1", "look", {"n": 1}, opaque=opaque)
        messages: list[Message] = [
            UserMessage("Hi."),
            AssistantMessage((call,)),
            ToolMessage("a-1", "look", "ok"),
        ]
        theirs: Any = to_theirs(messages, "")
        assert theirs[1].parts[0].provider_details == {"thought_signature": "x"}
        assert theirs[2].parts[0].tool_call_id == "a-1"
