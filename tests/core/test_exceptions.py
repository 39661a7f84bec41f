from __future__ import annotations

import inspect
import pickle

import pytest

from aisotools.core import exceptions
from aisotools.core.exceptions import AisotoolsError, SignatureError, ToolError, UnknownTool, WorkerDied

ALL = [kind for _, kind in inspect.getmembers(exceptions, inspect.isclass)]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_one_tree_drawn_in_the_docstring(kind: type[Exception]) -> None:
    assert issubclass(kind, AisotoolsError)
    assert kind.__name__ in (exceptions.__doc__ or "")
    assert (kind.__doc__ or "").endswith(".") or "Attributes:" in (kind.__doc__ or "")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_survives_pickling(kind: type[Exception]) -> None:
    error = pickle.loads(pickle.dumps(kind("what went wrong")))
    assert type(error) is kind
    assert "what went wrong" in str(error)


def test_the_fields_of_an_error_survive_pickling() -> None:
    died = pickle.loads(pickle.dumps(WorkerDied("it is gone", last_words="segfault")))
    assert died.last_words == "segfault"
    assert not pickle.loads(pickle.dumps(ToolError("no", recoverable=False))).recoverable


def test_kinds_that_others_may_catch() -> None:
    assert issubclass(SignatureError, TypeError)
    assert issubclass(UnknownTool, KeyError)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnknownTool("fiel", ("file",), ("file", "python")), "Did you mean 'file'?"),
        (UnknownTool("x", ("a", "b"), ("a", "b")), "Did you mean 'a' or 'b'?"),
        (UnknownTool("x", (), ("file", "python")), "Registered tools: file, python."),
        (UnknownTool("x"), "No tools are registered."),
    ],
)
def test_unknown_tool_is_reported_with_advice(error: UnknownTool, message: str) -> None:
    assert str(error).startswith(f"There is no tool named {error.name!r}.")
    assert str(error).endswith(message)
