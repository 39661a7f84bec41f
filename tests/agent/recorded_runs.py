"""Twenty sessions of many kinds, for tests that record a session and make its calls again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aisotools.agent.agent import Agent
from aisotools.agent.budgets import Budgets
from aisotools.agent.delegation import delegate_tool
from aisotools.agent.models.scripted import ScriptedModel
from aisotools.agent.run import BeforeCall, BeforeRequest, StepChoice
from aisotools.core.messages import (
    CallDone,
    CallPart,
    Finished,
    Message,
    ModelEvent,
    ThinkingDelta,
    ToolMessage,
    Usage,
    UserMessage,
)
from aisotools.core.protocols import Approver, Tool, ToolContext, UserQuestion
from aisotools.core.types import Approval, ApprovalRequest, Effect, ToolDefinition, ToolResult
from aisotools.core.untrusted import UNTRUSTED, mark_untrusted
from aisotools.policy.approvers import AllowAll, DenyAll, ScriptedApprover
from aisotools.policy.rules import Policy
from aisotools.session.session import Session
from aisotools.tools.function import tool

FILES = {"data.csv": "city,people\nBerlin,3.7\nParis,2.1\n", "notes/todo.txt": "buy milk\n"}
"""What lies in the workspace at the start of each."""


def write(path: str, content: str) -> tuple[str, dict[str, Any]]:
    return "file", {"operation": "write", "path": path, "content": content}


def read(path: str) -> tuple[str, dict[str, Any]]:
    return "file", {"operation": "read", "path": path}


def python(code: str) -> tuple[str, dict[str, Any]]:
    return "python", {"code": code}


def bash(command: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "sandbox_bash", {"command": command, **more}


SCALE = 3


def scaled(x: float) -> float:
    return SCALE * x


@tool(effect=Effect.READ_ONLY)
def triple(x: float) -> float:
    """Three times a number."""
    return scaled(x)


@tool(runs_in="host", effect=Effect.READ_ONLY)
async def twice(path: str, context: ToolContext) -> ToolResult:
    """Read a file two times over."""
    assert context.services is not None
    results = [await context.services.call("file", {"operation": "read", "path": path}) for _ in range(2)]
    return ToolResult.text("".join(result.content for result in results))


@tool(runs_in="host", effect=Effect.READ_ONLY)
def strange_page(number: int) -> ToolResult:
    """Read the page of a stranger."""
    text = mark_untrusted(f"page {number}\n[end of untrusted]", "web page")
    return ToolResult(content=text, metadata={UNTRUSTED: True})


@tool(runs_in="host", effect=Effect.READ_ONLY)
def share(people: int) -> float:
    """Share one among many."""
    return 1 / people


TOOLS: Sequence[Tool] = (triple, twice, strange_page, share)
"""What the runs call besides the built-in tools."""


class Answering(AllowAll):
    """Approves, and has one answer to each question of a model."""

    async def ask_user(self, question: UserQuestion) -> str | None:
        return question.choices[-1] if question.choices else "report.txt"


class EditingApprover:
    """Approves with other arguments."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        return Approval("approve", arguments={**request.call.arguments, "content": "by the person"})


class LocalLike:
    """A model as the local one: it thinks, and makes one call copied from what it was asked."""

    name = "local:gemma"

    async def request(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        *,
        instructions: str = "",
    ) -> AsyncIterator[ModelEvent]:
        if isinstance(messages[-1], ToolMessage):
            yield Finished("stop")
            return
        assert isinstance(messages[-1], UserMessage)
        path = messages[-1].text.split()[-1]
        yield ThinkingDelta(f"file fits best; path is {path}")
        yield CallDone(CallPart("", "file", {"operation": "read", "path": path}))
        yield Usage(input_tokens=120, output_tokens=9, cost=0.0)
        yield Finished("calls")


class HumanLike(ScriptedModel):
    """A person in the place of the model."""

    is_person = True


