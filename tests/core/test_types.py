from __future__ import annotations

import base64
import dataclasses
import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, strategies as st

from aisotools.core.types import (
    Approval,
    ApprovalRequest,
    Decision,
    Effect,
    Facts,
    ToolCall,
    ToolDefinition,
    ToolResult,
)


@pytest.mark.parametrize("ordered", [tuple(Effect), tuple(Decision)])
def test_order_is_by_rank(ordered: tuple[Effect, ...]) -> None:
    assert [one.rank for one in ordered] == list(range(len(ordered)))
    for lower, higher in pairwise(ordered):
        assert lower < higher
        assert lower <= higher
        assert higher > lower
        assert higher >= lower
        assert not lower > higher
    assert max(reversed(ordered)) is ordered[-1]
    assert sorted(set(ordered)) == list(ordered)


def test_values_are_the_lower_case_names() -> None:
    assert [effect.value for effect in Effect] == [effect.name.lower() for effect in Effect]
    assert [d.value for d in Decision] == ["allow", "ask", "deny"]


@pytest.mark.parametrize("other", [1, None, Decision.ALLOW])
def test_only_the_same_kind_is_ordered(other: Any) -> None:
    with pytest.raises(TypeError):
        assert other > Effect.READ_ONLY


@pytest.mark.parametrize(
    "value",
    [
        ToolCall("1", "file", {}),
        ToolResult.text("x"),
        Facts(),
        Approval("approve"),
        ToolDefinition("n", "d", {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_frozen_and_travel(value: Any) -> None:
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, 1)
    assert pickle.loads(pickle.dumps(value)) == value
    assert not hasattr(value, "__dict__")


def test_success_and_text_are_their_own_value() -> None:
    for result in (ToolResult.success("done"), ToolResult.text("done")):
        assert (result.content, result.value, result.is_error, result.kind) == ("done", "done", False, "text")


def test_json_is_compact_by_default() -> None:
    assert ToolResult.json({"a": [1, 2]}).content == '{"a":[1,2]}'
    result = ToolResult.json({"a": 1}, "one a")
    assert (result.content, result.value, result.kind) == ("one a", {"a": 1}, "json")


@given(data=st.binary(max_size=200))
def test_binary_keeps_every_byte(data: bytes) -> None:
    result = ToolResult.binary(data, "image/png")
    assert base64.b64decode(result.data["image/png"]) == data
    assert result.value["size"] == len(data)
    assert result.content == f"[image/png, {len(data)} bytes]"


def test_errors_say_whose_fault_it_is() -> None:
    error = ToolResult.error("no such file", recoverable=False, error_kind="environment")
    assert (error.is_error, error.recoverable, error.error_kind, error.kind) == (
        True,
        False,
        "environment",
        "error",
    )
    assert ToolResult.error("x").recoverable


def test_metadata_is_added_to_a_copy() -> None:
    first = ToolResult.text("x").with_metadata(a=1)
    second = first.with_metadata(b=2)
    assert (dict(first.metadata), dict(second.metadata)) == ({"a": 1}, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"outcome": "yes"}, "'yes'"), ({"outcome": "approve", "remember": "always"}, "'always'")],
)
def test_an_approval_is_checked_when_it_is_made(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Approval(**wrong)  # type: ignore[arg-type]  # the point


def test_a_request_waits_five_minutes_by_default() -> None:
    request = ApprovalRequest(
        id="1",
        call=ToolCall("c", "file", {}),
        definition=ToolDefinition("file", "", {}),
        effect=Effect.DESTRUCTIVE,
        level="confined",
    )
    assert request.timeout_s == 300
