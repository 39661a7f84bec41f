from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field

from aisotools.core.exceptions import ToolError
from aisotools.core.protocols import ToolContext
from aisotools.core.types import ToolResult
from aisotools.tools.results import PRESENTER_KEY, declared_return_type, to_result
from tests.ids import stable


class Colour(enum.StrEnum):
    RED = "red"


class Named(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: int = Field(alias="outer")

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def double(self) -> int:
        """Twice the number."""
        return self.inner * 2


@dataclass
class Size:
    width: int


def checked_result(value: object, annotation: Any) -> ToolResult:
    """The result of a function with this return type, checked as the host checks it."""
    returns = declared_return_type("area", annotation)
    result = to_result(value, returns, ToolContext())
    if returns is not None:
        returns.check(result.value)
    return result


NOT_SAID: Any = __import__("inspect").Signature.empty


@pytest.mark.parametrize(
    ("value", "annotation", "content", "json"),
    [
        (None, NOT_SAID, "", None),
        (None, None, "", None),
        (None, int | None, "", None),
        ("text", NOT_SAID, "text", "text"),
        ("text", str, "text", "text"),
        (5, int, "5", 5),
        (5, float, "5.0", 5.0),
        (True, bool, "true", True),
        ([1, "a"], list[int | str], '[1,"a"]', [1, "a"]),
        ((1, 2), tuple[int, int], "[1,2]", [1, 2]),
        ({"a": 1}, dict[str, int], '{"a":1}', {"a": 1}),
        ({1: 2}, dict[int, int], '{"1":2}', {"1": 2}),
        (Colour.RED, Colour, "red", "red"),
        ("a", Literal["a", "b"], "a", "a"),
        (date(2024, 2, 29), date, "2024-02-29", "2024-02-29"),
        (Path("a/b"), Path, "a/b", "a/b"),
        (Size(2), Size, '{"width":2}', {"width": 2}),
        (Named(outer=3), Named, '{"outer":3,"double":6}', {"outer": 3, "double": 6}),
        ([Named(outer=1)], list[Named], '[{"outer":1,"double":2}]', [{"outer": 1, "double": 2}]),
        (Size(2), NOT_SAID, '{"width":2}', {"width": 2}),
        (np.int64(3), int, "3", 3),
        (np.int64(3), NOT_SAID, "3", 3),
        (np.float64(0.5), float, "0.5", 0.5),
        (np.bool_(True), bool, "true", True),
        ({"n": np.int32(1), "a": np.array([1, 2])}, NOT_SAID, '{"n":1,"a":[1,2]}', {"n": 1, "a": [1, 2]}),
        (np.array([[1, 2]]), list[list[int]], "[[1,2]]", [[1, 2]]),
        ({"n": np.int64(1)}, dict[str, int], '{"n":1}', {"n": 1}),
    ],
    ids=stable,
)
def test_a_value_has_a_form_for_models_and_one_for_programs(
    value: object, annotation: Any, content: str, json: object
) -> None:
    result = checked_result(value, annotation)
    assert (result.content, result.value, result.is_error) == (content, json, False)


def test_a_result_is_taken_as_it_is() -> None:
    made = ToolResult.json({"a": 1}, "told")
    for annotation in (NOT_SAID, ToolResult, ToolResult | None, Any, "ToolResult"):
        assert to_result(made, declared_return_type("t", annotation), ToolContext()) is made


@pytest.mark.parametrize("annotation", [NOT_SAID, bytes])
def test_bytes_are_a_binary_result(annotation: Any) -> None:
    result = checked_result(b"\xff\x00", annotation)
    assert (result.kind, result.value["size"]) == ("binary", 2)


def test_a_generator_is_read_to_its_end() -> None:
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    assert checked_result(numbers(), Iterator[int]).value == [1, 2]


def test_not_a_number_is_written_as_text() -> None:
    assert checked_result(math.nan, float).content == '"NaN"'
    assert checked_result([math.inf, 1.0], list[float]).content == '["Infinity",1.0]'
    assert checked_result([-math.inf], NOT_SAID).content == '["-Infinity"]'


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("5", int),
        ("abc", int),
        (5, str),
        (None, int),
        ([1, "a"], list[int]),
        ({"width": "wide"}, Size),
        (object(), int),
        (0.5, int),
        (ToolContext(), dict[str, int]),
        (b"\xff", str),
    ],
    ids=stable,
)
def test_value_that_the_declared_type_forbids_is_reported(value: object, annotation: Any) -> None:
    with pytest.raises(ToolError, match="which does not fit its declared return type") as raised:
        checked_result(value, annotation)
    assert str(raised.value).startswith("area returned ")
    assert not raised.value.recoverable
    assert len(str(raised.value)) < 400


def test_values_from_the_sandbox_are_checked_again() -> None:
    # A worker is hostile: it may say anything the function never would.
    returns = declared_return_type("area", dict[str, int])
    assert returns is not None
    returns.check({"a": 1})
    for wrong in ("a", [1], {"a": "b"}, None, {"a": {"b": 1}}):
        with pytest.raises(ToolError, match="area returned"):
            returns.check(wrong)


@given(value=st.lists(st.floats(width=16), max_size=3) | st.lists(st.integers(), max_size=3))
def test_every_allowed_return_value_passes_the_check(value: list[Any]) -> None:
    checked_result(value, list[float])


def test_a_thing_without_json_form_is_shown() -> None:
    table = pd.DataFrame({"a": [1]})
    bundle = {"text/plain": "a table", "text/html": "<table></table>"}
    context = ToolContext(metadata={PRESENTER_KEY: lambda value: bundle})
    for annotation in (NOT_SAID, pd.DataFrame):
        result = to_result(table, declared_return_type("t", annotation), context)
        assert (result.content, result.data, result.value) == ("a table", bundle, None)
        assert "a" in to_result(table, declared_return_type("t", annotation), ToolContext()).content


def test_the_repr_names_the_type() -> None:
    assert repr(declared_return_type("t", list[int])) == "<ReturnType list[int]>"
