"""`delegate`: a tool with which a model hands a task to a child agent with its own, narrower limits.

The child works in the same session: same sandbox, same record, same approver. It may do what its parent may
do, less what the tool's policy, the list of tools and the budgets take away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from aisotools.agent.agent import Agent
from aisotools.agent.budgets import Budgets
from aisotools.agent.run import RunResult
from aisotools.core.messages import Model
from aisotools.core.protocols import ToolContext
from aisotools.core.types import Decision, Effect, Facts, Json, ToolCall, ToolResult
from aisotools.policy.rules import Evaluation, Policy

CHILD_BUDGETS = Budgets(steps=30, calls=100, working_s=600.0)
"""What a child may use up by default."""

_MAX_DEPTH = 3  # of agents that work for agents; more are loops rather than plans
_TIMEOUT_S = 86_400.0  # the child's own budgets end it; time in which people are asked must not


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPolicy(Policy):
    """A policy for the calls of some agents; it allows the calls of all others.

    Attributes:
        agent_ids: The agents; the collection may grow while they work.
        tools: Names of the tools they may call; None for all.
    """

    agent_ids: Collection[str] = field(default_factory=frozenset)
    tools: frozenset[str] | None = None

    def check_rules(self, call: ToolCall, facts: Facts) -> Evaluation:
        """Return the decision about `call`. It is called by the policy that this one narrows."""
        if call.agent_id not in self.agent_ids:
            return Evaluation(Decision.ALLOW)
        if self.tools is not None and call.name not in self.tools:
            return Evaluation(Decision.DENY, reasons=(f"{call.name} was not given to this agent",))
        return Policy.check_rules(self, call, facts)


class DelegateTool:
    """A tool that runs a child agent of `parent` for each call.

    Attributes:
        name: `delegate`, or another name.
        description: The description for the model.
        children: The child agents so far.
    """

    def __init__(
        self,
        parent: Agent,
        *,
        name: str = "delegate",
        tools: Collection[str] | None = None,
        policy: Policy | None = None,
        budgets: Budgets = CHILD_BUDGETS,
        model: Model | None = None,
        instructions: str = "",
    ) -> None:
        """Create the tool; register it with the parent's session.

        Args:
            parent: The agent that the children work for.
            name: The tool's name.
            tools: Names of the tools that a child may be given; by default all that the parent may call,
                except tools that delegate.
            policy: Narrows what a child may do; it cannot widen it.
            budgets: What one child may use up.
            model: The model of the children; the parent's by default.
            instructions: The system prompt of the children.
        """
        self._parent = parent
        self.name = name
        self.description = (
            "Hand a self-contained task to an assistant of your own and get its answer. It sees nothing of "
            "this conversation: say in the task all it needs to know. It works in the same workspace."
        )
        self._tools = None if tools is None else frozenset(tools)
        self._policy = policy or Policy(mode="auto")
        self._budgets = budgets
        self._model = model
        self._instructions = instructions
        self.children: list[Agent] = []
        self.timeout_s = _TIMEOUT_S

    def __repr__(self) -> str:
        return f"<DelegateTool {self.name} of {self._parent.agent_id}, {len(self.children)} children>"

    def parameters_schema(self) -> Mapping[str, Json]:
        """Return the JSON Schema of the arguments."""
        task = {"type": "string", "description": "What to do, with all that must be known for it."}
        tools = {
            "type": "array",
            "items": {"type": "string"},
            "description": "Names of the only tools it may use; without it all that you may give.",
        }
        return {
            "type": "object",
            "properties": {"task": task, "tools": tools},
            "required": ["task"],
            "additionalProperties": False,
        }

    def classify(self, arguments: Mapping[str, Json]) -> Effect:  # noqa: ARG002 - named by the contract
        """Return read-only: the gate decides about each call of the child by itself."""
        return Effect.READ_ONLY

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Run a child to its end. Return its answer."""
        # Only this agent and those that work for it: for any other caller it is not known which policies
        # its child must obey.
        caller = self._parent.agents_by_id.get(context.agent_id) if context.agent_id else self._parent
        if caller is None:
            return ToolResult.error(f"{self.name} belongs to another agent.", recoverable=False)
        if caller.depth >= _MAX_DEPTH:
            return ToolResult.error(
                f"Delegating more than {_MAX_DEPTH} deep is not possible. Do it yourself."
            )
        offered = self._list_offered(caller)
        requested = arguments.get("tools")
        if requested is not None:
            missing = sorted(set(requested) - offered)
            if missing:
                known = ", ".join(sorted(offered)) or "none"
                return ToolResult.error(f"You cannot give away {', '.join(missing)}. You can: {known}.")
            offered &= set(requested)
        child = Agent(
            self._model or caller.model,
            caller.session,
            self._instructions,
            self._budgets,
            tools=sorted(offered),
            stepper=caller.stepper,
            chooser=caller.chooser,
            parent=caller,
        )
        self.children.append(child)
        return _result(child, await self._run(child, arguments["task"], frozenset(offered)))

    async def _run(self, child: Agent, task: str, offered: frozenset[str]) -> RunResult:
        """Run the child under the policy, which binds its own children too: `child.agents_by_id` grows."""
        fields = {
            field.name: getattr(self._policy, field.name)
            for field in dataclasses.fields(Policy)
            if field.init
        }
        policy = AgentPolicy(**fields, agent_ids=child.agents_by_id, tools=offered)
        remove_policy = child.session.narrow(policy)
        try:
            return await child.run(task)
        finally:
            remove_policy()

    def _list_offered(self, caller: Agent) -> set[str]:
        """Return the tools that a child of `caller` may be given."""
        names = {tool.name for tool in caller.definitions()}
        if self._tools is not None:
            return names & self._tools
        return {name for name in names if not isinstance(caller.session.registry[name], DelegateTool)}


def _result(child: Agent, result: RunResult) -> ToolResult:
    value: dict[str, Any] = {
        "outcome": result.outcome,
        "reason": result.reason,
        "answer": result.text,
        "steps": result.steps,
        "agent_id": child.agent_id,
    }
    if result.ok:
        return ToolResult.json(value, result.text)
    return dataclasses.replace(ToolResult.error(f"The assistant did not finish: {result}"), value=value)


def delegate_tool(parent: Agent, **options: Any) -> DelegateTool:
    """Register a `DelegateTool` with the session of `parent`, with the options of its class. Return it."""
    return parent.session.registry.register(DelegateTool(parent, **options))
