"""An agent: a model that works with the tools of a session until it has an answer.

The loop itself is pure and lies in `agent_core`; `agent_driver` carries it out. Here is what a program uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Collection, Sequence

from pydantic_core import to_json

from aisotools import agent_core as core
from aisotools.agent_core import End, Rules, State
from aisotools.agent_driver import Driver, Parts
from aisotools.agent_events import (
    AgentFinished,
    AgentRewound,
    AgentStarted,
    ConversationEdited,
    RunOutcome,
)
from aisotools.agent_run import AgentRun, Listener, LiveEvents, RunResult
from aisotools.budgets import Budgets
from aisotools.events import ToolDefinition
from aisotools.exceptions import LedgerError, SandboxError, UsageError, WorkspaceError
from aisotools.messages import AssistantMessage, Message, Model, UserMessage, since_last_answer
from aisotools.session import Session
from aisotools.session_events import SessionEvent
from aisotools.stepping import Chooser, Stepper

_log = logging.getLogger(__name__)


class Agent:
    """A conversation between a model and the tools of a session; it goes on from run to run.

    Attributes:
        model: Who answers; another one may be assigned between runs.
        session: Whose gate every call passes.
        instructions: What the model is told before everything else.
        budgets: What each run may use up.
        agent_id: Names it in the session's record.
        parent_id: The agent that this one works for; empty for one of its own.
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
        parent_id: str = "",
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
            parent_id: The agent that this one works for.

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
        self.parent_id = parent_id
        self.kin = {self.agent_id}
        self._tools = None if tools is None else _known(tools, session)
        self._state = core.edited(State(), tuple(messages))
        self._listeners: list[Listener] = []
        self._driver: Driver | None = None
        self._started: asyncio.Task[RunResult] | None = None
        self._last: RunResult | None = None
        self._runner: asyncio.Runner | None = None

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
        rules = self._rules()
        before = len(self._state.messages)
        driver = self._driver = Driver(self._parts(), self._state, rules)
        end = End("failed", "it could not begin")
        try:
            await self.session.start()  # what is said before it is open would not be recorded
            driver.record(
                AgentStarted, model=self.model.name, instructions=self.instructions, parent_id=self.parent_id
            )
            end = await driver.drive(core.begin(self._state, rules, _as_message(prompt)))
        except asyncio.CancelledError:
            end = End("cancelled", "it was cancelled")
            raise
        except UsageError as error:
            end = End("failed", str(error))
            raise
        except (SandboxError, WorkspaceError, LedgerError) as error:
            end = End("failed", str(error))
        finally:
            self._state, self._driver = driver.state, None
            result = self._last = _result(driver, end.outcome, end.reason, before)
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
        return result

    def start(self, prompt: str | UserMessage | None = None) -> AgentRun:
        """Run in the background, on the running loop.

        Raises:
            UsageError: If a run is under way, or there is no loop; use `run_sync` then.
        """
        self._demand_idle("started")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError("There is no event loop here to run in. Use agent.run_sync(...).") from None
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
        if _loop_runs_here():
            raise UsageError("A loop is running here, as in every notebook. Use `await agent.run(...)`.")
        if self._runner is None:
            self._runner = asyncio.Runner()
            self._end = weakref.finalize(self, _close, self._runner, self.session)
        return self._runner.run(self.run(prompt))

    def close_sync(self) -> None:
        """Close the session and the loop that `run_sync` opened; without one it does nothing."""
        if self._runner is not None:
            self._end()
            self._runner = None

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
        first = self._first_call(step)
        if first is not None:
            undone = await self.session.undo(to=first)
            if undone.is_error:
                raise UsageError(f"Step {step} cannot be reached: {undone.content}")
        self._state = core.rewound(self._state, step)
        self.session.record(AgentRewound, agent_id=self.agent_id, step=step)
        if messages is not None:
            self._edit(messages)

    def _first_call(self, step: int) -> str | None:
        """The first call since request `step` that reached the gate."""
        since = self._state.messages[self._state.marks[step - 1] :]
        wanted = {call.id for m in since if isinstance(m, AssistantMessage) for call in m.calls}
        return next((event.call_id for event in self.session.events if event.call_id in wanted), None)

    # ---- inside

    def _demand_idle(self, what: str) -> None:
        started = self._started is not None and not self._started.done()
        if self._driver is not None or started:
            raise UsageError(f"A run of this agent is under way; it can be {what} when that is over.")

    def _rules(self) -> Rules:
        window = self.budgets.context_tokens or getattr(self.model, "context_tokens", None)
        tools = to_json([tool.parameters for tool in self._definitions()], serialize_unknown=True)
        return Rules(
            agent_id=self.agent_id,
            budgets=self.budgets,
            window_tokens=window,
            overhead_chars=len(self.instructions) + len(tools) if window else 0,
            offered=self._tools,
        )

    def _parts(self) -> Parts:
        return Parts(
            model=self.model,
            session=self.session,
            instructions=self.instructions,
            definitions=self._definitions,
            stepper=self.stepper,
            chooser=self.chooser,
            hear=self._tell,
            kin=self.kin,
        )

    def _definitions(self) -> Sequence[ToolDefinition]:
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
        from aisotools.models.provider import provider_model  # the provider libraries are heavy

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


def _result(driver: Driver, outcome: RunOutcome, reason: str, before: int) -> RunResult:
    state = driver.state
    said = state.messages[before:]
    last = next((m for m in reversed(said) if isinstance(m, AssistantMessage)), None)
    return RunResult(
        text=last.text if last is not None else "",
        outcome=outcome,
        reason=reason,
        steps=state.steps,
        calls=state.calls,
        usage=state.usage,
        duration_s=driver.clock.wall_s,
        working_s=driver.clock.working_s,
        messages=said,
        options=driver.options if outcome == "undecided" else (),
    )


def _loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _close(runner: asyncio.Runner, session: Session) -> None:
    """End the session and its loop; on a thread of its own where another loop runs."""

    def close() -> None:
        with runner:
            runner.run(session.close())

    if not _loop_runs_here():
        close()
        return
    closing = threading.Thread(target=close)
    closing.start()
    closing.join()
