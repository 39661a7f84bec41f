"""An agent: a model that works with the tools of a session until it has an answer.

The loop itself is pure and lies in `agent_core`; `agent_driver` carries it out. Here is what a program uses.

The one seam to programs without an event loop: a loop of one's own, with the session that lives on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from pydantic_core import to_json

from aisotools.agent import loop as core
from aisotools.agent.budgets import Budgets
from aisotools.agent.loop import End, Rules, State
from aisotools.agent.run import (
    AgentRun,
    Chooser,
    Driver,
    DriverDependencies,
    Listener,
    LiveEvents,
    RunResult,
    Stepper,
)
from aisotools.core.concurrency import run_to_completion
from aisotools.core.events import (
    AgentFinished,
    AgentRewound,
    AgentStarted,
    ConversationEdited,
    SessionEvent,
    first_change,
)
from aisotools.core.exceptions import LedgerError, SandboxError, UsageError, WorkspaceError
from aisotools.core.messages import AssistantMessage, Message, Model, UserMessage, since_last_answer
from aisotools.core.types import ToolDefinition
from aisotools.session.session import Session

T = TypeVar("T")


class LoopRunner:
    """A loop that a session lives on; both are closed together, at the latest when this is forgotten."""

    def __init__(self, session: Session) -> None:
        """Make it; nothing runs on it yet."""
        self._runner = asyncio.Runner()
        self._end = weakref.finalize(self, _close, self._runner, session)

    def __repr__(self) -> str:
        return f"<OwnLoop {'open' if self._end.alive else 'closed'}>"

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end."""
        return self._runner.run(work)

    def close(self) -> None:
        """Close session and loop; again does nothing."""
        self._end()


