from __future__ import annotations

import ast
import errno
import inspect
import itertools
import os
import pickle
from pathlib import Path

import pytest

from aisotools.core import exceptions
from aisotools.core.exceptions import (
    AisotoolsError,
    SignatureError,
    ToolError,
    UnknownTool,
    WorkerDied,
    as_clause,
    explain_system_error,
    storage_remedy,
    too_many_files_remedy,
)

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


@pytest.mark.parametrize(
    ("message", "clause"),
    [("a b", "a b"), ("a b.", "a b"), ("a b...", "a b"), ("a. b. ", "a. b"), ("", ""), ("a.b", "a.b")],
)
def test_a_clause_has_no_full_stop_at_its_end(message: str, clause: str) -> None:
    assert as_clause(message) == as_clause(ToolError(message)) == clause


WITHOUT_FULL_STOPS = {
    *("OSError", "OverflowError", "ValueError", "TypeError", "ImportError", "AttributeError", "SyntaxError"),
    *("TimeoutExpired", "SubprocessError", "RecursionError", "UnicodeError", "UnicodeDecodeError"),
    *("PatternError", "JSONDecodeError", "error"),
}
"""Exceptions of Python, whose messages are no sentences."""


def find_double_stops(source: str) -> list[int]:
    """Return the lines at which a message that may be a sentence is put before a full stop as it is."""
    lines = []
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        names = {ast.unparse(kind).rpartition(".")[2] for kind in kinds if kind is not None}
        if names <= WITHOUT_FULL_STOPS:
            continue
        for text in ast.walk(handler):
            parts = text.values if isinstance(text, ast.JoinedStr) else []
            for value, rest in itertools.pairwise(parts):
                if (
                    isinstance(value, ast.FormattedValue)
                    and value.conversion < 0
                    and ast.unparse(value.value) in {handler.name, f"str({handler.name})"}
                    and isinstance(rest, ast.Constant)
                    and str(rest.value).startswith(".")
                ):
                    lines.append(value.lineno)
    return lines


def test_messages_of_ours_are_not_followed_by_a_second_full_stop() -> None:
    attempt = "try:\n    f()\nexcept {kind} as error:\n    raise X(f'it failed: {{{value}}}. Try again')\n"
    assert find_double_stops(attempt.format(kind="SandboxError", value="error")) == [4]
    assert find_double_stops(attempt.format(kind="(OSError, Exception)", value="error")) == [4]
    assert find_double_stops(attempt.format(kind="OSError", value="error")) == []
    assert find_double_stops(attempt.format(kind="SandboxError", value="as_clause(error)")) == []
    package = Path(exceptions.__file__).parents[1]
    found = {}
    for path in package.rglob("*.py"):
        if lines := find_double_stops(path.read_text()):
            found[str(path.relative_to(package))] = lines
    assert found == {}


@pytest.mark.parametrize(
    ("numbers", "remedy"),
    [
        ((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Make room there"),
        ((errno.EMFILE, errno.ENFILE), "raise the limit (`ulimit -n`)"),
        ((errno.EIO, errno.ENOENT, errno.EACCES, errno.EROFS), "See that it is there and can be written"),
    ],
)
def test_remedy_depends_on_why_something_cannot_be_kept(numbers: tuple[int, ...], remedy: str) -> None:
    for number in numbers:
        assert remedy in storage_remedy(OSError(number, os.strerror(number)))


def test_refusal_of_the_system_is_explained_with_the_place_and_the_next_step() -> None:
    full = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/proc")
    remedy = "Too many files are open: close sessions or files, or raise the limit (`ulimit -n`)."
    assert explain_system_error(full) == f"Too many open files ('/proc'). {remedy}"
    assert too_many_files_remedy(full) == f" {remedy}"
    broken = OSError(errno.EIO, os.strerror(errno.EIO))
    assert explain_system_error(broken) == "Input/output error. Repair that, and try again."
    assert explain_system_error(OSError(errno.EIO, "x", b"a\xff")).startswith(r"x ('a\udcff').")
    assert explain_system_error(TimeoutError()).startswith("TimeoutError.")
    assert too_many_files_remedy(broken) == ""
