"""Contexts, caps and the capabilities that tools, approvers, models and sandboxes may declare."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from aisotools.core import protocols
from aisotools.core.protocols import (
    Approver,
    Cancellation,
    OutputCaps,
    SupportsBatch,
    SupportsClassification,
    SupportsEffect,
    SupportsQuestions,
    SupportsShipment,
    SupportsTimeout,
    Tool,
    ToolContext,
    UserQuestion,
)
from aisotools.core.sandboxes import SupportsSnapshots, SupportsSupervisor
from aisotools.core.types import Approval, ApprovalRequest, Effect, ToolResult


class Minimal:
    """A tool with the required members only."""

    name = "minimal"
    description = "Does nothing."

    def parameters_schema(self) -> Mapping[str, Any]:
        return {"type": "object"}

    async def execute(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult.text("")


class Capable(Minimal):
    """A tool that declares some capabilities."""

    effect = None
    timeout_s = 3.0

    def classify(self, arguments: Mapping[str, Any]) -> Effect:
        return Effect.READ_ONLY


class Person:
    """An approver who answers several requests at once."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        return Approval("approve")

    async def ask_many(self, requests: Sequence[ApprovalRequest]) -> list[Approval]:
        return [Approval("approve") for _ in requests]


def test_capabilities_are_recognised_by_their_members() -> None:
    assert isinstance(Minimal(), Tool)
    for capability in (SupportsClassification, SupportsEffect, SupportsTimeout, SupportsShipment):
        assert not isinstance(Minimal(), capability)
        assert isinstance(Capable(), capability) is (capability is not SupportsShipment)
    assert isinstance(Person(), Approver)
    assert isinstance(Person(), SupportsBatch)
    assert not isinstance(Person(), SupportsQuestions)
    assert not isinstance(Minimal(), Approver)
    assert not isinstance(object(), SupportsSnapshots | SupportsSupervisor)


@pytest.mark.parametrize("name", [name for name in vars(protocols) if name.startswith("Supports")])
def test_every_capability_can_be_tested_for(name: str) -> None:
    assert not isinstance(object(), vars(protocols)[name])


def test_cancellation_is_set_once_and_wakes_those_who_wait() -> None:
    cancellation = Cancellation()
    assert not cancellation.cancelled
    assert not cancellation.wait(0.0)
    assert repr(cancellation) == "<Cancellation open>"
    woken: list[bool] = []
    waiter = threading.Thread(target=lambda: woken.append(cancellation.wait()))
    waiter.start()
    cancellation.cancel()
    cancellation.cancel()
    waiter.join()
    assert (woken, cancellation.cancelled, cancellation.wait(0.0)) == ([True], True, True)
    assert repr(cancellation) == "<Cancellation cancelled>"


def test_caps_scale_with_the_window_one_to_four_times() -> None:
    assert OutputCaps.for_context(1) == OutputCaps.for_context(32_000) == OutputCaps()
    assert OutputCaps.for_context(48_000).content_chars == 15_000
    assert OutputCaps.for_context(128_000) == OutputCaps.for_context(10_000_000)
    assert OutputCaps.for_context(128_000).list_lines == 800
    caps = OutputCaps.for_context(128_000, stream_bytes=5)
    assert (caps.stream_bytes, caps.value_bytes) == (5, OutputCaps().value_bytes)


def test_context_reports_progress_to_its_emitter_only() -> None:
    reports: list[tuple[str, Mapping[str, Any]]] = []
    ToolContext().emit("step", n=1)
    ToolContext().with_emitter(lambda name, payload: reports.append((name, payload))).emit("step", n=2)
    assert reports == [("step", {"n": 2})]


def test_context_is_copied_not_changed() -> None:
    context = ToolContext(metadata={"a": 1})
    cancellation, caps, approver = Cancellation(), OutputCaps(content_chars=1), Person()
    copy = (
        context.with_agent_id("agent")
        .with_session_key("session")
        .with_turn_id("turn")
        .with_workspace_path(Path("/w"))
        .with_sandbox_config({"level": "confined"})
        .with_approval_handler(approver)
        .with_cancellation(cancellation)
        .with_output_caps(caps)
        .with_services(None)
        .with_metadata(b=2)
    )
    assert (copy.agent_id, copy.session_key, copy.turn_id) == ("agent", "session", "turn")
    assert (copy.workspace_path, copy.sandbox_config) == (Path("/w"), {"level": "confined"})
    assert (copy.approval_handler, copy.cancellation, copy.output_caps) == (approver, cancellation, caps)
    assert (copy.metadata_get("a"), copy.metadata_get("b"), copy.metadata_get("c", 3)) == (1, 2, 3)
    assert (context.agent_id, context.approval_handler, context.metadata) == ("", None, {"a": 1})


def test_question_waits_five_minutes_by_default() -> None:
    assert UserQuestion(id="q", text="?").timeout_s == 300.0
    assert UserQuestion(id="q", text="?").choices == ()
