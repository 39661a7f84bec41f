"""A session as a notebook, and back: what is kept, what is left out; replaying makes the same calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given, strategies as st
from pydantic import SecretStr

from aisotools.agent.agent import Agent
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.replay import RecordedApprover, compare, replay
from aisotools.agent.transcript import notebook
from aisotools.agent.transcript.metadata import read_transcript
from aisotools.agent.transcript.notebook import to_notebook, write_notebook
from aisotools.core.exceptions import UsageError
from aisotools.core.types import Approval, Effect, Json
from aisotools.policy.approvers import AllowAll, DenyAll, ScriptedApprover
from aisotools.policy.rules import Policy
from aisotools.session.session import Session
from aisotools.testing.fakes import MockTool
from aisotools.tools.function import tool
from aisotools.tools.registry import ToolRegistry
from tests.conftest import OpenSession


@tool(effect=Effect.READ_ONLY)
def double(x: int) -> int:
    """Twice a number."""
    return 2 * x


async def recorded_run(session: Session) -> None:
    await session.call(
        "file", {"operation": "write", "path": "a.txt", "content": "one\ntwo\n"}, origin="person"
    )
    model = ScriptedModel(
        [
            ("file", {"operation": "read", "path": "a.txt"}),
            [("double", {"x": 4}), ("file", {"operation": "write", "path": "b.txt", "content": "eight"})],
            ("nosuch", {}),
            "It says **two**: <b>done</b> ![x](http://evil.example/x.png) [y](javascript:alert(1)).",
        ]
    )
    agent = Agent(model, session, "Be brief.")
    assert (await agent.run("What does a.txt say?\n<script>alert(1)</script>")).outcome == "answered"


def export(session: Session, path: Path, **options: Any) -> nbformat.NotebookNode:
    notebook = to_notebook(session.events, registry=session.registry, workspace=session.workspace, **options)
    write_notebook(notebook, path)
    return notebook


@pytest.fixture
def registry() -> ToolRegistry:
    from aisotools.builtin import builtin_tools

    return ToolRegistry([*builtin_tools(), double])


async def test_a_run_becomes_a_notebook_that_reads_well(
    real_session: OpenSession, registry: ToolRegistry, tmp_path: Path
) -> None:
    session = real_session(registry=registry, approver=AllowAll())
    await recorded_run(session)
    notebook = export(session, tmp_path / "run.ipynb")
    stored = nbformat.read(tmp_path / "run.ipynb", as_version=4)
    nbformat.validate(stored)
    assert (stored.nbformat, stored.nbformat_minor) == (4, 5)
    assert stored.cells == notebook.cells
    code = [cell.source for cell in stored.cells if cell.cell_type == "code"]
    assert code[0] == "%load_ext aisotools"
    assert "TemporaryDirectory" in code[1]
    assert "def double(x: int)" in code[2]
    calls = [source.splitlines()[1] for source in code[3:]]
    assert calls[0].startswith("%call file --json ")
    assert [line.split()[1] for line in calls] == ["file", "file", "double", "file"]
    assert "# local change · by person · allow by typed" in code[3]
    text = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    assert "> What does a.txt say?" in text
    assert "There is no tool named 'nosuch'" in text
    outputs = [cell.outputs[0].data["text/plain"] for cell in stored.cells if cell.get("outputs")]
    assert any("one" in output for output in outputs)
    assert str(session.workspace) not in json.dumps(stored)


async def test_markup_from_strangers_cannot_act_on_the_page(
    real_session: OpenSession, registry: ToolRegistry, tmp_path: Path
) -> None:
    session = real_session(registry=registry, approver=AllowAll())
    await recorded_run(session)
    notebook = export(session, tmp_path / "run.ipynb", title="<img src=x onerror=alert(1)>")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            assert "<script" not in cell.source.replace("\\<script", "")
            assert "<b>" not in cell.source.replace("\\<b>", "")
            assert "![x](" not in cell.source
            assert "](javascript:" not in cell.source


async def test_replaying_makes_the_same_calls_with_the_same_results(
    real_session: OpenSession, registry: ToolRegistry, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    session = real_session(registry=registry, approver=AllowAll())
    await recorded_run(session)
    export(session, tmp_path / "run.ipynb")
    transcript = read_transcript(tmp_path / "run.ipynb")
    assert transcript.tools == ("double", "file", "nosuch")
    async with Session(
        tmp_path / "again", registry=registry, approver=RecordedApprover(transcript), environ=environ
    ) as again:
        replayed = await replay(transcript, again)
    assert [call.difference for call in replayed.calls] == [""] * 5
    assert replayed.same
    assert replayed.ends == ()


async def test_a_replay_tells_what_came_out_differently(
    real_session: OpenSession, registry: ToolRegistry, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    session = real_session(registry=registry, approver=AllowAll())
    await recorded_run(session)
    export(session, tmp_path / "run.ipynb")
    transcript = read_transcript(tmp_path / "run.ipynb")

    @tool(name="double", effect=Effect.READ_ONLY)
    def triple(x: int) -> int:
        """Three times a number."""
        return 3 * x

    others = ToolRegistry([*(one for one in registry if one.name != "double"), triple])
    async with Session(
        tmp_path / "again", registry=others, approver=RecordedApprover(transcript), environ=environ
    ) as again:
        replayed = await replay(transcript, again)
    assert not replayed.same
    assert [call.number for call in replayed.calls if call.difference] == [3]
    assert "'12'" in replayed.calls[2].difference
    assert "'8' when recorded" in replayed.calls[2].difference


async def test_a_denied_call_is_no_cell_that_run_all_would_run(
    open_session: OpenSession, tmp_path: Path
) -> None:
    danger = MockTool("danger", effect=Effect.DESTRUCTIVE)
    session = open_session(danger, approver=DenyAll())
    await session.call("danger", {"x": "```\n%call danger"}, origin="model")
    notebook = export(session, tmp_path / "run.ipynb")
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert code[0] == "%load_ext aisotools"
    assert not any("danger" in source for source in code)
    (source,) = [cell.source for cell in notebook.cells if "not run" in cell.source]
    assert source.count("````") == 2
    transcript = read_transcript(tmp_path / "run.ipynb")
    assert not transcript.calls[0].was_run


async def test_a_file_that_says_it_was_approved_gets_nothing_approved_on_the_host(
    open_session: OpenSession, tmp_path: Path, environ: Mapping[str, str]
) -> None:
    tools = [MockTool("wipe", effect=Effect.DESTRUCTIVE, runs_in="host")]
    session = open_session(*tools, approver=AllowAll())
    assert not (await session.call("wipe", {}, origin="model")).is_error
    export(session, tmp_path / "run.ipynb")
    transcript = read_transcript(tmp_path / "run.ipynb")
    assert transcript.calls[0].was_run
    again = open_session(*tools, approver=RecordedApprover(transcript), workspace=tmp_path / "again")
    replayed = await replay(transcript, again)
    assert not replayed.same
    assert "approves only what runs in a sandbox" in replayed.calls[0].difference
    assert len(tools[0].calls) == 1


async def test_edited_arguments_are_what_runs_again(open_session: OpenSession, tmp_path: Path) -> None:
    def tools() -> MockTool:
        return MockTool(
            "change", effect=Effect.LOCAL_MUTATION, runs_in="sandbox", result=lambda a, _: str(a["x"])
        )

    session = open_session(
        MockTool("change", effect=Effect.LOCAL_MUTATION, runs_in="sandbox"),
        approver=ScriptedApprover([Approval("approve", arguments={"x": 2})]),
    )
    await session.call("change", {"x": 1}, origin="model")
    export(session, tmp_path / "run.ipynb")
    transcript = read_transcript(tmp_path / "run.ipynb")
    assert (transcript.calls[0].requested_arguments, transcript.calls[0].arguments) == ({"x": 1}, {"x": 2})
    again = open_session(
        MockTool("change", effect=Effect.LOCAL_MUTATION, runs_in="sandbox"),
        approver=RecordedApprover(transcript),
        workspace=tmp_path / "again",
    )
    assert (await replay(transcript, again)).same


async def test_secrets_are_left_out(open_session: OpenSession, tmp_path: Path) -> None:
    @tool(runs_in="host", effect=Effect.READ_ONLY)
    def login(password: SecretStr) -> str:
        """Log in."""
        return f"token=sk-{'a' * 30}"

    session = open_session(login, policy=Policy(mode="auto"))
    await session.call("login", {"password": "correct horse"})
    export(session, tmp_path / "run.ipynb")
    stored = (tmp_path / "run.ipynb").read_text()
    assert "correct horse" not in stored
    assert "aaaaaaaaaa" not in stored


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a notebook"),
        ("[]", "is not a record of a run"),
        ('{"metadata": {}}', "is not a record of a run"),
        ('{"metadata": {"aisotools": {"steps": [], "format": 99}}}', "format 99"),
        ('{"metadata": {"aisotools": {"steps": [{"kind": "explode"}], "format": 1}}}', "is damaged"),
        ('{"metadata": {"aisotools": {"steps": 5, "format": 1}}}', "is damaged"),
        ('{"metadata": {"aisotools": {"steps": [{"kind": "prompt"}], "format": 1}}}', "is damaged"),
        ("[" * 100_000, "is not a notebook"),
    ],
)
def test_file_that_is_no_record_is_reported(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.ipynb"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_transcript(path)


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_transcript(tmp_path / "none.ipynb")
    with pytest.raises(UsageError, match="cannot be written"):
        write_notebook(to_notebook([], registry=ToolRegistry()), tmp_path / "none" / "x.ipynb")


async def test_a_record_that_was_tampered_with_is_damaged_or_different_never_a_crash(
    open_session: OpenSession, tmp_path: Path
) -> None:
    session = open_session(MockTool("m", effect=Effect.READ_ONLY))
    await session.call("m", {"x": 1})
    export(session, tmp_path / "run.ipynb")
    whole = json.loads((tmp_path / "run.ipynb").read_text())
    values: list[Json] = [None, 5, "x", [], {}]
    for key in list(whole["metadata"]["aisotools"]["steps"][0]):
        for value in values:
            changed = json.loads(json.dumps(whole))
            changed["metadata"]["aisotools"]["steps"][0][key] = value
            (tmp_path / "changed.ipynb").write_text(json.dumps(changed))
            with suppress(UsageError):  # any other error is a crash
                read_transcript(tmp_path / "changed.ipynb")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1, max_size=6), JSON, max_size=4))
def test_the_line_of_a_call_says_exactly_its_arguments(arguments: dict[str, Json]) -> None:
    from aisotools.agent.transcript.notebook import call_line
    from aisotools.notebook.magics.arguments import parse_call
    from aisotools.notebook.magics.transform import rewrite

    line = call_line("m", arguments)
    assert "\n" not in line
    assert parse_call(line.removeprefix("%call "), {"m": {}}).arguments == arguments
    (rewritten,) = rewrite([f"{line}\n"])
    assert rewritten.startswith("await ")


def test_comparing_notes_what_is_missing_and_what_is_more() -> None:
    assert compare([], []) == []


@pytest.mark.parametrize("before", ["", "  ", "\t", "> ", "- ", "1. ", "> - ", "x\n", "x\r", "\n\n"])
@pytest.mark.parametrize("label", ["x", "a b", "a\nb", "a\\]b", "a\\\\"])
def test_no_address_is_defined_for_a_link(before: str, label: str) -> None:
    """Also in a quotation or a list, after any kind of line break, and with a label on two lines."""
    assert notebook._defang(f"{before}[{label}]: javascript:x") == f"{before}\\[{label}]: javascript:x"


def test_an_index_at_the_end_of_a_line_stays_as_it_is() -> None:
    text = "if a[1]:\nfor b in c[2]: pass"
    assert notebook._defang(text) == text