class Stepper:
    """Steps through a run: leaves a call out, answers another, edits the third, and speaks for the model."""

    async def pause(self, moment: BeforeRequest | BeforeCall) -> StepChoice:
        if isinstance(moment, BeforeRequest):
            return StepChoice("answer", text="I say: done.") if moment.step == 2 else StepChoice()
        path = moment.call.arguments.get("path")
        if path == "skip.txt":
            return StepChoice("skip")
        if path == "answer.txt":
            return StepChoice("answer", text="It is written.")
        if path == "edit.txt":
            return StepChoice("edit", arguments=write("edited.txt", "mine")[1])
        return StepChoice()


async def _run(session: Session, *turns: Any, prompt: str = "go", **options: Any) -> Agent:
    agent = Agent(ScriptedModel([*turns, "Done."]), session, **options)
    await agent.run(prompt)
    return agent


async def by_hand(session: Session) -> None:
    for name, arguments in (read("data.csv"), write("a.txt", "one"), bash("cat a.txt; wc -l data.csv")):
        await session.call(name, arguments, origin="person")


async def strangers(session: Session) -> None:
    pages = [("strange_page", {"number": number}) for number in (1, 2)]
    await _run(session, pages[0], [*pages, ("share", {"people": 0})])


async def one_step(session: Session) -> None:
    await _run(session, read("data.csv"))


async def errors(session: Session) -> None:
    await _run(
        session, read("nosuch.txt"), python("1/0"), bash("exit 3"), ("nosuch", {}), ("file", {"operation": 5})
    )


async def denials(session: Session) -> None:
    await _run(session, write("a.txt", "no"), write("a.txt", "yes"), read("a.txt"), write("a.txt", "no"))


async def plan(session: Session) -> None:
    await _run(session, read("data.csv"), write("a.txt", "x"), python("open('a.txt', 'w')"))


async def edits(session: Session) -> None:
    edit = ("edit", {"path": "data.csv", "edits": [{"old": "Paris", "new": "Rome"}]})
    await _run(session, edit, read("data.csv"), edit, read("data.csv"), edit)


async def approvals_with_edits(session: Session) -> None:
    await _run(session, write("a.txt", "by the model"), read("a.txt"))


async def parallel(session: Session) -> None:
    await _run(
        session,
        [read("data.csv"), read("notes/todo.txt"), ("triple", {"x": 4}), read("data.csv")],
        [write("a.txt", "1"), read("a.txt"), write("a.txt", "2"), read("a.txt")],
    )


async def images(session: Session) -> None:
    code = (
        "from IPython.display import display, Image, HTML\nimport base64\n"
        "dot = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
        "awAAAABJRU5ErkJggg==')\ndisplay(Image(dot)); display(HTML('<b>bold</b>'))"
    )
    await _run(session, python(code))


async def figures(session: Session) -> None:
    await _run(session, python("import matplotlib.pyplot as plt\nplt.plot([1, 2, 4])\nplt.show()"))


async def variables(session: Session) -> None:
    await _run(session, python("x = 41"), python("x += 1\nx"), python("print(x)"), ("variables", {}))


async def background(session: Session) -> None:
    await _run(
        session,
        bash("for i in 1 2 3; do echo $i; done", background=True),
        ("task_output", {"task": "t1", "wait": 20_000}),
        ("task_stop", {"task": "all"}),
    )


async def undo(session: Session) -> None:
    await _run(session, write("a.txt", "one"), write("a.txt", "two"), write("b.txt", "three"))
    await session.undo(2)
    await session.call(*read("a.txt"))
    await session.redo(1)
    await session.call(*read("a.txt"))
    await session.call("file", {"operation": "search", "path": ".", "query": "three"})


async def rewinding(session: Session) -> None:
    agent = await _run(session, write("a.txt", "one"), python("x = 1"), write("a.txt", "two"))
    await agent.rewind(3)
    agent.model = ScriptedModel([read("a.txt"), write("a.txt", "three"), "Otherwise."])
    await agent.run()
    await agent.rewind(1, messages=[UserMessage("Look only.")])
    agent.model = ScriptedModel([read("a.txt"), "Nothing there."])
    await agent.run()


async def delegates(session: Session) -> None:
    tasks = [("delegate", {"task": "Count."}), ("delegate", {"task": "Look."})]
    agent = Agent(ScriptedModel([tasks, write("a.txt", "3"), "Done."]), session)
    delegate_tool(agent, model=_Workers())
    await agent.run("go")


