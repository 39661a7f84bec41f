from __future__ import annotations

import asyncio
import copy
import importlib
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import pytest

import aisotools
from aisotools.builtin import builtin_tools
from aisotools.builtin.files import sandbox_read
from aisotools.builtin.tasks import task_list, task_stop
from aisotools.core import protocols, sandboxes
from aisotools.core.exceptions import ArgumentError, PathOutside, SignatureError, ToolError
from aisotools.core.protocols import SupportsClassification, SupportsShipment, Tool, ToolContext, ToolPayload
from aisotools.core.types import Effect, Facts, Json, ToolResult
from aisotools.testing.fakes import MockTool
from aisotools.tools.adapter import (
    RenamedTool,
    broken_tool_result,
    cell_of,
    classify,
    deadline_of,
    definition_of,
    examples_of,
    exception_result,
    find_builtin,
    format_tool_frames,
    gather_facts,
    hints_of,
    load_analysis,
    payload_of,
    register_builtin,
    renamed_tool,
    source_of,
    supports,
    undo_path,
    validate_arguments,
    validate_value,
    version_of,
)
from tests.ids import stable


class Bare:
    """The four required members and nothing else."""

    name = "bare"
    description = "Bare."

    def parameters_schema(self) -> Mapping[str, Json]:
        return {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        return ToolResult.text("done")


def bare(**members: Any) -> Tool:
    made = Bare()
    made.__dict__.update(members)
    return made


def test_four_members_make_a_tool() -> None:
    assert isinstance(Bare(), Tool)
    assert not isinstance(object(), Tool)


def test_missing_members_have_careful_defaults() -> None:
    made = bare()
    assert classify(made, {}) is Effect.LOCAL_MUTATION
    assert gather_facts(made, {}) == Facts(effect=Effect.LOCAL_MUTATION)
    assert undo_path(made, {}) is None
    assert payload_of(made) is None
    assert deadline_of(made, b"{}") is None
    assert validate_arguments(made, {"x": 1}) == {"x": 1}
    validate_value(made, object())
    assert definition_of(made).examples == ()
    assert source_of(made).endswith("Bare")


def test_present_members_count() -> None:
    made = bare(
        classify=lambda arguments: Effect.READ_ONLY,
        extract_undo_path=lambda arguments: Path("a"),
        shipment=lambda: ToolPayload(key="k"),
        timeout_s=3,
        source="cell [3]",
        version="v1",
        examples=[({"x": 1}, "one")],
    )
    assert classify(made, {}) is Effect.READ_ONLY
    assert gather_facts(made, {}).effect is Effect.READ_ONLY
    assert undo_path(made, {}) == Path("a")
    assert payload_of(made) == ToolPayload(key="k")
    assert deadline_of(made, b"{}") == 3.0
    assert (source_of(made), version_of(made)) == ("cell [3]", "v1")
    assert definition_of(made).examples == (({"x": 1}, "one"),)


@pytest.mark.parametrize("odd", ["read_only", None, 0, object()], ids=stable)
def test_odd_answers_count_as_none(odd: object) -> None:
    made = bare(
        classify=lambda arguments: odd,
        gather_facts=lambda arguments: odd,
        extract_undo_path=lambda arguments: odd,
        shipment=lambda: odd,
    )
    assert classify(made, {}) is Effect.LOCAL_MUTATION
    assert gather_facts(made, {}) == Facts(effect=Effect.LOCAL_MUTATION)
    assert undo_path(made, {}) is None
    assert payload_of(made) is None


@pytest.mark.parametrize(
    ("timeout_s", "deadline"),
    [(5, 5.0), (lambda a: a["x"], 2.0), (0, None), (-1, None), ("5", None), (float("nan"), None)],
)
def test_deadlines(timeout_s: Any, deadline: float | None) -> None:
    assert deadline_of(bare(timeout_s=timeout_s), b'{"x": 2}') == deadline


def test_version_changes_with_the_description() -> None:
    assert version_of(bare()) == version_of(bare())
    assert len({version_of(m) for m in (bare(), bare(name="b"), bare(description="c"))}) == 3
    assert version_of(bare(parameters_schema=dict)) != version_of(bare())


def test_arguments_are_checked_against_the_schema_or_by_the_tool() -> None:
    with pytest.raises(ArgumentError, match="x is missing"):
        validate_arguments(bare(), {})
    assert validate_arguments(bare(validate_arguments=lambda arguments: {"x": 5}), {}) == {"x": 5}


# ---- failures as results


async def failing(error: BaseException) -> ToolResult:
    class Failing(Bare):
        async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
            raise error

    try:
        return await Failing().execute({}, ToolContext())
    except BaseException as caught:
        return exception_result(caught)


async def test_an_error_shows_where_it_happened() -> None:
    result = await failing(ValueError("the reason"))
    assert (result.is_error, result.error_kind, result.recoverable) == (True, "failed", True)
    assert result.content.startswith("ValueError: the reason\n\nTraceback (most recent call last):")
    assert __file__ in result.content
    assert result.metadata["exception"] == "ValueError"


def test_traceback_of_a_tool_of_our_own_has_no_frames() -> None:
    names: dict[str, Any] = {"loads": json.loads}
    place = f"{Path(aisotools.__file__).parent}/example.py"  # which there is not
    exec(compile("def execute(text):\n    loads(text)", place, "exec"), names)
    with pytest.raises(json.JSONDecodeError) as raised:
        names["execute"]("{")
    error, trace = raised.value, raised.value.__traceback__
    assert trace is not None
    assert __file__ in format_tool_frames(error)
    assert format_tool_frames(error.with_traceback(trace.tb_next)) == ""


async def test_our_own_frames_are_left_out() -> None:
    from aisotools.tools.validation import validate_against

    try:
        validate_against({"type": "object"}, {"x": object()}, "t")
    except ToolError as error:
        frames = [f.filename for f in traceback.extract_tb(error.__traceback__)]
        assert any("/aisotools/" in name for name in frames)
        text = exception_result(RuntimeError("x").with_traceback(error.__traceback__)).content
        assert __file__ in text


@pytest.mark.parametrize(
    ("error", "kind", "recoverable", "expected"),
    [
        (ToolError("no such thing"), "invalid", True, "no such thing"),
        (ToolError("never", recoverable=False), "invalid", False, "never"),
        (PathOutside("'../x' leads out"), "invalid", True, "'../x' leads out"),
        (SystemExit(3), "failed", True, "The tool tried to exit (3). Only the call was ended."),
    ],
    ids=lambda part: type(part).__name__,
)
async def test_errors_keep_their_message_kind_and_recoverability(
    error: BaseException, kind: str, recoverable: bool, expected: str
) -> None:
    result = await failing(error)
    assert (result.content, result.error_kind, result.recoverable) == (expected, kind, recoverable)


async def test_error_that_cannot_be_printed_is_reported_anyway() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert "Odd" in (await failing(Odd())).content


def test_a_tool_that_fails_when_asked_about_itself_is_named() -> None:
    result = broken_tool_result("theirs", KeyError("effect"))
    assert result.content.startswith("theirs was not called: the tool failed while checking the call.")
    assert "KeyError: 'effect'" in result.content
    assert not result.recoverable
    assert broken_tool_result("theirs", ToolError("as it is")).content == "as it is"
    broken = broken_tool_result("theirs", SignatureError("Tool theirs cannot be sent"))
    assert (broken.content, broken.recoverable) == ("Tool theirs cannot be sent", False)


def test_this_runs_without_a_loop() -> None:
    assert asyncio.run(Bare().execute({}, ToolContext())).content == "done"


def test_a_member_that_is_none_counts_as_missing() -> None:
    class Optional(MockTool):
        classify = None  # type: ignore[assignment]  # as a class does that fills it in later
        shipment = None  # type: ignore[assignment]  # the same

    bare = Optional("bare")
    assert not supports(cast("object", bare), SupportsClassification)
    assert classify(bare, {}) is Effect.LOCAL_MUTATION
    assert payload_of(bare) is None


def test_a_renamed_tool_supports_what_the_original_supports() -> None:
    renamed = renamed_tool(MockTool("a", effect=Effect.READ_ONLY), "b")
    assert supports(renamed, SupportsClassification)
    assert not supports(renamed, SupportsShipment)


class Declared(Protocol):
    """A capability with an attribute that has no value, and an inherited one."""

    label: str


class Inherited(Declared, Protocol):
    """The same, and a method."""

    def show(self) -> None: ...


def test_attributes_and_inherited_members_count_as_members() -> None:
    assert supports(SimpleNamespace(label="a", show=print), Inherited)
    assert not supports(SimpleNamespace(label="a"), Inherited)
    assert not supports(SimpleNamespace(show=print), Inherited)


class Forwarding:
    """Has the members of something else, while there is such a thing."""

    def __init__(self, live: object) -> None:
        self.live = live

    def __getattr__(self, name: str) -> Any:
        return getattr(self.live, name)


def test_members_that_a_wrapper_forwards_count_while_it_has_them() -> None:
    forwarding = Forwarding(MockTool(effect=Effect.READ_ONLY))
    assert supports(forwarding, SupportsClassification)
    forwarding.live = None
    assert not supports(forwarding, SupportsClassification)


@pytest.mark.parametrize(
    "capability",
    [value for name, value in {**vars(protocols), **vars(sandboxes)}.items() if name.startswith("Supports")],
)
def test_every_capability_has_members(capability: Callable[..., object]) -> None:
    assert not supports(object(), capability)


def test_examples_and_cells_have_defaults() -> None:
    assert examples_of(MockTool()) == ()
    assert examples_of(MockTool(examples=[({}, "go")])) == [({}, "go")]
    assert cell_of(MockTool()) is None


# ---- the built-in tools


def test_built_in_tools_are_known_by_any_name_and_by_no_other_object() -> None:
    class Renamed(RenamedTool):
        """Might say anything of the tool that it stands for."""

    found = find_builtin(sandbox_read)
    assert found is not None
    assert found.tool is sandbox_read
    assert find_builtin(renamed_tool(sandbox_read, "other")) is found
    assert find_builtin(Renamed(sandbox_read, "other")) is None
    assert find_builtin(copy.copy(sandbox_read)) is None
    assert find_builtin(MockTool("sandbox_read")) is None


def test_of_which_built_in_tools_the_facts_are_relied_upon() -> None:
    relied_upon = {one.name for one in builtin_tools() if find_builtin(one)}
    files = {"file", "sandbox_read", "sandbox_write", "edit", "apply_patch"}
    assert relied_upon == files | {"sandbox_bash", "task_list", "task_output"}
    for one, keeps_to_reading in ((sandbox_read, False), (task_list, True)):
        found = find_builtin(one)
        assert found is not None
        assert found.keeps_to_reading is keeps_to_reading
    assert find_builtin(task_stop) is None


_LOADING = """
import asyncio, sys, threading
from aisotools.builtin.files import sandbox_read
from aisotools.builtin.shell import sandbox_bash
from aisotools.tools.adapter import load_analysis

ANALYSIS = "aisotools.policy.shell.classify"
importers = []

class Noting:
    def find_spec(self, name, path=None, target=None):
        if name == ANALYSIS:
            importers.append(threading.current_thread())

async def main():
    sys.meta_path.insert(0, Noting())
    for tool in (None, sandbox_read):
        await load_analysis(tool)
    assert ANALYSIS not in sys.modules
    await asyncio.gather(*(load_analysis(sandbox_bash) for _ in range(3)))
    assert hasattr(sys.modules[ANALYSIS], "shell_facts"), "it is whole, whoever came first"
    (importer,) = importers
    assert importer is not threading.main_thread()

asyncio.run(main())
"""


def test_the_analysis_of_commands_is_imported_in_a_thread() -> None:
    subprocess.run([sys.executable, "-c", _LOADING], check=True)


async def test_an_analysis_that_cannot_be_imported_is_missed_where_it_is_needed() -> None:
    def facts(_: Mapping[str, Json]) -> Facts:
        importlib.import_module("aisotools.nosuch")
        return Facts()

    broken = bare(gather_facts=facts)
    register_builtin(broken, analysis="aisotools.nosuch")
    for _ in range(2):
        await load_analysis(broken)
        with pytest.raises(ModuleNotFoundError):
            gather_facts(broken, {})


_LOADING_WITHOUT_FILES = """
import asyncio, errno, os, sys
from aisotools.builtin.shell import sandbox_bash
from aisotools.tools.adapter import load_analysis

class WithoutFiles:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("aisotools.policy.shell"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

async def main():
    sys.meta_path.insert(0, WithoutFiles())
    await load_analysis(sandbox_bash)
    del sys.meta_path[0]
    await load_analysis(sandbox_bash)
    assert "aisotools.policy.shell.classify" in sys.modules

asyncio.run(main())
"""


def test_an_analysis_for_which_no_file_can_be_opened_is_imported_later() -> None:
    subprocess.run([sys.executable, "-c", _LOADING_WITHOUT_FILES], check=True)


def test_hints_are_texts_and_few() -> None:
    assert hints_of(bare()) == ()
    assert hints_of(bare(hints="read")) == ()
    assert hints_of(bare(hints=["a", 5, "b"])) == ("a", "b")
    assert len(hints_of(bare(hints=["a"] * 100))) == 20
