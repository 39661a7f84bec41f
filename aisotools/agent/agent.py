"""`Agent`: a model that works with the tools of a session until it has an answer.

What happens next is decided by `agent.loop`, and carried out by `agent.run`. This module is what a program
uses: runs in the foreground, in the background, and in scripts without an event loop (`LoopRunner`), and
    rewinding.
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

from aisotools.agent import loop
from aisotools.agent.budgets import Budgets
from aisotools.agent.loop import ConversationState, End, RunSettings
from aisotools.agent.run import (
    AgentRun,
    Chooser,
    Driver,
    DriverDependencies,
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
from aisotools.core.protocols import SupportsContextWindow
from aisotools.core.types import ToolDefinition
from aisotools.session.event_log import Listener
from aisotools.session.session import Session

_log = logging.getLogger(__name__)

_CHILDREN_TIMEOUT_S = 2.0  # for cancelled agents that work for this one; more means that one of them is stuck

_T = TypeVar("_T")


class LoopRunner:
    """An event loop for a session in a program that has none.

    Session and loop are closed together: by `close`, or when this object is collected, or when the program
    ends.
    """

    def __init__(self, session: Session) -> None:
        self._runner = asyncio.Runner()
        self._finalizer = weakref.finalize(self, _close, self._runner, session)

    def __repr__(self) -> str:
        return f"<LoopRunner {'open' if self._finalizer.alive else 'closed'}>"

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run `coroutine` to its end. Return its result."""
        return self._runner.run(coroutine)

    def close(self) -> None:
        """Close the session and the loop. Do nothing the second time."""
        self._finalizer()


def loop_runs_here() -> bool:
    """Return whether an event loop is running in this thread."""
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
    # Collected while another loop runs in this thread: a loop cannot run inside a loop, but it can in a new
    # thread.
    thread = threading.Thread(target=close)
    thread.start()
    thread.join()


