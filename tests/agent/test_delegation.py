from __future__ import annotations

import asyncio
from typing import Any

from aisotools.agent.agent import Agent
from aisotools.agent.budgets import Budgets
from aisotools.agent.delegation import AgentPolicy, delegate_tool
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.core.events import AgentFinished, AgentStarted
from aisotools.core.messages import ToolMessage, UserMessage
from aisotools.core.types import Decision, Effect, Facts, ToolCall
from aisotools.policy.approvers import AllowAll
from aisotools.policy.rules import Policy
from aisotools.testing.fakes import MockTool
from tests.agent.rules import assert_no_orphans, assert_recorded, assert_sound
from tests.conftest import OpenSession


def look(name: str = "look", **given: Any) -> MockTool:
    return MockTool(name, effect=Effect.READ_ONLY, **given)


async def test_a_child_works_in_the_same_session(open_session: OpenSession) -> None:
    tool = look()
    session = open_session(tool)
    agent = Agent(ScriptedModel([("delegate", {"task": "Look."}), "The child says: it saw."]), session)
    made = delegate_tool(agent, model=ScriptedModel([("look", {}), "It saw."]), instructions="Be brief.")
    result = await agent.run("go")
    assert result.ok
    message = result.messages[2]
    assert isinstance(message, ToolMessage)
    assert message.content == "It saw."
    child = made.children[0]
    assert child.parent is agent
    assert child.messages[0] == UserMessage("Look.")
    assert tool.contexts[0].agent_id == child.agent_id
    started = [event for event in session.events if isinstance(event, AgentStarted)]
    assert [event.parent_id for event in started] == ["", agent.agent_id]
    assert_sound(agent)
    assert_sound(child)


async def test_a_child_may_only_narrow(open_session: OpenSession) -> None:
    """The parent may write; its child, in mode plan, may not, whatever the approver says."""
    write = MockTool("write")
    session = open_session(look(), write, approver=AllowAll())
    child_model = ScriptedModel([("write", {}), "I may not."])
    agent = Agent(ScriptedModel([("delegate", {"task": "Write."}), ("write", {}), "ok"]), session)
    delegate_tool(agent, model=child_model, policy=Policy(mode="plan"))
    assert (await agent.run("go")).ok
    refused = child_model.requests[1].messages[-1]
    assert isinstance(refused, ToolMessage)
    assert "plan" in refused.content
    assert len(write.calls) == 1, "the parent itself may still write, the child never could"


async def test_a_policy_of_the_child_widens_nothing(open_session: OpenSession) -> None:
    write = MockTool("write")
    session = open_session(write, policy=Policy(mode="plan"), approver=AllowAll())
    agent = Agent(ScriptedModel([("delegate", {"task": "Write."}), "ok"]), session)
    delegate_tool(agent, model=ScriptedModel([("write", {}), "no"]), policy=Policy(mode="auto"))
    await agent.run("go")
    assert write.calls == []


async def test_tools_that_were_not_given(open_session: OpenSession) -> None:
    other = look("other")
    session = open_session(look(), other)
    child_model = ScriptedModel([("other", {}), "no"])
    calls = [
        ("delegate", {"task": "x", "tools": ["look"]}),
        ("delegate", {"task": "x", "tools": ["nothing"]}),
    ]
    model = ScriptedModel([*calls, "ok"])
    agent = Agent(model, session)
    delegate_tool(agent, model=child_model)
    await agent.run("go")
    assert [tool.name for tool in child_model.requests[0].tools] == ["look"]
    assert other.calls == []
    refused = model.requests[2].messages[-1]
    assert isinstance(refused, ToolMessage)
    assert "cannot give away nothing" in refused.content


async def test_a_grandchild_is_bound_by_its_parents_bounds(open_session: OpenSession) -> None:
    """Two ways to delegate, one strict: through the other one nothing is won back."""
    write = MockTool("write")
    session = open_session(look(), write, approver=AllowAll())
    agent = Agent(ScriptedModel([("strict", {"task": "a"}), "ok"]), session)
    grandchild = ScriptedModel([("write", {}), "could not"])
    child = ScriptedModel([("loose", {"task": "b"}), "done"])
    delegate_tool(
        agent, name="strict", model=child, policy=Policy(mode="plan"), tools=["look", "write", "loose"]
    )
    delegate_tool(agent, name="loose", model=grandchild, policy=Policy(mode="auto"), tools=["write"])
    assert (await agent.run("go")).ok
    assert grandchild.requests, "the grandchild was asked"
    assert write.calls == []


