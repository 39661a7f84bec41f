"""`delegate`: a tool by which a model hands a task to a child agent, with less power and a budget of its own.

The child works in the same session: the same sandbox, the same record, the same approver. What it may do is
what its parent may do, narrowed further.
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
"""What a child may use up, unless told otherwise."""

_DEEPEST = 3
_LONGEST_S = 86_400.0  # a child has budgets of its own, and waiting for people is not to end it


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPolicy(Policy):
    """A policy for the calls of some agents alone; it has nothing against any other.

    Attributes:
        agent_ids: Whose calls it is about; may grow while they work.
        tools: Names of the tools they may call; None for all.
    """

    agent_ids: Collection[str] = field(default_factory=frozenset)
    tools: frozenset[str] | None = None

    def check(self, call: ToolCall, facts: Facts) -> Evaluation:
        """Decide about `call`."""
        if call.agent_id not in self.agent_ids:
            return Evaluation(Decision.ALLOW)
        if self.tools is not None and call.name not in self.tools:
            return Evaluation(Decision.DENY, reasons=(f"{call.name} was not given to this agent",))
        return Policy.check(self, call, facts)


class DelegateTool:
    """Runs a child agent of `parent` for each call; register it with the parent's session.

    Attributes:
        name: `delegate`, or what it was given.
        description: What a model reads.
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
        """Prepare it.

        Args:
            parent: For whom the children work.
            name: How the model calls it.
            tools: What a child may call at most; all that the parent may, without it. Delegating itself only
                if it is named.
            policy: Narrows what a child may do; it can never widen it.
            budgets: What one child may use up.
            model: Who answers for a child; the parent's model without it.
            instructions: What a child is told before everything else.
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
        self.timeout_s = _LONGEST_S

    def __repr__(self) -> str:
        return f"<DelegateTool {self.name} of {self._parent.agent_id}, {len(self.children)} children>"

    def parameters_schema(self) -> Mapping[str, Json]:
        """JSON Schema of the arguments."""
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
        """Delegating changes nothing by itself; each call of the child is judged on its own."""
        return Effect.READ_ONLY

    async def execute(self, arguments: Mapping[str, Json], context: ToolContext) -> ToolResult:
        """Run a child to its end, and give its last words."""
        # Who a stranger's child would have to obey is not known here, so it gets none.
        caller = self._parent.kin.get(context.agent_id) if context.agent_id else self._parent
        if caller is None:
            return ToolResult.error(f"{self.name} belongs to another agent.", recoverable=False)
        if caller.depth >= _DEEPEST:
            return ToolResult.error(f"Delegating more than {_DEEPEST} deep is not possible. Do it yourself.")
        offered = self._offered(caller)
        wanted = arguments.get("tools")
        if wanted is not None:
            missing = sorted(set(wanted) - offered)
            if missing:
                known = ", ".join(sorted(offered)) or "none"
                return ToolResult.error(f"You cannot give away {', '.join(missing)}. You can: {known}.")
            offered &= set(wanted)
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
        return _told(child, await self._worked(child, arguments["task"], frozenset(offered)))

    async def _worked(self, child: Agent, task: str, offered: frozenset[str]) -> RunResult:
        """The child's run; what bounds it bounds those that work for the child, too."""
        given = {one.name: getattr(self._policy, one.name) for one in dataclasses.fields(Policy)}
        bound = AgentPolicy(**given, agent_ids=child.kin, tools=offered)
        widen = child.session.narrow(bound)
        try:
            return await child.run(task)
        finally:
            widen()

    def _offered(self, caller: Agent) -> set[str]:
        """What a child may be given: what its parent has, less delegating, unless that is named."""
        parents = {tool.name for tool in caller.definitions()}
        if self._tools is not None:
            return parents & self._tools
        return {name for name in parents if not isinstance(caller.session.registry[name], DelegateTool)}


def _told(child: Agent, result: RunResult) -> ToolResult:
    told: dict[str, Any] = {
        "outcome": result.outcome,
        "reason": result.reason,
        "answer": result.text,
        "steps": result.steps,
        "agent_id": child.agent_id,
    }
    if result.ok:
        return ToolResult.json(told, result.text)
    return dataclasses.replace(ToolResult.error(f"The assistant did not finish: {result}"), value=told)


def delegate_tool(parent: Agent, **options: Any) -> DelegateTool:
    """Give `parent` the tool `delegate`, and return it; the options are those of `DelegateTool`."""
    return parent.session.registry.register(DelegateTool(parent, **options))
