"""Forms of calls: fields from schemas, defaults, and what counts as filled in."""

from __future__ import annotations

from typing import Literal

import pytest

from aisotools.agent.run import BeforeRequest
from aisotools.core.exceptions import ArgumentError
from aisotools.core.messages import CallPart
from aisotools.core.types import Effect, ToolDefinition
from aisotools.notebook.approval.steering import (
    NotebookStepper,
    call_form,
    call_summary,
    new_call_form,
    notebook_asker,
    parse_call_edits,
    parse_new_call,
)
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry


@tool(effect=Effect.READ_ONLY)
def plot(  # noqa: PLR0917 - one argument for each kind of field
    path: str,
    width: int,
    options: dict[str, int],
    kind: Literal["line", "bar"],
    title: str = "none",
    grid: bool = True,
    limit: int | None = None,
) -> str:
    """Draw a chart."""
    return path


REGISTRY = ToolRegistry([plot])
(PLOT,) = REGISTRY.to_llm_definitions()
FILLED = {"path": "a", "width": "3", "options": '{"a": 1}'}


def test_required_fields_come_first_and_numbers_start_empty() -> None:
    form = new_call_form(PLOT)
    names = [field["name"] for field in form["fields"]]
    assert set(names[:4]) == {"path", "width", "options", "kind"}
    fields = {field["name"]: field for field in form["fields"]}
    assert fields["width"]["text"] == fields["options"]["text"] == fields["limit"]["text"] == ""
    assert fields["title"]["text"] == "none"
    assert fields["title"]["label"] == "title (optional)"
    assert fields["width"]["label"] == "width"
    assert fields["limit"]["kind"] == "number"
    assert not any(field["folded"] for field in form["fields"])
    assert '"width"' in form["schema"]
    assert not form["as_json"]


def test_a_filled_call_leaves_out_untouched_defaults() -> None:
    call = parse_new_call(PLOT, FILLED)
    assert call == CallPart("", "plot", {"path": "a", "width": 3, "options": {"a": 1}, "kind": "line"})
    changed = parse_new_call(PLOT, {**FILLED, "title": "T", "grid": "false", "limit": "5", "kind": '"bar"'})
    assert changed.arguments == {
        "path": "a",
        "width": 3,
        "options": {"a": 1},
        "kind": "bar",
        "title": "T",
        "grid": False,
        "limit": 5,
    }


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ({"path": "a", "width": "3"}, "'options' of plot is required"),
        ({**FILLED, "width": "wide"}, "not valid JSON"),
        ({**FILLED, "width": '"3"'}, "width"),
        ({**FILLED, "other": "1"}, "no editable field 'other'"),
        ({}, "required"),
    ],
)
def test_an_invalid_reply_is_reported(edits: dict[str, str], problem: str) -> None:
    with pytest.raises(ArgumentError, match=problem):
        parse_new_call(PLOT, edits)


def test_an_existing_call_can_be_edited() -> None:
    call = CallPart("1", "plot", {"path": "a", "width": 3, "options": {}, "kind": "line"})
    form = call_form(call, PLOT)
    assert form["name"] == "plot"
    assert form["about"] == "Draw a chart"
    assert form["as_json"]
    assert parse_call_edits(call, PLOT, {}, None) is None
    edited = parse_call_edits(call, PLOT, {"width": "4"}, None)
    assert edited is not None
    assert edited["width"] == 4
    with pytest.raises(ArgumentError):
        parse_call_edits(call, PLOT, {"width": "many"}, None)


def test_a_call_of_an_unknown_tool_has_fields_too() -> None:
    form = call_form(CallPart("1", "nosuch", {"a": 1}), None)
    assert [field["name"] for field in form["fields"]] == ["a"]
    bare = ToolDefinition("bare", "", {"type": "object"})
    assert parse_new_call(bare, {}).arguments == {}


def test_a_summary_is_one_bounded_line() -> None:
    assert call_summary(CallPart("", "f", {"a": "é\n", "b": [1]})) == 'f(a="é\\n", b=[1])'
    long = call_summary(CallPart("", "f", {"a": "x" * 1_000}))
    assert len(long) == 300
    assert long.endswith("…")


async def test_without_a_person_there_is_no_asker() -> None:
    assert notebook_asker() is None
    moment = BeforeRequest(step=1, messages=(), tools=())
    assert (await NotebookStepper(REGISTRY).pause(moment)).action == "stop"