async def test_depth_is_bounded(open_session: OpenSession) -> None:
    session = open_session(look())
    model = ScriptedModel([("delegate", {"task": "down"})] * 4 + ["up"] * 4)
    agent = Agent(model, session)
    made = delegate_tool(agent, tools=["look", "delegate"])
    assert (await agent.run("go")).ok
    assert [child.depth for child in made.children] == [1, 2, 3]


async def test_a_childs_budget_is_its_own_and_what_it_uses_is_counted(open_session: OpenSession) -> None:
    session = open_session(look())
    agent = Agent(ScriptedModel([("delegate", {"task": "x"}), "ok"]), session)
    delegate_tool(agent, model=ScriptedModel([("look", {})] * 9), budgets=Budgets(steps=2))
    result = await agent.run("go")
    assert result.ok
    message = result.messages[2]
    assert isinstance(message, ToolMessage)
    assert message.is_error
    assert "budget of 2 steps" in message.content
    assert result.steps == 2
    assert result.usage.requests == 4


async def test_cancelling_reaches_the_child(open_session: OpenSession) -> None:
    async def sleeps(*_: object) -> str:
        await asyncio.sleep(30)
        return ""

    session = open_session(look(result=sleeps))
    agent = Agent(ScriptedModel([("delegate", {"task": "x"}), "ok"]), session)
    delegate_tool(agent, model=ScriptedModel([("look", {}), "never"]))
    before = asyncio.all_tasks()
    run = agent.start("go")
    async for event in run.events:
        if event.kind == "call_started" and not event.call_id.startswith(agent.agent_id):
            break
    run.cancel()
    assert (await run).outcome == "cancelled"
    await assert_no_orphans(before)
    ended = [event for event in session.events if isinstance(event, AgentFinished)]
    assert [event.outcome for event in ended] == ["cancelled", "cancelled"]
    assert ended[-1].agent_id == agent.agent_id, "the child ends before its parent"
    assert_recorded(session.events, agent.agent_id)
    assert_sound(agent)


async def test_children_side_by_side(open_session: OpenSession) -> None:
    session = open_session(look())
    both = [("delegate", {"task": "a"}), ("delegate", {"task": "b"})]
    agent = Agent(ScriptedModel([both, "ok"]), session)
    made = delegate_tool(agent, model=ScriptedModel(["x", "y"]))
    assert (await agent.run("go")).ok
    assert len(made.children) == 2
    assert_sound(agent)


async def test_a_stranger_cannot_use_it(open_session: OpenSession) -> None:
    session = open_session(look())
    made = delegate_tool(Agent(ScriptedModel(["x"]), session))
    model = ScriptedModel([("delegate", {"task": "x"}), "ok"])
    await Agent(model, session).run("go")
    refused = model.requests[1].messages[-1]
    assert isinstance(refused, ToolMessage)
    assert "another agent" in refused.content
    assert made.children == []


async def test_a_program_may_call_it(open_session: OpenSession) -> None:
    session = open_session(look())
    delegate_tool(Agent(ScriptedModel(["Yes."]), session))
    assert (await session.call("delegate", {"task": "x"})).content == "Yes."


def test_a_narrowed_policy_binds_the_agents_it_is_about_and_no_others() -> None:
    bound = AgentPolicy(mode="plan", agent_ids={"child"}, tools=frozenset({"file"}))
    policy = Policy(mode="auto").narrowed(bound)

    def decide(agent_id: str, name: str, effect: Effect) -> Decision:
        call = ToolCall("1", name, {}, origin="model", agent_id=agent_id)
        return policy.check(call, Facts(effect=effect)).decision

    assert decide("child", "file", Effect.READ_ONLY) is Decision.ALLOW
    assert decide("child", "file", Effect.LOCAL_MUTATION) is Decision.DENY
    assert decide("child", "other", Effect.READ_ONLY) is Decision.DENY
    assert decide("parent", "other", Effect.LOCAL_MUTATION) is Decision.ALLOW
