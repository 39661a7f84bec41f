from __future__ import annotations

from typing import Any

import pytest

from aisotools.core.exceptions import ArgumentError
from aisotools.core.types import ApprovalRequest, ToolDefinition
from aisotools.notebook.approval.form import Control, apply_argument_edits, argument_changes, build_controls
from tests.policy.test_prompts import a_request

SCHEMA = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "minLength": 1, "description": "What to run.\u202e"},
        "timeout": {"type": "integer", "minimum": 1, "maximum": 100},
        "mode": {"enum": ["fast", "slow"]},
        "unit": {"anyOf": [{"enum": ["m", "ft"]}, {"type": "null"}]},
        "deep": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "level": {"$ref": "#/$defs/Level"},
        "items": {"type": "array", "items": {"type": "integer"}},
        "key": {"type": "string", "writeOnly": True},
        "content": {"type": "string"},
    },
    "$defs": {"Level": {"enum": [1, 2, 3]}},
    "additionalProperties": False,
}


def request_with(**arguments: Any) -> ApprovalRequest:
    return a_request(arguments, definition=ToolDefinition("sandbox_bash", "Runs.", SCHEMA))


def field(**argument: Any) -> Control:
    (control,) = build_controls(request_with(**argument))
    return control


def test_every_argument_has_a_field_that_fits_its_schema() -> None:
    kinds = {
        "command": ("ls", "shell"),
        "timeout": (5, "number"),
        "mode": ("fast", "choice"),
        "unit": (None, "choice"),
        "deep": (True, "boolean"),
        "maybe": (None, "choice"),
        "level": (2, "choice"),
        "items": ([1], "json"),
        "key": ("hunter2", "secret"),
        "content": ("a\nb", "text"),
        "unknown": (1.5, "number"),
        "odd": ({}, "json"),
        "flag": (True, "boolean"),
    }
    request = request_with(**{name: value for name, (value, _) in kinds.items()})
    assert {c.name: c.kind for c in build_controls(request)} == {
        name: kind for name, (_, kind) in kinds.items()
    }
    assert build_controls(request)[0].kind == "shell"
    assert [c.name for c in build_controls(request)][-2:] == ["content", "key"]
    assert "hunter2" not in repr(build_controls(request))


def test_limits_choices_and_descriptions_come_along() -> None:
    assert (field(timeout=5).least, field(timeout=5).most, field(timeout=5).whole) == (1, 100, True)
    assert field(mode="slow").choices == ('"fast"', '"slow"')
    assert field(maybe=True).choices == ("true", "false", "null")
    assert field(command="ls").least == 1
    assert field(command="ls").about == "What to run.\\u202e"


def test_a_value_outside_the_choices_is_not_shown_as_one() -> None:
    assert field(mode="other").kind == "text"
    assert field(deep="yes").kind == "text"


@pytest.mark.parametrize("hidden", ["a\u202eb", "a\u200bb", "a\x1bb", "a\x00"])
def test_invisible_characters_are_escaped_and_survive(hidden: str) -> None:
    shown = field(command=hidden)
    assert shown.kind == "json"
    assert shown.note
    assert shown.text.isprintable()
    assert apply_argument_edits(request_with(command=hidden), {"command": shown.text}, None) is None


def test_unchanged_is_no_edit() -> None:
    request = request_with(command="ls\npwd", timeout=5, items=[1, 2], deep=True, key="k")
    texts = {c.name: c.text for c in build_controls(request) if c.editable}
    assert apply_argument_edits(request, texts, None) is None
    assert apply_argument_edits(request, {}, None) is None
    assert (
        apply_argument_edits(
            request, {}, '{"items": [1,2], "timeout": 5, "deep": true, "command": "ls\\npwd"}'
        )
        is None
    )


def test_edits_change_just_what_they_touch() -> None:
    request = request_with(command="ls", timeout=5, deep=False, key="hunter2")
    assert apply_argument_edits(request, {"timeout": "6", "deep": "true"}, None) == {
        "command": "ls",
        "timeout": 6,
        "deep": True,
        "key": "hunter2",
    }
    assert apply_argument_edits(request, {"command": "5"}, None) == {**request.call.arguments, "command": "5"}
    assert apply_argument_edits(request, {}, '{"command": "pwd", "mode": "fast"}') == {
        "command": "pwd",
        "mode": "fast",
        "key": "hunter2",
    }


def test_numbers_of_any_size_stay_what_they_are() -> None:
    request = a_request({"n": 12345678901234567890, "f": 1.0})
    assert apply_argument_edits(request, {"n": "12345678901234567891"}, None) == {
        "n": 12345678901234567891,
        "f": 1.0,
    }
    assert apply_argument_edits(request, {"f": "1"}, None) == {"n": 12345678901234567890, "f": 1}


@pytest.mark.parametrize(
    ("edits", "whole", "message"),
    [
        ({"timeout": "x"}, None, "'timeout' is not valid JSON"),
        ({"timeout": "NaN"}, None, "NaN is not a JSON value"),
        ({"timeout": "1e999"}, None, "1e999 is not a JSON value"),
        ({"timeout": "500"}, None, "timeout"),
        ({"timeout": '"5"'}, None, "timeout"),
        ({"command": ""}, None, "command"),
        ({"items": '{"a": 1, "a": 2}'}, None, "'a' occurs twice"),
        ({"items": "[" * 100_000}, None, "not valid JSON"),
        ({"key": "x"}, None, "no editable field 'key'"),
        ({"other": "x"}, None, "no editable field 'other'"),
        ({}, "{", "not valid JSON"),
        ({}, "[1]", "must be a JSON object"),
        ({}, '{"command": "ls", "other": 1}', "other"),
        ({}, '{"command": "ls", "key": "x"}', "'key' is secret"),
        ({}, '{"command": "ls", "command": "rm"}', "'command' occurs twice"),
    ],
)
def test_bad_edits_are_refused_in_words(edits: dict[str, str], whole: str | None, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        apply_argument_edits(request_with(command="ls", timeout=5, items=[], key="hunter2"), edits, whole)


def test_a_tool_that_validates_in_its_own_way_is_left_to_it() -> None:
    odd = request_with(command=["ls"], timeout=5)  # its schema says text
    assert apply_argument_edits(odd, {"timeout": "500"}, None) == {"command": ["ls"], "timeout": 500}


def test_a_text_too_long_to_be_shown_cannot_be_edited() -> None:
    long = field(content="x\n" * 100_000)
    assert "150,000 characters are not shown" in long.shown
    with pytest.raises(ArgumentError, match="'content'"):
        apply_argument_edits(request_with(content="x\n" * 100_000), {"content": "short"}, None)


def test_changes_leave_out_secrets() -> None:
    request = request_with(command="ls", timeout=5, key="hunter2", deep=True)
    changes = list(
        argument_changes(request, {"command": "ls -l", "timeout": 5, "key": "other", "mode": "fast"})
    )
    assert changes == [
        ("command", "ls", "ls -l"),
        ("deep", "true", "(not given)"),
        ("mode", "(not given)", "fast"),
    ]
    assert list(argument_changes(request, {**request.call.arguments, "deep": 1})) == [("deep", "true", "1")]