class Agent:
    """A conversation of a model that calls the tools of a session; each run continues it.

    Attributes:
        model: The model; another one may be assigned between runs.
        session: The session whose gate every call passes.
        instructions: The system prompt.
        budgets: What each run may use up.
        agent_id: The agent's id in the session's record.
        parent: The agent that this one works for, or None.
        agents_by_id: This agent and all agents that work for it, by id.
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
        """Create the agent; nothing is sent to the model yet.

        Args:
            model: The model; a text such as `"openai:gpt-5"` is passed to `provider_model`.
            session: The session that makes the calls.
            instructions: The system prompt.
            budgets: What each run may use up.
            tools: Names of the tools that the model may call; all tools of the session by default.
            stepper: Asked before each request and each call.
            chooser: Asked when the model cannot choose between calls.
            messages: The conversation so far.
            parent: The agent that this one works for; what this one uses up counts for the parent, too.

        Raises:
            UsageError: If an argument has the wrong type, or a named tool does not exist.
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
        self.agents_by_id: dict[str, Agent] = {self.agent_id: self}
        for ancestor in self._ancestors():
            ancestor.agents_by_id[self.agent_id] = self
        self._tools = None if tools is None else _existing(tools, session)
        self._state = loop.replace_messages(ConversationState(), tuple(messages))
        self._child_tasks: set[asyncio.Future[object]] = set()
        self._listeners: list[Listener] = []
        self._driver: Driver | None = None
        self._task: asyncio.Task[RunResult] | None = None
        self._last_result: RunResult | None = None
        self._loop_runner: LoopRunner | None = None

    def __repr__(self) -> str:
        state = "running" if self._driver is not None else "idle"
        return f"<Agent {self.agent_id} with {self.model.name}: {state}, {self._state.step} steps>"

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation; during a run, up to its last complete step."""
        return self._driver.state.messages if self._driver is not None else self._state.messages

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        self._require_idle("changed")
        self._edit(messages)

    def _edit(self, messages: Sequence[Message]) -> None:
        self._state = loop.replace_messages(self._state, messages)
        self.session.record(
            ConversationEdited, agent_id=self.agent_id, step=self.step, messages=self._state.messages
        )

    @property
    def step(self) -> int:
        """The number of the last request to the model, from 1; 0 before the first."""
        return self._driver.state.step if self._driver is not None else self._state.step

    @property
    def depth(self) -> int:
        """The number of agents above this one: 0 for one that a program made."""
        return sum(1 for _ in self._ancestors())

    def _ancestors(self) -> Iterator[Agent]:
        ancestor = self.parent
        while ancestor is not None:
            yield ancestor
            ancestor = ancestor.parent

    # ---- running

    async def run(self, prompt: str | UserMessage | None = None) -> RunResult:
        """Run until the model has answered `prompt`, or a budget, an error or a person ends the run.

        Args:
            prompt: The message of the person; None continues from the end of the conversation.

        Returns:
            The result. Whatever a model or a tool can cause is an outcome, never an exception.

        Raises:
            CancelledError: If the awaiting task is cancelled; the conversation stays consistent.
            UsageError: If another run is in progress, or the session cannot be used.
        """
        self._require_idle("run")
        return await self._run(prompt)

    async def _run(self, prompt: str | UserMessage | None) -> RunResult:
        before = len(self._state.messages)
        driver = self._driver = Driver(self._dependencies(), self._state, self._rules())
        end = End("failed", "it could not begin")
        task = asyncio.current_task()
        assert task is not None
        for ancestor in self._ancestors():
            ancestor._child_tasks.add(task)  # noqa: SLF001 - another of this class
        try:
            try:
                end = await self._drive(driver, prompt)
            finally:
                # Cancelled: agents that work for this one were cancelled too. Wait for them, so that the
                # record of their end comes before the record of this one's.
                if self._child_tasks:
                    await run_to_completion(_wait_for(frozenset(self._child_tasks)))
        except asyncio.CancelledError:
            end = End("cancelled", "it was cancelled")
            raise
        except UsageError as error:
            end = End("failed", str(error))
            raise
        finally:
            for ancestor in self._ancestors():
                ancestor._child_tasks.discard(task)  # noqa: SLF001 - another of this class
            result = self._last_result = self._finish(driver, end, before)
        return result

    async def _drive(self, driver: Driver, prompt: str | UserMessage | None) -> End:
        message = _as_message(prompt)
        try:
            # The ledger opens with the session; events recorded before would not be written to it.
            await self.session.start()
        except (SandboxError, WorkspaceError, LedgerError) as error:
            return End("failed", str(error))
        parent_id = self.parent.agent_id if self.parent is not None else ""
        driver.record(
            AgentStarted, model=self.model.name, instructions=self.instructions, parent_id=parent_id
        )
        return await driver.drive(loop.begin(self._state, driver.settings, message))

    def _finish(self, driver: Driver, end: End, before: int) -> RunResult:
        """Keep the conversation as the run left it, record the end, and return the result."""
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
        """Run in the background on the running event loop. Return a handle to await, watch or cancel.

        Raises:
            UsageError: If another run is in progress, or no event loop is running.
        """
        self._require_idle("started")
        if not loop_runs_here():
            raise UsageError("There is no event loop here to run in. Use agent.run_sync(...).")
        events = LiveEvents()
        unsubscribe = self.subscribe(events.add)
        self._task = asyncio.ensure_future(self._run(prompt))
        self._task.add_done_callback(lambda _: unsubscribe())
        self._last_result = None
        return AgentRun(self._task, events, lambda: self._last_result)

    def run_sync(self, prompt: str | UserMessage | None = None) -> RunResult:
        """Run to the end in a script that has no event loop. Return the result.

        The session then belongs to an event loop of this agent. Both are closed by `close_sync`, or when the
        program ends.

        Raises:
            UsageError: If an event loop is running in this thread: use `await agent.run(...)`.
        """
        if loop_runs_here():
            raise UsageError("A loop is running here, as in every notebook. Use `await agent.run(...)`.")
        if self._loop_runner is None:
            self._loop_runner = LoopRunner(self.session)
        return self._loop_runner.run(self.run(prompt))

    def close_sync(self) -> None:
        """Close the session and the event loop that `run_sync` opened. Do nothing if there is none."""
        if self._loop_runner is not None:
            self._loop_runner.close()
            self._loop_runner = None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event of the session and every piece of an answer.

        Returns:
            A function that ends the subscription.
        """
        self._listeners.append(listener)
        unsubscribe_from_session = self.session.subscribe(listener)

        def unsubscribe() -> None:
            unsubscribe_from_session()
            with contextlib.suppress(ValueError):
                self._listeners.remove(listener)

        return unsubscribe

    # ---- going back

    async def rewind(self, step: int, messages: Sequence[Message] | None = None) -> None:
        """Take conversation, files and variables back to right before request number `step`.

        Args:
            step: A request's number, from 1; see `step`.
            messages: The conversation to continue from instead of the one before that request.

        Raises:
            UsageError: If there was no such step, a run is in progress, or the calls since cannot be undone.
                The conversation then stays as it is.
        """
        self._require_idle("rewound")
        if not 1 <= step <= self._state.step:
            raise UsageError(
                f"There is no step {step}; this agent has made {self._state.step}. Give one of these."
            )
        try:
            first = first_change(self.session.events, self.agent_id, self.agents_by_id, step)
        except LookupError as error:
            raise UsageError(f"Step {step} cannot be reached: {error}") from None
        if first is not None:
            result = await self.session.undo(to=first)
            if result.is_error:
                raise UsageError(f"Step {step} cannot be reached: {result.content}")
        self._state = loop.rewind(self._state, step)
        self.session.record(AgentRewound, agent_id=self.agent_id, step=step)
        if messages is not None:
            self._edit(messages)

    # ---- inside

    def _require_idle(self, what: str) -> None:
        # Race: a run that `start` has scheduled has no driver before its task runs for the first time.
        scheduled = self._task is not None and not self._task.done()
        if self._driver is not None or scheduled:
            raise UsageError(f"A run of this agent is under way; it can be {what} when that is over.")

    def _rules(self) -> RunSettings:
        model_window = self.model.context_tokens if isinstance(self.model, SupportsContextWindow) else None
        window = self.budgets.context_tokens or model_window
        tools = to_json([tool.parameters for tool in self.definitions()], serialize_unknown=True)
        return RunSettings(
            agent_id=self.agent_id,
            budgets=self.budgets,
            window_tokens=window,
            overhead_chars=len(self.instructions) + len(tools) if window else 0,
            offered=self._tools,
        )

    def _dependencies(self) -> DriverDependencies:
        return DriverDependencies(
            model=self.model,
            session=self.session,
            instructions=self.instructions,
            definitions=self.definitions,
            stepper=self.stepper,
            chooser=self.chooser,
            on_event=self._notify,
            agent_ids=self.agents_by_id,
        )

    def definitions(self) -> Sequence[ToolDefinition]:
        """Return the tools that are offered to the model."""
        offered = self._tools
        all_tools = self.session.registry.to_llm_definitions()
        return [tool for tool in all_tools if offered is None or tool.name in offered]

    def _notify(self, event: SessionEvent) -> None:
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


def _existing(tools: Collection[str], session: Session) -> frozenset[str]:
    for name in tools:
        session.registry[name]  # raises UnknownTool, with the nearest names
    return frozenset(tools)


async def _wait_for(tasks: Collection[asyncio.Future[object]]) -> None:
    await asyncio.wait(tasks, timeout=_CHILDREN_TIMEOUT_S)


def _result(driver: Driver, end: End, before: int) -> RunResult:
    state = driver.state
    messages = state.messages[before:]
    last = next((m for m in reversed(messages) if isinstance(m, AssistantMessage)), None)
    return RunResult(
        text=last.text if last is not None else "",
        outcome=end.outcome,
        reason=end.reason,
        steps=state.steps,
        calls=state.calls,
        usage=state.usage,
        duration_s=driver.clock.wall_s,
        working_s=driver.clock.working_s,
        messages=messages,
        options=driver.options if end.outcome == "undecided" else (),
    )
