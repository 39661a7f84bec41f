"""Going back to an earlier step: what was said, and what was done to files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from aisotools.agent.agent import Agent
from aisotools.agent.delegation import delegate_tool
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.replay import RecordedApprover, replay
from aisotools.agent.transcript.metadata import read_transcript
from aisotools.core.events import AgentRewound
from aisotools.core.exceptions import UsageError
from aisotools.core.messages import ToolMessage, UserMessage
from aisotools.notebook.magics.export import export_session
from aisotools.policy.approvers import AllowAll
from aisotools.session.session import Session
from tests.agent.rules import assert_sound
from tests.conftest import OpenSession


def write(content: str) -> tuple[str, dict[str, Any]]:
    return "file", {"operation": "write", "path": "a.txt", "content": content}


READ = ("file", {"operation": "read", "path": "a.txt"})


@pytest.fixture
def session(open_session: OpenSession) -> Session:
    return open_session(approver=AllowAll())


def text(session: Session) -> str | None:
    path = Path(session.workspace or "") / "a.txt"
    return path.read_text() if path.exists() else None


async def test_files_and_words_go_back(session: Session) -> None:
    agent = Agent(ScriptedModel([write("one"), READ, write("two"), "Written."]), session)
    result = await agent.run("Write.")
    assert (result.text, text(session)) == ("Written.", "two")
    await agent.rewind(2)
    assert text(session) == "one"
    assert agent.step == 1
    assert len(agent.messages) == 3
    agent.model = ScriptedModel([write("three"), "Otherwise."])
    assert (await agent.run()).text == "Otherwise."
    assert text(session) == "three"
    assert [event.step for event in session.events if isinstance(event, AgentRewound)] == [2]
    assert_sound(agent)


async def test_to_the_beginning_with_other_words(session: Session) -> None:
    agent = Agent(ScriptedModel([write("one"), "Written."]), session)
    await agent.run("Write.")
    await agent.rewind(1, messages=[UserMessage("Do nothing.")])
    assert text(session) is None
    model = agent.model = ScriptedModel(["Nothing done."])
    assert (await agent.run()).text == "Nothing done."
    assert model.requests[0].messages == (UserMessage("Do nothing."),)
    assert_sound(agent)


async def test_rewinding_takes_children_back_too(session: Session) -> None:
    agent = Agent(ScriptedModel([("delegate", {"task": "Write."}), "Done."]), session)
    delegate_tool(agent, model=ScriptedModel([write("by the child"), "Written."]))
    await agent.run("go")
    assert text(session) == "by the child"
    await agent.rewind(1)
    assert text(session) is None


async def test_nothing_was_changed(session: Session) -> None:
    agent = Agent(ScriptedModel([("file", {"operation": "list", "path": "."}), "Seen."]), session)
    await agent.run("go")
    await agent.rewind(1)
    assert agent.messages == (UserMessage("go"),)


@pytest.mark.parametrize("step", [0, 3, -1])
async def test_no_such_step(session: Session, step: int) -> None:
    agent = Agent(ScriptedModel(["a", "b"]), session)
    await agent.run("go")
    await agent.run("on")
    with pytest.raises(UsageError, match="has made 2"):
        await agent.rewind(step)


async def test_rewind_over_a_call_that_cannot_be_undone_changes_nothing(session: Session) -> None:
    """Somebody else changed the file since; then nothing is taken back, neither words nor files."""
    agent = Agent(ScriptedModel([write("one"), "Written."]), session)
    await agent.run("Write.")
    assert session.workspace is not None
    (session.workspace / "a.txt").write_text("mine")
    before = agent.messages
    with pytest.raises(UsageError, match="Step 1 cannot be reached"):
        await agent.rewind(1)
    assert agent.messages == before
    assert text(session) == "mine"


async def test_files_variables_and_words_go_back_in_a_real_sandbox(
    real_session: OpenSession, tmp_path: Path
) -> None:
    """And the record of it says so, and can be made again."""
    session = real_session(approver=AllowAll())
    turns: list[Any] = [
        ("python", {"code": "x = 1; open('a.txt', 'w').write('one')"}),
        ("python", {"code": "x = 2; y = 3; open('a.txt', 'w').write('two')"}),
        ("python", {"code": "del x; open('b.txt', 'w').write('three')"}),
        "Done.",
    ]
    agent = Agent(ScriptedModel(turns), session)
    assert (await agent.run("Work.")).ok
    await agent.rewind(2)
    assert text(session) == "one"
    assert not (Path(session.workspace or "") / "b.txt").exists()
    shown = await session.call("python", {"code": "print(x, 'y' in globals())"}, origin="person")
    assert shown.content.strip() == "1 False"

    last = agent.messages[-1]
    assert isinstance(last, ToolMessage)
    edited = [*agent.messages[:-1], dataclasses.replace(last, content="Nothing printed.")]
    agent.messages = edited
    model = agent.model = ScriptedModel([("python", {"code": "x += 10; print(x)"}), "Eleven."])
    assert (await agent.run("Add ten.")).text == "Eleven."
    assert model.requests[0].messages == (*edited, UserMessage("Add ten."))
    assert agent.messages[-2].content.strip() == "11"  # type: ignore[union-attr]  # a result
    assert_sound(agent)

    export_session(session, tmp_path / "run.ipynb")
    notebook_text = (tmp_path / "run.ipynb").read_text()
    assert "The run was taken back to before step 2." in notebook_text
    assert "%undo 2" in notebook_text
    assert "What was said was edited by hand here." in notebook_text
    transcript = read_transcript(tmp_path / "run.ipynb")
    again = real_session(workspace=tmp_path / "again", approver=RecordedApprover(transcript))
    replayed = await replay(transcript, again)
    assert replayed.same, replayed
    assert len(replayed.calls) == 5
    assert text(again) == "one"


async def test_variables_of_before_the_run_come_back(real_session: OpenSession) -> None:
    """Going back to the first step brings the variables of before the run back."""
    session = real_session(approver=AllowAll())
    await session.call("python", {"code": "x = 'mine'"}, origin="person")
    agent = Agent(ScriptedModel([("python", {"code": "x = 'its'"}), "Done."]), session)
    await agent.run("go")
    await agent.rewind(1)
    assert (await session.call("python", {"code": "x"}, origin="person")).content.strip() == "'mine'"
