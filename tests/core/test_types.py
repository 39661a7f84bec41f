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
    with_changes,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    one: int
    two: str = "2"


@dataclasses.dataclass(frozen=True, slots=True)
class Inherited(Plain):
    three: int = 3


@dataclasses.dataclass(frozen=True)
class WithoutSlots:
    one: int
    two: str = "2"


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    one: int
    two: str = "2"

    def __post_init__(self) -> None:
        if self.one < 0:
            raise ValueError("it is negative")


@dataclasses.dataclass(frozen=True, slots=True)
class Derived:
    one: int
    two: str = "2"
    double: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.one)


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class OfItsOwn:
    one: int
    two: str

    def __init__(self, one: int, two: str = "2") -> None:
        object.__setattr__(self, "one", abs(one))
        object.__setattr__(self, "two", two)


@pytest.mark.parametrize("kind", [Plain, Inherited, WithoutSlots, Checked, Derived, OfItsOwn])
def test_changes_are_those_of_the_standard_library(kind: Any) -> None:
    value = kind(1)
    for changes in ({}, {"one": 5}, {"two": "3"}, {"two": "3", "one": 5}):
        changed = with_changes(value, **changes)
        assert changed == dataclasses.replace(value, **changes)
        assert (type(changed), changed is value, value.one) == (kind, False, 1)
        assert hash(changed) == hash(dataclasses.replace(value, **changes))
    with pytest.raises(TypeError):
        with_changes(value, four=4)
    if kind is Checked:
        with pytest.raises(ValueError, match="negative"):
            with_changes(value, one=-1)
    if kind is OfItsOwn:
        assert with_changes(value, one=-5).one == 5


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
