"""Our models pass the contract that strangers' models are held to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from aisotools.agent.models.human import HumanModel, HumanTurn
from aisotools.agent.models.local import LocalModel
from aisotools.agent.models.replay import RecordedTurn, ReplayModel
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.core.messages import AssistantMessage, CallPart, Model, TextPart
from aisotools.core.types import ToolDefinition
from aisotools.testing.contracts import ModelContract
from tests.agent.models.test_local import FakeEngine


class TestScriptedText(ModelContract):
    def make(self) -> Model:
        return ScriptedModel(["Hello there.\nHow are you?"], delay_s=0.001)


class TestScriptedCalls(ModelContract):
    def make(self) -> Model:
        return ScriptedModel([["Let me see.", ("look", {"n": 1}), ("look", {"n": 2})]])


class TestReplay(ModelContract):
    def make(self) -> Model:
        call = CallPart("1", "look", {"n": 1})
        return ReplayModel([RecordedTurn(answer=AssistantMessage((TextPart("So:"), call), reason="calls"))])


class TestProvider(ModelContract):
    """Over a recorded stream of pydantic-ai's own test model."""

    def make(self) -> Model:
        pytest.importorskip("pydantic_ai", reason="needs the extra [models]")
        from pydantic_ai.models.test import TestModel

        from aisotools.agent.models.provider import ProviderModel

        return ProviderModel("test:model", TestModel, ends_silently=True)


class TestProviderOfFunctions(ModelContract):
    """Over a stream that is cut into small pieces."""

    tools = (ToolDefinition("look", "Look.", {"type": "object", "properties": {"n": {"type": "integer"}}}),)

    def make(self) -> Model:
        pytest.importorskip("pydantic_ai", reason="needs the extra [models]")
        from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall, FunctionModel

        from aisotools.agent.models.provider import ProviderModel

        async def stream(messages: Any, info: Any) -> AsyncIterator[Any]:
            yield {0: DeltaThinkingPart(content="Hm.")}
            yield {1: DeltaToolCall(name="look", json_args='{"n"')}
            yield {1: DeltaToolCall(json_args=": 1}")}

        make = partial(FunctionModel, stream_function=stream)
        return ProviderModel("test:function", make, ends_silently=True)


class TestHuman(ModelContract):
    def make(self) -> Model:
        return HumanModel(_SaysHello())


class _SaysHello:
    async def answer(self, turn: HumanTurn) -> CallPart | str | None:
        return "Hello."


class TestLocalScores(ModelContract):
    """Around a made-up language model; `tests/agent/models/test_local_real.py` has the real one."""

    def make(self) -> Model:
        return LocalModel(engine=FakeEngine("look"), way="score")


class TestLocalChats(ModelContract):
    def make(self) -> Model:
        return LocalModel(engine=FakeEngine(answers=['{"tool": "look", "arguments": {}}']), way="chat")