def loop_runs_here() -> bool:
    """Whether this thread is inside a running loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _close(runner: asyncio.Runner, session: Session) -> None:
    def close() -> None:
        with runner:
            runner.run(session.close())

    if not loop_runs_here():
        close()
        return
    # Forgotten inside another loop: no loop can run within a loop, but on another thread it can.
    closing = threading.Thread(target=close)
    closing.start()
    closing.join()


_log = logging.getLogger(__name__)

_CHILDREN_S = 2.0


class Agent:
    """A conversation between a model and the tools of a session; it goes on from run to run.

    Attributes:
        model: Who answers; another one may be assigned between runs.
        session: Whose gate every call passes.
        instructions: What the model is told before everything else.
        budgets: What each run may use up.
        agent_id: Names it in the session's record.
        parent: The agent that this one works for; None for one of its own.
        kin: This agent and all that work for it, by their ids.
    """

    def __init__(
        self,
        model: Model | str,
        session: Session,
        instructions: str = "",
        budgets: Budgets | None = None,
        *,
        tools: Collection[str] | None = None,
        stepper: Stepper | None = None,
        chooser: Chooser | None = None,
        messages: Sequence[Message] = (),
        parent: Agent | None = None,
    ) -> None:
        """Bring them together; nothing is asked yet.

        Args:
            model: Who answers; a text such as `"openai:gpt-5"` is taken to `provider_model`.
            session: Makes the calls.
            instructions: What the model is told before everything else.
            budgets: What each run may use up.
            tools: Names of the tools it may call; all of the session's without it.
            stepper: Who is asked before each request and each call.
            chooser: Who picks when the model cannot.
            messages: What was said before.
            parent: The agent that this one works for; what it uses up, that one has used up, too.

        Raises:
            UsageError: If one of them is no such thing, or a tool is not there.
        """
        self.model = _as_model(model)
        if not isinstance(session, Session):
            raise UsageError(f"Agent(session={session!r}): give a Session, such as Session('workspace').")
        if budgets is not None and not isinstance(budgets, Budgets):
            raise UsageError(f"Agent(budgets={budgets!r}): give Budgets, such as Budgets(steps=20).")
        self.session = session
        self.instructions = instructions
        self.budgets = budgets or Budgets()
        self.stepper = stepper
        self.chooser = chooser
        self.agent_id = uuid.uuid4().hex[:8]
        self.parent = parent
        self.kin: dict[str, Agent] = {self.agent_id: self}
        for ancestor in self._ancestors():
            ancestor.kin[self.agent_id] = self
        self._tools = None if tools is None else _known(tools, session)
        self._state = core.edited(State(), tuple(messages))
        self._employed: set[asyncio.Future[object]] = set()
        self._listeners: list[Listener] = []
        self._driver: Driver | None = None
        self._started: asyncio.Task[RunResult] | None = None
        self._last: RunResult | None = None
        self._own_loop: LoopRunner | None = None

    def __repr__(self) -> str:
        state = "running" if self._driver is not None else "idle"
        return f"<Agent {self.agent_id} with {self.model.name}: {state}, {self._state.step} steps>"

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was said so far; during a run, up to its last whole step."""
        return self._driver.state.messages if self._driver is not None else self._state.messages

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        self._demand_idle("changed")
        self._edit(messages)

    def _edit(self, messages: Sequence[Message]) -> None:
        self._state = core.edited(self._state, messages)
        self.session.record(
            ConversationEdited, agent_id=self.agent_id, step=self.step, messages=self._state.messages
        )

    @property
    def step(self) -> int:
        """The number of the last request to the model, from 1; 0 before the first."""
        return self._driver.state.step if self._driver is not None else self._state.step

    @property
    def depth(self) -> int:
        """How many agents this one works for, over one another."""
        return sum(1 for _ in self._ancestors())

    def _ancestors(self) -> Iterator[Agent]:
        ancestor = self.parent
        while ancestor is not None:
            yield ancestor
            ancestor = ancestor.parent

    # ---- running

    async def run(self, prompt: str | UserMessage | None = None) -> RunResult:
        """Have the model work on `prompt` until it has answered, or something stands against it.

        Args:
            prompt: What it is asked; None to go on from where the conversation stands.

        Returns:
            What came of it; whatever a model or a tool can cause is an outcome, never an error.

        Raises:
            CancelledError: If the awaiting task is cancelled; the conversation stays whole.
            UsageError: If a run is under way, or the session cannot be used.
        """
        self._demand_idle("run")
        return await self._run(prompt)

    async def _run(self, prompt: str | UserMessage | None) -> RunResult:
        before = len(self._state.messages)
        driver = self._driver = Driver(self._parts(), self._state, self._rules())
        end = End("failed", "it could not begin")
        mine = asyncio.current_task()
        assert mine is not None
        for ancestor in self._ancestors():
            ancestor._employed.add(mine)  # noqa: SLF001 - another of this class
        try:
            try:
                end = await self._begun(driver, prompt)
            finally:
                # Those that work for this one were cancelled with it; their end comes before its own.
                if self._employed:
                    await run_to_completion(_ended(frozenset(self._employed)))
        except asyncio.CancelledError:
            end = End("cancelled", "it was cancelled")
            raise
        except UsageError as error:
            end = End("failed", str(error))
            raise
        finally:
            for ancestor in self._ancestors():
                ancestor._employed.discard(mine)  # noqa: SLF001 - another of this class
            result = self._last = self._finish(driver, end, before)
        return result

    async def _begun(self, driver: Driver, prompt: str | UserMessage | None) -> End:
        message = _as_message(prompt)
        try:
            await self.session.start()  # what is said before it is open would not be recorded
        except (SandboxError, WorkspaceError, LedgerError) as error:
            return End("failed", str(error))
        parent_id = self.parent.agent_id if self.parent is not None else ""
        driver.record(
            AgentStarted, model=self.model.name, instructions=self.instructions, parent_id=parent_id
        )
        return await driver.drive(core.begin(self._state, driver.rules, message))

    def _finish(self, driver: Driver, end: End, before: int) -> RunResult:
        """Keep where the run left the conversation, and record its end."""
        self._state, self._driver = driver.state, None
        result = _result(driver, end, before)
        driver.record(
            AgentFinished,
            outcome=end.outcome,
            reason=end.reason,
            steps=result.steps,
            calls=result.calls,
            usage=result.usage,
            duration_s=result.duration_s,
            working_s=result.working_s,
            new=since_last_answer(driver.state.messages),
        )
        if self.parent is not None and self.parent._driver is not None:  # noqa: SLF001 - another of this class
            self.parent._driver.spend(result.usage)  # noqa: SLF001 - another of this class
        return result

    def start(self, prompt: str | UserMessage | None = None) -> AgentRun:
        """Run in the background, on the running loop.

        Raises:
            UsageError: If a run is under way, or there is no loop; use `run_sync` then.
        """
        self._demand_idle("started")
        if not loop_runs_here():
            raise UsageError("There is no event loop here to run in. Use agent.run_sync(...).")
        events = LiveEvents()
        stop = self.subscribe(events.add)
        self._started = asyncio.ensure_future(self._run(prompt))
        self._started.add_done_callback(lambda _: stop())
        self._last = None
        return AgentRun(self._started, events, lambda: self._last)

    def run_sync(self, prompt: str | UserMessage | None = None) -> RunResult:
        """Run to the end without a loop; for scripts.

        The session then belongs to this agent's own loop, and is closed with it: at the end of the program,
        or by `close_sync`.

        Raises:
            UsageError: If a loop is running here, which this would block; `await agent.run(...)` instead.
        """
        if loop_runs_here():
            raise UsageError("A loop is running here, as in every notebook. Use `await agent.run(...)`.")
        if self._own_loop is None:
            self._own_loop = LoopRunner(self.session)
        return self._own_loop.run(self.run(prompt))

    def close_sync(self) -> None:
        """Close the session and the loop that `run_sync` opened; without one it does nothing."""
        if self._own_loop is not None:
            self._own_loop.close()
            self._own_loop = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have `listener` hear the session and the pieces of answers; calling what is returned stops it."""
        self._listeners.append(listener)
        stop_session = self.session.subscribe(listener)

        def stop() -> None:
            stop_session()
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return stop

    # ---- going back

    async def rewind(self, step: int, messages: Sequence[Message] | None = None) -> None:
        """Take everything back to right before request `step`: what was said, files and variables.

        Args:
            step: A request's number, from 1; see `step`.
            messages: The conversation to go on from instead; edited at will.

        Raises:
            UsageError: If there was no such step, a run is under way, or the calls since cannot be undone;
                then the conversation stays as it is.
        """
        self._demand_idle("rewound")
        if not 1 <= step <= self._state.step:
            raise UsageError(f"There is no step {step}; this agent has made {self._state.step}.")
        first = first_change(self.session.events, self.agent_id, self.kin, step)
        if first is not None:
            undone = await self.session.undo(to=first)
            if undone.is_error:
                raise UsageError(f"Step {step} cannot be reached: {undone.content}")
        self._state = core.rewound(self._state, step)
        self.session.record(AgentRewound, agent_id=self.agent_id, step=step)
        if messages is not None:
            self._edit(messages)

    # ---- inside

    def _demand_idle(self, what: str) -> None:
        started = self._started is not None and not self._started.done()
        if self._driver is not None or started:
            raise UsageError(f"A run of this agent is under way; it can be {what} when that is over.")

    def _rules(self) -> Rules:
        window = self.budgets.context_tokens or getattr(self.model, "context_tokens", None)
        tools = to_json([tool.parameters for tool in self.definitions()], serialize_unknown=True)
        return Rules(
            agent_id=self.agent_id,
            budgets=self.budgets,
            window_tokens=window,
            overhead_chars=len(self.instructions) + len(tools) if window else 0,
            offered=self._tools,
        )

    def _parts(self) -> DriverDependencies:
        return DriverDependencies(
            model=self.model,
            session=self.session,
            instructions=self.instructions,
            definitions=self.definitions,
            stepper=self.stepper,
            chooser=self.chooser,
            hear=self._tell,
            kin=self.kin,
        )

    def definitions(self) -> Sequence[ToolDefinition]:
        """The tools that the model is shown."""
        offered = self._tools
        all_tools = self.session.registry.to_llm_definitions()
        return [tool for tool in all_tools if offered is None or tool.name in offered]

    def _tell(self, event: SessionEvent) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                _log.exception("A listener failed at %s: %r", event.kind, listener)


def _as_model(model: Model | str) -> Model:
    if isinstance(model, str):
        from aisotools.agent.models.provider import provider_model  # the provider libraries are heavy

        return provider_model(model)
    if not isinstance(model, Model):
        raise UsageError(
            f"Agent(model={model!r}): give a Model, such as ScriptedModel(['hi']), or a text such as "
            "'openai:gpt-5'.",
        )
    return model


def _as_message(prompt: str | UserMessage | None) -> UserMessage | None:
    if prompt is None or isinstance(prompt, UserMessage):
        return prompt
    if not isinstance(prompt, str):
        raise UsageError(f"The prompt is {type(prompt).__name__}; give a text, or a UserMessage.")
    return UserMessage(prompt)


def _known(tools: Collection[str], session: Session) -> frozenset[str]:
    for name in tools:
        session.registry[name]  # raises UnknownTool, with the nearest names
    return frozenset(tools)


async def _ended(tasks: Collection[asyncio.Future[object]]) -> None:
    await asyncio.wait(tasks, timeout=_CHILDREN_S)


def _result(driver: Driver, end: End, before: int) -> RunResult:
    state = driver.state
    said = state.messages[before:]
    last = next((m for m in reversed(said) if isinstance(m, AssistantMessage)), None)
    return RunResult(
        text=last.text if last is not None else "",
        outcome=end.outcome,
        reason=end.reason,
        steps=state.steps,
        calls=state.calls,
        usage=state.usage,
        duration_s=driver.clock.wall_s,
        working_s=driver.clock.working_s,
        messages=said,
        options=driver.options if end.outcome == "undecided" else (),
    )