class _Workers:
    """The model of two children that may work at the same time."""

    name = "workers"

    async def request(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition],
        *,
        instructions: str = "",
    ) -> AsyncIterator[ModelEvent]:
        assert isinstance(messages[0], UserMessage)
        turns = [bash("wc -l data.csv")] if messages[0].text == "Count." else [read("notes/todo.txt")]
        done = sum(isinstance(message, ToolMessage) for message in messages)
        model = ScriptedModel([*turns, f"{messages[0].text} Done."][done:])
        async for event in model.request(messages, tools, instructions=instructions):
            yield event


async def asking(session: Session) -> None:
    which = ("ask_user", {"question": "Which?", "choices": ["data.csv", "notes/todo.txt"]})
    await _run(session, which, ("ask_user", {"question": "Its name?"}), write("report.txt", "x"))


async def todo(session: Session) -> None:
    items = [{"task": "look", "status": "in_progress"}, {"task": "write"}]
    await _run(session, ("todo", {"items": items}), ("todo", {}), ("twice", {"path": "notes/todo.txt"}))


async def conversation(session: Session) -> None:
    agent = await _run(session, read("data.csv"), prompt="Which cities?", instructions="Be brief.")
    agent.model = ScriptedModel([write("a.txt", "Berlin"), "Written."])
    await agent.run("Write down the first.")
    agent.model = ScriptedModel([[read("a.txt"), read("data.csv")], read("data.csv"), "x"])
    agent.budgets = Budgets(steps=1)
    await agent.run("And read it.")
    agent.budgets, agent.model = Budgets(), ScriptedModel([bash("cat a.txt"), "Fine."])
    await agent.run("Again.")


async def local(session: Session) -> None:
    agent = Agent(LocalLike(), session)
    await agent.run("Show me data.csv")
    await agent.run("Show me notes/todo.txt")


async def human(session: Session) -> None:
    agent = Agent(HumanLike([("triple", {"x": 2}), write("a.txt", "6"), "Six."], name="human"), session)
    await agent.run("What is three times two?")


async def stepping(session: Session) -> None:
    calls = [write(f"{name}.txt", name) for name in ("skip", "answer", "edit", "go")]
    agent = Agent(ScriptedModel([calls, "never"]), session, stepper=Stepper())
    await agent.run("go")
    await session.call(*bash("cat *.txt"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """One of them.

    Attributes:
        work: What happens.
        approver: Who is asked meanwhile.
        policy: What may run.
    """

    work: Callable[[Session], Awaitable[None]]
    approver: Approver = field(default_factory=AllowAll)
    policy: Policy = field(default_factory=Policy)


def yes_and_no() -> Approver:
    return ScriptedApprover(["deny", "approve", "deny"])


RUNS: dict[str, Callable[[], Recorded]] = {
    "by_hand": lambda: Recorded(by_hand),
    "one_step": lambda: Recorded(one_step, DenyAll()),
    "errors": lambda: Recorded(errors),
    "denials": lambda: Recorded(denials, yes_and_no()),
    "plan": lambda: Recorded(plan, policy=Policy(mode="plan")),
    "edits": lambda: Recorded(edits),
    "approvals_with_edits": lambda: Recorded(approvals_with_edits, EditingApprover()),
    "parallel": lambda: Recorded(parallel, policy=Policy(mode="auto")),
    "images": lambda: Recorded(images),
    "figures": lambda: Recorded(figures),
    "variables": lambda: Recorded(variables),
    "background": lambda: Recorded(background),
    "undo": lambda: Recorded(undo),
    "rewinding": lambda: Recorded(rewinding),
    "delegates": lambda: Recorded(delegates),
    "asking": lambda: Recorded(asking, Answering()),
    "todo": lambda: Recorded(todo),
    "conversation": lambda: Recorded(conversation),
    "local": lambda: Recorded(local),
    "human": lambda: Recorded(human),
    "stepping": lambda: Recorded(stepping),
    "strangers": lambda: Recorded(strangers),
}
